"""What failures lead to: where an app may go that failed on workers (W7, W9), and which are suspected (W8)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import TYPE_CHECKING

from scheduler.model.events import Event, ExecutorRemoved, WorkerCleared, WorkerProbed, WorkerSuspected
from scheduler.rules.command.windows import barring_names, sought_by
from scheduler.rules.entities.labels import amounts_in
from scheduler.rules.index.trouble import exclude_after, excluded, suspect_failures
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.placement.sizing import size_now
from scheduler.rules.state.backfill import has_room_on_targets, later_dates, lending

if TYPE_CHECKING:
    from scheduler.model.resources import Resources
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.workers import Suspicion, Worker
    from scheduler.rules.state.cluster import ClusterState

LONGEST_MS = 3_600_000
"""The longest time for which a worker is suspected."""
_QUARTER = 4


def left_out(state: ClusterState, app: App, size: Resources, at: int) -> Iterator[Collection[str]]:
    """The workers that are left out when room for `size` is sought for the app at `at` (ms), try after try (W7, W9).

    First those where executors of it failed; then only those from which it is excluded. Where no other live worker
    could host it, it is excluded only from those where its command cannot be started, and if that leaves none, from
    none.
    """
    settings, size = state.settings, sought_by(state, app, size, at)
    recent_ms = at - settings.exclude_s * 1000
    failed = {
        worker: None
        for worker, trouble in app.troubles.items()
        if trouble.at > recent_ms and (trouble.unstartable or exclude_after(settings))
    }
    yield failed
    kept = excluded(app, settings, at)
    if len(kept) < len(failed):
        yield kept
    at_once = app.need.gang or 1
    if kept and not could_host_elsewhere(state, size, kept, at_once):
        unstartable = {worker: None for worker in kept if app.troubles[worker].unstartable}
        if len(unstartable) < len(kept):
            yield unstartable
        if unstartable and not could_host_elsewhere(state, size, unstartable, at_once):
            yield ()


def kept_from(state: ClusterState, app: App, at: int) -> Collection[str]:
    """The workers on which the app gets nothing at time `at` (ms) because it failed there (semantics W7, W9)."""
    if not app.troubles:
        return ()
    *_, last = left_out(state, app, app.need.least, at)
    return last


def is_choosy(state: ClusterState, app: App) -> bool:
    """Whether there may be workers on which others like it get executors, and the app does not (W7, P7)."""
    return bool(app.troubles or (app.executors and PLACEMENTS[state.settings.placement].one_a_worker))


def alike(state: ClusterState, app: App, at: int) -> Hashable:
    """What the app has in common with all that may have executors where it may; None if nobody is like it (W7, P7)."""
    return None if is_choosy(state, app) else kind_of(state, app, at)


def kind_of(state: ClusterState, app: App, at: int) -> Hashable:
    """What the app needs, which windows keep it from their workers, and which targets lend it room (W14, H11)."""
    later = later_dates(state, app, at)
    return (id(app.need), later, *barring_names(state, app, at)) if later or state.windows else id(app.need)


def closed_to(state: ClusterState, app: App, at: int) -> Collection[str]:
    """The workers on which the app gets no executor now: excluded ones, by classic placements also its own (P7)."""
    kept = kept_from(state, app, at)
    if not PLACEMENTS[state.settings.placement].one_a_worker or app.unplaced_driver.cores:
        return kept
    return {*kept, *[one.worker for one in app.executors.values()]}


def room_now(state: ClusterState, app: App, at: int, known: dict[Hashable, bool]) -> bool:
    """As `has_room_now`, asked once for all that are alike; `known`: what was found, while no room changes."""
    key = alike(state, app, at)
    if key is None:
        return has_room_now(state, app, at)
    found = known.get(key)
    if found is None:
        found = known[key] = has_room_now(state, app, at)
    return found


def has_room_now(state: ClusterState, app: App, at: int) -> bool:
    """Whether a live worker has room for an executor of the app, and it may have it at time `at` (ms) (W7, P1).

    A gang has it for all of them, and with targets on these alone, where it is granted (semantics G8).
    """
    if app.need.gang:
        together = has_room_on_targets(state, app) if app.holds else gang_rooms(state, app, at) == app.need.gang
        return together and not app.executors
    lent = lending(state, app, at)
    if not (lent or is_choosy(state, app)):
        return state.fleet.has_room(sought_by(state, app, size_now(state.fleet, app.need), at))
    with state.seen_by(app, closed_to(state, app, at), lent):
        return state.fleet.has_room(sought_by(state, app, size_now(state.fleet, app.need), at))


def gang_rooms(state: ClusterState, app: App, at: int) -> int:
    """For how many executors of a gang there is room where it may have them, at most for all (semantics G8)."""
    need = app.need
    seeking, probes = sought_by(state, app, need.executor, at), state.indexes.probes.members
    lent = lending(state, app, at)
    if not (lent or is_choosy(state, app) or probes or app.holds):
        return state.fleet.rooms_for(seeking, need.executor, need.gang)
    found = 0
    with state.seen_by(app, closed_to(state, app, at), lent):
        for worker, free in state.fleet.candidates(seeking, state.settings.worker_selection):
            found += 1 if worker in probes else free.holds(need.executor)
            if found >= need.gang:
                return need.gang
    return found


def could_host_elsewhere(state: ClusterState, size: Resources, workers: Collection[str], number: int = 1) -> bool:
    """Whether live workers other than these could host the `size` that is sought so often, were they empty (W7)."""
    among = [
        one.offer
        for one in map(state.workers.get, workers)
        if one is not None and one.status == "alive" and one.offer.covers(size) and state.fleet.admits(one.id, size)
    ]
    if number == 1:
        return state.fleet.hosts(size) > len(among)
    each = amounts_in(size)
    return state.fleet.could_hold(size, each, number + sum([offer.holds(each) for offer in among]))


def judged(state: ClusterState, event: ExecutorRemoved, at: int) -> Event | None:
    """Whether the worker of the executor whose end was folded just now is suspected, or cleared (semantics W8).

    Never more than a quarter of the live workers are suspected.
    """
    worker = state.workers[event.worker]
    suspicion, ends = worker.suspicion, worker.quick_ends
    if event.reason == "exited":
        return None if suspicion is None else WorkerCleared(worker=worker.id, reason="ended-well")
    quick = bool(ends) and ends[-1].executor == event.executor
    if suspicion is not None:
        return _of_probe(state, worker, suspicion, at, quick=quick) if suspicion.probe == event.executor else None
    if not quick or worker.status != "alive" or _QUARTER * (len(state.indexes.suspects) + 1) > state.fleet.live:
        return None
    settings, number = state.settings, suspect_failures(state.settings)
    last = ends[-number:]
    in_time = last[0].at >= at - settings.suspect_window_s * 1000
    if len(last) < number or not in_time or len({end.app for end in last}) == 1:
        return None
    return _suspected(state, worker.id, tuple(end.executor for end in last), 1, at)


def _of_probe(state: ClusterState, worker: Worker, suspicion: Suspicion, at: int, *, quick: bool) -> Event:
    """What the abnormal end of its probe says of the worker (semantics W8)."""
    if quick:
        return _suspected(state, worker.id, (suspicion.probe,), suspicion.times + 1, at)
    return WorkerCleared(worker=worker.id, reason="ran")


def suspicions_due(state: ClusterState, at: int) -> Iterator[WorkerCleared | WorkerProbed]:
    """Workers that are suspected no longer, or may get a probe, at time `at` (ms) (semantics W8)."""
    if not state.indexes.suspects:
        return
    for worker in state.timers.due(at, "probe"):
        yield WorkerCleared(worker=worker, reason="ran")
    for worker in state.timers.due(at, "suspect"):
        yield WorkerProbed(worker=worker)
    while _QUARTER * len(state.indexes.suspects) > state.fleet.live:
        oldest = min(
            state.indexes.suspects, key=lambda worker: (worker.suspicion and worker.suspicion.since, worker.id)
        )
        yield WorkerCleared(worker=oldest.id, reason="quarter")


def switched_off(state: ClusterState) -> list[WorkerCleared]:
    """The workers that are suspected no longer because the settings suspect none (semantics W8)."""
    if suspect_failures(state.settings):
        return []
    return [WorkerCleared(worker=worker, reason="off") for worker in sorted(state.indexes.suspects.members)]


def _suspected(state: ClusterState, worker: str, executors: tuple[str, ...], times: int, at: int) -> WorkerSuspected:
    """For how long: `suspect_s`, doubled each time up to an hour (semantics W8)."""
    for_ms = min(state.settings.suspect_s * 1000 << min(times - 1, 32), LONGEST_MS)
    return WorkerSuspected(worker=worker, executors=executors, until=at + for_ms, times=times)
