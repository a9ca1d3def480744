"""What the API answers, a struct each: views, witness and API make them, clients read them, OpenAPI describes them.

In JSON the names of fields are written in camel case. A field with a default is left out where it has it. Times are in
ms since the epoch and memory is in MiB unless a name says otherwise. "n/d" is an exact fraction. Readers leave out what
they do not know: a server of a later version may tell more.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from scheduler.model.states import AppState

Further = dict[str, int]
"""Amounts of further kinds of resources, by kind (semantics R1)."""
Exact = int | str
"""A whole number, or "n/d" in lowest terms (semantics C2)."""
TaskWord = Literal["queued", "running", "succeeded", "failed", "cancelled", "stopped"]


class Camel(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A part of an answer."""


class Verbatim(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of an answer whose fields are written as they are named."""


# Apps


class SpentShown(Camel, frozen=True, kw_only=True):
    """What ended executors and drivers of an app were granted, and used of it as their workers say (semantics O5)."""

    core_ms: int
    """Granted to all of them."""
    told_core_ms: int
    """Granted to those of which their worker has said what they used."""
    cpu_ms: int
    """CPU time that these have used."""
    told_memory_ms: int
    """MiB-ms granted to these."""
    used_memory_ms: int
    """Their peaks, each for as long as it was granted."""
    peak_memory: int
    """The largest peak of one of them."""
    peak_of_memory: int
    """What that one was granted."""


class Efficiency(Camel, frozen=True, kw_only=True):
    """What an app, a user or a company used of what it was granted, as its workers say (semantics O5)."""

    company: str
    user: str | None = None
    app: str | None = None
    name: str | None = None
    apps: int
    core_ms: int
    told_core_ms: int
    cpu_ms: int
    wasted_core_ms: int
    unknown_core_ms: int
    told_memory_ms: int
    used_memory_ms: int
    peak_memory: int
    peak_of_memory: int
    cpu_part: float | None
    memory_part: float | None


class PastRuns(Camel, frozen=True, kw_only=True):
    """What the last apps of a user used that had one name and have ended: how many there are, and all together."""

    runs: int
    spent: SpentShown | None


class AppRow(Camel, frozen=True, kw_only=True):
    """An app in a list."""

    app: str
    company: str
    user: str
    name: str
    kind: str
    state: AppState
    ready: bool
    on_hold: bool
    tasks: int
    requested_cores: int
    requested_memory: int
    granted_cores: int
    granted_memory: int
    requested_resources: Further | None = None
    granted_resources: Further | None = None
    submitted_at: int
    submitted_seq: int
    """The log position of its submission, which names it as its id does."""
    admitted_at: int | None
    ended_at: int | None
    detail: str
    spent: SpentShown | None = None
    """None until something of it has ended."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.ended_at is not None


class TaskShown(Verbatim, frozen=True, kw_only=True):
    """A task of an app: its state, its exit code, and what its attempts used that have ended."""

    task: int
    state: TaskWord
    exit_code: int | None
    executor: str | None
    attempts: int
    started_at: int | None
    ended_at: int | None
    message: str
    due_at: int | None
    """When a failed task runs again."""
    tried: str | None
    """The worker on which its command could not be started."""
    cpu_ms: int
    peak_mb: int
    output_bytes: int
    locality: str | None
    """How near its last attempt ran to a host that it prefers: `host`, `rack`, `any`; None if it prefers none."""
    worker: str | None
    """The worker on which its last attempt ran."""


class AppListed(AppRow, frozen=True, kw_only=True):
    """An app of the list `apps`, with the cause for which it waits; `details` and `tasks` have been asked for."""

    reason: str | None
    rule: str | None
    cwd: str | None = None
    array: str | None = None
    comment: str | None = None
    priority: int | None = None
    cores_per_task: int | None = None
    memory_per_task: int | None = None
    time_limit: int | None = None
    max_runtime: int | None = None
    after: dict[str, str] | None = None
    begin_at: int | None = None
    cancelled: list[int] | None = None
    ready_at: int | None = None
    workers: list[str] | None = None
    started_at: int | None = None
    executors: int | None = None
    """How many executors it has as a gang; None = it is none. The next ones say how large each is (semantics G8)."""
    executor_cores: int | None = None
    executor_memory: int | None = None
    task_states: list[TaskShown] | None = None


class AppInDetail(AppListed, frozen=True, kw_only=True):
    """As `AppListed`, where `details` have been asked for."""

    cwd: str | None
    array: str | None
    comment: str | None
    priority: int | None
    cores_per_task: int | None
    memory_per_task: int | None
    time_limit: int | None
    max_runtime: int | None
    after: dict[str, str] | None
    begin_at: int | None
    cancelled: list[int] | None
    ready_at: int | None
    workers: list[str] | None
    started_at: int | None


class ExecutorHeld(Camel, frozen=True, kw_only=True):
    """A running or stopping executor of an app. `locality`: how near it is to a host that its app prefers."""

    executor: str
    worker: str
    cores: int
    memory: int
    resources: dict[str, list[str]] | None = None
    """Its addresses of further kinds."""
    status: str
    locality: str | None
    leaves_for: str | None = None
    """The app of another company for which it is told to leave, by `deadline`."""
    leaves_before: str | None = None
    """The window before which it leaves, by `deadline` (semantics W14)."""
    deadline: int | None = None
    slot_until: int | None = None
    """When the slot is over in which it was granted (semantics H10)."""
    rank: int | None = None
    """Its program's rank in a gang, and the host by which the others reach it (semantics G8)."""
    host: str | None = None


class DriverHeld(Camel, frozen=True, kw_only=True):
    """The driver of an app."""

    driver: str
    worker: str
    cores: int
    memory: int
    resources: dict[str, list[str]] | None = None
    status: str
    leaves_before: str | None = None
    """The window before which it is put back or killed, at the latest by `deadline` (semantics W14)."""
    deadline: int | None = None


class Exclusion(Camel, frozen=True, kw_only=True):
    """A worker from which an app is excluded, and until when (semantics W7)."""

    worker: str
    ends: int
    until: int | None
    """None: it is excluded from none, for no other worker could host it."""
    unstartable: bool


class AppDetails(AppRow, frozen=True, kw_only=True):
    """An app with its command, executors and driver. Its private parts are empty for whoever may not see them."""

    cores: int
    cores_per_task: int
    memory_per_task: int | None
    command: list[str]
    executor_command: list[str]
    env: list[str]
    cwd: str | None
    output: str | None
    """The pattern of the file to which its tasks write."""
    error: str | None
    open_mode: str | None
    array: str | None
    comment: str
    notify: str | None = None
    """Whom its end is told to (I9)."""
    keep_going: bool
    """Whether a task that fails for good leaves the others to run."""
    retries: int
    priority: int
    after: dict[str, str] | None
    begin_at: int | None
    """The time before which it is not ready, if it waits for one."""
    cancelled: list[int] | None
    time_limit: int | None
    """In seconds, for each task."""
    max_runtime: int | None
    """In seconds."""
    ran_ms: int | None
    warn: str | None
    """A signal and how many seconds before the end it is sent, SIGNAL@SECONDS."""
    reclaim_signal: str | None
    min_runtime: int | None
    """In seconds, of its executors; None = as the setting says (semantics H7)."""
    executor_program: bool
    gang: bool | None = None
    """Whether its executors start all at once or not at all (semantics G8)."""
    max_failures: int | None = None
    """How many failures of its programs end it; None = as the setting says (semantics W5)."""
    executors_granted: int
    grace: int | None
    network: Literal["none", "app", "host"] = "host"
    """What its tasks find (semantics W12)."""
    require: list[str] | None = None
    """The labels that its workers have, as KEY or KEY=VALUE; likewise the next ones (semantics P9)."""
    avoid: list[str] | None = None
    tolerate: list[str] | None = None
    """The taints that its workers may have."""
    prefer_labels: list[str] | None = None
    image: str | None = None
    """Whose files its tasks find; None = the machine's (semantics W12)."""
    no_requeue: bool
    """Whether it may never be put back into its queue (semantics X6)."""
    restarts: int | None
    """How often it was put back, if it was."""
    owner_timeout: int | None
    expires_at: int | None
    expired_at: int | None
    done_cores: int
    sizing: str
    executor_cores: int | None
    executor_memory: int | None
    executor_resources: Further | None
    task_resources: dict[str, str] | None
    executor_limit: int | None
    executor_target: int | None
    elastic: list[int] | None
    """The least and the most executors."""
    excluded_workers: list[Exclusion]
    preferred_hosts: dict[str, int] | None
    pending_requests: int | None
    unlimited: bool
    has_driver: bool
    supervise: bool
    asked_by: dict[str, str] | None
    admitted_seq: int | None
    driver: DriverHeld | None
    executors: list[ExecutorHeld]


# Workers, companies and settings


class SuspicionShown(Camel, frozen=True, kw_only=True):
    """Why and until when a worker is suspected, and its probe (semantics W8)."""

    executors: list[str]
    since: int
    until: int
    times: int
    on_probe: bool
    probe: str | None


class ExcludedApp(Camel, frozen=True, kw_only=True):
    """An app that is excluded from a worker, as `Exclusion`."""

    app: str
    ends: int
    until: int | None
    unstartable: bool


class HeldRoom(Camel, frozen=True, kw_only=True):
    """Room that is held for an app, since when, and the executors that are to leave for it (semantics H6, H7)."""

    app: str
    cores: int
    memory: int
    held_resources: Further | None = None
    reason: str
    since: int
    leaving: list[str]


class WindowAhead(Camel, frozen=True, kw_only=True):
    """A window of a worker: from when to when (ms) nothing runs there, or of nobody but the company (semantics W14)."""

    window: str
    begin: int
    end: int
    company: str | None
    """None = it is for nobody, as for maintenance."""
    reason: str


class WindowShown(WindowAhead, frozen=True, kw_only=True):
    """A window: its workers, what stands there that must not run in it, and whether it has begun (semantics W14)."""

    workers: list[str]
    notice: int
    """How many seconds before its beginning who runs there is told to leave."""
    closing: bool
    """Whether that time has come."""
    in_the_way: list[str]
    """Executors and drivers that are still there, at most 100."""


class WorkerShown(Camel, frozen=True, kw_only=True):
    """A worker: its offer, what of it is granted, and why and since when it is held, suspected, draining or lost."""

    worker: str
    node: str
    host: str
    rack: str
    labels: dict[str, str]
    taints: list[str] = []
    """What apps must tolerate (semantics P9)."""
    status: str
    since: int | None
    reason: str
    unwell: bool
    """Whether the operator's check fails on it (semantics W11)."""
    cores: int
    memory: int
    offered_resources: Further | None = None
    """Of a lost worker."""
    granted_cores: int
    granted_memory: int
    resources: dict[str, list[str]] | None = None
    """Its addresses of further kinds."""
    granted_resources: dict[str, list[str]] | None = None
    executors: int
    drivers: int
    suspicion: SuspicionShown | None
    excluded_apps: list[ExcludedApp]
    holds: list[HeldRoom]
    remembered_until: int | None = None
    """Until when the offer of a lost worker is remembered (semantics N3)."""
    window: WindowAhead | None = None
    """The first of its windows that is not over."""


class AccountShown(Camel, frozen=True, kw_only=True):
    """An account with its roles and the number of its valid tokens."""

    account: str
    company: str | None
    display: str
    robot: bool
    roles: list[str]
    host: str | None
    offer: dict[str, int] | None
    """The most that an invited worker may offer."""
    tokens: int
    departments: list[str] = []
    """The departments of which it is an admin, besides its company (semantics I2)."""


class TokenShown(Camel, frozen=True, kw_only=True):
    """A valid token without its hash."""

    token: str
    account: str
    role: str
    scopes: list[str]
    expires: int
    invitation: bool


class KindShown(Camel, frozen=True, kw_only=True):
    """A kind of resources: what live workers offer of it, and what is granted there."""

    kind: str
    offered: int
    granted: int
    workers: int


class QuotaAmounts(Camel, frozen=True, kw_only=True):
    """The quota of a company as amounts (semantics C2)."""

    quota_cores: Exact
    quota_memory: Exact
    quota_resources: dict[str, Exact] | None = None


class CompanyShown(QuotaAmounts, frozen=True, kw_only=True):
    """A company: how its quota is set, and its usage (semantics C5)."""

    company: str
    quota: str
    """`amounts`, `default`, or its part of the cluster, "n/d"."""
    borrow: bool
    default_max_runtime: int | None
    max_max_runtime: int | None
    end_idle: bool = False
    """Whether what its apps leave unused is ended (semantics W13)."""
    department: str = ""
    """The department that it is in (semantics H12)."""
    used_core_ms: int
    used_memory_ms: int
    used_resources: Further | None = None
    users: int
    apps: int


class Ledger(Camel, frozen=True, kw_only=True):
    """What counts as occupied, and what is granted (semantics O1)."""

    occupied_cores: int
    occupied_memory: int
    granted_cores: int
    granted_memory: int
    occupied_resources: Further | None = None
    granted_resources: Further | None = None


class Stands(Ledger, frozen=True, kw_only=True):
    """Also what somebody wants, is entitled to and holds (semantics H2)."""

    demand_cores: int
    demand_memory: int
    entitled_cores: int
    entitled_memory: int
    held_cores: int
    held_memory: int
    leaving_cores: int
    leaving_memory: int
    lent_cores: int
    lent_memory: int
    below_cores: int
    below_memory: int
    demand_resources: Further | None = None
    entitled_resources: Further | None = None
    held_resources: Further | None = None
    leaving_resources: Further | None = None
    lent_resources: Further | None = None
    below_resources: Further | None = None


class UserShare(Stands, frozen=True, kw_only=True):
    """What a user holds, wants and is entitled to."""

    company: str
    user: str


class CompanyShare(Stands, frozen=True, kw_only=True):
    """What a company holds, wants and is entitled to; its quota, and its cap, None if it may borrow."""

    company: str
    quota_cores: Exact
    quota_memory: Exact
    quota_resources: dict[str, Exact] | None = None
    cap_cores: Exact | None
    cap_memory: Exact | None
    cap_resources: dict[str, Exact] | None = None
    share: str
    """Its dominant share by its quota, "n/d" (semantics C3)."""


class DepartmentShown(Stands, frozen=True, kw_only=True):
    """A department: its place, quota and limits, and what its companies hold, want and are entitled to (H12)."""

    department: str
    parent: str
    """The department that it is in, "" = none."""
    quota: str
    """`amounts`, `sum` of what is in it, or its part of the cluster, "n/d"."""
    quota_cores: Exact
    quota_memory: Exact
    quota_resources: dict[str, Exact] | None = None
    borrow_limit: str | None
    """What it may borrow beyond its quota, as a part "n/d" of that; None = as much as there is."""
    lend_limit: str | None
    """What others may use of it, likewise."""
    cap_cores: Exact | None
    cap_memory: Exact | None
    cap_resources: dict[str, Exact] | None = None
    companies: int


class SharesShown(Camel, frozen=True, kw_only=True):
    """The ledgers of the cluster, its companies and their users."""

    by_entitlement: bool
    waiting_apps: Ledger
    companies: list[CompanyShare]
    users: list[UserShare]
    departments: list[DepartmentShown] = []
    """From the top down, each after the one that it is in."""


class LimitShown(Camel, frozen=True, kw_only=True):
    """A limit, its holder, and what counts against it now where that is one number (semantics N2)."""

    scope: Literal["user", "company", "department", "cluster"]
    company: str | None
    user: str | None
    limit: str
    value: int
    present: int | None
    department: str | None = None


class Edition(Camel, frozen=True, kw_only=True):
    """The edition of the rules of sharing in force, since when, and whether it decides (semantics H)."""

    edition: int
    since: int | None
    earlier: bool
    by_entitlement: bool
    patience_s: int | None = field(name="patienceS")
    admission: str


class UnmetDemand(Camel, frozen=True, kw_only=True):
    """Executors of one size that ready apps ask for and are not granted: how many, of how many apps, and since when.

    `require`, `avoid`, `tolerate`: what they demand of the labels and taints of a worker (semantics P9).
    """

    cores: int
    memory: int
    resources: Further
    require: list[str] = []
    avoid: list[str] = []
    tolerate: list[str] = []
    missing: int
    apps: int
    since: int


class WorkerState(Camel, frozen=True, kw_only=True):
    """A worker in a list of states; `process` where it is known."""

    worker: str
    status: str
    suspicion: SuspicionShown | None


class ClusterShown(Camel, frozen=True, kw_only=True):
    """The head of the log, the capacity, the number of apps in each state, and the workers."""

    head: int
    at: int
    cores: int
    memory: int
    apps: dict[str, int]
    too_large: int
    """The number of apps that no live worker is large enough for, 0 while none is live (semantics N3)."""
    workers: list[WorkerState]


# Why


class WaitReason(Camel, frozen=True, kw_only=True):
    """Why an app waits: the cause, the rule by which it does (docs/semantics.md), a sentence and its facts."""

    cause: str
    rule: str
    text: str
    facts: dict[str, Any]


class QueuePlace(Camel, frozen=True, kw_only=True):
    """The place of an app among the pending apps of its user, from 1."""

    place: int
    of: int


class CauseTime(Camel, frozen=True, kw_only=True):
    """How long an app waited for one cause."""

    cause: str
    rule: str
    ms: int


class Waited(Camel, frozen=True, kw_only=True):
    """How long an app waited, in all and by cause."""

    ms: int
    by_cause: list[CauseTime]


class Reason(Camel, frozen=True, kw_only=True):
    """A sentence about an outcome, and the rule of it, "" if it has none."""

    rule: str
    text: str


class ContenderCompany(Camel, frozen=True, kw_only=True):
    """A company that had something to admit."""

    company: str
    share: str
    used_core_ms: int
    used_memory_ms: int
    takes_part: bool
    last_selected: int | None


class ContenderUser(Camel, frozen=True, kw_only=True):
    """A user who had something to admit, and whether it was entitled to a unit."""

    company: str
    user: str
    last_selected: int | None
    app: str
    passes: bool
    kept_out_by: str | None


class Moment(Camel, frozen=True, kw_only=True):
    """A position of the log and its time."""

    seq: int
    at: int


class Admission(Moment, frozen=True, kw_only=True):
    """When and why an app was admitted, the share of its company then, and all with something to admit."""

    share: str
    why: list[Reason]
    companies: list[ContenderCompany]
    users: list[ContenderUser]


class DriverPlaced(Moment, frozen=True, kw_only=True):
    """When and why a driver was placed."""

    driver: str
    worker: str
    cores: int
    memory: int
    why: Reason


class ExecutorPlaced(Moment, frozen=True, kw_only=True):
    """When and why an executor was granted: sentences, and their rules, by what they explain."""

    executor: str
    worker: str
    cores: int
    memory: int
    why: dict[str, str]


class Runtime(Camel, frozen=True, kw_only=True):
    """How long an app may run (s) and has run, and when its time was over (semantics X)."""

    max_runtime: int
    ran_ms: int
    expired_at: int | None


class Leaver(Camel, frozen=True, kw_only=True):
    """An executor that leaves for somebody, by its deadline if that is firm."""

    executor: str
    app: str
    deadline: int | None


class RoomTarget(Camel, frozen=True, kw_only=True):
    """Where room is made for an app, and by whom (semantics H6, H7)."""

    worker: str
    cores: int
    memory: int
    why: str
    since: int
    leaving: list[Leaver]


class SlotShown(Verbatim, frozen=True, kw_only=True):
    """The slot that an app awaits or has (semantics H10): times in ms, 0 = not yet; `units`: of how many executors."""

    date: int
    began: int
    units: int
    until: int
    granted: int


class AmountsDue(Camel, frozen=True, kw_only=True):
    """What somebody wants, is entitled to and holds (semantics H2)."""

    demand_cores: int
    demand_memory: int
    entitled_cores: int
    entitled_memory: int
    held_cores: int
    held_memory: int
    leaving_cores: int
    leaving_memory: int
    lent_cores: int
    lent_memory: int
    below_cores: int
    below_memory: int


class AppStands(AmountsDue, frozen=True, kw_only=True):
    """How an app stands in one sentence, and its figures (semantics H)."""

    text: str
    date: int | None
    ahead: int
    targets: list[RoomTarget]
    slot: SlotShown | None


class ClaimShares(Verbatim, frozen=True, kw_only=True):
    """What both companies were granted of their parts, by the rules before the third edition; else empty."""

    claimant_before: str = ""
    claimant_after: str = ""
    loser_before: str = ""
    loser_after: str = ""


class Loss(Moment, frozen=True, kw_only=True):
    """What an app that lost an executor to another one is told (semantics H7)."""

    executor: str
    worker: str
    rule: str
    claimant: str
    claimant_company: str
    since: int
    deadline: int | None
    shares: ClaimShares
    why: str | None


class Sender(Camel, frozen=True, kw_only=True):
    """Who sent a command, by which token, role and door."""

    account: str
    token: str
    role: str
    door: str


class AppCommand(Moment, frozen=True, kw_only=True):
    """A command about an app, who sent it and why, and the class of the error if it was refused."""

    command: str
    by: Sender
    reason: str | None = None
    refused: str | None


class EstimateErrors(Camel, frozen=True, kw_only=True):
    """How far the last estimates were from what came: of so many, the median and the 90th percentile (ms).

    `within`: how many apps started between the earliest and the latest start that was told.
    """

    number: int
    within: int
    median_ms: int
    p90_ms: int


class StartTimes(Camel, frozen=True, kw_only=True):
    """When (ms) an app gets its first executor or its driver: no sooner, probably, and at the latest.

    Null = there is no such time, `why` says what keeps it from having one.
    """

    earliest: int | None
    likely: int | None
    latest: int | None
    why: str


class StartEstimate(StartTimes, frozen=True, kw_only=True):
    """The estimate of an app's start, and the errors of estimates of the past, null if none is known."""

    errors: EstimateErrors | None = None


class AppEstimate(StartTimes, frozen=True, kw_only=True):
    """The estimate of the start of one of many apps."""

    app: str


class Estimates(Camel, frozen=True, kw_only=True):
    """The estimates of apps that wait, and the errors of those of the past, null if none is known."""

    estimates: list[AppEstimate]
    errors: EstimateErrors | None


class Explanation(Camel, frozen=True, kw_only=True):
    """Why an app waits, or was admitted and placed as it was, at log position `head`."""

    verdict: str | None = None
    """The first verdict of an audit on the log, if that was asked for; None if it follows its rules."""
    app: str
    company: str
    user: str
    state: AppState
    head: int
    at: int
    waits_for: WaitReason | None
    queue: QueuePlace | None
    estimate: StartEstimate | None
    submitted: Moment
    admission: Admission | None
    drivers: list[DriverPlaced]
    executors: list[ExecutorPlaced]
    runtime: Runtime | None
    standing: AppStands | None
    targets: list[RoomTarget]
    losses: list[Loss]
    excluded_workers: list[Exclusion]
    waited: Waited
    asked_for: list[AppCommand]
    ended: Moment | None
    ended_at: int | None
    detail: str
    spent: SpentShown | None = None


class Planned(Camel, frozen=True, kw_only=True):
    """An executor, or the driver, that a submission would get at once."""

    executor: str
    worker: str
    cores: int
    memory: int


class Ahead(Camel, frozen=True, kw_only=True):
    """An app that goes first."""

    app: str
    company: str
    user: str


class PlanTold(Camel, frozen=True, kw_only=True):
    """What would become of a submission now."""

    admitted: bool
    starts: bool
    state: AppState
    requested_cores: int
    requested_memory: int
    executors: list[Planned]
    waits_for: WaitReason | None
    queue: QueuePlace | None
    ahead: list[Ahead]
    estimate: StartEstimate | None


# The log and what is worked out from it


class LogEvent(Camel, frozen=True, kw_only=True):
    """An event of the log: `data` holds its fields by name, `cause` is the id of the command that caused it.

    The first event of a command has the command, how many events it caused, who sent it, and its private part with its
    commitment; the last event of a turn has the digest.
    """

    seq: int
    type: str
    at: int
    turn: int
    cause: str = ""
    data: dict[str, Any]
    command: dict[str, Any] | None = None
    events: int | None = None
    by: dict[str, str] | Literal[""] | None = None
    commit: str | None = None
    private: dict[str, Any] | None = None
    digest: str | None = None


class EntryShown(LogEvent, frozen=True, kw_only=True):
    """An event with the company and the app that it is about."""

    company: str | None
    app: str | None


class Entries(Camel, frozen=True, kw_only=True):
    """Events, the newest first, and the position before which to go on."""

    entries: list[EntryShown]
    before: int | None


class Candidate(Camel, frozen=True, kw_only=True):
    """A worker with room when an executor was placed."""

    worker: str
    number: int
    free: str
    chosen: bool


class DecisionReasons(Camel, frozen=True, kw_only=True):
    """The reasons for a decision, and the candidates that there were."""

    why: list[Reason]
    companies: list[ContenderCompany] | None = None
    users: list[ContenderUser] | None = None
    workers: list[Candidate] | None = None


class DecisionCard(Moment, frozen=True, kw_only=True):
    """An event of the log in words and fields, who asked for it, and its reasons if the rules decided it."""

    turn: int
    type: str
    text: str
    data: dict[str, Any]
    by: str | None
    command: str | None
    reasons: DecisionReasons | None = None


class Instant(Camel, frozen=True, kw_only=True):
    """The last turn at or before a time, and the one after it; None at the ends of the log."""

    seq: int
    at: int | None
    next: int | None
    head: int
    next_seq: int | None


class Change(Moment, frozen=True, kw_only=True):
    """A change of settings, companies, accounts or workers: who made it, by which command."""

    type: str
    by: str | None
    role: str | None
    asked: str | None
    change: dict[str, Any]


class ChangeList(Camel, frozen=True, kw_only=True):
    """The changes, the newest first, and how many there are."""

    changes: list[Change]
    number: int


class DeviationFound(Camel, frozen=True, kw_only=True):
    """What stands in the log, and what was due there."""

    seq: int
    rule: str
    done: str
    due: str
    entitled: str | None


class VerdictFound(DeviationFound, frozen=True, kw_only=True):
    """Deviations of one cause: the first one, the verdict in a sentence, and the later ones."""

    verdict: str
    later: list[DeviationFound]


class AuditResult(Camel, frozen=True, kw_only=True):
    """What an audit has found, up to position `ends_at` of that digest."""

    events: int
    decisions: int
    ends_at: int
    digest: str
    verdicts: list[VerdictFound]


class LogSpan(Camel, frozen=True, kw_only=True):
    """A span of the log; `digest` is that of entry `to`."""

    begin: int = field(name="from")
    to: int
    from_at: int
    to_at: int
    digest: str


class Used(Camel, frozen=True, kw_only=True):
    """What apps requested and were granted over time, and what they lost to claims of others."""

    requested_core_hours: float
    requested_gib_hours: float = field(name="requestedGiBHours")
    granted_core_hours: float
    granted_gib_hours: float = field(name="grantedGiBHours")
    requested_core_ms: int
    requested_memory_ms: int
    granted_core_ms: int
    granted_memory_ms: int
    requested_resource_ms: Further | None = None
    granted_resource_ms: Further | None = None
    executors_lost: int
    lost_core_ms: int
    spent: SpentShown | None = None
    """Of what ended in the month."""


class AppUse(Used, frozen=True, kw_only=True):
    """The use by an app."""

    app: str


class UserUse(Used, frozen=True, kw_only=True):
    """The use by a user and its apps."""

    user: str
    apps: list[AppUse]


class Statement(Camel, frozen=True, kw_only=True):
    """A company's use in a month, with the span and the digest of the log that proves it."""

    verdict: str | None
    company: str
    month: str
    log: LogSpan
    total: Used
    users: list[UserUse]


class LevelUse(Used, frozen=True, kw_only=True):
    """The use by a department, or by a company or a user in it; `departments` are those within the one reported on."""

    level: Literal["department", "company", "user"]
    departments: list[str]
    company: str
    user: str


class DepartmentsStatement(Camel, frozen=True, kw_only=True):
    """The use of a department in a month, of the cluster if it is "", with the span of the log that proves it."""

    verdict: str | None
    department: str
    month: str
    by: Literal["department", "company", "user"]
    log: LogSpan
    total: Used
    rows: list[LevelUse]


class Spread(Camel, frozen=True, kw_only=True):
    """The mean, the median and the largest of some values."""

    mean: float
    p50: float
    most: float


class Waits(Camel, frozen=True, kw_only=True):
    """How long apps waited, and how they did compared with a cluster of their own."""

    apps: int
    admitted: int
    ended: int
    still_waiting: int
    executors_lost: int
    lost_core_ms: int
    wait_p50_ms: int | None
    wait_p90_ms: int | None
    wait_p99_ms: int | None
    wait_longest_ms: int | None
    bounded_slowdown: Spread | None
    finish_time_fairness: Spread | None


class KindMeans(Camel, frozen=True, kw_only=True):
    """The figures of a party for a further kind; `shortfall_s` in amount-seconds."""

    demand: float | None
    entitled: float | None
    occupied: float | None
    granted: float | None
    shortfall_s: float = field(name="shortfallS")


class KindUse(Camel, frozen=True, kw_only=True):
    """What workers offered of a further kind, and what part of it was granted."""

    offered: float | None
    utilisation: float | None


class PartyFigures(Waits, frozen=True, kw_only=True):
    """The figures of a company, a user or a department; means over time, in cores."""

    company: str
    """Of a department "", and of a company in none its name."""
    user: str | None = None
    department: str | None = None
    jain: float | None = None
    """Of a department: Jain's index among what is directly in it."""
    demand_cores: float | None
    entitled_cores: float | None
    occupied_cores: float | None
    granted_cores: float | None
    share: float | None
    shortfall_core_s: float = field(name="shortfallCoreS")
    beyond_quota_core_s: float = field(name="beyondQuotaCoreS")
    grant_shortfall_core_s: float = field(name="grantShortfallCoreS")
    longest_out_of_turn_ms: int
    resources: dict[str, KindMeans] | None = None


class ClusterFigures(Waits, frozen=True, kw_only=True):
    """The figures of the cluster; means over time."""

    cores: float | None
    utilisation: float | None
    jain: float | None
    fairness_error: float | None
    queue_length: float | None
    shortfall_core_s: float = field(name="shortfallCoreS")
    resources: dict[str, KindUse] | None = None


class ShareMeans(Camel, frozen=True, kw_only=True):
    """The means of a party in a step of time, in cores."""

    demand: float
    entitled: float
    occupied: float
    granted: float


class StepMeans(Camel, frozen=True, kw_only=True):
    """A step of time that begins at `at`: the mean queue, and the means of each party."""

    at: int
    queue_length: float
    shares: dict[str, ShareMeans]


class FairnessFigures(Camel, frozen=True, kw_only=True):
    """How fair a span was to companies, users or departments."""

    verdict: str | None = None
    log: LogSpan | None = None
    by: Literal["company", "user", "department"]
    from_at: int
    to_at: int
    cluster: ClusterFigures
    rows: list[PartyFigures]
    series: list[StepMeans]


class FirstDifference(Camel, frozen=True, kw_only=True):
    """The first decision in which two worlds differ, and both decisions."""

    number: int
    log: dict[str, Any] | None
    other: dict[str, Any] | None


class UserFigures(Waits, frozen=True, kw_only=True):
    """The figures of a user in a comparison."""

    company: str
    user: str
    share: float | None
    shortfall_core_s: float = field(name="shortfallCoreS")
    granted_core_h: float = field(name="grantedCoreH")


class DueAtEnd(AmountsDue, frozen=True, kw_only=True):
    """How a company, or a user of it, stands where a course of things ends."""

    company: str
    user: str
    """Empty for the whole company."""


class StandingsAtEnd(Camel, frozen=True, kw_only=True):
    """How all stand where a course of things ends."""

    companies: list[DueAtEnd]
    users: list[DueAtEnd]


class WorldFigures(Camel, frozen=True, kw_only=True):
    """The figures of a course of things, the time that all took, and how many apps were refused."""

    by: Literal["company", "user"]
    from_at: int
    to_at: int
    cluster: ClusterFigures
    rows: list[PartyFigures]
    series: list[StepMeans] | None = None
    standing: StandingsAtEnd | None = None
    """Who held above and below an entitlement at the end, where the rules were asked for by edition."""
    users: list[UserFigures]
    makespan_ms: int | None
    refused: int


class Compared(Camel, frozen=True, kw_only=True):
    """The log beside its inputs under other rules."""

    log: WorldFigures
    other: WorldFigures
    first_difference: FirstDifference | None


class CoursePoint(Camel, frozen=True, kw_only=True):
    """The cores of live workers, those granted, and the apps pending, from a time on."""

    at: int
    cores: int
    used: int
    pending: int


class CourseOfHour(Camel, frozen=True, kw_only=True):
    """The use of the cluster and its queue in the last hour."""

    points: list[CoursePoint]


# The page


class Capacity(Camel, frozen=True, kw_only=True):
    """What live workers offer of a kind, and how much of it is used, held for apps, on suspected workers, and free."""

    kind: str
    total: int
    used: int
    held: int
    shut: int
    free: int


class Waiter(Camel, frozen=True, kw_only=True):
    """Who has waited longest in a company, since when and why; of other companies, tenants see less."""

    app: str | None = None
    user: str | None = None
    since: int
    cause: str
    rule: str
    text: str | None = None
    facts: dict[str, Any] | None = None


class CompanyNow(CompanyShare, frozen=True, kw_only=True):
    """A company as the page shows it; `part`, `claim` and `beyond`: entitled, demand and lent by earlier names."""

    department: str = ""
    """The department that it is in, "" = none."""
    part_cores: int
    part_memory: int
    claim_cores: int
    claim_memory: int
    beyond_cores: int
    beyond_memory: int
    pending: int
    admitted: int
    longest: Waiter | None


class ConditionShown(Camel, frozen=True, kw_only=True):
    """A condition that holds: about what, in a sentence, what to do, since when, and what it costs."""

    condition: str
    severity: Literal["warning", "critical"]
    about: str
    sentence: str
    do: str
    since: int
    cost: str


class HealthShown(Camel, frozen=True, kw_only=True):
    """The severity of the whole, all conditions in a sentence, and each of them."""

    severity: Literal["ok", "warning", "critical"]
    sentence: str
    conditions: list[ConditionShown]


class DecisionTold(Moment, frozen=True, kw_only=True):
    """A decision in a few words."""

    type: str
    text: str


class AuditorState(Verbatim, frozen=True, kw_only=True):
    """How far the auditor that follows the log is, and what it found; "" and 0: nothing."""

    seq: int
    digest: str
    at: int
    events: int
    decisions: int
    deviations: int
    first: int
    verdict: str
    trouble: str
    rewound_from: int
    rewound_at: int
    rewound_lost: str
    host: str
    pid: int


class Masters(Camel, frozen=True, kw_only=True):
    """The master that serves, and the standbys."""

    serving: str | None
    standbys: list[str]


class Overview(Camel, frozen=True, kw_only=True):
    """The cluster at a glance. Of a past position it has no auditor and no masters."""

    capacity: list[Capacity]
    apps: dict[str, int]
    companies: list[CompanyNow]
    departments: list[DepartmentShown]
    """From the top down, each after the one that it is in."""
    workers: dict[str, int]
    health: HealthShown
    decisions: list[DecisionTold]
    head: int
    cluster: str
    audited: AuditorState | None = None
    masters: Masters | None = None


class TaskCounts(Verbatim, frozen=True, kw_only=True):
    """The numbers of an app's tasks by state, and what their attempts used."""

    tasks: int
    queued: int
    running: int
    succeeded: int
    failed: int
    later: int
    """Failed tasks that wait for their next attempt."""
    cpu_ms: int
    peak_mb: int
    output_bytes: int
    cancelled: int


class BoardRow(AppRow, frozen=True, kw_only=True):
    """An app on the page's list, and why it waits since when."""

    priority: int
    since: int
    cause: str | None
    rule: str | None
    why: str | None
    executors: int
    progress: TaskCounts | None = None


class BoardPage(Camel, frozen=True, kw_only=True):
    """A part of the apps that pass, from number `start` on, and how many pass."""

    apps: list[BoardRow]
    number: int
    start: int


class TaskUse(Verbatim, frozen=True, kw_only=True):
    """What the tasks of an app used: CPU time in ms, the largest memory in MiB."""

    cpu_ms: int
    peak_mb: int


class AppCard(AppDetails, frozen=True, kw_only=True):
    """An app, why it waits and what would help; of the present, its tasks in numbers and its links."""

    waits_for: WaitReason | None
    help: str | None
    queue: QueuePlace | None
    standing: AppStands | None
    progress: TaskCounts | None = None
    used: TaskUse | None = None
    links: dict[str, str] | None = None


class Stretch(Camel, frozen=True, kw_only=True):
    """A time for which an app waited for one cause."""

    cause: str
    rule: str
    begin: int = field(name="from")
    to: int


class LaneLoss(Camel, frozen=True, kw_only=True):
    """Why an executor had to leave; of a claim the rule, the claimant, since when it waits, and the shares."""

    reason: str
    window: str | None = None
    rule: str | None = None
    claimant: str | None = None
    claimant_company: str | None = None
    since: int | None = None
    shares: ClaimShares | None = None


class Lane(Camel, frozen=True, kw_only=True):
    """An executor or the driver from its grant on; None: not yet."""

    id: str
    what: Literal["executor", "driver"]
    worker: str
    cores: int
    memory: int
    seq: int
    begin: int = field(name="from")
    running: int | None
    told: int | None
    """When it was told to leave."""
    to: int | None
    end: str | None
    loss: LaneLoss | None


class TimelineAsk(Moment, frozen=True, kw_only=True):
    """A command about an app, who sent it and why, and the sentence with which it was refused."""

    command: str
    account: str
    role: str
    reason: str | None
    refused: str | None


class TimelineShown(Camel, frozen=True, kw_only=True):
    """The life of an app up to a time; of very many parts the newest."""

    app: str
    company: str
    user: str
    submitted_at: int
    admitted_at: int | None
    ended_at: int | None
    until: int
    waits: list[Stretch]
    executors: list[Lane]
    left_out: int
    marks: list[DecisionTold]
    asked: list[TimelineAsk]


class UserCard(Camel, frozen=True, kw_only=True):
    """What a user of a company holds and waits for; since when its oldest app waits."""

    company: str
    user: str
    occupied_cores: int | None = None
    occupied_memory: int | None = None
    granted_cores: int | None = None
    granted_memory: int | None = None
    occupied_resources: Further | None = None
    granted_resources: Further | None = None
    demand_cores: int | None = None
    demand_memory: int | None = None
    entitled_cores: int | None = None
    entitled_memory: int | None = None
    held_cores: int | None = None
    held_memory: int | None = None
    leaving_cores: int | None = None
    leaving_memory: int | None = None
    lent_cores: int | None = None
    lent_memory: int | None = None
    below_cores: int | None = None
    below_memory: int | None = None
    demand_resources: Further | None = None
    entitled_resources: Further | None = None
    held_resources: Further | None = None
    leaving_resources: Further | None = None
    lent_resources: Further | None = None
    below_resources: Further | None = None
    pending: int
    admitted: int
    since: int | None


class CompanyCard(CompanyNow, frozen=True, kw_only=True):
    """What a company holds, is due and waits for; `own`: whether who asks sees more than what is public."""

    quota: str
    borrow: bool
    default_max_runtime: int | None
    max_max_runtime: int | None
    end_idle: bool = False
    used_core_ms: int
    used_memory_ms: int
    used_resources: Further | None = None
    users: int
    apps: int
    short_cores: int
    causes: dict[str, int]
    by_user: list[UserCard]
    own: bool


class Run(Camel, frozen=True, kw_only=True):
    """An executor or a driver on a worker."""

    id: str
    app: str
    company: str
    cores: int
    memory: int
    status: str
    since: int


class FleetWorker(WorkerShown, frozen=True, kw_only=True):
    """A worker with what runs on it."""

    condition: str
    """Its status, or `suspect`."""
    runs: list[Run]
    lost_at: int | None


class FleetShown(Camel, frozen=True, kw_only=True):
    """The workers, lost ones included."""

    workers: list[FleetWorker]


# Who asks, and what runs


class WorkerTerms(Camel, frozen=True, kw_only=True):
    """The host from which a worker was invited, and the most that it may offer; None: any."""

    host: str | None
    offer: dict[str, int] | None


class WhoAmI(Camel, frozen=True, kw_only=True):
    """The caller's account; scopes None: all of the role. `accounts`: whether the cluster has any."""

    account: str
    token: str
    role: str
    door: str
    company: str
    scopes: list[str] | None
    accounts: bool
    expires: int | None
    once: bool
    """Whether the token is an invitation."""
    terms: WorkerTerms | None = None
    sees: list[str] | None = []
    """The companies all of whose apps the caller may see; None = everybody's."""


class PageSession(Camel, frozen=True, kw_only=True):
    """Who looks at the page, and what they may do: a reach by verb, and the verbs that need a reason.

    `causes` are the causes of waiting by name, each in a few words.
    """

    account: str
    role: str
    company: str
    user: str
    until: int | None
    cluster: str
    seq: int
    at: int
    closed: bool
    can: dict[str, str]
    companies: list[str]
    """What the reach `company` is of an admin: its own, and those in departments of which it is one (semantics I3)."""
    reasons: list[str]
    causes: dict[str, str]


class MasterProcess(Camel, frozen=True, kw_only=True):
    """A master: its id, process and host."""

    id: str
    pid: int
    host: str


class LastElection(Camel, frozen=True, kw_only=True):
    """The last election: which master, after which one, when, and for how long at most nobody served."""

    master: str
    before: str
    at: int
    unserved_ms: int


class AgentState(WorkerState, frozen=True, kw_only=True):
    """A worker, and the process of its agent as far as it is known: since when it runs (s), and what isolates tasks."""

    pid: int | None
    host: str | None
    started_s: float | None = field(default=None, name="started_s")
    isolation: dict[str, str] | None = None
    api: bool | None = None
    """Whether it works through API servers."""


class StoreSize(Camel, frozen=True, kw_only=True):
    """The size of the log in the store and the store's limit of memory in bytes, 0 where unknown."""

    log_bytes: int
    memory_limit: int


class Status(Camel, frozen=True, kw_only=True):
    """The masters, the workers with their processes, the head of the log and the health."""

    cluster: str
    head: int
    health: HealthShown
    master: MasterProcess | None
    standbys: list[MasterProcess]
    election: LastElection | None
    workers: list[AgentState]
    too_large: int
    store: StoreSize


class OwnerState(Camel, frozen=True, kw_only=True):
    """The state of an app, which says whether it goes on."""

    state: AppState


class MailName(Camel, frozen=True, kw_only=True):
    """The name of a message that was left."""

    name: str


class Mail(MailName, frozen=True, kw_only=True):
    """A message; None: there is none."""

    text: str | None


class VisitBegun(Camel, frozen=True, kw_only=True):
    """The id of a command that runs in the cell of an executor."""

    visit: str


class VisitReply(Verbatim, frozen=True, kw_only=True):
    """What a command has printed: chunks, each after "1" or "2" for stdout or stderr, in base64."""

    chunks: list[bytes]
    exit_code: int | None
    error: str
    full: bool


class OutputShown(Camel, frozen=True, kw_only=True):
    """What a task, or the driver (None), has printed."""

    task: int | None
    output: bytes
    """The last bytes, in base64."""
    stderr: list[tuple[int, int]]
    """The places of its bytes from stderr, first and end."""
    written: tuple[int, int]
    """How many bytes stdout and stderr have had in all."""


class Alive(Camel, frozen=True, kw_only=True):
    """The position up to which the server has folded the log."""

    seq: int


class PageLink(Camel, frozen=True, kw_only=True):
    """The key of a link that opens one session, and the `url` of the page; "" = the server has none in a network."""

    key: str
    account: str
    until: int
    url: str


class Nothing(Camel, frozen=True, kw_only=True):
    """Nothing but that it is done."""


class LoginProvider(Verbatim, frozen=True, kw_only=True):
    """What a client needs to send its browser to the OpenID provider."""

    issuer: str
    client: str
    authorize: str
    scope: str


class SignedInAs(Verbatim, frozen=True, kw_only=True):
    """The account whose token was issued, and the position of that in the log."""

    account: str
    seq: int
