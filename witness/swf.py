"""Workload traces in the Standard Workload Format (SWF), read as turns.

A trace has one job per line in 18 columns, -1 = unknown (Chapin et al. 1999; Parallel Workloads Archive). Its header
states the nodes: `; Nodes: 20 x 80 processors, 505 GiB each; …`.

Traces have no companies. Users are distributed over the companies c1 … cN in serpentine order, by descending
processor-seconds. The minimum executor has 2 cores, so a job's cores are its processors rounded up to an even number.
All other settings are those of a new cluster.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from scheduler.model.commands import (
    ChangeEdition,
    Command,
    ConfigureCluster,
    RegisterCompany,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand
from scheduler.rules.checks.validate import NEW_SETTINGS
from scheduler.rules.placement.sizing import MEMORY_STEP_MB
from scheduler.rules.state.preconditions import EDITIONS
from witness.whatif import AppWork, Input, LoggedTurn

COLUMNS = 18
_NODES = re.compile(r"(\d+) x (\d+) processors, (\d+) (KiB|MiB|GiB)")
_MIB = {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}
SETTINGS = {"min_executor_cores": 2, "min_executor_memory_mb": 512, "default_cores": 2}


class TraceJob(NamedTuple):
    """One job of a trace; `memory_mb` is its total memory, None if unknown."""

    number: int
    submitted_s: int
    run_s: int
    processors: int
    memory_mb: int | None
    user: str
    failed: bool


class Trace(NamedTuple):
    """The turns of a trace, and the work of each job by app id."""

    turns: list[LoggedTurn]
    work: dict[str, AppWork]


def read_trace(lines: Iterable[str], companies: int) -> Trace:
    """Parse a trace and distribute its users over `companies` companies. Skips jobs without run time or processors.

    Raises: InvalidCommand naming a malformed line, or if the trace has no nodes or no jobs.
    """
    header: list[str] = []
    jobs: list[TraceJob] = []
    in_bytes = False
    for number, line in enumerate(lines, start=1):
        if line.startswith(";"):
            header.append(line)
            in_bytes = in_bytes or "bytes in field 10" in line
        elif line.strip() and (job := _job(number, line, in_bytes=in_bytes)) is not None:
            jobs.append(job)
    workers = list(_workers(header))
    if not workers:
        raise InvalidCommand("the trace names no nodes: add a header line `; Nodes: 120 x 2 processors, 1 GiB each`")
    if not jobs:
        raise InvalidCommand("the trace has no job with run time and processors")
    company, largest_mb = _company_by_user(jobs, companies), max(worker.memory_mb for worker in workers)
    start = min(job.submitted_s for job in jobs) * 1000
    setup: list[Command] = [
        ChangeEdition(edition=EDITIONS[-1]),
        ConfigureCluster(settings={**NEW_SETTINGS, **SETTINGS, "retained_apps": 1000}),
        *(RegisterCompany(company=f"c{number}") for number in range(1, companies + 1)),
        *workers,
    ]
    turns = [LoggedTurn(start, [Input(command) for command in setup], [], [])]
    ordered = sorted(jobs, key=lambda job: (job.submitted_s, job.number))
    for at, together in groupby(ordered, key=lambda job: job.submitted_s):
        submitted = [Input(_submission(job, company[job.user], largest_mb)) for job in together]
        turns.append(LoggedTurn(at * 1000 + 1, submitted, [], []))
    work = {f"j{job.number}": AppWork(job.run_s * 1000 * _held(job), job.failed) for job in jobs}
    return Trace(turns, work)


def _job(number: int, line: str, *, in_bytes: bool) -> TraceJob | None:
    """The job of a line, None to skip it. Memory is in KiB per processor, or total bytes with `in_bytes`."""
    columns = line.split()
    try:
        numbers = [int(float(text)) for text in columns] if len(columns) >= COLUMNS else []
    except (ValueError, OverflowError):
        numbers = []
    if not numbers:
        raise InvalidCommand(f"line {number} of the trace must have {COLUMNS} numbers: {line[:60]!r}")
    job, submitted, _, run, used, _, _, asked, _, memory, status, user = numbers[:12]
    processors = asked if asked > 0 else used
    if processors <= 0 or run <= 0:
        return None
    memory_mb = None
    if memory > 0:
        memory_mb = memory >> 20 if in_bytes else memory * processors >> 10
    return TraceJob(job, submitted, run, processors, memory_mb, f"u{user}", failed=status == 0)


def _workers(header: Iterable[str]) -> Iterator[RegisterWorker]:
    offers = (offer for line in header if line.startswith("; Nodes:") for offer in _NODES.findall(line))
    each = ((int(cores), int(int(memory) * _MIB[unit])) for n, cores, memory, unit in offers for _ in range(int(n)))
    for number, (cores, memory_mb) in enumerate(each, start=1):
        node = f"n{number}"
        yield RegisterWorker(worker=f"w{number:04}", node=node, host=node, cores=cores, memory_mb=memory_mb)


def _company_by_user(jobs: Iterable[TraceJob], companies: int) -> dict[str, str]:
    seconds = Counter[str]()
    for job in jobs:
        seconds[job.user] += job.run_s * job.processors
    snake = [*range(1, companies + 1), *range(companies, 0, -1)]
    ordered = sorted(seconds, key=lambda user: (-seconds[user], user))
    return {user: f"c{snake[number % len(snake)]}" for number, user in enumerate(ordered)}


def _held(job: TraceJob) -> int:
    """The job's processors, rounded up to minimum executors."""
    least = SETTINGS["min_executor_cores"]
    return -(-job.processors // least) * least


def _submission(job: TraceJob, company: str, largest_mb: int) -> SubmitApp:
    """The job as an app. Its memory is limited so that a minimum executor fits on the largest worker."""
    most = largest_mb // MEMORY_STEP_MB * MEMORY_STEP_MB // SETTINGS["min_executor_cores"]
    memory_mb = None if job.memory_mb is None else max(1, min(most, -(-job.memory_mb // _held(job))))
    return SubmitApp(
        app=f"j{job.number}",
        company=company,
        user=job.user,
        cores=job.processors,
        memory_per_task_mb=memory_mb,
        command=("job",),
    )
