"""Fold the log as it grows, without writing it: the state that a standby keeps ready."""

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
    """Folds the log as it grows; `state` is the fold of the log up to `position`.

    It starts from the last snapshot. If the chain breaks, it folds the log again, once: a store that failed over may
    have lost a tail that was folded.
    """

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.state, self.position = ClusterState(), GENESIS

    def follow(self, wait_ms: int, bell: Bell | None = None) -> bool:
        """Fold the next turns, waiting up to `wait_ms` or until the bell; returns whether there were any.

        Raises: UnreadableRecord or InvariantViolated naming the position of the failure.
        """
        if self.position == GENESIS:
            self.resume(*latest(self.log) or (ClusterState(), GENESIS))
        try:
            facts = self.log.follow(self.position, wait_ms=wait_ms, bell=bell)
        except UnreadableRecord as reason:
            self._start_over(str(reason))
            return True
        for fact in facts:
            self._fold(fact)
        return bool(facts)

    def resume(self, state: ClusterState, position: Position) -> None:
        """Go on from a state that was folded elsewhere."""
        self.state, self.position = state, position

    def give(self, progress: Callable[[int], object] | None = None) -> tuple[ClusterState, Position]:
        """Give away the state at the log's end; the follower restarts empty.

        If the log no longer holds `position`, it is folded again. On a store error the follower keeps its state.

        Raises: UnreadableRecord or InvariantViolated naming the position of the failure.
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
        """Start over if the log no longer holds `position`, as after a failover that lost a tail. Raises: as `give`."""
        if self.position != GENESIS and not self.log.holds(self.position):
            self._start_over(f"the log has another entry at {self.position.seq}, or none")

    def _catch_up(self, progress: Callable[[int], object] | None) -> str | None:
        """Fold the log to its end while it may grow; returns why that failed, None on success."""
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
                return f"the log ends before position {self.position.seq}"

    def _fold(self, fact: Fact) -> None:
        fold(self.state, fact)
        self.position = Position(fact.seq, fact.digest)

    def _start_over(self, reason: str, progress: Callable[[int], object] | None = None) -> None:
        _log.warning("the log no longer holds what was folded and is folded again", reason=reason)
        self.resume(ClusterState(), GENESIS)
        self.resume(*rebuild(self.log, progress=progress))
