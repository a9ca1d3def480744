"""Capacity and shares of it are exact."""

from __future__ import annotations

from copy import deepcopy

import msgspec
import pytest

from scheduler.model.quota import Quota, Share
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.fleet import WORKER_SELECTIONS, Fleet
from scheduler.rules.entities.ledger import Balance, Usage, add_grant, add_request
from scheduler.rules.placement.sizing import round_up


@pytest.mark.parametrize(
    ("quota_cores", "held_cores", "share"), [(512, 128, "1/4"), (128, 64, "1/2"), (1024, 128, "1/8")]
)
def test_a_share_is_what_is_held_of_what_was_bought_in_lowest_terms(
    quota_cores: int, held_cores: int, share: str
) -> None:
    assert str(Quota(Resources(quota_cores, quota_cores * 2048)).share_of(Resources(held_cores, 0))) == share


def test_the_dominant_share_is_the_larger_of_the_two_ratios() -> None:
    quota = Quota(Resources(100, 1000))
    assert quota.share_of(Resources(10, 500)) == Share(1, 2)
    assert quota.share_of(Resources(60, 500)) == Share(3, 5)
    assert quota.share_of(Resources(50, 500)) == Share(1, 2)


def test_a_share_of_a_part_of_the_cluster_is_exact() -> None:
    assert str(Quota(Resources(10, 1000), denominator=3).share_of(Resources(5, 1))) == "3/2"
    assert str(Quota(Resources(10, 1000), denominator=3).share_of(Resources(1, 500))) == "3/2"


@pytest.mark.parametrize("quota", [Quota(Resources(0, 0)), Quota(Resources(0, 100)), Quota(Resources(100, 0))])
def test_nothing_of_a_quota_of_0_is_a_share_of_0(quota: Quota) -> None:
    assert str(quota.share_of(Resources(0, 0))) == "0/1"


@pytest.mark.parametrize(
    ("quota", "held"),
    [
        (Quota(Resources(0, 0)), (1, 0)),
        (Quota(Resources(0, 0)), (0, 1)),
        (Quota(Resources(0, 9)), (1, 1)),
        (Quota(Resources(9, 0)), (1, 1)),
    ],
)
def test_anything_of_a_quota_of_0_is_the_largest_share_of_all(quota: Quota, held: tuple[int, int]) -> None:
    share = quota.share_of(Resources(*held))
    assert str(share) == "1/0"
    assert Share(10**30, 1) < share
    assert not share < Share(10**30, 1)
    assert share.rounded == float("inf")


def test_the_dimension_that_was_bought_counts_where_the_other_is_a_quota_of_0() -> None:
    assert Quota(Resources(0, 100)).share_of(Resources(0, 50)) == Share(1, 2)
    assert Quota(Resources(100, 0)).share_of(Resources(50, 0)) == Share(1, 2)


def test_shares_that_are_the_same_as_floats_are_still_told_apart() -> None:
    third, almost = Share(1, 3), Share(333_333_333_333_333_333, 10**18)
    assert third.rounded == almost.rounded
    assert almost < third
    assert not third < almost
    assert third != almost


def test_equal_shares_are_equal_whatever_their_terms() -> None:
    assert Share(2, 4) == Share(1, 2)
    assert hash(Share(2, 4)) == hash(Share(1, 2))
    assert Share(0, 7) == Share(0, 1)
    assert Share(1, 2) != "1/2"
    assert repr(Share(2, 4)) == "Share(2, 4)"


def test_a_quota_covers_what_stays_within_it_in_both_dimensions() -> None:
    quota = Quota(Resources(8, 4096))
    assert quota.covers(NOTHING, Resources(8, 4096))
    assert not quota.covers(NOTHING, Resources(9, 4096))
    assert not quota.covers(NOTHING, Resources(8, 4097))


def test_a_quota_that_is_a_part_is_never_rounded() -> None:
    third_of_10 = Quota(Resources(10, 10_000), denominator=3)
    assert third_of_10.covers(NOTHING, Resources(3, 3333))
    assert not third_of_10.covers(NOTHING, Resources(4, 3333))
    assert not third_of_10.covers(NOTHING, Resources(3, 3334))


def test_resources_cover_what_fits_in_both_dimensions() -> None:
    assert Resources(4, 2048).covers(Resources(4, 2048))
    assert not Resources(4, 2048).covers(Resources(5, 2048))
    assert not Resources(4, 2048).covers(Resources(4, 2049))


@pytest.mark.parametrize(("amount", "rounded"), [(1, 4), (4, 4), (6, 8), (8, 8), (0, 0)])
def test_rounding_up_gives_the_next_multiple(amount: int, rounded: int) -> None:
    assert round_up(amount, 4) == rounded


