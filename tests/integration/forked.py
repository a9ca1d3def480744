"""Programs of ours as processes forked from one that has loaded them, which spares each of them the loading."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import TimeoutExpired

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["recovery.failover.master", "workers.agent", __name__])


class Forked:
    """`program`, run with this command line and what the environment has more; what it prints goes to the end of `log`.

    To be used like a `subprocess.Popen`.
    """

    def __init__(
        self, program: Callable[[], None], *arguments: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = _CONTEXT.Process(target=_live, args=(program, arguments, log, dict(environment or {})))
        self._process.start()
        self.pid = self._process.pid or 0
        self.kill = self._process.kill
        self.terminate = self._process.terminate

    def poll(self) -> int | None:
        """What it has exited with, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """What it exits with, waited for.

        Raises: TimeoutExpired.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutExpired(self._process.name, timeout or 0)
        return code


def _live(program: Callable[[], None], arguments: tuple[str, ...], log: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with log.open("ab") as file:
        for output in (1, 2):
            os.dup2(file.fileno(), output)
    sys.argv[1:] = arguments
    program()
