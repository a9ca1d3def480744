"""An entry of the log, written and read: the one place that knows its form and its digest.

The chain is recomputed over the very bytes that are stored, and `data` goes as it is to the model of its type. What
is not as it should be, or was written by an older program, takes the long way by `read_record` and `decode`, which
know what to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec.json import Decoder

from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import EVENT_TYPES, Event

GENESIS_DIGEST = "0" * 32


Upcast = Callable[[dict[str, Any]], dict[str, Any]]


UPCASTS: dict[tuple[str, int], Upcast] = {}
"""(type, version) -> a function from that version's data to the next one's."""


FIELDS = ("type", "v", "at", "turn", "cause", "data", "digest")
"""The fields of a stream entry, in their order."""


class Record(NamedTuple):
    """One entry of the log as it is stored. `at` is in ms, `turn` the seq of the first event of its turn."""

    seq: int
    type: str
    v: int
    at: int
    turn: int
    cause: str
    data: str
    digest: str

    def as_json(self) -> dict[str, Any]:
        """The entry as `fairlog log --json` prints it, `data` as an object with its keys in stored order."""
        return {**self._asdict(), "data": json.loads(self.data)}


def encode(event: Event, *, seq: int, at: int, turn: int, cause: str, previous: str) -> Record:
    """The record that stores `event` at `seq`, chained to the entry with digest `previous`."""
    return encode_turn([(event, cause)], first=seq, at=at, turn=turn, previous=previous)[0]


_to_json = msgspec.json.Encoder().encode


new_digest = blake2b(digest_size=16).copy
"""An empty BLAKE2b-128 to go on with: a copy is made in half the time that a new one takes."""


def encode_turn(entries: Iterable[tuple[Event, str]], *, first: int, at: int, turn: int, previous: str) -> list[Record]:
    """The records of a turn, the first at position `first`, of events and the commands that caused them; as `encode`.

    The digests are those of `chain_digest`, written out here because every event of a busy master passes.
    """
    records: list[Record] = []
    when = f"{at}\n{turn}"
    for seq, (event, cause) in enumerate(entries, first):
        model = type(event)
        name, v = model.__name__, model.v
        data = _to_json(event).decode()
        text = f"{previous}\n{seq}\n{name}\n{v}\n{when}\n{cause}\n{data}"
        digest = new_digest()
        digest.update(text.encode())
        previous = digest.hexdigest()
        records.append(tuple.__new__(Record, (seq, name, v, at, turn, cause, data, previous)))
    return records


def chain_digest(
    previous: str, seq: int, name: str, v: int | str, at: int | str, turn: int | str, cause: str, data: str
) -> str:
    """Hex of BLAKE2b-128 over the previous digest and the entry's fields, joined with newlines (schema 1)."""
    text = f"{previous}\n{seq}\n{name}\n{v}\n{at}\n{turn}\n{cause}\n{data}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


