"""docs/semantics.md stays short enough to be read: few rules, each with a title, and one sentence a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
WORDS, RULES = 9_000, 85
"""The most words, marks of lists among them, and the most rules."""
RULE = re.compile(r"([A-Z])([0-9]+)\. ")
NEXT_SENTENCE = re.compile(r"(?:(?<=[\w)`%*]\.)(?<!\.\.)|(?<=\.\*)) (?=[A-Z`⌊])")


def rules(page: str) -> list[str]:
    """The lines with which rules begin."""
    return [line for line in page.splitlines() if RULE.match(line)]


def crowded(page: str) -> list[str]:
    """The lines of more than one sentence; neither figures nor tables have sentences."""
    lines = [line for line in page.splitlines() if not line.startswith(("    ", "|"))]
    return [line for line in lines if NEXT_SENTENCE.search(re.sub(r"^(?:[0-9]|[A-Z][0-9]+)\. ", "", line))]


def test_the_rules_can_be_read_in_one_go() -> None:
    assert len(PAGE.split()) <= WORDS
    assert len(rules(PAGE)) <= RULES


def test_every_rule_begins_with_its_title() -> None:
    assert [line for line in rules(PAGE) if not re.fullmatch(r"[A-Z][0-9]+\. \*.+\*", line)] == []


def test_every_rule_stands_under_its_letter_in_order() -> None:
    found: list[tuple[str, int]] = []
    for section in PAGE.split("\n## ")[1:]:
        numbers = [(match[1], int(match[2])) for line in rules(section) if (match := RULE.match(line))]
        assert {letter for letter, _ in numbers} <= {section[0]}
        assert numbers == sorted(numbers)
        found += numbers
    assert len(found) == len({*found}) == len(rules(PAGE))


def test_a_line_has_one_sentence() -> None:
    assert crowded(PAGE) == []


@pytest.mark.parametrize("line", ["One. Two.", "- Its `x`. `y` follows.", "A1. *A title.* A sentence.", "1. One. Two."])
def test_two_sentences_on_a_line_are_found(line: str) -> None:
    assert crowded(line) == [line]


@pytest.mark.parametrize("line", ["1. One.", "A1. *A title.*", "Cores 1, 2, 3 … and so on.", "    A. B. C."])
def test_one_sentence_is_not_two(line: str) -> None:
    assert crowded(line) == []
