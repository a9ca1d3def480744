"""The events of a command.

These functions only read the state. Their results depend on nothing else: no clock, no randomness, no iteration over an
unordered set (semantics T2). `submission` builds the event of a submitted app.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, assert_never

from msgspec.structs import asdict, replace

from scheduler.model import commands, errors
from scheduler.model import events as facts
from scheduler.model.commands import Command
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import Event
from scheduler.model.resources import Resources, amounts_of
from scheduler.model.sender import NOBODY, By
from scheduler.model.targets import check_allowed
from scheduler.model.text import MAX_DETAIL, one_line
from scheduler.rules.checks.kinds import check_addresses, check_kind, check_still_offered, quota_stated
from scheduler.rules.checks.validate import (
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
    check_taints,
    read_part,
    shorten,
    undated,
)
from scheduler.rules.command import membership, windows
from scheduler.rules.command.demand import after_removal, anew, backlog, broken_up, gave_back, scaled, stopped
from scheduler.rules.command.failures import could_host_elsewhere
from scheduler.rules.command.limiting import limit_set
from scheduler.rules.command.permission import permit
from scheduler.rules.command.programs import abandoned, check_settings, finished, lost_for_good
from scheduler.rules.command.readiness import delayed, put_on_hold, reprioritized, requeued
from scheduler.rules.command.runtime import LONGEST_S, timed
from scheduler.rules.command.submission import preferred, registration
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.companies import Company
from scheduler.rules.entities.grants import Allocation
from scheduler.rules.entities.workers import Worker
from scheduler.rules.index.trouble import failures_in_a_row, most_failures, serving
from scheduler.rules.state import departments
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITIONS


def decide(state: ClusterState, command: Command, at: int | None = None, by: By = NOBODY) -> list[Event]:
    """The events of `command` of the sender `by` at time `at` (ms; None = that of the state); none if nothing changes.

    Raises: CommandRejected.
    """
    if state.closed:
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
            return scaled(state, _living_alone(state, command.app), command)
        case commands.SignalApp() | commands.CancelTask() | commands.ExtendApp():
            return timed(state, _living(state, command.app), command)
        case commands.RequeueApp():
            app = _living(state, command.app)
            return [*requeued(app, command), *anew(app)]
        case commands.ReprioritizeApp():
            return reprioritized(_living(state, command.app), command.priority)
        case commands.HoldApp() | commands.ReleaseApp():
            return put_on_hold(_living(state, command.app), hold=isinstance(command, commands.HoldApp))
        case commands.KillExecutors():
            return stopped(_living_alone(state, command.app), command.executors)
        case commands.FinishApp():
            return finished(_living(state, command.app), command)
        case commands.LoseOwner():
            return abandoned(_app(state, command.app), command)
        case commands.ReportBacklog():
            executor = _executor(state, command.executor)
            return backlog(state.apps[executor.app], executor, command)
        case commands.EndedDriver():
            return _driver_ended(state, command)
        case commands.RegisterWorker():
            return _register_worker(state, command)
        case commands.LoseWorker():
            worker = _worker(state, command.worker)
            check_range("when the worker was seen last, in ms,", command.last_seen, 0, MAX_MOMENT)
            return [*_lose_all(state, worker), _removed(worker, "lost", command.last_seen)]
        case commands.DrainWorker():
            return _drain(_worker(state, command.worker), command)
        case commands.DecommissionWorker():
            return _decommission(state, _worker(state, command.worker))
        case commands.UndrainWorker():
            return _undrain(_worker(state, command.worker), unwell=command.unwell)
        case commands.RemoveWorker():
            return _remove_worker(state, command)
        case commands.AddWindow() | commands.RemoveWindow():
            return windows.decided(state, command, state.at if at is None else at)
        case (
            commands.AddDepartment()
            | commands.ChangeDepartment()
            | commands.RemoveDepartment()
            | commands.MoveCompany()
        ):
            return departments.decided(state, command)
        case commands.RestoreLog():
            return _restored(state, command)
        case commands.AcceptLog():
            return [_accepted(state, command)]
        case commands.RegisterKind():
            return _register_kind(state, command.kind)
        case commands.RegisterCompany():
            if command.company in state.companies:
                raise errors.DuplicateCompany(command.company)
            if command.company in state.accounts.inhabited:
                raise InvalidCommand(f"company {command.company!r} had accounts and was removed; choose another name")
            return [_tenant(state, command)]
        case commands.ChangeCompany():
            return _change_company(state, command)
        case commands.SetLimit():
            return limit_set(state.limits, state.companies, state.departments, state.kinds, command)
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
            return _remove_company(state, command.company)
        case commands.ChangeEdition():
            return _change_edition(state, command.edition)
        case commands.ConfigureCluster():
            settings = changed_settings(state.settings, command.settings)
            windows.check_grace(state, settings, state.at if at is None else at)
            check_settings(state.apps.values(), settings)
            return [] if settings == state.settings else [settings]
        case _:
            assert_never(command)


def _register_kind(state: ClusterState, kind: str) -> list[Event]:
    check_kind(kind)
    return [] if kind in state.kinds else [facts.KindRegistered(kind=kind)]


def _submitted(state: ClusterState, command: commands.SubmitApp, at: int) -> list[Event]:
    """The app (semantics A1), when it may begin (J4), which hosts its tasks prefer (L7), and who may be told (I9)."""
    if command.singleton:
        raise InvalidCommand("a singleton names the apps of its name that it waits for; see semantics J1")
    if command.notify_at:
        check_allowed(state.settings.notify_targets, command.notify_at)
    registered = registration(state, _company(state, command.company), command, at)
    return [registered, *delayed(command.app, command.begin, at), *preferred(registered, command)]


def check_edition(edition: Any) -> None:  # noqa: ANN401 - a scenario may state anything
    """Raises: InvalidCommand unless that is the edition of the rules by which it is decided (semantics H8)."""
    if type(edition) is not int or edition != EDITIONS[-1]:
        raise InvalidCommand(f"it is decided by edition {EDITIONS[-1]} of the rules alone, not by {shorten(edition)}")


def _change_edition(state: ClusterState, edition: int) -> list[Event]:
    """The rules of another edition, from here on (semantics H8).

    What the second one held ends, and nobody has to leave by a date where nobody had to before.
    """
    if edition == state.edition:
        return []
    if edition < state.edition:
        raise InvalidCommand(f"edition {state.edition} of the rules is in force, and no earlier one can follow it")
    check_edition(edition)
    ended = [
        facts.HoldEnded(hold=hold.id, worker=hold.worker, app=hold.app, reason="served")
        for hold in state.holds.values()
    ]
    withdrawn = [
        facts.RevocationWithdrawn(app=executor.app, executor=executor.id, worker=executor.worker)
        for hold in state.holds.values()
        for _, executor in sorted(hold.leaving.items())
        if not state.apps[executor.app].over
    ]
    undate = state.configured and state.settings.reclaim != "firm"
    settings = [undated(state.settings)] if undate else []
    return [*ended, *withdrawn, facts.EditionChanged(edition=edition), *settings]


def _can_start_elsewhere(state: ClusterState, app: App, worker: Worker) -> bool:
    """Whether a live worker could host the app that has not said that its command cannot be started (semantics W9)."""
    workers = {name for name, trouble in app.troubles.items() if trouble.unstartable} | {worker.id}
    least = windows.sought_by(state, app, app.need.least, state.at)
    return could_host_elsewhere(state, least, workers, app.need.gang or 1)


def _executor_started(state: ClusterState, command: commands.StartedExecutor) -> list[Event]:
    """An executor runs, also one that is to leave for a claim: its time counts (semantics X1, H7)."""
    executor = _executor(state, command.executor)
    new = executor.status == "starting" or (executor.leaves and not executor.started)
    return [facts.ExecutorChanged(executor=executor.id)] if new and _is_its_worker(executor, command.worker) else []


def _is_its_worker(held: Allocation, worker: str) -> bool:
    """Whether the executor or driver is granted to the reporting worker; a report without a name is accepted."""
    return not worker or worker == held.worker


def _executor_ended(state: ClusterState, command: commands.EndedExecutor, at: int) -> list[Event]:
    """The grant returns. Unfinished tasks reset the done cores (S6); too many failures end the app (W5).

    An executor that was stopped has not failed, and leaves what is done as it is. A program that ended well lowers the
    demand (G2). An app ends as well if no other worker is left to start its tasks (W9). None of this holds for an app
    whose time is over (X2) or that was put back (X6).
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
    done = command.done and not app.spec.programs and app.admitted > 0
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
    if app.spec.programs and reason == "exited" and not revoked and app.goes_on:
        events += gave_back(app)
    elif app.goes_on and not done:
        events += after_removal(state, {app.id: [executor]})
        events += broken_up(app, [executor])
        failures = failures_in_a_row(app, executor, at)
        if unstartable and not _can_start_elsewhere(state, app, worker):
            events.append(facts.AppRemoved(app=executor.app, reason="failed", detail=command.unstartable))
        elif reason == "failed" and failures >= most_failures(app, state.settings) and not serving(app, executor, at):
            last = f"; the last one: {command.detail}" if command.detail else ""
            how = f"with none running{' for 10 s' * app.spec.programs}"
            said = f"{failures} executors ended abnormally {how}{last}"
            if app.spec.max_failures == 1:
                said = command.detail or command.unstartable or said
            events.append(facts.AppRemoved(app=executor.app, reason="failed", detail=one_line(said, MAX_DETAIL)))
    return [*events, *_out_once_empty(worker)]


