"""The log of a real cluster is archived while it runs, and no verb that reads it gives another answer."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import zstandard
from click.testing import CliRunner

from fairlog.cli import cli
from fairlog.store import EmbeddedStore
from recovery import archive as archiving
from scheduler.commands import EndApp
from scheduler.keys import Keys
from tests.integration.cli_rig import ROOT, Shell, wait_until
from tests.property.given import Cluster, recorded
from tests.unit.archived import RECORDS, assert_whole, in_stream, put_records, staying

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
        cluster.ended(f"a{number}.0", done=True)
        cluster.turn(EndApp(app=f"a{number}", reason="finished"))
    return cluster


@pytest.fixture
def keys() -> Keys:
    return Keys("default")


def said(store: EmbeddedStore, *arguments: object, code: int = 0) -> str:
    answer = CliRunner(env={"FAIRLOG_STORE": store.url}).invoke(cli, [*map(str, arguments)])
    assert answer.exit_code == code, answer.output
    return answer.output


READERS: list[list[object]] = [
    ["log"],
    ["log", "--json"],
    ["log", "--from", 7, "--to", 9],
    ["log", "--app", "a1", "--json"],
    ["audit"],
    ["audit", "--from", 3, "--json"],
    ["explain", "a3", "--json"],
    ["explain", "a11"],
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
]


def test_no_verb_that_reads_the_log_notices_that_it_was_archived(
    store: EmbeddedStore, connection: Redis, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "SEGMENT_EVENTS", 15)
    records = recorded(history())
    log = put_records(connection, keys, records)
    before = [said(store, *reader) for reader in READERS]
    place = tmp_path / "a folder"
    segments = json.loads(said(store, "archive", place, "--retain", 10, "--json"))
    assert [each["from"] for each in segments] == [1, *(each["to"] + 1 for each in segments[:-1])]
    assert len(segments) > 2
    assert in_stream(log) == staying(10, records)
    for key in connection.keys(keys.snapshot(0)[:-1] + "*"):
        connection.delete(key)
    connection.delete(keys.snapshots)
    for reader, answer in zip(READERS, before, strict=True):
        assert said(store, *reader) == answer, reader
    assert said(store, "archive", place, "--retain", 10).startswith("nothing to archive: ")
    assert said(store, "archive", "--check").splitlines()[-1].startswith(f"all {staying(10, records)[0] - 1} archived")


def test_the_files_are_lines_that_any_program_reads_and_the_audit_too(
    store: EmbeddedStore, connection: Redis, keys: Keys, tmp_path: Path
) -> None:
    put_records(connection, keys, recorded(history()))
    said(store, "archive", tmp_path, "--retain", 10)
    (file,) = (tmp_path / "default").iterdir()
    text = zstandard.ZstdDecompressor().decompress(file.read_bytes()).decode()
    assert [json.loads(line)["seq"] for line in text.splitlines()] == list(range(1, text.count("\n") + 1))
    answer = CliRunner(env={"HOME": "/nowhere"}).invoke(cli, ["audit", "-"], input=text)
    assert answer.exit_code == 0
    assert "nothing deviates" in answer.output


def test_a_damaged_segment_is_one_sentence_that_names_it_and_its_positions(
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
            assert answer.startswith(f"Error: log position 1: entries 1 to {last} lie in a segment that cannot")
            assert str(file) in answer
            assert answer.count("\n") == 1


_KILLED = """
import os, sys
from recovery.archive import archive, open_log
from recovery import archive as archiving
from scheduler.eventlog import connect
from scheduler.keys import Keys
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


def test_one_that_is_killed_at_any_change_of_a_file_leaves_the_log_whole_and_the_next_finishes(
    store: EmbeddedStore, connection: Redis, tmp_path: Path
) -> None:
    for left in range(1, 100):
        connection.flushall()
        log = put_records(connection, Keys("prod"), RECORDS)
        folder = tmp_path / str(left)
        command = [sys.executable, "-c", _KILLED, store.url, str(folder), str(left)]
        code = subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode
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


def test_a_cluster_archives_on_its_own_and_is_there_again_after_its_store_lost_its_disk(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    data, file, place = tmp_path / "data", tmp_path / "b.gz", tmp_path / "archive"
    shell.env["FAIRLOG_DATA"] = str(data)
    up = ("up", "--detach", "--workers", "1", "--cores", "8", "--memory", "4G")
    try:
        shell.ok(*up)
        shell.ok("company", "add", "acme")
        first = shell.submit("--wait", "--", "true").split()[0]
        shell.ok("settings", "set", f"archive_url=file://{place}", "archive_after_events=10", "archive_retain_events=5")
        with load(shell):
            wait_until(lambda: len(archived(shell)) > 1, "the cluster to archive its log on its own")
            copy = json.loads(shell.ok("backup", str(file), "--json"))
            wait_until(lambda: shell.head() > copy["seq"] + 10, "the load to go on")
            killed = psutil.Process(int(shell.status()["store"]["pid"])).parent()
            assert killed is not None
            lost = [killed, *killed.children(recursive=True)]
            killed.send_signal(signal.SIGKILL)
            psutil.wait_procs(lost, timeout=30)
        shutil.rmtree(data / "store")
        said = shell.ok("restore", str(file)).splitlines()
        assert said[0] == f"{copy['seq']} log entries of the cluster default restored from {file}"
        assert said[1] == f"the first {copy['archived']} of them are in the archive, not in the file"
        assert copy["archived"] > 0
        assert said[2].startswith("the last one is of 20")
        shell.ok(*up)
        last = json.loads(shell.ok("log", "--json", "--to", str(copy["seq"])).splitlines()[-1])
        assert (last["seq"], last["digest"]) == (copy["seq"], copy["digest"])
        assert shell.app(first)["state"] == "finished"
        second = shell.submit("--wait", "--", "true").split()[0]
        assert shell.app(second)["state"] == "finished"
        assert "nothing deviates" in shell.ok("audit")
    finally:
        shell.run("down")


class load:  # noqa: N801 (used like a function)
    """Apps that are submitted one after the other, as long as the block lasts."""

    def __init__(self, shell: Shell) -> None:
        script = "while fairlog submit --company acme --user ann -- true; do :; done"
        self._command = ["bash", "-c", f'fairlog() {{ "{sys.executable}" -m fairlog "$@"; }}\n{script}']
        self._shell = shell

    def __enter__(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env=self._shell.env,
            cwd=self._shell.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def archived(shell: Shell) -> list[Any]:
    """The segments that were archived so far."""
    found: list[Any] = json.loads(shell.ok("archive", "--list", "--json"))
    return found
