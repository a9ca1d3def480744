"""`make demo-spark`: Spark apps of two companies beside shell tasks on a full cluster. Needs Java and Spark.

acme's Spark app and its shell tasks hold all of the cluster but globex's driver. What globex's Spark app gets then, it
gets by reclaiming.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from fairlog.engines.spark.driver import NoSpark, home_of_spark
from scheduler.model.text import counted

USERS = {"acme": "ann", "globex": "bob"}
WORKERS, CORES = 2, 4
EXECUTORS = {"acme": 2, "globex": 3}
"""Of each Spark app, of one core; with its driver, globex then holds its half of the cluster."""
COUNT = 12
"""How many numbers a round of a Spark app adds, one in a task."""
WATCHED_S = 15
"""For how long both hold their parts before the apps are told to come to an end."""
DEADLINE_S = 420
"""Only a machine that is much too busy needs longer than two minutes."""
_LOOK_S = 2.0
_PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession
def nap(number):
    time.sleep(0.5)
    return number
spark = SparkSession.builder.appName(sys.argv[1]).getOrCreate()
count, sums, rounds = int(sys.argv[2]), set(), 0
while not (sums and os.path.exists("enough")):
    sums.add(spark.sparkContext.parallelize(range(count), count).map(nap).sum())
    rounds += 1
print(f"{sys.argv[1]}: the numbers below {count} were added {rounds} times; sums found:", *sums)
spark.stop()
"""
_TASK = "[ -e enough ] || sleep 1"
Events = Sequence[dict[str, Any]]


class DemoFailed(Exception):
    """The demonstration showed something else than it should."""


