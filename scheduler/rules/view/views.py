"""Views of the state for people and programs, as structs of `scheduler.model.answers`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal, get_args

from msgspec import to_builtins
from msgspec.structs import fields

from scheduler.model.answers import (
    AccountShown,
    AppDetails,
    AppRow,
    ClusterShown,
    CompanyShare,
    CompanyShown,
    DepartmentShown,
    DriverHeld,
    Edition,
    ExcludedApp,
    Exclusion,
    ExecutorHeld,
    HeldRoom,
    KindShown,
    Ledger,
    LimitShown,
    PastRuns,
    SharesShown,
    SpentShown,
    SuspicionShown,
    TokenShown,
    UnmetDemand,
    UserShare,
    WindowAhead,
    WindowShown,
    WorkerShown,
    WorkerState,
)
from scheduler.model.commands import Private
from scheduler.model.errors import InvalidCommand, UnknownApp
from scheduler.model.events import Addresses, AppRegistered, AppState, ClusterConfigured, Computed, Fixed, Sizing
from scheduler.model.quota import Quota, Share
from scheduler.model.resources import Resources
from scheduler.model.terms import TERMS
from scheduler.rules.admission.limits import EVERYBODY, kind_of
from scheduler.rules.checks.validate import in_force
from scheduler.rules.command.failures import kept_from
from scheduler.rules.command.windows import in_the_way
from scheduler.rules.entities.apps import NO_SPENT, App, Spent
from scheduler.rules.entities.grants import Allocation, Hold
from scheduler.rules.entities.ledger import Balance
from scheduler.rules.entities.workers import LostWorker, Window, Worker
from scheduler.rules.index.closings import leaving_ms
from scheduler.rules.index.trouble import kept_until
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITIONS
from scheduler.rules.view.standings import NOWHERE, Side, Standing, standings
from scheduler.rules.view.unmet import unmet

SCANNED = 10_000
"""The most apps that are looked at for one page."""
PAST_RUNS = 5
MOST_DIGITS = 16
"""A number of an app has fewer digits."""
_SHOWN = [field.name for field in fields(AppDetails)]
_TERMS = {term.removesuffix("_s"): term for term in TERMS if term.removesuffix("_s") in _SHOWN}
"""Field of `AppDetails` -> the term that it shows."""
_LEFT_OUT = {field.name for field in fields(AppDetails) if field.default is None}
"""The fields of `AppDetails` that answers leave out where they are None."""


def apps(state: ClusterState, *, everything: bool = False) -> list[AppRow]:
    """The apps in order of submission: those that have not ended, with `everything` also the ended ones still known."""
    return [summary(app) for app in state.apps.values() if everything or app.ended is None]


def page_of_apps(
    state: ClusterState,
    *,
    after: int,
    most: int,
    everything: bool = False,
    shown: Callable[[App], bool] = lambda _: True,
    tell: Callable[[ClusterState, App], AppRow] | None = None,
) -> tuple[list[AppRow], int | None]:
    """As `apps`, at most `most` of those that are `shown` and were submitted after log position `after`.

    `tell` says what is shown of an app. With the position after which the next page goes on, None at the end. At most
    `SCANNED` apps are looked at, so a page may have fewer items and a next one nevertheless.
    """
    known = list(state.apps.values())  # in order of submission
    start = bisect_right(known, after, key=lambda app: app.submitted)
    page: list[AppRow] = []
    for number, found in enumerate(islice(known, start, None)):
        if len(page) == most or number == SCANNED:
            return page, known[start + number - 1].submitted
        if (everything or found.ended is None) and shown(found):
            page.append(summary(found) if tell is None else tell(state, found))
    return page, None


def may_be_number(text: str) -> bool:
    """Whether the text could be the number of an app (`named`)."""
    return text.isascii() and text.isdecimal() and len(text) < MOST_DIGITS


def named(state: ClusterState, text: str) -> str:
    """The id of the app that the text is: its id, or else the log position of its submission, which never repeats.

    A text that is neither stays.
    """
    if text in state.apps or not may_be_number(text):
        return text
    known, position = list(state.apps.values()), int(text)  # in order of submission
    place = bisect_left(known, position, key=lambda app: app.submitted)
    return known[place].id if place < len(known) and known[place].submitted == position else text


def app(state: ClusterState, *, app: str, now: int | None = None) -> AppDetails:
    """One app with its executors, by its id or its number (`named`). Raises: UnknownApp."""
    at = moment_of(state, now)
    found = state.apps.get(named(state, app))
    if found is None:
        raise UnknownApp(app)
    spec, private, sizing = found.spec, found.private or Private(), found.sizing
    sized = None if isinstance(sizing, Computed) else sizing
    return AppDetails(
        **summary_fields(found),
        **_terms(spec),
        cores=spec.cores or 0,
        cores_per_task=spec.cores_per_task,
        memory_per_task=spec.sizing.memory_per_task_mb if isinstance(spec.sizing, Computed) else None,
        command=list(private.command),
        executor_command=list(private.executor_command),
        env=list(private.env),
        cwd=private.cwd,
        output=private.output or None,
        error=private.error or None,
        open_mode=private.open_mode if private.output or private.error else None,
        array=private.array or None,
        comment=private.comment,
        notify=private.notify or None,
        keep_going=private.keep_going,
        priority=found.priority,
        after=dict(found.awaits) or None,
        begin_at=found.not_before or None,
        cancelled=list(found.cancelled) or None,
        max_runtime=found.max_runtime_s,
        ran_ms=None if found.max_runtime_s is None else found.ran_by(at),
        warn=None if spec.warn is None else f"{spec.warn.signal}@{spec.warn.before_s}",
        reclaim_signal=spec.reclaim_signal or None,
        executor_program=spec.programs,
        executors_granted=found.next_executor,
        network=spec.network or "host",
        restarts=found.restarts or None,
        expires_at=_expires_at(found),
        expired_at=found.expired_at or None,
        done_cores=found.done_cores,
        sizing=spec.sizing.name(),
        executor_cores=sizing.each.cores if isinstance(sizing, Fixed) else None,
        executor_memory=None if sized is None else sized.memory_mb,
        executor_resources=dict(sized.each.others) or None if sized is not None else None,
        task_resources=_per_task(spec.sizing),
        executor_limit=found.executor_limit,
        executor_target=found.demand.target,
        elastic=None if spec.elastic is None else list(spec.elastic[:2]),
        excluded_workers=exclusions(state, found, at),
        preferred_hosts=found.demand.preferred_hosts or None,
        pending_requests=sum(wanted.number for wanted in found.demand.wanted) or None,
        unlimited=spec.cores is None,
        has_driver=spec.driver is not None,
        asked_by=dict(found.asked) or None,
        admitted_seq=found.admitted or None,
        driver=DriverHeld(driver=found.driver.id, **_held(found.driver), **_leaving(state, found.driver))
        if found.driver is not None
        else None,
        executors=[
            ExecutorHeld(
                executor=held.id,
                **_held(held),
                locality=held.locality,
                **_leaving(state, held),
                slot_until=held.until or None,
                **_in_gang(state, found, held),
            )
            for held in found.executors.values()
        ],
    )


def _terms(spec: AppRegistered) -> dict[str, Any]:
    """What an app asked for, by the fields of `AppDetails`; what may be left out is None where it is empty or False."""
    told: dict[str, Any] = {}
    for name, of in _TERMS.items():
        value = getattr(spec, of)
        empty = value is False or value in ("", ())
        told[name] = None if empty and name in _LEFT_OUT else list(value) if isinstance(value, tuple) else value
    return told


def without_private(shown: dict[str, Any], detail: str) -> dict[str, Any]:
    """The view of an app as if its private part were withheld; `detail` is what is public of its end."""
    withheld: dict[str, Any] = {
        "name": shown["app"],
        "command": [],
        "executorCommand": [],
        "env": [],
        "cwd": None,
        "output": None,
        "error": None,
        "openMode": None,
        "array": None,
        "comment": "",
        "notify": None,
        "detail": detail,
    }
    return {**shown, **{name: value for name, value in withheld.items() if name in shown}}


def accounts(state: ClusterState, *, company: str | None = None, now: int | None = None) -> list[AccountShown]:
    """The accounts, of one company if it is named, with their roles and the numbers of their valid tokens."""
    return [
        AccountShown(
            account=account.id,
            company=account.company,
            display=account.display,
            robot=account.robot,
            roles=list(account.roles),
            host=account.host,
            offer=None if account.offer is None else account.offer.by_kind(),
            tokens=len(state.accounts.tokens_of(account.id, moment_of(state, now))),
            departments=list(account.departments),
        )
        for _, account in sorted(state.accounts.known.items())
        if company is None or account.company == company
    ]


def tokens(state: ClusterState, *, account: str | None = None, now: int | None = None) -> list[TokenShown]:
    """The tokens that have not expired by then, of one account if it is named, without their hashes."""
    return [
        TokenShown(
            token=token.id,
            account=token.account,
            role=token.role,
            scopes=list(token.scopes),
            expires=token.expires,
            invitation=token.once,
        )
        for _, token in sorted(state.accounts.tokens.items())
        if account in (None, token.account) and moment_of(state, now) < token.expires
    ]


def workers(state: ClusterState, *, lost: bool = False, now: int | None = None) -> list[WorkerShown]:
    """The workers by id: their offers, the granted amounts, and the numbers of executors and drivers.

    With the time (ms) until which a worker is suspected, the executors because of which it is (semantics W8), the apps
    that are excluded from it (W7), and the room that is held on it (H6, H7). With `lost`, those too that were lost and
    are still remembered (N3).
    """
    of_worker: dict[str, list[ExcludedApp]] = {}
    for found in state.waiting.values():
        for each in exclusions(state, found, moment_of(state, now)):
            told = ExcludedApp(app=found.id, ends=each.ends, until=each.until, unstartable=each.unstartable)
            of_worker.setdefault(each.worker, []).append(told)
    registered = [
        WorkerShown(
            worker=worker.id,
            node=worker.node,
            host=worker.host,
            rack=worker.rack,
            labels=worker.labels,
            taints=list(worker.taints),
            status=worker.status,
            since=worker.since or None,
            reason=worker.said or worker.reason,
            unwell=worker.unwell,
            cores=worker.offer.cores,
            memory=worker.offer.memory_mb,
            granted_cores=worker.offer.cores - worker.free.cores,
            granted_memory=worker.offer.memory_mb - worker.free.memory_mb,
            **_addresses(worker),
            executors=len(worker.executors),
            drivers=len(worker.drivers),
            suspicion=suspicion(worker),
            excluded_apps=of_worker.get(worker.id, []),
            holds=[_hold(hold) for hold in worker.holds.values()],
            window=_ahead(state, worker.id),
        )
        for _, worker in sorted(state.workers.items())
    ]
    return registered + [_lost(worker, state.settings) for _, worker in sorted(state.lost.items()) if lost]


def _ahead(state: ClusterState, worker: str) -> WindowAhead | None:
    """The first window of the worker that is not over (semantics W14)."""
    planned = state.planned.get(worker, ())
    return WindowAhead(**_window(planned[0])) if planned else None


def _window(window: Window) -> dict[str, Any]:
    return {
        "window": window.id,
        "begin": window.begin,
        "end": window.end,
        "company": window.company or None,
        "reason": window.reason,
    }


def windows(state: ClusterState, *, now: int | None = None) -> list[WindowShown]:
    """The windows that are not over, the first to begin first (semantics W14)."""
    return [
        WindowShown(
            **_window(window),
            workers=list(window.workers),
            notice=window.notice_s,
            closing=moment_of(state, now) >= window.closes,
            in_the_way=[held.id for held in in_the_way(state, window)][:100],
        )
        for window in sorted(state.windows.values(), key=lambda each: (each.begin, each.id))
    ]


def _hold(hold: Hold) -> HeldRoom:
    """Room that is held for an app, since when (ms), and the executors that are to leave for it (semantics H6, H7)."""
    return HeldRoom(
        app=hold.app,
        cores=hold.amounts.cores,
        memory=hold.amounts.memory_mb,
        held_resources=dict(hold.amounts.others) or None,
        reason=hold.reason,
        since=hold.since,
        leaving=list(hold.leaving),
    )


def _lost(worker: LostWorker, settings: ClusterConfigured) -> WorkerShown:
    """A lost worker: until when (ms) its offer is remembered (semantics N3)."""
    return WorkerShown(
        worker=worker.id,
        node="",
        host="",
        rack="",
        labels=worker.labels,
        taints=list(worker.taints),
        status="lost",
        since=worker.at,
        reason="it gave no sign of life any more",
        unwell=False,
        cores=worker.offer.cores,
        memory=worker.offer.memory_mb,
        offered_resources=dict(worker.offer.others) or None,
        granted_cores=0,
        granted_memory=0,
        executors=0,
        drivers=0,
        suspicion=None,
        excluded_apps=[],
        holds=[],
        remembered_until=worker.at + settings.remember_lost_s * 1000,
    )


def suspicion(worker: Worker) -> SuspicionShown | None:
    """Why and until when (ms) the worker is suspected, and its probe; None if it is not (semantics W8)."""
    known = worker.suspicion
    if known is None:
        return None
    return SuspicionShown(
        executors=list(known.executors),
        since=known.since,
        until=known.until,
        times=known.times,
        on_probe=known.on_probe,
        probe=known.probe or None,
    )


def exclusions(state: ClusterState, app: App, at: int) -> list[Exclusion]:
    """The workers from which the app is excluded at `at` (ms), with its abnormal ends there and until when (ms) (W7).

    None if no other worker could host it: then it is excluded from none.
    """
    return [
        Exclusion(
            worker=worker,
            ends=app.troubles[worker].ends,
            until=kept_until(app.troubles[worker], state.settings),
            unstartable=app.troubles[worker].unstartable,
        )
        for worker in kept_from(state, app, at)
        if worker in app.troubles
    ]


def resources(state: ClusterState) -> list[KindShown]:
    """The registered kinds of resources, what live workers offer and what is granted there (semantics R1)."""
    live = [worker for worker in state.workers.values() if worker.status == "alive"]
    return [
        KindShown(
            kind=kind,
            offered=state.fleet.total.amount(kind),
            granted=sum((worker.offer - worker.free).amount(kind) for worker in live),
            workers=sum(kind in worker.addresses for worker in live),
        )
        for kind in state.kinds
    ]


def companies(state: ClusterState) -> list[CompanyShown]:
    """The companies by name: how the quota is set, its present amounts, and the usage (semantics C2, C5)."""
    return [
        CompanyShown(
            company=name,
            quota="amounts" if company.spec.amounts is not None else company.spec.part or "default",
            **_quota(state.quota(name)),
            borrow=company.spec.may_borrow,
            default_max_runtime=company.spec.default_max_runtime_s,
            max_max_runtime=company.spec.max_max_runtime_s,
            end_idle=company.spec.end_idle,
            department=company.department,
            used_core_ms=(used := state.usage(company)).cores,
            used_memory_ms=used.memory_mb,
            used_resources=dict(used.others) or None,
            users=len(company.users),
            apps=company.apps,
        )
        for name, company in sorted(state.companies.items())
    ]


def shares(state: ClusterState) -> SharesShown:
    """The ledgers at all three levels (semantics O1), with each company's quota and share (C2, C3).

    With what companies and users want, are entitled to and hold, and each company's cap (H).
    """
    found = standings(state)
    companies: list[CompanyShare] = []
    users: list[UserShare] = []
    for name, company in sorted(state.companies.items()):
        stands = {**_balance(company.balance), **_stands(found, name)}
        amounts = {**_quota(state.quota(name)), **_cap(state, name), **stands}
        companies.append(CompanyShare(company=name, share=str(state.queue.share(name)), **amounts))
        for user_name, user in sorted(company.users.items()):
            stands = {**_balance(user.balance), **_stands(found, name, user_name)}
            users.append(UserShare(company=name, user=user_name, **stands))
    return SharesShown(
        by_entitlement=state.by_entitlement,
        waiting_apps=Ledger(**_balance(state.balance)),
        companies=companies,
        users=users,
        departments=_departments(state, found),
    )


def departments(state: ClusterState) -> list[DepartmentShown]:
    """The departments from the top down: place, quota, limits, and what their companies hold (semantics H12)."""
    return _departments(state, standings(state)) if state.departments else []


def _departments(state: ClusterState, found: Mapping[Side, Standing]) -> list[DepartmentShown]:
    return [
        DepartmentShown(
            department=each.name,
            parent=each.spec.parent,
            quota="amounts" if each.spec.amounts is not None else each.spec.part or "sum",
            **_quota(each.quota),
            borrow_limit=each.spec.borrow_limit,
            lend_limit=each.spec.lend_limit,
            **({"cap_cores": None, "cap_memory": None} if each.cap is None else _quota(each.cap, "cap")),
            companies=each.companies,
            **_balance(each.balance),
            **_stands(found, "", each.name),
        )
        for each in sorted(state.departments.values(), key=lambda each: [one.name for one in reversed(each.chain)])
    ]


def _stands(found: Mapping[Side, Standing], company: str, user: str = "") -> dict[str, Any]:
    """Demand, entitlement, what is held, lent, leaving and below (semantics H2)."""
    named = found.get((company, user), NOWHERE)._asdict()
    amounts = {
        key: value
        for name, held in named.items()
        for key, value in ((f"{name}_cores", held.cores), (f"{name}_memory", held.memory_mb))
    }
    return {**amounts, **_others(**named)}


def _cap(state: ClusterState, company: str) -> dict[str, Any]:
    """The most that the company may hold: its quota, or None if it may borrow (semantics H1)."""
    if state.companies[company].spec.may_borrow:
        return {"cap_cores": None, "cap_memory": None}
    return _quota(state.quota(company), "cap")


def limits(state: ClusterState) -> list[LimitShown]:
    """Every limit by its holder (semantics N1), and what counts against it now where that is one number (N2)."""
    return [
        LimitShown(
            scope=_scope(company, user),
            company=company or None,
            user=user or None if company else None,
            department=None if company else user or None,
            limit=name,
            value=value,
            present=None if user == EVERYBODY or not (company or user) else _present(state, company, user, name),
        )
        for (company, user), values in sorted(state.limits.values.items())
        for name, value in sorted(values.items())
    ]


def _scope(company: str, user: str) -> Literal["user", "company", "department", "cluster"]:
    if company:
        return "user" if user else "company"
    return "department" if user else "cluster"


def settings(state: ClusterState) -> dict[str, Any]:
    """Every setting in force."""
    return in_force(state.settings)


def edition(state: ClusterState) -> Edition:
    """The edition of the rules of sharing in force, since when (ms), and whether it decides (semantics H)."""
    return Edition(
        edition=state.edition,
        since=state.edition_at or None,
        earlier=state.edition < EDITIONS[-1],
        by_entitlement=state.by_entitlement,
        patience_s=state.settings.reclaim_patience_s,
        admission=state.settings.admission,
    )


def cluster(state: ClusterState) -> ClusterShown:
    """The head of the log, the capacity, the number of apps in each state, and the workers.

    `tooLarge`: the number of apps that no live worker is large enough for, 0 while none is live (semantics N3).
    """
    counts: dict[str, int] = dict.fromkeys(get_args(AppState), 0)
    others = [found for found in state.apps.values() if found.admitted or found.ended is not None]
    for found in others:
        counts[found.state] += 1
    counts["pending"] = len(state.apps) - len(others)
    all_fit = all(need.hostable for need in state.claims.needs.values())
    return ClusterShown(
        head=state.head,
        at=state.at,
        cores=state.fleet.total.cores,
        memory=state.fleet.total.memory_mb,
        apps=counts,
        too_large=0
        if all_fit or not state.fleet.live
        else sum(not found.need.hostable for found in state.apps.values() if found.ended is None),
        workers=[
            WorkerState(worker=worker.id, status=worker.status, suspicion=suspicion(worker))
            for _, worker in sorted(state.workers.items())
        ],
    )


def demand(state: ClusterState) -> list[UnmetDemand]:
    """What ready apps ask for and are not granted, by size: what further workers would be for (semantics H2)."""
    return unmet(state)


_VIEWS: tuple[Callable[..., Any], ...] = (
    apps,
    app,
    workers,
    resources,
    companies,
    shares,
    limits,
    windows,
    departments,
    settings,
    edition,
    cluster,
    demand,
    accounts,
    tokens,
)
VIEWS = {view.__name__: view for view in _VIEWS}


DATED = frozenset({"app", "accounts", "tokens", "windows", "workers"})
"""The views that compare dates with the time."""


def moment_of(state: ClusterState, now: int | None) -> int:
    """The time (ms) with which dates are compared: `now`, or that of the log's last turn if it is None or later."""
    return state.at if now is None else max(state.at, now)


