"""This version decides as the versions that recorded these histories did."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlog.cli.main import cli
from recovery.replay.rebuild import fold
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import read_export
from tests.golden.record import HISTORIES
from witness.audit.audit import Audit
from witness.forecast import forecast, waiting

HERE = Path(__file__).parent
RECORDED = sorted(HERE.glob("*.jsonl"))
EARLIER = sorted((HERE / "earlier").glob("*.jsonl"))
"""By the second edition of the rules."""


def test_there_are_the_histories_that_can_be_recorded() -> None:
    assert {file.stem for file in RECORDED} == set(HISTORIES)
    assert len(RECORDED) >= 5
    assert {file.stem for file in EARLIER} == set(HISTORIES)


@pytest.mark.parametrize("file", RECORDED + EARLIER, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_no_decision_of_a_recorded_history_would_differ(file: Path) -> None:
    audited = Audit()
    with file.open("rb") as lines:
        assert list(audited.deviations(read_export(lines))) == []
    assert audited.decisions > 30


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_at_any_position_it_is_told_when_apps_may_start_or_why_nobody_knows(file: Path) -> None:
    state, told = ClusterState(), 0
    with file.open("rb") as lines:
        for number, fact in enumerate(read_export(lines)):
            if number % 20 == 0 and fact.turn == fact.seq:
                known = state.digest()
                for app, each in forecast(state, state.at).items():
                    told += 1
                    assert each.why or each.latest is not None, app
                    assert each.earliest is None or each.likely is None or each.earliest <= each.likely, app
                    assert each.likely is None or each.latest is None or each.likely <= each.latest, app
                assert state.digest() == known
            fold(state, fact)
    assert told


def test_by_an_earlier_edition_there_are_no_estimates() -> None:
    state = ClusterState()
    with EARLIER[0].open("rb") as lines:
        for fact in islice(read_export(lines), 300):
            fold(state, fact)
    assert any(waiting(state))
    assert forecast(state, state.at) == {}


def test_one_of_them_has_a_failover() -> None:
    with (HERE / "failover.jsonl").open("rb") as lines:
        elected = {fact.event for fact in read_export(lines) if fact.type == "MasterElected"}
    assert len(elected) > 1


def test_the_verb_runs_them_all() -> None:
    answer = CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(
        cli, ["audit", "--golden", str(HERE), "--json"]
    )
    assert (answer.exit_code, json.loads(answer.output)) == (0, [])
