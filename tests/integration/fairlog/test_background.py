"""The background service: what health checks and the service manager are told, orderly stops, logs for programs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest
from redis import Redis

from fairlog.local.store import EmbeddedStore
from tests.integration.cli_rig import Service, Shell, tree_of
from tests.integration.servers import Servers
from tests.waiting import HOPELESS_S, wait_until

HOST = socket.gethostname()


@pytest.fixture
def shell(store: EmbeddedStore, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "home")
    shell.env |= {"FAIRLOG_STORE": store.url, "FAIRLOG_CLUSTER": f"background-{os.getpid()}-{tmp_path.name}"}
    return shell


def readiness(shell: Shell) -> str:
    """What `status --ready` says once the master answers; a busy machine's may be late."""
    found: list[str] = []

    def is_ready() -> bool:
        answer = shell.run("status", "--ready")
        found.append(answer.out)
        return answer.code == 0

    wait_until(is_ready, "an answer of the master")
    return found[-1]


def test_a_service_says_when_it_is_ready_alive_and_stopping_and_health_checks_see_it(shell: Shell) -> None:
    assert shell.run("status", "--live").code == 1
    unready = shell.run("status", "--ready", "--json")
    assert (unready.code, unready.json()["ready"]) == (1, False)
    master = Service(shell, "master")
    worker = Service(shell, "worker", "--cores", "4", "--memory", "4G", "--run-dir", str(shell.home / "run"))
    try:
        for service in (master, worker):
            service.hear("READY=1")
            service.hear("WATCHDOG=1")
        assert f"worker {HOST}" in readiness(shell)
        assert "master" in shell.ok("status", "--live")
        os.kill(master.process.pid, signal.SIGTERM)
        master.hear("STOPPING=1")
        assert master.process.wait(HOPELESS_S) == 0
        assert shell.run("status", "--ready").err.startswith("not ready: no master of the cluster")
        assert shell.ok("status", "--live") == f"live: {HOST} has worker {HOST}\n"
        os.kill(worker.process.pid, signal.SIGTERM)
        worker.hear("STOPPING=1")
        assert worker.process.wait(HOPELESS_S) == 0
        assert {entry["event"] for entry in master.entries()} >= {"standing by", "serving"}
        assert "registered" in {entry["event"] for entry in worker.entries()}
    finally:
        master.end()
        worker.end()


def test_a_drained_worker_is_at_work_but_not_ready(shell: Shell) -> None:
    worker = Service(shell, "worker", "--id", "w", "--cores", "4", "--memory", "4G", "--run-dir", str(shell.home))
    master = Service(shell, "master")
    try:
        worker.hear("READY=1")
        shell.ok("drain", "w")
        assert "worker w" in shell.ok("status", "--live")
        assert "worker w" not in readiness(shell)
    finally:
        worker.end()
        master.end()


def test_workers_are_listed_and_drained_by_their_labels(shell: Shell) -> None:
    shell.env["FAIRLOG_LABELS"] = "zone=north disk=ssd"
    offer = ("--cores", "4", "--memory", "4G", "--run-dir", str(shell.home))
    workers = [
        Service(shell, "worker", "--id", name, *labels, *offer, name=name)
        for name, labels in (("w1", ()), ("w2", ("--label", "zone=the south")))
    ]
    master = Service(shell, "master")
    try:
        for worker in workers:
            worker.hear("READY=1")
        shown = json.loads(shell.ok("workers", "--json"))
        assert [each["labels"] for each in shown] == [{"disk": "ssd", "zone": "north"}, {"zone": "the south"}]
        assert re.search(r"^w1 +\S+ +disk=ssd zone=north +alive ", shell.ok("workers"), re.MULTILINE)
        assert [each["worker"] for each in json.loads(shell.ok("workers", "--json", "--label", "zone=north"))] == ["w1"]
        assert shell.ok("workers", "--label", "zone=north", "--label", "disk=hdd") == "No worker has these labels.\n"
        assert shell.ok("drain", "--label", "zone=the south", "--yes") == "w2 draining\n"
    finally:
        for service in (*workers, master):
            service.end()


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("zone", "'zone' is not of the form KEY=VALUE"),
        ("=x", "the key of a label must be 1 to 64 letters"),
        ("zone=", "the label zone must not be empty"),
        ("a/b=c", "the key of a label must be 1 to 64 letters"),
        ("zone= x", "the label zone must not start or end with a space"),
    ],
)
def test_a_label_that_no_worker_can_have_is_refused_in_a_sentence(shell: Shell, label: str, said: str) -> None:
    for verb in ("worker", "workers", "drain"):
        answer = shell.run(verb, "--label", label)
        assert answer.code == 2
        assert said in answer.err


