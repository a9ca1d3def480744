"""What the rules say, worked out the naive way: by a scan over all companies, users, apps and workers.

Slow and short on purpose. Nothing here looks at the indexes that the scheduler keeps up to date.
"""

from __future__ import annotations

from fractions import Fraction

from scheduler.state import App, ClusterState, Company, Worker

Choice = tuple[str, str, str, str]
"""App, company, user and the company's share before."""

INFINITE = Fraction(10**30)


def live(state: ClusterState) -> list[Worker]:
    """The workers that count (semantics A4)."""
    return [worker for worker in state.workers.values() if worker.status == "alive"]


def quota(state: ClusterState, company: Company) -> tuple[Fraction, Fraction]:
    """What a company may hold, in cores and MiB (semantics C2)."""
    if company.spec.cores is not None and company.spec.memory_mb is not None:
        return Fraction(company.spec.cores), Fraction(company.spec.memory_mb)
    part = Fraction(company.spec.part) if company.spec.part else Fraction(1, len(state.companies))
    return part * sum(worker.cores for worker in live(state)), part * sum(worker.memory_mb for worker in live(state))


def requested(state: ClusterState, company: str | None = None) -> tuple[int, int]:
    """What waitingApps, or a company's apps in it, request in cores and MiB (semantics O1)."""
    apps = [app for app in state.apps.values() if app.admitted and app.ended is None]
    held = [app for app in apps if company in (None, app.spec.company)]
    return sum(app.requested_cores for app in held), sum(app.requested_memory_mb for app in held)


def granted(state: ClusterState, company: str) -> tuple[int, int]:
    """What a company's live executors hold in cores and MiB (semantics O1)."""
    held = [one for one in (*state.executors.values(), *state.drivers.values()) if _company(state, one.app) == company]
    return sum(one.cores for one in held), sum(one.memory_mb for one in held)


def _company(state: ClusterState, app: str) -> str:
    return state.apps[app].spec.company


def passes_cap(state: ClusterState, company: Company, app: App) -> bool:
    """Whether the app leaves its company within its quota (semantics C4)."""
    cores, memory_mb = requested(state, company.spec.company)
    if company.spec.cores is None and company.spec.part is None and not cores and not memory_mb:
        return True
    quota_cores, quota_mb = quota(state, company)
    return cores + app.requested_cores <= quota_cores and memory_mb + app.requested_memory_mb <= quota_mb


def share(state: ClusterState, company: Company) -> Fraction:
    """How much of its quota a company occupies; a quota of 0 is exceeded without bound (semantics C3, O3)."""
    occupied = (granted if state.settings.occupancy == "granted" else requested)(state, company.spec.company)
    ratios = [
        Fraction(held) / bought if bought else INFINITE * min(held, 1)
        for held, bought in zip(occupied, quota(state, company), strict=True)
    ]
    return min(max(ratios), INFINITE)


def next_admission(state: ClusterState) -> Choice | None:
    """Who is admitted next (semantics A3, A6, C1-C4, U1, U2, F1, F2)."""
    if state.settings.admission == "open":
        return _oldest(state)
    cores, memory_mb = requested(state)
    workers = live(state)
    if cores >= sum(worker.cores for worker in workers) or memory_mb >= sum(worker.memory_mb for worker in workers):
        return None
    sql_first = state.settings.app_policy == "sql-first"
    ranked = []
    for name, company in state.companies.items():
        users = []
        for user_name, user in company.users.items():
            mine = [app for app in state.apps.values() if (app.spec.company, app.spec.user) == (name, user_name)]
            queue = [app for app in mine if app.state == "pending"]
            if queue:
                head = min(queue, key=lambda app: (sql_first and app.spec.kind != "sql", app.submitted))
                if passes_cap(state, company, head):
                    oldest = 0 if user.last_selected else min(app.submitted for app in queue)
                    users.append((user.last_selected, oldest, user_name, head.spec.app))
        if users:
            ranked.append((share(state, company), company.last_selected, name, *min(users)[2:]))
    if not ranked:
        return None
    part, _, company_name, user_name, app_name = min(ranked)
    printed = "1/0" if part == INFINITE else f"{part.numerator}/{part.denominator}"
    return app_name, company_name, user_name, printed


def _oldest(state: ClusterState) -> Choice | None:
    pending = [app for app in state.apps.values() if app.state == "pending"]
    if not pending:
        return None
    first = min(pending, key=lambda app: app.submitted).spec
    part = share(state, state.companies[first.company])
    return first.app, first.company, first.user, "1/0" if part == INFINITE else f"{part.numerator}/{part.denominator}"


def memory_of_executor(state: ClusterState, app: App, cores: int) -> int | None:
    """Memory of an executor of so many cores, None where no usable worker has them (semantics S3)."""
    settings = state.settings
    per_core = app.spec.memory_per_task_mb
    if per_core is None:
        enough = [worker.free_memory_mb for worker in usable(state) if worker.free_cores >= cores]
        if not enough:
            return None
        per_core = 256 if Fraction(min(enough), cores) <= 256 else 512
    memory_mb = max(per_core * cores, settings.min_executor_memory_mb)
    return memory_mb + -memory_mb % 256


