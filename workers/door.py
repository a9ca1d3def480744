"""What agents, executors and drivers ask of their cluster, by whichever way.

There are two ways, with the same operations: over the store itself (`workers.store_door`), for API servers and for an
operator on the store's host; and through API servers (`workers.api_door`), for all others, who hold a token only.
Everything raises `AWAY` (`scheduler.service.outage`) while the store or the API is away; to ask again is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import structs

from scheduler.model.commands import Measured, RegisterWorker
from scheduler.model.grants import Grant
from scheduler.store.task_queue import Completion, Step
from scheduler.store.visits import Orders, Report, Visit
from workers.rundir import ExitNote


class Registrant(msgspec.Struct, frozen=True):
    """The process that registered a worker, on which host; with its start time, a reused process id differs.

    `isolation` says what keeps the limits of its tasks (`workers.machine.isolation`). `api`: it works through API
    servers, which say so; what it says itself does not count. Unlike what else is said here, it is kept in the store,
    where older versions read it: they pass over fields that they do not know.
    """

    pid: int
    host: str
    started_s: float | None = None
    isolation: dict[str, str] = {}
    api: bool = False


class Held(NamedTuple):
    """What a worker holds: its grants, the executors revoked whose end is not in the log yet, and what it may start.

    - `alive`: whether the cluster expects its heartbeats.
    - `settled`: the log position up to which grants may be started that wait for the store's replicas.
    - `tokens`: executor -> the token of its grant; none where the worker works over the store.
    - `visited`: executors in whose cells somebody wants to run a command.
    """

    alive: bool
    granted: Mapping[str, Grant]
    revoked: Sequence[str]
    settled: int
    registrant: Registrant | None
    tokens: Mapping[str, str]
    visited: Sequence[str] = ()


class Ended(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How an executor or driver ended, as its exit note says (`ExitNote`)."""

    executor: str
    reason: Literal["exited", "failed", "killed"]
    exit_code: int | None = None
    done: bool = False
    verdict: Literal["finished", "failed"] | None = None
    detail: str = ""
    unstartable: str = ""
    used: Measured | None = None

    @classmethod
    def of(cls, executor: str, note: ExitNote) -> Ended:
        """What the note says."""
        return cls(executor=executor, used=note.used, **note.model_dump(exclude={"app", "unfit", "used"}))


# What API servers are asked and answer


class Granted(msgspec.Struct, frozen=True):
    """A grant (`scheduler.model.grants.Grant`) and its token, "" where the server signs nothing."""

    grant: msgspec.Raw
    token: str


class Holding(msgspec.Struct, frozen=True):
    """What a worker holds, as `Held`; `grants` is null if all of it is as the caller's `tag` says.

    `beat_ms`: the interval of the worker's heartbeats, and so how long it may wait for news; 0 if the
    server does not say.
    """

    alive: bool
    tag: str
    settled: int
    registrant: Registrant | None
    grants: list[Granted] | None
    revoked: list[str]
    visited: list[str] = []
    beat_ms: int = 0


class Registering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's offer (`RegisterWorker`) and the process that registers it."""

    registrant: Registrant
    node: str
    host: str
    cores: int
    memory_mb: int
    rack: str = ""
    resources: dict[str, tuple[str, ...]] = {}
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()

    @property
    def offer(self) -> dict[str, Any]:
        """The fields of `RegisterWorker`, but for the worker's id."""
        return {name: value for name, value in structs.asdict(self).items() if name != "registrant"}


def registering(offer: RegisterWorker, registrant: Registrant) -> Registering:
    """How the worker's offer is put to an API server."""
    about = {name: getattr(offer, name) for name in Registering.__struct_fields__ if name != "registrant"}
    return Registering(registrant=registrant, **about)


