"""Windows: nothing runs on a worker past the beginning of one, or of nobody but a company (semantics W14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.json import decode
from msgspec.structs import replace

from scheduler.model.commands import (
    AddWindow,
    ConfigureCluster,
    DrainWorker,
    EndedDriver,
    EndedExecutor,
    ExtendApp,
    LoseWorker,
    RegisterCompany,
    RegisterKind,
    RemoveCompany,
    RemoveWindow,
    RemoveWorker,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import CommandRejected, InvalidCommand, UnknownCompany, UnknownWorker
from scheduler.model.events import (
    AppExpired,
    AppRemoved,
    AppRequeued,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    ExecutorRevoked,
    KeyChanged,
    MasterElected,
    RevocationWithdrawn,
    WindowRemoved,
    WorkerChanged,
)
from scheduler.model.resources import Resources
from scheduler.rules.command.decide import decide
from scheduler.rules.entities.fleet import Fleet
from scheduler.rules.index.closings import SETTLE_MS
from scheduler.rules.simulate import run_scenario
from scheduler.rules.view.assignments import all_grants
from tests.property.given import Cluster, decides_nothing_more, submission, worker
from tests.unit.recorded import facts
from witness.audit.audit import audit
from witness.pending_reasons import waits_for
from witness.whatif import Rules, replayed

GRACE_S = 5
MINUTE = 60_000


def cluster(*workers: str, **settings: Any) -> Cluster:
    """One of companies a and b and of workers of 8 cores."""
    made = Cluster({"kill_grace_s": GRACE_S, **settings})
    made.turn(RegisterCompany(company="a"), RegisterCompany(company="b"), *[worker(name, 8) for name in workers])
    return made


def window(made: Cluster, *workers: str, after: int = MINUTE, **fields: Any) -> AddWindow:
    """One of a minute that begins so long (ms) after now, with a notice of 20 s."""
    begin = made.state.at + 1000 + after
    stated: dict[str, Any] = {"window": "x1", "end": begin + MINUTE, "notice_s": 20, **fields}
    return AddWindow(workers=workers, begin=begin, **stated)


def asking(app: str, cores: int = 8, company: str = "a", **fields: Any) -> SubmitApp:
    return replace(submission(app, cores, company=company), **fields)


def places(events: Sequence[Event]) -> list[str]:
    """The workers on which something was granted."""
    return sorted({each.worker for each in events if isinstance(each, ExecutorAllocated | DriverAllocated)})


def of(events: Sequence[Event], kind: type[Event]) -> list[Any]:
    return [each for each in events if isinstance(each, kind)]


def test_whoever_runs_is_told_in_time_and_the_worker_is_back_by_itself() -> None:
    made = cluster("w1")
    made.turn(asking("a1"))
    for executor in made.state.executors:
        made.turn(StartedExecutor(executor=executor))
    begin = made.turn(window(made, "w1", reason="new disks"))[0].begin  # type: ignore[union-attr]  # it is one
    left_s = (begin - made.state.at) // 1000
    assert made.turn(after_s=left_s - 21) == [], "nobody is told before the notice"
    told = made.turn(after_s=left_s - 20)
    [closed] = of(told, WorkerChanged)
    assert (closed.status, closed.window, closed.reason) == ("draining", "x1", "window x1: new disks")
    deadline = begin - 1000 * GRACE_S - SETTLE_MS
    assert [(each.reason, each.window, each.deadline) for each in of(told, ExecutorRevoked)] == [
        ("reclaimed", "x1", deadline)
    ]
    granted = decode(next(iter(all_grants(made.state)["w1"].values())))
    assert granted["leaving"] == {"deadline": deadline, "firm": True, "grace_s": GRACE_S, "signal": ""}
    made.turn(asking("b1", 4, "b"))
    ended = made.turn(*[EndedExecutor(executor=each, reason="killed") for each in list(made.state.executors)])
    assert [each.reason for each in ended if each.__class__.__name__ == "ExecutorRemoved"] == ["window"]  # type: ignore[union-attr]
    assert made.state.apps["a1"].ended is None
    assert not made.state.executors
    back = made.turn(after_s=120)
    assert [each.window for each in of(back, WindowRemoved)] == ["x1"]
    assert [each.status for each in of(back, WorkerChanged)] == ["alive"]
    assert places(back) == ["w1"]
    assert not made.state.planned
    decides_nothing_more(made.state)
    made.check_replay()
    assert audit(facts(made)) == []


def test_an_app_whose_maximum_runtime_passes_the_beginning_goes_elsewhere_or_waits() -> None:
    made = cluster("w1", "w2")
    made.turn(window(made, "w1"))
    assert places(made.turn(asking("a1", 4, max_runtime_s=300))) == ["w2"]
    assert places(made.turn(asking("a2", 4, max_runtime_s=30))) == ["w1"]
    made.turn(asking("a3", 8, "b", max_runtime_s=300))
    assert {each.worker for each in made.state.apps["a3"].executors.values()} == {"w2"}
    assert places(made.turn(asking("a4", 4, "b"))) == ["w1"], "what has no limit is lent the room until then"
    decides_nothing_more(made.state)
    made.check_replay()


def test_room_is_lent_to_the_next_of_a_user_whose_first_a_window_keeps_out() -> None:
    made = cluster("w1", "w2")
    made.turn(window(made, "w1", "w2"))
    made.turn(asking("b1", 8, "b", max_runtime_s=300))
    events = made.turn(*[asking(f"a{number}", max_runtime_s=300) for number in range(3)])
    assert places(events) == []
    assert places(made.turn(asking("a3", max_runtime_s=10))) == ["w1", "w2"]
    decides_nothing_more(made.state)
    made.check_replay()
    assert audit(facts(made)) == []


@pytest.mark.parametrize("after_s", [0, 45])
def test_a_longer_grace_is_refused_with_which_something_would_outlive_the_beginning(after_s: int) -> None:
    made = cluster("w1")
    made.turn(asking("a1"))
    made.turn(window(made, "w1"))
    made.turn(after_s=after_s)
    left_s = (made.state.windows["x1"].begin - made.state.at) // 1000
    fits = left_s - SETTLE_MS // 1000
    with pytest.raises(InvalidCommand, match=r"kill_grace_s .* is too long before the window 'x1', which begins in"):
        decide(made.state, ConfigureCluster(settings={"kill_grace_s": fits + 1}))
    made.turn(ConfigureCluster(settings={"kill_grace_s": fits - 1}))
    made.turn(ConfigureCluster(settings={"kill_grace_s": 1}))
    for executor in list(made.state.executors):
        made.turn(EndedExecutor(executor=executor, reason="killed"))
    made.turn(after_s=left_s)
    made.turn(ConfigureCluster(settings={"kill_grace_s": 600}))
    assert audit(facts(made)) == []


def test_a_longer_runtime_moves_nobody_and_closes_the_worker_to_the_next_executor() -> None:
    made = cluster("w1")
    made.turn(window(made, "w1"))
    made.turn(asking("a1", 4, max_runtime_s=30))
    executor = next(iter(made.state.executors))
    assert made.turn(ExtendApp(app="a1", by_s=600))[1:] == []
    assert places(made.turn(EndedExecutor(executor=executor, reason="failed"))) == []
    assert places(made.turn(RemoveWindow(window="x1"))) == ["w1"]


def test_a_window_that_is_off_lets_stay_who_was_told_and_has_time_left() -> None:
    made = cluster("w1")
    made.turn(asking("a1"))
    made.turn(window(made, "w1"))
    assert len(of(made.turn(after_s=40), ExecutorRevoked)) == 1
    events = made.turn(RemoveWindow(window="x1"))
    assert [type(each) for each in events] == [WindowRemoved, WorkerChanged, RevocationWithdrawn]
    assert {each.status for each in made.state.executors.values()} == {"starting"}
    assert made.state.workers["w1"].status == "alive"
    made.check_replay()


def test_an_app_whose_driver_is_in_the_way_is_put_back_or_ends_if_it_may_not() -> None:
    made = cluster("w1", "w2")
    driven: dict[str, Any] = {"driver": True, "driver_cores": 1, "driver_memory_mb": 1024}
    made.turn(asking("a1", 4, **driven), asking("a2", 4, "b", **driven, no_requeue=True))
    home = {made.state.apps[name].driver.worker for name in ("a1", "a2")}  # type: ignore[union-attr]
    made.turn(window(made, *home))
    events = made.turn(after_s=50)
    assert [(each.app, each.window) for each in of(events, AppRequeued)] == [("a1", "x1")]
    [removed] = of(events, AppRemoved)
    assert (removed.app, removed.reason) == ("a2", "killed")
    assert removed.detail == f"its driver ran on worker {min(home)}, which closes for the window x1"
    made.turn(
        *[EndedExecutor(executor=each, reason="killed") for each in list(made.state.executors)],
        *[EndedDriver(driver=each, reason="killed") for each in list(made.state.drivers)],
    )
    assert made.state.apps["a1"].driver is None or made.state.apps["a1"].driver.worker not in home
    decides_nothing_more(made.state)
    assert audit(facts(made)) == []


def test_who_asked_for_a_longer_grace_is_told_so_much_sooner() -> None:
    made = cluster("w1", "w2")
    made.turn(asking("a1", 4, grace_s=40), window(made, "w1", "w2"))
    begin = made.state.windows["x1"].begin
    told = made.turn(after_s=(begin - made.state.at) // 1000 - 45)
    assert [each.deadline for each in of(told, ExecutorRevoked)] == [begin - 45_000]
    assert {each.status for each in made.state.workers.values()} == {"alive"}, "others may go on until the notice"
    assert places(made.turn(asking("a2", 4, "b", grace_s=40))) == []
    assert places(made.turn(asking("a3", 4, "b"))) != []


def test_a_worker_that_comes_back_within_its_window_takes_nothing_before_the_end() -> None:
    made = cluster("w1", "w2")
    made.turn(window(made, "w1"))
    made.turn(after_s=70)
    made.turn(LoseWorker(worker="w1", last_seen=0))
    made.turn(asking("a1", 16))
    assert {each.worker for each in made.state.executors.values()} == {"w2"}
    again = made.turn(worker("w1", 8))
    assert [(each.worker, each.status) for each in of(again, WorkerChanged)] == [("w1", "draining")]
    assert places(again) == []
    assert places(made.turn(after_s=60)) == ["w1"]


def test_what_an_operator_does_with_a_worker_in_its_window_stays() -> None:
    made = cluster("w1", "w2", "w3")
    made.turn(window(made, "w1", "w2", "w3"))
    made.turn(after_s=50)
    with pytest.raises(InvalidCommand, match=r"'w1' drains for the window 'x1'; `fairlog window remove x1` ends"):
        made.turn(UndrainWorker(worker="w1"))
    assert made.turn(DrainWorker(worker="w1", unwell=True)) == []
    made.turn(DrainWorker(worker="w1", reason="a fan is broken"))
    made.turn(asking("a1", 4))
    made.turn(RemoveWorker(worker="w2", force=True))
    made.turn(UndrainWorker(worker="w1"))
    assert made.state.workers["w1"].window == "x1", "it drains for the window again, at once"
    made.turn(DrainWorker(worker="w1"))
    made.turn(after_s=100)
    assert {name: each.status for name, each in made.state.workers.items()} == {"w1": "draining", "w3": "alive"}
    made.check_replay()


def test_in_a_window_for_a_company_only_its_apps_run_there() -> None:
    made = cluster("w1", "w2")
    made.turn(asking("b1", 64, "b"))
    made.turn(window(made, "w1", company="a"))
    made.turn(asking("a1", 8, max_runtime_s=600))
    told = made.turn(after_s=60)
    assert {(each.app, each.worker) for each in of(told, ExecutorRevoked) if each.window} == {("b1", "w1")}
    assert not of(told, WorkerChanged)
    gone = [each for each in made.state.executors.values() if each.status == "stopping"]
    events = made.turn(*[EndedExecutor(executor=each.id, reason="killed") for each in gone])
    assert {each.app for each in of(events, ExecutorAllocated) if each.worker == "w1"} == {"a1"}
    assert {each.app for each in made.state.executors.values() if each.worker == "w1"} == {"a1"}
    after = made.turn(*[EndedExecutor(executor=each, reason="failed") for each in made.state.apps["a1"].executors])
    assert all(each.app == "a1" for each in of(after, ExecutorAllocated) if each.worker == "w1")
    with pytest.raises(CommandRejected):
        made.turn(RemoveCompany(company="a"))
    made.turn(after_s=120)
    assert not made.state.windows
    assert of(made.turn(asking("b2", 4, "b")), ExecutorAllocated) or made.state.apps["b1"].granted.cores
    made.check_replay()
    assert audit(facts(made)) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"end": 1}, "the window ends before it begins; give --to a later time than --from"),
        ({"begin": 500}, "the window would begin in the past; give --from a later time; `fairlog drain` is for now"),
        ({"begin": 1 << 60, "end": 1 << 61}, "the end of the window, in ms, must be between 1 and"),
        ({"workers": ()}, "a window names at least one worker; give --workers NAMES, or all"),
        ({"notice_s": 9}, "the notice of a window, in seconds, must be between 10 and 604800, not 9"),
        ({"window": "a b"}, "the name of the window must be 1 to 64 letters"),
        ({"window": "old"}, "there is a window 'old' already; choose another name"),
        ({"reason": "a\nb"}, "the reason must not contain control characters"),
        (
            {"workers": ("w2", "w1")},
            (
                "the window 'x1' overlaps the window 'old' on worker w1; choose another time or other workers, or "
                "`fairlog window remove old` first"
            ),
        ),
    ],
)
def test_a_window_that_cannot_be_is_refused_and_changes_nothing(changes: dict[str, Any], sentence: str) -> None:
    made = cluster("w1", "w2")
    made.turn(window(made, "w1", window="old"))
    with pytest.raises(InvalidCommand) as refused:
        made.turn(replace(window(made, "w2"), **changes))
    assert str(refused.value).startswith(sentence)
    with pytest.raises(UnknownWorker):
        made.turn(window(made, "w9"))
    with pytest.raises(UnknownCompany):
        made.turn(window(made, "w2", company="c"))
    with pytest.raises(InvalidCommand, match="there is no window 'x9'; `fairlog window list` lists the windows"):
        made.turn(RemoveWindow(window="x9"))


def test_a_window_that_begins_too_soon_is_refused_with_who_needs_how_long() -> None:
    made = cluster("w1", "w2")
    made.turn(asking("a1", 8, grace_s=100), asking("a2", 8, "b"))
    there = next(iter(made.state.apps["a1"].executors.values())).worker
    with pytest.raises(InvalidCommand) as refused:
        made.turn(window(made, there))
    assert str(refused.value) == (
        "the window begins in 60 s, and app 'a1' there may need 105 s to end; give --from a later time"
    )
    free = cluster("w1")
    with pytest.raises(InvalidCommand, match="the window begins in 9 s, and what runs there may need 10 s to end"):
        free.turn(window(free, "w1", after=9000))
    free.turn(window(free, "w1", after=10_000))
    assert made.turn(window(made, there, company="a"))


def test_other_rules_and_scenarios_heed_windows() -> None:
    made = cluster("w1")
    made.turn(window(made, "w1"))
    made.turn(asking("a1", 8))
    made.turn(after_s=40)
    assert replayed(facts(made), Rules(settings={}))["firstDifference"] is None
    end = {"op": "window", "window": "x1", "workers": ["w1"], "begin": 60_000, "end": 90_000, "notice_s": 40}
    scenario = [
        {"op": "company", "company": "a"},
        {"op": "worker", "worker": "w1", "cores": 8, "memory_mb": 65536},
        end,
        {"op": "submit", "app": "a1", "company": "a", "cores": 8},
        {"op": "submit", "app": "a2", "company": "a", "cores": 4, "at": 100_000},
    ]
    decisions = run_scenario({"settings": {"kill_grace_s": GRACE_S}, "commands": scenario}, timed=True)["decisions"]
    ended = [each["at"] for each in decisions if each.get("reason") == "window"]
    assert ended == [50_000]
    assert [each["at"] for each in decisions if "closed" in each or "opened" in each] == [20_000, 90_000]
    assert [each["at"] for each in decisions if each.get("granted") == "a1"][1:] == [90_000]


def test_windows_of_a_worker_follow_each_other() -> None:
    made = cluster("w1")
    made.turn(window(made, "w1"))
    first = made.state.windows["x1"]
    made.turn(replace(window(made, "w1", window="x2"), begin=first.end, end=first.end + MINUTE))
    made.turn(asking("a1", 8))
    made.turn(after_s=50)
    made.turn(*[EndedExecutor(executor=each, reason="killed") for each in list(made.state.executors)])
    events = made.turn(after_s=(first.end - made.state.at) // 1000)
    assert [(each.status, each.window) for each in of(events, WorkerChanged)] == [("alive", "x1"), ("draining", "x2")]
    assert places(events) == []
    assert places(made.turn(after_s=60)) == ["w1"]


def test_an_executor_that_leaves_for_a_need_is_told_again_before_a_window() -> None:
    made = cluster("w1", reclaim_patience_s=600, min_runtime_s=0)
    made.turn(asking("b1", 8, "b"))
    made.turn(asking("a1", 8))
    leaving = [each for each in made.state.executors.values() if each.status == "stopping"]
    assert len(leaving) == 1
    made.turn(window(made, "w1"))
    told = made.turn(after_s=50)
    assert [each.executor for each in of(told, ExecutorRevoked)] == ["b1.0"]
    assert not of(told, RevocationWithdrawn)
    assert {each.revoked for each in made.state.executors.values()} == {"window"}
    assert not made.state.holds
    made.check_replay()


def test_what_has_no_limit_goes_where_no_window_comes_then_where_one_comes_last() -> None:
    made = cluster("w1", "w2", "w3", "w4", "w5")
    made.turn(window(made, "w5"))
    made.turn(window(made, "w4", window="x2", after=2 * MINUTE))
    made.turn(window(made, "w3", window="x3", after=3 * MINUTE), window(made, "w1", window="x4", company="b"))
    driven: dict[str, Any] = {"driver": True, "driver_cores": 8, "driver_memory_mb": 1024, "tasks": 0}
    assert places(made.turn(asking("a1", 0, **driven, no_requeue=True))) == ["w2"], "the first one by id is w1"
    order = [places(made.turn(asking(f"b{number}", 8, "b", executor_cores=8))) for number in range(4)]
    assert order == [["w1"], ["w3"], ["w4"], ["w5"]], "the window for b keeps no app of b out"
    decides_nothing_more(made.state)
    assert audit(facts(made)) == []


def test_a_window_comes_after_the_kinds_that_an_executor_does_not_need() -> None:
    made = cluster("w2")
    made.turn(RegisterKind(kind="gpu"), replace(worker("w1", 8), resources={"gpu": ("0",)}), window(made, "w2"))
    assert places(made.turn(asking("a1", 4))) == ["w2"], "the worker with a GPU comes last all the same"
    made.turn(window(made, "w1", window="x2", after=2 * MINUTE))
    assert places(made.turn(asking("a2", 4, max_runtime_s=10))) == ["w2"]


@pytest.mark.parametrize("placement", ["spread", "pack", "classic-spread", "classic-pack"])
def test_no_placement_grants_on_workers_that_windows_close(placement: str) -> None:
    made = cluster("w1", "w2", "w3", placement=placement)
    made.turn(window(made, "w1"), window(made, "w2", window="x2", company="b"))
    assert places(made.turn(asking("a1", 4, max_runtime_s=300))) == ["w3"]
    made.turn(asking("a2", 16, max_runtime_s=300))
    assert {each.worker for each in made.state.executors.values()} == {"w3"}
    assert "w2" in places(made.turn(asking("b1", 8, "b", max_runtime_s=300)))
    assert not made.state.workers["w1"].executors
    decides_nothing_more(made.state)
    assert audit(facts(made)) == []


def test_an_app_with_a_limit_moves_no_worker_in_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what it costs does not grow with the workers that windows close to it."""
    made = cluster(*[f"w{number}" for number in range(20)])
    made.turn(window(made, *[f"w{number}" for number in range(19)]))
    moved: list[str] = []
    move = Fleet.move

    def noted(self: Fleet, name: str, before: Resources, after: Resources) -> None:
        moved.append(name)
        move(self, name, before, after)

    monkeypatch.setattr(Fleet, "move", noted)
    made.turn(asking("a1", 4, max_runtime_s=300), asking("b1", 4, "b", max_runtime_s=300))
    assert set(moved) == {"w19"}


