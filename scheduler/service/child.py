"""Child processes: start them, restart them when they end, and end them with this process."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NoReturn

from scheduler.service.lossy import is_full
from scheduler.service.private import private_file

SHORT_LIFE_S = 5.0
"""A process that ended sooner is restarted after a growing pause."""
PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
KEPT_FAILURES = 10
_LOOK_S = 0.5
_POLL_S = 0.005
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


class Forked:
    """`program` as a process forked from this one, unless told otherwise in its own session; used like a `Popen`.

    It has the modules that this process has loaded, so it starts in milliseconds. It shares the environment, but no
    signal handler, and no descriptor except `keep`. Its output is appended to `log`, or inherited without one. Fork
    only from a process with one thread.

    Raises: OSError.
    """

    def __init__(
        self,
        program: Callable[[], object],
        *,
        log: Path | None = None,
        keep: int = 2,
        cwd: Path | None = None,
        own_session: bool = True,
    ) -> None:
        self.returncode: int | None = None
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        output = None if log is None else os.fdopen(private_file(log), "ab")
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if not self.pid:
                if own_session:
                    os.setsid()
                _live(program, mask, None if output is None else output.fileno(), keep, cwd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if output is not None:
                output.close()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises: subprocess.TimeoutExpired."""
        began_s = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > began_s + timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _live(
    program: Callable[[], object], mask: Collection[int], output: int | None, keep: int, cwd: Path | None
) -> NoReturn:
    """Turn the forked child into `program`.

    Nothing of the parent's is unwound or collected: it would close descriptors by their numbers.
    """
    code = -1
    try:
        gc.freeze()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        os.closerange(3, keep)
        os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
        if cwd is not None:
            os.chdir(cwd)
        program()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        try:
            if code < 0:
                traceback.print_exc()
            sys.stdout.flush()
        finally:
            os._exit(code if code >= 0 else 1)


@dataclass(eq=False)
class Child:
    """A process that `tend` restarts whenever it has ended, after a growing pause if it keeps ending soon.

    `command` is a command line, or a function to run in a fork of this process, with its environment. Its output is
    appended to `log`, or inherited without one. `failures` holds the last line of output of its last ends with a
    positive exit code. It runs in its own session, so a terminal's Ctrl-C does not reach it.
    """

    name: str
    command: Sequence[str] | Callable[[], object]
    log: Path | None = None
    _: KW_ONLY
    cwd: Path | None = _OURS
    environment: Mapping[str, str] | None = None
    pass_fds: Sequence[int] = ()
    umask: int = -1
    """The umask of a command line; -1 = that of this process."""
    failures: list[str] = field(default_factory=list, init=False)
    _process: subprocess.Popen[bytes] | Forked | None = field(default=None, init=False)
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
        self._started_s = time.monotonic()
        if callable(self.command):
            self._process = Forked(self.command, log=self.log, cwd=self.cwd)
            return
        output = None if self.log is None else os.fdopen(private_file(self.log), "ab")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own programs
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.cwd,
                env=self.environment,
                pass_fds=self.pass_fds,
                umask=self.umask,
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()

    def tend(self) -> str | None:
        """Restart it if it has ended and its pause is over. Returns a sentence when it has ended."""
        now = time.monotonic()
        if self._process is None:
            return self._start_again(now) if now >= self._start_at_s else None
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

    def _start_again(self, now: float) -> str | None:
        """Start it; a sentence if this machine cannot now, as without memory for it or space for its log."""
        try:
            self.start()
        except OSError as error:
            self._start_at_s = now + PAUSES_S[-1]
            return f"{self.name} cannot be started ({error.strerror}); starting it again in {PAUSES_S[-1]:g} s"
        return None

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, deadline: float | None = None) -> None:
        """Wait for its end; kill it at `deadline` (monotonic, s)."""
        if self._process is None:
            return
        try:
            self._process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def last_words(self) -> str:
        """The last line of its log, or that it has no room for one; empty without a log."""
        if self.log is None:
            return ""
        if is_full(self.log.parent):
            return f"the disk of {self.log} is full"
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
