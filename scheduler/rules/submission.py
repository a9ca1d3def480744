"""What a submission becomes in the log: what was asked for, checked, and what that makes the app hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from msgspec.structs import replace

from scheduler.model.commands import SubmitApp
from scheduler.model.errors import DuplicateApp, InvalidCommand, NeverFits, QuotaExceeded
from scheduler.model.events import AppRegistered, Elastic, Sizing
from scheduler.model.resources import Resources
from scheduler.rules.entities import Company
from scheduler.rules.placement.sizing import memory_for, requested_resources, resources_as_asked
from scheduler.rules.state import ClusterState
from scheduler.rules.validate import (
    MAX_CORES,
    MAX_EXECUTORS,
    MAX_MEMORY_MB,
    MAX_TASKS,
    check_identifier,
    check_name,
    check_range,
    shorten,
)

SPARK_MEMORY_MB = 1024
"""Memory of an executor or a driver that says nothing of it, as in Spark."""
SPARK_DRIVER_CORES = 1


def registration(state: ClusterState, company: Company, command: SubmitApp) -> AppRegistered:
    """The app as it is queued, under what it will hold (semantics A1, A2, S5).

    Raises: InvalidCommand, DuplicateApp, or QuotaExceeded if it is larger than what its company bought (C4).
    """
    check_identifier("the app id", command.app)
    if command.app in state.apps:
        raise DuplicateApp(command.app)
    if command.user not in company.users:
        check_name("the user", command.user)
    if command.kind not in ("batch", "sql"):
        raise InvalidCommand(f"the kind of an app must be batch or sql, not {command.kind[:40]!r}")
    if command.elastic is not None:
        command = _elastic(state, command)
    more = _more(state, command) if _says_more(command) else _NOTHING_MORE
    cores, tasks = _cores_and_tasks(state, command)
    if command.elastic is not None:
        more["elastic"] = _bounds(command, tasks)
    if command.memory_per_task_mb is not None:
        check_range("memory per task, in MiB,", command.memory_per_task_mb, 1, MAX_MEMORY_MB)
    check_range("retries", command.retries, 0, 1000)
    if command.time_limit_s is not None:
        check_range("the time limit, in seconds,", command.time_limit_s, 1, 10**9)
    each, limit = more["executor_cores"], more["executor_limit"]
    bounded = cores if each is None or limit is None else min(cores, limit * each)
    request = request_of(
        state,
        cores=bounded,
        memory_per_task_mb=command.memory_per_task_mb,
        executor_cores=more["executor_cores"],
        executor_memory_mb=more["executor_memory_mb"],
        driver_cores=more["driver_cores"],
        driver_memory_mb=more["driver_memory_mb"],
        unlimited=more["unlimited"],
    )
    if state.settings.admission == "fair":
        if not company.spec.may_borrow:
            check_purchase(company, request.cores, request.memory_mb)
        elif command.elastic is not None:
            least = max(1, more["elastic"].least if more["elastic"] else 0)
            check_purchase(company, least * (command.executor_cores or 0), least * (command.executor_memory_mb or 0))
    registered = AppRegistered(
        app=command.app,
        company=command.company,
        user=command.user,
        kind="batch" if command.kind == "batch" else "sql",
        cores=cores,
        requested_cores=request.cores,
        memory_per_task_mb=command.memory_per_task_mb,
        requested_memory_mb=request.memory_mb,
        tasks=tasks,
        retries=command.retries,
        time_limit_s=command.time_limit_s,
        **more,
    )
    if state.settings.never_fits == "refuse" and state.settings.admission == "fair":
        _check_fits(state, registered)
    return registered


def _check_fits(state: ClusterState, app: AppRegistered) -> None:
    """Raises: NeverFits if no worker, be it busy, draining or lost and still remembered, is large enough (N3)."""
    if not state.offers:
        return
    if app.sizing == "computed":
        executor = state.claims.smallest(app)[1]
    else:
        executor = Resources(app.executor_cores or 1, app.executor_memory_mb or 0)
    driver = Resources(app.driver_cores, app.driver_memory_mb)
    asks = app.requested_cores - driver.cores >= executor.cores and app.executor_limit != 0
    for what, size in (("an executor", executor), ("the driver", driver)):
        if (asks if what == "an executor" else app.driver) and not any(offer.covers(size) for offer in state.offers):
            worker, offer = nearest(((worker.id, worker.offer) for worker in state.known_workers()), size)
            raise NeverFits(what, str(size), worker, str(offer))


def nearest(workers: Iterable[tuple[str, Resources]], size: Resources) -> tuple[str, Resources]:
    """Of these workers and what they have, the one that has most of what is missing (semantics N3)."""

    def nearness(one: tuple[str, Resources]) -> tuple[float, Resources, str]:
        return min(min(1.0, has / asked) for has, asked in zip(one[1], size, strict=False) if asked), one[1], one[0]

    return max(workers, key=nearness)


class _More(TypedDict):
    """What of `AppRegistered` only an app states that asks for executors of its own kind, or for a driver."""

    sizing: Sizing
    executor_cores: int | None
    executor_memory_mb: int | None
    executor_limit: int | None
    driver: bool
    driver_cores: int
    driver_memory_mb: int
    supervise: bool
    unlimited: bool
    elastic: Elastic | None


_NOTHING_MORE: _More = {
    "sizing": "computed",
    "executor_cores": None,
    "executor_memory_mb": None,
    "executor_limit": None,
    "driver": False,
    "driver_cores": 0,
    "driver_memory_mb": 0,
    "supervise": False,
    "unlimited": False,
    "elastic": None,
}


def _says_more(command: SubmitApp) -> bool:
    said = (
        command.sizing,
        command.executor_cores,
        command.executor_memory_mb,
        command.executor_limit,
        command.driver_cores,
        command.driver_memory_mb,
        command.elastic,
    )
    return command.cores == "unlimited" or command.driver or command.supervise or said.count(None) < len(said)


def _more(state: ClusterState, command: SubmitApp) -> _More:
    _check_executors(command)
    sizing = _sizing(command)
    unlimited = command.cores == "unlimited"
    if unlimited:
        _check_unlimited(state, command, sizing)
    memory_mb = SPARK_MEMORY_MB if command.executor_memory_mb is None else command.executor_memory_mb
    driver = _driver(command)
    return {
        "sizing": sizing,
        "executor_cores": command.executor_cores,
        "executor_memory_mb": None if sizing == "computed" else memory_mb,
        "executor_limit": command.executor_limit,
        "driver": command.driver,
        "driver_cores": driver.cores,
        "driver_memory_mb": driver.memory_mb,
        "supervise": command.supervise,
        "unlimited": unlimited,
        "elastic": None,
    }


def request_of(
    state: ClusterState,
    *,
    cores: int,
    memory_per_task_mb: int | None,
    executor_cores: int | None,
    executor_memory_mb: int | None,
    driver_cores: int,
    driver_memory_mb: int,
    unlimited: bool,
) -> Resources:
    """What an app holds that asks for that: its executors (semantics A1, A2, S5; unlimited: none yet), its driver."""
    if unlimited:
        held = Resources(0, 0)
    elif executor_memory_mb is None:
        held = requested_resources(state.settings, cores, memory_per_task_mb)
    else:
        held = resources_as_asked(cores, executor_cores, executor_memory_mb, state.fleet.live)
    return Resources(held.cores + driver_cores, held.memory_mb + driver_memory_mb) if driver_cores else held


def _cores_and_tasks(state: ClusterState, command: SubmitApp) -> tuple[int, int]:
    """How many tasks run at once (semantics A1), and how many there are.

    There are as many, but none beside a driver unless it says so.
    """
    least = 0 if command.driver else 1
    cores, tasks = command.cores, command.tasks
    if cores is None:
        cores = 0 if command.driver and not tasks else state.settings.default_cores
    elif cores == "unlimited":
        cores = 0
    else:
        check_range("cores", cores, least, MAX_CORES)
    if tasks is None:
        tasks = 0 if command.driver else cores
    check_range("tasks", tasks, least, MAX_TASKS)
    return cores, tasks


def _sizing(command: SubmitApp) -> Sizing:
    """Who says how large the app's executors are; what says nothing leaves it to the scheduler (semantics S5)."""
    cores, memory_mb = command.executor_cores, command.executor_memory_mb
    match command.sizing:
        case None:
            return "fixed" if cores is not None else "computed" if memory_mb is None else "one-per-worker"
        case "fixed":
            if cores is None:
                raise InvalidCommand("fixed executors need a number of cores; add --executor-cores N")
            return "fixed"
        case "one-per-worker":
            if cores is not None:
                raise InvalidCommand("executors of the sizing one-per-worker grow by cores; leave out --executor-cores")
            return "one-per-worker"
        case "computed":
            if cores is not None or memory_mb is not None:
                raise InvalidCommand(
                    "the scheduler sizes computed executors; leave out --executor-cores and --executor-memory"
                )
            return "computed"
        case other:
            raise InvalidCommand(f"the sizing must be computed, fixed or one-per-worker, not {shorten(other)}")


