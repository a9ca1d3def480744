"""Which of a user's pending apps is next (semantics F)."""

from __future__ import annotations

from collections.abc import Callable

AppKey = tuple[int, int]


def fifo(_kind: str, submitted: int) -> AppKey:
    """The app submitted first (semantics F1); `submitted` is the log position of its submission."""
    return 0, submitted


def sql_first(kind: str, submitted: int) -> AppKey:
    """Apps of kind `sql` before others, each group by submission (semantics F2)."""
    return 0 if kind == "sql" else 1, submitted


AppPolicy = Callable[[str, int], AppKey]
APP_POLICIES: dict[str, AppPolicy] = {"fifo": fifo, "sql-first": sql_first}