def look(state: ClusterState, name: str, arguments: dict[str, Any], now: int | None = None) -> Any:  # noqa: ANN401 - JSON values
    """The view `name` of the state as JSON values, at the time `now` (ms); None = that of the log's last turn.

    Raises: InvalidCommand for an unknown view, and what the view raises.
    """
    view = VIEWS.get(name)
    if view is None:
        raise InvalidCommand(f"no view is named {name[:40]!r}; the views are {', '.join(VIEWS)}")
    dated = {"now": now} if name in DATED else {}
    try:
        return to_builtins(view(state, **arguments, **dated))
    except TypeError as error:
        raise InvalidCommand(f"the view {name!r} does not take these arguments: {error}") from None


def summary(app: App) -> AppRow:
    """An app in lists."""
    return AppRow(**summary_fields(app))


def summary_fields(app: App) -> dict[str, Any]:
    """The fields of an `AppRow`.

    Of ended programs, whose request falls as each of them ends well, the request is at least the submission's.
    """
    spec = app.spec
    ended_programs = app.ended is not None and spec.programs
    requested = app.requested.at_least(spec.requested) if ended_programs else app.requested
    return {
        "app": app.id,
        "company": spec.company,
        "user": spec.user,
        "name": app.name,
        "kind": spec.kind,
        "state": app.state,
        "ready": app.ready,
        "on_hold": app.on_hold,
        "tasks": spec.tasks,
        "requested_cores": requested.cores,
        "requested_memory": requested.memory_mb,
        "granted_cores": app.granted.cores,
        "granted_memory": app.granted.memory_mb,
        **_others(requested=requested, granted=app.granted),
        "submitted_at": app.submitted_at,
        "submitted_seq": app.submitted,
        "admitted_at": app.admitted_at or None,
        "ended_at": app.ended_at or None,
        "detail": app.why,
        "spent": spent(app.spent),
    }


