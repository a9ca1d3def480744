"""Snapshots while a master goes on: a child process has the state as it was when it was forked, and writes that.

The fork is all that a turn may have to wait for, a few milliseconds. A child that is killed leaves nothing but a draft
that expires; one whose master is killed finishes what it has begun.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import structlog
from redis.exceptions import RedisError

from recovery.failover.fork import Fork
from recovery.replay.snapshot import CLAIMED_S, claim, positions, write
from scheduler.rules.state import ClusterState
from scheduler.store.eventlog import EventLog, Position

NICENESS = 10
AGAIN_AFTER = 0.1
"""After which part of `every` more events it is tried again where a snapshot was not written."""
_log = structlog.get_logger()


class Snapshotter:
    """Has a snapshot written whenever `every` more events are in the log than the last one has."""

    def __init__(self, log: EventLog, every: int) -> None:
        self._log = log
        self._every = every
        self._due_at = every
        self._fork: Fork | None = None

    def is_due(self, seq: int, *, patience: float = 0.0) -> bool:
        """Whether it is time at log position `seq`; with `patience`, only after that part of `every` more.

        Costs nothing while it is not.
        """
        return self._fork is None and seq >= self._due_at + patience * self._every

    def begin(self, state: ClusterState, position: Position) -> None:
        """Have `state`, which is what the log tells up to `position`, written, unless another master does that."""
        last = max((seq for seq in positions(self._log) if seq <= position.seq), default=0)
        self._due_at = last + self._every
        if position.seq < self._due_at:
            return
        if claim(self._log):
            work = partial(_write, self._log, state, position)
            self._fork = Fork(work, niceness=NICENESS, at_most_s=CLAIMED_S)
        else:
            self._due_at = position.seq + int(AGAIN_AFTER * self._every)

    def tend(self) -> None:
        """Take note of a child that has ended; where it has failed, somebody else may write one."""
        code = self._fork.exit_code() if self._fork is not None else None
        if code is None:
            return
        self._fork = None
        if code:
            self._due_at += int(AGAIN_AFTER * self._every)
            self._give_back_claim()
            _log.warning("a snapshot was not written", exit_code=code)

    def stop(self) -> None:
        """End a child that is still at work; somebody else may write one then."""
        if self._fork is None:
            return
        self._fork.kill()
        self._fork = None
        self._give_back_claim()

    def _give_back_claim(self) -> None:
        with suppress(RedisError):  # it expires by itself
            self._log.store.delete(self._log.keys.snapshotting)


def _write(log: EventLog, state: ClusterState, position: Position) -> int:
    """0 once the snapshot is there, 1 if the store went away. A child's connection is its own: redis-py sees to it."""
    try:
        snapshot = write(log, state, position)
    except (RedisError, OSError) as error:
        _log.warning("a snapshot could not be written", error=str(error))
        return 1
    _log.info("a snapshot was written", **snapshot._asdict())
    return 0
