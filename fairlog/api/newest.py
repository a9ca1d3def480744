"""Catching up before a token is refused: another server may have issued it a moment ago."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlog.api.replica import Replica

EVERY_S = 0.05
"""The shortest time between two looks for the end of the log."""


class Newest:
    """Has a server fold the log to its end for requests that show a token which it does not know.

    However many these are, the store is asked for the log's end once at a time, and once in `EVERY_S`: one answer
    serves all requests that came before the question. May be used in one event loop.
    """

    def __init__(
        self, replica: Replica, head: Callable[[], Awaitable[int]], reach: Callable[[int], Awaitable[None]]
    ) -> None:
        self._replica, self._head, self._reach = replica, head, reach
        self._asking = asyncio.Lock()
        self._asked_s, self._end = 0.0, 0

    async def learn(self, token: str) -> None:
        """Fold the log to its end if no token of that id is known; "" names none.

        Raises: NotReady; redis-py's errors.
        """
        if token and not self._replica.peek(lambda state: token in state.accounts.tokens):
            await self._reach(await self._newest())

    async def _newest(self) -> int:
        """The position of the log's end, asked for after this request has come."""
        came_s = time.monotonic()
        async with self._asking:
            if self._asked_s < came_s:
                await asyncio.sleep(max(0.0, self._asked_s + EVERY_S - time.monotonic()))
                self._asked_s = time.monotonic()
                self._end = await self._head()
        return self._end
