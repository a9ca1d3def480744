"""Go on with a log that is shorter than one that was known, by an operator's decision (semantics I7)."""

from __future__ import annotations

from typing import NamedTuple
from uuid import uuid4

from recovery.replay.rebuild import rebuild
from scheduler.model.commands import AcceptLog
from scheduler.model.errors import FairlogError
from scheduler.model.sender import By
from scheduler.rules.stage.turn import Turn
from scheduler.service.known import End, ShorterLog, noted
from scheduler.store.codec import encode_turn
from scheduler.store.connection import clock_ms
from scheduler.store.eventlog import EventLog


class NothingToAccept(FairlogError):
    """The log holds all that was known of it, or does not end where the operator believes. Nothing was changed."""


class Accepted(NamedTuple):
    """The position at which the log ended, the end that was given up, and where the decision stands."""

    seq: int
    known: End
    at: int


def refusal(log: EventLog) -> ShorterLog | None:
    """Why nobody serves from the log; None if somebody may. Raises: as `rebuild`."""
    end = noted(log.store, log.keys)
    if end is None or log.holds(end.position):
        return None
    state, position = rebuild(log)
    return None if end.is_given_up(state.decisions) else ShorterLog(position.seq, end)


def accept(log: EventLog, seq: int, by: By) -> Accepted:
    """Add the turn by which `by` goes on with the log, which ends at `seq`.

    Raises: NothingToAccept; StaleLog if somebody else writes the log; CommandRejected if `by` may not; as `rebuild`.
    """
    refused, (state, position) = refusal(log), rebuild(log)
    if refused is None:
        raise NothingToAccept(
            f"nobody has known more of the log of the cluster {log.keys.cluster}, which ends at position "
            f"{position.seq}: there is nothing to accept; start masters with `fairlog master`"
        )
    if seq != position.seq:
        raise NothingToAccept(
            f"the log ends at position {position.seq}, not at {seq}; to go on with it, type `fairlog recover --accept "
            f"{position.seq}`"
        )
    known = refused.known
    turn = Turn(state, clock_ms(log.store.time()))
    turn.take(accepting(seq, position.digest, known), uuid4().hex, by)
    turn.settle()
    record = encode_turn(turn.entries, turn.commands, first=turn.first, at=turn.at, previous=position.digest)
    log.begin_commit(position, record).finish()
    log.store.delete(log.keys.shorter)
    return Accepted(seq, known, turn.first)


def accepting(seq: int, digest: str, known: End) -> AcceptLog:
    """The command that accepts the log that ends there instead of the one that was known."""
    return AcceptLog(seq=seq, digest=digest, known=known.seq, known_digest=known.digest, by=known.by)
