"""Every decision of a log worked out again from its inputs alone, and each one named that is not what the rules say.

What commands and lost workers brought is given, as far as it can have come of one (`effects`); who is admitted,
which elastic apps grow, and where drivers and executors go follows from it by the functions that a turn uses
(`scheduler.turn`). Behind a deviation the audit goes on from what the log says was done. Where an entry is missing
nobody can know the state any more: from there on only the chain is verified.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple

from msgspec import structs

from recovery.replay.chain import Fault, verified
from scheduler.model.errors import InvariantViolated
from scheduler.model.events import (
    AppAdmitted,
    CompanyRegistered,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorsRequested,
    MasterElected,
    RoomReserved,
    WorkerChanged,
    WorkerRemoved,
)
from scheduler.rules.invariants import violations
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import STAGES, consequences, decision_of, decisions, reservations, stage_of
from scheduler.store.codec import Fact
from witness.audit.inputs_check import Inputs, Odd
from witness.audit.rule_of import broken
from witness.audit.shadow_ledger import Books

_DECIDED = (AppAdmitted, DriverAllocated, ExecutorAllocated)
"""What no command brings about."""
_CONSEQUENCES = (RoomReserved, ExecutorsRequested)
"""What stands behind an input, or at the beginning of a turn, because a rule makes it of what was there."""
_REGARDED = frozenset({CompanyRegistered, *_DECIDED})
"""What more is asked of among the inputs of a turn than whether it can be folded."""
CHAIN = "chain"
"""Stands for a rule's number where the chain of digests is broken, or an entry cannot be read."""
_SUMS = "ledgers that are the sums of their apps"


class Deviation(NamedTuple):
    """At position `seq` the log has `done` where by the rule `due` had to come; app `entitled` was passed over."""

    seq: int
    rule: str
    done: str
    due: str
    entitled: str | None
    companies: tuple[str, ...] = ()
    """Whom it concerns."""

    def as_json(self) -> dict[str, object]:
        """The deviation as `fairlog audit --json` prints it."""
        return {name: getattr(self, name) for name in ("seq", "rule", "done", "due", "entitled")}


