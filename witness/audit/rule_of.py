"""What a command causes on a state, and the rule that a log breaks where it decides otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from scheduler.rules.checks.validate import check_private
from scheduler.rules.command.decide import decide
from scheduler.rules.command.windows import barred
from scheduler.rules.entities.apps import App
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.stage.turn import decision_of
from scheduler.rules.state.cluster import ClusterState

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
    if isinstance(event, ExecutorRevoked) and event.gang:
        return "G8"
    if isinstance(command, commands.EndedExecutor):
        return _of_an_end(command, event, kind)
    return next((rule for rule, kinds in _OF_COMMANDS.items() if isinstance(command, kinds)), "T2")


def _of_an_end(command: commands.EndedExecutor, event: Event | None, kind: type[Any]) -> str:
    """The rule of what follows from the end of an executor."""
    if isinstance(event, events.AppRemoved) and event.reason == "finished":
        return "G2"
    return "W9" if command.unstartable and kind is events.AppRemoved else _OF_AN_END.get(kind, "A5")


def broken(state: ClusterState, done: Event | None, due: Event | None) -> str:
    """The rule by which the decision `due`, or none, comes on `state` where the log has `done`, or none."""
    if isinstance(due, events.AppReady | events.AppRemoved):
        return _rule(due)
    if state.by_entitlement and (rule := _by_entitlement(state, done, due)):
        return rule
    if isinstance(done, AppAdmitted) or isinstance(due, AppAdmitted):
        same = isinstance(due, AppAdmitted) and isinstance(done, AppAdmitted) and due.app == done.app
        return "C3" if same else "A6"
    decision = due if not of_one_type(done, due) and due is not None else done
    judge = _GRANTS.get(type(decision))
    return _rule(decision) if judge is None else judge(state, done, due)


def _by_entitlement(state: ClusterState, done: Event | None, due: Event | None) -> str:
    """The rule of sharing by entitlement by which `due` comes (semantics H); "" if another one decides.

    Of an executor that its app is due, in another size or place, the rules of sizes and placement decide (S, P).
    """
    decision = due if not of_one_type(done, due) and due is not None else done
    match decision:
        case AppAdmitted():
            app = state.apps.get(decision.app)
            if app is not None and not app.admitted and not app.ready:
                return "J2"
            same = isinstance(due, AppAdmitted) and isinstance(done, AppAdmitted) and due.app == done.app
            return "C3" if same else "H4"
        case ExecutorAllocated() | DriverAllocated():
            same = of_one_type(done, due) and getattr(due, "app", "") == decision.app
            return "" if same and isinstance(done, ExecutorAllocated) else "H5"
        case ExecutorRevoked() if decision.why is None:
            return ""
    return _OF_NEEDS.get(type(decision), "")


def _rule(event: Event | None) -> str:
    """The rule that most decisions of that kind follow."""
    if isinstance(event, events.AppRemoved):
        return "X2"
    decision = None if event is None else decision_of(event)
    return _ENTAILED.get(type(event), "T2") if decision is None else decision.rule


def _driver(state: ClusterState, done: Event | None, due: Event | None) -> str:
    """Wrong worker (D2), beyond what there may be (D4), or out of order (D1)."""
    if isinstance(done, DriverAllocated) and isinstance(due, DriverAllocated) and done.app == due.app:
        return "D2" if done.worker != due.worker else "D1"
    waits = isinstance(done, DriverAllocated) and done.app in state.waiting and state.apps[done.app].driver is None
    return "D4" if waits and due is None else "D1"


def _executor(state: ClusterState, done: Event | None, due: Event | None) -> str:
    """Wrong app (P6), size (S2, S3, S5) or worker (P1, P2, P7, L5)."""
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
    """Not a candidate (P1, W7, W8), or not the one whose turn it was (P2, P7, L5)."""
    worker = state.workers.get(done.worker)
    if worker is None or worker.status != "alive" or not worker.free.covers(done.resources):
        return "P1"
    if worker.suspicion is not None:
        return "W8"
    if worker.id in app.troubles:
        return "W7"
    if worker.id in barred(state, app, state.at):
        return "W14"
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
    "H8": (commands.ChangeEdition,),
    "C2": (commands.RegisterCompany, commands.ChangeCompany, commands.RemoveCompany),
    "D3": (commands.EndedDriver,),
    "L1": (commands.ScaleApp,),
    "L6": (commands.ReportBacklog,),
    "P6": (commands.KillExecutors,),
    "N1": (commands.SetLimit,),
    "X1": (commands.ExtendApp,),
    "X4": (commands.SignalApp, commands.CancelTask),
    "X6": (commands.RequeueApp,),
    "G4": (commands.FinishApp, commands.LoseOwner),
    "W1": (commands.RegisterWorker,),
    "W2": (commands.LoseWorker,),
    "W3": (commands.DrainWorker, commands.UndrainWorker, commands.RemoveWorker, commands.DecommissionWorker),
    "I2": (
        commands.AddAccount,
        commands.ChangeAccount,
        commands.RemoveAccount,
        commands.GrantRole,
        commands.RevokeRole,
    ),
    "H12": (
        commands.AddDepartment,
        commands.ChangeDepartment,
        commands.RemoveDepartment,
        commands.MoveCompany,
    ),
    "W14": (commands.AddWindow, commands.RemoveWindow),
    "I3": (commands.ShowApps,),
    "I7": (commands.RestoreLog, commands.AcceptLog),
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
    events.ExecutorsRequested: "L1",
    events.WorkerSuspected: "W8",
    events.WorkerCleared: "W8",
}
"""Events that follow another event at once."""
