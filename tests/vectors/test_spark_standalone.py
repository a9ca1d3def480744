"""One app on one cluster, one pass, against real Spark (semantics S5, P1, P2, P4, A1)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scheduler.model.resources import Resources
from tests.vectors.spark import Master, cases, launched, launches, submission, without_app

CASES = cases("spark_standalone")


def test_the_file_holds_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_pass_launches_exactly_what_spark_launches(case: dict[str, Any]) -> None:
    app, expected = case["app"], case["expected"]
    master = Master(case)
    submit = submission(app, "app", case)
    turn = master.arrivals([(submit, app["running"])])
    least = Resources.of(
        app["cores_per_executor"] or 1, app["memory_per_executor_mb"], **(app.get("resources_per_executor") or {})
    )
    usable = master.state.fleet.candidates(least, master.state.settings.worker_selection)
    walked = [worker for worker, _ in usable]
    granted = launches(master.one_pass(turn))
    ours = master.state.apps["app"]
    assert [without_app(launched(event)) for event in granted] == expected["executors"]
    assert ours.left_cores == expected["cores_left_after"]
    assert ours.left_cores + sum(event.resources.cores for event in granted) == expected["cores_left_before"]
    cores: Counter[str] = Counter()
    for event in granted:
        cores[event.worker] += event.resources.cores
    if expected["cores_left_before"] >= (app["cores_per_executor"] or 1):
        assert walked == expected["usable_workers"]
    assert [cores[worker] for worker in expected["usable_workers"]] == expected["assigned_cores"]
    assert ("RUNNING" if granted else "WAITING") == expected["app_state"]
