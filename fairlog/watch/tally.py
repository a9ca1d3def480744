"""What has happened since a process began to follow the log: counters and the sizes of turns, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.model.events import AppRemoved, DriverAllocated, ExecutorAllocated, ExecutorRemoved
from scheduler.service.measures import TURN_EVENTS, Histogram

if TYPE_CHECKING:
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.codec import Fact

MOST_OVER = 100_000


class Tally:
    """Counters, fed with every turn by `hear` in one thread and read in others.

    The counters begin at 0 with the process, and miss turns that it folded from a snapshot.
    """

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        """Type of event -> how many."""
        self.granted: Counter[str] = Counter()
        """Company -> executors granted."""
        self.ended: Counter[tuple[str, str]] = Counter()
        """Company and reason -> executors ended."""
        self._turns = [0] * (len(TURN_EVENTS) + 1)
        self._turn_events = 0
        self.over: deque[str] = deque(maxlen=MOST_OVER)
        """The apps that ended and were not taken out yet."""
        self._began: dict[str, int] = {}

    def hear(self, state: ClusterState, facts: Sequence[Fact]) -> None:
        """Count a turn that `state` has folded."""
        self._turns[bisect_left(TURN_EVENTS, len(facts))] += 1
        self._turn_events += len(facts)
        for fact in facts:
            event = fact.event
            self.events[fact.type] += 1
            if isinstance(event, ExecutorAllocated):
                self.granted[_company(state, event.app)] += 1
                self._note_begin(event.app, fact.at)
            elif isinstance(event, DriverAllocated):
                self._note_begin(event.app, fact.at)
            elif isinstance(event, ExecutorRemoved):
                self.ended[_company(state, event.app), event.reason] += 1
            elif isinstance(event, AppRemoved):
                self.over.append(event.app)

    def _note_begin(self, app: str, at: int) -> None:
        if len(self._began) < MOST_OVER:
            self._began.setdefault(app, at)

    def taken_began(self) -> dict[str, int]:
        """App -> when (ms) it was first granted something since the last call; in no order that counts."""
        began, self._began = self._began, {}
        return began

    def turns(self) -> Histogram:
        """The sizes of turns."""
        return Histogram(TURN_EVENTS, list(self._turns), self._turn_events)


def _company(state: ClusterState, app: str) -> str:
    known = state.apps.get(app)
    return "" if known is None else known.spec.company
