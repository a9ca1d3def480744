"""The inputs that the log tells of: who submitted what, which workers came and went, what was set.

Commands are not in the log, their events are; here each turn's events are read back as the commands behind them.
What follows from how apps ran (executors that started and ended, apps that finished, demand that moved) stays a
fact: it holds in another world only for an app that fared the same there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import asdict, replace

from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterWorker,
    RemoveCompany,
    RemoveWorker,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.events import (
    AppChanged,
    AppRegistered,
    AppRemoved,
    ClusterConfigured,
    CompanyChanged,
    CompanyRegistered,
    CompanyRemoved,
    DriverRemoved,
    Event,
    ExecutorRemoved,
    ExecutorsRequested,
    MasterElected,
    RoomReserved,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
)
from scheduler.rules.turn import decision_of

if TYPE_CHECKING:
    from scheduler.store.codec import Fact


class Input(NamedTuple):
    """A command, or a fact about how an app ran, and the id of the command that caused it."""

    what: Command | Event
    cause: str = ""


class LoggedTurn(NamedTuple):
    """What came in at `at` (ms), and every event that the log has of that turn."""

    at: int
    inputs: list[Input]
    events: list[Event]
    causes: list[str]


def turns(facts: Iterable[Fact]) -> Iterator[LoggedTurn]:
    """The turns of the log."""
    offers: dict[str, RegisterWorker] = {}
    for _, group in groupby(facts, key=lambda fact: fact.turn):
        entries = list(group)
        events = [fact.event for fact in entries]
        inputs: list[Input] = []
        causes = [fact.cause for fact in entries]
        for cause, part in groupby(zip(causes, events, strict=True), key=lambda pair: pair[0]):
            inputs += _inputs(cause, [event for _, event in part], offers)
        yield LoggedTurn(entries[0].at, inputs, events, causes)


def _inputs(cause: str, events: list[Event], offers: dict[str, RegisterWorker]) -> Iterator[Input]:
    """The inputs behind events of one cause; without a cause, only what is no decision."""
    if not cause:
        events = [event for event in events if decision_of(event) is None]
    events = [event for event in events if not isinstance(event, ExecutorsRequested | RoomReserved)]
    before: list[Event] = []
    for event in events:
        if isinstance(event, WorkerRemoved):
            yield from _departure(cause, before, event)
            before = []
        else:
            before.append(event)
    for event in before:
        yield Input(_command(event, offers), cause)
        if isinstance(event, WorkerChanged) and event.status == "decommissioned":
            return


def _departure(cause: str, before: list[Event], removed: WorkerRemoved) -> Iterator[Input]:
    """A worker that left, whatever went with it; or, before that, an executor's end that it had waited for.

    A leaving worker that was decommissioned looks like one whose last executor was killed; it is taken for the former,
    after which a turn need not place anything (semantics W6).
    """
    took_along = any(isinstance(event, ExecutorRemoved | DriverRemoved) and event.reason == "lost" for event in before)
    gone = [event for event in before if not isinstance(event, AppChanged)]
    killed = [e for e in gone if isinstance(e, ExecutorRemoved) and e.reason == "killed" and e.exit_code is None]
    if gone and killed == gone and removed.reason == "removed":
        yield Input(DecommissionWorker(worker=removed.worker), cause)
        return
    if not took_along:
        yield from (Input(event, cause) for event in before)
    if removed.reason == "lost":
        yield Input(LoseWorker(worker=removed.worker, last_seen=removed.last_seen), cause)
    elif took_along:
        yield Input(RemoveWorker(worker=removed.worker, force=True), cause)
    else:
        yield Input(RemoveWorker(worker=removed.worker), cause)


def _command(event: Event, offers: dict[str, RegisterWorker]) -> Command | Event:
    match event:
        case MasterElected():
            return event
        case ClusterConfigured():
            return ConfigureCluster(settings=asdict(event))
        case CompanyChanged():
            return event
        case CompanyRegistered():
            return RegisterCompany(**asdict(event))
        case CompanyRemoved():
            return RemoveCompany(company=event.company)
        case WorkerRegistered():
            offers[event.worker] = RegisterWorker(**asdict(event))
            return offers[event.worker]
        case WorkerChanged():
            return _changed_worker(event, offers)
        case AppRegistered():
            return submission(event)
        case AppRemoved(reason="killed"):
            return KillApp(app=event.app)
        case _:
            return event


def _changed_worker(event: WorkerChanged, offers: dict[str, RegisterWorker]) -> Command:
    before = offers[event.worker]
    if (before.cores, before.memory_mb) != (event.cores, event.memory_mb):
        offer = replace(before, cores=event.cores, memory_mb=event.memory_mb)
        offers[event.worker] = offer
        return offer
    return status_command(event)


def status_command(event: WorkerChanged) -> Command:
    """What gave the worker that status, its offer being what it was."""
    match event.status:
        case "alive":
            return UndrainWorker(worker=event.worker)
        case "draining":
            return DrainWorker(worker=event.worker)
        case "leaving":
            return RemoveWorker(worker=event.worker)
        case "decommissioned":
            return DecommissionWorker(worker=event.worker)


def submission(event: AppRegistered) -> SubmitApp:
    """The submission that an app was registered by; what it left open is stated as what it became."""
    said: dict[str, Any] = {
        "app": event.app,
        "company": event.company,
        "user": event.user,
        "name": event.name,
        "kind": event.kind,
        "cores": "unlimited" if event.unlimited else event.cores,
        "memory_per_task_mb": event.memory_per_task_mb,
        "tasks": event.tasks,
        "command": event.command,
        "env": event.env,
        "cwd": event.cwd,
        "retries": event.retries,
        "time_limit_s": event.time_limit_s,
    }
    if event.sizing != "computed":
        said |= {"executor_cores": event.executor_cores, "executor_memory_mb": event.executor_memory_mb}
        said |= {"sizing": event.sizing}
    if event.elastic is not None:
        said |= {"elastic": event.elastic[:2], "cores": None}
    elif event.executor_limit is not None:
        said |= {"executor_limit": event.executor_limit}
    if event.driver:
        said |= {
            "driver": True,
            "driver_cores": event.driver_cores,
            "driver_memory_mb": event.driver_memory_mb,
            "supervise": event.supervise,
        }
    return SubmitApp(**said)
