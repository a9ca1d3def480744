"""The inbox: take the messages of clients and workers lane by lane, and encode the answers.

A message is a command or a batch of commands (a JSON array). Command i of a batch, from 0, has the id `BATCH.i`; one
answer to the batch holds the answers to its commands.

Each lane is a stream, read in its order. A turn takes a message of each lane that has any, again and again, so nobody
who fills a lane delays the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec.json import Decoder, Encoder

from scheduler.model.commands import (
    BATCH,
    MAX_BATCH_BYTES,
    WITH_PRIVATE,
    Command,
    SubmitApp,
    check_length,
    private_of,
    read_command,
)
from scheduler.model.errors import CommandRejected, InvalidCommand
from scheduler.model.outputs import check_apart
from scheduler.model.sender import By
from scheduler.rules.checks.validate import check_new_names, check_private, check_states_a_change, trimmed
from scheduler.rules.command.programs import check_programs
from scheduler.rules.command.submission import with_place, with_preferences
from scheduler.service.signing import UNSIGNED, Gate
from scheduler.store.keys import OPERATORS, WORKERS

if TYPE_CHECKING:
    from scheduler.store.inflight import StoreCommand
    from scheduler.store.keys import Keys

REPLY_KEPT_MS = 60_000
DEAD_KEPT = 10_000
DEAD_BYTES = 4_096
"""How much is kept of a message that is put aside, and of how many."""
_to_json = Encoder().encode
_parts_of = Decoder(list[msgspec.Raw]).decode


class Message(NamedTuple):
    """One entry of the inbox: a command or a batch. The answer goes to the list `reply_to`, "" for none.

    `commands` are ids and JSON. `refusal` is set if all of it is refused, `aside` if nothing in it is
    believed. `sent` is in ms, 0 if the message is not signed.
    """

    lane: str
    entry: str
    id: str
    kind: Literal["command", "batch"]
    body: bytes
    reply_to: str
    by: By = UNSIGNED
    sent: int = 0
    commands: Sequence[tuple[str, bytes]] = ()
    refusal: CommandRejected | None = None
    aside: bool = False

    def parts(self) -> list[Message]:
        """One message per command, without an inbox entry or an answer."""
        return [
            self._replace(entry="", id=part[0], kind="command", body=part[1], reply_to="", commands=[part])
            for part in self.commands
        ]

    def put_aside(self, refusal: CommandRejected) -> Message:
        """The message with nothing in it believed."""
        return self._replace(commands=(), refusal=refusal, aside=True)

    @property
    def size(self) -> int:
        """The number of inputs."""
        return max(1, len(self.commands))


def message_of(gate: Gate, lane: str, entry: bytes, flat: Sequence[bytes]) -> Message:
    """The message of an entry of a lane; `flat` holds its fields and values in turn."""
    found = gate.read(lane, flat)
    made = Message(lane, entry.decode(), found.id, "command", found.body, found.reply_to, found.by, found.sent)
    if found.wrong is not None:
        return made.put_aside(found.wrong)
    return made._replace(commands=[(found.id, found.body)]) if found.body[:1] != b"[" else _batch(made)


def _batch(message: Message) -> Message:
    if len(message.body) > MAX_BATCH_BYTES:
        why = f"a batch can have at most {MAX_BATCH_BYTES} bytes, not {len(message.body)}; send it in parts"
        return message._replace(kind="batch", refusal=InvalidCommand(why))
    try:
        parts = _parts_of(message.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return message._replace(kind="batch", refusal=InvalidCommand(f"a batch must be a JSON array: {error}"))
    if len(parts) > BATCH:
        why = f"a batch has at most {BATCH} commands, not {len(parts)}; send it in parts"
        return message._replace(kind="batch", refusal=InvalidCommand(why))
    commands = [(f"{message.id}.{number}", bytes(part)) for number, part in enumerate(parts)]
    return message._replace(kind="batch", commands=commands)


class Lanes:
    """The lanes of the inbox of `keys`, read as far as a master needs them."""

    def __init__(self, keys: Keys, gate: Gate) -> None:
        self._keys = keys
        self._gate = gate
        self._read: dict[str, str] = {}
        """The last entry read of each lane."""
        self._unread: dict[str, deque[tuple[bytes, Sequence[bytes]] | Message]] = {}
        """The entries read of each lane that no turn has taken; the first may be decoded."""
        self._asked: dict[bytes, str] = {}
        self._turns: deque[str] = deque()
        """The lanes of these entries; the next message is of the first."""

    def forget(self) -> None:
        """Read every lane again from its first entry: no turn has taken what is still there."""
        self._read.clear()
        self._unread.clear()
        self._turns.clear()

    def ask(self, companies: Iterable[str], most: int) -> StoreCommand:
        """The command that reads on, for a turn with at most `most` commands."""
        count = max(1, most // max(1, len(self._turns)))
        lanes = (OPERATORS, WORKERS, *(f"company/{company}" for company in companies))
        wanted = [lane for lane in lanes if len(self._unread.get(lane, ())) < count] or [OPERATORS]
        self._asked = {self._keys.lane(lane).encode(): lane for lane in wanted}
        return ("XREAD", "COUNT", count, "STREAMS", *self._asked, *(self._read.get(lane, "0-0") for lane in wanted))

    def hear(self, answer: Iterable[tuple[bytes, Sequence[tuple[bytes, Sequence[bytes]]]]] | None) -> None:
        """Keep what the store answered."""
        for key, entries in dict(answer or ()).items():
            lane = self._asked[key]
            self._read[lane] = entries[-1][0].decode()
            unread = self._unread.setdefault(lane, deque())
            if not unread:
                self._turns.append(lane)
            unread.extend(entries)

    def take(self, most: int) -> list[Message]:
        """The next messages with together at most `most` commands and 16 MiB, but at least one if there is any.

        A lane whose next message does not fit any more comes first in the next turn.
        """
        taken: list[Message] = []
        late: list[str] = []
        left, room = most, MAX_BATCH_BYTES
        while self._turns:
            lane = self._turns.popleft()
            unread = self._unread[lane]
            message = unread[0]
            if not isinstance(message, Message):
                message = unread[0] = message_of(self._gate, lane, *message)
            if taken and (message.size > left or len(message.body) > room):
                late.append(lane)
                continue
            left, room = left - message.size, room - len(message.body)
            taken.append(message)
            unread.popleft()
            if unread:
                self._turns.append(lane)
        self._turns.extend(late)
        return taken


def received(body: bytes) -> Command:
    """The decoded command, trimmed.

    Raises: InvalidCommand if it, a new name or its private part is invalid, or if it changes nothing of a company.

    Nothing of such a command is logged.
    """
    return checked(decoded(body))


def decoded(body: bytes) -> Command:
    """The command of a message, trimmed. Raises: InvalidCommand if it cannot be read."""
    check_length(body)
    return trimmed(read_command(body))


def checked(command: Command) -> Command:
    """The command, as it is decided. Raises: as `received`, but for what cannot be read."""
    check_new_names(command)
    check_states_a_change(command)
    if type(command) in WITH_PRIVATE and (private := private_of(command)) is not None:
        check_private(private)
    if isinstance(command, SubmitApp):
        check_programs(command)
        alone = not command.tasks if command.driver else command.tasks == 1
        several = command.executor_program or not alone
        check_apart(command.output, command.error, command.open_mode, several=several)
        if command.near or command.prefer or command.preferring_tasks:
            command = with_preferences(command)
        if command.notify or command.notify_at:
            command = with_place(command)
    return command


def answer(message: Message, outcome: Callable[[str], int | CommandRejected]) -> str:
    """The answer as JSON: the `outcome` of each command, a position or a refusal."""
    if message.refusal is not None:
        said: dict[str, Any] = _said(message.refusal)
    elif message.kind == "batch":
        said = {"answers": [_said(outcome(name)) for name, _ in message.commands]}
    else:
        said = _said(outcome(message.id))
    return _to_json({"id": message.id, **said}).decode()


def _said(outcome: int | CommandRejected) -> dict[str, int | str]:
    if isinstance(outcome, CommandRejected):
        return {"error": type(outcome).__name__, "message": str(outcome)}
    return {"seq": outcome}


def answer_commands(keys: Keys, answers: Mapping[str, Sequence[str]]) -> list[StoreCommand]:
    """The commands that put the answers on the reply lists."""
    commands: list[StoreCommand] = []
    for name, texts in answers.items():
        commands.append(("RPUSH", keys.reply(name), *texts))
        commands.append(("PEXPIRE", keys.reply(name), REPLY_KEPT_MS))
    return commands


def dead_letters(keys: Keys, messages: Sequence[Message]) -> list[StoreCommand]:
    """The commands that keep the messages among the dead letters, of which the last `DEAD_KEPT` are kept."""
    kept = ("XADD", keys.dead, "MAXLEN", "~", DEAD_KEPT, "*")
    return [
        (*kept, "id", each.id, "command", each.body[:DEAD_BYTES], "lane", each.lane, "reason", str(each.refusal))
        for each in messages
    ]
