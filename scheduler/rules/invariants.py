"""Recompute the ledgers and indexes of a state from its apps, executors and workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from scheduler.model.errors import InvariantViolated
from scheduler.model.resources import NOTHING, Resources, amounts_of
from scheduler.model.text import counted
from scheduler.rules.admission.queue import ask_of
from scheduler.rules.entities.labels import class_of, demands_of, met_by
from scheduler.rules.entities.ledger import Balance, Occupation, add_grant, add_request
from scheduler.rules.index.claims import usable_executors
from scheduler.rules.share.entitlement import filling, still_holding

if TYPE_CHECKING:
    from scheduler.rules.admission.queue import CompanyQueue
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.workers import Worker
from scheduler.rules.state.cluster import ClusterState

FILLING_EVERY = 3
"""After so many events the filling that is kept is compared: making one anew is dear."""


def check(state: ClusterState) -> None:
    """Raises: InvariantViolated naming the position and the first difference (semantics O2)."""
    for violation in violations(state):
        raise InvariantViolated(state.head, violation)


def check_after_turn(state: ClusterState) -> None:
    """As `check`, and no gang has a part of its executors, or of its targets, once a turn is over (semantics G8)."""
    check(state)
    for part in parts_of_gangs(state):
        raise InvariantViolated(state.head, part, "G8")


def parts_of_gangs(state: ClusterState) -> Iterator[str]:
    """A sentence for each gang of which a part is there, may stay or has targets, as none has after a turn (G8)."""
    for app in state.apps.values():
        if app.spec.gang and app.goes_on:
            number, there, targets = app.executor_limit, len(app.executors), len(app.holds)
            if len(app.members) not in (0, number) or targets not in (0, number):
                yield (
                    f"gang {app.id!r} of {number} has {counted(there, 'executor')}, {len(app.members)} "
                    f"stay, {targets} targets"
                )


def violations(state: ClusterState) -> Iterator[str]:
    """A sentence for each ledger or index that differs from the recomputed one (semantics O2)."""
    yield from _balances(state)
    yield from _departments(state)
    for worker in state.workers.values():
        yield from _worker(worker)
    for app in state.apps.values():
        yield from _app(app, state)
        yield from _claim(app, state)
    yield from _fleet_and_places(state)
    yield from _pending_and_waiting(state)
    yield from _drivers(state)
    yield from _claims(state)
    yield from _sizes(state)
    yield from _needs(state)
    yield from _numbers(state)
    yield from _slots(state)
    yield from _holds(state)
    for name, queue in state.queue.companies.items():
        yield from _queue(name, queue, state)
        yield from _limit(name, queue, state)
    yield from _followed(state)
    yield from _kept_filling(state)


def _kept_filling(state: ClusterState) -> Iterator[str]:
    """The filling that is kept is the one that would be made now (semantics H2): looked at every so many events."""
    kept = still_holding(state) if state.by_entitlement and state.head % FILLING_EVERY == 0 else None
    if kept is None:
        return
    made = filling(state)[0]
    for app in {**made.leaves, **kept.leaves}:
        before, now = [
            (leaf.units, leaf.driven) if leaf is not None else (0, False)
            for leaf in (kept.leaves.get(app), made.leaves.get(app))
        ]
        if before != now:
            yield f"the filling that is kept hands {app!r} {before}, one made now {now}"


def _balances(state: ClusterState) -> Iterator[str]:
    cluster = Balance()
    companies: defaultdict[str, Balance] = defaultdict(Balance)
    users: defaultdict[tuple[str, str], Balance] = defaultdict(Balance)
    leaving: defaultdict[str, Resources] = defaultdict(lambda: NOTHING)
    for app in state.apps.values():
        leaving[app.spec.company] += app.leaving
        waiting, held = app.admitted and app.ended is None, app.allocations()
        if waiting or held:
            company, user = app.spec.company, app.spec.user
            accounts = cluster, companies[company], users[company, user]
            if waiting:
                add_request(accounts, app.requested)
            add_grant(accounts, _sum(held))
    if state.balance != cluster:
        yield f"waitingApps counts {state.balance}, but its apps add up to {cluster}"
    for name, company_state in state.companies.items():
        if company_state.balance != companies[name]:
            yield f"company {name!r} counts {company_state.balance}, but its apps add up to {companies[name]}"
        if company_state.leaving != leaving[name]:
            yield f"company {name!r} counts {company_state.leaving} that leaves, but its apps add up to {leaving[name]}"
        for user_name, user_state in company_state.users.items():
            if user_state.balance != users[name, user_name]:
                yield f"user {user_name!r} of {name!r} counts {user_state.balance}, not {users[name, user_name]}"


def _departments(state: ClusterState) -> Iterator[str]:
    """What departments hold is what their companies hold together (semantics H12, O2)."""
    for name, each in state.departments.items():
        theirs = [company for company in state.companies.values() if each in company.above]
        sums = Balance(
            sum([company.balance.requested for company in theirs], NOTHING),
            sum([company.balance.granted for company in theirs], NOTHING),
        )
        leaving = sum([company.leaving for company in theirs], NOTHING)
        last = max([company.last_selected for company in theirs], default=0)
        standing = Occupation()
        for company in theirs:
            standing.add(state.claims.of(company.spec.company))
        if each.standing != standing:
            yield f"department {name!r} counts {each.standing}, but its companies claim {standing} together"
        if (each.balance, each.leaving, each.last_selected, each.companies) != (sums, leaving, last, len(theirs)):
            yield f"department {name!r} counts {each.balance}, but its companies add up to {sums}"
        if [one.name for one in each.above] != _names_above(state, each.spec.parent):
            yield f"department {name!r} is not in those that its parents are in"
    for name, company in state.companies.items():
        if [one.name for one in company.above] != _names_above(state, company.department):
            yield f"company {name!r} is not in the departments above it"
        if not _same(state.claims.of(name).above, [one.standing for one in company.above]):
            yield f"company {name!r} does not count in the departments above it"


def _names_above(state: ClusterState, department: str) -> list[str]:
    found: list[str] = []
    while department:
        found.append(department)
        department = state.departments[department].spec.parent
    return found


def _claims(state: ClusterState) -> Iterator[str]:
    """What the cluster, companies and users count of their apps' claims (semantics A8, C5)."""
    claims = state.claims
    claimed: defaultdict[tuple[str, ...], Resources] = defaultdict(Resources)
    unserved: defaultdict[tuple[str, ...], Resources] = defaultdict(Resources)
    for app in state.apps.values():
        company, user = app.spec.company, app.spec.user
        live = _sum([one for one in app.allocations() if state.workers[one.worker].status == "alive"])
        claim = live + app.more
        if claim != NOTHING:
            claimed[()] += claim
            claimed[company,] += claim
            claimed[company, user] += claim
        if app.unserved:
            unserved[company,] += app.requested
            unserved[company, user] += app.requested
    known: list[tuple[tuple[str, ...], Occupation]] = [((), claims.total)]
    known += [((name,), each) for name, each in claims.companies.items()]
    known += [(user, each) for user, each in claims.users.items()]
    for level, standing in known:
        if (standing.claimed, standing.unserved) != (claimed[level], unserved[level]):
            yield f"{level or 'the cluster'} counts {standing} where its apps claim {claimed[level]}"


