"""The output of a task: it comes by two pipes and goes into files of the worker's, which nobody else opens.

Tasks of one slot of an executor share a file for stdout, and one for stderr that is made when one writes any: to make a
file takes longer than to run a short task.

Two pipes do not tell which of two writes came first. What has come by both before the executor looks counts as written
to stdout first.

A stream may be copied to a file of the app's, which the tasks' user has opened. Where both go to the same one, they
come by one pipe, in the order in which they were written.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from scheduler.model.text import counted
from scheduler.service.private import FILE, FOLDER
from scheduler.store.tails import MOST_RUNS, Tail

MOST_BYTES = 1 << 30
"""The most of a stream of a task in a file. Of what follows only the end is kept, with the task's state."""
_CHUNK_BYTES = 1 << 16
_ANEW = re.compile(rb"\r(?!\n)|\x1b\[\d*G|\x08{2,}")
"""What begins a line anew: to its start, to a column of it, or back by several characters."""
_PIECES = re.compile(rb"(\r\n|\n|\r(?!\n)|\x1b\[\d*G|\x08{2,})")
_PART = re.compile(rb"(?:\r|\x1b(?:\[\d{0,4})?|\x08{1,256})\Z")
_LONGEST_DRAWING = 4096
"""A longer one is no drawing of a line."""
_SELDOMER = 1.1
_AT_ONCE = 16
"""How many chunks of one stream are taken before it is another one's turn."""


class _Redrawn:
    """What the store keeps of a stream: all of it, but of a line that is drawn over and over only some drawings.

    A terminal shows the last one. So a progress bar does not push out what was written before it: beyond `free` bytes
    of drawings, one is kept after a second, the next ones after ever longer times, and always the last one.
    """

    def __init__(self, free: int) -> None:
        self._free = free
        self._drawing = False
        """Whether the line was begun anew since its start."""
        self._held = b""
        """The present drawing of it, if it is not kept so far."""
        self._split = b""
        """The end of what has come, if more may belong to it: a carriage return may come before a line feed."""
        self._due_s = 0.0
        self._every_s = 1.0

    def feed(self, text: bytes) -> bytes:
        """What is kept of further output, now."""
        text, self._split = self._split + text, b""
        if (part := _PART.search(text)) is not None:
            text, self._split = text[: part.start()], part[0]
        if not self._drawing and _ANEW.search(text) is None:
            return text
        kept: list[bytes] = []
        for piece in _PIECES.split(text):
            if piece in {b"\n", b"\r\n"}:
                kept += [self._held, piece]
                self._held, self._drawing = b"", False
            elif self._drawing and _ANEW.fullmatch(piece):
                kept.append(self._let_go())
                self._held = piece
            elif _ANEW.fullmatch(piece):
                self._drawing, self._held = True, piece
            elif self._held:
                self._held += piece
            else:
                kept.append(piece)
        if len(self._held) > _LONGEST_DRAWING:
            kept.append(self.rest())
        return b"".join(kept)

    def look(self) -> bytes:
        """What is to be kept of the present drawing, for whoever looks now."""
        return self.rest() if self._held and self._is_due() else b""

    def rest(self) -> bytes:
        """All that was held back; what follows in this drawing is kept."""
        rest, self._held, self._split = self._held + self._split, b"", b""
        return rest

    def _let_go(self) -> bytes:
        """What is kept of a drawing that another one replaces."""
        held, self._held = self._held, b""
        if len(held) <= self._free:
            self._free -= len(held)
            return held
        return held if self._is_due() else b""

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._every_s
        self._every_s *= _SELDOMER
        return True


