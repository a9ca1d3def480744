"""The bell of an agent that reaches its cluster through an API: a named pipe in the worker's folder.

Whoever runs for the worker rings it; so the agent learns that an executor has ended without anybody else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_NAME = "bell"


class Bell:
    """The agent's end; `fileno` becomes readable with a ring."""

    def __init__(self, folder: Path) -> None:
        path = folder / _NAME
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._pipe

    def ring(self) -> None:
        """Ring, from a signal handler or another thread of the agent."""
        with suppress(BlockingIOError):
            os.write(self._pipe, b".")

    def hush(self) -> None:
        """Take all rings."""
        with suppress(BlockingIOError):
            while os.read(self._pipe, 4096):
                pass

    def close(self) -> None:
        """Close the pipe; later rings go nowhere."""
        os.close(self._pipe)


def ring(folder: Path) -> None:
    """Ring the bell in the worker's folder; without an agent there is nothing to do, since the next one looks."""
    with suppress(OSError):
        pipe = os.open(folder / _NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, b".")
        finally:
            os.close(pipe)
