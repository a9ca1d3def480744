"""A driver: the process that runs an app's own program once, with its own output and exit (semantics D3).

It is held to its memory and leaves no process behind, as an executor does, and stops when its grant is
gone. An outage of the store stops nothing.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import RedisError

from scheduler.service.outage import Outage
from scheduler.store.task_queue import Begun, Completion, Worklist
from workers.executor import STOPPED, ExecutorSpec, live, on_child, wakeup_pipe
from workers.rundir import ExitNote, RunDir
from workers.task_group import TaskGroup
from workers.tasks import TaskStarter

if TYPE_CHECKING:
    from redis import Redis

_SHOW_S = 1.0
_log = structlog.get_logger()


class Driver:
    """The life of one driver; `work_off` is all of it."""

    def __init__(self, spec: ExecutorSpec, connection: Redis) -> None:
        self._grant = spec.grant.model_copy(update={"time_limit_s": None})
        self._worker = spec.worker
        self._work = Worklist(connection, spec.cluster)
        self._files = RunDir(spec.run_dir, spec.worker)
        self._group = TaskGroup(self._grant, spec.grace_s)
        self._stop = False
        self._next_show_s = 0.0
        self._tail = b""
        """What it has printed, where the store does not have it yet."""
        self._wakeup = wakeup_pipe()

    def work_off(self) -> ExitNote:
        """Run the program until it ends, the grant is gone or a stop signal comes; the note says how it ended."""
        signal.signal(signal.SIGTERM, self._on_stop_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, on_child)
        begun = False
        outage = Outage(driver=self._grant.executor)
        while not self._stop and not self._group.ended:
            quiet_s = self._group.quiet_s()
            try:
                if not begun:
                    self._begin()
                    begun = True
                self._look_at_store()
                outage.is_over()
            except RedisError as error:
                quiet_s = min(quiet_s, outage.goes_on(error))
                self._next_show_s = 0.0
            self._wait(quiet_s)
            self._group.reap()
            self._group.enforce()
        ended = self._group.ended[0] if self._group.ended else None
        self._group.stop(self._wait)
        self._keep_end(ended)
        return self._note(ended)

    def _begin(self) -> None:
        starter = TaskStarter(self._grant, self._worker, self._files, self._work.secrets(self._grant.app))
        self._group.add(starter.start(Begun(0, 1)))

    def _look_at_store(self) -> None:
        """Once in a while: whether it is still granted, and the end of what it has printed so far."""
        now_s = time.monotonic()
        if now_s < self._next_show_s:
            return
        self._next_show_s = now_s + _SHOW_S
        if not self._work.is_granted(self._worker, self._grant.executor):
            self._stop = True
        self._tail = next(iter(self._group.news().values()), self._tail)
        if self._tail:
            self._work.keep_driver_output(self._grant.app, self._tail)
            self._tail = b""

    def _keep_end(self, ended: Completion | None) -> None:
        try:
            if ended is not None:
                self._work.keep_driver_output(self._grant.app, ended.output)
        except RedisError as error:
            _log.warning("the store did not get all of the output", driver=self._grant.executor, error=str(error))

    def _note(self, ended: Completion | None) -> ExitNote:
        if ended is None:
            return ExitNote(app=self._grant.app, reason="killed", exit_code=STOPPED)
        succeeded = ended.outcome == "succeeded"
        reason = "exited" if succeeded else "failed"
        return ExitNote.model_validate(
            {"app": self._grant.app, "reason": reason, "exit_code": ended.exit_code, "detail": ended.message}
        )

    def _on_stop_signal(self, *_: object) -> None:
        self._stop = True

    def _wait(self, timeout_s: float) -> None:
        if select.select([self._wakeup], [], [], timeout_s)[0]:
            os.read(self._wakeup, 4096)


def run_driver(spec: ExecutorSpec, lock: int) -> int:
    """Be the driver of `spec`, whose lock this process holds; the exit code of the process."""
    return live(spec, lock, lambda connection: Driver(spec, connection).work_off())
