"""The grants of the workers: all of them, or those that a turn changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.json import Encoder

from scheduler.model import events as facts
from scheduler.model.arrays import written
from scheduler.model.commands import Private
from scheduler.model.grants import STOP, GrantChanges
from scheduler.model.ids import is_driver, number_of
from scheduler.model.staged import FILES
from scheduler.rules.index.closings import grace_of

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.ranks import Ranks
    from scheduler.rules.state.cluster import ClusterState

_to_json = Encoder().encode
_WITHHELD = Private()
FIRST_PORT, PORTS = 20_000, 10_000
"""Programs of gangs meet at so many ports from that one on, below those that a machine gives to whoever asks."""


def _grant(state: ClusterState, held: Allocation, settled_at: int) -> str:  # noqa: C901, PLR0912, PLR0915 - a test a field
    """The grant of an executor or driver: the JSON text of a `Grant` without its defaults; `STOP` if it must end now.

    A reclaimed executor keeps its grant, with the deadline at which it must leave (semantics H7). So does what an app
    holds whose time is over: it must leave now (X2).
    """
    app, leaving = state.apps[held.app], None
    if held.status == "stopping":
        if app.ended is not None or held.revoked in ("killed", "idle", "gang"):
            return STOP
        over = app.expired_at > 0
        leaving = {
            "deadline": 0 if over else held.deadline,
            "firm": over or held.firm,
            "grace_s": grace_of(state.settings, app, held),
            "signal": "" if over else app.spec.reclaim_signal,
        }
    spec, private = app.spec, app.private or _WITHHELD
    program = spec.programs and not is_driver(held.id)
    grant: dict[str, Any] = {
        "executor": held.id,
        "app": app.id,
        "company": spec.company,
        "user": spec.user,
        "name": private.name or app.id,
        "cores": held.resources.cores,
        "memory_mb": held.resources.memory_mb,
        "tasks": spec.tasks,
        "command": private.executor_command if program and spec.driver is not None else private.command,
    }
    if program:
        grant |= _about_program(state, app, private, held)
    if spec.grace_s is not None:
        grant["grace_s"] = spec.grace_s
    if state.settings.idle_end_s is not None and not is_driver(held.id):
        grant["idle_end_s"] = state.settings.idle_end_s
        if state.companies[spec.company].spec.end_idle:
            grant["end_idle"] = True
    if private.env:
        grant["env"] = private.env
    if private.script and not (program and spec.driver is not None):
        grant |= {"script": private.script, "script_at": private.script_at}
    if private.cwd is not None:
        grant["cwd"] = private.cwd
    if private.keep_going and not is_driver(held.id):
        grant["keep_going"] = True
    if private.numbered:
        grant["number"] = app.submitted
    if private.output or private.error:
        grant["outputs"] = {
            "output": private.output,
            "error": private.error,
            "append": private.open_mode == "append",
            "app": str(app.submitted) if private.numbered else app.id,
        }
    if private.array and not is_driver(held.id):
        grant["array"] = private.array
    if private.near and not is_driver(held.id):
        grant["near"] = _nearness(state, held, private.near)
    if spec.image:
        grant["image"] = spec.image
    if spec.network:
        grant["network"] = spec.network
    if app.restarts:
        grant["restarts"] = app.restarts
    if spec.retries:
        grant |= {"retries": spec.retries, "retry_backoff_s": spec.retry_backoff_s}
    if spec.time_limit_s is not None:
        grant["time_limit_s"] = spec.time_limit_s
    if spec.driver is not None:
        if is_driver(held.id):
            grant["role"] = "driver"
        grant["stays"] = grant["has_driver"] = True
    elif not isinstance(spec.sizing, facts.Computed):
        grant["stays"] = True
    if spec.elastic is not None:
        grant["elastic"] = True
    if spec.cores_per_task > 1:
        grant["cores_per_task"] = spec.cores_per_task
    if held.addresses:
        grant["addresses"] = held.addresses
        if isinstance(spec.sizing, facts.Computed) and not is_driver(held.id):
            grant["per_task"] = spec.sizing.per_task
    if settled_at:
        grant["settled_at"] = settled_at
    if leaving is not None:
        grant["leaving"] = leaving
    grant["granted_at"] = held.granted_at
    if held.signals:
        grant["signals"] = held.signals
    if app.cancelled and not is_driver(held.id):
        grant["cancelled"] = written(app.cancelled)
    if held.warned_at and spec.warn is not None:
        grant["warning"] = {"signal": spec.warn.signal, "at": held.warned_at}
    return _to_json(grant).decode()


def _about_program(state: ClusterState, app: App, private: Private, held: Allocation) -> dict[str, Any]:
    """What the grant of a program says more: its place among those of its app, and where it begins (semantics G1).

    An executor that an earlier version granted has its number as its index.
    """
    ranks = state.ranks.get(app.id)
    about: dict[str, Any] = {"program": True}
    if app.spec.owner_timeout_s is not None or FILES in private.env:
        about["begins_in_scratch"] = True
    if ranks is None:
        return about | {"rank": number_of(held.id), "ranks": app.executor_limit or 0}
    rank = ranks.held.get(held.id, number_of(held.id))
    if app.spec.gang:
        about |= _about_gang(state, app, ranks, number_of(held.id) - rank)
    return about | {"rank": rank, "ranks": ranks.counts.get(held.id, 0)}


def _about_gang(state: ClusterState, app: App, ranks: Ranks, first: int) -> dict[str, Any]:
    """Where the executors of a gang are, and where they meet: elsewhere each time, as its `first` number is (G8)."""
    hosts = dict.fromkeys(range(ranks.used), "")
    for executor, rank in ranks.held.items():
        hosts[rank] = state.workers[app.executors[executor].worker].host
    return {"hosts": list(hosts.values()), "port": FIRST_PORT + (app.submitted + first) % PORTS}


def _nearness(state: ClusterState, held: Allocation, tasks: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a `Nearness` (semantics L7)."""
    worker, racks = state.workers[held.worker], state.indexes.places.racks_of(tasks)
    return {
        "tasks": tasks,
        "racks": {host: racks.get(host, "") for host in tasks if host in state.indexes.places.by_host},
        "host": worker.host,
        "rack": worker.rack,
        "host_wait_ms": state.settings.locality_wait_host_ms,
        "rack_wait_ms": state.settings.locality_wait_rack_ms,
    }


