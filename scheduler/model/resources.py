"""Capacity and shares of it, exact: whole cores, whole MiB, fractions that are never rounded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from math import gcd
from typing import Any, NamedTuple

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


class Resources(tuple[int, ...]):
    """A vector of whole amounts, one of each kind: cores, memory in MiB, and of further declared kinds.

    Kinds at the end of which there is nothing are left out, so most vectors have two components: this class, whose
    operations are cheap. Those with more are of a subclass. Subtraction may give negative amounts.
    """

    __slots__ = ()

    def __new__(cls, cores: int = 0, memory_mb: int = 0, *others: int) -> Resources:  # noqa: PYI034 - which class it is depends on the amounts
        """The vector of these amounts, further kinds in the order in which they were declared."""
        while others and not others[-1]:
            others = others[:-1]
        return _new(_More, (cores, memory_mb, *others)) if others else _new(Resources, (cores, memory_mb))

    def __getnewargs__(self) -> tuple[int, ...]:
        """What a copy is made of: the amounts, one by one."""
        return tuple(self)

    @classmethod
    def of(cls, **amounts: int) -> Resources:
        """The vector of these amounts by kind. Raises: KeyError if a kind was not declared."""
        for kind in amounts:
            if kind not in _kinds:
                raise KeyError(kind)
        return cls(*(amounts.get(kind, 0) for kind in _kinds))

    @property
    def cores(self) -> int:
        """Whole cores."""
        return self[0]

    @property
    def memory_mb(self) -> int:
        """Memory in MiB."""
        return self[1]

    def amount(self, kind: str) -> int:
        """The amount of that kind. Raises: ValueError if it was not declared."""
        index = _kinds.index(kind)
        return self[index] if index < len(self) else 0

    def __add__(self, other: Resources) -> Resources:  # type: ignore[override]
        if other.__class__ is Resources:
            return _new(Resources, (self[0] + other[0], self[1] + other[1]))
        return other + self

    def __sub__(self, other: Resources) -> Resources:
        if other.__class__ is Resources:
            return _new(Resources, (self[0] - other[0], self[1] - other[1]))
        return -other + self

    def __mul__(self, times: int) -> Resources:  # type: ignore[override]
        return _new(Resources, (self[0] * times, self[1] * times))

    def __neg__(self) -> Resources:
        return self * -1

    def covers(self, other: Resources) -> bool:
        """Whether `other` fits into this amount in every kind."""
        return other[0] <= self[0] and other[1] <= self[1] and (len(other) == 2 or max(other[2:]) <= 0)

    def at_least(self, other: Resources) -> Resources:
        """The larger amount of each kind."""
        return Resources(*map(max, _pairs(self, other)))

    def reaches(self, limit: Resources) -> bool:
        """Whether it comes up to the limit in some kind, so that nothing fits behind it.

        No cores and no memory are reached by none; a further kind counts only where the limit has some of it.
        """
        if self[0] >= limit[0] or self[1] >= limit[1]:
            return True
        return len(limit) > 2 and any(bound and mine >= bound for mine, bound in list(_pairs(self, limit))[2:])

    def holds(self, size: Resources) -> int:
        """How many of `size` fit into this amount; `size` has some cores and some memory."""
        if len(size) == 2:
            return min(self[0] // size[0], self[1] // size[1])
        return min(mine // each for mine, each in _pairs(self, size) if each)

    def dominant_share(self, of: Resources, denominator: int = 1) -> Share:
        """The largest ratio of an amount to that of its kind in `of / denominator` (semantics C3).

        "1/0" if there is some of a kind of which there is none.
        """
        if len(self) == 2 == len(of) and of[0] and of[1]:
            cores, memory_mb = self[0] * denominator, self[1] * denominator
            if cores * of[1] < memory_mb * of[0]:
                return Share(memory_mb, of[1])
            return Share(cores, of[0])
        ratios = [(mine, whole) for mine, whole in _pairs(self, of) if mine or whole]
        if any(mine and not whole for mine, whole in ratios):
            return Share(1, 0)
        return max((Share(mine * denominator, whole) for mine, whole in ratios), default=Share(0, 1))


class _More(Resources):
    """A vector with amounts of further kinds, too."""

    __slots__ = ()

    def __add__(self, other: Resources) -> Resources:  # type: ignore[override]
        return Resources(*map(sum, _pairs(self, other)))

    def __sub__(self, other: Resources) -> Resources:
        return self + -other

    def __mul__(self, times: int) -> Resources:  # type: ignore[override]
        return Resources(*(amount * times for amount in self))

    def covers(self, other: Resources) -> bool:
        """Whether `other` fits into this amount in every kind."""
        return all(theirs <= mine for mine, theirs in _pairs(self, other))


_new = tuple.__new__
NOTHING = Resources()
"""No resources at all."""


def decoded(kind: type, value: Any) -> Resources:  # noqa: ANN401 - what JSON holds
    """The vector that a JSON array of whole amounts stands for: msgspec's `dec_hook`. Raises: TypeError."""
    if kind is not Resources or not all(type(amount) is int for amount in value) or len(value) < 2:
        raise TypeError(f"expected an array of two or more whole amounts, not {value!r}")
    return Resources(*value)


def _pairs(one: Resources, other: Resources) -> Iterator[tuple[int, int]]:
    return zip_longest(one, other, fillvalue=0)


class Share:
    """A non-negative fraction `numerator / denominator`, ordered exactly; a denominator of 0 is the largest of all.

    Cross multiplication instead of `fractions.Fraction`: shares are compared far more often than
    they are printed, and reducing each one costs more than comparing it.
    """

    __slots__ = ("denominator", "numerator")

    def __init__(self, numerator: int, denominator: int) -> None:
        self.numerator = numerator
        self.denominator = denominator

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

    def __float__(self) -> float:
        return self.numerator / self.denominator if self.denominator else float("inf")


class Quota(NamedTuple):
    """What a company may hold: `amount / denominator` (semantics C2)."""

    amount: Resources
    denominator: int = 1

    def covers(self, held: Resources) -> bool:
        """Whether that amount stays within the quota in every kind (semantics C4)."""
        return self.amount.covers(held if self.denominator == 1 else held * self.denominator)

    def in_whole(self) -> Resources:
        """What it is at least in whole amounts, rounded up."""
        return Resources(*(-(-amount // self.denominator) for amount in self.amount))

    def share_of(self, held: Resources) -> Share:
        """The dominant share of that amount: the largest ratio to the quota of any kind (semantics C3)."""
        return held.dominant_share(self.amount, self.denominator)


def round_up(amount: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `amount`."""
    return -(-amount // multiple) * multiple


def size_text(memory_mb: int | str) -> str:
    """Memory as people write it: `512M`, `2G`; a fraction of a MiB as "n/d M"."""
    if isinstance(memory_mb, str):
        return f"{memory_mb} M"
    return f"{memory_mb // 1024}G" if memory_mb % 1024 == 0 else f"{memory_mb}M"
