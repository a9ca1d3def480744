"""Several agents on one node, a process each: started again when they die, told to stop together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from scheduler.service.notify import ALIVE, READY, SOCKET_VARIABLE, STOPPING, notify
from workers.processes import send_signal

_LOOK_S = 0.2
_REFUSED = 1


class Several:
    """One process for each of `commands`; the service manager hears of this process alone."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._processes: list[subprocess.Popen[bytes]] = []
        self._told: list[int] = []
        self._stopped = False
        self._environment = {name: value for name, value in os.environ.items() if name != SOCKET_VARIABLE}

    def run(self) -> None:
        """Return once all have ended: on SIGTERM or SIGINT, each of which is passed on, or since one was refused.

        Raises: SystemExit in the latter case.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._processes = [self._start(command) for command in self._commands]
        notify(READY)
        refused = False
        while not (self._stopped or refused):
            notify(ALIVE)
            time.sleep(_LOOK_S)
            refused = self._tend()
        notify(STOPPING)
        send_signal([process.pid for process in self._processes if process.pid not in self._told], signal.SIGTERM)
        while any(process.poll() is None for process in self._processes):
            time.sleep(_LOOK_S)
        if refused:
            sys.exit(_REFUSED)

    def _tend(self) -> bool:
        """Start again what has died; whether one was refused."""
        for place, process in enumerate(self._processes):
            if process.poll() == _REFUSED:
                return True
            if process.returncode is not None and not self._stopped:
                self._processes[place] = self._start(self._commands[place])
        return False

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=self._environment)  # noqa: S603 - our own interpreter and module

    def _stop(self, *_: object) -> None:
        self._stopped = True
        self._told = [process.pid for process in self._processes if process.returncode is None]
        send_signal(self._told, signal.SIGTERM)
