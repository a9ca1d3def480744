"""The record of who read what is private, in the archive: its oldest entries, in segments beside those of the log.

A segment's lines are JSON objects with the fields of an entry (`scheduler.store.reads`). As with the log, one script
lists a segment and removes its entries from the store, after its file was read back and compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import msgspec

from recovery.archive.archive import CannotArchive
from recovery.archive.files import make_folder
from recovery.archive.segment import Segment, checksum, get, put
from scheduler.model.errors import UnreadableRecord
from scheduler.store.codec import GENESIS_DIGEST
from scheduler.store.reads import FIELDS, IsSigned, Read, checked, end_of, in_store, last_left, leave

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.keys import Keys

RETAINED, AFTER = 1_000, 10_000
"""How many entries stay in the store, and from how many on others are moved by themselves."""
SEGMENT_READS = 50_000
"""The most entries of a segment."""
PAGE = 500


def are_due(store: Redis, keys: Keys) -> bool:
    """Whether the store holds so many entries that they are to be moved."""
    return store.xlen(keys.reads) >= AFTER


def archive_reads(store: Redis, keys: Keys, url: str) -> Iterator[Segment]:
    """Move all but the last `RETAINED` entries to segments under `url`. Yields each segment once moved.

    Another process may do so at the same time; this one continues after it.

    Raises: CannotArchive, Unreachable or UnreadableRecord with the reason; no entry is lost in any case.
    """
    folder = f"{url.rstrip('/')}/{keys.cluster}~reads"
    while (moves := min(store.xlen(keys.reads) - RETAINED, SEGMENT_READS)) > 0:
        known = last_left(store, keys)
        number, before = end_of(known)
        entries = in_store(store, keys, count=moves)
        if not entries:
            return
        for _ in checked((values for _, values in entries), number, before):
            pass
        lines = b"".join(msgspec.json.encode(dict(zip(FIELDS, values, strict=True))) + b"\n" for _, values in entries)
        span = number + 1, number + len(entries), before, entries[-1][1][-1]
        segment = Segment(folder, *span, len(lines), checksum(lines))
        make_folder(folder)
        put(segment, lines)
        get(segment)
        if not (refused := leave(store, keys, known, entries[-1], segment._asdict())):
            yield segment
        elif last_left(store, keys) == known:
            raise CannotArchive(f"reads {segment.first} to {segment.last} were not archived: {refused}")


def left(store: Redis, keys: Keys) -> list[Segment]:
    """The parts that have left the store, in order; the folder of those that were dropped is ""."""
    return [Segment(**json.loads(text)) for text in cast("list[bytes]", store.lrange(keys.reads_archive, 0, -1))]


def recorded(
    store: Redis, keys: Keys, *, elsewhere: str = "", is_signed: IsSigned | None = None
) -> Iterator[tuple[int, Read]]:
    """All entries that were not dropped, in order with their numbers; `elsewhere` is where the archive has moved to.

    Raises: UnreadableRecord naming the number of the first entry that was altered, is not signed (with `is_signed`), or
    is in a segment that is missing or damaged.
    """
    number, before, start = 0, GENESIS_DIGEST, "-"
    while True:
        entries = in_store(store, keys, start, PAGE)
        # Asked after the page, so that what had left the store before it is listed.
        part = next((each for each in left(store, keys) if each.last > number), None)
        if part is not None and not part.folder:
            if number < part.first and part.before != before:
                raise UnreadableRecord(number + 1, "the entry of the reads is missing")
            number, before, start = part.last, part.digest, "-"
        elif part is not None:
            part = part.under(elsewhere)
            values = _values(part)[number - part.first + 1 :]
            yield from checked(values, number, before, is_signed)
            number, before, start = part.last, values[-1][-1], "-"
        elif entries:
            yield from checked((values for _, values in entries), number, before, is_signed)
            number, before, start = number + len(entries), entries[-1][1][-1], f"({entries[-1][0]}"
        else:
            return


def _values(segment: Segment) -> list[list[str]]:
    """The entries of the segment. Raises: UnreadableRecord."""
    try:
        found = [[fields[name] for name in FIELDS] for fields in map(msgspec.json.decode, get(segment))]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise segment.unusable(f"{segment.url} does not hold reads: {error}") from error
    if len(found) != segment.last - segment.first + 1:
        raise segment.unusable(f"{segment.url} holds {len(found)} reads")
    return found
