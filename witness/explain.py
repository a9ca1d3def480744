"""Why an app waits, why it was admitted and why its executors run where they do, derived from the log.

An app waits for one cause between two turns (`pending_reasons`), so the times by cause sum up to the waiting time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import to_builtins

from recovery.replay.rebuild import fold
from scheduler.model.causes import CAUSES
from scheduler.model.commands import KillApp
from scheduler.model.errors import UnknownApp
from scheduler.model.events import (
    AppAdmitted,
    AppRegistered,
    AppRemoved,
    CommandRefused,
    DriverAllocated,
    ExecutorAllocated,
    ExecutorRevoked,
    RevocationWithdrawn,
)
from scheduler.model.sender import NOBODY
from scheduler.rules.entities.apps import App
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import exclusions, spent
from scheduler.store.codec import Fact
from witness.decision_reasons import Batch, why_admitted, why_driver, why_executors
from witness.entitled_reasons import stands, targets_of
from witness.forecast import forecast
from witness.pending_reasons import place_in_queue, waits_for


def explain(
    facts: Iterable[Fact],
    name: str,
    *,
    now: Callable[[], int | None] = lambda: None,
    before: ClusterState | None = None,
) -> dict[str, Any]:
    """The app of that id or number as JSON values: what it waits for, why it was admitted, its executors, its waits.

    Waiting counts up to `now()` (ms), called after the log was read, or up to the last entry if that is None. If the id
    was used again, the last app is explained. `before`: the state before the first of `facts`, if earlier ones, of
    before the app was submitted, are left out.

    Raises: UnknownApp if the log does not contain it; InvariantViolated as `rebuild`.
    """
    story = _Story(name, before or ClusterState())
    for fact in facts:
        story.hear(fact)
    return story.ending(now())


def _receipt(event: ExecutorRevoked) -> dict[str, Any]:
    """What an app that lost an executor to another one is told (semantics H7, E8)."""
    shares = {} if event.shares is None else event.shares._asdict()
    return {
        "executor": event.executor,
        "worker": event.worker,
        "rule": event.rule,
        "claimant": event.claimant,
        "claimantCompany": event.claimant_company,
        "since": event.since,
        "deadline": event.deadline,
        "shares": shares,
        "why": event.why,
    }


def _runtime(app: App, at: int) -> dict[str, Any] | None:
    """How long the app may run and has run at `at` (ms), and when its time was over (semantics X); None = any time."""
    if app.max_runtime_s is None:
        return None
    return {"maxRuntime": app.max_runtime_s, "ranMs": app.ran_by(at), "expiredAt": app.expired_at or None}


class _Story:
    def __init__(self, name: str, state: ClusterState) -> None:
        self.name = name
        self.state = state
        self.turn = 0
        self._begin(None)

    def _begin(self, app: App | None) -> None:
        self.app = app
        self.waited: dict[tuple[str, str], int] = {}
        self.admission: dict[str, Any] | None = None
        self.ended: dict[str, int] | None = None
        self.drivers: list[dict[str, Any]] = []
        self.executors: list[dict[str, Any]] = []
        self.losses: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.batch: Batch | None = None

    def hear(self, fact: Fact) -> None:
        """Fold the next entry of the log; before the first of a turn, note the cause of waiting."""
        if fact.turn != self.turn:
            self.turn = fact.turn
            self._pause(fact.at)
        if self.app is None and isinstance(fact.event, AppRegistered) and str(fact.seq) == self.name:
            self.name = fact.event.app
        about = getattr(fact.event, "app", None) == self.name
        if about and self.app is not None:
            self._look(self.app, fact)
        fold(self.state, fact)
        if about and (app := self.state.apps.get(self.name)) is not None and app is not self.app:
            self._begin(app)
        if self.app is not None and fact.by is not NOBODY and getattr(fact.command, "app", None) == self.name:
            self._note_sender(fact)

    def _note_sender(self, fact: Fact) -> None:
        """Note who sent a command about the app, by which permission, and whether it was refused (semantics I1, I3)."""
        command = fact.command
        if command is None or fact.by.role in ("worker", "master"):
            return
        refused = fact.event.error if isinstance(fact.event, CommandRefused) else None
        reason = {"reason": fact.said} if isinstance(command, KillApp) and fact.said else {}
        sender = {"account": fact.by.account, "token": fact.by.token, "role": fact.by.role, "door": fact.by.door}
        what = {"command": type(command).__name__, "by": sender, **reason, "refused": refused}
        self.asked.append({"seq": fact.seq, "at": fact.at, **what})

    def _pause(self, now: int) -> None:
        """Add the time from the previous turn to `now` (ms) to the cause that held between."""
        self.batch = None
        if self.app is None or now <= self.state.at:
            return
        wait = waits_for(self.state, self.app)
        if wait is not None:
            key = wait.cause, wait.rule
            self.waited[key] = self.waited.get(key, 0) + now - self.state.at

    def _look(self, app: App, fact: Fact) -> None:
        """Note a decision about the app, with its reasons."""
        event, when = fact.event, {"seq": fact.seq, "at": fact.at}
        if isinstance(event, AppAdmitted):
            self.admission = {**when, "share": event.share, **why_admitted(self.state, app)}
        elif isinstance(event, AppRemoved):
            self.ended = when
        elif isinstance(event, DriverAllocated | ExecutorAllocated):
            place = {"worker": event.worker, "cores": event.resources.cores, "memory": event.resources.memory_mb}
            if isinstance(event, DriverAllocated):
                why = why_driver(self.state, event)
                self.drivers.append({"driver": event.driver, **when, **place, "why": why})
                return
            if self.batch is None or event.executor not in self.batch.executors:
                self.batch = why_executors(self.state, app, event, fact.at)
            self.executors.append({"executor": event.executor, **when, **place, "why": self.batch.why(event)})
        elif isinstance(event, ExecutorRevoked) and event.reason == "reclaimed" and not event.window:
            self.losses.append({**when, **_receipt(event)})
        elif isinstance(event, RevocationWithdrawn):
            self.losses = [loss for loss in self.losses if loss["executor"] != event.executor]

    def ending(self, now: int | None) -> dict[str, Any]:
        """The answer, once the whole log is folded."""
        if self.app is None:
            raise UnknownApp(self.name)
        app, spec = self.app, self.app.spec
        at = max(self.state.at, now or 0)
        self._pause(at)
        self.state.at = at  # dates are told as they are now
        order = list(CAUSES)
        ordered = sorted(self.waited.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
        wait = waits_for(self.state, app)
        told = {
            "app": self.name,
            "company": spec.company,
            "user": spec.user,
            "state": app.state,
            "head": self.state.head,
            "at": at,
            "waitsFor": None if wait is None else wait.told(),
            "queue": place_in_queue(self.state, app),
            "estimate": None,
            "submitted": {"seq": app.submitted, "at": app.submitted_at},
            "admission": self.admission,
            "drivers": self.drivers,
            "executors": self.executors,
            "runtime": _runtime(app, at),
            "standing": stands(self.state, app),
            "targets": targets_of(app),
            "losses": self.losses,
            "excludedWorkers": exclusions(self.state, app, at),
            "waited": {
                "ms": sum(self.waited.values()),
                "byCause": [{"cause": cause, "rule": rule, "ms": ms} for (cause, rule), ms in ordered],
            },
            "askedFor": self.asked,
            "ended": self.ended,
            "endedAt": app.ended_at or None,
            "detail": app.why,
            "spent": spent(app.spent),
        }
        estimate = forecast(self.state, at, [app.id], spoil=True).get(app.id)  # nothing looks at the state any more
        found: dict[str, Any] = to_builtins({**told, "estimate": None if estimate is None else estimate._asdict()})
        return found
