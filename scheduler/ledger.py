"""The ledgers: what is requested and what is granted, for waitingApps, every company and every user (semantics O)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Balance:
    """Two sums of one ledger, in cores and MiB (semantics O1).

    `requested` runs from an app's admission to its removal; `granted` is what live executors hold,
    those of a removed app included until they are gone.
    """

    requested_cores: int = 0
    requested_memory_mb: int = 0
    granted_cores: int = 0
    granted_memory_mb: int = 0

    def occupied(self, occupancy: str) -> tuple[int, int]:
        """(cores, MiB) that count as occupied under the setting `occupancy` (semantics O3)."""
        if occupancy == "granted":
            return self.granted_cores, self.granted_memory_mb
        return self.requested_cores, self.requested_memory_mb


Accounts = tuple[Balance, Balance, Balance]
"""The three balances that every app counts in: waitingApps, its company, its user."""


def add_request(accounts: Accounts, cores: int, memory_mb: int) -> None:
    """Add an app's request (negative to subtract it) at all three levels at once (semantics A3, A5, O4)."""
    for balance in accounts:
        balance.requested_cores += cores
        balance.requested_memory_mb += memory_mb


def add_grant(accounts: Accounts, cores: int, memory_mb: int) -> None:
    """Add an executor's grant (negative to return it) at all three levels at once (semantics O1)."""
    for balance in accounts:
        balance.granted_cores += cores
        balance.granted_memory_mb += memory_mb
