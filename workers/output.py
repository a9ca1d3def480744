"""The output of a task: it comes by two pipes and goes into files of the worker's, which nobody else opens.

Tasks of one slot of an executor share a file for stdout, and one for stderr that is made when one writes any: to make a
file takes longer than to run a short task.

Two pipes do not tell which of two writes came first. What has come by both before the executor looks counts as written
to stdout first.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scheduler.service.private import FILE, FOLDER
from scheduler.store.tails import MOST_RUNS, Tail

MOST_BYTES = 1 << 30
"""The most of a stream of a task in a file. Of what follows only the end is kept, with the task's state."""
_CHUNK_BYTES = 1 << 16
_AT_ONCE = 16
"""How many chunks of one stream are taken before it is another one's turn."""


class _Stream:
    """One stream of an attempt, at the end of the file that `opened` returns, which is asked once it writes any."""

    def __init__(self, opened: Callable[[], int], most: int, kept: int) -> None:
        self._opened = opened
        self._log = -1
        self._most = most
        self._kept = kept
        self._late = b""
        """The end of what is not in the file."""
        self.start = self.size = 0
        self.bytes = 0
        self.descriptor, self.inside = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.descriptor, False)

    def write(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        written = 0
        with suppress(OSError):  # the disk is full
            if self._log < 0:
                self._log = self._opened()
                self.start = self.size = os.fstat(self._log).st_size
            written = os.write(self._log, chunk[: max(0, self.start + self._most - self.size)])
        self.size += written
        if written < len(chunk):
            self._late = (self._late + chunk[written:])[-self._kept :]

    def end(self, size: int) -> bytes:
        """The last `size` bytes."""
        if not size:
            return b""
        first = max(self.start, self.size - size)
        return (os.pread(self._log, self.size - first, first) + self._late if self._log >= 0 else self._late)[-size:]


class Output:
    """The output of one attempt of a task. The store keeps `kept` bytes of it; a stream may have at least half of them.

    `log` and `errors` return the files of its stdout and stderr. `written` is told the stream, 0 or 1, its offset in
    its file and its length there. `descriptors` are to be read when they are ready; `inside` are the ends for the task,
    to be closed once the task has them.
    """

    def __init__(
        self,
        log: Callable[[], int],
        errors: Callable[[], int],
        kept: int,
        written: Callable[[int, int, int], object] = lambda *_: None,
        most: int = MOST_BYTES,
    ) -> None:
        self._streams = [_Stream(opened, most, kept) for opened in (log, errors)]
        self._kept = kept
        self._written = written
        self._runs: deque[tuple[int, int]] = deque()
        """Stream and length of what has come, in the order in which it came."""
        self._before = [0, 0]
        """The length of each stream before these."""
        self._shown = 0
        self.descriptors = tuple(stream.descriptor for stream in self._streams)
        self.inside = tuple(stream.inside for stream in self._streams)

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
        out, err = (stream.bytes for stream in self._streams)
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
        """Take what is still in the pipes, append a line of fairlog's to stderr, and close them. Returns the tail."""
        for number in range(len(self._streams)):
            self._take(number)
        if line:
            self._write(1, line)
        tail = self.tail()
        if line:
            self._streams[1].bytes -= len(line)
        for number, stream in enumerate(self._streams):
            os.close(stream.descriptor)
            if stream.size > stream.start:
                self._written(number, stream.start, stream.size - stream.start)
        return tail

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
        self._streams[number].write(chunk)
        length = len(chunk)
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
