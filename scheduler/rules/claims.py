"""Claims: what each app counts for when rules ask what is left of the cluster or of a quota (semantics A8).

An app claims what it is granted on live workers and what it can still use. Apps that need the same of a worker are
kept together as a `Need`, so that a worker that joins or leaves is compared with every distinct need, never with every
app. Everything here is an index: it follows from the apps, the workers and the settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.model.events import ClusterConfigured, Fixed, OnePerWorker, Sizing
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.placement.sizing import memory_for

if TYPE_CHECKING:
    from scheduler.rules.entities import Allocation, App
    from scheduler.rules.fleet import Fleet
    from scheduler.rules.ledger import Balance

COMPUTED_MB_PER_CORE = 512
"""The most memory a core that S3 gives an executor of an app that stated none."""
LEAST_MB_PER_CORE = 256


@dataclass(slots=True)
class Standing:
    """What the cluster's, a company's or a user's apps count for."""

    claimed: Resources = NOTHING
    held: Resources = NOTHING
    """What they are granted on live workers; kept for companies only."""
    lent: Resources = NOTHING
    """What of it elastic apps claim beyond their least number; not kept for users (semantics E7)."""
    unserved: Resources = NOTHING
    """What admitted apps request that were never granted anything; not kept for the cluster (semantics O3)."""
    pending: int = 0
    """How many apps are pending, and how many are in waitingApps; not kept for the cluster (semantics N1)."""
    apps: int = 0

    def occupied(self, balance: Balance, occupancy: str) -> Resources:
        """What counts as occupied under the setting `occupancy`; `balance` is the ledger (semantics O3)."""
        if occupancy == "requested":
            return balance.requested
        return self.claimed if occupancy == "claimed" else balance.granted + self.unserved


Standings = tuple[Standing, Standing, Standing]
"""Those of the cluster, of an app's company and of its user."""


@dataclass(slots=True, eq=False)
class Need:
    """What an app needs of a worker; apps with equal needs share one of these."""

    executor: Resources
    """Its smallest executor; nothing if it asks for none."""
    driver: Resources
    """Its driver until that is placed, nothing afterwards or without one."""
    least: Resources
    """The least room into which an executor of it can be placed."""
    growing: bool = False
    """Whether its executors grow a core at a time, so that only the first core of each needs the memory (S5)."""
    hostable: bool = False
    """Whether a live worker could host an executor, and one the driver, if they were empty."""
    most: int = 0
    """How many of the smallest executors the live cluster offers room for."""
    simple: bool = field(init=False)
    """Whether all that counts are executors of one size, of cores and memory alone."""
    owed: dict[int, dict[int, App]] = field(default_factory=dict)
    """How many smallest executors an app can still use -> position of admission -> app."""

    def __post_init__(self) -> None:
        self.simple = not (self.growing or self.driver.cores or self.executor.others)

    def more(self, app: App, fleet: Fleet) -> Resources:
        """What the app can still use, at most the live cluster (semantics A8)."""
        if not self.hostable or not app.admitted or app.ended is not None or app.expired_at:
            return NOTHING
        if self.growing:
            left = Resources(app.usable, app.left_executor_memory_mb) if app.usable else NOTHING
            more = left.combined(fleet.total, min)
        else:
            number = min(app.usable, self.most)
            more = self.executor * number if number else NOTHING
        return more + self.driver if self.driver.cores else more


