"""What several events have in common: ledgers, and the indexes that are kept at every event."""

from __future__ import annotations

from scheduler.model.events import AppRegistered, Computed
from scheduler.model.quota import UNBOUGHT, Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.queue import Ask, ask_of
from scheduler.rules.checks.validate import read_limit
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.companies import Department
from scheduler.rules.entities.fleet import tally
from scheduler.rules.entities.grants import Allocation
from scheduler.rules.entities.labels import Marks, demands_of
from scheduler.rules.entities.ledger import Balance, Occupation, add_grant, add_request, granted
from scheduler.rules.entities.workers import Window, Worker
from scheduler.rules.state.departments import limited_above
from scheduler.rules.state.facts import Facts


def set_quotas(facts: Facts, *names: str) -> None:
    """The quotas of these companies, or of all, by the cluster and companies there are (semantics A8, C2, C4)."""
    for name in names or facts.companies:
        facts.queue.set_quota(name, facts.quota(name))
    if facts.departments:
        set_department_quotas(facts)


def set_department_quotas(facts: Facts) -> None:
    """What departments may hold and lend, the lowest ones first: it may be the sum of what is in them (H12)."""
    unnamed = Quota(facts.fleet.total, max(1, len(facts.companies)))
    found: dict[str, Quota] = dict.fromkeys(facts.departments, UNBOUGHT)
    for name, company in facts.companies.items():
        if company.department:
            quota = facts.queue.companies[name].tenant.quota
            found[company.department] = found[company.department].plus(quota.with_all(unnamed))
    for each in sorted(facts.departments.values(), key=lambda each: -len(each.above)):
        spec, quota = each.spec, found[each.name]
        if spec.amounts is not None:
            quota = Quota(spec.amounts, named=spec.kinds)
        elif spec.part is not None:
            quota = Quota(facts.fleet.total, 1).times(*read_limit(spec.part))
        each.quota, each.cap, each.kept = quota, None, NOTHING
        if spec.borrow_limit is not None:
            numerator, denominator = read_limit(spec.borrow_limit)
            each.cap = quota.times(numerator + denominator, denominator)
        if spec.lend_limit is not None:
            numerator, denominator = read_limit(spec.lend_limit)
            each.kept = quota.times(denominator - numerator, denominator).whole
        if spec.parent:
            theirs = quota.with_all(unnamed.times(each.companies, 1))
            found[spec.parent] = found[spec.parent].plus(theirs)
    facts.keeping = bool({each.kept for each in facts.departments.values()} - {NOTHING})


def set_departments(facts: Facts) -> None:
    """Who is in which department, and what these hold together (semantics H12)."""
    for each in facts.departments.values():
        above, parent = list[Department](), each.spec.parent
        while parent:
            above.append(facts.departments[parent])
            parent = above[-1].spec.parent
        each.above, each.companies, each.balance = tuple(above), 0, Balance()
        each.standing, each.last_selected, each.leaving = Occupation(), 0, NOTHING
    for name, company in facts.companies.items():
        company.above = facts.departments[company.department].chain if company.department else ()
        standing = facts.claims.of(name)
        standing.above = tuple([each.standing for each in company.above])
        for each in company.above:
            each.companies += 1
            each.standing.add(standing)
            each.balance.requested += company.balance.requested
            each.balance.granted += company.balance.granted
            each.leaving += company.leaving
            each.last_selected = max(each.last_selected, company.last_selected)
    set_department_quotas(facts)
    if facts.limits.values:
        set_limits(facts, *facts.companies)


def set_limits(facts: Facts, *companies: str) -> None:
    """Whom limits of these companies, of their users and of the departments above keep out is found anew (N1, H12)."""
    for name in companies:
        facts.queue.set_limits(name, facts.limits, limited_above(facts, name))


def count_request(facts: Facts, app: App, request: Resources) -> None:
    """The app requests so much more, at all levels at once (semantics O1)."""
    add_request(app.accounts, request)
    if facts.departments:
        for each in facts.companies[app.spec.company].above:
            each.balance.requested += request


def count_apps(facts: Facts) -> None:
    """Count the apps of companies and users from now on: there are limits (semantics N1)."""
    if not facts.claims.counts_apps:
        facts.claims.count_apps([app for app in facts.apps.values() if app.ended is None])


