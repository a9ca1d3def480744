"""A second state that does what is due from the first deviation of a log on.

It takes the log's commands and decides by itself. As long as the log decides as this state does, its deviations follow
from the first one alone. The log does not say when a grant ends that exists only here. So where the log decides
otherwise, the audit tries whether it decides as if some of these grants, or all of them, had ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, combinations, islice, zip_longest
from typing import TYPE_CHECKING

from recovery.second_edition.audit.deviation import Deviation, deviation
from recovery.second_edition.audit.rule_of import broken, caused, rule_of_input
from recovery.second_edition.rules.decide import decide
from recovery.second_edition.rules.snapshot_records import lines, restored
from recovery.second_edition.rules.turn import beginning, consequences, decisions
from scheduler.model.commands import Command, EndedDriver, EndedExecutor, KillApp
from scheduler.model.errors import CommandRejected
from scheduler.model.events import AppAdmitted, Event, LogSealed, MasterElected, RoomReserved, alike
from scheduler.model.sender import ASSUMED

if TYPE_CHECKING:
    from recovery.second_edition.rules.state import ClusterState
    from scheduler.store.codec import Fact


_JOURNAL = 1_000
"""The most events that are folded again to go back."""
_TRIES = 1_000
"""The most combinations of ended grants that are tried in all; a tenth of that for one turn."""


class AsDue:
    """The second state; `log` is the first one, which the caller folds."""

    def __init__(self, log: ClusterState) -> None:
        self.log = log
        self.state = log
        self._tries = _TRIES
        self._base: list[str] = []
        self._journal: list[tuple[Event, int]] = []
        """Folded since `_base` was written."""
        self._write(log)

    def depart(self, at: int, rest: Iterable[Event], behind: Sequence[Fact], stage: int) -> None:
        """Finish the turn at `at` (ms) of the first deviation.

        `rest` are the events still due of one command, `behind` the entries of the next ones; decisions are due from
        the stage of number `stage`.
        """
        self._take(consequences(self.state, rest, at), at)
        for fact in behind:
            if fact.command is not None:
                self._take(consequences(self.state, caused(self.state, fact), at), at)
        self._take(decisions(self.state, at, stage), at)

    def departure(self, inputs: Sequence[Fact], decided: Sequence[Fact], *, rests: bool) -> Deviation | None:
        """Take a turn that the first state has taken; its first entry that is not due here, None if all are.

        The turn has the entries `inputs` and then `decided`; if it `rests`, it decides nothing.
        """
        found: Deviation | None = None
        first, begun, end = (inputs or decided)[0], False, 0
        for number, fact in enumerate(inputs):
            if not begun and type(fact.event) is not MasterElected:
                begun = True
                self._take(beginning(self.state, first.at), first.at)
            if fact.command is not None:
                events = self._take(consequences(self.state, caused(self.state, fact), first.at), first.at)
                due = [event for event in events if not self._only_here(event)]
                end = number + fact.caused
                found = found or self._differs(inputs[number:end], due)
            elif number >= end and type(fact.event) not in (RoomReserved, LogSealed):  # its positions are others
                self._take([fact.event], first.at)
        if not begun:
            self._take(beginning(self.state, first.at), first.at)
        if rests:
            return found
        if found is not None:
            self._take(decisions(self.state, first.at), first.at)
            return found
        return self._decided(decided, first.at, first.seq + len(inputs) + len(decided))

    def _differs(self, logged: Sequence[Fact], due: Sequence[Event]) -> Deviation | None:
        """The first entry of a command that is not due."""
        for seq, (fact, event) in enumerate(zip_longest(logged, due), start=logged[0].seq):
            done = None if fact is None else fact.event
            if not alike(done, event):
                return deviation(self.state, seq, done, event, rule_of_input(logged[0].command, done, event))
        return None

    def _decided(self, logged: Sequence[Fact], at: int, end: int) -> Deviation | None:
        """The first of these decisions that is not due, where as few as possible of the grants only here have ended.

        `end` is the position behind them.
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
                    self._take(decide(self.state, command, at, ASSUMED), at)
            if self._compared(logged, at, end) is None:
                return None
        self._rewind(began)
        return self._compared(logged, at, end)

    def _compared(self, logged: Sequence[Fact], at: int, end: int) -> Deviation | None:
        """Take the decisions due; the first of the logged ones that is not due."""
        left, found = list(logged), None
        for event in decisions(self.state, at):
            only_here = self._only_here(event)
            if found is None and not only_here:
                done = left[0].event if left else None
                if alike(event, done):
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
        """Whether the event is about an app that is admitted only here."""
        name = "" if isinstance(event, AppAdmitted) else getattr(event, "app", "")
        here, there = self.state.apps.get(name), self.log.apps.get(name)
        return here is not None and there is not None and here.admitted > 0 == there.admitted

    def _only_granted_here(self) -> tuple[list[Command], list[Command]]:
        """Commands that end the executors and drivers granted only here, and the apps admitted only here."""
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
        self._restore(state)

    def _restore(self, before: ClusterState) -> None:
        """Read the state at `_base`; which steps the turn may take stays as it was told before."""
        self.state = restored(self._base)
        self.state.stepping = before.stepping

    def _rewind(self, length: int) -> None:
        """Go back to where the journal was that long."""
        self._restore(self.state)
        del self._journal[length:]
        for event, at in self._journal:
            self.state.apply(event, at=at)

    def _take(self, events: Iterable[Event], at: int) -> list[Event]:
        """Fold these events, each before the next one is generated."""
        taken = []
        for event in events:
            self.state.apply(event, at=at)
            self._journal.append((event, at))
            taken.append(event)
        return taken
