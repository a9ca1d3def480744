"""Time per decision by cluster size and queue length, printed as JSON.

A decision is the registration, admission and placement of an app of 8 cores, in memory, on one core. Settings may be
given: `scale.py company_policy=pay-as-you-go placement=pack`. There are four series:

- workers: clusters of 16-core workers at half load. New apps are placed, the oldest end.
- pending: a full cluster of 1,000 workers with that many queued apps. The oldest apps end, the next are admitted and
  placed, and as many join the queue.
- regulated: like workers, with 50 active companies, limits of companies and users, and priorities.
- reclaim: one company has borrowed the whole cluster. Apps of the others reclaim their part: 16 executors a turn, the
  most there are. Then these end and the first company has all again.

Sizes alternate round by round, so that a slow period of the machine affects all of them.

`us_per_decision` and `apps_per_s` are for turns of 50 inputs, the size under load (semantics T2), and
`us_per_lone_decision` for a turn of one input. `us_per_ending` is the time to end an app: its executors are removed and
its request leaves the ledgers. `reclaims_per_s` counts executors that are told to leave, and their time is that of the
turns that do so.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns

from benchmarks._common import COMPANIES, companies, endings, oldest_endings, show, submission, words, worker
from scheduler.model.commands import ChangeEdition, Command, ConfigureCluster, EndedExecutor, SetLimit, SubmitApp
from scheduler.model.errors import CommandRejected
from scheduler.model.events import ExecutorRevoked
from scheduler.rules.checks.validate import NEW_SETTINGS
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITIONS

WORKER_CORES = 16
APP_CORES = 8
INPUTS_PER_TURN = 50
TURNS_PER_ROUND = 4
ROUNDS = 50
ACTIVE_COMPANIES = 50
RECLAIMS_PER_TURN = 16
RECLAIMING_APPS = 8


@dataclass
class Cluster:
    """A cluster in steady state, and the measured times of decisions and endings (ns per app)."""

    workers: int
    load: float
    queued: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    regulated: bool = False
    state: ClusterState = field(default_factory=ClusterState)
    number: int = 0
    decisions: list[float] = field(default_factory=list)
    lone_decisions: list[float] = field(default_factory=list)
    endings: list[float] = field(default_factory=list)

    def fill(self) -> None:
        """Submit apps up to the configured load and queue length."""
        self.join()
        for _ in range(int(self.workers * WORKER_CORES * self.load) // APP_CORES + self.queued):
            self.turn(self.submission())

    def join(self) -> None:
        """Register the companies and the workers of a cluster that shares as a new one does."""
        self.turn(ChangeEdition(edition=EDITIONS[-1]))
        self.turn(ConfigureCluster(settings={**NEW_SETTINGS, **self.settings}))
        self.turn(*companies(ACTIVE_COMPANIES if self.regulated else COMPANIES))
        if self.regulated:
            cores = self.workers * WORKER_CORES
            self.turn(
                SetLimit(scope="cluster", name="max_cores", value=cores // 4),
                SetLimit(scope="cluster", name="max_pending_apps", value=cores),
                *(
                    SetLimit(scope="user", company=f"company{number}", user="*", name="max_running_apps", value=cores)
                    for number in range(ACTIVE_COMPANIES)
                ),
            )
        self.turn(*(worker(number, cores=WORKER_CORES) for number in range(self.workers)))

    def submission(self) -> SubmitApp:
        """The next app."""
        self.number += 1
        if self.regulated:
            return submission(self.number, cores=APP_CORES, companies=ACTIVE_COMPANIES, priority=self.number % 7)
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


@dataclass
class Reclaiming(Cluster):
    """A cluster that one company has borrowed, and the measured times of reclaiming (ns per executor)."""

    reclaims: list[float] = field(default_factory=list)

    def fill(self) -> None:
        """Submit apps of one company until they claim the cluster."""
        self.join()
        for _ in range(self.workers * WORKER_CORES // APP_CORES):
            self.number += 1
            self.turn(submission(self.number, cores=APP_CORES, companies=1))

    def round(self) -> None:
        """Let apps of the other companies reclaim room, record the time, and give the room back."""
        spent = revoked = 0
        for _ in range(TURNS_PER_ROUND):
            apps = []
            for _ in range(RECLAIMING_APPS):
                self.number += 1 + (self.number % COMPANIES == COMPANIES - 1)
                apps.append(submission(self.number, cores=APP_CORES))
            turn = Turn(self.state, self.state.at + 1)
            started = perf_counter_ns()
            for app in apps:
                turn.take(app)
            turn.settle()
            spent += perf_counter_ns() - started
            left = [entry.event.executor for entry in turn.entries if isinstance(entry.event, ExecutorRevoked)]
            if len(left) != RECLAIMS_PER_TURN:
                raise SystemExit(f"{len(left)} executors were told to leave, not {RECLAIMS_PER_TURN}")
            revoked += len(left)
            self.turn(*(EndedExecutor(executor=executor, reason="exited", exit_code=0) for executor in left))
            self.turn(*(end for app in apps for end in endings(app.app, list(self.state.apps[app.app].executors))))
        self.reclaims.append(spent / revoked)

    def forget_times(self) -> None:
        """Discard the times recorded so far."""
        self.reclaims.clear()

    def figures(self) -> dict[str, float]:
        """The median over the rounds in µs, and the resulting rate on one core."""
        reclaim_us = median(self.reclaims) / 1000
        rate = round(1e6 / reclaim_us)
        return {"workers": self.workers, "us_per_reclaim": round(reclaim_us, 2), "reclaims_per_s": rate}


def _growth(small: list[float], large: list[float]) -> float:
    """Time at the largest size as a multiple of the smallest: the median of the ratios round by round."""
    return round(median(most / least for most, least in zip(large, small, strict=True)), 3)


def _settings() -> dict[str, str]:
    """The settings that were typed. Raises: SystemExit if a word is none."""
    stated = words(__doc__, "NAME=VALUE")
    for word in stated:
        if "=" not in word:
            raise SystemExit(f"a setting is NAME=VALUE, such as placement=pack, not {word!r}")
    settings = dict(word.split("=", 1) for word in stated)
    try:
        Cluster(1, load=0.0, settings=settings).join()
    except CommandRejected as refusal:
        raise SystemExit(str(refusal)) from None
    return settings


def main() -> None:
    """Run the benchmark and print the figures."""
    settings = _settings()
    by_workers = [Cluster(workers, load=0.5, settings=settings) for workers in (100, 1_000, 10_000)]
    by_pending = [Cluster(1_000, load=1.0, queued=queued, settings=settings) for queued in (100, 10_000)]
    regulated = [Cluster(workers, load=0.5, settings=settings, regulated=True) for workers in (100, 10_000)]
    reclaiming = [Reclaiming(workers, load=1.0, settings=settings) for workers in (100, 1_000, 10_000)]
    clusters = [*by_workers, *by_pending, *regulated, *reclaiming]
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
        regulated=[cluster.figures() for cluster in regulated],
        reclaim=[cluster.figures() for cluster in reclaiming],
        decision_10000_workers_to_100=_growth(by_workers[0].decisions, by_workers[-1].decisions),
        lone_decision_10000_workers_to_100=_growth(by_workers[0].lone_decisions, by_workers[-1].lone_decisions),
        decision_10000_pending_to_100=_growth(by_pending[0].decisions, by_pending[-1].decisions),
        lone_decision_10000_pending_to_100=_growth(by_pending[0].lone_decisions, by_pending[-1].lone_decisions),
        regulated_decision_10000_workers_to_100=_growth(regulated[0].decisions, regulated[-1].decisions),
        regulated_lone_decision_10000_workers_to_100=_growth(regulated[0].lone_decisions, regulated[-1].lone_decisions),
        reclaim_10000_workers_to_100=_growth(reclaiming[0].reclaims, reclaiming[-1].reclaims),
    )


if __name__ == "__main__":
    main()
