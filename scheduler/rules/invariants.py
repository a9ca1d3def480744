"""Recompute the ledgers and indexes of a state from its apps, executors and workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from scheduler.model.errors import InvariantViolated
from scheduler.model.events import Computed
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.ledger import Balance, add_grant, add_request
from scheduler.rules.placement.delay import timers_of
from scheduler.rules.timers import Timer

if TYPE_CHECKING:
    from scheduler.rules.admission.queue import CompanyQueue
    from scheduler.rules.entities import Allocation, App, Worker
    from scheduler.rules.state import ClusterState


def check(state: ClusterState) -> None:
    """Raises: InvariantViolated naming the position and the first difference (semantics O2)."""
    for violation in violations(state):
        raise InvariantViolated(state.head, violation)


def violations(state: ClusterState) -> Iterator[str]:
    """A sentence for each ledger or index that differs from the recomputed one (semantics O2)."""
    yield from _balances(state)
    for worker in state.workers.values():
        yield from _worker(worker)
    for app in state.apps.values():
        yield from _app(app, state)
    yield from _fleet_and_places(state)
    yield from _pending_and_waiting(state)
    yield from _drivers_and_owed(state)
    for name, queue in state.queue.companies.items():
        yield from _queue(name, queue, state)
        yield from _limit(name, queue, state)
    yield from _timers(state)


def _balances(state: ClusterState) -> Iterator[str]:
    cluster = Balance()
    companies: defaultdict[str, Balance] = defaultdict(Balance)
    users: defaultdict[tuple[str, str], Balance] = defaultdict(Balance)
    for app in state.apps.values():
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
        for user_name, user_state in company_state.users.items():
            if user_state.balance != users[name, user_name]:
                yield f"user {user_name!r} of {name!r} counts {user_state.balance}, not {users[name, user_name]}"


def _worker(worker: Worker) -> Iterator[str]:
    held = _sum((*worker.executors.values(), *worker.drivers.values()))
    if worker.offer - worker.free != held:
        yield f"worker {worker.id!r} has {worker.free} free, but its executors and drivers hold {held}"
    if not worker.free.covers(NOTHING):
        yield f"worker {worker.id!r} is granted beyond its offer: {worker.free} free"


def _app(app: App, state: ClusterState) -> Iterator[str]:
    name = app.spec.app
    held = _sum(app.allocations())
    if app.granted != held:
        yield f"app {name!r} counts {app.granted} granted, not {held}"
    if not app.requested.covers(held + Resources(app.done_cores)):
        yield f"app {name!r} is granted {held} beyond its request"
    if app.running != [executor.status for executor in app.executors.values()].count("running"):
        yield f"app {name!r} counts {app.running} running executors"
    if app.started != sum(executor.started for executor in app.executors.values()):
        yield f"app {name!r} counts {app.started} executors that were started"
    if (app.running_since is not None) != (app.max_runtime_s is not None and app.runs):
        yield f"the clock of app {name!r} runs or not, against its executors"
    if (name in state.waiting) != bool(app.admitted and app.ended is None):
        yield f"app {name!r} in state {app.state} is wrongly in or missing from waitingApps"
    if app.executors and not app.admitted:
        yield f"app {name!r} has executors but was never admitted"
    if app.owed != state.wants_executors(app):
        yield f"app {name!r} is owed {app.left_cores} cores, but its flag `owed` is {app.owed}"


def _fleet_and_places(state: ClusterState) -> Iterator[str]:
    live = [worker for _, worker in sorted(state.workers.items()) if worker.status == "alive"]
    if state.fleet.live_workers() != {worker.id: worker.free for worker in live}:
        yield "the fleet index differs from the live workers"
    if state.fleet.live != len(live):
        yield f"the fleet counts {state.fleet.live} live workers, but there are {len(live)}"
    total = sum((worker.offer for worker in live), NOTHING)
    if state.fleet.total != total:
        yield f"the fleet counts {state.fleet.total}, but the live workers offer {total}"
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    racks: defaultdict[str, list[str]] = defaultdict(list)
    for worker in live:
        hosts[worker.host].append(worker.id)
        if worker.rack:
            racks[worker.rack].append(worker.id)
    if (state.places.by_host, state.places.by_rack) != (hosts, racks):
        yield "the places differ from those of the live workers"


def _pending_and_waiting(state: ClusterState) -> Iterator[str]:
    waiting = sorted((app.submitted, name) for name, app in state.apps.items() if not app.admitted and not app.ended)
    pending = [name for _, name in waiting]
    users = [user for company in state.queue.companies.values() for user in company.users.values()]
    if waiting != sorted((item.submitted, item.app) for user in users for _, item in user.by_policy):
        yield "the queue differs from the pending apps"
    if list(state.queue.arrivals) != pending:
        yield "the arrivals are not the pending apps in the order of submission"
    admitted = [app.admitted for app in state.waiting.values()]
    if admitted != sorted(admitted):
        yield "waitingApps is not in the order of admission"
    if state.executors.keys() != {e for app in state.apps.values() for e in app.executors}:
        yield "the executors differ from those of the apps"
    if state.executors.keys() != {e for worker in state.workers.values() for e in worker.executors}:
        yield "the executors differ from those of the workers"


def _drivers_and_owed(state: ClusterState) -> Iterator[str]:
    owing = [app for app in state.waiting.values() if state.wants_executors(app)]
    owed = [app.admitted for app in owing]
    if state.unsatisfied != owed:
        yield f"the unsatisfied apps are those admitted at {state.unsatisfied}, but placement owes those at {owed}"
    if state.unsatisfied_as_asked != [app.admitted for app in owing if not isinstance(app.sizing, Computed)]:
        yield f"the apps admitted at {state.unsatisfied_as_asked} are not the unsatisfied ones with a stated sizing"
    placing = [app for app in state.waiting.values() if app.spec.driver and app.driver is None]
    waiting = sorted(app.submitted for app in placing if not app.expired_at)
    if state.waiting_drivers != waiting:
        yield f"the drivers of the apps submitted at {waiting} wait, but the index holds {state.waiting_drivers}"
    held = sum(d.resources.cores for d in state.drivers.values() if state.workers[d.worker].status == "alive")
    if state.driver_cores != held:
        yield f"the state counts {state.driver_cores} cores of drivers on live workers, but they hold {held}"
    if list(state.drivers.values()) != [d for d in state.drivers.values() if state.apps[d.app].driver is d]:
        yield "the drivers differ from those of the apps"
    if state.drivers.keys() != {driver for worker in state.workers.values() for driver in worker.drivers}:
        yield "the drivers differ from those of the workers"


def _timers(state: ClusterState) -> Iterator[str]:
    """Whether the timers are those that the facts call for (semantics T1)."""
    due = [
        Timer(when, app.admitted, app.spec.app, what)
        for app in state.waiting.values()
        for when, what in timers_of(app, state.settings)
    ]
    reserve = [(state.queue.reservation_due(name), name) for name in state.companies]
    due += [Timer(when, 0, name, "reservation") for when, name in reserve if when is not None]
    if state.timers.table != sorted(due):
        yield f"the timers are {state.timers.table}, but {sorted(due)} are due"


def _queue(name: str, queue: CompanyQueue, state: ClusterState) -> Iterator[str]:
    company, tenant = state.companies[name], queue.tenant
    if (tenant.quota, tenant.last_selected) != (state.quota(name), company.last_selected):
        yield f"the queue has another quota or turn of company {name!r} than the facts"
    if (name in state.queue.borrowers) != company.spec.borrow:
        yield f"the queue contradicts the facts on whether company {name!r} borrows"
    for user_name, user in queue.users.items():
        known, facts = user.contender, company.users[user_name]
        if (known.last_selected, known.last_selected_at) != (facts.last_selected, facts.last_selected_at):
            yield f"the queue has another turn of user {user_name!r} of {name!r} than the facts"


def _limit(name: str, queue: CompanyQueue, state: ClusterState) -> Iterator[str]:
    limit = queue.limit
    heads = {user.by_policy[0][1].app: user.by_policy[0][1] for user in queue.users.values() if user.by_policy}
    judged = {app for group in limit.groups.values() for app in group.heads}
    requests = {head.request for head in heads.values()}
    if heads.keys() - limit.reserved.keys() != judged or requests != limit.groups.keys():
        yield f"the quota limit of company {name!r} holds other apps than the next ones of its users"
    for request, group in limit.groups.items():
        held = not limit.admits(request) and limit.fits_alone(request)
        if group.passes != limit.admits(request) or (group.held_since is not None) != held:
            yield f"company {name!r} passes or holds back {request} contrary to its quota"
    waiting = sorted(one for one in limit.reserved.values() if state.apps[one[2].app].state == "pending")
    if waiting != limit.reservations:
        yield f"company {name!r} reserves room for apps that are not pending"


def _sum(held: Collection[Allocation]) -> Resources:
    return sum((allocation.resources for allocation in held), NOTHING)
