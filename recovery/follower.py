"""The state of a cluster kept in step with its log by one that does not write it: what a standby has ready."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from recovery.rebuild import fold, rebuild
from recovery.snapshot import latest
from scheduler.errors import UnreadableRecord
from scheduler.eventlog import GENESIS, EventLog, Position
from scheduler.state import ClusterState

_log = structlog.get_logger()


class Follower:
    """Folds the log as it grows; `state` is what the log tells up to `position`.

    It begins at the last snapshot. A chain that breaks is folded anew once: a store that failed over may have lost a
    tail that this one had seen, and what it holds now is the log.
    """

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.state, self.position = ClusterState(), GENESIS

    def follow(self, wait_ms: int) -> bool:
        """Fold what is next in the log, waiting so long for it at most; whether there was something.

        Raises: UnreadableRecord or InvariantViolated naming the position that cannot be trusted.
        """
        if self.position == GENESIS:
            found = latest(self.log)
            if found is not None:
                self.resume(*found)
        try:
            facts = self.log.follow(self.position, wait_ms=wait_ms)
        except UnreadableRecord as reason:
            self.resume(ClusterState(), GENESIS)
            self.resume(*self._anew(str(reason)))
            return True
        for fact in facts:
            fold(self.state, fact)
            self.position = Position(fact.seq, fact.digest)
        return bool(facts)

    def resume(self, state: ClusterState, position: Position) -> None:
        """Go on from a state that somebody else has folded."""
        self.state, self.position = state, position

    def give(self, progress: Callable[[int], object] | None = None) -> tuple[ClusterState, Position]:
        """The state at the log's end, for the caller alone; the follower is left with nothing.

        What was followed is given if the log still holds it; otherwise the log is folded anew.

        Raises: UnreadableRecord or InvariantViolated naming the position that cannot be trusted.
        """
        state, position = self.state, self.position
        self.resume(ClusterState(), GENESIS)
        if position == GENESIS:
            return rebuild(self.log, progress=progress)
        try:
            for fact in self.log.facts(position):
                fold(state, fact)
                position = Position(fact.seq, fact.digest)
            if self.log.head() == position:
                return state, position
            reason = f"the log does not end at {position.seq}"
        except UnreadableRecord as unreadable:
            reason = str(unreadable)
        return self._anew(reason, progress)

    def _anew(self, reason: str, progress: Callable[[int], object] | None = None) -> tuple[ClusterState, Position]:
        _log.warning("what was followed is not in the log any more", reason=reason)
        return rebuild(self.log, progress=progress)
