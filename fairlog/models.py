"""What the API tells of apps, tasks and the log, as typed results. Times are in ms since the epoch, memory in MiB.

A server of a later version may tell more, which is left out.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from scheduler.model.states import AppState


class _Model(Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Executor(_Model, frozen=True, kw_only=True):
    """A running or stopping executor of an app. `locality`: how near it is to a host that its app prefers."""

    executor: str
    worker: str
    cores: int
    memory: int
    status: str
    locality: str | None = None
    leaves_for: str | None = None
    """The app of another company for which it is told to leave, by `deadline`."""
    deadline: int | None = None


class Driver(_Model, frozen=True, kw_only=True):
    """The driver of an app."""

    driver: str
    worker: str
    cores: int
    memory: int
    status: str


class App(_Model, frozen=True, kw_only=True):
    """An app in a list. `reason` and `rule`: the cause for which it waits; None if it does not."""

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
    submitted_at: int
    submitted_seq: int
    """The log position of its submission, which names it as its id does."""
    admitted_at: int | None
    ended_at: int | None
    detail: str
    reason: str | None = None
    rule: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.ended_at is not None


class AppDetails(App, frozen=True, kw_only=True):
    """An app with its command, executors and driver. Its private parts are empty for whoever may not see them."""

    cores: int
    cores_per_task: int
    command: list[str]
    env: list[str]
    cwd: str | None
    output: str | None = None
    """The pattern of the file to which its tasks write."""
    error: str | None = None
    open_mode: str | None = None
    array: str | None
    comment: str = ""
    keep_going: bool = False
    """Whether a task that fails for good leaves the others to run."""
    retries: int
    priority: int
    time_limit: int | None
    max_runtime: int | None
    sizing: str
    has_driver: bool
    supervise: bool
    after: dict[str, str] | None
    begin_at: int | None = None
    """The time (ms) before which it is not ready, if it waits for one."""
    admitted_seq: int | None
    driver: Driver | None
    executors: list[Executor]


class Task(_Model, frozen=True, kw_only=True, rename=None):
    """A task of an app: its state, its exit code, and what its attempts used that have ended."""

    task: int
    state: Literal["queued", "running", "succeeded", "failed", "cancelled", "stopped"]
    exit_code: int | None = None
    executor: str | None = None
    attempts: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    message: str = ""
    cpu_ms: int = 0
    peak_mb: int = 0
    output_bytes: int = 0
    locality: str | None = None
    """How near its last attempt ran to a host that it prefers: `host`, `rack`, `any`; None if it prefers none."""
    worker: str | None = None
    """The worker on which its last attempt ran."""


class Wait(_Model, frozen=True, kw_only=True):
    """Why an app waits: the cause, the rule by which it does (docs/semantics.md), a sentence and its facts."""

    cause: str
    rule: str
    text: str
    facts: dict[str, Any]


class Place(_Model, frozen=True, kw_only=True):
    """The place of an app among the pending apps of its user, from 1."""

    place: int
    of: int


class Waited(_Model, frozen=True, kw_only=True):
    """How long an app waited, in all and by cause."""

    ms: int
    by_cause: list[dict[str, Any]]


class Explanation(_Model, frozen=True, kw_only=True):
    """Why an app waits, or was admitted and placed as it was, at log position `head`."""

    app: str
    company: str
    user: str
    state: AppState
    head: int
    at: int
    waits_for: Wait | None
    queue: Place | None
    admission: dict[str, Any] | None
    executors: list[dict[str, Any]]
    waited: Waited
    losses: list[dict[str, Any]]
    standing: dict[str, Any] | None = None
    targets: list[dict[str, Any]] = []
    ended_at: int | None
    detail: str


class Event(_Model, frozen=True, kw_only=True):
    """An event of the log: `data` holds its fields by name, `cause` is the id of the command that caused it.

    The first event of a command has the command, and who sent it.
    """

    seq: int
    type: str
    at: int
    turn: int
    cause: str = ""
    data: dict[str, Any]
    command: dict[str, Any] | None = None
    by: dict[str, str] | Literal[""] | None = None


class Submitted(_Model, frozen=True, kw_only=True):
    """An app that was submitted: its id, the position of its last event, the id of the command."""

    app: str
    seq: int
    command_id: str
