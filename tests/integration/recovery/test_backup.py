"""A cluster whose store has lost its disk is there again, from a copy of its log that was made while it ran."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import psutil
import pytest
from click.testing import CliRunner
from redis import Redis

from fairlog.cli.main import cli
from fairlog.local.store import EmbeddedStore
from recovery.archive.archive import archive, open_log
from recovery.archive.backup import FORMAT, BadBackup, Header, backup, restore
from recovery.archive.files import PlaceUnreachable
from recovery.archive.publish import NotPublished
from recovery.archive.segment import put, segment_of
from recovery.replay.rebuild import rebuild
from recovery.replay.snapshot import positions
from scheduler.model.commands import Command, RegisterCompany, RegisterWorker, SubmitApp
from scheduler.model.errors import InvariantViolated, UnreadableRecord
from scheduler.model.events import MasterElected, WorkerRemoved
from scheduler.model.sender import local
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.service import seals
from scheduler.service.client import CommandClient
from scheduler.service.keyring import BadKeys, Keyring
from scheduler.service.scheduler import Scheduler
from scheduler.store.codec import Record, encode_turn, entry_line
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.keys import Keys
from tests.integration.cli_rig import Shell, tree_of
from tests.unit.recovery.archive.archived import (
    RECORDS,
    assert_whole,
    first_staying,
    forget_files,
    in_stream,
    put_records,
    staying,
)
from tests.waiting import HOPELESS_S, wait_until
from witness.audit.audit import Audit


def _log(store: EmbeddedStore, cluster: str) -> EventLog:
    return EventLog(Redis.from_url(store.url), Keys(cluster))


@pytest.fixture
def written(store: EmbeddedStore) -> EventLog:
    """A log with a company, a worker and an app, a turn each, the app's name in letters that need more than a byte."""
    log, state, end = _log(store, "first"), ClusterState(), GENESIS
    commands: list[Command] = [
        RegisterCompany(company="acme"),
        RegisterWorker(worker="w", node="n", host="h", cores=16, memory_mb=16384),
        SubmitApp(app="a", company="acme", user="ann", name="größer", command=("true",)),
    ]
    for number, command in enumerate(commands):
        at = 1_000 + number
        turn = Turn(state, at)
        turn.take(command, f"c{number}")
        turn.settle()
        record = encode_turn(turn.entries, turn.commands, first=end.seq + 1, at=at, previous=end.digest)
        log.begin_commit(end, record).finish()
        end = Position(record.last, record.digest)
    return log


def test_a_restored_log_is_the_same_log_and_folds_to_the_same_state(
    written: EventLog, store: EmbeddedStore, tmp_path: Path
) -> None:
    file = f"file://{tmp_path}/b.gz"
    header = backup(written, file).header
    assert (header.seq, header.digest) == written.head()
    copy = _log(store, "second")
    restore(copy, file)
    assert list(copy.read()) == list(written.read())
    assert rebuild(copy)[0].digest() == rebuild(written)[0].digest()
    assert [path.name for path in tmp_path.iterdir()] == ["b.gz"]


@pytest.fixture
def signed(store: EmbeddedStore) -> tuple[EventLog, Keyring]:
    """A log with a worker, signed by a master's key."""
    log, ring = _log(store, "first"), Keyring.new()
    master = Scheduler(log, "m1", lambda: rebuild(log), keyring=ring)
    master.take_over()
    client = CommandClient(log.store, "first", keyring=ring)
    client.notify(RegisterWorker(worker="w", node="n", host="h", cores=16, memory_mb=16384), by=local(1000))
    master.turn()
    assert "w" in master.state.workers
    return log, ring


@pytest.mark.parametrize("keys", ["other", "same", "rotated"])
def test_a_signed_log_that_was_restored_goes_on_provably_and_without_its_workers(
    signed: tuple[EventLog, Keyring], store: EmbeddedStore, tmp_path: Path, keys: str
) -> None:
    written, ring = signed
    ring = {"other": Keyring.new(), "same": ring, "rotated": ring.rotated()}[keys]
    backup(written, str(tmp_path / "b.gz"))
    copy = _log(store, "second")
    copied = restore(copy, str(tmp_path / "b.gz"), by=local(1000), ring=ring)
    assert copied.key == (ring.master if keys == "other" else "")
    master = Scheduler(copy, "m2", lambda: rebuild(copy), keyring=ring)
    master.take_over()
    assert seals.current_key(master.state) == ring.master
    assert not master.state.workers
    audited = Audit()
    assert list(audited.deviations(copy.facts())) == []
    assert [(each.account, each.key) for each in audited.restored] == [("local/1000", copied.key)]


