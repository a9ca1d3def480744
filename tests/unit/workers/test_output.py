"""The output of an attempt: two pipes, two files, one tail."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

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
    assert (tail.text("stdout"), (tmp_path / "log").read_bytes()) == (b"out put", b"out ")
    said = b"fairlog: 4 bytes of the output are not in the worker's files: a stream may have 4 bytes\n"
    assert tail.text("stderr") == b"error\n" + said


def test_a_file_that_cannot_be_opened_loses_nothing_of_the_tail(tmp_path: Path) -> None:
    (tmp_path / "err").mkdir()
    output, write = begun(tmp_path)
    write(1, b"lost\n")
    said = b"fairlog: 5 bytes of the output are not in the worker's files: Is a directory\n"
    assert closed(output).text("stderr") == b"lost\n" + said


def test_a_full_disk_is_told_and_the_tail_has_what_it_lost() -> None:
    full = os.open("/dev/full", os.O_RDWR)
    output = Output(lambda: full, lambda: full, 1024)
    os.write(output.inside[0], b"lost\n")
    output.take(output.descriptors[0])
    tail = closed(output)
    said = b"fairlog: 5 bytes of the output are not in the worker's files: No space left on device\n"
    assert (tail.text("stdout"), tail.text("stderr")) == (b"lost\n", said)
    assert (output.unwritten >= 5, output.trouble) == (True, "No space left on device")


@pytest.mark.parametrize("mark", [b"\r", b"\x1b[1G", b"\x08" * 50])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_a_line_drawn_over_and_over_keeps_what_came_before_it_and_its_end(
    tmp_path: Path, mark: bytes, chunk: int
) -> None:
    output, _ = begun(tmp_path, kept=4096)
    bar = b"".join(mark + b"%6d of 2000 " % step + b"#" * 40 for step in range(2001))
    text = b"warning: sample 7\n" + bar + b"\nafter\n"
    for start in range(0, len(text), chunk):
        os.write(output.inside[1], text[start : start + chunk])
        assert output.take(output.descriptors[1])
    tail = closed(output)
    kept = tail.text("stderr")
    assert kept.startswith(b"warning: sample 7\n" + mark + b"     0 of 2000 ")
    assert kept.endswith(mark + b"  2000 of 2000 " + b"#" * 40 + b"\nafter\n")
    assert tail.missing() == 0
    assert (tmp_path / "err").read_bytes() == text
    assert output.length == len(text)


def test_a_bar_that_nothing_ends_is_kept_as_it_is_at_the_end(tmp_path: Path) -> None:
    output, write = begun(tmp_path, kept=1024)
    for step in range(100):
        write(0, b"\r%d %%" % step)
    assert closed(output).text().endswith(b"\r99 %")


def test_a_bar_is_followed_without_anything_printed_twice(tmp_path: Path) -> None:
    output, write = begun(tmp_path, kept=1024)
    seen, printed = Tail(), b""
    for step in range(300):
        write(0, b"\rstep %4d" % step)
        now = read_tail(output.tail())
        printed += now.since(seen).text()
        seen = now
    write(0, b"\nend\n")
    tail = closed(output)
    printed += tail.since(seen).text()
    assert printed == tail.text()
    assert printed.count(b"step") < 100
    assert printed.endswith(b"\rstep  299\nend\n")


@pytest.mark.parametrize(
    "text", [b"a\r\nb\r\n" * 2000, b"a\rb\rc\n", b"plain \x08\n", b"x" * 20000 + b"\r" + b"y" * 20000]
)
def test_other_output_is_kept_whole(tmp_path: Path, text: bytes) -> None:
    output, _ = begun(tmp_path, kept=1 << 16)
    for start in range(0, len(text), 999):
        os.write(output.inside[0], text[start : start + 999])
        output.take(output.descriptors[0])
    assert closed(output).text() == text


def test_both_streams_of_one_file_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    log, errors = (cache(lambda name=name: open_log(tmp_path, tmp_path / name)) for name in ("log", "err"))
    copy = os.open(tmp_path / "copy", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    output = Output(log, errors, 1024, copies=(copy,))
    for number in range(6):
        os.write(output.inside[number % 2], b"%d\n" % number)
    tail = closed(output, b"fairlog: stopped\n")
    assert (tmp_path / "copy").read_bytes() == b"0\n1\n2\n3\n4\n5\nfairlog: stopped\n"
    assert tail.text() == b"0\n1\n2\n3\n4\n5\nfairlog: stopped\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copy)


def test_each_stream_has_its_own_copy_and_what_it_does_not_take_is_said(tmp_path: Path) -> None:
    log, errors = (cache(lambda name=name: open_log(tmp_path, tmp_path / name)) for name in ("log", "err"))
    copies = os.open(tmp_path / "copy", os.O_WRONLY | os.O_CREAT), os.open("/dev/full", os.O_WRONLY)
    output = Output(log, errors, 1024, copies=copies)
    os.write(output.inside[0], b"out\n")
    os.write(output.inside[1], b"err\n")
    why = "fairlog: 4 bytes of the output are not in the files of --output and --error: No space left on device\n"
    assert closed(output).text() == f"out\nerr\n{why}".encode()
    assert (tmp_path / "copy").read_bytes() == b"out\n"