def test_entitlements_heed_no_window_that_has_not_closed_its_workers() -> None:
    made = cluster("w1", "w2", reclaim_patience_s=600, min_runtime_s=0)
    before = made.state.fleet.rooms(), made.state.fleet.offers()
    made.turn(window(made, "w1"))
    assert (made.state.fleet.rooms(), made.state.fleet.offers()) == before
    made.turn(asking("b1", 16, "b"))
    made.turn(asking("a1", 8, max_runtime_s=300))
    assert {target.worker for target in made.state.holds.values()} == {"w2"}, "only there it may have room"
    made.turn(RemoveWindow(window="x1"))
    assert not made.state.fleet.with_class


def test_explain_says_how_many_workers_a_window_excludes() -> None:
    made = cluster("w1", "w2", "w3", "w4", reclaim_patience_s=600, min_runtime_s=0)
    made.turn(asking("b1", 32, "b"))
    made.turn(window(made, "w1", "w2"))
    made.turn(asking("a1", 8, max_runtime_s=300), asking("a2", 4))
    found = waits_for(made.state, made.state.apps["a1"])
    assert found is not None
    assert found.cause == "need"
    text, told = found.tell()
    planned = made.state.windows["x1"]
    span = "from 1970-01-01 00:01:04.000Z to 1970-01-01 00:02:04.000Z"
    assert text.endswith(f"; of 4 workers, window x1 {span} excludes 2"), text
    assert told["windows"] == [
        {"window": "x1", "begin": planned.begin, "end": planned.end, "company": None, "excludes": 2}
    ]
    unlimited = waits_for(made.state, made.state.apps["a2"])
    assert unlimited is not None
    assert "window" not in unlimited.tell()[0], "it may still start there"
    made.turn(after_s=45)
    assert [each.status for each in made.state.workers.values()].count("draining") == 2
    unlimited = waits_for(made.state, made.state.apps["a2"])
    assert unlimited is not None
    assert unlimited.tell()[0].endswith(f"; of 4 workers, window x1 {span} excludes 2")


