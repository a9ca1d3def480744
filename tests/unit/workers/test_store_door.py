"""What a worker reports through the store."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from scheduler.model.sender import worker_sender
from scheduler.service.grant_tokens import GrantClaims
from scheduler.store.keys import OPERATORS, Keys
from scheduler.store.task_queue import Completion, Outcome, Worklist
from workers.door import Ended
from workers.store_door import WorkerStore

KEYS = Keys("reports")
BY = worker_sender("w1")
END = Ended(executor="a.0", reason="exited", exit_code=0, done=True)


def commands(fake: Any) -> list[dict[str, Any]]:
    """The commands in the inbox."""
    batches = [json.loads(fields[b"command"]) for _, fields in fake.xrange(KEYS.lane(OPERATORS))]
    return [command for batch in batches for command in batch]


def reported(fake: Any) -> list[bool]:
    """Whether the ends of executors in the inbox say that all tasks are done."""
    return [command.get("done", False) for command in commands(fake) if command["type"] == "EndedExecutor"]


def begun(fake: Any) -> WorkerStore:
    """An app of two tasks, both begun by a.0."""
    made = WorkerStore(fake, KEYS.cluster, None)
    fake.hset(KEYS.grants("w1"), "a.0", "{}")
    made.work.fill("a", 2, worker="w1", executor="a.0")
    made.work.step("a", [], worker="w1", executor="a.0", want=2, slots=2)
    return made


def test_an_executor_whose_tasks_all_ended_is_done(fake: Any) -> None:
    made = begun(fake)
    ended = [Completion(task, "succeeded", 0, attempt=1) for task in range(2)]
    made.work.step("a", ended, worker="w1", executor="a.0")
    made.ended(BY, "w1", END)
    assert reported(fake) == [True]


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        ("succeeded", {"reason": "finished"}),
        ("failed", {"reason": "failed", "detail": "it is bad"}),
    ],
)
def test_whoever_leaves_an_app_without_tasks_reports_its_end(fake: Any, outcome: Outcome, end: dict[str, str]) -> None:
    """The executor that saw the last task end may have lost its grant before it could say so."""
    made = begun(fake)
    fake.hset(KEYS.grants("w1"), "a.1", "{}")
    ended = [Completion(task, outcome, 0, "it is bad" * (outcome == "failed"), attempt=1) for task in range(2)]
    made.work.step("a", ended, worker="w1", executor="a.0")
    made.ended(BY, "w1", replace(END, executor="a.1"))
    assert commands(fake)[0] == {"type": "EndApp", "app": "a", "executor": "a.1", **end}


def test_no_app_ends_while_one_of_its_tasks_runs(fake: Any) -> None:
    made = begun(fake)
    fake.hset(KEYS.grants("w1"), "a.1", "{}")
    made.work.step("a", [Completion(0, "succeeded", 0, attempt=1)], worker="w1", executor="a.0")
    made.ended(BY, "w1", replace(END, executor="a.1"))
    assert [command["type"] for command in commands(fake)] == ["EndedExecutor"]


CLAIMS = GrantClaims(KEYS.cluster, "w1", "a.0", "a", 0, 2)


@pytest.mark.parametrize("said", ["finished", "failed"])
def test_no_executor_ends_an_app_whose_tasks_are_not_over(fake: Any, said: Literal["finished", "failed"]) -> None:
    """An executor holds some of an app's tasks, and its worker may lie about the others."""
    made = begun(fake)
    made.work.step("a", [Completion(0, "succeeded", 0, attempt=1)], worker="w1", executor="a.0")
    made.end_app(BY, CLAIMS, said)
    made.ended(BY, "w1", replace(END, verdict=said, detail="I say so"))
    assert [command["type"] for command in commands(fake)] == ["EndedExecutor"]
    assert reported(fake) == [False]


def test_the_tasks_say_how_their_app_ended(fake: Any) -> None:
    made = begun(fake)
    ended = [Completion(task, "succeeded", 0, attempt=1) for task in range(2)]
    made.work.step("a", ended, worker="w1", executor="a.0")
    made.end_app(BY, CLAIMS, "failed")
    made.ended(BY, "w1", replace(END, verdict="failed", detail="I say so"))
    ends = [command for command in commands(fake) if command["type"] == "EndApp"]
    assert ends == [{"type": "EndApp", "app": "a", "reason": "finished", "executor": "a.0"}] * 2


def test_no_executor_is_done_in_a_store_that_has_lost_the_end_of_its_tasks(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store answered before a failover, it takes no report on afterwards."""
    made = begun(fake)
    before = made.work.progress("a")._replace(queued=0, running=0, succeeded=2)
    with monkeypatch.context() as patch:
        patch.setattr(Worklist, "progress", lambda *_: before)
        patch.setattr(Worklist, "put_back", lambda *_: 0)
        made.ended(BY, "w1", END)
    assert reported(fake) == [False], "the executor still holds them"
    made.work.put_back("a", "a.0")
    with monkeypatch.context() as patch:
        patch.setattr(Worklist, "progress", lambda *_: before)
        made.ended(BY, "w1", END)
    assert reported(fake) == [False, False], "they are queued"


def retried(made: WorkerStore) -> None:
    """Task 0 of a.0 succeeds, and task 1 waits for its next attempt."""
    ended = [Completion(0, "succeeded", 0, attempt=1), Completion(1, "failed", 1, attempt=1)]
    made.work.step("a", ended, worker="w1", executor="a.0", retries=1, backoff_s=60)


def test_nobody_is_done_while_a_task_waits_for_its_next_attempt_and_none_runs(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor that ran the last attempt has ended, and the store has forgotten that attempt since."""
    made = begun(fake)
    retried(made)
    made.ended(BY, "w1", replace(END, verdict="finished"))
    assert reported(fake) == [False]
    before = made.work.progress("a")._replace(later=0, succeeded=2)
    monkeypatch.setattr(Worklist, "progress", lambda *_: before)
    made.ended(BY, "w1", END)
    assert reported(fake) == [False, False], "the store had forgotten it when it took the message"


def test_whoever_leaves_is_done_while_another_executor_runs_a_task_and_one_waits(fake: Any) -> None:
    """The other one stays for it (semantics W10)."""
    made = WorkerStore(fake, KEYS.cluster, None)
    for executor in ("a.0", "a.1"):
        fake.hset(KEYS.grants("w1"), executor, "{}")
    made.work.fill("a", 3, worker="w1", executor="a.0")
    made.work.step("a", [], worker="w1", executor="a.0", want=2, slots=2)
    made.work.step("a", [], worker="w1", executor="a.1", want=1, slots=1)
    retried(made)
    made.ended(BY, "w1", END)
    assert reported(fake) == [True]


def test_a_cancelled_task_is_left_for_nobody(fake: Any) -> None:
    made = begun(fake)
    fake.hset(KEYS.grants("w1"), "a.1", "{}")
    made.work.step("a", [Completion(0, "cancelled", 143, attempt=1)], worker="w1", executor="a.0")
    made.ended(BY, "w1", replace(END, executor="a.1"))
    assert reported(fake) == [True]
