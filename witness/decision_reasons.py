"""The reasons for a decision, from the state just before it.

Decisions are an admission (A, C, U, F), a driver's worker (D), and an executor's size, memory and worker (S, P, L5).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from recovery.replay.bounds import moment
from scheduler.model.events import Computed, DriverAllocated, ExecutorAllocated, Fixed, OnePerWorker
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.app import APP_POLICIES
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.queue import CompanyQueue
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.decide import is_full, place
from scheduler.rules.entities import App
from scheduler.rules.failures import left_out
from scheduler.rules.fleet import Shape
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.placement.sizing import executor_sizes
from scheduler.rules.state import ClusterState
from witness.entitled_reasons import is_entitled, why_entered
from witness.pending_reasons import companies_in_turn, users_in_turn

Reason = dict[str, str]
"""A rule and a sentence about its outcome."""


def why_admitted(state: ClusterState, app: App) -> dict[str, Any]:
    """Why the app was next: the reasons, and every company and user with something to admit, as the rules saw them."""
    companies, users = [], []
    taking = set() if state.by_entitlement else set(state.queue.taking_part())
    for name, company in state.queue.companies.items():
        heads = [(queue.contender, queue.head) for queue in company.users.values() if queue.head is not None]
        if not heads:
            continue
        passing = [_passes(state, company, head) for _, head in heads]
        use = state.usage(state.companies[name])
        companies.append(
            {
                "company": name,
                "share": str(state.queue.share(name)),
                "usedCoreMs": use.cores,
                "usedMemoryMs": use.memory_mb,
                "takesPart": any(passing) if state.by_entitlement else name in taking,
                "lastSelected": company.tenant.last_selected or None,
            }
        )
        users += [
            {
                "company": name,
                "user": contender.user,
                "lastSelected": contender.last_selected or None,
                "app": head.id,
                "passes": passes,
                "keptOutBy": None if passes else "not entitled" if state.by_entitlement else "quota",
            }
            for (contender, head), passes in zip(heads, passing, strict=True)
        ]
    return {"why": _reasons(state, app), "companies": companies, "users": users}


def _passes(state: ClusterState, company: CompanyQueue, app: App) -> bool:
    """Whether the app may enter by its entitlement (H4), or by its company's quota (C4)."""
    return is_entitled(state, app) if state.by_entitlement else company.limit.admits(app.requested)


def _reasons(state: ClusterState, app: App) -> list[Reason]:
    if state.settings.admission == "open":
        pending = len(state.queue.arrivals)
        return [
            _reason("A6", f"with open admission every app enters, the oldest first: it was the oldest of {pending}")
        ]
    settings, name, me = state.settings, app.spec.company, app.spec.user
    if state.by_entitlement:
        policy = COMPANY_POLICIES[settings.company_policy]
        value = policy.key(state.queue.companies[name].tenant, state.queue.basis)
        return [
            *why_entered(state, app),
            _reason(
                policy.rule,
                f"of the companies with an app that is due, this one was first: {name} had {policy.measure} {value}",
            ),
        ]
    company = state.queue.companies[name]
    reasons = [_why_now(state, company, app), _why_company(state, company, app)]
    reserver = company.limit.reserver() if company.limit.reservations else None
    if reserver is app:
        return [*reasons, _reason("C7", "the company's room was reserved for it after quota_patience_s")]
    others = [queue.contender.user for queue, _ in users_in_turn(state, company) if queue.contender.user != me]
    users, apps = USER_POLICIES[settings.user_policy], APP_POLICIES[settings.app_policy]
    alone = f"no other user of {name} had an app within the quota"
    user = f"of {name}'s users {me} {users.reason}, before {_names(others)}" if others else alone
    queued = company.users[me].by_policy
    first = apps.reason
    if any(one.priority != app.priority or one.ready_position != one.submitted for one in queued):
        first = f"the first, with priority {app.priority} and ready since {moment(app.ready_at)} (Q2)"
    return [
        *reasons,
        _reason(users.rule, user),
        _reason(apps.rule, f"of {len(queued)} apps in {me}'s queue it was {first}"),
    ]