def _driver_ended(state: ClusterState, command: commands.EndedDriver) -> list[Event]:
    """The app ends with its driver: finished on exit code 0, else failed unless supervised (semantics D3).

    One whose time is over ends otherwise (X2), one that was put back not at all (X6).
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
    if app.goes_on:
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
    """Its executors leave at once and the worker gets no others; its drivers stay until they end (semantics W3).

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

    If its time was over first, it ends because of that (X2). Of one that was put back, what runs again says so (X6).
    """
    app = _app(state, command.app)
    if app.over or (app.restarts and not app.admitted):
        return []
    if app.restarts and command.executor and command.executor not in app.executors:
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
    command = replace(command, taints=check_taints("a worker", command.taints)) if command.taints else command
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
            *_labelled(command, {}, ()),
        ]
    if (worker.node, worker.host, worker.rack) != (command.node, command.host, command.rack):
        raise errors.DuplicateWorker(worker.id, worker.host, worker.rack)
    if worker.offer == offer and worker.addresses == addresses:
        return _labelled(command, worker.labels, worker.taints)
    held = worker.offer - worker.free
    for what, offered, granted in (("cores", offer.cores, held.cores), ("MiB", offer.memory_mb, held.memory_mb)):
        if offered < granted:
            raise errors.OfferTooSmall(worker.id, what, offered, granted)
    check_still_offered(worker, addresses)
    return [
        facts.WorkerChanged(
            worker=worker.id,
            status=worker.status,
            offer=offer,
            addresses=addresses,
            reason=worker.reason,
            unwell=worker.unwell,
            window=worker.window,
        ),
        *_labelled(command, worker.labels, worker.taints),
    ]


def _labelled(command: commands.RegisterWorker, labels: Mapping[str, str], taints: tuple[str, ...]) -> list[Event]:
    """The labels and taints, if they are others than these, those before (semantics W1, P9)."""
    if (command.labels, command.taints) == (labels, taints):
        return []
    labels = dict(sorted(command.labels.items()))
    return [facts.WorkerLabelled(worker=command.worker, labels=labels, taints=command.taints)]


def _set_status(
    worker: Worker, status: facts.WorkerStatus, *, only_from: tuple[facts.WorkerStatus, ...], reason: str | None = None
) -> list[Event]:
    """The worker with another status; nothing unless its status is in `only_from` (semantics W3)."""
    if worker.status not in only_from:
        return []
    return [_with_status(worker, status, worker.reason if reason is None else reason)]


def _with_status(
    worker: Worker, status: facts.WorkerStatus, reason: str, *, unwell: bool = False
) -> facts.WorkerChanged:
    return facts.WorkerChanged(
        worker=worker.id, status=status, offer=worker.offer, addresses=worker.addresses, reason=reason, unwell=unwell
    )


def _drain(worker: Worker, command: commands.DrainWorker) -> list[Event]:
    """Draining, unless it was decommissioned (W3) or drains neither for its health (W11) nor for a window (W14)."""
    if command.reason:
        check_name("the reason", command.reason)
    by_itself = worker.unwell or worker.window != ""
    if worker.decommissioned or (worker.status == "draining" and (command.unwell or not by_itself)):
        return []
    if command.unwell and worker.status == "leaving":
        return []
    return [_with_status(worker, "draining", command.reason, unwell=command.unwell)]


def _undrain(worker: Worker, *, unwell: bool) -> list[Event]:
    """Alive again, unless it was decommissioned (semantics W3); with `unwell`, only if its health was why (W11)."""
    if unwell:
        return [_with_status(worker, "alive", "")] if worker.unwell else []
    if worker.window:
        raise InvalidCommand(
            f"worker {worker.id!r} drains for the window {worker.window!r}; `fairlog window remove {worker.window}` "
            "ends that"
        )
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
        if app.goes_on and not app.spec.supervise:
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
    """The log goes on although a longer one was known (semantics I7)."""
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
    """All executors of the worker are gone; their apps stay and their tasks run again (semantics W2, W3)."""
    events: list[Event] = [
        facts.ExecutorRemoved(app=executor.app, executor=executor.id, worker=worker.id, reason=reason)
        for executor in worker.executors.values()
    ]
    ended: dict[str, list[Allocation]] = {
        executor.app: [] for executor in worker.executors.values() if state.apps[executor.app].goes_on
    }
    for executor in worker.executors.values():
        if executor.app in ended:
            ended[executor.app].append(executor)
    broken = [each for name, gone in ended.items() for each in broken_up(state.apps[name], gone)]
    over = [lost_for_good(state.apps[name], worker) for name in ended] if reason == "lost" else []
    return [*events, *after_removal(state, ended), *broken, *[each for each in over if each is not None]]


def _tenant(state: ClusterState, command: commands.RegisterCompany | commands.ChangeCompany) -> facts.CompanyRegistered:
    """The event of a company, its quota (semantics C2) and how long its apps may run (X1)."""
    check_name("the company", command.company)
    part = None if command.part in (None, departments.NONE) else read_part(command.part)
    amounts = quota_stated(state.kinds, command)
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
        end_idle=bool(command.end_idle),
    )


def _change_company(state: ClusterState, command: commands.ChangeCompany) -> list[Event]:
    """The quota in full; what the command does not state stays (semantics C2, X1).

    In earlier logs a command that states nothing takes the quota away; none such arrives (`check_states_a_change`).
    """
    stated = asdict(_tenant(state, command))
    known = asdict(_company(state, command.company).spec)
    others = {
        name: getattr(command, name) for name in ("borrow", "default_max_runtime_s", "max_max_runtime_s", "end_idle")
    }
    given = {name: value for name, value in others.items() if value is not None}
    quota = ("amounts", "part", "kinds") if command.cores is not None or command.part is not None or not given else ()
    changed = {**known, **{name: stated[name] for name in quota}, **given}
    for name in ("default_max_runtime_s", "max_max_runtime_s"):
        changed[name] = changed[name] or None
    check_runtimes(changed["default_max_runtime_s"], changed["max_max_runtime_s"])
    return [] if changed == known else [facts.CompanyChanged(**changed)]


def _remove_company(state: ClusterState, name: str) -> list[Event]:
    """The company is no more; it has neither apps nor windows. Raises: CompanyInUse, InvalidCommand, UnknownCompany."""
    company = _company(state, name)
    if company.apps:
        raise errors.CompanyInUse(name, company.apps)
    windows.check_unreserved(state, name)
    return [facts.CompanyRemoved(company=name)]


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


def _living_alone(state: ClusterState, name: str) -> App:
    """The app, whose executors can come and go one by one (semantics G8)."""
    app = _living(state, name)
    if app.spec.gang:
        raise InvalidCommand(
            f"app {name!r} is a gang, whose executors start and stop together; `fairlog requeue {name}` starts all of "
            f"them anew, and `fairlog kill {name}` ends it"
        )
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
