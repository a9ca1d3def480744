"""How room for one unit of a need is made on one worker, and where that is cheapest (semantics H6)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator
from heapq import merge
from typing import TYPE_CHECKING, Literal, NamedTuple

from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.command.failures import closed_to, kind_of
from scheduler.rules.command.windows import sought_by
from scheduler.rules.entities.labels import sought
from scheduler.rules.share.demands import size_of, units_of
from scheduler.rules.share.entitlement import Entitlement
from scheduler.rules.share.plan import Plan, lingering, plan
from scheduler.rules.stage.caps import UnderCaps, is_capped, staying
from scheduler.rules.stage.losses import Losses, leaving_with, side_of

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.state.cluster import ClusterState

QUARTER = 4
Why = Literal["surplus", "move", "plan", "cap"]


class Departure(NamedTuple):
    """An executor that is to leave; `to`: the worker on which its app gets the same first, if it changes its place."""

    executor: Allocation
    to: str = ""


class Room(NamedTuple):
    """How room is made on a worker; the least one is the cheapest."""

    moves: int
    cores: int
    less_free: int
    worker: str
    leaving: tuple[Departure, ...]
    why: Why = "surplus"


class Means(NamedTuple):
    """What may be done to make room, from the mildest on."""

    moves: bool = False
    others: bool = False
    """Whether executors of apps within their entitlement leave, where surplus of their user or company can follow."""


MEANS = (Means(), Means(moves=True), Means(moves=True, others=True))


def most_targets(state: ClusterState) -> int:
    """How many workers may have targets, and how many apps slots: a quarter of the live ones, or one (H6, H10)."""
    return max(1, state.fleet.live // QUARTER)


def targets_made(state: ClusterState) -> int:
    """How many targets there are, those of a gang counted as one (semantics H6, G8)."""
    targets = state.holds.values()
    return len({one.app if one.app in state.apps and state.apps[one.app].spec.gang else one.id for one in targets})


def unit_of(app: App) -> Resources:
    """What the app gets next: its driver while that waits, else an executor."""
    driver = app.unplaced_driver
    return app.need.executor if driver is NOTHING else driver


def coming(state: ClusterState, worker: Worker) -> Resources:
    """What comes free soon on the worker; not what may take longer than `kill_grace_s` by its app's own grace (G5)."""
    if worker.leaving == NOTHING:
        return NOTHING
    return worker.leaving - lingering(state, (*worker.executors.values(), *worker.drivers.values()))


Bound = tuple[int, int, str]
"""The least that room on a worker can cost: the cores that leave, less what is free, and its name."""
FEW = 32
"""So many workers are looked at before those are sorted out on which nobody could leave."""


