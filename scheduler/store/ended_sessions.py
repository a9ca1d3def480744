"""Which sessions of the page were ended, at whichever API server, so that none of them takes their cookies any longer.

The store holds them in a stream for as long as a cookie of theirs might be good. Each API server reads what is new.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from redis.exceptions import RedisError

from scheduler.store.connection import clock_ms

if TYPE_CHECKING:
    from typing import Any

    from redis import Redis

    from scheduler.store.keys import Keys

KEPT_MS = 2 * 3_600_000
"""How long an ended session is remembered, twice as long as its cookies are good: clocks differ."""
READ_EVERY_S = 0.25
PAGE = 1_000


class EndedSessions:
    """The ended sessions of a cluster, as far as this process has read them. May be used by several threads."""

    def __init__(self, store: Redis, keys: Keys) -> None:
        self._store, self._key = store, keys.ended_sessions
        self._known: dict[str, int] = {}
        """The id of a session -> when it was ended (ms, by the store's clock), the first ones first."""
        self._last = "0-0"
        """The entry up to which the stream is read."""
        self._next_s = 0.0

    def __contains__(self, session: object) -> bool:
        return session in self._known

    def add(self, session: str) -> None:
        """End a session at all API servers. Raises: redis-py's errors; it goes on then."""
        now = clock_ms(cast("Any", self._store.time()))
        with self._store.pipeline() as pipe:
            pipe.xadd(self._key, {"session": session}, minid=now - KEPT_MS)
            pipe.pexpire(self._key, KEPT_MS)
            pipe.execute()
        self._known[session] = now

    def read(self) -> None:
        """Read what was ended since; at most every `READ_EVERY_S`.

        Raises: redis-py's errors. All is read again then: another server may have become the store, and lack entries.
        """
        if time.monotonic() < self._next_s:
            return
        try:
            while len(entries := self._entries()) == PAGE:
                pass
        except RedisError:
            self._last = "0-0"
            raise
        if entries or self._known:
            self._forget()
        self._next_s = time.monotonic() + READ_EVERY_S

    def _entries(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        entries = cast("list[Any]", self._store.xrange(self._key, min=f"({self._last}", count=PAGE))
        for entry, fields in entries:
            self._last = entry.decode()
            self._known[fields[b"session"].decode()] = int(self._last.partition("-")[0])
        return entries

    def _forget(self) -> None:
        """Drop what no cookie is good for any more."""
        now = clock_ms(cast("Any", self._store.time()))
        for session, at in list(self._known.items()):
            if at >= now - KEPT_MS:
                break
            del self._known[session]
