"""Time per decision by cluster size and queue length, printed as JSON.

A decision is the registration, admission and placement of an app of 8 cores, in memory, on one core. Settings may be
given: `scale.py company_policy=pay-as-you-go placement=pack`. There are two series:

- workers: clusters of 16-core workers at half load. New apps are placed, the oldest end.
- pending: a full cluster of 1,000 workers with that many queued apps. The oldest apps end, the next are admitted and
  placed, and as many join the queue.

Sizes alternate round by round, so that a slow period of the machine affects all of them.

`us_per_decision` and `apps_per_s` are for turns of 50 inputs, the size under load (semantics T2), and
`us_per_lone_decision` for a turn of one input. `us_per_ending` is the time to end an app: its executors are removed and
its request leaves the ledgers.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns

from benchmarks._common import companies, oldest_endings, show, submission, worker
from scheduler.model.commands import Command, ConfigureCluster, SubmitApp
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import Turn

WORKER_CORES = 16
APP_CORES = 8
INPUTS_PER_TURN = 50
TURNS_PER_ROUND = 4
ROUNDS = 50


@dataclass
class Cluster:
    """A cluster in steady state, and the measured times of decisions and endings (ns per app)."""

    workers: int
    load: float
    queued: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    state: ClusterState = field(default_factory=ClusterState)
    number: int = 0
    decisions: list[float] = field(default_factory=list)
    lone_decisions: list[float] = field(default_factory=list)
    endings: list[float] = field(default_factory=list)

    def fill(self) -> None:
        """Submit apps up to the configured load and queue length."""
        self.turn(ConfigureCluster(settings=self.settings))
        self.turn(*companies())
        self.turn(*(worker(number, cores=WORKER_CORES) for number in range(self.workers)))
        for _ in range(int(self.workers * WORKER_CORES * self.load) // APP_CORES + self.queued):
            self.turn(self.submission())

    def submission(self) -> SubmitApp:
        """The next app."""
        self.number += 1
        return submission(self.number, cores=APP_CORES)

    def turn(self, *commands: Command, first: Iterable[Command] = ()) -> int:
        """Run one turn with these commands. Returns its time in ns, without the time for the commands in `first`."""
        turn = Turn(self.state, self.state.at + 1)
        for command in first:
            turn.take(command)
        started = perf_counter_ns()
        for command in commands:
            turn.take(command)
        turn.settle()
        return perf_counter_ns() - started

    def round(self) -> None:
        """Submit and end apps, and record the times."""
        for times, apps in ((self.decisions, INPUTS_PER_TURN), (self.lone_decisions, 1)):
            deciding = ending = 0
            for _ in range(TURNS_PER_ROUND * INPUTS_PER_TURN // apps):
                submissions, endings = [self.submission() for _ in range(apps)], oldest_endings(self.state, apps)
                if self.queued:
                    deciding += self.turn(*submissions, first=endings)
                else:
                    deciding += self.turn(*submissions)
                    ending += self.turn(*endings)
            times.append(deciding / TURNS_PER_ROUND / INPUTS_PER_TURN)
            self.endings.append(ending / TURNS_PER_ROUND / INPUTS_PER_TURN)

    def forget_times(self) -> None:
        """Discard the times recorded so far."""
        for times in (self.decisions, self.lone_decisions, self.endings):
            times.clear()

    def figures(self) -> dict[str, float]:
        """Medians over the rounds in µs, and the resulting rate on one core."""
        decision_us = median(self.decisions) / 1000
        figures: dict[str, float] = {
            "workers": self.workers,
            "pending": self.queued,
            "us_per_decision": round(decision_us, 2),
            "us_per_lone_decision": round(median(self.lone_decisions) / 1000, 2),
            "apps_per_s": round(1e6 / decision_us),
        }
        return figures if self.queued else {**figures, "us_per_ending": round(median(self.endings) / 1000, 2)}


def _growth(small: list[float], large: list[float]) -> float:
    """Time at the largest size as a multiple of the smallest: the median of the ratios round by round."""
    return round(median(most / least for most, least in zip(large, small, strict=True)), 3)


def main() -> None:
    """Run the benchmark and print the figures."""
    settings = dict(argument.split("=", 1) for argument in sys.argv[1:])
    by_workers = [Cluster(workers, load=0.5, settings=settings) for workers in (100, 1_000, 10_000)]
    by_pending = [Cluster(1_000, load=1.0, queued=queued, settings=settings) for queued in (100, 10_000)]
    clusters = [*by_workers, *by_pending]
    for cluster in clusters:
        cluster.fill()
        cluster.round()
        cluster.forget_times()
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS):
        print(f"\rround {number + 1} of {ROUNDS}", end="", file=sys.stderr, flush=True)
        for cluster in clusters:
            cluster.round()
    print(file=sys.stderr)
    show(
        settings=settings,
        app_cores=APP_CORES,
        inputs_per_turn=INPUTS_PER_TURN,
        workers=[cluster.figures() for cluster in by_workers],
        pending=[cluster.figures() for cluster in by_pending],
        decision_10000_workers_to_100=_growth(by_workers[0].decisions, by_workers[-1].decisions),
        lone_decision_10000_workers_to_100=_growth(by_workers[0].lone_decisions, by_workers[-1].lone_decisions),
        decision_10000_pending_to_100=_growth(by_pending[0].decisions, by_pending[-1].decisions),
        lone_decision_10000_pending_to_100=_growth(by_pending[0].lone_decisions, by_pending[-1].lone_decisions),
    )


if __name__ == "__main__":
    main()
