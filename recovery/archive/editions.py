"""Go on by the rules in force with a log of an earlier edition of them, by an operator's decision (semantics H8)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from recovery.replay.rebuild import rebuild
from scheduler.model.commands import ChangeEdition
from scheduler.model.errors import FairlogError
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.preconditions import EDITIONS
from scheduler.store.codec import encode_turn
from scheduler.store.connection import clock_ms

if TYPE_CHECKING:
    from scheduler.model.sender import By
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.eventlog import EventLog

UPGRADE = (
    "stop what an earlier version runs, look at what would change with `fairlog whatif --edition 3`, then type "
    "`fairlog edition 3`"
)
"""What an operator can do."""


class EarlierEdition(FairlogError):
    """The log is by rules that no master decides by any more. Nothing was changed."""

    def __init__(self, edition: int) -> None:
        super().__init__(
            f"the log is by edition {edition} of the rules of sharing, by which no master of this version decides; "
            f"nothing is served from it: {UPGRADE}"
        )


def is_earlier(state: ClusterState) -> bool:
    """Whether the log up to this state is by an earlier edition.

    By none is an empty one, and one that has no settings yet: its first master names the newest edition with them.
    """
    return state.configured and state.edition < EDITIONS[-1]


def check_edition(state: ClusterState) -> None:
    """Raises: EarlierEdition."""
    if is_earlier(state):
        raise EarlierEdition(state.edition)


def change_edition(log: EventLog, edition: int, by: By) -> int:
    """Add the turn from which on the log is by that edition; its position, 0 if the log is by it already.

    Raises: CommandRejected if no such edition can follow, or `by` may not; StaleLog if somebody else writes the log; as
    `rebuild`.
    """
    state, position = rebuild(log)
    turn = Turn(state, clock_ms(log.store.time()))
    if not turn.take(ChangeEdition(edition=edition), uuid4().hex, by):
        return 0
    turn.settle()
    record = encode_turn(turn.entries, turn.commands, first=turn.first, at=turn.at, previous=position.digest)
    log.begin_commit(position, record).finish()
    return turn.first
