"""How the demand of an app changes: by command, by its ended executors, by its backlog and with time (L1, L6, O4).

Like `decide`, these functions read the state and return events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from recovery.second_edition.rules.admission.limits import most_app_cores
from recovery.second_edition.rules.admission.queue import CompanyQueue
from recovery.second_edition.rules.entities import EMPTY, Allocation, App, Demand
from recovery.second_edition.rules.followers import workers_asked
from recovery.second_edition.rules.kinds import amounts_named
from recovery.second_edition.rules.placement.delay import served_by
from recovery.second_edition.rules.placement.sizing import requested_resources, size_now
from recovery.second_edition.rules.placement.yarn import Preferences, rethought, without
from recovery.second_edition.rules.programs import resized
from recovery.second_edition.rules.state import ClusterState
from recovery.second_edition.rules.submission import check_stated_size
from recovery.second_edition.rules.validate import (
    MAX_EXECUTORS,
    MAX_NAMED,
    MAX_NEAR,
    MAX_TASKS,
    check_name,
    check_number,
    check_preferences,
    check_range,
)
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


def demand(app: App, **changes: Any) -> AppChanged:  # noqa: ANN401 - the fields of the event
    """The app's demand in full, with these changes (semantics O4)."""
    stated = {name: getattr(app.demand if name in Demand._fields else app, name) for name in _STATED}
    return AppChanged(app=app.id, **{**stated, **changes})


_STATED = [name for name in AppChanged.__struct_fields__ if name != "app"]


def scaled(state: ClusterState, app: App, command: ScaleApp) -> list[Event]:
    """The demand that the command states (semantics L1, O4, P5); a lower one stops no executor but those named (G3).

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
    if app.admitted:
        if done := _not_owed_again(state, app):
            stated = min(stated, (app.requested.cores - driver - done) // sizing.each.cores)
    else:
        stated = max(stated, (most_app_cores(state.limits, app.spec) - driver) // sizing.each.cores)
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
    """The size that the command states, of executors that run a program (semantics G3). Raises: InvalidCommand."""
    sizing = _sizing(state, app, command.executors)
    if not app.spec.programs or not isinstance(sizing, Fixed):
        raise InvalidCommand(
            f"only executors that run a program can get another size, and those of app {app.id!r} run tasks"
        )
    named = command.executor_resources
    others = amounts_named(state.kinds, "an executor's", named, 1, MAX_AMOUNT) if named else None
    again = resized(app, sizing, command.executor_cores, command.executor_memory_mb, others)
    if again != sizing:
        check_stated_size(state, again)
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
    """The demands of apps once these executors of theirs, whose tasks are not all done, have ended.

    What was done before is owed again, too (semantics S6). An elastic app asks for fewer executors then, instead of
    leaving some done, so that its steps bring them back (L6).
    """
    events: list[Event] = []
    besides: dict[tuple[str, str], Resources] = {}
    for name, executors in ended.items():
        app = state.apps[name]
        done = _not_owed_again(state, app, executors, besides)
        if done and app.elastic and isinstance(app.sizing, Fixed):
            limit = (app.executor_limit or 0) - done // app.sizing.each.cores
            request = _request(app, app.sizing, limit)
            events.append(demand(app, executor_limit=limit, next_step=1, requested=request, done_cores=0))
        elif done < app.done_cores:
            events.append(demand(app, done_cores=done))
        if len(ended) > 1:
            rise = _rise(state, app, app.done_cores - done, executors)
            for holder in ((app.spec.company, ""), (app.spec.company, app.spec.user)):
                besides[holder] = besides.get(holder, NOTHING) + rise
    return events


def _rise(state: ClusterState, app: App, again: int, ended: Sequence[Allocation]) -> Resources:
    """How much more the app claims once these executors are gone and so many of its done cores are owed again (A8)."""
    gone = sum((one.resources for one in ended), Resources(again))
    live = sum((one.resources for one in ended if state.workers[one.worker].status == "alive"), NOTHING)
    return state.claims.rise(app, gone, len(ended)) - live


def _not_owed_again(
    state: ClusterState,
    app: App,
    ended: Sequence[Allocation] = (),
    besides: Mapping[tuple[str, str], Resources] = EMPTY,
) -> int:
    """The done cores of the app that stay done when others would be owed again (semantics S6).

    Those, in whole smallest executors, by which its company would claim more than amounts or a part that it may not
    pass (C4), or it or its user more than a limit (N2). These executors have `ended`; `besides` is what companies and
    their users claim more already.
    """
    cores, company = app.need.executor.cores, state.queue.companies[app.spec.company]
    hard = company.limit.limited or _is_hard(company)
    if not hard or not app.done_cores or not cores or not app.admitted or state.settings.admission == "open":
        return 0
    user, number = app.spec.user, app.done_cores // cores
    of_company, of_user = [besides.get((app.spec.company, holder), NOTHING) for holder in ("", user)]

    def exceeds(more: int) -> bool:
        rise = _rise(state, app, more * cores, ended)
        return not _passes(company, user, of_company + rise, of_user + rise)

    owed = bisect_left(range(1, number + 1), 1, key=exceeds)
    return 0 if owed == number else app.done_cores - owed * cores


def _is_hard(company: CompanyQueue) -> bool:
    """Whether the company may never pass its quota: not where that is a default, nor where it may borrow (C4, C6)."""
    return company.limit.stops_idle and not company.borrows


def _passes(company: CompanyQueue, user: str, of_company: Resources, of_user: Resources) -> bool:
    """Whether both may claim that much more by a quota that the company may not pass and by the limits (C4, N2)."""
    quota = company.limit
    if _is_hard(company) and not quota.admits(of_company, lent=False):
        return False
    return quota.broken(user, of_user, 0, of_company=of_company) is None


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


def backlog(state: ClusterState, app: App, executor: Allocation, command: ReportBacklog) -> list[Event]:
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
    changes |= {"backlog_executors": wanted, "done_cores": 0}
    limit = (app.executor_limit or 0) - _not_owed_again(state, app) // sizing.each.cores
    changes["executor_limit"] = limit
    if wanted <= limit:
        limit = wanted
        changes |= {"executor_limit": wanted, "next_step": 1, "target": None}
    elif not app.wants_more:
        changes["next_step"] = 1
    return [*events, demand(app, **changes, requested=_request(app, sizing, limit))]


def _preferred(app: App, command: ReportBacklog) -> dict[str, Any]:
    """What the waiting tasks change of the preferred hosts (semantics L8).

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
        pending = without(pending, 1, [served_by(worker, pending, state.settings, state.places, at)])
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
            racks=state.places.racks_of(known.preferred_hosts),
            at=at,
        )
    return None if tuple(pending) == known.wanted else ExecutorsRequested(app=app.id, pending=tuple(pending))