class CheapestFirst:
    """Where room can be made, for all needs that are looked at while one filling holds."""

    def __init__(self, state: ClusterState, entitled: Entitlement) -> None:
        self._state, self._entitled = state, entitled
        self._leaving: dict[int, list[Bound]] = {}
        self._plan: tuple[int, Plan] | None = None
        self._above: list[App] | None = None
        self._lent: tuple[int, list[Allocation]] | None = None
        self._surplus: set[str] | None = None
        self._movable: set[str] | None = None
        self._where: tuple[int, dict[tuple[str, str], set[str]]] = (-1, {})
        self._lenders: set[str] | None = None

    def of(self, cores: int) -> Iterator[Bound]:
        """The live workers by the least that room for a unit of so many cores could cost there, the cheapest first."""
        found = self._leaving.get(cores)
        if found is None:
            leaving = [worker.id for worker in self._state.indexes.leaving]
            found = self._leaving[cores] = sorted([self._bound(name, cores) for name in leaving])
        return merge(self._still(cores), found)

    def _still(self, cores: int) -> Iterator[Bound]:
        """The workers on which nobody leaves."""
        leaving = self._state.indexes.leaving.places
        for free, name in self._state.fleet.freest():
            if name not in leaving:
                yield max(0, cores - free), -free, name

    def _bound(self, name: str, cores: int) -> Bound:
        worker = self._state.workers[name]
        return max(0, cores - worker.free.cores - coming(self._state, worker).cores), -worker.free.cores, name

    def usable(self, app: App, size: Resources, means: Means) -> list[Bound]:
        """The workers on which there may be room by these means: no other one can have a target of the app."""
        state = self._state
        names = {name for name, _ in state.fleet.candidates(size, state.settings.worker_selection)}
        names.update(state.indexes.leaving.places)
        names |= self._with_surplus()
        if means.moves:
            names |= self._with_movable()
        if means.others:
            names |= self._with_followed(app)
        return sorted([self._bound(name, size.cores) for name in names])

    def _all_above(self) -> list[App]:
        """The apps above their entitlement: while one filling holds, they only become fewer."""
        if self._above is None:
            self._above = self._entitled.above(self._state)
        return self._above

    def lent(self) -> list[Allocation]:
        """The executors of apps above their entitlement, granted last first."""
        if self._lent is None or self._lent[0] != self._state.head:
            above = [app for app in self._all_above() if self._entitled.surplus(app) > 0]
            staying = [one for app in above for one in app.executors.values() if one.status != "stopping"]
            self._lent = self._state.head, last_granted_first(staying)
        return self._lent[1]

    def _with_surplus(self) -> set[str]:
        """The workers with an executor of an app above its entitlement."""
        if self._surplus is None:
            self._surplus = {one.worker for app in self._all_above() for one in app.executors.values()}
        return self._surplus

    def _with_movable(self) -> set[str]:
        """The live workers with an executor for which there is room somewhere now."""
        if self._movable is None:
            state, fits = self._state, dict[Resources, bool]()
            self._movable = set()
            if state.fleet.most_free_cores():
                for worker in state.workers.values():
                    for one in worker.executors.values() if worker.status == "alive" else ():
                        size = sought(one.resources, state.apps[one.app].need.demand)
                        fitting = fits.get(size)
                        if fitting is None:
                            fitting = fits[size] = state.fleet.has_room(size)
                        if fitting:
                            self._movable.add(worker.id)
                            break
        return self._movable

    def _with_followed(self, claimant: App) -> set[str]:
        """The live workers with an executor whose side is above its entitlement and lends elsewhere."""
        state = self._state
        sides = dict.fromkeys([side_of(state, state.apps[one.app], claimant) for one in self.lent()])
        names: set[str] = set()
        for side in sides:
            if side is not None and _is_more(self._entitled.side(state, side)):
                names.update(self._workers_of(side))
        return {name for name in names if state.workers[name].status == "alive"}

    def _workers_of(self, side: tuple[str, str]) -> set[str]:
        """The workers on which that side has executors."""
        if self._where[0] != self._state.head:
            self._where = self._state.head, {}
        found = self._where[1].get(side)
        if found is None:
            apps = self._entitled.apps_of(self._state, side)
            found = self._where[1][side] = {one.worker for app in apps for one in app.executors.values()}
        return found

    def kind(self, app: App, at: int) -> Hashable:
        """What the app has in common with those for which room is made by the same means, their own executors aside.

        Its user matters if that holds anything, and an app of its company is above its entitlement: who is another
        user of the company, and what such do without, is the same for all others.
        """
        if self._lenders is None:
            self._lenders = {above.spec.company for above in self._all_above()}
        company, user = app.spec.company, app.spec.user
        matters = company in self._lenders and self._state.companies[company].users[user].balance.granted != NOTHING
        return company, user if matters else "", kind_of(self._state, app, at)

    def is_in_plan(self, app: App) -> bool:
        """Whether the plan has a place for a unit that the app is below its entitlement."""
        return self._entitled.below(app) > self.plan().missed[app.id]

    def plan(self) -> Plan:
        """The plan of the state as it stands, made once for all who ask while nothing happens."""
        if self._plan is None or self._plan[0] != self._state.head:
            before = None if self._plan is None else self._plan[1]
            self._plan = self._state.head, plan(self._state, self._entitled, before)
        return self._plan[1]

    def forget(self) -> None:
        """What is free or leaving has changed on workers that may have a target."""
        self._leaving.clear()
        self._above = self._surplus = self._movable = self._lenders = None


