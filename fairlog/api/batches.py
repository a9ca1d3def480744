"""Commands as a client sends them, in batches, and what is answered to each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.model.commands import BATCH, Command, write_command
from scheduler.model.errors import CommandRejected, refusal_of
from scheduler.service.receipts import Receipt, SignedReceipt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BATCH_BYTES = 240_000
"""The most bytes of a batch, within the server's limit for a request."""


def written(command: Command, secrets: Mapping[str, str]) -> bytes:
    """The command as JSON, with the values of its app's variables."""
    body = write_command(command).encode()
    return body if not secrets else b'%b,"secrets":%b}' % (body[:-1], msgspec.json.encode(dict(secrets)))


def parts(commands: Sequence[Command]) -> Iterator[list[Command]]:
    """The commands in batches that a server takes."""
    part: list[Command] = []
    size = 0
    for command in commands:
        length = len(write_command(command).encode()) + 1
        if part and (len(part) == BATCH or size + length > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(command)
        size += length
    if part:
        yield part


def outcome(answer: Mapping[str, Any], signed: object) -> Receipt | CommandRejected:
    """What was answered to a command of a batch, whose receipt is `signed` unless that is None."""
    if "seq" in answer:
        return Receipt(str(answer["id"]), int(answer["seq"]), msgspec.convert(signed, SignedReceipt | None))
    return refusal_of(str(answer["title"]), str(answer["detail"]))
