"""How the demand of an app changes: by command, by its ended executors, by its backlog and with time (L1, L6, O1).

Like `decide`, these functions read the state and return events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from scheduler.model.commands import ReportBacklog, ScaleApp
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import (
    AppAdmitted,
    AppChanged,
    AppRemoved,
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
from scheduler.model.resources import MAX_AMOUNT, NOTHING, Resources
from scheduler.model.terms import MAX_EXECUTORS
from scheduler.rules.admission.limits import most_app_cores
from scheduler.rules.checks.kinds import amounts_named
from scheduler.rules.checks.validate import (
    MAX_NAMED,
    MAX_NEAR,
    MAX_TASKS,
    check_name,
    check_number,
    check_preferences,
    check_range,
)
from scheduler.rules.command.programs import resized
from scheduler.rules.command.submission import check_sizes, check_stated_size
from scheduler.rules.entities.apps import App, Demand
from scheduler.rules.entities.grants import Allocation
from scheduler.rules.entities.labels import sought
from scheduler.rules.index.delay import served_by
from scheduler.rules.index.followers import workers_asked
from scheduler.rules.placement.sizing import requested_resources
from scheduler.rules.placement.yarn import Preferences, rethought, without
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.departments import names_above


def demand(app: App, **changes: Any) -> AppChanged:  # noqa: ANN401 - the fields of the event
    """The app's demand in full, with these changes (semantics O1)."""
    stated = {name: getattr(app.demand if name in Demand._fields else app, name) for name in _STATED}
    return AppChanged(app=app.id, **{**stated, **changes})


_STATED = [name for name in AppChanged.__struct_fields__ if name != "app"]


def scaled(state: ClusterState, app: App, command: ScaleApp) -> list[Event]:
    """The demand that the command states (semantics L1, O1, P4); a lower one stops no executor but those named (G1).

    A computed app gets executors of the minimum size from now on. The request becomes that of the number of executors:
    at once where it is lower or the app is pending, within `max_app_cores` (N2), as far as there is room where it is
    higher (`grown`). An app that fixed its executors keeps within the cores of its submission, as in Spark.

    Raises: InvalidCommand.
    """
    executors = command.executors
    check_range("executors", executors, 0, MAX_EXECUTORS)
    _check_preferences(app, command)
    preferring = command.preferring_tasks
    if preferring is None:
        preferring = min(sum(command.prefer.values()), max(app.spec.tasks, *command.prefer.values(), 0))
    sizing = _sized(state, app, command) if _states_size(command) else _sizing(state, app, executors)
    changes: dict[str, Any] = {"sizing": sizing, "executor_limit": executors}
    follows = isinstance(sizing, Fixed) and (sizing.counted or state.settings.admission == "fair")
    if follows and isinstance(sizing, Fixed) and (executors, app.executor_limit) != (None, None):
        changes |= _requested(state, app, sizing, executors)
    changes |= {"preferring_tasks": preferring, "preferred_hosts": dict(sorted(command.prefer.items()))}
    changed = demand(app, **changes)
    return [*([] if changed == demand(app) else [changed]), *stopped(app, command.stop)]


def stopped(app: App, names: Sequence[str]) -> list[Event]:
    """The named executors of the app are told to stop and hold their grants until they are gone (semantics P6, A5).

    Ids of other executors are ignored. Raises: InvalidCommand for what cannot be an id.
    """
    check_number("executors", names, MAX_NAMED)
    for name in names:
        if name not in app.executors:
            check_name("the id of an executor", name)
    named = [app.executors[name] for name in dict.fromkeys(names) if name in app.executors]
    return [
        ExecutorRevoked(app=app.id, executor=executor.id, worker=executor.worker)
        for executor in named
        if executor.status != "stopping"
    ]


