"""The pages of rules stay short enough to be read: few rules, each with a title."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / name).read_text() for name in ("semantics.md", "workers.md")}
MOST = {"semantics.md": (8_000, 85), "workers.md": (1_200, 15)}
"""The most words of each, marks of lists among them, and the most rules."""
RULE = re.compile(r"([A-Z])([0-9]+)\. ")


def rules(page: str) -> list[str]:
    """The lines with which rules begin."""
    return [line for line in page.splitlines() if RULE.match(line)]


@pytest.mark.parametrize("name", PAGES)
def test_the_rules_can_be_read_in_one_go(name: str) -> None:
    words, most = MOST[name]
    assert len(PAGES[name].split()) <= words
    assert 0 < len(rules(PAGES[name])) <= most


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_every_rule_begins_with_its_title(page: str) -> None:
    assert [line for line in rules(page) if not re.fullmatch(r"[A-Z][0-9]+\. \*.+\*", line)] == []


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_every_rule_stands_with_those_of_its_letter_in_order(page: str) -> None:
    """Under the letter's heading, where a page has several letters."""
    found: list[tuple[str, int]] = []
    for section in page.split("\n## "):
        numbers = [(match[1], int(match[2])) for line in rules(section) if (match := RULE.match(line))]
        letters = {letter for letter, _ in numbers}
        assert len(letters) <= 1
        assert letters <= {section[0]} or "\n## " not in page
        assert numbers == sorted(numbers)
        found += numbers
    assert len(found) == len({*found}) == len(rules(page))
