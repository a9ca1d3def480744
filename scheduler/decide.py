"""What follows from a command, who is admitted next, and where an app's executors go.

These functions only read the state they are given. Their answers depend on nothing else: no clock,
no randomness, no iteration over an unordered set (semantics T2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from scheduler.commands import (
    ChangeCompany,
    Command,
    ConfigureCluster,
    DrainWorker,
    EndApp,
    EndedExecutor,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterWorker,
    RemoveCompany,
    RemoveWorker,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.errors import (
    AppEnded,
    CompanyInUse,
    DuplicateApp,
    DuplicateCompany,
    DuplicateWorker,
    InvalidCommand,
    OfferTooSmall,
    QuotaExceeded,
    UnknownApp,
    UnknownCompany,
    UnknownExecutor,
    UnknownWorker,
)
from scheduler.events import (
    AppAdmitted,
    AppChanged,
    AppRegistered,
    AppRemoved,
    CompanyChanged,
    CompanyRegistered,
    CompanyRemoved,
    Event,
    ExecutorAllocated,
    ExecutorChanged,
    ExecutorRemoved,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
    WorkerStatus,
)
from scheduler.placement.executors import PLACEMENTS, Counts
from scheduler.placement.sizing import executor_memory_mb, requested_resources, sizes_to_try
from scheduler.resources import Resources
from scheduler.state import App, ClusterState, Company, Executor, Worker
from scheduler.validate import (
    MAX_CORES,
    MAX_MEMORY_MB,
    MAX_TASKS,
    changed_settings,
    check_identifier,
    check_name,
    check_program,
    check_range,
    read_part,
)


def decide(state: ClusterState, command: Command) -> list[Event]:
    """The events that `command` causes by itself; none if it changes nothing.

    Raises: a CommandRejected that says why the command is refused.
    """
    match command:
        case SubmitApp():
            return [_submit(state, command)]
        case EndedExecutor():
            return _executor_ended(state, command)
        case StartedExecutor():
            return _executor_started(state, command)
        case EndApp():
            return _end_app(state, command)
        case KillApp():
            return _kill(state, command)
        case RegisterWorker():
            return _register_worker(state, command)
        case LoseWorker():
            worker = _worker(state, command.worker)
            return [*_lose_executors(state, worker), _removed(worker, "lost", command.last_seen)]
        case DrainWorker():
            return _set_status(_worker(state, command.worker), "draining", only_from=("alive",))
        case UndrainWorker():
            return _set_status(_worker(state, command.worker), "alive", only_from=("draining", "leaving"))
        case RemoveWorker():
            return _remove_worker(state, command)
        case RegisterCompany():
            if command.company in state.companies:
                raise DuplicateCompany(command.company)
            return [_tenant(state, command)]
        case ChangeCompany():
            return _change_company(state, command)
        case RemoveCompany():
            company = _company(state, command.company)
            if company.apps:
                raise CompanyInUse(command.company, company.apps)
            return [CompanyRemoved(company=command.company)]
        case ConfigureCluster():
            settings = changed_settings(state.settings, command.settings)
            return [] if settings == state.settings else [settings]
        case _:
            assert_never(command)


def admit(state: ClusterState) -> AppAdmitted | None:
    """The app that enters waitingApps next, None when the cluster is full or nobody may (semantics A3).

    Admission goes on while what waitingApps requests is below the live cluster in cores and in
    memory, so the last one may overshoot; with no live worker nothing is admitted. What a company has
    asked for beyond its quota and does not hold, any more or yet, makes nobody wait who stays within
    theirs: so borrowed room returns as executors end (C6).
    """
    fleet, requested = state.fleet, state.balance
    cores, memory_mb = requested.requested_cores, requested.requested_memory_mb
    full = cores >= fleet.total_cores or memory_mb >= fleet.total_memory_mb
    if full:
        if not state.queue.borrowers:
            return None
        back_cores, back_mb = state.queue.may_return()
        if cores - back_cores >= fleet.total_cores or memory_mb - back_mb >= fleet.total_memory_mb:
            return None
    first = state.queue.first(within_quota=full)
    if first is None:
        return None
    share = state.queue.share(first.company)
    return AppAdmitted(app=first.app, company=first.company, user=first.user, share=str(share))


def place(state: ClusterState, app: App) -> list[ExecutorAllocated]:
    """The executors of one size that `app` gets next, none when nothing fits for now (semantics S4, P2, P3).

    They come grouped by worker, in the order of the candidates. Once they are folded, another call
    gives what the app gets after that.
    """
    settings, left = state.settings, app.left_cores
    if left < settings.min_executor_cores:
        return []
    for cores in sizes_to_try(state.fleet, left):
        memory_mb = executor_memory_mb(state.fleet, settings, cores, app.spec.memory_per_task_mb)
        if memory_mb is None:
            continue
        limit = min(left // cores, app.left_memory_mb // memory_mb)
        if limit:
            candidates = state.fleet.candidates(cores, memory_mb, settings.worker_selection)
            counts = PLACEMENTS[settings.placement](candidates, Resources(cores, memory_mb), limit)
            if counts:
                return _allocations(app, counts, cores, memory_mb)
    return []


def _allocations(app: App, counts: Counts, cores: int, memory_mb: int) -> list[ExecutorAllocated]:
    """One event an executor; numbers count up per app from 0 and are never used again (semantics P6)."""
    name, number = app.spec.app, app.next_executor
    allocations = []
    for worker, count in counts:
        for _ in range(count):
            allocations.append(
                ExecutorAllocated(
                    app=name, executor=f"{name}.{number}", worker=worker, cores=cores, memory_mb=memory_mb
                )
            )
            number += 1
    return allocations


def unsatisfied(state: ClusterState) -> Iterator[App]:
    """The apps that placement still owes cores, in the order of their admission (semantics P6).

    Those of a company that borrows and holds its quota come after all others (C6). The caller folds
    what `place` gives one app before it asks for the next. Ends early where no worker has room for a
    minimum executor.
    """
    served = 0
    beyond: list[App] = []
    while state.fleet.usable()[-1] and (app := state.next_unsatisfied(served)) is not None:
        served = app.admitted
        if app.spec.company in state.queue.borrowers and state.queue.holds_quota(app.spec.company):
            beyond.append(app)
        else:
            yield app
    for app in beyond:
        if state.fleet.usable()[-1]:
            yield app


def _submit(state: ClusterState, command: SubmitApp) -> AppRegistered:
    """Queue an app under what it will hold (semantics A1, A2); refuse one larger than what its company bought (C4)."""
    company = _company(state, command.company)
    check_identifier("the app id", command.app)
    if command.app in state.apps:
        raise DuplicateApp(command.app)
    if command.user not in company.users:
        check_name("the user", command.user)
    name = command.name or command.app
    check_name("the app's name", name)
    if command.kind not in ("batch", "sql"):
        raise InvalidCommand(f"the kind of an app is batch or sql, not {command.kind[:40]!r}")
    cores = state.settings.default_cores if command.cores is None else command.cores
    check_range("cores", cores, 1, MAX_CORES)
    if command.memory_per_task_mb is not None:
        check_range("memory per task, in MiB,", command.memory_per_task_mb, 1, MAX_MEMORY_MB)
    tasks = cores if command.tasks is None else command.tasks
    check_range("tasks", tasks, 1, MAX_TASKS)
    check_range("retries", command.retries, 0, 1000)
    if command.time_limit_s is not None:
        check_range("the time limit, in seconds,", command.time_limit_s, 1, 10**9)
    check_program(command.command, command.env, command.cwd)
    request = requested_resources(state.settings, cores, command.memory_per_task_mb)
    _check_against_purchase(company, request.cores, request.memory_mb)
    return AppRegistered(
        app=command.app,
        company=command.company,
        user=command.user,
        name=name,
        kind="sql" if command.kind == "sql" else "batch",
        cores=cores,
        requested_cores=request.cores,
        memory_per_task_mb=command.memory_per_task_mb,
        requested_memory_mb=request.memory_mb,
        tasks=tasks,
        command=command.command,
        env=command.env,
        cwd=command.cwd,
        retries=command.retries,
        time_limit_s=command.time_limit_s,
    )


def _check_against_purchase(company: Company, cores: int, memory_mb: int) -> None:
    bought = company.spec
    if bought.cores is not None and cores > bought.cores:
        raise QuotaExceeded(bought.company, "cores", cores, bought.cores)
    if bought.memory_mb is not None and memory_mb > bought.memory_mb:
        raise QuotaExceeded(bought.company, "MiB of memory", memory_mb, bought.memory_mb)


def _executor_started(state: ClusterState, command: StartedExecutor) -> list[Event]:
    executor = _executor(state, command.executor)
    return [ExecutorChanged(executor=executor.id)] if executor.status == "starting" else []


def _executor_ended(state: ClusterState, command: EndedExecutor) -> list[Event]:
    """The grant returns; tasks that came back undo what was done (S6), too many failures end the app (W5)."""
    executor = _executor(state, command.executor)
    if command.done and command.reason != "exited":
        raise InvalidCommand(f"an executor that found no task left has exited, it has not {command.reason}")
    app, worker = state.apps[executor.app], state.workers[executor.worker]
    events: list[Event] = [
        ExecutorRemoved(
            app=executor.app,
            executor=executor.id,
            worker=executor.worker,
            reason=command.reason,
            exit_code=command.exit_code,
            done=command.done,
        )
    ]
    if app.ended is None and not command.done:
        events += _tasks_came_back(app)
        running = app.running - (executor.status == "running")
        failures = app.failures + 1
        if command.reason == "failed" and not running and failures >= state.settings.max_executor_failures:
            detail = f"{failures} executors ended abnormally with none running"
            events.append(AppRemoved(app=executor.app, reason="failed", detail=detail))
    if worker.status == "leaving" and len(worker.executors) == 1:
        events.append(_removed(worker, "removed"))
    return events


def _end_app(state: ClusterState, command: EndApp) -> list[Event]:
    app = _app(state, command.app)
    if app.ended is not None:
        return []
    return [AppRemoved(app=command.app, reason=command.reason, detail=command.detail)]


def _kill(state: ClusterState, command: KillApp) -> list[Event]:
    app = _app(state, command.app)
    if app.ended is not None:
        raise AppEnded(command.app, app.ended)
    return [AppRemoved(app=command.app, reason="killed")]


def _register_worker(state: ClusterState, command: RegisterWorker) -> list[Event]:
    """A new offer, a changed one, or nothing if it is the same again (semantics W1)."""
    check_identifier("the worker id", command.worker)
    for what, value in (("the node", command.node), ("the host", command.host), ("the rack", command.rack)):
        if value or what != "the rack":
            check_name(what, value)
    check_range("a worker's cores", command.cores, 1, MAX_CORES)
    check_range("a worker's memory, in MiB,", command.memory_mb, 1, MAX_MEMORY_MB)
    worker = state.workers.get(command.worker)
    if worker is None:
        return [WorkerRegistered(**command.model_dump(exclude={"type"}))]
    if (worker.node, worker.host, worker.rack) != (command.node, command.host, command.rack):
        raise DuplicateWorker(worker.id, worker.host, worker.rack)
    if worker.offer == (command.cores, command.memory_mb):
        return []
    held_cores, held_mb = worker.cores - worker.free_cores, worker.memory_mb - worker.free_memory_mb
    if command.cores < held_cores:
        raise OfferTooSmall(worker.id, "cores", command.cores, held_cores)
    if command.memory_mb < held_mb:
        raise OfferTooSmall(worker.id, "MiB", command.memory_mb, held_mb)
    return [WorkerChanged(worker=worker.id, status=worker.status, cores=command.cores, memory_mb=command.memory_mb)]


def _set_status(worker: Worker, status: WorkerStatus, *, only_from: tuple[WorkerStatus, ...]) -> list[Event]:
    if worker.status not in only_from:
        return []
    return [WorkerChanged(worker=worker.id, status=status, cores=worker.cores, memory_mb=worker.memory_mb)]


def _remove_worker(state: ClusterState, command: RemoveWorker) -> list[Event]:
    """Out at once if it is empty or forced, else as soon as its last executor has ended (semantics W3)."""
    worker = _worker(state, command.worker)
    if worker.executors and not command.force:
        return _set_status(worker, "leaving", only_from=("alive", "draining", "decommissioned"))
    return [*_lose_executors(state, worker), _removed(worker, "removed")]


def _removed(worker: Worker, reason: str, last_seen: int = 0) -> WorkerRemoved:
    return WorkerRemoved(worker=worker.id, reason="lost" if reason == "lost" else "removed", last_seen=last_seen)


def _lose_executors(state: ClusterState, worker: Worker) -> list[Event]:
    """Every executor of the worker is lost; its apps keep their place and their tasks come back (semantics W2)."""
    events: list[Event] = [
        ExecutorRemoved(app=executor.app, executor=executor.id, worker=worker.id, reason="lost")
        for executor in worker.executors.values()
    ]
    for name in dict.fromkeys(executor.app for executor in worker.executors.values()):
        app = state.apps[name]
        if app.ended is None:
            events += _tasks_came_back(app)
    return events


def _tasks_came_back(app: App) -> list[Event]:
    """What earlier executors were done with is owed again (semantics S6)."""
    if not app.done_cores:
        return []
    return [
        AppChanged(
            app=app.spec.app,
            requested_cores=app.requested_cores,
            requested_memory_mb=app.requested_memory_mb,
            done_cores=0,
        )
    ]


def _tenant(state: ClusterState, command: RegisterCompany | ChangeCompany) -> CompanyRegistered:
    """The company and its quota as the log states them (semantics C2)."""
    check_name("the company", command.company)
    part = read_part(command.part) if command.part is not None else None
    if (command.cores is None) != (command.memory_mb is None):
        raise InvalidCommand("a quota of amounts needs both cores and memory")
    if command.cores is not None and command.memory_mb is not None:
        if part is not None:
            raise InvalidCommand("a quota is either amounts of cores and memory or a part of the cluster, not both")
        settings = state.settings
        check_range("a quota's cores", command.cores, settings.min_executor_cores, 1000 * MAX_CORES)
        check_range("a quota's memory, in MiB,", command.memory_mb, settings.min_executor_memory_mb, MAX_MEMORY_MB)
    return CompanyRegistered(
        company=command.company,
        cores=command.cores,
        memory_mb=command.memory_mb,
        part=part,
        borrow=bool(command.borrow),
    )


def _change_company(state: ClusterState, command: ChangeCompany) -> list[Event]:
    """The quota stated, in full; what the command leaves open stays as it is (semantics C2, C6)."""
    stated = _tenant(state, command).model_dump()
    known = _company(state, command.company).spec.model_dump()
    if command.borrow is None:
        stated["borrow"] = known["borrow"]
    elif command.cores is None and command.part is None:
        stated = {**known, "borrow": command.borrow}
    return [] if stated == known else [CompanyChanged(**stated)]


def _company(state: ClusterState, name: str) -> Company:
    try:
        return state.companies[name]
    except KeyError:
        raise UnknownCompany(name[:80]) from None


def _app(state: ClusterState, name: str) -> App:
    try:
        return state.apps[name]
    except KeyError:
        raise UnknownApp(name[:80]) from None


def _worker(state: ClusterState, name: str) -> Worker:
    try:
        return state.workers[name]
    except KeyError:
        raise UnknownWorker(name[:80]) from None


def _executor(state: ClusterState, name: str) -> Executor:
    try:
        return state.executors[name]
    except KeyError:
        raise UnknownExecutor(name[:80]) from None
