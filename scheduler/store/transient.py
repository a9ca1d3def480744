"""Transient store errors: which to retry, with what back-off, and how to describe them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from redis import exceptions as store_errors

if TYPE_CHECKING:
    from redis.exceptions import RedisError

BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds to wait before each retry; the last value repeats."""

_IN_WORDS: Mapping[str, str] = {
    "LOADING": "the store is still reading its data from disk",
    "READONLY": "the server is a replica, not the store's primary",
    "MASTERDOWN": "the server is a replica that has lost its primary",
    "NOREPLICAS": "the store has fewer replicas than its setting min-replicas-to-write requires",
    "OOM": "the store is out of memory and refuses writes: raise its maxmemory, or archive old entries with "
    "`fairlog archive`",
    "MISCONF": "the store cannot write to its disk: free disk space or check the store's log",
    "UNBLOCKED": "the server has become a replica",
    "CLUSTERDOWN": "the store is down",
    "TRYAGAIN": "the store is moving keys between servers",
    "BUSY": "the store is busy running a script",
}
"""Error code -> explanation, for the store's transient errors."""
_WORD = re.compile(rf"\b({'|'.join(_IN_WORDS)})\b")
_CLASSES = {
    store_errors.BusyLoadingError: "LOADING",
    store_errors.MasterDownError: "MASTERDOWN",
    store_errors.OutOfMemoryError: "OOM",
    store_errors.ReadOnlyError: "READONLY",
}
"""Exceptions whose message redis-py strips of the error code."""
RETRY_S = 5
"""When to try again to send through a lane of the inbox that is full."""


class LaneFull(store_errors.ResponseError):
    """A lane of the inbox takes no more messages for now; nothing was sent. Try again in `RETRY_S`."""

    def __init__(self, lane: str, most: int) -> None:
        super().__init__(f"lane {lane} of the inbox is full with {most:,} messages; try again in {RETRY_S} s")


class NotDurable(store_errors.ResponseError):
    """The store may lose what it acknowledges, so nothing is acknowledged until it is mended; says what to do."""


NO_ANSWER = (store_errors.ConnectionError, store_errors.TimeoutError)


def passes(error: RedisError) -> bool:
    """Whether the error is transient: the store is unavailable, or refuses the command for now.

    After a connection error the command may have been executed; after any other error it was not.
    """
    return isinstance(error, (*NO_ANSWER, LaneFull, NotDurable)) or _word(error) in _IN_WORDS


def is_there(error: RedisError) -> bool:
    """Whether the store answered, if only with an error."""
    return isinstance(error, store_errors.BusyLoadingError | store_errors.ResponseError)


def in_words(error: RedisError) -> str:
    """The error as a sentence for users."""
    if isinstance(error, LaneFull | NotDurable):
        return str(error)
    said = _IN_WORDS.get(_word(error))
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.partition(" : <redis.")[0]  # redis-py appends the repr of every sentinel client
    if isinstance(error, store_errors.AuthenticationError):
        return f"the store does not accept the user or its password ({text})"
    if isinstance(error, NO_ANSWER):
        said = said or "the store does not answer"
    return f"unexpected answer from the store: {text}" if said is None else f"{said} ({text})"


def _word(error: RedisError) -> str:
    """The error code, "" if unknown. In a pipeline redis-py prefixes text of its own."""
    found = _WORD.search(str(error)) if isinstance(error, store_errors.ResponseError) else None
    return _CLASSES.get(type(error)) or (found[1] if found else "")
