"""The log in one file, and back again: what is left to restore a cluster from when the store's disk is lost.

State is the fold of the log, so a copy of the log is a copy of the cluster. It only ever grows: what it holds up to
the position where it ends when a backup begins is consistent, whatever goes on meanwhile. A restored log is complete
before it gets its name, so no master ever serves half of one.

The file is gzip over JSON lines: a header, then an entry of the log a line, with its digest.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from scheduler.errors import FairlogError, UnreadableRecord
from scheduler.eventlog import GENESIS, EventLog, Position
from scheduler.events import FIELDS, Record, read_record

FORMAT = "fairlog backup 1"
PAGE = 5_000


class BadBackup(FairlogError):
    """A file or place that nothing can be restored from, or backed up to; or a log that is in the way."""


class Header(NamedTuple):
    """What a backup says of itself: its cluster, and where the log ended."""

    cluster: str
    seq: int
    digest: str


def backup(log: EventLog, url: str, progress: Callable[[int], None] = lambda _: None) -> Header:
    """Write the log as it stands now to the file `url`, which there is only once it is whole.

    `progress` gets positions, now and then.

    Raises: BadBackup if there is nothing to back up, UnreadableRecord if the log is bad, OSError from the file.
    """
    seq, digest = log.head()
    if not seq:
        raise BadBackup(f"the log of the cluster {log.keys.cluster} is empty: there is nothing to back up")
    header = Header(log.keys.cluster, seq, digest)
    with _written(url) as file:
        _write_line(file, {"format": FORMAT, **header._asdict()})
        for record in log.read(to=seq):
            fields = record._asdict()
            _write_line(file, [fields[name] for name in FIELDS])
            if record.seq % PAGE == 0:
                progress(record.seq)
    progress(seq)
    return header


def restore(log: EventLog, url: str, progress: Callable[[int], None] = lambda _: None) -> Header:
    """Make the log in the file `url` the log of a cluster that has none; every entry is checked on the way.

    The next master to be elected rebuilds from it and brings grants and heartbeats in line.

    Raises: BadBackup if the file is not a whole backup or the cluster has a log; nothing was changed then.
    """
    if log.store.exists(log.keys.log):
        raise BadBackup(_in_the_way(log))
    draft = f"{log.keys.prefix}restoring:{uuid4().hex}"
    try:
        with _opened(url) as file:
            header = _copy(file, url, log, draft, progress)
        if not log.store.renamenx(draft, log.keys.log):
            raise BadBackup(_in_the_way(log))
    finally:
        log.store.delete(draft)
    return header


def _copy(file: IO[bytes], url: str, log: EventLog, draft: str, progress: Callable[[int], None]) -> Header:
    """What the file says of itself, all of its entries checked and put under the key `draft`."""
    header, position = _header(file, url), GENESIS
    pipe = log.store.pipeline(transaction=False)
    for record in _records(file, url):
        pipe.xadd(draft, dict(zip(FIELDS, record[1:], strict=True)), id=f"{record.seq}-0")
        position = Position(record.seq, record.digest)
        if record.seq % PAGE == 0:
            pipe.execute()
            progress(record.seq)
    if position != (header.seq, header.digest):
        raise BadBackup(f"{url} is not whole: it ends at log position {position.seq}, not at {header.seq}")
    pipe.execute()
    progress(header.seq)
    return header


def _header(file: IO[bytes], url: str) -> Header:
    try:
        said = json.loads(file.readline())
        if said.pop("format") == FORMAT:
            return Header(**said)
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, zlib.error):
        pass
    raise BadBackup(f"{url} is not a backup that this version reads: its first line is not a {FORMAT!r} header")


def _records(file: IO[bytes], url: str) -> Iterator[Record]:
    """The entries, each checked to follow from the one before."""
    digest = GENESIS.digest
    seq = 0
    try:
        for seq, line in enumerate(file, start=1):
            fields = dict(zip(FIELDS, json.loads(line), strict=True))
            record = read_record(seq, {name: str(value) for name, value in fields.items()}, digest)
            digest = record.digest
            yield record
    except (ValueError, TypeError, EOFError, gzip.BadGzipFile, zlib.error, UnreadableRecord) as error:
        raise BadBackup(f"{url} cannot be read behind log position {seq}: {error}") from error


def _write_line(file: IO[bytes], said: object) -> None:
    file.write(json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def _in_the_way(log: EventLog) -> str:
    return (
        f"the cluster {log.keys.cluster} has a log already; a backup is restored into an empty store, before any "
        "master is started, or under another --cluster"
    )


def _path(url: str) -> Path | None:
    """The file on this machine that `url` means, None if it is somewhere else."""
    if "://" not in url:
        return Path(url)
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in {"", "localhost"} else None


@contextmanager
def _written(url: str) -> Iterator[IO[bytes]]:
    """A new file at `url`, there only once all of it was written; what was there before stays until then."""
    path = _path(url)
    if path is None:
        with _remote(url, "wb") as raw, gzip.open(raw, "wb") as file:
            yield cast("IO[bytes]", file)
        return
    draft = path.with_name(f"{path.name}.{uuid4().hex[:8]}.draft")
    try:
        with draft.open("xb") as raw:
            draft.chmod(0o600)
            with gzip.open(raw, "wb") as file:
                yield cast("IO[bytes]", file)
            raw.flush()
            os.fsync(raw.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _opened(url: str) -> Iterator[IO[bytes]]:
    path = _path(url)
    with _remote(url, "rb") if path is None else path.open("rb") as raw, gzip.open(raw, "rb") as file:
        yield cast("IO[bytes]", file)


def _remote(url: str, mode: str) -> Any:  # noqa: ANN401 (fsspec's)
    try:
        fsspec = import_module("fsspec")
    except ImportError:
        raise BadBackup(f"{url} is not on this machine: install fsspec for such places, or name a file") from None
    return fsspec.open(url, mode)
