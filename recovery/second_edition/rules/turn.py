"""One run of the scheduler: some inputs, then the stages in which it decides (semantics T2).

What is a decision, in which stage it falls, by which rule and in whose words stands in `STAGES` alone; what
audits, explains, plays back, simulates or compares reads it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

from recovery.second_edition.rules import readiness
from recovery.second_edition.rules.decide import admit, decide
from recovery.second_edition.rules.demand import (
    MOVE_REQUESTS,
    given_back,
    grown,
    requests,
    steps,
    with_request,
    withdrawn,
)
from recovery.second_edition.rules.entities import NO_DEMAND
from recovery.second_edition.rules.failures import judged, suspicions_due, switched_off
from recovery.second_edition.rules.holds import new_holds, void
from recovery.second_edition.rules.kinds import with_addresses
from recovery.second_edition.rules.placement.drivers import place_drivers
from recovery.second_edition.rules.readiness import judgements
from recovery.second_edition.rules.reclaim import reclaim
from recovery.second_edition.rules.runtime import expiries
from recovery.second_edition.rules.serving import served
from recovery.second_edition.rules.state import ClusterState
from scheduler.model.commands import (
    WITH_PRIVATE,
    Command,
    DecommissionWorker,
    Private,
    SubmitApp,
    Taken,
    private_of,
    without_private,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import (
    AppAdmitted,
    AppChanged,
    AppDue,
    AppExpired,
    AppHeld,
    AppReady,
    AppRemoved,
    AppWarned,
    ClusterConfigured,
    CommandRefused,
    Computed,
    DriverAllocated,
    DriverRemoved,
    Event,
    ExecutorAllocated,
    ExecutorRemoved,
    ExecutorRevoked,
    HoldEnded,
    LostWorkersForgotten,
    MasterElected,
    OnePerWorker,
    ReservationLapsed,
    RevocationWithdrawn,
    RoomHeld,
    RoomReserved,
    WorkerCleared,
    WorkerProbed,
)
from scheduler.model.sender import NOBODY, By


class Decision(NamedTuple):
    """A kind of event that a turn brings about by itself."""

    event: type[Event]
    rule: str
    """The number of the rule in docs/semantics.md that most of them follow."""
    text: str
    """How people are told of it: a format of the event `0`."""
    outcome: Mapping[str, str]
    """How programs are told of it: its fields by the names that a scenario's answer gives them."""
    is_one: Callable[[Any], bool] = lambda _: True
    """Whether an event of that type is one."""

    def as_json(self, event: Event) -> dict[str, Any]:
        """The event as a scenario's answer has it, without what is None or empty."""
        stated = {name: attrgetter(field)(event) for name, field in self.outcome.items()}
        return {name: _plain(value) for name, value in stated.items() if value is not None and value != {}}


def _plain(value: Any) -> Any:  # noqa: ANN401 - a field of an event
    return {kind: list(found) for kind, found in value.items()} if isinstance(value, dict) else value


class Stage(NamedTuple):
    """A part of a turn: what it decides on a state at a time (ms), each event folded before the next is asked for."""

    decide: Callable[[ClusterState, int], Iterable[Event]]
    decisions: tuple[Decision, ...]


class Entry(NamedTuple):
    """An event of the turn and the id of the command that caused it, empty for a decision."""

    event: Event
    cause: str


_entry: Final = partial(tuple.__new__, Entry)
_taken: Final = partial(tuple.__new__, Taken)
Watch = Callable[[Event, str], None]
"""Is told each event and the id of the command that caused it, just before or after it is folded."""


