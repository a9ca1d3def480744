"""Random histories: turns of steps, a step being three numbers that are read as a command to the cluster at hand.

Numbers instead of commands, so that a step can name the executors and apps that exist when it is
taken, that hypothesis can shrink a history, and that a seed makes the same one in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple, cast

from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import asdict, replace

from scheduler.model.commands import (
    AddDepartment,
    CancelTask,
    ChangeCompany,
    ChangeDepartment,
    Command,
    ConfigureCluster,
    DecommissionWorker,
    DrainWorker,
    EndApp,
    EndedDriver,
    EndedExecutor,
    ExtendApp,
    FinishApp,
    HoldApp,
    KillApp,
    KillExecutors,
    LoseOwner,
    LoseWorker,
    MoveCompany,
    RegisterCompany,
    RegisterKind,
    ReleaseApp,
    RemoveCompany,
    RemoveDepartment,
    RemoveWorker,
    ReportBacklog,
    ReprioritizeApp,
    RequeueApp,
    ScaleApp,
    SetLimit,
    SignalApp,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import Condition
from scheduler.rules.admission.app import APP_POLICIES
from scheduler.rules.admission.company import COMPANY_POLICIES
from scheduler.rules.admission.user import USER_POLICIES
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import Cluster, Watch, submission, worker


class Step(NamedTuple):
    """The action, its object and its variant; each is read modulo the number of choices."""

    what: int
    whom: int
    how: int


History = Sequence[Sequence[Step]]
Make = Callable[[ClusterState, int, int], Command]

SETTINGS: tuple[dict[str, object], ...] = (
    {"placement": "pack"},
    {"placement": "spread"},
    {"app_policy": "sql-first"},
    {"app_policy": "fifo"},
    {"spare_resources": True},
    {"occupancy": "requested"},
    {"min_executor_cores": 2, "max_executor_cores": 8, "min_executor_memory_mb": 1024},
    {"min_executor_cores": 4, "max_executor_cores": 16, "min_executor_memory_mb": 2048},
    {"min_executor_cores": 4, "max_executor_cores": 4},
    {"max_executor_memory_mb": 4096},
    {"min_executor_memory_mb": 4096},
    {"max_executor_failures": 1},
    {"retained_apps": 0},
    {"retained_apps": 3},
    {"placement": "classic-spread"},
    {"placement": "classic-pack"},
    {"executor_idle_timeout_s": 2},
    {"elastic_step_ms": 2500},
    {"locality_wait_host_ms": 0},
    {"locality_wait_host_ms": 4500, "locality_wait_rack_ms": 1000},
    {"admission": "open"},
    {"admission": "fair"},
    {"spread_out_drivers": False},
    {"spread_out_drivers": True},
    {"max_drivers": 1},
    {"max_drivers": None},
    {"worker_selection": "cores-free-desc"},
    {"worker_selection": "cores-free-asc"},
    {"worker_selection": "memory-free-desc"},
    {"worker_selection": "memory-free-asc"},
    {"worker_selection": "worker-id"},
    {"company_policy": "pay-as-you-go"},
    {"company_policy": "dominant-share"},
    {"user_policy": "least-occupied"},
    {"user_policy": "balanced"},
    {"user_policy": "longest-wait"},
    {"half_life_s": 7},
    {"half_life_s": 3600},
    {"priority_step_s": 0},
    {"priority_step_s": 2},
    {"exclude_after": 1, "exclude_s": 20},
    {"exclude_after": 2, "exclude_s": 3600},
    {"suspect_failures": 2, "suspect_s": 3, "suspect_window_s": 60},
    {"suspect_failures": None, "suspect_s": 60},
    {"default_max_runtime_s": 9, "max_max_runtime_s": 12},
    {"default_max_runtime_s": None, "max_max_runtime_s": None},
    {"min_runtime_s": 2, "reclaim_patience_s": 3},
    {"reclaim_patience_s": None},
    {"remember_lost_s": 5},
    {"never_fits": "wait"},
    {"never_fits": "refuse"},
    {"own_sizes": "within-bounds"},
    {"own_sizes": "any"},
    {"kill_grace_s": 2},
    {"spare_resources": False},
)
QUOTAS: tuple[dict[str, int | str], ...] = (
    {},
    {"part": "1/3"},
    {"part": "100%"},
    {"cores": 24, "memory_mb": 16384},
    {"cores": 64, "memory_mb": 32768},
    {"cores": 32, "memory_mb": 1 << 20},
    {"borrow": True},
    {"cores": 16, "memory_mb": 16384, "borrow": True},
    {"part": "1/4", "borrow": False},
    {"default_max_runtime_s": 7},
    {"max_max_runtime_s": 5},
)


def _submission(state: ClusterState, whom: int, how: int) -> Command:
    return submission(
        f"a{(state.head if how % 11 else 0)}",
        (8, 4, 16, 6, 1, 40, 24, 12)[how % 8],
        company=f"c{whom % 4}",
        user=f"u{whom // 4 % 3}",
        per_task_mb=(None, 512, 256, 1500, 4096)[how % 5],
        kind="sql" if whom % 5 == 0 else "batch",
    )


ASKED: tuple[dict[str, object], ...] = (
    {"executor_cores": 1, "executor_memory_mb": 512},
    {"executor_cores": 3, "executor_memory_mb": 1000},
    {"executor_cores": 8, "executor_memory_mb": 4096, "executor_limit": 2},
    {"executor_memory_mb": 1024},
    {"executor_memory_mb": 3000, "executor_limit": 1},
    {"executor_limit": 1},
    {"cores": "unlimited", "executor_cores": 2, "executor_memory_mb": 700, "tasks": 3},
    {"cores": "unlimited", "executor_memory_mb": 2048, "tasks": 3},
    {"executor_limit": 0},
    {"cores": None, "elastic": (1, 4), "tasks": 40},
    {"cores": None, "elastic": (0, 3), "tasks": 9, "executor_cores": 2},
    {"cores": None, "elastic": (2, 9), "tasks": 30, "executor_memory_mb": 1000},
    {"cores_per_task": 3, "tasks": 7},
    {"cores": 9, "cores_per_task": 3, "tasks": 9, "executor_memory_mb": 1500},
    {"cores_per_task": 6, "tasks": 4, "executor_cores": 8, "executor_memory_mb": 2000},
    {"cores": None, "elastic": (1, 5), "tasks": 12, "cores_per_task": 3},
    {"cores": None, "tasks": 2},
    {"tasks": 1},
)
PREFERENCES: tuple[dict[str, int], ...] = (
    {},
    {"w0.example": 9, "w1.example": 9},
    {"w1.example": 3, "w2.example": 20, "w5.example": 1},
    {"elsewhere": 8, "w3.example": 2},
    {"elsewhere": 7},
    {"w2.example": 0},
)
DRIVERS: tuple[dict[str, object], ...] = (
    {"driver": True},
    {"driver": True, "driver_cores": 2, "driver_memory_mb": 512, "supervise": True},
    {"driver": True, "cores": 8, "tasks": 4},
    {"driver": True, "driver_cores": 20, "cores": 4},
    {"driver": True, "cores": 6, "executor_cores": 2, "driver_memory_mb": 3000, "supervise": True},
)


PROGRAMS: tuple[dict[str, object], ...] = (
    {"executor_limit": 2, "executor_cores": 2, "executor_memory_mb": 700},
    {"executor_limit": 0, "executor_cores": 1},
    {"driver": True, "executor_command": ("true",), "cores": None},
    {"executor_limit": 3, "owner_timeout_s": 9, "grace_s": 2},
    {"cores": 9, "executor_cores": 3, "retries": 1},
)
TIMED: tuple[dict[str, object], ...] = (
    {"max_runtime_s": 3},
    {"max_runtime_s": 5, "warn": ("USR1", 2)},
    {"max_runtime_s": 8, "warn": ("TERM", 7), "driver": True, "supervise": True},
    {"max_runtime_s": 4, "cores": None, "elastic": (1, 4), "tasks": 40},
    {"max_runtime_s": 6, "executor_cores": 2, "executor_memory_mb": 700},
    {"warn": ("USR1", 2)},
)
LIMITS: tuple[tuple[str, int | None], ...] = (
    ("max_cores", 24),
    ("max_running_apps", 2),
    ("max_pending_apps", 3),
    ("max_memory_mb", 12288),
    ("max_cores", None),
    ("max_app_cores", 16),
    ("max_running_apps", None),
    ("submit_per_minute", 20),
    ("max_memory_mb", None),
    ("max_cores", 8),
    ("max_tasks", 30),
    ("max_pending_apps", None),
    ("max_app_cores", None),
    ("submit_per_minute", None),
    ("max_cores", 0),
)


def _limited(_: ClusterState, whom: int, how: int) -> Command:
    """A limit of the cluster, of a company, or of one or each of its users; more often one than none."""
    name, value = LIMITS[how % len(LIMITS)]
    scopes = ("cluster", "company", "user", "user")
    scope = scopes[whom % 4]
    company = None if scope == "cluster" else f"c{whom // 4 % 4}"
    user = (None, None, "*", f"u{whom // 16 % 3}")[whom % 4]
    return convert({"scope": scope, "name": name, "value": value, "company": company, "user": user}, SetLimit)


OWN_QUOTAS: tuple[dict[str, object], ...] = (
    {},
    {"part": "1/2"},
    {"cores": 16, "memory_mb": 16384},
    {"part": "none"},
)
BORDERS: tuple[dict[str, object], ...] = (
    {},
    {"borrow_limit": "25%"},
    {"lend_limit": "50%"},
    {"borrow_limit": "none", "lend_limit": "none"},
)
"""What departments may borrow and lend."""


def _department(state: ClusterState, whom: int, how: int) -> Command:
    """A department of four, which is in none or in another one, with another quota or other limits; or its end."""
    name, parent = f"d{whom % 4}", ("", *[f"d{number}" for number in range(4)])[whom // 4 % 5]
    if how % 8 == 7:
        used = [each.department for each in state.companies.values()]
        used += [each.spec.parent for each in state.departments.values()]
        return RemoveDepartment(department=_one_of([each for each in state.departments if each not in used], whom))
    quota = {**OWN_QUOTAS[how % len(OWN_QUOTAS)], **BORDERS[how // 8 % len(BORDERS)]}
    if name not in state.departments:
        return convert({"department": name, "parent": parent, **quota}, AddDepartment)
    return convert({"department": name, **({} if how % 3 else {"parent": parent}), **quota}, ChangeDepartment)


def _moved(state: ClusterState, whom: int, how: int) -> Command:
    """A company that is put into a department, or taken out of its one."""
    return MoveCompany(company=f"c{whom % 4}", department=_one_of([*state.departments, ""], how))


def _limited_above(state: ClusterState, whom: int, how: int) -> Command:
    """A limit of a department."""
    name, value = LIMITS[how % len(LIMITS)]
    peopled = [each.name for company in state.companies.values() for each in company.above]
    department = _one_of(peopled or list(state.departments), whom)
    return SetLimit(scope="department", name=name, value=value, department=department)


def _extended(state: ClusterState, whom: int, how: int) -> Command:
    timed = [name for name, app in state.apps.items() if app.max_runtime_s is not None and app.ended is None]
    if how % 3 == 0:
        task = (None, whom % 3)[whom % 2]
        return SignalApp(app=_one_of(list(state.waiting), whom), signal=("USR1", "KILL")[how % 2], task=task)
    if how % 7 == 1:
        return CancelTask(app=_one_of(list(state.apps), whom), task=whom % 3)
    if how % 11 == 5:
        return RequeueApp(app=_one_of(list(state.waiting), whom))
    return ExtendApp(app=_one_of(timed, whom), by_s=how % 5, beyond_maximum=how % 2 > 0)


def _as_in_spark(choices: tuple[dict[str, object], ...]) -> Make:
    """The submission of an app with Spark's options of executors, drivers and locality."""

    def make(state: ClusterState, whom: int, how: int) -> Command:
        plain = _submission(state, whom, how)
        return convert({**asdict(plain), **choices[whom * 7 % len(choices)]}, SubmitApp)

    return make


