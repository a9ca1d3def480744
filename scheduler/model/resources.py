"""Capacity and shares of it, exact: whole cores, whole MiB, fractions that are never rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import gcd, inf
from operator import add, sub
from typing import NamedTuple

from msgspec import Struct

UNLIMITED_CORES = 2**31 - 1
"""What an app of unlimited cores counts down from, as in Spark (semantics A6)."""
UNLIMITED_MEMORY_MB = 2**62
MAX_AMOUNT = 10_000
"""The most resources of a further kind that a worker offers, or an executor, a task or a driver has."""


Amounts = tuple[tuple[str, int], ...]
"""(kind, amount) of kinds beside cores and memory, sorted, without those of which there is nothing."""


class Resources(Struct, frozen=True, array_like=True, order=True, gc=False):
    """A vector of whole amounts: cores, memory in MiB, and `others` by kind (semantics R1).

    Most vectors are of cores and memory alone, and all operations are cheap for those: a decision makes dozens of
    them. Subtraction may give negative amounts.
    """

    cores: int = 0
    memory_mb: int = 0
    others: Amounts = ()

    @classmethod
    def of(cls, cores: int = 0, memory_mb: int = 0, **others: int) -> Resources:
        """The vector of these amounts."""
        return cls(cores, memory_mb, amounts_of(others))

    def __iter__(self) -> Iterator[int]:
        """Cores, memory, then the amounts of `others`."""
        return iter((self.cores, self.memory_mb, *(amount for _, amount in self.others)))

    def by_kind(self) -> dict[str, int]:
        """Kind -> amount; cores and memory first."""
        return {"cores": self.cores, "memory_mb": self.memory_mb, **dict(self.others)}

    def amount(self, kind: str) -> int:
        """The amount of a kind beside cores and memory."""
        return next((amount for name, amount in self.others if name == kind), 0)

    def __str__(self) -> str:
        """The amounts in words: "8 cores and 4096 MiB and 2 gpu"."""
        more = (f"{amount} {kind}" for kind, amount in self.others)
        return " and ".join((f"{self.cores} cores", f"{self.memory_mb} MiB", *more))

    def __add__(self, other: Resources) -> Resources:
        if self.others or other.others:
            return self.combined(other, add)
        return Resources(self.cores + other.cores, self.memory_mb + other.memory_mb)

    def __sub__(self, other: Resources) -> Resources:
        if self.others or other.others:
            return self.combined(other, sub)
        return Resources(self.cores - other.cores, self.memory_mb - other.memory_mb)

    def __mul__(self, times: int) -> Resources:
        if self.others:
            others = amounts_of({kind: amount * times for kind, amount in self.others})
            return Resources(self.cores * times, self.memory_mb * times, others)
        return Resources(self.cores * times, self.memory_mb * times)

    def __neg__(self) -> Resources:
        return self * -1 if self.others else Resources(-self.cores, -self.memory_mb)

    def covers(self, other: Resources) -> bool:
        """Whether `other` fits into this amount in every kind."""
        if other.cores > self.cores or other.memory_mb > self.memory_mb:
            return False
        if not (self.others or other.others):
            return True
        return all(self.amount(kind) >= amount for kind, amount in other.others) and all(
            amount >= other.amount(kind) for kind, amount in self.others
        )

    def fits(self, room: Resources) -> bool:
        """Whether it is an amount, nothing of it negative, that `room` covers."""
        if self.others or room.others:
            return room.covers(self) and self.covers(NOTHING)
        return 0 <= self.cores <= room.cores and 0 <= self.memory_mb <= room.memory_mb

    def has_room(self, held: Resources, more: Resources) -> bool:
        """Whether `more` fits into this amount beside `held`."""
        if self.others or held.others or more.others:
            return self.covers(held + more)
        return held.cores + more.cores <= self.cores and held.memory_mb + more.memory_mb <= self.memory_mb

    def combined(self, other: Resources, combine: Callable[[int, int], int]) -> Resources:
        """What `combine` makes of the two amounts of each kind."""
        cores, memory_mb = combine(self.cores, other.cores), combine(self.memory_mb, other.memory_mb)
        if not (self.others or other.others):
            return Resources(cores, memory_mb)
        mine, theirs = dict(self.others), dict(other.others)
        others = {kind: combine(mine.get(kind, 0), theirs.get(kind, 0)) for kind in mine | theirs}
        return Resources(cores, memory_mb, amounts_of(others))

    def at_least(self, other: Resources) -> Resources:
        """The larger amount of each kind."""
        return self.combined(other, max)

    def holds(self, size: Resources) -> int:
        """How many of `size` fit into this amount; `size` has some cores and some memory."""
        times = min(self.cores // size.cores, self.memory_mb // size.memory_mb)
        return min(times, *(self.amount(kind) // each for kind, each in size.others)) if size.others else times


def aligned(*vectors: Resources) -> Iterator[tuple[int, ...]]:
    """The amounts of each kind in turn: cores, memory, and every kind of which one of the vectors has any."""
    yield tuple(each.cores for each in vectors)
    yield tuple(each.memory_mb for each in vectors)
    if any(each.others for each in vectors):
        for kind in sorted({kind for each in vectors for kind, _ in each.others}):
            yield tuple(each.amount(kind) for each in vectors)


def amounts_of(amounts: Mapping[str, int]) -> Amounts:
    """The amounts by kind in the form of `Resources.others`."""
    return tuple(sorted((kind, amount) for kind, amount in amounts.items() if amount))


NOTHING = Resources()
"""No resources at all."""


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
"""The same few shares come again and again, and tuples compare an object with itself fastest."""


class Quota(NamedTuple):
    """What a company may hold: `amount / denominator` (semantics C2).

    `named` are the further kinds that it limits, None = all of them (semantics R4).
    """

    amount: Resources
    denominator: int = 1
    named: tuple[str, ...] | None = None

    def covers(self, held: Resources, more: Resources = NOTHING) -> bool:
        """Whether both amounts together stay within the quota in every kind (semantics C4, R4)."""
        most, times, _ = self
        if held.others or more.others:
            return most.covers(self._limited((held + more) * times))
        cores, memory_mb = held.cores + more.cores, held.memory_mb + more.memory_mb
        return cores * times <= most.cores and memory_mb * times <= most.memory_mb

    def in_whole(self) -> Resources:
        """What it is at least in whole amounts, rounded up."""
        return self.amount.combined(NOTHING, lambda amount, _: -(-amount // self.denominator))

    def share_of(self, held: Resources) -> Share:
        """The dominant share of that amount: the largest ratio to the quota of any kind (semantics C3, R4).

        "1/0" if there is some of a kind of which there is none. A further kind that the quota does not limit, or of
        which the cluster has none, does not count.
        """
        of, times, named = self
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
        return Resources(held.cores, held.memory_mb, tuple(one for one in held.others if one[0] in self.named))


def round_up(amount: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `amount`."""
    return -(-amount // multiple) * multiple


def size_text(memory_mb: int | str) -> str:
    """Memory as people write it: `512M`, `2G`; a fraction of a MiB as "n/d M"."""
    if isinstance(memory_mb, str):
        return f"{memory_mb} M"
    return f"{memory_mb // 1024}G" if memory_mb % 1024 == 0 else f"{memory_mb}M"