class _Stream:
    """One stream of an attempt, at the end of the file that `opened` returns, which is asked once it writes any."""

    def __init__(self, opened: Callable[[], int], most: int, kept: int, copy: int = -1) -> None:
        self._opened = opened
        self._copy = copy
        self.uncopied, self.why_uncopied = 0, ""
        """How many bytes the app's own file did not take, and why."""
        self._log = -1
        self._most = most
        self._kept = kept
        self._end = bytearray()
        """The end of what is kept of it."""
        self._drawn = _Redrawn(kept // 8)
        self.start = self.size = 0
        self.bytes = self.bytes_kept = 0
        self.unwritten = 0
        """How many bytes are not in the file."""
        self.trouble: OSError | None = None
        """Why the file does not take all, such as a full disk; None if it takes no more than `most`."""
        self.descriptor, self.inside = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.descriptor, False)

    def write(self, chunk: bytes) -> int:
        """Take further output. Returns how much more of it is kept."""
        self.bytes += len(chunk)
        self._write_copy(chunk)
        written = 0
        try:
            if self._log < 0:
                self._log = self._opened()
                self.start = self.size = os.fstat(self._log).st_size
            room = max(0, self.start + self._most - self.size)
            while written < min(len(chunk), room):
                written += os.write(self._log, memoryview(chunk)[written:room])
        except OSError as error:
            self.trouble = error
        self.size += written
        self.unwritten += len(chunk) - written
        return self._keep(self._drawn.feed(chunk))

    def _write_copy(self, chunk: bytes) -> None:
        written = 0
        try:
            while self._copy >= 0 and written < len(chunk):
                written += os.write(self._copy, memoryview(chunk)[written:])
        except OSError as error:
            self.uncopied += len(chunk) - written
            self.why_uncopied = str(error.strerror)

    def look(self, *, over: bool = False) -> int:
        """Keep the present drawing of a line, if it is time to, or its last one. Returns how much more is kept."""
        return self._keep(self._drawn.rest() if over else self._drawn.look())

    def end(self, size: int) -> bytes:
        """The last `size` bytes of what is kept."""
        return bytes(self._end[-size:]) if size else b""

    def _keep(self, text: bytes) -> int:
        self._end += text
        if len(self._end) > 2 * self._kept:
            del self._end[: -self._kept]
        self.bytes_kept += len(text)
        return len(text)


