"""An index as one function of an entity: in which group it stands, and where in the order of that group."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

E = TypeVar("E")
Place = tuple[Any, Any]
"""(group, rank): no two entities of an index have equal ranks."""


class Keyed(Generic[E]):
    """Entities in groups, each in order, by `key(entity)`; one whose key is None does not stand in it."""

    def __init__(self, key: Callable[[E], Place | None]) -> None:
        self.key = key
        self.groups: dict[Any, list[Any]] = {}
        """Group -> the ranks of its entities, in order."""
        self.members: dict[Any, E] = {}
        """Rank -> entity."""
        self.places: dict[str, Place] = {}
        """Name of an entity -> where it stands."""

    def move(self, name: str, entity: E | None, now: Place | None) -> None:
        """Let the entity stand there, and nowhere else."""
        before = self.places.pop(name, None)
        if before is not None:
            group, rank = before
            ranks = self.groups[group]
            if len(ranks) == 1:
                del self.groups[group]
            else:
                del ranks[bisect_left(ranks, rank)]
            del self.members[rank]
        if now is not None and entity is not None:
            group, rank = self.places[name] = now
            insort(self.groups.setdefault(group, []), rank)
            self.members[rank] = entity

    def refresh(self, name: str, entity: E | None) -> bool:
        """Bring the place of the entity up to date, which is None if there is none any more; whether it moved."""
        now = None if entity is None else self.key(entity)
        if now == self.places.get(name):
            return False
        self.move(name, entity, now)
        return True

    def after(self, rank: Any, group: Any = "") -> E | None:  # noqa: ANN401 - of the index's type
        """The next one of the group behind that rank; None if it is the last."""
        ranks = self.groups.get(group, [])
        index = bisect_right(ranks, rank)
        return self.members[ranks[index]] if index < len(ranks) else None

    def __iter__(self) -> Iterator[E]:
        """All of them in the order of their ranks."""
        return iter([self.members[rank] for rank in sorted(self.members)])

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, rank: object) -> bool:
        return rank in self.members
