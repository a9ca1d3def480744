"""Ledgers of requested and granted resources of waitingApps, companies and users; usage over time (semantics O, C5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Balance:
    """The two sums of a ledger, in cores and MiB (semantics O1).

    `requested` counts an app from its admission to its removal. `granted` counts live executors, including those of a
    removed app until they have ended.
    """

    requested_cores: int = 0
    requested_memory_mb: int = 0
    granted_cores: int = 0
    granted_memory_mb: int = 0

    def occupied(self, occupancy: str) -> tuple[int, int]:
        """(cores, MiB) occupied by the setting `occupancy` (semantics O3)."""
        if occupancy == "granted":
            return self.granted_cores, self.granted_memory_mb
        return self.requested_cores, self.requested_memory_mb


@dataclass(slots=True)
class Usage:
    """A company's decayed usage, in core-ms and MiB-ms, as of `at` (ms) (semantics C5).

    Both sums are halved, rounded down, at every multiple of the half-life since the epoch; at that time itself they are
    already halved. They are integers, so one update gives the same result as several smaller ones.
    """

    core_ms: int = 0
    memory_mb_ms: int = 0
    at: int = 0

    def until(self, at: int, held: Balance, half_life_ms: int) -> tuple[int, int]:
        """(core-ms, MiB-ms) at `at`, if the granted resources have not changed since the last update (semantics C5)."""
        return (
            _faded(self.core_ms, held.granted_cores, self.at, at, half_life_ms),
            _faded(self.memory_mb_ms, held.granted_memory_mb, self.at, at, half_life_ms),
        )

    def update(self, at: int, held: Balance, half_life_ms: int) -> None:
        """Update the sums; call before the granted resources change."""
        self.core_ms, self.memory_mb_ms = self.until(at, held, half_life_ms)
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


def add_request(accounts: Accounts, cores: int, memory_mb: int) -> None:
    """Add an app's request, negative to subtract, at all three levels (semantics O1, A3, A5, O4)."""
    for balance in accounts:
        balance.requested_cores += cores
        balance.requested_memory_mb += memory_mb


def add_grant(accounts: Accounts, cores: int, memory_mb: int) -> None:
    """Add an executor's grant, negative to subtract, at all three levels (semantics O1)."""
    for balance in accounts:
        balance.granted_cores += cores
        balance.granted_memory_mb += memory_mb