def _with_programs(state: ClusterState, whom: int, how: int) -> Command:
    plain = replace(cast("SubmitApp", _submission(state, whom, how)), memory_per_task_mb=None, executor_program=True)
    return convert({**asdict(plain), **PROGRAMS[whom * 7 % len(PROGRAMS)]}, SubmitApp)


def _program(state: ClusterState, whom: int, how: int) -> Command:
    """A demand that stops executors or states their size, or the end of an app of programs."""
    app = _one_of([name for name, app in state.apps.items() if app.spec.programs and app.ended is None], whom)
    match how % 6:
        case 0:
            return FinishApp(app=app, outcome=("finished", "failed")[whom % 2])
        case 1:
            return LoseOwner(app=app, last_seen=how)
        case 2:
            return ScaleApp(app=app, executors=whom % 5, executor_cores=1 + how % 5)
        case _:
            return ScaleApp(app=app, executors=whom % 5, stop=(f"{app}.{how % 5}", f"{app}.{whom % 3}"))


def _word_of_a_driver(state: ClusterState, whom: int, how: int) -> Command:
    code = (0, 1, None)[how % 3]
    return EndedDriver(driver=_one_of(list(state.drivers), whom), reason="failed" if code else "exited", exit_code=code)


def _killed_executors(state: ClusterState, whom: int, how: int) -> Command:
    app = _one_of(list(state.waiting), whom)
    return KillExecutors(app=app, executors=(f"{app}.{how % 5}", f"{app}.{how % 3}"))


