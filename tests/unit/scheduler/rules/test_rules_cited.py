"""The rules of the pages that state them and the code that implements them know each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scheduler.model.events import ClusterConfigured
from scheduler.rules.checks.validate import RETIRED

ROOT = Path(__file__).parents[4]
PAGES = ("semantics.md", "workers.md", "security.md", "second-edition.md", "departments.md")
RULES = "\n".join((ROOT / "docs" / page).read_text() for page in PAGES)
MERGED = {
    *("A4", "O3", "O4", "U2", "Z4", "Z5", "S1", "P3", "P5", "W4", "W6", "R2", "R6", "L3", "L4", "L8", "G3", "G6"),
    *("G7", "X3", "X5", "I4", "I8", "J5", "Q2", "F2"),
}
"""Numbers of rules that are part of others now; what is frozen cites them still."""
FROZEN = Path("recovery/second_edition")
SOURCES = {
    file.relative_to(ROOT): file.read_text()
    for package in ("scheduler", "workers", "recovery", "witness", "fairlog")
    for file in sorted((ROOT / package).rglob("*.py"))
}


def stated(page: str) -> list[str]:
    """The numbers of the rules that the page states, in its order; several may share a line."""
    return re.findall(r"(?:^|(?<=\. ))([A-Z][0-9]+)\. (?=\S)", page, re.MULTILINE)


def cited(text: str) -> list[str]:
    """The numbers that a docstring cites; `S1-S3` is all three of them."""
    found = []
    for letter, first, last in re.findall(r"\b([A-Z])([0-9]{1,2})(?:-\1([0-9]{1,2}))?\b", text):
        found += [f"{letter}{number}" for number in range(int(first), int(last or first) + 1)]
    return found


@cache
def cited_by_functions(source: str) -> frozenset[str]:
    """The numbers that the docstrings of its functions cite."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(number for node in functions for number in cited(ast.get_docstring(node) or ""))


def docstrings(source: str) -> Iterator[str]:
    """All of them, including those of attributes, which follow an assignment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def uncited(page: str, sources: list[str]) -> list[str]:
    """The rules of the page that no function cites."""
    numbers = frozenset[str]().union(*map(cited_by_functions, sources))
    return [rule for rule in stated(page) if rule not in numbers]


def unheard_of(page: str, sources: list[str]) -> list[str]:
    """The numbers cited anywhere that the page does not state."""
    rules = stated(page)
    numbers = [number for source in sources for text in docstrings(source) for number in cited(text)]
    return sorted({number for number in numbers if number not in rules})


def test_the_pages_state_every_rule_once_and_leaves_out_no_number() -> None:
    rules = stated(RULES)
    assert len(rules) == len(set(rules))
    letters = "".join(dict.fromkeys(rule[0] for rule in rules))
    assert letters == "ZTACUFQJOSPDLGXNHRWIE"
    last = {letter: max(int(rule[1:]) for rule in rules if rule[0] == letter) for letter in letters}
    missing = [f"{letter}{n}" for letter in letters for n in range(1, last[letter] + 1) if f"{letter}{n}" not in rules]
    assert {*missing} <= MERGED
    assert MERGED.isdisjoint(rules)


def test_every_rule_is_cited_by_a_function() -> None:
    assert uncited(RULES, list(SOURCES.values())) == []


def test_every_rule_that_is_cited_exists() -> None:
    unknown = {file: unheard_of(RULES, [source]) for file, source in SOURCES.items()}
    assert {number for file, found in unknown.items() if FROZEN in file.parents for number in found} <= MERGED
    assert {file: found for file, found in unknown.items() if found and FROZEN not in file.parents} == {}


def test_every_setting_has_its_rule() -> None:
    rows = [row.split(" | ") for row in (ROOT / "docs" / "settings.md").read_text().splitlines() if row[:3] == "| `"]
    ruled = {row[0].strip("| `"): row[-1].strip(" |") for row in rows if len(row) == 4}
    named = {name for name in ClusterConfigured.__struct_fields__ if name not in RETIRED}
    decides_nothing = {"retained_apps", "archive_url", "archive_after_events", "archive_retain_events"}
    assert {name for name in named if not ruled.get(name)} - decides_nothing == set()
    numbers = {number for rules in ruled.values() for number in cited(rules)}
    assert numbers <= {*stated(RULES)}


def test_the_check_finds_a_new_rule_that_nobody_has_cited_yet() -> None:
    assert uncited(RULES + "\nL99. A new rule.", list(SOURCES.values())) == ["L99"]


def test_the_check_finds_a_rule_that_lost_its_only_citation() -> None:
    without = [source.replace("(semantics U4)", "") for source in SOURCES.values()]
    assert uncited(RULES, without) == ["U4"]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def f():\n    x = 'semantics F2'",
        "def f():\n    return 1  # semantics F2",
        '"""A module on semantics F2."""',
        'X = 1\n"""An attribute by semantics F2."""',
        'def f():\n    """Not F20 nor XF2, and semantics F alone says nothing."""',
    ],
)
def test_the_check_finds_a_rule_that_no_function_cites(source: str) -> None:
    assert uncited("F1. `fifo`. F2. `sql-first`.", ['def f():\n    """Semantics F1."""', source]) == ["F2"]


def test_the_check_knows_the_ways_to_cite() -> None:
    page = "\n".join(f"S{n}. A rule." for n in range(1, 8))
    source = (
        'def f():\n    """By semantics S1-S3 and (S4, S5)."""\nasync def g():\n    """Ties by S6.\n\n    And S7."""'
    )
    assert uncited(page, [source]) == []


def test_the_check_finds_a_citation_of_no_rule() -> None:
    source = '"""Semantics B1."""\ndef f():\n    """Semantics C1, C9."""\nX = 1\n"""By P8."""'
    assert unheard_of("C1. A rule.", [source]) == ["B1", "C9", "P8"]
