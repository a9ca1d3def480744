"""An app's tasks in the store: each in exactly one place, whoever asks for what, however often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as StoreConnectionError
from rq import Queue
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.utils import as_text

from scheduler.model.grants import Nearness
from scheduler.store import task_queue
from scheduler.store.keys import Keys
from scheduler.store.task_queue import OUTPUT_BYTES, Completion, Outcome, Step, Verdict, Worklist, broken, output_bytes
from scheduler.store.task_states import Progress
from tests.waiting import HOPELESS_S

APP, CLUSTER, WORKER = "app.1", "test", "w1"
KEYS = Keys(CLUSTER)


def grant(store: fakeredis.FakeRedis, *executors: str) -> None:
    for executor in executors:
        store.hset(KEYS.grants(WORKER), executor, "{}")


@pytest.fixture
def work(fake: fakeredis.FakeRedis) -> Worklist:
    grant(fake, "e", "f")
    return Worklist(fake, CLUSTER)


def fill(work: Worklist, tasks: int, executor: str = "e", **options: Any) -> bool:
    return work.fill(APP, tasks, worker=WORKER, executor=executor, **options)


def take(work: Worklist, n: int, executor: str = "e") -> list[int]:
    return [begun.task for begun in work.step(APP, worker=WORKER, executor=executor, want=n).taken]


def job_id(cluster: str, app: str, task: int) -> str:
    return Worklist(fakeredis.FakeRedis(), cluster)._id(app) + str(task)


def end(
    work: Worklist,
    task: int,
    outcome: Outcome,
    executor: str = "e",
    *,
    retries: int = 0,
    backoff_s: int = 0,
    message: str = "",
    output: bytes = b"",
) -> Step:
    done = Completion(task, outcome, 0 if outcome == "succeeded" else 1, message, output)
    return work.step(APP, [done], worker=WORKER, executor=executor, retries=retries, backoff_s=backoff_s)


def queued(store: fakeredis.FakeRedis) -> list[str]:
    return Queue(KEYS.app_queue(APP), connection=store, serializer=JSONSerializer).job_ids


def test_filling_twice_makes_each_job_once(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    assert fill(work, 5, "e", chunk=2)
    assert fill(work, 5, "f", chunk=2)
    assert queued(fake) == [job_id(CLUSTER, APP, task) for task in range(5)]


class Dying(fakeredis.FakeRedis):
    """A connection whose process dies after so many commands."""

    commands_left = 1 << 30

    def execute_command(self, *arguments: object, **options: object) -> object:
        self.commands_left -= 1
        if self.commands_left < 0:
            raise StoreConnectionError
        return super().execute_command(*arguments, **options)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("commands", range(1, 5))
def test_filling_goes_on_where_a_crash_cut_it_short(commands: int) -> None:
    server = fakeredis.FakeServer()
    dying, store = Dying(server=server), fakeredis.FakeRedis(server=server)
    grant(store, "e", "f")
    fill(Worklist(store, CLUSTER), 0)
    dying.commands_left = commands
    with pytest.raises(StoreConnectionError):
        fill(Worklist(dying, CLUSTER), 10, chunk=2)
    assert len(queued(store)) == 2 * commands
    assert fill(Worklist(store, CLUSTER), 10, "f", chunk=3)
    assert queued(store) == [job_id(CLUSTER, APP, task) for task in range(10)]


def test_nothing_is_filled_or_taken_for_an_executor_without_a_grant(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    assert not fill(work, 3, "stranger")
    assert queued(fake) == []
    fill(work, 3)
    fake.hset(KEYS.grants(WORKER), "e", "")
    step = work.step(APP, worker=WORKER, executor="e", want=3)
    assert not step.granted
    assert step.taken == []


def test_jobs_are_what_rq_shows_and_their_status_follows(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    fill(work, 2)
    job = Job.fetch(job_id(CLUSTER, APP, 1), connection=fake, serializer=JSONSerializer)
    assert (job.func_name, job.args, job.timeout) == ("workers.tasks.run", [APP, 1], -1)
    assert job.get_status() is JobStatus.QUEUED
    assert take(work, 2) == [0, 1]
    assert job.get_status() is JobStatus.STARTED
    work.put_back(APP, "e")
    assert job.get_status() is JobStatus.QUEUED


def test_a_task_is_taken_by_one_executor_only(work: Worklist) -> None:
    fill(work, 5)
    assert take(work, 3, "e") == [0, 1, 2]
    assert take(work, 9, "f") == [3, 4]
    assert take(work, 9, "e") == []


def test_the_word_of_an_executor_that_has_not_begun_the_task_is_ignored(work: Worklist) -> None:
    fill(work, 1)
    take(work, 1, "e")
    work.put_back(APP, "e")
    take(work, 1, "f")
    end(work, 0, "succeeded", "e")
    assert work.progress(APP) == Progress(tasks=1, running=1)
    assert end(work, 0, "succeeded", "f").verdict == Verdict("finished", "")


def test_a_completion_counts_once(work: Worklist) -> None:
    fill(work, 2)
    take(work, 2)
    end(work, 0, "succeeded")
    assert end(work, 0, "succeeded").verdict is None
    assert work.progress(APP) == Progress(tasks=2, running=1, succeeded=1)


def test_a_failed_task_goes_to_the_end_of_the_queue_until_its_retries_are_used_up(work: Worklist) -> None:
    fill(work, 2)
    take(work, 1)
    assert end(work, 0, "failed", retries=1).verdict is None
    assert take(work, 2) == [1, 0]
    step = end(work, 0, "failed", retries=1, message="task 0 is bad")
    assert step.verdict == Verdict("failed", "task 0 is bad")
    assert work.states(APP)[0].attempts == 2


def test_word_of_an_attempt_that_comes_twice_is_not_taken_for_word_of_the_next_one(work: Worklist) -> None:
    fill(work, 1)
    [first] = work.step(APP, worker=WORKER, executor="e", want=1).taken
    failed = Completion(0, "failed", 1, attempt=first.attempt)
    [second] = work.step(APP, [failed], worker=WORKER, executor="e", want=1, retries=1).taken
    assert work.step(APP, [failed], worker=WORKER, executor="e", retries=1).verdict is None
    assert second.attempt == 2
    assert work.progress(APP).running == 1


def test_what_the_attempts_of_a_task_took_is_kept_with_its_state_and_summed_by_app(work: Worklist) -> None:
    fill(work, 2)
    take(work, 2)
    first = Completion(0, "failed", 1, attempt=1, cpu_ms=1500, peak_mb=300, output_bytes=1 << 33)
    other = Completion(1, "succeeded", 0, attempt=1, cpu_ms=7, peak_mb=2)
    work.step(APP, [first, other], worker=WORKER, executor="e", want=1, retries=1)
    work.step(APP, [Completion(0, "succeeded", 0, attempt=2, cpu_ms=20, peak_mb=9)], worker=WORKER, executor="e")
    took = [(state.cpu_ms, state.peak_mb, state.output_bytes) for state in work.states(APP)]
    assert took == [(1520, 300, 1 << 33), (7, 2, 0)]
    assert work.progress(APP) == Progress(tasks=2, succeeded=2, cpu_ms=1527, peak_mb=300, output_bytes=1 << 33)


@pytest.mark.parametrize("before", ["", "returned", "over"])
def test_what_stopped_tasks_took_is_counted_once_whatever_became_of_them(
    work: Worklist, fake: fakeredis.FakeRedis, before: str
) -> None:
    """The master may have returned them, or closed their app, before their executor says what they took."""
    fill(work, 2)
    take(work, 1)
    fake.hset(KEYS.grants(WORKER), "e", "")
    kept = 0
    if before == "returned":
        work.put_back(APP, "e")
    elif before == "over":
        work.forget({APP: "acme"})
        fake.expire(KEYS.tasks(APP), int(HOPELESS_S))
        kept = int(fake.hget(KEYS.kept_bytes, "acme") or 0)
    keys = {*fake.keys("*"), KEYS.output(APP).encode()}
    stopped = Completion(0, "stopped", 143, "killed", b"out", attempt=1, cpu_ms=1500, peak_mb=300, output_bytes=7)
    for report in (stopped, stopped, stopped._replace(attempt=2), stopped._replace(attempt=None, task=7)):
        work.step(APP, [report], worker=WORKER, executor="e")
    state = work.states(APP)[0]
    assert (state.cpu_ms, state.peak_mb, state.output_bytes, state.message) == (1500, 300, 7, "")
    assert state.state == {"": "running", "returned": "queued", "over": "stopped"}[before]
    assert work.progress(APP).cpu_ms == 1500
    assert set(fake.keys("*")) == keys
    assert work.output(APP, 0) == b"out"
    if before == "over":
        assert 0 < fake.ttl(KEYS.output(APP)) <= 2 * HOPELESS_S
        assert fake.hgetall(KEYS.kept_bytes) == {b"acme": b"%d" % (kept + 3)}
    work.put_back(APP, "e")
    if before != "over":
        assert take(work, 1, "f") == [0]
        late = Completion(0, "stopped", 143, output=b"late", attempt=1)
        step = [late, Completion(0, "succeeded", 0, output=b"new", attempt=2, cpu_ms=20), late]
        work.step(APP, step, worker=WORKER, executor="f")
        assert (work.states(APP)[0].cpu_ms, work.output(APP, 0)) == (1520, b"new")


@pytest.mark.parametrize("returned", [False, True])
def test_only_the_executor_that_held_a_task_reports_that_it_was_stopped(work: Worklist, *, returned: bool) -> None:
    fill(work, 2)
    assert take(work, 1) == [0]
    assert take(work, 1, "f") == [1]
    if returned:
        work.put_back(APP, "e")
    false = Completion(0, "stopped", 143, output=b"false", attempt=1, cpu_ms=9_000, peak_mb=900, output_bytes=5)
    work.step(APP, [false], worker=WORKER, executor="f")
    state = work.states(APP)[0]
    assert (state.cpu_ms or 0, state.peak_mb or 0, work.output(APP, 0)) == (0, 0, b"")
    if returned:
        assert take(work, 1, "f") == [0]
        work.step(APP, [false], worker=WORKER, executor="f")
        assert (work.states(APP)[0].cpu_ms or 0) == 0
    true = Completion(0, "stopped", 143, output=b"true", attempt=1, cpu_ms=20)
    work.step(APP, [true], worker=WORKER, executor="e")
    assert work.states(APP)[0].cpu_ms == 20


def test_the_last_output_of_a_stopped_task_is_left_out_where_it_cannot_be_counted(
    work: Worklist, fake: fakeredis.FakeRedis
) -> None:
    ended(work, "first", "acme", 100)
    fake.set(KEYS.kept_bytes, "not to be counted in")
    late = Completion(0, "stopped", 143, output=b"late", attempt=1, cpu_ms=5)
    work.step("first", [late], worker=WORKER, executor="e")
    assert (work.output("first", 0), work.states("first")[0].cpu_ms) == (b"x" * 100, 5)


def test_the_last_output_of_stopped_tasks_gives_way_with_their_app(
    work: Worklist, fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_queue, "KEPT_BYTES", 10_000)
    ended(work, "first", "acme", 100)
    work.step("first", [Completion(0, "stopped", 143, output=b"x" * 9_000, attempt=1)], worker=WORKER, executor="e")
    assert len(work.output("first", 0)) == 9_000
    ended(work, "second", "acme", 1_000)
    assert (work.output("first", 0), len(work.output("second", 0))) == (b"", 1_000)
    sums = [int(each.split()[0]) for each in fake.lrange(KEYS.kept("acme"), 0, -1)]
    assert int(fake.hget(KEYS.kept_bytes, "acme") or 0) == sum(sums)


def test_a_task_that_cannot_be_started_comes_first_on_another_worker_and_is_no_retry(
    work: Worklist, fake: fakeredis.FakeRedis
) -> None:
    """Semantics W9."""
    fake.hset(KEYS.grants("w2"), "g", "{}")
    fill(work, 3)
    take(work, 1)
    for _ in range(2):  # another executor of the same worker may take it before it has ended
        step = end(work, 0, "unstartable", message="no such program")
        assert step.verdict is None
        [state, *_] = work.states(APP)
        assert (state.state, state.tried, state.message) == ("queued", "w1", "no such program")
        assert take(work, 1) == [0]
    work.put_back(APP, "e")
    assert [one.task for one in work.step(APP, worker="w2", executor="g", want=1).taken] == [0]
    done = Completion(0, "unstartable", 127, "no such program there either")
    step = work.step(APP, [done], worker="w2", executor="g", retries=9)
    assert step.verdict == Verdict("failed", "no such program there either")


def test_a_failed_task_waits_twice_as_long_after_each_attempt_up_to_five_minutes(
    work: Worklist, fake: fakeredis.FakeRedis
) -> None:
    """Semantics W10."""
    fill(work, 1)
    waited = []
    for _ in range(11):
        step = work.step(APP, worker=WORKER, executor="e", want=2, backoff_s=1)
        assert [one.task for one in step.taken] == [0]
        step = end(work, 0, "failed", retries=20, backoff_s=1)
        assert step.verdict is None
        [state] = work.states(APP)
        waited.append((state.due_at or 0) - (state.ended_at or 0))
        assert work.progress(APP) == Progress(tasks=1, later=1)
        step = work.step(APP, worker=WORKER, executor="e", want=2, backoff_s=1)
        assert step.taken == []
        assert 0 < step.next_ms <= waited[-1]
        assert step.waiting == 1
        fake.zincrby(KEYS.later(APP), -waited[-1], "0")
    assert waited == [1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 256000, 300000, 300000]
    [begun] = work.step(APP, worker=WORKER, executor="e", want=2, backoff_s=1).taken
    assert begun.attempt == 12
    assert work.states(APP)[0].due_at is None


def test_a_task_that_is_put_back_does_not_wait(work: Worklist) -> None:
    """Semantics W10."""
    fill(work, 1)
    take(work, 1)
    work.put_back(APP, "e")
    assert take(work, 1) == [0]


def test_it_is_known_whether_a_task_finished_in_an_executor(work: Worklist) -> None:
    """Semantics W7."""
    fill(work, 3)
    take(work, 2, "e")
    take(work, 1, "f")
    end(work, 0, "succeeded", "e")
    end(work, 2, "failed", "f", retries=1)
    assert (work.has_finished(APP, "e"), work.has_finished(APP, "f")) == (True, False)


def test_nothing_is_handed_out_once_a_task_has_failed_for_good(work: Worklist) -> None:
    fill(work, 3)
    take(work, 1)
    end(work, 0, "failed")
    assert take(work, 3, "f") == []


@pytest.mark.parametrize(("others", "detail"), [("succeeded", "task 1 was cancelled"), ("failed", "it broke")])
def test_a_cancelled_task_leaves_the_others_to_run_and_the_app_fails_at_their_end(
    fake: fakeredis.FakeRedis, work: Worklist, others: Outcome, detail: str
) -> None:
    """Semantics X4."""
    fake.hset(KEYS.grants(WORKER), "e", '{"executor":"e","keep_going":true}')
    fill(work, 3)
    work.step(APP, worker=WORKER, executor="e", want=2)
    gone = Completion(1, "cancelled", 143, "task 1 was cancelled", attempt=1)
    step = work.step(APP, [gone], worker=WORKER, executor="e", want=1, retries=5)
    assert (step.verdict, step.waiting, [begun.task for begun in step.taken]) == (None, 0, [2])
    assert work.verdict(APP) is None
    assert [each.state for each in work.states(APP)] == ["running", "cancelled", "running"]
    assert work.progress(APP) == Progress(tasks=3, running=2, cancelled=1)
    work.step(APP, [gone], worker=WORKER, executor="e")
    ends = [Completion(task, others if task else "succeeded", 0, "it broke", attempt=1) for task in (0, 2)]
    step = work.step(APP, ends, worker=WORKER, executor="e")
    assert step.verdict == work.verdict(APP) == Verdict("failed", detail)


def test_a_task_that_is_put_back_alone_begins_again_before_others_and_has_not_failed(work: Worklist) -> None:
    """Semantics X6."""
    fill(work, 3)
    assert take(work, 2) == [0, 1]
    step = end(work, 1, "returned", message="task 1 was put back")
    assert (step.verdict, step.waiting) == (None, 2)
    assert work.progress(APP) == Progress(tasks=3, running=1, queued=2)
    assert take(work, 2) == [1, 2]
    found = work.states(APP)[1]
    assert (found.state, found.attempts, found.message) == ("running", 2, "task 1 was put back")
    for task in range(3):
        step = end(work, task, "succeeded")
    assert step.verdict == Verdict("finished", "")


def test_an_app_that_keeps_going_ends_with_the_last_of_its_tasks(fake: fakeredis.FakeRedis, work: Worklist) -> None:
    for executor in ("e", "f"):
        fake.hset(KEYS.grants(WORKER), executor, '{"executor":"e","keep_going":true}')
    fill(work, 4)
    assert take(work, 2) == [0, 1]
    step = end(work, 0, "failed", message="no luck")
    assert (step.verdict, step.waiting, work.verdict(APP)) == (None, 2, None)
    assert take(work, 9, "f") == [2, 3]
    assert end(work, 2, "succeeded", "f").verdict is None
    assert end(work, 3, "failed", "f", message="nor this one").verdict is None
    over = end(work, 1, "succeeded")
    assert over.verdict == work.verdict(APP) == Verdict("failed", "no luck")
    assert (over.succeeded, over.failed) == (2, 2)
    assert [task.state for task in work.states(APP)] == ["failed", "succeeded", "succeeded", "failed"]


@pytest.mark.parametrize("chunk", [1, 2, 500])
def test_tasks_that_failed_before_their_app_was_put_back_run_again(
    fake: fakeredis.FakeRedis, work: Worklist, chunk: int
) -> None:
    """Semantics X6: those that have succeeded or were cancelled do not, and each begins once."""
    fake.hset(KEYS.grants(WORKER), "e", '{"executor":"e","keep_going":true}')
    fill(work, 5)
    assert take(work, 4) == [0, 1, 2, 3]
    end(work, 0, "failed", message="no luck")
    end(work, 1, "succeeded")
    end(work, 2, "cancelled")
    end(work, 3, "failed", retries=1)
    assert take(work, 9) == [4, 3]
    work.put_back(APP, "e")
    for executor in ("f", "g"):
        fake.hset(KEYS.grants(WORKER), executor, '{"executor":"f","keep_going":true,"restarts":1}')
    assert fill(work, 5, "f", chunk=chunk, again=True)
    assert fill(work, 5, "g", chunk=chunk, again=True)
    assert sorted(take(work, 9, "f")) == [0, 3, 4]
    assert [(task.state, task.attempts) for task in work.states(APP)] == [
        ("running", 2),
        ("succeeded", 1),
        ("cancelled", 1),
        ("running", 3),
        ("running", 2),
    ]
    assert work.progress(APP) == Progress(tasks=5, running=3, succeeded=1, cancelled=1)
    assert fill(work, 5, "f", again=True)
    for task in (0, 3):
        assert end(work, task, "succeeded", "f").verdict is None
    assert end(work, 4, "failed", "f", message="again").verdict == Verdict("failed", "again")


def test_a_failure_of_an_old_executor_counts_no_more_once_its_tasks_are_put_back(work: Worklist) -> None:
    """Semantics X6: the commit that puts an app back returns its tasks."""
    fill(work, 1)
    assert take(work, 1) == [0]
    work.put_back(APP, "e")
    step = end(work, 0, "failed", message="exit code 255")
    assert (step.verdict, work.verdict(APP)) == (None, None)
    assert take(work, 1, "f") == [0]


def test_nobody_without_a_grant_has_tasks_run_again(fake: fakeredis.FakeRedis, work: Worklist) -> None:
    fill(work, 1)
    take(work, 1)
    end(work, 0, "failed")
    fake.hset(KEYS.grants(WORKER), "f", "")
    assert not fill(work, 1, "f", again=True)
    assert work.verdict(APP) == Verdict("failed", "")


def test_being_put_back_is_no_retry_and_comes_first(work: Worklist) -> None:
    fill(work, 4)
    take(work, 2)
    assert work.put_back(APP, "e") == 2
    assert work.put_back(APP, "e") == 0
    assert take(work, 3) == [0, 1, 2]
    assert end(work, 0, "failed", retries=1).verdict is None


def test_a_task_that_was_stopped_with_its_app_keeps_its_last_attempt(work: Worklist) -> None:
    fill(work, 3)
    take(work, 2)
    running = work.states(APP)
    assert work.put_back(APP, "e") == 2
    assert [(task.state, task.started_at) for task in work.states(APP)] == [("queued", None)] * 3
    [again] = take(work, 1, "f")
    began = work.states(APP)[again].started_at
    work.put_back(APP, "f")
    work.forget({APP: "acme"})
    first, second, third = work.states(APP)
    assert [task.state for task in (first, second, third)] == ["stopped"] * 3
    assert (first.executor, first.started_at, second.executor) == ("f", began, "e")
    assert second.started_at == running[1].started_at
    assert None not in (first.ended_at, second.ended_at)
    assert (third.executor, third.started_at, third.ended_at) == (None, None, None)


def test_what_several_executors_had_begun_is_put_back_together_and_in_order(work: Worklist) -> None:
    fill(work, 4)
    take(work, 2, "e")
    take(work, 1, "f")
    assert work.put_back(APP, "f", "stranger", "e") == 3
    assert take(work, 4) == [0, 1, 2, 3]


def test_what_an_executor_has_begun_without_knowing_is_told_when_the_queue_is_empty(work: Worklist) -> None:
    fill(work, 3)
    take(work, 2)
    step = work.step(APP, worker=WORKER, executor="e", want=4)
    assert step.taken == [(2, 1)]
    assert sorted(step.mine) == [(0, 1), (1, 1), (2, 1)]


def step(work: Worklist, turn: str, want: int, *ended: int, slots: int = 2) -> Step:
    done = [Completion(task, "succeeded", 0, attempt=1) for task in ended]
    return work.step(APP, done, worker=WORKER, executor="e", want=want, turn=turn, slots=slots)


def test_a_step_that_is_sent_again_gets_what_was_handed_out_and_no_more(work: Worklist) -> None:
    """Its answer was lost: nothing is lost or runs twice, although the queue is long."""
    fill(work, 20)
    assert step(work, "a:1", 2).taken == [(0, 1), (1, 1)]
    assert step(work, "a:2", 2, 0, 1).taken == [(2, 1), (3, 1)]
    again = step(work, "a:2", 2, 0, 1)
    assert (again.taken, sorted(again.mine), again.succeeded) == ([], [(2, 1), (3, 1)], 2)
    assert step(work, "a:3", 1, 2).taken == [(4, 1)]
    work.put_back(APP, "e")
    again = step(work, "a:3", 2)
    assert (again.taken, again.mine) == ([(3, 2), (4, 2)], []), "what was taken back meanwhile is handed out anew"


def test_a_step_that_comes_after_a_later_one_takes_nothing(work: Worklist) -> None:
    fill(work, 20)
    step(work, "a:1", 2)
    step(work, "a:2", 1)
    late = step(work, "a:1", 2, 0)
    assert (late.taken, late.succeeded) == ([], 1)
    assert step(work, "b:1", 1).taken == [(3, 1)], "another process of the executor counts from 1"


def test_a_step_says_how_many_tasks_wait_and_run_in_all(work: Worklist) -> None:
    fill(work, 5)
    take(work, 1, "f")
    step = work.step(APP, worker=WORKER, executor="e", want=2)
    assert (step.waiting, step.running) == (2, 3)
    end(work, 1, "succeeded")
    step = work.step(APP, [Completion(2, "failed", 1)], worker=WORKER, executor="e", retries=1)
    assert (step.waiting, step.running) == (3, 1)


@pytest.mark.parametrize("name", ["stranger", job_id(CLUSTER, "other", 0), job_id(CLUSTER, APP, 99)])
def test_foreign_jobs_are_refused_and_removed(work: Worklist, fake: fakeredis.FakeRedis, name: str) -> None:
    fill(work, 1)
    queue = Queue(KEYS.app_queue(APP), connection=fake, serializer=JSONSerializer)
    queue.enqueue("os.getcwd", job_id=name, at_front=True)
    step = work.step(APP, worker=WORKER, executor="e", want=2)
    assert (step.taken, step.refused) == ([(0, 1)], [name])
    assert not fake.exists(f"rq:job:{name}")


def test_a_job_that_somebody_queued_twice_runs_once(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    fill(work, 1)
    place = f"rq:queue:{KEYS.app_queue(APP)}"
    fake.rpush(place, job_id(CLUSTER, APP, 0))
    assert take(work, 2) == [0]
    end(work, 0, "succeeded")
    fake.rpush(place, job_id(CLUSTER, APP, 0))
    assert take(work, 2) == []


def test_the_end_of_a_tasks_output_is_kept(work: Worklist) -> None:
    fill(work, 2)
    take(work, 2)
    work.keep_output(APP, "e", {0: b"so far"})
    work.keep_output(APP, "stranger", {1: b"not mine"})
    assert (work.output(APP, 0), work.output(APP, 1)) == (b"so far", b"")
    end(work, 1, "succeeded", output=b"x" + b"y" * OUTPUT_BYTES)
    assert work.output(APP, 1) == b"y" * OUTPUT_BYTES


def test_a_forgotten_app_leaves_states_and_output_for_a_while_and_nothing_else(
    work: Worklist, fake: fakeredis.FakeRedis
) -> None:
    fake.hset(KEYS.secrets(APP), "TOKEN", "secret")
    fill(work, 5)
    take(work, 2)
    end(work, 0, "succeeded", output=b"result")
    assert work.open_apps() == [APP]
    work.forget({APP: "acme"})
    kept = (KEYS.tasks(APP), KEYS.output(APP), KEYS.grants(WORKER), KEYS.kept("acme"), KEYS.kept_bytes)
    assert set(fake.keys()) == {key.encode() for key in kept}
    assert 0 < fake.ttl(KEYS.tasks(APP)) <= 7 * 24 * 3600
    assert work.open_apps() == []
    assert work.output(APP, 0) == b"result"
    assert [state.state for state in work.states(APP)] == ["succeeded"] + ["stopped"] * 4


def ended(work: Worklist, app: str, company: str, size: int) -> None:
    """Run an app of one task with so much output, and of a driver with as much."""
    work.fill(app, 1, worker=WORKER, executor="e")
    work.step(app, worker=WORKER, executor="e", want=1)
    work.keep_output(app, "e", {0: b"x" * size})
    work.keep_driver_output(app, b"y" * size)
    work.forget({app: company})


def test_the_oldest_output_of_a_company_gives_way_to_its_latest(
    work: Worklist, fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_queue, "KEPT_BYTES", 10_000)
    ended(work, "theirs", "globex", 1_000)
    for number in range(5):
        ended(work, f"ours{number}", "acme", 2_000)
    found = [bool(work.output(app, 0)) for app in ("theirs", "ours0", "ours1", "ours2", "ours3", "ours4")]
    assert found == [True, False, False, False, True, True]
    assert not fake.exists(KEYS.tasks("ours2"), KEYS.driver_output("ours2"))
    assert work.output("ours4", None)
    sums = {company: int(size) for company, size in fake.hgetall(KEYS.kept_bytes).items()}
    assert sums[b"acme"] == sum(int(each.split()[0]) for each in fake.lrange(KEYS.kept("acme"), 0, -1))
    assert sums[b"acme"] <= 10_000


def counted(fake: fakeredis.FakeRedis, **companies: list[str]) -> dict[str, int]:
    """Of each company what is counted, which is what the store holds of its apps."""
    held = {as_text(name): as_text(text) for name, text in fake.hgetall(KEYS.live).items()}
    for company, apps in companies.items():
        for app in apps:
            there = sum(map(len, fake.hvals(KEYS.output(app)))) + fake.strlen(KEYS.driver_output(app))
            assert held.get(app, f"0 {company}") == f"{there} {company}"
        assert int(held.get(f"/{company}", 0)) == sum(int(held.get(app, "0").split()[0]) for app in apps)
    return {name[1:]: int(text) for name, text in held.items() if name.startswith("/")}


LONG = b"a" * 5_000 + b"z"


def test_a_company_keeps_so_much_output_of_apps_that_run(
    work: Worklist, fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room is kept in a shorter form, which says so where it is read; others have room of their own."""
    monkeypatch.setattr(task_queue, "LIVE_BYTES", 10_800)
    apps = {"acme": ["one", "two"], "globex": ["theirs"]}
    for app in ("one", "two", "theirs"):
        work.fill(app, 3, worker=WORKER, executor="e")
        work.step(app, worker=WORKER, executor="e", want=3)

    def keep(app: str, tails: dict[int, bytes]) -> None:
        work.keep_output(app, "e", tails, company="globex" if app == "theirs" else "acme")

    def finish(app: str, task: int, text: bytes) -> None:
        done = Completion(task, "succeeded", 0, "", output=text)
        work.step(app, [done], worker=WORKER, executor="e", company="acme")

    def said(missing: int) -> bytes:
        return b"fairlog: %d bytes before this are not shown here; the worker has them in its files\n" % missing

    keep("one", {0: LONG, 1: LONG})
    keep("theirs", {0: LONG, 1: LONG})
    finish("two", 0, LONG)
    assert (
        [work.output("one", task) for task in (0, 1)] == [work.output("theirs", task) for task in (0, 1)] == [LONG] * 2
    )
    assert work.output("two", 0) == said(len(LONG) - 512) + LONG[-512:]
    keep("two", {1: LONG})
    assert work.output("two", 1) == said(len(LONG))
    work.keep_driver_output("two", LONG, company="acme")
    work.keep_program_output("two", 7, LONG, company="acme")
    assert work.output("two", None) == work.output("two", 7) == said(len(LONG))
    assert counted(fake, **apps)["acme"] <= 10_800
    finish("one", 0, LONG[1:])
    assert work.output("one", 0) == LONG[1:]
    work.forget({"one": "acme"})
    assert work.output("one", 0) == LONG[1:]
    keep("two", {1: LONG})
    assert work.output("two", 1) == LONG
    assert counted(fake, acme=["two"], globex=["theirs"])["acme"] > len(LONG)
    work.forget({"two": "acme", "theirs": "globex"})
    assert not fake.exists(KEYS.live)


