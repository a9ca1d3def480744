"""A line is a sorted list, whatever comes and leaves."""

from __future__ import annotations

from bisect import insort

from hypothesis import given
from hypothesis import strategies as st

from scheduler.rules.admission.line import Arrivals, Line


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


@given(st.permutations(range(100)), st.permutations(range(100)))
def test_a_line_may_be_sorted_by_a_key(comes: list[int], leaves: list[int]) -> None:
    line = Line(key=lambda item: -item)
    for item in comes:
        line.add(item)
    assert list(line) == [*reversed(range(100))]
    for number, item in enumerate(leaves):
        line.remove(item)
        assert list(line) == sorted(leaves[number + 1 :], reverse=True)


def test_what_leaves_is_found_by_its_key() -> None:
    line = Line(key=abs)
    for item in (1, 2, 3):
        line.add(item)
    for item in (-1, -2, -3):
        line.remove(item)
    line.add(4)
    assert list(line) == [4]


def test_arrivals_keep_their_order_whatever_has_left() -> None:
    arrivals = Arrivals()
    for number in range(1_000):
        arrivals[str(number)] = number
    for number in range(990):
        arrivals.leave(str(number))
        assert next(iter(arrivals)) == str(number + 1)
    arrivals["990"] = "restated"
    arrivals["0"] = "again"
    assert list(arrivals) == [*map(str, range(990, 1_000)), "0"]
    assert arrivals["990"] == "restated"
