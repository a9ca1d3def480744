"""What Spark on YARN asks for, and where, case by case (semantics L2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.rules.placement.yarn import (
    Preferences,
    expected_host_counts,
    locality_of_requested_executors,
    split_pending_requests,
)

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("yarn_locality.json").read_text())["cases"]


def test_the_file_holds_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_requests_their_split_and_the_numbers_per_host_are_those_of_spark(case: dict[str, Any]) -> None:
    expected = case["expected"]
    pending = [None if hosts is None else tuple(hosts) for hosts in case["pending_allocations"]]
    by_host: dict[str, int] = case["host_to_local_task_count"]
    split = split_pending_requests(pending, by_host)
    assert {"matched": split.matching, "unmatched": split.stale, "free": split.free} == expected["split"]

    preferences = Preferences(
        case["num_locality_aware_tasks"], by_host, tasks_per_executor=case["executor_cores"] // case["task_cpus"]
    )
    assert preferences.tasks_per_executor == expected["tasks_per_executor"]
    assert preferences.executors == expected["executors_pending"]

    matching = [hosts for index in split.matching if (hosts := pending[index]) is not None]
    counts = expected_host_counts(preferences, case["allocated_host_to_containers"], matching)
    assert counts == expected["expected_host_to_container_count"]

    requests = locality_of_requested_executors(case["num_container"], counts, case.get("racks", {}))
    assert [_sets(request.hosts, request.racks) for request in requests] == [
        _sets(request["nodes"], request["racks"]) if request else None for request in expected["requests"]
    ]


def _sets(hosts: Any, racks: Any) -> tuple[frozenset[str], frozenset[str]] | None:
    return None if hosts is None else (frozenset(hosts), frozenset(racks))
