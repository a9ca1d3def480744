"""What would have come of a log had it done what was due: a second state beside the one that the log tells.

It begins where the log first departs from its rules, takes the log's commands and decides by itself. As long as the log
decides as this state does, its deviations from the rules follow from that departure alone. What is granted only here
may end at any time, because the log does not tell of it: where the log decides otherwise, the audit tries whether it
decides as if some of these grants had ended, or all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, combinations, islice, zip_longest
from typing import TYPE_CHECKING

from scheduler.model.commands import Command, EndedDriver, EndedExecutor, KillApp
from scheduler.model.errors import CommandRejected
from scheduler.model.events import AppAdmitted, Event, MasterElected, RoomReserved
from scheduler.rules.decide import decide
from scheduler.rules.snapshot_records import lines, restored
from scheduler.rules.turn import consequences, decisions, reservations
from witness.audit.deviation import Deviation, deviation
from witness.audit.rule_of import broken, caused, rule_of_input

if TYPE_CHECKING:
    from scheduler.rules.state import ClusterState
    from scheduler.store.codec import Fact


_JOURNAL = 1_000
"""How many events are folded again at most to go back."""
_TRIES = 1_000
"""How often it is tried in all whether some grants have ended; a tenth of that for one turn."""


class AsDue:
    """The second state; `log` is the one that the log tells, which the caller folds."""

    def __init__(self, log: ClusterState) -> None:
        self.log = log
        self.state = log
        self._tries = _TRIES
        self._base: list[str] = []
        self._journal: list[tuple[Event, int]] = []
        """What was folded since `_base` was written."""
        self._write(log)

    def depart(self, at: int, rest: Iterable[Event], behind: Sequence[Fact], stage: int) -> None:
        """Finish the turn at `at` (ms) in which the log departed.

        `rest` are the events of one command that were still due, `behind` the entries behind that command, `stage` the
        number of the stage from which decisions are still to come.
        """
        self._take(consequences(self.state, rest, at), at)
        for fact in behind:
            if fact.command is not None:
                self._take(consequences(self.state, caused(self.state, fact), at), at)
        self._take(decisions(self.state, at, stage), at)

    def departure(self, inputs: Sequence[Fact], decided: Sequence[Fact], *, rests: bool) -> Deviation | None:
        """Take a turn that the log's state has taken; its first entry that is not what is due here, None if all are.

        `inputs` are the entries that commands and the master brought, `decided` those that the turn decided, unless it
        `rests`.
        """
        found: Deviation | None = None
        first, begun, end = (inputs or decided)[0], False, 0
        for number, fact in enumerate(inputs):
            if not begun and type(fact.event) is not MasterElected:
                begun = True
                self._take(reservations(self.state, first.at), first.at)
            if fact.command is not None:
                events = self._take(consequences(self.state, caused(self.state, fact), first.at), first.at)
                due = [event for event in events if not self._only_here(event)]
                end = number + fact.caused
                found = found or self._differs(inputs[number:end], due)
            elif number >= end and type(fact.event) is not RoomReserved:
                self._take([fact.event], first.at)
        if not begun:
            self._take(reservations(self.state, first.at), first.at)
        if rests:
            return found
        if found is not None:
            self._take(decisions(self.state, first.at), first.at)
            return found
        return self._decided(decided, first.at, first.seq + len(inputs) + len(decided))

    def _differs(self, logged: Sequence[Fact], due: Sequence[Event]) -> Deviation | None:
        """The first entry of a command that is not what is due."""
        for seq, (fact, event) in enumerate(zip_longest(logged, due), start=logged[0].seq):
            done = None if fact is None else fact.event
            if done != event:
                return deviation(self.state, seq, done, event, rule_of_input(logged[0].command, done, event))
        return None

    def _decided(self, logged: Sequence[Fact], at: int, end: int) -> Deviation | None:
        """Decide by what is due; the first of these entries that is not that. Behind them comes position `end`.

        Where one is not, as few as possible of the grants that there are only here have ended before that.
        """
        if len(self._journal) > _JOURNAL:
            self._write(self.state)
        began = len(self._journal)
        granted, apps = self._only_granted_here()
        found = self._compared(logged, at, end)
        if found is None or not (granted or apps):
            return found
        some = chain.from_iterable(combinations(granted, number) for number in range(1, len(granted) + 1))
        for ended in islice(chain(islice(some, _TRIES // 10), [(*granted, *apps)]), self._tries):
            self._tries -= 1
            self._rewind(began)
            for command in ended:
                with suppress(CommandRejected):  # an app ends with its driver
                    self._take(decide(self.state, command), at)
            if self._compared(logged, at, end) is None:
                return None
        self._rewind(began)
        return self._compared(logged, at, end)

    def _compared(self, logged: Sequence[Fact], at: int, end: int) -> Deviation | None:
        """Take what is due to be decided; the first of these entries that is not that."""
        left, found = list(logged), None
        for event in decisions(self.state, at):
            only_here = self._only_here(event)
            if found is None and not only_here:
                done = left[0].event if left else None
                if event == done:
                    del left[0]
                else:
                    rule = broken(self.state, done, event)
                    found = deviation(self.state, left[0].seq if left else end, done, event, rule)
            self._take([event], at)
        if left and found is None:
            rule = broken(self.state, left[0].event, None)
            found = deviation(self.state, left[0].seq, left[0].event, None, rule)
        return found

    def _only_here(self, event: Event) -> bool:
        """Whether the event is about an app that is admitted here and not in the log."""
        name = "" if isinstance(event, AppAdmitted) else getattr(event, "app", "")
        here, there = self.state.apps.get(name), self.log.apps.get(name)
        return here is not None and there is not None and here.admitted > 0 == there.admitted

    def _only_granted_here(self) -> tuple[list[Command], list[Command]]:
        """The ends of the executors and drivers, and those of the apps, that are granted and admitted only here."""
        log, state = self.log, self.state
        ends: list[Command] = [
            EndedExecutor(executor=name, reason="exited", exit_code=0, done=True)
            for name in state.executors
            if name not in log.executors
        ]
        ends += [
            EndedDriver(driver=name, reason="exited", exit_code=0) for name in state.drivers if name not in log.drivers
        ]
        apps = [name for name in state.waiting if name in log.apps and not log.apps[name].admitted]
        return ends, [KillApp(app=name) for name in apps]

    def _write(self, state: ClusterState) -> None:
        self._base, self._journal = list(lines(state)), []
        self.state = restored(self._base)

    def _rewind(self, length: int) -> None:
        """Go back to where the journal was that long."""
        self.state = restored(self._base)
        del self._journal[length:]
        for event, at in self._journal:
            self.state.apply(event, at=at)

    def _take(self, events: Iterable[Event], at: int) -> list[Event]:
        """Fold these events, each before the next one is asked for."""
        taken = []
        for event in events:
            self.state.apply(event, at=at)
            self._journal.append((event, at))
            taken.append(event)
        return taken
