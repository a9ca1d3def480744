"""Control groups (version 2) of executors' tasks: limits that the kernel keeps, and an end that nothing escapes.

Each executor has a leaf below the agent's group, where this process may make groups: systemd has delegated its group
(`Delegate=yes`), or it runs as root. Where the kernel gives a controller only to version 1, groups of version 2 still
end their processes together, but do not limit them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

AGENT = "fairlog-agent"
"""The group of the agent's own processes, beside those of its executors: a group with controllers has no processes."""
MOST_PROCESSES = 4096
"""How many processes an executor's tasks may have."""
_CONTROLLERS = ("memory", "cpu", "pids")
_PERIOD_US = 100_000
_END_S = 5.0
_POLL_S = 0.002


class ExecutorGroup:
    """The group of one executor's tasks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kills = 0

    def limit(self, memory_mb: int, cores: int) -> None:
        """Set the limits that its controllers have."""
        limits = {
            "memory.max": str(memory_mb * 1024 * 1024),
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "cpu.max": f"{cores * _PERIOD_US} {_PERIOD_US}",
            "pids.max": str(MOST_PROCESSES),
        }
        for name, value in limits.items():
            if (self.path / name).exists():
                self._write(name, value)

    def enter(self) -> None:
        """Move this process into it. Raises: OSError."""
        (self.path / "cgroup.procs").write_text("0")

    def has_memory_limit(self) -> bool:
        """Whether the kernel keeps its memory limit."""
        return (self.path / "memory.max").exists()

    def has_killed(self) -> bool:
        """Whether the kernel has killed its processes for their memory since the last call."""
        kills = int(self._events("memory.events").get("oom_kill", 0))
        more, self._kills = kills > self._kills, kills
        return more

    def cpu_ms(self) -> int:
        """The CPU time that its processes have used, those that ended included; 0 if it is not known."""
        return int(self._events("cpu.stat").get("usage_usec", 0)) // 1000

    def end(self) -> bool:
        """Kill all its processes and remove it. False if some still run after 5 s."""
        deadline_s = time.monotonic() + _END_S
        while self.path.exists():
            with contextlib.suppress(OSError):
                self._write("cgroup.kill", "1")
            if self._events("cgroup.events").get("populated") == "0":
                with contextlib.suppress(OSError):
                    self.path.rmdir()
                    break
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    def _write(self, name: str, value: str) -> None:
        with (self.path / name).open("w") as file:
            file.write(value)

    def _events(self, name: str) -> dict[str, str]:
        try:
            return dict(line.split() for line in (self.path / name).read_text().splitlines())
        except (OSError, ValueError):
            return {}


def make_leaf(lock: Path, memory_mb: int, cores: int) -> ExecutorGroup | None:
    """Create the group of the executor with that lock file, with its limits; None where that is not permitted."""
    base = base_group()
    if base is None:
        return None
    path = base / _name(lock)
    with contextlib.suppress(OSError):
        path.mkdir(exist_ok=True)
        leaf = ExecutorGroup(path)
        leaf.limit(memory_mb, cores)
        return leaf
    with contextlib.suppress(OSError):
        path.rmdir()
    return None


def can_make_groups() -> bool:
    """Whether this process can make a group for an executor."""
    base = base_group()
    if base is None:
        return False
    path = base / f"fairlog-tried-{os.getpid()}"
    try:
        path.mkdir(exist_ok=True)
        path.rmdir()
    except OSError:
        return False
    return True


def end_leaf(lock: Path) -> bool:
    """Kill what is left in the group of the executor with that lock file. False if something still runs after 5 s."""
    base = base_group()
    return base is None or ExecutorGroup(base / _name(lock)).end()


def base_group(mounts: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The group in which this process may make others; None if there is none."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
        mount = next(Path(fields[4]) for fields in lines if fields[fields.index("-") + 1] == "cgroup2")
        inside = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    here = mount / inside.strip("/")
    here = here.parent if here.name == AGENT else here
    return here if _is_ours(here, is_root=here == mount) else None


def delegate(running: Iterable[tuple[Path, int, int]] = ()) -> None:
    """Have the controllers of this process's group limit the groups below it, where that is permitted.

    Its processes move into a group of their own. The groups of `running` executors, lock file, MiB and cores of each,
    get their limits again: they lose them where the service manager must take the controllers away to start this.
    """
    base = base_group()
    if base is None:
        return
    with contextlib.suppress(OSError):
        wanted = [name for name in _CONTROLLERS if name in (base / "cgroup.controllers").read_text().split()]
        enable = " ".join(f"+{name}" for name in wanted)
        try:
            (base / "cgroup.subtree_control").write_text(enable)
        except OSError:  # it has processes
            (base / AGENT).mkdir(exist_ok=True)
            for pid in (base / "cgroup.procs").read_text().split():
                (base / AGENT / "cgroup.procs").write_text(pid)
            (base / "cgroup.subtree_control").write_text(enable)
        for lock, memory_mb, cores in running:
            ExecutorGroup(base / _name(lock)).limit(memory_mb, cores)


def limits_in_force() -> list[str]:
    """Which of memory, cpu, pids and kill the kernel keeps for executors."""
    return _limits("cgroup.subtree_control")


def limits_to_be_had() -> list[str]:
    """Which of them it would keep for the executors of an agent in this process's group."""
    return _limits("cgroup.controllers")


def controllers_of_version_1(mounts: Path = Path("/proc/self/mountinfo")) -> set[str]:
    """The controllers that this machine gives to version 1, so that no group of version 2 can have them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ends = [line.split(" - ", 1)[1].split() for line in mounts.read_text().splitlines()]
        return {name for kind, _, options in ends if kind == "cgroup" for name in options.split(",")}
    return set()


def _limits(listed: str) -> list[str]:
    base = base_group()
    if base is None:
        return []
    with contextlib.suppress(OSError):
        controllers = (base / listed).read_text().split()
        return [*(name for name in _CONTROLLERS if name in controllers), "kill"]
    return []


def _is_ours(group: Path, *, is_root: bool) -> bool:
    """Whether groups may be made in it. Root may make them anywhere, and does where systemd says that they are ours."""
    if not os.access(group, os.W_OK) or not os.access(group / "cgroup.procs", os.W_OK):
        return False
    if os.geteuid() or is_root:
        return True
    with contextlib.suppress(OSError):
        return any(name in {"user.delegate", "trusted.delegate"} for name in os.listxattr(group))
    return False


def _name(lock: Path) -> str:
    """The name of an executor's group. Clusters that share a machine may have executors of the same id."""
    return f"fairlog-{lock.stem[:100]}-{sha256(bytes(lock)).hexdigest()[:12]}"
