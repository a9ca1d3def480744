"""How large an app's next executors are (semantics S)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.resources import Resources, round_up

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured
    from scheduler.rules.fleet import Fleet

MEMORY_STEP_MB = 256


def executor_sizes(settings: ClusterConfigured) -> list[int]:
    """The cores an executor may have, largest first: the maximum and its halves down to the minimum (semantics S2)."""
    sizes = [settings.max_executor_cores]
    while sizes[-1] > settings.min_executor_cores:
        sizes.append(sizes[-1] // 2)
    return sizes


def sizes_to_try(fleet: Fleet, left: int) -> tuple[int, ...]:
    """The executor cores to try in turn for an app with `left` cores to get (semantics S2, S4).

    From the size that the fleet's free cores and the app's size call for, by halves, down to the
    minimum executor; none while no worker is usable (S1).
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
    """Memory of an executor of `cores` cores in MiB (semantics S3).

    None where no usable worker has those cores, or where it would be larger than an executor may be;
    a minimum executor may (S4).
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
    """`cores` x `per_core_mb` raised to the minimum executor's memory, rounded up to 256 MiB (semantics S3)."""
    return round_up(max(settings.min_executor_memory_mb, per_core_mb * cores), MEMORY_STEP_MB)


def resources_as_asked(cores: int, executor_cores: int | None, executor_memory_mb: int, workers: int) -> Resources:
    """What an app holds that said what executors it wants (semantics S5): its cores, not rounded.

    The memory is that of the executors that its cores make, or of one on each of the live `workers` (at least one).
    """
    executors = cores // executor_cores if executor_cores else max(1, workers)
    return Resources(cores, executors * executor_memory_mb)


def requested_resources(settings: ClusterConfigured, cores: int, memory_per_task_mb: int | None) -> Resources:
    """What an app of `cores` cores holds from admission to removal (semantics A1, A2): 6 cores asked -> 8 held.

    The memory is that of its minimum executors, so what is granted later never exceeds it.
    """
    held = round_up(cores, settings.min_executor_cores)
    per_core = settings.default_memory_per_task_mb if memory_per_task_mb is None else memory_per_task_mb
    minimum_mb = memory_for(settings, settings.min_executor_cores, per_core)
    return Resources(held, held // settings.min_executor_cores * minimum_mb)
