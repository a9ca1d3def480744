"""The entries of a log as they lie there, in a store or a file, and whether each follows from the one before.

Unlike `EventLog.read`, which refuses to go on, what is wrong with the chain is named here and the rest still read.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scheduler.model.errors import UnreadableRecord
from scheduler.store.codec import FIELDS, GENESIS_DIGEST, Fact, Raw, Record, chain_digest, facts
from scheduler.store.eventlog import PAGE

if TYPE_CHECKING:
    from scheduler.store.eventlog import EventLog

WINDOW = 10_000
"""How far ahead an entry is looked for that is not in its place."""

_LINE = re.compile(
    rb'\{"seq":(\d+),"type":"([^"\\]*)","v":(\d+),"at":(\d+),"turn":(\d+),"cause":"([^"\\]*)",'
    rb'"data":(\{[^\\]*\}),"digest":"([^"\\]*)"\}\s*'
)
_KEYS = list(Record._fields)


class Garbled(NamedTuple):
    """Something that lies where an entry should, and what is wrong with it."""

    reason: str


Entry = Fact | Record | Garbled
"""What may be told of a position: what it says, verified; the entry as it is written; or that there is none."""


class Fault(NamedTuple):
    """The chain is broken at `seq`; with `lost` it is unknown what should have been there."""

    seq: int
    done: str
    due: str
    lost: bool


def read_lines(file: Iterable[bytes]) -> Iterator[Record | Garbled]:
    """The entries of a file as `fairlog log --json` writes it, one a line; nothing is verified yet."""
    return map(_as_written, _raws(file))


def read_export(file: Iterable[bytes]) -> Iterator[Entry]:
    """What such a file tells, verified up to the first entry that cannot be trusted."""
    return _facts_first(_raws(file))


def read_store(log: EventLog) -> Iterator[Entry]:
    """What the log in a store tells, verified likewise, and that its tail was not cut off."""
    seq = 0
    for entry in _facts_first(log.entries()):
        if not isinstance(entry, Garbled):
            seq = entry.seq
        yield entry
    try:
        log.check_tail(seq)
    except UnreadableRecord as error:
        yield Garbled(str(error))


def _facts_first(entries: Iterator[Raw]) -> Iterator[Entry]:
    """What the entries tell as far as it can be trusted at once; from there on, the entries as they are written."""
    last: Fact | None = None
    while page := list(islice(entries, PAGE)):
        seq, digest = _next(last)
        try:
            for last in facts(page, seq - 1, digest):
                yield last
        except UnreadableRecord:
            yield from map(_as_written, chain(page[_next(last)[0] - seq :], entries))


def _raws(file: Iterable[bytes]) -> Iterator[Raw]:
    """The entry of each line; of what is none, only what is wrong with it.

    Lines are taken apart as they were written where nothing in them is escaped, since JSON read and written again
    takes three times as long.
    """
    for line in file:
        found = _LINE.fullmatch(line)
        if found is not None:
            yield found.groups()
        elif not line.isspace():
            yield _parsed(line)


def _as_written(raw: Raw) -> Record | Garbled:
    if len(raw) == 1:
        return Garbled(raw[0].decode())
    try:
        number, name, v, at, turn, cause, data, digest = (text.decode() for text in raw)
        return Record(int(number), name, int(v), int(at), int(turn), cause, data, digest)
    except ValueError:
        where = raw[0].decode(errors="replace")
        return Garbled(f"entry {where} without {', '.join(FIELDS)}, numbers and text as they should be")


def chained(entries: Iterable[Entry]) -> Iterator[Fact | Record]:
    """The entries, up to the first that cannot be trusted.

    Raises: UnreadableRecord naming it.
    """
    for entry in verified(entries):
        if isinstance(entry, Fault):
            raise UnreadableRecord(entry.seq, f"{entry.done}; due is {entry.due}")
        yield entry


def verified(entries: Iterable[Entry], last: Fact | Record | None = None) -> Iterator[Fact | Record | Fault]:
    """The entries behind `last` in the order of their positions, and the faults of the chain between them.

    Facts are verified already; they come first. An altered entry comes behind its fault; one that stands elsewhere
    is put back into its place.
    """
    every = iter(entries)
    window: deque[Record | Garbled] = deque()
    for told in every:
        if not isinstance(told, Fact) and (isinstance(told, Garbled) or not _follows(told, last)):
            window.append(told)
            break
        yield told
        last = told
    seq, previous = _next(last)
    left = cast("Iterator[Record | Garbled]", every)
    while window or _fill(window, left, 1):
        entry = window[0]
        if isinstance(entry, Garbled):
            window.popleft()
            yield Fault(seq, entry.reason, "an entry of the log", lost=True)
            seq, previous = seq + 1, ""
        elif entry.seq == seq:
            window.popleft()
            _, name, v, at, turn, cause, data, digest = entry
            due = chain_digest(previous, seq, name, v, at, turn, cause, data) if previous else digest
            if digest != due:
                yield Fault(seq, f"digest {digest}: the entry was altered", f"digest {due}", lost=False)
            yield entry
            seq, previous = seq + 1, digest
        elif entry.seq < seq:
            window.popleft()
            yield Fault(seq, f"entry {entry.seq} stands here once more", f"entry {seq}", lost=False)
        else:
            _fill(window, left, WINDOW - len(window))
            place = next((n for n, other in enumerate(window) if isinstance(other, Record) and other.seq == seq), None)
            if place is None:
                yield Fault(seq, f"missing; the next entry is {entry.seq}", f"entry {seq}", lost=True)
                seq, previous = entry.seq, ""
            else:
                yield Fault(seq, f"entry {entry.seq} stands here", f"entry {seq}", lost=False)
                if place == entry.seq - seq:
                    yield Fault(entry.seq, f"entry {seq} stands here", f"entry {entry.seq}", lost=False)
                window[0], window[place] = window[place], entry


def _next(last: Fact | Record | None) -> tuple[int, str]:
    """The position behind that entry, or the first one, and the digest it is chained to."""
    return (1, GENESIS_DIGEST) if last is None else (last.seq + 1, last.digest)


def _follows(entry: Record, last: Fact | Record | None) -> bool:
    seq, previous = _next(last)
    return entry.seq == seq and entry.digest == chain_digest(previous, *entry[:7])


def _fill(window: deque[Record | Garbled], left: Iterator[Record | Garbled], number: int) -> int:
    """Take so many more entries into the window; how many there are in it."""
    window.extend(islice(left, max(0, number)))
    return len(window)


def _parsed(line: bytes) -> Raw:
    try:
        said: dict[str, Any] = json.loads(line.decode())
    except (ValueError, RecursionError):
        return (b"a line that is no JSON",)
    if not isinstance(said, dict) or list(said) != _KEYS or not isinstance(said["data"], dict):
        return (f"a line that is not an object with {', '.join(_KEYS)}".encode(),)
    numbers = [said[name] for name in ("seq", "v", "at", "turn")]
    words = [said[name] for name in ("type", "cause", "digest")]
    if not all(type(number) is int for number in numbers) or not all(isinstance(word, str) for word in words):
        return (b"a line whose values are of the wrong kind",)
    said["data"] = json.dumps(said["data"], separators=(",", ":"), ensure_ascii=False)
    try:
        return tuple([str(part).encode() for part in said.values()])
    except UnicodeEncodeError:
        return (b"a line that holds half a character",)
