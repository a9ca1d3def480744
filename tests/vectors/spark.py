"""The clusters of the Spark cases: built by events and commands, so that nothing but the rules decides on them.

A case's worker may hold more than the case tells of: an app that has ended holds it, as one whose
executors have yet to be reported gone does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from scheduler.model.commands import Command, ConfigureCluster, RegisterCompany, SubmitApp
from scheduler.model.events import (
    AppAdmitted,
    AppRegistered,
    AppRemoved,
    Event,
    ExecutorAllocated,
    KindRegistered,
    OnePerWorker,
    WorkerChanged,
    WorkerRegistered,
)
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.apps import App
from scheduler.rules.invariants import check
from scheduler.rules.stage.granting import admit
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState

Case = dict[str, Any]
COMPANY, USER = "spark", "spark"
FILLER = "filler"


def cases(name: str) -> list[Case]:
    """The cases of that file."""
    found: list[Case] = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return found


def settings_of(case: Mapping[str, Any]) -> dict[str, object]:
    """The settings that make the scheduler Spark, as far as the case sets them."""
    chosen: dict[str, object] = {
        "admission": "open",
        "placement": "spread" if case.get("spread_out", True) else "pack",
        "worker_selection": case.get("worker_selection_policy", "CORES_FREE_DESC").lower().replace("_", "-"),
        "spread_out_drivers": case.get("spread_out_drivers", True),
        "max_drivers": case.get("max_drivers"),
    }
    return {**chosen, "default_cores": case["default_cores"]} if case.get("default_cores") is not None else chosen


def submission(app: Mapping[str, Any], name: str, case: Mapping[str, Any]) -> SubmitApp:
    """An app of the case as a command; cores that it does not name are the default of the case, or unlimited."""
    unset: Literal["unlimited"] | None = "unlimited" if case.get("default_cores") is None else None
    return SubmitApp(
        app=name,
        company=COMPANY,
        user=USER,
        cores=unset if app["cores_max"] is None else app["cores_max"],
        tasks=1,
        sizing="one-per-worker" if app["cores_per_executor"] is None else "fixed",
        executor_cores=app["cores_per_executor"],
        executor_memory_mb=app["memory_per_executor_mb"],
        executor_limit=app["executor_limit"],
        executor_resources=app.get("resources_per_executor") or {},
    )


def driver_submission(driver: Mapping[str, Any]) -> SubmitApp:
    """A driver of the case: an app that is nothing but its driver."""
    return SubmitApp(
        app=driver["name"],
        company=COMPANY,
        user=USER,
        command=("true",),
        driver=True,
        driver_cores=driver["cores"],
        driver_memory_mb=driver["memory_mb"],
    )


class Master:
    """A cluster that takes one Spark message a turn."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.state = ClusterState()
        self.turn(ConfigureCluster(settings=settings_of(case)))
        self.turn(RegisterCompany(company=COMPANY))
        if "workers" in case:
            self._offer(case["workers"], [*case.get("apps", ()), *([case["app"]] if "app" in case else [])])

    def turn(self, *commands: Command) -> list[Event]:
        """The events of a turn that takes these commands.

        Raises: CommandRejected if one is refused; no turn is made of it then.
        """
        return self.turn_of(commands)

    def turn_of(self, commands: Iterable[Command]) -> list[Event]:
        """The same, each command asked for once those before it are taken.

        Raises: CommandRejected if one is refused; no turn is made of it then.
        """
        turn = Turn(self.state, self.state.at + 1)
        for command in commands:
            turn.take(command)
        turn.settle()
        check(self.state)
        return [entry.event for entry in turn.entries]

    def arrivals(self, submissions: Iterable[tuple[SubmitApp, Sequence[Mapping[str, Any]]]]) -> Turn:
        """A turn in which these apps have arrived, each with executors running already, and nothing is placed yet."""
        turn = Turn(self.state, self.state.at + 1)
        for submit, running in submissions:
            turn.take(submit)
            admitted = admit(self.state)
            assert admitted is not None
            assert admitted.app == submit.app
            turn.record(admitted)
            for number, held in enumerate(running):
                turn.record(_held(submit.app, number, held["worker"], held["cores"], held["memory_mb"]))
        return turn

    def one_pass(self, turn: Turn) -> list[Event]:
        """What the turn decides."""
        before = len(turn.entries)
        turn.settle()
        check(self.state)
        return [event for event, _ in turn.entries[before:]]

    def _offer(self, workers: Sequence[Mapping[str, Any]], apps: Sequence[Mapping[str, Any]]) -> None:
        turn = Turn(self.state, self.state.at + 1)
        for event in _offers(workers, apps):
            turn.record(event)
        check(self.state)


