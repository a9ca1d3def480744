"""How long turns of 50 commands take on a full cluster, where everybody wants more than its part (semantics H).

- mixed: ten apps end, and twenty are submitted.
- users: 50 users of one company who had nothing submit an app each.
- sizes: one user submits apps of 50 sizes that nobody had, and ends those before.
- needs: apps of a company that is below its entitlement, of seven users.
- demand: 50 apps of that company change how many executors they want.

`anew_ms` is the time of a filling that begins anew at the end of each case, which those of the turns before went on
from. Times are CPU time of this thread: medians, and the longest turn.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import thread_time_ns
from typing import Any

from benchmarks._common import arguments, companies, oldest_endings, show, submission, worker
from scheduler.model.commands import (
    ChangeEdition,
    Command,
    ConfigureCluster,
    KillApp,
    RegisterWorker,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.events import ExecutorAllocated
from scheduler.rules.checks.validate import NEW_SETTINGS
from scheduler.rules.share.entitlement import filling
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITIONS

COMPANIES = 50
WORKER_CORES, APP_CORES = 16, 8
AT_ONCE = 1_000


@dataclass
class Full:
    """A cluster whose workers are full, with so many pending apps beside."""

    workers: int
    pending: int
    companies: int = COMPANIES
    state: ClusterState = field(default_factory=ClusterState)
    number: int = 0

    def fill(self) -> None:
        """Register a company more than those that submit, and submit until the workers are full and apps wait."""
        self.turn(ChangeEdition(edition=EDITIONS[-1]))
        self.turn(ConfigureCluster(settings=dict(NEW_SETTINGS)))
        self.turn(*companies(self.companies + 1))
        self.turn(*map(self.worker, range(self.workers)))
        left = self.workers * WORKER_CORES // APP_CORES + self.pending
        while left:
            self.turn(*(self.submission() for _ in range(min(left, AT_ONCE))))
            left -= min(left, AT_ONCE)

    def turn(self, *commands: Command) -> float:
        """A turn with these commands, in ms; then whatever was granted runs."""
        turn = Turn(self.state, self.state.at + 10)
        begun = thread_time_ns()
        for command in commands:
            turn.take(command)
        turn.settle()
        spent = (thread_time_ns() - begun) / 1e6
        granted = [entry.event.executor for entry in turn.entries if isinstance(entry.event, ExecutorAllocated)]
        if granted:
            self.turn(*map(StartedExecutor, granted))
        return spent

    def worker(self, number: int) -> RegisterWorker:
        """Worker `number`."""
        return worker(number, cores=WORKER_CORES)

    def submission(self) -> SubmitApp:
        """The next app; the companies and their users take turns."""
        self.number += 1
        return submission(self.number, cores=APP_CORES, companies=self.companies)

    def own(self, company: int, user: str, size: tuple[int, int], executors: int = 1) -> SubmitApp:
        """An app of executors of so many cores and MiB."""
        self.number += 1
        cores, memory_mb = size
        return SubmitApp(
            app=f"own-{self.number}",
            company=f"company{company}",
            user=user,
            command=("true",),
            cores=cores * executors,
            tasks=100_000,
            executor_cores=cores,
            executor_memory_mb=memory_mb,
        )

    def mixed(self, _: int) -> list[Command]:
        """Ten apps end, and twenty are submitted."""
        return [*oldest_endings(self.state, 10), *(self.submission() for _ in range(20))]

    def users(self, turn: int) -> list[Command]:
        """Apps of 50 users that the company did not know."""
        return [self.own(0, f"new-{turn}-{each}", (4, 2048)) for each in range(50)]

    def sizes(self, turn: int) -> list[Command]:
        """Apps of 50 sizes that nobody had, in the place of those before: a company has at most 64 sizes at once."""
        before = [KillApp(app=app.id) for app in self.state.apps.values() if app.spec.user == "sized" and not app.over]
        new = [self.own(0, "sized", (1 + each % WORKER_CORES, 256 + 50 * turn + each)) for each in range(50)]
        return [*before, *new]

    def needs(self, _: int) -> list[Command]:
        """Apps of the company that has nothing yet."""
        return [self.own(self.companies, f"user{each % 7}", (1, 256)) for each in range(50)]

    def demand(self, turn: int) -> list[Command]:
        """The first apps of that company want other numbers of executors."""
        theirs = [app.id for app in self.state.apps.values() if app.id.startswith("own-") and app.ended is None][:50]
        return [ScaleApp(app=app, executors=1 + (turn + place) % 3) for place, app in enumerate(theirs)]


def measured(full: Full, commands: Callable[[int], list[Command]], turns: int) -> dict[str, Any]:
    """Medians and the longest of so many turns with such commands."""
    spent = []
    for turn in range(turns):
        each = commands(turn)
        spent.append(full.turn(*each))
    begun = thread_time_ns()
    filling(full.state)
    anew = (thread_time_ns() - begun) / 1e6
    return {"median_ms": round(median(spent), 2), "longest_ms": round(max(spent), 2), "anew_ms": round(anew, 2)}


def main() -> None:
    """Run the benchmark and print the figures."""
    most, turns = arguments(__doc__, most_workers=1_000, turns=20)
    found = []
    for workers in (100, 1_000, 10_000):
        if workers > most:
            continue
        full = Full(workers, pending=10 * workers)
        full.fill()
        gc.collect()
        gc.freeze()
        full.turn(*full.mixed(0))
        figures: dict[str, Any] = {"workers": workers, "pending": full.pending}
        for name in ("mixed", "users", "sizes", "needs", "demand"):
            print(f"\r{workers} workers, {name}  ", end="", file=sys.stderr, flush=True)
            figures[name] = measured(full, getattr(full, name), turns)
        found.append(figures)
    print(file=sys.stderr)
    compiled = not (sys.modules[Turn.__module__].__file__ or "").endswith(".py")
    show(compiled=compiled, companies=COMPANIES, turns=turns, full=found)


if __name__ == "__main__":
    main()
