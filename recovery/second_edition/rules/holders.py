"""Who holds executors, in the order in which a company's apps lose them to claims (semantics E4)."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

from recovery.second_edition.rules.entities import App

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Place = tuple[int, int]
"""Priority and, negated, the position of admission."""


class _Placed(NamedTuple):
    app: App
    place: Place
    lost: int | None
    """Since when (ms) it has lost executors in as many turns as matter; None if it has not within the window."""


class _Holders:
    """The apps of one company. They are put in order when a claim asks for it, each once until it changes."""

    def __init__(self) -> None:
        self.unplaced: dict[int, App] = {}
        self._placed: dict[int, _Placed] = {}
        self._first: list[Place] = []
        self._spared: list[Place] = []
        """Those that lost executors in that many turns within the window: they come last."""
        self._spared_since: list[tuple[int, Place]] = []
        self._after = 0
        """The `after` by which they were put in order last."""

    def __contains__(self, admitted: int) -> bool:
        return admitted in self.unplaced or admitted in self._placed

    def misplace(self) -> None:
        """Put all of them in order anew."""
        for one in list(self._placed.values()):
            self.take_out(one.app)
            self.unplaced[one.app.admitted] = one.app

    def take_out(self, app: App) -> bool:
        """Whether none is left."""
        if self.unplaced.pop(app.admitted, None) is None and app.admitted in self._placed:
            _, place, lost = self._placed.pop(app.admitted)
            places = self._first if lost is None else self._spared
            del places[bisect_left(places, place)]
            if lost is not None:
                del self._spared_since[bisect_left(self._spared_since, (lost, place))]
        return not (self.unplaced or self._placed)

    def in_order(self, after: int, turns: int) -> Iterator[App]:
        if after < self._after:  # a turn that logged nothing was later than the state
            self.misplace()
        self._after = after
        for _, (_, admitted) in self._spared_since[: bisect_left(self._spared_since, (after + 1,))]:
            app = self._placed[-admitted].app
            self.take_out(app)
            self.unplaced[app.admitted] = app
        for app in self.unplaced.values():
            self._place(app, after, turns)
        self.unplaced.clear()
        for places in (self._first, self._spared):
            for _, admitted in places:
                yield self._placed[-admitted].app

    def _place(self, app: App, after: int, turns: int) -> None:
        place, lost = _place_of(app), _spared_since(app, after, turns)
        insort(self._first if lost is None else self._spared, place)
        if lost is not None:
            insort(self._spared_since, (lost, place))
        self._placed[app.admitted] = _Placed(app, place, lost)


class Holders:
    """The admitted apps that have executors, by company."""

    def __init__(self) -> None:
        self.companies: dict[str, _Holders] = {}

    def __contains__(self, app: App) -> bool:
        return app.spec.company in self.companies and app.admitted in self.companies[app.spec.company]

    def add(self, app: App) -> None:
        """The app has executors from now on."""
        holders = self.companies.get(app.spec.company)
        if holders is None:
            holders = self.companies[app.spec.company] = _Holders()
        holders.unplaced[app.admitted] = app

    def drop(self, app: App) -> None:
        """The app has no executors any more, or has ended."""
        holders = self.companies.get(app.spec.company)
        if holders is not None and holders.take_out(app):
            del self.companies[app.spec.company]

    def move(self, app: App) -> None:
        """The app has another priority, or lost an executor to a claim."""
        if app in self:
            self.drop(app)
            self.add(app)

    def misplace(self) -> None:
        """Put all of them in order anew, because a setting that counts for it may be another."""
        for holders in self.companies.values():
            holders.misplace()

    def in_order(self, company: str, after: int, turns: int, of: Mapping[str, App] | None = None) -> Iterator[App]:
        """The company's: those that lost executors in fewer than so many turns `after` then (ms) first (semantics E4).

        Then the lowest priority, then the one admitted last; with `of`, only of these. No app must change during
        iteration.
        """
        if of is None:
            return self.companies[company].in_order(after, turns)
        mine = [app for app in of.values() if app.spec.company == company and app in self]
        return iter(sorted(mine, key=lambda app: (_spared_since(app, after, turns) is not None, *_place_of(app))))


def _place_of(app: App) -> Place:
    return app.priority, -app.admitted


def _spared_since(app: App, after: int, turns: int) -> int | None:
    """Since when (ms) the app has lost executors in that many turns `after` then; None if it has not."""
    return app.losses[-turns] if len(app.losses) >= turns and app.losses[-turns] > after else None
