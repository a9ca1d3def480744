"""Every document has one sentence a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.one_a_line import DOCS, crowded, one_a_line


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_a_line_has_one_sentence(path: Path) -> None:
    assert crowded(path.read_text()) == []


@pytest.mark.parametrize("line", ["One. Two.", "- Its `x`. `y` follows.", "A1. *A title.* A sentence.", "1. One. Two."])
def test_two_sentences_on_a_line_are_found(line: str) -> None:
    assert crowded(line) == [line]


@pytest.mark.parametrize("line", ["1. One.", "A1. *A title.*", "Cores 1, 2, 3 … and so on.", "    A. B.", "| A. B. |"])
def test_one_sentence_is_not_two(line: str) -> None:
    assert crowded(line) == []


def test_an_item_of_a_list_goes_on_below_its_text() -> None:
    page = "One. Two.\n\n- Its `x`. `y` follows.\n  1. One. Two.\n\n```\nA. B.\n```\n"
    assert one_a_line(page) == ("One.\nTwo.\n\n- Its `x`.\n  `y` follows.\n  1. One.\n     Two.\n\n```\nA. B.\n```\n")
