"""Write snapshots in a forked child, which has the state as of the fork.

A turn waits only for the fork, a few milliseconds. A killed child leaves a draft that expires; a child whose master is
killed finishes its snapshot.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog
from redis.exceptions import RedisError

from recovery.replay.snapshot import CLAIMED_S, BadSnapshot, claim, positions, write
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.eventlog import EventLog, Position

NICENESS = 10
AGAIN_AFTER = 0.1
"""After a failure: the part of `every` more events before the next attempt."""
_log = structlog.get_logger()


class Fork:
    """A forked process that calls `work` and exits with its result, at `niceness`, for at most `at_most_s` seconds."""

    def __init__(self, work: Callable[[], int], *, niceness: int, at_most_s: int) -> None:
        self._pid = os.fork()
        if self._pid:
            return
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(at_most_s)
            gc.disable()
            os.nice(niceness)
            code = work()
        finally:
            os._exit(code)

    def exit_code(self) -> int | None:
        """The exit code, None while it runs; not to be called after it was returned."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def kill(self) -> None:
        """Kill it and wait for its end."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


class Snapshotter:
    """Writes a snapshot whenever the log has `every` more events than the last one."""

    def __init__(self, log: EventLog, every: int) -> None:
        self._log = log
        self._every = every
        self._due_at = every
        self._fork: Fork | None = None

    def is_due(self, seq: int, *, patience: float = 0.0) -> bool:
        """Whether a snapshot is due at log position `seq`, or with `patience`, that part of `every` events later."""
        return self._fork is None and seq >= self._due_at + patience * self._every

    def begin(self, state: ClusterState, position: Position) -> None:
        """Start to write `state`, the fold of the log up to `position`, unless another master writes one."""
        last = max((seq for seq in positions(self._log) if seq <= position.seq), default=0)
        self._due_at = last + self._every
        if position.seq < self._due_at:
            return
        if claim(self._log):
            write_it = partial(_write, self._log, state, position)
            self._fork = Fork(write_it, niceness=NICENESS, at_most_s=CLAIMED_S)
        else:
            self._due_at = position.seq + int(AGAIN_AFTER * self._every)

    def tend(self) -> None:
        """Check for the child's end; if it failed, another master may write a snapshot."""
        code = self._fork.exit_code() if self._fork is not None else None
        if code is None:
            return
        self._fork = None
        if code:
            self._due_at += int(AGAIN_AFTER * self._every)
            self._give_back_claim()
            _log.warning("a snapshot was not written", exit_code=code)

    def stop(self) -> None:
        """Kill a running child; another master may write a snapshot."""
        if self._fork is not None:
            self._fork.kill()
            self._fork = None
            self._give_back_claim()

    def _give_back_claim(self) -> None:
        with suppress(RedisError):  # it expires by itself
            self._log.store.delete(self._log.keys.snapshotting)


def _write(log: EventLog, state: ClusterState, position: Position) -> int:
    """The child's exit code: 0 if the snapshot was written. redis-py opens a connection of its own after a fork."""
    try:
        snapshot = write(log, state, position)
    except (RedisError, OSError, BadSnapshot) as error:
        _log.warning("a snapshot could not be written", error=str(error))
        return 1
    _log.info("a snapshot was written", **snapshot._asdict())
    return 0
