"""Commands: requests to the scheduler, one frozen struct per kind, and their JSON form in the inbox.

Reading a command checks only names and types. `decide` checks whether it is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scheduler.model.errors import InvalidCommand
from scheduler.model.outputs import OpenMode
from scheduler.model.sender import By
from scheduler.model.staged import FILES, SCRIPT, digest_of, script_of_value
from scheduler.model.states import Condition
from scheduler.model.terms import AppTerms, ExecutorLimit, Grace, OwnerTimeout
from scheduler.model.text import counted

BATCH = 1_000
"""The most commands in a batch, and in a turn."""
MAX_COMMAND_BYTES = 256 * 1024
"""The most bytes of a command's JSON."""
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""The most bytes of a batch's JSON, and of the commands that a turn takes."""
MAX_VARIABLES = 1024
MAX_VARIABLES_BYTES = 256 * 1024
MAX_VARIABLE_BYTES = 128 * 1024 - 1
"""The most bytes of `NAME=VALUE`: Linux starts no program with a longer one."""

if TYPE_CHECKING:
    Setting = Any
else:
    Setting = bool | int | float | str | None
    """What a setting can be; the type of each is checked by `decide`."""


class _CommandFields(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, tag=True, tag_field="type"
):
    """A command. Only reading it from JSON checks the types of its values."""


class ConfigureCluster(_CommandFields, frozen=True):
    """Change these settings and keep the others."""

    settings: dict[str, Setting]


class ChangeEdition(_CommandFields, frozen=True):
    """Decide by that edition of the rules of sharing from now on (semantics H)."""

    edition: int


class RegisterKind(_CommandFields, frozen=True):
    """Let workers offer, and apps request, a kind of resources beside cores and memory (semantics R1)."""

    kind: str


class RegisterCompany(_CommandFields, frozen=True):
    """Add a tenant with a quota: both amounts, or `part` ("n/d" or "25%"), or neither for 1/N (semantics C2).

    `borrow`: whether it may exceed its quota (semantics H1); None = only a default quota may be passed (C2).
    `resources`: amounts of further kinds; those not named are not limited (semantics R4). The two times, in seconds,
    take the place of the settings of the same name (semantics X1). `end_idle`: end what its apps leave unused (W13).
    """

    company: str
    cores: int | None = None
    memory_mb: int | None = None
    part: str | None = None
    borrow: bool | None = None
    resources: dict[str, int] = {}
    default_max_runtime_s: int | None = None
    max_max_runtime_s: int | None = None
    end_idle: bool | None = None


class ChangeCompany(_CommandFields, frozen=True):
    """Change what is given of a tenant: its quota in full, where `part` "none" is 1/N (semantics C2), or other things.

    The times are as in `RegisterCompany`; 0 removes one.
    """

    company: str
    cores: int | None = None
    memory_mb: int | None = None
    part: str | None = None
    borrow: bool | None = None
    resources: dict[str, int] = {}
    default_max_runtime_s: int | None = None
    max_max_runtime_s: int | None = None
    end_idle: bool | None = None


class RemoveCompany(_CommandFields, frozen=True):
    """Remove a tenant without apps."""

    company: str


class AddDepartment(_CommandFields, frozen=True):
    """Add a department within the `parent`, "" = the cluster (semantics H12).

    Its quota is both amounts, or `part` ("n/d" or "25%"), or neither for the sum of what is in it; `resources` as in
    `RegisterCompany`. The limits are parts of its quota: what it may borrow beyond it, and what others may use of it;
    "none" = as much as there is. If None, a quota of its own may not be passed, and all of it is lent.
    """

    department: str
    parent: str = ""
    cores: int | None = None
    memory_mb: int | None = None
    part: str | None = None
    resources: dict[str, int] = {}
    borrow_limit: str | None = None
    lend_limit: str | None = None


class ChangeDepartment(_CommandFields, frozen=True):
    """Change what is given of a department's place, quota and limits; `part` "none" = the sum of what is in it."""

    department: str
    parent: str | None = None
    cores: int | None = None
    memory_mb: int | None = None
    part: str | None = None
    resources: dict[str, int] = {}
    borrow_limit: str | None = None
    lend_limit: str | None = None


