"""Processes and their descendants: who they are, and signals that reach all of them.

Linux answers from `/proc` without scanning every process of the machine; elsewhere psutil does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024
_SAME_START_S = 2.0
"""A process's start is told by the machine's clock, which may have been set meanwhile."""


def started_s(pid: int) -> float | None:
    """When the process was started, in seconds since the epoch; None if it has ended."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def is_same_process(pid: int, since_s: float) -> bool:
    """Whether the process `pid` that was started at `since_s` still runs, and not another one under its number."""
    started = started_s(pid)
    return started is not None and abs(started - since_s) < _SAME_START_S


def become_subreaper() -> None:
    """Orphans among the descendants become children of this process instead of leaving its tree."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The direct children of `pid`, ended ones that nobody has waited for included; none if it is gone."""
    try:
        if not _LINUX:
            return [child.pid for child in psutil.Process(pid).children()]
        found: list[int] = []
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    except (OSError, psutil.Error):
        return []
    else:
        return found


def descendants(pid: int) -> list[int]:
    """All that `pid` has started and that is still below it, parents before their children."""
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def in_session(session: int) -> list[int]:
    """The processes of a session, whoever their parents are now."""
    found: list[int] = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


def with_variable(name: str, value: str) -> list[int]:
    """The processes whose environment says so, wherever they are; it looks at every process of the machine."""
    return [pid for pid in psutil.pids() if environment_value(pid, name) == value]


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send `number` to every one of `pids` that is still there and may be signalled; 0, "not known", is nobody."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid > 0:
                os.kill(pid, number)


def kill_until_gone(find: Callable[[], Iterable[int]], *, patience_s: float = 5) -> bool:
    """Kill what `find` finds, again and again, since it may still fork; whether nothing is left of it."""
    deadline = time.monotonic() + patience_s
    while True:
        living = [pid for pid in find() if not is_zombie(pid)]
        if not living:
            return True
        if time.monotonic() > deadline:
            return False
        send_signal(living, signal.SIGKILL)
        time.sleep(0.005)


def is_zombie(pid: int) -> bool:
    """Whether `pid` has ended, waited for or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def environment_value(pid: int, name: str) -> str | None:
    """What `name` was in the environment that `pid` was started with; None if unset or unreadable."""
    try:
        return psutil.Process(pid).environ().get(name)
    except (psutil.Error, OSError):
        return None


def resident_mb(pids: Iterable[int]) -> int:
    """Resident memory of `pids` in MiB, pages that they share counted once for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, psutil.Error, ValueError, IndexError):
            if _LINUX:
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
            else:
                total += psutil.Process(pid).memory_info().rss
    return total // _MIB


def proportional_mb(pids: Iterable[int]) -> int:
    """Memory of `pids` in MiB, each shared page divided among those who share it; dearer than `resident_mb`."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, psutil.Error):
            memory = psutil.Process(pid).memory_full_info()
            total += getattr(memory, "pss", memory.uss)
    return total // _MIB
