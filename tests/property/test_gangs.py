"""Gangs on random clusters: all of one runs or none, nobody starves beside them (semantics G8)."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    AddWindow,
    Command,
    DecommissionWorker,
    DrainWorker,
    EndedExecutor,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RequeueApp,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.events import ExecutorAllocated, ExecutorRevoked, TargetSet
from scheduler.rules.invariants import check
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster, decides_nothing_more, rests, submission, worker
from tests.property.test_sharing import Obedient, random_cluster
from tests.property.test_windows import Machines
from tests.unit.recorded import facts
from witness.audit.audit import audit


def gang(app: str, number: int, *, company: str, user: str = "u", cores: int = 2, **fields: Any) -> SubmitApp:
    """The submission of a gang of so many executors."""
    stated: dict[str, Any] = {"executor_memory_mb": 1024, "command": ("true",), "gang": True, **fields}
    return SubmitApp(
        app=app,
        company=company,
        user=user,
        executor_program=True,
        executor_limit=number,
        executor_cores=cores,
        **stated,
    )


def with_gangs(seed: int, **kinds: bool) -> list[Command]:
    """A random cluster of which every second app is a gang."""
    random = Random(f"gangs {seed}")
    commands = random_cluster(seed, **kinds)
    for place, command in enumerate(commands):
        if isinstance(command, SubmitApp) and not command.driver and random.random() < 0.5:
            commands[place] = gang(
                command.app,
                random.randint(1, 8),
                company=command.company,
                user=command.user,
                cores=command.executor_cores or 1,
                executor_memory_mb=command.executor_memory_mb,
                executor_resources=command.executor_resources,
            )
    return commands


@pytest.mark.parametrize("kind", ["plain", "caps", "gpus", "drivers", "users"])
@pytest.mark.parametrize("seed", range(12))
def test_gangs_and_whoever_is_beside_them_reach_their_entitlements(seed: int, kind: str) -> None:
    obedient = Obedient(with_gangs(seed, **({} if kind == "plain" else {kind: True})))
    obedient.settle(hours=48)
    state = obedient.cluster.state
    assert not obedient.below(), obedient.below()
    assert not any(one.status == "stopping" for one in state.executors.values()), "somebody is still told to leave"
    assert obedient.losses <= 4 * sum(each.offer.cores for each in state.workers.values())


def _command(random: Random, state: ClusterState, number: int) -> Command:  # noqa: PLR0911 - one a kind
    drawn = random.random()
    executors, workers, apps = list(state.executors.values()), list(state.workers), list(state.apps)
    if drawn < 0.1 or len(workers) < 2:
        return worker(f"w{random.randrange(6)}", random.choice([8, 16]))
    if drawn < 0.4 and executors:
        executor = random.choice(executors)
        if executor.status == "starting":
            return StartedExecutor(executor=executor.id)
        reason: Literal["exited", "failed"] = random.choice(("exited", "exited", "failed"))
        return EndedExecutor(executor=executor.id, reason=reason)
    if drawn < 0.45 and apps:
        kinds: list[Command] = [KillApp(app=random.choice(apps)), RequeueApp(app=random.choice(apps))]
        return random.choice(kinds)
    if drawn < 0.52:
        name = random.choice(workers)
        kinds = [
            LoseWorker(worker=name, last_seen=0),
            DecommissionWorker(worker=name),
            DrainWorker(worker=name),
            UndrainWorker(worker=name),
        ]
        return random.choice(kinds)
    if drawn < 0.56:
        begin = state.at + 1000 * random.choice([15, 40])
        names = tuple({random.choice(workers) for _ in range(2)})
        return AddWindow(window=f"x{number}", workers=names, begin=begin, end=begin + 20_000, notice_s=10)
    company = f"c{random.randrange(3)}"
    limit = random.choice([None, None, 20, 60])
    if random.random() < 0.4:
        asked = submission(f"a{number}", random.choice([4, 8, 16]), company=company, user="u")
        return replace(asked, max_runtime_s=limit)
    size = random.choice([1, 2, 2, 4, 7])
    user, most = random.choice("uv"), random.choice([None, None, None, None, None, 1, 2])
    about: dict[str, Any] = {"max_runtime_s": limit, "max_failures": most, "no_requeue": random.random() < 0.3}
    return gang(f"a{number}", random.randint(1, 6), company=company, user=user, cores=size, **about)


def _settings(random: Random, *, suspects: bool) -> dict[str, object]:
    return {
        "reclaim_patience_s": random.choice([0, 5, 60]),
        "kill_grace_s": 5,
        "slot_s": random.choice([0, 0, 60]),
        "placement": random.choice(["spread", "pack"]),
        "max_executor_failures": 3,
        "suspect_failures": 2 if suspects else 0,
        "exclude_after": random.choice([0, 1]),
    }


def lived(seed: int) -> Counter[str]:
    """A random history of some minutes, looked at each second; how often there was what."""
    random = Random(seed)
    found: Counter[str] = Counter()

    def before(state: ClusterState, event: Any) -> None:
        if isinstance(event, ExecutorAllocated | ExecutorRevoked | TargetSet) and state.apps[event.app].spec.gang:
            found[type(event).__name__] += 1
            found["broken up"] += isinstance(event, ExecutorRevoked) and event.gang

    suspects = random.random() < 0.5
    cluster = Cluster(_settings(random, suspects=suspects), before=before, each_event=False, each_refusal=False)
    machines = Machines(cluster)
    quotas: list[dict[str, Any]] = [{}, {}, {"cores": 16, "memory_mb": 1 << 16}, {"part": "1/2", "borrow": True}]
    for number in range(3):
        cluster.turn(RegisterCompany(company=f"c{number}", **random.choice(quotas)))
    for number in range(5):
        cluster.turn(worker(f"w{number}", 8))
    for step in range(200):
        if ends := machines.ends():
            machines.turn(*ends, after_s=0)
        commands = [_command(random, cluster.state, step)] if random.random() < 0.5 and step < 150 else []
        if suspects:  # a worker that closes leaves too many of them
            commands = [each for each in commands if not isinstance(each, AddWindow)]
        machines.turn(*commands)
        assert not cluster.state.forming
        if not rests(commands):
            decides_nothing_more(cluster.state)
        if step % 50 == 0:
            again = restored(list(lines(cluster.state)))
            assert again.digest() == cluster.state.digest()
            check(again)
    cluster.check_replay()
    found["ended well"] += sum(app.spec.gang and app.ended == "finished" for app in cluster.state.apps.values())
    assert seed % 4 or audit(facts(cluster)) == []
    return found


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_no_gang_ever_runs_in_part(first: int) -> None:
    found = [lived(seed) for seed in range(first, first + 8)]
    names = ("ExecutorAllocated", "ExecutorRevoked", "TargetSet", "broken up", "ended well")
    assert all(sum(each[name] for each in found) for name in names), found
