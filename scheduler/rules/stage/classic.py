"""`classic-pack`: packing as before Spark 1.4 (semantics P7).

An app gets at most one executor per worker. Packing fills worker by worker, across apps. `classic-spread` is in
`executors`: it spreads one growing executor per worker over the workers that have none of the app.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.model.events import Computed, ExecutorAllocated
from scheduler.model.resources import NOTHING, UNLIMITED_CORES, UNLIMITED_MEMORY_MB, Resources
from scheduler.rules.command.failures import left_out
from scheduler.rules.command.windows import sought_by
from scheduler.rules.entities.labels import may_use
from scheduler.rules.placement.executors import allocation
from scheduler.rules.placement.sizing import executor_memory_mb, for_tasks, sizes_to_try

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState


def pack_worker_by_worker(
    state: ClusterState, unsatisfied: Sequence[App], at: int, most: Resources | None = None
) -> list[ExecutorAllocated]:
    """Executors for these apps: for each worker in order, for each app in order, one if it fits (semantics P7).

    An app that failed on workers gets one there only if it gets none elsewhere, and is not excluded at `at` (ms) (W7).
    With `most`, each gets no more than that (P6).
    """
    tries = [[*left_out(state, app, app.need.least, at)] for app in unsatisfied]
    first = [_owed(state, app, most, without) for app, (without, *_) in zip(unsatisfied, tries, strict=True)]
    granted = _packed(state, first)
    for app, (_, *others) in zip(unsatisfied, tries, strict=True):
        for without in others:
            granted = granted or _packed(state, [_owed(state, app, most, without)])
    return granted


def _packed(state: ClusterState, apps: list[_Owed]) -> list[ExecutorAllocated]:
    if not apps:
        return []
    settings = state.settings
    least_mb = min(settings.min_executor_memory_mb if one.fixed is None else one.fixed.memory_mb for one in apps)
    allocations: list[ExecutorAllocated] = []
    least = Resources(1, least_mb)
    candidates = state.fleet.candidates(least, settings.worker_selection, sparing=state.sparing, everywhere=True)
    for worker, free in candidates:
        room = free
        for owed in apps:
            barred = worker in owed.own or not may_use(free, owed.asked)
            size = None if barred else owed.share_of(room)
            if size is not None:
                allocations.append(allocation(owed.app, owed.app.next_executor + owed.count, worker, size))
                room -= size
                owed.left -= size
                owed.count += 1
                if worker in state.indexes.probes:
                    break
        apps = [owed for owed in apps if owed.left.cores > 0 and owed.count < owed.app.left_executors]
        if not apps:
            break
    return allocations


@dataclass(slots=True)
class _Owed:
    """An app in this pass: the resources it may still get, the workers of its executors, and the new executors."""

    app: App
    left: Resources
    own: set[str]
    """With those that are left out."""
    fixed: Resources | None
    """Each executor but for its cores; None if computed, from `sizes`."""
    sizes: list[Resources]
    asked: Resources
    """What it demands of a worker: its labels, and its windows (semantics P9, W14)."""
    count: int = 0

    def share_of(self, room: Resources) -> Resources | None:
        """Size of the app's executor on a worker with `room` free, None if none fits (semantics S4).

        It takes all the cores it can for whole tasks (A7), or the first computed size that fits.
        """
        sizes, fixed, unit = self.sizes, self.fixed, self.app.spec.cores_per_task
        if fixed is not None:
            cores = min(self.left.cores, room.cores) // unit * unit
            sizes = [Resources(cores, fixed.memory_mb, fixed.others)]
        return next((size for size in sizes if size.cores and self.left.covers(size) and room.covers(size)), None)


def _owed(state: ClusterState, app: App, most: Resources | None, without: Collection[str]) -> _Owed:
    settings, fleet, sizing = state.settings, state.fleet, app.sizing
    cores_left = app.left_cores if most is None else min(app.left_cores, most.cores)
    sizes = []
    fixed, left = None, app.requested - app.granted
    left = Resources(cores_left, left.memory_mb, left.others)
    if isinstance(sizing, Computed):
        for cores in sizes_to_try(fleet, settings, cores_left, app.spec.cores_per_task):
            memory_mb = executor_memory_mb(fleet, settings, cores, sizing.memory_per_task_mb, app.spec.cores_per_task)
            if memory_mb is not None:
                others = for_tasks(sizing.per_task, cores // app.spec.cores_per_task)
                sizes.append(Resources(cores, memory_mb, others))
    else:
        fixed = sizing.each
        if settings.admission == "open":
            left = Resources(left.cores, UNLIMITED_MEMORY_MB, (fixed * UNLIMITED_CORES).others)
    if most is not None:
        left = left.combined(most, min)
    own = {*without, *(executor.worker for executor in app.executors.values())}
    return _Owed(app, left, own, fixed, sizes, sought_by(state, app, NOTHING, state.at))
