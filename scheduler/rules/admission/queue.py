"""Pending apps: Map<company, Map<user, queue>> [0], updated at every event.

A user's apps are kept together by what they *ask*, their request and what they need of a worker, each group in the
order of its policy: however many apps wait behind a limit or a full cluster, one of each ask is looked at. Places in
the order of companies and of users are worked out where somebody asks who enters, for those who have an app that is
due.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heapreplace, merge
from operator import attrgetter
from typing import Any, Final, NamedTuple

from scheduler.model.events import ClusterConfigured
from scheduler.model.quota import Quota, Share
from scheduler.model.resources import Resources
from scheduler.rules.admission.app import APP_POLICIES
from scheduler.rules.admission.company import COMPANY_POLICIES, Tenant, together
from scheduler.rules.admission.limits import CompanyLimits, Limits
from scheduler.rules.admission.line import Arrivals, Line
from scheduler.rules.admission.policy import Basis
from scheduler.rules.admission.turns import AppTurns, TreeTurns
from scheduler.rules.admission.user import USER_POLICIES, Contender, UserKey
from scheduler.rules.entities.apps import App, Need
from scheduler.rules.entities.companies import Department
from scheduler.rules.entities.ledger import Balance, Occupation, Usage


class Ask(NamedTuple):
    """What apps have in common that enter under the same conditions."""

    request: Resources
    need: Need


_asking: Final = partial(tuple.__new__, Ask)
_READIED = attrgetter("ready_position")


@dataclass(slots=True)
class UserQueue:
    """One user's pending apps that are ready: by what they ask in the order of the app policy, and by readiness."""

    contender: Contender
    by_ask: dict[Ask, Line] = field(default_factory=dict)
    by_readiness: Line = field(default_factory=lambda: Line(key=_READIED))

    @property
    def by_policy(self) -> list[App]:
        """All of them in the order of the app policy."""
        lines = [*self.by_ask.values()]
        return [*merge(*lines, key=lines[0].key)] if lines else []

    def in_order(self, shut: Callable[[Ask], bool], after: App | None = None) -> Iterator[App]:
        """The apps in that order one at a time, without those that ask what is `shut` when their turn comes.

        Only those behind the app `after`. What is shut once stays so.
        """
        fronts: list[tuple[Any, int, int, Ask, Line]] = []
        for ask, line in self.by_ask.items():
            if shut(ask):
                continue
            items, at = line.items, line.begin
            key: Callable[[App], Any] = line.key  # type: ignore[assignment]  # lines of apps have one
            if after is not None:
                at = bisect_right(items, key(after), at, key=key)
            if at < len(items):
                fronts.append((key(items[at]), len(fronts), at, ask, line))
        heapify(fronts)
        while fronts:
            _, number, at, ask, line = fronts[0]
            if shut(ask):
                heappop(fronts)
                continue
            items = line.items
            if at + 1 < len(items):
                place = line.key(items[at + 1])  # type: ignore[misc]  # likewise
                heapreplace(fronts, (place, number, at + 1, ask, line))
            else:
                heappop(fronts)
            yield items[at]


@dataclass(slots=True)
class CompanyQueue:
    """One company's users that queued apps, its limits, and what the company policy needs to know of it."""

    tenant: Tenant
    limit: CompanyLimits
    users: dict[str, UserQueue] = field(default_factory=dict)
    asking: dict[str, UserQueue] = field(default_factory=dict)
    """The users that have pending apps which are ready."""


