"""Past states of the log, for reads at a position: folded in bounded steps, and kept for who asks near them."""

from __future__ import annotations

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from recovery.replay.rebuild import fold, unhindered
from recovery.replay.snapshot import latest, positions
from scheduler.model.errors import FairlogError
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from scheduler.store.codec import told
from scheduler.store.eventlog import GENESIS, EventLog, Position

KEPT = 3
"""The most past states that are kept, each as large as the present one."""
MARKS = 32
"""The most marks: compressed states at even distances, from which the others are folded."""
SPACING = 4_000
"""The least distance (events) between marks."""
FOLD_S = 1.5
"""How long one request may fold; the next one goes on from there."""
TURN_S = 0.3
"""How long a request waits for another one that folds."""
_LOOK_EVERY = 200
T = TypeVar("T")


class NotReady(FairlogError):
    """The replica has no state to answer from now; ask again later."""


class _Folded(NamedTuple):
    """A state, and where the log goes on after it; None if it ends within a turn."""

    state: ClusterState
    position: Position | None


class Past:
    """The states at past positions. May be used by several threads; one folds at a time."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._states: OrderedDict[int, _Folded] = OrderedDict()
        self._marks: dict[int, tuple[Position, bytes]] = {}
        self._spacing = SPACING
        self._turn = threading.Lock()

    def forget(self) -> None:
        """Keep nothing: the log has lost turns that were folded."""
        with self._turn:
            self._states.clear()
            self._marks.clear()

    def read(self, at: int, look: Callable[[ClusterState], T]) -> T:
        """What `look` makes of the state at position `at`; it must change nothing, and return nothing that changes.

        Raises: NotReady while it is folded, saying how far it is, and while another one is.
        """
        if not self._turn.acquire(timeout=TURN_S):
            raise NotReady("another past state is being read; ask again later")
        try:
            return look(self._state(at))
        finally:
            self._turn.release()

    def _state(self, at: int) -> ClusterState:
        if (kept := self._states.get(at)) is not None:
            self._states.move_to_end(at)
            return kept.state
        if at == 0:
            return ClusterState()
        state, position = self._base(at)
        deadline_s = time.monotonic() + FOLD_S
        number = 0
        with unhindered():
            for record in self._log.read(position, to=at):
                facts = told(record)
                number += len(facts)
                for fact in facts:
                    if fact.seq <= at:
                        fold(state, fact)
                if record.last > at:
                    return self._keep(at, _Folded(state, None))
                position = Position(record.last, record.digest)
                self._mark(state, position)
                if number > _LOOK_EVERY and record.last < at:
                    number = 0
                    if time.monotonic() > deadline_s:
                        self._keep(record.last, _Folded(state, position))
                        raise NotReady(f"the state at {at} is being folded, and has reached {record.last}; ask again")
        return self._keep(at, _Folded(state, position))

    def _base(self, at: int) -> tuple[ClusterState, Position]:
        """The state nearest before `at` to fold on from; if it was kept, it is kept no longer."""
        near = max((seq for seq, kept in self._states.items() if seq < at and kept.position is not None), default=0)
        mark = max((seq for seq in self._marks if seq <= at), default=0)
        written = max((seq for seq in positions(self._log) if seq <= at), default=0)
        if written > max(near, mark) and (found := latest(self._log, to=at)) is not None:
            self._mark(*found)
            return found
        if near > mark:
            kept = self._states.pop(near)
            assert kept.position is not None  # noqa: S101 - as it was chosen
            return kept.state, kept.position
        if mark:
            position, packed = self._marks[mark]
            return _unpacked(packed), position
        return ClusterState(), GENESIS

    def _keep(self, at: int, folded: _Folded) -> ClusterState:
        self._states[at] = folded
        while len(self._states) > KEPT:
            self._states.popitem(last=False)
        return folded.state

    def _mark(self, state: ClusterState, position: Position) -> None:
        """Mark the state if no mark is near; of too many marks, every other one goes."""
        before = max((seq for seq in self._marks if seq <= position.seq), default=0)
        if position.seq - before < self._spacing:
            return
        self._marks[position.seq] = position, zlib.compress("\n".join(lines(state)).encode(), 1)
        if len(self._marks) > MARKS:
            self._spacing *= 2
            for seq in sorted(self._marks)[::2]:
                del self._marks[seq]


def _unpacked(packed: bytes) -> ClusterState:
    return restored(zlib.decompress(packed).splitlines())
