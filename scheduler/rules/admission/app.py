"""Which of a user's pending apps is next (semantics F).

A policy is one record of `APP_POLICIES`, read by admission, explanations and the audit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

AppKey = tuple[int, int]


def fifo(_kind: str) -> int:
    """All apps are equal: the first submitted is next (semantics F1)."""
    return 0


def sql_first(kind: str) -> int:
    """Apps of kind `sql` before others, each group by submission (semantics F2)."""
    return 0 if kind == "sql" else 1


class AppPolicy(NamedTuple):
    """The order of a user's pending apps: by the `key` of the app's kind, then by submission."""

    name: str
    rule: str
    """The number of the rule in docs/semantics.md."""
    key: Callable[[str], int]
    reason: str
    """Why an app was next, after "of 3 apps in ann's queue it was"."""

    def rank(self, kind: str, submitted: int) -> AppKey:
        """The app's place among the user's; `submitted` is the log position of its submission."""
        return self.key(kind), submitted


APP_POLICIES = {
    policy.name: policy
    for policy in (
        AppPolicy("fifo", "F1", fifo, "submitted first"),
        AppPolicy("sql-first", "F2", sql_first, "first by its kind, then by submission"),
    )
}
"""By their names, which are the values of the setting."""
