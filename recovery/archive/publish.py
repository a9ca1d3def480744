"""A log from elsewhere made the log of a cluster that has none: all of it or nothing, whenever it is interrupted.

The turns are gathered in a draft, a stream that expires, and folded on the way: what no master could serve from is
refused. One script, at the end, gives the draft the log's name if there is still no log. A draft that was left behind
by somebody who died is noticed and thrown away by the next one, as is one of somebody who is slower: the last wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import uuid4

from recovery.replay.rebuild import fold
from scheduler.model.errors import FairlogError
from scheduler.rules.invariants import check
from scheduler.rules.state import ClusterState
from scheduler.store.codec import facts, stored
from scheduler.store.eventlog import GENESIS, EventLog, Position

if TYPE_CHECKING:
    from scheduler.store.codec import Record

PAGE = 100
KEPT_S = 3_600
"""How long a draft is kept that nobody adds to."""

PUBLISH_LUA = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 'log' end
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
if redis.call('GET', KEYS[2]) ~= KEYS[3] or not last or last[1] ~= ARGV[1] or last[2][#last[2]] ~= ARGV[2] then
  return 'draft'
end
redis.call('PERSIST', KEYS[3])
redis.call('RENAME', KEYS[3], KEYS[1])
redis.call('DEL', KEYS[2])
return 'done'
"""
"""KEYS: log, the name of the draft under way, draft. ARGV: the last entry's id and digest."""

DISCARD_LUA = """
redis.call('UNLINK', KEYS[2])
if redis.call('GET', KEYS[1]) == KEYS[2] then redis.call('DEL', KEYS[1]) end
"""
"""KEYS: the name of the draft under way, draft."""


class NotAdopted(FairlogError):
    """The cluster has a log, or somebody else is giving it one; nothing was changed."""


def left_behind(log: EventLog) -> int | None:
    """The position up to which somebody else has gathered a log, or had before he was interrupted; None if nobody."""
    draft = cast("bytes | None", log.store.get(log.keys.draft))
    last = cast("list[tuple[bytes, object]]", log.store.xrevrange(draft, count=1)) if draft else []
    return int(last[0][0].partition(b"-")[0]) if last else None


class Adopted(NamedTuple):
    """Where the adopted log ends, and how many of its apps have not ended and cannot run, their commands withheld."""

    end: Position
    withheld: int


def adopt(log: EventLog, records: Iterable[Record]) -> Adopted:
    """Make `records`, chained from the first entry on, the log of a cluster that has none.

    The next master to be elected rebuilds from it and brings grants and heartbeats in line.

    Raises: NotAdopted if the cluster has a log or gets one meanwhile; UnreadableRecord or InvariantViolated naming the
    entry that cannot be understood or contradicts the others; what reading `records` raises. Nothing was changed then.
    """
    store, keys = log.store, log.keys
    if store.exists(keys.log):
        raise NotAdopted(_in_the_way(log))
    draft = f"{keys.draft}:{uuid4().hex}"
    earlier = cast("bytes | None", store.set(keys.draft, draft, ex=KEPT_S, get=True))
    if earlier:
        store.unlink(earlier)
    try:
        state, end = _gather(log, draft, records)
        answer = store.eval(PUBLISH_LUA, 3, keys.log, keys.draft, draft, f"{end.seq}-0", end.digest)
    finally:
        store.eval(DISCARD_LUA, 2, keys.draft, draft)
    if answer == b"log":
        raise NotAdopted(_in_the_way(log))
    if answer != b"done":
        raise NotAdopted(_OVERTAKEN)
    return Adopted(end, withheld(state))


def withheld(state: ClusterState) -> int:
    """How many apps have not ended whose commands are withheld: nobody can run them."""
    return sum(app.ended is None and (app.private is None or not app.private.command) for app in state.apps.values())


def _gather(log: EventLog, draft: str, records: Iterable[Record]) -> tuple[ClusterState, Position]:
    """Put the records into the draft, a page at a time, each folded before; where they end."""
    state, position = ClusterState(), GENESIS
    left = iter(records)
    while page := list(islice(left, PAGE)):
        with log.store.pipeline(transaction=True) as together:
            for record in page:
                for fact in facts([record], *position):
                    fold(state, fact)
                together.xadd(draft, stored(record), id=f"{record.last}-0", nomkstream=position != GENESIS)  # type: ignore[arg-type]  # str is one of theirs
                position = Position(record.last, record.digest)
            together.expire(draft, KEPT_S)
            together.expire(log.keys.draft, KEPT_S)
            if None in together.execute():
                raise NotAdopted(_OVERTAKEN)
    check(state)
    return state, position


_OVERTAKEN = "another import or restore into this cluster has started; this import was discarded"


def _in_the_way(log: EventLog) -> str:
    head = log.head()
    return (
        f"the cluster {log.keys.cluster} has a log already, up to position {head.seq}; one from elsewhere goes into an "
        "empty store, before any master is started, or under another --cluster"
    )
