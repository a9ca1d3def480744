"""Run a scenario of settings and commands without a store; return its decisions and the final state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scheduler.model.commands import Command, ConfigureCluster, EndApp, EndedDriver, EndedExecutor, KillApp, command_of
from scheduler.model.errors import FairlogError, InvalidCommand
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules import invariants
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import Turn, decision_of
from scheduler.rules.validate import shorten

_OPERATIONS = {
    "company": "RegisterCompany",
    "worker": "RegisterWorker",
    "submit": "SubmitApp",
    "kill": "KillApp",
    "extend": "ExtendApp",
    "scale": "ScaleApp",
    "kill_executors": "KillExecutors",
    "executor_running": "StartedExecutor",
    "executor_ended": "EndedExecutor",
    "backlog": "ReportBacklog",
    "driver_ended": "EndedDriver",
    "drain": "DrainWorker",
    "decommission": "DecommissionWorker",
    "undrain": "UndrainWorker",
    "remove": "RemoveWorker",
    "worker_lost": "LoseWorker",
    "change_company": "ChangeCompany",
    "remove_company": "RemoveCompany",
}
_IMPLIED: Mapping[str, Mapping[str, Any]] = {
    "worker": {"node": "simulated", "host": "simulated"},
    "submit": {"command": ["true"]},
    "executor_ended": {"reason": "exited"},
    "driver_ended": {"reason": "exited", "exit_code": 0},
}


def run_scenario(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """`{"decisions": […], "final": {…}}` of a scenario `{"settings": {…}, "commands": [{"op": …}, …]}`.

    Each command is a turn; the commands of a `turn` arrive together (semantics T2). `at` is the time of a command in ms
    and never decreases; the default is 1 ms after the previous one. A turn also runs at each time in between that a
    rule waits for (T1). `finish` ends all executors and the driver of the app, and removes the app, pending or not.
    The ledgers are recomputed after every turn.

    Raises: FairlogError naming the command (counted from 1) that is malformed or refused.
    """
    if not isinstance(scenario, Mapping) or not isinstance(scenario.get("commands"), list):
        raise InvalidCommand('a scenario must be an object {"settings": {…}, "commands": […]}')
    state = ClusterState()
    decisions: list[dict[str, Any]] = []
    settings = scenario.get("settings", {})
    if not isinstance(settings, Mapping):
        raise InvalidCommand('"settings" must be an object of settings by name')
    Turn(state, 0).take(ConfigureCluster(settings=dict(settings)))
    now = stated = 0
    for number, operation in enumerate(scenario["commands"], start=1):
        try:
            if isinstance(operation, Mapping) and "at" in operation:
                stated = _time(operation["at"], stated)
                due = max(stated, now)
            else:
                due = now + 1
            while (moment := state.timers.next(now)) is not None and moment < due:
                now = moment
                decisions += _run(Turn(state, now))
            now = due
            turn = Turn(state, now)
            for command in _commands(state, operation):
                turn.take(command)
        except FairlogError as error:
            raise InvalidCommand(f"command {number}: {error}") from None
        decisions += _run(turn)
    return {"decisions": decisions, "final": _final(state)}


def _run(turn: Turn) -> list[dict[str, Any]]:
    """The decisions of the turn after its commands."""
    turn.settle()
    invariants.check(turn.state)
    found = ((decision_of(entry.event), entry.event) for entry in turn.entries)
    return [decision.as_json(event) for decision, event in found if decision is not None]


def _time(at: Any, before: int) -> int:  # noqa: ANN401 - it is read from a file
    if not isinstance(at, int) or isinstance(at, bool) or at < before:
        raise InvalidCommand(f'"at" must be a time in ms, at least {before} here, not {shorten(at)}')
    return at


def _final(state: ClusterState) -> dict[str, Any]:
    """waitingApps in order, requested and granted amounts as [cores, MiB], and the pending apps by name."""
    granted = sum((app.granted for app in state.waiting.values()), NOTHING)
    return {
        "waiting": list(state.waiting),
        "occupied": _amounts(state.balance.requested),
        "granted": _amounts(granted),
        "companies": {name: _amounts(one.balance.requested) for name, one in sorted(state.companies.items())},
        "pending": sorted(app.spec.app for app in state.apps.values() if app.state == "pending"),
    }


def _amounts(resources: Resources) -> list[int]:
    return [resources.cores, resources.memory_mb]


def _commands(state: ClusterState, operation: Any) -> Iterator[Command]:  # noqa: ANN401 - it is read from a file
    """The commands of one operation; `state` is read when each is taken."""
    if not isinstance(operation, Mapping) or "op" not in operation:
        raise InvalidCommand(f'an operation must be an object with an "op", not {shorten(operation)}')
    arguments = {name: value for name, value in operation.items() if name not in ("op", "at")}
    match operation["op"]:
        case "turn":
            together = arguments.get("commands")
            if not isinstance(together, Sequence) or isinstance(together, str):
                raise InvalidCommand('a turn must be an object {"op": "turn", "commands": […]}')
            for part in together:
                yield from _commands(state, part)
        case "finish":
            yield from _finish(state, str(arguments.get("app")))
        case "settings":
            yield ConfigureCluster(settings=arguments)
        case str(name) if name in _OPERATIONS:
            try:
                yield command_of({**_IMPLIED.get(name, {}), **arguments, "type": _OPERATIONS[name]})
            except InvalidCommand as error:
                raise InvalidCommand(f"{name}: {error}") from None
        case other:
            known = ", ".join((*_OPERATIONS, "finish", "settings", "turn"))
            raise InvalidCommand(f"no operation is named {shorten(other)}; the operations are {known}")


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
