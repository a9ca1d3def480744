"""An executor: one Python process that runs an app's tasks, as many at once as it was granted cores.

It is an RQ worker of the app's queue that takes and hands in several tasks in one round trip, starts
each as a process, and is woken by whatever ends. It ends when it finds no task, or stays until its app
is over where the app sizes its own executors (semantics S5, S6). It keeps to three rules:
it begins nothing once its grant is gone, it ends no task that it has not begun, and it leaves no
process behind. An outage of the store stops none of its tasks; what ended meanwhile is handed in
afterwards.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import structlog
from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError
from rq.serializers import JSONSerializer
from rq.worker import SimpleWorker, WorkerStatus

from scheduler.model.commands import EndApp, ReportBacklog
from scheduler.model.grants import Grant
from scheduler.service.child import die_with_parent
from scheduler.service.client import Client
from scheduler.service.outage import Outage
from scheduler.store.connection import ANSWER_S, connect
from scheduler.store.doorbell import RING_LUA, bell_id, queue_key
from scheduler.store.keys import Keys
from scheduler.store.task_queue import Worklist
from workers.processes import become_subreaper
from workers.rundir import ExitNote, Holder, RunDir
from workers.task_group import TaskGroup
from workers.tasks import TaskStarter

if TYPE_CHECKING:
    from redis import Redis

_SHOW_S = 1.0
_BEAT_S = 10
STOPPED = 128 + signal.SIGTERM
"""The exit code of an executor or driver that was told to stop."""
_SAY_S = 1.0
"""How often at most an executor of an elastic app says how much work there is."""
_log = structlog.get_logger()


class ExecutorSpec(BaseModel):
    """All that the process of an executor is told."""

    model_config = ConfigDict(frozen=True)

    grant: Grant
    worker: str
    store: str
    cluster: str
    run_dir: Path
    launcher: str = "preloaded"
    pin: bool = False
    outlive_agent: bool = True
    grace_s: float = 5


class Executor(SimpleWorker):
    """The RQ worker behind an executor; `work_off` is its life."""

    def __init__(self, spec: ExecutorSpec, connection: Redis) -> None:
        grant, keys = spec.grant, Keys(spec.cluster)
        super().__init__(
            [keys.app_queue(grant.app)],
            name=f"{grant.executor}.{uuid4().hex}",
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=30,
        )
        self._spec = spec
        self._keys = keys
        self._work = Worklist(connection, spec.cluster)
        self._files = RunDir(spec.run_dir, spec.worker)
        self._group = TaskGroup(grant, spec.grace_s)
        self._starter: TaskStarter | None = None
        self._filled = False
        self._verdict: EndApp | None = None
        self._verdict_sent = False
        self._idle = False
        self._next_show_s = 0.0
        self._next_beat_s = 0.0
        self._said: ReportBacklog | None = None
        self._to_say: ReportBacklog | None = None
        self._next_word_s = 0.0
        self._tails: dict[int, bytes] = {}
        """What tasks have printed, where the store does not have it yet."""
        self._wakeup = wakeup_pipe()

    @property
    def connection_timeout(self) -> int:
        """How long RQ lets the store take for an answer, at least."""
        return ANSWER_S

    def _set_ip_address(self, connection: Redis) -> None:  # noqa: ARG002 - RQ's signature
        """RQ lists all clients of the store to find its own address: dear, and nobody asks for it."""
        self.ip_address = socket.gethostname()

    def work_off(self) -> ExitNote:
        """Run tasks until none is left, the app is over, the grant is gone or a stop signal comes."""
        signal.signal(signal.SIGTERM, self._on_stop_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, on_child)
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
                self._said = ended = None
                self._filled = False
            if ended is not None or self._stop_requested:
                return self._finish(ended or "killed")
            if outage_s or len(self._group) or self._idle:
                self._wait(outage_s or self._group.quiet_s())

    def stop(self) -> None:
        """End what runs and put it back."""
        self._stop_requested = True

    def _turn(self) -> Literal["exited", "killed"] | None:
        """Hand in and take what there is; how the executor ends, None while it goes on."""
        grant, worker = self._spec.grant, self._spec.worker
        self._keep_alive()
        if self._verdict is not None:
            return self._announce(self._verdict)
        if self._starter is None:
            self._starter = TaskStarter(grant, worker, self._files, self._work.secrets(grant.app))
        if not self._filled:
            if not self._work.fill(grant.app, grant.tasks, worker=worker, executor=grant.executor):
                return "killed"
            self._filled = True
        want = grant.cores - len(self._group)
        self._idle = False
        if want or self._group.ended:
            return self._exchange(self._starter, want)
        self._say()
        self._show()
        return None

    def _exchange(self, starter: TaskStarter, want: int) -> Literal["exited", "killed"] | None:
        grant = self._spec.grant
        handed_in = list(self._group.ended)
        step = self._work.step(
            grant.app,
            handed_in,
            worker=self._spec.worker,
            executor=grant.executor,
            want=want,
            retries=grant.retries,
            rq_worker=self.name,
        )
        del self._group.ended[: len(handed_in)]
        for job in step.refused:
            _log.warning("foreign job refused", job=job, app=grant.app)
        unknown = [begun for begun in dict.fromkeys([*step.taken, *step.mine]) if begun.task not in self._group]
        for begun in unknown[:want]:
            self._group.add(starter.start(begun))
        if step.verdict is not None and not grant.has_driver:
            self._verdict = EndApp(app=grant.app, reason=step.verdict, detail=step.detail)
            return self._announce(self._verdict)
        if not step.granted:
            return "killed"
        if step.tasks < grant.tasks:
            self._filled = False  # the store failed over, and has lost the tasks that were made
            return None
        if not len(self._group) and not self._group.ended and not grant.stays:
            return "exited"
        self._idle = not self._group.ended and len(step.taken) < want
        if grant.elastic:
            self._to_say = ReportBacklog(
                executor=grant.executor, waiting=step.waiting, running=step.running, idle=not len(self._group)
            )
            self._say()
        self._show()
        return None

    def _say(self) -> None:
        """Tell the master of an elastic app how much work there is, when that has changed (semantics L6)."""
        now_s = time.monotonic()
        if self._to_say is None or self._to_say == self._said or now_s < self._next_word_s:
            return
        Client(self.connection, self._spec.cluster).notify(self._to_say)
        self._said = self._to_say
        self._next_word_s = now_s + _SAY_S

    def _announce(self, verdict: EndApp) -> Literal["exited"]:
        """Tell the master that the app is over: before this executor's end, so that none comes in its place."""
        if not self._verdict_sent:
            Client(self.connection, self._spec.cluster).notify(verdict)
            self._verdict_sent = True
        return "exited"

    def _show(self) -> None:
        """Keep what running tasks have printed where `logs --follow` finds it."""
        now_s = time.monotonic()
        if now_s < self._next_show_s:
            return
        self._next_show_s = now_s + _SHOW_S
        self._tails |= self._group.news()
        if self._tails:
            self._work.keep_output(self._spec.grant.app, self._spec.grant.executor, self._tails)
            self._tails.clear()

    def _keep_alive(self) -> None:
        if time.monotonic() < self._next_beat_s:
            return
        if self._next_beat_s:
            self.heartbeat()
        else:
            self._state = WorkerStatus.BUSY
            self.connection.delete(self.key)
            self.register_birth()  # type: ignore[no-untyped-call]
        self._next_beat_s = time.monotonic() + _BEAT_S

    def _wait(self, timeout_s: float) -> None:
        if select.select([self._wakeup], [], [], timeout_s)[0]:
            os.read(self._wakeup, 4096)

    def _on_stop_signal(self, *_: object) -> None:
        self.stop()

    def _finish(self, reason: Literal["exited", "killed"]) -> ExitNote:
        """Leave nothing running and nothing begun; the note says how it ended, and if it is done (semantics S6)."""
        self._group.stop(self._wait)
        grant = self._spec.grant
        try:
            if self._group.ended:
                self._work.step(
                    grant.app,
                    self._group.ended,
                    worker=self._spec.worker,
                    executor=grant.executor,
                    retries=grant.retries,
                )
            if reason == "killed":
                self._work.put_back(grant.app, grant.executor)
            self.register_death()  # type: ignore[no-untyped-call]
            self.connection.delete(self.key)
        except RedisError as error:
            _log.warning("the store did not hear of the end", executor=grant.executor, error=str(error))
        exit_code, done = (0, True) if reason == "exited" else (STOPPED, False)
        note = ExitNote(app=grant.app, reason=reason, exit_code=exit_code, done=done)
        if self._verdict is None:
            return note
        return note.model_copy(update={"verdict": self._verdict.reason, "detail": self._verdict.detail})


