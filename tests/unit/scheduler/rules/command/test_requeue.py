"""An app that is put back into its queue under its own id (semantics X6)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    CancelTask,
    Command,
    EndApp,
    EndedDriver,
    EndedExecutor,
    ExtendApp,
    HoldApp,
    KillApp,
    LoseWorker,
    ReleaseApp,
    RequeueApp,
    SetLimit,
    SignalApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import AppEnded, InvalidCommand, NotAdmitted, UnknownApp
from scheduler.model.events import (
    AppAdmitted,
    AppHeld,
    AppReady,
    AppRegistered,
    AppRemoved,
    AppRequeued,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    RevocationWithdrawn,
    TargetEnded,
    TargetSet,
    TaskRequeued,
)
from scheduler.model.grants import PUT_BACK, STOP, Grant
from scheduler.model.resources import NOTHING
from scheduler.model.sender import local
from scheduler.rules import invariants
from scheduler.rules.command.decide import decide
from scheduler.rules.state.records import lines, restored
from scheduler.rules.view.assignments import all_grants, changed_grants
from scheduler.rules.view.views import app as view_of
from tests.property.given import Cluster, shared, submission
from witness.pending_reasons import waits_for

FIXED: dict[str, Any] = {"executor_cores": 4, "executor_memory_mb": 1024, "memory_per_task_mb": None}
PROGRAMS: dict[str, Any] = {"executor_program": True, "executor_cores": 4, "executor_memory_mb": 1024, "tasks": None}


def fixed(app: str = "a1", cores: int = 8, **about: Any) -> SubmitApp:
    return replace(submission(app, cores), **{**FIXED, **about})


def running(**about: Any) -> Cluster:
    """A worker of 8 cores and an app of two executors, of which the first runs."""
    cluster = shared(w1=8)
    cluster.turn(fixed(**about))
    cluster.turn(StartedExecutor(executor="a1.0"))
    return cluster


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_an_app_leaves_with_its_request_and_is_ready_once_what_ran_of_it_is_gone() -> None:
    cluster = running(max_runtime_s=60)
    assert cluster.turn(RequeueApp(app="a1"), after_s=5) == [AppRequeued(app="a1")]
    app, company = cluster.state.apps["a1"], cluster.state.companies["acme"]
    assert (app.state, app.ready, app.restarts, app.admitted, app.running) == ("pending", False, 1, 0, 0)
    assert (company.balance.requested, company.balance.granted.cores) == (NOTHING, 8)
    assert cluster.state.claims.of("acme").claimed.cores == 8
    assert (app.ran_ms, app.running_since) == (0, None)
    assert [each.status for each in app.allocations()] == ["stopping", "stopping"]
    assert kinds(cluster.ended("a1.0")) == ["ExecutorRemoved"]
    back = cluster.turn(EndedExecutor(executor="a1.1", reason="failed", exit_code=143), after_s=7)
    assert kinds(back) == ["ExecutorRemoved", "AppReady", "AppAdmitted", "ExecutorAllocated", "ExecutorAllocated"]
    assert isinstance(back[0], ExecutorRemoved)
    assert back[0].reason == "killed"
    assert [event.executor for event in back if isinstance(event, ExecutorAllocated)] == ["a1.2", "a1.3"]
    assert (app.state, app.failures, app.troubles) == ("waiting", 0, {})
    assert app.ready_at == app.admitted_at == cluster.state.at


def test_its_time_in_the_queue_starts_anew() -> None:
    cluster = running()
    cluster.turn(fixed("a2"))
    events = cluster.turn(RequeueApp(app="a1"))
    events += [event for name in ("a1.0", "a1.1") for event in cluster.ended(name)]
    entered = [event.app for event in events if isinstance(event, AppAdmitted)]
    assert (entered, cluster.state.apps["a1"].state) == (["a2"], "pending")


def test_what_its_old_executors_say_of_its_end_counts_no_more() -> None:
    cluster = running()
    cluster.turn(RequeueApp(app="a1"))
    assert (
        cluster.turn(EndApp(app="a1", reason="failed", detail="task 0 ended with exit code 255", executor="a1.0")) == []
    )
    cluster.ended("a1.0")
    cluster.ended("a1.1", done=True)
    assert cluster.state.apps["a1"].done_cores == 0
    late = EndApp(app="a1", reason="failed", detail="task 0 ended with exit code 255", executor="a1.1")
    assert cluster.turn(late) == []
    ended = cluster.turn(EndApp(app="a1", reason="finished", executor="a1.3"))
    assert ended == [AppRemoved(app="a1", reason="finished")]


@pytest.mark.parametrize(
    ("before", "app", "error", "says"),
    [
        ((), "nobody", UnknownApp, "nobody"),
        ((fixed("p1", hold=True),), "p1", NotAdmitted, "app 'p1' is pending already; only an app that"),
        ((RequeueApp(app="a1"),), "a1", NotAdmitted, "app 'a1' is pending already"),
        ((KillApp(app="a1"),), "a1", AppEnded, "app 'a1' has already ended: killed"),
        (
            (fixed("n1", 4, no_requeue=True),),
            "n1",
            InvalidCommand,
            "'n1' was submitted with --no-requeue; `fairlog kill n1`",
        ),
    ],
)
def test_what_cannot_be_put_back_is_refused(
    before: tuple[Command, ...], app: str, error: type[Exception], says: str
) -> None:
    cluster = running()
    cluster.turn(*before)
    head = cluster.state.head
    with pytest.raises(error, match=says):
        decide(cluster.state, RequeueApp(app=app))
    assert cluster.state.head == head


def test_one_task_is_put_back_by_the_executor_that_runs_it() -> None:
    cluster = running()
    for task in (1, 0, 1):
        command = RequeueApp(app="a1", task=task, executor="a1.0")
        assert cluster.turn(command) == [TaskRequeued(app="a1", task=task, executor="a1.0")]
    grants = {name: Grant.model_validate_json(text) for name, text in all_grants(cluster.state)["w1"].items()}
    head = cluster.state.head
    assert [(sent.signal, sent.task) for sent in grants["a1.0"].signals] == [(PUT_BACK, 0), (PUT_BACK, 1)]
    assert [sent.seq for sent in grants["a1.0"].signals] == [head - 1, head]
    assert grants["a1.1"].signals == ()
    assert (cluster.state.apps["a1"].state, cluster.state.apps["a1"].restarts) == ("running", 0)


def test_signals_do_not_push_out_what_is_put_back() -> None:
    cluster = running()
    for task in range(4):
        cluster.turn(RequeueApp(app="a1", task=task, executor="a1.0"))
        for number in range(3):
            cluster.turn(SignalApp(app="a1", signal="USR1", reason=f"{task} {number}"))
    sent = cluster.state.executors["a1.0"].signals
    assert [task for _, signal, task, _ in sent if signal == PUT_BACK] == [0, 1, 2, 3]
    assert len(sent) == 4 + 8
    assert sorted(position for position, *_ in sent) == [position for position, *_ in sent]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"task": 1}, "a task is put back where it runs: '' is no running executor of app 'a1'; `fairlog app a1"),
        ({"task": 1, "executor": "a1.7"}, "'a1.7' is no running executor of app 'a1'"),
        ({"task": 99, "executor": "a1.0"}, "app 'a1' has no task 99; its tasks are 0 to"),
        ({"task": 2, "executor": "a1.0"}, "task 2 of app 'a1' was cancelled; it does not run again"),
    ],
)
def test_a_task_that_does_not_run_there_is_not_put_back(asked: dict[str, Any], says: str) -> None:
    cluster = running()
    cluster.turn(CancelTask(app="a1", task=2))
    with pytest.raises(InvalidCommand, match=re.escape(says)):
        decide(cluster.state, RequeueApp(app="a1", **asked))


def test_a_long_reason_is_refused() -> None:
    with pytest.raises(InvalidCommand, match="reason"):
        decide(running().state, RequeueApp(app="a1", reason="x" * 5000))


def test_an_app_whose_time_is_over_stays_expired() -> None:
    cluster = running(max_runtime_s=60)
    cluster.turn(after_s=60)
    with pytest.raises(AppEnded, match="expired"):
        decide(cluster.state, RequeueApp(app="a1"))


def test_its_runtime_counts_anew_and_what_was_extended_stays() -> None:
    cluster = running(max_runtime_s=60, warn=("USR1", 10))
    cluster.turn(ExtendApp(app="a1", by_s=20))
    assert kinds(cluster.turn(after_s=70)) == ["AppWarned"]
    cluster.turn(RequeueApp(app="a1"))
    assert cluster.turn(after_s=600) == []
    cluster.ended("a1.0")
    cluster.ended("a1.1")
    cluster.turn(StartedExecutor(executor="a1.2"))
    assert cluster.turn(after_s=69) == []
    assert kinds(cluster.turn(after_s=70)) == ["AppWarned"]
    assert kinds(cluster.turn(after_s=10)) == ["AppExpired"]


def test_no_timer_of_the_old_admission_is_left() -> None:
    cluster = running(max_runtime_s=60)
    cluster.turn(RequeueApp(app="a1"))
    assert cluster.state.timers.table == []


def test_grants_are_to_stop_at_once_and_later_ones_say_how_often_it_was_put_back() -> None:
    cluster = running()
    events = cluster.turn(RequeueApp(app="a1"))
    assert changed_grants(events, cluster.state).by_worker == {"w1": {"a1.0": STOP, "a1.1": STOP}}
    cluster.ended("a1.0")
    cluster.ended("a1.1")
    granted = [Grant.model_validate_json(text) for text in all_grants(cluster.state)["w1"].values()]
    assert [grant.restarts for grant in granted] == [1, 1]


def test_it_can_be_held_killed_or_signalled_in_vain_while_it_ends() -> None:
    cluster = running()
    cluster.turn(RequeueApp(app="a1"))
    with pytest.raises(InvalidCommand, match="is pending: nothing of it runs"):
        decide(cluster.state, SignalApp(app="a1", signal="USR1"))
    assert cluster.turn(HoldApp(app="a1")) == [AppHeld(app="a1")]
    cluster.ended("a1.0")
    assert kinds(cluster.ended("a1.1")) == ["ExecutorRemoved"]
    assert cluster.turn(ReleaseApp(app="a1"))[1:2] == [AppReady(app="a1")]
    cluster.turn(RequeueApp(app="a1"))
    assert cluster.turn(KillApp(app="a1")) == [AppRemoved(app="a1", reason="killed")]
    cluster.ended("a1.2")
    cluster.ended("a1.3")
    assert cluster.state.companies["acme"].apps == 0


def test_a_lost_worker_ends_what_ran_of_it() -> None:
    cluster = running()
    cluster.turn(RequeueApp(app="a1"))
    assert [*map(type, cluster.turn(LoseWorker(worker="w1")))].count(AppReady) == 1
    assert cluster.state.apps["a1"].state == "pending"


@pytest.mark.parametrize("exit_code", [0, 1])
@pytest.mark.parametrize("supervise", [False, True])
def test_a_driver_that_was_told_to_stop_ends_nothing(exit_code: int, supervise: bool) -> None:  # noqa: FBT001
    cluster = shared(w1=8)
    cluster.turn(fixed("d1", driver=True, supervise=supervise, cores=4, tasks=None))
    assert cluster.turn(RequeueApp(app="d1")) == [AppRequeued(app="d1")]
    cluster.ended("d1.0")
    reason: Any = "failed" if exit_code else "exited"
    back = cluster.turn(EndedDriver(driver="d1.driver-0", reason=reason, exit_code=exit_code))
    assert kinds(back)[:3] == ["DriverRemoved", "AppReady", "AppAdmitted"]
    assert [event.driver for event in back if isinstance(event, DriverAllocated)] == ["d1.driver-1"]


def test_an_unsupervised_driver_that_is_lost_meanwhile_fails_nothing() -> None:
    cluster = shared(w1=8, w2=8)
    cluster.turn(fixed("d1", driver=True, cores=4, tasks=None))
    cluster.turn(RequeueApp(app="d1"))
    cluster.turn(LoseWorker(worker="w1"), LoseWorker(worker="w2"))
    assert cluster.state.apps["d1"].state == "pending"


def test_programs_get_their_ranks_again() -> None:
    cluster = shared(w1=8)
    cluster.turn(replace(submission("p1", 8), memory_per_task_mb=None, **PROGRAMS))
    cluster.turn(EndedExecutor(executor="p1.0", reason="exited", exit_code=0))
    cluster.turn(RequeueApp(app="p1"))
    cluster.turn(EndedExecutor(executor="p1.1", reason="exited", exit_code=0))
    (grant,) = [Grant.model_validate_json(text) for text in all_grants(cluster.state)["w1"].values()]
    assert (grant.executor, grant.rank, grant.ranks) == ("p1.2", 1, 2)


def test_those_who_were_to_leave_for_it_stay() -> None:
    """Semantics H6, H7: a target ends when its app does not take part any more."""
    cluster = shared(w1=8)
    cluster.company("globex")
    cluster.turn(replace(fixed("g1", 8), company="globex", user="carol"))
    asked = cluster.turn(fixed("a1", 4))
    assert [type(event) for event in asked].count(TargetSet) == 1
    back = cluster.turn(RequeueApp(app="a1"), HoldApp(app="a1"))
    assert back[:2] == [AppRequeued(app="a1"), AppHeld(app="a1")]
    assert {TargetEnded, RevocationWithdrawn} <= {*map(type, back)}
    invariants.check(cluster.state)


def test_one_that_held_nothing_is_back_in_the_same_turn() -> None:
    cluster = shared(w1=8)
    cluster.company("globex")
    cluster.turn(replace(fixed("g1", 8), company="globex", user="carol"))
    cluster.turn(fixed("a1", 4))
    assert kinds(cluster.turn(RequeueApp(app="a1")))[:3] == ["AppRequeued", "AppReady", "AppAdmitted"]


def test_one_that_leaves_for_another_app_does_not_stay() -> None:
    cluster = shared(w1=8)
    cluster.company("globex")
    cluster.turn(replace(fixed("g1", 8), company="globex", user="carol"))
    cluster.turn(fixed("a1", 4))
    cluster.turn(RequeueApp(app="g1"))
    invariants.check(cluster.state)
    cluster.turn(KillApp(app="a1"))
    assert [held.status for held in cluster.state.apps["g1"].allocations()] == ["stopping", "stopping"]


def test_limits_count_it_as_pending_and_refuse_nobody_who_is_in() -> None:
    cluster = running()
    cluster.turn(SetLimit(scope="company", name="max_pending_apps", company="acme", value=0))
    cluster.turn(RequeueApp(app="a1"))
    standing = cluster.state.claims.of("acme")
    assert (standing.pending, standing.apps) == (1, 0)
    cluster.ended("a1.0")
    cluster.ended("a1.1")
    assert (standing.pending, standing.apps) == (0, 1)


def test_it_waits_for_its_own_end_and_says_so() -> None:
    cluster = running()
    cluster.turn(RequeueApp(app="a1"))
    wait = waits_for(cluster.state, cluster.state.apps["a1"])
    assert wait is not None
    assert (wait.cause, wait.rule) == ("ending", "X6")
    assert wait.tell() == ("it was put back, and a1.0, a1.1 of it must end first", {"ending": ["a1.0", "a1.1"]})
    shown = view_of(cluster.state, app="a1")
    assert (shown.restarts, shown.no_requeue) == (1, False)


@pytest.mark.parametrize("company_policy", ["dominant-share", "pay-as-you-go"])
@pytest.mark.parametrize("admission", ["fair", "open"])
def test_a_snapshot_in_between_leads_to_the_same_state(company_policy: str, admission: str) -> None:
    cluster = Cluster({"company_policy": company_policy, "admission": admission})
    cluster.company("acme")
    cluster.worker("w1", 8)
    cluster.turn(fixed(max_runtime_s=60))
    cluster.turn(StartedExecutor(executor="a1.0"))
    steps: list[Command] = [RequeueApp(app="a1")]
    steps += [EndedExecutor(executor=name, reason="killed") for name in ("a1.0", "a1.1")]
    for command in steps:
        cluster.turn(command)
        again = restored(lines(cluster.state))
        assert again.digest() == cluster.state.digest()
        assert again.timers.table == cluster.state.timers.table
        invariants.check(again)
        invariants.check(cluster.state)


def test_an_app_that_was_never_put_back_is_dumped_as_before() -> None:
    dumped: dict[str, Any] = running().state.dump()["apps"]["a1"]
    assert "restarts" not in dumped


def test_who_put_it_back_is_noted() -> None:
    cluster = running()
    cluster.turn(RequeueApp(app="a1", reason="it hangs"), by=local(1000))
    assert cluster.state.apps["a1"].asked["requeued"] == "local/1000"


def test_the_registration_says_whether_it_may_be_put_back() -> None:
    (event, *_) = shared(w1=8).turn(fixed(no_requeue=True))
    assert isinstance(event, AppRegistered)
    assert event.no_requeue
