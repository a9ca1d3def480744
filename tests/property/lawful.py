"""What a claim may take, and how much, by what the facts say: no index is asked (semantics E1-E3, E6, E7)."""

from __future__ import annotations

from scheduler.model.events import DriverAllocated, Event, ExecutorAllocated, ExecutorRevoked, RoomHeld
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.queue import reached
from scheduler.rules.share.entitlement import entitlement, held_units
from scheduler.rules.state import ClusterState
from tests.property import reference


def is_lawful(state: ClusterState, event: Event) -> None:
    """Check a claim, or a loss, just before it is folded (semantics E1-E3, E7)."""
    if isinstance(event, RoomHeld) and event.reason == "reclaim":
        is_owed(state, event)
    if isinstance(event, ExecutorRevoked) and event.why is not None:
        leaves_for_a_need(state, event)
    elif isinstance(event, ExecutorRevoked) and event.reason == "reclaimed":
        may_be_taken(state, event)
        within_part(state, event)


def is_owed(state: ClusterState, event: RoomHeld) -> None:
    """The claimant is owed an executor more than it claims, and its company lacks it to its part (semantics E1, E6)."""
    app = state.apps[event.app]
    company, claims = app.spec.company, [hold for hold in state.holds.values() if hold.reason == "reclaim"]
    assert reference.still(state, app)[0] >= event.amounts.cores * (1 + sum(one.app == event.app for one in claims))
    assert event.amounts == app.need.executor, event
    if not event.within:
        ours = sum((one.amounts for one in claims if state.apps[one.app].spec.company == company), NOTHING)
        assert not reached(held_by(state, company) + ours, state.queue.part(company)), event


def may_be_taken(state: ClusterState, event: ExecutorRevoked) -> None:
    """The executor may leave for the claimant, but for the parts (semantics E2)."""
    executor, worker = state.executors[event.executor], state.workers[event.worker]
    assert executor.status != "stopping", event
    assert worker.status == "alive", event
    assert event.app != event.claimant, event
    assert all(hold.app == event.claimant for hold in worker.holds.values()), event
    if state.settings.reclaim == "firm":
        assert state.at - executor.granted_at >= state.settings.min_runtime_s * 1000, event


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


def held_by(state: ClusterState, company: str, *, leaving: bool = True) -> Resources:
    """What executors and drivers of the company hold on live workers, with or without those that leave for claims."""
    apps = (app for app in state.apps.values() if app.spec.company == company)
    held = (one for app in apps for one in app.allocations() if state.workers[one.worker].status == "alive")
    return sum((one.resources for one in held if leaving or one.claim not in state.holds), NOTHING)


def within_part(state: ClusterState, event: ExecutorRevoked) -> None:
    """What is taken was beyond the loser's part; by E3 at least what the claimant needs was (semantics E2, E3)."""
    executor, loser = state.executors[event.executor], state.apps[event.app].spec.company
    held = held_by(state, loser, leaving=False)
    part = state.queue.part(loser)
    claimed = state.holds[event.hold].amounts
    if event.rule == "E2":
        assert reached(held - executor.resources, part), event
        assert loser != event.claimant_company, event
    elif event.rule == "E3":
        assert reached(held, part), event
        beyond = (held - part).by_kind()
        assert any(beyond.get(kind, 0) >= asked for kind, asked in claimed.by_kind().items() if asked), event
    else:
        app = state.apps[event.app]
        going_on = sum(one.status != "stopping" for one in app.executors.values())
        assert app.spec.elastic is not None, event
        assert going_on > app.spec.elastic.least, event
        assert loser == event.claimant_company, event


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
