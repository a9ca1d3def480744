"""Demands that come into use and go again move whole shapes of the fleet, and no worker by itself (semantics P9)."""

import random

import pytest

from scheduler.model.resources import Resources
from scheduler.rules.entities.fleet import Fleet
from scheduler.rules.entities.labels import Demands, class_of

SIZES, MINIMUM = [16, 8, 4], Resources(4, 2048)
LABELS: list[dict[str, str]] = [{}, {"pool": "a"}, {"pool": "b"}, {"pool": "b", "ssd": "1"}]
TAINTS: list[tuple[str, ...]] = [(), (), ("old",)]
DEMANDS = ["-pool", "-x", "+pool=b", "+ssd", "-x\t-y", "!old", "+pool=b\t-ssd", "+nowhere"]
Worker = tuple[dict[str, str], tuple[str, ...], list[str], Resources, Resources]


def made(workers: dict[str, Worker], demands: list[str]) -> tuple[Fleet, Demands]:
    """A fleet of these workers that joined while those demands were in use."""
    fleet, known = Fleet(SIZES, MINIMUM), Demands()
    known.restore(demands)
    for name, (labels, taints, windows, offer, free) in workers.items():
        fleet.join(name, offer, free, known.join(labels, taints, windows))
    return fleet, known


def indexed(fleet: Fleet, workers: dict[str, Worker]) -> list[object]:
    """All that can be asked of it."""
    sizes = [Resources(4, 2048), Resources(4, 2048, (("~-x", 0),)), Resources(4, 0, (("gpu", 1), ("~+pool=b", 0)))]
    return [
        fleet.rooms(),
        fleet.offers(),
        {name: fleet.class_of(name) for name in workers},
        fleet.live_workers(),
        fleet.usable,
        fleet.offered,
        list(fleet.freest()),
        *[
            (list(fleet.candidates(size, order, sparing=sparing)), fleet.could_host(size), fleet.hosts(size))
            for size in sizes
            for order in ("cores-free-desc", "memory-free-asc", "worker-id")
            for sparing in (False, True)
        ],
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_fleet_regrouped_is_as_if_its_workers_had_joined_under_these_demands(seed: int) -> None:
    draw = random.Random(seed)
    workers: dict[str, Worker] = {}
    for number in range(draw.choice([1, 4, 30])):
        offer = Resources(16, 32768, draw.choice([(), (("gpu", 2),)]))
        free = Resources(draw.choice([2, 4, 16]), draw.choice([1024, 4096]), draw.choice([(), offer.others]))
        windows = draw.choice([[], [], ["w1"], ["w1", "w2"]])
        workers[f"n{number:02}"] = draw.choice(LABELS), draw.choice(TAINTS), windows, offer, free
    fleet, demands = made(workers, [])
    used: list[str] = []
    for _ in range(40):
        demand = draw.choice(DEMANDS)
        fleet.regroup(demands.count(demand, -1 if demand in used else 1))
        if demand in used:
            used.remove(demand)
        else:
            used.append(demand)
        name = draw.choice(sorted(workers))
        labels, taints, windows, offer, free = workers[name]
        after = Resources(draw.choice([2, 4, 8]), 4096, offer.others)
        fleet.move(name, free, after)
        workers[name] = labels, taints, windows, offer, after
        assert indexed(fleet, workers) == indexed(made(workers, used)[0], workers)
        assert fleet.class_of(name) == class_of(used, labels, taints, windows)


def test_a_demand_that_all_meet_or_that_goes_again_touches_no_worker() -> None:
    workers: dict[str, Worker] = {
        f"n{number}": ({}, (), [], Resources(16, 32768), Resources(8, 4096)) for number in range(50)
    }
    fleet, demands = made(workers, [])
    before = [fleet.rooms(), list(fleet.candidates(MINIMUM, "worker-id"))]
    changed = demands.count("-x", 1)
    assert [(len(alike.workers), met) for alike, met in changed] == [(50, (("~\n-x", 1),))], "all of them at once"
    fleet.regroup(changed)
    assert fleet.rooms() == {Resources(8, 4096, (("~\n-x", 1),)): 50}
    assert not demands.count("-x", 1), "it was in use"
    assert not demands.count("-x", -1), "it still is"
    fleet.regroup(demands.count("-x", -1))
    assert [fleet.rooms(), list(fleet.candidates(MINIMUM, "worker-id"))] == before
    assert not fleet.offered
