"""Which company is admitted from next (semantics C).

A policy is one record of `COMPANY_POLICIES`, read by admission, explanations and the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from scheduler.model.quota import UNBOUGHT, Quota, Share
from scheduler.model.resources import NOTHING
from scheduler.rules.admission.policy import Basis
from scheduler.rules.entities.ledger import Balance, Occupation, Usage

CompanyKey = tuple[Any, ...]
"""(rounded share, exact share, position of its last selection, name): the rounded share decides most comparisons."""


@dataclass(slots=True)
class Tenant:
    """A company as policies see it; `last_selected` is the log position of its last admission, 0 = never."""

    company: str
    balance: Balance
    usage: Usage
    quota: Quota = UNBOUGHT
    last_selected: int = 0
    standing: Occupation = field(default_factory=Occupation)


def together(department: Tenant, tenants: Iterable[Tenant], basis: Basis) -> Tenant:
    """A department as policies see it: with what its companies used, and what of them was never served (H12)."""
    used = unserved = NOTHING
    for each in tenants:
        used += each.usage.until(basis.at, each.balance, basis.half_life_ms)
        unserved += each.standing.unserved
    return replace(department, usage=Usage(used, basis.at), standing=Occupation(unserved=unserved))


def dominant_share(tenant: Tenant, _: Basis) -> Share:
    """The company whose request is the lowest dominant share first (semantics C3, O1).

    Equal shares: the one selected longest ago, then by name. Example: quotas of 512, 128 and 1024 cores with 128, 64
    and 128 occupied are shares of 25 %, 50 % and 12.5 %. The third goes first, then the first, then the second.
    """
    return tenant.quota.share_of(tenant.balance.requested)


def pay_as_you_go(tenant: Tenant, basis: Basis) -> Share:
    """The company with the lowest usage of its quota first, by amount and time of its grants (semantics C5).

    Usage is max(core-ms / quota cores, MiB-ms / quota MiB), both sums halved at every whole multiple of `half_life_s`;
    ties as in `dominant_share`. Example, half-life 3600 s, quotas of 64 cores each: A was granted 32 cores from
    00:00:00 to 00:30:00, then nothing; B 16 cores since 00:30:00. At 00:45:00 A has 57,600,000 core-ms and B
    14,400,000: B goes first, though it holds 16 cores and A none. At 01:00:00 both are halved, A to 28,800,000 and B to
    14,400,000. At 01:15:00 B has 28,800,000 as well, and from then on A goes first. The requests of admitted apps that
    were never granted anything count as if held for 60 s, so that a burst does not enter on yesterday's figures.
    """
    used = tenant.usage.until(basis.at, tenant.balance, basis.half_life_ms)
    return tenant.quota.share_of(used + tenant.standing.unserved * UNSERVED_MS)


UNSERVED_MS = 60_000


class CompanyPolicy(NamedTuple):
    """The order of companies: the smallest `key` first, then the one selected longest ago, then by name."""

    name: str
    rule: str
    """The number of the rule in docs/semantics.md."""
    key: Callable[[Tenant, Basis], Share]
    measure: str
    """What `key` measures, before its value: "acme had a share of 1/4"."""
    of_balance: bool = False
    """Whether `key` asks of a tenant nothing but its balance and its quota."""

    def rank(self, tenant: Tenant, basis: Basis) -> CompanyKey:
        """The company's place among all."""
        key = self.key(tenant, basis)
        return key.rounded, key, tenant.last_selected, tenant.company


COMPANY_POLICIES = {
    policy.name: policy
    for policy in (
        CompanyPolicy("dominant-share", "C3", dominant_share, measure="a share of", of_balance=True),
        CompanyPolicy("pay-as-you-go", "C5", pay_as_you_go, "a use of what it bought (core-ms a core) of"),
    )
}
"""By their names, which are the values of the setting."""
