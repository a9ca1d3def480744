"""Sharing comes to rest: on random small clusters of every kind no state comes again (semantics H6, H7, H9)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest

from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    EndedExecutor,
    KillApp,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    RemoveWorker,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import Event, ExecutorAllocated
from scheduler.rules.entities.grants import Allocation
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import Cluster, decides_nothing_more
from tests.property.lawful import within_cap

MOST_EVENTS = 1000
"""No turn of so small a cluster decides more, unless it has no end."""
PLACEMENTS = ("spread", "spread", "pack", "classic-spread", "classic-pack")


class Settling:
    """A small cluster whose executors leave at their deadlines, and the states in which it was since the last input."""

    def __init__(self, random: Random, *, backfill: bool = False) -> None:
        self._events = 0
        self._seen: dict[tuple[Any, ...], int] = {}
        least = random.choice((2, 2, 4))
        settings: dict[str, object] = {
            "reclaim_patience_s": random.choice((0, 60)),
            "min_runtime_s": random.choice((0, 0, 300)),
            "min_executor_cores": least,
            "min_executor_memory_mb": 256,
            "max_executor_cores": least * random.choice((1, 2, 4)),
            "placement": random.choice(PLACEMENTS),
            "spare_resources": random.random() < 0.8,
            "never_fits": "wait",
        }
        if backfill:
            settings |= {"backfill": True, "reclaim_patience_s": 3600}
        self.lent = 0
        """How many executors were granted room that is kept for others."""
        self.cluster = Cluster(settings, before=self._watch, each_event=False, each_refusal=False)
        self.losses = 0

    def take(self, command: Command) -> None:
        """An input, after which nothing that was before counts."""
        self._seen.clear()
        with suppress(CommandRejected):
            self._turn(command)

    def settle(self, most: int | None = None) -> None:
        """Let those leave who are told to, the first deadline first, until nobody is, or so many have left."""
        state = self.cluster.state
        while leaving := self._leaving():
            if most == 0:
                return
            most = None if most is None else most - 1
            first = min(leaving, key=lambda one: (one.deadline, one.id))
            self._turn(
                EndedExecutor(executor=first.id, reason="killed"), after_s=max(0, first.deadline - state.at) // 1000 + 1
            )
            self.losses += 1
            now = _standing(state)
            assert now not in self._seen, f"after {self.losses} losses all is as it was after {self._seen[now]}"
            self._seen[now] = self.losses

    def _leaving(self) -> list[Allocation]:
        """Who was told to leave; if nobody was, who is told because an app's maximum runtime is over."""
        state = self.cluster.state
        while True:
            found = [one for one in state.executors.values() if one.status == "stopping"]
            limited = [app for app in state.apps.values() if app.max_runtime_s and app.executors and not app.over]
            if found or not (limited and state.holds):
                return found
            left_ms = min(1000 * (app.max_runtime_s or 0) - app.ran_by(state.at) for app in limited)
            self._turn(after_s=max(0, left_ms) // 1000 + 1)

    def _turn(self, *commands: Command, after_s: int = 1) -> None:
        self._events = 0
        events = self.cluster.turn(*commands, after_s=after_s)
        decides_nothing_more(self.cluster.state)
        started = [event.executor for event in events if isinstance(event, ExecutorAllocated)]
        if started:
            self._turn(*map(StartedExecutor, started), after_s=0)

    def _watch(self, state: ClusterState, event: Event) -> None:
        within_cap(state, event)
        if isinstance(event, ExecutorAllocated):
            self.lent += not state.workers[event.worker].open_to(event.app).covers(event.resources)
        self._events += 1
        assert self._events <= MOST_EVENTS, "a turn has no end"


def _standing(state: ClusterState) -> tuple[Any, ...]:
    """Who stands where, who leaves and for whom; times and numbers of executors aside."""
    held = sorted([(one.worker, one.app, one.resources, one.status, one.moved) for one in state.executors.values()])
    holds = sorted([(hold.worker, hold.app, hold.reason) for hold in state.holds.values()])
    return tuple(held), tuple(holds), tuple(sorted(state.waiting)), tuple(sorted(state.drivers))


def _workers(random: Random, *, large: bool) -> list[RegisterWorker]:
    found = []
    for number in range(random.randint(5, 12) if large else random.randint(1, 5)):
        labels = {"zone": random.choice(("north", "south"))} if random.random() < 0.4 else {}
        taints = ("spot",) if random.random() < 0.15 else ()
        name, cores, memory_mb = f"w{number}", random.choice((4, 6, 8, 12, 16)), random.choice((8192, 16384, 65536))
        found.append(
            RegisterWorker(
                worker=name,
                node=name,
                host=name,
                cores=cores,
                memory_mb=memory_mb,
                labels=labels,
                taints=taints,
                resources={"gpu": ("0", "1", "2")} if large and random.random() < 0.4 else {},
            )
        )
    return found


def _company(random: Random, name: str, cores: int) -> RegisterCompany:
    match random.randrange(5):
        case 0:
            return RegisterCompany(company=name, cores=random.randint(2, max(2, cores)), memory_mb=1 << 20)
        case 1:
            return RegisterCompany(company=name, part=random.choice(("50%", "25%", "1/3")))
        case 2:
            return RegisterCompany(company=name, cores=random.randint(2, max(2, cores)), memory_mb=1 << 20, borrow=True)
        case _:
            return RegisterCompany(company=name)


def _app(random: Random, number: int, *, large: bool, limited: bool = False) -> SubmitApp:
    about: dict[str, Any] = {"tasks": 1000, "memory_per_task_mb": random.choice((None, 256, 1024))}
    about["cores"] = random.choice((2, 3, 4, 6, 8, 12, 16, 24))
    match random.randrange(6):
        case 0 | 1:
            each = random.choice((1, 2, 3, 4, 6))
            about |= {"executor_cores": each, "cores": each * random.choice((1, 2, 4, 8)), "memory_per_task_mb": None}
            about["executor_memory_mb"] = random.choice((256, 1024, 4096))
        case 2:
            about |= {"executor_memory_mb": 1024, "sizing": "one-per-worker", "memory_per_task_mb": None}
        case 3:
            about |= {"elastic": (random.choice((0, 1)), random.choice((3, 6))), "cores": None}
        case _:
            about["cores_per_task"] = random.choice((None, 1, 2, 3))
    if large and about["cores"] is not None:
        about["cores"] *= random.choice((1, 2, 4))
        if "executor_cores" in about and random.random() < 0.3:
            about["executor_resources"] = {"gpu": 1}
    if random.random() < 0.15:
        about |= {"driver": True, "driver_cores": random.choice((1, 2)), "driver_memory_mb": 256}
    if random.random() < 0.3:
        about[random.choice(("require", "avoid", "prefer_labels"))] = (random.choice(("zone=north", "zone=south")),)
    about["tolerate"] = ("spot",) if random.random() < 0.3 else ()
    if limited and random.random() < 0.8:
        about["max_runtime_s"] = random.choice((60, 200, 480))
    company, user = random.choice("abc"), random.choice(("ann", "bob"))
    return SubmitApp(app=f"app-{number}", company=company, user=user, command=("true",), **about)


def _change(random: Random, state: ClusterState, number: int, *, app: Callable[[Random, int], SubmitApp]) -> Command:
    """What happens to a cluster that has apps: most often another one comes."""
    apps = [app.id for app in state.apps.values() if app.ended is None]
    executors = [one.id for one in state.executors.values() if one.status != "stopping"]
    match random.randrange(12):
        case 0 if apps:
            return KillApp(app=random.choice(apps))
        case 1 if apps:
            return ScaleApp(app=random.choice(apps), executors=random.choice((0, 1, 2, 5)))
        case 2 | 3 if executors:
            return EndedExecutor(executor=random.choice(executors), reason="killed", done=random.random() < 0.5)
        case 4:
            least = random.choice((2, 2, 4))
            return ConfigureCluster(settings={"min_executor_cores": least, "max_executor_cores": 4 * least})
        case 5:
            return ConfigureCluster(settings={"placement": random.choice(PLACEMENTS)})
        case _:
            return app(random, number)


def _equal_workers(random: Random) -> list[RegisterWorker]:
    """Workers of as many cores, some of which have little memory."""
    names = [f"w{number}" for number in range(random.randint(2, 4))]
    return [
        RegisterWorker(worker=name, node=name, host=name, cores=16, memory_mb=random.choice((4096, 32768, 131072)))
        for name in names
    ]


def _whole_or_small(random: Random, number: int) -> SubmitApp:
    """An app whose executors are as large as a worker, or a fraction of that."""
    about: dict[str, Any] = {"executor_cores": 16, "executor_memory_mb": 256}
    match random.randrange(5):
        case 0:
            about["elastic"] = (random.choice((0, 1)), 1)
        case 1:
            about["cores"] = 16 * random.choice((1, 4))
        case _:
            each = random.choice((1, 2, 3, 4))
            about = {"executor_cores": each, "executor_memory_mb": random.choice((256, 1024, 4096))}
            if random.random() < 0.5:
                about["elastic"] = (random.choice((0, 1)), random.choice((2, 6, 40)))
            else:
                about["cores"] = each * random.choice((1, 3, 10))
    company, user = random.choice("abcd"), random.choice(("ann", "bob"))
    return SubmitApp(app=f"app-{number}", company=company, user=user, command=("true",), tasks=1000, **about)


def _tight(random: Random, number: int) -> SubmitApp:
    """An app whose executors need the memory of a small worker or half of it, many of them one a worker."""
    about: dict[str, Any] = {"executor_memory_mb": random.choice((1024, 2048, 4096))}
    if random.random() < 0.5:
        about |= {"sizing": "one-per-worker", "cores": random.choice((2, 4, 8, 24))}
    else:
        each = random.choice((1, 2, 3))
        about |= {"executor_cores": each, "cores": each * random.choice((1, 2, 4, 20))}
    company, user = random.choice("abcd"), random.choice(("ann", "bob"))
    return SubmitApp(app=f"app-{number}", company=company, user=user, command=("true",), tasks=1000, **about)


def _wavers(random: Random, state: ClusterState, workers: list[RegisterWorker]) -> Command:
    """A worker is lost, or one that was comes again."""
    gone = [each for each in workers if each.worker not in state.workers]
    alive = [each for each in workers if each.worker in state.workers]
    if gone and (len(alive) < 2 or random.random() < 0.6):
        return random.choice(gone)
    return RemoveWorker(worker=random.choice(alive).worker)


def wavering(seed: int, *, mixed: bool = False, tight: bool = False) -> Settling:
    """A random cluster whose workers come and go, with executors that need a whole one: then a plan makes room.

    `mixed`: with executors of any other kind as well; `tight`: so, and with more that share little memory.
    """
    random = Random(seed)
    settling = Settling(random)
    workers = _equal_workers(random)
    mixed = mixed or tight
    kinds = [] if mixed else [RegisterKind(kind="gpu")]
    begun: list[Command] = [*kinds, *[RegisterCompany(company=name) for name in "abcd"], *workers]
    for command in begun:
        settling.take(command)
    for number in range(24):
        state = settling.cluster.state
        if random.random() < 0.4:
            settling.take(_wavers(random, state, workers))
        elif mixed and random.random() < 0.7:
            settling.take((_tight if tight else _whole_or_small)(random, number))
        else:
            app = partial(_app, large=False) if mixed else _whole_or_small
            settling.take(_change(random, state, number, app=app))
        settling.settle(most=random.choice((0, 1, None)))
    settling.settle()
    return settling


def settled(seed: int, *, large: bool = False, backfill: bool = False) -> Settling:
    """A random cluster with a dozen inputs, or two, after some of which it comes to rest."""
    random = Random(seed)
    settling = Settling(random, backfill=backfill)
    workers = _workers(random, large=large)
    cores = sum(worker.cores for worker in workers)
    begun: list[Command] = [RegisterKind(kind="gpu"), *[_company(random, name, cores) for name in "abc"], *workers]
    for command in begun:
        settling.take(command)
    app = partial(_app, large=large, limited=backfill)
    for number in range(24 if large else 12):
        settling.take(_change(random, settling.cluster.state, number, app=app))
        settling.settle(most=random.choice((0, 1, None)))
    settling.settle()
    return settling


@pytest.mark.parametrize("first", range(0, 100, 50))
def test_no_state_comes_again(first: int) -> None:
    assert sum([settled(seed).losses for seed in range(first, first + 50)]) > 50


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_no_state_comes_again_where_there_are_more_workers_and_gpus(first: int) -> None:
    assert sum([settled(seed, large=True).losses for seed in range(first, first + 10)]) > 50


@pytest.mark.parametrize("seeds", [range(30), range(470, 500)], ids=str)
def test_no_state_comes_again_where_workers_come_and_go(seeds: range) -> None:
    assert sum([wavering(seed).losses for seed in seeds]) > 50


@pytest.mark.parametrize("seeds", [range(30), range(440, 450), range(2010, 2040)], ids=str)
def test_no_state_comes_again_where_workers_and_apps_of_any_kind_do(seeds: range) -> None:
    assert sum([wavering(seed, mixed=True).losses for seed in seeds]) > len(seeds)


@pytest.mark.parametrize("seeds", [range(20), range(115, 125)], ids=str)
def test_no_state_comes_again_where_growing_executors_share_little_memory(seeds: range) -> None:
    assert sum([wavering(seed, tight=True).losses for seed in seeds]) > len(seeds)


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_no_state_comes_again_where_room_is_lent_until_a_date(first: int) -> None:
    assert sum([settled(seed, large=True, backfill=True).lent for seed in range(first, first + 30)]) > 2
