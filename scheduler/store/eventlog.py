"""The log: one Redis stream with an entry per turn. Only a master that has folded all of it can append.

The commit is one Lua script. Before its first write it compares the stream's last entry with the position and digest
that the master folded last. So a master that was deposed, paused or partitioned cannot append, and learns of it at
its next commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError, RedisError, ResponseError

from scheduler.model.errors import NotReplicated, StaleLog, UnreadableRecord
from scheduler.store.codec import GENESIS_DIGEST, Fact, Record, check, facts, record_of, stored
from scheduler.store.inflight import InFlight
from scheduler.store.replication import Replication
from scheduler.store.task_queue_lua import RETURN

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script

    from scheduler.model.grants import GrantChanges
    from scheduler.store.keys import Keys

PAGE = 200
"""The number of entries read at a time. An entry has from one to some thousand events."""
_IN_STEP_S = 0.02
"""The interval of checks while replicas synchronize with a restarted primary."""
REPLICATED_WITHIN_S = 10
"""How long a commit waits for its replicas before the master drops the turn and takes it again."""

COMMIT_LUA = (
    RETURN
    + """
local log, inbox, heartbeats, agents = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local id, digest = '0-0', ARGV[3]
if last then id = last[1]; digest = last[2][#last[2]] end
if id ~= ARGV[1] or digest ~= ARGV[2] then return {0, id, digest} end
local at = 6
if ARGV[5] ~= '' then
  redis.call('XADD', log, ARGV[5], 'first', ARGV[6], 'at', ARGV[7], 'events', ARGV[8], 'commands', ARGV[9],
    'private', ARGV[10], 'digest', ARGV[11])
  at = 12
end
if ARGV[4] ~= '' then redis.call('XTRIM', inbox, 'MINID', ARGV[4]) end
local key = 5
while at <= #ARGV do
  local what, first = ARGV[at], at + 2
  at = first + tonumber(ARGV[at+1])
  if what == 'grant' then redis.call('HSET', KEYS[key], unpack(ARGV, first, at - 1))
  elseif what == 'revoke' then redis.call('HDEL', KEYS[key], unpack(ARGV, first, at - 1))
  elseif what == 'back' then
    return_tasks(KEYS[key], ARGV[first], ARGV[first+1], ARGV[first+2], first + 3, at - 1)
  elseif what == 'leave' then
    redis.call('DEL', KEYS[key]); redis.call('ZREM', heartbeats, ARGV[first]); redis.call('HDEL', agents, ARGV[first])
  elseif what == 'join' then
    local now = redis.call('TIME')
    redis.call('ZADD', heartbeats, now[1] * 1000 + math.floor(now[2] / 1000), ARGV[first])
  end
  key = key + 1
end
return {1}
"""
)
"""KEYS: log, inbox, heartbeats, agents, then the grants key of each change. ARGV: expected last id, expected
last digest, digest of an empty log, first inbox id to keep (or empty), id of the turn's entry (or empty) and its
fields, then changes of the grants and heartbeats: what, how many arguments, these."""
UNPACKED = 1_000
"""The most arguments of a change: Lua's stack holds some thousands."""


class Position(NamedTuple):
    """Where a turn ends in the log: the position of its last event (0 = the log is empty) and its digest."""

    seq: int
    digest: str


class Bell(NamedTuple):
    """A stream whose next entry behind `after` ends a wait for the log."""

    key: str
    after: str


GENESIS = Position(0, GENESIS_DIGEST)
Returned = tuple[str, ...]
"""Of an app: its queue, the keys of its tasks and of those begun, its jobs' prefix, and whose begun tasks come back."""
Archived = Callable[[int], Sequence[Record]]
"""The turns moved out of the store, from the one on that holds the position behind a given one: some, or none."""


class CommitInFlight:
    """A commit that was sent and not yet answered."""

    def __init__(
        self,
        sent: InFlight,
        arguments: Sequence[str | int | bytes],
        after: Position,
        reached: Callable[[InFlight], None],
    ) -> None:
        self._sent = sent
        self._arguments = arguments
        self._after = after
        self._reached = reached

    def finish(self) -> None:
        """Wait for the answer, and until the configured number of replicas has what was written.

        Raises: StaleLog if the log did not end where it should, NotReplicated if it was written here but not
        on enough replicas; redis-py's errors if the outcome is unknown.
        """
        answer = self._sent.read()
        if isinstance(answer, NoScriptError):
            answer = self._sent.ask("EVAL", COMMIT_LUA, *self._arguments)
        if not isinstance(answer, RedisError) and answer[0]:
            self._reached(self._sent)
        self._sent.release()
        if isinstance(answer, RedisError):
            raise answer
        if not answer[0]:
            raise StaleLog(f"the log ends at {answer[1].decode()}, not at {self._after.seq}-0")

    def abandon(self) -> None:
        """Ignore the answer."""
        self._sent.abandon()


class EventLog:
    """The log of one cluster in `store`; a commit counts once that many `replicas` of the store have it.

    Where the stream begins behind what a reader asks for, the entries before are those that `archived` gives.
    """

    def __init__(self, store: Redis, keys: Keys, *, replicas: int = 0, archived: Archived = lambda _: ()) -> None:
        self.store = store
        self.keys = keys
        self.replicas = replicas
        self._archived = archived
        self._replication = Replication(store)
        self._commit: Script = store.register_script(COMMIT_LUA)

    def head(self) -> Position:
        """The last entry's position.

        Raises: UnreadableRecord if the last entry has no digest or no place.
        """
        entries: Any = self.store.xrevrange(self.keys.log, count=1)
        if not entries:
            return GENESIS
        entry_id, fields = entries[0]
        return Position(_seq(entry_id), fields.get(b"digest", b"").decode(errors="replace"))

    def commit(
        self,
        after: Position,
        record: Record | None,
        *,
        keep_inbox_from: str = "",
        changes: GrantChanges | None = None,
    ) -> None:
        """Append the turn behind `after`, if there is one, trim the inbox, change the grants: all of it or nothing.

        Raises: StaleLog if the log does not end at `after`; redis-py's errors if the outcome is unknown.
        """
        self.begin_commit(after, record, keep_inbox_from=keep_inbox_from, changes=changes).finish()

    def begin_commit(
        self,
        after: Position,
        record: Record | None,
        *,
        keep_inbox_from: str = "",
        changes: GrantChanges | None = None,
        returned: Iterable[Returned] = (),
    ) -> CommitInFlight:
        """Send the same commit, and leave waiting for its answer to the caller. Raises nothing yet.

        With it begun tasks come back that are `returned`: whoever is granted by this turn finds them.
        """
        keys: list[str] = [self.keys.log, self.keys.inbox, self.keys.heartbeats, self.keys.agents]
        arguments: list[str | int | bytes] = [f"{after.seq}-0", after.digest, GENESIS_DIGEST, keep_inbox_from]
        arguments += ("",) if record is None else (f"{record.last}-0", *stored(record).values())
        if changes is not None:
            self._append_changes(changes, keys, arguments)
        for queue, *rest_of in returned:
            keys.append(queue)
            arguments += ("back", len(rest_of), *rest_of)
        rest = (len(keys), *keys, *arguments)
        sent = InFlight(self.store, [("EVALSHA", self._commit.sha, *rest)])
        return CommitInFlight(sent, rest, after, self._await_replicas)

    def facts(self, after: Position = GENESIS, *, to: int | None = None) -> Iterator[Fact]:
        """What the log tells behind `after`, up to position `to`, each turn checked to follow from the one before.

        Raises: UnreadableRecord at a gap, an altered, misshapen or unknown entry, or a tail that was cut off.
        """
        for fact in facts(self._checked(after, to), *after):
            if to is not None and fact.seq > to:
                return
            yield fact

    def read(self, after: Position = GENESIS, *, to: int | None = None) -> Iterator[Record]:
        """The same turns as they are stored, the one that holds `to` whole; what their events say is not looked at.

        Raises: as `facts`.
        """
        for record in self._checked(after, to):
            check(record, *after)
            yield record
            after = Position(record.last, record.digest)

    def follow(self, after: Position, *, wait_ms: int, bell: Bell | None = None) -> list[Fact]:
        """What the next turns behind `after` tell; waits for the first one or the bell, but no longer than that.

        None within that time may also mean that the log ends before `after`, as one does that lost its tail.
        Raises: as `facts`.
        """
        keys, lasts = zip((self.keys.log, f"{after.seq}-0"), *([bell] if bell else []), strict=True)
        asked = InFlight(self.store, [("XREAD", "COUNT", PAGE, "BLOCK", wait_ms, "STREAMS", *keys, *lasts)])
        (answer,) = asked.answers()
        page = dict(answer or ()).get(self.keys.log.encode())
        if not page:
            return []
        older = self._archived_before(page, after.seq)
        return list(facts(next(older, ()) or map(record_of, page), *after))

    def at(self, seq: int) -> Position | None:
        """The position of the turn that ends at `seq`, which is not checked; None if no turn of the log does."""
        found = self._turn_of(seq)
        return Position(seq, found.digest) if found is not None and found.last == seq else None

    def before(self, seq: int) -> Position:
        """Where the last turn ends that has ended by position `seq`; it is not checked."""
        found = self._turn_of(seq)
        if found is None:
            return self.head() if seq > 0 else GENESIS
        return Position(seq, found.digest) if found.last == seq else self.at(found.first - 1) or GENESIS

    def _turn_of(self, seq: int) -> Record | None:
        """The turn that holds position `seq`; None if the log has no such position."""
        if seq <= 0:
            return None
        entries: Any = InFlight(self.store, [("XRANGE", self.keys.log, f"{seq}-0", "+", "COUNT", 1)]).answers()[0]
        found = record_of(entries[0]) if entries else None
        if found is None or found.first > seq:
            found = next(iter(self._archived(seq - 1)), None)
        return found if found is not None and found.first <= seq <= found.last else None

    def entries(self) -> Iterator[Record]:
        """Every turn as it lies there, nothing checked. Raises: UnreadableRecord at what is none."""
        return self._pages(0)

    def backwards(self, pages: int) -> Iterator[Record]:
        """The newest turns that lie in the store, so many pages of them, the last one first; nothing is checked."""
        end = "+"
        for _ in range(pages):
            (page,) = InFlight(self.store, [("XREVRANGE", self.keys.log, end, "-", "COUNT", PAGE)]).answers()
            yield from map(record_of, page)
            if not page:
                return
            end = f"({page[-1][0].decode()}"

    def _checked(self, after: Position, to: int | None) -> Iterator[Record]:
        """The turns behind `after` up to the one that holds `to`, or all if the tail behind them was not cut off."""
        last = after.seq
        for record in self._pages(last):
            if to is not None and record.first > to:
                return
            yield record
            last = record.last
            if to is not None and last >= to:
                return
        self.check_tail(last)

    def _pages(self, last: int) -> Iterator[Record]:
        """The turns behind position `last`; while the caller works on a page, the store looks for the next one.

        Where the store has none right behind, those that were archived come first.
        """
        in_flight: InFlight | None = self._ask(last)
        try:
            while in_flight is not None:
                (page,) = in_flight.answers()
                in_flight = self._ask(_seq(page[-1][0])) if len(page) == PAGE else None
                for older in self._archived_before(page, last):
                    yield from older
                yield from map(record_of, page)
                if page:
                    last = _seq(page[-1][0])
        finally:
            if in_flight is not None:
                in_flight.abandon()

    def _archived_before(self, page: Sequence[Any], last: int) -> Iterator[Sequence[Record]]:
        """What was archived of the turns behind `last` that the store's next `page` lacks."""
        until = record_of(page[0]).first - 1 if page else 0
        while last < until and (older := self._archived(last)):
            yield [record for record in older if record.last <= until]
            last = older[-1].last

    def _ask(self, last: int) -> InFlight:
        return InFlight(self.store, [("XRANGE", self.keys.log, f"({last}-0", "+", "COUNT", PAGE)])

    def check_tail(self, seq: int) -> None:
        """Pass if `seq` is the last entry there ever was: the stream remembers the last id that it gave.

        Raises: UnreadableRecord if the tail behind `seq` was cut off.
        """
        try:
            info = self.store.xinfo_stream(self.keys.log)
        except ResponseError:
            return
        last_given = _seq(info["last-generated-id"])
        if last_given > seq and not self.store.xrange(self.keys.log, min=f"({seq}-0", count=1):
            raise UnreadableRecord(seq + 1, f"the tail was cut off: entries up to {last_given} were written")

    def holds(self, position: Position) -> bool:
        """Whether the log has that entry, with that digest; a failover may have lost it, and others have come since."""
        return self.at(position.seq) == position

    def ends_with(self, position: Position) -> bool:
        """Whether the log's last entry is `position`, so that a commit without an answer took place.

        Raises: NotReplicated if it is, but not on enough replicas; redis-py's errors.
        """
        if self.head() != position:
            return False
        if self.replicas:
            sent = InFlight(self.store, [("SET", self.keys.probe, position.seq)])
            sent.read()
            self._await_replicas(sent)
            sent.release()
        return True

    def _await_replicas(self, sent: InFlight) -> None:
        """Return once the replicas have on disk what was written over the connection of `sent`, to the primary.

        A store older than `WAITAOF` (Redis 7.0) is asked for their memory instead, by `WAIT`.

        Raises: NotReplicated if they do not within `REPLICATED_WITHIN_S`; redis-py's errors.
        """
        if not self.replicas:
            return
        reached = 0
        for _ in range(REPLICATED_WITHIN_S):
            answer = sent.ask("WAITAOF", 0, self.replicas, 1000)
            if isinstance(answer, ResponseError) and "unknown command" in str(answer):
                answer = sent.ask("WAIT", self.replicas, 1000)
            if isinstance(answer, RedisError):
                sent.abandon()
                raise answer
            reached = int(answer[1]) if isinstance(answer, list) else int(answer)
            if reached >= self.replicas and self._are_in_step(sent):
                return
        sent.abandon()
        raise NotReplicated(reached, self.replicas)

    def _are_in_step(self, sent: InFlight) -> bool:
        """Whether the live replicas are in step with the primary, waited for a second. Raises: as `confirm`."""
        deadline_s = time.monotonic() + 1
        while not (in_step := self._replication.confirm(sent)) and time.monotonic() < deadline_s:
            time.sleep(_IN_STEP_S)
        return in_step

    def _append_changes(self, changes: GrantChanges, keys: list[str], arguments: list[str | int | bytes]) -> None:
        for what, workers in (("leave", changes.left), ("join", changes.joined)):
            for worker in workers:
                keys.append(self.keys.grants(worker))
                arguments.extend((what, 1, worker))
        for worker, grants in changes.by_worker.items():
            key = self.keys.grants(worker)
            granted: list[str] = []
            revoked: list[str] = []
            for executor, grant in grants.items():
                if grant is None:
                    revoked.append(executor)
                else:
                    granted += (executor, grant)
            for what, names in (("grant", granted), ("revoke", revoked)):
                for start in range(0, len(names), UNPACKED):
                    part = names[start : start + UNPACKED]
                    keys.append(key)
                    arguments += (what, len(part), *part)


def _seq(entry_id: bytes | str) -> int:
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    return int(text.partition("-")[0])