def usable_executors(app: App) -> int:
    """How many smallest executors the app can still use, its bounds regarded; of growing ones, how many cores."""
    need, size, spec = app.need, app.need.executor, app.spec
    if not app.admitted or app.ended is not None or app.expired_at or not size.cores:
        return 0
    if spec.driver is None and spec.cores is not None:  # most apps: save the calls
        requested, granted = app.requested, app.granted
        cores, memory_mb = requested.cores - granted.cores - app.done_cores, requested.memory_mb - granted.memory_mb
    else:
        cores, memory_mb = app.left_cores, app.left_executor_memory_mb
    if cores < size.cores or memory_mb < size.memory_mb:
        return 0
    if need.growing:
        return cores if app.left_executors > 0 else 0
    number = min(cores // size.cores, memory_mb // size.memory_mb)
    return number if app.executor_limit is None else max(0, min(number, app.left_executors))


NO_NEED = Need(NOTHING, NOTHING, NOTHING)
"""That of an app whose need was not worked out yet."""


class Claims:
    """The claims of the cluster, its companies and their users, and the needs of their apps."""

    def __init__(self, fleet: Fleet) -> None:
        self.total = Standing()
        self.companies: dict[str, Standing] = {}
        self.users: dict[tuple[str, str], Standing] = {}
        self.needs: dict[tuple[Resources, Resources, Resources, bool], Need] = {}
        self._fleet = fleet
        self._settings = ClusterConfigured()
        self._computed: dict[int | None, tuple[Resources, Resources]] = {}
        """Memory per task in MiB -> the smallest computed executor, and the least room for it."""

    def configure(self, settings: ClusterConfigured) -> None:
        """Size executors that the scheduler works out by these settings from now on; the caller sets needs anew."""
        self._settings = settings
        self._computed.clear()

    def standings(self, company: str, user: str) -> Standings:
        """Those that an app of that user counts for."""
        key = company, user
        theirs = self.users.get(key)
        if theirs is None:
            theirs = self.users[key] = Standing()
        return self.total, self.of(company), theirs

    def standing(self, company: str, user: str) -> Standing:
        """That of the user, or of the company if `user` is ""; an empty one for a user who never submitted."""
        return self.users.get((company, user)) or Standing() if user else self.of(company)

    def of(self, company: str) -> Standing:
        """The company's."""
        found = self.companies.get(company)
        if found is None:
            found = self.companies[company] = Standing()
        return found

    def forget(self, company: str) -> None:
        """The company is no tenant any more."""
        self.companies.pop(company, None)
        for key in [key for key in self.users if key[0] == company]:
            del self.users[key]

    def need_of(self, app: App) -> Need:
        """What the app needs of a worker now (semantics A8, N3)."""
        sizing, spec = app.sizing, app.spec
        executor, least = self.smallest(sizing)
        beside = spec.driver is not None and spec.cores is not None and app.requested.cores - spec.driver.cores
        if app.executor_limit == 0 or (beside is not False and beside < executor.cores):
            executor = least = NOTHING
        return self.intern(executor, app.unplaced_driver, least, growing=isinstance(sizing, OnePerWorker))

    def smallest(self, sizing: Sizing) -> tuple[Resources, Resources]:
        """The smallest executor under that sizing, and the least room for it (semantics S2, S3, S5)."""
        if isinstance(sizing, Fixed):
            return sizing.each, sizing.each
        if isinstance(sizing, OnePerWorker):
            return (each := Resources(1, sizing.memory_mb)), each
        known = self._computed.get(sizing.memory_per_task_mb)
        if known is None:
            settings, cores, per_core = self._settings, self._settings.min_executor_cores, sizing.memory_per_task_mb
            most, least = (COMPUTED_MB_PER_CORE, LEAST_MB_PER_CORE) if per_core is None else (per_core, per_core)
            executor = Resources(cores, memory_for(settings, cores, most))
            known = self._computed[per_core] = executor, Resources(cores, memory_for(settings, cores, least))
        return known

    def intern(self, executor: Resources, driver: Resources, least: Resources, *, growing: bool) -> Need:
        """The one `Need` of these amounts."""
        key = executor, driver, least, growing
        need = self.needs.get(key)
        if need is None:
            need = self.needs[key] = Need(*key)
            self._judge(need)
        return need

    def _judge(self, need: Need) -> None:
        fleet = self._fleet
        need.hostable = (not need.least.cores or fleet.could_host(need.least)) and (
            not need.driver.cores or fleet.could_host(need.driver)
        )
        need.most = fleet.total.holds(need.executor) if need.executor.cores else 0

    def count(self, app: App, *, pending: int = 0, admitted: int = 0) -> None:
        """Count so many apps of the company and the user of `app` more (semantics N1)."""
        for standing in app.standings[1:]:
            standing.pending += pending
            standing.apps += admitted

    def admit(self, app: App) -> None:
        """Count an app that was admitted and granted nothing yet."""
        app.unserved = True
        for standing in app.standings[1:]:
            standing.unserved += app.requested
        self.update(app)

    def serve(self, app: App) -> None:
        """The app is granted something for the first time, or ended before (semantics O3)."""
        app.unserved = False
        for standing in app.standings[1:]:
            standing.unserved -= app.requested

    def restate(self, app: App, before: Resources) -> None:
        """The app, which requested `before`, requests something else."""
        if app.unserved and before != app.requested:
            for standing in app.standings[1:]:
                standing.unserved += app.requested - before

    def update(self, app: App, held: Resources | None = None, *, moved: bool = False) -> bool:
        """Count the app's claim anew; `held` is what more it is granted on live workers. Whether the claim is another.

        `moved`: it needs something else of a worker than before.
        """
        usable, need = usable_executors(app), app.need
        more = app.more
        if held is not None and not moved and need.hostable and need.simple and app.ended is None:
            most, before, each = need.most, app.usable, need.executor
            given = (min(most, before)) - (min(most, usable))
            if held.cores == given * each.cores and held.memory_mb == given * each.memory_mb and not held.others:
                self._replace(app, usable)  # what it is granted, or gives back, it could use before, or can again
                app.more = more - held
                app.standings[1].held += held
                return False
        if usable != app.usable or moved or not need.simple or app.ended is not None:
            self._replace(app, usable)
            more = app.need.more(app, self._fleet)
        if held is None:
            if more == app.more:
                return False
            change = more - app.more
        else:
            app.standings[1].held += held
            change = held + more - app.more
        app.more = more
        if change == NOTHING:
            return False
        self._count(app, change)
        return True

    def _count(self, app: App, change: Resources) -> None:
        """The app claims that much more."""
        for standing in app.standings:
            standing.claimed += change
        if app.spec.elastic is not None:
            app.claim += change
            self.lend(app)

    def lend(self, app: App) -> None:
        """Count anew what the elastic app claims beyond its least number of executors (semantics E7)."""
        lent = app.beyond_least
        if lent != app.lent:
            for standing in app.standings[:2]:
                standing.lent += lent - app.lent
            app.lent = lent

    def move(self, app: App, need: Need) -> bool:
        """The app needs something else of a worker from now on. Whether its claim is another."""
        self._replace(app, 0)
        app.need = need
        return self.update(app, moved=True)

    def stay(self, allocation: Allocation, app: App, *, live: bool) -> None:
        """Its worker is live from now on, or not any more."""
        change = allocation.resources if live else -allocation.resources
        app.standings[1].held += change
        self._count(app, change)

    def review(self) -> tuple[list[Need], dict[tuple[str, str], None]]:
        """Compare every need with the workers that are live now.

        Returns the needs whose apps can be hosted now or no longer, and the users whose apps claim something else.
        """
        changed: list[Need] = []
        recounted: dict[tuple[str, str], None] = {}
        for need in self.needs.values():
            hostable, most = need.hostable, need.most
            self._judge(need)
            flipped = hostable != need.hostable
            if flipped or most != need.most or need.growing:
                bound = 0 if flipped or need.growing else min(most, need.most) + 1
                for number, apps in need.owed.items():
                    if number >= bound:
                        for app in apps.values():
                            if self._recount(app):
                                recounted[app.spec.company, app.spec.user] = None
            if flipped:
                changed.append(need)
        return changed, recounted

    def _recount(self, app: App) -> bool:
        more = app.need.more(app, self._fleet)
        change = more - app.more
        if change == NOTHING:
            return False
        app.more = more
        self._count(app, change)
        return True

    def _replace(self, app: App, usable: int) -> None:
        """Keep the app among those that can use so many executors."""
        if usable == app.usable and usable and app.admitted in app.need.owed.get(usable, ()):
            return
        owed, position = app.need.owed, app.admitted
        before = owed.get(app.usable)
        if before is not None and before.pop(position, None) is not None and not before:
            del owed[app.usable]
        app.usable = usable
        if usable or (app.need.driver.cores and app.admitted and app.ended is None):
            owed.setdefault(usable, {})[position] = app
