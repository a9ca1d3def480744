"""The part of its quota that each company is assured (semantics C8)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from math import lcm

from scheduler.model.resources import NOTHING, Quota, Resources


class Parts:
    """Works out assured parts from the quotas of the companies that are active and the live cluster."""

    def __init__(self) -> None:
        self.version = 0
        """Counts up whenever a part may be another one."""
        self.total = NOTHING
        self.smallest = Resources(1, 1)
        """The minimum executor, of which parts are whole multiples in each component."""
        self._sums: dict[int, Resources] = {}
        """The quotas of active companies, added up by their denominators."""
        self._sum = Quota(NOTHING)
        self._summed = 0

    def set_cluster(self, total: Resources, smallest: Resources) -> None:
        """What the live workers offer together, and the minimum executor."""
        if (total, smallest) != (self.total, self.smallest):
            self.total, self.smallest = total, smallest
            self.version += 1

    def add(self, quota: Quota) -> None:
        """A company of that quota is active from now on."""
        self._sums[quota.denominator] = self._sums.get(quota.denominator, NOTHING) + quota.amount
        self.version += 1

    def remove(self, quota: Quota) -> None:
        """A company of that quota is not active any more."""
        left = self._sums.pop(quota.denominator, NOTHING) - quota.amount
        if left != NOTHING:
            self._sums[quota.denominator] = left
        self.version += 1

    def of(self, quota: Quota, *, by_default: bool) -> Resources:
        """The part of a company of that quota: quota x min(1, live cluster / sum of active quotas), rounded down.

        In each component to whole smallest executors, but never less than one where the quota is that much or a
        default. Example, 32 cores live: companies with quotas of 64, 32 and 8 cores are active, 104 in all. Their
        parts are 16 (of 19.7), 8 (of 9.8) and 4, one smallest executor (of 2.5).
        """
        demand = self._active()
        parts: list[int] = []
        for bought, live, active, step in _aligned(quota.amount, self.total, demand.amount, self.smallest):
            whole = bought // (quota.denominator * (step or 1))
            if active > live * demand.denominator:
                share = bought * live * demand.denominator
                whole = min(whole, share // (quota.denominator * active * (step or 1)))
            least = by_default or bought >= quota.denominator * (step or 1)
            parts.append((whole or int(least)) * (step or 1))
        cores, memory_mb, *others = parts
        while others and not others[-1]:
            others.pop()
        return Resources(cores, memory_mb, tuple(others))

    def _active(self) -> Quota:
        if self._summed != self.version:
            denominator = lcm(*self._sums)
            amounts = (amount * (denominator // each) for each, amount in self._sums.items())
            self._sum = Quota(sum(amounts, NOTHING), denominator)
            self._summed = self.version
        return self._sum


def _aligned(*vectors: Resources) -> Iterator[tuple[int, ...]]:
    """The amounts of each kind of these vectors."""
    return zip_longest(*vectors, fillvalue=0)
