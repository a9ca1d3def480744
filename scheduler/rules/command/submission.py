"""The event of a submitted app: checks of its arguments, and its request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Literal

from msgspec.structs import replace

from scheduler.model.arrays import preferences
from scheduler.model.commands import SubmitApp
from scheduler.model.errors import DuplicateApp, InvalidCommand, NeverFits, NeverMet, QuotaExceeded, TooManySizes
from scheduler.model.events import AppChanged, AppRegistered, Computed, Elastic, Fixed, OnePerWorker, Sizing
from scheduler.model.grants import IMAGE_LABEL
from scheduler.model.quota import Quota
from scheduler.model.resources import MAX_AMOUNT, NOTHING, Resources, aligned
from scheduler.model.targets import place_of
from scheduler.model.terms import TERMS
from scheduler.model.text import counted
from scheduler.rules.checks import validate
from scheduler.rules.checks.kinds import amounts_named, per_task
from scheduler.rules.checks.validate import (
    MAX_NEAR,
    RANGES,
    check_identifier,
    check_label_terms,
    check_range,
    check_taints,
    shorten,
)
from scheduler.rules.command import readiness
from scheduler.rules.command.limiting import check_submission
from scheduler.rules.command.programs import check_ends, check_gang, check_together, of_programs
from scheduler.rules.command.request import Asked, asked
from scheduler.rules.command.runtime import runtime_of, warning_of
from scheduler.rules.entities.companies import Company
from scheduler.rules.entities.labels import MOST_DEMANDS, MOST_OF_COMPANY, OF_ONE_APP, demand_of, excluded_by
from scheduler.rules.index.offers import number_of
from scheduler.rules.placement.sizing import memory_of, requested_resources, smallest_cores
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.departments import limited_above

MOST_SIZES = 64
"""How many sizes the executors of a company's apps that have not ended may have: a filling regards each (H2)."""
SPARK_MEMORY_MB = 1024
"""Default memory of an executor or a driver, as in Spark."""

_terms = attrgetter(*TERMS)
_checked = attrgetter("memory_per_task_mb", "retries", "time_limit_s", "priority", "reclaim_signal", *RANGES)
_PLAIN = SubmitApp(app="", company="", user="")
_USUAL, _UNCHECKED = _terms(_PLAIN), _checked(_PLAIN)
"""What most submissions state."""


def registration(state: ClusterState, company: Company, command: SubmitApp, at: int) -> AppRegistered:
    """The event that queues the app at `at` (ms), with its request (semantics A1, A2, S5).

    Raises: InvalidCommand, DuplicateApp, RuntimeTooLong (X1), or QuotaExceeded if the request alone is larger than the
    quota (C4).
    """
    validate.check_identifier("the app id", command.app)
    if command.app in state.apps:
        raise DuplicateApp(command.app)
    if command.user not in company.users:
        validate.check_name("the user", command.user)
    if command.kind not in ("batch", "sql"):
        raise InvalidCommand(f"the kind of an app must be batch or sql, not {command.kind[:40]!r}")
    counted = command.elastic is not None or command.executor_program or bool(command.prefer)
    sizes = not counted or (command.executor_cores, command.executor_memory_mb) != (None, None)
    if counted or command.gang:
        command = _counted(state, command)
    if _checked(command) != _UNCHECKED:
        _check_numbers(command, state.settings.max_min_runtime_s)
    sizing, driver = _sizing(command, state.kinds), _driver(command, state.kinds)
    ask = asked(state.settings, command, sizing)
    after = readiness.dependencies(state, command.company, command.after) if command.after else ()
    max_runtime_s = runtime_of(state.settings, company.spec, command)
    request = _request(state, ask, sizing, command.executor_limit)
    if driver is not None:
        request += driver
    stated = _terms(command)
    terms: dict[str, Any] = {} if stated == _USUAL else dict(zip(TERMS, stated, strict=True))
    terms |= _demanded(state, command)
    registered = AppRegistered(
        app=command.app,
        company=command.company,
        user=command.user,
        kind="batch" if command.kind == "batch" else "sql",
        cores=ask.cores,
        requested=request,
        tasks=ask.tasks,
        sizing=sizing,
        executor_limit=command.executor_limit,
        driver=driver,
        elastic=None if command.elastic is None else _bounds(command, ask, *command.elastic),
        priority=command.priority,
        after=after,
        on_hold=command.hold,
        cores_per_task=ask.cores_per_task,
        retry_backoff_s=state.settings.retry_backoff_s if command.retries else 0,
        max_runtime_s=max_runtime_s,
        warn=None if command.warn is None else warning_of(*command.warn, max_runtime_s),
        reclaim_signal=command.reclaim_signal or "",
        programs=command.executor_program,
        network=network_of(command.network),
        **terms,
    )
    if state.settings.admission == "fair":
        if state.limits.values or state.closed:
            above = limited_above(state, command.company) if state.departments else ()
            check_submission(state.limits, state.claims, above, registered, at, closed=state.closed)
        _check_purchase(company, registered, _first_unit(state, registered) if state.by_entitlement else None)
        if sizes:
            check_size(state, sizing, command.cores)
        check_sizes(state, company, sizing, ask.cores_per_task)
        _check_fits(state, registered)
        check_together(state, company, command, registered)
    return registered


