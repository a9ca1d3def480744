"""An app's tasks in the store: RQ jobs in the app's own queue, and how each of them stands.

Every step is one script, so a crash at any instant leaves a task in exactly one place: in the queue,
begun by one executor, or over. Asking for any step twice does no harm. The jobs are in no registry
of RQ's, so its clean-up, which comes late and calls abandoned jobs failed, never sees one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from rq import Queue
from rq.job import Job

from scheduler.store import task_queue_lua as worklist_lua
from scheduler.store.inflight import InFlight, StoreCommand
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    from redis import Redis

Outcome = Literal["succeeded", "failed", "hopeless"]
"""How a task ended; one that failed may be tried again, a hopeless one is not worth it."""

FUNCTION = "workers.tasks.run"
"""What the jobs name as their function. Executors look at ids only."""

OUTPUT_BYTES = 64 * 1024
KEPT_S = 7 * 24 * 3600
_CHUNK = 500


class Begun(NamedTuple):
    """A task that an executor has begun, for the `attempt`th time."""

    task: int
    attempt: int


class Completion(NamedTuple):
    """One task that ended: how, with what exit code, why in a sentence, and the end of its output.

    With the `attempt` that ended, word of it that comes twice cannot be taken for word of the next one.
    """

    task: int
    outcome: Outcome
    exit_code: int | None
    message: str = ""
    output: bytes = b""
    attempt: int | None = None


class Step(NamedTuple):
    """What an executor learns from a step.

    `taken` are the tasks to begin now; `refused` the foreign jobs that were removed from the queue;
    `mine` all that the executor has begun, looked up only when the queue had less than was wanted; `running`
    how many tasks of the app are begun in all.
    """

    granted: bool
    tasks: int
    succeeded: int
    failed: int
    detail: str
    taken: list[Begun]
    refused: list[str]
    mine: list[Begun]
    running: int

    @property
    def verdict(self) -> Literal["finished", "failed"] | None:
        """What the app has come to, None while it goes on."""
        if self.failed:
            return "failed"
        return "finished" if self.tasks and self.succeeded >= self.tasks else None

    @property
    def waiting(self) -> int:
        """How many tasks of the app nobody has begun."""
        return self.tasks - self.succeeded - self.failed - self.running


class Progress(NamedTuple):
    """How many of an app's tasks stand where; all zero before the app's first executor."""

    tasks: int = 0
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class TaskState(NamedTuple):
    """How one task stands: queued, running, succeeded, failed, or stopped where its app was over before it.

    `attempts` counts every start, times are ms by the store's clock.
    """

    task: int
    state: str = "queued"
    exit_code: int | None = None
    executor: str | None = None
    attempts: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    message: str = ""


class Worklist:
    """The tasks of the apps of one cluster, for the master, the executors and the command line."""

    def __init__(self, connection: Redis, cluster: str = "default") -> None:
        self._store = connection
        self._keys = Keys(cluster)
        self._fill = connection.register_script(worklist_lua.FILL)
        self._step = connection.register_script(worklist_lua.STEP)
        self._keep_output = connection.register_script(worklist_lua.KEEP_OUTPUT)
        self._sweep = connection.register_script(worklist_lua.SWEEP)

    def fill(self, app: str, tasks: int, *, worker: str, executor: str, chunk: int = _CHUNK) -> bool:
        """Make every task's job exist exactly once, however often and by however many this is called.

        False, and nothing more is made, where `executor` is not granted on `worker` or the app is over.
        """
        keys = self._keys
        head, tail = json.dumps([FUNCTION, None, [app, 0], {}]).split(" 0]", 1)
        arguments: list[str | int] = [
            executor,
            tasks,
            chunk,
            self._id(app),
            f"{head} ",
            f"]{tail}",
            keys.app_queue(app),
            _rq_now(),
        ]
        places = [self._queue(app), keys.tasks(app), keys.grants(worker), Queue.redis_queues_keys]
        left = 1
        while left > 0:
            left = cast("int", self._fill(places, arguments))
        return left == 0

    def step(
        self,
        app: str,
        completions: Iterable[Completion] = (),
        *,
        worker: str,
        executor: str,
        want: int = 0,
        retries: int = 0,
        rq_worker: str = "",
    ) -> Step:
        """Hand in what ended and take up to `want` tasks, in one round trip.

        A completion counts only while the task is begun by `executor`; a failed one goes back to the
        end of the queue up to `retries` times. Nothing is handed out to an executor that is not
        granted any more, nor once a task has failed for good.
        """
        arguments: list[str | int | bytes] = [executor, want, retries, self._id(app), _rq_now(), rq_worker]
        for done in completions:
            exit_code = "" if done.exit_code is None else done.exit_code
            attempt = "" if done.attempt is None else done.attempt
            arguments += [done.task, attempt, done.outcome, exit_code, done.message, done.output[-OUTPUT_BYTES:]]
        keys = self._keys
        places = [self._queue(app), keys.tasks(app), keys.begun(app), keys.output(app), keys.grants(worker)]
        granted, tasks, succeeded, failed, detail, taken, refused, mine, running = cast(
            "list[Any]", self._step(places, arguments)
        )
        return Step(
            bool(granted),
            tasks,
            succeeded,
            failed,
            detail.decode(errors="replace"),
            [Begun(*pair) for pair in taken],
            [job.decode(errors="replace") for job in refused],
            [Begun(*pair) for pair in mine],
            running,
        )

    def take(self, app: str, n: int, *, worker: str, executor: str) -> list[int]:
        """Begin up to `n` tasks; none where `executor` is not granted on `worker`."""
        return [begun.task for begun in self.step(app, worker=worker, executor=executor, want=n).taken]

    def put_back(self, app: str, *gone: str) -> int:
        """How many tasks the `gone` executors had begun: they go back to the front of the queue, not as retries."""
        queue, tasks, begun, *arguments = self.returned(app, gone)
        command: StoreCommand = ("EVAL", worklist_lua.PUT_BACK, 3, queue, tasks, begun, *arguments)
        return cast("int", InFlight(self._store, [command]).answers()[0])

    def returned(self, app: str, gone: Iterable[str]) -> tuple[str, ...]:
        """What a commit is told so that it puts back what the `gone` executors had begun."""
        return self._queue(app), self._keys.tasks(app), self._keys.begun(app), self._id(app), *gone

    def keep_output(self, app: str, executor: str, tails: Mapping[int, bytes]) -> None:
        """Keep the end of what running tasks of `executor` have printed so far."""
        arguments: list[str | int | bytes] = [executor]
        for index, tail in tails.items():
            arguments += [index, tail[-OUTPUT_BYTES:]]
        self._keep_output([self._keys.begun(app), self._keys.output(app)], arguments)

    def forget(self, *apps: str, keep_output_s: int = KEPT_S) -> None:
        """Delete all that RQ and executors need of apps that are over, secrets included.

        States and output can be read for `keep_output_s` more. Cut short by a crash, it is made up
        for by asking again; `open_apps` names the apps that it is due for.
        """
        if apps:
            made = cast("list[int]", InFlight(self._store, [self.close_command(apps)]).answers()[0])
            self.sweep(apps, made, keep_output_s)

    def close_command(self, apps: Sequence[str]) -> StoreCommand:
        """The first step of `forget`, to be sent along with other commands; the second is `sweep` with its answer."""
        keys = self._keys
        places = [keys.tasks(app) for app in apps]
        places += [place for app in apps for place in (self._queue(app), keys.begun(app), keys.secrets(app))]
        return ("EVAL", worklist_lua.CLOSE, len(places), *places)

    def sweep(self, apps: Sequence[str], made: Sequence[int], keep_output_s: int = KEPT_S) -> None:
        """Delete the jobs of closed apps, of which `made` says how many each had."""
        for app, jobs in zip(apps, made, strict=True):
            if jobs >= 0:
                self._forget_jobs(app, jobs, keep_output_s)

    def _forget_jobs(self, app: str, made: int, keep_output_s: int) -> None:
        keys, queue = self._keys, self._queue(app)
        for first in range(0, made, 2 * _CHUNK):
            self._store.delete(*(self._job(app, i) for i in range(first, min(first + 2 * _CHUNK, made))))
        rq_workers = f"rq:workers:{keys.app_queue(app)}"
        self._sweep([keys.tasks(app), keys.output(app), queue, Queue.redis_queues_keys, rq_workers], [keep_output_s])

    def open_apps(self) -> list[str]:
        """The apps that have a queue in the store, in order: those not yet forgotten entirely."""
        prefix = self._queue("")
        names = (name.decode() for name in cast("set[bytes]", self._store.smembers(Queue.redis_queues_keys)))
        return sorted(name[len(prefix) :] for name in names if name.startswith(prefix))

    def progress(self, app: str) -> Progress:
        """How many of the app's tasks stand where."""
        pipeline = self._store.pipeline(transaction=True)
        pipeline.hmget(self._keys.tasks(app), ["tasks", "succeeded", "failed"])
        pipeline.hlen(self._keys.begun(app))
        counts, running = pipeline.execute()
        tasks, succeeded, failed = (int(count or 0) for count in counts)
        return Progress(tasks, tasks - running - succeeded - failed, running, succeeded, failed)

    def states(self, app: str) -> list[TaskState]:
        """How each task of the app stands, by index; empty before the app's first executor."""
        stored = cast("dict[bytes, bytes]", self._store.hgetall(self._keys.tasks(app)))
        total = int(stored.get(b"tasks", 0))
        over = b"forgotten" in stored
        return [_task_state(task, stored.get(b"%d" % task), over=over) for task in range(total)]

    def output(self, app: str, task: int) -> bytes:
        """The last 64 KiB that the task has printed, as far as the store has them."""
        return cast("bytes | None", self._store.hget(self._keys.output(app), str(task))) or b""

    def keep_driver_output(self, app: str, tail: bytes) -> None:
        """Keep the end of what the app's driver has printed so far."""
        self._store.set(self._keys.driver_output(app), tail[-OUTPUT_BYTES:], ex=KEPT_S)

    def driver_output(self, app: str) -> bytes:
        """The last 64 KiB that the app's driver has printed, as far as the store has them."""
        return cast("bytes | None", self._store.get(self._keys.driver_output(app))) or b""

    def is_granted(self, worker: str, executor: str) -> bool:
        """Whether the worker is to run the executor or driver."""
        return bool(self._store.hget(self._keys.grants(worker), executor))

    def secrets(self, app: str) -> dict[str, str]:
        """The environment variables that the submitter put aside for the app's tasks."""
        stored = cast("dict[bytes, bytes]", self._store.hgetall(self._keys.secrets(app)))
        return {os.fsdecode(name): os.fsdecode(value) for name, value in stored.items()}

    def _queue(self, app: str) -> str:
        return f"{Queue.redis_queue_namespace_prefix}{self._keys.app_queue(app)}"

    def _id(self, app: str) -> str:
        return f"{_escape(self._keys.cluster)}__{_escape(app)}__"

    def _job(self, app: str, index: int) -> str:
        return f"{Job.redis_job_namespace_prefix}{self._id(app)}{index}"


def job_id(cluster: str, app: str, task: int) -> str:
    """The RQ job id of a task: RQ keeps the jobs of all queues in one place and takes letters, digits, `_`, `-`."""
    return f"{_escape(cluster)}__{_escape(app)}__{task}"


def _escape(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):02x}", name)


def _task_state(task: int, stored: bytes | None, *, over: bool) -> TaskState:
    fields: dict[str, Any] = json.loads(stored or b"{}")
    fields.pop("failures", None)
    found = TaskState(task=task, **fields)
    return found._replace(state="stopped") if over and found.state in {"queued", "running"} else found


def _rq_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
