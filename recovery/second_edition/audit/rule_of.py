"""What a command causes on a state, and the rule that a log breaks where it decides otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recovery.second_edition.rules.admission.app import APP_POLICIES
from recovery.second_edition.rules.admission.company import COMPANY_POLICIES
from recovery.second_edition.rules.admission.user import USER_POLICIES
from recovery.second_edition.rules.decide import decide, is_full
from recovery.second_edition.rules.entities import App
from recovery.second_edition.rules.placement.executors import PLACEMENTS
from recovery.second_edition.rules.reclaim import may_be_lost
from recovery.second_edition.rules.state import ClusterState
from recovery.second_edition.rules.turn import decision_of
from recovery.second_edition.rules.validate import check_private
from scheduler.model import commands, events
from scheduler.model.errors import CommandRejected
from scheduler.model.events import (
    AppAdmitted,
    CommandRefused,
    Computed,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    ExecutorRevoked,
    of_one_type,
)

if TYPE_CHECKING:
    from scheduler.store.codec import Fact


def caused(state: ClusterState, first: Fact) -> list[Event]:
    """The events that the command of this entry causes on `state` by itself, or its refusal (semantics T3).

    A logged refusal of the same class is taken as logged, whatever its sentence. It is believed where the private part
    of the command, which may be the reason, is withheld. Beyond its sender's refusals of a minute nothing is logged.
    """
    command = first.command
    if command is None or first.cause in state.commands:
        return []  # a command that is sent again causes nothing
    refusal = first.event if type(first.event) is CommandRefused else None
    if refusal is None or first.private is not None or not isinstance(command, commands.SubmitApp):
        try:
            if first.private is not None:
                check_private(first.private)
            return decide(state, command, first.at, first.by)
        except CommandRejected as error:
            if refusal is None or refusal.error != type(error).__name__:
                refusal = CommandRefused(error=type(error).__name__, message=str(error))
    return [refusal] if state.may_log_refusal(first.at, first.by.account) else []


def rule_of_input(command: commands.Command | None, done: Event | None, due: Event | None) -> str:
    """The rule by which the command causes `due`, or nothing, where the log has `done`, or nothing."""
    event = done if due is None else due
    kind = type(event)
    if CommandRefused in (type(done), type(due)):
        return "T3"
    if kind in _ENTAILED:
        return _ENTAILED[kind]
    if isinstance(event, events.AppRemoved) and event.reason == "expired":
        return "X2"
    if isinstance(command, commands.EndedExecutor):
        if isinstance(event, events.AppRemoved) and event.reason == "finished":
            return "G2"
        return "W9" if command.unstartable and kind is events.AppRemoved else _OF_AN_END.get(kind, "A5")
    return next((rule for rule, kinds in _OF_COMMANDS.items() if isinstance(command, kinds)), "T2")


def broken(state: ClusterState, done: Event | None, due: Event | None) -> str:
    """The rule by which the decision `due`, or none, comes on `state` where the log has `done`, or none."""
    if isinstance(due, events.AppReady | events.AppRemoved):
        return _rule(due)
    if isinstance(done, AppAdmitted):
        return _admission(state, done, due)
    if isinstance(due, AppAdmitted):
        return "A6" if state.settings.admission == "open" else _rule(due)
    if isinstance(done, ExecutorRevoked) and done.reason == "reclaimed":
        return _loss(state, done, due)
    decision = due if not of_one_type(done, due) and due is not None else done
    judge = _GRANTS.get(type(decision))
    return _rule(decision) if judge is None else judge(state, done, due)


def _rule(event: Event | None) -> str:
    """The rule that most decisions of that kind follow."""
    if isinstance(event, events.AppRemoved):
        return "X2"
    if isinstance(event, events.RoomHeld) and event.reason == "reclaim":
        return "E1"
    decision = None if event is None else decision_of(event)
    return _ENTAILED.get(type(event), "T2") if decision is None else decision.rule


def _admission(state: ClusterState, done: AppAdmitted, due: Event | None) -> str:
    """Wrong share (C3), not ready (J2), full (A3), beyond a limit (N2) or quota (C4), out of turn (C, U, F, A6)."""
    settings, queue = state.settings, state.queue.companies.get(done.company)
    app = state.apps.get(done.app)
    if isinstance(due, AppAdmitted) and due.app == done.app and due.company == done.company:
        return "C3"
    if settings.admission == "open":
        return "A6"
    if queue is None or app is None or app.state != "pending" or app.spec.company != done.company:
        return "A3"
    if not app.ready or (due is None and is_full(state, app.requested)):
        return "A3" if app.ready else "J2"
    if (over := queue.limit.broken(done.user, app.requested)) is not None or (
        not queue.limit.admits(app.requested) and not queue.borrows
    ):
        return "C4" if over is None else "N2"
    return _turn_of(state, done, due) if isinstance(due, AppAdmitted) else "A3"


def _turn_of(state: ClusterState, done: AppAdmitted, due: AppAdmitted) -> str:
    """The rule by which it was the turn of `due`."""
    settings = state.settings
    if due.company != done.company:
        return COMPANY_POLICIES[settings.company_policy].rule
    if due.app in state.queue.companies[due.company].limit.reserved:
        return "C7"
    policy = USER_POLICIES[settings.user_policy] if due.user != done.user else APP_POLICIES[settings.app_policy]
    return policy.rule


def _loss(state: ClusterState, done: ExecutorRevoked, due: Event | None) -> str:
    """Wrong receipt (E5), an executor that may not be taken (E2, E3), not the one whose turn it was (E4), no claim."""
    if isinstance(due, ExecutorRevoked) and (due.executor, due.claimant) == (done.executor, done.claimant):
        return "E5"
    if not may_be_lost(state, done):
        return "E3" if done.rule == "E3" else "E2"
    return "E4" if isinstance(due, ExecutorRevoked) else "E1"


def _driver(state: ClusterState, done: Event | None, due: Event | None) -> str:
    """Wrong worker (D2), beyond the drivers' share (D4), or out of order (D1)."""
    if isinstance(done, DriverAllocated) and isinstance(due, DriverAllocated) and done.app == due.app:
        return "D2" if done.worker != due.worker else "D1"
    waits = isinstance(done, DriverAllocated) and done.app in state.waiting and state.apps[done.app].driver is None
    return "D4" if waits and due is None else "D1"


