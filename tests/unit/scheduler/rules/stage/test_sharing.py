"""Sharing by entitlement, by what befell clusters under the second edition (semantics H4-H7)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    ChangeEdition,
    ConfigureCluster,
    DrainWorker,
    EndApp,
    EndedExecutor,
    KillApp,
    RegisterCompany,
    RegisterKind,
    ScaleApp,
    SetLimit,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand, QuotaExceeded, TooManySizes
from scheduler.model.events import (
    AppAdmitted,
    DriverAllocated,
    ExecutorAllocated,
    ExecutorRevoked,
    NeedBegan,
    NeedEnded,
    RevocationWithdrawn,
    TargetEnded,
    TargetSet,
)
from scheduler.model.resources import Resources
from scheduler.rules.share.demands import held_units
from scheduler.rules.share.entitlement import entitlement
from scheduler.rules.stage.sharing import _up_to_entitlements
from tests.property.given import Cluster, joined, worker

PATIENCE_S = 300


def cluster(*companies: str, **workers: int) -> Cluster:
    """A cluster that shares by entitlement, with companies of default quotas and workers of so many cores."""
    found = Cluster({"reclaim_patience_s": PATIENCE_S, "min_runtime_s": 0})
    for company in companies:
        found.company(company)
    for name, cores in workers.items():
        found.worker(name, cores)
    return found


def submit(
    to: Cluster, app: str, company: str, cores: int, each: int, *, user: str = "ann", after_s: int = 1, **more: Any
) -> list[Any]:
    """What the submission of an app of executors of one size causes."""
    command = SubmitApp(
        app=app,
        company=company,
        user=user,
        command=("true",),
        cores=cores,
        executor_cores=each,
        executor_memory_mb=256,
        tasks=None if more.get("driver") else 5000,
        **more,
    )
    return list(to.turn(command, after_s=after_s))


def obey(to: Cluster, but: str = "") -> None:
    """Everybody who is told to leave, `but` that app, does so at its deadline, until nobody is."""
    ends = 0
    while leaving := [one for one in to.state.executors.values() if one.status == "stopping" and one.app != but]:
        ends += 1
        assert ends < 200, "somebody is told to leave again and again"
        first = min(leaving, key=lambda one: (one.deadline, one.id))
        after_s = max(0, first.deadline - to.state.at) // 1000 + 1
        to.turn(EndedExecutor(executor=first.id, reason="killed"), after_s=after_s)


def held(by: Cluster) -> dict[str, int]:
    """App -> the cores of its executors."""
    return {app.id: app.granted.cores for app in by.state.apps.values() if app.granted.cores}


def test_one_core_on_each_worker_keeps_a_cluster_from_nobody() -> None:
    shared = cluster("a", "b", **{f"w{number}": 16 for number in range(20)})
    submit(shared, "thin", "a", 20, 1)
    submit(shared, "wide", "b", 320, 16)
    obey(shared)
    assert held(shared) == {"thin": 20, "wide": 288}


def test_two_small_executors_make_room_for_a_large_one() -> None:
    shared = cluster("a", "b", w0=16, w1=16)
    submit(shared, "small", "a", 8, 4)
    submit(shared, "large", "b", 16, 16)
    obey(shared)
    assert held(shared) == {"small": 8, "large": 16}


def test_what_was_lent_comes_back_by_its_date() -> None:
    shared = cluster("a", "b", w0=16, w1=16)
    submit(shared, "first", "a", 32, 4)
    assert held(shared) == {"first": 32}
    events = submit(shared, "second", "b", 32, 4, after_s=1000)
    told = [event for event in events if isinstance(event, ExecutorRevoked)]
    assert [event.deadline for event in told] == [shared.state.at + PATIENCE_S * 1000]
    assert told[0].shares is not None
    assert told[0].shares.loser_before == "8/4"
    obey(shared)
    assert held(shared) == {"first": 16, "second": 16}


def test_what_one_user_does_not_use_comes_back_to_another_of_the_company() -> None:
    shared = cluster("a", w0=16)
    submit(shared, "early", "a", 16, 4, user="ann")
    submit(shared, "late", "a", 16, 4, user="bob")
    obey(shared)
    assert held(shared) == {"early": 8, "late": 8}


def test_a_need_ends_with_what_it_asked_for_and_its_target_with_it() -> None:
    shared = cluster("a", "b", w0=16)
    submit(shared, "first", "a", 16, 4)
    events = submit(shared, "second", "b", 4, 4)
    assert [type(event) for event in events if isinstance(event, NeedBegan | TargetSet)] == [NeedBegan, TargetSet]
    ended = shared.ended("first.3", done=True)
    found = [type(event) for event in ended if isinstance(event, ExecutorAllocated | TargetEnded | NeedEnded)]
    assert found == [TargetEnded, ExecutorAllocated, NeedEnded]
    stays = [event for event in ended if isinstance(event, RevocationWithdrawn)]
    assert len(stays) == 1
    assert held(shared) == {"first": 12, "second": 4}


def test_a_need_keeps_its_date_through_a_moment_without_it() -> None:
    shared = cluster("a", "b", w0=16)
    submit(shared, "first", "a", 16, 4)
    began = next(event for event in submit(shared, "second", "b", 8, 4) if isinstance(event, NeedBegan))
    shared.worker("w1", 8)
    assert not shared.state.apps["second"].lack.units
    again = shared.ended("second.0", failed=True)
    assert not [event for event in again if isinstance(event, NeedBegan)]  # there is room
    assert shared.state.apps["second"].lack.date == began.date


def test_a_driver_starts_beside_other_drivers_and_within_half_of_the_quota() -> None:
    shared = cluster("a", "b", w0=16, w1=16)
    events = []
    for number in range(4):
        events += submit(shared, f"program-{number}", "a", 4, 4, driver=True, driver_cores=4)
    drivers = [event.worker for event in events if isinstance(event, DriverAllocated)]
    assert len(drivers) == 2  # 8 of the quota of 16
    assert len(set(drivers)) == 1


def test_a_company_that_may_not_borrow_makes_room_below_its_cap_for_its_own() -> None:
    shared = cluster("b", w0=16, w1=16)
    shared.turn(RegisterCompany(company="a", cores=8, memory_mb=1 << 20))
    submit(shared, "small", "a", 8, 1, user="ann")
    submit(shared, "large", "a", 4, 4, user="bob")
    obey(shared)
    assert held(shared) == {"small": 4, "large": 4}


def test_below_a_cap_a_larger_executor_gives_way_to_a_smaller_one_of_its_app() -> None:
    shared = cluster("b", w0=32)
    shared.turn(RegisterCompany(company="a", cores=12, memory_mb=1 << 20))
    shared.turn(SubmitApp(app="sized", company="a", user="ann", command=("true",), cores=8))
    assert [one.resources.cores for one in shared.state.executors.values()] == [8]
    submit(shared, "large", "a", 8, 8, user="bob")
    obey(shared)
    assert held(shared) == {"sized": 4, "large": 8}


def test_below_a_cap_no_smaller_executor_leaves_for_a_part_of_a_larger_one() -> None:
    """It would stay since its app is entitled to that part, and be told to leave again, in a turn without an end."""
    shared = cluster("b", w0=12)
    shared.turn(RegisterCompany(company="a", cores=30, memory_mb=1 << 20))
    shared.turn(SubmitApp(app="sized", company="a", user="ann", command=("true",), cores=16))
    shared.worker("w1", 64)
    assert sorted(one.resources.cores for one in shared.state.executors.values()) == [4, 4, 8]
    submit(shared, "large", "a", 24, 24, user="bob")
    obey(shared)
    assert held(shared) == {"sized": 4, "large": 24}


def test_a_larger_executor_leaves_where_memory_is_free_for_smaller_ones() -> None:
    """One of 16 cores has 16 tasks of 256 MiB, four of 4 cores the least memory of an executor each."""
    shared = cluster("a", "b", w0=24)
    shared.turn(SubmitApp(app="sized", company="a", user="ann", command=("true",), cores=16, memory_per_task_mb=256))
    assert [one.resources for one in shared.state.executors.values()] == [Resources(16, 4096)]
    shared.turn(SubmitApp(app="other", company="b", user="bob", command=("true",), cores=12))
    obey(shared)
    assert held(shared) == {"sized": 12, "other": 12}


def test_the_plan_makes_room_for_an_app_of_one_executor_a_worker() -> None:
    """Semantics H6: of what is surplus, the smaller one, granted last, leaves too little of it for the larger one."""
    shared = cluster("a", "b", w0=12)
    submit(shared, "before", "b", 4, 4)
    shared.turn(SubmitApp(app="sized", company="a", user="ann", command=("true",), cores=12))
    shared.ended("before.0", done=True)
    assert [(one.id, one.resources.cores) for one in shared.state.executors.values()] == [
        ("sized.0", 8),
        ("sized.1", 4),
    ]
    grows = SubmitApp(app="grows", company="b", user="ann", command=("true",), cores=6, tasks=1, cores_per_task=6)
    shared.turn(replace(grows, sizing="one-per-worker", executor_memory_mb=512))
    obey(shared)
    assert held(shared) == {"sized": 4, "grows": 6}


def test_an_app_whose_unit_exceeds_the_cap_is_refused_and_a_larger_request_is_not() -> None:
    shared = cluster("b", w0=16)
    shared.turn(RegisterCompany(company="a", cores=8, memory_mb=1 << 20))
    submit(shared, "many", "a", 100, 4)
    with pytest.raises(QuotaExceeded, match="the app requests 12 cores, but the quota of company 'a' is 8 cores"):
        submit(shared, "wide", "a", 12, 12)


def test_by_the_plan_an_executor_changes_its_place_where_no_room_is_free() -> None:
    shared = cluster("e", "a", "b", w0=2, w1=2, w2=2, w3=2)
    submit(shared, "even", "a", 4, 1)
    submit(shared, "extra", "e", 4, 1)
    submit(shared, "pairs", "b", 4, 2)
    obey(shared)
    state = shared.state
    due = entitlement(state)
    assert {app.id: held_units(app) for app in state.waiting.values()} == {
        app.id: due.units(app) for app in state.waiting.values()
    }


def test_a_company_above_loses_executors_whose_place_its_surplus_makes_good() -> None:
    of = cluster("a", "b", one=16, two=16)
    for number in range(7):
        submit(of, f"a{number}", "a", 4, 4, user=f"u{number}")
    on = {app.id: one.worker for app in of.state.apps.values() for one in app.executors.values()}
    roomy = next(worker.id for worker in of.state.workers.values() if worker.free.cores)
    events = submit(of, "large", "b", 16, 16)
    told = [event for event in events if isinstance(event, ExecutorRevoked)]
    assert {event.why for event in told} == {"surplus"}
    assert {on[event.app] for event in told} == {roomy}
    assert next(event for event in events if isinstance(event, TargetSet)).worker == roomy
    obey(of)
    assert held_units(of.state.apps["large"]) == 1
    assert sum(held_units(of.state.apps[f"a{number}"]) for number in range(7)) == 4


def test_room_is_not_made_in_a_round() -> None:
    """Apps of users above their entitlement made room, took it back by the plan, and made it again."""
    of = cluster("a", one=16, two=16, three=16, four=16, five=16, six=16, seven=16, eight=16, nine=16)
    for app, user, cores, each in (
        ("x0", "u0", 5, 5),
        ("x1", "u1", 48, 6),
        ("x2", "u0", 15, 5),
        ("x3", "u0", 8, 4),
        ("x4", "u0", 6, 2),
        ("x5", "u0", 16, 4),
        ("x6", "u1", 16, 4),
        ("x7", "u2", 8, 8),
        ("x8", "u0", 36, 6),
        ("x9", "u4", 10, 5),
        ("x10", "u0", 7, 1),
    ):
        submit(of, app, "a", cores, each, user=user, after_s=0)
    of.turn(KillApp(app="x5"), after_s=4000)
    obey(of)
    due = entitlement(of.state)
    assert not [app.id for app in of.state.waiting.values() if due.below(app)]


def test_the_plan_stays_the_same_whoever_has_followed_it() -> None:
    """Two apps of one size took a worker from each other: whoever held it was planned elsewhere."""
    of = Cluster({"reclaim_patience_s": PATIENCE_S, "min_runtime_s": 0})
    of.turn(RegisterKind(kind="gpu"))
    for company in "abc":
        of.company(company)
    gpus = {"gpu": ("0", "1", "2", "3")}
    for name, memory_mb in (("w0", 65536), ("w1", 65536), ("w4", 65536)):
        of.worker(name, 1, memory_mb)
    of.turn(replace(worker("w3", 1, 2048), resources=gpus))
    for app, cores, each_mb in (("c1", 2, 4096), ("a2", 2, 4096), ("b4", 1, 4096), ("a7", 1, 256), ("b9", 1, 256)):
        about = SubmitApp(app=app, company=app[0], user="ann", command=("true",), cores=cores, tasks=5000)
        of.turn(replace(about, executor_cores=1, executor_memory_mb=each_mb))
    for name, memory_mb in (("w8", 262144), ("w7", 65536)):
        of.turn(replace(worker(name, 1, memory_mb), resources=gpus))
    obey(of)
    due = entitlement(of.state)
    assert not [app.id for app in of.state.waiting.values() if due.below(app)]


def test_drivers_on_workers_that_are_drained_count_for_their_company() -> None:
    of = cluster("b", one=8, two=8)
    of.turn(RegisterCompany(company="a", cores=5, memory_mb=65536, borrow=False))
    submit(of, "driven", "a", 2, 1, driver=True, driver_cores=2)
    (driver,) = of.state.drivers.values()
    of.turn(DrainWorker(worker=driver.worker))
    submit(of, "later", "a", 3, 1, user="bob")
    state = of.state
    due = entitlement(state)
    cores = sum(due.units(app) for app in state.apps.values() if app.spec.company == "a")
    assert cores == 3, "of its five cores its driver keeps two, wherever that stands"
    obey(of)
    assert not [app.id for app in state.waiting.values() if due.below(app)]


def test_larger_executors_are_due_as_far_as_the_request_leaves_room() -> None:
    of = cluster("a", one=4)
    of.turn(SubmitApp(app="x", company="a", user="ann", command=("true",), cores=12, tasks=5000))
    assert of.state.apps["x"].granted.memory_mb == 2048
    of.turn(ConfigureCluster(settings={"min_executor_memory_mb": 4096}))
    of.worker("two", 4)
    assert of.state.apps["x"].requested.memory_mb == 6144
    assert [one.resources.memory_mb for one in of.state.executors.values()] == [2048, 4096]


def test_tasks_of_an_executor_that_left_run_again_although_its_successor_found_none() -> None:
    shared = cluster("a", "b", w0=16, w1=16)
    submit(shared, "small", "a", 8, 4)
    found = submit(shared, "large", "b", 16, 16)
    left = next(event for event in found if isinstance(event, ExecutorRevoked))
    successor = next(event for event in found if isinstance(event, ExecutorAllocated) and event.app == left.app)
    shared.turn(EndedExecutor(executor=successor.executor, reason="exited", done=True))
    obey(shared)
    assert held(shared) == {"small": 8, "large": 16}


def test_a_driver_beside_which_no_executor_could_stand_starts_alone() -> None:
    shared = cluster("a", w0=4)
    found = submit(shared, "lone", "a", 4, 4, driver=True)
    assert [event.app for event in found if isinstance(event, DriverAllocated)] == ["lone"]


@pytest.mark.parametrize("edition", [4, 5])
def test_an_edition_that_does_not_exist_is_refused(edition: int) -> None:
    with pytest.raises(InvalidCommand, match=f"decided by edition 3 of the rules alone, not by {edition}"):
        Cluster().turn(ChangeEdition(edition=edition))


def test_no_earlier_edition_follows() -> None:
    shared = cluster("a", w0=16)
    assert shared.turn(ChangeEdition(edition=3)) == []
    with pytest.raises(InvalidCommand, match="edition 3 of the rules is in force, and no earlier one can follow it"):
        shared.turn(ChangeEdition(edition=2))


def test_losses_that_a_company_makes_good_by_itself_do_not_void_a_target_of_another() -> None:
    shared = cluster("a", "b", **{f"w{number:02}": 16 for number in range(18)})
    for number in range(16):
        submit(shared, f"thin{number:02}", "a", 18, 1)
    submit(shared, "wide", "b", 16, 16)
    obey(shared)
    assert held(shared)["wide"] == 16
    assert sum(held(shared).values()) == 288


def test_executors_that_were_done_stay_done_when_another_one_fails() -> None:
    shared = cluster("a", "b", w0=16, w1=16)
    submit(shared, "first", "a", 16, 4)
    for number in range(3):
        shared.ended(f"first.{number}", done=True)
    submit(shared, "second", "a", 28, 4)
    shared.turn(EndedExecutor(executor="first.3", reason="failed"))
    assert held(shared) == {"first": 4, "second": 28}


def test_room_that_a_long_grace_keeps_is_waited_for_and_taken_from_nobody() -> None:
    shared = cluster("a", "b", "c", "d", w0=16, w1=16)
    submit(shared, "slow", "a", 4, 4, grace_s=3600)
    submit(shared, "borrower", "a", 28, 4)
    shared.turn(KillApp(app="slow"))
    for company in ("b", "c", "d"):
        submit(shared, company, company, 8, 4)
    obey(shared, but="slow")
    assert [len(shared.state.apps[app].executors) for app in ("b", "c", "d")] == [2, 2, 1]
    assert {"b.0", "b.1", "c.0", "c.1"} <= shared.state.executors.keys()
    shared.turn(EndedExecutor(executor="slow.0", reason="killed"), after_s=3600)
    obey(shared)
    assert held(shared) == {"borrower": 8, "b": 8, "c": 8, "d": 8}


def test_a_submission_to_a_full_cluster_that_gets_nothing_needs_no_filling() -> None:
    shared = cluster("a", "b", w0=16, w1=16)
    for app in ("a", "b"):
        submit(shared, f"first-{app}", app, 16, 4)
    submit(shared, "waiting", "a", 16, 4)
    before = shared.state.filling.kept
    for number in range(20):
        submit(shared, f"later-{number}", "a", 16, 4)
    assert shared.state.filling.kept is before is not None
    submit(shared, "other", "b", 8, 2)
    assert shared.state.filling.kept is not before


def test_executors_of_a_company_have_at_most_64_sizes_at_once() -> None:
    shared = cluster("a", "b", w0=128)
    for each in range(1, 65):
        submit(shared, f"a-{each}", "a", each, each)
    with pytest.raises(TooManySizes, match=r"executors of 65 cores and 256 MiB would be size number 65 of .* 64 sizes"):
        submit(shared, "a-65", "a", 65, 65)
    assert "a-65" not in shared.state.apps
    submit(shared, "a-again", "a", 64, 64)
    submit(shared, "b-65", "b", 65, 65)
    for app in ("a-64", "a-again"):
        with pytest.raises(TooManySizes):
            submit(shared, "a-65", "a", 65, 65)
        shared.turn(KillApp(app=app))
    submit(shared, "a-65", "a", 65, 65)


def test_a_limit_of_the_company_holds_among_users_that_enter_together() -> None:
    """Semantics N2."""
    shared = cluster("a", w0=16, w1=16)
    shared.turn(SetLimit(scope="company", name="max_running_apps", company="a", value=1))
    for number in range(3):
        submit(shared, f"x{number}", "a", 4, 4, user=f"u{number}", after_s=0)
    assert list(shared.state.waiting) == ["x0"]
    events = shared.turn(
        EndedExecutor(executor="x0.0", reason="exited", done=True), EndApp(app="x0", reason="finished")
    )
    assert [event.app for event in events if isinstance(event, AppAdmitted)] == ["x1"]


def test_apps_of_one_executor_a_worker_share_workers_without_leaving_cores_idle() -> None:
    """Semantics P7, Z1."""
    shared = cluster("a", "b", w0=8, w1=8)
    shared.turn(ConfigureCluster(settings={"placement": "classic-spread"}))
    apps = [
        SubmitApp(app=company, company=company, user="ann", cores=16, executor_memory_mb=512, command=("true",))
        for company in ("a", "b")
    ]
    shared.turn(*[replace(app, sizing="one-per-worker") for app in apps])
    assert held(shared) == {"a": 8, "b": 8}
    assert {(one.app, one.worker) for one in shared.state.executors.values()} == {
        (app, worker) for app in ("a", "b") for worker in ("w0", "w1")
    }


def test_no_room_is_made_for_a_driver_beyond_the_number_that_may_run() -> None:
    """Semantics D4."""
    shared = cluster("a", w0=16)
    shared.turn(ConfigureCluster(settings={"max_drivers": 1}))
    drivers = [
        SubmitApp(app=name, company="a", user="ann", cores=4, driver=True, driver_cores=1, command=("true",))
        for name in ("d1", "d2")
    ]
    shared.turn(*drivers)
    assert list(shared.state.drivers) == ["d1.driver-0"]
    assert not shared.state.holds
    assert not shared.state.indexes.needy


def test_no_room_is_made_for_an_executor_that_cannot_grow_into_it() -> None:
    """Semantics H2, S5: the app may have one executor a worker, and the one that it has grows no more."""
    shared = cluster("a", "b", w0=8)
    submit(shared, "b1", "b", 6, 1)
    grows = SubmitApp(app="a1", company="a", user="ann", cores=4, executor_memory_mb=512, command=("true",))
    events = shared.turn(grows)
    assert held(shared) == {"a1": 2, "b1": 6}
    assert not any(isinstance(event, NeedBegan | ExecutorRevoked) for event in events)
    shared.turn(EndedExecutor(executor="a1.0", reason="failed"))
    assert held(shared) == {"a1": 2, "b1": 6}


def test_no_room_is_made_on_a_worker_that_has_one_of_the_app_already() -> None:
    """Semantics P7, H6."""
    shared = cluster("a", "b", w0=8, w1=8)
    shared.turn(ConfigureCluster(settings={"placement": "classic-spread"}))
    for app in ("b1", "b2", "b3"):
        submit(shared, app, "b", 6, 2)
    submit(shared, "a1", "a", 8, 2)
    first = next(one for one in shared.state.executors.values() if one.status == "stopping")
    shared.turn(EndedExecutor(executor=first.id, reason="killed"))
    own = {one.worker for one in shared.state.apps["a1"].executors.values()}
    assert own == {first.worker}
    assert {target.worker for target in shared.state.holds.values()} == {"w0", "w1"} - own


def test_a_need_for_which_no_room_can_be_made_keeps_no_loan_below_the_cap() -> None:
    """Semantics H5: it counts in its company's cap again once room can be made for it."""
    shared = cluster("b", w0=8)
    shared.turn(ConfigureCluster(settings={"exclude_after": 1, "exclude_s": 600}))
    shared.turn(RegisterCompany(company="a", cores=8, memory_mb=1 << 16, borrow=False))
    submit(shared, "b1", "b", 4, 2, driver=True, driver_cores=2)
    shared.worker("w1", 8)
    submit(shared, "a1", "a", 8, 8)
    shared.turn(EndedExecutor(executor="a1.0", reason="failed"))  # beside the driver on w0 no other can stand
    assert shared.state.apps["a1"].lack.units == 1
    submit(shared, "a2", "a", 4, 4)
    assert held(shared) == {"b1": 6, "a2": 4}
    shared.turn(after_s=600)
    assert shared.state.executors["a2.0"].status == "stopping"
    obey(shared)
    assert list(shared.state.apps["a1"].executors) == ["a1.1"]


