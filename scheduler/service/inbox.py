"""The inbox: decode the messages of clients and workers, and encode the answers.

A message is a command or a batch of commands (a JSON array). Command i of a batch, from 0, has the id `BATCH.i`; one
answer to the batch holds the answers to its commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.json import Decoder, Encoder

from scheduler.model.commands import (
    BATCH,
    MAX_BATCH_BYTES,
    MAX_COMMAND_BYTES,
    Command,
    private_of,
    read_command,
)
from scheduler.model.errors import CommandRejected, InvalidCommand
from scheduler.rules.validate import check_command_id, check_private, trimmed

if TYPE_CHECKING:
    from scheduler.store.inflight import StoreCommand
    from scheduler.store.keys import Keys

REPLY_KEPT_MS = 60_000
MAX_REPLY = 160
"""The most characters of the name of a reply list."""
_FIELDS = [b"id", b"command", b"reply"]
"""The fields of a command in the inbox, in the order in which clients write them."""
_to_json = Encoder().encode
_parts_of = Decoder(list[msgspec.Raw]).decode


class Message(NamedTuple):
    """One entry of the inbox: a command or a batch. The answer goes to the list `reply_to`, "" for none.

    `commands` are ids and JSON. `refusal` is set if the whole batch is refused.
    """

    entry: str
    id: str
    kind: str
    body: bytes
    reply_to: str
    commands: Sequence[tuple[str, bytes]] = ()
    refusal: CommandRejected | None = None

    def parts(self) -> list[Message]:
        """One message per command, without an inbox entry or an answer."""
        return [self._replace(entry="", id=part[0], reply_to="", commands=[part]) for part in self.commands]


def message_of(entry: bytes, flat: Sequence[bytes]) -> Message:
    """The message of an inbox entry; `flat` holds its fields and values in turn."""
    if flat[::2] == _FIELDS:
        _, identity, _, body, _, reply_to = flat
    else:
        pairs = iter(flat)
        fields = dict(zip(pairs, pairs, strict=True))
        identity, body, reply_to = (fields.get(name, b"") for name in _FIELDS)
    name, answered = str(identity, "utf-8", "replace"), str(reply_to, "utf-8", "replace")
    made = Message(entry.decode(), name, "command", body, answered if len(answered) <= MAX_REPLY else "")
    try:
        check_command_id(name)
    except InvalidCommand as refusal:
        return made._replace(id=name[:80], refusal=refusal)
    return made._replace(commands=[(name, body)]) if body[:1] != b"[" else _batch(made)


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


def at_once(messages: Sequence[Message], most: int) -> Sequence[Message]:
    """The first messages with together at most `most` commands and 16 MiB, but at least one message."""
    total = size = 0
    for number, message in enumerate(messages):
        total += max(1, len(message.commands))
        size += len(message.body)
        if (total > most or size > MAX_BATCH_BYTES) and number:
            return messages[:number]
    return messages


def received(body: bytes) -> Command:
    """The decoded command, trimmed. Raises: InvalidCommand if it or its private part is invalid; neither is logged."""
    if len(body) > MAX_COMMAND_BYTES:
        raise InvalidCommand(f"a command can have at most {MAX_COMMAND_BYTES} bytes, not {len(body)}")
    command = trimmed(read_command(body))
    private = private_of(command)
    if private is not None:
        check_private(private)
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


def next_entry(entry: str) -> str:
    """The smallest inbox id after `entry`."""
    milliseconds, _, number = entry.partition("-")
    return f"{milliseconds}-{int(number) + 1}"
