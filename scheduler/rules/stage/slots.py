"""Slots: who is larger than its share is handed its unit first for a while (semantics H10)."""

from __future__ import annotations

from collections.abc import Collection, Generator
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.events import Event, SlotAwaited, SlotBegan, SlotEnded
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.checks.validate import MAX_MOMENT
from scheduler.rules.entities.labels import amounts_in
from scheduler.rules.share.demands import leaf_of, wanted_units
from scheduler.rules.share.entitlement import Entitlement, drivers_of, tree_of
from scheduler.rules.share.fill import CompanyNode, GroupNode, Leaf, Rooms, UserNode, may_start
from scheduler.rules.stage.room import most_targets

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState

ENOUGH = Fraction(1, 2)
"""Who gets as much of its part of what is handed out needs no slot."""


NEVER = Fraction(1 << 53)
"""So many times the share: of a kind of which the fair part is nothing."""


class Larger(NamedTuple):
    """By how much the next unit of an app is larger than the share of its company, or of its user (semantics H10)."""

    unit: Resources
    got: Resources
    """What the filling hands its company, or its user."""
    fair: Resources
    """The fair part of that one, rounded down."""
    times: Fraction
    """The unit in fair parts: the largest ratio of any kind."""
    within: bool = False
    """Whether its user gets too little of what its company gets, which is enough."""

    def awaits_until(self, at: int, slot_s: int) -> int:
        """When (ms) a slot may begin for an app that is found at `at` (ms) (semantics H10)."""
        return min(at + max(1, ceil(self.times) - 1) * slot_s * 1000, MAX_MOMENT)


class _Short(NamedTuple):
    """A company or a user of it that gets too little."""

    got: Resources
    fair: dict[str, Fraction]
    """Its fair part by kind, where that is something."""
    within: bool = False
    """Whether it is a user."""


