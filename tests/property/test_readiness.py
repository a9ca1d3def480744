"""An app is in its user's queue if and only if it waits for no app, no release and no time (semantics J1-J4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given

from scheduler.model.events import (
    AppAdmitted,
    AppDelayed,
    AppDue,
    AppHeld,
    AppReady,
    AppRegistered,
    AppReleased,
    AppRemoved,
    AppRequeued,
    Condition,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
)
from tests.property.given import examples
from tests.property.histories import HISTORIES, History, played, seeded

MEETS: dict[Condition, set[str]] = {
    "ok": {"finished"},
    "any": {"finished", "failed", "killed", "unmet", "expired"},
    "not-ok": {"failed", "killed", "unmet", "expired"},
    "began": {"finished", "failed", "killed", "unmet", "expired"},
}


@dataclass
class Known:
    """An app as the log tells it: what it waits for, and how it ended."""

    after: list[tuple[Known, Condition]]
    on_hold: bool
    ready: bool
    delayed: bool = False
    began: bool = False
    admitted: bool = False
    ended: str = ""
    holds: int = 0

    def may_start(self) -> bool:
        if self.began and not self.admitted and self.holds:
            return False
        met = [other.ended in MEETS[how] or (how == "began" and other.began) for other, how in self.after]
        return not self.on_hold and not self.delayed and all(met)

    def waits_in_vain(self) -> bool:
        return any(other.ended and other.ended not in MEETS[how] for other, how in self.after)


@dataclass
class Reader:
    """Follows the events of a log, without a state."""

    apps: dict[str, Known] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    def hear(self, event: Event, cause: str) -> None:  # noqa: C901 - a case a kind of event
        match event:
            case AppRegistered(app=name):
                after = [(self.apps[other], how) for other, how in event.after]
                self.apps[name] = Known(after, event.on_hold, not after and not event.on_hold)
            case ExecutorAllocated(app=name) | DriverAllocated(app=name):
                self.apps[name].began = True
                self.apps[name].holds += 1
            case AppReady(app=name):
                assert self.apps[name].may_start(), f"{name} still waits"
                assert not self.apps[name].ready
                self.apps[name].ready = True
            case AppHeld(app=name):
                self.apps[name].on_hold, self.apps[name].ready = True, False
            case AppReleased(app=name):
                self.apps[name].on_hold = False
            case AppDelayed(app=name):
                self.apps[name].delayed, self.apps[name].ready = True, False
            case AppDue(app=name):
                self.apps[name].delayed = False
            case AppAdmitted(app=name):
                assert self.apps[name].ready, f"{name} is admitted, but not ready"
                self.apps[name].admitted = True
            case AppRequeued(app=name):
                assert self.apps[name].admitted
                assert not self.apps[name].ended
                self.apps[name].admitted = self.apps[name].ready = False
            case ExecutorRemoved(app=name) | DriverRemoved(app=name):
                self.apps[name].holds -= 1
            case AppRemoved(app=name):
                assert (event.reason == "unmet") <= self.apps[name].waits_in_vain(), f"{name} may still start"
                assert cause or event.reason in ("unmet", "expired"), f"{name} is removed without a command"
                assert not (cause and event.reason == "unmet"), f"a command removes {name}, whose conditions are unmet"
                self.apps[name].ended = event.reason

    def settled(self) -> None:
        """What must hold once a turn has decided."""
        for name, app in self.apps.items():
            if not app.admitted and not app.ended:
                at_once = all(how != "began" for _, how in app.after)
                assert app.ready == app.may_start() or (app.may_start() and not at_once), name
                assert not app.waits_in_vain() or app.ready, f"{name} waits in vain"


@given(HISTORIES)
@example(seeded(0, 56, later=True))  # an app expires that holds nothing
@examples(100)
def test_apps_become_ready_or_end_in_the_turn_that_decides_it(history: History) -> None:
    reader, at = Reader(), 0
    for event, now, cause, *_ in played(history).log:
        if now != at:
            reader.settled()
            at = now
        reader.hear(event, cause)
