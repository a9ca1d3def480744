# ruff: noqa: PLR0911 - a check is one condition after the other
"""What must hold before an event is folded: one function for each type of event, which reads the facts only.

Each answers None, or the number of the rule that the event breaks and the reason. They are asked before anything is
changed, by whoever folds: the master, a standby, the audit and a snapshot's reader alike. Whether an event had to come
is not asked here: that is the audit's question.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from scheduler.model import events
from scheduler.model.errors import CommandRejected
from scheduler.model.events import Computed, Event, Fixed
from scheduler.model.ids import driver_id, executor_id
from scheduler.model.resources import NOTHING, Resources, amounts_of
from scheduler.model.terms import Range, ranges_of
from scheduler.model.text import counted
from scheduler.rules.admission.limits import HIGHEST, NAMES, RATE, kind_of
from scheduler.rules.checks.kinds import check_addresses, check_kind, check_registered, check_still_offered
from scheduler.rules.checks.validate import (
    MAX_PRIORITY,
    changed_settings,
    check_label_terms,
    check_labels,
    check_taints,
    read_part,
)
from scheduler.rules.entities.accounts import KINDS, OF_A_COMPANY
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.grants import Hold
from scheduler.rules.entities.labels import met_by
from scheduler.rules.entities.workers import Worker
from scheduler.rules.state.backfill import lent_on
from scheduler.rules.state.departments import check_empty, check_limits, check_place
from scheduler.rules.state.facts import Facts

EDITIONS = (2, 3)
"""The editions of the rules of sharing that can be in force."""
EDITION_2 = 2
TARGETS = ("surplus", "move", "plan", "cap")
_LEAST = Resources(1, 1)
"""The least that a worker offers (semantics W1)."""
_RANGES = ranges_of(events.AppRegistered)
_TERMS, _stated = list(_RANGES.values()), attrgetter(*_RANGES)

Broken = tuple[str, str] | None
"""(number of the rule, reason), None if the event can be folded."""


def _master_elected(_: Facts, event: events.MasterElected) -> Broken:
    return None if event.master else ("T2", "a master has a name")


def _cluster_configured(_: Facts, event: events.ClusterConfigured) -> Broken:
    try:
        changed_settings(event, {})
    except CommandRejected as error:
        return "Settings", str(error)
    return None


def _kind_registered(state: Facts, event: events.KindRegistered) -> Broken:
    if event.kind in state.kinds:
        return "R1", f"kind {event.kind!r} is registered already"
    return _refused("R1", lambda: check_kind(event.kind))


def _refused(rule: str, check: Callable[[], object]) -> Broken:
    """The sentence of the refusal, if the check refuses."""
    try:
        check()
    except CommandRejected as error:
        return rule, str(error)
    return None


def _company_registered(state: Facts, event: events.CompanyRegistered) -> Broken:
    if event.company in state.companies:
        return "C2", f"company {event.company!r} is registered already"
    if event.company in state.accounts.inhabited:
        return "I2", f"company {event.company!r} had accounts and was removed"
    return _quota(state, event)


def _company_changed(state: Facts, event: events.CompanyChanged) -> Broken:
    if event.company not in state.companies:
        return "C2", f"company {event.company!r} is not registered"
    return _quota(state, event)


def _quota(state: Facts, event: events.CompanyRegistered) -> Broken:
    if (broken := _amounts_or_part(state, event, f"company {event.company!r}")) is not None:
        return broken
    if any(time_s is not None and time_s < 1 for time_s in (event.default_max_runtime_s, event.max_max_runtime_s)):
        return "X1", f"apps of company {event.company!r} cannot run for less than 1 s"
    return None


def _amounts_or_part(state: Facts, event: events.CompanyRegistered | events.DepartmentAdded, whose: str) -> Broken:
    if event.amounts is not None:
        if event.part is not None:
            return "C2", "a quota is amounts, a part of the cluster, or neither"
        if not event.amounts.covers(NOTHING):
            return "C2", f"a quota of {event.amounts} is negative"
    named = {kind for kind, _ in event.amounts.others} if event.amounts else set()
    if not named <= set(event.kinds) or (event.kinds and event.amounts is None):
        return "R4", f"the quota of {whose} does not name the kinds of which it has amounts"
    if (broken := _refused("R1", lambda: check_registered(state.kinds, event.kinds))) is not None:
        return broken
    if event.part is not None:
        try:
            if "/" not in event.part:
                return "C2", f"a quota's part is n/d, not {event.part!r}"
            read_part(event.part)
        except CommandRejected as error:
            return "C2", str(error)
    return None


def _limit_set(state: Facts, event: events.LimitSet) -> Broken:
    least = int(event.name == RATE)
    known = event.name in NAMES or kind_of(event.name) in state.kinds
    if not known or (event.value is not None and not least <= event.value <= HIGHEST):
        return "N1", f"limit {event.name!r} cannot be {event.value}"
    if (event.company and event.company not in state.companies) or (event.user and not event.company):
        return "N1", f"company {event.company!r} is not registered"
    if event.department and (event.company or event.department not in state.departments):
        return "H12", f"department {event.department!r} does not exist"
    return None


def _company_removed(state: Facts, event: events.CompanyRemoved) -> Broken:
    company = state.companies.get(event.company)
    if company is None:
        return "C2", f"company {event.company!r} is not registered"
    return ("C2", f"company {event.company!r} still has {counted(company.apps, 'app')}") if company.apps else None


def _department_added(state: Facts, event: events.DepartmentAdded) -> Broken:
    if event.department in state.departments:
        return "H12", f"department {event.department!r} is known already"
    return _department(state, event)


def _department_changed(state: Facts, event: events.DepartmentChanged) -> Broken:
    if event.department not in state.departments:
        return "H12", f"department {event.department!r} is not known"
    return _department(state, event)


def _department(state: Facts, event: events.DepartmentAdded) -> Broken:
    """Its quota is one, its limits are parts of it, and its place makes neither a circle nor too deep a tree (H12)."""
    if (broken := _amounts_or_part(state, event, f"department {event.department!r}")) is not None:
        return broken
    if not check_limits(event):
        return "H12", f"the limits of department {event.department!r} are no parts of its quota"
    return _refused("H12", lambda: check_place(state, event))


def _department_removed(state: Facts, event: events.DepartmentRemoved) -> Broken:
    if event.department not in state.departments:
        return "H12", f"department {event.department!r} is not known"
    return _refused("H12", lambda: check_empty(state, event.department))


def _company_moved(state: Facts, event: events.CompanyMoved) -> Broken:
    company = state.companies.get(event.company)
    if company is None or (event.department and event.department not in state.departments):
        return "H12", f"company {event.company!r} or department {event.department!r} is not known"
    if company.department == event.department:
        return "H12", f"company {event.company!r} is in department {event.department!r} already"
    return None


def _worker_registered(state: Facts, event: events.WorkerRegistered) -> Broken:
    if event.worker in state.workers:
        return "W1", f"worker {event.worker!r} is registered already"
    if not event.offer.covers(_LEAST):
        return "W1", f"worker {event.worker!r} offers {event.offer}, less than {_LEAST}"
    return _addresses(state, event)


def _addresses(state: Facts, event: events.WorkerRegistered | events.WorkerChanged) -> Broken:
    """An offer of further kinds names as many addresses, each once (semantics R1)."""
    if not (event.addresses or event.offer.others):
        return None
    if event.offer.others != amounts_of({kind: len(found) for kind, found in event.addresses.items()}):
        return "R1", f"worker {event.worker!r} offers {event.offer}, but names other addresses"
    return _refused("R1", lambda: check_addresses(state.kinds, event.addresses))


def _worker_labelled(state: Facts, event: events.WorkerLabelled) -> Broken:
    worker = state.workers.get(event.worker)
    if worker is None:
        return "W1", f"worker {event.worker!r} is not registered"
    if (worker.labels, worker.taints) == (event.labels, event.taints):
        return "W1", f"worker {event.worker!r} has these labels already"
    if event.taints and event.taints != check_taints("the log", event.taints):
        return "P9", f"the taints of worker {event.worker!r} are not in order"
    return _refused("W1", lambda: check_labels(event.labels))


_NEXT_STATUS = {
    "alive": {"alive", "draining", "leaving", "decommissioned"},
    "draining": {"alive", "draining", "leaving", "decommissioned"},
    "leaving": {"alive", "draining", "leaving", "decommissioned"},
    "decommissioned": {"decommissioned", "leaving"},
}
"""A worker's status -> those that it may have next (semantics W3)."""


