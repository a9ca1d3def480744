"""Rings on real servers: RQ's worker loop takes and executes them, and nothing else that lies on their queues."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError
from rq import Queue, SimpleWorker, Worker
from rq.job import Job
from rq.serializers import JSONSerializer, PickleSerializer
from structlog.testing import capture_logs

from fairlog.local.store import EmbeddedStore
from recovery.failover.lease import Member
from recovery.failover.master import Master
from scheduler.model.commands import RegisterCompany, RegisterWorker
from scheduler.model.errors import Deposed, StaleLog, UnreadableRecord
from scheduler.service.client import CommandClient
from scheduler.store.doorbell import LONGEST_WAIT_S, RING_LUA, DoorbellWorker, forget_queue
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys, bell_id, queue_key
from tests.waiting import HOPELESS_S, wait_until

if TYPE_CHECKING:
    from redis import Redis

ACME = RegisterCompany(company="acme")


class Listener:
    """A worker that executes rings in a thread of its own; `rung` is set by each answer, which then waits for `go`."""

    def __init__(self, connection: Redis, queue: str) -> None:
        self.connection, self.queue = connection, queue
        self.rung, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.worker = DoorbellWorker(queue, connection, self._answer, due_in_s=lambda: 3600)
        self._thread = threading.Thread(target=self.worker.work_until_stopped)

    def _answer(self) -> None:
        self.rung.set()
        assert self.go.wait(HOPELESS_S)

    def start(self) -> None:
        self._thread.start()
        self.wait_for_answer()

    def wait_for_answer(self) -> None:
        assert self.rung.wait(HOPELESS_S)
        self.rung.clear()

    def ring(self) -> None:
        self.connection.eval(RING_LUA, 1, queue_key(self.queue), bell_id(self.queue))

    def stop(self) -> None:
        self.worker.stop()
        self.go.set()
        self.ring()
        self._thread.join(HOPELESS_S)
        assert not self._thread.is_alive()


@pytest.fixture
def keys() -> Keys:
    return Keys(f"test-{uuid4().hex[:8]}")


@pytest.fixture
def listener(connection: Redis, keys: Keys) -> Iterator[Listener]:
    running = Listener(connection, keys.master_queue)
    running.start()
    yield running
    running.stop()


def raised_by(connection: Redis, queue: str, error: BaseException) -> None:
    """Have a worker execute one ring, which raises `error`."""

    def answer() -> None:
        raise error

    DoorbellWorker(queue, connection, answer).work_until_stopped()


def shown(connection: Redis, queue: str) -> Any:
    (worker,) = Worker.all(connection=connection, queue=Queue(queue, connection=connection))
    return worker


def test_many_commands_ring_once(connection: Redis, keys: Keys) -> None:
    client = CommandClient(connection, keys.cluster)
    client.notify(*(RegisterCompany(company=f"c{number}") for number in range(50)))
    client.notify(ACME)
    assert connection.llen(queue_key(keys.master_queue)) == 1


def test_what_comes_after_a_ring_was_taken_rings_again(connection: Redis, listener: Listener) -> None:
    listener.go.clear()
    listener.ring()
    listener.wait_for_answer()
    listener.ring()
    assert connection.llen(queue_key(listener.queue)) == 1
    listener.go.set()
    listener.wait_for_answer()


def test_a_ring_is_an_rq_job_that_rq_can_read(connection: Redis, keys: Keys) -> None:
    DoorbellWorker(keys.master_queue, connection, lambda: None).save_bell()
    CommandClient(connection, keys.cluster).notify(ACME)
    queue = Queue(keys.master_queue, connection=connection, serializer=JSONSerializer)
    (job,) = queue.jobs
    assert job.id == bell_id(keys.master_queue)
    assert job.func_name == "scheduler.store.doorbell.ring"
    assert job.timeout == -1


def test_rq_shows_who_is_busy_with_what(connection: Redis, listener: Listener) -> None:
    before = shown(connection, listener.queue)
    assert (before.get_state(), before.get_current_job_id()) == ("idle", None)
    listener.go.clear()
    listener.ring()
    listener.wait_for_answer()
    busy = shown(connection, listener.queue)
    told = bell_id(listener.queue) if version("rq") < "3" else None  # RQ 3 asks for a record that no ring writes
    assert (busy.get_state(), busy.get_current_job_id()) == ("busy", told)
    job = Job.fetch(bell_id(listener.queue), connection=connection, serializer=JSONSerializer)
    assert (job.get_status(), job.worker_name) == ("started", listener.worker.name)
    listener.go.set()
    wait_until(lambda: shown(connection, listener.queue).get_state() == "idle", "the end of the answer")
    after = shown(connection, listener.queue)
    assert after.get_current_job_id() is None
    assert after.successful_job_count == before.successful_job_count + 1
    assert after.total_working_time > before.total_working_time
    assert job.get_status() == "finished"


def test_rq_info_lists_a_listener_like_any_worker(store: EmbeddedStore, listener: Listener) -> None:
    asked = [sys.executable, "-m", "rq.cli", "info", "-u", store.url, "--raw"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert f"queue {listener.queue} 0" in told
    (worker,) = (line for line in told.splitlines() if line.startswith("worker") and listener.queue in line)
    assert "idle" in worker


def test_rq_runs_the_loop_that_takes_and_executes_rings(
    connection: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    performed: list[str] = []
    worker = DoorbellWorker(keys.master_queue, connection, lambda: None)

    def perform(job: Job) -> None:
        performed.append(job.id)
        worker.stop()

    monkeypatch.setattr(Job, "_execute", perform)
    worker.work_until_stopped()
    assert performed == [bell_id(keys.master_queue)]
    assert DoorbellWorker.work is SimpleWorker.work


def enqueue_foreign_function(connection: Redis, queue: str, mark: Path) -> str:
    return Queue(queue, connection=connection, serializer=JSONSerializer).enqueue("pathlib.Path.touch", str(mark)).id


def enqueue_with_pickle(connection: Redis, queue: str, mark: Path) -> str:
    return Queue(queue, connection=connection, serializer=PickleSerializer).enqueue("pathlib.Path.touch", mark).id


def push_without_record(connection: Redis, queue: str, _mark: Path) -> str:
    connection.rpush(queue_key(queue), "nobody")
    return "nobody"


def push_garbage(connection: Redis, queue: str, _mark: Path) -> str:
    connection.hset("rq:job:garbage", mapping={"data": b"\x80\xff", "created_at": "when", "timeout": "\x00"})
    connection.rpush(queue_key(queue), "garbage")
    return "garbage"


def push_text(connection: Redis, queue: str, _mark: Path) -> str:
    connection.set("rq:job:text", "no hash")
    connection.rpush(queue_key(queue), "text")
    return "text"


def push_no_id(connection: Redis, queue: str, _mark: Path) -> str:
    connection.rpush(queue_key(queue), b"\xff:\x00")
    return r"\xff:" + "\x00"


@pytest.mark.parametrize(
    "put",
    [enqueue_foreign_function, enqueue_with_pickle, push_without_record, push_garbage, push_text, push_no_id],
)
def test_a_job_that_is_no_ring_is_named_removed_and_not_run(
    put: Callable[[Redis, str, Path], str], connection: Redis, listener: Listener, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    with capture_logs() as logs:
        job = put(connection, listener.queue, mark)
        listener.wait_for_answer()
    (said,) = logs
    assert (said["event"], said["log_level"]) == ("refused and removed a job that is not a ring", "warning")
    assert (said["job"], said["queue"]) == (job, listener.queue)
    assert not mark.exists()
    assert not connection.exists(queue_key(listener.queue), f"rq:job:{job}")
    listener.ring()
    listener.wait_for_answer()


@pytest.mark.parametrize("name", ["rq:queue:{queue}", "rq:worker:{worker}", "rq:job:{bell}", "rq:queues"])
def test_a_key_of_another_type_ends_no_listener(name: str, connection: Redis, listener: Listener) -> None:
    key = name.format(queue=listener.queue, worker=listener.worker.name, bell=bell_id(listener.queue))
    listener.go.clear()
    listener.ring()
    listener.wait_for_answer()
    connection.set(key, "another type")  # while it answers: neither its records nor its queue are what they were
    listener.go.set()
    for _ in range(3):
        listener.ring()
        listener.wait_for_answer()
    listener.worker._next_heartbeat = 0.0
    listener.ring()
    listener.wait_for_answer()
    wait_until(lambda: connection.type(key) != b"string", "the key")


def test_a_worker_starts_although_its_keys_have_another_type(connection: Redis, keys: Keys) -> None:
    queue = keys.master_queue
    for key in (queue_key(queue), f"rq:job:{bell_id(queue)}", "rq:queues", "rq:workers", f"rq:workers:{queue}"):
        connection.set(key, "another type")
    answers: list[int] = []

    def answer() -> None:
        answers.append(1)
        worker.stop()

    worker = DoorbellWorker(queue, connection, answer)
    worker.work_until_stopped()
    assert answers


def test_many_foreign_jobs_cost_one_ring(connection: Redis, listener: Listener) -> None:
    listener.go.clear()
    listener.ring()
    listener.wait_for_answer()
    connection.hset("rq:job:j1", mapping={f"f{number}": "x" * 100 for number in range(10_000)})
    connection.rpush(queue_key(listener.queue), *(f"j{number}" for number in range(900)), "x" * 100_000)
    with capture_logs() as logs:
        listener.go.set()
        listener.wait_for_answer()
    (said,) = logs
    assert (said["event"], said["jobs"]) == ("refused and removed foreign jobs", 901)
    assert len(said["job"]) <= 200
    assert not connection.exists(queue_key(listener.queue), "rq:job:j1")


def no_record(connection: Redis, key: str, _mark: Path) -> None:
    connection.delete(key)


def text_for_record(connection: Redis, key: str, _mark: Path) -> None:
    connection.set(key, "no hash")


def foreign_function_in_record(connection: Redis, key: str, mark: Path) -> None:
    connection.hset(key, "data", zlib.compress(json.dumps(["pathlib.Path.touch", None, [str(mark)], {}]).encode()))


def other_serializer_in_record(connection: Redis, key: str, mark: Path) -> None:
    connection.hset(key, "data", zlib.compress(pickle.dumps(("pathlib.Path.touch", None, (mark,), {}))))


@pytest.mark.parametrize("damage", [no_record, text_for_record, foreign_function_in_record, other_serializer_in_record])
def test_a_damaged_record_of_a_ring_is_named_and_written_anew(
    damage: Callable[[Redis, str, Path], None], connection: Redis, listener: Listener, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    bell = bell_id(listener.queue)
    with capture_logs() as logs:
        damage(connection, f"rq:job:{bell}", mark)
        listener.ring()
        listener.wait_for_answer()
        wait_until(lambda: bool(logs), "the end of the answer")
    assert [(said["job"], said["queue"]) for said in logs] == [(bell, listener.queue)]
    wait_until(lambda: shown(connection, listener.queue).get_state() == "idle", "the record of the end")
    assert not mark.exists()
    assert (
        Job.fetch(bell, connection=connection, serializer=JSONSerializer).func_name == "scheduler.store.doorbell.ring"
    )


@pytest.mark.parametrize(
    "error",
    [Deposed("second"), StaleLog("x"), UnreadableRecord(7, "x"), StoreConnectionError("away"), KeyError("a bug")],
    ids=repr,
)
def test_what_an_answer_raises_reaches_the_caller_and_no_registry(
    error: Exception, connection: Redis, keys: Keys
) -> None:
    with pytest.raises(type(error)) as raised:
        raised_by(connection, keys.master_queue, error)
    assert raised.value is error
    queue = Queue(keys.master_queue, connection=connection, serializer=JSONSerializer)
    assert queue.failed_job_registry.count == queue.started_job_registry.count == 0
    assert not Worker.all(connection=connection, queue=queue)


def test_a_worker_that_was_ended_by_an_error_works_again(connection: Redis, keys: Keys) -> None:
    calls: list[int] = []

    def answer() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise StoreConnectionError("away")
        worker.stop()

    worker = DoorbellWorker(keys.master_queue, connection, answer)
    with suppress(StoreConnectionError):
        worker.work_until_stopped()
    worker.work_until_stopped()
    assert len(calls) == 2


def test_a_ring_is_scheduled_for_the_moment_at_which_something_is_due(
    connection: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    due_s = iter([0.02, 3600.0, -1.0])
    lpop = Queue.lpop

    def wait(queue_keys: Any, timeout: float, connection: Redis) -> Any:
        waited.append(timeout)
        return lpop(queue_keys, min(timeout, 0.02), connection)  # type: ignore[arg-type]

    monkeypatch.setattr(Queue, "lpop", staticmethod(wait))
    answers: list[int] = []

    def answer() -> None:
        answers.append(1)
        if len(answers) == 4:
            worker.stop()

    worker = DoorbellWorker(keys.master_queue, connection, answer, due_in_s=lambda: next(due_s))
    worker.work_until_stopped()
    assert waited == [0.02, LONGEST_WAIT_S, 0.001]


def test_an_idle_master_wakes_when_it_must_keep_its_lease_or_watch_heartbeats(connection: Redis, keys: Keys) -> None:
    master = Master(EventLog(connection, keys), Member("m", 1, "here"), lease_s=3600)
    assert master.lease.take()
    master.scheduler.take_over()
    master.answer()
    assert 1200 - HOPELESS_S < master._due_in_s() <= 1200
    CommandClient(connection, keys.cluster).notify(
        RegisterWorker(worker="w", node="n", host="h", cores=1, memory_mb=1024)
    )
    master.answer()
    assert master._due_in_s() <= 2


def test_nothing_stays_behind_of_a_queue_that_is_forgotten(connection: Redis, keys: Keys) -> None:
    DoorbellWorker(keys.master_queue, connection, lambda: None).save_bell()
    forget_queue(connection, keys.master_queue)
    assert not connection.exists(f"rq:job:{bell_id(keys.master_queue)}")
    assert not connection.sismember("rq:queues", queue_key(keys.master_queue))