def _offers(workers: Sequence[Mapping[str, Any]], apps: Sequence[Mapping[str, Any]]) -> list[Event]:
    cores: Counter[str] = Counter()
    memory_mb: Counter[str] = Counter()
    for app in apps:
        for held in app["running"]:
            cores[held["worker"]] += held["cores"]
            memory_mb[held["worker"]] += held["memory_mb"]
    events: list[Event] = [_filler(), AppAdmitted(app=FILLER, company=COMPANY, user=USER, share="0/1")]
    kinds = {kind for worker in workers for kind in worker.get("resources", ())}
    events += [KindRegistered(kind=kind) for kind in sorted(kinds)]
    for worker in workers:
        name = worker["id"]
        event = WorkerRegistered(worker=name, node=name, host=name, rack="", offer=_offer(worker))
        events.append(replace(event, addresses=_addresses(worker)))
    for number, worker in enumerate(workers):
        name = worker["id"]
        used = worker["cores_used"] - cores[name], worker["memory_used_mb"] - memory_mb[name]
        events.append(_held(FILLER, number, name, *used))
    events.append(AppRemoved(app=FILLER, reason="killed"))
    for worker in workers:
        if worker["state"] != "ALIVE":
            drained = WorkerChanged(worker=worker["id"], status="draining", offer=_offer(worker))
            events.append(replace(drained, addresses=_addresses(worker)))
    return events


def _offer(worker: Mapping[str, Any]) -> Resources:
    return Resources.of(worker["cores"], worker["memory_mb"], **worker.get("resources", {}))


def _addresses(worker: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The free addresses of custom resources; those in use are not offered, so nobody gets them."""
    return {kind: tuple(map(str, range(number))) for kind, number in worker.get("resources", {}).items() if number}


def _filler() -> AppRegistered:
    return AppRegistered(
        app=FILLER,
        company=COMPANY,
        user=USER,
        kind="batch",
        cores=None,
        requested=NOTHING,
        tasks=1,
        sizing=OnePerWorker(1),
    )


def _held(app: str, number: int, worker: str, cores: int, memory_mb: int) -> ExecutorAllocated:
    return ExecutorAllocated(app=app, executor=f"{app}.{number}", worker=worker, resources=Resources(cores, memory_mb))


def launches(events: Iterable[Event]) -> list[ExecutorAllocated]:
    """The executors among what a turn decided."""
    return [event for event in events if isinstance(event, ExecutorAllocated)]


def launched(event: ExecutorAllocated) -> dict[str, Any]:
    """The event as the cases tell of a launch."""
    number = int(event.executor.rpartition(".")[2])
    return {
        "app": event.app,
        "id": number,
        "worker": event.worker,
        "cores": event.resources.cores,
        "memory_mb": event.resources.memory_mb,
        **({"resources": {kind: [*found] for kind, found in event.addresses.items()}} if event.addresses else {}),
    }


def without_app(launch: Mapping[str, Any]) -> dict[str, Any]:
    """A launch of an app that stands above it."""
    return {name: value for name, value in launch.items() if name != "app"}


def spark_state(app: App) -> str:
    """What Spark calls the state of the app: running from its first executor on, whatever became of that."""
    if app.ended is not None:
        return app.ended.upper()
    return "RUNNING" if app.next_executor else "WAITING"
