"""An executor: one Python process that runs an app's tasks, as many at once as its cores suffice for (semantics A7).

It takes and reports several tasks per round trip and starts each as a process. RQ's tools show it as a worker on the
app's queue.
It ends when no task is left; an executor of an app that sizes itself ends with its app (semantics S5, S6).

- It starts nothing once its grant is revoked, and ends once it finds that out, with or without an agent.
- It reports only tasks that it has started, or could not start.
- It takes no more tasks once one could not be started, and ends when those that run have ended (semantics W9).
- While failed tasks of its app wait for their next attempt and none runs, it stays (semantics W10).
- It leaves no process behind.
- An outage of the store or the API stops no task; completions are reported afterwards.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog
from msgspec import structs
from pydantic import BaseModel, ConfigDict, Field

from scheduler.model.arrays import indexes
from scheduler.model.grants import Grant, Leaving, RuntimeWarn
from scheduler.service.grant_tokens import claims_of
from scheduler.service.keyring import Keyring
from scheduler.service.outage import AWAY, Outage
from scheduler.store.task_queue import Completion, Step, Verdict
from workers.api_door import ApiExecutorDoor
from workers.door import Backlog, OutputTails
from workers.fitness import fault_of_worker
from workers.gpus import gpus_of
from workers.launchers import Place, launch
from workers.processes import Wakeup, become_subreaper, started_s
from workers.rundir import ExitNote, Holder, RunDir
from workers.sandbox import CellSettings, socket_folder
from workers.store_door import StoreExecutorDoor
from workers.task_group import TaskGroup, cancelled_why
from workers.tasks import TaskStarter
from workers.visits import ExecutorVisits

if TYPE_CHECKING:
    from workers.cell import Cell
    from workers.door import ExecutorDoor

OUTPUT_S = 1.0
"""How often the output of running tasks is stored, and a driver's grant is checked."""
_HEARTBEAT_S = 10
_BACKLOG_S = 1.0
"""Minimum interval between two backlog reports of an executor."""
_BACKLOG_AGAIN_S = 30.0
"""How often an unchanged backlog is looked at and reported again: a failover of the store may have lost the report."""
STOPPED = 128 + signal.SIGTERM
"""Exit code of an executor or driver that was stopped."""
UNSTARTABLE = 126
"""Exit code of an executor that could not start its app's command."""
Ending = Literal["exited", "killed", "failed"]
"""How an executor ends; `failed`: it cannot start the app's command."""
_log = structlog.get_logger()


class ExecutorSpec(BaseModel):
    """Everything that the process of an executor or driver is given.

    It reaches its cluster through the API servers `api` by the `token` of its grant, or over the `store`.
    """

    model_config = ConfigDict(frozen=True)

    grant: Grant
    worker: str
    api: str = ""
    token: str = Field(default="", repr=False)
    store: str = ""
    cluster: str = ""
    run_dir: Path
    launcher: str = "plain"
    cells: CellSettings = CellSettings()
    pin: bool = False
    outlive_agent: bool = True
    grace_s: float = 5
    host: str = ""
    """The worker's, as its peers reach it."""
    among_gpus: bool = False
    """Whether the worker offers graphics processors."""
    keys: str | None = Field(default=None, repr=False)
    """The keys that sign its messages and open the secrets of apps (`Keyring.as_json`)."""

    def door(self) -> ExecutorDoor:
        """The door through which it reaches its cluster."""
        if self.api:
            files = RunDir(self.run_dir, self.worker)
            return ApiExecutorDoor(self.api, self.worker, self.grant.executor, self.token, files)
        keyring = None if self.keys is None else Keyring.of_json(self.keys)
        return StoreExecutorDoor(self.store, claims_of(self.grant, self.cluster, self.worker), keyring)


