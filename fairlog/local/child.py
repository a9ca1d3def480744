"""One process of `up`'s: started again whenever it ends, with a pause that grows if it ends soon."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

SHORT_LIFE_S = 5.0
"""A process that lived shorter than this is started again with a growing pause."""
PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
KEPT_FAILURES = 10
_OURS = Path(__file__).parents[2]
"""Where our packages lie. `python -m` looks into the current folder first, which may hold a `scheduler` of its own."""


class Child:
    """A process that is started again whenever it ends; its output goes to the end of `log`.

    `failures`: its last words each time that it ended with an exit code that says so.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._short_lives = 0
        self.failures: list[str] = []
        self._start_at_s = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    def start(self) -> None:
        """Start it. Its session is its own, so that a terminal's Ctrl-C reaches only the one that runs the tree."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=_OURS, start_new_session=True
            )
        self._started_s = time.monotonic()

    def tend(self) -> str | None:
        """Start it again if it has ended and its pause is over; a sentence whenever it has ended."""
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
        return f"{self.name} {ending(code, words)}; starting it again{f' in {pause_s:g} s' if pause_s else ''}"

    def has_ended(self) -> bool:
        """Whether it was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, deadline: float) -> None:
        """Return once it has ended; it is killed at `deadline`."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The last line that it has printed."""
        lines = self.log.read_bytes()[-4096:].decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), f"see {self.log}")
        return last.removeprefix("Error: ")


def ending(code: int, words: str) -> str:
    """How a process has ended that returned `code`, with its last words where it has failed."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}{f' ({words})' if code else ''}"