def live(spec: ExecutorSpec, lock: int, work_off: Callable[[Redis], ExitNote]) -> int:
    """Be the executor or driver of `spec`, whose lock this process holds, for what `work_off` makes of a connection.

    Returns the exit code of the process.
    """
    grant = spec.grant
    files = RunDir(spec.run_dir, spec.worker)
    become_subreaper()
    files.name_holder(lock, Holder(grant.executor, grant.app, os.getpid(), grant.cores, grant.memory_mb))
    if spec.pin:
        cpus = files.claim_cpus(grant.cores)
        if cpus:
            os.sched_setaffinity(0, cpus)
    connection = connect(spec.store)
    note = work_off(connection)
    files.write_exit(grant.executor, note)
    ring(connection, Keys(spec.cluster).worker_queue(spec.worker))
    return 0 if note.reason == "exited" else STOPPED


def run_executor(spec: ExecutorSpec, lock: int) -> int:
    """Be the executor of `spec`, whose lock this process holds; the exit code of the process."""
    return live(spec, lock, lambda connection: Executor(spec, connection).work_off())


def ring(connection: Redis, queue: str) -> None:
    """Wake the agent; it finds the end by itself at its next tick if this fails."""
    try:
        connection.eval(RING_LUA, 1, queue_key(queue), bell_id(queue))
    except RedisError:
        _log.info("the agent's bell could not be rung", queue=queue)


def wakeup_pipe() -> int:
    """The end to wait at: it becomes readable when a signal arrives."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def on_child(*_: object) -> None:
    """Nothing: the signal only has to arrive for the wakeup pipe to be written to."""


def follow_parent(spec: ExecutorSpec, parent: int) -> None:
    """Stop when the process that started this one dies, unless the executor is to outlive its agent."""
    if not spec.outlive_agent:
        die_with_parent(parent)
