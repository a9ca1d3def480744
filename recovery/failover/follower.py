"""Fold the log as it grows, without writing it: the state of a standby, and the one that reads are answered from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from recovery.replay.rebuild import PROGRESS_EVERY, fold, rebuild, unhindered
from recovery.replay.snapshot import latest
from scheduler.model.errors import UnreadableRecord
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import look
from scheduler.service.program_log import program_log
from scheduler.store.codec import Fact, Record, told
from scheduler.store.eventlog import GENESIS, EventLog, LogBell, Position


class Follower:
    """Folds the log as it grows; `state` is the fold of the log up to `position`.

    It starts from the last snapshot. If the chain breaks, it folds the log again, once: a store that failed over may
    have lost a tail that was folded. `guard` is held while `state` and `position` change, by one whole turn at a time
    or by another state. `seen` is called with the state and the facts of each turn that is folded, in the guard.
    """

    def __init__(
        self,
        log: EventLog,
        guard: AbstractContextManager[object] | None = None,
        seen: Callable[[ClusterState, Sequence[Fact]], object] = lambda *_: None,
    ) -> None:
        self.log = log
        self._seen = seen
        self.state, self.position = ClusterState(), GENESIS
        self.read = GENESIS
        """The last position that was read from the log: `position` is ahead of it after `resume`."""
        self._guard = nullcontext() if guard is None else guard

    def follow(self, wait_ms: int, bell: LogBell | None = None) -> Sequence[Record]:
        """Fold the next turns, waiting up to `wait_ms` or until the bell; returns them.

        If it starts over, the state is that of the end of the log, and no turns are returned.

        Raises: UnreadableRecord or InvariantViolated naming the position of the failure.
        """
        if self.position == GENESIS:
            with unhindered():
                found = latest(self.log)
            self._go_on_from(*found or (ClusterState(), GENESIS))
        try:
            records = self.log.follow(self.position, wait_ms=wait_ms, bell=bell)
        except UnreadableRecord as reason:
            self._start_over(str(reason))
            return ()
        for record in records:
            self._fold(record)
        return records

    def resume(self, state: ClusterState, position: Position) -> None:
        """Go on from a state that was folded elsewhere, and whose last turn the log may not hold."""
        with self._guard:
            self.state, self.position = state, position

    def catch_up(self, progress: Callable[[int], object] | None = None) -> None:
        """Fold the log to its end.

        If the log no longer holds `position`, it is folded again. On a store error the follower keeps its state.

        Raises: UnreadableRecord or InvariantViolated naming the position of the failure.
        """
        if self.position == GENESIS:
            self._go_on_from(*rebuild(self.log, progress=progress))
        reason = self._catch_up(progress)
        if reason is not None:
            self._start_over(reason, progress)

    def give(self, progress: Callable[[int], object] | None = None) -> tuple[ClusterState, Position]:
        """Give away the state at the log's end; the follower restarts empty. Raises: as `catch_up`."""
        self.catch_up(progress)
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
                for record in self.log.read(self.position):
                    self._fold(record)
                    if progress is not None and record.last >= due:
                        due = record.last + PROGRESS_EVERY
                        progress(record.last)
                head = self.log.head()
            except UnreadableRecord as unreadable:
                return str(unreadable)
            if head == self.position:
                return None
            if head.seq <= self.position.seq:
                return f"the log ends before position {self.position.seq}"

    def _fold(self, record: Record) -> None:
        facts = told(record)
        with self._guard:
            for fact in facts:
                fold(self.state, fact)
            self.position = self.read = Position(record.last, record.digest)
            self._seen(self.state, facts)

    def _start_over(self, reason: str, progress: Callable[[int], object] | None = None) -> None:
        program_log().warning("the log no longer holds what was folded and is folded again", reason=reason)
        self.resume(ClusterState(), GENESIS)
        self._go_on_from(*rebuild(self.log, progress=progress))

    def _go_on_from(self, state: ClusterState, read: Position) -> None:
        self.resume(state, read)
        self.read = read


class Reader:
    """Views of the present state of a cluster, for whoever may read its store; the first one folds the whole log."""

    def __init__(self, log: EventLog) -> None:
        self._follower = Follower(log)

    def state(self) -> ClusterState:
        """The state at the end of the log; do not change it. Raises: as `Follower.catch_up`."""
        self._follower.catch_up()
        return self._follower.state

    def view(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON values
        """The view `name` of `scheduler.rules.view.views`. Raises: CommandRejected if it or its subject is unknown."""
        return look(self.state(), name, arguments)
