"""Who enters, which drivers start and which executors are granted (semantics H4, H5).

Entitlements first, each time to whoever holds least of its weight; what is left is lent in the same order. Where
anything was decided the filling is asked again, so that a second turn without an input decides nothing: who enters
may move a tie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from scheduler.model.events import AppAdmitted, DriverAllocated, Event, ExecutorAllocated
from scheduler.model.ids import driver_id
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.turns import AppTurns, TreeTurns
from scheduler.rules.checks.kinds import with_addresses
from scheduler.rules.command.demand import given_back, grown
from scheduler.rules.command.failures import alike, has_room_now, kind_of, left_out, room_now
from scheduler.rules.command.windows import barring, sought_by, tries
from scheduler.rules.entities.labels import sought
from scheduler.rules.index.closings import ends_within
from scheduler.rules.placement.executors import PLACEMENTS, allocations
from scheduler.rules.share.demands import held_units, wanted_units
from scheduler.rules.share.entitlement import Entitlement, drivers_of, entitlement
from scheduler.rules.share.fill import level_of, may_start
from scheduler.rules.stage.caps import UnderCaps, is_bounded, placed
from scheduler.rules.stage.granting import admission, place
from scheduler.rules.stage.needs import ended_by_grant, needs, void
from scheduler.rules.stage.room import Fragments
from scheduler.rules.stage.slots import slots
from scheduler.rules.state.backfill import has_room_on_targets, later_dates, lending, rooms_lent

_LOOKED_BEHIND = 100
"""So many apps of a user that ask for the same are looked at where room is closed to the first until a time."""

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.fleet import Fleet
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.state.cluster import ClusterState


def shared(state: ClusterState, at: int) -> Iterator[Event]:
    """All that the third edition of sharing decides in a turn at `at` (ms); each event is folded before the next.

    A second turn without an input decides nothing (semantics H9).
    """
    while True:
        before = state.head
        entitled = entitlement(state)
        if (yield from slots(state, entitled, at)):
            continue
        yield from void(state, entitled, at)
        yield from _entering(state, entitled)
        yield from grown(state, at)
        yield from given_back(state, at)  # who stays after all may be one too many
        entered = state.head
        yield from _starting(state, entitled, at)
        if state.head != entered:
            continue  # drivers count where they stand
        yield from _up_to_entitlements(state, entitled, at)
        if state.head == before:
            yield from _lent(state, entitled, at)
        if state.head == before:
            yield from needs(state, entitled, at)
        if state.head == before:
            return


def _entering(state: ClusterState, entitled: Entitlement) -> Iterator[AppAdmitted]:
    """The pending apps that are entitled to a unit, in the order of C, U and F (semantics H4)."""
    if not state.queue.arrivals or not state.fleet.live:
        return
    names = entitled.leaves if entitled.whole else entitled.entering
    due = [app for name in names if not (app := state.apps[name]).admitted]
    due += state.queue.wanting_nothing()
    above = (lambda name: state.companies[name].above) if state.departments else None
    for app in state.queue.entering(due, above):
        if state.queue.companies[app.spec.company].limit.lets_in(app):  # now that others have entered
            yield admission(state, app)


def _starting(state: ClusterState, entitled: Entitlement, at: int) -> Iterator[Event]:
    """The drivers that their apps are entitled to, the lowest granted share first (semantics H5).

    They stand together: on the worker where drivers hold most, then in the room that fits best.
    """
    waiting = [app for app in state.indexes.drivers if app.tries.driver_after <= at and entitled.is_driven(app)]
    limit = state.settings.max_drivers
    order = _lowest_first(state, waiting)
    while (app := order.pop()) is not None:
        size = app.spec.driver or NOTHING
        if limit is not None and len(state.drivers) >= limit:
            return
        quota = state.queue.companies[app.spec.company].tenant.quota
        if not may_start(quota, drivers_of(state, app.spec.company), size):
            continue
        if is_bounded(state, app.spec.company) and not placed(state, app.spec.company).passes(size):
            continue
        worker = _home_of(state, app, size, at)
        if worker is not None:
            yield _driver(app, worker, size)
            yield from ended_by_grant(state, app.id, worker.id)


def _home_of(state: ClusterState, app: App, size: Resources, at: int) -> Worker | None:
    for without, demand in product(left_out(state, app, size, at), tries(state, app, at)):
        seeking = sought(size, demand)
        fitting = [
            worker
            for worker in state.workers.values()
            if worker.status == "alive"
            and worker.suspicion is None
            and worker.id not in without
            and worker.open_to(app.id).covers(size)
            and state.fleet.admits(worker.id, seeking)
        ]
        if fitting:
            own = sought_by(state, app, size, at)
            return min(fitting, key=lambda worker: _driver_rank(state.fleet, worker, app, own))
    return None


def _driver_rank(
    fleet: Fleet, worker: Worker, app: App, size: Resources
) -> tuple[bool, tuple[int, int], int, Resources, str]:
    own = any(hold.app == app.id for hold in worker.holds.values())
    rank = fleet.rank(worker.id, size, sparing=True)
    drivers = sum(driver.resources.cores for driver in worker.drivers.values())
    return not own, rank, -drivers, worker.free, worker.id


def _driver(app: App, worker: Worker, size: Resources) -> DriverAllocated:
    driver = driver_id(app.id, app.tries.next_driver)
    event = DriverAllocated(app=app.id, driver=driver, worker=worker.id, resources=size)
    return with_addresses(worker, event) if size.others else event


def _lowest_first(state: ClusterState, apps: Iterable[App]) -> AppTurns[tuple[str, tuple[str, ...]]] | TreeTurns:
    """Apps in the order of what their companies and users are granted, then admitted before pending ones (H5)."""
    if state.departments:
        return _lowest_in_tree(state, apps)
    total = state.fleet.total
    whole, unnamed = Quota(total), Quota(total, max(1, len(state.companies)))

    def of_company(app: App) -> int:
        tenant = state.queue.companies[app.spec.company].tenant
        return level_of(tenant.quota, unnamed, tenant.balance.granted, app.need.executor.others)

    return AppTurns(
        apps,
        side=lambda app: (app.spec.company, tuple([kind for kind, _ in app.need.executor.others])),
        company=of_company,
        user=lambda app: level_of(whole, unnamed, app.accounts[2].granted, app.need.executor.others),
        within=lambda app: (not app.admitted, app.admitted or app.ready_position),
    )


def _lowest_in_tree(state: ClusterState, apps: Iterable[App]) -> TreeTurns:
    """As `_lowest_first`, from the departments of the cluster down (semantics H12)."""
    total, number = state.fleet.total, max(1, len(state.companies))
    whole = Quota(total)

    def path(app: App) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        company, user = app.spec.company, app.spec.user
        kinds = tuple([kind for kind, _ in app.need.executor.others])
        above = [("", each.name, kinds) for each in reversed(state.companies[company].above)]
        return (*above, (company, "", kinds), (company, user, kinds))

    def place(name: tuple[str, str, tuple[str, ...]], app: App) -> int:
        company, other, _ = name
        others = app.need.executor.others
        if not company:
            each = state.departments[other]
            return level_of(each.quota, Quota(total * each.companies, number), each.balance.granted, others)
        if other:
            return level_of(whole, Quota(total, number), app.accounts[2].granted, others)
        tenant = state.queue.companies[company].tenant
        return level_of(tenant.quota, Quota(total, number), tenant.balance.granted, others)

    return TreeTurns(
        apps, path=path, place=place, within=lambda app: (not app.admitted, app.admitted or app.ready_position)
    )


def _up_to_entitlements(state: ClusterState, entitled: Entitlement, at: int) -> Iterator[Event]:
    """Executors up to entitlements, the lowest granted share first, one at a time if not all demand fits (H5)."""
    if not (state.holds or state.fleet.most_free_cores()):
        return
    below = [
        app
        for app in state.indexes.owed
        if app.need.executor.cores and entitled.missing(app) > 0 and not awaits_plan(app, entitled)
    ]
    whole = len(below) == 1 or entitled.whole or _takes_all_at_once(state)
    order = _lowest_first(state, below)
    in_vain: set[Hashable] = set()
    while (app := order.pop()) is not None:
        kind = None if app.holds else alike(state, app, at)
        if kind is not None and kind in in_vain:
            continue
        missing = entitled.missing(app)
        if missing <= 0:  # a grant ended the target for which one of its executors was to leave: that one stays
            continue
        placed = yield from _place(state, app, at, missing if whole or app.need.growing else 1)
        if placed and entitled.missing(app) > 0:
            order.push(app)
        elif not placed and kind is not None and not _may_fit(state, app, at):
            in_vain.add(kind)


def awaits_plan(app: App, entitled: Entitlement) -> bool:
    """Whether a gang that left by the plan gets what it is entitled to by targets alone, as the plan has it (G8)."""
    return app.planned and not app.holds and not entitled.whole and entitled.missing(app) > 0


def _may_fit(state: ClusterState, app: App, at: int) -> bool:
    """Whether the least executor of the app has room where it may be (semantics W14, H11)."""
    if app.need.gang:
        return has_room_now(state, app, at)
    lent, size = lending(state, app, at), sought_by(state, app, app.need.least, at)
    if not lent:
        return state.fleet.has_room(size)
    with state.seen_by(app, (), lent):
        return state.fleet.has_room(size)


def _takes_all_at_once(state: ClusterState) -> bool:
    """Whether an app gets one executor a worker, which cannot grow by a second one there (semantics P7)."""
    return PLACEMENTS[state.settings.placement].one_a_worker


def _place(
    state: ClusterState, app: App, at: int, number: int, held: UnderCaps | None = None
) -> Generator[Event, None, bool]:
    """Up to so many executors of the app beside what is `held`; whether any was granted."""
    size, company = app.need.executor, app.spec.company
    if held is None and is_bounded(state, company):
        held = placed(state, company)
    least = app.need.gang or 1
    number = max(number, least)
    while held is not None and number > least and not held.passes(size * number):
        number -= 1
    if held is not None and not held.passes(app.need.unit):
        return False
    granted = on_targets(state, app) if app.need.gang and app.holds else place(state, app, at, size * number)
    for event in granted:
        if event.resources.others:
            event = with_addresses(state.workers[event.worker], event)  # noqa: PLW2901
        yield event
        if not app.need.gang:
            yield from ended_by_grant(state, app.id, event.worker)
    for event in granted if app.need.gang else ():  # once it has all (semantics G8)
        yield from ended_by_grant(state, app.id, event.worker)
    return bool(granted)


def on_targets(state: ClusterState, app: App) -> list[ExecutorAllocated]:
    """The executors of a gang on its targets, once there is room for all of them (semantics G8)."""
    if app.executors or not has_room_on_targets(state, app):
        return []
    number = Counter([target.worker for target in app.holds.values()])
    return allocations(app, [*number.items()], app.need.executor)


def _lent(state: ClusterState, entitled: Entitlement, at: int) -> Iterator[Event]:
    """What is left, to whoever wants it, the lowest granted share first (semantics H5)."""
    if entitled.whole:
        return
    needed = Needed(state, entitled, at)
    again = True
    while again and (state.fleet.most_free_cores() or rooms_lent(state)):
        wanting = _wanting(state, entitled, at)
        whole = len(wanting) == 1 or _takes_all_at_once(state)
        order = _lowest_first(state, wanting)
        again = False
        while (app := order.pop()) is not None:
            if not has_room_now(state, app, at):
                continue
            passes, held = needed.beside(app.spec.company, app.need.unit)
            if not passes:
                continue
            if not app.admitted:
                if not state.queue.companies[app.spec.company].limit.lets_in(app):
                    continue
                again = True
                yield admission(state, app)
            number = wanted_units(app) - held_units(app) if whole or app.need.growing else 1
            placed = yield from _place(state, app, at, number, held)
            if placed and app.owed and wanted_units(app) > held_units(app):
                order.push(app)


def _wanting(state: ClusterState, entitled: Entitlement, at: int) -> list[App]:
    """The apps that can use more than they hold, and for which there is room now."""
    rooms: dict[Hashable, bool] = {}
    found = []
    for app in (*state.indexes.owed, *_heads(state, at)):
        if app.holds or not app.need.executor.cores:
            continue
        if not room_now(state, app, at, rooms):
            continue
        if wanted_units(app) > held_units(app) and not awaits_plan(app, entitled):
            found.append(app)
    return found


class Needed:
    """What counts in caps from its beginning, beside what is granted (semantics H5)."""

    def __init__(self, state: ClusterState, entitled: Entitlement, at: int) -> None:
        self._state, self._entitled, self._at = state, entitled, at
        self._found: dict[str, dict[str, Resources]] = {}

    def beside(self, company: str, size: Resources) -> tuple[bool, UnderCaps | None]:
        """Whether so much more passes the caps of the company beside what is needed, and what is held with that.

        What neither room nor a plan is there for does not count: it waits without a target (semantics H6).
        """
        state = self._state
        if not (state.keeping or is_bounded(state, company)):
            return True, None
        held = placed(state, company, keeping=state.keeping)
        if not held.passes(size):
            return False, None
        side = "" if state.departments else company
        needed = self._found.get(side)
        if needed is None:
            needed = self._found[side] = self._sums(side)
        for name, amounts in needed.items():
            held.add(name, amounts)
        return held.passes(size), held

    def _sums(self, side: str) -> dict[str, Resources]:
        """Company -> what its apps are below; of that one, or of all."""
        state, entitled, needed = self._state, self._entitled, dict[str, Resources]()
        fragments = Fragments(state, entitled, self._at)
        for app in state.wanting():
            units, company = entitled.missing(app), app.spec.company
            driver = app.unplaced_driver if entitled.is_driven(app) else NOTHING
            wants = (not side or company == side) and (units or driver is not NOTHING)
            if wants and not fragments.keep(app):
                needed[company] = needed.get(company, NOTHING) + app.need.executor * units + driver
        return needed


def _heads(state: ClusterState, at: int) -> list[App]:
    """The pending apps to which room may be lent: of each user the first ones by what they ask (semantics H4).

    Behind one that ends too late for it, the next that ends sooner (W14), also where targets lend a room that would do
    for it (H11).
    """
    found: list[App] = []
    rooms = dict.fromkeys(rooms_lent(state))
    fitting: dict[Resources, bool] = {}
    for line in state.queue.foremost():
        first = line.items[line.begin]
        found.append(first)
        least = first.need.least
        if rooms and least not in fitting:
            fitting[least] = bool([room for room in rooms if room.covers(least)])
        too_late = fitting.get(least, False) and later_dates(state, first, at) < len(state.indexes.targeted)
        if not (barring(state, first, at) or too_late):
            continue
        seen, lasting = {kind_of(state, first, at)}, {ends_within(state.settings, first, at)}
        for app in line.items[line.begin + 1 : line.begin + _LOOKED_BEHIND]:
            if (lasts := ends_within(state.settings, app, at)) in lasting:
                continue  # of one company, so the same windows keep it out
            lasting.add(lasts)
            if (kind := kind_of(state, app, at)) not in seen:
                seen.add(kind)
                found.append(app)
    return [app for app in found if app.spec.driver is None]
