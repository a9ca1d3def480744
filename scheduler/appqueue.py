"""Pending apps in the order admission wants them: Map<company, Map<user, queue>> [0], kept up to date per event.

Only the app that a user's queue would give next (its *head*, semantics F) can be admitted, and
whether it passes its company's cap (C4) depends on its request alone. So a company's users are kept
together by what their heads request, each group in the order of the user policy: however many users
wait behind a cap, the first one that passes is found by looking at one user a distinct request.

Changes only mark what they concern; order is restored for the marked ones when somebody asks who is
next. As in `fleet`, the ordered lists are plain ones kept by `bisect`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.ledger import Balance
from scheduler.policies.app import APP_POLICIES, AppKey
from scheduler.policies.company import COMPANY_POLICIES, CompanyKey
from scheduler.policies.user import USER_POLICIES, UserKey
from scheduler.resources import Quota, Resources, Share


class Pending(NamedTuple):
    """A pending app as the queue needs it; `submitted` is the log position of its submission."""

    app: str
    company: str
    user: str
    kind: str
    request: Resources
    submitted: int


@dataclass(slots=True)
class UserQueue:
    """One user's pending apps, by the app policy and by submission."""

    by_policy: list[tuple[AppKey, Pending]] = field(default_factory=list)
    by_submission: list[int] = field(default_factory=list)
    last_selected: int = 0
    placed: tuple[Resources, UserKey] | None = None


@dataclass(slots=True)
class CompanyQueue:
    """One company's users with pending apps, and what the company policy and the cap need to know of it."""

    balance: Balance
    quota: Quota = Quota(0, 0)
    stops_idle: bool = True
    """Whether the cap also binds while the company occupies nothing (a default quota does not, semantics C4)."""
    last_selected: int = 0
    users: dict[str, UserQueue] = field(default_factory=dict)
    heads: dict[Resources, list[UserKey]] = field(default_factory=dict)
    moved: dict[str, None] = field(default_factory=dict)
    placed: CompanyKey | None = None
    turn: str = ""
    """The user whose turn it is while the company takes part."""

    def admits(self, request: Resources) -> bool:
        """Whether a request passes the company's cap now (semantics C4)."""
        balance = self.balance
        if not self.stops_idle and not balance.requested_cores and not balance.requested_memory_mb:
            return True
        return self.quota.covers(
            balance.requested_cores + request.cores, balance.requested_memory_mb + request.memory_mb
        )

    def first_user(self) -> str | None:
        """The user whose turn it is, those passed over by the cap left out (semantics U1, U2).

        None: the company does not take part, no user's next app passes the cap (C1).
        """
        admissible = [users[0] for request, users in self.heads.items() if self.admits(request)]
        return min(admissible)[-1] if admissible else None


