"""Snapshots: the state at a log position, so that a rebuild need not begin at the first entry.

A snapshot is a list in the store: a header, then the state as compressed lines in parts of at most 1 MiB. It is
published atomically. The last two and some older ones are kept. A snapshot is usable if the log has the header's digest
at its position and the parts have the header's checksum. If the newest is not, a rebuild starts from the one before or
from the first entry.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, cast
from uuid import uuid4

from scheduler.model.errors import FairlogError, UnreadableRecord
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from scheduler.service.program_log import program_log
from scheduler.store.eventlog import EventLog, Position

PART_BYTES = 1 << 20
KEPT = 2
"""So many of the newest are kept to rebuild from, and as many older ones as the constants below allow."""
SEAMS, SEAM_BYTES = 14, 32 << 20
"""Older snapshots, spread over the log, so that an audit can check the spans between them at the same time."""
DRAFT_KEPT_S = 600
"""The draft of a writer that died expires after this time."""
CLAIMED_S = 60


class Snapshot(NamedTuple):
    """The header: log position and digest, number of parts, their size in bytes and their checksum."""

    seq: int
    digest: str
    parts: int
    size: int
    checksum: str


class BadSnapshot(FairlogError):
    """A snapshot cannot be used."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"the snapshot at log position {seq} cannot be used: {why}")


def write(log: EventLog, state: ClusterState, position: Position) -> Snapshot:
    """Write `state`, the fold of the log up to `position`. If interrupted, only a draft remains, which expires.

    Raises: BadSnapshot if the store lost parts of it meanwhile, as one does that fails over.
    """
    store, keys = log.store, log.keys
    draft = f"{keys.snapshotting}:{uuid4().hex}"
    checksum = blake2b(digest_size=16)
    parts = size = 0
    for part in _parts(state):
        checksum.update(part)
        parts, size = parts + 1, size + len(part)
        store.rpush(draft, part)
        store.expire(draft, DRAFT_KEPT_S)
    snapshot = Snapshot(position.seq, position.digest, parts, size, checksum.hexdigest())
    _publish(log, draft, snapshot)
    return snapshot


def _parts(state: ClusterState) -> Iterator[bytes]:
    """The lines of `state`, compressed, in parts of `PART_BYTES`."""
    squeezed, held = zlib.compressobj(1), bytearray()
    for line in lines(state):
        held += squeezed.compress(line.encode() + b"\n")
        while len(held) >= PART_BYTES:
            yield bytes(held[:PART_BYTES])
            del held[:PART_BYTES]
    held += squeezed.flush()
    for begin in range(0, len(held), PART_BYTES):
        yield bytes(held[begin : begin + PART_BYTES])


def _publish(log: EventLog, draft: str, snapshot: Snapshot) -> None:
    keys = log.keys
    others = [seq for seq in positions(log) if seq != snapshot.seq]
    kept = [*islice((seq for seq in others if _agrees(log, seq)), KEPT - 1)]
    before = min([snapshot.seq, *kept])
    kept += _seams(log, [seq for seq in others if seq < before], before)
    with log.store.pipeline(transaction=True) as together:
        together.watch(draft)  # type: ignore[no-untyped-call]
        if together.llen(draft) != snapshot.parts:
            raise BadSnapshot(snapshot.seq, "the store lost parts of it while it was written")
        together.multi()
        together.lpush(draft, json.dumps(snapshot._asdict()))
        together.rename(draft, keys.snapshot(snapshot.seq))
        together.persist(keys.snapshot(snapshot.seq))
        together.delete(keys.snapshotting)
        together.lrem(keys.snapshots, 0, str(snapshot.seq))
        together.lpush(keys.snapshots, snapshot.seq)
        for seq in set(others).difference(kept):
            together.lrem(keys.snapshots, 0, str(seq))
            together.unlink(keys.snapshot(seq))
        together.execute()


