"""The task queues: per app, one RQ queue of its tasks, and the state of each task.

Every state change of a task is one atomic Lua script that is safe to repeat. After a crash at any point a task is in
exactly one place: queued, running on one executor, or ended. The jobs are in none of RQ's registries, so that RQ's
clean-up does not mark abandoned jobs as failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from rq import Queue
from rq.job import Job

from scheduler.model.arrays import hosts_of_tasks
from scheduler.store.keys import Keys, as_text, escaped
from scheduler.store.scripts import script
from scheduler.store.secrets import unseal
from scheduler.store.tails import MOST_BYTES, MOST_NOTED, Stream, Tail, read_tail
from scheduler.store.task_states import Progress, TaskState

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.model.grants import Nearness
    from scheduler.store.inflight import StoreCommand

Outcome = Literal["succeeded", "failed", "unstartable", "stopped", "returned", "cancelled"]
"""How a task ended. A failed task may be retried; one that cannot be started is tried on another worker (W9)."""

FILL_LUA = script(__file__, "fill")
RESTART_LUA = script(__file__, "restart")
STEP_LUA = script(__file__, "step")
KEEP_OUTPUT_LUA = script(__file__, "keep_output")
KEEP_DRIVER_OUTPUT_LUA = script(__file__, "keep_driver_output")
KEEP_PROGRAM_OUTPUT_LUA = script(__file__, "keep_program_output")
KEEP_USED_LUA = script(__file__, "keep_used")
PUT_BACK_LUA = script(__file__, "put_back")
CLOSE_LUA = script(__file__, "close")
SWEEP_LUA = script(__file__, "sweep")

FUNCTION = "workers.tasks.run"
"""The function named in the jobs; never called, because executors read only the job ids."""

OUTPUT_BYTES = MOST_BYTES
_STORED_BYTES = OUTPUT_BYTES + MOST_NOTED
_OUTPUTS_AT_ONCE = 16
APP_OUTPUT_BYTES = 64 * 1024 * 1024
"""The most output of an app's tasks in the store, at 1 KiB a task or more."""
KEPT_S = 7 * 24 * 3600
KEPT_BYTES = 256 * 1024 * 1024
"""The most output and task states of a company's apps that are over; the oldest give way."""
LIVE_BYTES = 256 * 1024 * 1024
"""The most output of a company's apps that are not over; what comes beyond is stored in a shorter form."""
SHORT_BYTES = 512
"""How much of each stream the shorter form has; where not even that fits, only how much was written is stored."""
KEPT_PROGRAMS = 1_000
"""Of how many executors of an app, those started last, the output of their programs is kept."""
MOST_JOBS = 100_000
"""The most jobs that an app can have: one a task."""
_CHUNK = 500


