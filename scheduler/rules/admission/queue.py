"""Pending apps in the order of admission: Map<company, Map<user, queue>> [0], updated at every event.

Only the first app of a user's queue (its *head*, semantics F) can be admitted. Whether it is within its company's quota
(C4) depends on its request alone, so a company's users are grouped by the requests of their heads, and each group is in
the order of the user policy. The first user within the quota is found by looking at one user a distinct request.
`quota` decides which apps pass and which are held back.

Changes only mark companies and users; the order of the marked ones is restored when the next app is requested. As in
`fleet`, ordered lists are kept by `bisect`. Two policies also order by time, and no list keeps such an order. Under
`pay-as-you-go`, each company that takes part is ordered again once a turn. Under `balanced`, each user of the selected
company within the quota is compared for each admission. Both grow with companies or users, not with apps or workers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from scheduler.model.events import ClusterConfigured
from scheduler.model.resources import NOTHING, Quota, Resources, Share
from scheduler.rules.admission.app import APP_POLICIES, AppKey
from scheduler.rules.admission.company import COMPANY_POLICIES, CompanyKey, Tenant
from scheduler.rules.admission.policy import Basis
from scheduler.rules.admission.quota import Pending, QuotaLimit, Reservation
from scheduler.rules.admission.user import USER_POLICIES, Contender, UserKey
from scheduler.rules.ledger import Balance, Usage


@dataclass(slots=True)
class UserQueue:
    """One user's pending apps that are ready, by the app policy and by the time since when they are."""

    contender: Contender
    by_policy: list[tuple[AppKey, Pending]] = field(default_factory=list)
    by_readiness: list[tuple[int, int]] = field(default_factory=list)
    """When they became ready: log position, time in ms."""
    head: Pending | None = None
    placed: tuple[Resources, UserKey] | None = None


@dataclass(slots=True)
class CompanyQueue:
    """One company's users with pending apps, its quota, and what the company policy compares."""

    tenant: Tenant
    limit: QuotaLimit
    users: dict[str, UserQueue] = field(default_factory=dict)
    order: dict[Resources, list[UserKey]] = field(default_factory=dict)
    """Users by the requests of their heads, in the order of the user policy."""
    moved: dict[str, None] = field(default_factory=dict)
    all_moved: bool = False
    placed: CompanyKey | None = None


