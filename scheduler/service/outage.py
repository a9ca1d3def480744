"""Says once that the store is away, and once that it is back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.service.program_log import program_log
from scheduler.store.transient import BACK_OFF_S, in_words

if TYPE_CHECKING:
    from redis.exceptions import (
        RedisError,
    )


class Outage:
    """Says once that the store is away, and once that it is back; `about` names the one that says so."""

    def __init__(self, **about: str) -> None:
        self._about = about
        self._failures = 0

    def __bool__(self) -> bool:
        """Whether the store is away."""
        return self._failures > 0

    def goes_on(self, error: RedisError) -> float:
        """For how many seconds to leave the store alone now."""
        if not self._failures:
            program_log().warning("the store is away", **self._about, error=in_words(error))
        self._failures += 1
        return BACK_OFF_S[min(self._failures, len(BACK_OFF_S)) - 1]

    def is_over(self) -> None:
        """The store has done what it was asked for."""
        if self._failures:
            self._failures = 0
            program_log().info("the store is back", **self._about)
