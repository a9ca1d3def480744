"""What holds at every position of every history, with lost workers, drains, kills and changing settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import get_args

from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.model.commands import RegisterCompany
from scheduler.model.errors import CommandRejected
from scheduler.model.events import (
    EVENT_TYPES,
    AccountEvent,
    AppAdmitted,
    AppRegistered,
    AppRemoved,
    CommandRefused,
    CompanyMoved,
    DepartmentAdded,
    DepartmentChanged,
    DepartmentRemoved,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorRevoked,
    HoldEnded,
    KeyChanged,
    LimitSet,
    LogAccepted,
    LogRestored,
    LogSealed,
    MasterElected,
    RefusalsOmitted,
    ReservationLapsed,
    RoomHeld,
    RoomReserved,
    TargetEnded,
    TaskRequeued,
    TokenEvent,
    WindowAdded,
    WindowRemoved,
    WorkerChanged,
    WorkerRemoved,
)
from scheduler.rules.admission.limits import NAMES
from scheduler.rules.command.decide import decide
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.grants import Allocation
from scheduler.rules.invariants import check
from scheduler.rules.stage.granting import admit, place
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.assignments import all_grants, changed_grants
from scheduler.store.codec import facts
from scheduler.store.eventlog import GENESIS
from tests.property import reference
from tests.property.given import Cluster, Logged, examples
from tests.property.histories import HISTORIES, SEVEN, History, Step, command_for, played, seeded
from tests.property.lawful import within_cap

ROOT = Path(__file__).parents[2]

Written = dict[str, str]
"""What is written down for one worker."""


def staying(app: App) -> list[Allocation]:
    """Its executors but those that change their place, each of which is granted twice for a while (semantics H6)."""
    return [one for one in app.executors.values() if not one.moved]


@given(HISTORIES)
@examples(80)
@example(seeded(290928535, 19, later=True))  # of two executors, one may stay and the other changes its place
def test_every_decision_respects_quotas_offers_and_requests(
    history: History,
) -> None:
    decommissioned: dict[str, None] = {}

    def before(state: ClusterState, event: Event) -> None:
        if isinstance(event, WorkerRemoved):
            decommissioned.pop(event.worker, None)
        elif isinstance(event, WorkerChanged):
            if event.status == "decommissioned":
                decommissioned[event.worker] = None
            assert event.status != "alive" or event.worker not in decommissioned, f"semantics W3: {event}"
        elif isinstance(event, AppAdmitted) and state.settings.admission == "fair":
            assert reference.within(state, state.apps[event.app]), f"semantics N2: {event}"
            assert reference.within_above(state, state.apps[event.app]), f"semantics N2, H12: {event}"
        elif isinstance(event, ExecutorAllocated):
            app, host = state.apps[event.app], state.workers[event.worker]
            held = [*host.executors.values(), *host.drivers.values()]
            assert host.status == "alive"
            assert host.offer.cores >= event.resources.cores + sum(one.resources.cores for one in held)
            assert host.offer.memory_mb >= event.resources.memory_mb + sum(one.resources.memory_mb for one in held)
            limit = app.executor_limit
            if limit is not None and len(staying(app)) < len(app.executors):  # one that it had may change its place
                limit = max(limit, len(app.executors))
            assert limit is None or len(staying(app)) < limit, f"semantics P4: {event}"
            assert not app.spec.driver or app.driver is not None, f"semantics D1: {event}"
            assert not app.expired_at, f"semantics X2: {event}"
            if state.settings.admission == "fair":
                within_cap(state, event)
                used = [*staying(app), *([app.driver] if app.driver else [])]
                requested = event.requested or app.requested
                assert requested.cores >= event.resources.cores + sum(one.resources.cores for one in used)
                assert requested.memory_mb >= event.resources.memory_mb + sum(one.resources.memory_mb for one in used)
        elif isinstance(event, DriverAllocated):
            host, drivers = state.workers[event.worker], state.drivers.values()
            assert host.status == "alive"
            assert host.free.cores >= event.resources.cores
            assert host.free.memory_mb >= event.resources.memory_mb
            assert state.settings.max_drivers is None or len(drivers) < state.settings.max_drivers
            within_cap(state, event)

    played(history, before=before, each_event=True)


@given(HISTORIES)
@examples(60)
def test_folding_a_prefix_and_then_the_rest_is_folding_all(history: History) -> None:
    cluster = played(history)
    middle = len(cluster.log) // 2
    first = _folded(cluster.log[:middle])
    assert _folded(cluster.log[middle:], first).digest() == _folded(cluster.log).digest() == cluster.state.digest()
    assert first.dump() == cluster.state.dump()


@given(HISTORIES)
@examples(40)
def test_a_history_read_from_its_records_has_the_same_events_and_state(history: History) -> None:
    cluster = played(history)
    read = [Logged(fact.event, fact.at, fact.cause, fact.private, fact.by) for fact in facts(cluster.records, *GENESIS)]
    assert read == cluster.log
    assert _folded(read).digest() == cluster.state.digest()


@example(seeded(4294967295, 42))  # who leaves while the grace is changed
@given(HISTORIES)
@examples(60)
def test_what_a_turn_changes_of_the_grants_leads_from_those_before_to_those_after(history: History) -> None:
    cluster = Cluster()
    for turn in history:
        before, logged = all_grants(cluster.state), len(cluster.log)
        with suppress(CommandRejected):
            cluster.turn(*(command_for(cluster.state, step) for step in turn))
        changes = changed_grants([entry.event for entry in cluster.log[logged:]], cluster.state)
        for name in changes.left:
            before.pop(name, None)
        for name in changes.joined:
            before[name] = {}
        for name, executors in changes.by_worker.items():
            before[name] = _changed(before[name], executors)
        assert before == all_grants(cluster.state)


@given(HISTORIES, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 59), st.integers(0, 59)), max_size=6))
@examples(40)
def test_deciding_never_changes_the_state_it_is_given(history: History, more: list[tuple[int, int, int]]) -> None:
    state = played(history).state
    facts, digest = deepcopy(state.dump()), state.digest()
    for step in more:
        try:
            answers = [decide(state, command_for(state, Step(*step))) for _ in range(2)]
        except CommandRejected:
            continue
        assert answers[0] == answers[1]
    assert admit(state) == admit(state)
    for app in state.waiting.values():
        assert place(state, app, state.at) == place(state, app, state.at)
    assert state.dump() == facts
    assert state.digest() == digest
    check(state)


@given(HISTORIES)
@examples(60)
def test_executors_of_an_app_are_numbered_from_0_without_reuse(history: History) -> None:
    """Semantics P6."""
    so_far: dict[str, int] = {}
    for event, *_ in played(history).log:
        if isinstance(event, AppRegistered):
            so_far[event.app] = 0
        elif isinstance(event, ExecutorAllocated):
            assert event.executor == f"{event.app}.{so_far[event.app]}"
            so_far[event.app] += 1


@given(HISTORIES)
@examples(60)
def test_a_worker_is_removed_only_after_each_of_its_executors(history: History) -> None:
    held: dict[str, set[str]] = {}
    for entry in played(history).log:
        event = entry.event
        if isinstance(event, ExecutorAllocated):
            held.setdefault(event.worker, set()).add(event.executor)
        elif isinstance(event, ExecutorRemoved):
            held[event.worker].remove(event.executor)
        elif isinstance(event, WorkerRemoved):
            assert not held.get(event.worker)


def test_a_seeded_history_gives_the_same_log_whatever_the_hash_seed() -> None:
    program = (
        "from tests.property.histories import played, seeded\n"
        "print([played(seeded(seed, 80)).state.digest() for seed in range(4)])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(answers) == 1


def test_time_never_goes_back_in_the_log() -> None:
    state = ClusterState()
    Turn(state, 5_000).take(RegisterCompany(company="acme"))
    early = Turn(state, 4_000)
    early.take(RegisterCompany(company="initech"))
    assert (early.at, state.at) == (5_000, 5_000)


def test_the_histories_reach_every_kind_of_decision() -> None:
    """A property of histories in which nothing happens would say nothing.

    With seed 63: an app is forgotten that the last filling turned away before others of its user.
    """
    impatient: dict[str, object] = {"executor_idle_timeout_s": 1, "locality_wait_host_ms": 1000, "suspect_failures": 2}
    impatient |= {"suspect_s": 3, "exclude_after": 0, "remember_lost_s": 20, "reclaim_patience_s": 5, "slot_s": 3}
    log = [
        entry.event
        for seed in (*range(12), 16, 19, 63)
        for entry in played([*SEVEN, *seeded(seed, 200)], impatient).log
    ]
    trees = [entry.event for seed in (6, 11, 25, 33, 37) for entry in played(seeded(seed, 60, trees=True)).log]
    of_departments = {DepartmentAdded, DepartmentChanged, DepartmentRemoved, CompanyMoved}
    assert of_departments < {*map(type, trees)}
    assert {event.name for event in trees if isinstance(event, LimitSet) and event.department} == {*NAMES}
    kinds = Counter(type(event) for event in log)
    stated_by_a_master = {MasterElected, CommandRefused, RefusalsOmitted, KeyChanged, LogSealed}
    stated_by_a_master |= {LogRestored, LogAccepted}  # or by an operator
    of_accounts = {*get_args(AccountEvent), *get_args(TokenEvent)}  # see test_accounts
    of_the_second_edition = {RoomReserved, ReservationLapsed, RoomHeld, HoldEnded}
    elsewhere = {WindowAdded, WindowRemoved, TaskRequeued}  # see test_windows, and the unit tests of requeue
    decided = set(EVENT_TYPES.values()) - stated_by_a_master - of_accounts - of_the_second_edition - elsewhere
    decided -= of_departments
    assert kinds.keys() == decided
    assert kinds[AppAdmitted] > 80
    assert kinds[ExecutorAllocated] > 150
    reasons = {event.reason for event in log if isinstance(event, ExecutorRemoved)}
    assert reasons == {"exited", "failed", "lost", "killed", "idle", "reclaimed"}
    told = {event.why for event in log if isinstance(event, ExecutorRevoked)}
    assert told == {None, "surplus", "move", "plan", "cap"}
    ended = {event.reason for event in log if isinstance(event, TargetEnded)}
    assert ended >= {"granted", "served", "worker-gone", "stays"}
    reached = Counter(event.locality for event in log if isinstance(event, ExecutorAllocated))
    assert reached.keys() == {None, "host", "rack", "any"}
    ends = {event.reason for event in log if isinstance(event, AppRemoved)}
    assert ends == {"finished", "failed", "killed", "unmet", "expired"}


def _folded(log: list[Logged], state: ClusterState | None = None) -> ClusterState:
    folded = ClusterState() if state is None else state
    for event, at, cause, private, by in log:
        folded.apply(event, at=at, cause=cause, private=private, by=by)
    return folded


def _changed(grants: Written, changes: Mapping[str, str | None]) -> Written:
    after = {**grants, **changes}
    return {executor: grant for executor, grant in after.items() if grant is not None}
