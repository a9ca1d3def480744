"""The memory of an executor's tasks, held to its grant: a cgroup where one can be made, a watch everywhere.

The watch adds up what the tasks' processes hold twice a second and says which task is the largest. The
cgroup (version 2, with the memory controller delegated to this process) stops what grows faster than that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from workers.processes import proportional_mb, resident_mb

_ROOT = Path("/sys/fs/cgroup")


class Excess(NamedTuple):
    """The tasks together use `used_mb`, more than was granted; `task` is the largest of them."""

    task: int
    used_mb: int


def excess(members: Mapping[int, Iterable[int]], limit_mb: int) -> Excess | None:
    """By how much the tasks' processes, given by task, pass `limit_mb` together; None if they don't.

    Shared pages are counted once for each process at first, which is quick, and shared out only
    when that sum is too large: a task that forks does not pay for the same page twice.
    """
    sizes = {task: resident_mb(pids) for task, pids in members.items()}
    if sum(sizes.values()) <= limit_mb:
        return None
    sizes = {task: proportional_mb(pids) for task, pids in members.items()}
    used_mb = sum(sizes.values())
    if used_mb <= limit_mb:
        return None
    return Excess(max(sizes, key=lambda task: sizes[task]), used_mb)


class TaskCgroup:
    """A cgroup that holds an executor's tasks to `limit_mb` from the first page on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kills = 0

    @classmethod
    def make(cls, executor: str, limit_mb: int, root: Path = _ROOT) -> TaskCgroup | None:
        """A cgroup beside or below that of this process; None where it may not make one that limits memory."""
        for parent in _parents(root):
            path = parent / f"fairlog-{executor}"
            with contextlib.suppress(OSError):
                path.mkdir(exist_ok=True)
                if (path / "memory.max").exists():
                    (path / "memory.max").write_text(str(limit_mb * 1024 * 1024))
                    return cls(path)
                path.rmdir()
        return None

    def add(self, pid: int) -> None:
        """Put a task's process in; what it starts follows."""
        with contextlib.suppress(OSError):
            (self._path / "cgroup.procs").write_text(str(pid))

    def has_killed(self) -> bool:
        """Whether the kernel has killed a process for memory since this was asked last."""
        kills = 0
        with contextlib.suppress(OSError):
            for line in (self._path / "memory.events").read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    kills = int(count)
        more, self._kills = kills > self._kills, kills
        return more

    def remove(self) -> None:
        """Remove the cgroup, if nothing is in it any more."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


def remove_cgroups(executor: str, root: Path = _ROOT) -> None:
    """Remove what an executor that died had to leave behind."""
    for parent in _parents(root):
        TaskCgroup(parent / f"fairlog-{executor}").remove()


def _parents(root: Path, of: Path | None = None) -> list[Path]:
    try:
        lines = (of or Path(f"/proc/{os.getpid()}/cgroup")).read_text().splitlines()
    except OSError:
        return []
    own = [line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")]
    if not own or not (root / "cgroup.controllers").exists():
        return []
    here = root / own[0]
    return [here, here.parent] if own[0] else [here]
