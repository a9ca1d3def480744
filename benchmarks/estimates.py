"""Errors of estimated starts over workload traces, beside those of Slurm's way, printed as JSON.

`estimates.py FILE.swf...` runs each trace as `fairlog whatif --trace` does, its users divided among four companies. Of
apps that wait after the turn of their submission, `SAMPLED` of those that come, evenly, are estimated right then
(docs/estimates.md) and compared with when they got their first executor. A job's requested time is its limit, as work:
so many seconds of all of its processors; one that took longer is not killed for it. The figures do not depend on the
machine, but for `took_s` and `each_ms`.

- `likely`: apps end when those of their user usually do.
- `latest`: they last as long as their limits. `within` counts starts that were no later.
- `each_ms`: CPU time of an estimate, both courses together.
- `slurm`: a cluster of its own that knows processors alone: jobs start in the order of submission, with EASY
  backfilling, and a start is estimated as Slurm documents it for `squeue --start`: every job that runs or waits before
  lasts as long as its limit. It is compared with the starts of that cluster, for the jobs that wait there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

from benchmarks._common import show, words
from recovery.replay.rebuild import unhindered
from scheduler.model.events import AppRegistered
from scheduler.rules.entities.apps import App
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.records import lines, restored
from scheduler.store.estimates import Given, errors_of
from witness.forecast import VirtualCourse, Work, usual_work
from witness.swf import read_trace
from witness.whatif import OtherWorld, Rules

COMPANIES = 4
SAMPLED = 300
PLANNED = 1_000
"""So many of the jobs that wait are planned for an estimate of Slurm's way."""


class Job(NamedTuple):
    """A job of a trace as its columns have it, in s."""

    number: int
    submitted: int
    runs: int
    processors: int
    limit: int


def jobs_of(text: str) -> list[Job]:
    """The jobs of a trace that ran, in the order of submission."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith(";"):
            number, submitted, _, runs, used, _, _, asked, limit = [int(float(word)) for word in line.split()[:9]]
            processors = asked if asked > 0 else used
            if runs > 0 and processors > 0:
                found.append(Job(number, submitted, runs, processors, max(limit, runs)))
    return sorted(found, key=lambda job: (job.submitted, job.number))


class Slurm:
    """A cluster of processors with EASY backfilling, and the starts that were estimated of jobs that wait."""

    def __init__(self, processors: int) -> None:
        self.free = processors
        self.queue: dict[int, Job] = {}
        self.running: dict[int, tuple[int, int]] = {}
        """Job -> when (s) its limit is over, and its processors."""
        self.starts: dict[int, int] = {}
        self.estimates: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []

    def run(self, jobs: Sequence[Job], every: int) -> None:
        """Run the jobs; of each `every`-th one that waits, estimate the start."""
        waited = 0
        for job in jobs:
            self._until(job.submitted)
            self.queue[job.number] = job
            self._start(job.submitted)
            if job.number in self.queue:
                if waited % every == 0 and (planned := self._planned(job, job.submitted)) is not None:
                    self.estimates[job.number] = planned
                waited += 1
        self._until(None)

    def _until(self, at: int | None) -> None:
        while self._ends and (at is None or self._ends[0][0] <= at):
            now, number = heappop(self._ends)
            self.free += self.running.pop(number)[1]
            if not self._ends or self._ends[0][0] > now:
                self._start(now)

    def _start(self, at: int) -> None:
        """Start the first jobs, then those behind that delay the first one that waits by no means."""
        while self.queue and (first := next(iter(self.queue.values()))).processors <= self.free:
            self._begin(first, at)
        if not self.queue or not self.free:
            return
        first = next(iter(self.queue.values()))
        free, shadow = self.free, at
        for over, processors in sorted(self.running.values()):
            if free >= first.processors:
                break
            free, shadow = free + processors, over
        spare = free - first.processors
        for job in list(islice(self.queue.values(), 1, None)):
            if job.processors > self.free:
                continue
            if at + job.limit <= shadow:
                self._begin(job, at)
            elif job.processors <= spare:
                spare -= job.processors
                self._begin(job, at)

    def _begin(self, job: Job, at: int) -> None:
        del self.queue[job.number]
        self.free -= job.processors
        self.starts[job.number] = at
        self.running[job.number] = at + job.limit, job.processors
        heappush(self._ends, (at + job.runs, job.number))

    def _planned(self, wanted: Job, at: int) -> int | None:
        """When the job starts if all last as long as their limits, each at the first time that delays none before."""
        levels = [(at, self.free)]
        for over, processors in sorted(self.running.values()):
            over = max(over, at)  # noqa: PLW2901
            if over == levels[-1][0]:
                levels[-1] = over, levels[-1][1] + processors
            else:
                levels.append((over, levels[-1][1] + processors))
        ahead = list(self.queue.values())
        for job in [*ahead[: PLANNED - 1], wanted] if len(ahead) > PLANNED else ahead:
            begin = _earliest(levels, job)
            if job is wanted:
                return begin
            levels = _taken(levels, begin, begin + job.limit, job.processors)
        return None


def _earliest(levels: list[tuple[int, int]], job: Job) -> int:
    """The first time from which on so many processors are free for so long."""
    begin: int | None = None
    for at, free in levels:
        if free < job.processors:
            begin = None
        elif begin is None:
            begin = at
        elif at >= begin + job.limit:
            break
    if begin is None:
        raise SystemExit(f"job {job.number} asks for more processors than there are")
    return begin


def _taken(levels: list[tuple[int, int]], begin: int, end: int, processors: int) -> list[tuple[int, int]]:
    """The levels with so many processors fewer from `begin` to `end`."""
    found: list[tuple[int, int]] = []
    before = 0
    for at, free in levels:
        for edge in (begin, end):
            if (found[-1][0] if found else -1) < edge < at:
                found.append((edge, before - processors if edge == begin else before))
        found.append((at, free - processors if begin <= at < end else free))
        before = free
    for edge in (begin, end):
        if found[-1][0] < edge:
            found.append((edge, before - processors if edge == begin else before))
    return found


class Watched(OtherWorld):
    """A trace's world that tells which apps still wait after the turn of their submission."""

    def __init__(self, work: Any, heard: Callable[[Watched, App], None]) -> None:  # noqa: ANN401 - a trace's
        super().__init__(Rules(), work, follows=False)
        self._heard = heard

    def _update_ends(self, turn: Any) -> None:  # noqa: ANN401 - a turn
        super()._update_ends(turn)
        for event, _ in turn.entries:
            if isinstance(event, AppRegistered) and not self.state.apps[event.app].executors:
                self._heard(self, self.state.apps[event.app])


