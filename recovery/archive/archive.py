"""The archive: old entries of the log in compressed files outside of the store, and reading across both.

What was archived is a list of segments in the store, beside the log. A segment joins it by the same script that
trims the stream, once its file was read back and found to be what the stream holds; so at any instant every entry is
in the stream or in a listed segment, and a reader that finds the stream to begin behind what it wants finds it
there. Nobody is kept from archiving at the same time: of several, one finishes a segment first, and the others go
on behind it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from recovery.archive.files import DRAFT, Unreachable, make_folder, names, needed, remove
from recovery.archive.segment import SUFFIX, Segment, check, entries, get, put, segment_name, segment_of
from recovery.replay import snapshot
from recovery.replay.rebuild import rebuild
from scheduler.model.errors import FairlogError, InvalidSetting, UnreadableRecord
from scheduler.rules.validate import check_archive_url
from scheduler.store.eventlog import GENESIS, PAGE, EventLog, Position

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.codec import Record
    from scheduler.store.keys import Keys

SEGMENT_EVENTS = 100_000
SEGMENT_BYTES = 32 << 20
"""A segment ends with the turn by which it has so many entries, or so many bytes before they are compressed."""
Watched = Callable[[Iterable["Record"]], Iterable["Record"]]

TRIM_LUA = """
local log, archive, snapshot = KEYS[1], KEYS[2], KEYS[3]
if (redis.call('LINDEX', archive, -1) or '') ~= ARGV[1] then return 'others were archived meanwhile' end
local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local ends = redis.call('XRANGE', log, ARGV[3], ARGV[3])[1]
if not first or first[2][2] ~= ARGV[2] then return 'the log does not begin with the segment any more' end
if not ends or ends[2][#ends[2]] ~= ARGV[4] then return 'the log has another entry where the segment ends' end
if last[1] == ARGV[3] then return 'the last entry of the log is never moved' end
if redis.call('EXISTS', snapshot) == 0 then return 'the snapshot that covers the segment is gone' end
redis.call('RPUSH', archive, ARGV[6])
redis.call('XTRIM', log, 'MINID', ARGV[5])
return ''
"""
"""KEYS: log, archive, a snapshot behind the segment. ARGV: the last segment listed so far (or empty), the new
segment's first position, its last id and digest, the first id to keep, the new segment."""


class CannotArchive(FairlogError):
    """The log was left as it is."""


class Archive:
    """The archived part of the cluster's log, as its `store` lists it; `elsewhere` is where it has moved to, if it has.

    The segment that was read last is kept.
    """

    def __init__(self, store: Redis, keys: Keys, elsewhere: str = "") -> None:
        self._store = store
        self._keys = keys
        self._elsewhere = elsewhere
        self._kept: tuple[Segment, list[Record]] | None = None

    def segments(self) -> list[Segment]:
        """The segments, in order and without gaps from the first entry on."""
        return listed(self._store, self._keys)

    def page(self, seq: int) -> Sequence[Record]:
        """The turns from the one on that holds the position behind `seq`, some hundred at most; none if not archived.

        Raises: UnreadableRecord naming the segment and its positions if it is missing or damaged.
        """
        if self._kept is None or not self._kept[0].first <= seq + 1 <= self._kept[0].last:
            found = next((each for each in self.segments() if each.first <= seq + 1 <= each.last), None)
            if found is None:
                return ()
            found = found.under(self._elsewhere)
            self._kept = found, entries(found, get(found))
        _, records = self._kept
        begin = bisect_left(records, seq + 1, key=lambda record: record.last)
        return records[begin : begin + PAGE]


def open_log(store: Redis, keys: Keys, *, replicas: int = 0, elsewhere: str = "") -> EventLog:
    """The whole log of the cluster, the archived part too; `elsewhere` as of `Archive`."""
    return EventLog(store, keys, replicas=replicas, archived=Archive(store, keys, elsewhere).page)


def listed(store: Redis, keys: Keys) -> list[Segment]:
    """The segments of the archived part, in order."""
    return [Segment(**json.loads(text)) for text in cast("list[bytes]", store.lrange(keys.archive, 0, -1))]


def archived_to(store: Redis, keys: Keys) -> Position:
    """Where the archived part of the log ends."""
    return _position(cast("bytes | None", store.lindex(keys.archive, -1)))


def _position(last: bytes | None) -> Position:
    return Position(json.loads(last)["last"], json.loads(last)["digest"]) if last else GENESIS


def archive(
    log: EventLog, url: str, *, retain: int, watched: Watched = iter, folded: Callable[[int], object] | None = None
) -> Iterator[Segment]:
    """Move what is older than the last `retain` events, and than a snapshot, to segments under `url`; each, once moved.

    A snapshot that is recent enough is taken first if there is none that can be used. `watched` is given the records
    and gives them back, `folded` the positions on the way to a snapshot.

    Only whole turns move. Whatever goes wrong is tried again as long as the archive grows meanwhile, since others may
    archive at the same time.

    Raises: CannotArchive, Unreachable or UnreadableRecord saying why no more was moved; the log is whole all the same.
    """
    try:
        check_archive_url(url)
    except InvalidSetting as error:
        raise CannotArchive(str(error)) from None
    if not url:
        raise CannotArchive("no archive is configured; name a URL, or run `fairlog settings set archive_url=URL`")
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
        except (CannotArchive, Unreachable, UnreadableRecord):
            if log.store.lindex(log.keys.archive, -1) == known:
                raise
        else:
            _tidy(folder, bound)


def _move(log: EventLog, folder: str, known: bytes | None, behind: int, records: Iterable[Record]) -> Iterator[Segment]:
    """Move the records, which follow the segment `known` to be listed last, segment by segment; each, once moved.

    `behind` is the position of the snapshot that covers them.
    """
    after = _position(known)
    for batch in _batches(records, set(names(folder))):
        segment, lines = segment_of(batch, after.digest, folder)
        put(segment, lines)
        check(segment, lines)
        said = json.dumps(segment._asdict()).encode()
        _trim(log, known or b"", segment, said, behind)
        known, after = said, Position(segment.last, segment.digest)
        yield segment


def _trim(log: EventLog, known: bytes, segment: Segment, said: bytes, behind: int) -> None:
    script = log.store.register_script(TRIM_LUA)
    answer: Any = script(
        keys=[log.keys.log, log.keys.archive, log.keys.snapshot(behind)],
        args=[known, segment.first, f"{segment.last}-0", segment.digest, f"{segment.last + 1}-0", said],
    )
    if answer:
        raise CannotArchive(f"entries {segment.first} to {segment.last} stay in the store: {answer.decode()}")


def _batches(records: Iterable[Record], there: Container[str]) -> Iterator[list[Record]]:
    """The records in the order they came, as many at a time as make a segment.

    A segment that is among the files `there` already was written by one that was interrupted: it is made again.
    """
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.events) + len(record.commands) + len(record.private)
        many = record.last - batch[0].first >= SEGMENT_EVENTS - 1
        if many or size >= SEGMENT_BYTES or segment_name(batch) in there:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _snapshot_behind(log: EventLog, bound: int, folded: Callable[[int], object] | None) -> int:
    """The position, beyond `bound`, of a snapshot that was read back and can be used; taken now if there is none."""
    found = snapshot.latest(log)
    if found is not None and found[1].seq > bound:
        return found[1].seq
    state, position = rebuild(log, progress=folded)
    snapshot.write(log, state, position)
    snapshot.load(log, position.seq)
    return position.seq


def _tidy(folder: str, archived: int) -> None:
    """Remove what archiving that was interrupted has left unfinished, as far as it is finished by now."""
    for name in names(folder):
        whole, found, _ = name.partition(SUFFIX)
        last = whole.partition("-")[2].partition("-")[0]
        if found and name.endswith(DRAFT) and last.isdecimal() and int(last) <= archived:
            remove(f"{folder}/{name}")
