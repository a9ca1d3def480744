"""On what grounds a decision was made: an admission (A, C, U, F), a driver's worker (D), executors (S, P, L5).

Each is told from the state just before it, with every candidate there was.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from scheduler.model.events import Computed, DriverAllocated, ExecutorAllocated, Fixed, OnePerWorker
from scheduler.model.resources import Resources
from scheduler.rules.admission.app import APP_POLICIES
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.decide import place
from scheduler.rules.fleet import Shape
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.placement.sizing import executor_sizes
from witness.pending_reasons import companies_in_turn, users_in_turn

if TYPE_CHECKING:
    from scheduler.rules.admission.queue import CompanyQueue
    from scheduler.rules.admission.quota import Pending
    from scheduler.rules.entities import App
    from scheduler.rules.state import ClusterState

Reason = dict[str, str]
"""A rule, and a sentence that says what it came to."""


def why_admitted(state: ClusterState, app: Pending) -> dict[str, Any]:
    """Why the app was next: the reasons, and every company and user with something to admit, as the rules saw them."""
    companies, users = [], []
    for name, company in state.queue.companies.items():
        waiting = {user: queue for user, queue in company.users.items() if queue.head is not None}
        if not waiting:
            continue
        use = state.usage(state.companies[name])
        companies.append(
            {
                "company": name,
                "share": str(state.queue.share(name)),
                "usedCoreMs": use.cores,
                "usedMemoryMs": use.memory_mb,
                "takesPart": company.limit.lets_through(),
                "lastSelected": company.tenant.last_selected or None,
            }
        )
        for user, queue in waiting.items():
            if queue.head is not None:
                last = queue.contender.last_selected or None
                next_app = {"app": queue.head.app, "passes": company.limit.admits(queue.head.request)}
                users.append({"company": name, "user": user, "lastSelected": last, **next_app})
    return {"why": _reasons(state, app), "companies": companies, "users": users}


def _reasons(state: ClusterState, app: Pending) -> list[Reason]:
    if state.settings.admission == "open":
        pending = len(state.queue.arrivals)
        return [
            _reason("A6", f"with open admission every app enters, the oldest first: it was the oldest of {pending}")
        ]
    used, fleet, settings = state.balance, state.fleet, state.settings
    room = (
        f"waitingApps asked for {used.requested.cores} of {fleet.total.cores} cores "
        f"and {used.requested.memory_mb} of {fleet.total.memory_mb} MiB, so there was room"
    )
    company = state.queue.companies[app.company]
    reasons = [_reason("A3", room), _why_company(state, company)]
    reserver = company.limit.reserver() if company.limit.reservations else None
    if reserver is not None and reserver.app == app.app:
        return [*reasons, _reason("C7", "the company's room was reserved for it, held back as it was for so long")]
    others = [queue.contender.user for queue, _ in users_in_turn(state, company) if queue.contender.user != app.user]
    users, apps = USER_POLICIES[settings.user_policy], APP_POLICIES[settings.app_policy]
    alone = f"no other user of {app.company} had an app that passes"
    user = f"of {app.company}'s users {app.user} {users.reason}, before {_names(others)}" if others else alone
    queued = len(company.users[app.user].by_policy)
    return [
        *reasons,
        _reason(users.rule, user),
        _reason(apps.rule, f"of {queued} apps in {app.user}'s queue it was {apps.reason}"),
    ]


def _why_company(state: ClusterState, company: CompanyQueue) -> Reason:
    me, policy = company.tenant.company, COMPANY_POLICIES[state.settings.company_policy]
    order = [(each.tenant, value) for each, value in companies_in_turn(state)]
    own = next((value for tenant, value in order if tenant.company == me), None)
    others = [(tenant, value) for tenant, value in order if tenant.company != me]
    if own is None:
        return _reason("C6", f"{me} borrows: no other company took part, so that it may pass its quota")
    if not others:
        return _reason("C1", f"no other company than {me} took part")
    next_ = others[0]
    text = (
        f"{me} had {policy.measure} {own}, the smallest of {len(order)}; "
        f"the next was {next_[0].company} with {next_[1]}"
    )
    if next_[1] == own:
        text += f", selected {_when(next_[0].last_selected)} where {me} was {_when(company.tenant.last_selected)}"
    return _reason(policy.rule, text)


def why_driver(state: ClusterState, event: DriverAllocated) -> Reason:
    """Why a driver got its worker (D2)."""
    room = sum(1 for _ in state.fleet.candidates(event.resources, "worker-id"))
    if state.settings.spread_out_drivers:
        how = f"{event.worker} was next in the order that log position {state.head} draws, of {room} with room"
    else:
        how = f"{event.worker} was the first by id of {room} with room"
    return _reason("D2", how)


@dataclass(frozen=True)
class Batch:
    """Executors that placement gave the app together, and on what grounds."""

    executors: Container[str]
    size: Reason
    memory: Reason
    workers: Reason
    candidates: Mapping[str, tuple[int, Shape]]
    """The workers with room, each with its place among them and what it had free."""

    def why(self, event: ExecutorAllocated) -> dict[str, Any]:
        """Why the executor has its size, its memory and its worker."""
        where = self.workers["text"]
        if event.worker in self.candidates:
            place, free = self.candidates[event.worker]
            where += f"; {event.worker} was number {place} of {len(self.candidates)} with room"
            where += f" and had {free} free"
        if event.locality:
            where += f"; that reached {event.locality} of what it prefers"
        return {
            "size": self.size["text"],
            "sizeRule": self.size["rule"],
            "memory": self.memory["text"],
            "memoryRule": self.memory["rule"],
            "workers": where,
            "workersRule": self.workers["rule"],
        }


def why_executors(state: ClusterState, app: App, event: ExecutorAllocated, at: int) -> Batch:
    """On what grounds placement gave the app this executor and those that came with it, at time `at` (ms)."""
    settings = state.settings
    together = [event.executor]
    placement = PLACEMENTS[settings.placement]
    if not placement.across_apps:
        together += [granted.executor for granted in place(state, app, at)]
    sizing = app.sizing
    if isinstance(sizing, Computed):
        size, memory = _computed(state, app, sizing, event)
    else:
        size, memory = _asked(state, app, event)
    least = Resources(1, event.resources.memory_mb) if _grows(state, app) else event.resources
    found = list(state.fleet.candidates(least, settings.worker_selection))
    if placement.one_a_worker:
        own = {executor.worker for executor in app.executors.values()}
        found = [candidate for candidate in found if candidate[0] not in own]
    candidates = {worker: (number, free) for number, (worker, free) in enumerate(found, start=1)}
    how = f"{placement.name}: {placement.wording}, by {settings.worker_selection} (P1)"
    where = _reason("L5" if event.locality else placement.rule, how)
    return Batch(together, size, memory, where, candidates)


def _computed(state: ClusterState, app: App, sizing: Computed, event: ExecutorAllocated) -> tuple[Reason, Reason]:
    """Why S2 and S4 came to that size, and S3 to that memory."""
    fleet, settings, left, size = state.fleet, state.settings, app.left_cores, event.resources
    larger = []
    for index, cores in enumerate(executor_sizes(settings)):
        if cores <= size.cores:
            break
        if left < fleet.usable * cores:
            larger.append(f"{cores} would need {fleet.usable * cores} cores left")
        elif 2 * fleet.usable_with(index) <= fleet.usable:
            larger.append(f"{cores} are free on only {fleet.usable_with(index)} workers")
        else:
            larger.append(f"{cores} do not fit within what is left, the largest memory, or any worker (S4)")
    text = (
        f"{left} cores left to grant on {fleet.usable} usable workers make executors of {size.cores} cores"
        f"{'; ' if larger else ''}{', '.join(larger)}"
    )
    per_task = sizing.memory_per_task_mb
    least = fleet.least_memory_mb(size.cores)
    basis = f"{per_task} MiB a task" if per_task is not None else f"none was given, and {least} MiB are free at least"
    memory = (
        f"{basis}: {size.memory_mb} MiB for {size.cores} cores, at least {settings.min_executor_memory_mb}, "
        "in steps of 256"
    )
    return _reason("S2", text), _reason("S3", memory)


def _asked(state: ClusterState, app: App, event: ExecutorAllocated) -> tuple[Reason, Reason]:
    if _grows(state, app):
        text = f"the app asked for one executor a worker that grows by cores, with {app.left_cores} cores left to grant"
    else:
        text = (
            f"the app asked for executors of {event.resources.cores} cores, with {app.left_cores} cores left to grant"
        )
    return _reason("S5", text), _reason("S5", f"the app asked for {event.resources.memory_mb} MiB each")


def _grows(state: ClusterState, app: App) -> bool:
    """Whether each of its executors takes as many cores as there are (P4, P7)."""
    one_a_worker = PLACEMENTS[state.settings.placement].one_a_worker
    return isinstance(app.sizing, OnePerWorker) or (isinstance(app.sizing, Fixed) and one_a_worker)


def _reason(rule: str, text: str) -> Reason:
    return {"rule": rule, "text": text}


def _names(names: list[str]) -> str:
    return ", ".join(islice(names, 5)) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _when(seq: int) -> str:
    return f"at position {seq}" if seq else "never"
