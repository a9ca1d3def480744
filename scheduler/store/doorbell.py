"""Rings: RQ jobs that wake a listener, taken from its queue and executed by RQ's worker loop.

Each listener (the active master, every agent) has one RQ queue and one RQ job, the bell. A ring pushes the bell's id
on the queue if the queue is empty, so a thousand commands ring once. The listener takes the id off the queue before it
looks, so whatever arrives later rings again. A ring carries no data: nothing is lost with it.

A ring is also due at the next moment for which something is scheduled. RQ's own scheduler is another process that
looks once a second, so the wait for a job ends at that moment instead, and the bell is executed.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import structlog
from redis.exceptions import RedisError, ResponseError
from rq import Queue
from rq.exceptions import DequeueTimeout, StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import now, utcformat
from rq.worker import SimpleWorker
from rq.worker.base import WorkerStatus

from scheduler.store.connection import ANSWER_S
from scheduler.store.inflight import InFlight, StoreCommand
from scheduler.store.keys import bell_id, queue_key
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

TICK_S = 1.0
"""How often a listener without a schedule looks."""
LONGEST_WAIT_S = 5.0
"""The longest wait for a ring, after which the listener looks in case a ring was lost."""
HEARTBEAT_S = 10.0
"""How often a listener renews its record and its bell's record."""

RING_LUA = script(__file__, "ring")

_FUNCTION = "scheduler.store.doorbell.ring"
_WORKERS = "rq:workers"
_AT_ONCE = 1_000
"""How many foreign jobs are removed at once."""
_SHOWN = 200
"""How much of a foreign job's id is shown."""
_WRONG_TYPE = "WRONGTYPE"
_SHORTEST_WAIT_S = 0.001
"""Redis reads 0 as forever."""
_answer: ContextVar[Callable[[], None]] = ContextVar("answer")
_log = structlog.get_logger()


def ring() -> None:
    """The function of every bell: call `answer` of the worker that executes it."""
    _answer.get()()


class _RingJob(Job):
    """The job of a ring. Its record never expires, so it is not persisted each time."""

    def perform(self) -> object:
        return self._execute()


