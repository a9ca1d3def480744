"""Many seeds on all cores, and one seed with its story: what the suite and `make simulate` run."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.simulation.loom import Killed, Overrun
from tests.simulation.promises import PromiseBroken
from tests.simulation.world import World, run, running

_CHUNK = 10


class Failure(NamedTuple):
    """A seed whose run broke a promise, or ended a program that should have gone on, and how."""

    seed: int
    reason: str
    promise: int | None = None

    def __str__(self) -> str:
        """With the one command that runs it again."""
        return f"seed {self.seed}: {self.reason}\n    make simulate SEED={self.seed}"


def pool() -> ProcessPoolExecutor:
    """A process for each core that is ours: pytest-xdist's workers share them."""
    ours = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return ProcessPoolExecutor(max(1, ours), mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


def _begin() -> None:
    """Have garbage collected between seeds only, and never looked for in what is there before them.

    Of a run's threads only one works at a time: a fifth of the time is saved if they need not wake another core.
    """
    gc.disable()
    gc.freeze()
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) + multiprocessing.current_process()._identity[0]
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def sweep(seeds: Sequence[int], processes: ProcessPoolExecutor) -> Iterator[tuple[int, list[Failure]]]:
    """How many seeds were run and which of them failed, bit by bit."""
    chunks = [seeds[first : first + _CHUNK] for first in range(0, len(seeds), _CHUNK)]
    for chunk, failures in zip(chunks, processes.map(failing, chunks), strict=True):
        yield len(chunk), failures


def failing(seeds: Sequence[int]) -> list[Failure]:
    """Those of the seeds that fail."""
    found = [failure for seed in seeds if (failure := failure_of(seed)) is not None]
    gc.collect()
    return found


def failure_of(seed: int) -> Failure | None:
    """How the seed fails, None if it does not."""
    with running(seed) as world:
        return _failure_in(world)


def told(seed: int) -> tuple[str, Failure | None]:
    """The story of a seed, and how it fails, if it does."""
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
