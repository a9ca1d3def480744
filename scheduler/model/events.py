"""Facts: the events of schema 2, one frozen struct per type.

The log stores an event as a JSON array: the name of its type, then its fields in the order of this module. Append new
fields with a default, so that older events can still be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from msgspec import Struct, structs, to_builtins

from scheduler.model import states
from scheduler.model.resources import Amounts, Resources
from scheduler.model.sender import Role
from scheduler.model.terms import AppTerms, ExecutorLimit, Grace, OwnerTimeout

WorkerStatus = states.WorkerStatus
AppState = states.AppState
Condition = states.Condition
Locality = Literal["host", "rack", "any"]
"""Where an executor was placed: on a preferred host, in the rack of one, or elsewhere (semantics L5)."""
Addresses = dict[str, tuple[str, ...]]
"""Kind of resources -> addresses, in the order of the worker's offer (semantics R1, R5)."""


PerTask = tuple[tuple[str, int, int], ...]
"""What a task needs of further kinds: (kind, numerator, denominator), sorted (semantics R3)."""


class _Sizing(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    @classmethod
    def name(cls) -> str:
        """The tag in the log: `computed`, `fixed` or `one-per-worker`."""
        return str(cls.__struct_config__.tag)


class Computed(_Sizing, frozen=True, tag="computed"):
    """The scheduler computes cores and memory (semantics S2, S3); memory per task in MiB, None = by the workers.

    `per_task` is what each task needs of further kinds (semantics R3).
    """

    memory_per_task_mb: int | None = None
    per_task: PerTask = ()


class Fixed(_Sizing, frozen=True, tag="fixed"):
    """All executors have the size `each` (semantics S5).

    `counted`: the app states a number of executors, and its request follows that number (semantics L6, O1).
    """

    each: Resources
    counted: bool = False

    @property
    def memory_mb(self) -> int:
        """Memory of an executor in MiB."""
        return self.each.memory_mb


class OnePerWorker(_Sizing, frozen=True, tag="one-per-worker"):
    """At most one executor per worker, with this memory and as many cores as the worker has free (semantics S5).

    `others` is what each executor has of further kinds (semantics R3).
    """

    memory_mb: int
    others: Amounts = ()

    @property
    def each(self) -> Resources:
        """The least executor: with one core."""
        return Resources(1, self.memory_mb, self.others)


Sizing = Computed | Fixed | OnePerWorker
"""The sizing of an app's executors."""


class Elastic(NamedTuple):
    """The bounds of an app whose demand follows its backlog, and its first demand (semantics L6).

    It has `least` to `most` executors. At first its tasks need `backlog` executors; its next step is `step` more.
    """

    least: int
    most: int
    backlog: int
    step: int


class Warn(NamedTuple):
    """The signal, without SIG, that an app's tasks get so many seconds before its time is over (semantics X2)."""

    signal: str
    before_s: int


class Locations(NamedTuple):
    """The preferred hosts of an executor and their racks, both sorted; None = anywhere (semantics L2)."""

    hosts: tuple[str, ...] | None = None
    racks: tuple[str, ...] | None = None


class Dependency(NamedTuple):
    """An app that must have ended in a certain way, or begun, before another one is ready (semantics J1)."""

    app: str
    condition: Condition


class Shares(NamedTuple):
    """What each company is granted of its part, before and after a loss, as "n/d" in lowest terms (semantics E5)."""

    claimant_before: str
    claimant_after: str
    loser_before: str
    loser_after: str


class Wanted(NamedTuple):
    """`number` pending requests for executors at the same locations, created at `since` (ms) (semantics L1)."""

    locations: Locations
    number: int
    since: int


class _EventFields(Struct, frozen=True, kw_only=True, array_like=True, tag=True, forbid_unknown_fields=True, gc=False):
    """A fact. Only reading it checks the types of its values.

    Thousands are written and read every second; a msgspec struct takes a fifth of the time of a pydantic model.
    """


class MasterElected(_EventFields, frozen=True):
    """`master` writes the log from here on; a master that folds another name becomes a standby."""

    master: str


class ClusterConfigured(_EventFields, frozen=True):
    """All settings from here on (semantics, Settings). Memory in MiB, times in the unit of the name.

    Nobody reads those that `scheduler.rules.checks.validate.RETIRED` names; logs state them.
    """

    min_executor_cores: int = 4
    min_executor_memory_mb: int = 2048
    max_executor_cores: int = 16
    max_executor_memory_mb: int = 16384
    default_cores: int = 8
    default_memory_per_task_mb: int = 512
    company_policy: str = "dominant-share"
    user_policy: str = "longest-wait"
    app_policy: str = "fifo"
    placement: str = "spread"
    worker_selection: str = "cores-free-desc"
    occupancy: Literal["requested", "granted", "claimed"] = "requested"
    max_executor_failures: int = 10
    worker_timeout_s: int = 15
    retained_apps: int = 10_000
    admission: Literal["fair", "open"] = "fair"
    spread_out_drivers: bool = True
    max_drivers: int | None = None
    max_driver_share: str = "1/2"
    half_life_s: int = 3600
    quota_patience_s: int = 600
    executor_idle_timeout_s: int = 60
    elastic_step_ms: int = 1000
    locality_wait_host_ms: int = 3000
    locality_wait_rack_ms: int = 3000
    archive_url: str = ""
    archive_after_events: int = 0
    archive_retain_events: int = 1_000_000
    never_fits: Literal["refuse", "wait"] = "refuse"
    remember_lost_s: int = 86_400
    reclaim: Literal["none", "gentle", "firm"] = "gentle"
    hold_patience_s: int = 300
    hold_limit_s: int = 3600
    min_runtime_s: int = 300
    max_reclaims: int = 3
    reclaim_window_s: int = 3600
    reclaim_patience_s: int | None = 300
    kill_grace_s: int = 30
    own_sizes: Literal["any", "within-bounds"] = "any"
    priority_step_s: int = 3600
    spare_resources: bool = True
    exclude_after: int = 2
    exclude_s: int = 3600
    suspect_failures: int | None = None
    suspect_window_s: int = 300
    suspect_s: int = 60
    retry_backoff_s: int = 1
    default_max_runtime_s: int | None = None
    max_max_runtime_s: int | None = None
    slot_s: int = 0
    notify_targets: str = ""
    idle_end_s: int | None = None
    max_min_runtime_s: int = 3600
    backfill: bool = False


class KindRegistered(_EventFields, frozen=True):
    """Workers may offer, and apps may request, resources of this kind from here on (semantics R1)."""

    kind: str


class CompanyRegistered(_EventFields, frozen=True):
    """A tenant and its quota: amounts, a `part` "n/d" of the live cluster, or neither for 1/N (semantics C2).

    `borrow`: whether it may exceed its quota (semantics H1); None = only a default quota may be passed (C2). `kinds`:
    the further kinds that the amounts name; others are not limited (R4). The two times, in seconds, take the place of
    the settings of the same name for its apps (semantics X1). `end_idle`: what its apps leave unused is ended (W13).
    """

    company: str
    amounts: Resources | None = None
    part: str | None = None
    borrow: bool | None = None
    kinds: tuple[str, ...] = ()
    default_max_runtime_s: int | None = None
    max_max_runtime_s: int | None = None
    end_idle: bool = False

    @property
    def by_default(self) -> bool:
        """Whether its quota is neither amounts nor a part of its own (semantics C2)."""
        return self.amounts is None and self.part is None

    @property
    def may_borrow(self) -> bool:
        """Whether it may pass its quota while no other company has an app within its own (semantics C2, C6)."""
        return self.by_default if self.borrow is None else self.borrow


class CompanyChanged(CompanyRegistered, frozen=True):
    """The company's new quota, in full."""


class LimitSet(_EventFields, frozen=True):
    """A limit is `value` from here on, None = there is none (semantics N1).

    Without `company` it is that of every company without its own; with a `user` it is that of this user of the company,
    `*` = of every user of it without its own. With a `department` it is that of all companies in it together.
    """

    name: str
    value: int | None
    company: str = ""
    user: str = ""
    department: str = ""


class CompanyRemoved(_EventFields, frozen=True):
    """The company is no longer a tenant."""

    company: str


class DepartmentAdded(_EventFields, frozen=True):
    """A department within the `parent`, "" = the cluster, and its quota (semantics H12).

    The quota is amounts, a `part` "n/d" of the live cluster, or neither for the sum of what is in it; `kinds` as in
    `CompanyRegistered`. The limits are parts of the quota, "n/d": what it may borrow beyond it, and what others may
    use of it; None = as much as there is.
    """

    department: str
    parent: str = ""
    amounts: Resources | None = None
    part: str | None = None
    kinds: tuple[str, ...] = ()
    borrow_limit: str | None = None
    lend_limit: str | None = None


class DepartmentChanged(DepartmentAdded, frozen=True):
    """The department's new place, quota and limits, in full."""


class DepartmentRemoved(_EventFields, frozen=True):
    """The department, in which nothing is, is no more."""

    department: str


class CompanyMoved(_EventFields, frozen=True):
    """The company is in this department from here on, "" = in none (semantics H12)."""

    company: str
    department: str


class WorkerRegistered(_EventFields, frozen=True):
    """A worker joined with an offer (semantics W1); `addresses` are those of further kinds, in order (R1)."""

    worker: str
    node: str
    host: str
    rack: str
    offer: Resources
    addresses: Addresses = {}


class WorkerLabelled(_EventFields, frozen=True):
    """The worker's labels and taints, all of them; until then it has none (semantics W1, P9)."""

    worker: str
    labels: dict[str, str]
    taints: tuple[str, ...] = ()


class WorkerChanged(_EventFields, frozen=True):
    """The worker's status and offer, in full; `leaving` = draining, and removed once empty (semantics W3).

    `reason`: why it drains, as whoever drained it has said. `unwell`: it drains until its own health check succeeds
    (W11). `window`: it drains for that window, or is back after it (W14).
    """

    worker: str
    status: WorkerStatus
    offer: Resources
    addresses: Addresses = {}
    reason: str = ""
    unwell: bool = False
    window: str = ""


class WindowAdded(_EventFields, frozen=True):
    """From `begin` to `end` (ms) nothing runs on these workers, or of nobody but the company (semantics W14).

    `notice_s` before its beginning, whoever runs there is told to leave. `reason`: what it is for.
    """

    window: str
    workers: tuple[str, ...]
    begin: int
    end: int
    notice_s: int
    company: str = ""
    reason: str = ""


class WindowRemoved(_EventFields, frozen=True):
    """The window is over, or an operator has removed it (semantics W14)."""

    window: str


class WorkerRemoved(_EventFields, frozen=True):
    """The worker was removed; `last_seen` is its last heartbeat in ms, 0 if there was none."""

    worker: str
    reason: Literal["lost", "removed"]
    last_seen: int = 0


class LostWorkersForgotten(_EventFields, frozen=True):
    """What these lost workers offered no longer counts as an offer that may come back (semantics N3)."""

    workers: tuple[str, ...]


class WorkerSuspected(_EventFields, frozen=True):
    """The worker gets nothing until `until` (ms): these `executors` ended abnormally soon after their start (W8).

    `times` counts how often in a row it was suspected.
    """

    worker: str
    executors: tuple[str, ...]
    until: int
    times: int = 1


class WorkerProbed(_EventFields, frozen=True):
    """The suspected worker may get one executor as a probe (semantics W8)."""

    worker: str


class WorkerCleared(_EventFields, frozen=True):
    """The worker is suspected no longer (semantics W8).

    `ran`: its probe ran for 10 s; `ended-well`: an executor did; `quarter`: more than a quarter of the live workers
    were suspected; `off`: the setting.
    """

    worker: str
    reason: Literal["ran", "ended-well", "quarter", "off"]


class AppRegistered(AppTerms, _EventFields, frozen=True):
    """An app joined its user's queue with its request (semantics A1, A2, S5).

    Its name, command, variables and folder are private (`Private`) and stored beside the event. `cores` None is
    unlimited; the request is then the most that the app has held (A6). `requested` includes the `driver`.
    `executor_limit` is the most executors at once (P4); None = no limit. `elastic`: the demand follows the backlog
    (L6). It is ready once the dependencies `after` are met and it is not `on_hold` (J). An executor of c cores runs
    c // `cores_per_task` tasks at once (A7). A task that failed waits `retry_backoff_s`, twice as long after each
    further failure (W10). `max_runtime_s` is the time that it may run (X1); None = no limit. `warn`: its tasks are
    warned before (X2). `reclaim_signal`, without SIG: what its tasks get when their executor is to leave for a claim,
    "" = nothing (E5). With `programs`, each executor runs one program (G1). `grace_s`: how long what runs has between
    SIGTERM and SIGKILL, None = as its worker says (G5). `owner_timeout_s`: for how long its owner may give no sign of
    life, None = it has no owner (G4).
    """

    app: str
    company: str
    user: str
    kind: Literal["batch", "sql"]
    cores: int | None
    requested: Resources
    tasks: int
    sizing: Sizing
    retries: int = 0
    time_limit_s: int | None = None
    executor_limit: ExecutorLimit = None
    driver: Resources | None = None
    supervise: bool = False
    elastic: Elastic | None = None
    priority: int = 0
    after: tuple[Dependency, ...] = ()
    on_hold: bool = False
    cores_per_task: int = 1
    retry_backoff_s: int = 0
    max_runtime_s: int | None = None
    warn: Warn | None = None
    reclaim_signal: str = ""
    programs: bool = False
    grace_s: Grace = None
    owner_timeout_s: OwnerTimeout = None
    network: Literal["", "none", "app"] = ""
    """What its tasks find; "" = that of the machine (semantics W12)."""


class RoomReserved(_EventFields, frozen=True):
    """The app was held back for too long; its company's room is reserved for it from here on (semantics C7)."""

    app: str


class ReservationLapsed(_EventFields, frozen=True):
    """The app was not admitted for too long: its company's room is no longer reserved for it (semantics C7)."""

    app: str


class AppAdmitted(_EventFields, frozen=True):
    """The app entered waitingApps; `share` was its company's share before, "n/d" in lowest terms (semantics A3, C3).

    `lent`: only because elastic apps of its company count with their least number of executors (semantics E7).
    """

    app: str
    company: str
    user: str
    share: str
    lent: bool = False


class DriverAllocated(_EventFields, frozen=True):
    """Resources of one worker are granted to the app's driver; its executors follow (semantics D1, R5)."""

    app: str
    driver: str
    worker: str
    resources: Resources
    addresses: Addresses = {}


class DriverRemoved(_EventFields, frozen=True):
    """The driver is gone and its grant returns (semantics D3)."""

    app: str
    driver: str
    worker: str
    reason: Literal["exited", "failed", "lost", "killed"]
    exit_code: int | None = None


class ExecutorAllocated(_EventFields, frozen=True):
    """Resources of one worker are granted to an executor; the worker starts it after the commit.

    `locality` is relative to the app's preferred hosts, None without any (semantics L5). A grant beyond the app's
    request raises it to `requested` (A6, S5, O1); None = unchanged. `addresses` are the granted ones of further kinds
    (R5).
    """

    app: str
    executor: str
    worker: str
    resources: Resources
    locality: Locality | None = None
    requested: Resources | None = None
    addresses: Addresses = {}


class ExecutorChanged(_EventFields, frozen=True):
    """The executor's processes are up; `idle` = it has no task (elastic apps only, semantics L6)."""

    executor: str
    status: Literal["running"] = "running"
    idle: bool = False


class RoomHeld(_EventFields, frozen=True):
    """Room for one executor is held on the worker for the app (semantics P8), or for its claim (semantics E5).

    `within`: the claim is on what elastic apps of the same company were lent (semantics E7).
    """

    worker: str
    app: str
    amounts: Resources
    reason: Literal["hold", "reclaim"]
    within: bool = False


class HoldEnded(_EventFields, frozen=True):
    """The room is no longer held; `hold` is the position of its RoomHeld (semantics P8, E5)."""

    hold: int
    worker: str
    app: str
    reason: Literal["granted", "served", "part-reached", "worker-gone", "unusable", "limit"]


class EditionChanged(_EventFields, frozen=True):
    """The rules of sharing are those of that edition from here on (semantics H)."""

    edition: int


class NeedBegan(_EventFields, frozen=True):
    """The app is below its entitlement by so many units that fit nowhere now; it gets one by `date` (ms) (H6, H7).

    `date` is 0 if what is lent never has to come back.
    """

    app: str
    units: int
    date: int


class NeedEnded(_EventFields, frozen=True):
    """The app is not below its entitlement any more, or its unit fits (semantics H6)."""

    app: str


class SlotAwaited(_EventFields, frozen=True):
    """The app, whose unit is larger than its company's share, may have a slot from `date` (ms) on (semantics H10)."""

    app: str
    date: int


class SlotBegan(_EventFields, frozen=True):
    """The app is entitled to so many executors before everybody else, until its slot ends (semantics H10)."""

    app: str
    units: int


class SlotEnded(_EventFields, frozen=True):
    """The app awaits no slot any more, or its slot is over (semantics H10)."""

    app: str


class TargetSet(_EventFields, frozen=True):
    """Room for one unit of the app is being made on the worker (semantics H6).

    `why`: by surplus that leaves, by executors that change their place, by the plan, or below the company's cap.
    """

    worker: str
    app: str
    amounts: Resources
    why: Literal["surplus", "move", "plan", "cap"]


class TargetEnded(_EventFields, frozen=True):
    """No room is made there for the app any more; `target` is the position of its TargetSet (semantics H7)."""

    target: int
    worker: str
    app: str
    reason: Literal["granted", "served", "worker-gone", "unusable", "stays"]


_MADE_BY: dict[str, Literal["surplus", "move", "plan", "cap"]] = {
    "H6 surplus": "surplus",
    "H6 move": "move",
    "H6 plan": "plan",
    "H6 cap": "cap",
}


class ExecutorRevoked(_EventFields, frozen=True):
    """The executor must stop; it holds its grant until its worker reports the end (semantics A5).

    `reclaimed`: it leaves for a claimant, which has waited since `since` (ms) and whose hold is at position `hold`, by
    `rule` E2, E3 or E7, or H6 and why. Where reclaiming is firm, the worker ends its tasks at `deadline` (ms) (E5).
    With `gang`, another executor of its gang is gone (G8).
    With a `window`, it leaves for nobody, but before that window begins, and its tasks are ended at `deadline` (W14).
    """

    app: str
    executor: str
    worker: str
    reason: Literal["killed", "idle", "reclaimed"] = "killed"
    hold: int = 0
    claimant: str | None = None
    claimant_company: str | None = None
    rule: str | None = None
    since: int | None = None
    deadline: int | None = None
    shares: Shares | None = None
    window: str = ""
    gang: bool = False

    @property
    def why(self) -> Literal["surplus", "move", "plan", "cap"] | None:
        """How room for a target is made by it, as `rule` H6 says; None if it leaves for something else (H6)."""
        return _MADE_BY.get(self.rule or "")


class RevocationWithdrawn(_EventFields, frozen=True):
    """The claim for which the executor was to leave is void: it continues (semantics E5)."""

    app: str
    executor: str
    worker: str


class ExecutorRemoved(_EventFields, frozen=True):
    """The executor is gone and its grant returns; `done` = no task was left for it (semantics S6).

    `finished`: a task of its app finished in it (semantics W7). `unstartable`: its app's command cannot be started on
    the worker (semantics W9). `detail`: why its program failed (semantics G2).
    """

    app: str
    executor: str
    worker: str
    reason: Literal["exited", "failed", "lost", "killed", "idle", "reclaimed", "window", "gang"]
    exit_code: int | None = None
    done: bool = False
    finished: bool = False
    unstartable: bool = False
    detail: str = ""


class AppChanged(_EventFields, frozen=True):
    """The demand of an app, in full (semantics O1, S6, P4, L1); `executor_limit` None = no limit.

    A `Computed` app becomes `Fixed` when its number of executors is stated; executors that run a program may change
    their size until the first is granted (G1). `preferring_tasks` tasks prefer some host;
    `preferred_hosts` maps host -> tasks. The tasks of an elastic app need `backlog_executors` executors, and its next
    step is `next_step` more (L6). `target` is the demanded number of executors until all are requested (L1).
    """

    app: str
    requested: Resources
    sizing: Sizing
    done_cores: int = 0
    executor_limit: int | None = None
    preferring_tasks: int = 0
    preferred_hosts: dict[str, int] = {}
    backlog_executors: int | None = None
    next_step: int = 1
    target: int | None = None


class ExecutorsRequested(_EventFields, frozen=True):
    """All pending requests of an app that prefers hosts, oldest first (semantics L1, L2, L5)."""

    app: str
    pending: tuple[Wanted, ...]


class AppReady(_EventFields, frozen=True):
    """The pending app joined its user's queue: its dependencies are met and it is not on hold (semantics J2, J3)."""

    app: str


class AppReprioritized(_EventFields, frozen=True):
    """The app's new priority among its user's apps, from -1000 to 1000 (semantics Q1)."""

    app: str
    priority: int


class AppHeld(_EventFields, frozen=True):
    """The pending app is not ready until it is released (semantics J3)."""

    app: str


class AppReleased(_EventFields, frozen=True):
    """The app is no longer on hold (semantics J3)."""

    app: str


class AppDelayed(_EventFields, frozen=True):
    """The pending app is not ready before `until` (ms) (semantics J4)."""

    app: str
    until: int


class AppDue(_EventFields, frozen=True):
    """The time has come before which the pending app was not to be ready (semantics J4)."""

    app: str


class AppWarned(_EventFields, frozen=True):
    """The tasks of the app that run now get the signal: its time is almost over (semantics X2)."""

    app: str
    signal: str


class AppSignalled(_EventFields, frozen=True):
    """Somebody sent a signal to the tasks of the app that run now, or to one of them (semantics X4).

    `whole`: to all their processes.
    """

    app: str
    signal: str
    task: int | None = None
    whole: bool = False


class TaskCancelled(_EventFields, frozen=True):
    """Somebody cancelled a task of the app: it is stopped, or never begins (semantics X4)."""

    app: str
    task: int


class AppRequeued(_EventFields, frozen=True):
    """The app left waitingApps for its user's queue; what runs of it is to stop (semantics X6).

    `window`: the window before which its driver has to leave (W14).
    """

    app: str
    window: str = ""


class TaskRequeued(_EventFields, frozen=True):
    """Somebody put a task of the app back: if the executor runs it, it is stopped and begins again (semantics X6)."""

    app: str
    task: int
    executor: str


class AppExpired(_EventFields, frozen=True):
    """The app has run for as long as it may; its executors and driver must stop (semantics X2)."""

    app: str


class AppExtended(_EventFields, frozen=True):
    """The app may run for `max_runtime_s` in all from here on (semantics X1)."""

    app: str
    max_runtime_s: int


class AppRemoved(_EventFields, frozen=True):
    """The app ended; its request leaves all three ledgers (semantics A5).

    `unmet`: a dependency cannot be met (J2); `expired`: its time was over (X2).
    """

    app: str
    reason: Literal["finished", "failed", "killed", "unmet", "expired"]
    detail: str = ""


class CommandRefused(_EventFields, frozen=True):
    """A command was refused: the name of the error and its sentence, as its sender received it (semantics T3)."""

    error: str
    message: str


class RefusalsOmitted(_EventFields, frozen=True):
    """The number of refusals that were not logged, the first of them at `since` (ms) (semantics T3)."""

    count: int
    since: int


class KeyChanged(_EventFields, frozen=True):
    """The masters sign by the key of this id and public half (hex) from here on (semantics I6).

    `signature` is that of the key before over it, "" for the first key, or if no master holds the key before.
    """

    key: str
    public: str
    signature: str = ""


class LogSealed(_EventFields, frozen=True):
    """A master has signed the end of a turn: its last position and its digest (semantics I6).

    `reads` is the digest of the last entry of the record of reads at that time, "" if it was empty.
    """

    seq: int
    digest: str
    key: str
    signature: str
    reads: str = ""


class LogRestored(_EventFields, frozen=True):
    """An operator restored or imported the log up to the turn before (semantics I7).

    `key` and its public half (hex) sign from here on, though the key before has not signed them; "" = no other key.
    """

    key: str = ""
    public: str = ""


class LogAccepted(_EventFields, frozen=True):
    """An operator accepted a log that ends at `seq` with `digest`, though it was known to go on (semantics I7).

    It does not hold the turn that ended at `known` with `known_digest`, as `by` knew it. What was acknowledged behind
    `seq`, up to `known`, is lost, and its receipts are broken.
    """

    seq: int
    digest: str
    known: int
    known_digest: str
    by: str


class AccountAdded(_EventFields, frozen=True):
    """An account (semantics I2); `host` and `offer` bound what a worker registers (I3)."""

    account: str
    company: str | None
    display: str = ""
    robot: bool = False
    host: str | None = None
    offer: Resources | None = None


class AccountChanged(_EventFields, frozen=True):
    """How the account is shown."""

    account: str
    display: str


class AccountRemoved(_EventFields, frozen=True):
    """The account and all its tokens are gone."""

    account: str


class RoleGranted(_EventFields, frozen=True):
    """The account has this role, too; or is an admin of this department, too, and its tokens as an admin end (I2)."""

    account: str
    role: Role
    department: str = ""


class RoleRevoked(_EventFields, frozen=True):
    """The account has lost this role, and its tokens that act in it are gone (semantics I5).

    With a department, it is only no admin of that any more.
    """

    account: str
    role: Role
    department: str = ""


class TokenIssued(_EventFields, frozen=True):
    """A token (semantics I5): `expires` in ms, `hash` the hex SHA-256 of its text.

    `once`: an invitation. The token `replaces`, if any, ends.
    """

    token: str
    account: str
    role: Role
    scopes: tuple[str, ...]
    expires: int
    hash: str
    once: bool = False
    replaces: str | None = None


class TokenRevoked(_EventFields, frozen=True):
    """The token is valid no longer."""

    token: str


class AppsShown(_EventFields, frozen=True):
    """Whether all users of the company see each other's apps (semantics I3)."""

    company: str
    shown: bool


ClusterEvent = MasterElected | ClusterConfigured | KindRegistered | EditionChanged
CompanyEvent = CompanyRegistered | CompanyChanged | LimitSet | CompanyRemoved | CompanyMoved
DepartmentEvent = DepartmentAdded | DepartmentChanged | DepartmentRemoved
WorkerEvent = (
    WorkerRegistered
    | WorkerLabelled
    | WorkerChanged
    | WindowAdded
    | WindowRemoved
    | WorkerRemoved
    | LostWorkersForgotten
    | WorkerSuspected
    | WorkerProbed
    | WorkerCleared
)
AppEvent = AppRegistered | RoomReserved | ReservationLapsed | AppAdmitted | AppChanged | ExecutorsRequested | AppRemoved
OrderEvent = AppReady | AppReprioritized | AppHeld | AppReleased | AppDelayed | AppDue
RuntimeEvent = AppWarned | AppSignalled | TaskCancelled | AppRequeued | TaskRequeued | AppExpired | AppExtended
DriverEvent = DriverAllocated | DriverRemoved
ExecutorEvent = ExecutorAllocated | ExecutorChanged | ExecutorRevoked | RevocationWithdrawn | ExecutorRemoved
HoldEvent = RoomHeld | HoldEnded | NeedBegan | NeedEnded | TargetSet | TargetEnded
SlotEvent = SlotAwaited | SlotBegan | SlotEnded
RefusalEvent = CommandRefused | RefusalsOmitted
SealEvent = KeyChanged | LogSealed | LogRestored | LogAccepted
AccountEvent = AccountAdded | AccountChanged | AccountRemoved | RoleGranted | RoleRevoked | AppsShown
TokenEvent = TokenIssued | TokenRevoked
Event = (
    ClusterEvent
    | CompanyEvent
    | DepartmentEvent
    | WorkerEvent
    | AppEvent
    | OrderEvent
    | RuntimeEvent
    | DriverEvent
    | ExecutorEvent
    | HoldEvent
    | SlotEvent
    | RefusalEvent
    | SealEvent
    | AccountEvent
    | TokenEvent
)

EVENT_TYPES: dict[str, type[Event]] = {model.__name__: model for model in get_args(Event)}


def named(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored values of an event, with resources and a sizing as named amounts."""
    found: dict[str, Any] = {}
    for name, value in stored.items():
        match name, value:
            case "sizing", ["computed", memory_mb, *per_task]:
                found |= {"sizing": "computed", "memory_per_task_mb": memory_mb}
                found |= {f"{kind}_per_task": f"{n}/{d}" for kind, n, d in (per_task[0] if per_task else ())}
            case "sizing", ["one-per-worker", memory_mb, *others]:
                found |= {"sizing": "one-per-worker", "executor_memory_mb": memory_mb}
                found |= {f"executor_{kind}": amount for kind, amount in (others[0] if others else ())}
            case "sizing", ["fixed", each, *_]:
                found |= {"sizing": "fixed"} | {f"executor_{kind}": amount for kind, amount in by_kind(each).items()}
            case "requested" | "driver", [_, _, *_] | {}:
                found |= {f"{name}_{kind}": amount for kind, amount in by_kind(value).items()}
            case "after", [[_, _], *_]:
                found["after"] = [f"{app}:{condition}" for app, condition in value]
            case "offer" | "amounts" | "resources", [_, _, *_] | {}:
                found |= by_kind(value)
            case _:
                found[name] = value
    return found


def by_kind(amounts: Sequence[Any] | Mapping[str, int]) -> dict[str, int]:
    """Kind -> amount of stored resources: an array as in the log, or already an object by kind."""
    if isinstance(amounts, Mapping):
        return dict(amounts)
    cores, memory_mb, *others = amounts
    return {"cores": cores, "memory_mb": memory_mb, **dict(others[0] if others else ())}


def outlined(event: Event) -> dict[str, Any]:
    """The event as JSON values: its type and its fields, without those that are None."""
    stated = named(dict(zip(event.__struct_fields__, to_builtins(event)[1:], strict=True)))
    return {"type": type(event).__name__, **{name: value for name, value in stated.items() if value is not None}}


def unplaced(event: Event) -> Event:
    """The event without the position of a hold, by which logs differ that decide alike."""
    if isinstance(event, ExecutorRevoked | HoldEnded):
        return structs.replace(event, hold=0)
    return structs.replace(event, target=0) if isinstance(event, TargetEnded) else event


def alike(one: Any, other: Any) -> bool:  # noqa: ANN401 - events or None; mypy compares each type with each otherwise
    """Whether two events decide the same, though a hold may be at another position; None is like None alone."""
    return bool(one == other or (one is not None and other is not None and unplaced(one) == unplaced(other)))


def of_one_type(one: object, other: object) -> bool:
    """Whether both are events of one type, or no events."""
    return type(one) is type(other)
