"""What placement grants with open admission: whatever there is room for, in the order of waitingApps (semantics P6)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from scheduler.rules.command.demand import grown
from scheduler.rules.command.windows import sought_by
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.stage.classic import pack_worker_by_worker
from scheduler.rules.stage.drivers import place_drivers
from scheduler.rules.stage.granting import place

if TYPE_CHECKING:
    from scheduler.model.events import Event
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState


def served(state: ClusterState, at: int) -> Iterator[Event]:
    """Executors, and the demands that rise by them, until nothing more comes (L1, L6, P6).

    Drivers go first wherever room has come free since they were placed (D1). The caller folds each event before it
    asks for the next.
    """
    while True:
        before = state.head
        yield from _placed(state, at)
        yield from grown(state, at)
        if state.head == before:
            return
        yield from place_drivers(state, at)


def _placed(state: ClusterState, at: int) -> Iterator[Event]:
    def wanted(app: App) -> bool:
        return bool(app.need.least.cores) and state.fleet.has_room(sought_by(state, app, app.need.least, at))

    if not (state.indexes.owed and state.fleet.most_free_cores()):
        return
    if PLACEMENTS[state.settings.placement].across_apps:
        while granted := pack_worker_by_worker(state, list(serve(state, wanted)), at):
            yield from granted
        return
    for app in serve(state, wanted):
        while app.owed and (granted := place(state, app, at)):
            yield from granted


def serve(state: ClusterState, wanted: Callable[[App], bool]) -> Iterator[App]:
    """The apps that are owed executors and wanted when it is their turn, in the order of admission (semantics P6).

    Of apps of equal keys all are wanted or none is: one whose like finds no room is not looked at.
    The caller folds what it grants one before it asks for the next.
    """
    owed = state.indexes.owed
    turns = [(ranks[0], key) for key, ranks in owed.groups.items() if wanted(owed.members[ranks[0]])]
    order = {key: number for number, (_, key) in enumerate(turns)}
    heap = [(rank, order[key], key) for rank, key in turns]
    heapify(heap)
    while heap:
        rank, number, key = heappop(heap)
        app = state.indexes.owed.members.get(rank)
        if app is not None:
            if not wanted(app):
                continue
            yield app
        ranks = state.indexes.owed.groups.get(key, ())
        index = bisect_right(ranks, rank)
        if index < len(ranks):
            heappush(heap, (ranks[index], number, key))
