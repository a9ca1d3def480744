"""Drivers, and the executors after them, against real Spark (semantics D1, D2, D4).

Where drivers are spread Spark draws; here the log position does, so several positions are tried, and
what Spark was seen to do in a hundred runs bounds what they give.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scheduler.model.events import DriverAllocated, MasterElected
from tests.vectors.spark import Master, cases, driver_submission, launched, launches, submission

CASES = cases("spark_drivers")
EXACT = [case for case in CASES if not case["spread_out_drivers"]]
SPREAD = [case for case in CASES if case["spread_out_drivers"]]
RUNS = 10


def test_the_file_holds_cases() -> None:
    assert EXACT
    assert SPREAD


@pytest.mark.parametrize("case", EXACT, ids=[case["name"] for case in EXACT])
def test_first_fit_places_exactly_what_spark_places(case: dict[str, Any]) -> None:
    placement, executors = _placed(case, 0)
    assert placement == case["expected"]["placement"]
    assert executors == case["expected"]["executors"]


@pytest.mark.parametrize("case", SPREAD, ids=[case["name"] for case in SPREAD])
def test_a_spread_keeps_to_what_holds_of_every_run_of_spark(case: dict[str, Any]) -> None:
    due = case["expected"]["invariants"]
    usable = {worker["id"]: worker for worker in case["workers"] if worker["state"] == "ALIVE"}
    sizes = {driver["name"]: driver for driver in case["drivers"]}
    for position in range(RUNS):
        placement, _ = _placed(case, position)
        assert due["launched_min"] <= len(placement) <= due["launched_max"]
        assert set(due["always_launched"]) <= placement.keys()
        assert not set(due["never_launched"]) & placement.keys()
        assert max(Counter(placement.values()).values(), default=0) <= due["max_drivers_on_one_worker"]
        for name, worker in placement.items():
            offer, driver = usable[worker], sizes[name]
            assert offer["cores"] - offer["cores_used"] >= driver["cores"]
            assert offer["memory_mb"] - offer["memory_used_mb"] >= driver["memory_mb"]


def _placed(case: dict[str, Any], position: int) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Where one pass puts the drivers and executors, that many positions further in the log."""
    master = Master(case)
    for _ in range(position):
        master.state.apply(MasterElected(master="m1"), at=master.state.at)
    waiting = [driver_submission(driver) for driver in case["drivers"]]
    waiting += [submission(app, app["name"], case) for app in case["apps"]]
    events = master.one_pass(master.arrivals((submit, ()) for submit in waiting))
    placement = {event.app: event.worker for event in events if isinstance(event, DriverAllocated)}
    return placement, [launched(event) for event in launches(events)]
