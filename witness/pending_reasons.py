"""Why an app waits between two turns: the cause, its rule, a sentence and the facts.

The cause is determined at every turn of an app's life, the sentence and the facts only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec import to_builtins

from recovery.replay.bounds import moment
from scheduler.model.answers import QueuePlace, WaitReason
from scheduler.model.events import Computed, Fixed, OnePerWorker
from scheduler.model.resources import NOTHING, Resources
from scheduler.model.text import counted, few
from scheduler.rules.admission.app import APP_POLICIES
from scheduler.rules.admission.limits import Broken, holder_text, over_app_cores
from scheduler.rules.admission.queue import CompanyQueue, UserQueue
from scheduler.rules.command.demand import could_host
from scheduler.rules.command.failures import closed_to, gang_rooms, has_room_now, kept_from
from scheduler.rules.command.failures import left_out as left_out_of
from scheduler.rules.command.submission import nearest
from scheduler.rules.command.windows import barred, barring, barring_names, sought_by
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.labels import excluded_by, met_by, sought
from scheduler.rules.entities.workers import Window, Worker
from scheduler.rules.index.delay import delayed_until
from scheduler.rules.placement.sizing import executor_memory_mb, for_tasks, smallest_cores
from scheduler.rules.stage.caps import is_capped
from scheduler.rules.stage.drivers import within_max_drivers
from scheduler.rules.state.backfill import longest_s
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.departments import names_above
from scheduler.rules.view.views import exclusions, suspicion
from witness.entitled_reasons import in_need, left_out
from witness.failing import exclusion_in_words, suspicion_in_words

_OF_WORKERS = {
    *("not-entitled", "larger-than-share", "driver", "no-worker-large-enough", "excluded", "need", "locality"),
    "workers-full",
}
"""The causes that depend on which workers an app may use."""
_OF_ROOM = {*_OF_WORKERS, "not-entitled", "larger-than-share", "cap", "need", "excluded", "suspect-worker", "window"}
"""The causes of an app that lacks room."""
_WITHOUT_WORKER = {"no-live-worker", "no-worker-large-enough"}
"""The causes of an app that no live worker could host."""
_NAMED = 5
"""The largest number of names in a sentence."""

Told = tuple[str, dict[str, Any]]
"""A sentence, and its facts as JSON values."""


class Wait(NamedTuple):
    """The cause of waiting, its rule, and a function that describes it, valid until the state changes."""

    cause: str
    rule: str
    tell: Callable[[], Told]

    def told(self) -> WaitReason:
        """The cause, the rule, a sentence and its facts."""
        text, facts = self.tell()
        return WaitReason(cause=self.cause, rule=self.rule, text=text, facts=facts)


def waits_for(state: ClusterState, app: App) -> Wait | None:
    """Why the app is not admitted (A3) or has no executor (P1); None if it does not wait for either (semantics Z2).

    Where that depends on which workers it may use, it is said how many its labels and windows exclude (P9, W14).
    """
    wait = _waits_for(state, app)
    return None if wait is None else _in_full(state, app, wait)


def _in_full(state: ClusterState, app: App, wait: Wait) -> Wait:
    """What it waits for, and what its labels, its windows and its number of executors have to do with that."""
    if state.windows and wait.cause in _WITHOUT_WORKER:
        wait = _closed_to_all(state, app) or wait
    if app.need.gang and wait.cause in _OF_ROOM:
        wait = wait._replace(tell=partial(_all_at_once, state, app, wait.tell))
    if wait.cause not in _OF_WORKERS:
        return wait
    if app.need.demand or _any_taint(state):
        wait = wait._replace(tell=partial(_within_labels, state, app, wait.tell))
    if state.windows and wait.rule != "W14":
        wait = wait._replace(tell=partial(_beside_windows, state, app, wait.tell))
    if state.holds and not app.need.gang:
        wait = wait._replace(tell=partial(_if_it_ended, state, app, wait.tell))
    return wait


def _if_it_ended(state: ClusterState, app: App, tell: Callable[[], Told]) -> Told:
    """What keeps the app waiting, and with which maximum runtime it would use room that is kept for others (H11)."""
    text, facts = tell()
    closed = {*closed_to(state, app, state.at), *barred(state, app, state.at)}
    most_s = longest_s(state, app, closed, state.at)
    if most_s <= 0 or (app.max_runtime_s is not None and app.max_runtime_s <= most_s):
        return text, facts
    more = f"room is kept for others, which it could use now with a maximum runtime of at most {most_s} s"
    return f"{text}; {more}", {**facts, "startsWithMaxRuntimeS": most_s}


def _all_at_once(state: ClusterState, app: App, tell: Callable[[], Told]) -> Told:
    """What keeps a gang waiting, and how many of its executors have room now (semantics G8)."""
    text, facts = tell()
    need, room = app.need, gang_rooms(state, app, state.at)
    are = "1 has" if room == 1 else f"{room} have"
    said = (
        f"; it is a gang that needs {counted(need.gang, 'executor')} of {need.executor} at once, of "
        f"which {are} room now"
    )
    return text + said, {**facts, "gang": {"executors": need.gang, "room": room}}


def _any_taint(state: ClusterState) -> bool:
    return any(worker.taints for worker in state.workers.values())


def _within_labels(state: ClusterState, app: App, tell: Callable[[], Told]) -> Told:
    """What keeps the app waiting, and how many workers each of its terms excludes (semantics P9)."""
    live, usable = _live(state), len(_usable(state, app))
    if usable == len(live):
        return tell()
    excluding = dict(excluded_by(app.need.demand, [(worker.labels, worker.taints, 1) for worker in live]))
    each = ", ".join([f"{term} excludes {number}" for term, number in excluding.items()])
    facts = {"labels": {"usable": usable, "of": len(live), "excluding": excluding}}
    workers = f"{len(live)} live worker{'s' * (len(live) != 1)}"
    if not usable:
        return f"its labels let it use none of {workers}: {each}", facts
    text, others = tell()
    return f"{text}; its labels let it use {usable} of {workers}: {each}", {**others, **facts}


def _beside_windows(state: ClusterState, app: App, tell: Callable[[], Told]) -> Told:
    """What keeps the app waiting, and how many workers each window excludes (semantics W14)."""
    text, facts = tell()
    there = sum([worker.status == "alive" or worker.window != "" for worker in state.workers.values()])
    closed, excluding = barring_names(state, app, state.at), dict[str, int]()
    for window in state.windows.values():
        known = [state.workers[name] for name in window.workers if name in state.workers]
        number = sum([each.window == window.id or (each.status == "alive" and window.id in closed) for each in known])
        if number:
            excluding[window.id] = number
    if not excluding:
        return text, facts
    said = [f"{_span(state.windows[name])} excludes {number}" for name, number in excluding.items()]
    listed = [{**_as_json(state.windows[name]), "excludes": number} for name, number in excluding.items()]
    more = f"{text}; of {there} worker{'s' * (there != 1)}, {'; '.join(said[:_NAMED])}"
    return more, {**facts, "windows": listed}


def _span(window: Window, where: str = "") -> str:
    """Which window, for whom, `where`, and from when to when."""
    whose = f" for company {window.company}" if window.company else ""
    return f"window {window.id}{whose}{where} from {moment(window.begin)} to {moment(window.end)}"


def _as_json(window: Window) -> dict[str, Any]:
    return {"window": window.id, "begin": window.begin, "end": window.end, "company": window.company or None}


def _waits_for(state: ClusterState, app: App) -> Wait | None:
    if app.ended is not None or (app.executors and app.admitted):
        return None
    if app.admitted:
        return _for_executors(state, app)
    if not app.ready:
        return _until_ready(app)
    return _until_admitted(state, app)


def _until_admitted(state: ClusterState, app: App) -> Wait:
    """Why a ready app is not admitted."""
    if not state.fleet.live:
        return Wait("no-live-worker", "A3", _no_worker)
    if state.settings.admission == "open":
        return Wait("next-turn", "A6", lambda: ("it will be admitted in the next turn", {}))
    return _not_entitled(state, state.queue.companies[app.spec.company], app)


def _not_entitled(state: ClusterState, company: CompanyQueue, app: App) -> Wait:
    """No large worker (N3), a limit (N2), others of its user (F), or what keeps it out of the filling (H2)."""
    if (shut := _shut_out(state, company, app)) is not None:
        return shut
    found = left_out(state, app)
    if found is not None:
        return Wait(*found)
    queue = company.users[app.spec.user]
    ahead = queue.by_policy
    if not app.need.executor.cores and app.unplaced_driver == NOTHING:
        return Wait("next-turn", "H4", lambda: ("it asks for no executor now, and is admitted in the next turn", {}))
    if (less := _beyond_request(app, app.need.executor)) is not None:
        return less
    rule = APP_POLICIES[state.settings.app_policy].rule
    return Wait("queue", rule, partial(_queued, queue, app, ahead[0]))


def shut_out(state: ClusterState, company: CompanyQueue, app: App) -> Wait | None:
    """What keeps the app out of the filling (semantics H2), also if it waits for something else first."""
    wait = _shut_out(state, company, app)
    return None if wait is None else _in_full(state, app, wait)


def _shut_out(state: ClusterState, company: CompanyQueue, app: App) -> Wait | None:
    """No large worker (N3), or a limit (N2): such an app takes no part in the filling (semantics H2).

    Of several limits, one that the app alone exceeds comes before those that are reached now.
    """
    spec, limit = app.spec, company.limit
    if not app.need.hostable:
        fits = state.fleet.could_host(sought(app.need.least, app.need.demand))
        if fits and app.need.gang:
            return Wait("no-worker-large-enough", "N3", partial(_never_at_once, state, app))
        size = app.need.driver if fits else app.need.least
        return Wait("no-worker-large-enough", "N3", partial(_nearest, _usable(state, app), size, of_free=False))
    if not limit.limited:
        return None
    over = limit.broken(spec.user, app.requested, alone=True) or limit.broken(spec.user, app.requested)
    if over is not None:
        return Wait("beyond-limit", "N2", partial(_over_limit, spec.company, *over))
    return None


def _never_at_once(state: ClusterState, app: App) -> Told:
    """The live workers could not hold the gang at once if they were empty (semantics G8, N3)."""
    size = app.need.executor
    most = sum([worker.offer.holds(size) for worker in _usable(state, app)])
    text = f"the live workers can hold {counted(most, 'executor')} of {size} at most, were they empty"
    return text, {"cores": size.cores, "memory": size.memory_mb, **_others(app=size), "most": most}


def _until_ready(app: App) -> Wait:
    """Its dependencies (J1), a hold (J3), a time (J4), or the next turn, which lets it be ready."""
    if app.awaits:
        return Wait("dependency", "J1", partial(_dependent, app))
    if app.on_hold:
        return Wait("hold", "J3", lambda: (f"it is on hold; `fairlog release {app.id}` ends that", {}))
    if app.not_before:
        at = app.not_before
        return Wait("begin", "J4", lambda: (f"it is not to begin before {moment(at)}", {"beginAt": at}))
    if app.ending:
        return Wait("ending", "X6", partial(_ending, app))
    return Wait("next-turn", "J2", lambda: ("it will be ready in the next turn", {}))


def _ending(app: App) -> Told:
    held = [one.id for one in app.allocations()]
    return f"it was put back, and {few(held, _NAMED)} of it must end first", {"ending": held[:100]}


def _dependent(app: App) -> Told:
    named = [f"{name}:{condition}" for name, condition in app.awaits.items()]
    return f"it starts after {few(named, _NAMED)}", {"after": dict(app.awaits), "onHold": app.on_hold}


def _no_worker() -> Told:
    return "no worker is live", {}


def _live(state: ClusterState) -> list[Worker]:
    return [worker for worker in state.workers.values() if worker.status == "alive"]


def _usable(state: ClusterState, app: App) -> list[Worker]:
    """The live workers that the app may use by their labels (semantics P9)."""
    return [worker for worker in _live(state) if met_by(app.need.demand, worker.labels, worker.taints)]


def _over_limit(company: str, user: str, over: Broken) -> Told:
    holds = {"max_running_apps": "runs", "max_app_cores": "the app requests"}.get(over.name, "claims")
    holder = ("", over.department) if over.department else (company, user)
    text = f"limit {over.name} of {holder_text(*holder)}: {holds} {over.present} of {over.limit}, {over.asked} asked"
    if over.asked > over.limit:
        of = f"--department {over.department}" if over.department else f"--company {company}"
        of += f" --user {user}" if user and not over.department else ""
        text += f"; that alone is more, so it starts once `fairlog limit set {over.name}={over.asked} {of}` raises it"
    facts: dict[str, Any] = {"limit": over.name, "company": company, "user": user or None}
    if over.department:
        facts["department"] = over.department
    return text, {**facts, "present": over.present, "most": over.limit, "asked": over.asked}


def _others(**amounts: Resources) -> dict[str, dict[str, int]]:
    """The further kinds of these amounts, by the name of each; without those that have none."""
    return {f"{name}Resources": dict(held.others) for name, held in amounts.items() if held.others}


def _queued(queue: UserQueue, app: App, head: App) -> Told:
    """Who is before it, and its user's head, which need not be the first of them: that may be no head (C4, N2, N3)."""
    place = next(number for number, one in enumerate(queue.by_policy) if one is app)
    ahead = queue.by_policy[:place]
    text = f"{place} of {app.spec.user}'s apps {'is' if place == 1 else 'are'} before it; the next is {head.id}"
    if any(one.priority != app.priority for one in ahead):
        text += f", with priority {head.priority}; its own is {app.priority}"
    names = [one.id for one in ahead[:100]]
    return text, {"place": place + 1, "of": len(queue.by_policy), "ahead": names, "priority": app.priority}


