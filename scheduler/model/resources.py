"""Amounts of resources, exact: whole cores, whole MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import add, sub

from msgspec import Struct

from scheduler.model.text import counted

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
        return " and ".join((counted(self.cores, "core"), f"{self.memory_mb} MiB", *more))

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

    def suffices_for(self, more: Resources) -> bool:
        """Whether `more` fits into this amount in cores, memory and the further kinds of which it has any."""
        if more.cores > self.cores or more.memory_mb > self.memory_mb:
            return False
        return not more.others or all(self.amount(kind) >= amount for kind, amount in more.others)

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
        if not size.others:
            return times
        return min([times, *[self.amount(kind) // each for kind, each in size.others if each]])


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


def size_text(memory_mb: int | str) -> str:
    """Memory as people write it: `512M`, `2G`; a fraction of a MiB as "n/d M"."""
    if isinstance(memory_mb, str):
        return f"{memory_mb} M"
    return f"{memory_mb // 1024}G" if memory_mb % 1024 == 0 else f"{memory_mb}M"
