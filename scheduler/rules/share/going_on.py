"""How a filling goes on from a mark of the last one, up to which both are the same (semantics H2).

A filling is units of some shapes in an order, and of whom they are matters to what follows only where shares are equal.
So one app of a user in the place of another, of as large executors, changes nothing but the last ties: in its company
or, where there are departments, in all that is in the same one of those right below the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.queue import ask_of
from scheduler.rules.share.demands import admitted_leaf, pending
from scheduler.rules.share.fill import CompanyNode, Filling, Key, Leaf, Mark, Node, Shape, Stood, UserNode

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App, Need
    from scheduler.rules.state.cluster import ClusterState

TurnedAway = dict[tuple[str, str], dict["Need", Leaf]]
"""(company, user) -> for what its pending apps need, the last one that was looked at."""
Changed = dict[str, dict[str, list["App"] | None]]
"""Company -> user -> which apps of it changed; None if only its pending apps rank otherwise."""
NEVER: Key = (-1, NOTHING, 1, ())
"""The turn of a company that was handed nothing of the last equal shares."""
NOT_THERE: Stood = (0, NOTHING, None, 0, (0, 0), None)
"""How a user stood that was not there."""


class Looked(NamedTuple):
    """The apps that a filling looked at."""

    leaves: dict[str, Leaf]
    """App -> its demand."""
    turned_away: TurnedAway


class GoingOn:
    """The next filling after the one `before`, which with all that it `looked` at becomes this one."""

    def __init__(self, state: ClusterState, before: Filling, looked: Looked) -> None:
        self._state, self._before, self._looked = state, before, looked
        self._number = before.number + 1
        self.moved: list[str] = []
        """The apps that may be handed anything else than before."""

    def run(self) -> Filling | None:
        """The filling; None if it must begin anew, and then the last one is of no use any more."""
        before = self._before
        if not before.marks or any(slot.began for slot in self._state.slots.values()):
            return None
        changed = self._changed()
        mark = None if changed is None else self._last_same(changed)
        if mark is None or changed is None:
            return None
        run = Filling(mark.rooms, before.companies, before.total, before.tree)
        for node in before.companies:
            if node.name in changed:
                node.changed = self._number
        again = {node.branch for node in before.companies if node.changed > mark.filling}
        unsettled: dict[Node, Counter[Shape]] = {}
        settled: list[int] = []
        for number, node in enumerate(before.companies):
            node.used, node.drivers, node.turn = mark.companies[number]
            tied = self._as_far(run, node, mark.users[number], mark.filling, again=node.branch in again)
            if tied is None:
                return None
            if tied:
                settled.append(number)
                unsettled.setdefault(node.branch, Counter()).update(tied)
                node.turn = NEVER
                for amounts, _ in tied:
                    node.used -= amounts
        run.go_on_from(mark, before, settled, unsettled)
        run.run()
        return run if run.is_settled else None

    def _changed(self) -> Changed | None:
        """Whose demands changed since the last filling; None if that cannot be told."""
        state = self._state
        changed: Changed = {}
        for name in state.filling.since:
            app = state.apps.get(name)
            if app is not None and not self._is_behind(app):
                theirs = changed.setdefault(app.spec.company, {})
                theirs[app.spec.user] = [*(theirs.get(app.spec.user) or ()), app]
            elif app is None and (name in self._looked.leaves or state.limits.values):  # which may let others in (N2)
                return None
        for name in changed:
            if state.queue.companies[name].limit.above:  # others may enter in the same department (semantics H12)
                return None
        for node in self._before.companies:
            name = node.name
            queue, selected = state.queue.companies[name], state.companies[name].last_selected
            limited = name in changed and queue.limit.limited
            if limited or selected != node.selected:
                theirs = changed.setdefault(name, {})
                for user in (*[each.name for each in node.users], *queue.asking):
                    theirs.setdefault(user, [] if limited else None)
            node.selected = selected
        return changed

    def _is_behind(self, app: App) -> bool:
        """Whether the app was not looked at, nor is it but after all that was: where limits count none is (N2)."""
        if app.id in self._looked.leaves or self._state.queue.companies[app.spec.company].limit.limited:
            return False
        return app.ended is not None or is_turned_away(self._state, self._looked.turned_away, app)

    def _last_same(self, changed: Changed) -> Mark | None:
        """The last mark up to which the filling is the same; those who changed have their demands of now."""
        marks = self._before.marks.copy()
        for number, node in enumerate(self._before.companies):
            places = {user.name: place for place, user in enumerate(node.users)} if node.name in changed else {}
            for name, apps in changed.get(node.name, {}).items():
                if name not in places:
                    places[name] = len(node.users)
                    node.users.append(self._new_user(node, name))
                user = node.users[places[name]]
                after = (user.number, None) if apps is None else self._looked_at_again(node, user, apps)
                while marks and not (
                    _is_free_of_ties(marks[-1], node, number, places[name])
                    and _is_same(marks[-1].users[number], places[name], user, after, known=apps is None)
                ):
                    marks.pop()
                if not marks:
                    return None
        return marks[-1] if marks else None

    def _looked_at_again(self, node: CompanyNode, user: UserNode, apps: list[App]) -> tuple[int, Shape | None]:
        """With the user's demands of now: how many of the units that it was handed are the same, and the next one."""
        user.changed = self._number
        user.admitted = self._admitted_now(user, apps)
        units, shapes = user.number, user.runs
        self.moved += [leaf.app for leaf in user.leaves]
        self._forget(user, 0)
        user.begin_again(self._pending_of(node, user))
        same = user.hand_again(shapes, units)
        leaf = user.next()
        return same, None if leaf is None else leaf.shape

    def _new_user(self, node: CompanyNode, name: str) -> UserNode:
        """A user of which no app was looked at before."""
        state, user = self._state, UserNode(name)
        for driver in state.drivers.values():
            spec = state.apps[driver.app].spec
            if (spec.company, spec.user) == (node.name, name):
                user.begin += driver.resources
        return user

    def _admitted_now(self, user: UserNode, changed: list[App]) -> list[Leaf]:
        """The demands of the user's admitted apps, of which those have changed."""
        state, names = self._state, {app.id for app in changed}
        leaves = [leaf for leaf in user.admitted if leaf.app not in names]
        for app in changed:
            leaf = admitted_leaf(state, app) if app.id in state.waiting else None
            if leaf is not None:
                leaves.append(leaf)
        leaves.sort(key=_by_rank)
        return leaves

    def _pending_of(self, node: CompanyNode, user: UserNode, known: Sequence[Leaf] = ()) -> Iterator[Leaf]:
        """The user's pending apps behind the `known` ones, which are the first and of which none dropped out."""
        company, queue = self._state.companies[node.name], self._state.queue.companies[node.name]
        asking = queue.asking.get(user.name)
        if asking is None:
            self._looked.turned_away.pop((node.name, user.name), None)
            return iter(())
        last = self._looked.turned_away[node.name, user.name] = {}
        theirs = company.users.get(user.name)
        selected = company.last_selected, 0 if theirs is None else theirs.last_selected
        after = None
        for leaf in known:
            after = self._state.apps[leaf.app]
            leaf.rank = (1, *selected, after.ready_position)
            last[after.need] = leaf
        later = partial(pending, self._state.fleet, queue, asking, selected, [], last=last)
        if user.rigid and user.changed < self._number and not queue.limit.limited:
            before = [(leaf, leaf.cause != "") for leaf in user.leaves[len(user.admitted) + len(known) :]]
            if before:
                return self._looked_at_before(before, selected, last, later)
        return later(after=after)

    def _looked_at_before(
        self,
        before: list[tuple[Leaf, bool]],
        selected: tuple[int, int],
        last: dict[Need, Leaf],
        later: Callable[..., Iterator[Leaf]],
    ) -> Iterator[Leaf]:
        """The pending apps that were looked at `before`, as long as the same ones drop out; then those `later`."""
        after = None
        for leaf, dropped in before:
            after = self._state.apps[leaf.app]
            leaf.units, leaf.driven, leaf.cause, leaf.beside = 0, False, "", NOTHING
            leaf.rank = (1, *selected, after.ready_position)
            last[after.need] = leaf
            yield leaf
            if (leaf.cause != "") != dropped:
                break
        yield from later(after=after)

    def _forget(self, user: UserNode, apps: int) -> None:
        """The user's apps after the first so many are not looked at yet."""
        for leaf in user.leaves[apps : user.noted]:
            self._looked.leaves.pop(leaf.app, None)
        user.noted = min(user.noted, apps)

    def _as_far(
        self, run: Filling, node: CompanyNode, theirs: list[Stood], filling: int, *, again: bool
    ) -> list[Shape] | None:
        """Let a company's users be as far as they stood at a mark of that filling; None if that could not be done.

        If they are to be settled `again`, not with the last units of equal shares: the shapes of these.
        """
        tied: list[Shape] = []
        limited = self._state.queue.companies[node.name].limit.limited
        for place, user in enumerate(node.users):
            stood = theirs[place] if place < len(theirs) else NOT_THERE
            units, used, after, _, _, each = stood
            last = user.shape_at(units - 1) if again and units else None
            ties = last is not None and run.was_tied(node.turn, last, used)
            if last is not None and ties:
                tied.append(last)
                units, used = units - 1, used - last[0]
            if each is None and user.rigid and not limited and not filling < user.changed < self._number:
                if ties or after is not None or user.changed > filling:
                    self._go_back(node, user, stood, units, used)
                continue
            self.moved += [leaf.app for leaf in user.leaves]
            self._forget(user, 0)
            if each is not None:
                if not user.stand_again(units, used, each, self._pending_of(node, user)):
                    return None
                continue
            shapes = user.runs
            user.begin_again(self._pending_of(node, user))
            if user.hand_again(shapes, units) != units:
                return None
        return tied

    def _go_back(self, node: CompanyNode, user: UserNode, stood: Stood, units: int, used: Resources) -> None:
        """Let a user be as far as with so many units, which are those that it had at a mark or all but the last one."""
        apps, place = stood[3:5]
        if user.changed == self._number:  # it was looked at again, and none of its apps dropped out
            place = user.before(user.place, user.number - units)
        elif units < stood[0]:
            place = user.before(place)
        if user.changed == self._number or units < stood[0]:
            apps = max(len(user.admitted), place[0] + 1)
        self.moved += [leaf.app for leaf in user.leaves[place[0] :]]
        self._forget(user, apps)
        later = self._pending_of(node, user, user.leaves[len(user.admitted) : apps])
        user.go_back(units, used, apps, place, later)


