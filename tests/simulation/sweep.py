"""Many seeds on all cores, and one seed with its story: what the suite and `make simulate` run."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.simulation.loom import Killed
from tests.simulation.world import run, running

CHUNK = 10
STORY_LINES = 80


class Failure(NamedTuple):
    """A seed whose run broke a promise or ended a program, and how."""

    seed: int
    reason: str

    def __str__(self) -> str:
        """With the one command that runs it again."""
        return f"seed {self.seed}: {self.reason}\n    make simulate SEED={self.seed}"


def pool() -> ProcessPoolExecutor:
    """A process for each core."""
    return ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn"), initializer=gc.disable)


def sweep(seeds: Sequence[int], processes: ProcessPoolExecutor) -> Iterator[tuple[int, list[Failure]]]:
    """How many seeds were run and which of them failed, bit by bit."""
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    for chunk, failures in zip(chunks, processes.map(failing, chunks), strict=True):
        yield len(chunk), failures


def failing(seeds: Sequence[int]) -> list[Failure]:
    """Those of the seeds that fail."""
    found = [failure for seed in seeds if (failure := failure_of(seed)) is not None]
    gc.collect()
    return found


def failure_of(seed: int) -> Failure | None:
    """How the seed fails, None if it does not."""
    try:
        run(seed)
    except (Exception, Killed) as error:  # noqa: BLE001 - whatever a program ended with
        return Failure(seed, f"{type(error).__name__}: {error}")
    return None