def changed_grants(events: Iterable[facts.Event], state: ClusterState, *, settled_at: int = 0) -> GrantChanges:
    """The changes of the grants by the events of a turn; `state` has folded them all."""
    changes = GrantChanges({}, [], [])
    for event in events:
        match event:
            case facts.AppRegistered() | facts.AppAdmitted():
                pass
            case (
                facts.ExecutorAllocated(executor=name)
                | facts.ExecutorRevoked(executor=name)
                | facts.RevocationWithdrawn(executor=name)
                | facts.DriverAllocated(driver=name)
                | facts.TaskRequeued(executor=name)
            ):
                held = state.executors.get(name) or state.drivers.get(name)
                if held is not None:
                    changes.put(held.worker, name, _grant(state, held, settled_at))
            case facts.ExecutorRemoved(executor=name) | facts.DriverRemoved(driver=name):
                changes.put(event.worker, name, None)
                _tell_gang(changes, state, event.app, settled_at)
            case (
                facts.AppRemoved()
                | facts.AppExpired()
                | facts.AppWarned()
                | facts.AppSignalled()
                | facts.TaskCancelled()
                | facts.AppRequeued()
            ) if event.app in state.apps:
                _tell(changes, state, state.apps[event.app].allocations(), settled_at)
            case _:
                _note_others(changes, event, state, settled_at)
    return changes


def _note_others(changes: GrantChanges, event: facts.Event, state: ClusterState, settled_at: int) -> None:
    """What an event changes that is of no app."""
    match event:
        case facts.ClusterConfigured():
            _tell_leaving(changes, state, settled_at)
        case facts.WorkerRegistered():
            changes.joined.append(event.worker)
        case facts.WorkerRemoved():
            changes.leave(event.worker)
        case _:
            pass


def _tell_leaving(changes: GrantChanges, state: ClusterState, settled_at: int) -> None:
    """Whoever leaves is told the grace that is set now."""
    for worker in state.indexes.leaving:
        there = (*worker.executors.values(), *worker.drivers.values())
        _tell(changes, state, [held for held in there if held.status == "stopping"], settled_at)


def _tell_gang(changes: GrantChanges, state: ClusterState, name: str, settled_at: int) -> None:
    """The executors of the app, if it is a gang, are told where the others are, now that one is gone (G8)."""
    app = state.apps.get(name)
    if app is not None and app.spec.gang:
        _tell(changes, state, app.executors.values(), settled_at)


def _tell(changes: GrantChanges, state: ClusterState, those: Iterable[Allocation], settled_at: int) -> None:
    """Write the grants of those anew."""
    for held in those:
        changes.put(held.worker, held.id, _grant(state, held, settled_at))


def all_grants(state: ClusterState, *, settled_at: int = 0) -> dict[str, dict[str, str]]:
    """Worker -> executor or driver -> its grant; `STOP` if it is stopping."""
    grants: dict[str, dict[str, str]] = {worker: {} for worker in state.workers}
    for held in (*state.executors.values(), *state.drivers.values()):
        grants[held.worker][held.id] = _grant(state, held, settled_at)
    return grants
