"""Whose turn it is, where a turn moves nobody's place but that of its company and its user."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from scheduler.rules.entities import App

C = TypeVar("C", bound=Hashable)


class AppTurns(Generic[C]):
    """Apps, the first of the first user of the first company first; places are asked for again as they come up.

    `side` is the company, and what else tells apart apps whose company would have another place. Where the places of
    companies and of users are equal, the first of their apps decides. They only ever move back while it is used, and by
    turns of theirs alone.
    """

    def __init__(
        self,
        apps: Iterable[App],
        *,
        side: Callable[[App], C],
        company: Callable[[App], Any],
        user: Callable[[App], Any],
        within: Callable[[App], Any],
    ) -> None:
        self._side, self._company, self._user, self._within = side, company, user, within
        self._apps: dict[tuple[C, str], list[tuple[Any, int, App]]] = {}
        self._users: dict[C, list[tuple[tuple[Any, Any], str]]] = {}
        for app in apps:
            self._apps.setdefault((side(app), app.spec.user), []).append((within(app), app.submitted, app))
        for (of, name), theirs in self._apps.items():
            heapify(theirs)
            self._users.setdefault(of, []).append((self._user_place(theirs), name))
        for users in self._users.values():
            heapify(users)
        self._sides = [(self._place(of), of) for of in self._users]
        heapify(self._sides)

    def pop(self) -> App | None:
        """Whose turn it is now; None if nobody is left."""
        while self._sides:
            known, side = self._sides[0]
            first = self._first_user(side)
            if first is None:
                heappop(self._sides)
                del self._users[side]
                continue
            place = self._place(side)
            if place != known:
                heapreplace(self._sides, (place, side))
                continue
            theirs: list[tuple[Any, int, App]] = self._apps[side, first]
            return heappop(theirs)[-1]
        return None

    def push(self, app: App) -> None:
        """Give the app another turn."""
        side, user = self._side(app), app.spec.user
        entry = self._within(app), app.submitted, app
        if (theirs := self._apps.get((side, user))) is not None:
            heappush(theirs, entry)
            return
        self._apps[side, user] = [entry]
        known = side in self._users
        heappush(self._users.setdefault(side, []), (self._user_place(self._apps[side, user]), user))
        if not known:
            heappush(self._sides, (self._place(side), side))

    def _first_user(self, side: C) -> str | None:
        """The user of that side whose turn is first, its place being that of now; None if it has none left."""
        users = self._users[side]
        while users:
            known, name = users[0]
            theirs = self._apps[side, name]
            if not theirs:
                heappop(users)
                del self._apps[side, name]
                continue
            place = self._user_place(theirs)
            if place == known:
                return name
            heapreplace(users, (place, name))
        return None

    def _user_place(self, theirs: list[tuple[Any, int, App]]) -> tuple[Any, Any]:
        """The place of the user who has these apps, then of the first of them."""
        within, _, app = theirs[0]
        return self._user(app), within

    def _place(self, side: C) -> tuple[Any, Any]:
        """The place of that side: of its company, then of its first user."""
        place, name = self._users[side][0]
        return self._company(self._apps[side, name][0][-1]), place
