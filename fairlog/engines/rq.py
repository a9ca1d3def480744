"""RQ workers on executors of one app, as many as the queues have work for (semantics G).

The owner counts the jobs that wait or run and states the demand; an executor is one `rq worker`, which ends by itself
once it has found no job for a while, so its demand falls with it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.job import Job
from rq.registry import StartedJobRegistry
from rq.scheduler import RQScheduler

from fairlog.engines.owner import LEASE_S, OwnedApp, own_folder, say
from scheduler.model.commands import SubmitApp

if TYPE_CHECKING:
    from fairlog.engines.owner import Event

LOOK_S = 0.5
IDLE_S = 5
GRACE_S = 180
"""How long a worker that is told to stop has for its job: RQ's default time limit of a job."""


def submission(
    company: str, user: str, queues: Sequence[str], *, cores: int, memory_mb: int, idle_s: int, grace_s: int
) -> SubmitApp:
    """The app of the workers: each runs `rq worker` of this interpreter, with the URL in its environment."""
    script = 'exec "$0" -m rq.cli worker --url "$RQ_REDIS_URL" --name "$FAIRLOG_EXECUTOR_ID-$$" "$@"'
    return SubmitApp(
        app=f"app-{uuid4().hex[:12]}",
        company=company,
        user=user,
        name=f"rq {' '.join(queues)}"[:128],
        executor_program=True,
        executor_cores=cores,
        executor_memory_mb=memory_mb,
        executor_limit=0,
        owner_timeout_s=LEASE_S,
        grace_s=grace_s,
        command=("sh", "-c", script, sys.executable, "--max-idle-time", str(idle_s), *queues),
        env=("PYTHONPATH", "RQ_REDIS_URL"),
        cwd=own_folder(),
    )


class Workers:
    """Keeps the demand of an app of RQ workers at the number of open jobs, at most `most`, until `stop`.

    It also is RQ's scheduler of the queues, unless another one is, as that of `rq worker --with-scheduler`.
    """

    def __init__(
        self,
        request: SubmitApp,
        queues: Sequence[str],
        url: str,
        *,
        most: int,
        api: str | None = None,
        token: str | None = None,
    ) -> None:
        self._store = Redis.from_url(url)
        self._queues = [Queue(name, connection=self._store) for name in queues]
        self._names = ", ".join(queues)
        self._most = most
        self._over = threading.Event()
        self._scheduler: Any = RQScheduler(queues, connection=self._store, logging_level=logging.WARNING)
        self._lost: deque[str] = deque()
        paths = (os.getcwd(), *filter(None, sys.path))  # noqa: PTH109 (as `rq worker`, which adds its folder)
        secrets = {"RQ_REDIS_URL": url, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))}
        self._owned = OwnedApp(request, secrets, api=api, token=token, hear=self._note)
        self.app = request.app
        """The id of the app."""

    def open_jobs(self) -> int:
        """How many jobs of the queues wait or run."""
        return sum(queue.count + StartedJobRegistry(queue=queue).get_job_count(cleanup=False) for queue in self._queues)

    def _note(self, event: Event) -> None:
        """Remember executors that did not end by themselves."""
        if event["type"] == "ExecutorRemoved" and event["data"]["reason"] != "exited":
            self._lost.append(event["data"]["executor"])

    def _let_go(self, executor: str) -> None:
        """Have RQ treat the jobs that ran on an executor as abandoned now, not once their workers are long silent."""
        for queue in self._queues:
            registry = StartedJobRegistry(queue=queue)
            for job_id, execution in registry.get_job_and_execution_ids(cleanup=False):
                worker: Any = queue.connection.hget(Job.key_for(job_id), "worker_name")
                if (worker or b"").startswith(f"{executor}-".encode()):
                    queue.connection.zadd(registry.key, {f"{job_id}:{execution}": 1}, xx=True)
            registry.cleanup()

    def _look(self) -> int:
        """Enqueue what is due, let go what was lost. Returns how many workers are wanted. Raises: RedisError."""
        if not self._scheduler.acquired_locks or self._scheduler.should_reacquire_locks:
            self._scheduler.acquire_locks()
        if self._scheduler.acquired_locks:
            if self._scheduler.last_heartbeat is None:
                self._scheduler.register_birth()
            self._scheduler.heartbeat()
            self._scheduler.enqueue_scheduled_jobs()
        while self._lost:
            self._let_go(self._lost[0])
            self._lost.popleft()
        return min(self._most, self.open_jobs())

    def run(self, until: Callable[[], bool] = lambda: False) -> int:
        """State the demand until `until`, `stop`, or the end of the app. Returns an exit code.

        A worker that ends well lowers the demand by itself; what the queues need is stated whenever it differs.
        """
        stated = known = 0
        told = False
        while not (self._over.wait(LOOK_S) or until()):
            if self._owned.ended is not None:
                say(f"app {self.app} is {self._owned.ended}")
                return 1
            try:
                wanted = self._look()
            except RedisError as error:
                say(f"the jobs cannot be counted: {error}")
                continue
            held = len(self._owned.executors)
            if not (told or wanted or held or stated):
                told = True
                say(f"no job waits in {self._names}; workers come as jobs do")
            if wanted > stated or (wanted > held and held < known):
                stated = wanted
                self._owned.scale(wanted)
            elif held < stated and wanted <= held:
                stated = held  # workers without a job have ended
            known = held
        with suppress(RedisError):  # its locks end by themselves after a minute
            self._scheduler.stop()
        self._owned.finish()
        return 0

    def stop(self) -> None:
        """End `run`; the workers finish the jobs that they run, within the grace."""
        self._over.set()


def serve(workers: Workers) -> int:
    """Run until an interrupt or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: workers.stop())
    say(f"app {workers.app} follows the queues")
    return workers.run()
