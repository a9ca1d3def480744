"""What a need may take, and what a company may be granted, by what the facts say (semantics H1, H6, H7)."""

from __future__ import annotations

from scheduler.model.events import DriverAllocated, Event, ExecutorAllocated, ExecutorRevoked
from scheduler.model.resources import NOTHING
from scheduler.rules.share.demands import held_units
from scheduler.rules.share.entitlement import entitlement
from scheduler.rules.state import ClusterState


def leaves_for_a_need(state: ClusterState, event: ExecutorRevoked) -> None:
    """Its claimant is below; a surplus is above what its app, its user or its company is entitled to (H6, H7)."""
    entitled, claimant = entitlement(state), state.apps[event.claimant or ""]
    app, executor = state.apps[event.app], state.executors[event.executor]
    assert entitled.below(claimant) > 0, event
    assert (event.deadline or 0) >= state.at, event
    assert executor.status != "stopping", event
    assert event.app != event.claimant, event
    if event.why in ("surplus", "cap") and held_units(app) <= entitled.units(app):
        user = app.spec.user if app.spec.company == claimant.spec.company else ""
        held, due = entitled.sides(state)[app.spec.company, user]
        assert not due.covers(held), event


def within_cap(state: ClusterState, event: Event) -> None:
    """A company that may not borrow is granted nothing beyond its quota, but what changes its place (H1, H6)."""
    if not isinstance(event, ExecutorAllocated | DriverAllocated):
        return
    app = state.apps[event.app]
    company = state.companies[app.spec.company]
    if not state.by_entitlement or company.spec.may_borrow:
        return
    if app.moving.covers(app.granted - app.moving + event.resources):
        return
    theirs = (app for app in state.apps.values() if app.spec.company == company.spec.company)
    moving = sum((app.moving for app in theirs), NOTHING)
    quota = state.queue.companies[company.spec.company].tenant.quota
    assert quota.covers(company.balance.granted - moving, event.resources), event
