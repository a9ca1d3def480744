"""What events of executors, drivers and targets change (semantics D, H, P, W)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.model import events
from scheduler.model.events import Event
from scheduler.model.resources import Resources
from scheduler.rules.entities.apps import App, Slot, Trouble
from scheduler.rules.entities.grants import Allocation, Hold, HoldReason
from scheduler.rules.entities.ranks import Ranks
from scheduler.rules.entities.workers import QuickEnd, Suspicion, Worker
from scheduler.rules.index.trouble import failures_in_a_row, is_quick, restart_after, suspect_failures
from scheduler.rules.state.facts import Facts
from scheduler.rules.state.fold.effects import (
    count_leaving,
    count_request,
    count_runtime,
    forget_if_over,
    grant,
    let_leave,
    reconsider,
    reopen,
    set_need,
)


def _driver_allocated(facts: Facts, event: events.DriverAllocated) -> None:
    app, worker = facts.apps[event.app], facts.workers[event.worker]
    driver = Allocation(
        event.driver, event.app, event.worker, event.resources, granted_at=facts.at, addresses=event.addresses
    )
    if app.tries.driver_after:
        app.tries = app.tries._replace(driver_after=0)
    facts.drivers[event.driver] = worker.drivers[event.driver] = app.driver = driver
    app.tries = app.tries._replace(next_driver=app.tries.next_driver + 1)
    if event.app in facts.dependents.of:
        for told in facts.dependents.tell_beginning(event.app):
            facts.changed.app(told)
    count_runtime(facts, app)
    set_need(facts, app)
    grant(facts, app, worker, event.resources)


def _driver_removed(facts: Facts, event: events.DriverRemoved) -> None:
    """The driver waits for a worker again; where its app ends with it, that is the next event (semantics D3)."""
    driver = facts.drivers.pop(event.driver)
    app, worker = facts.apps[driver.app], facts.workers[driver.worker]
    del worker.drivers[event.driver]
    if event.reason == "lost":
        facts.lost_with.setdefault(worker.id, []).append(f"{app.id}/")
    if driver.status == "stopping":
        count_leaving(facts, driver, -driver.resources)
    app.driver = None
    if app.ended is None:
        if (
            app.admitted
            and app.spec.supervise
            and facts.settings.admission == "fair"
            and event.reason in ("exited", "failed")
        ):
            ends = app.tries.driver_ends + 1 if is_quick(driver.granted_at, facts.at) else 0
            app.tries = app.tries._replace(driver_ends=ends, driver_after=restart_after(ends, facts.at))
        set_need(facts, app)
    count_runtime(facts, app)
    grant(facts, app, worker, -driver.resources)
    forget_if_over(facts, app)


def _executor_allocated(facts: Facts, event: events.ExecutorAllocated) -> None:
    app, worker = facts.apps[event.app], facts.workers[event.worker]
    executor = Allocation(
        event.executor,
        event.app,
        event.worker,
        event.resources,
        locality=event.locality,
        granted_at=facts.at,
        addresses=event.addresses,
    )
    app.owed_since, app.returned_at = facts.at, 0
    if not app.executors:
        app.executors = {}
    if facts.slots and (slot := facts.slots.get(event.app)) is not None and slot.began:
        _grant_in_slot(facts, app, executor, slot)
    facts.executors[event.executor] = app.executors[event.executor] = worker.executors[event.executor] = executor
    app.next_executor += 1
    if event.app in facts.dependents.of:
        for told in facts.dependents.tell_beginning(event.app):
            facts.changed.app(told)
    if app.spec.programs:
        facts.ranks.setdefault(app.id, Ranks()).take(event.executor, app.executor_limit or 0)
        if app.spec.gang:
            facts.forming = app.id if len(app.executors) < (app.executor_limit or 0) else ""
            app.planned = False
    if event.requested is not None:
        before = app.requested
        count_request(facts, app, event.requested - before)
        app.requested = event.requested
        facts.claims.restate(app, before)
    if worker.suspicion is not None:
        _probe(facts, worker, worker.suspicion, event.executor)
    grant(facts, app, worker, event.resources)


def _executor_changed(facts: Facts, event: events.ExecutorChanged) -> None:
    """An executor runs, which ends its app's row of failures (semantics W5), or became idle or busy (L6)."""
    executor = facts.executors[event.executor]
    app = facts.apps[executor.app]
    facts.changed.app(app)
    if executor.status != "running" and not executor.started:
        executor.started, executor.running_since = True, facts.at
        app.started += 1
        if executor.status == "stopping":  # it leaves for a claim
            executor.was_running = True
        else:
            executor.status = event.status
            app.running += 1
        app.failures = app.failures if app.spec.programs else 0
        facts.changed.workers[executor.worker] = None
        count_runtime(facts, app)
    if event.idle != (executor.idle_since is not None):
        executor.idle_since = facts.at if event.idle else None
        reconsider(facts, app)


