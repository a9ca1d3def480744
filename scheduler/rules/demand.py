"""How an app's demand moves: stated anew, by what of it has ended, by its backlog and by time (semantics L1, L6, O4).

Like `decide`, these functions read the state and answer with events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from scheduler.model.commands import ReportBacklog, ScaleApp
from scheduler.model.errors import InvalidCommand, QuotaExceeded
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
from scheduler.model.resources import NOTHING, Resources
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
    }
    return AppChanged(**{**stated, **changes})


def scaled(state: ClusterState, app: App, command: ScaleApp) -> list[Event]:
    """The demand as it is stated from now on (semantics L1, O4, P5); a lower one stops nothing that runs.

    An app whose executors were sized by the scheduler gets minimum executors from now on, so that a
    number of them says how much that is; its request becomes what they make. One that fixed its
    executors keeps within the cores it was submitted with, as in Spark.

    Raises: InvalidCommand, or QuotaExceeded where the company may not hold that much (C4).
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
        changes |= {"executor_cores": unit.cores, "executor_memory_mb": unit.memory_mb, "done_cores": 0}
    elif app.follows_limit:
        raise InvalidCommand(
            f"app {spec.app!r} has a stated number of executors and cannot return to no limit; give a number"
        )
    if executors is not None and (app.elastic or spec.sizing == "computed"):
        request = _request(app, changes)
        if not app.requested.covers(request):
            _check_quota(state, app, request)
        changes |= {"requested_cores": request.cores, "requested_memory_mb": request.memory_mb}
    changed = demand(app, **changes)
    return [] if changed == demand(app) else [changed]


def after_removal(app: App, gone: Collection[Allocation]) -> list[Event]:
    """What the end of these executors, their tasks not all done, makes of the app's demand.

    What earlier ones were done with is owed again (semantics S6); executors beyond a demand that was
    lowered take their part of the request with them (O4).
    """
    request = app.requested
    if app.follows_limit:
        request = _request(app, {"done_cores": 0}, gone)
    if not app.done_cores and request == app.requested:
        return []
    return [demand(app, done_cores=0, requested_cores=request.cores, requested_memory_mb=request.memory_mb)]


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
        changes |= {"executor_limit": wanted, "next_step": 1}
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


def due(state: ClusterState, at: int) -> Iterator[Event]:
    """What time has brought for elastic apps, in the order of their admission (semantics L6, T1).

    While the backlog calls for more executors than are asked for, 1, 2, 4, 8 … more, `elastic_step_ms`
    apart, as far as the cluster has room (A3) and the company may hold it (C4); an executor that was idle
    for `executor_idle_timeout_s` is given back unless the demand still counts on it.
    """
    for app in state.elastic_due(at):
        yield from _growth(state, app, at)
        yield from _given_back(state, app, at)


def _growth(state: ClusterState, app: App, at: int) -> Iterator[AppChanged]:
    limit, wanted = app.executor_limit or 0, app.backlog_executors or 0
    if limit >= wanted or at < app.asked_at + state.settings.elastic_step_ms:
        return
    for more in range(min(app.next_step, wanted - limit), 0, -1):
        request = _request(app, {"executor_limit": limit + more})
        if _has_room(state, app, request):
            step = 2 * app.next_step if more == app.next_step else 1
            yield demand(
                app,
                executor_limit=limit + more,
                next_step=step,
                requested_cores=request.cores,
                requested_memory_mb=request.memory_mb,
            )
            return


def _given_back(state: ClusterState, app: App, at: int) -> Iterator[ExecutorRevoked]:
    idle_before = at - state.settings.executor_idle_timeout_s * 1000
    held = [executor for executor in app.executors.values() if executor.status != "stopping"]
    idle = [one for one in held if one.idle_since is not None and one.idle_since <= idle_before]
    idle.sort(key=lambda executor: executor.idle_since or 0)
    for executor in idle[: max(0, len(held) - (app.executor_limit or 0))]:
        yield ExecutorRevoked(app=app.spec.app, executor=executor.id, worker=executor.worker, reason="idle")


def _request(app: App, changes: dict[str, Any], gone: Collection[Allocation] = ()) -> Resources:
    """What an app that is asked for as a number of executors holds: those it has, and those it is owed (O4).

    Executors beyond the number count until they are gone; what was done with (S6) is not owed again.
    """
    limit = changes.get("executor_limit", app.executor_limit) or 0
    done = changes.get("done_cores", app.done_cores)
    unit = app.unit or Resources(changes["executor_cores"], changes["executor_memory_mb"])
    executors_done = done // unit.cores
    owed = max(0, limit - (len(app.executors) - len(gone)) - executors_done)
    held = app.granted - sum((executor.resources for executor in gone), NOTHING)
    request: Resources = held + unit * (executors_done + owed) + Resources(done - executors_done * unit.cores)
    if app.spec.driver and app.driver is None:
        request += Resources(app.spec.driver_cores, app.spec.driver_memory_mb)
    return request


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


def _check_quota(state: ClusterState, app: App, request: Resources) -> None:
    """Raises: QuotaExceeded or InvalidCommand if the company may not hold that much, its other apps included (C4).

    As at an admission, a default quota stops nobody who occupies nothing else, nor a company that is alone.
    """
    company = state.companies[app.spec.company]
    bought = company.spec
    amounts = bought.amounts
    if amounts is not None and request.cores > amounts.cores:
        raise QuotaExceeded(bought.company, "cores", request.cores, amounts.cores)
    if amounts is not None and request.memory_mb > amounts.memory_mb:
        raise QuotaExceeded(bought.company, "MiB of memory", request.memory_mb, amounts.memory_mb)
    if not app.admitted or state.settings.admission == "open" or bought.borrow:
        return
    others = company.balance.requested - app.requested
    by_default = amounts is None and bought.part is None
    if by_default and (len(state.companies) == 1 or others == NOTHING):
        return
    held = others + request
    if not state.quota(bought.company).covers(held):
        raise InvalidCommand(
            f"company {bought.company!r} would hold {held.cores} cores and {held.memory_mb} "
            f"MiB, which is beyond its quota; scale {app.spec.app!r} to less, or end others of its apps first"
        )


def _has_room(state: ClusterState, app: App, request: Resources) -> bool:
    """Whether an elastic app may grow to that: the cluster has room (A3) and the company may hold it (C4, C6)."""
    if state.settings.admission == "open":
        return True
    company = state.companies[app.spec.company]
    more = request - app.requested
    if not state.fleet.total.covers(state.balance.requested + more):
        return False
    if company.spec.borrow and state.queue.first() is None:
        return True
    return state.quota(app.spec.company).covers(company.balance.requested + more)
