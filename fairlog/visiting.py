"""Which executor of an app a command of `fairlog exec` runs with, and who may run one there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.errors import InvalidCommand, UnknownApp
from scheduler.rules.command.permission import Subject, may_read

if TYPE_CHECKING:
    from scheduler.model.sender import By
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.state.cluster import ClusterState


def place_of(state: ClusterState, app: str, executor: str) -> Allocation:
    """The executor or driver of the app with that id; "" = the first that runs. Raises: UnknownApp, InvalidCommand."""
    found = state.apps.get(app)
    if found is None:
        raise UnknownApp(app)
    running = [each for each in found.allocations() if each.status != "stopping"]
    for each in running:
        if executor in ("", each.id):
            return each
    if found.ended is not None or found.state == "pending":
        raise InvalidCommand(f"app {app!r} is {found.state}: it has no executor in which a command could run")
    known = ", ".join(each.id for each in running) or "none yet"
    raise InvalidCommand(f"app {app!r} has no executor{f' {executor!r}' if executor else ''} now; it has {known}")


def check_may_visit(state: ClusterState, by: By, owner: Subject, now: int, *, reason: str) -> None:
    """Raises: NotAllowed unless `by` may both read the app's output and end it (semantics I3)."""
    if state.closed:
        may_read(state, by, "private", owner, now, reason=reason)
        may_read(state, by, "kill", owner, now, reason=reason)  # which is no verb of a worker's, whatever runs there
