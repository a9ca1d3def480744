"""What failures lead to: excluded workers (W7), suspect workers (W8), commands that cannot be started (W9)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from scheduler.model.commands import (
    AddWindow,
    ConfigureCluster,
    DrainWorker,
    EndedDriver,
    EndedExecutor,
    KillExecutors,
    LoseWorker,
    RegisterCompany,
    RemoveWorker,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import (
    AppRemoved,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    WorkerCleared,
    WorkerProbed,
    WorkerSuspected,
)
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.state.records import lines, restored
from scheduler.rules.view.views import app, cluster, workers
from tests.property.given import Cluster, decides_nothing_more, shared, submission, worker

HOUR_S = 3600


def failed(executor: str, *, finished: bool = False, unstartable: str = "") -> EndedExecutor:
    return EndedExecutor(executor=executor, reason="failed", exit_code=1, finished=finished, unstartable=unstartable)


def on(events: Iterable[Event]) -> list[str]:
    """The workers of the executors that were granted."""
    return [event.worker for event in events if isinstance(event, ExecutorAllocated)]


def told(events: Iterable[Event]) -> list[Event]:
    """What was decided about suspect workers."""
    return [event for event in events if isinstance(event, WorkerSuspected | WorkerProbed | WorkerCleared)]


def one_executor(name: str = "a1", cores: int = 4, **fields: Any) -> SubmitApp:
    return replace(submission(name, cores), **fields)


class TestExcluded:
    """Semantics W7."""

    def test_a_replacement_prefers_another_worker_from_the_first_failure_on(self) -> None:
        cluster = shared(w1=4, w2=16)
        assert on(cluster.turn(one_executor())) == ["w2"]
        assert on(cluster.turn(failed("a1.0"))) == ["w1"]
        assert on(cluster.turn(failed("a1.1"))) == ["w2"]

    def test_other_apps_are_not_concerned(self) -> None:
        cluster = shared({"exclude_after": 1}, w1=4, w2=16)
        cluster.turn(one_executor())
        cluster.turn(failed("a1.0"))
        assert [each["excludedApps"] for each in to_builtins(workers(cluster.state))] == [
            [],
            [{"app": "a1", "ends": 1, "until": cluster.state.at + HOUR_S * 1000, "unstartable": False}],
        ]
        assert on(cluster.turn(one_executor("other"))) == ["w2"]

    def test_an_executor_that_ended_well_and_finished_a_task_clears_the_count(self) -> None:
        cluster = shared(w1=4)
        cluster.turn(one_executor())
        cluster.turn(failed("a1.0"))
        cluster.turn(EndedExecutor(executor="a1.1", reason="exited", exit_code=0, finished=True))
        assert cluster.state.apps["a1"].troubles == {}

    def test_an_app_that_no_other_live_worker_could_host_is_not_excluded(self) -> None:
        cluster = shared(w1=16, w2=4)
        cluster.turn(one_executor(cores=8, executor_cores=8, executor_memory_mb=1024))
        for number in range(5):
            assert on(cluster.turn(failed(f"a1.{number}"))) == ["w1"]
        assert on(cluster.turn(worker("w3", 8), failed("a1.5"))) == ["w3"]

    def test_its_driver_is_not_placed_there_either(self) -> None:
        cluster = shared({"exclude_after": 1, "spread_out_drivers": False}, w1=8, w2=8)
        driver: dict[str, Any] = {"driver": True, "driver_cores": 2, "supervise": True}
        cluster.turn(one_executor(cores=8, executor_cores=8, executor_memory_mb=1024, tasks=4, **driver))
        assert cluster.state.executors["a1.0"].worker == "w2"
        cluster.turn(failed("a1.0"))
        events = cluster.turn(EndedDriver(driver="a1.driver-0", reason="failed", exit_code=1))
        assert [event.worker for event in events if isinstance(event, DriverAllocated)] == ["w1"]

    def test_with_open_admission_or_without_a_limit_nobody_is_excluded(self) -> None:
        switched_off: list[dict[str, object]] = [{"admission": "open"}, {"exclude_after": 0}]
        for settings in switched_off:
            cluster = shared(settings, w1=16, w2=4)
            cluster.turn(one_executor())
            for number in range(4):
                assert on(cluster.turn(failed(f"a1.{number}"))) == ["w1"]
                cluster.turn(StartedExecutor(executor=f"a1.{number + 1}"))

    @pytest.mark.parametrize("placement", sorted(PLACEMENTS))
    def test_every_placement_keeps_an_excluded_app_off_its_worker(self, placement: str) -> None:
        cluster = shared({"placement": placement}, w1=8, w2=16)
        cluster.turn(one_executor("grows", 30, executor_memory_mb=1024), one_executor("fixed", 8, executor_cores=4))
        for name in ("grows", "fixed"):
            for _ in range(3):
                cluster.turn(
                    *(failed(each.id) for each in cluster.state.apps[name].executors.values() if each.worker == "w2")
                )
        for found in cluster.state.apps.values():
            kept = [name for name, trouble in found.troubles.items() if trouble.ends >= 2]
            assert not {each.worker for each in found.executors.values()} & {*kept} or len(kept) == 2

    def test_preferred_hosts_do_not_bring_an_app_back(self) -> None:
        cluster = shared({"locality_wait_host_ms": 0, "locality_wait_rack_ms": 0}, w1=8, w2=8)
        cluster.turn(
            one_executor(executor_cores=4, tasks=4),
        )
        cluster.turn(ScaleApp(app="a1", executors=1, prefer={"w1.example": 4}))
        for _ in range(3):
            [held] = cluster.state.apps["a1"].executors.values()
            cluster.turn(failed(held.id))
        [held] = cluster.state.apps["a1"].executors.values()
        assert held.worker == ("w2" if cluster.state.apps["a1"].troubles["w1"].ends > 1 else "w1")

    def test_a_changed_limit_counts_for_what_is_decided_next(self) -> None:
        cluster = shared(w1=4)
        cluster.turn(one_executor(), one_executor("b"))
        cluster.worker("w2", 4)
        cluster.turn(failed("a1.0"))
        cluster.turn(ConfigureCluster(settings={"exclude_s": 60, "exclude_after": 1}))
        cluster.check_replay()


QUICK: dict[str, object] = {"suspect_failures": 3, "exclude_after": 0}


def eight(**settings: object) -> Cluster:
    """One worker of 16 cores, which is tried first, and seven of 4."""
    offers = {f"w{number}": 16 if number == 1 else 4 for number in range(1, 9)}
    return shared({**QUICK, **settings}, **offers)


def home(cluster: Cluster, name: str) -> str:
    [held] = cluster.state.apps[name].executors.values()
    return held.worker


def fail(cluster: Cluster, name: str, after_s: int = 1) -> list[Event]:
    """Events of the abnormal end of the app's executor."""
    [held] = cluster.state.apps[name].executors.values()
    return cluster.turn(failed(held.id), after_s=after_s)


