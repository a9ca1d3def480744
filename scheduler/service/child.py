"""Child processes: started, started again when they end, and ended with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SHORT_LIFE_S = 5.0
"""A process that lived shorter than this is started again with a growing pause."""
PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
KEPT_FAILURES = 10
_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1
_LINUX = sys.platform == "linux"
_OURS = Path(__file__).parents[2]
"""The folder of our packages. `python -m` looks into the current folder first, which may hold another `scheduler`."""
_EXEC_WITH_PARENT = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGTERM)
parent, program = int(sys.argv[1]), sys.argv[2]
try:
    if os.getppid() == parent:
        os.execv(program, sys.argv[2:])
except OSError as error:
    sys.exit(f"{{program}} does not start: {{error.strerror}}")
"""
"""`die_with_parent` for a program that is not ours: the setting survives exec."""


def die_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Have this process get the signal `number` when its parent, process `parent`, dies; now if it is dead.

    Linux sends it when the *thread* ends that started this process; elsewhere a thread looks twice a second.
    """
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent, number), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def dies_with_us(program: Sequence[str]) -> list[str]:
    """The command line that runs `program`, which gets SIGTERM when this process dies. Linux only: elsewhere as it is.

    `program` begins with an absolute path.
    """
    if not _LINUX:
        return list(program)
    return [sys.executable, "-I", "-S", "-c", _EXEC_WITH_PARENT, str(os.getpid()), *program]


def run_module(module: str) -> list[str]:
    """The first words of a command line that runs our own `module`, whatever the current folder holds."""
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-P", "-c", f"import runpy, sys; sys.path.insert(0, {str(_OURS)!r}); {run}"]


class Child:
    """A process that `tend` starts again whenever it has ended, after a growing pause if it keeps ending soon.

    Its output is appended to `log`; without one it goes where ours goes. `failures` holds its last words for each
    of the last times that it ended with a positive exit code. It runs in a session of its own, so a terminal's
    Ctrl-C reaches only the process that started it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path | None = None,
        *,
        cwd: Path | None = _OURS,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._cwd = cwd
        self._environment = environment
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._short_lives = 0
        self._start_at_s = 0.0
        self.failures: list[str] = []

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that has ended and that `tend` has not noticed yet."""
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        """Start it."""
        output = None if self.log is None else self.log.open("ab")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own programs
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._cwd,
                env=self._environment,
                pass_fds=self._pass_fds,
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()
        self._started_s = time.monotonic()

    def tend(self) -> str | None:
        """Start it again if it has ended and its pause is over; a sentence each time it has ended."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._start_at_s:
                self.start()
            return None
        code = self._process.poll()
        if code is None:
            return None
        self._process = None
        self._short_lives = self._short_lives + 1 if now - self._started_s < SHORT_LIFE_S else 0
        pause_s = PAUSES_S[min(self._short_lives, len(PAUSES_S) - 1)]
        self._start_at_s = now + pause_s
        words = self.last_words()
        if code > 0:
            self.failures = [*self.failures, words][-KEPT_FAILURES:]
        return f"{self.name} {_ending(code, words)}; starting it again{f' in {pause_s:g} s' if pause_s else ''}"

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, deadline: float | None = None) -> None:
        """Return once it has ended; at `deadline` (monotonic, s) it is killed."""
        if self._process is None:
            return
        try:
            self._process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The last line of its log; empty without a log."""
        if self.log is None:
            return ""
        lines = self.log.read_bytes()[-4096:].decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), f"see {self.log}")
        return last.removeprefix("Error: ")


def _ending(code: int, words: str) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}{f' ({words})' if code and words else ''}"


def _watch(parent: int, number: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), number)
