"""Why an app waits, why it was admitted when it was, and why its executors are where they are: all from the log.

The log is folded once. Between two turns an app waits for one cause, the first of `CAUSES` that holds for it; so its
waiting time is split to the millisecond and adds up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery.rebuild import fold
from scheduler.decide import is_full
from scheduler.errors import UnknownApp
from scheduler.events import AppAdmitted, ExecutorAllocated, Record, decode
from scheduler.placement.sizing import executor_memory_mb
from scheduler.state import ClusterState

if TYPE_CHECKING:
    from scheduler.entities import App

CAUSES = {
    "no-live-worker": "A3",
    "cap": "C4",
    "reserved": "C7",
    "queue": "F1",
    "user-turn": "U1",
    "company-turn": "C3",
    "cluster-full": "A3",
    "driver": "D1",
    "limit": "P5",
    "no-worker-large-enough": "P1",
    "workers-full": "P1",
}
"""Every cause that an app may wait for, and the rule behind it under the default policies."""
_POLICY_RULES = {"sql-first": "F2", "least-occupied": "U3", "balanced": "U4", "pay-as-you-go": "C5"}


class Wait(NamedTuple):
    """What an app waits for: the cause, the rule behind it, and a sentence with the facts."""

    cause: str
    rule: str
    text: str


def explain(records: Iterable[Record], name: str) -> dict[str, Any]:
    """The life of the app as JSON values: what it waits for, why it was admitted, its executors, its waiting time.

    Raises: UnknownApp if the log never heard of it; UnreadableRecord or InvariantViolated as `recovery.rebuild`.
    """
    told = _Story(name)
    for record in records:
        told.hear(record)
    return told.ending()


class _Story:
    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ClusterState()
        self.app: App | None = None
        self.turn = 0
        self.since = 0
        self.wait: Wait | None = None
        self.waited: dict[tuple[str, str], int] = {}
        self.admission: dict[str, Any] | None = None
        self.executors: list[dict[str, Any]] = []
        self.why: dict[str, Any] = {}
        self.placing = False

    def hear(self, record: Record) -> None:
        """Fold the next entry of the log; between two turns, see what the app waits for."""
        if record.turn != self.turn:
            self.turn = record.turn
            self._pause(record.at)
        if f'"{self.name}"' in record.data:
            self._look(record)
        else:
            self.placing = False
        fold(self.state, record)
        if self.app is None:
            self.app = self.state.apps.get(self.name)
            self.since = record.at

    def _pause(self, now: int) -> None:
        """The turn before is over: what the app has waited for since then, until `now` (ms), counts for one cause."""
        if self.app is None:
            return
        self.wait = waits_for(self.state, self.app)
        if self.wait is not None:
            key = self.wait.cause, self.wait.rule
            self.waited[key] = self.waited.get(key, 0) + now - self.state.at

    def _look(self, record: Record) -> None:
        event = decode(record)
        again = self.placing
        self.placing = False
        if isinstance(event, AppAdmitted) and event.app == self.name:
            self.admission = {"seq": record.seq, "at": record.at, "share": event.share, **_candidates(self.state)}
        elif isinstance(event, ExecutorAllocated) and event.app == self.name and self.app is not None:
            if not again:
                self.why = _placement(self.state, self.app, event)
            self.placing = True
            place = {"worker": event.worker, "cores": event.cores, "memory": event.memory_mb}
            self.executors.append({"executor": event.executor, "seq": record.seq, "at": record.at, **place, **self.why})

    def ending(self) -> dict[str, Any]:
        """What there is to tell once the log has been heard."""
        if self.app is None:
            raise UnknownApp(self.name)
        app, spec = self.app, self.app.spec
        waited = [{"cause": cause, "rule": rule, "ms": ms} for (cause, rule), ms in sorted(self.waited.items()) if ms]
        wait = waits_for(self.state, app)
        return {
            "app": self.name,
            "company": spec.company,
            "user": spec.user,
            "state": app.state,
            "head": self.state.head,
            "at": self.state.at,
            "waitsFor": None if wait is None else wait._asdict(),
            "submitted": {"seq": app.submitted, "at": app.submitted_at},
            "admission": self.admission,
            "executors": self.executors,
            "waited": {"ms": sum(self.waited.values()), "byCause": waited},
            "endedAt": app.ended_at or None,
            "detail": app.detail,
        }


def waits_for(state: ClusterState, app: App) -> Wait | None:
    """What the app waits for: to be admitted (A3), then for its first executor (P1); None if it waits for nothing."""
    if app.ended is not None or app.executors:
        return None
    if app.admitted:
        return _for_executors(state, app)
    if not state.fleet.live:
        return Wait("no-live-worker", "A3", "no worker is live")
    return _behind_its_company(state, app) or _for_its_turn(state, app)


def _behind_its_company(state: ClusterState, app: App) -> Wait | None:
    """The company's cap (C4), its reservation (C7), the user's queue (F1, F2)."""
    spec, request = app.spec, app.queued.request
    if state.settings.admission == "open":
        return None
    company = state.queue.companies[spec.company]
    cap, tenant, has = company.cap, company.tenant, company.tenant.balance
    if not cap.admits(request) and spec.company not in state.queue.borrowers:
        quota = tenant.quota
        text = (
            f"company {spec.company} has asked for {has.requested_cores} cores and {has.requested_memory_mb} MiB; "
            f"{request.cores} cores and {request.memory_mb} MiB more would pass its quota of "
            f"{_exact(quota.cores, quota.denominator)} cores and {_exact(quota.memory_mb, quota.denominator)} MiB"
        )
        return Wait("cap", "C4", text)
    reserver = cap.reserver() if cap.reservations else None
    if reserver is not None and reserver.app != spec.app:
        return Wait("reserved", "C7", f"app {reserver.app} of the company has waited so long that its room is reserved")
    order = company.users[spec.user].by_policy
    place = next(number for number, (_, one) in enumerate(order) if one.app == spec.app)
    if place:
        rule = _POLICY_RULES.get(state.settings.app_policy, "F1")
        text = f"{place} of {spec.user}'s apps go first, {order[0][1].app} next"
        return Wait("queue", rule, text)
    return None


def _for_its_turn(state: ClusterState, app: App) -> Wait:
    """Another company's turn (C3, C5) or user's (U1, U3), or the cluster that is full (A3)."""
    spec, settings = app.spec, state.settings
    first = state.queue.first()
    if first is not None and first.app != spec.app and first.company != spec.company:
        mine, theirs = state.queue.share(spec.company), state.queue.share(first.company)
        text = f"company {first.company} goes first, with a share of {theirs} against {mine} of {spec.company}"
        return Wait("company-turn", _POLICY_RULES.get(settings.company_policy, "C3"), text)
    if first is not None and first.app != spec.app and first.user != spec.user:
        known = state.companies[spec.company].users
        mine_at, theirs_at = known[spec.user].last_selected, known[first.user].last_selected
        text = f"user {first.user} goes first, {_turn(theirs_at)}; {spec.user} had {_turn(mine_at)}"
        return Wait("user-turn", _POLICY_RULES.get(settings.user_policy, "U1"), text)
    used, fleet = state.balance, state.fleet
    text = (
        f"the apps in waitingApps ask for {used.requested_cores} of {fleet.total_cores} cores "
        f"and {used.requested_memory_mb} of {fleet.total_memory_mb} MiB"
    )
    return Wait("cluster-full", "A3", text if is_full(state) else f"it enters with the next turn: {text}")


def _for_executors(state: ClusterState, app: App) -> Wait | None:
    """No live worker (A4), its driver (D1), its limit (P5), none large enough or none with room (P1)."""
    if not state.fleet.live:
        return Wait("no-live-worker", "A4", "no worker is live")
    if app.spec.driver and app.driver is None:
        return Wait("driver", "D1", "its driver waits for a worker, and its executors follow")
    if app.executor_limit == 0:
        return Wait("limit", "P5", "it asks for 0 executors")
    if not state.wants_executors(app):
        return None
    settings = state.settings
    cores = app.unit.cores if app.unit is not None else settings.min_executor_cores if app.sized_by_scheduler else 1
    memory_mb = app.executor_memory_mb
    if memory_mb is None:
        memory_mb = executor_memory_mb(state.fleet, settings, cores, app.spec.memory_per_task_mb)
        memory_mb = settings.min_executor_memory_mb if memory_mb is None else memory_mb
    live = [worker for worker in state.workers.values() if worker.status == "alive"]
    nearest = max(live, key=lambda worker: (min(worker.cores, cores), min(worker.memory_mb, memory_mb), worker.id))
    if not any(worker.cores >= cores and worker.memory_mb >= memory_mb for worker in live):
        offer = f"{nearest.cores} cores and {nearest.memory_mb} MiB"
        text = f"no worker offers {cores} cores and {memory_mb} MiB; the nearest is {nearest.id} with {offer}"
        return Wait("no-worker-large-enough", "P1", text)
    nearest = max(live, key=lambda worker: (min(worker.free_cores, cores), worker.free_memory_mb, worker.id))
    free = f"{nearest.free_cores} cores and {nearest.free_memory_mb} MiB free"
    text = f"no worker has {cores} cores and {memory_mb} MiB free; the nearest is {nearest.id} with {free}"
    return Wait("workers-full", "P1", text)


def _candidates(state: ClusterState) -> dict[str, Any]:
    """Every company and user with something to admit, as the rules saw them before an admission (C1, C3, U1)."""
    companies, users = [], []
    for name, company in state.queue.companies.items():
        waiting = {user: queue for user, queue in company.users.items() if queue.head is not None}
        if not waiting:
            continue
        companies.append(
            {
                "company": name,
                "share": str(state.queue.share(name)),
                "takesPart": company.cap.lets_through(),
                "lastSelected": company.tenant.last_selected or None,
            }
        )
        for user, queue in waiting.items():
            if queue.head is not None:
                last = queue.contender.last_selected or None
                next_app = {"app": queue.head.app, "passes": company.cap.admits(queue.head.request)}
                users.append({"company": name, "user": user, "lastSelected": last, **next_app})
    return {"companies": companies, "users": users}


def _placement(state: ClusterState, app: App, event: ExecutorAllocated) -> dict[str, Any]:
    """Why an executor has its size (S2, S5) and its worker (P1-P3): the facts that placement saw."""
    settings, cores = state.settings, event.cores
    usable = state.fleet.usable if app.sized_by_scheduler else 0
    workers = [worker for worker in state.workers.values() if worker.status == "alive"]
    room = sum(worker.free_cores >= cores and worker.free_memory_mb >= event.memory_mb for worker in workers)
    if app.sized_by_scheduler:
        size = f"{app.left_cores} cores left to grant on {usable} usable workers make executors of {cores} cores"
    else:
        size = f"the app asked for executors of {cores} cores, with {app.left_cores} cores left to grant"
    chosen = state.workers[event.worker]
    where = (
        f"{settings.placement} over {room} workers with room, by {settings.worker_selection}; "
        f"{chosen.id} had {chosen.free_cores} cores and {chosen.free_memory_mb} MiB free"
    )
    return {"why": {"size": size, "sizeRule": "S2" if app.sized_by_scheduler else "S5", "workers": where}}


def _turn(seq: int) -> str:
    return f"the last turn at position {seq}" if seq else "no turn yet"


def _exact(amount: int, denominator: int) -> str:
    return str(amount // denominator) if amount % denominator == 0 else f"{amount}/{denominator}"
