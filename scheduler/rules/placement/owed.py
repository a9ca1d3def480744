"""The apps that placement still owes executors, in the order in which it serves them (semantics P6)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.rules.entities import App, Need


Key = tuple[str, "Need", str]


def key_of(app: App) -> Key:
    """Apps of equal keys are all served now, or none is.

    Company, need, and the app if room is held for it.
    """
    return app.spec.company, app.need, app.id if app.holds else ""


class Owed:
    """Apps by company and by what they need of a worker, each list in the order of admission.

    So an app whose like finds no room now, or whose company is not served now, is not looked at.
    """

    def __init__(self) -> None:
        self.lists: dict[Key, list[int]] = {}
        """Key -> positions of admission, in order."""
        self._by_admission: dict[int, App] = {}

    def add(self, app: App) -> None:
        """Placement owes the app something from now on; its need must not change while it does."""
        insort(self.lists.setdefault(key_of(app), []), app.admitted)
        self._by_admission[app.admitted] = app

    def remove(self, app: App) -> None:
        """Placement owes the app nothing any more."""
        key = key_of(app)
        positions = self.lists[key]
        if len(positions) == 1:
            del self.lists[key]
        else:
            del positions[bisect_left(positions, app.admitted)]
        del self._by_admission[app.admitted]

    def apps(self) -> list[App]:
        """All of them, in the order of admission."""
        return [self._by_admission[position] for position in self.positions()]

    def positions(self) -> list[int]:
        """The positions of admission of all of them, in order."""
        return sorted(self._by_admission)

    def companies(self) -> dict[str, None]:
        """The companies that are owed anything."""
        return {company: None for company, *_ in self.lists}

    def serve(self, wanted: Callable[[App], bool]) -> Iterator[App]:
        """The apps that are wanted when it is their turn, in the order of admission.

        Of apps of equal keys all are wanted or none is.
        The caller folds what it grants one before it asks for the next.
        """
        if len(self.lists) == 1:
            yield from self._serve_one(wanted)
            return
        turns = [
            (positions[0], key) for key, positions in self.lists.items() if wanted(self._by_admission[positions[0]])
        ]
        order = {key: number for number, (_, key) in enumerate(turns)}
        heap = [(position, order[key], key) for position, key in turns]
        heapify(heap)
        while heap:
            position, number, key = heappop(heap)
            app = self._by_admission.get(position)
            if app is not None:
                if not wanted(app):
                    continue
                yield app
            positions = self.lists.get(key, ())
            index = bisect_right(positions, position)
            if index < len(positions):
                heappush(heap, (positions[index], number, key))

    def _serve_one(self, wanted: Callable[[App], bool]) -> Iterator[App]:
        """As `serve`, where all apps are of one company and need, as when apps arrive one at a time."""
        ((key, positions),) = self.lists.items()
        position = 0
        while (index := bisect_right(positions, position)) < len(positions):
            position = positions[index]
            app = self._by_admission[position]
            if not wanted(app):
                return
            yield app
            positions = self.lists.get(key, [])
