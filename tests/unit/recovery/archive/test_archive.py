"""Old entries move to segments; readers of the log see no difference, whatever interrupts the move."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import fakeredis
import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fairlog.cli.follow import follow
from recovery.archive import archive as archiving
from recovery.archive.archive import CannotArchive, archive, listed, open_log
from recovery.archive.files import PlaceUnreachable
from recovery.archive.segment import Segment, check, get
from recovery.failover.follower import Follower
from recovery.replay.rebuild import rebuild
from recovery.replay.snapshot import positions
from scheduler.model.errors import InvalidSetting, UnreadableRecord
from scheduler.model.events import ClusterConfigured
from scheduler.rules.checks.validate import changed_settings
from scheduler.store.codec import read_export, read_lines
from scheduler.store.eventlog import GENESIS, EventLog, Position
from tests.unit.recovery.archive.archived import (
    KEYS,
    RECORDS,
    Crash,
    Fuse,
    FusedFiles,
    FusedStore,
    assert_whole,
    commit,
    files,
    first_staying,
    forget_files,
    in_stream,
    staying,
    up_to,
)
from witness.audit.audit import audit

if TYPE_CHECKING:
    from redis import Redis

URL = "memory://shared/archive"
END = RECORDS[-1].last
DIGESTS = {record.last: record.digest for record in RECORDS}


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(archiving, "SEGMENT_EVENTS", 60)
    forget_files()
    yield
    forget_files()


@pytest.fixture
def log(fake: Redis) -> EventLog:
    return commit(fake)


def move(log: EventLog, retain: int = 50, url: str = URL) -> list[Segment]:
    return list(archive(log, url, retain=retain))


def test_all_but_the_retained_events_move_and_the_log_reads_as_before(log: EventLog) -> None:
    segments = move(log)
    assert in_stream(log) == staying(50)
    assert [segment.first for segment in segments] == [1, *(segment.last + 1 for segment in segments[:-1])]
    assert segments[-1].last + 1 == first_staying(50)
    assert all(60 <= segment.last - segment.first + 1 < 70 for segment in segments[:-1])
    assert listed(log.store, log.keys) == segments
    assert sorted(files(URL)) == [segment.name for segment in segments]
    last = segments[0].last
    assert segments[0].name == f"000000000001-{last:012}-{DIGESTS[last][:8]}.jsonl.zst"
    assert_whole(log)


def test_nothing_moves_twice_and_later_entries_move_later(fake: Redis) -> None:
    log = commit(fake, up_to(200))
    first = move(log)
    assert move(log) == []
    commit(fake)
    second = move(log)
    assert second[0].first == first[-1].last + 1
    assert listed(fake, KEYS) == first + second
    assert_whole(log)


@pytest.mark.parametrize("retain", [0, 1])
def test_the_last_turn_stays_whatever_is_retained(log: EventLog, retain: int) -> None:
    move(log, retain)
    assert in_stream(log) == staying(1)
    assert_whole(log)
    assert log.head() == (END, RECORDS[-1].digest)


def test_a_log_not_longer_than_what_is_retained_is_left_alone(log: EventLog) -> None:
    assert move(log, END) == []
    assert move(log, 1_000_000) == []
    assert positions(log) == []
    assert list(files(URL)) == []


def test_a_usable_snapshot_covers_all_archived_entries(log: EventLog) -> None:
    move(log, 50)
    assert positions(log) == [END]
    log.store.lset(KEYS.snapshot(END), 1, "damaged")
    with capture_logs() as logged:
        move(log, 10)
    assert logged[0]["reason"].startswith(f"the snapshot at log position {END} cannot be used")
    assert positions(log) == [END]
    with capture_logs() as logged:
        rebuild(log)
    assert logged == []


def test_without_a_snapshot_the_state_is_folded_from_the_archive(log: EventLog) -> None:
    whole = rebuild(log, whole=True)[0].digest()
    move(log)
    log.store.delete(KEYS.snapshots)
    assert rebuild(log)[0].digest() == whole


def test_a_snapshot_at_an_archived_position_can_still_be_used(fake: Redis) -> None:
    log = commit(fake, up_to(150))
    head = log.head().seq
    move(log)
    commit(fake)
    move(log, 20)
    assert positions(log) == [END, head]
    fake.delete(KEYS.snapshot(END))
    with capture_logs() as logged:
        assert rebuild(log)[0].digest() == rebuild(log, whole=True)[0].digest()
    assert [entry["reason"] for entry in logged] == [
        f"the snapshot at log position {END} cannot be used: it is missing"
    ]


@given(st.data())
@settings(max_examples=15)
def test_any_range_of_the_log_reads_the_same_wherever_it_was_cut(data: st.DataObject) -> None:
    forget_files()
    log = EventLog(fakeredis.FakeRedis(server=fakeredis.FakeServer()), KEYS)
    lengths = sorted(data.draw(st.lists(st.integers(1, END), max_size=2), label="length of the log"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiving, "SEGMENT_EVENTS", data.draw(st.integers(7, 150), label="events of a segment"))
        patch.setattr(archiving, "SEGMENT_BYTES", data.draw(st.sampled_from([2_000, 1 << 20]), label="bytes of one"))
        patch.setattr(archiving, "PAGE", data.draw(st.integers(5, 90), label="entries of a page"))
        for length in [*lengths, END]:
            log = commit(log.store, up_to(max(length, log.head().seq)))
            move(log, data.draw(st.integers(0, END), label="retained"))
        assert list(log.read()) == RECORDS
        for _ in range(4):
            first, last = sorted(data.draw(st.tuples(st.integers(0, END), st.integers(0, END)), label="range"))
            after = log.before(first)
            before = up_to(first)
            assert after == ((before[-1].last, before[-1].digest) if before else GENESIS)
            assert list(log.read(after, to=last)) == [r for r in RECORDS[len(before) :] if r.first <= last]
            assert [fact.seq for fact in log.facts(after, to=last)] == list(range(after.seq + 1, last + 1))
            followed = [fact.digest for fact in log.follow(after, wait_ms=1) if fact.digest]
            assert followed == [record.digest for record in RECORDS[len(before) :][: len(followed)]]
            assert followed or first == END


def test_following_from_an_archived_position_has_no_gap(log: EventLog) -> None:
    move(log)
    followed = follow(log, GENESIS, wait_s=0.01)
    assert [next(followed) for _ in RECORDS] == RECORDS
    assert next(followed) is None


def test_a_reader_overtaken_by_the_archiver_continues_in_the_archive(log: EventLog) -> None:
    reading = log.read()
    read = [next(reading)]
    log_of_another = open_log(log.store, KEYS)
    follower = Follower(log_of_another)
    move(log_of_another, 5)
    assert [*read, *reading] == RECORDS
    while follower.follow(1):
        pass
    assert follower.position == log.head()


def test_the_segments_are_an_export_that_the_audit_reads(log: EventLog) -> None:
    exported = [line + b"\n" for segment in move(log) for line in get(segment)]
    assert list(read_lines(exported)) == up_to(first_staying(50) - 1)
    assert audit(read_export(exported)) == []


SHORT = RECORDS[:80]


def interrupted(at: int) -> tuple[FusedStore, Fuse]:
    """A store with a short log, and the fuse of the process that archives it."""
    forget_files()
    store = FusedStore(server=fakeredis.FakeServer())
    commit(store, SHORT)
    return store, Fuse(at)


def run_fused(store: FusedStore, fuse: Fuse) -> None:
    log = open_log(store, KEYS)
    store.fuse = FusedFiles.fuse = fuse
    try:
        move(log, 10, "fused://archive")
    finally:
        store.fuse = FusedFiles.fuse = None


def steps() -> int:
    """The number of steps to archive the log."""
    store, fuse = interrupted(0)
    run_fused(store, fuse)
    return fuse.steps


def test_after_a_crash_at_any_step_the_log_is_whole_and_the_next_run_finishes() -> None:
    number = steps()
    assert number > 40
    for at in range(1, number + 1):
        store, fuse = interrupted(at)
        with pytest.raises(Crash):
            run_fused(store, fuse)
        log = open_log(store, KEYS)
        assert list(log.read()) == SHORT, f"after a crash at step {at}"
        move(log, 10, "fused://archive")
        assert list(log.read()) == SHORT, f"archived again after a crash at step {at}"
        assert in_stream(log) == staying(10, SHORT)
        segments = listed(store, KEYS)
        assert [each.first for each in segments] == [1, *(each.last + 1 for each in segments[:-1])]
        assert set(files("fused://archive")) == {each.name for each in segments}, f"left by a crash at step {at}"


def test_an_archiver_stalled_at_any_step_does_not_disturb_another() -> None:
    number = steps()
    for at in range(1, number + 1):
        store, fuse = interrupted(at)

        def overtake(store: FusedStore = store, fuse: Fuse = fuse) -> None:
            store.fuse = FusedFiles.fuse = None
            move(open_log(store, KEYS), 5, "fused://archive")
            store.fuse = FusedFiles.fuse = fuse

        fuse.trip = overtake
        run_fused(store, fuse)
        log = open_log(store, KEYS)
        assert list(log.read()) == SHORT, f"stalled at step {at}"
        assert in_stream(log) == staying(5, SHORT)
        for segment in listed(store, KEYS):
            check(segment)


def test_two_archivers_at_the_same_time_share_the_work(log: EventLog) -> None:
    one, other = archive(log, URL, retain=10), archive(open_log(log.store, KEYS), URL, retain=10)
    moved = [next(one), next(other), next(one), next(other), *one, *other]
    assert moved == listed(log.store, KEYS)
    assert_whole(log)


def damaged(log: EventLog, number: int, change: Any) -> Segment:
    """The segment of that number, with its file changed."""
    segment = move(log)[number]
    system, place = fsspec.core.url_to_fs(segment.url)
    content = system.cat_file(place)
    system.rm_file(place)
    if (changed := change(content)) is not None:
        system.pipe_file(place, changed)
    return segment


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: None, "cannot be read: it does not exist"),
        (lambda content: content[:-9], "is damaged: "),
        (lambda content: content[:60] + bytes([content[60] ^ 4]) + content[61:], "is damaged: "),
        (lambda _: b"", "is damaged: "),
        (lambda _: b"no segment at all", "is damaged: "),
    ],
)
def test_a_missing_or_damaged_segment_is_named_with_its_positions(log: EventLog, change: Any, why: str) -> None:
    segment = damaged(log, 1, change)
    _, first, last, *_ = segment
    sentence = f"log position {first}: entries {first} to {last} are in an unusable segment: {segment.url} {why}"
    read: list[int] = []
    with pytest.raises(UnreadableRecord) as caught:
        read.extend(record.last for record in open_log(log.store, KEYS).read())
    assert str(caught.value).startswith(sentence)
    with pytest.raises(UnreadableRecord):
        list(open_log(log.store, KEYS).read())
    assert list(open_log(log.store, KEYS).read(Position(last, segment.digest))) == [
        record for record in RECORDS if record.first > last
    ]


def test_an_undamaged_segment_of_another_history_is_refused(log: EventLog) -> None:
    segment = damaged(log, 1, lambda _: None)
    fsspec.core.url_to_fs(segment.url)[0].mv(listed(log.store, KEYS)[0].url, segment.url)
    with pytest.raises(UnreadableRecord, match=rf"entries {segment.first} to .* is damaged"):
        list(log.read(Position(segment.first - 1, segment.before)))


def test_entries_that_read_back_differently_are_not_trimmed(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FusedFiles.cp_file

    def torn(self: FusedFiles, there: str, to: str, **options: Any) -> None:
        whole(self, there, to, **options)
        self.pipe_file(to, self.cat_file(to)[:-5])

    monkeypatch.setattr(FusedFiles, "cp_file", torn)
    with pytest.raises(UnreadableRecord, match=r"entries 1 to \d+ .*: fused://archive/prod/.* is damaged"):
        move(log, url="fused://archive")
    assert in_stream(log) == [record.last for record in RECORDS]
    assert listed(log.store, KEYS) == []
    monkeypatch.undo()
    monkeypatch.setattr(archiving, "SEGMENT_EVENTS", 60)
    move(log, url="fused://archive")
    assert_whole(log)


def test_an_upload_that_fails_leaves_no_draft(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FusedFiles, "cp_file", refuse)
    with pytest.raises(PlaceUnreachable, match=r"cannot be written: No space left on device"):
        move(log, url="fused://archive")
    assert list(files("fused://archive")) == []


def test_a_log_that_is_broken_is_not_archived(log: EventLog) -> None:
    move(log, END - 60)
    begins = in_stream(log)[0]
    gone = up_to(100)[-1]
    log.store.xdel(KEYS.log, f"{gone.last}-0")
    log.store.delete(KEYS.snapshots)
    with pytest.raises(UnreadableRecord, match=f"log position {gone.first}: the entry is missing"):
        move(log)
    assert in_stream(log)[0] == begins


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "no archive is configured; give a URL, or run `fairlog settings set archive_url=URL`"),
        ("nowhere://x", "nowhere://x/prod cannot be reached: Protocol not known: nowhere"),
        (
            "s3://me:secret@x",
            "the archive's URL is written to the log; leave out passwords and options, and set them in the environment",
        ),
        ("file:///proc/fairlog", "file:///proc/fairlog/prod cannot be written: No such file or directory"),
        ("file:///dev/null/x", "file:///dev/null/x/prod cannot be written: Not a directory"),
        (
            "memory",
            "the archive's URL must name a folder, such as file:///mnt/archive or s3://bucket/folder, not 'memory'",
        ),
    ],
)
def test_a_place_that_cannot_be_used_is_reported_and_nothing_moves(log: EventLog, url: str, sentence: str) -> None:
    with pytest.raises((CannotArchive, PlaceUnreachable)) as caught:
        move(log, url=url)
    assert str(caught.value).replace("it does not exist", "No such file or directory") == sentence
    assert in_stream(log) == [record.last for record in RECORDS]


@pytest.mark.parametrize("missing", ["zstandard", "fsspec"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    move(log, 200)
    monkeypatch.setitem(sys.modules, missing, None)
    sentence = rf"needs {missing}, which is not installed; run pip install 'fairlog\[archive\]'"
    with pytest.raises(PlaceUnreachable, match=sentence):
        move(log)
    with pytest.raises(UnreadableRecord, match=rf"entries 1 to \d+ .* {sentence}"):
        list(open_log(log.store, KEYS).read())


def test_an_archive_that_was_moved_is_read_at_its_new_url(log: EventLog) -> None:
    move(log)
    system = fsspec.filesystem("memory")
    system.mv("/shared/archive", "/elsewhere", recursive=True)
    with pytest.raises(UnreadableRecord, match="it does not exist"):
        list(open_log(log.store, KEYS).read())
    assert_whole(open_log(log.store, KEYS, elsewhere="memory://elsewhere"))


def test_clusters_may_share_a_folder(log: EventLog) -> None:
    before = {segment.url for segment in move(log)}
    other = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    assert {segment.url for segment in move(commit(other, up_to(130)))} - before
    assert_whole(log)


@pytest.mark.parametrize(
    "value", ["file:///mnt/archive", "s3://bucket/folder", "memory://x", "sftp://ann@host/folder", ""]
)
def test_the_url_of_an_archive_is_a_setting(value: str) -> None:
    assert changed_settings(ClusterConfigured(), {"archive_url": value}).archive_url == value


@pytest.mark.parametrize(
    "value",
    ["/mnt", "file://mnt", "s3://key:secret@bucket/x", "https://host/x?token=secret", "x y://z", "s3://", "s3://a b"],
)
def test_an_invalid_or_secret_url_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidSetting, match=r"the archive's URL (must name|is written)") as caught:
        changed_settings(ClusterConfigured(), {"archive_url": value})
    assert "secret" not in str(caught.value)


def test_the_list_of_segments_holds_all_that_verifies_one(log: EventLog) -> None:
    before, segment, *_ = move(log)
    entry: Any = log.store.lindex(KEYS.archive, 1)
    assert json.loads(entry) == segment._asdict()
    assert (segment.before, segment.digest) == (before.digest, DIGESTS[segment.last])
