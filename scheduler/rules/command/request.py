"""What a submission asks for: tasks, the cores of each, and the cores to be held at once (semantics A1, A7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from scheduler.model.errors import InvalidCommand
from scheduler.model.events import Computed, Fixed
from scheduler.model.text import counted
from scheduler.rules.checks.kinds import whole_amounts
from scheduler.rules.checks.validate import MAX_CORES, MAX_TASKS, check_range
from scheduler.rules.placement.sizing import smallest_cores

if TYPE_CHECKING:
    from scheduler.model.commands import SubmitApp
    from scheduler.model.events import ClusterConfigured, Sizing


class Asked(NamedTuple):
    """The cores to be held at once (None = unlimited), the number of tasks, and the cores of each."""

    cores: int | None
    tasks: int
    cores_per_task: int


def with_task_cores(settings: ClusterConfigured, command: SubmitApp) -> SubmitApp:
    """The submission with the cores of each task, if its few tasks need resources of further kinds (semantics A1).

    Tasks of which fewer run at once than a smallest executor has cores share these cores, so that no address is asked
    for that none of them uses. Example: one task that needs a GPU has the four cores of its executor, which has one.
    Applied when a command arrives, never by `decide`: logs hold submissions as they were carried out.
    """
    tasks, cores, least = command.tasks, command.cores, settings.min_executor_cores
    sizes = (command.executor_cores, command.executor_memory_mb, command.cores_per_task, command.elastic)
    sized = sizes != (None, None, None, None) or command.sizing not in (None, "computed") or command.prefer
    if not command.task_resources or sized or not tasks or command.executor_program or cores == "unlimited":
        return command
    at_once = min(tasks, settings.default_cores if cores is None else cores)
    alone = tasks == 1 and cores is not None and cores >= least
    if alone or not 0 < at_once <= least // 2:
        return command
    each = least // at_once
    return replace(command, cores_per_task=each, cores=None if cores is None else max(cores, each))


def with_own_size(settings: ClusterConfigured, command: SubmitApp) -> SubmitApp:
    """The submission of a `small` task with its executor's size: the task's cores, memory and kinds (A1).

    Applied when a command arrives, as `with_task_cores`. Where executors may not size themselves, where the scheduler's
    smallest executor has no more cores than the task needs, or where the app asks for anything else that says how
    executors are sized, nothing is added.
    """
    if not command.small:
        return command
    plain = replace(command, small=False)
    each = command.cores if command.cores_per_task is None else command.cores_per_task
    sizes = (
        command.executor_cores,
        command.executor_memory_mb,
        command.elastic,
        command.sizing,
        command.executor_limit,
    )
    others = command.prefer or command.driver or command.executor_program or command.executor_resources
    kinds = whole_amounts(command.task_resources)
    if command.tasks != 1 or others or kinds is None or sizes != (None,) * 5 or not isinstance(each, int) or each < 1:
        return plain
    if settings.own_sizes != "any" or not each < smallest_cores(settings, each):
        return plain
    memory_mb = command.memory_per_task_mb or settings.default_memory_per_task_mb * each
    return replace(
        plain,
        cores=each,
        cores_per_task=each,
        executor_cores=each,
        executor_memory_mb=memory_mb,
        memory_per_task_mb=None,
        task_resources={},
        executor_resources=kinds,
    )


def as_asked(settings: ClusterConfigured, command: SubmitApp) -> SubmitApp:
    """The submission with what follows from the settings when it arrives (semantics A1)."""
    return with_own_size(settings, with_task_cores(settings, command))


def asked(settings: ClusterConfigured, command: SubmitApp, sizing: Sizing) -> Asked:
    """What the command asks for under that sizing of its executors (semantics A1, A7).

    With `open` admission an app that sizes its executors keeps its cores as given: Spark's master knows no tasks, and a
    driver alone asks for no executor. A command that says nothing about tasks has as many as run at once, or none if it
    has a driver.

    Raises: InvalidCommand.
    """
    least = 0 if command.driver or command.executor_program else 1
    tasks, cores, each = command.tasks, command.cores, command.cores_per_task
    if each is not None:
        check_range("cores per task", each, 1, MAX_CORES)
    if cores == "unlimited":
        _check_unlimited(settings, command, sizing)
        check_range("tasks", tasks, least, MAX_TASKS)
        return Asked(None, tasks or 0, each or 1)
    check_range("cores", cores, least, MAX_CORES)
    if cores is None and command.driver and tasks is None and settings.admission == "open":
        cores = 0
    as_spark = settings.admission == "open" and not isinstance(sizing, Computed)
    if each is None:
        each = cores if tasks == 1 and cores and command.elastic is None and not as_spark else 1
    if each > 1:
        _check_task(settings, sizing, each)
    if not as_spark and command.elastic is None and not command.executor_program:
        cores = _at_once(settings, sizing, cores, tasks, each)
    elif cores is None:
        cores = settings.default_cores
    if 0 < cores < each:
        raise InvalidCommand(
            f"no task of {each} fits into {counted(cores, 'core')}; ask for at least {counted(each, 'core')}"
        )
    if tasks is None:
        tasks = 0 if command.driver else max(1, cores // each)
    check_range("tasks", tasks, least, MAX_TASKS)
    return Asked(cores, tasks, each)


def _at_once(settings: ClusterConfigured, sizing: Sizing, cores: int | None, tasks: int | None, each: int) -> int:
    """The cores to be held at once: those given, or the default, as far as the tasks can use them (semantics A1).

    Whole executors, if the app states its tasks or what each needs: as many as these need to run at once. Example: two
    tasks of 6 cores in executors of 8 hold 16.
    """
    if cores is not None and tasks is None and each == 1:
        return cores
    size = executor_cores(settings, sizing, each)
    if cores is None:
        cores = settings.default_cores if tasks is None else min(tasks * each, settings.default_cores)
        cores = max(cores, size if isinstance(sizing, Fixed) else each) if tasks != 0 else 0
    if tasks is None and each == 1:
        return cores
    at_once = max(1, cores // each) if cores else 0
    if tasks is not None:
        at_once = min(tasks, at_once)
        whole = -(-tasks // (size // each)) * size if isinstance(sizing, Fixed) else tasks * each
        cores = min(cores, whole)
    return max(cores, -(-at_once // (size // each)) * size)


def executor_cores(settings: ClusterConfigured, sizing: Sizing, cores_per_task: int) -> int:
    """Cores of the smallest executor under that sizing that can run a task (semantics S2, S5, A7)."""
    if isinstance(sizing, Fixed):
        return sizing.each.cores
    return smallest_cores(settings, cores_per_task) if isinstance(sizing, Computed) else cores_per_task


def _check_task(settings: ClusterConfigured, sizing: Sizing, each: int) -> None:
    """Raises: InvalidCommand if no executor of the app can run a task of so many cores (semantics A7)."""
    if isinstance(sizing, Fixed) and each > sizing.each.cores:
        raise InvalidCommand(
            f"a task of {counted(each, 'core')} does not fit into the app's executors of "
            f"{counted(sizing.each.cores, 'core')}; "
            f"state fewer --cores-per-task, or larger executors with --executor-cores {each}"
        )
    if isinstance(sizing, Computed) and each > settings.max_executor_cores:
        raise InvalidCommand(
            f"a task of {counted(each, 'core')} does not fit into the largest executor, which has "
            f"{counted(settings.max_executor_cores, 'core')}; "
            f"state --tasks and --cores-per-task, or larger executors with --executor-cores {each}"
        )


def _check_unlimited(settings: ClusterConfigured, command: SubmitApp, sizing: Sizing) -> None:
    if settings.admission != "open" or isinstance(sizing, Computed):
        raise InvalidCommand(
            "unlimited cores need the setting admission=open, and --executor-cores, --executor-memory or --sizing "
            "one-per-worker; otherwise give a number of cores"
        )
    if command.tasks is None and not command.driver:
        raise InvalidCommand("an app of unlimited cores needs a number of tasks; add --tasks N")
