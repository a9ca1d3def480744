"""How the demand of an app changes: by command, by its ended executors, by its backlog and with time (L1, L6, O4).

Like `decide`, these functions read the state and return events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from scheduler.model.commands import ReportBacklog, ScaleApp
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import (
    AppAdmitted,
    AppChanged,
    Computed,
    Event,
    ExecutorAllocated,
    ExecutorChanged,
    ExecutorRemoved,
    ExecutorRevoked,
    ExecutorsRequested,
    Fixed,
    OnePerWorker,
    Sizing,
    Wanted,
)
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities import Allocation, App
from scheduler.rules.kinds import for_tasks
from scheduler.rules.placement.delay import served_by
from scheduler.rules.placement.sizing import requested_resources
from scheduler.rules.placement.yarn import Preferences, rethought, without
from scheduler.rules.state import ClusterState
from scheduler.rules.submission import check_purchase
from scheduler.rules.validate import MAX_EXECUTORS, MAX_TASKS, check_name, check_range

MAX_HOSTS = 10_000
MAX_NEAR = 10_000
"""The most executors of an app with preferred hosts: each is a request of its own."""


def demand(app: App, **changes: Any) -> AppChanged:  # noqa: ANN401 - the fields of the event
    """The app's demand in full, with these changes (semantics O4)."""
    stated = {name: getattr(app, name) for name in AppChanged.__struct_fields__ if name != "app"}
    return AppChanged(app=app.spec.app, **{**stated, **changes})


def scaled(state: ClusterState, app: App, command: ScaleApp) -> list[Event]:
    """The demand that the command states (semantics L1, O4, P5); a lower one stops no executor.

    A computed app gets executors of the minimum size from now on, and its request becomes that of their number. An app
    of fixed executors keeps the request of its submission, as in Spark.

    Raises: InvalidCommand, or QuotaExceeded if the company may not hold that much (C4).
    """
    executors = command.executors
    check_range("executors", executors, 0, MAX_EXECUTORS)
    _check_preferences(app, command)
    preferring = command.preferring_tasks
    if preferring is None:
        preferring = min(sum(command.prefer.values()), max(app.spec.tasks, *command.prefer.values(), 0))
    sizing, request, done_cores = _sizing(state, app, executors), app.requested, app.done_cores
    if executors is not None and isinstance(sizing, Fixed) and sizing.counted:
        done_cores = 0
        request = _request(app, sizing, executors, done_cores)
        if not app.requested.covers(request):
            _check_quota(state, app, request)
    changed = demand(
        app,
        requested=request,
        sizing=sizing,
        done_cores=done_cores,
        executor_limit=executors,
        preferring_tasks=preferring,
        preferred_hosts=dict(sorted(command.prefer.items())),
    )
    return [] if changed == demand(app) else [changed]


def _sizing(state: ClusterState, app: App, executors: int | None) -> Sizing:
    """The sizing under that number of executors. Raises: InvalidCommand if the app cannot have that number."""
    spec, sizing, settings = app.spec, app.sizing, state.settings
    if spec.elastic is not None:
        least, most, *_ = spec.elastic
        if executors is None or not least <= executors <= most:
            raise InvalidCommand(
                f"app {spec.app!r} is elastic; its number of executors must be between {least} and {most}"
            )
    elif isinstance(sizing, Computed) and executors is not None:
        each = requested_resources(settings, settings.min_executor_cores, sizing.memory_per_task_mb)
        return Fixed(each + Resources(others=for_tasks(sizing, each.cores)), counted=True)
    elif isinstance(sizing, Fixed) and sizing.counted and executors is None:
        raise InvalidCommand(
            f"app {spec.app!r} has a stated number of executors and cannot return to no limit; give a number"
        )
    return sizing


