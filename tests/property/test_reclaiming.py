"""Reclaiming takes nothing that is within a part, ends, and moves nothing back (semantics E2, E3, E6)."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import replace

from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    DrainWorker,
    EndApp,
    EndedExecutor,
    KillApp,
    RegisterCompany,
    RegisterWorker,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import Event, RoomHeld
from scheduler.model.resources import NOTHING
from scheduler.rules.admission.queue import reached
from scheduler.rules.invariants import check
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import Turn
from tests.property.given import Cluster, examples
from tests.property.histories import HISTORIES, History, played
from tests.property.lawful import held_by, is_lawful

pytestmark = pytest.mark.second_edition
COMPANIES = ("a", "b", "c")
WORKERS = ("w1", "w2", "w3")


class Step(NamedTuple):
    """One input: a submission of an app of `company`, or the end of something, chosen by `which`."""

    kind: str
    company: str
    cores: int
    size: int | None
    which: int


KINDS = ["submit"] * 6 + ["elastic"] * 2 + ["end", "done", "finish", "kill", "drain", "undrain"]


def steps_of(seed: int) -> list[Step]:
    """Inputs by which one company fills the cluster before the others come."""
    draw = Random(seed)
    first = draw.choice(COMPANIES)
    return [
        Step(
            "submit" if number < 2 else draw.choice(KINDS),
            first if number < 4 else draw.choice(COMPANIES),
            draw.choice([4, 8, 12, 32]),
            draw.choice([None, None, 4, 8, 16]),
            draw.randrange(30),
        )
        for number in range(25)
    ]


QUOTAS = st.lists(st.sampled_from([None, (8, 16384), (16, 32768), (32, 65536)]), min_size=3, max_size=3)


class Watched:
    """A cluster that takes an input a second, and checks every loss just before it is folded."""

    def __init__(self, quotas: list[tuple[int, int] | None], mode: str, patience_s: int) -> None:
        self.state = ClusterState()
        self.now = 0
        self.submitted = 0
        waits = {"quota_patience_s": patience_s, "hold_patience_s": patience_s, "executor_idle_timeout_s": patience_s}
        self.take(ConfigureCluster(settings={"reclaim": mode, "min_runtime_s": 1, **waits}))
        for name, quota in zip(COMPANIES, quotas, strict=True):
            cores, memory_mb = quota or (None, None)
            self.take(RegisterCompany(company=name, cores=cores, memory_mb=memory_mb, borrow=True))
        for number, name in enumerate(WORKERS):
            self.take(RegisterWorker(worker=name, node="n", host="h", cores=16 - 4 * number, memory_mb=65536))

    def take(self, *commands: Command) -> list[Event]:
        """What a turn with these commands decides; one without any decides nothing behind it."""
        self.now += 1000
        decided = self._turn(*commands)
        claims = sum(isinstance(event, RoomHeld) and event.reason == "reclaim" for event in decided)
        assert claims <= 16
        assert self._turn() == [], "semantics E6: a second turn without an input decides nothing"
        return decided

    def _turn(self, *commands: Command) -> list[Event]:
        turn = Turn(self.state, self.now, before=lambda event, _: is_lawful(self.state, event))
        for command in commands:
            try:
                turn.take(command)
            except CommandRejected:
                continue
        before = len(turn.entries)
        turn.settle()
        check(self.state)
        return [event for event, _ in turn.entries[before:]]

    def step(self, step: Step) -> None:
        """Take one input."""
        executors, apps = list(self.state.executors), list(self.state.waiting)
        worker = WORKERS[step.which % len(WORKERS)]
        match step.kind:
            case "submit" | "elastic":
                self.take(self._submission(step))
            case "end" | "done" if executors:
                self.take(ended(executors[step.which % len(executors)], done=step.kind == "done"))
            case "finish" if apps:
                app = self.state.apps[apps[step.which % len(apps)]]
                ends = (ended(executor, done=True) for executor in app.executors)
                self.take(*ends, EndApp(app=app.id, reason="finished"))
            case "kill" if apps:
                self.take(KillApp(app=apps[step.which % len(apps)]))
            case "drain":
                self.take(DrainWorker(worker=worker))
            case "undrain":
                self.take(UndrainWorker(worker=worker))

    def _submission(self, step: Step) -> SubmitApp:
        self.submitted += 1
        name, user = f"app{self.submitted}", f"u{step.which % 2}"
        if step.kind == "elastic":
            bounds = step.which % 3, 2 + step.which % 4
            return SubmitApp(app=name, company=step.company, user=user, elastic=bounds, tasks=100)
        cores, memory_mb = max(step.cores, step.size or 0), None if step.size is None else 1024
        computed = SubmitApp(app=name, company=step.company, user=user, cores=cores)
        return replace(computed, executor_cores=step.size, executor_memory_mb=memory_mb)

    def let_leave(self) -> bool:
        """Have every executor that was told to leave end; whether there was one."""
        leaving = [name for name, held in self.state.executors.items() if held.status == "stopping"]
        if leaving:
            self.take(*(ended(name) for name in leaving))
        return bool(leaving)


def ended(executor: str, *, done: bool = False) -> EndedExecutor:
    return EndedExecutor(executor=executor, reason="exited" if done else "killed", done=done)


@given(st.integers(0, 10**6), QUOTAS, st.sampled_from(["gentle", "firm"]), st.sampled_from([1, 600]))
@example(6988, [None, (16, 32768), (32, 65536)], "gentle", 600)  # an elastic app claims, and loses an executor by E7
@example(1062, [None, None, None], "gentle", 600)  # a claim by E7 leads the search for an earlier app to another worker
@examples(80)
def test_what_is_taken_is_beyond_a_part_and_reclaiming_comes_to_rest(
    seed: int, quotas: list[tuple[int, int] | None], mode: str, patience_s: int
) -> None:
    cluster = Watched(quotas, mode, patience_s)
    for step in steps_of(seed):
        cluster.step(step)
    rounds = 0
    while cluster.let_leave():
        rounds += 1
        assert rounds <= 40, "semantics E6: executors are taken in a circle"


MODES = st.fixed_dictionaries(
    {
        "reclaim": st.sampled_from(["gentle", "firm"]),
        "min_runtime_s": st.sampled_from([0, 3]),
        "placement": st.sampled_from(["pack", "spread"]),
    }
)


@given(HISTORIES, MODES)
@examples(120)
def test_over_any_history_only_what_is_beyond_a_part_is_taken(history: History, chosen: dict[str, object]) -> None:
    played(history, chosen, before=is_lawful)


BOUGHT: tuple[dict[str, object], ...] = (
    {"part": None},
    {"part": "1/4"},
    {"part": "1/2", "borrow": False},
    {"cores": 12, "memory_mb": 12288},
)


@given(
    st.lists(st.sampled_from(BOUGHT), min_size=2, max_size=4),
    st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=3),
    st.sampled_from(["none", "gentle", "firm"]),
    st.sampled_from([4, 16]),
    st.integers(0, 10**6),
)
@examples(80)
def test_every_company_reaches_its_part_within_as_many_ends_as_there_are_executors(
    bought: list[dict[str, object]], offers: list[int], mode: str, largest: int, seed: int
) -> None:
    """One company fills the cluster before the others come and ask for all that they bought (semantics C8, P6, E1)."""
    chance, cluster = Random(seed), Cluster({"reclaim": mode, "min_runtime_s": 0, "max_executor_cores": largest})
    for number, offer in enumerate(offers):
        cluster.worker(f"w{number}", offer)
    names = [f"c{number}" for number in range(len(bought))]
    for name, quota in zip(names, bought, strict=True):
        cluster.turn(convert({"company": name, "borrow": True, **quota}, RegisterCompany))
    first = chance.choice(names)
    for number in range(sum(offers) // 8):
        with suppress(CommandRejected):
            cluster.submit(f"first-{number}", chance.choice([4, 12, 40]), company=first, user=f"u{number % 3}")
    state = cluster.state
    for name in names:
        cores = state.quota(name).amount.cores // state.quota(name).denominator // 4 * 4
        if name != first and cores:
            cluster.submit(f"{name}-all", min(cores, sum(offers)), company=name)
    assume(state.fleet.total.covers(sum(state.queue.parts_of_active(), NOTHING)))
    for _ in range(sum(offers) // 4 + 1):
        active = {app.spec.company for app in state.waiting.values()} - {first}
        lacking = [name for name in active if not reached(held_by(state, name), state.queue.part(name))]
        if not lacking:
            return
        if mode == "none":
            beyond = {name for name in names if held_by(state, name).cores > state.queue.part(name).cores}
            going = [name for name, one in state.executors.items() if state.apps[one.app].spec.company in beyond]
        else:
            going = [name for name, one in state.executors.items() if one.status == "stopping"]
        assert going, f"{lacking} wait for their parts and nothing is to end"
        cluster.turn(ended(chance.choice(going)))
    raise AssertionError(f"{lacking} have not reached their parts")
