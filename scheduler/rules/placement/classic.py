"""`classic-pack`: packing as before Spark 1.4 (semantics P7).

An app gets at most one executor per worker. Packing fills worker by worker, across apps. `classic-spread` is in
`executors`: it spreads one growing executor per worker over the workers that have none of the app.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.model.events import Computed, ExecutorAllocated
from scheduler.model.resources import UNLIMITED_MEMORY_MB, Resources
from scheduler.rules.placement.executors import allocation
from scheduler.rules.placement.sizing import executor_memory_mb, sizes_to_try

if TYPE_CHECKING:
    from scheduler.rules.entities import App
    from scheduler.rules.state import ClusterState


def pack_worker_by_worker(
    state: ClusterState, unsatisfied: Sequence[App], most: Resources | None = None
) -> list[ExecutorAllocated]:
    """Executors for these apps: for each worker in order, for each app in order, one if it fits (semantics P7).

    With `most`, each gets no more than that (P6).
    """
    apps = [_owed(state, app, most) for app in unsatisfied]
    if not apps:
        return []
    settings = state.settings
    least_mb = min(one.fixed_mb or settings.min_executor_memory_mb for one in apps)
    allocations: list[ExecutorAllocated] = []
    for worker, free in state.fleet.candidates(Resources(1, least_mb), settings.worker_selection):
        room = free
        for owed in apps:
            size = owed.share_of(room) if worker not in owed.own else None
            if size is not None:
                allocations.append(allocation(owed.app, owed.app.next_executor + owed.count, worker, size))
                room -= size
                owed.left -= size
                owed.count += 1
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
    fixed_mb: int | None
    """Memory of each executor in MiB; None if computed, from `sizes`."""
    sizes: list[Resources]
    count: int = 0

    def share_of(self, room: Resources) -> Resources | None:
        """Size of the app's executor on a worker with `room` free, None if none fits (semantics S4).

        It takes all the cores it can, or the first computed size that fits.
        """
        sizes = self.sizes if self.fixed_mb is None else [Resources(min(self.left.cores, room.cores), self.fixed_mb)]
        return next((size for size in sizes if size.cores and self.left.covers(size) and room.covers(size)), None)


def _owed(state: ClusterState, app: App, most: Resources | None) -> _Owed:
    settings, fleet, sizing = state.settings, state.fleet, app.sizing
    cores_left = app.left_cores if most is None else min(app.left_cores, most.cores)
    sizes = []
    fixed_mb, left_mb = None, app.left_memory_mb
    if isinstance(sizing, Computed):
        for cores in sizes_to_try(fleet, cores_left):
            memory_mb = executor_memory_mb(fleet, settings, cores, sizing.memory_per_task_mb)
            if memory_mb is not None:
                sizes.append(Resources(cores, memory_mb))
    else:
        fixed_mb = sizing.memory_mb
        if settings.admission == "open":
            left_mb = UNLIMITED_MEMORY_MB
    if most is not None:
        left_mb = min(left_mb, most.memory_mb)
    own = {executor.worker for executor in app.executors.values()}
    return _Owed(app, Resources(cores_left, left_mb), own, fixed_mb, sizes)