def _why_now(state: ClusterState, company: CompanyQueue, app: App) -> Reason:
    """Its company's part (C8), room that nobody claims (A3), or room that nobody admitted can use (A9)."""
    if (within := _within_part(state, company, app)) is not None:
        return within
    total = state.fleet.total
    cluster = state.claims.total.claimed
    counted = f"apps claimed {cluster.cores} of {total.cores} cores and {cluster.memory_mb} of {total.memory_mb} MiB"
    for kind, _ in app.requested.others:
        counted += f" and {cluster.amount(kind)} of {total.amount(kind)} {kind}"
    if is_full(state, app.requested):
        return _reason("A9", f"{counted}, but there was room that none of them could use")
    return _reason("A3", f"{counted}, so there was room")


def _within_part(state: ClusterState, company: CompanyQueue, app: App) -> Reason | None:
    """How the app kept its company within its part (A3, C8); None if it did not."""
    name, standing = app.spec.company, company.tenant.standing
    part = state.queue.part(name)
    claimed = standing.claimed - standing.lent
    if (part - claimed).suffices_for(app.requested):
        return _reason("A3", f"{name} claimed {claimed} of its part, {part}, so the app was within it")
    if claimed == NOTHING and company.limit.admits(app.requested):
        return _reason("A3", f"{name} claimed nothing, and the app was within its quota")
    return None


def _why_company(state: ClusterState, company: CompanyQueue, app: App) -> Reason:
    me, policy = company.tenant.company, COMPANY_POLICIES[state.settings.company_policy]
    order = [(each.tenant, value) for each, value in companies_in_turn(state)]
    own = next((value for tenant, value in order if tenant.company == me), None)
    if own is None or not company.limit.admits(app.requested):
        return _reason("C6", f"{me} borrows: no other company took part, so it may exceed its quota")
    other, value = next(((tenant, value) for tenant, value in order if tenant.company != me), (None, ""))
    if other is None:
        return _reason("C1", f"no company other than {me} took part")
    first, least = order[0]
    if first.company != me and _within_part(state, company, app) is not None:
        text = f"{first.company} had {policy.measure} {least} ({me}: {own}), but no app that kept it within its part"
        return _reason("A3", text)
    text = f"{me} had {policy.measure} {own}, the smallest of {len(order)}; the next was {other.company} with {value}"
    if value == own:
        text += f", last selected {_when(other.last_selected)} ({me}: {_when(company.tenant.last_selected)})"
    return _reason(policy.rule, text)


def why_driver(state: ClusterState, event: DriverAllocated) -> Reason:
    """Why a driver got its worker (D2)."""
    if state.by_entitlement:
        held = sum(one.resources.cores for one in state.workers[event.worker].drivers.values())
        text = f"of the workers with room {event.worker} came first: drivers hold {held} cores there, and it fits best"
        return _reason("H5", text)
    room = sum(1 for _ in state.fleet.candidates(event.resources, "worker-id"))
    order = f"derived from log position {state.head}" if state.settings.spread_out_drivers else "by id"
    return _reason("D2", f"{event.worker} was the first of {room} workers with room, in the order {order}")


class Batch(NamedTuple):
    """Executors that one placement granted to an app, with the reasons for their size, memory and workers."""

    executors: Container[str]
    reasons: Mapping[str, Reason]
    candidates: Mapping[str, tuple[int, Shape]]
    """Worker with room -> its number among them, from 1, and its free resources."""

    def why(self, event: ExecutorAllocated) -> dict[str, str]:
        """The sentence `size` and its rule `sizeRule` for the executor; likewise `memory` and `workers`."""
        why: dict[str, str] = {}
        for name, reason in self.reasons.items():
            why |= {name: reason["text"], f"{name}Rule": reason["rule"]}
        if event.worker in self.candidates:
            number, free = self.candidates[event.worker]
            of = len(self.candidates)
            why["workers"] += f"; {event.worker} was number {number} of {of} workers with room and had {free} free"
        if event.locality:
            why["workers"] += f"; its locality is {event.locality}"
        return why


