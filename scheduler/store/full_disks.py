"""What workers could not write to their disks of the output of tasks, as executors report it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from scheduler.model.text import one_line
from scheduler.store.connection import clock_ms

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.keys import Keys

KEPT_MS = 3_600_000
"""How long after the last report it is told of."""
_LONGEST = 200


class Cut(NamedTuple):
    """How many bytes of output a worker has not written since `since` (ms), the last at `at` (ms), and why."""

    since: int
    at: int
    unwritten: int
    why: str


def note_cut(store: Redis, keys: Keys, worker: str, unwritten: int, why: str) -> None:
    """Add to what the worker could not write. Raises: redis-py's errors."""
    now = clock_ms(cast("Any", store.time()))
    before = _read(store.hget(keys.full_disks, worker))
    since, so_far = (now, 0) if before is None or before.at + KEPT_MS < now else (before.since, before.unwritten)
    cut = Cut(since, now, so_far + max(0, unwritten), one_line(why, _LONGEST))
    store.hset(keys.full_disks, worker, msgspec.json.encode(cut).decode())


def cuts(store: Redis, keys: Keys) -> dict[str, Cut]:
    """Worker -> what it could not write. Raises: redis-py's errors."""
    stored = cast("dict[bytes, bytes]", store.hgetall(keys.full_disks))
    found = {worker.decode(): _read(text) for worker, text in stored.items()}
    return {worker: cut for worker, cut in found.items() if cut is not None}


def _read(text: Any) -> Cut | None:  # noqa: ANN401 (redis-py's answer)
    try:
        return None if text is None else msgspec.json.decode(text, type=Cut)
    except msgspec.DecodeError:
        return None
