"""What further workers would be for."""

from __future__ import annotations

from typing import Any

from scheduler.model.commands import HoldApp, KillApp, RegisterCompany, ScaleApp, SetLimit, SubmitApp
from scheduler.rules.view.views import look
from tests.property.given import Cluster, shared


def asked(cluster: Cluster) -> list[tuple[int, int, int]]:
    """(cores, how many, of how many apps) of each size that is lacking, the largest first."""
    found: list[dict[str, Any]] = look(cluster.state, "demand", {})
    return sorted(((each["cores"], each["missing"], each["apps"]) for each in found), reverse=True)


def test_what_is_granted_is_not_lacking_and_what_is_not_granted_is() -> None:
    cluster = shared(w1=16)
    cluster.submit("a", 8)
    assert asked(cluster) == []
    cluster.submit("b", 16)
    cluster.submit("c", 16)
    assert asked(cluster) == [(4, 6, 2)]
    cluster.turn(KillApp(app="b"))
    assert asked(cluster) == [(4, 4, 1)]


def test_without_any_worker_everything_that_is_ready_is_lacking() -> None:
    cluster = shared()
    cluster.submit("a", 8)
    cluster.turn(
        SubmitApp(
            app="d", company="acme", user="ann", driver=True, driver_cores=2, driver_memory_mb=512, executor_cores=3,
            executor_memory_mb=1024, executor_limit=2, command=("true",), cores=6,
        )
    )  # fmt: skip
    assert asked(cluster) == [(4, 2, 1), (3, 2, 1), (2, 1, 1)]
    cluster.turn(HoldApp(app="a"))
    assert asked(cluster) == [(3, 2, 1), (2, 1, 1)]


def test_a_demand_that_no_worker_lets_rise_is_lacking() -> None:
    cluster = shared()
    cluster.turn(
        SubmitApp(
            app="p", company="acme", user="ann", executor_program=True, executor_cores=1, executor_memory_mb=512,
            executor_limit=0, owner_timeout_s=30, command=("true",),
        )
    )  # fmt: skip
    assert asked(cluster) == []
    cluster.turn(ScaleApp(app="p", executors=5))
    assert asked(cluster) == [(1, 5, 1)]
    cluster.turn(ScaleApp(app="p", executors=2))
    assert asked(cluster) == [(1, 2, 1)]
    cluster.worker("w1", 1)
    assert asked(cluster) == [(1, 1, 1)]


def test_what_a_limit_keeps_out_is_not_lacking() -> None:
    cluster = shared()
    cluster.turn(SetLimit(scope="company", company="acme", name="max_cores", value=12))
    for name in "abcde":
        cluster.submit(name, 4)
    assert asked(cluster) == [(4, 3, 3)]
    cluster.turn(SetLimit(scope="user", company="acme", user="ann", name="max_running_apps", value=2))
    assert asked(cluster) == [(4, 2, 2)]


def test_a_cap_in_amounts_bounds_what_is_lacking_and_a_part_does_not() -> None:
    cluster = Cluster()
    cluster.turn(RegisterCompany(company="acme", cores=10, memory_mb=65536, borrow=False))
    cluster.submit("a", 16)
    assert asked(cluster) == [(4, 2, 1)]
    cluster.worker("w1", 4)
    assert asked(cluster) == [(4, 1, 1)]
    cluster.company("initech", part="25%", borrow=False)
    cluster.submit("b", 16, company="initech")
    assert asked(cluster) == [(4, 5, 2)]
