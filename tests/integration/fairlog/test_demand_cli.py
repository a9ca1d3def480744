"""Demand that moves, from the command line to processes on workers and back."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cli_rig import Shell
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster of two workers with 8 cores and 8 GiB each, and the company acme."""
    shell = Shell(tmp_path_factory.mktemp("demand") / "home")
    shell.ok("up", "--detach", "--workers", "2", "--cores", "8", "--memory", "8G")
    shell.ok("company", "add", "acme")
    shell.ok("settings", "set", "elastic_step_ms=200", "executor_idle_timeout_s=1", "locality_wait_host_ms=200")
    yield shell
    shell.ok("down")


def logged(shell: Shell, name: str, kind: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in shell.ok("log", "--json", "--app", name).splitlines()]
    return [entry["data"] for entry in entries if entry["type"] == kind]


def test_an_elastic_app_grows_with_its_backlog_and_gives_back_what_is_idle(shell: Shell) -> None:
    flag, grown = shell.home / "go", shell.home / "grown"
    script = f"test $FAIRLOG_TASK_INDEX = 0 && gate={flag} || gate={grown}; while ! test -e $gate; do sleep 0.05; done"
    name = shell.submit("--elastic", "1:4", "--executor-cores", "1", "--tasks", "16", "--", "sh", "-c", script)
    wait_until(lambda: [one["executor_limit"] for one in logged(shell, name, "AppChanged")][:2] == [2, 4], "growth")
    grown.touch()
    wait_until(lambda: len(logged(shell, name, "ExecutorRevoked")) == 3, "idle executors to be given back")
    assert {one["reason"] for one in logged(shell, name, "ExecutorRevoked")} == {"idle"}
    wait_until(lambda: shell.app(name)["requestedCores"] == 1, "the request to follow")
    wait_until(lambda: len(logged(shell, name, "ExecutorRemoved")) == 3, "their ends")
    assert {one["reason"] for one in logged(shell, name, "ExecutorRemoved")} == {"idle"}
    shares = json.loads(shell.ok("shares", "--json"))
    assert (shares["waitingApps"]["occupiedCores"], shares["waitingApps"]["grantedCores"]) == (1, 1)
    flag.touch()
    wait_until(lambda: shell.app(name)["state"] == "finished", "its end")
    assert sorted(task["attempts"] for task in shell.app(name)["taskStates"]) == [1] * 16


def test_scaling_an_app_near_a_host_says_what_each_executor_reached(shell: Shell) -> None:
    name = shell.submit("--cores", "4", "--tasks", "40", "--", "sleep", "600")
    wait_until(lambda: shell.app(name)["state"] == "running", "the first executor")
    host = socket.gethostname()
    assert shell.ok("scale", name, "--executors", "3", "--prefer", f"{host}=20", "elsewhere=2") == f"{name} scaled\n"
    shown = shell.app(name)
    assert [one["locality"] for one in shown["executors"]] == [None, "host", "host"]
    assert (shown["requestedCores"], shown["preferredHosts"]) == (12, {host: 20, "elsewhere": 2})
    assert "host" in shell.ok("app", name)
    assert shell.run("scale", name, "--executors", "2", "--prefer", "h").code == 2
    assert (
        "'h' is named twice" in shell.run("scale", name, "--executors", "2", "--prefer", "h=3", "--prefer", "h=4").err
    )
    assert shell.run("scale", "--executors", "2", f"{host}=1").code == 2
    assert shell.run("scale", name, "--executors", "none").err.startswith("Error: app")
    shell.ok("kill", name)
