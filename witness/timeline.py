"""The life of one app, from the log: its waits by cause, its executors on their workers, and who asked for what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from recovery.replay.rebuild import fold
from scheduler.model import events
from scheduler.model.errors import UnknownApp
from scheduler.model.sender import NOBODY
from scheduler.rules.state.cluster import ClusterState
from witness.pending_reasons import waits_for
from witness.playback import told

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.store.codec import Fact

MOST = 400
"""The most executors, stretches of waiting and marks that are told; the newest are."""
_MARKS = (
    events.AppRegistered
    | events.AppAdmitted
    | events.AppReady
    | events.AppHeld
    | events.AppReleased
    | events.AppDelayed
    | events.AppDue
    | events.AppReprioritized
    | events.AppChanged
    | events.AppWarned
    | events.AppSignalled
    | events.TaskCancelled
    | events.AppRequeued
    | events.TaskRequeued
    | events.AppExpired
    | events.AppExtended
    | events.AppRemoved
    | events.RoomReserved
    | events.RoomHeld
    | events.NeedBegan
    | events.NeedEnded
    | events.SlotAwaited
    | events.SlotBegan
    | events.SlotEnded
    | events.TargetSet
)
_WORDS: dict[type[events.Event], str] = {
    events.AppReady: "its dependencies are met",
    events.AppDelayed: "it is not to begin before a time",
    events.AppDue: "its time to begin has come",
    events.AppChanged: "its demand was changed",
    events.AppExtended: "it may run longer",
    events.AppSignalled: "its tasks get a signal",
    events.TaskCancelled: "one of its tasks is cancelled",
    events.AppRequeued: "it is put back into its queue",
    events.TaskRequeued: "one of its tasks is put back",
    events.NeedBegan: "it is below its entitlement",
    events.NeedEnded: "it is not below its entitlement any more",
    events.SlotAwaited: "it is larger than its share and awaits a slot",
    events.SlotBegan: "its slot begins",
    events.SlotEnded: "it has and awaits no slot any more",
    events.TargetSet: "room is made for it",
}


class Timeline:
    """Folds the log from its start."""

    def __init__(self, name: str) -> None:
        self.name, self.state = name, ClusterState()
        self._app: App | None = None
        self._turn = 0
        self._waits: list[dict[str, Any]] = []
        self._lanes: dict[str, dict[str, Any]] = {}
        self._marks: list[dict[str, Any]] = []
        self._asked: list[dict[str, Any]] = []

    def hear(self, facts: Iterable[Fact]) -> None:
        """Fold the facts. Raises: as `fold`."""
        for fact in facts:
            if fact.turn != self._turn:
                self._turn = fact.turn
                self._pass(fact.at)
            event = fold(self.state, fact)
            if isinstance(event, events.AppRegistered) and event.app == self.name:
                self._app = self.state.apps[self.name]
                self._waits, self._marks, self._asked = [], [], []
                self._lanes.clear()
            if self._app is not None:
                self._note(fact)

    def _pass(self, at: int) -> None:
        """Time passes up to `at` (ms): add it to the stretch of the cause that held."""
        if self._app is None or at <= self.state.at:
            return
        wait = waits_for(self.state, self._app)
        if wait is None:
            return
        last = self._waits[-1] if self._waits else None
        if last is not None and last["cause"] == wait.cause and last["to"] == self.state.at:
            last["to"] = at
            return
        self._waits.append({"cause": wait.cause, "rule": wait.rule, "from": self.state.at, "to": at})

    def _note(self, fact: Fact) -> None:
        event = fact.event
        name = getattr(event, "executor", None) or getattr(event, "driver", None)
        if isinstance(event, events.ExecutorAllocated | events.DriverAllocated):
            if event.app == self.name:
                self._lanes[str(name)] = _lane(event, fact)
        elif name is not None and (lane := self._lanes.get(name)) is not None:
            _change(lane, event, fact.at)
        elif isinstance(event, _MARKS) and event.app == self.name:
            text = _WORDS.get(type(event)) or told(event) or type(event).__name__
            self._marks.append({"seq": fact.seq, "at": fact.at, "type": type(event).__name__, "text": text})
        self._note_sender(fact)

    def _note_sender(self, fact: Fact) -> None:
        command = fact.command
        if command is None or fact.by is NOBODY or fact.by.role in ("worker", "master"):
            return
        if getattr(command, "app", None) != self.name:
            return
        refused = fact.event.message if isinstance(fact.event, events.CommandRefused) else None
        self._asked.append(
            {
                "seq": fact.seq,
                "at": fact.at,
                "command": type(command).__name__,
                "account": fact.by.account,
                "role": fact.by.role,
                "reason": fact.said or None,
                "refused": refused,
            }
        )

    def told(self, now: int) -> dict[str, Any]:
        """The timeline up to `now` (ms). Raises: UnknownApp."""
        app = self._app
        if app is None:
            raise UnknownApp(self.name)
        at = max(now, self.state.at)
        self._pass(at)
        lanes = [{"id": name, **lane} for name, lane in self._lanes.items()]
        return {
            "app": self.name,
            "company": app.spec.company,
            "user": app.spec.user,
            "submittedAt": app.submitted_at,
            "admittedAt": app.admitted_at or None,
            "endedAt": app.ended_at or None,
            "until": at,
            "waits": self._waits[-MOST:],
            "executors": lanes[-MOST:],
            "leftOut": max(0, len(lanes) - MOST),
            "marks": self._marks[-MOST:],
            "asked": self._asked[-MOST:],
        }


def _lane(event: events.ExecutorAllocated | events.DriverAllocated, fact: Fact) -> dict[str, Any]:
    """An executor or a driver from its grant on; times in ms, None = not yet."""
    return {
        "what": "driver" if isinstance(event, events.DriverAllocated) else "executor",
        "worker": event.worker,
        "cores": event.resources.cores,
        "memory": event.resources.memory_mb,
        "seq": fact.seq,
        "from": fact.at,
        **dict.fromkeys(("running", "told", "to", "end", "loss")),
    }


def _change(lane: dict[str, Any], event: events.Event, at: int) -> None:
    """Note what became of the executor."""
    if isinstance(event, events.ExecutorChanged):
        lane["running"] = lane["running"] or at
    elif isinstance(event, events.ExecutorRevoked):
        lane["told"], lane["loss"] = at, _loss(event)
    elif isinstance(event, events.RevocationWithdrawn):
        lane["told"] = lane["loss"] = None
    elif isinstance(event, events.ExecutorRemoved | events.DriverRemoved):
        lane["to"], lane["end"] = at, event.reason


def _loss(event: events.ExecutorRevoked) -> dict[str, Any]:
    """Why an executor had to leave: its receipt, if it leaves for a claim (semantics H7)."""
    told: dict[str, Any] = {"reason": event.reason}
    if event.window:
        return {"reason": "window", "window": event.window}
    if event.gang:
        return {"reason": "gang"}
    if event.reason == "reclaimed":
        told |= {"rule": event.rule, "claimant": event.claimant, "claimantCompany": event.claimant_company}
        told |= {"since": event.since, "shares": None if event.shares is None else event.shares._asdict()}
    return told
