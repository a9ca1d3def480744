"""The apps whose memory request follows the live workers: those of one executor a worker (semantics S5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.events import OnePerWorker

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App


def workers_asked(app: App) -> int:
    """The number of workers for whose executors the app requests memory; 0 if its request follows no workers."""
    sizing, spec = app.sizing, app.spec
    if type(sizing) is not OnePerWorker or spec.cores is None or not app.admitted or app.over:
        return 0
    driver_mb = 0 if spec.driver is None else spec.driver.memory_mb
    return (app.requested.memory_mb - driver_mb) // sizing.memory_mb
