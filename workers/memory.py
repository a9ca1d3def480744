"""Memory limits of tasks: polling everywhere, and a cgroup where one can be created.

Polling adds up the memory of the tasks' processes twice a second and finds the largest task. The cgroup (version 2,
with the memory controller delegated to this process) also stops what grows faster than that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from workers.processes import proportional_mb, resident_mb

_ROOT = Path("/sys/fs/cgroup")


class Excess(NamedTuple):
    """The tasks use `used_mb` together, more than their limit; `task` is the largest."""

    task: int
    used_mb: int


def excess(members: Mapping[int, Iterable[int]], limit_mb: int) -> Excess | None:
    """Compare the memory of the processes, given by task, with `limit_mb`; None if they are within it.

    A page that forked processes share counts once. The slow measure that ensures this is taken only if the quick
    one, which counts it once per process, exceeds the limit.
    """
    for measure in (resident_mb, proportional_mb):
        sizes = {task: measure(pids) for task, pids in members.items()}
        used_mb = sum(sizes.values())
        if used_mb <= limit_mb:
            return None
    return Excess(max(sizes, key=lambda task: sizes[task]), used_mb)


class TaskCgroup:
    """The cgroup of an executor's tasks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kills = 0

    @classmethod
    def make(cls, lock: Path, limit_mb: int, root: Path = _ROOT) -> TaskCgroup | None:
        """Create the cgroup of the executor with that lock file, below or beside this process's; None if not permitted.

        It is limited to `limit_mb`.
        """
        for parent in _parents(root):
            cgroup = cls(parent / _name(lock))
            with contextlib.suppress(OSError):
                cgroup._path.mkdir(exist_ok=True)
                if (cgroup._path / "memory.max").exists():
                    (cgroup._path / "memory.max").write_text(str(limit_mb * 1024 * 1024))
                    return cgroup
            cgroup.remove()
        return None

    def add(self, pid: int) -> None:
        """Move a task's process into the cgroup; its children follow."""
        with contextlib.suppress(OSError):
            (self._path / "cgroup.procs").write_text(str(pid))

    def has_killed(self) -> bool:
        """Whether the kernel has killed a process for its memory since the last call."""
        kills = 0
        with contextlib.suppress(OSError):
            counts = dict(line.split() for line in (self._path / "memory.events").read_text().splitlines())
            kills = int(counts.get("oom_kill", 0))
        more, self._kills = kills > self._kills, kills
        return more

    def remove(self) -> None:
        """Remove the cgroup, unless a process is still in it."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


def remove_cgroups(lock: Path, root: Path = _ROOT) -> None:
    """Remove the cgroup of an executor that was killed; `lock` is its lock file."""
    for parent in _parents(root):
        TaskCgroup(parent / _name(lock)).remove()


def _name(lock: Path) -> str:
    """The name of an executor's cgroup. Clusters that share a machine may have executors of the same id."""
    return f"fairlog-{lock.stem}-{sha256(bytes(lock)).hexdigest()[:12]}"


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
