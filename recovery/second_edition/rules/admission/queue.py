"""Pending apps in the order of admission: Map<company, Map<user, queue>> [0], updated at every event.

Only the app that a user's queue would give next (its *head*, semantics F) can be admitted, and whether it may be
depends on its request and on what it needs of a worker alone: its *ask*. So a user's apps are kept together by their
asks, and a company's users by the asks of their heads, each group in the order of its policy: however many apps or
users wait behind a quota, the first one that passes is found by looking at one of each distinct ask.

A user has two heads: the first app that fits its company's quota by itself, and the first one at all, which counts
while the company may borrow (semantics C4, C6). An app that no live worker can host is neither (N3).

For the order, changes only mark what they concern; it is restored for the marked ones when somebody asks
who is next. As in `fleet`, the ordered lists are plain ones kept by `bisect`. Two policies order by
time too, and no list can be kept in such an order: under `pay-as-you-go` each company with a head is placed anew once
a turn, under `balanced` each user of the selected company whose head may enter is looked at for each admission. Both
grow with companies or users, neither with apps or workers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heapreplace, merge
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from recovery.second_edition.rules.admission.app import APP_POLICIES
from recovery.second_edition.rules.admission.company import COMPANY_POLICIES, CompanyKey, Tenant
from recovery.second_edition.rules.admission.limits import Limits
from recovery.second_edition.rules.admission.line import Arrivals, Line
from recovery.second_edition.rules.admission.parts import Parts
from recovery.second_edition.rules.admission.policy import Basis
from recovery.second_edition.rules.admission.quota import QuotaLimit, Reservation
from recovery.second_edition.rules.admission.user import USER_POLICIES, Contender, UserKey
from recovery.second_edition.rules.entities import App, Need
from recovery.second_edition.rules.ledger import Balance, Standing, Usage
from recovery.second_edition.rules.turns import Turns
from scheduler.model.events import ClusterConfigured
from scheduler.model.quota import Quota, Share
from scheduler.model.resources import NOTHING, Resources

if TYPE_CHECKING:
    from recovery.second_edition.rules.timers import What

LAPSES_AFTER = 10
"""After how many times `quota_patience_s` a reservation lapses (semantics C7)."""


class Ask(NamedTuple):
    """What apps have in common that enter under the same conditions."""

    request: Resources
    need: Need


_asking: Final = partial(tuple.__new__, Ask)
K = TypeVar("K")
Heads = tuple[Ask | None, Ask | None]
"""The asks of a user's two heads: of the one that fits the quota by itself, and of the first one at all."""
Test = Callable[[Ask], bool]
"""Whether an app of that ask may enter now."""


_READIED = attrgetter("ready_position")


@dataclass(slots=True)
class UserQueue:
    """One user's pending apps that are ready: by what they ask in the order of the app policy, and by readiness."""

    contender: Contender
    by_ask: dict[Ask, Line] = field(default_factory=dict)
    by_readiness: Line = field(default_factory=lambda: Line(key=_READIED))
    head: App | None = None
    """The first one that fits the company's quota by itself."""
    first: App | None = None
    """The first one at all."""
    heads: Heads = (None, None)
    """What the two ask."""
    foremost: tuple[App | None, App | None] = (None, None)
    """The two, be they kept out now by a limit or not (semantics N2)."""
    placed: tuple[Heads, UserKey] | None = None

    @property
    def by_policy(self) -> list[App]:
        """All of them in the order of the app policy."""
        lines = [*self.by_ask.values()]
        return [*merge(*lines, key=lines[0].key)] if lines else []

    def in_order(self, shut: Callable[[Ask], bool]) -> Iterator[App]:
        """The same one at a time, without those that ask what is `shut` by the time that their turn comes."""
        fronts = [
            (line.key(line.items[line.begin]), number, 0)  # type: ignore[misc]  # lines of apps have a key
            for number, line in enumerate(self.by_ask.values())
        ]
        asks, lines = list(self.by_ask), list(self.by_ask.values())
        heapify(fronts)
        while fronts:
            _, number, index = fronts[0]
            line = lines[number]
            if shut(asks[number]):
                heappop(fronts)
                continue
            at = line.begin + index
            app = line.items[at]
            if at + 1 < len(line.items):
                heapreplace(fronts, (line.key(line.items[at + 1]), number, index + 1))  # type: ignore[misc]
            else:
                heappop(fronts)
            yield app


