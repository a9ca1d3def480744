"""Departments: who is in which, what they may hold and keep, and what is refused (semantics H12)."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    AddDepartment,
    ChangeDepartment,
    Command,
    EndApp,
    EndedExecutor,
    MoveCompany,
    RegisterCompany,
    RegisterKind,
    RemoveCompany,
    RemoveDepartment,
    ScaleApp,
    SetLimit,
    SubmitApp,
)
from scheduler.model.errors import (
    InvalidCommand,
    InvariantViolated,
    LimitExceeded,
    QuotaExceeded,
    UnknownCompany,
    UnknownKind,
)
from scheduler.model.events import AppAdmitted, CompanyMoved, DepartmentAdded, DepartmentChanged, DepartmentRemoved
from scheduler.model.quota import Quota
from scheduler.model.resources import Resources
from scheduler.rules.entities.ledger import Occupation
from scheduler.rules.invariants import check
from scheduler.rules.share.entitlement import entitlement, filling
from scheduler.rules.state.records import lines, restored
from scheduler.rules.view.unmet import unmet
from scheduler.rules.view.views import companies, departments, limits, shares
from tests.property.given import Cluster, submission
from witness.pending_reasons import waits_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.rules.state.cluster import ClusterState


def department(name: str, **fields: Any) -> AddDepartment:
    return AddDepartment(department=name, **fields)


def wants_all(app: str, company: str, each: int = 1, **fields: Any) -> SubmitApp:
    return SubmitApp(
        app=app,
        company=company,
        user="u",
        command=("true",),
        cores=64 * each,
        tasks=1000,
        executor_cores=each,
        executor_memory_mb=256 * each,
        **fields,
    )


def made(*more: Command, cores: int = 32, settings: dict[str, object] | None = None) -> Cluster:
    """Companies a and b in the department r, c in none, on one worker."""
    cluster = Cluster(settings)
    cluster.turn(department("r"))
    cluster.turn(*[RegisterCompany(company=name) for name in "abc"])
    cluster.turn(*[MoveCompany(company=name, department="r") for name in "ab"])
    cluster.worker("w1", cores)
    cluster.turn(*more)
    return cluster


def due(cluster: Cluster) -> dict[str, int]:
    entitled = entitlement(cluster.state)
    return {app.id: entitled.units(app) for app in cluster.state.apps.values()}


ALL = [wants_all(name, name) for name in "abc"]


def test_a_department_without_a_quota_weighs_as_much_as_what_is_in_it() -> None:
    assert due(made(*ALL)) == {"a": 11, "b": 10, "c": 11}


def test_a_quota_is_the_weight_beside_siblings_and_without_a_limit_no_cap() -> None:
    cluster = made(ChangeDepartment(department="r", part="1/3", borrow_limit="none"), *ALL)
    assert due(cluster) == {"a": 8, "b": 8, "c": 16}
    cluster.turn(*[EndedExecutor(executor=one, reason="exited") for one in list(cluster.state.apps["c"].executors)])
    assert due(cluster)["a"] == due(cluster)["b"] == 8


def test_a_quota_of_its_own_is_a_cap_by_default() -> None:
    cluster = made(ChangeDepartment(department="r", cores=10, memory_mb=65536), *ALL[:2])
    assert due(cluster) == {"a": 5, "b": 5}
    assert cluster.state.departments["r"].balance.granted.cores == 10
    assert cluster.state.departments["r"].cap == Quota(Resources(10, 65536), named=())


def test_what_may_be_borrowed_is_a_part_of_the_quota() -> None:
    cluster = made(ChangeDepartment(department="r", cores=10, memory_mb=65536, borrow_limit="50%"), *ALL[:2])
    assert sorted(due(cluster).values()) == [7, 8]
    assert cluster.state.departments["r"].balance.granted.cores == 15


def test_what_is_lent_to_others_is_at_most_a_part_of_the_quota() -> None:
    lends = ChangeDepartment(department="r", cores=20, memory_mb=65536, lend_limit="25%")
    cluster = made(lends, ALL[2])
    assert cluster.state.departments["r"].kept.cores == 15
    assert due(cluster) == {"c": 17}
    assert cluster.state.fleet.most_free_cores() == 15
    cluster.turn(ALL[0])
    assert due(cluster) == {"c": 12, "a": 20}
    assert len(cluster.state.apps["a"].executors) == 15


def test_who_gets_nothing_since_a_department_keeps_it_is_told_which_one() -> None:
    lends = ChangeDepartment(department="r", cores=20, memory_mb=16384, lend_limit="25%")
    cluster = made(department("s", cores=1, memory_mb=1024, lend_limit="0%"), lends, ALL[2])
    cluster.turn(wants_all("late", "c"))
    told = waits_for(cluster.state, cluster.state.apps["late"])
    assert told is not None
    text, facts = told.tell()
    assert facts["department"] == "r"
    assert "; r alone keeps 15 cores and 12288 MiB, and is entitled to 0 cores and 0 MiB of it now; `fairlog" in text
    cluster = made(ChangeDepartment(department="r", cores=64, memory_mb=65536, lend_limit="0%"), ALL[2])
    told = waits_for(cluster.state, cluster.state.apps["c"])
    assert told is not None
    text, _ = told.tell()
    assert "r alone keeps 64 cores and 65536 MiB" in text
    assert "which is as much as the cluster offers, 32 cores and 65536 MiB, so nobody else gets any" in text


def test_a_cap_above_bounds_all_that_is_within() -> None:
    cluster = made(
        department("top", part="1/4"),
        ChangeDepartment(department="r", parent="top", part="1/2", borrow_limit="none"),
        MoveCompany(company="c", department="top"),
        *ALL,
    )
    assert sum(due(cluster).values()) == 8


def test_surplus_of_a_sibling_leaves_for_a_need_that_a_departments_cap_keeps_out() -> None:
    cluster = made(
        ChangeDepartment(department="r", cores=8, memory_mb=65536), ALL[0], settings={"reclaim_patience_s": 60}
    )
    assert len(cluster.state.apps["a"].executors) == 8
    cluster.turn(ALL[1])
    assert due(cluster) == {"a": 4, "b": 4}
    told = [one for one in cluster.state.executors.values() if one.status == "stopping"]
    assert [one.app for one in told] == ["a"]
    cluster.turn(*[EndedExecutor(executor=one.id, reason="killed") for one in told])
    assert len(cluster.state.apps["b"].executors) == 1


def test_the_department_with_the_lowest_share_enters_first() -> None:
    cluster = Cluster()
    cluster.turn(department("r", part="1/2", borrow_limit="none"), department("s", part="1/2", borrow_limit="none"))
    cluster.turn(*[RegisterCompany(company=name) for name in "abc"])
    cluster.turn(
        *[MoveCompany(company=name, department="r") for name in "ab"], MoveCompany(company="c", department="s")
    )
    cluster.turn(SubmitApp(app="a1", company="a", user="u", command=("true",), cores=4))
    cluster.turn(
        SubmitApp(app="b1", company="b", user="u", command=("true",), cores=4),
        SubmitApp(app="c1", company="c", user="u", command=("true",), cores=4),
    )
    entered = [event.app for event in cluster.worker("w1", 32) if isinstance(event, AppAdmitted)]
    assert entered == ["a1", "c1", "b1"]


@pytest.mark.parametrize("policy", ["dominant-share", "pay-as-you-go"])
def test_the_order_of_entry_regards_departments_by_both_policies(policy: str) -> None:
    cluster = made(settings={"company_policy": policy})
    events = cluster.turn(*ALL)
    assert {event.app for event in events if isinstance(event, AppAdmitted)} == {"a", "b", "c"}


def test_a_cap_of_further_kinds_is_shown() -> None:
    cluster = made(RegisterKind(kind="gpu"))
    quota = {"cores": 8, "memory_mb": 65536, "resources": {"gpu": 3}}
    cluster.turn(ChangeDepartment(department="r", borrow_limit="50%", **quota), RegisterCompany(company="d", **quota))  # type: ignore[arg-type]
    found = shares(cluster.state)
    assert (found.departments[0].cap_cores, found.departments[0].cap_resources) == (12, {"gpu": "9/2"})
    assert [each.cap_resources for each in found.companies if each.company == "d"] == [{"gpu": 3}]
    assert [each.cap_resources for each in found.companies if each.company == "a"] == [None]


def test_what_a_department_holds_is_said_and_adds_up() -> None:
    cluster = made(ChangeDepartment(department="r", part="1/2", lend_limit="0%"), *ALL)
    (shown,) = departments(cluster.state)
    assert (shown.department, shown.parent, shown.quota, shown.quota_cores, shown.companies) == ("r", "", "1/2", 16, 2)
    assert (shown.borrow_limit, shown.lend_limit, shown.cap_cores, shown.cap_memory) == ("0/1", "0/1", 16, 32768)
    found = shares(cluster.state)
    assert found.departments == [shown]
    theirs = [each for each in found.companies if each.company in "ab"]
    for name in ("granted_cores", "held_cores", "entitled_cores", "demand_cores", "lent_cores", "below_memory"):
        assert getattr(shown, name) == sum(getattr(each, name) for each in theirs)
    assert [each.department for each in companies(cluster.state)] == ["r", "r", ""]


def test_explain_names_the_department_whose_cap_is_reached() -> None:
    cluster = made(ChangeDepartment(department="r", cores=4, memory_mb=65536), ALL[0])
    cluster.turn(wants_all("late", "a", 3))
    told = waits_for(cluster.state, cluster.state.apps["late"])
    assert told is not None
    assert "a is in the department r, which may not pass its cap, 4 cores and 65536 MiB" in told.tell()[0]


def test_an_app_whose_first_unit_passes_a_departments_cap_is_refused() -> None:
    cluster = made(RegisterKind(kind="gpu"), ChangeDepartment(department="r", cores=4, memory_mb=1024))
    with pytest.raises(QuotaExceeded, match="requests 8 cores, but the cap of department 'r' is 4 cores"):
        cluster.turn(wants_all("x", "a", 8))
    with pytest.raises(QuotaExceeded, match=r"the cap of department 'r' is 1024 MiB of memory; .*`fairlog department"):
        cluster.turn(
            SubmitApp(
                app="x", company="a", user="u", command=("true",), executor_cores=4, cores=4, executor_memory_mb=2048
            )
        )
    cluster.turn(ChangeDepartment(department="r", cores=4, memory_mb=1024, borrow_limit="100%"))
    assert cluster.turn(wants_all("x", "a", 8))


def test_demand_that_a_departments_cap_keeps_back_calls_for_no_worker() -> None:
    cluster = made(ChangeDepartment(department="r", cores=10, memory_mb=65536), *ALL[:2], cores=4)
    assert [each.missing for each in unmet(cluster.state)] == [6]


def test_what_does_not_change_anything_has_no_event() -> None:
    cluster = made()
    assert cluster.turn(MoveCompany(company="a", department="r")) == []
    assert cluster.turn(ChangeDepartment(department="r", borrow_limit="none")) == []


def test_the_events_of_departments_say_all_that_holds_afterwards() -> None:
    cluster = made(RegisterKind(kind="gpu"))
    (added,) = cluster.turn(department("s", parent="r", cores=8, memory_mb=1024, resources={"gpu": 1}))
    quota = {"amounts": Resources.of(8, 1024, gpu=1), "kinds": ("gpu",)}
    assert added == DepartmentAdded(department="s", parent="r", borrow_limit="0/1", **quota)  # type: ignore[arg-type]
    (changed,) = cluster.turn(ChangeDepartment(department="s", parent="", lend_limit="12.5%"))
    assert changed == DepartmentChanged(department="s", borrow_limit="0/1", lend_limit="1/8", **quota)  # type: ignore[arg-type]
    assert cluster.turn(ChangeDepartment(department="s", part="none")) == [
        DepartmentChanged(department="s", lend_limit="1/8")
    ]
    (moved,) = cluster.turn(MoveCompany(company="a", department=""))
    assert moved == CompanyMoved(company="a", department="")
    assert cluster.turn(RemoveDepartment(department="s")) == [DepartmentRemoved(department="s")]


def test_a_company_that_is_removed_leaves_its_department() -> None:
    cluster = made()
    cluster.turn(RemoveCompany(company="a"))
    assert cluster.state.departments["r"].companies == 1
    cluster.turn(RemoveCompany(company="b"))
    assert cluster.turn(RemoveDepartment(department="r"))


@pytest.mark.parametrize(
    ("command", "error", "why"),
    [
        (department("r"), InvalidCommand, "there is a department 'r' already; choose another name"),
        (department("none"), InvalidCommand, "'none' means no department"),
        (department("x y"), InvalidCommand, "the name of the department"),
        (department("x", parent="y"), InvalidCommand, r"there is no department 'y'; `fairlog department list`"),
        (department("x", cores=4), InvalidCommand, "needs both --cores and --memory"),
        (department("x", cores=4, memory_mb=1, part="1/2"), InvalidCommand, "either --cores with --memory, or --part"),
        (department("x", resources={"gpu": 1}), InvalidCommand, "a quota of gpu needs --cores and --memory as well"),
        (department("x", cores=1, memory_mb=1, resources={"gpu": 1}), UnknownKind, "gpu"),
        (department("x", part="120%"), InvalidCommand, "a part of the cluster must be above 0% and at most 100%"),
        (department("x", borrow_limit="many"), InvalidCommand, "--borrow-limit is a part of the quota, such as 25%"),
        (department("x", borrow_limit="1/0"), InvalidCommand, "--borrow-limit is a part of the quota"),
        (department("x", lend_limit="101%"), InvalidCommand, "--lend-limit is a part of the quota from 0% to 100%"),
        (department("x", lend_limit="1/3000000"), InvalidCommand, "in whole millionths"),
        (ChangeDepartment(department="y"), InvalidCommand, "there is no department 'y'"),
        (ChangeDepartment(department="r", parent="r"), InvalidCommand, "'r' cannot be in 'r', which is 'r' or within"),
        (RemoveDepartment(department="y"), InvalidCommand, "there is no department 'y'"),
        (RemoveDepartment(department="r"), InvalidCommand, "company 'a' is in department 'r'; put it elsewhere first"),
        (MoveCompany(company="a", department="y"), InvalidCommand, "there is no department 'y'"),
        (MoveCompany(company="y", department="r"), UnknownCompany, "y"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(command: Command, error: type[Exception], why: str) -> None:
    cluster = made()
    with pytest.raises(error, match=why):
        cluster.turn(command)


def test_departments_are_at_most_eight_one_within_the_other() -> None:
    cluster = Cluster(each_refusal=False, each_event=False)
    for number in range(8):
        cluster.turn(department(f"d{number}", parent=f"d{number - 1}" if number else ""))
    with pytest.raises(InvalidCommand, match="would make 9 departments one within the other; 8 are the most"):
        cluster.turn(department("d8", parent="d7"))
    cluster.turn(department("e"))
    with pytest.raises(InvalidCommand, match="department 'd0' in 'e' would make 9 departments"):
        cluster.turn(ChangeDepartment(department="d0", parent="e"))
    cluster.turn(ChangeDepartment(department="d7", parent="e"))
    with pytest.raises(InvalidCommand, match="'d0' cannot be in 'd5', which is 'd0' or within it"):
        cluster.turn(ChangeDepartment(department="d0", parent="d5"))
    with pytest.raises(InvalidCommand, match="department 'd1' is in 'd0'; `fairlog department remove d1` first"):
        cluster.turn(RemoveDepartment(department="d0"))


def test_departments_are_at_most_a_thousand() -> None:
    cluster = Cluster(each_refusal=False, each_event=False)
    cluster.turn(*[department(f"d{number}") for number in range(1000)])
    with pytest.raises(InvalidCommand, match="there are 1000 departments, the most; remove one first"):
        cluster.turn(department("more"))


def limited(name: str, value: int | None, department: str = "r") -> SetLimit:
    return SetLimit(scope="department", name=name, value=value, department=department)


def sized(app: str, company: str, cores: int) -> SubmitApp:
    return submission(app, cores, company=company, user="u")


@pytest.mark.parametrize(
    ("limit", "most", "why"),
    [
        ("max_cores", 8, "limit max_cores of department r: claims 8 of 8, 4 asked"),
        ("max_memory_mb", 5000, "limit max_memory_mb of department r: claims 4096 of 5000, 2048 asked"),
        ("max_running_apps", 1, "limit max_running_apps of department r: runs 1 of 1, 1 asked"),
    ],
)
def test_a_limit_of_a_department_passes_over_all_companies_in_it(limit: str, most: int, why: str) -> None:
    cluster = made(department("inner", parent="r"), MoveCompany(company="b", department="inner"), limited(limit, most))
    cluster.turn(sized("a1", "a", 8), sized("c1", "c", 8))
    cluster.turn(sized("b1", "b", 4))
    waits = waits_for(cluster.state, cluster.state.apps["b1"])
    assert waits is not None
    assert (waits.cause, waits.rule, waits.tell()[0]) == ("beyond-limit", "N2", why)
    assert waits.tell()[1]["department"] == "r"
    again = restored(list(lines(cluster.state)))
    assert again.digest() == cluster.state.digest()
    same = waits_for(again, again.apps["b1"])
    assert same is not None
    assert same.tell() == waits.tell()
    (shown,) = limits(cluster.state)
    assert (shown.scope, shown.department, shown.company, shown.value) == ("department", "r", None, most)
    assert shown.present == {"max_cores": 8, "max_memory_mb": 4096, "max_running_apps": 1}[limit]
    cluster.turn(EndApp(app="a1", reason="finished"))
    cluster.turn(*[EndedExecutor(executor=one, reason="exited") for one in list(cluster.state.apps["a1"].executors)])
    assert cluster.state.apps["b1"].executors


def test_who_leaves_a_department_leaves_its_limits() -> None:
    cluster = made(limited("max_cores", 8))
    cluster.turn(sized("a1", "a", 8), sized("b1", "b", 4))
    assert sorted(name for name, app in cluster.state.apps.items() if app.admitted) in (["a1"], ["b1"])
    cluster.turn(MoveCompany(company="b", department=""))
    assert all(app.admitted for app in cluster.state.apps.values())
    cluster.turn(MoveCompany(company="a", department=""), RemoveDepartment(department="r"), department("r"))
    assert limits(cluster.state) == []
    cluster.turn(MoveCompany(company="a", department="r"), sized("a2", "a", 16))
    assert cluster.state.apps["a2"].admitted
    cluster.check_replay()


def test_limits_of_departments_let_others_in_as_in_a_filling_that_begins_anew() -> None:
    random, cluster = Random(7), made(department("inner", parent="r"), MoveCompany(company="b", department="inner"))
    cluster.turn(limited("max_cores", 20), limited("max_running_apps", 3, "inner"))
    for step in range(60):
        ends = [app.id for app in cluster.state.apps.values() if app.admitted and app.ended is None]
        stopping = [one.id for one in cluster.state.executors.values() if one.status == "stopping"]
        cluster.turn(
            sized(f"x{step}", random.choice("aabbc"), 4 * random.randint(1, 3)),
            *[EndApp(app=name, reason="finished") for name in random.sample(ends, min(len(ends), step % 2))],
            *[EndedExecutor(executor=one, reason="exited") for one in stopping],
        )
        state = cluster.state
        here, anew = entitlement(state), filling(state)[0]
        apps = [app for app in state.apps.values() if app.ended is None]
        assert [here.units(app) for app in apps] == [anew.units(app) for app in apps]
        claimed = [state.claims.of(name).claimed.cores for name in "ab"]
        assert sum(claimed) <= 20
        assert state.claims.of("b").apps <= 3


def counted(state: ClusterState) -> dict[str, tuple[int, int, int]]:
    """The cores that each department claims, and how many of its apps are pending and admitted."""
    standings = {name: each.standing for name, each in state.departments.items()}
    return {name: (each.claimed.cores, each.pending, each.apps) for name, each in standings.items()}


def test_what_a_department_claims_is_kept_as_companies_and_apps_come_and_go() -> None:
    cluster = made(department("top"), ChangeDepartment(department="r", parent="top"))
    state = cluster.state
    cluster.turn(sized("a1", "a", 8), sized("b1", "b", 8), sized("c1", "c", 8))
    assert counted(state) == {"r": (16, 0, 0), "top": (16, 0, 0)}  # apps are counted where there are limits
    cluster.turn(limited("max_cores", 18), sized("b2", "b", 4))
    assert counted(state) == {"r": (16, 1, 2), "top": (16, 1, 2)}
    cluster.turn(MoveCompany(company="b", department="top"))
    assert counted(state) == {"r": (8, 0, 1), "top": (20, 0, 3)}
    cluster.turn(ChangeDepartment(department="r", parent=""))
    assert counted(state) == {"r": (8, 0, 1), "top": (12, 0, 2)}
    assert counted(restored(list(lines(state)))) == counted(state)
    cluster.turn(EndApp(app="a1", reason="finished"))
    assert counted(state) == {"r": (8, 0, 0), "top": (12, 0, 2)}
    cluster.turn(*[EndedExecutor(executor=one, reason="exited") for one in list(state.apps["a1"].executors)])
    assert counted(state) == {"r": (0, 0, 0), "top": (12, 0, 2)}
    cluster.turn(EndApp(app="b1", reason="finished"), EndApp(app="b2", reason="finished"))
    cluster.turn(*[EndedExecutor(executor=one, reason="exited") for one in list(state.executors)])
    cluster.turn(RemoveCompany(company="b"))
    assert counted(state) == {"r": (0, 0, 0), "top": (0, 0, 0)}
    cluster.check_replay()


def claims_more(state: ClusterState) -> None:
    state.departments["r"].standing.claimed += Resources(1, 0)


def counts_more(state: ClusterState) -> None:
    state.departments["r"].standing.apps += 1


def counts_nowhere(state: ClusterState) -> None:
    state.claims.of("a").above = ()


def asks_another(state: ClusterState) -> None:
    limit = state.queue.companies["a"].limit
    limit.above = [(name, ceiling, Occupation()) for name, ceiling, _ in limit.above]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (claims_more, "department 'r' counts .*cores=9.*, but its companies claim .*cores=8"),
        (counts_more, "department 'r' counts .*apps=2.*, but its companies claim .*apps=1"),
        (counts_nowhere, "company 'a' does not count in the departments above it"),
        (asks_another, "other limits of departments count for company 'a'"),
    ],
)
def test_a_department_that_counts_other_than_its_companies_is_found(
    spoil: Callable[[ClusterState], None], why: str
) -> None:
    cluster = made(limited("max_cores", 18), sized("a1", "a", 8))
    check(cluster.state)
    spoil(cluster.state)
    with pytest.raises(InvariantViolated, match=why):
        check(cluster.state)


def test_the_companies_of_a_department_share_its_submissions_a_minute() -> None:
    cluster = made(department("inner", parent="r"), MoveCompany(company="b", department="inner"))
    cluster.turn(limited("submit_per_minute", 2), limited("submit_per_minute", 2, "inner"))
    cluster.turn(sized("a1", "a", 1), sized("b1", "b", 1))
    with pytest.raises(LimitExceeded, match="submit_per_minute of department r is 2, and no submission is left"):
        cluster.turn(sized("b2", "b", 1))
    cluster.turn(sized("c1", "c", 1))
    assert restored(lines(cluster.state)).digest() == cluster.state.digest()
    cluster.turn(MoveCompany(company="b", department=""), sized("b2", "b", 1))
    cluster.turn(limited("submit_per_minute", 1), sized("a2", "a", 1))  # a bucket begins full under its new limit
    with pytest.raises(LimitExceeded, match=r"the next is possible in [0-9]+ s"):
        cluster.turn(sized("a3", "a", 1))
    cluster.turn(sized("a3", "a", 1), after_s=60)
    cluster.turn(RemoveDepartment(department="inner"))
    assert {user for company, user in cluster.state.limits.buckets if not company} == {"r"}


def test_an_app_grows_up_to_the_limit_of_one_app_in_its_department() -> None:
    cluster = made(limited("max_app_cores", 8))
    with pytest.raises(LimitExceeded, match="max_app_cores of department r is 8, and the app requests 12 cores"):
        cluster.turn(sized("a1", "a", 12))
    each: dict[str, Any] = {"executor_cores": 4, "executor_memory_mb": 256}
    for company in "ac":
        cluster.turn(
            SubmitApp(app=company, company=company, user="u", command=("true",), tasks=64, elastic=(1, 4), **each)
        )
    for _ in range(6):
        cluster.turn(after_s=2)
    apps = cluster.state.apps
    assert [apps[app].requested.cores for app in "ac"] == [8, 16]
    cluster.turn(limited("max_app_cores", 2), replace(wants_all("a2", "a", 4), cores=8, executor_limit=0))
    cluster.turn(ScaleApp(app="a2", executors=1))
    wait = waits_for(cluster.state, apps["a2"])
    assert wait is not None
    text, facts = wait.tell()
    assert text == (
        "limit max_app_cores of department r: the app requests 0 of 2, 4 asked; that alone is more, so it starts once "
        "`fairlog limit set max_app_cores=4 --department r` raises it"
    )
    assert (facts["department"], facts["user"]) == ("r", None)


def test_what_alone_exceeds_a_limit_of_a_department_is_refused() -> None:
    cluster = made(limited("max_cores", 8), limited("max_tasks", 100), limited("max_pending_apps", 1))
    for app, why in (
        (sized("a1", "a", 12), "max_cores of department r is 8.*requests 12 cores"),
        (wants_all("a1", "a"), "max_tasks of department r is 100, and the app has 1000 tasks"),
    ):
        with pytest.raises(LimitExceeded, match=why):
            cluster.turn(app)
    cluster.turn(limited("max_tasks", None), sized("a1", "a", 8))
    cluster.turn(sized("b1", "b", 4))
    with pytest.raises(LimitExceeded, match="max_pending_apps of department r is 1"):
        cluster.turn(sized("a2", "a", 4))
    cluster.turn(sized("c1", "c", 30))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (limited("max_cores", 8, "x"), "there is no department 'x'"),
        (limited("max_nothing", 8), "no limit is named 'max_nothing'"),
        (replace(limited("max_cores", 8), company="a"), "names the department and nobody else"),
        (replace(limited("max_cores", 8), department=None), "names the department and nobody else"),
        (SetLimit(scope="company", name="max_cores", value=8, company="a", department="r"), "and nobody else"),
    ],
)
def test_a_limit_that_no_department_has_is_refused(command: Command, why: str) -> None:
    with pytest.raises(InvalidCommand, match=why):
        made().turn(command)
