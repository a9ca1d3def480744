"""The log and the output of tasks, as they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import TimeoutError as StoreTimeoutError

from scheduler.eventlog import GENESIS, PAGE, EventLog, Position

if TYPE_CHECKING:
    from scheduler.events import Record

OUTAGE_S = 60.0
"""How long the store may be away before whoever follows gives up."""
_RETRY_S = 0.2
_PROBE = 256
T = TypeVar("T")


def position_of(log: EventLog, seq: int) -> Position:
    """The position of entry `seq`, from which reading goes on behind it; the log's end if it is not that long."""
    return GENESIS if seq <= 0 else log.at(seq) or log.head()


def follow(log: EventLog, after: Position, *, wait_s: float = 0.5) -> Iterator[Record | None]:
    """The records behind `after` as they are committed, for ever; None whenever none came for `wait_s`.

    Raises: UnreadableRecord as `EventLog.read`, redis-py's errors if the store is away for a minute.
    """
    block_ms = int(wait_s * 1000)

    def page() -> list[Record]:
        return list(islice(log.read(after), PAGE))

    def wait() -> object:
        return log.store.xread({log.keys.log: f"{after.seq}-0"}, count=1, block=block_ms)

    while True:
        for record in patiently(page):
            after = Position(record.seq, record.digest)
            yield record
        patiently(wait)
        yield None


def patiently(ask: Callable[[], T]) -> T:
    """What `ask` returns, asked again while the store is away.

    Raises: redis-py's errors if that takes more than a minute.
    """
    deadline = time.monotonic() + OUTAGE_S
    while True:
        try:
            return ask()
        except (StoreConnectionError, StoreTimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def appended(before: bytes, now: bytes, *, kept: int) -> bytes:
    """What `now` says beyond `before`, both being the last `kept` bytes of one growing output.

    All of `now` where nothing of `before` is left in it: the output was faster than we, or began again.
    """
    if now.startswith(before):
        return now[len(before) :]
    if len(before) < kept:
        return now
    start = before.find(now[:_PROBE])
    while start >= 0:
        if now.startswith(before[start:]):
            return now[len(before) - start :]
        start = before.find(now[:_PROBE], start + 1)
    return next((now[size:] for size in range(_PROBE, 0, -1) if before.endswith(now[:size])), now)
