"""The log turn by turn, with the cluster after each turn, for live views."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import Any, NamedTuple

from msgspec import to_builtins

from recovery.replay.bounds import OPEN, Bound, up_to
from recovery.replay.rebuild import fold
from scheduler.model import events
from scheduler.model.errors import InvalidCommand
from scheduler.rules.stage.turn import decision_of
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import shares, workers
from scheduler.store.codec import Fact

_ONE = re.compile(r"\b1 (core|executor|unit)s\b")
"""An amount of one in a sentence whose placeholders are filled in as they are."""


class TurnFrame(NamedTuple):
    """The cluster after the turn that ended at position `seq` and time `at` (ms), and the turn's entries.

    `state` is valid until the next frame is generated. `next_at` is the time of that frame, None = this is the last.
    """

    seq: int
    at: int
    happened: list[Fact]
    state: ClusterState
    next_at: int | None

    def as_json(self) -> dict[str, Any]:
        """The frame as JSON values: companies as in `shares`, the queue, workers as in `workers`, and decisions.

        Pending apps that are not ready are in no queue and not counted (semantics J2).
        """
        state = self.state
        pending = pending_apps(state)
        return {
            "seq": self.seq,
            "at": self.at,
            "companies": [{**to_builtins(each), "pending": pending[each.company]} for each in shares(state).companies],
            "queue": {"pending": sum(pending.values()), "waiting": len(state.waiting)},
            "workers": to_builtins(workers(state)),
            "decisions": [
                {"seq": fact.seq, **events.outlined(fact.event)}
                for fact in self.happened
                if decision_of(fact.event, fact.cause) is not None
            ],
        }


class Playback:
    """A log up to `last`. `wind` folds the turns before a span, `frames` plays the rest."""

    def __init__(self, facts: Iterable[Fact], last: Bound = OPEN) -> None:
        self.state = ClusterState()
        groups = groupby(up_to(facts, last), key=lambda fact: fact.turn)
        self._turns: Iterator[list[Fact]] = (list(turn) for _, turn in groups)

    def wind(self, first: Bound) -> Iterator[Fact]:
        """Fold the turns before `first` and generate their entries.

        Raises: InvalidCommand if the log ends before `first`; as `fold`.
        """
        for turn in self._turns:
            if first.reached(turn[-1]):
                self._turns = chain([turn], self._turns)
                return
            for fact in turn:
                fold(self.state, fact)
                yield fact
        raise InvalidCommand(f"the log ends at position {self.state.head}, before {first}")

    def frames(self) -> Iterator[TurnFrame]:
        """A frame for each further turn. Raises: as `fold`."""
        ahead = next(self._turns, None)
        while ahead is not None:
            turn, ahead = ahead, next(self._turns, None)
            for fact in turn:
                fold(self.state, fact)
            yield TurnFrame(turn[-1].seq, turn[-1].at, turn, self.state, None if ahead is None else ahead[0].at)


def pending_apps(state: ClusterState) -> dict[str, int]:
    """Company -> the number of its pending apps that are ready (semantics J2)."""
    return {
        name: sum(len(user.by_policy) for user in company.users.values())
        for name, company in state.queue.companies.items()
    }


_WORDS: dict[type[events.Event], str] = {
    events.MasterElected: "master {0.master} elected",
    events.CompanyRegistered: "company {0.company}",
    events.WorkerRegistered: "worker {0.worker} offers {0.offer.cores} cores",
    events.WorkerLabelled: "worker {0.worker} has new labels",
    events.WorkerChanged: "worker {0.worker} {0.status}",
    events.WorkerRemoved: "worker {0.worker} {0.reason}",
    events.AppRegistered: "{0.app} submitted by {0.user} at {0.company}, {0.requested.cores} cores",
    events.ExecutorRevoked: "{0.executor} is told to stop",
    events.ExecutorRemoved: "{0.executor} {0.reason}",
    events.AppChanged: "{0.app} asks for {0.requested.cores} cores",
    events.AppHeld: "{0.app} is on hold",
    events.AppReleased: "{0.app} is released",
    events.AppDelayed: "{0.app} is not to begin yet",
    events.AppReprioritized: "{0.app} has priority {0.priority}",
    events.AppSignalled: "{0.app} gets {0.signal}",
    events.TaskCancelled: "task {0.task} of {0.app} is cancelled",
    events.AppRequeued: "{0.app} is put back into its queue",
    events.TaskRequeued: "task {0.task} of {0.app} is put back",
    events.AppRemoved: "{0.app} {0.reason}",
}


def told(event: events.Event) -> str:
    """The event in a few words, "" if live views do not show it."""
    decision = decision_of(event)
    if isinstance(event, events.AppChanged) and event.executor_limit is None:
        decision = None  # its request changed, not a number of executors
    text = _WORDS.get(type(event), "") if decision is None else decision.text
    return _ONE.sub(r"1 \1", text.format(event))
