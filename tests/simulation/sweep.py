"""Run many seeds on all cores, or one seed with its trace: for the suite and `make simulate`."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.simulation.loom import Killed, Overrun
from tests.simulation.promises import PromiseBroken
from tests.simulation.world import World, run, running

_CHUNK = 10
CONSEQUENCES = (
    "standing by again",
    "a commit got no answer",
    "made the turn fail and was put aside",
    "the store is away",
    "a snapshot was written",
    "has archived",
    "crashes the machine",
    "sets the store's clock",
    "past the timeout",
    "rings",
    "asks another server",
    "logs in again",
    "and may not",
    "an intruder sends",
    "messages were put aside",
    "troubles api",
    "kills api",
    "reads nothing: NotAuthenticated",
    "has not answered for",
    "smuggles KillApp",
)
"""What the traces of some seeds say."""


class Failure(NamedTuple):
    """A seed whose run broke a promise or ended a program unexpectedly, and the reason."""

    seed: int
    reason: str
    promise: int | str | None = None

    def __str__(self) -> str:
        """The reason, and the command that repeats the run."""
        return f"seed {self.seed}: {self.reason}\n    make simulate SEED={self.seed}"


class Chunk(NamedTuple):
    """What was found in some seeds."""

    seeds: int
    failures: list[Failure]


def pool() -> ProcessPoolExecutor:
    """A pool with a process per core; pytest-xdist's workers share the cores."""
    ours = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return ProcessPoolExecutor(max(1, ours), mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


def _begin() -> None:
    """Collect garbage only between seeds, and not among the objects that exist before."""
    gc.disable()
    gc.freeze()


def sweep(seeds: Sequence[int], processes: ProcessPoolExecutor) -> Iterator[Chunk]:
    """What was found in each chunk of the seeds, as it ends."""
    yield from processes.map(_found_in, [seeds[first : first + _CHUNK] for first in range(0, len(seeds), _CHUNK)])


def _found_in(seeds: Sequence[int]) -> Chunk:
    chunk = Chunk(len(seeds), [])
    for seed in seeds:
        with running(seed) as world:
            failure = _failure_in(world)
        if failure is not None:
            chunk.failures.append(failure)
    gc.collect()
    return chunk


def came_about(world: World) -> set[str]:
    """The faults that struck, the types of events in the log, and what the trace says of their consequences."""
    seen = {*world.store.struck, *(fact.type for fact in world.witness.facts)}
    seen |= {sentence for sentence in CONSEQUENCES if any(sentence in line for line in world.story)}
    if world.witness.tails_lost:
        seen.add("a tail was lost")
    if world.witness.told:
        seen.add("a command was acknowledged")
    return seen


def failure_of(seed: int) -> Failure | None:
    """The failure of the seed, None if there is none."""
    with running(seed) as world:
        return _failure_in(world)


def told(seed: int) -> tuple[str, Failure | None]:
    """The trace of a seed, and its failure, if any."""
    with running(seed) as world:
        failure = _failure_in(world)
        return "\n".join(world.story), failure


def _failure_in(world: World) -> Failure | None:
    try:
        run(world)
    except PromiseBroken as broken:
        return Failure(world.seed, str(broken), broken.promise)
    except (Exception, Killed, Overrun) as error:  # noqa: BLE001 - whatever a program ended with
        return Failure(world.seed, f"{type(error).__name__}: {error}")
    return None
