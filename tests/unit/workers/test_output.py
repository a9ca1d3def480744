"""The output of an attempt: two pipes, two files, one tail."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from scheduler.store.tails import MOST_RUNS, Tail, read_tail
from workers.output import Output, open_log


def begun(folder: Path, *, kept: int = 1024, most: int = 1 << 20) -> tuple[Output, Callable[[int, bytes], None]]:
    """An output below the folder, and what writes to its stdout, 0, or stderr, 1."""
    log, errors = (cache(lambda name=name: open_log(folder, folder / name)) for name in ("log", "err"))
    output = Output(log, errors, kept, most=most)

    def write(stream: int, text: bytes) -> None:
        os.write(output.inside[stream], text)
        assert output.take(output.descriptors[stream])

    return output, write


def closed(output: Output, line: bytes = b"") -> Tail:
    for end in output.inside:
        os.close(end)
    return read_tail(output.close(line))


def test_the_streams_come_apart_and_in_their_order(tmp_path: Path) -> None:
    output, write = begun(tmp_path)
    for number in range(3):
        write(0, b"out %d\n" % number)
        write(1, b"err %d\n" % number)
    tail = closed(output, b"stopped\n")
    assert tail.text() == b"out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\nstopped\n"
    assert (tmp_path / "log").read_bytes() == tail.text("stdout") == b"out 0\nout 1\nout 2\n"
    assert (tmp_path / "err").read_bytes() == tail.text("stderr") == b"err 0\nerr 1\nerr 2\nstopped\n"
    assert output.length == 36


def test_nothing_on_stderr_makes_no_file(tmp_path: Path) -> None:
    output, write = begun(tmp_path)
    write(0, b"hello\n")
    assert closed(output) == Tail.of((0, b"hello\n"))
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_much_on_one_stream_leaves_half_of_the_tail_to_the_other(tmp_path: Path) -> None:
    output, write = begun(tmp_path, kept=100)
    write(0, b"o" * 30)
    for _ in range(10):
        write(1, b"e" * 40)
    write(0, b"O" * 50)
    tail = closed(output)
    assert (tail.text("stdout"), tail.text("stderr")) == (b"O" * 50, b"e" * 50)
    assert tail.totals == (80, 400)


def test_a_task_that_switches_often_is_followed_without_end(tmp_path: Path) -> None:
    output, write = begun(tmp_path, kept=1 << 16)
    seen, printed = Tail(), b""
    for number in range(MOST_RUNS):
        write(0, b"%d\n" % number)
        write(1, b"e")
        if number % 500 == 0:
            now = read_tail(output.tail())
            printed += now.since(seen).text()
            seen = now
    tail = closed(output)
    assert len(tail.parts) <= MOST_RUNS
    printed += tail.since(seen).text()
    assert printed == b"".join(b"%d\ne" % number for number in range(MOST_RUNS))


def test_what_a_file_does_not_take_is_in_the_tail(tmp_path: Path) -> None:
    output, write = begun(tmp_path, most=4)
    write(0, b"out put")
    write(1, b"error")
    tail = closed(output)
    assert (tail.text("stdout"), tail.text("stderr"), (tmp_path / "log").read_bytes()) == (
        b"out put",
        b"error",
        b"out ",
    )


def test_a_file_that_cannot_be_opened_loses_nothing_of_the_tail(tmp_path: Path) -> None:
    (tmp_path / "err").mkdir()
    output, write = begun(tmp_path)
    write(1, b"lost\n")
    assert closed(output).text("stderr") == b"lost\n"