def _worker_changed(state: Facts, event: events.WorkerChanged) -> Broken:
    worker = state.workers.get(event.worker)
    if worker is None:
        return "W3", f"worker {event.worker!r} is not registered"
    if event.status not in _NEXT_STATUS[worker.status]:
        return "W3", f"worker {event.worker!r} is {worker.status} and cannot become {event.status}"
    if worker.decommissioned and (event.status == "alive" or worker.status == "leaving" != event.status):
        return "W3", f"worker {event.worker!r} was decommissioned for good and cannot become {event.status}"
    if event.unwell and event.status != "draining":
        return "W11", f"worker {event.worker!r} cannot be {event.status} and unwell"
    if event.window:
        drains = event.status == "draining" and not event.unwell and event.window in state.windows
        drains = drains and event.worker in state.windows[event.window].names
        if not drains and (event.status, event.window) != ("alive", worker.window):
            return "W14", f"worker {event.worker!r} cannot be {event.status} for the window {event.window!r}"
    least = (worker.offer - worker.free).at_least(_LEAST)
    if not event.offer.covers(least):
        return "W1", f"worker {event.worker!r} must offer at least {least}"
    if (event.addresses, event.offer.others) == (worker.addresses, worker.offer.others):
        return None
    return _addresses(state, event) or _refused("W1", lambda: check_still_offered(worker, event.addresses))


def _worker_removed(state: Facts, event: events.WorkerRemoved) -> Broken:
    worker = state.workers.get(event.worker)
    if worker is None:
        return "W3", f"worker {event.worker!r} is not registered"
    if worker.executors or worker.drivers:
        return "W3", f"worker {event.worker!r} still holds {len(worker.executors) + len(worker.drivers)} allocations"
    return ("W2", f"worker {event.worker!r} was last seen at {event.last_seen}") if event.last_seen < 0 else None


def _window_added(state: Facts, event: events.WindowAdded) -> Broken:
    if event.window in state.windows or not event.workers or len({*event.workers}) < len(event.workers):
        return "W14", f"window {event.window!r} is known already, or does not name workers once each"
    if not state.at <= event.begin < event.end or event.notice_s < 1:
        return "W14", f"window {event.window!r} cannot last from {event.begin} to {event.end}"
    if event.company and event.company not in state.companies:
        return "W14", f"company {event.company!r} is not registered"
    for name in event.workers:
        for other in state.planned.get(name, ()):
            if other.overlaps(event.begin, event.end):
                return "W14", f"worker {name!r} has the window {other.id!r} then"
    return None


def _window_removed(state: Facts, event: events.WindowRemoved) -> Broken:
    return None if event.window in state.windows else ("W14", f"there is no window {event.window!r}")


def _lost_workers_forgotten(state: Facts, event: events.LostWorkersForgotten) -> Broken:
    unknown = [worker for worker in event.workers if worker not in state.lost]
    return ("N3", f"worker {unknown[0]!r} was not lost, or is forgotten") if unknown else None


def _worker_suspected(state: Facts, event: events.WorkerSuspected) -> Broken:
    worker = state.workers.get(event.worker)
    if worker is None or worker.status != "alive":
        return "W8", f"worker {event.worker!r} is not live"
    due = 1 if worker.suspicion is None else worker.suspicion.times + 1
    if event.times != due or event.until <= state.at or not event.executors:
        return "W8", f"worker {event.worker!r} is suspected for time {due}, not {event.times}, until {event.until}"
    return None


