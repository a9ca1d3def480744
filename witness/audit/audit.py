"""Every decision of a log worked out again from its inputs alone, and each one named that is not what the rules say.

What commands and lost workers brought is given, as far as it can have come of one (`effects`); who is admitted,
which elastic apps grow, and where drivers and executors go follows from it by the functions that a turn uses
(`scheduler.turn`). Behind a deviation the audit goes on from what the log says was done. Where an entry is missing
nobody can know the state any more: from there on only the chain is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs, to_builtins

from recovery.replay.chain import Entry, Fault, verified
from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import (
    AppAdmitted,
    AppRegistered,
    CompanyRegistered,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorChanged,
    ExecutorRemoved,
    ExecutorRevoked,
    WorkerChanged,
    WorkerRegistered,
    WorkerRemoved,
)
from scheduler.rules.invariants import violations
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import decision_of, decisions, stage_of
from scheduler.store.codec import Fact, Record, told
from witness.audit.inputs_check import Inputs, Odd
from witness.audit.rule_of import broken
from witness.audit.shadow_ledger import Books

if TYPE_CHECKING:
    from scheduler.store.eventlog import Position

_DECIDED = (AppAdmitted, DriverAllocated, ExecutorAllocated)
"""What no command brings about."""
_OF_SLICES = (ExecutorRemoved, DriverRemoved, ExecutorRevoked)
"""What tells of an executor or a driver, and so names its app and worker once more."""
_REGARDED = frozenset({CompanyRegistered, *_DECIDED, *_OF_SLICES})
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
        self._latest: Fact | Record | Position | None = None

    @property
    def ends_at(self) -> int:
        """The position of the last entry that was read."""
        return 0 if self._latest is None else self._latest.seq

    @property
    def digest(self) -> str:
        """The digest of that entry."""
        return "" if self._latest is None else self._latest.digest

    def deviations(self, entries: Iterable[Entry]) -> Iterator[Deviation]:
        """Each deviation of the log, in the order of its positions as far as the log itself is in order."""
        for found in self._every(entries):
            self._clean = False
            if found.seq >= self.first and (self.last is None or found.seq <= self.last):
                yield found

    def _every(self, entries: Iterable[Entry]) -> Iterator[Deviation]:
        turn: list[Fact] = []
        number = 0
        for entry in verified(entries):
            if type(entry) is Fact and entry.turn == number and self.blind_from is None:
                turn.append(entry)
                continue
            if isinstance(entry, Fault):
                if entry.lost:
                    self._stop(turn[0].seq if turn else entry.seq)
                yield Deviation(entry.seq, CHAIN, entry.done, entry.due, None)
                continue
            if entry.turn != number or self.blind_from is not None:
                yield from self._finish(turn)
                number = entry.turn
                if self.last is not None and entry.seq > self.last:
                    break
            if self.blind_from is None:
                try:
                    turn.append(entry if isinstance(entry, Fact) else told(entry))
                    continue
                except UnreadableRecord as error:
                    self._stop(turn[0].seq if turn else entry.seq)
                    yield from self._finish(turn)
                    yield Deviation(entry.seq, CHAIN, str(error), "an entry that can be read", None)
            self.events += 1
            self._latest = entry
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
        inputs, decided = turn[:decided_from], turn[decided_from:]
        may_rest = not decided and bool(inputs) and _only_decommissions(inputs, self.state)
        yield from self._take(inputs, decided[0].event if decided else None)
        if self.blind_from is not None:
            return
        if turn[-1].seq >= self.first and not may_rest:
            yield from self._hold(decided, turn[-1])
        else:
            for logged in decided:
                if (wrong := self._fold(logged)) is not None:
                    yield wrong

    def _take(self, inputs: list[Fact], behind: Event | None) -> Iterator[Deviation]:
        """Fold the inputs of a turn, each held against what the command behind it causes; `behind` comes next."""
        told = Inputs(self.state, inputs)
        for number, logged in enumerate(inputs):
            odd = self._regard(logged) if type(logged.event) in _REGARDED else None
            strange = told.odd(number, logged)
            if odd is not None:
                yield odd
            elif strange is not None:
                yield self._strange(logged.seq, logged.event, strange)
            wrong = self._fold(logged)
            if wrong is not None and strange is None:
                yield wrong
            if self.blind_from is not None:
                return
        if (missing := told.missing()) is not None:
            yield self._strange(inputs[-1].seq + 1, behind, missing)

    def _regard(self, logged: Fact) -> Deviation | None:
        """Note a company. A decision is no input (semantics T2), and whoever tells of an executor knows whose it is."""
        event = logged.event
        if isinstance(event, CompanyRegistered):
            self.companies[event.company] = None
        elif isinstance(event, _DECIDED):
            return self._deviation(logged.seq, event, None, rule="T2")
        elif isinstance(event, _OF_SLICES) and (owner := _owner(self.state, event)) is not None:
            return Deviation(logged.seq, "O2", words(event), owner, None)
        return None

    def _shape(self, turn: list[Fact]) -> Iterator[Deviation]:
        """A turn is named after its first entry and has one time, never one before the last turn's (semantics T2).

        No command is the cause of what the turn itself decides.
        """
        first = turn[0]
        if first.turn != first.seq:
            yield Deviation(first.seq, "T2", f"turn {first.turn}", f"turn {first.seq}", None)
        due = max(first.at, self.state.at)
        for seq, at, _, cause, event, _ in turn:
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
            course.work_out_again(stage_of(course.due))
        if course.due is not None:
            rule = broken(self.state, None, course.due)
            yield self._deviation(last.seq + 1, None, course.due, rule=rule)

    def _held_against(self, course: _Course, seq: int, event: Event) -> Generator[Deviation, None, bool]:
        """Whether the decision is one that was due after all, once what is due was worked out again."""
        if course.departed:
            course.work_out_again(stage_of(event))
        if course.due is not None and stage_of(course.due) < stage_of(event):
            yield self._deviation(seq, event, course.due, rule=broken(self.state, event, course.due))
            course.work_out_again(stage_of(event))
        as_due = event == course.due
        if not as_due:
            yield self._deviation(seq, event, course.due, rule=broken(self.state, event, course.due))
        return as_due

    def _within_cap(self, event: AppAdmitted) -> bool:
        """Whether the admission respects its company's cap by what the events alone make of it (semantics C4, A6)."""
        return self._books is None or self.state.settings.admission == "open" or self._books.passes_cap(event)

    def _fold(self, logged: Fact) -> Deviation | None:
        """Fold an entry as the log has it; one that cannot be so is named and passed over (semantics O2)."""
        seq, at, _, cause, event, _ = logged
        state, books, kind = self.state, self._books, type(event)
        check = _IMPOSSIBLE.get(kind)
        if check is not None and (impossible := check(state, event)) is not None:
            state.head = seq
            return Deviation(seq, "O2", words(event), impossible, None) if impossible else None
        try:
            state.apply(event, at=at, cause=cause)
        except (KeyError, ValueError, IndexError) as error:
            self._stop(seq)
            due = f"something that does not contradict what came before it ({error!r})"
            return Deviation(seq, "O2", words(event), due, None)
        if books is not None and (differs := books.post(event, state)) is not None:
            self._books = None
            return Deviation(seq, "O2", differs, _SUMS, None)
        if kind is ExecutorAllocated or kind is DriverAllocated:
            worker = state.workers[event.worker]  # type: ignore[union-attr]  # both name one
            if worker.free_cores < 0 or worker.free_memory_mb < 0:
                due = f"no more than worker {worker.id} offers, {worker.cores} cores and {worker.memory_mb} MiB"
                return Deviation(seq, "O2", words(event), due, None)
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
            self.work_out_again(stage_of(done))

    def work_out_again(self, first: int) -> None:
        """What is due from that stage of the turn on, as the state is now."""
        self.departed = False
        self._course = decisions(self.state, self.at, first)
        self.due = next(self._course, None)


