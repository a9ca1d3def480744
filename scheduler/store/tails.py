"""What the store keeps of a task's output: the end of its stdout and of its stderr, in the order in which they came."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from scheduler.model.text import counted

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, ...] = get_args(Stream)
MOST_BYTES = 64 * 1024
MOST_RUNS = 2048
_MARK = b"\0fairlog\0"
_TOTALS = struct.Struct(">QQI")
_ENDING = _TOTALS.size + len(_MARK)
MOST_NOTED = 4 * MOST_RUNS + _ENDING
"""The most bytes by which a stored tail is longer than its text."""


class Tail(NamedTuple):
    """The end of an output.

    `parts` are pieces of a stream, 0 = stdout and 1 = stderr, in their order; `totals` is how many bytes each stream
    has written in all.
    """

    parts: tuple[tuple[int, bytes], ...] = ()
    totals: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, *parts: tuple[int, bytes]) -> Tail:
        """The tail of an output that is nothing but these parts."""
        return cls(parts, (_length(parts, 0), _length(parts, 1)))

    def text(self, stream: Stream | None = None) -> bytes:
        """What the stream has written; None = both, in their order."""
        return b"".join(text for number, text in self.parts if stream is None or STREAMS[number] == stream)

    def marked(self, stream: Stream | None = None) -> bytes:
        """As `text`, after a line that says how much was written before and is not in it, if anything was."""
        missing = self.missing(stream=stream)
        note = f"fairlog: {counted(missing, 'byte')} before this are not shown here; the worker has them in its files\n"
        return (note.encode() if missing else b"") + self.text(stream)

    def only(self, stream: Stream | None) -> Tail:
        """The part of it that the stream has written; None = all."""
        if stream is None:
            return self
        return Tail(tuple(part for part in self.parts if STREAMS[part[0]] == stream), self.totals)

    def lines(self, number: int | None) -> Tail:
        """Its last `number` lines; None = all."""
        if number is None:
            return self
        drop = sum(map(len, self.text().splitlines(keepends=True)[: -number or None]))
        parts: list[tuple[int, bytes]] = []
        for stream, text in self.parts:
            parts += [(stream, text[drop:])] if drop < len(text) else []
            drop = max(0, drop - len(text))
        return Tail(tuple(parts), self.totals)

    def missing(self, before: Tail | None = None, *, stream: Stream | None = None) -> int:
        """How many bytes were written after `before`, by the stream or by both, that are not in it any more."""
        known = before if before is not None and self.since(before) is not self else Tail()
        lost = 0
        for name, then, now in zip(STREAMS, known.totals, self.totals, strict=True):
            lost += max(0, now - then - len(self.text(name))) if stream in (None, name) else 0
        return lost

    def last(self, *sizes: int) -> Tail:
        """The last `sizes` bytes of each stream."""
        left = list(sizes)
        parts: list[tuple[int, bytes]] = []
        for number, text in reversed(self.parts):
            taken = text[len(text) - min(len(text), left[number]) :]
            left[number] -= len(taken)
            if taken:
                parts.append((number, taken))
        return Tail(tuple(reversed(parts)), self.totals)

    def since(self, before: Tail) -> Tail:
        """What was written after `before`; all if the output was begun anew."""
        new = [now - then for then, now in zip(before.totals, self.totals, strict=True)]
        for stream, size in zip(STREAMS, new, strict=True):
            then, now = before.text(stream), self.text(stream)
            common = min(len(then), len(now) - size)
            if size < 0 or (common > 0 and then[-common:] != now[: len(now) - size][-common:]):
                return self
        return self.last(*new)

    def stored(self) -> bytes:
        """The form in which it is stored: its text, and a note on which part is whose unless it is a whole stdout."""
        text = self.text()
        if self.totals == (len(text), 0) and not text.endswith(_MARK):
            return text
        runs = [len(part) << 1 | number for number, part in self.parts]
        return text + struct.pack(f">{len(runs)}I", *runs) + _TOTALS.pack(*self.totals, len(runs)) + _MARK


def read_tail(stored: bytes | None) -> Tail:
    """A tail in its stored form. One that has no valid note is a whole stdout."""
    stored = stored or b""
    plain = Tail.of((0, stored[-MOST_BYTES:])) if stored else Tail()
    if not stored.endswith(_MARK) or len(stored) < _ENDING:
        return plain
    *totals, number = _TOTALS.unpack_from(stored, len(stored) - _ENDING)
    size = len(stored) - _ENDING - 4 * number
    if size < 0:
        return plain
    runs = struct.unpack_from(f">{number}I", stored, size)
    places = [0]
    for run in runs:
        places.append(places[-1] + (run >> 1))
    if places[-1] != size:
        return plain
    parts = tuple((run & 1, stored[start:end]) for run, (start, end) in zip(runs, pairwise(places), strict=True))
    return Tail(parts, (totals[0], totals[1]))


def _length(parts: Iterable[tuple[int, bytes]], stream: int) -> int:
    return sum(len(text) for number, text in parts if number == stream)