class Measured:
    """The estimates of a trace's apps, by both ways."""

    def __init__(self, jobs: Sequence[Job], every: int) -> None:
        self._limits = {f"j{job.number}": job.limit * 1000 for job in jobs}
        self._every = every
        self._waited = 0
        self.likely: dict[str, Given] = {}
        self.latest: dict[str, Given] = {}
        self.took_s = 0.0

    def heard(self, world: Watched, app: App) -> None:
        """Estimate the start of each so many-th app that waits."""
        self._waited += 1
        if (self._waited - 1) % self._every:
            return
        began = process_time()
        usual, at, known = usual_work(world.state), world.state.at, list(lines(world.state))

        def limited(app: App, had: int) -> int:
            return max(self._limits[app.id] * app.requested.cores, had + 1)

        def likely(app: App, had: int) -> int:
            return min(usual(app, had), limited(app, had))

        def start(work: Work, *, prompt: bool) -> int | None:
            course = VirtualCourse(restored(known), at, [app.id], work, prompt=prompt)
            course.run(within_s=60)
            return course.starts.get(app.id)

        self.likely[app.id] = Given(at, at, start(likely, prompt=True), None)
        self.latest[app.id] = Given(at, at, None, start(limited, prompt=False))
        self.took_s += process_time() - began


def _figures(given: dict[Any, Given], starts: dict[Any, int]) -> dict[str, Any]:
    """Median and 90th percentile of the errors, in s, and how many had none."""
    said = {name: each for name, each in given.items() if each.likely is not None or each.latest is not None}
    waits = sorted([starts[name] - each.at for name, each in given.items()])
    found = errors_of([(starts[name], each) for name, each in said.items()])
    return {
        "estimated": len(given),
        "unknown": len(given) - len(said),
        "median_wait_s": waits[len(waits) // 2] // 1000 if waits else None,
        "median_s": None if found is None else found.median_ms // 1000,
        "p90_s": None if found is None else found.p90_ms // 1000,
        "within": None if found is None else found.within,
    }


def _of_trace(file: Path) -> dict[str, Any]:
    text = file.read_text(errors="replace")
    jobs = jobs_of(text)
    trace = read_trace(text.splitlines(), COMPANIES)
    every = max(1, len(jobs) // SAMPLED)
    measured = Measured(jobs, every)
    world = Watched(trace.work, measured.heard)
    with unhindered():
        for turn in trace.turns:
            world.take(turn)
        world.run_until()
    accounts = world.meter.accrued(world.state.at)
    starts = {each.app: each.started_at for each in accounts if each.started_at is not None}
    slurm = Slurm(world.state.fleet.total.cores)
    slurm.run([job for job in jobs if job.processors <= slurm.free], every)
    planned = {
        number: Given(job.submitted * 1000, 0, None, slurm.estimates[number] * 1000)
        for job in jobs
        if (number := job.number) in slurm.estimates
    }
    return {
        "likely": _figures(measured.likely, starts),
        "latest": _figures(measured.latest, starts),
        "slurm": _figures(planned, {number: at * 1000 for number, at in slurm.starts.items()}),
        "each_ms": round(1000 * measured.took_s / max(1, len(measured.likely))),
    }


def main() -> None:
    """Run the traces and print their figures."""
    files = [Path(word) for word in words(__doc__, "FILE.swf")]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise SystemExit(f"no such file: {', '.join(missing)}; name traces in the Standard Workload Format")
    found = {}
    for file in files:
        began = perf_counter()
        found[file.name] = {**_of_trace(file), "took_s": round(perf_counter() - began)}
    compiled = not (sys.modules[Turn.__module__].__file__ or "").endswith(".py")
    show(compiled=compiled, **found)


if __name__ == "__main__":
    main()
