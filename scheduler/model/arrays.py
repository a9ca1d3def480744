"""Lists of task indexes, as users write them: `1-10,15,20-30:5`.

No decision depends on them. An app has tasks 0 to N-1; where its private part has such a list, the task at place i of
it finds the i-th index in its environment.
"""

from __future__ import annotations

import re
from functools import lru_cache

from scheduler.model.errors import InvalidCommand

MAX_INDEX = 1_000_000_000
MAX_INDEXES = 100_000
_PART = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", re.ASCII)


@lru_cache(maxsize=64)
def indexes(text: str) -> tuple[int, ...]:
    """The indexes, in the order in which they are written. Raises: InvalidCommand naming the wrong part."""
    found: dict[int, None] = {}
    for part in text.split(","):
        said = _PART.fullmatch(part.strip())
        first, last, step = (None, None, None) if said is None else (int(each or -1) for each in said.groups())
        if (
            first is None
            or last is None
            or step is None
            or step == 0
            or -1 < last < first
            or max(first, last) > MAX_INDEX
        ):
            raise InvalidCommand(
                f"{part[:60]!r} is not part of a list of task indexes up to {MAX_INDEX}; write it like 1-10,15,20-30:5"
            )
        span = range(first, max(first, last) + 1, max(step, 1))
        if len(found) + len(span) > MAX_INDEXES:
            raise InvalidCommand(f"a list of task indexes has at most {MAX_INDEXES}; submit several apps")
        for index in span:
            if index in found:
                raise InvalidCommand(f"the task index {index} is listed twice; list each once")
            found[index] = None
    return tuple(found)


def index_of(array: str | None, task: int) -> int:
    """The index of the task at that place, counted from 0; the place itself without a list, or beyond its end."""
    listed = indexes(array) if array else ()
    return listed[task] if task < len(listed) else task


def position_of(array: str | None, index: int, tasks: int) -> int | None:
    """The place of the task of that index; None if there is none."""
    if not array:
        return index if index < tasks else None
    listed = indexes(array)
    return listed.index(index) if index in listed else None


def written(listed: list[int]) -> str:
    """The list as text, neighbours as spans: `1-10,15`."""
    parts: list[list[int]] = []
    for index in listed:
        if parts and index == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], index]
        else:
            parts.append([index])
    return ",".join("-".join(map(str, part)) for part in parts)
