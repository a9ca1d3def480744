"""Outages of the store: log messages and back-off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.service.program_log import program_log
from scheduler.store.transient import BACK_OFF_S, in_words

if TYPE_CHECKING:
    from redis.exceptions import RedisError


class Outage:
    """Logs the start and end of each outage once, and gives the back-off; `about` is added to each log line."""

    def __init__(self, **about: str) -> None:
        self._about = about
        self._failures = 0

    def __bool__(self) -> bool:
        """Whether the store is unavailable."""
        return self._failures > 0

    def goes_on(self, error: RedisError) -> float:
        """Note a failed attempt. Returns the seconds to wait before the next one."""
        if not self._failures:
            program_log().warning("the store is unavailable", **self._about, error=in_words(error))
        self._failures += 1
        return BACK_OFF_S[min(self._failures, len(BACK_OFF_S)) - 1]

    def is_over(self) -> None:
        """Note a successful attempt."""
        if self._failures:
            self._failures = 0
            program_log().info("the store is available again", **self._about)
