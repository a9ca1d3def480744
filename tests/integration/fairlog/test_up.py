"""`fairlog up`: one process tree that keeps itself whole and ends as one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest
from redis import Redis

from tests.integration.cli_rig import Shell, is_gone, scraped, tree_of
from tests.waiting import HOPELESS_S, wait_until


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A home in which an `up` may be started; whatever runs there at the end is stopped."""
    shell = Shell(tmp_path / "home")
    shell.env["FAIRLOG_LEASE"] = "3"
    yield shell
    shell.run("down")


def up(shell: Shell, *arguments: str) -> int:
    """Start it in the background with two workers of 4 cores; its process id."""
    shell.ok("up", "--detach", "--cores", "4", "--memory", "4G", *arguments)
    return int(json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())["pid"])


def run_one(shell: Shell) -> None:
    shell.ok("submit", "--company", "acme", "--user", "ann", "--cores", "4", "--wait", "--", "true")


@pytest.mark.slow
def test_dead_processes_are_restarted_and_apps_run_again(shell: Shell) -> None:
    up(shell)
    shell.ok("company", "add", "acme")
    before = shell.status()
    killed = [before["master"]["pid"], before["workers"][0]["pid"], before["store"]["pid"]]

    def is_whole() -> bool:
        answer = shell.run("status", "--json")
        status = answer.json() if answer.out else dict.fromkeys(before)
        members = [status["master"], *(status["standbys"] or ()), *(status["workers"] or ()), status["store"]]
        pids = {member["pid"] for member in members if member}
        return len(pids) == 5 and pids.isdisjoint(gone) and all(map(psutil.pid_exists, pids))

    gone: list[int] = []
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
        gone.append(pid)
        wait_until(is_whole, "the store, 1 master, 1 standby and 2 workers, none of them one that was killed")
        run_one(shell)


def test_a_second_up_on_the_same_data_is_refused(shell: Shell) -> None:
    pid = up(shell)
    data = shell.home / ".local/share/fairlog/up"
    sentence = (
        f"Error: another `fairlog up` (process {pid}) already runs on the data in {data}; "
        f"stop it with `fairlog down --data {data}`\n"
    )
    assert shell.run("up") == (1, "", sentence)
    assert shell.run("up", "--detach", "--data", str(data)) == (1, "", sentence)
    assert shell.run("status").code == 0


@pytest.mark.slow
def test_down_ends_executors_too_and_the_next_up_finds_the_data(shell: Shell) -> None:
    pid = up(shell)
    shell.ok("company", "add", "acme")
    app = shell.ok("submit", "--company", "acme", "--user", "ann", "--tasks", "1", "--", "sleep", "611").strip()
    wait_until(lambda: any("611" in child.cmdline() for child in tree_of(pid) if not is_gone(child)), "the task")
    everything = tree_of(pid)
    assert "stopped" in shell.ok("down")
    assert [process for process in everything if not is_gone(process)] == []
    assert shell.run("down") == (1, "", "Error: no `fairlog up` is running\n")
    assert shell.run("status").code == 1
    pid = up(shell)
    wait_until(lambda: any("611" in child.cmdline() for child in tree_of(pid) if not is_gone(child)), "the task again")
    assert app in shell.ok("apps")


NEITHER = "its store has neither TLS nor users: only you, on this machine, can reach it\n"
"""The last line with which `up` says what it has started."""


@pytest.mark.slow
def test_killing_up_leaves_no_process_and_the_next_up_takes_over_its_data(shell: Shell) -> None:
    pid = up(shell)
    shell.ok("company", "add", "acme")
    everything = tree_of(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, everything)), "the whole tree to end")
    assert "no cluster found" in shell.run("status").err
    up(shell)
    run_one(shell)


def test_keys_in_the_data_folder_may_be_named_by_any_path(shell: Shell) -> None:
    keys = shell.home / ".local/share/fairlog/up/keys.json"
    keys.parent.mkdir(mode=0o700, parents=True)
    shell.ok("keys", "new", str(keys))
    made = keys.read_bytes()
    shell.env["FAIRLOG_KEYS"] = str(keys.relative_to(shell.home))
    up(shell, "--workers", "0", "--masters", "1")
    assert keys.read_bytes() == made
    shell.ok("company", "add", "acme")


