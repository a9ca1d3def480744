"""The plan: where all that apps are entitled to would stand, and what stands elsewhere (semantics H6)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.share.demands import size_of, units_of
from scheduler.rules.share.entitlement import Entitlement, filling
from scheduler.rules.share.fill import Filling, Handed, Rooms

if TYPE_CHECKING:
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.state.cluster import ClusterState

Content = Counter[Resources]
"""Size -> how many units of it stand on a worker.

Whose they are does not matter: the filling hands out equal sizes first to who holds them, so that a plan of apps would
change with each executor that follows it.
"""


class AsPlanned(NamedTuple):
    """A live worker as a plan saw it: it is as it was while these two objects are what it has."""

    free: Resources
    leaving: Resources
    lingers: bool
    offer: Resources
    """What it offers beside drivers and what lingers."""
    standing: Content
    """What stands there and was not told to leave."""
    grown_mb: int
    """The memory of the growing executors among that, of which cores alone count in contents (semantics H2)."""


Packed = tuple[dict[Resources, list[Content]], Counter[str]]
"""Offer -> what the filling put on each worker of that offer; app -> how many parts of its units found no room."""


class Plan(NamedTuple):
    """Where all that is handed out would stand: live worker -> content."""

    contents: dict[str, Content]
    missed: Counter[str]
    """App -> of how many parts of its units the room lingers: the plan has no place for them yet."""
    standing: dict[str, Content]
    """Live worker -> what stands there now and was not told to leave."""
    short: dict[Resources, list[str]]
    """Size -> the workers on which the plan has more units of it than stand there."""
    run: Filling | None
    """The filling, but for one that was made for this plan."""
    looked: dict[str, AsPlanned]
    packed: Packed

    def spare_mb(self, worker: str) -> int:
        """The memory on the worker that the plan and the growing executors there leave; below 0: these do not fit."""
        there = self.looked[worker]
        return _beside_mb(there.offer, self.contents[worker]) - there.grown_mb


def plan(state: ClusterState, entitled: Entitlement, before: Plan | None = None) -> Plan:
    """The workers of the filling, matched with the live ones that agree most.

    A filling of its own is made only where room lingers, or where there was none since all that is wanted had room.
    `before`: an earlier one of the same stage and filling, of which is taken what has not changed. Else the last one is
    that is known, but for workers on which somebody leaves or has changed since.
    """
    # 1. Look at each live worker on which something changed since the last plan.
    looked: dict[str, AsPlanned] = {}
    known, changed = _known(state, entitled) if before is None else (before, set[str]())
    for worker in state.workers.values():
        if worker.status == "alive":
            last = None if known is None or worker.id in changed else known.looked.get(worker.id)
            if last is None or last.free is not worker.free or last.leaving is not worker.leaving:
                last = _look(state, worker)
            looked[worker.id] = last
    # 2. Put what the filling handed out on workers without names, which only have offers.
    run = None if [one for one in looked.values() if one.lingers] else entitled.run
    offers = _offers(looked)
    if run is not None and known is not None and known.run is run and _offers(known.looked) == offers:
        packed, missed = known.packed
    else:
        packed, missed = _packed(filling(state)[1] if run is None else run.handed, offers)
    # 3. Match these with the live workers of the same offer that already have most of it.
    by_offer: defaultdict[Resources, list[str]] = defaultdict(list)
    for name, one in looked.items():
        by_offer[one.offer].append(name)
    standing = {name: one.standing for name, one in looked.items()}
    found: dict[str, Content] = {}
    for offer, contents in packed.items():
        found.update(_matched(offer, contents, by_offer[offer], looked))
    # 4. Note for each size the workers that have less of it than planned.
    short: defaultdict[Resources, list[str]] = defaultdict(list)
    for name, content in found.items():
        for size, number in content.items():
            if number > standing[name][size]:
                short[size].append(name)
    made = entitled.planned = Plan(found, missed, standing, short, run, looked, (packed, missed))
    entitled.changed.clear()
    return made


def _known(state: ClusterState, entitled: Entitlement) -> tuple[Plan | None, set[str]]:
    """The last plan by the filling that is kept, or one that it went on from; who is to be looked at again.

    Those are the workers on which somebody leaves, or that have executors of an app that changed since.
    """
    if state.filling.kept is not entitled:
        return None, set()
    apps = [state.apps.get(name) for name in (*entitled.changed, *state.filling.since)]
    changed = {one.worker for app in apps if app is not None for one in app.executors.values()}
    return entitled.planned, changed.union(state.indexes.leaving.places)


def _offers(looked: dict[str, AsPlanned]) -> list[Resources]:
    return [one.offer for one in looked.values()]


def _look(state: ClusterState, worker: Worker) -> AsPlanned:
    lingers = lingering(state, worker.executors.values())
    offer = state.fleet.classed(worker.id, worker.beside_drivers - lingers)
    growing = [one for one in worker.executors.values() if state.apps[one.app].need.growing]
    grown_mb = sum([one.resources.memory_mb for one in growing if one.status != "stopping"])
    return AsPlanned(worker.free, worker.leaving, lingers != NOTHING, offer, standing_on(state, worker), grown_mb)


def lingering(state: ClusterState, held: Iterable[Allocation]) -> Resources:
    """What those have that stop with a grace of their app's own, longer than `kill_grace_s` (semantics G5)."""
    grace_s = state.settings.kill_grace_s
    return sum(
        [
            one.resources
            for one in held
            if one.status == "stopping" and not one.claim and (state.apps[one.app].spec.grace_s or 0) > grace_s
        ],
        NOTHING,
    )


