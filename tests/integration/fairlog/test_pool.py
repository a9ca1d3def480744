"""Pools whose workers are real processes: they come with demand, go without it, and survive their pool."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlog.api.client import ApiClient
from scheduler.model.commands import SubmitApp
from scheduler.model.errors import CommandRejected
from tests.integration.cli_rig import Shell
from tests.integration.cloud import instances
from tests.integration.slurm_rig import missing, slurm
from tests.waiting import wait_until

CLOUD = Path(__file__).parents[1] / "cloud.py"
APPS, KILLS, ROUNDS = (
    int(os.environ.get(f"FAIRLOG_POOL_{name}", usual))
    for name, usual in (("APPS", "24"), ("KILLS", "2"), ("ROUNDS", "1"))
)
"""The suite runs a small part; 200 apps, 20 rounds and 6 kills a round are the whole."""


class Site:
    """A cluster with accounts and without workers, its operator's robot, and ann of acme."""

    def __init__(self, folder: Path) -> None:
        self.owner = Shell(folder / "owner")
        self.owner.env |= {"FAIRLOG_LAUNCHER": "plain", "FAIRLOG_UNSAFE_PLAIN": "1"}
        self.owner.ok("up", "--detach", "--workers", "0", "--masters", "1")
        self.owner.ok("company", "add", "acme")
        for account in ("op/pool", "acme/ann"):
            self.owner.ok("account", "add", account, *(["--robot"] if account == "op/pool" else []))
        up = json.loads((self.owner.home / ".local/share/fairlog/up/up.json").read_text())
        self.api: str = up["api"]
        self.ann = ApiClient(self.api, token=self.owner.ok("token", "new", "acme/ann").strip())
        self.robot = Shell(folder / "robot")
        self.robot.env |= {
            "FAIRLOG_API": self.api,
            "FAIRLOG_TOKEN": self.owner.ok("token", "new", "op/pool").strip(),
            **{name: self.owner.env[name] for name in ("FAIRLOG_LAUNCHER", "FAIRLOG_UNSAFE_PLAIN")},
        }
        self.cloud = folder / "cloud"
        self.traces = folder / "traces"
        self.traces.mkdir()

    def file(self, **changes: object) -> str:
        """The FILE of a pool of three workers of 2 cores that looks each second."""
        begin = [json.dumps(word) for word in (sys.executable, str(CLOUD), str(self.cloud))]
        said: dict[str, object] = {"name": "burst", "most": 3, "cores": 2, "memory": "1G", "cool_down": "1s"}
        said |= {"start_within": "2m", "every": 1, "price": 0.5, "currency": "EUR", **changes}
        lines = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
        lines += ["[provider]", 'kind = "command"']
        lines += [f'{what} = [{", ".join([*begin, json.dumps(what)])}, "{{worker}}"]' for what in ("start", "stop")]
        lines.append(f"list = [{', '.join([*begin, json.dumps('list')])}]")
        file = self.robot.home / "pool.toml"
        file.write_text("\n".join([*lines, ""]))
        return str(file)

    def submit(self, number: int, script: str, cores: int = 1) -> list[str]:
        """So many apps of ann, each of which runs the script once."""
        asked = [
            SubmitApp(
                app=f"app-{os.urandom(6).hex()}",
                company="acme",
                user="ann",
                tasks=1,
                cores=cores,
                small=True,
                command=("sh", "-c", script),
                cwd=str(self.traces),
            )
            for _ in range(number)
        ]
        for outcome in self.ann.send_many(asked):
            assert not isinstance(outcome, CommandRejected), outcome
        return [each.app for each in asked]

    def states(self) -> dict[str, str]:
        """The states of all apps of ann."""
        return {each["app"]: each["state"] for each in self.ann.view("apps", everything=True)}

    def left(self) -> dict[str, Any]:
        """What of the pool is left anywhere: at the provider, in the log, and among the accounts."""
        found = {
            "instances": sorted(file.name for file in instances(self.cloud)) if self.cloud.exists() else [],
            "workers": [each["worker"] for each in self.robot.run("workers", "--json").json()],
            "accounts": [
                each["account"]
                for each in self.robot.run("account", "list", "--json").json()
                if each["account"].startswith("worker/")
            ],
        }
        return {what: names for what, names in found.items() if names}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    try:
        yield found
    finally:
        for process in instances(found.cloud).values() if found.cloud.exists() else ():
            process.kill()
        found.ann.close()
        found.owner.run("down")


def ended(process: subprocess.Popen[str]) -> str:
    """What the pool has printed, once it is told to end."""
    process.terminate()
    out = process.communicate()[0]
    assert process.returncode == 0, out
    assert "Traceback" not in out
    return out


