"""The output of a task: it comes by a pipe and goes into a file of the worker's, which nobody else opens.

Tasks of one slot of an executor share a file: to create one takes longer than to run a short task.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scheduler.service.private import FILE, FOLDER

MOST_BYTES = 1 << 30
"""The most output of a task in a file. What follows is counted, but only its end is kept, with the task's state."""
_CHUNK_BYTES = 1 << 16
_AT_ONCE = 16
"""How many chunks of one task are taken before it is another one's turn."""


class Output:
    """The output of one attempt of a task, at the end of the file `log`; the store keeps `kept` bytes of it.

    `written` is told its offset in the file and its length there. `descriptor` is to be read when it is ready; `inside`
    is the end for the task, to be closed once the task has it.
    """

    def __init__(
        self, log: int, kept: int, written: Callable[[int, int], object] = lambda *_: None, most: int = MOST_BYTES
    ) -> None:
        self._log = log
        self._kept = kept
        self._written = written
        self._start = os.fstat(log).st_size
        self._size = self._start
        self._most = self._start + most
        self._late = b""
        """The end of what is not in the file."""
        self._shown = 0
        self.bytes = 0
        self.descriptor, self.inside = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.descriptor, False)

    def take(self) -> bool:
        """Take what has come. False once nothing more can come."""
        for _ in range(_AT_ONCE):
            try:
                chunk = os.read(self.descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._write(chunk)
        return True

    def tail(self) -> bytes:
        """The end of the attempt's output."""
        self._shown = self.bytes
        first = max(self._start, self._size - self._kept)
        return (os.pread(self._log, self._size - first, first) + self._late)[-self._kept :]

    def has_news(self) -> bool:
        """Whether more has come since the last call of `tail`."""
        return self._shown != self.bytes

    def close(self, line: bytes = b"") -> bytes:
        """Take what is still in the pipe, append a line of fairlog's, and close the pipe. Returns the tail."""
        self.take()
        if line:
            self._write(line)
            self.bytes -= len(line)
        tail = self.tail()
        os.close(self.descriptor)
        if self._size > self._start:
            self._written(self._start, self._size - self._start)
        return tail

    def _write(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        written = 0
        with suppress(OSError):  # the disk is full
            written = os.write(self._log, chunk[: max(0, self._most - self._size)])
        self._size += written
        if written < len(chunk):
            self._late = (self._late + chunk[written:])[-self._kept :]


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
