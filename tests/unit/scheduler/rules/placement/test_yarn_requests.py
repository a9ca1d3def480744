"""What becomes of an app's pending requests when its demand, its executors or its preferences change (semantics L)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.events import ClusterConfigured, Locations, Wanted
from scheduler.model.resources import Resources
from scheduler.rules.entities.workers import Worker
from scheduler.rules.index.delay import served_by
from scheduler.rules.index.topology import Topology
from scheduler.rules.placement.yarn import ANYWHERE, Preferences, rethought, without

RACKS = {"h1": "/r1", "h2": "/r1", "h3": "/r2"}
H1 = Locations(("h1",), ("/r1",))
H2 = Locations(("h2",), ("/r1",))
H12 = Locations(("h1", "h2"), ("/r1",))
HOSTS = ("h1", "h2", "h3", "x")


def asked(
    pending: list[Wanted],
    lacking: int,
    by_host: dict[str, int],
    *,
    tasks: int | None = None,
    there: dict[str, int] | None = None,
    at: int = 100,
) -> list[Wanted]:
    preferences = Preferences(max(by_host.values(), default=0) if tasks is None else tasks, by_host, 1)
    return rethought(pending, lacking, preferences, there or {}, racks=RACKS, at=at)


def test_what_is_missing_is_asked_for_with_a_preference_as_far_as_tasks_call_for_it() -> None:
    assert asked([], 5, {"h1": 3}) == [Wanted(H1, 3, 100), Wanted(ANYWHERE, 2, 100)]


def test_executors_that_are_there_already_are_not_asked_for_again() -> None:
    assert asked([], 3, {"h1": 3}, there={"h1": 2}) == [Wanted(H1, 1, 100), Wanted(ANYWHERE, 2, 100)]


def test_surplus_requests_are_cancelled_stale_first_then_free_then_oldest() -> None:
    pending = [Wanted(H1, 2, 10), Wanted(ANYWHERE, 1, 20), Wanted(H1, 2, 30), Wanted(H2, 2, 40)]
    assert asked(pending, 6, {"h1": 3}) == [*pending[:3], Wanted(H2, 1, 40)]
    assert asked(pending, 5, {"h1": 3}) == pending[:3]
    assert asked(pending, 4, {"h1": 3}) == [Wanted(H1, 2, 10), Wanted(H1, 2, 30)]
    assert asked(pending, 3, {"h1": 3}) == [Wanted(H1, 1, 10), Wanted(H1, 2, 30)]


def test_a_stale_request_is_replaced_and_a_matching_one_keeps_its_age() -> None:
    pending = [Wanted(H1, 1, 10), Wanted(H2, 2, 20)]
    assert asked(pending, 3, {"h1": 3}) == [Wanted(H1, 1, 10), Wanted(H1, 2, 100)]


def test_a_free_request_is_replaced_once_tasks_prefer_a_host() -> None:
    pending = [Wanted(ANYWHERE, 3, 10)]
    assert asked(pending, 4, {"h1": 2}) == [Wanted(ANYWHERE, 2, 10), Wanted(H1, 2, 100)]


def test_once_nobody_prefers_anything_all_requests_are_free() -> None:
    assert asked([Wanted(H1, 2, 10)], 2, {}) == [Wanted(ANYWHERE, 2, 100)]


def serves(pending: list[Wanted], host: str, rack: str, at: int) -> int:
    """Which one an executor on that host serves, where h1, h2 and h4 have a worker each."""
    where = Topology()
    for number, (there, its_rack) in enumerate([("h1", "/r1"), ("h2", "/r1"), ("h4", "/r2"), ("h5", "")]):
        worker = Worker(f"w{number}", there, there, its_rack, Resources(8, 8192), Resources(8, 8192))
        where.hosts.refresh(worker.id, worker)
        where.racks.refresh(worker.id, worker)
    worker = Worker("w9", host, host, rack, Resources(8, 8192), Resources(8, 8192))
    settings = ClusterConfigured(locality_wait_host_ms=100, locality_wait_rack_ms=50)
    return served_by(worker, pending, settings, where, at)


def test_an_executor_serves_the_oldest_request_that_it_is_near_enough_to() -> None:
    pending = [Wanted(H2, 1, 10), Wanted(H12, 2, 20), Wanted(ANYWHERE, 1, 30)]
    assert serves(pending, "h1", "/r1", 40) == 1
    assert serves(pending, "h9", "/r1", 110) == 0
    assert serves(pending, "h9", "/r9", 40) == 2
    assert without(pending, 1, [1]) == [pending[0], Wanted(H12, 1, 20), pending[2]]
    assert without(pending, 1, [0]) == pending[1:]


def test_an_executor_elsewhere_does_not_serve_a_request_that_insists_on_its_host() -> None:
    nobody_there = Locations(("h7",), ("/r7",))
    pending = [Wanted(H1, 1, 10), Wanted(nobody_there, 1, 20)]
    assert serves(pending, "h4", "/r2", 30) == 1
    assert serves(pending, "h2", "/r1", 30) == 1
    assert serves(pending, "h2", "/r1", 110) == 0
    assert serves(pending[:1], "h4", "/r2", 160) == 0


def test_a_worker_without_a_rack_is_in_nobodys_rack() -> None:
    pending = [Wanted(Locations(("h5",), ("",)), 1, 0), Wanted(ANYWHERE, 1, 0)]
    assert serves(pending, "h9", "", 200) == 1


WANTED = st.builds(
    Wanted,
    st.lists(st.sampled_from(HOSTS), max_size=3, unique=True).map(
        lambda hosts: Locations(tuple(sorted(hosts)), ("/r1",)) if hosts else ANYWHERE
    ),
    st.integers(1, 5),
    st.integers(0, 99),
)


@given(st.lists(WANTED, max_size=6), st.integers(0, 30), st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 20)))
def test_requests_equal_the_missing_executors_and_prefer_only_preferred_hosts(
    pending: list[Wanted], lacking: int, by_host: dict[str, int]
) -> None:
    after = asked(pending, lacking, by_host)
    assert sum(wanted.number for wanted in after) == lacking
    assert all(wanted.number > 0 for wanted in after)
    if lacking >= sum(wanted.number for wanted in pending):
        assert all(set(wanted.locations.hosts or by_host) & by_host.keys() or not by_host for wanted in after)
