"""A company's use over a month, by user and app, with the span of the log that it follows from.

"Requested" counts from an app's admission to its removal, "granted" until its executors and drivers are gone (semantics
O1). Amounts are whole core-ms and MiB-ms; hours are rounded. The statement names the position and digest of its last
entry, so the company can verify it against the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from recovery.replay.window import Span
from scheduler.model.events import CompanyRegistered, Event
from scheduler.rules.state import ClusterState
from witness.usage import Account, Accounts

HOUR_MS = 3_600_000
AMOUNTS = ("requestedCoreMs", "requestedMemoryMs", "grantedCoreMs", "grantedMemoryMs")


class Usages:
    """A `Meter` of every app's account, which also collects all companies."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self.companies: dict[str, None] = {}

    def begin(self, at: int) -> None:
        """The span begins at `at` (ms)."""
        self.accounts.first_at = at

    def end(self, at: int) -> None:
        """The span ends at `at` (ms)."""
        self.accounts.last_at = at

    def advance(self, state: ClusterState, to: int) -> None:
        """Do nothing: accounts are settled when they change."""

    def observe(self, state: ClusterState, event: Event) -> None:
        """The event was folded just now."""
        if isinstance(event, CompanyRegistered):
            self.companies[event.company] = None
        self.accounts.observe(state, event)


def statement(usages: Usages, span: Span, *, company: str, month: str) -> dict[str, Any]:
    """The statement as JSON values: every app that held anything, sums by user and in total."""
    apps = [
        account
        for account in usages.accounts.settle(span.last_at)
        if account.company == company and (account.requested_ms.cores or account.granted_ms.cores)
    ]
    users: dict[str, list[Account]] = {}
    for account in apps:
        users.setdefault(account.user, []).append(account)
    return {
        "company": company,
        "month": month,
        "log": span.as_json(),
        "total": _amounts(apps),
        "users": [
            {
                "user": user,
                **_amounts(accounts),
                "apps": [{"app": account.app, **_amounts([account])} for account in accounts],
            }
            for user, accounts in sorted(users.items())
        ],
    }


def _amounts(accounts: Iterable[Account]) -> dict[str, Any]:
    """What these apps held, and what they lost to claims of other companies (semantics E8)."""
    held_by, sums = list(accounts), dict.fromkeys(AMOUNTS, 0)
    for account in held_by:
        held = account.requested_ms, account.granted_ms
        for name, amount in zip(AMOUNTS, (n for sum_ in held for n in (sum_.cores, sum_.memory_mb)), strict=True):
            sums[name] += amount
    lost = {
        "executorsLost": sum(each.lost for each in held_by),
        "lostCoreMs": sum(each.lost_core_ms for each in held_by),
    }
    return {**hours(sums), **sums, **lost}


def hours(sums: Mapping[str, int]) -> dict[str, float]:
    """The sums in core-hours and GiB-hours, to a millionth."""
    return {
        "requestedCoreHours": round(sums["requestedCoreMs"] / HOUR_MS, 6),
        "requestedGiBHours": round(sums["requestedMemoryMs"] / HOUR_MS / 1024, 6),
        "grantedCoreHours": round(sums["grantedCoreMs"] / HOUR_MS, 6),
        "grantedGiBHours": round(sums["grantedMemoryMs"] / HOUR_MS / 1024, 6),
    }
