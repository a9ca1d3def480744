"""Room that is not free yet: what is to come on workers where executors leave, and where more can be gathered.

Kept worker by worker, so that whoever waits in vain is compared with shapes, never with every worker (semantics Z6).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from recovery.second_edition.rules.fleet import tally
from scheduler.model.resources import NOTHING, Resources

if TYPE_CHECKING:
    from recovery.second_edition.rules.entities import Worker

Rank = tuple[int, int, str]
"""Free cores and memory as negative numbers, then the id: workers with the most room come first (semantics P8)."""


CHANGED_WORKERS = 1_000
"""How many changed workers may be noted before they are looked at: a replay never asks, and would note every one."""


class Rooms:
    """An index of the live workers, brought up to date when somebody asks."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self.watching = False
        """Whether changes of workers matter, because anything leaves one or somebody has asked."""
        self._workers = workers
        self._changed: dict[str, None] = {}
        self._coming: dict[str, Resources] = {}
        """Worker on which anything leaves -> what is free once that is gone."""
        self._shapes: dict[Resources, int] = {}
        """How many of them will have that much free."""
        self._gatherable: dict[Resources, Gatherable] = {}
        self._asked: dict[Resources, None] = {}

    def touch(self, worker: Worker) -> None:
        """Note that what it holds, what leaves it, what is held there or whether it is live changes."""
        if self.watching or worker.leaving != NOTHING:
            if len(self._changed) >= CHANGED_WORKERS:
                self._update()
            self.watching = True
            self._changed[worker.id] = None

    def will_have(self, size: Resources, without: Collection[str]) -> bool:
        """Whether a worker has that much free once all that leaves it is gone (semantics E1); none of those `without`.

        What is held there counts as taken, whomever it is held for.
        """
        self._update()
        if not without:
            return any(shape.covers(size) for shape in self._shapes)
        fitting = sum([number for shape, number in self._shapes.items() if shape.covers(size)])
        return fitting > sum([worker in self._coming and self._coming[worker].covers(size) for worker in without])

    def first(self, size: Resources, without: Collection[str]) -> str | None:
        """The worker, none of those `without`, where room of that size is gathered; None if there is none (P8).

        Whoever asks for a size for the first time has every worker looked at.
        """
        self._update()
        self._asked[size] = None
        found = self._gatherable.get(size)
        if found is None:
            found = self._gatherable[size] = Gatherable(size)
            for worker in self._workers.values():
                found.look_at(worker.id, worker)
            self.watching = True
        return found.first(without)

    def forget_unasked(self) -> None:
        """Keep no size of which nobody asked since the last call, so that changes of workers cost nothing for it."""
        if len(self._asked) < len(self._gatherable):
            self._gatherable = {size: self._gatherable[size] for size in self._asked}
        self._asked.clear()

    def known(self) -> tuple[dict[str, Resources], dict[Resources, list[Rank]]]:
        """All of it: what is to come by worker, and the workers by each size that is sought."""
        self._update()
        return self._coming, {size: found.by_rank for size, found in self._gatherable.items()}

    def _update(self) -> None:
        for name in self._changed:
            worker = self._workers.get(name)
            if (before := self._coming.pop(name, None)) is not None:
                tally(self._shapes, before, -1)
            if worker is not None and worker.status == "alive" and worker.leaving != NOTHING:
                coming = self._coming[name] = worker.to_come(None)
                tally(self._shapes, coming, 1)
            for gatherable in self._gatherable.values():
                gatherable.look_at(name, worker)
        self._changed.clear()
        self.watching = bool(self._coming or self._gatherable)


class Gatherable:
    """The live workers where room of one size can be gathered (semantics P8)."""

    def __init__(self, size: Resources) -> None:
        self.by_rank: list[Rank] = []
        self._size = size
        self._ranks: dict[str, Rank] = {}

    def look_at(self, name: str, worker: Worker | None) -> None:
        """The worker of that id is so now; None if it is gone."""
        before = self._ranks.pop(name, None)
        if before is not None:
            del self.by_rank[bisect_left(self.by_rank, before)]
        if worker is not None and could_gather(worker, self._size):
            rank = self._ranks[name] = -worker.free.cores, -worker.free.memory_mb, name
            insort(self.by_rank, rank)

    def first(self, without: Collection[str]) -> str | None:
        """The one with the most free cores, then memory, then the smallest id."""
        for _, _, name in self.by_rank:
            if name not in without:
                return name
        return None


def could_gather(worker: Worker, size: Resources) -> bool:
    """Whether room of that size can be held there: by its offer beside drivers, and not by one executor that ends."""
    if worker.status != "alive" or worker.suspicion is not None or worker.holds:
        return False
    if not worker.beside_drivers.covers(size):
        return False
    return not any((worker.free + executor.resources).covers(size) for executor in worker.executors.values())
