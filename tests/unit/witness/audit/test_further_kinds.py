"""A registered kind of resources is carried wherever cores and memory are."""

from __future__ import annotations

import json

import pytest

from scheduler.model.errors import InvariantViolated
from scheduler.model.events import (
    AppAdmitted,
    CompanyRegistered,
    Event,
    ExecutorAllocated,
    KindRegistered,
    WorkerRegistered,
)
from scheduler.model.resources import Resources
from scheduler.rules.invariants import check
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from scheduler.store.codec import GENESIS_DIGEST, Record, encode_turn, lines_of, read_lines, told
from tests.property.given import queued
from witness.audit.shadow_ledger import ShadowLedger


def history(granted: int = 2) -> list[Event]:
    """A worker of 4 GPUs, a company that bought 3, and an executor with that many."""
    size = Resources.of(4, 4096, gpu=granted)
    held = {"gpu": ("0", "1", "2", "3", "4")[:granted]}
    return [
        KindRegistered(kind="gpu"),
        CompanyRegistered(company="acme", amounts=Resources.of(16, 16384, gpu=3), kinds=("gpu",)),
        WorkerRegistered(
            worker="w1",
            node="n1",
            host="h1",
            rack="",
            offer=Resources.of(16, 16384, gpu=4),
            addresses={"gpu": ("0", "1", "2", "3")},
        ),
        queued("a1", 4),
        AppAdmitted(app="a1", company="acme", user="ann", share="0/1"),
        ExecutorAllocated(app="a1", executor="a1.0", worker="w1", resources=size, requested=size, addresses=held),
    ]


def recorded(state: ClusterState, events: list[Event]) -> Record:
    turn = Turn(state, 1_000)
    for event in events:
        turn.record(event)
    return encode_turn(turn.entries, first=1, at=1_000, previous=GENESIS_DIGEST)


def test_the_log_shows_it_by_name_and_reads_it_back() -> None:
    record = recorded(ClusterState(), history())
    shown = [line.as_json() for line in lines_of(record)]
    assert shown[1]["data"]["amounts"] == {"cores": 16, "memory_mb": 16384, "gpu": 3}
    assert shown[2]["data"]["offer"] == {"cores": 16, "memory_mb": 16384, "gpu": 4}
    assert shown[5]["data"]["resources"] == shown[5]["data"]["requested"] == {"cores": 4, "memory_mb": 4096, "gpu": 2}
    assert shown[5]["data"]["addresses"] == {"gpu": ["0", "1"]}
    assert list(read_lines(json.dumps(line).encode() for line in shown)) == [record]


def test_replay_and_snapshot_keep_it_in_every_ledger() -> None:
    state, replayed = ClusterState(), ClusterState()
    for fact in told(recorded(state, history())):
        replayed.apply(fact.event, at=fact.at)
    assert state.quota("acme").amount.amount("gpu") == 3
    assert state.workers["w1"].free == Resources.of(12, 12288, gpu=2)
    assert state.companies["acme"].balance.granted.amount("gpu") == state.balance.requested.amount("gpu") == 2
    assert state.executors["a1.0"].addresses == {"gpu": ("0", "1")}
    read_back = restored(lines(state))
    check(read_back)
    assert read_back.digest() == replayed.digest() == state.digest()


def test_the_audits_own_ledger_agrees_and_notices_a_difference_in_it_alone() -> None:
    state, ledger = ClusterState(), ShadowLedger()
    for event in history():
        state.apply(event, at=1_000)
        assert ledger.post(event, state) is None
    grant = Resources.of(4, 4096)
    again = ExecutorAllocated(
        app="a1", executor="a1.1", worker="w1", resources=grant, requested=grant * 2 + Resources.of(gpu=2)
    )
    state.companies["acme"].balance.granted += Resources.of(gpu=1)
    state.apply(again, at=1_000)
    assert str(ledger.post(again, state)).startswith("company acme counts")


def test_a_grant_of_more_of_it_than_is_free_is_not_folded() -> None:
    with pytest.raises(InvariantViolated, match="no room for 4 cores and 4096 MiB and 5 gpu"):
        recorded(ClusterState(), history(granted=5))
