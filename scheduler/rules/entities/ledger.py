"""Ledgers of requested and granted resources of waitingApps, companies and users; usage over time (semantics O, C5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from scheduler.model.resources import NOTHING, Resources

_vector: Final = Resources
"""Compiled code finds it without a lookup."""


@dataclass(slots=True)
class Balance:
    """Two sums of one ledger (semantics O1).

    `requested` runs from an app's admission to its removal; `granted` is what live executors hold,
    those of a removed app included until they are gone.
    """

    requested: Resources = NOTHING
    granted: Resources = NOTHING


@dataclass(slots=True)
class Usage:
    """What a company was granted over time, in core-ms, MiB-ms and so on, as of `at` (ms); it fades (semantics C5).

    All sums are halved, rounded down, at every whole multiple of the half-life since the epoch; at
    such a moment they are halved already. Whole numbers, so bringing them up to date in one step or in
    many gives the same.
    """

    used: Resources = NOTHING
    at: int = 0

    def until(self, at: int, held: Balance, half_life_ms: int) -> Resources:
        """The sums at `at` if what is granted has been `held.granted` since the last update (semantics C5)."""
        if at == self.at:
            return self.used
        if self.at // half_life_ms == at // half_life_ms:
            return self.used + held.granted * (at - self.at)
        return self.used.combined(held.granted, lambda used, rate: _faded(used, rate, self.at, at, half_life_ms))

    def update(self, at: int, held: Balance, half_life_ms: int) -> None:
        """Bring the sums up to date before what is granted changes."""
        self.used = self.until(at, held, half_life_ms)
        self.at = at


def _faded(amount: int, rate: int, since: int, at: int, half_life_ms: int) -> int:
    """`amount` at `since`, projected to `at`: grows by `rate` per ms, halved at every half-life boundary."""
    period, last = since // half_life_ms, at // half_life_ms
    if period == last:
        return amount + rate * (at - since)
    amount = (amount + rate * ((period + 1) * half_life_ms - since)) >> 1
    for _ in range(last - period - 1):
        halved = (amount + rate * half_life_ms) >> 1
        if halved == amount:
            break
        amount = halved
    return amount + rate * (at - last * half_life_ms)


Accounts = tuple[Balance, Balance, Balance]
"""The three balances of an app: waitingApps, its company, its user."""


def equal(some: Accounts, others: Accounts) -> bool:
    """Whether both hold the same sums; comparing the tuples would call a function for each balance."""
    for one, other in zip(some, others, strict=True):
        if one.requested != other.requested or one.granted != other.granted:
            return False
    return True


def add_request(accounts: Accounts, request: Resources) -> None:
    """Add an app's request (negative to subtract it) at all three levels at once (semantics O1, A3, A5)."""
    cluster, company, user = accounts
    cluster.requested, company.requested, user.requested = sums(
        cluster.requested, company.requested, user.requested, request
    )


def add_grant(accounts: Accounts, grant: Resources) -> None:
    """Add an executor's grant (negative to return it) at all three levels at once (semantics O1)."""
    cluster, company, user = accounts
    cluster.granted, company.granted, user.granted = sums(cluster.granted, company.granted, user.granted, grant)


def sums(
    cluster: Resources, company: Resources, user: Resources, more: Resources
) -> tuple[Resources, Resources, Resources]:
    """The sums of the three levels with `more`. A kind that one of them has, the cluster has too."""
    if more.others or cluster.others:
        return cluster + more, company + more, user + more
    cores, memory_mb = more.cores, more.memory_mb
    return (
        _vector(cluster.cores + cores, cluster.memory_mb + memory_mb),
        _vector(company.cores + cores, company.memory_mb + memory_mb),
        _vector(user.cores + cores, user.memory_mb + memory_mb),
    )


def granted(free: Resources, held: Resources, grant: Resources) -> tuple[Resources, Resources]:
    """What a worker has free, and what an app holds, after a grant on it (negative to return it)."""
    if grant.others or free.others or held.others:
        return free - grant, held + grant
    cores, memory_mb = grant.cores, grant.memory_mb  # most grants: save the calls
    return (
        _vector(free.cores - cores, free.memory_mb - memory_mb),
        _vector(held.cores + cores, held.memory_mb + memory_mb),
    )


@dataclass(slots=True)
class Occupation:
    """What the cluster's, a department's, a company's or a user's apps count for."""

    claimed: Resources = NOTHING
    unserved: Resources = NOTHING
    """What admitted apps request that were never granted anything (semantics C5).

    Not kept for the cluster and departments, nor where the order of companies does not regard it.
    """
    pending: int = 0
    """How many apps are pending, and how many are in waitingApps; not kept for the cluster (semantics N1)."""
    apps: int = 0
    above: tuple[Occupation, ...] = field(default=(), compare=False, repr=False)
    """Standings of the departments that the company is in, where its apps count as well (semantics H12)."""

    def add(self, other: Occupation) -> None:
        """Count what the apps of a company count for."""
        self.claimed += other.claimed
        self.pending += other.pending
        self.apps += other.apps


Standings = tuple[Occupation, Occupation, Occupation]
"""The standings of the cluster, of an app's company and of its user."""
