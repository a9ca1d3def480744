"""Every turn of a log worked out again, and each entry named that is not what the rules say.

The commands of a log are given. The audit decides each one on the state before it and compares the result with the
log's entries of the command, field by field: its events, or its refusal. A refusal is compared by the class of its
error: its sentence may be worded differently by another version. Decisions are compared with those that are due on the
state at that point (`scheduler.rules.stage.turn`). Behind a deviation the audit continues from what the log says.

What the audit cannot know it believes: that a command was sent, the first settings and elections, and what workers and
executors report in their commands (an executor started or ended, an app ended, tasks wait). A refusal of a submission
whose private part is withheld is believed, because that part may be the reason.

Deviations are grouped into verdicts by their cause. A later deviation has the cause of an earlier one if both pass over
the same app, or if the log decides as it would have to, had it done what was due earlier (`as_due`). All deviations of
one turn have one cause.

What the log has of the second edition of the rules is audited by the rules of that, `recovery.second_edition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.model.commands import DecommissionWorker
from scheduler.model.errors import InvariantViolated, UnreadableRecord
from scheduler.model.events import (
    ClusterConfigured,
    CommandRefused,
    CompanyRegistered,
    EditionChanged,
    Event,
    KeyChanged,
    LogAccepted,
    LogRestored,
    LogSealed,
    MasterElected,
    RefusalsOmitted,
    of_one_type,
)
from scheduler.rules.invariants import violations
from scheduler.rules.stage.turn import ENTAILING, beginning, decision_of, decisions, entailed, stage_of
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITION_2
from scheduler.service import seals
from scheduler.store.codec import Fact
from witness.audit.as_due import AsDue
from witness.audit.deviation import CHAIN, CommonCause, Deviation, deviation
from witness.audit.rule_of import broken, caused, rule_of_input
from witness.audit.shadow_ledger import ShadowLedger

if TYPE_CHECKING:
    from recovery.second_edition.audit.audit import Audit as EarlierAudit

_SIGNED = {LogSealed, KeyChanged, LogRestored}
_SUMS = "ledgers that are the sums of their apps"


class Restored(NamedTuple):
    """At position `seq` the account restored the log, and named the `key`, "" if none (semantics I7).

    Or it `accepted` a shorter log, instead of one that was known (I7).
    """

    seq: int
    account: str
    key: str
    accepted: tuple[int, int] | None = None
    """The position of the end that was accepted, and that of the end that was known."""

    def __str__(self) -> str:
        if self.accepted is not None:
            end, known = self.accepted
            return f"At {self.seq} {self.account} accepted a log that ended at {end}: {broken_by(end, known)}."
        since = (
            f"the key {self.key} signs since, which none before it has signed" if self.key else "its key is as before"
        )
        return f"The log was restored at {self.seq} by {self.account}: {since}."


def broken_by(end: int, known: int) -> str:
    """What is broken where a log that ends at `end` is accepted, though another end was known at `known` (I7)."""
    if known > end:
        return f"receipts of positions {end + 1} to {known} are broken"
    return f"position {known} was known otherwise, and receipts of what it does not hold are broken"


def _decided(fact: Fact) -> Restored:
    event = fact.event
    if isinstance(event, LogAccepted):
        return Restored(fact.seq, fact.by.account, "", (event.seq, event.known))
    return Restored(fact.seq, fact.by.account, event.key if isinstance(event, LogRestored) else "")


class Audit:
    """An audit in progress. `events` and `decisions` count what was checked; `verdicts` are its findings so far.

    Turns are checked from position `first` to `last`; earlier ones are only folded.
    """

    def __init__(self, first: int = 1, last: int | None = None) -> None:
        self.first, self.last = first, last
        self.state = ClusterState()
        self.events = self.decisions = 0
        self.verdicts: list[CommonCause] = []
        self.companies: dict[str, None] = {}
        """Every company that was ever registered."""
        self.restored: list[Restored] = []
        """Every restore that the log tells of, in turn."""
        self.blind_from: int | None = None
        """The position where the chain is broken; nothing can be checked from there on."""
        self.ends_at, self.digest = 0, ""
        """The position and the digest of the last turn that was read."""
        self._before: tuple[int, str] = 0, ""
        """The position and the digest of the turn before it."""
        self._ledger: ShadowLedger | None = ShadowLedger()
        """None once it has differed from the state's: later differences follow from the first."""
        self._found: list[Deviation] = []
        """The deviations of the current turn."""
        self._explained = False
        """Whether the second state decides the current turn as the log does."""
        self._as_due: AsDue | None = None
        """The second state, from the first deviation until the log no longer follows it."""
        self._earlier: EarlierAudit | None = None
        """The audit of the turns so far, if they are of the second edition of the rules."""

    def resume(self, state: ClusterState, seq: int, digest: str) -> None:
        """Go on behind the turn that ends at `seq` with `digest`, from the state that an audit up to there found.

        Not from a state of the second edition, which has forgotten what the rules of that regard. A later deviation
        with the same cause as one from before begins a verdict of its own.
        """
        self.state, self.ends_at, self.digest = state, seq, digest
        self.companies = dict.fromkeys(state.companies)
        self._ledger = ShadowLedger.of(state)

    def deviations(self, facts: Iterable[Fact]) -> Iterator[Deviation]:
        """Each deviation of the log, turn by turn."""
        return self.hear_all(_turns(facts))

    def hear_all(self, turns: Iterable[Sequence[Fact]]) -> Iterator[Deviation]:
        """Each deviation of the log that has these turns."""
        try:
            for turn in turns:
                if self.last is not None and turn[0].turn > self.last:
                    break
                yield from self.hear(turn)
        except UnreadableRecord as error:
            self.blind_from = error.seq
            yield from self._report(
                [Deviation(error.seq, CHAIN, error.why, "an entry that follows from the one before")]
            )
            return
        if self._earlier is not None:
            found = self._earlier.end()
            self._adopt(self._earlier)
            yield from [Deviation(*each) for each in found]
        elif not self.verdicts:
            yield from self._report(self._violations())

    def hear(self, turn: Sequence[Fact]) -> list[Deviation]:
        """The deviations of the next turn of a log whose chain is intact."""
        last = turn[-1]
        self.events += len(turn)
        self._before = self.ends_at, self.digest
        self.ends_at, self.digest = last.seq, last.digest
        self._found = []
        self.restored += [_decided(each) for each in turn if isinstance(each.event, LogRestored | LogAccepted)]
        if self.state.edition == EDITION_2 and not any(type(each.event) is EditionChanged for each in turn):
            return self._hear_earlier(turn)
        self._earlier = None
        if last.seq < self.first:
            for each in turn:
                self._fold(each)
            return []
        number = _inputs(turn)
        inputs, decided = turn[:number], turn[number:]
        rests = not decided and _settles_nothing(inputs)
        second = self._as_due
        self._take(turn, inputs)
        if not rests:
            self._hold(decided, last)
        found, self._explained = self._found, False
        if second is not None:
            found = self._compare(found, second.departure(inputs, decided, rests=rests))
        every = 20 * (1000 + len(self.state.apps) + len(self.state.executors) + len(self.state.workers))
        if not self.verdicts and not found and last.seq // every != (turn[0].seq - 1) // every:
            found = self._violations()
        return self._report(found)

    def _hear_earlier(self, turn: Sequence[Fact]) -> list[Deviation]:
        """The deviations of a turn of the second edition, by the rules of that; here it is only folded."""
        if self._earlier is None:
            from recovery.second_edition.audit.audit import Audit as EarlierAudit  # noqa: PLC0415 (few logs need it)

            self._earlier = EarlierAudit(self.first, self.last)
        before = self._earlier.decisions
        try:
            found = self._earlier.hear(turn)
        except InvariantViolated:  # its second state, made by a deviation before, takes no entry of a later edition
            found = []
        self.decisions += self._earlier.decisions - before
        for each in turn:
            self._fold(each)
        self._adopt(self._earlier)
        return [Deviation(*each) for each in found]

    def _adopt(self, earlier: EarlierAudit) -> None:
        self.verdicts = [
            CommonCause(Deviation(*each.first), [Deviation(*later) for later in each.later])
            for each in earlier.verdicts
        ]

    def _compare(self, found: list[Deviation], departed: Deviation | None) -> list[Deviation]:
        """The deviations of a turn, with the one from the second state first.

        Where the log follows its own state and not the second one, the second one is dropped.
        """
        self._explained = departed is None
        if departed is None:
            return found
        if not found:
            self._as_due = None
            return found
        return [departed, *[each for each in found if each.seq != departed.seq]]

    def _report(self, found: list[Deviation]) -> list[Deviation]:
        """The deviations within the span, each added to its verdict."""
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
            self.verdicts.append(CommonCause(new[0], new[1:]))
        return found

    def _violations(self) -> list[Deviation]:
        """The ledgers and indexes that do not follow from the apps and executors (semantics O2)."""
        return [Deviation(self.state.head, "O2", violation, _SUMS) for violation in violations(self.state)]

    def _take(self, turn: Sequence[Fact], inputs: Sequence[Fact]) -> None:
        """Fold the inputs of a turn: an election, and what commands caused."""
        state, first, begun = self.state, turn[0], int(type(turn[0].event) is MasterElected)
        if begun:
            self._against(first, inputs, 0, 1, [first.event])
        beginning(state, first.at)
        end = begun
        while end < len(inputs):
            begin, fact = end, inputs[end]
            event, count = fact.event, fact.caused
            if count:
                due, end = caused(state, fact), end + count
            else:
                due, end = [event] if self._believes(event) else [], end + 1
            kind = type(event)
            if kind in _SIGNED and (unproven := self._unproven(event)):
                self._found.append(
                    Deviation(fact.seq, "I7" if kind is LogRestored else "I6", unproven, "what a master has signed")
                )
            if count != 1 or due != [event]:
                self._against(fact, inputs, begin, end, due)
                continue
            if (wrong := self._fold(fact)) is not None:
                self._found.append(wrong)
            if kind in ENTAILING and (more := entailed(state, event, fact.at)):
                self._departed(fact, 1, None, [event, *more], inputs[end:])

    def _believes(self, event: Event) -> bool:
        """Whether a master states it without a command.

        That is the edition and the settings of a new log, omitted refusals (T3), keys and seals (I6).
        """
        first = type(event) in (EditionChanged, ClusterConfigured) and not self.state.configured
        return first or type(event) in (RefusalsOmitted, LogSealed, KeyChanged)

    def _unproven(self, event: Any) -> str:  # noqa: ANN401 - of a type in _SIGNED
        """Why a seal or a change of keys proves nothing, though it can be folded (semantics I6); "" if it is sound."""
        if not isinstance(event, LogSealed):
            return seals.wrong_change(event, self.state.public_keys)
        seq, digest = self._before
        if (event.seq, event.digest) != self._before:
            return f"a seal of {event.seq}:{event.digest} at a turn that follows {seq}:{digest}"
        sound = seals.is_sound(event, self.state.public_keys.get(event.key, ""))
        return "" if sound else f"a seal of position {event.seq} that the key {event.key} has not signed"

    def _against(self, first: Fact, inputs: Sequence[Fact], begin: int, end: int, due: Sequence[Event]) -> None:
        """Fold `inputs[begin:end]` and compare them with `due` and what those events entail.

        `first` is the first of them, or the entry in whose place they would stand.
        """
        due, departed = list(due), False
        for number, fact in enumerate(inputs[begin:end]):
            done = fact.event
            if not departed and (number >= len(due) or due[number] != done):
                departed = True
                self._departed(first, number, done, due, inputs[end:])
            wrong = self._fold(fact)
            if not departed:
                if wrong is not None:
                    self._found.append(wrong)
                if type(done) in ENTAILING:
                    due[number + 1 : number + 1] = entailed(self.state, done, fact.at)
        if not departed and len(due) > end - begin:
            self._departed(first, end - begin, None, due, inputs[end:])

    def _departed(
        self, first: Fact, number: int, done: Event | None, due: Sequence[Event], behind: Sequence[Fact]
    ) -> None:
        """Report `done`, which stands in the place of number `number` of the events that are due."""
        event = due[number] if number < len(due) else None
        rule = rule_of_input(first.command, done, event)
        self._found.append(deviation(self.state, first.seq + number, done, event, rule))
        self._depart(first.at, due[number:], behind, 0)

    def _depart(self, at: int, rest: Iterable[Event], behind: Sequence[Fact], stage: int) -> None:
        """Keep a second state from the first deviation on, which does what was due."""
        if self._as_due is None:
            self._as_due = AsDue(self.state)
            self._as_due.depart(at, rest, behind, stage)

    def _hold(self, decided: Sequence[Fact], last: Fact) -> None:
        """Fold the decisions of a turn, each compared with the one that is due."""
        course = _TurnCourse(self.state, last.at)
        for logged in decided:
            event = logged.event
            as_due = event == course.due
            if not as_due:
                as_due = self._held_against(course, logged.seq, event)
            if (wrong := self._fold(logged)) is not None:
                self._found.append(wrong)
            if as_due:
                course.due = next(course.rest, None)
            else:
                course.depart(event)
        self.decisions += len(decided)
        if course.due is not None and course.departed:
            course.work_out_again(stage_of(course.due))
        if course.due is not None:
            self._wrong(course, last.seq + 1, None)

    def _held_against(self, course: _TurnCourse, seq: int, event: Event) -> bool:
        """Whether the decision is due after all, once the decisions due are worked out again."""
        if course.departed:
            course.work_out_again(stage_of(event))
        if course.due is not None and stage_of(course.due) < stage_of(event):
            self._wrong(course, seq, event)
            course.work_out_again(stage_of(event))
        as_due = event == course.due
        if not as_due:
            self._wrong(course, seq, event)
        return as_due

    def _wrong(self, course: _TurnCourse, seq: int, done: Event | None) -> None:
        due = course.due
        event = done if due is None else due
        if event is not None:
            self._depart(course.at, (), (), stage_of(event))
        self._found.append(deviation(self.state, seq, done, due, broken(self.state, done, due)))

    def _fold(self, logged: Fact) -> Deviation | None:
        """Fold an entry as logged; one that cannot be folded is reported and skipped (semantics O2)."""
        event, state, ledger = logged.event, self.state, self._ledger
        try:
            state.apply(event, logged.at, logged.cause, logged.private, logged.by)
        except InvariantViolated as error:
            state.head = logged.seq
            return deviation(state, logged.seq, event, f"nothing: {error.why}", error.rule)
        if type(event) is CompanyRegistered:
            self.companies[event.company] = None
        if ledger is not None and (differs := ledger.post(event, state)) is not None:
            self._ledger = None
            return Deviation(logged.seq, "O2", differs, _SUMS)
        return None


