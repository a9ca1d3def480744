"""Snapshots on real servers: written by a standby, used if the log agrees, passed over with the reason if not."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
import structlog
from redis import Redis
from structlog.testing import capture_logs

from fairlog.local.store import EmbeddedStore
from recovery.archive.archiver import Archiver
from recovery.failover.lease import Member
from recovery.failover.master import Master
from recovery.failover.snapshotter import Snapshotter
from recovery.replay import snapshot as snapshots
from recovery.replay.rebuild import rebuild
from recovery.replay.snapshot import Snapshot, positions
from scheduler.model.commands import ChangeCompany, RegisterCompany
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines
from scheduler.service.client import CommandClient
from scheduler.store.codec import encode_turn
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.keys import Keys
from tests.property.histories import played, seeded
from tests.waiting import wait_until


@pytest.fixture
def keys() -> Keys:
    return Keys(f"test-{uuid4().hex[:8]}")


@pytest.fixture
def log(connection: Redis, keys: Keys) -> EventLog:
    """A log of some hundred entries."""
    made = EventLog(connection, keys)
    position = GENESIS
    for event, at, cause, *_ in played(seeded(11, 120)).log:
        record = encode_turn([(event, cause)], first=position.seq + 1, at=at, previous=position.digest)
        made.begin_commit(position, record).finish()
        position = Position(record.last, record.digest)
    return made


def take(log: EventLog, at: int | None = None) -> Snapshot:
    return snapshots.write(log, *rebuild(log, to=at, whole=True))


def reasons(logged: list[Any]) -> list[str]:
    return [entry["reason"] for entry in logged if entry["event"] == "a snapshot is passed over"]


def test_a_snapshot_and_the_tail_give_what_the_whole_log_gives(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PART_BYTES", 1000)
    whole, position = rebuild(log, whole=True)
    for cut in random.Random(3).sample(range(50, position.seq + 1), 8):
        assert take(log, cut).parts > 1
        lengths = {len(part) for part in log.store.lrange(log.keys.snapshot(cut), 1, -1)}
        assert max(lengths) <= 1000
        reads: list[int] = []
        monkeypatch.setattr(log, "read", lambda after, to, reads=reads: _noted(log, after, to, reads))
        state, end = rebuild(log)
        assert (end, state.digest()) == (position, whole.digest())
        assert reads == list(range(cut + 1, position.seq + 1))


def _noted(log: EventLog, after: Position, to: int | None, reads: list[int]) -> Any:
    for record in EventLog.read(log, after, to=to):
        reads.extend(range(record.first, record.last + 1))
        yield record


def test_the_two_newest_snapshots_are_kept(log: EventLog) -> None:
    for at in (40, 20, 30, 30, 10):
        take(log, at)
    assert positions(log) == [10, 30]
    assert sorted(log.store.keys(log.keys.snapshot(0)[:-1] + "*")) == [
        log.keys.snapshot(seq).encode() for seq in (10, 30)
    ]
    assert log.store.ttl(log.keys.snapshot(10)) == -1


def test_a_snapshot_after_the_requested_position_is_not_used(log: EventLog) -> None:
    take(log, 10)
    take(log, 50)
    assert rebuild(log, to=30)[0].digest() == rebuild(log, to=30, whole=True)[0].digest()


def lose(log: EventLog, key: str) -> None:
    log.store.delete(key)


def shorten(log: EventLog, key: str) -> None:
    log.store.rpop(key)


def alter(log: EventLog, key: str) -> None:
    part: Any = log.store.lindex(key, 1)
    log.store.lset(key, 1, part[:-1] + bytes([part[-1] ^ 1]))


def unname(log: EventLog, key: str) -> None:
    log.store.lset(key, 0, "{")


def claim_another_digest(log: EventLog, key: str) -> None:
    head: Any = log.store.lindex(key, 0)
    log.store.lset(key, 0, json.dumps({**json.loads(head), "digest": "0" * 32}))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lose, "it is missing"),
        (shorten, "parts of it are missing"),
        (alter, "its parts were altered"),
        (unname, "its first part does not say what it is"),
        (claim_another_digest, "it was taken where the log had the digest 0000"),
    ],
)
def test_a_bad_snapshot_is_skipped_for_an_older_one_or_the_whole_log(log: EventLog, damage: Any, why: str) -> None:
    whole, position = rebuild(log, whole=True)
    take(log, 20)
    take(log, 30)
    damage(log, log.keys.snapshot(30))
    with capture_logs() as logged:
        state, end = rebuild(log)
    assert (end, state.digest()) == (position, whole.digest())
    (reason,) = reasons(logged)
    assert reason.startswith(f"the snapshot at log position 30 cannot be used: {why}")
    damage(log, log.keys.snapshot(20))
    with capture_logs() as logged:
        state, end = rebuild(log)
    assert (end, state.digest()) == (position, whole.digest())
    assert len(reasons(logged)) == 2


def test_a_verb_reports_a_skipped_snapshot_on_stderr(log: EventLog, capsys: pytest.CaptureFixture[str]) -> None:
    take(log, 20)
    lose(log, log.keys.snapshot(20))
    structlog.reset_defaults()
    rebuild(log)
    printed = capsys.readouterr()
    assert (printed.out, "a snapshot is passed over" in printed.err) == ("", True)


def test_a_snapshot_of_a_lost_tail_is_skipped(log: EventLog) -> None:
    take(log, 20)
    take(log)
    entries: Any = log.store.xrange(log.keys.log)
    log.store.delete(log.keys.log)
    for entry, fields in entries[:-3]:
        log.store.xadd(log.keys.log, fields, id=entry)
    with capture_logs() as logged:
        state, end = rebuild(log)
    assert end == log.head()
    assert state.digest() == rebuild(log, whole=True)[0].digest()
    assert "and the log has no such entry" in reasons(logged)[0]


def test_a_snapshot_of_a_lost_tail_is_dropped_before_a_good_one(log: EventLog) -> None:
    take(log, 20)
    take(log)
    entries: Any = log.store.xrange(log.keys.log)
    log.store.delete(log.keys.log)
    for entry, fields in entries[:-3]:
        log.store.xadd(log.keys.log, fields, id=entry)
    take(log, 30)
    assert positions(log) == [30, 20]


def test_a_snapshot_written_with_other_fields_is_skipped(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(state: ClusterState) -> Iterator[str]:
        return (line.replace('"head"', '"colour"') for line in lines(state))

    monkeypatch.setattr(snapshots, "lines", other)
    taken = take(log, 20)
    with capture_logs() as logged:
        state, end = rebuild(log)
    (reason,) = reasons(logged)
    assert reason.startswith(f"the snapshot at log position {taken.seq} cannot be used: it cannot be read: a record of")
    assert "`colour`" in reason
    assert (end, state.digest()) == (log.head(), rebuild(log, whole=True)[0].digest())


def standby(store: EmbeddedStore, keys: Keys, *, every: int) -> Master:
    log = EventLog(Redis.from_url(store.url), keys)
    return Master(log, Member("standby", 2, "there"), snapshot_every=every)


def test_a_standby_writes_a_snapshot_each_time_enough_events_were_added(
    log: EventLog, store: EmbeddedStore, keys: Keys
) -> None:
    log.store.set(keys.lease, "held by another")
    waiting = standby(store, keys, every=100)
    while log.head().seq - max(positions(log), default=0) >= 100:
        waiting._stand_by()
    written = positions(log)
    assert written == sorted(written, reverse=True)
    assert all(later - earlier >= 100 for later, earlier in pairwise([*written, 0]))
    other = standby(store, keys, every=100)
    for _ in range(3):
        other._stand_by()
    assert positions(log) == written
    assert other.follower.position == log.head()
    assert rebuild(log)[0].digest() == rebuild(log, whole=True)[0].digest()


def test_a_master_without_standby_writes_a_snapshot_between_turns(
    log: EventLog, store: EmbeddedStore, keys: Keys
) -> None:
    alone = standby(store, keys, every=100)
    assert alone.lease.take()
    alone.scheduler.take_over()
    alone.answer()
    begun_at = log.head().seq
    client = CommandClient(log.store, keys.cluster)
    number = 0
    while not positions(log):
        number += 1
        client.notify(RegisterCompany(company=f"company-{number}"))
        alone.answer()
    assert positions(log) == [begun_at]
    assert log.head().seq >= begun_at + number
    assert rebuild(log)[0].digest() == rebuild(log, whole=True)[0].digest() == alone.scheduler.state.digest()
    wait_until(lambda: not _child_of(alone), "the child to be buried")


def test_archiving_is_seen_to_between_turns_and_not_only_once_the_inbox_is_empty(
    store: EmbeddedStore, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[int] = []
    monkeypatch.setattr(Archiver, "tend", lambda _, __, head: heads.append(head))
    log = EventLog(Redis.from_url(store.url), keys)
    busy = Master(log, Member("busy", 2, "there"), archiver=Archiver(log, store.url))
    assert busy.lease.take()
    busy.scheduler.take_over()
    changes = (ChangeCompany(company="acme", cores=number, memory_mb=1024) for number in range(1, 2_500))
    CommandClient(log.store, keys.cluster).notify(RegisterCompany(company="acme"), *changes)
    busy.answer()
    assert log.head().seq == 2_503
    assert [head for head in heads if head < 2_000], "it was seen to after the first turns"


def _child_of(master: Master) -> object:
    master.snapshotter.tend()
    return master.snapshotter._fork


def test_an_unfinished_snapshot_is_never_used(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*_: Any) -> Any:
        log.store.rpush(f"{log.keys.snapshotting}:draft", b"half")
        signal.pause()

    monkeypatch.setattr("recovery.failover.snapshotter.write", stuck)
    snapshotter = Snapshotter(log, 10)
    state, position = rebuild(log)
    snapshotter.begin(state, position)
    wait_until(lambda: log.store.exists(f"{log.keys.snapshotting}:draft"), "the half of it")
    assert not snapshotter.is_due(position.seq + 1000)
    assert snapshotter._fork is not None
    os.kill(snapshotter._fork._pid, signal.SIGKILL)

    def is_due_again() -> bool:
        snapshotter.tend()
        return snapshotter.is_due(position.seq + 1)

    with capture_logs() as logged:
        wait_until(is_due_again, "word of its end")
    assert [entry["exit_code"] for entry in logged] == [-signal.SIGKILL]
    assert (positions(log), reasons(logged)) == ([], [])
    monkeypatch.undo()
    snapshotter.begin(state, position)
    wait_until(lambda: snapshotter._fork and snapshotter._fork.exit_code() == 0, "its end")
    assert positions(log) == [position.seq]
