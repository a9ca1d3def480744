"""What events of workers change (semantics W)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.model import events
from scheduler.model.events import Event
from scheduler.rules.entities.workers import LostWorker, Suspicion, Worker, window_of
from scheduler.rules.state.facts import Facts
from scheduler.rules.state.fold.effects import forget_lost, mark, plan_windows, reopen, set_cluster, set_live, trust


def _worker_registered(facts: Facts, event: events.WorkerRegistered) -> None:
    offer = event.offer
    if event.worker in facts.lost:
        forget_lost(facts, event.worker)
    worker = facts.workers[event.worker] = Worker(event.worker, event.node, event.host, event.rack, offer, offer)
    facts.offers.add(worker)
    worker.addresses = event.addresses
    if facts.holds:  # of a worker that was lost earlier in the turn
        worker.holds = {number: hold for number, hold in facts.holds.items() if hold.worker == event.worker}
    set_live(facts, worker, was=False, now=True)
    set_cluster(facts)


def _worker_labelled(facts: Facts, event: events.WorkerLabelled) -> None:
    worker = facts.workers[event.worker]
    facts.offers.remove(worker)
    worker.labels, worker.taints = event.labels, event.taints
    facts.offers.add(worker)
    if worker.status == "alive":
        mark(facts, worker.id)


def _worker_removed(facts: Facts, event: events.WorkerRemoved) -> None:
    worker = facts.workers.pop(event.worker)
    if event.reason == "lost":
        cut = facts.lost_with.pop(event.worker, [])
        drivers = [name for name in cut if name.endswith("/")]
        apps = {name.rstrip("/") for name in cut}
        numbers = len(cut) - len(drivers), len(drivers), len(apps)
        facts.lost[event.worker] = LostWorker(
            event.worker, worker.offer, facts.at, *numbers, worker.labels, worker.taints
        )
    else:
        facts.lost_with.pop(event.worker, None)
        facts.offers.remove(worker)
    set_live(facts, worker, was=worker.status == "alive", now=False)
    trust(worker)
    set_cluster(facts)


def _worker_changed(facts: Facts, event: events.WorkerChanged) -> None:
    worker = facts.workers[event.worker]
    set_live(facts, worker, was=worker.status == "alive", now=False)
    facts.offers.remove(worker)
    worker.free += event.offer - worker.offer
    if (event.status, event.unwell) != (worker.status, worker.unwell):
        worker.since = facts.at
        if event.status in ("alive", "draining"):
            worker.said = ""
    worker.offer, worker.status, worker.addresses = event.offer, event.status, event.addresses
    facts.offers.add(worker)
    worker.reason, worker.unwell = event.reason, event.unwell
    worker.window = event.window if event.status == "draining" else ""
    worker.decommissioned = worker.status == "decommissioned" or (worker.decommissioned and worker.status == "leaving")
    if worker.status != "alive":
        trust(worker)
    set_live(facts, worker, was=False, now=worker.status == "alive")
    set_cluster(facts)


def _window_added(facts: Facts, event: events.WindowAdded) -> None:
    facts.windows[event.window] = window = window_of(event, facts.at)
    plan_windows(facts, window)


def _window_removed(facts: Facts, event: events.WindowRemoved) -> None:
    plan_windows(facts, facts.windows.pop(event.window))


def _lost_workers_forgotten(facts: Facts, event: events.LostWorkersForgotten) -> None:
    forget_lost(facts, *event.workers)


def _worker_suspected(facts: Facts, event: events.WorkerSuspected) -> None:
    worker = facts.workers[event.worker]
    before, worker.quick_ends = worker.open_to(None), ()
    worker.suspicion = Suspicion(event.executors, facts.at, event.until, event.times)
    reopen(facts, worker, before)


def _worker_probed(facts: Facts, event: events.WorkerProbed) -> None:
    worker = facts.workers[event.worker]
    before = worker.open_to(None)
    if worker.suspicion is not None:
        worker.suspicion.on_probe = True
    reopen(facts, worker, before)


def _worker_cleared(facts: Facts, event: events.WorkerCleared) -> None:
    worker = facts.workers[event.worker]
    before, worker.quick_ends, worker.suspicion = worker.open_to(None), (), None
    reopen(facts, worker, before)


FOLDS: dict[type[Event], Callable[[Facts, Any], None]] = {
    events.WorkerRegistered: _worker_registered,
    events.WorkerLabelled: _worker_labelled,
    events.WorkerChanged: _worker_changed,
    events.WindowAdded: _window_added,
    events.WindowRemoved: _window_removed,
    events.WorkerRemoved: _worker_removed,
    events.LostWorkersForgotten: _lost_workers_forgotten,
    events.WorkerSuspected: _worker_suspected,
    events.WorkerProbed: _worker_probed,
    events.WorkerCleared: _worker_cleared,
}
"""Type of event -> what folds it."""
