"""Reclaiming: what companies hold beyond their parts comes back to one that has not reached its own (semantics E)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from recovery.second_edition.rules.admission.queue import reached
from recovery.second_edition.rules.demand import lowered_by_loss
from recovery.second_edition.rules.failures import has_room_now, kept_from
from recovery.second_edition.rules.holds import claimed_by_company, claims_of, leaving_by_company, void
from recovery.second_edition.rules.placement.sizing import smallest_cores
from scheduler.model.events import Computed, Event, ExecutorRevoked, HoldEnded, RoomHeld, Shares
from scheduler.model.quota import Share
from scheduler.model.resources import NOTHING, Resources, aligned

if TYPE_CHECKING:
    from recovery.second_edition.rules.entities import Allocation, App, Worker
    from recovery.second_edition.rules.state import ClusterState

CLAIMS_A_TURN = 16
LOOKED_AT = 256
"""How many executors are looked at for one claim."""


_SHARE = attrgetter("share")
_Alike = tuple[str, int, str, bool]
"""Company and need of apps for which as much can be taken; the app, if that differs for it alone; and whether it is of
what elastic apps of the company are lent (semantics E7)."""


class Loss(NamedTuple):
    """An executor that leaves for a claim, and the rule by which it may be taken: E2, E3 or E7."""

    executor: Allocation
    rule: str


def part_share(held: Resources, part: Resources) -> Share:
    """What is held of a part: the largest ratio of a component of which any is assured (semantics E4).

    A company that is assured nothing has the largest share.
    """
    ratios = [Share(mine, whole) for mine, whole in aligned(held, part) if whole]
    return max(ratios, default=Share(1, 0))


def reclaim(state: ClusterState, at: int) -> Iterator[Event]:
    """Claims of apps whose companies have not reached their parts, in the order of placement (semantics E1, P6).

    First what stays within the company's part, then the one executor that takes it there or beyond, until there is no
    claim more, or there are 16. An elastic app that lost an executor to another one of its company asks for less, so
    a claim of its own may be void then (E5). The caller folds each event before it asks for the next.
    """
    if state.settings.reclaim != "none" and state.settings.admission == "fair" and state.owed.lists:
        yield from _Reclaiming(state, at).events()
        if state.holds:
            yield from void(state, at)


def is_unlawful(state: ClusterState, app: App) -> bool:
    """Whether nothing is taken for the app now because a loss would be unlawful once all is taken (semantics E4)."""
    if state.settings.reclaim == "none" or state.settings.admission == "open":
        return False
    seeking = _Reclaiming(state, state.at)
    return seeking.unlawful_for(app)


def may_be_lost(state: ClusterState, event: ExecutorRevoked) -> bool:
    """Whether the executor may be taken for the claim, held in the state, by the rule that is named (E2, E3, E7)."""
    claimant, executor = state.apps.get(event.claimant or ""), state.executors.get(event.executor)
    if claimant is None or executor is None:
        return False
    return _Reclaiming(state, state.at).may_be_lost(claimant, executor, event)


class _Reclaiming:
    """The claims of one turn."""

    def __init__(self, state: ClusterState, at: int) -> None:
        self.state, self.at = state, at
        self.parts = {name: state.queue.part(name) for name in state.companies}
        self.claimed = claimed_by_company(state)
        self.leaving = leaving_by_company(state)
        self.number = 0
        self.in_vain: set[_Alike] = set()
        """The apps for which nothing could be taken since the last claim."""
        self.unlawful = False
        """Whether losses were given up because one would be unlawful in the end."""
        self._losers: tuple[str, ...] | None = None
        """The companies that may lose anything as things stand; None until somebody asks."""
        self._shared: _Search | None = None
        """What may be taken by E2 for apps without holds and exclusions as things stand."""

    def events(self) -> Iterator[Event]:
        """Every claim that can be served; a second turn without an input finds none (semantics E6)."""
        before = -1
        while before != self.number < CLAIMS_A_TURN:
            before = self.number
            yield from self._pass(self._within_part)
            yield from self._pass(self._to_part, once=True)
            if self.number == before:
                yield from self._pass(lambda app: app.on_lent, within=True)

    def unlawful_for(self, app: App) -> bool:
        """Whether the app may claim, and what could be gathered for it would be unlawful (semantics E4)."""
        may = self._to_part(app) and _may_claim(app) and self._will_fit_nowhere(app)
        return may and self._find(app) is None and self.unlawful

    def may_be_lost(self, claimant: App, executor: Allocation, event: ExecutorRevoked) -> bool:
        """Whether the executor may leave for a claim whose room is held already (semantics E2, E3, E7)."""
        worker, company = self.state.workers[executor.worker], claimant.spec.company
        if not self._may_be_taken(executor, worker, claimant):
            return False
        if event.hold in self.state.holds:
            self.claimed[company] = self.claimed[company] - self.state.holds[event.hold].amounts
        return event.rule == "E7" or self._rule(claimant, executor, worker, [], larger=event.rule == "E3") is not None

    def _pass(self, wanted: Callable[[App], bool], *, once: bool = False, within: bool = False) -> Iterator[Event]:
        for app in self.state.owed.serve(wanted):
            while self.number < CLAIMS_A_TURN and wanted(app) and _may_claim(app):
                alone = app.holds or app.troubles or (within and app.elastic)  # what it is lent itself is not for it
                alike = app.spec.company, id(app.need), app.id if alone else "", within
                if alike in self.in_vain:
                    break
                seek = self._gather_lent if within else self._find
                found = seek(app) if self._will_fit_nowhere(app) else None
                if found is None:
                    self.in_vain.add(alike)
                    break
                self.number += 1
                self.in_vain.clear()  # what is claimed on one worker leads the search to others
                yield from self._claim(app, *found, within=within)
                if once:
                    break

    def _held(self, company: str) -> Resources:
        """What counts as granted to a company that seeks room (semantics C8)."""
        return self.state.claims.of(company).held + self.claimed.get(company, NOTHING)

    def _left(self, company: str) -> Resources:
        """What a company holds but for what was told to leave for claims (semantics E2)."""
        return self.state.claims.of(company).held - self.leaving.get(company, NOTHING)

    def _may_lose(self, company: str) -> bool:
        """Whether E2 or E3 may let the company lose an executor: it is beyond its part, or holds a further kind."""
        left, part = self._left(company), self.parts[company]
        return reached(left, part) and (part == NOTHING or left.others != () or not part.covers(left))

    def _within_part(self, app: App) -> bool:
        held, part = self._held(app.spec.company), self.parts[app.spec.company]
        return self._to_part(app) and (part - held).suffices_for(app.need.executor)

    def _to_part(self, app: App) -> bool:
        company = app.spec.company
        return bool(app.need.executor.cores) and not reached(self._held(company), self.parts[company])

    def _will_fit_nowhere(self, app: App) -> bool:
        """Whether an executor of the app fits nowhere now, nor will once all that leaves is gone (semantics E1)."""
        state, size = self.state, app.need.least
        if has_room_now(state, app, self.at):
            return False
        if state.rooms.will_have(size, kept_from(state, app, self.at)):
            return False
        return not any(
            state.workers[hold.worker].to_come(app.id).covers(size)
            for hold in app.holds.values()
            if hold.reason == "hold" and hold.worker in state.workers
        )

    def _find(self, app: App) -> tuple[Worker, list[Loss]] | None:
        """Where room can be made for the app's smallest executor, and by which losses (semantics E2-E4).

        By E2 alone the same executors are gathered for every app that has no hold and is excluded nowhere, so what was
        gathered for one of them is remembered for the others.
        """
        plain = not (app.holds or app.troubles)
        search = self._shared if plain and self._shared is not None else _Search(self._gathered(app, larger=False))
        if plain:
            self._shared = search
        self.unlawful = False
        found = self._first(app, search, larger=False)
        if found is None and search.refused:
            found = self._first(app, _Search(self._gathered(app, larger=True)), larger=True)
        return found

    def _first(self, app: App, search: _Search, *, larger: bool) -> tuple[Worker, list[Loss]] | None:
        """The first worker on which enough is gathered for the app; None if a loss is unlawful in the end (E4)."""
        size = app.need.executor
        for worker, losses, number, room in search:
            if room.covers(size):
                needed = _needed(losses[:number], worker.to_come(app.id), size)
                lawful = (
                    self._rule(app, loss.executor, worker, [one for one in needed if one is not loss], larger=larger)
                    for loss in needed
                )
                self.unlawful = not all(lawful)
                return None if self.unlawful else (worker, needed)
        return None

    def _gathered(self, app: App, *, larger: bool) -> Iterator[_Step | None]:
        """What may be taken for the app, an executor a step; None where the parts do not let one be (semantics E4)."""
        only = _only_on(self.state, app)
        if self._losers is None:
            self._losers = tuple(name for name in sorted(self.state.holders.companies) if self._may_lose(name))
        losers = [_Loser(self.parts[name], self._left(name), self._in_order(name, only)) for name in self._losers]
        gathered: defaultdict[str, list[Loss]] = defaultdict(list)
        for _ in range(LOOKED_AT):
            found = _next_of(losers)
            if found is None:
                return
            loser, executor = found
            worker = self.state.workers[executor.worker]
            if not self._may_be_taken(executor, worker, app):
                continue
            losses = gathered[worker.id]
            rule = self._rule(app, executor, worker, losses, larger=larger)
            if rule is None:
                yield None
                continue
            losses.append(Loss(executor, rule))
            loser.lose(executor.resources)
            yield _Step(worker, losses, len(losses), worker.to_come(app.id) + _sum(losses))

    def _gather_lent(self, app: App) -> tuple[Worker, list[Loss]] | None:
        """What is gathered of elastic apps of the claimant's company, which keep their least number (semantics E7).

        Idle executors first, then from the app with the most beyond its least, ties by admission, the last one first;
        worked out anew after each loss. Whether one may be taken is judged against what was gathered on the same worker
        (semantics E4).
        """
        state, size = self.state, app.need.executor
        only = _only_on(state, app)
        order: list[_Lent] = []
        lent: dict[str, int] = {}
        for one in state.elastics.get(app.spec.company, {}).values():
            if one is not app and (more := _beyond_least(one)) > 0:
                lent[one.id] = more
                _line_up(order, more, one.admitted, _last_granted(one, only)[::-1])
        gathered: defaultdict[str, list[Loss]] = defaultdict(list)
        for _ in range(LOOKED_AT):
            if not order:
                return None
            _, less, minus_admitted, executors = heappop(order)
            executor = executors.pop()
            worker = state.workers[executor.worker]
            losses = gathered[worker.id]
            taken = (
                self._may_be_taken(executor, worker, app)
                and [loss.executor.app for loss in losses].count(executor.app) < lent[executor.app]
            )
            _line_up(order, -less - taken, -minus_admitted, executors)
            if taken:
                losses.append(Loss(executor, "E7"))
                room = worker.to_come(app.id)
                if (room + _sum(losses)).covers(size):
                    return worker, _needed(losses, room, size)
        return None

    def _may_be_taken(self, executor: Allocation, worker: Worker, claimant: App) -> bool:
        """Whether the executor may leave for the claimant, but for the parts (semantics E2)."""
        if executor.status == "stopping" or executor.app == claimant.id or worker.status != "alive":
            return False
        if worker.suspicion is not None or worker.id in kept_from(self.state, claimant, self.at):
            return False
        if any(hold.app != claimant.id for hold in worker.holds.values()):
            return False
        settings = self.state.settings
        return settings.reclaim != "firm" or self.at >= executor.granted_at + settings.min_runtime_s * 1000

    def _rule(
        self, claimant: App, executor: Allocation, worker: Worker, others: list[Loss], *, larger: bool
    ) -> str | None:
        """The rule by which the executor may be taken besides the others, None if it may not (semantics E2, E3)."""
        state = self.state
        loser = state.apps[executor.app]
        part = self.parts[loser.spec.company]
        same = [loss for loss in others if state.apps[loss.executor.app].spec.company == loser.spec.company]
        held = self._left(loser.spec.company) - _sum(same)
        if reached(held - executor.resources, part):
            return "E2"
        if not larger or not reached(held, part):
            return None
        if not self._worked_out(loser) and self._held(claimant.spec.company) != NOTHING:
            return None
        needs = aligned(claimant.need.executor, worker.to_come(claimant.id), held, part)
        return "E3" if all(need <= mine - assured for need, room, mine, assured in needs if need > room) else None

    def _worked_out(self, app: App) -> bool:
        """Whether the scheduler worked out the size of the app's executors (semantics E3)."""
        if isinstance(app.sizing, Computed) or isinstance(app.spec.sizing, Computed):
            return True
        cores = smallest_cores(self.state.settings, app.spec.cores_per_task)
        return app.elastic and app.need.executor.cores == cores

    def _in_order(self, company: str, only: Worker | None) -> Iterator[Allocation]:
        """The company's executors: idle ones first, then by apps that lost little, priority and admission (E4).

        With `only`, those on that worker.
        """
        settings, holders = self.state.settings, self.state.holders
        after = self.at - settings.reclaim_window_s * 1000
        there = None if only is None else {one.app: self.state.apps[one.app] for one in only.executors.values()}
        if self.state.elastics.get(company):  # others have no idle executors
            for app in holders.in_order(company, after, settings.max_reclaims, there):
                yield from (one for one in _last_granted(app, only) if one.idle_since is not None)
        for app in holders.in_order(company, after, settings.max_reclaims, there):
            yield from (one for one in _last_granted(app, only) if one.idle_since is None)

    def _claim(self, app: App, worker: Worker, losses: list[Loss], *, within: bool) -> Iterator[Event]:
        """Hold the room for the claimant and tell the executors to leave, with a receipt each (semantics E5, Z5)."""
        state, company, size = self.state, app.spec.company, app.need.executor
        deadline = self.at + (state.settings.reclaim_patience_s or 0) * 1000
        own = next((hold for hold in app.holds.values() if hold.reason == "hold"), None)
        if own is not None:
            yield HoldEnded(hold=own.id, worker=own.worker, app=own.app, reason="served")
        held = self._held(company)
        yield RoomHeld(worker=worker.id, app=app.id, amounts=size, reason="reclaim", within=within)
        hold = state.head
        self.claimed[company] = self.claimed.get(company, NOTHING) + size
        for executor, rule in losses:
            loser = state.apps[executor.app].spec.company
            left = self._left(loser)
            shares = Shares(
                str(part_share(held, self.parts[company])),
                str(part_share(held + size, self.parts[company])),
                str(part_share(left, self.parts[loser])),
                str(part_share(left - executor.resources, self.parts[loser])),
            )
            yield ExecutorRevoked(
                app=executor.app,
                executor=executor.id,
                worker=worker.id,
                reason="reclaimed",
                hold=hold,
                claimant=app.id,
                claimant_company=company,
                rule=rule,
                since=app.owed_since,
                deadline=deadline,
                shares=shares,
            )
            self.leaving[loser] = self.leaving.get(loser, NOTHING) + executor.resources
            self._losers = self._shared = None
            if within:
                yield from lowered_by_loss(state.apps[executor.app])


