"""Apps in lists, with the cause for which each waits."""

from __future__ import annotations

from typing import Any

from scheduler.rules.entities import App
from scheduler.rules.state import ClusterState
from scheduler.rules.views import summary
from witness.pending_reasons import waits_for


def listed(state: ClusterState, app: App) -> dict[str, Any]:
    """As the view `apps` has it, with `reason` and `rule`: the cause for which it waits; None if it does not."""
    wait = waits_for(state, app)
    return {**summary(app), "reason": wait and wait.cause, "rule": wait and wait.rule}
