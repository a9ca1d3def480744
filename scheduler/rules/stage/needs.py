"""Needs and their targets: when they begin, and when they end (semantics H6, H7). How room is made is in `room`."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator
from typing import TYPE_CHECKING, Literal

from scheduler.model.events import (
    Event,
    ExecutorAllocated,
    ExecutorRevoked,
    NeedBegan,
    NeedEnded,
    RevocationWithdrawn,
    Shares,
    SlotEnded,
    TargetEnded,
    TargetSet,
)
from scheduler.model.resources import NOTHING
from scheduler.rules.admission.turns import AppTurns
from scheduler.rules.checks.kinds import with_addresses
from scheduler.rules.command.failures import closed_to, room_now
from scheduler.rules.command.windows import sought_by
from scheduler.rules.placement.executors import allocation
from scheduler.rules.share.demands import held_units, units_of
from scheduler.rules.share.entitlement import Entitlement
from scheduler.rules.stage.caps import is_capped, passes_staying
from scheduler.rules.stage.losses import Losses
from scheduler.rules.stage.room import (
    CheapestFirst,
    Gathering,
    Room,
    Seeking,
    Why,
    coming,
    most_targets,
    targets_made,
    unit_of,
)
from scheduler.rules.state.backfill import ending_by

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation, Hold
    from scheduler.rules.state.cluster import ClusterState

Ending = Literal["granted", "served", "worker-gone", "unusable", "stays"]


def void(state: ClusterState, entitled: Entitlement, at: int) -> Iterator[Event]:
    """End the targets that are void, and let stay what was to leave for them (semantics H7)."""
    again = True
    while again:
        again = False
        returns = _by_plan(state)
        for target in list(state.holds.values()):
            if target.id not in state.holds:
                continue
            reason = _why_void(state, target, entitled, returns, at)
            if reason is not None:
                again = True
                for each in _with_gang(state, target):
                    yield from end(state, each, reason)
                returns = _by_plan(state)


def _with_gang(state: ClusterState, target: Hold) -> list[Hold]:
    """The targets that end with that one: all of a gang (semantics G8)."""
    app = state.apps.get(target.app)
    return list(app.holds.values()) if app is not None and app.spec.gang else [target]


def ended_by_grant(state: ClusterState, app: str, worker: str) -> Iterator[Event]:
    """A grant on a worker ends the target of its app there."""
    own = next((target for target in state.workers[worker].holds.values() if target.app == app), None)
    if own is not None:
        yield from end(state, own, "granted")


def end(state: ClusterState, target: Hold, reason: Ending) -> Iterator[Event]:
    """The target ends; executors that still leave for it stay, but for those that change their place."""
    yield TargetEnded(target=target.id, worker=target.worker, app=target.app, reason=reason)
    for _, executor in sorted(target.leaving.items()):
        app = state.apps[executor.app]
        if not executor.moved and not app.over and (app.is_whole or not app.spec.gang):
            yield RevocationWithdrawn(app=executor.app, executor=executor.id, worker=executor.worker)


def given_up(state: ClusterState) -> list[Event]:
    """All targets, needs and slots end: admission is open from now on, and nobody is entitled to anything (A6)."""
    ended = [event for target in state.holds.values() for event in end(state, target, "served")]
    ended += [NeedEnded(app=app.id) for app in having_needs(state)]
    return [*ended, *[SlotEnded(app=name) for name in state.slots]]


def _why_void(
    state: ClusterState, target: Hold, entitled: Entitlement, returns: list[Allocation], at: int
) -> Ending | None:
    app, worker = state.apps.get(target.app), state.workers.get(target.worker)
    if worker is None or worker.status != "alive" or worker.shut or target.id not in worker.holds:
        return "worker-gone"
    if app is None or app.over or _superfluous(app, target, entitled):
        return "served"
    if target.worker in closed_to(state, app, at):
        return "unusable"
    if not state.fleet.admits(target.worker, sought_by(state, app, NOTHING, at)):
        return "unusable"
    told = [] if target.reason == "plan" else [one for one in target.leaving.values() if not one.moved]
    losses = Losses(state, entitled, app, returns) if told else None
    if losses is not None and any(map(losses.may_stay, told)):
        return "stays"
    room = worker.open_to(app.id) + coming(state, worker)
    amounts, unit = target.amounts, target.amounts
    if app.need.gang:
        amounts, unit = sum([one.amounts for one in worker.holds.values()], NOTHING), app.need.unit
    usable = worker.suspicion is None or not app.need.gang  # a probe is one executor
    passes = usable and passes_staying(state, app.spec.company, unit)
    if not room.covers(amounts):
        room += ending_by(state, worker, app.lack.date, at)
    return None if passes and room.covers(amounts) else "unusable"


def _superfluous(app: App, target: Hold, entitled: Entitlement) -> bool:
    """Whether the app has more targets than it is below its entitlement."""
    return list(app.holds).index(target.id) >= entitled.below(app) or target.amounts != unit_of(app)


def _by_plan(state: ClusterState) -> list[Allocation]:
    """Who leaves by the plan counts as there: its app gets it back, and else the two would take turns."""
    return [one for other in state.holds.values() if other.reason == "plan" for one in other.leaving.values()]


def having_needs(state: ClusterState) -> list[App]:
    """The apps that have a need, in the order of admission."""
    return list(state.indexes.needy)


def _in_need(state: ClusterState, entitled: Entitlement, at: int) -> list[App]:
    """The admitted apps that are below their entitlement by a unit that fits nowhere now (semantics H6).

    Not those whose driver waits because there are `max_drivers` (D4).
    """
    most = state.settings.max_drivers
    full = most is not None and len(state.drivers) >= most
    rooms: dict[Hashable, bool] = {}

    def waits(app: App) -> bool:
        if app.unplaced_driver is not NOTHING:
            return app.tries.driver_after <= at and not full
        if app.need.gang and app.executors:
            return False  # it stops, and wants all of it once that is gone (semantics G8)
        if app.planned and not entitled.whole:
            return True
        return app.driver_runs and (is_capped(state, app, app.need.unit) or not room_now(state, app, at, rooms))

    return [app for app in state.wanting() if not app.over and entitled.below(app) > 0 and waits(app)]


def needs(state: ClusterState, entitled: Entitlement, at: int) -> Iterator[Event]:
    """Which needs begin and end, and the targets that they get (semantics H6)."""
    waiting = _in_need(state, entitled, at)
    known = {app.id for app in waiting}
    for app in having_needs(state):
        if app.id not in known:
            yield NeedEnded(app=app.id)
    patience = (state.settings.reclaim_patience_s or 0) * 1000
    for app in waiting:
        units, lack = entitled.below(app), app.lack
        if lack.units != units:
            lasts = lack.units or (lack.date and at < lack.ended + patience)
            yield NeedBegan(app=app.id, units=units, date=lack.date if lasts else at + patience)
    yield from _targets(state, entitled, waiting, at)


def _targets(state: ClusterState, entitled: Entitlement, waiting: list[App], at: int) -> Iterator[Event]:
    """Targets for needs: the first date first, no company a second one before each other that waits has one (H6)."""
    left = most_targets(state) - targets_made(state)
    if left <= 0:
        return
    line = _Awaiting(state, entitled, waiting)
    alike: set[Hashable] = set()
    bounds = CheapestFirst(state, entitled)
    while left > 0 and (app := line.pop()) is not None:
        if app.need.gang:
            made = yield from _for_gang(state, entitled, app, at, bounds)
            if made is None:
                return
            left -= made
            continue
        kind = bounds.kind(app, at)
        found = None
        if app.troubles or kind not in alike:
            found = Seeking(state, entitled, app, at, bounds).cheapest()
        if found is None:
            if not (app.troubles or app.executors) and bounds.is_in_plan(app):
                alike.add(kind)  # others like it have no more means, since their own executors never leave for them
            continue
        alike.clear()
        left -= 1
        room, why = found
        yield from _set(state, entitled, app, room, why)
        line.served(app, [executor.app for executor, _ in room.leaving], moves_dates=why == "plan")
        if any(to or executor.worker != room.worker for executor, to in room.leaving):
            bounds.forget()


def _for_gang(
    state: ClusterState, entitled: Entitlement, app: App, at: int, bounds: CheapestFirst
) -> Generator[Event, None, bool | None]:
    """The targets of a gang, all at once; whether it got them, None if others wait until it can (semantics G8).

    Of a company one gang at a time has targets. One for which there is room but for targets of others comes next.
    """
    company = app.spec.company
    for target in state.holds.values():
        other = state.apps.get(target.app)
        if other is not None and other.spec.gang and other.spec.company == company:
            return False
    gathered = Gathering(state, entitled, app, at, bounds).gathered()
    if gathered is None:
        waits = state.holds and Gathering(state, entitled, app, at, bounds).waits_for_targets()
        return None if waits else False
    for each in gathered:
        for _ in range(each.number):
            yield TargetSet(worker=each.worker, app=app.id, amounts=unit_of(app), why=each.why)
        telling = _Telling(state, entitled, app, state.head)
        for executor in each.leaving:
            if executor.status != "stopping":  # a gang may stand on several of the workers
                yield telling.told(executor, _why(state, executor, each.worker, each.why))
    bounds.forget()
    return True


def _why(state: ClusterState, executor: Allocation, worker: str, why: Why) -> Why:
    """Why an executor leaves for a target on that worker: elsewhere for the cap, or with its gang."""
    return why if executor.worker == worker or state.apps[executor.app].spec.gang else "cap"


class _Awaiting:
    """The apps that wait for a target: of the company with the fewest first, then the first date, then by admission.

    Whoever was looked at in vain does not come again.
    """

    def __init__(self, state: ClusterState, entitled: Entitlement, waiting: list[App]) -> None:
        self._entitled = entitled
        self._having = dict.fromkeys(state.companies, 0)
        for target in state.holds.values():
            if target.app in state.apps:
                self._having[state.apps[target.app].spec.company] += 1
        self._out = {app.id: app for app in waiting}
        """Apps that are not in line and may come back: who leaves for others may be below by more."""
        self._in: dict[str, App] = {}
        self._turns: AppTurns[str] | None = None
        self._join(list(self._out))

    def pop(self) -> App | None:
        """Whose turn it is; None if nobody is left."""
        if self._turns is None:
            self._turns = AppTurns(
                self._in.values(),
                side=lambda app: app.spec.company,
                company=lambda app: self._having[app.spec.company],
                user=lambda _: (),
                within=lambda app: (app.lack.date, app.admitted),
            )
        app = self._turns.pop()
        if app is not None:
            del self._in[app.id]
        return app

    def served(self, app: App, losers: list[str], *, moves_dates: bool) -> None:
        """The app got a target, for which executors of others leave; whether that moves the dates of these."""
        self._having[app.spec.company] += 1
        self._out[app.id] = app
        if moves_dates:
            self._turns = None
        self._join([app.id, *losers])

    def _join(self, names: list[str]) -> None:
        for name in names:
            app = self._out.get(name)
            if app is not None and len(app.holds) < self._entitled.below(app):
                del self._out[name]
                self._in[name] = app
                if self._turns is not None:
                    self._turns.push(app)


def _set(state: ClusterState, entitled: Entitlement, app: App, room: Room, why: Why) -> Iterator[Event]:
    """The target, whoever leaves for it, and the executors that are granted elsewhere first."""
    yield TargetSet(worker=room.worker, app=app.id, amounts=unit_of(app), why=why)
    telling = _Telling(state, entitled, app, state.head)
    for executor, to in room.leaving:
        if not to:
            yield telling.told(executor, _why(state, executor, room.worker, room.why))
            continue
        yield telling.told(executor, "move")
        loser = state.apps[executor.app]
        event: ExecutorAllocated = allocation(loser, loser.next_executor, to, executor.resources)
        yield with_addresses(state.workers[to], event) if executor.resources.others else event


def runs_for_s(state: ClusterState, executor: Allocation) -> int:
    """How many seconds after its grant an executor does not have to leave for a need (semantics H7)."""
    stated_s = state.apps[executor.app].spec.min_runtime_s
    return state.settings.min_runtime_s if stated_s is None else stated_s


class _Telling:
    """Tells executors to leave for the target of a claimant; `target` is its position."""

    def __init__(self, state: ClusterState, entitled: Entitlement, claimant: App, target: int) -> None:
        self._state, self._entitled, self._claimant, self._target = state, entitled, claimant, target

    def told(self, executor: Allocation, why: Why) -> ExecutorRevoked:
        """The event, with the date of the need as the deadline, and a receipt (semantics H7).

        Whose slot is over knew its deadline from its grant on (semantics H10).
        """
        state, claimant = self._state, self._claimant
        runs_until = executor.granted_at + runs_for_s(state, executor) * 1000
        deadline = max(claimant.lack.date, runs_until, state.at)
        return ExecutorRevoked(
            app=executor.app,
            executor=executor.id,
            worker=executor.worker,
            reason="reclaimed",
            hold=self._target,
            claimant=claimant.id,
            claimant_company=claimant.spec.company,
            rule=f"H6 {why}",
            since=claimant.lack.since,
            deadline=state.at if 0 < executor.until <= state.at else deadline,
            shares=self._holdings(executor),
        )

    def _holdings(self, executor: Allocation) -> Shares:
        """What both apps hold of what they are entitled to, in smallest executors, before and after the loss."""
        claimant, loser = self._claimant, self._state.apps[executor.app]
        mine, due = held_units(claimant), self._entitled.units(claimant)
        theirs, theirs_due = held_units(loser), self._entitled.units(loser)
        left = 0 if loser.spec.gang else theirs - units_of(loser, executor)
        return Shares(
            f"{mine}/{due}",
            f"{mine + (claimant.need.gang or 1)}/{due}",
            f"{theirs}/{theirs_due}",
            f"{left}/{theirs_due}",
        )