class RemoveDepartment(_CommandFields, frozen=True):
    """Remove a department in which nothing is."""

    department: str


class MoveCompany(_CommandFields, frozen=True):
    """Put a company into a department, "" = into none (semantics H12)."""

    company: str
    department: str


class SetLimit(_CommandFields, frozen=True):
    """Set a limit of the cluster, a company or a user of it, where `*` are all without their own (semantics N1).

    The cluster's is that of every company without its own; a department's is that of all companies in it together.
    `value` None removes the limit.
    """

    scope: Literal["cluster", "company", "user", "department"]
    name: str
    value: int | None = None
    company: str | None = None
    user: str | None = None
    department: str | None = None


class RegisterWorker(_CommandFields, frozen=True, kw_only=True):
    """Register a worker with its offer. Repeating the same offer changes nothing (semantics W1).

    `resources`: kind -> the addresses that it offers (semantics R1). `labels`: what people, and apps, know it by;
    `taints`: it takes only apps that tolerate all of these (P9).
    """

    worker: str
    node: str
    host: str
    rack: str = ""
    cores: int
    memory_mb: int
    resources: dict[str, tuple[str, ...]] = {}
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()


class DrainWorker(_CommandFields, frozen=True):
    """Stop granting on the worker; its executors and drivers continue (semantics W3). `reason`: why, for people.

    `unwell`: the worker's own health check has failed (W11).
    """

    worker: str
    reason: str = ""
    unwell: bool = False


class DecommissionWorker(_CommandFields, frozen=True):
    """Stop granting on the worker permanently and stop its executors (semantics W3)."""

    worker: str


class UndrainWorker(_CommandFields, frozen=True):
    """Resume granting on the worker (semantics W3). `unwell`: only if its own health check had stopped it (W11)."""

    worker: str
    unwell: bool = False


class AddWindow(_CommandFields, frozen=True):
    """From `begin` to `end` (ms) nothing runs on these workers, or of nobody but the company (semantics W14).

    `notice_s` before its beginning, whoever runs there is told to leave. `reason`: what it is for, which all can read.
    """

    window: str
    workers: tuple[str, ...]
    begin: int
    end: int
    company: str = ""
    reason: str = ""
    notice_s: int = 300


class RemoveWindow(_CommandFields, frozen=True):
    """The window is off, or over now (semantics W14)."""

    window: str


class RemoveWorker(_CommandFields, frozen=True):
    """Remove the worker once it is empty, or with `force` at once; its executors are lost (semantics W3)."""

    worker: str
    force: bool = False


class LoseWorker(_CommandFields, frozen=True):
    """Declare a silent worker lost; `last_seen` is its last heartbeat in ms (semantics W2)."""

    worker: str
    last_seen: int = 0


