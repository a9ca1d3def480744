"""Text from others, as people may see it."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.text import cell, in_json, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n", "a\tb\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]52;c;cm0gLXJmIC8=\x07after", "after"),
        ("\x1b]0;title\x1b\\after", "after"),
        ("\x1b]0;never closed\nafter", "\nafter"),
        ("\x9b2Jx\x9d0;t\x9cy", "xy"),
        ("10%\r20%\r\nend", "10%\n20%\nend"),
        ("\x1bc\x07\x08bell", "cbell"),
        ("txt.\u202egnp\u2066\u200f", "txt.gnp"),
        ("zero\u200bwidth\ufeff\u2060", "zerowidth"),
        ("Société 数え上げ 👩\u200d💻", "Société 数え上げ 👩\u200d💻"),
    ],
)
def test_text_is_shown_without_what_a_terminal_would_obey(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(alphabet=st.characters()))
def test_nothing_that_is_shown_controls_anything(text: str) -> None:
    shown = printable(text)
    assert {unicodedata.category(one) for one in shown if one not in "\n\t"} & {"Cc", "Cs", "Zl", "Zp"} == set()
    assert not any(unicodedata.bidirectional(one) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI") for one in shown)
    assert printable(shown) == shown
    assert "\n" not in one_line(text)
    assert len(one_line(text, 10)) <= 10


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\u202e=1", "\x1b[0m-1"])
def test_a_cell_is_never_a_formula(text: str) -> None:
    said = cell(text)
    assert isinstance(said, str)
    assert said.startswith("'")


def test_numbers_and_other_texts_are_cells_as_they_are() -> None:
    assert [cell(-1), cell("a=b"), cell("")] == [-1, "a=b", ""]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_json_is_printable_and_means_the_same(text: str) -> None:
    shown = in_json(json.dumps({"a": text}, indent=2, ensure_ascii=False))
    assert json.loads(shown) == {"a": text}
    assert printable(shown) == shown
