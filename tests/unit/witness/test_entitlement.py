"""Who is entitled to what: max-min by dominant share, as the literature's own examples have it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from witness.entitlement import Amount, among_equals, entitlements, jain

PLENTY = 1e9


def cores(capacity: float, weights: list[float], demands: list[float]) -> list[float]:
    """The cores of everybody where memory plays no part."""
    found = entitlements(
        (capacity, PLENTY), [(weight, PLENTY) for weight in weights], [(demand, 0.0) for demand in demands]
    )
    return [round(amount, 9) for amount, _ in found]


@pytest.mark.parametrize(
    ("capacity", "weights", "demands", "due"),
    [
        (16, [8, 8], [4, 100], [4, 12]),
        (16, [8, 8], [100, 100], [8, 8]),
        (10, [1, 1, 1, 1], [2, 2.6, 4, 5], [2, 2.6, 2.7, 2.7]),
        (16, [1, 3], [100, 100], [4, 12]),
        (16, [1, 3, 4], [100, 100, 0], [4, 12, 0]),
        (16, [8, 8], [3, 5], [3, 5]),
        (16, [0, 8], [9, 9], [0, 9]),
        (0, [8, 8], [3, 5], [0, 0]),
        (16, [], [], []),
    ],
)
def test_what_one_does_not_demand_is_the_others_by_their_quotas(
    capacity: float, weights: list[float], demands: list[float], due: list[float]
) -> None:
    assert cores(capacity, weights, demands) == due


def test_dominant_shares_are_equal_as_in_the_paper_on_dominant_resource_fairness() -> None:
    """9 CPUs, 18 GB; A's tasks take <1, 4>, B's <3, 1>: A runs 3 tasks, B 2, both have 2/3 of their dominant one."""
    whole: Amount = (9, 18)
    a, b = entitlements(whole, [whole, whole], [(100, 400), (300, 100)])
    assert a == pytest.approx((3, 12))
    assert b == pytest.approx((6, 2))


def test_who_needs_only_what_is_left_goes_on_when_the_other_resource_is_used_up() -> None:
    a, b = entitlements((10, 10), [(10, 10), (10, 10)], [(10, 0), (0, 10)])
    assert (a, b) == ((10, 0), (0, 10))


def test_a_further_kind_counts_like_cores_and_one_without_a_limit_has_no_share() -> None:
    """The first two want all GPUs and have equal parts of them; the third needs none and has the other cores."""
    demands: list[Amount] = [(16, 16, 4), (16, 16, 4), (16, 16, 0)]
    limited: Amount = (16, 16, 4)
    a, b, c = entitlements((16, 16, 2), [limited] * 3, demands)
    assert (a[2], b[2], c[2]) == (1, 1, 0)
    assert c[0] == pytest.approx(8)
    free: Amount = (16, 16, float("inf"))
    a, b = entitlements((16, 16, 4), [free, limited], [(4, 4, 4), (4, 4, 4)])
    assert a == pytest.approx((3.2, 3.2, 3.2))


@pytest.mark.parametrize(
    ("ratios", "index"),
    [([1.0, 1.0, 1.0], 1.0), ([1.0, 0.0], 0.5), ([3.0, 0.0, 0.0, 0.0], 0.25), ([2.0, 1.0], 0.9), ([0.0, 0.0], 1.0)],
)
def test_jains_index_is_1_for_equals_and_1_by_n_if_one_has_all(ratios: list[float], index: float) -> None:
    assert jain(ratios) == pytest.approx(index)


def test_there_is_no_index_of_nobody() -> None:
    assert jain([]) is None


AMOUNTS = st.tuples(st.integers(0, 500), st.integers(0, 1 << 17), st.integers(0, 8))


@settings(max_examples=200)
@given(AMOUNTS, AMOUNTS, st.lists(AMOUNTS, max_size=8))
def test_among_equals_it_is_what_equal_weights_give(
    capacity: tuple[int, int, int], weight: tuple[int, int, int], demands: list[tuple[int, int, int]]
) -> None:
    due = entitlements(capacity, [weight] * len(demands), demands)
    for found, amount in zip(among_equals(capacity, weight, demands), due, strict=True):
        assert found == pytest.approx(amount, rel=1e-9, abs=1e-6)
