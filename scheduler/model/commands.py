"""Requests: what somebody asks the scheduler to do, one frozen struct per kind, and their JSON form in the inbox.

Commands check only their shape; whether what they ask is allowed is `decide`'s to say, in one place,
whoever sent them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scheduler.model.errors import InvalidCommand

BATCH = 1_000
"""How many commands a batch has at most, and a turn takes at most."""


class _Request(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    gc=False,
    tag=True,
    tag_field="type",
):
    """A request; only reading one checks its values."""


class ConfigureCluster(_Request, frozen=True):
    """Change the named settings; the others stay as they are."""

    settings: dict[str, Any]


class RegisterCompany(_Request, frozen=True):
    """Add a tenant. Amounts together, or `part` as "n/d" or "25%", or none of them for 1/N (semantics C2).

    `borrow`: whether it may pass its quota (semantics C6); None = only a default quota may be passed (C2).
    """

    company: str
    cores: int | None = None
    memory_mb: int | None = None
    part: str | None = None
    borrow: bool | None = None


class ChangeCompany(_Request, frozen=True):
    """Replace a tenant's quota by the one stated, in full; `borrow` stays as it is unless stated.

    With `borrow` alone the quota stays as it is, too.
    """

    company: str
    cores: int | None = None
    memory_mb: int | None = None
    part: str | None = None
    borrow: bool | None = None


class RemoveCompany(_Request, frozen=True):
    """Remove a tenant that has no app left."""

    company: str


class RegisterWorker(_Request, frozen=True, kw_only=True):
    """Offer a worker. The same offer again changes nothing (semantics W1)."""

    worker: str
    node: str
    host: str
    rack: str = ""
    cores: int
    memory_mb: int


class DrainWorker(_Request, frozen=True):
    """Grant nothing new on the worker; what runs there goes on (semantics W3)."""

    worker: str


class DecommissionWorker(_Request, frozen=True):
    """Grant nothing more on the worker, for good, and have its executors leave it (semantics W6)."""

    worker: str


class UndrainWorker(_Request, frozen=True):
    """Take the worker back into service."""

    worker: str


class RemoveWorker(_Request, frozen=True):
    """Take the worker out once it is empty, or with `force` at once, its executors lost (semantics W3)."""

    worker: str
    force: bool = False


class LoseWorker(_Request, frozen=True):
    """Declare a silent worker lost; `last_seen` is its last heartbeat in ms (semantics W2)."""

    worker: str
    last_seen: int = 0


class SubmitApp(_Request, frozen=True):
    """Queue an app for its user, under an id that was never used before.

    `env` names the variables whose values the client has put aside. Executors as in Spark (semantics S5):
    `executor_cores` fixes their size, `executor_memory_mb` alone gives one growing executor a worker;
    `cores` may then be "unlimited" where admission is open. With `driver`, `command` is the driver's program.
    `elastic` are the least and the most executors of an app whose demand follows its backlog (L6).
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
    executor_limit: int | None = None
    driver: bool = False
    driver_cores: int | None = None
    driver_memory_mb: int | None = None
    supervise: bool = False
    elastic: tuple[int, int] | None = None


class ScaleApp(_Request, frozen=True):
    """State the demand of an app anew, in full: how many executors, and which hosts its tasks prefer (semantics L1).

    `executors` is the most it may have, None lifts the limit (P5). `prefer` says how many tasks prefer each host;
    `preferring_tasks` how many prefer any, where a task prefers several. None = their sum, at most all tasks.
    """

    app: str
    executors: int | None
    prefer: dict[str, int] = {}
    preferring_tasks: int | None = None


class KillExecutors(_Request, frozen=True):
    """Stop these executors of an app, whose demand stays; names of none of its own are passed over (semantics P6)."""

    app: str
    executors: tuple[str, ...]


class KillApp(_Request, frozen=True):
    """End an app; its executors are told to stop and hold their grants until they are gone (semantics A5)."""

    app: str


class EndApp(_Request, frozen=True):
    """A worker's word that the app is over: every task succeeded, or one failed for good."""

    app: str
    reason: Literal["finished", "failed"]
    detail: str = ""


class StartedExecutor(_Request, frozen=True):
    """A worker's word that an executor's processes are up.

    Here and below, `worker` is the one that says so: where a store that failed over has lost a tail of the log, an
    executor of the same id may have been granted to another one since.
    """

    executor: str
    worker: str = ""


class EndedExecutor(_Request, frozen=True, kw_only=True):
    """A worker's word that an executor is gone; `done` = it found no task left (semantics S6)."""

    executor: str
    worker: str = ""
    reason: Literal["exited", "failed", "killed"]
    exit_code: int | None = None
    done: bool = False


class ReportBacklog(_Request, frozen=True):
    """An executor's word on an elastic app: how many tasks wait and run, and whether it is `idle` itself (L6)."""

    executor: str
    waiting: int
    running: int
    idle: bool = False


class EndedDriver(_Request, frozen=True, kw_only=True):
    """A worker's word that an app's driver is gone (semantics D3); `detail` is the sentence that says why it failed."""

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


class Private(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What of a submission no decision depends on and others need not see: `env` holds names of variables.

    It is kept beside the log's events under a commitment, and may be withheld.
    """

    name: str = ""
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    cwd: str | None = None


class Taken(NamedTuple):
    """A command that a turn took: it caused `number` of the turn's events, from the one on that has `begin` before it.

    `by` is who sent it, "" for nobody in particular.
    """

    begin: int
    number: int
    id: str
    by: str
    command: Command


def private_of(command: Command) -> Private | None:
    """The private part of the command as it was received, None if such a command has none."""
    if not isinstance(command, SubmitApp):
        return None
    return Private(command.name, command.command, command.env, command.cwd)


def without_private(command: SubmitApp) -> SubmitApp:
    """The submission as everybody may see it."""
    return replace(command, name="", command=(), env=(), cwd=None)


_DECODER: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_ENCODER = msgspec.json.Encoder()
_FIELD = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_LONGEST = 200
"""How many characters of what came from outside a complaint repeats at most."""


def write_command(command: Command) -> str:
    """The command as the inbox holds it: its type, and what of it is not the default.

    Raises: InvalidCommand if a text of it cannot be written as UTF-8.
    """
    try:
        return _ENCODER.encode(command).decode()
    except UnicodeEncodeError:
        raise InvalidCommand("the command holds bytes that are not UTF-8 text") from None


def read_command(body: bytes | str) -> Command:
    """The command of that JSON form. Raises: InvalidCommand, which names what of it cannot be read."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidCommand(f"the command: {_complaint(error)}") from None


def command_of(values: Mapping[str, Any]) -> Command:
    """The command of those values, `type` among them. Raises: InvalidCommand, which names the one that is wrong."""
    try:
        command: Command = msgspec.convert(values, Command)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidCommand(_complaint(error)) from None
    return command


def _complaint(error: Exception) -> str:
    """What msgspec found wrong, said of the value's place: `cores cannot be read: expected int, got str`."""
    said, _, place = str(error).partition(" - at `$")
    where = place.strip("`.")
    if field := _FIELD.match(said):
        where = f"{where}.{field['name']}".lstrip(".")
        said = "there is no such value" if field["how"] == "contains unknown" else "it is missing"
    said = said[:1].lower() + said[1:].replace("`", "")
    return f"{where[:_LONGEST] or 'it'} cannot be read: {said[:_LONGEST]}"
