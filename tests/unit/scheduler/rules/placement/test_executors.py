"""On which workers have one size go."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.model.resources import Resources
from scheduler.rules.entities.fleet import Fleet, Shape
from scheduler.rules.placement.executors import pack, spread

ONE = Resources(1, 1024)
FIVE: dict[str, Shape] = {
    "w2": Resources(1, 512),
    "w3": Resources(4, 4096),
    "w4": Resources(2, 8192),
    "w5": Resources(4, 8192),
}
"""The example of semantics P: `w1`, with 4 cores and 16 GiB, is dead and so no candidate."""


def candidates(size: Resources, workers: dict[str, Shape]) -> list[tuple[str, Shape]]:
    fleet = Fleet([16, 8, 4], Resources(4, 2048))
    for name, free in workers.items():
        fleet.join(name, free, free)
    return list(fleet.candidates(size, "cores-free-desc"))


def test_five_workers_of_which_one_is_dead_and_one_too_small_leave_three_candidates() -> None:
    """Semantics P1, P."""
    assert [name for name, _ in candidates(ONE, FIVE)] == ["w5", "w3", "w4"]


def test_spread_gives_the_three_candidates_2_2_1_of_five_executors() -> None:
    """Semantics P2, P."""
    assert spread(iter(candidates(ONE, FIVE)), ONE, 5) == [("w5", 2), ("w3", 2), ("w4", 1)]


def test_pack_gives_the_three_candidates_4_1_0_of_five_executors() -> None:
    """Semantics P2, P."""
    assert pack(iter(candidates(ONE, FIVE)), ONE, 5) == [("w5", 4), ("w3", 1)]


def test_48_cores_in_executors_of_16_take_three_of_four_workers_of_16() -> None:
    """Semantics P4 (SPARK-8881): the limit counts executors, never 4 x 12."""
    size = Resources(16, 8192)
    four: dict[str, Shape] = {f"w{number}": Resources(16, 65536) for number in range(1, 5)}
    assert spread(iter(candidates(size, four)), size, 48 // 16) == [("w4", 1), ("w3", 1), ("w2", 1)]


def test_spread_goes_round_and_round_while_a_worker_has_room() -> None:
    """Semantics P2."""
    free: list[tuple[str, Shape]] = [
        ("a", Resources(12, 65536)),
        ("b", Resources(4, 65536)),
        ("c", Resources(8, 65536)),
    ]
    size = Resources(4, 2048)
    assert spread(iter(free), size, 5) == [("a", 2), ("b", 1), ("c", 2)]
    assert spread(iter(free), size, 99) == [("a", 3), ("b", 1), ("c", 2)]


def test_memory_limits_the_room_as_cores_do() -> None:
    """Semantics P2."""
    free: list[tuple[str, Shape]] = [("a", Resources(16, 4096)), ("b", Resources(16, 65536))]
    size = Resources(4, 2048)
    assert [shape.holds(size) for _, shape in free] == [2, 4]
    assert spread(iter(free), size, 9) == [("a", 2), ("b", 4)]
    assert pack(iter(free), size, 3) == [("a", 2), ("b", 1)]


def test_without_candidates_nothing_is_placed() -> None:
    assert spread(iter(()), ONE, 5) == []
    assert pack(iter(()), ONE, 5) == []


def test_candidates_beyond_the_limit_are_not_looked_at() -> None:
    looked_at: list[str] = []

    def watched() -> Iterator[tuple[str, Shape]]:
        for name in ("a", "b", "c"):
            looked_at.append(name)
            yield name, Resources(4, 65536)

    spread(watched(), ONE, 2)
    assert looked_at == ["a", "b"]
    looked_at.clear()
    pack(watched(), ONE, 4)
    assert looked_at == ["a"]