def test_the_same_rules_decide_the_same_where_nobody_served_at_a_windows_end() -> None:
    """What the log's masters sign is in no other log, and lets nobody think that it decides otherwise."""
    made = cluster("w1")
    signing = made.begin()
    signing.record(KeyChanged(key="k1", public="00"))
    signing.settle()
    made._note(signing)
    made.turn(window(made, "w1"), asking("a1", 8))
    made.turn(after_s=45)
    taking_over = made.begin(after_s=600)
    taking_over.record(MasterElected(master="another"))
    taking_over.settle()
    made._note(taking_over)
    assert not made.state.windows
    made.turn(asking("b1", 8, "b"))
    assert replayed(facts(made), Rules(settings={}))["firstDifference"] is None


def test_who_leaves_for_a_need_and_has_no_time_left_is_told_of_no_window() -> None:
    made = cluster("w1", "w2", reclaim_patience_s=600, min_runtime_s=0)
    made.turn(asking("b1", 16, "b", max_runtime_s=100, executor_cores=8, grace_s=300))
    for executor in list(made.state.executors):
        made.turn(StartedExecutor(executor=executor))
    made.turn(asking("a1", 8))
    [leaving] = [each for each in made.state.executors.values() if each.status == "stopping"]
    made.turn(window(made, leaving.worker, after=1_000_000))
    expired = made.turn(after_s=120)
    assert of(expired, AppExpired)
    assert made.state.timers.next(made.state.at) == made.state.windows["x1"].closes, "the worker alone closes then"
    made.turn(after_s=2000)
    decides_nothing_more(made.state)


def test_no_room_is_made_where_a_window_keeps_the_app_out_before_it_comes() -> None:
    made = cluster("w1", "w2", reclaim_patience_s=600, min_runtime_s=0)
    made.turn(asking("b1", 16, "b", executor_cores=8))
    made.turn(window(made, "w1", after=900_000))
    made.turn(asking("a1", 8, max_runtime_s=300, executor_cores=8))
    assert {target.worker for target in made.state.holds.values()} == {"w2"}, "w1 comes free by 600 s, 300 s before"
    made.turn(window(made, "w2", window="x2", after=700_000))
    made.turn(after_s=400)
    decides_nothing_more(made.state)
