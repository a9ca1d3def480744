"""Why an app waits, why it was admitted when it was, and why its executors are where they are: all from the log.

The log is folded once. Between two turns an app waits for one cause (`recovery.waits`); so its waiting time is
split to the millisecond and adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from recovery.replay.rebuild import fold
from scheduler.model.errors import UnknownApp
from scheduler.model.events import AppAdmitted, DriverAllocated, ExecutorAllocated
from scheduler.rules.state import ClusterState
from witness.decision_reasons import why_admitted, why_driver, why_executors
from witness.pending_reasons import CAUSES, Wait, place_in_queue, waits_for

if TYPE_CHECKING:
    from scheduler.rules.entities import App
    from scheduler.store.codec import Fact
    from witness.decision_reasons import Batch

_ORDER = {cause: number for number, cause in enumerate(CAUSES)}


def explain(facts: Iterable[Fact], name: str, *, now: Callable[[], int | None] = lambda: None) -> dict[str, Any]:
    """The life of the app as JSON values: what it waits for, why it was admitted, its executors, its waiting time.

    It is told up to the time in ms that `now` says once the log was read, or to the log's last entry.

    Raises: UnknownApp if the log never heard of it; InvariantViolated as `rebuild`.
    """
    told = _Story(name)
    for fact in facts:
        told.hear(fact)
    return told.ending(now())


class _Story:
    """An app's life; of one whose id came again, once it was forgotten, that of the last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ClusterState()
        self.turn = 0
        self._begin(None)

    def _begin(self, app: App | None) -> None:
        self.app = app
        self.waited: dict[tuple[str, str], int] = {}
        self.admission: dict[str, Any] | None = None
        self.drivers: list[dict[str, Any]] = []
        self.executors: list[dict[str, Any]] = []
        self.batch: Batch | None = None

    def hear(self, fact: Fact) -> None:
        """Fold the next entry of the log; between two turns, see what the app waits for."""
        if fact.turn != self.turn:
            self.turn = fact.turn
            self._pause(fact.at)
        about = getattr(fact.event, "app", None) == self.name
        if about and self.app is not None:
            self._look(self.app, fact)
        fold(self.state, fact)
        if about and (app := self.state.apps.get(self.name)) is not None and app is not self.app:
            self._begin(app)

    def _pause(self, now: int) -> None:
        """The turn before is over: what the app has waited for since then, until `now` (ms), counts for one cause."""
        self.batch = None
        if self.app is None or now <= self.state.at:
            return
        wait = waits_for(self.state, self.app)
        if wait is not None:
            key = wait.cause, wait.rule
            self.waited[key] = self.waited.get(key, 0) + now - self.state.at

    def _look(self, app: App, fact: Fact) -> None:
        """Take note of a decision about the app, with what it was made on."""
        event, when = fact.event, {"seq": fact.seq, "at": fact.at}
        match event:
            case AppAdmitted():
                self.admission = {**when, "share": event.share, **why_admitted(self.state, app.queued)}
            case DriverAllocated():
                place = {"worker": event.worker, "cores": event.resources.cores, "memory": event.resources.memory_mb}
                why = why_driver(self.state, event)
                self.drivers.append({"driver": event.driver, **when, **place, "why": why})
            case ExecutorAllocated():
                if self.batch is None or event.executor not in self.batch.executors:
                    self.batch = why_executors(self.state, app, event, fact.at)
                place = {"worker": event.worker, "cores": event.resources.cores, "memory": event.resources.memory_mb}
                self.executors.append({"executor": event.executor, **when, **place, "why": self.batch.why(event)})
            case _:
                pass

    def ending(self, now: int | None) -> dict[str, Any]:
        """What there is to tell once the log has been heard."""
        if self.app is None:
            raise UnknownApp(self.name)
        app, spec = self.app, self.app.spec
        at = max(self.state.at, now or 0)
        self._pause(at)
        ordered = sorted(self.waited.items(), key=lambda item: (_ORDER[item[0][0]], item[0][1]))
        wait: Wait | None = waits_for(self.state, app)
        return {
            "app": self.name,
            "company": spec.company,
            "user": spec.user,
            "state": app.state,
            "head": self.state.head,
            "at": at,
            "waitsFor": None if wait is None else wait.as_json(),
            "queue": place_in_queue(self.state, app),
            "submitted": {"seq": app.submitted, "at": app.submitted_at},
            "admission": self.admission,
            "drivers": self.drivers,
            "executors": self.executors,
            "waited": {
                "ms": sum(self.waited.values()),
                "byCause": [{"cause": cause, "rule": rule, "ms": ms} for (cause, rule), ms in ordered],
            },
            "endedAt": app.ended_at or None,
            "detail": app.detail,
        }