class SubmitApp(AppTerms, _CommandFields, frozen=True):
    """Queue an app for its user, under a new id: `tasks` of `cores_per_task` cores each, `cores` of them held at once.

    `env` holds names of variables; the client stores their values elsewhere. Executors as in Spark (semantics S5):
    `executor_cores` fixes their size, `executor_memory_mb` alone gives one growing executor per worker; `cores` may
    then be "unlimited" if admission is open. With `driver`, `command` is the driver's program. `elastic` are the least
    and the most executors of an app whose demand follows its backlog (L6). `priority` orders the user's own apps (Q1).
    `after`: condition -> earlier apps of the company that must have ended so first, or begun (J1); `hold`: not before a
    release (J3); `begin`: not before that time, in ms (J4); `singleton`: after the apps of its user and name (J1). Of
    further kinds, an app that sizes its executors states what each executor has, another one what each task needs, such
    as "1" or "1/4" (R3). `max_runtime_s` is the time that the app may run (X1), `warn` a signal and how many seconds
    before that its tasks get it (X2). `reclaim_signal`: the signal that tasks get when their executor is told to leave
    for a need (H7). `array`: the indexes that the tasks find in their environment, such as `1-10,15`; `tasks` is their
    number.

    With `executor_program`, each executor runs one program: `command`, or beside a driver `executor_command`; the app
    demands `executor_limit` executors (G1). The app fails if its owner gives no sign of life for `owner_timeout_s`
    (G4). `grace_s`: how long what runs has between SIGTERM and SIGKILL (G5). `all_at_once`: the programs need one
    another, so a number that can never run at once is refused (N3).

    `near`: host -> list of the indexes of the tasks that prefer it (L7). `preferring_tasks` of them prefer some host,
    and `prefer` of them each host: both follow from `near`, and decisions depend on them alone.

    `network`: what the tasks find, "" = that of the machine (W12).

    `notify`: a URL or an address of mail to which the app's end is told; `notify_at`, its place, follows from it and is
    what is decided upon (I9).

    `keep_going`: a task that fails for good does not end the app before the others have ended. `comment`: for people.
    `script`: the digest of the script that is the word `script_at` of the command, and of which a copy is stored.

    With `small`, a single task that needs fewer cores than the smallest executor has an executor of its own size (A1).

    `output` and `error` are patterns of files to which tasks write besides the worker's own, opened by `open_mode`
    (`scheduler.model.outputs`); without `error`, errors go to the file of the output. `numbered`: in them the app is
    named by the position of its submission.
    """

    app: str
    company: str
    user: str
    name: str = ""
    kind: str = "batch"
    cores: int | Literal["unlimited"] | None = None
    memory_per_task_mb: int | None = None
    tasks: int | None = None
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    cwd: str | None = None
    retries: int = 0
    time_limit_s: int | None = None
    sizing: str | None = None
    executor_cores: int | None = None
    executor_memory_mb: int | None = None
    executor_limit: ExecutorLimit = None
    driver: bool = False
    driver_cores: int | None = None
    driver_memory_mb: int | None = None
    supervise: bool = False
    elastic: tuple[int, int] | None = None
    priority: int = 0
    after: dict[Condition, tuple[str, ...]] = {}
    hold: bool = False
    begin: int | None = None
    singleton: bool = False
    cores_per_task: int | None = None
    executor_resources: dict[str, int] = {}
    task_resources: dict[str, str] = {}
    driver_resources: dict[str, int] = {}
    max_runtime_s: int | None = None
    warn: tuple[str, int] | None = None
    reclaim_signal: str | None = None
    array: str = ""
    executor_program: bool = False
    executor_command: tuple[str, ...] = ()
    grace_s: Grace = None
    owner_timeout_s: OwnerTimeout = None
    near: dict[str, str] = {}
    prefer: dict[str, int] = {}
    preferring_tasks: int | None = None
    all_at_once: bool = False
    output: str = ""
    error: str = ""
    open_mode: OpenMode = "truncate"
    numbered: bool = False
    script: str = ""
    script_at: int = 0
    small: bool = False
    keep_going: bool = False
    comment: str = ""
    network: Literal["", "none", "app", "host"] = ""
    notify: str = ""
    notify_at: str = ""


def needs_all(fields: Mapping[str, Any]) -> bool:
    """Whether an app with these fields needs its programs at once unless it says otherwise (semantics N3).

    One with a driver or an owner gets executors as there is room.
    """
    return bool(fields.get("executor_program")) and not fields.get("driver") and fields.get("owner_timeout_s") is None


class ScaleApp(_CommandFields, frozen=True):
    """Replace the demand of an app in full: its number of executors and the hosts its tasks prefer (semantics L1).

    `executors` is the maximum, None = no limit (P4). `prefer` maps host -> number of tasks that prefer it.
    `preferring_tasks` is the number of tasks with any preference; None = the sum of `prefer`, at most all tasks.
    The executors `stop` are told to stop in the same turn; ids of others are ignored. The size of executors that run a
    program can be stated until the first is granted (G1).
    """

    app: str
    executors: int | None
    prefer: dict[str, int] = {}
    preferring_tasks: int | None = None
    stop: tuple[str, ...] = ()
    executor_cores: int | None = None
    executor_memory_mb: int | None = None
    executor_resources: dict[str, int] = {}