class Audit:
    """An audit under way: `events` and `decisions` count what was verified, only the chain from `blind_from` on.

    Decisions are worked out from position `first` to `last`.
    """

    def __init__(self, first: int = 1, last: int | None = None) -> None:
        self.first, self.last = first, last
        self.state = ClusterState()
        self.events = self.decisions = 0
        self.companies: dict[str, None] = {}
        """Every company that there ever was."""
        self.blind_from: int | None = None
        self._books: Books | None = Books()
        """Until they differ from the state's ledgers: whatever comes behind follows from that."""
        self._clean = True
        self._latest: Fact | None = None

    @property
    def ends_at(self) -> int:
        """The position of the last entry that was read."""
        return 0 if self._latest is None else self._latest.seq

    @property
    def digest(self) -> str:
        """The digest of that entry."""
        return "" if self._latest is None else self._latest.digest

    def deviations(self, entries: Iterable[Fact]) -> Iterator[Deviation]:
        """Each deviation of the log, in the order of its positions as far as the log itself is in order."""
        for found in self._every(entries):
            self._clean = False
            if found.seq >= self.first and (self.last is None or found.seq <= self.last):
                yield found

    def _every(self, entries: Iterable[Fact]) -> Iterator[Deviation]:
        turn: list[Fact] = []
        number = 0
        for entry in verified(entries):
            if isinstance(entry, Fault):
                yield from self._finish(turn)
                self._stop(entry.seq)
                yield Deviation(entry.seq, CHAIN, entry.done, "an entry that follows from the one before", None)
                continue
            if entry.turn != number:
                yield from self._finish(turn)
                number = entry.turn
                if self.last is not None and entry.seq > self.last:
                    break
            turn.append(entry)
        yield from self._finish(turn)
        if self.blind_from is None and self._clean:
            yield from self._violations()

    def _stop(self, seq: int) -> None:
        self.blind_from = self.blind_from or seq

    def _finish(self, turn: list[Fact]) -> Iterator[Deviation]:
        """Verify a whole turn, if the state is known, and forget it."""
        if not turn:
            return
        self.events += len(turn)
        self._latest = turn[-1]
        if self.blind_from is None:
            yield from self._turn(turn)
            every = 20 * (1000 + len(self.state.apps) + len(self.state.executors) + len(self.state.workers))
            if self._clean and turn[-1].seq // every != (turn[0].seq - 1) // every:
                yield from self._violations()
        turn.clear()

    def _violations(self) -> Iterator[Deviation]:
        """What of the ledgers does not follow from the apps and executors (semantics O2)."""
        for violation in violations(self.state):
            yield Deviation(self.state.head, "O2", violation, _SUMS, None)

    def _turn(self, turn: list[Fact]) -> Iterator[Deviation]:
        """Fold the inputs, then hold each decision against the one that was due (semantics T2)."""
        yield from self._shape(turn)
        decided_from = len(turn)
        while decided_from and _is_decision(turn[decided_from - 1]):
            decided_from -= 1
        while decided_from < len(turn) and type(turn[decided_from].event) is ExecutorsRequested:
            decided_from += 1
        inputs, decided = turn[:decided_from], turn[decided_from:]
        commands = [fact for fact in inputs if type(fact.event) not in _CONSEQUENCES]
        may_rest = not decided and bool(commands) and _only_decommissions(commands, self.state)
        yield from self._take(inputs, commands, turn[0], decided[0].event if decided else None)
        if self.blind_from is not None:
            return
        if turn[-1].seq >= self.first and not may_rest:
            yield from self._hold(decided, turn[-1])
        else:
            for logged in decided:
                if (wrong := self._fold(logged)) is not None:
                    yield wrong

    def _take(self, inputs: list[Fact], commands: list[Fact], first: Fact, behind: Event | None) -> Iterator[Deviation]:
        """Fold the inputs of a turn, each held against what the command behind it causes; `behind` comes next."""
        told = Inputs(self.state, commands)
        elected = type(first.event) is MasterElected
        due: list[Event] = [] if elected else list(reservations(self.state, first.at))
        number = 0
        for logged in inputs:
            consequence = type(logged.event) in _CONSEQUENCES
            if consequence or due:
                expected = due.pop(0) if due else None
                if logged.event != expected:
                    due.clear()
                    yield self._deviation(logged.seq, logged.event, expected, rule=_rule_of(expected or logged.event))
            folded = yield from self._consequence(logged) if consequence else self._input(told, number, logged)
            if not consequence:
                number += 1
                due = list(consequences(self.state, [logged.event], logged.at))[1:] if folded else []
                if elected and logged is first:
                    due = list(reservations(self.state, logged.at))
        if due:
            seq = inputs[-1].seq + 1 if inputs else first.seq
            yield self._deviation(seq, behind, due[0], rule=_rule_of(due[0]))
        if (missing := told.missing()) is not None:
            yield self._strange(inputs[-1].seq + 1, behind, missing)

    def _consequence(self, logged: Fact) -> Generator[Deviation, None, bool]:
        """Fold it; whether that can be done."""
        wrong = self._fold(logged)
        if wrong is not None:
            yield wrong
        return wrong is None

    def _input(self, told: Inputs, number: int, logged: Fact) -> Generator[Deviation, None, bool]:
        """Fold the input of that number, held against what is told of it; whether that can be done."""
        odd = self._regard(logged) if type(logged.event) in _REGARDED else None
        strange = told.odd(number, logged)
        if odd is not None:
            yield odd
        elif strange is not None:
            yield self._strange(logged.seq, logged.event, strange)
        wrong = self._fold(logged)
        if wrong is not None and strange is None:
            yield wrong
        return wrong is None

    def _regard(self, logged: Fact) -> Deviation | None:
        """Note a company. A decision is no input (semantics T2)."""
        event = logged.event
        if isinstance(event, CompanyRegistered):
            self.companies[event.company] = None
        elif isinstance(event, _DECIDED):
            return self._deviation(logged.seq, event, None, rule="T2")
        return None

    def _shape(self, turn: list[Fact]) -> Iterator[Deviation]:
        """A turn is named after its first entry and has one time, never one before the last turn's (semantics T2).

        No command is the cause of what the turn itself decides.
        """
        first = turn[0]
        if first.turn != first.seq:
            yield Deviation(first.seq, "T2", f"turn {first.turn}", f"turn {first.seq}", None)
        due = max(first.at, self.state.at)
        for seq, at, _, cause, event, *_ in turn:
            if at != due:
                yield Deviation(seq, "T2", f"time {at}", f"time {due}", None)
            if cause and type(event) in _DECIDED:
                yield Deviation(seq, "T2", f"cause {cause}", "no cause", None)

    def _hold(self, decided: list[Fact], last: Fact) -> Iterator[Deviation]:
        """Hold the decisions of a turn against those that are due, one by one."""
        course = _Course(self.state, last.at)
        for logged in decided:
            event, seq = logged.event, logged.seq
            as_due = event == course.due
            if not as_due:
                as_due = yield from self._held_against(course, seq, event)
            elif type(event) is AppAdmitted and not self._within_cap(event):
                yield self._deviation(seq, event, None, rule="C4")
            self.decisions += 1
            if (wrong := self._fold(logged)) is not None:
                yield wrong
                if self.blind_from is not None:
                    return
            course.go_on(event, as_due=as_due)
        if course.due is not None and course.departed:
            course.work_out_again(_stage(course.due))
        if course.due is not None:
            rule = broken(self.state, None, course.due)
            yield self._deviation(last.seq + 1, None, course.due, rule=rule)

    def _held_against(self, course: _Course, seq: int, event: Event) -> Generator[Deviation, None, bool]:
        """Whether the decision is one that was due after all, once what is due was worked out again."""
        if course.departed:
            course.work_out_again(_stage(event))
        if course.due is not None and _stage(course.due) < _stage(event):
            yield self._deviation(seq, event, course.due, rule=broken(self.state, event, course.due))
            course.work_out_again(_stage(event))
        as_due = event == course.due
        if not as_due:
            yield self._deviation(seq, event, course.due, rule=broken(self.state, event, course.due))
        return as_due

    def _within_cap(self, event: AppAdmitted) -> bool:
        """Whether the admission respects its company's cap by what the events alone make of it (semantics C4, A6)."""
        return self._books is None or self.state.settings.admission == "open" or self._books.passes_cap(event)

    def _fold(self, logged: Fact) -> Deviation | None:
        """Fold an entry as the log has it; one that cannot be so is named and passed over (semantics O2)."""
        seq, at, _, cause, event, *_ = logged
        state, books = self.state, self._books
        try:
            state.apply(event, at=at, cause=cause, private=logged.private)
        except InvariantViolated as error:
            state.head = seq
            return self._deviation(seq, event, None, rule=error.rule)._replace(due=f"nothing: {error.why}")
        if books is not None and (differs := books.post(event, state)) is not None:
            self._books = None
            return Deviation(seq, "O2", differs, _SUMS, None)
        return None

    def _strange(self, seq: int, done: Event | None, odd: Odd) -> Deviation:
        if isinstance(odd.due, str):
            return self._deviation(seq, done, None, rule=odd.rule)._replace(due=odd.due)
        return self._deviation(seq, done, odd.due, rule=odd.rule)

    def _deviation(self, seq: int, done: Event | None, due: Event | None, *, rule: str) -> Deviation:
        entitled = getattr(due, "app", None)
        apps = [getattr(event, "app", None) for event in (done, due)]
        known = [self.state.apps[app].spec.company for app in apps if app in self.state.apps]
        return Deviation(seq, rule, words(done), words(due), entitled, tuple(dict.fromkeys(known)))


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
            self.work_out_again(_stage(done))

    def work_out_again(self, first: int) -> None:
        """What is due from that stage of the turn on, as the state is now."""
        self.departed = False
        self._course = decisions(self.state, self.at, first)
        self.due = next(self._course, None)