class Output:
    """The output of one attempt of a task. The store keeps `kept` bytes of it; a stream may have at least half of them.

    `log` and `errors` return the files of its stdout and stderr. `written` is told the stream, 0 or 1, its offset in
    its file and its length there. `descriptors` are to be read when they are ready; `inside` are the ends for the task,
    to be closed once the task has them. `copies` are the descriptors of the app's own files for the two streams, which
    are closed with it; -1 = none. A single one is for both, which the task then writes to one pipe.
    """

    def __init__(
        self,
        log: Callable[[], int],
        errors: Callable[[], int],
        kept: int,
        written: Callable[[int, int, int], object] = lambda *_: None,
        most: int = MOST_BYTES,
        *,
        copies: Sequence[int] = (-1, -1),
    ) -> None:
        self._copies = tuple(copies)
        ends = zip((log, errors), (copies[0], copies[-1]), strict=True)
        self._streams = [_Stream(opened, most, kept, copy) for opened, copy in ends]
        self._kept = kept
        self._most = most
        self._over = False
        self._written = written
        self._runs: deque[tuple[int, int]] = deque()
        """Stream and length of what has come, in the order in which it came."""
        self._before = [0, 0]
        """The length of each stream before these."""
        self._shown = 0
        self.descriptors = tuple(stream.descriptor for stream in self._streams)
        self.inside = tuple(stream.inside for stream in self._streams)
        if len(self._copies) == 1:
            os.close(self.inside[1])
            self.inside = self.inside[0], os.dup(self.inside[0])

    @property
    def length(self) -> int:
        """How much has come."""
        return sum(stream.bytes for stream in self._streams)

    def take(self, descriptor: int) -> bool:
        """Take what has come by this descriptor. False once nothing more can come."""
        return self._take(self.descriptors.index(descriptor))

    def tail(self) -> bytes:
        """The end of the attempt's output, as it is stored (`scheduler.store.tails`)."""
        self._shown = self.length
        if not self._shown:
            return b""
        for number, stream in enumerate(self._streams):
            self._note(number, stream.look(over=self._over))
        out, err = (stream.bytes_kept for stream in self._streams)
        of_err = min(err, max(self._kept // 2, self._kept - out))
        sizes = min(out, self._kept - of_err), of_err
        texts = [stream.end(size) for stream, size in zip(self._streams, sizes, strict=True)]
        parts: list[tuple[int, bytes]] = []
        for number, length in [*reversed(self._runs), (1, self._before[1]), (0, self._before[0])]:
            text = texts[number]
            if text and length:
                parts.append((number, text[-length:]))
                texts[number] = text[:-length]
        return Tail(tuple(reversed(parts)), (out, err)).stored()

    def has_news(self) -> bool:
        """Whether more has come since the last call of `tail`."""
        return self._shown != self.length

    def close(self, line: bytes = b"") -> bytes:
        """Take what is still in the pipes, append a line of fairlog's to stderr, and close them. Returns the tail.

        If the worker's files do not have all of the output, a line says so.
        """
        for number in range(len(self._streams)):
            self._take(number)
        line = self.cut_line().encode() + self._uncopied_line().encode() + line
        self._over = True
        if line:
            self._note(1, self._streams[1].look(over=True))
            self._write(1, line)
        tail = self.tail()
        if line:
            self._streams[1].bytes -= len(line)
        for copy in self._copies:
            if copy >= 0:
                os.close(copy)
        for number, stream in enumerate(self._streams):
            os.close(stream.descriptor)
            if stream.size > stream.start:
                self._written(number, stream.start, stream.size - stream.start)
        return tail

    @property
    def unwritten(self) -> int:
        """How many bytes the worker's files could not take."""
        return sum(stream.unwritten for stream in self._streams if stream.trouble is not None)

    @property
    def trouble(self) -> str:
        """Why they could not, "" if they could."""
        return next((str(each.trouble.strerror) for each in self._streams if each.trouble is not None), "")

    def cut_line(self) -> str:
        """A line that says what the worker's files do not have, "" if they have all."""
        lost = sum(stream.unwritten for stream in self._streams)
        if not lost:
            return ""
        why = self.trouble or f"a stream may have {self._most} bytes"
        fresh = "" if self._streams[1].end(1) in {b"", b"\n"} else "\n"
        return f"{fresh}fairlog: {counted(lost, 'byte')} of the output are not in the worker's files: {why}\n"

    def _uncopied_line(self) -> str:
        """A line that says what the app's own files do not have, "" if they have all."""
        lost = sum(stream.uncopied for stream in self._streams)
        why = next((stream.why_uncopied for stream in self._streams if stream.uncopied), "")
        return (
            f"fairlog: {counted(lost, 'byte')} of the output are not in the files of --output and --error: {why}\n"
            if lost
            else ""
        )

    def _take(self, number: int) -> bool:
        for _ in range(_AT_ONCE):
            try:
                chunk = os.read(self._streams[number].descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._write(number, chunk)
        return True

    def _write(self, number: int, chunk: bytes) -> None:
        self._note(number, self._streams[number].write(chunk))

    def _note(self, number: int, length: int) -> None:
        """So much more is kept of that stream."""
        if not length:
            return
        if self._runs and self._runs[-1][0] == number:
            length += self._runs.pop()[1]
        elif len(self._runs) == MOST_RUNS - 2:
            oldest, size = self._runs.popleft()
            self._before[oldest] += size
        self._runs.append((number, length))


def open_log(root: Path, path: Path) -> int:
    """Open a file below `root` for appending, and create it with its folders. Its owner only can use it.

    Raises: OSError if something else is in its place, such as a link.
    """
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, name = path.relative_to(root).parts
        for each in folders:
            with suppress(FileExistsError):
                os.mkdir(each, FOLDER, dir_fd=folder)
            inner = os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        log = os.open(name, flags, FILE, dir_fd=folder)
    finally:
        os.close(folder)
    found = os.fstat(log)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(log)
        raise OSError(0, "it is not a file of its own")
    return log