def _sizes(state: ClusterState) -> Iterator[str]:
    """The sizes of the executors of each company's apps (semantics H2)."""
    found: defaultdict[str, Counter[Resources]] = defaultdict(Counter)
    for app in state.apps.values():
        if app.ended is None:
            found[app.spec.company][state.claims.size(app.sizing, app.spec.cores_per_task)] += 1
    for name, company in state.companies.items():
        if company.sizes != found[name]:
            yield f"company {name!r} counts executors of {company.sizes}, but its apps have {dict(found[name])}"


def _needs(state: ClusterState) -> Iterator[str]:
    """Which needs live workers could host (semantics N3)."""
    live = [worker for worker in state.workers.values() if worker.status == "alive"]
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for app in state.apps.values():
        used[app.spec.company].update(demands_of(app.spec) if app.ended is None else ())
    for name, company in state.companies.items():
        if company.demands != used[name]:
            yield f"company {name!r} counts the demands {company.demands}, but its apps have {dict(used[name])}"
    if {demand for demands in used.values() for demand in demands} != state.demands.number.keys():
        yield f"the demands {sorted(state.demands.number)} are in use, against those of the apps"
    for need in state.claims.needs.values():
        sizes = [size for size in (need.least, need.driver) if size.cores]
        offers = [worker.offer for worker in live if met_by(need.demand, worker.labels, worker.taints)]
        fits = all(any(offer.covers(size) for offer in offers) for size in sizes)
        if fits and need.gang:
            fits = sum([offer.holds(need.executor) for offer in offers]) >= need.gang
        if need.hostable != fits and (not need.demand or need.demand in used):
            yield f"live workers could host {need.least} or not, against what they offer"
    known = {id(need) for need in state.claims.needs.values()}
    if strangers := sorted(app.id for app in state.apps.values() if id(app.need) not in known):
        yield f"the needs of the apps {strangers} are not among those that are known"


