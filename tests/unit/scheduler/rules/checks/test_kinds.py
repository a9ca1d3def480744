"""Resources beyond cores and memory (semantics R)."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.model.commands import (
    ChangeCompany,
    Command,
    KillApp,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    ScaleApp,
    SubmitApp,
)
from scheduler.model.errors import (
    AddressGranted,
    CommandRejected,
    InvalidCommand,
    NeverFits,
    QuotaExceeded,
    UnknownKind,
)
from scheduler.model.events import (
    CompanyChanged,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    ExecutorRevoked,
    Fixed,
    KindRegistered,
    WorkerChanged,
)
from scheduler.model.resources import Resources
from scheduler.rules.command.request import with_task_cores
from scheduler.rules.entities.fleet import Fleet
from tests.property.given import Cluster, admitted


def gpus(name: str, *addresses: str, cores: int = 16, kind: str = "gpu") -> RegisterWorker:
    return RegisterWorker(
        worker=name,
        node=name,
        host=name,
        cores=cores,
        memory_mb=65536,
        resources={kind: addresses} if addresses else {},
    )


def cluster(*workers: RegisterWorker, **settings: object) -> Cluster:
    made = Cluster(settings or None)
    made.turn(RegisterKind(kind="gpu"), RegisterKind(kind="fpga"))
    made.company("acme")
    made.turn(*workers)
    return made


def asks(app: str, cores: int | None = 4, gpu: int = 1, **fields: Any) -> SubmitApp:
    """An app of fixed executors of 4 cores with that many GPUs each."""
    about = {"executor_cores": 4, "executor_memory_mb": 1024, "executor_resources": {"gpu": gpu} if gpu else {}}
    return SubmitApp(**{"app": app, "company": "acme", "user": "ann", "cores": cores, **about, **fields})


def given(events: list[Event]) -> list[tuple[str, dict[str, tuple[str, ...]]]]:
    """(worker, addresses) of each grant."""
    return [
        (event.worker, event.addresses) for event in events if isinstance(event, ExecutorAllocated | DriverAllocated)
    ]


def refused(on: Cluster, command: Command, why: type[CommandRejected]) -> str:
    with pytest.raises(why) as raised:
        on.turn(command)
    return str(raised.value)


def test_a_kind_is_registered_once_and_asking_again_changes_nothing() -> None:
    """Semantics R1."""
    made = Cluster()
    assert made.turn(RegisterKind(kind="gpu.a100")) == [KindRegistered(kind="gpu.a100")]
    assert made.turn(RegisterKind(kind="gpu.a100")) == []
    for name in ("cores", "memory", "GPU", "", "1st", "g" * 64):
        assert "a kind of resources must be" in refused(made, RegisterKind(kind=name), InvalidCommand)


@pytest.mark.parametrize(
    "command",
    [
        gpus("w2", "0", kind="gpuu"),
        RegisterCompany(company="new", cores=8, memory_mb=8192, resources={"gpuu": 1}),
        SubmitApp(app="a", company="acme", user="ann", cores=4, executor_cores=4, executor_resources={"gpuu": 1}),
        SubmitApp(app="a", company="acme", user="ann", cores=4, task_resources={"gpuu": "1"}),
        SubmitApp(app="a", company="acme", user="ann", driver=True, driver_resources={"gpuu": 1}),
    ],
)
def test_whoever_names_a_kind_that_is_not_registered_is_refused(command: Command) -> None:
    """Semantics R1: a misspelt kind would wait for ever."""
    sentence = refused(cluster(gpus("w1", "0")), command, UnknownKind)
    assert sentence == (
        "no kind of resources 'gpuu' is registered; use one of gpu, fpga, or register it with "
        "`fairlog resource add gpuu`"
    )


def test_a_grant_names_the_first_free_addresses_and_they_return_with_it() -> None:
    """Semantics R5: in the order of the offer."""
    made = cluster(gpus("w1", "b", "a", "c"))
    assert given(made.turn(asks("x", 8))) == [("w1", {"gpu": ("b",)}), ("w1", {"gpu": ("a",)})]
    assert given(made.turn(asks("y", 8))) == [("w1", {"gpu": ("c",)})]
    assert given(made.ended("x.0")) == [("w1", {"gpu": ("b",)})]
    made.check_replay()


def test_a_killed_executor_keeps_its_addresses_until_it_is_gone() -> None:
    """Semantics R5, A5."""
    made = cluster(gpus("w1", "0"))
    made.turn(asks("x"))
    made.turn(KillApp(app="x"))
    assert given(made.turn(asks("y"))) == []
    assert given(made.ended("x.0")) == [("w1", {"gpu": ("0",)})]


def test_an_address_that_is_granted_cannot_leave_the_offer() -> None:
    """Semantics R1, W1."""
    made = cluster(gpus("w1", "0", "1"))
    made.turn(asks("x"))
    sentence = refused(made, gpus("w1", "1", "2"), AddressGranted)
    assert sentence == (
        "worker 'w1' no longer offers gpu '0', but it is granted; offer it again, or run `fairlog drain w1` first"
    )
    (changed,) = made.turn(gpus("w1", "2", "0"))
    assert isinstance(changed, WorkerChanged)
    assert changed.addresses == {"gpu": ("2", "0")}
    assert made.turn(gpus("w1", "2", "0")) == []
    assert given(made.turn(asks("y"))) == [("w1", {"gpu": ("2",)})]


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        (("0", "0"), "the gpu address '0' is offered twice; name each address once"),
        (("a b",), "an address of gpu must be 1 to 128 letters"),
        (tuple(map(str, range(10_001))), "the number of gpu addresses must be between 0 and 10000, not 10001"),
    ],
)
def test_an_offer_of_addresses_that_cannot_be_is_refused(addresses: tuple[str, ...], why: str) -> None:
    assert refused(cluster(), gpus("w1", *addresses), InvalidCommand).startswith(why)


@pytest.mark.parametrize(
    ("per_task", "cores", "each", "requested"), [("1", 8, 4, 8), ("1/4", 8, 1, 2), ("3/8", 4, 2, 2)]
)
def test_an_executor_gets_what_its_tasks_need_rounded_up(per_task: str, cores: int, each: int, requested: int) -> None:
    """Semantics R3: executors of 4 cores run 4 tasks."""
    made = cluster(gpus("w1", *map(str, range(16))), max_executor_cores=4)
    events = made.turn(SubmitApp(app="x", company="acme", user="ann", cores=cores, task_resources={"gpu": per_task}))
    assert made.state.apps["x"].requested.amount("gpu") == requested
    sizes = [event.resources for event in events if isinstance(event, ExecutorAllocated)]
    assert [(size.cores, size.amount("gpu")) for size in sizes] == [(4, each)] * (cores // 4)


@pytest.mark.parametrize(
    ("asked", "cores", "each", "at_once"),
    [
        ({"tasks": 1}, None, 4, 1),
        ({"tasks": 1, "cores": 2}, 4, 4, 1),
        ({"tasks": 1, "cores": 6}, 6, None, None),
        ({"tasks": 2}, None, 2, 2),
        ({"tasks": 2, "cores": 1}, 4, 4, 1),
        ({"tasks": 3}, None, None, None),
        ({"tasks": 9}, None, None, None),
        ({"tasks": 1, "cores_per_task": 1}, None, 1, None),
        ({"tasks": 1, "executor_cores": 4}, None, None, None),
    ],
)
def test_few_tasks_share_the_cores_of_their_executor_and_ask_for_no_address_too_many(
    asked: dict[str, Any], cores: int | None, each: int | None, at_once: int | None
) -> None:
    """Semantics A1: one task that needs one GPU runs on a worker that has one."""
    made = cluster(gpus("w1", *map(str, range(at_once or 4))))
    command = SubmitApp(app="x", company="acme", user="ann", task_resources={"gpu": "1"}, **asked)
    found = with_task_cores(made.state.settings, command)
    assert (found.cores, found.cores_per_task) == (cores, each)
    if at_once is not None:
        events = made.turn(found)
        [granted] = [event.resources for event in events if isinstance(event, ExecutorAllocated)]
        assert (granted.cores, granted.amount("gpu")) == (4, at_once)


def test_one_large_executor_needs_no_more_than_the_small_ones_it_replaces() -> None:
    """Semantics R3: the request is that of the smallest executors, so it covers every grant."""
    made = cluster(gpus("w1", *map(str, range(8)), cores=64))
    events = made.turn(SubmitApp(app="x", company="acme", user="ann", cores=64, task_resources={"gpu": "1/8"}))
    assert made.state.apps["x"].requested.amount("gpu") == 16
    sizes = [event.resources for event in events if isinstance(event, ExecutorAllocated)]
    assert [(size.cores, size.amount("gpu")) for size in sizes] == [(16, 2)] * 4


def test_a_scaled_app_keeps_what_its_tasks_need() -> None:
    """Semantics L1, R3."""
    made = cluster(gpus("w1", *map(str, range(16))))
    made.turn(SubmitApp(app="x", company="acme", user="ann", cores=4, task_resources={"gpu": "1/2"}))
    made.turn(ScaleApp(app="x", executors=3))
    assert made.state.apps["x"].sizing == Fixed(Resources.of(4, 2048, gpu=2), counted=True)
    assert made.state.apps["x"].granted.amount("gpu") == 6


def test_a_driver_has_addresses_of_its_own() -> None:
    """Semantics R3, R5."""
    made = cluster(gpus("w1", "0", "1"))
    events = made.turn(asks("x", driver=True, driver_resources={"gpu": 1}))
    assert given(events) == [("w1", {"gpu": ("0",)}), ("w1", {"gpu": ("1",)})]
    assert made.state.apps["x"].requested.amount("gpu") == 2


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("executors", [0, 1, 3, None])
def test_a_demand_of_other_executors_requests_the_kinds_of_each(executors: int | None, limit: int) -> None:
    """Semantics L1, R3; two executors at most, by the cores."""
    made = cluster(gpus("w1", "0", "1", "2", "3"))
    made.turn(asks("x", cores=8, executor_limit=limit))
    made.turn(ScaleApp(app="x", executors=executors))
    held = 2 if executors is None else min(executors, 2)
    assert made.state.apps["x"].requested.amount("gpu") == held
    assert len(made.state.apps["x"].executors) == max(min(limit, 2), held)


@pytest.mark.parametrize("placement", ["spread", "pack", "classic-spread", "classic-pack"])
@pytest.mark.parametrize("sizing", ["fixed", "one-per-worker", "computed"])
def test_every_placement_and_sizing_keeps_to_the_addresses(placement: str, sizing: str) -> None:
    made = cluster(gpus("w1", "0"), gpus("w2"), gpus("w3", "0", "1"), placement=placement, max_executor_cores=4)
    sizings: dict[str, dict[str, Any]] = {
        "fixed": {"executor_cores": 4, "executor_resources": {"gpu": 1}},
        "one-per-worker": {"executor_memory_mb": 1024, "executor_resources": {"gpu": 1}},
        "computed": {"task_resources": {"gpu": "1/4"}},
    }
    made.turn(SubmitApp(app="x", company="acme", user="ann", cores=24, **sizings[sizing]))
    alone = placement.startswith("classic") or sizing == "one-per-worker"
    assert sorted(held.worker for held in made.state.executors.values()) == ["w1", "w3"] + ["w3"] * (not alone)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"executor_resources": {"gpu": 1}}, "--executor-resource is for executors that the app sizes"),
        ({"executor_cores": 4, "task_resources": {"gpu": "1"}}, "--task-resource is for executors that the scheduler"),
        ({"elastic": (1, 2), "cores": None, "task_resources": {"gpu": "1"}}, "--task-resource is for executors that"),
        ({"driver_resources": {"gpu": 1}}, "--driver-resource needs --driver; add it"),
        (
            {"executor_cores": 4, "executor_resources": {"gpu": 0}},
            "an executor's gpu must be between 1 and 10000, not 0",
        ),
        ({"task_resources": {"gpu": "0"}}, "a task's gpu must be a whole number up to 10000 or a fraction such as 1/4"),
        ({"task_resources": {"gpu": "1/0"}}, "a task's gpu must be a whole number up to 10000 or a fraction such as"),
        ({"task_resources": {"gpu": "x"}}, "a task's gpu must be a whole number up to 10000 or a fraction such as 1/4"),
    ],
)
def test_what_cannot_be_asked_of_a_kind_is_refused(fields: dict[str, Any], why: str) -> None:
    command = SubmitApp(**{"app": "x", "company": "acme", "user": "ann", "cores": 4, **fields})
    assert refused(cluster(gpus("w1", "0")), command, InvalidCommand).startswith(why)


def test_an_elastic_app_has_executors_with_addresses() -> None:
    made = cluster(gpus("w1", "0", "1"))
    events = made.turn(asks("x", None, elastic=(2, 4), tasks=40))
    assert given(events) == [("w1", {"gpu": ("0",)}), ("w1", {"gpu": ("1",)})]


def test_more_of_a_kind_than_any_worker_offers_is_refused_with_both_numbers() -> None:
    """Semantics N3."""
    sentence = refused(cluster(gpus("w1", "0"), gpus("w2")), asks("x", gpu=2), NeverFits)
    assert "needs 4 cores and 1024 MiB and 2 gpu" in sentence
    assert "the nearest is w1 with 16 cores and 65536 MiB and 1 gpu" in sentence


def test_a_quota_limits_the_kinds_that_it_names() -> None:
    """Semantics R4."""
    made = cluster(gpus("w1", "0", "1", "2", "3"))
    made.turn(RegisterCompany(company="few", cores=64, memory_mb=65536, resources={"gpu": 1}))
    made.turn(RegisterCompany(company="none", cores=64, memory_mb=65536, resources={"gpu": 0}))
    made.turn(RegisterCompany(company="any", cores=64, memory_mb=65536))

    def of(company: str, app: str, gpu: int) -> SubmitApp:
        return SubmitApp(
            app=app,
            company=company,
            user="u",
            cores=4,
            executor_cores=4,
            executor_resources={"gpu": gpu} if gpu else {},
        )

    sentence = refused(made, of("few", "x", 2), QuotaExceeded)
    assert sentence.startswith("the app requests 2 gpu, but the quota of company 'few' is 1 gpu")
    refused(made, of("none", "x", 1), QuotaExceeded)
    assert admitted(made.turn(of("none", "plain", 0))) == ["plain"]
    assert admitted(made.turn(of("any", "x", 3))) == ["x"]
    assert admitted(made.turn(of("few", "y", 1))) == ["y"]
    assert admitted(made.turn(of("few", "z", 1))) == []


@pytest.mark.parametrize("others", [28, 24])
def test_who_holds_a_kind_that_is_not_assured_to_it_gets_its_part_of_others(others: int) -> None:
    """Semantics A3, P6, R4: a is assured 16 cores and no GPU; b, which came first, may have the rest."""
    made = cluster(gpus("w1", "0", cores=32))
    made.turn(RegisterCompany(company="a", cores=16, memory_mb=65536))
    fields: dict[str, Any] = {"user": "u", "executor_cores": 4}
    made.turn(SubmitApp(app="a1", company="a", cores=4, executor_resources={"gpu": 1}, **fields))
    first = SubmitApp(app="b1", company="acme", cores=others, **fields)
    events = made.turn(first, SubmitApp(app="a2", company="a", cores=12, **fields))
    assert admitted(events) == ["b1", "a2"]
    assert made.state.companies["a"].balance.granted.cores == 16
    assert not [event for event in events if isinstance(event, ExecutorRevoked)]


def test_a_quota_is_changed_in_full() -> None:
    made = cluster()
    made.turn(RegisterCompany(company="few", cores=64, memory_mb=65536, resources={"gpu": 1}))
    (changed,) = made.turn(ChangeCompany(company="few", borrow=True))
    assert isinstance(changed, CompanyChanged)
    assert (changed.kinds, changed.amounts) == (("gpu",), Resources.of(64, 65536, gpu=1))
    (changed,) = made.turn(ChangeCompany(company="few", cores=8, memory_mb=8192))
    assert isinstance(changed, CompanyChanged)
    assert (changed.kinds, changed.amounts) == ((), Resources(8, 8192))
    sentence = refused(made, ChangeCompany(company="few", part="1/2", resources={"gpu": 1}), InvalidCommand)
    assert sentence == "a quota of gpu needs --cores and --memory as well"


def test_apps_without_gpus_leave_workers_with_gpus_to_others() -> None:
    """Semantics P1: w1 would be last by P1, and is first because it offers no kind that the app does not request."""
    made = cluster(gpus("w1", cores=8), gpus("w2", "0"), gpus("w3", "0"))
    assert [worker for worker, _ in given(made.turn(asks("plain", 8, 0)))] == ["w1", "w3"]
    assert [worker for worker, _ in given(made.turn(asks("more", 8, 0)))] == ["w1", "w2"]
    assert sorted(worker for worker, _ in given(made.turn(asks("gpus", 8)))) == ["w2", "w3"]


def test_a_worker_whose_gpus_are_all_granted_still_offers_them() -> None:
    """Semantics P1 goes by the offer."""
    made = cluster(gpus("w1"), gpus("w2", "0", cores=64))
    made.turn(asks("gpus"))
    assert [worker for worker, _ in given(made.turn(asks("plain", gpu=0)))] == ["w1"]


@pytest.mark.parametrize("settings", [{"spare_resources": False}, {"admission": "open"}])
def test_sparing_is_off_by_setting_and_with_open_admission(settings: dict[str, object]) -> None:
    """Semantics P1."""
    made = cluster(gpus("w1"), gpus("w2", "0", cores=64), **settings)
    assert [worker for worker, _ in given(made.turn(asks("plain", gpu=0)))] == ["w2"]


@pytest.mark.parametrize("selection", ["cores-free-desc", "cores-free-asc", "memory-free-desc", "worker-id"])
def test_within_workers_that_offer_as_many_kinds_the_selection_decides(selection: str) -> None:
    """Semantics P1."""
    fleet = Fleet([16, 8, 4], Resources(4, 2048))
    offers = {
        "a": Resources(8, 8192),
        "b": Resources.of(32, 4096, gpu=1),
        "c": Resources(16, 4096),
        "d": Resources.of(4, 65536, gpu=1, fpga=1),
        "e": Resources.of(16, 16384, fpga=2),
    }
    for name, offer in offers.items():
        fleet.join(name, offer, offer)
    plain = Resources(4, 2048)
    spared = [worker for worker, _ in fleet.candidates(plain, selection, sparing=True)]
    usual = [worker for worker, _ in fleet.candidates(plain, selection)]
    assert spared == sorted(usual, key=lambda name: len(offers[name].others))
    with_gpu = Resources.of(4, 2048, gpu=1)
    assert [worker for worker, _ in fleet.candidates(with_gpu, "worker-id", sparing=True)] == ["b", "d"]
    fleet.leave("b", offers["b"], offers["b"])
    fleet.move("e", offers["e"], Resources(16, 16384))
    assert fleet.live_workers()["e"] == Resources(16, 16384)
    assert fleet.rank("e", plain, sparing=True) == (1, 0)
