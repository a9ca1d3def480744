"""The log: one Redis stream that a turn is appended to if, and only if, its writer has folded all of it.

The commit is one Lua script. It compares the stream's last entry with the position and the digest
that the master folded last, before the first write, because Lua does not roll back; so a master that
was deposed, paused or partitioned cannot append, and finds out at its next commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from scheduler.errors import StaleLog, UnreadableRecord, UnsuitableStore
from scheduler.events import FIELDS, GENESIS_DIGEST, Record, read_record

if TYPE_CHECKING:
    from redis.commands.core import Script

    from scheduler.grants import GrantChanges
    from scheduler.keys import Keys

PAGE = 2_000
"""How many entries are read at a time."""

COMMIT_LUA = """
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
  local what, name, value = ARGV[at], ARGV[at+1], ARGV[at+2]
  if what == 'grant' then redis.call('HSET', KEYS[key], name, value)
  elseif what == 'revoke' then redis.call('HDEL', KEYS[key], name)
  elseif what == 'clear' then redis.call('DEL', KEYS[key])
  elseif what == 'leave' then
    redis.call('DEL', KEYS[key]); redis.call('ZREM', heartbeats, name); redis.call('HDEL', agents, name)
  elseif what == 'join' then
    local now = redis.call('TIME')
    redis.call('ZADD', heartbeats, now[1] * 1000 + math.floor(now[2] / 1000), name)
  end
  at = at + 3
  key = key + 1
end
return {1}
"""
"""KEYS: log, inbox, heartbeats, agents, then the grants key of each change. ARGV: expected last id, expected
last digest, digest of an empty log, first inbox id to keep (or empty), number of events, their time and turn,
the events' id and other fields, then triples (what, name, value) that change the grants and heartbeats."""


class Position(NamedTuple):
    """A place in the log: the last entry's seq (0 = empty) and digest."""

    seq: int
    digest: str


GENESIS = Position(0, GENESIS_DIGEST)


def connect(url: str) -> Redis:
    """A connection to the store at `url` (`redis://`, `rediss://`, `unix://PATH`).

    It never repeats a command by itself: whether a commit whose answer was lost took place is settled
    by reading the log, and everything else is taken up again by the caller's own loop.

    Raises: UnsuitableStore if the URL is of no known form.
    """
    try:
        return Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=5, health_check_interval=0)
    except ValueError as error:
        raise UnsuitableStore(f"the store's URL must begin with redis://, rediss:// or unix://, not {url!r}") from error