class AppQueue:
    """Every company's pending apps; `first` says which one admission takes next."""

    def __init__(self) -> None:
        self.companies: dict[str, CompanyQueue] = {}
        self._order: list[CompanyKey] = []
        self._moved: dict[str, None] = {}
        self.arrivals: OrderedDict[str, Pending] = OrderedDict()
        """Every pending app by id, in the order of submission."""
        self.configure("dominant-share", "longest-wait", "fifo", "requested")

    def configure(self, company_policy: str, user_policy: str, app_policy: str, occupancy: str) -> None:
        """Order by these policies from now on."""
        self._company_key = COMPANY_POLICIES[company_policy]
        self._user_key = USER_POLICIES[user_policy]
        self._app_key = APP_POLICIES[app_policy]
        self._occupancy = occupancy
        for name, company in self.companies.items():
            for user, queue in company.users.items():
                queue.by_policy = sorted((self._app_key(app.kind, app.submitted), app) for _, app in queue.by_policy)
                self.touch(name, user)

    def add_company(self, name: str, balance: Balance) -> None:
        """A company whose users may queue apps from now on."""
        self.companies[name] = CompanyQueue(balance)

    def remove_company(self, name: str) -> None:
        """Forget a company that has no pending app."""
        self._take_out_of_order(self.companies.pop(name))
        self._moved.pop(name, None)

    def set_quota(self, name: str, quota: Quota, *, stops_idle: bool) -> None:
        """The company's cap and the base of its share from now on (semantics C2)."""
        company = self.companies[name]
        if company.quota != quota or company.stops_idle != stops_idle:
            company.quota, company.stops_idle = quota, stops_idle
            self._moved[name] = None

    def share(self, name: str) -> Share:
        """The company's share of its quota (semantics C3, O3)."""
        company = self.companies[name]
        return company.quota.share_of(*company.balance.occupied(self._occupancy))

    def push(self, app: Pending) -> None:
        """Queue an app for its user."""
        users = self.companies[app.company].users
        queue = users.get(app.user)
        if queue is None:
            queue = users[app.user] = UserQueue()
        insort(queue.by_policy, (self._app_key(app.kind, app.submitted), app))
        insort(queue.by_submission, app.submitted)
        self.arrivals[app.app] = app
        self.touch(app.company, app.user)

    def remove(self, app: Pending) -> None:
        """Take an app out of its user's queue."""
        queue = self.companies[app.company].users[app.user]
        del queue.by_policy[bisect_left(queue.by_policy, (self._app_key(app.kind, app.submitted), app))]
        del queue.by_submission[bisect_left(queue.by_submission, app.submitted)]
        del self.arrivals[app.app]
        self.touch(app.company, app.user)

    def restate(self, app: Pending, request: Resources) -> Pending:
        """The app with what it requests now, in its old place."""
        restated = app._replace(request=request)
        queue = self.companies[app.company].users[app.user]
        key = self._app_key(app.kind, app.submitted)
        queue.by_policy[bisect_left(queue.by_policy, (key, app))] = key, restated
        self.arrivals[app.app] = restated
        self.touch(app.company, app.user)
        return restated

    def admit(self, app: Pending, position: int) -> None:
        """Take an app out because its company and user had their turn, at this log position (semantics C3, U1)."""
        company = self.companies[app.company]
        company.last_selected = company.users[app.user].last_selected = position
        self.remove(app)

    def touch(self, company: str, user: str) -> None:
        """Something that the policies look at changed for this user and so for the company."""
        self.companies[company].moved[user] = None
        self._moved[company] = None

    def first(self) -> Pending | None:
        """The app to admit next: of the first company that takes part, its first user's head (semantics C, U, F)."""
        if self._moved:
            self._settle()
        if not self._order:
            return None
        company = self.companies[self._order[0][-1]]
        return company.users[company.turn].by_policy[0][1]

    def oldest(self) -> Pending | None:
        """The app that was submitted first, whoever's it is (semantics A6)."""
        return next(iter(self.arrivals.values()), None)

    def _settle(self) -> None:
        for name in self._moved:
            company = self.companies[name]
            for user in company.moved:
                self._settle_user(company, user)
            company.moved.clear()
            self._settle_company(name, company)
        self._moved.clear()

    def _settle_user(self, company: CompanyQueue, user: str) -> None:
        queue = company.users[user]
        placed: tuple[Resources, UserKey] | None = None
        if queue.by_policy:
            request = queue.by_policy[0][1].request
            placed = request, self._user_key(user, queue.last_selected, queue.by_submission[0])
        if placed == queue.placed:
            return
        if queue.placed is not None:
            request, key = queue.placed
            peers = company.heads[request]
            if len(peers) == 1:
                del company.heads[request]
            else:
                del peers[bisect_left(peers, key)]
        if placed is not None:
            request, key = placed
            insort(company.heads.setdefault(request, []), key)
        queue.placed = placed

    def _settle_company(self, name: str, company: CompanyQueue) -> None:
        self._take_out_of_order(company)
        user = company.first_user()
        if user is not None:
            company.turn = user
            company.placed = self._company_key(
                name, company.balance, company.quota, company.last_selected, self._occupancy
            )
            insort(self._order, company.placed)

    def _take_out_of_order(self, company: CompanyQueue) -> None:
        if company.placed is not None:
            del self._order[bisect_left(self._order, company.placed)]
            company.placed = None
