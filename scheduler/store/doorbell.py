"""RQ jobs as doorbells: they say that there is something to look at, never what.

Each listener (the master, every agent) has one RQ queue and one RQ job, saved when it starts. To
ring is to push that job's id on the queue, and only if the queue is empty: a thousand commands ring
once. The listener takes the id off the queue *before* it looks, so whatever arrives later rings
again and no wake-up is lost. A ring that is lost all the same costs at most one tick.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog
from redis.exceptions import RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import as_text
from rq.worker import SimpleWorker

from scheduler.store.connection import ANSWER_S
from scheduler.store.keys import bell_id, queue_key

if TYPE_CHECKING:
    from redis import Redis

TICK_S = 1
"""How long a listener waits for a ring before it looks all the same."""

RING_LUA = """
for i = 1, #KEYS do
  if redis.call('LLEN', KEYS[i]) == 0 then redis.call('RPUSH', KEYS[i], ARGV[i]) end
end
"""
"""KEYS: RQ queue keys; ARGV: the job ids to push, one a queue."""

_FUNCTION = "scheduler.store.doorbell.ring"
_log = structlog.get_logger()


class _ToldToStop(BaseException):
    """A signal came while there was nothing to do but wait."""


def ring() -> None:
    """What the jobs name as their function. The listener answers by itself; it runs nothing that a job names."""


class DoorbellWorker(SimpleWorker):
    """An RQ worker that calls `answer` for each ring on its queue, and once a tick without one; `leaving` at the end.

    It keeps what RQ is good at — queues, jobs, the registry of workers that `rq info` shows — and
    leaves out what would cost a turn several round trips: the records of a job's success. It takes
    jobs straight from the queue (a ring that dies with the process is made up for by the tick), runs
    no clean-up of registries, listens to no remote commands, and refuses any job but its own.
    """

    def __init__(
        self,
        queue: str,
        connection: Redis,
        answer: Callable[[], None],
        *,
        quiet_s: Callable[[], float] = lambda: TICK_S,
        leaving: Callable[[], None] = lambda: None,
    ) -> None:
        name = f"{queue}.{uuid4().hex}"
        super().__init__([queue], name=name, connection=connection, serializer=JSONSerializer, worker_ttl=30)
        self._answer = answer
        self._quiet_s = quiet_s
        self._leaving = leaving
        self._bell = bell_id(queue)
        self._next_heartbeat = 0.0
        self._waiting = False

    @property
    def connection_timeout(self) -> int:
        """How long RQ lets the store take for an answer, at least."""
        return ANSWER_S

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop_requested

    def work_until_stopped(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Answer rings until told to stop, the first time at once. What `answer` raises ends it too."""
        self.save_bell()
        self.connection.delete(self.key)  # our own from before an outage: the name is nobody else's
        self.register_birth()  # type: ignore[no-untyped-call]
        try:
            while not (self._stop_requested or should_stop()):
                self._beat()
                self._answer()
                self.wait_for_ring()
            self._leaving()
        finally:
            with suppress(RedisError):  # its record expires by itself
                self.register_death()  # type: ignore[no-untyped-call]

    def save_bell(self) -> None:
        """Store the queue and its one job where `rq info` and a ring find them."""
        queue = self.queues[0]
        job = Job.create(
            _FUNCTION,
            id=self._bell,
            connection=self.connection,
            serializer=JSONSerializer,
            origin=queue.name,
            timeout=-1,
            result_ttl=0,
            failure_ttl=1,
            description="doorbell",
        )
        job.save()
        self.connection.sadd(Queue.redis_queues_keys, queue.key)

    def wait_for_ring(self) -> bool:
        """Block for at most a tick, or `quiet_s` if that is less; whether somebody rang.

        Foreign jobs are refused and removed. A signal to stop ends the wait at once.
        """
        try:
            self._waiting = True
            if self._stop_requested:
                return False
            popped = self.connection.blpop([self.queues[0].key], min(TICK_S, max(0.001, self._quiet_s())))
        except _ToldToStop:
            return False
        finally:
            self._waiting = False
        if popped is None:
            return False
        job_id = as_text(popped[1])
        if job_id != self._bell:
            self._refuse(job_id)
        return True

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until told to stop."""
        until = time.monotonic() + seconds
        while not self._stop_requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def stop(self) -> None:
        """End after the answer under way."""
        self._stop_requested = True

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end the worker after the answer under way, or at once if there is none."""

        def stop(*_: object) -> None:
            self.stop()
            if self._waiting:
                self._waiting = False
                raise _ToldToStop

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def _refuse(self, job_id: str) -> None:
        try:
            job = Job.fetch(job_id, connection=self.connection, serializer=JSONSerializer)
        except NoSuchJobError:
            return
        _log.warning("foreign job refused", job=job_id, queue=self.queues[0].name)
        job.delete()

    def _beat(self) -> None:
        if time.monotonic() >= self._next_heartbeat:
            self.heartbeat()
            self._next_heartbeat = time.monotonic() + 10


def forget_queue(connection: Redis, queue: str) -> None:
    """Delete an RQ queue with its bell, so that nothing of it stays behind."""
    connection.delete(queue_key(queue), f"{Job.redis_job_namespace_prefix}{bell_id(queue)}")
    connection.srem(Queue.redis_queues_keys, queue_key(queue))


__all__ = ["RING_LUA", "TICK_S", "DoorbellWorker", "bell_id", "forget_queue", "queue_key", "ring"]