def is_turned_away(state: ClusterState, turned_away: TurnedAway, app: App) -> bool:
    """Whether a filling never looks at the pending app: one of its user that needs the same comes first in vain."""
    if app.admitted or app.id not in state.queue.arrivals:
        return False
    last = turned_away.get((app.spec.company, app.spec.user), {}).get(app.need)
    if last is None or not last.cause or not (last.starts or last.units < last.least):
        return False
    first = state.apps.get(last.app)
    if first is None or first.ended is not None or not (first.admitted or first.id in state.queue.arrivals):
        return False  # it waits no more
    if first.admitted and app.unplaced_driver is not NOTHING:
        return False
    place = state.queue.companies[app.spec.company].users[app.spec.user].by_ask[ask_of(app)].key
    return place is not None and place(app) > place(first)


def _by_rank(leaf: Leaf) -> tuple[int, ...]:
    return leaf.rank


def _is_same(theirs: list[Stood], place: int, user: UserNode, now: tuple[int, Shape | None], *, known: bool) -> bool:
    """Whether what a user had at a mark, and its next unit, are of the shapes that it wants now.

    `now`: of how many of the units that it was handed that is so, and the next one; of all if that is `known`.
    """
    units, _, after, _, _, _ = theirs[place] if place < len(theirs) else NOT_THERE
    same, following = now
    return units <= same and (known or after == (user.shape_at(units) if units < same else following))


def _is_free_of_ties(mark: Mark, node: CompanyNode, number: int, place: int) -> bool:
    """Whether it does not matter up to a mark which user comes first of those with equal shares.

    It does where an app in the same branch has dropped out, or units of the shapes that the user had, or was to have
    next, fit nowhere any more.
    """
    if node.branch in mark.marred:
        return False
    theirs, user = mark.users[number], node.users[place]
    left, _, after, _, _, _ = theirs[place] if place < len(theirs) else NOT_THERE
    if after is not None and _is_scarce(mark, after):
        return False
    for amounts, there, executors in user.runs:
        if left > 0 and _is_scarce(mark, (amounts, executors)):
            return False
        left -= there
    return True


def _is_scarce(mark: Mark, shape: Shape) -> bool:
    return shape[0] in mark.full or shape in mark.delicate
