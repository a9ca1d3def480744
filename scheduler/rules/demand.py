"""How an app's demand moves: stated anew, by what of it has ended, by its backlog and by time (semantics L1, L6, O4).

Like `decide`, these functions read the state and answer with events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from scheduler.model.commands import ReportBacklog, ScaleApp
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import (
    AppAdmitted,
    AppChanged,
    Event,
    ExecutorAllocated,
    ExecutorChanged,
    ExecutorRemoved,
    ExecutorRevoked,
    ExecutorsRequested,
    Wanted,
)
from scheduler.model.resources import Resources
from scheduler.rules.entities import Allocation, App
from scheduler.rules.placement.delay import served_by
from scheduler.rules.placement.sizing import requested_resources
from scheduler.rules.placement.yarn import Preferences, rethought, without_one
from scheduler.rules.state import ClusterState
from scheduler.rules.validate import MAX_EXECUTORS, MAX_TASKS, check_name, check_range

MAX_HOSTS = 10_000
"""How many hosts an app may name."""
MAX_NEAR = 10_000
"""How many executors of an app may have preferred hosts: each is a request of its own."""


def demand(app: App, **changes: Any) -> AppChanged:  # noqa: ANN401 - the fields of the event
    """The app's demand in full, some of it changed (semantics O4)."""
    stated: dict[str, Any] = {
        "app": app.spec.app,
        "requested_cores": app.requested.cores,
        "requested_memory_mb": app.requested.memory_mb,
        "done_cores": app.done_cores,
        "executor_limit": app.executor_limit,
        "executor_cores": None if app.unit is None else app.unit.cores,
        "executor_memory_mb": None if app.unit is None else app.unit.memory_mb,
        "preferring_tasks": app.preferring_tasks,
        "preferred_hosts": app.preferred_hosts,
        "backlog_executors": app.backlog_executors,
        "next_step": app.next_step,
        "target": app.target,
    }
    return AppChanged(**{**stated, **changes})


def scaled(state: ClusterState, app: App, command: ScaleApp) -> list[Event]:
    """The demand as it is stated from now on (semantics L1, O4, P5); a lower one stops nothing that runs.

    An app whose executors were sized by the scheduler gets minimum executors from now on, so that a
    number of them says how much that is; its request becomes what they make: at once where that is lower or the app is
    pending, as far as there is room where it is higher (`wishes`). One that fixed its executors keeps within the cores
    it was submitted with, as in Spark.

    Raises: InvalidCommand.
    """
    executors, spec = command.executors, app.spec
    if executors is not None:
        check_range("executors", executors, 0, MAX_EXECUTORS)
    _check_preferences(app, command)
    preferring = command.preferring_tasks
    if preferring is None:
        preferring = min(sum(command.prefer.values()), max(spec.tasks, *command.prefer.values(), 0))
    changes: dict[str, Any] = {
        "executor_limit": executors,
        "preferring_tasks": preferring,
        "preferred_hosts": dict(sorted(command.prefer.items())),
    }
    if spec.elastic is not None:
        least, most, *_ = spec.elastic
        if executors is None or not least <= executors <= most:
            raise InvalidCommand(
                f"app {spec.app!r} is elastic; its number of executors must be between {least} and {most}"
            )
    elif executors is not None and spec.sizing == "computed":
        unit = app.unit or requested_resources(
            state.settings, state.settings.min_executor_cores, spec.memory_per_task_mb
        )
        changes |= {"executor_cores": unit.cores, "executor_memory_mb": unit.memory_mb}
    elif app.follows_limit:
        raise InvalidCommand(
            f"app {spec.app!r} has a stated number of executors and cannot return to no limit; give a number"
        )
    if spec.sizing != "one-per-worker" and not spec.unlimited:
        changes |= _requested(state, app, executors, changes)
    changed = demand(app, **changes)
    return [] if changed == demand(app) else [changed]