def why_executors(state: ClusterState, app: App, event: ExecutorAllocated, at: int) -> Batch:
    """The reasons for this executor and those granted with it at `at` (ms)."""
    together = [event.executor]
    if not PLACEMENTS[state.settings.placement].across_apps:
        together += [granted.executor for granted in place(state, app, at)]
    tries = left_out(state, app, app.need.least, at)
    without = next((names for names in tries if event.worker not in names), ())
    with state.seen_by(app, without):
        reasons, candidates = _seen(state, app, event)
    if without:
        workers = reasons["workers"]
        names = ", ".join(sorted(without)[:5]) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        text = f"{workers['text']}, without {names}, where executors of it failed (W7)"
        reasons["workers"] = _reason(workers["rule"], text)
    return Batch(together, reasons, candidates)


def _seen(
    state: ClusterState, app: App, event: ExecutorAllocated
) -> tuple[dict[str, Reason], dict[str, tuple[int, Shape]]]:
    """The reasons and the candidates, as the fleet is shown."""
    settings = state.settings
    placement = PLACEMENTS[settings.placement]
    sizing = app.sizing
    grows = isinstance(sizing, OnePerWorker) or (isinstance(sizing, Fixed) and placement.one_a_worker)  # P4, P7
    if isinstance(sizing, Computed):
        reasons = _computed(state, app, sizing, event)
    else:
        asked = "one executor per worker with all cores it can take" if grows else f"{event.resources.cores} cores each"
        reasons = {
            "size": _reason("S5", f"the app requested {asked}; {app.left_cores} cores were left to grant"),
            "memory": _reason("S5", f"the app requested {event.resources.memory_mb} MiB per executor"),
        }
    if event.addresses:
        named = ", ".join(f"{kind} {' '.join(addresses)}" for kind, addresses in event.addresses.items())
        reasons["resources"] = _reason(
            "R5", f"{named}: the first free ones of {event.worker}, in the order of its offer"
        )
    size = event.resources
    least = Resources(app.spec.cores_per_task, size.memory_mb, size.others) if grows else size
    found = list(state.fleet.candidates(least, settings.worker_selection, sparing=state.sparing))
    if placement.one_a_worker:
        own = {executor.worker for executor in app.executors.values()}
        found = [candidate for candidate in found if candidate[0] not in own]
    candidates = {worker: (number, free) for number, (worker, free) in enumerate(found, start=1)}
    how = f"{placement.name}: {placement.wording}, workers ordered by {settings.worker_selection} (P1)"
    if state.sparing and state.fleet.offering:
        how += ", those with fewer kinds that the app does not request first (R6)"
    where = _reason("L5" if event.locality else placement.rule, how)
    return {**reasons, "workers": where}, candidates


def _computed(state: ClusterState, app: App, sizing: Computed, event: ExecutorAllocated) -> dict[str, Reason]:
    """The reasons for the size (S2, S4) and the memory (S3)."""
    fleet, settings, left, size = state.fleet, state.settings, app.left_cores, event.resources
    larger = []
    for index, cores in enumerate(executor_sizes(settings)):
        if cores <= size.cores:
            break
        if left < fleet.usable * cores:
            larger.append(f"{cores} cores require {fleet.usable * cores} left")
        elif 2 * fleet.usable_with(index) <= fleet.usable:
            larger.append(f"only {fleet.usable_with(index)} workers have {cores} cores free")
        else:
            larger.append(f"{cores} cores exceed the cores left, the largest memory, or every worker (S4)")
    chosen = f"{size.cores} cores: {left} cores were left to grant on {fleet.usable} usable workers"
    per_task, each = sizing.memory_per_task_mb, app.spec.cores_per_task
    at_once = f"{size.cores // each} tasks of {each} cores at once (A7)"
    if each > 1:
        larger.append(f"it runs {at_once}")
    basis = (
        f"{per_task} MiB per task{f', and {at_once}' if each > 1 else ''}"
        if per_task is not None
        else f"the app gave none per task, and every worker with {size.cores} cores free has "
        f"{fleet.least_memory_mb(size.cores)} MiB free"
    )
    memory = (
        f"{size.memory_mb} MiB for {size.cores} cores: {basis}; at least {settings.min_executor_memory_mb} MiB, "
        "in steps of 256 MiB"
    )
    return {"size": _reason("S2", "; ".join([chosen, *larger])), "memory": _reason("S3", memory)}


def _reason(rule: str, text: str) -> Reason:
    return {"rule": rule, "text": text}


def _names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _when(seq: int) -> str:
    return f"at position {seq}" if seq else "never"