def audit(entries: Iterable[Entry]) -> list[Deviation]:
    """Every deviation of the log."""
    return list(Audit().deviations(entries))


def words(event: Event | None) -> str:
    """An event in one line: its type and what is not empty of it."""
    if event is None:
        return "nothing"
    usual = {field.name: field.default for field in structs.fields(event)}
    said = [f"{name}={value}" for name, value in to_builtins(event).items() if value != usual[name]]
    return " ".join([type(event).__name__, *said])


def _is_decision(logged: Fact) -> bool:
    return type(logged.event) in _DECIDED or decision_of(logged.event, logged.cause) is not None


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


def _admits(state: ClusterState, event: AppAdmitted) -> str | None:
    app = state.apps.get(event.app)
    if app is None or app.state != "pending" or app.admitted:
        return ""
    return None if (app.spec.company, app.spec.user) == (event.company, event.user) else ""


def _grants(state: ClusterState, event: ExecutorAllocated) -> str | None:
    unknown = event.app not in state.apps or event.worker not in state.workers
    return "" if unknown or event.executor in state.executors else None


def _grants_driver(state: ClusterState, event: DriverAllocated) -> str | None:
    app = state.apps.get(event.app)
    waits = app is not None and app.submitted in state.waiting_drivers
    return None if waits and event.worker in state.workers else ""


def _owner(state: ClusterState, event: ExecutorRemoved | DriverRemoved | ExecutorRevoked) -> str | None:
    """The app and worker that the executor or driver was granted to and on, if the event names another one."""
    held = state.drivers.get(event.driver) if isinstance(event, DriverRemoved) else state.executors.get(event.executor)
    if held is None or (held.app == event.app and held.worker == event.worker):
        return None
    return f"{held.id} of app {held.app} on worker {held.worker}, as it was granted"


def _revokes(state: ClusterState, event: ExecutorRevoked) -> str | None:
    executor = state.executors.get(event.executor)
    return None if executor is not None and executor.status != "stopping" else "an executor that runs"


def _changes(state: ClusterState, event: ExecutorChanged) -> str | None:
    executor = state.executors.get(event.executor)
    same = executor is None or (executor.status != "starting" and event.idle == (executor.idle_since is not None))
    return "an executor that starts, or becomes idle or busy" if same else None


_NOBODYS = "an id that nobody has yet"
_IMPOSSIBLE: dict[type[Event], Callable[[ClusterState, Any], str | None]] = {
    AppAdmitted: _admits,
    ExecutorAllocated: _grants,
    DriverAllocated: _grants_driver,
    ExecutorRevoked: _revokes,
    ExecutorChanged: _changes,
    AppRegistered: lambda state, event: _NOBODYS if event.app in state.apps else None,
    WorkerRegistered: lambda state, event: _NOBODYS if event.worker in state.workers else None,
    CompanyRegistered: lambda state, event: _NOBODYS if event.company in state.companies else None,
}
"""What would have to be so that an event can be folded, "" if that was said already; None if it can be."""