class Turn:
    """The events of one turn at time `at` (ms), each folded into `state` as it comes about.

    Time never goes back: a turn that comes with an earlier time than the state's takes the state's.
    """

    def __init__(
        self, state: ClusterState, at: int, *, before: Watch | None = None, after: Watch | None = None
    ) -> None:
        self.state = state
        self.at = max(at, state.at)
        self.first = state.head + 1
        self.entries: list[Entry] = []
        self.commands: list[Taken] = []
        """The commands behind the events, in their order; one that caused nothing is left out."""
        self._quiet = self._placing = False
        """Whether it refused a command or took a decommission, and whether it took another command."""
        self.decommissioned = False
        """Whether a decommission among its commands changed something."""
        self._begun = False
        self._before = before
        self._after = after

    def take(self, command: Command, cause: str = "", by: By = NOBODY) -> list[Event]:
        """Fold what `command` of the id `cause` causes and return it; `by` is who sent it (semantics T2, I1).

        Raises: CommandRejected if it is refused; nothing has changed then.
        """
        private, asked = None, command
        if type(command) in WITH_PRIVATE:
            private = private_of(command)
            if private is not None and type(command) is not SubmitApp:
                asked = without_private(command)  # what follows from it is public
        events = decide(self.state, asked, self.at, by)
        if type(command) is DecommissionWorker:
            self._quiet = True
            self.decommissioned = self.decommissioned or bool(events)
        else:
            self._placing = True
        if events:
            if not self._begun:
                self._begin()
            begin, part, sender = len(self.entries), private, by
            for event in events:
                self.record(event, cause, part, sender)
                part, sender = None, NOBODY
            self.commands.append(_taken((begin, len(self.entries) - begin, cause, by, command)))
        return events

    def refuse(self, command: Command, refusal: CommandRejected, cause: str, by: By = NOBODY) -> bool:
        """Log that `command` of the id `cause` is refused, if few of the sender are this minute; whether it is (T3).

        A turn that only refuses settles nothing.
        """
        self._quiet = True
        if not self.state.may_log_refusal(self.at, by.account):
            return False
        if not self._begun:
            self._begin()
        begin = len(self.entries)
        self.record(CommandRefused(error=type(refusal).__name__, message=str(refusal)), cause, by=by)
        self.commands.append(Taken(begin, 1, cause, by, command))
        return True

    def hear(self, fact: Event | None = None, cause: str = "") -> None:
        """Fold the event given, of a command that another turn took, and let this one decide as if it had taken it.

        A refusal lets it decide nothing (semantics W6, T3).
        """
        if type(fact) is CommandRefused:
            self._quiet = True
        else:
            self._placing = True
        if fact is not None:
            self.record(fact, cause)

    def settle(self, *, due: bool = False) -> bool:
        """Decide stage by stage what follows from the inputs and the time (semantics T2).

        Not in a turn that took nothing but decommissions, which start no placement (semantics W6), or only refused
        (semantics T3), unless a time is `due` that a rule waits for (semantics T1). Whether it did.
        """
        if not self._begun:
            self._begin()
        if self._quiet and not self._placing and not due:
            return False
        for event in decisions(self.state, self.at):
            self.fold(event)
        return True

    def record(self, event: Event, cause: str = "", private: Private | None = None, by: By = NOBODY) -> None:
        """Fold an event that came in, and what follows from it; an election comes before all else."""
        kind = type(event)
        if not self._begun and kind is not MasterElected:
            self._begin()
        if kind is ExecutorAllocated:
            event = with_request(self.state, event)  # type: ignore[arg-type]  # it is one
        self.fold(event, cause, private, by)
        if kind in ENTAILING:
            for consequence in entailed(self.state, event, self.at):
                self.fold(consequence, cause)

    def _begin(self) -> None:
        self._begun = True
        for event in beginning(self.state, self.at):
            self.fold(event)

    def fold(self, event: Event, cause: str = "", private: Private | None = None, by: By = NOBODY) -> None:
        """Fold this event and nothing else."""
        if self._before is not None:
            self._before(event, cause)
        self.state.apply(event, self.at, cause, private, by)
        self.entries.append(_entry((event, cause)))
        if self._after is not None:
            self._after(event, cause)


def beginning(state: ClusterState, at: int) -> list[RoomReserved]:
    """What a turn at `at` (ms) does before its inputs change anything.

    It tells which elastic apps may take a step (semantics L6), and reserves room for those who were held back for too
    long (semantics C7).
    """
    state.stepping = at, tuple(steps(state, at))
    return reservations(state, at)


def reservations(state: ClusterState, at: int) -> list[RoomReserved]:
    """The reservations that are due at time `at` (ms) (semantics C7)."""
    return [RoomReserved(app=app) for app in state.to_reserve(at)]


LEAVE_QUEUE = frozenset({AppAdmitted, AppHeld, AppRemoved})
"""The events by which a pending app waits in its user's queue no more."""
ENTAILING = MOVE_REQUESTS | LEAVE_QUEUE | {AppExpired, ClusterConfigured, DriverRemoved}
"""The types of events that may have another one as a consequence."""


