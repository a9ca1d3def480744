"""The record of who read what is private, kept by every API server (`scheduler.store.reads`)."""

from __future__ import annotations

import time
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from scheduler.store.reads import record_read

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from scheduler.model.sender import By
    from scheduler.service.keyring import Keyring
    from scheduler.store.keys import Keys

AGAIN_S = 600.0
"""A read is recorded once in this time, however often it is repeated with the same reason."""
KEPT = 10_000
"""The most reads that are remembered as recorded."""


class Reads:
    """Records reads, signed by the door key of the keyring if there is one; may be used by several threads."""

    def __init__(
        self, store: Redis, keys: Keys, keyring: Keyring | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._keys, self._clock = store, keys, clock
        self._sign = (lambda _: ("", "")) if keyring is None or not keyring.door else keyring.sign_read
        self._recorded: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._lock = Lock()

    def note(self, who: By, what: str, subject: str, reason: str = "") -> None:
        """Record the read before what was asked for is given out. Raises: redis-py's errors; nothing is given out."""
        read = (who.account, who.role, who.token, what, subject, reason)
        now = self._clock()
        with self._lock:
            if now < self._recorded.get(read, 0.0):
                return
        record_read(self._store, self._keys, who, what, subject, reason, self._sign)
        with self._lock:
            self._recorded.pop(read, None)
            self._recorded[read] = now + AGAIN_S
            if len(self._recorded) > KEPT:
                self._recorded.popitem(last=False)
