"""The apps whose memory request follows the live workers: those of one executor a worker (semantics S5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.events import OnePerWorker

if TYPE_CHECKING:
    from recovery.second_edition.rules.entities import App


def workers_asked(app: App) -> int:
    """The number of workers for whose executors the app requests memory; 0 if its request follows no workers."""
    sizing, spec = app.sizing, app.spec
    if type(sizing) is not OnePerWorker or spec.cores is None or not app.admitted or app.over:
        return 0
    driver_mb = 0 if spec.driver is None else spec.driver.memory_mb
    return (app.requested.memory_mb - driver_mb) // sizing.memory_mb


class Followers:
    """These apps by the number of workers that they request memory for: only those behind are ever looked at."""

    def __init__(self) -> None:
        self.by_workers: dict[int, dict[str, App]] = {}
        """Number of workers -> id of the app -> app."""
        self._workers: dict[str, int] = {}

    def update(self, app: App) -> None:
        """The app was admitted, has ended, or requests something else."""
        name, number = app.id, workers_asked(app)
        before = self._workers.pop(name, 0)
        if number:
            self._workers[name] = number
        if number != before:
            if before:
                alike = self.by_workers[before]
                del alike[name]
                if not alike:
                    del self.by_workers[before]
            if number:
                self.by_workers.setdefault(number, {})[name] = app

    def behind(self, live: int) -> list[App]:
        """The apps that request memory for fewer workers than are live, in the order of admission."""
        found = [app for number, apps in self.by_workers.items() if number < live for app in apps.values()]
        return sorted(found, key=lambda app: app.admitted)