def audit(entries: Iterable[Fact]) -> list[Deviation]:
    """Every deviation of the log."""
    return list(Audit().deviations(entries))


def words(event: Event | None) -> str:
    """An event in one line: its type and what is not empty of it."""
    if event is None:
        return "nothing"
    usual = {field.name: field.default for field in structs.fields(event)}
    said = [f"{name}={value}" for name, value in structs.asdict(event).items() if value != usual[name]]
    return " ".join([type(event).__name__, *said])


def _stage(event: Event) -> int:
    """The stage of a decision; pending requests (L1) stand behind those of any stage, placement goes by them."""
    return len(STAGES) - 1 if type(event) is ExecutorsRequested else stage_of(event)


def _is_decision(logged: Fact) -> bool:
    kind = type(logged.event)
    return kind in _DECIDED or kind is ExecutorsRequested or decision_of(logged.event, logged.cause) is not None


def _only_decommissions(inputs: list[Fact], state: ClusterState) -> bool:
    """Whether a turn may have taken nothing else, after which it places nothing (semantics W6)."""
    groups: dict[str, list[Event]] = {}
    for fact in inputs:
        groups.setdefault(fact.cause, []).append(fact.event)
    return all(cause and _is_decommission(events, state) for cause, events in groups.items())


def _is_decommission(events: list[Event], state: ClusterState) -> bool:
    last = events[-1]
    known = state.workers.get(last.worker) if isinstance(last, WorkerRemoved) else None
    leaving = known is not None and known.status == "leaving"
    killed = any(isinstance(event, ExecutorRemoved) and event.reason == "killed" for event in events)
    return (leaving and killed) or any(
        isinstance(event, WorkerChanged) and event.status == "decommissioned" for event in events
    )


def _rule_of(consequence: Event) -> str:
    """The rule that makes it of what was there."""
    return "C7" if isinstance(consequence, RoomReserved) else "L1"
