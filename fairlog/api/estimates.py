"""Estimates of starts as they are told: with the errors of earlier ones, and kept to be compared with what comes.

docs/estimates.md has the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scheduler.store.estimates import Given, errors, keep

if TYPE_CHECKING:
    from scheduler.store.eventlog import EventLog
    from witness.forecast import Estimate

MOST_KEPT = 500
"""Of a list of estimates so many are kept."""


def errors_of_the_past(log: EventLog) -> dict[str, Any] | None:
    """How far the last estimates were from what came; None if none was compared. Raises: redis-py's errors."""
    known = errors(log.store, log.keys)
    if known is None:
        return None
    number, within, median_ms, p90_ms = known
    return {"number": number, "within": within, "medianMs": median_ms, "p90Ms": p90_ms}


def given(log: EventLog, app: str, at: int, estimate: dict[str, Any] | None) -> dict[str, Any] | None:
    """The estimate that is told of the app at `at` (ms). Raises: redis-py's errors."""
    if estimate is None:
        return None
    told = [estimate[name] for name in ("earliest", "likely", "latest")]
    keep(log.store, log.keys, {app: Given(at, *told)})
    return {**estimate, "errors": errors_of_the_past(log)}


def listed(log: EventLog | None, at: int, found: Mapping[str, Estimate]) -> dict[str, Any]:
    """The estimates that are told of these apps at `at` (ms), which are kept in the log's store if it is given.

    Raises: redis-py's errors.
    """
    if log is not None:
        some = list(found.items())[:MOST_KEPT]
        keep(log.store, log.keys, {app: Given(at, *each[:3]) for app, each in some})
    told = [{"app": app, **each._asdict()} for app, each in found.items()]
    return {"estimates": told, "errors": None if log is None else errors_of_the_past(log)}
