"""Which worker should run what, as the state says: every grant, or those that a turn changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.json import Encoder

from scheduler.model.commands import Private
from scheduler.model.events import (
    AppAdmitted,
    AppRegistered,
    AppRemoved,
    Computed,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorRevoked,
    RevocationWithdrawn,
    WorkerRegistered,
    WorkerRemoved,
)
from scheduler.model.grants import STOP, GrantChanges
from scheduler.model.ids import is_driver

if TYPE_CHECKING:
    from scheduler.rules.entities import Allocation, App
    from scheduler.rules.state import ClusterState


_to_json = Encoder().encode
_WITHHELD = Private()


def grant_for(
    app: App,
    executor: str,
    cores: int,
    memory_mb: int,
    *,
    settled_at: int = 0,
    leaving: Mapping[str, object] | None = None,
) -> str:
    """The grant of an executor of `app`, or of its driver, as the JSON text that `Grant` reads.

    Every grant is written by a commit and most are read elsewhere: no model is made of it here, and what most
    apps do not state is left out.
    """
    spec, private = app.spec, app.private or _WITHHELD
    grant: dict[str, Any] = {
        "executor": executor,
        "app": spec.app,
        "company": spec.company,
        "user": spec.user,
        "name": app.name,
        "cores": cores,
        "memory_mb": memory_mb,
        "tasks": spec.tasks,
        "command": private.command,
    }
    if private.env:
        grant["env"] = private.env
    if private.cwd is not None:
        grant["cwd"] = private.cwd
    if spec.retries:
        grant["retries"] = spec.retries
    if spec.time_limit_s is not None:
        grant["time_limit_s"] = spec.time_limit_s
    if spec.driver is not None:
        if is_driver(executor):
            grant["role"] = "driver"
        grant["stays"] = grant["has_driver"] = True
    elif not isinstance(spec.sizing, Computed):
        grant["stays"] = True
    if spec.elastic is not None:
        grant["elastic"] = True
    grant |= {name: value for name, value in (("settled_at", settled_at), ("leaving", leaving)) if value}
    return _to_json(grant).decode()


def changed_grants(events: Iterable[Event], state: ClusterState, *, settled_at: int = 0) -> GrantChanges:
    """What the events of a turn change of the grants; `state` has folded them all."""
    changes = GrantChanges({}, [], [])
    for event in events:
        match event:
            case AppRegistered() | AppAdmitted():
                pass
            case ExecutorAllocated(executor=name) | DriverAllocated(driver=name):
                _grant(changes, event.worker, name, state, settled_at)
            case ExecutorRemoved(executor=name) | DriverRemoved(driver=name):
                changes.put(event.worker, name, None)
            case AppRemoved() if event.app in state.apps:
                for held in state.apps[event.app].allocations():
                    changes.put(held.worker, held.id, STOP)
            case ExecutorRevoked(executor=name) | RevocationWithdrawn(executor=name):
                _grant(changes, event.worker, name, state, settled_at)
            case WorkerRegistered():
                changes.joined.append(event.worker)
            case WorkerRemoved():
                changes.leave(event.worker)
            case _:
                pass
    return changes


def _grant(changes: GrantChanges, worker: str, name: str, state: ClusterState, settled_at: int) -> None:
    """What the worker is to do with the executor or driver, unless it is gone again."""
    held = state.executors.get(name) or state.drivers.get(name)
    if held is not None:
        changes.put(worker, name, _instruction(held, state, settled_at))


def _instruction(held: Allocation, state: ClusterState, settled_at: int) -> str:
    """The grant as its worker is to see it: `STOP` if it must end at once, with a deadline if it is leaving (E5)."""
    app, settings = state.apps[held.app], state.settings
    leaving = None
    if held.status == "stopping":
        if held.revoked != "reclaimed" or app.ended is not None:
            return STOP
        leaving = {"deadline": held.deadline, "firm": settings.reclaim == "firm", "grace_s": settings.kill_grace_s}
    cores, memory_mb = held.resources.cores, held.resources.memory_mb
    return grant_for(app, held.id, cores, memory_mb, settled_at=settled_at, leaving=leaving)


def all_grants(state: ClusterState, *, settled_at: int = 0) -> dict[str, dict[str, str]]:
    """Every worker with what it should run, and `STOP` for what was told to stop."""
    grants: dict[str, dict[str, str]] = {worker: {} for worker in state.workers}
    for held in (*state.executors.values(), *state.drivers.values()):
        grants[held.worker][held.id] = _instruction(held, state, settled_at)
    return grants
