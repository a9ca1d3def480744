"""When apps that wait may start: what would come if nothing else came (docs/estimates.md).

Two courses go on from a copy of the state in virtual time, by the turns of the scheduler itself. In the late one,
everything lasts as long as it may; in the likely one, apps end when they usually do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from recovery.replay.bounds import moment
from recovery.replay.rebuild import unhindered
from scheduler.model.commands import EndApp, EndedDriver, EndedExecutor, StartedExecutor
from scheduler.model.errors import CommandRejected
from scheduler.model.events import DriverAllocated, ExecutorAllocated
from scheduler.model.sender import ASSUMED
from scheduler.model.text import counted
from scheduler.rules.index.closings import grace_of
from scheduler.rules.simulate import NEVER
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.preconditions import EDITIONS
from scheduler.rules.state.records import lines, restored
from witness.entitled_reasons import never_within
from witness.pending_reasons import Wait, shut_out, waits_for

if TYPE_CHECKING:
    from scheduler.model.commands import Command
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.state.cluster import ClusterState

MOST_TURNS = 1_000
"""The most turns of a course."""
EXACT_TURNS, STEP = 100, 100
"""After so many, a turn comes no sooner than a `STEP`-th of the time since the beginning after the one before."""
WITHIN_S = 2.0
"""How long a course may take to work out."""
MOST_APPS = 50_000
"""Of a state with more apps no course is worked out: to copy it would take too long."""
LAST = 2
"""The usual runtime of a user's apps is the mean of so many that ended last (Tsafrir, Etsion and Feitelson 2007)."""
LOOKED_AT = 1_000
"""Of so many apps that ended last the runtimes are known."""
_WITHOUT_END = frozenset({"hold", "no-live-worker", "no-worker-large-enough", "limit"})
"""Causes of waiting that only somebody's act ends."""

Work = Callable[["App", int], int]
"""After how many core-ms in all an app ends that was granted so many, as one knows then."""


class Estimate(NamedTuple):
    """When (ms) an app gets its first executor or its driver: no sooner, probably, and at the latest.

    None = there is no such time; `why` says what keeps it from having one, and is "" if it has all three.
    """

    earliest: int | None
    likely: int | None
    latest: int | None
    why: str = ""


def waiting(state: ClusterState) -> Iterator[App]:
    """The apps that have neither an executor nor a driver, and may still get one.

    What is told to leave still runs; of an app that was put back it is there no more.
    """
    for app in state.apps.values():
        if app.ended is None and not app.over and not (app.admitted and app.allocations()):
            yield app


def forecast(
    state: ClusterState,
    at: int,
    apps: Collection[str] | None = None,
    *,
    within_s: float = WITHIN_S,
    spoil: bool = False,
) -> dict[str, Estimate]:
    """The estimates at `at` (ms) of those of these apps that wait, None = of all that do.

    The state stays as it is, unless the caller lets it `spoil`, which saves a copy. Each course takes at most
    `MOST_TURNS` turns and `within_s`. By an edition of the rules that no master serves any more there are none
    (semantics H8).
    """
    meant = [app for app in waiting(state) if apps is None or app.id in apps]
    if not meant or state.edition != EDITIONS[-1]:
        return {}
    at, first = max(at, state.at), _Earliest(state, at)
    earliest = {app.id: first.of(app) for app in meant}
    found = {app.id: Estimate(None, None, None, first.why_not(app)) for app in meant if earliest[app.id] is None}
    names = [app.id for app in meant if app.id not in found]
    dates = {name: date for name in names if (date := _date(state, state.apps[name])) is not None}
    if len(state.apps) > MOST_APPS:
        why_not = f"with {counted(len(state.apps), 'app')}, more than {MOST_APPS}, it is not worked out when others end"
        for name in names:
            date = dates.get(name)
            found[name] = Estimate(earliest[name], date, date, "" if date is not None else why_not)
        return {app.id: found[app.id] for app in meant}
    usual = usual_work(state)
    with unhindered():
        late = VirtualCourse(restored(lines(state)), at, names)
        latest, why = late.run(within_s), {name: late.why_not(name) for name in names if name not in late.starts}
        del late
        likely = VirtualCourse(state if spoil else restored(lines(state)), at, names, usual, prompt=True)
        likely.run(within_s)
    for name in names:
        last, usually = latest.get(name, dates.get(name)), likely.starts.get(name)
        if last is not None and not likely.ends_without(name):
            usually = last if usually is None else min(usually, last)
        vain = "" if usually is not None else "if all lasts as long as it usually does, it is removed before it starts"
        found[name] = Estimate(earliest[name], usually, last, vain if last is not None else why[name])
    return {app.id: found[app.id] for app in meant}