def _seams(log: EventLog, seqs: Sequence[int], before: int) -> list[int]:
    """The snapshots at `seqs`, older than `before`, that are kept.

    As long as there are too many, the one goes whose neighbours are closest to each other, so the others stay spread
    over the log.
    """
    asked = log.store.pipeline(transaction=False)
    for seq in seqs:
        asked.lindex(log.keys.snapshot(seq), 0)
    sizes: dict[int, int] = {}
    for seq, head in zip(seqs, asked.execute(), strict=True):
        with suppress(ValueError, KeyError, TypeError):  # one that cannot be read is no use
            sizes[seq] = json.loads(head)["size"]
    found = sorted(sizes)
    while len(found) > SEAMS or sum(sizes[seq] for seq in found) > SEAM_BYTES:
        gaps = zip([0, *found], [*found[1:], before], found, strict=False)
        found.remove(min(gaps, key=lambda gap: gap[1] - gap[0])[2])
    return found


def _agrees(log: EventLog, seq: int) -> bool:
    """Whether the snapshot at `seq` is of this log and not of a lost tail of it."""
    head = cast("bytes | None", log.store.lindex(log.keys.snapshot(seq), 0))
    try:
        return head is not None and log.holds(Position(seq, json.loads(head)["digest"]))
    except (ValueError, KeyError, TypeError):
        return False


def positions(log: EventLog) -> list[int]:
    """The log positions of all snapshots, the newest first."""
    return [int(seq) for seq in cast("list[bytes]", log.store.lrange(log.keys.snapshots, 0, -1))]


def claim(log: EventLog) -> bool:
    """Claim the writing of a snapshot for a minute; False if another process has claimed it."""
    return bool(log.store.set(log.keys.snapshotting, "1", nx=True, ex=CLAIMED_S))


def latest(log: EventLog, *, to: int | None = None) -> tuple[ClusterState, Position] | None:
    """The state and position of the newest usable snapshot up to `to`; None if there is none. Logs unusable ones."""
    for seq in positions(log):
        if to is not None and seq > to:
            continue
        try:
            return load(log, seq)
        except BadSnapshot as problem:
            program_log().warning("a snapshot is passed over", reason=str(problem))
    return None


def load(log: EventLog, seq: int) -> tuple[ClusterState, Position]:
    """The state of the snapshot at log position `seq`.

    Raises: BadSnapshot if it is missing or damaged, another program's, or not of this log.
    """
    position, text = content(log, seq)
    return state_in(text, seq), position


def state_in(text: bytes, seq: int) -> ClusterState:
    """The state at log position `seq` that the lines of a snapshot hold. Raises: BadSnapshot."""
    try:
        state = restored(text.splitlines())
    except (ValueError, KeyError, TypeError) as error:
        raise BadSnapshot(seq, f"it cannot be read: {error}") from error
    if state.head != seq:
        raise BadSnapshot(seq, f"it holds the state at position {state.head}")
    return state


def content(log: EventLog, seq: int) -> tuple[Position, bytes]:
    """The position and the lines of the snapshot at log position `seq`. Raises: as `load`."""
    snapshot, parts = parts_of(log, seq)
    try:
        return Position(seq, snapshot.digest), zlib.decompress(b"".join(parts))
    except zlib.error as error:
        raise BadSnapshot(seq, f"it cannot be read: {error}") from error


def parts_of(log: EventLog, seq: int) -> tuple[Snapshot, list[bytes]]:
    """The header and the parts of the snapshot at log position `seq`.

    Raises: BadSnapshot if it is missing or damaged, or not of this log.
    """
    found: Any = log.store.lrange(log.keys.snapshot(seq), 0, -1)
    if not found:
        raise BadSnapshot(seq, "it is missing")
    head, parts = found[0], found[1:]
    try:
        snapshot = Snapshot(**json.loads(head))
    except (ValueError, TypeError):
        raise BadSnapshot(seq, "its first part does not say what it is") from None
    if (snapshot.seq, snapshot.parts, snapshot.size) != (seq, len(parts), sum(map(len, parts))):
        raise BadSnapshot(seq, "parts of it are missing")
    try:
        due = log.at(seq)
    except UnreadableRecord as error:
        raise BadSnapshot(seq, f"whether the log agrees with it cannot be told: {error}") from error
    if due is None or due.digest != snapshot.digest:
        has = f"has the digest {due.digest} there" if due else "has no such entry"
        raise BadSnapshot(seq, f"it was taken where the log had the digest {snapshot.digest}, and the log {has}")
    if blake2b(b"".join(parts), digest_size=16).hexdigest() != snapshot.checksum:
        raise BadSnapshot(seq, "its parts were altered")
    return snapshot, parts
