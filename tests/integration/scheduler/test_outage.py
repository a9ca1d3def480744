"""The store goes away and comes back: everybody waits for it, says so once, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from scheduler.model.commands import RegisterCompany
from scheduler.service.client import CommandClient
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.integration.cli_rig import Service, Shell
from tests.integration.servers import Servers
from tests.waiting import HOPELESS_S, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left_open")
AWAY, BACK = "is unavailable", "is available again"
"""Said of the store, or of the API by those who work through it."""
TIMEOUT_S = 4
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
    output, _ = process.communicate(timeout=HOPELESS_S)
    return output


@pytest.mark.slow
def test_a_killed_store_is_started_again_and_everybody_rides_it_out_saying_so_once(shell: Shell) -> None:
    shell.ok("settings", "set", f"worker_timeout_s={TIMEOUT_S}")
    waiting = shell.start(
        "submit", "--company", "acme", "--user", "ann", "--tasks", "1", "--wait", "--", "sh", "-c", GATED
    )
    assert waiting.stdout is not None
    app = waiting.stdout.readline().strip()
    wait_until(lambda: shell.ok("logs", app) == "begun\n", "the task")
    following = [shell.start("logs", app, "--follow"), shell.start("log", "--follow", "--from", "1", "--json")]
    begun = [one.stdout.readline() for one in following if one.stdout is not None]
    assert (begun[0], json.loads(begun[1])["type"]) == ("begun\n", "MasterElected")
    up = int(json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())["pid"])
    before = shell.status()
    os.kill(up, signal.SIGSTOP)
    os.kill(before["store"]["pid"], signal.SIGKILL)
    gone = time.monotonic()
    wait_until(lambda: all(log.count(AWAY) == 1 for log in logs_of(shell).values()), "everybody to notice")
    assert "the store does not answer" in shell.run("apps").err
    wait_until(lambda: time.monotonic() > gone + TIMEOUT_S + 1, "the worker to be silent for too long")
    os.kill(up, signal.SIGCONT)
    with connect(before["store"]["url"]) as store:
        client = CommandClient(store, keyring=shell.keyring(), timeout_s=HOPELESS_S)
        client.send(RegisterCompany(company="sent-while-it-was-away"))

    wait_until(lambda: all(log.count(BACK) == 1 for log in logs_of(shell).values()), "everybody to go on")
    assert sorted(logs_of(shell)) == ["executors", "master-1", "master-2", "worker-1"]
    assert {(log.count(AWAY), log.count(BACK)) for log in logs_of(shell).values()} == {(1, 1)}
    (shell.home / "gate").touch()
    said = read_of(waiting)
    assert (waiting.returncode, said.count("the store does not answer"), said.count("finished after")) == (0, 1, 1), (
        said
    )
    printed = read_of(following[0])
    assert [line for line in printed.splitlines() if "the store" not in line] == ["ended"]
    following[1].send_signal(signal.SIGINT)
    followed = [json.loads(line)["type"] for line in read_of(following[1]).splitlines() if line.startswith("{")]
    assert "AppRemoved" in followed
    types = [json.loads(line)["type"] for line in shell.ok("log", "--json").splitlines()]
    assert "WorkerRemoved" not in types
    assert types.count("ExecutorAllocated") == 1
    assert shell.status()["workers"] == before["workers"]


Trouble = Callable[[Servers, int, Redis], object]


def _setting(name: str, value: object) -> Trouble:
    return lambda _servers, _port, store: store.config_set(name, str(value))


def _demoted(_servers: Servers, _port: int, store: Redis) -> None:
    store.replicaof("127.0.0.1", "1")


def _cut_off(_servers: Servers, _port: int, store: Redis) -> None:
    store.config_set("replica-serve-stale-data", "no")
    store.replicaof("127.0.0.1", "1")


def _promoted(_servers: Servers, _port: int, store: Redis) -> None:
    store.replicaof("NO", "ONE")


def _loading(servers: Servers, port: int, _store: Redis) -> None:
    servers.kill(port)
    servers.launch(port, "--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")


def _nothing(_servers: Servers, _port: int, _store: Redis) -> None:
    """It passes by itself."""


TROUBLES: list[tuple[str, Trouble, Trouble]] = [
    ("is out of memory", _setting("maxmemory", 1), _setting("maxmemory", 0)),
    ("has fewer replicas than", _setting("min-replicas-to-write", 1), _setting("min-replicas-to-write", 0)),
    ("a replica", _demoted, _promoted),
    ("replica", _cut_off, _promoted),
    ("", _loading, _nothing),
]


@pytest.mark.slow
def test_a_store_that_will_not_do_as_it_is_told_is_waited_for(servers: Servers, tmp_path: Path) -> None:
    """Whatever it says meanwhile: no command is lost, no worker, and nobody gives up."""
    port = servers.start()
    url = f"redis://127.0.0.1:{port}"
    shell = Shell(tmp_path / "home")
    shell.env |= {"FAIRLOG_STORE": url}
    with (
        Service(shell, "master") as master,
        Service(shell, "worker", "--cores", "4", "--memory", "4G") as worker,
        ThreadPoolExecutor() as pool,
        Redis(port=port) as store,
    ):
        worker.hear("READY=1")
        client = CommandClient(servers.connect(url), timeout_s=HOPELESS_S)
        for count, (words, begin, end) in enumerate(TROUBLES, start=1):
            begin(servers, port, store)
            receipt = pool.submit(client.send, RegisterCompany(company=f"company-{count}"))
            wait_until(lambda count=count: _said(master, AWAY) == _said(worker, AWAY) == count, "them to notice")  # type: ignore[misc]
            assert words in str(_of(master, AWAY)[-1]["error"]), words
            end(servers, port, store)
            assert receipt.result(HOPELESS_S).seq > 0, words
            wait_until(lambda count=count: _said(master, BACK) == _said(worker, BACK) == count, "them to go on")  # type: ignore[misc]
        types = [fact.type for fact in EventLog(store, Keys()).facts()]
        assert types.count("CompanyRegistered") == len(TROUBLES)
        assert types.count("WorkerRegistered") == 1
        assert "WorkerRemoved" not in types


def _of(service: Service, event: str) -> list[dict[str, Any]]:
    return [entry for entry in service.entries() if event in str(entry["event"])]


def _said(service: Service, event: str) -> int:
    return len(_of(service, event))
