"""The reasons for a decision, from the state just before it.

Decisions are an admission (A, C, U, F), a driver's worker (D), and an executor's size, memory and worker (S, P, L5).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from typing import Any, NamedTuple

from recovery.replay.bounds import moment
from scheduler.model.events import Computed, DriverAllocated, ExecutorAllocated, Fixed, OnePerWorker
from scheduler.model.resources import Resources
from scheduler.model.text import counted, few
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.command.failures import left_out
from scheduler.rules.command.windows import barred, sought_by, within
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.fleet import Shape
from scheduler.rules.entities.labels import amounts_in, has_last, met_by, sought, tried_by
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.placement.sizing import executor_sizes
from scheduler.rules.stage.granting import place
from scheduler.rules.state.backfill import date_of, lending
from scheduler.rules.state.cluster import ClusterState
from witness.entitled_reasons import is_entitled, why_entered

Reason = dict[str, str]
"""A rule and a sentence about its outcome."""


def why_admitted(state: ClusterState, app: App) -> dict[str, Any]:
    """Why the app was next: the reasons, and every company and user with something to admit, as the rules saw them."""
    companies, users = [], []
    for name, company in state.queue.companies.items():
        heads = [(each.contender, next(each.in_order(lambda _: False))) for each in company.asking.values()]
        if not heads:
            continue
        entitled = [is_entitled(state, head) for _, head in heads]
        use = state.usage(state.companies[name])
        companies.append(
            {
                "company": name,
                "share": str(state.queue.share(name)),
                "usedCoreMs": use.cores,
                "usedMemoryMs": use.memory_mb,
                "takesPart": any(entitled),
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
                "keptOutBy": None if passes else "not entitled",
            }
            for (contender, head), passes in zip(heads, entitled, strict=True)
        ]
    return {"why": _reasons(state, app), "companies": companies, "users": users}


def _reasons(state: ClusterState, app: App) -> list[Reason]:
    if state.settings.admission == "open":
        pending = len(state.queue.arrivals)
        return [
            _reason("A6", f"with open admission every app enters, the oldest first: it was the oldest of {pending}")
        ]
    name, policy = app.spec.company, COMPANY_POLICIES[state.settings.company_policy]
    value = policy.key(state.queue.companies[name].tenant, state.queue.basis)
    text = f"of the companies with an app that is due, this one was first: {name} had {policy.measure} {value}"
    return [*why_entered(state, app), _reason(policy.rule, text)]


def why_driver(state: ClusterState, event: DriverAllocated) -> Reason:
    """Why a driver got its worker (D2)."""
    if state.by_entitlement:
        held = sum(one.resources.cores for one in state.workers[event.worker].drivers.values())
        text = (
            f"of the workers with room {event.worker} came first: drivers hold "
            f"{counted(held, 'core')} there, and it fits best"
        )
        return _reason("H5", text)
    size = sought_by(state, state.apps[event.app], event.resources, state.at)
    room = sum(1 for _ in state.fleet.candidates(size, "worker-id"))
    order = f"derived from log position {state.head}" if state.settings.spread_out_drivers else "by id"
    return _reason("D2", f"{event.worker} was the first of {counted(room, 'worker')} with room, in the order {order}")


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
            why["workers"] += (
                f"; {event.worker} was number {number} of {counted(of, 'worker')} with room and had {free} free"
            )
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
    kept = not state.workers[event.worker].open_to(app.id).covers(event.resources)
    lent = lending(state, app, at) if kept else []
    with state.seen_by(app, without, lent):
        reasons, candidates = _seen(state, app, event, at)
    if without or state.windows or lent:
        workers = reasons["workers"]
        text = workers["text"] + _without(without, "where executors of it failed (W7)")
        text += _without(barred(state, app, at), "which have a window (W14)")
        if lent:
            dates = {hold.worker: f"{hold.app} by {moment(date_of(state, hold))}" for hold in lent}
            text += f"; room on {event.worker} is kept for {dates[event.worker]}, by when it has ended (H11)"
        reasons["workers"] = _reason(workers["rule"], text)
    return Batch(together, reasons, candidates)


def _without(names: Collection[str], why: str) -> str:
    """Which workers were left out, and why."""
    return f", without {few(sorted(names), 5)}, {why}" if names else ""


def _seen(
    state: ClusterState, app: App, event: ExecutorAllocated, at: int
) -> tuple[dict[str, Reason], dict[str, tuple[int, Shape]]]:
    """The reasons and the candidates, as the fleet is shown."""
    settings = state.settings
    placement = PLACEMENTS[settings.placement]
    sizing = app.sizing
    grows = isinstance(sizing, OnePerWorker) or (isinstance(sizing, Fixed) and placement.one_a_worker)  # P4, P7
    if isinstance(sizing, Computed):
        reasons = _computed(state, app, sizing, event)
    else:
        asked = (
            "one executor per worker with all cores it can take"
            if grows
            else f"{counted(event.resources.cores, 'core')} each"
        )
        if app.spec.gang:
            asked += f", {counted(app.executor_limit or 0, 'executor')} at once or none (G8)"
        reasons = {
            "size": _reason("S5", f"the app requested {asked}, with {counted(app.left_cores, 'core')} left to grant"),
            "memory": _reason("S5", f"the app requested {event.resources.memory_mb} MiB per executor"),
        }
    if event.addresses:
        named = ", ".join(f"{kind} {' '.join(addresses)}" for kind, addresses in event.addresses.items())
        reasons["resources"] = _reason(
            "R5", f"{named}: the first free ones of {event.worker}, in the order of its offer"
        )
    size = event.resources
    least = Resources(app.spec.cores_per_task, size.memory_mb, size.others) if grows else size
    demand = _demand_met(state, app, event.worker)
    seeking = sought(least, within(state, app, at, demand))
    found = list(state.fleet.candidates(seeking, settings.worker_selection, sparing=state.sparing))
    if placement.one_a_worker:
        own = {executor.worker for executor in app.executors.values()}
        found = [candidate for candidate in found if candidate[0] not in own]
    candidates = {worker: (number, amounts_in(free)) for number, (worker, free) in enumerate(found, start=1)}
    how = f"{placement.name}: {placement.wording}, workers ordered by {settings.worker_selection} (P1)"
    if state.sparing and (state.fleet.offering or state.fleet.with_class):
        how += ", those with fewer kinds that the app does not request first (P1)"
    if has_last(seeking):
        how += ", those with a window ahead last (W14)"
    if demand:
        preferred = ", those that it prefers among them" if demand != app.need.demand else ""
        how += f", of those that the app may use by their labels{preferred} (P9)"
    where = _reason("L5" if event.locality else placement.rule, how)
    return {**reasons, "workers": where}, candidates


def _demand_met(state: ClusterState, app: App, name: str) -> str:
    """What was sought of the labels of the worker that was found: preferred ones as well, if it has them (P9)."""
    worker = state.workers[name]
    return next(each for each in tried_by(app.spec) if met_by(each, worker.labels, worker.taints))


def _computed(state: ClusterState, app: App, sizing: Computed, event: ExecutorAllocated) -> dict[str, Reason]:
    """The reasons for the size (S2, S4) and the memory (S3)."""
    fleet, settings, left, size = state.fleet, state.settings, app.left_cores, event.resources
    larger = []
    for index, cores in enumerate(executor_sizes(settings)):
        if cores <= size.cores:
            break
        if left < fleet.usable * cores:
            larger.append(f"{counted(cores, 'core')} require {fleet.usable * cores} left")
        elif 2 * fleet.usable_with(index) <= fleet.usable:
            larger.append(f"{counted(cores, 'core')} are free on only {counted(fleet.usable_with(index), 'worker')}")
        else:
            larger.append(f"{counted(cores, 'core')} exceed the cores left, the largest memory, or every worker (S4)")
    chosen = f"{counted(size.cores, 'core')}: {counted(left, 'core')} left to grant on {fleet.usable} usable workers"
    per_task, each = sizing.memory_per_task_mb, app.spec.cores_per_task
    at_once = f"{counted(size.cores // each, 'task')} of {counted(each, 'core')} at once (A7)"
    if each > 1:
        larger.append(f"it runs {at_once}")
    basis = (
        f"{per_task} MiB per task{f', and {at_once}' if each > 1 else ''}"
        if per_task is not None
        else f"the app gave none per task, and every worker with {counted(size.cores, 'core')} free has "
        f"{fleet.least_memory_mb(size.cores)} MiB free"
    )
    memory = (
        f"{size.memory_mb} MiB for {counted(size.cores, 'core')}: {basis}; at least "
        f"{settings.min_executor_memory_mb} MiB, "
        "in steps of 256 MiB"
    )
    return {"size": _reason("S2", "; ".join([chosen, *larger])), "memory": _reason("S3", memory)}


def _reason(rule: str, text: str) -> Reason:
    return {"rule": rule, "text": text}
