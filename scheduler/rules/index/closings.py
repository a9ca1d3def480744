"""What the facts say of windows: when workers close for them, and who must leave by when (semantics W14)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.workers import Window, Worker
    from scheduler.rules.index.timers import What

SETTLE_MS = 5000
"""What runs on a worker is killed so long before a window begins, so that it is gone by then."""


def ends_within(settings: ClusterConfigured, app: App, at: int) -> int:
    """How long (ms) after `at` what the app begins then is gone: after its runtime, or once it is told to leave."""
    lasts = 0
    if app.max_runtime_s is not None:
        lasts = max(0, app.max_runtime_s * 1000 - app.ran_by(at))
    return lasts + leaving_ms(settings, app)


def grace_s(settings: ClusterConfigured, app: App) -> int:
    """How many seconds what runs of the app has between SIGTERM and SIGKILL before a window (semantics G5, H7)."""
    return max(settings.kill_grace_s, app.spec.grace_s or 0)


def grace_of(settings: ClusterConfigured, app: App, held: Allocation) -> int:
    """How many seconds the executor, which leaves, has between SIGTERM and SIGKILL (semantics H7, W14)."""
    return grace_s(settings, app) if held.revoked == "window" else settings.kill_grace_s


def leaving_ms(settings: ClusterConfigured, app: App) -> int:
    """How long (ms) it takes from SIGTERM until what runs of the app is gone for certain."""
    return grace_s(settings, app) * 1000 + SETTLE_MS


def is_leaving(settings: ClusterConfigured, window: Window, held: Allocation, app: App, at: int) -> bool:
    """Whether the executor was told to stop, or to leave before the window, or by now.

    Who leaves for a need may stay if the need ends, so it is told again.
    """
    if held.status != "stopping":
        return False
    if app.over or held.revoked not in ("reclaimed", "window"):
        return True
    return held.revoked == "window" and held.deadline <= max(window.begin - leaving_ms(settings, app), at)


def told_at(settings: ClusterConfigured, window: Window, app: App) -> int:
    """When (ms) what runs of the app in the way of the window is told to leave."""
    return min(window.closes, window.begin - leaving_ms(settings, app))


def kept_out(window: Window, worker: Worker, apps: Mapping[str, App]) -> Iterator[tuple[Allocation, App]]:
    """What is granted on the worker that must not run in the window, drivers first, and whose it is."""
    for held in (*worker.drivers.values(), *worker.executors.values()):
        app = apps[held.app]
        if window.concerns(app.spec.company):
            yield held, app


def untold(
    window: Window, worker: Worker, apps: Mapping[str, App], settings: ClusterConfigured, at: int
) -> Iterator[tuple[Allocation, App, int]]:
    """What of that was not told to leave by `at` (ms), and when (ms) it is to be told."""
    for held, app in kept_out(window, worker, apps):
        if not is_leaving(settings, window, held, app, at):
            yield held, app, told_at(settings, window, app)


def closings(
    worker: Worker, windows: Sequence[Window], apps: Mapping[str, App], settings: ClusterConfigured, at: int
) -> list[tuple[int, What]]:
    """When (ms) the worker closes for a window, or somebody there is told to leave for one, next; `at`: of now."""
    due: list[int] = []
    for window in windows:
        if not window.company and worker.status == "alive":
            due.append(window.closes)
        due += [when for _, _, when in untold(window, worker, apps, settings, at)]
    return [(min(due), "window")] if due else []
