"""On which workers drivers go (semantics D)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

from scheduler.events import DriverAllocated

if TYPE_CHECKING:
    from scheduler.fleet import Fleet
    from scheduler.state import ClusterState


def place_drivers(state: ClusterState) -> Iterator[DriverAllocated]:
    """The drivers that find a worker, in the order of their apps' submission (semantics D1, D2, D4).

    The caller folds each before it asks for the next. One that fits nowhere waits and holds up nobody.
    """
    settings = state.settings
    numerator, denominator = map(int, settings.max_driver_share.split("/"))
    held = _held_by_drivers(state) if state.waiting_drivers else 0
    draw = Draw(state.head)
    served = 0
    while (app := state.next_waiting_driver(served)) is not None:
        served, spec = app.submitted, app.spec
        if settings.max_drivers is not None and len(state.drivers) >= settings.max_drivers:
            return
        if (held + spec.driver_cores) * denominator > numerator * state.fleet.total_cores:
            continue
        find = draw.next_worker if settings.spread_out_drivers else first_fit
        worker = find(state.fleet, spec.driver_cores, spec.driver_memory_mb)
        if worker is not None:
            held += spec.driver_cores
            yield DriverAllocated(
                app=spec.app,
                driver=f"{spec.app}.driver-{app.next_driver}",
                worker=worker,
                cores=spec.driver_cores,
                memory_mb=spec.driver_memory_mb,
            )


class Draw:
    """The live workers in an order that a log position draws: the same on every replay (semantics D2)."""

    def __init__(self, position: int) -> None:
        self._position = position
        self._stopped_at = b""

    def next_worker(self, fleet: Fleet, cores: int, memory_mb: int) -> str | None:
        """The next one with that much free, from where the last driver stopped, round and round."""
        fitting = [(self._ticket(worker), worker) for worker, _ in fleet.candidates(cores, memory_mb, "worker-id")]
        if not fitting:
            return None
        self._stopped_at, worker = min(fitting, key=lambda one: (one[0] <= self._stopped_at, one))
        return worker

    def _ticket(self, worker: str) -> bytes:
        return blake2b(f"{self._position}\n{worker}".encode(), digest_size=16).digest()


def first_fit(fleet: Fleet, cores: int, memory_mb: int) -> str | None:
    """The first worker by id with that much free (semantics D2)."""
    return next((worker for worker, _ in fleet.candidates(cores, memory_mb, "worker-id")), None)


def _held_by_drivers(state: ClusterState) -> int:
    """The cores of live workers that drivers hold (semantics D4, A4)."""
    workers = state.workers
    return sum(driver.cores for driver in state.drivers.values() if workers[driver.worker].status == "alive")