_Lent = tuple[bool, int, int, list["Allocation"]]
"""Whether the next executor of an elastic app has tasks, minus how many it has beyond its least, minus the position of
its admission, and its executors, the next one last."""


class _Step(NamedTuple):
    """The first `number` of these losses make that much room on the worker."""

    worker: Worker
    losses: list[Loss]
    number: int
    room: Resources


class _Search:
    """The steps of gathering, kept as far as they were taken, so that several apps can go through them."""

    def __init__(self, steps: Iterator[_Step | None]) -> None:
        self.refused = False
        """Whether the parts did not let an executor be taken, as far as anybody has looked."""
        self._known: list[_Step] = []
        self._steps = steps

    def __iter__(self) -> Iterator[_Step]:
        yield from self._known
        for step in self._steps:
            if step is None:
                self.refused = True
            else:
                self._known.append(step)
                yield step


class _Loser:
    """A company from which executors may be taken, and how far one claim has come in looking at them."""

    def __init__(self, part: Resources, held: Resources, executors: Iterator[Allocation]) -> None:
        self.part, self.executors = part, executors
        self._held = held
        self.share = part_share(held, part)

    def lose(self, lost: Resources) -> None:
        """An executor of it was gathered."""
        self._held -= lost
        self.share = part_share(self._held, self.part)


