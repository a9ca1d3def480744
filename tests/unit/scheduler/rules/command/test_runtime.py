"""How long apps may run: limits, warnings, expiry and extensions (semantics X)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from scheduler.model.commands import (
    CancelTask,
    ChangeCompany,
    ConfigureCluster,
    EndApp,
    EndedDriver,
    EndedExecutor,
    ExtendApp,
    KillApp,
    LoseWorker,
    RegisterCompany,
    ReleaseApp,
    ScaleApp,
    SignalApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import AppEnded, InvalidCommand, InvalidSetting, RuntimeTooLong
from scheduler.model.events import AppExpired, AppRegistered, AppRemoved, AppSignalled, AppWarned, Event, TaskCancelled
from scheduler.model.grants import Grant, SentSignal
from scheduler.model.sender import local
from scheduler.rules.command.decide import decide
from scheduler.rules.state.records import lines, restored
from scheduler.rules.view.assignments import all_grants, changed_grants
from scheduler.rules.view.views import app as view_of
from tests.property.given import Cluster, admitted, shared, submission, worker

FIXED: dict[str, Any] = {"executor_cores": 4, "executor_memory_mb": 1024, "memory_per_task_mb": None}


def timed(app: str = "a1", cores: int | None = 4, **about: Any) -> SubmitApp:
    """An app that may run for a minute, unless `about` says otherwise."""
    return replace(submission(app, cores), **{"max_runtime_s": 60, **about})


def running(**about: Any) -> Cluster:
    """A worker of 8 cores and an app of two executors, of which the first runs from 4 s on."""
    cluster = shared(w1=8)
    cluster.turn(timed(cores=8, **FIXED, **about))
    cluster.turn(StartedExecutor(executor="a1.0"))
    return cluster


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_an_app_expires_when_it_has_run_for_so_long_and_goes_with_its_last_executor() -> None:
    """Semantics X1, X2: until then it keeps its request, claims what it holds and is owed nothing."""
    cluster = running()
    assert cluster.state.timers.next(cluster.state.at) == 64_000
    assert cluster.turn(after_s=59) == []
    assert cluster.turn(after_s=60) == [AppExpired(app="a1")]
    app = cluster.state.apps["a1"]
    assert (app.expired_at, app.requested.cores, app.owed) == (64_000, 8, False)
    assert cluster.state.claims.of("acme").claimed.cores == 8
    assert kinds(cluster.ended("a1.0")) == ["ExecutorRemoved"]
    assert cluster.state.claims.of("acme").claimed.cores == 4
    ended = cluster.ended("a1.1", done=True)
    assert kinds(ended) == ["ExecutorRemoved", "AppRemoved"]
    assert ended[1] == AppRemoved(app="a1", reason="expired", detail="its maximum runtime of 60 s is over")
    assert (app.state, app.ran_ms, cluster.state.waiting) == ("expired", 61_000, {})


def test_only_time_in_which_an_executor_runs_counts() -> None:
    """Semantics X1: not the time before its worker says that it runs, nor between two executors."""
    cluster = running()
    cluster.turn(StartedExecutor(executor="a1.1"), after_s=20)
    cluster.turn(EndedExecutor(executor="a1.0", reason="exited"), after_s=10)
    cluster.turn(LoseWorker(worker="w1"), after_s=10)
    app = cluster.state.apps["a1"]
    assert (app.ran_ms, app.running_since, app.state) == (40_000, None, "waiting")
    assert cluster.state.timers.next(cluster.state.at) is not None
    cluster.worker("w2", 8)
    assert cluster.turn(StartedExecutor(executor="a1.3"), after_s=500) != []
    assert to_builtins(view_of(cluster.state, app="a1"))["expiresAt"] == cluster.state.at + 20_000
    assert cluster.turn(after_s=20) == [AppExpired(app="a1")]


def test_a_driver_runs_from_its_grant_to_its_end() -> None:
    """Semantics X1, X2: an expired app ends as expired, whatever its driver makes of it."""
    cluster = shared(w1=8)
    cluster.turn(timed("d1", driver=True, cores=None, tasks=None, supervise=True, executor_limit=0))
    assert cluster.turn(after_s=60) == [AppExpired(app="d1")]
    ended = cluster.turn(EndedDriver(driver="d1.driver-0", reason="exited", exit_code=0))
    assert kinds(ended) == ["DriverRemoved", "AppRemoved"]
    assert cluster.state.apps["d1"].state == "expired"
    assert not cluster.state.indexes.drivers


def test_what_runs_at_the_limit_but_was_lost_in_the_same_turn_expires_too() -> None:
    """Semantics X2: an expired app that holds nothing is removed in the same turn."""
    cluster = running()
    ended = cluster.turn(LoseWorker(worker="w1"), after_s=60)
    assert [event for event in kinds(ended) if event.startswith("App")] == ["AppExpired", "AppRemoved"]


def test_an_expired_app_takes_no_commands() -> None:
    cluster = running()
    cluster.turn(after_s=60)
    for command in (KillApp(app="a1"), ScaleApp(app="a1", executors=1), ExtendApp(app="a1", by_s=5)):
        with pytest.raises(AppEnded, match="app 'a1' has already ended: expired"):
            cluster.turn(command)
    assert cluster.turn(EndApp(app="a1", reason="finished")) == []


def test_the_request_of_an_app_that_expired_follows_no_worker_that_joins() -> None:
    """Semantics X2, S5."""
    cluster = shared(w1=8)
    cluster.turn(timed(sizing="one-per-worker", executor_memory_mb=1024, memory_per_task_mb=None))
    cluster.turn(StartedExecutor(executor="a1.0"))
    assert "AppExpired" in kinds(cluster.turn(after_s=60))
    assert "AppChanged" not in kinds(cluster.turn(worker("w2", 8)))


def test_an_elastic_app_that_expired_neither_grows_nor_returns_executors() -> None:
    cluster = shared({"min_executor_cores": 2}, w1=8)
    cluster.turn(timed(cores=None, elastic=(1, 4), executor_cores=2, tasks=40, memory_per_task_mb=None))
    cluster.turn(StartedExecutor(executor="a1.0"))
    assert "AppExpired" in kinds(cluster.turn(after_s=60))
    assert cluster.state.timers.next(cluster.state.at) is None


@pytest.mark.parametrize(
    ("settings", "company", "asked", "runtime_s"),
    [
        ({}, {}, None, None),
        ({}, {}, 60, 60),
        ({"default_max_runtime_s": 30}, {}, None, 30),
        ({"default_max_runtime_s": 30}, {}, 60, 60),
        ({"max_max_runtime_s": 90}, {}, None, 90),
        ({"max_max_runtime_s": 90}, {}, 90, 90),
        ({"default_max_runtime_s": 30, "max_max_runtime_s": 90}, {"max_max_runtime_s": 20}, None, 20),
        ({"default_max_runtime_s": 30, "max_max_runtime_s": 90}, {"default_max_runtime_s": 50}, None, 50),
        ({"max_max_runtime_s": 90}, {"max_max_runtime_s": 200}, 200, 200),
    ],
)
def test_an_app_may_run_for_as_long_as_it_says_or_by_default(
    settings: dict[str, object], company: dict[str, Any], asked: int | None, runtime_s: int | None
) -> None:
    """Semantics X1: a company's own values take the place of the settings."""
    cluster = Cluster(settings or None)
    cluster.turn(RegisterCompany(company="acme", **company))
    events = cluster.turn(timed(max_runtime_s=asked))
    assert [event.max_runtime_s for event in events if isinstance(event, AppRegistered)] == [runtime_s]


