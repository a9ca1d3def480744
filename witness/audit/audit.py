"""Every turn of a log worked out again, and each entry named that is not what the rules say.

The commands of a log are given. The audit decides each one on the state before it and compares what comes of that with
the log's entries of the command, field by field: its events, or its refusal. What a turn decides by itself it compares
with what is due on the state at that point (`scheduler.rules.turn`). Behind a deviation it goes on from what the log
says was done.

What the audit cannot know it believes: that a command was sent, the first settings and elections, and what workers and
executors report in their commands (an executor started or ended, an app ended, tasks wait). A refusal that is due to
the private part of a command is believed where that part is withheld.

Deviations are grouped into verdicts by their cause. A later deviation has the same cause as an earlier one if the app
passed over is the one that was passed over there, or if the log decides just as it would have to, had it done what was
due there (`as_due`). Within one turn all have one cause.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain

from recovery.replay.chain import Fault, verified
from scheduler.model.commands import DecommissionWorker
from scheduler.model.errors import InvariantViolated
from scheduler.model.events import (
    AppAdmitted,
    ClusterConfigured,
    CommandRefused,
    CompanyRegistered,
    Event,
    MasterElected,
    RefusalsOmitted,
    RoomReserved,
)
from scheduler.rules.invariants import violations
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import ENTAILING, consequences, decision_of, decisions, reservations, stage_of
from scheduler.store.codec import Fact
from witness.audit.as_due import AsDue
from witness.audit.deviation import CHAIN, Deviation, Verdict, deviation
from witness.audit.rule_of import broken, caused, rule_of_input
from witness.audit.shadow_ledger import ShadowLedger

_SUMS = "ledgers that are the sums of their apps"


class Audit:
    """An audit under way: `events` and `decisions` count what was checked, `verdicts` say what was found.

    Turns are checked from position `first` to `last`; what comes before is folded only.
    """

    def __init__(self, first: int = 1, last: int | None = None) -> None:
        self.first, self.last = first, last
        self.state = ClusterState()
        self.events = self.decisions = 0
        self.verdicts: list[Verdict] = []
        self.companies: dict[str, None] = {}
        """Every company that there ever was."""
        self.blind_from: int | None = None
        """The position from which on nothing could be checked, because the chain is broken there."""
        self._ledger: ShadowLedger | None = ShadowLedger()
        """Until it differs from the state's: whatever comes behind follows from that."""
        self._explained = False
        """Whether the second state would have decided this turn just as the log does."""
        self._as_due: AsDue | None = None
        """Since the log departed from its rules, until it is known not to be what the log follows."""
        self._turn: list[Fact] = []
        self._latest: Fact | None = None

    @property
    def ends_at(self) -> int:
        """The position of the last entry that was read."""
        return 0 if self._latest is None else self._latest.seq

    @property
    def digest(self) -> str:
        """The digest of the last turn that was read."""
        return "" if self._latest is None else self._latest.digest

    def deviations(self, facts: Iterable[Fact]) -> Iterator[Deviation]:
        """Each deviation of the log, in the order of its turns."""
        for fact in verified(facts):
            if isinstance(fact, Fault):
                self.blind_from = fact.seq
                yield from self._report(
                    [Deviation(fact.seq, CHAIN, fact.done, "an entry that follows from the one before")]
                )
                return
            if self.last is not None and fact.turn > self.last:
                break
            yield from self.hear(fact)
        if not self.verdicts:
            yield from self._report(list(self._violations()))

    def hear(self, fact: Fact) -> list[Deviation]:
        """Take the next entry of a log whose chain is whole; with the last one of a turn, all of it that deviates."""
        self._turn.append(fact)
        if not fact.digest:
            return []
        turn, self._turn = self._turn, []
        self.events += len(turn)
        self._latest = fact
        if fact.seq < self.first:
            for each in turn:
                self._fold(each)
            return []
        commands = [each for each in turn if each.command is not None]
        number = _inputs(turn)
        inputs, decided = turn[:number], turn[number:]
        rests = not decided and bool(commands) and all(map(_settles_nothing, commands))
        second = self._as_due
        found = list(self._take(turn, inputs))
        if not rests:
            found += self._hold(decided, fact)
        self._explained = False
        if second is not None:
            found = self._compare(found, second.departure(inputs, decided, rests=rests))
        every = 20 * (1000 + len(self.state.apps) + len(self.state.executors) + len(self.state.workers))
        if not self.verdicts and not found and fact.seq // every != (turn[0].seq - 1) // every:
            found += self._violations()
        return self._report(found)

    def _compare(self, found: list[Deviation], departed: Deviation | None) -> list[Deviation]:
        """What deviates in a turn, with what of it is not as due in the second state either.

        Where the log follows its own state and not the second one, it does not go on from what was due.
        """
        self._explained = departed is None
        if departed is None:
            return found
        if not found:
            self._as_due = None
            return found
        return [departed, *(each for each in found if each.seq != departed.seq)]

    def _report(self, found: list[Deviation]) -> list[Deviation]:
        """Those within the span, each under the verdict that it belongs to."""
        found = [each for each in found if each.seq >= self.first and (self.last is None or each.seq <= self.last)]
        if not found:
            return found
        passed_over = {each.first.entitled: each for each in self.verdicts if each.first.entitled is not None}
        new = [each for each in found if each.entitled not in passed_over]
        for each in found:
            if each.entitled in passed_over:
                passed_over[each.entitled].later.append(each)
        if new and self._explained and self.verdicts:
            self.verdicts[-1].later += new
        elif new:
            self.verdicts.append(Verdict(new[0], new[1:]))
        return found

    def _violations(self) -> Iterator[Deviation]:
        """What of the ledgers does not follow from the apps and executors (semantics O2)."""
        for violation in violations(self.state):
            yield Deviation(self.state.head, "O2", violation, _SUMS)

    def _take(self, turn: Sequence[Fact], inputs: Sequence[Fact]) -> Iterator[Deviation]:
        """Fold what came into the turn: an election, the reservations that were due, and what commands caused."""
        end = int(type(turn[0].event) is MasterElected)
        if end:
            yield from self._against(turn[0], inputs[:1], [turn[0].event], inputs[1:])
        number, end = end, end + _run(inputs[end:], RoomReserved)
        due: Sequence[Event] = reservations(self.state, turn[0].at)
        yield from self._against(turn[min(number, len(turn) - 1)], inputs[number:end], due, inputs[end:])
        while end < len(inputs):
            number, fact = end, inputs[end]
            believed = fact.command is None and self._believes(fact.event)
            due = [fact.event] if believed else caused(self.state, fact)
            end += fact.caused or 1 + _run(inputs[end + 1 :], RoomReserved)
            if fact.caused == 1 and due == [fact.event] and type(fact.event) not in ENTAILING:
                if (wrong := self._fold(fact)) is not None:
                    yield wrong
            else:
                yield from self._against(fact, inputs[number:end], due, inputs[end:])

    def _believes(self, event: Event) -> bool:
        """Whether a master states it of its own accord: the first settings, or the refusals not logged (T3)."""
        first = type(event) is ClusterConfigured and not self.state.configured
        return first or type(event) is RefusalsOmitted

    def _against(
        self, first: Fact, logged: Sequence[Fact], due: Iterable[Event], behind: Sequence[Fact]
    ) -> Iterator[Deviation]:
        """Fold entries, held against these events and what they entail; `behind` are the inputs that come next.

        `first` is the first of them, or the entry where they would stand.
        """
        left, departed = iter(due), False
        course = consequences(self.state, left, first.at)
        for seq, fact in enumerate((*logged, None), start=first.seq):
            event = None if departed else next(course, None)
            done = None if fact is None else fact.event
            if not departed and event != done:
                departed = True
                yield deviation(self.state, seq, done, event, rule_of_input(first.command, done, event))
                self._depart(first.at, chain(() if event is None else [event], left), behind, 0)
            if fact is not None and (wrong := self._fold(fact)) is not None and not departed:
                yield wrong

    def _depart(self, at: int, rest: Iterable[Event], behind: Sequence[Fact], stage: int) -> None:
        """The log departs from what is due: from here on, follow what would have come of that, too."""
        if self._as_due is None:
            self._as_due = AsDue(self.state)
            self._as_due.depart(at, rest, behind, stage)

    def _hold(self, decided: Sequence[Fact], last: Fact) -> Iterator[Deviation]:
        """Fold the decisions of a turn, each held against the one that is due."""
        course = _Course(self.state, last.at)
        for logged in decided:
            event, seq = logged.event, logged.seq
            as_due = event == course.due
            if not as_due:
                as_due = yield from self._held_against(course, seq, event)
            elif type(event) is AppAdmitted and not self._within_cap(event):
                yield deviation(self.state, seq, event, None, "C4")
            self.decisions += 1
            if (wrong := self._fold(logged)) is not None:
                yield wrong
            course.go_on(event, as_due=as_due)
        if course.due is not None and course.departed:
            course.work_out_again(stage_of(course.due))
        if course.due is not None:
            yield self._wrong(course, last.seq + 1, None)

    def _held_against(self, course: _Course, seq: int, event: Event) -> Generator[Deviation, None, bool]:
        """Whether the decision is one that was due after all, once what is due was worked out again."""
        if course.departed:
            course.work_out_again(stage_of(event))
        if course.due is not None and stage_of(course.due) < stage_of(event):
            yield self._wrong(course, seq, event)
            course.work_out_again(stage_of(event))
        as_due = event == course.due
        if not as_due:
            yield self._wrong(course, seq, event)
        return as_due

    def _wrong(self, course: _Course, seq: int, done: Event | None) -> Deviation:
        due = course.due
        event = done if due is None else due
        if event is not None:
            self._depart(course.at, (), (), stage_of(event))
        return deviation(self.state, seq, done, due, broken(self.state, done, due))

    def _within_cap(self, event: AppAdmitted) -> bool:
        """Whether the admission respects its company's quota by what the events alone make of it (semantics C4, A6)."""
        return self._ledger is None or self.state.settings.admission == "open" or self._ledger.passes_cap(event)

    def _fold(self, logged: Fact) -> Deviation | None:
        """Fold an entry as the log has it; one that cannot be so is named and passed over (semantics O2)."""
        event, state = logged.event, self.state
        if type(event) is CompanyRegistered:
            self.companies[event.company] = None
        try:
            state.apply(event, at=logged.at, cause=logged.cause, private=logged.private)
        except InvariantViolated as error:
            state.head = logged.seq
            return deviation(state, logged.seq, event, f"nothing: {error.why}", error.rule)
        if self._ledger is not None and (differs := self._ledger.post(event, state)) is not None:
            self._ledger = None
            return Deviation(logged.seq, "O2", differs, _SUMS)
        return None


