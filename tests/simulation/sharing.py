"""What sharing by entitlement promises, checked at every event and after every turn of a log (semantics H)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations

from scheduler.model.events import (
    AppAdmitted,
    AppRemoved,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    ExecutorRevoked,
    NeedBegan,
    SlotAwaited,
    SlotBegan,
    TargetSet,
)
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.command.failures import closed_to
from scheduler.rules.command.windows import barred
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.grants import Hold
from scheduler.rules.entities.workers import Worker
from scheduler.rules.invariants import parts_of_gangs
from scheduler.rules.share.demands import held_units, units_of, wanted_units
from scheduler.rules.share.entitlement import Entitlement, entitlement, filling
from scheduler.rules.share.fill import Leaf
from scheduler.rules.stage.needs import runs_for_s
from scheduler.rules.stage.room import targets_made
from scheduler.rules.state.cluster import ClusterState
from tests.property import reference
from tests.property.given import decides_nothing_more
from tests.property.lawful import leaves_for_a_need, within_departments, within_quota


class RuleBroken(AssertionError):
    """What sharing promises does not hold; `rule` is its number."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(what)
        self.rule = rule


class Sharing:
    """The dates of needs and slots, as the events tell of them."""

    def __init__(self) -> None:
        self._dates: dict[str, int] = {}
        """App -> the date of its last need, in ms."""
        self._slots: dict[str, int] = {}
        """App -> when its slot may begin, in ms."""

    def before(self, state: ClusterState, event: Event, at: int) -> None:
        """Check an event at `at` (ms) just before it is folded."""
        with _rule("H1"):
            within_quota(state, event)
        with _rule("H12"):
            within_departments(state, event)
        _is_within_limits(state, event)
        _meets_what_is_demanded(state, event)
        _comes_in_no_window(state, event, at)
        match event:
            case NeedBegan():
                self._begins(state, event, at)
            case TargetSet():
                most = max(1, sum(worker.status == "alive" for worker in state.workers.values()) // 4)
                own = state.apps[event.app].spec.gang and state.apps[event.app].holds
                if targets_made(state) >= most and not own:
                    raise RuleBroken("H6", f"{len(state.holds)} targets of at most {most} are there, and one more")
            case ExecutorRevoked(why=str()):
                self._tells(state, event)
            case ExecutorAllocated():
                self._is_gone_by_the_date(state, event, at)
            case SlotAwaited():
                self._slots[event.app] = event.date
                whole, rest = divmod(event.date - at, 1000 * state.settings.slot_s)
                if whole < 1 or rest:
                    raise RuleBroken("H10", f"{event.app} awaits a slot for {event.date - at} ms")
            case SlotBegan() if at < self._slots[event.app]:
                raise RuleBroken("H10", f"the slot of {event.app} begins {self._slots[event.app] - at} ms early")
            case AppRemoved():
                self._dates.pop(event.app, None)
            case _:
                pass

    def _begins(self, state: ClusterState, event: NeedBegan, at: int) -> None:
        """A date is a patience from now, or that of a need which its app had before."""
        patience = 1000 * (state.settings.reclaim_patience_s or 0)
        if event.date not in (at + patience, self._dates.get(event.app)):
            raise RuleBroken("H7", f"the need of {event.app} has its date {event.date - at} ms from now")
        self._dates[event.app] = event.date

    def _is_gone_by_the_date(self, state: ClusterState, event: ExecutorAllocated, at: int) -> None:
        """Check that room of a target is granted only to what ends before its date, and not once it is complete."""
        worker, app = state.workers[event.worker], state.apps[event.app]
        others = [target for target in worker.holds.values() if target.app != event.app]
        beside = (worker.free - sum([target.amounts for target in others], NOTHING)).at_least(NOTHING)
        for target in others if not event.resources.fits(beside) else ():
            starts_ms = 4000 * state.settings.worker_timeout_s
            ends = at + starts_ms + _left_ms(state, app, at)
            if not state.settings.backfill or _is_complete(state, target) or ends > self._dates.get(target.app, 0):
                raise RuleBroken("H11", f"{event.executor} gets room on {worker.id} that is made for {target.app}")

    def _tells(self, state: ClusterState, event: ExecutorRevoked) -> None:
        with _rule("H6"):
            leaves_for_a_need(state, event)
        executor = state.executors[event.executor]
        runs_until = executor.granted_at + 1000 * runs_for_s(state, executor)
        date = 0 if 0 < executor.until <= state.at else max(runs_until, self._dates.get(event.claimant or "", 0))
        if (event.deadline or 0) < date:
            raise RuleBroken("H7", f"{event.executor} is to leave {date - (event.deadline or 0)} ms early")
        if event.why == "plan":  # its app gets it back by then, and a need that it has keeps an earlier date
            back, lack = event.deadline or 0, state.apps[event.app].lack
            self._dates[event.app] = min(back, lack.date) if lack.units else back

    def after(self, state: ClusterState) -> None:
        """Check the state at the end of a turn."""
        _leaves_before_windows(state)
        for part in parts_of_gangs(state):
            raise RuleBroken("G8", part)
        if not state.by_entitlement:
            return
        entitled = entitlement(state)
        _is_filled(state, entitled)
        with _rule("H9"):
            decides_nothing_more(state)
        _stay_with_holders(state, entitled)
        _has_entered(state, entitled)
        _has_targets(state, entitled)
        _is_lent(state)
        _targets_come(state)


def _is_complete(state: ClusterState, target: Hold) -> bool:
    """Whether there is room now for what the target is made for: with it for all of its gang (semantics G8)."""
    app = state.apps[target.app]
    needed: dict[str, Resources] = {}
    for each in app.holds.values() if app.spec.gang else [target]:
        needed[each.worker] = needed.get(each.worker, NOTHING) + each.amounts
    return all(state.workers[name].free.covers(amounts) for name, amounts in needed.items())


def _left_ms(state: ClusterState, app: App, at: int) -> float:
    """How long the app may run on, its grace and what windows leave besides included."""
    if app.max_runtime_s is None:
        return float("inf")
    ran_ms = app.ran_ms + (0 if app.running_since is None else at - app.running_since)
    grace_s = max(state.settings.kill_grace_s, app.spec.grace_s or 0)
    return max(0, app.max_runtime_s * 1000 - ran_ms) + 1000 * (grace_s + 5)


def _targets_come(state: ClusterState) -> None:
    """Check that each target has its room by its date: what is not free leaves, or surely ends by then (H7, H11)."""
    for target in state.holds.values():
        worker, date = state.workers[target.worker], state.apps[target.app].lack.date
        ends = [one for one in worker.executors.values() if one.status != "stopping" and one.app != target.app]
        gone = [one for one in ends if state.at + _left_ms(state, state.apps[one.app], state.at) <= date]
        room = worker.free + worker.leaving + sum([one.resources for one in gone], NOTHING)
        if not room.covers(target.amounts):
            raise RuleBroken("H11", f"{target.app} has a target on {worker.id} that has no room by its date")


def _comes_in_no_window(state: ClusterState, event: Event, at: int) -> None:
    """Check that from a window's notice on nothing is granted that it keeps out (semantics W14)."""
    if isinstance(event, ExecutorAllocated | DriverAllocated):
        company = state.apps[event.app].spec.company
        for window in state.windows.values():
            if event.worker in window.workers and at >= window.closes and window.company != company:
                raise RuleBroken("W14", f"{event.app} gets {type(event).__name__} on {event.worker} for {window.id}")


def _leaves_before_windows(state: ClusterState) -> None:
    """Check that from a window's notice on whoever it keeps out was told to leave, or to stop (semantics W14)."""
    for window in state.windows.values():
        for name in window.workers if state.at >= window.closes else ():
            worker = state.workers.get(name)
            for one in () if worker is None else (*worker.executors.values(), *worker.drivers.values()):
                if one.status != "stopping" and state.apps[one.app].spec.company != window.company:
                    raise RuleBroken("W14", f"{one.id} stays on {name} in the window {window.id}")


def _is_within_limits(state: ClusterState, event: Event) -> None:
    """Check that no app enters that exceeds a limit of its user, its company or a department above (N2, H12)."""
    if isinstance(event, AppAdmitted) and state.by_entitlement and state.limits.values:
        app = state.apps[event.app]
        if not (reference.within(state, app) and reference.within_above(state, app)):
            raise RuleBroken("N2", f"{event.app} enters beyond a limit")


def _meets_what_is_demanded(state: ClusterState, event: Event) -> None:
    """Check that nothing is granted or made room for on a worker that its app's demands exclude (semantics P9)."""
    if isinstance(event, ExecutorAllocated | DriverAllocated | TargetSet):
        worker, app = state.workers[event.worker], state.apps[event.app]
        if _excluded(app, worker):
            raise RuleBroken("P9", f"{event.app} gets {type(event).__name__} on {event.worker}, which it excludes")


def _excluded(app: App, worker: Worker) -> bool:
    """Whether the worker lacks a label that the app requires, or has one that it avoids or a taint that it does not."""
    has = {*worker.labels, *[f"{key}={value}" for key, value in worker.labels.items()]}
    spec = app.spec
    return (
        not has.issuperset(spec.require) or not has.isdisjoint(spec.avoid) or bool({*worker.taints} - {*spec.tolerate})
    )


def _is_filled(state: ClusterState, entitled: Entitlement) -> None:
    """Check that a filling from the start hands out the same, or that all is handed out (semantics H2)."""
    again = filling(state)[0]
    for app in state.apps.values():
        due = entitled.units(app)
        if app.ended is not None or due == again.units(app):
            continue
        if not entitled.whole or due != (wanted_units(app) if app.need.hostable and not app.over else 0):
            raise RuleBroken("H2", f"{app.id} is entitled to {due} executors, and is handed {again.units(app)}")


def _stay_with_holders(state: ClusterState, entitled: Entitlement) -> None:
    """Check of companies that differ in nothing but what they hold that the one which holds it gets one more (H3)."""
    plain: dict[tuple[Quota, Resources], list[list[Leaf]]] = {}
    for node in entitled.companies.values() if not state.departments else ():
        leaves = [leaf for user in node.users for leaf in user.leaves]
        if node.capped or len(node.users) != 1 or len({leaf.size for leaf in leaves}) != 1:
            continue
        size, units = leaves[0].size, sum(leaf.units for leaf in leaves)
        if node.used == size * units and all(leaf.driver is NOTHING and leaf.least == leaf.most for leaf in leaves):
            plain.setdefault((node.quota, size), []).append(leaves)
    for alike in plain.values():
        for one, other in permutations(alike, 2):
            follows = next((leaf for leaf in one if leaf.units < leaf.most), None)
            last = [leaf for leaf in other if leaf.units][-1:]
            if not follows or not last or sum(leaf.units for leaf in one) + 1 != sum(leaf.units for leaf in other):
                continue
            holds, held = (held_units(state.apps[leaf.app]) for leaf in (follows, *last))
            if holds > follows.units and held < last[0].units:
                raise RuleBroken("H3", f"{follows.app} holds what {last[0].app} is entitled to, with equal shares")


def _has_entered(state: ClusterState, entitled: Entitlement) -> None:
    """Check that no app waits that is entitled to anything and may enter (semantics H4)."""
    if not state.fleet.live:
        return
    for app in state.queue.arrivals.values():
        lets_in = state.queue.companies[app.spec.company].limit.lets_in(app)
        if app.ready and lets_in and (entitled.units(app) or entitled.is_driven(app)):
            raise RuleBroken("H4", f"{app.id} is entitled to {entitled.units(app)} executors, and waits")


def _may_borrow(state: ClusterState, app: App) -> bool:
    """Whether neither a quota nor a department bounds what the app's company holds."""
    limits = [each for each in state.departments.values() if each.spec.borrow_limit or each.spec.lend_limit]
    return not limits and state.companies[app.spec.company].spec.may_borrow


def _is_lent(state: ClusterState) -> None:
    """Check that no room is left that an admitted app of a company which may borrow could use (semantics Z1, H5).

    An app cannot use what would pass its request beside what still leaves (A2, A5).
    """
    for app in state.indexes.owed:
        lends = _may_borrow(state, app)
        if not lends or app.holds or app.demand.wanted or wanted_units(app) <= held_units(app):
            continue
        without, size = {*closed_to(state, app, state.at), *barred(state, app, state.at)}, app.need.executor
        if not app.requested.covers(app.granted - app.moving + app.unplaced_driver + size):
            continue
        if app.need.gang and (app.executors or app.planned):
            continue
        rooms = 0
        for worker in state.workers.values():
            usable = worker.status == "alive" and worker.suspicion is None and worker.id not in without
            if usable and not _excluded(app, worker) and worker.open_to(app.id).covers(size):
                rooms += worker.open_to(app.id).holds(size) if app.need.gang else 1
                if rooms >= app.need.gang:
                    raise RuleBroken("H5", f"{app.id} could use what is left on {worker.id}")


def _has_targets(state: ClusterState, entitled: Entitlement) -> None:
    """Check that a need waits for no target where surplus makes room on a worker, unless K have targets (H6)."""
    if targets_made(state) >= max(1, state.fleet.live // 4):
        return
    if any(app.need.gang and not app.holds for app in state.indexes.needy):
        return  # one that waits for the targets of others comes before further ones (G8)
    for app in state.indexes.needy:
        if app.lack.units <= len(app.holds) or not _may_borrow(state, app):
            continue
        without = {*app.troubles, *closed_to(state, app, state.at), *_with_windows(state, app)}
        for worker in state.workers.values():
            usable = worker.status == "alive" and not worker.holds and worker.suspicion is None
            usable = usable and worker.id not in without and not _excluded(app, worker)
            if usable and _surplus_makes_room(state, entitled, app, worker):
                raise RuleBroken("H6", f"{app.id} has no target, and surplus on {worker.id} makes room for it")


def _with_windows(state: ClusterState, app: App) -> Iterator[str]:
    """The workers that a window may have closed to the app by the time that room is made (W14)."""
    for window in state.windows.values():
        if window.company != app.spec.company:
            yield from window.workers


def _surplus_makes_room(state: ClusterState, entitled: Entitlement, app: App, worker: Worker) -> bool:
    taken: Counter[str] = Counter()
    room = worker.free
    for one in worker.executors.values():
        other = state.apps[one.app]
        if one.status == "stopping" or other.over or one.app == app.id:
            continue
        if held_units(other) - taken[other.id] - units_of(other, one) >= entitled.units(other):
            taken[other.id] += units_of(other, one)
            room += one.resources
    return room.covers(app.need.executor if app.unplaced_driver is NOTHING else app.unplaced_driver)


@contextmanager
def _rule(number: str) -> Iterator[None]:
    """Whoever does not hold within breaks this rule."""
    try:
        yield
    except RuleBroken:
        raise
    except AssertionError as error:
        raise RuleBroken(number, str(error)) from error
