"""Shared by the benchmarks: the commands of a busy cluster, waiting, and the printed result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from scheduler.model.commands import Command, EndApp, EndedExecutor, RegisterCompany, RegisterWorker, SubmitApp
from scheduler.rules.state.cluster import ClusterState

COMPANIES, USERS_PER_COMPANY = 8, 10


def companies(number: int = COMPANIES) -> list[RegisterCompany]:
    """So many companies of the cluster."""
    return [RegisterCompany(company=f"company{each}") for each in range(number)]


def worker(number: int, *, cores: int = 16, memory_mb: int = 65_536) -> RegisterWorker:
    """Worker `number`."""
    return RegisterWorker(worker=f"w{number:05}", node="node", host=f"h{number}", cores=cores, memory_mb=memory_mb)


def submission(
    number: int, *, cores: int = 8, prefix: str = "app", companies: int = COMPANIES, priority: int = 0
) -> SubmitApp:
    """App `number`; so many companies and their users take turns."""
    return SubmitApp(
        app=f"{prefix}-{number}",
        company=f"company{number % companies}",
        user=f"user{number // companies % USERS_PER_COMPANY}",
        cores=cores,
        priority=priority,
        command=("python", "-m", "report", "--day", str(number)),
    )


def endings(app: str, executors: list[str]) -> Iterator[Command]:
    """The reports that an app with these executors has finished."""
    for executor in executors:
        yield EndedExecutor(executor=executor, reason="exited", exit_code=0, done=True)
    yield EndApp(app=app, reason="finished")


def oldest_endings(state: ClusterState, apps: int) -> list[Command]:
    """The reports that the oldest `apps` admitted apps have finished."""
    return [end for name, app in islice(state.waiting.items(), apps) for end in endings(name, list(app.executors))]


def arguments(about: str | None, **defaults: float) -> list[Any]:
    """The numbers that were typed, in this order, or their defaults, whose types they have; `--help` prints `about`.

    Raises: SystemExit with a sentence for anything else.
    """
    parser = _parser(about)
    for name, default in defaults.items():
        parser.add_argument(name.upper(), nargs="?", type=type(default), default=default)
    return list(vars(parser.parse_args()).values())


def words(about: str | None, name: str) -> list[str]:
    """The words that were typed, which the usage calls `name`; `--help` prints `about`."""
    parser = _parser(about)
    parser.add_argument("words", nargs="*", metavar=name)
    return list(parser.parse_args().words)


def _parser(about: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def wait_for(condition: Callable[[], object], what: str, within_s: float = 300) -> None:
    """Return once `condition()` holds. Raises: SystemExit after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {within_s:.0f} s waiting for {what}")
        time.sleep(0.01)


def show(**figures: Any) -> None:  # noqa: ANN401 - whatever JSON takes
    """Print the machine and the figures as JSON."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({"machine": machine, **figures}, indent=2))