def test_a_further_kind_counts_in_every_operation_like_cores_and_memory() -> None:
    with_gpus = Resources.of(8, 4096, gpu=2)
    plain = Resources(8, 4096)
    assert (with_gpus.others, plain.others) == ((("gpu", 2),), ())
    assert with_gpus.by_kind() == {"cores": 8, "memory_mb": 4096, "gpu": 2}
    assert with_gpus + plain == Resources.of(16, 8192, gpu=2)
    assert with_gpus - with_gpus == Resources()
    assert -with_gpus + with_gpus == Resources()
    assert deepcopy(with_gpus) == with_gpus
    assert str(with_gpus) == "8 cores and 4096 MiB and 2 gpu"
    assert with_gpus * 3 == Resources.of(24, 12288, gpu=6)
    assert with_gpus * 0 == Resources()
    assert with_gpus.at_least(Resources.of(fpga=1)) == Resources.of(8, 4096, gpu=2, fpga=1)
    assert with_gpus.covers(plain)
    assert not plain.covers(with_gpus)
    assert not (plain - with_gpus).covers(Resources())
    assert Resources.of(80, 40960, gpu=5).holds(with_gpus) == 2


def test_the_order_in_which_kinds_are_named_makes_no_difference() -> None:
    assert Resources.of(gpu=1, fpga=2) == Resources.of(fpga=2, gpu=1)
    assert Resources.of(1, 1, **{"gpu.a100": 1}).amount("gpu.a100") == 1
    assert Resources.of(gpu=0) == Resources()


def test_a_share_is_the_largest_over_the_kinds_that_the_quota_limits() -> None:
    """Semantics R4."""
    with_gpus = Resources.of(8, 4096, gpu=2)
    assert str(Quota(Resources.of(80, 40960, gpu=4)).share_of(with_gpus)) == "1/2"
    assert str(Quota(Resources.of(80, 40960), named=()).share_of(with_gpus)) == "1/10"
    assert str(Quota(Resources.of(80, 40960), named=("gpu",)).share_of(with_gpus)) == "1/0"
    assert str(Quota(Resources(80, 40960), denominator=2).share_of(with_gpus)) == "1/5"
    assert str(Quota(Resources()).share_of(with_gpus)) == "1/0"
    assert str(Quota(Resources()).share_of(Resources())) == "0/1"


def test_amounts_do_not_limit_a_kind_that_they_do_not_name() -> None:
    """Semantics R4."""
    many = Resources.of(1, 1, gpu=100)
    assert Quota(Resources(8, 8), named=()).covers(NOTHING, many)
    assert not Quota(Resources(8, 8), named=("gpu",)).covers(NOTHING, many)
    assert not Quota(Resources(8, 8)).covers(NOTHING, many)
    assert not Quota(Resources(8, 8), named=()).covers(many, Resources(8))


def test_quotas_and_ledgers_take_a_further_kind_without_a_word_of_it() -> None:
    third = Quota(Resources.of(30, 30_000, gpu=6), denominator=3)
    two, three = (Resources.of(1, 1, gpu=number) for number in (2, 3))
    assert third.covers(NOTHING, two)
    assert not third.covers(NOTHING, three)
    assert third.covers(three, Resources(1, 1))
    assert str(third.share_of(two)) == "1/1"
    accounts = Balance(), Balance(), Balance()
    add_request(accounts, three)
    add_grant(accounts, two)
    assert accounts == (Balance(three, two),) * 3
    usage = Usage()
    usage.update(1000, accounts[0], 3_600_000)
    assert usage.used == two * 1000
    quota = Quota(Resources.of(9, 9, gpu=4))
    assert quota.covers(three, Resources.of(1, 1, gpu=1))
    assert not quota.covers(three, two)


def test_workers_without_the_further_kind_are_no_candidates() -> None:
    fleet = Fleet([16, 8, 4], Resources(4, 2048))
    for name, gpus in (("w1", 0), ("w2", 4)):
        offer = Resources.of(16, 16384, gpu=gpus)
        fleet.join(name, offer, offer)
    assert fleet.total == Resources.of(32, 32768, gpu=4)
    for selection in WORKER_SELECTIONS:
        found = fleet.candidates(Resources.of(4, 2048, gpu=1), selection)
        assert [worker for worker, _ in found] == ["w2"]


def test_a_vector_is_an_array_in_the_log_and_read_back_as_it_was() -> None:
    for vector, text in (
        (Resources(8, 4096), b"[8,4096,[]]"),
        (Resources.of(8, gpu=2, fpga=1), b'[8,0,[["fpga",1],["gpu",2]]]'),
    ):
        assert msgspec.json.encode(vector) == text
        assert msgspec.json.decode(text, type=Resources) == vector
    assert msgspec.json.decode(b"[8,4096]", type=Resources) == Resources(8, 4096)