def place_in_queue(state: ClusterState, app: App) -> QueuePlace | None:
    """The app's place among its user's pending apps (F), from 1; None if it is not pending or not ready (J2)."""
    if app.state != "pending" or not app.ready:
        return None
    order = state.queue.companies[app.spec.company].users[app.spec.user].by_policy
    return QueuePlace(place=order.index(app) + 1, of=len(order))


def _for_executors(state: ClusterState, app: App) -> Wait | None:
    """No live worker (W1), its driver (D), its demand (P4), or placement; None if it lacks no executor."""
    if not state.fleet.live:
        return Wait("no-live-worker", "W1", _no_worker)
    if app.spec.driver is not None and app.driver is None:
        return _for_its_driver(state, app, app.spec.driver)
    sizing = app.sizing
    if app.executor_limit == 0 and app.demand.target and isinstance(sizing, Fixed):
        return _for_its_wish(state, app, sizing.each)
    if app.executor_limit == 0:
        return Wait("limit", "P4", lambda: ("its demand is 0 executors", {}))
    if isinstance(sizing, Fixed) and 0 < app.left_cores < sizing.each.cores and not state.wants_executors(app):
        return Wait("limit", "P6", partial(_too_little_left, app, sizing.each))
    return _for_placement(state, app) if state.wants_executors(app) else None