def _requested(state: ClusterState, app: App, sizing: Fixed, executors: int | None) -> dict[str, Any]:
    """What a demand of so many executors requests now: less at once, more as far as there is room later (L1, S5)."""
    most = MAX_EXECUTORS if sizing.counted else (app.spec.cores or 0) // sizing.each.cores
    target = most if executors is None else min(executors, most)
    stated, driver = min(_stated(app, sizing), most), (app.spec.driver or NOTHING).cores
    changes: dict[str, Any] = {"done_cores": 0, "target": None}
    limit = executors
    if not app.admitted:
        stated = max(stated, (_most_cores(state, app) - driver) // sizing.each.cores)
    if target > stated and state.settings.admission == "fair":
        limit = stated
        changes |= {"executor_limit": stated, "target": target}
    return {**changes, "requested": _request(app, sizing, limit)}


def _stated(app: App, sizing: Fixed) -> int:
    """How many executors of that size the app requests now."""
    requested = app.requested - (app.spec.driver or NOTHING)
    number = requested.cores // app.need.executor.cores if app.need.executor.cores else 0
    if app.executor_limit is not None:
        number = app.executor_limit
    resized = isinstance(app.sizing, Fixed) and app.sizing.each != sizing.each
    return min(number, requested.holds(sizing.each)) if resized else number


def _states_size(command: ScaleApp) -> bool:
    return (command.executor_cores, command.executor_memory_mb, command.executor_resources) != (None, None, {})


def _sized(state: ClusterState, app: App, command: ScaleApp) -> Sizing:
    """The size that the command states, of executors that run a program (semantics G1). Raises: InvalidCommand."""
    sizing = _sizing(state, app, command.executors)
    if not app.spec.programs or not isinstance(sizing, Fixed):
        raise InvalidCommand(
            f"only executors that run a program can get another size, and those of app {app.id!r} run tasks"
        )
    named = command.executor_resources
    others = amounts_named(state.kinds, "an executor's", named, 1, MAX_AMOUNT) if named else None
    again = resized(app, sizing, command.executor_cores, command.executor_memory_mb, others)
    if again != sizing:
        check_stated_size(state, again, app.need.demand)
        check_sizes(state, state.companies[app.spec.company], again, app.spec.cores_per_task)
    return again


def _sizing(state: ClusterState, app: App, executors: int | None) -> Sizing:
    """The sizing under that number of executors. Raises: InvalidCommand if the app cannot have that number."""
    spec, sizing, settings = app.spec, app.sizing, state.settings
    if spec.elastic is not None:
        least, most, *_ = spec.elastic
        if executors is None or not least <= executors <= most:
            raise InvalidCommand(
                f"app {app.id!r} is elastic; its number of executors must be between {least} and {most}"
            )
    elif isinstance(sizing, Computed) and executors is not None:
        each = requested_resources(settings, 1, sizing.memory_per_task_mb, spec.cores_per_task, sizing.per_task)
        return Fixed(each, counted=True)
    elif isinstance(sizing, Fixed) and sizing.counted and executors is None:
        raise InvalidCommand(
            f"app {app.id!r} has a stated number of executors and cannot return to no limit; give a number"
        )
    return sizing


def after_removal(state: ClusterState, ended: Mapping[str, Sequence[Allocation]]) -> list[Event]:
    """The demands of apps once these executors of theirs, whose tasks are not all done, have ended (semantics S6).

    Of one that changes its place the own cores may be done already, since its successor found no task: they are owed
    again.
    """
    return [
        demand(app, done_cores=max(0, app.done_cores - moved))
        for name, executors in ended.items()
        if (app := state.apps[name]).done_cores
        and (moved := sum([one.resources.cores for one in executors if one.moved]))
    ]


def gave_back(app: App) -> list[Event]:
    """What follows when the program of an executor has ended with exit code 0 (semantics G2).

    The demand is one lower, unless the app holds more executors than it demands. An app that has neither a driver nor
    an owner is finished with the last one.
    """
    limit, target, sizing = app.executor_limit or 0, app.demand.target, app.sizing
    held = sum(executor.status != "stopping" for executor in app.executors.values())
    if held > limit or not isinstance(sizing, Fixed):
        return []
    limit = max(0, limit - 1)
    if target is not None:
        target = target - 1 if target - 1 > limit else None
    changed = demand(app, executor_limit=limit, target=target, requested=_request(app, sizing, limit), done_cores=0)
    last = not limit and target is None and len(app.executors) == 1
    if last and app.spec.driver is None and app.spec.owner_timeout_s is None:
        return [changed, AppRemoved(app=app.id, reason="finished")]
    return [changed]


def broken_up(app: App, gone: Sequence[Allocation]) -> list[Event]:
    """What follows when these executors of a gang are gone, whose programs did not end well: the others stop (G8)."""
    if not app.spec.gang:
        return []
    stopped = [
        ExecutorRevoked(app=app.id, executor=one.id, worker=one.worker, gang=True)
        for one in app.members
        if one not in gone
    ]
    return [*stopped, *anew(app)]


def anew(app: App) -> list[Event]:
    """A gang wants all its executors again, also those whose programs have ended well (semantics G8)."""
    if not app.spec.gang or app.executor_limit == app.spec.executor_limit:
        return []
    return [demand(app, executor_limit=app.spec.executor_limit, requested=app.spec.requested)]


def backlog(app: App, executor: Allocation, command: ReportBacklog) -> list[Event]:
    """The demand of an elastic app whose executor reports its waiting and running tasks (semantics L6).

    If they need fewer executors, the demand falls at once. Steps start over with one then, and when more become wanted.
    """
    check_range("waiting tasks", command.waiting, 0, MAX_TASKS)
    check_range("running tasks", command.running, 0, MAX_TASKS)
    check_preferences(command.prefer or {}, command.preferring_tasks)
    bounds, sizing = app.spec.elastic, app.sizing
    if app.ended is not None or not isinstance(sizing, Fixed) or executor.status == "stopping":
        return []
    changes = _preferred(app, command)
    if bounds is None:
        return [demand(app, **changes)] if changes else []
    events: list[Event] = []
    if command.idle != (executor.idle_since is not None):
        events.append(ExecutorChanged(executor=executor.id, idle=command.idle))
    needed = -(-(command.waiting + command.running) // (sizing.each.cores // app.spec.cores_per_task))
    wanted = max(bounds.least, min(bounds.most, needed))
    if wanted == app.demand.backlog_executors:
        return [*events, demand(app, **changes)] if changes else events
    limit = app.executor_limit or 0
    changes |= {"backlog_executors": wanted, "done_cores": 0, "executor_limit": min(limit, wanted)}
    if wanted <= limit:
        changes |= {"next_step": 1, "target": None}
    elif not app.wants_more:
        changes["next_step"] = 1
    return [*events, demand(app, **changes, requested=_request(app, sizing, min(limit, wanted)))]


def _preferred(app: App, command: ReportBacklog) -> dict[str, Any]:
    """What the waiting tasks change of the preferred hosts (semantics L7).

    Their numbers matter only while executors are missing; otherwise only which hosts are preferred does.
    """
    if command.prefer is None or app.lacking > MAX_NEAR:
        return {}
    by_host = dict(sorted(command.prefer.items()))
    known = app.demand
    matters = app.lacking or by_host.keys() != known.preferred_hosts.keys()
    if not matters or (command.preferring_tasks, by_host) == (known.preferring_tasks, known.preferred_hosts):
        return {}
    return {"preferring_tasks": command.preferring_tasks, "preferred_hosts": by_host}


def requests(
    state: ClusterState, event: AppAdmitted | AppChanged | ExecutorAllocated | ExecutorRemoved, at: int
) -> ExecutorsRequested | None:
    """The pending requests of an app that prefers hosts once `event` is folded at `at` (ms); None = no change (L1, L2).

    There is one for each missing executor. A new demand plans all of them again. A new executor serves one of them
    (L5); the end of an executor only adds what is missing.
    """
    app = state.apps.get(event.app)
    if app is None or not (app.demand.wanted or app.demand.preferred_hosts):
        return None
    known = app.demand
    pending: Sequence[Wanted] = known.wanted
    if isinstance(event, ExecutorAllocated) and pending:
        worker = state.workers[event.worker]
        pending = without(pending, 1, [served_by(worker, pending, state.settings, state.indexes.places, at)])
    if not isinstance(app.sizing, Fixed) or not known.preferred_hosts or not app.lacking:
        pending = ()
    elif isinstance(event, AppChanged) or sum(wanted.number for wanted in pending) != app.lacking:
        pending = rethought(
            pending,
            app.lacking,
            Preferences(
                known.preferring_tasks, known.preferred_hosts, app.sizing.each.cores // app.spec.cores_per_task
            ),
            _by_host(state, app),
            racks=state.indexes.places.racks_of(known.preferred_hosts),
            at=at,
        )
    return None if tuple(pending) == known.wanted else ExecutorsRequested(app=app.id, pending=tuple(pending))


MOVE_REQUESTS = frozenset({AppAdmitted, AppChanged, ExecutorAllocated, ExecutorRemoved})
"""The events that may change the number of missing executors, or the preferred hosts."""


def _by_host(state: ClusterState, app: App) -> Counter[str]:
    """The number of the app's executors on each host, without those that are stopping."""
    return Counter([state.workers[one.worker].host for one in app.executors.values() if one.status != "stopping"])


def with_request(state: ClusterState, event: ExecutorAllocated) -> ExecutorAllocated:
    """The grant; with a larger request if it exceeds the present one: in cores (A6), or in memory (S5, O1)."""
    app = state.apps[event.app]
    if isinstance(app.sizing, Computed):
        return event
    held = app.granted - app.moving + event.resources + Resources(app.done_cores)
    return event if app.requested.covers(held) else replace(event, requested=app.requested.at_least(held))


def given_back(state: ClusterState, at: int) -> Iterator[ExecutorRevoked]:
    """The executors of elastic apps that were idle for `executor_idle_timeout_s` and that no demand includes (L6).

    In the order of the apps' admission, of each the one idle longest first.
    """
    for app in state.idle_due(at):
        yield from _given_back(state, app, at)


def grown(state: ClusterState, at: int) -> Iterator[AppChanged]:
    """The requests that rise: of demands stated, of apps of one executor a worker, of elastic ones (L1, S5, L6)."""
    wishing, following, growing = list(state.indexes.wishes), state.following(), state.growing(at)
    for app in wishing:
        yield from _wish(state, app)
    for app in following:
        yield from _follow(state, app)
    for app in growing:
        if app.demand.asked_at < at:
            yield from _growth(state, app)


def _wish(state: ClusterState, app: App) -> Iterator[AppChanged]:
    """The stated demand, as far as the company and the cluster have room (semantics L1)."""
    limit, target, sizing = app.executor_limit or 0, app.demand.target or 0, app.sizing
    if isinstance(sizing, Fixed) and (more := _room_for(state, app, sizing, target - limit)):
        limit += more
        rest = None if limit == target else target
        yield demand(app, executor_limit=limit, target=rest, requested=_request(app, sizing, limit), done_cores=0)


def steps(state: ClusterState, at: int) -> Iterator[str]:
    """The elastic apps that may take a step in a turn at `at` (ms), before it changes anything (semantics L6).

    A step whose time came earlier is decided by what was so then: an app that could not grow waits for its next one.
    """
    for app in state.steps_due(at):
        if (at - app.demand.asked_at) % state.settings.elastic_step_ms == 0 or any(_growth(state, app)):
            yield app.id


def _growth(state: ClusterState, app: App) -> Iterator[AppChanged]:
    """The next step of an elastic app: 1, 2, 4, 8 … more, `elastic_step_ms` apart, within the limits (L6)."""
    limit, wanted, sizing = app.executor_limit or 0, app.demand.backlog_executors or 0, app.sizing
    if limit >= wanted or not isinstance(sizing, Fixed):
        return
    if more := _room_for(state, app, sizing, min(app.demand.next_step, wanted - limit)):
        step = 2 * app.demand.next_step if more == app.demand.next_step else 1
        request = _request(app, sizing, limit + more)
        yield demand(app, executor_limit=limit + more, next_step=step, requested=request, done_cores=0)


def _follow(state: ClusterState, app: App) -> Iterator[AppChanged]:
    """The memory of one executor for each live worker (semantics S5)."""
    more = state.fleet.live - workers_asked(app)
    if more > 0:
        memory_mb = app.sizing.memory_mb  # type: ignore[union-attr]  # of one executor a worker
        yield demand(app, requested=app.requested + Resources(0, more * memory_mb))


def _given_back(state: ClusterState, app: App, at: int) -> Iterator[ExecutorRevoked]:
    idle_before = at - state.settings.executor_idle_timeout_s * 1000
    held = [executor for executor in app.executors.values() if executor.status != "stopping"]
    idle = [one for one in held if one.idle_since is not None and one.idle_since <= idle_before]
    idle.sort(key=lambda executor: executor.idle_since or 0)
    for executor in idle[: max(0, len(held) - (app.executor_limit or 0))]:
        yield ExecutorRevoked(app=app.id, executor=executor.id, worker=executor.worker, reason="idle")


def _request(app: App, sizing: Fixed, executors: int | None) -> Resources:
    """The request for that number of executors, with the driver (semantics L1, O1, S5).

    An app that was not sized by a number of executors keeps within its cores; None is all of them. Executors above the
    number are claimed until they end.
    """
    cores, each = app.spec.cores or 0, sizing.each
    number = executors or 0
    if not sizing.counted:
        most = cores // each.cores
        number = most if executors is None else min(executors, most)
    request = each * number
    if not sizing.counted and executors is None:
        request = Resources(cores, request.memory_mb, request.others)
    return request if app.spec.driver is None else request + app.spec.driver


def _room_for(state: ClusterState, app: App, sizing: Fixed, most: int) -> int:
    """How many executors more, at most so many, the app may ask for now: as many as limits let pass (L1, L6, N2)."""
    if most <= 0 or state.settings.admission == "open":
        return max(0, most)
    if not could_host(state, app, sizing.each):
        return 0
    if state.limits.values:
        most = min(most, (_most_cores(state, app) - app.requested.cores) // sizing.each.cores)
    return _within_limits(state, app, sizing, most)


def could_host(state: ClusterState, app: App, size: Resources) -> bool:
    """Whether a live worker could host such an executor of the app: with a limit of 0 its need is empty (N3)."""
    return app.need.hostable and state.fleet.could_host(sought(size, app.need.demand))


def _most_cores(state: ClusterState, app: App) -> int:
    return most_app_cores(state.limits, app.spec, names_above(state, app.spec.company))


def _within_limits(state: ClusterState, app: App, sizing: Fixed, most: int) -> int:
    """How many executors more, at most so many, the limits let the app ask for (semantics N2)."""
    quota = state.queue.companies[app.spec.company].limit
    if not quota.limited:
        return max(0, most)
    more = 0
    while more < most and quota.broken(app.spec.user, sizing.each * (more + 1), 0) is None:
        more += 1
    return more


def _check_preferences(app: App, command: ScaleApp) -> None:
    check_preferences(command.prefer, command.preferring_tasks)
    if not command.prefer:
        return
    if command.executors is None or isinstance(app.sizing, OnePerWorker):
        raise InvalidCommand(
            "hosts can be preferred only with a number of executors of one size; give --executors N, not none"
        )
    if command.executors > MAX_NEAR:
        raise InvalidCommand(f"at most {MAX_NEAR} executors can have preferred hosts, not {command.executors}")
