"""Who may leave for a need, and who may stay after all: one sum for both (semantics H6, H7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scheduler.model.events import Computed
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.command.failures import closed_to
from scheduler.rules.command.windows import sought_by
from scheduler.rules.share.demands import staying_of, units_of
from scheduler.rules.share.entitlement import Entitlement

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.state.cluster import ClusterState


def side_of(state: ClusterState, app: App, claimant: App) -> tuple[str, str] | None:
    """The largest part of the tree that the app is in and the claimant is not; None if both apps are of one user.

    That is a department as ("", name), a company as (name, ""), or a user of the claimant's company.
    """
    spec, own = app.spec, claimant.spec
    if spec.company == own.company:
        return (spec.company, spec.user) if spec.user != own.user else None
    if state.departments:
        theirs = state.companies[own.company].above
        for each in reversed(state.companies[spec.company].above):
            if each not in theirs:
                return "", each.name
    return spec.company, ""


def leaving_with(state: ClusterState, one: Allocation) -> list[Allocation]:
    """The executors that leave if that one does: of a gang all (semantics G8)."""
    app = state.apps[one.app]
    return app.members if app.spec.gang else [one]


class Losses:
    """Executors that leave for a claimant, and what their apps, users and companies hold beside them.

    They are counted one after the other, beside all that were told to leave before; what `returns` counts as there.
    Nobody is counted who could stay then: it would be told to leave and to stay in turns, without an end.
    """

    def __init__(
        self, state: ClusterState, entitled: Entitlement, claimant: App, returns: Iterable[Allocation] = ()
    ) -> None:
        self._state, self._entitled, self._claimant = state, entitled, claimant
        self.taken: list[Allocation] = []
        self._forced: list[Allocation] = []
        self._cores: dict[str, int] = {}
        """App -> the cores that leave, or that surplus of its side makes room for."""
        self._of_sides: dict[tuple[str, str], Resources] = {}
        for one in returns:
            self._count(one, -1)

    def force(self, one: Allocation) -> None:
        """Count an executor that leaves in any case."""
        self._count(one)
        self._forced.append(one)

    def take(self, one: Allocation, makes: Resources = NOTHING, lent: Iterable[Allocation] | None = None) -> bool:
        """Whether the executor may leave, and so is counted: its app has surplus, and does without it or a part of it.

        `makes`: what must have room in its place beside what its app gets back. With `lent`, what is surplus anywhere,
        also whether its user or company does without it, and some of that makes room for its app elsewhere.
        """
        may = one.status != "stopping" and (
            self._is_surplus(one, makes) or (lent is not None and self._is_followed(one, lent))
        )
        if may:
            for each in leaving_with(self._state, one):
                self._count(each)
        return may

    def release(self, gone: Iterable[Allocation]) -> None:
        """These were taken last, and need not leave."""
        for one in gone:
            self._count(one, -1)
            self.taken.remove(one)

    def may_stay(self, one: Allocation) -> bool:
        """Whether neither its app nor its user or company does without an executor that was told to leave (H7)."""
        app = self._state.apps[one.app]
        if app.spec.gang and not app.is_whole:
            return False
        return not (app.over or self._app_spares(one, self._left(app)) or self._side_spares(app))

    def back(self, one: Allocation) -> Resources:
        """What its app gets back for the executor, in smaller ones: what it would be below its entitlement."""
        app = self._state.apps[one.app]
        missing = max(0, -self._left(app, one.resources.cores)) - max(0, -self._left(app))
        return app.need.executor * missing

    def _count(self, one: Allocation, times: int = 1) -> None:
        app = self._state.apps[one.app]
        self._cores[app.id] = self._cores.get(app.id, 0) + times * one.resources.cores
        side = side_of(self._state, app, self._claimant)
        if side is not None:
            self._of_sides[side] = self._of_sides.get(side, NOTHING) + one.resources * times
        if times > 0:
            self.taken.append(one)

    def _left(self, app: App, besides: int = 0) -> int:
        """How many executors the app holds above its entitlement without what leaves, and so many cores `besides`."""
        cores = staying_of(app).cores - self._cores.get(app.id, 0) - besides
        return cores // max(1, app.need.executor.cores) - self._entitled.units(app)

    def _app_spares(self, one: Allocation, left: int) -> bool:
        """Whether its app does without the executor, so many being `left` then above its entitlement.

        Executors need not be whole multiples of its smallest (P7). One that the scheduler made larger than what would
        be missing then leaves, too: its app gets that back in smaller ones.
        """
        app = self._state.apps[one.app]
        divides = isinstance(app.sizing, Computed) or app.need.growing
        return left >= 0 or (divides and left + units_of(app, one) > 0)

    def _side_spares(self, app: App, besides: Resources = NOTHING) -> bool:
        """Whether its user or its company holds its entitlement of every kind without what leaves."""
        side = side_of(self._state, app, self._claimant)
        if side is None:
            return False
        held, due = self._entitled.side(self._state, side)
        return (held - self._of_sides.get(side, NOTHING) - besides).covers(due)

    def _is_surplus(self, one: Allocation, makes: Resources) -> bool:
        app = self._state.apps[one.app]
        left = self._left(app)
        if app.over or left <= 0:
            return False
        if app.spec.gang:
            return self._entitled.units(app) == 0
        after = self._left(app, one.resources.cores)
        if not self._app_spares(one, after):
            return False
        if after >= 0:
            return True
        before = self.taken if self._claimant.need.gang else self._forced  # for a gang also on other workers (G8)
        if not all(self._app_spares(each, after) for each in before if each.app == one.app):
            return False
        room = self._state.workers[one.worker].open_to(app.id) + one.resources
        return room.covers(self.back(one) + makes)

    def _is_followed(self, one: Allocation, lent: Iterable[Allocation]) -> bool:
        """Whether its side does without it, by what can make room for it elsewhere."""
        state = self._state
        app = state.apps[one.app]
        if app.over or app.spec.gang or not self._side_spares(app, one.resources):
            return False
        kept, side = closed_to(state, app, state.at), side_of(self._state, app, self._claimant)
        for other in lent:
            theirs, worker = state.apps[other.app], state.workers[other.worker]
            if (
                side_of(state, theirs, self._claimant) != side
                or worker.id == one.worker
                or worker.id in kept
                or worker.holds
            ):
                continue
            usable = worker.status == "alive" and worker.suspicion is None
            usable = usable and not theirs.spec.gang
            usable = usable and state.fleet.admits(worker.id, sought_by(state, app, NOTHING, state.at))
            if (
                usable
                and self._left(theirs, other.resources.cores) >= 0
                and (worker.free + other.resources).covers(one.resources)
            ):
                self._cores[theirs.id] = self._cores.get(theirs.id, 0) + other.resources.cores
                return True
        return False
