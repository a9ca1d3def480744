"""Shares compare and print like exact fractions."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.quota import Quota, Share
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.placement.sizing import round_up

AMOUNTS = st.integers(0, 1 << 40)
BOUGHT = st.integers(1, 1 << 40)


@given(AMOUNTS, BOUGHT, AMOUNTS, BOUGHT)
def test_shares_compare_like_fractions_and_their_floats_never_contradict_them(a: int, b: int, c: int, d: int) -> None:
    first, second = Share(a, b), Share(c, d)
    exact = Fraction(a, b), Fraction(c, d)
    assert (first < second) == (exact[0] < exact[1])
    assert (first == second) == (exact[0] == exact[1])
    if first.rounded < second.rounded:
        assert first < second
    assert str(first) == f"{exact[0].numerator}/{exact[0].denominator}"


@given(BOUGHT, BOUGHT, st.integers(1, 1000), AMOUNTS, AMOUNTS)
def test_a_quota_gives_the_dominant_share_and_covers_up_to_a_share_of_1(
    cores: int, memory_mb: int, denominator: int, held_cores: int, held_mb: int
) -> None:
    quota = Quota(Resources(cores, memory_mb), denominator)
    exact = max(Fraction(held_cores * denominator, cores), Fraction(held_mb * denominator, memory_mb))
    assert quota.share_of(Resources(held_cores, held_mb)) == Share(exact.numerator, exact.denominator)
    assert quota.covers(NOTHING, Resources(held_cores, held_mb)) == (exact <= 1)


@given(AMOUNTS, st.integers(1, 1 << 20))
def test_rounding_up_gives_the_smallest_multiple_that_is_not_below(amount: int, multiple: int) -> None:
    rounded = round_up(amount, multiple)
    assert rounded % multiple == 0
    assert amount <= rounded < amount + multiple