MOVE_REQUESTS = frozenset({AppAdmitted, AppChanged, ExecutorAllocated, ExecutorRemoved})
"""The events that may change the number of missing executors, or the preferred hosts."""


def _by_host(state: ClusterState, app: App) -> Counter[str]:
    """The number of the app's executors on each host, without those that are stopping."""
    return Counter([state.workers[one.worker].host for one in app.executors.values() if one.status != "stopping"])


def with_request(state: ClusterState, event: ExecutorAllocated) -> ExecutorAllocated:
    """The grant; with a larger request if it exceeds the present one: in cores (A6), or in memory (S5, O4)."""
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
    wishing, following, growing = state.wishing(), state.following(), state.growing(at)
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
    """The next step of an elastic app: 1, 2, 4, 8 … more, `elastic_step_ms` apart, as far as there is room (L6)."""
    limit, wanted, sizing = app.executor_limit or 0, app.demand.backlog_executors or 0, app.sizing
    if limit >= wanted or not isinstance(sizing, Fixed) or _others_wait(state, app):
        return
    if more := _room_for(state, app, sizing, min(app.demand.next_step, wanted - limit)):
        step = 2 * app.demand.next_step if more == app.demand.next_step else 1
        request = _request(app, sizing, limit + more)
        yield demand(app, executor_limit=limit + more, next_step=step, requested=request, done_cores=0)


def _follow(state: ClusterState, app: App) -> Iterator[AppChanged]:
    """The memory of one executor for each live worker, as far as C4 or C6 lets the company claim it (semantics S5)."""
    asked, memory_mb, company = workers_asked(app), app.sizing.memory_mb, app.spec.company  # type: ignore[union-attr]
    quota = state.queue.companies[company].limit
    beyond = state.queue.may_borrow(company)
    served = app.left_cores < app.need.executor.cores  # it claims nothing now, but may when an executor of it ends
    more = 0
    while asked + more < state.fleet.live:
        memory = (more + 1) * memory_mb
        rise = Resources(0, memory) if served else state.claims.rise(app, Resources(0, memory))
        if not (beyond or quota.admits(rise, lent=False)):
            break
        more += 1
    if more:
        yield demand(app, requested=app.requested + Resources(0, more * memory_mb))


def withdrawn(state: ClusterState, admitted: AppAdmitted) -> Iterator[AppChanged]:
    """What elastic apps asked for beyond their least, and were not granted, gives way to another app (semantics E7)."""
    for app in list(state.elastics.get(admitted.company, {}).values()):
        if app.id != admitted.app:
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