def _worker_probed(state: Facts, event: events.WorkerProbed) -> Broken:
    worker = state.workers.get(event.worker)
    if worker is None or worker.suspicion is None or worker.suspicion.on_probe:
        return "W8", f"worker {event.worker!r} is not suspected, or on probe already"
    return None


def _worker_cleared(state: Facts, event: events.WorkerCleared) -> Broken:
    worker = state.workers.get(event.worker)
    if worker is None or worker.suspicion is None:
        return "W8", f"worker {event.worker!r} is not suspected"
    return None


def _app_registered(state: Facts, event: events.AppRegistered) -> Broken:
    if event.app in state.apps:
        return "A1", f"app {event.app!r} is known already"
    if event.company not in state.companies:
        return "A1", f"company {event.company!r} is not registered"
    if (event.cores or 0) < 0 or event.tasks < 0:
        return (
            "A1",
            f"app {event.app!r} asks for {counted(event.cores or 0, 'core')} and {counted(event.tasks, 'task')}",
        )
    if event.cores_per_task < 1:
        return "A7", f"a task of app {event.app!r} has {counted(event.cores_per_task, 'core')}"
    if not event.requested.covers(event.driver or NOTHING):
        return "A2", f"app {event.app!r} requests less than its driver has"
    if event.driver is not None and not event.driver.covers(_LEAST):
        return "D1", f"the driver of app {event.app!r} asks for nothing"
    if event.retry_backoff_s < 0:
        return "W10", f"a task of app {event.app!r} waits {event.retry_backoff_s} s"
    return (
        _sizing(event.app, event.sizing, event.cores_per_task)
        or _in_range(event)
        or _sized(event)
        or _ordered(state, event)
        or _kinds(state, event)
        or _timed(event)
        or _demanding(event)
    )


def _in_range(event: events.AppRegistered) -> Broken:
    """No term is less than it may be (`scheduler.model.terms`)."""
    for value, each in zip(_stated(event), _TERMS, strict=True):
        if value is not None and value < each.least:
            return _beyond(each, event.app, value)
    return None


def _beyond(of: Range, app: str, value: int) -> tuple[str, str]:
    return of.rule, of.broken.format(app=app, value=value)


def _demanding(event: events.AppRegistered) -> Broken:
    """What it demands of its workers' labels is in order (semantics P9)."""
    if not (event.require or event.avoid or event.tolerate or event.prefer_labels):
        return None

    stated = (event.require, event.avoid, event.prefer_labels, event.tolerate)
    if any(list(terms) != sorted(set(terms)) for terms in stated):
        return "P9", f"app {event.app!r} names labels or taints twice, or in another order"
    *labels, taints = stated
    wrong = [_refused("P9", partial(check_label_terms, "the log", terms)) for terms in labels]
    return next(filter(None, wrong), None) or _refused("P9", lambda: check_taints("the log", taints))


def _timed(event: events.AppRegistered) -> Broken:
    if event.max_runtime_s is not None and event.max_runtime_s < 1:
        return "X1", f"app {event.app!r} may run for {event.max_runtime_s} s"
    if event.warn is not None and not (event.warn.before_s > 0 < (event.max_runtime_s or 0) - event.warn.before_s):
        return "X2", f"app {event.app!r} cannot be warned {event.warn.before_s} s before its end"
    return None


def _ordered(state: Facts, event: events.AppRegistered) -> Broken:
    if not event.after and -MAX_PRIORITY <= event.priority <= MAX_PRIORITY:
        return None
    for name, _ in event.after:
        if name not in state.apps or state.apps[name].spec.company != event.company:
            return "J1", f"company {event.company!r} has no app {name!r} that app {event.app!r} could wait for"
    if len({name for name, _ in event.after}) < len(event.after):
        return "J1", f"app {event.app!r} waits twice for the same app"
    return (
        ("Q1", f"app {event.app!r} has the priority {event.priority}") if abs(event.priority) > MAX_PRIORITY else None
    )


def _kinds(state: Facts, event: events.AppRegistered) -> Broken:
    """An app requests registered kinds only (semantics R1)."""
    driver, sizing = event.driver or NOTHING, event.sizing
    others = sizing.per_task if isinstance(sizing, Computed) else sizing.each.others
    if not (others or event.requested.others or driver.others):
        return None
    named = [kind for kind, *_ in (*event.requested.others, *driver.others, *others)]
    if isinstance(sizing, Computed) and any(part < 1 or whole < 1 for _, part, whole in sizing.per_task):
        return "R3", f"a task of app {event.app!r} needs nothing, or less, of a kind"
    return _refused("R1", lambda: check_registered(state.kinds, named))


def _sizing(app: str, sizing: events.Sizing, cores_per_task: int) -> Broken:
    if isinstance(sizing, Computed):
        if sizing.memory_per_task_mb is not None and sizing.memory_per_task_mb < 1:
            return "A2", f"a task of app {app!r} has {sizing.memory_per_task_mb} MiB"
    elif isinstance(sizing, Fixed):
        if not sizing.each.covers(_LEAST):
            return "S5", f"the executors of app {app!r} have {sizing.each}"
        if sizing.each.cores < cores_per_task:
            return (
                "A7",
                f"the executors of app {app!r} have {counted(sizing.each.cores, 'core')}, its tasks {cores_per_task}",
            )
    elif sizing.memory_mb < 1:
        return "S5", f"the executors of app {app!r} have {sizing.memory_mb} MiB"
    return None


def _by_number(event: events.AppRegistered) -> bool:
    """Whether it asks for a number of executors of one size."""
    return isinstance(event.sizing, Fixed) and event.sizing.counted and event.executor_limit is not None


