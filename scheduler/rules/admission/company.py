"""Which company is admitted from next (semantics C)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.model.resources import Quota, Share
from scheduler.rules.admission.basis import Basis
from scheduler.rules.ledger import Balance, Usage

CompanyKey = tuple[float, Share, int, str]
"""Rounding a share to a float keeps the order, so floats settle most comparisons and the exact share the rest."""


@dataclass(slots=True)
class Tenant:
    """What policies know of a company; `last_selected` is the log position of its last admission, 0 = never."""

    company: str
    balance: Balance
    usage: Usage
    quota: Quota = Quota(0, 0)
    last_selected: int = 0


def dominant_share(tenant: Tenant, basis: Basis) -> CompanyKey:
    """The company with the lowest dominant share first (semantics C3).

    Equal shares: the one selected longest ago, then by name. Quotas 512 : 128 : 1024 cores with
    128 : 64 : 128 occupied are shares of 25 %, 50 % and 12.5 %: the third goes first, without an app of
    its own the first, then the second.
    """
    share = tenant.quota.share_of(*tenant.balance.occupied(basis.occupancy))
    rounded = share.numerator / share.denominator if share.denominator else float("inf")
    return rounded, share, tenant.last_selected, tenant.company


def pay_as_you_go(tenant: Tenant, basis: Basis) -> CompanyKey:
    """The company first that used least of what it bought: how much it was granted, and for how long (semantics C5).

    Usage is max(core-ms / quota cores, MiB-ms / quota MiB), both sums halved at every whole multiple of
    `half_life_s`; ties as in `dominant_share`. Example, half-life 3600 s, quotas of 64 cores each: A was
    granted 32 cores from 00:00:00 to 00:30:00, then nothing; B 16 cores since 00:30:00. At 00:45:00 A
    has 57,600,000 core-ms and B 14,400,000: B goes first, though it holds 16 cores and A none. At
    01:00:00 both are halved, A to 28,800,000 and B to 14,400,000. B overtakes A at 01:15:00, with
    28,800,000 as well, and from then on A goes first.
    """
    usage = tenant.quota.share_of(*tenant.usage.until(basis.at, tenant.balance, basis.half_life_ms))
    return float(usage), usage, tenant.last_selected, tenant.company


class CompanyPolicy(NamedTuple):
    """What orders the companies; it `drifts` if the order changes by itself as time goes on."""

    key: Callable[[Tenant, Basis], CompanyKey]
    drifts: bool = False


COMPANY_POLICIES: dict[str, CompanyPolicy] = {
    "dominant-share": CompanyPolicy(dominant_share),
    "pay-as-you-go": CompanyPolicy(pay_as_you_go, drifts=True),
}
