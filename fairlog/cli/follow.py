"""The log and the output of tasks, as they grow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import click
from redis.exceptions import RedisError

from scheduler.model.errors import UnreadableRecord
from scheduler.store.eventlog import GENESIS, PAGE, EventLog, Position
from scheduler.store.transient import in_words, is_there, passes

if TYPE_CHECKING:
    from scheduler.store.codec import Record

OUTAGE_S = 60.0
"""How long the store may say nothing at all before whoever follows gives up."""
SAY_S = 1.0
"""An outage shorter than that is not worth a word."""
_RETRY_S = 0.2
_PROBE = 256
_SEEN = 10_000
"""How far back a follower finds where the log went another way."""
T = TypeVar("T")


def position_of(log: EventLog, seq: int) -> Position:
    """The end of the last turn that ended by position `seq`, at most the end of the log: where to continue reading."""
    return log.before(seq)


def follow(log: EventLog, after: Position, *, wait_s: float = 0.5) -> Iterator[Record | None]:
    """Yield the turns after `after` as they are committed, without end; yield None after each `wait_s` without one.

    Where a store that failed over has lost some of them, that is said, and what has come in their place follows.

    Raises: UnreadableRecord as `EventLog.read`, redis-py's errors if the store is away for a minute.
    """
    block_ms = int(wait_s * 1000)
    seen: deque[Position] = deque([after], maxlen=_SEEN)

    def page() -> list[Record]:
        found = list(islice(log.read(after), PAGE))
        if not found and after != GENESIS and not log.holds(after):
            raise UnreadableRecord(after.seq, "the entry last read is gone")
        return found

    def wait() -> object:
        return log.store.xread({log.keys.log: f"{after.seq}-0"}, count=1, block=block_ms)

    def last_kept() -> Position:
        return next((position for position in reversed(seen) if position == GENESIS or log.holds(position)), after)

    while True:
        try:
            records = patiently(page)
        except UnreadableRecord:
            kept = patiently(last_kept)
            if kept == after:
                raise
            click.echo(
                f"the store has lost the log after position {kept.seq}; continuing with the entries that replaced it",
                err=True,
            )
            after = kept
            continue
        for record in records:
            after = Position(record.last, record.digest)
            seen.append(after)
            yield record
        patiently(wait)
        yield None


def patiently(ask: Callable[[], T]) -> T:
    """Return what `ask` returns, retrying while the store is away. The outage and its end are reported once on stderr.

    Raises: redis-py's errors if it says nothing for a minute, or what waiting does not mend.
    """
    heard_s = began_s = time.monotonic()
    said = False
    while True:
        try:
            answer = ask()
        except RedisError as error:
            now_s = time.monotonic()
            if not passes(error) or (now_s > heard_s + OUTAGE_S and not is_there(error)):
                raise
            if is_there(error):
                heard_s = now_s
            if not said and now_s >= began_s + SAY_S:
                said = True
                click.echo(f"{in_words(error)}; waiting for the store", err=True)
            time.sleep(_RETRY_S)
        else:
            if said:
                click.echo("the store is available again", err=True)
            return answer


def appended(before: bytes, now: bytes, *, kept: int) -> bytes:
    """The part of `now` that is new since `before`; both are the last `kept` bytes of one growing output.

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
