"""A state that was written down and read back is the state, at any cut of any history: so are all that follow."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.model.errors import CommandRejected
from scheduler.rules.invariants import check
from scheduler.rules.stage.granting import admit, place
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property.given import examples
from tests.property.histories import HISTORIES, History, command_for, played, seeded


@given(HISTORIES, st.integers(0, 1 << 16))
@example(seeded(75328, 15, later=True), 104)  # a worker has left, and the hold on it ends with the next event
@examples(120)
def test_a_state_read_back_and_then_the_tail_is_the_full_replay(history: History, cut: int) -> None:
    cluster = played(history)
    cut %= len(cluster.log) + 1
    state = ClusterState()
    for event, at, cause, private, by in cluster.log[:cut]:
        state.apply(event, at=at, cause=cause, private=private, by=by)
    again = restored(list(lines(state)))
    check(again)
    assert again.digest() == state.digest()
    assert list(lines(again)) == list(lines(state))
    for event, at, cause, private, by in cluster.log[cut:]:
        again.apply(event, at=at, cause=cause, private=private, by=by)
        state.apply(event, at=at, cause=cause, private=private, by=by)
    check(again)
    assert again.digest() == cluster.state.digest()


@given(HISTORIES, HISTORIES)
@examples(60)
def test_a_state_read_back_decides_what_the_state_decides(history: History, more: History) -> None:
    state = played(history).state
    again = restored(list(lines(state)))
    assert admit(again) == admit(state)
    for app in state.waiting.values():
        assert place(again, again.apps[app.id], again.at) == place(state, app, state.at)
    assert again.timers.next(0) == state.timers.next(0)
    for steps in more:
        turns = [Turn(one, one.at + 1000) for one in (state, again)]
        for step in steps:
            command = command_for(state, step)
            for turn in turns:
                with suppress(CommandRejected):
                    turn.take(command)
        for turn in turns:
            turn.settle()
        assert turns[0].entries == turns[1].entries
    assert again.digest() == state.digest()


def test_a_snapshot_without_a_field_that_has_a_default_is_read() -> None:
    """A version that has one field more reads what the version before wrote."""
    state = played(seeded(7, 60)).state
    older = [_without_field(text, "apps", "detail") for text in lines(state)]
    for app in state.apps.values():
        app.detail = ""
    assert restored(older).digest() == state.digest()


def test_a_snapshot_that_counted_the_refusals_of_all_together_is_read() -> None:
    """Semantics T3: versions before counted no accounts; who refused is not known any more."""
    first, *others = lines(played(seeded(7, 20)).state)
    kind, (record,) = json.loads(first)
    older = json.dumps([kind, [{**record, "refused": 60, "refused_minute": 7}]])
    state = restored([older, *others])
    assert (state.refused, state.refused_minute) == ({"": 60}, 7)


def test_a_snapshot_that_says_when_every_app_first_asked_is_read() -> None:
    """Semantics L6: versions before noted it of apps that are not elastic, too, at their admission."""
    state = played(seeded(7, 60)).state
    assert any(app.admitted and app.spec.elastic is None for app in state.apps.values())
    assert restored([_asking(text) for text in lines(state)]).digest() == state.digest()


def _asking(text: str) -> str:
    kind, records = json.loads(text)
    if kind == "apps":
        records = [{"asked_at": one.get("admitted_at", 0), **one} for one in records]
    return json.dumps([kind, records])


def _without_field(text: str, of: str, name: str) -> str:
    kind, records = json.loads(text)
    return json.dumps([kind, [{k: v for k, v in one.items() if (kind, k) != (of, name)} for one in records]])


def test_a_snapshot_with_what_this_version_does_not_know_is_refused_with_a_sentence() -> None:
    texts = list(lines(played(seeded(7, 20)).state))
    with pytest.raises(ValueError, match=r"^it holds records of kind 'colours', which this version does not know$"):
        restored([*texts, '["colours", []]'])
    with pytest.raises(ValueError, match=r"^a record of kind 'ended' cannot be read: .* unknown field `colour`"):
        restored([*texts, '["ended", [{"app": "a1", "colour": "red"}]]'])
    with pytest.raises(ValueError, match=r"^a record of kind 'ended' cannot be read: .* required field `app`"):
        restored([*texts, '["ended", [{}]]'])
    with pytest.raises(ValueError, match=r"^its record of kind 'cluster' is missing$"):
        restored(texts[1:])
