"""One run of the scheduler: commands in, admissions and placements out, by the rules A, C, U, F, P and W."""

from __future__ import annotations

import pytest

from scheduler.model.commands import (
    ChangeCompany,
    DrainWorker,
    EndApp,
    EndedExecutor,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RemoveWorker,
    UndrainWorker,
)
from scheduler.model.errors import UnknownCompany
from scheduler.model.events import AppAdmitted, AppRemoved, ExecutorRemoved, WorkerRemoved
from scheduler.rules.entities.fleet import WORKER_SELECTIONS
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import Cluster, admitted, allocated, shared, submission, worker


def test_a_turn_applies_all_inputs_then_admits_then_places() -> None:
    """Semantics T2."""
    cluster = Cluster()
    events = cluster.turn(RegisterCompany(company="acme"), submission("a1", 4), worker("w1", 16), submission("a2", 4))
    assert [type(event).__name__ for event in events] == [
        "CompanyRegistered",
        "AppRegistered",
        "WorkerRegistered",
        "AppRegistered",
        "AppAdmitted",
        "AppAdmitted",
        "ExecutorAllocated",
        "ExecutorAllocated",
    ]


def test_what_a_command_causes_carries_its_id_and_decisions_carry_none() -> None:
    state = ClusterState()
    turn = Turn(state, 1_000)
    turn.take(RegisterCompany(company="acme"), "c-1")
    turn.take(worker("w1", 16), "c-2")
    turn.take(submission("a1", 4), "c-3")
    turn.settle()
    assert [entry.cause for entry in turn.entries] == ["c-1", "c-2", "c-3", "", ""]
    assert state.commands == {"c-1": 1, "c-2": 2, "c-3": 3}
    assert (turn.first, state.head, state.at) == (1, 5, 1_000)


def test_a_refused_command_leaves_the_turn_as_it_was() -> None:
    turn = Turn(ClusterState(), 1_000)
    with pytest.raises(UnknownCompany):
        turn.take(submission("a1"), "c-1")
    assert turn.entries == []
    assert turn.state.digest() == ClusterState().digest()


def test_with_no_live_worker_nothing_is_admitted() -> None:
    """Semantics A3, W1."""
    cluster = shared()
    assert admitted(cluster.submit("a1")) == []
    cluster.worker("w1", 16)
    cluster.turn(DrainWorker(worker="w1"), EndApp(app="a1", reason="finished"))
    assert admitted(cluster.submit("a2")) == []


def test_admission_goes_on_until_the_cluster_is_full_and_the_last_app_may_overshoot() -> None:
    """Semantics A3."""
    cluster = Cluster()
    cluster.company("acme", 1024, 1 << 20)
    cluster.worker("w1", 16)
    assert admitted(cluster.submit("a1", 12)) == ["a1"]
    assert admitted(cluster.submit("a2", 100)) == ["a2"]
    assert admitted(cluster.submit("a3", 4)) == []
    assert cluster.state.balance.requested.cores == 112
    assert cluster.state.apps["a2"].granted.cores == 4


def test_a_cluster_that_is_exactly_full_in_cores_admits_nobody() -> None:
    """Semantics A3."""
    cluster = Cluster()
    cluster.company("acme", 1024, 1 << 20)
    cluster.worker("w1", 16)
    assert admitted(cluster.submit("a1", 16)) == ["a1"]
    assert admitted(cluster.submit("a2", 4)) == []


def test_a_cluster_that_is_full_in_memory_admits_nobody() -> None:
    """Semantics A3."""
    cluster = Cluster()
    cluster.company("acme", 1024, 1 << 20)
    cluster.worker("w1", 64, 4096)
    assert admitted(cluster.submit("a1", 8)) == ["a1"]
    assert admitted(cluster.submit("a2", 4)) == []


def test_the_one_that_overshot_gets_the_rest_in_later_turns() -> None:
    """Semantics A3, S4: half of what it asked for now, the rest when a worker joins."""
    cluster = shared(w1=16)
    assert allocated(cluster.submit("a1", 32)) == [("w1", 16, 8192)]
    assert allocated(cluster.worker("w2", 16)) == [("w2", 16, 8192)]


def test_an_app_that_ends_makes_room_in_the_same_turn() -> None:
    """Semantics A5, T1."""
    cluster = shared(w1=8)
    cluster.submit("a1", 8)
    cluster.submit("a2", 8)
    executor, *_ = cluster.state.executors
    events = cluster.turn(
        EndedExecutor(executor=executor, reason="exited", done=True), EndApp(app="a1", reason="finished")
    )
    assert admitted(events) == ["a2"]
    assert allocated(events) == [("w1", 8, 4096)]


def test_a_killed_apps_cores_come_back_when_its_worker_is_lost() -> None:
    """Semantics A5, W2."""
    cluster = shared(w1=8)
    cluster.submit("a1", 8)
    cluster.turn(KillApp(app="a1"))
    cluster.turn(LoseWorker(worker="w1"))
    assert not cluster.state.executors
    assert allocated(cluster.worker("w1", 8)) == []


