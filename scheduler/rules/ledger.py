"""Ledgers of requested and granted resources of waitingApps, companies and users; usage over time (semantics O, C5)."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.model.resources import NOTHING, Resources


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


def add_request(accounts: Accounts, request: Resources) -> None:
    """Add an app's request (negative to subtract it) at all three levels at once (semantics O1, A3, A5, O4)."""
    cores, memory_mb, others = request.cores, request.memory_mb, request.others
    for balance in accounts:
        held = balance.requested
        if others or held.others:
            balance.requested = held + request
        else:
            balance.requested = Resources(held.cores + cores, held.memory_mb + memory_mb)


def add_grant(accounts: Accounts, grant: Resources) -> None:
    """Add an executor's grant (negative to return it) at all three levels at once (semantics O1)."""
    cores, memory_mb, others = grant.cores, grant.memory_mb, grant.others
    for balance in accounts:
        held = balance.granted
        if others or held.others:
            balance.granted = held + grant
        else:
            balance.granted = Resources(held.cores + cores, held.memory_mb + memory_mb)
