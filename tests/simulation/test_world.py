"""Seeded runs of a whole cluster under faults; a failing seed stands in the test's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from scheduler import eventlog
from scheduler.eventlog import CommitUnderWay, EventLog, Position
from scheduler.events import Record
from scheduler.state import ClusterState
from tests.simulation.world import World

SEEDS = range(25)
STEPS = 250


def run(seed: int, patch: pytest.MonkeyPatch) -> World:
    world = World(seed, patch)
    for _ in range(STEPS):
        world.step()
    world.settle()
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_in_the_log_once_and_every_app_ends(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = run(seed, monkeypatch)
    world.check()
    assert world.acknowledged, "nothing was acknowledged: the run shows nothing"


def test_a_commit_that_compared_nothing_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: without the fence a deposed master's commit goes through, or tears the log."""
    monkeypatch.setattr(eventlog, "COMMIT_LUA", eventlog.COMMIT_LUA.replace("return {0, id, digest}", "local _ = 0"))
    assert any(_is_caught(seed) for seed in SEEDS)


def test_a_command_taken_twice_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: a state that remembers no command ids carries a resent command out again."""
    monkeypatch.setattr(ClusterState, "_remember", lambda _state, _command: None)
    assert any(_is_caught(seed) for seed in SEEDS)


def test_an_answer_before_the_commit_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: one commit empties the inbox but appends nothing, its commands are answered all the same."""
    begin = EventLog.begin_commit
    dropped: list[Position] = []

    def forgetful(log: EventLog, after: Position, records: Sequence[Record], **rest: Any) -> CommitUnderWay:
        lose = not dropped and any(record.type == "AppRegistered" for record in records)
        if lose:
            dropped.append(after)
        return begin(log, after, [] if lose else records, **rest)

    monkeypatch.setattr(EventLog, "begin_commit", forgetful)
    assert _is_caught(SEEDS[0])


def _is_caught(seed: int) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        try:
            run(seed, patch).check()
        except Exception:  # noqa: BLE001 - however it shows
            return True
    return False
