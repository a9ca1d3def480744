"""The next admission, and the next executors of an app (semantics A6, S4, S5, P).

These functions only read the state. `placement` chooses workers.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler.model import events as facts
from scheduler.model.events import Computed, Fixed
from scheduler.model.resources import Resources
from scheduler.rules.command import windows
from scheduler.rules.command.failures import left_out
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.fleet import Candidates
from scheduler.rules.entities.labels import sought
from scheduler.rules.placement.executors import PLACEMENTS, allocation, allocations, one_probe
from scheduler.rules.placement.sizing import executor_memory_mb, for_tasks, sizes_to_try
from scheduler.rules.stage.locality import place_near
from scheduler.rules.state.backfill import lending
from scheduler.rules.state.cluster import ClusterState


def admit(state: ClusterState) -> facts.AppAdmitted | None:
    """The app that enters waitingApps next with open admission: each at once, in order of arrival (semantics A6)."""
    first = state.queue.oldest()
    return None if first is None else admission(state, first)


def admission(state: ClusterState, app: App) -> facts.AppAdmitted:
    """The event that admits the app."""
    company = app.spec.company
    return facts.AppAdmitted(app=app.id, company=company, user=app.spec.user, share=str(state.queue.share(company)))


def place(state: ClusterState, app: App, at: int, most: Resources | None = None) -> list[facts.ExecutorAllocated]:
    """The executors that `app` gets next at time `at` (ms), grouped by worker in the order of the candidates.

    With `most`, only whole executors that fit into that much (semantics P6). Room that is held for the app counts (H6),
    and where there is no other, what is lent to it until it ends (H11); workers that are closed to it do not (W7, W14).
    The caller folds them before it calls again. None fits at present if it is empty.
    """
    if not app.owed or (app.need.gang and app.executors):
        return []
    lent = lending(state, app, at)
    if not (app.troubles or app.holds or lent):
        return _place(state, app, at, most)
    for lends in ((), lent) if lent else ((),):
        for without in left_out(state, app, app.need.least, at):
            with state.seen_by(app, without, lends):
                granted = _place(state, app, at, most, without)
            if granted:
                return granted
    return []


def _place(
    state: ClusterState, app: App, at: int, most: Resources | None, without: Collection[str] = ()
) -> list[facts.ExecutorAllocated]:
    """The executors of `place` as the fleet is shown, where preferred labels are if there is room (semantics P9)."""
    for demand in windows.tries(state, app, at):
        granted = _placed(state, app, at, most, without, demand)
        if granted and len(granted) >= app.need.gang:
            return granted
    return []


def _placed(  # noqa: PLR0917 - as `_place`
    state: ClusterState, app: App, at: int, most: Resources | None, without: Collection[str], demand: str
) -> list[facts.ExecutorAllocated]:
    """The executors of `place` where that demand is met; none for a preferred host on the workers `without`."""
    match app.sizing:
        case Computed():
            return _place_computed(state, app, app.sizing, most, demand)
        case Fixed(each=size) if not PLACEMENTS[state.settings.placement].one_a_worker:
            if app.demand.wanted:
                return place_near(state, app, size, at, most=most, without=without, demand=demand)
            return _place_fixed(state, app, size, most, demand)
        case Fixed(each=each) | facts.OnePerWorker(each=each):
            return _place_growing(state, app, each, most, demand)


def _place_computed(
    state: ClusterState, app: App, sizing: Computed, most: Resources | None, demand: str
) -> list[facts.ExecutorAllocated]:
    """Executors of one size that the scheduler computes (semantics S4, P2)."""
    settings, left = state.settings, app.left_cores
    if most is not None:
        smallest = app.need.executor
        left = min(left, most.holds(smallest) * smallest.cores)
    if left < settings.min_executor_cores:
        return []
    cores_per_task = app.spec.cores_per_task
    for cores in sizes_to_try(state.fleet, settings, left, cores_per_task):
        memory_mb = executor_memory_mb(state.fleet, settings, cores, sizing.memory_per_task_mb, cores_per_task)
        if memory_mb is None:
            continue
        others = for_tasks(sizing.per_task, cores // cores_per_task) if sizing.per_task else ()
        size = Resources(cores, memory_mb, others)
        limit = min(left // cores, app.affords(size), app.left_executors)
        if limit:
            candidates = one_probe(_candidates(state, app, sought(size, demand)), state.indexes.probes.members, size)
            counts = PLACEMENTS[settings.placement].of_size(candidates, size, limit)
            if counts:
                return allocations(app, counts, size)
    return []


def _place_fixed(
    state: ClusterState, app: App, size: Resources, most: Resources | None, demand: str
) -> list[facts.ExecutorAllocated]:
    """Executors of the size that the app states (semantics S5, P4)."""
    limit = min(_affordable(state, app, size), app.left_cores // size.cores)
    if most is not None:
        limit = min(limit, most.holds(size))
    if limit <= 0:
        return []
    candidates = one_probe(_candidates(state, app, sought(size, demand)), state.indexes.probes.members, size)
    return allocations(app, PLACEMENTS[state.settings.placement].of_size(candidates, size, limit), size)


def _place_growing(
    state: ClusterState, app: App, each: Resources, most: Resources | None, demand: str
) -> list[facts.ExecutorAllocated]:
    """One executor a worker, of as many cores as the worker can give to whole tasks (semantics S5, P4, P7, A7)."""
    limit, left, unit = _affordable(state, app, each), app.left_cores, app.spec.cores_per_task
    least = Resources(unit, each.memory_mb, each.others)
    if most is not None:
        limit, left = min(limit, most.holds(least)), min(left, most.cores)
    if limit <= 0:
        return []
    candidates = _candidates(state, app, sought(least, demand))
    if unit > 1:
        candidates = _in_units(candidates, unit)
    grown = PLACEMENTS[state.settings.placement].growing(candidates, left // unit, limit)
    return [
        allocation(app, number, worker, Resources(units * unit, each.memory_mb, each.others))
        for number, (worker, units) in enumerate(grown, start=app.next_executor)
    ]


def _in_units(candidates: Candidates, unit: int) -> Candidates:
    for worker, free in candidates:
        yield worker, Resources(free.cores // unit)


def _affordable(state: ClusterState, app: App, size: Resources) -> int:
    """How many more executors the app may have (P4); fair admission also keeps them in the request (A2, R3)."""
    if state.settings.admission == "open":
        return app.left_executors
    return min(app.left_executors, app.affords(size))


def _candidates(state: ClusterState, app: App, size: Resources) -> Candidates:
    """The workers with room for `size` (semantics P1); classic placements skip those with an executor of it (P7)."""
    candidates = state.fleet.candidates(size, state.settings.worker_selection, sparing=state.sparing)
    if not PLACEMENTS[state.settings.placement].one_a_worker or not app.executors:
        return candidates
    own = {executor.worker for executor in app.executors.values()}
    return filter(lambda candidate: candidate[0] not in own, candidates)
