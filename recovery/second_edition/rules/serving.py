"""Whom placement serves next, and who is admitted because room is left that nobody admitted can use (semantics P6, A9).

What one app gets, and where, is in `decide.place`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from recovery.second_edition.rules.admission.queue import reached
from recovery.second_edition.rules.decide import admission, admit, place
from recovery.second_edition.rules.demand import grown, withdrawn
from recovery.second_edition.rules.holds import ended_by_grant, void
from recovery.second_edition.rules.placement.classic import pack_worker_by_worker
from recovery.second_edition.rules.placement.drivers import place_drivers, within_driver_limits
from recovery.second_edition.rules.placement.executors import PLACEMENTS
from recovery.second_edition.rules.placement.sizing import size_now

if TYPE_CHECKING:
    from recovery.second_edition.rules.admission.queue import Ask
    from recovery.second_edition.rules.entities import App, Need
    from recovery.second_edition.rules.state import ClusterState
    from scheduler.model.events import AppAdmitted, Event, ExecutorAllocated
    from scheduler.model.resources import Resources

Grants = Iterator["list[ExecutorAllocated]"]


def served(state: ClusterState, at: int) -> Iterator[Event]:
    """What placement decides at time `at` (ms): executors, and who is admitted to fill what is left (P6, A9, Z1).

    Where grants are smaller than what was claimed for them, or an app's request follows the workers (S5), admission and
    demands come again until nobody enters (A3, L1). Drivers go first wherever room has come free since they were placed
    (D1). The caller folds each event before it asks for the next.
    """
    changed = again = False
    while True:
        if state.holds:
            before = state.head
            yield from void(state, at)
            again = again or state.head > before
        if again:
            yield from place_drivers(state, at)
        ended, claimed, begun = len(state.holds), state.claims.total.claimed, state.head
        for granted in placements(state, at):
            for event in granted:
                yield event
                if state.holds:
                    yield from ended_by_grant(state, event)
        placed = state.head
        changed = changed or state.claims.total.claimed != claimed or (placed > begun and bool(state.following()))
        yield from _entering(state, at, changed=changed)
        again = True
        if state.head > placed:
            changed = True
        elif len(state.holds) == ended and not (state.holds and any(void(state, at))):
            return


def _entering(state: ClusterState, at: int, *, changed: bool) -> Iterator[Event]:
    """Who enters once placement has nothing more to grant, and which demands rise (A9; A3, L1 if claims changed)."""
    entered = (admit(state) if changed and state.queue.arrivals else None) or fill(state)
    if entered is not None:
        yield entered
        if entered.lent:
            yield from withdrawn(state, entered)
    if changed or entered is not None:
        yield from grown(state, at)


def placements(state: ClusterState, at: int) -> Grants:
    """What placement grants at time `at` (ms), part by part (semantics P6).

    In three passes: what stays within a company's part; of companies that have not reached it, the one executor that
    takes them to it or beyond; the rest. Parts are those of the beginning. The caller folds each list before it asks
    for the next.
    """
    while state.owed.lists and (state.holds or state.fleet.most_free_cores()):
        before = state.head
        companies = state.owed.companies()
        if len(companies) > 1 and state.settings.admission == "fair":
            parts = {company: state.queue.part(company) for company in companies}
            yield from _within_parts(state, at, parts)
            yield from _to_parts(state, at, parts)
        yield from _the_rest(state, at)
        if state.head == before:
            return


def _within_parts(state: ClusterState, at: int, parts: dict[str, Resources]) -> Grants:
    """What stays within the company's part."""

    def wanted(app: App) -> bool:
        size = app.need.executor
        stays = size.cores and (parts[app.spec.company] - app.standings[1].held).suffices_for(size)
        return bool(stays) and has_room(state, app)

    for app in state.owed.serve(wanted):
        while granted := _placed(state, app, at, parts[app.spec.company] - app.standings[1].held):
            yield granted
            if not (app.owed and wanted(app)):
                break


def _to_parts(state: ClusterState, at: int, parts: dict[str, Resources]) -> Grants:
    """Of companies that have not reached their part, the one executor that takes them to it or beyond."""

    def wanted(app: App) -> bool:
        held, part = app.standings[1].held, parts[app.spec.company]
        return not reached(held, part) and bool(app.need.executor.cores) and has_room(state, app)

    for app in state.owed.serve(wanted):
        granted = _placed(state, app, at, app.need.executor)
        if granted:
            yield granted


def _the_rest(state: ClusterState, at: int) -> Grants:
    """Whatever there is room for."""

    def wanted(app: App) -> bool:
        return bool(app.need.least.cores) and has_room(state, app)

    if PLACEMENTS[state.settings.placement].across_apps and not state.holds:
        while granted := pack_worker_by_worker(state, list(state.owed.serve(wanted)), at):
            yield granted
        return
    for app in state.owed.serve(wanted):
        while app.owed and (granted := _placed(state, app, at)):
            yield granted


def _placed(state: ClusterState, app: App, at: int, most: Resources | None = None) -> list[ExecutorAllocated]:
    if not PLACEMENTS[state.settings.placement].across_apps:
        return place(state, app, at, most)
    with state.seen_by(app):
        return pack_worker_by_worker(state, [app], at, most)


def has_room(state: ClusterState, app: App) -> bool:
    """Whether a live worker has room for an executor of the app, be it held for it (semantics P8)."""
    return state.fleet.has_room(app.need.least) or (bool(app.holds) and state.fits_where_held(app))


def fill(state: ClusterState) -> AppAdmitted | None:
    """The app that is admitted although claims fill the cluster, because it can use room that is left (semantics A9).

    A company borrows here unless an app of another one has room now (C6). An app with a driver needs room for that,
    and for an executor besides.
    """
    if state.settings.admission == "open" or not state.queue.arrivals or not state.fleet.most_free_cores():
        return None
    known: dict[Need, bool] = {}

    def has_room(ask: Ask) -> bool:
        if ask.need not in known:
            known[ask.need] = _could_use(state, ask.need)
        return known[ask.need]

    if not any(map(has_room, state.queue.asks())):
        return None
    first = state.queue.next_that(has_room, able=has_room)
    return None if first is None else admission(state, first, filling=True)


def _could_use(state: ClusterState, need: Need) -> bool:
    """Whether placement would grant an executor to an app of that need if it were admitted now."""
    if need.executor.cores and not state.fleet.has_room(size_now(state.fleet, need)):
        return False
    if not need.driver.cores:
        return bool(need.executor.cores)
    return within_driver_limits(state, need.driver.cores) and state.fleet.has_room(need.driver)