def _demanded(state: ClusterState, command: SubmitApp) -> dict[str, tuple[str, ...]]:
    """What the app demands of its workers' labels, its image included (semantics P9, W12). Raises: InvalidCommand."""
    if not (command.require or command.avoid or command.tolerate or command.prefer_labels or command.image):
        return {}
    if command.image:
        check_identifier("the image of an app", command.image)
    image = (f"{IMAGE_LABEL}{command.image}",) if command.image else ()
    require = check_label_terms("--require", (*command.require, *image))
    avoid = check_label_terms("--avoid", command.avoid)
    prefer, tolerate = (
        check_label_terms("--prefer-label", command.prefer_labels),
        check_taints("an app", command.tolerate),
    )
    if both := sorted({*require, *prefer} & {*avoid}):
        raise InvalidCommand(f"no worker can have the label {shorten(both[0])} and be without it; leave one of the two")
    found = {"require": require, "avoid": avoid, "tolerate": tolerate, "prefer_labels": prefer}
    demands = {demand_of(require, avoid, tolerate), demand_of((*require, *prefer), avoid, tolerate)} - {""}
    _check_number(state, command.company, demands)
    return found


def _check_number(state: ClusterState, company: str, more: set[str]) -> None:
    """Too many demands cannot be in use; a company has a part of them that others cannot use up (semantics P9).

    Raises: InvalidCommand.
    """
    own, whole = {*state.companies[company].demands, *more}, {*state.demands.number, *more}
    part = max(OF_ONE_APP, MOST_DEMANDS // len(state.companies))
    end = "can be in use; demand what another one does, or wait for the end of some"
    if len(own) > MOST_OF_COMPANY:
        used = len(state.companies[company].demands)
        raise InvalidCommand(
            f"apps of company {company!r} that have not ended demand {used} different things of labels, of which "
            f"{MOST_OF_COMPANY} {end}"
        )
    if len(whole) > MOST_DEMANDS and len(own) > part:
        used = len(state.demands.number)
        raise InvalidCommand(
            f"apps that have not ended demand {used} different things of labels, of which {MOST_DEMANDS}, and {part} "
            f"of each company in any case, {end}"
        )


def network_of(named: str) -> Literal["", "none", "app"]:
    """What the tasks of an app find that names this network (semantics W12). Raises: InvalidCommand."""
    match named:
        case "" | "host":
            return ""
        case "none" | "app":
            return named
    raise InvalidCommand(f"the network of an app must be none, app or host, not {named[:40]!r}")


def with_preferences(command: SubmitApp) -> SubmitApp:
    """The submission with the numbers of tasks that prefer hosts, as its private part makes them (semantics L7).

    Raises: InvalidCommand if it states others, or an index that no task has.
    """
    if command.near and command.tasks is None:
        raise InvalidCommand("tasks can prefer hosts only if their number is stated; add --tasks N or --array LIST")
    preferring, by_host = preferences(command.near, command.array, command.tasks or 0)
    stated = command.preferring_tasks, command.prefer
    if stated not in ((None, {}), (preferring, by_host)):
        raise InvalidCommand("prefer and preferring_tasks of a submission follow from near; leave them out")
    return replace(command, preferring_tasks=preferring, prefer=by_host)


def with_place(command: SubmitApp) -> SubmitApp:
    """The submission with the place of whom its end is told to, as its private part makes it (I9).

    Raises: InvalidCommand if it states another one, or if that is no target.
    """
    place = place_of(command.notify) if command.notify else ""
    if command.notify_at not in ("", place):
        raise InvalidCommand("notify_at of a submission follows from notify; leave it out")
    return replace(command, notify_at=place)


def preferred(registered: AppRegistered, command: SubmitApp) -> list[AppChanged]:
    """The first demand of an app whose tasks prefer hosts (semantics L7). Raises: InvalidCommand."""
    if not command.prefer:
        return []
    if isinstance(registered.sizing, Fixed) and (registered.cores or 0) // registered.sizing.each.cores > MAX_NEAR:
        raise InvalidCommand(f"at most {MAX_NEAR} executors can have preferred hosts; ask for fewer --cores")
    elastic = registered.elastic
    return [
        AppChanged(
            app=registered.app,
            requested=registered.requested,
            sizing=registered.sizing,
            executor_limit=registered.executor_limit,
            preferring_tasks=command.preferring_tasks or 0,
            preferred_hosts=dict(sorted(command.prefer.items())),
            backlog_executors=None if elastic is None else elastic.backlog,
            next_step=1 if elastic is None else elastic.step,
        )
    ]


def _preferring(state: ClusterState, command: SubmitApp) -> SubmitApp:
    """The submission of an app whose tasks prefer hosts: its executors have one size (semantics L7).

    The default size is the minimum executor, as of an elastic app. Raises: InvalidCommand.
    """
    validate.check_preferences(command.prefer, command.preferring_tasks)
    if command.executor_program:
        raise InvalidCommand("tasks prefer hosts, and with --executor-program an app has none; use `fairlog scale`")
    if command.cores == "unlimited" or command.sizing not in (None, "fixed"):
        raise InvalidCommand(
            "hosts can be preferred only by an app of a number of cores, with executors of one size; leave out "
            "--sizing, or give --sizing fixed"
        )
    if command.task_resources:
        raise InvalidCommand("executors of an app that prefers hosts have one size; give --executor-resource instead")
    if command.elastic is not None:
        return command
    each, cores_per_task = command.executor_cores, command.cores_per_task or 1
    if each is None:
        each = smallest_cores(state.settings, cores_per_task)
    memory_mb = command.executor_memory_mb
    if memory_mb is None:
        memory_mb = memory_of(state.settings, each, command.memory_per_task_mb, max(1, each // cores_per_task))
    return replace(command, sizing="fixed", executor_cores=each, executor_memory_mb=memory_mb)


def _check_numbers(command: SubmitApp, most_min_runtime_s: int) -> None:
    if not 0 <= (command.min_runtime_s or 0) <= most_min_runtime_s:
        raise InvalidCommand(
            f"executors may state a minimum runtime of 0 to {most_min_runtime_s} s here, not "
            f"{command.min_runtime_s} s; give --min-runtime {most_min_runtime_s}s or less, or ask an operator for a "
            "larger `max_min_runtime_s`"
        )
    validate.check_terms(command)
    check_range("memory per task, in MiB,", command.memory_per_task_mb, 1, validate.MAX_MEMORY_MB)
    check_range("retries", command.retries, 0, 1000)
    check_range("the time limit, in seconds,", command.time_limit_s, 1, 10**9)
    readiness.check_priority(command.priority)
    if command.reclaim_signal is not None:
        validate.check_signal("the signal of --reclaim-signal", command.reclaim_signal)
    check_ends(command)


def check_stated_size(state: ClusterState, sizing: Fixed, demand: str) -> None:
    """Raises: InvalidCommand or NeverFits for a size of executors that is out of bounds (S5) or fits nowhere (N3)."""
    if state.settings.admission == "fair":
        check_size(state, sizing, None)
        if state.workers and state.settings.never_fits == "refuse":
            _check_fit(state, "an executor", sizing.each, demand)


def check_size(state: ClusterState, sizing: Sizing, cores: int | Literal["unlimited"] | None) -> None:
    """Raises: InvalidCommand if an executor is larger than the app, or out of the bounds that are set (semantics S5).

    `cores` are those of the whole app, as given.
    """
    settings = state.settings
    if isinstance(sizing, Fixed) and isinstance(cores, int) and not sizing.counted and sizing.each.cores > cores:
        raise InvalidCommand(
            f"an executor of {counted(sizing.each.cores, 'core')} is larger than the app, which asks for "
            f"{cores} in all; "
            "ask for more cores, or for smaller executors"
        )
    if settings.own_sizes == "any" or isinstance(sizing, Computed):
        return
    least = Resources(settings.min_executor_cores, settings.min_executor_memory_mb)
    most = Resources(settings.max_executor_cores, settings.max_executor_memory_mb)
    each = Resources(sizing.each.cores if isinstance(sizing, Fixed) else least.cores, sizing.memory_mb)
    if not each.covers(least) or not most.covers(each):
        raise InvalidCommand(f"executors must have between {least} and {most} (setting own_sizes), not {each}")


def check_sizes(state: ClusterState, company: Company, sizing: Sizing, cores_per_task: int) -> None:
    """Raises: TooManySizes if executors of the company's apps would have more sizes than they may (semantics H2)."""
    if state.by_entitlement and len(company.sizes) >= MOST_SIZES:
        size = state.claims.size(sizing, cores_per_task)
        if size not in company.sizes:
            raise TooManySizes(company.spec.company, str(size), len(company.sizes) + 1, MOST_SIZES)


def _check_fits(state: ClusterState, app: AppRegistered) -> None:
    """Raises: NeverFits if no worker, be it busy, draining or lost and still remembered, is large enough (N3).

    With no worker registered nobody is refused.
    """
    if not state.workers or state.settings.never_fits == "wait":
        return
    if app.executor_limit == 0:  # it asks for executors later (L1, L6)
        alone = state.claims.need(replace(app, driver=None), app.sizing, app.requested, None, NOTHING)
        _check_fit(state, "an executor", alone.least, alone.demand)
    need = state.claims.need(app, app.sizing, app.requested, app.executor_limit, app.driver or NOTHING)
    if need.hostable:
        return
    if need.least.cores:
        _check_fit(state, "an executor", need.least, need.demand)
    if need.driver.cores:
        _check_fit(state, "the driver", need.driver, need.demand)


def _check_fit(state: ClusterState, what: str, size: Resources, demand: str = "") -> None:
    able, known = state.offers.meeting(demand), state.offers.all()
    if any(each.offer.covers(size) for each in able):
        return
    number = number_of(known)
    if not able:
        raise NeverMet(number, excluded_by(demand, [(each.labels, each.taints, len(each.workers)) for each in known]))
    worker, nearest_offer = nearest([(each.workers[-1], each.offer) for each in able], size)
    among = number_of(able) if len(able) < len(known) else 0
    raise NeverFits(what, str(size), worker, str(nearest_offer), among=among)


def nearest(workers: Iterable[tuple[str, Resources]], size: Resources) -> tuple[str, Resources]:
    """Of these workers and what they have, the one that has most of what is missing (semantics N3)."""

    def nearness(one: tuple[str, Resources]) -> tuple[float, Resources, str]:
        worker, offer = one
        return min(min(1.0, has / asked) for has, asked in aligned(offer, size) if asked), offer, worker

    return max(workers, key=nearness)


def _request(state: ClusterState, ask: Asked, sizing: Sizing, limit: int | None) -> Resources:
    """The request for the app's executors (semantics A1, A2, S5, R3); nothing yet if its cores are unlimited (A6)."""
    cores, _, cores_per_task = ask
    if cores is None:
        return NOTHING
    if isinstance(sizing, Computed):
        return requested_resources(state.settings, cores, sizing.memory_per_task_mb, cores_per_task, sizing.per_task)
    executors = max(1, state.fleet.live)
    if isinstance(sizing, Fixed):
        if limit is not None and state.settings.admission == "fair":
            cores = min(cores, limit * sizing.each.cores)
        executors = cores // sizing.each.cores
    return Resources(cores, executors * sizing.memory_mb, (sizing.each * executors).others)


def _sizing(command: SubmitApp, kinds: Sequence[str]) -> Sizing:
    """The sizing of the app's executors: computed unless the command states a size (semantics S5, R3)."""
    cores, memory_mb, name = command.executor_cores, command.executor_memory_mb, command.sizing
    if cores is None and memory_mb is None and name in (None, "computed"):
        if command.executor_resources:
            raise InvalidCommand(
                "--executor-resource is for executors that the app sizes; add --executor-cores, or give "
                "--task-resource instead"
            )
        return Computed(
            command.memory_per_task_mb, per_task(kinds, command.task_resources) if command.task_resources else ()
        )
    if command.task_resources:
        raise InvalidCommand(
            "--task-resource is for executors that the scheduler sizes; give --executor-resource instead"
        )
    others = amounts_named(kinds, "an executor's", command.executor_resources, 1, MAX_AMOUNT)
    check_range("an executor's cores", cores, 1, validate.MAX_CORES)
    check_range("an executor's memory, in MiB,", memory_mb, 1, validate.MAX_MEMORY_MB)
    memory_mb = SPARK_MEMORY_MB if memory_mb is None else memory_mb
    match name or ("one-per-worker" if cores is None else "fixed"):
        case "fixed":
            if cores is None:
                raise InvalidCommand("fixed executors need a number of cores; add --executor-cores N")
            counted = command.elastic is not None or command.executor_program
            return Fixed(Resources(cores, memory_mb, others), counted=counted)
        case "one-per-worker":
            if cores is not None:
                raise InvalidCommand("executors of the sizing one-per-worker grow by cores; leave out --executor-cores")
            return OnePerWorker(memory_mb, others)
        case "computed":
            raise InvalidCommand(
                "the scheduler sizes computed executors; leave out --executor-cores and --executor-memory"
            )
        case other:
            raise InvalidCommand(f"the sizing must be computed, fixed or one-per-worker, not {shorten(other)}")


def _counted(state: ClusterState, command: SubmitApp) -> SubmitApp:
    """The submission of an app whose executors are of one size, as one of fixed executors (semantics L6, L7, G1)."""
    if command.gang:
        check_gang(state.settings, command)
    if command.prefer:
        command = _preferring(state, command)
    if command.executor_program:
        return of_programs(state, command)
    return command if command.elastic is None else _elastic(state, command, *command.elastic)


def _elastic(state: ClusterState, command: SubmitApp, least: int, most: int) -> SubmitApp:
    """The submission of an elastic app as one of fixed executors (semantics L6).

    The default size is the minimum executor. The app starts with MIN executors, or with one if it has tasks.
    """
    check_range("MAX of --elastic", most, 1, validate.MAX_TASKS)
    check_range("MIN of --elastic", least, 0, validate.MAX_TASKS)
    if least > most:
        raise InvalidCommand(f"--elastic {least}:{most} has its MIN above its MAX; write the smaller number first")
    if command.cores is not None or command.executor_limit is not None:
        raise InvalidCommand("--elastic sets the number of executors; leave out --cores and --max-executors")
    if command.sizing not in (None, "fixed"):
        raise InvalidCommand(
            f"executors of an elastic app have one size; its sizing must be fixed, not {shorten(command.sizing)}"
        )
    settings, cores_per_task = state.settings, command.cores_per_task or 1
    each, memory_mb = command.executor_cores, command.executor_memory_mb
    if each is None:
        each = smallest_cores(settings, cores_per_task)
    at_once = max(1, each // cores_per_task)
    if memory_mb is None:
        memory_mb = memory_of(settings, each, command.memory_per_task_mb, at_once)
    tasks = command.tasks
    if tasks is None:
        tasks = 0 if command.driver else most * at_once
    if not command.driver:
        least = min(least, -(-tasks // at_once))
    start = least or min(1, tasks)
    fixed = {"sizing": "fixed", "executor_cores": each, "executor_memory_mb": memory_mb}
    return replace(command, **fixed, cores=start * each, tasks=tasks, executor_limit=start, elastic=(least, most))


def _bounds(command: SubmitApp, ask: Asked, least: int, most: int) -> Elastic:
    """The bounds, the number of executors that the tasks need within them, and the next step (semantics L6)."""
    at_once = (command.executor_cores or 1) // ask.cores_per_task
    backlog = max(least, min(most, -(-ask.tasks // at_once)))
    return Elastic(least, most, backlog, 1)


def _driver(command: SubmitApp, kinds: Sequence[str]) -> Resources | None:
    """The request of the app's driver; None without a driver (semantics D1, R3)."""
    cores, memory_mb = command.driver_cores, command.driver_memory_mb
    if not command.driver:
        if cores is not None or memory_mb is not None or command.supervise:
            raise InvalidCommand("--driver-cores, --driver-memory and --supervise need --driver; add it")
        if command.driver_resources:
            raise InvalidCommand("--driver-resource needs --driver; add it")
        return None
    cores = 1 if cores is None else cores
    memory_mb = SPARK_MEMORY_MB if memory_mb is None else memory_mb
    check_range("the driver's cores", cores, 1, validate.MAX_CORES)
    check_range("the driver's memory, in MiB,", memory_mb, 1, validate.MAX_MEMORY_MB)
    return Resources(cores, memory_mb, amounts_named(kinds, "the driver's", command.driver_resources, 1, MAX_AMOUNT))


def _first_unit(state: ClusterState, app: AppRegistered) -> Resources:
    """An executor of the app, with its driver if it has one (semantics H5)."""
    need = state.claims.need(app, app.sizing, app.requested, app.executor_limit, app.driver or NOTHING)
    return need.unit + need.driver


def _check_department(name: str, cap: Quota, request: Resources) -> None:
    """Raises: QuotaExceeded if that alone passes the cap in amounts of a department that its company is in (H12)."""
    most = cap.whole
    for kind, amount in request.by_kind().items():
        there = most.by_kind().get(kind, 0)
        if amount > there and (kind in ("cores", "memory_mb") or kind in (cap.named or ())):
            dimension = "MiB of memory" if kind == "memory_mb" else kind
            raise QuotaExceeded(name, dimension, amount, there, department=True)


def _check_purchase(company: Company, app: AppRegistered, unit: Resources | None) -> None:
    """Raises: QuotaExceeded if the request alone is larger than the amounts that the company bought (C4, L6).

    A company that may borrow may request more, but for the least number of executors of an elastic app. By the third
    edition, if its first `unit` alone is larger than these amounts, and the company may not borrow (H1).
    """
    request = app.requested if unit is None else unit
    for each in company.above if unit is not None else ():
        if each.spec.amounts is not None and each.cap is not None:
            _check_department(each.name, each.cap, request)
    if company.spec.may_borrow:
        if unit is not None:
            return
        if app.elastic is None or not isinstance(app.sizing, Fixed):
            return
        request = app.sizing.each * app.elastic.least
    name, bought = company.spec.company, company.spec.amounts
    if bought is not None and request.cores > bought.cores:
        raise QuotaExceeded(name, "cores", request.cores, bought.cores)
    if bought is not None and request.memory_mb > bought.memory_mb:
        raise QuotaExceeded(name, "MiB of memory", request.memory_mb, bought.memory_mb)
    for kind in company.spec.kinds:
        if bought is not None and request.amount(kind) > bought.amount(kind):
            raise QuotaExceeded(name, kind, request.amount(kind), bought.amount(kind))
