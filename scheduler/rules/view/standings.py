"""How everybody stands by the third edition of sharing, as views and explanations show it (semantics H)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.share.demands import may_have_another, wanted_units
from scheduler.rules.share.entitlement import Entitlement, entitlement

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState


class Standing(NamedTuple):
    """What an app, a user or a company wants, is entitled to and holds; executors that leave are not held."""

    demand: Resources = NOTHING
    entitled: Resources = NOTHING
    held: Resources = NOTHING
    leaving: Resources = NOTHING
    lent: Resources = NOTHING
    """What its apps hold above their entitlements."""
    below: Resources = NOTHING
    """What its apps hold less than their entitlements."""

    def plus(self, other: Standing) -> Standing:
        """Both together."""
        return Standing(*[mine + theirs for mine, theirs in zip(self, other, strict=True)])


NOWHERE = Standing()
Side = tuple[str, str]
"""A company and a user of it, "" for the company itself; "" and a department."""


def standing_of(app: App, entitled: Entitlement) -> Standing:
    """How one app stands; its driver, which stays, counts as entitled while it stands (semantics H2).

    It is below only where it may have another executor.
    """
    standing_driver = NOTHING if app.driver is None else app.driver.resources
    waiting = app.unplaced_driver if app.ready and not app.over else NOTHING
    driver_due = waiting if entitled.is_driven(app) else NOTHING
    due = _amounts(app, entitled.units(app)) + standing_driver + driver_due
    held = leaving = NOTHING
    for one in app.executors.values():
        if one.status == "stopping":
            leaving += one.resources
        else:
            held += one.resources
    held += standing_driver
    wanted = NOTHING
    if app.ready and not app.over and app.need.hostable:
        wanted = _amounts(app, wanted_units(app)) + waiting
    demand = wanted + standing_driver
    most = due if may_have_another(app) else held + driver_due
    return Standing(demand, due, held, leaving, (held - due).at_least(NOTHING), (most - held).at_least(NOTHING))


def usable(app: App) -> Resources:
    """What an app could hold now: its demand with its driver, and what it holds where it may have no more (H2)."""
    if app.over:
        return app.granted
    if app.spec.cores is None:  # unlimited
        return app.requested
    if not may_have_another(app):
        return app.granted + app.unplaced_driver
    return _amounts(app, wanted_units(app)) + (app.spec.driver or NOTHING)


def _amounts(app: App, units: int) -> Resources:
    """So many of its smallest executors; of growing ones the memory is at most what it requests (semantics S5)."""
    found = app.need.executor * units
    if not app.need.growing:
        return found
    requested = app.requested - (app.spec.driver or NOTHING)
    return Resources(found.cores, min(found.memory_mb, requested.memory_mb), found.others)


def standings(state: ClusterState, entitled: Entitlement | None = None) -> dict[Side, Standing]:
    """How each company and each of its users stands, by the filling of the state as it is (semantics H2)."""
    entitled = entitlement(state) if entitled is None else entitled
    found: dict[Side, Standing] = {}
    for app in _taking_part(state):
        standing = standing_of(app, entitled)
        sides = [(app.spec.company, ""), (app.spec.company, app.spec.user)]
        if state.departments and app.spec.company in state.companies:
            sides += [("", each.name) for each in state.companies[app.spec.company].above]
        for side in sides:
            found[side] = found.get(side, NOWHERE).plus(standing)
    return found


def _taking_part(state: ClusterState) -> Iterator[App]:
    """The apps that want something or hold something."""
    for app in state.apps.values():
        if app.ended is None or app.executors or app.driver is not None:
            yield app


def granted_live(state: ClusterState) -> dict[str, Resources]:
    """Company -> what it is granted on live workers."""
    found = {name: company.balance.granted for name, company in state.companies.items()}
    for worker in state.workers.values():
        if worker.status != "alive":
            for held in (*worker.executors.values(), *worker.drivers.values()):
                company = state.apps[held.app].spec.company
                found[company] = found.get(company, NOTHING) - held.resources
    return found