class ExecutorProcess:
    """An executor; `work_off` runs it to its end."""

    def __init__(self, spec: ExecutorSpec, door: ExecutorDoor, cell: Cell) -> None:
        grant = spec.grant
        self._spec = spec
        self._door = door
        self._files = RunDir(spec.run_dir, spec.worker)
        self._cell = cell
        visits = ExecutorVisits(spec.grant.executor, self._files, spec.door, cell)
        self._group = TaskGroup(
            grant, spec.grace_s, cell, visits, partial(self._files.gpu_use, gpus_of(grant.addresses))
        )
        self._grace_s: float = spec.grace_s
        self._starter: TaskStarter | None = None
        self._told: Leaving | None = None
        """What it was told about leaving, in the turn before."""
        self._warned: RuntimeWarn | None = None
        self._signalled = max((sent.seq for sent in grant.signals), default=0)
        """The position of the last signal that was passed on."""
        self._cancelled_text = ""
        self._cancelled: frozenset[int] = frozenset()
        """The tasks of the app that were cancelled, and the list as it was told."""
        self._filled = False
        self._verdict: Verdict | None = None
        self._verdict_sent = False
        self._unstartable = ""
        """Why the app's command cannot be started on this worker."""
        self._unfit = ""
        """Why this worker can start nothing."""
        self._idle = False
        self._next_output_s = 0.0
        self._next_heartbeat_s = 0.0
        self._next_backlog_s = 0.0
        self._backlog_again_s = math.inf
        self._backlog: Backlog | None = None
        self._reported: Backlog | None = None
        self._tails: dict[int, bytes] = {}
        """Output tails that are not in the store yet."""
        self._stop_requested = False
        self._wakeup = Wakeup(self.stop)

    def work_off(self) -> ExitNote:
        """Run tasks until none is left, the app is over, the grant is revoked or SIGTERM arrives."""
        outage = Outage(executor=self._spec.grant.executor)
        while True:
            self._group.reap()
            self._group.enforce()
            outage_s = 0.0
            try:
                ended = self._turn()
                outage.is_over()
            except AWAY as error:
                outage_s = outage.goes_on(error)
                self._reported = ended = None
                self._filled = False
            if ended is not None or self._stop_requested:
                return self._finish(ended or "killed")
            if outage_s or len(self._group) or self._idle:
                self._group.wait(self._wakeup, outage_s or self._group.quiet_s())

    def stop(self) -> None:
        """Stop the running tasks and return them to the queue."""
        self._stop_requested = True

    def _turn(self) -> Ending | None:
        """Report ended tasks and take new ones. Returns how the executor ends, None to continue."""
        grant = self._spec.grant
        granted = self._keep_alive()
        if self._verdict is not None:
            return self._announce(self._verdict)
        if not granted:
            return "killed"
        leaving, told = self._files.leaving(grant.executor), self._told
        self._told = leaving
        self._pass_on(leaving, told)
        if leaving is not None and (ended := self._leave(leaving)):
            return ended
        if not self._filled:
            if not self._door.fill():
                return "killed"
            self._filled = True
            self._next_heartbeat_s = time.monotonic() + _HEARTBEAT_S
        if self._starter is None:
            self._starter = starter_of(self._spec, grant, self._cell, self._door)
        want = 0 if leaving is not None or self._unstartable or self._unfit else grant.tasks_at_once - len(self._group)
        self._idle = leaving is not None
        if want or self._group.ended or time.monotonic() >= self._backlog_again_s:
            return self._exchange(self._starter, want)
        self._report_backlog()
        self._store_output()
        return None

    def _pass_on(self, leaving: Leaving | None, told: Leaving | None) -> None:
        """Pass on to the tasks what signals they are to get (semantics H7, X2, X4)."""
        executor = self._spec.grant.executor
        if leaving is not None and leaving.signal and leaving != told:
            self._group.pass_on(signal.Signals[f"SIG{leaving.signal}"])
        warning, self._warned = self._warned, self._files.warning(executor)
        if self._warned is not None and self._warned != warning:
            self._group.pass_on(signal.Signals[f"SIG{self._warned.signal}"])
        for sent in self._files.signals(executor):
            if sent.seq > self._signalled:
                self._signalled = sent.seq
                self._group.send(sent)
        cancelled = self._files.cancelled(executor) or self._spec.grant.cancelled
        if cancelled != self._cancelled_text:
            self._cancelled_text, self._cancelled = cancelled, frozenset(indexes(cancelled))
            self._group.cancel(self._cancelled)

    def _leave(self, leaving: Leaving) -> Literal["killed"] | None:
        """End if no task runs, or when a firm deadline has come; its tasks return to the queue (semantics H7)."""
        if leaving.firm and time.time() * 1000 >= leaving.deadline:
            self._grace_s = leaving.grace_s
            return "killed"
        return None if len(self._group) or self._group.ended else "killed"

    def _exchange(self, starter: TaskStarter, want: int) -> Ending | None:
        grant = self._spec.grant
        ended = list(self._group.ended)
        reported = [self._as_cancelled(done) for done in ended]
        if self._group.unwritten:
            self._door.keep_output(OutputTails(unwritten=self._group.unwritten, why=self._group.why_unwritten))
            self._group.unwritten = 0
        step = self._door.step(reported, want=want)
        del self._group.ended[: len(ended)]
        for job in step.refused:
            _log.warning("removed a foreign job from the app's queue", job=job, app=grant.app)
        self._start(starter, step, want)
        if step.verdict is not None and not grant.has_driver:
            self._verdict = step.verdict
            return self._announce(self._verdict)
        if not step.granted:
            return "killed"
        if step.tasks < grant.tasks:
            self._filled = False  # the store failed over and lost jobs
            return None
        if not len(self._group) and not self._group.ended:
            if self._unstartable or self._unfit:
                return "failed" if self._unstartable else "killed"
            if want and not grant.stays and (step.next_ms < 0 or step.running):
                return "exited"
        self._idle = not self._group.ended and (not want or len(step.taken) < want)
        if grant.elastic or step.preferring is not None:
            self._backlog = self._backlog_of(step)
        self._report_backlog()
        self._store_output()
        return None

    def _start(self, starter: TaskStarter, step: Step, want: int) -> None:
        unknown = [begun for begun in dict.fromkeys([*step.taken, *step.mine]) if begun.task not in self._group]
        for begun in [begun for begun in unknown if begun.task in self._cancelled]:
            unknown.remove(begun)
            why = cancelled_why(f"task {begun.task}")
            self._group.add(Completion(begun.task, "cancelled", None, why, attempt=begun.attempt))
        begins = unknown[:want]
        for started in starter.start(*begins) if begins else ():
            self._group.add(started)
            if isinstance(started, Completion) and started.outcome == "unstartable":
                self._unstartable = started.message
        self._unfit = self._unfit or starter.unfit

    def _as_cancelled(self, done: Completion) -> Completion:
        """The completion of a task that was cancelled as what it is, unless the task has succeeded (semantics X4)."""
        if done.task not in self._cancelled or done.outcome not in ("failed", "unstartable", "returned"):
            return done
        return done._replace(outcome="cancelled", message=cancelled_why(f"task {done.task}"))

    def _backlog_of(self, step: Step) -> Backlog:
        """The backlog to report, with the preferred hosts that this step told, or one before it that is unreported."""
        known, backlog = self._backlog, Backlog(step.waiting, step.running, not len(self._group))
        if step.preferring is not None:
            return structs.replace(backlog, preferring_tasks=step.preferring, prefer=step.prefer)
        if known is not None and known != self._reported:
            return structs.replace(backlog, preferring_tasks=known.preferring_tasks, prefer=known.prefer)
        return backlog

    def _report_backlog(self) -> None:
        """Report the backlog to the master if it has changed, or after some time (semantics L6, L7)."""
        now_s = time.monotonic()
        again = now_s >= self._backlog_again_s
        if self._backlog is None or (self._backlog == self._reported and not again) or now_s < self._next_backlog_s:
            return
        self._door.backlog(self._backlog)
        self._reported = self._backlog
        self._next_backlog_s, self._backlog_again_s = now_s + _BACKLOG_S, now_s + _BACKLOG_AGAIN_S

    def _announce(self, verdict: Verdict) -> Literal["exited"]:
        """Report the app's end before the executor's, so that the executor is not replaced."""
        if not self._verdict_sent:
            self._door.end_app(verdict.reason, verdict.detail)
            self._verdict_sent = True
        return "exited"

    def _store_output(self) -> None:
        """Store the output of running tasks for `logs --follow`."""
        now_s = time.monotonic()
        if now_s < self._next_output_s:
            return
        self._next_output_s = now_s + OUTPUT_S
        self._tails |= self._group.news()
        if self._tails:
            self._door.keep_output(OutputTails(tails=list(self._tails.items())))
            self._tails.clear()

    def _keep_alive(self) -> bool:
        """Show life now and then. False if the grant is gone, which nobody tells while there is no agent."""
        if not self._next_heartbeat_s or time.monotonic() < self._next_heartbeat_s:
            return True
        self._door.show_life()
        granted = self._door.keep_output(OutputTails(unused=self._group.unused))
        self._next_heartbeat_s = time.monotonic() + _HEARTBEAT_S
        return granted

    def _finish(self, reason: Ending) -> ExitNote:
        """Stop all processes, report and return tasks, and write how it ended (semantics S6)."""
        self._group.stop(self._wakeup, self._grace_s)
        grant = self._spec.grant
        try:
            if self._group.ended:
                self._door.step([self._as_cancelled(done) for done in self._group.ended], want=0)
            self._door.finish(put_back=reason != "exited")
        except AWAY as error:
            _log.warning("could not report the executor's end", executor=grant.executor, error=str(error))
        exit_code = {"exited": 0, "killed": STOPPED, "failed": UNSTARTABLE}[reason]
        unstartable = self._unstartable if reason == "failed" else ""
        done = reason == "exited"
        note = ExitNote(
            app=grant.app,
            reason=reason,
            exit_code=exit_code,
            done=done,
            unstartable=unstartable,
            unfit=self._unfit if reason == "killed" else "",
            used=self._group.used,
        )
        if self._verdict is None:
            return note
        return note.model_copy(update={"verdict": self._verdict.reason, "detail": self._verdict.detail})