def consequences(state: ClusterState, events: Iterable[Event], at: int) -> Iterator[Event]:
    """Each event, followed by its consequences.

    These are pending requests (L1, L2), reservations (C7), suspicions (W8) and the removal of an expired app (X2).

    The caller folds each event before it asks for the next.
    """
    for event in events:
        yield event
        if type(event) in ENTAILING:
            yield from entailed(state, event, at)


def entailed(state: ClusterState, event: Any, at: int) -> Sequence[Event]:  # noqa: ANN401 - of a type in ENTAILING
    """The events that follow at once from `event`, folded just now at time `at` (ms).

    An app whose time is over is removed when the last of what it held is gone (semantics X2). A reservation that lapsed
    may be renewed once others have left the queue (semantics C7).
    """
    kind = type(event)
    if kind is ClusterConfigured:
        return [*reservations(state, at), *switched_off(state)]
    app = state.apps.get(event.app)
    lapsed = state.queue.lapsed and kind in LEAVE_QUEUE
    found: list[Event | None] = [*reservations(state, at)] if lapsed else []
    if app is not None and app.demand is not NO_DEMAND and kind in MOVE_REQUESTS:
        found.append(requests(state, event, at))  # few apps: save the call
    if kind is ExecutorRemoved and (event.reason == "failed" or (state.suspects and event.reason == "exited")):
        found.append(judged(state, event, at))
    if app is not None and app.expired_at and app.ended is None and not app.executors and app.driver is None:
        detail = f"its maximum runtime of {app.max_runtime_s} s is over"
        found.append(AppRemoved(app=event.app, reason="expired", detail=detail))
    return [each for each in found if each is not None] if found else ()


def _moments(state: ClusterState, at: int) -> Iterable[Event]:
    return consequences(state, _due(state, at), at) if state.holds or state.suspects or state.any_due(at) else ()


def _due(state: ClusterState, at: int) -> Iterator[Event]:
    yield from expiries(state, at)
    yield from suspicions_due(state, at)
    if forgotten := state.to_forget(at):
        yield LostWorkersForgotten(workers=tuple(forgotten))
    yield from readiness.due(state, at)
    for app in state.to_lapse(at):
        yield ReservationLapsed(app=app)
    if state.holds:
        yield from void(state, at)
    yield from given_back(state, at)


def _admissions(state: ClusterState, at: int) -> Iterator[Event]:
    while (admitted := admit(state)) is not None:
        yield admitted
        yield from entailed(state, admitted, at)
        if admitted.lent:
            yield from consequences(state, withdrawn(state, admitted), at)


def _demands(state: ClusterState, at: int) -> Iterable[Event]:
    return consequences(state, grown(state, at), at)


def _drivers(state: ClusterState, at: int) -> Iterable[Event]:
    return place_drivers(state, at) if state.waiting_drivers else ()


def _executors(state: ClusterState, at: int) -> Iterator[Event]:
    """The executors to grant (semantics P6). Those whose size is computed raise no request and prefer no host."""
    for event in served(state, at):
        if type(event) is not ExecutorAllocated:
            yield from consequences(state, (event,), at)
            continue
        if event.resources.others:
            event = with_addresses(state.workers[event.worker], event)  # noqa: PLW2901
        if type(state.apps[event.app].sizing) is Computed:
            yield event
        else:
            yield from consequences(state, (with_request(state, event),), at)


def _holds(state: ClusterState, at: int) -> Iterable[Event]:
    return consequences(state, _held_and_claimed(state, at), at)


def _held_and_claimed(state: ClusterState, at: int) -> Iterator[Event]:
    """Once more where a hold became a claim's, which does not count for the quarter: another app may get one (P8)."""
    again = True
    while again:
        again = False
        for event in chain(new_holds(state, at), reclaim(state, at)):
            again = again or type(event) is HoldEnded
            yield event


_GRANT = {
    "worker": "worker",
    "cores": "resources.cores",
    "memory_mb": "resources.memory_mb",
    "addresses": "addresses",
}