def output_bytes(tasks: int) -> int:
    """How much of the output of each task the store keeps, for an app of so many tasks."""
    return max(1024, min(OUTPUT_BYTES, APP_OUTPUT_BYTES // max(1, tasks)))


def _forms(stored: bytes) -> tuple[bytes, bytes, bytes]:
    """A stored tail, a shorter one, and one that says only how much was written."""
    stored = stored[-_STORED_BYTES:]
    tail = read_tail(stored)
    return stored, min(stored, tail.last(SHORT_BYTES, SHORT_BYTES).stored(), key=len), tail.last(0, 0).stored()


def broken(executor: str) -> str:
    """The name of an executor that ended abnormally, for `Worklist.put_back` and `Worklist.returned`."""
    return f"!{executor}"


class TaskBegun(NamedTuple):
    """A running task and its attempt number, from 1."""

    task: int
    attempt: int


class Completion(NamedTuple):
    """A report that a task ended: outcome, exit code, reason and the tail of its output.

    `attempt` prevents a repeated report from being counted for the next attempt. `cpu_ms`, `peak_mb` and `output_bytes`
    are what the attempt took. These and the output are all that counts of a task that was `stopped` with its executor,
    which needs its grant no longer: it returns to the queue, or its app is over.
    """

    task: int
    outcome: Outcome
    exit_code: int | None
    message: str = ""
    output: bytes = b""
    attempt: int | None = None
    cpu_ms: int = 0
    peak_mb: int = 0
    output_bytes: int = 0


class Verdict(NamedTuple):
    """How an app ends whose tasks are over, and the message of the first task that failed for good."""

    reason: Literal["finished", "failed"]
    detail: str


class Step(NamedTuple):
    """The result of `Worklist.step`.

    - `granted`: whether the executor is granted.
    - `tasks`, `succeeded`, `failed`, `running`: numbers of the app's tasks.
    - `detail`: the message of the first task that failed for good.
      Of an app that keeps going, those that failed count as succeeded until all are over; so do cancelled ones of any,
      and as failed then.
    - `taken`: the tasks to start now.
    - `refused`: ids of foreign jobs removed from the queue.
    - `mine`: all running tasks of the executor; only if the queue held fewer tasks than wanted, or in a repeated step.
    - `next_ms`: until the next attempt of a failed task; -1 if none waits, or the queue held as many as wanted.
    - `preferring`, `prefer`: how many queued tasks prefer hosts, and how many each; None if that was just told.
    """

    granted: bool
    tasks: int
    succeeded: int
    failed: int
    detail: str
    taken: list[TaskBegun]
    refused: list[str]
    mine: list[TaskBegun]
    running: int
    next_ms: int
    preferring: int | None = None
    prefer: dict[str, int] = {}  # noqa: RUF012 - a tuple's default, never changed

    @property
    def verdict(self) -> Verdict | None:
        """How the app ends, None while it is running."""
        return _verdict(self.tasks, self.succeeded, self.failed, self.detail)

    @property
    def waiting(self) -> int:
        """How many tasks of the app are queued, or wait for their next attempt."""
        return self.tasks - self.succeeded - self.failed - self.running


class Worklist:
    """The task queues of one cluster's apps, for the master, the executors and the command line.

    With a `secret_key`, secrets must be sealed with it (`scheduler.store.secrets`).
    """

    def __init__(self, connection: Redis, cluster: str = "default", *, secret_key: bytes | None = None) -> None:
        self._store = connection
        self._secret_key = secret_key
        self._keys = Keys(cluster)
        self._fill = connection.register_script(FILL_LUA)
        self._restart = connection.register_script(RESTART_LUA)
        self._step = connection.register_script(STEP_LUA)
        self._keep_output = connection.register_script(KEEP_OUTPUT_LUA)
        self._sweep = connection.register_script(SWEEP_LUA)

    def fill(
        self,
        app: str,
        tasks: int,
        *,
        worker: str,
        executor: str,
        chunk: int = _CHUNK,
        near: Nearness | None = None,
        array: str = "",
        again: bool = False,
    ) -> bool:
        """Create the jobs of all `tasks`, `chunk` per script call. Repeated and concurrent calls create none twice.

        With `near`, tasks prefer hosts, by the indexes of the `array` (semantics L7). `again`: the app was put back, so
        tasks that failed before run again (X6). Returns False, and creates no more, if `executor` is not granted on
        `worker` or the app is over.
        """
        keys = self._keys
        head, tail = json.dumps([FUNCTION, None, [app, 0], {}]).split(" 0]", 1)
        job = (self._id(app), f"{head} ", f"]{tail}", keys.app_queue(app), _rq_now())
        left = 1 if again else 0
        while left > 0:
            failed = [self._queue(app), keys.tasks(app), keys.grants(worker)]
            left = cast("int", self._restart(failed, [executor, chunk, *job]))
        if left < 0:
            return False
        places = [self._queue(app), keys.tasks(app), keys.grants(worker), Queue.redis_queues_keys]
        if near is not None:
            return self._fill_near(places, (executor, tasks, job), chunk, near, array)
        left = 1
        while left > 0:
            left = cast("int", self._fill(places, [executor, tasks, chunk, *job]))
        return left == 0

    def _fill_near(
        self, places: list[str], fixed: tuple[str, int, tuple[str, ...]], chunk: int, near: Nearness, array: str
    ) -> bool:
        executor, tasks, job = fixed
        live = [host for host in near.tasks if host in near.racks]
        racked = [host for host in live if near.rack and near.racks[host] == near.rack and host != near.host]
        waits = [near.host_wait_ms, near.rack_wait_ms if any(near.racks.values()) else 0]
        about = json.dumps({"hosts": live, "waits": waits}), json.dumps({"host": near.host, "racked": racked})
        left = cast("int", self._fill(places, [executor, tasks, 0, *job, *about, 0]))
        hosts = hosts_of_tasks(near.tasks, array, tasks) if left > 0 else {}
        while left > 0:
            start = tasks - left
            asked = [_hosts_line(hosts.get(i), near.racks) for i in range(start, min(start + chunk, tasks))]
            left = cast("int", self._fill(places, [executor, tasks, chunk, *job, *about, start, *asked]))
        return left == 0

    def step(  # noqa: PLR0913 - one argument a fact
        self,
        app: str,
        completions: Iterable[Completion] = (),
        *,
        worker: str,
        executor: str,
        want: int = 0,
        retries: int = 0,
        backoff_s: int = 0,
        rq_worker: str = "",
        turn: str = "",
        slots: int = 0,
        company: str = "",
    ) -> Step:
        """Report ended tasks and take up to `want` new ones, in one round trip.

        A completion counts only if the task is running on `executor`. A failed task is tried again at most `retries`
        times, after `backoff_s`, doubled each time (semantics W10). One that cannot be started returns to the front of
        the queue until it could not be started on a second worker (W9). An executor whose grant was revoked gets no
        tasks, nor does any executor after a task has failed for good.

        With a `turn`, `LIFE:NUMBER`, a step that is sent again because its answer was lost gets the tasks that were
        handed out, and new ones for what is left of the executor's `slots`; one with an earlier number gets none.

        The output counts for the `company`, which has room for `LIVE_BYTES`; that of "", one unknown, is not counted.
        """
        arguments: list[str | int | bytes] = [executor, want, retries, backoff_s, self._id(app), _rq_now(), rq_worker]
        arguments += [worker, turn, slots, company, app, LIVE_BYTES]
        for done in completions:
            exit_code = "" if done.exit_code is None else done.exit_code
            attempt = "" if done.attempt is None else done.attempt
            arguments += [done.task, attempt, done.outcome, exit_code, done.message]
            arguments += [done.cpu_ms, done.peak_mb, done.output_bytes, *_forms(done.output)]
        keys = self._keys
        places = [self._queue(app), keys.tasks(app), keys.begun(app), keys.output(app), keys.grants(worker)]
        answer = cast("list[Any]", self._step([*places, keys.later(app), keys.live], arguments))
        granted, tasks, succeeded, failed, detail, taken, refused, mine, running, next_ms, told = answer
        jobs = [job.decode(errors="replace") for job in refused]
        begun, held = ([TaskBegun(*pair) for pair in pairs] for pairs in (taken, mine))
        said = detail.decode(errors="replace")
        step = Step(bool(granted), tasks, succeeded, failed, said, begun, jobs, held, running, next_ms)
        if not told:
            return step
        preferring, *prefer = (text.decode(errors="replace") for text in told)
        by_host = {host: int(number) for host, number in zip(prefer[::2], prefer[1::2], strict=True)}
        return step._replace(preferring=int(preferring), prefer=by_host)

    def put_back(self, app: str, *gone: str) -> int:
        """Return the running tasks of `gone` executors to the front of the queue, not as retries. Returns how many.

        The name of an executor that ended abnormally is `broken` (semantics W10).
        """
        return cast("int", self._store.eval(PUT_BACK_LUA, 4, *self.returned(app, gone)))

    def returned(self, app: str, gone: Iterable[str]) -> tuple[str, ...]:
        """Arguments with which a commit returns the running tasks of the `gone` executors to the queue."""
        keys = self._keys
        return self._queue(app), keys.tasks(app), keys.begun(app), keys.later(app), self._id(app), *gone

    def keep_output(self, app: str, executor: str, tails: Mapping[int, bytes], *, company: str = "") -> None:
        """Store the output tails of running tasks of `executor`, which count as those of a `step`."""
        arguments: list[str | int | bytes] = [executor, company, app, LIVE_BYTES]
        for index, tail in tails.items():
            arguments += [index, *_forms(tail)]
        self._keep_output([self._keys.begun(app), self._keys.output(app), self._keys.live], arguments)

    def forget(self, apps: Mapping[str, str]) -> None:
        """Delete the queue, jobs and secrets of apps that are over (app -> company).

        Task states and output expire after `KEPT_S`, or give way to later ones beyond `KEPT_BYTES`. After a crash in
        the middle, call it again for the apps in `open_apps`.
        """
        if apps:
            _, script, count, *places = self.close_command(apps)
            self.sweep(apps, cast("list[int]", self._store.eval(str(script), int(count), *map(str, places))))

    def close_command(self, apps: Iterable[str]) -> StoreCommand:
        """The first step of `forget`, as a command to send with others. Pass its answer to `sweep`, the second step."""
        keys = self._keys
        places = [key for app in apps for key in (keys.tasks(app), keys.output(app), keys.driver_output(app))]
        for app in apps:
            places += [self._queue(app), keys.begun(app), keys.later(app), keys.secrets(app), keys.mail(app)]
        return ("EVAL", CLOSE_LUA, len(places), *places)

    def sweep(self, apps: Mapping[str, str], made: Sequence[int]) -> None:
        """Delete the jobs of closed apps; `made` is the number of jobs of each, -1 if nothing of it is stored."""
        keys, queues = self._keys, Queue.redis_queues_keys
        for (app, company), jobs in zip(apps.items(), made, strict=True):
            if jobs < 0:
                continue
            for first in range(0, min(jobs, MOST_JOBS), 2 * _CHUNK):
                self._store.delete(*(self._job(app, i) for i in range(first, min(first + 2 * _CHUNK, jobs))))
            rq_workers = f"rq:workers:{keys.app_queue(app)}"
            places = [keys.tasks(app), keys.output(app), keys.driver_output(app), self._queue(app), queues, rq_workers]
            more = [keys.near(app), keys.kept(company), keys.kept_bytes, keys.live]
            self._sweep([*places, *more], [KEPT_S, KEPT_BYTES, company, app, keys.prefix])

    def open_apps(self) -> list[str]:
        """Ids of the apps with a queue or counted output in the store, sorted: `forget` has not finished them."""
        prefix = self._queue("")
        pipeline = self._store.pipeline(transaction=True)
        pipeline.smembers(Queue.redis_queues_keys)
        pipeline.hkeys(self._keys.live)
        queues, live = (map(as_text, names) for names in pipeline.execute())
        found = {name[len(prefix) :] for name in queues if name.startswith(prefix)}
        return sorted(found.union(name for name in live if not name.startswith("/")))

    def progress(self, app: str) -> Progress:
        """The numbers of the app's tasks by state."""
        pipeline = self._store.pipeline(transaction=True)
        counted = ["cancelled", "tasks", "succeeded", "failed", "cpu_ms", "peak_mb", "output_bytes"]
        pipeline.hmget(self._keys.tasks(app), counted)
        pipeline.hlen(self._keys.begun(app))
        pipeline.zcard(self._keys.later(app))
        counts, running, later = pipeline.execute()
        cancelled, tasks, succeeded, failed, *took = (int(count or 0) for count in counts)
        queued = tasks - running - succeeded - failed - later - cancelled
        return Progress(tasks, queued, running, succeeded, failed, later, *took)._replace(cancelled=cancelled)

    def verdict(self, app: str) -> Verdict | None:
        """How the app ends by its tasks, None while some are not over."""
        names = ["tasks", "succeeded", "failed", "cancelled", "detail", "cancelled:detail", "keep_going"]
        *counted, detail, cancelled_detail, keeps_going = cast(
            "list[Any]", self._store.hmget(self._keys.tasks(app), names)
        )
        tasks, succeeded, failed, cancelled = (int(count or 0) for count in counted)
        over = succeeded + failed + cancelled >= tasks
        if keeps_going and not over:
            return None
        failed += cancelled if over else 0
        return _verdict(tasks, succeeded, failed, as_text(detail or cancelled_detail or b""))

    def has_finished(self, app: str, executor: str) -> bool:
        """Whether a task of the app finished in the executor (semantics W7)."""
        return bool(self._store.hexists(self._keys.tasks(app), f"finished:{executor}"))

    def states(self, app: str) -> list[TaskState]:
        """The states of the app's tasks, by index; empty before its first executor."""
        stored = cast("dict[bytes, bytes]", self._store.hgetall(self._keys.tasks(app)))
        total = int(stored.get(b"tasks", 0))
        over = b"forgotten" in stored
        return [_task_state(task, stored.get(b"%d" % task), over=over) for task in range(total)]

    def output(self, app: str, task: int | None, stream: Stream | None = None) -> bytes:
        """The last 64 KiB of the output of the task or the driver (None), or of one stream; empty if there is none.

        If it is not the whole, its first line says so.
        """
        return self.tail(app, task).marked(stream)

    def tail(self, app: str, task: int | None) -> Tail:
        """As `output`, by streams."""
        if task is None:
            return read_tail(cast("bytes | None", self._store.get(self._keys.driver_output(app))))
        return read_tail(cast("bytes | None", self._store.hget(self._keys.output(app), str(task))))

    def tails(self, app: str, tasks: Sequence[int]) -> Iterator[Tail]:
        """As `tail`, of each of these tasks."""
        for start in range(0, len(tasks), _OUTPUTS_AT_ONCE):
            names = [str(task) for task in tasks[start : start + _OUTPUTS_AT_ONCE]]
            yield from map(read_tail, cast("list[bytes | None]", self._store.hmget(self._keys.output(app), names)))

    def written(self, app: str) -> list[int]:
        """The tasks, or the numbers of the executors, of which the store has output."""
        return sorted(int(name) for name in cast("list[bytes]", self._store.hkeys(self._keys.output(app))))

    def keep_driver_output(self, app: str, tail: bytes, *, company: str = "") -> None:
        """Store the tail of the driver's output for `KEPT_S`; it counts as that of a `step`."""
        keys, about = self._keys, (company, app, LIVE_BYTES, KEPT_S)
        self._eval(KEEP_DRIVER_OUTPUT_LUA, [keys.driver_output(app), keys.live], [*about, *_forms(tail)])

    def keep_program_output(self, app: str, number: int, tail: bytes, *, company: str = "") -> None:
        """Store the tail of the output of executor `number`'s program, for `KEPT_S`; of the last `KEPT_PROGRAMS`.

        It counts as that of a `step`.
        """
        keys, gone = self._keys, number - KEPT_PROGRAMS
        about = company, app, LIVE_BYTES, KEPT_S, number, gone if gone >= 0 else ""
        self._eval(KEEP_PROGRAM_OUTPUT_LUA, [keys.output(app), keys.live], [*about, *_forms(tail)])

    def keep_used(self, app: str, number: int, cpu_ms: int, peak_mb: int) -> None:
        """Count what the program of executor `number` has used, once: CPU time (ms) and peak memory (MiB)."""
        used = max(0, cpu_ms), max(0, peak_mb)
        self._eval(KEEP_USED_LUA, [self._keys.tasks(app)], [f"used:{number}", *used, KEPT_S])

    def _eval(self, script: str, keys: list[str], arguments: list[str | int | bytes]) -> object:
        return self._store.eval(script, len(keys), *keys, *arguments)

    def is_granted(self, worker: str, executor: str) -> bool:
        """Whether the executor or driver is granted on the worker."""
        return bool(self._store.hget(self._keys.grants(worker), executor))

    def secrets(self, app: str) -> dict[str, str]:
        """The app's secrets: environment variable -> value. Raises: UnreadableSecrets if they cannot be opened."""
        stored = cast("dict[bytes, bytes]", self._store.hgetall(self._keys.secrets(app)))
        return unseal(self._secret_key, self._keys.cluster, app, stored)

    def _queue(self, app: str) -> str:
        return f"{Queue.redis_queue_namespace_prefix}{self._keys.app_queue(app)}"

    def _id(self, app: str) -> str:
        """The prefix of its RQ job ids, unique across queues."""
        return f"{escaped(self._keys.cluster)}__{escaped(app)}__"

    def _job(self, app: str, index: int) -> str:
        return f"{Job.redis_job_namespace_prefix}{self._id(app)}{index}"


def _verdict(tasks: int, succeeded: int, failed: int, detail: str) -> Verdict | None:
    if failed:
        return Verdict("failed", detail)
    return Verdict("finished", "") if tasks and succeeded >= tasks else None


def _hosts_line(hosts: list[str] | None, live: Mapping[str, str]) -> str:
    """The hosts of a task that have a live worker, a line each; `!` if none has; "" if it prefers none."""
    return "" if not hosts else "\n".join(host for host in hosts if host in live) or "!"


def _task_state(task: int, stored: bytes | None, *, over: bool) -> TaskState:
    fields: dict[str, Any] = json.loads(stored or b"{}")
    for name in ("failures", "broken", "stopped"):
        fields.pop(name, None)
    last = fields.pop("last", {})
    found = TaskState(task=task, **fields)
    if not over or found.state not in {"queued", "running"}:
        return found
    return found._replace(state="stopped", **(last if found.started_at is None else {}))


def _rq_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
