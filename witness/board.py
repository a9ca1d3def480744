"""What the live page shows of one state: health, companies, apps with their reasons, workers with what they run.

Every function reads a state and returns structs that are to be written before the state changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from msgspec.structs import asdict

from scheduler.model.answers import (
    AppCard,
    BoardPage,
    BoardRow,
    Capacity,
    CompanyCard,
    CompanyNow,
    CompanyShare,
    FleetShown,
    FleetWorker,
    Run,
    UserCard,
    Waiter,
)
from scheduler.model.causes import CAUSES
from scheduler.model.errors import UnknownApp, UnknownCompany
from scheduler.model.resources import NOTHING, Resources
from scheduler.model.states import AppState
from scheduler.rules.entities.apps import App
from scheduler.rules.view.views import app as app_view
from scheduler.rules.view.views import companies as companies_view
from scheduler.rules.view.views import moment_of, shares, summary_fields
from scheduler.rules.view.views import workers as workers_view
from witness.entitled_reasons import stands
from witness.pending_reasons import place_in_queue, waits_for

if TYPE_CHECKING:
    from scheduler.rules.entities.workers import Worker
    from scheduler.rules.state.cluster import ClusterState

Sort = Literal["submitted", "waited", "cores", "company", "user", "state", "app"]
SORTS: tuple[Sort, ...] = get_args(Sort)
STATES = ("living", "ended", "all", *get_args(AppState))
"""What apps can be filtered by."""
MOST_TOLD = 10_000
"""The most apps whose cause of waiting is worked out for one answer."""


class Filters(NamedTuple):
    """Which apps are listed, "" = all; `state` may be `living` or `ended`."""

    company: str = ""
    user: str = ""
    state: str = "living"
    reason: str = ""
    text: str = ""


def overview(state: ClusterState) -> dict[str, Any]:
    """The fields of an `Overview` that the state tells, from the capacity to the workers by condition."""
    counts = Counter(app.state for app in state.apps.values())
    waiting = _longest_waits(state)
    pending = Counter(app.spec.company for app in state.apps.values() if app.ended is None and not app.admitted)
    running = Counter(app.spec.company for app in state.apps.values() if app.ended is None and app.admitted)
    shown = shares(state)
    companies = [
        CompanyNow(
            **_now(each),
            department=state.companies[each.company].department,
            pending=pending[each.company],
            admitted=running[each.company],
            longest=_waiter(state, waiting[each.company]) if each.company in waiting else None,
        )
        for each in shown.companies
    ]
    return {
        "capacity": _capacity(state),
        "apps": {name: counts[name] for name in get_args(AppState)},
        "companies": companies,
        "departments": shown.departments,
        "workers": dict(Counter(_condition(worker) for worker in state.workers.values())),
    }


def _capacity(state: ClusterState) -> list[Capacity]:
    """What live workers offer of each kind, and how much of it is used, held for apps, shut, and free."""
    offered = used = held = shut = NOTHING
    for worker in state.workers.values():
        if worker.status != "alive":
            continue
        offered += worker.offer
        used += worker.offer - worker.free
        if worker.shut:
            shut += worker.free
        else:
            held += worker.free - worker.open_to(None)
    parts = {"total": offered, "used": used, "held": held, "shut": shut, "free": offered - used - held - shut}
    return [
        Capacity(kind=kind, **{name: _amount(amounts, kind) for name, amounts in parts.items()})
        for kind in ("cores", "memory", *state.kinds)
    ]


def _amount(amounts: Resources, kind: str) -> int:
    return {"cores": amounts.cores, "memory": amounts.memory_mb}.get(kind, amounts.amount(kind))


def _longest_waits(state: ClusterState) -> dict[str, App]:
    """Company -> the app that has waited longest for its first executor, among those that may start."""
    found: dict[str, App] = {}
    for app in state.apps.values():
        if app.ended is not None or app.executors or app.driver is not None or not (app.ready or app.admitted):
            continue
        first = found.get(app.spec.company)
        if first is None or _since(app) < _since(first):
            found[app.spec.company] = app
    return found


def _since(app: App) -> int:
    """Since when (ms) it could have started."""
    return app.readied_at or app.submitted_at


def _waiter(state: ClusterState, app: App) -> Waiter | None:
    wait = waits_for(state, app)
    return None if wait is None else Waiter(app=app.id, user=app.spec.user, since=_since(app), **asdict(wait.told()))


def _condition(worker: Worker) -> str:
    """Its status, `suspect` if it gets nothing because it is suspected."""
    return "suspect" if worker.shut and worker.status == "alive" else worker.status


def listed(
    state: ClusterState,
    filters: Filters,
    *,
    sort: Sort = "submitted",
    descending: bool = True,
    start: int = 0,
    most: int = 100,
    shown: Callable[[App], bool] = lambda _: True,
    now: int | None = None,
) -> BoardPage:
    """The apps that pass, `most` of them from number `start` on, and how many there are.

    Each has the cause of its wait, if it waits, and since when (ms). By a reason, the first `MOST_TOLD` are filtered.
    """
    found = [app for app in state.apps.values() if _passes(app, filters) and shown(app)]
    if filters.reason:
        found = [app for app in found[:MOST_TOLD] if _cause(state, app) == filters.reason]
    found.sort(key=lambda app: _sort_key(app, sort, moment_of(state, now)), reverse=descending)
    rows = []
    for app in found[start : start + most]:
        wait = waits_for(state, app)
        rows.append(
            BoardRow(
                **summary_fields(app),
                priority=app.priority,
                since=_since(app),
                cause=None if wait is None else wait.cause,
                rule=None if wait is None else wait.rule,
                why=None if wait is None else wait.tell()[0],
                executors=len(app.executors),
            )
        )
    return BoardPage(apps=rows, number=len(found), start=start)


def _passes(app: App, filters: Filters) -> bool:
    spec = app.spec
    if (filters.company and spec.company != filters.company) or (filters.user and spec.user != filters.user):
        return False
    if filters.text and filters.text.casefold() not in app.id.casefold():
        return False
    if filters.state == "living":
        return app.ended is None
    if filters.state == "ended":
        return app.ended is not None
    return not filters.state or app.state == filters.state


def _cause(state: ClusterState, app: App) -> str:
    wait = waits_for(state, app)
    return "" if wait is None else wait.cause


def _sort_key(app: App, sort: Sort, at: int) -> tuple[Any, ...]:
    if sort == "submitted":
        return (app.submitted,)
    if sort == "waited":
        return ((app.admitted_at or app.ended_at or at) - app.submitted_at, app.submitted)
    values = {"cores": app.requested.cores, "state": app.state, "company": app.spec.company, "user": app.spec.user}
    return (values.get(sort, app.id), app.submitted)


def one(state: ClusterState, name: str, now: int | None = None) -> AppCard:
    """The app as `views.app` shows it at `now` (ms), and why it waits, its place in its queue and what would help.

    Raises: UnknownApp.
    """
    app = state.apps.get(name)
    if app is None:
        raise UnknownApp(name)
    wait = waits_for(state, app)
    told = None if wait is None else wait.told()
    return AppCard(
        **asdict(app_view(state, app=name, now=now)),
        waits_for=told,
        help=None if told is None else CAUSES[told.cause].help,
        queue=place_in_queue(state, app),
        standing=stands(state, app),
    )


def company(state: ClusterState, name: str) -> CompanyCard:
    """A company's quota, part, ledgers and shortfall, and what each of its users holds and waits for.

    Raises: UnknownCompany.
    """
    if name not in state.companies:
        raise UnknownCompany(name)
    every = shares(state)
    (own,) = [each for each in every.companies if each.company == name]
    (stated,) = [each for each in companies_view(state) if each.company == name]
    living = [app for app in state.apps.values() if app.ended is None and app.spec.company == name]
    users = {each.user: asdict(each) for each in every.users if each.company == name}
    for user in {app.spec.user for app in living}:
        users.setdefault(user, {"company": name, "user": user})
    pending = Counter([app.spec.user for app in living if not app.admitted])
    admitted = Counter([app.spec.user for app in living if app.admitted])
    oldest: dict[str, int] = {}
    for app in living:
        if not app.executors:
            oldest[app.spec.user] = min(oldest.get(app.spec.user, _since(app)), _since(app))
    waiting = _longest_waits(state).get(name)
    return CompanyCard(
        **{**asdict(stated), **_now(own)},
        short_cores=own.below_cores,
        pending=sum(pending.values()),
        admitted=sum(admitted.values()),
        longest=_waiter(state, waiting) if waiting is not None else None,
        causes=dict(Counter([cause for app in living[:MOST_TOLD] if (cause := _cause(state, app))])),
        by_user=[
            UserCard(**each, pending=pending[user], admitted=admitted[user], since=oldest.get(user))
            for user, each in sorted(users.items())
        ],
        own=True,
    )


def _now(company: CompanyShare) -> dict[str, Any]:
    """The shares; what is entitled as the part, what is wanted as the claim, and what is lent as what is beyond."""
    return {
        **asdict(company),
        "part_cores": company.entitled_cores,
        "part_memory": company.entitled_memory,
        "claim_cores": company.demand_cores,
        "claim_memory": company.demand_memory,
        "beyond_cores": company.lent_cores,
        "beyond_memory": company.lent_memory,
    }


def fleet(state: ClusterState, now: int | None = None) -> FleetShown:
    """The workers as `views.workers` shows them at `now` (ms), lost ones included, each with what runs on it."""
    rows = []
    for each in workers_view(state, lost=True, now=now):
        worker = state.workers.get(each.worker) if each.status != "lost" else None
        held = [] if worker is None else [*worker.drivers.values(), *worker.executors.values()]
        runs = [
            Run(
                id=one.id,
                app=one.app,
                company=state.apps[one.app].spec.company,
                cores=one.resources.cores,
                memory=one.resources.memory_mb,
                status=one.status,
                since=one.granted_at,
            )
            for one in held
        ]
        lost = state.lost.get(each.worker) if worker is None else None
        condition = each.status if worker is None else _condition(worker)
        rows.append(
            FleetWorker(**asdict(each), condition=condition, runs=runs, lost_at=None if lost is None else lost.at)
        )
    return FleetShown(workers=rows)
