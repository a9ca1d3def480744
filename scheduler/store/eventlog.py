"""The log: one Redis stream that a turn is appended to if, and only if, its writer has folded all of it.

The commit is one Lua script. It compares the stream's last entry with the position and the digest
that the master folded last, before the first write, because Lua does not roll back; so a master that
was deposed, paused or partitioned cannot append, and finds out at its next commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError, RedisError, ResponseError

from scheduler.model.errors import NotReplicated, StaleLog, UnreadableRecord
from scheduler.store.codec import GENESIS_DIGEST, Fact, Raw, Record, facts, raws, record
from scheduler.store.inflight import UnderWay
from scheduler.store.replication import Primacy
from scheduler.store.task_queue_lua import RETURN

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script

    from scheduler.model.grants import GrantChanges
    from scheduler.store.keys import Keys

PAGE = 500
"""How many entries are read at a time: so few that they are still in the processor's cache when they are folded."""
_IN_STEP_S = 0.02
"""How often the replicas are looked at while they get in step with a primary that was started again."""
REPLICATED_WITHIN_S = 10
"""How long a commit waits for its replicas before the master gives the turn up, to take it again."""

COMMIT_LUA = (
    RETURN
    + """
local log, inbox, heartbeats, agents = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local id, digest = '0-0', ARGV[3]
if last then id = last[1]; digest = last[2][#last[2]] end
if id ~= ARGV[1] or digest ~= ARGV[2] then return {0, id, digest} end
local at = 8
for _ = 1, tonumber(ARGV[5]) do
  redis.call('XADD', log, ARGV[at], 'type', ARGV[at+1], 'v', ARGV[at+2], 'at', ARGV[6], 'turn', ARGV[7],
    'cause', ARGV[at+3], 'data', ARGV[at+4], 'digest', ARGV[at+5])
  at = at + 6
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
last digest, digest of an empty log, first inbox id to keep (or empty), number of events, their time and turn,
the events' id and other fields, then changes of the grants and heartbeats: what, how many arguments, these."""
UNPACKED = 1_000
"""How many arguments a change has at most: Lua's stack holds some thousands."""


class Position(NamedTuple):
    """A place in the log: the last entry's seq (0 = empty) and digest."""

    seq: int
    digest: str


class Bell(NamedTuple):
    """A stream whose next entry behind `after` wakes those who wait for something else."""

    key: str
    after: str


GENESIS = Position(0, GENESIS_DIGEST)
Returned = tuple[str, ...]
"""Of an app: its queue, the keys of its tasks and of those begun, its jobs' prefix, and whose begun tasks come back."""
Archived = Callable[[int], Sequence[Raw]]
"""The entries right behind a position that were moved out of the store, some of them; none if none were."""


class CommitUnderWay:
    """A commit that was sent and not answered yet."""

    def __init__(
        self, sent: UnderWay, arguments: Sequence[str | int], after: Position, reached: Callable[[UnderWay], None]
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
        """Never mind the answer."""
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
        self._primacy = Primacy(store)
        self._commit: Script = store.register_script(COMMIT_LUA)

    def head(self) -> Position:
        """The last entry's position.

        Raises: UnreadableRecord if the last entry has no digest or no place.
        """
        entries: Any = self.store.xrevrange(self.keys.log, count=1)
        if not entries:
            return GENESIS
        entry_id, fields = entries[0]
        return Position(_seq(entry_id), _digest(fields))

    def commit(
        self,
        after: Position,
        records: Sequence[Record],
        *,
        keep_inbox_from: str = "",
        changes: GrantChanges | None = None,
    ) -> None:
        """Append `records`, of one turn, behind `after`, trim the inbox and change the grants: all of it or nothing.

        Raises: StaleLog if the log does not end at `after`; redis-py's errors if the outcome is unknown.
        """
        self.begin_commit(after, records, keep_inbox_from=keep_inbox_from, changes=changes).finish()

    def begin_commit(
        self,
        after: Position,
        records: Sequence[Record],
        *,
        keep_inbox_from: str = "",
        changes: GrantChanges | None = None,
        returned: Iterable[Returned] = (),
    ) -> CommitUnderWay:
        """Send the same commit, and leave waiting for its answer to the caller. Raises nothing yet.

        With it begun tasks come back that are `returned`: whoever is granted by this turn finds them.
        """
        keys: list[str] = [self.keys.log, self.keys.inbox, self.keys.heartbeats, self.keys.agents]
        at, turn = (records[0].at, records[0].turn) if records else (0, 0)
        arguments: list[str | int] = [f"{after.seq}-0", after.digest, GENESIS_DIGEST, keep_inbox_from]
        arguments += [len(records), at, turn]
        for seq, name, v, _, _, cause, data, digest in records:
            arguments += (f"{seq}-0", name, v, cause, data, digest)
        if changes is not None:
            self._append_changes(changes, keys, arguments)
        for queue, *rest_of in returned:
            keys.append(queue)
            arguments += ("back", len(rest_of), *rest_of)
        rest = (len(keys), *keys, *arguments)
        sent = UnderWay(self.store, [("EVALSHA", self._commit.sha, *rest)])
        return CommitUnderWay(sent, rest, after, self._await_replicas)

    def facts(self, after: Position = GENESIS, *, to: int | None = None) -> Iterator[Fact]:
        """What the entries behind `after` tell, up to position `to`, each checked to follow from the one before.

        Raises: UnreadableRecord at a gap, an altered, misshapen or unknown entry, or a tail that was cut off.
        """
        return facts(self._checked(after, to), *after)

    def read(self, after: Position = GENESIS, *, to: int | None = None) -> Iterator[Record]:
        """The same entries as they are written; what their events say is not looked at. Raises: as `facts`."""
        seq, digest = after
        for raw in self._checked(after, to):
            seq += 1
            found = record(raw, seq, digest)
            digest = found.digest
            yield found

    def follow(self, after: Position, *, wait_ms: int, bell: Bell | None = None) -> list[Fact]:
        """What the next entries behind `after` tell; waits for the first one or the bell, but no longer than that.

        None within that time may also mean that the log ends before `after`, as one does that lost its tail.
        Raises: as `facts`.
        """
        keys, lasts = zip((self.keys.log, f"{after.seq}-0"), *([bell] if bell else []), strict=True)
        asked = UnderWay(self.store, [("XREAD", "COUNT", PAGE, "BLOCK", wait_ms, "STREAMS", *keys, *lasts)])
        (answer,) = asked.answers()
        page = dict(answer or ()).get(self.keys.log.encode())
        return list(facts(self._filled(after.seq, raws(page)), *after)) if page else []

    def at(self, seq: int) -> Position | None:
        """The position of entry `seq`, which is not checked; None if the log has no such entry."""
        page = next(self._pages(b"%d" % (seq - 1), seq), ()) if seq > 0 else ()
        return Position(seq, page[0][-1].decode(errors="replace")) if page and page[0][0] == b"%d" % seq else None

    def entries(self) -> Iterator[Raw]:
        """Every entry as it lies there, nothing checked."""
        return chain.from_iterable(self._pages(b"0"))

    def _checked(self, after: Position, to: int | None) -> Iterator[Raw]:
        """The entries behind `after` up to `to`, or all there are if the tail behind them was not cut off."""
        last = b"%d" % after.seq
        for page in self._pages(last, to):
            yield from page
            last = page[-1][0]
        if to is None or int(last) < to:
            self.check_tail(int(last))

    def _pages(self, last: bytes, to: int | None = None) -> Iterator[Sequence[Raw]]:
        """The entries behind position `last`; while the caller works on a page, the store looks for the next one.

        Where the store has none right behind, those that were archived come first.
        """
        end = "+" if to is None else f"{to}-0"
        under_way: UnderWay | None = self._ask(last, end)
        try:
            while under_way is not None:
                (found,) = under_way.answers()
                page = raws(found)
                under_way = self._ask(page[-1][0], end) if len(page) == PAGE else None
                yield from self._archived_before(page, _seq(last), to)
                if page:
                    last = page[-1][0]
                    yield page
        finally:
            if under_way is not None:
                under_way.abandon()

    def _archived_before(self, page: Sequence[Raw], last: int, to: int | None) -> Iterator[Sequence[Raw]]:
        """What was archived of the entries behind `last`, up to `to`, that the store's next `page` lacks."""
        until = _seq(page[0][0]) - 1 if page else to or 0
        while last < until and (older := self._archived(last)):
            yield older[: until - last]
            last += len(older)

    def _filled(self, seq: int, page: Sequence[Raw]) -> Sequence[Raw]:
        """The page if it goes on right behind `seq`; otherwise what was archived there, if anything was."""
        return next(self._archived_before(page, seq, None), page)

    def _ask(self, last: bytes, end: str) -> UnderWay:
        return UnderWay(self.store, [("XRANGE", self.keys.log, b"(%b-0" % last, end, "COUNT", PAGE)])

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
        """Whether the log's last entry is `position`: how a commit without an answer is settled.

        Raises: NotReplicated if it is, but not on enough replicas; redis-py's errors.
        """
        if self.head() != position:
            return False
        if self.replicas:
            sent = UnderWay(self.store, [("SET", self.keys.probe, position.seq)])
            sent.read()
            self._await_replicas(sent)
            sent.release()
        return True

    def _await_replicas(self, sent: UnderWay) -> None:
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

    def _are_in_step(self, sent: UnderWay) -> bool:
        """Whether the live replicas are in step with the primary, waited for a second. Raises: as `confirm`."""
        deadline_s = time.monotonic() + 1
        while not (in_step := self._primacy.confirm(sent)) and time.monotonic() < deadline_s:
            time.sleep(_IN_STEP_S)
        return in_step

    def _append_changes(self, changes: GrantChanges, keys: list[str], arguments: list[str | int]) -> None:
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


def _digest(fields: Mapping[bytes, bytes]) -> str:
    return fields.get(b"digest", b"").decode(errors="replace")


def _seq(entry_id: bytes | str) -> int:
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    return int(text.partition("-")[0])