def test_an_interrupt_stops_a_foreground_up_in_order(shell: Shell, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = ("--data", str(tmp_path / "elsewhere"), "--masters", "1", "--workers", "1")
    running = shell.start("up", *here, "--metrics", str(port))
    assert running.stdout is not None
    first = running.stdout.readline()
    assert first.startswith("fairlog is up: 1 master, 1 worker")
    said = list(iter(running.stdout.readline, NEITHER))
    assert f"metrics of its masters: http://127.0.0.1:{port}/metrics\n" in said
    wait_until(lambda: scraped(port).get("fairlog_master_serving") == 1, "its metrics to say that the master serves")
    assert shell.status()["standbys"] == []
    everything = tree_of(running.pid)[1:]
    running.send_signal(signal.SIGINT)
    rest, _ = running.communicate(timeout=HOPELESS_S)
    assert rest.splitlines()[-2:] == ["stopping", "stopped"]
    assert running.returncode == 0
    assert all(map(is_gone, everything))


def test_the_data_folder_distinguishes_several_ups(shell: Shell, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    up(shell, "--workers", "0", "--masters", "1")
    shell.ok("company", "add", "first")
    shell.ok("up", "--detach", "--workers", "0", "--masters", "1", "--data", other, "--cluster", "two")
    assert shell.status()["cluster"] == "two"
    shell.ok("company", "add", "second")
    default = str(shell.home / ".local/share/fairlog/up")
    answer = shell.run("status")
    said = f"another `fairlog up` runs on this machine, on the data in {default}"
    assert (answer.code, answer.out.splitlines()[0]) == (3, f"health    {said}")
    named = shell.run("status", "--cluster", "two", "--store", shell.status()["store"]["url"]).out
    assert named.startswith("health    no standby\n"), "who names a store means no `up`"
    assert [each["company"] for each in json.loads(shell.ok("company", "list", "--json"))] == ["second"]
    listed = json.loads(shell.ok("--data", default, "company", "list", "--json"))
    assert [each["company"] for each in listed] == ["first"]
    shell.ok("down", "--data", other)
    assert shell.status()["cluster"] == "default"
    assert shell.ok("status").startswith("health    all is well\n"), "one master is all there is by design"
    wait_until(lambda: list((shell.home / ".local/share/fairlog/up/logs").glob("auditor.log")), "the auditor")


@pytest.mark.slow
def test_up_says_at_which_position_the_log_cannot_be_read(shell: Shell) -> None:
    up(shell, "--workers", "0")
    shell.ok("company", "add", "acme")
    with Redis.from_url(shell.status()["store"]["url"]) as store:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", store.xrange("fairlog:{default}:log"))
        fields = {**entries[1][1], b"events": b"[{}]"}
        store.xdel("fairlog:{default}:log", entries[1][0])
        store.rename("fairlog:{default}:log", "whole")
        for entry, stored in (entries[0], (entries[1][0], fields), *entries[2:]):
            store.xadd("fairlog:{default}:log", dict(stored), id=entry)
    shell.ok("down")
    answer = shell.run("up", "--workers", "0")
    assert (answer.code, answer.out) == (1, "")
    assert re.search(
        r"^Error: the cluster does not start; master-. failed: .*log position 5: ", answer.err, re.MULTILINE
    )


def test_packages_named_like_ours_in_the_working_folder_are_not_imported(shell: Shell) -> None:
    for name in ("scheduler", "workers", "fairlog"):
        (shell.home / name).mkdir()
        (shell.home / name / "__init__.py").write_text("raise SystemExit(3)")
    answer = shell.installed("up", "--detach", "--workers", "1", "--cores", "4", "--memory", "4G")
    assert answer.code == 0, answer
    assert [worker["status"] for worker in shell.installed("status", "--json").json()["workers"]] == ["alive"]
    assert shell.installed("down").code == 0


def test_an_unusable_data_folder_is_reported_in_one_sentence(shell: Shell) -> None:
    (shell.home / "file").touch()
    for arguments in (("up",), ("up", "--detach")):
        answer = shell.run(*arguments, "--data", str(shell.home / "file" / "below"))
        assert (answer.code, answer.out) == (1, "")
        assert answer.err == f"Error: {shell.home}/file/below: Not a directory\n"
