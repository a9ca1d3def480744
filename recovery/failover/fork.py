"""Work that a forked process does, with all that this one has at that moment."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable


class Fork:
    """A process that has all that this one has at the moment of the fork, does `work` and exits with its result.

    It is as nice as `niceness` says, and ends after `at_most_s` seconds, if that is not 0.
    """

    def __init__(self, work: Callable[[], int], *, niceness: int = 0, at_most_s: int = 0) -> None:
        self._pid = os.fork()
        if self._pid:
            return
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(at_most_s)
            gc.disable()
            os.nice(niceness)
            code = work()
        finally:
            os._exit(code)

    def exit_code(self) -> int | None:
        """What it has exited with, None while it is at work; to be asked until it says."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def wait(self) -> int:
        """What it exits with, once it has."""
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def kill(self) -> None:
        """End it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