STAGES = (
    Stage(
        _moments,
        (
            Decision(WorkerProbed, "W8", "{0.worker} may get one executor as a probe", {"probed": "worker"}),
            Decision(
                WorkerCleared,
                "W8",
                "{0.worker} is suspected no longer: {0.reason}",
                {"cleared": "worker", "reason": "reason"},
            ),
            Decision(AppExpired, "X2", "the time of {0.app} is over", {"expired": "app"}),
            Decision(
                AppWarned, "X2", "{0.app} is warned that its time is almost over", {"warned": "app", "signal": "signal"}
            ),
            Decision(
                LostWorkersForgotten,
                "N3",
                "{0.workers} are remembered no longer",
                {"forgotten": "workers"},
            ),
            Decision(AppDue, "J4", "the time has come from which on {0.app} may begin", {"due": "app"}),
            Decision(ReservationLapsed, "C7", "the room reserved for {0.app} is free again", {"lapsed": "app"}),
            Decision(
                ExecutorRevoked,
                "L6",
                "{0.executor} is told to stop",
                {"given_back": "executor", "app": "app", "worker": "worker"},
                lambda event: event.reason == "idle",
            ),
        ),
    ),
    Stage(
        judgements,
        (
            Decision(AppReady, "J2", "{0.app} is ready", {"ready": "app"}),
            Decision(
                AppRemoved,
                "J2",
                "{0.app} removed: {0.detail}",
                {"removed": "app", "reason": "reason"},
                lambda event: event.reason == "unmet",
            ),
        ),
    ),
    Stage(
        _admissions,
        (Decision(AppAdmitted, "A3", "{0.app} of {0.user} at {0.company} admitted", {"admitted": "app"}),),
    ),
    Stage(
        _demands,
        (
            Decision(
                AppChanged,
                "S5",
                "{0.app} asks for {0.requested.memory_mb} MiB",
                {"requested": "app", "cores": "requested.cores"},
                lambda event: isinstance(event.sizing, OnePerWorker),
            ),
            Decision(
                AppChanged,
                "L6",
                "{0.app} asks for {0.executor_limit} executors",
                {"requested": "app", "cores": "requested.cores"},
            ),
        ),
    ),
    Stage(
        _drivers,
        (
            Decision(
                DriverAllocated,
                "D1",
                "driver of {0.app} gets {0.resources.cores} cores on {0.worker}",
                {"driver": "app", **_GRANT},
            ),
        ),
    ),
    Stage(
        _executors,
        (
            Decision(
                ExecutorAllocated,
                "P6",
                "{0.executor} gets {0.resources.cores} cores on {0.worker}",
                {"granted": "app", "executor": "executor", **_GRANT, "locality": "locality"},
            ),
            Decision(
                HoldEnded,
                "P8",
                "room on {0.worker} is no longer held for {0.app}: {0.reason}",
                {"hold_ended": "worker", "app": "app"},
            ),
            Decision(
                RevocationWithdrawn,
                "E5",
                "{0.executor} goes on as before",
                {"withdrawn": "executor"},
            ),
        ),
    ),
    Stage(
        _holds,
        (
            Decision(
                RoomHeld,
                "P8",
                "room for {0.amounts} is held on {0.worker} for {0.app}",
                {
                    "held": "worker",
                    "app": "app",
                    "cores": "amounts.cores",
                    "memory_mb": "amounts.memory_mb",
                    "reason": "reason",
                },
            ),
            Decision(
                ExecutorRevoked,
                "E1",
                "{0.executor} is told to leave for {0.claimant}",
                {"revoked": "executor", "claimant": "claimant", "rule": "rule"},
                lambda event: event.reason == "reclaimed",
            ),
        ),
    ),
)
"""In the order of a turn."""
_KNOWN: dict[type, list[tuple[int, Decision]]] = {}
for _number, _stage in enumerate(STAGES):
    for _decision in _stage.decisions:
        _KNOWN.setdefault(_decision.event, []).append((_number, _decision))


def decision_of(event: Event, cause: str = "") -> Decision | None:
    """What kind of decision the event is; None if it is of a command, as one with a `cause` always is."""
    known = () if cause else _KNOWN.get(type(event), ())
    return next((decision for _, decision in known if decision.is_one(event)), None)


def stage_of(event: Event) -> int:
    """The number of the stage that decides such an event, 0 if none does."""
    return next((number for number, decision in _KNOWN.get(type(event), ()) if decision.is_one(event)), 0)


def decisions(state: ClusterState, at: int, first: int = 0) -> Iterator[Event]:
    """What follows from the inputs of a turn at time `at` (ms), from its stage of that number on (semantics T2).

    The caller folds each event before it asks for the next.
    """
    for stage in STAGES[first:]:
        yield from stage.decide(state, at)
