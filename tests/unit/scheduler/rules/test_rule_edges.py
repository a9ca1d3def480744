"""Where rules meet their bounds: cases whose answers are worked out from the text."""

from __future__ import annotations

from typing import Any

from scheduler.rules.simulate import run_scenario


def company(name: str, **about: Any) -> dict[str, Any]:
    return {"op": "company", "company": name, **about}


def worker(name: str, cores: int, **about: Any) -> dict[str, Any]:
    return {"op": "worker", "worker": name, "cores": cores, "memory_mb": 65536, **about}


def submit(app: str, of: str = "a", **about: Any) -> dict[str, Any]:
    return {"op": "submit", "app": app, "company": of, "user": "ann", **about}


def fixed(cores: int, memory_mb: int = 1024) -> dict[str, Any]:
    return {"executor_cores": cores, "executor_memory_mb": memory_mb}


def run(*commands: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """The decisions."""
    decisions: list[dict[str, Any]] = run_scenario({"settings": settings, "commands": list(commands)})["decisions"]
    return decisions


def said(decisions: list[dict[str, Any]], what: str) -> list[Any]:
    return [one[what] for one in decisions if what in one]


def test_the_bounds_of_own_sizes_concern_no_elastic_app_that_states_no_size() -> None:
    """Semantics S5, L6."""
    elastic: dict[str, Any] = {"elastic": [1, 2], "tasks": 8, "memory_per_task_mb": 8192}
    decisions = run(
        company("a"),
        worker("w1", 16),
        submit("x", **elastic),
        submit("y", **elastic, **fixed(4, 32_768)),
        own_sizes="within-bounds",
    )
    assert (said(decisions, "admitted"), said(decisions, "refused")) == (["x"], [3])


def full_of_a() -> list[dict[str, Any]]:
    """Company a has all 16 cores of two workers, in executors of 4, and b has nothing."""
    workers = worker("w1", 8), worker("w2", 8)
    return [company("a"), company("b"), *workers, submit("x", cores=16, tasks=16, **fixed(4))]


def test_tasks_that_return_in_the_turn_of_the_last_report_get_an_executor_again() -> None:
    """Semantics S6: the executor that reports found no task before those of the other one returned."""
    decisions = run(
        company("a"),
        worker("w1", 4),
        worker("w2", 4),
        submit("x", cores=8, tasks=8, **fixed(4)),
        {
            "op": "turn",
            "commands": [
                {"op": "decommission", "worker": "w2"},
                {"op": "executor_ended", "executor": "x.1", "done": True, "reason": "exited"},
            ],
        },
    )
    assert said(decisions, "executor") == ["x.0", "x.1", "x.2"]


def test_with_no_worker_registered_an_app_is_accepted_whatever_is_remembered() -> None:
    """Semantics N3: the offer of a lost worker refuses only while another worker is registered."""
    lost = [company("a"), worker("w1", 8), {"op": "worker_lost", "worker": "w1"}]
    assert said(run(*lost, submit("x", cores=16, **fixed(16))), "refused") == []
    assert said(run(*lost, worker("w2", 4), submit("x", cores=16, **fixed(16))), "refused") == [4]
    assert said(run(*lost, worker("w2", 4), submit("x", cores=8, **fixed(8))), "refused") == []


def test_an_app_that_asks_for_executors_later_is_refused_where_these_fit_nowhere() -> None:
    """Semantics N3."""
    begin = [company("a"), worker("w1", 4)]
    never = [
        submit("x", cores=16, executor_limit=0, **fixed(16)),
        submit("x", cores=16, executor_limit=0, cores_per_task=16),
        submit("x", driver=True, elastic=[0, 4], tasks=0, **fixed(16)),
    ]
    assert [said(run(*begin, app), "refused") for app in never] == [[2], [2], [2]]
    assert said(run(*begin, submit("x", driver=True, elastic=[0, 4], tasks=0, **fixed(2))), "refused") == []
    assert said(run(*begin, submit("x", driver=True, cores=0)), "refused") == []


def ledgers(*commands: dict[str, Any]) -> dict[str, Any]:
    """What company a claims and is granted in the end."""
    found: dict[str, Any] = run_scenario({"commands": list(commands)})["final"]["companies"]["a"]
    return found


def ended(executor: str, *, done: bool) -> dict[str, Any]:
    return {"op": "executor_ended", "executor": executor, "done": done, "reason": "exited" if done else "killed"}


def test_an_end_on_a_draining_worker_counts_before_what_is_done_comes_back() -> None:
    """Semantics S6, A8, N2: it was no claim there, and is owed on other workers."""
    most = {"op": "limit", "scope": "user", "company": "a", "user": "*", "name": "max_cores", "value": 12}
    final = ledgers(
        company("a"),
        worker("w1", 4),
        worker("w2", 32),
        submit("p", cores=16, **fixed(4)),
        ended("p.0", done=True),
        most,
        {"op": "drain", "worker": "w1"},
        ended("p.3", done=False),
    )
    assert final["claim"] == final["granted"] == [12, 3072]


def test_a_loss_that_is_withdrawn_raises_no_request_beyond_what_tasks_need() -> None:
    """Semantics E7, L6: e needs one executor by now, and y gets room for which e's second was to leave."""
    decisions = run(
        company("a"),
        worker("w1", 12),
        submit("e", elastic=[1, 2], tasks=8),
        {**submit("x", cores=4, **fixed(4)), "at": 5000},
        {"op": "backlog", "executor": "e.1", "waiting": 1, "running": 0, "idle": False, "at": 6000},
        {**submit("y", cores=4, **fixed(4)), "user": "bob", "at": 7000},
        {"op": "finish", "app": "x", "at": 8000},
        {"op": "settings", "at": 20_000},
    )
    assert said(decisions, "withdrawn") == ["e.1"]
    assert [one["cores"] for one in decisions if one.get("requested") == "e"] == [8, 4]