@pytest.mark.parametrize("keys", ["none", "of API servers"])
def test_a_signed_log_is_not_restored_without_a_key_that_can_sign(
    signed: tuple[EventLog, Keyring], store: EmbeddedStore, tmp_path: Path, keys: str
) -> None:
    written, ring = signed
    backup(written, str(tmp_path / "b.gz"))
    before = written.store.dbsize()
    with pytest.raises(BadKeys, match=f"the log is signed by the key {ring.master}; name the file"):
        restore(
            _log(store, "second"),
            str(tmp_path / "b.gz"),
            by=local(1000),
            ring=None if keys == "none" else ring.without_masters(),
        )
    assert written.store.dbsize() == before


def _without_last_line(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


def _without_second_entry(lines: list[bytes]) -> list[bytes]:
    return lines[:2] + lines[3:]


def _altered(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b"acme", b"evil") for line in lines]


def _other_header(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b"backup 3", b"backup 9"), *lines[1:]]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_without_last_line, "is incomplete: it ends at log position"),
        (_without_second_entry, "cannot be read after log position"),
        (_altered, "cannot be read after log position"),
        (_other_header, "is not a backup that this version reads"),
    ],
)
def test_a_damaged_backup_is_refused_and_leaves_nothing_behind(
    written: EventLog,
    store: EmbeddedStore,
    tmp_path: Path,
    damage: Callable[[list[bytes]], list[bytes]],
    sentence: str,
) -> None:
    file = tmp_path / "b.gz"
    backup(written, str(file))
    file.write_bytes(gzip.compress(b"".join(damage(gzip.decompress(file.read_bytes()).splitlines(keepends=True)))))
    before = written.store.dbsize()
    with pytest.raises(BadBackup, match=sentence):
        restore(_log(store, "second"), str(file))
    assert written.store.dbsize() == before


@pytest.mark.parametrize("content", [b"", b"hello\n", gzip.compress(b"x" * 999, mtime=0)[:-9]])
def test_a_file_that_is_no_backup_is_refused(store: EmbeddedStore, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.gz").write_bytes(content)
    with pytest.raises(BadBackup, match="is not a backup that this version reads"):
        restore(_log(store, "second"), str(tmp_path / "b.gz"))


def test_a_backup_that_was_cut_off_is_refused(written: EventLog, store: EmbeddedStore, tmp_path: Path) -> None:
    file = tmp_path / "b.gz"
    backup(written, str(file))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadBackup):
        restore(_log(store, "second"), str(file))


def test_a_backup_whose_log_breaks_a_precondition_is_never_published(
    written: EventLog, store: EmbeddedStore, tmp_path: Path
) -> None:
    file = tmp_path / "b.gz"
    end = written.head()
    gone = encode_turn(
        [(WorkerRemoved(worker="x", reason="removed"), "")], first=end.seq + 1, at=2_000, previous=end.digest
    )
    written.begin_commit(end, gone).finish()
    backup(written, str(file))
    before = written.store.dbsize()
    with pytest.raises(
        InvariantViolated, match=f"log position {gone.last}: WorkerRemoved: worker 'x' is not registered"
    ):
        restore(_log(store, "second"), str(file))
    assert written.store.dbsize() == before


