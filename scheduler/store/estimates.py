"""Estimates of starts that were told, and how far they were from what came (docs/estimates.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from redis.exceptions import NoPermissionError

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.keys import Keys

MOST_OPEN = 10_000
"""Of so many apps that have not started estimates are kept."""
OF_AN_APP = 32
"""The most estimates of an app that are kept, the last ones."""
APART_MS = 60_000
"""An estimate that is told sooner after another one of its app counts as that one."""
MOST_COMPARED = 1_000
"""So many of those that were compared are kept, the last ones."""


class Given(NamedTuple):
    """What was told at a time: the earliest, the likely and the latest start, all in ms; None = there was none."""

    at: int
    earliest: int | None
    likely: int | None
    latest: int | None


class ErrorsOfEstimates(NamedTuple):
    """How far the last estimates were from what came: of so many, the median and the 90th percentile (ms).

    `within`: how many apps started between the earliest and the latest start that was told.
    """

    number: int
    within: int
    median_ms: int
    p90_ms: int


_given = msgspec.json.Decoder(list[Given])
_compared = msgspec.json.Decoder(tuple[str, int, Given])
_to_json = msgspec.json.encode


def keep(store: Redis, keys: Keys, given: Mapping[str, Given]) -> None:
    """Keep what was told of these apps, but what has neither a likely nor a latest start.

    Raises: redis-py's errors.
    """
    said = {app: each for app, each in given.items() if each.likely is not None or each.latest is not None}
    if not said:
        return
    try:
        before = cast("list[bytes | None]", store.hmget(keys.estimates, list(said)))
        room = MOST_OPEN - store.hlen(keys.estimates)
        changed: dict[str, bytes] = {}
        for (app, each), text in zip(said.items(), before, strict=True):
            known = _told(text)
            if (known and each.at - known[-1].at < APART_MS) or (text is None and room <= 0):
                continue
            room -= text is None
            changed[app] = _to_json([*known, each][-OF_AN_APP:])
        if changed:
            store.hset(keys.estimates, mapping=cast("Any", changed))
    except NoPermissionError:  # the store's users are those of an earlier version
        return


def kept(store: Redis, keys: Keys) -> list[str]:
    """The apps of which estimates are kept that were not compared. Raises: redis-py's errors."""
    try:
        return [name.decode() for name in cast("list[bytes]", store.hkeys(keys.estimates))]
    except NoPermissionError:
        return []


def compare(store: Redis, keys: Keys, began: Mapping[str, int], gone: Collection[str]) -> None:
    """Compare what was told of apps that `began` at that time (ms); forget what was told of those that are `gone`.

    What is compared by several at once counts once. Raises: redis-py's errors.
    """
    for app, at in began.items():
        with store.pipeline(transaction=True) as asked:
            asked.hget(keys.estimates, app)
            asked.hdel(keys.estimates, app)
            text, _ = asked.execute()
        if told := _told(text):
            store.lpush(keys.estimated, *[_to_json((app, at, each)) for each in told])
            store.ltrim(keys.estimated, 0, MOST_COMPARED - 1)
    if gone:
        store.hdel(keys.estimates, *gone)


def errors(store: Redis, keys: Keys) -> ErrorsOfEstimates | None:
    """How far the last estimates were from what came; None if none was compared. Raises: redis-py's errors."""
    try:
        texts = cast("list[bytes]", store.lrange(keys.estimated, 0, -1))
    except NoPermissionError:
        return None
    compared: list[tuple[int, Given]] = []
    for text in texts:
        with suppress(msgspec.DecodeError):  # nobody but an older or newer version writes anything else
            compared.append(_compared.decode(text)[1:])
    return errors_of(compared)


def _told(text: bytes | None) -> list[Given]:
    """What was told of an app; nothing if that cannot be read."""
    try:
        return [] if text is None else _given.decode(text)
    except msgspec.DecodeError:
        return []


def errors_of(compared: Collection[tuple[int, Given]]) -> ErrorsOfEstimates | None:
    """The errors of estimates whose apps started at that time (ms); None if there are none.

    The error is the time between the start and the likely one, or the latest one where no other was told.
    """
    found: list[int] = []
    within = 0
    for at, given in compared:
        told = given.latest if given.likely is None else given.likely
        if told is not None:
            found.append(abs(at - told))
            within += (given.earliest or 0) <= at and (given.latest is None or at <= given.latest)
    if not found:
        return None
    found.sort()
    return ErrorsOfEstimates(len(found), within, _rank(found, 50), _rank(found, 90))


def _rank(ordered: list[int], percent: int) -> int:
    """The percentile by nearest rank."""
    return ordered[-(-len(ordered) * percent // 100) - 1]
