"""docs/cli.md says of each verb what its help says, and has an example of each."""

from __future__ import annotations

import re

import pytest

from tests.docs.cli_page import COMMON, PAGE, by_hand, common, described, sections, verbs, written

TEXT = PAGE.read_text()
SECTIONS = sections(TEXT)


def test_the_page_has_a_section_for_each_verb_in_the_order_of_help_and_no_other() -> None:
    assert list(SECTIONS) == ["", COMMON, *(" ".join(path) for path, _ in verbs())]


def test_the_cluster_options_are_those_of_help() -> None:
    assert common() in SECTIONS[COMMON]


@pytest.mark.parametrize("verb", [" ".join(path) for path, _ in verbs()])
def test_a_section_says_what_help_says_and_shows_an_example(verb: str) -> None:
    path, command = next(each for each in verbs() if " ".join(each[0]) == verb)
    example = by_hand(SECTIONS[verb])
    assert SECTIONS[verb].removesuffix(f"{example}\n\n").strip().startswith(described(path, command))
    assert re.search(rf"^\$ fairlog (--data \w+ )?{verb}\b", example, re.MULTILINE)


def test_writing_the_page_anew_changes_nothing() -> None:
    assert written(TEXT) == TEXT


def test_a_page_that_lacks_an_option_or_names_one_too_many_is_told_apart() -> None:
    assert written(TEXT.replace("| `--detach` |", "| `--detached` |")) == TEXT
    assert "--detach" in SECTIONS["up"]
