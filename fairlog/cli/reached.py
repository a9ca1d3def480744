"""Whether a log has reached the position or the time that somebody asks for."""

from __future__ import annotations

import time
from collections.abc import Callable

from fairlog.cli.failures import PositionMissing
from recovery.replay.bounds import Bound


def now_ms() -> int:
    """The time (ms) by this machine's clock."""
    return round(time.time() * 1000)


def check_reached(bound: Bound, seq: int, ended_at: int, now: Callable[[], int] = now_ms) -> None:
    """Raises: NotThatLong if a log that ends at `seq`, at the time `ended_at` (ms), has not reached the bound.

    It has reached every time that is not in the future.
    """
    if bound.seq is not None and seq < bound.seq:
        raise PositionMissing(f"the log ends at position {seq}, before {bound.seq}")
    if bound.at is not None and bound.at > now():
        raise PositionMissing(f"the log ends at position {seq}, {Bound(at=ended_at)}; {bound} is in the future")


def check_span(first: Bound, last: Bound, seq: int, ended_at: int) -> None:
    """Raises: NotThatLong if that log has not reached the ends of the span, or ends before it begins."""
    check_reached(first, seq, ended_at)
    check_reached(last, seq, ended_at)
    if first.at is not None and first.at > ended_at:
        raise PositionMissing(f"the log ends at position {seq}, {Bound(at=ended_at)}, before {first}")
