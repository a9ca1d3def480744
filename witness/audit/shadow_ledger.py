"""The ledgers kept a second time, from the events alone and by the rules as they are written (semantics O1, O2).

The state keeps its own as it folds; these know nothing of it but what it says, which is compared after every event
for the app, user, company and worker that the event is about, and for waitingApps. So a ledger that goes wrong is
named at the very position where it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from scheduler.model.events import (
    AppAdmitted,
    AppChanged,
    AppRegistered,
    AppRemoved,
    CompanyChanged,
    CompanyRegistered,
    CompanyRemoved,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
)

if TYPE_CHECKING:
    from scheduler.rules.ledger import Balance
    from scheduler.rules.state import ClusterState

Sums = list[int]
"""Requested cores and MiB, then granted cores and MiB."""


@dataclass(slots=True)
class _App:
    name: str
    company: str
    user: str
    accounts: tuple[Sums, Sums, Sums]
    """Those of waitingApps, its company and its user."""
    requested_cores: int
    requested_mb: int
    granted_cores: int = 0
    granted_mb: int = 0
    done_cores: int = 0
    waits: bool = False
    """Whether it is in waitingApps."""
    ended: bool = False


@dataclass(slots=True)
class _Worker:
    name: str
    cores: int = 0
    memory_mb: int = 0
    live: bool = False
    granted_cores: int = 0
    granted_mb: int = 0


@dataclass(slots=True)
class _Company:
    said: CompanyRegistered
    sums: Sums = field(default_factory=lambda: [0, 0, 0, 0])
    users: dict[str, Sums] = field(default_factory=dict)


class ShadowLedger:
    """What the events posted so far make of every ledger."""

    def __init__(self) -> None:
        self._cluster: Sums = [0, 0, 0, 0]
        self._apps: dict[str, _App] = {}
        self._workers: dict[str, _Worker] = {}
        self._companies: dict[str, _Company] = {}
        self._slices: dict[str, tuple[_App, _Worker, int, int]] = {}
        """Executor or driver -> its app and worker, cores and MiB."""
        self._live_cores = self._live_mb = 0

    def passes_cap(self, event: AppAdmitted) -> bool:
        """Whether its company's requested ledger stays within the quota with that app (semantics C2, C4).

        One that borrows may pass it (C6), and a default quota does not stop a company that occupies nothing.
        """
        company, app = self._companies[event.company], self._apps[event.app]
        said, (has_cores, has_mb, _, _) = company.said, company.sums
        if said.borrow or (said.cores is None and said.part is None and not has_cores and not has_mb):
            return True
        cores, memory_mb = app.requested_cores + has_cores, app.requested_mb + has_mb
        if said.cores is not None and said.memory_mb is not None:
            return cores <= said.cores and memory_mb <= said.memory_mb
        part, of = map(int, said.part.split("/")) if said.part else (1, len(self._companies))
        return cores * of <= self._live_cores * part and memory_mb * of <= self._live_mb * part

    def post(self, event: Event, state: ClusterState) -> str | None:
        """Enter the event that `state` has folded just now; a sentence if a ledger of the state says otherwise."""
        enter = self._entries.get(type(event))
        return None if enter is None else enter(self, event, state)

    def _app_registered(self, event: AppRegistered, _: ClusterState) -> None:
        company = self._companies[event.company]
        user = company.users.setdefault(event.user, [0, 0, 0, 0])
        accounts = self._cluster, company.sums, user
        requested = event.requested.cores, event.requested.memory_mb
        self._apps[event.app] = _App(event.app, event.company, event.user, accounts, *requested)

    def _app_admitted(self, event: AppAdmitted, state: ClusterState) -> str | None:
        app = self._apps[event.app]
        app.waits = True
        _request(app, app.requested_cores, app.requested_mb)
        return self._of_app(app, state)

    def _app_changed(self, event: AppChanged, state: ClusterState) -> str | None:
        app = self._apps[event.app]
        if app.waits:
            _request(app, event.requested.cores - app.requested_cores, event.requested.memory_mb - app.requested_mb)
        app.requested_cores, app.requested_mb = event.requested.cores, event.requested.memory_mb
        app.done_cores = event.done_cores
        return self._of_app(app, state)

    def _app_removed(self, event: AppRemoved, state: ClusterState) -> str | None:
        app = self._apps[event.app]
        if app.waits:
            _request(app, -app.requested_cores, -app.requested_mb)
        app.waits, app.ended = False, True
        return self._of_app(app, state)

    def _executor_allocated(self, event: ExecutorAllocated, state: ClusterState) -> str | None:
        app, worker, cores, memory_mb = self._apps[event.app], self._workers[event.worker], event.cores, event.memory_mb
        self._slices[event.executor] = app, worker, cores, memory_mb
        return self._grant(app, worker, cores, memory_mb, state)

    def _driver_allocated(self, event: DriverAllocated, state: ClusterState) -> str | None:
        app, worker, cores, memory_mb = self._apps[event.app], self._workers[event.worker], event.cores, event.memory_mb
        self._slices[event.driver] = app, worker, cores, memory_mb
        return self._grant(app, worker, cores, memory_mb, state)

    def _executor_removed(self, event: ExecutorRemoved, state: ClusterState) -> str | None:
        app, worker, cores, memory_mb = self._slices.pop(event.executor)
        if event.done:
            app.done_cores += cores
        return self._grant(app, worker, -cores, -memory_mb, state)

    def _driver_removed(self, event: DriverRemoved, state: ClusterState) -> str | None:
        app, worker, cores, memory_mb = self._slices.pop(event.driver)
        return self._grant(app, worker, -cores, -memory_mb, state)

    def _grant(self, app: _App, worker: _Worker, cores: int, memory_mb: int, state: ClusterState) -> str | None:
        """What is granted beyond the request raises it: with unlimited cores (A6), or one executor a worker (S5)."""
        worker.granted_cores += cores
        worker.granted_mb += memory_mb
        app.granted_cores += cores
        app.granted_mb += memory_mb
        for sums in app.accounts:
            sums[2] += cores
            sums[3] += memory_mb
        held_cores = app.granted_cores + app.done_cores
        if (held_cores > app.requested_cores or app.granted_mb > app.requested_mb) and not app.ended:
            more_cores, more_mb = max(0, held_cores - app.requested_cores), max(0, app.granted_mb - app.requested_mb)
            app.requested_cores += more_cores
            app.requested_mb += more_mb
            _request(app, more_cores, more_mb)
        return self._of_app(app, state) or self._of_worker(worker, state)

    def _of_app(self, app: _App, state: ClusterState) -> str | None:
        known, tenant = state.apps.get(app.name), state.companies.get(app.company)
        if app.ended and not app.granted_cores and not app.granted_mb:
            del self._apps[app.name]
        elif known is None or known.granted.cores != app.granted_cores or known.granted.memory_mb != app.granted_mb:
            has = "nothing" if known is None else f"{known.granted.cores} cores and {known.granted.memory_mb} MiB"
            return f"app {app.name} counts {has} granted, its executors make {app.granted_cores} and {app.granted_mb}"
        elif not app.ended and (
            known.requested.cores != app.requested_cores or known.requested.memory_mb != app.requested_mb
        ):
            has = f"{known.requested.cores} cores and {known.requested.memory_mb} MiB"
            return f"app {app.name} requests {has}, its events make {app.requested_cores, app.requested_mb}"
        cluster, company, user = app.accounts
        if _differs(state.balance, cluster):
            return _words("waitingApps", state.balance, cluster)
        if tenant is None or _differs(tenant.balance, company):
            return _words(f"company {app.company}", None if tenant is None else tenant.balance, company)
        submitter = tenant.users.get(app.user)
        if submitter is None or _differs(submitter.balance, user):
            balance = None if submitter is None else submitter.balance
            return _words(f"user {app.user} of {app.company}", balance, user)
        return None

    def _of_worker(self, worker: _Worker, state: ClusterState) -> str | None:
        known = state.workers.get(worker.name)
        if known is None:
            return f"worker {worker.name} is there for one and gone by the other"
        cores, memory_mb = worker.cores - worker.granted_cores, worker.memory_mb - worker.granted_mb
        if known.free.cores == cores and known.free.memory_mb == memory_mb:
            return None
        return f"worker {worker.name} has {known.free} free where its executors and drivers leave {cores, memory_mb}"

    def _worker_registered(self, event: WorkerRegistered, state: ClusterState) -> str | None:
        self._workers[event.worker] = worker = _Worker(event.worker)
        return self._offers(worker, event.cores, event.memory_mb, state, live=True)

    def _worker_changed(self, event: WorkerChanged, state: ClusterState) -> str | None:
        live = event.status == "alive"
        return self._offers(self._workers[event.worker], event.cores, event.memory_mb, state, live=live)

    def _worker_removed(self, event: WorkerRemoved, state: ClusterState) -> str | None:
        worker = self._workers.pop(event.worker)
        self._live_cores -= worker.cores * worker.live
        self._live_mb -= worker.memory_mb * worker.live
        gone = event.worker not in state.workers
        return None if gone else f"worker {worker.name} is there for one and gone by the other"

    def _offers(self, worker: _Worker, cores: int, memory_mb: int, state: ClusterState, *, live: bool) -> str | None:
        self._live_cores += cores * live - worker.cores * worker.live
        self._live_mb += memory_mb * live - worker.memory_mb * worker.live
        worker.cores, worker.memory_mb, worker.live = cores, memory_mb, live
        return self._of_worker(worker, state)

    def _company_registered(self, event: CompanyRegistered, _: ClusterState) -> None:
        self._companies[event.company] = _Company(event)

    def _company_changed(self, event: CompanyChanged, _: ClusterState) -> None:
        self._companies[event.company].said = event

    def _company_removed(self, event: CompanyRemoved, _: ClusterState) -> None:
        del self._companies[event.company]

    _entries: ClassVar[dict[type[Event], Callable[[ShadowLedger, Any, ClusterState], str | None]]] = {
        AppRegistered: _app_registered,
        AppAdmitted: _app_admitted,
        AppChanged: _app_changed,
        AppRemoved: _app_removed,
        DriverAllocated: _driver_allocated,
        DriverRemoved: _driver_removed,
        ExecutorAllocated: _executor_allocated,
        ExecutorRemoved: _executor_removed,
        WorkerRegistered: _worker_registered,
        WorkerChanged: _worker_changed,
        WorkerRemoved: _worker_removed,
        CompanyRegistered: _company_registered,
        CompanyChanged: _company_changed,
        CompanyRemoved: _company_removed,
    }
    """What enters an event and compares; no other event changes a ledger."""


def _request(app: _App, cores: int, memory_mb: int) -> None:
    for sums in app.accounts:
        sums[0] += cores
        sums[1] += memory_mb


def _sums(balance: Balance) -> Sums:
    return [balance.requested.cores, balance.requested.memory_mb, balance.granted.cores, balance.granted.memory_mb]


def _differs(balance: Balance, sums: Sums) -> bool:
    return (
        balance.requested.cores != sums[0]
        or balance.requested.memory_mb != sums[1]
        or balance.granted.cores != sums[2]
        or balance.granted.memory_mb != sums[3]
    )


def _words(whose: str, balance: Balance | None, sums: Sums) -> str:
    return f"{whose} counts {balance} where its apps make {sums}"
