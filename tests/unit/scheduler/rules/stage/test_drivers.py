"""Drivers: where they go, what ends with them, what they hold (semantics D)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from scheduler.model.commands import (
    ConfigureCluster,
    DecommissionWorker,
    EndApp,
    EndedDriver,
    KillApp,
    LoseWorker,
    RemoveWorker,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import InvalidCommand, UnknownDriver
from scheduler.model.events import (
    AppRegistered,
    AppRemoved,
    DriverAllocated,
    DriverRemoved,
    Event,
    WorkerRemoved,
)
from scheduler.model.grants import STOP, Grant
from scheduler.model.resources import Resources
from scheduler.rules.stage.drivers import Draw
from scheduler.rules.view.assignments import all_grants
from scheduler.rules.view.views import apps
from tests.property.given import allocated, shared


def with_driver(app: str = "a1", cores: int | None = None, **more: Any) -> SubmitApp:
    asked = {"driver": True, "driver_cores": 2, "driver_memory_mb": 1024, **more}
    return convert(
        {"app": app, "company": "acme", "user": "ann", "cores": cores, "command": ("true",), **asked}, SubmitApp
    )


def ended(driver: str = "a1.driver-0", exit_code: int | None = 0) -> EndedDriver:
    return EndedDriver(driver=driver, reason="failed" if exit_code else "exited", exit_code=exit_code)


def drivers(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.app, event.worker) for event in events if isinstance(event, DriverAllocated)]


def test_a_driver_goes_before_any_executor_whoever_came_first() -> None:
    """Semantics D1."""
    cluster = shared({"admission": "open"}, w1=4)
    events = cluster.turn(
        SubmitApp(app="a0", company="acme", user="ann", cores=4, executor_cores=2, command=("true",)),
        with_driver("a1"),
    )
    assert [type(event).__name__ for event in events[-2:]] == ["DriverAllocated", "ExecutorAllocated"]
    assert allocated(events) == [("w1", 2, 1024)]


def test_a_drivers_cores_are_held_beside_those_of_its_apps_executors() -> None:
    """Semantics D1, O1: they are requested and granted, and no part of what the executors are owed."""
    cluster = shared(w1=16)
    events = cluster.turn(with_driver(cores=8, tasks=8))
    assert isinstance(events[0], AppRegistered)
    assert events[0].requested == Resources(10, 4096 + 1024)
    assert allocated(events) == [("w1", 8, 4096)]
    balance = cluster.state.companies["acme"].users["ann"].balance
    assert (balance.granted.cores, balance.granted.memory_mb) == (10, 5120)
    assert cluster.state.apps["a1"].left_cores == 0
    assert cluster.state.workers["w1"].free.cores == 6


def test_an_app_gets_executors_only_once_its_driver_is_placed() -> None:
    cluster = shared({"max_drivers": 0}, w1=16)
    assert allocated(cluster.turn(with_driver(cores=8, tasks=8, driver_cores=9))) == []
    assert apps(cluster.state)[0].state == "waiting"
    cluster.turn(ConfigureCluster(settings={"max_drivers": 1}))
    assert apps(cluster.state)[0].state == "running"
    assert len(cluster.state.executors) == 1


@pytest.mark.parametrize("alone", [{"cores": 0}, {"tasks": 0}])
def test_an_app_that_is_its_driver_asks_for_no_executor(alone: dict[str, Any]) -> None:
    cluster = shared(w1=16)
    event = cluster.turn(with_driver(**alone))[0]
    assert isinstance(event, AppRegistered)
    assert (event.cores, event.tasks, event.requested.cores) == (0, 0, 2)
    assert cluster.state.executors == {}


@pytest.mark.parametrize(("exit_code", "reason"), [(0, "finished"), (1, "failed"), (None, "failed")])
def test_an_app_ends_with_its_driver(exit_code: int | None, reason: str) -> None:
    """Semantics D3."""
    cluster = shared(w1=16)
    cluster.turn(with_driver(cores=4, tasks=4))
    gone, over = cluster.turn(ended(exit_code=exit_code))
    assert isinstance(gone, DriverRemoved)
    assert isinstance(over, AppRemoved)
    assert over.reason == reason
    assert [executor.status for executor in cluster.state.executors.values()] == ["stopping"]
    with pytest.raises(UnknownDriver, match=r"^no driver 'a1.driver-0' is granted"):
        cluster.turn(ended())


def test_a_supervised_driver_is_placed_again_until_it_succeeds() -> None:
    """Semantics D3."""
    cluster = shared(w1=16)
    cluster.turn(with_driver(supervise=True))
    assert [type(event) for event in cluster.turn(ended(exit_code=1))] == [DriverRemoved, DriverAllocated]
    assert list(cluster.state.drivers) == ["a1.driver-1"]
    events = cluster.turn(ended("a1.driver-1"))
    assert events[-1] == AppRemoved(app="a1", reason="finished")


def test_the_result_of_its_tasks_does_not_end_an_app_that_has_a_driver() -> None:
    cluster = shared(w1=16)
    cluster.turn(with_driver(cores=4, tasks=4))
    with pytest.raises(InvalidCommand, match=r"^app 'a1' ends when its driver ends; `fairlog kill a1` ends both$"):
        cluster.turn(EndApp(app="a1", reason="finished"))


def test_a_killed_apps_driver_holds_its_grant_until_its_worker_says_that_it_is_gone() -> None:
    """Semantics A5."""
    cluster = shared(w1=16)
    cluster.turn(with_driver(tasks=0))
    cluster.turn(KillApp(app="a1"))
    assert all_grants(cluster.state) == {"w1": {"a1.driver-0": STOP}}
    assert cluster.state.balance.granted.cores == 2
    assert cluster.state.companies["acme"].apps == 1
    cluster.turn(ended(exit_code=143))
    assert (cluster.state.balance.granted.cores, cluster.state.companies["acme"].apps) == (0, 0)


def test_a_lost_worker_takes_its_drivers_with_it() -> None:
    """Semantics W2, D3: the app fails, unless its driver is supervised and finds another worker."""
    cluster = shared({"spread_out_drivers": False}, w1=16)
    cluster.turn(with_driver("a1"), with_driver("a2", supervise=True))
    cluster.worker("w2", 16)
    events = cluster.turn(LoseWorker(worker="w1"))
    failed = [event for event in events if isinstance(event, AppRemoved)]
    assert failed == [AppRemoved(app="a1", reason="failed", detail="its driver was lost with worker w1")]
    assert drivers(events) == [("a2", "w2")]


def test_a_leaving_worker_waits_for_its_drivers_and_a_decommissioned_one_keeps_them() -> None:
    """Semantics W3."""
    cluster = shared(w1=16)
    cluster.turn(with_driver("a1", tasks=0), with_driver("a2", tasks=0))
    cluster.turn(DecommissionWorker(worker="w1"))
    assert len(cluster.state.drivers) == 2
    cluster.turn(RemoveWorker(worker="w1"))
    assert not any(isinstance(event, WorkerRemoved) for event in cluster.turn(ended("a1.driver-0")))
    assert isinstance(cluster.turn(ended("a2.driver-0"))[-1], WorkerRemoved)


def test_a_decommissioned_worker_that_waits_for_its_driver_stays_decommissioned() -> None:
    """Semantics W3: for good, whichever of the two commands comes first."""
    for first, second in ((DecommissionWorker, RemoveWorker), (RemoveWorker, DecommissionWorker)):
        cluster = shared(w1=16)
        cluster.turn(with_driver("a1"))
        cluster.turn(first(worker="w1"))
        cluster.turn(second(worker="w1"))
        worker = cluster.state.workers["w1"]
        assert (worker.status, worker.decommissioned) == ("leaving", True)
        assert cluster.turn(DecommissionWorker(worker="w1")) == []
        with pytest.raises(InvalidCommand, match="worker 'w1' was decommissioned"):
            cluster.turn(UndrainWorker(worker="w1"))
        assert isinstance(cluster.turn(ended("a1.driver-0"))[-1], WorkerRemoved)


def test_at_most_so_many_drivers_are_up_at_once_and_the_next_one_follows() -> None:
    """Semantics D4."""
    cluster = shared({"max_drivers": 1}, w1=16)
    assert drivers(cluster.turn(with_driver("a1"), with_driver("a2"))) == [("a1", "w1")]
    assert drivers(cluster.turn(ended())) == [("a2", "w1")]


def test_with_open_admission_drivers_may_hold_the_whole_cluster_as_in_spark() -> None:
    """Semantics D4: only `max_drivers` bounds them."""
    cluster = shared({"admission": "open"}, w1=4, w2=4)
    submissions = [with_driver(f"a{number}", 4, tasks=4, executor_cores=2) for number in range(4)]
    assert len(drivers(cluster.turn(*submissions))) == 4
    assert cluster.state.executors == {}


def test_a_driver_that_fits_nowhere_holds_up_nobody() -> None:
    """Semantics D2."""
    cluster = shared({"admission": "open"}, w1=4)
    assert drivers(cluster.turn(with_driver("a1", driver_cores=5), with_driver("a2"))) == [("a2", "w1")]


def test_drivers_that_are_not_spread_go_to_the_first_worker_by_id_with_room() -> None:
    """Semantics D2."""
    cluster = shared({"spread_out_drivers": False}, w2=16, w10=3, w1=1)
    assert drivers(cluster.turn(with_driver("a1"), with_driver("a2"))) == [("a1", "w10"), ("a2", "w2")]


def test_a_draw_visits_every_worker_once_per_round_in_an_order_set_by_the_position() -> None:
    """Semantics D2."""
    workers = [f"w{number}" for number in range(6)]
    orders = []
    for position in range(20):
        draw = Draw(position, workers)
        order = [draw.next_worker(lambda _: True) for _ in range(12)]
        assert order[:6] == order[6:]
        assert sorted(map(str, order[:6])) == workers
        orders.append(order)
    assert len({tuple(order) for order in orders}) > 10
    again = Draw(7, reversed(workers))
    assert [again.next_worker(lambda _: True) for _ in range(12)] == orders[7]


def test_a_draw_continues_after_the_last_worker_and_skips_workers_without_room() -> None:
    """Semantics D2."""
    draw = Draw(3, ["w1", "w2", "w3"])
    order = [draw.next_worker(lambda _: True) for _ in range(3)]
    draw = Draw(3, ["w1", "w2", "w3"])
    assert draw.next_worker(lambda worker: worker == order[1]) == order[1]
    assert draw.next_worker(lambda _: True) == order[2]
    assert draw.next_worker(lambda _: False) is None


def test_a_drivers_grant_tells_its_worker_what_it_is() -> None:
    cluster = shared(w1=16)
    cluster.turn(with_driver(cores=4, tasks=4))
    grants = {name: Grant.model_validate_json(text) for name, text in all_grants(cluster.state)["w1"].items()}
    driver, executor = grants["a1.driver-0"], grants["a1.0"]
    assert (driver.role, driver.cores, driver.memory_mb) == ("driver", 2, 1024)
    assert (executor.role, executor.stays, executor.has_driver) == ("executor", True, True)


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ("command '/no' does not exist on worker w1", "command '/no' does not exist on worker w1"),
        ("", "its driver ended with exit code 127"),
    ],
)
def test_an_app_whose_driver_failed_says_why_as_far_as_its_worker_did(said: str, detail: str) -> None:
    """Semantics D3."""
    cluster = shared(w1=16)
    cluster.turn(with_driver())
    events = cluster.turn(EndedDriver(driver="a1.driver-0", reason="failed", exit_code=127, detail=said))
    assert AppRemoved(app="a1", reason="failed", detail=detail) in events
