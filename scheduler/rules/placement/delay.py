"""How long a request waits for a preferred host and for its rack, and when time alone changes something (L5, L6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured, Wanted
    from scheduler.rules.entities import App, Worker
    from scheduler.rules.timers import What
    from scheduler.rules.topology import Topology


def places(wanted: Wanted, level: Literal["host", "rack"], where: Topology) -> list[str]:
    """The live workers on the hosts, or in the racks, that these requests prefer."""
    by_place: Mapping[str, Sequence[str]] = where.by_host if level == "host" else where.by_rack
    named = wanted.locations.hosts if level == "host" else wanted.locations.racks
    return [worker for place in named or () for worker in by_place.get(place, ())]


def delayed_until(wanted: Wanted, settings: ClusterConfigured, where: Topology) -> tuple[int, int]:
    """When (ms) these requests stop to insist on a preferred host, and when on its rack (semantics L5).

    `locality_wait_host_ms` after they were asked for, and `locality_wait_rack_ms` after that. Nobody waits for a
    host or a rack that has no live worker, and a request without a preference waits for nothing.
    """
    for_host = wanted.since
    if any(host in where.by_host for host in wanted.locations.hosts or ()):
        for_host += settings.locality_wait_host_ms
    for_rack = for_host
    if any(rack in where.by_rack for rack in wanted.locations.racks or ()):
        for_rack += settings.locality_wait_rack_ms
    return for_host, for_rack


def served_by(worker: Worker, pending: Sequence[Wanted], settings: ClusterConfigured, where: Topology, at: int) -> int:
    """Which of these requests an executor serves that got to `worker` at time `at` in ms, as an index (semantics L5).

    The first that it is near enough to: one that prefers its host; its rack, and does not insist on a host any
    more; one without a preference; one that insists on nothing any more; else the oldest.
    """
    tests: tuple[Callable[[Wanted], bool], ...] = (
        lambda wanted: worker.host in (wanted.locations.hosts or ()),
        lambda wanted: (
            worker.rack != ""
            and worker.rack in (wanted.locations.racks or ())
            and at >= delayed_until(wanted, settings, where)[0]
        ),
        lambda wanted: wanted.locations.hosts is None,
        lambda wanted: at >= delayed_until(wanted, settings, where)[1],
    )
    found = (index for test in tests for index, wanted in enumerate(pending) if test(wanted))
    return next(found, 0)


def timers_of(app: App, settings: ClusterConfigured) -> list[tuple[int, What]]:
    """When (ms) a request's delay, a step of growth or an idle executor's time is over (semantics L5, L6)."""
    due: dict[tuple[int, What], None] = {}
    for wanted in app.wanted:
        if wanted.locations.hosts is not None:
            for_host, for_rack = settings.locality_wait_host_ms, settings.locality_wait_rack_ms
            for wait_ms in (for_host, for_rack, for_host + for_rack):
                due[wanted.since + wait_ms, "delay"] = None
    if app.elastic:
        if (app.executor_limit or 0) < (app.backlog_executors or 0):
            due[app.asked_at + settings.elastic_step_ms, "growth"] = None
        for executor in app.executors.values():
            if executor.idle_since is not None and executor.status != "stopping":
                due[executor.idle_since + settings.executor_idle_timeout_s * 1000, "idle"] = None
    return list(due)
