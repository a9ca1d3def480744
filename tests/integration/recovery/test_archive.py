"""The log of a real cluster is archived while it runs, and no verb that reads it gives another answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from click.testing import CliRunner

from fairlog.cli.main import cli
from fairlog.local.store import EmbeddedStore
from recovery.archive import archive as archiving
from recovery.archive import reads
from scheduler.model.commands import EndApp
from scheduler.model.sender import By
from scheduler.store.keys import Keys
from scheduler.store.reads import record_read
from tests.integration.cli_rig import ROOT
from tests.property.given import Cluster, recorded
from tests.unit.recovery.archive.archived import RECORDS, assert_whole, first_staying, in_stream, put_records, staying
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    from redis import Redis


def history() -> Cluster:
    """Apps of two companies that run and end, and one that waits."""
    cluster = Cluster()
    cluster.company("acme")
    cluster.company("umbrella")
    cluster.worker("w1", 16)
    for number in range(12):
        cluster.submit(f"a{number}", 16, company=("acme", "umbrella")[number % 2])
    for number in range(11):
        for executor in list(cluster.state.apps[f"a{number}"].executors):
            cluster.ended(executor, done=True)
        cluster.turn(EndApp(app=f"a{number}", reason="finished"))
    return cluster


@pytest.fixture
def keys() -> Keys:
    return Keys("default")


def said(store: EmbeddedStore, *arguments: object, code: int = 0) -> str:
    answer = CliRunner(env={"FAIRLOG_STORE": store.url}).invoke(cli, [*map(str, arguments)])
    assert answer.exit_code == code, answer.output
    return re.sub(r'"waitedMs": [0-9]{13}', '"waitedMs": 0', answer.output)  # until now, since 1970


READERS: list[list[object]] = [
    ["log"],
    ["log", "--json"],
    ["log", "--from", 7, "--to", 9],
    ["log", "--app", "a1", "--json"],
    ["audit"],
    ["audit", "--from", 3, "--json"],
    ["explain", "a3", "--at", 30, "--json"],
    ["explain", "a11", "--at", "1970-01-01T00:00:20"],
    ["replay", "--json"],
    ["fairness", "--json"],
    ["fairness", "--from", 10, "--to", 30, "--json"],
    ["statement", "--company", "acme", "--month", "1970-01", "--json"],
    ["whatif", "--set", "placement=pack", "--json"],
    ["apps", "--all", "--json"],
    ["apps", "--all", "--at", 9, "--json"],
    ["shares", "--at", 20],
    ["workers", "--at", "1970-01-01T00:00:05"],
    ["status", "--at", 12],
    ["settings", "--json"],
    ["reads", "--json"],
]


def test_verbs_print_the_same_before_and_after_archiving(
    store: EmbeddedStore, connection: Redis, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "SEGMENT_EVENTS", 15)
    monkeypatch.setattr(reads, "RETAINED", 2)
    for number in range(5):
        record_read(connection, keys, By("op/root", "t1", "operator"), "output", f"a{number}", "fire")
    records = recorded(history())
    log = put_records(connection, keys, records)
    before = [said(store, *reader) for reader in READERS]
    place = tmp_path / "a folder"
    segments = json.loads(said(store, "archive", place, "--retain", 10, "--json"))
    assert [each["from"] for each in segments] == [1, *(each["to"] + 1 for each in segments[:-1])]
    assert len(segments) > 2
    assert in_stream(log) == staying(10, records)
    assert connection.xlen(keys.reads) == 2
    for key in connection.keys(keys.snapshot(0)[:-1] + "*"):
        connection.delete(key)
    connection.delete(keys.snapshots)
    for reader, answer in zip(READERS, before, strict=True):
        assert said(store, *reader) == answer, reader
    assert said(store, "archive", place, "--retain", 10).startswith("nothing to archive: ")
    moved = first_staying(10, records) - 1
    assert said(store, "archive", "--check").splitlines()[-1].startswith(f"all {moved} archived")


def test_archived_segments_are_json_lines_that_audit_reads(
    store: EmbeddedStore, connection: Redis, keys: Keys, tmp_path: Path
) -> None:
    put_records(connection, keys, recorded(history()))
    said(store, "archive", tmp_path, "--retain", 10)
    (file,) = (tmp_path / "default").iterdir()
    text = zstandard.ZstdDecompressor().decompress(file.read_bytes()).decode()
    spans = [(turn["first"], turn["last"]) for turn in map(json.loads, text.splitlines())]
    assert [first for first, _ in spans] == [1, *(last + 1 for _, last in spans[:-1])]
    assert spans[-1][1] == int(file.name.split("-")[1]) > len(spans) > 1
    answer = CliRunner(env={"HOME": "/nowhere"}).invoke(cli, ["audit", "-"], input=text)
    assert answer.exit_code == 0
    assert answer.output.startswith("This log follows its rules: ")


def test_a_damaged_segment_is_named_with_its_positions_in_one_sentence(
    store: EmbeddedStore, connection: Redis, keys: Keys, tmp_path: Path
) -> None:
    put_records(connection, keys, recorded(history()))
    said(store, "archive", tmp_path, "--retain", 10)
    (file,) = (tmp_path / "default").iterdir()
    last = int(file.name.split("-")[1])
    content = file.read_bytes()
    for damage in (content[:-3], content[:90] + b"?" + content[91:], None):
        file.write_bytes(damage or b"")
        if damage is None:
            file.unlink()
        for verb in (["log"], ["audit"], ["archive", "--check"], ["apps", "--at", "3"], ["fairness"]):
            answer = said(store, *verb, code=1)
            begins = "From 1 on this log cannot be trusted" if verb == ["audit"] else "Error: log position 1"
            assert answer.startswith(f"{begins}: entries 1 to {last} are in an unusable segment")
            assert str(file) in answer
            assert answer.count("\n") == 1


_KILLED = """
import os, sys
from recovery.archive.archive import archive, open_log
from recovery.archive import archive as archiving
from recovery.archive import reads
from scheduler.store.connection import connect
from scheduler.store.keys import Keys
url, folder, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
archiving.SEGMENT_EVENTS = 150
def count(event, args):
    global left
    opened = event == "open" and args[1] and set(args[1]) & set("wx")
    if (opened or event in ("os.rename", "os.remove", "os.mkdir")) and str(args[0]).startswith(folder):
        left -= 1
        if not left:
            os._exit(9)
sys.addaudithook(count)
list(archive(open_log(connect(url), Keys("prod")), "file://" + folder, retain=50))
"""
"""A process that archives a log and dies, as by SIGKILL, right before its n-th change of the archive's folder."""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["embedded"], indirect=True)
def test_archiving_killed_at_any_file_change_loses_nothing_and_can_be_finished(
    store: EmbeddedStore, connection: Redis, tmp_path: Path
) -> None:
    for left in range(1, 100):
        connection.flushall()
        log = put_records(connection, Keys("prod"), RECORDS)
        folder = tmp_path / str(left)
        command = [sys.executable, "-c", _KILLED, store.url, str(folder), str(left)]
        code = subprocess.run(command, cwd=ROOT, check=False, timeout=HOPELESS_S).returncode
        assert list(log.read()) == RECORDS, f"killed before change {left}"
        list(archiving.archive(log, f"file://{folder}", retain=50))
        assert_whole(log)
        assert in_stream(log) == staying(50)
        names = {segment.name for segment in archiving.listed(connection, log.keys)}
        assert {file.name for file in (folder / "prod").iterdir()} == names
        if code == 0:
            break
        assert code == 9
    assert left > 5