def _executor_revoked(facts: Facts, event: events.ExecutorRevoked) -> None:
    executor = facts.executors[event.executor]
    app = facts.apps[executor.app]
    if executor.claim in facts.holds:  # it leaves before a window, sooner than for a need
        facts.holds[executor.claim].leaving.pop(executor.id, None)
    if executor.status != "stopping":
        executor.was_running = executor.status == "running"
        app.running -= executor.was_running
    let_leave(facts, executor)
    executor.revoked, executor.claim, executor.deadline = event.reason, event.hold, event.deadline or 0
    executor.firm = event.hold > 0 and facts.settings.reclaim_patience_s is not None
    if event.window:
        executor.revoked, executor.firm = "window", True
    if event.gang:
        executor.revoked = "gang"
    if event.why == "plan":
        app.lack = app.lack.brought_forward(executor.deadline, facts.at)
        app.planned = app.spec.gang
    if event.why == "move":
        executor.moved = True
        if app.id in facts.ranks:
            facts.ranks[app.id].leave(executor.id, done=False)
        app.moved += 1
        app.moving += executor.resources
    if event.hold:
        facts.holds[event.hold].leaving[executor.id] = executor
    reconsider(facts, app)


def _revocation_withdrawn(facts: Facts, event: events.RevocationWithdrawn) -> None:
    """An executor goes on as before it was told to leave (semantics H7); without a task it is idle anew (L6)."""
    executor = facts.executors[event.executor]
    app = facts.apps[executor.app]
    executor.status = "running" if executor.was_running else "starting"
    app.running += executor.was_running
    executor.revoked, executor.claim, executor.deadline, executor.was_running = None, 0, 0, False
    executor.firm = app.planned = False
    if app.id in facts.ranks and executor.id not in facts.ranks[app.id].held:
        facts.ranks[app.id].take(executor.id, app.executor_limit or 0)
    if executor.idle_since is not None:
        executor.idle_since = facts.at
    count_leaving(facts, executor, -executor.resources)
    reconsider(facts, app)


def _executor_removed(facts: Facts, event: events.ExecutorRemoved) -> None:
    """The grant returns; what it was done with is not owed again (semantics S6), a failure counts (W5)."""
    executor = facts.executors.pop(event.executor)
    app, worker = facts.apps[executor.app], facts.workers[executor.worker]
    del app.executors[event.executor], worker.executors[event.executor]
    if executor.status == "running":
        app.running -= 1
    elif executor.status == "stopping":
        count_leaving(facts, executor, -executor.resources)
        if executor.claim in facts.holds:
            facts.holds[executor.claim].leaving.pop(event.executor, None)
    app.started -= executor.started
    if app.id in facts.ranks:
        ended_well = event.reason == "exited" and executor.status != "stopping"
        facts.ranks[app.id].end(executor.id, done=ended_well)
    if executor.moved:
        app.moved -= 1
        app.moving -= executor.resources
    if app.max_runtime_s is not None:
        count_runtime(facts, app)
    _count_done(facts, event, executor, app)
    if event.reason == "lost":
        facts.lost_with.setdefault(worker.id, []).append(app.id)
    _note_end(facts, event, executor, app, worker)
    grant(facts, app, worker, -executor.resources)
    suspicion = worker.suspicion
    if suspicion is not None and suspicion.probe == executor.id:
        _probe(facts, worker, suspicion, executor.id if event.reason in ("failed", "exited") else "")
    forget_if_over(facts, app)


def _room_held(facts: Facts, event: events.RoomHeld) -> None:
    """As a target, which the second edition of the rules called so."""
    _hold(facts, event.worker, event.app, event.amounts, event.reason)


def _hold_ended(facts: Facts, event: events.HoldEnded) -> None:
    _end_hold(facts, event.hold, event.app, event.worker)