def _check_executors(command: SubmitApp) -> None:
    if command.executor_cores is not None:
        check_range("an executor's cores", command.executor_cores, 1, MAX_CORES)
    if command.executor_memory_mb is not None:
        check_range("an executor's memory, in MiB,", command.executor_memory_mb, 1, MAX_MEMORY_MB)
    if command.executor_limit is not None:
        check_range("the maximum number of executors", command.executor_limit, 0, MAX_EXECUTORS)


def _elastic(state: ClusterState, command: SubmitApp) -> SubmitApp:
    """The submission of an elastic app as one of fixed executors that starts with few of them (semantics L6).

    Their size is the minimum executor's, unless it is given. It starts with the least number, or with one
    if there is anything to do.
    """
    least, most = command.elastic or (0, 0)
    check_range("MAX of --elastic", most, 1, MAX_TASKS)
    check_range("MIN of --elastic", least, 0, most)
    if command.cores is not None or command.executor_limit is not None:
        raise InvalidCommand("--elastic sets the number of executors; leave out --cores and --max-executors")
    if command.sizing not in (None, "fixed"):
        raise InvalidCommand(
            f"executors of an elastic app have one size; its sizing must be fixed, not {shorten(command.sizing)}"
        )
    settings, per_core_mb = state.settings, command.memory_per_task_mb
    each = settings.min_executor_cores if command.executor_cores is None else command.executor_cores
    memory_mb = command.executor_memory_mb
    if memory_mb is None:
        memory_mb = memory_for(settings, each, per_core_mb or settings.default_memory_per_task_mb)
    tasks = command.tasks
    if tasks is None:
        tasks = 0 if command.driver else most * each
    if not command.driver:
        least = min(least, -(-tasks // each))
    start = least or min(1, tasks)
    fixed = {"sizing": "fixed", "executor_cores": each, "executor_memory_mb": memory_mb}
    return replace(command, **fixed, cores=start * each, tasks=tasks, executor_limit=start, elastic=(least, most))


def _bounds(command: SubmitApp, tasks: int) -> Elastic:
    """The app's bounds, how many executors its tasks call for within them, and how many more it asks for next (L6)."""
    least, most = command.elastic or (0, 0)
    backlog = max(least, min(most, -(-tasks // (command.executor_cores or 1))))
    return Elastic(least, most, backlog, 1)


def _check_unlimited(state: ClusterState, command: SubmitApp, sizing: Sizing) -> None:
    if state.settings.admission != "open" or sizing == "computed":
        raise InvalidCommand(
            "cores can be unlimited only where admission is open, and for an app that fixes its executors or has one "
            "per worker; give a number of cores"
        )
    if command.tasks is None and not command.driver:
        raise InvalidCommand("an app of unlimited cores has to say how many tasks it has")


def _driver(command: SubmitApp) -> Resources:
    """What the app's driver is granted, nothing if it has none (semantics D1)."""
    cores, memory_mb = command.driver_cores, command.driver_memory_mb
    if not command.driver:
        if cores is not None or memory_mb is not None or command.supervise:
            raise InvalidCommand("--driver-cores, --driver-memory and --supervise need --driver; add it")
        return Resources(0, 0)
    cores = SPARK_DRIVER_CORES if cores is None else cores
    memory_mb = SPARK_MEMORY_MB if memory_mb is None else memory_mb
    check_range("the driver's cores", cores, 1, MAX_CORES)
    check_range("the driver's memory, in MiB,", memory_mb, 1, MAX_MEMORY_MB)
    return Resources(cores, memory_mb)


def check_purchase(company: Company, cores: int, memory_mb: int) -> None:
    """Raises: QuotaExceeded if the request alone is larger than the amounts that the company bought (semantics C4)."""
    name, bought = company.spec.company, company.spec.amounts
    if bought is not None and cores > bought.cores:
        raise QuotaExceeded(name, "cores", cores, bought.cores)
    if bought is not None and memory_mb > bought.memory_mb:
        raise QuotaExceeded(name, "MiB of memory", memory_mb, bought.memory_mb)