def test_more_than_the_maximum_is_refused_with_both_numbers() -> None:
    """Semantics X1."""
    cluster = shared({"max_max_runtime_s": 100}, w1=8)
    with pytest.raises(RuntimeTooLong, match="run for 101 s, but apps of company 'acme' may run for at most 100 s"):
        cluster.turn(timed(max_runtime_s=101))
    cluster.turn(ChangeCompany(company="acme", max_max_runtime_s=50))
    with pytest.raises(RuntimeTooLong, match="at most 50 s"):
        cluster.turn(timed(max_runtime_s=51))


def test_a_companys_own_times_are_changed_and_removed_by_themselves() -> None:
    cluster = Cluster()
    cluster.turn(RegisterCompany(company="acme", part="1/2", default_max_runtime_s=30))
    cluster.turn(ChangeCompany(company="acme", max_max_runtime_s=40))
    spec = cluster.state.companies["acme"].spec
    assert (spec.part, spec.default_max_runtime_s, spec.max_max_runtime_s) == ("1/2", 30, 40)
    with pytest.raises(InvalidSetting, match=r"default_max_runtime_s must be at most max_max_runtime_s \(20\), not 30"):
        cluster.turn(ChangeCompany(company="acme", max_max_runtime_s=20))
    cluster.turn(ChangeCompany(company="acme", default_max_runtime_s=0))
    assert cluster.state.companies["acme"].spec.default_max_runtime_s is None
    cluster.turn(ChangeCompany(company="acme"))
    spec = cluster.state.companies["acme"].spec
    assert (spec.part, spec.max_max_runtime_s) == (None, 40)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="must be at most max_max_runtime_s"):
        Cluster({"default_max_runtime_s": 30, "max_max_runtime_s": 20})
    cluster = shared({"default_max_runtime_s": 30}, w1=8)
    cluster.turn(timed(max_runtime_s=None))
    cluster.turn(ConfigureCluster(settings={"default_max_runtime_s": None}))
    assert cluster.state.apps["a1"].max_runtime_s == 30


