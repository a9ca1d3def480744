"""What events of apps change, from submission to removal (semantics A, J, L, X), and of their needs and slots (H)."""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import Any

from scheduler.model import events
from scheduler.model.events import AppRegistered, Event
from scheduler.model.grants import PUT_BACK
from scheduler.model.resources import NOTHING
from scheduler.rules.admission.queue import ask_of
from scheduler.rules.entities.apps import NO_LACK, App, Demand, Lack, Slot, shared_spec
from scheduler.rules.entities.companies import User
from scheduler.rules.entities.grants import PassedOn
from scheduler.rules.state.departments import names_above
from scheduler.rules.state.facts import Facts
from scheduler.rules.state.fold.effects import (
    count_demands,
    count_request,
    count_runtime,
    count_size,
    forget_if_over,
    reconsider,
    restate,
    set_need,
    set_owed,
    stop,
)

SIGNALS_KEPT = 8
"""So many signals of an executor or driver are passed on if they come before its worker looks."""


def _app_registered(facts: Facts, event: AppRegistered) -> None:
    company = facts.companies[event.company]
    user = company.users.get(event.user)
    if user is None:
        user = company.users[event.user] = User()
    spec = shared_spec(event, company.spec.company, intern(event.user))
    requested, head, at = spec.requested, facts.head, facts.at
    count_demands(facts, spec, 1)
    need = facts.claims.need(spec, spec.sizing, requested, spec.executor_limit, spec.driver or NOTHING)
    app = App(
        event.app,
        spec,
        facts.claims.standings(event.company, event.user),
        facts.ledgers(event.company, event.user),
        company.usage,
        submitted=head,
        submitted_at=at,
        requested=requested,
        executor_limit=event.executor_limit,
        sizing=spec.sizing,
        max_runtime_s=event.max_runtime_s,
        need=need,
        priority=event.priority,
    )
    if event.elastic is not None:
        app.demand = Demand(backlog_executors=event.elastic.backlog, next_step=event.elastic.step)
    company.apps += 1
    facts.apps[event.app] = app
    count_size(facts, app, 1)
    if facts.claims.counts_apps:
        facts.claims.count(app, pending=1)
    if facts.limits.rated:
        facts.limits.take(event.company, event.user, names_above(facts, event.company), facts.at)
    if event.after or event.on_hold:
        app.ready, app.on_hold = False, event.on_hold
        facts.dependents.begin(app, facts.apps)
    else:
        facts.queue.push(app)


def _app_ready(facts: Facts, event: events.AppReady) -> None:
    """The app joins its user's queue; its time counts from here (semantics J2, Q1)."""
    app = facts.apps[event.app]
    app.ready, app.readied, app.readied_at = True, facts.head, facts.at
    facts.queue.push(app)


def _app_held(facts: Facts, event: events.AppHeld) -> None:
    app = facts.apps[event.app]
    if app.ready:
        facts.queue.remove(app)
    app.ready, app.on_hold = False, True


def _app_released(facts: Facts, event: events.AppReleased) -> None:
    app = facts.apps[event.app]
    app.on_hold = False


def _app_delayed(facts: Facts, event: events.AppDelayed) -> None:
    app = facts.apps[event.app]
    if app.ready:
        facts.queue.remove(app)
    app.ready, app.not_before = False, event.until


def _app_due(facts: Facts, event: events.AppDue) -> None:
    app = facts.apps[event.app]
    app.not_before = 0


def _app_reprioritized(facts: Facts, event: events.AppReprioritized) -> None:
    app = facts.apps[event.app]
    if not app.admitted and app.ready:
        facts.queue.reprioritize(app, event.priority)
    else:
        app.priority = event.priority


def _app_admitted(facts: Facts, event: events.AppAdmitted) -> None:
    """The app is last in waitingApps, and its request is in all three ledgers (semantics A3)."""
    app = facts.apps[event.app]
    app.admitted, app.admitted_at = facts.head, facts.at
    facts.waiting[event.app] = facts.companies[event.company].waiting[event.app] = app
    count_request(facts, app, app.requested)
    if facts.claims.counts_apps:
        facts.claims.count(app, pending=-1, admitted=1)
    facts.claims.admit(app)
    company = facts.companies[event.company]
    user = company.users[event.user]
    company.last_selected = user.last_selected = facts.head
    user.last_selected_at = facts.at
    for each in company.above:
        each.last_selected = facts.head
    if app.spec.elastic is not None:
        app.demand = app.demand._replace(asked_at=facts.at)
    facts.queue.admit(app, facts.head)
    set_owed(facts, app)