class CommitUnderWay:
    """A commit that was sent and not answered yet. While the store works on it, the master may think ahead."""

    def __init__(self, store: Redis, script: str, arguments: Sequence[str | int], after: Position) -> None:
        self._store = store
        self._arguments = arguments
        self._after = after
        self._error: RedisError | None = None
        self._connection: Any = None
        try:
            self._connection = store.connection_pool.get_connection()
            self._connection.send_command("EVALSHA", script, *arguments)
        except RedisError as error:
            self._error = error

    def finish(self) -> None:
        """Wait for the answer.

        Raises: StaleLog if the log did not end where it should; redis-py's errors if the outcome is unknown.
        """
        try:
            done = self._answer()
        except RedisError:
            self.abandon()
            raise
        self._store.connection_pool.release(self._connection)
        if not done[0]:
            raise StaleLog(f"the log ends at {done[1].decode()}, not at {self._after.seq}-0")

    def abandon(self) -> None:
        """Never mind the answer."""
        if self._connection is not None:
            self._connection.disconnect()
            self._store.connection_pool.release(self._connection)

    def _answer(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        try:
            answer = self._connection.read_response()
        except NoScriptError:
            self._connection.send_command("EVAL", COMMIT_LUA, *self._arguments)
            answer = self._connection.read_response()
        if isinstance(answer, RedisError):
            raise answer
        done: list[Any] = answer
        return done


class EventLog:
    """The log of one cluster in the store behind `store`."""

    def __init__(self, store: Redis, keys: Keys) -> None:
        self.store = store
        self.keys = keys
        self._commit: Script = store.register_script(COMMIT_LUA)

    def head(self) -> Position:
        """The last entry's position.

        Raises: UnreadableRecord if the last entry has no digest or no place.
        """
        entries: Any = self.store.xrevrange(self.keys.log, count=1)
        if not entries:
            return GENESIS
        entry_id, fields = entries[0]
        return Position(_seq(entry_id), _text(fields).get("digest", ""))

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
    ) -> CommitUnderWay:
        """Send the same commit, and leave waiting for its answer to the caller. Raises nothing yet."""
        keys: list[str] = [self.keys.log, self.keys.inbox, self.keys.heartbeats, self.keys.agents]
        at, turn = (records[0].at, records[0].turn) if records else (0, 0)
        arguments: list[str | int] = [f"{after.seq}-0", after.digest, GENESIS_DIGEST, keep_inbox_from]
        arguments += [len(records), at, turn]
        for seq, name, v, _, _, cause, data, digest in records:
            arguments += (f"{seq}-0", name, v, cause, data, digest)
        if changes is not None:
            self._append_changes(changes, keys, arguments)
        return CommitUnderWay(self.store, self._commit.sha, (len(keys), *keys, *arguments), after)

    def read(self, after: Position = GENESIS, *, to: int | None = None) -> Iterator[Record]:
        """The records behind `after`, each checked to follow from the one before, up to position `to`.

        Raises: UnreadableRecord at a gap, an altered or misshapen entry, or a tail that was cut off.
        """
        seq, digest = after
        while to is None or seq < to:
            page: Any = self.store.xrange(self.keys.log, min=f"({seq}-0", count=PAGE)
            for entry_id, raw in page:
                found = _seq(entry_id)
                if found != seq + 1:
                    raise UnreadableRecord(seq + 1, f"the entry is missing; the next one in the log is {found}")
                record = read_record(found, _text(raw), digest)
                seq, digest = found, record.digest
                yield record
                if seq == to:
                    return
            if len(page) < PAGE:
                self._check_tail(seq)
                return

    def ends_with(self, position: Position) -> bool:
        """Whether the log's last entry is `position`: how a commit without an answer is settled."""
        return self.head() == position

    def _check_tail(self, seq: int) -> None:
        """The stream remembers the last id it ever gave; if that entry is gone, the tail was cut off."""
        try:
            info = self.store.xinfo_stream(self.keys.log)
        except ResponseError:
            return
        last_given = _seq(info["last-generated-id"])
        if last_given > seq and not self.store.xrange(self.keys.log, min=f"({seq}-0", count=1):
            raise UnreadableRecord(seq + 1, f"the tail was cut off: entries up to {last_given} were written")

    def _append_changes(self, changes: GrantChanges, keys: list[str], arguments: list[str | int]) -> None:
        for worker in changes.left:
            keys.append(self.keys.grants(worker))
            arguments.extend(("leave", worker, ""))
        for worker in changes.joined:
            keys.append(self.keys.grants(worker))
            arguments.extend(("join", worker, ""))
        for worker, grants in changes.by_worker.items():
            for executor, grant in grants.items():
                keys.append(self.keys.grants(worker))
                if grant is None:
                    arguments.extend(("revoke", executor, ""))
                else:
                    arguments.extend(("grant", executor, grant if isinstance(grant, str) else grant.model_dump_json()))


def check_store(store: Redis, *, unsafe: bool = False) -> None:
    """Refuse a store that would break the promises: a version too old, writes not fsynced, keys evicted.

    `unsafe` (for tests) accepts any store that answers and is new enough to run the commit.

    Raises: UnsuitableStore naming the setting, what it is and what it must be.
    """
    try:
        info = store.info("server")
    except RedisError as error:
        raise UnsuitableStore(f"the store does not answer: {error}") from error
    name, lowest = ("valkey", (7, 2)) if "valkey_version" in info else ("redis", (7, 0))
    version = str(info[f"{name}_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < lowest:
        raise UnsuitableStore(f"the store is {name} {version}; fairlog needs {lowest[0]}.{lowest[1]} or newer")
    if unsafe:
        return
    for setting, due in _DUE_SETTINGS.items():
        try:
            actual = store.config_get(setting).get(setting)
        except RedisError as error:
            raise UnsuitableStore(f"the store does not tell its settings ({error}); allow CONFIG GET") from error
        if actual != due:
            raise UnsuitableStore(
                f"the store has {setting} {actual}; fairlog needs `{setting} {due}` to keep its promises"
            )


_DUE_SETTINGS: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}


def _seq(entry_id: bytes | str) -> int:
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    return int(text.partition("-")[0])


def _text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    try:
        return {name.decode(): value.decode() for name, value in fields.items()}
    except UnicodeDecodeError:
        return {}


__all__ = ["FIELDS", "GENESIS", "EventLog", "Position", "check_store", "connect"]
