"""The log folded in this process, as a standby does it, so that reads ask no master."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from redis.exceptions import RedisError

from fairlog.api.past import NotReady, Past
from fairlog.watch.tally import Tally
from recovery.failover.follower import Follower
from scheduler.model.errors import FairlogError, InvariantViolated, OtherVersion, UnreadableRecord
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.known import Known, ShorterLog
from scheduler.service.outage import Outage
from scheduler.service.program_log import program_log
from scheduler.store.eventlog import GENESIS
from scheduler.store.transient import in_words

if TYPE_CHECKING:
    from scheduler.store.codec import Record
    from scheduler.store.eventlog import EventLog

WAIT_MS = 250
"""The longest wait for the log to grow, and so for the thread to stop."""
STALE_S = 1.0
"""The oldest state by which a token is judged: a token that is revoked is refused within this time."""
FRESH_WITHIN_S = 2.0
"""The longest wait of a request for a state that is no older."""
FRESH_EVERY_S = 0.02
UNREADABLE_S = 5.0
"""Pause before a log that cannot be read is folded again."""
SHORTER_S = 1.0
"""Pause before a log that is shorter than one that was known is looked at again."""
T = TypeVar("T")


class NotThatLong(FairlogError):
    """The log has not reached the position."""


class Seen(NamedTuple):
    """The log position and the time (ms) of a state."""

    seq: int
    at: int


class Guard:
    """One writer among many readers, one at a time; the writer goes before the readers that wait.

    As a context manager it is the writer's. A plain lock would keep the writer waiting behind every reader.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._wanted = False

    def __enter__(self) -> None:
        self._wanted = True
        self.changed.acquire()
        self._wanted = False

    def __exit__(self, *_: object) -> None:
        self.changed.notify_all()
        self.changed.release()

    def read(self, look: Callable[[], T]) -> T:
        """What `look` returns; the writer waits meanwhile."""
        with self.changed:
            self.changed.wait_for(lambda: not self._wanted)
            return look()