def _requested(state: ClusterState, app: App, executors: int | None, changes: dict[str, Any]) -> dict[str, Any]:
    """What a demand of so many executors requests now: less at once, more as far as there is room later (L1, S5)."""
    if executors is None and app.executor_limit is None:
        return {}
    cores = changes.get("executor_cores") or (app.unit.cores if app.unit is not None else 0)
    most = app.spec.cores // cores if app.fixed else MAX_EXECUTORS
    target = most if executors is None else min(executors, most)
    stated = min(_stated(app), most)
    more: dict[str, Any] = {"done_cores": 0, "target": None}
    if target > stated and app.admitted and state.settings.admission == "fair":
        more |= {"executor_limit": stated, "target": target}
    request = _request(app, {**changes, **more})
    return {**more, "requested_cores": request.cores, "requested_memory_mb": request.memory_mb}


def _stated(app: App) -> int:
    """How many executors of one size the app requests now."""
    if app.executor_limit is not None:
        return app.executor_limit
    cores = app.requested.cores - app.spec.driver_cores
    return cores // app.need.executor.cores if app.need.executor.cores else 0


def after_removal(app: App) -> list[Event]:
    """What the end of executors, their tasks not all done, makes of the app's demand.

    What earlier ones were done with is owed again (semantics S6).
    """
    return [demand(app, done_cores=0)] if app.done_cores else []


def backlog(app: App, executor: Allocation, command: ReportBacklog) -> list[Event]:
    """What an executor's word on the work there is means for an elastic app (semantics L6).

    Fewer executors than are asked for: the demand falls at once, and growth starts over at one.
    """
    check_range("waiting tasks", command.waiting, 0, MAX_TASKS)
    check_range("running tasks", command.running, 0, MAX_TASKS)
    if app.ended is not None or not app.elastic or app.unit is None or executor.status == "stopping":
        return []
    events: list[Event] = []
    if command.idle != (executor.idle_since is not None):
        events.append(ExecutorChanged(executor=executor.id, idle=command.idle))
    wanted = executors_for(app, command.waiting + command.running)
    if wanted == app.backlog_executors:
        return events
    changes: dict[str, Any] = {"backlog_executors": wanted}
    if wanted <= (app.executor_limit or 0):
        changes |= {"executor_limit": wanted, "next_step": 1, "target": None}
    changes["done_cores"] = 0
    request = _request(app, changes)
    changes |= {"requested_cores": request.cores, "requested_memory_mb": request.memory_mb}
    return [*events, demand(app, **changes)]


