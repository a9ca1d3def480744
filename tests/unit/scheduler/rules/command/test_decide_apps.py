"""Given events, when somebody asks something about an app or an executor, then events."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from msgspec.structs import asdict, replace

from scheduler.model.commands import EndApp, EndedExecutor, KillApp, Private, StartedExecutor, SubmitApp
from scheduler.model.errors import (
    AppEnded,
    CommandRejected,
    DuplicateApp,
    InvalidCommand,
    QuotaExceeded,
    UnknownApp,
    UnknownCompany,
    UnknownExecutor,
)
from scheduler.model.events import (
    AppRegistered,
    AppRemoved,
    ClusterConfigured,
    CompanyRegistered,
    Computed,
    Event,
    ExecutorChanged,
    ExecutorRemoved,
    WorkerChanged,
    WorkerRemoved,
)
from scheduler.model.resources import Resources
from scheduler.rules.command.decide import decide
from tests.property.given import ACME, entered, fold, granted, joined, queued, shared, submission

Word = Literal["exited", "failed", "killed"]
Reason = Word | Literal["lost"]

RUNNING: list[Event] = [ACME, joined(), queued(), entered(), granted("a1.0"), granted("a1.1")]
"""An app of 8 cores with both its executors."""


def removed(executor: str, reason: Reason, *, exit_code: int | None = None, done: bool = False) -> ExecutorRemoved:
    app = executor.rpartition(".")[0]
    return ExecutorRemoved(app=app, executor=executor, worker="w1", reason=reason, exit_code=exit_code, done=done)


def ended(executor: str, reason: Word = "exited", *, exit_code: int | None = None, done: bool = False) -> EndedExecutor:
    return EndedExecutor(executor=executor, reason=reason, exit_code=exit_code, done=done)


def registration(command: SubmitApp, *given: Event) -> AppRegistered:
    [event] = decide(fold([ACME, *given]), command)
    assert isinstance(event, AppRegistered)
    return event


@pytest.mark.parametrize(("dimension", "said"), [("cores", "1 core"), ("MiB of memory", "1 MiB of memory")])
def test_a_refusal_tells_of_one_core_and_not_of_1_cores(dimension: str, said: str) -> None:
    assert f"requests {said}, but the quota of company 'acme' is 0 " in str(QuotaExceeded("acme", dimension, 1, 0))


def test_6_cores_asked_for_are_8_held_and_the_event_says_both() -> None:
    """Semantics A1, A2."""
    event = registration(submission("a1", 6))
    assert (event.cores, event.requested) == (6, Resources(8, 4096))


def test_an_app_that_names_no_cores_gets_the_default() -> None:
    """Semantics A1, Settings."""
    assert registration(submission("a1", None)).cores == 8
    assert registration(submission("a1", None), ClusterConfigured(default_cores=12)).cores == 12


def test_an_app_without_memory_counts_512_mib_a_task_and_the_event_has_none() -> None:
    """Semantics A2."""
    event = registration(submission("a1", 8, per_task_mb=None))
    assert (event.sizing, event.requested.memory_mb) == (Computed(None), 4096)


def test_an_app_that_names_no_tasks_has_as_many_as_cores() -> None:
    assert registration(submission("a1", 6)).tasks == 6
    assert registration(replace(submission("a1", 6), tasks=40)).tasks == 40


def test_an_app_without_a_name_goes_by_its_id() -> None:
    cluster = shared(w1=16)
    cluster.submit("a1")
    cluster.turn(replace(submission("a2"), name="nightly"))
    assert [cluster.state.apps[name].name for name in ("a1", "a2")] == ["a1", "nightly"]


def test_an_app_keeps_all_that_a_worker_needs_to_run_it() -> None:
    private: dict[str, Any] = {"command": ("sort", "-n"), "env": ("TOKEN", "LANG"), "cwd": "/srv"}
    asked: dict[str, Any] = {"kind": "sql", "retries": 3, "time_limit_s": 60}
    cluster = shared(w1=16)
    cluster.turn(replace(submission("a1"), **asked, **private))
    app = cluster.state.apps["a1"]
    assert app.private == Private(**private)
    event = app.spec
    assert asdict(event) | asked == asdict(event)
    assert (event.company, event.user, event.sizing, event.driver) == ("acme", "ann", Computed(512), None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"app": ""}, "the app id must be 1 to 64 letters"),
        ({"app": "a/b"}, "the app id must be 1 to 64 letters"),
        ({"app": "a" * 65}, "the app id must be 1 to 64 letters"),
        ({"user": ""}, "the user must not be empty"),
        ({"user": "x" * 100_000}, "the user must have at most 128 characters, not 100000"),
        ({"user": "a\x1b[31m"}, "the user must not contain control characters"),
        ({"kind": "stream"}, "the kind of an app must be batch or sql, not 'stream'"),
        ({"cores": 0}, "cores must be between 1 and 1000000, not 0"),
        ({"cores": -1}, "cores must be between 1 and 1000000, not -1"),
        ({"cores": 10**9}, "cores must be between 1 and 1000000, not 1000000000"),
        ({"memory_per_task_mb": 0}, "memory per task, in MiB, must be between 1 and"),
        ({"memory_per_task_mb": (1 << 30) + 1}, "memory per task, in MiB, must be between 1 and"),
        ({"tasks": 0}, "tasks must be between 1 and 100000, not 0"),
        ({"tasks": 100_001}, "tasks must be between 1 and 100000, not 100001"),
        ({"retries": -1}, "retries must be between 0 and 1000, not -1"),
        ({"retries": 1001}, "retries must be between 0 and 1000, not 1001"),
        ({"time_limit_s": 0}, "the time limit, in seconds, must be between 1 and"),
    ],
)
def test_a_submission_with_a_value_out_of_bounds_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidCommand) as raised:
        decide(fold([ACME]), replace(submission("a1"), **changes))
    assert str(raised.value).startswith(sentence)
    assert len(str(raised.value)) < 200


def test_an_app_of_an_unknown_company_is_refused() -> None:
    with pytest.raises(UnknownCompany, match=r"^no company 'initech' is registered"):
        decide(fold([ACME]), submission("a1", company="initech"))


@pytest.mark.parametrize("state", [[queued()], [queued(), AppRemoved(app="a1", reason="killed")]])
def test_an_app_id_is_used_once_even_after_the_app_has_ended(state: list[Event]) -> None:
    with pytest.raises(DuplicateApp, match=r"^an app 'a1' exists already"):
        decide(fold([ACME, *state]), submission("a1"))


BOUGHT = CompanyRegistered(company="acme", amounts=Resources(16, 8192))


def of_size(cores: int, memory_mb: int) -> SubmitApp:
    """An app of executors of that size."""
    asked = {"executor_cores": cores, "executor_memory_mb": memory_mb, "memory_per_task_mb": None}
    return replace(submission("a1", cores), **asked)


def test_an_executor_with_more_cores_than_the_quota_is_refused_with_both_numbers() -> None:
    """Semantics H1."""
    with pytest.raises(QuotaExceeded, match=r"the app requests 20 cores, but the quota of company 'acme' is 16 cores"):
        decide(fold([BOUGHT]), of_size(20, 1024))


def test_an_executor_with_more_memory_than_the_quota_is_refused_with_both_numbers() -> None:
    """Semantics H1."""
    with pytest.raises(QuotaExceeded, match=r"the app requests 16384 MiB of memory, but the quota .* is 8192 MiB"):
        decide(fold([BOUGHT]), of_size(4, 16384))


def test_an_app_whose_executors_are_within_what_its_company_bought_is_taken() -> None:
    """Semantics H1."""
    assert decide(fold([BOUGHT]), submission("a1", 17))


def test_an_app_larger_than_a_part_or_a_default_quota_is_taken() -> None:
    """Semantics H1: only amounts set by the administrator refuse at submission; the others move with the cluster."""
    assert decide(fold([CompanyRegistered(company="acme", part="1/100"), joined()]), submission("a1", 1000))
    assert decide(fold([ACME, joined()]), submission("a1", 1000))


def test_an_executor_that_runs_is_said_to_run_once() -> None:
    state = fold(RUNNING)
    assert decide(state, StartedExecutor(executor="a1.0")) == [ExecutorChanged(executor="a1.0")]
    assert decide(fold([ExecutorChanged(executor="a1.0")], state), StartedExecutor(executor="a1.0")) == []


def test_an_executor_that_is_to_stop_is_not_said_to_run_any_more() -> None:
    """Semantics A5."""
    state = fold([*RUNNING, AppRemoved(app="a1", reason="killed")])
    assert decide(state, StartedExecutor(executor="a1.0")) == []


@pytest.mark.parametrize("command", [StartedExecutor(executor="a1.7"), ended("a1.7"), ended("a1")])
def test_an_executor_that_the_log_does_not_grant_is_refused(command: StartedExecutor | EndedExecutor) -> None:
    with pytest.raises(UnknownExecutor, match=r"^no executor"):
        decide(fold(RUNNING), command)


@pytest.mark.parametrize(
    "command",
    [StartedExecutor(executor="a1.0", worker="w2"), EndedExecutor(executor="a1.0", worker="w2", reason="exited")],
)
def test_a_report_from_a_worker_without_the_executors_grant_changes_nothing(
    command: StartedExecutor | EndedExecutor,
) -> None:
    state = fold(RUNNING)
    assert decide(state, command) == []
    assert decide(state, replace(command, worker="w1")) != []


def test_the_same_end_of_an_executor_twice_is_refused() -> None:
    state = fold([*RUNNING, removed("a1.0", "exited")])
    with pytest.raises(UnknownExecutor):
        decide(state, ended("a1.0"))


def test_an_executor_that_found_no_task_left_is_done() -> None:
    """Semantics S6."""
    state = fold(RUNNING)
    events = decide(state, ended("a1.0", exit_code=0, done=True))
    assert events == [removed("a1.0", "exited", exit_code=0, done=True)]
    assert fold(events, state).apps["a1"].done_cores == 4


def test_a_second_executor_that_is_done_leaves_what_the_first_was_done_with() -> None:
    """Semantics S6."""
    state = fold([*RUNNING, removed("a1.0", "exited", done=True)])
    assert decide(state, ended("a1.1", done=True)) == [removed("a1.1", "exited", done=True)]


def test_an_app_whose_executors_keep_failing_while_none_runs_fails() -> None:
    """Semantics W5."""
    state = fold([ClusterConfigured(max_executor_failures=2), *RUNNING])
    fold(decide(state, ended("a1.0", "failed")), state)
    assert decide(state, ended("a1.1", "failed"))[1:] == [
        AppRemoved(app="a1", reason="failed", detail="2 executors ended abnormally with none running")
    ]


def test_an_app_with_an_executor_that_runs_does_not_fail_with_the_others() -> None:
    """Semantics W5."""
    state = fold([ClusterConfigured(max_executor_failures=1), *RUNNING, ExecutorChanged(executor="a1.0")])
    assert decide(state, ended("a1.1", "failed")) == [removed("a1.1", "failed")]


def test_the_failure_of_the_only_executor_that_runs_counts() -> None:
    """Semantics W5."""
    state = fold([ClusterConfigured(max_executor_failures=1), *RUNNING, ExecutorChanged(executor="a1.0")])
    assert decide(state, ended("a1.0", "failed"))[-1] == AppRemoved(
        app="a1", reason="failed", detail="1 executors ended abnormally with none running"
    )


def test_an_executor_that_reaches_running_sets_the_count_of_failures_back() -> None:
    """Semantics W5."""
    state = fold([ClusterConfigured(max_executor_failures=2), *RUNNING, removed("a1.0", "failed")])
    fold([ExecutorChanged(executor="a1.1")], state)
    assert state.apps["a1"].failures == 0
    assert decide(state, ended("a1.1", "failed")) == [removed("a1.1", "failed")]


@pytest.mark.parametrize("reason", ["exited", "killed"])
def test_executors_that_end_otherwise_are_no_failures(reason: Word) -> None:
    """Semantics W5."""
    state = fold([ClusterConfigured(max_executor_failures=1), *RUNNING])
    assert decide(state, ended("a1.0", reason)) == [removed("a1.0", reason)]
    state = fold([ClusterConfigured(max_executor_failures=2), *RUNNING, removed("a1.0", reason)])
    assert decide(state, ended("a1.1", "failed")) == [removed("a1.1", "failed")]


def test_the_last_executor_of_a_leaving_worker_takes_the_worker_with_it() -> None:
    """Semantics W3."""
    state = fold([*RUNNING, WorkerChanged(worker="w1", status="leaving", offer=Resources(16, 65536))])
    assert decide(state, ended("a1.0")) == [removed("a1.0", "exited")]
    fold([removed("a1.0", "exited")], state)
    assert decide(state, ended("a1.1")) == [
        removed("a1.1", "exited"),
        WorkerRemoved(worker="w1", reason="removed"),
    ]


def test_a_killed_executor_of_an_ended_app_only_returns_its_grant() -> None:
    """Semantics A5, S6, W5: nothing is owed to an app that is over."""
    state = fold([ClusterConfigured(max_executor_failures=1), *RUNNING, removed("a1.0", "exited", done=True)])
    fold([AppRemoved(app="a1", reason="killed")], state)
    assert decide(state, ended("a1.1", "failed")) == [removed("a1.1", "failed")]


def test_killing_an_app_ends_it_and_killing_it_again_says_that_it_has_ended() -> None:
    """Semantics A5."""
    state = fold(RUNNING)
    events = decide(state, KillApp(app="a1"))
    assert events == [AppRemoved(app="a1", reason="killed")]
    with pytest.raises(AppEnded, match=r"^app 'a1' has already ended: killed$"):
        decide(fold(events, state), KillApp(app="a1"))


@pytest.mark.parametrize("command", [KillApp(app="nope"), EndApp(app="nope", reason="finished")])
def test_an_unknown_app_can_neither_be_killed_nor_end(command: KillApp | EndApp) -> None:
    with pytest.raises(UnknownApp, match=r"^no app 'nope' is known"):
        decide(fold(RUNNING), command)


def test_an_app_ends_as_its_worker_says_and_the_second_word_changes_nothing() -> None:
    state = fold(RUNNING)
    events = decide(state, EndApp(app="a1", reason="failed", detail="task 3 ended with exit code 1"))
    assert events == [AppRemoved(app="a1", reason="failed", detail="task 3 ended with exit code 1")]
    assert decide(fold(events, state), EndApp(app="a1", reason="finished")) == []


def test_every_refusal_is_a_command_rejected() -> None:
    for refusal in (AppEnded, DuplicateApp, InvalidCommand, QuotaExceeded, UnknownApp, UnknownCompany, UnknownExecutor):
        assert issubclass(refusal, CommandRejected)
