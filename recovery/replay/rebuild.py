"""The state of a cluster from its log: every entry verified, folded, and the result checked."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from recovery.replay.snapshot import latest
from scheduler.rules.invariants import check
from scheduler.rules.state import ClusterState
from scheduler.store.codec import Fact
from scheduler.store.eventlog import GENESIS, EventLog, Position

if TYPE_CHECKING:
    from scheduler.model.events import Event

PROGRESS_EVERY = 5_000


def rebuild(
    log: EventLog, *, to: int | None = None, progress: Callable[[int], object] | None = None, whole: bool = False
) -> tuple[ClusterState, Position]:
    """The state that the log tells, up to position `to` or its end, and where that is.

    It is the newest snapshot that the log agrees with and what came after; with `whole`, or without such a
    snapshot, every entry from the first one. `progress` is called with the position every few thousand entries.

    Raises: UnreadableRecord or InvariantViolated naming the position that cannot be trusted; nothing is skipped.
    """
    fact: Fact | None = None
    with unhindered():
        found = None if whole else latest(log, to=to)
        state, position = found or (ClusterState(), GENESIS)
        due = position.seq + PROGRESS_EVERY
        for fact in log.facts(position, to=to):
            fold(state, fact)
            if progress is not None and fact.seq >= due:
                due = fact.seq + PROGRESS_EVERY
                progress(fact.seq)
        check(state)
    return state, position if fact is None else Position(fact.seq, fact.digest)


def fold(state: ClusterState, fact: Fact) -> Event:
    """The event that comes next in the log, folded into `state`.

    Raises: InvariantViolated if it contradicts what came before.
    """
    event = fact.event
    state.apply(event, at=fact.at, cause=fact.cause, private=fact.private)
    return event


@contextmanager
def unhindered() -> Iterator[None]:
    """No look for garbage meanwhile: what a fold makes and drops is in no cycles, and looking costs a fifth of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
