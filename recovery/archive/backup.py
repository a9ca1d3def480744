"""Back up a cluster to one file, and restore it.

The state is the fold of the log, so a copy of the log is a copy of the cluster. The log only grows, so its part up to
the last entry at the start of a backup is consistent. By default the file lists the archived segments and does not
contain their entries; a restore reads these segments. The last snapshot is included, so a restored cluster starts
quickly.

The file is gzip over JSON lines: a header, one line per turn, then the parts of the snapshot in base64, then the
entries of the record of reads that are in the store, each with its id.
"""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from gzip import GzipFile
from typing import Any, NamedTuple

from recovery.archive.archive import Watched, listed
from recovery.archive.files import names, opened, written
from recovery.archive.publish import Draft
from recovery.archive.reads import left
from recovery.archive.segment import Segment, check
from recovery.replay import snapshot as snapshots
from recovery.replay.snapshot import BadSnapshot, Snapshot
from scheduler.model.errors import FairlogError, UnreadableRecord
from scheduler.model.sender import By
from scheduler.service.keyring import Keyring
from scheduler.store import codec
from scheduler.store.codec import Record
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.reads import Values, in_store

FORMAT = "fairlog backup 3"
"""The format in the header. Earlier formats held a log of schema 1."""


class BadBackup(FairlogError):
    """A file that cannot be restored, or a log that cannot be backed up."""


class Header(NamedTuple):
    """The first line of a backup: its cluster, the end of the log, the archived segments and the snapshot.

    `left` and `reads` are the parts of the record of reads that have left the store, and the number of entries in it.
    """

    cluster: str
    seq: int
    digest: str
    archive: Sequence[Segment] = ()
    snapshot: Snapshot | None = None
    left: Sequence[Segment] = ()
    reads: int = 0

    @property
    def after(self) -> Position:
        """The end of the archived part. The file holds the entries after it."""
        return Position(self.archive[-1].last, self.archive[-1].digest) if self.archive else GENESIS


class Copied(NamedTuple):
    """A log that was backed up or restored; `at` (ms) is the time of its last turn.

    After a restore, `withheld` is the number of apps that cannot run because the log does not contain their commands,
    and `key` the masters' key that it names anew.
    """

    header: Header
    at: int
    withheld: int = 0
    key: str = ""

    def as_json(self) -> dict[str, Any]:
        """JSON values; `archived` is the number of entries that are in the archive and not in the file."""
        cluster, seq, digest, _, snapshot, *_ = self.header
        return {
            "cluster": cluster,
            "seq": seq,
            "digest": digest,
            "at": self.at,
            "archived": self.header.after.seq,
            "snapshot": snapshot and snapshot.seq,
        }


def backup(log: EventLog, url: str, *, whole: bool = False, elsewhere: str = "", watched: Watched = iter) -> Copied:
    """Write the log up to its present end to the file `url`, which is created once it is complete.

    With `whole`, archived entries are copied as well. Otherwise their segments must exist, under the URL `elsewhere` if
    the archive has moved. `watched` passes the records through.

    Raises: BadBackup if the log is empty or a segment is missing, UnreadableRecord if an entry is unreadable,
    Unreachable if the file cannot be written.
    """
    taken = _last_snapshot(log)
    segments = [] if whole else listed(log.store, log.keys)
    seq, digest = log.head()
    if not seq:
        raise BadBackup(f"the log of the cluster {log.keys.cluster} is empty: there is nothing to back up")
    _check_archive([segment.under(elsewhere) for segment in segments])
    parts, reads = _reads(log)  # after the head, whose seals cover them
    header = Header(log.keys.cluster, seq, digest, segments, taken and taken[0], parts, len(reads))
    at = 0
    with written(url) as raw, gzip.open(raw, "wb") as file:
        lists = {"archive": [segment._asdict() for segment in segments], "snapshot": taken and taken[0]._asdict()}
        lists["left"] = [part._asdict() for part in parts]
        _write_line(file, {"format": FORMAT, **header._asdict(), **lists})
        for record in watched(log.read(header.after, to=seq)):
            file.write(codec.entry_line(record))
            at = record.at
        for part in taken[1] if taken else ():
            _write_line(file, b64encode(part).decode())
        for entry in reads:
            _write_line(file, entry)
    return Copied(header, at)


