"""The ledgers kept a second time, from the events alone and by the rules as they are written (semantics O1, O2).

The state keeps its own as it folds; these know nothing of it but what it says, which is compared after every event
for the app, user, company and worker that the event is about, and for waitingApps. So a ledger that goes wrong is
named at the very position where it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from scheduler.events import (
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
    from scheduler.ledger import Balance
    from scheduler.state import ClusterState

Sums = list[int]
"""Requested cores and MiB, then granted cores and MiB."""


@dataclass(slots=True)
class _App:
    company: str
    user: str
    accounts: tuple[Sums, Sums, Sums]
    """Those of waitingApps, its company and its user."""
    requested: tuple[int, int]
    granted_cores: int = 0
    granted_mb: int = 0
    done_cores: int = 0
    waits: bool = False
    """Whether it is in waitingApps."""
    ended: bool = False


@dataclass(slots=True)
class _Worker:
    cores: int
    memory_mb: int
    live: bool
    granted_cores: int = 0
    granted_mb: int = 0


@dataclass(slots=True)
class _Company:
    said: CompanyRegistered
    sums: Sums = field(default_factory=lambda: [0, 0, 0, 0])
    users: dict[str, Sums] = field(default_factory=dict)


class Books:
    """What the events posted so far make of every ledger."""

    def __init__(self) -> None:
        self._cluster: Sums = [0, 0, 0, 0]
        self._apps: dict[str, _App] = {}
        self._workers: dict[str, _Worker] = {}
        self._companies: dict[str, _Company] = {}
        self._slices: dict[str, tuple[str, str, int, int]] = {}
        """Executor or driver -> its app and worker, cores and MiB."""
        self._live_cores = self._live_mb = 0

    def passes_cap(self, event: AppAdmitted) -> bool:
        """Whether its company's requested ledger stays within the quota with that app (semantics C2, C4).

        One that borrows may pass it (C6), and a default quota does not stop a company that occupies nothing.
        """
        company, (cores, memory_mb) = self._companies[event.company], self._apps[event.app].requested
        said, (has_cores, has_mb, _, _) = company.said, company.sums
        if said.borrow or (said.cores is None and said.part is None and not has_cores and not has_mb):
            return True
        cores, memory_mb = cores + has_cores, memory_mb + has_mb
        if said.cores is not None and said.memory_mb is not None:
            return cores <= said.cores and memory_mb <= said.memory_mb
        part, of = map(int, said.part.split("/")) if said.part else (1, len(self._companies))
        return cores * of <= self._live_cores * part and memory_mb * of <= self._live_mb * part

    def post(self, event: Event, state: ClusterState) -> str | None:
        """Enter the event that `state` has folded just now; a sentence if a ledger of the state says otherwise."""
        found = self._entries.get(type(event))
        if found is None:
            return None
        entry, of_app, of_worker = found
        entry(self, event)
        differs: str | None = None
        if of_app:
            differs = self._of_app(event.app, state)  # type: ignore[union-attr]  # the table below says so
        if of_worker and differs is None:
            differs = self._of_worker(event.worker, state)  # type: ignore[union-attr]  # likewise
        return differs

    def _of_app(self, name: str, state: ClusterState) -> str | None:
        app, known = self._apps[name], state.apps.get(name)
        if app.ended and not app.granted_cores and not app.granted_mb:
            del self._apps[name]
        elif known is None or (known.granted_cores, known.granted_memory_mb) != (app.granted_cores, app.granted_mb):
            has = "nothing" if known is None else f"{known.granted_cores} cores and {known.granted_memory_mb} MiB"
            return f"app {name} counts {has} granted, its executors make {app.granted_cores} and {app.granted_mb}"
        elif not app.ended and (known.requested_cores, known.requested_memory_mb) != app.requested:
            has = f"{known.requested_cores} cores and {known.requested_memory_mb} MiB"
            return f"app {name} requests {has}, its events make {app.requested}"
        cluster, company, user = app.accounts
        if not _agree(cluster, state.balance):
            return _words("waitingApps", state.balance, cluster)
        tenant = state.companies.get(app.company)
        balance = None if tenant is None else tenant.balance
        if not _agree(company, balance):
            return _words(f"company {app.company}", balance, company)
        submitter = None if tenant is None else tenant.users.get(app.user)
        balance = None if submitter is None else submitter.balance
        return None if _agree(user, balance) else _words(f"user {app.user} of {app.company}", balance, user)

    def _of_worker(self, name: str, state: ClusterState) -> str | None:
        worker, known = self._workers.get(name), state.workers.get(name)
        if worker is None or known is None:
            return None if worker is None and known is None else f"worker {name} is there for one and gone by the other"
        free = worker.cores - worker.granted_cores, worker.memory_mb - worker.granted_mb
        if known.free == free:
            return None
        return f"worker {name} has {known.free} free where its executors and drivers leave {free}"

    def _app_registered(self, event: AppRegistered) -> None:
        company = self._companies[event.company]
        user = company.users.setdefault(event.user, [0, 0, 0, 0])
        accounts = self._cluster, company.sums, user
        requested = event.requested_cores, event.requested_memory_mb
        self._apps[event.app] = _App(event.company, event.user, accounts, requested)

    def _app_admitted(self, event: AppAdmitted) -> None:
        app = self._apps[event.app]
        app.waits = True
        _request(app, *app.requested)

    def _app_changed(self, event: AppChanged) -> None:
        app = self._apps[event.app]
        had_cores, had_mb = app.requested
        app.requested, app.done_cores = (event.requested_cores, event.requested_memory_mb), event.done_cores
        if app.waits:
            _request(app, event.requested_cores - had_cores, event.requested_memory_mb - had_mb)

    def _app_removed(self, event: AppRemoved) -> None:
        app = self._apps[event.app]
        if app.waits:
            _request(app, -app.requested[0], -app.requested[1])
        app.waits, app.ended = False, True

    def _allocated(self, event: ExecutorAllocated | DriverAllocated) -> None:
        name = event.executor if type(event) is ExecutorAllocated else event.driver  # type: ignore[union-attr]
        self._slices[name] = event.app, event.worker, event.cores, event.memory_mb
        self._grant(event.app, event.worker, event.cores, event.memory_mb)

    def _executor_removed(self, event: ExecutorRemoved) -> None:
        app, worker, cores, memory_mb = self._slices.pop(event.executor)
        if event.done:
            self._apps[app].done_cores += cores
        self._grant(app, worker, -cores, -memory_mb)

    def _driver_removed(self, event: DriverRemoved) -> None:
        app, worker, cores, memory_mb = self._slices.pop(event.driver)
        self._grant(app, worker, -cores, -memory_mb)

    def _grant(self, name: str, worker_name: str, cores: int, memory_mb: int) -> None:
        """What is granted beyond the request raises it: with unlimited cores (A6), or one executor a worker (S5)."""
        app, worker = self._apps[name], self._workers[worker_name]
        worker.granted_cores += cores
        worker.granted_mb += memory_mb
        app.granted_cores += cores
        app.granted_mb += memory_mb
        for sums in app.accounts:
            sums[2] += cores
            sums[3] += memory_mb
        asked_cores, asked_mb = app.requested
        held_cores = app.granted_cores + app.done_cores
        if not app.ended and (held_cores > asked_cores or app.granted_mb > asked_mb):
            app.requested = max(asked_cores, held_cores), max(asked_mb, app.granted_mb)
            _request(app, app.requested[0] - asked_cores, app.requested[1] - asked_mb)

    def _worker_registered(self, event: WorkerRegistered) -> None:
        self._workers[event.worker] = _Worker(0, 0, live=False)
        self._offers(event.worker, event.cores, event.memory_mb, live=True)

    def _worker_changed(self, event: WorkerChanged) -> None:
        self._offers(event.worker, event.cores, event.memory_mb, live=event.status == "alive")

    def _worker_removed(self, event: WorkerRemoved) -> None:
        self._offers(event.worker, 0, 0, live=False)
        del self._workers[event.worker]

    def _offers(self, name: str, cores: int, memory_mb: int, *, live: bool) -> None:
        worker = self._workers[name]
        self._live_cores += cores * live - worker.cores * worker.live
        self._live_mb += memory_mb * live - worker.memory_mb * worker.live
        worker.cores, worker.memory_mb, worker.live = cores, memory_mb, live

    def _company_registered(self, event: CompanyRegistered) -> None:
        self._companies[event.company] = _Company(event)

    def _company_changed(self, event: CompanyChanged) -> None:
        self._companies[event.company].said = event

    def _company_removed(self, event: CompanyRemoved) -> None:
        del self._companies[event.company]

    _entries: ClassVar[dict[type[Event], tuple[Callable[[Books, Any], None], bool, bool]]] = {
        AppRegistered: (_app_registered, False, False),
        AppAdmitted: (_app_admitted, True, False),
        AppChanged: (_app_changed, True, False),
        AppRemoved: (_app_removed, True, False),
        DriverAllocated: (_allocated, True, True),
        DriverRemoved: (_driver_removed, True, True),
        ExecutorAllocated: (_allocated, True, True),
        ExecutorRemoved: (_executor_removed, True, True),
        WorkerRegistered: (_worker_registered, False, True),
        WorkerChanged: (_worker_changed, False, True),
        WorkerRemoved: (_worker_removed, False, True),
        CompanyRegistered: (_company_registered, False, False),
        CompanyChanged: (_company_changed, False, False),
        CompanyRemoved: (_company_removed, False, False),
    }
    """What enters an event, and whether the ledgers of its app and of its worker may say something else by it."""


def _request(app: _App, cores: int, memory_mb: int) -> None:
    for sums in app.accounts:
        sums[0] += cores
        sums[1] += memory_mb


def _agree(sums: Sums, balance: Balance | None) -> bool:
    return balance is not None and sums == [
        balance.requested_cores,
        balance.requested_memory_mb,
        balance.granted_cores,
        balance.granted_memory_mb,
    ]


def _words(whose: str, balance: Balance | None, sums: Sums) -> str:
    return f"{whose} counts {balance} where its apps make {sums}"
