"""Balances move at all three levels at once."""

from __future__ import annotations

from scheduler.model.resources import Resources
from scheduler.rules.entities.ledger import Balance, add_grant, add_request


def test_a_request_counts_in_waiting_apps_company_and_user_until_it_is_taken_back() -> None:
    accounts = Balance(), Balance(Resources(4, 2048), Resources(4, 2048)), Balance()
    add_request(accounts, Resources(8, 4096))
    assert accounts == (
        Balance(Resources(8, 4096)),
        Balance(Resources(12, 6144), Resources(4, 2048)),
        Balance(Resources(8, 4096)),
    )
    add_request(accounts, Resources(-8, -4096))
    assert accounts == (Balance(), Balance(Resources(4, 2048), Resources(4, 2048)), Balance())


def test_a_grant_counts_beside_the_request_never_in_it() -> None:
    accounts = Balance(), Balance(), Balance()
    add_grant(accounts, Resources(4, 2048))
    assert accounts == (Balance(Resources(0, 0), Resources(4, 2048)),) * 3
    add_grant(accounts, Resources(-4, -2048))
    assert accounts == (Balance(),) * 3