def test_an_archived_entry_that_breaks_a_precondition_is_never_published(
    written: EventLog, store: EmbeddedStore
) -> None:
    end = written.head()
    gone = encode_turn(
        [(WorkerRemoved(worker="x", reason="removed"), "")], first=end.seq + 1, at=2_000, previous=end.digest
    )
    segment, lines = segment_of([*written.read(), gone], GENESIS.digest, "memory://archive/first")
    put(segment, lines)
    last = encode_turn([(MasterElected(master="m"), "")], first=gone.last + 1, at=2_000, previous=gone.digest)
    header = Header("first", last.last, last.digest, [segment])._asdict() | {"archive": [segment._asdict()]}
    content = json.dumps({"format": FORMAT, **header}).encode() + b"\n" + entry_line(last)
    fsspec.filesystem("memory").pipe("/b.gz", gzip.compress(content))
    copy = _log(store, "second")
    with pytest.raises(
        InvariantViolated, match=f"log position {gone.last}: WorkerRemoved: worker 'x' is not registered"
    ):
        restore(copy, "memory://b.gz")
    assert not list(copy.store.scan_iter(f"{copy.keys.prefix}*"))
    forget_files()


def test_a_restore_says_how_many_apps_cannot_run_because_commands_are_withheld(
    written: EventLog, store: EmbeddedStore, tmp_path: Path
) -> None:
    file = tmp_path / "b.gz"
    backup(written, str(file))
    assert restore(_log(store, "second"), str(file)).withheld == 0
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    public = [record._replace(private=b"") for record in written.read()]
    file.write_bytes(gzip.compress(b"".join([lines[0], *map(entry_line, public)])))
    answer = CliRunner().invoke(cli, ["--store", store.url, "--cluster", "third", "restore", str(file)])
    assert answer.exit_code == 0, answer.output
    assert "The commands of 1 unfinished app are not in this public log." in answer.stderr
    assert restore(_log(store, "fourth"), str(file)).withheld == 1


def test_a_cluster_that_has_a_log_is_not_overwritten_and_an_empty_one_not_backed_up(
    written: EventLog, store: EmbeddedStore, tmp_path: Path
) -> None:
    backup(written, str(tmp_path / "b.gz"))
    with pytest.raises(NotPublished, match="the cluster first has a log already"):
        restore(written, str(tmp_path / "b.gz"))
    with pytest.raises(BadBackup, match="the log of the cluster second is empty"):
        backup(_log(store, "second"), str(tmp_path / "c.gz"))
    assert not (tmp_path / "c.gz").exists()


