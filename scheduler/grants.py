"""What a worker should run, as the commit writes it down for the agent to converge on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec.json import Encoder
from pydantic import BaseModel, ConfigDict

from scheduler.events import (
    AppAdmitted,
    AppRegistered,
    AppRemoved,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorRevoked,
    WorkerRegistered,
    WorkerRemoved,
)

if TYPE_CHECKING:
    from scheduler.entities import App
    from scheduler.state import ClusterState


_to_json = Encoder().encode


class Grant(BaseModel):
    """One executor or driver that a worker is to run, with all it needs to know of the app.

    A driver's id stands in `executor`, and `command` is its program. An executor that `stays` ends
    with its app only; only where the app has no driver does the result of its tasks end the app. In an
    `elastic` app it says how much work there is (semantics L6). It is not started before the master has said that
    all is settled up to log position `settled_at`: where commits are to reach replicas, one is seen before it has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    executor: str
    app: str
    company: str
    user: str
    name: str
    cores: int
    memory_mb: int
    tasks: int
    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    cwd: str | None = None
    retries: int = 0
    time_limit_s: int | None = None
    role: Literal["executor", "driver"] = "executor"
    stays: bool = False
    has_driver: bool = False
    elastic: bool = False
    settled_at: int = 0


STOP = ""
"""In the place of a grant: the executor must not run any more, and its worker still owes the word that it is gone.

Without it, an executor that was revoked before its worker had seen the grant would hold its cores for ever."""


class Difference(NamedTuple):
    """What brings a worker from what it runs to what it should run; both in the order of executor ids."""

    start: list[Grant]
    stop: list[str]


def diff(granted: Mapping[str, Grant], running: Collection[str]) -> Difference:
    """What to start and what to stop so that `granted`, and nothing else, runs."""
    start = [granted[executor] for executor in sorted(granted) if executor not in running]
    stop = [executor for executor in sorted(running) if executor not in granted]
    return Difference(start, stop)


def is_driver(name: str) -> bool:
    """Whether an id is a driver's, `<app>.driver-<n>`, and not an executor's, `<app>.<n>`."""
    return name.rpartition(".")[2].startswith("driver-")


def grant_for(  # noqa: C901 - a field after the other
    app: App, executor: str, cores: int, memory_mb: int, *, settled_at: int = 0
) -> str:
    """The grant of an executor of `app`, or of its driver, as the JSON text that `Grant` reads.

    Every grant is written by a commit and most are read elsewhere: no model is made of it here, and what most
    apps do not state is left out.
    """
    spec = app.spec
    grant: dict[str, Any] = {
        "executor": executor,
        "app": spec.app,
        "company": spec.company,
        "user": spec.user,
        "name": spec.name,
        "cores": cores,
        "memory_mb": memory_mb,
        "tasks": spec.tasks,
        "command": spec.command,
    }
    if spec.env:
        grant["env"] = spec.env
    if spec.cwd is not None:
        grant["cwd"] = spec.cwd
    if spec.retries:
        grant["retries"] = spec.retries
    if spec.time_limit_s is not None:
        grant["time_limit_s"] = spec.time_limit_s
    if not app.plain:
        if is_driver(executor):
            grant["role"] = "driver"
        if spec.driver or spec.sizing != "computed":
            grant["stays"] = True
        if spec.driver:
            grant["has_driver"] = True
        if app.elastic:
            grant["elastic"] = True
    if settled_at:
        grant["settled_at"] = settled_at
    return _to_json(grant).decode()


class GrantChanges(NamedTuple):
    """What a turn changes of the workers' grants: a grant's text, `STOP`, or None = the worker owes nothing any more.

    `left` and then `joined` are the workers whose heartbeat the commit stops and starts to expect.
    """

    by_worker: dict[str, dict[str, str | None]]
    joined: list[str]
    left: list[str]

    def put(self, worker: str, executor: str, grant: str | None) -> None:
        """What stands there for the executor or driver from now on."""
        self.by_worker.setdefault(worker, {})[executor] = grant

    def grant(self, worker: str, name: str, state: ClusterState, settled_at: int) -> None:
        """The executor or driver is to run, unless it is gone again, or told to stop."""
        held = state.executors.get(name) or state.drivers.get(name)
        if held is not None and held.status != "stopping":
            app = state.apps[held.app]
            self.put(worker, name, grant_for(app, name, held.cores, held.memory_mb, settled_at=settled_at))

    def leave(self, worker: str) -> None:
        """The worker is out, whatever was to change there."""
        self.by_worker.pop(worker, None)
        if worker in self.joined:
            self.joined.remove(worker)
        self.left.append(worker)


def changed_grants(events: Iterable[Event], state: ClusterState, *, settled_at: int = 0) -> GrantChanges:
    """What the events of a turn change of the grants; `state` has folded them all."""
    changes = GrantChanges({}, [], [])
    for event in events:
        match event:
            case AppRegistered() | AppAdmitted():
                pass
            case ExecutorAllocated(executor=name) | DriverAllocated(driver=name):
                changes.grant(event.worker, name, state, settled_at)
            case ExecutorRemoved(executor=name) | DriverRemoved(driver=name):
                changes.put(event.worker, name, None)
            case AppRemoved() if event.app in state.apps:
                for held in state.apps[event.app].slices():
                    changes.put(held.worker, held.id, STOP)
            case ExecutorRevoked():
                changes.put(event.worker, event.executor, STOP)
            case WorkerRegistered():
                changes.joined.append(event.worker)
            case WorkerRemoved():
                changes.leave(event.worker)
            case _:
                pass
    return changes


def all_grants(state: ClusterState, *, settled_at: int = 0) -> dict[str, dict[str, str]]:
    """Every worker with what it should run, and `STOP` for what was told to stop."""
    grants: dict[str, dict[str, str]] = {worker: {} for worker in state.workers}
    for executor in (*state.executors.values(), *state.drivers.values()):
        there = grants[executor.worker]
        if executor.status == "stopping":
            there[executor.id] = STOP
        else:
            app, cores, memory_mb = state.apps[executor.app], executor.cores, executor.memory_mb
            there[executor.id] = grant_for(app, executor.id, cores, memory_mb, settled_at=settled_at)
    return grants
