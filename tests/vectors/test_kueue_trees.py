"""What leaves where companies are in departments, as in tests of Kueue's cohorts (semantics H12).

Each case is small and our own: a queue is a company without a quota unless it says one, a cohort with a quota is a
department, a workload an app of one executor; all of the cluster is held. docs/departments.md says what is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from scheduler.rules.simulate import run_scenario

App = tuple[str, str, int] | tuple[str, str, int, int]
"""Its name, company and cores, and its priority unless that is 0."""


class Case(NamedTuple):
    """A tree, who holds what, who comes, and who leaves for it."""

    departments: dict[str, tuple[str, int]]
    """Department -> the one that it is in, and the cores of its quota."""
    companies: dict[str, tuple[str, int]]
    """Company -> its department, and the cores of its quota."""
    holds: list[App]
    comes: App
    leaves: set[str]


def one_department(cores: int, **companies: int) -> dict[str, Any]:
    """The department d with the company q and those whose name begins with `in`; the others are in none."""
    places = {name: ("d" if name == "q" or name.startswith("in") else "", quota) for name, quota in companies.items()}
    return {"departments": {"d": ("", cores)}, "companies": places}


SAME = {
    "a department's quota comes back from who is in none": Case(
        **one_department(16, q=0, out=0), holds=[("x", "out", 16)], comes=("new", "q", 16), leaves={"x"}
    ),
    "who holds its own quota loses nothing, whatever its priority": Case(
        **one_department(16, q=0, out=0, own=16),
        holds=[("mine", "own", 16, -10), ("x", "out", 16)],
        comes=("new", "q", 16),
        leaves={"x"},
    ),
    "two small ones leave for a large one": Case(
        **one_department(16, q=0, out=0),
        holds=[("x", "out", 8, 1), ("y", "out", 8, 2)],
        comes=("new", "q", 16),
        leaves={"x", "y"},
    ),
    "who is above comes before the company's own apps": Case(
        **one_department(16, q=0, out=0),
        holds=[("x", "out", 8, 1), ("mine", "q", 8, -2)],
        comes=("new", "q", 8),
        leaves={"x"},
    ),
    "a company's own quota comes back from in and outside of its department": Case(
        **one_department(48, q=32, out=0, inside=0),
        holds=[("x", "out", 24, 10), ("y", "inside", 24, 10)],
        comes=("new", "q", 32),
        leaves={"x", "y"},
    ),
    "nobody leaves where each department holds its quota": Case(
        {"d": ("", 16), "e": ("", 16)},
        {"q": ("d", 0), "inside": ("d", 0), "other": ("e", 0)},
        holds=[("x", "other", 8, -10), ("y", "other", 8, -10), ("z", "inside", 16)],
        comes=("new", "q", 16),
        leaves=set(),
    ),
    "of two that are above only as many leave as are needed, at any depth": Case(
        {"l": ("", 96), "r": ("", 32), "a": ("l", 32), "b": ("l", 32), "c": ("l", 32), "aa": ("a", 32)},
        {"q": ("aa", 0), "other": ("b", 0), "third": ("c", 0), "far": ("r", 0)},
        holds=[("f1", "far", 32), ("f2", "far", 32), ("o1", "other", 32), ("t1", "third", 32)],
        comes=("new", "q", 32),
        leaves={"f2"},
    ),
}
"""Where the same leave as with Kueue."""

OTHERS = {
    "of a company's apps the last granted one leaves, not the one of the lowest priority": Case(
        **one_department(24, q=0, out=0),
        holds=[("x", "out", 8, 8), ("y", "out", 8, 9), ("z", "out", 8, 9)],
        comes=("new", "q", 8),
        leaves={"z"},
    ),
    "nobody leaves for a higher priority within a company": Case(
        **one_department(16, q=0), holds=[("mine", "q", 16, -5)], comes=("new", "q", 16, 5), leaves=set()
    ),
    "nobody leaves for a higher priority within a department": Case(
        **one_department(16, q=0, inside=0), holds=[("x", "inside", 16, -5)], comes=("new", "q", 16, 5), leaves=set()
    ),
    "who is above leaves whatever its priority, not who holds its department's quota": Case(
        **one_department(32, q=0, out=0, inside=0),
        holds=[("x", "out", 16, -1), ("y", "out", 16, 1), ("z", "inside", 8, -1)],
        comes=("new", "q", 24),
        leaves={"x", "y"},
    ),
    "of weights of 0 what is held stays": Case(
        {"d": ("", 0), "e": ("", 0)},
        {"q": ("d", 0), "other": ("e", 0)},
        holds=[("x", "other", 8)],
        comes=("new", "q", 8),
        leaves=set(),
    ),
}
"""Where others leave than with Kueue, by the rules that the page names."""

CASES = {**SAME, **OTHERS}


def revoked(case: Case, *before_it_comes: dict[str, Any]) -> set[str]:
    """The apps whose executors are told to leave for the one that comes."""

    def submit(name: str, company: str, cores: int, priority: int = 0) -> dict[str, Any]:
        size = {"cores": cores, "executor_cores": cores, "executor_memory_mb": 1024 * cores}
        return {"op": "submit", "app": name, "company": company, "user": "u", "priority": priority, **size}

    def amounts(cores: int) -> dict[str, int]:
        return {"cores": cores, "memory_mb": 1024 * cores}

    total = sum(each[2] for each in case.holds)
    commands: list[dict[str, Any]] = [{"op": "worker", "worker": "w", **amounts(total)}]
    for name, (parent, cores) in case.departments.items():
        commands.append({"op": "department", "department": name, "parent": parent, "borrow_limit": "none"})
        commands[-1] |= amounts(cores)
    for name, (department, cores) in case.companies.items():
        commands.append({"op": "company", "company": name, "borrow": True, **amounts(cores)})
        commands.append({"op": "move_company", "company": name, "department": department})
    commands += [submit(*each) for each in case.holds]
    decisions = run_scenario({"commands": [*commands, *before_it_comes, submit(*case.comes)]})["decisions"]
    assert {one["granted"] for one in decisions if "granted" in one} == {each[0] for each in case.holds}
    return {one["revoked"].rpartition(".")[0] for one in decisions if "revoked" in one}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_who_leaves_in_a_tree(case: Case) -> None:
    assert revoked(case) == case.leaves


def test_what_leaves_already_is_room_and_nobody_else_is_told() -> None:
    """Kueue, too, prefers what is evicted already."""
    tree = one_department(16, q=0, out=0, inside=0)
    case = Case(**tree, holds=[("x", "out", 8), ("z", "inside", 8)], comes=("new", "q", 8), leaves=set())
    assert revoked(case) == {"x"}
    assert revoked(case, {"op": "kill", "app": "z"}) == set()