class DoorbellWorker(SimpleWorker):
    """An RQ worker that executes the rings on its queue by calling `answer`, and calls `leaving` when told to stop.

    `due_in_s` returns the seconds until something is due; a ring is scheduled for that moment.

    It omits what rings do not need and every turn would pay for: execution and result records, registries and their
    maintenance, the channel for remote commands, and suspension. Any other job on its queue is refused, and counts as
    a ring, since it may have kept one off the queue.
    """

    def __init__(
        self,
        queue: str,
        connection: Redis,
        answer: Callable[[], None],
        *,
        due_in_s: Callable[[], float] = lambda: TICK_S,
        leaving: Callable[[], None] = lambda: None,
    ) -> None:
        name = f"{queue}.{uuid4().hex}"
        super().__init__([queue], name=name, connection=connection, serializer=JSONSerializer, worker_ttl=30)
        self._answer = answer
        self._due_in_s = due_in_s
        self._leaving = leaving
        self._bell = _RingJob.create(
            _FUNCTION,
            id=bell_id(queue),
            connection=connection,
            serializer=JSONSerializer,
            origin=queue,
            timeout=-1,
            result_ttl=-1,
            description="doorbell",
        )
        self._data = self._bell.to_dict()["data"]
        self._next_heartbeat = 0.0
        self._stands_by_until = 0.0
        """Until when (monotonic) RQ's record of it is kept, as one that stands by."""
        self._recording: InFlight | None = None
        self._waiting = False
        self._at_once = True
        self._rung = False
        """Whether the current ring came through the queue rather than from the schedule."""
        self.reason: BaseException | None = None
        """The exception that ended RQ's loop."""

    @property
    def connection_timeout(self) -> int:
        """The lower limit of RQ's timeout for the store's answers."""
        return ANSWER_S

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop_requested

    def work_until_stopped(self) -> None:
        """Run RQ's worker loop until told to stop; the first ring is due at once. Raises: what `answer` raises."""
        self._at_once, self.reason = True, None
        self._next_heartbeat = self._stands_by_until = 0.0
        self.connection.delete(self.key)  # left from before an outage
        self._mend()
        token = _answer.set(self._answer)
        try:
            self.work(logging_level="ERROR")
        finally:
            _answer.reset(token)
        reason, self.reason = self.reason, None
        if reason is not None:
            raise reason
        if not self._stop_requested:
            raise RuntimeError("RQ's worker loop ended by itself; its log says why")
        self._leaving()

    def show_standing_by(self) -> None:
        """Show it to RQ's tools as suspended, while another one listens; renewed at most every `HEARTBEAT_S`."""
        now_s = time.monotonic()
        if now_s < self._next_heartbeat and now_s < self._stands_by_until:
            return
        if now_s < self._stands_by_until:
            super().heartbeat()
        else:
            self.register_death()  # type: ignore[no-untyped-call]  # of an earlier record
            self.register_birth()  # type: ignore[no-untyped-call]
            self.set_state(WorkerStatus.SUSPENDED)
        self._next_heartbeat, self._stands_by_until = now_s + HEARTBEAT_S, now_s + self.worker_ttl

    def stand_down(self) -> None:
        """Show it no longer; without a store, the record expires."""
        if self._stands_by_until:
            self._stands_by_until = 0.0
            with suppress(RedisError):
                self.register_death()  # type: ignore[no-untyped-call]

    def save_bell(self) -> None:
        """Store the queue and the bell's record for RQ's tools and for rings."""
        with self.connection.pipeline() as pipeline:
            pipeline.delete(self._bell.key)
            self._bell.save(pipeline=pipeline)
            pipeline.sadd(Queue.redis_queues_keys, self.queues[0].key)
            pipeline.execute()

    def dequeue_job_and_maintain_ttl(
        self,
        timeout: int | None,  # noqa: ARG002 - RQ's; the schedule ends the wait
        max_idle_time: int | None = None,  # noqa: ARG002 - RQ's; a listener never idles out
    ) -> tuple[Job, Queue]:
        """Wait for a ring, the schedule, or a foreign job, which is refused; return the bell."""
        queue = self.queues[0]
        with _ReasonKept(self):
            if self.get_state() != WorkerStatus.IDLE:
                self.set_state(WorkerStatus.IDLE)
            self.heartbeat()
            job_id = None if self._at_once else self._wait_for_ring(queue)
            self._at_once, self._rung = False, job_id is not None
            if job_id is not None and job_id != self._bell.id.encode():
                self._refuse(job_id, queue)
        if self._stop_requested:
            raise StopRequested
        return self._bell, queue

    def execute_job(self, job: Job, queue: Queue) -> None:  # noqa: ARG002 - RQ's
        """Execute the bell in this process. Only rings through the queue are recorded."""
        with _ReasonKept(self):
            if not self._rung:
                job.perform()
                return
            self._record_begin(job)
            began = time.monotonic()
            job.perform()
            self._record_end(job, time.monotonic() - began)

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """Renew the records in the store at most every `HEARTBEAT_S`; RQ calls it several times a job."""
        if time.monotonic() >= self._next_heartbeat:
            with _ReasonKept(self):
                try:
                    self.save_bell()
                    super().heartbeat(timeout, pipeline)
                except ResponseError as error:
                    self._mend_after(error)
            self._next_heartbeat = time.monotonic() + HEARTBEAT_S

    def teardown(self) -> None:
        """Remove its record; without a store, the record expires."""
        with suppress(RedisError):
            self._recorded()
        with suppress(RedisError):
            super().teardown()  # type: ignore[no-untyped-call]

    def _set_ip_address(self, connection: Redis) -> None:  # noqa: ARG002 - RQ's
        """Replaces RQ's method, which lists all clients of the store to find the address."""
        self.ip_address = socket.gethostname()

    def subscribe(self) -> None:
        """Do not listen for remote commands: they cost a thread and a connection; SIGTERM does the same."""

    def check_for_suspension(self, burst: bool) -> None:  # noqa: FBT001 - RQ's
        """Ignore `rq suspend`."""

    def run_maintenance_tasks(self) -> None:
        """Skip the clean-up of registries; they are not used."""
        self.last_cleaned_at = now()  # type: ignore[assignment]

    def _install_signal_handlers(self) -> None:
        """Install none of RQ's handlers: they write to the store at any point. See `stop_on_signals`."""

    def pause(self, seconds: float) -> None:
        """Wait, at most until told to stop."""
        until = time.monotonic() + seconds
        while not self._stop_requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def stop(self) -> None:
        """Stop after the current answer."""
        self._stop_requested = True

    def stop_on_signals(self) -> None:
        """Have SIGTERM and SIGINT stop the worker after the current answer, or at once if it waits."""

        def stop(*_: object) -> None:
            self.stop()
            if self._waiting:
                self._waiting = False
                raise StopRequested

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def _wait_for_ring(self, queue: Queue) -> bytes | None:
        """The pushed job id; None if the schedule ends the wait. A signal to stop ends it at once."""
        wait_s = max(_SHORTEST_WAIT_S, min(self._due_in_s(), LONGEST_WAIT_S))
        try:
            self._waiting = True
            if self._stop_requested:
                return None
            job_id: bytes = queue.lpop([queue.key], wait_s, self.connection)[1]  # type: ignore[arg-type]
        except DequeueTimeout:
            return None
        except ResponseError as error:
            self._mend_after(error)
            return None
        else:
            return job_id
        finally:
            self._waiting = False

    def _record_begin(self, job: Job) -> None:
        """Record that the worker is busy with the bell, without waiting for the store."""
        busy: StoreCommand = ("HSET", self.key, "state", "busy", "current_job", job.id)
        started = ("started_at", utcformat(now()), "worker_name", self.name)
        self._record(busy, ("HGET", job.key, "data"), ("HSET", job.key, "status", "started", *started))

    def _record_end(self, job: Job, seconds: float) -> None:
        """Record that the worker is idle, without waiting for the store. A damaged record of the bell is replaced."""
        _, data, _ = self._recorded()
        if data != self._data:
            _log.warning("the record of a ring was damaged and has been rewritten", job=job.id, queue=job.origin)
            self.save_bell()
        self._record(
            ("HSET", self.key, "state", "idle"),
            ("HDEL", self.key, "current_job"),
            ("HINCRBY", self.key, "successful_job_count", 1),
            ("HINCRBYFLOAT", self.key, "total_working_time", str(seconds)),
            ("HSET", job.key, "status", "finished", "ended_at", utcformat(now())),
        )

    def _record(self, *commands: StoreCommand) -> None:
        """Send the commands. RQ's own methods write the same fields, but a turn would wait for them."""
        for answer in self._recorded():
            if isinstance(answer, ResponseError):
                self._mend_after(answer)
            elif isinstance(answer, RedisError):
                raise answer
        self._recording = InFlight(self.connection, commands)

    def _recorded(self) -> list[object]:
        """The answers to the commands that `_record` sent last."""
        sent, self._recording = self._recording, None
        return sent.all() if sent is not None else []

    def _refuse(self, job_id: bytes, queue: Queue) -> None:
        """Remove a job that is not a ring, and all others on the queue. No record is read, so nothing in it is run.

        A ring among them is this one: the listener looks after it has emptied the queue.
        """
        jobs = {job_id, *self._rest(queue)} - {self._bell.id.encode()}
        known = self.connection.unlink(*(Job.redis_job_namespace_prefix.encode() + job for job in jobs))
        _log.warning(
            "refused and removed a job that is not a ring" if len(jobs) == 1 else "refused and removed foreign jobs",
            job=job_id[:_SHOWN].decode(errors="backslashreplace"),
            queue=self.queues[0].name,
            record="removed" if known else "missing",
            **({} if len(jobs) == 1 else {"jobs": len(jobs)}),
        )

    def _rest(self, queue: Queue) -> list[bytes]:
        """The first jobs of the queue, removed from it."""
        return cast("list[bytes]", self.connection.lpop(queue.key, _AT_ONCE) or [])

    def _mend_after(self, error: ResponseError) -> None:
        """Mend the keys if that is what the error is about. Raises: the error otherwise."""
        if _WRONG_TYPE not in str(error):
            raise error
        self._mend()

    def _mend(self) -> None:
        """Delete the keys of the queue that somebody gave another type."""
        queue = self.queues[0]
        kinds = {
            queue.key: b"list",
            self._bell.key: b"hash",
            self.key: b"hash",
            Queue.redis_queues_keys: b"set",
            _WORKERS: b"set",
            f"{_WORKERS}:{queue.name}": b"set",
        }
        for key, kind in kinds.items():
            found = self.connection.type(key)
            if found not in (kind, b"none"):
                self.connection.unlink(key)
                _log.warning("deleted a key of the wrong type", key=key, type=str(found), queue=queue.name)


class _ReasonKept(AbstractContextManager[object]):
    """Ends RQ's loop for `work_until_stopped` to raise the exception; RQ would log and suppress it."""

    def __init__(self, worker: DoorbellWorker) -> None:
        self._worker = worker

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and not isinstance(error, StopRequested):
            self._worker.reason = error
            raise StopRequested from error


def forget_queue(connection: Redis, queue: str) -> None:
    """Delete an RQ queue and its bell."""
    connection.delete(queue_key(queue), Job.key_for(bell_id(queue)))
    connection.srem(Queue.redis_queues_keys, queue_key(queue))
