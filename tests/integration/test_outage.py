"""The store goes away and comes back: everybody waits for it, says so once, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.client import Client
from scheduler.commands import RegisterCompany
from tests.integration.cli_rig import Shell, wait_until

AWAY, BACK = "the store is away", "the store is back"
GATED = "echo begun; while ! test -e gate; do sleep 0.05; done; echo ended"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "home")
    shell.ok("up", "--detach", "--workers", "1", "--cores", "4", "--memory", "4G")
    shell.ok("company", "add", "acme")
    yield shell
    shell.run("down")


def logs_of(shell: Shell) -> dict[str, str]:
    """What each process of `up` has logged, and the executors."""
    data = shell.home / ".local/share/fairlog/up"
    files = [*(data / "logs").glob("*-*.log"), *data.glob("workers/*/executors.log")]
    return {file.stem: file.read_text() for file in files}


def read_of(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    return output


def test_a_killed_store_is_started_again_and_everybody_rides_it_out_saying_so_once(shell: Shell) -> None:
    shell.ok("settings", "set", "worker_timeout_s=2")
    waiting = shell.start(
        "submit", "--company", "acme", "--user", "ann", "--tasks", "1", "--wait", "--", "sh", "-c", GATED
    )
    assert waiting.stdout is not None
    app = waiting.stdout.readline().strip()
    wait_until(lambda: shell.ok("logs", app) == "begun\n", "the task")
    following = [shell.start("logs", app, "--follow"), shell.start("log", "--follow", "--from", "1", "--json")]
    up = int(json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())["pid"])
    before = shell.status()
    client = Client(before["store"]["url"], timeout_s=60)

    os.kill(up, signal.SIGSTOP)
    os.kill(before["store"]["pid"], signal.SIGKILL)
    gone = time.monotonic()
    wait_until(lambda: all(log.count(AWAY) == 1 for log in logs_of(shell).values()), "everybody to notice")
    assert "the store does not answer" in shell.run("apps").err
    wait_until(lambda: time.monotonic() > gone + 3, "the workers to have been silent for longer than they may")
    os.kill(up, signal.SIGCONT)
    client.send(RegisterCompany(company="sent-while-it-was-away"))

    wait_until(lambda: all(log.count(BACK) == 1 for log in logs_of(shell).values()), "everybody to go on")
    assert {name: (log.count(AWAY), log.count(BACK)) for name, log in logs_of(shell).items()} == {
        name: (1, 1) for name in ("master-1", "master-2", "worker-1", "executors")
    }
    (shell.home / "gate").touch()
    said = read_of(waiting)
    assert (waiting.returncode, said.count("waiting for it"), said.count(BACK)) == (0, 1, 1), said
    printed = read_of(following[0])
    assert [line for line in printed.splitlines() if "the store" not in line] == ["begun", "ended"]
    following[1].send_signal(signal.SIGINT)
    types = [json.loads(line)["type"] for line in read_of(following[1]).splitlines() if line.startswith("{")]
    assert "WorkerRemoved" not in types
    assert "AppRemoved" in types
    assert types.count("ExecutorAllocated") == 1
    assert shell.status()["workers"] == before["workers"]