class Shortage:
    """Who is larger than its company's share, by one filling."""

    def __init__(self, state: ClusterState, entitled: Entitlement) -> None:
        self._state, self._entitled = state, entitled
        self._parts = [node for node in entitled.companies.values() if _taking_part(node)]
        self._weights: dict[tuple[str, str], Fraction] = {}
        """Department, "" = none, and kind -> the weights of those in it who take part, together."""
        self._short: dict[tuple[str, str, tuple[str, ...]], _Short | None] = {}
        """Company, user and further kinds -> which of the two is short, if one is."""
        self._rooms: Rooms | None = None
        self._fitting: dict[tuple[Resources, ...], bool] = {}

    def of(self, app: App) -> Larger | None:
        """How the app's next unit is larger than its share; None if it is not, or if a slot would not help.

        It found no room while its company gets less than half of its part of what is handed out; or it dropped out
        while its user gets less than half of its part of what the company gets, and is no larger than the company's
        fair part. It would fit beside drivers alone, below the cap.
        """
        node, leaf = self._entitled.companies.get(app.spec.company), self._entitled.leaves.get(app.id)
        if node is None or (leaf is not None and leaf.cause not in ("room", "cap")):
            return None
        leaf = leaf or leaf_of(self._state.fleet, app, ())  # one of the same size may have dropped out before it
        if leaf is None:
            return None
        short = self._shorts(node, app.spec.user, tuple([kind for kind, amount in leaf.amounts.others if amount]))
        if short is None or (leaf.cause == "cap" and not short.within) or not self._would_fit(node, leaf):
            return None
        asked = {kind: amount for kind, amount in leaf.amounts.by_kind().items() if amount}
        times = max([amount / short.fair[kind] if kind in short.fair else NEVER for kind, amount in asked.items()])
        if times >= NEVER or (short.within and times > len(_taking_part(node))):
            return None
        fair = Resources.of(**{kind: int(part) for kind, part in short.fair.items()})
        return Larger(amounts_in(leaf.amounts), short.got, fair, times, short.within)

    def fair_part(self, node: CompanyNode) -> Resources:
        """The fair part of the cluster that is the company's, of cores and memory, rounded down, within its caps."""
        total = self._state.fleet.total
        return Resources(int(self._due(node, "cores", total.cores)), int(self._due(node, "memory_mb", total.memory_mb)))

    def first(self, besides: Collection[str]) -> list[tuple[App, Larger]]:
        """Of each company, but of those `besides`, the first app that dropped out and is larger than its share."""
        found: dict[str, tuple[App, Larger]] = {}
        for leaf in self._entitled.dropped:
            app = self._state.apps[leaf.app]
            company = app.spec.company
            if company in found or company in besides:
                continue
            if (larger := self.of(app)) is not None and takes_part(self._state, app):
                found[company] = app, larger
        return list(found.values())

    def _shorts(self, node: CompanyNode, user: str, others: tuple[str, ...]) -> _Short | None:
        """The company if it is short, else its user if that is."""
        key = node.name, user, others
        if key not in self._short:
            self._short[key] = self._found_short(node, user, ("cores", "memory_mb", *others))
        return self._short[key]

    def _found_short(self, node: CompanyNode, user: str, kinds: tuple[str, ...]) -> _Short | None:
        total, users = self._state.fleet.total, _taking_part(node)
        fair = {kind: part for kind in kinds if (part := self._due(node, kind, _amount(total, kind)))}
        due = {kind: self._due(node, kind, self._handed(kind)) for kind in fair}
        if _gets_little(node.used, due):
            return _Short(node.used, fair)
        due = {kind: Fraction(_amount(node.used, kind), len(users)) for kind in fair}
        for each in users:
            if each.name == user and _gets_little(each.used, due):
                return _Short(each.used, {kind: part / len(users) for kind, part in fair.items()}, within=True)
        return None

    def _handed(self, kind: str) -> int:
        """What is handed out of it in all: of room that nobody can use nobody is short."""
        return sum([_amount(each.used, kind) for each in self._parts])

    def _due(self, node: CompanyNode | GroupNode, kind: str, whole: int) -> Fraction:
        """The part of that much which a company or a department is due, within the caps (semantics H12)."""
        above = node.above
        due = Fraction(whole) if above is None or above.above is None else self._due(above, kind, whole)
        part = due * self._part(node, kind)
        cap = (node.quota if node.capped else None) if isinstance(node, CompanyNode) else node.cap
        return min(part, self._weight(cap, kind)) if cap is not None and _names(cap, kind) else part

    def _part(self, node: CompanyNode | GroupNode, kind: str) -> Fraction:
        """Its weight as a part of the weights of all in the same department that take part in the filling."""
        side = "" if node.above is None else node.above.name
        whole = self._weights.get((side, kind))
        if whole is None:
            siblings: dict[str, CompanyNode | GroupNode] = {}
            for each in self._parts:
                child: CompanyNode | GroupNode = each
                while child.above is not None and child.above is not node.above:
                    child = child.above
                if child.above is node.above:
                    siblings[f"{isinstance(child, CompanyNode)}/{child.name}"] = child
            weights = [self._weight(each.quota, kind, _number(each)) for each in siblings.values()]
            whole = self._weights[side, kind] = sum(weights, Fraction(0))
        return self._weight(node.quota, kind, _number(node)) / whole if whole else Fraction(0)

    def _weight(self, quota: Quota, kind: str, companies: int = 1) -> Fraction:
        if _names(quota, kind):
            return Fraction(_amount(quota.amount, kind), quota.denominator)
        return Fraction(_amount(self._state.fleet.total, kind) * companies, len(self._entitled.companies))

    def _would_fit(self, node: CompanyNode, leaf: Leaf) -> bool:
        """Whether its next unit would pass if it were handed out before anything but drivers that stand."""
        drivers = drivers_of(self._state, node.name) if node.capped or leaf.starts else NOTHING
        if node.capped and not node.quota.covers(drivers, leaf.amounts):
            return False
        if node.above is not None:
            tree = tree_of(self._state, lambda each: drivers_of(self._state, each.spec.company))
            if not tree.passes(tree.of(self._state.companies[node.name].department), leaf.amounts):
                return False
        if leaf.starts and not may_start(node.quota, drivers, leaf.driver):
            return False
        unit = leaf.unit
        if unit not in self._fitting:
            if self._rooms is None:
                self._rooms = Rooms(self._entitled.offered)
            self._fitting[unit] = self._rooms.take_all(unit, back=True)
        return self._fitting[unit]