class AppQueue:
    """The pending apps of all companies; `first` is the next to admit."""

    def __init__(self) -> None:
        self.companies: dict[str, CompanyQueue] = {}
        self.borrowers: dict[str, None] = {}
        """The companies that may pass their quota while no other takes part (semantics C6)."""
        self._order: list[CompanyKey] = []
        self._ordered_at = 0
        self._moved: dict[str, None] = {}
        self.basis = Basis()
        self.changed: dict[str, None] = {}
        """The companies whose held-back apps may have changed since their reservation times were last read."""
        self.arrivals: OrderedDict[str, Pending] = OrderedDict()
        """Every pending app that is ready, by id, in the order in which they became ready."""
        self.configure(ClusterConfigured())

    def configure(self, settings: ClusterConfigured) -> None:
        """Order by the policies of these settings."""
        companies, users = COMPANY_POLICIES[settings.company_policy], USER_POLICIES[settings.user_policy]
        self._company_key, self._companies_drift = companies.rank, companies.drifts
        self._user_key, self._users_drift, self._users_regard_quota = users.rank, users.drifts, users.regards_quota
        self._rank, self._step_ms = APP_POLICIES[settings.app_policy].rank, settings.priority_step_s * 1000
        self._delay_ms = settings.quota_patience_s * 1000
        self.basis.occupancy, self.basis.half_life_ms = settings.occupancy, settings.half_life_s * 1000
        for name, company in self.companies.items():
            for user, queue in company.users.items():
                queue.by_policy = sorted((self._rank(app, self._step_ms), app) for _, app in queue.by_policy)
                self._set_head(company, queue)
                self.touch(name, user)
        self.changed |= dict.fromkeys(self.companies)

    def reservation_due(self, company: str) -> int | None:
        """The time (ms) of the company's next reservation (semantics C7); None if there is none."""
        known = self.companies.get(company)
        since = None if known is None else known.limit.held_longest()
        return None if since is None else since + self._delay_ms + 1

    def to_reserve(self, company: str, at: int) -> list[str]:
        """The company's apps that are held back longer than the patience at `at` (ms) (semantics C7)."""
        held = self.companies[company].limit.held()
        return [app.app for since, app in held if since + self._delay_ms < at]

    def reserve(self, app: Pending) -> None:
        """Reserve the company's room for the app (semantics C7)."""
        self.companies[app.company].limit.reserve(app)
        self._note(app.company)

    def add_company(self, name: str, balance: Balance, usage: Usage, *, last_selected: int = 0) -> None:
        """Add a company whose users may queue apps."""
        tenant = Tenant(name, balance, usage, last_selected=last_selected)
        self.companies[name] = CompanyQueue(tenant, QuotaLimit(tenant))

    def add_user(self, company: str, user: Contender) -> None:
        """Add a user who queued apps before; `push` adds new ones."""
        self.companies[company].users[user.user] = UserQueue(user)

    def hold_back(self, apps: Iterable[tuple[str, int, bool]]) -> None:
        """Restore (app, held back since in ms, whether room is reserved), as `held_back` returned them."""
        since: dict[str, int] = {}
        reserved: dict[str, list[Reservation]] = {}
        for name, at, reserving in apps:
            app = self.arrivals[name]
            if reserving:
                reserved.setdefault(app.company, []).append((at, app.submitted, app))
            else:
                since[name] = at
        for name, company in self.companies.items():
            heads = [queue.head for queue in company.users.values() if queue.head is not None]
            company.limit.hold_back(heads, since, reserved.get(name, []))
        self.changed |= dict.fromkeys(self.companies)

    def remove_company(self, name: str) -> None:
        """Forget a company that has no pending app."""
        self._take_out_of_order(self.companies.pop(name))
        self._moved.pop(name, None)
        self.changed[name] = None
        self.borrowers.pop(name, None)

    def set_quota(self, name: str, quota: Quota, *, stops_idle: bool, borrow: bool = False) -> None:
        """Set the company's quota and whether it may borrow (semantics C2, C6)."""
        company = self.companies[name]
        self.borrowers.pop(name, None)
        if borrow:
            self.borrowers[name] = None
        if company.tenant.quota != quota or company.limit.stops_idle != stops_idle:
            company.tenant.quota, company.limit.stops_idle = quota, stops_idle
            company.all_moved = True
            company.limit.review(self.basis.at)
            self._note(name)

    def share(self, name: str) -> Share:
        """The company's share of its quota (semantics C3, O3)."""
        tenant = self.companies[name].tenant
        return tenant.quota.share_of(tenant.balance.occupied(self.basis.occupancy))

    def push(self, app: Pending, balance: Balance) -> None:
        """Queue an app for its user with the ledger `balance`."""
        company = self.companies[app.company]
        queue = company.users.get(app.user)
        if queue is None:
            queue = company.users[app.user] = UserQueue(Contender(app.user, balance))
        insort(queue.by_policy, (self._rank(app, self._step_ms), app))
        insort(queue.by_readiness, (app.ready, app.ready_at))
        self.arrivals[app.app] = app
        self._set_head(company, queue)
        company.moved[app.user] = None
        self._note(app.company)

    def remove(self, app: Pending) -> None:
        """Take an app out of its user's queue."""
        company = self.companies[app.company]
        queue = company.users[app.user]
        del queue.by_policy[bisect_left(queue.by_policy, (self._rank(app, self._step_ms), app))]
        del queue.by_readiness[bisect_left(queue.by_readiness, (app.ready, app.ready_at))]
        del self.arrivals[app.app]
        self._set_head(company, queue)
        if company.limit.reservations:
            company.limit.release(app.app)
        company.moved[app.user] = None
        self._note(app.company)

    def restate(self, app: Pending, request: Resources) -> Pending:
        """The app with its new request, in the same place; its time held back starts again (semantics C7)."""
        restated = app._replace(request=request)
        company = self.companies[app.company]
        queue = company.users[app.user]
        key = self._rank(app, self._step_ms)
        company.limit.release(app.app)
        queue.by_policy[bisect_left(queue.by_policy, (key, app))] = key, restated
        self.arrivals[app.app] = restated
        self._set_head(company, queue)
        self.touch(app.company, app.user)
        return restated

    def reprioritize(self, app: Pending, priority: int) -> Pending:
        """The app with its new priority, in its new place (semantics Q1)."""
        moved = app._replace(priority=priority)
        company = self.companies[app.company]
        queue = company.users[app.user]
        del queue.by_policy[bisect_left(queue.by_policy, (self._rank(app, self._step_ms), app))]
        insort(queue.by_policy, (self._rank(moved, self._step_ms), moved))
        self.arrivals[app.app] = moved
        company.limit.reprioritize(app, moved)
        if queue.head is app:
            queue.head = moved
        self._set_head(company, queue)
        company.moved[app.user] = None
        self._note(app.company)
        return moved

    def admit(self, app: Pending, position: int) -> None:
        """Remove an app that is admitted at this log position; its company and user had their turn (C3, U1)."""
        company = self.companies[app.company]
        contender = company.users[app.user].contender
        company.tenant.last_selected = contender.last_selected = position
        contender.last_selected_at = self.basis.at
        self.remove(app)
        company.limit.review(self.basis.at)

    def touch(self, company: str, user: str) -> None:
        """Mark a user and company whose ledgers or requests have changed."""
        queue = self.companies[company]
        queue.moved[user] = None
        queue.limit.review(self.basis.at)
        self._note(company)

    def first(self, *, within_quota: bool = False) -> Pending | None:
        """The app to admit next: the head of the first user of the first company that takes part (semantics C, U, F).

        If no other company takes part, a company that borrows has no quota (C6), unless `within_quota`. Example, 16
        cores, 8 each for a and b: a borrows and holds all 16 with four apps of 4. An app of b with 8 waits until an
        executor of a ends. The 4 cores that a then requests above its quota without holding them do not delay b: its
        app enters, gets them and the next 4 that a releases. Later releases of a go to a's own apps again.
        """
        if self._companies_drift and self._ordered_at != self.basis.at:
            self._moved.update((key[-1], None) for key in self._order)
            self._ordered_at = self.basis.at
        if self._moved:
            self._reorder()
        order = self._order
        if self.borrowers and len(order) < 2 and not within_quota:
            takes_part = order[0][-1] if order else None
            free = [name for name in self.borrowers if takes_part in (None, name) and self.companies[name].order]
            if free:
                keys = (self._company_key(self.companies[name].tenant, self.basis) for name in free)
                return self._next_of(min(keys)[-1], within_quota=False)
        return self._next_of(order[0][-1], within_quota=True) if order else None

    def may_return(self) -> Resources:
        """What borrowers request above their quotas and do not hold (semantics C6)."""
        unheld = NOTHING
        for name in self.borrowers:
            bought, has = self.companies[name].tenant.quota, self.companies[name].tenant.balance
            unheld += (has.requested - bought.in_whole().at_least(has.granted)).at_least(NOTHING)
        return unheld

    def holds_quota(self, name: str) -> bool:
        """Whether the company holds at least its quota of some kind."""
        quota, has = self.companies[name].tenant.quota, self.companies[name].tenant.balance
        return (has.granted * quota.denominator).reaches(quota.amount)

    def held_back(self) -> Iterator[tuple[str, int, bool]]:
        """(app, held back since in ms, whether room is reserved) of each app held back or reserved for (C7)."""
        for company in self.companies.values():
            yield from ((app.app, since, True) for since, _, app in company.limit.reservations)
            yield from ((app.app, since, False) for since, app in company.limit.held())

    def _set_head(self, company: CompanyQueue, queue: UserQueue) -> None:
        head = queue.by_policy[0][1] if queue.by_policy else None
        if head is queue.head:
            return
        if queue.head is not None:
            company.limit.leave(queue.head)
        if head is not None:
            company.limit.enter(head, self.basis.at)
        queue.head = head

    def _note(self, company: str) -> None:
        """Mark the company: its place in the order or its next reservation may have changed."""
        self._moved[company] = None
        self.changed[company] = None

    def oldest(self) -> Pending | None:
        """The pending app that became ready first (semantics A6)."""
        return next(iter(self.arrivals.values()), None)

    def _reorder(self) -> None:
        for name in self._moved:
            company = self.companies[name]
            for user in company.users if company.all_moved and self._users_regard_quota else company.moved:
                self._reorder_user(company, company.users[user])
            company.moved.clear()
            company.all_moved = False
            self._take_out_of_order(company)
            if company.limit.lets_through():
                company.placed = self._company_key(company.tenant, self.basis)
                insort(self._order, company.placed)
        self._moved.clear()

    def _reorder_user(self, company: CompanyQueue, queue: UserQueue) -> None:
        placed: tuple[Resources, UserKey] | None = None
        if queue.head is not None:
            contender, contender.request = queue.contender, queue.head.request
            contender.oldest, contender.oldest_at = queue.by_readiness[0]
            placed = contender.request, self._user_key(contender, company.tenant.quota, self.basis)
        if placed == queue.placed:
            return
        if queue.placed is not None:
            request, key = queue.placed
            peers = company.order[request]
            if len(peers) == 1:
                del company.order[request]
            else:
                del peers[bisect_left(peers, key)]
        if placed is not None:
            request, key = placed
            insort(company.order.setdefault(request, []), key)
        queue.placed = placed

    def _next_of(self, name: str, *, within_quota: bool) -> Pending | None:
        """The company's next app: the reserved one, else its first user's (semantics C7, U1, U2)."""
        company = self.companies[name]
        if company.limit.reservations and (reserver := company.limit.reserver()) is not None:
            return reserver
        order, groups = company.order, company.limit.groups
        if len(order) == 1 and not self._users_drift:
            (users,) = order.values()
            return company.users[users[0][-1]].head
        passing = [users for request, users in order.items() if not within_quota or groups[request].passes]
        if self._users_drift:
            keys = [
                self._user_key(company.users[key[-1]].contender, company.tenant.quota, self.basis)
                for users in passing
                for key in users
            ]
        else:
            keys = [users[0] for users in passing]
        return company.users[min(keys)[-1]].head

    def _take_out_of_order(self, company: CompanyQueue) -> None:
        if company.placed is not None:
            del self._order[bisect_left(self._order, company.placed)]
            company.placed = None
