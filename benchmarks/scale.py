"""Time per decision as the cluster and the queue grow, printed as JSON.

A decision is an app of 8 cores registered, admitted and placed in a turn of its own, in memory, on
one core, by default rules. Two families, every size in the same run and the sizes taken in turn,
round after round, so that a slow moment of the machine falls on all of them:

- workers: clusters of 16-core workers at half load; an app is submitted and placed, the oldest ends.
- pending: a full cluster of 1,000 workers with that many apps queued; an app ends, the next one in
  turn is admitted and placed, and another joins the queue.

`us_per_app` is the whole life of an app (submitted, placed, its executors gone, removed), from which
`apps_per_s` follows; `us_per_decision` leaves the end of the app out.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns

from scheduler.commands import Command, EndApp, EndedExecutor, RegisterCompany, RegisterWorker, SubmitApp
from scheduler.state import ClusterState
from scheduler.turn import Turn

COMPANIES, USERS_PER_COMPANY = 8, 10
WORKER_CORES, WORKER_MEMORY_MB = 16, 65_536
APP_CORES = 8
APPS_PER_ROUND = 250


@dataclass
class Cluster:
    """A cluster in a steady state, and the times (ns) that its decisions and its endings took."""

    workers: int
    load: float
    queued: int = 0
    state: ClusterState = field(default_factory=ClusterState)
    running: deque[str] = field(default_factory=deque)
    number: int = 0
    decisions: list[float] = field(default_factory=list)
    lives: list[float] = field(default_factory=list)

    def fill(self) -> None:
        """Bring the cluster to its load and its queue to its length."""
        self.turn(*(RegisterCompany(company=f"company{number}") for number in range(COMPANIES)))
        self.turn(*(_worker(number) for number in range(self.workers)))
        for _ in range(int(self.workers * WORKER_CORES * self.load) // APP_CORES + self.queued):
            self.turn(self.submission())

    def submission(self) -> SubmitApp:
        """The next app, of the companies and their users in rotation."""
        self.number += 1
        company, user = self.number % COMPANIES, self.number // COMPANIES % USERS_PER_COMPANY
        return SubmitApp(
            app=f"app-{self.number}",
            company=f"company{company}",
            user=f"user{user}",
            cores=APP_CORES,
            command=("true",),
        )

    def turn(self, *commands: Command) -> Turn:
        """One turn with these commands."""
        turn = Turn(self.state, self.state.at + 1)
        for command in commands:
            turn.take(command)
        turn.settle()
        return turn

    def ending(self) -> list[Command]:
        """What the workers report when the app admitted first ends."""
        name, app = next(iter(self.state.waiting.items()))
        ended = [
            EndedExecutor(executor=executor, reason="exited", exit_code=0, done=True) for executor in app.executors
        ]
        return [*ended, EndApp(app=name, reason="finished")]

    def round(self, apps: int) -> None:
        """Let `apps` apps come and go, and note how long one took."""
        deciding = living = 0
        for _ in range(apps):
            submission, ending = self.submission(), self.ending()
            started = perf_counter_ns()
            self.turn(submission)
            decided = perf_counter_ns()
            self.turn(*ending)
            ended = perf_counter_ns()
            deciding += (ended - decided) if self.queued else (decided - started)
            living += ended - started
        self.decisions.append(deciding / apps)
        self.lives.append(living / apps)

    def figures(self) -> dict[str, float]:
        """The median over the rounds, in microseconds, and what a core makes of it."""
        life_us = median(self.lives) / 1000
        return {
            "workers": self.workers,
            "pending": self.queued,
            "us_per_decision": round(median(self.decisions) / 1000, 2),
            "us_per_app": round(life_us, 2),
            "apps_per_s": round(1e6 / life_us),
        }


def _worker(number: int) -> RegisterWorker:
    return RegisterWorker(
        worker=f"w{number:05}", node="node", host="host", cores=WORKER_CORES, memory_mb=WORKER_MEMORY_MB
    )


def main(rounds: int = 40) -> None:
    """Measure and print."""
    by_workers = [Cluster(workers, load=0.5) for workers in (100, 1_000, 10_000)]
    by_pending = [Cluster(1_000, load=1.0, queued=queued) for queued in (100, 10_000)]
    clusters = [*by_workers, *by_pending]
    for cluster in clusters:
        cluster.fill()
        cluster.round(APPS_PER_ROUND)
        cluster.decisions.clear()
        cluster.lives.clear()
    gc.collect()
    gc.freeze()
    for number in range(rounds):
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        for cluster in clusters:
            cluster.round(APPS_PER_ROUND)
    print(file=sys.stderr)
    workers = [cluster.figures() for cluster in by_workers]
    pending = [cluster.figures() for cluster in by_pending]
    result = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()},
        "app_cores": APP_CORES,
        "workers": workers,
        "pending": pending,
        "cost_10000_workers_to_100": round(workers[-1]["us_per_app"] / workers[0]["us_per_app"], 3),
        "decision_10000_workers_to_100": round(workers[-1]["us_per_decision"] / workers[0]["us_per_decision"], 3),
        "cost_10000_pending_to_100": round(pending[-1]["us_per_app"] / pending[0]["us_per_app"], 3),
        "decision_10000_pending_to_100": round(pending[-1]["us_per_decision"] / pending[0]["us_per_decision"], 3),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
