"""Slots: an app that is larger than its share has its unit for a while, and waits for the next one (semantics H10)."""

from __future__ import annotations

from typing import Any

from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    EndedExecutor,
    HoldApp,
    KillApp,
    LoseWorker,
    RegisterCompany,
    SetLimit,
    SubmitApp,
)
from scheduler.model.events import Event, ExecutorAllocated, ExecutorRevoked, SlotAwaited, SlotBegan, SlotEnded
from scheduler.model.sender import NOBODY, By
from scheduler.rules.invariants import violations
from scheduler.rules.share.entitlement import entitlement
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster, decides_nothing_more

PATIENCE_S, SLOT_S = 300, 3600
SLOTS = SlotAwaited | SlotBegan | SlotEnded


class Clocked(Cluster):
    """A cluster whose time passes in turns that decide nothing, too."""

    now = 0
    """In ms."""

    def turn(self, *commands: Command, after_s: int = 1, by: By = NOBODY) -> list[Event]:
        self.now += after_s * 1000
        return super().turn(*commands, after_s=(self.now - self.state.at) // 1000, by=by)


def cluster(*companies: str, slot_s: int = SLOT_S, **workers: int) -> Clocked:
    """A cluster that shares by entitlement and gives slots, with workers of so many cores."""
    settings = {"reclaim_patience_s": PATIENCE_S, "min_runtime_s": 600, "slot_s": slot_s}
    found = Clocked({**settings, "never_fits": "wait"}, each_event=False, each_refusal=False)
    for company in companies:
        found.company(company)
    for name, cores in workers.items():
        found.worker(name, cores)
    return found


def submit(to: Clocked, app: str, company: str, cores: int, each: int, *, user: str = "ann", **more: Any) -> list[Any]:
    """What the submission of an app of executors of one size causes."""
    asked: dict[str, Any] = {"executor_cores": each, "executor_memory_mb": 256, "cores": cores, "tasks": 5000, **more}
    command = SubmitApp(app=app, company=company, user=user, command=("true",), **asked)
    return list(to.turn(command))


def play(to: Clocked, for_s: int) -> list[Any]:
    """Let time pass and everybody who is told to leave do so at its deadline; what comes about."""
    until, events = to.now + for_s * 1000, list[Any]()
    while True:
        leaving = [one for one in to.state.executors.values() if one.status == "stopping"]
        moments = [max(one.deadline, to.now + 1000) for one in leaving]
        moments += [due for due in [to.state.timers.next(to.now)] if due is not None]
        when = min([until, *[-(-moment // 1000) * 1000 for moment in moments]])
        over = [one.id for one in leaving if max(one.deadline, to.now + 1000) <= when]
        commands = [EndedExecutor(executor=name, reason="killed") for name in over]
        events += to.turn(*commands, after_s=(when - to.now) // 1000)
        decides_nothing_more(to.state)
        if when == until:
            return events


def of_slots(events: list[Any]) -> list[tuple[str, str]]:
    """Type and app of what concerns slots."""
    return [(type(event).__name__, event.app) for event in events if isinstance(event, SLOTS)]


def held(by: Clocked) -> dict[str, int]:
    """App -> the cores of its executors."""
    return {app.id: app.granted.cores for app in by.state.apps.values() if app.granted.cores}


def large_beside_small() -> Clocked:
    """One worker of 16 cores: a wants executors of 4, b one of 16, which is twice its fair part."""
    found = cluster("a", "b", w0=16)
    submit(found, "small", "a", 16, 4)
    submit(found, "large", "b", 16, 16)
    return found


def test_who_is_larger_than_its_share_has_its_unit_for_a_slot_and_waits_for_the_next() -> None:
    shared = large_beside_small()
    assert shared.state.slots["large"].date == shared.now + SLOT_S * 1000  # 16 / 8 - 1 slots
    assert of_slots(play(shared, SLOT_S)) == [("SlotBegan", "large"), ("SlotAwaited", "small")]
    events = play(shared, 700)
    assert held(shared) == {"large": 16}
    granted = next(event for event in events if isinstance(event, ExecutorAllocated))
    executor = shared.state.executors[granted.executor]
    assert executor.until == executor.granted_at + SLOT_S * 1000
    events = play(shared, SLOT_S)
    assert held(shared) == {"small": 16}
    assert of_slots(events) == [("SlotEnded", "large"), ("SlotEnded", "small"), ("SlotAwaited", "large")]
    told = next(event for event in events if isinstance(event, ExecutorRevoked))
    assert told.deadline == executor.until  # not the date of the others, nor its own least runtime
    shared.check_replay()


def test_over_a_day_both_have_the_cluster_for_their_parts_of_the_time() -> None:
    shared, times = large_beside_small(), dict.fromkeys(("small", "large"), 0)
    for _ in range(24 * 12):
        play(shared, 300)
        for app in held(shared):
            times[app] += 1
    assert 0.35 < times["large"] / sum(times.values()) < 0.55


def test_without_slots_who_is_larger_than_its_share_waits() -> None:
    shared = cluster("a", "b", slot_s=0, w0=16)
    submit(shared, "small", "a", 16, 4)
    events = submit(shared, "large", "b", 16, 16)
    assert of_slots([*events, *play(shared, 20 * SLOT_S)]) == []
    assert held(shared) == {"small": 16}


def test_a_date_is_kept_through_a_moment_in_which_there_is_room() -> None:
    shared = large_beside_small()
    date = shared.state.slots["large"].date
    shared.turn(RegisterCompany(company="c"))
    shared.worker("w1", 16)
    assert held(shared)["large"] == 16
    shared.turn(LoseWorker(worker="w1", last_seen=1))
    assert shared.state.slots["large"].date == date


def test_what_is_not_larger_at_its_date_awaits_no_slot_any_more() -> None:
    shared = large_beside_small()
    shared.worker("w1", 16)
    assert of_slots(play(shared, SLOT_S)) == [("SlotEnded", "large")]


def test_room_that_nobody_can_use_makes_nobody_short() -> None:
    shared = cluster("a", "b", w0=8)
    shared.worker("w1", 16, 1024)
    submit(shared, "x", "a", 16, 4, executor_memory_mb=2048)
    submit(shared, "y", "b", 16, 4, executor_memory_mb=2048)
    assert not shared.state.slots


def test_at_most_a_quarter_of_the_workers_are_in_slots_and_everybody_has_its_turn() -> None:
    shared = cluster(*"abcdefg", w0=16, w1=16, w2=16, w3=16)
    submit(shared, "small", "a", 16, 1)
    for company in "bcdefg":
        submit(shared, company, company, 16, 16)
    assert len(shared.state.slots) == 3  # three of the four workers are left for six of them
    granted: set[str] = set()
    for _ in range(48):
        events = play(shared, SLOT_S // 2)
        granted |= {event.app for event in events if isinstance(event, ExecutorAllocated)}
        assert sum(slot.began > 0 for slot in shared.state.slots.values()) <= 1
    assert granted >= set("efg")
    assert shared.state.apps["small"].granted.cores == 16


def test_a_slot_ends_with_its_app_or_a_hold_and_when_slots_are_switched_off() -> None:
    for command in (
        KillApp(app="large"),
        HoldApp(app="large"),
        ConfigureCluster(settings={"slot_s": 0}),
        ConfigureCluster(settings={"admission": "open"}),
        SetLimit(scope="company", company="b", name="max_running_apps", value=0),
    ):
        shared = large_beside_small()
        shared.turn(command)
        assert not shared.state.slots, command
        assert not list(violations(shared.state))


def test_a_slot_in_which_nothing_is_granted_ends() -> None:
    shared = large_beside_small()
    play(shared, SLOT_S)
    assert shared.state.slots["large"].began
    shared.turn(after_s=PATIENCE_S + SLOT_S - 1)  # nobody obeys
    assert "large" in shared.state.slots
    assert ("SlotEnded", "large") in of_slots(list(shared.turn(after_s=1)))


def test_an_app_behind_others_of_its_user_enters_when_its_slot_begins() -> None:
    shared = cluster("a", "b", w0=16)
    submit(shared, "small", "a", 16, 4)
    submit(shared, "huge", "b", 16, 16, priority=5)
    for number in range(3):
        submit(shared, f"ahead-{number}", "b", 16, 16, priority=100)
    play(shared, SLOT_S)
    assert shared.state.apps["huge"].admitted
    assert not shared.state.apps["ahead-0"].admitted
    play(shared, 700)
    assert held(shared) == {"huge": 16}


def test_a_user_whose_unit_its_company_is_due_takes_slots_from_its_other_users() -> None:
    shared = cluster("a", "b", w0=8, w1=4, w2=4, w3=4, w4=4)
    submit(shared, "first", "a", 8, 8, user="ann")
    submit(shared, "other", "b", 16, 4)
    submit(shared, "second", "a", 8, 8, user="bob")
    assert list(shared.state.slots) == ["second"]
    play(shared, SLOT_S + 1300)
    assert held(shared) == {"second": 8, "other": 16}


def test_a_user_whose_unit_is_more_than_its_company_is_due_gets_no_slot() -> None:
    shared = cluster("a", "b", w0=16)
    submit(shared, "thin", "a", 16, 1, user="ann")
    submit(shared, "other", "b", 16, 1)
    submit(shared, "wide", "a", 16, 16, user="bob")
    assert of_slots(play(shared, 8 * SLOT_S)) == []
    assert held(shared) == {"thin": 8, "other": 8}


def test_slots_are_in_a_snapshot_and_the_next_turn_decides_alike() -> None:
    shared = large_beside_small()
    for _ in range(8):
        play(shared, 1000)
        again = restored(list(lines(shared.state)))
        assert again.digest() == shared.state.digest()
        assert again.timers.table == shared.state.timers.table
        assert {name: leaf.units for name, leaf in entitlement(again).leaves.items()} == {
            name: leaf.units for name, leaf in entitlement(shared.state).leaves.items()
        }
        assert not list(violations(again))
