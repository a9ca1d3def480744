"""Executors that use nothing of what they hold, as they say themselves (semantics W13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from scheduler.store.connection import clock_ms

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.keys import Keys

SAID_MS = 60_000
"""How long it counts that an executor said so."""
SWEPT_EACH = 1000
"""After how many executors more those that say nothing any more, as their worker was lost, are forgotten."""


class Idle(NamedTuple):
    """Since when (ms) an executor uses nothing of its `what`, and when (ms) it said so last."""

    since: int
    at: int
    what: str


def note_unused(store: Redis, keys: Keys, executor: str, what: str, for_s: int) -> None:
    """The executor has used nothing of its `what` for so long. Raises: redis-py's errors."""
    now = clock_ms(cast("Any", store.time()))
    kind = "GPUs" if what == "GPUs" else "cores"
    idle = Idle(now - max(0, min(for_s, 10**9)) * 1000, now, kind)
    added = store.hset(keys.unused, executor, msgspec.json.encode(idle).decode())
    if added and store.hlen(keys.unused) % SWEPT_EACH == 0:
        old = _stored(store, keys).keys() - unused(store, keys, now).keys()
        if old:
            store.hdel(keys.unused, *old)


def forget_unused(store: Redis, keys: Keys, executor: str) -> None:
    """The executor is gone, or uses what it has again. Raises: redis-py's errors."""
    store.hdel(keys.unused, executor)


def unused(store: Redis, keys: Keys, now: int) -> dict[str, Idle]:
    """Executor -> since when it uses nothing, as said lately. Raises: redis-py's errors."""
    found = _stored(store, keys)
    return {executor: idle for executor, idle in found.items() if idle is not None and now - idle.at < SAID_MS}


def _stored(store: Redis, keys: Keys) -> dict[str, Idle | None]:
    stored = cast("dict[bytes, bytes]", store.hgetall(keys.unused))
    return {executor.decode(errors="replace"): _read(text) for executor, text in stored.items()}


def _read(text: bytes) -> Idle | None:
    try:
        return msgspec.json.decode(text, type=Idle)
    except msgspec.DecodeError:
        return None
