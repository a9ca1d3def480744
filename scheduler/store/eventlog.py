"""The log: one Redis stream with an entry per turn. Only a master that has folded all of it can append.

The commit is one Lua script. Before its first write it compares the stream's last entry with the position and digest
that the master folded last. So a master that was deposed, paused or partitioned cannot append, and learns of it at
its next commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError, RedisError, ResponseError

from scheduler.model.errors import FairlogError, NotReplicated, StaleLog, UnreadableRecord
from scheduler.model.versions import SCHEMA, check_schema
from scheduler.store.codec import GENESIS_DIGEST, Fact, Record, check, check_private, record_of, stored, told
from scheduler.store.durability import QUESTIONS, Durability
from scheduler.store.inflight import InFlight
from scheduler.store.replication import Replication
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script

    from scheduler.model.grants import GrantChanges
    from scheduler.store.keys import Keys

PAGE = 200
"""The most entries read at a time. An entry has from one to some thousand events."""
PAGE_BYTES = 4 << 20
"""About how much is read at a time, if more than an entry: the store answers nobody else while it copies a page."""
FIRST_PAGE = 10
"""The number of entries read at first."""
_IN_STEP_S = 0.02
"""The interval of checks while replicas synchronize with a restarted primary."""
REPLICATED_WITHIN_S = 10
_NOTED_S = 20
"""How long the note stays that replicas are missing; it is renewed each second, and by the next master that tries."""
"""How long a commit waits for its replicas before the master drops the turn and takes it again."""

COMMIT_LUA = script(__file__, "commit")
UNPACKED = 1_000
"""The maximum number of arguments of a change; even, and within Lua's stack."""


class Position(NamedTuple):
    """Where a turn ends in the log: the position of its last event (0 = the log is empty) and its digest."""

    seq: int
    digest: str


class LogBell(NamedTuple):
    """A stream whose next entry after `after` ends a wait for the log."""

    key: str
    after: str


GENESIS = Position(0, GENESIS_DIGEST)
Returned = tuple[str, ...]
"""An app's queue, its `tasks`, `begun` and `later` keys, the prefix of its jobs, and executors whose tasks return."""
Archived = Callable[[int], Sequence[Record]]
"""Position -> the next archived turns after it; empty if there are none."""


class CommitInFlight:
    """A commit that was sent and not yet answered."""

    def __init__(self, log: EventLog, sha: str, after: Position, arguments: Sequence[str | int | bytes]) -> None:
        self._log = log
        self._after = after
        self._arguments = arguments
        self._sent = InFlight(log.store, [("EVALSHA", sha, *arguments), *log.questions])

    def finish(self) -> None:
        """Wait for the answer, and until the configured number of replicas has the commit.

        Raises: StaleLog if the log does not end at `after`; NotReplicated if the commit took place, but not on enough
        replicas, NotDurable if it did in a store that may lose it; redis-py's errors if the outcome is unknown.
        """
        answer = self._sent.read()
        said = [self._sent.read() for _ in self._log.questions]
        if isinstance(answer, NoScriptError):
            answer = self._sent.ask("EVAL", COMMIT_LUA, *self._arguments)
            said = [self._sent.ask(*question) for question in self._log.questions]
        if not isinstance(answer, RedisError) and answer[0]:
            self._log.await_replicas(self._sent)
        self._sent.release()
        if not isinstance(answer, RedisError) and answer[0]:
            self._log.judge(said)
        if isinstance(answer, RedisError):
            raise answer
        if not answer[0]:
            if len(answer) > 3:
                raise StaleLog(f"the store has lost what the turn took from {answer[3].decode()}")
            raise StaleLog(f"the log ends at {answer[1].decode()}, not at {self._after.seq}-0")

    def abandon(self) -> None:
        """Ignore the answer."""
        self._sent.abandon()


