"""Publish an imported or restored log as that of a cluster that has none, atomically.

Turns are added to a draft, a stream that expires. Each is verified and folded first, so an unusable log is never
published. At the end one script renames the draft to the log, if there is still no log. A new draft replaces an earlier
one, whether that was interrupted or is still growing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4

from recovery.archive.accept import accepting
from recovery.archive.segment import Segment
from recovery.replay.rebuild import fold
from recovery.replay.snapshot import Snapshot
from scheduler.model.commands import RestoreLog
from scheduler.model.errors import FairlogError
from scheduler.model.sender import By
from scheduler.rules.invariants import check
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.service import seals
from scheduler.service.keyring import Keyring
from scheduler.service.known import End, noted
from scheduler.store.codec import Record, encode_turn, facts, stored
from scheduler.store.connection import clock_ms
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.reads import FIELDS, Values
from scheduler.store.scripts import script

PAGE = 100
_PARTS = ":snapshot", ":reads", ":left"
KEPT_S = 3_600
"""A draft expires this long after its last addition."""

PUBLISH_LUA = script(__file__, "publish")

DISCARD_LUA = script(__file__, "discard")


class NotPublished(FairlogError):
    """The cluster has a log, or another import or restore into it has started. Nothing was changed."""


def left_behind(log: EventLog) -> int | None:
    """The last position of an unfinished draft, None if there is none."""
    draft = cast("bytes | None", log.store.get(log.keys.draft))
    last = cast("list[tuple[bytes, object]]", log.store.xrevrange(draft, count=1)) if draft else []
    return int(last[0][0].partition(b"-")[0]) if last else None


class Draft:
    """A draft of a log, as a context manager that discards it unless it was published.

    `end` and `at` are the position and the time (ms) of its last turn, `key` the masters' key that it names anew.

    Raises: NotPublished if the cluster has a log.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._store, self._keys = log.store, log.keys
        if self._store.exists(self._keys.log):
            raise NotPublished(self._in_the_way())
        self._name = f"{self._keys.draft}:{uuid4().hex}"
        self._snapshot, self._reads, self._left = (f"{self._name}{part}" for part in _PARTS)
        self._state = ClusterState()
        self._begun = False
        """Whether the draft has an entry, so that a missing one means that another draft has replaced it."""
        self.end, self.at, self.key = GENESIS, 0, ""

    def __enter__(self) -> Self:
        earlier = cast("bytes | None", self._store.set(self._keys.draft, self._name, ex=KEPT_S, get=True))
        if earlier:
            self._store.unlink(earlier, *(earlier + part.encode() for part in _PARTS))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        names = self._keys.draft, self._name, self._snapshot, self._reads, self._left
        self._store.eval(DISCARD_LUA, len(names), *names)

    @property
    def withheld(self) -> int:
        """The number of apps that have not ended and cannot run, because the log does not contain their commands."""
        apps = self._state.apps.values()
        return sum(app.ended is None and (app.private is None or not app.private.command) for app in apps)

    def fold(self, records: Iterable[Record]) -> None:
        """Verify and fold turns that stay in an archive.

        Raises: UnreadableRecord or InvariantViolated naming the entry that is unreadable or invalid.
        """
        for record in records:
            self._fold(record)
        self._store.expire(self._keys.draft, KEPT_S)

    def _fold(self, record: Record) -> None:
        for fact in facts([record], *self.end):
            fold(self._state, fact)
        self.end, self.at = Position(record.last, record.digest), record.at

    def add(self, records: Iterable[Record]) -> None:
        """Verify and fold turns, and add them to the draft in pages.

        Raises: as `fold`; NotPublished if another import or restore has started; as reading `records`.
        """
        left = iter(records)
        while page := list(islice(left, PAGE)):
            for record in page:
                self._fold(record)
            self._append(page)

    def _append(self, page: Iterable[Record]) -> None:
        with self._store.pipeline(transaction=True) as together:
            for record in page:
                together.xadd(self._name, stored(record), id=f"{record.last}-0", nomkstream=self._begun)  # type: ignore[arg-type]  # str is one of theirs
                self._begun = True
            together.expire(self._name, KEPT_S)
            together.expire(self._keys.draft, KEPT_S)
            if None in together.execute():
                raise NotPublished(_OVERTAKEN)

    def go_on(self, by: By, ring: Keyring | None) -> None:
        """Add the turn by which `by` goes on with what was added, as a cluster of other workers (semantics I7).

        It names the masters' key of `ring` if that has not the key in force. Raises: BadKeys if it has none;
        NotPublished as `add`; CommandRejected if `by` may not.
        """
        turn = Turn(self._state, clock_ms(self._store.time()))
        self.key, public = seals.key_after_restore(ring, self._state)
        turn.take(RestoreLog(self.key, public), uuid4().hex, by)
        if self._given_up is not None:
            turn.take(accepting(*self.end, self._given_up), uuid4().hex, by)
        turn.settle()
        record = encode_turn(turn.entries, turn.commands, first=turn.first, at=turn.at, previous=self.end.digest)
        self._append([record])
        self.end, self.at = Position(record.last, record.digest), record.at

    def sign_on(self, by: By, ring: Keyring | None) -> None:
        """As `go_on`, if another key must be named than the one in force, or a longer log was known (semantics I7).

        Else the log stays as it was added.
        """
        if any(seals.key_after_restore(ring, self._state)) or self._given_up is not None:
            self.go_on(by, ring)

    @property
    def _given_up(self) -> End | None:
        """The end that was known, as the note in the store says, and that the draft does not hold; None without one."""
        end = noted(self._store, self._keys)
        if end is None:
            return None
        entries: Any = self._store.xrange(self._name, f"{end.seq}-0", f"{end.seq}-0")
        return None if entries and entries[0][1].get(b"digest") == end.digest.encode() else end

    def add_snapshot(self, snapshot: Snapshot, parts: Iterable[bytes]) -> None:
        """Add a snapshot of the log."""
        with self._store.pipeline(transaction=True) as together:
            together.rpush(self._snapshot, json.dumps(snapshot._asdict()), *parts)
            together.expire(self._snapshot, KEPT_S)
            together.execute()

    def add_reads(self, left: Sequence[Segment], entries: Sequence[tuple[str, Values]]) -> None:
        """Add the record of reads, unchecked: the parts that have left the store, and the entries in it."""
        with self._store.pipeline(transaction=True) as together:
            for identity, values in entries:
                together.xadd(self._reads, dict(zip(FIELDS, values, strict=True)), id=identity)
            for part in left:
                together.rpush(self._left, json.dumps(part._asdict()))
            together.expire(self._reads, KEPT_S)
            together.expire(self._left, KEPT_S)
            together.execute()

    def publish(self, *, archive: Sequence[Segment] = (), snapshot: Snapshot | None = None) -> None:
        """Rename the draft to the log. The next elected master reconciles grants and heartbeats with it.

        Raises: InvariantViolated if the folded state is inconsistent; NotPublished if the cluster has a log by now or
        another import or restore has started.
        """
        check(self._state)
        keys, seq = self._keys, snapshot.seq if snapshot else 0
        names = [keys.log, keys.draft, self._name, keys.archive, keys.snapshots, self._snapshot, keys.snapshot(seq)]
        names += [self._reads, keys.reads, self._left, keys.reads_archive]
        segments = [json.dumps(segment._asdict()) for segment in archive]
        id_ = f"{self.end.seq}-0"
        answer = self._store.eval(PUBLISH_LUA, len(names), *names, id_, self.end.digest, str(seq or ""), *segments)
        if answer == b"log":
            raise NotPublished(self._in_the_way())
        if answer != b"done":
            raise NotPublished(_OVERTAKEN)
        self._store.delete(keys.shorter)

    def _in_the_way(self) -> str:
        return (
            f"the cluster {self._keys.cluster} has a log already, up to position {self._log.head().seq}; import or "
            "restore into an empty store, before any master is started: for an `up` into a new folder, by --data, else "
            "also under another --cluster"
        )


_OVERTAKEN = "another import or restore into this cluster has started; this one was discarded"
