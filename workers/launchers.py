"""Launchers: named ways to turn a freshly forked child of the forkserver into an executor or driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from scheduler.service.child import run_module
from scheduler.service.program_log import log_to_stderr
from workers.driver import run_driver
from workers.executor import ExecutorSpec, run_executor

Launcher = Callable[[ExecutorSpec, int], int]
"""Runs the executor or driver of a spec in this process, given the descriptor of its lock. Returns the exit code."""


def preloaded(spec: ExecutorSpec, lock: int) -> int:
    """Run in this process, with all modules loaded: milliseconds from grant to first task."""
    return run_driver(spec, lock) if spec.grant.role == "driver" else run_executor(spec, lock)


def fresh(spec: ExecutorSpec, lock: int) -> int:
    """Run in a new interpreter, which shares nothing with the forkserver and starts in a third of a second."""
    os.set_inheritable(lock, True)  # noqa: FBT003 - the standard library's signature
    arguments = [*run_module("workers.launchers"), str(lock), spec.model_dump_json()]
    os.execv(sys.executable, arguments)  # noqa: S606 - our own interpreter and module


LAUNCHERS: dict[str, Launcher] = {"preloaded": preloaded, "fresh": fresh}


def main() -> None:
    """Run an executor or driver. Arguments: the descriptor of its lock; its spec as JSON."""
    log_to_stderr()
    lock = int(sys.argv[1])
    os.set_inheritable(lock, False)  # noqa: FBT003 - likewise
    sys.exit(preloaded(ExecutorSpec.model_validate_json(sys.argv[2]), lock))


if __name__ == "__main__":
    main()