def test_a_backup_that_fails_leaves_the_one_before(written: EventLog, tmp_path: Path) -> None:
    file = tmp_path / "b.gz"
    backup(written, str(file))
    before = file.read_bytes()
    written.store.xdel(written.keys.log, "2-0")
    with pytest.raises(Exception, match="log position 2"):
        backup(written, str(file))
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@contextmanager
def _load(shell: Shell) -> Iterator[None]:
    """Apps that are submitted one after the other meanwhile."""
    script = "while fairlog submit --company acme --user bob --cores 4 -- true; do :; done"
    process = subprocess.Popen(
        ["bash", "-c", f'fairlog() {{ "{sys.executable}" -m fairlog "$@"; }}\n{script}'],
        env=shell.env,
        cwd=shell.home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("kept", [False, True])
def test_a_damaged_file_leaves_nothing_in_a_data_folder_that_it_did_not_hold(tmp_path: Path, *, kept: bool) -> None:
    shell, data = Shell(tmp_path / "home"), tmp_path / "a" / "data"
    damaged = tmp_path / "b.gz"
    damaged.write_bytes(b"this is no backup")
    before = []
    if kept:
        data.mkdir(parents=True)
        shell.ok("keys", "new", str(data / "own.json"))
        (data / "own.json").replace(data / "keys.json")
        before = ["keys.json"]
    for verb in (("restore", str(damaged)), ("import", str(damaged)), ("recover", "--accept", "0")):
        assert shell.run("--data", str(data), *verb).code == 1
        assert sorted(path.name for path in data.iterdir() if data.exists()) == before if kept else not data.exists()
    assert kept or not data.parent.exists()


@pytest.mark.slow
def test_a_cluster_continues_from_a_backup_taken_while_it_ran(tmp_path: Path) -> None:
    """It had archived most of its log by itself."""
    shell = Shell(tmp_path / "home")
    data, file, hold = tmp_path / "data", tmp_path / "b.gz", shell.home / "hold"
    shell.env |= {"FAIRLOG_DATA": str(data), "FAIRLOG_ARCHIVE_ALLOW": f"file://{tmp_path}/archive"}
    hold.touch()
    archive_settings = (f"archive_url=file://{tmp_path}/archive", "archive_after_events=8", "archive_retain_events=5")
    try:
        shell.ok("up", "--detach", "--workers", "1", "--cores", "8", "--memory", "4G")
        shell.ok("company", "add", "acme")
        done = shell.submit("--wait", "--", "true").split()[0]
        held = shell.submit("--cores", "4", "--", "sh", "-c", f"while [ -e {hold} ]; do sleep 0.05; done").split()[0]
        wait_until(lambda: shell.app(held)["state"] == "running", "the app to run")
        with _load(shell):
            shell.ok("settings", "set", *archive_settings)
            wait_until(lambda: json.loads(shell.ok("archive", "--list", "--json")) != [], "old entries to be archived")
            said = json.loads(shell.ok("backup", str(file), "--json"))
            refused = shell.run("restore", str(file)).err
            assert "has a log already" in refused
            assert "for an `up` into a new folder, by --data" in refused
            wait_until(lambda: shell.head() > said["seq"], "the log to grow beyond the backup")
            up = psutil.Process(int(json.loads((data / "up.json").read_text())["pid"]))
            tree = tree_of(up.pid)
            up.kill()
            psutil.wait_procs(tree, timeout=HOPELESS_S)
        shutil.rmtree(data / "store")
        first, second, third = shell.ok("restore", str(file)).splitlines()
        assert first == f"{said['seq']} log entries of the cluster default restored from {file} into {data}"
        assert second == f"the first {said['archived']} of them are in the archive, not in the file"
        assert re.fullmatch(r"the last entry was written at 20.*Z; later commands are not included", third)
        shell.ok("up", "--detach", "--workers", "1", "--cores", "8", "--memory", "4G")
        assert shell.app(done)["state"] == "finished"
        last = json.loads(shell.ok("log", "--json", "--to", str(said["seq"])).splitlines()[-1])
        assert (last["seq"], last["digest"]) == (said["seq"], said["digest"])
        hold.unlink()
        wait_until(lambda: shell.app(held)["state"] == "finished", "the app to finish")
        assert shell.ok("audit").startswith("This log follows its rules: ")
    finally:
        shell.run("down")


@pytest.fixture
def archived(connection: Redis) -> EventLog:
    """A log most of which was archived, to a place in memory, with a snapshot."""
    forget_files()
    log = put_records(connection, Keys("first"), RECORDS)
    segments = list(archive(log, "memory://archive", retain=40))
    assert segments
    return log


def test_a_backup_lists_what_was_archived_and_holds_the_rest_and_the_snapshot(
    archived: EventLog, store: EmbeddedStore
) -> None:
    copied = backup(archived, "memory://backups/b.gz")
    begins = first_staying(40)
    assert copied.as_json() == {
        "cluster": "first",
        "seq": RECORDS[-1].last,
        "digest": RECORDS[-1].digest,
        "at": RECORDS[-1].at,
        "archived": begins - 1,
        "snapshot": RECORDS[-1].last,
    }
    copy = open_log(_log(store, "second").store, Keys("second"))
    assert restore(copy, "memory://backups/b.gz") == copied
    assert_whole(copy)
    assert in_stream(copy) == in_stream(archived) == staying(40)
    assert positions(copy) == [RECORDS[-1].last]
    assert copy.store.ttl(copy.keys.log) == copy.store.ttl(copy.keys.snapshot(RECORDS[-1].last)) == -1
    assert list(copy.store.scan_iter("*draft*")) == []


def test_a_whole_backup_needs_no_archive(archived: EventLog, store: EmbeddedStore, tmp_path: Path) -> None:
    copied = backup(archived, str(tmp_path / "b.gz"), whole=True)
    forget_files()
    copy = open_log(_log(store, "second").store, Keys("second"))
    assert restore(copy, str(tmp_path / "b.gz")) == copied
    assert in_stream(copy) == [record.last for record in RECORDS]
    assert_whole(copy)


def test_without_the_archive_that_it_goes_with_nothing_is_backed_up_or_restored(
    archived: EventLog, store: EmbeddedStore, tmp_path: Path
) -> None:
    file = str(tmp_path / "b.gz")
    backup(archived, file)
    fsspec.filesystem("memory").mv("/archive", "/elsewhere", recursive=True)
    copy = open_log(_log(store, "second").store, Keys("second"))
    last = first_staying(40) - 1
    missing = f"the archived entries 1 to {last} are missing: there is no memory://archive/first/"
    with pytest.raises(BadBackup, match=missing):
        restore(copy, file)
    with pytest.raises(BadBackup, match=missing):
        backup(archived, str(tmp_path / "c.gz"))
    assert [path.name for path in tmp_path.iterdir()] == ["b.gz"]
    assert not copy.store.exists(copy.keys.log, copy.keys.archive)
    restore(copy, file, elsewhere="memory://elsewhere")
    assert_whole(copy)


def test_a_damaged_archive_is_found_out_before_anything_is_restored(archived: EventLog, store: EmbeddedStore) -> None:
    backup(archived, "memory://b.gz")
    memory = fsspec.filesystem("memory")
    (segment,) = memory.ls("/archive/first", detail=False)
    whole = memory.cat(segment)
    memory.pipe(segment, whole[:-20])
    copy = open_log(_log(store, "second").store, Keys("second"))
    with pytest.raises(UnreadableRecord, match=r"in an unusable segment: memory://archive/first/.* is damaged"):
        restore(copy, "memory://b.gz")
    assert not copy.store.exists(copy.keys.log, copy.keys.archive)
    memory.pipe(segment, whole)
    restore(copy, "memory://b.gz")
    assert_whole(copy)


def test_a_list_of_archived_segments_with_a_gap_is_refused(
    archived: EventLog, store: EmbeddedStore, tmp_path: Path
) -> None:
    file = tmp_path / "b.gz"
    backup(archived, str(file))
    header, *entries = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    said = json.loads(header)
    said["archive"][0]["first"] += 1
    file.write_bytes(gzip.compress(json.dumps(said).encode() + b"\n" + b"".join(entries)))
    with pytest.raises(BadBackup, match=r"has a gap: .* does not follow entry 0"):
        restore(_log(store, "second"), str(file))


def test_a_backup_goes_on_while_the_log_is_archived(archived: EventLog, store: EmbeddedStore) -> None:
    def meanwhile(records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if record.last == staying(40)[0]:
                list(archive(archived, "memory://archive", retain=1))
            yield record

    backup(archived, "memory://b.gz", watched=meanwhile)
    copy = open_log(_log(store, "second").store, Keys("second"))
    restore(copy, "memory://b.gz")
    assert_whole(copy)


def test_a_snapshot_that_cannot_be_used_is_not_backed_up(archived: EventLog) -> None:
    archived.store.lset(archived.keys.snapshot(RECORDS[-1].last), 1, "damaged")
    assert backup(archived, "memory://b.gz").header.snapshot is None


@pytest.mark.parametrize("name", ["fairlog backup 1", "fairlog backup 2"])
def test_a_backup_of_a_log_of_schema_1_is_refused(store: EmbeddedStore, tmp_path: Path, name: str) -> None:
    header = {"format": name, "cluster": "old", "seq": 1, "digest": "14"}
    (tmp_path / "b.gz").write_bytes(gzip.compress(json.dumps(header).encode() + b"\n"))
    with pytest.raises(BadBackup, match="is not a backup that this version reads"):
        restore(_log(store, "second"), str(tmp_path / "b.gz"))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("/nowhere/b.gz", "/nowhere/b.gz cannot be {}: "),
        ("", "an empty file name cannot be {}: "),
        ("nowhere://x/b.gz", "nowhere://x/b.gz cannot be reached: Protocol not known: nowhere"),
        ("file://b.gz", "file://b.gz does not name a file on this machine; write file:///FOLDER/FILE"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_sentence(
    written: EventLog, store: EmbeddedStore, url: str, sentence: str
) -> None:
    with pytest.raises(PlaceUnreachable) as caught:
        backup(written, url)
    assert str(caught.value).startswith(sentence.format("written"))
    with pytest.raises(PlaceUnreachable) as caught:
        restore(_log(store, "second"), url)
    assert str(caught.value).startswith(sentence.format("read"))