def forget_lost(facts: Facts, *workers: str) -> None:
    """Lost workers are remembered no longer (semantics N3)."""
    for worker in workers:
        facts.offers.remove(facts.lost.pop(worker))


def plan_windows(facts: Facts, *windows: Window) -> None:
    """These windows were added, or are no more: their workers have other ones (semantics W14)."""
    live: dict[str, None] = {}
    for window in windows:
        known = [window] if window.id in facts.windows else []
        for name in window.workers:
            others = [each for each in facts.planned.get(name, ()) if each.id != window.id]
            if theirs := sorted([*others, *known], key=lambda each: each.begin):
                facts.planned[name] = tuple(theirs)
            else:
                del facts.planned[name]
            facts.changed.workers[name] = None
            if name in facts.workers and facts.workers[name].status == "alive":
                live[name] = None
    mark(facts, *live)


def windows_of(facts: Facts, worker: str) -> list[str]:
    """The windows of the worker, which make up its class (semantics W14)."""
    return [each.id for each in facts.planned.get(worker, ())]


def trust(worker: Worker) -> None:
    """Nothing is known against a worker that is not live (semantics W8)."""
    worker.quick_ends, worker.suspicion = (), None


def reopen(facts: Facts, worker: Worker, before: Resources) -> None:
    """Another amount than `before` may be open to new executors on the worker."""
    if worker.status == "alive":
        facts.fleet.move(worker.id, before, worker.open_to(None))


def set_live(facts: Facts, worker: Worker, *, was: bool, now: bool) -> None:
    """The worker, which was live or not, is live now or not (semantics A5)."""
    if was == now:
        return
    if now:
        facts.fleet.join(worker.id, worker.offer, worker.open_to(None), _marks(facts, worker))
    else:
        facts.demands.leave(facts.fleet.marks[worker.id])
        facts.fleet.leave(worker.id, worker.offer, worker.open_to(None))
    for allocation in (*worker.executors.values(), *worker.drivers.values()):
        facts.claims.stay(allocation, facts.apps[allocation.app], live=now)


def count_size(facts: Facts, app: App, change: int) -> None:
    """Of so many more apps of its company the smallest executor has this app's size (semantics H2)."""
    tally(facts.companies[app.spec.company].sizes, facts.claims.size(app.sizing, app.spec.cores_per_task), change)


def mark(facts: Facts, *workers: str) -> None:
    """These live workers have other labels, taints or windows than before (semantics P9, W14)."""
    changed = False
    for name in workers:
        worker, known = facts.workers[name], facts.fleet.marks[name]
        marks = _marks(facts, worker)
        changed = facts.fleet.mark(name, worker.offer, worker.open_to(None), marks) or changed
        facts.demands.leave(known)
    if changed:
        facts.filling.forget()
        facts.claims.review()


def _marks(facts: Facts, worker: Worker) -> Marks:
    """The marks of one more live worker of its labels, taints and windows."""
    return facts.demands.join(worker.labels, worker.taints, windows_of(facts, worker.id))


def count_demands(facts: Facts, spec: AppRegistered, change: int) -> None:
    """So many apps more of these demands have not ended (semantics P9)."""
    demands, changed = demands_of(spec), False
    for demand in demands:
        tally(facts.companies[spec.company].demands, demand, change)
        if moves := facts.demands.count(demand, change):
            facts.fleet.reclass(moves)
            facts.filling.reclass(moves)
            changed = True
    if changed:
        facts.claims.review(demands)


def count_all_demands(facts: Facts) -> None:
    """Count what the apps demand that have not ended, of a state where no worker is live yet."""
    for app in facts.apps.values():
        if app.ended is None:
            count_demands(facts, app.spec, 1)


def set_cluster(facts: Facts) -> None:
    """Which apps live workers could host, what they claim, and quotas, by the workers there are (A8, N3, C2)."""
    facts.claims.review()
    set_quotas(facts)


def set_need(facts: Facts, app: App) -> None:
    """What the app needs of a worker, by its demand, its driver and the settings (semantics A8)."""
    need = facts.claims.need_of(app)
    if need is app.need:
        return
    if app.admitted:
        facts.claims.move(app, need)
    else:
        before, app.need = ask_of(app), need
        restate(facts, app, before)