def restore(
    log: EventLog,
    url: str,
    *,
    by: By | None = None,
    ring: Keyring | None = None,
    elsewhere: str = "",
    watched: Watched = iter,
    counted: Callable[[Iterable[Segment]], Iterable[Segment]] = iter,
) -> Copied:
    """Publish the backup `url` as the log of a cluster that has none. Verifies and folds every entry.

    With `by`, a further turn tells that this sender restored it, and names the masters' key of `ring` if need be
    (semantics I7); without, the log is the one that was backed up.
    With `elsewhere`, the restored cluster looks for its archive under that URL. `counted` passes the archived segments
    through, which are read first, and `watched` the records.

    Raises, and changes nothing: BadKeys if a key must be named and none is there; BadBackup if the backup is incomplete
    or its archive is missing; NotPublished if the cluster has a log; UnreadableRecord or InvariantViolated if an entry
    is unreadable or invalid; Unreachable if the file cannot be read.
    """
    with Draft(log) as draft, opened(url) as raw, gzip.open(raw, "rb") as file:
        header = _header(file, url)
        segments = [segment.under(elsewhere) for segment in header.archive]
        _check_archive(segments)
        for segment in counted(segments):
            draft.fold(check(segment))
        draft.add(watched(_records(file, url, header)))
        if draft.end != (header.seq, header.digest):
            raise BadBackup(
                f"{url} is incomplete: it ends at log position {draft.end.seq}, not at {header.seq}; use another backup"
            )
        parts, reads = _end(file, url, header)
        draft.add_reads([part.under(elsewhere) if part.folder else part for part in header.left], reads)
        at = draft.at
        if by is not None:
            draft.go_on(by, ring)
        if header.snapshot is not None:
            draft.add_snapshot(header.snapshot, parts)
        draft.publish(archive=segments, snapshot=header.snapshot)
        return Copied(header, at, draft.withheld, draft.key)


def _end(file: GzipFile, url: str, header: Header) -> tuple[list[bytes], list[tuple[str, Values]]]:
    """The parts of the snapshot and the entries of the record of reads, at the end of the file."""
    try:
        number = header.snapshot.parts if header.snapshot else 0
        parts = [b64decode(json.loads(file.readline()), validate=True) for _ in range(number)]
        reads = [_read_of(json.loads(file.readline())) for _ in range(header.reads)]
        if file.read(1):
            raise BadBackup(f"{url} is not a backup: it continues after its end")
    except (ValueError, TypeError, EOFError, OSError, zlib.error) as error:
        raise BadBackup(f"{url} is incomplete: its end cannot be read ({error}); use another backup") from error
    return parts, reads


def _read_of(line: Sequence[Any]) -> tuple[str, Values]:
    identity, values = line
    return identity, values


def _reads(log: EventLog) -> tuple[list[Segment], list[tuple[str, Values]]]:
    """The parts of the record of reads that have left the store, and the entries in it."""
    parts = left(log.store, log.keys)
    while True:
        entries, start = list[tuple[str, Values]](), "-"
        while page := in_store(log.store, log.keys, start):
            entries += page
            start = f"({page[-1][0]}"
        known, parts = parts, left(log.store, log.keys)
        if parts == known:
            return parts, entries


def _header(file: GzipFile, url: str) -> Header:
    try:
        stated = json.loads(file.readline())
        if stated.pop("format") == FORMAT:
            stated["archive"] = [Segment(**each) for each in stated.get("archive", ())]
            stated["left"] = [Segment(**each) for each in stated.get("left", ())]
            stated["snapshot"] = Snapshot(**stated["snapshot"]) if stated.get("snapshot") else None
            return Header(**stated)
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, zlib.error):
        pass
    raise BadBackup(f"{url} is not a backup that this version reads: its first line is not a {FORMAT!r} header")


def _records(file: GzipFile, url: str, header: Header) -> Iterator[Record]:
    """The entries after the archived ones, with their chain verified."""
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
    """The newest usable snapshot and its parts; None if there is none."""
    for seq in snapshots.positions(log):
        with suppress(BadSnapshot):
            return snapshots.parts_of(log, seq)
    return None


def _check_archive(segments: Iterable[Segment]) -> None:
    """Raises: BadBackup if a segment is missing or there is a gap, Unreachable if a folder cannot be read."""
    files: dict[str, set[str]] = {}
    before = GENESIS
    for segment in segments:
        if (segment.first, segment.before) != (before.seq + 1, before.digest):
            raise BadBackup(f"the list of the archive has a gap: {segment.name} does not follow entry {before.seq}")
        before = Position(segment.last, segment.digest)
        if segment.folder not in files:
            files[segment.folder] = set(names(segment.folder))
        if segment.name not in files[segment.folder]:
            raise BadBackup(
                f"the archived entries {segment.first} to {segment.last} are missing: there is no {segment.url}; "
                "if the archive has moved, name it with --archive URL"
            )


def _write_line(file: GzipFile, value: object) -> None:
    file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