def _numbers(state: ClusterState) -> Iterator[str]:
    """How many pending and admitted apps companies and users count where there are limits (semantics N1)."""
    if not state.claims.counts_apps:
        return
    counts: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for app in state.apps.values():
        if app.ended is None:
            for user in ("", app.spec.user):
                counts[app.spec.company, user][app.admitted > 0] += 1
    known = {**{(name, ""): each for name, each in state.claims.companies.items()}, **state.claims.users}
    for holder, standing in known.items():
        if [standing.pending, standing.apps] != counts[holder]:
            yield f"{holder} counts {standing.pending} pending and {standing.apps} admitted apps, not {counts[holder]}"


def _claim(app: App, state: ClusterState) -> Iterator[str]:
    """What the app needs and claims (semantics A8)."""
    name, need = app.id, app.need
    if app.ended is None and need is not state.claims.need_of(app):
        yield f"app {name!r} needs something else of a worker than its demand says"
    if (app.usable, app.more) != (usable_executors(app), need.more(app, state.fleet)):
        yield f"app {name!r} counts {counted(app.usable, 'executor')} and {app.more} that it can still use"
    if app.usable and app.admitted not in need.owed:
        yield f"app {name!r} is not kept among those that can use executors of its need"
    never = app.admitted > 0 and app.ended is None and not app.next_executor and not app.tries.next_driver
    if app.unserved != (never and state.claims.counts_unserved):
        yield f"app {name!r} was granted something or not, against its facts"


def _worker(worker: Worker) -> Iterator[str]:
    held = _sum((*worker.executors.values(), *worker.drivers.values()))
    if worker.offer - worker.free != held:
        yield f"worker {worker.id!r} has {worker.free} free, but its executors and drivers hold {held}"
    if not worker.free.covers(NOTHING):
        yield f"worker {worker.id!r} is granted beyond its offer: {worker.free} free"
    if worker.offer.others or worker.addresses:
        yield from _addresses(worker)


def _addresses(worker: Worker) -> Iterator[str]:
    """Whether what is offered and granted is what the addresses amount to, none of them twice (semantics R1, R5)."""
    if amounts_of({kind: len(set(found)) for kind, found in worker.addresses.items()}) != worker.offer.others:
        yield f"worker {worker.id!r} offers {worker.offer}, but the addresses {worker.addresses}"
    held = list(worker.granted_addresses())
    offered = {(kind, address) for kind, addresses in worker.addresses.items() for address in addresses}
    if len(set(held)) < len(held) or not offered.issuperset(held):
        yield f"worker {worker.id!r} grants the addresses {held}, one of them twice or not offered"
    if amounts_of(Counter(kind for kind, _ in held)) != (worker.offer - worker.free).others:
        yield f"worker {worker.id!r} grants the addresses {held}, but counts {worker.offer - worker.free}"


def _leaving(app: App) -> Iterator[str]:
    """What of it was told to stop, and what of that changes its place (semantics A5, H6)."""
    moving = [one for one in app.executors.values() if one.moved]
    if app.leaving != _sum([one for one in app.allocations() if one.status == "stopping"]):
        yield f"app {app.id!r} counts {app.leaving} that leaves, against its executors"
    if (app.moved, app.moving) != (len(moving), _sum(moving)):
        yield f"app {app.id!r} counts {counted(app.moved, 'executor')} that change their place, not {len(moving)}"


def _app(app: App, state: ClusterState) -> Iterator[str]:
    name = app.id
    held = _sum(app.allocations())
    if app.granted != held:
        yield f"app {name!r} counts {app.granted} granted, not {held}"
    yield from _leaving(app)
    if app.executor_limit is None and not app.requested.covers(held - app.moving + Resources(app.done_cores)):
        yield f"app {name!r} is granted {held} beyond its request"
    if app.running != [executor.status for executor in app.executors.values()].count("running"):
        yield f"app {name!r} counts {app.running} running executors"
    if app.started != sum(executor.started for executor in app.executors.values()):
        yield f"app {name!r} counts {counted(app.started, 'executor')} that were started"
    if (app.running_since is not None) != (app.max_runtime_s is not None and app.runs):
        yield f"the clock of app {name!r} runs or not, against its executors"
    if (name in state.waiting) != bool(app.admitted and app.ended is None):
        yield f"app {name!r} in state {app.state} is wrongly in or missing from waitingApps"
    if not app.admitted and any(held.status != "stopping" or not app.restarts for held in app.allocations()):
        yield f"app {name!r} has executors but is not admitted"
    if app.owed != state.wants_executors(app):
        yield f"app {name!r} is owed {counted(app.left_cores, 'core')}, but its flag `owed` is {app.owed}"


