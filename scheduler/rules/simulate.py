"""Run a scenario of settings and commands without a store; return its decisions and the final state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import ValidationError, convert

from scheduler.model.commands import (
    ChangeEdition,
    Command,
    ConfigureCluster,
    EndApp,
    EndedDriver,
    EndedExecutor,
    KillApp,
    RegisterKind,
    SubmitApp,
    command_of,
)
from scheduler.model.errors import CommandRejected, FairlogError, InvalidCommand
from scheduler.model.events import (
    AppChanged,
    AppRegistered,
    AppRemoved,
    DriverRemoved,
    Event,
    ExecutorRemoved,
    WorkerSuspected,
)
from scheduler.model.resources import Resources
from scheduler.model.sender import By, local
from scheduler.rules import invariants
from scheduler.rules.checks.validate import NEW_SETTINGS, shorten
from scheduler.rules.command.decide import check_edition
from scheduler.rules.command.readiness import with_namesakes
from scheduler.rules.stage.turn import Turn, decision_of
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITIONS

_OPERATIONS = {
    "company": "RegisterCompany",
    "worker": "RegisterWorker",
    "submit": "SubmitApp",
    "kill": "KillApp",
    "signal": "SignalApp",
    "cancel": "CancelTask",
    "requeue": "RequeueApp",
    "extend": "ExtendApp",
    "limit": "SetLimit",
    "scale": "ScaleApp",
    "reprioritize": "ReprioritizeApp",
    "hold": "HoldApp",
    "release": "ReleaseApp",
    "kill_executors": "KillExecutors",
    "finish_app": "FinishApp",
    "owner_lost": "LoseOwner",
    "executor_running": "StartedExecutor",
    "executor_ended": "EndedExecutor",
    "backlog": "ReportBacklog",
    "driver_ended": "EndedDriver",
    "drain": "DrainWorker",
    "decommission": "DecommissionWorker",
    "undrain": "UndrainWorker",
    "remove": "RemoveWorker",
    "worker_lost": "LoseWorker",
    "window": "AddWindow",
    "remove_window": "RemoveWindow",
    "department": "AddDepartment",
    "change_department": "ChangeDepartment",
    "remove_department": "RemoveDepartment",
    "move_company": "MoveCompany",
    "change_company": "ChangeCompany",
    "remove_company": "RemoveCompany",
    "resource": "RegisterKind",
    "account": "AddAccount",
    "change_account": "ChangeAccount",
    "remove_account": "RemoveAccount",
    "grant_role": "GrantRole",
    "revoke_role": "RevokeRole",
    "token": "IssueToken",
    "revoke_token": "RevokeToken",
    "show_apps": "ShowApps",
}
NEVER = 1 << 62
"""A time (ms) that does not come."""
_OPERATOR = local("simulation")
"""Who sends an operation that names nobody."""
_IMPLIED: Mapping[str, Mapping[str, Any]] = {
    "worker": {"node": "simulated", "host": "simulated"},
    "submit": {"command": ["true"], "user": "user"},
    "executor_ended": {"reason": "exited"},
    "driver_ended": {"reason": "exited", "exit_code": 0},
}


def run_scenario(scenario: Mapping[str, Any], *, timed: bool = False) -> dict[str, Any]:
    """`{"decisions": […], "final": {…}}` of a scenario `{"settings": {…}, "commands": [{"op": …}, …]}`.

    `timed`: each decision has its time `at` (ms), and what ends stands among them, as {"ended": executor, "reason": …}.
    Whoever is told to stop then obeys, if the scenario does not end it before: who leaves for a need by its date ends
    at that date (semantics H7), everything else once its grace is over: its app's (G5), else `kill_grace_s`.
    `"edition"` is that of the rules of sharing; the default is the newest (semantics H8).

    Each command is a turn; the commands of a `turn` arrive together (semantics T2). `at` is the time of a command in ms
    and never decreases; the default is 1 ms after the previous one. A turn also runs at each time in between that a
    rule waits for (T1). `finish` ends all executors and the driver of the app, and removes the app, pending or not. A
    refused command is a decision, {"refused": index}; the index counts from 0, and is [i, j] within a turn. The ledgers
    are recomputed after every turn. `by` is who sends a command, as {"account": …, "token": …, "role": …, "door": …};
    the default needs no account (I2). Kinds of resources that a worker or a company of the scenario names are
    registered before the first command (R1); the operation `resource` registers others.

    Raises: FairlogError naming the command (counted from 1) that is malformed.
    """
    if not isinstance(scenario, Mapping) or not isinstance(scenario.get("commands"), list):
        raise InvalidCommand('a scenario must be an object {"settings": {…}, "commands": […]}')
    settings = scenario.get("settings", {})
    if not isinstance(settings, Mapping):
        raise InvalidCommand('"settings" must be an object of settings by name')
    edition = scenario.get("edition", EDITIONS[-1])
    check_edition(edition)
    course = _SimulatedCourse(edition, timed=timed)
    beginning = Turn(course.state, 0)
    beginning.take(ConfigureCluster(settings={**(NEW_SETTINGS if edition == EDITIONS[-1] else {}), **settings}))
    for kind in sorted(_kinds(scenario["commands"])):
        beginning.take(RegisterKind(kind=kind))
    for index, operation in enumerate(scenario["commands"]):
        try:
            course.take(index, operation)
        except FairlogError as error:
            raise InvalidCommand(f"command {index + 1}: {error}") from None
    return {"decisions": course.decisions, "final": _final(course.state)}


def _kinds(operations: Sequence[Any]) -> set[str]:
    """The kinds of resources that the workers and companies of these operations name."""
    found: set[str] = set()
    for operation in operations:
        if isinstance(operation, Mapping):
            if isinstance(together := operation.get("commands"), list):
                found |= _kinds(together)
            if isinstance(named := operation.get("resources"), Mapping):
                found.update(named)
    return found


class _SimulatedCourse:
    """The state between two commands, and the decisions so far."""

    def __init__(self, edition: int = EDITIONS[-1], *, timed: bool = False) -> None:
        self.state = ClusterState()
        self.decisions: list[dict[str, Any]] = []
        self._timed = timed
        self._now = self._stated = 0
        self._stops: dict[str, int] = {}
        """Executor or driver that was told to stop -> when (ms) it ends, if times count."""
        self._requested: dict[str, int] = {}
        """App -> the cores it requests."""
        Turn(self.state, 0).take(ChangeEdition(edition=edition))

    def take(self, index: int, operation: Any) -> None:  # noqa: ANN401 - it is read from a file
        """Decide what is due before the operation, then the operation's turn."""
        due = self._now + 1
        if isinstance(operation, Mapping) and "at" in operation:
            self._stated = _time(operation["at"], self._stated)
            due = max(self._stated, self._now)
        while (moment := self._next()) is not None and moment < due:
            timed = self._is_timed(moment)
            self._now = moment
            turn = Turn(self.state, moment)
            self._stop(turn)
            self._settle(turn, due=timed)
        timed = self._is_timed(due)
        self._now = due
        turn = Turn(self.state, due)
        for place, by, command in _commands(self.state, operation, index):
            try:
                turn.take(with_namesakes(self.state, command) if isinstance(command, SubmitApp) else command, by=by)
            except CommandRejected as refusal:
                turn.refuse(command, refusal, "", by)
                self._add(turn, {"refused": place, "error": type(refusal).__name__})
        self._stop(turn)
        self._settle(turn, due=timed)

    def _next(self) -> int | None:
        """The next time (ms) at which a rule or an end is due."""
        stops, moment = min(self._stops.values(), default=NEVER), self.state.timers.next(self._now)
        found = stops if moment is None else min(stops, moment)
        return None if found == NEVER else found

    def _is_timed(self, due: int) -> bool:
        """Whether a time that a rule waits for comes by `due` (ms) (semantics T1)."""
        moment = self.state.timers.next(self._now)
        return moment is not None and moment <= due

    def _stop(self, turn: Turn) -> None:
        """End what was told to stop by the time of the turn."""
        for name in [name for name, at in self._stops.items() if at <= turn.at]:
            del self._stops[name]
            if name in self.state.executors:
                turn.take(EndedExecutor(executor=name, reason="killed"), by=_OPERATOR)
            elif name in self.state.drivers:
                turn.take(EndedDriver(driver=name, reason="killed"), by=_OPERATOR)

    def _note_stops(self, turn: Turn) -> None:
        """Note when what was told to stop in the turn ends; who was told so before, and stays, does not."""
        known = self.state.apps
        for app in [known[name] for name in dict.fromkeys(_apps_of(turn)) if name in known]:
            for held in app.allocations():
                if held.status != "stopping":
                    self._stops.pop(held.id, None)
                    continue
                grace_s = self.state.settings.kill_grace_s if app.spec.grace_s is None else app.spec.grace_s
                due = turn.at + 1000 * grace_s
                if held.leaves and app.goes_on:
                    due = held.deadline if held.firm else NEVER
                self._stops[held.id] = min(self._stops.get(held.id, NEVER), max(turn.at + 1, due))

    def _settle(self, turn: Turn, *, due: bool) -> None:
        """Decide the turn after its inputs, and add the decisions."""
        turn.settle(due=due)
        invariants.check_after_turn(self.state)
        if self._timed:
            self._note_stops(turn)
        for event, _ in turn.entries:
            decided = self._decided(event)
            if decided is not None:
                self._add(turn, decided)

    def _add(self, turn: Turn, decision: dict[str, Any]) -> None:
        self.decisions.append({"at": turn.at, **decision} if self._timed else decision)

    def _decided(self, event: Event) -> dict[str, Any] | None:
        """The decision as answers show it; None for other events."""
        if isinstance(event, AppRegistered):
            self._requested[event.app] = event.requested.cores
        elif isinstance(event, AppChanged):
            before = self._requested.get(event.app)
            self._requested[event.app] = event.requested.cores
            return None if event.requested.cores == before else {"requested": event.app, "cores": event.requested.cores}
        elif isinstance(event, AppRemoved) and event.reason not in ("finished", "killed"):
            return {"removed": event.app, "reason": event.reason}
        elif isinstance(event, WorkerSuspected):
            return {"suspected": event.worker, "executors": list(event.executors), "until": event.until}
        elif self._timed and isinstance(event, ExecutorRemoved | DriverRemoved):
            ended = event.executor if isinstance(event, ExecutorRemoved) else event.driver
            return {"ended": ended, "reason": event.reason}
        decision = decision_of(event)
        return None if decision is None else decision.as_json(event)


