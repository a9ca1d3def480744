"""Quotas and shares of them, exact: fractions that are never rounded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf, lcm

from scheduler.model.resources import NOTHING, Resources, amounts_of


class Share:
    """A non-negative fraction `numerator / denominator`, ordered exactly; a denominator of 0 is the largest of all.

    Cross multiplication instead of `fractions.Fraction`: shares are compared far more often than
    they are printed, and reducing each one costs more than comparing it.
    """

    __slots__ = ("denominator", "numerator", "rounded")

    def __init__(self, numerator: int, denominator: int) -> None:
        self.numerator = numerator
        self.denominator = denominator
        self.rounded = numerator / denominator if denominator else inf

    def __lt__(self, other: Share) -> bool:
        return self.numerator * other.denominator < other.numerator * self.denominator

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Share):
            return NotImplemented
        return self.numerator * other.denominator == other.numerator * self.denominator

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        """The share as "n/d" in lowest terms; "1/0" where nothing was bought but something is held."""
        divisor = gcd(self.numerator, self.denominator) or 1
        return f"{self.numerator // divisor}/{self.denominator // divisor}"

    def __repr__(self) -> str:
        return f"Share({self.numerator}, {self.denominator})"


_share = lru_cache(maxsize=1024)(Share)
"""Shares come again and again in a few values, and tuples compare an object with itself fastest."""


@dataclass(slots=True, frozen=True)
class Quota:
    """What a company may hold: `amount / denominator` (semantics C2).

    `named` are the further kinds that it limits, None = all of them (semantics R4).
    """

    amount: Resources
    denominator: int = 1
    named: tuple[str, ...] | None = None

    def covers(self, held: Resources, more: Resources) -> bool:
        """Whether both amounts together stay within the quota in cores, memory and the kinds of which `more` has any.

        A company beyond its quota of a kind may still ask for others (semantics C4, R4).
        """
        most, times = self.amount, self.denominator
        if more.others:
            return (most - held * times).suffices_for(self._limited(more * times))
        cores, memory_mb = held.cores + more.cores, held.memory_mb + more.memory_mb
        return cores * times <= most.cores and memory_mb * times <= most.memory_mb

    def holds(self, size: Resources) -> int:
        """How many of `size` stay within it; `size` has some cores and some memory."""
        return self.amount.holds(self._limited(size * self.denominator))

    def with_all(self, unnamed: Quota) -> Quota:
        """The quota with what `unnamed` has of the kinds that it does not name."""
        if self.named is None:
            return self
        others = {kind: amount for kind, amount in unnamed.amount.others if kind not in self.named}
        return Quota(self.amount, self.denominator).plus(
            Quota(Resources(0, 0, amounts_of(others)), unnamed.denominator)
        )

    def plus(self, other: Quota) -> Quota:
        """Both together, in every kind."""
        whole = lcm(self.denominator, other.denominator)
        mine, theirs = whole // self.denominator, whole // other.denominator
        return Quota(self.amount * mine + other.amount * theirs, whole)

    def times(self, numerator: int, denominator: int) -> Quota:
        """So many times the quota, of the kinds that it names."""
        return Quota(self.amount * numerator, self.denominator * denominator, self.named)

    @property
    def whole(self) -> Resources:
        """What it is in whole amounts, rounded down."""
        return self.amount.combined(NOTHING, lambda amount, _: amount // self.denominator)

    def in_whole(self) -> Resources:
        """What it is at least in whole amounts, rounded up."""
        return self.amount.combined(NOTHING, lambda amount, _: -(-amount // self.denominator))

    def share_of(self, held: Resources) -> Share:
        """The dominant share of that amount: the largest ratio to the quota of any kind (semantics C3, R4).

        "1/0" if there is some of a kind of which there is none. A further kind that the quota does not limit, or of
        which the cluster has none, does not count.
        """
        of, times, named = self.amount, self.denominator, self.named
        if of.cores and of.memory_mb and not held.others:
            cores, memory_mb = held.cores * times, held.memory_mb * times
            if cores * of.memory_mb < memory_mb * of.cores:
                return _share(memory_mb, of.memory_mb)
            return _share(cores, of.cores)
        ratios = [(held.cores, of.cores), (held.memory_mb, of.memory_mb)]
        ratios += [
            (amount, of.amount(kind))
            for kind, amount in held.others
            if (of.amount(kind) if named is None else kind in named)
        ]
        if any(mine and not whole for mine, whole in ratios):
            return Share(1, 0)
        return max((Share(mine * times, whole) for mine, whole in ratios if whole), default=Share(0, 1))

    def _limited(self, held: Resources) -> Resources:
        """What of that amount counts against the quota."""
        if self.named is None:
            return held
        return Resources(held.cores, held.memory_mb, tuple([one for one in held.others if one[0] in self.named]))


UNBOUGHT = Quota(NOTHING)