def executors_for(app: App, tasks: int) -> int:
    """How many executors so many tasks call for, within the app's bounds (semantics L6)."""
    least, most, *_ = app.spec.elastic or (0, 0)
    return max(least, min(most, -(-tasks // (app.unit.cores if app.unit is not None else 1))))


def requests(
    state: ClusterState, event: AppAdmitted | AppChanged | ExecutorAllocated | ExecutorRemoved, at: int
) -> ExecutorsRequested | None:
    """The pending requests of an app that prefers hosts, if `event`, folded at `at` (ms), makes them others (L1, L2).

    There are as many as executors are lacking. A new demand has all of them thought over; an executor that comes
    serves one of them (L5), one that leaves only adds what is missing.
    """
    app = state.apps.get(event.app)
    if app is None or app.plain or not (app.wanted or app.preferred_hosts):
        return None
    pending: Sequence[Wanted] = app.wanted
    if isinstance(event, ExecutorAllocated) and pending:
        worker = state.workers[event.worker]
        pending = without_one(pending, served_by(worker, pending, state.settings, state.places, at))
    if app.unit is None or not app.preferred_hosts or not app.lacking:
        pending = ()
    elif isinstance(event, AppChanged) or sum(wanted.number for wanted in pending) != app.lacking:
        pending = rethought(
            pending,
            app.lacking,
            Preferences(app.preferring_tasks, app.preferred_hosts, app.unit.cores),
            _by_host(state, app),
            racks=state.places.racks_of(app.preferred_hosts),
            at=at,
        )
    return None if tuple(pending) == app.wanted else ExecutorsRequested(app=app.spec.app, pending=tuple(pending))


MOVE_REQUESTS = frozenset({AppAdmitted, AppChanged, ExecutorAllocated, ExecutorRemoved})
"""What may change how many executors an app lacks, or where it prefers them."""


def _by_host(state: ClusterState, app: App) -> dict[str, int]:
    """How many executors the app has on each host, but for those that were told to stop."""
    by_host: dict[str, int] = {}
    for executor in app.executors.values():
        if executor.status != "stopping":
            host = state.workers[executor.worker].host
            by_host[host] = by_host.get(host, 0) + 1
    return by_host


def with_request(state: ClusterState, event: ExecutorAllocated) -> ExecutorAllocated:
    """The grant with the request that it raises, if it goes beyond it: cores (A6), or memory a worker (S5, O4)."""
    app = state.apps[event.app]
    if app.plain or app.sized_by_scheduler:
        return event
    held = app.granted + Resources(app.done_cores + event.resources.cores, event.resources.memory_mb)
    return event if app.requested.covers(held) else replace(event, requested=app.requested.at_least(held))


def given_back(state: ClusterState, at: int) -> Iterator[ExecutorRevoked]:
    """The executors of elastic apps that were idle for `executor_idle_timeout_s`, unless the demand counts on them (L6).

    In the order of the apps' admission, of each the one idle longest first.
    """
    for app in state.elastic_due(at):
        yield from _given_back(state, app, at)


def grown(state: ClusterState, at: int) -> Iterator[AppChanged]:
    """The requests that rise: of demands stated, in the order of the statements, then of elastic apps (L1, L6)."""
    for app in state.wishing():
        yield from _wish(state, app)
    for app in state.elastic_due(at):
        yield from _growth(state, app, at)


def _wish(state: ClusterState, app: App) -> Iterator[AppChanged]:
    """The stated demand, as far as the company and the cluster have room (semantics L1)."""
    limit, target = app.executor_limit or 0, app.target or 0
    more = _room_for(state, app, target - limit)
    if more:
        reached = limit + more == target
        request = _request(app, {"executor_limit": limit + more})
        yield demand(
            app,
            executor_limit=limit + more,
            target=None if reached else target,
            requested_cores=request.cores,
            requested_memory_mb=request.memory_mb,
        )


def _growth(state: ClusterState, app: App, at: int) -> Iterator[AppChanged]:
    """The next step of an elastic app: 1, 2, 4, 8 … more, `elastic_step_ms` apart, as far as there is room (L6)."""
    limit, wanted = app.executor_limit or 0, app.backlog_executors or 0
    if limit >= wanted or at < app.asked_at + state.settings.elastic_step_ms or _others_wait(state, app):
        return
    more = _room_for(state, app, min(app.next_step, wanted - limit))
    if more:
        request = _request(app, {"executor_limit": limit + more})
        yield demand(
            app,
            executor_limit=limit + more,
            next_step=2 * app.next_step if more == app.next_step else 1,
            requested_cores=request.cores,
            requested_memory_mb=request.memory_mb,
        )


def withdrawn(state: ClusterState, admitted: AppAdmitted) -> Iterator[AppChanged]:
    """What elastic apps asked for beyond their least, and were not granted, gives way to another app (semantics E7)."""
    for app in list(state.elastics.get(admitted.company, {}).values()):
        if app.spec.app != admitted.app:
            yield from _lowered(app, sum(one.status != "stopping" for one in app.executors.values()))


def _lowered(app: App, executors: int) -> Iterator[AppChanged]:
    """The request of an elastic app lowered to so many executors, at least to its least number."""
    least = app.spec.elastic.least if app.spec.elastic is not None else 0
    limit = max(least, executors)
    if limit < (app.executor_limit or 0):
        yield _with_limit(app, limit)


def lowered_by_loss(app: App) -> Iterator[AppChanged]:
    """The elastic app lost an executor that it was lent (semantics E7)."""
    yield from _lowered(app, sum(one.status != "stopping" for one in app.executors.values()))


def raised_by_return(app: App) -> Iterator[AppChanged]:
    """The elastic app keeps an executor that it was to lose (semantics E7)."""
    most = app.spec.elastic.most if app.spec.elastic is not None else 0
    executors = sum(one.status != "stopping" for one in app.executors.values())
    if (app.executor_limit or 0) < min(most, executors):
        yield _with_limit(app, min(most, executors))


def _with_limit(app: App, limit: int) -> AppChanged:
    request = _request(app, {"executor_limit": limit})
    return demand(
        app,
        executor_limit=limit,
        next_step=1,
        target=None,
        requested_cores=request.cores,
        requested_memory_mb=request.memory_mb,
    )


def _others_wait(state: ClusterState, app: App) -> bool:
    """Whether another app of the company is pending, has a reservation, or fits nowhere now (semantics L6)."""
    if state.queue.has_pending(app.spec.company):
        return True
    return any(
        need.least.cores and not state.fleet.has_room(need.least) and positions != [app.admitted]
        for (company, need, _), positions in state.owed.lists.items()
        if company == app.spec.company
    )


def _given_back(state: ClusterState, app: App, at: int) -> Iterator[ExecutorRevoked]:
    idle_before = at - state.settings.executor_idle_timeout_s * 1000
    held = [executor for executor in app.executors.values() if executor.status != "stopping"]
    idle = [one for one in held if one.idle_since is not None and one.idle_since <= idle_before]
    idle.sort(key=lambda executor: executor.idle_since or 0)
    for executor in idle[: max(0, len(held) - (app.executor_limit or 0))]:
        yield ExecutorRevoked(app=app.spec.app, executor=executor.id, worker=executor.worker, reason="idle")


def _request(app: App, changes: dict[str, Any]) -> Resources:
    """What an app that is asked for as a number of executors requests: those, and its driver (semantics L1, O4, S5).

    Executors beyond the number are claimed until they are gone.
    """
    spec, limit = app.spec, changes.get("executor_limit", app.executor_limit)
    unit = app.unit or Resources(changes["executor_cores"], changes["executor_memory_mb"])
    request = unit * (limit or 0)
    if app.fixed:
        number = spec.cores // unit.cores if limit is None else min(limit, spec.cores // unit.cores)
        request = Resources(spec.cores if limit is None else number * unit.cores, number * unit.memory_mb)
    return request + Resources(spec.driver_cores, spec.driver_memory_mb) if spec.driver else request


def _usable(app: App, unit: Resources, more: int) -> int:
    """How many executors the app could still use if it requested so many more."""
    limit = (app.executor_limit or 0) + more
    request = _request(app, {"executor_limit": limit})
    left = request - app.granted - Resources(app.done_cores)
    if app.spec.driver and app.driver is None:
        left -= Resources(app.spec.driver_cores, app.spec.driver_memory_mb)
    return max(0, min(left.holds(unit), limit - len(app.executors)))


def _room_for(state: ClusterState, app: App, most: int) -> int:
    """How many executors more, at most so many, the app may ask for now (semantics L1, L6).

    As many as C4 or C6 lets pass, and as stay within the company's part or, with all claims, within the cluster.
    """
    if most <= 0 or app.unit is None:
        return 0
    if state.settings.admission == "open":
        return most
    company, unit = app.spec.company, app.unit
    claims, total = state.claims, state.fleet.total
    beyond = state.queue.may_borrow(company)
    quota, part = state.queue.companies[company].limit, state.queue.part(company)
    claimed, cluster = claims.of(company).claimed, claims.total.claimed
    more = 0
    while more < most:
        added = unit * (_usable(app, unit, more + 1) - app.usable)
        if not (beyond or quota.admits(added, lent=False)):
            break
        if not part.covers(claimed + added) and not total.covers(cluster + added):
            break
        more += 1
    return more


def _check_preferences(app: App, command: ScaleApp) -> None:
    if not command.prefer:
        return
    if command.executors is None or app.spec.sizing == "one-per-worker":
        raise InvalidCommand(
            "hosts can be preferred only with a number of executors of one size; give --executors N, not none"
        )
    if command.executors > MAX_NEAR:
        raise InvalidCommand(f"at most {MAX_NEAR} executors can have preferred hosts, not {command.executors}")
    if len(command.prefer) > MAX_HOSTS:
        raise InvalidCommand(f"at most {MAX_HOSTS} hosts can be preferred, not {len(command.prefer)}")
    for host, tasks in command.prefer.items():
        check_name("a preferred host", host)
        check_range(f"tasks that prefer {host}", tasks, 0, MAX_TASKS)
    if command.preferring_tasks is not None:
        check_range("tasks with a preference", command.preferring_tasks, 0, MAX_TASKS)