def _sized(event: events.AppRegistered) -> Broken:
    if event.cores is None and isinstance(event.sizing, Computed):
        return "S5", f"app {event.app!r} does not size its executors"
    if event.elastic is not None:
        least, most, backlog, step = event.elastic
        if not _by_number(event) or not 0 <= least <= backlog <= most or step < 1:
            return "L6", f"app {event.app!r} cannot be elastic between {least} and {counted(most, 'executor')}"
    if event.gang and not (event.programs and event.executor_limit and event.driver is None):
        return "G8", f"app {event.app!r} is a gang without a number of executors that run programs"
    if event.programs and (not _by_number(event) or event.tasks or event.elastic is not None):
        return "G1", f"the executors of app {event.app!r} run a program, without tasks, in a stated number"
    if event.owner_timeout_s is not None and event.driver is not None:
        return _beyond(_RANGES["owner_timeout_s"], event.app, event.owner_timeout_s)
    if event.max_failures is not None and not event.programs:
        return _beyond(_RANGES["max_failures"], event.app, event.max_failures)
    return None


def _of_a_pending_app(state: Facts, event: events.RoomReserved | events.ReservationLapsed) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.admitted or app.ended is not None:
        return "C7", f"app {event.app!r} is not pending"
    return None


def _app_admitted(state: Facts, event: events.AppAdmitted) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.admitted or app.ended is not None:
        return "A3", f"app {event.app!r} is not pending"
    if app.spec.company != event.company or app.spec.user != event.user:
        return "A3", f"app {event.app!r} is of user {app.spec.user!r} of company {app.spec.company!r}"
    if not app.ready:
        return "J2", f"app {event.app!r} is not ready"
    return None


def _granted(state: Facts, app: App | None, event: events.ExecutorAllocated | events.DriverAllocated) -> Broken:
    """What every grant of a worker to an app needs: an admitted app, a live worker with room, an amount."""
    if app is None or not app.admitted or app.ended is not None:
        return "P6", f"app {event.app!r} is not in waitingApps"
    if app.expired_at:
        return "X2", f"the time of app {event.app!r} is over"
    worker = state.workers.get(event.worker)
    if worker is None or worker.status != "alive":
        return "P1", f"worker {event.worker!r} is not live"
    if worker.suspicion is not None and (worker.suspicion.shut or isinstance(event, events.DriverAllocated)):
        return "W8", f"worker {event.worker!r} is suspected until {worker.suspicion.until}, or has its probe"
    if not met_by(app.need.demand, worker.labels, worker.taints):
        return "P9", f"worker {event.worker!r} does not meet what app {event.app!r} demands of its labels"
    if not event.resources.fits(worker.free):
        return "P1", f"worker {event.worker!r} has {worker.free} free, no room for {event.resources}"
    if worker.holds:
        open_to = worker.open_to(event.app, lent_on(state, worker, app))
        if not open_to.covers(event.resources):
            return "H6", f"on worker {event.worker!r} only {open_to} are not held for others"
    return _free_addresses(worker, event) if event.addresses or event.resources.others else None


def _free_addresses(worker: Worker, event: events.ExecutorAllocated | events.DriverAllocated) -> Broken:
    """A grant names the addresses of its further kinds, and none is granted twice (semantics R5)."""
    if event.resources.others != amounts_of({kind: len(set(found)) for kind, found in event.addresses.items()}):
        return "R5", f"a grant of {event.resources} on worker {worker.id!r} names other addresses"
    held = set(worker.granted_addresses())
    for kind, addresses in event.addresses.items():
        for address in addresses:
            if address not in worker.addresses.get(kind, ()):
                return "R5", f"worker {worker.id!r} does not offer {kind} {address!r}"
            if (kind, address) in held:
                return "R5", f"{kind} {address!r} of worker {worker.id!r} is granted already"
    return None


def _executor_allocated(state: Facts, event: events.ExecutorAllocated) -> Broken:
    app = state.apps.get(event.app)
    broken = _granted(state, app, event)
    if broken is not None or app is None:
        return broken
    if app.spec.gang and app.executors and state.forming != event.app:
        return "G8", f"app {event.app!r} is a gang, and is granted its executors when it holds none"
    if event.executor != executor_id(event.app, app.next_executor):
        return "P6", f"the next executor of app {event.app!r} is {executor_id(event.app, app.next_executor)!r}"
    if app.spec.driver is not None and not app.driver_runs:
        return "D1", f"the driver of app {event.app!r} does not run"
    request = app.requested
    if event.requested is not None:
        if not event.requested.covers(request):
            return "O1", f"a grant does not lower the request of app {event.app!r}"
        request = event.requested
    held = app.granted + Resources(app.done_cores) if app.done_cores else app.granted
    if app.moved:
        held -= app.moving
    if not request.has_room(held, event.resources):
        return "A2", f"app {event.app!r} requests {request}, and would be granted more"
    return None


def of_whole_gang(state: Facts, event: Event, at: int) -> Broken:
    """A gang of which some executors are granted gets the others in the same turn, before anything else (G8)."""
    if isinstance(event, events.ExecutorAllocated) and event.app == state.forming and at == state.at:
        return None
    return "G8", f"app {state.forming!r} is a gang, and is granted a part of its executors"


def _driver_allocated(state: Facts, event: events.DriverAllocated) -> Broken:
    app = state.apps.get(event.app)
    broken = _granted(state, app, event)
    if broken is not None or app is None:
        return broken
    if app.spec.driver is None or app.driver is not None:
        return "D1", f"no driver of app {event.app!r} waits for a worker"
    if event.driver != driver_id(event.app, app.tries.next_driver):
        return "D1", f"the next driver of app {event.app!r} is {driver_id(event.app, app.tries.next_driver)!r}"
    if event.resources != app.spec.driver:
        return "D1", f"the driver of app {event.app!r} has {app.spec.driver}"
    if not app.requested.covers(event.resources):
        return "A2", f"app {event.app!r} requests {app.requested}, less than its driver has"
    return None


