"""The requests, grants and waits of each app over a span of the log.

Accounts are kept for all apps, also for those that the state has forgotten (`retained_apps`). Amounts are whole core-ms
and MiB-ms, so sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scheduler.model.events import (
    AppRegistered,
    AppRemoved,
    CompanyMoved,
    CompanyRegistered,
    DepartmentAdded,
    DriverRemoved,
    Event,
    ExecutorRemoved,
    ExecutorRevoked,
    RevocationWithdrawn,
)
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.apps import NO_SPENT, App, Spent
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.standings import usable

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
    """What it can use now (semantics H2), none unless it is ready and has not ended."""
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
    departments: tuple[str, ...] = ()
    """The departments that its company was in, the outermost first; only `PlacedMeter` says them."""

    @property
    def begun_at(self) -> int | None:
        """When its wait was over: its first grant, or its admission if it has never asked for an executor."""
        return self.admitted_at if self.started_at is None and not self.asked_cores else self.started_at

    @property
    def counts(self) -> bool:
        """Whether it requested, held, lost or used anything in the span."""
        return bool(
            self.requested_ms.cores or self.granted_ms.cores or self.lost or self.lost_core_ms or self.spent != NO_SPENT
        )


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
        self._leaving: dict[str, tuple[AppUsage, int, int]] = {}
        """Executor that leaves for a claim -> whose it was, its cores, and since when (ms) it was granted."""

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
                self._leaving[event.executor] = account, held.resources.cores, held.granted_at
                account.lost += 1
            return
        counted, cores, granted_at = self._leaving.pop(event.executor, (account, 0, state.at))
        if isinstance(event, RevocationWithdrawn):
            counted.lost -= cores > 0
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


class PlacedMeter(UsageMeter):
    """A meter of all apps by department (semantics H12): an app has an account for each place that its company had."""

    def __init__(self) -> None:
        super().__init__()
        self.departments: set[str] = set()
        """All that there ever were."""

    def observe(self, state: ClusterState, event: Event) -> AppUsage | None:
        """The account of the app of the event, folded just now; None if it has none."""
        account = super().observe(state, event)
        if isinstance(event, AppRegistered) and account is not None:
            account.departments = place_of(state, event.company)
        elif isinstance(event, DepartmentAdded | CompanyMoved):  # or changed, which says the same
            self.departments.add(event.department)
            self._move(state)
        return account

    def _move(self, state: ClusterState) -> None:
        """Begin another account of each app whose company is in other departments now."""
        places = {company: place_of(state, company) for company in state.companies}
        for app in state.apps:
            account = self._latest[app]
            place = places.get(account.company, account.departments)
            if place == account.departments:
                continue
            self._accrue(account, state.at)
            self._latest[app] = replace(
                account,
                departments=place,
                requested_ms=NOTHING,
                granted_ms=NOTHING,
                lost=0,
                lost_core_ms=0,
                spent=NO_SPENT,
            )
            self.all.append(self._latest[app])
            account.demand = account.requested = account.granted = NOTHING


def place_of(state: ClusterState, company: str) -> tuple[str, ...]:
    """The departments that the company is in, the outermost first."""
    return tuple([each.name for each in reversed(state.companies[company].above)])


def _update(account: AppUsage, app: App | None, at: int) -> None:
    """Copy the app's current amounts. None = the state has forgotten the app, which holds nothing."""
    if app is None or app.ended is not None:
        account.demand, account.requested = NOTHING, NOTHING
        account.granted = NOTHING if app is None else app.granted
        return
    account.demand = usable(app) if app.ready else NOTHING
    account.ready = app.ready
    account.ready_at = app.readied_at or app.submitted_at
    account.granted = app.granted
    account.asked_cores = max(account.asked_cores, app.requested.cores)
    account.requested = app.requested if app.ready and app.admitted else NOTHING
    account.admitted_at = app.admitted_at or None
    if account.started_at is None and app.granted.cores:
        account.started_at = at
