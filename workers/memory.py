"""The memory limit of tasks, as far as adding up the memory of their processes twice a second enforces it.

A control group (`workers.cgroups`) also stops what grows faster than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from workers.processes import proportional_mb, resident_mb


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
