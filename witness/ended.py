"""The apps that ended in a span of time, from the log, also those that the state has forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import to_builtins

from recovery.replay.rebuild import fold, unhindered
from scheduler.model.events import AppRemoved
from scheduler.rules.entities.apps import App
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import spent, summary
from scheduler.store.codec import Fact
from witness.usage import AppUsage, UsageMeter


def ended(facts: Iterable[Fact], *, since: int = 0, until: int | None = None) -> list[dict[str, Any]]:
    """The apps that ended between `since` and `until` (ms), in the order of their ends, as the view `apps` has them.

    With `startedAt`, its first grant; `waitedMs` until it was admitted, `tookMs` from then to the end, and `coreMs`
    that it was granted in all. Raises: as `fold`.
    """
    state, accounts = ClusterState(), UsageMeter()
    accounts.first_at = 0
    found: list[tuple[App, dict[str, Any], AppUsage]] = []
    with unhindered():
        for fact in facts:
            app = state.apps.get(fact.event.app) if isinstance(fact.event, AppRemoved) else None
            account = accounts.observe(state, fold(state, fact))
            if app is not None and account is not None and since <= fact.at <= (fact.at if until is None else until):
                found.append((app, to_builtins(summary(app)), account))
    for _ in accounts.accrued(state.at):
        pass
    return [_told(app, row, account) for app, row, account in found]


def _told(ended: App, app: dict[str, Any], account: AppUsage) -> dict[str, Any]:
    begun = app["admittedAt"] or app["endedAt"]
    return {
        **app,
        **({} if (used := spent(ended.spent)) is None else {"spent": to_builtins(used)}),
        "startedAt": account.started_at,
        "waitedMs": begun - app["submittedAt"],
        "tookMs": app["endedAt"] - begun,
        "coreMs": account.granted_ms.cores,
    }
