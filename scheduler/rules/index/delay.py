"""Delay scheduling: how long a request waits for a preferred host, then for its rack; timers of apps (L5, L6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from scheduler.rules.index.trouble import kept_until

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured, Wanted
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.index.timers import What
    from scheduler.rules.index.topology import Topology


def places(wanted: Wanted, level: Literal["host", "rack"], where: Topology) -> list[str]:
    """The live workers on the preferred hosts, or in the preferred racks, of these requests."""
    by_place: Mapping[str, Sequence[str]] = where.by_host if level == "host" else where.by_rack
    named = wanted.locations.hosts if level == "host" else wanted.locations.racks
    return [worker for place in named or () for worker in by_place.get(place, ())]


def delayed_until(wanted: Wanted, settings: ClusterConfigured, where: Topology) -> tuple[int, int]:
    """The times (ms) at which these requests stop waiting for a preferred host, and for its rack (semantics L5).

    The wait for a host lasts `locality_wait_host_ms` from the request, the wait for a rack another
    `locality_wait_rack_ms`. There is no wait for a level without a preference or without live workers.
    """
    for_host = wanted.since
    if any(host in where.by_host for host in wanted.locations.hosts or ()):
        for_host += settings.locality_wait_host_ms
    for_rack = for_host
    if any(rack in where.by_rack for rack in wanted.locations.racks or ()):
        for_rack += settings.locality_wait_rack_ms
    return for_host, for_rack


def served_by(worker: Worker, pending: Sequence[Wanted], settings: ClusterConfigured, where: Topology, at: int) -> int:
    """Index of the request that an executor granted on `worker` at `at` (ms) serves (semantics L5).

    The first request of the first class that has one:

    1. prefers the worker's host;
    2. prefers its rack, and the wait for a host is over;
    3. has no preference;
    4. both waits are over;
    5. any request.
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


def timers_of(app: App, settings: ClusterConfigured, at: int) -> list[tuple[int, What]]:
    """Times (ms) at which a wait, elastic step, idle timeout, exclusion, runtime or loan ends (L5, L6, W7, X2, H11).

    `at` is the time of the last event.
    """
    if app.expired_at:
        return []
    due: dict[tuple[int, What], None] = {}
    if app.max_runtime_s is not None:
        due.update(dict.fromkeys(_runtime_moments(app, app.max_runtime_s * 1000)))
    due.update(dict.fromkeys(_delay_moments(app, settings)))
    if app.elastic:
        due.update(dict.fromkeys(_elastic_moments(app, settings, at)))
    for trouble in app.troubles.values():
        if until := kept_until(trouble, settings):
            due[until, "excluded"] = None
    if app.holds and settings.backfill:
        due[app.lack.date, "date"] = None
    if app.tries.driver_after:
        due[app.tries.driver_after, "restart"] = None
    return list(due)


def _delay_moments(app: App, settings: ClusterConfigured) -> Iterator[tuple[int, What]]:
    """When a request of the app has waited for a host, a rack, or both (semantics L5)."""
    for_host, for_rack = settings.locality_wait_host_ms, settings.locality_wait_rack_ms
    for wanted in app.demand.wanted:
        if wanted.locations.hosts is not None:
            for wait_ms in (for_host, for_rack, for_host + for_rack):
                yield wanted.since + wait_ms, "delay"


def _elastic_moments(app: App, settings: ClusterConfigured, at: int) -> Iterator[tuple[int, What]]:
    """When the app may grow next after `at`, and when its idle executors are returned (semantics L6)."""
    if app.wants_more:
        yield at + settings.elastic_step_ms - (at - app.demand.asked_at) % settings.elastic_step_ms, "growth"
    for executor in app.executors.values():
        if executor.idle_since is not None and executor.status != "stopping":
            yield executor.idle_since + settings.executor_idle_timeout_s * 1000, "idle"


def _runtime_moments(app: App, limit_ms: int) -> Iterator[tuple[int, What]]:
    """When the app is warned and when its time is over, if it goes on running (semantics X2)."""
    if app.running_since is None:
        if app.ran_ms >= limit_ms:
            yield 0, "expiry"
        return
    over = app.running_since + limit_ms - app.ran_ms
    yield over, "expiry"
    if app.spec.warn is not None and not app.warned:
        yield max(over - app.spec.warn.before_s * 1000, app.running_since + 1), "warning"
