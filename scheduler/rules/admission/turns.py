"""Whose turn it is, where a turn moves nobody's place but that of its company and its user."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App

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


class TreeTurns:
    """As `AppTurns` for a tree of any depth: from the top down to the child whose place is first (semantics H12).

    `path`: the names on the way down to the app; `place`: that of what has the name, where that app comes next in it.
    Where places are equal, these apps decide.
    """

    def __init__(
        self,
        apps: Iterable[App],
        *,
        path: Callable[[App], tuple[Any, ...]],
        place: Callable[[Any, App], Any],
        within: Callable[[App], Any],
    ) -> None:
        self._path, self._place, self._within = path, place, within
        self._root = _Branch(None, 0)
        for app in apps:
            self._way(app)[-1].apps.append((within(app), app.submitted, app))
        self._begin(self._root)

    def pop(self) -> App | None:
        """Whose turn it is now; None if nobody is left."""
        if self._first(self._root) is None:
            return None
        node = self._root
        while node.waiting:
            node = node.waiting[0][-1]
        app: App = heappop(node.apps)[-1]
        return app

    def push(self, app: App) -> None:
        """Give the app another turn."""
        way = self._way(app)
        node = way.pop()
        first = self._within(app), app.submitted, app
        heappush(node.apps, first)
        for above in reversed(way):
            turn = self._turn(node, first)
            if node.turn is None or turn < node.turn:  # else it waits already
                node.turn = turn
                heappush(above.waiting, (turn, node.of, node))
            node = above

    def _way(self, app: App) -> list[_Branch]:
        """From the top down to where the app is."""
        way = [self._root]
        for name in self._path(app):
            node = way[-1]
            following = node.children.get(name)
            if following is None:
                following = node.children[name] = _Branch(name, len(node.children))
            way.append(following)
        return way

    def _begin(self, node: _Branch) -> tuple[Any, int, App] | None:
        """What comes next there, once all that is below has its turn."""
        heapify(node.apps)
        for child in node.children.values():
            first = self._begin(child)
            if first is not None:
                child.turn = self._turn(child, first)
                node.waiting.append((child.turn, child.of, child))
        heapify(node.waiting)
        while node.waiting:
            node = node.waiting[0][-1]
        return node.apps[0] if node.apps else None

    def _turn(self, node: _Branch, first: tuple[Any, int, App]) -> tuple[Any, Any, int]:
        """Its place among its siblings, then that of the app which comes next in it."""
        within, submitted, app = first
        return self._place(node.name, app), within, submitted

    def _first(self, node: _Branch) -> tuple[Any, int, App] | None:
        """What comes next there by now; None if nobody is left."""
        if node.apps:
            return node.apps[0]
        while node.waiting:
            known, _, child = node.waiting[0]
            first = self._first(child)
            if first is None:
                child.turn = None
                heappop(node.waiting)
                continue
            turn = self._turn(child, first)
            if turn == known:
                return first
            child.turn = turn
            heapreplace(node.waiting, (turn, child.of, child))
        return None


class _Branch:
    """What is below one name: further names, or apps."""

    __slots__ = ("apps", "children", "name", "of", "turn", "waiting")

    def __init__(self, name: Any, of: int) -> None:  # noqa: ANN401 - of the caller's choice
        self.name = name
        self.of = of
        """Its number among its siblings."""
        self.turn: Any = None
        """The place by which it waits for its turn; None if it does not."""
        self.children: dict[Any, _Branch] = {}
        self.waiting: list[tuple[Any, int, _Branch]] = []
        self.apps: list[tuple[Any, int, App]] = []

    def __lt__(self, other: _Branch) -> bool:
        """Whether it comes before that one: it is asked where one waits twice by the same place."""
        return self.of < other.of