def starter_of(spec: ExecutorSpec, grant: Grant, cell: Cell, door: ExecutorDoor) -> TaskStarter:
    """What starts the tasks or the program of the grant in the cell."""
    return TaskStarter(
        grant,
        spec.worker,
        RunDir(spec.run_dir, spec.worker),
        cell,
        door.secrets,
        host=spec.host,
        among_gpus=spec.among_gpus,
        launcher=spec.launcher,
    )


def live(spec: ExecutorSpec, lock: int, work_off: Callable[[ExecutorDoor, Cell], ExitNote]) -> int:
    """Turn this process, which holds the lock of the executor or driver `spec`, into it. Returns the exit code."""
    grant = spec.grant
    files = RunDir(spec.run_dir, spec.worker)
    become_subreaper()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each task needs several descriptors
    size = grant.cores, grant.memory_mb, grant.addresses, spec.grace_s
    holder = Holder(grant.executor, grant.app, os.getpid(), *size)
    door = spec.door()
    try:
        files.name_holder(lock, holder)
        cpus = files.claim_cpus(grant.cores) if spec.pin else []
        if cpus:
            os.sched_setaffinity(0, cpus)
    except OSError as error:
        why = fault_of_worker(error, files, spec.launcher) or f"nothing can be started: {error.strerror}"
        return _end(files, grant.executor, ExitNote(app=grant.app, reason="killed", exit_code=STOPPED, unfit=why), door)

    def named(first: int) -> None:
        files.name_holder(lock, holder._replace(first=first, first_s=started_s(first) or 0))

    sockets = (socket_folder(address) for address in (spec.store, *spec.api.split(",")))
    hidden = (*spec.cells.hidden, files.root, *(folder for folders in sockets for folder in folders))
    place = Place(grant, files, spec.cells.model_copy(update={"hidden": hidden}))
    note = work_off(door, launch(spec.launcher, place, named))
    files.remove_scratch(grant.executor)
    return _end(files, grant.executor, note, door)


def _end(files: RunDir, executor: str, note: ExitNote, door: ExecutorDoor) -> int:
    """Write how it ended, and tell the agent. Returns the exit code."""
    try:
        files.write_exit(executor, note)
    except OSError as error:  # the agent finds out that nothing is said of it
        _log.warning("how the executor ended was not kept", executor=executor, error=str(error))
    door.ring()
    return 0 if note.reason == "exited" else STOPPED


def run_executor(spec: ExecutorSpec, lock: int) -> int:
    """Run the executor `spec` in this process, which holds its lock. Returns the exit code."""
    return live(spec, lock, lambda door, cell: ExecutorProcess(spec, door, cell).work_off())
