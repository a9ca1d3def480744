"""On which workers executors of one size go (semantics P)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from scheduler.fleet import Candidates, Shape
from scheduler.resources import Resources

Counts = list[tuple[str, int]]
"""(worker, how many executors it gets), in the order of the candidates."""


def room_for(free: Shape, size: Resources) -> int:
    """How many executors of `size` fit into what is free."""
    return min(free[0] // size.cores, free[1] // size.memory_mb)


def spread(candidates: Candidates, size: Resources, limit: int) -> Counts:
    """Up to `limit` executors, one to each candidate in turn, round and round (semantics P2)."""
    chosen = list(islice(candidates, limit))
    counts = [1] * len(chosen)
    left = limit - len(chosen)
    rooms = [room_for(free, size) for _, free in chosen] if left else counts
    while left:
        before = left
        for index, room in enumerate(rooms):
            if left and counts[index] < room:
                counts[index] += 1
                left -= 1
        if left == before:
            break
    return [(worker, count) for (worker, _), count in zip(chosen, counts, strict=True)]


def pack(candidates: Candidates, size: Resources, limit: int) -> Counts:
    """Up to `limit` executors, as many as fit on the first candidate, then the next (semantics P3)."""
    placed: Counts = []
    for worker, free in candidates:
        count = min(limit, room_for(free, size))
        placed.append((worker, count))
        limit -= count
        if not limit:
            break
    return placed


PLACEMENTS: dict[str, Callable[[Candidates, Resources, int], Counts]] = {"spread": spread, "pack": pack}