def test_the_company_with_the_lowest_share_is_admitted_first() -> None:
    """Semantics C3: 512 : 128 : 1024 with 128 : 64 : 128 occupied -> the third, else the first, then the second."""
    cluster = Cluster()
    for name, quota, held in (("one", 512, 128), ("two", 128, 64), ("three", 1024, 128)):
        cluster.company(name, quota, quota * 512)
        cluster.worker(f"for-{name}", held)
        assert admitted(cluster.submit(f"held-{name}", held, company=name)) == [f"held-{name}"]
    apps = (submission(f"next-{name}", 8, company=name) for name in ("one", "two", "three"))
    events = cluster.turn(*apps, worker("w1", 24))
    shares = [(event.app, event.share) for event in events if isinstance(event, AppAdmitted)]
    assert shares == [("next-three", "1/8"), ("next-one", "1/4"), ("next-two", "1/2")]


def test_equal_shares_go_to_the_company_selected_longest_ago_then_by_name() -> None:
    """Semantics C3."""
    cluster = Cluster()
    cluster.turn(*(RegisterCompany(company=name, cores=64, memory_mb=65536) for name in ("b", "a", "c")))
    apps = [submission(f"{name}{turn}", 4, company=name) for turn in (1, 2) for name in ("b", "c", "a")]
    cluster.turn(*apps)
    assert admitted(cluster.worker("w1", 64)) == ["a1", "b1", "c1", "a2", "b2", "c2"]


def test_an_app_that_fills_its_companys_quota_exactly_is_admitted() -> None:
    """Semantics C4: in cores and in memory."""
    cluster = Cluster()
    cluster.company("acme", 16, 8192)
    cluster.worker("w1", 64)
    assert admitted(cluster.submit("a1", 8)) == ["a1"]
    assert admitted(cluster.submit("a2", 8)) == ["a2"]


def test_a_part_is_a_cap_that_moves_with_the_cluster() -> None:
    """Semantics C2, C4: 25% of 32 cores are 8, of 64 they are 16."""
    cluster = Cluster()
    cluster.company("acme", part="25%")
    cluster.worker("w1", 32)
    assert admitted(cluster.submit("a1", 8)) == ["a1"]
    assert admitted(cluster.submit("a2", 8)) == []
    assert admitted(cluster.worker("w2", 32)) == ["a2"]


def test_a_default_quota_lets_an_idle_company_have_one_app_larger_than_its_part() -> None:
    """Semantics C4, C2: 1/2 of 16 cores are 8; what it claims beyond them it borrows."""
    cluster = shared(w1=16)
    cluster.company("initech")
    cluster.turn(ChangeCompany(company="acme", borrow=False))
    assert admitted(cluster.submit("a1", 12)) == ["a1"]
    assert admitted(cluster.submit("a2", 4)) == []
    assert admitted(cluster.turn(ChangeCompany(company="acme", borrow=True))) == ["a2"]


def test_users_take_turns_and_one_never_selected_comes_first() -> None:
    """Semantics U1."""
    cluster = shared()
    cluster.turn(*(submission(f"a{number}", 4, user="ann") for number in range(3)))
    cluster.turn(*(submission(f"b{number}", 4, user="bob") for number in range(2)))
    assert admitted(cluster.worker("w1", 64)) == ["a0", "b0", "a1", "b1", "a2"]


def test_a_user_whose_next_app_does_not_pass_the_cap_is_passed_over() -> None:
    """Semantics N2: also a smaller app behind it waits."""
    cluster = Cluster()
    cluster.company("acme", 16, 1 << 20)
    cluster.submit("first", 12, user="ann")
    cluster.submit("large", 8, user="ann")
    cluster.submit("behind", 4, user="ann")
    cluster.submit("small", 4, user="bob")
    assert admitted(cluster.worker("w1", 64)) == ["first", "small"]


def test_sql_apps_go_before_others_where_the_setting_says_so() -> None:
    """Semantics F1."""
    cluster = shared({"app_policy": "sql-first"})
    cluster.submit("b1", 4)
    cluster.submit("s1", 4, kind="sql")
    cluster.submit("b2", 4)
    cluster.submit("s2", 4, kind="sql")
    assert admitted(cluster.worker("w1", 64)) == ["s1", "s2", "b1", "b2"]
    cluster = shared()
    cluster.submit("b1", 4)
    cluster.submit("s1", 4, kind="sql")
    assert admitted(cluster.worker("w1", 64)) == ["b1", "s1"]


def test_a_company_occupies_what_it_requests() -> None:
    """Semantics O1: whatever of it was granted."""
    cluster = Cluster({"reclaim_patience_s": None})
    cluster.company("a", 64, 1 << 20)
    cluster.company("b", 64, 1 << 20)
    cluster.worker("w1", 8)
    cluster.submit("a1", 32, company="a")
    assert admitted(cluster.submit("b1", 32, company="b")) == ["b1"]
    assert [str(cluster.state.queue.share(name)) for name in ("a", "b")] == ["1/2", "1/2"]