def _app_changed(facts: Facts, event: events.AppChanged) -> None:
    app, request = facts.apps[event.app], event.requested
    asked = ask_of(app)
    if app.admitted:
        count_request(facts, app, request - app.requested)
    app.requested = request
    facts.claims.restate(app, asked.request)
    limit, wanted = app.executor_limit, app.wants_more
    app.done_cores, app.executor_limit = event.done_cores, event.executor_limit
    if app.spec.gang and (event.executor_limit or 0) > (limit or 0):  # all of it runs again (semantics G8)
        facts.ranks.pop(app.id, None)
    if event.sizing is not app.sizing:
        count_size(facts, app, -1)
        app.sizing = event.sizing
        count_size(facts, app, 1)
    if app.admitted:
        set_need(facts, app)
    else:
        app.need = facts.claims.need_of(app)
        restate(facts, app, asked)
    app.demand = app.demand._replace(
        preferring_tasks=event.preferring_tasks,
        preferred_hosts=event.preferred_hosts,
        backlog_executors=event.backlog_executors,
        next_step=event.next_step,
    )
    if app.wants_more and (app.executor_limit != limit or not wanted):
        app.demand = app.demand._replace(asked_at=facts.at)
    if event.target != app.demand.target:
        stated = app.demand.stated if event.target is None else facts.head
        app.demand = app.demand._replace(target=event.target, stated=stated)
    reconsider(facts, app)


def _executors_requested(facts: Facts, event: events.ExecutorsRequested) -> None:
    app = facts.apps[event.app]
    app.demand = app.demand._replace(wanted=event.pending)


def _app_removed(facts: Facts, event: events.AppRemoved) -> None:
    """The app leaves waitingApps and the ledgers, or its queue; what still runs is to stop (semantics A5)."""
    app = facts.apps[event.app]
    app.ended, app.ended_at, app.detail = event.reason, facts.at, event.detail
    count_size(facts, app, -1)
    stop(facts, app)
    if app.max_runtime_s is not None:
        count_runtime(facts, app)
    facts.slots.pop(event.app, None)
    if app.admitted:
        del facts.waiting[event.app], facts.companies[app.spec.company].waiting[event.app]
        if facts.claims.counts_apps:
            facts.claims.count(app, admitted=-1)
        count_request(facts, app, -app.requested)
        if app.unserved:
            facts.claims.serve(app)
        reconsider(facts, app)
    else:
        if facts.claims.counts_apps:
            facts.claims.count(app, pending=-1)
        if app.ready:
            facts.queue.remove(app)
        else:
            facts.dependents.drop(app)
    if event.app in facts.dependents.of:
        for told in facts.dependents.tell(event.app, event.reason):
            facts.changed.app(told)
    count_demands(facts, app.spec, -1)
    forget_if_over(facts, app)


def _app_warned(facts: Facts, event: events.AppWarned) -> None:
    """Whatever of it runs now is to pass the signal to its tasks (semantics X2)."""
    app = facts.apps[event.app]
    app.warned = True
    for held in app.allocations():
        if held.status != "stopping":
            held.warned_at = facts.at


def _app_signalled(facts: Facts, event: events.AppSignalled) -> None:
    """Whatever of it runs now is to pass the signal on (semantics X4)."""
    sent = facts.head, event.signal, event.task, event.whole
    for held in facts.apps[event.app].allocations():
        if held.status != "stopping":
            held.signals = _kept((*held.signals, sent), held.resources.cores)


def _kept(sent: tuple[PassedOn, ...], cores: int) -> tuple[PassedOn, ...]:
    """The last signals, and of the tasks that are put back the last one for each that may run on so many cores."""
    signals = [each for each in sent if each[1] != PUT_BACK][-SIGNALS_KEPT:]
    back = {each[2]: each for each in sent if each[1] == PUT_BACK}
    return tuple(sorted((*signals, *[*back.values()][-cores:]), key=_position))


def _position(sent: PassedOn) -> int:
    return sent[0]