class _TurnCourse:
    """The decisions of a turn at time `at` (ms) on `state`, which the caller folds as logged; `due` comes next.

    Placement works out the executors of an app together. Once the log has `departed` from them, both are right:
    the `rest` of what was worked out, and what is worked out again.
    """

    def __init__(self, state: ClusterState, at: int) -> None:
        self.state, self.at = state, at
        self.due: Event | None
        self.rest: Iterator[Event]
        self.work_out_again(0)

    def depart(self, done: Event) -> None:
        """Continue behind `done`, which was not due and was folded."""
        if of_one_type(done, self.due):
            self.departed = True
            self.due = next(self.rest, None)
        else:
            self.work_out_again(stage_of(done))

    def work_out_again(self, first: int) -> None:
        """Decide from stage `first` on, on the state as it is now."""
        self.departed = False
        self.rest = decisions(self.state, self.at, first)
        self.due = next(self.rest, None)


def audit(facts: Iterable[Fact]) -> list[Deviation]:
    """Every deviation of the log."""
    return list(Audit().deviations(facts))


class Audited:
    """The entries of a log, audited as they are read, up to the first deviation."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._facts = facts
        self.verdict: str | None = None
        """The first verdict on the entries read so far, in words; None if they follow the rules."""

    def __iter__(self) -> Iterator[Fact]:
        audited = Audit()
        turn: list[Fact] = []
        for fact in self._facts:
            turn.append(fact)
            if fact.digest and self.verdict is None:
                if audited.hear(turn):
                    self.verdict = str(audited.verdicts[0])
                turn = []
            yield fact


def _turns(facts: Iterable[Fact]) -> Iterator[list[Fact]]:
    """The turns that these are the entries of; not the last one if it has no end."""
    turn: list[Fact] = []
    for fact in facts:
        turn.append(fact)
        if fact.digest:
            yield turn
            turn = []


def _settles_nothing(inputs: Sequence[Fact]) -> bool:
    """Whether a turn decides nothing: all its commands are decommissions (W3) or were refused (T3)."""
    commanded = False
    for each in inputs:
        if each.command is not None:
            if type(each.command) is not DecommissionWorker and type(each.event) is not CommandRefused:
                return False
            commanded = True
    return commanded


def _inputs(turn: Sequence[Fact]) -> int:
    """How many entries are inputs of the turn; its decisions follow (semantics T2)."""
    end = len(turn)
    while end and turn[end - 1].command is None:
        end -= 1
    end += turn[end - 1].caused - 1 if end else 0
    while end < len(turn) and decision_of(turn[end].event) is None:
        end += 1
    return end
