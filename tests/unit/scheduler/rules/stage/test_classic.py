"""The rules before Spark 1.4 (semantics P7)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from scheduler.model.commands import SubmitApp
from scheduler.model.events import Event, ExecutorAllocated
from scheduler.rules.placement.executors import deal
from scheduler.rules.share.demands import held_units
from scheduler.rules.share.entitlement import entitlement
from tests.property.given import Cluster, allocated, shared, worker


def app(name: str, cores: int, **more: Any) -> SubmitApp:
    asked = {"executor_memory_mb": 1024, **more}
    return convert(
        {"app": name, "company": "acme", "user": "ann", "cores": cores, "command": ("true",), **asked}, SubmitApp
    )


def cores_by_worker(events: list[Event]) -> list[tuple[str, int]]:
    return [(name, cores) for name, cores, _ in allocated(events)]


def placed(events: list[Event]) -> list[tuple[str, str, int]]:
    return [
        (event.app, event.worker, event.resources.cores) for event in events if isinstance(event, ExecutorAllocated)
    ]


def example(placement: str) -> Cluster:
    """Five workers: one dead, one with too little memory, three candidates (semantics P7)."""
    cluster = Cluster({"placement": placement, "admission": "open"})
    cluster.company("acme")
    offers = {"w2": (1, 512), "w3": (4, 4096), "w4": (2, 8192), "w5": (4, 8192)}
    for name, (cores, memory_mb) in offers.items():
        cluster.worker(name, cores, memory_mb)
    return cluster


def test_6_cores_on_two_equal_workers_are_spread_3_and_3() -> None:
    cluster = shared({"placement": "classic-spread"}, w1=16, w2=16)
    assert cores_by_worker(cluster.turn(app("a1", 6))) == [("w2", 3), ("w1", 3)]


def test_12_cores_on_workers_with_1_7_and_4_free_are_packed_into_all_of_it() -> None:
    cluster = shared({"placement": "classic-pack", "worker_selection": "worker-id"}, w1=1, w2=7, w3=4)
    assert cores_by_worker(cluster.turn(app("a1", 12))) == [("w1", 1), ("w2", 7), ("w3", 4)]


def test_5_cores_are_spread_2_2_1_over_the_three_candidates_of_five_workers() -> None:
    assert cores_by_worker(example("classic-spread").turn(app("a1", 5))) == [("w5", 2), ("w3", 2), ("w4", 1)]
    assert cores_by_worker(example("classic-spread").turn(app("a1", 5, executor_cores=1))) == [
        ("w5", 2),
        ("w3", 2),
        ("w4", 1),
    ]


def test_5_cores_are_packed_4_1_0_onto_the_three_candidates_of_five_workers() -> None:
    assert cores_by_worker(example("classic-pack").turn(app("a1", 5, executor_cores=1))) == [("w5", 4), ("w3", 1)]


@pytest.mark.parametrize("placement", ["classic-spread", "classic-pack"])
@pytest.mark.parametrize("more", [{}, {"executor_memory_mb": None}, {"executor_cores": 2}])
def test_an_app_never_gets_a_second_executor_on_a_worker_that_has_one_of_its_own(
    placement: str, more: dict[str, Any]
) -> None:
    cluster = shared({"placement": placement, "admission": "open"}, w1=4)
    assert len(placed(cluster.turn(app("a1", 12, **more), app("a0", 4, **more)))) == 1
    assert {one[1] for one in placed(cluster.turn(worker("w1", 64)))} <= {"w1"}
    assert [one.app for one in cluster.state.executors.values()].count("a1") == 1
    assert {one[1] for one in placed(cluster.turn(worker("w2", 4))) if one[0] == "a1"} == {"w2"}


def test_pack_walks_worker_by_worker_and_on_each_app_by_app() -> None:
    cluster = shared({"placement": "classic-pack", "admission": "open", "worker_selection": "worker-id"}, w1=4, w2=4)
    events = cluster.turn(app("a1", 3), app("a2", 3), app("a3", 2))
    assert placed(events) == [("a1", "w1", 3), ("a2", "w1", 1), ("a2", "w2", 2), ("a3", "w2", 2)]


def test_pack_passes_over_an_app_whose_memory_does_not_fit_and_one_at_its_limit() -> None:
    cluster = Cluster({"placement": "classic-pack", "admission": "open", "worker_selection": "worker-id"})
    cluster.company("acme")
    big, limited = app("a1", 4, executor_memory_mb=9000), app("a2", 8, executor_limit=1)
    events = cluster.turn(worker("w1", 4, 8192), worker("w2", 4, 8192), big, limited, app("a3", 2))
    assert placed(events) == [("a2", "w1", 4), ("a3", "w2", 2)]


def test_pack_gives_computed_executors_their_computed_size_once_a_worker() -> None:
    cluster = shared({"placement": "classic-pack"}, w1=16, w2=16)
    assert cores_by_worker(cluster.turn(app("a1", 16, executor_memory_mb=None))) == [("w2", 8), ("w1", 8)]


@pytest.mark.parametrize(
    ("rooms", "units", "counts"),
    [
        ([3, 3], 6, [3, 3]),
        ([4, 4, 2], 5, [2, 2, 1]),
        ([1, 7, 4], 100, [1, 7, 4]),
        ([1, 7, 4], 9, [1, 4, 4]),
        ([1, 7, 4], 10, [1, 5, 4]),
        ([0, 2], 2, [0, 2]),
        ([], 3, []),
        ([5], 0, [0]),
    ],
)
def test_dealing_is_one_by_one_round_and_round(rooms: list[int], units: int, counts: list[int]) -> None:
    assert deal(rooms, units) == counts


def test_an_app_with_as_many_executors_as_it_may_have_is_not_below_its_entitlement() -> None:
    """Semantics P7: two halves make one of its size, and no third executor may come."""
    cluster = shared({"placement": "classic-pack"}, w1=4, w2=4)
    cluster.turn(app("b1", 2))
    cluster.turn(app("b2", 2))
    halves = cluster.turn(app("a1", 8, executor_cores=4, executor_limit=2))
    assert cores_by_worker(halves) == [("w2", 2), ("w1", 2)]
    assert allocated(cluster.worker("w3", 16)) == []
    entitled, halved = entitlement(cluster.state), cluster.state.apps["a1"]
    assert (entitled.units(halved), held_units(halved)) == (2, 1)
    assert entitled.below(halved) == 0
