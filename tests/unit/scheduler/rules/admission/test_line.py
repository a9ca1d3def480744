"""A line is a sorted list, whatever comes and leaves."""

from __future__ import annotations

from bisect import insort

from hypothesis import given
from hypothesis import strategies as st

from scheduler.rules.admission.line import Line


@given(st.lists(st.integers(0, 9)), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_a_line_is_a_sorted_list(begun: list[int], steps: list[tuple[bool, int]]) -> None:
    line, expected = Line(begun), sorted(begun)
    for comes, item in steps:
        if comes:
            line.add(item)
            insort(expected, item)
        elif item in expected:
            line.remove(item)
            expected.remove(item)
        assert (list(line), len(line), bool(line)) == (expected, len(expected), bool(expected))
        assert line.items[line.begin :][:1] == expected[:1]


def test_what_has_left_at_the_front_takes_no_room() -> None:
    line = Line(range(1_000))
    for item in range(990):
        line.remove(item)
    assert list(line) == list(range(990, 1_000))
    assert len(line.items) < 150
