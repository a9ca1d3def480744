"""Segments: parts of the log in files that are never changed, as lines that `fairlog audit` reads, compressed by zstd.

A segment's name says its first and last position and how the digest at its end begins, so that segments of two logs,
or of a tail that was lost and written anew, never get into each other's way. What else has to be known to
trust one (`Segment`) lies in the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from recovery.archive.files import Unreachable, needed, opened, written
from scheduler.model.errors import UnreadableRecord
from scheduler.store.codec import Raw

if TYPE_CHECKING:
    from scheduler.store.codec import Record

SUFFIX = ".jsonl.zst"
_LEVEL = 6
_quoted = json.JSONEncoder(ensure_ascii=False).encode
_ENTRY = re.compile(
    rb'\{"seq":(\d+),"type":"([^"\\]*)","v":(\d+),"at":(\d+),"turn":(\d+),"cause":"(?P<cause>(?:[^"\\]|\\.)*)",'
    rb'"data":(\{.*\}),"digest":"([0-9a-f]*)"\}'
)


class Segment(NamedTuple):
    """A part of the log in a file of `folder`: its first and last position, and what is in it.

    `before` and `digest` are those of the entries before the first and at the last; `size` (bytes) and `checksum`
    (BLAKE2b-128) are of the lines, uncompressed.
    """

    folder: str
    first: int
    last: int
    before: str
    digest: str
    size: int
    checksum: str

    @property
    def name(self) -> str:
        """Its file's name."""
        return _name(self.first, self.last, self.digest)

    @property
    def url(self) -> str:
        """Where it was put."""
        return f"{self.folder}/{self.name}"

    def under(self, elsewhere: str) -> Segment:
        """The same segment, if the archive has moved to the URL `elsewhere`, which may be empty."""
        if not elsewhere:
            return self
        return self._replace(folder=f"{elsewhere.rstrip('/')}/{self.folder.rpartition('/')[2]}")


def segment_name(records: Sequence[Record]) -> str:
    """The name of the file that holds these records."""
    return _name(records[0].seq, records[-1].seq, records[-1].digest)


def segment_of(records: Sequence[Record], before: str, folder: str) -> tuple[Segment, bytes]:
    """The segment that holds these records, which follow the entry with the digest `before`, and its lines."""
    lines = b"".join(map(_line, records))
    first, last = records[0], records[-1]
    return Segment(folder, first.seq, last.seq, before, last.digest, len(lines), _checksum(lines)), lines


def put(segment: Segment, lines: bytes) -> None:
    """Write the file of the segment. Raises: Unreachable if its place cannot be written."""
    zstandard = needed("zstandard", "an archive")
    squeezed = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(lines)
    with written(segment.url) as file:
        file.write(squeezed)


def get(segment: Segment) -> list[bytes]:
    """The lines of the segment, an entry each.

    Raises: UnreadableRecord naming the segment and its positions if the file is missing or not what was put there.
    """
    try:
        zstandard = needed("zstandard", "an archive")
        with opened(segment.url) as file:
            squeezed = file.read()
    except Unreachable as error:
        raise _unreadable(segment, str(error)) from error
    try:
        if zstandard.frame_content_size(squeezed) != segment.size:
            raise _unreadable(segment, f"{segment.url} is damaged: it does not hold {segment.size} bytes of entries")
        lines: bytes = zstandard.ZstdDecompressor().decompress(squeezed)
    except zstandard.ZstdError as error:
        raise _unreadable(segment, f"{segment.url} is damaged: {error}") from error
    if _checksum(lines) != segment.checksum:
        raise _unreadable(segment, f"{segment.url} is damaged: its entries have the checksum {_checksum(lines)}")
    return lines[:-1].split(b"\n")


def entries(segment: Segment, lines: Iterable[bytes], first: int) -> list[Raw]:
    """The entries on these lines, the first of them at the position `first`, as the store would give them."""
    page: list[Raw] = []
    for seq, line in enumerate(lines, start=first):
        found = _ENTRY.fullmatch(line)
        if found is None or int(found[1]) != seq:
            raise _unreadable(segment, f"{segment.url} holds something else where entry {seq} should be")
        if b"\\" in found["cause"]:
            number, name, *numbers, cause, data, digest = found.groups()
            page.append((number, name, *numbers, json.loads(b'"%b"' % cause).encode(), data, digest))
        else:
            page.append(found.groups())
    return page


def check(segment: Segment, lines: bytes | None = None) -> None:
    """Pass if the file of the segment, read back, holds exactly these lines (if given), and they the chain of digests.

    Raises: UnreadableRecord naming the segment and its positions.
    """
    found = get(segment)
    if lines is not None and found != lines[:-1].split(b"\n"):
        raise _unreadable(segment, f"{segment.url} holds other entries than were written")
    previous = segment.before.encode()
    for raw in entries(segment, found, segment.first):
        due = blake2b(b"\n".join((previous, *raw[:-1])), digest_size=16).hexdigest().encode()
        if due != raw[-1]:
            raise _unreadable(segment, f"{segment.url} breaks the chain of digests at {raw[0].decode()}")
        previous = due
    if len(found) != segment.last - segment.first + 1 or previous.decode() != segment.digest:
        raise _unreadable(segment, f"{segment.url} does not end with the entry that it should")


def _line(record: Record) -> bytes:
    """The record as `fairlog log --json` has it, its data exactly as stored."""
    seq, name, v, at, turn, cause, data, digest = record
    return (
        f'{{"seq":{seq},"type":"{name}","v":{v},"at":{at},"turn":{turn},'
        f'"cause":{_quoted(cause)},"data":{data},"digest":"{digest}"}}\n'
    ).encode()


def _name(first: int, last: int, digest: str) -> str:
    return f"{first:012}-{last:012}-{digest[:8]}{SUFFIX}"


def _checksum(lines: bytes) -> str:
    return blake2b(lines, digest_size=16).hexdigest()


def _unreadable(segment: Segment, why: str) -> UnreadableRecord:
    return UnreadableRecord(
        segment.first, f"entries {segment.first} to {segment.last} lie in a segment that cannot be used: {why}"
    )
