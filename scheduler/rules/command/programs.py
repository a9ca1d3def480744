"""Apps whose executors run a program of their own: submission, size, and their owners (semantics G).

Like `decide`, these functions read the state and return events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from scheduler.model.errors import InvalidCommand, NeverTogether
from scheduler.model.events import AppRemoved, Event, Fixed
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Amounts, Resources
from scheduler.model.text import MAX_DETAIL, counted
from scheduler.rules.checks import validate
from scheduler.rules.checks.validate import check_range, read_limit, shorten
from scheduler.rules.entities.labels import demand_of
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.placement.sizing import memory_of

if TYPE_CHECKING:
    from scheduler.model.commands import FinishApp, LoseOwner, SubmitApp
    from scheduler.model.events import AppRegistered, ClusterConfigured
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.companies import Company
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.state.cluster import ClusterState

_OF_TASKS = {
    "array": "--array",
    "tasks": "--tasks",
    "cores_per_task": "--cores-per-task",
    "memory_per_task_mb": "--memory-per-task",
    "retries": "--retries",
    "time_limit_s": "--time-limit",
    "task_resources": "--task-resource",
    "elastic": "--elastic",
}
"""What a submission says about tasks, which an app of programs has none of -> its option."""


def of_programs(state: ClusterState, command: SubmitApp) -> SubmitApp:
    """The submission of an app whose executors run a program, as one of fixed executors (semantics G1).

    The default size is the minimum executor. The demand is `executor_limit`, else what `cores` make, else one executor,
    or none beside a driver. Raises: InvalidCommand.
    """
    for name, option in _OF_TASKS.items():
        if getattr(command, name):
            raise InvalidCommand(f"executors that run a program take no tasks; leave out {option}")
    if command.sizing not in (None, "fixed"):
        raise InvalidCommand(
            f"executors that run a program have one size; their sizing must be fixed, not {shorten(command.sizing)}"
        )
    if command.cores == "unlimited":
        raise InvalidCommand("executors that run a program are a stated number; give --executors instead of --cores")
    each, memory_mb = command.executor_cores, command.executor_memory_mb
    if each is None:
        each = state.settings.min_executor_cores
        memory_mb = memory_of(state.settings, each, None, 1) if memory_mb is None else memory_mb
    check_range("an executor's cores", each, 1, validate.MAX_CORES)
    number = command.executor_limit
    if number is None and command.cores is not None:
        check_range("cores", command.cores, 0 if command.driver else 1, validate.MAX_CORES)
        if 0 < command.cores < each:
            raise InvalidCommand(
                f"an executor of {counted(each, 'core')} is larger than the app, which asks for "
                f"{command.cores} in all; ask for "
                "more cores, or for smaller executors with --executor-cores"
            )
        number = command.cores // each
    elif number is None:
        number = 0 if command.driver else 1
    check_range("the number of executors", number, 0, validate.MAX_CORES // each)
    return replace(
        command,
        sizing="fixed",
        executor_cores=each,
        executor_memory_mb=memory_mb,
        cores=number * each,
        tasks=0,
        executor_limit=number,
    )


def check_programs(command: SubmitApp) -> None:
    """Raises: InvalidCommand unless what the executors of the app run is stated once (semantics G1).

    Checked when the command arrives, never by `decide`: what they run is private.
    """
    own, beside = bool(command.executor_command), command.executor_program and command.driver
    if own and not beside:
        raise InvalidCommand(
            "a command of its own for executors needs --executor-program and --driver; without a driver, CMD is what "
            "the executors run"
        )
    if beside and not own and not command.gang:  # a gang has no driver in any case
        raise InvalidCommand("beside a driver, executors run a command of their own; add --executor-command CMD")


def check_ends(command: SubmitApp) -> None:
    """Raises: InvalidCommand for an end by an owner beside a driver (G4), or by failures of tasks (W5)."""
    if command.owner_timeout_s is not None and command.driver:
        raise InvalidCommand("an app with a driver ends with its driver; leave out --owner-timeout")
    if command.max_failures is not None and not command.executor_program:
        raise InvalidCommand("failures are counted of executors that run a program; tasks have --retries")


def check_gang(settings: ClusterConfigured, command: SubmitApp) -> None:
    """Raises: InvalidCommand unless the submission of a gang says how many programs it has, and may be decided so."""
    if not command.executor_program:
        raise InvalidCommand("a gang is executors that run a program; add --executor-program, and --executors N")
    if command.driver:
        raise InvalidCommand("an app with a driver is no gang, since its driver starts first; leave out --gang")
    if command.owner_timeout_s is not None:
        raise InvalidCommand("an app with an owner gets executors as that asks for them; leave out --gang")
    if command.executor_limit == 0 or (command.executor_limit is None and command.cores is None):
        raise InvalidCommand("a gang has a number of executors from the start; give --executors N, one or more")
    if (why := hindered(settings)) is not None:
        raise InvalidCommand(f"there are no gangs here, since {why}; leave out --gang")


def hindered(settings: ClusterConfigured) -> str | None:
    """Why there are no gangs under these settings; None if there are."""
    if settings.admission == "open":
        return "executors come one by one with the setting admission=open"
    if PLACEMENTS[settings.placement].one_a_worker:
        return f"an app has one executor a worker with the setting placement={settings.placement}"
    return None


def check_settings(apps: Iterable[App], settings: ClusterConfigured) -> None:
    """Raises: InvalidCommand if there are no gangs under these settings, and one has not ended."""
    why = hindered(settings)
    if why is None:
        return
    for app in apps:
        if app.spec.gang and app.ended is None:
            raise InvalidCommand(
                f"app {app.id!r} is a gang, and {why}; change it once that has ended, or `fairlog kill {app.id}` first"
            )


def check_together(state: ClusterState, company: Company, command: SubmitApp, app: AppRegistered) -> None:
    """Raises: NeverTogether if all programs of the app can never run at once (semantics N3), InvalidCommand.

    Counted are the workers of N3, as if they were empty, the quota of a company that may not borrow, and the caps of
    departments with a quota of their own that it is in (H12).
    """
    if not (command.all_at_once or command.gang):
        return
    sizing, number = app.sizing, app.executor_limit or 0
    if not app.programs or not isinstance(sizing, Fixed):
        raise InvalidCommand("only executors that run a program can be needed at once; add --executor-program")
    if not state.workers or state.settings.never_fits == "wait":
        return
    able = state.offers.meeting(demand_of(app.require, app.avoid, app.tolerate))
    most = sum([each.offer.holds(sizing.each) * len(each.workers) for each in able])
    if number > most:
        raise NeverTogether(number, str(sizing.each), "the cluster, were it empty,", most, gang=command.gang)
    offered = sum([each.offer * len(each.workers) for each in state.offers.all()], NOTHING)
    for whose, bound in _bounds(company, offered):
        most = bound.holds(sizing.each)
        if number > most:
            raise NeverTogether(number, str(sizing.each), whose, most, gang=command.gang)


def _bounds(company: Company, offered: Resources) -> list[tuple[str, Quota]]:
    """The quota of a company that may not borrow, and the caps of departments, of a cluster that offers so much.

    What is theirs by default or a sum, which changes with others, is left out.
    """
    found, spec = [], company.spec
    if not spec.may_borrow and (bought := _stated(spec.amounts, spec.part, spec.kinds, offered)) is not None:
        found.append((f"the quota of company {spec.company!r}", bought))
    for each in company.above:
        quota = _stated(each.spec.amounts, each.spec.part, each.spec.kinds, offered)
        if quota is not None and each.spec.borrow_limit is not None:
            numerator, denominator = read_limit(each.spec.borrow_limit)
            cap = quota.times(numerator + denominator, denominator)
            found.append((f"the cap of department {each.name!r}", cap))
    return found


def _stated(amounts: Resources | None, part: str | None, kinds: tuple[str, ...], offered: Resources) -> Quota | None:
    """A quota of amounts, or a part of what is offered; None without either."""
    if amounts is not None:
        return Quota(amounts, named=kinds)
    return None if part is None else Quota(offered, 1).times(*read_limit(part))


def resized(app: App, sizing: Fixed, cores: int | None, memory_mb: int | None, others: Amounts | None) -> Fixed:
    """The size of the app's executors as it is stated anew, until the first is granted (semantics G1).

    What is None stays. Raises: InvalidCommand.
    """
    check_range("an executor's cores", cores, 1, validate.MAX_CORES)
    check_range("an executor's memory, in MiB,", memory_mb, 1, validate.MAX_MEMORY_MB)
    known = sizing.each
    each = Resources(
        known.cores if cores is None else cores,
        known.memory_mb if memory_mb is None else memory_mb,
        known.others if others is None else others,
    )
    if each == known:
        return sizing
    if app.next_executor:
        raise InvalidCommand(
            f"the executors of app {app.id!r} have {known}; their size can be stated until the first is granted"
        )
    return Fixed(each, counted=sizing.counted)


def finished(app: App, command: FinishApp) -> list[Event]:
    """The end of an app by its owner (semantics G4). Raises: InvalidCommand."""
    if not app.spec.programs or app.spec.driver is not None:
        ends = "driver" if app.spec.driver is not None else "tasks"
        raise InvalidCommand(f"app {command.app!r} ends with its {ends}; `fairlog kill {command.app}` ends it earlier")
    if len(command.detail) > MAX_DETAIL or not command.detail.isprintable():
        raise InvalidCommand(f"a detail must be at most {MAX_DETAIL} printable characters on one line")
    return [AppRemoved(app=command.app, reason=command.outcome, detail=command.detail)]


def lost_for_good(app: App, worker: Worker) -> AppRemoved | None:
    """The end of a gang that states its failures and may not be put back, an executor of which was lost (G8)."""
    if not app.spec.gang or app.spec.max_failures is None or not app.spec.no_requeue:
        return None
    return AppRemoved(app=app.id, reason="failed", detail=f"its executor was lost with worker {worker.id}")


def abandoned(app: App, command: LoseOwner) -> list[Event]:
    """The end of an app whose owner gave no sign of life for the time that it stated (semantics G4)."""
    if app.spec.owner_timeout_s is None:
        raise InvalidCommand(f"app {command.app!r} has no owner outside the cluster")
    check_range("when the owner was seen last, in ms,", command.last_seen, 0, validate.MAX_MOMENT)
    if app.ended is not None or app.expired_at:
        return []
    detail = f"its owner gave no sign of life for {app.spec.owner_timeout_s} s"
    return [AppRemoved(app=command.app, reason="failed", detail=detail)]
