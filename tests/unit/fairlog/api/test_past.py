"""Past states: folded in bounded steps, from marks, and always the fold of the log up to the position."""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest

from fairlog.api import past
from fairlog.api.handlers import Handlers
from fairlog.api.past import NotReady, Past
from recovery.replay.rebuild import fold
from scheduler.model.commands import KillApp
from scheduler.model.sender import local
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import look
from tests.unit.fairlog.api.served import ACME, WORKER, served, submission
from tests.waiting import HOPELESS_S


@pytest.fixture(scope="module")
def api() -> Iterator[Handlers]:
    """A log of some two hundred events."""
    with served(fakeredis.FakeRedis(server=fakeredis.FakeServer())) as made:
        for command in (ACME, WORKER):
            made.sender.send(local(0), command)
        for number in range(30):
            made.sender.send(local(0), submission(f"a{number}"))
            last = made.sender.send(local(0), KillApp(app=f"a{number}"))
        made.replica.wait_for(last.seq, HOPELESS_S)
        yield made


def states(api: Handlers) -> dict[int, str]:
    """Position -> the state that a plain fold of the log has there."""
    state, found = ClusterState(), {}
    for fact in api.replica.log.facts():
        fold(state, fact)
        found[fact.seq] = shown(state)
    return found


def shown(state: ClusterState) -> str:
    return repr([look(state, "apps", {"everything": True}), look(state, "shares", {}), look(state, "workers", {})])


def test_every_position_in_any_order_is_the_fold_of_the_log(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "SPACING", 10)
    monkeypatch.setattr(past, "MARKS", 4)
    due = states(api)
    made = Past(api.replica.log)
    order = [*due, *reversed(due), *sorted(due, key=lambda seq: seq * 7919 % 101)]
    assert [made.read(seq, shown) for seq in order] == [due[seq] for seq in order]
    assert len(made._states) <= past.KEPT
    assert 0 < len(made._marks) <= 4
    assert made.read(0, lambda state: state.head) == 0


def test_a_long_fold_is_done_in_parts_that_say_how_far_it_is(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "FOLD_S", -1.0)
    monkeypatch.setattr(past, "_LOOK_EVERY", 20)
    made, due, said = Past(api.replica.log), states(api), []
    last = max(due)
    while True:
        try:
            assert made.read(last, shown) == due[last]
            break
        except NotReady as error:
            said.append(str(error))
    assert len(said) > 2
    assert len(set(said)) == len(said), "each request goes on where the last one ended"
    assert f"the state at {last} is being folded, and has reached" in said[0]


def test_a_log_that_lost_its_end_is_folded_anew(api: Handlers) -> None:
    made = Past(api.replica.log)
    made.read(20, shown)
    made.forget()
    assert not made._states
    assert made.read(20, shown) == states(api)[20]