class KillExecutors(_CommandFields, frozen=True):
    """Stop these executors of an app and keep its demand; ids of other executors are ignored (semantics P6)."""

    app: str
    executors: tuple[str, ...]


class KillApp(_CommandFields, frozen=True):
    """End an app; its executors stop and hold their grants until they are gone (semantics A5).

    Operators state a `reason` once there are accounts (semantics I3).
    """

    app: str
    reason: str = ""


class SignalApp(_CommandFields, frozen=True):
    """Send a signal, named without SIG, to what runs of an app, or to its task of that index from 0 (semantics X4).

    It goes to the process of each task, or `whole` to all processes that come from it. Operators state a `reason` as
    for `KillApp`.
    """

    app: str
    signal: str
    task: int | None = None
    whole: bool = False
    reason: str = ""


class CancelTask(_CommandFields, frozen=True):
    """Cancel a task of an app, by its index from 0; the others go on (semantics X4).

    Operators state a `reason` as for `KillApp`.
    """

    app: str
    task: int
    reason: str = ""


class RequeueApp(_CommandFields, frozen=True):
    """Put an app that was admitted back into its user's queue, under its own id (semantics X6).

    With `task`, an index from 0, that one alone stops and begins again, where `executor` runs it. Operators state a
    `reason` as for `KillApp`.
    """

    app: str
    reason: str = ""
    task: int | None = None
    executor: str = ""


class FinishApp(_CommandFields, frozen=True):
    """The owner of an app without a driver, whose executors run a program, ends it (semantics G4)."""

    app: str
    outcome: Literal["finished", "failed"] = "finished"
    detail: str = ""


class LoseOwner(_CommandFields, frozen=True):
    """Declare the owner of an app lost; `last_seen` is its last sign of life in ms, 0 = none (semantics G4)."""

    app: str
    last_seen: int = 0


class ExtendApp(_CommandFields, frozen=True):
    """Let the app run `by_s` seconds longer: up to the maximum, or `beyond_maximum`, as operators may (X1)."""

    app: str
    by_s: int
    beyond_maximum: bool = False


class ReprioritizeApp(_CommandFields, frozen=True):
    """Change an app's priority among its user's apps (semantics Q1)."""

    app: str
    priority: int


class HoldApp(_CommandFields, frozen=True):
    """Keep a pending app from being admitted until it is released (semantics J3)."""

    app: str


class ReleaseApp(_CommandFields, frozen=True):
    """End the hold of an app (semantics J3)."""

    app: str


class EndApp(_CommandFields, frozen=True):
    """A worker reports the end of the app: every task succeeded, or one failed permanently.

    `executor` is the one that saw it, "" in older logs.
    """

    app: str
    reason: Literal["finished", "failed"]
    detail: str = ""
    executor: str = ""


class Measured(NamedTuple):
    """What an executor or a driver that ended has used, as its worker says: CPU time (ms), peak memory (MiB)."""

    cpu_ms: int
    peak_mb: int


class StartedExecutor(_CommandFields, frozen=True):
    """A worker reports that an executor's processes are up.

    `worker` is the sender, here and below: after a store failover that lost entries, another worker may hold an
    executor of the same id.
    """

    executor: str
    worker: str = ""


class EndedExecutor(_CommandFields, frozen=True, kw_only=True):
    """A worker reports that an executor is gone; `done` = no task was left for it (semantics S6).

    `finished`: a task of its app finished in it (W7). `unstartable`: why its app's command cannot be started on the
    worker, "" if it can (W9). `detail`: why its program failed (G2). `used`: None = the worker does not say (O5).
    """

    executor: str
    worker: str = ""
    reason: Literal["exited", "failed", "killed"]
    exit_code: int | None = None
    done: bool = False
    finished: bool = False
    unstartable: str = ""
    detail: str = ""
    used: Measured | None = None


class ReportBacklog(_CommandFields, frozen=True):
    """An executor of an elastic app reports waiting and running tasks, and whether it is `idle` (semantics L6).

    One of an app whose tasks prefer hosts reports as well how many of the waiting ones do, and host -> how many prefer
    it (L7); None = it does not say.
    """

    executor: str
    waiting: int
    running: int
    idle: bool = False
    preferring_tasks: int = 0
    prefer: dict[str, int] | None = None


