"""What backfill (semantics H11) gains and costs: the same random jobs with the setting and without, in virtual time.

20 workers of 16 cores; three companies, of which one sends twice as much as both others for some hours, then all the
same, in turns. A job is one task in one executor of 2 to 16 cores. Four of five state a maximum runtime, from 1.1 to 3
times what they take. They ask for 5 % more than there is. `useful` is the utilisation without what was done again.
`need_*` is how long an app waited that was below its entitlement. The figures do not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from statistics import mean
from typing import Any

from benchmarks._common import arguments, companies, endings, show, worker
from scheduler.model.commands import (
    ChangeEdition,
    Command,
    ConfigureCluster,
    EndedExecutor,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.events import Event, ExecutorAllocated, ExecutorRevoked, NeedBegan, NeedEnded
from scheduler.rules.checks.validate import NEW_SETTINGS
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITIONS

WORKERS, CORES = 20, 16
SIZES = (2, 4, 8, 12, 16)
MEAN_S, LONGEST_S = 1_500, 4 * 3600
LOAD = 1.05
PHASE = 300
"""So many jobs come in the same shares of the companies."""


@dataclass(frozen=True)
class Job:
    """An app of one task, and how long (ms) that takes."""

    at: int
    command: SubmitApp
    takes: int


def jobs(seed: int, number: int) -> list[Job]:
    """So many jobs, in the order in which they are submitted."""
    random, at, found = Random(seed), 2_000, list[Job]()  # noqa: S311 - a sample of jobs
    between_s = mean(SIZES) * (MEAN_S + 30) / (LOAD * WORKERS * CORES)
    for each in range(number):
        cores = random.choice(SIZES)
        takes_s = min(LONGEST_S, random.expovariate(1 / MEAN_S) + 30)
        company = random.choices(range(3), (1, 1, 1) if each // PHASE % 2 else (4, 1, 1))[0]
        limited = random.random() < 0.8
        command = SubmitApp(
            app=f"job-{each}",
            company=f"company{company}",
            user=f"user{each % 3}",
            command=("job",),
            cores=cores,
            tasks=1,
            executor_cores=cores,
            executor_memory_mb=512,
            max_runtime_s=int(takes_s * random.uniform(1.1, 3)) + 60 if limited else None,
        )
        found.append(Job(at, command, int(takes_s * 1000)))
        at += int(random.expovariate(1 / between_s) * 1000)
    return found


@dataclass
class Played:
    """A cluster to which the jobs come; executors end when their task does, or at the date by which they leave."""

    takes: dict[str, int]
    state: ClusterState = field(default_factory=ClusterState)
    ends: list[tuple[int, str, bool]] = field(default_factory=list)
    """When (ms), which executor, and whether its task is done then."""
    started: dict[str, int] = field(default_factory=dict)
    below: dict[str, int] = field(default_factory=dict)
    needs: list[int] = field(default_factory=list)
    """How long (ms) each need waited that was met."""
    held: int = 0
    lost: int = 0
    """Core-ms that executors held in all, and those that left before their task was done."""

    def turn(self, at: int, *commands: Command) -> None:
        """Take the commands at that time (ms), and let start what was granted."""
        turn = Turn(self.state, at)
        for command in commands:
            turn.take(command)
        turn.settle()
        for entry in turn.entries:
            self._note(entry.event, at)
        granted = [entry.event.executor for entry in turn.entries if isinstance(entry.event, ExecutorAllocated)]
        if granted:
            self.turn(at, *map(StartedExecutor, granted))

    def _note(self, event: Event, at: int) -> None:
        match event:
            case ExecutorAllocated():
                self.started.setdefault(event.app, at)
                heappush(self.ends, (at + self.takes[event.app], event.executor, True))
                if event.app in self.below:
                    self.needs.append(at - self.below.pop(event.app))
            case ExecutorRevoked():
                heappush(self.ends, (max(at, event.deadline or 0), event.executor, False))
            case NeedBegan():
                self.below.setdefault(event.app, at)
            case NeedEnded():
                self.below.pop(event.app, None)
            case _:
                pass

    def end(self) -> None:
        """Let the next executor end, unless it has, or may stay."""
        at, name, done = heappop(self.ends)
        executor = self.state.executors.get(name)
        if executor is None or not (done or (executor.status == "stopping" and executor.deadline <= at)):
            return
        spent = executor.resources.cores * (at - executor.granted_at)
        self.held += spent
        if done:
            self.turn(at, *endings(executor.app, [name]))
        else:
            self.lost += spent
            self.turn(at, EndedExecutor(executor=name, reason="killed"))


def figures(seed: int, number: int, *, backfill: bool) -> dict[str, Any]:
    """What became of the jobs up to the last submission."""
    given = jobs(seed, number)
    played = Played({job.command.app: job.takes for job in given})
    settings = {**NEW_SETTINGS, "backfill": backfill}
    workers = [worker(each, cores=CORES) for each in range(WORKERS)]
    played.turn(1_000, ChangeEdition(edition=EDITIONS[-1]), ConfigureCluster(settings=settings))
    played.turn(1_000, *companies(3), *workers)
    for job in given:
        while played.ends and played.ends[0][0] <= job.at:
            played.end()
        played.turn(job.at, job.command)
    whole, end = WORKERS * CORES * given[-1].at, given[-1].at
    waits = sorted(played.started.get(job.command.app, end) - job.at for job in given)
    return {
        "utilisation": round(played.held / whole, 4),
        "useful": round((played.held - played.lost) / whole, 4),
        "wait_mean_s": round(mean(waits) / 1000),
        "wait_p95_s": round(waits[len(waits) * 95 // 100] / 1000),
        "needs": len(played.needs),
        "need_mean_s": round(mean(played.needs) / 1000),
        "need_p95_s": round(sorted(played.needs)[len(played.needs) * 95 // 100] / 1000),
    }


def main() -> None:
    """Run the benchmark and print the figures."""
    number, seeds = arguments(__doc__, jobs=1_500, seeds=3)
    found = {
        f"seed {seed}": {
            "with": figures(seed, number, backfill=True),
            "without": figures(seed, number, backfill=False),
        }
        for seed in range(seeds)
    }
    show(jobs=number, backfill=found)


if __name__ == "__main__":
    main()
