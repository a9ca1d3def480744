"""The visits of an executor: commands that people run in its cell, each attended by a thread with a door of its own.

A visit never keeps its executor, and ends with it. Its processes count against what the executor is granted.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from scheduler.service.outage import AWAY
from scheduler.store.visits import CHUNK_BYTES, MOST_CHUNKS, NOT_YET, REPORT_BYTES, Orders, Report, Visit
from workers.cell import Cell, CellLost, EndedTask
from workers.rundir import RunDir

if TYPE_CHECKING:
    from workers.door import ExecutorDoor

PAUSE_S = (0.02, 0.5)
"""The shortest and the longest pause between two calls of a thread."""
_AWAY_S = 45.0
"""A visit ends if its thread has reached no server for so long."""
_LAST_S = 5.0
"""An executor that ends waits for so long until visitors have heard how their commands have ended."""
_KILLED = 128 + signal.SIGKILL
_log = structlog.get_logger()


class ExecutorVisits:
    """The visits of one executor or driver. `pids` are their processes inside, those that run."""

    def __init__(self, executor: str, files: RunDir, open_door: Callable[[], ExecutorDoor], cell: Cell) -> None:
        self._executor, self._files, self._open_door, self._cell = executor, files, open_door, cell
        self._numbers = count(1 << 40)
        """Identities that no task has."""
        self._attended: dict[int, _Attended] = {}
        self._telling: list[_Attended] = []
        """Visits whose command has ended, and whose visitor may not have heard of that."""

    @property
    def pids(self) -> Sequence[int]:
        """The ids of their processes inside."""
        return list(self._attended)

    def begin(self) -> None:
        """Begin what was asked for since the last call, and end those whose visitors have gone."""
        self._telling = [each for each in self._telling if each.is_alive()]
        for pid in [pid for pid, each in self._attended.items() if each.over.is_set()]:
            outside = [top for top, inside in self._cell.tops().items() if inside == pid]
            self._cell.signal(outside, signal.SIGKILL)
        if not self._files.called(self._executor):
            return
        door = self._open_door()
        try:
            for visit in door.visits():
                self._begin(visit)
        except AWAY as error:
            self._files.call(self._executor)
            _log.warning("could not ask for visits", executor=self._executor, error=str(error))

    def ended(self, ends: Sequence[EndedTask]) -> None:
        """Note which of them have ended."""
        for end in ends:
            if (each := self._attended.pop(end.pid, None)) is not None:
                returned = os.waitstatus_to_exitcode(end.status)
                each.exit_code = returned if returned >= 0 else 128 - returned
                self._telling.append(each)

    def close(self) -> None:
        """End all of them, because the executor ends, and let their visitors hear of it."""
        left = list(self._attended.values())
        self._attended.clear()
        for each in left:
            each.exit_code = _KILLED
        deadline_s = time.monotonic() + _LAST_S
        for each in (*self._telling, *left):
            each.join(max(0.0, deadline_s - time.monotonic()))

    def _begin(self, visit: Visit) -> None:
        attended = _Attended(self._open_door, visit)
        try:
            if not self._cell.alive:
                raise CellLost(NOT_YET)  # noqa: TRY301 - one way to say it
            environment = {"TERM": visit.term} if visit.term else {}
            tty = bool(visit.rows)
            pid = self._cell.visit(next(self._numbers), visit.command, environment, attended.theirs, tty=tty)
            if isinstance(pid, int):
                self._attended[pid] = attended
            else:
                attended.error, attended.exit_code = f"command {visit.command[0]!r} does not exist in the cell", 127
        except CellLost as error:
            attended.error, attended.exit_code = str(error), 126
        for descriptor in set(attended.theirs):
            os.close(descriptor)
        attended.start()


class _Attended(Thread):
    """A visit: `theirs` are its input, output and errors; `over` is set once nobody wants it any more."""

    def __init__(self, open_door: Callable[[], ExecutorDoor], visit: Visit) -> None:
        super().__init__(name=f"visit {visit.visit}", daemon=True)
        self._open_door, self._visit = open_door, visit
        self.over = Event()
        self.exit_code: int | None = None
        self.error = ""
        self._size = visit.rows, visit.columns
        if visit.rows:
            ours, theirs = pty.openpty()
            self.theirs = [theirs] * 3
            self._input, self._outputs = ours, {ours: b"1"}
            self._resize(ours)
        else:
            (theirs_in, self._input), out, errors = os.pipe(), os.pipe(), os.pipe()
            self.theirs = [theirs_in, out[1], errors[1]]
            self._outputs = {out[0]: b"1", errors[0]: b"2"}
        for descriptor in {self._input, *self._outputs}:
            os.set_blocking(descriptor, False)
        self._unwritten = b""

    def run(self) -> None:
        """Carry input and output until the command has ended or its visitor has gone."""
        try:
            self._attend()
        finally:
            self.over.set()
            for descriptor in {self._input, *self._outputs} - {-1}:
                os.close(descriptor)

    def _attend(self) -> None:
        door = self._open_door()
        first = taken = 0
        chunks: list[bytes] = []
        full, pause_s, heard_s = False, PAUSE_S[0], time.monotonic()
        while True:
            code = self.exit_code  # before the last look at its output
            most = 0 if full else _room_beside(chunks)
            found = self._read(most, pause_s)
            chunks += found
            done = code is not None and len(found) < most
            report = Report(
                self._visit.visit,
                first,
                tuple(chunks),
                taken,
                code if done else None,
                self.error,
            )
            try:
                orders = door.attend(report)
            except AWAY:
                if time.monotonic() > heard_s + _AWAY_S:
                    return
                time.sleep(PAUSE_S[1])
                continue
            heard_s, busy = time.monotonic(), bool(chunks or orders.chunks)
            first, chunks, full = first + len(chunks), [], orders.full
            if done or not orders.there:
                return
            pause_s = PAUSE_S[0] if busy else min(PAUSE_S[1], pause_s * 1.3)
            taken += self._take(orders)

    def _read(self, most: int, wait_s: float) -> list[bytes]:
        """Up to `most` chunks of output, each after the digit of its stream; waits for the first one."""
        found: list[bytes] = []
        ready, _, _ = select.select([*self._outputs] if most else [], [], [], wait_s)
        while ready and len(found) < most:
            for descriptor in ready[: most - len(found)]:
                chunk = b""
                try:
                    chunk = os.read(descriptor, CHUNK_BYTES)
                except BlockingIOError:
                    ready.remove(descriptor)
                    continue
                except OSError:
                    pass  # a terminal that nobody has open
                if chunk:
                    found.append(self._outputs[descriptor] + chunk)
                else:
                    ready.remove(descriptor)
                    del self._outputs[descriptor]
                    if descriptor != self._input:
                        os.close(descriptor)
        return found

    def _take(self, orders: Orders) -> int:
        """Hand on input. Returns how many chunks are done with."""
        if orders.rows and (orders.rows, orders.columns) != self._size and self._visit.rows:
            self._size = orders.rows, orders.columns
            self._resize(self._input)
        if self._unwritten:
            self._write(b"")
            return 0
        for chunk in orders.chunks:
            self._write(chunk)
        if orders.ended and not self._unwritten and self._input >= 0 and not self._visit.rows:
            os.close(self._input)
            self._input = -1
        return len(orders.chunks)

    def _write(self, chunk: bytes) -> None:
        self._unwritten += chunk
        if self._input < 0:
            self._unwritten = b""
            return
        with suppress(BlockingIOError):
            try:
                while self._unwritten:
                    self._unwritten = self._unwritten[os.write(self._input, self._unwritten) :]
            except BlockingIOError:
                raise
            except OSError:
                self._unwritten = b""  # it reads no more

    def _resize(self, terminal: int) -> None:
        with suppress(OSError):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *self._size, 0, 0))


def _room_beside(chunks: Sequence[bytes]) -> int:
    """How many more chunks a report may hold, however large they are."""
    left_bytes = REPORT_BYTES - sum(map(len, chunks))
    return min(MOST_CHUNKS // 2 - len(chunks), left_bytes // (CHUNK_BYTES + 1))
