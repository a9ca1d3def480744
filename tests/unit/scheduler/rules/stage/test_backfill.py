"""Backfill: what surely ends before a target's date uses its room until then (semantics H11)."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.replay.bounds import moment
from scheduler.model.commands import ConfigureCluster, EndedExecutor, ExtendApp, KillApp, StartedExecutor, SubmitApp
from scheduler.model.events import AppExpired, ExecutorAllocated, ExecutorRevoked, TargetEnded, TargetSet
from tests.property.given import Cluster, decides_nothing_more
from tests.unit.recorded import facts
from witness.audit.audit import audit
from witness.explain import explain

PATIENCE_S = 3600
GRACE_S = 30
SETTLE_S = 5
START_S = 60
LONGEST_S = PATIENCE_S - GRACE_S - SETTLE_S - START_S
"""What begins with the need and may run so long is gone by the need's date."""


def asking(app: str, company: str, cores: int, **more: Any) -> SubmitApp:
    """The submission of an app of one executor."""
    return SubmitApp(
        app=app,
        company=company,
        user="ann",
        command=("true",),
        cores=cores,
        tasks=1,
        executor_cores=cores,
        executor_memory_mb=1024,
        **more,
    )


def submit(to: Cluster, app: str, company: str, cores: int, after_s: int = 1, **more: Any) -> list[Any]:
    """What the submission of an app of one executor causes, which runs at once."""
    events = to.turn(asking(app, company, cores, **more), after_s=after_s)
    decides_nothing_more(to.state)
    started = [each.executor for each in events if isinstance(each, ExecutorAllocated)]
    if started:
        to.turn(*map(StartedExecutor, started), after_s=0)
    return events


def granted(events: list[Any]) -> list[tuple[str, str]]:
    return [(each.app, each.worker) for each in events if isinstance(each, ExecutorAllocated)]


def of(events: list[Any], kind: type) -> list[Any]:
    return [each for each in events if isinstance(each, kind)]


@pytest.fixture
def waiting() -> Cluster:
    """Of the 16 cores of w1, a's app has 8 and is told to leave by the date of b's app, which needs all of them."""
    found = Cluster({"reclaim_patience_s": PATIENCE_S, "kill_grace_s": GRACE_S, "min_runtime_s": 0, "backfill": True})
    for company in ("a", "b"):
        found.company(company)
    found.worker("w2", 16)
    submit(found, "keeps", "a", 16)
    found.worker("w1", 16)
    submit(found, "lent", "a", 8)
    assert granted(submit(found, "large", "b", 16)) == []
    (target,) = found.state.holds.values()
    assert (target.worker, target.app, list(target.leaving)) == ("w1", "large", ["lent.0"])
    return found


def end(cluster: Cluster, executor: str, after_s: int = 1) -> list[Any]:
    return cluster.turn(EndedExecutor(executor=executor, reason="exited"), after_s=after_s)


def test_an_app_that_is_gone_by_the_date_uses_the_room_until_then(waiting: Cluster) -> None:
    assert granted(submit(waiting, "short", "a", 8, max_runtime_s=LONGEST_S - 1)) == [("short", "w1")]
    assert granted(end(waiting, "lent.0")) == []  # the room is complete only once both are gone
    assert granted(end(waiting, "short.0", 60)) == [("large", "w1")]


def test_the_audit_finds_the_same_and_the_explanation_says_until_when(waiting: Cluster) -> None:
    submit(waiting, "short", "a", 8, max_runtime_s=600)
    assert audit(facts(waiting.records)) == []
    (why,) = explain(facts(waiting.records), "short")["executors"]
    date = moment(waiting.state.apps["large"].lack.date)
    assert f"; room on w1 is kept for large by {date}, by when it has ended (H11)" in why["why"]["workers"]


def test_who_waits_is_told_with_which_limit_it_would_start(waiting: Cluster) -> None:
    submit(waiting, "endless", "a", 8)
    told = explain(facts(waiting.records), "endless")["waitsFor"]
    most_s = told["facts"]["startsWithMaxRuntimeS"]
    assert told["text"].endswith(f"which it could use now with a maximum runtime of at most {most_s} s")
    waiting.turn(KillApp(app="endless"), after_s=0)
    assert granted(submit(waiting, "long", "a", 8, after_s=0, max_runtime_s=most_s + 1)) == []
    waiting.turn(KillApp(app="long"), after_s=0)
    assert granted(submit(waiting, "short", "a", 8, after_s=0, max_runtime_s=most_s)) == [("short", "w1")]
    submit(waiting, "wide", "a", 8)
    assert "startsWith" not in str(explain(facts(waiting.records), "wide")["waitsFor"])


def test_nothing_is_lent_to_what_may_run_longer_or_for_any_time(waiting: Cluster) -> None:
    assert granted(submit(waiting, "long", "a", 8, max_runtime_s=LONGEST_S)) == []
    assert granted(submit(waiting, "endless", "a", 8)) == []
    assert granted(submit(waiting, "short", "a", 8, max_runtime_s=600)) == [("short", "w1")]


