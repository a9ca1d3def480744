"""Demand that moves: stated anew, by the backlog and by time; and where the executors of it go (semantics L, O1)."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    EndedExecutor,
    KillApp,
    KillExecutors,
    LoseWorker,
    RegisterWorker,
    ReportBacklog,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected, InvalidCommand
from scheduler.model.events import (
    AppChanged,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorRevoked,
)
from scheduler.model.grants import Grant
from scheduler.rules.command.submission import with_preferences
from scheduler.rules.invariants import check
from scheduler.rules.stage.turn import Turn
from scheduler.rules.view.assignments import all_grants
from tests.property.given import GIB, Cluster

WAITS: dict[str, object] = {"locality_wait_host_ms": 3000, "locality_wait_rack_ms": 5000}


def offer(worker: str, cores: int, rack: str = "", *, host: str | None = None) -> RegisterWorker:
    return RegisterWorker(
        worker=worker, node=worker, host=host or f"h-{worker}", rack=rack, cores=cores, memory_mb=64 * GIB
    )


def cluster_of(*offers: RegisterWorker, **settings: object) -> Cluster:
    cluster = Cluster(settings)
    cluster.company("acme")
    for worker in offers:
        cluster.turn(worker)
    return cluster


def elastic(app: str, least: int, most: int, **more: Any) -> SubmitApp:
    return SubmitApp(app=app, company="acme", user="ann", command=("true",), elastic=(least, most), **more)


def scale(app: str, executors: int | None, prefer: dict[str, int] | None = None, **more: Any) -> ScaleApp:
    return ScaleApp(app=app, executors=executors, prefer=prefer or {}, **more)


def reached(events: list[Event]) -> list[tuple[str, str | None]]:
    return [(event.worker, event.locality) for event in events if isinstance(event, ExecutorAllocated)]


def asked(events: list[Event]) -> list[tuple[int | None, int]]:
    """(executors, cores requested) of each demand that was stated."""
    return [(event.executor_limit, event.requested.cores) for event in events if isinstance(event, AppChanged)]


def wait(cluster: Cluster, milliseconds: int) -> list[Event]:
    """What time alone brings."""
    turn = Turn(cluster.state, cluster.state.at + milliseconds)
    turn.settle()
    check(cluster.state)
    return [entry.event for entry in turn.entries]


class TestScale:
    def test_an_app_gets_its_stated_executors_and_every_ledger_its_request(self) -> None:
        cluster = cluster_of(offer("w1", 16), offer("w2", 16))
        cluster.submit("a1", 4)
        events = cluster.turn(scale("a1", 5))
        assert asked(events) == [(1, 4), (5, 20)], "the wish, and what is requested of it"
        assert len(reached(events)) == 4
        state = cluster.state
        user = state.companies["acme"].users["ann"]
        for balance in (state.balance, state.companies["acme"].balance, user.balance):
            assert (balance.requested.cores, balance.granted.cores) == (20, 20)

    def test_stating_the_same_demand_again_changes_nothing(self) -> None:
        cluster = cluster_of(offer("w1", 16))
        cluster.submit("a1", 4)
        cluster.turn(scale("a1", 2))
        assert cluster.turn(scale("a1", 2)) == []

    def test_a_lower_demand_lowers_the_request_at_once_and_stops_nothing(self) -> None:
        cluster = cluster_of(offer("w1", 16))
        cluster.submit("a1", 4)
        cluster.turn(scale("a1", 4))
        assert asked(cluster.turn(scale("a1", 2))) == [(2, 8)]
        assert cluster.state.claims.total.claimed.cores == 16, "what it holds is claimed until it is gone"
        assert reached(cluster.ended("a1.0")) == reached(cluster.ended("a1.1")) == []
        assert cluster.state.claims.total.claimed.cores == 8
        assert len(reached(cluster.ended("a1.2"))) == 1, "within the demand it is replaced"
        assert cluster.state.balance.requested.cores == 8

    def test_no_demand_rises_while_no_live_worker_could_host_an_executor(self) -> None:
        """Semantics L1, A8."""
        cluster = cluster_of(offer("w1", 8))
        cluster.submit("a1", 8)
        cluster.turn(scale("a1", 4))
        assert asked(cluster.turn(LoseWorker(worker="w1"))) == []

    def test_a_demand_of_none_gives_the_request_back_once_all_have_ended(self) -> None:
        cluster = cluster_of(offer("w1", 16))
        cluster.submit("a1", 8)
        cluster.turn(scale("a1", 0))
        for executor in list(cluster.state.executors):
            cluster.ended(executor)
        assert cluster.state.balance.requested.cores == 0
        assert "a1" in cluster.state.waiting

    def test_executors_that_were_done_are_owed_again_once_the_demand_is_stated_anew(self) -> None:
        cluster = cluster_of(offer("w1", 16))
        cluster.submit("a1", 4)
        cluster.turn(scale("a1", 2))
        cluster.ended("a1.0", done=True)
        assert reached(cluster.ended("a1.1", done=True)) == []
        assert len(reached(cluster.turn(scale("a1", 2)))) == 2

    def test_a_pending_app_waits_under_its_new_request(self) -> None:
        cluster = cluster_of(offer("w1", 8))
        cluster.submit("a1", 8)
        cluster.submit("a2", 4)
        cluster.turn(scale("a2", 2))
        assert (cluster.state.apps["a2"].state, cluster.state.balance.requested.cores) == ("pending", 8)
        cluster.turn(scale("a1", 1))
        for executor in list(cluster.state.executors):
            cluster.ended(executor, done=True)
        assert cluster.state.apps["a2"].requested.cores == 8

    def test_an_app_of_fixed_executors_keeps_within_its_cores(self) -> None:
        cluster = cluster_of(offer("w1", 16))
        cluster.turn(SubmitApp(app="a1", company="acme", user="ann", command=("true",), cores=8, executor_cores=2))
        assert len(cluster.state.executors) == 4
        assert cluster.turn(scale("a1", 6))
        assert len(cluster.state.executors) == 4
        assert cluster.state.balance.requested.cores == 8

    @pytest.mark.parametrize(
        ("command", "sentence"),
        [
            (scale("a1", -1), "executors must be between 0 and"),
            (scale("a1", None, {"h": 1}), "hosts can be preferred only with a number of executors"),
            (scale("a1", 2, {"h": -1}), "tasks that prefer h must be between 0 and"),
            (scale("a1", 2, {"": 1}), "a preferred host must not be empty"),
            (scale("a1", 2, {"h": 1}, preferring_tasks=-1), "tasks with a preference must be between 0 and"),
            (scale("a1", 20_000, {"h": 1}), "at most 10000 executors can have preferred hosts"),
            (scale("nobody", 2), "no app 'nobody'"),
        ],
    )
    def test_a_demand_that_makes_no_sense_is_refused_with_a_sentence(self, command: ScaleApp, sentence: str) -> None:
        cluster = cluster_of(offer("w1", 16))
        cluster.submit("a1", 4)
        with pytest.raises(CommandRejected, match=sentence):
            cluster.turn(command)


class TestLocality:
    def test_executors_go_to_the_hosts_that_tasks_prefer_and_say_so(self) -> None:
        cluster = cluster_of(offer("w1", 16), offer("w2", 16), offer("w3", 16), **WAITS)
        cluster.submit("a1", 4)
        (first,) = cluster.state.executors.values()
        events = cluster.turn(scale("a1", 4, {"h-w1": 8, "h-w2": 4}))
        assert Counter(reached(events)) == Counter([("w1", "host"), ("w1", "host"), ("w2", "host")])
        assert first.locality is None

    def test_the_worked_example_of_the_rules_holds_in_a_cluster(self) -> None:
        hosts = [offer(f"w{n}", 64, host=f"h{n}") for n in (1, 2, 3, 4)]
        cluster = cluster_of(*hosts, min_executor_cores=2, min_executor_memory_mb=1024)
        cluster.submit("a1", 8, per_task_mb=256)
        cluster.turn(scale("a1", 4))
        assert sorted(one.worker for one in cluster.state.executors.values()) == ["w1", "w2", "w3", "w4"]
        events = cluster.turn(scale("a1", 15, {"h1": 30, "h2": 30, "h3": 20, "h4": 10}, preferring_tasks=30))
        where = Counter(one.worker for one in cluster.state.executors.values())
        assert len(reached(events)) == 11
        assert set(dict(reached(events)).values()) == {"host"}
        assert where["w1"] >= where["w3"] >= where["w4"]

    def test_patience_counts_from_when_a_request_was_made_and_ends_to_the_millisecond(self) -> None:
        cluster = cluster_of(offer("w1", 4, "/r1"), offer("w2", 4, "/r1"), offer("w3", 4, "/r2"), **WAITS)
        cluster.submit("a1", 4)
        cluster.turn(KillExecutors(app="a1", executors=("a1.0",)), EndedExecutor(executor="a1.0", reason="killed"))
        (there,) = cluster.state.executors.values()
        events = cluster.turn(scale("a1", 3, {f"h-{there.worker}": 99}))
        since = cluster.state.at
        assert reached(events) == []
        others = {"w1": "/r1", "w2": "/r1", "w3": "/r2"}
        rack = others.pop(there.worker)
        mates = [(worker, "rack") for worker, its in others.items() if its == rack]
        moments = [cluster.state.timers.next(since)]
        assert wait(cluster, 2999) == []
        assert reached(wait(cluster, 3000)) == mates
        moments.append(cluster.state.timers.next(since + 5000))
        assert wait(cluster, 7999 - (cluster.state.at - since)) == []
        rest = reached(wait(cluster, 8000 - (cluster.state.at - since)))
        assert rest == [(worker, "any") for worker in sorted(others, reverse=True) if (worker, "rack") not in mates]
        assert moments == [since + 3000, since + 8000]

    def test_nobody_waits_for_a_host_that_has_no_live_worker(self) -> None:
        cluster = cluster_of(offer("w1", 16), **WAITS)
        cluster.submit("a1", 4)
        assert reached(cluster.turn(scale("a1", 3, {"elsewhere": 99}))) == [("w1", "any")] * 2

    def test_requests_without_a_preference_wait_for_nothing(self) -> None:
        cluster = cluster_of(offer("w1", 4), offer("w2", 16), **WAITS)
        cluster.submit("a1", 4)
        events = cluster.turn(scale("a1", 4, {"h-w1": 4}))
        assert ("w2", "any") in reached(events)

    def test_preferences_that_are_not_stated_again_are_gone(self) -> None:
        cluster = cluster_of(offer("w1", 4), offer("w2", 16), **WAITS)
        cluster.submit("a1", 4)
        cluster.turn(scale("a1", 3, {"h-w1": 99}))
        assert cluster.state.apps["a1"].demand.wanted
        events = cluster.turn(scale("a1", 3))
        assert {locality for _, locality in reached(events)} == {None}
        assert cluster.state.apps["a1"].demand.wanted == ()

    def test_an_executor_that_is_lost_is_asked_for_again_near_the_tasks(self) -> None:
        cluster = cluster_of(offer("w1", 8, host="h1"), offer("w2", 8, host="h1"), offer("w3", 8, host="h3"), **WAITS)
        cluster.submit("a1", 4)
        cluster.turn(scale("a1", 3, {"h1": 99}))
        lost = next(one.worker for one in cluster.state.executors.values() if one.worker in ("w1", "w2"))
        events = cluster.turn(LoseWorker(worker=lost))
        assert {locality for _, locality in reached(events)} <= {"host"}
        assert len(cluster.state.apps["a1"].executors) + len(cluster.state.apps["a1"].demand.wanted) >= 3


class TestElastic:
    def test_an_elastic_app_adds_1_2_4_and_8_executors_while_its_backlog_lasts(self) -> None:
        cluster = cluster_of(*(offer(f"w{n}", 16) for n in range(8)))
        cluster.turn(elastic("e", 1, 20, tasks=1000))
        steps = [len(cluster.state.executors)]
        for _ in range(6):
            moment = cluster.state.timers.next(cluster.state.at)
            if moment is None:
                break
            wait(cluster, moment - cluster.state.at)
            steps.append(len(cluster.state.executors))
        assert steps == [1, 2, 4, 8, 16, 20]
        assert cluster.state.balance.requested.cores == 80
        assert cluster.state.balance.granted.cores == 80

    def test_a_step_that_a_late_turn_brings_is_taken_if_there_was_room_before_its_inputs(self) -> None:
        """Semantics L6."""
        cluster = cluster_of(offer("w1", 16))
        cluster.turn(elastic("e", 1, 3, tasks=1000))
        turn = Turn(cluster.state, cluster.state.at + 1700)
        turn.take(StartedExecutor(executor="e.0"))
        turn.settle()
        assert asked([entry.event for entry in turn.entries]) == [(2, 8)]

    def test_from_nothing_it_asks_for_one_at_once(self) -> None:
        cluster = cluster_of(offer("w1", 64))
        assert len(reached(cluster.turn(elastic("e", 0, 8, tasks=100)))) == 1
        wait(cluster, 1000)
        assert len(cluster.state.executors) == 2

    def test_it_asks_for_no_more_than_its_tasks_call_for(self) -> None:
        cluster = cluster_of(offer("w1", 64))
        cluster.turn(elastic("e", 1, 16, tasks=10))
        for _ in range(5):
            wait(cluster, 1000)
        assert len(cluster.state.executors) == 3
        assert cluster.state.timers.next(cluster.state.at) is None

    def test_the_demand_falls_with_the_backlog_and_growth_starts_over(self) -> None:
        cluster = cluster_of(offer("w1", 64))
        cluster.turn(elastic("e", 1, 16, tasks=100))
        for _ in range(3):
            wait(cluster, 1000)
        assert cluster.state.apps["e"].executor_limit == 8
        events = cluster.turn(ReportBacklog(executor="e.0", waiting=0, running=5))
        assert asked(events) == [(2, 8)]
        assert cluster.state.apps["e"].demand.next_step == 1
        assert asked(cluster.turn(ReportBacklog(executor="e.1", waiting=0, running=5))) == []

    def test_growth_starts_over_when_more_become_wanted_anew(self) -> None:
        """Semantics L6: the last step before was a whole one, of four."""
        cluster = cluster_of(offer("w1", 256))
        cluster.turn(elastic("e", 1, 60, tasks=32))
        assert [asked(wait(cluster, 1000)) for _ in range(4)] == [[(2, 8)], [(4, 16)], [(8, 32)], []]
        cluster.turn(StartedExecutor(executor="e.0"), ReportBacklog(executor="e.0", waiting=100, running=32))
        assert [asked(wait(cluster, 1000)) for _ in range(3)] == [[(9, 36)], [(11, 44)], [(15, 60)]]

    def test_idle_executors_are_returned_after_their_timeout_in_log_and_ledgers(self) -> None:
        cluster = cluster_of(offer("w1", 64), executor_idle_timeout_s=60)
        cluster.turn(elastic("e", 1, 4, tasks=100))
        for _ in range(2):
            wait(cluster, 1000)
        assert len(cluster.state.executors) == 4
        for n in range(4):
            cluster.turn(StartedExecutor(executor=f"e.{n}"))
        for n in range(1, 4):
            cluster.turn(ReportBacklog(executor=f"e.{n}", waiting=0, running=4, idle=True))
        idle = cluster.state.executors["e.1"].idle_since
        assert idle is not None
        moment = cluster.state.timers.next(cluster.state.at)
        assert moment == idle + 60_000
        assert wait(cluster, 59_000 - (cluster.state.at - idle)) == []
        (revoked,) = wait(cluster, moment - cluster.state.at)
        assert revoked == ExecutorRevoked(app="e", executor="e.1", worker="w1", reason="idle")
        assert (cluster.state.balance.requested.cores, cluster.state.claims.total.claimed.cores) == (4, 16)
        events = cluster.turn(EndedExecutor(executor="e.1", reason="killed"))
        assert [event.reason for event in events if isinstance(event, ExecutorRemoved)] == ["idle"]
        assert asked(events) == []
        assert cluster.state.claims.total.claimed.cores == 12

    def test_where_one_stays_that_was_to_leave_idle_ones_go_in_the_same_turn(self) -> None:
        cluster = cluster_of(offer("w1", 16), executor_idle_timeout_s=60, reclaim_patience_s=300, min_runtime_s=0)
        cluster.turn(elastic("e", 1, 4, tasks=100))
        for _ in range(2):
            wait(cluster, 1000)
        for n in range(4):
            cluster.turn(StartedExecutor(executor=f"e.{n}"))
        cluster.company("other")
        cluster.submit("a1", 8, company="other")
        staying = [one.id for one in cluster.state.executors.values() if one.status != "stopping"]
        for name in staying:
            cluster.turn(ReportBacklog(executor=name, waiting=0, running=4 * len(staying), idle=True))
        events = cluster.turn(KillApp(app="a1"), after_s=70)
        returned = [event.executor for event in events if isinstance(event, ExecutorRevoked) and event.reason == "idle"]
        assert returned == staying[: 4 - len(staying)] != []
        assert wait(cluster, 1) == []

    def test_an_executor_that_has_work_again_is_kept(self) -> None:
        cluster = cluster_of(offer("w1", 64), executor_idle_timeout_s=60)
        cluster.turn(elastic("e", 1, 2, tasks=100))
        wait(cluster, 1000)
        cluster.turn(ReportBacklog(executor="e.1", waiting=0, running=1, idle=True))
        cluster.turn(ReportBacklog(executor="e.1", waiting=0, running=2, idle=False))
        assert wait(cluster, 100_000) == []

    def test_what_the_least_number_counts_on_is_never_given_back(self) -> None:
        cluster = cluster_of(offer("w1", 64), executor_idle_timeout_s=1)
        cluster.turn(elastic("e", 2, 4, tasks=100))
        for n in range(2):
            cluster.turn(ReportBacklog(executor=f"e.{n}", waiting=0, running=0, idle=True))
        assert wait(cluster, 10_000) == []
        assert len(cluster.state.executors) == 2

    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            ({"cores": 8}, "leave out --cores"),
            ({"executor_limit": 3}, "leave out --cores"),
            ({"sizing": "one-per-worker"}, "have one size"),
            ({"sizing": "computed"}, "its sizing must be fixed, not 'computed'"),
        ],
    )
    def test_what_contradicts_it_is_refused(self, more: dict[str, Any], sentence: str) -> None:
        cluster = cluster_of(offer("w1", 16))
        with pytest.raises(InvalidCommand, match=sentence):
            cluster.turn(elastic("e", 1, 4, **more))

    @pytest.mark.parametrize(("least", "most"), [(3, 2), (0, 0), (-1, 2)])
    def test_bounds_that_make_no_sense_are_refused(self, least: int, most: int) -> None:
        cluster = cluster_of(offer("w1", 16))
        with pytest.raises(InvalidCommand, match=r"(MIN|MAX) of --elastic must be between|3:2 has its MIN above"):
            cluster.turn(elastic("e", least, most))

    def test_its_demand_can_be_stated_within_its_bounds_only(self) -> None:
        cluster = cluster_of(offer("w1", 64))
        cluster.turn(elastic("e", 1, 8, tasks=100))
        assert asked(cluster.turn(scale("e", 5))) == [(1, 4), (5, 20)]
        with pytest.raises(InvalidCommand, match="must be between 1 and 8"):
            cluster.turn(scale("e", 9))


class TestTasksThatPreferHosts:
    """Semantics L7."""

    def cluster(self) -> Cluster:
        return cluster_of(*(replace(offer(f"w{number}", 8), host=f"h{number}") for number in range(1, 5)))

    def submission(self) -> SubmitApp:
        near = {"h2": "0-3", "h4": "4-6,3"}
        return with_preferences(
            SubmitApp(app="a1", company="acme", user="ann", command=("true",), tasks=8, cores=8, near=near)
        )

    def test_the_first_demand_is_that_of_the_tasks(self) -> None:
        cluster = self.cluster()
        events = cluster.turn(self.submission())
        assert sorted(reached(events)) == [("w2", "host"), ("w4", "host")]
        app = cluster.state.apps["a1"]
        assert (app.demand.preferring_tasks, app.demand.preferred_hosts) == (7, {"h2": 4, "h4": 4})
        assert app.sizing.name() == "fixed"
        check(cluster.state)

    def test_a_grant_names_the_hosts_with_a_live_worker(self) -> None:
        cluster = self.cluster()
        cluster.turn(
            replace(self.submission(), near={"h2": "0", "h9": "1"}, prefer={"h2": 1, "h9": 1}, preferring_tasks=2)
        )
        grants = [
            Grant.model_validate_json(text) for each in all_grants(cluster.state).values() for text in each.values()
        ]
        assert [(one.near.host, one.near.tasks, one.near.racks) for one in grants if one.near is not None] == [
            (host, {"h2": "0", "h9": "1"}, {"h2": ""}) for host in sorted(one.near.host for one in grants if one.near)
        ]
        assert len(grants) == 2

    def test_the_demand_follows_the_tasks_that_wait_while_executors_are_missing(self) -> None:
        cluster = self.cluster()
        cluster.turn(self.submission())
        held = next(iter(cluster.state.executors))
        report = ReportBacklog(executor=held, waiting=3, running=1, preferring_tasks=3, prefer={"h2": 1, "h4": 2})
        assert cluster.turn(report) == [], "nothing is missing"
        gone = ReportBacklog(executor=held, waiting=2, running=1, preferring_tasks=2, prefer={"h4": 2})
        changed = [event for event in cluster.turn(gone) if isinstance(event, AppChanged)]
        assert [(event.preferring_tasks, event.preferred_hosts) for event in changed] == [(2, {"h4": 2})]
        assert cluster.turn(gone) == []
        assert cluster.turn(ReportBacklog(executor=held, waiting=9, running=1)) == [], "it says nothing of hosts"

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"near": {"h1": "8"}}, "task 8, which is to prefer host 'h1', does not exist; the app's tasks are 0 to 7"),
            ({"near": {"h1": "0,0"}}, "the task index 0 is listed twice"),
            ({"near": {"h1": "x"}}, "'x' is not part of a list of task indexes"),
            ({"array": "10-17"}, "the app's tasks are those of its array, 10-17"),
            ({"tasks": None}, "add --tasks N"),
            ({"prefer": {"h1": 3}}, "prefer and preferring_tasks of a submission follow from near; leave them out"),
        ],
    )
    def test_a_submission_names_tasks_that_there_are(self, changes: dict[str, Any], said: str) -> None:
        stated = replace(self.submission(), prefer={}, preferring_tasks=None)
        with pytest.raises(InvalidCommand, match=re.escape(said)):
            with_preferences(replace(stated, **changes))

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"prefer": {" h1": 1}}, "a preferred host must not start or end with a space"),
            ({"sizing": "one-per-worker"}, "leave out --sizing"),
            ({"executor_program": True, "tasks": None}, "use `fairlog scale`"),
            ({"task_resources": {"gpu": "1"}}, "give --executor-resource instead"),
            (
                {"tasks": 90_000, "cores": 90_000, "executor_cores": 1},
                "at most 10000 executors can have preferred hosts",
            ),
        ],
    )
    def test_only_executors_of_one_size_can_be_near_their_tasks(self, changes: dict[str, Any], said: str) -> None:
        cluster = cluster_of(admission="open")
        with pytest.raises(CommandRejected, match=re.escape(said)):
            cluster.turn(replace(self.submission(), **changes))

    def test_an_elastic_app_whose_tasks_prefer_hosts_grows_near_them(self) -> None:
        cluster = self.cluster()
        cluster.turn(replace(self.submission(), cores=None, elastic=(1, 2), executor_cores=4))
        assert cluster.state.apps["a1"].demand.backlog_executors == 2
        assert {held.locality for held in cluster.state.executors.values()} == {"host"}
