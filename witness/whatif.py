"""Replay the inputs of a log, or of a trace, under other rules in virtual time.

While the decisions equal those of the log, the replay follows the log turn by turn, so unchanged rules give the same
log. After the first difference, an app whose events still equal the logged ones continues as logged. Any other app
ends once it was granted as many core-ms as in the log; executors that ended early and changes of demand are left out.
An app that was never granted anything has the average work of the log's apps; one that has not ended has the work that
the log shows.

An executor of such an app that is told to leave for a need ends with the tasks that it runs, or at its date (semantics
H7). The work of an app is that of its tasks, all equally long; what a task had done when its date came is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

from msgspec.structs import replace

from recovery.replay.rebuild import unhindered
from scheduler.model import commands, events
from scheduler.model.commands import Command, ConfigureCluster, RegisterCompany, RegisterWorker
from scheduler.model.errors import CommandRejected, InvalidCommand, NotAllowed, UnknownCompany
from scheduler.model.events import (
    AppRegistered,
    ClusterConfigured,
    CommandRefused,
    EditionChanged,
    Event,
    MasterElected,
    outlined,
    unplaced,
)
from scheduler.model.ids import app_of
from scheduler.model.resources import Resources
from scheduler.model.sender import ASSUMED
from scheduler.rules.checks.validate import changed_settings, in_force, of_now
from scheduler.rules.command.decide import check_edition
from scheduler.rules.command.programs import hindered
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.grants import Allocation
from scheduler.rules.simulate import NEVER
from scheduler.rules.stage.turn import Turn, decision_of
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITION_2
from scheduler.rules.view.standings import standings
from scheduler.store.codec import Fact
from witness.fairness import Fairness

ENTITLED = 3
"""The edition of the rules of sharing by which everybody has an entitlement (semantics H)."""
TICK_MS = 1_000
"""How late a master may notice that something is due. A logged turn within that time handles it, as in the log."""
_OF_THE_LOG = (
    commands.ChangeCompany | commands.EndApp | commands.EndedDriver | commands.EndedExecutor
    | commands.KillExecutors | commands.ReportBacklog | commands.ScaleApp | commands.StartedExecutor
    | commands.AccountCommand
)  # fmt: skip
"""Commands replaced by the events they caused, which apply only to an app whose events equal the logged ones.

So are the refused ones of all kinds but submissions, which other rules may accept if their sender was permitted.
"""
_DECIDED = events.ExecutorsRequested | events.RoomReserved | events.WorkerSuspected | events.WorkerCleared
"""Events that follow from others by the rules (semantics L1, L2, W8), like the removal of an expired app (X2)."""


_OF_ITS_MASTER = events.SealEvent | events.RefusalsOmitted
"""Events of the log's own masters, which follow neither from commands nor from the rules: no other log has them."""


class Input(NamedTuple):
    """A command, or an event about how an app ran, and the id of the command that caused it."""

    what: Command | Event
    cause: str = ""


class LoggedTurn(NamedTuple):
    """The inputs at `at` (ms), and every event of the turn with its cause; a trace has no events."""

    at: int
    inputs: list[Input]
    events: list[Event]
    causes: list[str]


def turns(facts: Iterable[Fact]) -> Iterator[LoggedTurn]:
    """The turns of the log."""
    for _, group in groupby(facts, key=lambda fact: fact.turn):
        entries = list(group)
        inputs, causes = list(_inputs(entries)), [fact.cause for fact in entries]
        yield LoggedTurn(entries[0].at, inputs, [fact.event for fact in entries], causes)


def _inputs(turn: Sequence[Fact]) -> Iterator[Input]:
    edition = EDITION_2
    for number, fact in enumerate(turn):
        event = fact.event
        submitted = isinstance(fact.command, commands.SubmitApp)
        refused = isinstance(event, CommandRefused) and (not submitted or event.error == NotAllowed.__name__)
        if isinstance(fact.command, _OF_THE_LOG) or refused:
            for event in (caused.event for caused in turn[number : number + fact.caused]):
                if isinstance(event, events.WorkerRemoved):
                    yield Input(commands.RemoveWorker(worker=event.worker), fact.cause)
                elif not isinstance(event, _DECIDED) and getattr(event, "reason", "") != "expired":
                    yield Input(event, fact.cause)
        elif fact.command is not None:
            yield Input(fact.command, fact.cause)
        elif isinstance(fact.event, MasterElected):
            yield Input(fact.event)
        elif isinstance(fact.event, EditionChanged) and not fact.cause:
            edition = fact.event.edition
            yield Input(commands.ChangeEdition(edition=fact.event.edition))
        elif isinstance(fact.event, ClusterConfigured) and not fact.cause:
            yield Input(ConfigureCluster(settings=_stated(fact.event, earlier=edition < ENTITLED)))


