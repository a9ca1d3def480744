"""One task: a program run once, with its environment, its log file and the end it comes to.

Exit codes are those of shells: what the program returned, or 128 + the signal that ended it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from scheduler.model.errors import FairlogError
from scheduler.model.grants import Grant
from scheduler.store.task_queue import OUTPUT_BYTES, Begun, Completion, Outcome
from workers.processes import descendants, send_signal
from workers.rundir import RunDir

INDEX_VARIABLE = "FAIRLOG_TASK_INDEX"
EXECUTOR_VARIABLE = "FAIRLOG_EXECUTOR_ID"
DRIVER_VARIABLE = "FAIRLOG_DRIVER_ID"
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELIBBAD, errno.E2BIG, errno.ENAMETOOLONG)
"""Errors that another attempt would meet again."""


def run(app: str, task: int) -> None:
    """What a task's RQ job names as its function. Only an executor runs tasks, by reading the job's id.

    Raises: FairlogError, always: it was called by an RQ worker that is not ours.
    """
    raise FairlogError(f"task {task} of {app!r} can be run only by executors of fairlog, not by other RQ workers")


def task_environment(grant: Grant, secrets: Mapping[str, str]) -> dict[str, str]:
    """What every task of an executor finds in its environment, except for its own index.

    The submitter's variables stand above the machine's, ours above both. A driver finds its id beside them.
    """
    machine = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("LC_")}
    return {
        "PATH": _PATH,
        **machine,
        **secrets,
        "FAIRLOG_TASK_COUNT": str(grant.tasks),
        "FAIRLOG_APP_ID": grant.app,
        EXECUTOR_VARIABLE: grant.executor,
        "FAIRLOG_CORES": str(grant.cores),
        "FAIRLOG_MEMORY_MB": str(grant.memory_mb),
        **({DRIVER_VARIABLE: grant.executor} if grant.role == "driver" else {}),
    }


class Task:
    """A task under way, or a driver; `why` is the sentence that says why it was stopped, if it was."""

    def __init__(
        self, begun: Begun, process: subprocess.Popen[bytes], log: int, log_start: int, *, is_driver: bool = False
    ) -> None:
        self.index = begun.task
        self.name = "its driver" if is_driver else f"task {self.index}"
        self.attempt = begun.attempt
        self.process = process
        self.began_s = time.monotonic()
        self.kill_at_s: float | None = None
        self.why = ""
        self._log = log
        self._log_start = log_start
        self._shown = log_start

    def tail(self) -> bytes:
        """The last 64 KiB that this attempt has printed."""
        size = os.fstat(self._log).st_size
        self._shown = size
        first = max(self._log_start, size - OUTPUT_BYTES)
        return os.pread(self._log, size - first, first) if size > first else b""

    def has_news(self) -> bool:
        """Whether it has printed anything since `tail` was asked last."""
        return os.fstat(self._log).st_size != self._shown

    def terminate(self, why: str, grace_s: float) -> None:
        """Ask its processes to end because of `why`; whoever runs it kills them after the grace period."""
        self.why = why
        self.kill_at_s = time.monotonic() + grace_s
        pid = self.process.pid
        send_signal([pid, *descendants(pid)], signal.SIGTERM)

    def kill(self, why: str = "") -> None:
        """Kill all its processes now."""
        self.why = self.why or why
        self.kill_at_s = time.monotonic() + 0.2
        pid = self.process.pid
        send_signal([pid, *descendants(pid)], signal.SIGKILL)

    def end(self, status: int) -> Completion:
        """What the task came to, `status` being what waiting for it gave; its files are closed."""
        returned = os.waitstatus_to_exitcode(status)
        self.process.returncode = returned
        exit_code = returned if returned >= 0 else 128 - returned
        outcome: Outcome = "failed" if exit_code or self.why else "succeeded"
        message = self.why
        if not message and returned < 0:
            message = f"{self.name} was ended by {signal_name(-returned)}"
        elif not message and returned:
            message = f"{self.name} ended with exit code {returned}"
        if self.why:
            os.write(self._log, f"fairlog: {self.why}\n".encode())
        output = self.tail()
        os.close(self._log)
        return Completion(self.index, outcome, exit_code, message, output, self.attempt)

    def abandon(self) -> None:
        """Close its files without an end: the task goes back to the queue."""
        self.process.returncode = -signal.SIGKILL
        with contextlib.suppress(OSError):
            os.close(self._log)


class TaskStarter:
    """Starts the tasks of one executor. What they have in common is worked out once."""

    def __init__(self, grant: Grant, worker: str, files: RunDir, secrets: Mapping[str, str]) -> None:
        self._grant = grant
        self._worker = worker
        self._files = files
        self._environment = task_environment(grant, secrets)
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._program = self._find_program()
        files.log_file(grant.app, 0).parent.mkdir(parents=True, exist_ok=True)

    def start(self, begun: Begun) -> Task | Completion:
        """The task under way, or why it could not begin."""
        grant, index = self._grant, begun.task
        if grant.cwd is not None and not Path(grant.cwd).is_dir():
            return self._refuse(
                begun, "failed", 126, f"directory {grant.cwd!r} does not exist on worker {self._worker}"
            )
        if self._program is None:
            return self._missing(begun)
        log = os.open(
            self._files.log_file(grant.app, self._log_name(index)),
            os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        log_start = os.fstat(log).st_size
        try:
            process = subprocess.Popen(  # noqa: S603 - to run what users submit is what an executor is for
                grant.command,
                executable=self._program,
                stdin=self._nothing,
                stdout=log,
                stderr=log,
                cwd=grant.cwd,
                env=self._environment_of(index),
                close_fds=False,
            )
        except OSError as error:
            os.close(log)
            return self._not_started(begun, error)
        return Task(begun, process, log, log_start, is_driver=grant.role == "driver")

    def _environment_of(self, index: int) -> dict[str, str]:
        return self._environment if self._grant.role == "driver" else {**self._environment, INDEX_VARIABLE: str(index)}

    def _log_name(self, index: int) -> int | str:
        return "driver" if self._grant.role == "driver" else index

    def _not_started(self, begun: Begun, error: OSError) -> Completion:
        program = Path(self._grant.cwd or ".", self._program or "")
        if isinstance(error, FileNotFoundError) and not program.is_file():
            return self._missing(begun)
        reason = error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            reason = "the interpreter that it names does not exist"
        message = f"command {self._command!r} cannot be run on worker {self._worker}: {reason}"
        outcome: Outcome = "hopeless" if error.errno in _NO_PROGRAM else "failed"
        return self._refuse(begun, outcome, 126, message)

    @property
    def _command(self) -> str:
        return self._grant.command[0] if self._grant.command else ""

    def _find_program(self) -> str | None:
        command = self._command
        if "/" in command or not command:
            return command or None
        return shutil.which(command, path=self._environment["PATH"]) or self._present(command)

    def _present(self, command: str) -> str | None:
        """A file of that name that may not be executed: starting it will say why."""
        folders = self._environment["PATH"].split(":")
        return next((path for folder in folders if Path(path := f"{folder}/{command}").is_file()), None)

    def _missing(self, begun: Begun) -> Completion:
        message = f"command {self._command!r} does not exist on worker {self._worker}"
        return self._refuse(begun, "hopeless", 127, message)

    def _refuse(self, begun: Begun, outcome: Outcome, exit_code: int, message: str) -> Completion:
        line = f"fairlog: {message}\n".encode()
        with self._files.log_file(self._grant.app, self._log_name(begun.task)).open("ab") as log:
            log.write(line)
        return Completion(begun.task, outcome, exit_code, message, line, begun.attempt)


def signal_name(number: int) -> str:
    """SIGKILL for 9; the number itself where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
