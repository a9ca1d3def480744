"""What each app, user and company is entitled to, from the facts of a state (semantics H2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Any

from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.fleet import tally
from scheduler.rules.share.demands import (
    admitted_leaf,
    held_units,
    leaf_of,
    may_have_another,
    pending,
    seeking,
    staying_of,
    wanted_units,
)
from scheduler.rules.share.families import are_as_before, reclassed
from scheduler.rules.share.fill import (
    CompanyNode,
    Filling,
    First,
    GroupNode,
    GroupTree,
    Handed,
    Leaf,
    Rooms,
    UserNode,
    may_start,
)
from scheduler.rules.share.going_on import GoingOn, Looked, TurnedAway, is_turned_away

if TYPE_CHECKING:
    from scheduler.rules.admission.queue import CompanyQueue
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.companies import Company
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.state.cluster import ClusterState


Side = tuple[Resources, Resources]
"""What is held and stays, and what is due."""


@dataclass(slots=True, eq=False)
class Entitlement:
    """The result of one filling."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    """App -> its demand and what it is handed, of every app that was looked at; of a `whole` one pending apps alone."""
    companies: dict[str, CompanyNode] = field(default_factory=dict)
    tree: GroupTree | None = None
    """The departments, if there are any."""

    dropped: list[Leaf] = field(default_factory=list)
    """The demands that dropped out, in that order."""
    offered: dict[Resources, int] = field(default_factory=dict)
    """What the live workers offer beside drivers, counted by amounts."""
    entering: list[str] = field(default_factory=list)
    """The pending apps that were handed anything, of one that is not `whole`."""
    overtaking: dict[str, None] = field(default_factory=dict)
    """The entering apps before which, by F, an app of their user waits that was handed nothing."""
    went_on: dict[str, None] = field(default_factory=dict)
    """The companies that were handed anything after a pending app of theirs had dropped out."""
    turned_away: TurnedAway = field(default_factory=dict)
    whole: bool = False
    """Whether all that is wanted and not granted has room now, so that everybody is entitled to all that it wants."""
    run: Filling | None = None
    """The filling."""
    _sides: tuple[int, dict[tuple[str, str], Side]] = (-1, {})
    """Log position -> what was asked of the state there."""
    above_before: dict[str, None] | None = None
    """The apps above their entitlement, and maybe some that were, before what changed last; None if that is unknown."""
    planned: Any = None
    """The last `Plan` by this filling, or one that it went on from."""
    changed: dict[str, None] = field(default_factory=dict)
    """The apps that changed after that plan and before this filling."""

    def side(self, state: ClusterState, side: tuple[str, str]) -> Side:
        """Of (company, user), (company, "") or ("", department): what is held there that stays, and what is due to it.

        What its apps have a target for is held: whoever leaves for it makes room on its own side.
        """
        if self._sides[0] != state.head:
            self._sides = state.head, {}
        found = self._sides[1].get(side)
        if found is not None:
            return found
        held = due = NOTHING
        if side[0]:
            for app in self.apps_of(state, side):
                held += staying_of(app)
                if app.holds and app.driver_runs:
                    held += sum([state.holds[target].amounts for target in app.holds], NOTHING)
                due += app.need.executor * self.units(app)
        else:
            for company in _companies_in(state, side[1]):
                theirs = self.side(state, (company, ""))
                held, due = held + theirs[0], due + theirs[1]
        self._sides[1][side] = held, due
        return held, due

    def apps_of(self, state: ClusterState, side: tuple[str, str]) -> list[App]:
        """The apps in waitingApps of (company, user), (company, "") or ("", department)."""
        company, name = side
        if not company:
            return [app for each in _companies_in(state, name) for app in state.companies[each].waiting.values()]
        return [app for app in state.companies[company].waiting.values() if not name or app.spec.user == name]

    def above(self, state: ClusterState) -> list[App]:
        """The apps above their entitlement."""
        names: Iterable[str] = state.waiting
        if self.above_before is not None and state.filling.kept is self:
            names = {**self.above_before, **state.filling.since}
        apps = [app for name in names if (app := state.waiting.get(name)) is not None]
        found = [app for app in apps if not app.over and self.surplus(app) > 0]
        self.above_before = dict.fromkeys([app.id for app in found])
        return found

    def units(self, app: App) -> int:
        """How many executors the app is entitled to."""
        leaf = self.leaves.get(app.id)
        if leaf is not None:
            return leaf.units
        return wanted_units(app) if self.whole and app.admitted and not app.over and app.need.hostable else 0

    def is_driven(self, app: App) -> bool:
        """Whether the app is entitled to the driver that it waits for."""
        leaf = self.leaves.get(app.id)
        if leaf is not None:
            return leaf.driven
        return self.whole and app.admitted > 0 and app.unplaced_driver is not NOTHING and app.need.hostable

    def surplus(self, app: App) -> int:
        """How many executors the app holds above its entitlement; below 0 where it holds less."""
        return held_units(app) - self.units(app)

    def missing(self, app: App) -> int:
        """How many executors the app holds less than its entitlement, as long as it may have a further one."""
        return max(0, -self.surplus(app)) if may_have_another(app) else 0

    def below(self, app: App) -> int:
        """How many units an admitted app is below its entitlement, its driver among them."""
        return self.missing(app) + (app.driver is None and self.is_driven(app))


def _companies_in(state: ClusterState, department: str) -> list[str]:
    """The companies in that department, at any depth."""
    known = state.departments[department]
    return [name for name, company in state.companies.items() if known in company.above]


def entitlement(state: ClusterState) -> Entitlement:
    """The filling of the state as it stands, which it needs not where all has room (semantics H2).

    The last one is given again if nothing that changed since could make another one.
    """
    changes = state.filling
    # 1. Nothing has changed since the last filling: it holds.
    kept = _kept(state)
    if kept is not None and not changes.apps:
        return kept
    # 2. All that is wanted has room: everybody is entitled to it, and nothing is filled.
    found = _unhindered(state)
    if found is not None:
        changes.forget()
        return found
    # 3. The last filling holds in spite of what changed, or is gone on with from where that counts; else a new one.
    kept = still_holding(state) or gone_on(state) or filling(state)[0]
    changes.keep(kept)
    return kept


def _kept(state: ClusterState) -> Entitlement | None:
    """The last filling, if it may still hold: its rooms are of the classes of now, if only by name of others (P9)."""
    changes = state.filling
    kept: Entitlement | None = changes.kept
    if kept is None or not changes.classes:
        return kept
    become = {before: now for now, before in changes.classes.items()}
    offered = reclassed(kept.offered, become)
    if kept.run is None or not are_as_before(kept.offered, become) or offered != _offered(state):
        changes.forget()
        return None
    changes.classes.clear()
    kept.run.reclass(become)
    kept.offered, kept.planned = offered, None
    return kept


def still_holding(state: ClusterState) -> Entitlement | None:
    """The last filling, if nothing that changed since could make another one."""
    kept = _kept(state)
    if kept is None or any(slot.began for slot in state.slots.values()):
        return None
    return kept if all(_holds_for(state, kept, name) for name in state.filling.apps) else None


def _holds_for(state: ClusterState, kept: Entitlement, name: str) -> bool:
    """Whether a filling would hand everybody the same although this app changed since.

    Where there are limits, any change may let others in (semantics N2).
    """
    app, leaf = state.apps.get(name), kept.leaves.get(name)
    if app is None or state.queue.companies[app.spec.company].limit.limited:
        return False
    if app.ended is not None:
        return leaf is None
    now = admitted_leaf(state, app) if app.admitted or name in state.queue.arrivals else None
    if leaf is None:
        return now is None or is_turned_away(state, kept.turned_away, app)
    entered = app.admitted > 0 and leaf.rank[0] > 0
    if entered and (leaf.cause or name in kept.overtaking or _waits_longer(state, kept, app)):
        return False
    if now is None or not _is_handed_the_same(leaf, now):
        return False
    ranks_otherwise = entered or now.held != leaf.held
    return not (ranks_otherwise and leaf.units and kept.run is not None and kept.run.heeds(leaf))


def _waits_longer(state: ClusterState, kept: Entitlement, app: App) -> bool:
    """Whether its company comes later by a pending app: since it was selected, these lose ties (semantics H3).

    That counts where one is handed something, or the company was after one had dropped out.
    """
    company = app.spec.company
    if company in kept.went_on:
        return True
    others = [state.apps.get(name) for name in kept.entering if name != app.id]
    return bool([each for each in others if each is None or (not each.admitted and each.spec.company == company)])


def _is_handed_the_same(leaf: Leaf, now: Leaf) -> bool:
    """Whether a demand is as it was, and wins and loses the same ties (semantics H3).

    Of equal shares a unit stays with who holds it: those that were handed out are held no less. One that dropped out is
    held as it was: others of the same share come before it, and after it others of its user.
    """
    if (now.size, now.most, now.least) != (leaf.size, leaf.most, leaf.least):
        return False
    units = leaf.units
    return (
        (now.driver, now.alone) == (leaf.driver, leaf.alone)
        and min(now.held, units) >= min(leaf.held, units)
        and (not leaf.cause or (now.held > units) == (leaf.held > units))
    )


def _unhindered(state: ClusterState) -> Entitlement | None:
    """The entitlement to all demand, if what of it is not granted yet has room now; None if it has not."""
    rooms = state.fleet.rooms()
    for name in dict.fromkeys([hold.worker for hold in state.holds.values()]):
        worker = state.workers.get(name)
        if worker is not None and worker.status == "alive" and not worker.shut:
            tally(rooms, state.fleet.shape(name, worker.open_to(None)), -1)
            tally(rooms, state.fleet.shape(name, worker.free), 1)
    asked = _Lacking(sum([room.cores * number for room, number in rooms.items()]))
    for app in state.wanting():
        if app.need.hostable and not app.over:
            size, driver = seeking(app)
            asked.add(app.spec.company, size, wanted_units(app) - held_units(app), driver)
            if asked.left < 0:
                return None
    found = Entitlement(whole=True)
    for name, queue in state.queue.companies.items():
        for user in queue.asking.values():
            for leaf in pending(state.fleet, queue, user, (0, 0), [], last={}):
                asked.add(name, leaf.size, leaf.most, leaf.driver)
                if asked.left < 0:
                    return None
                leaf.units, leaf.driven = leaf.most, leaf.driver is not NOTHING
                found.leaves[leaf.app] = leaf
    return found if _passes(state, asked) and asked.fits(rooms) else None


class _Lacking:
    """What is wanted and not granted: by company, and by size in whole executors and drivers."""

    def __init__(self, free_cores: int) -> None:
        self.left = free_cores
        """The free cores beside it; below 0 if it cannot fit."""
        self.by_company: dict[str, Resources] = {}
        self.drivers: dict[str, list[Resources]] = {}
        self._by_size: dict[Resources, int] = {}

    def add(self, company: str, size: Resources, number: int, driver: Resources) -> None:
        """So many executors of that size more, and a driver unless that is nothing."""
        amounts = size * number + driver if number > 0 else driver
        if number > 0:
            self._by_size[size] = self._by_size.get(size, 0) + number
        if driver is not NOTHING:
            self._by_size[driver] = self._by_size.get(driver, 0) + 1
            self.drivers.setdefault(company, []).append(driver)
        self.left -= amounts.cores
        self.by_company[company] = self.by_company.get(company, NOTHING) + amounts

    def fits(self, rooms: dict[Resources, int]) -> bool:
        """Whether all of it fits, the largest first."""
        into = Rooms(rooms)
        return all(starmap(into.take_many, sorted(self._by_size.items(), reverse=True)))


def _passes(state: ClusterState, asked: _Lacking) -> bool:
    """Whether it passes all caps, and every driver may start (semantics H1, H5)."""
    for name, amounts in asked.by_company.items():
        company, quota = state.companies[name], state.queue.companies[name].tenant.quota
        if not company.spec.may_borrow and not quota.covers(company.balance.granted, amounts):
            return False
        if waiting := asked.drivers.get(name):
            drivers = drivers_of(state, name)
            for driver in waiting:
                if not may_start(quota, drivers, driver):
                    return False
                drivers += driver
    return not state.departments or _pass_above(state, asked)


def _pass_above(state: ClusterState, asked: _Lacking) -> bool:
    """Whether all of it together passes no cap of a department, and leaves what others keep (semantics H12)."""
    tree = tree_of(state, lambda each: each.balance.granted)
    for name, amounts in asked.by_company.items():
        group = tree.of(state.companies[name].department)
        if not tree.passes(group, amounts):
            return False
        tree.add(group, amounts)
    return True


def groups_of(state: ClusterState) -> dict[str, GroupNode]:
    """The departments, in which nothing is used yet."""
    whole, number = state.fleet.total, max(1, len(state.companies))
    found = {
        name: GroupNode(
            name,
            quota=each.quota,
            unnamed=Quota(whole * each.companies, number),
            companies=each.companies,
            cap=each.cap,
            kept=each.kept,
        )
        for name, each in state.departments.items()
    }
    for name, each in state.departments.items():
        if each.spec.parent:
            found[name].above = found[each.spec.parent]
    return found


def tree_of(state: ClusterState, held: Callable[[Company], Resources]) -> GroupTree:
    """The departments with what their companies hold by that measure."""
    tree = GroupTree(groups_of(state), state.fleet.total)
    for company in state.companies.values():
        amounts = held(company)
        if amounts != NOTHING:
            tree.add(tree.of(company.department), amounts)
    return tree


def drivers_of(state: ClusterState, company: str) -> Resources:
    """What the drivers of a company hold."""
    return sum(
        (one.resources for one in state.drivers.values() if state.apps[one.app].spec.company == company), NOTHING
    )


def filling(state: ClusterState) -> tuple[Entitlement, list[Handed]]:
    """A filling of the state, and what it handed out, in its order (semantics H2)."""
    # 1. The demands, by company and user: of admitted apps, of those whose slots began, and of pending ones.
    tree = GroupTree(groups_of(state), state.fleet.total) if state.departments else None
    found = Entitlement(tree=tree)
    begun = [state.apps[name] for name, slot in state.slots.items() if slot.began]
    admitted: dict[str, list[App]] = {}
    for app in (*state.waiting.values(), *[app for app in begun if not app.admitted]):
        admitted.setdefault(app.spec.company, []).append(app)
    for name, company in state.companies.items():
        queue = state.queue.companies[name]
        spec = company.spec
        above = None if tree is None else tree.of(company.department)
        found.companies[name] = CompanyNode(
            name, quota=queue.tenant.quota, capped=not spec.may_borrow, selected=company.last_selected, above=above
        )
        _add_users(state, found, admitted.get(name, []), company, queue)
    # 2. Drivers stay where they are: they count for their side, and their room is not handed out.
    for driver in state.drivers.values():
        _count_driver(state, found, driver)
    found.offered = _offered(state)
    # 3. The rest of the live workers is handed out, slots first.
    run = Filling(found.offered, found.companies.values(), state.fleet.total, tree)
    run.run(_first(state, found, begun))
    _note_results(found, run)
    return found, run.handed


def _offered(state: ClusterState) -> dict[Resources, int]:
    """What the live workers offer beside drivers, counted by amounts."""
    rooms = state.fleet.offers()
    for name in dict.fromkeys([driver.worker for driver in state.drivers.values()]):
        worker = state.workers[name]
        if worker.status == "alive":
            tally(rooms, state.fleet.classed(name, worker.offer), -1)
            tally(rooms, state.fleet.classed(name, worker.beside_drivers), 1)
    return rooms


def _note_results(found: Entitlement, run: Filling) -> None:
    """Which apps were looked at, and which pending ones enter by what they were handed."""
    found.run, found.dropped = run, run.dropped
    for node in run.companies:
        for user in node.users:
            waits = False
            for leaf in user.leaves[user.noted :]:
                found.leaves[leaf.app] = leaf
            user.noted = len(user.leaves)
            for leaf in user.leaves[len(user.admitted) :]:
                if leaf.units or leaf.driven:
                    found.entering.append(leaf.app)
                    if waits:
                        found.overtaking[leaf.app] = None
                else:
                    waits = True
                if leaf.cause and leaf.beside != node.used:
                    found.went_on[node.name] = None


def _first(state: ClusterState, found: Entitlement, begun: list[App]) -> list[First]:
    """Who is handed something before everybody else: the slot that began first, then the one due first (H10)."""
    first: list[First] = []
    for app in sorted(begun, key=lambda app: (state.slots[app.id].began, state.slots[app.id].date)):
        company = found.companies[app.spec.company]
        for user in company.users:
            first += [(company, user, leaf, state.slots[app.id].units) for leaf in user.leaves if leaf.app == app.id]
    return first


def _count_driver(state: ClusterState, found: Entitlement, driver: Allocation) -> None:
    """A driver that stands counts as handed out already."""
    spec = state.apps[driver.app].spec
    node = found.companies.get(spec.company)
    if node is None:
        return
    node.used += driver.resources
    if found.tree is not None and node.above is not None:
        found.tree.add(node.above, driver.resources)
    node.drivers += driver.resources
    for user in node.users:
        if user.name == spec.user:
            user.used += driver.resources
            user.begin += driver.resources


def _add_users(
    state: ClusterState, found: Entitlement, known: list[App], company: Company, queue: CompanyQueue
) -> None:
    """The users with the demands of the apps that are `known`, admitted ones and those with slots, and of others."""
    fleet, node = state.fleet, found.companies[queue.tenant.company]
    entered: dict[str, list[Leaf]] = {}
    besides: dict[str, list[App]] = {}
    for app in known:
        if not app.admitted:
            besides.setdefault(app.spec.user, []).append(app)
        elif (leaf := admitted_leaf(state, app)) is not None:
            entered.setdefault(app.spec.user, []).append(leaf)
    asking = queue.asking
    for name in dict.fromkeys([*entered, *asking]):
        later: Iterator[Leaf] = iter(())
        leaves = entered.get(name, []).copy()
        if name in asking:
            selected = company.last_selected, company.users[name].last_selected if name in company.users else 0
            ahead = [app for app in besides.get(name, []) if app.ready and app.need.hostable]
            slotted = [leaf_of(fleet, app, (1, *selected, app.ready_position)) for app in ahead]
            leaves += [leaf for leaf in slotted if leaf is not None]
            last = found.turned_away[queue.tenant.company, name] = {}
            later = pending(fleet, queue, asking[name], selected, ahead, last=last)
        own = entered.get(name, []).copy()
        rigid = all(leaf.least == leaf.most for leaf in leaves)
        node.users.append(UserNode(name, leaves=leaves, later=later, admitted=own, rigid=rigid))


def gone_on(state: ClusterState) -> Entitlement | None:
    """The filling, gone on from where the last one is the same; None if it begins anew."""
    kept = _kept(state)
    if kept is None or kept.run is None:
        return None
    going_on = GoingOn(state, kept.run, Looked(kept.leaves, kept.turned_away))
    run = going_on.run()
    if run is None:
        return None
    found = Entitlement(companies=kept.companies, tree=kept.tree, offered=kept.offered, leaves=kept.leaves)
    found.turned_away = kept.turned_away
    if kept.above_before is not None and len(kept.above_before) < len(state.waiting):
        found.above_before = {**kept.above_before, **state.filling.since, **dict.fromkeys(going_on.moved)}
    if kept.planned is not None and len(kept.changed) < len(state.workers):
        found.planned, found.changed = kept.planned, {**kept.changed, **state.filling.since}
    _note_results(found, run)
    return found