def raised_by_return(state: ClusterState, app: App) -> Iterator[AppChanged]:
    """The elastic app keeps an executor that it was to lose (semantics E7); no more than its tasks need.

    More than it has only as far as a quota that may not be passed, and limits, let it claim that (C4, N2).
    """
    most = app.spec.elastic.most if app.spec.elastic is not None else 0
    executors = sum(one.status != "stopping" for one in app.executors.values())
    limit = min(most, (app.executor_limit or 0) + 1, app.demand.backlog_executors or 0)
    company, rise = state.queue.companies[app.spec.company], state.claims.rise(app, app.need.executor, executors=1)
    if limit > executors and not _passes(company, app.spec.user, rise, rise):
        limit = executors
    if limit > (app.executor_limit or 0):
        yield _with_limit(app, limit)


def _with_limit(app: App, limit: int) -> AppChanged:
    request = _request(app, app.sizing, limit) if isinstance(app.sizing, Fixed) else app.requested
    done = max(0, app.done_cores - max(0, app.requested.cores - request.cores))
    return demand(app, executor_limit=limit, next_step=1, target=None, done_cores=done, requested=request)


def _others_wait(state: ClusterState, app: App) -> bool:
    """Whether another app of the company waits to enter, or is owed what fits nowhere now (semantics L6)."""
    if state.queue.has_head(app.spec.company):
        return True
    return any(
        need.least.cores and not state.fleet.has_room(size_now(state.fleet, need)) and positions != [app.admitted]
        for (company, need, holder, _), positions in state.owed.lists.items()
        if company == app.spec.company and not (holder and state.fits_where_held(state.apps[holder]))
    )


def _given_back(state: ClusterState, app: App, at: int) -> Iterator[ExecutorRevoked]:
    idle_before = at - state.settings.executor_idle_timeout_s * 1000
    held = [executor for executor in app.executors.values() if executor.status != "stopping"]
    idle = [one for one in held if one.idle_since is not None and one.idle_since <= idle_before]
    idle.sort(key=lambda executor: executor.idle_since or 0)
    for executor in idle[: max(0, len(held) - (app.executor_limit or 0))]:
        yield ExecutorRevoked(app=app.id, executor=executor.id, worker=executor.worker, reason="idle")


def _request(app: App, sizing: Fixed, executors: int | None) -> Resources:
    """The request for that number of executors, with the driver (semantics L1, O4, S5).

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


def _usable(app: App, sizing: Fixed, more: int) -> int:
    """How many executors the app could still use if it requested so many more."""
    limit = (app.executor_limit or 0) + more
    left = _request(app, sizing, limit) - app.granted - app.unplaced_driver
    return max(0, min(left.holds(sizing.each), limit - len(app.executors)))


def _room_for(state: ClusterState, app: App, sizing: Fixed, most: int) -> int:
    """How many executors more, at most so many, the app may ask for now (semantics L1, L6).

    As many as C4 or C6 and the limits (N2) let pass, and as stay within the company's part or, with all claims, within
    the cluster.
    """
    if most <= 0 or state.settings.admission == "open":
        return max(0, most)
    if not (app.need.hostable and state.fleet.could_host(sizing.each)):  # an app with a limit of 0 has an empty need
        return 0
    if state.limits.values:
        most = min(most, (most_app_cores(state.limits, app.spec) - app.requested.cores) // sizing.each.cores)
    company, claims, total = app.spec.company, state.claims, state.fleet.total
    beyond = state.queue.may_borrow(company)
    quota, part = state.queue.companies[company].limit, state.queue.part(company)
    claimed, cluster = claims.of(company).claimed, claims.total.claimed
    more = 0
    while more < most:
        added = sizing.each * _usable(app, sizing, more + 1) + app.need.driver - app.more
        if not (beyond or quota.admits(added, lent=False)):
            break
        if quota.limited and quota.broken(app.spec.user, added, 0) is not None:
            break
        if not (part - claimed).suffices_for(added) and not _within(cluster + added, total, added):
            break
        more += 1
    return more


def _within_limits(state: ClusterState, app: App, sizing: Fixed, most: int) -> int:
    """How many executors more, at most so many, the limits let the app ask for (semantics N2)."""
    quota = state.queue.companies[app.spec.company].limit
    if not quota.limited:
        return max(0, most)
    more = 0
    while more < most and quota.broken(app.spec.user, sizing.each * (more + 1), 0) is None:
        more += 1
    return more


def _within(claims: Resources, total: Resources, added: Resources) -> bool:
    """Whether the claims stay within the cluster in cores, memory and the kinds of which there are more (A3, L1)."""
    if claims.cores > total.cores or claims.memory_mb > total.memory_mb:
        return False
    return all(claims.amount(kind) <= total.amount(kind) for kind, _ in added.others)


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
