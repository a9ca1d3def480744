"""The output of a program that must go on: what its disk does not take is dropped, counted, and told of afterwards."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DISK_REFUSES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""The failures of a write that say something of the disk, and not of who reads the output."""
NO_SPACE = 64 * 1024
"""Bytes; a disk with less is full: neither a store's entries nor why it ended need have room."""


class Lossy(io.FileIO):
    """Writes to `descriptor`, which it never closes; `as_json`: what it says itself is a JSON object a line.

    It never fails because of the disk. Lines that the disk did not take are dropped, and once it takes more, one line
    says how many and why. All other failures are raised.
    """

    def __init__(self, descriptor: int, *, as_json: bool = False) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._as_json = as_json
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._why = ""
        self._lines = 0
        self._open = False
        """Whether the last line that was written lacks its end."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write or drop the data; returns its length. Raises: OSError, unless the disk is why."""
        if self._pid != os.getpid():  # a fork, whose output is a file of its own
            self._begin()
        whole = bytes(data)
        if self._lines and not self._untaken(self._told()):
            self._lines = 0
        left = whole if self._lines else self._untaken(whole)
        if left:
            self._lines += max(1, left.count(b"\n"))
        return len(whole)

    def _untaken(self, whole: bytes) -> bytes:
        """Write it, after the end of a line that was cut; what the disk did not take."""
        left = b"\n" + whole if self._lines and self._open else whole
        try:
            while left:
                taken = super().write(left) or 0
                self._open = left[:taken][-1:] != b"\n"
                left = left[taken:]
        except OSError as error:
            if error.errno not in DISK_REFUSES:
                raise
            self._why = error.strerror or str(error)
        return left

    def _told(self) -> bytes:
        lines = f"{self._lines} line{'s' * (self._lines != 1)}"
        said = f"the disk did not take {lines} of what was said here before: {self._why}"
        if self._as_json:
            at = datetime.now(UTC).isoformat()
            said = json.dumps({"event": said, "lines": self._lines, "level": "warning", "timestamp": at})
        return f"{said}\n".encode()


def outlive_full_disks(*, as_json: bool = False) -> None:
    """From now on, whatever this process and its forks say on stdout and stderr, they go on when the disk is full."""
    for name in ("stdout", "stderr"):
        holder, attribute = sys, name
        while hasattr(text := getattr(holder, attribute), "raw"):  # what is made printable is written to that
            holder, attribute = text, "raw"
        if not isinstance(text, io.TextIOWrapper):
            continue
        if type(getattr(text.buffer, "raw", text.buffer)) is not io.FileIO:  # unbuffered, it is no other's `raw`
            continue
        with suppress(OSError):
            text.flush()
        file = io.BufferedWriter(Lossy(text.fileno(), as_json=as_json))
        setattr(
            holder,
            attribute,
            io.TextIOWrapper(file, encoding=text.encoding, errors=text.errors, line_buffering=True),
        )


def is_full(folder: Path) -> bool:
    """Whether the disk of the folder takes no more from this user, as far as that can be seen."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free < NO_SPACE
    return False
