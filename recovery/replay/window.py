"""Folds a log and measures a span of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from recovery.replay.bounds import OPEN, Bound
from recovery.replay.rebuild import fold, unhindered
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import Event
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import Fact


class Meter(Protocol):
    """Takes figures between `first_at` and `last_at` (ms), which `measure` sets when it reaches them."""

    first_at: int
    last_at: int | None

    def advance(self, state: ClusterState, to: int) -> None:
        """Time passes up to `to` (ms); called before each event is folded."""

    def observe(self, state: ClusterState, event: Event) -> object:
        """Called after each event is folded."""


class Span(NamedTuple):
    """A measured span of the log: positions, times in ms, and the digest of the last entry."""

    first: int
    last: int
    first_at: int
    last_at: int
    digest: str

    def as_json(self) -> dict[str, int | str]:
        """The span as JSON values; `digest` is that of entry `to`, as `fairlog log --json` prints it."""
        return dict(zip(("from", "to", "fromAt", "toAt", "digest"), self, strict=True))


def measure(
    facts: Iterable[Fact], meter: Meter, *, first: Bound = OPEN, last: Bound = OPEN
) -> tuple[ClusterState, Span]:
    """The state at the end of the span, and the span. `meter` observes every event from the beginning of the log.

    If `last` is a time and the log continues after it, the span ends exactly then, otherwise with the log's last entry.
    A span between two entries has the position of the first.

    Raises: InvalidCommand if the log has no entry in the span; as `fold`.
    """
    state = ClusterState()
    begun: tuple[int, int] | None = None
    end_at, digest = 0, ""
    with unhindered():
        for fact in facts:
            if last.seq is not None and last.passed(fact):
                break
            if begun is None and first.reached(fact):
                at = fact.at if first.at is None or not state.head else first.at
                meter.first_at = max(at, first.at or 0)
                begun = (fact.seq, meter.first_at)
            if last.at is not None and last.passed(fact):
                if state.head:
                    meter.advance(state, last.at)
                    end_at = last.at
                break
            meter.advance(state, fact.at)
            meter.observe(state, fold(state, fact))
            end_at, digest = fact.at, fact.digest
    if begun is None or not state.head or begun[1] > end_at:
        raise InvalidCommand(
            f"the log has no entry in that span; it ends at position {state.head}"
            if begun is None
            else "the span ends before it starts, or before the log starts"
        )
    meter.last_at = end_at
    return state, Span(min(begun[0], state.head), state.head, begun[1], end_at, digest)
