"""Preemption cases of another scheduler's fair sharing, translated and held against reclaiming (semantics E1-E4).

The file kueue_preemption.json is not part of the repository; FAIRLOG_PEERS names the folder that holds it. A queue is a
company, a workload an app of one fixed executor; 1 CPU is 8 cores. What both must agree on: nothing is taken where the
other takes nothing; a queue that only takes back its nominal quota gets room from companies beyond theirs; and where
the other also preempts within a queue or beyond the nominal quota, which these rules do not, at most the same queues
lose something.
"""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from scheduler.rules.simulate import run_scenario

FILE = Path(os.environ.get("FAIRLOG_PEERS", ".")) / "kueue_preemption.json"
QUOTAS = {"a": 24, "b": 24, "c": 24, "preemptible": 0}
CLUSTER = 72


def cases() -> list[dict[str, Any]]:
    """Those of the flat base set-up of three queues with 3 CPU each and one without any."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else []
    return [case for case in found if case["base"] and not case["cohorts"]]


CASES = cases()


def cores(workload: dict[str, Any]) -> int:
    return int(Fraction(workload["cpu"]) * 8)


def submit(workload: dict[str, Any], company: str) -> dict[str, Any]:
    size = cores(workload)
    sizes = {"cores": size, "executor_cores": size, "executor_memory_mb": 1024 * size}
    return {"op": "submit", "app": workload["name"], "company": company, "user": "u", **sizes}


def revoked(case: dict[str, Any]) -> list[str]:
    """The names of the workloads whose executors are told to leave for the incoming one."""
    companies = [
        {"op": "company", "company": name, "cores": quota, "memory_mb": 1024 * quota, "borrow": True}
        for name, quota in QUOTAS.items()
    ]
    worker = {"op": "worker", "worker": "w", "cores": CLUSTER, "memory_mb": 1024 * CLUSTER}
    admitted = [submit(each, each["cq"]) for each in case["admitted"]]
    commands = [*companies, worker, *admitted, submit(case["incoming"], case["target"])]
    decisions = run_scenario({"settings": {}, "commands": commands})["decisions"]
    granted = {one["granted"] for one in decisions if "granted" in one}
    assert {each["name"] for each in case["admitted"]} <= granted
    lost = [one for one in decisions if "revoked" in one]
    assert {one["claimant"] for one in lost} <= {case["incoming"]["name"]}
    return [one["revoked"].rpartition(".")[0] for one in lost]


@pytest.mark.skipif(not CASES, reason="FAIRLOG_PEERS does not name a folder with kueue_preemption.json")
def test_the_flat_cases_are_all_there() -> None:
    assert len(CASES) == 19


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_is_taken_agrees_with_the_other_scheduler(case: dict[str, Any]) -> None:
    owner = {each["name"]: each["cq"] for each in case["admitted"]}
    size = {each["name"]: cores(each) for each in case["admitted"]}
    taken = revoked(case)
    held = {queue: sum(size[name] for name, mine in owner.items() if mine == queue) for queue in QUOTAS}
    assert all(held[owner[name]] > QUOTAS[owner[name]] for name in taken)
    reasons = {reason for _, reason in case["want"]}
    if not reasons:
        assert taken == []
    elif reasons == {"InCohortReclamationReason"}:
        room = CLUSTER - sum(held.values()) + sum(size[name] for name in taken)
        assert room >= cores(case["incoming"])
    else:
        assert {owner[name] for name in taken} <= {owner[name] for name, _ in case["want"]}
