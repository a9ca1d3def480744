"""Executor placement for apps with preferred hosts (semantics L5)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from scheduler.rules.entities.fleet import in_order
from scheduler.rules.entities.labels import sought
from scheduler.rules.index.delay import delayed_until, places
from scheduler.rules.placement.executors import PLACEMENTS, allocations, one_probe

if TYPE_CHECKING:
    from scheduler.model.events import ExecutorAllocated, Locality
    from scheduler.model.resources import Resources
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.state.cluster import ClusterState

LEVELS: tuple[Literal["host", "rack"], ...] = ("host", "rack")


def place_near(
    state: ClusterState,
    app: App,
    unit: Resources,
    at: int,
    *,
    most: Resources | None = None,
    without: Collection[str] = (),
    demand: str = "",
) -> list[ExecutorAllocated]:
    """Executors for pending requests: on a preferred host, in its rack, or anywhere (semantics L5).

    A request waits a bounded time for each nearer level, counted from its creation. Within a level, workers are
    selected by the usual rules (P1, P2), those `without` and those that do not meet the `demand` left out.
    """
    settings, seeking = state.settings, sought(unit, demand)
    affordable = app.lacking if settings.admission == "open" else app.affords(unit)
    if most is not None:
        affordable = min(affordable, most.holds(unit))
    put = PLACEMENTS[settings.placement].of_size
    anywhere = 0
    for level in LEVELS:
        for wanted in app.demand.wanted:
            for_host, for_rack = delayed_until(wanted, settings, state.indexes.places)
            anywhere += wanted.number if level == "rack" and at >= for_rack else 0
            if wanted.locations.hosts is None or (level == "rack" and at < for_host):
                continue
            near = [
                (worker, state.workers[worker].open_to(app.id))
                for worker in places(wanted, level, state.indexes.places)
                if worker not in without and state.fleet.admits(worker, seeking)
            ]
            fitting = in_order(near, unit, settings.worker_selection)
            if state.fleet.offering or state.fleet.with_class:
                fitting = iter(
                    sorted(fitting, key=lambda one: state.fleet.rank(one[0], seeking, sparing=state.sparing))
                )
            counts = put(one_probe(fitting, state.indexes.probes.members, unit), unit, min(wanted.number, affordable))
            if counts:
                return allocations(app, counts, unit, level)
    if not anywhere or not affordable:
        return []
    candidates = state.fleet.candidates(seeking, settings.worker_selection, sparing=state.sparing)
    candidates = one_probe(candidates, state.indexes.probes.members, unit)
    granted = allocations(app, put(candidates, unit, min(anywhere, affordable)), unit)
    hosts = [host for host, tasks in app.demand.preferred_hosts.items() if tasks]
    racks = state.indexes.places.racks_of(hosts).values()
    return [replace(executor, locality=_reached(state.workers[executor.worker], hosts, racks)) for executor in granted]


def _reached(worker: Worker, hosts: Collection[str], racks: Collection[str]) -> Locality:
    """The locality level of a worker relative to preferred hosts and their racks."""
    return "host" if worker.host in hosts else "rack" if worker.rack and worker.rack in racks else "any"
