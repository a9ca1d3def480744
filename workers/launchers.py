"""Launchers: named ways to turn a freshly forked child of the forkserver into an executor or driver."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable

from scheduler.service.child import run_module
from scheduler.service.program_log import log_to_stderr
from workers.driver import run_driver
from workers.executor import ExecutorSpec, run_executor
from workers.program import run_program

Launcher = Callable[[ExecutorSpec, int], int]
"""Runs the executor or driver of a spec in this process, given the descriptor of its lock. Returns the exit code."""


def preloaded(spec: ExecutorSpec, lock: int) -> int:
    """Run in this process, with all modules loaded: milliseconds from grant to first task."""
    if spec.grant.program:
        return run_program(spec, lock)
    return run_driver(spec, lock) if spec.grant.role == "driver" else run_executor(spec, lock)


def fresh(spec: ExecutorSpec, lock: int) -> int:
    """Run in a new interpreter, which shares nothing with the forkserver and starts in a third of a second.

    It reads its spec from its input: everybody on this machine can read its arguments.
    """
    os.set_inheritable(lock, True)  # noqa: FBT003 - the standard library's signature
    linux = hasattr(os, "memfd_create")
    given = os.fdopen(os.memfd_create("spec"), "w+b") if linux else tempfile.TemporaryFile()  # noqa: SIM115 - see dup2
    given.write(spec.model_dump_json().encode())
    given.seek(0)
    os.dup2(given.fileno(), 0)
    os.execv(sys.executable, [*run_module("workers.launchers"), str(lock)])  # noqa: S606 - our own interpreter and module


LAUNCHERS: dict[str, Launcher] = {"preloaded": preloaded, "fresh": fresh}


def main() -> None:
    """Run an executor or driver. Argument: the descriptor of its lock; input: its spec as JSON."""
    log_to_stderr()
    lock = int(sys.argv[1])
    os.set_inheritable(lock, False)  # noqa: FBT003 - likewise
    spec = ExecutorSpec.model_validate_json(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.exit(preloaded(spec, lock))


if __name__ == "__main__":
    main()
