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


class Failure(NamedTuple):
    """A seed whose run broke a promise or ended a program unexpectedly, and the reason."""

    seed: int
    reason: str
    promise: int | None = None

    def __str__(self) -> str:
        """The reason, and the command that repeats the run."""
        return f"seed {self.seed}: {self.reason}\n    make simulate SEED={self.seed}"


def pool() -> ProcessPoolExecutor:
    """A pool with a process per core; pytest-xdist's workers share the cores."""
    ours = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return ProcessPoolExecutor(max(1, ours), mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


def _begin() -> None:
    """Collect garbage only between seeds, and not among the objects that exist before."""
    gc.disable()
    gc.freeze()


def sweep(seeds: Sequence[int], processes: ProcessPoolExecutor) -> Iterator[tuple[int, list[Failure]]]:
    """The number of seeds and the failures of each chunk, as it ends."""
    chunks = [seeds[first : first + _CHUNK] for first in range(0, len(seeds), _CHUNK)]
    for chunk, failures in zip(chunks, processes.map(failing, chunks), strict=True):
        yield len(chunk), failures


def failing(seeds: Sequence[int]) -> list[Failure]:
    """The failures among these seeds."""
    found = [failure for seed in seeds if (failure := failure_of(seed)) is not None]
    gc.collect()
    return found


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
