"""Our programs as processes forked from one that has their modules loaded: starting one takes milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired

from fairlog.cli.main import VERBS

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("recovery.failover.master", "workers.agent", "scheduler.model.errors", __name__),
        *sorted({f"fairlog.cli.verbs.{module}" for module, _ in VERBS.values()}),
    ]
)
_NOTHING = Path(os.devnull)


class Forked:
    """`program` as a process with this command line, environment and working folder; used like a `subprocess.Popen`.

    It reads standard input from the file `given`, and appends its output to `log`, its errors to `errors` or `log`.
    """

    def __init__(
        self,
        program: Callable[[], None],
        *arguments: str,
        environment: Mapping[str, str],
        log: Path,
        errors: Path | None = None,
        given: Path = _NOTHING,
        folder: Path | None = None,
    ) -> None:
        streams = given, log, errors or log
        self._process = _CONTEXT.Process(
            target=_live, args=(program, arguments, dict(environment), streams, folder or Path.cwd())
        )
        self._process.start()
        self.pid = self._process.pid or 0
        self.kill = self._process.kill
        self.terminate = self._process.terminate

    def poll(self) -> int | None:
        """The exit code, None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the process has ended.

        Raises: TimeoutExpired.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutExpired(self._process.name, timeout or 0)
        return code


def forked_elsewhere(program: Callable[[], object], *, log: Path, keep: int) -> Forked:
    """In place of `scheduler.service.child.Forked`, for a test's own process: it is large and may have threads.

    The socket `keep` is an argument of `program`, which takes it along.
    """
    assert keep > 2
    return Forked(partial(_lead, program), environment=os.environ, log=log)


def _lead(program: Callable[[], object]) -> None:
    os.setsid()
    program()


def _live(
    program: Callable[[], None],
    arguments: tuple[str, ...],
    environment: dict[str, str],
    streams: tuple[Path, Path, Path],
    folder: Path,
) -> None:
    for number, path in enumerate(streams):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - likewise
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    program()
