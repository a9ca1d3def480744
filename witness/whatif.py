"""The same inputs under other rules: a second world, in virtual time, beside the one that the log tells.

While everything comes out as in the log, the world follows it turn by turn, so that the same rules give the
same log. From the first difference on, each app that still fares as in the log goes on as in the log; for any
other one the work is what counts: it ends once it was granted as many core-ms as in the log. What it did in
between (executors that ended early, demand that moved) is left out. An app that was never granted anything
has as much to do as the average app of the log; one whose end the log does not show, as much as the log
shows. The module is a little longer than most: two sources of inputs, one world that takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from msgspec.structs import replace

from recovery.replay.inputs import Input, LoggedTurn
from scheduler.model.commands import (
    Command,
    ConfigureCluster,
    EndApp,
    EndedDriver,
    EndedExecutor,
    Private,
    RegisterCompany,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected, InvalidCommand, UnknownCompany
from scheduler.model.events import (
    AppAdmitted,
    ClusterConfigured,
    CompanyChanged,
    Event,
    MasterElected,
    outlined,
)
from scheduler.model.ids import app_of
from scheduler.model.resources import Resources
from scheduler.rules.entities import App
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import Turn, decision_of
from scheduler.rules.validate import changed_settings
from witness.fairness import Fairness

TICK_MS = 1_000
"""How late a master may notice that a time has come: a turn of the log within that settles it, as it did there."""


class Work(NamedTuple):
    """How much an app has to do, in core-ms (None = nobody knows), and how it ends."""

    core_ms: int | None
    failed: bool = False


@dataclass(frozen=True)
class Rules:
    """What is different in the other world: settings, quotas by company, and workers added at the start."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    quotas: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    workers: Sequence[RegisterWorker] = ()


@dataclass(slots=True)
class _Running:
    """How far an app has come that does not follow the log: core-ms done at `at` (ms)."""

    left: int = 0
    at: int = -1
    rate: int = 0
    version: int = 0


