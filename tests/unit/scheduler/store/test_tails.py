"""The end of an output, by streams: stored, cut, followed."""

from __future__ import annotations

import pytest

from scheduler.store.tails import MOST_BYTES, STREAMS, Stream, Tail, read_tail

BOTH = Tail.of((0, b"one\n"), (1, b"two\n"), (0, b"three\n"))
CUT = Tail(((0, b"the end"),), (100, 0))
MARK = b"\0fairlog\0"


@pytest.mark.parametrize("tail", [Tail(), Tail.of((0, b"x")), Tail.of((1, b"x")), BOTH, CUT, Tail.of((0, MARK))])
def test_a_tail_is_read_as_it_was_stored(tail: Tail) -> None:
    assert read_tail(tail.stored()) == tail


def test_a_whole_stdout_is_stored_as_it_is() -> None:
    assert Tail.of((0, b"hello\n")).stored() == b"hello\n"


@pytest.mark.parametrize(
    "stored", [b"x" + MARK, MARK * 5, BOTH.stored()[1:], BOTH.stored()[-24:], b"\xff" * 20 + MARK, b"z" * MOST_BYTES]
)
def test_what_has_no_valid_note_is_a_stdout(stored: bytes) -> None:
    assert read_tail(stored) == Tail.of((0, stored))


def test_each_stream_can_be_had_alone() -> None:
    assert [BOTH.text(stream) for stream in (None, *STREAMS)] == [b"one\ntwo\nthree\n", b"one\nthree\n", b"two\n"]
    assert BOTH.only("stderr").parts == ((1, b"two\n"),)


@pytest.mark.parametrize(
    ("number", "text"), [(None, BOTH.text()), (0, b""), (1, b"three\n"), (2, b"two\nthree\n"), (9, BOTH.text())]
)
def test_the_last_lines_are_those_of_both_streams(number: int | None, text: bytes) -> None:
    assert BOTH.lines(number).text() == text


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        (Tail(), BOTH, BOTH.parts),
        (BOTH, BOTH, ()),
        (Tail.of((0, b"one\n")), BOTH, ((1, b"two\n"), (0, b"three\n"))),
        (Tail.of((0, b"one\nth"), (1, b"tw")), BOTH, ((1, b"o\n"), (0, b"ree\n"))),
        (Tail.of((0, b"begun anew")), BOTH, BOTH.parts),
        (Tail.of((0, b"longer than what came later")), BOTH, BOTH.parts),
        (Tail(((0, b"the"),), (96, 0)), CUT, ((0, b" end"),)),
        (Tail(((0, b"past"),), (50, 0)), CUT, CUT.parts),
        (Tail(((0, b"123"),), (96, 0)), CUT, CUT.parts),
    ],
)
def test_what_was_written_since_is_found(before: Tail, now: Tail, new: tuple[tuple[int, bytes], ...]) -> None:
    assert now.since(before).parts == new


@pytest.mark.parametrize(
    ("before", "now", "stream", "missing"),
    [
        (None, Tail(((0, b"abc"),), (3, 0)), None, 0),
        (None, Tail(((0, b"c"), (1, b"z")), (3, 4)), None, 5),
        (None, Tail(((0, b"c"), (1, b"z")), (3, 4)), "stderr", 3),
        (Tail(((0, b"abc"),), (3, 0)), Tail(((0, b"bcde"),), (5, 0)), None, 0),
        (Tail(((0, b"abc"),), (3, 0)), Tail(((0, b"yz"),), (9, 0)), None, 4),
        (Tail(((0, b"abc"),), (9, 0)), Tail(((0, b"yz"),), (4, 0)), None, 2),
    ],
)
def test_what_is_not_kept_is_counted(before: Tail | None, now: Tail, stream: Stream | None, missing: int) -> None:
    assert now.missing(before, stream=stream) == missing


def test_a_text_that_is_not_the_whole_begins_with_a_line_that_says_so() -> None:
    cut = Tail(((0, b"end\n"), (1, b"err\n")), (9, 4))
    line = b"fairlog: 5 bytes before this are not shown here; the worker has them in its files\n"
    assert cut.marked() == line + b"end\nerr\n"
    assert cut.marked("stdout") == line + b"end\n"
    assert cut.marked("stderr") == b"err\n"