def _executor(
    state: Facts, event: events.ExecutorRemoved | events.ExecutorRevoked | events.RevocationWithdrawn, rule: str
) -> Broken:
    """Whoever tells of an executor knows whose it is and where."""
    held = state.executors.get(event.executor)
    if held is None:
        return rule, f"no executor {event.executor!r} is granted"
    if held.app != event.app or held.worker != event.worker:
        return rule, f"executor {held.id!r} is granted to app {held.app!r} on worker {held.worker!r}"
    return None


def _executor_changed(state: Facts, event: events.ExecutorChanged) -> Broken:
    held = state.executors.get(event.executor)
    if held is None:
        return "W2", f"no executor {event.executor!r} is granted"
    if held.status == "stopping" and (event.idle or not held.leaves or held.started):
        return "A5", f"executor {event.executor!r} was told to stop"
    if event.idle and not state.apps[held.app].elastic:
        return "L6", f"the app of executor {event.executor!r} is not elastic"
    if held.status == "running" and event.idle == (held.idle_since is not None):
        return "W2", f"executor {event.executor!r} is {'idle' if event.idle else 'running'} already"
    return None


def _room_held(state: Facts, event: events.RoomHeld) -> Broken:
    rule = "P8" if event.reason == "hold" else "E5"
    app, worker = state.apps.get(event.app), state.workers.get(event.worker)
    if app is None or not app.admitted or app.ended is not None:
        return rule, f"app {event.app!r} is not in waitingApps"
    if worker is None or worker.status != "alive":
        return rule, f"worker {event.worker!r} is not live"
    if event.amounts.cores < 1 or not worker.offer.covers(event.amounts):
        return rule, f"worker {event.worker!r} offers {worker.offer}, no room for {event.amounts}"
    if any(hold.app != event.app or event.reason == "hold" for hold in worker.holds.values()):
        return rule, f"room on worker {event.worker!r} is held already"
    if event.reason == "hold" and any(hold.reason == "hold" for hold in app.holds.values()):
        return rule, f"app {event.app!r} has a hold already"
    return None


def _hold_ended(state: Facts, event: events.HoldEnded) -> Broken:
    hold = state.holds.get(event.hold)
    if hold is None:
        return "P8", f"no hold begins at position {event.hold}"
    if (hold.worker, hold.app) != (event.worker, event.app):
        return "P8", f"the hold of position {event.hold} is for app {hold.app!r} on worker {hold.worker!r}"
    return None


def _executor_revoked(state: Facts, event: events.ExecutorRevoked) -> Broken:
    broken = _executor(state, event, "A5")
    if broken is None and event.window:
        return _leaves_before_window(state, event)
    if broken is None and state.executors[event.executor].status == "stopping":
        return "A5", f"executor {event.executor!r} was told to stop already"
    if broken is not None or event.reason != "reclaimed":
        return broken
    hold = state.holds.get(event.hold)
    if event.why is not None:
        return _told_to_leave(event, hold, with_gang=state.apps[event.app].spec.gang)
    if hold is None or (hold.worker, hold.app, hold.reason) != (event.worker, event.claimant, "reclaim"):
        return "E5", f"no room is held on worker {event.worker!r} for a claim of app {event.claimant!r}"
    if hold.app == event.app:
        return "E2", f"app {event.app!r} cannot claim an executor of its own"
    if event.rule not in ("E2", "E3", "E7") or None in (event.since, event.deadline, event.shares):
        return "E5", f"the receipt of executor {event.executor!r} is not complete"
    return None


def _leaves_before_window(state: Facts, event: events.ExecutorRevoked) -> Broken:
    """An executor that leaves before a window begins, maybe sooner than it was told to before (semantics W14)."""
    window, held, app = state.windows.get(event.window), state.executors[event.executor], state.apps[event.app]
    there = [one.worker for one in app.executors.values()] if app.spec.gang else [event.worker]  # a gang leaves as one
    if window is None or window.names.isdisjoint(there) or not window.concerns(app.spec.company):
        return "W14", f"window {event.window!r} does not concern executor {event.executor!r}"
    if event.deadline is None or event.hold:
        return "W14", f"executor {event.executor!r} is not told by when it leaves before window {event.window!r}"
    if held.status == "stopping":
        leaves = held.revoked in ("reclaimed", "window") and not app.over
        if not leaves or (held.firm and held.deadline < event.deadline + (held.revoked == "window")):
            return "A5", f"executor {event.executor!r} was told to stop already"
    return None


def _told_to_leave(event: events.ExecutorRevoked, target: Hold | None, *, with_gang: bool) -> Broken:
    """An executor that leaves for a target (semantics H7)."""
    if target is None or target.app != event.claimant or target.reason not in TARGETS:
        return "H6", f"no target of app {event.claimant!r} begins at position {event.hold}"
    if event.why != "cap" and not with_gang and target.worker != event.worker:
        return "H6", f"the target of position {event.hold} is on worker {target.worker!r}"
    if event.app == event.claimant:
        return "H6", f"app {event.app!r} cannot take an executor of its own"
    if None in (event.since, event.deadline, event.shares):
        return "H7", f"the receipt of executor {event.executor!r} is not complete"
    return None


def _edition_changed(state: Facts, event: events.EditionChanged) -> Broken:
    if event.edition <= state.edition or event.edition not in EDITIONS:
        return "H8", f"edition {event.edition} cannot follow edition {state.edition}"
    return None


def _need_began(state: Facts, event: events.NeedBegan) -> Broken:
    app = state.apps.get(event.app)
    if app is None or not app.admitted or app.over:
        return "H6", f"app {event.app!r} is not in waitingApps"
    if event.units < 1:
        return "H6", f"a need of app {event.app!r} is of {counted(event.units, 'unit')}"
    return None


def _need_ended(state: Facts, event: events.NeedEnded) -> Broken:
    app = state.apps.get(event.app)
    if app is None or not app.lack.units:
        return "H6", f"app {event.app!r} has no need"
    return None


def _slot_awaited(state: Facts, event: events.SlotAwaited) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.over:
        return "H10", f"app {event.app!r} does not exist, or is over"
    if event.app in state.slots:
        return "H10", f"app {event.app!r} awaits or has a slot already"
    return None


