"""Executor sizes (semantics S)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.resources import Resources

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured, PerTask
    from scheduler.model.resources import Amounts
    from scheduler.rules.entities.apps import Need
    from scheduler.rules.entities.fleet import Fleet

MEMORY_STEP_MB = 256
LEAST_MB_PER_CORE, MOST_MB_PER_CORE = 256, 512
"""The memory a core that S3 gives an executor of an app that stated none."""


def round_up(amount: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `amount`."""
    return -(-amount // multiple) * multiple


def executor_sizes(settings: ClusterConfigured) -> list[int]:
    """Allowed executor cores, largest first: the maximum, halved down to the minimum (semantics S2)."""
    sizes = [settings.max_executor_cores]
    while sizes[-1] > settings.min_executor_cores:
        sizes.append(sizes[-1] // 2)
    return sizes


def smallest_cores(settings: ClusterConfigured, cores_per_task: int) -> int:
    """Cores of the smallest executor that can run a task: the minimum, doubled as often as needed (semantics A7)."""
    cores = settings.min_executor_cores
    while cores < cores_per_task:
        cores *= 2
    return cores


def sizes_to_try(fleet: Fleet, settings: ClusterConfigured, left: int, cores_per_task: int = 1) -> tuple[int, ...]:
    """Executor cores to try, in order, for an app still owed `left` cores (semantics S2, S4, A7).

    The first size depends on `left` and on the fleet's free cores; each next one is half of it, down to the smallest
    executor that can run a task. Empty if no worker is usable (S2).
    """
    sizes, usable = fleet.sizes, fleet.usable
    if not usable:
        return ()
    if cores_per_task > sizes[-1]:
        least = smallest_cores(settings, cores_per_task)
        sizes = (*[size for size in sizes if size > least], least)
    smallest = len(sizes) - 1
    for index in range(smallest):
        if left >= usable * sizes[index] and 2 * fleet.usable_with(index) > usable:
            return sizes[index:]
    return sizes[smallest:]


def executor_memory_mb(
    fleet: Fleet, settings: ClusterConfigured, cores: int, memory_per_task_mb: int | None, cores_per_task: int = 1
) -> int | None:
    """Memory in MiB of an executor of `cores` cores, for the tasks it runs at once (semantics S3, A7).

    None if no usable worker has that many cores free, or if the memory would exceed `max_executor_memory_mb`. The
    latter does not apply to the smallest executor of the app (S4).
    """
    if memory_per_task_mb is None:
        per_core = mb_per_core(fleet, cores)
        if per_core is None:
            return None
        memory_mb = memory_for(settings, cores, per_core)
    else:
        memory_mb = memory_for(settings, cores // cores_per_task, memory_per_task_mb)
    if memory_mb <= settings.max_executor_memory_mb or cores == smallest_cores(settings, cores_per_task):
        return memory_mb
    return None


def size_now(fleet: Fleet, need: Need) -> Resources:
    """The smallest executor that placement tries now: the workers' free memory sizes one that states none (S3)."""
    least = need.least
    if least == need.executor:
        return least
    return least if mb_per_core(fleet, least.cores) == LEAST_MB_PER_CORE else need.executor


def mb_per_core(fleet: Fleet, cores: int) -> int | None:
    """Memory in MiB a core of an executor of that many cores whose app stated none (semantics S3).

    None if no usable worker has that many cores free.
    """
    free_mb = fleet.least_memory_mb(cores)
    if free_mb is None:
        return None
    return LEAST_MB_PER_CORE if free_mb <= LEAST_MB_PER_CORE * cores else MOST_MB_PER_CORE


def memory_for(settings: ClusterConfigured, number: int, each_mb: int) -> int:
    """`number` x `each_mb`, at least a minimum executor's memory, rounded up to 256 MiB (semantics S3)."""
    return round_up(max(settings.min_executor_memory_mb, number * each_mb), MEMORY_STEP_MB)


def memory_of(settings: ClusterConfigured, cores: int, memory_per_task_mb: int | None, at_once: int) -> int:
    """Memory in MiB of an executor of that many cores and tasks at once, without regard to the workers (semantics A2).

    It is counted per core, by `default_memory_per_task_mb`, if none was given per task (A7).
    """
    if memory_per_task_mb is None:
        return memory_for(settings, cores, settings.default_memory_per_task_mb)
    return memory_for(settings, at_once, memory_per_task_mb)


def requested_resources(
    settings: ClusterConfigured,
    cores: int,
    memory_per_task_mb: int | None,
    cores_per_task: int = 1,
    per_task: PerTask = (),
) -> Resources:
    """Requested resources of an app of `cores` cores, from admission to removal (semantics A1, A2, R3).

    Cores are rounded up to whole smallest executors: 6 -> 8 with a minimum of 4. Memory and further kinds are those of
    these executors, so later grants never exceed them.
    """
    least = smallest_cores(settings, cores_per_task)
    at_once = least // cores_per_task
    executors, memory_mb = -(-cores // least), memory_of(settings, least, memory_per_task_mb, at_once)
    if not per_task:
        return Resources(executors * least, executors * memory_mb)
    return Resources(least, memory_mb, for_tasks(per_task, at_once)) * executors


def for_tasks(per_task: PerTask, tasks: int) -> Amounts:
    """What an executor that runs that many tasks at once gets of each kind (semantics R3).

    Example, 1/4 gpu a task: an executor of 4 tasks gets 1, one of 5 tasks 2.
    """
    return tuple((kind, -(-tasks * numerator // denominator)) for kind, numerator, denominator in per_task)
