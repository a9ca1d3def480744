"""Rooms with further kinds or a class by labels, found without a look at each of them (semantics P1, P9).

There may be as many classes as demands in use, so their number must not count for each unit that is handed out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from scheduler.model.resources import Amounts, Resources
from scheduler.rules.entities.labels import amounts_in, class_in, classes_of, demands_besides, met_as, met_in


def reclassed(rooms: Mapping[Resources, int], become: Mapping[Amounts, Amounts]) -> dict[Resources, int]:
    """The rooms, where these classes have become others."""
    found: dict[Resources, int] = {}
    for room, number in rooms.items():
        met = met_in(room)
        found[met_as(room, become[met]) if met in become else room] = number
    return found


def are_as_before(rooms: Iterable[Resources], become: Mapping[Amounts, Amounts]) -> bool:
    """Whether units are taken from these rooms in the same order where these classes have become others (P1, P9).

    It heeds the names of classes and how many demands they meet. Apps with a demand that only one of the two meets are
    none of those that were handed anything.
    """
    classes = {met_in(room) for room in rooms}
    unnamed = become.get((), ()) != () or () in become.values()
    if unnamed and [room for room in rooms if amounts_in(room).others]:  # among these it comes elsewhere by its name
        return False
    now = {met: become.get(met, met) for met in classes}
    if len({*now.values()}) < len(now):
        return False
    besides = [(_besides(met), _besides(new)) for met, new in now.items()]
    more = {new - before for before, new in besides if before >= 0 and new >= 0}
    return len(more) <= 1 and [now[met] for met in sorted(classes)] == sorted(now.values())


def _besides(met: Amounts) -> int:
    return demands_besides(met[0][0] if met else "")


class Family:
    """The rooms that name the same kinds, and whose classes meet as many demands: a size spares as much in each."""

    def __init__(self, kinds: tuple[str, ...], beside: int) -> None:
        self.kinds = kinds
        self.beside = beside
        """How many demands its classes meet besides one that they do."""
        self.in_order: list[Resources] = []
        """The amounts of its rooms, their classes aside."""
        self.classes: dict[Resources, int] = {}
        """Amounts -> the classes of its rooms of these, as bits."""

    def spare(self, kinds: list[str]) -> int:
        """How many kinds it has besides these, and how many demands besides one (P1, P9)."""
        return sum([kind not in kinds for kind in self.kinds]) + self.beside

    def fitting(self, amounts: Resources, met: int) -> list[tuple[Resources, int]]:
        """The amounts, and the first class of `met`, of rooms with the fewest cores and MiB that have so much."""
        found: list[tuple[Resources, int]] = []
        in_order = self.in_order
        if not in_order or in_order[-1].cores < amounts.cores:
            return found
        for index in range(bisect_left(in_order, Resources(amounts.cores, amounts.memory_mb)), len(in_order)):
            room = in_order[index]
            if found and (room.cores, room.memory_mb) != (found[0][0].cores, found[0][0].memory_mb):
                break
            here = self.classes[room] & met
            if here and room.covers(amounts):
                found.append((room, here & -here))
        return found


class Families:
    """The families of some rooms, none of a class that was not there at first."""

    def __init__(self, rooms: Iterable[Resources]) -> None:
        rooms = list(rooms)
        self._classes = classes_of(tuple(sorted({class_in(room) for room in rooms})))
        self._families: dict[tuple[tuple[str, ...], int], Family] = {}
        self._by_spare: dict[Amounts, list[list[Family]]] = {}
        """Kinds of a size -> the families with the fewest kinds and demands besides these, then those with more."""
        for room in rooms:
            self.change(room, there=True)

    def change(self, room: Resources, *, there: bool) -> None:
        """There is such a room from now on, or none any more."""
        amounts, kind = amounts_in(room), class_in(room)
        family, bit = self._family(amounts, kind), self._classes.bit[kind]
        before = family.classes.get(amounts, 0)
        if there and not before:
            insort(family.in_order, amounts)
        if there or before != bit:
            family.classes[amounts] = before ^ bit
        else:
            del family.classes[amounts], family.in_order[bisect_left(family.in_order, amounts)]

    def best(self, size: Resources) -> Resources | None:
        """The room with the fewest kinds and demands besides those of `size`, then the least left, if there is one."""
        met, amounts = self._classes.meeting(size), amounts_in(size)
        for alike in self._in_turn(amounts.others) if met else ():
            found: list[tuple[Resources, int]] = []
            for family in alike:
                found += family.fitting(amounts, met)
            if found:
                rooms = [self._classes.room(room, bit) for room, bit in found]
                return rooms[0] if len(rooms) == 1 else min(rooms, key=lambda room: room - size)
        return None

    def _family(self, amounts: Resources, kind: str) -> Family:
        """The one of rooms of these amounts and that class."""
        key = tuple([each for each, _ in amounts.others]), self._classes.beside[kind]
        found = self._families.get(key)
        if found is None:
            found = self._families[key] = Family(*key)
            self._by_spare.clear()
        return found

    def _in_turn(self, kinds: Amounts) -> list[list[Family]]:
        found = self._by_spare.get(kinds)
        if found is None:
            needed, by_spare = [kind for kind, amount in kinds if amount], dict[int, list[Family]]()
            for family in self._families.values():
                by_spare.setdefault(family.spare(needed), []).append(family)
            found = self._by_spare[kinds] = [by_spare[spare] for spare in sorted(by_spare)]
        return found