def _slot_began(state: Facts, event: events.SlotBegan) -> Broken:
    slot = state.slots.get(event.app)
    if slot is None or slot.began:
        return "H10", f"app {event.app!r} awaits no slot"
    if event.units < 1:
        return "H10", f"a slot of app {event.app!r} is of {counted(event.units, 'executor')}"
    return None


def _slot_ended(state: Facts, event: events.SlotEnded) -> Broken:
    if event.app not in state.slots:
        return "H10", f"app {event.app!r} neither awaits nor has a slot"
    return None


def _target_set(state: Facts, event: events.TargetSet) -> Broken:
    app, worker = state.apps.get(event.app), state.workers.get(event.worker)
    if app is None or not app.admitted or app.over:
        return "H6", f"app {event.app!r} is not in waitingApps"
    if not app.lack.units:
        return "H6", f"app {event.app!r} has no need"
    if worker is None or worker.status != "alive":
        return "H6", f"worker {event.worker!r} is not live"
    if event.amounts.cores < 1 or not worker.offer.covers(event.amounts):
        return "H6", f"worker {event.worker!r} offers {worker.offer}, no room for {event.amounts}"
    if any(not app.spec.gang or hold.app != app.id for hold in worker.holds.values()):
        return "H6", f"worker {event.worker!r} has a target already"
    return None


def _target_ended(state: Facts, event: events.TargetEnded) -> Broken:
    target = state.holds.get(event.target)
    if target is None or (target.worker, target.app) != (event.worker, event.app):
        return "H7", f"no target of app {event.app!r} begins at position {event.target}"
    return None


def _revocation_withdrawn(state: Facts, event: events.RevocationWithdrawn) -> Broken:
    broken = _executor(state, event, "E5")
    if broken is None:
        held = state.executors[event.executor]
        if held.revoked not in ("reclaimed", "window") or state.apps[held.app].over:
            return "E5", f"executor {event.executor!r} does not leave for a claim"
        if held.moved:
            return "H7", f"executor {event.executor!r} changes its place"
        if held.claim in state.holds and state.edition == EDITION_2:
            return "H7", f"the claim for which executor {event.executor!r} leaves is not void"
    return broken


def _executor_removed(state: Facts, event: events.ExecutorRemoved) -> Broken:
    broken = _executor(state, event, "A5")
    if broken is None and event.unstartable and event.reason != "failed":
        return "W9", f"executor {event.executor!r} could not start a task, and {event.reason}"
    return broken


def _driver_removed(state: Facts, event: events.DriverRemoved) -> Broken:
    held = state.drivers.get(event.driver)
    if held is None:
        return "D3", f"no driver {event.driver!r} is granted"
    if held.app != event.app or held.worker != event.worker:
        return "D3", f"driver {held.id!r} is granted to app {held.app!r} on worker {held.worker!r}"
    return None


def _app_changed(state: Facts, event: events.AppChanged) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.ended is not None or app.expired_at:
        return "O1", f"app {event.app!r} is not known or has ended"
    if event.done_cores < 0 or not event.requested.covers(Resources(event.done_cores)):
        return (
            "O1",
            f"app {event.app!r} cannot request {event.requested}, {counted(event.done_cores, 'core')} of it done",
        )
    if event.target is not None and event.target <= (event.executor_limit or 0):
        return "L1", f"app {event.app!r} asks for {counted(event.target, 'executor')}, which it requests already"
    if (
        (event.executor_limit or 0) < 0
        or event.preferring_tasks < 0
        or min(event.preferred_hosts.values(), default=0) < 0
    ):
        return "P4", f"app {event.app!r} cannot have a negative number of executors or tasks"
    if event.sizing != app.sizing and (broken := _resized(state, app, event.sizing)) is not None:
        return broken
    if event.preferred_hosts and not isinstance(event.sizing, Fixed):
        return "L1", f"app {event.app!r} prefers hosts without executors of one size"
    if event.next_step < 1 or (event.backlog_executors is not None) != app.elastic:
        return (
            "L6",
            f"app {event.app!r} asks for {counted(event.next_step, 'executor')} next, {event.backlog_executors} in all",
        )
    return None


def _resized(state: Facts, app: App, sizing: events.Sizing) -> Broken:
    """A computed size is fixed once a number is stated (L1); that of programs may change until the first grant (G1)."""
    name = app.id
    stated = app.spec.programs and not app.next_executor and isinstance(sizing, Fixed) and sizing.counted
    if not stated and not (isinstance(app.sizing, Computed) and isinstance(sizing, Fixed)):
        return ("G1" if app.spec.programs else "S5"), f"the executors of app {name!r} keep their size"
    if (broken := _sizing(name, sizing, app.spec.cores_per_task)) is not None or not stated:
        return broken
    others = [kind for kind, _ in sizing.each.others] if isinstance(sizing, Fixed) else ()
    return _refused("R1", lambda: check_registered(state.kinds, others))


def _executors_requested(state: Facts, event: events.ExecutorsRequested) -> Broken:
    app = state.apps.get(event.app)
    if app is None or not app.admitted or app.ended is not None:
        return "L1", f"app {event.app!r} is not in waitingApps"
    if event.pending and not isinstance(app.sizing, Fixed):
        return "L1", f"app {event.app!r} has no executors of one size to request"
    if any(wanted.number < 1 or wanted.since > state.at for wanted in event.pending):
        return "L1", f"app {event.app!r} requests no executors, or from a time that has not come"
    return None


def _app_ready(state: Facts, event: events.AppReady) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.ended is not None:
        return "J2", f"app {event.app!r} is not known or has ended"
    return None if app.judged and not app.unmet else ("J2", f"app {event.app!r} is ready, waits, or is on hold")


def _app_reprioritized(state: Facts, event: events.AppReprioritized) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.ended is not None:
        return "Q1", f"app {event.app!r} is not known or has ended"
    return ("Q1", f"{event.priority} is no priority") if abs(event.priority) > MAX_PRIORITY else None


