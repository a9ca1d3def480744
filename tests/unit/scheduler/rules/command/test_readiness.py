"""Priorities (semantics Q), dependencies, holds and times to begin (semantics J)."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.model.commands import (
    ConfigureCluster,
    EndApp,
    EndedExecutor,
    HoldApp,
    KillApp,
    LoseWorker,
    ReleaseApp,
    ReprioritizeApp,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import AppEnded, InvalidCommand, NotPending, UnknownApp, UnknownDependency
from scheduler.model.events import (
    AppHeld,
    AppReleased,
    AppRemoved,
    AppReprioritized,
    Condition,
    Event,
)
from scheduler.rules.entities.apps import is_met
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster, admitted, shared


def app(of: str, cores: int = 8, *, company: str = "acme", user: str = "ann", **more: Any) -> SubmitApp:
    return SubmitApp(app=of, company=company, user=user, cores=cores, command=("true",), **more)


def finish(name: str, reason: Any = "finished") -> EndApp:
    return EndApp(app=name, reason=reason)


def full(settings: dict[str, object] | None = None) -> Cluster:
    """A cluster of 16 cores that the app `f` fills, so that later ones of its user wait."""
    cluster = shared(settings, w1=16)
    cluster.turn(app("f", 16))
    return cluster


def emptied(cluster: Cluster) -> list[str]:
    """Who is admitted once `f` and its executors are gone."""
    gone = [EndedExecutor(executor=name, reason="exited") for name in cluster.state.apps["f"].executors]
    return admitted(cluster.turn(finish("f"), *gone))


def removed(events: list[Event]) -> list[str]:
    return [event.app for event in events if isinstance(event, AppRemoved) and event.reason == "unmet"]


def waiting(state: ClusterState) -> dict[str, list[str]]:
    """App -> those that wait for its end."""
    return {name: list(apps) for name, apps in state.dependents.of.items()}


class TestPriority:
    def test_it_orders_the_apps_of_one_user_and_of_nobody_else(self) -> None:
        """Semantics Q1."""
        cluster = full()
        cluster.turn(app("a1"))
        cluster.turn(app("a2", priority=1))
        cluster.turn(app("b1", 4, user="bob"))
        cluster.turn(app("b2", user="bob", priority=1000))
        assert emptied(cluster) == ["a2"], "b2 counts against other apps of bob alone"

    @pytest.mark.parametrize(("step_s", "order"), [(10, "a2 a3 a1"), (3, "a1 a2 a3"), (0, "a3 a2 a1")])
    def test_a_step_is_worth_some_time_of_waiting(self, step_s: int, order: str) -> None:
        """Semantics Q1: a2 comes 6 s after a1 with one step more, a3 20 s after a2 with two steps more."""
        cluster = full({"priority_step_s": step_s})
        cluster.turn(app("a1", 4))
        cluster.turn(app("a2", 4, priority=1), after_s=6)
        cluster.turn(app("a3", 4, priority=3), after_s=20)
        assert emptied(cluster) == order.split()

    def test_equal_rank_times_go_by_submission(self) -> None:
        """Semantics Q1."""
        cluster = full({"priority_step_s": 1})
        cluster.turn(app("late", 4, priority=-1))
        cluster.turn(app("early", 4), after_s=1)
        cluster.turn(app("later", 4, priority=-1), app("now", 4, priority=0))
        assert emptied(cluster) == ["late", "early", "now", "later"]

    def test_with_sql_first_it_orders_within_each_kind(self) -> None:
        """Semantics F1."""
        cluster = full({"app_policy": "sql-first"})
        for command in (app("b", 4, priority=1000), app("s1", 4, kind="sql"), app("s2", 4, kind="sql", priority=1)):
            cluster.turn(command)
        assert emptied(cluster) == ["s2", "s1", "b"]

    def test_it_can_be_changed_until_the_app_has_ended(self) -> None:
        """Semantics Q1."""
        cluster = full()
        cluster.turn(app("a1"), app("a2"), app("a3"))
        assert cluster.turn(ReprioritizeApp(app="a3", priority=5)) == [AppReprioritized(app="a3", priority=5)]
        assert cluster.turn(ReprioritizeApp(app="a3", priority=5)) == []
        assert cluster.turn(ReprioritizeApp(app="f", priority=-1000)) == [AppReprioritized(app="f", priority=-1000)]
        assert emptied(cluster) == ["a3", "a1"]
        with pytest.raises(AppEnded):
            cluster.turn(ReprioritizeApp(app="f", priority=0))

    def test_a_changed_step_orders_the_waiting_apps_anew(self) -> None:
        """Semantics Q1."""
        cluster = full({"priority_step_s": 0})
        cluster.turn(app("a1"), app("a2", priority=1))
        cluster.turn(ConfigureCluster(settings={"priority_step_s": 1}), after_s=1)
        cluster.turn(app("a3", priority=2), after_s=5)
        assert emptied(cluster) == ["a2", "a1"]

    @pytest.mark.parametrize("priority", [-1001, 1001])
    def test_one_out_of_bounds_is_refused_with_the_numbers(self, priority: int) -> None:
        cluster = full()
        for command in (app("a1", priority=priority), ReprioritizeApp(app="f", priority=priority)):
            with pytest.raises(InvalidCommand, match=rf"^the priority must be between -1000 and 1000, not {priority}$"):
                cluster.turn(command)
        with pytest.raises(UnknownApp):
            cluster.turn(ReprioritizeApp(app="nope", priority=1))


class TestDependencies:
    @pytest.mark.parametrize(
        ("condition", "ended", "met"),
        [
            ("ok", "finished", True), ("ok", "failed", False), ("ok", "killed", False), ("ok", "unmet", False),
            ("any", "finished", True), ("any", "failed", True), ("any", "killed", True), ("any", "unmet", True),
            ("not-ok", "finished", False), ("not-ok", "failed", True), ("not-ok", "killed", True),
            ("not-ok", "unmet", True), ("began", "killed", True), ("began", "finished", True),
        ],
    )  # fmt: skip
    def test_a_condition_names_how_an_app_must_have_ended(self, condition: Condition, ended: str, met: bool) -> None:  # noqa: FBT001
        """Semantics J1."""
        assert is_met(condition, ended) == met

    def test_an_app_is_admitted_once_all_are_met(self) -> None:
        """Semantics J1, J2."""
        cluster = shared(w1=64)
        cluster.turn(app("a1"), app("a2"))
        assert admitted(cluster.turn(app("a3", after={"ok": ("a1",), "any": ("a2",)}))) == []
        assert cluster.state.apps["a3"].awaits == {"a1": "ok", "a2": "any"}
        assert admitted(cluster.turn(finish("a1"))) == []
        assert admitted(cluster.turn(KillApp(app="a2"))) == ["a3"]

    def test_one_may_wait_for_no_more_than_a_beginning(self) -> None:
        """Semantics J1, J2."""
        cluster = full()
        cluster.turn(app("a1", 4), app("a2", 4, after={"began": ("a1", "f")}))
        assert cluster.state.apps["a2"].awaits == {"a1": "began"}
        assert emptied(cluster) == ["a1"]
        assert waiting(cluster.state) == {}
        again = restored(lines(cluster.state))
        assert list(again.indexes.judged.places) == list(cluster.state.indexes.judged.places) != []
        executor = next(iter(cluster.state.apps["a1"].executors))
        assert admitted(cluster.turn(StartedExecutor(executor=executor))) == ["a2"]
        cluster.turn(app("a3", hold=True), app("a4", after={"began": ("a3",)}), app("a5", after={"ok": ("a3",)}))
        events = cluster.turn(KillApp(app="a3"))
        assert (admitted(events), removed(events)) == (["a4"], ["a5"])

    def test_the_beginning_of_a_driver_is_one(self) -> None:
        cluster = shared(w1=64)
        driver = SubmitApp(app="d", company="acme", user="ann", driver=True, command=("true",), hold=True)
        cluster.turn(driver, app("a1", after={"began": ("d",)}))
        cluster.turn(ReleaseApp(app="d"))
        assert admitted(cluster.turn()) == ["a1"]

    def test_what_has_ended_already_is_judged_at_once(self) -> None:
        """Semantics J1, J2."""
        cluster = shared(w1=64)
        cluster.turn(app("a1"))
        cluster.turn(finish("a1"))
        assert admitted(cluster.turn(app("a2", after={"ok": ("a1",)}))) == ["a2"]
        events = cluster.turn(app("a3", after={"not-ok": ("a1",)}))
        assert removed(events) == ["a3"]
        assert admitted(events) == []

    def test_what_can_no_longer_come_removes_the_whole_chain_in_the_order_of_submission(self) -> None:
        """Semantics J2."""
        cluster = shared(w1=64)
        cluster.turn(app("a1"))
        cluster.turn(
            app("b1", after={"ok": ("a1",)}), app("c1", after={"ok": ("b1",)}), app("d1", after={"ok": ("a1",)})
        )
        cluster.turn(app("e1", after={"not-ok": ("c1",)}), app("f1", after={"any": ("d1",), "ok": ("e1",)}))
        events = cluster.turn(finish("a1", "failed"))
        assert removed(events) == ["b1", "c1", "d1"]
        assert admitted(events) == ["e1"]
        assert cluster.state.apps["c1"].detail == "it waited for b1:ok, which can no longer come"
        assert cluster.state.apps["f1"].awaits == {"e1": "ok"}
        assert admitted(cluster.turn(finish("e1"))) == ["f1"]

    def test_a_lost_driver_ends_its_app_for_those_that_wait_for_it(self) -> None:
        cluster = shared(w1=16, w2=16)
        cluster.turn(app("a1", 0, driver=True))
        cluster.turn(app("a2", after={"not-ok": ("a1",)}), app("a3", after={"ok": ("a1",)}))
        driver = cluster.state.apps["a1"].driver
        assert driver is not None
        events = cluster.turn(LoseWorker(worker=driver.worker))
        assert removed(events) == ["a3"]
        assert admitted(events) == ["a2"]

    def test_its_time_counts_from_the_event_that_made_it_ready(self) -> None:
        """Semantics J2, Q1, U1."""
        cluster = full()
        cluster.turn(app("p", 4))
        cluster.turn(app("a1", after={"any": ("p",)}))
        cluster.turn(app("a2", 16))
        cluster.turn(KillApp(app="p"))
        assert emptied(cluster) == ["a2"]
        gone = [EndedExecutor(executor=name, reason="exited") for name in cluster.state.executors]
        assert admitted(cluster.turn(finish("a2"), *gone)) == ["a1"]

    def test_a_company_whose_apps_are_not_ready_does_not_take_part(self) -> None:
        """Semantics J2, C1, C6: acme borrows although an app of other waits."""
        cluster = Cluster()
        cluster.company("acme", part="50%", borrow=True)
        cluster.company("other", part="50%")
        cluster.worker("w1", 32)
        cluster.turn(app("a0", 8))
        cluster.turn(app("o1", 8, company="other", user="oz"))
        cluster.turn(app("o2", 8, company="other", user="oz", after={"ok": ("o1",)}))
        assert admitted(cluster.turn(app("a1", 16))) == ["a1"]
        assert cluster.turn(after_s=60) == []

    @pytest.mark.parametrize("admission", ["open", "fair"])
    def test_they_hold_under_open_admission_too(self, admission: str) -> None:
        """Semantics A6, J2."""
        cluster = shared({"admission": admission}, w1=64)
        cluster.turn(app("a1"))
        assert admitted(cluster.turn(app("a2", after={"ok": ("a1",)}), app("a3", hold=True), app("a4"))) == ["a4"]
        assert admitted(cluster.turn(ReleaseApp(app="a3"), finish("a1"))) == ["a2", "a3"]

    def test_a_dependency_that_is_forgotten_at_once_has_counted(self) -> None:
        """Semantics J2 with `retained_apps` 0."""
        cluster = shared({"retained_apps": 0}, w1=64)
        cluster.turn(app("a1"))
        cluster.turn(app("a2", after={"ok": ("a1",)}), app("a3", after={"not-ok": ("a1",)}))
        gone = [EndedExecutor(executor=name, reason="exited", done=True) for name in cluster.state.executors]
        events = cluster.turn(*gone, finish("a1"))
        assert removed(events) == ["a3"]
        assert admitted(events) == ["a2"]
        assert list(cluster.state.apps) == ["a2"]
        with pytest.raises(UnknownDependency):
            cluster.turn(app("a4", after={"any": ("a1",)}))

    def test_only_known_apps_of_the_company_can_be_named_each_once(self) -> None:
        """Semantics J1."""
        cluster = shared(w1=64)
        cluster.company("other")
        cluster.turn(app("a1"), app("o1", company="other"))
        for name in ("nope", "o1", "a2"):
            with pytest.raises(UnknownDependency, match=rf"^no app '{name}' of company 'acme' is known"):
                cluster.turn(app("a2", after={"ok": (name,)}))
        with pytest.raises(InvalidCommand, match=r"^app 'a1' is named twice in --after; name it once"):
            cluster.turn(app("a2", after={"ok": ("a1",), "any": ("a1",)}))
        many = tuple(f"a{number}" for number in range(1001))
        with pytest.raises(InvalidCommand, match=r"to start after must be between 0 and 1000, not 1001$"):
            cluster.turn(app("a2", after={"ok": many}))
        assert list(cluster.state.apps) == ["a1", "o1"]

    def test_an_end_touches_its_own_dependents_only(self) -> None:
        """Semantics J2: the index holds nothing of apps that no longer wait."""
        cluster = shared(w1=64)
        cluster.turn(app("a1"), app("a2"))
        cluster.turn(app("b1", after={"ok": ("a1", "a2")}), app("b2", after={"ok": ("a2",)}))
        assert waiting(cluster.state) == {"a1": ["b1"], "a2": ["b1", "b2"]}
        cluster.turn(KillApp(app="b1"))
        assert waiting(cluster.state) == {"a2": ["b2"]}
        cluster.turn(finish("a2"))
        assert waiting(cluster.state) == {}


class TestHolds:
    def test_an_app_on_hold_is_not_admitted_until_it_is_released(self) -> None:
        """Semantics J3."""
        cluster = full()
        cluster.turn(app("a1"), app("a2"))
        assert cluster.turn(HoldApp(app="a1")) == [AppHeld(app="a1")]
        assert cluster.turn(HoldApp(app="a1")) == []
        assert emptied(cluster) == ["a2"]
        released = cluster.turn(ReleaseApp(app="a1"))
        assert released[0] == AppReleased(app="a1")
        assert admitted(released) == ["a1"]

    def test_it_can_be_submitted_on_hold(self) -> None:
        """Semantics J3."""
        cluster = shared(w1=64)
        assert admitted(cluster.turn(app("a1", hold=True))) == []
        assert cluster.turn(ScaleApp(app="a1", executors=1)) != []
        assert admitted(cluster.turn(ReleaseApp(app="a1"))) == ["a1"]

    def test_a_dependency_met_meanwhile_does_not_release_it(self) -> None:
        """Semantics J2, J3."""
        cluster = shared(w1=64)
        cluster.turn(app("a1"))
        cluster.turn(app("a2", after={"ok": ("a1",)}))
        cluster.turn(HoldApp(app="a2"))
        assert admitted(cluster.turn(finish("a1"))) == []
        assert admitted(cluster.turn(ReleaseApp(app="a2"))) == ["a2"]

    def test_a_dependency_that_cannot_be_met_removes_it_all_the_same(self) -> None:
        """Semantics J2."""
        cluster = shared(w1=64)
        cluster.turn(app("a1"))
        cluster.turn(app("a2", after={"ok": ("a1",)}, hold=True))
        assert removed(cluster.turn(KillApp(app="a1"))) == ["a2"]

    @pytest.mark.parametrize("command", [HoldApp, ReleaseApp])
    def test_only_a_pending_app_can_be_held_or_released(self, command: type[HoldApp | ReleaseApp]) -> None:
        """Semantics J3."""
        cluster = full()
        with pytest.raises(NotPending, match=r"^app 'f' is not pending; only a pending app can be put on hold"):
            cluster.turn(command(app="f"))
        cluster.turn(KillApp(app="f"))
        with pytest.raises(AppEnded):
            cluster.turn(command(app="f"))
        with pytest.raises(UnknownApp):
            cluster.turn(command(app="nope"))

    def test_releasing_what_is_not_on_hold_changes_nothing(self) -> None:
        cluster = full()
        cluster.turn(app("a1"))
        assert cluster.turn(ReleaseApp(app="a1")) == []
