"""Where an executor's tasks run: below a first process of their own (`task_init`), in a sandbox or not.

The executor stays outside of a cell, so its tasks find neither it nor its environment and credentials.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import stat
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from scheduler.model.errors import FairlogError
from scheduler.model.text import one_line
from workers.cgroups import end_leaf
from workers.processes import children, descendants, is_same_process, kill_until_gone, send_signal, started_s
from workers.task_init import MOST_AT_ONCE

if TYPE_CHECKING:
    from scheduler.service.child import Forked
    from workers.cgroups import ExecutorGroup

_REPLY_S = 60.0
_ERROR_BYTES = 1000
_END_S = 60.0
"""How long to wait for the end of what was killed: on a busy machine that takes seconds."""
_MESSAGE_BYTES = 1 << 13
_MOST_MESSAGES = 100
"""How many messages of a cell are read at a time: it may send without end."""
_NULL = os.makedev(1, 3)
_MOST = 1 << 46
"""Above every figure that a cell may report."""


class CannotStart(NamedTuple):
    """A program could not be started: the error's number, and whether the program's file is missing."""

    number: int
    missing: bool


class CellLost(FairlogError):
    """The cell has ended, with all its processes, or does not answer; `why` is what it said last."""

    def __init__(self, why: str = "") -> None:
        super().__init__(f"the executor's cell has ended{': ' if why else ''}{why}")


class Prepared(NamedTuple):
    """What failed (0, or the error's number): the file `unwritten`, or, if "", to enter the folder.

    `found`: whether there is such a program.
    """

    error: int
    unwritten: str
    found: bool


class EndedTask(NamedTuple):
    """A task that ended: its process id inside, wait status, CPU time and peak memory."""

    pid: int
    status: int
    cpu_ms: int
    peak_mb: int


class FirstProcess(NamedTuple):
    """The first process of a cell: its process id outside, our end of its socket, the group of its processes."""

    pid: int
    line: socket.socket
    process: subprocess.Popen[bytes] | Forked | None = None
    """The first process, or the process of its sandbox."""
    encloses: bool = False
    """Whether everything in the cell ends with it."""
    leaf: ExecutorGroup | None = None
    """The group of its processes, if it is ours to end."""
    group: ExecutorGroup | None = None
    """The group of its processes, whoever ends it."""
    release: Callable[[], bool] = lambda: False
    """Gives back what keeps it alive; whether the kernel has killed in it, as who keeps it says."""
    errors: IO[bytes] | None = None
    """What it and its sandbox say about failures."""
    limits: Sequence[tuple[int, int, int]] = ()
    """Limits that it sets for the tasks: resource, soft and hard limit."""


class Cell:
    """An executor's handle of where its tasks run. `start` starts the first process; `named` is told its id.

    `kill` ends everything in it; the next `prepare` starts it anew. Everything that comes from inside is checked: its
    tasks may have taken it over. `variables` tell tasks what is where in it; `scratch` is their own folder there.
    """

    def __init__(
        self,
        start: Callable[[], FirstProcess],
        scratch: str,
        variables: Mapping[str, str],
        named: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._start = start
        self.scratch = scratch
        self.variables = variables
        self._named = named
        self._first: FirstProcess | None = None
        self._since_s = 0.0
        self._was_out_of_memory = False
        """When it ended."""
        self._cpu_ms = 0
        """Likewise."""
        self._last_words = ""
        self._said: deque[str] = deque()
        """Lines that have come and were not looked at."""
        self._ended: list[EndedTask] = []
        self._inside: dict[int, int] = {}
        self._attached = -1
        """The descriptor that came with a message last."""

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended, as far as is known."""
        return self._first is not None

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed processes in it, for their memory, since the last call."""
        if self._first is not None and self._first.leaf is not None:
            return self._first.leaf.has_killed()
        was, self._was_out_of_memory = self._was_out_of_memory, False
        return was

    def cpu_ms(self) -> int:
        """The CPU time of all its processes until now, or until its end; 0 if it has no control group that tells."""
        if self._first is not None:
            self._cpu_ms = 0 if self._first.group is None else self._first.group.cpu_ms()
        return self._cpu_ms

    def open(self) -> None:
        """Start it unless it is alive. Raises: OSError, NoCell."""
        if self._first is None:
            self._first = first = self._start()
            self._inside.clear()
            self._said.clear()
            self._since_s = started_s(first.pid) or 0.0
            self._named(first.pid)

    def has_news(self) -> bool:
        """Whether `ended` has something to return that has come already, so that `fileno` need not be readable."""
        return bool(self._ended or self._said)

    def fileno(self) -> int:
        """The descriptor that is readable when there is news; -1 if it is not alive."""
        return -1 if self._first is None else self._first.line.fileno()

    def prepare(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: str | None,
        files: Mapping[str, bytes] | None = None,
    ) -> Prepared:
        """Set what all tasks have in common, and put the files into the scratch folder. Raises: CellLost."""
        if self._first is None:
            raise CellLost
        given = marshal.dumps((tuple(command), dict(environment), folder, tuple(self._first.limits), dict(files or {})))
        with tempfile.TemporaryFile() as file:
            file.write(given)
            file.flush()
            self._send(("prepare",), file.fileno())
            _, (error, number, found) = self._reply(prepared=3)
        return Prepared(error, ["", *(files or ())][min(number, len(files or ()))], bool(found))

    def open_file(self, path: str, *, append: bool) -> int:
        """The descriptor of a file that the tasks' user opens for writing in the cell, emptied unless `append`.

        Raises: OSError if it cannot be opened; CellLost.
        """
        self._send(("open", path, append))
        _, (error,) = self._reply(opened=1)
        file, self._attached = self._attached, -1
        if error or file < 0:
            if file >= 0:
                os.close(file)
            raise OSError(max(error, 0), "it is no regular file" if error < 0 else os.strerror(error))
        about = os.fstat(file)
        if (
            not stat.S_ISREG(about.st_mode) and about.st_rdev != _NULL
        ):  # whoever has taken the cell over may say anything
            os.close(file)
            raise OSError(0, "it is no regular file")
        return file

    def start(self, tasks: Sequence[tuple[int, Mapping[str, str], Sequence[int]]]) -> list[int | CannotStart]:
        """Start tasks: number, further variables, stdout and stderr of each.

        Returns its process id inside, or why it has none.

        Raises: CellLost; then none of them runs.
        """
        found: list[int | CannotStart] = []
        for first in range(0, len(tasks), MOST_AT_ONCE):
            part = tasks[first : first + MOST_AT_ONCE]
            request = tuple((identity, dict(environment)) for identity, environment, _ in part)
            self._send(("start", request), *(end for *_, ends in part for end in ends))
            found += [self._started(identity) for identity, *_ in part]
        return found

    def _started(self, identity: int) -> int | CannotStart:
        kind, found = self._reply(started=2, refused=3)
        if found[0] != identity:
            self.kill()
            raise CellLost(self._last_words)
        return CannotStart(found[1], missing=bool(found[2])) if kind == "refused" else found[1]

    def visit(
        self, identity: int, command: Sequence[str], environment: Mapping[str, str], ends: Sequence[int], *, tty: bool
    ) -> int | CannotStart:
        """Start a command with its input, output and errors, `tty`: a terminal.

        Returns its process id inside, or why it has none. Raises: CellLost.
        """
        self._send(("visit", identity, tuple(command), dict(environment), tty), *ends)
        return self._started(identity)

    def ended(self) -> list[EndedTask]:
        """The tasks that ended since the last call. A cell that ended is not `alive` afterwards."""
        with suppress(CellLost):
            for _ in range(_MOST_MESSAGES):
                if self._receive(0) is None:
                    break
        ended, self._ended = self._ended, []
        return ended

    def members(self) -> list[int]:
        """The processes of the tasks, by their ids outside."""
        return [] if self._first is None else descendants(self._first.pid)

    def tops(self) -> dict[int, int]:
        """The processes without a parent of their own: id outside -> id inside."""
        if self._first is None:
            return {}
        init, known = self._first.pid, self._inside
        self._inside = {pid: known.get(pid) or _pid_inside(pid, init) for pid in children(init)}
        return {pid: inside for pid, inside in self._inside.items() if inside}

    def has_more_than(self, tasks: int) -> bool:
        """Whether more processes than so many tasks have no parent of their own."""
        return self._first is not None and len(children(self._first.pid)) > tasks

    def signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        """Send a signal to processes of the tasks, by their ids outside; those of other users get it from inside."""
        if self._first is None:
            return
        ours: list[int] = []
        others: list[int] = []
        for pid in pids:
            with suppress(OSError):
                (ours if Path(f"/proc/{pid}").stat().st_uid == os.geteuid() else others).append(pid)
        send_signal(ours, number)
        inside = [_pid_inside(pid, self._first.pid) for pid in others]
        if inside:
            with suppress(CellLost):
                self._send(("signal", int(number), [pid for pid in inside if pid]))

    def kill(self) -> bool:
        """End it with everything in it. False if something is left after some seconds."""
        self.cpu_ms()
        first, self._first = self._first, None
        if first is None:
            return True
        if first.errors is not None:
            first.errors.seek(0)
            self._last_words = last_line(first.errors.read(_ERROR_BYTES))
            first.errors.close()
        first.line.close()
        if self._attached >= 0:
            os.close(self._attached)
            self._attached = -1
        released = first.release()
        self._was_out_of_memory = released if first.leaf is None else first.leaf.has_killed()
        if first.leaf is not None:
            first.leaf.end()  # at once, however fast its processes fork
        gone = first.encloses or kill_until_gone(lambda: descendants(first.pid), timeout_s=_END_S)
        since_s = self._since_s
        init = partial(is_same_process, first.pid, since_s)
        gone = kill_until_gone(lambda: [first.pid] if init() else [], timeout_s=_END_S) and gone
        if first.process is not None:
            with suppress(subprocess.TimeoutExpired, ChildProcessError):
                first.process.wait(_END_S)
        return (first.leaf is None or first.leaf.end()) and gone

    def _send(self, request: tuple[Any, ...], *descriptors: int) -> None:
        if self._first is None:
            raise CellLost
        try:
            socket.send_fds(self._first.line, [marshal.dumps(request)], descriptors)
        except OSError as error:
            self.kill()
            raise CellLost(self._last_words) from error

    def _reply(self, **kinds: int) -> tuple[str, list[int]]:
        """The next message of one of these kinds, which has so many numbers."""
        while True:
            found = self._receive(_REPLY_S)
            if found is not None and kinds.get(found[0]) == len(found[1]):
                return found
            if found is None or found[0]:
                self.kill()
                raise CellLost(self._last_words)

    def _receive(self, wait_s: float) -> tuple[str, list[int]] | None:
        """The next message, None if there is none; ("", []) is one about an end, which is kept."""
        if self._first is None:
            raise CellLost
        try:
            if not self._said:
                waiting = select.poll()
                waiting.register(self._first.line, select.POLLIN)
                if not waiting.poll(wait_s * 1000):
                    return None
                self._hear(self._first.line)
            kind, *words = self._said.popleft().split()
            numbers = [min(int(word), _MOST) for word in words]
            if kind == "ended":
                pid, status, cpu_ms, peak_kb = numbers
                os.waitstatus_to_exitcode(status)
                self._ended.append(EndedTask(pid, status, cpu_ms, peak_kb // 1024))
                return "", []
        except (OSError, ValueError, OverflowError):
            self.kill()
            raise CellLost(self._last_words) from None
        return kind, numbers

    def _hear(self, line: socket.socket) -> None:
        """Take a message, and the descriptor that came with it. Raises: OSError, ValueError."""
        said, given, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        for file in given:
            if self._attached >= 0:
                os.close(self._attached)
            self._attached = file
        self._said.extend(said.decode("ascii").split("\n"))


def last_line(said: bytes) -> str:
    """The last line of an error message."""
    lines = said.decode(errors="replace").strip().splitlines()
    return one_line(lines[-1], _ERROR_BYTES) if lines else ""


def end_remains(first: int, since_s: float, lock: Path) -> bool:
    """Kill what is left of the cell of an executor that has ended. False while something is left.

    `first` is its first process, started at `since_s`; `lock` is the executor's lock file.
    """
    ended = end_leaf(lock)
    if first and is_same_process(first, since_s):
        ids = _namespace_pids(first)
        encloses = len(ids) > 1 and ids[-1] == 1
        send_signal((not encloses and descendants(first)) or [first], signal.SIGKILL)
        return False
    return ended


def _pid_inside(pid: int, init: int) -> int:
    """The id of a process in the namespace of process `init`; 0 if it has ended."""
    ours, its = _namespace_pids(init), _namespace_pids(pid)
    return its[len(ours) - 1] if ours and len(its) >= len(ours) else 0


def _namespace_pids(pid: int) -> list[int]:
    """The ids of a process, from our namespace to its own."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():  # it may have any name
            if line.startswith("NSpid:"):
                return list(map(int, line.split()[1:]))
    return []
