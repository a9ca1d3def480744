"""What executors to ask for, and where (semantics L2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.events import Locations
from scheduler.rules.placement.yarn import (
    ANYWHERE,
    DEFAULT_RACK,
    Preferences,
    expected_host_counts,
    locality_of_requested_executors,
    split_pending_requests,
)

EXAMPLE = Preferences(30, {"h1": 30, "h2": 30, "h3": 20, "h4": 10}, tasks_per_executor=2)
"""20 tasks prefer h1 h2 h3 and 10 prefer h1 h2 h4."""
HOSTS = ("h1", "h2", "h3", "h4", "h5")
COUNTS = st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 60))


def test_a_pending_request_is_matching_stale_or_free_by_its_hosts() -> None:
    pending = [("h1", "x"), None, ("x", "y"), ("h2",), (), None]
    assert split_pending_requests(pending, {"h1": 3, "h2": 1}) == ([0, 3], [2, 4], [1, 5])


def test_a_host_that_is_named_with_no_task_still_keeps_its_requests() -> None:
    assert split_pending_requests([("h1",)], {"h1": 0}).matching == [0]


def test_the_worked_example_wants_5_5_4_2_and_4_4_3_1_once_each_host_has_one() -> None:
    assert expected_host_counts(EXAMPLE, {}, []) == {"h1": 5, "h2": 5, "h3": 4, "h4": 2}
    one_each = dict.fromkeys(EXAMPLE.by_host, 1)
    assert expected_host_counts(EXAMPLE, one_each, []) == {"h1": 4, "h2": 4, "h3": 3, "h4": 1}


def test_the_worked_example_requests_three_six_and_three_after_the_free_ones() -> None:
    requests = locality_of_requested_executors(18, {"h1": 4, "h2": 4, "h3": 3, "h4": 1}, {})
    assert requests == [
        *[ANYWHERE] * 6,
        *[Locations(("h1", "h2", "h3", "h4"), (DEFAULT_RACK,))] * 3,
        *[Locations(("h1", "h2", "h3"), (DEFAULT_RACK,))] * 6,
        *[Locations(("h1", "h2"), (DEFAULT_RACK,))] * 3,
    ]


def test_a_pending_request_counts_for_its_hosts_by_fraction() -> None:
    # Two requests name h1 twice and h2 once: 4/3 and 2/3 of an executor, out of 5 and 5 expected ones.
    counts = expected_host_counts(Preferences(20, {"h1": 20, "h2": 20}, 2), {}, [("h1",), ("h1", "h2")])
    assert counts == {"h1": 4, "h2": 5}


def test_hosts_nobody_prefers_take_their_part_of_a_pending_request() -> None:
    counts = expected_host_counts(Preferences(2, {"h1": 2}, 1), {}, [("h1", "x", "y", "z")] * 4)
    assert counts == {"h1": 1}


def test_rounding_is_that_of_doubles_even_where_fractions_would_say_otherwise() -> None:
    # 3 executors x 7/9 is 2⅓, less 4 requests x 1/3: exactly 1 in fractions, a little more in doubles.
    counts = expected_host_counts(Preferences(3, {"h1": 7, "h2": 2}, 1), {}, [("h1", "x", "y")] * 4)
    assert counts == {"h1": 2, "h2": 1}


def test_hosts_without_a_single_task_want_nothing() -> None:
    assert expected_host_counts(Preferences(0, {"h1": 0, "h2": 0}, 1), {}, []) == {"h1": 0, "h2": 0}
    assert locality_of_requested_executors(2, {"h1": 0}, {}) == [ANYWHERE, ANYWHERE]


@pytest.mark.parametrize("count", [0, -3])
def test_nothing_is_asked_for_where_nothing_is_wanted(count: int) -> None:
    assert locality_of_requested_executors(count, {"h1": 3}, {}) == []


def test_the_racks_of_a_request_are_those_of_its_hosts_each_named_once() -> None:
    (request,) = locality_of_requested_executors(
        1, {"h1": 1, "h2": 1, "h3": 1}, {"h1": "/r2", "h2": "/r1", "h3": "/r2"}
    )
    assert request == Locations(("h1", "h2", "h3"), ("/r1", "/r2"))


@given(st.integers(0, 200), COUNTS)
def test_each_request_prefers_the_hosts_that_have_not_had_their_scaled_number_yet(
    count: int, expected: dict[str, int]
) -> None:
    requests = locality_of_requested_executors(count, expected, {})
    preferring = min(count, sum(expected.values()))
    assert requests[: count - preferring] == [ANYWHERE] * (count - preferring)
    left = {host: -int(-float(n) * preferring / max(expected.values()) // 1) for host, n in expected.items() if n}
    for request in requests[count - preferring :]:
        assert request.hosts == tuple(sorted(host for host, n in left.items() if n > 0))
        left = {host: n - 1 for host, n in left.items()}
    assert len(requests) == count


@given(COUNTS, COUNTS, st.integers(1, 8), st.integers(0, 100))
def test_more_executors_on_a_host_never_make_it_want_more(
    by_host: dict[str, int], there: dict[str, int], tasks_per_executor: int, tasks: int
) -> None:
    preferences = Preferences(tasks, by_host, tasks_per_executor)
    before = expected_host_counts(preferences, there, [])
    after = expected_host_counts(preferences, {host: n + 1 for host, n in there.items()}, [])
    assert all(0 <= after[host] <= before[host] for host in by_host)
