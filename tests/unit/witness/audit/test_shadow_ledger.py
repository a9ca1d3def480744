"""A ledger of the state that goes wrong is named at the position where it does, whoever's it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from scheduler.model.events import ExecutorAllocated
from scheduler.model.resources import Resources
from scheduler.rules.state.cluster import ClusterState
from tests.property.histories import HISTORIES, History, played, seeded
from tests.unit.recorded import facts
from witness.audit.audit import Audit
from witness.audit.shadow_ledger import ShadowLedger

Spoil = Callable[[ClusterState, ExecutorAllocated], None]


def _waiting_apps(state: ClusterState, _: ExecutorAllocated) -> None:
    state.balance.requested += Resources(1)


def _company(state: ClusterState, event: ExecutorAllocated) -> None:
    state.companies[state.apps[event.app].spec.company].balance.granted += Resources(0, 1)


def _user(state: ClusterState, event: ExecutorAllocated) -> None:
    spec = state.apps[event.app].spec
    state.companies[spec.company].users[spec.user].balance.requested -= Resources(0, 1)


def _app(state: ClusterState, event: ExecutorAllocated) -> None:
    state.apps[event.app].granted -= Resources(1)


def _worker(state: ClusterState, event: ExecutorAllocated) -> None:
    state.workers[event.worker].free += Resources(0, 1)


@given(HISTORIES)
@settings(max_examples=60)
def test_the_ledger_agree_with_the_ledgers_of_any_history_at_every_position(history: History) -> None:
    cluster, state, ledger = played(history), ClusterState(), ShadowLedger()
    for event, at, cause, *_ in cluster.log:
        state.apply(event, at=at, cause=cause)
        assert ledger.post(event, state) is None


@pytest.mark.parametrize("spoil", [_waiting_apps, _company, _user, _app, _worker])
def test_a_ledger_that_goes_wrong_is_named_where_it_does(spoil: Spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    log = facts(played(seeded(11, 60)))
    at = [written.seq for written in log if written.type == "ExecutorAllocated"][5]
    sound = ClusterState.apply

    def apply(state: ClusterState, event: ExecutorAllocated, *given: Any, **named: Any) -> None:
        sound(state, event, *given, **named)
        if state.head == spoiled_at:
            spoil(state, event)

    spoiled_at = at
    monkeypatch.setattr(ClusterState, "apply", apply)
    found = next(iter(Audit().deviations(log)))
    assert (found.seq, found.rule) == (at, "O2")