def restate(facts: Facts, app: App, before: Ask) -> None:
    """A pending app, be it in its user's queue or not ready yet, asked that before."""
    if app.ready and ask_of(app) != before:
        facts.queue.restate(app, before)


def stop(facts: Facts, app: App) -> None:
    """The app is owed nothing more, and what it holds must stop (semantics A5, X2)."""
    for held in app.allocations():
        let_leave(facts, held)
        facts.changed.workers[held.worker] = None  # what left for a need is told of no window any more
    app.running = 0
    if app.demand.wanted:
        app.demand = app.demand._replace(wanted=())


def count_runtime(facts: Facts, app: App) -> None:
    """Start or stop the clock of an app that may run for so long only (semantics X1)."""
    if app.max_runtime_s is None or app.runs == (app.running_since is not None):
        return
    if app.running_since is None:
        app.running_since = facts.at
    else:
        app.ran_ms += facts.at - app.running_since
        app.running_since = None


def let_leave(facts: Facts, allocation: Allocation) -> None:
    """Stop an executor or a driver; what it has comes free on its worker (semantics A5)."""
    if allocation.status != "stopping":
        allocation.status = "stopping"
        count_leaving(facts, allocation, allocation.resources)


def count_leaving(facts: Facts, allocation: Allocation, change: Resources) -> None:
    """So much more was told to stop, by worker, app and company."""
    worker = facts.workers[allocation.worker]
    worker.leaving += change
    facts.changed.workers[worker.id] = None
    app = facts.apps[allocation.app]
    app.leaving += change
    company = facts.companies[app.spec.company]
    company.leaving += change
    for each in company.above:
        each.leaving += change


def grant(facts: Facts, app: App, worker: Worker, grant: Resources) -> None:
    """The app holds so much more on the worker; a negative amount returns (semantics O1)."""
    plain = worker.suspicion is None and not worker.holds
    before = worker.free if plain else worker.open_to(None)
    if app.usage.at != facts.at:
        app.usage.update(facts.at, app.accounts[1], facts.queue.basis.half_life_ms)
    worker.free, app.granted = granted(worker.free, app.granted, grant)
    add_grant(app.accounts, grant)
    if facts.departments:
        for each in facts.companies[app.spec.company].above:
            each.balance.granted += grant
    if worker.status == "alive":
        facts.fleet.move(worker.id, before, worker.free if plain else worker.open_to(None))
        facts.claims.update(app, grant)
    else:
        facts.claims.update(app)
    if app.unserved:
        facts.claims.serve(app)
    set_owed(facts, app)


def reconsider(facts: Facts, app: App) -> None:
    """Bring what follows from the app's demand and its executors up to date."""
    facts.claims.update(app)
    set_owed(facts, app)


def set_owed(facts: Facts, app: App) -> None:
    """Whether placement owes the app an executor, and the times that it waits for."""
    sizing = type(app.sizing)
    if sizing is Computed and app.executor_limit is None and app.spec.driver is None:  # most apps: save the calls
        held = app.granted.cores - app.moving.cores if app.moved else app.granted.cores
        left = app.ended is None and app.requested.cores > held + app.done_cores
        owed = left and app.admitted > 0 and not app.expired_at
    else:
        owed = facts.wants_executors(app)
    if owed == app.owed:
        return
    app.owed = owed
    if owed:
        app.owed_since = facts.at


def forget_if_over(facts: Facts, app: App) -> None:
    """An ended app is over once its last executor is gone; old ones are forgotten, the log keeps them."""
    if app.ended is None or app.executors or app.driver is not None:
        return
    facts.companies[app.spec.company].apps -= 1
    facts.ranks.pop(app.id, None)
    facts.ended[app.id] = None
    forget_ended(facts)


def forget_ended(facts: Facts) -> None:
    """Forget the apps that ended first, beyond the number that is kept."""
    while len(facts.ended) > facts.settings.retained_apps:
        oldest, _ = facts.ended.popitem(last=False)
        facts.changed.apps[oldest] = None
        del facts.apps[oldest]
