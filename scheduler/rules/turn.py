"""One run of the scheduler: some inputs, then admission, what time has brought, drivers, executors (semantics T2)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from scheduler.model.commands import Command, DecommissionWorker, Private, Taken, private_of
from scheduler.model.events import Event
from scheduler.rules.decide import admit, decide, placements
from scheduler.rules.demand import due
from scheduler.rules.placement.drivers import place_drivers
from scheduler.rules.state import ClusterState


class Stage(IntEnum):
    """In which order a turn decides (semantics T2)."""

    ADMISSIONS = 0
    TIME = 1
    DRIVERS = 2
    EXECUTORS = 3


class Entry(NamedTuple):
    """An event of the turn and the id of the command that caused it, empty for a decision."""

    event: Event
    cause: str


class Turn:
    """The events of one turn at time `at` (ms), each folded into `state` as it comes about.

    Time never goes back: a turn that comes with an earlier time than the state's takes the state's.
    """

    def __init__(self, state: ClusterState, at: int) -> None:
        self.state = state
        self.at = max(at, state.at)
        self.first = state.head + 1
        self.entries: list[Entry] = []
        self.commands: list[Taken] = []
        """The commands behind the events, in their order; one that caused nothing is left out."""
        self._taken = self._decommissions = 0

    def take(self, command: Command, cause: str = "", by: str = "") -> list[Event]:
        """Fold what `command` of the id `cause` causes and return it; `by` is who sent it (semantics T2).

        Raises: CommandRejected if it is refused; nothing has changed then.
        """
        events = decide(self.state, command)
        self._taken += 1
        self._decommissions += isinstance(command, DecommissionWorker)
        if events:
            self.commands.append(tuple.__new__(Taken, (len(self.entries), len(events), cause, by, command)))
            private = private_of(command)
            for event in events:
                self.record(event, cause, private)
        return events

    def settle(self) -> None:
        """Admit until nobody may enter, let elastic apps grow and shrink, place drivers and executors (semantics T2).

        Not in a turn that took nothing but decommissions: they start no placement (semantics W6).
        """
        if 0 < self._taken == self._decommissions:
            return
        for event in decisions(self.state, self.at):
            self.record(event)

    def record(self, event: Event, cause: str = "", private: Private | None = None) -> None:
        """Fold one event."""
        self.state.apply(event, at=self.at, cause=cause, private=private)
        self.entries.append(tuple.__new__(Entry, (event, cause)))


def decisions(state: ClusterState, at: int, first: Stage = Stage.ADMISSIONS) -> Iterator[Event]:
    """What follows from the inputs of a turn at time `at` (ms), from its stage `first` on (semantics T2).

    The caller folds each event before it asks for the next.
    """
    while first <= Stage.ADMISSIONS and (admitted := admit(state)) is not None:
        yield admitted
    if first <= Stage.TIME and state.moments:
        yield from due(state, at)
    if first <= Stage.DRIVERS:
        yield from place_drivers(state)
    for granted in placements(state, at):
        yield from granted
