"""A real cluster under load with a window: nothing of anybody runs in it, and afterwards everybody goes on (W14)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_rig import Shell
from tests.waiting import wait_until

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.path.join(sys.argv[1], f"{os.environ['FAIRLOG_APP_ID']}-{os.getpid()}-{time.time_ns()}"), "w") as file:
    while True:
        print(time.time(), file=file, flush=True)
        time.sleep(0.02)
"""
"""A program that does not heed SIGTERM, and tells of each moment in which it runs."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "home")
    shell.ok("up", "--detach", "--workers", "2", "--masters", "1", "--cores", "4", "--memory", "4G")
    shell.ok("settings", "set", "kill_grace_s=1", "reclaim_patience_s=2", "min_runtime_s=0")
    for company in ("acme", "globex"):
        shell.ok("company", "add", company)
    yield shell
    shell.run("down")


def moments(folder: Path) -> list[float]:
    """When anything ran."""
    return [float(line) for file in folder.iterdir() for line in file.read_text().splitlines()[:-1]]


def events(shell: Shell, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in shell.ok("log", "--json").splitlines()]
    return [each for each in found if each["type"] == kind]


@pytest.mark.slow
def test_nothing_outlives_the_beginning_of_a_window_under_load(shell: Shell) -> None:
    program, traces = shell.home / "stubborn.py", shell.home / "traces"
    program.write_text(STUBBORN)
    traces.mkdir()
    command = ("--", "python3", str(program), str(traces))
    for company, user in (("acme", "ann"), ("acme", "bob"), ("globex", "carol")):
        shell.ok("submit", "--company", company, "--user", user, "--tasks", "4", *command)
    wait_until(lambda: len(list(traces.iterdir())) >= 4, "load")
    shell.ok(*("window", "add", "disks", "--workers", "all", "--from", "+14s", "--to", "+17s", "--notice", "8s"))
    [window] = json.loads(shell.ok("window", "list", "--json"))
    begin, end = window["begin"] / 1000, window["end"] / 1000
    long = shell.submit("--tasks", "1", "--max-runtime", "10m", *command)
    told = json.loads(shell.ok("explain", long, "--json"))["waitsFor"]
    assert told is None or told["cause"] in {"window", "workers-full", "need", "not-entitled", "queue", "next-turn"}
    wait_until(lambda: time.time() > end and max(moments(traces)) > end + 0.5, "work after the window")
    ran = moments(traces)
    assert min(ran) < begin < end < max(ran)
    assert [each for each in ran if begin <= each < end] == []
    left = [each for each in events(shell, "ExecutorRemoved") if each["data"]["reason"] == "window"]
    assert left
    assert max(each["at"] for each in left) < window["begin"]
    assert not [each for each in events(shell, "ExecutorAllocated") if window["begin"] <= each["at"] < window["end"]]
    assert json.loads(shell.ok("window", "list", "--json")) == []
    assert {each["status"] for each in json.loads(shell.ok("workers", "--json"))} == {"alive"}
    assert "follows its rules" in shell.ok("audit")


def test_a_worker_that_is_taken_back_in_a_window_serves_once_that_is_over(shell: Shell) -> None:
    shell.ok("window", "add", "m", "--workers", "worker-1", "--from", "+40s", "--to", "+10m", "--notice", "38s")

    def status() -> str:
        [found] = [each for each in json.loads(shell.ok("workers", "--json")) if each["worker"] == "worker-1"]
        return str(found["status"])

    wait_until(lambda: status() == "draining", "the window's notice")
    shell.ok("drain", "worker-1")
    assert shell.ok("undrain", "worker-1") == "worker-1 back in service once the window 'm' is over\n"
    assert status() == "draining"
    assert "drains for the window 'm'" in shell.run("undrain", "worker-1").err


def test_a_quota_becomes_an_equal_part_again_and_stays_if_nothing_is_given(shell: Shell) -> None:
    assert shell.ok("company", "set", "acme", "--part", "25%") == "company acme changed\n"
    refused = shell.run("company", "set", "acme")
    assert refused.code == 2
    assert "nothing to change is given; give --cores and --memory, --part," in refused.err
    acme = next(each for each in json.loads(shell.ok("company", "list", "--json")) if each["company"] == "acme")
    assert acme["quota"] == "1/4"
    equal = "company acme has an equal part of the live cluster now\n"
    assert shell.ok("company", "set", "acme", "--part", "none") == equal
