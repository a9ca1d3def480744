"""Which workers are lost: those whose last heartbeat is older than the timeout (semantics W2).

A worker is lost only after a full timeout in which the master has watched. Watching begins anew when the master took
over, when the store was away, and when two looks are too far apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from scheduler.model.commands import LoseWorker
from scheduler.store.keys import as_text

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.inflight import StoreCommand

PAUSE_MS = 3_000
SHORT_PAUSE_MS = 1_500
"""After a longer gap between two looks the master or the store was away; the shorter limit is for short timeouts."""
LOOK_EARLY = 2 / 3
"""The part of that gap after which the next look is due."""


class Heartbeats:
    """The heartbeats in the sorted set `key`: worker -> time of its last one, in ms by the store's clock."""

    def __init__(self, store: Redis, key: str) -> None:
        self._store = store
        self._key = key
        self.watching_since_ms = 0
        """0 if watching must begin anew."""
        self.looked_at_ms = 0

    def count_silent(self, timeout_ms: int) -> StoreCommand:
        """The command that counts the workers which were silent for the timeout at the last look."""
        return "ZCOUNT", self._key, "-inf", f"({self.looked_at_ms - timeout_ms}"

    def lost(self, now: int, silent: int, timeout_ms: int) -> list[LoseWorker]:
        """Look at `now` (ms, the store's clock). The store is asked only if some workers were counted `silent`."""
        if not self.looked_at_ms <= now <= self.looked_at_ms + _pause_ms(timeout_ms) or not self.watching_since_ms:
            self.watch_anew(now)
        self.looked_at_ms = now
        if not silent or now - self.watching_since_ms < timeout_ms:
            return []
        found: Any = self._store.zrangebyscore(self._key, "-inf", f"({now - timeout_ms}", withscores=True)
        return [LoseWorker(worker=as_text(worker), last_seen=int(max(0, seen))) for worker, seen in found]

    def watch_anew(self, now: int) -> None:
        """Give every worker a full timeout from `now`. Later heartbeats, by a faster server clock, become `now`."""
        self.watching_since_ms = self.looked_at_ms = now
        ahead = cast("list[bytes]", self._store.zrangebyscore(self._key, f"({now}", "+inf"))
        if ahead:
            self._store.zadd(self._key, dict.fromkeys(ahead, now), xx=True, lt=True)

    def store_was_away(self) -> None:
        """Watch anew at the next look: workers could not send heartbeats."""
        self.watching_since_ms = 0


def look_after_ms(timeout_ms: int) -> float:
    """When the next look is due, in ms after the last one."""
    return LOOK_EARLY * _pause_ms(timeout_ms)


def _pause_ms(timeout_ms: int) -> int:
    """The longest gap between two looks in which neither master nor store counts as away."""
    return min(PAUSE_MS, max(SHORT_PAUSE_MS, timeout_ms // 2))