@pytest.mark.parametrize(
    ("selection", "order"),
    [
        ("cores-free-desc", ["w2", "w10", "w1"]),
        ("cores-free-asc", ["w1", "w10", "w2"]),
        ("memory-free-desc", ["w1", "w2", "w10"]),
        ("memory-free-asc", ["w10", "w2", "w1"]),
        ("worker-id", ["w1", "w10", "w2"]),
    ],
)
def test_workers_are_taken_in_the_order_of_the_setting(selection: str, order: list[str]) -> None:
    """Semantics P1: of two equally free workers `w2` comes before `w10`."""
    assert selection in WORKER_SELECTIONS
    cluster = shared({"worker_selection": selection})
    for name, cores, memory_mb in (("w1", 8, 16384), ("w2", 16, 8192), ("w10", 16, 8192)):
        cluster.worker(name, cores, memory_mb)
    assert [name for name, _, _ in allocated(cluster.submit("a1", 12))] == order


def test_pack_fills_one_worker_before_the_next() -> None:
    """Semantics P2."""
    cluster = shared({"placement": "pack"}, w1=16, w2=16, w3=16)
    assert [name for name, _, _ in allocated(cluster.submit("a1", 20))] == ["w3"] * 4 + ["w2"]


def test_spread_gives_each_worker_one_in_turn() -> None:
    """Semantics P2."""
    cluster = shared(w1=16, w2=16, w3=16)
    assert [name for name, _, _ in allocated(cluster.submit("a1", 20))] == ["w3", "w3", "w2", "w2", "w1"]


def test_the_earlier_admitted_app_gets_what_comes_free_first() -> None:
    """Semantics P6."""
    cluster = Cluster()
    cluster.company("acme", 1024, 1 << 20)
    cluster.worker("w0", 4)
    cluster.submit("first", 4)
    cluster.worker("smaller", 6 - 1)
    cluster.turn(DrainWorker(worker="smaller"), submission("a2", 4, user="bob"), submission("a1", 4, user="ann"))
    events = cluster.worker("w1", 4)
    assert [event.app for event in cluster.state.executors.values()] == ["first", "a2"]
    assert allocated(events) == [("w1", 4, 2048)]


def test_numbers_of_executors_are_never_used_again() -> None:
    """Semantics P6, W5: an ended executor that was not done is replaced in the same turn."""
    cluster = shared(w1=4)
    cluster.submit("a1", 4)
    for number in range(3):
        events = cluster.ended(f"a1.{number}", failed=number % 2 == 0)
        assert isinstance(events[0], ExecutorRemoved)
        assert list(cluster.state.apps["a1"].executors) == [f"a1.{number + 1}"]


def test_an_app_whose_executors_fail_ten_times_fails() -> None:
    """Semantics W5, Settings."""
    cluster = shared(w1=4)
    cluster.submit("a1", 4)
    for number in range(9):
        cluster.ended(f"a1.{number}", failed=True)
    assert list(cluster.state.waiting) == ["a1"]
    events = cluster.ended("a1.9", failed=True)
    assert [event.reason for event in events if isinstance(event, AppRemoved)] == ["failed"]
    assert not cluster.state.waiting


def test_a_lost_workers_executors_are_placed_again_and_the_app_keeps_its_place() -> None:
    """Semantics W2."""
    cluster = shared(w1=8, w2=8)
    cluster.submit("a1", 8)
    cluster.submit("a2", 8)
    events = cluster.turn(LoseWorker(worker="w2"))
    kinds = [type(event) for event in events]
    assert kinds.index(WorkerRemoved) > max(i for i, kind in enumerate(kinds) if kind is ExecutorRemoved)
    assert list(cluster.state.waiting) == ["a1", "a2"]
    cluster.worker("w3", 16)
    assert [app.granted.cores for app in cluster.state.waiting.values()] == [8, 8]


def test_a_draining_worker_gets_nothing_new_until_it_is_taken_back() -> None:
    """Semantics W3, W1."""
    cluster = shared(w1=16, w2=8)
    cluster.turn(DrainWorker(worker="w1"))
    assert allocated(cluster.submit("a1", 16)) == [("w2", 8, 4096)]
    assert allocated(cluster.turn(UndrainWorker(worker="w1"))) == [("w1", 8, 4096)]


def test_a_worker_that_leaves_is_removed_when_its_last_executor_ends() -> None:
    """Semantics W3."""
    cluster = shared(w1=4)
    cluster.submit("a1", 4)
    cluster.turn(RemoveWorker(worker="w1"))
    assert cluster.state.workers["w1"].status == "leaving"
    events = cluster.ended("a1.0", done=True)
    assert [type(event) for event in events] == [ExecutorRemoved, WorkerRemoved]
    assert not cluster.state.workers