class EndedDriver(_CommandFields, frozen=True, kw_only=True):
    """A worker reports that an app's driver is gone (semantics D3); `detail` says why it failed, `used` as above."""

    driver: str
    worker: str = ""
    reason: Literal["exited", "failed", "killed"]
    exit_code: int | None = None
    detail: str = ""
    used: Measured | None = None


class AddAccount(_CommandFields, frozen=True, kw_only=True):
    """Add an account, with a role (semantics I2). `company`: whose user it is, None for op, auditor and worker.

    `role` None = the least role that the account's kind has. A `robot` has longer tokens (I5). A worker's account fixes
    its `host` and the most it may offer; None = any (I3).
    """

    account: str
    display: str = ""
    role: Literal["user", "admin"] | None = None
    robot: bool = False
    host: str | None = None
    cores: int | None = None
    memory_mb: int | None = None
    resources: dict[str, int] = {}


class ChangeAccount(_CommandFields, frozen=True, kw_only=True):
    """Change how the account is shown."""

    account: str
    display: str


class RemoveAccount(_CommandFields, frozen=True):
    """Remove an account and its tokens; its apps stay."""

    account: str


class GrantRole(_CommandFields, frozen=True):
    """Give an account of a company one more role, or make its admin one of a department, too (semantics I2)."""

    account: str
    role: Literal["user", "admin"]
    department: str = ""


class RevokeRole(_CommandFields, frozen=True):
    """Take a role from an account; the tokens that act in it end (semantics I5). Or take a department from an admin."""

    account: str
    role: Literal["user", "admin"]
    department: str = ""


class IssueToken(_CommandFields, frozen=True, kw_only=True):
    """Issue a token of the account under the random `token` id; `hash` is the hex SHA-256 of its text (semantics I5).

    `role` None = the strongest of the account; `scopes` None = all verbs of the role; `lifetime_s` None = the longest.
    `once`: an invitation, good for one `IssueToken` that replaces it. `replaces`: a token of the account that ends.
    """

    token: str
    account: str
    hash: str
    role: Literal["user", "admin"] | None = None
    scopes: tuple[str, ...] | None = None
    lifetime_s: int | None = None
    once: bool = False
    replaces: str | None = None


class RevokeToken(_CommandFields, frozen=True):
    """End a token."""

    token: str


class ShowApps(_CommandFields, frozen=True):
    """Whether all users of a company see each other's apps (semantics I3)."""

    company: str
    shown: bool


class RestoreLog(_CommandFields, frozen=True):
    """Go on with a log that was restored or imported: its workers are gone, and the masters' key `key` signs (I7).

    `public` is the key's public half (hex); "" = the key in force goes on to sign, or none does.
    """

    key: str = ""
    public: str = ""


class AcceptLog(_CommandFields, frozen=True):
    """Go on with a log that is shorter than one that was known (semantics I7).

    `seq` and `digest` are its last turn's; `known` and `known_digest` those of a turn that it does not hold, as `by`
    knew it, such as "master m1".
    """

    seq: int
    digest: str
    known: int
    known_digest: str
    by: str


AccountCommand = (
    AddAccount | ChangeAccount | RemoveAccount | GrantRole | RevokeRole | IssueToken | RevokeToken | ShowApps
)
CompanyCommand = RegisterCompany | ChangeCompany | SetLimit | RemoveCompany
WorkerCommand = RegisterWorker | DrainWorker | DecommissionWorker | UndrainWorker | RemoveWorker | LoseWorker
WindowCommand = AddWindow | RemoveWindow
DepartmentCommand = AddDepartment | ChangeDepartment | RemoveDepartment | MoveCompany
AppCommand = (
    SubmitApp
    | ScaleApp
    | ExtendApp
    | KillExecutors
    | KillApp
    | SignalApp
    | CancelTask
    | RequeueApp
    | FinishApp
    | LoseOwner
)
OrderCommand = ReprioritizeApp | HoldApp | ReleaseApp
Report = EndApp | StartedExecutor | EndedExecutor | ReportBacklog | EndedDriver
"""What a worker reports."""
Command = (
    ConfigureCluster
    | RestoreLog
    | AcceptLog
    | ChangeEdition
    | RegisterKind
    | CompanyCommand
    | AccountCommand
    | WorkerCommand
    | WindowCommand
    | DepartmentCommand
    | AppCommand
    | OrderCommand
    | Report
)


