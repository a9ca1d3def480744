"""What a condition says to do is done, and the condition ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from fairlog.watch.conditions import CONDITIONS
from scheduler.store.full_disks import KEPT_MS
from scheduler.store.keys import Keys
from tests.integration.cli_rig import Shell
from tests.integration.disks import filled
from tests.waiting import HOPELESS_S, wait_until

OTHERWHERE = {
    "store": "tests/integration/recovery/test_broken_store.py types the section of the documents that it names",
    "shorter": "tests/integration/recovery/test_shorter_log.py does both that it offers",
    "edition": "tests/integration/recovery/test_earlier_edition.py types it",
    "log": "tests/integration/recovery/test_backup.py restores a backup",
    "replicas": "tests/integration/scheduler/test_replicas.py brings a replica back",
    "no_master": "tests/integration/fairlog/test_watching.py starts one and waits until it serves",
    "audit_stopped": "tests/integration/fairlog/test_watching.py starts the auditor again, and it goes on",
    "no_api": "tests/integration/fairlog/test_watching.py ends the server and lets it come back",
    "worker_unwell": "tests/integration/workers/test_unfit.py mends what the worker names",
    "disk": "tests/integration/fairlog/test_advice.py frees space on a small disk, where it may mount one",
    "worker_disk": "tests/integration/fairlog/test_advice.py does the same for a worker's",
    "unlent": "tests/unit/fairlog/watch/test_conditions.py lends what a department keeps, and it ends",
    "other_up": "tests/integration/fairlog/test_advice.py names one of two",
}
"""Condition -> where its advice is carried out instead."""
NOT_HERE = {
    "deviation": "nothing ends it: what the log says stays, and the advice is to look",
    "clock": "no test may set the clock of its machine",
    "window": "what is in the way of a window is gone when it begins",
    "worker_suspect": "it ends by itself, and the advice keeps the worker out for longer",
    "failover": "it is told for ten minutes, and the advice is to look",
    "short": "the advice is to look; it ends when others give back what is due",
    "rewound": "it is told for a day, and the advice is to look",
}
"""Condition -> why no test can carry out its advice and see it end."""


class Here:
    """A cluster of one master and no worker, and what its conditions are."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.url = str(shell.status()["store"]["url"])
        self.store = Redis.from_url(self.url)
        self.app = ""
        self.agent: subprocess.Popen[bytes] | None = None
        self.left: list[psutil.Process] = []
        """What the agent had started, which outlives it."""

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A `fairlog` command that goes on, whose words nobody reads."""
        command = [sys.executable, "-m", "fairlog", *arguments]
        null = subprocess.DEVNULL
        return subprocess.Popen(command, env=self.shell.env, cwd=self.shell.home, stdout=null, stderr=null)

    def holding(self, *arguments: str) -> dict[str, Any]:
        """Condition -> as `status --json` tells it."""
        said = json.loads(self.shell.run("status", "--json", *arguments).out)
        return {each["condition"]: each for each in said["health"]["conditions"]}

    def until(self, name: str, *, holds: bool = True) -> Any:
        """The condition as it is told once it holds; nothing once it does not."""
        if holds:
            return wait_until(lambda: self.holding().get(name), f"{name} to hold")
        return wait_until(lambda: name not in self.holding(), f"{name} to end")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    shell = Shell(tmp_path_factory.mktemp("advice") / "home")
    shell.ok("up", "--detach", "--workers", "0", "--masters", "1")
    shell.ok("company", "add", "acme")
    found = Here(shell)
    yield found
    if found.agent is not None and found.agent.poll() is None:
        found.agent.kill()
        found.agent.wait(HOPELESS_S)
    for process in found.left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    shell.run("down")
    found.store.close()


def advised(do: str, verb: str) -> list[str]:
    """The words of the advised command line that begins with `fairlog VERB`."""
    [line] = re.findall(f"`fairlog ({verb}[^`]*)`", do)
    return str(line).split()


def memory(here: Here) -> None:
    used = int(here.store.info("memory")["used_memory"])
    here.store.config_set("maxmemory", used * 10 // 9)
    found = here.until("memory")
    assert "raise the store's maxmemory" in found["do"]
    here.store.config_set("maxmemory", 0)


def durability(here: Here) -> None:
    here.store.config_set("appendfsync", "no")
    found = here.until("durability")
    [line] = re.findall("`CONFIG SET ([^`]+)`", found["do"])
    here.store.config_set(*line.split())


def no_date(here: Here) -> None:
    here.shell.ok("settings", "set", "reclaim_patience_s=none")
    found = here.until("no_date")
    here.shell.ok(*advised(found["do"], "settings set"))


def never_starts(here: Here) -> None:
    here.shell.ok("settings", "set", "never_fits=wait")
    app = here.shell.submit("--executor-cores", "64", "--cores", "64", "true")
    found = here.until("never_starts")
    assert app in here.shell.ok(*advised(found["do"], "apps"))
    here.shell.ok(*[word.replace("APP", app) for word in advised(found["do"], "kill")])


def no_standby(here: Here) -> None:
    found = here.holding("--store", here.url)["no_standby"]
    assert "`fairlog master`" in found["do"]
    later = here.holding("--store", here.url)["no_standby"]
    assert found["since"] == later["since"] > 0
    data = json.loads((here.shell.home / ".local/share/fairlog/up/up.json").read_text())["data"]
    here.shell.env["FAIRLOG_KEYS"] = str(next(Path(data).rglob("keys.json")))
    master = here.started("master", "--store", here.url)
    try:
        wait_until(lambda: "no_standby" not in here.holding("--store", here.url), "the standby")
    finally:
        del here.shell.env["FAIRLOG_KEYS"]
        master.terminate()
        master.wait(HOPELESS_S)


def no_worker(here: Here) -> None:
    folder = here.shell.home.parent / "jobs"  # no worker but those of an `up` runs anything in a home
    folder.mkdir()
    mine = ("--company", "acme", "--user", "ann", "--cores", "1", "sleep", "600")
    here.app = here.shell.ok("submit", *mine, folder=folder).splitlines()[0]
    assert "`fairlog worker`" in here.until("no_worker")["do"]
    here.agent = here.started("worker", "--id", "w9", "--cores", "4", "--memory", "4G")


def unused(here: Here) -> None:
    here.shell.ok("settings", "set", "idle_end_s=10")
    folder = here.shell.home.parent / "jobs"
    mine = ("--company", "acme", "--user", "ann", "--cores", "1", "sleep", "600")
    app = here.shell.ok("submit", *mine, folder=folder).splitlines()[0]
    found = here.until("unused")
    assert found["about"] == app
    assert found["cost"] == "up to 1 core that others could use"
    here.shell.ok("settings", "set", "idle_end_s=none")
    here.shell.ok(*advised(found["do"], "kill"))
    wait_until(lambda: not here.shell.app(app)["executors"], "the end of what ran of it")


def worker_lost(here: Here) -> None:
    assert here.agent is not None
    here.shell.ok("settings", "set", "worker_timeout_s=5")
    wait_until(lambda: here.shell.app(here.app)["state"] == "running", "the app to run")
    here.left = psutil.Process(here.agent.pid).children(recursive=True)
    os.kill(here.agent.pid, signal.SIGKILL)
    here.agent.wait(HOPELESS_S)
    found = here.until("worker_lost")
    assert found["cost"] == "1 executor of 1 app was interrupted; their tasks run again elsewhere"
    here.shell.ok(*advised(found["do"], "remove"))


CARRIED_OUT: dict[str, Callable[[Here], None]] = {
    each.__name__: each
    for each in (memory, durability, no_date, no_standby, no_worker, never_starts, unused, worker_lost)
}


def test_what_a_condition_advises_ends_it(here: Here) -> None:
    """One after another: what is done for one, such as the start of a worker, others need."""
    for name, carried_out in CARRIED_OUT.items():
        carried_out(here)
        here.until(name, holds=False)


@contextmanager
def up(shell: Shell, data: Path) -> Iterator[Here]:
    """A cluster of one master and no worker on that folder."""
    shell.ok("up", "--detach", "--data", str(data), "--workers", "0", "--masters", "1")
    found = Here(shell)
    try:
        yield found
    finally:
        found.store.close()
        shell.ok("down", "--data", str(data))


def test_space_that_is_freed_on_the_stores_disk_ends_the_condition(tmp_path: Path, disks: Callable[..., Path]) -> None:
    disk = disks("store", 128)
    with up(Shell(tmp_path / "home"), disk / "data") as here:
        file = filled(disk, 8 << 20)
        assert "free space on the store's disk" in here.until("disk")["do"]
        file.unlink()
        here.until("disk", holds=False)


def test_what_a_full_disk_kept_from_starting_starts_once_there_is_space(
    tmp_path: Path, disks: Callable[..., Path]
) -> None:
    disk = disks("worker", 16)
    jobs = tmp_path / "jobs"  # no worker but those of an `up` runs anything in a home
    jobs.mkdir()
    with up(Shell(tmp_path / "home"), tmp_path / "data") as here:
        here.shell.ok("company", "add", "acme")
        run = ("--id", "w1", "--cores", "4", "--memory", "4G", "--run-dir", str(disk / "run"))
        agent = here.started("worker", *run)
        try:
            wait_until(lambda: "w1" in here.shell.ok("workers"), "the worker to register")
            mine = ("--company", "acme", "--user", "ann", "--cores", "1", "--")
            talks = "while [ ! -e go ]; do sleep 0.05; done; seq 20000"
            before = here.shell.ok("submit", *mine, "sh", "-c", talks, folder=jobs).splitlines()[0]
            wait_until(lambda: here.shell.app(before)["state"] == "running", "an app that runs before")
            file = filled(disk, 0)
            app = here.shell.ok("submit", *mine, "true", folder=jobs).splitlines()[0]
            found = here.until("worker_unwell")
            assert "nothing can be written to its run folder: No space left on device" in found["sentence"]
            assert "mend what worker w1 or its health check names" in found["do"]
            (jobs / "go").touch()
            assert "free space in the run folder of worker w1" in here.until("worker_disk")["do"]
            wait_until(lambda: here.shell.app(before)["state"] == "finished", "the end of what ran")
            file.unlink()
            here.until("worker_unwell", holds=False)
            wait_until(lambda: here.shell.app(app)["state"] == "finished", "the app to run and end")
            [(key, text)] = here.store.hgetall(Keys("default").full_disks).items()
            since, at, *rest = json.loads(text)
            here.store.hset(Keys("default").full_disks, key, json.dumps([since, at - KEPT_MS, *rest]))
            here.until("worker_disk", holds=False)
        finally:
            agent.terminate()
            agent.wait(HOPELESS_S)


def test_whoever_names_one_of_two_clusters_is_not_told_of_the_other(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    with up(shell, tmp_path / "first") as first, up(shell, tmp_path / "second"):
        found = first.until("other_up")
        assert f"on the data in {tmp_path / 'first'}" in found["sentence"], "the one that was started last is meant"
        assert "--data DIR" in found["do"]
        for name in ("first", "second"):
            assert "other_up" not in first.holding("--data", str(tmp_path / name))


def test_the_advice_of_every_condition_is_carried_out_or_cannot_be() -> None:
    assert {*CARRIED_OUT, *OTHERWHERE, *NOT_HERE} == {each.name for each in CONDITIONS}
    for text in OTHERWHERE.values():
        assert (Path(__file__).parents[3] / text.split()[0]).is_file()
