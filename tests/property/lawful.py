"""What a need may take, and what a company may be granted, by what the facts say (semantics H1, H6, H7)."""

from __future__ import annotations

from fractions import Fraction

from scheduler.model.events import DriverAllocated, Event, ExecutorAllocated, ExecutorRevoked
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.apps import App
from scheduler.rules.share.demands import held_units
from scheduler.rules.share.entitlement import Entitlement, _unhindered, filling
from scheduler.rules.state.cluster import ClusterState


def entitled_amid(state: ClusterState) -> Entitlement:
    """What everybody is entitled to amid a turn, made anew: the one that the turn goes by would become this one."""
    return _unhindered(state) or filling(state)[0]


def leaves_for_a_need(state: ClusterState, event: ExecutorRevoked) -> None:
    """Its claimant is below; a surplus is above what its app, its user or its company is entitled to (H6, H7)."""
    entitled, claimant = entitled_amid(state), state.apps[event.claimant or ""]
    app, executor = state.apps[event.app], state.executors[event.executor]
    assert entitled.below(claimant) > 0, event
    assert (event.deadline or 0) >= state.at, event
    assert executor.status != "stopping", event
    assert event.app != event.claimant, event
    if event.why in ("surplus", "cap") and held_units(app) <= entitled.units(app):
        side = side_of(app, claimant, state)
        held, due = entitled.side(state, side)
        assert not due.covers(held), event
        assert (held, due) == added_up(state, entitled, side), side
    above = {app.id for app in state.waiting.values() if not app.over and entitled.surplus(app) > 0}
    assert {app.id for app in entitled.above(state)} == above, event


def added_up(state: ClusterState, entitled: Entitlement, side: tuple[str, str]) -> tuple[Resources, Resources]:
    """What is held on that side and stays, with what is coming, and what is due to it: app by app."""
    company, name = side
    held = due = NOTHING
    for app in state.waiting.values():
        ours = app.spec.company == company and name in ("", app.spec.user)
        if ours or (not company and name in departments_above(state, app.spec.company)):
            executors = [one.resources for one in app.executors.values() if one.status != "stopping"]
            coming = [state.holds[target].amounts for target in app.holds] if app.driver_runs else []
            held += sum([*executors, *coming], NOTHING)
            due += app.need.executor * entitled.units(app)
    return held, due


def side_of(app: App, claimant: App, state: ClusterState) -> tuple[str, str]:
    """The user, the company or the department of the app that is the largest in which the claimant is not."""
    if app.spec.company == claimant.spec.company:
        return app.spec.company, app.spec.user
    theirs = departments_above(state, claimant.spec.company)
    others = [name for name in departments_above(state, app.spec.company) if name not in theirs]
    return ("", others[-1]) if others else (app.spec.company, "")


def within_cap(state: ClusterState, event: Event) -> None:
    """Nothing is granted beyond a cap, or out of what others keep, but what changes its place (H1, H6, H12)."""
    within_quota(state, event)
    within_departments(state, event)


def _adds(state: ClusterState, event: Event) -> bool:
    """Whether it is a grant by entitlement that does not only change the place of something."""
    if not isinstance(event, ExecutorAllocated | DriverAllocated) or not state.by_entitlement:
        return False
    app = state.apps[event.app]
    return not app.moving.covers(event.resources)


def within_quota(state: ClusterState, event: Event) -> None:
    """A company that may not borrow is granted nothing beyond its quota, but what changes its place (H1, H6)."""
    if not isinstance(event, ExecutorAllocated | DriverAllocated) or not _adds(state, event):
        return
    company = state.companies[state.apps[event.app].spec.company]
    if not company.spec.may_borrow:
        quota = state.queue.companies[company.spec.company].tenant.quota
        assert quota.covers(held_in(state, {company.spec.company}), event.resources), event


def within_departments(state: ClusterState, event: Event) -> None:
    """No department passes its cap, and nothing is lent that another one keeps (semantics H12)."""
    if not state.departments or not isinstance(event, ExecutorAllocated | DriverAllocated) or not _adds(state, event):
        return
    app = state.apps[event.app]
    company = app.spec.company
    for name in departments_above(state, company):
        spec = state.departments[name].spec
        if spec.borrow_limit is not None:
            cap = quota_in(state, name) * (1 + Fraction(spec.borrow_limit))
            held = held_in(state, companies_in(state, name)) + event.resources
            assert held.cores <= cap, (name, event)
    if (
        any(kept_of(state, name) for name in state.departments)
        and isinstance(event, ExecutorAllocated)
        and held_units(app) >= entitled_amid(state).units(app)
    ):
        before, after = (kept_and_held(state, company, more) for more in (0, event.resources.cores))
        assert after <= max(before, Fraction(state.fleet.total.cores)), (before, event)


def companies_in(state: ClusterState, department: str) -> set[str]:
    """The companies that are anywhere in the department; all, if it has no name."""
    return {name for name in state.companies if not department or department in departments_above(state, name)}


def departments_above(state: ClusterState, company: str) -> list[str]:
    """The departments in which the company is, from the facts alone."""
    found, name = list[str](), state.companies[company].department
    while name:
        found.append(name)
        name = state.departments[name].spec.parent
    return found


def held_in(state: ClusterState, companies: set[str]) -> Resources:
    """What their apps are granted, what changes its place counted once."""
    theirs = [app for app in state.apps.values() if app.spec.company in companies]
    return sum([app.granted - app.moving for app in theirs], NOTHING)


def quota_in(state: ClusterState, department: str) -> Fraction:
    """The cores of the department's quota (semantics H12)."""
    spec = state.departments[department].spec
    if spec.amounts is not None:
        return Fraction(spec.amounts.cores)
    if spec.part is not None:
        return state.fleet.total.cores * Fraction(spec.part)
    own = [state.quota(name) for name, each in state.companies.items() if each.department == department]
    within = [quota_in(state, name) for name, each in state.departments.items() if each.spec.parent == department]
    return sum([Fraction(each.amount.cores, each.denominator) for each in own], Fraction(0)) + sum(within)


def kept_of(state: ClusterState, department: str) -> int:
    """The cores that the department keeps for itself by its lend limit (semantics H12)."""
    limit = state.departments[department].spec.lend_limit
    return 0 if limit is None else int(quota_in(state, department) * (1 - Fraction(limit)))


def kept_and_held(state: ClusterState, company: str, more: int) -> Fraction:
    """The cores that are held, those that the company gets `more` among them, and that are kept and not held."""
    own = departments_above(state, company)

    def kept(name: str) -> Fraction:
        within = sum([kept(one) for one, each in state.departments.items() if each.spec.parent == name], Fraction(0))
        if not name or state.departments[name].spec.lend_limit is None:
            return within
        used = held_in(state, companies_in(state, name)).cores + (more if name in own else 0)
        return max(within, Fraction(kept_of(state, name)) - used)

    return held_in(state, {*state.companies}).cores + more + kept("")
