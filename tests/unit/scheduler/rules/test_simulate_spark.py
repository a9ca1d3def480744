"""Scenarios of executors and drivers as in Spark run without a store."""

from __future__ import annotations

from typing import Any

from scheduler.rules.simulate import run_scenario

COMPANY = {"op": "company", "company": "acme"}
WORKER = {"op": "worker", "worker": "w1", "cores": 4, "memory_mb": 65536}
APP = {"op": "submit", "app": "a1", "company": "acme", "user": "ann", "cores": 4, "executor_memory_mb": 1024}
FIXED = {**APP, "executor_cores": 2}
DRIVER = {"op": "submit", "app": "d1", "company": "acme", "user": "ann", "driver": True}


def run(*commands: object, **settings: object) -> list[dict[str, Any]]:
    decisions: list[dict[str, Any]] = run_scenario({"settings": settings, "commands": [COMPANY, *commands]})[
        "decisions"
    ]
    return [decision for decision in decisions if "admitted" not in decision]


def workers(decisions: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(decision["worker"], decision["cores"]) for decision in decisions]


def test_fixed_executors_and_growing_ones_are_placed() -> None:
    assert workers(run(WORKER, FIXED)) == [("w1", 2), ("w1", 2)]
    assert workers(run(WORKER, APP)) == [("w1", 4)]


def test_cores_are_unlimited_where_admission_is_open() -> None:
    submit = {**FIXED, "cores": "unlimited", "tasks": 3}
    assert workers(run(WORKER, submit, {**WORKER, "worker": "w2"}, admission="open")) == [
        ("w1", 2),
        ("w1", 2),
        ("w2", 2),
        ("w2", 2),
    ]


def test_demand_is_stated_anew_and_executors_are_killed_and_end() -> None:
    steps = (
        {**FIXED, "executor_limit": 1},
        {"op": "executor_running", "executor": "a1.0"},
        {"op": "scale", "app": "a1", "executors": 2},
        {"op": "kill_executors", "app": "a1", "executors": ["a1.0"]},
    )
    ended = {"op": "executor_ended", "executor": "a1.0", "reason": "killed"}
    assert [next(iter(one)) for one in run(WORKER, *steps)] == ["granted", "requested", "granted"]
    assert [next(iter(one)) for one in run(WORKER, *steps, ended)] == ["granted", "requested", "granted", "granted"]


def test_a_decommission_places_nothing_until_the_next_command() -> None:
    gone = {"op": "decommission", "worker": "w1"}
    other = {**WORKER, "worker": "w0"}
    assert workers(run(WORKER, FIXED, {"op": "turn", "commands": [other]}, gone)) == [("w1", 2)] * 2
    assert workers(run(WORKER, FIXED, other, gone, {"op": "settings", "default_cores": 4})) == [
        *[("w1", 2)] * 2,
        *[("w0", 2)] * 2,
    ]


def test_a_driver_is_placed_and_its_app_ends_with_it() -> None:
    placed = {"driver": "d1", "worker": "w1", "cores": 1, "memory_mb": 1024}
    assert run(WORKER, DRIVER) == [placed]
    ended = {"op": "driver_ended", "driver": "d1.driver-0"}
    for end in (ended, {"op": "finish", "app": "d1"}):
        outcome = run_scenario({"commands": [COMPANY, WORKER, DRIVER, end]})
        assert outcome["final"]["waitingApps"] == []
        assert outcome["final"]["free"] == {"w1": 4}
    failing = {**ended, "reason": "failed", "exit_code": 1}
    assert run(WORKER, {**DRIVER, "supervise": True}, failing) == [placed, placed]


def test_apps_are_packed_by_the_rules_before_spark_1_4() -> None:
    both = {"op": "turn", "commands": [{**APP, "cores": 3}, {**APP, "app": "a2", "cores": 3}]}
    decisions = run(WORKER, {**WORKER, "worker": "w0"}, both, placement="classic-pack", admission="open")
    assert workers(decisions) == [("w1", 3), ("w1", 1), ("w0", 2)]