def _stated(event: ClusterConfigured, *, earlier: bool) -> dict[str, Any]:
    """The settings of a new log, as they would be stated today; `earlier`: it is of an earlier edition."""
    stated = in_force(event)
    return {**stated, "reclaim_patience_s": None} if earlier and event.reclaim != "firm" else stated


class AppWork(NamedTuple):
    """An app's work in core-ms, None = unknown, and how it ends."""

    core_ms: int | None
    failed: bool = False


@dataclass(frozen=True)
class Rules:
    """The changed settings, the quotas by company (cores, MiB), the workers added at the start, and the edition.

    An edition is in force from the start on; None = as in the log.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    quotas: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    workers: Sequence[RegisterWorker] = ()
    edition: int | None = None


@dataclass(slots=True)
class _Running:
    """The core-ms left at `at` (ms) to an app that does not continue as logged."""

    left: int = 0
    at: int = -1
    rate: int = 0
    version: int = 0
    leaving: dict[str, int] = field(default_factory=dict)
    """Executor that was told to leave -> when (ms) it ends."""


class World:
    """A measured cluster: its state, its decisions with their times (ms), and the refused apps.

    With `keep`, the report has the course over time.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.state = ClusterState()
        self.meter = Fairness(keep=keep, users=True)
        self.decisions: list[tuple[int, Event]] = []
        self.refused: dict[str, str] = {}
        self.now = 0
        self.standing: dict[str, list[dict[str, Any]]] | None = None
        """How everybody stood by entitlement when the log ended; None if that was not asked."""

    def turn(self, at: int) -> Turn:
        """A turn at `at` (ms)."""
        if self.state.head:
            self.meter.advance(self.state, at)
        else:
            self.meter.first_at = at
        self.now = at
        return Turn(self.state, at, after=self._observe)

    def _observe(self, event: Event, cause: str) -> None:
        self.meter.observe(self.state, event)
        if decision_of(event, cause) is not None:
            self.decisions.append((self.state.at, event))

    def last(self, until: int) -> None:
        """Measure up to `until` (ms) though nothing happens by then: worlds are compared over the same time."""
        if self.state.at < until:
            self.meter.advance(self.state, until)
            self.meter.last_at = until

    def report(self) -> dict[str, Any]:
        """The figures of `fairness` by company and by user, the makespan, and how many apps were refused."""
        found = self.meter.report(self.state)
        if not self.meter.keep:
            del found["series"]
        ended = max((account.ended_at or 0 for account in self.meter.all), default=0)
        makespan = ended - min(account.submitted_at for account in self.meter.all) if ended else None
        if self.standing is not None:
            found["standing"] = self.standing
        return {**found, "users": self.meter.of_users(self.state), "makespanMs": makespan, "refused": len(self.refused)}

    def stand(self) -> None:
        """Note who holds above and below an entitlement now, by company and by user (semantics H)."""
        found = standings(self.state)
        rows = [
            {
                "company": company,
                "user": user,
                **{f"{name}Cores": amounts.cores for name, amounts in standing._asdict().items()},
                **{f"{name}Memory": amounts.memory_mb for name, amounts in standing._asdict().items()},
            }
            for (company, user), standing in sorted(found.items())
        ]
        self.standing = {
            "companies": [row for row in rows if not row["user"]],
            "users": [row for row in rows if row["user"]],
        }


def check_rules(rules: Rules, turns: Sequence[LoggedTurn]) -> None:
    """Raises: CommandRejected if a setting or the edition is invalid or a quota names an unknown company.

    Settings under which there are no gangs are so for a log that has any: nothing would tell that they are left out.
    """
    if rules.edition is not None:
        check_edition(rules.edition)
    why = hindered(changed_settings(ClusterConfigured(), rules.settings))
    gangs = [each.app for turn in turns for each in turn.events if isinstance(each, AppRegistered) and each.gang]
    if gangs and why is not None:
        raise InvalidCommand(f"app {gangs[0]!r} of the log is a gang, and {why}; leave that setting out")
    begun = turns[0].events if turns else []
    if rules.edition is None and begun and not any(isinstance(event, EditionChanged) for event in begun):
        raise InvalidCommand(f"the log begins by an earlier edition of the rules; give --edition {ENTITLED}")
    known = {given.what.company for turn in turns for given in turn.inputs if isinstance(given.what, RegisterCompany)}
    for company in rules.quotas:
        if company not in known:
            raise UnknownCompany(company)