def test_without_the_setting_the_room_stays_empty(waiting: Cluster) -> None:
    waiting.turn(ConfigureCluster(settings={"backfill": False}))
    assert granted(submit(waiting, "short", "a", 8, max_runtime_s=600)) == []


def test_room_that_is_complete_is_its_apps_alone(waiting: Cluster) -> None:
    assert granted(submit(waiting, "short", "a", 8, max_runtime_s=600)) == [("short", "w1")]
    submit(waiting, "next", "a", 8, max_runtime_s=600)
    assert granted(end(waiting, "lent.0")) == [("next", "w1")]  # the room is not complete yet
    submit(waiting, "last", "a", 8, max_runtime_s=600)
    waiting.turn(KillApp(app="short"), KillApp(app="next"))
    assert granted(
        waiting.turn(*[EndedExecutor(executor=name, reason="killed") for name in ("short.0", "next.0")])
    ) == [("large", "w1")]


def test_room_of_a_gang_is_lent_until_there_is_room_for_all_of_it(waiting: Cluster) -> None:
    """What is free on w3 is of no use to the gang before the other worker's executor has left (G8)."""
    waiting.turn(KillApp(app="large"), after_s=0)
    waiting.worker("w3", 16)
    together = SubmitApp(
        app="together",
        company="b",
        user="ann",
        command=("true",),
        executor_program=True,
        executor_limit=2,
        executor_cores=16,
        executor_memory_mb=1024,
        gang=True,
    )
    assert granted(waiting.turn(together)) == []
    assert {hold.worker: list(hold.leaving) for hold in waiting.state.holds.values()} == {"w1": ["lent.0"], "w3": []}
    assert granted(submit(waiting, "endless", "a", 16)) == []
    assert granted(submit(waiting, "short", "a", 16, max_runtime_s=600)) == [("short", "w3")]
    assert granted(end(waiting, "lent.0")) == []
    assert {worker for _, worker in granted(end(waiting, "short.0", 60))} == {"w1", "w3"}
    assert audit(facts(waiting.records)) == []


def test_it_is_ended_by_its_maximum_runtime_and_the_date_is_kept(waiting: Cluster) -> None:
    date = waiting.state.apps["large"].lack.date
    submit(waiting, "short", "a", 8, max_runtime_s=LONGEST_S - 1)
    end(waiting, "lent.0")
    events = waiting.turn(after_s=LONGEST_S)
    assert [each.app for each in of(events, AppExpired)] == ["short"]
    assert granted(waiting.turn(EndedExecutor(executor="short.0", reason="killed"), after_s=GRACE_S)) == [
        ("large", "w1")
    ]
    assert waiting.state.at <= date


def test_who_starts_too_late_has_room_made_for_the_need_again(waiting: Cluster) -> None:
    """Its runtime counts from its start: after so long it may outlive the date."""
    slow = asking("slow", "a", 8, max_runtime_s=LONGEST_S - 1)
    assert granted(waiting.turn(slow)) == [("slow", "w1")]
    events = waiting.turn(StartedExecutor(executor="slow.0"), after_s=START_S + 5)
    assert [each.reason for each in of(events, TargetEnded)] == ["unusable"]
    assert [each.worker for each in of(events, TargetSet)] == ["w1"]
    assert {each.executor for each in of(events, ExecutorRevoked)} == {"slow.0", "lent.0"}


def test_who_never_starts_leaves_at_the_date(waiting: Cluster) -> None:
    """Nothing else happens by then: the date itself is a time that a turn waits for."""
    assert granted(waiting.turn(asking("never", "a", 8, max_runtime_s=600))) == [("never", "w1")]
    date = waiting.state.apps["large"].lack.date
    end(waiting, "lent.0")
    waiting.turn(KillApp(app="lent"), after_s=0)
    assert waiting.state.timers.next(waiting.state.at) == date
    events = waiting.turn(after_s=(date - waiting.state.at) // 1000)
    assert [(each.executor, each.claimant, each.deadline) for each in of(events, ExecutorRevoked)] == [
        ("never.0", "large", date)
    ]
    assert audit(facts(waiting.records)) == []


def test_an_extension_beyond_the_date_makes_it_leave_by_it(waiting: Cluster) -> None:
    submit(waiting, "short", "a", 8, max_runtime_s=600)
    events = waiting.turn(ExtendApp(app="short", by_s=PATIENCE_S))
    assert {(each.executor, each.claimant) for each in of(events, ExecutorRevoked)} == {
        ("lent.0", "large"),
        ("short.0", "large"),
    }
    assert {each.deadline for each in of(events, ExecutorRevoked)} == {waiting.state.apps["large"].lack.date}


def test_it_ends_with_the_need(waiting: Cluster) -> None:
    submit(waiting, "short", "a", 8, max_runtime_s=600)
    events = waiting.turn(KillApp(app="large"))
    assert [each.reason for each in of(events, TargetEnded)] == ["served"]
    assert not of(events, ExecutorRevoked)