def _in_order(state: ClusterState, whom: int, how: int) -> Command:
    """The submission of an app with a priority that waits for others or for a release."""
    plain = cast("SubmitApp", _submission(state, whom, how))
    own = [name for name, app in state.apps.items() if app.spec.company == plain.company] or ["nobody"]
    conditions: tuple[Condition, ...] = ("ok", "any", "not-ok", "began")
    first, second = conditions[how % 3], conditions[whom % 4]
    after = {first: (own[whom % len(own)],), second: (own[how % len(own)],)}
    priority = (0, 1, -1, 1000)[whom % 4]
    begin = state.at + 1000 * whom if how % 6 == 0 else None
    return replace(plain, priority=priority, after=after if how % 4 else {}, hold=how % 5 == 0, begin=begin)


def _order(state: ClusterState, whom: int, how: int) -> Command:
    app = _one_of([name for name, app in state.apps.items() if not app.admitted or how % 5 == 0], whom)
    match how % 3:
        case 0:
            return ReprioritizeApp(app=app, priority=(0, 3, -2)[whom % 3])
        case 1:
            return HoldApp(app=app)
        case _:
            return ReleaseApp(app=app)


def _scaled(state: ClusterState, whom: int, how: int) -> Command:
    prefer, preferring = PREFERENCES[(whom + how) % len(PREFERENCES)], (None, 5, 12)[how % 3]
    executors = (0, 1, 2, 5, None, 3, 8)[how % 7]
    return ScaleApp(app=_app(state, whom, how), executors=executors, prefer=prefer, preferring_tasks=preferring)


