"""`make demo-spark`: Spark apps of two companies beside other work on a full cluster. Needs Java and Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fairlog.engines.spark.driver import NoSpark, home_of_spark

COMPANIES = {"acme": "ann", "globex": "bob", "initech": "cid"}
WORKERS, CORES = 2, 3
TASKS = 60
_LOOK_S = 2.0
_PROGRAM = """
import sys, time
from pyspark.sql import SparkSession
def nap(number):
    time.sleep(1)
    return number
spark = SparkSession.builder.appName(sys.argv[1]).getOrCreate()
count = int(sys.argv[2])
found = spark.sparkContext.parallelize(range(count), count).map(nap).sum()
print(sys.argv[1], "has added the numbers below", count, "to", found)
spark.stop()
"""


class Demo:
    """A cluster in a folder of its own, used by the verbs that a person types."""

    def __init__(self, folder: Path, home: str) -> None:
        self.data, self.receipts = folder / "up", folder / "receipts.jsonl"
        self.work = folder / "work"
        self.work.mkdir()
        self.program = self.work / "naps.py"
        self.program.write_text(_PROGRAM)
        python = str(Path(os.environ.get("PYSPARK_PYTHON", sys.executable)).parents[1])
        share = (
            os.environ.get("FAIRLOG_SHARE", ""),
            home,
            python,
            *filter(lambda path: "site-packages" in path, sys.path),
        )
        self.variables = {**os.environ, "HOME": str(folder), "FAIRLOG_SHARE": " ".join(share)}

    def verb(self, *arguments: str) -> str:
        """What `fairlog` prints."""
        command = [sys.executable, "-m", "fairlog", *arguments, "--data", str(self.data)]
        if arguments[0] in ("submit", "spark-submit"):
            command = [sys.executable, "-m", "fairlog", arguments[0], "--data", str(self.data), *arguments[1:]]
        ran = subprocess.run(  # noqa: S603 (our own program)
            command, env=self.variables, cwd=self.work, stdout=subprocess.PIPE, text=True, check=True
        )
        return ran.stdout

    def spark(self, company: str) -> str:
        """Submit the Spark app of the company. Returns the app of its driver."""
        dynamic = "spark.dynamicAllocation."
        settings = {
            f"{dynamic}enabled": "true",
            f"{dynamic}maxExecutors": str(WORKERS * CORES),
            f"{dynamic}shuffleTracking.enabled": "true",
            "spark.decommission.enabled": "true",
        }
        conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        size = ("--executor-cores", "1", "--executor-memory", "512m", "--driver-memory", "512m")
        who = ("--company", company, "--user", COMPANIES[company], "--receipt", str(self.receipts))
        whole = ("spark-submit", *who, *size, *conf, str(self.program), f"{company}-spark", str(TASKS))
        return self.verb(*whole).splitlines()[0]

    def apps(self) -> list[dict[str, Any]]:
        """All apps."""
        found: list[dict[str, Any]] = json.loads(self.verb("apps", "--all", "--json"))
        return found


def core_seconds(events: Sequence[dict[str, Any]], until: int) -> dict[str, float]:
    """What the executors and drivers of each company have held, in core-seconds, up to a time in ms."""
    company: dict[str, str] = {}
    since: dict[str, tuple[int, int]] = {}
    held: dict[str, float] = defaultdict(float)
    for event in events:
        data, at = event["data"], event["at"]
        match event["type"]:
            case "AppRegistered":
                company[data["app"]] = data["company"]
            case "ExecutorAllocated" | "DriverAllocated":
                since[data.get("executor") or data["driver"]] = at, data.get("resources", data)["cores"]
            case "ExecutorRemoved" | "DriverRemoved":
                began, cores = since.pop(data.get("executor") or data["driver"])
                held[company[data["app"]]] += cores * (min(at, until) - min(began, until)) / 1000
            case _:
                pass
    return dict(held)


def _show(demo: Demo) -> None:
    """The demonstration on a running cluster."""
    for company in COMPANIES:
        demo.verb("company", "add", company)
    drivers = {"acme": demo.spark("acme")}
    click.echo("acme submits a Spark app. It is alone, so it is granted more than its part as it asks for more.")
    _wait(demo, lambda apps: _executors(apps, "acme") >= WORKERS * CORES - 2)
    click.echo(demo.verb("shares"))
    drivers["globex"] = demo.spark("globex")
    others = ["submit", "--company", "initech", "--user", "cid", "--receipt", str(demo.receipts), "--tasks", "40"]
    demo.verb(*others, "--cores", "2", "--executor-cores", "1", "--executor-memory", "512M", "--", "sleep", "1")
    click.echo("globex submits the same, and initech 40 plain tasks: executors of acme leave for them.")
    _wait(demo, lambda apps: _executors(apps, "globex") > 0)
    click.echo(demo.verb("shares"))
    _wait(demo, lambda apps: all(app["endedAt"] for app in apps))
    for driver in drivers.values():
        lines = demo.verb("logs", driver, "--driver").splitlines()
        click.echo("\n".join(line for line in lines if "has added" in line))
    click.echo(demo.verb("apps", "--all"))
    events = [json.loads(line) for line in demo.verb("log", "--json").splitlines()]
    taken = [each for each in events if each["type"] == "ExecutorRevoked" and each["data"]["reason"] == "reclaimed"]
    click.echo(f"{len(taken)} executors were reclaimed. Core-seconds held:")
    for company, seconds in sorted(core_seconds(events, events[-1]["at"]).items()):
        click.echo(f"  {company:8} {seconds:7.1f}")
    click.echo(demo.verb("statement", "--company", "acme", "--month", f"{datetime.now(UTC):%Y-%m}"))
    count = len(demo.receipts.read_text().splitlines())
    click.echo(f"The audit compares the log with the {count} signed receipts of the submissions:")
    click.echo(demo.verb("audit", "--receipts", str(demo.receipts)), nl=False)


def _executors(apps: Sequence[dict[str, Any]], company: str) -> int:
    """The executors of a company's Spark app that are granted."""
    return sum(app["grantedCores"] for app in apps if app["name"] == f"{company}-spark")


def _wait(demo: Demo, reached: Any) -> None:  # noqa: ANN401 (a lambda over apps)
    while not reached(demo.apps()):
        time.sleep(_LOOK_S)


def main() -> int:
    """Run the demonstration; 0 also where it cannot be shown, after a sentence that says why."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        click.echo("This demonstration needs Java: install one, such as openjdk-17-jre-headless. Nothing was started.")
        return 0
    try:
        home = home_of_spark()
    except NoSpark as error:
        click.echo(f"This demonstration needs Spark: {error}")
        return 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fairlog-demo-", ignore_cleanup_errors=True) as folder:
        demo = Demo(Path(folder), home)
        demo.verb("up", "--detach", "--workers", str(WORKERS), "--cores", str(CORES), "--memory", f"{CORES}G")
        try:
            _show(demo)
        finally:
            with suppress(subprocess.CalledProcessError):
                demo.verb("down")
    click.echo(f"Done after {time.monotonic() - began_s:.0f} s; everything was stopped and removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
