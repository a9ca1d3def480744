"""An executor: one Python process that runs an app's tasks, as many at once as its cores suffice for (semantics A7).

It is an RQ worker on the app's queue that takes and reports several tasks per round trip and starts each as a process.
It ends when no task is left; an executor of an app that sizes itself ends with its app (semantics S5, S6).

- It starts nothing once its grant is revoked.
- It reports only tasks that it has started, or could not start.
- It takes no more tasks once one could not be started, and ends when those that run have ended (semantics W9).
- While failed tasks of its app wait for their next attempt and none runs, it stays (semantics W10).
- It leaves no process behind.
- An outage of the store stops no task; completions are reported afterwards.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import structlog
from pydantic import BaseModel, ConfigDict, Field
from redis.exceptions import RedisError
from rq.serializers import JSONSerializer
from rq.worker import SimpleWorker, WorkerStatus

from scheduler.model.commands import EndApp, ReportBacklog
from scheduler.model.grants import Grant, Leaving, RuntimeWarn
from scheduler.model.sender import worker_sender
from scheduler.service.client import Client
from scheduler.service.keyring import Keyring
from scheduler.service.outage import Outage
from scheduler.store.connection import ANSWER_S, connect
from scheduler.store.doorbell import RING_LUA
from scheduler.store.keys import Keys, bell_id, queue_key
from scheduler.store.task_queue import Completion, Step, Worklist
from workers.launchers import Place, launch
from workers.processes import Wakeup, become_subreaper, started_s
from workers.rundir import ExitNote, Holder, RunDir
from workers.sandbox import CellSettings, socket_folder
from workers.task_group import TaskGroup
from workers.tasks import TaskStarter

if TYPE_CHECKING:
    from redis import Redis

    from workers.cell import Cell

OUTPUT_S = 1.0
"""How often the output of running tasks is stored, and a driver's grant is checked."""
_HEARTBEAT_S = 10
_BACKLOG_S = 1.0
"""Minimum interval between two backlog reports of an executor."""
STOPPED = 128 + signal.SIGTERM
"""Exit code of an executor or driver that was stopped."""
UNSTARTABLE = 126
"""Exit code of an executor that could not start its app's command."""
Ending = Literal["exited", "killed", "failed"]
"""How an executor ends; `failed`: it cannot start the app's command."""
_log = structlog.get_logger()


class ExecutorSpec(BaseModel):
    """Everything that the process of an executor or driver is given."""

    model_config = ConfigDict(frozen=True)

    grant: Grant
    worker: str
    store: str
    cluster: str
    run_dir: Path
    launcher: str = "plain"
    cells: CellSettings = CellSettings()
    pin: bool = False
    outlive_agent: bool = True
    grace_s: float = 5
    host: str = ""
    """The worker's, as its peers reach it."""
    keys: str | None = Field(default=None, repr=False)
    """The keys that sign its messages and open the secrets of apps (`Keyring.as_json`)."""

    @property
    def keyring(self) -> Keyring | None:
        """These keys."""
        return None if self.keys is None else Keyring.of_json(self.keys)

    @property
    def secret_key(self) -> bytes | None:
        """The key that opens the secrets of apps."""
        return None if self.keyring is None else self.keyring.apps or None


