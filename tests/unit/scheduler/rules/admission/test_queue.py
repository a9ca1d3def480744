"""Who is next among the pending apps."""

from __future__ import annotations

from scheduler.model.events import AppRegistered, ClusterConfigured, Computed
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.queue import AppQueue
from scheduler.rules.entities.apps import App, Need
from scheduler.rules.entities.ledger import Balance, Occupation, Usage

SMALL, LARGE = Resources(4, 2048), Resources(16, 8192)
HOSTABLE = Need(SMALL, NOTHING, SMALL, hostable=True)


def pending(app: str, submitted: int, *, company: str = "c", user: str = "u", request: Resources = SMALL) -> App:
    spec = AppRegistered(
        app=app,
        company=company,
        user=user,
        kind="sql" if app.startswith("sql") else "batch",
        cores=request.cores,
        requested=request,
        tasks=1,
        sizing=Computed(),
    )
    standings, accounts = (Occupation(), Occupation(), Occupation()), (Balance(), Balance(), Balance())
    links = app, spec, standings, accounts, Usage()
    return App(*links, submitted, submitted, request, None, spec.sizing, HOSTABLE)


def queue_of(*apps: App, **quotas: int) -> tuple[AppQueue, dict[str, Balance]]:
    queue, balances = AppQueue(), {name: Balance() for name in quotas}
    for name, cores in quotas.items():
        queue.add_company(name, balances[name], Usage())
        queue.set_quota(name, Quota(Resources(cores, cores * 512)))
    for app in apps:
        queue.push(app)
    return queue, balances


def occupy(queue: AppQueue, company: str, held: Resources) -> None:
    """Have the company request, and claim, that much."""
    tenant = queue.companies[company].tenant
    tenant.balance.requested = tenant.standing.claimed = held


def first(queue: AppQueue) -> str | None:
    chosen = next_of(queue)
    return chosen.id if chosen else None


def next_of(queue: AppQueue) -> App | None:
    """Who enters next if every pending app is due."""
    return next(queue.entering(queue.arrivals.values()), None)


def test_a_users_apps_come_in_order_from_the_first_or_behind_one() -> None:
    for large in ((), ("a2", "sql4")):  # of one ask, and of two
        apps = [
            pending(name, at, request=LARGE if name in large else SMALL)
            for at, name in enumerate(("a1", "a2", "a3", "sql4", "a5"), start=1)
        ]
        queue, _ = queue_of(*apps, c=64)
        user = queue.companies["c"].users["u"]
        assert [app.id for app in user.in_order(lambda _: False)] == ["a1", "a2", "a3", "sql4", "a5"]
        assert [app.id for app in user.in_order(lambda _: False, apps[1])] == ["a3", "sql4", "a5"]
        assert not list(user.in_order(lambda _: False, apps[4]))
        behind = [app.id for app in user.in_order(lambda ask: ask.request == SMALL, apps[0])]
        assert behind == [name for name in large if name != "a1"]


def test_the_company_with_the_lowest_share_is_next() -> None:
    """Semantics C3: 512 : 128 : 1024 with 128 : 64 : 128 occupied -> the third, else the first, then the second."""
    apps = [pending(name, position, company=name) for position, name in enumerate(("one", "two", "three"), start=1)]
    queue, _balances = queue_of(*apps, one=512, two=128, three=1024)
    for name, cores in (("one", 128), ("two", 64), ("three", 128)):
        occupy(queue, name, Resources(cores))
    order = []
    while (app := next_of(queue)) is not None:
        order.append(app.id)
        queue.remove(app)
    assert order == ["three", "one", "two"]


def test_the_company_selected_longest_ago_wins_a_tie_then_the_first_name() -> None:
    """Semantics C3."""
    apps = [pending(f"{name}{turn}", turn, company=name) for name in ("b", "a") for turn in (1, 2)]
    queue, _ = queue_of(*apps, b=8, a=8)
    order = []
    for position in range(10, 14):
        app = next_of(queue)
        assert app is not None
        order.append(app.id)
        queue.admit(app, position)
    assert order == ["a1", "b1", "a2", "b2"]


def test_the_user_selected_longest_ago_is_next_and_one_never_selected_before_all() -> None:
    """Semantics U1."""
    queue, _ = queue_of(pending("a1", 1, user="ann"), pending("a2", 2, user="ann"), pending("b1", 3, user="bob"), c=64)
    order = []
    for position in range(10, 13):
        app = next_of(queue)
        assert app is not None
        order.append(app.id)
        queue.admit(app, position)
    assert order == ["a1", "b1", "a2"]


def test_among_users_never_selected_the_user_of_the_oldest_app_is_next() -> None:
    """Semantics U1, F1: the oldest pending app decides, not the head of the queue."""
    queue, _ = queue_of(pending("old", 1, user="zoe"), pending("b", 2, user="bob"), pending("sql", 3, user="zoe"), c=64)
    queue.configure(ClusterConfigured(app_policy="sql-first"))
    assert first(queue) == "sql"


def test_sql_first_puts_apps_of_that_kind_before_others_each_by_submission() -> None:
    """Semantics F1."""
    queue, _ = queue_of(pending("b1", 1), pending("sql2", 2), pending("b3", 3), pending("sql4", 4), c=64)
    assert first(queue) == "b1"
    queue.configure(ClusterConfigured(app_policy="sql-first"))
    order = []
    while (app := next_of(queue)) is not None:
        order.append(app.id)
        queue.remove(app)
    assert order == ["sql2", "sql4", "b1", "b3"]


def test_a_company_that_was_forgotten_is_out_of_the_order() -> None:
    queue, _ = queue_of(pending("a", 1), c=8, d=8)
    app = next_of(queue)
    assert app is not None
    queue.remove(app)
    queue.remove_company("c")
    assert next_of(queue) is None
    queue.push(pending("b", 2, company="d"))
    assert first(queue) == "b"


def test_a_quota_that_changed_reorders_the_companies() -> None:
    queue, _balances = queue_of(pending("a", 1, company="a"), pending("b", 2, company="b"), a=64, b=64)
    occupy(queue, "a", Resources(16))
    occupy(queue, "b", Resources(32))
    assert first(queue) == "a"
    queue.set_quota("b", Quota(Resources(1024, 1 << 20)))
    assert first(queue) == "b"
    assert str(queue.share("b")) == "1/32"


def test_the_occupied_share_is_what_is_requested_whatever_is_granted() -> None:
    """Semantics O1."""
    queue, balances = queue_of(pending("a", 1, company="a"), pending("b", 2, company="b"), a=64, b=64)
    balances["a"].requested, balances["b"].granted = Resources(16), Resources(32)
    assert first(queue) == "b"
