"""What apps demand of their workers' labels (semantics P9)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    ChangeCompany,
    EndedExecutor,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RegisterWorker,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand, InvariantViolated, NeverFits, NeverMet
from scheduler.model.events import (
    AppRegistered,
    DriverAllocated,
    Event,
    ExecutorAllocated,
    ExecutorRevoked,
    TargetSet,
    WorkerLabelled,
)
from scheduler.model.resources import Resources
from scheduler.rules.entities import labels
from scheduler.rules.entities.fleet import Fleet
from scheduler.rules.entities.labels import (
    MOST_DEMANDS,
    MOST_OF_COMPANY,
    Demands,
    demand_of,
    excluded_by,
    met_by,
    sought,
)
from scheduler.rules.share.entitlement import entitlement
from scheduler.rules.state.records import lines, restored
from scheduler.rules.view.views import workers
from tests.property.given import Cluster, decides_nothing_more, granted, submission, worker
from witness.pending_reasons import waits_for

NORTH: dict[str, Any] = {"zone": "north"}
SOUTH: dict[str, Any] = {"zone": "south"}


def marked(name: str, cores: int = 8, *taints: str, **marks: str) -> RegisterWorker:
    return replace(worker(name, cores), labels=marks, taints=taints)


def cluster(*offers: RegisterWorker, **settings: Any) -> Cluster:
    """One of companies a and b, with these workers."""
    made = Cluster(settings)
    made.turn(RegisterCompany(company="a"), RegisterCompany(company="b"), *offers)
    return made


def places(events: Sequence[Event]) -> list[str]:
    """The workers on which something was granted."""
    return sorted({each.worker for each in events if isinstance(each, ExecutorAllocated | DriverAllocated)})


def asking(app: str, cores: int = 8, company: str = "a", **fields: Any) -> SubmitApp:
    return replace(submission(app, cores, company=company), **fields)


@pytest.mark.parametrize(
    ("require", "avoid", "tolerate", "has", "taints", "met"),
    [
        ((), (), (), {}, (), True),
        (("zone=north",), (), (), NORTH, (), True),
        (("zone=north",), (), (), SOUTH, (), False),
        (("zone=north",), (), (), {}, (), False),
        (("zone",), (), (), SOUTH, (), True),
        (("zone",), (), (), {"zones": "north"}, (), False),
        ((), ("zone=north",), (), SOUTH, (), True),
        ((), ("zone=north",), (), {}, (), True),
        ((), ("zone=north",), (), NORTH, (), False),
        ((), ("zone",), (), NORTH, (), False),
        (("a=x,y",), ("b=ü=1",), (), {"a": "x,y", "b": "ü"}, (), True),
        (("a=x,y",), ("b=ü=1",), (), {"a": "x,y", "b": "ü=1"}, (), False),
        (("a",), (), (), {"a": "-"}, ("spot",), False),
        (("a",), (), ("spot",), {"a": "-"}, ("spot",), True),
        ((), (), ("spot",), {}, ("infra", "spot"), False),
        ((), (), ("infra", "spot", "more"), {}, ("infra", "spot"), True),
    ],
)
def test_a_worker_meets_a_demand_or_not(  # noqa: PLR0917 - one column each
    require: tuple[str, ...],
    avoid: tuple[str, ...],
    tolerate: tuple[str, ...],
    has: dict[str, str],
    taints: tuple[str, ...],
    met: bool,  # noqa: FBT001
) -> None:
    demand = demand_of(require, avoid, tolerate)
    assert met_by(demand, has, taints) is met
    room = Resources(4, 1024, labels.class_of([demand, "+other"], has, taints))
    assert labels.may_use(room, labels.sought(Resources(1, 1), demand)) is met


def test_it_is_counted_how_many_workers_each_term_excludes() -> None:
    demand = demand_of(("zone=north", "gpu"), ("disk=hdd",), ("spot",))
    known = [(NORTH, (), 2), ({"zone": "north", "gpu": "a100", "disk": "hdd"}, ("infra",), 1), ({}, ("spot",), 1)]
    assert dict(excluded_by(demand, known)) == {
        "--require gpu": 3,
        "--require zone=north": 1,
        "--avoid disk=hdd": 1,
        "taint infra": 1,
    }


def test_executors_and_drivers_go_only_where_labels_let_them() -> None:
    made = cluster(marked("n1", **NORTH), marked("s1", **SOUTH), marked("x1"), marked("t1", 8, "spot"))
    assert places(made.turn(asking("a1", 64, require=("zone=north",)))) == ["n1"]
    assert places(made.turn(asking("a2", 64, avoid=("zone",)))) == ["x1"]
    assert places(made.turn(asking("a3", 4, "b", tolerate=("spot",), driver=True, driver_cores=1))) == ["t1"]
    assert places(made.turn(asking("a4", 64, "b"))) == ["s1"]
    decides_nothing_more(made.state)


def test_room_with_preferred_labels_comes_first_and_others_afterwards() -> None:
    made = cluster(marked("n1", 16, **NORTH), marked("s1", 8, **SOUTH))
    prefers: dict[str, Any] = {"prefer_labels": ("zone=south",)}
    assert places(made.turn(asking("a1", 4, **prefers, driver=True, driver_cores=2))) == ["s1"]
    assert places(made.turn(asking("a2", 8, "b", **prefers))) == ["n1"]


def test_a_worker_that_few_may_use_is_left_to_those_who_demand_it() -> None:
    """The filling, too: what demands nothing is handed the room that fewer demands ask for (semantics H2)."""
    made = cluster(marked("n1", **NORTH), marked("s1", **SOUTH))
    made.turn(asking("a1", 8, require=("zone=north",)), asking("b1", 8, "b"))
    assert {name: made.state.apps[name].granted.cores for name in ("a1", "b1")} == {"a1": 8, "b1": 8}
    entitled = entitlement(made.state)
    assert [entitled.units(made.state.apps[name]) for name in ("a1", "b1")] == [2, 2]


def test_an_app_is_entitled_to_nothing_in_rooms_that_it_may_not_use() -> None:
    made = cluster(marked("n1", **NORTH), marked("s1", 32, **SOUTH))
    made.turn(asking("a1", 32, require=("zone=north",)), asking("b1", 64, "b"))
    entitled = entitlement(made.state)
    assert [entitled.units(made.state.apps[name]) for name in ("a1", "b1")] == [2, 8]


def test_room_for_a_need_is_made_only_where_labels_let_it_go() -> None:
    made = cluster(marked("n1", **NORTH), marked("s1", **SOUTH), reclaim_patience_s=60, min_runtime_s=0)
    made.turn(asking("b1", 16, "b"))
    made.turn(*[StartedExecutor(executor=each) for each in made.state.executors])
    events = made.turn(asking("a1", 4, require=("zone=north",)))
    assert [each.worker for each in events if isinstance(each, TargetSet)] == ["n1"]
    assert {each.worker for each in events if isinstance(each, ExecutorRevoked)} == {"n1"}


def test_what_no_worker_meets_is_refused_with_what_each_term_excludes() -> None:
    made = cluster(marked("n1", **NORTH), marked("s1", 16, "spot", **SOUTH), marked("x1", 32))
    with pytest.raises(NeverMet, match=r"none of the 3 workers by their labels: --require zone=west excludes 3, taint"):
        made.turn(asking("a1", require=("zone=west",)))
    with pytest.raises(NeverMet, match=r"--require zone=south excludes 2, taint spot excludes 1; demand less"):
        made.turn(asking("a1", require=("zone=south",)))
    big: dict[str, Any] = {"executor_cores": 12, "executor_memory_mb": 1024, "cores": 12}
    with pytest.raises(NeverFits, match=r"none of the 1 that the app may use by their labels .* nearest is n1"):
        made.turn(asking("a1", **big, require=("zone=north",)))
    assert places(made.turn(asking("a1", **big))) == ["x1"]
    made.turn(LoseWorker(worker="n1", last_seen=0))
    made.turn(asking("a2", require=("zone=north",)))
    assert made.state.apps["a2"].ended is None, "a lost worker is remembered with its labels"


def test_explain_says_how_many_workers_each_term_excludes() -> None:
    made = cluster(marked("n1", **NORTH), marked("s1", **SOUTH), marked("t1", 8, "spot"), never_fits="wait")
    made.turn(asking("a1", require=("zone=west",)), asking("a2", 64, "b", require=("zone",), avoid=("zone=south",)))
    found = waits_for(made.state, made.state.apps["a1"])
    assert found is not None
    assert found.cause == "no-worker-large-enough"
    text, facts = found.tell()
    assert text == (
        "its labels let it use none of 3 live workers: --require zone=west excludes 3, taint spot excludes 1"
    )
    assert facts["labels"] == {"usable": 0, "of": 3, "excluding": {"--require zone=west": 3, "taint spot": 1}}
    made.turn(asking("a3", 8, require=("zone=north",)))
    found = waits_for(made.state, made.state.apps["a3"])
    assert found is not None
    assert "its labels let it use 1 of 3 live workers: --require zone=north excludes 2" in found.tell()[0]
    made.turn(asking("a4", 8))
    assert waits_for(made.state, made.state.apps["a4"]) is None


def test_labels_that_change_stop_nothing_and_count_from_then_on() -> None:
    made = cluster(marked("n1", **NORTH), marked("s1", **SOUTH))
    made.turn(asking("a1", 8, require=("zone=north",)))
    held = list(made.state.executors)
    events = made.turn(marked("n1", 8, "spot", **SOUTH), marked("s1", **NORTH))
    assert [each for each in events if isinstance(each, WorkerLabelled)] == [
        WorkerLabelled(worker="n1", labels=SOUTH, taints=("spot",)),
        WorkerLabelled(worker="s1", labels=NORTH),
    ]
    assert [made.state.executors[each].status for each in held] == ["starting"] * 2
    again = made.turn(EndedExecutor(executor=held[0], reason="killed"))
    assert places(again) == ["s1"]
    assert [(each.labels, each.taints) for each in workers(made.state)] == [(SOUTH, ["spot"]), (NORTH, [])]
    assert made.turn(marked("n1", 8, "spot", **SOUTH)) == []
    made.check_replay()
    back = restored(list(lines(made.state)))
    assert back.digest() == made.state.digest()
    decides_nothing_more(back)


def test_a_worker_that_joins_or_changes_its_labels_gets_who_waits_for_it() -> None:
    made = cluster(marked("s1", **SOUTH), never_fits="wait")
    made.turn(asking("a1", 8, require=("zone=north",)))
    assert places(made.turn(marked("n1", **NORTH))) == ["n1"]
    made.turn(asking("a2", 4, "b", require=("disk",)))
    assert places(made.turn(marked("s1", **SOUTH, disk="ssd"))) == ["s1"]


def test_at_most_so_many_demands_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.rules.command.submission.MOST_DEMANDS", 3)
    made = cluster(marked("n1", **NORTH), never_fits="wait")
    for number in range(3):
        made.turn(asking(f"a{number}", avoid=(f"k{number}",)))
    why = r"demand 3 different things of labels, of which 3, and 2 of each company in any case, can be in use"
    with pytest.raises(InvalidCommand, match=why):
        made.turn(asking("a3", avoid=("k3",)))
    made.turn(asking("a3", avoid=("k2",)))
    made.turn(KillApp(app="a0"))
    made.turn(asking("a4", avoid=("k3",)))
    assert len(made.state.demands.number) == 3
    assert MOST_DEMANDS == 256


def test_a_company_has_its_part_of_the_demands_although_others_use_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.rules.command.submission.MOST_DEMANDS", 4)
    made = cluster(marked("n1", **NORTH), never_fits="wait")
    for number in range(4):
        made.turn(asking(f"a{number}", avoid=(f"k{number}",)))
    for number in range(2):
        made.turn(asking(f"b{number}", 4, "b", avoid=(f"other{number}",)))
    with pytest.raises(InvalidCommand, match="demand 6 different things of labels, of which 4, and 2 of each company"):
        made.turn(asking("b2", 4, "b", avoid=("other2",)))
    made.turn(asking("b2", 4, "b", avoid=("other1",)))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"require": ("zone=",)}, "--require 'zone=' names no value; name 'zone' alone for any value"),
        ({"require": ("=north",)}, "the key of a label in --require"),
        ({"avoid": ("zone= x",)}, "the value of zone in --avoid must not start or end with a space"),
        ({"require": ("",)}, "the key of a label in --require"),
        ({"require": ("zone=a\nb",)}, "must not contain control characters"),
        ({"prefer_labels": tuple(f"k{each}" for each in range(17))}, "at most 16 labels with --prefer-label, not 17"),
        ({"tolerate": ("a b",)}, "a taint"),
        ({"require": ("zone",), "avoid": ("zone",)}, "no worker can have the label 'zone' and be without it"),
    ],
)
def test_a_demand_that_cannot_be_is_refused(fields: dict[str, Any], why: str) -> None:
    made = cluster(marked("n1", **NORTH))
    with pytest.raises(InvalidCommand) as refused:
        made.turn(asking("a1", **fields))
    assert why in str(refused.value)


def test_terms_are_in_the_log_once_and_in_order() -> None:
    made = cluster(marked("n1", zone="north", gpu="a100"))
    events = made.turn(asking("a1", require=("zone=north", "gpu", "gpu"), tolerate=("b", "a")))
    [app] = [each for each in events if isinstance(each, AppRegistered)]
    assert (app.require, app.tolerate) == (("gpu", "zone=north"), ("a", "b"))


def test_an_event_that_grants_against_a_demand_is_refused() -> None:
    made = cluster(marked("n1", **NORTH), marked("s1", 4, **SOUTH))
    made.turn(asking("a1", 16, require=("zone=north",)))
    with pytest.raises(
        InvariantViolated, match=r"worker 's1' does not meet what app 'a1' demands of its labels \(P9\)"
    ):
        made.state.apply(granted("a1.2", "s1"), made.state.at)


@pytest.mark.parametrize("placement", ["spread", "pack", "classic-spread", "classic-pack"])
def test_open_admission_keeps_to_labels_as_well(placement: str) -> None:
    made = cluster(
        marked("n1", **NORTH), marked("s1", **SOUTH), marked("t1", 8, "spot"), admission="open", placement=placement
    )
    fixed: dict[str, Any] = {"executor_cores": 2, "executor_memory_mb": 512, "driver": True, "driver_cores": 1}
    events = made.turn(asking("a1", 8, **fixed, require=("zone=north",)), asking("a2", 8, **fixed, avoid=("zone",)))
    assert {*places(events)} == {"n1"}, "nobody tolerates the taint of t1"
    events = made.turn(asking("a3", 8, **fixed, avoid=("zone",), tolerate=("spot",)))
    assert {*places(events)} == {"t1"}


def test_a_company_that_lends_gets_back_what_labels_let_it_use() -> None:
    made = cluster(marked("n1", 16, **NORTH), marked("s1", 16, **SOUTH), reclaim_patience_s=0, min_runtime_s=0)
    made.turn(ChangeCompany(company="a", borrow=True))
    made.turn(asking("a1", 32))
    made.turn(*[StartedExecutor(executor=each) for each in made.state.executors])
    made.turn(asking("b1", 16, "b", require=("zone=south",)))
    for _ in range(8):
        leaving = [each.id for each in made.state.executors.values() if each.status == "stopping"]
        made.turn(*[EndedExecutor(executor=each, reason="killed") for each in leaving])
    held = made.state.apps["b1"].executors.values()
    assert {each.worker for each in held} == {"s1"}
    assert sum(each.resources.cores for each in held) == 16


def test_an_image_is_a_label_that_an_app_requires() -> None:
    """Semantics W12: workers without it are no places for the app, and what it ran with is in the log."""
    made = cluster(marked("w1"), marked("w2", 8, **{"image.alpine": "00ff"}))
    events = made.turn(asking("a1", 4, image="alpine"))
    assert places(events) == ["w2"]
    registered = next(each for each in events if isinstance(each, AppRegistered))
    assert (registered.image, registered.require) == ("alpine", ("image.alpine",))
    assert made.state.apps["a1"].executors["a1.0"].worker == "w2"
    with pytest.raises(NeverMet, match=r"--require image\.debian"):
        made.turn(asking("a2", 4, image="debian"))
    with pytest.raises(InvalidCommand, match="the image of an app must be"):
        made.turn(asking("a3", 4, image="al pine"))


def shown(fleet: Fleet) -> dict[str, Any]:
    """What a fleet says of its workers."""
    demands = ["", *AT_RANDOM]
    return {
        "offers": fleet.offers(),
        "rooms": fleet.rooms(),
        "with class": fleet.with_class,
        "candidates": {
            (demand, sparing): [
                *fleet.candidates(sought(Resources(2, 512), demand), "cores-free-desc", sparing=sparing)
            ]
            for demand in demands
            for sparing in (False, True)
        },
        "hosts": {demand: fleet.hosts(sought(Resources(8, 1024), demand)) for demand in demands},
    }


AT_RANDOM = (
    *("+zone=a", "+zone", "-zone=a", "-zone", "-disk", "-none", "!spot", "!none", "+zone=a\t-disk", "+zone\t!spot"),
    *("!late\t!spot",),
)


def at_random(random: Random) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    given = {"zone": random.choice("ab")} if random.random() < 0.6 else {}
    given |= {"disk": "ssd"} if random.random() < 0.4 else {}
    taints = random.choice([(), (), ("spot",), ("late", "spot")])
    return given, taints, random.choice([(), (), ("w1",), ("w1", "w2")])


@pytest.mark.parametrize("seed", range(40))
def test_classes_that_change_are_those_of_a_fleet_made_anew(seed: int) -> None:
    random = Random(seed)
    sizes, minimum = (8, 4), Resources(2, 1024)
    demands, fleet = Demands(), Fleet(sizes, minimum)
    workers: dict[str, tuple[Resources, Resources, tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]]] = {}

    for step in range(60):
        name, choice = f"n{random.randrange(12)}", random.random()
        if name not in workers and choice < 0.6:
            others = (("gpu", 2),) if random.random() < 0.3 else ()
            offer = Resources(random.choice([4, 8]), 4096, others)
            workers[name] = offer, offer, at_random(random)
            fleet.join(name, offer, offer, demands.join(*workers[name][2]))
        elif name in workers and choice < 0.2:
            offer, free, _ = workers.pop(name)
            demands.leave(fleet.marks[name])
            fleet.leave(name, offer, free)
        elif name in workers and choice < 0.4:
            offer, free, marks = workers[name]
            left = Resources(random.randint(0, offer.cores), random.choice([512, 4096]))
            workers[name] = offer, left, marks
            fleet.move(name, free, left)
        elif name in workers and choice < 0.6:
            offer, free, _ = workers[name]
            known, workers[name] = fleet.marks[name], (offer, free, at_random(random))
            fleet.mark(name, offer, free, demands.join(*workers[name][2]))
            demands.leave(known)
        else:
            demand = random.choice(AT_RANDOM)
            moves = demands.count(demand, -1 if demand in demands.number and random.random() < 0.7 else 1)
            if moves:
                fleet.reclass(moves)
        anew, of_them = Fleet(sizes, minimum), Demands()
        for demand in demands.number:
            assert of_them.count(demand, 1) == {}
        for each, (offer, free, marks) in workers.items():
            anew.join(each, offer, free, of_them.join(*marks))
        if step % 3 == 0:
            assert shown(fleet) == shown(anew)
    assert {name: marks.met for name, marks in fleet.marks.items()} == {
        name: marks.met for name, marks in anew.marks.items()
    }


def test_a_company_has_a_part_of_the_demands_that_can_be_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.rules.command.submission.MOST_OF_COMPANY", 2)
    made = cluster(marked("n1", **NORTH), never_fits="wait")
    for number in range(2):
        made.turn(asking(f"a{number}", avoid=(f"k{number}",)))
    why = r"apps of company 'a' that have not ended demand 2 different things of labels, of which 2 can be in use"
    with pytest.raises(InvalidCommand, match=why):
        made.turn(asking("a2", avoid=("k2",)))
    made.turn(asking("a2", avoid=("k1",)), asking("b1", 4, "b", avoid=("k2",)))
    back = restored(list(lines(made.state)))
    assert {name: company.demands for name, company in back.companies.items()} == {
        name: company.demands for name, company in made.state.companies.items()
    }
    made.turn(KillApp(app="a0"), asking("a3", avoid=("k3",)))
    assert MOST_OF_COMPANY == 64


def test_a_refusal_looks_at_each_kind_of_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Semantics Z6, N3: workers that are lost and remembered among them."""
    made = cluster(*[marked(f"n{number:02}", 8, zone="ab"[number % 2]) for number in range(40)])
    made.turn(LoseWorker(worker="n03"), marked("n04", 4, zone="a"))
    looked: list[str] = []

    def counted(demand: str, *has: Any) -> bool:
        looked.append(demand)
        return met_by(demand, *has)

    monkeypatch.setattr("scheduler.rules.index.offers.met_by", counted)
    with pytest.raises(NeverMet, match="--require disk excludes 40"):
        made.turn(asking("a1", require=("disk",)))
    with pytest.raises(NeverFits, match=r"none of the 20 that .* the nearest is n38 with 8 cores"):
        made.turn(asking("a1", 16, executor_cores=16, executor_memory_mb=1024, require=("zone=a",)))
    assert len(looked) == 2 * 3
