"""Who is next among the pending apps."""

from __future__ import annotations

from scheduler.model.events import AppRegistered, ClusterConfigured, Computed
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.queue import AppQueue
from scheduler.rules.entities import App, Need
from scheduler.rules.ledger import Balance, Standing, Usage

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
    standings, accounts = (Standing(), Standing(), Standing()), (Balance(), Balance(), Balance())
    links = app, spec, standings, accounts, Usage()
    return App(*links, submitted, submitted, request, None, spec.sizing, HOSTABLE)


def queue_of(*apps: App, **quotas: int) -> tuple[AppQueue, dict[str, Balance]]:
    queue, balances = AppQueue(), {name: Balance() for name in quotas}
    queue.set_cluster(Resources(4096, 4096 * 512), SMALL)
    for name, cores in quotas.items():
        queue.add_company(name, balances[name], Usage())
        queue.set_quota(name, Quota(Resources(cores, cores * 512)), stops_idle=True)
    for app in apps:
        queue.push(app)
    return queue, balances


def occupy(queue: AppQueue, company: str, held: Resources) -> None:
    """Have the company request, and claim, that much."""
    tenant = queue.companies[company].tenant
    tenant.balance.requested = tenant.standing.claimed = held
    for user in queue.companies[company].users:
        queue.touch(company, user)


def first(queue: AppQueue) -> str | None:
    chosen = queue.first()
    return chosen.id if chosen else None


def test_nobody_is_next_while_nothing_is_pending() -> None:
    queue, _ = queue_of(c=8)
    assert queue.first() is None
    assert AppQueue().first() is None


def test_the_company_with_the_lowest_share_is_next() -> None:
    """Semantics C3: 512 : 128 : 1024 with 128 : 64 : 128 occupied -> the third, else the first, then the second."""
    apps = [pending(name, position, company=name) for position, name in enumerate(("one", "two", "three"), start=1)]
    queue, _balances = queue_of(*apps, one=512, two=128, three=1024)
    for name, cores in (("one", 128), ("two", 64), ("three", 128)):
        occupy(queue, name, Resources(cores))
    order = []
    while (app := queue.first()) is not None:
        order.append(app.id)
        queue.remove(app)
    assert order == ["three", "one", "two"]


def test_the_company_selected_longest_ago_wins_a_tie_then_the_first_name() -> None:
    """Semantics C3."""
    apps = [pending(f"{name}{turn}", turn, company=name) for name in ("b", "a") for turn in (1, 2)]
    queue, _ = queue_of(*apps, b=8, a=8)
    order = []
    for position in range(10, 14):
        app = queue.first()
        assert app is not None
        order.append(app.id)
        queue.admit(app, position)
    assert order == ["a1", "b1", "a2", "b2"]


def test_the_user_selected_longest_ago_is_next_and_one_never_selected_before_all() -> None:
    """Semantics U1."""
    queue, _ = queue_of(pending("a1", 1, user="ann"), pending("a2", 2, user="ann"), pending("b1", 3, user="bob"), c=64)
    order = []
    for position in range(10, 13):
        app = queue.first()
        assert app is not None
        order.append(app.id)
        queue.admit(app, position)
    assert order == ["a1", "b1", "a2"]


def test_among_users_never_selected_the_user_of_the_oldest_app_is_next() -> None:
    """Semantics U1, F2: the oldest pending app decides, not the head of the queue."""
    queue, _ = queue_of(pending("old", 1, user="zoe"), pending("b", 2, user="bob"), pending("sql", 3, user="zoe"), c=64)
    queue.configure(ClusterConfigured(app_policy="sql-first"))
    assert first(queue) == "sql"


def test_a_user_whose_next_app_does_not_pass_the_quota_is_passed_over() -> None:
    """Semantics U2, C4: only the app that F names counts, not a smaller one behind it."""
    queue, _ = queue_of(
        pending("large", 1, user="ann", request=LARGE),
        pending("behind", 2, user="ann"),
        pending("small", 3, user="bob"),
        c=16,
    )
    occupy(queue, "c", Resources(4))
    assert first(queue) == "small"


def test_an_app_beyond_its_companys_quota_alone_is_no_head() -> None:
    """Semantics C4: whatever its place in the queue, unless the company may borrow (C6)."""
    queue, _ = queue_of(pending("large", 1, request=LARGE), pending("behind", 2), c=8)
    assert first(queue) == "behind"
    queue.set_quota("c", Quota(Resources(8, 8 * 512)), stops_idle=True, borrow=True)
    assert first(queue) == "large"


