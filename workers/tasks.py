"""A task: one run of a program, with its environment, log file and outcome.

Exit codes follow the shell: the program's own, or 128 + the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from ipaddress import ip_address
from itertools import count
from math import ceil, floor
from pathlib import Path
from subprocess import SubprocessError

from scheduler.model.arrays import index_of
from scheduler.model.errors import FairlogError, InvalidCommand
from scheduler.model.grants import Grant
from scheduler.model.ids import number_of
from scheduler.model.outputs import filled
from scheduler.model.staged import FILES, SCRIPT, digest_of, script_name, script_of_value, unpacked
from scheduler.model.text import MAX_DETAIL, one_line
from scheduler.service.private import private_folder
from scheduler.store.secrets import UnreadableSecrets
from scheduler.store.tails import Tail
from scheduler.store.task_queue import Completion, Outcome, TaskBegun, output_bytes
from workers.cell import CannotStart, Cell, CellLost, EndedTask
from workers.fitness import fault_of_worker
from workers.gpus import GPUS_VARIABLE, gpus_of, visible
from workers.memory import Peak
from workers.output import Output, open_log
from workers.rundir import RunDir
from workers.sandbox import NoCell

INDEX_VARIABLE = "FAIRLOG_TASK_INDEX"
ATTEMPT_VARIABLE = "FAIRLOG_ATTEMPT"
"""How often the task has begun, this time included."""
LOCK_VARIABLE = "FAIRLOG_EXECUTOR_LOCK"
"""The executor's lock file: ids alone are not unique on a machine with several clusters."""
CORES_VARIABLE = "FAIRLOG_TASK_CORES"
"""The cores of one task; those of its executor are in FAIRLOG_CORES (semantics A7)."""
DRIVER_VARIABLE = "FAIRLOG_DRIVER_ID"
RESOURCES_VARIABLE = "FAIRLOG_RESOURCES"
"""JSON: kind of resources -> addresses (semantics R5)."""
HOST_VARIABLE = "FAIRLOG_HOST"
"""The worker's host, as peers reach it; the name that preferences use."""
STOP_AT_VARIABLE = "FAIRLOG_STOP_AT_FILE"
"""The file in which a task finds until when its executor may run, once that was told to leave (semantics H7)."""
SCRATCH_VARIABLE = "FAIRLOG_SCRATCH"
"""The executor's own folder, deleted when it is gone. Programs of an app owned from outside begin in it (G1)."""
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR")
_LANG = "C.UTF-8"
"""The locale of tasks whose submitter states none: on every worker the same, however its agent was started."""
_PATH = "/usr/local/bin:/usr/bin:/bin"
_PERMANENT = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELIBBAD, errno.E2BIG, errno.ENAMETOOLONG)
"""Errors that a retry on the same worker would meet again (semantics W9)."""


def run(app: str, task: int) -> None:
    """The function named in a task's RQ job. Executors read only the job's id and never call it.

    Raises: FairlogError, always: a foreign RQ worker has called it.
    """
    raise FairlogError(f"task {task} of {app!r} runs only in fairlog's executors; stop the RQ worker on this queue")


