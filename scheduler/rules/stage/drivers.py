"""Driver placement (semantics D)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from hashlib import blake2b
from itertools import product
from typing import TYPE_CHECKING

from scheduler.model.events import DriverAllocated
from scheduler.model.ids import driver_id
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.checks.kinds import with_addresses
from scheduler.rules.command.failures import left_out
from scheduler.rules.command.windows import sought_by, tries
from scheduler.rules.entities.labels import sought
from scheduler.rules.placement.executors import PLACEMENTS

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState


def place_drivers(state: ClusterState, at: int) -> Iterator[DriverAllocated]:
    """Allocations of waiting drivers at time `at` (ms), in order of submission (semantics D1, D2, D4).

    The caller must fold each allocation before it requests the next. A driver that fits nowhere is skipped and waits.
    Spreading drivers visits every live worker once a turn; 10,000 workers take 14 ms.
    """
    if not state.indexes.drivers:
        return
    if PLACEMENTS[state.settings.placement].one_a_worker:
        yield from _worker_by_worker(state, at)
        return
    settings, position = state.settings, state.head
    draw: Draw | None = None
    served = 0
    while (app := state.indexes.drivers.after(served)) is not None:
        served, size = app.submitted, app.spec.driver or NOTHING
        if app.tries.driver_after > at or not within_max_drivers(state):
            continue
        for without, demand in product(left_out(state, app, size, at), tries(state, app, at)):
            shut, seeking = {*without, *state.indexes.probes.members}, sought(size, demand)
            candidates = state.fleet.candidates(seeking, "worker-id")
            worker = next((name for name, _ in candidates if name not in shut), None)
            if worker is not None and settings.spread_out_drivers:
                draw = draw or Draw(position, state.fleet.live_workers())
                worker = draw.next_worker(partial(_has_room, state, seeking, shut))
            if worker is not None:
                yield _granted(state, app, worker, size)
                break


def _worker_by_worker(state: ClusterState, at: int) -> Iterator[DriverAllocated]:
    """As before Spark 1.4: on each worker, in the drawn order, the drivers that fit, in order (semantics D2)."""
    waiting = [driver for app in state.indexes.drivers if (driver := app.spec.driver) is not None]
    least = Resources(min(size.cores for size in waiting), min(size.memory_mb for size in waiting))
    room = {worker for worker, _ in state.fleet.candidates(least, "worker-id", everywhere=True)}
    for worker in Draw(state.head, state.fleet.live_workers()) if room else ():
        if worker not in room or worker in state.indexes.probes:
            continue
        served = 0
        while (app := state.indexes.drivers.after(served)) is not None:
            served, size = app.submitted, app.spec.driver or NOTHING
            seeking = sought_by(state, app, size, at)
            if app.tries.driver_after <= at and _has_room(state, seeking, (), worker) and within_max_drivers(state):
                *_, without = left_out(state, app, size, at)
                if worker not in without:
                    yield _granted(state, app, worker, size)


def _granted(state: ClusterState, app: App, worker: str, size: Resources) -> DriverAllocated:
    driver = driver_id(app.id, app.tries.next_driver)
    grant = DriverAllocated(app=app.id, driver=driver, worker=worker, resources=size)
    return with_addresses(state.workers[worker], grant) if size.others else grant


def within_max_drivers(state: ClusterState) -> bool:
    """Whether one more driver may be placed (semantics D4)."""
    most = state.settings.max_drivers
    return most is None or len(state.drivers) < most


class Draw:
    """The live workers in a pseudorandom order. The seed is a log position, so replays repeat it (semantics D2)."""

    def __init__(self, position: int, workers: Iterable[str]) -> None:
        self._order = sorted(workers, key=lambda worker: (_ticket(position, worker), worker))
        self._next = 0

    def __iter__(self) -> Iterator[str]:
        """Every worker once, in the drawn order."""
        return iter(self._order)

    def next_worker(self, fits: Callable[[str], bool]) -> str | None:
        """The next worker that fits, round-robin from the last one returned; None if none fits (semantics D2)."""
        for worker in (*self._order[self._next :], *self._order[: self._next]):
            self._next = (self._next + 1) % len(self._order)
            if fits(worker):
                return worker
        return None


def _has_room(state: ClusterState, size: Resources, shut: Container[str], worker: str) -> bool:
    fits = worker not in shut and state.workers[worker].open_to(None).covers(size)
    return fits and state.fleet.admits(worker, size)


def _ticket(position: int, worker: str) -> bytes:
    return blake2b(f"{position}\n{worker}".encode(), digest_size=16).digest()