def _date(state: ClusterState, app: App) -> int | None:
    """By when (ms) room that is being made for the app is there, None if none is, or nobody has to leave (H7)."""
    dates = [
        max([state.at, *[one.deadline for one in hold.leaving.values()]])
        for hold in app.holds.values()
        if all(one.firm for one in hold.leaving.values())
    ]
    return min(dates) + 1000 * state.settings.kill_grace_s if dates else None


def _without_end(state: ClusterState, app: App) -> Wait | None:
    """What only somebody's act ends, of all that keeps the app waiting, though something else may be told of first.

    Such as a limit (N2), a cap or what others lend to nobody (H1, H12) that leaves less than the app alone asks for.
    """
    wait = waits_for(state, app)
    if wait is None or wait.cause in _WITHOUT_END or _is_too_low(wait):
        return wait
    company = state.queue.companies.get(app.spec.company)
    if company is None or state.settings.admission == "open" or (app.admitted and wait.cause != "cap"):
        return None
    hidden = None if app.admitted else shut_out(state, company, app)
    stays = state.fleet.live and not state.windows  # else workers that could host it come back by themselves, maybe
    if hidden is not None and (_is_too_low(hidden) or (stays and hidden.cause in _WITHOUT_END)):
        return hidden
    found = never_within(state, app) if state.by_entitlement else None
    return None if found is None else Wait(*found)


def _is_too_low(wait: Wait) -> bool:
    """Whether it is a limit below what the app alone asks for."""
    facts = wait.tell()[1] if wait.cause == "beyond-limit" else {"asked": 0, "most": 0}
    return bool(facts["asked"] > facts["most"])


class _Earliest:
    """Before when nothing can start the apps of a state at a time (ms).

    What runs may end at any moment, so that is now, unless a rule names a time: the begin of the app (J4), that of one
    that it waits for (J1), or the next try of its driver (D3).
    """

    def __init__(self, state: ClusterState, at: int) -> None:
        self._state, self._at = state, at
        self._known: dict[str, int | None] = {}

    def of(self, app: App) -> int | None:
        """The time (ms); None if somebody has to do something first."""
        line, seen = [app], {app.id}
        for one in line:  # all that it waits for
            for name in one.awaits:
                if name in self._state.apps and name not in seen:
                    seen.add(name)
                    line.append(self._state.apps[name])
        for one in sorted(line, key=lambda one: one.submitted):  # an app waits for earlier ones only
            if one.id not in self._known:
                self._known[one.id] = self._alone(one)
        return self._known[app.id]

    def _alone(self, app: App) -> int | None:
        """The time of the app, once those of the apps that it waits for are known."""
        if _without_end(self._state, app) is not None:
            return None
        due = max(self._at, app.not_before, app.tries.driver_after)
        for name in app.awaits:
            before = self._known.get(name, self._at)
            if before is None:
                return None
            due = max(due, before)
        return due

    def why_not(self, app: App) -> str:
        """What keeps the app, or one that it waits for, from starting by itself."""
        while (wait := _without_end(self._state, app)) is None:
            held = [name for name in app.awaits if self._known.get(name, 0) is None]
            if not held:
                break
            app = self._state.apps[held[0]]
        return "" if wait is None else wait.tell()[0]