def task_environment(grant: Grant, cell: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The environment of an executor's tasks, without their index; `cell` are the variables of their cell.

    Variables of the submitter override those of the machine and the cell; fairlog's override all.
    """
    machine = {name: value for name, value in os.environ.items() if name in _INHERITED}
    return {
        "PATH": _PATH,
        "LANG": _LANG,
        **machine,
        **cell,
        **secrets,
        **{name: value for name, value in cell.items() if name.startswith("FAIRLOG_")},
        "FAIRLOG_TASK_COUNT": str(grant.ranks if grant.program else grant.tasks),
        **_gang_environment(grant),
        "FAIRLOG_APP_ID": grant.app,
        **({"FAIRLOG_APP_NUMBER": str(grant.number)} if grant.number else {}),
        "FAIRLOG_EXECUTOR_ID": grant.executor,
        "FAIRLOG_CORES": str(grant.cores),
        "FAIRLOG_MEMORY_MB": str(grant.memory_mb),
        **(
            {DRIVER_VARIABLE: grant.executor}
            if grant.role == "driver"
            else {CORES_VARIABLE: str(grant.cores if grant.program else grant.cores_per_task)}
        ),
    }


def _gang_environment(grant: Grant) -> dict[str, str]:
    """The variables in which the programs of a gang find each other (semantics G8); none of other apps."""
    if not grant.hosts:
        return {}
    return {
        "FAIRLOG_RANK": str(grant.rank),
        "FAIRLOG_WORLD": str(grant.ranks),
        "FAIRLOG_HOSTS": ",".join(grant.hosts),
        "FAIRLOG_MASTER_ADDR": grant.hosts[0],
        "FAIRLOG_MASTER_PORT": str(grant.port),
    }


def resource_environment(
    addresses: Mapping[str, Sequence[str]], *, among_gpus: bool = False, apart: bool = False
) -> dict[str, str]:
    """The variables in which a program finds its addresses (semantics R5); none if it has no addresses.

    `among_gpus`: on a worker that offers graphics processors, a program that has none is told so. `apart`: it finds the
    device files of its own processors only.
    """
    found = {RESOURCES_VARIABLE: json.dumps(addresses)} if addresses else {}
    gpus = gpus_of(addresses)
    return {**found, GPUS_VARIABLE: visible(gpus, apart=apart)} if gpus or among_gpus else found


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
    """A running task or driver. `why` is the reason why it was stopped, `kill_at_s` when SIGKILL is due.

    `pid` is its process id in its cell, `shown` the index that it finds in its environment.
    """

    def __init__(self, begun: TaskBegun, pid: int, output: Output, shown: str = "", *, name: str = "") -> None:
        self.index = begun.task
        self.shown = shown
        self.name = name or f"task {shown or self.index}"
        self.attempt = begun.attempt
        self.pid = pid
        self.output = output
        self.is_over = False
        self.began_s = time.monotonic()
        self.began_at_s = time.time()
        self.kill_at_s: float | None = None
        self.why = ""
        self.returns = False
        """Whether it begins again once it has stopped (semantics X6)."""
        self._stops = 0
        self.peak = Peak()
        """The most memory that was seen in use by its processes."""
        self.cpu_before_ms: int | None = None
        """The CPU time of its cell when it began, as long as no other task has run beside it."""

    def stop(self, why: str, again_s: float) -> int:
        """Note why it is stopped, and schedule the next SIGKILL in `again_s` seconds. Returns how often it was."""
        self.why = self.why or why
        self.kill_at_s = time.monotonic() + again_s
        self._stops += 1
        return self._stops

    def end(self, ended: EndedTask) -> Completion:
        """Its completion; closes the log file."""
        returned = os.waitstatus_to_exitcode(ended.status)
        exit_code = returned if returned >= 0 else 128 - returned
        outcome: Outcome = "returned" if self.returns else "failed" if exit_code or self.why else "succeeded"
        message = self.why
        if not message and returned < 0:
            message = f"{self.name} was ended by {_signal_name(-returned)}"
        elif not message and returned:
            message = f"{self.name} ended with exit code {returned}"
        tail = self.close(f"fairlog: {self.why}\n" if self.why else "")
        took = ended.cpu_ms, max(self.peak.mb, ended.peak_mb), self.output.length
        return Completion(self.index, outcome, exit_code, message, tail, self.attempt, *took)

    def close(self, line: str = "") -> bytes:
        """Close its output, with a last line. Returns the tail. Another task may have its slot."""
        self.is_over = True
        return self.output.close(line.encode())


class _NoOutput(Exception):
    """A file of the app's own for the output of a task cannot be opened; says which and why."""


class TaskStarter:
    """Starts the tasks of one executor in its cell. `read_secrets` returns its app's, or raises UnreadableSecrets."""

    def __init__(
        self,
        grant: Grant,
        worker: str,
        files: RunDir,
        cell: Cell,
        read_secrets: Callable[[], Mapping[str, str]],
        *,
        host: str = "",
        among_gpus: bool = False,
        launcher: str = "plain",
    ) -> None:
        self._grant = grant
        self._fault = partial(fault_of_worker, files=files, launcher=launcher)
        self.unfit = ""
        """Why the worker can start nothing: what was to be started is not to blame (semantics W11)."""
        self._resources_told = partial(resource_environment, among_gpus=among_gpus, apart=launcher != "plain")
        self._worker = worker
        self._files = files
        self._cell = cell
        self._host = host
        self._is_driver = grant.role == "driver"
        self._cwd = cell.scratch if grant.begins_in_scratch else grant.cwd or cell.scratch
        self._refused: tuple[int, str] | None = None
        """Why no task can be started: exit code and sentence."""
        self._secrets: Mapping[str, str] = {}
        self._staged: Mapping[str, bytes] = {}
        self._prepared = False
        self._slots: dict[int, Task] = {}
        """Slot -> the task that was started in it last."""
        self._number = "driver" if self._is_driver else str(number_of(grant.executor))
        self._opened: dict[Path, int] = {}
        """The descriptors of the files of output."""
        self._places: dict[str, tuple[Path, Path]] = {}
        """Slot of the executor -> its files."""
        self._command = grant.command[0] if grant.command else ""
        self._words = grant.command
        try:
            secrets = dict(read_secrets())
            self._staged = unpacked(secrets.pop(FILES)) if FILES in secrets else {}
            script = secrets.pop(SCRIPT, "")
            self._secrets = secrets
            if grant.script:
                self._stage_script(script_of_value(script))
        except (UnreadableSecrets, InvalidCommand) as error:
            self._refused = 126, f"{error} (worker {worker})"

    def _stage_script(self, content: bytes) -> None:
        """Put the copy of the app's script beside its staged files, and into its command. Raises: InvalidCommand."""
        if digest_of(content) != self._grant.script:
            raise InvalidCommand("the stored script is not the one that was submitted; submit it again")
        at = self._grant.script_at
        name = script_name(self._words[at], self._staged)
        self._staged = {**self._staged, name: content}
        self._words = (*self._words[:at], f"{self._cell.scratch}/{name}", *self._words[at + 1 :])

    def start(self, *tasks: TaskBegun) -> list[Task | Completion]:
        """Start tasks. Returns a completion that states the reason for each that cannot start.

        Nothing is returned of those that the worker is at fault for, which is `unfit` then.
        """
        refused = self._refused or self._prepare()
        if self.unfit:
            return []
        if refused is not None:
            return [self._refuse(begun, "unstartable", *refused) for begun in tasks]
        free = (slot for slot in count() if slot not in self._slots or self._slots[slot].is_over)
        begins: list[tuple[TaskBegun, int]] = []
        outputs: list[Output] = []
        refusals: list[Task | Completion] = []
        for begun, slot in zip(tasks, free, strict=False):
            try:
                outputs.append(self._output(begun, slot))
            except OSError as error:
                if why := self._fault(error):
                    self.unfit = why
                    continue
                reason = f"no log file on worker {self._worker}: {error.strerror}"
                refusals.append(self._refuse(begun, "unstartable", 126, reason))
            except _NoOutput as error:
                refusals.append(self._refuse(begun, "unstartable", 126, str(error)))
            except CellLost as error:
                refusals.append(self._refuse(begun, "failed", 126, f"{error} (worker {self._worker})"))
            else:
                begins.append((begun, slot))
        return [*self._begin(begins, outputs), *refusals]

    def _begin(self, slots: Sequence[tuple[TaskBegun, int]], outputs: Sequence[Output]) -> list[Task | Completion]:
        """Start tasks in their slots of the executor."""
        tasks = [begun for begun, _ in slots]
        shown = [self._index(begun) for begun in tasks]
        starts = [
            (begun.task, self._own(begun, index) | self._resources(slot), output.inside)
            for (begun, slot), index, output in zip(slots, shown, outputs, strict=True)
        ]
        try:
            pids = self._cell.start(starts)
        except CellLost as error:
            for output in outputs:
                output.close()
            return [self._refuse(begun, "failed", 126, f"{error} (worker {self._worker})") for begun in tasks]
        finally:
            for output in outputs:
                for end in output.inside:
                    os.close(end)
        return [self._started(*each) for each in zip(slots, pids, outputs, shown, strict=True)]

    def _started(
        self, place: tuple[TaskBegun, int], pid: int | CannotStart, output: Output, shown: str
    ) -> Task | Completion:
        begun, slot = place
        if isinstance(pid, CannotStart):
            output.close()
            return self._not_started(begun, pid)
        name = "its driver" if self._is_driver else "its program" if self._grant.program else ""
        self._slots[slot] = Task(begun, pid, output, shown, name=name)
        return self._slots[slot]

    def _index(self, begun: TaskBegun) -> str:
        """The index that a task or a program finds in its environment; none for a driver."""
        if self._is_driver:
            return ""
        return str(self._grant.rank if self._grant.program else index_of(self._grant.array, begun.task))

    def _own(self, begun: TaskBegun, index: str) -> dict[str, str]:
        """The variables that tell a task which one it is, and which attempt."""
        attempt = {} if self._is_driver or self._grant.program else {ATTEMPT_VARIABLE: str(begun.attempt)}
        return ({INDEX_VARIABLE: index} if index else {}) | attempt

    def _resources(self, slot: int) -> dict[str, str]:
        return self._resources_told(task_addresses(self._grant, slot)) if self._grant.addresses else {}

    def _prepare(self) -> tuple[int, str] | None:
        """Prepare the cell unless it is prepared. Returns why no task can be started."""
        if self._prepared and self._cell.alive:
            return None
        grant, worker = self._grant, self._worker
        try:
            self._cell.open()
            environment = task_environment(grant, self._cell.variables, self._secrets) | {HOST_VARIABLE: self._host}
            environment |= self._resources_told(grant.addresses)  # visits find all, each task its own part
            prepared = self._cell.prepare(self._words, environment, self._cwd, self._staged)
        except (FairlogError, OSError, SubprocessError) as error:
            self.unfit = self._fault(error)
            return 126, f"{error} (worker {worker})"
        if prepared.unwritten:
            reason = os.strerror(prepared.error)
            self.unfit = self._fault(NoCell(reason))  # whoever has taken the cell over may say any number
            return 126, f"the staged file {prepared.unwritten!r} could not be written on worker {worker}: {reason}"
        if prepared.error:
            return 126, f"directory {self._cwd!r} does not exist or is not accessible on worker {worker}"
        if not prepared.found:
            return 127, self._missing()
        self._prepared = True
        return None

    def _output(self, begun: TaskBegun, slot: int) -> Output:
        """Where the output of a task in that slot goes. Raises: OSError."""
        app = self._grant.app
        lone = self._is_driver or self._grant.program
        name = self._number if lone else f"{self._number}-{slot}"
        paths = self._places[name] = self._places.get(name) or self._files.log_files(app, name)
        self._open(paths[0])
        log, errors = (partial(self._open, path) for path in paths)
        if lone:
            return Output(log, errors, output_bytes(1), copies=self._copies(begun))
        self._open(self._files.log_index(app))

        def written(stream: int, offset: int, length: int) -> None:
            line = f"{begun.task} {begun.attempt} {paths[stream].name} {offset} {length}\n"
            with contextlib.suppress(OSError):
                os.write(self._open(self._files.log_index(app)), line.encode())

        return Output(log, errors, output_bytes(self._grant.tasks), written, copies=self._copies(begun))

    def _copies(self, begun: TaskBegun) -> tuple[int, ...]:
        """The descriptors of the app's own files for the output of a task. Raises: _NoOutput; CellLost."""
        told = self._grant.outputs
        if told is None:
            return -1, -1
        index = self._index(begun) or "driver"
        several = self._grant.program or self._grant.tasks > (0 if self._grant.has_driver else 1)
        values = {
            "j": f"{told.app}_{index}" if several else told.app,
            "A": told.app,
            "a": index,
            "x": self._grant.name,
            "u": self._grant.user,
            "N": _short(self._host),
        }
        output, error = (filled(pattern, values) for pattern in (told.output, told.error))
        first = self._opened_by_cell(output, append=told.append)
        if error in {"", output}:
            return (first,)
        try:
            return first, self._opened_by_cell(error, append=told.append)
        except (_NoOutput, CellLost):
            if first >= 0:
                os.close(first)
            raise

    def _opened_by_cell(self, path: str, *, append: bool) -> int:
        """The descriptor of a file of the app's own, -1 for "". Raises: _NoOutput; CellLost."""
        if not path:
            return -1
        try:
            return self._cell.open_file(path, append=append)
        except OSError as refused:
            where = f"on worker {self._worker}: {refused.strerror}"
            raise _NoOutput(f"the file {path!r} of its output cannot be opened {where}") from None

    def _open(self, path: Path) -> int:
        """The descriptor of this file, which is opened once. Raises: OSError."""
        if path not in self._opened:
            self._opened[path] = open_log(private_folder(self._files.path), path)
        return self._opened[path]

    def _not_started(self, begun: TaskBegun, error: CannotStart) -> Completion:
        if error.missing:
            return self._refuse(begun, "unstartable", 127, self._missing())
        reason = "its interpreter does not exist" if error.number == errno.ENOENT else os.strerror(error.number)
        message = f"command {self._command!r} cannot be run on worker {self._worker}: {reason}"
        return self._refuse(begun, "unstartable" if error.number in _PERMANENT else "failed", 126, message)

    def _missing(self) -> str:
        return f"command {self._command!r} does not exist on worker {self._worker}"

    def _refuse(self, begun: TaskBegun, outcome: Outcome, exit_code: int, message: str) -> Completion:
        message = one_line(message, MAX_DETAIL)
        tail = Tail.of((1, f"fairlog: {message}\n".encode())).stored()
        return Completion(begun.task, outcome, exit_code, message, tail, begun.attempt)


def _short(host: str) -> str:
    """The host's name without its domain; an address as it is."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.partition(".")[0]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
