"""What follows from a command, who is admitted next, and where an app's executors go.

These functions only read the state they are given. Their answers depend on nothing else: no clock,
no randomness, no iteration over an unordered set (semantics T2). The module is longer than most because
whatever a command can cause stands in it; what a submission becomes is in `submission`, how executors and
drivers find their workers in `placement`.
"""

from __future__ import annotations

from typing import Literal, assert_never

from msgspec.structs import asdict

from scheduler.model.commands import (
    ChangeCompany,
    Command,
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    EndApp,
    EndedDriver,
    EndedExecutor,
    KillApp,
    KillExecutors,
    LoseWorker,
    RegisterCompany,
    RegisterWorker,
    RemoveCompany,
    RemoveWorker,
    ReportBacklog,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import (
    AppEnded,
    CompanyInUse,
    DuplicateCompany,
    DuplicateWorker,
    InvalidCommand,
    OfferTooSmall,
    UnknownApp,
    UnknownCompany,
    UnknownDriver,
    UnknownExecutor,
    UnknownWorker,
)
from scheduler.model.events import (
    AppAdmitted,
    AppRemoved,
    CompanyChanged,
    CompanyRegistered,
    CompanyRemoved,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorChanged,
    ExecutorRemoved,
    ExecutorRevoked,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
    WorkerStatus,
)
from scheduler.model.resources import NOTHING, Resources, kinds
from scheduler.rules.admission.quota import Pending
from scheduler.rules.demand import after_removal, backlog, scaled
from scheduler.rules.entities import Allocation, App, Company, Worker
from scheduler.rules.fleet import Candidates
from scheduler.rules.placement.executors import PLACEMENTS, allocation, allocations
from scheduler.rules.placement.locality import place_near
from scheduler.rules.placement.sizing import executor_memory_mb, sizes_to_try
from scheduler.rules.state import ClusterState
from scheduler.rules.submission import registration
from scheduler.rules.validate import (
    MAX_CORES,
    MAX_MEMORY_MB,
    changed_settings,
    check_identifier,
    check_name,
    check_range,
    read_part,
)


def decide(state: ClusterState, command: Command) -> list[Event]:
    """The events that `command` causes by itself; none if it changes nothing.

    Raises: a CommandRejected that says why the command is refused.
    """
    match command:
        case SubmitApp():
            return [registration(state, _company(state, command.company), command)]
        case EndedExecutor():
            return _executor_ended(state, command)
        case StartedExecutor():
            return _executor_started(state, command)
        case EndApp():
            return _end_app(state, command)
        case KillApp():
            return _kill(state, command)
        case ScaleApp():
            return scaled(state, _living(state, command.app), command)
        case KillExecutors():
            return _kill_executors(state, command)
        case ReportBacklog():
            executor = _executor(state, command.executor)
            return backlog(state.apps[executor.app], executor, command)
        case EndedDriver():
            return _driver_ended(state, command)
        case RegisterWorker():
            return _register_worker(state, command)
        case LoseWorker():
            worker = _worker(state, command.worker)
            return [*_lose_all(state, worker), _removed(worker, "lost", command.last_seen)]
        case DrainWorker():
            return _set_status(_worker(state, command.worker), "draining", only_from=("alive",))
        case DecommissionWorker():
            return _decommission(state, _worker(state, command.worker))
        case UndrainWorker():
            return _undrain(_worker(state, command.worker))
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
    """The app that enters waitingApps next, None when nobody may (semantics A3).

    First those that keep their company within its part, whatever others hold: it is theirs. Then, while all claims
    together are below the live cluster in cores and in memory, the others that C4 or C6 lets pass, so that the last
    one may overshoot. With no live worker nothing is admitted. With open admission everybody enters at once, in the
    order of arrival (A6).
    """
    if state.settings.admission == "open":
        first = state.queue.oldest()
    elif not state.fleet.live:
        first = None
    else:
        first = state.queue.next_within()
        if first is None:
            first = state.queue.next_beyond(lambda lent: not is_full(state, lent))
    return None if first is None else admission(state, first)


def admission(state: ClusterState, app: Pending, *, filling: bool = False) -> AppAdmitted:
    """The event that admits the app; `filling`: although claims fill the cluster (semantics A9)."""
    share = state.queue.share(app.company)
    lent = state.settings.admission == "fair" and state.queue.on_lent(app, full=is_full(state), filling=filling)
    return AppAdmitted(app=app.app, company=app.company, user=app.user, share=str(share), lent=lent)


def place(state: ClusterState, app: App, at: int, most: Resources | None = None) -> list[ExecutorAllocated]:
    """The executors that `app` gets next at time `at` (ms), none when nothing fits for now.

    With `most`, whole executors that fit into that much (semantics P6). They come grouped by worker, in the order of the candidates. Once they are folded, another call
    gives what the app gets after that.
    """
    if not app.owed:
        return []
    if app.plain or app.sized_by_scheduler:
        return _place_computed(state, app, most)
    if app.wanted and app.unit is not None and not PLACEMENTS[state.settings.placement].one_a_worker:
        return place_near(state, app, app.unit, at, most)
    return _place_as_asked(state, app, most)


def _place_computed(state: ClusterState, app: App, most: Resources | None) -> list[ExecutorAllocated]:
    """Executors of one size that the scheduler works out (semantics S4, P2, P3)."""
    settings, left = state.settings, app.left_cores
    if most is not None:
        smallest = app.need.executor
        left = min(left, most.holds(smallest) * smallest.cores)
    if left < settings.min_executor_cores:
        return []
    for cores in sizes_to_try(state.fleet, left):
        memory_mb = executor_memory_mb(state.fleet, settings, cores, app.spec.memory_per_task_mb)
        if memory_mb is None:
            continue
        limit = min(left // cores, app.left_memory_mb // memory_mb, app.left_executors)
        if limit:
            size = Resources(cores, memory_mb)
            counts = PLACEMENTS[settings.placement].of_size(_candidates(state, app, size), size, limit)
            if counts:
                return allocations(app, counts, size)
    return []


def _place_as_asked(state: ClusterState, app: App, most: Resources | None) -> list[ExecutorAllocated]:
    """Executors as the app wants them: of fixed size, or growing with one a worker (semantics S5, P4, P5, P7).

    With fair admission their memory never exceeds what the app requested (A2).
    """
    settings, left = state.settings, app.left_cores
    placement = PLACEMENTS[settings.placement]
    cores, memory_mb = None if app.unit is None else app.unit.cores, app.executor_memory_mb or 0
    limit = app.left_executors
    if settings.admission == "fair":
        limit = min(limit, app.left_memory_mb // memory_mb)
    if most is not None:
        left, limit = min(left, most.cores), min(limit, most.memory_mb // memory_mb)
    if limit <= 0:
        return []
    if cores is not None and not placement.one_a_worker:
        size = Resources(cores, memory_mb)
        counts = placement.of_size(_candidates(state, app, size), size, min(limit, left // cores))
        return allocations(app, counts, size)
    grown = placement.growing(_candidates(state, app, Resources(1, memory_mb)), left, limit)
    return [
        allocation(app, number, worker, Resources(cores, memory_mb))
        for number, (worker, cores) in enumerate(grown, start=app.next_executor)
    ]


def _candidates(state: ClusterState, app: App, size: Resources) -> Candidates:
    """The workers with room (semantics P1), by the rules before Spark 1.4 without those that have one of it (P7)."""
    candidates = state.fleet.candidates(size, state.settings.worker_selection)
    if not PLACEMENTS[state.settings.placement].one_a_worker or not app.executors:
        return candidates
    own = {executor.worker for executor in app.executors.values()}
    return (candidate for candidate in candidates if candidate[0] not in own)


def is_full(state: ClusterState, but: Resources = NOTHING) -> bool:
    """Whether all claims together, without that much, are all that the live cluster has of some kind (semantics A3)."""
    return (state.claims.total.claimed - but).reaches(state.fleet.total)


def _executor_started(state: ClusterState, command: StartedExecutor) -> list[Event]:
    executor = _executor(state, command.executor)
    starting = executor.status == "starting" and _is_its_worker(executor, command.worker)
    return [ExecutorChanged(executor=executor.id)] if starting else []


def _is_its_worker(held: Allocation, worker: str) -> bool:
    """Whether the log grants the executor or driver to the worker that speaks of it; one that gives no name may."""
    return worker in {"", held.worker}


def _executor_ended(state: ClusterState, command: EndedExecutor) -> list[Event]:
    """The grant returns; tasks that came back undo what was done (S6), too many failures end the app (W5).

    One that was told to stop has not failed, whatever it says, and leaves what is done as it is.
    """
    executor = _executor(state, command.executor)
    if command.done and command.reason != "exited":
        raise InvalidCommand(f"an executor that found no task left must end with reason exited, not {command.reason}")
    if not _is_its_worker(executor, command.worker):
        return []
    app, worker = state.apps[executor.app], state.workers[executor.worker]
    revoked = app.ended is None and executor.status == "stopping"
    reason = executor.revoked or "killed" if revoked and command.reason != "exited" else command.reason
    done = command.done
    events: list[Event] = [
        ExecutorRemoved(
            app=executor.app,
            executor=executor.id,
            worker=executor.worker,
            reason=reason,
            exit_code=command.exit_code,
            done=done,
        )
    ]
    if app.ended is None and not done:
        events += [] if revoked else after_removal(app)
        running = app.running - (executor.status == "running")
        failures = app.failures + 1
        if reason == "failed" and not running and failures >= state.settings.max_executor_failures:
            detail = f"{failures} executors ended abnormally with none running"
            events.append(AppRemoved(app=executor.app, reason="failed", detail=detail))
    return [*events, *_out_once_empty(worker)]


def _driver_ended(state: ClusterState, command: EndedDriver) -> list[Event]:
    """The app ends with its driver: exit 0 finishes it, anything else fails it unless it is supervised (semantics D3).

    A driver that left without an exit code has failed.
    """
    driver = _driver(state, command.driver)
    if not _is_its_worker(driver, command.worker):
        return []
    app, worker = state.apps[driver.app], state.workers[driver.worker]
    events: list[Event] = [
        DriverRemoved(
            app=driver.app,
            driver=driver.id,
            worker=driver.worker,
            reason=command.reason,
            exit_code=command.exit_code,
        )
    ]
    if app.ended is None:
        if command.reason == "exited" and command.exit_code == 0:
            events.append(AppRemoved(app=driver.app, reason="finished"))
        elif not app.spec.supervise:
            how = "without an exit code" if command.exit_code is None else f"with exit code {command.exit_code}"
            detail = command.detail or f"its driver ended {how}"
            events.append(AppRemoved(app=driver.app, reason="failed", detail=detail))
    return [*events, *_out_once_empty(worker)]


def _out_once_empty(worker: Worker) -> list[Event]:
    """The removal of a leaving worker whose last executor or driver ends with this turn's events (semantics W3)."""
    leaves = worker.status == "leaving" and len(worker.executors) + len(worker.drivers) == 1
    return [_removed(worker, "removed")] if leaves else []


def _kill_executors(state: ClusterState, command: KillExecutors) -> list[Event]:
    """Each is told to stop and holds its grant until its worker's word; then it is replaced (semantics P6, A5)."""
    app = _living(state, command.app)
    named = [app.executors[name] for name in dict.fromkeys(command.executors) if name in app.executors]
    return [
        ExecutorRevoked(app=command.app, executor=executor.id, worker=executor.worker)
        for executor in named
        if executor.status != "stopping"
    ]


def _decommission(state: ClusterState, worker: Worker) -> list[Event]:
    """Its executors leave at once: the worker takes nothing more, so nothing is promised twice (semantics W6).

    Drivers stay until they end; a worker that was leaving leaves with the last of them, and is not called back.
    """
    executors = _remove_executors(state, worker, "killed")
    if worker.status != "leaving":
        return [*_set_status(worker, "decommissioned", only_from=("alive", "draining")), *executors]
    if not worker.drivers:
        return [*executors, _removed(worker, "removed")]
    if worker.decommissioned:
        return executors
    again = [_with_status(worker, status) for status in ("decommissioned", "leaving")]
    return [*again, *executors]


def _end_app(state: ClusterState, command: EndApp) -> list[Event]:
    """The app ends, its tasks being over (semantics A5); one with a driver ends when that does (D3)."""
    app = _app(state, command.app)
    if app.ended is not None:
        return []
    if app.spec.driver:
        raise InvalidCommand(f"app {command.app!r} ends when its driver ends; `fairlog kill {command.app}` ends both")
    return [AppRemoved(app=command.app, reason=command.reason, detail=command.detail)]


def _kill(state: ClusterState, command: KillApp) -> list[Event]:
    """The app ends; each of its executors, told to stop, holds its grant until it is gone (semantics A5)."""
    _living(state, command.app)
    return [AppRemoved(app=command.app, reason="killed")]


def _register_worker(state: ClusterState, command: RegisterWorker) -> list[Event]:
    """A new offer, a changed one, or nothing if it is the same again (semantics W1)."""
    check_identifier("the worker id", command.worker)
    for what, value in (("the node", command.node), ("the host", command.host), ("the rack", command.rack)):
        if value or what != "the rack":
            check_name(what, value)
    check_range("a worker's cores", command.cores, 1, MAX_CORES)
    check_range("a worker's memory, in MiB,", command.memory_mb, 1, MAX_MEMORY_MB)
    offer, worker = Resources(command.cores, command.memory_mb), state.workers.get(command.worker)
    if worker is None:
        return [
            WorkerRegistered(
                worker=command.worker, node=command.node, host=command.host, rack=command.rack, offer=offer
            )
        ]
    if (worker.node, worker.host, worker.rack) != (command.node, command.host, command.rack):
        raise DuplicateWorker(worker.id, worker.host, worker.rack)
    if worker.offer == offer:
        return []
    held = worker.offer - worker.free
    for what, offered, granted in zip(("cores", "MiB", *kinds()[2:]), offer, held, strict=False):
        if offered < granted:
            raise OfferTooSmall(worker.id, what, offered, granted)
    return [WorkerChanged(worker=worker.id, status=worker.status, offer=offer)]


def _set_status(worker: Worker, status: WorkerStatus, *, only_from: tuple[WorkerStatus, ...]) -> list[Event]:
    """The worker with another status, nothing if it has none of those it may come from (semantics W3, W6)."""
    if worker.status not in only_from:
        return []
    return [_with_status(worker, status)]


def _with_status(worker: Worker, status: WorkerStatus) -> WorkerChanged:
    return WorkerChanged(worker=worker.id, status=status, offer=worker.offer)


def _undrain(worker: Worker) -> list[Event]:
    """Alive again, unless it was decommissioned, be it that it now waits for its drivers to leave (semantics W6)."""
    if worker.decommissioned:
        raise InvalidCommand(
            f"worker {worker.id!r} was decommissioned; run `fairlog remove {worker.id}` and restart its agent"
        )
    return _set_status(worker, "alive", only_from=("draining", "leaving"))


def _remove_worker(state: ClusterState, command: RemoveWorker) -> list[Event]:
    """Out at once if it is empty or forced, else as soon as its last executor has ended (semantics W3)."""
    worker = _worker(state, command.worker)
    if (worker.executors or worker.drivers) and not command.force:
        return _set_status(worker, "leaving", only_from=("alive", "draining", "decommissioned"))
    return [*_lose_all(state, worker), _removed(worker, "removed")]


def _removed(worker: Worker, reason: str, last_seen: int = 0) -> WorkerRemoved:
    return WorkerRemoved(worker=worker.id, reason="lost" if reason == "lost" else "removed", last_seen=last_seen)


def _lose_all(state: ClusterState, worker: Worker) -> list[Event]:
    """Every executor and driver of the worker is lost; the app of a driver fails unless it is supervised (W2, D3)."""
    events = _remove_executors(state, worker, "lost")
    for driver in worker.drivers.values():
        events.append(DriverRemoved(app=driver.app, driver=driver.id, worker=worker.id, reason="lost"))
        app = state.apps[driver.app]
        if app.ended is None and not app.spec.supervise:
            detail = f"its driver was lost with worker {worker.id}"
            events.append(AppRemoved(app=driver.app, reason="failed", detail=detail))
    return events


def _remove_executors(state: ClusterState, worker: Worker, reason: Literal["lost", "killed"]) -> list[Event]:
    """Every executor of the worker is gone; its apps keep their place and their tasks come back (semantics W2, W6)."""
    events: list[Event] = [
        ExecutorRemoved(app=executor.app, executor=executor.id, worker=worker.id, reason=reason)
        for executor in worker.executors.values()
    ]
    for name in dict.fromkeys(executor.app for executor in worker.executors.values() if executor.status != "stopping"):
        if state.apps[name].ended is None:
            events += after_removal(state.apps[name])
    return events


def _tenant(state: ClusterState, command: RegisterCompany | ChangeCompany) -> CompanyRegistered:
    """The company and its quota as the log states them (semantics C2)."""
    check_name("the company", command.company)
    part = read_part(command.part) if command.part is not None else None
    if (command.cores is None) != (command.memory_mb is None):
        raise InvalidCommand("a quota in amounts needs both --cores and --memory")
    amounts = None
    if command.cores is not None and command.memory_mb is not None:
        if part is not None:
            raise InvalidCommand("a quota is either --cores with --memory, or --part; give one of them")
        check_range("a quota's cores", command.cores, 0, 1000 * MAX_CORES)
        check_range("a quota's memory, in MiB,", command.memory_mb, 0, MAX_MEMORY_MB)
        amounts = Resources(command.cores, command.memory_mb)
    return CompanyRegistered(company=command.company, amounts=amounts, part=part, borrow=command.borrow)


def _change_company(state: ClusterState, command: ChangeCompany) -> list[Event]:
    """The quota stated, in full; what the command leaves open stays as it is (semantics C2, C6)."""
    stated = asdict(_tenant(state, command))
    known = asdict(_company(state, command.company).spec)
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


def _living(state: ClusterState, name: str) -> App:
    app = _app(state, name)
    if app.ended is not None:
        raise AppEnded(name, app.ended)
    return app


def _worker(state: ClusterState, name: str) -> Worker:
    try:
        return state.workers[name]
    except KeyError:
        raise UnknownWorker(name[:80]) from None


def _executor(state: ClusterState, name: str) -> Allocation:
    try:
        return state.executors[name]
    except KeyError:
        raise UnknownExecutor(name[:80]) from None


def _driver(state: ClusterState, name: str) -> Allocation:
    try:
        return state.drivers[name]
    except KeyError:
        raise UnknownDriver(name[:80]) from None
