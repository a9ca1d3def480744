"""What apps ask for and are not granted, by size: what further workers would be for. Nothing here decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.answers import UnmetDemand
from scheduler.model.events import Fixed
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.labels import by_option
from scheduler.rules.share.demands import held_units, wanted_units

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState


class _Bounds:
    """How much more a company and a user may get, whatever the cluster offers (semantics H1, N2)."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._left: dict[str, Resources] = {}
        """Company -> what it may hold beyond what it holds, if its quota is an amount that is its cap."""
        self._asked: dict[tuple[str, str], tuple[Resources, int]] = {}
        """Company and user, "" for the company -> what pending apps of theirs ask for that were let in, and how many.
        """
        for name, company in state.companies.items():
            if company.spec.amounts is not None and not company.spec.may_borrow:
                self._left[name] = state.quota(name).amount - company.balance.granted
        self._departments = {
            name: each.cap.whole - each.balance.granted
            for name, each in state.departments.items()
            if each.cap is not None and each.spec.amounts is not None
        }
        """Department -> what its companies may hold beyond what they hold, if its cap is an amount."""

    def lets_in(self, app: App) -> bool:
        """Whether no limit would keep the pending app out once those before it have entered (semantics N2)."""
        spec, limit = app.spec, self._state.queue.companies[app.spec.company].limit
        with_it: list[tuple[Resources, int]] = []
        for user in (spec.user, ""):
            asked, apps = self._asked.get((spec.company, user), (NOTHING, 0))
            with_it.append((asked + app.requested, apps + 1))
        of_user, of_company = with_it
        if limit.broken_by(spec.user, of_user, of_company) is not None:
            return False
        self._asked[spec.company, spec.user], self._asked[spec.company, ""] = of_user, of_company
        return True

    def cut(self, company: str, size: Resources, number: int) -> int:
        """How many of that many stay within the company's cap; they count against it from now on (semantics H1)."""
        left = self._left.get(company)
        known = self._state.companies[company]
        if left is not None:
            number = max(0, min(number, Quota(left, named=known.spec.kinds).holds(size)))
        above = [each for each in known.above if each.name in self._departments]
        for each in above:
            bound = Quota(self._departments[each.name], named=each.spec.kinds)
            number = max(0, min(number, bound.holds(size)))
        if left is not None:
            self._left[company] = left - size * number
        for each in above:
            self._departments[each.name] -= size * number
        return number


def _executors(state: ClusterState, app: App) -> tuple[Resources, int]:
    """The app's smallest executor and how many of them it lacks; what no worker lets it ask for yet counts (L1)."""
    size, number, sizing = app.need.executor, wanted_units(app) - held_units(app), app.sizing
    if app.demand.target and isinstance(sizing, Fixed):
        limit = state.queue.companies[app.spec.company].limit
        rise = app.demand.target - (app.executor_limit or 0)
        if limit.broken(app.spec.user, sizing.each * rise, 0) is None:
            return sizing.each, max(0, number) + rise
    return size, number


def unmet(state: ClusterState) -> list[UnmetDemand]:
    """What ready apps ask for and are not granted, by size and demand (P9): of how many apps, and since when (ms).

    An app asks for as many of its smallest executors as it can use (semantics H2), and its driver until that is placed.
    What a limit (N2), a cap in amounts (H1) or a lack of readiness (J) keeps back is left out: no worker would help. It
    is no matter whether a live worker is large enough (N3).
    """
    bounds = _Bounds(state)
    found: dict[tuple[Resources, str], list[int]] = {}
    for app in state.apps.values():
        if app.over or not app.ready or (not app.admitted and not bounds.lets_in(app)):
            continue
        for size, number in ((app.unplaced_driver, 1), _executors(state, app)):
            if size.cores and number > 0 and (number := bounds.cut(app.spec.company, size, number)):
                kept = found.setdefault((size, app.need.demand), [0, 0, app.ready_at])
                kept[0] += number
                kept[1] += 1
                kept[2] = min(kept[2], app.ready_at)
    return [
        UnmetDemand(
            cores=size.cores,
            memory=size.memory_mb,
            resources=dict(size.others),
            **by_option(demand),
            missing=number,
            apps=apps,
            since=since,
        )
        for (size, demand), (number, apps, since) in sorted(found.items(), key=lambda item: item[1][2])
    ]