def test_an_app_that_comes_between_a_users_two_heads_is_its_head() -> None:
    """Semantics C4, Q2: the first at all is beyond the quota by itself; the third comes before the second."""
    large, second = pending("large", 1, request=LARGE), pending("second", 2)
    third = pending("third", 3, request=Resources(4, 1024))
    large.priority, third.priority = 5, 2
    queue, _ = queue_of(large, second, third, c=8)
    user = queue.companies["c"].users["u"]
    assert (user.first, user.head) == (large, third)
    queue.remove(third)
    assert (user.first, user.head) == (large, second)


def test_an_app_that_room_is_reserved_for_counts_though_another_is_its_users_head() -> None:
    """Semantics C1, C7, A9: what it asks is asked, and it is next once nothing is claimed."""
    large, other = pending("large", 1, request=LARGE), pending("other", 2)
    queue, _ = queue_of(large, c=16)
    occupy(queue, "c", SMALL)
    assert queue.first() is None
    queue.reserve(large, 10)
    other.priority = 5
    queue.push(other)
    assert queue.companies["c"].users["u"].head is other
    assert [ask.request for ask in queue.asks()][:2] == [LARGE, SMALL]
    occupy(queue, "c", NOTHING)
    assert first(queue) == "large"
    queue.remove(other)
    assert first(queue) == "large"


def test_a_company_none_of_whose_users_passes_the_cap_takes_no_part() -> None:
    """Semantics C1."""
    queue, _ = queue_of(pending("large", 1, request=LARGE), pending("other", 2, company="d", request=LARGE), c=8, d=64)
    assert first(queue) == "other"


def test_a_cap_lets_through_what_fills_it_exactly() -> None:
    """Semantics C4."""
    queue, _balances = queue_of(pending("a", 1), c=8)
    occupy(queue, "c", Resources(4))
    assert first(queue) == "a"
    occupy(queue, "c", Resources(5))
    assert first(queue) is None


def test_a_cap_in_memory_binds_too() -> None:
    """Semantics C4."""
    queue, _balances = queue_of(pending("a", 1), c=8)
    occupy(queue, "c", Resources(0, 8 * 512 - 2048 + 1))
    assert first(queue) is None


def test_a_default_quota_does_not_stop_a_company_that_occupies_nothing() -> None:
    """Semantics C4."""
    queue, _balances = queue_of(pending("large", 1, request=LARGE), c=8)
    queue.set_quota("c", Quota(Resources(8, 4096)), stops_idle=False)
    assert first(queue) == "large"
    occupy(queue, "c", Resources(4, 2048))
    assert first(queue) is None


def test_sql_first_puts_apps_of_that_kind_before_others_each_by_submission() -> None:
    """Semantics F1, F2."""
    queue, _ = queue_of(pending("b1", 1), pending("sql2", 2), pending("b3", 3), pending("sql4", 4), c=64)
    assert first(queue) == "b1"
    queue.configure(ClusterConfigured(app_policy="sql-first"))
    order = []
    while (app := queue.first()) is not None:
        order.append(app.id)
        queue.remove(app)
    assert order == ["sql2", "sql4", "b1", "b3"]


def test_a_company_that_was_forgotten_is_out_of_the_order() -> None:
    queue, _ = queue_of(pending("a", 1), c=8, d=8)
    app = queue.first()
    assert app is not None
    queue.remove(app)
    queue.remove_company("c")
    assert queue.first() is None
    queue.push(pending("b", 2, company="d"))
    assert first(queue) == "b"


def test_a_quota_that_changed_reorders_the_companies() -> None:
    queue, _balances = queue_of(pending("a", 1, company="a"), pending("b", 2, company="b"), a=64, b=64)
    occupy(queue, "a", Resources(16))
    occupy(queue, "b", Resources(32))
    assert first(queue) == "a"
    queue.set_quota("b", Quota(Resources(1024, 1 << 20)), stops_idle=True)
    assert first(queue) == "b"
    assert str(queue.share("b")) == "1/32"


def test_the_occupied_share_is_what_is_granted_where_the_setting_says_so() -> None:
    """Semantics O3."""
    queue, balances = queue_of(pending("a", 1, company="a"), pending("b", 2, company="b"), a=64, b=64)
    balances["a"].requested, balances["b"].granted = Resources(16), Resources(32)
    queue.configure(ClusterConfigured(occupancy="granted"))
    assert first(queue) == "a"
    queue.configure(ClusterConfigured())
    assert first(queue) == "b"
