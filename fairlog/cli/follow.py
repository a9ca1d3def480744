"""Following the log and the output of tasks as they grow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from fairlog.cli.render import say
from scheduler.model.errors import UnreadableRecord
from scheduler.store.eventlog import GENESIS, PAGE, EventLog, Position
from scheduler.store.transient import in_words, is_there, passes

if TYPE_CHECKING:
    from scheduler.store.codec import Record

OUTAGE_S = 60.0
"""Seconds without any sign of the store after which a follower gives up."""
SAY_S = 1.0
"""Shorter outages are not reported."""
_RETRY_S = 0.2
_SEEN = 10_000
"""Number of positions that a follower remembers, to find where a log was replaced."""
T = TypeVar("T")


def follow(log: EventLog, after: Position, *, wait_s: float = 0.5) -> Iterator[Record | None]:
    """Yield the turns after `after` as they are committed, without end; yield None after each `wait_s` without one.

    If a failover lost turns already yielded, reports that on stderr and yields the turns that replaced them.

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
            say(f"the store has lost the log after position {kept.seq}; continuing with the entries that replaced it")
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

    Raises: redis-py's errors that waiting cannot resolve, or after a minute without any sign of the store.
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
                say(f"{in_words(error)}; waiting for the store")
            time.sleep(_RETRY_S)
        else:
            if said:
                say("the store is available again")
            return answer
