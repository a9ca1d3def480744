"""The use of the cluster and its queue in the last hour of a log."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from recovery.replay.rebuild import fold
from witness.playback import pending_apps

if TYPE_CHECKING:
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.codec import Fact

SPAN_MS = 3_600_000
STEP_MS = 15_000
"""The least time between two points."""


class Point(NamedTuple):
    """The cluster from a time (ms) on: the cores of live workers, those granted, and the apps that are pending."""

    at: int
    cores: int
    used: int
    pending: int


class Course:
    """The points of the last hour up to the last turn that was folded into `state`, which may be gone on with."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.points: list[Point] = [self._point()] if state.head else []

    def hear(self, facts: Iterable[Fact]) -> None:
        """Fold whole turns. The last turn of each `STEP_MS` gives the point. Raises: as `fold`."""
        for step, turns in groupby(facts, key=lambda fact: fact.at // STEP_MS):
            for fact in turns:
                fold(self._state, fact)
            if self.points and self.points[-1].at // STEP_MS == step:
                self.points.pop()
            self.points.append(self._point())
        begin = self._state.at - SPAN_MS
        while len(self.points) > 1 and self.points[1].at <= begin:
            self.points.pop(0)

    def _point(self) -> Point:
        alive = [worker for worker in self._state.workers.values() if worker.status == "alive"]
        cores = sum([worker.offer.cores for worker in alive])
        free = sum([worker.free.cores for worker in alive])
        return Point(self._state.at, cores, cores - free, sum(pending_apps(self._state).values()))
