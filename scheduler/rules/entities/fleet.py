"""Index of the live workers by free resources, updated per event (semantics S2-S3, P1).

Workers with equal free cores and free memory differ only in their ids, so they are grouped by that *shape*. Even a
large cluster has few shapes. A decision scans shapes and touches only the workers it selects.

Sorted lists are plain lists with `bisect`. Removing and inserting a worker takes 0.7 µs with 1,000 workers of one
shape, 2.3 µs with 10,000 and 19 µs with 100,000. `sortedcontainers.SortedList` takes 1.4 to 2.1 µs at all three sizes
and would be faster above 10,000.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import Literal, NamedTuple, TypeVar

from scheduler.model.resources import NOTHING, Amounts, Resources, amounts_of
from scheduler.rules.entities.labels import (
    NO_MARKS,
    Marks,
    Moves,
    amounts_in,
    demand_in,
    has_last,
    lateness,
    may_use,
    meets,
    met_as,
    met_in,
    spare_demands,
    without_windows,
)

K = TypeVar("K")
Shape = Resources
"""What a worker has free."""

Candidates = Iterator[tuple[str, Shape]]
"""(worker, free resources), best first."""


class WorkerSelection(NamedTuple):
    """The order in which workers with room are tried (semantics P1)."""

    name: str
    by: Literal["cores", "memory", "id"]
    """Sort key. Ties are broken by worker id in the same direction."""
    largest_first: bool = False


WORKER_SELECTIONS = {
    selection.name: selection
    for selection in (
        WorkerSelection("cores-free-desc", "cores", largest_first=True),
        WorkerSelection("cores-free-asc", "cores"),
        WorkerSelection("memory-free-desc", "memory", largest_first=True),
        WorkerSelection("memory-free-asc", "memory"),
        WorkerSelection("worker-id", "id"),
    )
}
"""Setting `worker_selection` -> its order."""
_RANKS: dict[str, Callable[[Shape], object]] = {
    "cores": attrgetter("cores"),
    "memory": attrgetter("memory_mb"),
    "id": lambda _: None,
}
"""What workers have in common among which their ids decide."""


def in_order(workers: Iterable[tuple[str, Shape]], size: Resources, selection: str) -> Candidates:
    """The given workers with room for `size`, in the order of `Fleet.candidates` (semantics P1)."""
    _, by, largest_first = WORKER_SELECTIONS[selection]
    fitting = [(worker, free) for worker, free in workers if free.covers(size)]
    fitting.sort(
        key=lambda one: (0 if by == "id" else one[1].memory_mb if by == "memory" else one[1].cores, one[0]),
        reverse=largest_first,
    )
    return iter(fitting)


def tally(numbers: dict[K, int], key: K, change: int) -> None:
    """Count so many more of `key`; what there is none of is not kept."""
    number = numbers.pop(key, 0) + change
    if number:
        numbers[key] = number


class Fleet:
    """Live workers (registered, not lost, not draining: semantics W1), indexed by free resources."""

    def __init__(self, sizes: Iterable[int], minimum: Resources) -> None:
        self.total = NOTHING
        """What the live workers offer together."""
        self.live = 0
        """Number of live workers."""
        self._offers: dict[Resources, int] = {}
        """What a live worker offers -> how many offer that."""
        self._workers: dict[Shape, tuple[int, list[str]]] = {}
        """Shape -> how many of the sizes fit, and its workers, sorted by id."""
        self._by_cores: list[Shape] = []
        self._by_memory: list[tuple[int, Shape]] = []
        self.offering: dict[str, tuple[str, ...]] = {}
        """Worker -> the further kinds that it offers, of those that offer any; a shape names them all, even with 0."""
        self.marks: dict[str, Marks] = {}
        """Worker -> its marks, and so its class: which of the demands in use it meets, and its windows (P9, W14)."""
        self.with_class = 0
        """How many workers have a class, since they do not meet what all do."""
        self._alike: dict[tuple[Marks, Resources], int] = {}
        """Marks and offer -> how many workers have them."""
        self._offered: dict[tuple[str, ...], int] = {}
        """How many workers offer the same kinds, their class among them."""
        self._moved: dict[str, tuple[Shape, Shape]] = {}
        """Worker -> (indexed shape, current shape); applied by `_sync`."""
        self.configure(sizes, minimum)

    def configure(self, sizes: Iterable[int], minimum: Resources) -> None:
        """Set the executor sizes (cores, largest first) and the minimum executor, and recount."""
        self.sizes = tuple(sizes)
        self._minimum = minimum
        self._ascending = sorted(self.sizes)
        self._by_rank = [0] * (len(self.sizes) + 1)
        """The number of workers by how many of the sizes fit; those of rank 0 are not usable (semantics S2)."""
        for shape, (_, workers) in self._workers.items():
            rank = self._rank(shape)
            self._workers[shape] = rank, workers
            self._by_rank[rank] += len(workers)

    def join(self, worker: str, offer: Resources, free: Shape, marks: Marks = NO_MARKS) -> None:
        """Add a worker of these marks that became live with `offer`, of which `free` is not granted (W1, P9)."""
        self.live += 1
        self.total += offer
        if offer.others:
            self.offering[worker] = tuple([kind for kind, _ in offer.others])
        self.marks[worker] = marks
        self._count(worker, offer, 1)
        self._insert(worker, self._shape(worker, free))

    def leave(self, worker: str, offer: Resources, free: Shape) -> None:
        """Remove a worker that is no longer live, and its `offer` from the totals (semantics W1)."""
        self.live -= 1
        self.total -= offer
        kept, _ = self._moved.pop(worker, (self._shape(worker, free),) * 2)
        self._delete(worker, kept)
        self._count(worker, offer, -1)
        self.offering.pop(worker, None)
        del self.marks[worker]

    def mark(self, worker: str, offer: Resources, free: Shape, marks: Marks) -> bool:
        """The live worker has these marks from now on (semantics P9, W14); whether it was of another class."""
        before, known = self._shape(worker, free), self.marks[worker].met
        self._count(worker, offer, -1)
        self.marks[worker] = marks
        self._count(worker, offer, 1)
        if marks.met == known:
            return False
        moved = self._moved.get(worker)
        self._moved[worker] = (before if moved is None else moved[0]), self._shape(worker, free)
        return True

    def reclass(self, moves: Moves) -> None:
        """The workers of these classes are of others from now on, as their marks say (semantics P9).

        The workers of a shape change together; one by one only where some become what others do not.
        """
        self._sync()
        for shape, (rank, workers) in [*self._workers.items()]:
            become = moves.get(met_in(shape), ())
            if not become:
                continue
            self._drop(shape)
            parts: dict[Amounts, list[str]] = dict.fromkeys(become, workers) if len(become) == 1 else {}
            for worker in workers if len(become) > 1 else ():
                parts.setdefault(self.marks[worker].met, []).append(worker)
            for met, part in parts.items():
                self._put(met_as(shape, met), rank, part)
        self._offers, self._offered, self.with_class = {}, {}, 0
        for (marks, offer), number in self._alike.items():
            self._count_classed(met_as(offer, marks.met), marks, number)

    def _count(self, worker: str, offer: Resources, change: int) -> None:
        """So many workers more offer what it offers, and kinds and a class as it does."""
        marks = self.marks[worker]
        tally(self._alike, (marks, offer), change)
        self._count_classed(self._classed(worker, offer), marks, change)

    def _count_classed(self, offer: Resources, marks: Marks, change: int) -> None:
        """So many workers more of these marks offer that, their class among its kinds."""
        tally(self._offers, offer, change)
        self.with_class += change if marks.met else 0
        if offer.others:
            tally(self._offered, tuple([kind for kind, _ in offer.others]), change)

    def move(self, worker: str, before: Shape, after: Shape) -> None:
        """Record a change of a live worker's free resources. The index is updated at the next query."""
        if self.offering or self.with_class:
            before, after = self._shape(worker, before), self._shape(worker, after)
        moved = self._moved.get(worker)
        self._moved[worker] = (before if moved is None else moved[0]), after

    @property
    def usable(self) -> int:
        """Number of usable workers (semantics S2)."""
        if self._moved:
            self._sync()
        return self.live - self._by_rank[0]

    def usable_with(self, index: int) -> int:
        """Number of usable workers with at least `sizes[index]` cores free."""
        if self._moved:
            self._sync()
        return sum(self._by_rank[len(self.sizes) - index :])

    def most_free_cores(self) -> int:
        """The largest number of free cores on any live worker; 0 without workers."""
        if self._moved:
            self._sync()
        return self._by_cores[-1].cores if self._by_cores else 0

    def offers(self) -> dict[Resources, int]:
        """What a live worker offers, with its class by labels -> how many offer that."""
        return self._by_labels(self._offers)

    def rooms(self) -> dict[Resources, int]:
        """What a live worker has free -> how many have that, less what is held for apps (semantics H6)."""
        if self._moved:
            self._sync()
        return self._by_labels({shape: len(workers) for shape, (_, workers) in self._workers.items()})

    def _by_labels(self, numbers: dict[Resources, int]) -> dict[Resources, int]:
        """The numbers of equal amounts and labels: entitlements do not heed windows (semantics W14)."""
        if not self.with_class:
            return dict(numbers)
        found: dict[Resources, int] = {}
        for shape, number in numbers.items():
            tally(found, without_windows(shape), number)
        return found

    def hosts(self, size: Resources) -> int:
        """How many live workers offer that much, granted or not (semantics W7)."""
        return sum([number for offer, number in self._offers.items() if may_use(offer, size) and offer.covers(size)])

    def could_host(self, size: Resources) -> bool:
        """Whether a live worker offers that much, be it granted or not (semantics A8, N3)."""
        return any(may_use(offer, size) and offer.covers(size) for offer in self._offers)

    def could_hold(self, sought: Resources, size: Resources, number: int) -> bool:
        """Whether the live workers offer that many such sizes at once, be they granted or not (semantics G8)."""
        for offer, workers in self._offers.items():
            if may_use(offer, sought) and offer.covers(sought):
                number -= offer.holds(size) * workers
        return number <= 0

    def rooms_for(self, sought: Resources, size: Resources, most: int) -> int:
        """How many such sizes the live workers have free, `most` if there are more (semantics G8)."""
        if self._moved:
            self._sync()
        found = 0
        for index in range(bisect_left(self._by_cores, Resources(size.cores)), len(self._by_cores)):
            shape = self._by_cores[index]
            if may_use(shape, sought) and shape.covers(sought):
                found += shape.holds(size) * len(self._workers[shape][1])
                if found >= most:
                    return most
        return found

    def has_room(self, size: Resources) -> bool:
        """Whether a live worker has that much free."""
        if self._moved:
            self._sync()
        by_cores = self._by_cores
        if not by_cores:
            return False
        most = by_cores[-1]
        if not (size.others or most.others) and most.cores >= size.cores and most.memory_mb >= size.memory_mb:
            return True  # mostly: save a call
        for index in range(bisect_left(by_cores, Resources(size.cores)), len(by_cores)):
            if may_use(by_cores[index], size) and by_cores[index].covers(size):
                return True
        return False

    def least_memory_mb(self, cores: int) -> int | None:
        """The smallest free memory (MiB) of usable workers with `cores` free; None if there is none (semantics S3)."""
        if self._moved:
            self._sync()
        by_memory = self._by_memory
        for index in range(bisect_left(by_memory, (self._minimum.memory_mb,)), len(by_memory)):
            memory_mb, shape = by_memory[index]
            if shape.cores >= cores:
                return memory_mb
        return None

    def candidates(
        self, size: Resources, selection: str, *, sparing: bool = False, everywhere: bool = False
    ) -> Candidates:
        """The live workers with room for `size`, in the order `selection` (semantics P1).

        With `sparing`, those that offer fewer kinds besides those of `size` come first (P1). Then come those that its
        demand names last for their windows (W14). With `everywhere`, also those that do not meet its demand (P9). Lazy.
        The fleet must not change during iteration.
        """
        if self._moved:
            self._sync()
        if not self._offered or not (sparing or has_last(size)):
            return self._in_order(size, selection, everywhere=everywhere)
        usable = [kinds for kinds in self._offered if everywhere or meets(kinds[-1], size)]
        ranks = sorted({(0, 0), *[_rank(kinds, size, sparing=sparing) for kinds in usable]})
        ordered = [self._in_order(size, selection, rank, sparing=sparing, everywhere=everywhere) for rank in ranks]
        return chain.from_iterable(ordered)

    def freest(self) -> Iterator[tuple[int, str]]:
        """(free cores, live worker), the most free cores first, then by id. Lazy, as `candidates` is."""
        if self._moved:
            self._sync()
        for cores, alike in groupby(reversed(self._by_cores), _RANKS["cores"]):
            for name, _ in self._of_shapes(list(alike), largest_first=False):
                yield cores, name  # type: ignore[misc]  # what the shapes have in common are their cores

    def rank(self, worker: str, size: Resources, *, sparing: bool) -> tuple[int, int]:
        """What comes before all else in the order of candidates: spare kinds, then windows (semantics P1, W14)."""
        offered = self.offering.get(worker, ()) + tuple([name for name, _ in self.marks[worker].met])
        return _rank(offered, size, sparing=sparing)

    def admits(self, worker: str, size: Resources) -> bool:
        """Whether the live worker meets the demand of `size` (semantics P9)."""
        return may_use(Resources(others=self.marks[worker].met), size)

    def _in_order(
        self,
        size: Resources,
        selection: str,
        rank: tuple[int, int] | None = None,
        *,
        sparing: bool = False,
        everywhere: bool = False,
    ) -> Candidates:
        """The candidates; with `rank`, those of that one alone."""
        _, by, largest_first = WORKER_SELECTIONS[selection]
        if by == "memory":
            shapes = [shape for _, shape in self._by_memory[bisect_left(self._by_memory, (size.memory_mb,)) :]]
        else:
            shapes = self._by_cores[bisect_left(self._by_cores, Resources(size.cores)) :]
        if largest_first:
            shapes.reverse()
        if not everywhere and (self.with_class or demand_in(size)):
            shapes = [shape for shape in shapes if may_use(shape, size)]
        fitting: Iterable[Shape] = filter(size.fits, shapes)
        if rank is not None:
            fitting = [
                shape for shape in fitting if _rank([kind for kind, _ in shape.others], size, sparing=sparing) == rank
            ]
        for _, alike in groupby(fitting, _RANKS[by]):
            yield from self._of_shapes(list(alike), largest_first=largest_first)

    def live_workers(self) -> dict[str, Shape]:
        """Live worker -> its free cores and memory."""
        if self._moved:
            self._sync()
        return {
            worker: Resources(shape.cores, shape.memory_mb, amounts_of(dict(amounts_in(shape).others)))
            for shape, (_, workers) in self._workers.items()
            for worker in workers
        }

    def shape(self, worker: str, free: Resources) -> Shape:
        """What the worker has free, with every kind that it offers, and its class by labels (semantics P1, P9)."""
        return without_windows(self._shape(worker, free))

    def classed(self, worker: str, amounts: Resources) -> Resources:
        """The amounts with the class of the live worker by labels (semantics P9)."""
        return without_windows(self._classed(worker, amounts))

    def _shape(self, worker: str, free: Resources) -> Shape:
        kinds = self.offering.get(worker)
        if kinds is None:
            return self._classed(worker, free)
        amounts = Resources(free.cores, free.memory_mb, tuple([(kind, free.amount(kind)) for kind in kinds]))
        return self._classed(worker, amounts)

    def _classed(self, worker: str, amounts: Resources) -> Resources:
        met = self.marks[worker].met
        return amounts if not met else Resources(amounts.cores, amounts.memory_mb, (*amounts.others, *met))

    def _sync(self) -> None:
        """Move every changed worker to its current shape."""
        shapes, by_rank = self._workers, self._by_rank
        for worker, (kept, free) in self._moved.items():
            if kept != free:
                old, workers = shapes[kept]
                del workers[bisect_left(workers, worker)]
                if not workers:
                    self._drop(kept)
                new, workers = shapes[free] if free in shapes else self._add(free)
                insort(workers, worker)
                if old != new:
                    by_rank[old] -= 1
                    by_rank[new] += 1
        self._moved.clear()

    def _insert(self, worker: str, shape: Shape) -> None:
        rank, workers = self._workers.get(shape) or self._add(shape)
        insort(workers, worker)
        self._by_rank[rank] += 1

    def _delete(self, worker: str, shape: Shape) -> None:
        rank, workers = self._workers[shape]
        del workers[bisect_left(workers, worker)]
        if not workers:
            self._drop(shape)
        self._by_rank[rank] -= 1

    def _add(self, shape: Shape) -> tuple[int, list[str]]:
        """Index a shape that no worker has yet."""
        added: tuple[int, list[str]] = self._rank(shape), []
        self._workers[shape] = added
        insort(self._by_cores, shape)
        insort(self._by_memory, (shape.memory_mb, shape))
        return added

    def _put(self, shape: Shape, rank: int, workers: list[str]) -> None:
        """Add these workers, sorted by id, to those of the shape."""
        if shape in self._workers:
            there = self._workers[shape][1]
            there[:] = sorted([*there, *workers])  # of two sorted lists: linear
        else:
            self._add(shape)
            self._workers[shape] = rank, workers

    def _drop(self, shape: Shape) -> None:
        """Forget a shape that no worker has any more."""
        del self._workers[shape]
        del self._by_cores[bisect_left(self._by_cores, shape)]
        del self._by_memory[bisect_left(self._by_memory, (shape.memory_mb, shape))]

    def _rank(self, shape: Shape) -> int:
        return bisect_right(self._ascending, shape.cores) if shape.memory_mb >= self._minimum.memory_mb else 0

    def _of_shapes(self, shapes: list[Shape], *, largest_first: bool) -> Candidates:
        """The workers of shapes with equal sort keys, by id."""
        if len(shapes) == 1:
            return self._of_shape(shapes[0], largest_first=largest_first)
        return merge(*[self._of_shape(shape, largest_first=largest_first) for shape in shapes], reverse=largest_first)

    def _of_shape(self, shape: Shape, *, largest_first: bool) -> Candidates:
        _, workers = self._workers[shape]
        return zip(reversed(workers) if largest_first else workers, repeat(shape), strict=False)


def _spare(offered: Sequence[str], size: Resources) -> int:
    """How many of the kinds the size does not need, and how many other demands their class meets."""
    kinds, demands = spare_demands(offered, size)
    return len(kinds) - sum([kind in kinds for kind, _ in amounts_in(size).others]) + demands


def _rank(offered: Sequence[str], size: Resources, *, sparing: bool) -> tuple[int, int]:
    """With `sparing` the spare kinds, and how late the worker comes for its windows (semantics P1, W14)."""
    return _spare(offered, size) if sparing else 0, lateness(offered[-1] if offered else "", size)
