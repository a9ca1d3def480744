"""The state of a cluster kept in step with its log by one that does not write it: what a standby has ready."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from recovery.replay.rebuild import PROGRESS_EVERY, fold, rebuild
from recovery.replay.snapshot import latest
from scheduler.model.errors import UnreadableRecord
from scheduler.rules.state import ClusterState
from scheduler.store.codec import Fact
from scheduler.store.eventlog import GENESIS, Bell, EventLog, Position

_log = structlog.get_logger()


class Follower:
    """Folds the log as it grows; `state` is what the log tells up to `position`.

    It begins at the last snapshot. A chain that breaks is folded anew once: a store that failed over may have lost a
    tail that this one had seen, and what it holds now is the log.
    """

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.state, self.position = ClusterState(), GENESIS

    def follow(self, wait_ms: int, bell: Bell | None = None) -> bool:
        """Fold what is next in the log, waiting for it so long at most, or until the bell; whether there was something.

        Raises: UnreadableRecord or InvariantViolated naming the position that cannot be trusted.
        """
        if self.position == GENESIS:
            found = latest(self.log)
            if found is not None:
                self.resume(*found)
        try:
            facts = self.log.follow(self.position, wait_ms=wait_ms, bell=bell)
        except UnreadableRecord as reason:
            self._start_over(str(reason))
            return True
        for fact in facts:
            self._fold(fact)
        return bool(facts)

    def resume(self, state: ClusterState, position: Position) -> None:
        """Go on from a state that somebody else has folded."""
        self.state, self.position = state, position

    def give(self, progress: Callable[[int], object] | None = None) -> tuple[ClusterState, Position]:
        """The state at the log's end, for the caller alone; the follower is left with nothing.

        What was followed is given if the log still holds it; otherwise the log is folded anew. Where the store goes
        away meanwhile, the follower keeps what it has folded so far.

        Raises: UnreadableRecord or InvariantViolated naming the position that cannot be trusted.
        """
        if self.position == GENESIS:
            self.resume(*rebuild(self.log, progress=progress))
        reason = self._catch_up(progress)
        if reason is not None:
            self._start_over(reason, progress)
        given = self.state, self.position
        self.resume(ClusterState(), GENESIS)
        return given

    def check_against_log(self) -> None:
        """Start over if what was followed is not in the log any more, as after a failover that lost a tail.

        Raises: UnreadableRecord or InvariantViolated naming the position that cannot be trusted.
        """
        if self.position != GENESIS and not self.log.holds(self.position):
            self._start_over(f"the log has another entry at {self.position.seq}, or none")

    def _catch_up(self, progress: Callable[[int], object] | None) -> str | None:
        """Fold the log to its end, also while it grows; why that cannot be done, None if it was."""
        while True:
            try:
                due = self.position.seq + PROGRESS_EVERY
                for fact in self.log.facts(self.position):
                    self._fold(fact)
                    if progress is not None and fact.digest and fact.seq >= due:
                        due = fact.seq + PROGRESS_EVERY
                        progress(fact.seq)
                head = self.log.head()
            except UnreadableRecord as unreadable:
                return str(unreadable)
            if head == self.position:
                return None
            if head.seq <= self.position.seq:
                return f"the log does not end at {self.position.seq}"

    def _fold(self, fact: Fact) -> None:
        fold(self.state, fact)
        self.position = Position(fact.seq, fact.digest)

    def _start_over(self, reason: str, progress: Callable[[int], object] | None = None) -> None:
        _log.warning("what was followed is not in the log any more", reason=reason)
        self.resume(ClusterState(), GENESIS)
        self.resume(*rebuild(self.log, progress=progress))
