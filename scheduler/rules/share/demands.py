"""What each app can use: its demand in whole executors, from the facts of a state (semantics H2).

What takes no part: apps that are not ready or on hold, that a limit keeps out, that want nothing, or that no live
worker could host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from scheduler.model.events import Computed
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.labels import sought
from scheduler.rules.share.fill import Leaf

if TYPE_CHECKING:
    from scheduler.rules.admission.queue import Ask, CompanyQueue, UserQueue
    from scheduler.rules.entities.apps import App, Need
    from scheduler.rules.entities.fleet import Fleet
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.state.cluster import ClusterState


def pending(
    fleet: Fleet,
    queue: CompanyQueue,
    user: UserQueue,
    selected: tuple[int, int],
    besides: list[App],
    *,
    last: dict[Need, Leaf],
    after: App | None = None,
) -> Iterator[Leaf]:
    """The pending apps that may enter, in the order of F; of one size none after one that found no room.

    Not those `besides`, which have slots and count already. `last` gets the last one of each need. Where the company
    has no limits, only those behind the app `after`.
    """
    limit, name = queue.limit, user.contender.user
    limited = limit.limited
    asked, apps = sum([app.requested for app in besides], NOTHING), len(besides)

    def shut(ask: Ask) -> bool:
        before = last.get(ask.need)
        return not ask.need.hostable or (before is not None and before.cause != "")

    for app in user.in_order(shut, after):
        if app in besides:
            continue
        if limited and limit.broken(name, asked + app.requested, apps + 1) is not None:
            continue
        leaf = leaf_of(fleet, app, (1, *selected, app.ready_position))
        if leaf is not None:
            asked, apps = asked + app.requested, apps + 1
            last[app.need] = leaf
            yield leaf


def wanted_units(app: App) -> int:
    """How many of its smallest executors the app can use in all, those that it holds included (semantics H2).

    What it was granted may be smaller or larger than those that it gets next, where settings have changed since (A7).
    Of executors that it sizes itself none counts as it is: its demand would rise with what it loses, and fall again.
    Whether somebody was told to leave does not matter: else the filling would change with what is done for it.
    """
    need = app.need
    each = need.executor
    if not each.cores:
        return 0
    most = app.requested - (app.spec.driver or NOTHING)
    number = max(0, most.cores - app.done_cores) // each.cores
    if need.growing:
        return 0 if app.executor_limit == 0 else max(0, number)
    there = NOTHING
    if isinstance(app.sizing, Computed):
        there = app.granted if app.driver is None else app.granted - app.driver.resources
    units, left = there.cores // each.cores, most - there
    if each.memory_mb:
        number = min(number, units + left.memory_mb // each.memory_mb)
    for kind, amount in each.others:
        number = min(number, units + left.amount(kind) // amount)
    if app.executor_limit is not None:
        number = min(number, app.executor_limit)
    return max(0, number)


def may_have_another(app: App) -> bool:
    """Whether the app may have a further executor beside those that it holds, by its limit and the memory it requests.

    Where executors take what cores there are, one may have fewer than a unit for the memory of a whole one, and counts
    as one (semantics A2, P4, P7).
    """
    if app.left_executors <= 0 and app.leaving is NOTHING:
        return False
    each = app.need.executor.cores
    whole = not app.need.growing and (isinstance(app.sizing, Computed) or not each or staying_of(app).cores % each == 0)
    return whole or (app.left_executors > 0 and app.affords(app.need.executor) > 0)


def held_units(app: App) -> int:
    """How many of its smallest executors those make that it holds and that were not told to leave."""
    each = app.need.executor.cores
    if not each:
        return sum(one.status != "stopping" for one in app.executors.values())
    return staying_of(app).cores // each


def staying_of(app: App) -> Resources:
    """What the executors of the app hold that were not told to leave."""
    if not app.executors:
        return NOTHING
    driver = app.driver
    held = app.granted - app.leaving
    return held if driver is None or driver.status == "stopping" else held - driver.resources


def units_of(app: App, executor: Allocation) -> int:
    """How many of the app's smallest executors one of its executors makes, at least one."""
    each = app.need.executor.cores
    return max(1, executor.resources.cores // each) if each else 1


def admitted_leaf(state: ClusterState, app: App) -> Leaf | None:
    """The demand of an app in waitingApps; None if it wants nothing.

    An executor that leaves by the plan counts as held where shares are equal (semantics H3): its app gets it back, and
    else its unit would go to another app while it leaves, and come back once it need not leave.
    """
    if app.over or not app.need.hostable:
        return None
    leaf = leaf_of(state.fleet, app, (0, app.admitted))
    if leaf is not None and app.leaving is not NOTHING:
        leaf.held += sum([units_of(app, one) for one in app.executors.values() if _returns(state, one)])
    return leaf


def _returns(state: ClusterState, executor: Allocation) -> bool:
    """Whether the executor leaves by the plan (semantics H6)."""
    hold = state.holds.get(executor.claim) if executor.status == "stopping" else None
    return hold is not None and hold.reason == "plan"


def leaf_of(fleet: Fleet, app: App, rank: tuple[int, ...]) -> Leaf | None:
    """The demand of an app that goes by `rank` where shares are equal; None if it wants nothing."""
    most, driver = wanted_units(app), app.unplaced_driver
    if not most and driver is NOTHING:
        return None
    elastic = app.spec.elastic
    least = most if elastic is None else min(most, elastic.least)
    demand = app.need.demand
    driver = seeking(app)[1]
    alone = driver is not NOTHING and not _stand_together(fleet, driver, sought(app.need.executor, demand), demand)
    size = size_of(app)
    gang = app.need.gang > 0
    return Leaf(app.id, size, most, least, driver=driver, alone=alone, held=held_units(app), rank=rank, gang=gang)


def size_of(app: App) -> Resources:
    """The size of an executor in the filling: of growing ones cores alone count (semantics H2)."""
    size = seeking(app)[0]
    return Resources(size.cores, 0, size.others) if app.need.growing else size


def seeking(app: App) -> tuple[Resources, Resources]:
    """The app's executor, and its driver while that waits, with what they demand of workers (semantics P9)."""
    need, driver = app.need, app.unplaced_driver
    if not need.demand:
        return need.executor, driver
    return sought(need.executor, need.demand), driver if driver is NOTHING else sought(driver, need.demand)


def _stand_together(fleet: Fleet, driver: Resources, size: Resources, demand: str) -> bool:
    """Whether the live workers could host a driver and an executor at once, if they were empty."""
    if fleet.could_host(sought(driver + size, demand)):
        return True
    several = fleet.hosts(driver) + fleet.hosts(size) > 2
    return several or not fleet.could_host(sought(driver.combined(size, max), demand))
