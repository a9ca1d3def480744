"""On which nodes of its job a step runs, and how many of its processes on each."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from fairlog.compat.slurm import sbatch
from fairlog.compat.slurm.nodes import hosts_of
from fairlog.compat.slurm.sbatch import SbatchOptions
from fairlog.compat.slurm.words import SlurmError
from scheduler.model.text import counted

PART = "_FAIRLOG_STEP"
"""Variable of an `srun` that another one has started on a further node of their job: its part of the step, as JSON."""
PLACES = "_FAIRLOG_PLACES"
"""Variable of the script: the folder in which a file for each other node says where it waits for steps."""
_FILES = ("output", "error")
_APART = frozenset("tnN")
"""The letters by which files of nodes differ."""


class StepPart(NamedTuple):
    """What of a step runs on one of its nodes."""

    node: int
    """Which of the nodes of the step this is, from 0 on."""
    shares: list[int]
    """How many processes each of them has."""
    names: list[str]
    """What each of them is called; of a step on the only node of its job, that of the job."""
    number: int = 0
    """The number of the step in its job."""
    elsewhere: tuple[str, ...] = ()
    """The options whose files the `srun` that began the step has opened."""

    @property
    def ranks(self) -> range:
        """The numbers of the processes of this node."""
        first = sum(self.shares[: self.node])
        return range(first, first + self.shares[self.node])

    @property
    def tasks(self) -> int:
        """How many processes the step has."""
        return sum(self.shares)


def part_here() -> StepPart | None:
    """What this process is to run of a step that another `srun` has begun; None if it begins one itself."""
    said = os.environ.pop(PART, "")
    return StepPart(*json.loads(said)) if said else None


def has_nodes() -> bool:
    """Whether this is a job on several nodes, and can start processes on each."""
    return PLACES in os.environ


def spread(asked: SbatchOptions) -> tuple[list[int], list[int], list[str]]:
    """The nodes of a step in a job on several, by their ranks; its processes on each; and their names.

    Raises: Refused.
    """
    names = hosts_of(os.environ["SLURM_JOB_NODELIST"])
    of_job = sbatch.shares(int(os.environ.get("SLURM_NTASKS") or len(names)), len(names))
    ranks = _chosen(asked, names)
    usual = sum(max(1, of_job[rank]) for rank in ranks)
    tasks = asked.number("ntasks", asked.number("ntasks-per-node", 0) * len(ranks) or usual)
    if len(ranks) > tasks:
        if "nodes" in asked and sbatch.nodes_of(asked) > tasks:
            note = f"can't run {tasks} processes on {len(ranks)} nodes, setting nnodes to {tasks}"
            sbatch.say(f"srun: warning: {note}")
        ranks = ranks[:tasks]
    shares = sbatch.shares(tasks, len(ranks))
    cores = int(os.environ.get("SLURM_CPUS_ON_NODE") or 1)
    for rank, share in zip(ranks, shares, strict=True):
        check_processes(asked, share, max(cores, of_job[rank]), f" on {names[rank]}")
    return ranks, shares, [names[rank] for rank in ranks]


def check_processes(asked: SbatchOptions, number: int, most: int, where: str = "") -> None:
    """Raises: Refused for more processes than that, of a step or of a node of it, unless they are to share cores."""
    if number > most and "overcommit" not in asked:
        raise SlurmError(
            f"Unable to create step for job {os.environ['SLURM_JOB_ID']}: More processors requested than permitted"
            f" ({number} of {most}{where}; --overcommit starts them nevertheless)"
        )


def next_of_stdin() -> bytes:
    """What is to be read next of stdin; empty at its end, and where there is none."""
    try:
        return os.read(0, 1 << 16)
    except OSError:
        return b""


def _chosen(asked: SbatchOptions, names: list[str]) -> list[int]:
    """The ranks of the nodes that --nodelist names, and of further ones as --nodes says. Raises: Refused."""
    ranks: list[int] = []
    for name in hosts_of(asked.get("nodelist") or ""):
        ones = [rank for rank, each in enumerate(names) if name in (each, each.partition(".")[0])]
        known = [rank for rank in ones if rank not in ranks]
        if not known:
            raise SlurmError(
                f"Requested node configuration is not available: {name[:60]!r} is no node of this job, which has "
                f"{','.join(names)[:200]}"
            )
        ranks.append(known[0])
    number = sbatch.nodes_of(asked) if "nodes" in asked else len(ranks) or len(names)
    if number > len(names):
        raise SlurmError(
            f"Requested node configuration is not available: this job has {counted(len(names), 'node')}, "
            f"and not {number}; give "
            f"--nodes={len(names)} or fewer"
        )
    others = [rank for rank in range(len(names)) if rank not in ranks]
    return [*ranks, *others[: max(0, number - len(ranks))]]


def shared_files(asked: SbatchOptions) -> tuple[str, ...]:
    """The options that name one file for all nodes of a step: what they write there comes to the first of them."""
    found = [name for name in _FILES if is_shared(asked.get(name))]
    if asked.get("error") is None and "output" in found:
        found.append("error")
    return tuple(found)


def is_shared(named: str | None) -> bool:
    """Whether it is the name of one file for all nodes."""
    if named is None or named in ("all", "none") or named.isdecimal():
        return False
    letters = [part.lstrip("0123456789")[:1] for part in named.replace("%%", "").split("%")[1:]]
    return _APART.isdisjoint(letters)