def _packed(handed: list[Handed], offers: list[Resources]) -> Packed:
    """What the filling puts on workers of these offers."""
    rooms = Rooms(Counter(offers))
    missed: Counter[str] = Counter()
    contents: list[Content] = [Counter() for _ in offers]
    free: defaultdict[Resources, list[int]] = defaultdict(list)
    for number, offer in reversed(list(enumerate(offers))):
        free[offer].append(number)
    for first, end, size in _runs(handed):
        begin = first
        while begin < end:
            taken = rooms.take_several(size, end - begin)
            if taken is None:  # the filling has the room of what lingers, too
                missed.update([app for app, _ in handed[begin:end]])
                break
            room, several = taken
            number = free[room].pop()
            free[room - size * several].append(number)
            contents[number][size] += several
            begin += several
    found: defaultdict[Resources, list[Content]] = defaultdict(list)
    for offer, content in zip(offers, contents, strict=True):
        found[offer].append(content)
    return found, missed


def _runs(handed: list[Handed]) -> Iterator[tuple[int, int, Resources]]:
    """From where to where the units are one part of that size each, or one part of a unit of several."""
    first = 0
    while first < len(handed):
        unit, end = handed[first][1], first + 1
        if len(unit) == 1:
            while end < len(handed) and handed[end][1] == unit:
                end += 1
        for size in unit:
            yield first, end, size
        first = end


def standing_on(state: ClusterState, worker: Worker) -> Content:
    """What stands on the worker and was not told to leave."""
    content: Content = Counter()
    for one in worker.executors.values():
        if one.status != "stopping":
            content[size_of(state.apps[one.app])] += units_of(state.apps[one.app], one)
    return content


def _matched(
    offer: Resources, contents: list[Content], workers: list[str], looked: dict[str, AsPlanned]
) -> dict[str, Content]:
    """Each worker of that offer with a content: the pair that agrees in most cores first, then by the worker's name.

    Growing executors agree with none beside which they do not fit: who leaves for the plan must not count for it.
    Of contents that agree as much, the first: equal ones are compared with workers on which the same stands once.
    """
    alike: defaultdict[frozenset[tuple[Resources, int]], list[int]] = defaultdict(list)
    for number in range(len(contents) - 1, -1, -1):
        alike[frozenset(contents[number].items())].append(number)
    numbers = list(alike.values())
    agreeing: dict[tuple[frozenset[tuple[Resources, int]], int], list[tuple[int, list[list[int]]]]] = {}
    turns: list[tuple[int, str, int, list[tuple[int, list[list[int]]]]]] = []
    for name in workers:
        there, grown_mb = looked[name].standing, looked[name].grown_mb
        kind = frozenset(there.items()), grown_mb
        if kind not in agreeing:
            by_cores: defaultdict[int, list[list[int]]] = defaultdict(list)
            for equal in numbers:
                content = contents[equal[-1]]
                fits = not grown_mb or grown_mb <= _beside_mb(offer, content)
                agree = [
                    size.cores * min(units, content[size]) for size, units in there.items() if fits or size.memory_mb
                ]
                by_cores[-sum(agree)].append(equal)
            agreeing[kind] = sorted(by_cores.items(), key=_first)
        choices = agreeing[kind]
        turns.append((choices[0][0], name, 0, choices))
    heapify(turns)
    found: dict[str, Content] = {}
    while turns:
        _, name, number, choices = turns[0]
        left = [equal for equal in choices[number][1] if equal]
        if left:
            found[name] = contents[min(left, key=_last).pop()]
            heappop(turns)
        else:
            heapreplace(turns, (choices[number + 1][0], name, number + 1, choices))
    return found


def _beside_mb(offer: Resources, content: Content) -> int:
    """The memory that the content leaves of the offer."""
    return offer.memory_mb - sum([size.memory_mb * units for size, units in content.items()])


def _first(pair: tuple[int, list[list[int]]]) -> int:
    return pair[0]


def _last(numbers: list[int]) -> int:
    return numbers[-1]
