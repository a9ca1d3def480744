"""One run of the scheduler: some inputs, then admission, then placement (semantics T2)."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.commands import Command
from scheduler.decide import admit, decide, place, unsatisfied
from scheduler.events import Event
from scheduler.state import ClusterState


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

    def take(self, command: Command, cause: str = "") -> list[Event]:
        """Fold what `command` causes and return it.

        Raises: CommandRejected if it is refused; nothing has changed then.
        """
        events = decide(self.state, command)
        for event in events:
            self.record(event, cause)
        return events

    def settle(self) -> None:
        """Admit until nobody may enter, then place until nothing fits."""
        while (admitted := admit(self.state)) is not None:
            self.record(admitted)
        for app in unsatisfied(self.state):
            while granted := place(self.state, app):
                for event in granted:
                    self.record(event)

    def record(self, event: Event, cause: str = "") -> None:
        """Fold one event."""
        self.state.apply(event, at=self.at, cause=cause)
        self.entries.append(Entry(event, cause))
