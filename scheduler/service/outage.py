"""Outages of the store, or of the API for those who reach it only through that: log messages and back-off."""

from __future__ import annotations

from redis.exceptions import RedisError

from scheduler.model.errors import FairlogError
from scheduler.service.program_log import program_log
from scheduler.store.transient import BACK_OFF_S, in_words


class ApiAway(FairlogError):
    """No API server answered, or none can answer now; what was asked may still be carried out."""


AWAY = (RedisError, ApiAway)
"""What whoever works through a store or an API waits out."""


class Outage:
    """Logs the start and end of each outage once, and gives the back-off; `about` is added to each log line."""

    def __init__(self, **about: str) -> None:
        self._about = about
        self._failures = 0
        self._what = "store"

    def __bool__(self) -> bool:
        """Whether it is unavailable."""
        return self._failures > 0

    def goes_on(self, error: RedisError | ApiAway) -> float:
        """Note a failed attempt. Returns the seconds to wait before the next one."""
        if not self._failures:
            self._what, why = ("API", str(error)) if isinstance(error, ApiAway) else ("store", in_words(error))
            program_log().warning(f"the {self._what} is unavailable", **self._about, error=why)
        self._failures += 1
        return BACK_OFF_S[min(self._failures, len(BACK_OFF_S)) - 1]

    def is_over(self) -> None:
        """Note a successful attempt."""
        if self._failures:
            self._failures = 0
            program_log().info(f"the {self._what} is available again", **self._about)
