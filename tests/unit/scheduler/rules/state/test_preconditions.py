"""An event that contradicts the state is refused, with its position and its rule, before anything is changed."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pytest
from msgspec.structs import replace

from recovery.replay import rebuild
from scheduler.model.errors import InvariantViolated
from scheduler.model.events import (
    EVENT_TYPES,
    AccountAdded,
    AccountChanged,
    AccountRemoved,
    AppChanged,
    AppDelayed,
    AppDue,
    AppExpired,
    AppExtended,
    AppHeld,
    AppReady,
    AppRegistered,
    AppReleased,
    AppRemoved,
    AppReprioritized,
    AppRequeued,
    AppSignalled,
    AppsShown,
    AppWarned,
    ClusterConfigured,
    CommandRefused,
    CompanyChanged,
    CompanyMoved,
    CompanyRegistered,
    CompanyRemoved,
    Computed,
    DepartmentAdded,
    DepartmentChanged,
    DepartmentRemoved,
    Dependency,
    DriverAllocated,
    DriverRemoved,
    EditionChanged,
    Elastic,
    Event,
    ExecutorAllocated,
    ExecutorChanged,
    ExecutorRemoved,
    ExecutorRevoked,
    ExecutorsRequested,
    Fixed,
    HoldEnded,
    KeyChanged,
    KindRegistered,
    LimitSet,
    Locations,
    LogAccepted,
    LogRestored,
    LogSealed,
    LostWorkersForgotten,
    MasterElected,
    NeedBegan,
    NeedEnded,
    OnePerWorker,
    RefusalsOmitted,
    ReservationLapsed,
    RevocationWithdrawn,
    RoleGranted,
    RoleRevoked,
    RoomHeld,
    RoomReserved,
    Shares,
    SlotAwaited,
    SlotBegan,
    SlotEnded,
    TargetEnded,
    TargetSet,
    TaskCancelled,
    TaskRequeued,
    TokenIssued,
    TokenRevoked,
    Wanted,
    Warn,
    WindowAdded,
    WindowRemoved,
    WorkerChanged,
    WorkerCleared,
    WorkerLabelled,
    WorkerProbed,
    WorkerRegistered,
    WorkerRemoved,
    WorkerStatus,
    WorkerSuspected,
)
from scheduler.model.resources import Resources
from scheduler.rules.state.cluster import FOLDS
from scheduler.rules.state.preconditions import PRECONDITIONS
from scheduler.store.codec import Fact
from tests.property.given import ACME, entered, fold, granted, joined, queued


def changed(worker: str, status: WorkerStatus, cores: int = 16, memory_mb: int = 65536) -> WorkerChanged:
    return WorkerChanged(worker=worker, status=status, offer=Resources(cores, memory_mb))


def windowed(status: WorkerStatus) -> WorkerChanged:
    return replace(changed("w1", status), window="x1")


def window(**fields: object) -> WindowAdded:
    return replace(WindowAdded(window="x1", workers=("w1",), begin=100, end=200, notice_s=9), **fields)


def gang(number: int = 2) -> AppRegistered:
    """The event of a gang of so many executors of one core."""
    sizing = Fixed(Resources(1, 1024), counted=True)
    about = {"sizing": sizing, "executor_limit": number, "programs": True, "gang": True, "tasks": 0}
    return replace(queued("n1", number, memory_mb=1024 * number), **about)


def leaves_before(**fields: object) -> ExecutorRevoked:
    told = ExecutorRevoked(app="a1", executor="a1.0", worker="w1", reason="reclaimed", deadline=90, window="x1")
    return replace(told, **fields)


def ended(executor: str = "a1.0", app: str = "a1", worker: str = "w1", *, done: bool = False) -> ExecutorRemoved:
    return ExecutorRemoved(app=app, executor=executor, worker=worker, reason="exited", done=done)


def demanded(app: str = "a1", cores: int = 12, memory_mb: int = 6144, **fields: object) -> AppChanged:
    sizing = FIXED.sizing if app == "f1" else Computed(512)
    return replace(AppChanged(app=app, requested=Resources(cores, memory_mb), sizing=sizing), **fields)


def after(*apps: str) -> Event:
    return replace(queued("n1"), after=tuple(Dependency(app, "ok") for app in apps))


FIXED = replace(queued("f1", 8), sizing=Fixed(Resources(4, 2048)))
ELASTIC = replace(
    FIXED, app="e1", executor_limit=2, sizing=Fixed(Resources(4, 2048), counted=True), elastic=Elastic(0, 4, 2, 2)
)
PROGRAMS = replace(
    FIXED, app="p1", tasks=0, executor_limit=2, sizing=Fixed(Resources(4, 2048), counted=True), programs=True
)
RUNNING_PROGRAM: list[Event] = [
    PROGRAMS,
    entered("p1"),
    ExecutorAllocated(app="p1", executor="p1.0", worker="w1", resources=Resources(4, 2048)),
]


def resized(cores: int, **others: int) -> AppChanged:
    sizing = Fixed(Resources.of(cores, 2048, **others), counted=True)
    return AppChanged(app="p1", requested=sizing.each * 2, sizing=sizing, executor_limit=2)


WITH_DRIVER = replace(queued("d1", 8), requested=Resources(9, 8192), driver=Resources(1, 1024))
DRIVER = DriverAllocated(app="d1", driver="d1.driver-0", worker="w1", resources=Resources(1, 1024))
STARTED = ExecutorChanged(executor="a1.0")
SUSPECTED = WorkerSuspected(worker="w6", executors=("x.0",), until=1_000_000)
PROBED = WorkerProbed(worker="w6")
REVOKED = ExecutorRevoked(app="a1", executor="a1.0", worker="w1")

WITH_GPUS = WorkerRegistered(
    worker="g1", node="g1", host="g1", rack="", offer=Resources.of(16, 65536, gpu=2), addresses={"gpu": ("0", "1")}
)
GPU_APP = replace(queued("g"), requested=Resources.of(8, 4096, gpu=2), sizing=Fixed(Resources.of(4, 2048, gpu=1)))
GPU_GRANT = ExecutorAllocated(
    app="g", executor="g.0", worker="g1", resources=Resources.of(4, 2048, gpu=1), addresses={"gpu": ("1",)}
)


def with_gpus(*addresses: str, number: int, worker: str = "g1") -> WorkerChanged:
    offer = Resources.of(16, 65536, gpu=number)
    return WorkerChanged(worker=worker, status="alive", offer=offer, addresses={"gpu": addresses})


def held(worker: str, app: str = "f1", cores: int = 4, reason: Literal["hold", "reclaim"] = "hold") -> RoomHeld:
    return RoomHeld(worker=worker, app=app, amounts=Resources(cores, 2048), reason=reason)


def ended_hold(worker: str = "w1") -> HoldEnded:
    return HoldEnded(hold=HELD_AT, worker=worker, app="f1", reason="granted")


def target(worker: str, cores: int = 4) -> TargetSet:
    return TargetSet(worker=worker, app="f1", amounts=Resources(cores, 2048), why="surplus")


HELD_AT = 32
"""The position behind `BEFORE`."""
NEEDED = NeedBegan(app="f1", units=1, date=0)
AWAITED = SlotAwaited(app="f1", date=0)
FOR_TARGET = ExecutorRevoked(
    app="a1",
    executor="a1.0",
    worker="w1",
    reason="reclaimed",
    hold=HELD_AT + 1,
    claimant="f1",
    claimant_company="acme",
    rule="H6 surplus",
    since=1,
    deadline=2,
    shares=Shares("0/1", "1/1", "2/1", "1/1"),
)
CLAIM = held("w1", reason="reclaim")
RECLAIMED = ExecutorRevoked(
    app="a1",
    executor="a1.0",
    worker="w1",
    reason="reclaimed",
    hold=HELD_AT,
    claimant="f1",
    claimant_company="acme",
    rule="E2",
    since=1,
    deadline=300_001,
    shares=Shares("0/1", "1/4", "2/1", "7/4"),
)
WITHDRAWN = RevocationWithdrawn(app="a1", executor="a1.0", worker="w1")

TIMED: list[Event] = [
    replace(queued("t1", 8), max_runtime_s=60, warn=Warn("USR1", 5)),
    entered("t1"),
    granted("t1.0"),
    ExecutorChanged(executor="t1.0"),
]
"""An app that runs, for a minute at most."""
WARNED, EXPIRED = AppWarned(app="t1", signal="USR1"), AppExpired(app="t1")

ACCEPTED = LogAccepted(seq=0, digest="0", known=9, known_digest="9", by="master m1")
KEY = KeyChanged(key="k1", public="aa")
SEAL = LogSealed(seq=1, digest="d", key="k1", signature="s")
ANN = AccountAdded(account="acme/ann", company="acme")
TOKEN = TokenIssued(token="t1", account="acme/ann", role="user", scopes=("read",), expires=10**15, hash="ab" * 32)
THIRD = CompanyRegistered(company="third")
INHABITED_THIRD: list[Event] = [THIRD, AccountAdded(account="third/zoe", company="third")]
INHABITED: list[Event] = [ANN, RoleGranted(account="acme/ann", role="user"), TOKEN]
"""An account with a role and a token."""
ADMIN: list[Event] = [*INHABITED, DepartmentAdded(department="research"), RoleGranted(account="acme/ann", role="admin")]
OF_RESEARCH = RoleGranted(account="acme/ann", role="admin", department="research")

SMALL = CompanyRegistered(company="small", amounts=Resources(8, 8192))
BEFORE: list[Event] = [
    ACME,
    SMALL,
    CompanyRegistered(company="idle"),
    KindRegistered(kind="gpu"),
    WITH_GPUS,
    *(joined(f"w{number}") for number in range(1, 7)),
    changed("w2", "draining"),
    changed("w3", "decommissioned"),
    changed("w4", "leaving"),
    changed("w5", "decommissioned"),
    changed("w5", "leaving"),
    queued("a1", 12),
    entered("a1"),
    granted("a1.0"),
    granted("a1.1"),
    ExecutorChanged(executor="a1.1"),
    queued("a2"),
    queued("s1", 8, company="small"),
    entered("s1", company="small"),
    queued("s2", 8, company="small"),
    WITH_DRIVER,
    entered("d1"),
    FIXED,
    entered("f1"),
    queued("over"),
    AppRemoved(app="over", reason="killed"),
]
"""Companies acme, small and idle; w1 and w6 live, w2 drains, w3 is decommissioned, w4 leaves, w5 both; a1 holds
two executors of 4 cores, a2 and s2 are pending (small is full), d1 waits for its driver, f1 for its executors."""


class Case(NamedTuple):
    """The events before, the one that is refused behind them, the rule that it breaks, and the reason."""

    more: list[Event]
    event: Event
    rule: str
    why: str


D1, IN_D1 = DepartmentAdded(department="d1"), CompanyMoved(company="acme", department="d1")
D2 = DepartmentAdded(department="d2", parent="d1")
UNKNOWN_HOST = Wanted(Locations(("h1",), ("r1",)), 1, 1)
CASES = [
    Case([], MasterElected(master=""), "T2", "a master has a name"),
    Case([], ClusterConfigured(min_executor_cores=3), "Settings", "min_executor_cores must be an even number, not 3"),
    Case([], ClusterConfigured(placement="nowhere"), "Settings", "placement cannot be 'nowhere'"),
    Case([], ClusterConfigured(half_life_s=0), "Settings", "half_life_s must be at least 1, not 0"),
    Case([], KindRegistered(kind="gpu"), "R1", "kind 'gpu' is registered already"),
    Case([], KindRegistered(kind="cores"), "R1", "a kind of resources must be"),
    Case([], replace(SMALL, company="new", kinds=("fpga",)), "R1", "no kind of resources 'fpga' is registered"),
    Case([], CompanyRegistered(company="new", amounts=Resources.of(8, 8, gpu=1)), "R4", "does not name the kinds"),
    Case([], replace(WITH_GPUS, worker="g2", addresses={"gpu": ("0",)}), "R1", "names other addresses"),
    Case([], replace(WITH_GPUS, worker="g2", addresses={"gpu": ("0", "0")}), "R1", "'0' is offered twice"),
    Case([], with_gpus("0", "1", number=3), "R1", "names other addresses"),
    Case([GPU_APP, entered("g"), GPU_GRANT], with_gpus("0", "2", number=2), "W1", "no longer offers gpu '1'"),
    Case([], replace(GPU_APP, sizing=Computed(per_task=(("fpga", 1, 2),))), "R1", "'fpga' is registered"),
    Case([], replace(GPU_APP, sizing=Computed(per_task=(("gpu", 0, 2),))), "R3", "needs nothing"),
    Case([GPU_APP, entered("g")], replace(GPU_GRANT, addresses={}), "R5", "names other addresses"),
    Case([GPU_APP, entered("g")], replace(GPU_GRANT, addresses={"gpu": ("7",)}), "R5", "does not offer gpu '7'"),
    Case([GPU_APP, entered("g"), GPU_GRANT], replace(GPU_GRANT, executor="g.1"), "R5", "gpu '1' .* is granted already"),
    Case([], ACME, "C2", "company 'acme' is registered already"),
    Case([], CompanyRegistered(company="new", amounts=Resources(8, 1), part="1/2"), "C2", "a quota is amounts"),
    Case([], CompanyRegistered(company="new", amounts=Resources(-8, 1)), "C2", "is negative"),
    Case([], CompanyRegistered(company="new", part="50%"), "C2", "a quota's part is n/d"),
    Case([], CompanyRegistered(company="new", part="3/2"), "C2", "a part of the cluster must be"),
    Case([], CompanyChanged(company="nobody"), "C2", "company 'nobody' is not registered"),
    Case([], CompanyChanged(company="acme", amounts=Resources(1, -1)), "C2", "is negative"),
    Case([], CompanyRemoved(company="nobody"), "C2", "company 'nobody' is not registered"),
    Case([], CompanyRemoved(company="acme"), "C2", "company 'acme' still has 4 apps"),
    Case([D1], D1, "H12", "department 'd1' is known already"),
    Case([], DepartmentChanged(department="d1"), "H12", "department 'd1' is not known"),
    Case([], DepartmentRemoved(department="d1"), "H12", "department 'd1' is not known"),
    Case([D1, IN_D1], DepartmentRemoved(department="d1"), "H12", "company 'acme' is in department 'd1'"),
    Case([D1, IN_D1], IN_D1, "H12", "company 'acme' is in department 'd1' already"),
    Case([], IN_D1, "H12", "company 'acme' or department 'd1' is not known"),
    Case([D1, D2], DepartmentRemoved(department="d1"), "H12", "department 'd2' is in 'd1'"),
    Case([D1, D2], DepartmentChanged(department="d1", parent="d2"), "H12", "'d1' cannot be in 'd2', which is 'd1' or"),
    Case([], D2, "H12", "there is no department 'd1'"),
    Case([], replace(D1, lend_limit="3/2"), "H12", "the limits of department 'd1' are no parts"),
    Case([], replace(D1, borrow_limit="25%"), "H12", "the limits of department 'd1' are no parts"),
    Case([], replace(D1, amounts=Resources(-1, 8)), "C2", "is negative"),
    Case([], joined("w1"), "W1", "worker 'w1' is registered already"),
    Case([], joined("w9", cores=0), "W1", "worker 'w9' offers 0 cores"),
    Case([], joined("w9", memory_mb=-5), "W1", "worker 'w9' offers 16 cores and -5 MiB"),
    Case([], changed("w9", "alive"), "W3", "worker 'w9' is not registered"),
    Case([], changed("w5", "draining"), "W3", "worker 'w5' was decommissioned for good"),
    Case([], changed("w3", "alive"), "W3", "worker 'w3' is decommissioned and cannot become alive"),
    Case([], changed("w5", "alive"), "W3", "worker 'w5' was decommissioned for good"),
    Case([], changed("w5", "decommissioned"), "W3", "worker 'w5' was decommissioned for good"),
    Case([], changed("w1", "alive", cores=7), "W1", "worker 'w1' must offer at least 8 cores"),
    Case([], changed("w1", "alive", memory_mb=4095), "W1", "worker 'w1' must offer .* and 4096 MiB"),
    Case([], WorkerRemoved(worker="w9", reason="lost"), "W3", "worker 'w9' is not registered"),
    Case([], WorkerRemoved(worker="w1", reason="lost"), "W3", "worker 'w1' still holds 2 allocations"),
    Case([], WorkerRemoved(worker="w6", reason="lost", last_seen=-1), "W2", "worker 'w6' was last seen at -1"),
    Case([], replace(SUSPECTED, worker="w2"), "W8", "worker 'w2' is not live"),
    Case([], replace(SUSPECTED, times=2), "W8", "worker 'w6' is suspected for time 1, not 2"),
    Case([SUSPECTED], SUSPECTED, "W8", "worker 'w6' is suspected for time 2, not 1"),
    Case([], replace(SUSPECTED, until=1), "W8", "worker 'w6' .* until 1"),
    Case([], replace(SUSPECTED, executors=()), "W8", "worker 'w6'"),
    Case([], WorkerProbed(worker="w6"), "W8", "worker 'w6' is not suspected"),
    Case([SUSPECTED, PROBED], PROBED, "W8", "worker 'w6' is not suspected, or on probe already"),
    Case([], WorkerCleared(worker="w6", reason="ran"), "W8", "worker 'w6' is not suspected"),
    Case([SUSPECTED], granted("a1.2", worker="w6"), "W8", "worker 'w6' is suspected until 1000000"),
    Case([SUSPECTED, PROBED], replace(DRIVER, worker="w6"), "W8", "worker 'w6' is suspected until 1000000"),
    Case([SUSPECTED, PROBED, granted("a1.2", worker="w6")], granted("f1.0", worker="w6"), "W8", "or has its probe"),
    Case([], replace(ended(), unstartable=True), "W9", "executor 'a1.0' could not start a task, and exited"),
    Case([], replace(queued("new"), retry_backoff_s=-1), "W10", "a task of app 'new' waits -1 s"),
    Case([], queued("a2"), "A1", "app 'a2' is known already"),
    Case([], queued("over"), "A1", "app 'over' is known already"),
    Case([], queued("new", company="nobody"), "A1", "company 'nobody' is not registered"),
    Case([], replace(queued("new"), cores=-1), "A1", "app 'new' asks for -1 cores"),
    Case(
        [], replace(queued("new"), requested=Resources(-1, 4096)), "A2", "app 'new' requests less than its driver has"
    ),
    Case([], replace(queued("new"), requested=Resources(8, -1)), "A2", "app 'new' requests less than its driver has"),
    Case([], replace(queued("new"), driver=Resources()), "D1", "the driver of app 'new' asks for nothing"),
    Case([], replace(queued("new"), driver=Resources(1, 0)), "D1", "the driver of app 'new' asks for nothing"),
    Case(
        [],
        replace(FIXED, app="new", sizing=Fixed(Resources(4, 0))),
        "S5",
        "the executors of app 'new' have 4 cores and 0",
    ),
    Case([], replace(queued("new"), sizing=Computed(0)), "A2", "a task of app 'new' has 0 MiB"),
    Case([], replace(queued("new"), cores_per_task=0), "A7", "a task of app 'new' has 0 cores"),
    Case([], replace(FIXED, app="new", cores_per_task=5), "A7", "the executors of app 'new' have 4 cores, its tasks 5"),
    Case(
        [replace(queued("new"), cores_per_task=5)],
        demanded("new", sizing=Fixed(Resources(4, 2048))),
        "A7",
        "the executors of app 'new' have 4 cores, its tasks 5",
    ),
    Case([], replace(queued("new"), cores=None), "S5", "app 'new' does not size its executors"),
    Case([], replace(queued("new"), executor_limit=-1), "P4", "app 'new' may have -1 executors"),
    Case([], replace(FIXED, app="new", sizing=OnePerWorker(0)), "S5", "the executors of app 'new' have 0 MiB"),
    Case(
        [], replace(FIXED, app="new", sizing=Fixed(Resources(0, 2048))), "S5", "the executors of app 'new' have 0 cores"
    ),
    Case([], replace(ELASTIC, sizing=FIXED.sizing), "L6", "app 'e1' cannot be elastic between 0 and 4"),
    Case([], replace(ELASTIC, elastic=Elastic(3, 1, 1, 1)), "L6", "app 'e1' cannot be elastic between 3 and 1"),
    Case([], RoomReserved(app="nobody"), "C7", "app 'nobody' is not pending"),
    Case([], RoomReserved(app="a1"), "C7", "app 'a1' is not pending"),
    Case([], entered("nobody"), "A3", "app 'nobody' is not pending"),
    Case([], entered("a1"), "A3", "app 'a1' is not pending"),
    Case([], entered("over"), "A3", "app 'over' is not pending"),
    Case([], entered("a2", user="bob"), "A3", "app 'a2' is of user 'ann' of company 'acme'"),
    Case([], entered("a2", company="small"), "A3", "app 'a2' is of user 'ann' of company 'acme'"),
    Case([], granted("nobody.0"), "P6", "app 'nobody' is not in waitingApps"),
    Case([], granted("a2.0"), "P6", "app 'a2' is not in waitingApps"),
    Case([], granted("over.0"), "P6", "app 'over' is not in waitingApps"),
    Case([], granted("a1.2", worker="w9"), "P1", "worker 'w9' is not live"),
    Case([], granted("a1.2", worker="w2"), "P1", "worker 'w2' is not live"),
    Case([], granted("a1.2", cores=9), "P1", "worker 'w1' has 8 cores and 61440 MiB free, no room for 9"),
    Case([], granted("a1.2", memory_mb=61441), "P1", "no room for 4 cores and 61441"),
    Case([], granted("a1.2", cores=-1), "P1", "no room for -1"),
    Case([], granted("a1.1"), "P6", "the next executor of app 'a1' is 'a1.2'"),
    Case([], granted("a1.3"), "P6", "the next executor of app 'a1' is 'a1.2'"),
    Case([], granted("d1.0"), "D1", "the driver of app 'd1' does not run"),
    Case([], granted("a1.2", cores=5), "A2", "app 'a1' requests 12 cores and 6144 MiB, and would be granted more"),
    Case([], granted("a1.2", memory_mb=2049), "A2", "app 'a1' requests 12 cores and 6144 MiB"),
    Case([], replace(granted("a1.2"), requested=Resources(11, 9999)), "O1", "a grant does not lower the request"),
    Case([], replace(DRIVER, app="a1"), "D1", "no driver of app 'a1' waits"),
    Case([DRIVER], replace(DRIVER, driver="d1.driver-1"), "D1", "no driver of app 'd1' waits"),
    Case([], replace(DRIVER, driver="d1.driver-1"), "D1", "the next driver of app 'd1' is 'd1.driver-0'"),
    Case([], replace(DRIVER, resources=Resources(2, 1024)), "D1", "the driver of app 'd1' has 1 core and 1024 MiB"),
    Case([], replace(DRIVER, worker="w3"), "P1", "worker 'w3' is not live"),
    Case([], replace(DRIVER, app="a2"), "P6", "app 'a2' is not in waitingApps"),
    Case([], DriverRemoved(app="d1", driver="d1.driver-0", worker="w1", reason="lost"), "D3", "no driver"),
    Case(
        [DRIVER],
        DriverRemoved(app="a1", driver="d1.driver-0", worker="w1", reason="lost"),
        "D3",
        "driver 'd1.driver-0' is granted to app 'd1' on worker 'w1'",
    ),
    Case(
        [DRIVER],
        DriverRemoved(app="d1", driver="d1.driver-0", worker="w2", reason="lost"),
        "D3",
        "driver 'd1.driver-0' is granted to app 'd1' on worker 'w1'",
    ),
    Case([], ExecutorChanged(executor="a1.9"), "W2", "no executor 'a1.9' is granted"),
    Case([REVOKED], STARTED, "A5", "executor 'a1.0' was told to stop"),
    Case([STARTED], STARTED, "W2", "executor 'a1.0' is running already"),
    Case([], replace(STARTED, idle=True), "L6", "the app of executor 'a1.0' is not elastic"),
    Case([], replace(REVOKED, executor="a1.9"), "A5", "no executor 'a1.9' is granted"),
    Case([], replace(REVOKED, worker="w2"), "A5", "executor 'a1.0' is granted to app 'a1' on worker 'w1'"),
    Case([], replace(REVOKED, app="a2"), "A5", "executor 'a1.0' is granted to app 'a1' on worker 'w1'"),
    Case([REVOKED], REVOKED, "A5", "executor 'a1.0' was told to stop already"),
    Case([], ended("a1.9"), "A5", "no executor 'a1.9' is granted"),
    Case([ended()], ended(), "A5", "no executor 'a1.0' is granted"),
    Case([], ended(app="a2"), "A5", "executor 'a1.0' is granted to app 'a1' on worker 'w1'"),
    Case([], ended(worker="w2"), "A5", "executor 'a1.0' is granted to app 'a1' on worker 'w1'"),
    Case([], demanded("nobody"), "O1", "app 'nobody' is not known or has ended"),
    Case([], demanded("over"), "O1", "app 'over' is not known or has ended"),
    Case([], demanded(cores=7, done_cores=8), "O1", "app 'a1' cannot request 7 cores and .*, 8 cores of it done"),
    Case([], demanded(done_cores=-1), "O1", "app 'a1' cannot request .*, -1 cores of it done"),
    Case([], demanded(memory_mb=-1), "O1", "app 'a1' cannot request 12 cores and -1 MiB"),
    Case([], ReservationLapsed(app="a1"), "C7", "app 'a1' is not pending"),
    Case([], LostWorkersForgotten(workers=("w1",)), "N3", "worker 'w1' was not lost, or is forgotten"),
    Case([], WorkerLabelled(worker="w9", labels={"zone": "a"}), "W1", "worker 'w9' is not registered"),
    Case([], WorkerLabelled(worker="w1", labels={}), "W1", "worker 'w1' has these labels already"),
    Case([], WorkerLabelled(worker="w1", labels={"zone": ""}), "W1", "the label zone must not be empty"),
    Case([], replace(gang(), max_failures=0), "W5", "app 'n1' ends with failure 0 of its programs"),
    Case([], replace(queued("n1"), max_failures=1), "W5", "app 'n1' ends with failure 1 of its programs"),
    Case([], replace(queued("n1"), gang=True), "G8", "app 'n1' is a gang without a number of executors that run"),
    Case(
        [gang(), entered("n1"), granted("n1.0", cores=1, memory_mb=1024)],
        ended(),
        "G8",
        "app 'n1' is a gang, and is granted a part of its executors",
    ),
    Case(
        [gang(1), entered("n1"), granted("n1.0", cores=1, memory_mb=1024)],
        granted("n1.1", cores=1, memory_mb=1024),
        "G8",
        "app 'n1' is a gang, and is granted its executors when it holds none",
    ),
    Case([], window(workers=()), "W14", "window 'x1' is known already, or does not name workers once each"),
    Case([], window(workers=("w1", "w1")), "W14", "does not name workers once each"),
    Case([window()], window(), "W14", "window 'x1' is known already"),
    Case([], window(end=100), "W14", "window 'x1' cannot last from 100 to 100"),
    Case([], window(begin=-1), "W14", "window 'x1' cannot last from -1 to 200"),
    Case([], window(company="globe"), "W14", "company 'globe' is not registered"),
    Case([window()], window(window="x2", begin=150, end=300), "W14", "worker 'w1' has the window 'x1' then"),
    Case([], WindowRemoved(window="x1"), "W14", "there is no window 'x1'"),
    Case([], leaves_before(), "W14", "window 'x1' does not concern executor 'a1.0'"),
    Case([window(workers=("w2",))], leaves_before(), "W14", "window 'x1' does not concern executor 'a1.0'"),
    Case([window(company="acme")], leaves_before(), "W14", "window 'x1' does not concern executor 'a1.0'"),
    Case([window()], leaves_before(deadline=None), "W14", "executor 'a1.0' is not told by when it leaves"),
    Case([window(), leaves_before()], leaves_before(), "A5", "executor 'a1.0' was told to stop already"),
    Case([], windowed("draining"), "W14", "'w1' cannot be draining for the window 'x1'"),
    Case([window()], windowed("leaving"), "W14", "'w1' cannot be leaving for the window 'x1'"),
    Case([window()], windowed("alive"), "W14", "'w1' cannot be alive for the window 'x1'"),
    Case([], demanded(executor_limit=-1), "P4", "app 'a1' cannot have a negative number"),
    Case([], demanded(preferring_tasks=-1), "P4", "app 'a1' cannot have a negative number"),
    Case([], demanded(sizing=Fixed(Resources(4, 0))), "S5", "the executors of app 'a1' have 4 cores and 0 MiB"),
    Case([], demanded("f1", sizing=Fixed(Resources(2, 1))), "S5", "the executors of app 'f1' keep their size"),
    Case([], demanded(preferred_hosts={"h1": 1}), "L1", "app 'a1' prefers hosts without executors of one size"),
    Case([], demanded(next_step=0), "L6", "app 'a1' asks for 0 executors next"),
    Case([], demanded(backlog_executors=2), "L6", "app 'a1' asks for 1 executor next, 2 in all"),
    Case([], ExecutorsRequested(app="a2", pending=()), "L1", "app 'a2' is not in waitingApps"),
    Case([], ExecutorsRequested(app="a1", pending=(UNKNOWN_HOST,)), "L1", "app 'a1' has no executors of one size"),
    Case(
        [],
        ExecutorsRequested(app="f1", pending=(UNKNOWN_HOST._replace(number=0),)),
        "L1",
        "app 'f1' requests no executors",
    ),
    Case(
        [],
        ExecutorsRequested(app="f1", pending=(UNKNOWN_HOST._replace(since=99),)),
        "L1",
        "app 'f1' requests no executors, or from a time that has not come",
    ),
    Case([], CommandRefused(error="", message="no"), "T3", ""),
    Case([], RefusalsOmitted(count=0, since=1), "T3", ""),
    Case([], RefusalsOmitted(count=1, since=-1), "T3", ""),
    Case([], LostWorkersForgotten(workers=("w9",)), "N3", ""),
    Case([], ReservationLapsed(app="nobody"), "C7", ""),
    Case([], held("w1", "a2"), "P8", "app 'a2' is not in waitingApps"),
    Case([], held("w2"), "P8", "worker 'w2' is not live"),
    Case([], held("w1", cores=64), "P8", "worker 'w1' offers 16 cores"),
    Case([held("w6", "s1")], held("w6"), "P8", "room on worker 'w6' is held already"),
    Case([held("w1")], held("w6"), "P8", "app 'f1' has a hold already"),
    Case([held("w6", "s1")], held("w6", reason="reclaim"), "E5", "room on worker 'w6' is held already"),
    Case([held("w6", "s1", cores=13)], granted("a1.2", worker="w6"), "H6", "only 3 cores"),
    Case([], EditionChanged(edition=2), "H8", "edition 2 cannot follow edition 2"),
    Case([EditionChanged(edition=3)], EditionChanged(edition=4), "H8", "edition 4 cannot follow edition 3"),
    Case([], NeedBegan(app="idle", units=1, date=0), "H6", "app 'idle' is not in waitingApps"),
    Case([], NeedBegan(app="f1", units=0, date=0), "H6", "a need of app 'f1' is of 0 units"),
    Case([], NeedEnded(app="f1"), "H6", "app 'f1' has no need"),
    Case([], SlotAwaited(app="nobody", date=5), "H10", "app 'nobody' does not exist, or is over"),
    Case([AWAITED], AWAITED, "H10", "app 'f1' awaits or has a slot already"),
    Case([], SlotBegan(app="f1", units=1), "H10", "app 'f1' awaits no slot"),
    Case([AWAITED, SlotBegan(app="f1", units=1)], SlotBegan(app="f1", units=1), "H10", "app 'f1' awaits no slot"),
    Case([AWAITED], SlotBegan(app="f1", units=0), "H10", "a slot of app 'f1' is of 0 executors"),
    Case([], SlotEnded(app="f1"), "H10", "app 'f1' neither awaits nor has a slot"),
    Case([], target("w1"), "H6", "app 'f1' has no need"),
    Case([NEEDED], target("w9"), "H6", "worker 'w9' is not live"),
    Case([NEEDED], target("w1", cores=999), "H6", "no room for 999 cores"),
    Case([NEEDED, target("w1")], target("w1"), "H6", "worker 'w1' has a target already"),
    Case([], TargetEnded(target=HELD_AT, worker="w1", app="f1", reason="served"), "H7", "no target of app 'f1' begins"),
    Case([NEEDED], FOR_TARGET, "H6", "no target of app 'f1' begins at position"),
    Case([NEEDED, target("w6")], FOR_TARGET, "H6", "is on worker 'w6'"),
    Case(
        [NEEDED, target("w1")], replace(FOR_TARGET, shares=None), "H7", "the receipt of executor 'a1.0' is not complete"
    ),
    Case([], ended_hold(), "P8", "no hold begins at position"),
    Case([held("w1")], ended_hold(worker="w6"), "P8", "is for app 'f1' on worker 'w1'"),
    Case([], RECLAIMED, "E5", "no room is held on worker 'w1' for a claim of app 'f1'"),
    Case([CLAIM], replace(RECLAIMED, claimant="a1"), "E5", "no room is held on worker 'w1' for a claim of app 'a1'"),
    Case([CLAIM], replace(RECLAIMED, rule="E9"), "E5", "the receipt of executor 'a1.0' is not complete"),
    Case([CLAIM], replace(RECLAIMED, shares=None), "E5", "the receipt of executor 'a1.0' is not complete"),
    Case([REVOKED], WITHDRAWN, "E5", "executor 'a1.0' does not leave for a claim"),
    Case([CLAIM, RECLAIMED], WITHDRAWN, "H7", "the claim for which executor 'a1.0' leaves is not void"),
    Case([*INHABITED_THIRD, CompanyRemoved(company="third")], THIRD, "I2", "company 'third' had accounts"),
    Case(INHABITED, ANN, "I2", "account 'acme/ann' exists already"),
    Case(
        INHABITED, AccountAdded(account="acme", company="acme"), "I2", "account 'acme' exists already, or has no name"
    ),
    Case(
        [], AccountAdded(account="op/root", company="acme"), "I2", "account 'op/root' cannot belong to company 'acme'"
    ),
    Case(
        INHABITED,
        AccountAdded(account="new/ann", company="new"),
        "I2",
        "account 'new/ann' cannot belong to company 'new'",
    ),
    Case(INHABITED, AccountChanged(account="acme/bob", display="B"), "I2", "account 'acme/bob' does not exist"),
    Case(INHABITED, AccountRemoved(account="acme/bob"), "I2", "account 'acme/bob' does not exist"),
    Case(
        INHABITED,
        RoleGranted(account="acme/ann", role="user"),
        "I2",
        "account 'acme/ann' cannot be given the role user",
    ),
    Case(INHABITED, RoleGranted(account="acme/ann", role="operator"), "I2", "cannot be given the role operator"),
    Case(INHABITED, RoleRevoked(account="acme/ann", role="admin"), "I2", "account 'acme/ann' has no role admin"),
    *(
        Case(before, granted, "I2", "an admin of the department")
        for before, granted in (
            (ADMIN, replace(OF_RESEARCH, department="elsewhere")),
            (ADMIN, replace(OF_RESEARCH, role="user")),
            ([*ADMIN, OF_RESEARCH], OF_RESEARCH),
            (ADMIN[:-1], OF_RESEARCH),
        )
    ),
    Case(ADMIN, RoleRevoked(account="acme/ann", role="admin", department="research"), "I2", "is no admin of the"),
    Case(
        [*ADMIN, OF_RESEARCH, RoleRevoked(account="acme/ann", role="admin")],
        RoleRevoked(account="acme/ann", role="admin", department="research"),
        "I2",
        "has no role admin",
    ),
    Case(INHABITED, TOKEN, "I5", "account 'acme/ann' cannot have a token 't1' of role user"),
    Case(INHABITED, replace(TOKEN, token="t2", role="admin"), "I5", "cannot have a token 't2' of role admin"),
    Case(INHABITED, replace(TOKEN, token="t2", replaces="t0"), "I5", "token 't0' is not one of account 'acme/ann'"),
    Case(
        [*INHABITED, RoleRevoked(account="acme/ann", role="user")],
        TokenRevoked(token="t1"),
        "I5",
        "token 't1' does not exist",
    ),
    Case(
        INHABITED,
        AppsShown(company="acme", shown=False),
        "I3",
        "company 'acme' is not registered, or shows its apps that",
    ),
    Case([], KeyChanged(key="", public="aa"), "I6", "key '' signs already, or has no public half"),
    Case([KEY], KEY, "I6", "key 'k1' signs already"),
    Case([KEY, replace(KEY, key="k2")], replace(KEY, public="bb"), "I6", "key 'k1' has another public half"),
    Case([KEY], LogRestored(key="k1", public="aa"), "I7", "key 'k1' signs already"),
    Case([KEY, replace(KEY, key="k2")], LogRestored(key="k1", public="bb"), "I7", "key 'k1' has another public half"),
    Case([], LogRestored(public="aa"), "I7", "key '' signs already, or has no public half"),
    Case([], replace(ACCEPTED, seq=99), "I7", "is accepted up to 99 instead of 9"),
    Case([], replace(ACCEPTED, known=0), "I7", "is accepted up to 0 instead of 0"),
    Case([], replace(ACCEPTED, by=""), "I7", "is accepted up to 0 instead of 9"),
    Case([KEY], replace(SEAL, seq=99), "I6", "position 99 is sealed between the last seal, 0, and"),
    Case([KEY], LogSealed(seq=1, digest="d", key="k2", signature="s"), "I6", "key 'k2' does not sign"),
    Case([KEY, SEAL], SEAL, "I6", "position 1 is sealed between the last seal, 1, and"),
    Case([], LimitSet(name="max_core", value=1), "N1", "limit 'max_core' cannot be 1"),
    Case([], LimitSet(name="max_cores", value=-1), "N1", "limit 'max_cores' cannot be -1"),
    Case([], LimitSet(name="submit_per_minute", value=0), "N1", "limit 'submit_per_minute' cannot be 0"),
    Case([], LimitSet(name="max_cores", value=1, company="nobody"), "N1", "company 'nobody' is not registered"),
    Case([], LimitSet(name="max_cores", value=1, user="ann"), "N1", "company '' is not registered"),
    Case([], LimitSet(name="max_cores", value=1, department="r"), "H12", "department 'r' does not exist"),
    Case([], CompanyRegistered(company="new", max_max_runtime_s=0), "X1", "apps of company 'new' cannot run for less"),
    Case([], replace(queued("new"), max_runtime_s=0), "X1", "app 'new' may run for 0 s"),
    Case([], replace(queued("new"), warn=Warn("USR1", 5)), "X2", "app 'new' cannot be warned 5 s before its end"),
    Case(
        [],
        replace(queued("new"), max_runtime_s=5, warn=Warn("USR1", 5)),
        "X2",
        "app 'new' cannot be warned 5 s before its end",
    ),
    Case([], AppWarned(app="a1", signal="USR1"), "X2", "app 'a1' does not run for a limited time"),
    Case(TIMED, AppWarned(app="t1", signal="TERM"), "X2", "app 't1' asked for another warning"),
    Case([*TIMED, WARNED], WARNED, "X2", "app 't1' asked for another warning, or was warned already"),
    Case([], AppExpired(app="a2"), "X2", "app 'a2' is not in waitingApps"),
    Case([], AppExpired(app="a1"), "X2", "app 'a1' may run for any time"),
    Case([*TIMED, EXPIRED], EXPIRED, "X2", "app 't1' is not in waitingApps, or its time was over before"),
    Case([*TIMED, EXPIRED], granted("t1.1"), "X2", "the time of app 't1' is over"),
    Case([*TIMED, EXPIRED], demanded("t1"), "O1", "app 't1' is not known or has ended"),
    Case([*TIMED, EXPIRED], AppRemoved(app="t1", reason="expired"), "X2", "app 't1' still holds 4 cores"),
    Case([*TIMED, EXPIRED], AppRemoved(app="t1", reason="killed"), "X2", "app 't1' is removed as killed"),
    Case(TIMED, AppRemoved(app="t1", reason="expired"), "X2", "app 't1' is removed as expired"),
    Case([], AppSignalled(app="over", signal="USR1"), "X4", "app 'over' is not known, has ended"),
    Case([], AppSignalled(app="a2", signal="USR1"), "X4", "nothing of app 'a2' runs"),
    Case(TIMED, AppSignalled(app="t1", signal="USR1", task=9999), "X4", "app 't1' has no task 9999"),
    Case([], TaskCancelled(app="over", task=0), "X4", "app 'over' is not known, has ended"),
    Case(TIMED, TaskCancelled(app="t1", task=9999), "X4", "app 't1' has no task 9999 that is not cancelled"),
    Case(
        [*TIMED, TaskCancelled(app="t1", task=0)],
        TaskCancelled(app="t1", task=0),
        "X4",
        "app 't1' has no task 0 that is not cancelled",
    ),
    Case([], AppExtended(app="over", max_runtime_s=9), "X1", "app 'over' is not known, has ended"),
    Case([], AppExtended(app="a1", max_runtime_s=9), "X1", "app 'a1' may run for None s"),
    Case(TIMED, AppExtended(app="t1", max_runtime_s=60), "X1", "app 't1' may run for 60 s, which 60 s do not extend"),
    Case([], replace(PROGRAMS, tasks=1), "G1", "the executors of app 'p1' run a program, without tasks, in a stated"),
    Case([], replace(PROGRAMS, executor_limit=None), "G1", "the executors of app 'p1' run a program, without tasks"),
    Case([], replace(PROGRAMS, owner_timeout_s=0), "G4", "app 'p1' has an owner who may be silent for 0 s"),
    Case([], replace(PROGRAMS, owner_timeout_s=9, driver=Resources(1, 1)), "G4", "app 'p1' has an owner who may be"),
    Case([], replace(PROGRAMS, grace_s=-1), "G5", "app 'p1' has a grace of -1 s"),
    Case(RUNNING_PROGRAM, resized(3), "G1", "the executors of app 'p1' keep their size"),
    Case([PROGRAMS], resized(0), "S5", "the executors of app 'p1' have 0 cores"),
    Case([PROGRAMS], resized(3, fpga=1), "R1", "no kind of resources 'fpga' is registered"),
    Case([], AppRemoved(app="nobody", reason="killed"), "A5", "app 'nobody' is not known or has ended"),
    Case([], AppRemoved(app="over", reason="killed"), "A5", "app 'over' is not known or has ended"),
    Case([], AppRemoved(app="a2", reason="unmet"), "J2", "app 'a2' waits for nothing in vain"),
    Case([], AppReady(app="over"), "J2", "app 'over' is not known or has ended"),
    Case([], AppReady(app="a2"), "J2", "app 'a2' is ready, waits, or is on hold"),
    Case([after("a1")], AppReady(app="n1"), "J2", "app 'n1' is ready, waits, or is on hold"),
    Case([after("over")], AppReady(app="n1"), "J2", "app 'n1' is ready, waits, or is on hold"),
    Case([AppHeld(app="a2")], AppReady(app="a2"), "J2", "app 'a2' is ready, waits, or is on hold"),
    Case([], after("nobody"), "J1", "company 'acme' has no app 'nobody' that app 'n1' could wait for"),
    Case([], after("s2"), "J1", "company 'acme' has no app 's2'"),
    Case([], after("a1", "a1"), "J1", "app 'n1' waits twice for the same app"),
    Case([after("a1")], entered("n1"), "J2", "app 'n1' is not ready"),
    Case([AppHeld(app="a2")], entered("a2"), "J2", "app 'a2' is not ready"),
    Case([], replace(queued("n1"), priority=1001), "Q1", "app 'n1' has the priority 1001"),
    Case([], AppReprioritized(app="nobody", priority=1), "Q1", "app 'nobody' is not known or has ended"),
    Case([], AppReprioritized(app="over", priority=1), "Q1", "app 'over' is not known or has ended"),
    Case([], AppReprioritized(app="a2", priority=-1001), "Q1", "-1001 is no priority"),
    Case([], AppHeld(app="nobody"), "J3", "app 'nobody' is not pending"),
    Case([], AppHeld(app="a1"), "J3", "app 'a1' is not pending"),
    Case([AppHeld(app="a2")], AppHeld(app="a2"), "J3", "app 'a2' is already on hold"),
    Case([], AppReleased(app="over"), "J3", "app 'over' is not pending"),
    Case([], AppReleased(app="a2"), "J3", "app 'a2' is not on hold"),
    Case([], AppDelayed(app="nobody", until=1 << 50), "J4", "app 'nobody' is not pending"),
    Case([], AppDelayed(app="a1", until=1 << 50), "J4", "app 'a1' is not pending"),
    Case([], AppDelayed(app="a2", until=0), "J4", "the time 0 is over"),
    Case([AppDelayed(app="a2", until=1 << 50)], entered("a2"), "J2", "app 'a2' is not ready"),
    Case([AppDelayed(app="a2", until=1 << 50)], AppReady(app="a2"), "J2", "app 'a2' is ready, waits, or is on hold"),
    Case([], TaskRequeued(app="a2", task=0, executor="a2.0"), "X6", "app 'a2' is not in waitingApps"),
    Case(TIMED, TaskRequeued(app="t1", task=9999, executor="t1.0"), "X6", "app 't1' has no task 9999 that is not"),
    Case(TIMED, TaskRequeued(app="t1", task=0, executor="t1.9"), "X6", "'t1.9' is no running executor of app 't1'"),
    Case([], AppRequeued(app="nobody"), "X6", "app 'nobody' is not in waitingApps"),
    Case([], AppRequeued(app="a2"), "X6", "app 'a2' is not in waitingApps"),
    Case([], AppRequeued(app="over"), "X6", "app 'over' is not in waitingApps"),
    Case(
        [replace(queued("n1"), no_requeue=True), entered("n1")],
        AppRequeued(app="n1"),
        "X6",
        "'n1' is not to be put back",
    ),
    Case([], AppDue(app="a2"), "J4", "app 'a2' is not known, has ended, or waits for no time"),
    Case([AppDelayed(app="a2", until=1 << 50)], AppReleased(app="a2"), "J3", "app 'a2' is not on hold"),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{type(case.event).__name__}-{n}" for n, case in enumerate(CASES)])
def test_a_planted_event_that_breaks_a_precondition_stops_a_replay_at_its_position(case: Case) -> None:
    state = fold([*BEFORE, *case.more])
    before, seq = state.digest(), state.head + 1
    sentence = rf"^log position {seq}: {type(case.event).__name__}: .*{case.why}.* \({case.rule}\)$"
    with pytest.raises(InvariantViolated, match=sentence) as refused:
        rebuild.fold(state, Fact(seq, state.at, seq, "", case.event))
    assert (refused.value.seq, refused.value.rule) == (seq, case.rule)
    assert state.digest() == before


def test_time_never_goes_back() -> None:
    """Semantics T2."""
    state = fold(BEFORE)
    with pytest.raises(InvariantViolated, match=rf"time {state.at - 1} is before {state.at} \(T2\)$"):
        state.apply(MasterElected(master="m"), at=state.at - 1)


def test_every_type_of_event_has_preconditions_and_a_case_that_breaks_one() -> None:
    assert PRECONDITIONS.keys() == FOLDS.keys() == set(EVENT_TYPES.values())
    assert {type(case.event) for case in CASES} == set(EVENT_TYPES.values())


def test_what_the_cases_alter_is_folded_as_it_is() -> None:
    allowed: list[Event] = [DRIVER, STARTED, REVOKED, ended(), RoomReserved(app="s2"), CompanyRemoved(company="idle")]
    allowed += [
        demanded("a2"),
        ELASTIC,
        changed("w4", "draining"),
        changed("w4", "alive"),
        WorkerRemoved(worker="w6", reason="lost"),
    ]
    fold([*BEFORE, *allowed, ExecutorsRequested(app="f1", pending=(UNKNOWN_HOST,))])