class Replica:
    """The state at the end of the log, folded by a thread of its own; a context manager that runs the thread.

    Only the thread changes the state, a whole turn at a time, while it holds the guard. Everyone else looks at it
    through `read`, which holds the guard as well, and keeps nothing of it that can change. `heard` is called in the
    thread with each turn after it is folded, and with None when the log has lost turns that were told. `tally` counts
    what happens. `beside` is called in the thread before the log is asked, for what must be as fresh as the log, and
    may raise redis-py's errors. With `known`, nothing is read from a log that is shorter than one that was known
    (semantics I7).
    """

    def __init__(
        self, log: EventLog, heard: Callable[[Record | None], object] = lambda _: None, known: Known | None = None
    ) -> None:
        self.tally = Tally()
        self._known = known
        self.log = log
        self.heard = heard
        self.beside: Callable[[], object] = lambda: None
        self._guard = Guard()
        self._follower = Follower(log, self._guard, self.tally.hear)
        self._outage = Outage(replica=log.keys.cluster)
        self._trouble = "the log is being read"
        self._fresh_s = 0.0
        """When the log was asked whose end is folded."""
        self._told = False
        """Whether the log has had an entry."""
        self.past = Past(log)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replica", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def head(self) -> int:
        """The position up to which the log is folded."""
        return self._follower.position.seq

    @property
    def state(self) -> ClusterState:
        """The present state, for the replica's own thread."""
        return self._follower.state

    @property
    def trouble(self) -> str:
        """Why the state may be behind the log; "" if it is not."""
        if self._told and not self.head:
            return self._trouble or "the log is being read again"
        return self._trouble

    def seen(self) -> Seen:
        """The present state's position. Raises: NotReady if the log cannot be read now."""
        return self.read(lambda _: None)[0]

    def read(self, look: Callable[[ClusterState], T], *, at: int | None = None, after: int = 0) -> tuple[Seen, T]:
        """What `look` makes of the present state, or of that at position `at`; that state's position.

        `look` must return nothing that the fold changes later. The state holds at least the log up to `after`.

        Raises: NotReady if the log cannot be read now; NotThatLong if it has not reached `at` or `after`.
        """
        self.check()
        for due in (after, at or 0):
            if due > self.head:
                raise NotThatLong(f"the log ends at position {self.head}, before {due}")

        def now() -> tuple[Seen, T] | None:
            state = self._follower.state
            if at is not None and at != self.head:
                return None
            return Seen(self.head, state.at), look(state)

        if (seen := self._guard.read(now)) is not None:
            return seen
        return self.past.read(at or 0, lambda state: (Seen(at or 0, state.at), look(state)))

    def check(self) -> None:
        """Raises: NotReady if the state may be behind the log."""
        if trouble := self.trouble:
            raise NotReady(trouble)

    def check_fresh(self) -> None:
        """Raises: NotReady if the state may be older than `STALE_S`, as while the store does not answer."""
        self.check()
        if (age_s := self._age_s()) > STALE_S:
            raise NotReady(f"the store has not answered for {age_s:.1f} s")

    async def be_fresh(self) -> None:
        """Wait a little for what `check_fresh` looks for: a busy machine can hold up the thread that folds the log."""
        until = time.monotonic() + FRESH_WITHIN_S
        while not self.trouble and self._age_s() > STALE_S and time.monotonic() < until:
            await asyncio.sleep(FRESH_EVERY_S)

    def _age_s(self) -> float:
        return time.monotonic() - self._fresh_s

    def peek(self, look: Callable[[ClusterState], T]) -> T:
        """What `look` makes of the present state without the guard, for who must not wait.

        It may look up single entries that are replaced whole, such as a token, and nothing else. Raises: NotReady.
        """
        self.check()
        return look(self._follower.state)

    def wait_for(self, seq: int, wait_s: float) -> bool:
        """Wait until the log is folded up to `seq`; whether it is."""
        with self._guard.changed:
            return self._guard.changed.wait_for(lambda: self.head >= seq and not self.trouble, wait_s)

    def catch_up(self) -> None:
        """Fold the log to its end; for who has no thread running.

        Raises: as `Follower.catch_up`; ShorterLog, OtherVersion.
        """
        asked_s = time.monotonic()
        self.beside()
        self.log.check_schema()
        self._follower.catch_up()
        if self._known is not None:
            self._known.check(self._follower.state.decisions)
        with self._guard:
            self._trouble, self._fresh_s = "", asked_s

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(self.step())

    def step(self) -> float:
        """Fold what the log has, waiting up to `WAIT_MS` for it to grow; returns the pause (s) before the next step."""
        asked_s = time.monotonic()
        try:
            if self._outage or self._trouble:
                self._follower.check_against_log()
                self.catch_up()
                self._outage.is_over()
                self._lose()
            self.beside()
            before = self.head
            self._told = self._told or before > 0
            records = self._follower.follow(WAIT_MS)
            if not records and self.head != before:
                self._lose()
            if self._known is not None and not self._known.tend(self._follower.position):
                self._follower.check_against_log()
                self.catch_up()
                self._lose()
            self._fresh_s = asked_s
            for record in records:
                self.heard(record)
        except RedisError as error:
            self._trouble = in_words(error)
            return self._outage.goes_on(error)
        except ShorterLog as error:
            if self._trouble != str(error):
                program_log().error("refusing to serve", reason=str(error))
                self._trouble = str(error)
                self._lose()
            return SHORTER_S
        except (UnreadableRecord, InvariantViolated, OtherVersion) as error:
            program_log().error("the log cannot be read", reason=str(error))
            self._trouble = str(error)
            self._follower.resume(ClusterState(), GENESIS)
            return UNREADABLE_S
        return 0.0

    def _lose(self) -> None:
        """The log may have lost turns that were told."""
        self.past.forget()
        self.heard(None)
