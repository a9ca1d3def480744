"""One run of the scheduler: some inputs, then the stages in which it decides (semantics T2).

What is a decision, in which stage it falls, by which rule and in whose words stands in `STAGES` alone; what
audits, explains, plays back, simulates or compares reads it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

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
    AppReady,
    AppRemoved,
    AppRequeued,
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
    LostWorkersForgotten,
    MasterElected,
    NeedBegan,
    NeedEnded,
    OnePerWorker,
    RevocationWithdrawn,
    SlotAwaited,
    SlotBegan,
    SlotEnded,
    TargetEnded,
    TargetSet,
    WindowRemoved,
    WorkerChanged,
    WorkerCleared,
    WorkerProbed,
)
from scheduler.model.sender import NOBODY, By
from scheduler.rules.checks.kinds import with_addresses
from scheduler.rules.command import readiness, windows
from scheduler.rules.command.decide import decide
from scheduler.rules.command.demand import MOVE_REQUESTS, given_back, grown, requests, steps, with_request
from scheduler.rules.command.failures import judged, suspicions_due, switched_off
from scheduler.rules.command.readiness import judgements
from scheduler.rules.command.runtime import expiries
from scheduler.rules.entities.apps import NO_DEMAND
from scheduler.rules.stage.drivers import place_drivers
from scheduler.rules.stage.granting import admit
from scheduler.rules.stage.needs import given_up
from scheduler.rules.stage.open import served
from scheduler.rules.stage.sharing import shared
from scheduler.rules.state.cluster import ClusterState


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

        A refusal lets it decide nothing (semantics W3, T3).
        """
        if type(fact) is CommandRefused:
            self._quiet = True
        else:
            self._placing = True
        if fact is not None:
            self.record(fact, cause)

    def settle(self, *, due: bool = False) -> bool:
        """Decide stage by stage what follows from the inputs and the time (semantics T2).

        Not in a turn that took nothing but decommissions, which start no placement (semantics W3), or only refused
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
        beginning(self.state, self.at)

    def fold(self, event: Event, cause: str = "", private: Private | None = None, by: By = NOBODY) -> None:
        """Fold this event and nothing else."""
        if self._before is not None:
            self._before(event, cause)
        self.state.apply(event, self.at, cause, private, by)
        self.entries.append(_entry((event, cause)))
        if self._after is not None:
            self._after(event, cause)


def beginning(state: ClusterState, at: int) -> None:
    """Tell which elastic apps may take a step in a turn at `at` (ms), before its inputs change anything (L6)."""
    state.stepping = at, tuple(steps(state, at))


ENTAILING = MOVE_REQUESTS | {AppExpired, ClusterConfigured, DriverRemoved}
"""The types of events that may have another one as a consequence."""


def consequences(state: ClusterState, events: Iterable[Event], at: int) -> Iterator[Event]:
    """Each event, followed by its consequences.

    These are pending requests (L1, L2), suspicions (W8) and the removal of an expired app (X2).

    The caller folds each event before it asks for the next.
    """
    for event in events:
        yield event
        if type(event) in ENTAILING:
            yield from entailed(state, event, at)


def entailed(state: ClusterState, event: Any, at: int) -> Sequence[Event]:  # noqa: ANN401 - of a type in ENTAILING
    """The events that follow at once from `event`, folded just now at time `at` (ms).

    An app whose time is over is removed when the last of what it held is gone (semantics X2).
    """
    kind = type(event)
    if kind is ClusterConfigured:
        return [*([] if state.by_entitlement else given_up(state)), *switched_off(state)]
    app = state.apps.get(event.app)
    found: list[Event | None] = []
    if app is not None and app.demand is not NO_DEMAND and kind in MOVE_REQUESTS:
        found.append(requests(state, event, at))  # few apps: save the call
    if kind is ExecutorRemoved and (
        event.reason == "failed" or (event.reason == "exited" and state.workers[event.worker].suspicion is not None)
    ):
        found.append(judged(state, event, at))
    if app is not None and app.expired_at and app.ended is None and not app.executors and app.driver is None:
        detail = f"its maximum runtime of {app.max_runtime_s} s is over"
        found.append(AppRemoved(app=event.app, reason="expired", detail=detail))
    return [each for each in found if each is not None] if found else ()


def _moments(state: ClusterState, at: int) -> Iterable[Event]:
    return consequences(state, _due(state, at), at) if state.indexes.suspects or state.any_due(at) else ()


def _due(state: ClusterState, at: int) -> Iterator[Event]:
    yield from expiries(state, at)
    yield from windows.due(state, at)
    yield from suspicions_due(state, at)
    if forgotten := state.to_forget(at):
        yield LostWorkersForgotten(workers=tuple(forgotten))
    yield from readiness.due(state, at)
    yield from given_back(state, at)


def _admissions(state: ClusterState, at: int) -> Iterator[Event]:
    if state.by_entitlement:
        return
    while (admitted := admit(state)) is not None:
        yield admitted
        yield from entailed(state, admitted, at)


def _demands(state: ClusterState, at: int) -> Iterable[Event]:
    return consequences(state, grown(state, at), at)


def _drivers(state: ClusterState, at: int) -> Iterable[Event]:
    return place_drivers(state, at) if not state.by_entitlement else ()


def _executors(state: ClusterState, at: int) -> Iterator[Event]:
    """The executors to grant (semantics P6). Those whose size is computed raise no request and prefer no host."""
    for event in shared(state, at) if state.by_entitlement else served(state, at):
        if type(event) is not ExecutorAllocated:
            yield from consequences(state, (event,), at)
            continue
        if event.resources.others:
            event = with_addresses(state.workers[event.worker], event)  # noqa: PLW2901
        if type(state.apps[event.app].sizing) is Computed:
            yield event
        else:
            yield from consequences(state, (with_request(state, event),), at)


_GRANT = {
    "worker": "worker",
    "cores": "resources.cores",
    "memory_mb": "resources.memory_mb",
    "addresses": "addresses",
}

STAGES = (
    # 2. Moments that have come.
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
            Decision(WindowRemoved, "W14", "the window {0.window} is over", {"window_over": "window"}),
            Decision(
                WorkerChanged,
                "W14",
                "{0.worker} closes for the window {0.window}",
                {"closed": "worker", "window": "window"},
                lambda event: event.window != "" and event.status == "draining",
            ),
            Decision(
                WorkerChanged,
                "W14",
                "{0.worker} is back after the window {0.window}",
                {"opened": "worker", "window": "window"},
                lambda event: event.window != "",
            ),
            Decision(
                ExecutorRevoked,
                "W14",
                "{0.executor} is told to leave before the window {0.window}",
                {"revoked": "executor", "window": "window", "deadline": "deadline"},
                lambda event: event.window != "",
            ),
            Decision(
                AppRequeued,
                "W14",
                "{0.app} is put back before the window {0.window}",
                {"requeued": "app", "window": "window"},
                lambda event: event.window != "",
            ),
            Decision(
                AppRemoved,
                "W14",
                "{0.app} removed: {0.detail}",
                {"removed": "app", "reason": "reason"},
                lambda event: event.detail.startswith(windows.WITH_ITS_DRIVER),
            ),
            Decision(AppDue, "J4", "the time has come from which on {0.app} may begin", {"due": "app"}),
            Decision(
                ExecutorRevoked,
                "L6",
                "{0.executor} is told to stop",
                {"given_back": "executor", "app": "app", "worker": "worker"},
                lambda event: event.reason == "idle",
            ),
        ),
    ),
    # 3. Dependencies: who is ready, and who waits in vain.
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
    # 4. With open admission, who is ready enters; else sharing lets them in.
    Stage(
        _admissions,
        (Decision(AppAdmitted, "A3", "{0.app} of {0.user} at {0.company} admitted", {"admitted": "app"}),),
    ),
    # 5. Growth.
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
    # 6. With open admission, drivers come first.
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
    # 6. Sharing; with open admission, executors.
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
                RevocationWithdrawn,
                "H7",
                "{0.executor} goes on as before",
                {"withdrawn": "executor"},
            ),
            Decision(
                NeedBegan,
                "H6",
                "{0.app} is {0.units} units below its entitlement",
                {"need": "app", "units": "units", "date": "date"},
            ),
            Decision(NeedEnded, "H6", "{0.app} is not below its entitlement any more", {"need_ended": "app"}),
            Decision(
                SlotAwaited,
                "H10",
                "{0.app} is larger than its share and awaits a slot",
                {"awaits_turn": "app", "date": "date"},
            ),
            Decision(SlotBegan, "H10", "the slot of {0.app} begins", {"turn": "app", "units": "units"}),
            Decision(SlotEnded, "H10", "{0.app} has and awaits no slot any more", {"turn_over": "app"}),
            Decision(
                TargetSet,
                "H6",
                "room for {0.amounts} is made on {0.worker} for {0.app}",
                {
                    "target": "worker",
                    "app": "app",
                    "cores": "amounts.cores",
                    "memory_mb": "amounts.memory_mb",
                    "why": "why",
                },
            ),
            Decision(
                TargetEnded,
                "H7",
                "no room is made on {0.worker} for {0.app} any more: {0.reason}",
                {"target_ended": "worker", "app": "app", "reason": "reason"},
            ),
            Decision(
                ExecutorRevoked,
                "H7",
                "{0.executor} is told to leave for {0.claimant}",
                {"revoked": "executor", "claimant": "claimant", "why": "why", "deadline": "deadline"},
                lambda event: event.why is not None,
            ),
        ),
    ),
)
"""In the order of a turn, numbered as in T2; its first step is the inputs."""
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