def _executor(state: ClusterState, done: Event | None, due: Event | None) -> str:
    """Wrong app (P6), size (S2, S3, S5) or worker (P1, P2, P3, P7, L5)."""
    if not isinstance(done, ExecutorAllocated) or not isinstance(due, ExecutorAllocated) or done.app != due.app:
        return "P6"
    app = state.apps[due.app]
    if done.resources.cores != due.resources.cores:
        return "S2" if isinstance(app.sizing, Computed) else "S5"
    if done.resources != due.resources:
        return "S3" if isinstance(app.sizing, Computed) else "S5"
    if done.worker != due.worker:
        return _worker(state, app, done)
    return "L5" if done.locality != due.locality else "P6"


def _worker(state: ClusterState, app: App, done: ExecutorAllocated) -> str:
    """Not a candidate (P1, W7, W8), or not the one whose turn it was (P2, P3, P7, L5)."""
    worker = state.workers.get(done.worker)
    if worker is None or worker.status != "alive" or not worker.free.covers(done.resources):
        return "P1"
    if worker.suspicion is not None:
        return "W8"
    if worker.id in app.troubles:
        return "W7"
    placement = PLACEMENTS[state.settings.placement]
    return "L5" if app.demand.wanted and not placement.one_a_worker else placement.rule


_GRANTS: dict[type, Callable[[ClusterState, Event | None, Event | None], str]] = {
    DriverAllocated: _driver,
    ExecutorAllocated: _executor,
}
_OF_COMMANDS: dict[str, tuple[type[Any], ...]] = {
    "A1": (commands.SubmitApp,),
    "Q1": (commands.ReprioritizeApp,),
    "J3": (commands.HoldApp, commands.ReleaseApp),
    "A5": (commands.KillApp, commands.EndApp, commands.StartedExecutor),
    "H9": (commands.ChangeEdition,),
    "C2": (commands.RegisterCompany, commands.ChangeCompany, commands.RemoveCompany),
    "D3": (commands.EndedDriver,),
    "L1": (commands.ScaleApp,),
    "L6": (commands.ReportBacklog,),
    "P6": (commands.KillExecutors,),
    "N1": (commands.SetLimit,),
    "X3": (commands.ExtendApp,),
    "X4": (commands.SignalApp,),
    "X5": (commands.CancelTask,),
    "G4": (commands.FinishApp, commands.LoseOwner),
    "W1": (commands.RegisterWorker,),
    "W2": (commands.LoseWorker,),
    "W3": (commands.DrainWorker, commands.UndrainWorker, commands.RemoveWorker),
    "W6": (commands.DecommissionWorker,),
    "I2": (
        commands.AddAccount,
        commands.ChangeAccount,
        commands.RemoveAccount,
        commands.GrantRole,
        commands.RevokeRole,
    ),
    "I3": (commands.ShowApps,),
    "I7": (commands.RestoreLog,),
    "I8": (commands.AcceptLog,),
    "I5": (commands.IssueToken, commands.RevokeToken),
}
_OF_NEEDS: dict[type[Any], str] = {
    events.NeedBegan: "H6",
    events.NeedEnded: "H6",
    events.SlotAwaited: "H10",
    events.SlotBegan: "H10",
    events.SlotEnded: "H10",
    events.TargetSet: "H6",
    events.TargetEnded: "H7",
    events.RevocationWithdrawn: "H7",
    ExecutorRevoked: "H7",
}
_OF_AN_END: dict[Any, str] = {events.AppChanged: "S6", events.AppRemoved: "W5", events.WorkerRemoved: "W3"}
_ENTAILED: dict[Any, str] = {
    events.RoomReserved: "C7",
    events.ExecutorsRequested: "L1",
    events.WorkerSuspected: "W8",
    events.WorkerCleared: "W8",
}
"""Events that follow another event, or the beginning of a turn, at once."""