class EventLog:
    """The log of one cluster in `store`. A commit is confirmed once `replicas` replicas of the store have it.

    Turns before the start of the stream are read from `archived`. With `durable`, each commit asks the store in the
    same breath whether it keeps what it acknowledges, and is not confirmed unless it does.
    """

    def __init__(
        self,
        store: Redis,
        keys: Keys,
        *,
        replicas: int = 0,
        archived: Archived = lambda _: (),
        durable: bool = False,
    ) -> None:
        self.store = store
        self.keys = keys
        self.replicas = replicas
        self._archived = archived
        self.questions = QUESTIONS if durable else ()
        self._durability = Durability()
        self.meanwhile: Callable[[], object] = lambda: None
        """Called at least each second while a commit waits for replicas; what it raises ends the wait."""
        self._noted = False
        """Whether a note in the store says that replicas are missing."""
        self._followed = PAGE
        """The most entries that `follow` reads next."""
        self._replication = Replication(store)
        self._commit: Script = store.register_script(COMMIT_LUA)

    def check_schema(self, *, state: bool = False) -> None:
        """Make sure that this fairlog reads the log's schema; a master `state`s it where nobody has.

        Raises: OtherVersion naming it; redis-py's errors.
        """
        said: Any = self.store.get(self.keys.schema)
        if said is not None:
            check_schema(said.decode(errors="replace"), self.keys.cluster)
        elif state:
            self.store.set(self.keys.schema, SCHEMA)

    def head(self) -> Position:
        """The position of the last entry. Raises: UnreadableRecord if the last entry has no digest."""
        entries: Any = self.store.xrevrange(self.keys.log, count=1)
        if not entries:
            return GENESIS
        entry_id, fields = entries[0]
        return Position(_seq(entry_id), fields.get(b"digest", b"").decode(errors="replace"))

    def begin_commit(
        self,
        after: Position,
        record: Record | None,
        *,
        taken: Mapping[str, str] | None = None,
        changes: GrantChanges | None = None,
        returned: Iterable[Returned] = (),
        claimed: Iterable[tuple[str, str]] = (),
    ) -> CommitInFlight:
        """Send a commit: append the turn, if any, trim the inbox and change the grants; all or nothing.

        It requires that the log ends at `after`, and that the inbox has what the turn took: a failover of the store
        may have lost messages, and what they report, without losing entries of the log. `taken` names, of each lane of
        the inbox that the turn took from, the last entry taken; it and those before it are removed. `returned` returns
        running tasks to their queues before executors granted by this turn take tasks. `claimed` are keys of secrets
        and those where the submitter has put them. Raises nothing: `finish` does.
        """
        keys: list[str] = [self.keys.log, self.keys.heartbeats, self.keys.agents]
        arguments: list[str | int | bytes] = [f"{after.seq}-0", after.digest, GENESIS_DIGEST]
        arguments += ("",) if record is None else (f"{record.last}-0", *stored(record).values())
        trimmed = ((self.keys.lane(lane), "trim", (_next(last), last)) for lane, last in (taken or {}).items())
        back = ((queue, "back", rest) for queue, *rest in returned)
        claims = ((key, "claim", (source,)) for key, source in claimed)
        for key, what, parts in chain(trimmed, claims, self._parts(changes) if changes is not None else (), back):
            keys.append(key)
            arguments += (what, len(parts), *parts)
        return CommitInFlight(self, self._commit.sha, after, (len(keys), *keys, *arguments))

    def _parts(self, changes: GrantChanges) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Key, operation and arguments of each change, at most `UNPACKED` arguments each."""
        for what, workers in (("leave", changes.left), ("join", changes.joined)):
            yield from ((self.keys.grants(worker), what, (worker,)) for worker in workers)
        for worker, grants in changes.by_worker.items():
            granted = [part for name, grant in grants.items() if grant is not None for part in (name, grant)]
            revoked = [name for name, grant in grants.items() if grant is None]
            for what, names in (("grant", granted), ("revoke", revoked)):
                for start in range(0, len(names), UNPACKED):
                    yield self.keys.grants(worker), what, names[start : start + UNPACKED]

    def facts(self, after: Position = GENESIS, *, to: int | None = None) -> Iterator[Fact]:
        """The events after `after`, up to position `to`. Raises: UnreadableRecord where the log is broken."""
        for record in self.read(after, to=to):
            yield from told(record) if to is None or record.last <= to else told(record)[: to - record.first + 1]

    def read(self, after: Position = GENESIS, *, to: int | None = None) -> Iterator[Record]:
        """The turns after `after`, up to the one that holds `to`, verified but not decoded. Raises: as `facts`."""
        for record in self._pages(after.seq):
            if to is not None and record.first > to:
                return
            check(record, *after)
            yield record
            after = Position(record.last, record.digest)
            if to is not None and record.last >= to:
                return
        self._check_tail(after.seq)

    def follow(self, after: Position, *, wait_ms: int, bell: LogBell | None = None) -> list[Record]:
        """The next turns after `after`, verified; waits up to `wait_ms` for the first one or the bell.

        An empty result may also mean that the log ends before `after`, as after the loss of its tail.
        Raises: as `facts`.
        """
        keys, lasts = zip((self.keys.log, f"{after.seq}-0"), *([bell] if bell else []), strict=True)
        asked = InFlight(self.store, [("XREAD", "COUNT", self._followed, "BLOCK", wait_ms, "STREAMS", *keys, *lasts)])
        (answer,) = asked.answers()
        page = dict(answer or ()).get(self.keys.log.encode())
        if not page:
            return []
        self._followed = _next_count(page)
        older = self._archived_before(page, after.seq)
        records = list(next(older, ()) or map(record_of, page))
        for record in records:
            check(record, *after)
            after = Position(record.last, record.digest)
        return records

    def at(self, seq: int) -> Position | None:
        """The end of the turn whose last position is `seq`, not verified; None if no turn ends there."""
        found = self.turn_of(seq)
        return Position(seq, found.digest) if found is not None and found.last == seq else None

    def before(self, seq: int) -> Position:
        """The end of the last turn that ends at or before `seq`, not verified."""
        found = self.turn_of(seq)
        if found is None:
            return self.head() if seq > 0 else GENESIS
        return Position(seq, found.digest) if found.last == seq else self.at(found.first - 1) or GENESIS

    def turn_of(self, seq: int) -> Record | None:
        """The turn that holds position `seq`; None if the log has no such position."""
        if seq <= 0:
            return None
        found = self.stored_turn_of(seq) or next(iter(self._archived(seq - 1)), None)
        return found if found is not None and found.first <= seq <= found.last else None

    def turn_at(self, time: int, to: int) -> Record | None:
        """The last turn at or before `time` (ms) up to position `to`, which ends one; None if there is none."""
        found: Record | None = None
        low, high = 0, to
        while low < high:
            middle = (low + high + 1) // 2
            record = self.turn_of(middle)
            if record is not None and record.at <= time:
                low, found = record.last, record
            else:
                high = (record.first if record is not None else middle) - 1
        return found

    def stored_turn_of(self, seq: int) -> Record | None:
        """As `turn_of`, of what the store holds; nothing is read from archives."""
        entries: Any = InFlight(self.store, [("XRANGE", self.keys.log, f"{seq}-0", "+", "COUNT", 1)]).answers()[0]
        found = record_of(entries[0]) if entries else None
        return found if found is not None and found.first <= seq else None

    def piece(self, after: Position, count: int) -> list[Record]:
        """Up to `count` turns in the store after `after`, verified. Raises: as `facts`; redis-py's errors."""
        (page,) = self._ask(after.seq, count).answers()
        records = list(map(record_of, page))
        for record in records:
            check(record, *after)
            check_private(record)
            after = Position(record.last, record.digest)
        return records

    def backwards(self, pages: int) -> Iterator[Record]:
        """The newest turns in the store, last one first, up to `pages` of `PAGE` turns; not verified."""
        end, left, count = "+", pages * PAGE, FIRST_PAGE
        while left > 0:
            (page,) = InFlight(
                self.store, [("XREVRANGE", self.keys.log, end, "-", "COUNT", min(count, left))]
            ).answers()
            yield from map(record_of, page)
            if not page:
                return
            end, left, count = f"({page[-1][0].decode()}", left - len(page), _next_count(page)

    def _pages(self, last: int) -> Iterator[Record]:
        """The turns after `last`, archived ones first; requests the next page while the caller uses the current one."""
        count = FIRST_PAGE
        in_flight: InFlight | None = self._ask(last, count)
        try:
            while in_flight is not None:
                (page,) = in_flight.answers()
                in_flight = None
                if len(page) == count:
                    count = _next_count(page)
                    in_flight = self._ask(_seq(page[-1][0]), count)
                for older in self._archived_before(page, last):
                    yield from older
                yield from map(record_of, page)
                if page:
                    last = _seq(page[-1][0])
        finally:
            if in_flight is not None:
                in_flight.abandon()

    def _archived_before(self, page: Sequence[Any], last: int) -> Iterator[Sequence[Record]]:
        """The archived turns between `last` and the store's next `page`."""
        until = record_of(page[0]).first - 1 if page else 0
        while last < until and (older := self._archived(last)):
            yield [record for record in older if record.last <= until]
            last = older[-1].last

    def _ask(self, last: int, count: int) -> InFlight:
        return InFlight(self.store, [("XRANGE", self.keys.log, f"({last}-0", "+", "COUNT", count)])

    def _check_tail(self, seq: int) -> None:
        """Raise UnreadableRecord if entries after `seq` were lost: the stream remembers the last id it has assigned."""
        try:
            info = self.store.xinfo_stream(self.keys.log)
        except ResponseError:
            return
        last_given = _seq(info["last-generated-id"])
        if last_given > seq and not self.store.xrange(self.keys.log, min=f"({seq}-0", count=1):
            raise UnreadableRecord(seq + 1, f"the tail was cut off: entries up to {last_given} were written")

    def holds(self, position: Position) -> bool:
        """Whether a turn with that digest ends there; a failover may have replaced it."""
        return self.at(position.seq) == position

    def ends_with(self, position: Position) -> bool:
        """Whether the log ends at `position`: tells whether a commit without an answer took place.

        Raises: NotReplicated if it does, but not on enough replicas; NotDurable; redis-py's errors.
        """
        if self.head() != position:
            return False
        self.judge(InFlight(self.store, self.questions).all() if self.questions else ())
        if self.replicas:
            sent = InFlight(self.store, [("SET", self.keys.probe, position.seq)])
            sent.read()
            self.await_replicas(sent)
            sent.release()
        return True

    def judge(self, said: Sequence[Any]) -> None:
        """Take the store's answers to `questions`. Raises: NotDurable if it may lose what it acknowledges."""
        if said:
            self._durability.judge(said)

    def await_replicas(self, sent: InFlight) -> None:
        """Return once the replicas have on disk what was written over the connection of `sent`.

        A store without `WAITAOF` (Redis before 7.2) is asked by `WAIT` whether they have it in memory. While they have
        not, a note in the store says so, for those who ask why nothing is acknowledged.

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
            try:
                if reached >= self.replicas and self._are_in_step(sent):
                    break
                self._noted = True
                missing = f"{min(reached, self.replicas)} {self.replicas}"
                sent.ask("SET", self.keys.unreplicated, missing, "EX", _NOTED_S)
                self.meanwhile()
            except FairlogError:
                sent.abandon()
                raise
        else:
            sent.abandon()
            raise NotReplicated(reached, self.replicas)
        if self._noted:
            self._noted = False
            sent.ask("DEL", self.keys.unreplicated)

    def _are_in_step(self, sent: InFlight) -> bool:
        """Whether the live replicas are in sync with the primary, within a second. Raises: as `confirm`."""
        deadline_s = time.monotonic() + 1
        self._replication.meanwhile = self.meanwhile
        while not (in_step := self._replication.confirm(sent)) and time.monotonic() < deadline_s:
            time.sleep(_IN_STEP_S)
        return in_step


def _next_count(page: Sequence[Any]) -> int:
    """How many entries the next page is to have, if they are as large as those of this one."""
    size = sum(len(value) for _, fields in page for value in fields)
    return max(1, min(PAGE, len(page) * PAGE_BYTES // size))


def _seq(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _next(entry: str) -> str:
    """The smallest id of a stream after `entry`."""
    milliseconds, _, number = entry.partition("-")
    return f"{milliseconds}-{int(number) + 1}"
