"""The part of its quota that each company is assured (semantics C8)."""

from __future__ import annotations

from math import lcm

from scheduler.model.quota import UNBOUGHT, Quota
from scheduler.model.resources import NOTHING, Resources, amounts_of


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
        self._sum = UNBOUGHT
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
        demand, total, least = self._active(), self.total, self.smallest
        active, bought = demand.amount, quota.amount

        def part(bought: int, live: int, active: int, step: int) -> int:
            whole = bought // (quota.denominator * step)
            if active > live * demand.denominator:
                share = bought * live * demand.denominator
                whole = min(whole, share // (quota.denominator * active * step))
            return (whole or int(by_default or bought >= quota.denominator * step)) * step

        cores = part(bought.cores, total.cores, active.cores, least.cores)
        memory_mb = part(bought.memory_mb, total.memory_mb, active.memory_mb, least.memory_mb)
        if not bought.others:
            return Resources(cores, memory_mb)
        others = {kind: part(amount, total.amount(kind), active.amount(kind), 1) for kind, amount in bought.others}
        return Resources(cores, memory_mb, amounts_of(others))

    def _active(self) -> Quota:
        if self._summed != self.version:
            denominator = lcm(*self._sums)
            amounts = [amount * (denominator // each) for each, amount in self._sums.items()]
            self._sum = Quota(sum(amounts, NOTHING), denominator)
            self._summed = self.version
        return self._sum