NEVER_SENT: dict[type[Any], str] = {
    LoseWorker: "only the master declares a worker lost; `fairlog remove --force` removes one",
    LoseOwner: "only the master declares an owner lost; `fairlog finish` ends an app",
    RestoreLog: "a log is restored by `fairlog restore`, before any master is started",
    AcceptLog: "a shorter log is accepted by `fairlog recover`, while masters refuse to serve",
    ChangeEdition: "the edition of the rules is changed by `fairlog edition`, while masters refuse to serve",
}
"""The commands that no message carries, and why one that does is refused: others say them, without a message."""


class Private(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The parts of a command that no decision depends on; `env` holds names of variables.

    They are kept beside the log's events under a commitment, and may be withheld. A submission has all but three:
    `display` is how an account is shown, `said` why an app or a worker was ended, in its sender's words, `used` what an
    executor or a driver has used.
    """

    name: str = ""
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    cwd: str | None = None
    array: str = ""
    executor_command: tuple[str, ...] = ()
    near: dict[str, str] = {}
    display: str = ""
    said: str = ""
    output: str = ""
    error: str = ""
    open_mode: OpenMode = "truncate"
    numbered: bool = False
    script: str = ""
    script_at: int = 0
    keep_going: bool = False
    comment: str = ""
    notify: str = ""
    used: Measured | None = None


WITHHELD = "…"
"""What stands in the log for a text that was given and is private."""
_SAID: dict[type[Any], str] = {
    KillApp: "reason",
    SignalApp: "reason",
    CancelTask: "reason",
    RequeueApp: "reason",
    FinishApp: "detail",
    DrainWorker: "reason",
}
"""Command -> its field in which people say why."""
WITH_REASON = KillApp, SignalApp, CancelTask, RequeueApp
"""The commands for which operators state a reason."""
BY_WHAT_RUNS = KillApp, SignalApp, CancelTask, RequeueApp
"""What may be done to an app in the name of the worker on which something of it runs (semantics X4, X6)."""
_DISPLAY = frozenset({AddAccount, ChangeAccount})
_ENDS = frozenset({EndedExecutor, EndedDriver})
_NOTHING = Private()
_OF_SUBMISSIONS: dict[str, Any] = {
    name: getattr(_NOTHING, name) for name in Private.__struct_fields__ if name not in {"display", "said", "used"}
}
"""The private fields of a submission, and what stands for each if it has none."""
WITH_PRIVATE: frozenset[type[Any]] = frozenset({SubmitApp, *_SAID, *_DISPLAY, *_ENDS})
"""The commands that can have a private part."""


read_private = msgspec.json.Decoder(Private).decode


class Taken(NamedTuple):
    """A command of a turn and the `number` of events that it caused; `begin` events of the turn precede them."""

    begin: int
    number: int
    id: str
    by: By
    command: Command


def private_of(command: Command) -> Private | None:
    """The private part of the command; None if it has none."""
    if isinstance(command, SubmitApp):
        return Private(**{name: getattr(command, name) for name in _OF_SUBMISSIONS})
    kind = type(command)
    if kind in _SAID:
        said: str = getattr(command, _SAID[kind])
        return Private(said=said) if said.strip() else None
    if isinstance(command, AddAccount | ChangeAccount) and command.display:
        return Private(display=command.display)
    if isinstance(command, EndedExecutor | EndedDriver) and command.used is not None:
        return Private(used=command.used)
    return None


def without_private(command: Command) -> Command:
    """The command without its private part, as it stands in the log.

    That an operator gave a reason to kill or signal an app is decided upon, so it says that there was one (I3).
    """
    if isinstance(command, SubmitApp):
        return replace(command, **_OF_SUBMISSIONS)
    kind = type(command)
    if kind in _SAID:
        return replace(command, **{_SAID[kind]: WITHHELD if kind in WITH_REASON else ""})
    if kind in _ENDS:
        return replace(command, used=None)
    return replace(command, display="") if isinstance(command, AddAccount | ChangeAccount) else command


def check_variables(values: Mapping[str, str]) -> None:
    """Raises: InvalidCommand, naming the largest ones, for more variables than an app may have, or with NUL in them.

    `values` are "" where they are not known. The copy of a script has a bound of its own (`scheduler.model.staged`).
    """
    sizes: dict[str, int] = {}
    for name, value in values.items():
        if "\0" in name or "\0" in value:
            raise InvalidCommand("environment variables must not contain NUL characters")
        if name != SCRIPT:
            sizes[name] = len(name.encode(errors="surrogatepass")) + len(value.encode(errors="surrogatepass")) + 2
    size = sum(sizes.values())
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    for name in largest[:1]:
        if sizes[name] > MAX_VARIABLE_BYTES and name != FILES:
            raise InvalidCommand(
                f"the variable {name[:60]} has {counted(sizes[name], 'byte')}, and Linux starts no "
                f"program with one of more than "
                f"{MAX_VARIABLE_BYTES}; leave it out, as by --export ALL,-{name[:60]}"
            )
    if len(sizes) <= MAX_VARIABLES and size <= MAX_VARIABLES_BYTES:
        return
    named = [
        f"{'the staged files' if name == FILES else name[:60]} ({counted(sizes[name], 'byte')})" for name in largest
    ]
    raise InvalidCommand(
        f"an app can have at most {MAX_VARIABLES} environment variables of {MAX_VARIABLES_BYTES} bytes together, not "
        f"{len(sizes)} of {size}; leave out some, as by --export ALL,-{largest[0][:60]}; the largest are "
        + ", ".join(named)
    )


_DECODER: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_ENCODER = msgspec.json.Encoder()
_FIELD = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_LONGEST = 200
"""The most characters of input that an error repeats."""


def write_command(command: Command) -> str:
    """The command's JSON in the inbox, without defaults. Raises: InvalidCommand if a text is not valid UTF-8."""
    try:
        return _ENCODER.encode(command).decode()
    except UnicodeEncodeError:
        raise InvalidCommand("the command holds bytes that are not UTF-8 text") from None


def check_script(command: SubmitApp, values: Mapping[str, str]) -> None:
    """Raises: InvalidCommand unless the copy of a script among the values is the one that the submission states."""
    said = digest_of(script_of_value(values[SCRIPT])) if SCRIPT in values else ""
    if said != command.script:
        raise InvalidCommand(f"the copy of the script is not the one whose digest is {command.script[:80]!r}")


def check_length(body: bytes | str) -> None:
    """Raises: InvalidCommand if the command's JSON is too long for the inbox."""
    if len(body) > MAX_COMMAND_BYTES:
        raise InvalidCommand(f"a command can have at most {MAX_COMMAND_BYTES} bytes, not {len(body)}")


def read_command(body: bytes | str) -> Command:
    """The command of that JSON. Raises: InvalidCommand naming the value that cannot be read."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidCommand(f"the command: {_complaint(error)}") from None


def command_of(values: Mapping[str, Any]) -> Command:
    """The command of these values, `type` included. Raises: InvalidCommand naming the wrong value."""
    try:
        command: Command = msgspec.convert(values, Command)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidCommand(_complaint(error)) from None
    return command


def _complaint(error: Exception) -> str:
    """The error of msgspec, starting with the value's place: `cores cannot be read: expected int, got str`."""
    said, _, place = str(error).partition(" - at `$")
    where = place.strip("`.")
    if field := _FIELD.match(said):
        where = f"{where}.{field['name']}".lstrip(".")
        said = "there is no such field" if field["how"] == "contains unknown" else "it is missing"
    said = said[:1].lower() + said[1:].replace("`", "")
    return f"{where[:_LONGEST] or 'it'} cannot be read: {said[:_LONGEST]}"
