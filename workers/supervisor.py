"""The supervisor of several agents on one node: restarts those that die, stops all together."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

import structlog

from scheduler.service.child import Child
from scheduler.service.notify import ALIVE, READY, STOPPING, notify

REFUSED = os.EX_CONFIG
"""Exit code of an agent that was refused: a restart would be refused again."""
_LOOK_S = 0.2
_log = structlog.get_logger()


class Supervisor:
    """Runs each of `programs` in a fork of this process."""

    def __init__(self, programs: Sequence[Callable[[], object]]) -> None:
        self._children = [Child(f"agent {number}", program, cwd=None) for number, program in enumerate(programs, 1)]
        self._asked: list[int | None] = []
        self._stopped = False

    def run(self) -> None:
        """Run until all agents have ended, because SIGTERM or SIGINT was passed on to them or one was refused.

        Raises: SystemExit with code 1 if one was refused.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for child in self._children:
            child.start()
        notify(READY)
        refused = False
        while not (self._stopped or refused):
            notify(ALIVE)
            time.sleep(_LOOK_S)
            refused = any(child.exit_code == REFUSED for child in self._children)
            for child in () if self._stopped or refused else self._children:
                if (ended := child.tend()) is not None:
                    _log.warning(ended)
        notify(STOPPING)
        for child in self._children:
            if child.pid not in self._asked:  # a second SIGTERM would end a drain
                child.ask_to_stop()
        for child in self._children:
            child.wait()
        if refused:
            sys.exit(1)

    def _stop(self, *_: object) -> None:
        self._stopped = True
        self._asked = [child.pid for child in self._children]
        for child in self._children:
            child.ask_to_stop()