def jobs(site: Site) -> list[str]:
    """The jobs that Slurm has, by name."""
    ask = ["squeue", "--noheader", "--format=%j"]
    return sorted(subprocess.run(ask, env=site.robot.env, capture_output=True, text=True, check=True).stdout.split())


def work_off(site: Site) -> None:
    """Submit apps, kill pools, and wait until all apps have ended and nothing of the pool is left."""
    file = site.file()
    chance = random.Random(os.environ.get("FAIRLOG_POOL_SEED", "42"))
    for _ in range(ROUNDS):
        apps = site.submit(APPS, "echo x >> $FAIRLOG_APP_ID; sleep 0.2")
        for _ in range(KILLS):
            pool = site.robot.start("pool", file)
            try:
                pool.wait(chance.uniform(1.5, 6))
            except subprocess.TimeoutExpired:
                pool.send_signal(signal.SIGKILL)
            assert pool.wait() == -signal.SIGKILL, pool.communicate()[0]
            pool.communicate()
        pool = site.robot.start("pool", file)
        wait_until(lambda: {site.states()[app] for app in apps} == {"finished"}, "the end of the apps")  # noqa: B023
        wait_until(lambda: not site.left(), "the end of the workers")
        assert pool.stdout is not None
        assert any("0 of at most 3 workers serve" in line for line in pool.stdout)
        ended(pool)
    assert "This log follows its rules" in site.robot.ok("audit")
    cost = json.loads(site.robot.ok("pool", file, "--cost", "--json"))
    assert cost["cost"] == pytest.approx(cost["hours"] / 2, abs=0.001)
    assert cost["hours"] > 0
    assert 1 <= cost["workers"] <= 3


@pytest.mark.slow
def test_workers_come_for_apps_go_without_and_nothing_is_left_of_killed_pools(site: Site) -> None:
    work_off(site)
    assert not (site.cloud / "doubles").exists()


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_workers_that_are_jobs_of_slurm_come_and_go(site: Site, tmp_path: Path) -> None:
    with slurm(tmp_path / "slurm", 8, 8000) as conf:
        site.robot.env["SLURM_CONF"] = str(conf)
        work_off(site)
        assert jobs(site) == []


@pytest.mark.slow
def test_a_worker_with_a_notice_drains_and_another_one_comes(site: Site) -> None:
    file = site.file(least=1, cool_down="10m")
    pool = site.robot.start("pool", file)

    def workers() -> dict[str, str]:
        return {each["worker"]: each["status"] for each in site.robot.run("workers", "--json").json()}

    wait_until(lambda: workers() == {"burst-1": "alive"}, "a worker")
    (app,) = site.submit(1, "until test -e go; do sleep 0.05; done")
    wait_until(lambda: site.states()[app] == "running", "the app")
    (site.cloud / "burst-1.notice").touch()
    wait_until(lambda: workers() == {"burst-1": "draining", "burst-2": "alive"}, "another worker")
    shown = {each["worker"]: each for each in site.robot.run("workers", "--json").json()}
    assert shown["burst-1"]["reason"] == "pool burst: its machine is about to be taken away"
    assert shown["burst-2"]["labels"] == {"pool": "burst"}
    (site.traces / "go").touch()
    wait_until(lambda: site.states()[app] == "finished", "the end of the app")
    wait_until(lambda: workers() == {"burst-2": "alive"}, "the end of the first worker")
    ended(pool)
    assert workers() == {"burst-2": "alive"}  # workers outlive their pool
    said = site.robot.ok("pool", file, "--empty")
    assert "burst-2 takes nothing new: pool burst: more workers than most" in said
    assert site.left() == {}


@pytest.mark.slow
def test_a_pool_says_what_it_would_do_and_what_fails(site: Site) -> None:
    site.submit(2, "true", cores=2)
    planned = json.loads(site.robot.ok("pool", site.file(), "--plan", "--json"))
    assert (planned["start"], planned["wanted"], planned["costPerHour"]) == (["burst-1", "burst-2"], 2, 0)
    assert site.left() == {}
    broken = site.file().replace("pool.toml", "broken.toml")
    text = Path(site.file()).read_text().replace('"start"', '"begin"')
    Path(broken).write_text(text.replace('name = "burst"', 'name = "other"'))
    failed = site.robot.run("pool", broken, "--once")
    assert failed.code == 1
    assert "other-1 is not started: `" in failed.out
    assert site.left() == {"accounts": ["worker/other-1", "worker/other-2"]}
    assert "other-1 is gone" in site.robot.ok("pool", broken, "--empty")
    assert site.left() == {}
