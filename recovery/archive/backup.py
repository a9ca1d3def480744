"""A cluster in one file, and back again: what is left to restore it from when the store's disk is lost.

State is the fold of the log, so a copy of the log is a copy of the cluster. It only ever grows: what it holds up to
the position where it ends when a backup begins is consistent, whatever goes on meanwhile. What was archived is not
copied again, unless that is asked for: the file lists the segments, and they have to be there when it is restored.
The last snapshot comes along, so that the restored cluster is as quickly at work as the lost one would have been.

The file is gzip over JSON lines: a header, then a turn of the log a line, then the parts of the
snapshot in base64. Everything restored appears at once, when all of it was read and found good, so no master ever
serves half of a log.
"""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

from recovery.archive.archive import Watched, listed
from recovery.archive.files import names, opened, written
from recovery.archive.segment import Segment, check
from recovery.replay import snapshot as snapshots
from recovery.replay.snapshot import BadSnapshot, Snapshot
from scheduler.model.errors import FairlogError, UnreadableRecord
from scheduler.store import codec
from scheduler.store.eventlog import GENESIS, EventLog, Position

if TYPE_CHECKING:
    from redis.client import Pipeline

    from scheduler.store.codec import Record

FORMAT = "fairlog backup 3"
"""What a header calls its file: those before held a log of schema 1."""
PAGE = 500
DRAFT_KEPT_S = 3_600
"""What a restore that died has left in the store is gone after that time."""

PUBLISH_LUA = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('DEL', KEYS[3], KEYS[4])
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('PERSIST', KEYS[1])
if ARGV[1] ~= '' then
  redis.call('RENAME', KEYS[5], KEYS[6])
  redis.call('PERSIST', KEYS[6])
  redis.call('LPUSH', KEYS[4], ARGV[1])
