"""Ends of apps that somebody is to be told of: each once, however often who tells it is restarted (I9).

The book of the alerts remembers up to where the log was looked through, and what is still to be delivered. Both are
written to the disk at once, before anything is sent. What was cut off by a crash is sent again under the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import structlog

from fairlog.efficiency import in_words
from fairlog.watch.alerts import BACK_OFF_S, Ending, EndsTold, Undelivered, post
from recovery.replay.bounds import moment
from recovery.replay.rebuild import fold, rebuild
from scheduler.model.commands import Private
from scheduler.model.events import AppRemoved, DriverRemoved, ExecutorRemoved
from scheduler.model.targets import is_mail, place_of, places_of, url_at
from scheduler.model.text import one_line
from scheduler.rules.view.views import spent
from scheduler.store.codec import told
from scheduler.store.eventlog import GENESIS, Position

if TYPE_CHECKING:
    from fairlog.watch.mail import MailServer
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.codec import Record
    from scheduler.store.eventlog import EventLog

GIVEN_UP_MS = 3 * 86_400_000
"""For how long a delivery is tried."""
MOST_DUE = 10_000
"""The most deliveries that wait for each place; the oldest give way."""
AGAIN = 1_000
"""How many events are looked through again if the log was replaced; no app that was told of lately is told of again."""
SENDERS = 8
ROUNDS = 20
"""The most deliveries to a place in one look, so that conditions do not wait for them."""
_ENDS = AppRemoved, ExecutorRemoved, DriverRemoved
_log = structlog.get_logger()


class Endings:
    """Finds the apps that have ended with all that they ran, and delivers that to whom they name.

    `mail` is None where no mail is sent; what is due to be mailed waits.
    """

    def __init__(
        self, told: EndsTold, cluster: str, save: Callable[[], object], mail: MailServer | None = None
    ) -> None:
        self._told, self._cluster, self._save, self._mail = told, cluster, save, mail
        self._state: ClusterState | None = None
        self._position = GENESIS

    def look(self, log: EventLog) -> None:
        """Enter the ends that were committed since the last look; the first one begins at the end of the log.

        Raises: redis-py's errors; UnreadableRecord, InvariantViolated.
        """
        if self._state is None or (self._position != GENESIS and not log.holds(self._position)):
            self._begin(log)
        for record in log.read(self._position):
            self._enter(record)
            self._position = Position(record.last, record.digest)
        if self._position != Position(self._told.seq, self._told.digest):
            self._told.seq, self._told.digest = self._position
            self._save()

    def _begin(self, log: EventLog) -> None:
        """Fold the log up to where it was looked through, or before that if it is another one now."""
        known = Position(self._told.seq, self._told.digest)
        if not known.seq:
            self._state, self._position = rebuild(log)
            return
        to = known if log.holds(known) else log.before(max(0, min(known.seq, log.head().seq) - AGAIN))
        self._state, self._position = rebuild(log, to=to.seq)

    def _enter(self, record: Record) -> None:
        state = self._state
        if state is None:  # `look` has begun
            raise RuntimeError("the log is looked through before its state is known")
        ended: dict[str, App] = {}
        for fact in told(record):
            event = fact.event
            if isinstance(event, _ENDS) and (app := state.apps.get(event.app)) is not None:
                ended[event.app] = app
            fold(state, fact)
        for app in ended.values():
            private = app.private
            if private is not None and private.notify and app.ended is not None and not app.allocations():
                self._add(app, private)

    def _add(self, app: App, private: Private) -> None:
        about = f"{self._cluster}\0{app.id}\0{app.submitted}\0{app.submitted_at}"
        identity = blake2b(about.encode(), digest_size=12).hexdigest()
        if identity in self._told.ids:
            return
        self._told.ids = [*self._told.ids[1 - AGAIN :], identity]
        message = {"id": identity, "cluster": self._cluster, **_message(app)}
        place = place_of(private.notify)
        self._told.due.append(Ending(id=identity, target=private.notify, place=place, message=message, at=app.ended_at))
        of_place = [each for each in self._told.due if each.place == place]
        if len(of_place) > MOST_DUE:
            self._drop(of_place[0], f"more than {MOST_DUE} wait")

    def deliver(self, now: int) -> None:
        """Deliver what is due at `now` (ms): in order to each place, to several places at once."""
        if not self._told.due:
            return
        for _ in range(ROUNDS):
            first: dict[str, Ending] = {}
            for ending in self._told.due:
                first.setdefault(ending.place, ending)
            ready = [each for each in first.values() if each.after <= now and self._may(each, now)]
            if not ready:
                break
            with ThreadPoolExecutor(min(SENDERS, len(ready))) as senders:
                outcomes = list(senders.map(self._sent, ready))
            for ending, why in zip(ready, outcomes, strict=True):
                if why:
                    self._again(ending, now, why)
                else:
                    self._told.due.remove(ending)
            self._save()
        self._save()

    def _may(self, ending: Ending, now: int) -> bool:
        """Whether it is still to be delivered; what an operator does not allow any more is dropped."""
        if self._state is not None and ending.place not in places_of(self._state.settings.notify_targets):
            self._drop(ending, "its place is not in notify_targets any more")
            return False
        if ending.tries and now - ending.at > GIVEN_UP_MS:
            self._drop(ending, "it was tried for three days")
            return False
        return True

    def _sent(self, ending: Ending) -> str:
        """Deliver it; why that failed, "" if it did not."""
        try:
            if not is_mail(ending.target):
                post(url_at(ending.place, ending.target), ending.message)
            elif self._mail is None:
                return "no server takes mail; give --smtp URL"
            else:
                self._mail.deliver(ending)
        except Undelivered as error:
            return str(error)
        return ""

    def _again(self, ending: Ending, now: int, why: str) -> None:
        pause_s = BACK_OFF_S[min(ending.tries, len(BACK_OFF_S) - 1)]
        ending.tries += 1
        ending.after = now + pause_s * 1000
        about = {"app": ending.message["app"], "to": ending.place, "reason": why}
        _log.error("the end of an app was not delivered", **about, tries=ending.tries, again_in_s=pause_s)

    def _drop(self, ending: Ending, why: str) -> None:
        self._told.due.remove(ending)
        _log.error("the end of an app is told to nobody", app=ending.message["app"], to=ending.place, reason=why)

    @property
    def due(self) -> Sequence[Ending]:
        """What is still to be delivered."""
        return self._told.due


def _message(app: App) -> dict[str, Any]:
    """What is said of the end of an app. Times are in ms, memory is in MiB."""
    used = spent(app.spent)
    figures: Mapping[str, Any] = (
        {}
        if used is None
        else {
            "coreMs": used.core_ms,
            "toldCoreMs": used.told_core_ms,
            "cpuMs": used.cpu_ms,
            "peakMemory": used.peak_memory,
            "peakOfMemory": used.peak_of_memory,
        }
    )
    spec, why = app.spec, one_line(app.why, 500)
    words = f"app {app.name} of {spec.user} at {spec.company} {_ENDED.get(app.ended or '', app.ended)}"
    text = f"{words}{f': {why}' if why else ''}{f'; used {in_words(figures)}' if figures else ''}"
    return {
        "app": app.id,
        "name": app.name,
        "company": spec.company,
        "user": spec.user,
        "state": app.ended,
        "detail": why,
        "submittedAt": app.submitted_at,
        "admittedAt": app.admitted_at or None,
        "endedAt": app.ended_at,
        "ended": moment(app.ended_at),
        **figures,
        "text": text,
    }


_ENDED = {"killed": "was killed", "unmet": "waited in vain", "expired": "has run for as long as it may"}
"""State -> how it is told, where the state alone does not say it."""
