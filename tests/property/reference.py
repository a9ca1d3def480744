"""The rules as naive scans over all companies, users, apps and workers.

Slow and short on purpose. It uses none of the scheduler's indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from fractions import Fraction

from scheduler.model.events import Computed, Fixed, OnePerWorker
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.workers import Worker
from scheduler.rules.state.cluster import ClusterState
from tests.property.lawful import companies_in, departments_above

Choice = tuple[str, str, str, str]
"""App, company, user and the company's share before."""

INFINITE = Fraction(10**30)


def live(state: ClusterState) -> list[Worker]:
    """The workers that count (semantics W1)."""
    return [worker for worker in state.workers.values() if worker.status == "alive"]


def granted(state: ClusterState, company: str, user: str | None = None) -> tuple[int, int]:
    """What the live executors and drivers of a company, or of one user of it, hold in cores and MiB (semantics O1)."""
    held = [*state.executors.values(), *state.drivers.values()]
    held = [one for one in held if state.apps[one.app].spec.company == company]
    held = [one for one in held if user in (None, state.apps[one.app].spec.user)]
    return sum(one.resources.cores for one in held), sum(one.resources.memory_mb for one in held)


def smallest(state: ClusterState, app: App, per_core: int = 512) -> tuple[int, int]:
    """The smallest executor of an app in cores and MiB; `per_core` if the scheduler sizes it and no task says (A8)."""
    if isinstance(app.sizing, Fixed):
        return app.sizing.each.cores, app.sizing.each.memory_mb
    if isinstance(app.sizing, OnePerWorker):
        return app.spec.cores_per_task, app.sizing.memory_mb
    cores, stated = smallest_cores(state, app), app.sizing.memory_per_task_mb
    needed_mb = cores * per_core if stated is None else cores // app.spec.cores_per_task * stated
    memory_mb = max(state.settings.min_executor_memory_mb, needed_mb)
    return cores, memory_mb + -memory_mb % 256


def smallest_cores(state: ClusterState, app: App) -> int:
    """Cores of the smallest executor that the scheduler gives the app (semantics A7)."""
    doublings = (state.settings.min_executor_cores << number for number in range(64))
    return next(cores for cores in doublings if cores >= app.spec.cores_per_task)


def asks_executors(state: ClusterState, app: App) -> bool:
    """Whether the app wants any executor at all."""
    driver = app.spec.driver
    beside = app.requested.cores - driver.cores if driver is not None and app.spec.cores is not None else 2**31
    return app.executor_limit != 0 and beside >= smallest(state, app)[0]


def needs(state: ClusterState, app: App) -> list[tuple[int, int]]:
    """What a worker must have for the app: room for an executor, and for its driver until that is placed (A8)."""
    driver = app.spec.driver if app.driver is None else None
    return [
        *([smallest(state, app, 256)] if asks_executors(state, app) else []),
        *([(driver.cores, driver.memory_mb)] if driver is not None else []),
    ]


def hostable(state: ClusterState, app: App) -> bool:
    """Whether live workers could host the app if they were empty (semantics N3)."""
    return all(
        any(worker.offer.cores >= cores and worker.offer.memory_mb >= memory_mb for worker in live(state))
        for cores, memory_mb in needs(state, app)
    )


