"""The memory limit of tasks, as far as adding up the memory of their processes twice a second enforces it.

A control group (`workers.cgroups`) also stops what grows faster than that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from workers.processes import proportional_mb, resident_mb

_MEASURE_S = 5.0


class Peak:
    """The most memory, in MiB, that processes have used together at any look, a page that they share counted once."""

    def __init__(self) -> None:
        self.mb = self._seen_mb = 0
        self._measure_at_s = 0.0

    def saw(self, used_mb: int, pids: Sequence[int]) -> None:
        """Note what is in use by the processes: `used_mb`, which counts a page that they share several times.

        To count it once is slow, so that is done when they use more than before, and now and then.
        """
        now_s = time.monotonic()
        if used_mb <= self.mb or (used_mb <= self._seen_mb and now_s < self._measure_at_s):
            return
        self._seen_mb, self._measure_at_s = used_mb, now_s + _MEASURE_S
        self.least(used_mb if len(pids) == 1 else proportional_mb(pids))

    def least(self, memory_mb: int) -> None:
        """Note that they have used so much, a page that they share counted once."""
        self.mb = max(self.mb, memory_mb)


class Excess(NamedTuple):
    """The tasks use more than their limit together: `sizes` in MiB by task, of which `task` is the largest."""

    task: int
    sizes: Mapping[int, int]

    @property
    def used_mb(self) -> int:
        """What they use together."""
        return sum(self.sizes.values())


def excess(members: Mapping[int, Iterable[int]], limit_mb: int) -> Excess | None:
    """Compare the memory of the processes, given by task, with `limit_mb`; None if they are within it.

    A page that forked processes share counts once. The slow measure that ensures this is taken only if the quick
    one, which counts it once per process, exceeds the limit.
    """
    for measure in (resident_mb, proportional_mb):
        sizes = {task: measure(pids) for task, pids in members.items()}
        if sum(sizes.values()) <= limit_mb:
            return None
    return Excess(max(sizes, key=lambda task: sizes[task]), sizes)
