"""Grants: what a worker should run. The commit writes them; the worker's agent converges on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict


class Leaving(BaseModel):
    """The executor was told to leave for a claim: it begins no task and ends when those it runs have (semantics H7).

    `deadline` is in ms since the epoch, 0 = now. With `firm`, the tasks that run then get SIGTERM, and SIGKILL after
    `grace_s`. `signal`, without SIG, is what the tasks that run get at once, "" = nothing. The executors and the driver
    of an app whose time is over leave firmly, now (semantics X2).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    deadline: int
    firm: bool = False
    grace_s: int = 0
    signal: str = ""


class RuntimeWarn(BaseModel):
    """The signal, without SIG, that tasks of the executor or its driver were to get at `at` (ms) (semantics X2)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    signal: str
    at: int


class SentSignal(NamedTuple):
    """A signal that somebody sent at that position of the log: to the task, None = all; to all processes if `whole`."""

    seq: int
    signal: str
    task: int | None = None
    whole: bool = False


PUT_BACK = "PUT-BACK"
"""What stands in the place of a signal where a task is to stop and to begin again (semantics X6)."""


class Outputs(BaseModel):
    """The files to which the app's tasks write (`scheduler.model.outputs`); `app` is what %A stands for in them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str = ""
    error: str = ""
    append: bool = False
    app: str


class Nearness(BaseModel):
    """The hosts that the app's tasks prefer, as the executor needs them (semantics L7).

    `tasks`: host -> list of the indexes of the tasks that prefer it. `racks`: those hosts that had a live worker when
    the grant was written -> their rack, "" = none. The executor is on `host`, in `rack`. The waits are in ms.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: dict[str, str]
    racks: dict[str, str]
    host: str
    rack: str
    host_wait_ms: int
    rack_wait_ms: int


IMAGE_LABEL = "image."
"""With what the label begins of a worker that has an image (semantics W12)."""


class Grant(BaseModel):
    """An executor or driver of a worker, with everything it needs of the app.

    For a driver, `executor` is its id and `command` its program. An executor that `stays` ends only with its app; the
    result of its tasks ends the app only if the app has no driver. In an `elastic` app it reports the backlog
    (semantics L6). Each of its tasks has `cores_per_task` of its cores (A7). A task that failed waits `retry_backoff_s`
    at first (W10). The worker starts it once the master has settled the log up to position `settled_at`: a commit is
    visible before it has reached the configured replicas. With `granted_at` (ms) it differs from any other grant of the
    same id, which there may be after a failover of the store has lost the end of the log.
    `addresses` are those of further kinds (R5), and `per_task` what each task needs of them, (kind, numerator,
    denominator), where the tasks state that (R3). A `program` runs `command` once, with all it has, in place of tasks
    (G1), in the folder of the app unless it `begins_in_scratch`; it is that of index `rank` among the `ranks` programs
    of its app (G1). `grace_s`: how long what runs has between SIGTERM and SIGKILL, None = as its worker says (G5).
    It is said when what runs uses nothing of its cores or GPUs for `idle_end_s`, and with `end_idle` it is ended (W13).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    executor: str
    app: str
    company: str
    user: str
    name: str
    cores: int
    memory_mb: int
    tasks: int
    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    cwd: str | None = None
    retries: int = 0
    time_limit_s: int | None = None
    role: Literal["executor", "driver"] = "executor"
    stays: bool = False
    has_driver: bool = False
    elastic: bool = False
    retry_backoff_s: int = 0
    settled_at: int = 0
    cores_per_task: int = 1
    leaving: Leaving | None = None
    granted_at: int = 0
    addresses: dict[str, tuple[str, ...]] = {}
    per_task: tuple[tuple[str, int, int], ...] = ()
    warning: RuntimeWarn | None = None
    program: bool = False
    begins_in_scratch: bool = False
    rank: int = 0
    ranks: int = 0
    grace_s: int | None = None
    idle_end_s: int | None = None
    end_idle: bool = False
    array: str = ""
    """The indexes of its tasks, if they are not 0, 1, 2 … (`scheduler.model.arrays`)."""
    near: Nearness | None = None
    keep_going: bool = False
    """Whether a task that fails for good leaves the others to run."""
    number: int = 0
    """The number of the app, if its tasks are to find it (`FAIRLOG_APP_NUMBER`)."""
    outputs: Outputs | None = None
    signals: tuple[SentSignal, ...] = ()
    """The last ones that its tasks were to get; those that it began with it passes on to nobody."""
    cancelled: str = ""
    """The tasks that were cancelled, as a list of their indexes from 0 (semantics X4)."""
    script: str = ""
    """The digest of the script that is the word `script_at` of its command, if a copy of it is stored."""
    script_at: int = 0
    image: str = ""
    """The image whose files its tasks find, "" = the machine's system (semantics W12)."""
    network: Literal["none", "app", "host"] = "host"
    """What its tasks find (semantics W12)."""
    restarts: int = 0
    """How often its app was put back into its queue (semantics X6)."""
    hosts: tuple[str, ...] = ()
    """The hosts of a gang in the order of its ranks; that of a program that has ended well is empty (semantics G8)."""
    port: int = 0
    """Where the program of rank 0 of a gang may listen for the others."""

    @property
    def tasks_at_once(self) -> int:
        """How many tasks the executor runs at once (semantics A7)."""
        return self.cores // self.cores_per_task


STOP = ""
"""In place of a grant: the executor must stop, and its worker has yet to report the end.

Without it, an executor revoked before its worker saw the grant would hold its cores forever."""


class Difference(NamedTuple):
    """The grants to start and the executors to stop, both in the order of executor ids."""

    start: list[Grant]
    stop: list[str]


def diff(granted: Mapping[str, Grant], running: Collection[str]) -> Difference:
    """The difference between `granted` and what runs."""
    start = [granted[executor] for executor in sorted(granted) if executor not in running]
    stop = [executor for executor in sorted(running) if executor not in granted]
    return Difference(start, stop)


class GrantChanges(NamedTuple):
    """A turn's changes, worker -> executor -> the grant's text, `STOP`, or None = the executor is gone.

    The commit stops expecting heartbeats of the workers `left`, then starts expecting those of `joined`.
    """

    by_worker: dict[str, dict[str, str | None]]
    joined: list[str]
    left: list[str]

    def put(self, worker: str, executor: str, grant: str | None) -> None:
        """Set the worker's entry for the executor or driver."""
        self.by_worker.setdefault(worker, {})[executor] = grant

    def leave(self, worker: str) -> None:
        """Record that the worker left, and drop its changes."""
        self.by_worker.pop(worker, None)
        if worker in self.joined:
            self.joined.remove(worker)
        self.left.append(worker)