class Executor(SimpleWorker):
    """An executor's RQ worker; `work_off` runs it to its end."""

    def __init__(self, spec: ExecutorSpec, connection: Redis, cell: Cell) -> None:
        grant, keys = spec.grant, Keys(spec.cluster)
        super().__init__(
            [keys.app_queue(grant.app)],
            name=f"{grant.executor}.{uuid4().hex}",
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=30,
        )
        self._spec = spec
        self._client = Client(connection, spec.cluster, keyring=spec.keyring, by=worker_sender(spec.worker))
        self._work = Worklist(connection, spec.cluster, secret_key=spec.secret_key)
        self._files = RunDir(spec.run_dir, spec.worker)
        self._cell = cell
        self._group = TaskGroup(grant, spec.grace_s, cell)
        self._grace_s: float = spec.grace_s
        self._starter: TaskStarter | None = None
        self._told: Leaving | None = None
        """What it was told about leaving, in the turn before."""
        self._warned: RuntimeWarn | None = None
        self._filled = False
        self._verdict: EndApp | None = None
        self._verdict_sent = False
        self._unstartable = ""
        """Why the app's command cannot be started on this worker."""
        self._idle = False
        self._next_output_s = 0.0
        self._next_heartbeat_s = 0.0
        self._next_backlog_s = 0.0
        self._backlog: ReportBacklog | None = None
        self._reported: ReportBacklog | None = None
        self._tails: dict[int, bytes] = {}
        """Output tails that are not in the store yet."""
        self._wakeup = Wakeup(self.stop)

    @property
    def connection_timeout(self) -> int:
        """RQ's minimum timeout for answers of the store."""
        return ANSWER_S

    def _set_ip_address(self, connection: Redis) -> None:  # noqa: ARG002 - RQ's signature
        """Replaces RQ's method, which lists all clients of the store to find the address."""
        self.ip_address = socket.gethostname()

    def work_off(self) -> ExitNote:
        """Run tasks until none is left, the app is over, the grant is revoked or SIGTERM arrives."""
        outage = Outage(executor=self._spec.grant.executor)
        while True:
            self._group.reap()
            self._group.enforce()
            outage_s = 0.0
            try:
                if outage:
                    self.heartbeat()
                ended = self._turn()
                outage.is_over()
            except RedisError as error:
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
        grant, worker = self._spec.grant, self._spec.worker
        self._keep_alive()
        if self._verdict is not None:
            return self._announce(self._verdict)
        leaving, told = self._files.leaving(grant.executor), self._told
        self._told = leaving
        if leaving is not None and leaving.signal and leaving != told:
            self._group.pass_on(signal.Signals[f"SIG{leaving.signal}"])
        warning, self._warned = self._warned, self._files.warning(grant.executor)
        if self._warned is not None and self._warned != warning:
            self._group.pass_on(signal.Signals[f"SIG{self._warned.signal}"])
        if leaving is not None and (ended := self._leave(leaving)):
            return ended
        if self._starter is None:
            secrets = partial(self._work.secrets, grant.app)
            self._starter = TaskStarter(grant, worker, self._files, self._cell, secrets, host=self._spec.host)
        if not self._filled:
            if not self._work.fill(grant.app, grant.tasks, worker=worker, executor=grant.executor):
                return "killed"
            self._filled = True
        want = 0 if leaving is not None or self._unstartable else grant.tasks_at_once - len(self._group)
        self._idle = leaving is not None
        if want or self._group.ended:
            return self._exchange(self._starter, want)
        self._report_backlog()
        self._store_output()
        return None

    def _leave(self, leaving: Leaving) -> Literal["killed"] | None:
        """End if no task runs, or when a firm deadline has come; its tasks return to the queue (semantics E5)."""
        if leaving.firm and time.time() * 1000 >= leaving.deadline:
            self._grace_s = leaving.grace_s
            return "killed"
        return None if len(self._group) or self._group.ended else "killed"

    def _exchange(self, starter: TaskStarter, want: int) -> Ending | None:
        grant = self._spec.grant
        reported = list(self._group.ended)
        step = self._work.step(
            grant.app,
            reported,
            worker=self._spec.worker,
            executor=grant.executor,
            want=want,
            retries=grant.retries,
            backoff_s=grant.retry_backoff_s,
            rq_worker=self.name,
        )
        del self._group.ended[: len(reported)]
        for job in step.refused:
            _log.warning("removed a foreign job from the app's queue", job=job, app=grant.app)
        self._start(starter, step, want)
        if step.verdict is not None and not grant.has_driver:
            self._verdict = EndApp(app=grant.app, reason=step.verdict, detail=step.detail)
            return self._announce(self._verdict)
        if not step.granted:
            return "killed"
        if step.tasks < grant.tasks:
            self._filled = False  # the store failed over and lost jobs
            return None
        if not len(self._group) and not self._group.ended:
            if self._unstartable:
                return "failed"
            if want and not grant.stays and (step.next_ms < 0 or step.running):
                return "exited"
        self._idle = not self._group.ended and (not want or len(step.taken) < want)
        if grant.elastic:
            self._backlog = ReportBacklog(
                executor=grant.executor, waiting=step.waiting, running=step.running, idle=not len(self._group)
            )
        self._report_backlog()
        self._store_output()
        return None

    def _start(self, starter: TaskStarter, step: Step, want: int) -> None:
        unknown = [begun for begun in dict.fromkeys([*step.taken, *step.mine]) if begun.task not in self._group]
        for begun in unknown[:want]:
            started = starter.start(begun)
            self._group.add(started)
            if isinstance(started, Completion) and started.outcome == "unstartable":
                self._unstartable = started.message

    def _report_backlog(self) -> None:
        """Report an elastic app's backlog to the master if it has changed (semantics L6)."""
        now_s = time.monotonic()
        if self._backlog is None or self._backlog == self._reported or now_s < self._next_backlog_s:
            return
        self._client.notify(self._backlog)
        self._reported = self._backlog
        self._next_backlog_s = now_s + _BACKLOG_S

    def _announce(self, verdict: EndApp) -> Literal["exited"]:
        """Report the app's end before the executor's, so that the executor is not replaced."""
        if not self._verdict_sent:
            self._client.notify(verdict)
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
            self._work.keep_output(self._spec.grant.app, self._spec.grant.executor, self._tails)
            self._tails.clear()

    def _keep_alive(self) -> None:
        if time.monotonic() < self._next_heartbeat_s:
            return
        if self._next_heartbeat_s:
            self.heartbeat()
        else:
            self._state = WorkerStatus.BUSY
            self.connection.delete(self.key)
            self.register_birth()  # type: ignore[no-untyped-call]
        self._next_heartbeat_s = time.monotonic() + _HEARTBEAT_S

    def _finish(self, reason: Ending) -> ExitNote:
        """Stop all processes, report and return tasks, and write how it ended (semantics S6)."""
        self._group.stop(self._wakeup, self._grace_s)
        spec, grant = self._spec, self._spec.grant
        try:
            if self._group.ended:
                self._work.step(
                    grant.app,
                    self._group.ended,
                    worker=spec.worker,
                    executor=grant.executor,
                    retries=grant.retries,
                    backoff_s=grant.retry_backoff_s,
                )
            if reason != "exited":
                self._work.put_back(grant.app, grant.executor)
            self.register_death()  # type: ignore[no-untyped-call]
            self.connection.delete(self.key)
        except RedisError as error:
            _log.warning("could not report the executor's end to the store", executor=grant.executor, error=str(error))
        exit_code = {"exited": 0, "killed": STOPPED, "failed": UNSTARTABLE}[reason]
        unstartable = self._unstartable if reason == "failed" else ""
        done = reason == "exited"
        note = ExitNote(app=grant.app, reason=reason, exit_code=exit_code, done=done, unstartable=unstartable)
        if self._verdict is None:
            return note
        return note.model_copy(update={"verdict": self._verdict.reason, "detail": self._verdict.detail})


