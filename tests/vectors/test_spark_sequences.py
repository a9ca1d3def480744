"""Several apps in one pass, against real Spark (semantics A6, P6, S5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.spark import Master, cases, launched, launches, submission, without_app

CASES = cases("spark_sequences")


def test_the_file_holds_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_app_gets_exactly_what_spark_gives_it(case: dict[str, Any]) -> None:
    master = Master(case)
    turn = master.arrivals([(submission(app, app["name"], case), app["running"]) for app in case["apps"]])
    granted = launches(master.one_pass(turn))
    by_app = [
        {
            "name": name,
            "state": "RUNNING" if any(event.app == name for event in granted) else "WAITING",
            "cores_granted": master.state.apps[name].granted.cores,
            "executors": [without_app(launched(event)) for event in granted if event.app == name],
        }
        for name in (app["name"] for app in case["apps"])
    ]
    assert by_app == case["expected"]["apps"]
    in_order = list(dict.fromkeys(event.app for event in granted))
    assert in_order == [app["name"] for app in case["apps"] if app["name"] in in_order]
    for worker in case["expected"]["workers_after"]:
        ours = master.state.workers[worker["id"]]
        assert (ours.offer.cores - ours.free.cores, ours.offer.memory_mb - ours.free.memory_mb) == (
            worker["cores_used"],
            worker["memory_used_mb"],
        )