def _for_its_wish(state: ClusterState, app: App, size: Resources) -> Wait:
    """Why its demand does not rise from nothing to what was stated (L1): N3, N2, or the next turn."""
    company = state.queue.companies[app.spec.company]
    if not could_host(state, app, size):
        return Wait("no-worker-large-enough", "N3", partial(_nearest, _usable(state, app), size, of_free=False))
    over = company.limit.broken(app.spec.user, size, 0)
    above = names_above(state, app.spec.company)
    if over := over or over_app_cores(state.limits, app.spec, above, app.requested.cores, size.cores):
        return Wait("beyond-limit", "N2", partial(_over_limit, app.spec.company, *over))
    return Wait("next-turn", "L1", lambda: ("its demand rises in the next turn", {}))


def _beyond_request(app: App, size: Resources) -> Wait | None:
    """What its request leaves is less than an executor of that size (A2)."""
    if size.cores <= app.left_cores and size.memory_mb <= app.left_memory_mb:
        return None
    return Wait("limit", "A2", partial(_too_little_left, app, size))


def _too_little_left(app: App, size: Resources) -> Told:
    """The rest of the request is smaller than an executor (P6)."""
    left, left_mb = app.left_cores, app.left_memory_mb
    facts = {"cores": size.cores, "memory": size.memory_mb, "leftCores": left, "leftMemory": left_mb}
    text = (
        f"its request leaves {counted(left, 'core')} and {left_mb} MiB, and an executor takes "
        f"{size.cores} and {size.memory_mb}"
    )
    return text, facts