def live(spec: ExecutorSpec, lock: int, work_off: Callable[[Redis, Cell], ExitNote]) -> int:
    """Turn this process, which holds the lock of the executor or driver `spec`, into it. Returns the exit code."""
    grant = spec.grant
    files = RunDir(spec.run_dir, spec.worker)
    become_subreaper()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each task needs two descriptors
    size = grant.cores, grant.memory_mb, grant.addresses, spec.grace_s
    holder = Holder(grant.executor, grant.app, os.getpid(), *size)
    files.name_holder(lock, holder)
    if spec.pin:
        cpus = files.claim_cpus(grant.cores)
        if cpus:
            os.sched_setaffinity(0, cpus)

    def named(first: int) -> None:
        files.name_holder(lock, holder._replace(first=first, first_s=started_s(first) or 0))

    hidden = (*spec.cells.hidden, files.root, *socket_folder(spec.store))
    place = Place(grant, files, spec.cells.model_copy(update={"hidden": hidden}))
    cell = launch(spec.launcher, place, named)
    connection = connect(spec.store)
    note = work_off(connection, cell)
    files.remove_scratch(grant.executor)
    files.write_exit(grant.executor, note)
    queue = Keys(spec.cluster).worker_queue(spec.worker)
    try:
        connection.eval(RING_LUA, 1, queue_key(queue), bell_id(queue))
    except RedisError:
        _log.info("could not ring for the agent, which finds the end at its next tick", queue=queue)
    return 0 if note.reason == "exited" else STOPPED


def run_executor(spec: ExecutorSpec, lock: int) -> int:
    """Run the executor `spec` in this process, which holds its lock. Returns the exit code."""
    return live(spec, lock, lambda connection, cell: Executor(spec, connection, cell).work_off())