def _apps_of(turn: Turn) -> list[str]:
    return [name for event, _ in turn.entries if isinstance(name := getattr(event, "app", None), str)]


def _time(at: Any, before: int) -> int:  # noqa: ANN401 - it is read from a file
    if not isinstance(at, int) or isinstance(at, bool) or at < before:
        raise InvalidCommand(f'"at" must be a time in ms, at least {before} here, not {shorten(at)}')
    return at


def _final(state: ClusterState) -> dict[str, Any]:
    """Ledgers of the companies as [cores, MiB], free cores by worker, waitingApps and the pending apps, in order."""
    pending: dict[str, dict[str, list[str]]] = {}
    for app in state.apps.values():
        if app.state == "pending":
            pending.setdefault(app.spec.company, {}).setdefault(app.spec.user, []).append(app.id)
    return {
        "companies": {name: _ledgers(state, name) for name in sorted(state.companies)},
        "free": {name: worker.free.cores for name, worker in sorted(state.workers.items())},
        "waitingApps": list(state.waiting),
        "pending": pending,
    }


def _ledgers(state: ClusterState, company: str) -> dict[str, Any]:
    balance, claimed = state.companies[company].balance, state.claims.of(company).claimed
    return {
        "claim": _amounts(claimed),
        "requested": _amounts(balance.requested),
        "granted": _amounts(balance.granted),
    }


