"""Statements of departments: the sums of who was in them at the time, which add up level by level (semantics H12)."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest

from recovery.replay.bounds import OPEN, Bound
from recovery.replay.window import measure
from scheduler.model.commands import (
    AddDepartment,
    ChangeDepartment,
    Command,
    EndApp,
    EndedExecutor,
    MoveCompany,
    RegisterCompany,
    RemoveDepartment,
)
from scheduler.model.errors import InvalidCommand
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import Fact
from tests.property.given import Cluster, submission
from tests.unit.recorded import facts
from witness.statement import Level, department_statement, of_departments
from witness.usage import PlacedMeter, UsageMeter

AMOUNTS = ("requestedCoreMs", "requestedMemoryMs", "grantedCoreMs", "grantedMemoryMs", "executorsLost", "lostCoreMs")
TOP = ("d0", "d1", "d2")
"""Departments; d3 to d5 are in these, d6 to d8 in those, and d9 in d6. One company of five is in none."""


@cache
def under_load() -> tuple[Fact, ...]:
    """Ten departments and fifty companies, whose apps come and end while these are put elsewhere."""
    random = Random(41)
    cluster = Cluster(each_refusal=False, each_event=False)
    cluster.turn(*[AddDepartment(department=each) for each in TOP])
    for number in range(3, 10):
        cluster.turn(AddDepartment(department=f"d{number}", parent=f"d{number - 3}"))
    cluster.turn(*[RegisterCompany(company=f"c{number}") for number in range(50)])
    cluster.turn(*[MoveCompany(company=f"c{n}", department=f"d{n % 10}") for n in range(50) if n % 5])
    for number in range(4):
        cluster.worker(f"w{number}", 64)
    put_elsewhere: dict[int, Command] = {
        20: MoveCompany(company="c1", department="d5"),
        30: ChangeDepartment(department="d6", parent="d2"),
        40: MoveCompany(company="c7", department=""),
        50: ChangeDepartment(department="d6", parent=""),
        60: MoveCompany(company="c10", department="d9"),
    }
    for step in range(90):
        companies = random.sample(range(50), 3)
        commands: list[Command] = [
            submission(f"a{step}-{n}", random.randint(4, 40), company=f"c{n}", user=random.choice("xy"))
            for n in companies
        ]
        running = [each for each in cluster.state.apps.values() if each.ended is None and each.executors]
        commands += [EndApp(app=app.id, reason="finished") for app in random.sample(running, min(len(running), 2))]
        gone = [each for each in cluster.state.executors.values() if each.status == "stopping"]
        commands += [EndedExecutor(executor=each.id, reason="exited", done=True) for each in gone[:20]]
        commands += [put_elsewhere[step]] if step in put_elsewhere else []
        cluster.turn(*commands, after_s=random.randint(1, 20))
    return tuple(facts(cluster))


def stated(department: str, by: Level, first: Bound = OPEN, last: Bound = OPEN) -> dict[str, Any]:
    meter = PlacedMeter()
    _, span = measure(under_load(), meter, first=first, last=last)
    return department_statement(meter, span, department, month="1970-01", by=by)


def amounts(row: dict[str, Any]) -> list[int]:
    return [row[name] for name in AMOUNTS]


def added(rows: list[dict[str, Any]]) -> list[int]:
    return [sum(row[name] for row in rows) for name in AMOUNTS]


def below(said: dict[str, Any], place: list[str]) -> list[dict[str, Any]]:
    """The rows directly below that department: departments one level down, and companies in it."""
    return [
        row
        for row in said["rows"]
        if (row["level"] == "company" and row["departments"] == place)
        or (row["level"] == "department" and row["departments"][:-1] == place)
    ]


@pytest.mark.parametrize("span", [(OPEN, OPEN), (Bound(at=250_000), Bound(at=650_123))], ids=["all", "a part"])
def test_the_statements_of_each_level_add_up_to_the_whole(span: tuple[Bound, Bound]) -> None:
    whole = stated("", "user", *span)
    departments = [row for row in whole["rows"] if row["level"] == "department"]
    assert {row["departments"][-1] for row in departments} == {f"d{number}" for number in range(10)}
    assert added(below(whole, [])) == amounts(whole["total"])
    for row in departments:
        assert added(below(whole, row["departments"])) == amounts(row)
    for row in whole["rows"]:
        if row["level"] == "company":
            mine = [
                user
                for user in whole["rows"]
                if (user["level"], user["departments"], user["company"]) == ("user", row["departments"], row["company"])
            ]
            assert added(mine) == amounts(row)
    assert whole["total"]["grantedCoreMs"] > 0
    for name in (f"d{number}" for number in range(10)):
        said = stated(name, "company", *span)
        assert amounts(said["total"]) == added([row for row in departments if row["departments"][-1] == name])
        assert added(below(said, [])) == amounts(said["total"])


def test_the_whole_is_what_the_companies_statements_say() -> None:
    usages = UsageMeter()
    measure(under_load(), usages)
    of_all = list(usages.accrued(under_load()[-1].at))
    whole = stated("", "company")
    assert whole["total"]["grantedCoreMs"] == sum(each.granted_ms.cores for each in of_all)
    assert whole["total"]["executorsLost"] == sum(each.lost for each in of_all)
    for number in range(50):
        mine = [each for each in of_all if each.company == f"c{number}"]
        rows = [row for row in whole["rows"] if row["company"] == f"c{number}"]
        assert sum(row["requestedCoreMs"] for row in rows) == sum(each.requested_ms.cores for each in mine)


def test_a_company_counts_where_it_was_at_every_instant() -> None:
    state, held = ClusterState(), Counter[tuple[tuple[str, ...], str]]()
    for fact in under_load():
        passed = fact.at - state.at
        for app in state.apps.values() if passed > 0 else ():
            company = state.companies[app.spec.company]
            place = tuple(each.name for each in reversed(company.above))
            held[place, app.spec.company] += passed * sum(each.resources.cores for each in app.allocations())
        state.apply(fact.event, at=fact.at, cause=fact.cause)
    rows = [row for row in stated("", "company")["rows"] if row["level"] == "company"]
    found = {(tuple(row["departments"]), row["company"]): row["grantedCoreMs"] for row in rows}
    assert {key: value for key, value in found.items() if value} == {key: value for key, value in held.items() if value}
    assert {place for place, company in found if company == "c1"} == {("d1",), ("d2", "d5")}
    assert {place[:-1] for place, _ in found if place[-1:] == ("d6",)} == {("d0", "d3"), ("d2",), ()}


def test_a_department_that_is_gone_has_a_statement_and_one_that_never_was_has_none() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.turn(AddDepartment(department="r"), MoveCompany(company="acme", department="r"))
    cluster.worker("w1", 16)
    cluster.submit("a1", 16)
    cluster.turn(MoveCompany(company="acme", department=""), after_s=10)
    cluster.turn(RemoveDepartment(department="r"), after_s=10)
    span = Bound(at=0), Bound(at=100_000)
    said = of_departments(facts(cluster), "r", "1970-01", span, "company")
    whole = of_departments(facts(cluster), "", "1970-01", span, "company")
    assert said["total"]["grantedCoreMs"] == 16 * 10_000
    assert [(row["departments"], row["company"]) for row in whole["rows"]] == [
        (["r"], "acme"),
        (["r"], ""),
        ([], "acme"),
    ]
    with pytest.raises(InvalidCommand, match="there is no department 'x'"):
        of_departments(facts(cluster), "x", "1970-01", span, "company")
