"""Room that is reserved for an app that its company's quota holds back (semantics C7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    EndedExecutor,
    HoldApp,
    KillApp,
    ReleaseApp,
    ReprioritizeApp,
    ScaleApp,
)
from scheduler.model.events import Event, ReservationLapsed, RoomReserved
from scheduler.rules.snapshot_records import lines, restored
from tests.property.given import Cluster, submission


@pytest.mark.second_edition
def test_a_reservation_lapses_whose_app_is_not_the_head_of_its_queue_any_more() -> None:
    """Semantics C7, Q1: the head that asks for as much keeps its own."""
    cluster = Cluster({"quota_patience_s": 2})
    cluster.company("acme", 16, 65536)
    cluster.worker("w1", 64)
    for number, cores in enumerate((8, 16, 16)):
        cluster.submit(f"a{number}", cores)
    assert cluster.turn(after_s=3) == [RoomReserved(app="a1")]
    cluster.turn(ReprioritizeApp(app="a1", priority=-3))
    assert cluster.turn(after_s=3) == [RoomReserved(app="a2")]
    (lapsed,) = cluster.turn(after_s=16)
    assert lapsed == ReservationLapsed(app="a1")
    assert [(app, reserved) for app, _, reserved in cluster.state.queue.held_back()] == [("a2", True)]


@pytest.mark.second_edition
def test_a_reservation_lasts_when_other_settings_size_the_executors_of_its_app() -> None:
    """Semantics C7: what the app requests is the same."""
    cluster = Cluster({"quota_patience_s": 2, "min_executor_cores": 2})
    cluster.company("acme", 16, 65536)
    cluster.worker("w1", 64)
    cluster.submit("a0", 8)
    cluster.submit("a1", 16)
    assert cluster.turn(after_s=3) == [RoomReserved(app="a1")]
    cluster.turn(ConfigureCluster(settings={"min_executor_cores": 4}))
    assert cluster.state.apps["a1"].reserved_at > 0
    assert cluster.turn(after_s=20) == [ReservationLapsed(app="a1")]


@pytest.mark.parametrize("read_back", [False, True])
@pytest.mark.second_edition
def test_of_several_reservations_of_a_turn_the_app_held_back_longest_comes_first(*, read_back: bool) -> None:
    """Semantics C7, T2: also where the state was read back from a snapshot meanwhile."""
    cluster = Cluster({"quota_patience_s": 3})
    cluster.company("acme", 16, 16384)
    cluster.worker("w1", 64)
    for app, cores, user in (("x", 16, "eve"), ("a1", 4, "ann"), ("a2", 8, "ann"), ("b1", 12, "bob")):
        cluster.turn(submission(app, cores, company="acme", user=user))
    cluster.turn(KillApp(app="a1"))  # a2 is ann's head from here on
    if read_back:
        cluster.state = restored(lines(cluster.state))
    assert cluster.turn(after_s=10) == [RoomReserved(app="b1"), RoomReserved(app="a2")]


def again(cluster: Cluster) -> list[Event]:
    """What a second turn at the same time decides (semantics E6)."""
    return cluster.turn(after_s=0)


@pytest.mark.second_edition
def test_a_reservation_is_renewed_once_nobody_waits_who_came_before_it_lapsed() -> None:
    """Semantics C7, E6: at once, and not in the next turn, if the app of another user is killed, admitted or held."""
    for command in (KillApp(app="b1"), HoldApp(app="b1"), EndedExecutor(executor="x.0", reason="exited", done=True)):
        cluster = Cluster({"quota_patience_s": 3})
        cluster.company("acme", 16, 16384)
        cluster.worker("w1", 64)
        for app, cores, user in (("x", 4, "eve"), ("y", 4, "eve"), ("a1", 16, "ann"), ("b1", 12, "bob")):
            size = {"executor_cores": 4, "executor_memory_mb": 1024, "memory_per_task_mb": None}
            cluster.turn(replace(submission(app, cores, company="acme", user=user), **size))
        cluster.turn(after_s=10)
        assert [app for app, _, reserved in cluster.state.queue.held_back() if reserved] == ["a1", "b1"]
        assert cluster.turn(after_s=31) == [ReservationLapsed(app="a1"), ReservationLapsed(app="b1")]
        assert RoomReserved(app="a1") in cluster.turn(command, after_s=10)
        assert again(cluster) == []


@pytest.mark.second_edition
def test_neither_a_changed_request_nor_a_hold_undoes_a_lapse() -> None:
    """Semantics C7: else an app would keep its company's room for ever."""
    ways: list[list[Command]] = [[ScaleApp(app="a1", executors=3)], [HoldApp(app="a1"), ReleaseApp(app="a1")]]
    for commands in ways:
        cluster = Cluster({"quota_patience_s": 3})
        cluster.company("acme", 16, 16384)
        cluster.worker("w1", 64)
        for app, cores, user in (("x", 8, "eve"), ("a1", 16, "ann"), ("b1", 16, "bob")):
            cluster.turn(submission(app, cores, company="acme", user=user))
        cluster.turn(after_s=10)
        cluster.turn(after_s=31)
        for command in commands:
            cluster.turn(command, after_s=10)
        cluster.state = restored(lines(cluster.state))
        assert [event for event in cluster.turn(KillApp(app="x"), after_s=10) if isinstance(event, RoomReserved)] == []
        assert RoomReserved(app="a1") in cluster.turn(KillApp(app="b1"), after_s=10)
