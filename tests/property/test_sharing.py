"""Sharing by entitlement, on random histories and on random clusters whose executors obey (semantics H)."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import example, given

from scheduler.model.commands import (
    Command,
    EndedExecutor,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import Event, ExecutorAllocated, ExecutorRevoked
from scheduler.model.resources import Resources
from scheduler.rules.invariants import check
from scheduler.rules.share.demands import held_units, units_of
from scheduler.rules.share.entitlement import entitlement
from scheduler.rules.simulate import _commands
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster, decides_nothing_more, examples, rests
from tests.property.histories import BUILD_UP, HISTORIES, History, command_for, seeded
from tests.property.lawful import within_cap

HOUR_S = 3600


@given(HISTORIES)
@example(seeded(1886551887, 15, later=False))  # an executor ends while another one of its app changes its place
@examples(120)
def test_a_history_keeps_every_ledger_and_a_second_turn_decides_nothing(history: History) -> None:
    cluster = Cluster({"reclaim_patience_s": 5, "slot_s": 3}, before=within_cap, each_refusal=False)
    for steps in (*BUILD_UP, *history):
        commands = [command_for(cluster.state, step) for step in steps]
        with suppress(CommandRejected):
            cluster.turn(*commands)
        if not rests(commands):
            decides_nothing_more(cluster.state)
    again = restored(list(lines(cluster.state)))
    check(again)
    assert again.digest() == cluster.state.digest()
    assert units(again) == units(cluster.state)


def units(state: ClusterState) -> dict[str, int]:
    """What each app is entitled to."""
    return {app: leaf.units for app, leaf in entitlement(state).leaves.items() if leaf.units}


class Obedient:
    """A cluster whose executors leave when they are told to, by their deadline."""

    def __init__(self, commands: list[Command]) -> None:
        self.cluster = Cluster({"reclaim_patience_s": 300}, before=within_cap, each_event=False, each_refusal=False)
        self.deadlines: dict[str, int] = {}
        self.losses = 0
        for command in commands:
            with suppress(CommandRejected):
                self.turn(command)

    def turn(self, *commands: Command, after_s: int = 1) -> None:
        """One turn, after which executors run that were granted; a second one decides nothing."""
        events = self.cluster.turn(*commands, after_s=after_s)
        for event in events:
            if isinstance(event, ExecutorRevoked) and event.why is not None:
                self.deadlines[event.executor] = event.deadline or 0
        decides_nothing_more(self.cluster.state)
        started = [event.executor for event in events if isinstance(event, ExecutorAllocated)]
        if started:
            self.turn(*map(StartedExecutor, started), after_s=0)

    def settle(self, hours: int) -> None:
        """Let everybody who is told to leave do so at its deadline, until nobody leaves any more."""
        state = self.cluster.state
        until = state.at + hours * HOUR_S * 1000
        while state.at < until:
            leaving = [name for name, one in state.executors.items() if one.status == "stopping"]
            if not leaving:
                return
            due = min(leaving, key=lambda name: (self.deadlines[name], name))
            after_s = max(0, self.deadlines[due] - state.at) // 1000 + 30
            self.losses += 1
            self.turn(EndedExecutor(executor=due, reason="killed"), after_s=after_s)

    def below(self) -> list[tuple[str, int, int]]:
        """(app, executors held, executors due) of each admitted app that is below its entitlement."""
        entitled = entitlement(self.cluster.state)
        return [
            (app.id, held_units(app), entitled.units(app))
            for app in self.cluster.state.waiting.values()
            if entitled.below(app) > 0
        ]


def companies(random: Random, number: int, total: Resources, *, caps: bool) -> list[Command]:
    """Companies with default quotas, amounts or parts."""
    found: list[Command] = []
    for name in "abcd"[:number]:
        cores = max(1, total.cores // random.randint(1, 5))
        choice = random.random()
        if caps and choice < 0.4:
            found.append(RegisterCompany(company=name, cores=cores, memory_mb=total.memory_mb))
        elif choice < 0.3:
            found.append(RegisterCompany(company=name, cores=cores, memory_mb=total.memory_mb, borrow=True))
        elif choice < 0.45:
            found.append(RegisterCompany(company=name, part=f"1/{random.randint(2, 6)}", borrow=True))
        else:
            found.append(RegisterCompany(company=name))
    return found


def random_cluster(
    seed: int, *, caps: bool = False, gpus: bool = False, drivers: bool = False, users: bool = False
) -> list[Command]:
    """Up to six workers, four companies and eight apps of executors of one size each, which never end.

    With `users` up to ten workers of 16 cores, and one company of five users with up to sixteen apps.
    """
    random = Random(seed)
    offered = [16] if users else [4, 8, 16, 32]
    most = 10 if users else 6
    sizes = [(random.choice(offered), random.choice([16384, 65536])) for _ in range(random.randint(1, most))]
    total = Resources(sum(cores for cores, _ in sizes), sum(memory_mb for _, memory_mb in sizes))
    number = 1 if users else random.randint(2, 4)
    commands: list[Command] = [RegisterKind(kind="gpu"), *companies(random, number, total, caps=caps)]
    for index, (cores, memory_mb) in enumerate(sizes):
        addresses = tuple(map(str, range(random.randint(1, 4)))) if gpus and random.random() < 0.5 else ()
        commands.append(
            RegisterWorker(
                worker=f"w{index}",
                node="node",
                host="host",
                cores=cores,
                memory_mb=memory_mb,
                resources={"gpu": addresses} if addresses else {},
            )
        )
    for index in range(random.randint(2, 16 if users else 8)):
        company, cores = "abcd"[random.randrange(number)], random.choice([1, 2, 3, 4, 6, 8, 12, 16])
        own_driver = drivers and random.random() < 0.4
        commands.append(
            SubmitApp(
                app=f"app-{index}",
                company=company,
                user=random.choice(["ann", "bob", "cal", "dan", "eve"] if users else ["ann", "bob"]),
                command=("true",),
                cores=cores * random.choice([1, 1, 2, 4, 8]),
                tasks=None if own_driver else 100_000,
                executor_cores=cores,
                executor_memory_mb=random.choice([256, 1024, 8192]),
                executor_resources={"gpu": 1} if gpus and random.random() < 0.5 else {},
                driver=own_driver,
            )
        )
    return commands


@pytest.mark.parametrize("kind", ["plain", "caps", "gpus", "drivers", "users"])
@pytest.mark.parametrize("seed", range(25))
def test_whoever_is_below_its_entitlement_reaches_it(seed: int, kind: str) -> None:
    obedient = Obedient(random_cluster(seed, **({} if kind == "plain" else {kind: True})))
    obedient.settle(hours=48)
    state = obedient.cluster.state
    assert not obedient.below(), obedient.below()
    assert not any(one.status == "stopping" for one in state.executors.values()), "somebody is still told to leave"
    assert obedient.losses <= 4 * sum(worker.offer.cores for worker in state.workers.values())


def test_the_plan_and_a_target_do_not_take_turns_without_an_end() -> None:
    """What left by the plan let surplus of its app stay, whose target was set again in the same turn (semantics H7)."""
    memory_mb = {"w00": 8192, "w03": 4096, "w10": 8192}
    workers = [
        {"op": "worker", "worker": name, "cores": 16, "memory_mb": memory_mb.get(name, 65536)}
        for name in [f"w{number:02}" for number in range(12)]
    ]
    back = {"op": "worker", "cores": 16}
    driver = {"driver": True, "driver_cores": 2, "driver_memory_mb": 256}
    small = {"op": "submit", "tasks": 100_000, "executor_memory_mb": 256}
    played = Played(Cluster({"reclaim_patience_s": HOUR_S, "never_fits": "wait"}, each_event=False))
    operations: list[dict[str, Any]] = [
        {"op": "company", "company": "a", "part": "20%", "borrow": False},
        {"op": "company", "company": "b", "part": "10%", "borrow": False},
        {"op": "company", "company": "c"},
        *workers,
        {
            **small,
            "app": "c1",
            "company": "c",
            "user": "u0",
            "executor_cores": 12,
            "executor_memory_mb": 4096,
            "cores": 24,
        },
        {**small, **driver, "app": "b2", "company": "b", "user": "u0", "executor_cores": 1, "cores": 59},
        {"op": "worker_lost", "worker": "w11"},
        {**back, "worker": "w11", "memory_mb": 65536},
        {**small, "app": "c3", "company": "c", "user": "u", "executor_cores": 6, "cores": 354, "at_s": 401},
        {**small, "app": "c5", "company": "c", "user": "u", "executor_cores": 4, "cores": 4},
        {**small, "app": "a6", "company": "a", "user": "u", "executor_cores": 4, "cores": 76},
        {"op": "worker_lost", "worker": "w11"},
        {**small, "driver": True, "app": "a8", "company": "a", "user": "u", "executor_cores": 1, "cores": 3},
        {**small, "app": "b9", "company": "b", "user": "u4", "executor_cores": 1, "cores": 1},
        {"op": "submit", "tasks": 100_000, "app": "b10", "company": "b", "user": "u", "cores": 8, "at_s": 1261},
        {**back, "worker": "w11", "memory_mb": 8192},
        {"op": "worker_lost", "worker": "w04", "at_s": 2516},
        {**back, "worker": "w04", "memory_mb": 65536},
    ]
    for operation in operations:
        played.take(operation)
    played.leave_until(played.cluster.state.at + 24 * HOUR_S * 1000)
    assert not any(one.status == "stopping" for one in played.cluster.state.executors.values())


class Played:
    """A cluster to which a scenario happens; executors run at once, and leave half a minute after their deadlines."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def take(self, operation: dict[str, Any]) -> None:
        """It happens at `at_s`, else a second later, after who has left until then."""
        state = self.cluster.state
        at = max(1000 * operation.pop("at_s", 0), state.at + 1000)
        self.leave_until(at)
        for _, _, command in _commands(state, operation, 0):
            self._turn(command, at=at)

    def leave_until(self, at: int) -> None:
        """Let those leave who were told to, the first deadline first."""
        state = self.cluster.state
        while leaving := [one for one in state.executors.values() if one.status == "stopping"]:
            first = min(leaving, key=lambda one: (one.deadline, one.id))
            due = max(first.deadline, state.at) + 30_000
            if due > at:
                return
            self._turn(EndedExecutor(executor=first.id, reason="killed"), at=due)

    def _turn(self, *commands: Command, at: int) -> None:
        events = self.cluster.turn(*commands, after_s=max(0, at - self.cluster.state.at) // 1000)
        started = [event.executor for event in events if isinstance(event, ExecutorAllocated)]
        if started:
            self._turn(*map(StartedExecutor, started), at=at)


@pytest.mark.parametrize("seed", range(40))
def test_nobody_within_its_entitlement_loses_one_but_to_change_its_place(seed: int) -> None:
    def watch(state: ClusterState, event: Event) -> None:
        if isinstance(event, ExecutorRevoked) and event.why == "surplus":
            app, entitled = state.apps[event.app], entitlement(state)
            held, due = entitled.side(state, (app.spec.company, ""))
            lost = state.executors[event.executor]
            above = held_units(app) - units_of(app, lost) >= entitled.units(app)
            assert above or not due.covers(held), event

    obedient = Obedient(random_cluster(seed))
    obedient.cluster.before = watch
    obedient.settle(hours=48)
