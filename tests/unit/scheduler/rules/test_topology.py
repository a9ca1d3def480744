"""Which workers a host and a rack have, and where hosts are."""

from __future__ import annotations

from scheduler.rules.topology import Topology


def test_workers_stand_by_host_and_by_rack_in_the_order_of_their_ids() -> None:
    places = Topology()
    for worker, host, rack in (("w2", "h1", "/r1"), ("w1", "h1", "/r1"), ("w3", "h2", "/r1"), ("w4", "h3", "")):
        places.join(worker, host, rack)
    assert places.by_host == {"h1": ["w1", "w2"], "h2": ["w3"], "h3": ["w4"]}
    assert places.by_rack == {"/r1": ["w1", "w2", "w3"]}
    assert places.racks_of(["h1", "h2", "h3", "h9"]) == {"h1": "/r1", "h2": "/r1"}


def test_nothing_is_left_of_workers_that_have_left() -> None:
    places = Topology()
    places.join("w1", "h1", "/r1")
    places.join("w2", "h1", "/r2")
    assert places.racks_of(["h1"]) == {"h1": "/r1"}
    places.leave("w1", "h1", "/r1")
    assert places.racks_of(["h1"]) == {"h1": "/r2"}
    places.leave("w2", "h1", "/r2")
    assert (places.by_host, places.by_rack, places.racks_of(["h1"])) == ({}, {}, {})