@dataclass(slots=True)
class CompanyQueue:
    """One company's users with pending apps, its quota as a limit, and what the company policy needs to know of it."""

    tenant: Tenant
    limit: QuotaLimit
    users: dict[str, UserQueue] = field(default_factory=dict)
    asks: dict[Ask, dict[str, None]] = field(default_factory=dict)
    """What its pending apps ask, and which users have such an app."""
    order: dict[Heads, list[UserKey]] = field(default_factory=dict)
    """Users by the asks of their heads, in the order of the user policy."""
    moved: dict[str, None] = field(default_factory=dict)
    all_moved: bool = False
    placed: CompanyKey | None = None
    borrows: bool = False
    """Whether it may pass its quota while no other company has an app within its own (semantics C6)."""
    admitted: int = 0
    """How many apps it has in waitingApps."""
    reserved: dict[str, int] = field(default_factory=dict)
    """App -> since when (ms) room is reserved for it."""
    passes: bool = False
    """Whether an app of it passes its quota (semantics C4)."""
    active: Quota | None = None
    """Its quota as it counts in the sum of the active ones; None while it is not active (semantics C8)."""
    part: Resources = NOTHING
    part_version: int = -1
    timed: bool = False
    """Whether any of its apps was held back or had a reservation when that was last asked."""
    limits: Limits | None = None
    """The limits, if anybody has any (semantics N1)."""
    to_recheck: dict[str, None] = field(default_factory=dict)
    """Users whose limits are to be compared again."""
    passed_over: dict[Ask, None] = field(default_factory=dict)
    """What its pending apps ask that the company's limits keep out now (semantics N2)."""

    def asking(self) -> dict[str, UserQueue]:
        """Its users that have pending apps which are ready."""
        return {user: self.users[user] for users in self.asks.values() for user in users}


