"""How fair a log was to departments: entitlements from the cluster down, and each level by itself (semantics H12)."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from recovery.replay.window import measure
from scheduler.model.commands import AddDepartment, ChangeDepartment, Command, MoveCompany, RegisterCompany
from tests.property.given import Cluster, submission
from tests.unit.recorded import facts
from tests.unit.witness.test_department_statements import under_load
from witness.entitlement import Sibling, entitlements_within
from witness.fairness import Fairness, shortfall

WEIGHT = (8.0, 64.0)


def company(cores: float) -> Sibling:
    return Sibling(WEIGHT, (cores, cores / 4))


def department(within: dict[tuple[str, str], Sibling], cap: float = inf, kept: float = 0.0) -> Sibling:
    weight = (8.0 * len(within), 64.0 * len(within))
    return Sibling(weight, (0.0, 0.0), (cap, inf), (kept, 0.0), within)


def due(**nodes: Sibling) -> dict[str, float]:
    tree = {(name, "") if not node.cap else ("", name): node for name, node in nodes.items()}
    return {name: found[0] for (name, _), found in entitlements_within((32.0, 256.0), tree).items()}


def test_entitlements_go_from_the_cluster_down() -> None:
    two = {("a", ""): company(100), ("b", ""): company(100)}
    third = pytest.approx(32 / 3)
    assert due(r=department(two), c=company(100)) == {"a": third, "b": third, "c": third}
    capped = due(r=department(two, cap=16), c=company(100))
    assert capped == {"a": pytest.approx(8), "b": pytest.approx(8), "c": pytest.approx(16)}
    modest = {("a", ""): company(100), ("b", ""): company(2)}
    found = due(r=department(modest), c=company(100))
    assert found == {"a": pytest.approx(64 / 3 - 2), "b": pytest.approx(2), "c": third}
    inner = {("", "p"): department(two, cap=8), ("d", ""): company(100)}
    found = due(r=department(inner, cap=20), c=company(100))
    assert found["a"] + found["b"] + found["d"] == pytest.approx(20)
    assert found["c"] == pytest.approx(12)
    assert found["a"] == found["b"] == pytest.approx(4)


def test_what_is_kept_and_not_demanded_is_nobodys() -> None:
    idle = department({("a", ""): company(3)}, kept=10)
    assert due(r=idle, c=company(100)) == {"a": pytest.approx(3), "c": pytest.approx(22)}
    around = department({("", "p"): idle, ("b", ""): company(1)}, kept=12)
    found = due(r=around, c=company(100))
    assert found == {"a": pytest.approx(3), "b": pytest.approx(1), "c": pytest.approx(20)}
    assert due(r=department({}, kept=30), c=company(100)) == {"c": pytest.approx(2)}


def report(log: Any, by: Any = "department") -> dict[str, Any]:
    meter = Fairness(by=by)
    return meter.report(measure(log, meter)[0])


def three(*more: Command) -> Cluster:
    """Companies a and b in r, which is in q, and c in none, each of which wants all of 32 cores."""
    cluster = Cluster()
    cluster.turn(AddDepartment(department="q"), AddDepartment(department="r", parent="q"))
    for name in "abc":
        cluster.turn(RegisterCompany(company=name), MoveCompany(company=name, department="r" if name < "c" else ""))
    cluster.turn(*more)
    cluster.worker("w1", 32)
    cluster.turn(*[submission(f"{name}1", 32, company=name) for name in "abc"])
    cluster.turn(AddDepartment(department="later"), after_s=100)
    return cluster


def test_each_department_has_a_line_and_the_cluster_counts_nobody_twice() -> None:
    found = report(facts(three()))
    rows = {row["department"] or row["company"]: row for row in found["rows"]}
    assert list(rows) == ["q", "r", "c"]
    assert rows["q"]["entitledCores"] == rows["r"]["entitledCores"] == pytest.approx(2 * rows["c"]["entitledCores"])
    assert (rows["q"]["apps"], rows["r"]["apps"], rows["c"]["apps"]) == (2, 2, 1)
    assert rows["q"]["jain"] is None, "there is nobody to compare r with"
    assert 0 < rows["r"]["jain"] <= 1
    whole = found["cluster"]
    assert whole["shortfallCoreS"] == pytest.approx(rows["q"]["shortfallCoreS"] + rows["c"]["shortfallCoreS"], abs=0.01)
    assert whole["utilisation"] <= 1
    queued = [
        sum(point["queueLength"] for point in report(facts(three()), by)["series"]) for by in ("company", "department")
    ]
    assert queued[0] == pytest.approx(queued[1])


def test_a_department_at_its_cap_owes_its_companies_nothing() -> None:
    cluster = three(ChangeDepartment(department="q", cores=8, memory_mb=1 << 20))
    rows = {row["company"]: row for row in report(facts(cluster), "company")["rows"]}
    assert rows["a"]["entitledCores"] + rows["b"]["entitledCores"] <= 8
    assert sum(Fairness().of_now(cluster.state)[name].entitled[0] for name in "ab") == pytest.approx(8)
    assert shortfall(Fairness().of_now(cluster.state))["a"] <= 4, "conditions go by these figures"


def test_the_sums_of_departments_are_those_of_their_companies() -> None:
    log = under_load()
    by_department, by_company = report(log), report(log, "company")
    for name in ("utilisation", "queueLength", "cores"):
        assert by_department["cluster"][name] == pytest.approx(by_company["cluster"][name], abs=0.002)
    found = {row["department"] for row in by_department["rows"]} - {""}
    assert found == {f"d{number}" for number in range(10)}
    for row in by_department["rows"]:
        assert 0 < row["grantedCores"] <= row["demandCores"] + 0.01, row