def _target_set(facts: Facts, event: events.TargetSet) -> None:
    """Less is free on the worker for everybody else (semantics H6)."""
    _hold(facts, event.worker, event.app, event.amounts, event.why)


def _target_ended(facts: Facts, event: events.TargetEnded) -> None:
    _end_hold(facts, event.target, event.app, event.worker)


def _hold(facts: Facts, where: str, holder: str, amounts: Resources, reason: HoldReason) -> None:
    app, worker = facts.apps[holder], facts.workers[where]
    before = worker.open_to(None)
    hold = Hold(facts.head, where, holder, amounts, reason, facts.at)
    app.holds = app.holds or {}
    facts.holds[hold.id] = worker.holds[hold.id] = app.holds[hold.id] = hold
    reopen(facts, worker, before)


def _end_hold(facts: Facts, number: int, holder: str, where: str) -> None:
    app, worker = facts.apps.get(holder), facts.workers.get(where)
    for executor in facts.holds.pop(number).leaving.values():
        facts.filling.note(executor.app)  # it counts no longer as held (semantics H3)
    if worker is not None and number in worker.holds:
        before = worker.open_to(None)
        del worker.holds[number]
        reopen(facts, worker, before)
    if app is not None:
        del app.holds[number]


def _grant_in_slot(facts: Facts, app: App, executor: Allocation, slot: Slot) -> None:
    """The executor is one of those to which the slot entitles its app, if they are not all there (H10)."""
    there = [one for one in app.executors.values() if one.status != "stopping"]
    if len(there) < slot.units:
        slot = facts.slots[app.id] = slot.granted_at(facts.at, facts.settings.slot_s * 1000)
        executor.until = slot.until


def _count_done(facts: Facts, event: events.ExecutorRemoved, executor: Allocation, app: App) -> None:
    """What the executor was done with is not owed again (semantics S6)."""
    if event.done:
        held = app.granted.cores - executor.resources.cores + app.unplaced_driver.cores - app.moving.cores
        done = app.requested.cores - held
        if app.returned_at == facts.at:  # it may have found no task before these returned
            done = min(done, app.done_cores + executor.resources.cores)
        app.done_cores = max(0, done)
    elif event.reason in ("failed", "lost", "killed"):
        app.returned_at = facts.at


def _note_end(facts: Facts, event: events.ExecutorRemoved, executor: Allocation, app: App, worker: Worker) -> None:
    """What the end says of the app (semantics W5), and of the worker for the app (W7, W9) and for everybody (W8)."""
    if event.reason == "failed":
        app.failures = failures_in_a_row(app, executor, facts.at)
    elif event.reason == "exited" and app.spec.programs and not app.spec.gang:
        app.failures = 0
    if event.finished and app.troubles:
        app.troubles.pop(worker.id, None)
    if event.reason == "exited":
        worker.quick_ends = ()
    elif event.reason == "failed":
        if app.ended is None:
            ends, _, unstartable = app.troubles.get(worker.id, Trouble(0, 0))
            app.troubles = app.troubles or {}
            app.troubles[worker.id] = Trouble(ends + 1, facts.at, unstartable or event.unstartable)
        if (number := suspect_failures(facts.settings)) and is_quick(executor.running_since, facts.at):
            worker.quick_ends = (*worker.quick_ends, QuickEnd(executor.id, app.id, facts.at))[-number:]


def _probe(facts: Facts, worker: Worker, suspicion: Suspicion, executor: str) -> None:
    """The suspected worker has that executor as its probe from now on, "" = none (semantics W8)."""
    before, suspicion.probe = worker.open_to(None), executor
    reopen(facts, worker, before)


FOLDS: dict[type[Event], Callable[[Facts, Any], None]] = {
    events.DriverAllocated: _driver_allocated,
    events.DriverRemoved: _driver_removed,
    events.ExecutorAllocated: _executor_allocated,
    events.ExecutorChanged: _executor_changed,
    events.RoomHeld: _room_held,
    events.HoldEnded: _hold_ended,
    events.TargetSet: _target_set,
    events.TargetEnded: _target_ended,
    events.ExecutorRevoked: _executor_revoked,
    events.RevocationWithdrawn: _revocation_withdrawn,
    events.ExecutorRemoved: _executor_removed,
}
"""Type of event -> what folds it."""
