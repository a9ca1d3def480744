"""The rules before Spark 1.4, where apps are packed (semantics P7).

An app has at most one executor on a worker. Spreading by these rules is spreading growing executors over
the workers that have none of the app, see `executors`; packing goes worker by worker, across apps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.model.resources import UNLIMITED_MEMORY_MB, Resources
from scheduler.rules.placement.executors import allocation
from scheduler.rules.placement.sizing import executor_memory_mb, sizes_to_try

if TYPE_CHECKING:
    from scheduler.model.events import ExecutorAllocated
    from scheduler.rules.entities import App
    from scheduler.rules.state import ClusterState


def pack_worker_by_worker(state: ClusterState, unsatisfied: Sequence[App]) -> list[ExecutorAllocated]:
    """What these apps get where each worker is taken in turn, and on each the apps in their order (semantics P7)."""
    apps = [_owed(state, app) for app in unsatisfied]
    if not apps:
        return []
    settings = state.settings
    least_mb = min(one.app.executor_memory_mb or settings.min_executor_memory_mb for one in apps)
    allocations: list[ExecutorAllocated] = []
    for worker, free in state.fleet.candidates(1, least_mb, settings.worker_selection):
        room = Resources(*free)
        for owed in apps:
            size = owed.share_of(room) if worker not in owed.own else None
            if size is not None:
                allocations.append(allocation(owed.app, owed.number, worker, *size))
                room = Resources(room.cores - size.cores, room.memory_mb - size.memory_mb)
                owed.take(size)
        apps = [owed for owed in apps if owed.cores > 0 and owed.executors > 0]
        if not apps:
            break
    return allocations


@dataclass(slots=True)
class _Owed:
    """What an app may still get in a pass that packs worker by worker, and the computed sizes it can get it in."""

    app: App
    cores: int
    memory_mb: int
    executors: int
    number: int
    own: set[str]
    sizes: list[Resources]

    def share_of(self, room: Resources) -> Resources | None:
        """The executor it gets where so much is free: all the cores it can have, or a computed size (semantics S4)."""
        memory_mb = self.app.executor_memory_mb
        whole = [Resources(min(self.cores, room.cores), memory_mb)] if memory_mb is not None else self.sizes
        left = Resources(self.cores, self.memory_mb)
        return next((size for size in whole if size.cores and left.covers(size) and room.covers(size)), None)

    def take(self, size: Resources) -> None:
        """Count an executor of that size."""
        self.cores -= size.cores
        self.memory_mb -= size.memory_mb
        self.executors -= 1
        self.number += 1


def _owed(state: ClusterState, app: App) -> _Owed:
    settings, fleet, left = state.settings, state.fleet, app.left_cores
    sizes = []
    bounded_mb = app.left_memory_mb
    if app.executor_memory_mb is None:
        for cores in sizes_to_try(fleet, left):
            memory_mb = executor_memory_mb(fleet, settings, cores, app.spec.memory_per_task_mb)
            if memory_mb is not None:
                sizes.append(Resources(cores, memory_mb))
    elif settings.admission == "open":
        bounded_mb = UNLIMITED_MEMORY_MB
    own = {executor.worker for executor in app.executors.values()}
    return _Owed(app, left, bounded_mb, app.left_executors, app.next_executor, own, sizes)
