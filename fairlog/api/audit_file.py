"""The audit of a log that somebody hands in, by a process of its own with bounds of time and memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import msgspec

from fairlog.api.figures import LIMIT_S, MEMORY, NICE, Failed, TooLong, audited_as_json
from fairlog.api.past import NotReady
from scheduler.model.errors import InvalidCommand
from scheduler.service.child import run_module
from scheduler.store.codec import read_export
from witness.audit.audit import Audit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

MAX_FILE = 16 << 20
"""The most bytes of a log that is handed in."""
HANDED_IN_S = 60
"""How long the file may take to arrive."""
_turn = Lock()


@contextmanager
def turn() -> Iterator[None]:
    """Hold the place of the one file that is handed in or audited. Raises: NotReady while there is another."""
    if not _turn.acquire(blocking=False):
        raise NotReady("another file is being audited; ask again")
    try:
        yield
    finally:
        _turn.release()


def audit_file(text: bytes) -> Any:  # noqa: ANN401 (JSON values)
    """The verdicts on the lines of `fairlog log --json`, as the route `audit` has them. The caller holds the `turn`.

    Raises: InvalidCommand if there are none; TooLong after `LIMIT_S`; Failed if the process ends otherwise.
    """
    if not text.strip():
        raise InvalidCommand("the file contains no log; write one with `fairlog log --json`")
    done = subprocess.run(run_module(__name__), input=text, stdout=subprocess.PIPE, check=False)  # noqa: S603 (ours)
    if done.returncode == -signal.SIGALRM:
        raise TooLong(f"to audit this file takes more than {LIMIT_S} s; run `fairlog audit FILE`")
    if done.returncode:
        raise Failed("the file could not be audited here; run `fairlog audit FILE`")
    return msgspec.json.decode(done.stdout)


def main() -> None:
    """Audit stdin and print the findings."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.alarm(LIMIT_S)
    sys.stdout.buffer.write(msgspec.json.encode(audited(sys.stdin.buffer)))


def audited(lines: IO[bytes]) -> Any:  # noqa: ANN401 (JSON values)
    """The verdicts on the lines."""
    audit = Audit()
    for _ in audit.deviations(read_export(lines)):
        pass
    return audited_as_json(audit)


if __name__ == "__main__":
    main()
