"""A task: one run of a program, with its environment, log file and outcome.

Exit codes follow the shell: the program's own, or 128 + the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import count
from math import ceil, floor
from pathlib import Path

from scheduler.model.arrays import index_of
from scheduler.model.errors import FairlogError
from scheduler.model.grants import Grant
from scheduler.model.text import MAX_DETAIL, one_line
from scheduler.service.private import private_folder
from scheduler.store.secrets import UnreadableSecrets
from scheduler.store.task_queue import Begun, Completion, Outcome, output_bytes
from workers.processes import descendants, send_signal
from workers.rundir import RunDir

INDEX_VARIABLE = "FAIRLOG_TASK_INDEX"
LOCK_VARIABLE = "FAIRLOG_EXECUTOR_LOCK"
"""The executor's lock file: ids alone are not unique on a machine with several clusters."""
CORES_VARIABLE = "FAIRLOG_TASK_CORES"
"""The cores of one task; those of its executor are in FAIRLOG_CORES (semantics A7)."""
DRIVER_VARIABLE = "FAIRLOG_DRIVER_ID"
RESOURCES_VARIABLE = "FAIRLOG_RESOURCES"
"""JSON: kind of resources -> addresses (semantics R5)."""
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
HOST_VARIABLE = "FAIRLOG_HOST"
"""The worker's host, as peers reach it; the name that preferences use."""
SCRATCH_VARIABLE = "FAIRLOG_SCRATCH"
"""The executor's own folder, deleted when it is gone. Programs of executors begin in it (semantics G1)."""
STOP_AT_VARIABLE = "FAIRLOG_STOP_AT_FILE"
"""The file in which a task finds until when its executor may run, once that was told to leave (semantics E5)."""
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_PERMANENT = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELIBBAD, errno.E2BIG, errno.ENAMETOOLONG)
"""Errors that a retry on the same worker would meet again (semantics W9)."""


def run(app: str, task: int) -> None:
    """The function named in a task's RQ job. Executors read only the job's id and never call it.

    Raises: FairlogError, always: a foreign RQ worker has called it.
    """
    raise FairlogError(f"task {task} of {app!r} runs only in fairlog's executors; stop the RQ worker on this queue")


def task_environment(grant: Grant, lock: Path, secrets: Mapping[str, str]) -> dict[str, str]:
    """The environment of an executor's tasks, without their index.

    Variables of the submitter override those of the machine; fairlog's override both.
    """
    machine = {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("LC_")}
    return {
        "PATH": _PATH,
        **machine,
        **secrets,
        "FAIRLOG_TASK_COUNT": str(grant.tasks),
        "FAIRLOG_APP_ID": grant.app,
        "FAIRLOG_EXECUTOR_ID": grant.executor,
        LOCK_VARIABLE: str(lock),
        "FAIRLOG_CORES": str(grant.cores),
        "FAIRLOG_MEMORY_MB": str(grant.memory_mb),
        **(
            {DRIVER_VARIABLE: grant.executor}
            if grant.role == "driver"
            else {CORES_VARIABLE: str(grant.cores if grant.program else grant.cores_per_task)}
        ),
    }


