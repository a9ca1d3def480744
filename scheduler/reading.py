"""Entries of the log as they lie in the store or in a file, each verified and decoded in one pass.

The chain is recomputed over the very bytes that are stored, and `data` goes as it is to the model of its type. What
is not as it should be, or was written by an older program, takes the long way by `events.read_record` and
`events.decode`, which know what to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.json import Decoder

from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import EVENT_TYPES, FIELDS, Event, Record, decode, new_digest, read_record

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
