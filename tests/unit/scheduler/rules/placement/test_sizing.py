"""How large an executor is, seen in what clusters grant."""

from __future__ import annotations

import pytest

from scheduler.model.commands import ConfigureCluster
from scheduler.model.events import ClusterConfigured
from scheduler.model.resources import Resources
from scheduler.rules.placement.sizing import executor_sizes, memory_for, requested_resources
from tests.property.given import Cluster, allocated, shared

DEFAULTS = ClusterConfigured()


def sixteens(count: int, memory_mb: int = 65536) -> Cluster:
    cluster = Cluster()
    cluster.company("acme")
    for number in range(1, count + 1):
        cluster.worker(f"w{number}", 16, memory_mb)
    return cluster


def test_sizes_are_the_maximum_and_its_halves_down_to_the_minimum() -> None:
    """Semantics S2."""
    assert executor_sizes(DEFAULTS) == [16, 8, 4]
    assert executor_sizes(ClusterConfigured(min_executor_cores=4, max_executor_cores=4)) == [4]
    assert executor_sizes(ClusterConfigured(min_executor_cores=2, max_executor_cores=64)) == [64, 32, 16, 8, 4, 2]


@pytest.mark.parametrize(("asked", "held"), [(6, 8), (8, 8), (1, 4), (4, 4), (9, 12)])
def test_the_cores_held_are_those_asked_for_rounded_up_to_whole_minimum_executors(asked: int, held: int) -> None:
    """Semantics A1: 6 asked -> 8 held."""
    assert requested_resources(DEFAULTS, asked, 512).cores == held


def test_what_is_held_follows_the_minimum_executor_of_the_settings() -> None:
    """Semantics A1, A2."""
    settings = ClusterConfigured(min_executor_cores=6, max_executor_cores=12, min_executor_memory_mb=4096)
    assert requested_resources(settings, 8, 512) == Resources(12, 8192)


@pytest.mark.parametrize(
    ("per_task_mb", "memory_mb"), [(None, 4096), (512, 4096), (100, 4096), (513, 4608), (1024, 8192), (5000, 40448)]
)
def test_the_memory_held_is_that_of_the_minimum_executors(per_task_mb: int | None, memory_mb: int) -> None:
    """Semantics A2, S3: 8 cores are two executors, each at least 2048 MiB and a multiple of 256."""
    assert requested_resources(DEFAULTS, 8, per_task_mb) == Resources(8, memory_mb)


def test_the_memory_held_without_a_figure_follows_the_setting() -> None:
    """Semantics A2, Settings."""
    assert requested_resources(ClusterConfigured(default_memory_per_task_mb=1024), 8, None) == Resources(8, 8192)


@pytest.mark.parametrize(
    ("cores", "per_core_mb", "memory_mb"), [(4, 512, 2048), (4, 100, 2048), (8, 300, 2560), (16, 512, 8192)]
)
def test_executor_memory_is_raised_to_the_minimum_and_rounded_up_to_256(
    cores: int, per_core_mb: int, memory_mb: int
) -> None:
    """Semantics S3."""
    assert memory_for(DEFAULTS, cores, per_core_mb) == memory_mb


def test_an_app_that_fills_every_usable_worker_gets_executors_of_16_cores() -> None:
    """Semantics S2: 64 >= 4 workers x 16."""
    assert allocated(sixteens(4).submit("a", 64)) == [(name, 16, 8192) for name in ("w4", "w3", "w2", "w1")]


def test_an_app_a_core_short_of_16_a_worker_gets_executors_of_8() -> None:
    """Semantics S2, P2: 60 < 4 x 16; seven of 8 and then, with 4 cores left, one of 4."""
    grants = allocated(sixteens(4).submit("a", 60))
    assert [cores for _, cores, _ in grants] == [8] * 7 + [4]
    assert [name for name, _, _ in grants] == ["w4", "w4", "w3", "w3", "w2", "w2", "w1", "w1"]


