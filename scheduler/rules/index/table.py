"""What follows from the facts and is kept so that a decision does not grow with the cluster: one function an index.

The fold marks whose facts changed. Whoever asks for an index has those brought up to date first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from scheduler.model.events import OnePerWorker
from scheduler.model.resources import NOTHING
from scheduler.rules.index.closings import closings
from scheduler.rules.index.delay import timers_of
from scheduler.rules.index.followers import workers_asked
from scheduler.rules.index.keyed import Keyed, Place
from scheduler.rules.index.timers import OF_A_WORKER, Timers
from scheduler.rules.index.topology import Topology
from scheduler.rules.index.trouble import suspicion_timers

if TYPE_CHECKING:
    from scheduler.model.events import ClusterConfigured
    from scheduler.rules.entities.apps import App, Need, Slot
    from scheduler.rules.entities.workers import Window, Worker
    from scheduler.rules.index.timers import What

Key = tuple[str, "Need", str]


def key_of(app: App) -> Key:
    """What apps have in common of which all are served now, or none is: company, need, and the app if it has targets.

    (semantics P6)
    """
    return app.spec.company, app.need, app.id if app.holds else ""


def _owed(app: App) -> Place | None:
    return (key_of(app), app.admitted) if app.owed else None


def _drivers(app: App) -> Place | None:
    waits = app.spec.driver is not None and app.driver is None and app.admitted and not app.over
    return ("", app.submitted) if waits else None


def _needy(app: App) -> Place | None:
    return ("", app.admitted) if app.lack.units and app.admitted and app.ended is None else None


def _targeted(app: App) -> Place | None:
    return ("", (app.lack.date, app.id)) if app.holds and app.lack.units and app.ended is None else None


def _wishes(app: App) -> Place | None:
    wishes = app.demand.target is not None and app.admitted and not app.over
    return ("", app.demand.stated) if wishes else None


def _followers(app: App) -> Place | None:
    number = workers_asked(app) if type(app.sizing) is OnePerWorker else 0
    return (number, app.admitted) if number else None


def _judged(app: App) -> Place | None:
    return ("", app.submitted) if not app.ready and app.judged else None


def _owned(app: App) -> Place | None:
    return ("", app.id) if app.spec.owner_timeout_s is not None and app.ended is None else None


def _suspects(worker: Worker) -> Place | None:
    return ("", worker.id) if worker.suspicion is not None else None


def _probes(worker: Worker) -> Place | None:
    return ("", worker.id) if worker.suspicion is not None and not worker.suspicion.shut else None


def _leaving(worker: Worker) -> Place | None:
    return ("", worker.id) if worker.leaving != NOTHING and worker.status == "alive" else None


class Changes:
    """Whose facts changed since the indexes were brought up to date, by name."""

    def __init__(self) -> None:
        self.apps: dict[str, None] = {}
        self.workers: dict[str, None] = {}

    def app(self, app: App) -> None:
        """Facts of the app changed."""
        self.apps[app.id] = None

    def worker(self, worker: Worker) -> None:
        """Facts of the worker changed."""
        self.workers[worker.id] = None

    def everything(self, apps: Iterable[str], workers: Iterable[str]) -> None:
        """These are all apps and workers, and facts of any may have changed."""
        self.apps.update(dict.fromkeys(apps))
        self.workers.update(dict.fromkeys(workers))


class Indexes:
    """The indexes of the apps and workers of a state."""

    def __init__(
        self,
        apps: Mapping[str, App],
        workers: Mapping[str, Worker],
        slots: Mapping[str, Slot],
        planned: Mapping[str, tuple[Window, ...]],
    ) -> None:
        self._apps, self._workers, self._slots, self._planned = apps, workers, slots, planned
        self.changed = Changes()
        self.owed: Keyed[App] = Keyed(_owed)
        """The apps that placement still owes executors, by what they have in common and by admission (semantics P6)."""
        self.drivers: Keyed[App] = Keyed(_drivers)
        """The admitted apps whose driver waits for a worker, by submission (semantics D1)."""
        self.needy: Keyed[App] = Keyed(_needy)
        """The admitted apps that have a need, by admission (semantics H6)."""
        self.targeted: Keyed[App] = Keyed(_targeted)
        """The apps that have a need and targets, by its date (semantics H6)."""
        self.wishes: Keyed[App] = Keyed(_wishes)
        """The admitted apps whose stated demand is not met yet, by the position of the statement (semantics L1)."""
        self.followers: Keyed[App] = Keyed(_followers)
        """The apps whose memory request follows the live workers: by the number that they ask for (semantics S5)."""
        self.judged: Keyed[App] = Keyed(_judged)
        """The apps that the next turn lets be ready, or removes, by submission (semantics J2)."""
        self.owned: Keyed[App] = Keyed(_owned)
        """The apps that have not ended and whose owner shows signs of life, by name (semantics G4)."""
        self.of_apps = (
            *(self.owed, self.drivers, self.needy, self.targeted),
            *(self.wishes, self.followers, self.judged, self.owned),
        )
        self.suspects: Keyed[Worker] = Keyed(_suspects)
        """The suspected workers, all of them live, by name (semantics W8)."""
        self.probes: Keyed[Worker] = Keyed(_probes)
        """The suspected workers that may get an executor as a probe."""
        self.leaving: Keyed[Worker] = Keyed(_leaving)
        """The live workers on which something was told to leave, by name (semantics H6)."""
        self.places = Topology()
        """The live workers by host and by rack."""
        self.of_workers = self.suspects, self.probes, self.leaving, self.places.hosts, self.places.racks
        self.timers = Timers()
        """What apps, workers and slots wait for (semantics T1)."""

    def refresh(self, settings: ClusterConfigured, at: int) -> list[str]:
        """Bring up to date what changed, as of the last event at `at` (ms); the names of what moved in an index."""
        moved: list[str] = []
        apps, workers = self.changed.apps, self.changed.workers
        for name in apps:
            app = self._apps.get(name)
            for index in self.of_apps:
                now = None if app is None else index.key(app)
                if now != index.places.get(name):
                    index.move(name, app, now)
                    moved.append(name)
            if self.timers.forget_app(name) if app is None else self._set_timers(app, settings, at):
                moved.append(name)
        apps.clear()
        for name in workers:
            worker = self._workers.get(name)
            moved += [name for each in self.of_workers if each.refresh(name, worker)]
            due = [] if worker is None else suspicion_timers(worker)
            if worker is not None and name in self._planned:
                due += closings(worker, self._planned[name], self._apps, settings, at)
            if self.timers.set(name, OF_A_WORKER, due):
                moved.append(name)
        workers.clear()
        return moved

    def names(self) -> set[str]:
        """Every app and worker that stands in an index."""
        return {name for index in (*self.of_apps, *self.of_workers) for name in index.places}

    def _set_timers(self, app: App, settings: ClusterConfigured, at: int) -> bool:
        """The times for which the app waits; whether they are others than before."""
        timers, name, waits = self.timers, app.id, False
        if app.admitted and app.ended is None:
            waits = bool(app.max_runtime_s is not None or app.spec.elastic or app.demand.wanted or app.troubles)
            waits = waits or app.tries.driver_after > 0 or bool(app.holds)
        if not (waits or app.not_before or name in self._slots or timers.waits(name)):  # most apps
            return False
        moved = app.restarts > 0 and timers.forget_admissions(name, app.admitted)
        if app.admitted:
            moved = timers.set(name, app.admitted, timers_of(app, settings, at) if waits else ()) or moved
        begin: list[tuple[int, What]] = [(app.not_before, "begin")] if app.not_before and app.ended is None else []
        moved = timers.set(name, -5, begin) or moved
        slot = self._slots.get(name)
        end: list[tuple[int, What]] = [] if slot is None else [(slot.until if slot.began else slot.date, "slot")]
        return timers.set(name, -4, end) or moved
