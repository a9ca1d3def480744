"""Claims: what each app counts for when rules ask what is left of the cluster or of a quota (semantics A8).

An app claims what it is granted on live workers and what it can still use. Apps that need the same of a worker are
kept together as a `Need`, so that a worker that joins or leaves is compared with every distinct need, never with every
app. Everything here is an index: it follows from the apps, the workers and the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.events import ClusterConfigured, Fixed, OnePerWorker, Sizing
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.apps import Need
from scheduler.rules.entities.labels import demand_of, sought
from scheduler.rules.entities.ledger import Occupation, Standings, sums
from scheduler.rules.placement.sizing import LEAST_MB_PER_CORE, MOST_MB_PER_CORE, for_tasks, memory_for, smallest_cores

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from scheduler.model.events import AppRegistered
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.fleet import Fleet
    from scheduler.rules.entities.grants import Allocation


NEEDS = 1_000
"""How many needs may be known before those are forgotten that no app has."""


def usable_executors(app: App) -> int:
    """How many smallest executors the app can still use, its bounds regarded; of growing ones, how many cores."""
    spec = app.spec
    held = app.granted.cores + app.done_cores
    if app.ended is not None or (spec.cores is not None and app.requested.cores <= held and not app.moved):
        return 0
    need = app.need
    size = need.executor
    if not app.admitted or app.expired_at or not size.cores:
        return 0
    simple = spec.driver is None and spec.cores is not None and not app.moved  # most apps: save the calls
    cores = app.requested.cores - held if simple else app.left_cores
    if cores < size.cores:
        return 0
    memory_mb = app.requested.memory_mb - app.granted.memory_mb if simple else app.left_executor_memory_mb
    return _fitting(app, cores, memory_mb)


def _fitting(app: App, cores: int, memory_mb: int) -> int:
    """The number of executors that fit where so many cores and so much memory are left to the app."""
    size = app.need.executor
    number, by_memory = cores // size.cores, memory_mb // size.memory_mb
    if by_memory <= 0:
        return 0
    by_kind = [app.left_of(kind) // each for kind, each in size.others] if size.others else ()
    if app.need.growing:
        may = app.left_executors > 0 and all(fit > 0 for fit in by_kind)
        return max(0, number) * size.cores if may else 0
    number = min(number, by_memory, *by_kind)
    return max(0, number if app.executor_limit is None else min(number, app.left_executors))


class Claims:
    """The claims of the cluster, its companies and their users, and the needs of their apps."""

    def __init__(self, fleet: Fleet, apps: Mapping[str, App]) -> None:
        self.total = Occupation()
        self.companies: dict[str, Occupation] = {}
        self.users: dict[tuple[str, str], Occupation] = {}
        self._levels: dict[tuple[str, str], Standings] = {}
        self.needs: dict[tuple[Resources, Resources, Resources, bool, str, int], Need] = {}
        self._many = NEEDS
        """At how many needs those are forgotten that no app has."""
        self._fleet = fleet
        self._apps = apps
        self._settings = ClusterConfigured()
        self.counts_unserved = False
        """Whether what is unserved is counted, because the order of companies regards it (semantics C5)."""
        self.counts_apps = False
        """Whether apps are counted, because somebody has limits."""
        self._alone: dict[tuple[Sizing, int, str], Need] = {}
        """Sizing, cores per task and demand -> the need of an app that needs its smallest executor and nothing else."""

    def configure(self, settings: ClusterConfigured) -> None:
        """Size executors that the scheduler works out by these settings from now on; the caller sets needs anew."""
        self._settings = settings
        self.counts_unserved = settings.company_policy == "pay-as-you-go"
        self._alone.clear()

    def standings(self, company: str, user: str) -> Standings:
        """The standings that an app of that user counts for."""
        key = company, user
        found = self._levels.get(key)
        if found is None:
            theirs = self.users[key] = self.users.get(key) or Occupation()
            found = self._levels[key] = self.total, self.of(company), theirs
        return found

    def standing(self, company: str, user: str) -> Occupation:
        """The standing of the user, or of the company if `user` is ""; an empty one for a user who never submitted."""
        return self.users.get((company, user)) or Occupation() if user else self.of(company)

    def of(self, company: str) -> Occupation:
        """The company's."""
        found = self.companies.get(company)
        if found is None:
            found = self.companies[company] = Occupation()
        return found

    def forget(self, company: str) -> None:
        """The company is no tenant any more."""
        self.companies.pop(company, None)
        for key in [key for key in self.users if key[0] == company]:
            del self.users[key]
            self._levels.pop(key, None)

    def need_of(self, app: App) -> Need:
        """What the app needs of a worker now (semantics A8, N3)."""
        spec, driver = app.spec, app.unplaced_driver
        return self.need(spec, app.sizing, app.requested, app.executor_limit, driver)

    def size(self, sizing: Sizing, cores_per_task: int) -> Resources:
        """The smallest executor of an app of that sizing, whether it asks for one now or not (semantics A7)."""
        return self._alone_of(sizing, cores_per_task).executor

    def _alone_of(self, sizing: Sizing, cores_per_task: int, demand: str = "") -> Need:
        alone = self._alone.get((sizing, cores_per_task, demand))
        if alone is None:
            alone = self._need_alone(sizing, cores_per_task, demand)
            self._alone[sizing, cores_per_task, demand] = alone
        return alone

    def need(
        self, spec: AppRegistered, sizing: Sizing, requested: Resources, limit: int | None, driver: Resources
    ) -> Need:
        """The need of an app of that sizing, request and limit, whose driver needs that much now (A8, N3)."""
        demand = ""
        if spec.require or spec.avoid or spec.tolerate:
            demand = demand_of(spec.require, spec.avoid, spec.tolerate)
        alone = self._alone_of(sizing, spec.cores_per_task, demand)
        if spec.driver is None and limit != 0:
            if not spec.gang or limit is None:
                return alone
            return self._intern(alone.executor, NOTHING, alone.least, demand, growing=False, gang=limit)
        executor, least = alone.executor, alone.least
        beside = None if spec.driver is None or spec.cores is None else requested.cores - spec.driver.cores
        if limit == 0 or (beside is not None and beside < executor.cores):
            executor = least = NOTHING
        return self._intern(executor, driver, least, demand, growing=alone.growing)

    def _need_alone(self, sizing: Sizing, cores_per_task: int, demand: str) -> Need:
        executor, least = self._smallest(sizing, cores_per_task)
        return self._intern(executor, NOTHING, least, demand, growing=isinstance(sizing, OnePerWorker))

    def _smallest(self, sizing: Sizing, cores_per_task: int) -> tuple[Resources, Resources]:
        """The smallest executor that can run a task, and the least room for it (semantics A7, S2, S3, S5)."""
        if isinstance(sizing, Fixed):
            return sizing.each, sizing.each
        if isinstance(sizing, OnePerWorker):
            each = Resources(cores_per_task, sizing.memory_mb, sizing.others)
            return each, each
        per_task, settings = sizing.memory_per_task_mb, self._settings
        cores = smallest_cores(settings, cores_per_task)
        if per_task is None:
            amounts = [memory_for(settings, cores, each_mb) for each_mb in (MOST_MB_PER_CORE, LEAST_MB_PER_CORE)]
        else:
            amounts = [memory_for(settings, cores // cores_per_task, per_task)] * 2
        others = for_tasks(sizing.per_task, cores // cores_per_task)
        return Resources(cores, amounts[0], others), Resources(cores, amounts[1], others)

    def _intern(
        self, executor: Resources, driver: Resources, least: Resources, demand: str, *, growing: bool, gang: int = 0
    ) -> Need:
        """The one `Need` of these amounts and that demand."""
        key = executor, driver, least, growing, demand, gang
        need = self.needs.get(key)
        if need is None:
            if len(self.needs) >= self._many:
                self._forget_needs()
            need = self.needs[key] = Need(*key)
            self._judge(need)
        return need

    def _forget_needs(self) -> None:
        """Drop the needs that no app has: submissions that were refused, and apps that are forgotten, leave theirs."""
        used = {id(app.need) for app in self._apps.values()}
        self.needs = {key: need for key, need in self.needs.items() if id(need) in used}
        self._alone.clear()
        self._many = max(NEEDS, 2 * len(self.needs))

    def _judge(self, need: Need) -> None:
        fleet = self._fleet
        need.hostable = (not need.least.cores or fleet.could_host(sought(need.least, need.demand))) and (
            not need.driver.cores or fleet.could_host(sought(need.driver, need.demand))
        )
        if need.gang and need.hostable:
            need.hostable = fleet.could_hold(sought(need.executor, need.demand), need.executor, need.gang)
        need.most = fleet.total.holds(need.executor) if need.executor.cores and need.hostable else 0

    def count_apps(self, apps: Iterable[App]) -> None:
        """Count apps from now on; these are all that have not ended (semantics N1)."""
        self.counts_apps = True
        for app in apps:
            self.count(app, pending=not app.admitted, admitted=app.admitted > 0)

    def count(self, app: App, *, pending: int = 0, admitted: int = 0) -> None:
        """Count so many apps of the company and the user of `app` more (semantics N1)."""
        for standing in app.standings[1:]:
            standing.pending += pending
            standing.apps += admitted
        for standing in app.standings[1].above:
            standing.pending += pending
            standing.apps += admitted

    def admit(self, app: App) -> None:
        """Count an app that was admitted just now."""
        if not app.began:
            self.await_grant(app)
        need = app.need
        number = need.multiples.get(app.requested, 0)
        if 0 < number <= need.most and app.executor_limit is None:  # most apps: it can use all that it requests
            app.more = app.requested
            self._set_usable(app, number)
            _count(app, app.more)
        else:
            self.update(app)

    def withdraw(self, app: App) -> None:
        """The app leaves waitingApps and stays pending: it claims what it holds, and can use no more."""
        if app.unserved:
            self.serve(app)
        app.need.owed.pop(app.admitted, None)
        if app.more != NOTHING:
            _count(app, -app.more)
        app.usable, app.more = 0, NOTHING

    def await_grant(self, app: App) -> None:
        """The app was granted nothing yet (semantics C5)."""
        if self.counts_unserved:
            app.unserved = True
            for standing in app.standings[1:]:
                standing.unserved += app.requested

    def serve(self, app: App) -> None:
        """The app is granted something for the first time, or ended before (semantics C5)."""
        app.unserved = False
        for standing in app.standings[1:]:
            standing.unserved -= app.requested

    def recount_unserved(self, apps: Iterable[App]) -> None:
        """Count what is unserved anew under other settings; these are all admitted apps."""
        for standing in (*self.companies.values(), *self.users.values()):
            standing.unserved = NOTHING
        for app in apps:
            app.unserved = False
            if not app.next_executor and not app.tries.next_driver:
                self.await_grant(app)

    def restate(self, app: App, before: Resources) -> None:
        """The app, which requested `before`, requests something else."""
        if app.unserved and before != app.requested:
            for standing in app.standings[1:]:
                standing.unserved += app.requested - before

    def update(self, app: App, held: Resources | None = None, *, moved: bool = False) -> None:
        """Count the app's claim anew; `held` is what more it is granted on live workers.

        `moved`: it needs something else of a worker than before.
        """
        need, more = app.need, app.more
        if held is not None:
            given = need.multiples.get(held, 0)
            if 0 < given <= app.usable <= need.most and app.executor_limit is None:
                # most grants: what it is granted it could use before
                app.usable -= given
                if app.usable:
                    app.more = more - held
                else:
                    app.more = NOTHING
                    del need.owed[app.admitted]
                return
        usable = usable_executors(app)
        if usable != app.usable or moved or not need.simple:
            self._set_usable(app, usable)
            app.more = need.more(app, self._fleet)
        change = app.more if more is NOTHING else NOTHING if more is app.more else app.more - more
        if held is not None:
            change = held if change is NOTHING else held + change
        if change != NOTHING:
            _count(app, change)

    def move(self, app: App, need: Need) -> None:
        """The app needs something else of a worker from now on."""
        self._set_usable(app, 0)
        app.need.owed.pop(app.admitted, None)
        app.need = need
        self.update(app, moved=True)

    def stay(self, allocation: Allocation, app: App, *, live: bool) -> None:
        """Its worker is live from now on, or not any more."""
        _count(app, allocation.resources if live else -allocation.resources)

    def review(self, demands: Collection[str] | None = None) -> None:
        """Compare every need, never every app, with the workers that are live now (semantics Z6).

        Those with these demands alone, if no others are met by other workers than before (P9).
        """
        for need in self.needs.values():
            if demands is not None and need.demand not in demands:
                continue
            hostable, most = need.hostable, need.most
            self._judge(need)
            flipped = hostable != need.hostable
            if flipped or most != need.most or need.growing:
                bound = 0 if flipped or need.growing else min(most, need.most) + 1
                for app in need.owed.values():
                    if app.usable >= bound:
                        self._recount(app)

    def _recount(self, app: App) -> None:
        more = app.need.more(app, self._fleet)
        change = more - app.more
        if change != NOTHING:
            app.more = more
            _count(app, change)

    def _set_usable(self, app: App, usable: int) -> None:
        """The app can use so many executors more; it is kept with those of its need that can use any."""
        app.usable = usable
        need, position = app.need, app.admitted
        if usable or (need.driver.cores and position and app.ended is None):
            need.owed[position] = app
        elif position in need.owed:
            del need.owed[position]


def _count(app: App, change: Resources) -> None:
    """The app claims that much more."""
    cluster, company, user = app.standings
    cluster.claimed, company.claimed, user.claimed = sums(cluster.claimed, company.claimed, user.claimed, change)
    for department in company.above:
        department.claimed += change