def _amounts(resources: Resources) -> list[int]:
    return [resources.cores, resources.memory_mb]


Place = int | list[int]
"""The index of a command in its scenario, [i, j] within a turn."""


def _commands(state: ClusterState, operation: Any, place: Place) -> Iterator[tuple[Place, By, Command]]:  # noqa: ANN401 - it is read from a file
    """The commands of one operation and who sends them; `state` is read when each is taken."""
    if not isinstance(operation, Mapping) or "op" not in operation:
        raise InvalidCommand(f'an operation must be an object with an "op", not {shorten(operation)}')
    arguments = {name: value for name, value in operation.items() if name not in ("op", "at", "by")}
    by = _sender(operation["by"]) if "by" in operation else _OPERATOR
    match operation["op"]:
        case "turn":
            together = arguments.get("commands")
            if not isinstance(together, Sequence) or isinstance(together, str) or not isinstance(place, int):
                raise InvalidCommand('a turn must be an object {"op": "turn", "commands": […]}')
            for number, part in enumerate(together):
                yield from _commands(state, part, [place, number])
        case "finish":
            for command in _finish(state, str(arguments.get("app"))):
                yield place, by, command
        case "edition":
            yield place, by, ChangeEdition(edition=int(arguments.get("edition", 0)))
        case "settings":
            yield place, by, ConfigureCluster(settings=arguments)
        case str(name) if name in _OPERATIONS:
            yield place, by, _command(name, arguments)
        case other:
            known = ", ".join((*_OPERATIONS, "finish", "settings", "turn"))
            raise InvalidCommand(f"no operation is named {shorten(other)}; the operations are {known}")


def _sender(stated: Any) -> By:  # noqa: ANN401 - it is read from a file
    try:
        found: By = convert(list({**dict.fromkeys(By.__struct_fields__, ""), **stated}.values()), By)
    except (ValidationError, TypeError) as error:
        raise InvalidCommand(f"by must be an object of account, token, role and door: {error}") from None
    return found


def _finish(state: ClusterState, name: str) -> Iterator[Command]:
    app = state.apps.get(name)
    for executor in list(app.executors) if app is not None else []:
        yield EndedExecutor(executor=executor, reason="exited", exit_code=0, done=True)
    if app is None or app.spec.driver is None or app.ended is not None:
        yield EndApp(app=name, reason="finished")
    elif app.driver is None:
        yield KillApp(app=name)
    else:
        yield EndedDriver(driver=app.driver.id, reason="exited", exit_code=0)


def _command(name: str, arguments: Mapping[str, Any]) -> Command:
    values = {**_IMPLIED.get(name, {}), **arguments, "type": _OPERATIONS[name]}
    if name == "executor_ended" and values["reason"] == "finished":
        values["reason"] = "exited"
    try:
        return command_of(values)
    except InvalidCommand as error:
        raise InvalidCommand(f"{name}: {error}") from None
