"""The archive: old entries of the log in compressed files outside the store, and reading across both.

After a segment's file has been read back and compared with the stream, one script adds the segment to a list in the
store and trims the stream. So every entry is always in the stream or in a listed segment, and readers look for entries
before the stream's first in the segments. Several processes can archive at the same time: one finishes a segment first,
the others continue after it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from recovery.archive.files import DRAFT, PlaceUnreachable, make_folder, names, needed, remove
from recovery.archive.segment import SUFFIX, Segment, check, entries, get, put, segment_name, segment_of
from recovery.replay import snapshot
from recovery.replay.rebuild import rebuild
from scheduler.model.errors import FairlogError, InvalidSetting, UnreadableRecord
from scheduler.rules.checks.validate import check_archive_url
from scheduler.store.eventlog import GENESIS, PAGE, EventLog, Position
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.codec import Record
    from scheduler.store.keys import Keys

SEGMENT_EVENTS = 100_000
SEGMENT_BYTES = 32 << 20
"""A segment ends with the turn that reaches this number of events or of uncompressed bytes."""
Watched = Callable[[Iterable["Record"]], Iterable["Record"]]
"""Passes records through, for example to show progress."""

TRIM_LUA = script(__file__, "trim")


class CannotArchive(FairlogError):
    """The log could not be archived and is unchanged."""


class Archive:
    """The archived part of a cluster's log; `elsewhere` is the URL that it was moved to, or "".

    Caches the segment read last.
    """

    def __init__(self, store: Redis, keys: Keys, elsewhere: str = "") -> None:
        self._store = store
        self._keys = keys
        self._elsewhere = elsewhere
        self._kept: tuple[Segment, list[Record]] | None = None

    def page(self, seq: int) -> Sequence[Record]:
        """Up to `PAGE` turns, from the one that contains position `seq + 1`; none if that is not archived.

        Raises: UnreadableRecord naming the segment and its positions if it is missing or damaged.
        """
        if self._kept is None or not self._kept[0].first <= seq + 1 <= self._kept[0].last:
            found = next((each for each in listed(self._store, self._keys) if each.first <= seq + 1 <= each.last), None)
            if found is None:
                return ()
            found = found.under(self._elsewhere)
            self._kept = found, entries(found, get(found))
        _, records = self._kept
        begin = bisect_left(records, seq + 1, key=lambda record: record.last)
        return records[begin : begin + PAGE]


def open_log(store: Redis, keys: Keys, *, replicas: int = 0, elsewhere: str = "", durable: bool = False) -> EventLog:
    """The whole log, including the archived part; `elsewhere` as in `Archive`, the others as in `EventLog`."""
    archived = Archive(store, keys, elsewhere).page
    return EventLog(store, keys, replicas=replicas, archived=archived, durable=durable)


def listed(store: Redis, keys: Keys) -> list[Segment]:
    """The archived segments, in order, without gaps from position 1."""
    return [Segment(**json.loads(text)) for text in cast("list[bytes]", store.lrange(keys.archive, 0, -1))]


def archived_to(store: Redis, keys: Keys) -> Position:
    """The end of the archived part."""
    return _position(cast("bytes | None", store.lindex(keys.archive, -1)))


def _position(last: bytes | None) -> Position:
    return Position(json.loads(last)["last"], json.loads(last)["digest"]) if last else GENESIS


def archive(
    log: EventLog, url: str, *, retain: int, watched: Watched = iter, folded: Callable[[int], object] | None = None
) -> Iterator[Segment]:
    """Move all whole turns before the last `retain` events to segments under `url`. Yields each segment once moved.

    A usable snapshot must cover what is moved; without one, a snapshot is written first. `watched` passes the records
    through; `folded` is called with the positions folded for a snapshot.

    After an error it tries again if the archive has grown meanwhile, because another process may be archiving.

    Raises: CannotArchive, Unreachable or UnreadableRecord with the reason; the log is complete in any case.
    """
    try:
        check_archive_url(url)
    except InvalidSetting as error:
        raise CannotArchive(str(error)) from None
    if not url:
        raise CannotArchive("no archive is configured; give a URL, or run `fairlog settings set archive_url=URL`")
    needed("zstandard", "an archive")
    bound = log.head().seq - max(1, retain)
    if bound <= archived_to(log.store, log.keys).seq:
        return
    bound = log.before(bound).seq
    folder = f"{url.rstrip('/')}/{log.keys.cluster}"
    while _position(known := cast("bytes | None", log.store.lindex(log.keys.archive, -1))).seq < bound:
        try:
            make_folder(folder)
            behind = _snapshot_behind(log, bound, folded)
            yield from _move(log, folder, known, behind, watched(log.read(_position(known), to=bound)))
        except (CannotArchive, PlaceUnreachable, UnreadableRecord):
            if log.store.lindex(log.keys.archive, -1) == known:
                raise
        else:
            _tidy(folder, bound)


def _move(log: EventLog, folder: str, known: bytes | None, behind: int, records: Iterable[Record]) -> Iterator[Segment]:
    """Move the records, which follow the last listed segment `known` and are covered by the snapshot at `behind`."""
    after, trim = _position(known), log.store.register_script(TRIM_LUA)
    for batch in _batches(records, set(names(folder))):
        segment, lines = segment_of(batch, after.digest, folder)
        put(segment, lines)
        check(segment, lines)
        entry = json.dumps(segment._asdict()).encode()
        answer: Any = trim(
            keys=[log.keys.log, log.keys.archive, log.keys.snapshot(behind)],
            args=[known or b"", segment.first, f"{segment.last}-0", segment.digest, f"{segment.last + 1}-0", entry],
        )
        if answer:
            raise CannotArchive(f"entries {segment.first} to {segment.last} were not archived: {answer.decode()}")
        known, after = entry, Position(segment.last, segment.digest)
        yield segment


def _batches(records: Iterable[Record], there: Container[str]) -> Iterator[list[Record]]:
    """The records by segment. A segment also ends where one of the existing files `there` does, and replaces it."""
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.events) + len(record.commands) + len(record.private)
        many = record.last - batch[0].first >= SEGMENT_EVENTS - 1
        if many or size >= SEGMENT_BYTES or segment_name(batch[0].first, record) in there:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _snapshot_behind(log: EventLog, bound: int, folded: Callable[[int], object] | None) -> int:
    """The position of a usable snapshot after `bound`. If there is none, writes one and reads it back."""
    found = snapshot.latest(log)
    if found is not None and found[1].seq > bound:
        return found[1].seq
    state, position = rebuild(log, progress=folded)
    snapshot.write(log, state, position)
    snapshot.load(log, position.seq)
    return position.seq


def _tidy(folder: str, archived: int) -> None:
    """Remove the drafts of interrupted processes for entries that are archived now."""
    for name in names(folder):
        whole, found, _ = name.partition(SUFFIX)
        last = whole.partition("-")[2].partition("-")[0]
        if found and name.endswith(DRAFT) and last.isdecimal() and int(last) <= archived:
            remove(f"{folder}/{name}")