def still(state: ClusterState, app: App) -> tuple[int, int]:
    """What an admitted app can still use, at most the live cluster (semantics A8)."""
    if not app.admitted or app.ended is not None or app.expired_at or not hostable(state, app):
        return 0, 0
    waits = app.spec.driver if app.driver is None else None
    driver = (waits.cores, waits.memory_mb) if waits is not None else (0, 0)
    left_mb = app.requested.memory_mb - app.granted.memory_mb - driver[1]
    cores, memory_mb = smallest(state, app)
    number = min(app.left_cores // cores, left_mb // memory_mb, app.left_executors)
    offered = [sum(one.offer.cores for one in live(state)), sum(one.offer.memory_mb for one in live(state))]
    if not asks_executors(state, app) or number < 1:
        more = 0, 0
    elif isinstance(app.sizing, OnePerWorker):
        whole = app.left_cores - app.left_cores % app.spec.cores_per_task
        more = min(whole, offered[0]), min(left_mb, offered[1])
    else:
        number = min(number, offered[0] // cores, offered[1] // memory_mb)
        more = number * cores, number * memory_mb
    return more[0] + driver[0], more[1] + driver[1]


def claimed(
    state: ClusterState, company: str | None = None, user: str | None = None, *, lent: bool = False
) -> tuple[int, int]:
    """What these apps claim; without what elastic ones claim beyond MIN if `lent` (A8, E7)."""
    cores = memory_mb = 0
    for app in state.apps.values():
        if company not in (None, app.spec.company) or user not in (None, app.spec.user):
            continue
        more = still(state, app)
        held = [one.resources for one in app.allocations() if state.workers[one.worker].status == "alive"]
        claim = more[0] + sum(one.cores for one in held), more[1] + sum(one.memory_mb for one in held)
        if lent and app.spec.elastic is not None and app.admitted and not app.over:
            each, driver = smallest(state, app), app.spec.driver or Resources()
            least = [each[n] * app.spec.elastic.least + [*driver][n] for n in (0, 1)]
            claim = min(claim[0], least[0]), min(claim[1], least[1])
        cores, memory_mb = cores + claim[0], memory_mb + claim[1]
    return cores, memory_mb


def limits(state: ClusterState, app: App, name: str) -> dict[str | None, int]:
    """The limits of that name on the app: of its company (None), and of its user (semantics N1)."""
    values, company, user = state.limits.values, app.spec.company, app.spec.user
    found: dict[str | None, int] = {}
    for whose, holders in ((None, ((company, ""), ("", ""))), (user, ((company, user), (company, "*")))):
        given = [values[holder][name] for holder in holders if name in values.get(holder, {})]
        if given:
            found[whose] = given[0]
    return found


def within(state: ClusterState, app: App) -> bool:
    """Whether the app keeps its company and its user within their limits now (semantics N2)."""
    company = app.spec.company
    for n, name, asked in ((0, "max_cores", app.requested.cores), (1, "max_memory_mb", app.requested.memory_mb)):
        for user, limit in limits(state, app, name).items():
            if asked and claimed(state, company, user)[n] + asked > limit:
                return False
    return all(
        sum(one.spec.company == company and user in (None, one.spec.user) for one in state.waiting.values()) < limit
        for user, limit in limits(state, app, "max_running_apps").items()
    )


def within_above(state: ClusterState, app: App, before: Sequence[App] = ()) -> bool:
    """Whether the app, after those `before` it, keeps the departments above within their limits now (N2, H12)."""
    asked = sum([one.requested for one in before], app.requested)
    for name in departments_above(state, app.spec.company):
        theirs = companies_in(state, name)
        given = state.limits.values.get(("", name), {})
        claims = [claimed(state, company) for company in theirs]
        cores, memory_mb = (sum(claim[n] for claim in claims) for n in (0, 1))
        running = sum(one.spec.company in theirs for one in state.waiting.values())
        for limit, more, present in (
            ("max_cores", asked.cores, cores),
            ("max_memory_mb", asked.memory_mb, memory_mb),
            ("max_running_apps", len(before) + 1, running),
        ):
            if limit in given and more and present + more > given[limit]:
                return False
    return True


class Past:
    """What companies were granted over time, recorded event by event."""

    def __init__(self) -> None:
        self.used: dict[str, tuple[int, int]] = {}
        self._at = 0
        self._rates: dict[str, tuple[int, int]] = {}
        self._half_life_ms = 0

    def note(self, state: ClusterState) -> None:
        """Take in the state after the next event; to be called once for each."""
        self._note_usage(state)
        self._at = state.at

    def _note_usage(self, state: ClusterState) -> None:
        for name in state.companies:
            core_ms, memory_mb_ms = self.used.get(name, (0, 0))
            cores, memory_mb = self._rates.get(name, (0, 0))
            now, half_life_ms = self._at, self._half_life_ms
            while name in self._rates and now < state.at:
                until = min(state.at, (now // half_life_ms + 1) * half_life_ms)
                core_ms, memory_mb_ms = core_ms + cores * (until - now), memory_mb_ms + memory_mb * (until - now)
                if until % half_life_ms == 0:
                    core_ms, memory_mb_ms = core_ms // 2, memory_mb_ms // 2
                now = until
            self.used[name] = core_ms, memory_mb_ms
        self.used = {name: self.used[name] for name in state.companies}
        self._rates = {name: granted(state, name) for name in state.companies}
        self._half_life_ms = state.settings.half_life_s * 1000


def memory_of_executor(state: ClusterState, app: App, cores: int) -> int | None:
    """Memory of an executor of so many cores, None where no usable worker has them (semantics S3)."""
    settings = state.settings
    assert isinstance(app.sizing, Computed)
    per_task, number = app.sizing.memory_per_task_mb, cores // app.spec.cores_per_task
    if per_task is None:
        enough = [worker.open_to(None).memory_mb for worker in usable(state) if worker.open_to(None).cores >= cores]
        if not enough:
            return None
        per_task, number = 256 if Fraction(min(enough), cores) <= 256 else 512, cores
    memory_mb = max(per_task * number, settings.min_executor_memory_mb)
    return memory_mb + -memory_mb % 256


def usable(state: ClusterState) -> list[Worker]:
    """The live workers with room for a minimum executor (semantics S2)."""
    least = state.settings
    return [
        worker
        for worker in live(state)
        if worker.open_to(None).cores >= least.min_executor_cores
        and worker.open_to(None).memory_mb >= least.min_executor_memory_mb
    ]


def sorted_workers(state: ClusterState, cores: int, memory_mb: int) -> list[Worker]:
    """The live workers with that much room, in the order of the setting (semantics P1)."""
    fitting = [
        worker
        for worker in live(state)
        if worker.open_to(None).cores >= cores and worker.open_to(None).memory_mb >= memory_mb
    ]
    match state.settings.worker_selection.split("-"):
        case ["worker", "id"]:
            return sorted(fitting, key=lambda worker: worker.id)
        case [dimension, "free", direction]:
            return sorted(
                fitting,
                key=lambda worker: (
                    worker.open_to(None).cores if dimension == "cores" else worker.open_to(None).memory_mb,
                    worker.id,
                ),
                reverse=direction == "desc",
            )
    raise AssertionError(state.settings.worker_selection)


def tries(state: ClusterState, app: App) -> list[set[str]]:
    """The workers that are left out for the app, try after try (semantics W7, W9)."""
    settings = state.settings
    counts = settings.exclude_after if settings.admission == "fair" else 0
    recent = {name: one for name, one in app.troubles.items() if state.at - one.at < settings.exclude_s * 1000}
    unstartable = {name for name, one in recent.items() if one.unstartable}
    excluded = {name for name, one in recent.items() if 0 < counts <= one.ends} | unstartable
    found = [set(recent) if counts else unstartable, excluded]
    cores, memory_mb = smallest(state, app, per_core=256)

    def others(without: set[str]) -> bool:
        known = [one.offer for one in live(state) if one.id not in without]
        return any(offer.cores >= cores and offer.memory_mb >= memory_mb for offer in known)

    if excluded and not others(excluded):
        found.append(unstartable)
        if unstartable and not others(unstartable):
            found.append(set())
    return found


def seen(state: ClusterState, app: App, without: set[str], *, lent: bool = False) -> ClusterState:
    """The state with what is free to the app for what is free, nothing on some workers (semantics P8, W7, W8, H11)."""
    shown = copy(state)
    shown.workers = {
        name: replace(worker, free=NOTHING if name in without else open_to(state, worker, app, lent=lent), holds={})
        for name, worker in state.workers.items()
    }
    return shown


def open_to(state: ClusterState, worker: Worker, app: App, *, lent: bool) -> Resources:
    """What is free to the app; `lent`: also where somebody else's target is that it ends before (semantics H6, H11)."""
    mine = worker.open_to(app.id)
    if not lent or app.max_runtime_s is None or not worker.holds:
        return mine
    (target,) = worker.holds.values()
    settings, claimant = state.settings, state.apps[target.app]
    ran_ms = app.ran_ms + (0 if app.running_since is None else state.at - app.running_since)
    left_ms = max(0, app.max_runtime_s * 1000 - ran_ms)
    grace_s = max(settings.kill_grace_s, app.spec.grace_s or 0)
    ends = state.at + left_ms + 1000 * (grace_s + 5 + 4 * settings.worker_timeout_s)
    incomplete = not worker.free.covers(target.amounts)
    return worker.free if incomplete and claimant.lack.units and ends <= claimant.lack.date else mine


def most_on(worker: Worker) -> int:
    """How many executors it gets at once: one if it is on probe (semantics W8)."""
    return 1 if worker.suspicion is not None else 2**31


def next_placement(state: ClusterState, app: App) -> list[tuple[str, int, int]]:
    """(worker, cores, MiB) of each executor that the app gets next (semantics S2-S5, P1-P8, D1, W7)."""
    for lent in (False, True) if state.settings.backfill else (False,):
        for without in tries(state, app):
            placed = _next_placement(seen(state, app, without, lent=lent), app)
            if placed:
                return placed
    return []


def _next_placement(state: ClusterState, app: App) -> list[tuple[str, int, int]]:
    driver = app.spec.driver or NOTHING
    if app.expired_at or (app.spec.driver and (app.driver is None or app.driver.status == "stopping")):
        return []
    held = [one for one in app.executors.values() if not one.moved]
    left = app.requested.cores - sum(one.resources.cores for one in held) - app.done_cores
    left = 2**31 if app.spec.cores is None else left - driver.cores
    left_mb = app.requested.memory_mb - sum(one.resources.memory_mb for one in held) - driver.memory_mb
    limit = 2**31 if app.executor_limit is None else max(0, app.executor_limit - len(held))
    own = {one.worker for one in app.executors.values()} if state.settings.placement.startswith("classic") else set()
    if app.demand.wanted and not state.settings.placement.startswith("classic"):
        return _near(state, app, left_mb)
    if not isinstance(app.sizing, Computed):
        return _as_asked(state, app, (left, left_mb, limit), own)
    return _computed(state, app, (left, left_mb, limit), own)


def _near(state: ClusterState, app: App, left_mb: int) -> list[tuple[str, int, int]]:
    """The oldest request that finds a place near enough, hosts before racks before anything (semantics L5)."""
    assert isinstance(app.sizing, Fixed)
    cores, memory_mb = app.sizing.each
    room = sorted_workers(state, cores, memory_mb)
    most = 2**31 if state.settings.admission == "open" else left_mb // memory_mb
    anywhere = 0
    for level in ("host", "rack"):
        for (hosts, racks), number, since in app.demand.wanted:
            on_host = [worker.id for worker in live(state) if worker.host in (hosts or ())]
            in_rack = [worker.id for worker in live(state) if worker.rack and worker.rack in (racks or ())]
            waited = state.at - since
            wait_ms = state.settings.locality_wait_host_ms if on_host else 0
            if level == "rack" and waited >= wait_ms + (state.settings.locality_wait_rack_ms if in_rack else 0):
                anywhere += number
            if level == "host" or waited >= wait_ms:
                near = [worker for worker in room if worker.id in (on_host if level == "host" else in_rack)]
                placed = _dealt(state, near, (cores, memory_mb), min(number, most))
                if placed:
                    return placed
    return _dealt(state, room, (cores, memory_mb), min(anywhere, most))


def _dealt(
    state: ClusterState, workers: list[Worker], size: tuple[int, int], number: int
) -> list[tuple[str, int, int]]:
    """So many executors, one by one: round and round, or each worker to the full (semantics P2)."""
    placed = dict.fromkeys((worker.id for worker in workers), 0)
    room = {
        one.id: min(one.open_to(None).cores // size[0], one.open_to(None).memory_mb // size[1], most_on(one))
        for one in workers
    }
    while sum(placed.values()) < number and placed != room:
        for worker in placed:
            while placed[worker] < room[worker] and sum(placed.values()) < number:
                placed[worker] += 1
                if state.settings.placement == "spread":
                    break
    return [(worker, *size) for worker, times in placed.items() for _ in range(times)]


def _as_asked(state: ClusterState, app: App, owed: tuple[int, int, int], own: set[str]) -> list[tuple[str, int, int]]:
    """The way Spark does it: a unit at a time, each checked against everything."""
    left, left_mb, limit = owed
    settings, sizing = state.settings, app.sizing
    assert not isinstance(sizing, Computed)
    memory_mb, classic = sizing.memory_mb, settings.placement.startswith("classic")
    fixed = sizing.each.cores if isinstance(sizing, Fixed) and not classic else None
    unit = fixed or app.spec.cores_per_task
    workers = [worker for worker in sorted_workers(state, unit, memory_mb) if worker.id not in own]
    cores, executors = [0] * len(workers), [0] * len(workers)

    def fits(index: int) -> bool:
        worker, new = workers[index], bool(fixed) or not executors[index]
        held_mb = (sum(executors) + 1) * memory_mb
        affordable = settings.admission == "open" or held_mb <= left_mb
        room = (
            worker.open_to(None).memory_mb >= (executors[index] + 1) * memory_mb
            and sum(executors) < limit
            and affordable
            and executors[index] < most_on(worker)
        )
        return left - sum(cores) >= unit and worker.open_to(None).cores - cores[index] >= unit and (room or not new)

    able = [index for index in range(len(workers)) if fits(index)]
    while able:
        for index in able:
            again = True
            while again and fits(index):
                cores[index] += unit
                executors[index] = executors[index] + 1 if fixed else 1
                again = settings.placement.endswith("pack")
        able = [index for index in able if fits(index)]
    return [
        (worker.id, fixed or cores[index], memory_mb)
        for index, worker in enumerate(workers)
        for _ in range(executors[index])
    ]


def packed_worker_by_worker(state: ClusterState, apps: list[App]) -> list[tuple[str, str, int]]:
    """(app, worker, cores) for apps with growing executors, worker by worker and on each app by app (P7)."""
    left = {app.id: min(app.left_cores, 2**31) for app in apps}
    had = {(one.app, one.worker) for one in state.executors.values()}
    count = {app.id: len(app.executors) for app in apps}
    placed = []
    for worker in sorted_workers(state, 1, 1):
        cores, memory_mb = worker.open_to(None).cores, worker.open_to(None).memory_mb
        for app in apps:
            name, needed_mb = app.id, 0 if isinstance(app.sizing, Computed) else app.sizing.memory_mb
            limited = app.executor_limit is not None and count[name] >= app.executor_limit
            got = min(cores, left[name])
            got -= got % app.spec.cores_per_task
            if got > 0 and memory_mb >= needed_mb and (name, worker.id) not in had and not limited:
                placed.append((name, worker.id, got))
                cores, memory_mb = cores - got, memory_mb - needed_mb
                left[name] -= got
                count[name] += 1
    return placed


def _computed(state: ClusterState, app: App, owed: tuple[int, int, int], own: set[str]) -> list[tuple[str, int, int]]:
    left, left_mb, limit = owed
    settings = state.settings
    workers = usable(state)
    least = smallest_cores(state, app)
    cores = max(least, settings.max_executor_cores)
    while cores > least:
        if left >= len(workers) * cores and 2 * sum(worker.open_to(None).cores >= cores for worker in workers) > len(
            workers
        ):
            break
        cores //= 2
    while workers and cores >= least:
        memory_mb = memory_of_executor(state, app, cores)
        small_enough = cores == least or (memory_mb or 0) <= settings.max_executor_memory_mb
        if memory_mb is not None and small_enough:
            placed: dict[str, int] = {}
            count = min(left // cores, left_mb // memory_mb, limit)
            candidates = [worker for worker in sorted_workers(state, cores, memory_mb) if worker.id not in own]
            if settings.placement == "pack":
                candidates = [worker for worker in candidates for _ in range(count)]
            while count and candidates:
                for worker in list(candidates):
                    held = placed.get(worker.id, 0) + 1
                    twice = held > 1 and settings.placement.startswith("classic")
                    if (
                        count
                        and not twice
                        and held <= most_on(worker)
                        and worker.open_to(None).cores >= held * cores
                        and worker.open_to(None).memory_mb >= held * memory_mb
                    ):
                        placed[worker.id] = held
                        count -= 1
                    else:
                        candidates.remove(worker)
            if placed:
                return [(name, cores, memory_mb) for name, times in placed.items() for _ in range(times)]
        cores //= 2
    return []
