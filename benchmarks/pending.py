"""What many pending apps cost, printed as JSON: memory, restoring them from a snapshot, and a decision beside them.

`pending.py [APPS]` (default 100,000) fills a cluster of 100 workers and queues 10,000 apps, then APPS apps: once of 80
users in 8 companies, once of one user. In memory, on one core. Commands are read from JSON, as a master reads them.
Each of the two runs in a process of its own: in one that has freed memory, new apps would seem to need none.
Each step and each figure is told on stderr at once, since a million apps take minutes.

- `bytes_per_app`: growth of the process.
- `restore_us_per_app`: CPU time to restore the state from a snapshot's lines, the best of three.
- `us_per_decision`: CPU time to end 50 apps, and submit, admit and place as many, for each of them; the median round.
- `fork_ms`: CPU time of a fork, which writes a snapshot; turns wait for it. The least of three.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import psutil

from benchmarks._common import arguments, companies, oldest_endings, show, submission, worker
from recovery.replay.rebuild import unhindered
from scheduler.model.commands import Command, read_command, write_command
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored

FEW = 10_000
WORKERS = 100
TURN = 50
FILLING_TURN = 1000
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
        for done in range(0, apps, FILLING_TURN):
            if done % 100_000 == 0:
                _tell(f"{done:,} of {apps:,} apps are queued")
            self._turn([self._next() for _ in range(min(FILLING_TURN, apps - done))])

    def round(self) -> float:
        """End and submit apps. µs of CPU time an app."""
        ended = [*oldest_endings(self.state, TURN)]
        submitted = [self._next() for _ in range(TURN)]
        began = time.process_time()
        self._turn([*ended, *submitted])
        return 1e6 * (time.process_time() - began) / TURN


def _tell(what: str) -> None:
    sys.stderr.write(f"{time.process_time():7.1f} s of CPU time: {what}\n")
    sys.stderr.flush()


def _resident() -> int:
    return psutil.Process().memory_info().rss


def _fork_ms() -> float:
    began = time.process_time()
    child = os.fork()
    if not child:
        os._exit(0)
    took = time.process_time() - began
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
    _tell(f"apps of {'one user' if companies_with_apps == 1 else f'{10 * companies_with_apps} users'}")
    cluster = Cluster(companies_with_apps)
    cluster.queue(FEW + WORKERS * 2)
    few_us = _decision(cluster)
    gc.collect()
    before = _resident()
    cluster.queue(apps)
    gc.collect()
    grown = _resident() - before
    _tell(f"{grown / apps:.0f} bytes an app; decisions follow")
    many_us = _decision(cluster)
    fork_ms = min(_fork_ms() for _ in range(3))
    _tell(f"a decision takes {few_us:.0f} and {many_us:.0f} µs, a fork {fork_ms:.1f} ms; the snapshot follows")
    written = [line.encode() for line in lines(cluster.state)]
    digest, pending = cluster.state.digest(), len(cluster.state.queue.arrivals)
    cluster.state = ClusterState()
    gc.collect()
    times = []
    for _ in range(RESTORES):
        with unhindered():
            began = time.process_time()
            state = restored(written)
        times.append(time.process_time() - began)
        _tell(f"restored in {times[-1]:.2f} s")
        if len(times) == RESTORES and state.digest() != digest:
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
    (apps,) = arguments(__doc__, apps=100_000)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        of_80_users = processes.submit(_measured, apps, 8).result()
        of_one_user = processes.submit(_measured, apps, 1).result()
    show(of_80_users=of_80_users, of_one_user=of_one_user)


if __name__ == "__main__":
    main()
