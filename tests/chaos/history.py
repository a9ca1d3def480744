"""Files of the commands and answers of clients and of the actions of tasks. They survive their writers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Phase = Literal["invoke", "ok", "fail", "unknown"]


class Line(NamedTuple):
    """A command was sent (`invoke`), executed (`ok`), refused (`fail`), or its outcome is `unknown`.

    The outcome of a command without a further line is also unknown: its client was killed.
    """

    id: str
    phase: Phase
    command: Mapping[str, Any] = MappingProxyType({})
    """As it was sent; of an `invoke` only."""
    seq: int = 0
    """Where the log is said to hold it; of an `ok` only."""
    error: str = ""


DRIVER = -1
REFUSED = "refused"
"""The name of an app whose submission must be refused."""


class Trace(NamedTuple):
    """An action of a task of `app`: `begin`, `end`, or `twice` if it already ran under the same executor.

    The app's driver is the task `DRIVER`; its id stands for the executor's.
    """

    app: str
    what: str
    task: int
    executor: str
    process: str
    at_ms: int


class History:
    """The history of one client, continued by each process of this client."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, line: Line) -> None:
        """Append `line`, completely or not at all, even if the process is killed."""
        os.write(self._file, json.dumps({**line._asdict(), "command": dict(line.command)}).encode() + b"\n")

    def unsettled(self) -> Line | None:
        """The last command sent, if its outcome is unknown."""
        lines = read_history([self._path])
        sent = [line for line in lines if line.phase == "invoke"][-1:]
        known = {line.id for line in lines if line.phase in {"ok", "fail"}}
        return next((line for line in sent if line.id not in known), None)


def read_history(paths: Iterable[Path]) -> list[Line]:
    """All lines of the histories, one history after the other."""
    return [Line(**json.loads(text)) for path in paths for text in path.read_text().splitlines()]


def read_traces(folder: Path) -> Iterator[Trace]:
    """The traces of all tasks, one app after the other."""
    for path in sorted(folder.glob("*.trace")):
        for text in path.read_text().splitlines():
            what, task, executor, process, at_ms = text.split()
            yield Trace(path.stem, what, int(task), executor, process, int(at_ms))