def test_of_programs_that_give_way_nothing_is_counted(
    work: Worklist, fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_queue, "KEPT_PROGRAMS", 2)
    for number in range(5):
        work.keep_program_output(APP, number, b"x" * (number + 1), company="acme")
        work.keep_driver_output(APP, b"y" * (10 - number), company="acme")
    assert work.written(APP) == [3, 4]
    assert counted(fake, acme=[APP]) == {"acme": 4 + 5 + 6}
    assert work.open_apps() == [APP]


def test_an_app_that_runs_again_under_an_old_name_keeps_its_tasks(
    work: Worklist, fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(work, "again", "acme", 2_000)
    fake.delete(KEYS.tasks("again"), KEYS.output("again"), KEYS.driver_output("again"))
    work.fill("again", 3, worker=WORKER, executor="e")
    monkeypatch.setattr(task_queue, "KEPT_BYTES", 0)
    ended(work, "other", "acme", 10)
    assert len(work.states("again")) == 3
    assert not fake.exists(KEYS.kept("acme"))


def test_a_driver_alone_counts_as_well(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    work.keep_driver_output("alone", b"y" * 500)
    work.forget({"alone": "acme", "never began": "acme"})
    assert fake.lrange(KEYS.kept("acme"), 0, -1) == [b"500 alone"]


def test_nothing_brings_a_forgotten_app_back(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    fill(work, 3)
    take(work, 1)
    work.forget({APP: "acme"})
    assert not fill(work, 3)
    assert take(work, 3) == []
    end(work, 0, "failed", retries=3)
    work.put_back(APP, "e")
    work.forget({APP: "acme"})
    assert queued(fake) == []
    assert work.open_apps() == []
    fake.rpush(f"rq:queue:{KEYS.app_queue(APP)}", job_id(CLUSTER, APP, 1))
    assert take(work, 3) == []


def test_apps_whose_names_differ_in_punctuation_only_do_not_share_jobs() -> None:
    names = ["a.b", "a-b", "a_b", "a__b", "a_2eb"]
    assert len({job_id(CLUSTER, name, 0) for name in names}) == len(names)
    assert len({job_id(cluster, app, 0) for cluster, app in [("a", "b__c"), ("a__b", "c")]}) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda fake: fake.hset(KEYS.tasks(APP), "0", "no JSON"),
        lambda fake: fake.hset(KEYS.tasks(APP), "0", "[" * 5000),
        lambda fake: fake.hset(KEYS.tasks(APP), "0", "7"),
        lambda fake: fake.hdel(KEYS.tasks(APP), "0"),
        lambda fake: fake.set(KEYS.tasks(APP), "no hash"),
        lambda fake: fake.set(f"rq:queue:{KEYS.app_queue(APP)}", "no list"),
        lambda fake: fake.hset(KEYS.begun(APP), "no number", "e"),
    ],
)
def test_damaged_states_of_tasks_do_not_stop_a_commit_that_returns_them(
    damage: Callable[[fakeredis.FakeRedis], object], work: Worklist, fake: fakeredis.FakeRedis
) -> None:
    fill(work, 2)
    take(work, 2)
    damage(fake)
    assert work.put_back(APP, "e") == 2
    assert queued(fake) == [job_id(CLUSTER, APP, 0), job_id(CLUSTER, APP, 1)]
    assert not {b"0", b"1"} & {*fake.hkeys(KEYS.begun(APP))}


def test_a_task_that_breaks_its_executors_waits_longer_and_longer(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    """Semantics W10."""
    fill(work, 1)
    waits = []
    for _ in range(13):
        fake.zadd(KEYS.later(APP), {"0": 0}, xx=True)
        assert take(work, 1) == [0]
        assert work.put_back(APP, broken("e")) == 1
        (state,) = work.states(APP)
        clock: Any = fake.time()
        waits.append(-1 if state.due_at is None else round((state.due_at - clock[0] * 1000) / 1000))
        assert (fake.zcard(KEYS.later(APP)), len(queued(fake))) == ((0, 1) if state.due_at is None else (1, 0))
    assert waits[:2] == [-1, -1]
    expected = (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300)
    assert all(abs(found - due) <= 1 for found, due in zip(waits[2:], expected, strict=True))


def test_only_abnormal_ends_in_a_row_make_a_task_wait(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    """Semantics W10."""
    fill(work, 1)
    for gone in ("!e", "!e", "e", "!e", "!e"):
        take(work, 1)
        work.put_back(APP, gone)
        assert len(queued(fake)) == 1
    take(work, 1)
    work.put_back(APP, "!e")
    assert not queued(fake)


def test_apps_of_many_tasks_keep_less_of_each_ones_output() -> None:
    assert [output_bytes(tasks) for tasks in (0, 1, 1024, 2048, 100_000)] == [65536, 65536, 65536, 32768, 1024]


def test_running_tasks_of_another_type_return_nothing(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    fill(work, 2)
    fake.set(KEYS.begun(APP), "no hash")
    assert work.put_back(APP, "e") == 0


def test_only_records_of_rq_workers_are_deleted_with_an_app(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    fill(work, 1)
    log = Keys(CLUSTER).log
    fake.set(log, "the log")
    fake.set("rq:worker:one", "a worker")
    fake.sadd(f"rq:workers:{KEYS.app_queue(APP)}", "rq:worker:one", log)
    work.forget({APP: "acme"})
    assert fake.get(log) == b"the log"
    assert not fake.exists("rq:worker:one")


def test_a_forged_number_of_jobs_does_not_keep_the_master_busy(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    for forged in (str(10**15), "no number"):
        fill(work, 1)
        fake.hset(KEYS.tasks(APP), "filled", forged)
        work.forget({APP: "acme"})
        fake.delete(KEYS.tasks(APP))
    assert work.open_apps() == []


def test_a_queue_whose_name_is_no_text_is_no_app(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    fake.sadd("rq:queues", b"rq:queue:\xff\xfe")
    assert work.open_apps() == []


EXECUTORS = st.sampled_from(["e", "f", "g"])
ACTIONS = st.one_of(
    st.tuples(st.just("take"), EXECUTORS, st.integers(0, 4)),
    st.tuples(st.just("succeeded"), EXECUTORS, st.integers(0, 7)),
    st.tuples(st.just("failed"), EXECUTORS, st.integers(0, 7)),
    st.tuples(st.just("failed later"), EXECUTORS, st.integers(0, 7)),
    st.tuples(st.just("unstartable"), EXECUTORS, st.integers(0, 7)),
    st.tuples(st.just("due"), EXECUTORS, st.integers(0, 7)),
    st.tuples(st.just("put_back"), EXECUTORS, st.just(0)),
    st.tuples(st.just("fill"), EXECUTORS, st.just(0)),
)


@settings(max_examples=60)
@given(st.lists(ACTIONS, max_size=40))
def test_every_task_is_in_exactly_one_place(actions: list[tuple[str, str, int]]) -> None:
    store = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    grant(store, "e", "f", "g")
    work = Worklist(store, CLUSTER)
    fill(work, 8)
    ended = 0
    for action, executor, number in actions:
        match action:
            case "take":
                take(work, number, executor)
            case "succeeded":
                end(work, number, "succeeded", executor)
            case "failed":
                end(work, number, "failed", executor, retries=1)
            case "failed later":
                end(work, number, "failed", executor, retries=2, backoff_s=1)
            case "unstartable":
                end(work, number, "unstartable", executor)
            case "due":
                if store.zscore(KEYS.later(APP), str(number)) is not None:
                    store.zadd(KEYS.later(APP), {str(number): 0})
                work.step(APP, worker=WORKER, executor=executor, want=1, backoff_s=1)
            case "put_back":
                work.put_back(APP, executor)
            case _:
                fill(work, 8, executor)
        places = [int(name.rsplit("__", 1)[1]) for name in queued(store)]
        places += [int(task) for task in store.hkeys(KEYS.begun(APP))]
        places += [task for task in range(8) if store.zscore(KEYS.later(APP), str(task)) is not None]
        states = work.states(APP)
        over = [state.task for state in states if state.state in {"succeeded", "failed"}]
        assert sorted(places + over) == list(range(8))
        assert len(over) >= ended
        ended = len(over)
        progress = work.progress(APP)
        counted = [sum(state.state == name for state in states) for name in Progress._fields[1:5]]
        later = store.zcard(KEYS.later(APP))
        assert later == sum(state.state == "queued" and state.due_at is not None for state in states)
        assert [progress.tasks, progress.queued + later, *progress[2:6]] == [8, *counted, later]
        jobs = {int(as_text(key).rsplit("__", 1)[1]) for key in store.keys("rq:job:*")}
        assert jobs == set(range(8)) - set(over)


# Tasks that prefer hosts (semantics L7)

NEAR = {"h1": "0-2", "h2": "3-5,2", "h3": "6", "gone": "7"}
"""Tasks 8 and 9 prefer none; task 2 prefers two hosts, and the only host of task 7 has no worker."""


def nearness(host: str, **changes: Any) -> Nearness:
    racks = {"h1": "r1", "h2": "r2", "h3": "r1"}
    told: dict[str, Any] = {
        "tasks": NEAR,
        "racks": racks,
        "host": host,
        "rack": racks[host],
        "host_wait_ms": 60_000,
    } | changes
    return Nearness(**{"rack_wait_ms": 60_000, **told})


def test_what_programs_have_used_is_added_up_once_each(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    for number, cpu_ms, peak_mb in ((0, 700, 30), (1, 500, 40), (0, 700, 30), (2, -5, 10)):
        work.keep_used(APP, number, cpu_ms, peak_mb)
    assert work.progress(APP) == Progress(cpu_ms=1200, peak_mb=40)
    assert work.states(APP) == []
    assert 0 < fake.ttl(Keys(CLUSTER).tasks(APP)) <= task_queue.KEPT_S


@pytest.fixture
def near(work: Worklist) -> Worklist:
    assert fill(work, 10, "e", near=nearness("h1"), chunk=4)
    assert fill(work, 10, "f", near=nearness("h2"), chunk=4)
    return work


def waited(store: fakeredis.FakeRedis, ms: int) -> None:
    """Set the clock of the wait back."""
    store.hincrby(KEYS.tasks(APP), "near:since", -ms)


def localities(work: Worklist) -> dict[int, str | None]:
    return {state.task: state.locality for state in work.states(APP) if state.state == "running"}


def test_an_executor_takes_tasks_of_its_host_then_those_without_one_and_waits(near: Worklist) -> None:
    assert take(near, 10, "e") == [0, 1, 2, 7, 8, 9]
    assert take(near, 10, "f") == [3, 4, 5], "task 2 is taken"
    assert take(near, 10, "e") == []
    assert localities(near) == {**dict.fromkeys(range(6), "host"), 7: "any", 8: None, 9: None}


def test_after_the_waits_tasks_of_the_rack_are_taken_and_then_any(near: Worklist, fake: fakeredis.FakeRedis) -> None:
    take(near, 6, "e")
    waited(fake, 60_001)
    assert take(near, 10, "e") == [6], "h3 is in the rack of h1"
    assert take(near, 10, "e") == [], "the wait began anew"
    waited(fake, 60_001)
    assert take(near, 2, "e") == [3, 4]
    assert localities(near) | {6: "rack", 3: "any", 4: "any"} == localities(near)


def test_a_task_that_begins_on_its_host_starts_the_wait_anew(near: Worklist, fake: fakeredis.FakeRedis) -> None:
    take(near, 6, "e")
    waited(fake, 120_001)
    assert take(near, 1, "f") == [3]
    assert take(near, 10, "e") == []


def test_without_racks_nothing_waits_for_one(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    fill(work, 10, "e", near=nearness("h1", racks=dict.fromkeys(("h1", "h2"), ""), rack=""))
    take(work, 9, "e")
    waited(fake, 60_001)
    assert take(work, 10, "e") == [3, 4, 5]


def test_tasks_that_return_keep_their_hosts_and_go_first(near: Worklist, fake: fakeredis.FakeRedis) -> None:
    take(near, 2, "e")
    assert near.put_back(APP, "e") == 2
    assert take(near, 1, "f") == [2]
    assert near.put_back(APP, broken("f")) == 1
    assert take(near, 10, "e") == [0, 1, 2, 7, 8, 9]
    end(near, 0, "failed", retries=1)
    assert take(near, 1, "f") == [3]
    assert take(near, 1, "e") == [0]
    assert end(near, 1, "failed", retries=1, backoff_s=60).next_ms == -1
    fake.zadd(KEYS.later(APP), {"1": 0})
    assert take(near, 1, "e") == [1]


def test_how_many_tasks_wait_for_each_host_is_told_when_it_changes(near: Worklist, fake: fakeredis.FakeRedis) -> None:
    def step() -> tuple[int | None, dict[str, int]]:
        told = near.step(APP, worker=WORKER, executor="e")
        return told.preferring, told.prefer

    assert step() == (7, {"h1": 3, "h2": 4, "h3": 1})
    take(near, 2, "e")
    assert step() == (None, {}), "less than a second later"
    fake.hset(KEYS.tasks(APP), "near:told_at", 0)
    assert step() == (5, {"h1": 1, "h2": 4, "h3": 1})
    fake.hset(KEYS.tasks(APP), "near:told_at", 0)
    assert step() == (None, {}), "nothing has changed"


def test_nothing_of_a_closed_app_stays(near: Worklist, fake: fakeredis.FakeRedis) -> None:
    take(near, 1, "e")
    near.forget({APP: "acme"})
    assert fake.exists(KEYS.near(APP)) == 0
    assert not fill(near, 10, "e", near=nearness("h1"))
    assert near.put_back(APP, "e") == 0
    assert fake.exists(KEYS.near(APP)) == 0


def test_a_key_of_another_type_is_replaced_when_tasks_return(near: Worklist, fake: fakeredis.FakeRedis) -> None:
    take(near, 3, "e")
    fake.set(KEYS.near(APP), "x")
    assert near.put_back(APP, "e") == 3
    assert take(near, 3, "e") == [0, 1, 2]


def test_tasks_of_every_chunk_are_taken_by_their_host(work: Worklist, fake: fakeredis.FakeRedis) -> None:
    of = {f"h{n}": f"{n}-{1_196 + n}:4" for n in range(4)}
    assert fill(work, 1_200, "e", near=nearness("h1", tasks=of, racks=dict.fromkeys(of, ""), rack=""))
    assert take(work, 1_000, "e") == list(range(1, 1_200, 4))
    assert fake.zcard(KEYS.near(APP)) == 2 * 900
