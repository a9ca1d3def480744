"""The log as it grows, for many streams: one reader, the replica, fans out to all of them."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import to_thread
from msgspec.json import Encoder

from fairlog.api.sight import encode_line, owner_of
from scheduler.model.ids import app_of
from scheduler.store.codec import lines_of, told

if TYPE_CHECKING:
    from anyio import CapacityLimiter

    from fairlog.api.replica import Replica
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.codec import EventLine, Record

KEPT_TURNS = 2_000
"""Turns kept for streams that are a little behind; older ones are read from the log."""
HEARTBEAT_S = 15.0
TOGETHER_S = 0.02
"""Turns within this time wake the streams once."""
PULSE_S, STILL_S = 1.0, 5.0
"""The least and the longest time between two events of a pulse."""
NAMED = 50
"""The most apps that an event of a pulse names."""
AT_ONCE, PAUSE_S = 50, 0.005
"""So many streams are woken at a time, with a pause in between for the answers to other requests."""
_to_json = Encoder().encode
Allowed = Callable[[str, str], bool]
"""(company, user) -> whether their private parts may be read."""


class Told(NamedTuple):
    """An event for streams: whose it is, and as a server-sent event with and without its private part."""

    seq: int
    app: str
    company: str
    owner: tuple[str, str] | None
    public: bytes
    whole: bytes

    def shown(self, allowed: Allowed) -> bytes:
        """The event as `allowed` lets it be seen."""
        return self.whole if self.owner is not None and allowed(*self.owner) else self.public


_TOPICS = dict.fromkeys(("App", "Executor", "Driver", "Ro", "Hold", "Re"), "apps")
_TOPICS |= dict.fromkeys(("Worker", "LostW", "Window"), "workers")
_TOPICS |= {"Company": "companies", "Department": "companies", "Command": "log", "Log": "log"}
"""How the names of event types begin -> what they change."""


class _FeedTurn:
    """A turn, written once for all streams."""

    def __init__(self, record: Record) -> None:
        self.first, self.last = record.first, record.last
        self._record = record
        self._events: list[Told] | None = None

    @cached_property
    def touched(self) -> tuple[frozenset[str], frozenset[str]]:
        """The kinds of things that the turn changed, and the apps."""
        topics, apps = set(), set()
        for fact in told(self._record):
            name = type(fact.event).__name__
            topics.add(next((topic for begin, topic in _TOPICS.items() if name.startswith(begin)), "settings"))
            app = getattr(fact.event, "app", "") or app_of(getattr(fact.event, "executor", ""))
            if app:
                apps.add(app)
        return frozenset(topics), frozenset(apps)

    def events(self, state: ClusterState) -> list[Told]:
        if self._events is None:
            self._events = [_told(line, state) for line in lines_of(self._record)]
        return self._events


class Feed:
    """The newest turns of the log, for the streams of one event loop; `heard` may be called from another thread."""

    def __init__(self) -> None:
        self._turns: list[_FeedTurn] = []
        self._lost = 0
        """How often the log has lost turns that were told."""
        self._waiting: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ringing: asyncio.TimerHandle | None = None
        self._rung_at = 0.0
        self.streams = 0
        self.closed = False

    def start(self) -> None:
        """Use the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.closed = False

    def now(self) -> float:
        """The time (s) by the event loop's clock."""
        return asyncio.get_running_loop().time()

    def heard(self, record: Record | None) -> None:
        """Pass a turn on; None if turns that were told are lost. Before `start`, nothing is kept."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._add, record)

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self._ring()

    async def wait(self, wait_s: float, *, urgent: bool = False) -> bool:
        """Wait for the log to grow; whether it did. Who waits urgently is woken first."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.insert(0 if urgent else len(self._waiting), news)
        done, _ = await asyncio.wait([news], timeout=wait_s)
        if not done:
            with suppress(ValueError):
                self._waiting.remove(news)
        return bool(done)

    async def stream(
        self,
        replica: Replica,
        after: int,
        *,
        wanted: Callable[[Told], bool],
        allowed: Callable[[], Allowed],
        limiter: CapacityLimiter,
    ) -> AsyncIterator[bytes]:
        """Server-sent events for the `wanted` events after position `after`, with a comment as heartbeat.

        `allowed` is called before each part, and ends the stream by raising. If the log has lost turns since, the event
        `rewound` names the position from which its events follow again.
        """
        lost = self._lost
        self.streams += 1
        try:
            yield b": fairlog\n\n"
            while not self.closed:
                if lost != self._lost:
                    lost = self._lost
                    if after > replica.head:
                        after = replica.head
                        allowed()
                        yield b'event: rewound\ndata: {"seq":%d}\n\n' % after
                kept = self._since(replica, after)
                if kept is None:
                    kept = await to_thread.run_sync(partial(_read, replica, after), limiter=limiter)
                last, found = kept
                if last > after:
                    readable = allowed()
                    part = b"".join(each.shown(readable) for each in found if each.seq > after and wanted(each))
                    after = last
                    if part:
                        yield part
                elif not await self.wait(HEARTBEAT_S):
                    allowed()
                    yield b":\n\n"
        finally:
            self.streams -= 1

    async def pulse(self, replica: Replica, allowed: Callable[[], object]) -> AsyncIterator[bytes]:
        """Server-sent events that say how far the log is and what it changed, one at most every `PULSE_S`.

        While nothing changes, one comes every `STILL_S`. `allowed` ends the stream by raising.
        """
        after, lost = replica.head, self._lost
        self.streams += 1
        try:
            yield b"retry: 1000\n\n"
            while not self.closed:
                allowed()
                head, whole = replica.head, lost != self._lost
                lost = self._lost
                if head < after or (self._turns and after < self._turns[0].first - 1):
                    whole = True
                topics: set[str] = set()
                apps: set[str] = set()
                for turn in (
                    () if whole else self._turns[bisect_right(self._turns, after, key=lambda each: each.last) :]
                ):
                    topics |= turn.touched[0]
                    apps |= turn.touched[1]
                    if len(apps) > NAMED:
                        break
                said: dict[str, Any] = {"seq": head, "topics": None if whole else sorted(topics)}
                said["apps"] = None if whole or len(apps) > NAMED else sorted(apps)
                said["trouble"] = replica.trouble
                yield b"event: pulse\ndata: %b\n\n" % _to_json(said)
                after = head
                until = self.now() + STILL_S
                await asyncio.sleep(PULSE_S)
                while not self.closed and replica.head == after and (left_s := until - self.now()) > 0:
                    await self.wait(left_s)
        finally:
            self.streams -= 1

    def _since(self, replica: Replica, after: int) -> tuple[int, list[Told]] | None:
        """The kept events after `after` and the position of the last one; None if older ones are needed."""
        if after < (self._turns[0].first - 1 if self._turns else replica.head):
            return None
        turns = self._turns[bisect_right(self._turns, after, key=lambda turn: turn.last) :]
        found = replica.peek(lambda state: [told for turn in turns for told in turn.events(state)])
        return (turns[-1].last if turns else after), found

    def _add(self, record: Record | None) -> None:
        if record is None:
            self._turns.clear()
            self._lost += 1
        else:
            self._turns.append(_FeedTurn(record))
            if len(self._turns) > 2 * KEPT_TURNS:
                del self._turns[:KEPT_TURNS]
        if self._ringing is None and self._loop is not None:
            due = max(self._loop.time(), self._rung_at + TOGETHER_S)
            self._ringing = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._ringing = None
        self._rung_at = self._loop.time() if self._loop is not None else 0.0
        waiting, self._waiting = self._waiting, []
        self._wake(waiting)

    def _wake(self, waiting: list[asyncio.Future[None]]) -> None:
        for each in waiting[:AT_ONCE]:
            if not each.done():
                each.set_result(None)
        if len(waiting) > AT_ONCE and self._loop is not None:
            self._loop.call_later(PAUSE_S, self._wake, waiting[AT_ONCE:])


def _read(replica: Replica, after: int) -> tuple[int, list[Told]]:
    """As `_since`, one turn from the log."""
    for record in replica.log.read(replica.log.before(after)):
        if record.last > after:
            return record.last, replica.peek(_FeedTurn(record).events)
    return after, []


def _told(line: EventLine, state: ClusterState) -> Told:
    command = line.command or {}
    app = str(line.data.get("app") or command.get("app") or app_of(str(line.data.get("executor", ""))) or "")
    known = state.apps.get(app)
    company = str(line.data.get("company") or command.get("company") or (known.spec.company if known else ""))
    owner = None if line.private is None else owner_of(line, state)
    whole = _event(line, encode_line(line, state, lambda *_: True))
    return Told(line.seq, app, company, owner, _event(line, encode_line(line, state, lambda *_: False)), whole)


def _event(line: EventLine, data: bytes) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (line.seq, line.type.encode(), data)