def _fleet_and_places(state: ClusterState) -> Iterator[str]:
    live = [worker for _, worker in sorted(state.workers.items()) if worker.status == "alive"]
    if state.fleet.live_workers() != {worker.id: worker.open_to(None) for worker in live}:
        yield "the fleet index differs from the live workers"
    if state.fleet.live != len(live):
        yield f"the fleet counts {state.fleet.live} live workers, but there are {len(live)}"
    total = sum((worker.offer for worker in live), NOTHING)
    if state.fleet.total != total:
        yield f"the fleet counts {state.fleet.total}, but the live workers offer {total}"
    for worker in live:
        windows = [each.id for each in state.windows.values() if worker.id in each.names]
        windows.sort(key=lambda name: state.windows[name].begin)
        met = class_of(state.demands.number, worker.labels, worker.taints, windows)
        if (known := state.fleet.marks[worker.id].met) != met:
            yield f"worker {worker.id!r} is of the class {known}, but its labels make {met}"
    if (found := sum(state.fleet.offers().values())) != len(live):
        yield f"the fleet counts {found} offers, but there are {len(live)} live workers"


def _pending_and_waiting(state: ClusterState) -> Iterator[str]:
    pending = [app for app in state.apps.values() if not app.admitted and app.ended is None]
    ready = sorted((app.ready_position, app.id) for app in pending if app.ready)
    users = [user for company in state.queue.companies.values() for user in company.users.values()]
    if ready != sorted((item.ready_position, item.id) for user in users for item in user.by_policy):
        yield "the queue differs from the pending apps that are ready"
    if list(state.queue.arrivals) != [name for _, name in ready]:
        yield "the arrivals are not the pending apps in the order in which they became ready"
    if any(state.queue.arrivals[name] is not state.apps[name] for name in state.queue.arrivals):
        yield "the queue has other pending apps than the facts"
    for ask, line in ((ask, line) for user in users for ask, line in user.by_ask.items()):
        if any(ask_of(app) != ask for app in line) or list(line) != sorted(line, key=line.key):
            yield f"the apps in the queue of {ask.request} ask for something else, or are not in order"
    yield from _dependencies(state, sorted(pending, key=lambda app: app.submitted))
    yield from _waiting(state)
    if state.executors.keys() != {e for app in state.apps.values() for e in app.executors}:
        yield "the executors differ from those of the apps"
    if state.executors.keys() != {e for worker in state.workers.values() for e in worker.executors}:
        yield "the executors differ from those of the workers"


def _waiting(state: ClusterState) -> Iterator[str]:
    """Whether waitingApps is in the order of admission, and each company's part of it (semantics A3)."""
    admitted = [app.admitted for app in state.waiting.values()]
    if admitted != sorted(admitted):
        yield "waitingApps is not in the order of admission"
    theirs: defaultdict[str, list[str]] = defaultdict(list)
    for app in state.waiting.values():
        theirs[app.spec.company].append(app.id)
    for name, company in state.companies.items():
        if list(company.waiting) != theirs[name]:
            yield f"the apps of company {name!r} in waitingApps are others than {theirs[name]}"


def _dependencies(state: ClusterState, pending: list[App]) -> Iterator[str]:
    """Whether apps wait for those that have not ended, or for one that ended otherwise (semantics J1, J2)."""
    dependents: defaultdict[str, list[str]] = defaultdict(list)
    for app in pending:
        for name in app.awaits:
            if name in state.apps and state.apps[name].ended is None:
                dependents[name].append(app.id)
    if {name: list(apps) for name, apps in state.dependents.of.items()} != dependents:
        yield f"the apps that wait for others are not {dict(dependents)}"


def _drivers(state: ClusterState) -> Iterator[str]:
    if list(state.drivers.values()) != [d for d in state.drivers.values() if state.apps[d.app].driver is d]:
        yield "the drivers differ from those of the apps"
    if state.drivers.keys() != {driver for worker in state.workers.values() for driver in worker.drivers}:
        yield "the drivers differ from those of the workers"