def _backlog(state: ClusterState, whom: int, how: int) -> Command:
    elastic = [name for name, executor in state.executors.items() if state.apps[executor.app].elastic]
    executor = _one_of(elastic if how % 9 else list(state.executors), whom)
    return ReportBacklog(executor=executor, waiting=how % 4 * how, running=how % 6, idle=how % 3 > 0)


def _word_of_an_executor(state: ClusterState, whom: int, how: int) -> Command:
    stopping = [name for name, executor in state.executors.items() if executor.status == "stopping"]
    executor = _one_of(stopping if stopping and how % 3 == 0 else list(state.executors), whom)
    match how % 4:
        case 0:
            return StartedExecutor(executor=executor)
        case 1:
            if how % 8 != 1:
                return EndedExecutor(executor=executor, reason="killed")
            why = "its command does not exist there" if how % 3 == 0 else ""
            return EndedExecutor(executor=executor, reason="failed", finished=how % 5 == 0, unstartable=why)
        case _:
            return EndedExecutor(executor=executor, reason="exited", done=how % 3 > 0, finished=how % 5 > 0)


def _bad_host(state: ClusterState, whom: int, how: int) -> Command:
    """The end of an executor on one of two workers, on which everything fails."""
    there = [name for name, executor in state.executors.items() if executor.worker == f"w{1 + how % 2}"]
    return EndedExecutor(executor=_one_of(there, whom), reason="failed", exit_code=1)


