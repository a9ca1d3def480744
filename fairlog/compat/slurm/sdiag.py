"""`sdiag`: how many jobs there are, and what became of those of today."""

from __future__ import annotations

import sys
import time
from collections import Counter

from fairlog.compat.slurm import jobs, times
from fairlog.compat.slurm.road import ApiRoad
from fairlog.compat.slurm.tables import SDIAG
from fairlog.compat.slurm.words import SlurmError, name_idle, read

_RULE = "*" * 55


def run(words: list[str]) -> int:
    """Print the numbers, those since midnight first."""
    given, rest = read(SDIAG, words)
    if rest:
        raise SlurmError(f"unrecognized argument {rest[0][:40]!r}")
    name_idle("sdiag", given)
    road, since = ApiRoad(), times.read_moment("midnight", "starttime")
    apps = jobs.ask(road, endedAfter=since, tasks="true")
    for line in report([job for app in apps for job in jobs.jobs_of(app, apart=True)], since, times.now()):
        sys.stdout.write(f"{line}\n")
    return 0


def report(found: list[jobs.SlurmJob], since: int, now: int) -> list[str]:
    """The lines about the jobs that had not ended `since` (ms); what nobody counts here is left out.

    As Slurm has it, a job has failed if its node did.
    """
    ended = Counter(job.state for job in found if job.ended and (job.end or 0) >= since)
    canceled, failed = ended.pop("CANCELLED", 0), ended.pop("NODE_FAIL", 0)
    return [
        _RULE,
        f"sdiag output at {_moment(now)}",
        f"Data since      {_moment(since)}",
        _RULE,
        f"Jobs submitted: {sum(job.app['submittedAt'] >= since for job in found)}",
        f"Jobs started:   {sum((job.start or 0) >= since for job in found)}",
        f"Jobs completed: {sum(ended.values())}",
        f"Jobs canceled:  {canceled}",
        f"Jobs failed:    {failed}",
        "",
        f"Job states ts:  {_moment(now)}",
        f"Jobs pending:   {sum(job.state == 'PENDING' for job in found)}",
        f"Jobs running:   {sum(job.state == 'RUNNING' for job in found)}",
    ]


def _moment(ms: int) -> str:
    return f"{time.strftime('%a %b %d %H:%M:%S %Y', time.localtime(ms / 1000))} ({ms // 1000})"
