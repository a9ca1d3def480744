"""An extension that outlasts the beginning of a window says what leaves before (semantics W14)."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from fairlog.cli.session import Session
from fairlog.cli.verbs.changes import ending_before
from scheduler.model.commands import AddWindow, ExtendApp, StartedExecutor
from scheduler.rules.view.views import VIEWS
from tests.property.given import Cluster, shared, submission


class Seen:
    """What a session answers of a state."""

    def __init__(self, cluster: Cluster) -> None:
        self._state = cluster.state

    def ask(self, view: str, **arguments: object) -> Any:
        return to_builtins(VIEWS[view](self._state, **arguments))


def said(cluster: Cluster, *names: str) -> list[str]:
    return list(ending_before(cast("Session", Seen(cluster)), names))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """One with an app of two minutes on each of its workers, of which one has a window in five."""
    monkeypatch.setenv("TZ", "UTC")
    made = shared({"kill_grace_s": 25}, w1=8, w2=8)
    made.turn(*[replace(submission(name, 8), max_runtime_s=120) for name in ("a1", "a2")])
    made.turn(*[StartedExecutor(executor=name) for name in list(made.state.executors)])
    begin = made.state.at + 301_000
    made.turn(AddWindow(window="disks", workers=("w1",), begin=begin, end=begin + 60_000, notice_s=60))
    return made


def test_an_app_that_ends_before_the_window_is_told_nothing(cluster: Cluster) -> None:
    cluster.turn(ExtendApp(app="a1", by_s=60))
    assert said(cluster, "a1", "a2", "unknown") == []


def test_an_app_that_runs_longer_is_told_where_and_when_it_leaves(cluster: Cluster) -> None:
    cluster.turn(ExtendApp(app="a1", by_s=600), ExtendApp(app="a2", by_s=600))
    [sentence] = said(cluster, "a1", "unknown")
    assert sentence == (
        "Note: what runs of a1 on worker w1 leaves sooner, by 1970-01-01 00:04:37Z, before the window disks begins"
    )


def test_nobody_is_told_anything_without_windows() -> None:
    assert said(shared(w1=8), "a1") == []
