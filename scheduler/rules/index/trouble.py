"""What the facts say of failures: what keeps an app from a worker (W7, W9), and why a worker is suspected (W8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured
    from scheduler.rules.entities.apps import App, Trouble
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.index.timers import What

QUICK_MS = 10_000
"""An abnormal end within this time after the start is quick; a probe that runs for so long clears its worker."""
LONGEST_RESTART_MS = 300_000
_SUSPECT_FAILURES = 5
_AT_ONCE = 2
"""How many of a driver's quick ends in a row let it start again at once."""


def is_quick(running_since: int, at: int) -> bool:
    """Whether an executor that ends at `at` (ms) ended soon after its start, or never ran (semantics W8)."""
    return not running_since or at - running_since < QUICK_MS


def failures_in_a_row(app: App, executor: Allocation, at: int) -> int:
    """The app's row of failures with that of the executor at `at` (ms): running ends it, for programs 10 s (W5, G2).

    That of a gang never ends: each failure stops all of it (G8).
    """
    ended = app.spec.programs and not app.spec.gang and not is_quick(executor.running_since, at)
    return 1 if ended else app.failures + 1


def most_failures(app: App, settings: ClusterConfigured) -> int:
    """How many failures in a row end the app (semantics W5)."""
    return settings.max_executor_failures if app.spec.max_failures is None else app.spec.max_failures


def serving(app: App, without: Allocation, at: int) -> int:
    """How many other executors of the app keep it from failing at `at` (ms): those that run, programs for 10 s (G2)."""
    if app.spec.gang:
        return 0
    if not app.spec.programs:
        return app.running - (without.status == "running")
    others = [one for one in app.executors.values() if one is not without and one.status == "running"]
    return sum(not is_quick(one.running_since, at) for one in others)


def restart_after(ends: int, at: int) -> int:
    """Not before when (ms) a driver is granted again after so many quick ends, the last at `at` (ms) (semantics D3)."""
    again = ends - _AT_ONCE
    return at + min(1000 << min(again - 1, 30), LONGEST_RESTART_MS) if again > 0 else 0


def kept_until(trouble: Trouble, settings: ClusterConfigured) -> int:
    """Until when (ms) an app with this trouble gets nothing on the worker; 0 if it may (semantics W7, W9)."""
    excluded = trouble.unstartable or 0 < exclude_after(settings) <= trouble.ends
    return trouble.at + settings.exclude_s * 1000 if excluded else 0


def excluded(app: App, settings: ClusterConfigured, at: int) -> dict[str, None]:
    """The workers on which the app gets nothing at time `at` (ms) if others could host it (semantics W7, W9)."""
    return {worker: None for worker, trouble in app.troubles.items() if at < kept_until(trouble, settings)}


def suspicion_timers(worker: Worker) -> list[tuple[int, What]]:
    """When (ms) the worker may get a probe, or the one that it has will have run for long enough (semantics W8)."""
    suspicion = worker.suspicion
    if suspicion is None:
        return []
    if not suspicion.on_probe:
        return [(suspicion.until, "suspect")]
    probe = worker.executors.get(suspicion.probe)
    return [] if probe is None or not probe.running_since else [(probe.running_since + QUICK_MS, "probe")]


def suspect_failures(settings: ClusterConfigured) -> int:
    """How many quick abnormal ends make a worker suspected, 0 = none do; by default so with open admission (W8)."""
    if settings.suspect_failures is not None:
        return settings.suspect_failures
    return 0 if settings.admission == "open" else _SUSPECT_FAILURES


def exclude_after(settings: ClusterConfigured) -> int:
    """How many abnormal ends keep an app from a worker; with open admission none do, as in Spark (semantics W7)."""
    return 0 if settings.admission == "open" else settings.exclude_after
