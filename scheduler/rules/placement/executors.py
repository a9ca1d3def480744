"""The workers of executors of one size, and of executors that grow a core at a time (semantics P)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.events import ExecutorAllocated, Locality
from scheduler.model.ids import executor_id
from scheduler.model.resources import Resources
from scheduler.rules.entities.fleet import Candidates

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App

Counts = list[tuple[str, int]]
"""(worker, number of executors or cores), in the order of the candidates."""


def allocation(
    app: App, number: int, worker: str, size: Resources, locality: Locality | None = None
) -> ExecutorAllocated:
    """The grant of the app's executor of that number."""
    executor = executor_id(app.id, number)
    return ExecutorAllocated(app=app.id, executor=executor, worker=worker, resources=size, locality=locality)


def allocations(app: App, counts: Counts, size: Resources, locality: Locality | None = None) -> list[ExecutorAllocated]:
    """One event an executor; numbers count up per app from 0 and are never used again (semantics P6)."""
    name, numbers = app.id, itertools.count(app.next_executor)
    return [
        ExecutorAllocated(name, executor_id(name, next(numbers)), worker, size, locality)
        for worker, count in counts
        for _ in range(count)
    ]


def spread(candidates: Candidates, size: Resources, limit: int) -> Counts:
    """Up to `limit` executors, one to each candidate in turn, repeatedly (semantics P2)."""
    chosen = list(itertools.islice(candidates, limit))
    if len(chosen) == limit:
        return [(worker, 1) for worker, _ in chosen]
    counts = deal([free.holds(size) for _, free in chosen], limit)
    return [(worker, count) for (worker, _), count in zip(chosen, counts, strict=True)]


def pack(candidates: Candidates, size: Resources, limit: int) -> Counts:
    """Up to `limit` executors, as many as fit on the first candidate, then the next (semantics P2)."""
    return fill(_rooms(candidates, lambda free: free.holds(size)), limit)


def one_each(candidates: Candidates, _size: Resources, limit: int) -> Counts:
    """Up to `limit` executors, never two on a worker (semantics P7)."""
    return [(worker, 1) for worker, _ in itertools.islice(candidates, limit)]


def spread_cores(candidates: Candidates, cores: int, limit: int) -> Counts:
    """Cores of one executor on each of up to `limit` candidates, dealt one by one (semantics P4, P2).

    6 cores on two equal workers: 3 and 3 (P7).
    """
    chosen = list(itertools.islice(candidates, min(limit, cores)))
    counts = deal([free.cores for _, free in chosen], cores)
    return [(worker, count) for (worker, _), count in zip(chosen, counts, strict=True)]


def pack_cores(candidates: Candidates, cores: int, limit: int) -> Counts:
    """As `spread_cores`, with all free cores of the first candidate, then of the next (semantics P4, P2).

    12 cores on workers with 1, 7 and 4 free: 1, 7 and 4 (P7).
    """
    return fill(_rooms(itertools.islice(candidates, min(limit, cores)), lambda free: free.cores), cores)


def one_probe(candidates: Candidates, probes: Container[str], size: Resources) -> Candidates:
    """The candidates, those among `probes` with room for one executor of that size only (semantics W8)."""
    if not probes:
        return candidates
    return _probed(candidates, probes, size)


def _probed(candidates: Candidates, probes: Container[str], size: Resources) -> Candidates:
    for worker, free in candidates:
        yield worker, size if worker in probes else free


def _rooms(candidates: Candidates, room: Callable[[Resources], int]) -> Iterator[tuple[str, int]]:
    for worker, free in candidates:
        yield worker, room(free)


def fill(rooms: Iterable[tuple[str, int]], units: int) -> Counts:
    """Give the first worker as many of `units` as it has room for, then the next, until none is left."""
    counts: Counts = []
    for worker, room in rooms:
        counts.append((worker, min(units, room)))
        units -= counts[-1][1]
        if not units:
            break
    return counts


def deal(rooms: Sequence[int], units: int) -> list[int]:
    """Deal `units` one by one, repeatedly, to places with these rooms; return the number of units of each."""
    counts = [0] * len(rooms)
    able = [index for index, room in enumerate(rooms) if room]
    while units and able:
        rounds = min(units // len(able), *[rooms[index] - counts[index] for index in able])
        for index in able if rounds else able[:units]:
            counts[index] += rounds or 1
        units -= rounds * len(able) if rounds else min(units, len(able))
        able = [index for index in able if counts[index] < rooms[index]]
    return counts


class Placement(NamedTuple):
    """A rule for the workers of an app's executors (semantics P)."""

    name: str
    rule: str
    """The number of the rule in docs/semantics.md."""
    of_size: Callable[[Candidates, Resources, int], Counts]
    """(candidates, size, limit) -> number of executors on each candidate."""
    growing: Callable[[Candidates, int, int], Counts]
    """(candidates, cores, limit) -> cores of the one executor on each candidate."""
    wording: str
    """The text of an explanation, after the name."""
    one_a_worker: bool = False
    """Whether an app has at most one executor on a worker (semantics P7)."""
    across_apps: bool = False
    """Whether each worker in turn is offered to all apps, see `classic` (semantics P7)."""


PLACEMENTS = {
    placement.name: placement
    for placement in (
        Placement("spread", "P2", spread, spread_cores, "one to each worker in turn"),
        Placement("pack", "P2", pack, pack_cores, "as many as fit on a worker, then the next"),
        Placement(
            "classic-spread", "P7", one_each, spread_cores, "at most one of the app on a worker", one_a_worker=True
        ),
        Placement(
            "classic-pack",
            "P7",
            one_each,
            pack_cores,
            "worker by worker, at most one of the app on each",
            one_a_worker=True,
            across_apps=True,
        ),
    )
}
"""By their names, which are the values of the setting."""
