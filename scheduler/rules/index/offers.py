"""The workers that a submission may count on: registered, or lost and still remembered (semantics N3).

Those of equal labels, taints and offers are kept together, so that a refusal looks at each kind of them once (Z6).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.model.resources import Resources
from scheduler.rules.entities.labels import met_by

if TYPE_CHECKING:
    from scheduler.rules.entities.workers import LostWorker, Worker


@dataclass(slots=True, eq=False)
class Alike:
    """Workers of equal labels, taints and offers."""

    labels: Mapping[str, str]
    taints: tuple[str, ...]
    offer: Resources
    workers: list[str]
    """Their ids, sorted."""


class Offers:
    """The workers, those together that are alike."""

    def __init__(self) -> None:
        self._alike: dict[tuple[object, ...], Alike] = {}

    def add(self, worker: Worker | LostWorker) -> None:
        """Count the worker as it is now."""
        key = _key(worker)
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = Alike(worker.labels, worker.taints, worker.offer, [])
        insort(found.workers, worker.id)

    def remove(self, worker: Worker | LostWorker) -> None:
        """Count the worker, which is as it was when it was added, no more."""
        key = _key(worker)
        workers = self._alike[key].workers
        del workers[bisect_left(workers, worker.id)]
        if not workers:
            del self._alike[key]

    def all(self) -> list[Alike]:
        """Every kind of worker."""
        return list(self._alike.values())

    def meeting(self, demand: str) -> list[Alike]:
        """The kinds of worker that meet the demand (semantics P9)."""
        return [each for each in self._alike.values() if met_by(demand, each.labels, each.taints)]


def number_of(some: list[Alike]) -> int:
    """How many workers these are."""
    return sum([len(each.workers) for each in some])


def _key(worker: Worker | LostWorker) -> tuple[object, ...]:
    return worker.offer, worker.taints, *sorted(worker.labels.items())