def _next_of(losers: list[_Loser]) -> tuple[_Loser, Allocation] | None:
    """The company with the largest share and its next executor; `losers` are sorted by name (semantics E4)."""
    while losers:
        first = max(losers, key=_SHARE)
        executor = next(first.executors, None)
        if executor is not None:
            return first, executor
        losers.remove(first)
    return None


def _needed(losses: list[Loss], room: Resources, size: Resources) -> list[Loss]:
    """The losses without those that turn out not to be needed, put back last gathered first (semantics E4)."""
    needed = list(losses)
    for loss in reversed(losses):
        without = [one for one in needed if one is not loss]
        if (room + _sum(without)).covers(size):
            needed = without
    return needed


def _line_up(order: list[_Lent], beyond: int, admitted: int, rest: list[Allocation]) -> None:
    """Put the app of that admission, with so many beyond its least, where it may lose the next of its executors."""
    if rest:
        heappush(order, (rest[-1].idle_since is None, -beyond, -admitted, rest))


def _may_claim(app: App) -> bool:
    """Whether the app is owed an executor that it does not claim (semantics E1)."""
    return app.owed and app.claimable > len(claims_of(app))


def _beyond_least(app: App) -> int:
    """How many executors that go on an elastic app has beyond its least number (semantics E7)."""
    least = app.spec.elastic.least if app.spec.elastic is not None else 0
    return sum(executor.status != "stopping" for executor in app.executors.values()) - least


def _only_on(state: ClusterState, app: App) -> Worker | None:
    """The worker on which the app has a hold: it claims there only (semantics E1). None if it has no such hold."""
    return next((state.workers.get(hold.worker) for hold in app.holds.values() if hold.reason == "hold"), None)


def _last_granted(app: App, only: Worker | None = None) -> list[Allocation]:
    """The app's executors, idle ones first, the one granted last first (semantics E4); with `only`, those there."""
    if only is None:
        executors = list(reversed(app.executors.values()))
    else:
        executors = [one for one in reversed(only.executors.values()) if one.app == app.id]
    return [one for idle in (True, False) for one in executors if (one.idle_since is not None) == idle]


def _sum(losses: list[Loss]) -> Resources:
    return sum((loss.executor.resources for loss in losses), NOTHING)
