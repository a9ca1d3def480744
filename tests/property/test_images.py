"""A state that was written down and read back is the state, at any cut of any history: so are all that follow."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.errors import CommandRejected
from scheduler.rules.decide import admit, place
from scheduler.rules.invariants import check
from scheduler.rules.snapshot_rows import lines, restored
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import Turn
from tests.property.histories import HISTORIES, History, command_for, played, seeded


@given(HISTORIES, st.integers(0, 1 << 16))
@settings(max_examples=120)
def test_a_state_read_back_and_then_the_tail_is_the_full_replay(history: History, cut: int) -> None:
    cluster = played(history)
    cut %= len(cluster.log) + 1
    state = ClusterState()
    for event, at, cause, private in cluster.log[:cut]:
        state.apply(event, at=at, cause=cause, private=private)
    again = restored(list(lines(state)))
    check(again)
    assert again.digest() == state.digest()
    assert list(lines(again)) == list(lines(state))
    for event, at, cause, private in cluster.log[cut:]:
        again.apply(event, at=at, cause=cause, private=private)
        state.apply(event, at=at, cause=cause, private=private)
        check(again)
        assert sorted(again.queue.held_back()) == sorted(state.queue.held_back())
    assert again.digest() == cluster.state.digest()


@given(HISTORIES, HISTORIES)
@settings(max_examples=60)
def test_a_state_read_back_decides_what_the_state_decides(history: History, more: History) -> None:
    state = played(history).state
    again = restored(list(lines(state)))
    assert admit(again) == admit(state)
    for app in state.waiting.values():
        assert place(again, again.apps[app.spec.app], again.at) == place(state, app, state.at)
    assert again.next_moment(0) == state.next_moment(0)
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


def test_lines_of_a_program_that_knows_other_facts_are_refused() -> None:
    texts = list(lines(played(seeded(7, 20)).state))
    kind, (columns,) = json.loads(texts[0])
    columns["apps"].append("colour")
    with pytest.raises(ValueError, match="other facts"):
        restored([json.dumps([kind, [columns]]), *texts[1:]])
    with pytest.raises(ValueError, match="other facts"):
        restored(texts[1:])
    with pytest.raises(KeyError, match="colours"):
        restored([*texts, '["colours", []]'])
