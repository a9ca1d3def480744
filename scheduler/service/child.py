"""Child processes: start them, restart them when they end, and end them with this process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

SHORT_LIFE_S = 5.0
"""A process that ended sooner is restarted after a growing pause."""
PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
KEPT_FAILURES = 10
_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1
_LINUX = sys.platform == "linux"
_OURS = Path(__file__).parents[2]
"""The folder of our packages. `python -m` would look into the current folder first."""
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
"""`die_with_parent` for another program: the setting survives exec."""


def die_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process the signal `number` when its parent, process `parent`, dies, or now if it is dead.

    Linux does so when the *thread* ends that started this process; elsewhere a thread checks twice a second.
    """
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent, number), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def dies_with_us(program: Sequence[str]) -> list[str]:
    """The command line that runs `program`, an absolute path and arguments; on Linux it dies with us (SIGTERM)."""
    if not _LINUX:
        return list(program)
    return [sys.executable, "-I", "-S", "-c", _EXEC_WITH_PARENT, str(os.getpid()), *program]


def run_module(module: str) -> list[str]:
    """The start of a command line that runs our `module`, whatever the current folder holds."""
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-P", "-c", f"import runpy, sys; sys.path.insert(0, {str(_OURS)!r}); {run}"]


@dataclass(eq=False)
class Child:
    """A process that `tend` restarts whenever it has ended, after a growing pause if it keeps ending soon.

    Its output is appended to `log`, or inherited without one. `failures` holds the last line of output of its last
    ends with a positive exit code. It runs in its own session, so a terminal's Ctrl-C does not reach it.
    """

    name: str
    command: Sequence[str]
    log: Path | None = None
    _: KW_ONLY
    cwd: Path | None = _OURS
    environment: Mapping[str, str] | None = None
    pass_fds: Sequence[int] = ()
    failures: list[str] = field(default_factory=list, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _started_s: float = field(default=0.0, init=False)
    _short_lives: int = field(default=0, init=False)
    _start_at_s: float = field(default=0.0, init=False)

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """The exit code, if it has ended and `tend` has not noticed."""
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        """Start it."""
        output = None if self.log is None else self.log.open("ab")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own programs
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.cwd,
                env=self.environment,
                pass_fds=self.pass_fds,
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()
        self._started_s = time.monotonic()

    def tend(self) -> str | None:
        """Restart it if it has ended and its pause is over. Returns a sentence when it has ended."""
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
        """Wait for its end; kill it at `deadline` (monotonic, s)."""
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
