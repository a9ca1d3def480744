"""A driver: a process that runs an app's own program once, with its own output and exit (semantics D3).

Like an executor, it enforces the memory limit, leaves no process behind, and stops when its grant is revoked. An outage
of the store or the API does not stop it.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import structlog

from scheduler.service.outage import AWAY, Outage
from scheduler.store.task_queue import Begun, Completion
from workers.executor import OUTPUT_S, STOPPED, ExecutorSpec, live
from workers.processes import Wakeup
from workers.rundir import ExitNote, RunDir
from workers.task_group import TaskGroup
from workers.tasks import TaskStarter

if TYPE_CHECKING:
    from scheduler.model.grants import RuntimeWarn
    from workers.cell import Cell
    from workers.door import ExecutorDoor

_log = structlog.get_logger()


class Driver:
    """One driver; `work_off` runs it to its end."""

    def __init__(self, spec: ExecutorSpec, door: ExecutorDoor, cell: Cell) -> None:
        self._grant = spec.grant.model_copy(update={"time_limit_s": None})
        self._worker, self._host = spec.worker, spec.host
        self._door = door
        self._files = RunDir(spec.run_dir, spec.worker)
        self._cell = cell
        self._group = TaskGroup(self._grant, spec.grace_s, cell)
        self._warned: RuntimeWarn | None = None
        self._stop = False
        self._grace_s = spec.grace_s
        self._next_check_s = 0.0
        self._tail = b""
        """Output tail that is not in the store yet."""
        self._wakeup = Wakeup(self._on_term)

    def work_off(self) -> ExitNote:
        """Run the program until it ends, the grant is revoked, its app's time is over (X2) or SIGTERM arrives."""
        begun = False
        outage = Outage(driver=self._grant.executor)
        while not self._stop and not self._group.ended:
            quiet_s = self._group.quiet_s()
            try:
                if not begun:
                    if not self._door.fill():
                        break
                    where = self._worker, self._files, self._cell
                    starter = TaskStarter(self._grant, *where, self._door.secrets, host=self._host)
                    self._group.add(*starter.start(Begun(0, 1)))
                    begun = True
                self._check_store()
                outage.is_over()
            except AWAY as error:
                quiet_s = min(quiet_s, outage.goes_on(error))
                self._next_check_s = 0.0
            self._group.wait(self._wakeup, quiet_s)
            self._group.reap()
            self._group.enforce()
        ended = self._group.ended[0] if self._group.ended else None
        self._group.stop(self._wakeup, self._grace_s)
        return self._note(ended)

    def _check_store(self) -> None:
        """Check the grant and store the output, at most once per `OUTPUT_S`."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + OUTPUT_S
        leaving = self._files.leaving(self._grant.executor)
        if leaving is not None and leaving.firm:
            self._stop, self._grace_s = True, leaving.grace_s
        warning, self._warned = self._warned, self._files.warning(self._grant.executor)
        if self._warned is not None and self._warned != warning:
            self._group.pass_on(signal.Signals[f"SIG{self._warned.signal}"])
        self._tail = next(iter(self._group.news().values()), self._tail)
        if not self._door.keep_output({0: self._tail} if self._tail else {}):
            self._stop = True
        self._tail = b""

    def _note(self, ended: Completion | None) -> ExitNote:
        grant = self._grant
        if ended is None:
            return ExitNote(app=grant.app, reason="killed", exit_code=STOPPED)
        try:
            self._door.keep_output({0: ended.output})
        except AWAY as error:
            _log.warning("could not store the driver's last output", driver=grant.executor, error=str(error))
        reason = "exited" if ended.outcome == "succeeded" else "failed"
        return ExitNote.model_validate(
            {"app": grant.app, "reason": reason, "exit_code": ended.exit_code, "detail": ended.message}
        )

    def _on_term(self) -> None:
        self._stop = True


def run_driver(spec: ExecutorSpec, lock: int) -> int:
    """Run the driver `spec` in this process, which holds its lock. Returns the exit code."""
    return live(spec, lock, lambda door, cell: Driver(spec, door, cell).work_off())