class AppQueue:
    """The pending apps of all companies; `first` is the next to admit."""

    def __init__(self) -> None:
        self.companies: dict[str, CompanyQueue] = {}
        self.parts = Parts()
        self._order: list[CompanyKey] = []
        """The companies that have a head, in the order of the company policy."""
        self._ordered_at = 0
        self._moved: dict[str, None] = {}
        self._taking: dict[str, None] = {}
        """The companies with an app that passes their quota, or with a reservation where nothing is reclaimed."""
        self._idle_borrowers: dict[str, None] = {}
        """The companies that may borrow, have a head and no app in waitingApps: active while they borrow."""
        self.to_review: dict[str, CompanyQueue] = {}
        """The companies whose claims may have changed by the event that is folded now."""
        self._uncertain = False
        """Whether other companies may be active than when the order was last brought up to date."""
        self._within: dict[str, None] = {}
        """The companies of which an app may keep them within their part."""
        self._within_version = -1
        """The version of the parts that this regards."""
        self.lapsed: dict[str, int] = {}
        """Pending app -> log position at which its reservation lapsed."""
        self.basis = Basis()
        self.changed: dict[str, None] = {}
        """The companies whose held-back apps may have changed since their reservation times were last read."""
        self.arrivals = Arrivals()
        """Every pending app that is ready, by id, in the order in which they became ready."""
        self.configure(ClusterConfigured())

    def configure(self, settings: ClusterConfigured) -> None:
        """Order by the policies of these settings."""
        companies, users = COMPANY_POLICIES[settings.company_policy], USER_POLICIES[settings.user_policy]
        self._company_key, self._companies_drift = companies.rank, companies.drifts
        self._user_key, self._users_drift, self._users_regard_quota = users.rank, users.drifts, users.regards_quota
        self._place = partial(APP_POLICIES[settings.app_policy].rank, step_ms=settings.priority_step_s * 1000)
        self._delay_ms = settings.quota_patience_s * 1000
        self._reservations_count = settings.reclaim == "none"
        self.basis.occupancy, self.basis.half_life_ms = settings.occupancy, settings.half_life_s * 1000
        for name, company in self.companies.items():
            for user, queue in company.users.items():
                for ask, apps in queue.by_ask.items():
                    queue.by_ask[ask] = Line(apps, key=self._place)
                self._set_heads(company, queue)
                self.touch(name, user)
                company.moved[user] = None
            company.all_moved = True
            self._note(name, company)

    def set_cluster(self, total: Resources, smallest: Resources) -> None:
        """What the live workers offer together, and the minimum executor (semantics C8)."""
        self.parts.set_cluster(total, smallest)

    def moments(self, name: str) -> list[tuple[int, What]]:
        """When (ms) the company's next reservation is due, and when the next one lapses (semantics C7)."""
        company = self.companies.get(name)
        if company is None:
            return []
        found: list[tuple[int, What]] = []
        if (since := company.limit.held_longest(self._barred(company))) is not None:
            found.append((since + self._delay_ms + 1, "reservation"))
        if company.reserved and self._delay_ms:
            found.append((min(company.reserved.values()) + LAPSES_AFTER * self._delay_ms, "lapse"))
        company.timed = bool(found)
        return found

    def to_reserve(self, name: str, at: int) -> list[str]:
        """The company's apps that have been held back for too long by `at` (ms), the longest first (semantics C7).

        Not one whose reservation lapsed while an app of another user still waits that was submitted before.
        """
        company = self.companies[name]
        held = sorted([(since, app.submitted, app) for since, app in company.limit.held()])
        due = [app for since, _, app in held if since + self._delay_ms < at]
        barred = self._barred(company)
        return [app.id for app in due if not barred(app)]

    def _barred(self, company: CompanyQueue) -> Callable[[App], bool]:
        """Whether the reservation of an app of the company lapsed and may not be renewed yet (semantics C7)."""
        first: list[tuple[int, str]] = []

        def barred(app: App) -> bool:
            lapsed = self.lapsed.get(app.id)
            if lapsed is None:
                return False
            if not first:
                lines = [(user, queue.by_readiness) for user, queue in company.users.items() if queue.by_readiness]
                first.extend(sorted([(line.items[line.begin].ready_position, user) for user, line in lines])[:2])
            return any(position < lapsed for position, user in first if user != app.spec.user)

        return barred

    def to_lapse(self, name: str, at: int) -> list[str]:
        """The company's apps whose reservation has lasted too long by `at` (ms) (semantics C7)."""
        reserved = self.companies[name].reserved if self._delay_ms else {}
        due = [(since, app) for app, since in reserved.items() if since + LAPSES_AFTER * self._delay_ms <= at]
        return [app for _, app in sorted(due)]

    def recall(self, app: App, reserved_at: int, lapsed: int) -> None:
        """Restore since when (ms) room is reserved for a pending app, and at which position that lapsed; 0 = not."""
        company = self.companies[app.spec.company]
        if reserved_at:
            company.reserved[app.id] = reserved_at
        if lapsed:
            self.lapsed[app.id] = lapsed

    def reserve(self, app: App, at: int) -> None:
        """Its company's room is reserved for the app from `at` (ms) on (semantics C7)."""
        name = app.spec.company
        company = self.companies[name]
        company.limit.reserve(app)
        company.reserved[app.id] = at
        self._note(name, company)

    def lapse(self, app: App, position: int) -> None:
        """At this log position the app's reservation ends without its admission (semantics C7)."""
        name = app.spec.company
        company = self.companies[name]
        company.limit.lapse(app, self.basis.at, is_head=company.users[app.spec.user].head is app)
        del company.reserved[app.id]
        self.lapsed[app.id] = position
        self._note(name, company)

    def has_head(self, name: str) -> bool:
        """Whether the company has a head that no limit keeps out, or an app with a reservation (semantics L6)."""
        self._settle()
        company = self.companies[name]
        which = int(self._borrows_now(name, company))
        return bool(company.limit.reservations) or any(heads[which] is not None for heads in company.order)

    def add_company(
        self, name: str, balance: Balance, usage: Usage, *, last_selected: int = 0, standing: Standing | None = None
    ) -> None:
        """A company whose users may queue apps from now on."""
        tenant = Tenant(name, balance, usage, last_selected=last_selected, standing=standing or Standing())
        self.companies[name] = CompanyQueue(tenant, QuotaLimit(tenant))

    def add_user(self, company: str, user: Contender) -> None:
        """Add a user who queued apps before; `push` adds new ones."""
        self.companies[company].users[user.user] = UserQueue(user)

    def hold_back(self, apps: Iterable[tuple[str, int, bool]]) -> None:
        """Restore (app, held back since in ms, whether room is reserved), as `held_back` returned them."""
        self.review()
        since: dict[str, int] = {}
        reserved: dict[str, list[Reservation]] = {}
        for name, at, reserving in apps:
            app = self.arrivals[name]
            if reserving:
                reserved.setdefault(app.spec.company, []).append((at, app.submitted, app))
            else:
                since[name] = at
        for name, company in self.companies.items():
            heads = [queue.head for queue in company.users.values() if queue.head is not None]
            company.limit.hold_back(heads, since, reserved.get(name, []))
        self.changed |= dict.fromkeys(self.companies)

    def remove_company(self, name: str) -> None:
        """Forget a company that has no pending app."""
        company = self.companies.pop(name)
        self._take_out_of_order(company)
        if company.active is not None:
            self.parts.remove(company.active)
        self._moved.pop(name, None)
        self._within.pop(name, None)
        self._taking.pop(name, None)
        self._idle_borrowers.pop(name, None)
        self._moved.update(self._idle_borrowers)
        self.to_review.pop(name, None)
        self.changed[name] = None

    def set_quota(self, name: str, quota: Quota, *, stops_idle: bool, borrow: bool = False) -> None:
        """Set the company's quota and whether it may borrow (semantics C2, C6)."""
        company = self.companies[name]
        tenant, limit = company.tenant, company.limit
        self._uncertain = True
        if company.borrows != borrow:
            company.borrows = borrow
            self._note(name, company)
        if tenant.quota != quota or limit.stops_idle != stops_idle:
            fitted = {ask: limit.fits_alone(ask.request) for ask in company.asks}
            tenant.quota, limit.stops_idle = quota, stops_idle
            company.all_moved = True
            company.part_version = -1
            limit.review(self.basis.at)
            self._rejudge(company, [ask for ask, fits in fitted.items() if fits != limit.fits_alone(ask.request)])
            self._note(name, company)

    def rejudge(self, need: Need) -> None:
        """Live workers that are large enough for apps of that need came or went (semantics N3)."""
        for name, company in self.companies.items():
            self._rejudge(company, [ask for ask in company.asks if ask.need is need])
            self._note(name, company)

    def _rejudge(self, company: CompanyQueue, asks: Iterable[Ask]) -> None:
        """Whether apps of those asks can be heads is another answer."""
        for user in {user: None for ask in asks for user in company.asks[ask]}:
            self._set_heads(company, company.users[user])
            company.moved[user] = None

    def share(self, name: str) -> Share:
        """The company's share of its quota (semantics C3, O3)."""
        tenant = self.companies[name].tenant
        return tenant.quota.share_of(tenant.standing.occupied(tenant.balance, self.basis.occupancy))

    def push(self, app: App) -> None:
        """Queue an app, the last one to become ready, for its user."""
        spec = app.spec
        name, user = spec.company, spec.user
        company = self.companies[name]
        queue = company.users.get(user) or self._queue_of(app)
        ask = ask_of(app)
        apps = queue.by_ask.get(ask)
        if apps is None:
            apps = queue.by_ask[ask] = Line(key=self._place)
            self._add_ask(company, ask, user)
        apps.add(app)
        queue.by_readiness.append(app)
        self.arrivals[app.id] = app
        if apps.items[apps.begin] is app and not self._is_behind(company, queue, app):  # else the heads are as before
            self._set_heads(company, queue)
            company.moved[user] = None
            self._note(name, company)

    def push_all(self, apps: Iterable[App]) -> None:
        """Queue all that are ready, in the order in which they became it, where none was queued: as `push` of each."""
        queues: dict[tuple[str, str], list[App]] = {}
        for app in apps:
            holder = app.spec.company, app.spec.user
            theirs = queues.get(holder)
            if theirs is None:
                theirs = queues[holder] = []
                self._queue_of(app)
            theirs.append(app)
            self.arrivals[app.id] = app
        for (name, user), theirs in queues.items():
            company = self.companies[name]
            queue = company.users[user]
            by_ask: dict[Ask, list[App]] = {}
            for app in theirs:
                by_ask.setdefault(ask_of(app), []).append(app)
            for ask, alike in by_ask.items():
                queue.by_ask[ask] = Line(alike, key=self._place)
                self._add_ask(company, ask, user)
            queue.by_readiness = Line(theirs, key=_READIED)
            self._set_heads(company, queue)
            company.moved[user] = None
            self._note(name, company)

    def _queue_of(self, app: App) -> UserQueue:
        """That of the app's user."""
        company, user = self.companies[app.spec.company], app.spec.user
        queue = company.users.get(user)
        if queue is None:
            contender = Contender(user, app.accounts[2], standing=app.standings[2])
            queue = company.users[user] = UserQueue(contender)
            self._set_ceiling(company, contender)
        return queue

    def remove(self, app: App) -> None:
        """Take an app out of its user's queue."""
        company = self.companies[app.spec.company]
        self._remove(company, company.users[app.spec.user], app)

    def _remove(self, company: CompanyQueue, queue: UserQueue, app: App) -> None:
        self._take_out(company, queue, app, ask_of(app))
        queue.by_readiness.remove(app)
        self.arrivals.leave(app.id)
        if app in queue.foremost or not queue.by_ask:
            self._set_heads(company, queue)
        if company.limit.reservations:
            self._release(company, app)
        if self.lapsed:
            self.lapsed.pop(app.id, None)
        spec = app.spec
        company.moved[spec.user] = None
        self._note(spec.company, company)

    def _release(self, company: CompanyQueue, app: App) -> None:
        """The app waits no more, or for something else."""
        company.limit.release(app.id)
        company.reserved.pop(app.id, None)

    def _take_out(self, company: CompanyQueue, queue: UserQueue, app: App, ask: Ask) -> None:
        apps = queue.by_ask[ask]
        if len(apps) > 1:
            apps.remove(app)
            return
        del queue.by_ask[ask]
        users = company.asks[ask]
        del users[app.spec.user]
        if not users:
            del company.asks[ask]
            company.passed_over.pop(ask, None)

    def _add_ask(self, company: CompanyQueue, ask: Ask, user: str) -> None:
        users = company.asks.get(ask)
        if users is not None:
            users[user] = None
            return
        company.asks[ask] = {user: None}
        if company.limits is not None:
            _mark(company.passed_over, ask, marked=company.limit.passes_over(ask.request))

    def restate(self, app: App, before: Ask) -> None:
        """The app, which asked that before, keeps its place among its user's.

        With another request it has waited behind the quota for nothing (C7); what it needs of a worker changes no wait.
        """
        name, user, ask = app.spec.company, app.spec.user, ask_of(app)
        company = self.companies[name]
        queue = company.users[user]
        self._take_out(company, queue, app, before)
        queue.by_ask.setdefault(ask, Line(key=self._place)).add(app)
        self._add_ask(company, ask, user)
        if ask.request != before.request:
            if queue.head is app:
                company.limit.leave(app, before.request)
                queue.head = None
            self._release(company, app)
        self._set_heads(company, queue)
        company.moved[user] = None
        self.touch(name, user)

    def reprioritize(self, app: App, priority: int) -> None:
        """The app gets that priority, and its new place among its user's (semantics Q1)."""
        name, user = app.spec.company, app.spec.user
        company = self.companies[name]
        queue = company.users[user]
        apps = queue.by_ask[ask_of(app)]
        apps.remove(app)
        app.priority = priority
        apps.add(app)
        self._set_heads(company, queue)
        company.moved[user] = None
        self._note(name, company)

    def admit(self, app: App, position: int) -> None:
        """Remove an app that is admitted at this log position; its company and user had their turn (C3, U1)."""
        name, user = app.spec.company, app.spec.user
        company = self.companies[name]
        queue = company.users[user]
        contender = queue.contender
        company.tenant.last_selected = contender.last_selected = position
        contender.last_selected_at = self.basis.at
        company.admitted += 1
        if company.active is None:
            self._uncertain = True
        self._remove(company, queue, app)
        if company.limit.groups or company.limits is not None:
            self.to_review[name] = company
            company.to_recheck[user] = None

    def leave(self, app: App, *, lower: bool = False) -> None:
        """An admitted app has ended; `lower` as for `touch`."""
        spec = app.spec
        self.companies[spec.company].admitted -= 1
        self.touch(spec.company, spec.user, lower=lower)

    def touch(self, company: str, user: str, *, lower: bool = False) -> None:
        """Mark a user and company whose ledgers or requests have changed; `lower`: its claim can only have fallen."""
        queue = self.companies[company]
        queue.moved[user] = None
        if queue.limits is not None:
            queue.to_recheck[user] = None
            self.to_review[company] = queue
        elif queue.limit.groups and (queue.limit.holding or not lower):
            self.to_review[company] = queue
        self._note(company, queue)

    def review(self) -> None:
        """Judge anew what passes the quotas of the companies whose claims have changed by an event, once it is folded.

        Not before: a claim that an event lowers and raises again lets nothing through.
        """
        for name, company in self.to_review.items():
            if company.limits is not None:
                self._recheck_limits(company)
            company.limit.review(self.basis.at)
            if company.limit.holding or company.timed:
                self.changed[name] = None
        self.to_review.clear()

    def part(self, name: str) -> Resources:
        """What the company is assured of its quota (semantics C8)."""
        self._settle()
        return self._part(self.companies[name])

    def parts_of_active(self) -> list[Resources]:
        """The part of each active company (semantics C8)."""
        self._settle()
        return [self._part(each) for each in self.companies.values() if each.active is not None]

    def reached(self, name: str) -> bool:
        """Whether the company has reached its part (semantics C8)."""
        return reached(self.companies[name].tenant.standing.held, self.part(name))

    def may_borrow(self, name: str) -> bool:
        """Whether the company may pass its quota now (semantics C6)."""
        self._settle()
        return self._borrows_now(name, self.companies[name])

    def passes(self, name: str, request: Resources) -> bool:
        """Whether the company may claim that much more now (semantics C4, C6)."""
        return self.companies[name].limit.admits(request) or self.may_borrow(name)

    def on_lent(self, app: App, *, full: bool, filling: bool) -> bool:
        """Whether the app may enter only because elastic apps of its company count with their least (semantics E7)."""
        company, request = self.companies[app.spec.company], app.requested
        standing, limit = company.tenant.standing, company.limit
        if standing.lent == NOTHING:
            return False
        if not (limit.admits(request, lent=False) or company.borrows):
            return True
        return full and not filling and not (self.part(app.spec.company) - standing.claimed).suffices_for(request)

    def next_within(self) -> App | None:
        """The app to admit next among those that keep their company within its part (semantics A3, C8, C, U, F)."""
        if not self.arrivals or (found := self._lone()) is not None:
            return found if self.arrivals else None
        self._settle()
        if self._within_version != self.parts.version:
            self._within_version = self.parts.version
            self._within.update((key[-1], None) for key in self._order)
        within = self._within
        for _, _, _, name in self._order if within else ():
            if name not in within:
                continue
            company = self.companies[name]
            keeps = self._keeps(company, self._part(company))
            if not any(map(keeps, company.asks)):
                del within[name]
            elif (found := self._first_of(name, company, keeps)) is not None:
                return found
        return None

    def _lone(self) -> App | None:
        """The only pending app if it may enter within the part of its company, told without settling the order.

        None where that takes more: where other apps are pending, room is reserved, or who is active is not known.
        """
        if len(self.arrivals) > 1 or self._uncertain:
            return None
        app: App = next(iter(self.arrivals.values()))
        company = self.companies[app.spec.company]
        limit, queue, borrows = company.limit, company.users[app.spec.user], company.borrows
        ask = queue.heads[borrows]
        if ask is None or limit.reservations or not company.admitted:
            return None
        if (borrows or limit.groups[ask.request].passes) and self._keeps(company, self._part(company))(ask):
            return app
        return None

    def first(self, room: Callable[[Resources], Test | None] = lambda _: _anybody) -> App | None:
        """The app to admit next: one that keeps its company within its part, else any that C4 or C6 lets pass (A3).

        The latter only if there is room for its ask where what is lent of its company's claims does not count (E7);
        None is no room for anybody.
        """
        within = self.next_within()
        if within is not None or not self.arrivals or not self._order:
            return within
        unlent = room(NOTHING)
        for _, _, _, name in self._order:
            company = self.companies[name]
            lent = company.tenant.standing.lent
            test = room(lent) if lent != NOTHING and (unlent is None or lent.others) else unlent
            if test is not None and (found := self._first_of(name, company, test)) is not None:
                return found
        return None

    def next_that(self, test: Test, *, able: Test | None = None) -> App | None:
        """The app to admit next among those that pass the test as well.

        With `able`, only apps of other companies that pass that keep a company from borrowing (semantics A9).
        """
        self._settle()
        for _, _, _, name in self._order:
            found = self._first_of(name, self.companies[name], test, able=able)
            if found is not None:
                return found
        return None

    def entering(self, apps: Iterable[App]) -> Iterator[App]:
        """Pending apps in the order in which they enter: by company, user, and the order of the user's apps (C, U, F).

        Each is admitted before the next is asked for. That changes the place of its company and its user alone.
        """
        self._settle()
        turns = Turns(
            apps,
            side=lambda app: app.spec.company,
            company=lambda app: self._company_key(self.companies[app.spec.company].tenant, self.basis),
            user=self._user_turn,
            within=self._place,
        )
        while (app := turns.pop()) is not None:
            yield app

    def _user_turn(self, app: App) -> UserKey:
        company = self.companies[app.spec.company]
        return self._user_key(company.users[app.spec.user].contender, company.tenant.quota, self.basis)

    def wanting_nothing(self) -> list[App]:
        """The pending apps that ask for neither an executor nor a driver: nothing keeps them out (semantics H4)."""
        return [
            app
            for company in self.companies.values()
            for ask, users in company.asks.items()
            if not ask.need.executor.cores and not ask.need.driver.cores
            for user in users
            for app in company.users[user].by_ask[ask]
        ]

    def foremost(self) -> Iterator[App]:
        """Of each user the first app of each ask that a live worker could host and no limit keeps out (N2, N3)."""
        for company in self.companies.values():
            limited = company.limits is not None and company.limit.limited
            for user, queue in company.users.items():
                for ask, apps in queue.by_ask.items():
                    if not ask.need.hostable:
                        continue
                    if limited and company.limit.broken(user, ask.request) is not None:
                        continue
                    yield apps.items[apps.begin]

    def asks(self) -> Iterator[Ask]:
        """What heads and apps with a reservation that counts ask, that of heads once for a company."""
        self._settle()
        for _, _, _, name in self._order:
            limit = self.companies[name].limit
            if limit.reservations and (reserver := limit.reserver()) is not None:
                yield ask_of(reserver)
            for capped, free in self.companies[name].order:
                if capped is not None:
                    yield capped
                if free is not None and free is not capped:
                    yield free

    def taking_part(self) -> list[str]:
        """The companies with an app that may enter as far as quotas go, in the order of the policy (semantics C1)."""
        self._settle()
        return [key[-1] for key in self._order if self._takes_part(key[-1])]

    def _takes_part(self, name: str) -> bool:
        company = self.companies[name]
        return company.passes or self._borrows_now(name, company)

    def _borrows_now(self, name: str, company: CompanyQueue) -> bool:
        taking = self._taking
        return company.borrows and (not taking or (len(taking) == 1 and name in taking))

    def _part(self, company: CompanyQueue) -> Resources:
        if company.part_version != self.parts.version:
            company.part_version = self.parts.version
            company.part = self.parts.of(company.tenant.quota, by_default=not company.limit.stops_idle)
        return company.part

    @staticmethod
    def _keeps(company: CompanyQueue, part: Resources) -> Test:
        """Whether an app keeps the company within its part, or C4 lets it pass and the company claims nothing (A3)."""
        limit, standing = company.limit, company.tenant.standing
        claimed = standing.claimed if standing.lent == NOTHING else standing.claimed - standing.lent
        if claimed == NOTHING:
            return lambda ask: part.covers(ask.request) or limit.admits(ask.request)
        room = part - claimed
        return lambda ask: room.suffices_for(ask.request)

    def _first_of(self, name: str, company: CompanyQueue, test: Test, *, able: Test | None = None) -> App | None:
        """The company's next app of those that pass the test: the reserved one, else its first user's (C7, U1, U2)."""
        limit = company.limit
        borrows = self._borrows_now(name, company) if able is None else company.borrows and not self._others(name, able)
        if limit.reservations and (reserver := limit.reserver()) is not None:
            may = borrows or limit.admits(reserver.requested)
            return reserver if may and test(ask_of(reserver)) else None
        order, groups, which = company.order, limit.groups, int(borrows)
        passing = [
            users
            for heads, users in order.items()
            if (ask := heads[which]) is not None and (borrows or groups[ask.request].passes) and test(ask)
        ]
        if not passing:
            return None
        if self._users_drift:
            keys = [self._user_rank(company, company.users[key[-1]], which) for users in passing for key in users]
        else:
            keys = [users[0] for users in passing]
        user = company.users[min(keys)[-1]]
        return user.first if borrows else user.head

    def _user_rank(self, company: CompanyQueue, queue: UserQueue, which: int) -> UserKey:
        """The user's place by the head that counts now."""
        head = queue.first if which else queue.head
        contender = queue.contender
        if head is not None and contender.request != head.requested:
            contender.request = head.requested
        return self._user_key(contender, company.tenant.quota, self.basis)

    def _others(self, name: str, able: Test) -> bool:
        """Whether an app of another company passes the test, and its own quota (C4) or has a reservation that counts.

        Semantics C6, C7, A9.
        """
        for other in self._taking:
            if other == name:
                continue
            company = self.companies[other]
            limit = company.limit
            if limit.reservations and (reserver := limit.reserver()) is not None:
                counts = self._reservations_count or limit.admits(reserver.requested)
                if counts and able(ask_of(reserver)):
                    return True
            elif any(ask and limit.groups[ask.request].passes and able(ask) for ask, _ in company.order):
                return True
        return False

    def held_back(self) -> Iterator[tuple[str, int, bool]]:
        """(app, held back since in ms, whether room is reserved) of each app held back or reserved for (C7)."""
        for company in self.companies.values():
            for since, _, app in company.limit.reservations:
                yield app.id, since, True
            for since, app in company.limit.held():
                yield app.id, since, False

    def set_limits(self, name: str, limits: Limits) -> None:
        """Set the limits by which apps of the company are passed over (semantics N2)."""
        company = self.companies[name]
        company.limits = limits if limits.values else None
        company.limit.ceiling, company.limit.ceilings = limits.ceiling(name), {}
        company.passed_over = {ask: None for ask in company.asks if company.limit.passes_over(ask.request)}
        for user, queue in company.users.items():
            self._set_ceiling(company, queue.contender)
            self._set_heads(company, queue)
            company.moved[user] = None
            self.touch(name, user)
        self._note(name, company)

    def _set_ceiling(self, company: CompanyQueue, user: Contender) -> None:
        if company.limits is not None:
            ceiling = company.limits.ceiling(company.tenant.company, user.user)
            if ceiling is not None:
                company.limit.ceilings[user.user] = ceiling, user.standing

    def _recheck_limits(self, company: CompanyQueue) -> None:
        """Find anew the heads that a limit keeps out now, or no longer (semantics N2).

        The company's limits are compared with one request of each kind, those of the user with the user's apps.
        """
        limit = company.limit
        if limit.ceiling is not None:
            over = [ask for ask in company.asks if limit.passes_over(ask.request) != (ask in company.passed_over)]
            for ask in over:
                _mark(company.passed_over, ask, marked=ask not in company.passed_over)
            self._rejudge(company, over)
        for user in company.to_recheck:
            if user in limit.ceilings:
                self._set_heads(company, company.users[user])
                company.moved[user] = None
        company.to_recheck.clear()

    def _is_behind(self, company: CompanyQueue, queue: UserQueue, app: App) -> bool:
        """Whether an app changes none of its user's heads, because it comes after both."""
        head, first = queue.foremost
        if first is None or self._place(app) < self._place(first):
            return False
        fits = company.limit.fits_alone(app.requested)
        return not fits or (head is not None and self._place(head) < self._place(app))

    def _set_heads(self, company: CompanyQueue, queue: UserQueue) -> None:
        limit, place = company.limit, self._place
        if not queue.by_ask:
            queue.first, queue.heads, queue.foremost = None, (None, None), (None, None)
            self._set_head(limit, queue, None)
            return
        if len(queue.by_ask) == 1 and company.limits is None:  # most users: save the comparisons
            ((ask, apps),) = queue.by_ask.items()
            foremost = apps.items[apps.begin] if ask.need.hostable else None
            fits = foremost is not None and limit.fits_alone(ask.request)
            queue.first, queue.heads = foremost, (ask if fits else None, ask if foremost is not None else None)
            queue.foremost = (foremost if fits else None), foremost
            self._set_head(limit, queue, foremost if fits else None)
            return
        head: App | None = None
        first: App | None = None
        of_head: Ask | None = None
        of_first: Ask | None = None
        user, limited = queue.contender.user, company.limits is not None and limit.limited
        fronts = [
            (place(front := apps.items[apps.begin]), front, ask)
            for ask, apps in queue.by_ask.items()
            if ask.need.hostable and (not limited or limit.possible(user, ask.request))
        ]
        for _, front, ask in sorted(fronts, key=itemgetter(0)):
            if first is None:
                first, of_first = front, ask
            if limit.fits_alone(ask.request):
                head, of_head = front, ask
                break
        queue.foremost = head, first
        if limited:
            first, of_first = _unless_broken(limit, user, first, of_first)
            head, of_head = _unless_broken(limit, user, head, of_head)
        queue.first, queue.heads = first, (of_head, of_first)
        self._set_head(limit, queue, head)

    def _set_head(self, limit: QuotaLimit, queue: UserQueue, head: App | None) -> None:
        if head is queue.head:
            return
        if queue.head is not None:
            limit.leave(queue.head, queue.head.requested)
        if head is not None:
            limit.enter(head, self.basis.at)
        queue.head = head

    def _note(self, name: str, company: CompanyQueue) -> None:
        """Mark the company: its place in the order or its next reservation may have changed."""
        self._moved[name] = None
        if not company.admitted:
            self._uncertain = True
        if company.timed or company.limit.holding or company.reserved:
            self.changed[name] = None

    def oldest(self) -> App | None:
        """The pending app that became ready first (semantics A6)."""
        return next(iter(self.arrivals.values()), None)

    def _settle(self) -> None:
        """Bring the order, and who is active or keeps others from borrowing, up to date."""
        if self.to_review:
            self.review()
        if self._companies_drift and self._ordered_at != self.basis.at:
            self._moved.update((key[-1], None) for key in self._order)
            self._ordered_at = self.basis.at
        if not self._moved:
            return
        concerned, self._moved = self._moved, {}
        self._uncertain = taking = False
        for name in concerned:
            taking |= self._settle_company(name, self.companies[name])
        if taking:
            concerned.update(self._idle_borrowers)
        for name in concerned:
            company = self.companies[name]
            active = company.tenant.quota if company.admitted or (company.placed and self._takes_part(name)) else None
            if active is not company.active and active != company.active:
                if company.active is not None:
                    self.parts.remove(company.active)
                if active is not None:
                    self.parts.add(active)
                company.active = active

    def _settle_company(self, name: str, company: CompanyQueue) -> bool:
        """Bring the company's place, and whether it takes part or may borrow, up to date. Whether `_taking` changed."""
        for user in company.users if company.all_moved and self._users_regard_quota else company.moved:
            self._settle_user(company, company.users[user])
        company.moved.clear()
        company.all_moved = False
        limit = company.limit
        reserves = bool(limit.reservations) and limit.reserver() is not None
        has_head = bool(company.order) or reserves
        if has_head:
            self._within[name] = None
        else:
            self._within.pop(name, None)
        placed = self._company_key(company.tenant, self.basis) if has_head else None
        if placed != company.placed:
            self._take_out_of_order(company)
            if placed is not None:
                insort(self._order, placed)
            company.placed = placed
        company.passes = has_head and limit.lets_through()
        takes = company.passes or (self._reservations_count and reserves)
        idle = has_head and company.borrows and not company.admitted
        if idle != (name in self._idle_borrowers):
            _mark(self._idle_borrowers, name, marked=idle)
        if takes == (name in self._taking):
            return False
        _mark(self._taking, name, marked=takes)
        return True

    def _settle_user(self, company: CompanyQueue, queue: UserQueue) -> None:
        placed: tuple[Heads, UserKey] | None = None
        if (head := queue.head or queue.first) is not None:
            contender, contender.request = queue.contender, head.requested
            oldest = queue.by_readiness.items[queue.by_readiness.begin]
            contender.oldest, contender.oldest_at = oldest.ready_position, oldest.ready_at
            placed = queue.heads, self._user_key(contender, company.tenant.quota, self.basis)
        if placed == queue.placed:
            return
        if queue.placed is not None:
            heads, key = queue.placed
            peers = company.order[heads]
            if len(peers) == 1:
                del company.order[heads]
            else:
                del peers[bisect_left(peers, key)]
        if placed is not None:
            heads, key = placed
            insort(company.order.setdefault(heads, []), key)
        queue.placed = placed

    def _take_out_of_order(self, company: CompanyQueue) -> None:
        if company.placed is not None:
            del self._order[bisect_left(self._order, company.placed)]
            company.placed = None


def ask_of(app: App) -> Ask:
    """What the app asks now."""
    return _asking((app.requested, app.need))


def _anybody(_: Ask) -> bool:
    return True


def reached(held: Resources, part: Resources) -> bool:
    """Whether a company that holds that much on live workers has reached its part (semantics C8).

    It holds all of it of some kind of which it is assured any, or cores or memory of which nothing is assured to it, or
    it is assured nothing.
    """
    if part == NOTHING or held.cores >= (part.cores or 1) or held.memory_mb >= (part.memory_mb or 1):
        return True
    return any(held.amount(kind) >= assured for kind, assured in part.others)


def _unless_broken(limit: QuotaLimit, user: str, head: App | None, ask: Ask | None) -> tuple[App | None, Ask | None]:
    """The user's head and what it asks; none if a limit keeps it out now (semantics N2)."""
    return (head, ask) if ask is None or limit.broken(user, ask.request) is None else (None, None)


def _mark(marks: dict[K, None], name: K, *, marked: bool) -> None:
    if marked:
        marks[name] = None
    else:
        marks.pop(name, None)