def as_logged(turns: Iterable[LoggedTurn], *, keep: bool = False) -> World:
    """The world of the log."""
    world, refusals = World(keep=keep), dict[str, str]()
    for logged in turns:
        turn = world.turn(logged.at)
        for event, cause in zip(logged.events, logged.causes, strict=True):
            turn.fold(event, cause)
            if isinstance(event, CommandRefused):
                refusals[cause] = event.message
        for what, cause in logged.inputs:
            if isinstance(what, commands.SubmitApp) and cause in refusals:
                world.refused[what.app] = refusals[cause]
    return world


def work_of(world: World) -> dict[str, AppWork]:
    """App -> its work: what it was granted until it ended."""
    return {
        account.app: AppWork(account.granted_ms.cores or None, account.ended == "failed")
        for account in world.meter.accrued(world.state.at)
    }


class OtherWorld(World):
    """A cluster under `rules`, fed with the turns of a log and the work of each app.

    `follows`: whether an app continues as logged while its events equal the logged ones; a trace has no such events.
    """

    def __init__(self, rules: Rules, work: Mapping[str, AppWork], *, follows: bool = True, keep: bool = False) -> None:
        super().__init__(keep=keep)
        self.rules = rules
        self.in_step = follows
        self._follows = follows
        self._work = work
        known = [each.core_ms for each in work.values() if each.core_ms]
        self._average = sum(known) // len(known) if known else 1
        self._apart: dict[str, _Running] = {}
        self._ends: list[tuple[int, int, int, str]] = []
        self._count = 0
        self._begun = False
        self.killed = 0
        """How many executors ended at their date, before the tasks that they ran."""
        self.lost_core_ms = 0
        """What these tasks had done, and did again."""

    def take(self, logged: LoggedTurn) -> None:
        """Run up to the turn, then take its inputs."""
        if not self.in_step:
            self.run_until(logged.at)
        turn = self.turn(logged.at)
        stated = any(isinstance(given.what, ConfigureCluster) for given in logged.inputs)
        settings = {} if self._begun or stated else dict(self.rules.settings)
        if not self._begun and (settings or self.rules.edition is not None):
            _assume(turn, commands.ChangeEdition(edition=self.rules.edition or ENTITLED))
        if settings:
            _assume(turn, ConfigureCluster(settings=settings))
        for given in logged.inputs:
            if self.rules.edition is None or not isinstance(given.what, commands.ChangeEdition):
                self._give(turn, given)
        for worker in () if self._begun else self.rules.workers:
            _assume(turn, worker)
        self._begun = True
        if any(map(decision_of, logged.events, logged.causes)):
            turn.hear()
        turn.settle()
        if self._follows:
            self._compare(turn, logged)
        self._update_ends(turn)

    def run_until(self, until: int | None = None) -> None:
        """Take the turns that are due before `until` (ms), or until the last app has ended."""
        while self._has_ends() or until is not None:
            moment = self.state.timers.next(self.now)
            if self._follows and moment is not None and until is not None and until - moment <= TICK_MS:
                moment = None
            due = min(time for time in (moment, self._ends[0][0] if self._ends else None, until) if time is not None)
            if due == until:
                return
            turn = self.turn(due)
            while self._ends and self._ends[0][0] <= due:
                _, _, version, name = heappop(self._ends)
                if self._apart[name].version == version:
                    self._end(turn, name)
            turn.settle()
            for name in _by_app(entry.event for entry in turn.entries):
                self._apart.setdefault(name, _Running())
            self._update_ends(turn)

    def _has_ends(self) -> bool:
        """Whether any app is to end, once the ends that were computed again are dropped."""
        while self._ends and self._apart[self._ends[0][3]].version != self._ends[0][2]:
            heappop(self._ends)
        return bool(self._ends)

    def _give(self, turn: Turn, given: Input) -> None:
        """Take a command under this world's rules, or an event if its app continues as logged."""
        what, cause = given
        try:
            match what:
                case MasterElected() | CommandRefused():
                    turn.hear(what, cause)
                case ConfigureCluster():
                    if not _assume(
                        turn, ConfigureCluster(settings={**of_now(what.settings), **self.rules.settings}), cause
                    ):
                        turn.hear(self.state.settings, cause)  # the log states what is in force all the same
                case RegisterCompany() if what.company in self.rules.quotas:
                    cores, memory_mb = self.rules.quotas[what.company]
                    _assume(turn, replace(what, cores=cores, memory_mb=memory_mb, part=None), cause)
                case events.CompanyChanged() if what.company in self.state.companies:
                    bought = self.rules.quotas.get(what.company)
                    stated = replace(what, amounts=Resources(*bought), part=None) if bought else what
                    turn.hear(stated, cause)
                case _ if isinstance(what, events.AccountEvent | events.TokenEvent):
                    turn.hear(what, cause)
                case _ if isinstance(what, Command):
                    _assume(turn, what, cause)
                case _:
                    if (app := _app_of(what)) in self.state.apps and app not in self._apart:
                        turn.hear(what, cause)
        except CommandRejected as refusal:
            self._refuse(turn, given, refusal)

    def _refuse(self, turn: Turn, given: Input, refusal: CommandRejected) -> None:
        """Record a refusal and its app. Raises: the refusal of a setting or a quota."""
        what = given.what
        invalid = isinstance(what, RegisterCompany) and isinstance(refusal, InvalidCommand)
        if invalid or isinstance(what, ConfigureCluster):
            raise refusal
        if isinstance(what, commands.SubmitApp):
            self.refused[what.app] = str(refusal)
        if isinstance(what, Command):
            turn.refuse(what, refusal, given.cause)

    def _compare(self, turn: Turn, logged: LoggedTurn) -> None:
        """Separate the apps whose events differ from the logged ones; only their work counts from now on."""
        here = [entry.event for entry in turn.entries]
        there = [event for event in logged.events if not isinstance(event, _OF_ITS_MASTER)]
        if self.in_step and [*map(_comparable, here)] == [*map(_comparable, there)]:
            return
        self.in_step = False
        mine, theirs = _by_app(here), _by_app(logged.events)
        for name in (*mine, *theirs):
            if mine.get(name) != theirs.get(name):
                self._apart.setdefault(name, _Running())

    def _update_ends(self, turn: Turn) -> None:
        """Compute again when the separate apps of this turn end."""
        for name in _by_app(entry.event for entry in turn.entries):
            if not self._follows:
                self._apart.setdefault(name, _Running())
            if name in self._apart:
                self._update_end(name, self._apart[name], turn.at)
        for name, running in list(self._apart.items()) if self._follows else ():
            if running.at < 0:
                self._update_end(name, running, turn.at)

    def _update_end(self, name: str, running: _Running, now: int) -> None:
        app = self.state.apps.get(name)
        if app is None or (app.ended is not None and not app.allocations()):
            self._apart[name] = _Running(at=now, version=running.version + 1)
            return
        running.leaving = {
            one.id: running.leaving.get(one.id) or self._leaves_at(app, one, now)
            for one in app.executors.values()
            if one.status == "stopping"
        }
        if running.at < 0:
            core_ms = self._work.get(name, AppWork(None)).core_ms
            done = self.meter.latest(name, now).granted_ms.cores
            running.left = max(0, (self._average if core_ms is None else core_ms) - done)
        else:
            running.left = max(0, running.left - running.rate * (now - running.at))
        running.version += 1
        running.at, running.rate = now, app.granted.cores
        if running.rate:
            due = now + 1 if app.over else now + max(1, -(-running.left // running.rate))
            self._count += 1
            heappush(self._ends, (min([due, *running.leaving.values()]), self._count, running.version, name))

    def _leaves_at(self, app: App, executor: Allocation, now: int) -> int:
        """When (ms) an executor ends that was told to leave at `now` (ms): with its tasks, or at its date (H7, W14)."""
        if not executor.leaves:
            return now + 1
        task_ms, deadline = self._task_ms(app), executor.deadline if executor.firm else NEVER
        with_tasks = executor.granted_at - (executor.granted_at - now) // task_ms * task_ms if task_ms else now
        return max(now + 1, min(with_tasks, deadline))

    def _task_ms(self, app: App) -> int:
        """How long (ms) a task of the app takes, a program that runs once `NEVER`, and a driver's tasks no time."""
        if app.spec.programs:
            return NEVER
        core_ms, each = self._work.get(app.id, AppWork(None)).core_ms, app.need.executor.cores
        at_once = each // app.spec.cores_per_task
        if not (app.spec.tasks and at_once):
            return 0
        return (self._average if core_ms is None else core_ms) // (-(-app.spec.tasks // at_once) * each)

    def _end(self, turn: Turn, name: str) -> None:
        """End the app if its work is done, else those of its executors that leave now."""
        app, running = self.state.apps[name], self._apart[name]
        if app.over or running.left <= running.rate * (turn.at - running.at):
            self._finish(turn, name)
            return
        task_ms = self._task_ms(app)
        for executor in list(app.executors.values()):
            if running.leaving.get(executor.id, NEVER) > turn.at:
                continue
            if lost_ms := (turn.at - executor.granted_at) % task_ms if task_ms else 0:
                self.killed += 1
                self.lost_core_ms += lost_ms * executor.resources.cores
                running.left += lost_ms * executor.resources.cores
            _assume(turn, commands.EndedExecutor(executor=executor.id, reason="killed"))

    def _finish(self, turn: Turn, name: str) -> None:
        """End the executors and the driver of the app, and the app."""
        app = self.state.apps[name]
        failed = self._work.get(name, AppWork(None)).failed and not app.spec.supervise
        for executor in list(app.executors.values()):
            _assume(turn, commands.EndedExecutor(executor=executor.id, reason="exited", exit_code=0, done=not failed))
        if app.driver is not None:
            _assume(turn, commands.EndedDriver(driver=app.driver.id, reason="exited", exit_code=int(failed)))
        elif app.ended is None and app.spec.driver is None:
            _assume(turn, commands.EndApp(app=name, reason="failed" if failed else "finished"))


def run(
    rules: Rules,
    taken: Sequence[LoggedTurn],
    work: Mapping[str, AppWork],
    *,
    follows: bool = True,
    keep: bool = False,
    watched: Callable[[Iterable[LoggedTurn]], Iterable[LoggedTurn]] = iter,
) -> World:
    """The world of the turns under `rules`, as `OtherWorld`; `watched` passes the turns through.

    Raises: CommandRejected if a rule is not valid or there is no turn.
    """
    if not taken:
        raise InvalidCommand("the log is empty; there is nothing to replay")
    world = OtherWorld(rules, work, follows=follows, keep=keep)
    with unhindered():
        for logged in watched(taken):
            world.take(logged)
        if rules.edition == ENTITLED:
            world.stand()
        world.run_until()
    world.last(taken[-1].at)
    return world


def replayed(
    facts: Iterable[Fact],
    rules: Rules,
    watched: Callable[[Iterable[LoggedTurn]], Iterable[LoggedTurn]] = iter,
    *,
    keep: bool = False,
) -> dict[str, Any]:
    """The log's inputs under other rules beside the log, as `compared`, with `keep` over time. Raises: as `run`."""
    taken = list(turns(facts))
    check_rules(rules, taken)
    log = as_logged(taken, keep=keep)
    if rules.edition == ENTITLED:
        log.stand()
    return compared(log, run(rules, taken, work_of(log), keep=keep, watched=watched))


def compared(log: World, other: World) -> dict[str, Any]:
    """The figures of both worlds and the first differing decision, None if there is none."""
    return {"log": log.report(), "other": other.report(), "firstDifference": first_difference(log, other)}


def first_difference(log: World, other: World) -> dict[str, Any] | None:
    """The number of the first differing decision, from 1, and both decisions; None if there is none."""
    for number, (theirs, mine) in enumerate(zip_longest(log.decisions, other.decisions), start=1):
        if not (theirs and mine) or (theirs[0], _comparable(theirs[1])) != (mine[0], _comparable(mine[1])):
            logged, replayed = (each and {"at": each[0], **outlined(each[1])} for each in (theirs, mine))
            return {"number": number, "log": logged, "other": replayed}
    return None


def _assume(turn: Turn, command: Command, cause: str = "") -> list[Event]:
    """What the command causes, whoever would have to send it: nobody is asked for a permission here."""
    return turn.take(command, cause, ASSUMED)


def _comparable(event: Event) -> Event:
    """The event without shares, which depend on other apps, positions, which depend on other events, and sentences.

    Another version may word a refusal differently.
    """
    match event:
        case CommandRefused():
            return replace(event, message="")
        case events.AppAdmitted():
            return replace(event, share="")
        case events.ExecutorRevoked():
            return replace(event, hold=0, shares=None)
    return unplaced(event)


def _app_of(event: Event) -> str:
    """The app of the event, "" if it has none."""
    name: str | None = getattr(event, "app", None)
    return app_of(str(getattr(event, "executor", ""))) if name is None else name


def _by_app(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        name = _app_of(event)
        if name:
            found.setdefault(name, []).append(_comparable(event))
    return found
