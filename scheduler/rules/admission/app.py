"""Which of a user's pending apps is next (semantics F).

A policy is one record of `APP_POLICIES`, read by admission, explanations and the audit. Within a group of equals, apps
go by their rank time, then by submission (semantics Q1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App

AppPlace = tuple[int, int, int, int]
"""(place of its kind, -priority if only that counts, rank time in ms, position of its submission)."""


def fifo(_kind: str) -> int:
    """All apps are equal (semantics F1)."""
    return 0


def sql_first(kind: str) -> int:
    """Apps of kind `sql` before others (semantics F1)."""
    return 0 if kind == "sql" else 1


class AppPolicy(NamedTuple):
    """The order of a user's pending apps: by the `key` of the app's kind, by rank time, then by submission."""

    name: str
    rule: str
    """The number of the rule in docs/semantics.md."""
    key: Callable[[str], int]
    reason: str
    """Why an app was next, after "of 3 apps in ann's queue it was"."""

    def rank(self, app: App, step_ms: int) -> AppPlace:
        """The app's place among the user's (semantics Q1).

        A step of priority is worth `step_ms` of waiting; with 0, no waiting makes up for a lower priority. Example,
        steps of an hour: an app of priority 2 that became ready at 12:00 goes before one of priority 0 from 10:30, and
        after one from 09:30.
        """
        if step_ms:
            return self.key(app.spec.kind), 0, app.ready_at - app.priority * step_ms, app.submitted
        return self.key(app.spec.kind), -app.priority, app.ready_at, app.submitted


APP_POLICIES = {
    policy.name: policy
    for policy in (
        AppPolicy("fifo", "F1", fifo, "submitted first"),
        AppPolicy("sql-first", "F1", sql_first, "first by its kind, then by submission"),
    )
}
"""By their names, which are the values of the setting."""