class World:
    """A cluster that was measured on its way: its state, its decisions with their times (ms), and what was refused."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.meter = Fairness(keep=False, users=True)
        self.decisions: list[tuple[int, Event]] = []
        self.refused: dict[str, str] = {}
        self.now = 0

    def turn(self, at: int) -> _Observed:
        """A turn at `at` (ms), up to which time passes."""
        if self.state.head:
            self.meter.advance(self.state, at)
        else:
            self.meter.begin(at)
        self.now = at
        return _Observed(self, at)

    def report(self) -> dict[str, Any]:
        """The figures of `fairness` by company and by user, how long it all took, and how many apps were refused."""
        found = self.meter.report(self.state)
        found.pop("series")
        accounts = self.meter.accounts.all
        ended = max((account.ended_at or 0 for account in accounts), default=0)
        first = min((account.submitted_at for account in accounts), default=0)
        makespan = ended - first if ended else None
        return {**found, "users": self.meter.of_users(self.state), "makespanMs": makespan, "refused": len(self.refused)}


class _Observed(Turn):
    """A turn of a world, every event of it taken note of."""

    def __init__(self, world: World, at: int) -> None:
        super().__init__(world.state, at)
        self._world = world

    def hear(self, fact: Event | None = None, cause: str = "") -> None:
        """Take something that is no command, perhaps a fact: the turn settles what follows (semantics W6)."""
        self._taken += 1
        if fact is not None:
            self.record(fact, cause)

    def fold(self, event: Event, cause: str = "", private: Private | None = None) -> None:
        super().fold(event, cause, private)
        self._world.meter.observe(self.state, event)
        if decision_of(event, cause) is not None:
            self._world.decisions.append((self.at, event))


def check_rules(rules: Rules, turns: Iterable[LoggedTurn]) -> None:
    """Raises: CommandRejected if a setting makes no sense or a quota is that of a company that never was."""
    changed_settings(ClusterConfigured(), rules.settings)
    known = {given.what.company for turn in turns for given in turn.inputs if isinstance(given.what, RegisterCompany)}
    for company in rules.quotas:
        if company not in known:
            raise UnknownCompany(company)


def as_logged(turns: Iterable[LoggedTurn]) -> World:
    """The world that the log tells."""
    world = World()
    for logged in turns:
        turn = world.turn(logged.at)
        for event, cause in zip(logged.events, logged.causes, strict=True):
            turn.fold(event, cause)
    return world


def work_of(world: World) -> dict[str, Work]:
    """What each app of the log had to do: what it was granted until it ended."""
    return {
        account.app: Work(account.granted_ms.cores or None, account.ended == "failed")
        for account in world.meter.accounts.settle(world.state.at)
    }


class OtherWorld(World):
    """A cluster under `rules` that is given the turns of the log and what each app has to do.

    With `follows` its apps go on as in the log as long as they fare as in it; a trace has no log to follow.
    """

    def __init__(self, rules: Rules, work: Mapping[str, Work], *, follows: bool = True) -> None:
        super().__init__()
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

    def take(self, logged: LoggedTurn) -> None:
        """Let time pass up to the turn, then take its inputs."""
        if not self.in_step:
            self.run_until(logged.at)
        turn = self.turn(logged.at)
        stated = any(isinstance(given.what, ConfigureCluster) for given in logged.inputs)
        if self.rules.settings and not self._begun and not stated:
            turn.take(ConfigureCluster(settings=dict(self.rules.settings)))
        for given in logged.inputs:
            self._give(turn, given)
        for worker in () if self._begun else self.rules.workers:
            turn.take(worker)
        self._begun = True
        if any(map(decision_of, logged.events, logged.causes)):
            turn.hear()
        turn.settle()
        if self._follows:
            self._compare(turn, logged)
        self._go_on(turn)

    def run_until(self, until: int | None = None) -> None:
        """What happens by itself before `until` (ms), or until no app is left that ends."""
        while self._ends or until is not None:
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
                    self._finish(turn, name)
            turn.settle()
            for name in _by_app(entry.event for entry in turn.entries):
                self._apart.setdefault(name, _Running())
            self._go_on(turn)

    def _give(self, turn: _Observed, given: Input) -> None:
        """Take a command under this world's rules, or a fact if its app fares here as in the log."""
        what, cause = given
        try:
            match what:
                case MasterElected():
                    turn.hear(what, cause)
                case ConfigureCluster():
                    if not turn.take(ConfigureCluster(settings={**what.settings, **self.rules.settings}), cause):
                        turn.hear(self.state.settings, cause)  # the log states what is in force all the same
                case RegisterCompany() if what.company in self.rules.quotas:
                    cores, memory_mb = self.rules.quotas[what.company]
                    turn.take(replace(what, cores=cores, memory_mb=memory_mb, part=None), cause)
                case CompanyChanged() if what.company in self.state.companies:
                    bought = self.rules.quotas.get(what.company)
                    stated = replace(what, amounts=Resources(*bought), part=None) if bought else what
                    turn.hear(stated, cause)
                case _ if isinstance(what, Command):
                    turn.take(what, cause)
                case _ if self._fares_as_logged(_app_of(what)):
                    turn.hear(what, cause)
                case _:
                    pass
        except CommandRejected as refusal:
            self._refuse(what, refusal)

    def _fares_as_logged(self, app: str) -> bool:
        return app in self.state.apps and app not in self._apart

    def _refuse(self, what: Command | Event, refusal: CommandRejected) -> None:
        """Remember an app that is refused here. Raises: the refusal of a setting or a quota that makes no sense."""
        if isinstance(what, ConfigureCluster) or (
            isinstance(what, RegisterCompany) and isinstance(refusal, InvalidCommand)
        ):
            raise refusal
        if isinstance(what, SubmitApp):
            self.refused[what.app] = str(refusal)

    def _compare(self, turn: Turn, logged: LoggedTurn) -> None:
        """From here on, the apps to which something else happened than in the log go their own way."""
        here = [entry.event for entry in turn.entries]
        if self.in_step and here == logged.events:
            return
        self.in_step = False
        mine, theirs = _by_app(here), _by_app(logged.events)
        for name in (*mine, *theirs):
            if mine.get(name) != theirs.get(name):
                self._apart.setdefault(name, _Running())

    def _go_on(self, turn: Turn) -> None:
        """Reckon anew when the apps end that this turn was about and that go their own way."""
        for name in _by_app(entry.event for entry in turn.entries):
            if not self._follows:
                self._apart.setdefault(name, _Running())
            if name in self._apart:
                self._reckon(name, self._apart[name], turn.at)
        for name, running in list(self._apart.items()) if self._follows else ():
            if running.at < 0:
                self._reckon(name, running, turn.at)

    def _reckon(self, name: str, running: _Running, now: int) -> None:
        app = self.state.apps.get(name)
        if app is None or (app.ended is not None and not app.allocations()):
            self._apart[name] = _Running(at=now, version=running.version + 1)
            return
        if running.at < 0:
            running.left = max(0, self._work_left(app, now))
        else:
            running.left = max(0, running.left - running.rate * (now - running.at))
        running.version += 1
        running.at, running.rate = now, app.granted.cores
        if running.rate:
            due = now + 1 if app.ended is not None else now + max(1, -(-running.left // running.rate))
            self._count += 1
            heappush(self._ends, (due, self._count, running.version, name))

    def _work_left(self, app: App, now: int) -> int:
        known = self._work.get(app.spec.app, Work(None)).core_ms
        done = self.meter.accounts.latest(app.spec.app, now).granted_ms.cores
        return (self._average if known is None else known) - done

    def _finish(self, turn: Turn, name: str) -> None:
        """All that the app has is over, and the app with it."""
        app = self.state.apps[name]
        failed = self._work.get(name, Work(None)).failed and not app.spec.supervise
        for executor in list(app.executors.values()):
            turn.take(EndedExecutor(executor=executor.id, reason="exited", exit_code=0, done=not failed))
        if app.driver is not None:
            turn.take(EndedDriver(driver=app.driver.id, reason="exited", exit_code=int(failed)))
        elif app.ended is None and app.spec.driver is None:
            turn.take(EndApp(app=name, reason="failed" if failed else "finished"))


def compared(log: World, other: World) -> dict[str, Any]:
    """Both worlds' figures, and the first decision that came out differently, None if all are the same."""
    return {"log": log.report(), "other": other.report(), "firstDifference": first_difference(log, other)}


def first_difference(log: World, other: World) -> dict[str, Any] | None:
    """The number of the first differing decision, counted from 1, and both, None where there is none."""
    number = 0
    for number, (theirs, mine) in enumerate(zip(log.decisions, other.decisions, strict=False), start=1):
        if (theirs[0], _fate(theirs[1])) != (mine[0], _fate(mine[1])):
            return {"number": number, "log": _said(theirs), "other": _said(mine)}
    rest = [world.decisions[number : number + 1] for world in (log, other)]
    if not any(rest):
        return None
    theirs_, mine_ = ([_said(decision) for decision in part] for part in rest)
    return {"number": number + 1, "log": next(iter(theirs_), None), "other": next(iter(mine_), None)}


def _said(decision: tuple[int, Event]) -> dict[str, Any]:
    at, event = decision
    return {"at": at, **outlined(event)}


def _fate(event: Event) -> Event:
    """The event without what says nothing of the app itself."""
    return replace(event, share="") if isinstance(event, AppAdmitted) else event


def _app_of(event: Event) -> str:
    """The app that the event is about, "" if it is about none."""
    name: str | None = getattr(event, "app", None)
    return app_of(str(getattr(event, "executor", ""))) if name is None else name


def _by_app(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        name = _app_of(event)
        if name:
            found.setdefault(name, []).append(_fate(event))
    return found
