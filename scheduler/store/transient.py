"""While the store is away: which of its errors pass, what they mean in words, how often to ask and what to say."""

from __future__ import annotations

import re
from collections.abc import Mapping

from redis.exceptions import (
    BusyLoadingError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import TimeoutError as StoreTimeoutError

BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""How long to wait before the store is asked again, the last one for as long as it takes."""

_IN_WORDS: Mapping[str, str] = {
    "LOADING": "the store is still reading its data from disk",
    "READONLY": "the server is a replica and not, or not yet, the store's primary",
    "MASTERDOWN": "the server is a replica that has lost its primary",
    "NOREPLICAS": "the store has fewer replicas than its min-replicas-to-write asks for",
    "OOM": "the store is out of memory and refuses to write: raise its maxmemory, or archive old "
    "entries with `fairlog archive`",
    "MISCONF": "the store cannot write to its disk: free disk space, or see the store's own log",
    "UNBLOCKED": "the server has become a replica",
    "CLUSTERDOWN": "the store is down",
    "TRYAGAIN": "the store is being moved",
    "BUSY": "the store is busy with a script",
}
"""What the store answers while it cannot do as it is told, by the first word, and in ours. All of it passes."""
_WORD = re.compile(rf"\b({'|'.join(_IN_WORDS)})\b")
_CLASSES = {
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""Those that redis-py takes the first word off."""


def passes(error: RedisError) -> bool:
    """Whether the same may be asked of the store again later: it is away, or will not do so now.

    After an error of the connection what was asked may have been done; after any other one, nothing was.
    """
    return isinstance(error, StoreConnectionError | StoreTimeoutError) or _word(error) in _IN_WORDS


def is_there(error: RedisError) -> bool:
    """Whether somebody answered, if only to say that it cannot be done now."""
    return isinstance(error, BusyLoadingError | ResponseError)


def in_words(error: RedisError) -> str:
    """What the error means, for people."""
    said = _IN_WORDS.get(_word(error))
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.partition(" : <redis.")[0]  # redis-py names the sentinels that it asked by all that makes up a client
    if isinstance(error, StoreConnectionError | StoreTimeoutError):
        said = said or "the store does not answer"
    return f"the store returned an error: {text}" if said is None else f"{said} ({text})"


def _word(error: RedisError) -> str:
    """The word that the store's answer began with; in a pipeline redis-py puts words of its own before it."""
    found = _WORD.search(str(error)) if isinstance(error, ResponseError) else None
    return _CLASSES.get(type(error)) or (found[1] if found else "")
