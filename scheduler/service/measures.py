"""What a master measures of itself, in memory that a forked process shares: who reads it takes no time from turns."""

from __future__ import annotations

import mmap
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

COMMIT_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""The upper bounds of the histogram of commits by their latency (s)."""
TURN_EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
"""The upper bounds of the histogram of turns by their number of events."""
_GAUGES = ("serving", "position", "last_commit_s", "clock_offset_s", "commands", "put_aside", "commit_s", "events")
_CELL = 8


class Histogram(NamedTuple):
    """How many observations there were up to each bound and above the last one, and their sum."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


class Measures:
    """The measures of one master. It writes them, and a process that was forked from it reads them."""

    def __init__(self) -> None:
        size = len(_GAUGES) + len(COMMIT_S) + 1 + len(TURN_EVENTS) + 1
        self._cells = memoryview(mmap.mmap(-1, size * _CELL)).cast("d")
        self._commits = len(_GAUGES)
        self._turns = self._commits + len(COMMIT_S) + 1

    def committed(self, took_s: float, events: int, commands: int, seq: int) -> None:
        """A turn of so many events and commands was committed, up to position `seq`; a turn may have no events."""
        cells = self._cells
        cells[self._commits + bisect_left(COMMIT_S, took_s)] += 1
        cells[_COMMIT_S] += took_s
        cells[_COMMANDS] += commands
        if events:
            cells[self._turns + bisect_left(TURN_EVENTS, events)] += 1
            cells[_EVENTS] += events
            cells[_POSITION], cells[_LAST_COMMIT_S] = seq, time.time()

    def looked(self, store_ms: int) -> None:
        """The store's clock was read just now."""
        self._cells[_CLOCK_OFFSET_S] = store_ms / 1000 - time.time()

    def state(self, *, serving: bool, seq: int, put_aside: int) -> None:
        """Whether the master is active, the position that it has folded, and how many messages it put aside."""
        cells = self._cells
        cells[_SERVING], cells[_POSITION], cells[_PUT_ASIDE] = serving, seq, put_aside

    def value(self, name: str) -> float:
        """A measure by its name in `_GAUGES`."""
        return self._cells[_GAUGES.index(name)]

    def commits(self) -> Histogram:
        """The latencies of commits (s)."""
        cells = self._cells[self._commits : self._turns]
        return Histogram(COMMIT_S, list(map(int, cells)), self._cells[_COMMIT_S])

    def turns(self) -> Histogram:
        """The sizes of turns."""
        return Histogram(TURN_EVENTS, list(map(int, self._cells[self._turns :])), self._cells[_EVENTS])


_SERVING, _POSITION, _LAST_COMMIT_S, _CLOCK_OFFSET_S, _COMMANDS, _PUT_ASIDE, _COMMIT_S, _EVENTS = range(len(_GAUGES))
