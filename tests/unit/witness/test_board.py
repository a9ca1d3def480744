"""What the page shows of a state: it adds up at every position, and tells of each app what its explanation tells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec import to_builtins

from recovery.replay.rebuild import fold
from scheduler.model.commands import EndedExecutor
from scheduler.model.errors import UnknownApp, UnknownCompany
from scheduler.model.events import AppRegistered
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import Fact, read_export
from tests.property.given import shared, submission
from witness import board
from witness.board import SORTS, STATES, Filters
from witness.explain import explain
from witness.timeline import Timeline

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.jsonl"))


def facts_of(file: Path) -> list[Fact]:
    with file.open("rb") as lines:
        return list(read_export(lines))


@pytest.mark.parametrize("file", GOLDEN[:12], ids=lambda file: file.stem)
def test_what_is_shown_adds_up_at_every_position(file: Path) -> None:
    state = ClusterState()
    for fact in facts_of(file):
        fold(state, fact)
        if not fact.digest or fact.turn % 5:
            continue
        shown = to_builtins(board.overview(state))
        for kind in shown["capacity"]:
            assert kind["used"] + kind["held"] + kind["shut"] + kind["free"] == kind["total"], (fact.seq, kind)
            assert min(kind[part] for part in ("used", "held", "shut", "free")) >= 0, (fact.seq, kind)
        living = [app for app in state.apps.values() if app.ended is None]
        assert sum(each["pending"] + each["admitted"] for each in shown["companies"]) == len(living)
        assert sum(shown["workers"].values()) == len(state.workers)
        runs = [run["id"] for worker in to_builtins(board.fleet(state))["workers"] for run in worker["runs"]]
        assert sorted(runs) == sorted([*state.executors, *state.drivers])
        for name in state.companies:
            own = to_builtins(board.company(state, name))
            assert sum(user["pending"] for user in own["byUser"]) == own["pending"]
            assert own["shortCores"] >= 0


def test_an_exclusion_ends_by_the_clock_and_not_by_the_next_turn() -> None:
    cluster = shared({"exclude_after": 1}, w1=4, w2=16)
    cluster.turn(submission("a1", 4))
    cluster.turn(EndedExecutor(executor="a1.0", reason="failed", exit_code=1))
    ended = cluster.state.at + 3_600_000
    shown = [to_builtins(board.fleet(cluster.state, now))["workers"] for now in (None, ended - 1, ended)]
    assert [[app["app"] for worker in workers for app in worker["excludedApps"]] for workers in shown] == [
        ["a1"],
        ["a1"],
        [],
    ]


@pytest.mark.parametrize("file", GOLDEN[:12], ids=lambda file: file.stem)
def test_filters_part_the_apps_and_every_sort_has_all_of_them(file: Path) -> None:
    state = ClusterState()
    for fact in facts_of(file):
        fold(state, fact)
    everything = to_builtins(board.listed(state, Filters(state=""), most=10_000))
    assert everything["number"] == len(state.apps) == len(everything["apps"])
    single = [
        to_builtins(board.listed(state, Filters(state=each)))["number"]
        for each in STATES
        if each not in ("living", "ended", "all")
    ]
    assert sum(single) == len(state.apps)
    parts = [to_builtins(board.listed(state, Filters(state=each)))["number"] for each in ("living", "ended")]
    assert sum(parts) == len(state.apps)
    causes = Counter(each["cause"] for each in everything["apps"] if each["cause"])
    for cause, number in causes.items():
        assert to_builtins(board.listed(state, Filters(reason=cause)))["number"] == number
    names = {each["app"] for each in everything["apps"]}
    for sort in SORTS:
        up = to_builtins(board.listed(state, Filters(state=""), sort=sort, descending=False, most=10_000))["apps"]
        assert {each["app"] for each in up} == names
        first = to_builtins(board.listed(state, Filters(state=""), sort=sort, descending=False, most=2))["apps"]
        rest = to_builtins(board.listed(state, Filters(state=""), sort=sort, descending=False, start=2, most=10_000))[
            "apps"
        ]
        assert [*first, *rest] == up
    with pytest.raises(UnknownApp):
        board.one(state, "nobody")
    with pytest.raises(UnknownCompany):
        to_builtins(board.company(state, "nobody"))


@pytest.mark.parametrize("file", GOLDEN[:12], ids=lambda file: file.stem)
def test_a_timeline_has_the_waits_and_the_executors_of_the_explanation(file: Path) -> None:
    facts = facts_of(file)
    apps = sorted({event.app for fact in facts if isinstance(event := fact.event, AppRegistered)})
    for app in apps[:: max(1, len(apps) // 2)]:
        line, due = Timeline(app), explain(facts, app)
        line.hear(facts)
        told = line.told(0)
        waited: Counter[str] = Counter()
        for each in told["waits"]:
            assert each["from"] < each["to"]
            waited[each["cause"]] += each["to"] - each["from"]
        expected: Counter[str] = Counter()
        for each in due["waited"]["byCause"]:
            expected[each["cause"]] += each["ms"]
        assert waited == expected, app
        executors = [each["id"] for each in told["executors"] if each["what"] == "executor"]
        assert executors == [each["executor"] for each in due["executors"]][-400:]
        assert told["asked"] == [] or told["asked"][0]["command"] == "SubmitApp"
    with pytest.raises(UnknownApp):
        Timeline("nobody").told(0)