def after_removal(app: App, gone: Collection[Allocation]) -> list[Event]:
    """The app's demand once these executors, whose tasks are not all done, have ended.

    The cores of executors that had ended before are owed again (semantics S6). Executors above a lowered number reduce
    the request (O4).
    """
    request, sizing = app.requested, app.sizing
    if isinstance(sizing, Fixed) and sizing.counted:
        request = _request(app, sizing, app.executor_limit, 0, gone)
    if not app.done_cores and request == app.requested:
        return []
    return [demand(app, done_cores=0, requested=request)]


def backlog(app: App, executor: Allocation, command: ReportBacklog) -> list[Event]:
    """The demand of an elastic app whose executor reports its waiting and running tasks (semantics L6).

    If they need fewer executors, the demand falls at once and the step returns to one.
    """
    check_range("waiting tasks", command.waiting, 0, MAX_TASKS)
    check_range("running tasks", command.running, 0, MAX_TASKS)
    bounds, sizing = app.spec.elastic, app.sizing
    if app.ended is not None or bounds is None or not isinstance(sizing, Fixed) or executor.status == "stopping":
        return []
    events: list[Event] = []
    if command.idle != (executor.idle_since is not None):
        events.append(ExecutorChanged(executor=executor.id, idle=command.idle))
    needed = -(-(command.waiting + command.running) // sizing.each.cores)
    wanted = max(bounds.least, min(bounds.most, needed))
    if wanted == app.backlog_executors:
        return events
    limit, step = app.executor_limit or 0, app.next_step
    if wanted <= limit:
        limit, step = wanted, 1
    request = _request(app, sizing, limit, app.done_cores)
    changed = demand(app, backlog_executors=wanted, executor_limit=limit, next_step=step, requested=request)
    return [*events, changed]


def requests(
    state: ClusterState, event: AppAdmitted | AppChanged | ExecutorAllocated | ExecutorRemoved, at: int
) -> ExecutorsRequested | None:
    """The pending requests of an app that prefers hosts once `event` is folded at `at` (ms); None = no change (L1, L2).

    There is one for each missing executor. A new demand plans all of them again. A new executor serves one of them
    (L5); the end of an executor only adds what is missing.
    """
    app = state.apps.get(event.app)
    if app is None or not (app.wanted or app.preferred_hosts):
        return None
    pending: Sequence[Wanted] = app.wanted
    if isinstance(event, ExecutorAllocated) and pending:
        worker = state.workers[event.worker]
        pending = without(pending, 1, [served_by(worker, pending, state.settings, state.places, at)])
    if not isinstance(app.sizing, Fixed) or not app.preferred_hosts or not app.lacking:
        pending = ()
    elif isinstance(event, AppChanged) or sum(wanted.number for wanted in pending) != app.lacking:
        pending = rethought(
            pending,
            app.lacking,
            Preferences(app.preferring_tasks, app.preferred_hosts, app.sizing.each.cores),
            _by_host(state, app),
            racks=state.places.racks_of(app.preferred_hosts),
            at=at,
        )
    return None if tuple(pending) == app.wanted else ExecutorsRequested(app=app.spec.app, pending=tuple(pending))


MOVE_REQUESTS = frozenset({AppAdmitted, AppChanged, ExecutorAllocated, ExecutorRemoved})
"""The events that may change the number of missing executors, or the preferred hosts."""


def _by_host(state: ClusterState, app: App) -> Counter[str]:
    """The number of the app's executors on each host, without those that are stopping."""
    return Counter(state.workers[one.worker].host for one in app.executors.values() if one.status != "stopping")


def with_request(state: ClusterState, event: ExecutorAllocated) -> ExecutorAllocated:
    """The grant; with a larger request if it exceeds the present one: in cores (A6), or in memory (S5, O4)."""
    app = state.apps[event.app]
    if isinstance(app.sizing, Computed):
        return event
    held = app.granted + event.resources + Resources(app.done_cores)
    return event if app.requested.covers(held) else replace(event, requested=app.requested.at_least(held))


def due(state: ClusterState, at: int) -> Iterator[Event]:
    """The growth and the idle executors of elastic apps at time `at` (ms), in order of admission (semantics L6, T1).

    While the backlog needs more executors, the app asks for 1, 2, 4, 8 … more, `elastic_step_ms` apart, as far as the
    cluster has room (A3) and the company may hold it (C4). An executor that was idle for `executor_idle_timeout_s` is
    stopped unless the demand includes it.
    """
    for app in state.elastic_due(at):
        yield from _growth(state, app, at)
        yield from _given_back(state, app, at)


def _growth(state: ClusterState, app: App, at: int) -> Iterator[AppChanged]:
    limit, wanted, sizing = app.executor_limit or 0, app.backlog_executors or 0, app.sizing
    if limit >= wanted or at < app.asked_at + state.settings.elastic_step_ms or not isinstance(sizing, Fixed):
        return
    for more in range(min(app.next_step, wanted - limit), 0, -1):
        request = _request(app, sizing, limit + more, app.done_cores)
        if _has_room(state, app, request):
            step = 2 * app.next_step if more == app.next_step else 1
            yield demand(app, executor_limit=limit + more, next_step=step, requested=request)
            return


def _given_back(state: ClusterState, app: App, at: int) -> Iterator[ExecutorRevoked]:
    idle_before = at - state.settings.executor_idle_timeout_s * 1000
    held = [executor for executor in app.executors.values() if executor.status != "stopping"]
    idle = [one for one in held if one.idle_since is not None and one.idle_since <= idle_before]
    idle.sort(key=lambda executor: executor.idle_since or 0)
    for executor in idle[: max(0, len(held) - (app.executor_limit or 0))]:
        yield ExecutorRevoked(app=app.spec.app, executor=executor.id, worker=executor.worker, reason="idle")


def _request(
    app: App, sizing: Fixed, executors: int | None, done_cores: int, gone: Collection[Allocation] = ()
) -> Resources:
    """The request for that number of executors, once those `gone` have ended (semantics O4).

    It counts the executors above the number until they end. Cores that are done (S6) are not owed again.
    """
    each = sizing.each
    done = done_cores // each.cores
    owed = max(0, (executors or 0) - (len(app.executors) - len(gone)) - done)
    held = app.granted - sum((executor.resources for executor in gone), NOTHING)
    request: Resources = held + each * (done + owed) + Resources(done_cores - done * each.cores)
    return request if app.spec.driver is None or app.driver is not None else request + app.spec.driver


def _check_preferences(app: App, command: ScaleApp) -> None:
    if not command.prefer:
        return
    if command.executors is None or isinstance(app.sizing, OnePerWorker):
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
    check_range("tasks with a preference", command.preferring_tasks, 0, MAX_TASKS)


def _check_quota(state: ClusterState, app: App, request: Resources) -> None:
    """Raises: QuotaExceeded or InvalidCommand if the company may not hold the request beside its other apps (C4).

    As at admission, a default quota binds only a company that holds something else and is not alone.
    """
    company = state.companies[app.spec.company]
    check_purchase(company, request)
    bought = company.spec
    if not app.admitted or state.settings.admission == "open" or bought.borrow:
        return
    others = company.balance.requested - app.requested
    by_default = bought.amounts is None and bought.part is None
    if by_default and (len(state.companies) == 1 or others == NOTHING):
        return
    held = others + request
    if not state.quota(bought.company).covers(held):
        raise InvalidCommand(
            f"company {bought.company!r} would hold {held.cores} cores and {held.memory_mb} "
            f"MiB, which is beyond its quota; scale {app.spec.app!r} to less, or end others of its apps first"
        )


def _has_room(state: ClusterState, app: App, request: Resources) -> bool:
    """Whether an elastic app may grow to that request: the cluster has room (A3), the company may hold it (C4, C6)."""
    if state.settings.admission == "open":
        return True
    company = state.companies[app.spec.company]
    more = request - app.requested
    if not state.fleet.total.covers(state.balance.requested + more):
        return False
    if company.spec.borrow and state.queue.first() is None:
        return True
    return state.quota(app.spec.company).covers(company.balance.requested + more)
