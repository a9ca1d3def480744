"""A driver, or an executor that runs one program in place of tasks: one program, run once (semantics D3, G1, G2).

It ends with its program, when its grant is revoked, at a firm deadline, or on SIGTERM, and leaves no process behind.
The program of an executor runs in a scratch folder of its own, which is deleted with the executor. An outage of the
store or the API does not stop it.

A firm deadline is when SIGTERM is due. A driver is told to leave only once its app's time is over (X2): now.
"""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog

from scheduler.model.commands import Measured
from scheduler.model.ids import number_of
from scheduler.service.outage import AWAY, Outage
from scheduler.store.task_queue import Completion, TaskBegun
from workers.door import OutputTails
from workers.executor import OUTPUT_S, STOPPED, ExecutorSpec, live, starter_of
from workers.gpus import gpus_of
from workers.processes import Wakeup
from workers.rundir import ExitNote, RunDir
from workers.task_group import TaskGroup
from workers.visits import ExecutorVisits

if TYPE_CHECKING:
    from scheduler.model.grants import Leaving, RuntimeWarn
    from workers.cell import Cell
    from workers.door import ExecutorDoor

_NOT_STARTED = (126, 127)
"""The exit codes that shells have for a command which cannot be run, or does not exist."""
_AT_ONCE_S = 10.0
"""A program that ends with one of these sooner than so long after it began could not be started."""
_log = structlog.get_logger()


class Program:
    """The program of one executor or driver; `work_off` runs it to its end."""

    def __init__(self, spec: ExecutorSpec, door: ExecutorDoor, cell: Cell) -> None:
        self._spec = spec
        grant = spec.grant
        self._grant = grant if grant.program else grant.model_copy(update={"time_limit_s": None})
        self._number = number_of(grant.executor) if grant.program else 0
        self._door = door
        self._files = RunDir(spec.run_dir, spec.worker)
        self._cell = cell
        visits = ExecutorVisits(spec.grant.executor, self._files, spec.door, cell)
        gpus = partial(self._files.gpu_use, gpus_of(grant.addresses))
        self._group = TaskGroup(self._grant, spec.grace_s, cell, visits, gpus)
        self._warned: RuntimeWarn | None = None
        self._signalled = max((sent.seq for sent in grant.signals), default=0)
        """The position of the last signal that was passed on."""
        self._grace_s = spec.grace_s
        self._stop = False
        self._told: Leaving | None = None
        self._next_check_s = 0.0
        self._began_s = 0.0
        self._unfit = ""
        """Why the worker can start nothing."""
        self._tail = b""
        """Output that is not in the store yet."""
        self._wakeup = Wakeup(self._on_term)

    def work_off(self) -> ExitNote:
        """Run the program until it ends, the grant is revoked, a firm deadline comes (H7, X2) or SIGTERM arrives."""
        begun = False
        outage = Outage(executor=self._grant.executor)
        while not self._stop and not self._group.ended:
            quiet_s = self._group.quiet_s()
            try:
                if not begun:
                    if not self._door.fill():
                        break
                    self._begin()
                    begun = True
                self._check()
                outage.is_over()
            except AWAY as error:
                quiet_s = min(quiet_s, outage.goes_on(error))
                self._next_check_s = 0.0
            if not self._stop and not self._group.ended:
                self._group.wait(self._wakeup, quiet_s)
            self._group.reap()
            self._group.enforce()
        ended = self._group.ended[0] if self._group.ended else None
        self._group.stop(self._wakeup, self._grace_s)
        return self._note(ended)

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        starter = starter_of(self._spec, self._grant, self._cell, self._door)
        for started in starter.start(TaskBegun(self._number, 1)):
            self._group.add(started)
        self._unfit = starter.unfit
        self._stop = self._stop or bool(self._unfit)

    def _check(self) -> None:
        """Look at what it was told about leaving and at its grant, and store the output, once in `OUTPUT_S`."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + OUTPUT_S
        leaving, told = self._files.leaving(self._grant.executor), self._told
        self._told = leaving
        if leaving is not None and leaving.signal and leaving != told:
            self._group.pass_on(signal.Signals[f"SIG{leaving.signal}"])
        warning, self._warned = self._warned, self._files.warning(self._grant.executor)
        if self._warned is not None and self._warned != warning:
            self._group.pass_on(signal.Signals[f"SIG{self._warned.signal}"])
        for sent in self._files.signals(self._grant.executor):
            if sent.seq > self._signalled:
                self._signalled = sent.seq
                if sent.task is None:
                    self._group.send(sent)
        if leaving is not None and leaving.firm and time.time() * 1000 >= leaving.deadline:
            self._stop, self._grace_s = True, leaving.grace_s
        self._tail = next(iter(self._group.news().values()), self._tail)
        tails = [(0, self._tail)] if self._tail else []
        if not self._door.keep_output(OutputTails(tails=tails, unused=self._group.unused)):
            self._stop = True
        self._tail = b""

    def _note(self, ended: Completion | None) -> ExitNote:
        grant, used = self._grant, self._group.used
        for last in self._group.ended[:1]:
            self._keep(last)
        if ended is None:
            return ExitNote(app=grant.app, reason="killed", exit_code=STOPPED, unfit=self._unfit, used=used)
        why = ended.message if ended.outcome == "unstartable" else ""
        if grant.port:  # it is one of a gang
            why = why or why_not_started(ended, time.monotonic() - self._began_s, self._spec.worker)
        if why and grant.program:
            return ExitNote(app=grant.app, reason="failed", exit_code=ended.exit_code, unstartable=why, used=used)
        well = ended.outcome == "succeeded"
        return ExitNote(
            app=grant.app,
            reason="exited" if well else "failed",
            exit_code=ended.exit_code,
            detail=ended.message,
            used=used,
        )

    def _keep(self, last: Completion) -> None:
        """Store what the program wrote before it ended, or was stopped."""
        group = self._group
        try:
            used = Measured(last.cpu_ms, last.peak_mb)
            tails = [(0, last.output)]
            self._door.keep_output(OutputTails(tails, unwritten=group.unwritten, why=group.why_unwritten, used=used))
        except AWAY as error:
            _log.warning("could not store the program's last output", executor=self._grant.executor, error=str(error))

    def _on_term(self) -> None:
        self._stop = True


def why_not_started(ended: Completion, ran_s: float, worker: str) -> str:
    """Why a program could not be started on the worker, if it says so at once and as shells do; else "" (G8, W9)."""
    said = f"its program ended with exit code {ended.exit_code}"
    if ended.exit_code not in _NOT_STARTED or ran_s >= _AT_ONCE_S or ended.message != said:
        return ""
    return (
        f"{said} on worker {worker}, as shells do where a command does not "
        "exist or cannot be run; its output says which"
    )


def run_program(spec: ExecutorSpec, lock: int) -> int:
    """Run the executor or driver `spec` in this process, which holds its lock. Returns the exit code."""
    return live(spec, lock, lambda door, cell: Program(spec, door, cell).work_off())