class AppQueue:
    """The pending apps of all companies."""

    def __init__(self) -> None:
        self.companies: dict[str, CompanyQueue] = {}
        self.basis = Basis()
        self.arrivals = Arrivals()
        """Every pending app that is ready, by id, in the order in which they became ready."""
        self.configure(ClusterConfigured())

    def configure(self, settings: ClusterConfigured) -> None:
        """Order by the policies of these settings."""
        policy = COMPANY_POLICIES[settings.company_policy]
        self._company_key, self._of_balance = policy.rank, policy.of_balance
        self._user_key = USER_POLICIES[settings.user_policy].rank
        self._place = partial(APP_POLICIES[settings.app_policy].rank, step_ms=settings.priority_step_s * 1000)
        self.basis.half_life_ms = settings.half_life_s * 1000
        for company in self.companies.values():
            for queue in company.asking.values():
                for ask, apps in queue.by_ask.items():
                    queue.by_ask[ask] = Line(apps, key=self._place)

    def add_company(
        self, name: str, balance: Balance, usage: Usage, *, last_selected: int = 0, standing: Occupation | None = None
    ) -> None:
        """A company whose users may queue apps from now on."""
        tenant = Tenant(name, balance, usage, last_selected=last_selected, standing=standing or Occupation())
        self.companies[name] = CompanyQueue(tenant, CompanyLimits(tenant.standing))

    def add_user(self, company: str, user: Contender) -> None:
        """Add a user who queued apps before; `push` adds new ones."""
        self.companies[company].users[user.user] = UserQueue(user)

    def remove_company(self, name: str) -> None:
        """Forget a company that has no pending app."""
        del self.companies[name]

    def set_quota(self, name: str, quota: Quota) -> None:
        """Set the company's quota (semantics C2)."""
        self.companies[name].tenant.quota = quota

    def set_limits(self, name: str, limits: Limits, above: Sequence[tuple[str, Occupation]] = ()) -> None:
        """Set the limits by which apps of the company are passed over, with departments `above` that have any (N2)."""
        company = self.companies[name]
        company.limit.set(limits, name, [queue.contender for queue in company.users.values()], above)

    def share(self, name: str) -> Share:
        """The company's share of its quota (semantics C3, O1)."""
        tenant = self.companies[name].tenant
        return tenant.quota.share_of(tenant.balance.requested)

    def push(self, app: App) -> None:
        """Queue an app, the last one to become ready, for its user."""
        queue = self._queue_of(app)
        self._add(queue, app)
        queue.by_readiness.append(app)
        self.arrivals[app.id] = app

    def push_all(self, apps: Iterable[App]) -> None:
        """Queue all that are ready, in the order in which they became it, where none was queued: as `push` of each."""
        theirs: dict[tuple[str, str], list[App]] = {}
        for app in apps:
            theirs.setdefault((app.spec.company, app.spec.user), []).append(app)
            self.arrivals[app.id] = app
        for alike in theirs.values():
            queue = self._queue_of(alike[0])
            by_ask: dict[Ask, list[App]] = {}
            for app in alike:
                by_ask.setdefault(ask_of(app), []).append(app)
            for ask, those in by_ask.items():
                queue.by_ask[ask] = Line(those, key=self._place)
            queue.by_readiness = Line(alike, key=_READIED)

    def _queue_of(self, app: App) -> UserQueue:
        """The queue of the app's user, which has an app from now on."""
        company, user = self.companies[app.spec.company], app.spec.user
        queue = company.asking.get(user)
        if queue is None:
            queue = company.users.get(user)
            if queue is None:
                contender = Contender(user, app.accounts[2], standing=app.standings[2])
                queue = company.users[user] = UserQueue(contender)
                company.limit.regard(contender)
            company.asking[user] = queue
        return queue

    def _add(self, queue: UserQueue, app: App) -> None:
        ask = ask_of(app)
        apps = queue.by_ask.get(ask)
        if apps is None:
            apps = queue.by_ask[ask] = Line(key=self._place)
        apps.add(app)

    def remove(self, app: App) -> None:
        """Take an app out of its user's queue."""
        company = self.companies[app.spec.company]
        queue = company.users[app.spec.user]
        _take_out(queue, app, ask_of(app))
        queue.by_readiness.remove(app)
        self.arrivals.leave(app.id)
        if not queue.by_ask:
            del company.asking[app.spec.user]

    def restate(self, app: App, before: Ask) -> None:
        """The app, which asked that before, keeps its place among its user's."""
        queue = self.companies[app.spec.company].users[app.spec.user]
        _take_out(queue, app, before)
        self._add(queue, app)

    def reprioritize(self, app: App, priority: int) -> None:
        """The app gets that priority, and its new place among its user's (semantics Q1)."""
        apps = self.companies[app.spec.company].users[app.spec.user].by_ask[ask_of(app)]
        apps.remove(app)
        app.priority = priority
        apps.add(app)

    def admit(self, app: App, position: int) -> None:
        """Remove an app that is admitted at this log position; its company and user had their turn (C3, U1)."""
        company = self.companies[app.spec.company]
        contender = company.users[app.spec.user].contender
        company.tenant.last_selected = contender.last_selected = position
        contender.last_selected_at = self.basis.at
        self.remove(app)

    def entering(
        self, apps: Iterable[App], above: Callable[[str], tuple[Department, ...]] | None = None
    ) -> Iterator[App]:
        """Pending apps in the order in which they enter: by company, user, and the order of the user's apps (C, U, F).

        Each is admitted before the next is asked for. That changes the place of its company and its user alone, and of
        the departments `above` (H12).
        """
        turns: AppTurns[str] | TreeTurns
        if above is not None:
            turns = self._entering_by_department(apps, above)
        else:
            turns = AppTurns(
                apps,
                side=lambda app: app.spec.company,
                company=lambda app: self._company_key(self.companies[app.spec.company].tenant, self.basis),
                user=self._user_turn,
                within=self._place,
            )
        while (app := turns.pop()) is not None:
            yield app

    def _entering_by_department(self, apps: Iterable[App], above: Callable[[str], tuple[Department, ...]]) -> TreeTurns:
        """The order of entry from the departments of the cluster down (semantics H12)."""
        known: dict[str, Department] = {}
        theirs: dict[str, list[Tenant]] = {}
        for name, company in () if self._of_balance else self.companies.items():
            for each in above(name):
                theirs.setdefault(each.name, []).append(company.tenant)

        def path(app: App) -> tuple[tuple[str, str], ...]:
            company = app.spec.company
            departments = above(company)
            known.update([(each.name, each) for each in departments])
            names = [("", each.name) for each in reversed(departments)]
            return (*names, (company, ""), (company, app.spec.user))

        def place(name: tuple[str, str], app: App) -> Any:  # noqa: ANN401 - as the policies have it
            company, other = name
            if not company:
                each = known[other]
                tenant = Tenant(other, each.balance, Usage(), each.quota, each.last_selected)
                if not self._of_balance:
                    tenant = together(tenant, theirs[other], self.basis)
                return self._company_key(tenant, self.basis)
            return self._user_turn(app) if other else self._company_key(self.companies[company].tenant, self.basis)

        return TreeTurns(apps, path=path, place=place, within=self._place)

    def _user_turn(self, app: App) -> UserKey:
        """The place of the user whose next app this is."""
        company = self.companies[app.spec.company]
        queue = company.users[app.spec.user]
        contender, contender.request = queue.contender, app.requested
        if queue.by_readiness:
            oldest = queue.by_readiness.items[queue.by_readiness.begin]
            contender.oldest, contender.oldest_at = oldest.ready_position, oldest.ready_at
        return self._user_key(contender, company.tenant.quota, self.basis)

    def wanting_nothing(self) -> list[App]:
        """The pending apps that ask for neither an executor nor a driver: nothing keeps them out (semantics H4)."""
        return [
            app
            for company in self.companies.values()
            for queue in company.asking.values()
            for ask, apps in queue.by_ask.items()
            if not ask.need.executor.cores and not ask.need.driver.cores
            for app in apps
        ]

    def foremost(self) -> Iterator[Line]:
        """Of each user the apps of each ask that a live worker could host and no limit keeps out, by F (N2, N3)."""
        for company in self.companies.values():
            limited = company.limit.limited
            for user, queue in company.asking.items():
                for ask, apps in queue.by_ask.items():
                    if not ask.need.hostable:
                        continue
                    if limited and company.limit.broken(user, ask.request) is not None:
                        continue
                    yield apps

    def oldest(self) -> App | None:
        """The pending app that became ready first (semantics A6)."""
        return next(iter(self.arrivals.values()), None)


def _take_out(queue: UserQueue, app: App, ask: Ask) -> None:
    apps = queue.by_ask[ask]
    if len(apps) > 1:
        apps.remove(app)
    else:
        del queue.by_ask[ask]


def ask_of(app: App) -> Ask:
    """What the app asks now."""
    return _asking((app.requested, app.need))
