"""What many pending apps cost, printed as JSON: memory, restoring them from a snapshot, and a decision beside them.

`pending.py [APPS]` (default 100,000) fills a cluster of 100 workers and queues 10,000 apps, then APPS apps: once of 80
users in 8 companies, once of one user. In memory, on one core. Commands are read from JSON, as a master reads them.

- `bytes_per_app`: growth of the process.
- `restore_us_per_app`: CPU time to restore the state from a snapshot's lines, the best of three.
- `us_per_decision`: CPU time to end 50 apps, and submit, admit and place as many, for each of them; the median round.
- `fork_ms`: for how long a fork, which writes a snapshot, stops the process.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from statistics import median
from typing import Any

import psutil

from benchmarks._common import companies, oldest_endings, show, submission, worker
from scheduler.model.commands import Command, read_command, write_command
from scheduler.rules.snapshot_records import lines, restored
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import Turn

FEW = 10_000
WORKERS = 100
TURN = 50
ROUNDS = 40
RESTORES = 3


class Cluster:
    """A full cluster with apps that wait; their users take turns, or all are one user's."""

    def __init__(self, companies_with_apps: int) -> None:
        self.state = ClusterState()
        self._companies = companies_with_apps
        self._users = 10 * companies_with_apps if companies_with_apps > 1 else 1
        self.number = 0
        self._turn(companies())
        self._turn(worker(number) for number in range(WORKERS))

    def _turn(self, commands: Any) -> None:  # noqa: ANN401 - an iterable of commands
        turn = Turn(self.state, self.state.at + 1)
        for command in commands:
            turn.take(command)
        turn.settle()

    def _next(self) -> Command:
        self.number += 1
        each = self.number * 10 if self._users == 1 else self.number
        app = submission(each, companies=self._companies)
        return read_command(write_command(app))

    def queue(self, apps: int) -> None:
        """Submit so many more apps."""
        for _ in range(0, apps, TURN):
            self._turn([self._next() for _ in range(TURN)])

    def round(self) -> float:
        """End and submit apps. µs of CPU time an app."""
        ended = [*oldest_endings(self.state, TURN)]
        submitted = [self._next() for _ in range(TURN)]
        began = time.process_time()
        self._turn([*ended, *submitted])
        return 1e6 * (time.process_time() - began) / TURN


def _resident() -> int:
    return psutil.Process().memory_info().rss


def _fork_ms() -> float:
    began = time.perf_counter()
    child = os.fork()
    if not child:
        os._exit(0)
    took = time.perf_counter() - began
    os.waitpid(child, 0)
    return 1000 * took


def _decision(cluster: Cluster) -> float:
    gc.collect()
    gc.freeze()
    gc.disable()
    found = median(cluster.round() for _ in range(ROUNDS))
    gc.unfreeze()
    return found


def _measured(apps: int, companies_with_apps: int) -> dict[str, object]:
    cluster = Cluster(companies_with_apps)
    cluster.queue(FEW + WORKERS * 2)
    few_us = _decision(cluster)
    gc.collect()
    before = _resident()
    cluster.queue(apps)
    gc.collect()
    grown = _resident() - before
    many_us = _decision(cluster)
    fork_ms = min(_fork_ms() for _ in range(3))
    written = [line.encode() for line in lines(cluster.state)]
    digest, pending = cluster.state.digest(), len(cluster.state.queue.arrivals)
    cluster.state = ClusterState()
    gc.collect()
    times = []
    for _ in range(RESTORES):
        began = time.process_time()
        state = restored(written)
        times.append(time.process_time() - began)
        if state.digest() != digest:
            raise SystemExit("the restored state is another one")
        del state
        gc.collect()
    return {
        "pending": pending,
        "bytes_per_app": round(grown / apps),
        "restore_us_per_app": round(1e6 * min(times) / pending, 2),
        "us_per_decision": {"10,000 pending": round(few_us, 1), f"{pending:,} pending": round(many_us, 1)},
        "decision_many_to_few": round(many_us / few_us, 2),
        "fork_ms": round(fork_ms, 1),
    }


def main() -> None:
    """Run the benchmark and print the figures."""
    apps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    show(of_80_users=_measured(apps, 8), of_one_user=_measured(apps, 1))


if __name__ == "__main__":
    main()