def _app_held(state: Facts, event: events.AppHeld | events.AppReleased) -> Broken:
    app, held = state.apps.get(event.app), isinstance(event, events.AppReleased)
    if app is None or app.admitted or app.ended is not None:
        return "J3", f"app {event.app!r} is not pending"
    return ("J3", f"app {event.app!r} is {'not' if held else 'already'} on hold") if app.on_hold != held else None


def _app_delayed(state: Facts, event: events.AppDelayed) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.admitted or app.ended is not None:
        return "J4", f"app {event.app!r} is not pending"
    return None if event.until > state.at else ("J4", f"the time {event.until} is over")


def _app_due(state: Facts, event: events.AppDue) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.ended is not None or not app.not_before:
        return "J4", f"app {event.app!r} is not known, has ended, or waits for no time"
    return None


def _app_removed(state: Facts, event: events.AppRemoved) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.ended is not None:
        return "A5", f"app {event.app!r} is not known or has ended"
    if event.reason == "unmet" and not app.unmet:
        return "J2", f"app {event.app!r} waits for nothing in vain"
    if (event.reason == "expired") != (app.expired_at > 0):
        return "X2", f"app {event.app!r} is removed as {event.reason}, and its time was over at {app.expired_at}"
    if app.expired_at and (app.executors or app.driver is not None):
        return "X2", f"app {event.app!r} still holds {app.granted}"
    return None


def _app_warned(state: Facts, event: events.AppWarned) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.running_since is None or app.expired_at:
        return "X2", f"app {event.app!r} does not run for a limited time"
    if app.spec.warn is None or app.spec.warn.signal != event.signal or app.warned:
        return "X2", f"app {event.app!r} asked for another warning, or was warned already"
    return None


def _app_signalled(state: Facts, event: events.AppSignalled) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.ended is not None or app.expired_at:
        return "X4", f"app {event.app!r} is not known, has ended, or its time is over"
    if not [held for held in app.allocations() if held.status != "stopping"]:
        return "X4", f"nothing of app {event.app!r} runs"
    if event.task is not None and not 0 <= event.task < app.spec.tasks:
        return "X4", f"app {event.app!r} has no task {event.task}"
    return None


def _task_cancelled(state: Facts, event: events.TaskCancelled) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.ended is not None or app.expired_at:
        return "X4", f"app {event.app!r} is not known, has ended, or its time is over"
    if not 0 <= event.task < app.spec.tasks or event.task in app.cancelled:
        return "X4", f"app {event.app!r} has no task {event.task} that is not cancelled"
    return None


def _app_requeued(state: Facts, event: events.AppRequeued) -> Broken:
    app = state.apps.get(event.app)
    if app is None or not app.admitted or app.over:
        return "X6", f"app {event.app!r} is not in waitingApps, or its time is over"
    return ("X6", f"app {event.app!r} is not to be put back") if app.spec.no_requeue else None


def _task_requeued(state: Facts, event: events.TaskRequeued) -> Broken:
    broken = _app_requeued(state, events.AppRequeued(app=event.app))
    if broken is not None:
        return broken
    app = state.apps[event.app]
    if not 0 <= event.task < app.spec.tasks or event.task in app.cancelled:
        return "X6", f"app {event.app!r} has no task {event.task} that is not cancelled"
    held = app.executors.get(event.executor)
    if held is None or held.status == "stopping":
        return "X6", f"{event.executor!r} is no running executor of app {event.app!r}"
    return None


def _app_expired(state: Facts, event: events.AppExpired) -> Broken:
    app = state.apps.get(event.app)
    if app is None or not app.admitted or app.ended is not None or app.expired_at:
        return "X2", f"app {event.app!r} is not in waitingApps, or its time was over before"
    return None if app.max_runtime_s is not None else ("X2", f"app {event.app!r} may run for any time")


def _app_extended(state: Facts, event: events.AppExtended) -> Broken:
    app = state.apps.get(event.app)
    if app is None or app.ended is not None or app.expired_at:
        return "X1", f"app {event.app!r} is not known, has ended, or its time is over"
    if app.max_runtime_s is None or event.max_runtime_s <= app.max_runtime_s:
        return "X1", f"app {event.app!r} may run for {app.max_runtime_s} s, which {event.max_runtime_s} s do not extend"
    return None


def _command_refused(_: Facts, event: events.CommandRefused) -> Broken:
    return None if event.error and event.message else ("T3", "a refusal must name its error and say why")


def _refusals_omitted(_: Facts, event: events.RefusalsOmitted) -> Broken:
    if event.count < 1 or event.since < 0:
        return "T3", f"{event.count} refusals since {event.since} cannot have been omitted"
    return None


def _key_changed(state: Facts, event: events.KeyChanged) -> Broken:
    current = next(reversed(state.public_keys), "")
    if not event.key or not event.public or event.key == current:
        return "I6", f"key {event.key!r} signs already, or has no public half"
    if state.public_keys.get(event.key, event.public) != event.public:
        return "I6", f"key {event.key!r} has another public half"
    return None


def _log_restored(state: Facts, event: events.LogRestored) -> Broken:
    named = (
        _key_changed(state, events.KeyChanged(key=event.key, public=event.public))
        if event.key or event.public
        else None
    )
    return named and ("I7", named[1])


def _log_accepted(state: Facts, event: events.LogAccepted) -> Broken:
    if not 0 <= event.seq <= state.head or event.known < 1 or not event.by:
        return "I7", f"a log that ends at {state.head} is accepted up to {event.seq} instead of {event.known}"
    return None


def _log_sealed(state: Facts, event: events.LogSealed) -> Broken:
    if not state.sealed < event.seq <= state.head:
        return "I6", f"position {event.seq} is sealed between the last seal, {state.sealed}, and {state.head}"
    if event.key != next(reversed(state.public_keys), ""):
        return "I6", f"key {event.key!r} does not sign"
    return None


