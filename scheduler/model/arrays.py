"""Lists of task indexes, as users write them: `1-10,15,20-30:5`.

No decision depends on them. An app has tasks 0 to N-1; where its private part has such a list, the task at place i of
it finds the i-th index in its environment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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


def written(listed: Sequence[int]) -> str:
    """The list as text, three or more indexes of one distance as a span: `1-10,15,20-30:5`."""
    parts: list[str] = []
    start = 0
    while start < len(listed):
        first, end = listed[start], start + 1
        step = listed[end] - first if end < len(listed) else 0
        while step > 0 and end < len(listed) and listed[end] - listed[end - 1] == step:
            end += 1
        if end - start < 3 and step != 1:
            end = start + 1
        last = listed[end - 1]
        parts.append(str(first) if last == first else f"{first}-{last}{f':{step}' if step > 1 else ''}")
        start = end
    return ",".join(parts)


def hosts_of_tasks(near: Mapping[str, str], array: str, tasks: int) -> dict[int, list[str]]:
    """Place of a task -> the hosts that it prefers; `near`: host -> list of the indexes of the tasks that prefer it.

    Raises: InvalidCommand for a list that cannot be read, or an index that no task has.
    """
    place = {index: number for number, index in enumerate(indexes(array))} if array else None
    found: dict[int, list[str]] = {}
    for host, text in near.items():
        try:
            listed = indexes(text)
        except InvalidCommand as error:
            raise InvalidCommand(f"the tasks that prefer host {host[:60]!r}: {error}") from None
        for index in listed:
            number = (index if index < tasks else None) if place is None else place.get(index)
            if number is None:
                known = f"those of its array, {array[:60]}" if array else f"0 to {tasks - 1}" if tasks else "none"
                raise InvalidCommand(
                    f"task {index}, which is to prefer host {host[:60]!r}, does not exist; the app's tasks are {known}"
                )
            found.setdefault(number, []).append(host)
    return found


def preferences(near: Mapping[str, str], array: str, tasks: int) -> tuple[int, dict[str, int]]:
    """The number of tasks that prefer some host, and host -> the number that prefer it. Raises: as `hosts_of_tasks`."""
    found = hosts_of_tasks(near, array, tasks)
    by_host = Counter(host for hosts in found.values() for host in hosts)
    return len(found), dict(sorted(by_host.items()))
