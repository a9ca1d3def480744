"""Signals that a program passes on to the processes that it starts."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from subprocess import Popen


def run(words: Sequence[str], env: Mapping[str, str], numbers: Iterable[int]) -> int:
    """The exit code of a program that gets these signals, below 0 if one ended it. Raises: OSError."""
    signals = PassedOn()
    signals.listen(numbers)
    with Popen(words, env=env) as process:  # noqa: S603 (what was asked for)
        signals.processes.append(process)
        signals.all_have_begun()
        return process.wait()


class PassedOn:
    """Passes signals on to `processes`: those that come before all of these have begun, once they have.

    A process may ask for a signal before the one that starts it knows that it runs.
    """

    def __init__(self) -> None:
        self.processes: list[Popen[bytes]] = []
        self._come: list[int] = []
        self._have_begun = False

    def listen(self, numbers: Iterable[int]) -> None:
        """Hear these signals from now on, before any process is started."""
        for number in numbers:
            signal.signal(number, self._hear)

    def all_have_begun(self) -> None:
        """Pass on what came, and from now on each signal at once."""
        self._have_begun = True
        while self._come:
            self.send(self._come.pop(0))

    def send(self, number: int) -> None:
        """Send the signal to those that have not ended."""
        for process in self.processes:
            if process.returncode is None:
                process.send_signal(number)

    def _hear(self, number: int, _: object) -> None:
        if self._have_begun:
            self.send(number)
        else:
            self._come.append(number)