def spent(known: Spent) -> SpentShown | None:
    """What ended executors and drivers used, None if none has ended (semantics O5)."""
    if known == NO_SPENT:
        return None
    *sums, peak_mb, of_mb = known
    names = ("core_ms", "told_core_ms", "cpu_ms", "told_memory_ms", "used_memory_ms")
    return SpentShown(**dict(zip(names, sums, strict=True)), peak_memory=peak_mb, peak_of_memory=of_mb)


def past_runs(state: ClusterState, *, company: str, user: str, name: str) -> PastRuns:
    """What the last apps used of that user and name that have ended, at most `PAST_RUNS` of which something is known.

    At most `SCANNED` of the apps that ended last are looked at.
    """
    found: list[Spent] = []
    for ended in islice(reversed(state.ended), SCANNED):
        app = state.apps[ended]
        if (app.spec.company, app.spec.user) == (company, user) and app.spent.told_core_ms and app.name == name:
            found.append(app.spent)
            if len(found) == PAST_RUNS:
                break
    total = NO_SPENT
    for each in found:
        total = total.plus(each)
    return PastRuns(runs=len(found), spent=spent(total))


def _expires_at(app: App) -> int | None:
    """When (ms) the time of the app is over if it goes on running; None while it does not (semantics X2)."""
    if app.max_runtime_s is None or app.running_since is None or app.expired_at:
        return None
    return app.running_since + app.max_runtime_s * 1000 - app.ran_ms