class _Course:
    """What a turn decides at time `at` (ms) on `state`, which the caller folds as the log has it; `due` comes next.

    Placement works out the executors of an app together. Once the log has `departed` from them, both are right:
    what was worked out for the rest, and what is worked out again.
    """

    def __init__(self, state: ClusterState, at: int) -> None:
        self.state, self.at = state, at
        self.due: Event | None = None
        self.departed = False
        self.work_out_again(0)

    def go_on(self, done: Event, *, as_due: bool) -> None:
        """What is due once `done` was folded."""
        if as_due or type(done) is type(self.due):
            self.departed = self.departed or not as_due
            self.due = next(self._course, None)
        else:
            self.work_out_again(stage_of(done))

    def work_out_again(self, first: int) -> None:
        """What is due from that stage of the turn on, as the state is now."""
        self.departed = False
        self._course = decisions(self.state, self.at, first)
        self.due = next(self._course, None)


def audit(facts: Iterable[Fact]) -> list[Deviation]:
    """Every deviation of the log."""
    return list(Audit().deviations(facts))


class Audited:
    """The entries of a log, audited as they are read, up to where the first of them deviates."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._facts = facts
        self.verdict: str | None = None
        """What is wrong with the entries read so far, in a sentence; None if they follow the rules."""

    def __iter__(self) -> Iterator[Fact]:
        audited = Audit()
        for fact in self._facts:
            if self.verdict is None and audited.hear(fact):
                self.verdict = str(audited.verdicts[0])
            yield fact


def _settles_nothing(first: Fact) -> bool:
    """Whether a turn decides nothing because of the command: a decommission (W6), or one that was refused (T3)."""
    return type(first.command) is DecommissionWorker or type(first.event) is CommandRefused


def _run(facts: Sequence[Fact], kind: type[Event]) -> int:
    """How many entries at the beginning are of that type and of no command."""
    return next(
        (n for n, fact in enumerate(facts) if type(fact.event) is not kind or fact.command is not None), len(facts)
    )


def _inputs(turn: Sequence[Fact]) -> int:
    """How many entries of the turn came into it; behind them it decides by itself (semantics T2)."""
    end = 0
    for number, fact in enumerate(turn):
        if fact.command is not None:
            end = number + fact.caused
        elif end == number and decision_of(fact.event) is None:
            end = number + 1
    return end
