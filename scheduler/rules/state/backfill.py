"""Backfill: what surely ends before a target's date uses its room until then (semantics H11)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.labels import sought
from scheduler.rules.index.closings import ends_within, leaving_ms

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Hold
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.state.facts import Facts

STARTS_WITHIN = 4
"""So many times `worker_timeout_s` an executor has to start: its app's runtime counts from then on (semantics X1)."""
MOST = 16
"""The room of so many targets is lent to one app, those with the latest dates."""


def later_dates(state: Facts, app: App, at: int) -> int:
    """How many apps with targets have dates before which all has ended that the app gets at `at` (ms)."""
    if app.max_runtime_s is None or not state.settings.backfill:
        return 0
    dates = state.indexes.targeted.groups.get("")
    if dates is None:
        return 0
    return len(dates) - bisect_left(dates, (at + _starting_ms(state) + ends_within(state.settings, app, at), ""))


def _starting_ms(state: Facts) -> int:
    return STARTS_WITHIN * state.settings.worker_timeout_s * 1000


def longest_s(state: Facts, app: App, closed: Collection[str], at: int) -> int:
    """With which maximum runtime (s), at most, the app would get room of a target now; 0 with none.

    Not on workers that are `closed` to it, nor before its driver runs.
    """
    if not state.settings.backfill or app.unplaced_driver is not NOTHING:
        return 0
    least, found, besides = sought(app.need.least, app.need.demand), 0, _starting_ms(state)
    besides += leaving_ms(state.settings, app)
    for hold, room in _incomplete(state, state.holds.values()):
        usable = hold.app != app.id and hold.worker not in closed and state.fleet.admits(hold.worker, least)
        if usable and room.covers(app.need.least):
            found = max(found, (date_of(state, hold) - at - besides) // 1000)
    return found


def lending(state: Facts, app: App, at: int) -> list[Hold]:
    """The targets of others whose room the app may use at `at` (ms), since it ends before their dates.

    Not those whose room is complete: their apps can have it now.
    """
    number = later_dates(state, app, at)
    if not number:
        return []
    targeted = state.indexes.targeted
    dates, found = targeted.groups[""], []
    for index in range(len(dates) - 1, len(dates) - 1 - number, -1):
        other = targeted.members[dates[index]]
        if other is not app:
            found += [hold for hold, _ in _incomplete(state, other.holds.values())]
        if len(found) >= MOST:
            break
    return found[:MOST]


def _incomplete(state: Facts, holds: Iterable[Hold]) -> list[tuple[Hold, Resources]]:
    """The targets that lack some of their room, and what is free there; those of a gang lack it all together (G8)."""
    found: list[tuple[Hold, Resources]] = []
    together: dict[str, bool] = {}
    for hold in holds:
        worker, app = state.workers.get(hold.worker), state.apps.get(hold.app)
        if app is None or worker is None or worker.status != "alive" or worker.free == NOTHING:
            continue
        if not app.spec.gang:
            complete = worker.free.covers(hold.amounts)
        elif app.id in together:
            complete = together[app.id]
        else:
            complete = together[app.id] = has_room_on_targets(state, app)
        if not complete:
            found.append((hold, worker.free))
    return found


def has_room_on_targets(state: Facts, app: App) -> bool:
    """Whether there is room for all executors of a gang where its targets are (semantics G8)."""
    for name, number in Counter([target.worker for target in app.holds.values()]).items():
        worker = state.workers.get(name)
        if worker is None or not worker.open_to(app.id).covers(app.need.executor * number):
            return False
    return True


def rooms_lent(state: Facts) -> list[Resources]:
    """What is free where targets are, which they may lend."""
    if not state.settings.backfill:
        return []
    return [room for _, room in _incomplete(state, state.holds.values())]


def lent_on(state: Facts, worker: Worker, app: App) -> list[int]:
    """The targets on the worker before whose dates the app would end if it began now."""
    if app.max_runtime_s is None or not state.settings.backfill:
        return []
    ends = state.at + ends_within(state.settings, app, state.at)
    return [hold.id for hold in worker.holds.values() if hold.app in state.apps and ends <= date_of(state, hold)]


def date_of(state: Facts, hold: Hold) -> int:
    """When (ms) who leaves for the target leaves at the latest (semantics H7)."""
    return state.apps[hold.app].lack.date


def ending_by(state: Facts, worker: Worker, date: int, at: int) -> Resources:
    """What executors on the worker have that were not told to leave and surely end by that date (ms)."""
    found = NOTHING
    for one in worker.executors.values() if state.settings.backfill else ():
        app = state.apps[one.app]
        limited = one.status != "stopping" and app.max_runtime_s is not None
        if limited and at + ends_within(state.settings, app, at) <= date:
            found += one.resources
    return found