def usable(state: ClusterState) -> list[Worker]:
    """The live workers with room for a minimum executor (semantics S1)."""
    least = state.settings
    return [
        worker
        for worker in live(state)
        if worker.free_cores >= least.min_executor_cores and worker.free_memory_mb >= least.min_executor_memory_mb
    ]


def sorted_workers(state: ClusterState, cores: int, memory_mb: int) -> list[Worker]:
    """The live workers with that much room, in the order of the setting (semantics P1)."""
    fitting = [worker for worker in live(state) if worker.free_cores >= cores and worker.free_memory_mb >= memory_mb]
    match state.settings.worker_selection.split("-"):
        case ["worker", "id"]:
            return sorted(fitting, key=lambda worker: worker.id)
        case [dimension, "free", direction]:
            return sorted(
                fitting,
                key=lambda worker: (worker.free_cores if dimension == "cores" else worker.free_memory_mb, worker.id),
                reverse=direction == "desc",
            )
    raise AssertionError(state.settings.worker_selection)


def next_placement(state: ClusterState, app: App) -> list[tuple[str, int, int]]:
    """(worker, cores, MiB) of each executor that the app gets next (semantics S2-S5, P1-P7, D1)."""
    if app.spec.driver and (app.driver is None or app.driver.status == "stopping"):
        return []
    left = app.requested_cores - sum(one.cores for one in app.executors.values()) - app.done_cores
    left = 2**31 if app.spec.unlimited else left - app.spec.driver_cores
    left_mb = app.requested_memory_mb - sum(one.memory_mb for one in app.executors.values()) - app.spec.driver_memory_mb
    limit = 2**31 if app.executor_limit is None else max(0, app.executor_limit - len(app.executors))
    own = {one.worker for one in app.executors.values()} if state.settings.placement.startswith("classic") else set()
    if app.wanted and not state.settings.placement.startswith("classic"):
        return _near(state, app, left_mb)
    if app.unit is not None or app.spec.sizing != "computed":
        return _as_asked(state, app, (left, left_mb, limit), own)
    return _computed(state, app, (left, left_mb, limit), own)


def _near(state: ClusterState, app: App, left_mb: int) -> list[tuple[str, int, int]]:
    """The oldest request that finds a place near enough, hosts before racks before anything (semantics L5)."""
    assert app.unit is not None
    cores, memory_mb = app.unit
    room = sorted_workers(state, cores, memory_mb)
    most = 2**31 if state.settings.admission == "open" else left_mb // memory_mb
    anywhere = 0
    for level in ("host", "rack"):
        for (hosts, racks), number, since in app.wanted:
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
    """So many executors, one by one: round and round, or each worker to the full (semantics P2, P3)."""
    placed = dict.fromkeys((worker.id for worker in workers), 0)
    room = {one.id: min(one.free_cores // size[0], one.free_memory_mb // size[1]) for one in workers}
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
    settings, memory_mb = state.settings, app.unit[1] if app.unit else app.spec.executor_memory_mb or 0
    fixed = app.unit[0] if app.unit and not settings.placement.startswith("classic") else None
    unit = fixed or 1
    workers = [worker for worker in sorted_workers(state, unit, memory_mb) if worker.id not in own]
    cores, executors = [0] * len(workers), [0] * len(workers)

    def fits(index: int) -> bool:
        worker, new = workers[index], bool(fixed) or not executors[index]
        held_mb = (sum(executors) + 1) * memory_mb
        affordable = settings.admission == "open" or held_mb <= left_mb
        room = worker.free_memory_mb >= (executors[index] + 1) * memory_mb and sum(executors) < limit and affordable
        return left - sum(cores) >= unit and worker.free_cores - cores[index] >= unit and (room or not new)

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


def _computed(state: ClusterState, app: App, owed: tuple[int, int, int], own: set[str]) -> list[tuple[str, int, int]]:
    left, left_mb, limit = owed
    settings = state.settings
    workers = usable(state)
    cores = settings.max_executor_cores
    while cores > settings.min_executor_cores:
        if left >= len(workers) * cores and 2 * sum(worker.free_cores >= cores for worker in workers) > len(workers):
            break
        cores //= 2
    while workers and cores >= settings.min_executor_cores:
        memory_mb = memory_of_executor(state, app, cores)
        small_enough = cores == settings.min_executor_cores or (memory_mb or 0) <= settings.max_executor_memory_mb
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
                        and worker.free_cores >= held * cores
                        and worker.free_memory_mb >= held * memory_mb
                    ):
                        placed[worker.id] = held
                        count -= 1
                    else:
                        candidates.remove(worker)
            if placed:
                return [(name, cores, memory_mb) for name, times in placed.items() for _ in range(times)]
        cores //= 2
    return []
