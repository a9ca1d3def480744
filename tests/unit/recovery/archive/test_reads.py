"""The record of reads leaves the store for the archive, or is dropped where there is none, and never silently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import fakeredis
import fsspec
import pytest

from recovery.archive import reads as archive
from recovery.archive.archive import open_log
from recovery.archive.archiver import is_due, run
from recovery.archive.backup import backup, restore
from recovery.archive.reads import archive_reads, left, recorded
from recovery.archive.segment import checksum, get, put
from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import ClusterConfigured, LogSealed
from scheduler.model.sender import By
from scheduler.service.keyring import Keyring
from scheduler.service.seals import lost_reads
from scheduler.store import reads as store_reads
from scheduler.store.reads import record_read
from tests.unit.recovery.archive.archived import KEYS, Crash, Fuse, FusedFiles, FusedStore, commit, forget_files

if TYPE_CHECKING:
    from redis import Redis

URL = "fused://archive"
RING = Keyring.new()
ROOT = By("op/root", "t1", "operator")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget_files()
    for name, number in {"RETAINED": 3, "AFTER": 10, "SEGMENT_READS": 4, "PAGE": 2}.items():
        monkeypatch.setattr(archive, name, number)
    yield
    forget_files()


def record(store: Redis, first: int, last: int) -> None:
    for number in range(first, last + 1):
        record_read(store, KEYS, ROOT, "output", f"app-{number}", "it burns", RING.sign_read)


def told(store: Redis, **about: Any) -> list[tuple[int, str]]:
    return [(number, each.subject) for number, each in recorded(store, KEYS, is_signed=RING.is_signed, **about)]


def numbered(first: int, last: int) -> list[tuple[int, str]]:
    return [(number, f"app-{number}") for number in range(first, last + 1)]


def test_old_reads_are_moved_to_segments_and_read_from_both(fake: Redis) -> None:
    record(fake, 1, 12)
    assert [(each.first, each.last) for each in archive_reads(fake, KEYS, URL)] == [(1, 4), (5, 8), (9, 9)]
    assert fake.xlen(KEYS.reads) == 3
    assert told(fake) == numbered(1, 12)
    assert list(archive_reads(fake, KEYS, URL)) == []
    record(fake, 13, 20)
    assert [(each.first, each.last) for each in archive_reads(fake, KEYS, URL)] == [(10, 13), (14, 17)]
    assert told(fake) == numbered(1, 20)


def test_a_master_has_reads_archived_once_there_are_many(fake: Redis) -> None:
    log = commit(fake)
    settings = ClusterConfigured(archive_url=URL, archive_after_events=10**6)
    record(fake, 1, 9)
    assert not is_due(log, settings, log.head().seq)
    record(fake, 10, 10)
    assert is_due(log, settings, log.head().seq)
    assert not is_due(log, ClusterConfigured(), log.head().seq)
    run(log, URL, 10**6)
    assert not is_due(log, settings, log.head().seq)
    assert told(fake) == numbered(1, 10)


def test_an_archive_that_has_moved_is_named(fake: Redis) -> None:
    record(fake, 1, 12)
    list(archive_reads(fake, KEYS, "fused://elsewhere/old"))
    system, _ = fsspec.core.url_to_fs(URL)
    system.mv("/elsewhere/old", "/new", recursive=True)
    with pytest.raises(UnreadableRecord, match="entries 1 to 4 are in an unusable segment"):
        told(fake)
    assert told(fake, elsewhere="fused://new") == numbered(1, 12)


def test_an_archived_read_that_is_edited_or_missing_is_named(fake: Redis) -> None:
    record(fake, 1, 12)
    segment = list(archive_reads(fake, KEYS, URL))[1]
    system, place = fsspec.core.url_to_fs(segment.url)
    good = system.cat_file(place)
    lines = b"".join(get(segment)[each] + b"\n" for each in range(4))
    edited = lines.replace(b"app-6", b"app-x")
    forged = segment._replace(checksum=checksum(edited))
    put(segment, edited)
    with pytest.raises(UnreadableRecord, match="log position 5: entries 5 to 8 are in an unusable segment"):
        told(fake)
    fake.lset(KEYS.reads_archive, 1, json.dumps(forged._asdict()))
    with pytest.raises(UnreadableRecord, match="log position 6: the entry of the reads was altered"):
        told(fake)
    fake.lset(KEYS.reads_archive, 1, json.dumps(segment._asdict()))
    system.pipe_file(place, good)
    assert told(fake) == numbered(1, 12)
    fake.lrem(KEYS.reads_archive, 1, json.dumps(segment._asdict()))
    with pytest.raises(UnreadableRecord, match="log position 5: the entry of the reads was altered, or one before it"):
        told(fake)


def test_what_was_altered_in_the_store_is_not_archived(fake: Redis) -> None:
    record(fake, 1, 12)
    entries: Any = fake.xrange(KEYS.reads)
    fake.delete(KEYS.reads)
    for place, (identity, fields) in enumerate(entries):
        fake.xadd(KEYS.reads, {**fields, b"reason": b"none"} if place == 5 else fields, id=identity)
    with pytest.raises(UnreadableRecord, match="log position 6: "):
        list(archive_reads(fake, KEYS, URL))
    assert [(each.first, each.last) for each in left(fake, KEYS)] == [(1, 4)]
    assert fake.xlen(KEYS.reads) == 8


def test_after_a_crash_at_any_step_no_read_is_lost_and_the_next_run_finishes() -> None:
    at = 0
    while True:
        at += 1
        forget_files()
        server = fakeredis.FakeServer()
        calm = fakeredis.FakeRedis(server=server)
        record(calm, 1, 9)
        store, fuse = FusedStore(server=server), Fuse(at)
        store.fuse = FusedFiles.fuse = fuse
        try:
            list(archive_reads(store, KEYS, URL))
        except Crash:
            FusedFiles.fuse = None
            assert told(calm) == numbered(1, 9), f"after a crash at step {at}"
            list(archive_reads(calm, KEYS, URL))
            assert told(calm) == numbered(1, 9)
            assert calm.xlen(KEYS.reads) == 3
        else:
            break
    assert at > 20


def test_two_archivers_at_the_same_time_share_the_work(fake: Redis) -> None:
    record(fake, 1, 12)
    one, other = archive_reads(fake, KEYS, URL), archive_reads(fake, KEYS, URL)
    moved = [next(one), next(other), *one, *other]
    assert moved == left(fake, KEYS)
    assert told(fake) == numbered(1, 12)


def test_an_archiver_overtaken_by_another_continues_after_it(fake: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    record(fake, 1, 12)
    overtaken = False

    def overtake(*args: Any) -> None:
        nonlocal overtaken
        put(*args)
        if not overtaken:
            overtaken = True
            next(archive_reads(fake, KEYS, URL))

    monkeypatch.setattr(archive, "put", overtake)
    assert [(each.first, each.last) for each in archive_reads(fake, KEYS, URL)] == [(5, 8), (9, 9)]
    assert told(fake) == numbered(1, 12)


def test_a_reader_overtaken_by_the_archiver_continues_in_the_archive(fake: Redis) -> None:
    record(fake, 1, 12)
    reading = recorded(fake, KEYS, is_signed=RING.is_signed)
    found = [next(reading) for _ in range(3)]
    list(archive_reads(fake, KEYS, URL))
    found += reading
    assert [number for number, _ in found] == list(range(1, 13))


def test_where_nobody_archives_the_oldest_are_dropped_and_the_record_says_so(
    fake: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "MOST", 20)
    monkeypatch.setattr(store_reads, "DROPPED", 6)
    record(fake, 1, 20)
    every = {each.digest: number for number, each in recorded(fake, KEYS)}
    seals = [LogSealed(seq=number, digest="d", key="k", signature="s", reads=each) for each, number in every.items()]
    record(fake, 21, 27)
    assert fake.xlen(KEYS.reads) == 15
    assert [(each.folder, each.first, each.last) for each in left(fake, KEYS)] == [("", 1, 6), ("", 7, 12)]
    assert told(fake) == numbered(13, 27)
    numbers = {each.digest: number for number, each in recorded(fake, KEYS)}
    assert lost_reads(seals, numbers, dropped=12) is None
    assert lost_reads(seals, numbers) == 1
    del numbers[seals[15].reads]
    assert lost_reads(seals, numbers, dropped=12) == 16
    list(archive_reads(fake, KEYS, URL))
    assert [(each.folder != "", each.first) for each in left(fake, KEYS)][1:3] == [(False, 7), (True, 13)]
    assert told(fake) == numbered(13, 27)


def test_a_reader_overtaken_by_a_drop_goes_on_behind_it(fake: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    record(fake, 1, 20)
    reading = recorded(fake, KEYS, is_signed=RING.is_signed)
    found = [next(reading) for _ in range(3)]
    monkeypatch.setattr(store_reads, "MOST", 20)
    monkeypatch.setattr(store_reads, "DROPPED", 6)
    record(fake, 21, 21)
    found += reading
    assert [number for number, _ in found] == [1, 2, 3, 4, *range(7, 22)]


def test_a_backup_holds_the_record_of_reads(fake: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    log = commit(fake)
    monkeypatch.setattr(store_reads, "MOST", 20)
    monkeypatch.setattr(store_reads, "DROPPED", 6)
    record(fake, 1, 21)
    list(archive_reads(fake, KEYS, URL))
    record(fake, 22, 23)
    backup(log, "memory://backup")
    other = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    restore(open_log(other, KEYS), "memory://backup")
    assert left(other, KEYS) == left(fake, KEYS)
    assert other.xlen(KEYS.reads) == fake.xlen(KEYS.reads)
    assert told(other) == told(fake) == numbered(7, 23)
    record(other, 24, 24)
    assert told(other) == numbered(7, 24)
    assert {name for name in other.keys("*draft*") if other.ttl(name) == -1} == set()
    assert other.ttl(KEYS.reads) == other.ttl(KEYS.reads_archive) == -1


def test_a_backup_without_reads_leaves_those_of_the_store_it_is_restored_to(fake: Redis) -> None:
    backup(commit(fake), "memory://backup")
    other = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    record(other, 1, 2)
    restore(open_log(other, KEYS), "memory://backup")
    assert told(other) == numbered(1, 2)