def _for_placement(state: ClusterState, app: App) -> Wait:
    """A preferred host (L5), a worker that is large enough, or room on one (P1)."""
    kept = kept_from(state, app, state.at)
    with state.seen_by(app, kept):
        size = _smallest(state, app)
        room = state.fleet.has_room(sought_by(state, app, size, state.at))
    if app.need.gang:
        room = has_room_now(state, app, state.at)
    if room:
        if _prefers_still(state, app) and not (state.by_entitlement and is_capped(state, app, size)):
            return Wait("locality", "L5", partial(_preferring, state, app))
        if (less := _beyond_request(app, size)) is not None:
            return less
    needed = in_need(state, app) if state.by_entitlement else None
    if room:
        return Wait("next-turn", "T2", _soon) if needed is None else Wait(*needed)
    return _barred(state, app, size, kept) or (_for_room(state, app, size) if needed is None else Wait(*needed))


def _soon() -> Told:
    return "it will be placed in the next turn", {}


def _smallest(state: ClusterState, app: App) -> Resources:
    """The smallest executor of the app that placement would try now (A7, S3)."""
    settings, each = state.settings, app.spec.cores_per_task
    match app.sizing:
        case Fixed(each=size):
            return size
        case OnePerWorker(memory_mb=memory_mb, others=others):
            return Resources(each, memory_mb, others)
        case Computed(memory_per_task_mb=per_task) as sizing:
            cores = smallest_cores(settings, each)
            computed_mb = executor_memory_mb(state.fleet, settings, cores, per_task, each)
            others = for_tasks(sizing.per_task, cores // each)
            return Resources(cores, computed_mb or settings.min_executor_memory_mb, others)


def _barred(state: ClusterState, app: App, size: Resources, kept: Collection[str]) -> Wait | None:
    """The app is excluded from the workers that have room (W7, W9, W14), or these are suspected (W8)."""
    if (closed := _behind_windows(state, app, size) or _only_behind_windows(state, app, size)) is not None:
        return closed
    there = [state.workers[name] for name in kept if name in state.workers]
    if any(worker.status == "alive" and worker.open_to(app.id).covers(size) for worker in there):
        unstartable = all(app.troubles[worker.id].unstartable for worker in there)
        return Wait("excluded", "W9" if unstartable else "W7", partial(_excluded, state, app))
    able = _usable(state, app)
    suspects = [each for each in state.indexes.suspects if each.shut and each.free.covers(size) and each in able]
    return Wait("suspect-worker", "W8", partial(_suspected, suspects)) if suspects else None


def _behind_windows(state: ClusterState, app: App, size: Resources) -> Wait | None:
    """Workers have room, but a window is in the way of the app (semantics W14)."""
    found = [
        (window, worker)
        for window in barring(state, app, state.at)
        for worker in _usable(state, app)
        if worker.id in window.names and worker.open_to(app.id).covers(size)
    ]
    return Wait("window", "W14", partial(_until_windows, state, app, found)) if found else None


def _only_behind_windows(state: ClusterState, app: App, size: Resources) -> Wait | None:
    """Windows are in the way of the app on so many workers that those left could not host it if they were empty."""
    barred_to = barring(state, app, state.at)
    able = [worker for worker in _usable(state, app) if worker.offer.covers(size)]
    found = [(window, worker) for window in barred_to for worker in able if worker.id in window.names]
    behind = {worker.id for _, worker in found}
    left = sum([worker.offer.holds(size) for worker in able if worker.id not in behind])
    if left >= (app.need.gang or 1):
        return None
    found += _within_windows(state, app, size)
    return Wait("window", "W14", partial(_until_windows, state, app, found)) if found else None


def _within_windows(state: ClusterState, app: App, size: Resources) -> list[tuple[Window, Worker]]:
    """The workers that could host that much of the app, but have a window now."""
    return [
        (state.windows[worker.window], worker)
        for worker in state.workers.values()
        if worker.window and worker.offer.covers(size) and met_by(app.need.demand, worker.labels, worker.taints)
    ]


def _closed_to_all(state: ClusterState, app: App) -> Wait | None:
    """Workers could host the app, but have a window now (semantics W14)."""
    size = app.need.least if app.need.driver == NOTHING else app.need.driver
    found = _within_windows(state, app, size)
    return Wait("window", "W14", partial(_until_windows, state, app, found)) if found else None


def _until_windows(state: ClusterState, app: App, found: Sequence[tuple[Window, Worker]]) -> Told:
    """Which windows are in the way, on which workers, and until when."""
    windows = {window.id: window for window, _ in found}
    said = []
    for window in windows.values():
        workers = [worker.id for each, worker in found if each is window]
        said.append(_span(window, f" on {few(workers, _NAMED)}"))
    text = f"it may not run within {'; '.join(said)}"
    if app.max_runtime_s is not None and any(state.at < each.closes for each in windows.values()):
        text += f", and its maximum runtime of {app.max_runtime_s} s is not over before"
    return text, {
        "windows": [*map(_as_json, windows.values())],
        "workers": sorted({worker.id for _, worker in found})[:100],
    }


def _excluded(state: ClusterState, app: App) -> Told:
    found = to_builtins(exclusions(state, app, state.at))
    return "; ".join(exclusion_in_words(each) for each in found[:_NAMED]), {"excludedWorkers": found}


def _suspected(suspects: Sequence[Worker]) -> Told:
    known = [(worker.id, to_builtins(seen)) for worker in suspects if (seen := suspicion(worker)) is not None]
    text = "; ".join(suspicion_in_words(worker, seen) for worker, seen in known[:_NAMED])
    return text, {"suspects": [{"worker": worker, **seen} for worker, seen in known]}


def _for_its_driver(state: ClusterState, app: App, size: Resources) -> Wait:
    if app.tries.driver_after > state.at:
        ends, after = app.tries.driver_ends, app.tries.driver_after
        text = f"its driver ended {ends} times in a row soon after its start, and starts again at {moment(after)}"
        return Wait("driver", "D3", lambda: (text, {"ends": ends, "startsAt": after}))
    if not within_max_drivers(state):
        most = f"max_drivers is {state.settings.max_drivers}, and so many drivers run: {len(state.drivers)}"
        return Wait("driver", "D4", lambda: (f"its driver waits: {most}", {"drivers": len(state.drivers)}))
    if state.by_entitlement:
        return _for_an_entitled_driver(state, app, size)
    *_, kept = left_out_of(state, app, size, state.at)
    barred = _barred(state, app, size, kept)

    def for_room() -> Told:
        text, facts = barred.tell() if barred is not None else _for_room(state, app, size).tell()
        return f"its driver waits: {text}", facts

    return Wait("driver", "D1" if barred is None else barred.rule, for_room)


def _for_an_entitled_driver(state: ClusterState, app: App, size: Resources) -> Wait:
    """Its workers are barred to it (W7, W8), a need (H6), or what keeps its driver out of the filling (H2, H5)."""
    *_, kept = left_out_of(state, app, size, state.at)
    found = _barred(state, app, size, kept)
    if found is None:
        needed = in_need(state, app)
        found = _for_room(state, app, size) if needed is None else Wait(*needed)
    tell = found.tell

    def driver_waits() -> Told:
        text, facts = tell()
        return f"its driver waits: {text}", facts

    return Wait("driver", found.rule, driver_waits)


def _prefers_still(state: ClusterState, app: App) -> bool:
    """Whether each request of the app waits for a preferred host or its rack by now (semantics L5)."""
    settings, where = state.settings, state.indexes.places
    waits = [state.at < delayed_until(wanted, settings, where)[1] for wanted in app.demand.wanted]
    return bool(waits) and all(waits)


def _preferring(state: ClusterState, app: App) -> Told:
    hosts = dict.fromkeys(host for wanted in app.demand.wanted for host in wanted.locations.hosts or ())
    since = min(wanted.since for wanted in app.demand.wanted)
    text = (
        f"it has waited since {moment(since)} for room on a host that its tasks prefer "
        f"({', '.join([*hosts][:_NAMED])}): up to {state.settings.locality_wait_host_ms} ms on these hosts, "
        f"then up to {state.settings.locality_wait_rack_ms} ms in their racks"
    )
    return text, {"hosts": [*hosts], "since": since}


def _for_room(state: ClusterState, app: App, size: Resources) -> Wait:
    """No worker is large enough, or none has room; the nearest one is told."""
    live = _usable(state, app)
    if fitting := [worker for worker in live if worker.offer.covers(size)]:
        if not any(worker.beside_drivers.covers(size) for worker in fitting):
            return Wait("workers-full", "P1", partial(_drivers_stay, fitting, size))
        return Wait("workers-full", "P1", partial(_nearest, live, size, of_free=True))
    return Wait("no-worker-large-enough", "P1", partial(_nearest, live, size, of_free=False))


def _drivers_stay(workers: list[Worker], size: Resources) -> Told:
    """Drivers, which are never taken (H6), leave less than `size` on each worker that offers it."""
    text, facts = _nearest(workers, size, of_free=True)
    drivers = [name for worker in workers for name in worker.drivers]
    text += f"; drivers leave too little on every worker that is large enough: {few(drivers, _NAMED)}"
    return text, {**facts, "drivers": drivers}


def _nearest(live: list[Worker], size: Resources, *, of_free: bool) -> Told:
    """The live worker with the largest part of `size`, of its free resources or of its offer."""
    worker, has = nearest(((one.id, one.open_to(None) if of_free else one.offer) for one in live), size)
    facts = {
        "cores": size.cores,
        "memory": size.memory_mb,
        **_others(app=size),
        "nearest": {
            "worker": worker,
            "cores": has.cores,
            "memory": has.memory_mb,
            **_others(worker=has),
            "free": of_free,
        },
    }
    if of_free:
        return f"no worker has {size} free; the nearest is {worker} with {has} free", facts
    return f"no worker offers {size}; the nearest is {worker} with {has}", facts
