"""stdout and stderr for people: whatever a verb prints does not control the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from typing import Any, TextIO

from scheduler.model.text import printable

SPEAKER = "_FAIRLOG_SPEAKER"
"""The variable with the name of the command in whose place this process speaks: one of Slurm's, as Slurm's speak."""


def spoken(sentence: str, *, error: bool = False) -> str:
    """A sentence as stderr has it."""
    speaker = os.environ.get(SPEAKER)
    if not speaker:
        return f"Error: {sentence}" if error else sentence
    return f"{speaker}: {'error: ' if error else ''}{sentence}"


class Printed:
    """A text stream for people: what a terminal would obey is left out, whatever a verb prints.

    What moves the cursor by intent is written to `terminal` of the stream, which is `raw`.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        self.failure: OSError | None = None
        """Why it took something no more, which a later attempt need not say again."""

    def write(self, text: str) -> int:
        """Write the printable text; returns the length of `text`."""
        with self._noted():
            self.raw.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Have what was written taken."""
        with self._noted():
            self.raw.flush()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            raise

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the printable lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the stream's
        return getattr(self.raw, name)


def terminal(stream: TextIO) -> TextIO:
    """The stream itself, for output that has been made printable and is drawn over or styled."""
    return stream.raw if isinstance(stream, Printed) else stream


def leave_stdout(error: OSError) -> str:
    """Write nothing to stdout any more, whatever is printed, also when Python exits. Returns why, in words."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return "nobody reads stdout any more" if isinstance(error, BrokenPipeError) else f"stdout fails: {error.strerror}"


def open_standard_streams() -> None:
    """Open what this process was started without: what it opens next would be taken for it, and fail late.

    A stdout that was closed cannot be written.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - a descriptor, until the end
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - likewise


@contextmanager
def only_printable() -> Iterator[None]:
    """While it lasts, stdout and stderr take printable text only; what their encoding lacks is replaced by `?`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    with redirect_stdout(Printed(sys.stdout)), redirect_stderr(Printed(sys.stderr)):
        yield