def _task_requeued(facts: Facts, event: events.TaskRequeued) -> None:
    """The executor is to put it back if it runs it (semantics X6)."""
    held = facts.apps[event.app].executors[event.executor]
    held.signals = _kept((*held.signals, (facts.head, PUT_BACK, event.task, False)), held.resources.cores)


def _task_cancelled(facts: Facts, event: events.TaskCancelled) -> None:
    """Who runs its tasks stops that one, or begins it no more (semantics X4)."""
    app = facts.apps[event.app]
    app.cancelled = tuple(sorted((*app.cancelled, event.task)))


def _app_requeued(facts: Facts, event: events.AppRequeued) -> None:
    """The app is pending as if it had never been admitted; it keeps its demand, and what it holds must stop (X6)."""
    app = facts.apps[event.app]
    for held in app.allocations():
        if held.claim in facts.holds:
            facts.holds[held.claim].leaving.pop(held.id, None)
        held.revoked, held.claim, held.deadline, held.firm = "killed", 0, 0, False
    stop(facts, app)
    facts.slots.pop(event.app, None)
    del facts.waiting[event.app], facts.companies[app.spec.company].waiting[event.app]
    if facts.claims.counts_apps:
        facts.claims.count(app, pending=1, admitted=-1)
    count_request(facts, app, -app.requested)
    facts.claims.withdraw(app)
    app.restarts += 1
    app.admitted = app.admitted_at = app.done_cores = app.returned_at = app.failures = app.ran_ms = app.owed_since = 0
    app.running_since, app.warned, app.ready, app.owed, app.planned = None, False, False, False, False
    app.lack = NO_LACK
    app.tries = app.tries._replace(driver_ends=0, driver_after=0)


def _app_expired(facts: Facts, event: events.AppExpired) -> None:
    """The app is owed nothing more; what it holds must stop, and it stays until that is gone (semantics X2)."""
    app = facts.apps[event.app]
    stop(facts, app)
    app.expired_at = facts.at
    reconsider(facts, app)


def _app_extended(facts: Facts, event: events.AppExtended) -> None:
    """An app may run longer, and is warned before the new end (semantics X1)."""
    app = facts.apps[event.app]
    app.max_runtime_s, app.warned = event.max_runtime_s, False


def _need_began(facts: Facts, event: events.NeedBegan) -> None:
    facts.apps[event.app].lack = Lack(event.units, event.date, facts.at)


def _need_ended(facts: Facts, event: events.NeedEnded) -> None:
    app = facts.apps[event.app]
    app.lack = Lack(0, app.lack.date, app.lack.since, facts.at)


def _slot_awaited(facts: Facts, event: events.SlotAwaited) -> None:
    facts.slots[event.app] = Slot(event.date)


def _slot_began(facts: Facts, event: events.SlotBegan) -> None:
    """If nothing is granted in it, it is over after its length and the time that room takes (semantics H10)."""
    lasts_s = (facts.settings.reclaim_patience_s or 0) + facts.settings.slot_s
    date = facts.slots[event.app].date
    facts.slots[event.app] = Slot(date, facts.at, event.units, facts.at + lasts_s * 1000)


def _slot_ended(facts: Facts, event: events.SlotEnded) -> None:
    del facts.slots[event.app]


FOLDS: dict[type[Event], Callable[[Facts, Any], None]] = {
    AppRegistered: _app_registered,
    events.AppAdmitted: _app_admitted,
    events.NeedBegan: _need_began,
    events.NeedEnded: _need_ended,
    events.SlotAwaited: _slot_awaited,
    events.SlotBegan: _slot_began,
    events.SlotEnded: _slot_ended,
    events.AppChanged: _app_changed,
    events.ExecutorsRequested: _executors_requested,
    events.AppReady: _app_ready,
    events.AppReprioritized: _app_reprioritized,
    events.AppHeld: _app_held,
    events.AppReleased: _app_released,
    events.AppDelayed: _app_delayed,
    events.AppDue: _app_due,
    events.AppWarned: _app_warned,
    events.AppSignalled: _app_signalled,
    events.TaskCancelled: _task_cancelled,
    events.AppRequeued: _app_requeued,
    events.TaskRequeued: _task_requeued,
    events.AppExpired: _app_expired,
    events.AppExtended: _app_extended,
    events.AppRemoved: _app_removed,
}
"""Type of event -> what folds it."""
