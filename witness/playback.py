"""The log turn by turn, as a picture of the cluster behind each: what a live view shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery.replay.bounds import OPEN, Bound, up_to
from recovery.replay.rebuild import fold
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import (
    AppRegistered,
    AppRemoved,
    CompanyRegistered,
    Event,
    ExecutorRemoved,
    ExecutorRevoked,
    MasterElected,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
    outlined,
)
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import decision_of
from scheduler.rules.views import shares, workers

if TYPE_CHECKING:
    from scheduler.store.codec import Fact


class Frame(NamedTuple):
    """The cluster behind the turn that ended at position `seq`, at `at` (ms), and what happened in it.

    `state` is that of the moment only until the next frame is asked for; that one is of `next_at`, None = the end.
    """

    seq: int
    at: int
    happened: list[Fact]
    state: ClusterState
    next_at: int | None

    def as_json(self) -> dict[str, Any]:
        """The frame as JSON values: shares, queue and workers as the verbs of these names show them, and decisions."""
        state = self.state
        pending = pending_apps(state)
        return {
            "seq": self.seq,
            "at": self.at,
            "companies": [{**each, "pending": pending[each["company"]]} for each in shares(state)["companies"]],
            "queue": {"pending": len(state.queue.arrivals), "waiting": len(state.waiting)},
            "workers": workers(state),
            "decisions": [
                {"seq": fact.seq, **outlined(fact.event)}
                for fact in self.happened
                if decision_of(fact.event, fact.cause) is not None
            ],
        }


class Playback:
    """A log that is played up to `last`: first wound to where it is to begin, then frame by frame."""

    def __init__(self, facts: Iterable[Fact], last: Bound = OPEN) -> None:
        self.state = ClusterState()
        turns = groupby(up_to(facts, last), key=lambda fact: fact.turn)
        self._turns = (list(group) for _, group in turns)
        self._next: list[list[Fact]] = []

    def wind(self, first: Bound) -> Iterator[Fact]:
        """Fold what comes before the span, and tell each entry of it.

        Raises: InvalidCommand if the log ends before; what `fold` raises.
        """
        for turn in self._turns:
            if first.reached(turn[-1]):
                self._next.append(turn)
                return
            for fact in turn:
                fold(self.state, fact)
                yield fact
        raise InvalidCommand(f"the log ends at position {self.state.head}, before {first}")

    def frames(self) -> Iterator[Frame]:
        """A frame for each turn from here on. Raises: what `fold` raises."""
        turns = chain(self._next, self._turns)
        ahead = next(turns, None)
        while ahead is not None:
            turn, ahead = ahead, next(turns, None)
            for fact in turn:
                fold(self.state, fact)
            yield Frame(turn[-1].seq, turn[-1].at, turn, self.state, None if ahead is None else ahead[0].at)


def pending_apps(state: ClusterState) -> dict[str, int]:
    """How many apps of each company wait in the queues of its users."""
    return {
        name: sum(len(user.by_policy) for user in company.users.values())
        for name, company in state.queue.companies.items()
    }


_WORDS: dict[type[Event], str] = {
    MasterElected: "master {0.master} elected",
    CompanyRegistered: "company {0.company}",
    WorkerRegistered: "worker {0.worker} offers {0.offer.cores} cores",
    WorkerChanged: "worker {0.worker} {0.status}",
    WorkerRemoved: "worker {0.worker} {0.reason}",
    AppRegistered: "{0.app} submitted by {0.user} at {0.company}, {0.requested.cores} cores",
    ExecutorRevoked: "{0.executor} is told to stop",
    ExecutorRemoved: "{0.executor} {0.reason}",
    AppRemoved: "{0.app} {0.reason}",
}


def told(event: Event) -> str:
    """What people want to see of an event in a few words, "" if that is nothing."""
    decision = decision_of(event)
    return (_WORDS.get(type(event), "") if decision is None else decision.text).format(event)