def _present(state: ClusterState, company: str, user: str, name: str) -> int | None:
    """What counts against the limit now; None where a single app is judged, or a rate (semantics N2)."""
    standing = state.claims.standing(company, user) if company else state.departments[user].standing
    counted = {"max_pending_apps": standing.pending, "max_running_apps": standing.apps}
    counted |= {"max_cores": standing.claimed.cores, "max_memory_mb": standing.claimed.memory_mb}
    return standing.claimed.amount(kind_of(name)) if kind_of(name) else counted.get(name)


def _held(held: Allocation) -> dict[str, Any]:
    return {
        "worker": held.worker,
        "cores": held.resources.cores,
        "memory": held.resources.memory_mb,
        "resources": _listed(held.addresses) or None,
        "status": held.status,
    }


def _in_gang(state: ClusterState, app: App, held: Allocation) -> dict[str, Any]:
    """The executor's rank and its host; nothing unless its app is a gang (semantics G8)."""
    if not app.spec.gang or app.id not in state.ranks:
        return {}
    return {"rank": state.ranks[app.id].held.get(held.id), "host": state.workers[held.worker].host}


def _leaving(state: ClusterState, held: Allocation) -> dict[str, Any]:
    """For which app or window and until when (ms) the executor is to leave; nothing if for none (H7, W14)."""
    hold = state.holds.get(held.claim)
    if hold is not None:
        return {"leaves_for": hold.app, "deadline": held.deadline}
    app = state.apps[held.app]
    for window in state.planned.get(held.worker, ()):
        if window.concerns(app.spec.company):
            told = held.deadline if held.revoked == "window" else window.begin - leaving_ms(state.settings, app)
            return {"leaves_before": window.id, "deadline": told}
    return {}