def deadline_of(min_runtime_s: int | None, **settings: int) -> int:
    """After how many seconds of its own an executor has to leave, in a cluster without patience."""
    shared = cluster("a", "b", w0=4)
    shared.turn(ConfigureCluster(settings={"reclaim_patience_s": 0, "min_runtime_s": 300, **settings}))
    submit(shared, "b1", "b", 4, 1, min_runtime_s=min_runtime_s)
    submit(shared, "a1", "a", 4, 1)
    leaving = [one for one in shared.state.executors.values() if one.status == "stopping"]
    return (leaving[0].deadline - leaving[0].granted_at) // 1000


def test_an_app_states_how_long_its_executors_run_before_they_have_to_leave() -> None:
    """Semantics H7."""
    assert (deadline_of(None), deadline_of(900), deadline_of(0), deadline_of(3600)) == (300, 900, 1, 3600)


def test_longer_than_the_operator_allows_is_refused_with_both_numbers() -> None:
    """Semantics H7."""
    for stated, most in ((3601, 3600), (-1, 3600), (61, 60)):
        with pytest.raises(InvalidCommand, match=rf"minimum runtime of 0 to {most} s here, not {stated} s; give"):
            deadline_of(stated, max_min_runtime_s=most)


def test_a_filling_is_not_kept_where_what_drops_out_first_changes() -> None:
    """Semantics H3: the unit that drops out is not held any more, so another company's drops out before it.

    That one's next app gets what is left. The ledgers, this among them, are checked after each event.
    """
    shared = cluster("a", "b", w0=10)
    submit(shared, "early", "b", 8, 4)
    submit(shared, "lender", "a", 8, 4)
    shared.turn(ScaleApp(app="early", executors=0))
    for name in [one.id for one in shared.state.executors.values() if one.app == "early"]:
        shared.turn(EndedExecutor(executor=name, reason="killed"))
    assert held(shared) == {"lender": 8}
    submit(shared, "next-of-a", "a", 2, 2)
    submit(shared, "next-of-b", "b", 2, 2)
    shared.turn(ScaleApp(app="early", executors=2))
    obey(shared)
    assert held(shared) == {"early": 4, "lender": 4, "next-of-b": 2}