def _offer(_: ClusterState, whom: int, how: int) -> Command:
    offer = worker(f"w{whom % 7}", (4, 8, 16, 16, 7, 1, 32)[how % 7], (65536, 4096, 8192, 12288, 2048)[how % 5])
    labels = {"zone": ("north", "south")[how % 2]} if whom % 7 == 6 else {}
    return replace(offer, rack=("/r1", "/r2", "")[whom % 7 % 3], labels=labels)


def _tenant(kind: type[RegisterCompany | ChangeCompany]) -> Make:
    return lambda _, whom, how: convert({"company": f"c{whom % 4}", **QUOTAS[how % len(QUOTAS)]}, kind)


def _dissolved(state: ClusterState, whom: int, how: int) -> Command:
    """The removal of a company, more often than not of one without apps."""
    idle = [name for name, company in state.companies.items() if not company.apps]
    return RemoveCompany(company=_one_of(idle if how % 3 else list(state.companies), whom))


def _app(state: ClusterState, whom: int, how: int) -> str:
    return _one_of(list(state.waiting if how % 4 else state.apps), whom)


def _one_of(names: list[str], number: int) -> str:
    return names[number % len(names)] if names else "nobody"


KINDS: tuple[tuple[int, str, Make], ...] = (
    (9, "submit", _submission),
    (4, "as asked", _as_in_spark(ASKED)),
    (2, "driver", _as_in_spark(DRIVERS)),
    (2, "word of a driver", _word_of_a_driver),
    (4, "scale", _scaled),
    (6, "backlog", _backlog),
    (2, "kill executors", _killed_executors),
    (1, "decommission", lambda _, whom, __: DecommissionWorker(worker=f"w{whom % 7}")),
    (4, "worker", _offer),
    (14, "executor", _word_of_an_executor),
    (4, "bad host", _bad_host),
    (2, "company", _tenant(RegisterCompany)),
    (1, "change", _tenant(ChangeCompany)),
    (1, "dissolve", _dissolved),
    (1, "kind", lambda _, __, how: RegisterKind(kind=("gpu", "fpga")[how % 2])),
    (3, "finish", lambda state, whom, how: EndApp(app=_app(state, whom, how), reason=("failed", "finished")[how % 2])),
    (1, "kill", lambda state, whom, how: KillApp(app=_app(state, whom, how))),
    (1, "lose", lambda _, whom, how: LoseWorker(worker=f"w{whom % 7}", last_seen=how)),
    (1, "drain", lambda _, whom, how: DrainWorker(worker=f"w{whom % 7}", unwell=how % 3 == 0)),
    (1, "undrain", lambda _, whom, how: UndrainWorker(worker=f"w{whom % 7}", unwell=how % 3 == 0)),
    (2, "remove", lambda _, whom, how: RemoveWorker(worker=f"w{whom % 7}", force=how % 4 == 0)),
    (2, "timed", _as_in_spark(TIMED)),
    (1, "extend", _extended),
    (1, "limit", _limited),
    (2, "settings", lambda _, __, how: ConfigureCluster(settings=SETTINGS[how % len(SETTINGS)])),
    (4, "in order", _in_order),
    (2, "order", _order),
)
"""Weight, name, and the command for a given cluster."""

