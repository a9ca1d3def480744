"""Random clusters whose workers have windows, second by second (semantics W14)."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    AddWindow,
    Command,
    DrainWorker,
    EndedDriver,
    EndedExecutor,
    ExtendApp,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RemoveWindow,
    RemoveWorker,
    RequeueApp,
    StartedExecutor,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import ExecutorAllocated, WindowAdded
from scheduler.rules.command.windows import barred
from scheduler.rules.entities.grants import Allocation
from scheduler.rules.invariants import check
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster, decides_nothing_more, submission, worker
from tests.unit.recorded import facts
from witness.audit.audit import audit

GRACE_S = 5


def _app(random: Random, number: int) -> SubmitApp:
    asked = submission(f"a{number}", random.choice([4, 8, 8, 16]), company=f"c{random.randrange(3)}", user="u")
    fields: dict[str, Any] = {}
    if random.random() < 0.5:
        fields["max_runtime_s"] = random.choice([5, 20, 60, 200])
    if random.random() < 0.3:
        fields |= {"driver": True, "driver_cores": 1, "driver_memory_mb": 1024}
        fields |= {"grace_s": random.choice([None, 1, 40]), "no_requeue": random.random() < 0.3}
    if random.random() < 0.3:
        fields |= {"executor_cores": random.choice([2, 4]), "executor_memory_mb": 1024}
    return replace(asked, **fields)


def _window(random: Random, state: ClusterState, number: int) -> AddWindow:
    workers = tuple({random.choice([*state.workers]) for _ in range(random.choice([1, 2, 4]))})
    begin = state.at + 1000 * random.choice([15, 20, 40, 90])
    company = random.choice(["", "", "c0", "c1"])
    notice_s = random.choice([10, 10, 30])
    end = begin + 1000 * random.choice([1, 20, 60])
    return AddWindow(
        window=f"x{number}",
        workers=workers,
        begin=begin,
        end=end,
        company=company,
        reason="new disks",
        notice_s=notice_s,
    )


def _command(random: Random, state: ClusterState, number: int) -> Command:  # noqa: PLR0911 - one a kind
    drawn = random.random()
    executors, workers, apps = list(state.executors.values()), list(state.workers), list(state.apps)
    if drawn < 0.1 or len(workers) < 2:
        return worker(f"w{random.randrange(5)}", random.choice([8, 16]))
    if drawn < 0.25:
        return _window(random, state, number)
    if drawn < 0.27 and state.windows:
        return RemoveWindow(window=random.choice([*state.windows]))
    if drawn < 0.5 and executors:
        executor = random.choice(executors)
        if executor.status == "starting":
            return StartedExecutor(executor=executor.id)
        reason: Literal["exited", "failed"] = random.choice(("exited", "failed"))
        return EndedExecutor(executor=executor.id, reason=reason, done=False)
    if drawn < 0.56 and apps:
        app = random.choice(apps)
        kinds: list[Command] = [KillApp(app=app), RequeueApp(app=app), ExtendApp(app=app, by_s=60)]
        return random.choice(kinds)
    if drawn < 0.58:
        return LoseWorker(worker=random.choice(workers), last_seen=0)
    if drawn < 0.64:
        name = random.choice(workers)
        unwell = random.random() < 0.3
        kinds = [
            DrainWorker(worker=name, unwell=unwell),
            UndrainWorker(worker=name, unwell=unwell),
            RemoveWorker(worker=name),
        ]
        return random.choice(kinds)
    return _app(random, number)


def _settings(random: Random) -> dict[str, object]:
    return {
        "reclaim_patience_s": random.choice([0, 5, 60, None]),
        "min_runtime_s": random.choice([0, 100]),
        "kill_grace_s": GRACE_S,
        "placement": random.choice(["spread", "spread", "pack", "classic-spread", "classic-pack"]),
        "slot_s": random.choice([0, 0, 60]),
        "admission": "open" if random.random() < 0.15 else "fair",
        "never_fits": "wait",
    }


class Machines:
    """Ends what was told to stop: what leaves by a date at that date, everything after its grace at the latest."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now = cluster.state.at
        """The time (ms), which passes also where nothing happens."""
        self.told: dict[str, int] = {}

    def turn(self, *commands: Command, after_s: int = 1) -> None:
        """A turn so many seconds later, with those of the commands that are not refused."""
        self.now = max(self.now, self.cluster.state.at) + 1000 * after_s
        with suppress(CommandRejected):
            self.cluster.turn(*commands, after_s=(self.now - self.cluster.state.at) // 1000)

    def ends(self) -> list[Command]:
        state = self.cluster.state
        ended: list[Command] = []
        for held in (*state.executors.values(), *state.drivers.values()):
            if held.status != "stopping":
                self.told.pop(held.id, None)
            elif self._gone_by(held) <= self.now + 1000:
                driver = held.id in state.drivers
                ended.append(
                    EndedDriver(driver=held.id, reason="killed")
                    if driver
                    else EndedExecutor(executor=held.id, reason="killed")
                )
        return ended

    def _gone_by(self, held: Allocation) -> int:
        state = self.cluster.state
        app = state.apps[held.app]
        stop = (
            app.ended is not None
            or held.revoked in ("killed", "idle", "gang")
            or (held.revoked is None and not app.over)
        )
        if not stop and not app.over:
            grace_s = max(GRACE_S, app.spec.grace_s or 0) if held.revoked == "window" else GRACE_S
            if held.firm and held.deadline <= self.now:  # it got SIGTERM, and gets no second grace if it is stopped
                self.told.setdefault(held.id, held.deadline)
            return held.deadline + 1000 * grace_s if held.firm else 1 << 62
        grace_s = GRACE_S if app.spec.grace_s is None or not stop else app.spec.grace_s
        return self.told.setdefault(held.id, self.now) + 1000 * grace_s


def _check_windows(state: ClusterState, at: int) -> None:
    for window in state.windows.values():
        there = [state.workers[name] for name in window.workers if name in state.workers]
        for each in there:
            if at >= window.closes and not window.company:
                assert each.status != "alive", (each.id, window)
            held = [*each.executors.values(), *each.drivers.values()]
            against = [one for one in held if window.concerns(state.apps[one.app].spec.company)]
            if at >= window.closes:
                assert all(one.status == "stopping" for one in against), (each.id, window)
            if at >= window.begin:
                assert not against, (at, window, against)
    for each in state.workers.values():
        assert not each.window or each.window in state.windows


def lived(seed: int) -> dict[str, int]:
    """A random history of some minutes, looked at each second; how often there was what."""
    random = Random(seed)
    found = {"granted before a window": 0, "windows": 0, "barred": 0, "back": 0}

    def before(state: ClusterState, event: Any) -> None:
        if isinstance(event, ExecutorAllocated):
            app = state.apps[event.app]
            assert event.worker not in barred(state, app, machines.now)
            found["granted before a window"] += event.worker in state.planned
            found["barred"] += bool(barred(state, app, machines.now))
        found["windows"] += isinstance(event, WindowAdded)

    cluster = Cluster(_settings(random), before=before, each_event=False, each_refusal=False)
    machines = Machines(cluster)
    quotas: list[dict[str, Any]] = [{}, {}, {"cores": 16, "memory_mb": 1 << 16}, {"part": "1/2", "borrow": True}]
    for number in range(3):
        cluster.turn(RegisterCompany(company=f"c{number}", **random.choice(quotas)))
    for number in range(4):
        cluster.turn(worker(f"w{number}", 8))
    for step in range(250):
        if ends := machines.ends():
            machines.turn(*ends, after_s=0)
        commands = [_command(random, cluster.state, step)] if random.random() < 0.4 and step < 150 else []
        machines.turn(*commands)
        _check_windows(cluster.state, machines.now)
        decides_nothing_more(cluster.state)
        if step % 50 == 0:
            again = restored(list(lines(cluster.state)))
            assert again.digest() == cluster.state.digest()
            check(again)
            assert again.timers.table == cluster.state.timers.table
    machines.turn(after_s=300)
    assert not cluster.state.windows
    assert not any(each.window for each in cluster.state.workers.values())
    cluster.check_replay()
    if seed % 4 == 0:
        assert audit(facts(cluster)) == []
    return found


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_nothing_outlives_the_beginning_of_a_window(first: int) -> None:
    found = [lived(seed) for seed in range(first, first + 8)]
    assert all(sum(each[name] for each in found) for name in ("windows", "granted before a window", "barred")), found