def test_a_worker_that_drains_leaves_the_cluster_when_it_is_told_to_stop(shell: Shell) -> None:
    master = Service(shell, "master")
    offer = ("--id", "w", "--cores", "4", "--memory", "4G", "--run-dir", str(shell.home), "--instances", "2")
    worker = Service(shell, "worker", *offer, "--drain")
    try:
        wait_until(lambda: len(json.loads(shell.ok("workers", "--json"))) == 2, "both workers")
        wait_until(lambda: worker.log.read_text().count('"registered"') == 2, "their agents to know")
        os.kill(worker.process.pid, signal.SIGTERM)
        worker.hear("STOPPING=1")
        assert worker.process.wait(HOPELESS_S) == 0
        assert json.loads(shell.ok("workers", "--json")) == []
    finally:
        worker.end()
        master.end()


def test_a_failure_shows_no_password(shell: Shell) -> None:
    answer = shell.run("--store", "redis://ann:hush@127.0.0.1:1/0", "status")
    assert answer.code == 1
    assert "hush" not in answer.out + answer.err
    assert "hush" not in shell.run("--store", "redis://ann:hush@127.0.0.1:x/0", "status").err
    assert "hush" not in shell.run("--store", "http://ann:hush@127.0.0.1/0", "master").err


@pytest.mark.parametrize("servers", ["embedded"], indirect=True)
def test_the_stores_password_is_in_no_log_and_on_no_command_line(servers: Servers, tmp_path: Path) -> None:
    port = servers.start()
    with Redis(port=port) as store:
        store.config_set("requirepass", "hush-hush")
    shell = Shell(tmp_path / "home")
    shell.env |= {"FAIRLOG_STORE": f"redis://:hush-hush@127.0.0.1:{port}/0"}
    master = Service(shell, "master", forked=False)
    offer = ("--cores", "4", "--memory", "4G", "--run-dir", str(tmp_path / "run"), "--instances", "2")
    plain = ("--launcher", "plain", "--unsafe-plain")  # a task in a cell sees no other process
    worker = Service(shell, "worker", *offer, *plain, "--no-outlive", forked=False)
    try:
        master.hear("READY=1")
        shell.ok("company", "add", "acme")
        script = 'ps -o args= -p $PPID; tr "\\0" "\\n" < /proc/$PPID/cmdline'
        app = shell.submit("--wait", "--tasks", "1", "--", "sh", "-c", script)
        shown = [shell.ok("logs", app), shell.run("status").out, shell.run("status", "--json").out]
        started = list(map(_command_line, [*tree_of(master.process.pid), *tree_of(worker.process.pid)]))
        assert len(list(filter(None, started))) >= 5
        servers.kill(port)
        wait_until(lambda: worker.log.read_text().count("the store is unavailable") == 2, "both agents to notice")
        wait_until(lambda: "the store is unavailable" in master.log.read_text(), "the master to notice")
        logs = [master.log, worker.log, *(tmp_path / "run").glob("*/executors.log")]
        shown += started + [log.read_text() for log in logs]
        shown += [
            *map(str, shell.run("status")),
            shell.run("submit", "--company", "acme", "--user", "a", "--", "true").err,
        ]
        assert [text for text in shown if "hush-hush" in text] == []
    finally:
        worker.process.terminate()
        worker.process.wait(HOPELESS_S)
        worker.end()
        master.end()


def _command_line(process: psutil.Process) -> str:
    """Empty for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