WHAT = [name for times, name, _ in KINDS for _ in range(times)]
MAKE = {name: make for _, name, make in KINDS}
LATER: tuple[Make, ...] = (_with_programs, _program)
"""Commands of steps below 0: recorded histories were drawn before there were any."""
OF_TREES: tuple[Make, ...] = (_department, _moved, _moved, _limited_above, _limited_above)
"""Commands of steps from `FIRST_OF_TREES` on, which only histories with departments have."""
FIRST_OF_TREES = 60 * len(WHAT)


def command_for(state: ClusterState, step: Step) -> Command:
    """The command of the step for this cluster; some name unknown objects and are refused."""
    if step.what >= FIRST_OF_TREES:
        make = OF_TREES[step.what % len(OF_TREES)]
    else:
        make = LATER[step.what % len(LATER)] if step.what < 0 else MAKE[WHAT[step.what % len(WHAT)]]
    return make(state, step.whom, step.how)


_WHAT = st.integers(-6, len(WHAT) - 1) | st.integers(FIRST_OF_TREES, FIRST_OF_TREES + len(OF_TREES) - 1)
STEPS = st.builds(Step, _WHAT, st.integers(0, 59), st.integers(0, 59))
BUILD_UP: History = (
    [Step(WHAT.index("company"), number, quota) for number, quota in enumerate((4, 3, 0))],
    [Step(WHAT.index("worker"), number, number) for number in range(4)],
)
"""Three companies and four workers, so that even a short history contains decisions."""
SEVEN: History = [[Step(WHAT.index("worker"), number, number)] for number in range(4, 7)]
"""Three more workers, so that one may be suspected."""


def seeded(seed: int, turns: int, *, later: bool = False, trees: bool = False) -> History:
    """The history of this many turns drawn from this seed; with `later`, a tenth of its steps are below 0.

    With `trees` turns about departments are put between those that it has without.
    """
    chance = Random(seed)
    history = [
        [
            Step(
                chance.randrange(-6 * len(WHAT) if later else 0, 60 * len(WHAT)),
                *(chance.randrange(60 * len(WHAT)) for _ in range(2)),
            )
            for _ in range(chance.randrange(1, 4))
        ]
        for _ in range(turns)
    ]
    return _with_trees(history, chance) if trees else history


def _with_trees(history: list[list[Step]], chance: Random) -> History:
    """The history with a turn about departments at its beginning, and after every third turn or so."""

    def turn(steps: int) -> list[Step]:
        kinds = [FIRST_OF_TREES + chance.randrange(len(OF_TREES)) for _ in range(steps)]
        return [Step(kind, chance.randrange(60), chance.randrange(60)) for kind in kinds]

    found = [turn(1) for _ in range(4)]
    for steps in history:
        found.append(steps)
        if chance.random() < 0.3:
            found.append(turn(1))
    return found


RULES_BY_NAME = {
    "company_policy": sorted(COMPANY_POLICIES),
    "user_policy": sorted(USER_POLICIES),
    "app_policy": sorted(APP_POLICIES),
    "placement": sorted(PLACEMENTS),
    "admission": ["fair", "open"],
}
RULES = st.fixed_dictionaries({name: st.sampled_from(each) for name, each in RULES_BY_NAME.items()})
"""All combinations of policies and placements, each for a whole history."""

TURNS = st.lists(STEPS, min_size=1, max_size=3)
SHORT = st.lists(TURNS, max_size=10)
DENSE = st.builds(seeded, st.integers(0, 1 << 32), st.integers(15, 60), later=st.booleans(), trees=st.booleans())
HISTORIES: st.SearchStrategy[History] = SHORT | DENSE
"""Short histories shrink well, dense ones reach more states."""


def played(
    history: History,
    settings: dict[str, object] | None = None,
    *,
    before: Watch = lambda _, __: None,
    each_event: bool = False,
) -> Cluster:
    """The cluster that the history makes after the build-up; `before` sees every event before it is folded."""
    cluster = Cluster(settings, before=before, each_refusal=False, each_event=each_event)
    for turn in (*BUILD_UP, *history):
        with suppress(CommandRejected):
            cluster.turn(*(command_for(cluster.state, step) for step in turn))
    cluster.check_replay()
    return cluster
