"""Segments: immutable files with a part of the log, one turn per line (`codec.entry_line`), compressed with zstd.

A segment's name contains its first and last position and the beginning of its last digest, so segments of different
histories have different names. The store holds what is needed to verify it (`Segment`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from recovery.archive.files import PlaceUnreachable, needed, opened, written
from scheduler.model.errors import UnreadableRecord
from scheduler.model.text import counted
from scheduler.store import codec
from scheduler.store.codec import Record

SUFFIX = ".jsonl.zst"
_LEVEL = 3


class Segment(NamedTuple):
    """A part of the log in a file of `folder`, from position `first` to `last`.

    `before` and `digest` are the digests of the entry before the segment and of its last entry; `size` (bytes) and
    `checksum` (BLAKE2b-128) those of the uncompressed lines.
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
        return segment_name(self.first, self)

    @property
    def url(self) -> str:
        """Its file's URL."""
        return f"{self.folder}/{self.name}"

    def under(self, elsewhere: str) -> Segment:
        """The segment in an archive that was moved to the URL `elsewhere`; unchanged if that is ""."""
        if not elsewhere:
            return self
        return self._replace(folder=f"{elsewhere.rstrip('/')}/{self.folder.rpartition('/')[2]}")

    def unusable(self, why: str) -> UnreadableRecord:
        """The error that names the positions of the segment."""
        return UnreadableRecord(self.first, f"entries {self.first} to {self.last} are in an unusable segment: {why}")


def segment_name(first: int, end: Segment | Record) -> str:
    """The file name of the segment from position `first` to the end of `end`."""
    return f"{first:012}-{end.last:012}-{end.digest[:8]}{SUFFIX}"


def segment_of(records: Sequence[Record], before: str, folder: str) -> tuple[Segment, bytes]:
    """The segment with these records, which follow the digest `before`, and its lines."""
    lines = b"".join(map(codec.entry_line, records))
    first, last = records[0], records[-1]
    return Segment(folder, first.first, last.last, before, last.digest, len(lines), checksum(lines)), lines


def put(segment: Segment, lines: bytes) -> None:
    """Write the segment's file. Raises: Unreachable if it cannot be written."""
    zstandard = needed("zstandard", "an archive")
    squeezed = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(lines)
    with written(segment.url) as file:
        file.write(squeezed)


def get(segment: Segment) -> list[bytes]:
    """The lines of the segment, one per turn.

    Raises: UnreadableRecord naming the segment and its positions if the file is missing or damaged.
    """
    try:
        zstandard = needed("zstandard", "an archive")
        with opened(segment.url) as file:
            squeezed = file.read()
    except PlaceUnreachable as error:
        raise segment.unusable(str(error)) from error
    try:
        if zstandard.frame_content_size(squeezed) != segment.size:
            size = counted(segment.size, "byte")
            raise segment.unusable(f"{segment.url} is damaged: it does not hold {size} of entries")
        lines: bytes = zstandard.ZstdDecompressor().decompress(squeezed)
    except zstandard.ZstdError as error:
        raise segment.unusable(f"{segment.url} is damaged: {error}") from error
    if checksum(lines) != segment.checksum:
        raise segment.unusable(f"{segment.url} is damaged: its checksum is {checksum(lines)}, not {segment.checksum}")
    return lines[:-1].split(b"\n")


def entries(segment: Segment, lines: Iterable[bytes]) -> list[Record]:
    """Decode the lines of the segment. Raises: UnreadableRecord naming the segment and its positions."""
    found: list[Record] = []
    seq = segment.first - 1
    for line in lines:
        try:
            record = codec.read_entry(line, seq + 1)
        except UnreadableRecord as error:
            raise segment.unusable(f"{segment.url} is damaged at position {seq + 1}: {error.why}") from error
        found.append(record)
        seq = record.last
    return found


def check(segment: Segment, lines: bytes | None = None) -> list[Record]:
    """Read the segment's file back, compare it with `lines`, if given, verify its chain, and return its turns.

    Raises: UnreadableRecord naming the segment and its positions.
    """
    found = get(segment)
    if lines is not None and found != lines[:-1].split(b"\n"):
        raise segment.unusable(f"{segment.url} differs from what was written")
    seq, digest = segment.first - 1, segment.before
    records = entries(segment, found)
    for record in records:
        try:
            codec.check(record, seq, digest)
        except UnreadableRecord as error:
            raise segment.unusable(f"{segment.url} breaks the chain of digests: {error.why}") from error
        seq, digest = record.last, record.digest
    if (seq, digest) != (segment.last, segment.digest):
        raise segment.unusable(f"{segment.url} does not end at position {segment.last} with digest {segment.digest}")
    return records


def checksum(lines: bytes) -> str:
    """BLAKE2b-128 of the lines, in hex."""
    return blake2b(lines, digest_size=16).hexdigest()