class Reports(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Executors that were started, and executors and drivers that have ended."""

    started: list[str] = []
    ended: list[Ended] = []


class Removal(msgspec.Struct, frozen=True):
    """Why the log removed the worker last, "" if it does not tell."""

    reason: str


class Begun(msgspec.Struct, frozen=True):
    """Whether an executor is granted, and the app's secrets as base64: pairs of variable and value.

    `unreadable` says why they cannot be read, "" if they can.
    """

    granted: bool
    secrets: list[tuple[bytes, bytes]] = []
    unreadable: str = ""


class StepRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step: its number (`Worklist.step`), how many tasks are wanted, and the ended tasks."""

    turn: str
    want: int
    completions: list[Completion] = []


Unused = tuple[str, int]
"""What an executor does not use, `cores` or `GPUs`, and for how long (s)."""


class OutputTails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The output tails of running tasks as base64; that of a driver or a program is of task 0.

    `unwritten` bytes of output are not in the worker's files, as its disk does not take them; `why` is the reason.
    `used` is what a program has used that ended, `unused` what the executor holds and does not use, and for how long
    (s) (semantics W13).
    """

    tails: list[tuple[int, bytes]] = []
    unwritten: int = 0
    why: str = ""
    used: Measured | None = None
    unused: Unused | None = None


class Kept(msgspec.Struct, frozen=True):
    """Whether the executor is granted."""

    granted: bool


class Backlog(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The backlog of an elastic app, or of one whose tasks prefer hosts, as one of its executors knows it.

    `preferring_tasks` of the waiting tasks prefer hosts; `prefer`: host -> how many prefer it, None = it does not say.
    """

    waiting: int
    running: int
    idle: bool
    preferring_tasks: int = 0
    prefer: dict[str, int] | None = None


class AppEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the tasks of an app have ended."""

    reason: Literal["finished", "failed"]
    detail: str = ""


class Visited(msgspec.Struct, frozen=True):
    """What an executor is asked to run in its cell."""

    visits: list[Visit]


class Finish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether an executor that ends returns its running tasks to the queue."""

    put_back: bool


class AgentDoor(Protocol):
    """The operations of one worker's agent."""

    def look(self) -> Held:
        """Send a heartbeat; what the worker holds."""

    def listen(self, answer: Callable[[], None]) -> None:
        """Call `answer` at once, whenever grants have changed, an executor has ended, and regularly; until `stop`.

        Raises: what `answer` raises.
        """

    def wake(self) -> None:
        """Make `listen` call `answer` soon; from a signal handler."""

    def stop(self) -> None:
        """Make `listen` return after the current answer; from a signal handler or `answer`."""

    def register(self, offer: RegisterWorker, registrant: Registrant) -> None:
        """Register the worker. Raises: CommandRejected, NoMaster."""

    def drain(self) -> None:
        """Have the cluster grant nothing more on the worker. Raises: UnknownWorker, NoMaster."""

    def health(self, unwell: str) -> None:
        """Say why the worker is unwell, "" = it is well (semantics W11). Raises: UnknownWorker, NoMaster."""

    def leave(self) -> None:
        """Remove the worker from the cluster. Raises: CommandRejected, NoMaster."""

    def was_removed(self) -> str:
        """Why the log removed the worker last: "removed", "lost", or "" if it does not tell."""

    def started(self, executors: Sequence[str]) -> None:
        """Report executors that were started."""

    def ended(self, end: Ended) -> None:
        """Report the end of an executor or driver. Nothing is reported of one that the worker does not hold."""

    def spec_of(self, executor: str) -> Mapping[str, Any]:
        """The fields of an `ExecutorSpec` that open a door for the executor."""

    def close(self) -> None:
        """Close the connections."""


class ExecutorDoor(Protocol):
    """The operations of one executor or driver."""

    def fill(self) -> bool:
        """Create the app's tasks. False if the executor is not granted or the app is over."""

    def secrets(self) -> Mapping[str, str]:
        """The app's secrets: variable -> value. Raises: UnreadableSecrets."""

    def step(self, completions: Sequence[Completion], *, want: int) -> Step:
        """Report ended tasks and take up to `want` new ones (`Worklist.step`).

        If the answer is lost, the next call gets the tasks that were handed out.
        """

    def finish(self, *, put_back: bool) -> None:
        """Remove the record by which RQ's tools show it; with `put_back`, return its running tasks to the queue."""

    def keep_output(self, said: OutputTails) -> bool:
        """Keep this output, and what else is said of it; whether the executor is granted."""

    def backlog(self, said: Backlog) -> None:
        """Report the backlog of an elastic app (semantics L6), or of one whose tasks prefer hosts (L7)."""

    def end_app(self, reason: Literal["finished", "failed"], detail: str) -> None:
        """Report that the app's tasks have ended."""

    def show_life(self) -> None:
        """Renew that record."""

    def visits(self) -> list[Visit]:
        """What somebody wants to run in its cell, which is told once."""

    def attend(self, report: Report) -> Orders:
        """Exchange input and output of a visit (`Visits.attend`)."""

    def ring(self) -> None:
        """Wake the agent. Raises nothing."""
