"""One run of the scheduler: some inputs, then admission, what time has brought, drivers, executors (semantics T2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from scheduler.model.commands import Command, DecommissionWorker
from scheduler.model.events import ClusterConfigured, Event, ExecutorAllocated, MasterElected, RoomReserved
from scheduler.rules.decide import admit, decide, placements
from scheduler.rules.demand import due, requests, with_request
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
        self._taken = self._decommissions = 0
        self._begun = False

    def take(self, command: Command, cause: str = "") -> list[Event]:
        """Fold what `command` causes and return it (semantics T2).

        Raises: CommandRejected if it is refused; nothing has changed then.
        """
        events = decide(self.state, command)
        self._taken += 1
        self._decommissions += isinstance(command, DecommissionWorker)
        for event in events:
            self.record(event, cause)
        return events

    def settle(self) -> None:
        """Admit until nobody may enter, let elastic apps grow and shrink, place drivers and executors (semantics T2).

        Not in a turn that took nothing but decommissions: they start no placement (semantics W6).
        """
        self._begin()
        if 0 < self._taken == self._decommissions:
            return
        for event in decisions(self.state, self.at):
            self.fold(event)

    def record(self, event: Event, cause: str = "") -> None:
        """Fold an event that came in, and what follows from it; an election comes before all else."""
        if type(event) is not MasterElected:
            self._begin()
        if type(event) is ExecutorAllocated:
            event = with_request(self.state, event)
        for each in consequences(self.state, [event], self.at):
            self.fold(each, cause)

    def _begin(self) -> None:
        """Reserve room for those who were held back for too long, before the turn changes anything (semantics C7)."""
        if not self._begun:
            self._begun = True
            for event in reservations(self.state, self.at):
                self.fold(event)

    def fold(self, event: Event, cause: str = "") -> None:
        """Fold this event and nothing else."""
        self.state.apply(event, at=self.at, cause=cause)
        self.entries.append(tuple.__new__(Entry, (event, cause)))


def reservations(state: ClusterState, at: int) -> list[RoomReserved]:
    """The reservations that are due at time `at` (ms) (semantics C7)."""
    return [RoomReserved(app=app) for app in state.to_reserve(at)]


def consequences(state: ClusterState, events: Iterable[Event], at: int) -> Iterator[Event]:
    """Each event, and behind it what the rules make of it at once: pending requests (L1, L2), reservations (C7).

    The caller folds each event before it asks for the next.
    """
    for event in events:
        yield event
        if (requested := requests(state, event, at)) is not None:
            yield requested
        elif type(event) is ClusterConfigured:
            yield from reservations(state, at)


def decisions(state: ClusterState, at: int, first: Stage = Stage.ADMISSIONS) -> Iterator[Event]:
    """What follows from the inputs of a turn at time `at` (ms), from its stage `first` on (semantics T2).

    The caller folds each event before it asks for the next.
    """
    return consequences(state, _decisions(state, at, first), at)


def _decisions(state: ClusterState, at: int, first: Stage) -> Iterator[Event]:
    while first <= Stage.ADMISSIONS and (admitted := admit(state)) is not None:
        yield admitted
    if first <= Stage.TIME:
        yield from due(state, at)
    if first <= Stage.DRIVERS:
        yield from place_drivers(state)
    for granted in placements(state, at):
        for event in granted:
            yield with_request(state, event)