def test_what_runs_is_warned_once_before_the_end() -> None:
    """Semantics X2: an executor that starts later is not warned."""
    cluster = running(warn=("USR1", 10))
    assert cluster.state.timers.next(cluster.state.at) == 54_000
    turn = cluster.turn(after_s=50)
    assert turn == [AppWarned(app="a1", signal="USR1")]
    cluster.ended("a1.1")
    executors = cluster.state.apps["a1"].executors
    assert {name: held.warned_at for name, held in executors.items()} == {"a1.0": 54_000, "a1.2": 0}
    grants = {name: Grant.model_validate_json(text) for name, text in all_grants(cluster.state)["w1"].items()}
    warning = grants["a1.0"].warning
    assert (warning and (warning.signal, warning.at), grants["a1.2"].warning) == (("USR1", 54_000), None)
    assert changed_grants(turn, cluster.state).by_worker["w1"]["a1.0"] == all_grants(cluster.state)["w1"]["a1.0"]
    assert AppExpired(app="a1") in cluster.turn(after_s=9)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"warn": ("KILL", 5)}, "the signal of --warn must be one of HUP, INT, QUIT, TERM, USR1, USR2, not 'KILL'"),
        ({"warn": ("USR1", 0)}, "the seconds of --warn must be between 1 and 1000000000, not 0"),
        ({"warn": ("USR1", 60)}, "60 s before the end, but the app may run for 60 s in all; give less than 60 s"),
        ({"warn": ("USR1", 5), "max_runtime_s": None}, "--warn needs a maximum runtime; add --max-runtime TIME"),
        ({"max_runtime_s": 0}, "the maximum runtime, in seconds, must be between 1 and 1000000000, not 0"),
    ],
)
def test_a_warning_that_cannot_come_is_refused(about: dict[str, Any], why: str) -> None:
    cluster = shared(w1=8)
    with pytest.raises(InvalidCommand, match=why):
        cluster.turn(timed(**about))


def test_the_executors_of_an_expired_app_are_told_to_stop_with_the_grace() -> None:
    """Semantics X2: one that was told to stop before has no more time than it was given."""
    cluster = running()
    turn = cluster.turn(after_s=60)
    grants = all_grants(cluster.state)["w1"]
    leaving = {name: Grant.model_validate_json(text).leaving for name, text in grants.items()}
    assert [held and (held.deadline, held.firm, held.grace_s) for held in leaving.values()] == [(0, True, 30)] * 2
    assert changed_grants(turn, cluster.state).by_worker["w1"] == grants


def test_an_app_is_extended_up_to_the_maximum_and_beyond_by_operators() -> None:
    """Semantics X1: it is warned anew."""
    cluster = running(warn=("USR1", 10))
    cluster.turn(ConfigureCluster(settings={"max_max_runtime_s": 90}))
    cluster.turn(after_s=49)
    assert cluster.state.apps["a1"].warned
    cluster.turn(ExtendApp(app="a1", by_s=30))
    with pytest.raises(RuntimeTooLong, match=r"run for 91 s, .* at most 90 s"):
        cluster.turn(ExtendApp(app="a1", by_s=1))
    cluster.turn(ExtendApp(app="a1", by_s=10, beyond_maximum=True))
    app = cluster.state.apps["a1"]
    assert (app.max_runtime_s, app.warned) == (100, False)
    assert cluster.state.timers.next(cluster.state.at) == 94_000


def test_an_app_without_a_limit_needs_no_extension() -> None:
    cluster = running(max_runtime_s=None)
    with pytest.raises(InvalidCommand, match="app 'a1' has no maximum runtime"):
        cluster.turn(ExtendApp(app="a1", by_s=1))
    with pytest.raises(InvalidCommand, match="the time of an extension, in seconds, must be between 1"):
        cluster.turn(ExtendApp(app="a1", by_s=0))
    assert (cluster.state.apps["a1"].running_since, to_builtins(view_of(cluster.state, app="a1"))["ranMs"]) == (
        None,
        None,
    )


def test_a_pending_app_may_be_extended() -> None:
    cluster = shared()
    cluster.turn(timed())
    cluster.turn(ExtendApp(app="a1", by_s=40))
    assert cluster.state.apps["a1"].max_runtime_s == 100
    assert admitted(cluster.worker("w1", 8)) == ["a1"]


@pytest.mark.parametrize("after_s", [1, 50, 60])
def test_a_state_read_back_knows_the_same_moments(after_s: int) -> None:
    cluster = running(warn=("TERM", 15))
    cluster.turn(after_s=after_s)
    again = restored(lines(cluster.state))
    assert again.digest() == cluster.state.digest()
    assert again.timers.table == cluster.state.timers.table


