"""Whole lives of a cluster, message by message, against a real Spark Master (semantics S5, P, D, W2, W5, W3, A5).

Each message is a turn of commands. Spark frees the room of what it kills at once; here a grant is held
until its worker says that the executor is gone, so that word arrives in the same turn. What Spark
ignores because it names something unknown is refused, or names what has ended, and makes no turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from scheduler.model.commands import (
    Command,
    DecommissionWorker,
    EndApp,
    EndedDriver,
    EndedExecutor,
    KillExecutors,
    LoseWorker,
    RegisterWorker,
    ScaleApp,
    StartedExecutor,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import AppRemoved, DriverAllocated, Event, ExecutorAllocated, ExecutorRemoved
from scheduler.rules.state.cluster import ClusterState
from tests.vectors.spark import Master, cases, driver_submission, launched, spark_state, submission

CASES = cases("spark_traces")


def test_the_file_holds_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_message_causes_exactly_what_it_causes_in_spark(case: dict[str, Any]) -> None:
    master = Master(case)
    gone_for_spark: set[str] = set()
    for operation, expected in zip(case["ops"], case["expected"]["steps"], strict=True):
        assert _step(master, operation, gone_for_spark) == expected, operation
    state = master.state
    for app in case["expected"]["apps_after"]:
        ours = state.apps[app["name"]]
        assert spark_state(ours) == app["state"]
        if ours.ended is None:
            assert ours.granted.cores == app["cores_granted"]
            assert sorted(_number(executor) for executor in ours.executors) == sorted(_live(app))
    alive = {worker["id"]: worker for worker in case["expected"]["workers_after"] if worker["state"] == "ALIVE"}
    assert {worker.id for worker in state.workers.values() if worker.status == "alive"} == alive.keys()
    for name, worker in alive.items():
        ours_there = state.workers[name]
        assert ours_there.offer.cores - ours_there.free.cores == worker["cores_used"]
        assert ours_there.offer.memory_mb - ours_there.free.memory_mb == worker["memory_used_mb"]


def _step(master: Master, operation: dict[str, Any], gone_for_spark: set[str]) -> dict[str, Any]:
    """What the message caused, as the cases tell it."""
    if operation["op"] == "finish_driver":
        if operation["name"] in gone_for_spark:
            return {}
        gone_for_spark.add(operation["name"])
    try:
        commands = COMMANDS[operation["op"]](master.state, operation)
        events = [] if commands is None else master.turn_of(commands)
    except CommandRejected:
        return {}
    if operation["op"] == "decommission_worker":
        events = [event for event in events if not isinstance(event, ExecutorRemoved)]
    return _told(master.state, events)


def _register_worker(_: ClusterState, operation: dict[str, Any]) -> list[Command]:
    name = operation["id"]
    offer = {"cores": operation["cores"], "memory_mb": operation["memory_mb"]}
    return [RegisterWorker(worker=name, node=name, host=name, **offer)]


def _finish_app(state: ClusterState, operation: dict[str, Any]) -> list[Command] | None:
    app = state.apps.get(operation["app"])
    if app is None or app.ended is not None:
        return None
    return [EndApp(app=operation["app"], reason="finished"), *_words(app.executors)]


def _kill_executors(state: ClusterState, operation: dict[str, Any]) -> list[Command]:
    named = dict.fromkeys(f"{operation['app']}.{number}" for number in operation["ids"])
    app = state.apps.get(operation["app"])
    there = [executor for executor in named if app is not None and executor in app.executors]
    return [KillExecutors(app=operation["app"], executors=tuple(named)), *_words(there)]


def _executor_exited(state: ClusterState, operation: dict[str, Any]) -> Iterator[Command]:
    """An app that fails with this one has its other executors killed."""
    executor, code = f"{operation['app']}.{operation['id']}", operation["code"]
    yield EndedExecutor(executor=executor, reason="failed" if code else "exited", exit_code=code)
    app = state.apps[operation["app"]]
    if app.ended is not None:
        yield from _words(app.executors)


def _finish_driver(state: ClusterState, operation: dict[str, Any]) -> list[Command] | None:
    """For a driver that waits it makes a turn of nothing: Spark looks what it can place."""
    app = state.apps.get(operation["name"])
    if app is None or app.ended is not None:
        return None
    return [] if app.driver is None else [EndedDriver(driver=app.driver.id, reason="exited", exit_code=0)]


COMMANDS: dict[str, Callable[[ClusterState, dict[str, Any]], Iterable[Command] | None]] = {
    "register_worker": _register_worker,
    "register_app": lambda _, operation: [submission(operation, operation["name"], {})],
    "submit_driver": lambda _, operation: [driver_submission(operation)],
    "finish_app": _finish_app,
    "kill_executors": _kill_executors,
    "request_executors": lambda _, operation: [ScaleApp(app=operation["app"], executors=operation["total"])],
    "executor_running": lambda _, operation: [StartedExecutor(executor=f"{operation['app']}.{operation['id']}")],
    "executor_exited": _executor_exited,
    "worker_lost": lambda _, operation: [LoseWorker(worker=operation["id"])],
    "decommission_worker": lambda _, operation: [DecommissionWorker(worker=operation["id"])],
    "finish_driver": _finish_driver,
}


def _words(executors: Iterable[str]) -> list[Command]:
    return [EndedExecutor(executor=executor, reason="killed") for executor in executors]


def _told(state: ClusterState, events: list[Event]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    allocations = [launched(event) for event in events if isinstance(event, ExecutorAllocated)]
    killed = [
        {"app": event.app, "id": _number(event.executor), "worker": event.worker}
        for event in events
        if isinstance(event, ExecutorRemoved) and event.reason == "killed"
    ]
    drivers = [{"name": event.app, "worker": event.worker} for event in events if isinstance(event, DriverAllocated)]
    failed = [event.app for event in events if isinstance(event, AppRemoved) and event.reason == "failed"]
    removed = [name for name in failed if not state.apps[name].spec.driver]
    if allocations:
        told["launched"] = allocations
    if killed:
        told["killed_any_order"] = sorted(killed, key=lambda one: (one["app"], one["id"]))
    if drivers:
        told["drivers_launched"] = drivers
    if removed:
        told["apps_removed"] = removed
    return told


def _number(executor: str) -> int:
    return int(executor.rpartition(".")[2])


def _live(app: dict[str, Any]) -> list[int]:
    return [int(executor["id"] if isinstance(executor, dict) else executor) for executor in app["executors"]]
