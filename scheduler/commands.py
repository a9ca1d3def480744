"""Requests: what somebody asks the scheduler to do, one frozen model per kind.

Commands check only their shape; whether what they ask is allowed is `decide`'s to say, in one place,
whoever sent them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class ConfigureCluster(_Request):
    """Change the named settings; the others stay as they are."""

    type: Literal["ConfigureCluster"] = "ConfigureCluster"
    settings: dict[str, Any]


class RegisterCompany(_Request):
    """Add a tenant. Amounts together, or `part` as "n/d" or "25%", or none of them for 1/N (semantics C2).

    `borrow`: it may pass its quota while no other company takes part (semantics C6).
    """

    type: Literal["RegisterCompany"] = "RegisterCompany"
    company: str
    cores: int | None = None
    memory_mb: int | None = None
    part: str | None = None
    borrow: bool = False


class ChangeCompany(_Request):
    """Replace a tenant's quota by the one stated, in full; `borrow` stays as it is unless stated.

    With `borrow` alone the quota stays as it is, too.
    """

    type: Literal["ChangeCompany"] = "ChangeCompany"
    company: str
    cores: int | None = None
    memory_mb: int | None = None
    part: str | None = None
    borrow: bool | None = None


class RemoveCompany(_Request):
    """Remove a tenant that has no app left."""

    type: Literal["RemoveCompany"] = "RemoveCompany"
    company: str


class RegisterWorker(_Request):
    """Offer a worker. The same offer again changes nothing (semantics W1)."""

    type: Literal["RegisterWorker"] = "RegisterWorker"
    worker: str
    node: str
    host: str
    rack: str = ""
    cores: int
    memory_mb: int


class DrainWorker(_Request):
    """Grant nothing new on the worker; what runs there goes on (semantics W3)."""

    type: Literal["DrainWorker"] = "DrainWorker"
    worker: str


class DecommissionWorker(_Request):
    """Grant nothing more on the worker, for good, and have its executors leave it (semantics W6)."""

    type: Literal["DecommissionWorker"] = "DecommissionWorker"
    worker: str


class UndrainWorker(_Request):
    """Take the worker back into service."""

    type: Literal["UndrainWorker"] = "UndrainWorker"
    worker: str


class RemoveWorker(_Request):
    """Take the worker out once it is empty, or with `force` at once, its executors lost (semantics W3)."""

    type: Literal["RemoveWorker"] = "RemoveWorker"
    worker: str
    force: bool = False


class LoseWorker(_Request):
    """Declare a silent worker lost; `last_seen` is its last heartbeat in ms (semantics W2)."""

    type: Literal["LoseWorker"] = "LoseWorker"
    worker: str
    last_seen: int = 0


class SubmitApp(_Request):
    """Queue an app for its user, under an id that was never used before.

    `env` names the variables whose values the client has put aside. Executors as in Spark (semantics S5):
    `executor_cores` fixes their size, `executor_memory_mb` alone gives one growing executor a worker;
    `cores` may then be "unlimited" where admission is open. With `driver`, `command` is the driver's program.
    `elastic` are the least and the most executors of an app whose demand follows its backlog (L6).
    """

    type: Literal["SubmitApp"] = "SubmitApp"
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
    executor_limit: int | None = None
    driver: bool = False
    driver_cores: int | None = None
    driver_memory_mb: int | None = None
    supervise: bool = False
    elastic: tuple[int, int] | None = None


class ScaleApp(_Request):
    """State the demand of an app anew, in full: how many executors, and which hosts its tasks prefer (semantics L1).

    `executors` is the most it may have, None lifts the limit (P5). `prefer` says how many tasks prefer each host;
    `preferring_tasks` how many prefer any, where a task prefers several. None = their sum, at most all tasks.
    """

    type: Literal["ScaleApp"] = "ScaleApp"
    app: str
    executors: int | None
    prefer: dict[str, int] = {}
    preferring_tasks: int | None = None


class KillExecutors(_Request):
    """Stop these executors of an app, whose demand stays; names of none of its own are passed over (semantics P6)."""

    type: Literal["KillExecutors"] = "KillExecutors"
    app: str
    executors: tuple[str, ...]


class KillApp(_Request):
    """End an app; its executors are told to stop and hold their grants until they are gone (semantics A5)."""

    type: Literal["KillApp"] = "KillApp"
    app: str


class EndApp(_Request):
    """A worker's word that the app is over: every task succeeded, or one failed for good."""

    type: Literal["EndApp"] = "EndApp"
    app: str
    reason: Literal["finished", "failed"]
    detail: str = ""


class StartedExecutor(_Request):
    """A worker's word that an executor's processes are up.

    Here and below, `worker` is the one that says so: where a store that failed over has lost a tail of the log, an
    executor of the same id may have been granted to another one since.
    """

    type: Literal["StartedExecutor"] = "StartedExecutor"
    executor: str
    worker: str = ""


class EndedExecutor(_Request):
    """A worker's word that an executor is gone; `done` = it found no task left (semantics S6)."""

    type: Literal["EndedExecutor"] = "EndedExecutor"
    executor: str
    worker: str = ""
    reason: Literal["exited", "failed", "killed"]
    exit_code: int | None = None
    done: bool = False


class ReportBacklog(_Request):
    """An executor's word on an elastic app: how many tasks wait and run, and whether it is `idle` itself (L6)."""

    type: Literal["ReportBacklog"] = "ReportBacklog"
    executor: str
    waiting: int
    running: int
    idle: bool = False


class EndedDriver(_Request):
    """A worker's word that an app's driver is gone (semantics D3); `detail` is the sentence that says why it failed."""

    type: Literal["EndedDriver"] = "EndedDriver"
    driver: str
    worker: str = ""
    reason: Literal["exited", "failed", "killed"]
    exit_code: int | None = None
    detail: str = ""


Command = (
    ConfigureCluster
    | RegisterCompany
    | ChangeCompany
    | RemoveCompany
    | RegisterWorker
    | DrainWorker
    | DecommissionWorker
    | UndrainWorker
    | RemoveWorker
    | LoseWorker
    | SubmitApp
    | ScaleApp
    | KillExecutors
    | KillApp
    | EndApp
    | StartedExecutor
    | EndedExecutor
    | ReportBacklog
    | EndedDriver
)

COMMAND: TypeAdapter[Command] = TypeAdapter(
    Annotated[Command, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)
"""Reads and checks a command from its JSON form."""
