"""The state of a cluster from its log: every entry verified, folded, and the result checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from recovery.snapshot import latest
from scheduler.errors import InvariantViolated
from scheduler.eventlog import GENESIS, EventLog, Position
from scheduler.events import decode
from scheduler.state import ClusterState

if TYPE_CHECKING:
    from scheduler.events import Event, Record

PROGRESS_EVERY = 5_000


def rebuild(
    log: EventLog, *, to: int | None = None, progress: Callable[[int], object] | None = None, whole: bool = False
) -> tuple[ClusterState, Position]:
    """The state that the log tells, up to position `to` or its end, and where that is.

    It is the newest snapshot that the log agrees with and what came after; with `whole`, or without such a
    snapshot, every entry from the first one. `progress` is called with the position every few thousand entries.

    Raises: UnreadableRecord or InvariantViolated naming the position that cannot be trusted; nothing is skipped.
    """
    found = None if whole else latest(log, to=to)
    state, position = found or (ClusterState(), GENESIS)
    for record in log.read(position, to=to):
        fold(state, record)
        position = Position(record.seq, record.digest)
        if progress is not None and record.seq % PROGRESS_EVERY == 0:
            progress(record.seq)
    state.check()
    return state, position


def fold(state: ClusterState, record: Record) -> Event:
    """The event that the next record of the log holds, folded into `state`.

    Raises: UnreadableRecord if it cannot be understood, InvariantViolated if it contradicts what came before.
    """
    event = decode(record)
    try:
        state.apply(event, at=record.at, cause=record.cause)
    except (KeyError, ValueError, IndexError) as error:
        raise InvariantViolated(record.seq, f"{record.type} contradicts what came before it: {error!r}") from error
    return event
