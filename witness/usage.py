"""The requests, grants and waits of each app over a span of the log.

Accounts are kept for all apps, also for those that the state has forgotten (`retained_apps`). Amounts are whole core-ms
and MiB-ms, so sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.model.events import (
    AppRegistered,
    AppRemoved,
    CompanyRegistered,
    DriverRemoved,
    Event,
    ExecutorRemoved,
    ExecutorRevoked,
    RevocationWithdrawn,
)
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities import NO_SPENT, App, Spent
from scheduler.rules.state import ClusterState

FAR_MS = 1 << 62
"""Later than any time."""


@dataclass(slots=True)
class AppUsage:
    """One app within the span. Times are in ms, None if not reached by the end of the span."""

    app: str
    company: str
    user: str
    submitted_at: int
    ready_at: int
    """The time when it became ready; its waiting counts from there (semantics J2)."""
    demand: Resources = NOTHING
    """Its current request, none unless it is ready and has not ended; for unlimited cores, at least what it holds."""
    admitted_at: int | None = None
    started_at: int | None = None
    """The time of its first grant."""
    ended_at: int | None = None
    ended: str | None = None
    ready: bool = True
    requested: Resources = NOTHING
    """Its current request in the ledgers."""
    granted: Resources = NOTHING
    requested_ms: Resources = NOTHING
    granted_ms: Resources = NOTHING
    accrued_at: int = 0
    asked_cores: int = 0
    """Its largest request."""
    lost: int = 0
    """How many of its executors were told to leave for claims (semantics H7), without those that went on."""
    lost_core_ms: int = 0
    """What those of them that were killed had run."""
    spent: Spent = NO_SPENT
    """What executors and drivers that ended within the span used (semantics O5)."""


class UsageMeter:
    """A `Meter` of all apps. Sums count from `first_at` (ms), which may be in the future, to `last_at`."""

    def __init__(self) -> None:
        self.first_at = FAR_MS
        self.last_at: int | None = None
        self.all: list[AppUsage] = []
        """In the order of submission; an id can be used again once its app is forgotten."""
        self.companies: set[str] = set()
        """All companies that were ever registered."""
        self._latest: dict[str, AppUsage] = {}
        self._leaving: dict[str, tuple[int, int]] = {}
        """Executor that leaves for a claim -> its cores, and since when (ms) it was granted."""

    def clip(self, at: int) -> int:
        """The time (ms), limited to the span."""
        at = max(at, self.first_at)
        return at if self.last_at is None else min(at, self.last_at)

    def advance(self, state: ClusterState, to: int) -> None:
        """Do nothing: an account accrues when it changes."""

    def observe(self, state: ClusterState, event: Event) -> AppUsage | None:
        """The account of the app of the event, folded just now; None if it has none."""
        if isinstance(event, CompanyRegistered):
            self.companies.add(event.company)
        name: str | None = getattr(event, "app", None)
        if name is None:
            return None
        if isinstance(event, AppRegistered):
            account = AppUsage(name, event.company, event.user, state.at, state.at, accrued_at=state.at)
            self._latest[name] = account
            self.all.append(account)
        else:
            account = self._latest[name]
            self._accrue(account, state.at)
            if isinstance(event, DriverRemoved | ExecutorRemoved) and self.clip(state.at) == state.at:
                account.spent = account.spent.plus(state.last_end)
            if isinstance(event, AppRemoved):
                account.ended_at, account.ended = state.at, event.reason
            elif isinstance(event, ExecutorRevoked | RevocationWithdrawn | ExecutorRemoved):
                self._lose(account, state, event)
        _update(account, state.apps.get(name), state.at)
        return account

    def _lose(
        self, account: AppUsage, state: ClusterState, event: ExecutorRevoked | RevocationWithdrawn | ExecutorRemoved
    ) -> None:
        """Count executors that leave for claims within the span (semantics H7)."""
        if isinstance(event, ExecutorRevoked):
            if event.reason == "reclaimed" and not event.window and self.clip(state.at) == state.at:
                held = state.executors[event.executor]
                self._leaving[event.executor] = held.resources.cores, held.granted_at
                account.lost += 1
            return
        cores, granted_at = self._leaving.pop(event.executor, (0, state.at))
        if isinstance(event, RevocationWithdrawn):
            account.lost -= cores > 0
        elif event.reason == "reclaimed":
            account.lost_core_ms += cores * (state.at - granted_at)

    def accrued(self, at: int) -> Iterator[AppUsage]:
        """Every account, with sums up to `at` (ms)."""
        for account in self.all:
            self._accrue(account, at)
            yield account

    def latest(self, app: str, at: int) -> AppUsage:
        """The app's account, with sums up to `at` (ms). Raises: KeyError if there is none."""
        self._accrue(self._latest[app], at)
        return self._latest[app]

    def _accrue(self, account: AppUsage, at: int) -> None:
        passed = self.clip(at) - self.clip(account.accrued_at)
        if passed > 0:
            account.requested_ms += account.requested * passed
            account.granted_ms += account.granted * passed
        account.accrued_at = at


def _update(account: AppUsage, app: App | None, at: int) -> None:
    """Copy the app's current amounts. None = the state has forgotten the app, which holds nothing."""
    if app is None or app.ended is not None:
        account.demand, account.requested = NOTHING, NOTHING
        account.granted = NOTHING if app is None else app.granted
        return
    account.demand = app.requested if app.ready else NOTHING
    account.ready = app.ready
    account.ready_at = app.readied_at or app.submitted_at
    account.granted = app.granted
    account.asked_cores = max(account.asked_cores, app.requested.cores)
    account.requested = account.demand if app.admitted else NOTHING
    account.admitted_at = app.admitted_at or None
    if account.started_at is None and app.granted.cores:
        account.started_at = at