def _addresses(worker: Worker) -> dict[str, Any]:
    """What the worker offers of further kinds, and what is granted; nothing if it offers none (semantics R1, R5)."""
    if not worker.addresses:
        return {}
    held = set(worker.granted_addresses())
    granted = {kind: [one for one in found if (kind, one) in held] for kind, found in worker.addresses.items()}
    return {"resources": _listed(worker.addresses), "granted_resources": {kind: g for kind, g in granted.items() if g}}


def _per_task(sizing: Sizing) -> dict[str, str] | None:
    """What each task needs of further kinds, "n/d" in lowest terms (semantics R3)."""
    if not isinstance(sizing, Computed) or not sizing.per_task:
        return None
    return {kind: f"{part}/{whole}" if whole > 1 else str(part) for kind, part, whole in sizing.per_task}


def _listed(addresses: Addresses) -> dict[str, list[str]]:
    return {kind: list(found) for kind, found in addresses.items()}


def _others(**amounts: Resources) -> dict[str, dict[str, int]]:
    """The further kinds of these amounts, by the name of each; without those that have none."""
    return {f"{name}_resources": dict(held.others) for name, held in amounts.items() if held.others}


def _balance(balance: Balance) -> dict[str, Any]:
    return {
        "occupied_cores": balance.requested.cores,
        "occupied_memory": balance.requested.memory_mb,
        "granted_cores": balance.granted.cores,
        "granted_memory": balance.granted.memory_mb,
        **_others(occupied=balance.requested, granted=balance.granted),
    }


def _quota(quota: Quota, name: str = "quota") -> dict[str, Any]:
    bought = quota.amount
    kinds = dict.fromkeys(quota.named or (), 0) | dict(bought.others)
    others = {kind: _exact(amount, quota.denominator) for kind, amount in kinds.items()}
    return {
        f"{name}_cores": _exact(bought.cores, quota.denominator),
        f"{name}_memory": _exact(bought.memory_mb, quota.denominator),
        **({f"{name}_resources": others} if others else {}),
    }


def _exact(amount: int, denominator: int) -> int | str:
    """A whole number, or "n/d" in lowest terms: a quota is never rounded (semantics C2)."""
    return amount // denominator if amount % denominator == 0 else str(Share(amount, denominator))