def test_a_signal_goes_to_what_runs_when_it_is_sent() -> None:
    cluster = shared(w1=16)
    cluster.turn(replace(submission("a1", 8), **FIXED))
    first, second = sorted(cluster.state.apps["a1"].executors)
    cluster.turn(StartedExecutor(executor=first))
    sent = SignalApp(app="a1", signal="USR2", task=1, whole=True)
    assert cluster.turn(sent, by=local(1000)) == [AppSignalled(app="a1", signal="USR2", task=1, whole=True)]
    seq = cluster.state.head
    cluster.turn(EndedExecutor(executor=second, reason="failed"))
    grants = {name: Grant.model_validate_json(text) for name, text in all_grants(cluster.state)["w1"].items() if text}
    later = max(name for name in grants if name.startswith("a1"))
    assert later not in {first, second}
    assert {name: grants[name].signals for name in (first, later)} == {
        first: (SentSignal(seq, "USR2", 1, whole=True),),
        later: (),
    }
    for number in range(9):
        cluster.turn(SignalApp(app="a1", signal="INT", reason=f"{number}"))
    assert len(cluster.state.executors[first].signals) == 8


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"signal": "SIGUSR1"}, "the signal must be one of HUP, INT, QUIT, TERM"),
        ({"signal": "USR1", "task": 8}, "app 'a1' has no task 8; its tasks are 0 to 7"),
        ({"signal": "USR1", "task": -1}, "app 'a1' has no task -1"),
        ({"app": "wait", "signal": "USR1"}, "app 'wait' is pending: nothing of it runs that could get a signal"),
        ({"app": "lone", "signal": "USR1", "task": 0}, "app 'lone' has no tasks; leave out the task"),
    ],
)
def test_a_signal_that_nothing_can_get_is_refused(about: dict[str, Any], why: str) -> None:
    cluster = shared(w1=16)
    cluster.turn(submission("a1", 8), SubmitApp(app="lone", company="acme", user="ann", driver=True, command=("true",)))
    cluster.turn(replace(submission("wait", 4), hold=True))
    with pytest.raises(InvalidCommand) as raised:
        decide(cluster.state, SignalApp(**{"app": "a1", **about}))
    assert str(raised.value).startswith(why)


def test_who_runs_tasks_of_an_app_is_told_which_are_cancelled() -> None:
    """Semantics X4."""
    cluster = shared(w1=16)
    cluster.turn(replace(submission("wait", 4), hold=True, tasks=3))
    plain = cluster.state.dump()["apps"]["wait"]
    assert cluster.turn(CancelTask(app="wait", task=1)) == [TaskCancelled(app="wait", task=1)]
    assert cluster.turn(CancelTask(app="wait", task=1)) == []
    assert ("cancelled" in plain, list(cluster.state.dump()["apps"]["wait"]["cancelled"])) == (False, [1])
    assert restored(lines(cluster.state)).digest() == cluster.state.digest()
    cluster.turn(ReleaseApp(app="wait"))
    (grant,) = [Grant.model_validate_json(text) for text in all_grants(cluster.state)["w1"].values()]
    assert grant.cancelled == "1"
    found = cluster.turn(CancelTask(app="wait", task=0, reason="x"), by=local(1000))
    changes = changed_grants(found, cluster.state).by_worker["w1"]
    assert Grant.model_validate_json(str(changes[grant.executor])).cancelled == "0-1"
    assert to_builtins(view_of(cluster.state, app="wait"))["cancelled"] == [0, 1]
    last = cluster.turn(CancelTask(app="wait", task=2))
    assert last[:2] == [
        TaskCancelled(app="wait", task=2),
        AppRemoved(app="wait", reason="killed", detail="all its tasks were cancelled"),
    ]
    with pytest.raises(AppEnded):
        cluster.turn(CancelTask(app="wait", task=0))


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"task": 8}, "app 'a1' has no task 8; its tasks are 0 to 7"),
        ({"task": -1}, "app 'a1' has no task -1"),
        ({"task": 0, "app": "lone"}, "app 'lone' has no tasks; leave out the task"),
        ({"task": 0, "reason": "a\nb"}, "a reason must be at most"),
    ],
)
def test_a_task_that_cannot_be_cancelled_is_refused(about: dict[str, Any], why: str) -> None:
    cluster = shared(w1=16)
    cluster.turn(submission("a1", 8), SubmitApp(app="lone", company="acme", user="ann", driver=True, command=("true",)))
    with pytest.raises(InvalidCommand) as raised:
        decide(cluster.state, CancelTask(**{"app": "a1", **about}))
    assert str(raised.value).startswith(why)