def _account_added(state: Facts, event: events.AccountAdded) -> Broken:
    kind, _, name = event.account.partition("/")
    if not name or event.account in state.accounts.known:
        return "I2", f"account {event.account!r} exists already, or has no name"
    if event.company != (None if kind in KINDS else kind) or (
        event.company is not None and event.company not in state.companies
    ):
        return "I2", f"account {event.account!r} cannot belong to company {event.company!r}"
    return None


def _account_known(state: Facts, event: events.AccountChanged | events.AccountRemoved) -> Broken:
    return None if event.account in state.accounts.known else ("I2", f"account {event.account!r} does not exist")


def _role_granted(state: Facts, event: events.RoleGranted) -> Broken:
    account = state.accounts.known.get(event.account)
    if event.department:
        known = event.department in state.departments and event.role == "admin"
        if account is None or not known or event.role not in account.roles or event.department in account.departments:
            return "I2", f"account {event.account!r} cannot be made an admin of the department {event.department!r}"
        return None
    possible = KINDS.get(event.account.partition("/")[0], OF_A_COMPANY)
    if account is None or event.role in account.roles or event.role not in possible:
        return "I2", f"account {event.account!r} cannot be given the role {event.role}"
    return None


def _role_revoked(state: Facts, event: events.RoleRevoked) -> Broken:
    account = state.accounts.known.get(event.account)
    if account is None or event.role not in account.roles:
        return "I2", f"account {event.account!r} has no role {event.role}"
    if event.department and (event.role != "admin" or event.department not in account.departments):
        return "I2", f"account {event.account!r} is no admin of the department {event.department!r}"
    return None


def _token_issued(state: Facts, event: events.TokenIssued) -> Broken:
    accounts, account = state.accounts, state.accounts.known.get(event.account)
    if account is None or event.role not in account.roles or event.token in accounts.tokens:
        return "I5", f"account {event.account!r} cannot have a token {event.token!r} of role {event.role}"
    replaced = accounts.tokens.get(event.replaces) if event.replaces is not None else None
    if event.replaces is not None and (replaced is None or replaced.account != event.account):
        return "I5", f"token {event.replaces!r} is not one of account {event.account!r}"
    return None


def _token_revoked(state: Facts, event: events.TokenRevoked) -> Broken:
    return None if event.token in state.accounts.tokens else ("I5", f"token {event.token!r} does not exist")


def _apps_shown(state: Facts, event: events.AppsShown) -> Broken:
    if event.company not in state.companies or (event.company in state.accounts.shown) == event.shown:
        return "I3", f"company {event.company!r} is not registered, or shows its apps that way already"
    return None


PRECONDITIONS: dict[type[Event], Callable[[Facts, Any], Broken]] = {
    events.MasterElected: _master_elected,
    events.ClusterConfigured: _cluster_configured,
    events.KindRegistered: _kind_registered,
    events.CompanyRegistered: _company_registered,
    events.CompanyChanged: _company_changed,
    events.LimitSet: _limit_set,
    events.CompanyRemoved: _company_removed,
    events.DepartmentAdded: _department_added,
    events.DepartmentChanged: _department_changed,
    events.DepartmentRemoved: _department_removed,
    events.CompanyMoved: _company_moved,
    events.WorkerRegistered: _worker_registered,
    events.WorkerLabelled: _worker_labelled,
    events.WorkerChanged: _worker_changed,
    events.WindowAdded: _window_added,
    events.WindowRemoved: _window_removed,
    events.WorkerRemoved: _worker_removed,
    events.LostWorkersForgotten: _lost_workers_forgotten,
    events.WorkerSuspected: _worker_suspected,
    events.WorkerProbed: _worker_probed,
    events.WorkerCleared: _worker_cleared,
    events.AppRegistered: _app_registered,
    events.RoomReserved: _of_a_pending_app,
    events.ReservationLapsed: _of_a_pending_app,
    events.AppAdmitted: _app_admitted,
    events.DriverAllocated: _driver_allocated,
    events.DriverRemoved: _driver_removed,
    events.ExecutorAllocated: _executor_allocated,
    events.ExecutorChanged: _executor_changed,
    events.RoomHeld: _room_held,
    events.HoldEnded: _hold_ended,
    events.EditionChanged: _edition_changed,
    events.NeedBegan: _need_began,
    events.NeedEnded: _need_ended,
    events.SlotAwaited: _slot_awaited,
    events.SlotBegan: _slot_began,
    events.SlotEnded: _slot_ended,
    events.TargetSet: _target_set,
    events.TargetEnded: _target_ended,
    events.ExecutorRevoked: _executor_revoked,
    events.RevocationWithdrawn: _revocation_withdrawn,
    events.ExecutorRemoved: _executor_removed,
    events.AppChanged: _app_changed,
    events.ExecutorsRequested: _executors_requested,
    events.AppReady: _app_ready,
    events.AppReprioritized: _app_reprioritized,
    events.AppHeld: _app_held,
    events.AppReleased: _app_held,
    events.AppDelayed: _app_delayed,
    events.AppDue: _app_due,
    events.AppWarned: _app_warned,
    events.AppSignalled: _app_signalled,
    events.TaskCancelled: _task_cancelled,
    events.AppRequeued: _app_requeued,
    events.TaskRequeued: _task_requeued,
    events.AppExpired: _app_expired,
    events.AppExtended: _app_extended,
    events.AppRemoved: _app_removed,
    events.CommandRefused: _command_refused,
    events.RefusalsOmitted: _refusals_omitted,
    events.KeyChanged: _key_changed,
    events.LogSealed: _log_sealed,
    events.LogRestored: _log_restored,
    events.LogAccepted: _log_accepted,
    events.AccountAdded: _account_added,
    events.AccountChanged: _account_known,
    events.AccountRemoved: _account_known,
    events.RoleGranted: _role_granted,
    events.RoleRevoked: _role_revoked,
    events.TokenIssued: _token_issued,
    events.TokenRevoked: _token_revoked,
    events.AppsShown: _apps_shown,
}
"""Type of event -> what must hold before it is folded."""
