"""What would become of a submission now: decided on a copy of the state, by the rules that a turn follows."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from scheduler.model.commands import SubmitApp
from scheduler.model.events import DriverAllocated, ExecutorAllocated
from scheduler.model.sender import By
from scheduler.rules.command.readiness import with_namesakes
from scheduler.rules.command.request import as_asked
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from witness.forecast import Estimate, forecast
from witness.pending_reasons import place_in_queue, waits_for

AHEAD = 5
"""The most apps that are named as going first."""


def plan(state: ClusterState, command: SubmitApp, by: By, at: int) -> dict[str, Any]:
    """Whether and where the app would start if it was submitted at `at` (ms) by `by`; else why it waits, behind whom.

    It changes the state, which must be nobody else's. `ahead`: apps of its user that go before it, then the app that is
    admitted next. Raises: CommandRejected if it would be refused.
    """
    turn = Turn(state, at)
    turn.take(with_namesakes(state, as_asked(state.settings, command)), "plan", by)
    turn.settle()
    app = state.apps[command.app]
    placed = [entry.event for entry in turn.entries if isinstance(entry.event, ExecutorAllocated | DriverAllocated)]
    mine = [event for event in placed if event.app == command.app]
    wait = waits_for(state, app)
    told = {
        "admitted": app.admitted > 0,
        "starts": bool(mine),
        "state": app.state,
        "requestedCores": app.requested.cores,
        "requestedMemory": app.requested.memory_mb,
        "executors": [
            {
                "executor": event.executor if isinstance(event, ExecutorAllocated) else event.driver,
                "worker": event.worker,
                "cores": event.resources.cores,
                "memory": event.resources.memory_mb,
            }
            for event in mine
        ],
        "waitsFor": None if wait is None else wait.told(),
        "queue": place_in_queue(state, app),
        "ahead": _ahead(state, command),
    }
    estimate = Estimate(at, at, at) if mine else forecast(state, at, [app.id], spoil=True).get(app.id)
    found: dict[str, Any] = to_builtins({**told, "estimate": None if estimate is None else estimate._asdict()})
    return found


def _ahead(state: ClusterState, command: SubmitApp) -> list[dict[str, str]]:
    app = state.apps[command.app]
    if app.admitted or not app.ready or app.ended is not None:
        return []
    names: dict[str, None] = {}
    for one in state.queue.companies[command.company].users[command.user].by_policy:
        if one is app or len(names) == AHEAD:
            break
        names[one.id] = None
    return [
        {"app": name, "company": spec.company, "user": spec.user} for name in names for spec in [state.apps[name].spec]
    ]