class Demo:
    """A cluster in a folder of its own, used by the verbs that a person types."""

    def __init__(self, folder: Path, home: str) -> None:
        self.data, self.receipts, self.work = folder / "up", folder / "receipts.jsonl", folder / "work"
        self.work.mkdir()
        (self.work / "naps.py").write_text(_PROGRAM)
        python = str(Path(os.environ.get("PYSPARK_PYTHON", sys.executable)).parents[1])
        shared = (os.environ.get("FAIRLOG_SHARE", ""), home, python, *(path for path in sys.path if "site-" in path))
        self.variables = {**os.environ, "HOME": str(folder), "FAIRLOG_SHARE": " ".join(shared)}
        self._deadline_s = time.monotonic() + DEADLINE_S

    def verb(self, name: str, *arguments: str) -> str:
        """What `fairlog NAME` prints."""
        command = [sys.executable, "-m", "fairlog", *name.split(), "--data", str(self.data), *arguments]
        ran = subprocess.run(  # noqa: S603 (our own program)
            command, env=self.variables, cwd=self.work, stdout=subprocess.PIPE, text=True, check=False
        )
        if ran.returncode:
            raise DemoFailed(f"`fairlog {name}` failed: {ran.stdout}")
        return ran.stdout

    def show(self, name: str, *arguments: str) -> None:
        """Print a verb and what it prints."""
        click.echo(f"\n$ {' '.join(('fairlog', name, *(each for each in arguments if each != str(self.receipts))))}")
        click.echo(self.verb(name, *arguments).rstrip())

    def spark(self, company: str) -> str:
        """Submit the Spark app of the company. Returns the app of its driver."""
        size = ("--executor-cores", "1", "--executor-memory", "512m", "--driver-memory", "512m")
        conf = ("--num-executors", str(EXECUTORS[company]), "--conf", "spark.ui.enabled=false")
        who = ("--company", company, "--user", USERS[company], "--receipt", str(self.receipts))
        named = ("--name", f"{company}-driver")
        return self.verb("spark-submit", *who, *named, *size, *conf, "naps.py", f"{company}-spark", str(COUNT)).split()[
            0
        ]

    def wait(self, reached: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
        """Wait until `reached` holds of all apps. Raises: Broken."""
        while not reached(json.loads(self.verb("apps", "--all", "--json"))):
            if time.monotonic() >= self._deadline_s:
                raise DemoFailed(f"waited in vain for {what}")
            time.sleep(_LOOK_S)

    def events(self) -> list[dict[str, Any]]:
        """The log."""
        return [json.loads(line) for line in self.verb("log", "--json").splitlines()]


def core_seconds(events: Events, since: int, until: int) -> dict[str, float]:
    """What the executors and drivers of each company held between two times in ms, in core-seconds."""
    company: dict[str, str] = {}
    held: dict[str, tuple[str, int, int]] = {}
    spans: list[tuple[str, int, int, int]] = []
    for event in events:
        data, at = event["data"], event["at"]
        match event["type"]:
            case "AppRegistered":
                company[data["app"]] = data["company"]
            case "ExecutorAllocated" | "DriverAllocated":
                cores = data.get("resources", data)["cores"]
                held[data.get("executor") or data["driver"]] = company[data["app"]], at, cores
            case "ExecutorRemoved" | "DriverRemoved":
                name, began, cores = held.pop(data.get("executor") or data["driver"])
                spans.append((name, began, at, cores))
            case _:
                pass
    found: dict[str, float] = defaultdict(float)
    for name, began, ended, cores in (*spans, *((name, began, until, cores) for name, began, cores in held.values())):
        found[name] += cores * max(0, min(ended, until) - max(began, since)) / 1000
    return dict(found)


def granted(apps: Events, name: str) -> int:
    """How many cores are granted to the apps of that name."""
    return sum(app["grantedCores"] for app in apps if app["name"] == name)


def run_through(demo: Demo) -> None:
    """The demonstration on a running cluster. Raises: Broken."""
    for company in USERS:
        demo.verb("company add", company)
    click.echo("acme submits a Spark app.")
    drivers = {"acme": demo.spark("acme")}
    demo.wait(lambda apps: granted(apps, "acme-spark") == EXECUTORS["acme"], "the executors of acme's Spark app")
    drivers["globex"] = demo.spark("globex")
    demo.wait(lambda apps: granted(apps, "globex-driver") == 1, "the driver of globex")
    who = ("--company", "acme", "--user", "ann", "--receipt", str(demo.receipts), "--name", "shell")
    size = ("--tasks", "400", "--cores", str(WORKERS * CORES), "--executor-cores", "1", "--executor-memory", "512M")
    shell = demo.verb("submit", *who, *size, "--", "sh", "-c", _TASK).split()[0]
    click.echo("globex submits one too. While its driver starts, acme fills the cluster with shell tasks.")
    demo.wait(lambda apps: granted(apps, "shell") > 1, "a full cluster")
    demo.show("apps")
    demo.wait(lambda apps: granted(apps, "globex-spark") == EXECUTORS["globex"], "the executors of globex's Spark app")
    click.echo("\nExecutors of acme have left for the Spark app of globex. Both hold their parts:")
    demo.show("shares")
    began = round(time.time() * 1000)
    time.sleep(WATCHED_S)
    held = core_seconds(demo.events(), began, began + WATCHED_S * 1000)
    (demo.work / "enough").touch()
    said = ", ".join(f"{name} {held[name]:.0f}" for name in sorted(held))
    click.echo(f"\nCore-seconds held in the next {WATCHED_S} s: {said}.")
    demo.wait(lambda apps: all(app["endedAt"] for app in apps), "the end of all apps")
    demo.show("apps", "--all")
    click.echo("\nWhat the Spark apps printed:")
    for company, driver in drivers.items():
        [said] = [line for line in demo.verb("logs", driver, "--driver").splitlines() if line.startswith(company)] or [
            ""
        ]
        click.echo(said)
        if not said.endswith(f"sums found: {sum(range(COUNT))}"):
            raise DemoFailed(f"the result of {company} is wrong")
    _show_receipts(demo, shell)


def _show_receipts(demo: Demo, loser: str) -> None:
    """What acme was told of its losses, and the audit of the log with the receipts of the submissions."""
    taken = [
        each for each in demo.events() if each["type"] == "ExecutorRevoked" and each["data"]["reason"] == "reclaimed"
    ]
    if not taken:
        raise DemoFailed("no executor was reclaimed")
    click.echo(
        f"\n{counted(len(taken), 'executor')} of acme were reclaimed, each with a receipt, which "
        f"`fairlog explain` shows:"
    )
    lines = demo.verb("explain", loser).splitlines()
    click.echo("\n".join(lines[next(number for number, line in enumerate(lines) if line.startswith("lost")) :]))
    count = len(demo.receipts.read_text().splitlines())
    click.echo(
        f"\nThe audit decides the log again and compares it with the {count} signed receipts of the submissions:"
    )
    demo.show("audit", "--receipts", str(demo.receipts))


def main() -> int:
    """Run the demonstration; 0 also where it cannot be shown, after a sentence that says why."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        click.echo("This demonstration needs Java: install one, such as openjdk-17-jre-headless. Nothing was started.")
        return 0
    try:
        home = home_of_spark()
    except NoSpark as error:
        click.echo(f"This demonstration needs Spark: {error}. Nothing was started.")
        return 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fairlog-demo-", ignore_cleanup_errors=True) as folder:
        demo = Demo(Path(folder), home)
        try:
            demo.verb("up", "--detach", "--workers", str(WORKERS), "--cores", str(CORES), "--memory", f"{CORES}G")
            run_through(demo)
        except DemoFailed as error:
            click.echo(f"Error: {error}", err=True)
            return 1
        finally:
            with suppress(DemoFailed):
                demo.verb("down")
    click.echo(f"Done after {time.monotonic() - began_s:.0f} s; everything was stopped and removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