def usual_work(state: ClusterState) -> Work:
    """The work of apps that need as much as the last ones of their user did, or as those of all users if it has none.

    One that was granted more needs as much again. Work is what was granted over the cores that were requested.
    """
    by_user: dict[tuple[str, str], list[int]] = {}
    for name in islice(reversed(state.ended), LOOKED_AT):
        app = state.apps[name]
        if app.spent.core_ms and app.requested.cores:
            by_user.setdefault((app.spec.company, app.spec.user), []).append(app.spent.core_ms // app.requested.cores)
    usual = {user: sum(found[:LAST]) // len(found[:LAST]) for user, found in by_user.items()}
    every = [ran for found in by_user.values() for ran in found]
    of_all = sum(every) // len(every) if every else NEVER

    def work(app: App, had: int) -> int:
        each_ms = usual.get((app.spec.company, app.spec.user), of_all)
        needed = each_ms * app.requested.cores if each_ms < NEVER else NEVER
        return needed if needed > had else 2 * had

    return work


def endless(_: App, __: int) -> int:
    """The work of apps that end only when they must."""
    return NEVER


@dataclass(slots=True)
class _Doing:
    """The core-ms that an app still needs at a time (ms), and the cores that it has since."""

    left: int
    at: int
    cores: int


class VirtualCourse:
    """A state that goes on without further inputs until these apps have started.

    Every app runs for as long as it may (semantics X), or until its `work` is done; who is told to leave or to stop is
    gone when it must be, or if they are `prompt` without its grace. It changes the state.
    """

    def __init__(
        self, state: ClusterState, at: int, apps: Collection[str], work: Work = endless, *, prompt: bool = False
    ) -> None:
        self.state, self.at = state, at
        self.starts: dict[str, int] = {}
        """App -> when (ms) it was granted something."""
        self._left, self._work, self._prompt = dict.fromkeys(apps), work, prompt
        self._stops: dict[str, int] = {}
        """Executor or driver that was told to stop -> when (ms) it is gone."""
        self._ends: dict[str, int] = {}
        """App -> when (ms) its work is done."""
        self._doing: dict[str, _Doing] = {}
        self._cut = ""
        self._turns = 0

    def run(self, within_s: float = WITHIN_S) -> dict[str, int]:
        """Go on until all have started, nothing is due any more, or the bounds are reached; the starts."""
        deadline_s, began = time.monotonic() + within_s, self.at
        reports = Turn(self.state, self.at)
        for executor in list(self.state.executors.values()):
            if not executor.started and executor.status != "stopping":
                self._take(reports, StartedExecutor(executor=executor.id))
        for app in self.state.apps.values():
            self._follow(app, self.at)
        self._turn(self.at)
        while self._left:
            due = min([*self._stops.values(), *self._ends.values()], default=NEVER)
            timer = self.state.timers.next(self.at)
            due = due if timer is None else min(due, timer)
            if due >= NEVER:
                return self.starts
            if self._turns >= EXACT_TURNS:
                due = max(due, self.at + (self.at - began) // STEP)
            if self._turns == MOST_TURNS or time.monotonic() > deadline_s:
                self._cut = (
                    f"not before {moment(self.at)}, up to which {self._turns} ends and other times were looked at"
                )
                return self.starts
            self._turn(due)
        return self.starts

    def _turn(self, at: int) -> None:
        """What ends at `at` (ms), and the turn that follows."""
        self.at = at
        self._turns += 1
        turn = Turn(self.state, at)
        timed = self.state.timers.any_due(at)
        self._end_due(turn)
        turn.settle(due=timed)
        self._heed(turn)

    def _end_due(self, turn: Turn) -> None:
        """What was told to stop is gone, and apps end whose work is done."""
        for name in [name for name, due in self._stops.items() if due <= turn.at]:
            del self._stops[name]
            if name in self.state.executors:
                self._take(turn, EndedExecutor(executor=name, reason="killed"))
            elif name in self.state.drivers:
                self._take(turn, EndedDriver(driver=name, reason="killed"))
        for name in [name for name, due in self._ends.items() if due <= turn.at]:
            del self._ends[name]
            if name in self.state.apps:
                self._finish(turn, self.state.apps[name])

    def _heed(self, turn: Turn) -> None:
        """Workers start what was granted; note who started, and when what of their apps ends."""
        touched: dict[str, None] = {}
        for event, _ in list(turn.entries):
            if isinstance(name := getattr(event, "app", None), str):
                touched[name] = None
            if isinstance(event, ExecutorAllocated | DriverAllocated) and event.app in self._left:
                del self._left[event.app]
                self.starts[event.app] = turn.at
        for event, _ in list(turn.entries):
            if isinstance(event, ExecutorAllocated):
                self._take(turn, StartedExecutor(executor=event.executor))
        for name in touched:
            app = self.state.apps.get(name)
            if app is None or app.ended is not None:
                self._left.pop(name, None)
                self._ends.pop(name, None)
            if app is not None:
                self._follow(app, turn.at)

    @staticmethod
    def _take(turn: Turn, command: Command) -> None:
        with suppress(CommandRejected):  # a worker that speaks of what is gone
            turn.take(command, by=ASSUMED)

    def _follow(self, app: App, at: int) -> None:
        """Note when the app ends, and what of it was told to stop."""
        held = app.allocations()
        for one in held:
            if one.status == "stopping":
                self._stops[one.id] = min(self._stops.get(one.id, NEVER), self._gone_at(app, one, at))
            else:
                self._stops.pop(one.id, None)
        if app.over or app.ended is not None or not held:
            self._ends.pop(app.id, None)
            self._doing.pop(app.id, None)
            return
        doing = self._doing.get(app.id)
        if doing is None:
            had = app.spent.core_ms + sum([one.resources.cores * (at - one.granted_at) for one in held])
            needed = self._work(app, had)
            if needed >= NEVER:
                return
            doing = self._doing[app.id] = _Doing(needed - had, at, 0)
        doing.left -= doing.cores * (at - doing.at)
        doing.at, doing.cores = at, app.granted.cores
        self._ends[app.id] = max(at + 1, at - -doing.left // doing.cores)

    def _gone_at(self, app: App, one: Allocation, at: int) -> int:
        """When (ms) an executor or a driver is gone that was told to stop by `at` (ms) (semantics H7, G5, X2, W14)."""
        settings, own_s = self.state.settings, app.spec.grace_s
        if one.leaves and app.goes_on:
            if not one.firm:
                return NEVER  # it leaves with its tasks
            return max(at + 1, one.deadline + (0 if self._prompt else 1000 * grace_of(settings, app, one)))
        grace_s = settings.kill_grace_s if own_s is None or app.expired_at else own_s
        return at + (1 if self._prompt else max(1, 1000 * grace_s))

    def _finish(self, turn: Turn, app: App) -> None:
        """End what the app has, and the app."""
        for executor in list(app.executors.values()):
            done = EndedExecutor(executor=executor.id, reason="exited", exit_code=0, done=True)
            self._take(turn, done)
        if app.driver is not None:
            self._take(turn, EndedDriver(driver=app.driver.id, reason="exited", exit_code=0))
        elif app.ended is None and app.spec.driver is None:
            self._take(turn, EndApp(app=app.id, reason="finished"))

    def ends_without(self, name: str) -> bool:
        """Whether the app has ended in this course before it started, as one that waits for something in vain does."""
        app = self.state.apps.get(name)
        return name not in self.starts and (app is None or app.ended is not None)

    def why_not(self, name: str) -> str:
        """Why the app has not started in this course."""
        if self._cut:
            return self._cut
        app = self.state.apps.get(name)
        wait = None if app is None or self.ends_without(name) else waits_for(self.state, app)
        if wait is None or app is None:
            return "if all lasts as long as it may, it is removed before it starts"
        endless = [one for one in self.state.apps.values() if one.max_runtime_s is None and one.allocations()]
        if not endless:
            return wait.tell()[0]
        count = "1 app that runs has" if len(endless) == 1 else f"{len(endless)} apps that run have"
        return f"{count} no maximum runtime, and no rule takes from others what it waits for"
