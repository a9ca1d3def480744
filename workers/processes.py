"""Processes: identity, descendants, signals and memory.

On Linux, descendants are read from `/proc/PID/task`; psutil, used elsewhere, would scan every process of the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from scheduler.model.text import of_bytes

_PR_SET_CHILD_SUBREAPER = 36
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_LINUX = sys.platform == "linux"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024
_ENVIRONMENT_BYTES = 1 << 18
_SAME_START_S = 2.0
"""Tolerance for start times: they follow the system clock, which may have been adjusted."""


class Wakeup:
    """Waits that SIGCHLD or SIGTERM end early. SIGTERM calls `on_term`, without which it is ignored, as is SIGINT.

    Create it in the main thread, at most one per process.
    """

    def __init__(self, on_term: Callable[[], object] | None = None) -> None:
        self.signalled = False
        """Whether a signal ended the last wait."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if on_term is None else lambda *_: on_term())
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait(self, timeout_s: float | None, *others: int) -> list[int]:
        """Wait for a signal or for data on one of the descriptors `others`. Returns the ready ones of `others`."""
        ready: list[int] = select.select([self._reader, *others], [], [], timeout_s)[0]
        self.signalled = self._reader in ready
        if self.signalled:
            os.read(self._reader, 4096)
        return [descriptor for descriptor in ready if descriptor != self._reader]

    def close(self) -> None:
        """Restore the default action of SIGCHLD and SIGTERM, as a forked child needs it."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.close(self._reader)
        os.close(self._writer)


def started_s(pid: int) -> float | None:
    """The start time of process `pid`, in seconds since the epoch; None if it has ended, zombies included."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def is_same_process(pid: int, since_s: float) -> bool:
    """Whether `pid` is running and was started at `since_s`, so that a reused process id is not mistaken for it."""
    started = started_s(pid)
    return started is not None and abs(started - since_s) < _SAME_START_S


def leave_keyring() -> None:
    """Have no keys of the session, which processes inherit. A kernel or container may have no keys at all."""
    number = _KEYCTL.get(platform.machine()) if _LINUX else None
    if number is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


def become_subreaper() -> None:
    """Adopt orphaned descendants instead of leaving them to init. Linux only."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The direct children of `pid`, zombies included; empty if `pid` is gone."""
    try:
        if not _LINUX:
            return [child.pid for child in psutil.Process(pid).children()]
        found: list[int] = []
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - several times as fast
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as listed:  # noqa: PTH123
                found += map(int, listed.read().split())
    except (OSError, psutil.Error):
        return []
    else:
        return found


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents before their children."""
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def in_session(session: int) -> list[int]:
    """The processes of a session, whatever their parents."""
    found: list[int] = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


def with_variable(name: str, value: str) -> list[int]:
    """The processes of this machine whose initial environment has `name` set to `value`."""
    return [pid for pid in psutil.pids() if environment_value(pid, name) == value]


def reaped() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended: process id and wait status of each."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send `number` to each of `pids`; skips ended processes, processes of other users, and 0 (pid not known)."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid > 0:
                os.kill(pid, number)


def kill_until_gone(find: Callable[[], Iterable[int]], *, timeout_s: float = 5) -> bool:
    """Kill what `find` returns until it returns no running process: what it finds may fork meanwhile.

    Returns False after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        living = [pid for pid in find() if started_s(pid) is not None]
        if not living:
            return True
        if time.monotonic() > deadline:
            return False
        send_signal(living, signal.SIGKILL)
        time.sleep(0.005)


def environment_value(pid: int, name: str) -> str | None:
    """The value of `name` in the initial environment of `pid`; None if unset or unreadable.

    A process may say that its environment is terabytes long: of a longer one only the beginning counts.
    """
    try:
        if not _LINUX:
            return psutil.Process(pid).environ().get(name)
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered
            block = file.read(_ENVIRONMENT_BYTES) or b""
    except (psutil.Error, OSError):
        return None
    start = f"{name}=".encode()
    found = next((each for each in block.split(b"\0") if each.startswith(start)), None)
    return None if found is None else of_bytes(found[len(start) :])


def resident_mb(pids: Iterable[int]) -> int:
    """Resident memory of `pids` in MiB; a shared page counts once per process."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, psutil.Error, ValueError, IndexError):
            if _LINUX:
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
            else:
                total += psutil.Process(pid).memory_info().rss
    return total // _MIB


def proportional_mb(pids: Iterable[int]) -> int:
    """Memory of `pids` in MiB, a shared page divided among the processes that map it; slower than `resident_mb`.

    A process that does not let us see that counts with its resident memory.
    """
    total = 0
    for pid in pids:
        try:
            memory = psutil.Process(pid).memory_full_info()
            total += getattr(memory, "pss", memory.uss)
        except (OSError, psutil.Error):
            total += resident_mb([pid]) * _MIB
    return total // _MIB
