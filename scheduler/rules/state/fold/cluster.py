"""What events of the cluster, its companies and the log itself change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from scheduler.model import events
from scheduler.model.events import ClusterConfigured, CommandRefused, CompanyRegistered, Event
from scheduler.rules.entities.companies import Company, Department
from scheduler.rules.entities.ledger import Usage
from scheduler.rules.entities.master import Election
from scheduler.rules.placement.sizing import executor_sizes
from scheduler.rules.state.facts import Facts
from scheduler.rules.state.fold.effects import (
    count_apps,
    count_size,
    forget_ended,
    reconsider,
    set_departments,
    set_limits,
    set_need,
    set_quotas,
)


def _master_elected(facts: Facts, event: events.MasterElected) -> None:
    since = facts.before_at if facts.head > 1 else 0
    facts.election = Election(event.master, facts.master or "", facts.at, facts.unserved_since or since)
    facts.master, facts.unserved_since = event.master, 0


def _cluster_configured(facts: Facts, event: ClusterConfigured) -> None:
    for company in facts.companies.values():
        company.usage.update(facts.at, company.balance, facts.queue.basis.half_life_ms)
    facts.settings = event
    facts.configured = True
    facts.fleet.configure(executor_sizes(event), facts.minimum_executor())
    facts.claims.configure(event)
    facts.claims.recount_unserved(facts.waiting.values())
    for company in facts.companies.values():
        company.sizes.clear()
    for app in facts.apps.values():
        if app.ended is None:
            set_need(facts, app)
            count_size(facts, app, 1)
    facts.queue.configure(event)
    set_quotas(facts)
    for app in facts.waiting.values():
        reconsider(facts, app)
    forget_ended(facts)
    facts.changed.everything(facts.apps, facts.workers)


def _kind_registered(facts: Facts, event: events.KindRegistered) -> None:
    facts.kinds.append(event.kind)


def _company_registered(facts: Facts, event: CompanyRegistered) -> None:
    company = facts.companies[event.company] = Company(event, Usage(at=facts.at))
    standing = facts.claims.of(event.company)
    facts.queue.add_company(event.company, company.balance, company.usage, standing=standing)
    if facts.limits.values:
        set_limits(facts, event.company)
    moved = [name for name, each in facts.companies.items() if each.spec.by_default]
    set_quotas(facts, event.company, *moved)


def _company_changed(facts: Facts, event: events.CompanyChanged) -> None:
    facts.companies[event.company].spec = CompanyRegistered(**structs.asdict(event))
    set_quotas(facts, event.company)


def _limit_set(facts: Facts, event: events.LimitSet) -> None:
    """Whom a limit keeps out is found anew: of one company, or of all if it is the cluster's (semantics N1)."""
    facts.limits.set(event)
    count_apps(facts)
    set_limits(facts, *((event.company,) if event.company else facts.companies))


def _company_removed(facts: Facts, event: events.CompanyRemoved) -> None:
    del facts.companies[event.company]
    facts.limits.forget(event.company)
    facts.accounts.forget_company(event.company)
    facts.queue.remove_company(event.company)
    facts.claims.forget(event.company)
    set_quotas(facts)
    if facts.departments:
        set_departments(facts)


def _department_set(facts: Facts, event: events.DepartmentAdded | events.DepartmentChanged) -> None:
    spec = events.DepartmentAdded(**structs.asdict(event))
    if event.department in facts.departments:
        facts.departments[event.department].spec = spec
    else:
        facts.departments[event.department] = Department(spec)
    set_departments(facts)


def _department_removed(facts: Facts, event: events.DepartmentRemoved) -> None:
    del facts.departments[event.department]
    facts.accounts.forget_department(event.department)
    facts.limits.forget_department(event.department)
    set_departments(facts)


def _company_moved(facts: Facts, event: events.CompanyMoved) -> None:
    facts.companies[event.company].department = event.department
    set_departments(facts)


def _edition_changed(facts: Facts, event: events.EditionChanged) -> None:
    facts.edition, facts.edition_at = event.edition, facts.at


def _told_before(facts: Facts, _: events.RoomReserved | events.ReservationLapsed) -> None:
    """What the second edition of the rules reserved, nobody asks for any more."""


def _command_refused(facts: Facts, _: CommandRefused) -> None:
    """A refusal is counted with its sender (`_count_refusal`)."""


def _refusals_omitted(facts: Facts, _: events.RefusalsOmitted) -> None:
    """Omitted refusals are told to those who read the log."""


def _decided_without_master(facts: Facts) -> None:
    """The turn before was the last one of a master."""
    facts.unserved_since = facts.unserved_since or facts.before_at


def _log_accepted(facts: Facts, event: events.LogAccepted) -> None:
    _decided_without_master(facts)
    facts.decisions[f"{facts.head}@{facts.at}"] = event.known


def _log_restored(facts: Facts, event: events.LogRestored) -> None:
    _decided_without_master(facts)
    facts.decisions[f"{facts.head}@{facts.at}"] = 0
    if event.key:
        _key_changed(facts, events.KeyChanged(key=event.key, public=event.public))


def _key_changed(facts: Facts, event: events.KeyChanged) -> None:
    facts.public_keys.pop(event.key, None)
    facts.public_keys[event.key] = event.public


def _log_sealed(facts: Facts, event: events.LogSealed) -> None:
    facts.sealed, facts.sealed_at = event.seq, facts.at


FOLDS: dict[type[Event], Callable[[Facts, Any], None]] = {
    events.MasterElected: _master_elected,
    ClusterConfigured: _cluster_configured,
    events.KindRegistered: _kind_registered,
    CompanyRegistered: _company_registered,
    events.CompanyChanged: _company_changed,
    events.LimitSet: _limit_set,
    events.CompanyRemoved: _company_removed,
    events.DepartmentAdded: _department_set,
    events.DepartmentChanged: _department_set,
    events.DepartmentRemoved: _department_removed,
    events.CompanyMoved: _company_moved,
    events.RoomReserved: _told_before,
    events.ReservationLapsed: _told_before,
    events.EditionChanged: _edition_changed,
    CommandRefused: _command_refused,
    events.RefusalsOmitted: _refusals_omitted,
    events.KeyChanged: _key_changed,
    events.LogSealed: _log_sealed,
    events.LogRestored: _log_restored,
    events.LogAccepted: _log_accepted,
}
"""Type of event -> what folds it."""