def _is_more(side: tuple[Resources, Resources]) -> bool:
    """Whether what is held is more than what is due, of some kind, and no less of any."""
    return side[0] != side[1] and side[0].covers(side[1])


class Seeking:
    """The search for room for the next unit of one app."""

    def __init__(
        self, state: ClusterState, entitled: Entitlement, app: App, at: int, bounds: CheapestFirst | None = None
    ) -> None:
        self.state, self.entitled, self.app = state, entitled, app
        self.size = unit_of(app)
        self.unit = app.need.unit if app.unplaced_driver is NOTHING else self.size
        comes = max(at, app.lack.date) + state.settings.kill_grace_s * 1000
        self.sought = sought_by(state, app, self.size, comes)
        """Where windows let the app in still when the room comes (semantics W14)."""
        self.kept = closed_to(state, app, at)
        self._is_growing = app.need.growing and app.unplaced_driver is NOTHING
        self._known = bounds or CheapestFirst(state, entitled)
        self._besides_targets = True

    def is_in_vain(self) -> bool:
        """Whether no room can be made on any worker, those with targets among them, although the cap can be kept."""
        self._besides_targets = False
        return self._below_cap() is not None and self.cheapest() is None

    def cheapest(self) -> tuple[Room, Why] | None:
        """By the mildest means, at last by the plan; of one means the fewest moves, then the fewest cores (H6)."""
        forced = self._below_cap()
        if forced is None:
            return None
        for means in MEANS:
            best = self._best(forced, means)
            if best is not None:
                return best, "cap" if forced else "move" if best.moves else "surplus"
        planned = self._planned(forced)
        return None if planned is None else (planned, "plan")

    def _best(self, forced: list[Allocation], means: Means) -> Room | None:
        """The cheapest room that can be made by these means; no worker is looked at that cannot be cheaper."""
        told = _cores(forced)
        where = dict.fromkeys([one.worker for one in forced])
        best: Room | None = None
        for name in where:
            best = self._cheaper(best, name, forced, means)
        bounds, looked, last = self._known.of(self.size.cores), 0, (0, 0, "")
        while True:
            for lack, less_free, name in bounds:
                if best is not None and best[:4] <= (0, lack + told, less_free, name):
                    return best
                if name not in where:
                    best = self._cheaper(best, name, forced, means)
                looked, last = looked + 1, (lack, less_free, name)
                if looked == FEW:
                    break
            if looked != FEW:
                return best
            usable = self._known.usable(self.app, self.sought, means)
            bounds, looked = iter(usable[bisect_right(usable, last) :]), FEW + 1

    def _cheaper(self, best: Room | None, name: str, forced: list[Allocation], means: Means) -> Room | None:
        """The cheaper one of the best room and the one that can be made on that worker."""
        worker = self.state.workers[name]
        room = self._made(worker, forced, means) if self._may_have_target(worker) else None
        return best if room is None or (best is not None and best < room) else room

    def _planned(self, forced: list[Allocation]) -> Room | None:
        """By the plan: what stands on a worker and not in the plan leaves, and its app gets it back elsewhere (H6)."""
        state = self.state
        wanted, found = self._known.plan(), list[Room]()
        if not self._known.is_in_plan(self.app):
            return None
        unit = size_of(self.app) if self.app.unplaced_driver is NOTHING else sought(self.size, self.app.need.demand)
        for name in wanted.short.get(unit, ()):
            worker = state.workers[name]
            leaving = self._beyond_plan(worker, forced, self.size) if self._may_have_target(worker) else None
            if leaving is not None:
                everybody = tuple(map(Departure, leaving))
                found.append(Room(len(leaving), _cores(leaving), -worker.free.cores, worker.id, everybody, "plan"))
        return min(found, default=None)

    def _beyond_plan(self, worker: Worker, forced: list[Allocation], amounts: Resources) -> list[Allocation] | None:
        """Who leaves, so that there is room for so much: those forced, and what stands there beyond the plan.

        None if that is not enough. Gangs come last: all of one leaves.
        """
        state, wanted = self.state, self._known.plan()
        content, there = wanted.contents[worker.id], wanted.standing[worker.id].copy()
        room = worker.free + coming(state, worker)
        leaving = list(forced)
        gone: list[Allocation] = []
        spare_mb = wanted.spare_mb(worker.id)
        if self._is_growing and spare_mb < amounts.memory_mb:
            return None
        standing = last_granted_first(worker.executors.values())
        for one in sorted(standing, key=lambda one: state.apps[one.app].spec.gang):
            size, growing = size_of(state.apps[one.app]), state.apps[one.app].need.growing
            planned = there[size] <= content[size] and not (growing and spare_mb < 0)
            stays = room.covers(amounts) or planned
            if one.status == "stopping" or one.app == self.app.id or one in gone or (stays and one not in forced):
                continue
            for each in leaving_with(state, one):
                if each.worker == worker.id:
                    there[size] -= units_of(state.apps[each.app], each)
                    spare_mb += each.resources.memory_mb if growing else 0
                    room += each.resources
                    gone.append(each)
                if each not in leaving:
                    leaving.append(each)
        return leaving if room.covers(amounts) else None

    def _may_have_target(self, worker: Worker) -> bool:
        return (
            worker.status == "alive"
            and worker.suspicion is None
            and not (self._besides_targets and worker.holds)
            and worker.id not in self.kept
            and worker.beside_drivers.covers(self.size)
            and self.state.fleet.admits(worker.id, self.sought)
        )

    def _below_cap(self) -> list[Allocation] | None:
        """As many surplus executors of its company or department as make the unit pass the cap; None if none do."""
        state, app = self.state, self.app
        if not is_capped(state, app, self.unit):
            return []
        held = UnderCaps(state, app.spec.company, staying)
        theirs = [one for one in state.executors.values() if held.regards(state.apps[one.app].spec.company)]
        in_order = last_granted_first(theirs)
        whole = self._passing(in_order, divides=False)
        if whole is not None:
            return whole
        return self._passing(sorted(in_order, key=lambda one: -units_of(state.apps[one.app], one)), divides=True)

    def _passing(self, theirs: list[Allocation], *, divides: bool) -> list[Allocation] | None:
        """The first of these that are surplus and without which the unit passes the cap; None if it does not.

        Where an executor `divides`, its app gets a part of it back. The largest come first then: else a smaller one of
        its app, no larger than that part, would have to stay.
        """
        state = self.state
        held = UnderCaps(state, self.app.spec.company, staying)
        leaving = Losses(state, self.entitled, self.app)
        for one in theirs:
            if held.passes(self.unit):
                break
            back, company = leaving.back(one), state.apps[one.app].spec.company
            fitting = one.app != self.app.id and one not in leaving.taken and (divides or back == NOTHING)
            if fitting and held.helps(company, self.unit) and leaving.take(one):
                held.add(company, back - sum([each.resources for each in leaving_with(state, one)], NOTHING))
        return leaving.taken if held.passes(self.unit) else None

    def _made(self, worker: Worker, forced: list[Allocation], means: Means) -> Room | None:
        """How room is made on the worker by these means; None if it cannot."""
        counted = Losses(self.state, self.entitled, self.app)
        room = worker.free + coming(self.state, worker)
        for one in forced:
            if one.worker == worker.id:
                room += one.resources - counted.back(one)
            counted.force(one)
        there = [
            one
            for one in last_granted_first(worker.executors.values())
            if one.app != self.app.id and one.status != "stopping" and one not in forced
        ]
        leaving: list[Departure] = []
        for lent in (None, self._known.lent()) if means.others else (None,):
            for one in there:
                if not room.covers(self.size) and one not in counted.taken and counted.take(one, self.size, lent):
                    together = leaving_with(self.state, one)
                    leaving += map(Departure, together)
                    room += _on(worker, together)
        if means.moves and not room.covers(self.size):
            moving = self._moves(worker, [one for one in there if one not in counted.taken], room)
            leaving += moving
            room += sum((each.executor.resources for each in moving), NOTHING)
        if not room.covers(self.size):
            return None
        for each in reversed(leaving.copy()):
            together = leaving_with(self.state, each.executor)
            if each in leaving and (room - _on(worker, together)).covers(self.size):
                room -= _on(worker, together)
                leaving = [one for one in leaving if one.executor not in together]
        cores = _cores([each.executor for each in leaving]) + _cores(forced)
        moves_made = sum(each.to != "" for each in leaving)
        return Room(moves_made, cores, -worker.free.cores, worker.id, (*map(Departure, forced), *leaving))

    def _moves(self, worker: Worker, there: list[Allocation], room: Resources) -> list[Departure]:
        """Executors that change their place until there is room, the smallest first."""
        destinations, moves = Destinations(self, worker), list[Departure]()
        for one in sorted(there, key=lambda one: (one.resources, one.id)):
            if room.covers(self.size):
                break
            if (move := destinations.find(one)) is not None:
                moves.append(move)
                room += one.resources
        return moves


