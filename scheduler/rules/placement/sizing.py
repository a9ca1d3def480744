"""Executor sizes (semantics S)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.resources import Resources, round_up

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured
    from scheduler.rules.fleet import Fleet

MEMORY_STEP_MB = 256


def executor_sizes(settings: ClusterConfigured) -> list[int]:
    """Allowed executor cores, largest first: the maximum, halved down to the minimum (semantics S2)."""
    sizes = [settings.max_executor_cores]
    while sizes[-1] > settings.min_executor_cores:
        sizes.append(sizes[-1] // 2)
    return sizes


def sizes_to_try(fleet: Fleet, left: int) -> tuple[int, ...]:
    """Executor cores to try, in order, for an app still owed `left` cores (semantics S2, S4).

    The first size depends on `left` and on the fleet's free cores; each next one is half of it, down to the minimum
    executor. Empty if no worker is usable (S1).
    """
    sizes, usable = fleet.sizes, fleet.usable
    if not usable:
        return ()
    smallest = len(sizes) - 1
    for index in range(smallest):
        if left >= usable * sizes[index] and 2 * fleet.usable_with(index) > usable:
            return sizes[index:]
    return sizes[smallest:]


def executor_memory_mb(
    fleet: Fleet, settings: ClusterConfigured, cores: int, memory_per_task_mb: int | None
) -> int | None:
    """Memory in MiB of an executor of `cores` cores (semantics S3).

    None if no usable worker has that many cores free, or if the memory would exceed `max_executor_memory_mb`. The
    latter does not apply to a minimum executor (S4).
    """
    per_core = memory_per_task_mb
    if per_core is None:
        least = fleet.least_memory_mb(cores)
        if least is None:
            return None
        per_core = 256 if least <= 256 * cores else 512
    memory_mb = memory_for(settings, cores, per_core)
    too_large = memory_mb > settings.max_executor_memory_mb and cores > settings.min_executor_cores
    return None if too_large else memory_mb


def memory_for(settings: ClusterConfigured, cores: int, per_core_mb: int) -> int:
    """`cores` x `per_core_mb`, at least a minimum executor's memory, rounded up to 256 MiB (semantics S3)."""
    return round_up(max(settings.min_executor_memory_mb, per_core_mb * cores), MEMORY_STEP_MB)


def requested_resources(settings: ClusterConfigured, cores: int, memory_per_task_mb: int | None) -> Resources:
    """Requested resources of an app of `cores` cores, from admission to removal (semantics A1, A2).

    Cores are rounded up to whole minimum executors: 6 -> 8 with a minimum of 4. The memory is that of these executors,
    so later grants never exceed it.
    """
    held = round_up(cores, settings.min_executor_cores)
    per_core = settings.default_memory_per_task_mb if memory_per_task_mb is None else memory_per_task_mb
    minimum_mb = memory_for(settings, settings.min_executor_cores, per_core)
    return Resources(held, held // settings.min_executor_cores * minimum_mb)
