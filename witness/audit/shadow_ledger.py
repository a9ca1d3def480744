"""A second set of ledgers, kept from the events alone (semantics O1, O2).

After every event, the ledgers of the app, user, company and worker that it concerns, and of waitingApps, are compared
with those of the state. A wrong ledger is thus reported at the position where it goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scheduler.model import events
from scheduler.model.events import AppRegistered, CompanyRegistered, Event
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.ledger import Accounts, Balance, add_grant, add_request, equal, granted

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState


@dataclass(slots=True)
class _ShadowApp:
    name: str
    company: str
    user: str
    accounts: Accounts
    stated: Accounts
    """The balances as the state has them."""
    requested: Resources
    granted: Resources = NOTHING
    waits: bool = False
    """Whether it is in waitingApps."""
    ended: bool = False


@dataclass(slots=True)
class _ShadowWorker:
    name: str
    offer: Resources = NOTHING
    free: Resources = NOTHING
    live: bool = False


@dataclass(slots=True)
class _ShadowCompany:
    spec: CompanyRegistered
    sums: Balance = field(default_factory=Balance)
    users: dict[str, Balance] = field(default_factory=dict)


class ShadowLedger:
    """The ledgers that follow from the events posted so far."""

    def __init__(self) -> None:
        self._cluster = Balance()
        self._apps: dict[str, _ShadowApp] = {}
        self._workers: dict[str, _ShadowWorker] = {}
        self._companies: dict[str, _ShadowCompany] = {}
        self._allocations: dict[str, tuple[_ShadowApp, _ShadowWorker, Resources]] = {}
        """Executor or driver -> its app, worker and grant."""

    @classmethod
    def of(cls, state: ClusterState) -> ShadowLedger:
        """The ledgers as they follow from the apps, executors and workers of a state."""
        made = cls()
        for name, company in state.companies.items():
            made._companies[name] = _ShadowCompany(company.spec)
        for worker in state.workers.values():
            live = worker.status == "alive"
            made._workers[worker.id] = _ShadowWorker(worker.id, worker.offer, worker.offer, live=live)
        for app in state.apps.values():
            if app.ended is None or app.granted != NOTHING:
                made._enter(app)
        for held in (*state.executors.values(), *state.drivers.values()):
            owner, worker_of = made._apps[held.app], made._workers[held.worker]
            made._allocations[held.id] = owner, worker_of, held.resources
            made._move(owner, worker_of, held.resources)
        return made

    def _enter(self, app: App) -> None:
        spec, ended = app.spec, app.ended is not None
        company = self._companies.get(spec.company)
        sums = Balance() if company is None else company.sums
        user = Balance() if company is None else company.users.setdefault(spec.user, Balance())
        entered = _ShadowApp(app.id, spec.company, spec.user, (self._cluster, sums, user), app.accounts, app.requested)
        entered.waits, entered.ended = bool(app.admitted) and not ended, ended
        if entered.waits:
            add_request(entered.accounts, entered.requested)
        self._apps[app.id] = entered

    def _move(self, app: _ShadowApp, worker: _ShadowWorker, grant: Resources) -> None:
        """The app is granted that on the worker, or returns it if it is negative."""
        worker.free, app.granted = granted(worker.free, app.granted, grant)
        add_grant(app.accounts, grant)

    def post(self, event: Event, state: ClusterState) -> str | None:
        """Enter the event that `state` has just folded; a sentence if a ledger of the state differs."""
        enter = _ENTRIES.get(type(event))
        return None if enter is None else enter(self, event, state)

    def _app_registered(self, event: AppRegistered, state: ClusterState) -> None:
        company, tenant = self._companies[event.company], state.companies[event.company]
        user = company.users.get(event.user)
        if user is None:
            user = company.users[event.user] = Balance()
        accounts = self._cluster, company.sums, user
        stated = state.balance, tenant.balance, tenant.users[event.user].balance
        self._apps[event.app] = _ShadowApp(event.app, event.company, event.user, accounts, stated, event.requested)

    def _app_admitted(self, event: events.AppAdmitted, state: ClusterState) -> str | None:
        app = self._apps[event.app]
        app.waits = True
        add_request(app.accounts, app.requested)
        return self._of_app(app, state)

    def _app_requeued(self, event: events.AppRequeued, state: ClusterState) -> str | None:
        app = self._apps[event.app]
        if app.waits:
            add_request(app.accounts, -app.requested)
        app.waits = False
        return self._of_app(app, state)

    def _app_changed(self, event: events.AppChanged, state: ClusterState) -> str | None:
        app, requested = self._apps[event.app], event.requested
        if app.waits:
            add_request(app.accounts, requested - app.requested)
        app.requested = requested
        return self._of_app(app, state)

    def _app_removed(self, event: events.AppRemoved, state: ClusterState) -> str | None:
        app = self._apps[event.app]
        if app.waits:
            add_request(app.accounts, -app.requested)
        app.waits, app.ended = False, True
        return self._of_app(app, state)

    def _allocated(self, event: events.ExecutorAllocated | events.DriverAllocated, state: ClusterState) -> str | None:
        """A grant beyond the request raises it: with unlimited cores (A6), or one executor per worker (S5)."""
        name = event.executor if isinstance(event, events.ExecutorAllocated) else event.driver
        app, worker, grant = self._apps[event.app], self._workers[event.worker], event.resources
        self._allocations[name] = app, worker, grant
        if isinstance(event, events.ExecutorAllocated) and event.requested is not None:
            add_request(app.accounts, event.requested - app.requested)
            app.requested = event.requested
        self._move(app, worker, grant)
        return self._of_app(app, state) or self._of_worker(worker, state)

    def _executor_removed(self, event: events.ExecutorRemoved, state: ClusterState) -> str | None:
        app, worker, grant = self._allocations.pop(event.executor)
        self._move(app, worker, -grant)
        return self._of_app(app, state) or self._of_worker(worker, state)

    def _driver_removed(self, event: events.DriverRemoved, state: ClusterState) -> str | None:
        app, worker, grant = self._allocations.pop(event.driver)
        self._move(app, worker, -grant)
        return self._of_app(app, state) or self._of_worker(worker, state)

    def _of_app(self, app: _ShadowApp, state: ClusterState) -> str | None:
        known = state.apps.get(app.name)
        if app.ended and app.granted == NOTHING:
            del self._apps[app.name]
        elif known is None or known.granted != app.granted:
            has = "nothing" if known is None else known.granted
            return f"app {app.name} counts {has} granted, its executors make {app.granted}"
        elif not app.ended and known.requested != app.requested:
            return f"app {app.name} requests {known.requested}, its events make {app.requested}"
        return None if equal(app.stated, app.accounts) else _words(app)

    def _of_worker(self, worker: _ShadowWorker, state: ClusterState) -> str | None:
        known = state.workers.get(worker.name)
        if known is None:
            return f"worker {worker.name} is not registered, but offers {worker.offer}"
        if known.free == worker.free:
            return None
        return f"worker {worker.name} has {known.free} free where its executors and drivers leave {worker.free}"

    def _worker_registered(self, event: events.WorkerRegistered, state: ClusterState) -> str | None:
        self._workers[event.worker] = worker = _ShadowWorker(event.worker)
        return self._offers(worker, event.offer, state, live=True)

    def _worker_changed(self, event: events.WorkerChanged, state: ClusterState) -> str | None:
        return self._offers(self._workers[event.worker], event.offer, state, live=event.status == "alive")

    def _worker_removed(self, event: events.WorkerRemoved, state: ClusterState) -> str | None:
        worker = self._workers.pop(event.worker)
        return f"worker {worker.name} was removed, but is registered" if event.worker in state.workers else None

    def _offers(self, worker: _ShadowWorker, offer: Resources, state: ClusterState, *, live: bool) -> str | None:
        worker.free += offer - worker.offer
        worker.offer, worker.live = offer, live
        return self._of_worker(worker, state)

    def _company_registered(self, event: CompanyRegistered, _: ClusterState) -> None:
        self._companies[event.company] = _ShadowCompany(event)

    def _company_changed(self, event: events.CompanyChanged, _: ClusterState) -> None:
        self._companies[event.company].spec = event

    def _company_removed(self, event: events.CompanyRemoved, _: ClusterState) -> None:
        del self._companies[event.company]

    @classmethod
    def entries(cls) -> dict[type[Event], Callable[[ShadowLedger, Any, ClusterState], str | None]]:
        """Type of event -> what enters it and compares."""
        return {
            AppRegistered: cls._app_registered,
            events.AppAdmitted: cls._app_admitted,
            events.AppChanged: cls._app_changed,
            events.AppRequeued: cls._app_requeued,
            events.AppRemoved: cls._app_removed,
            events.DriverAllocated: cls._allocated,
            events.DriverRemoved: cls._driver_removed,
            events.ExecutorAllocated: cls._allocated,
            events.ExecutorRemoved: cls._executor_removed,
            events.WorkerRegistered: cls._worker_registered,
            events.WorkerChanged: cls._worker_changed,
            events.WorkerRemoved: cls._worker_removed,
            CompanyRegistered: cls._company_registered,
            events.CompanyChanged: cls._company_changed,
            events.CompanyRemoved: cls._company_removed,
        }


def _words(app: _ShadowApp) -> str | None:
    """The first of the app's balances that differs from the sums."""
    names = "waitingApps", f"company {app.company}", f"user {app.user} of {app.company}"
    for name, balance, sums in zip(names, app.stated, app.accounts, strict=True):
        if balance != sums:
            return f"{name} counts {balance} where its apps make {sums}"
    return None


_ENTRIES = ShadowLedger.entries()
"""No other event changes a ledger."""
