"""How an executor or driver becomes a process: functions that a fresh child of the forkserver calls, by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from scheduler.service.child import run_module
from scheduler.service.program_log import log_to_stderr
from workers.driver import run_driver
from workers.executor import ExecutorSpec, run_executor

Launcher = Callable[[ExecutorSpec, int], int]
"""Becomes the executor of a spec, whose lock is the descriptor given; the exit code of the process."""


def preloaded(spec: ExecutorSpec, lock: int) -> int:
    """An executor in this very process, every module loaded already: milliseconds from grant to first task."""
    return _be(spec, lock)


def fresh(spec: ExecutorSpec, lock: int) -> int:
    """An executor in a new interpreter, for a third of a second more: nothing is shared with the forkserver."""
    os.set_inheritable(lock, True)  # noqa: FBT003 - the standard library's signature
    arguments = [*run_module("workers.launchers"), str(lock), spec.model_dump_json()]
    os.execv(sys.executable, arguments)  # noqa: S606 - our own interpreter and module


def _be(spec: ExecutorSpec, lock: int) -> int:
    return run_driver(spec, lock) if spec.grant.role == "driver" else run_executor(spec, lock)


LAUNCHERS: dict[str, Launcher] = {"preloaded": preloaded, "fresh": fresh}


def main() -> None:
    """Be the executor that the command line describes."""
    log_to_stderr()
    lock = int(sys.argv[1])
    os.set_inheritable(lock, False)  # noqa: FBT003 - likewise
    sys.exit(_be(ExecutorSpec.model_validate_json(sys.argv[2]), lock))


if __name__ == "__main__":
    main()
