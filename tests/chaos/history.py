"""What clients did and were told, and what tasks did: files that survive the death of whoever writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Phase = Literal["invoke", "ok", "fail", "unknown"]


class Line(NamedTuple):
    """A command was sent (`invoke`), carried out (`ok`), refused (`fail`), or nobody knows (`unknown`).

    One that was sent without any word afterwards is unknown, too: its client was killed.
    """

    id: str
    phase: Phase
    command: Mapping[str, Any] = MappingProxyType({})
    """As it was sent; of an `invoke` only."""
    seq: int = 0
    """Where the log is said to hold it; of an `ok` only."""
    error: str = ""


DRIVER = -1


class Trace(NamedTuple):
    """What a task of `app` said: `begin`, `end`, or `twice` if it ran already under the same executor.

    The app's driver is the task `DRIVER`; its id stands for the executor's.
    """

    app: str
    what: str
    task: int
    executor: str
    process: int
    at_ms: int


class History:
    """The history of one client, which goes on where the last process that was this client left it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, line: Line) -> None:
        """Append `line`, whole or not at all, whatever becomes of this process."""
        os.write(self._file, json.dumps({**line._asdict(), "command": dict(line.command)}).encode() + b"\n")

    def unsettled(self) -> Line | None:
        """The command that was sent last, if no word of it came."""
        lines = read_history([self._path])
        sent = [line for line in lines if line.phase == "invoke"][-1:]
        known = {line.id for line in lines if line.phase in {"ok", "fail"}}
        return next((line for line in sent if line.id not in known), None)


def read_history(paths: Iterable[Path]) -> list[Line]:
    """All lines of the clients' histories, in the order of each."""
    return [Line(**json.loads(text)) for path in paths for text in path.read_text().splitlines()]


def read_traces(folder: Path) -> Iterator[Trace]:
    """What the tasks have said, in the order of each app."""
    for path in sorted(folder.glob("*.trace")):
        for text in path.read_text().splitlines():
            what, task, executor, process, at_ms = text.split()
            yield Trace(path.stem, what, int(task), executor, int(process), int(at_ms))