def _holds(state: ClusterState) -> Iterator[str]:
    """Targets and what leaves, as the workers, the apps and the state know it (semantics H6)."""
    for worker in state.workers.values():
        stopping = [one for one in (*worker.executors.values(), *worker.drivers.values()) if one.status == "stopping"]
        if worker.leaving != _sum(stopping):
            yield f"worker {worker.id!r} counts {worker.leaving} as leaving, but {_sum(stopping)} is"
        if list(worker.holds) != [hold.id for hold in state.holds.values() if hold.worker == worker.id]:
            yield f"the holds on worker {worker.id!r} are not those of the state"
    for name, app in state.apps.items():
        if list(app.holds) != [hold.id for hold in state.holds.values() if hold.app == name]:
            yield f"the holds of app {name!r} are not those of the state"
    for hold in state.holds.values():
        leaving = {one.id for one in state.executors.values() if one.claim == hold.id}
        if hold.leaving.keys() != leaving:
            yield f"the executors that leave for the hold at {hold.id} are not {sorted(leaving)}"


def _slots(state: ClusterState) -> Iterator[str]:
    """Whose slots are kept: those of apps that have not ended, at most one a company (semantics H10)."""
    if strangers := [name for name in state.slots if name not in state.apps or state.apps[name].ended is not None]:
        yield f"slots of the apps {strangers} are kept, which have ended"
    companies = Counter([state.apps[name].spec.company for name in state.slots if name in state.apps])
    if several := [company for company, number in companies.items() if number > 1]:
        yield f"the companies {several} have more than one slot"


def _followed(state: ClusterState) -> Iterator[str]:
    """Whether the indexes followed the facts: looking at every app and every worker again changes nothing."""
    times = state.timers.table  # brings everything up to date
    state.changed.everything(state.apps, state.workers)
    if moved := state.refresh():
        yield f"the indexes did not follow the facts of {sorted(set(moved))}"
    if strangers := sorted(state.indexes.names() - state.apps.keys() - state.workers.keys()):
        yield f"the indexes hold {strangers}, which are gone"
    if state.timers.table != times:
        yield f"the timers are {times}, but {state.timers.table} are due"
    known = {each.id: (each.offer, each.labels, each.taints) for each in state.known_workers()}
    counted = {name: (one.offer, one.labels, one.taints) for one in state.offers.all() for name in one.workers}
    if counted != known:
        yield f"workers are counted to offer {counted} where they offer {known}"


def _queue(name: str, queue: CompanyQueue, state: ClusterState) -> Iterator[str]:
    company, tenant = state.companies[name], queue.tenant
    if (tenant.quota, tenant.last_selected) != (state.quota(name), company.last_selected):
        yield f"the queue has another quota or turn of company {name!r} than the facts"
    if tenant.standing is not state.claims.of(name):
        yield f"the queue has other claims of company {name!r} than the state"
    if queue.asking != {user: each for user, each in queue.users.items() if each.by_ask}:
        yield f"the users of company {name!r} that have pending apps are not {sorted(queue.asking)}"
    for user_name, user in queue.users.items():
        known, facts = user.contender, company.users[user_name]
        if (known.last_selected, known.last_selected_at) != (facts.last_selected, facts.last_selected_at):
            yield f"the queue has another turn of user {user_name!r} of {name!r} than the facts"


def _limit(name: str, queue: CompanyQueue, state: ClusterState) -> Iterator[str]:
    """The limits by which the company's apps are passed over (semantics N2)."""
    limit, limits = queue.limit, state.limits
    theirs = {user: limits.ceiling(name, user) for user in queue.users} if limits.values else {}
    if limit.ceiling != limits.ceiling(name) or {user: each for user, (each, _) in limit.ceilings.items()} != {
        user: each for user, each in theirs.items() if each is not None
    }:
        yield f"other limits count for company {name!r} than there are"
    above = {each.name: limits.ceiling("", each.name) for each in state.companies[name].above}
    if {each: ceiling for each, ceiling, _ in limit.above} != {each: one for each, one in above.items() if one} or not (
        _same([one for _, _, one in limit.above], [state.departments[each].standing for each, _, _ in limit.above])
    ):
        yield f"other limits of departments count for company {name!r} than there are"


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    return [id(each) for each in some] == [id(each) for each in others]


def _sum(held: Collection[Allocation]) -> Resources:
    return sum((allocation.resources for allocation in held), NOTHING)
