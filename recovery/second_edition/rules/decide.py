"""The events of a command, the next admission, and the next executors of an app.

These functions only read the state. Their results depend on nothing else: no clock, no randomness, no iteration over an
unordered set (semantics T2). `submission` builds the event of a submitted app; `placement` chooses workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Literal

from msgspec.structs import asdict

from recovery.second_edition.rules import membership
from recovery.second_edition.rules.admission.queue import Ask
from recovery.second_edition.rules.demand import after_removal, backlog, gave_back, scaled, stopped
from recovery.second_edition.rules.entities import Allocation, App, Company, Worker
from recovery.second_edition.rules.failures import could_host_elsewhere, left_out
from recovery.second_edition.rules.fleet import Candidates
from recovery.second_edition.rules.kinds import (
    MAX_QUOTA,
    amounts_named,
    check_addresses,
    check_kind,
    check_still_offered,
)
from recovery.second_edition.rules.limiting import limit_set
from recovery.second_edition.rules.permission import VERB_OF, permit
from recovery.second_edition.rules.placement.executors import PLACEMENTS, allocation, allocations, one_probe
from recovery.second_edition.rules.placement.locality import place_near
from recovery.second_edition.rules.placement.sizing import executor_memory_mb, for_tasks, sizes_to_try
from recovery.second_edition.rules.programs import abandoned, finished
from recovery.second_edition.rules.readiness import delayed, put_on_hold, reprioritized
from recovery.second_edition.rules.runtime import LONGEST_S, timed
from recovery.second_edition.rules.state import ClusterState
from recovery.second_edition.rules.submission import preferred, registration
from recovery.second_edition.rules.trouble import failures_in_a_row, serving
from recovery.second_edition.rules.validate import (
    MAX_CORES,
    MAX_MEMORY_MB,
    MAX_MOMENT,
    changed_settings,
    check_identifier,
    check_labels,
    check_name,
    check_range,
    check_runtimes,
    check_said,
    read_part,
)
from scheduler.model import commands, errors
from scheduler.model import events as facts
from scheduler.model.commands import Command
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import Computed, Event, Fixed
from scheduler.model.resources import NOTHING, Resources, amounts_of
from scheduler.model.sender import NOBODY, By
from scheduler.model.text import MAX_DETAIL, one_line


def decide(state: ClusterState, command: Command, at: int | None = None, by: By = NOBODY) -> list[Event]:
    """The events of `command` of the sender `by` at time `at` (ms; None = that of the state); none if nothing changes.

    Raises: CommandRejected.
    """
    if state.closed and type(command) in VERB_OF:  # an altered log may have commands of later editions
        permit(state, command, by, state.at if at is None else at)
    match command:
        case commands.StartedExecutor():
            return _executor_started(state, command)
        case commands.EndedExecutor():
            return _executor_ended(state, command, state.at if at is None else at)
        case commands.SubmitApp():
            return _submitted(state, command, state.at if at is None else at)
        case commands.EndApp():
            return _end_app(state, command)
        case commands.KillApp():
            return _kill(state, command)
        case commands.ScaleApp():
            return scaled(state, _living(state, command.app), command)
        case commands.SignalApp() | commands.CancelTask() | commands.ExtendApp():
            return timed(state, _living(state, command.app), command)
        case commands.ReprioritizeApp():
            return reprioritized(_living(state, command.app), command.priority)
        case commands.HoldApp() | commands.ReleaseApp():
            return put_on_hold(_living(state, command.app), hold=isinstance(command, commands.HoldApp))
        case commands.KillExecutors():
            return stopped(_living(state, command.app), command.executors)
        case commands.FinishApp():
            return finished(_living(state, command.app), command)
        case commands.LoseOwner():
            return abandoned(_app(state, command.app), command)
        case commands.ReportBacklog():
            executor = _executor(state, command.executor)
            return backlog(state, state.apps[executor.app], executor, command)
        case commands.EndedDriver():
            return _driver_ended(state, command)
        case commands.RegisterWorker():
            return _register_worker(state, command)
        case commands.LoseWorker():
            worker = _worker(state, command.worker)
            check_range("when the worker was seen last, in ms,", command.last_seen, 0, MAX_MOMENT)
            return [*_lose_all(state, worker), _removed(worker, "lost", command.last_seen)]
        case commands.DrainWorker():
            return _drain(_worker(state, command.worker), command.reason)
        case commands.DecommissionWorker():
            return _decommission(state, _worker(state, command.worker))
        case commands.UndrainWorker():
            return _undrain(_worker(state, command.worker))
        case commands.RemoveWorker():
            return _remove_worker(state, command)
        case commands.RestoreLog():
            return _restored(state, command)
        case commands.AcceptLog():
            return [_accepted(state, command)]
        case commands.RegisterKind():
            check_kind(command.kind)
            return [] if command.kind in state.kinds else [facts.KindRegistered(kind=command.kind)]
        case commands.RegisterCompany():
            if command.company in state.companies:
                raise errors.DuplicateCompany(command.company)
            if command.company in state.accounts.inhabited:
                raise InvalidCommand(f"company {command.company!r} had accounts and was removed; choose another name")
            return [_tenant(state, command)]
        case commands.ChangeCompany():
            return _change_company(state, command)
        case commands.SetLimit():
            return limit_set(state.limits, state.companies, state.kinds, command)
        case (
            commands.AddAccount()
            | commands.ChangeAccount()
            | commands.RemoveAccount()
            | commands.GrantRole()
            | commands.RevokeRole()
            | commands.IssueToken()
            | commands.RevokeToken()
            | commands.ShowApps()
        ):
            return membership.decided(state, command, by, state.at if at is None else at)
        case commands.RemoveCompany():
            company = _company(state, command.company)
            if company.apps:
                raise errors.CompanyInUse(command.company, company.apps)
            return [facts.CompanyRemoved(company=command.company)]
        case commands.ChangeEdition():
            raise InvalidCommand("what follows a change of the edition is not of this one")
        case commands.ConfigureCluster():
            settings = changed_settings(state.settings, command.settings)
            return [] if settings == state.settings else [settings]
        case _:
            raise InvalidCommand(f"{type(command).__name__} is no command of this edition")


def _submitted(state: ClusterState, command: commands.SubmitApp, at: int) -> list[Event]:
    """The app (semantics A1), when it may begin (J4), and which hosts its tasks prefer (L7)."""
    if command.singleton:
        raise InvalidCommand("a singleton names the apps of its name that it waits for; see semantics J5")
    registered = registration(state, _company(state, command.company), command, at)
    return [registered, *delayed(command.app, command.begin, at), *preferred(registered, command)]


def admit(state: ClusterState) -> facts.AppAdmitted | None:
    """The app that enters waitingApps next; None if no app may enter (semantics A3).

    First those that keep their company within its part, whatever others hold: it is theirs. Then, while all claims
    are below the live cluster in cores, in memory and in the kinds that the app requests, the others that C4 or C6 lets
    pass, so the last one may exceed it. Nothing enters without a live worker. Open admission admits every app at once,
    in order of arrival (A6).
    """
    if state.settings.admission == "open":
        first = state.queue.oldest()
    elif not state.fleet.live:
        first = None
    elif (full := is_full(state)) and state.claims.total.lent == NOTHING:
        first = state.queue.next_within()
    elif full or state.claims.total.claimed.others:
        first = state.queue.first(partial(room_for, state))
    else:
        first = state.queue.first()
    return None if first is None else admission(state, first)


def admission(state: ClusterState, app: App, *, filling: bool = False) -> facts.AppAdmitted:
    """The event that admits the app; `filling`: although claims fill the cluster (semantics A9)."""
    company = app.spec.company
    share = state.queue.share(company)
    lends = state.claims.total.lent != NOTHING and state.settings.admission == "fair"
    lent = lends and state.queue.on_lent(app, full=is_full(state, app.requested), filling=filling)
    return facts.AppAdmitted(app=app.id, company=company, user=app.spec.user, share=str(share), lent=lent)


def place(state: ClusterState, app: App, at: int, most: Resources | None = None) -> list[facts.ExecutorAllocated]:
    """The executors that `app` gets next at time `at` (ms), grouped by worker in the order of the candidates.

    With `most`, only whole executors that fit into that much (semantics P6). Room that is held for the app counts (P8),
    workers from which it is excluded do not (W7). The caller folds them before it calls again. None fits at present if
    it is empty.
    """
    if not app.owed:
        return []
    if not app.troubles and not app.holds:
        return _place(state, app, at, most)
    for without in left_out(state, app, app.need.least, at):
        with state.seen_by(app, without):
            granted = _place(state, app, at, most, without)
        if granted:
            return granted
    return []


def _place(
    state: ClusterState, app: App, at: int, most: Resources | None, without: Collection[str] = ()
) -> list[facts.ExecutorAllocated]:
    """The executors of `place` as the fleet is shown; none for a preferred host on the workers `without`."""
    match app.sizing:
        case Computed():
            return _place_computed(state, app, app.sizing, most)
        case Fixed(each=size) if not PLACEMENTS[state.settings.placement].one_a_worker:
            if app.demand.wanted:
                return place_near(state, app, size, at, most=most, without=without)
            return _place_fixed(state, app, size, most)
        case Fixed(each=each) | facts.OnePerWorker(each=each):
            return _place_growing(state, app, each, most)


def _place_computed(
    state: ClusterState, app: App, sizing: Computed, most: Resources | None
) -> list[facts.ExecutorAllocated]:
    """Executors of one size that the scheduler computes (semantics S4, P2, P3)."""
    settings, left = state.settings, app.left_cores
    if most is not None:
        smallest = app.need.executor
        left = min(left, most.holds(smallest) * smallest.cores)
    if left < settings.min_executor_cores:
        return []
    cores_per_task = app.spec.cores_per_task
    for cores in sizes_to_try(state.fleet, settings, left, cores_per_task):
        memory_mb = executor_memory_mb(state.fleet, settings, cores, sizing.memory_per_task_mb, cores_per_task)
        if memory_mb is None:
            continue
        others = for_tasks(sizing.per_task, cores // cores_per_task) if sizing.per_task else ()
        size = Resources(cores, memory_mb, others)
        limit = min(left // cores, app.affords(size), app.left_executors)
        if limit:
            candidates = one_probe(_candidates(state, app, size), state.probes, size)
            counts = PLACEMENTS[settings.placement].of_size(candidates, size, limit)
            if counts:
                return allocations(app, counts, size)
    return []


def _place_fixed(
    state: ClusterState, app: App, size: Resources, most: Resources | None
) -> list[facts.ExecutorAllocated]:
    """Executors of the size that the app states (semantics S5, P5)."""
    limit = min(_affordable(state, app, size), app.left_cores // size.cores)
    if most is not None:
        limit = min(limit, most.holds(size))
    if limit <= 0:
        return []
    candidates = one_probe(_candidates(state, app, size), state.probes, size)
    return allocations(app, PLACEMENTS[state.settings.placement].of_size(candidates, size, limit), size)


def _place_growing(
    state: ClusterState, app: App, each: Resources, most: Resources | None
) -> list[facts.ExecutorAllocated]:
    """One executor a worker, of as many cores as the worker can give to whole tasks (semantics S5, P4, P5, P7, A7)."""
    limit, left, unit = _affordable(state, app, each), app.left_cores, app.spec.cores_per_task
    least = Resources(unit, each.memory_mb, each.others)
    if most is not None:
        limit, left = min(limit, most.holds(least)), min(left, most.cores)
    if limit <= 0:
        return []
    candidates = _candidates(state, app, least)
    if unit > 1:
        candidates = _in_units(candidates, unit)
    grown = PLACEMENTS[state.settings.placement].growing(candidates, left // unit, limit)
    return [
        allocation(app, number, worker, Resources(units * unit, each.memory_mb, each.others))
        for number, (worker, units) in enumerate(grown, start=app.next_executor)
    ]


def _in_units(candidates: Candidates, unit: int) -> Candidates:
    for worker, free in candidates:
        yield worker, Resources(free.cores // unit)


def _affordable(state: ClusterState, app: App, size: Resources) -> int:
    """How many more executors the app may have (P5); fair admission also keeps them in the request (A2, R3)."""
    if state.settings.admission == "open":
        return app.left_executors
    return min(app.left_executors, app.affords(size))


def _candidates(state: ClusterState, app: App, size: Resources) -> Candidates:
    """The workers with room for `size` (semantics P1); classic placements skip those with an executor of it (P7)."""
    candidates = state.fleet.candidates(size, state.settings.worker_selection, sparing=state.sparing)
    if not PLACEMENTS[state.settings.placement].one_a_worker or not app.executors:
        return candidates
    own = {executor.worker for executor in app.executors.values()}
    return filter(lambda candidate: candidate[0] not in own, candidates)


def is_full(state: ClusterState, request: Resources = NOTHING, but: Resources = NOTHING) -> bool:
    """Whether all claims, without `but`, fill the live cluster in cores, in memory or in a kind of the request (A3)."""
    claimed, total = state.claims.total.claimed, state.fleet.total
    if but is not NOTHING:
        claimed -= but
    if claimed.cores >= total.cores or claimed.memory_mb >= total.memory_mb:
        return True
    return bool(request.others) and any(claimed.amount(kind) >= total.amount(kind) for kind, _ in request.others)


def room_for(state: ClusterState, lent: Resources) -> Callable[[Ask], bool] | None:
    """Which asks find room in the cluster where what is lent does not count; None = no ask (semantics A3, R4, E7)."""
    if is_full(state, but=lent):
        return None
    return lambda ask: not ask.request.others or not is_full(state, ask.request, lent)


def _can_start_elsewhere(state: ClusterState, app: App, worker: Worker) -> bool:
    """Whether a live worker could host the app that has not said that its command cannot be started (semantics W9)."""
    workers = {name for name, trouble in app.troubles.items() if trouble.unstartable} | {worker.id}
    return could_host_elsewhere(state, app.need.least, workers)


def _executor_started(state: ClusterState, command: commands.StartedExecutor) -> list[Event]:
    """It runs, also one that is to leave for a claim, whose tasks end in peace: its time counts (semantics X1, E5)."""
    executor = _executor(state, command.executor)
    new = executor.status == "starting" or (executor.claim > 0 and not executor.started)
    return [facts.ExecutorChanged(executor=executor.id)] if new and _is_its_worker(executor, command.worker) else []


def _is_its_worker(held: Allocation, worker: str) -> bool:
    """Whether the executor or driver is granted to the reporting worker; a report without a name is accepted."""
    return not worker or worker == held.worker


def _executor_ended(state: ClusterState, command: commands.EndedExecutor, at: int) -> list[Event]:
    """The grant returns. Unfinished tasks reset the done cores (S6); too many failures end the app (W5).

    An executor that was stopped has not failed, and leaves what is done as it is. A program that ended well lowers the
    demand (G2). An app ends as well if no other worker is left to start its tasks (W9). None of this holds for an app
    whose time is over (X2).
    """
    executor = _executor(state, command.executor)
    if command.done and command.reason != "exited":
        raise InvalidCommand(f"an executor that found no task left must end with reason exited, not {command.reason}")
    if command.unstartable and command.reason != "failed":
        raise InvalidCommand(f"an executor that cannot start a task must end with reason failed, not {command.reason}")
    if not _is_its_worker(executor, command.worker):
        return []
    app, worker = state.apps[executor.app], state.workers[executor.worker]
    revoked = app.ended is None and executor.status == "stopping"
    reason = executor.revoked or "killed" if revoked and command.reason != "exited" else command.reason
    done = command.done and not app.spec.programs
    unstartable = reason == "failed" and command.unstartable != ""
    events: list[Event] = [
        facts.ExecutorRemoved(
            app=executor.app,
            executor=executor.id,
            worker=executor.worker,
            reason=reason,
            exit_code=command.exit_code,
            done=done,
            finished=command.finished,
            unstartable=unstartable,
            detail=command.detail,
        )
    ]
    if app.spec.programs and reason == "exited" and not revoked and app.ended is None and not app.expired_at:
        events += gave_back(app)
    elif app.ended is None and not done and not app.expired_at:
        events += after_removal(state, {app.id: [executor]}) if not revoked else []
        failures = failures_in_a_row(app, executor, at)
        if unstartable and not _can_start_elsewhere(state, app, worker):
            events.append(facts.AppRemoved(app=executor.app, reason="failed", detail=command.unstartable))
        elif reason == "failed" and failures >= state.settings.max_executor_failures and not serving(app, executor, at):
            last = f"; the last one: {command.detail}" if command.detail else ""
            how = f"with none running{' for 10 s' * app.spec.programs}"
            detail = one_line(f"{failures} executors ended abnormally {how}{last}", MAX_DETAIL)
            events.append(facts.AppRemoved(app=executor.app, reason="failed", detail=detail))
    return [*events, *_out_once_empty(worker)]


def _driver_ended(state: ClusterState, command: commands.EndedDriver) -> list[Event]:
    """The app ends with its driver: finished on exit code 0, else failed unless supervised (semantics D3).

    One whose time is over ends otherwise (X2).
    """
    driver = _driver(state, command.driver)
    if not _is_its_worker(driver, command.worker):
        return []
    app, worker = state.apps[driver.app], state.workers[driver.worker]
    events: list[Event] = [
        facts.DriverRemoved(
            app=driver.app,
            driver=driver.id,
            worker=driver.worker,
            reason=command.reason,
            exit_code=command.exit_code,
        )
    ]
    if app.ended is None and not app.expired_at:
        if command.reason == "exited" and command.exit_code == 0:
            events.append(facts.AppRemoved(app=driver.app, reason="finished"))
        elif not app.spec.supervise:
            how = "without an exit code" if command.exit_code is None else f"with exit code {command.exit_code}"
            detail = command.detail or f"its driver ended {how}"
            events.append(facts.AppRemoved(app=driver.app, reason="failed", detail=detail))
    return [*events, *_out_once_empty(worker)]


def _out_once_empty(worker: Worker) -> list[Event]:
    """The removal of a leaving worker whose last executor or driver ends now (semantics W3)."""
    leaves = worker.status == "leaving" and len(worker.executors) + len(worker.drivers) == 1
    return [_removed(worker, "removed")] if leaves else []


def _decommission(state: ClusterState, worker: Worker) -> list[Event]:
    """Its executors leave at once and the worker gets no others; its drivers stay until they end (semantics W6).

    A leaving worker is removed with its last driver.
    """
    executors = _remove_executors(state, worker, "killed")
    if worker.status != "leaving":
        return [*_set_status(worker, "decommissioned", only_from=("alive", "draining")), *executors]
    if not worker.drivers:
        return [*executors, _removed(worker, "removed")]
    if worker.decommissioned:
        return executors
    again = [_with_status(worker, status, worker.reason) for status in ("decommissioned", "leaving")]
    return [*again, *executors]


def _end_app(state: ClusterState, command: commands.EndApp) -> list[Event]:
    """The app ends because its tasks are over (semantics A5); an app with a driver ends with it instead (D3).

    If its time was over first, it ends because of that (X2).
    """
    app = _app(state, command.app)
    if app.ended is not None or app.expired_at:
        return []
    if app.spec.driver is not None:
        raise InvalidCommand(f"app {command.app!r} ends when its driver ends; `fairlog kill {command.app}` ends both")
    return [facts.AppRemoved(app=command.app, reason=command.reason, detail=command.detail)]


def _kill(state: ClusterState, command: commands.KillApp) -> list[Event]:
    """The app ends; its executors stop and hold their grants until they are gone (semantics A5)."""
    check_said(command.reason)
    _living(state, command.app)
    return [facts.AppRemoved(app=command.app, reason="killed")]


def _register_worker(state: ClusterState, command: commands.RegisterWorker) -> list[Event]:
    """A new or changed offer; nothing if it is the same (semantics W1)."""
    check_identifier("the worker id", command.worker)
    for what, value in (("the node", command.node), ("the host", command.host), ("the rack", command.rack)):
        if value or what != "the rack":
            check_name(what, value)
    check_range("a worker's cores", command.cores, 1, MAX_CORES)
    check_range("a worker's memory, in MiB,", command.memory_mb, 1, MAX_MEMORY_MB)
    check_addresses(state.kinds, command.resources)
    check_labels(command.labels)
    addresses = {kind: found for kind, found in sorted(command.resources.items()) if found}
    others = amounts_of({kind: len(found) for kind, found in addresses.items()})
    offer, worker = Resources(command.cores, command.memory_mb, others), state.workers.get(command.worker)
    if worker is None:
        return [
            facts.WorkerRegistered(
                worker=command.worker,
                node=command.node,
                host=command.host,
                rack=command.rack,
                offer=offer,
                addresses=addresses,
            ),
            *_labelled(command, {}),
        ]
    if (worker.node, worker.host, worker.rack) != (command.node, command.host, command.rack):
        raise errors.DuplicateWorker(worker.id, worker.host, worker.rack)
    if worker.offer == offer and worker.addresses == addresses:
        return _labelled(command, worker.labels)
    held = worker.offer - worker.free
    for what, offered, granted in (("cores", offer.cores, held.cores), ("MiB", offer.memory_mb, held.memory_mb)):
        if offered < granted:
            raise errors.OfferTooSmall(worker.id, what, offered, granted)
    check_still_offered(worker, addresses)
    return [
        facts.WorkerChanged(
            worker=worker.id, status=worker.status, offer=offer, addresses=addresses, reason=worker.reason
        ),
        *_labelled(command, worker.labels),
    ]


def _labelled(command: commands.RegisterWorker, before: Mapping[str, str]) -> list[Event]:
    """The labels, if they are others than before (semantics W1)."""
    if command.labels == before:
        return []
    return [facts.WorkerLabelled(worker=command.worker, labels=dict(sorted(command.labels.items())))]


def _set_status(
    worker: Worker, status: facts.WorkerStatus, *, only_from: tuple[facts.WorkerStatus, ...], reason: str | None = None
) -> list[Event]:
    """The worker with another status; nothing unless its status is in `only_from` (semantics W3, W6)."""
    if worker.status not in only_from:
        return []
    return [_with_status(worker, status, worker.reason if reason is None else reason)]


def _with_status(worker: Worker, status: facts.WorkerStatus, reason: str) -> facts.WorkerChanged:
    return facts.WorkerChanged(
        worker=worker.id, status=status, offer=worker.offer, addresses=worker.addresses, reason=reason
    )


def _drain(worker: Worker, reason: str) -> list[Event]:
    """Draining, unless it was decommissioned (semantics W3); the reason is for people."""
    if reason:
        check_name("the reason", reason)
    return (
        [] if worker.decommissioned else _set_status(worker, "draining", only_from=("alive", "leaving"), reason=reason)
    )


def _undrain(worker: Worker) -> list[Event]:
    """Alive again, unless it was decommissioned (semantics W6)."""
    if worker.decommissioned:
        raise InvalidCommand(
            f"worker {worker.id!r} was decommissioned; run `fairlog remove {worker.id}` and restart its agent"
        )
    return _set_status(worker, "alive", only_from=("draining", "leaving"), reason="")


def _remove_worker(state: ClusterState, command: commands.RemoveWorker) -> list[Event]:
    """Removed at once if empty or forced, else once its last executor has ended; a lost one is forgotten (W3)."""
    if command.worker in state.lost and command.worker not in state.workers:
        return [facts.LostWorkersForgotten(workers=(command.worker,))]
    worker = _worker(state, command.worker)
    if (worker.executors or worker.drivers) and not command.force:
        return _set_status(worker, "leaving", only_from=("alive", "draining", "decommissioned"))
    return [*_lose_all(state, worker), _removed(worker, "removed")]


def _removed(worker: Worker, reason: str, last_seen: int = 0) -> facts.WorkerRemoved:
    return facts.WorkerRemoved(worker=worker.id, reason="lost" if reason == "lost" else "removed", last_seen=last_seen)


def _lose_all(state: ClusterState, worker: Worker) -> list[Event]:
    """All executors and drivers of the worker are lost; unsupervised apps fail with their driver (semantics W2, D3)."""
    events = _remove_executors(state, worker, "lost")
    for driver in worker.drivers.values():
        events.append(facts.DriverRemoved(app=driver.app, driver=driver.id, worker=worker.id, reason="lost"))
        app = state.apps[driver.app]
        if app.ended is None and not app.spec.supervise and not app.expired_at:
            detail = f"its driver was lost with worker {worker.id}"
            events.append(facts.AppRemoved(app=driver.app, reason="failed", detail=detail))
    return events


def _restored(state: ClusterState, command: commands.RestoreLog) -> list[Event]:
    """The log goes on without the workers of the cluster that it was copied from (semantics I7)."""
    if bool(command.key) != bool(command.public):
        raise InvalidCommand("a key is named with its public half; give both or none")
    gone = [
        each for worker in state.workers.values() for each in (*_lose_all(state, worker), _removed(worker, "removed"))
    ]
    return [facts.LogRestored(key=command.key, public=command.public), *gone]


def _accepted(state: ClusterState, command: commands.AcceptLog) -> Event:
    """The log goes on although a longer one was known (semantics I8)."""
    if not 0 <= command.seq <= state.head or command.known < 1 or not command.by:
        raise InvalidCommand(
            f"a log that ends at {state.head} cannot be accepted up to {command.seq} instead of {command.known}"
        )
    return facts.LogAccepted(
        seq=command.seq,
        digest=command.digest,
        known=command.known,
        known_digest=command.known_digest,
        by=command.by,
    )


def _remove_executors(state: ClusterState, worker: Worker, reason: Literal["lost", "killed"]) -> list[Event]:
    """All executors of the worker are gone; their apps stay and their tasks run again (semantics W2, W6)."""
    events: list[Event] = [
        facts.ExecutorRemoved(app=executor.app, executor=executor.id, worker=worker.id, reason=reason)
        for executor in worker.executors.values()
    ]
    ended: dict[str, list[Allocation]] = {
        executor.app: []
        for executor in worker.executors.values()
        if executor.status != "stopping" and not state.apps[executor.app].over
    }
    for executor in worker.executors.values():
        if executor.app in ended:
            ended[executor.app].append(executor)
    return [*events, *after_removal(state, ended)]


def _tenant(state: ClusterState, command: commands.RegisterCompany | commands.ChangeCompany) -> facts.CompanyRegistered:
    """The event of a company, its quota (semantics C2) and how long its apps may run (X1)."""
    check_name("the company", command.company)
    part = read_part(command.part) if command.part is not None else None
    if (command.cores is None) != (command.memory_mb is None):
        raise InvalidCommand("a quota in amounts needs both --cores and --memory")
    amounts, limited = None, amounts_named(state.kinds, "a quota's", command.resources, 0, MAX_QUOTA)
    if command.resources and command.cores is None:
        raise InvalidCommand(f"a quota of {', '.join(command.resources)} needs --cores and --memory as well")
    if command.cores is not None and command.memory_mb is not None:
        if part is not None:
            raise InvalidCommand("a quota is either --cores with --memory, or --part; give one of them")
        check_range("a quota's cores", command.cores, 0, 1000 * MAX_CORES)
        check_range("a quota's memory, in MiB,", command.memory_mb, 0, MAX_MEMORY_MB)
        amounts = Resources(command.cores, command.memory_mb, limited)
    least_s = 1 if isinstance(command, commands.RegisterCompany) else 0
    usual_s, most_s = command.default_max_runtime_s, command.max_max_runtime_s
    check_range("a company's default_max_runtime_s", usual_s, least_s, LONGEST_S)
    check_range("a company's max_max_runtime_s", most_s, least_s, LONGEST_S)
    check_runtimes(usual_s, most_s or None)
    return facts.CompanyRegistered(
        company=command.company,
        amounts=amounts,
        part=part,
        borrow=command.borrow,
        kinds=tuple(sorted(command.resources)),
        default_max_runtime_s=usual_s,
        max_max_runtime_s=most_s,
    )


def _change_company(state: ClusterState, command: commands.ChangeCompany) -> list[Event]:
    """The quota in full; what the command does not state stays (semantics C2, C6, X1)."""
    stated = asdict(_tenant(state, command))
    known = asdict(_company(state, command.company).spec)
    others = {name: getattr(command, name) for name in ("borrow", "default_max_runtime_s", "max_max_runtime_s")}
    given = {name: value for name, value in others.items() if value is not None}
    quota = ("amounts", "part", "kinds") if command.cores is not None or command.part is not None or not given else ()
    changed = {**known, **{name: stated[name] for name in quota}, **given}
    for name in ("default_max_runtime_s", "max_max_runtime_s"):
        changed[name] = changed[name] or None
    check_runtimes(changed["default_max_runtime_s"], changed["max_max_runtime_s"])
    return [] if changed == known else [facts.CompanyChanged(**changed)]


def _company(state: ClusterState, name: str) -> Company:
    try:
        return state.companies[name]
    except KeyError:
        raise errors.UnknownCompany(name[:80]) from None


def _app(state: ClusterState, name: str) -> App:
    try:
        return state.apps[name]
    except KeyError:
        raise errors.UnknownApp(name[:80]) from None


def _living(state: ClusterState, name: str) -> App:
    app = _app(state, name)
    if app.ended is not None or app.expired_at:
        raise errors.AppEnded(name, app.ended or "expired")
    return app


def _worker(state: ClusterState, name: str) -> Worker:
    try:
        return state.workers[name]
    except KeyError:
        raise errors.UnknownWorker(name[:80]) from None


def _executor(state: ClusterState, name: str) -> Allocation:
    try:
        return state.executors[name]
    except KeyError:
        raise errors.UnknownExecutor(name[:80]) from None


def _driver(state: ClusterState, name: str) -> Allocation:
    try:
        return state.drivers[name]
    except KeyError:
        raise errors.UnknownDriver(name[:80]) from None