def suspected() -> tuple[Cluster, str, WorkerSuspected]:
    """A cluster just after its first suspicion, the worker, and the event."""
    cluster = eight()
    cluster.turn(one_executor("a"), one_executor("b"))
    assert [home(cluster, name) for name in "ab"] == ["w1", "w1"]
    assert told(fail(cluster, "a")) == told(fail(cluster, "b")) == []
    [event] = told(fail(cluster, "a"))
    assert isinstance(event, WorkerSuspected)
    return cluster, "w1", event


def more() -> list[SubmitApp]:
    """Apps that want more executors of 4 cores than the others of eight workers have room for."""
    fixed = {"executor_cores": 4, "executor_memory_mb": 1024}
    return [one_executor(f"more{number}", cores, **fixed) for number, cores in enumerate((16, 20))]


class TestSuspected:
    """Semantics W8."""

    def test_quick_failures_of_two_apps_make_a_worker_suspected(self) -> None:
        cluster, name, event = suspected()
        at = cluster.state.at
        assert event == WorkerSuspected(worker=name, executors=("a.0", "b.0", "a.1"), until=at + 60_000)
        assert home(cluster, "a") != name
        assert home(cluster, "b") == name, "what runs there goes on"
        assert told(fail(cluster, "b")) == []
        assert home(cluster, "b") != name
        [seen] = [each for each in to_builtins(workers(cluster.state)) if each["worker"] == name]
        assert seen["suspicion"]["executors"] == ["a.0", "b.0", "a.1"]
        assert seen["status"] == "alive"
        cluster.check_replay()

    def test_failures_of_one_app_do_not(self) -> None:
        cluster = eight()
        cluster.turn(one_executor("a"))
        assert [told(fail(cluster, "a")) for _ in range(6)] == [[]] * 6

    def test_failures_after_ten_seconds_do_not_count_and_those_before_running_do(self) -> None:
        for runs_s, suspects in ((9, True), (10, False)):
            cluster = eight()
            cluster.turn(one_executor("a"), one_executor("b"))
            fail(cluster, "a")
            fail(cluster, "b", after_s=100)
            cluster.turn(StartedExecutor(executor="a.1"), after_s=50)
            assert bool(told(fail(cluster, "a", after_s=runs_s))) == suspects

    def test_an_executor_that_ended_well_in_between_starts_the_count_anew(self) -> None:
        cluster = eight()
        cluster.turn(one_executor("a"), one_executor("b"), one_executor("well"))
        fail(cluster, "a")
        fail(cluster, "b")
        cluster.ended("well.0")
        assert told(fail(cluster, "a")) == []

    def test_failures_outside_the_window_do_not_count(self) -> None:
        cluster = eight()
        cluster.turn(one_executor("a"), one_executor("b"))
        fail(cluster, "a")
        fail(cluster, "b", after_s=300)
        assert told(fail(cluster, "a")) == []
        assert told(fail(cluster, "b")) != []

    def test_after_its_time_it_gets_one_executor_and_no_driver(self) -> None:
        cluster, name, event = suspected()
        cluster.turn(*more())
        owed = [found for found in cluster.state.waiting.values() if found.owed]
        assert cluster.state.workers[name].free.cores == 12
        assert owed
        wait_s = (event.until - cluster.state.at) // 1000
        assert told(cluster.turn(after_s=wait_s - 1)) == []
        events = cluster.turn(after_s=wait_s)
        assert told(events) == [WorkerProbed(worker=name)]
        assert on(events) == [name]
        cluster.turn(
            SubmitApp(app="d", company="acme", user="ann", driver=True, command=("true",)),
        )
        assert cluster.state.drivers == {}
        assert on(cluster.turn()) == []

    def test_a_probe_that_runs_for_ten_seconds_clears_it(self) -> None:
        cluster, name, _ = suspected()
        cluster.turn(*more())
        [granted] = [event for event in cluster.turn(after_s=60) if isinstance(event, ExecutorAllocated)]
        cluster.turn(StartedExecutor(executor=granted.executor), after_s=20)
        at = cluster.state.at
        assert cluster.state.timers.next(at) == at + 10_000
        assert told(cluster.turn(after_s=9)) == []
        events = cluster.turn(after_s=10)
        assert told(events) == [WorkerCleared(worker=name, reason="ran")]
        assert on(events) == [name, name]
        assert not cluster.state.indexes.suspects

    def test_a_probe_that_ends_well_clears_it(self) -> None:
        cluster, name, _ = suspected()
        cluster.turn(*more())
        [granted] = [event for event in cluster.turn(after_s=60) if isinstance(event, ExecutorAllocated)]
        events = cluster.ended(granted.executor)
        assert told(events) == [WorkerCleared(worker=name, reason="ended-well")]

    def test_a_probe_that_fails_doubles_the_time_up_to_an_hour(self) -> None:
        cluster, _, event = suspected()
        cluster.turn(*more())
        waited = [(event.until - cluster.state.at + 1000) // 1000]
        for times in range(2, 10):
            wait_s = waited[-1]
            [granted] = [each for each in cluster.turn(after_s=wait_s) if isinstance(each, ExecutorAllocated)]
            [again] = told(cluster.turn(failed(granted.executor)))
            assert isinstance(again, WorkerSuspected)
            assert (again.times, again.executors) == (times, (granted.executor,))
            waited.append((again.until - cluster.state.at) // 1000)
        assert waited == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
        cluster.check_replay()

    def test_a_probe_that_fails_late_clears_it_and_a_stopped_one_is_followed(self) -> None:
        cluster, name, _ = suspected()
        cluster.turn(*more())
        [granted] = [event for event in cluster.turn(after_s=60) if isinstance(event, ExecutorAllocated)]
        cluster.turn(KillExecutors(app=granted.app, executors=(granted.executor,)))
        assert not cluster.state.indexes.probes
        [again] = on(cluster.turn(EndedExecutor(executor=granted.executor, reason="killed", exit_code=143)))
        assert again == name
        probe = cluster.state.indexes.suspects.members[name].suspicion
        assert probe is not None
        cluster.turn(StartedExecutor(executor=probe.probe))
        assert told(cluster.turn(failed(probe.probe), after_s=10)) == [WorkerCleared(worker=name, reason="ran")]

    def test_never_more_than_a_quarter_of_the_live_workers_are_suspected(self) -> None:
        cluster, _, _ = suspected()
        for number in (2, 3, 4, 5):
            cluster.turn(RemoveWorker(worker=f"w{number}", force=True))
        assert len(cluster.state.indexes.suspects) == 1
        events = cluster.turn(RemoveWorker(worker="w6", force=True))
        assert told(events) == [WorkerCleared(worker="w1", reason="quarter")]

    def test_those_that_close_for_a_window_are_not_live_either(self) -> None:
        cluster, _, _ = suspected()
        begin = cluster.state.at + 60_000
        closing = tuple(f"w{number}" for number in range(2, 7))
        cluster.turn(AddWindow(window="x", workers=closing, begin=begin, end=begin + 60_000, notice_s=40))
        events = cluster.turn(after_s=25)
        assert told(events) == [WorkerCleared(worker="w1", reason="quarter")]
        decides_nothing_more(cluster.state)

    def test_a_small_cluster_suspects_nobody(self) -> None:
        cluster = shared(QUICK, w1=16, w2=4, w3=4)
        cluster.turn(one_executor("a"), one_executor("b"))
        assert [told(fail(cluster, name)) for name in "abab"] == [[]] * 4

    @pytest.mark.parametrize("how", [{"admission": "open"}, {"suspect_failures": 0}])
    def test_switching_it_off_clears_everybody(self, how: dict[str, object]) -> None:
        cluster, name, _ = suspected()
        cluster.turn(ConfigureCluster(settings={"suspect_failures": None}))
        assert cluster.state.indexes.suspects.places.keys() == {name}
        events = cluster.turn(ConfigureCluster(settings=how))
        assert told(events) == [WorkerCleared(worker=name, reason="off")]

    def test_a_worker_that_drains_or_comes_back_is_not_suspected(self) -> None:
        for leave in (DrainWorker(worker="w1"), LoseWorker(worker="w1")):
            cluster, name, _ = suspected()
            cluster.turn(leave)
            assert not cluster.state.indexes.suspects
            cluster.turn(UndrainWorker(worker=name) if isinstance(leave, DrainWorker) else worker(name, 16))
            assert cluster.state.workers[name].suspicion is None
            assert cluster.state.workers[name].quick_ends == ()

    def test_a_snapshot_knows_the_suspect_workers_and_their_probes(self) -> None:
        cluster, _, _ = suspected()
        for after_s in (1, 60):
            cluster.turn(one_executor(f"more{after_s}", 32), after_s=after_s)
            again = restored(lines(cluster.state))
            assert again.digest() == cluster.state.digest()
            assert again.timers.table == cluster.state.timers.table
            assert again.indexes.suspects.places.keys() == cluster.state.indexes.suspects.places.keys()
            assert again.indexes.probes.places.keys() == cluster.state.indexes.probes.places.keys()

    def test_status_names_the_suspect_worker(self) -> None:
        state = suspected()[0].state
        [seen] = [each["suspicion"] for each in to_builtins(cluster(state))["workers"] if each["suspicion"]]
        assert (seen["times"], seen["until"] - seen["since"], seen["onProbe"]) == (1, 60_000, False)


class TestUnstartable:
    """Semantics W9."""

    WHY = "command 'prog' does not exist on worker w1"

    def test_the_app_goes_on_on_another_worker_and_is_excluded_at_once(self) -> None:
        both: list[dict[str, object]] = [{}, {"admission": "open"}]
        for settings in both:
            cluster = shared(settings, w1=16, w2=4)
            cluster.turn(one_executor())
            assert on(cluster.turn(failed("a1.0", unstartable=self.WHY))) == ["w2"]
            assert [each["worker"] for each in to_builtins(app(cluster.state, app="a1"))["excludedWorkers"]] == ["w1"]
            assert on(cluster.ended("a1.1")) == ["w2"]

    def test_it_fails_when_no_other_worker_could_host_it(self) -> None:
        cluster = shared(w1=16, w2=4)
        cluster.turn(one_executor(cores=8, executor_cores=8, executor_memory_mb=1024))
        events = cluster.turn(failed("a1.0", unstartable=self.WHY))
        assert AppRemoved(app="a1", reason="failed", detail=self.WHY) in events

    def test_it_fails_once_every_worker_that_could_host_it_has_said_so(self) -> None:
        cluster = shared(w1=16, w2=16, w3=2)
        cluster.turn(one_executor())
        for _ in range(2):
            assert cluster.state.apps["a1"].ended is None
            [held] = cluster.state.apps["a1"].executors.values()
            cluster.turn(failed(held.id, unstartable=self.WHY))
        assert cluster.state.apps["a1"].ended == "failed"

    def test_where_all_are_excluded_one_that_could_start_it_comes_first(self) -> None:
        cluster = shared({"exclude_after": 1}, w1=16, w2=4)
        cluster.turn(one_executor())
        assert on(cluster.turn(failed("a1.0", unstartable=self.WHY))) == ["w2"]
        assert on(cluster.turn(failed("a1.1"))) == ["w2"]

    def test_a_task_that_finished_there_later_ends_it(self) -> None:
        cluster = shared(w1=16, w2=4)
        cluster.turn(one_executor())
        cluster.turn(failed("a1.0", unstartable=self.WHY))
        assert on(cluster.turn(KillExecutors(app="a1", executors=("a1.1",)), after_s=HOUR_S)) == []
        assert on(cluster.turn(EndedExecutor(executor="a1.1", reason="killed", exit_code=143))) == ["w1"]
        cluster.turn(EndedExecutor(executor="a1.2", reason="failed", exit_code=1, finished=True))
        assert cluster.state.apps["a1"].troubles["w1"].unstartable is False

    def test_only_an_abnormal_end_says_that_a_command_cannot_be_started(self) -> None:
        cluster = shared(w1=16)
        cluster.turn(one_executor())
        with pytest.raises(InvalidCommand, match="must end with reason failed, not exited"):
            cluster.turn(EndedExecutor(executor="a1.0", reason="exited", unstartable="no"))

    def test_one_that_was_told_to_stop_excludes_nobody(self) -> None:
        cluster = shared(w1=16)
        cluster.turn(one_executor())
        cluster.turn(KillExecutors(app="a1", executors=("a1.0",)))
        cluster.turn(failed("a1.0", unstartable=self.WHY))
        assert cluster.state.apps["a1"].troubles == {}
        assert cluster.state.apps["a1"].ended is None


def test_the_back_off_of_retries_is_that_of_the_submission() -> None:
    """Semantics W10."""
    cluster = shared({"retry_backoff_s": 7}, w1=16)
    cluster.turn(one_executor("a1", retries=3), one_executor("a2"))
    cluster.turn(ConfigureCluster(settings={"retry_backoff_s": 1}))
    assert [cluster.state.apps[name].spec.retry_backoff_s for name in ("a1", "a2")] == [7, 0]


def test_a_black_hole_keeps_no_more_than_its_share_of_failures() -> None:
    """A host on which everything fails at once, and which is always the emptiest one, is left alone (W7, W8)."""
    cluster = Cluster({"suspect_failures": 5})
    for company in ("acme", "initech"):
        cluster.turn(RegisterCompany(company=company))
    for number in range(8):
        cluster.worker(f"w{number}", 32 if number == 0 else 8)
    cluster.turn(*(one_executor(f"a{number}", 4, company=("acme", "initech")[number % 2]) for number in range(8)))
    failures = 0
    for _ in range(120):
        there = [each.id for each in cluster.state.workers["w0"].executors.values()]
        failures += len(there)
        cluster.turn(*map(failed, there))
        for held in [*cluster.state.executors.values()]:
            if held.worker != "w0" and held.status == "starting":
                cluster.turn(StartedExecutor(executor=held.id), after_s=0)
    assert failures <= 16, "two of each app at most"
    assert all(found.ended is None for found in cluster.state.apps.values())
    assert {home(cluster, f"a{number}") for number in range(8)} & {"w0"} == set()