def resource_environment(addresses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The variables in which a program finds its addresses (semantics R5); none if it has no addresses."""
    if not addresses:
        return {}
    gpus = [address for kind, found in addresses.items() if kind.startswith("gpu") for address in found]
    return {RESOURCES_VARIABLE: json.dumps(addresses), **({GPUS_VARIABLE: ",".join(gpus)} if gpus else {})}


def task_addresses(grant: Grant, slot: int) -> dict[str, tuple[str, ...]]:
    """The addresses of the task in that slot of the executor (semantics R3, R5).

    Tasks that state no amounts of their own find all of the executor's. Example, 1/4 gpu a task: the tasks in slots 0
    to 3 share the first address, those in slots 4 to 7 the second.
    """
    if not grant.per_task:
        return grant.addresses
    amounts = {kind: Fraction(numerator, denominator) for kind, numerator, denominator in grant.per_task}
    return {
        kind: found[floor(slot * amounts[kind]) : ceil((slot + 1) * amounts[kind])]
        for kind, found in grant.addresses.items()
    }


class Task:
    """A running task or driver. `why` is the reason why it was stopped, `kill_at_s` when SIGKILL is due."""

    def __init__(
        self,
        begun: Begun,
        process: subprocess.Popen[bytes],
        log: int,
        log_start: int,
        *,
        name: str = "",
        kept: int = output_bytes(1),
    ) -> None:
        self.index = begun.task
        self.name = name or f"task {self.index}"
        self.attempt = begun.attempt
        self.process = process
        self.began_s = time.monotonic()
        self.kill_at_s: float | None = None
        self.why = ""
        self._log = log
        self._log_start = log_start
        self._shown = log_start
        self._kept = kept

    def tail(self) -> bytes:
        """The end of this attempt's output: 64 KiB, or less of an app of many tasks."""
        size = os.fstat(self._log).st_size
        self._shown = size
        first = max(self._log_start, size - self._kept)
        return os.pread(self._log, size - first, first) if size > first else b""

    def has_news(self) -> bool:
        """Whether it has printed anything since the last call of `tail`."""
        return os.fstat(self._log).st_size != self._shown

    def stop(self, why: str = "", *, number: signal.Signals = signal.SIGKILL, again_s: float = 0.2) -> None:
        """Send a signal to its processes, and schedule the next SIGKILL in `again_s` seconds."""
        self.why = self.why or why
        self.kill_at_s = time.monotonic() + again_s
        pid = self.process.pid
        send_signal([pid, *descendants(pid)], number)

    def end(self, status: int) -> Completion:
        """The completion for the wait status `status`; closes the log file."""
        returned = os.waitstatus_to_exitcode(status)
        self.process.returncode = returned
        exit_code = returned if returned >= 0 else 128 - returned
        outcome: Outcome = "failed" if exit_code or self.why else "succeeded"
        message = self.why
        if not message and returned < 0:
            message = f"{self.name} was ended by {_signal_name(-returned)}"
        elif not message and returned:
            message = f"{self.name} ended with exit code {returned}"
        if self.why:
            with contextlib.suppress(OSError):
                os.write(self._log, f"fairlog: {self.why}\n".encode())
        output = self.tail()
        os.close(self._log)
        return Completion(self.index, outcome, exit_code, message, output, self.attempt)

    def abandon(self) -> None:
        """Close the log file of a task that returns to the queue."""
        self.process.returncode = -signal.SIGKILL
        with contextlib.suppress(OSError):
            os.close(self._log)


class TaskStarter:
    """Starts the tasks of one executor. `read_secrets` returns its app's, or raises UnreadableSecrets."""

    def __init__(
        self,
        grant: Grant,
        worker: str,
        files: RunDir,
        read_secrets: Callable[[], Mapping[str, str]],
        *,
        host: str = "",
    ) -> None:
        self._grant = grant
        self._worker = worker
        self._files = files
        self._is_driver = grant.role == "driver"
        self._unreadable = ""
        """Why the app's secrets cannot be read, or its folder cannot be created."""
        secrets: Mapping[str, str] = {}
        try:
            secrets = read_secrets()
        except UnreadableSecrets as error:
            self._unreadable = str(error)
        self._environment = task_environment(grant, files.lock_file(grant.executor), secrets)
        self._environment[STOP_AT_VARIABLE] = str(files.stop_at_file(grant.executor))
        scratch = files.scratch(grant.executor)
        try:
            private_folder(scratch)
        except OSError as error:
            self._unreadable = f"the folder {scratch} cannot be created: {error.strerror}"
        self._environment |= {HOST_VARIABLE: host, SCRATCH_VARIABLE: str(scratch)}
        self._cwd = str(scratch) if grant.program else grant.cwd
        self._slots: dict[int, Task] = {}
        """Slot -> the task that was started in it last."""
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._command = grant.command[0] if grant.command else ""
        self._program = _find_program(self._command, self._environment["PATH"])

    def start(self, begun: Begun) -> Task | Completion:
        """Start a task. Returns a completion that states the reason if it cannot start."""
        grant = self._grant
        if self._unreadable:
            return self._refuse(begun, "unstartable", 126, f"{self._unreadable} (worker {self._worker})")
        if self._cwd is not None and not os.path.isdir(self._cwd):  # noqa: PTH112 - Path.is_dir raises for some errors
            reason = f"directory {self._cwd!r} does not exist or is not accessible on worker {self._worker}"
            return self._refuse(begun, "unstartable", 126, reason)
        if self._program is None:
            return self._missing(begun)
        try:
            log = self._open_log(begun)
        except OSError as error:
            return self._refuse(begun, "unstartable", 126, f"no log file on worker {self._worker}: {error.strerror}")
        log_start = os.fstat(log).st_size
        slot = next(n for n in count() if n not in self._slots or self._slots[n].process.returncode is not None)
        index = {} if self._is_driver else {INDEX_VARIABLE: str(index_of(grant.array, begun.task))}
        index |= resource_environment(task_addresses(grant, slot))
        try:
            process = subprocess.Popen(  # noqa: S603 - to run what users submit is what an executor is for
                grant.command,
                executable=self._program,
                stdin=self._nothing,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env={**self._environment, **index},
                close_fds=False,
            )
        except OSError as error:
            os.close(log)
            return self._not_started(begun, error)
        kept = output_bytes(1 if self._is_driver or grant.program else grant.tasks)
        name = "its driver" if self._is_driver else "its program" if grant.program else ""
        self._slots[slot] = Task(begun, process, log, log_start, name=name, kept=kept)
        return self._slots[slot]

    def _open_log(self, begun: Begun) -> int:
        path = self._files.log_file(self._grant.app, "driver" if self._is_driver else begun.task)
        private_folder(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _not_started(self, begun: Begun, error: OSError) -> Completion:
        reason = error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            if not os.path.isfile(Path(self._cwd or ".", self._program or "")):  # noqa: PTH113 - as above
                return self._missing(begun)
            reason = "its interpreter does not exist"
        message = f"command {self._command!r} cannot be run on worker {self._worker}: {reason}"
        return self._refuse(begun, "unstartable" if error.errno in _PERMANENT else "failed", 126, message)

    def _missing(self, begun: Begun) -> Completion:
        message = f"command {self._command!r} does not exist on worker {self._worker}"
        return self._refuse(begun, "unstartable", 127, message)

    def _refuse(self, begun: Begun, outcome: Outcome, exit_code: int, message: str) -> Completion:
        message = one_line(message, MAX_DETAIL)
        line = f"fairlog: {message}\n".encode()
        with contextlib.suppress(OSError):
            log = self._open_log(begun)
            try:
                os.write(log, line)
            finally:
                os.close(log)
        return Completion(begun.task, outcome, exit_code, message, line, begun.attempt)


def _find_program(command: str, path: str) -> str | None:
    """The file that `command` names, None if there is none. It need not be executable: starting it gives the reason."""
    if "/" in command or not command:
        return command or None
    present = (program for folder in path.split(":") if os.path.isfile(program := f"{folder}/{command}"))  # noqa: PTH113 - as above
    return shutil.which(command, path=path) or next(present, None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
