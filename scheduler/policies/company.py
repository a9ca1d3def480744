"""Which company is admitted from next (semantics C)."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.ledger import Balance
from scheduler.resources import Quota, Share

CompanyKey = tuple[float, Share, int, str]
"""Rounding a share to a float keeps the order, so floats settle most comparisons and the exact share the rest."""


def dominant_share(company: str, balance: Balance, quota: Quota, last_selected: int, occupancy: str) -> CompanyKey:
    """The company with the lowest dominant share first (semantics C3).

    Equal shares: the one selected longest ago (`last_selected` is the log position of its last
    admission, 0 = never), then by name. Quotas 512 : 128 : 1024 cores with 128 : 64 : 128 occupied are
    shares of 25 %, 50 % and 12.5 %: the third goes first, without an app of its own the first, then the second.
    """
    share = quota.share_of(*balance.occupied(occupancy))
    return float(share), share, last_selected, company


CompanyPolicy = Callable[[str, Balance, Quota, int, str], CompanyKey]
COMPANY_POLICIES: dict[str, CompanyPolicy] = {"dominant-share": dominant_share}