class Fragments:
    """Which apps that are below get no room: what is entitled stands in fragments, or on workers closed to them."""

    def __init__(self, state: ClusterState, entitled: Entitlement, at: int) -> None:
        self._state, self._entitled, self._at = state, entitled, at
        self._known = CheapestFirst(state, entitled)
        self._alike: dict[Hashable, bool] = {}

    def keep(self, app: App) -> bool:
        """Whether room is made for the app nowhere, and can be made nowhere (semantics H6)."""
        if app.holds:
            return False
        kind = self._known.kind(app, self._at)
        plain = not (app.troubles or app.executors)  # others like it have the same means
        found = self._alike.get(kind) if plain else None
        if found is None:
            seeking = Gathering if app.need.gang else Seeking
            found = seeking(self._state, self._entitled, app, self._at, self._known).is_in_vain()
            if plain and (not found or self._known.is_in_plan(app)):
                self._alike[kind] = found
        return found


class Gathered(NamedTuple):
    """Room for so many executors of a gang on one worker, and who leaves for that, also elsewhere."""

    worker: str
    number: int
    leaving: tuple[Allocation, ...]
    why: Why


class Gathering(Seeking):
    """The search for room for all executors of a gang, on several workers at once (semantics G8)."""

    def is_in_vain(self) -> bool:
        """Whether no room can be made for all, on workers with targets neither, although the cap can be kept."""
        self._besides_targets = False
        return self._below_cap() is not None and self.gathered() is None

    def waits_for_targets(self) -> bool:
        """Whether room could be made if workers had no targets."""
        self._besides_targets = False
        return self.gathered() is not None

    def gathered(self) -> list[Gathered] | None:
        """By what is free or surplus, else by the plan; None if there is not enough room."""
        forced = self._below_cap()
        if forced is None:
            return None
        if self.app.planned:
            return self._by_plan(forced) or self._by_surplus(forced)
        return self._by_surplus(forced) or self._by_plan(forced)

    def _by_surplus(self, forced: list[Allocation]) -> list[Gathered] | None:
        state, left, found = self.state, self.app.need.gang, list[Gathered]()
        counted, freed = Losses(state, self.entitled, self.app), dict[str, Resources]()
        for one in forced:
            freed[one.worker] = freed.get(one.worker, NOTHING) + one.resources - counted.back(one)
            counted.force(one)
        told = tuple(forced)
        for _, _, name in self._known.usable(self.app, self.sought, MEANS[0]):
            worker = state.workers[name]
            if not self._may_have_target(worker):
                continue
            number, leaving = self._fitting(worker, left, counted, freed)
            if number:
                found.append(Gathered(name, number, (*told, *leaving), "cap" if forced else "surplus"))
                told, left = (), left - number
            if not left:
                return found
        return None

    def _fitting(
        self, worker: Worker, most: int, counted: Losses, freed: dict[str, Resources]
    ) -> tuple[int, list[Allocation]]:
        """How many executors have room on the worker, at most so many, and whose surplus leaves for them."""
        state, size = self.state, self.size
        room = worker.free + coming(state, worker) + freed.get(worker.id, NOTHING)
        number = min(most, room.holds(size))
        taken: list[Allocation] = []
        tried: list[Allocation] = []
        for one in last_granted_first(worker.executors.values()):
            if number == most:
                break
            if one.app == self.app.id or one.status == "stopping" or one in counted.taken:
                continue
            back = counted.back(one)
            if not counted.take(one, size):
                continue
            together = leaving_with(state, one)
            tried += together
            room += _on(worker, together) - back
            if (fitting := min(most, room.holds(size))) > number:
                number, taken, tried = fitting, taken + tried, []
        counted.release(tried)
        for one in taken:
            if one.worker != worker.id:
                freed[one.worker] = freed.get(one.worker, NOTHING) + one.resources
        return number, taken

    def _by_plan(self, forced: list[Allocation]) -> list[Gathered] | None:
        state, wanted, unit = self.state, self._known.plan(), size_of(self.app)
        if wanted.missed[self.app.id]:
            return None
        ways: list[tuple[int, int, int, str, int, list[Allocation]]] = []
        for name in wanted.short.get(unit, ()):
            worker = state.workers[name]
            if not self._may_have_target(worker):
                continue
            for number in range(wanted.contents[name][unit] - wanted.standing[name][unit], 0, -1):
                leaving = self._beyond_plan(worker, forced, self.size * number)
                if leaving is not None:
                    ways.append((len(leaving), _cores(leaving), -worker.free.cores, name, number, leaving))
                    break
        left, found = self.app.need.gang, list[Gathered]()
        counted = Losses(state, self.entitled, self.app)
        for *_, name, number, leaving in sorted(ways, key=lambda way: way[:4]):
            found.append(Gathered(name, min(left, number), tuple(leaving), "plan"))
            left -= min(left, number)
            for one in leaving:
                if one not in counted.taken:
                    counted.force(one)
            if not left:
                return found
        return self._in_place_of_surplus(found, left, counted)

    def _in_place_of_surplus(self, found: list[Gathered], left: int, counted: Losses) -> list[Gathered] | None:
        """With rooms for the others where the plan has units of their size and surplus of that size stands."""
        state, wanted, unit = self.state, self._known.plan(), size_of(self.app)
        surplus: list[Allocation] = []
        for name, content in wanted.contents.items():
            worker = state.workers[name]
            if not content[unit] or not self._may_have_target(worker):
                continue
            for one in last_granted_first(worker.executors.values()):
                if not left or one.status == "stopping" or size_of(state.apps[one.app]) != unit:
                    continue
                leaving: list[Allocation] = []
                if one not in surplus:
                    if one in counted.taken or not counted.take(one):
                        continue
                    leaving = leaving_with(state, one)
                    surplus += leaving
                left -= 1
                found.append(Gathered(name, 1, tuple(leaving), "plan"))
        return None if left else found


