"""Capacity and shares of it, exact: whole cores, whole MiB, fractions that are never rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import zip_longest
from math import gcd, inf
from operator import add, sub
from typing import NamedTuple

from msgspec import Struct

UNLIMITED_CORES = 2**31 - 1
"""What an app of unlimited cores counts down from, as in Spark (semantics A6)."""
UNLIMITED_MEMORY_MB = 2**62


_kinds = ["cores", "memory_mb"]


def kinds() -> tuple[str, ...]:
    """The names of all kinds of resources: cores, memory in MiB, and what was declared besides, in that order."""
    return tuple(_kinds)


def declare(kind: str) -> None:
    """Have amounts of this kind as well from now on. The order of declarations is that of the amounts in the log."""
    if kind not in _kinds:
        _kinds.append(kind)


class Resources(Struct, frozen=True, array_like=True, order=True, gc=False):
    """A vector of whole amounts, one of each kind: cores, memory in MiB, and `others`, in the order of declaration.

    Kinds at the end of which there is nothing are left out, so most vectors are of cores and memory alone, and all
    operations are cheap for those: a decision makes dozens of them. Subtraction may give negative amounts.
    """

    cores: int = 0
    memory_mb: int = 0
    others: tuple[int, ...] = ()

    @classmethod
    def of(cls, **amounts: int) -> Resources:
        """The vector of these amounts by kind. Raises: KeyError if a kind was not declared."""
        for kind in amounts:
            if kind not in _kinds:
                raise KeyError(kind)
        return _vector(amounts.get(kind, 0) for kind in _kinds)

    def __iter__(self) -> Iterator[int]:
        """The amounts of all kinds, in order."""
        return iter((self.cores, self.memory_mb, *self.others))

    def __str__(self) -> str:
        """The amounts in words: "8 cores and 4096 MiB"."""
        more = (f"{amount} {kind}" for kind, amount in zip(_kinds[2:], self.others, strict=False))
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
            return _vector(amount * times for amount in self)
        return Resources(self.cores * times, self.memory_mb * times)

    def __neg__(self) -> Resources:
        return NOTHING - self if self.others else Resources(-self.cores, -self.memory_mb)

    def covers(self, other: Resources) -> bool:
        """Whether `other` fits into this amount in every kind."""
        if other.cores > self.cores or other.memory_mb > self.memory_mb:
            return False
        return not (self.others or other.others) or all(theirs <= mine for mine, theirs in _pairs(self, other))

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
        return _vector(combine(mine, theirs) for mine, theirs in _pairs(self, other))

    def at_least(self, other: Resources) -> Resources:
        """The larger amount of each kind."""
        return self.combined(other, max)

    def reaches(self, limit: Resources) -> bool:
        """Whether it comes up to the limit in some kind, so that nothing fits behind it.

        A further kind counts only where the limit has some of it.
        """
        if self.cores >= limit.cores or self.memory_mb >= limit.memory_mb:
            return True
        if not limit.others:
            return False
        return any(bound and mine >= bound for mine, bound in zip_longest(self.others, limit.others, fillvalue=0))

    def holds(self, size: Resources) -> int:
        """How many of `size` fit into this amount; `size` has some cores and some memory."""
        if size.others:
            return min(mine // each for mine, each in _pairs(self, size) if each)
        return min(self.cores // size.cores, self.memory_mb // size.memory_mb)


NOTHING = Resources()
"""No resources at all."""


def _vector(amounts: Iterable[int]) -> Resources:
    cores, memory_mb, *others = amounts
    while others and not others[-1]:
        others.pop()
    return Resources(cores, memory_mb, tuple(others))


def _pairs(one: Resources, other: Resources) -> Iterator[tuple[int, int]]:
    return zip_longest(one, other, fillvalue=0)


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
    """What a company may hold: `amount / denominator` (semantics C2)."""

    amount: Resources
    denominator: int = 1

    def covers(self, held: Resources, more: Resources = NOTHING) -> bool:
        """Whether both amounts together stay within the quota in every kind (semantics C4)."""
        most, times = self
        if most.others or held.others or more.others:
            return most.covers((held + more) * times)
        cores, memory_mb = held.cores + more.cores, held.memory_mb + more.memory_mb
        return cores * times <= most.cores and memory_mb * times <= most.memory_mb

    def in_whole(self) -> Resources:
        """What it is at least in whole amounts, rounded up."""
        return _vector(-(-amount // self.denominator) for amount in self.amount)

    def share_of(self, held: Resources) -> Share:
        """The dominant share of that amount: the largest ratio to the quota of any kind (semantics C3).

        "1/0" if there is some of a kind of which there is none.
        """
        of, denominator = self
        if of.cores and of.memory_mb and not held.others and not of.others:
            cores, memory_mb = held.cores * denominator, held.memory_mb * denominator
            if cores * of.memory_mb < memory_mb * of.cores:
                return _share(memory_mb, of.memory_mb)
            return _share(cores, of.cores)
        ratios = [(mine, whole) for mine, whole in _pairs(held, of) if mine or whole]
        if any(mine and not whole for mine, whole in ratios):
            return Share(1, 0)
        return max((Share(mine * denominator, whole) for mine, whole in ratios), default=Share(0, 1))


def round_up(amount: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `amount`."""
    return -(-amount // multiple) * multiple


def size_text(memory_mb: int | str) -> str:
    """Memory as people write it: `512M`, `2G`; a fraction of a MiB as "n/d M"."""
    if isinstance(memory_mb, str):
        return f"{memory_mb} M"
    return f"{memory_mb // 1024}G" if memory_mb % 1024 == 0 else f"{memory_mb}M"