def test_48_cores_on_four_workers_of_16_are_six_executors_of_8() -> None:
    """Semantics S2, P2: 48 < 4 x 16, so 8; two rounds of spread."""
    grants = allocated(sixteens(4).submit("a", 48))
    assert grants == [(name, 8, 4096) for name in ("w4", "w4", "w3", "w3", "w2", "w1")]


def test_an_app_smaller_than_8_a_worker_gets_minimum_executors() -> None:
    """Semantics S2: 16 < 4 x 8."""
    assert allocated(sixteens(4).submit("a", 16)) == [(name, 4, 2048) for name in ("w4", "w3", "w2", "w1")]


def test_a_size_is_worked_out_again_for_what_is_left_after_each_placement() -> None:
    """Semantics S4, S2: 40 on two workers of 16 take 16 + 16; the last 8 go to the worker that joins, as one of 8."""
    cluster = sixteens(2)
    assert allocated(cluster.submit("a", 40)) == [("w2", 16, 8192), ("w1", 16, 8192)]
    assert allocated(cluster.worker("w3", 16)) == [("w3", 8, 4096)]


def test_without_a_figure_a_core_gets_512_mib_where_memory_is_plenty() -> None:
    """Semantics S3: 65536 / 16 > 256."""
    assert allocated(sixteens(1).submit("a", 16, per_task_mb=None)) == [("w1", 16, 8192)]


def test_without_a_figure_one_mib_more_a_core_than_256_makes_512() -> None:
    """Semantics S3: 4112 / 16 > 256, so 8192, which fits nowhere; 4112 / 8 > 256, so 4096."""
    assert allocated(sixteens(1, 4112).submit("a", 16, per_task_mb=None)) == [("w1", 8, 4096)]


def test_an_executor_with_more_memory_than_the_largest_may_have_is_halved() -> None:
    """Semantics S4: 16 x 2048 > 16384, 8 x 2048 is not."""
    assert allocated(sixteens(1).submit("a", 16, per_task_mb=2048)) == [("w1", 8, 16384)] * 2


def test_a_minimum_executor_may_have_more_memory_than_the_largest() -> None:
    """Semantics S4: 4 x 8192 = 32768 > 16384."""
    assert allocated(sixteens(1).submit("a", 8, per_task_mb=8192)) == [("w1", 4, 32768)] * 2


def test_a_size_that_fits_nowhere_is_halved() -> None:
    """Semantics S4: no worker has 8192 MiB for 16 cores; each has 4096 for 8."""
    assert allocated(sixteens(2, 4096).submit("a", 32)) == [("w2", 8, 4096), ("w1", 8, 4096)]


def test_a_size_larger_than_what_is_left_is_halved() -> None:
    """Semantics S4: with three workers of 16, 40 cores are 8 a worker; the last 4 cores are an executor of 4."""
    assert [cores for _, cores, _ in allocated(sixteens(3).submit("a", 44))] == [8, 8, 8, 8, 8, 4]


def test_below_the_minimum_nothing_is_granted_and_the_app_keeps_its_place() -> None:
    """Semantics S2, S4."""
    cluster = shared(w1=4)
    cluster.submit("b", 4)
    cluster.worker("w0", 3)
    assert allocated(cluster.submit("a", 8)) == []
    assert allocated(cluster.worker("w2", 4)) == [("w2", 4, 2048)]
    assert list(cluster.state.waiting) == ["b", "a"]


def test_grants_stay_within_the_requested_memory_when_the_minimum_executor_grows() -> None:
    """Semantics A2, Settings: a changed minimum concerns executors placed later; the request stays what it was."""
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w0", 8)
    cluster.submit("b", 8)
    cluster.submit("a", 8)
    cluster.turn(ConfigureCluster(settings={"min_executor_memory_mb": 4096, "max_executor_cores": 4}))
    assert allocated(cluster.worker("w1", 16)) == [("w1", 4, 4096)]
    assert cluster.state.apps["a"].granted.memory_mb == cluster.state.apps["a"].requested.memory_mb == 4096
