"""Answers from a state of the log, and the pages in which lists come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.json import Decoder, Encoder

from fairlog.api.replica import Seen
from scheduler.model.errors import InvalidCommand

NO_CURSOR = "the cursor is not one that an answer has given as `next`"
_KEYS = ("app", "worker", "kind", "token", "account", "company")
to_json = Encoder().encode
plain = Decoder().decode


class Viewed(NamedTuple):
    """An answer from the state at `seen`: a list of items as JSON, or one value as JSON. `next`: the next page."""

    seen: Seen
    body: Raw | list[Raw]
    next: str | None = None


class Item(NamedTuple):
    """A part of a view as JSON, and its name in a cursor."""

    key: str
    body: Raw


def item_of(value: Any) -> Item:  # noqa: ANN401 (JSON values)
    """A part of a view; its key are the names that tell it from the others."""
    key = next((str(value[name]) for name in _KEYS if name in value), "")
    if "limit" in value:
        key = f"{value['company']}.{value['user']}.{value['limit']}"
    return Item(key, Raw(to_json(value)))


def number_in(cursor: str, start: int = 0) -> int:
    """The number that the cursor is, or `start` for none. Raises: InvalidCommand."""
    if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 16):
        raise InvalidCommand(NO_CURSOR)
    return int(cursor or start)


def after_cursor(items: Sequence[Item], cursor: str) -> int:
    """The index after the item at which a page ended: where it is now, or where it was if it is gone."""
    if not cursor:
        return 0
    place, _, key = cursor.partition(".")
    if not (place.isascii() and place.isdecimal()) or len(place) > 9:
        raise InvalidCommand(NO_CURSOR)
    end = int(place)
    if 0 < end <= len(items) and items[end - 1].key == key:
        return end
    return next((number for number, item in enumerate(items, 1) if item.key == key), min(end, len(items)))
