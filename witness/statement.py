"""What a company's apps held over a month, by user and app, and which part of the log says so.

Requested is what the ledgers held from admission to removal, granted what executors and drivers were granted until
they were gone (semantics O1). All of it is whole core-ms and MiB-ms; hours are only written that way. The company can
check the statement against the log: it follows from the entries up to the position named, whose digest is named too.
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
    """Takes note of every app's account and of the companies that there ever were (`span.Meter`)."""

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
        """Nothing: an account is settled when what it holds changes."""

    def observe(self, state: ClusterState, event: Event) -> None:
        """The event was folded just now."""
        if isinstance(event, CompanyRegistered):
            self.companies[event.company] = None
        self.accounts.observe(state, event)


def statement(usages: Usages, span: Span, *, company: str, month: str) -> dict[str, Any]:
    """The company's statement as JSON values: every app that held anything, sums by user and in all."""
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
    sums = dict.fromkeys(AMOUNTS, 0)
    for account in accounts:
        held = account.requested_ms, account.granted_ms
        for name, amount in zip(AMOUNTS, (n for sum_ in held for n in (sum_.cores, sum_.memory_mb)), strict=True):
            sums[name] += amount
    return {**hours(sums), **sums}


def hours(sums: Mapping[str, int]) -> dict[str, float]:
    """The sums in core-hours and GiB-hours, to a millionth."""
    return {
        "requestedCoreHours": round(sums["requestedCoreMs"] / HOUR_MS, 6),
        "requestedGiBHours": round(sums["requestedMemoryMs"] / HOUR_MS / 1024, 6),
        "grantedCoreHours": round(sums["grantedCoreMs"] / HOUR_MS, 6),
        "grantedGiBHours": round(sums["grantedMemoryMs"] / HOUR_MS / 1024, 6),
    }