def decode(record: Record) -> Event:
    """The event that `record` holds, brought up to today's version.

    Raises: UnreadableRecord if its type is unknown, its version newer than this program, or its data malformed.
    """
    model = EVENT_TYPES.get(record.type)
    if model is None:
        raise UnreadableRecord(record.seq, f"an event of the unknown type {record.type!r}")
    if record.v > model.v:
        raise UnreadableRecord(
            record.seq,
            f"{record.type} version {record.v} was written by a newer program; this one reads up to {model.v}",
        )
    try:
        if record.v == model.v:
            return msgspec.json.decode(record.data, type=model)
        data: dict[str, Any] = json.loads(record.data)
        for version in range(record.v, model.v):
            data = UPCASTS[record.type, version](data)
        return msgspec.convert(data, model)
    except (ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UnreadableRecord(record.seq, f"{record.type} holds data that cannot be read: {reason}") from error


def read_record(seq: int, fields: Mapping[str, str], previous: str) -> Record:
    """The record of a stream entry, its place in the chain checked.

    Raises: UnreadableRecord if a field is missing, foreign or misshapen, or the digest does not follow from `previous`.
    """
    if tuple(fields) != FIELDS:
        raise UnreadableRecord(seq, f"the entry has the fields {', '.join(fields)} instead of {', '.join(FIELDS)}")
    name, v, at, turn, cause, data, digest = fields.values()
    due = chain_digest(previous, seq, name, v, at, turn, cause, data)
    if digest != due:
        raise UnreadableRecord(seq, f"the digest is {digest} where the chain gives {due}: the entry was altered")
    try:
        return Record(seq, name, int(v), int(at), int(turn), cause, data, digest)
    except ValueError as error:
        raise UnreadableRecord(seq, f"the entry has a number that is none: {error}") from error


Raw = tuple[bytes, ...]
"""What lies at a position: its seq and the values of the seven `FIELDS`, or of other fields, with their names."""


_NAMES = [name.encode() for name in FIELDS]


class Fact(NamedTuple):
    """An entry whose place in the chain was verified. `at` is in ms, `turn` the seq of the first event of its turn."""

    seq: int
    at: int
    turn: int
    cause: str
    event: Event
    digest: str

    @property
    def type(self) -> str:
        """The event's type, as the log names it."""
        return type(self.event).__name__


class _Readers(dict[bytes, tuple[bytes, Callable[[bytes], Event]]]):
    """By the name of a type, its version and what makes an event of its data, from when the first one is read."""

    def __missing__(self, name: bytes) -> tuple[bytes, Callable[[bytes], Event]]:
        model = EVENT_TYPES[name.decode()]
        self[name] = b"%d" % model.v, Decoder(model).decode
        return self[name]


_READERS = _Readers()


def raws(page: Iterable[Sequence[Any]]) -> list[Raw]:
    """The entries of a stream, in which names and values of fields come by turns."""
    return [
        (entry_id[:-2], *flat[1::2]) if flat[::2] == _NAMES else (entry_id[:-2], *flat)  # ids are <seq>-0
        for entry_id, flat in page
    ]


def facts(entries: Iterable[Raw], seq: int, digest: str) -> Iterator[Fact]:
    """What the entries tell that follow the one at `seq`, which has this `digest`.

    Raises: UnreadableRecord at a gap, and at an entry that was altered, is misshapen or cannot be understood.
    """
    made, previous = tuple.__new__, digest.encode()
    at = turn = 0
    at_read = turn_read = b""
    for raw in entries:
        seq += 1
        fact: Fact | None = None
        try:
            number, name, v, at_text, turn_text, cause, data, stored = raw
            text = b"\n".join((previous, number, name, v, at_text, turn_text, cause, data))
            chained = new_digest()
            chained.update(text)
            digest = chained.hexdigest()
            version, event_of = _READERS[name]
            if digest.encode() == stored and number == b"%d" % seq and v == version:
                if at_text != at_read:
                    at, at_read = int(at_text), at_text
                if turn_text != turn_read:
                    turn, turn_read = int(turn_text), turn_text
                fact = made(Fact, (seq, at, turn, cause.decode(), event_of(data), digest))
        except (ValueError, KeyError):
            pass
        if fact is None:
            fact = told(record(raw, seq, previous.decode()))
        previous = stored
        yield fact


def told(written: Record) -> Fact:
    """What a record tells. Raises: UnreadableRecord if it cannot be understood."""
    seq, _, _, at, turn, cause, _, digest = written
    return Fact(seq, at, turn, cause, decode(written), digest)


def record(raw: Raw, seq: int, previous: str) -> Record:
    """The entry as a record, verified to follow at `seq` from the one with the digest `previous`.

    Raises: UnreadableRecord if another one lies there, or it was altered or is misshapen.
    """
    number, *rest = raw
    if number != b"%d" % seq:
        found = number.decode(errors="replace")
        raise UnreadableRecord(seq, f"the entry is missing; the next one in the log is {found}")
    return read_record(seq, fields(rest), previous)


def fields(rest: Sequence[bytes]) -> dict[str, str]:
    """What lies at a position, by name; nothing if it is no text."""
    try:
        texts = [text.decode() for text in rest]
    except UnicodeDecodeError:
        return {}
    return dict(zip(FIELDS, texts, strict=True) if len(rest) == len(FIELDS) else zip(*[iter(texts)] * 2, strict=True))
