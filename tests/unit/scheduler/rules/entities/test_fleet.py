"""The index of live workers answers for exactly those that are in it."""

from __future__ import annotations

import pytest

from scheduler.model.resources import Resources
from scheduler.rules.entities.fleet import Fleet

MINIMUM = Resources(4, 2048)


def fleet(**free: tuple[int, int]) -> Fleet:
    made = Fleet([16, 8, 4], MINIMUM)
    for name, shape in free.items():
        made.join(name, Resources(*shape), Resources(*shape))
    return made


def test_a_worker_is_usable_with_the_minimum_executors_cores_and_memory_free() -> None:
    """Semantics S2."""
    workers = fleet(w1=(4, 2048), w2=(3, 65536), w3=(64, 2047), w4=(16, 2048), w5=(15, 9999))
    assert [workers.usable_with(index) for index in range(3)] == [1, 2, 3]


def test_totals_are_those_of_the_offers_not_of_what_is_free() -> None:
    """Semantics W1."""
    workers = fleet(w1=(16, 4096))
    workers.join("w2", Resources(8, 8192), Resources(0, 0))
    assert (workers.total.cores, workers.total.memory_mb) == (24, 12288)
    workers.leave("w1", Resources(16, 4096), Resources(16, 4096))
    assert (workers.total.cores, workers.total.memory_mb) == (8, 8192)


def test_the_least_memory_is_that_of_usable_workers_with_the_cores_free() -> None:
    """Semantics S3."""
    workers = fleet(w1=(8, 8192), w2=(16, 6000), w3=(4, 3000), w4=(64, 1000))
    assert workers.least_memory_mb(4) == 3000
    assert workers.least_memory_mb(8) == 6000
    assert workers.least_memory_mb(16) == 6000
    assert workers.least_memory_mb(17) is None


@pytest.mark.parametrize(
    ("selection", "order"),
    [
        ("cores-free-desc", ["w3", "w2", "w10", "w1", "w4"]),
        ("cores-free-asc", ["w4", "w1", "w10", "w2", "w3"]),
        ("memory-free-desc", ["w4", "w2", "w10", "w3", "w1"]),
        ("memory-free-asc", ["w1", "w3", "w10", "w2", "w4"]),
        ("worker-id", ["w1", "w10", "w2", "w3", "w4"]),
    ],
)
def test_candidates_come_in_each_of_the_five_orders_and_the_id_decides_as_a_string(
    selection: str, order: list[str]
) -> None:
    """Semantics P1: of two equally free workers `w2` comes before `w10` and `w1`, as in Spark 4."""
    workers = fleet(
        w1=(8, 4096), w2=(8, 8192), w10=(8, 8192), w3=(16, 4096), w4=(5, 9999), cores=(3, 9999), memory=(16, 4095)
    )
    assert [name for name, _ in workers.candidates(Resources(4, 4096), selection)] == order


def test_candidates_come_with_what_they_have_free() -> None:
    assert dict(fleet(w1=(8, 4096), w2=(16, 2048)).candidates(Resources(4, 2048), "worker-id")) == {
        "w1": Resources(8, 4096),
        "w2": Resources(16, 2048),
    }


def test_a_worker_that_moved_is_found_where_it_went_and_nowhere_else() -> None:
    workers = fleet(w1=(16, 4096), w2=(16, 4096))
    workers.move("w1", Resources(16, 4096), Resources(0, 512))
    assert workers.live_workers() == {"w1": Resources(0, 512), "w2": Resources(16, 4096)}
    assert [workers.usable_with(index) for index in range(3)] == [1, 1, 1]
    workers.move("w1", Resources(0, 512), Resources(8, 4096))
    assert [workers.usable_with(index) for index in range(3)] == [1, 2, 2]


def test_other_executor_sizes_count_the_same_workers_anew() -> None:
    workers = fleet(w1=(2, 1024), w2=(16, 4096))
    assert [workers.usable_with(index) for index in range(3)] == [1, 1, 1]
    workers.configure([8, 4, 2], Resources(2, 1024))
    assert [workers.usable_with(index) for index in range(3)] == [1, 1, 2]
