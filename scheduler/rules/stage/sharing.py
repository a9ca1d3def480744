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
from scheduler.rules.backfill import later_dates, lending, rooms_lent
from scheduler.rules.closings import ends_within
from scheduler.rules.decide import admission, place
from scheduler.rules.demand import grown
from scheduler.rules.failures import alike, has_room_now, kind_of, left_out, room_now
from scheduler.rules.kinds import with_addresses
from scheduler.rules.labels import sought
from scheduler.rules.placement.executors import PLACEMENTS, allocations
from scheduler.rules.share.demands import held_units, wanted_units
from scheduler.rules.share.entitlement import Entitlement, drivers_of, entitlement
from scheduler.rules.share.fill import level_of, may_start
from scheduler.rules.stage.needs import ended_by_grant, needs, void
from scheduler.rules.stage.room import Fragments, passes_cap
from scheduler.rules.stage.slots import slots
from scheduler.rules.turns import AppTurns
from scheduler.rules.windows import barring, sought_by, tries

_LOOKED_BEHIND = 100
"""So many apps of a user that ask for the same are looked at where room is closed to the first until a time."""

if TYPE_CHECKING:
    from scheduler.rules.entities import App, Worker
    from scheduler.rules.fleet import Fleet
    from scheduler.rules.state import ClusterState


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
        yield from _starting(state, entitled, at)
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
    for app in state.queue.entering(due):
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
        if not within_cap(state, app.spec.company, size):
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


def within_cap(state: ClusterState, company: str, size: Resources, needed: Resources = NOTHING) -> bool:
    """Whether a company may be granted that much more, beside what is needed for others of it (semantics H1, H5)."""
    if state.companies[company].spec.may_borrow:
        return True
    return passes_cap(state, company, below_cap(state, company) + needed, size)


def below_cap(state: ClusterState, company: str) -> Resources:
    """What of its grants counts in a company's cap: what changes its place counts once (semantics H1, H6)."""
    return state.companies[company].balance.granted - moving_of(state, company)


def moving_of(state: ClusterState, company: str) -> Resources:
    """What executors of the company have that change their place: they are held twice for a while (semantics H6)."""
    return sum(
        (
            one.resources
            for hold in state.holds.values()
            for one in hold.leaving.values()
            if one.moved and state.apps[one.app].spec.company == company
        ),
        NOTHING,
    )


def _lowest_first(state: ClusterState, apps: Iterable[App]) -> AppTurns[tuple[str, tuple[str, ...]]]:
    """Apps in the order of what their companies and users are granted, then admitted before pending ones (H5)."""
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
        placed = yield from _place(state, app, at, missing if whole or app.need.growing else 1)
        if placed and missing > 0 and entitled.missing(app) > 0:
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
    state: ClusterState, app: App, at: int, number: int, needed: Resources = NOTHING
) -> Generator[Event, None, bool]:
    """Up to so many executors of the app; whether any was granted."""
    size, company = app.need.executor, app.spec.company
    held = below_cap(state, company) + needed
    least = app.need.gang or 1
    number = max(number, least)
    while number > least and not passes_cap(state, company, held, size * number):
        number -= 1
    if not passes_cap(state, company, held, app.need.unit):
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
    if app.executors:
        return []
    number = Counter([target.worker for target in app.holds.values()])
    size = app.need.executor
    for name, each in number.items():
        if not state.workers[name].open_to(app.id).covers(size * each):
            return []
    return allocations(app, [*number.items()], size)


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
            others = needed.of(app.spec.company, app.need.unit)
            if others is None:
                continue
            if not app.admitted:
                if not state.queue.companies[app.spec.company].limit.lets_in(app):
                    continue
                again = True
                yield admission(state, app)
            number = wanted_units(app) - held_units(app) if whole or app.need.growing else 1
            placed = yield from _place(state, app, at, number, others)
            if placed and app.owed and wanted_units(app) > held_units(app):
                order.push(app)


def _wanting(state: ClusterState, entitled: Entitlement, at: int) -> list[App]:
    """The apps that can use more than they hold, and for which there is room now."""
    rooms: dict[Hashable, bool] = {}
    found = []
    for app in (*state.indexes.owed, *_heads(state, at)):
        if app.holds or not app.need.executor.cores:
            continue
        if wanted_units(app) <= held_units(app) or awaits_plan(app, entitled):
            continue
        if room_now(state, app, at, rooms):
            found.append(app)
    return found


class Needed:
    """What counts in the caps of companies from its beginning, beside what they are granted (semantics H5)."""

    def __init__(self, state: ClusterState, entitled: Entitlement, at: int) -> None:
        self._state, self._entitled, self._at = state, entitled, at
        self._of: dict[str, Resources] = {}

    def of(self, company: str, size: Resources) -> Resources | None:
        """What apps of the company are below their entitlements; None if so much more would pass its cap beside that.

        What neither room nor a plan is there for does not count: it waits without a target (semantics H6).
        """
        state = self._state
        if state.companies[company].spec.may_borrow:
            return NOTHING
        if not within_cap(state, company, size):
            return None
        needed = self._of.get(company)
        if needed is None:
            needed = self._of[company] = self._sum(company)
        return needed if within_cap(state, company, size, needed) else None

    def _sum(self, company: str) -> Resources:
        state, entitled, needed = self._state, self._entitled, NOTHING
        fragments = Fragments(state, entitled, self._at)
        for app in state.wanting():
            units = entitled.missing(app)
            driver = app.unplaced_driver if entitled.is_driven(app) else NOTHING
            wants = app.spec.company == company and (units or driver is not NOTHING)
            if wants and not fragments.keep(app):
                needed += app.need.executor * units + driver
        return needed


def _heads(state: ClusterState, at: int) -> list[App]:
    """The pending apps to which room may be lent: of each user the first ones by what they ask (semantics H4).

    Behind one for which it ends too late, the next that ends sooner (W14, H11).
    """
    found: list[App] = []
    rooms = rooms_lent(state)
    for line in state.queue.foremost():
        first = line.items[line.begin]
        found.append(first)
        if not (barring(state, first, at) or _ends_too_late(state, first, rooms, at)):
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


def _ends_too_late(state: ClusterState, app: App, rooms: list[Resources], at: int) -> bool:
    """Whether one of those rooms, which targets lend, would do for the app if it ended sooner (semantics H11)."""
    for room in rooms:
        if room.covers(app.need.least):
            return later_dates(state, app, at) < len(state.indexes.targeted)
    return False