end
for n = 2, #ARGV do redis.call('RPUSH', KEYS[3], ARGV[n]) end
return 1
"""
"""KEYS: log, its draft, archive, the list of snapshots, a snapshot's draft, that snapshot. ARGV: the snapshot's
position (or empty), the archived segments."""


class BadBackup(FairlogError):
    """A file or place that nothing can be restored from, or backed up to; or a log that is in the way."""


class Header(NamedTuple):
    """What a backup says of itself: its cluster, where the log ends, what of it is archived, and its snapshot."""

    cluster: str
    seq: int
    digest: str
    archive: Sequence[Segment] = ()
    snapshot: Snapshot | None = None

    @property
    def after(self) -> Position:
        """Where the archived part ends: the file holds the entries behind."""
        return Position(self.archive[-1].last, self.archive[-1].digest) if self.archive else GENESIS


class Copied(NamedTuple):
    """What was backed up or restored: a log that ends at `seq`, at the time `at` (ms)."""

    header: Header
    at: int

    def as_json(self) -> dict[str, Any]:
        """The same for programs; `archived` is how many of the entries are in the archive and not in the file."""
        cluster, seq, digest, _, snapshot = self.header
        return {
            "cluster": cluster,
            "seq": seq,
            "digest": digest,
            "at": self.at,
            "archived": self.header.after.seq,
            "snapshot": snapshot and snapshot.seq,
        }


def backup(log: EventLog, url: str, *, whole: bool = False, elsewhere: str = "", watched: Watched = iter) -> Copied:
    """Write the log as it stands now to the file `url`, which is there only once it is whole.

    With `whole` the archived entries are copied too; otherwise the archive has to be there, `elsewhere` if it has
    moved. `watched` is given the records and gives them back.

    Raises: BadBackup if there is nothing to back up, UnreadableRecord if the log is bad, Unreachable from the file.
    """
    taken = _last_snapshot(log)
    segments = [] if whole else listed(log.store, log.keys)
    seq, digest = log.head()
    if not seq:
        raise BadBackup(f"the log of the cluster {log.keys.cluster} is empty: there is nothing to back up")
    _check_archive([segment.under(elsewhere) for segment in segments])
    header = Header(log.keys.cluster, seq, digest, segments, taken and taken[0])
    at = 0
    with written(url, private=True) as raw, gzip.open(raw, "wb") as packed:
        file = cast("IO[bytes]", packed)
        said = header._asdict() | {
            "archive": [segment._asdict() for segment in segments],
            "snapshot": taken and taken[0]._asdict(),
        }
        _write_line(file, {"format": FORMAT, **said})
        for record in watched(log.read(header.after, to=seq)):
            file.write(codec.entry_line(record))
            at = record.at
        for part in taken[1] if taken else ():
            _write_line(file, b64encode(part).decode())
    return Copied(header, at)


def restore(
    log: EventLog,
    url: str,
    *,
    elsewhere: str = "",
    watched: Watched = iter,
    counted: Callable[[Iterable[Segment]], Iterable[Segment]] = iter,
) -> Copied:
    """Make the log in the file `url` the log of a cluster that has none; every entry is checked on the way.

    The next master to be elected rebuilds from it and brings grants and heartbeats in line. With `elsewhere` the
    archived part is from now on looked for under that URL. `counted` is given the segments of that part, which are
    read first, and gives them back, as `watched` the records.

    Raises: BadBackup if the file is not a whole backup, the archive that it goes with is not there or the cluster
    has a log; UnreadableRecord if that archive is damaged; Unreachable if the file cannot be read. Nothing was
    changed then.
    """
    store, keys = log.store, log.keys
    if store.exists(keys.log):
        raise BadBackup(_in_the_way(log))
    draft = f"{keys.prefix}restoring:{uuid4().hex}"
    drafts = draft, f"{draft}:snapshot"
    try:
        with _unpacked(url) as file:
            header = _header(file, url)
            segments = [segment.under(elsewhere) for segment in header.archive]
            _check_archive(segments)
            for segment in counted(segments):
                check(segment)
            at = _copy_entries(file, url, header, (log, draft), watched)
            _copy_snapshot(file, url, header, (log, drafts[1]))
        seq = header.snapshot.seq if header.snapshot else 0
        published = store.register_script(PUBLISH_LUA)(
            keys=[keys.log, draft, keys.archive, keys.snapshots, drafts[1], keys.snapshot(seq)],
            args=[seq or "", *(json.dumps(segment._asdict()) for segment in segments)],
        )
        if not published:
            raise BadBackup(_in_the_way(log))
    finally:
        store.delete(*drafts)
    return Copied(header, at)


def _copy_entries(file: IO[bytes], url: str, header: Header, to: tuple[EventLog, str], watched: Watched) -> int:
    """All entries of the file checked and put under a key; the time of the last."""
    log, draft = to
    position, at = header.after, 0
    pipe = log.store.pipeline(transaction=False)
    for record in watched(_records(file, url, header)):
        pipe.xadd(draft, codec.stored(record), id=f"{record.last}-0")  # type: ignore[arg-type]  # str is one of theirs
        position, at = Position(record.last, record.digest), record.at
        if len(pipe) >= PAGE:
            _flush(pipe, draft)
    if position != (header.seq, header.digest):
        raise BadBackup(
            f"{url} is incomplete: it ends at log position {position.seq}, not at {header.seq}; use another backup"
        )
    _flush(pipe, draft)
    return at


def _copy_snapshot(file: IO[bytes], url: str, header: Header, to: tuple[EventLog, str]) -> None:
    """The snapshot at the end of the file, if it has one, put under a key."""
    log, draft = to
    try:
        number = header.snapshot.parts if header.snapshot else 0
        parts = [b64decode(json.loads(file.readline()), validate=True) for _ in range(number)]
        if file.read(1):
            raise BadBackup(f"{url} is not a backup: it continues after its end")
    except (ValueError, TypeError, EOFError, OSError, zlib.error) as error:
        raise BadBackup(f"{url} is incomplete: its end cannot be read ({error}); use another backup") from error
    if header.snapshot is None:
        return
    pipe = log.store.pipeline(transaction=False)
    pipe.rpush(draft, json.dumps(header.snapshot._asdict()), *parts)
    _flush(pipe, draft)


def _flush(pipe: Pipeline, draft: str) -> None:
    pipe.expire(draft, DRAFT_KEPT_S)
    pipe.execute()


def _header(file: IO[bytes], url: str) -> Header:
    try:
        said = json.loads(file.readline())
        if said.pop("format") == FORMAT:
            said["archive"] = [Segment(**each) for each in said.get("archive", ())]
            said["snapshot"] = Snapshot(**said["snapshot"]) if said.get("snapshot") else None
            return Header(**said)
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, zlib.error):
        pass
    raise BadBackup(f"{url} is not a backup that this version reads: its first line is not a {FORMAT!r} header")


def _records(file: IO[bytes], url: str, header: Header) -> Iterator[Record]:
    """The entries behind the archived ones, each checked to follow from the one before."""
    seq, digest = header.after
    try:
        while seq < header.seq and (line := file.readline()):
            record = codec.read_entry(line, seq + 1)
            codec.check(record, seq, digest)
            seq, digest = record.last, record.digest
            yield record
    except (ValueError, TypeError, EOFError, gzip.BadGzipFile, zlib.error, UnreadableRecord) as error:
        raise BadBackup(f"{url} cannot be read after log position {seq}: {error}; use another backup") from error


def _last_snapshot(log: EventLog) -> tuple[Snapshot, list[bytes]] | None:
    """The snapshot written last that is whole and agrees with the log, and its parts; None if there is none."""
    for seq in snapshots.positions(log):
        try:
            return snapshots.parts_of(log, seq)
        except BadSnapshot:
            continue
    return None


def _check_archive(segments: Iterable[Segment]) -> None:
    """Raises: BadBackup if a segment is not there or does not follow the last, Unreachable if that cannot be told."""
    there: dict[str, set[str]] = {}
    before = GENESIS
    for segment in segments:
        if (segment.first, segment.before) != (before.seq + 1, before.digest):
            raise BadBackup(f"the list of the archive has a gap: {segment.name} does not follow entry {before.seq}")
        before = Position(segment.last, segment.digest)
        if segment.folder not in there:
            there[segment.folder] = set(names(segment.folder))
        if segment.name not in there[segment.folder]:
            raise BadBackup(
                f"the archived entries {segment.first} to {segment.last} are missing: there is no {segment.url}; "
                "if the archive has moved, name it with --archive URL"
            )


def _write_line(file: IO[bytes], said: object) -> None:
    file.write(json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def _in_the_way(log: EventLog) -> str:
    return (
        f"the cluster {log.keys.cluster} has a log already; restore into an empty store before the first "
        "master starts, or under another --cluster"
    )


@contextmanager
def _unpacked(url: str) -> Iterator[IO[bytes]]:
    with opened(url) as raw, gzip.open(raw, "rb") as file:
        yield cast("IO[bytes]", file)
