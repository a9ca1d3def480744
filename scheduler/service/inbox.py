"""The inbox: what clients and workers ask of the master, as it lies in the store, and how they are answered.

A message is a command, a batch of them (a JSON array), or a question. A command of a
batch has the id `BATCH.i`, counted from 0; a batch gets one answer with that of each command in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.json import Decoder, Encoder

from scheduler.model.commands import BATCH, Command, private_of, read_command
from scheduler.model.errors import CommandRejected, InvalidCommand
from scheduler.rules.validate import check_private

if TYPE_CHECKING:
    from scheduler.store.inflight import StoreCommand
    from scheduler.store.keys import Keys

REPLY_KEPT_MS = 60_000
_FIELDS = [b"id", b"command", b"reply"]
"""The fields of a command in the inbox, in the order in which clients write them."""
_to_json = Encoder().encode
_parts_of = Decoder(list[msgspec.Raw]).decode


class Message(NamedTuple):
    """One entry of the inbox: commands or a question, and the list that its answer goes to, empty for none.

    `commands` are the ids and the JSON of its commands, none of a question. `refusal` is why a batch is refused whole.
    """

    entry: str
    id: str
    kind: str
    body: bytes
    reply_to: str
    commands: Sequence[tuple[str, bytes]] = ()
    refusal: CommandRejected | None = None

    @property
    def is_batch(self) -> bool:
        """Whether it is answered as a batch."""
        return self.kind == "batch"

    def parts(self) -> list[Message]:
        """A message for each of its commands, without a place in the inbox, and not answered."""
        return [self._replace(entry="", id=part[0], reply_to="", commands=[part]) for part in self.commands]


def message_of(entry: bytes, flat: Sequence[bytes]) -> Message:
    """The message of an inbox entry whose fields and values come by turns, as the store gives them."""
    if flat[::2] == _FIELDS:
        _, identity, _, body, _, reply_to = flat
        kind = "command"
    else:
        pairs = iter(flat)
        fields = dict(zip(pairs, pairs, strict=True))
        kind = "view" if b"view" in fields else "command"
        identity, body, reply_to = (fields.get(name, b"") for name in (b"id", kind.encode(), b"reply"))
    name, answered = str(identity, "utf-8", "replace"), str(reply_to, "utf-8", "replace")
    made = Message(entry.decode(), name, kind, body, answered)
    if kind == "view":
        return made
    return made._replace(commands=[(name, body)]) if body[:1] != b"[" else _batch(made)


def _batch(message: Message) -> Message:
    try:
        parts = _parts_of(message.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return message._replace(kind="batch", refusal=InvalidCommand(f"the batch is no JSON array: {error}"))
    if len(parts) > BATCH:
        why = f"a batch has at most {BATCH} commands, not {len(parts)}; send it in parts"
        return message._replace(kind="batch", refusal=InvalidCommand(why))
    commands = [(f"{message.id}.{number}", bytes(part)) for number, part in enumerate(parts)]
    return message._replace(kind="batch", commands=commands)


def at_once(messages: Sequence[Message], most: int) -> Sequence[Message]:
    """The first messages, as many as one turn takes: at most so many commands, but at least one message."""
    total = 0
    for number, message in enumerate(messages):
        total += max(1, len(message.commands))
        if total > most and number:
            return messages[:number]
    return messages


def received(body: bytes) -> Command:
    """The command as it came in. Raises: InvalidCommand if it cannot be read, or what is private of it makes no sense.

    Neither is logged: there is no command then, or none that could be decided without its private part.
    """
    command = read_command(body)
    private = private_of(command)
    if private is not None:
        check_private(private)
    return command


def answer(message: Message, outcome: Callable[[str], int | CommandRejected], view: Callable[[bytes], Any]) -> str:
    """The answer to the message as JSON: positions and refusals by `outcome` of its commands, or what `view` sees."""
    if message.refusal is not None:
        return _refused(message.id, message.refusal)
    if message.is_batch:
        answers = [_said(outcome(name)) for name, _ in message.commands]
        return _to_json({"id": message.id, "answers": answers}).decode()
    if message.kind == "view":
        try:
            return json.dumps({"id": message.id, "view": view(message.body)})
        except CommandRejected as problem:
            return _refused(message.id, problem)
    return _to_json({"id": message.id, **_said(outcome(message.id))}).decode()


def _said(outcome: int | CommandRejected) -> dict[str, int | str]:
    if isinstance(outcome, CommandRejected):
        return {"error": type(outcome).__name__, "message": str(outcome)}
    return {"seq": outcome}


def _refused(identity: str, refusal: CommandRejected) -> str:
    return _to_json({"id": identity, **_said(refusal)}).decode()


def question(body: bytes) -> tuple[str, dict[str, Any]]:
    """The name of a view and its arguments. Raises: InvalidCommand if it is none."""
    try:
        asked = json.loads(body)
        return str(asked["name"]), dict(asked["arguments"])
    except (ValueError, KeyError, TypeError):
        raise InvalidCommand("a question must be an object with a name and arguments") from None


def answer_commands(keys: Keys, answers: Mapping[str, Sequence[str]]) -> list[StoreCommand]:
    """What puts each answer on the list that its client listens to."""
    commands: list[StoreCommand] = []
    for name, texts in answers.items():
        commands.append(("RPUSH", keys.reply(name), *texts))
        commands.append(("PEXPIRE", keys.reply(name), REPLY_KEPT_MS))
    return commands


def next_entry(entry: str) -> str:
    """The smallest inbox id behind `entry`."""
    milliseconds, _, number = entry.partition("-")
    return f"{milliseconds}-{int(number) + 1}"