def test_who_waits_for_labels_in_vain_keeps_no_room_below_the_cap() -> None:
    """Another app of its user, that asks for as much of any worker, has room made; it waits for one."""
    shared = cluster("b", "c", s1=8, s2=8, s3=8)
    shared.company("a", 8, 64 * 1024)
    shared.turn(replace(worker("n", 4), labels={"zone": "n"}))
    submit(shared, "long", "c", 4, 4, require=("zone=n",), grace_s=3600)
    shared.turn(StartedExecutor(executor="long.0"))
    submit(shared, "wide", "b", 24, 8)
    shared.turn(KillApp(app="long"))
    shared.worker("w3", 2)
    submit(shared, "first", "c", 8, 8)
    assert [target.app for target in shared.state.holds.values()] == ["first"], "the only target there may be"
    submit(shared, "anywhere", "a", 4, 4)
    submit(shared, "north", "a", 4, 4, require=("zone=n",))
    submit(shared, "small", "a", 2, 2)
    entitled = entitlement(shared.state)
    assert {app: entitled.units(shared.state.apps[app]) for app in ("anywhere", "north", "small")} == {
        "anywhere": 1,
        "north": 1,
        "small": 0,
    }
    assert held(shared).get("small") == 2, "beside what its company waits for and can get, it passes the cap"


def test_who_holds_its_entitlement_since_one_of_it_stays_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grant ends a target, who was to leave for it stays, and is no longer below in the same pass."""
    shared = cluster("a", s1=8)
    state = shared.state
    submit(shared, "long", "a", 16, 4)
    shared.state.apply(joined("s2", 8), at=state.at + 1)
    entitled = entitlement(state)
    assert entitled.missing(state.apps["long"]) == 2
    below = iter((2, 0))
    monkeypatch.setattr(type(entitled), "missing", lambda *_: next(below, 0))
    assert list(_up_to_entitlements(state, entitled, state.at)) == []
    monkeypatch.undo()
    assert isinstance(next(_up_to_entitlements(state, entitled, state.at)), ExecutorAllocated)