def _number(node: CompanyNode | GroupNode) -> int:
    """How many companies it is, for kinds that its quota does not name."""
    return 1 if isinstance(node, CompanyNode) else node.companies


def _taking_part(node: CompanyNode) -> list[UserNode]:
    """The users of the company that take part in the filling."""
    return [user for user in node.users if user.leaves]


def _names(quota: Quota, kind: str) -> bool:
    """Whether the quota says how much of the kind there is (semantics R4)."""
    return quota.named is None or kind in ("cores", "memory_mb") or kind in quota.named


def _gets_little(got: Resources, due: dict[str, Fraction]) -> bool:
    """Whether it gets less than half of what is due to it, of each kind."""
    return not any(0 < part * ENOUGH <= _amount(got, kind) for kind, part in due.items())


def _amount(of: Resources, kind: str) -> int:
    """The amount of any kind, cores and memory among them."""
    return of.by_kind().get(kind, 0)


def takes_part(state: ClusterState, app: App) -> bool:
    """Whether the app takes part in the filling (semantics H2)."""
    if app.over or not app.need.hostable or not (app.admitted or app.ready):
        return False
    if not (app.admitted or state.queue.companies[app.spec.company].limit.lets_in(app)):
        return False
    return wanted_units(app) > 0 or app.unplaced_driver is not NOTHING


def slots(state: ClusterState, entitled: Entitlement, at: int) -> Generator[Event, None, bool]:
    """Which slots end and begin at `at` (ms), and who awaits one; whether that calls for another filling (H10)."""
    slot_s = state.settings.slot_s
    if not (state.slots or slot_s):
        return False
    again = False
    for name, slot in list(state.slots.items()):
        if (slot.began and slot.until <= at) or not slot_s or not takes_part(state, state.apps[name]):
            again = again or slot.began > 0
            yield SlotEnded(app=name)
    if again or not slot_s:
        return again
    shortage = Shortage(state, entitled)
    due = _due(state, at)
    short = [app for app in due if shortage.of(app) is not None]
    for app in due:
        leaf = entitled.leaves.get(app.id)
        units = (0 if leaf is None else leaf.units) + (app in short) * (app.need.gang or 1)
        if not short or not units:
            yield SlotEnded(app=app.id)
        elif sum([slot.began > 0 for slot in state.slots.values()]) < most_targets(state) and _fits(
            state, entitled, app, units
        ):
            yield SlotBegan(app=app.id, units=units)
            return True
        else:
            break
    having = [state.apps[name].spec.company for name in state.slots]
    for app, larger in shortage.first(having):
        yield SlotAwaited(app=app.id, date=larger.awaits_until(at, slot_s))
    return False


def _due(state: ClusterState, at: int) -> list[App]:
    """Whose slots may begin, in the order in which they do: the first date, then admitted apps, then by readiness."""
    due = [state.apps[name] for name, slot in state.slots.items() if not slot.began and slot.date <= at]
    return sorted(due, key=lambda app: (state.slots[app.id].date, not app.admitted, app.admitted or app.ready_position))


def _fits(state: ClusterState, entitled: Entitlement, app: App, units: int) -> bool:
    """Whether so many units of the app would fit beside those of the slots that have begun, in an empty cluster."""
    rooms = Rooms(entitled.offered)
    for name, slot in state.slots.items():
        if slot.began and (leaf := entitled.leaves.get(name)) is not None:
            standing = [leaf.driver] if leaf.driven else []
            rooms.take_all(sorted([*standing, *[leaf.size] * min(leaf.units, slot.units)], reverse=True))
    leaf = entitled.leaves.get(app.id) or leaf_of(state.fleet, app, ())
    if leaf is None:
        return False
    driver = [] if leaf.driver is NOTHING else [leaf.driver]
    return rooms.take_all(sorted([*driver, *[leaf.size] * (0 if leaf.alone and driver else units)], reverse=True))
