"""Apps that say what executors they want, open admission, single kills, decommission (semantics S5, A6, P4-P6, W3)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from scheduler.model.commands import (
    ConfigureCluster,
    DecommissionWorker,
    EndApp,
    EndedExecutor,
    KillApp,
    KillExecutors,
    LoseWorker,
    RemoveWorker,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import AppEnded, InvalidCommand
from scheduler.model.events import (
    AppChanged,
    AppRegistered,
    AppRemoved,
    Computed,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorRevoked,
    Fixed,
    OnePerWorker,
    WorkerChanged,
    WorkerRemoved,
)
from scheduler.model.resources import NOTHING, Resources
from tests.property.given import Cluster, admitted, allocated, shared, worker


def asked(app: str = "a1", cores: int | str | None = 8, **more: Any) -> SubmitApp:
    return convert(
        {"app": app, "company": "acme", "user": "ann", "cores": cores, "command": ("true",), **more}, SubmitApp
    )


def fixed(app: str = "a1", cores: int | str = 8, each: int = 2, memory_mb: int = 1024, **more: Any) -> SubmitApp:
    return asked(app, cores, executor_cores=each, executor_memory_mb=memory_mb, **more)


def growing(app: str = "a1", cores: int | str = 8, memory_mb: int = 1024, **more: Any) -> SubmitApp:
    return asked(app, cores, executor_memory_mb=memory_mb, **more)


def registered(cluster: Cluster, command: SubmitApp) -> AppRegistered:
    event = cluster.turn(command)[0]
    assert isinstance(event, AppRegistered)
    return event


def opened(**offers: int) -> Cluster:
    return shared({"admission": "open"}, **offers)


def test_what_an_app_says_of_its_executors_decides_who_sizes_them() -> None:
    """Semantics S5."""
    cluster = shared(w1=16)
    assert registered(cluster, asked("a1")).sizing == Computed()
    assert registered(cluster, asked("a2", executor_limit=2)).sizing == Computed()
    assert registered(cluster, asked("a3", executor_cores=3)).sizing == Fixed(Resources(3, 1024))
    assert registered(cluster, growing("a4", memory_mb=2000)).sizing == OnePerWorker(2000)
    assert registered(cluster, asked("a5", sizing="one-per-worker")).sizing == OnePerWorker(1024)


def test_cores_are_not_rounded_and_memory_is_that_of_the_executors_they_make() -> None:
    """Semantics S5."""
    event = registered(shared(w1=16), fixed(cores=7, each=3, memory_mb=1000))
    assert (event.cores, event.requested) == (7, Resources(7, 2000))


def test_one_executor_a_worker_requests_memory_on_each_live_worker_at_submission() -> None:
    """Semantics S5."""
    cluster = shared(w1=16, w2=16, w3=16)
    cluster.turn(LoseWorker(worker="w3"))
    assert registered(cluster, growing(memory_mb=700)).requested.memory_mb == 1400
    assert registered(shared(), growing(memory_mb=700)).requested.memory_mb == 700


def test_48_cores_as_executors_of_16_on_4_workers_of_16_are_3_executors() -> None:
    """Semantics P4 (SPARK-8881)."""
    cluster = shared(w1=16, w2=16, w3=16, w4=16)
    events = cluster.turn(fixed(cores=48, each=16))
    assert allocated(events) == [("w4", 16, 1024), ("w3", 16, 1024), ("w2", 16, 1024)]


def test_one_growing_executor_a_worker_is_dealt_cores_one_by_one() -> None:
    """Semantics P4: only the first unit on a worker needs the memory."""
    assert allocated(shared(w1=16, w2=2).turn(growing(cores=7, memory_mb=40_000))) == [
        ("w1", 5, 40000),
        ("w2", 2, 40000),
    ]


def test_a_growing_executor_takes_all_of_a_worker_where_apps_are_packed() -> None:
    """Semantics P2, P4."""
    cluster = shared({"placement": "pack"}, w1=16, w2=2)
    assert allocated(cluster.turn(growing(cores=17))) == [("w1", 16, 1024), ("w2", 1, 1024)]


def test_a_remainder_smaller_than_an_executor_is_never_given() -> None:
    """Semantics P6."""
    cluster = shared(w1=16)
    assert len(allocated(cluster.turn(fixed(cores=7, each=3)))) == 2
    assert not cluster.state.indexes.owed


def test_executors_below_the_minimum_size_fit_where_the_minimum_does_not() -> None:
    cluster = opened(w1=2)
    cluster.turn(asked("a1"))
    assert allocated(cluster.turn(fixed("a2", 2, 1))) == [("w1", 1, 1024), ("w1", 1, 1024)]


def test_a_limit_counts_running_and_new_executors_and_0_places_nothing() -> None:
    """Semantics P4."""
    cluster = shared(w1=16)
    assert allocated(cluster.turn(fixed(each=1, executor_limit=0))) == []
    cluster.turn(ScaleApp(app="a1", executors=2))
    assert len(cluster.state.executors) == 2
    assert len(allocated(cluster.turn(ScaleApp(app="a1", executors=5)))) == 3
    assert cluster.turn(ScaleApp(app="a1", executors=5)) == []
    assert allocated(cluster.turn(asked("a2", executor_limit=0))) == []


def test_a_new_demand_is_stated_in_full_and_stops_nothing_that_runs() -> None:
    """Semantics P6, O1."""
    cluster = shared(w1=16)
    cluster.turn(fixed(each=4))
    assert cluster.turn(ScaleApp(app="a1", executors=1)) == [
        AppChanged(
            app="a1",
            requested=Resources(4, 1024),
            sizing=Fixed(Resources(4, 1024)),
            executor_limit=1,
        )
    ]
    assert len(cluster.state.executors) == 2
    assert allocated(cluster.ended("a1.0")) == []
    assert len(allocated(cluster.ended("a1.1"))) == 1


def test_the_demand_of_an_app_that_waits_in_its_queue_changes_too() -> None:
    cluster = shared()
    cluster.turn(fixed(each=4))
    cluster.turn(ScaleApp(app="a1", executors=1))
    assert cluster.state.balance.requested.cores == 0
    cluster.worker("w1", 16)
    assert len(cluster.state.executors) == 1


@pytest.mark.parametrize("executors", [-1, 1_000_001])
def test_a_demand_out_of_range_is_refused(executors: int) -> None:
    cluster = shared(w1=16)
    cluster.turn(fixed())
    with pytest.raises(InvalidCommand, match=rf"^executors must be between 0 and 1000000, not {executors}$"):
        cluster.turn(ScaleApp(app="a1", executors=executors))


def test_a_killed_executor_holds_its_grant_until_its_worker_says_that_it_is_gone() -> None:
    """Semantics A5, P6: then another one takes its place in the same turn."""
    cluster = shared(w1=4)
    cluster.turn(fixed(cores=4, each=2))
    cluster.turn(StartedExecutor(executor="a1.0"))
    assert cluster.turn(KillExecutors(app="a1", executors=("a1.0", "a1.7", "a2.0"))) == [
        ExecutorRevoked(app="a1", executor="a1.0", worker="w1")
    ]
    assert (cluster.state.balance.granted.cores, cluster.state.apps["a1"].running) == (4, 0)
    assert cluster.turn(KillExecutors(app="a1", executors=("a1.0",))) == []
    assert cluster.turn(EndedExecutor(executor="a1.0", reason="failed", exit_code=143)) == [
        ExecutorRemoved(app="a1", executor="a1.0", worker="w1", reason="killed", exit_code=143),
        ExecutorAllocated(app="a1", executor="a1.2", worker="w1", resources=Resources(2, 1024)),
    ]
    assert cluster.state.apps["a1"].failures == 0


def test_executors_of_an_app_that_is_over_cannot_be_killed_nor_scaled() -> None:
    cluster = shared(w1=4)
    cluster.turn(fixed())
    cluster.turn(KillApp(app="a1"))
    for command in (KillExecutors(app="a1", executors=("a1.0",)), ScaleApp(app="a1", executors=1)):
        with pytest.raises(AppEnded):
            cluster.turn(command)


def test_an_executor_that_found_no_task_left_is_not_replaced() -> None:
    """Semantics S6."""
    cluster = shared(w1=4)
    cluster.turn(fixed(cores=2))
    (removed,) = cluster.ended("a1.0", done=True)
    assert isinstance(removed, ExecutorRemoved)
    assert removed.done
    assert cluster.state.apps["a1"].left_cores == 0


def test_with_open_admission_everybody_enters_at_once_in_the_order_of_arrival() -> None:
    """Semantics A6: with no worker, beyond the cluster and beyond the quota."""
    cluster = Cluster({"admission": "open"})
    cluster.company("acme", 8, 8192)
    cluster.company("zeta")
    both = cluster.turn(asked("a1", 400), replace(asked("a2", 4), company="zeta"), asked("a3", 4))
    assert admitted(both) == ["a1", "a2", "a3"]


def test_opening_the_door_lets_those_in_who_wait() -> None:
    cluster = shared(w1=4)
    cluster.submit("a1", 16)
    cluster.submit("a2", 4, user="bob")
    cluster.submit("a3", 4)
    assert admitted(cluster.turn(ConfigureCluster(settings={"admission": "open"}))) == ["a2", "a3"]


def test_an_app_of_unlimited_cores_requests_the_most_that_it_has_held() -> None:
    """Semantics A6, O1: at all three levels, by the event of the grant itself."""
    cluster = opened(w1=6)
    event = registered(cluster, fixed(cores="unlimited", each=4, tasks=1))
    assert (event.cores, event.requested) == (None, NOTHING)
    assert cluster.state.balance.requested.cores == 4
    cluster.worker("w2", 8)
    assert cluster.state.companies["acme"].users["ann"].balance.requested.cores == 12
    cluster.ended("a1.0")
    cluster.turn(LoseWorker(worker="w2"))
    assert cluster.state.balance.requested.cores == 12
    cluster.turn(EndApp(app="a1", reason="finished"))
    assert cluster.state.balance.requested.cores == cluster.state.balance.requested.memory_mb == 0


def test_under_fair_admission_an_unlimited_app_gets_no_more_than_it_has_held() -> None:
    cluster = opened(w1=4)
    cluster.turn(growing(cores="unlimited", tasks=1))
    cluster.turn(ConfigureCluster(settings={"admission": "fair"}))
    assert allocated(cluster.worker("w2", 8)) == []
    assert allocated(cluster.ended("a1.0")) != []


def test_a_decommissioned_worker_is_left_at_once_and_nothing_is_placed_in_that_turn() -> None:
    """Semantics W3."""
    cluster = shared(w1=4, w2=2)
    cluster.turn(fixed(cores=4, each=2))
    cluster.worker("w3", 8)
    assert cluster.turn(DecommissionWorker(worker="w1")) == [
        WorkerChanged(worker="w1", status="decommissioned", offer=Resources(4, 65536)),
        ExecutorRemoved(app="a1", executor="a1.0", worker="w1", reason="killed"),
    ]
    assert cluster.turn(DecommissionWorker(worker="w1")) == []
    assert allocated(cluster.turn(fixed("a2", 1, 1))) == [("w3", 2, 1024), ("w3", 1, 1024)]
    with pytest.raises(InvalidCommand, match="worker 'w1' was decommissioned; run `fairlog remove w1`"):
        cluster.turn(UndrainWorker(worker="w1"))
    assert cluster.turn(RemoveWorker(worker="w1")) == [WorkerRemoved(worker="w1", reason="removed")]


def test_a_decommission_beside_another_command_does_not_keep_that_one_from_placing() -> None:
    cluster = shared(w1=4, w2=4)
    cluster.turn(fixed(cores=2))
    assert allocated(cluster.turn(DecommissionWorker(worker="w2"), fixed("a2", 2))) == [
        ("w1", 2, 1024),
        ("w1", 2, 1024),
    ]


def test_a_leaving_worker_that_is_decommissioned_is_out_at_once() -> None:
    """Semantics W3."""
    cluster = shared(w1=4)
    cluster.turn(fixed(cores=2))
    cluster.turn(RemoveWorker(worker="w1"))
    events = cluster.turn(DecommissionWorker(worker="w1"))
    assert [type(event) for event in events] == [ExecutorRemoved, WorkerRemoved]


def test_an_app_fails_whose_executors_keep_failing_with_none_running() -> None:
    """Semantics W5; one that reaches running sets the count back."""
    cluster = shared({"max_executor_failures": 2}, w1=2)
    cluster.turn(fixed(cores=2))
    cluster.ended("a1.0", failed=True)
    cluster.turn(StartedExecutor(executor="a1.1"))
    assert len(cluster.ended("a1.1", failed=True)) == 2
    assert isinstance(cluster.ended("a1.2", failed=True)[-1], AppRemoved)


ONLY_WHERE_OPEN = (
    "unlimited cores need the setting admission=open, and --executor-cores, --executor-memory or --sizing "
    "one-per-worker; otherwise give a number of cores"
)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (asked(sizing="large"), "the sizing must be computed, fixed or one-per-worker, not 'large'"),
        (asked(sizing="fixed"), "fixed executors need a number of cores; add --executor-cores N"),
        (
            asked(sizing="one-per-worker", executor_cores=1),
            "executors of the sizing one-per-worker grow by cores; leave out --executor-cores",
        ),
        (
            growing(sizing="computed"),
            "the scheduler sizes computed executors; leave out --executor-cores and --executor-memory",
        ),
        (asked(executor_cores=0), "an executor's cores must be between 1 and 1000000, not 0"),
        (growing(memory_mb=0), "an executor's memory, in MiB, must be between 1 and 1073741824, not 0"),
        (asked(executor_limit=-1), "the maximum number of executors must be between 0 and 1000000, not -1"),
        (
            fixed(cores="unlimited", tasks=1),
            ONLY_WHERE_OPEN,
        ),
        (asked(supervise=True), "--driver-cores, --driver-memory and --supervise need --driver; add it"),
        (asked(driver_cores=1), "--driver-cores, --driver-memory and --supervise need --driver; add it"),
        (asked(driver=True, driver_cores=0), "the driver's cores must be between 1 and 1000000, not 0"),
        (
            asked(driver=True, driver_memory_mb=0),
            "the driver's memory, in MiB, must be between 1 and 1073741824, not 0",
        ),
    ],
)
def test_what_an_app_cannot_ask_for_is_refused_with_what_would_be_right(command: SubmitApp, sentence: str) -> None:
    cluster = shared(w1=16)
    with pytest.raises(InvalidCommand) as raised:
        cluster.turn(command)
    assert str(raised.value) == sentence


def test_unlimited_cores_need_a_number_of_tasks_and_executors_of_the_apps_own() -> None:
    cluster = opened(w1=16)
    with pytest.raises(InvalidCommand, match=r"^an app of unlimited cores needs a number of tasks; add --tasks N$"):
        cluster.turn(fixed(cores="unlimited"))
    with pytest.raises(InvalidCommand, match=r"^unlimited cores need the setting admission=open"):
        cluster.turn(asked(cores="unlimited", tasks=1))


def test_a_worker_returning_after_executor_kills_frees_nothing_twice() -> None:
    cluster = shared(w1=4)
    cluster.turn(fixed(cores=4, each=2), worker("w2", 4))
    cluster.turn(KillExecutors(app="a1", executors=("a1.0", "a1.1")))
    cluster.turn(KillApp(app="a1"))
    assert cluster.state.balance.granted.cores == 4
    cluster.turn(LoseWorker(worker="w1"), LoseWorker(worker="w2"))
    assert cluster.state.balance.granted.cores == 0