def _on(worker: Worker, executors: Iterable[Allocation]) -> Resources:
    """What those of them have that are on the worker."""
    return sum([one.resources for one in executors if one.worker == worker.id], NOTHING)


def last_granted_first(executors: Iterable[Allocation]) -> list[Allocation]:
    """The order in which surplus is told to leave (semantics H6)."""
    return sorted(executors, key=lambda one: (-one.granted_at, one.id))


def _cores(executors: Iterable[Allocation]) -> int:
    return sum(one.resources.cores for one in executors)


class Destinations:
    """Where executors can go that stand in the way on one worker."""

    def __init__(self, seeking: Seeking, worker: Worker) -> None:
        self._seeking, self._worker = seeking, worker
        self._used: dict[str, Resources] = {}

    def find(self, one: Allocation) -> Departure | None:
        """Another worker that has room for the same executor now."""
        state = self._seeking.state
        app = state.apps[one.app]
        if app.over or app.spec.gang:
            return None
        kept = closed_to(state, app, state.at)
        settings = state.settings
        size = sought_by(state, app, one.resources, state.at)
        for name, free in state.fleet.candidates(size, settings.worker_selection, sparing=state.sparing):
            if name == self._worker.id or name in kept or state.workers[name].suspicion is not None:
                continue
            if (free - self._used.get(name, NOTHING)).covers(one.resources):
                self._used[name] = self._used.get(name, NOTHING) + one.resources
                return Departure(one, name)
        return None
