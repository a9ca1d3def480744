"""Random clusters of workers with labels and taints, and of apps that demand some (semantics P9)."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    Command,
    DrainWorker,
    EndedDriver,
    EndedExecutor,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterWorker,
    RequeueApp,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import DriverAllocated, ExecutorAllocated, TargetSet
from scheduler.rules.command.failures import closed_to, has_room_now
from scheduler.rules.entities.labels import demand_of, met_by
from scheduler.rules.invariants import check
from scheduler.rules.placement.sizing import size_now
from scheduler.rules.share.entitlement import filling
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster, decides_nothing_more, submission, worker

KEYS = {"zone": ("north", "south", "ö,x=1"), "gpu": ("a100", "h100"), "disk": ("ssd",)}
TAINTS = ("spot", "infra")
GRANTS = (ExecutorAllocated, DriverAllocated, TargetSet)


def _term(random: Random) -> str:
    key = random.choice([*KEYS])
    return key if random.random() < 0.2 else f"{key}={random.choice(KEYS[key])}"


def _terms(random: Random, *numbers: int) -> tuple[str, ...]:
    return tuple({_term(random) for _ in range(random.choice(numbers))})


def _offer(random: Random) -> RegisterWorker:
    found = worker(f"w{random.randrange(6)}", random.choice([4, 8, 8, 16, 16, 32]), random.choice([65536, 8192]))
    labels = {key: random.choice(values) for key, values in KEYS.items() if random.random() < 0.6}
    return replace(found, labels=labels, taints=tuple(each for each in TAINTS if random.random() < 0.15))


def _app(random: Random, number: int) -> SubmitApp:
    cores, company, user = random.choice([4, 8, 8, 16, 32]), f"c{random.randrange(3)}", random.choice("uv")
    asked = submission(f"a{number}", cores, company=company, user=user, per_task_mb=random.choice([512, 1024, None]))
    fields: dict[str, Any] = {}
    if random.random() < 0.7:
        fields["require"] = _terms(random, 0, 0, 1, 1, 2)
        fields["avoid"] = tuple({*_terms(random, 0, 0, 0, 1)} - {*fields["require"]})
        fields["prefer_labels"] = tuple({*_terms(random, 0, 0, 1)} - {*fields["avoid"]})
        fields["tolerate"] = tuple(each for each in TAINTS if random.random() < 0.3)
    if random.random() < 0.2:
        fields |= {"driver": True, "driver_cores": random.choice([1, 2]), "driver_memory_mb": 1024}
    how = random.random()
    if how > 0.85:
        fields |= {"cores": None, "tasks": random.choice([4, 8, 20]), "elastic": (random.choice([0, 1]), 4)}
    elif how > 0.7:
        fields |= {"executor_cores": random.choice([2, 4, 8]), "executor_memory_mb": 1024}
    elif how > 0.62:
        fields |= {"executor_memory_mb": 2048, "sizing": "one-per-worker"}
    return replace(asked, **fields)


def _command(random: Random, state: ClusterState, number: int) -> Command:  # noqa: PLR0911 - one a kind
    drawn = random.random()
    executors, workers, apps = list(state.executors.values()), list(state.workers), list(state.apps)
    if drawn < 0.15 or len(workers) < 2:
        return _offer(random)
    if drawn < 0.8 and drawn > 0.5 and executors:
        executor = random.choice(executors)
        if executor.status == "starting" and random.random() < 0.5:
            return StartedExecutor(executor=executor.id)
        reason: Literal["exited", "failed", "killed"] = random.choice(("exited", "exited", "failed", "killed"))
        done, finished = random.random() < 0.3, random.random() < 0.5
        return EndedExecutor(executor=executor.id, reason=reason, done=done, finished=finished)
    if 0.8 < drawn < 0.84 and state.drivers:
        return EndedDriver(driver=random.choice([*state.drivers]), reason="exited", exit_code=0)
    if 0.84 < drawn < 0.9 and apps:
        app = random.choice(apps)
        return KillApp(app=app) if random.random() < 0.5 else RequeueApp(app=app)
    if 0.9 < drawn < 0.94:
        return LoseWorker(worker=random.choice(workers), last_seen=0)
    if drawn > 0.94:
        name = random.choice(workers)
        return DrainWorker(worker=name) if random.random() < 0.5 else UndrainWorker(worker=name)
    return _app(random, number)


def _settings(random: Random) -> dict[str, object]:
    return {
        "never_fits": random.choice(["wait", "refuse"]),
        "reclaim_patience_s": random.choice([0, 5, 60]),
        "min_runtime_s": 0,
        "placement": random.choice(["spread", "spread", "pack", "classic-spread", "classic-pack"]),
        "slot_s": random.choice([0, 0, 60]),
        "spare_resources": random.random() < 0.8,
        "admission": "open" if random.random() < 0.12 else "fair",
    }


def _agrees_with_a_scan(state: ClusterState) -> None:
    """Whether there is room for an app is what a look at every worker and its labels says."""
    for app in state.apps.values():
        if app.ended is not None or app.troubles or app.holds or not app.need.executor.cores:
            continue
        spec, size = app.spec, size_now(state.fleet, app.need)
        demand = demand_of(spec.require, spec.avoid, spec.tolerate)
        closed = closed_to(state, app, state.at)
        able = [each for each in state.workers.values() if each.status == "alive" and each.id not in closed]
        room = any(each.open_to(None).covers(size) and met_by(demand, each.labels, each.taints) for each in able)
        assert has_room_now(state, app, state.at) == room, app.id


def _stays_the_same_from_a_snapshot(state: ClusterState) -> None:
    again = restored(list(lines(state)))
    assert again.digest() == state.digest()
    check(again)
    units = [{name: leaf.units for name, leaf in filling(each)[0].leaves.items()} for each in (again, state)]
    assert units[0] == units[1]
    decides_nothing_more(again)


def lived(seed: int) -> list[str]:
    """A random history, looked at after each turn; the kinds of its grants and targets."""
    random = Random(seed)
    cluster = Cluster(_settings(random), each_event=False, each_refusal=False)
    quotas: list[dict[str, Any]] = [{}, {}, {"cores": 16, "memory_mb": 1 << 16}, {"part": "1/2", "borrow": True}]
    for number in range(3):
        cluster.turn(RegisterCompany(company=f"c{number}", **random.choice(quotas)))
    decided: list[str] = []
    for step in range(40):
        commands = [_command(random, cluster.state, step * 3 + each) for each in range(random.choice([1, 1, 1, 3]))]
        with suppress(CommandRejected):
            events = cluster.turn(*commands, after_s=random.choice([1, 1, 7, 61]))
            decided += [type(event).__name__ for event in events if isinstance(event, GRANTS)]
        decides_nothing_more(cluster.state)
        _agrees_with_a_scan(cluster.state)
        if step % 8 == 0:
            _stays_the_same_from_a_snapshot(cluster.state)
    cluster.check_replay()
    return decided


@pytest.mark.parametrize("first", range(0, 36, 12))
def test_nothing_goes_where_labels_do_not_let_it(first: int) -> None:
    """That no grant goes there is what each event is checked for."""
    decided = [name for seed in range(first, first + 12) for name in lived(seed)]
    assert {*decided} == {"ExecutorAllocated", "DriverAllocated", "TargetSet"}
