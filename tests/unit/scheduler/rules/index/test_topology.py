"""Which workers a host and a rack have, and where hosts are."""

from __future__ import annotations

from scheduler.model.resources import Resources
from scheduler.rules.entities.workers import Worker
from scheduler.rules.index.topology import Topology


def topology(*workers: tuple[str, str, str]) -> Topology:
    places = Topology()
    for worker, host, rack in workers:
        note(places, worker, Worker(worker, host, host, rack, Resources(8, 8192), Resources(8, 8192)))
    return places


def note(places: Topology, name: str, worker: Worker | None) -> None:
    places.hosts.refresh(name, worker)
    places.racks.refresh(name, worker)


def test_workers_stand_by_host_and_by_rack_in_the_order_of_their_ids() -> None:
    places = topology(("w2", "h1", "/r1"), ("w1", "h1", "/r1"), ("w3", "h2", "/r1"), ("w4", "h3", ""))
    assert places.by_host == {"h1": ["w1", "w2"], "h2": ["w3"], "h3": ["w4"]}
    assert places.by_rack == {"/r1": ["w1", "w2", "w3"]}
    assert places.racks_of(["h1", "h2", "h3", "h9"]) == {"h1": "/r1", "h2": "/r1"}


def test_nothing_is_left_of_workers_that_have_left() -> None:
    places = topology(("w1", "h1", "/r1"), ("w2", "h1", "/r2"))
    assert places.racks_of(["h1"]) == {"h1": "/r1"}
    note(places, "w1", None)
    assert places.racks_of(["h1"]) == {"h1": "/r2"}
    note(places, "w2", None)
    assert (places.by_host, places.by_rack, places.racks_of(["h1"])) == ({}, {}, {})
