"""Which workers are lost: those whose last heartbeat is older than the timeout (semantics W2).

A worker is lost only after a full timeout in which the master has watched. Watching begins anew when the master took
over, when the store was away, and when two looks are too far apart. A worker that works through the API has a full
timeout in which API servers answered, besides.

Heartbeats are kept in the store's memory alone, neither on its disk nor by its replicas; a store that cannot do that
writes them to disk. After a restart, or on a replica that took over, they are old. The master therefore leaves a mark
in the same memory from time to time, and watches anew if the mark is not the one that it left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import msgspec

from scheduler.model.commands import LoseWorker
from scheduler.service.served import served
from scheduler.store.keys import as_text
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.inflight import StoreCommand
    from scheduler.store.keys import Keys

PAUSE_MS = 3_000
SHORT_PAUSE_MS = 1_500
"""After a longer gap between two looks the master or the store was away; the shorter limit is for short timeouts."""
LOOK_EARLY = 2 / 3
"""The part of that gap after which the next look is due."""
BEATS_A_TIMEOUT = 3
"""How many heartbeats a worker sends in the time without one after which it is lost."""
LONGEST_BEAT_MS = 10_000
MARKS_A_TIMEOUT = 12
SHORTEST_MARK_MS = 500
"""Marks are this far apart at least. A reloaded store may have heartbeats as old as the last mark, and takes as long as
a pause to return: together with the interval of the heartbeats that must stay below the timeout."""
BEAT_LUA = script(__file__, "beat")
MARK_LUA = script(__file__, "mark")


class _Registered(msgspec.Struct):
    """What of a worker's registrant matters here: whether it works through the API."""

    api: bool = False


_read_registered = msgspec.json.Decoder(_Registered).decode


class Heartbeats:
    """The heartbeats of a cluster: worker -> time of its last one, in ms by the store's clock."""

    def __init__(self, store: Redis, keys: Keys) -> None:
        self._store = store
        self._keys, self._key = keys, keys.heartbeats
        self._mark_key = keys.watched
        self._name = uuid4().hex
        self._mark = ""
        """The mark that this master left last, and when."""
        self._marked_ms = 0
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
        ripe = silent > 0 and now - self.watching_since_ms >= timeout_ms
        mark = ripe or now - self._marked_ms >= max(SHORTEST_MARK_MS, timeout_ms // MARKS_A_TIMEOUT)
        if mark and not self._is_same_memory(now):
            self.watch_anew(now)
            return []
        if not ripe:
            return []
        found: Any = self._store.zrangebyscore(self._key, "-inf", f"({now - timeout_ms}", withscores=True)
        unheard = self._unheard([worker for worker, _ in found], now, timeout_ms)
        return [
            LoseWorker(worker=as_text(worker), last_seen=int(max(0, seen)))
            for worker, seen in found
            if worker not in unheard
        ]

    def _unheard(self, silent: list[bytes], now: int, timeout_ms: int) -> set[bytes]:
        """The silent workers that could not be heard for a full timeout: no API server answered them."""
        sign = served(self._store, self._keys) if silent else None
        if sign is None or sign.without_gap_ms(now, timeout_ms) >= timeout_ms:
            return set()
        stored = cast("list[bytes | None]", self._store.hmget(self._keys.agents, silent))
        return {worker for worker, text in zip(silent, stored, strict=True) if text and _read_registered(text).api}

    def watch_anew(self, now: int) -> None:
        """Give every worker a full timeout from `now`. Later heartbeats, by a faster server clock, become `now`."""
        self.watching_since_ms = self.looked_at_ms = now
        self._is_same_memory(now)
        ahead = cast("list[bytes]", self._store.zrangebyscore(self._key, f"({now}", "+inf"))
        if ahead:
            self._store.zadd(self._key, dict.fromkeys(ahead, now), xx=True, lt=True)

    def store_was_away(self) -> None:
        """Watch anew at the next look: workers could not send heartbeats."""
        self.watching_since_ms = 0

    def _is_same_memory(self, now: int) -> bool:
        """Whether the store still has the mark that this master left; it is replaced."""
        left, self._mark, self._marked_ms = self._mark, f"{self._name}.{now}", now
        found = cast("bytes | None", self._store.eval(MARK_LUA, 1, self._mark_key, self._mark))
        return found == left.encode()


def behind_api(store: Redis, keys: Keys) -> int:
    """How many workers work through API servers. Raises: redis-py's errors."""
    return sum(_read_registered(text).api for text in cast("list[bytes]", store.hvals(keys.agents)))


def beat_after_ms(timeout_ms: int) -> int:
    """When a worker's next heartbeat is due, in ms after the last one."""
    return min(LONGEST_BEAT_MS, timeout_ms // BEATS_A_TIMEOUT)


def look_after_ms(timeout_ms: int) -> float:
    """When the next look is due, in ms after the last one."""
    return LOOK_EARLY * _pause_ms(timeout_ms)


def _pause_ms(timeout_ms: int) -> int:
    """The longest gap between two looks in which neither master nor store counts as away."""
    return min(PAUSE_MS, max(SHORT_PAUSE_MS, timeout_ms // 2))
