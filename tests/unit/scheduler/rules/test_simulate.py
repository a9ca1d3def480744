"""A scenario in, its decisions and final state out, no store needed."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from scheduler.model.commands import Command
from scheduler.model.errors import InvalidCommand, InvalidSetting
from scheduler.rules.simulate import _OPERATIONS, run_scenario

COMPANY = {"op": "company", "company": "acme"}
WORKER = {"op": "worker", "worker": "w1", "cores": 16, "memory_mb": 65536}
SUBMIT = {"op": "submit", "app": "a1", "company": "acme", "user": "ann", "cores": 8}


def run(*commands: object, edition: int = 3, **settings: object) -> dict[str, Any]:
    return run_scenario({"edition": edition, "settings": settings, "commands": list(commands)})


def test_an_app_is_admitted_and_placed() -> None:
    assert run(COMPANY, WORKER, SUBMIT) == {
        "decisions": [
            {"admitted": "a1"},
            {"granted": "a1", "executor": "a1.0", "worker": "w1", "cores": 8, "memory_mb": 4096},
        ],
        "final": {
            "companies": {
                "acme": {
                    "claim": [8, 4096],
                    "requested": [8, 4096],
                    "granted": [8, 4096],
                }
            },
            "free": {"w1": 8},
            "waitingApps": ["a1"],
            "pending": {},
        },
    }


def test_settings_are_those_of_the_scenario_from_the_start() -> None:
    decisions = run(COMPANY, WORKER, SUBMIT, max_executor_cores=4)["decisions"]
    assert [decision["cores"] for decision in decisions[1:]] == [4, 4]


def test_a_scenario_without_settings_runs_under_the_defaults() -> None:
    assert run_scenario({"commands": [COMPANY, WORKER, SUBMIT]}) == run(COMPANY, WORKER, SUBMIT)


def test_settings_change_in_the_middle() -> None:
    change = {"op": "settings", "max_executor_cores": 4}
    decisions = run(COMPANY, WORKER, change, SUBMIT)["decisions"]
    assert [decision["cores"] for decision in decisions[1:]] == [4, 4]


def test_commands_of_a_turn_arrive_together() -> None:
    """Semantics T2: b was submitted first, but both wait when admission starts, and a goes first by name."""
    companies = [{"op": "company", "company": name, "cores": 64, "memory_mb": 65536} for name in ("a", "b")]
    submits = [{**SUBMIT, "app": name, "company": name} for name in ("b", "a")]
    together = run(*companies, WORKER, {"op": "turn", "commands": submits})
    apart = run(*companies, WORKER, *submits)
    assert together["final"]["waitingApps"] == ["a", "b"]
    assert apart["final"]["waitingApps"] == ["b", "a"]


def test_finish_ends_the_executors_and_the_app_in_one_turn() -> None:
    outcome = run(COMPANY, WORKER, SUBMIT, {"op": "finish", "app": "a1"}, {**SUBMIT, "app": "a2"})
    assert outcome["final"]["waitingApps"] == ["a2"]
    assert outcome["final"]["free"] == {"w1": 8}
    assert len(outcome["decisions"]) == 4


def test_finish_takes_an_app_that_was_never_admitted_out_of_its_queue() -> None:
    assert run(COMPANY, SUBMIT)["final"]["pending"] == {"acme": {"ann": ["a1"]}}
    assert run(COMPANY, SUBMIT, {"op": "finish", "app": "a1"})["final"]["pending"] == {}


def test_a_killed_apps_executors_hold_their_cores_until_they_are_gone() -> None:
    killed = [COMPANY, WORKER, SUBMIT, {"op": "kill", "app": "a1"}]
    assert run(*killed)["final"]["free"] == {"w1": 8}
    gone = {"op": "executor_ended", "executor": "a1.0", "reason": "killed"}
    assert run(*killed, gone)["final"]["free"] == {"w1": 16}


def test_a_refused_command_is_a_decision_named_by_its_index() -> None:
    kill = {"op": "kill", "app": "x"}
    outcome = run(COMPANY, kill, {"op": "turn", "commands": [WORKER, kill]})
    assert outcome["decisions"] == [{"refused": place, "error": "UnknownApp"} for place in (1, [2, 1])]
    assert outcome["final"]["free"] == {"w1": 16}


def test_workers_drain_come_back_are_lost_and_are_removed() -> None:
    named = {"worker": "w1"}
    assert run(COMPANY, WORKER, {"op": "drain", **named}, SUBMIT)["final"]["pending"] == {"acme": {"ann": ["a1"]}}
    assert run(COMPANY, WORKER, {"op": "drain", **named}, {"op": "undrain", **named}, SUBMIT)["decisions"]
    assert run(COMPANY, WORKER, {"op": "remove", **named}, SUBMIT)["decisions"] == []
    assert run(COMPANY, WORKER, SUBMIT, {"op": "worker_lost", **named})["final"]["free"] == {}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("submit", "command 1: an operation must be an object with an \"op\", not 'submit'"),
        ({}, 'command 1: an operation must be an object with an "op", not {}'),
        ({"op": "explode"}, "command 1: no operation is named 'explode'; the operations are company, worker, submit"),
        ({"op": 7}, "command 1: no operation is named 7"),
        ({"op": "company"}, "command 1: company: company cannot be read: it is missing"),
        ({**COMPANY, "cores": "many"}, "command 1: company: cores cannot be read: expected int | null, got str"),
        ({**COMPANY, "colour": "red"}, "command 1: company: colour cannot be read: there is no such field"),
        ({"op": "turn"}, 'command 1: a turn must be an object {"op": "turn", "commands": […]}'),
        ({"op": "turn", "commands": "abc"}, "command 1: a turn must be an object"),
        ({**COMPANY, "at": -1}, 'command 1: "at" must be a time in ms, at least 0 here, not -1'),
        ({**COMPANY, "at": "noon"}, 'command 1: "at" must be a time in ms'),
    ],
)
def test_a_command_that_cannot_be_carried_out_is_named_by_its_number(command: object, sentence: str) -> None:
    with pytest.raises(InvalidCommand) as raised:
        run(command)
    assert str(raised.value).startswith(sentence)


def test_the_number_is_that_of_the_command_in_the_scenario() -> None:
    with pytest.raises(InvalidCommand, match=r"^command 3: kill: app cannot be read"):
        run(COMPANY, WORKER, {"op": "kill"})


@pytest.mark.parametrize("scenario", [[], None, {}, {"commands": {}}, {"commands": None}])
def test_what_is_no_scenario_is_refused(scenario: dict[str, Any]) -> None:
    with pytest.raises(InvalidCommand, match=r"^a scenario must be an object"):
        run_scenario(scenario)


def test_settings_that_are_no_settings_are_refused() -> None:
    with pytest.raises(InvalidCommand, match=r'^"settings" must be an object'):
        run_scenario({"settings": [], "commands": []})
    with pytest.raises(InvalidSetting, match=r"^no setting is named 'colour'"):
        run(colour="red")


def test_time_never_goes_back() -> None:
    with pytest.raises(InvalidCommand, match=r"^command 2: \"at\" must be a time in ms, at least 500"):
        run({**COMPANY, "at": 500}, {**WORKER, "at": 499})


def test_a_company_is_changed() -> None:
    """Semantics C6: what it may borrow is known from the next turn on."""
    initech = {**COMPANY, "company": "initech"}
    more = [{**SUBMIT, "app": "a2"}, {"op": "change_company", "company": "acme", "borrow": True}]
    assert run({**COMPANY, "borrow": False}, initech, WORKER, SUBMIT, more[0])["final"]["waitingApps"] == ["a1"]
    assert run({**COMPANY, "borrow": False}, initech, WORKER, SUBMIT, *more)["final"]["waitingApps"] == ["a1", "a2"]


NEAR = [
    {**WORKER, "worker": "w1", "host": "h1", "rack": "/r1"},
    {**WORKER, "worker": "w2", "host": "h2", "rack": "/r1"},
    {**WORKER, "worker": "w3", "host": "h3", "rack": "/r2"},
]


def test_a_demand_is_stated_and_its_patience_runs_out_in_a_scenario() -> None:
    scale = {"op": "scale", "app": "a1", "executors": 12, "prefer": {"h1": 99}, "at": 1000}
    later = {"op": "settings", "at": 20_000}
    outcome = run(COMPANY, *NEAR, {**SUBMIT, "cores": 4}, scale, later, locality_wait_host_ms=10)
    assert outcome["final"]["companies"]["acme"] == {
        "claim": [48, 24576],
        "requested": [48, 24576],
        "granted": [48, 24576],
    }
    reached = [(one["worker"], one["locality"]) for one in outcome["decisions"] if "locality" in one]
    assert {worker for worker, locality in reached if locality == "host"} == {"w1"}
    assert {worker for worker, locality in reached if locality == "rack"} == {"w2"}
    assert {worker for worker, locality in reached if locality == "any"} == {"w3"}


def test_an_elastic_app_grows_and_gives_back_in_a_scenario() -> None:
    elastic = {"op": "submit", "app": "e", "company": "acme", "user": "ann", "elastic": [1, 4], "tasks": 90}
    idle = [
        {"op": "backlog", "executor": f"e.{n}", "waiting": 0, "running": 1, "idle": True, "at": 9000}
        for n in range(1, 4)
    ]
    stopped = {"op": "executor_ended", "executor": "e.1", "reason": "killed", "at": 80_000}
    outcome = run(COMPANY, *NEAR, elastic, *idle, stopped)
    requested = [one["cores"] for one in outcome["decisions"] if "requested" in one]
    assert requested == [8, 16, 4]
    assert [one["given_back"] for one in outcome["decisions"] if "given_back" in one] == ["e.1", "e.2", "e.3"]
    assert outcome["final"]["companies"]["acme"]["requested"] == [4, 2048]


def test_an_app_whose_driver_waits_leaves_when_it_finishes() -> None:
    driver = {**SUBMIT, "driver": True}
    assert run(COMPANY, WORKER, driver, {"op": "finish", "app": "a1"}, max_drivers=0)["final"]["waitingApps"] == []


def test_a_company_without_apps_can_be_removed() -> None:
    assert run(COMPANY, {"op": "remove_company", "company": "acme"})["final"]["companies"] == {}


RACKED = [
    {**WORKER, "worker": f"w{number}", "cores": cores, "host": f"h{number}", "rack": rack}
    for number, cores, rack in [(1, 4, "r1"), (2, 2, "r1"), (3, 2, "r2")]
]


def reached(outcome: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["worker"], one["locality"]) for one in outcome["decisions"] if "locality" in one]


def test_a_strict_request_for_a_host_waits_while_others_are_served_elsewhere() -> None:
    """Semantics L5: nobody waits for h9, which has no worker; one of three requests names h1 too, which is full."""
    full = {**SUBMIT, "app": "full", "cores": 4, "executor_cores": 4, "executor_memory_mb": 1024}
    none_yet = {**SUBMIT, "cores": 3, "executor_cores": 1, "executor_memory_mb": 1024, "executor_limit": 0}
    prefer = {"prefer": {"h1": 1, "h9": 3}, "preferring_tasks": 4}
    outcome = run(
        COMPANY,
        RACKED[0],
        full,
        *RACKED[1:],
        none_yet,
        {"op": "scale", "app": "a1", "executors": 3, **prefer, "at": 1000},
        {"op": "finish", "app": "full", "at": 2000},
    )
    assert reached(outcome) == [("w3", "any"), ("w2", "rack"), ("w1", "host")]


def test_an_executor_without_a_preference_says_how_near_it_came_all_the_same() -> None:
    """Semantics L5: two tasks that prefer h1 fill one executor, the others may go anywhere."""
    none_yet = {**SUBMIT, "executor_cores": 2, "executor_memory_mb": 1024, "executor_limit": 0}
    outcome = run(COMPANY, *RACKED, none_yet, {"op": "scale", "app": "a1", "executors": 4, "prefer": {"h1": 2}})
    assert sorted(reached(outcome)) == [("w1", "host"), ("w1", "host"), ("w2", "rack"), ("w3", "any")]


def test_every_command_has_an_operation() -> None:
    """Settings have the operation `settings`, an edition `edition`, an end that a worker reports has `finish`."""
    kinds = {kind.__name__ for kind in get_args(Command)} - {
        "ConfigureCluster",
        "ChangeEdition",
        "RestoreLog",
        "AcceptLog",
        "EndApp",
    }
    assert kinds == set(_OPERATIONS.values())


def test_a_scenario_has_every_kind_of_decision_of_the_rules() -> None:
    """Semantics Z: the answer names what is needed, reclaimed, expired, limited, ready and refused."""
    commands: list[dict[str, Any]] = [
        *({"op": "company", "company": name} for name in "ab"),
        {"op": "worker", "worker": "w1", "cores": 16, "memory_mb": 65536, "resources": {"gpu": ["0", "1"]}},
        {"op": "limit", "scope": "company", "company": "a", "name": "max_gpu", "value": 1},
        {"op": "submit", "app": "x", "company": "a", "user": "u", "cores": 12, "max_runtime_s": 9, "warn": ["USR1", 2]},
        *(
            {"op": "submit", "app": app, "company": "a", "user": "u", "cores": 4, "tasks": 1, "task_resources": gpus}
            for app, gpus in (("g", {"gpu": "2"}), ("h", {"gpu": "1"}))
        ),
        {"op": "submit", "app": "late", "company": "a", "user": "u", "cores": 4, "after": {"any": ["x"]}, "hold": True},
        {"op": "executor_running", "executor": "x.0", "at": 1000},
        {"op": "submit", "app": "y", "company": "b", "user": "u", "cores": 8},
        {"op": "reprioritize", "app": "late", "priority": 3},
        {"op": "extend", "app": "x", "by_s": 1},
        {"op": "finish", "app": "x", "at": 60_000},
        {"op": "release", "app": "late"},
    ]
    found = run_scenario({"commands": commands})["decisions"]
    kinds = {next(iter(decision)) for decision in found}
    assert {
        "admitted",
        "granted",
        "refused",
        "need",
        "target",
        "revoked",
        "target_ended",
        "warned",
        "expired",
        "ready",
    } <= kinds
    assert {"refused": 5, "error": "LimitExceeded"} in found
    assert next(each for each in found if each.get("executor") == "h.0")["addresses"] == {"gpu": ["0"]}


LATER = {"op": "settings", "retained_apps": 100}


def played(*commands: object, **settings: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_scenario({"settings": settings, "commands": list(commands)}, timed=True)[
        "decisions"
    ]
    return found


def test_with_times_who_is_told_to_leave_ends_at_its_date() -> None:
    """Semantics H7."""
    second = {**SUBMIT, "app": "b1", "company": "b"}
    found = played(
        COMPANY,
        {"op": "company", "company": "b"},
        WORKER,
        {**SUBMIT, "cores": 16},
        second,
        {**LATER, "at": 9000},
        reclaim_patience_s=5,
        min_runtime_s=0,
    )
    told = next(each for each in found if "revoked" in each)
    ended = next(each for each in found if "ended" in each)
    assert (ended["ended"], ended["at"], ended["reason"]) == (told["revoked"], told["deadline"], "reclaimed")
    granted = [(each["at"], each["granted"]) for each in found[found.index(ended) :] if "granted" in each]
    assert granted == [(ended["at"], app) for app in ("a1", "b1", "a1", "b1")]


def test_with_times_a_scenario_may_end_it_before_and_without_a_date_nothing_does() -> None:
    """Semantics H7."""
    submitted = [COMPANY, {"op": "company", "company": "b"}, WORKER, {**SUBMIT, "cores": 16}]
    second = {**SUBMIT, "app": "b1", "company": "b"}
    end = {"op": "executor_ended", "executor": "a1.0", "reason": "killed", "at": 3000}
    quick = {"reclaim_patience_s": 5, "min_runtime_s": 0}
    found = played(*submitted, second, end, {**LATER, "at": 90_000}, **quick)
    assert [each["at"] for each in found if each.get("ended") == "a1.0"] == [3000]
    assert not any("refused" in each for each in found)
    found = played(*submitted, second, {**LATER, "at": 9_000_000}, reclaim_patience_s=None)
    assert any("revoked" in each for each in found)
    assert not any("ended" in each for each in found)


@pytest.mark.parametrize(("grace", "ends"), [({}, 30_100), ({"grace_s": 0}, 101), ({"grace_s": 60}, 60_100)])
def test_with_times_what_is_killed_ends_once_its_grace_is_over(grace: Any, ends: int) -> None:
    """Semantics A5, G5."""
    kill = {"op": "kill", "app": "a1", "at": 100}
    found = played(COMPANY, WORKER, {**SUBMIT, **grace}, kill, {**LATER, "at": 90_000})
    assert [each["at"] for each in found if each.get("ended") == "a1.0"] == [ends]
