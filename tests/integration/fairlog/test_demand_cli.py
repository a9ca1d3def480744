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


@pytest.fixture(scope="module")
def hosts(shell: Shell) -> Iterator[list[str]]:
    """Four workers of one machine, each of one core and on a host of its own."""
    names = [f"h{number}" for number in range(4)]
    offered = ("--cores", "1", "--memory", "1G", "--folders", str(shell.home))
    agents = [shell.start("worker", "--id", host, "--host", host, *offered) for host in names]
    try:
        wait_until(lambda: all(host in shell.ok("workers") for host in names), "the workers")
        yield names
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


SMALL = ("--executor-cores", "1", "--executor-memory", "512M")


def test_tasks_run_on_the_hosts_that_they_prefer(shell: Shell, hosts: list[str]) -> None:
    """Semantics L7."""
    shell.ok("settings", "set", "locality_wait_host_ms=600000")
    near = shell.home / "near"
    near.write_text("# tasks by host\nh0=10-12\nh1=13\nh1=14-15,h2=16-18\n")
    about = (*SMALL, "--cores", "4", "--array", "10-22")
    script = "test $FAIRLOG_TASK_INDEX = 22 || echo $FAIRLOG_HOST"
    name = shell.submit(*about, "--prefer", str(near), "--prefer", "h3=19-21", "--wait", "--", "sh", "-c", script)
    tasks = shell.app(name)["taskStates"]
    assert [task["locality"] for task in tasks] == [*["host"] * 12, None]
    ran = shell.ok("logs", name, "--raw").split()
    assert sorted(ran) == sorted(hosts * 3)
    assert "12 of 12 on a preferred host, 100%" in shell.ok("app", name)
    refused = shell.run("submit", *about, "--prefer", "h3=23", "--", "true")
    assert (refused.code, "task 23, which is to prefer host 'h3', does not exist" in refused.err) == (2, True)


def test_tasks_whose_host_stays_busy_run_elsewhere_once_the_wait_ran_out(shell: Shell, hosts: list[str]) -> None:
    """The host has room for one executor, and its first task holds it until the others are done (semantics L5, L7)."""
    shell.ok("settings", "set", "locality_wait_host_ms=200")
    flag = shell.home / "others-are-done"
    script = f"echo $FAIRLOG_HOST; test $FAIRLOG_TASK_INDEX = 0 || exit 0; while ! test -e {flag}; do sleep 0.05; done"
    about = (*SMALL, "--cores", "2", "--tasks", "4", "--prefer", f"{hosts[0]}=0-3")
    name = shell.submit(*about, "--", "sh", "-c", script)
    wait_until(lambda: [task["state"] for task in shell.app(name)["taskStates"]].count("succeeded") == 3, "the others")
    flag.touch()
    wait_until(lambda: shell.app(name)["state"] == "finished", "its end")
    ran = shell.ok("logs", name, "--raw").split()
    near = ran.count(hosts[0])
    found = [task["locality"] for task in shell.app(name)["taskStates"]]
    assert sorted(found) == ["any"] * (4 - near) + ["host"] * near
    assert near < 4
    assert f"{near} of 4 on a preferred host, {25 * near}%" in shell.ok("app", name)
