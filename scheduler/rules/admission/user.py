"""Which of a company's users is admitted from next (semantics U).

A policy is one record of `USER_POLICIES`, read by admission, explanations and the audit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scheduler.model.quota import Quota, Share
from scheduler.model.resources import Resources
from scheduler.rules.admission.policy import Basis
from scheduler.rules.entities.ledger import Balance, Occupation

UserKey = tuple[Any, ...]
"""(rounded share, exact share, last selection, oldest app, name): as for companies, the first decides most."""
_ALIKE = Share(0, 1)


@dataclass(slots=True)
class Contender:
    """A user with pending apps as policies see it.

    `last_selected` is the log position of the user's last admission (0 = never), `oldest` that at which the user's
    oldest pending app became ready (J); `_at` are their times in ms. `request` is that of the user's next app (F).
    """

    user: str
    balance: Balance
    last_selected: int = 0
    last_selected_at: int = 0
    oldest: int = 0
    oldest_at: int = 0
    request: Resources = Resources(0, 0)
    standing: Occupation = field(default_factory=Occupation)


def longest_wait(_contender: Contender, _quota: Quota, _basis: Basis) -> Share:
    """All users are equal: the one selected longest ago goes first (semantics U1).

    Users never selected come first, ordered by the time when their oldest pending app became ready, then by name.
    Example: ann was selected at position 12 and bob at 9, cid and dan never; dan's oldest app is ready since position
    20 and cid's since 21.
    The order is dan, cid, bob, ann.
    """
    return _ALIKE


def least_occupied(contender: Contender, quota: Quota, _basis: Basis) -> Share:
    """The user who occupies the smallest dominant share of the company's quota first, ties by U1 (semantics U3, O1).

    Example, a quota of 64 cores and 128 GiB: ann occupies 16 cores and 16 GiB, a share of 1/4, and bob 8 cores and 48
    GiB, 3/8. ann goes first. After another app of 16 cores and 16 GiB she is at 1/2, and bob goes first.
    """
    return quota.share_of(contender.balance.requested)


def balanced(contender: Contender, quota: Quota, basis: Basis) -> Share:
    """The user with the smallest share for the time waited first (semantics U4).

    The smallest of

        dominant share of the company's quota that the user would occupy with the next app admitted
        ---------------------------------------------------------------------------------------------
        ms since the user was last selected (never: since the oldest pending app became ready) + 1

    as an exact fraction, ties by U1. The ratio falls towards 0 while a user waits and restarts when the user is
    selected, so no user waits forever. Example, a quota of 64 cores and memory in proportion: ann occupies 16 cores,
    requests 16 more and was selected 299,999 ms ago: (32/64) / 300,000 = 1/600,000. bob occupies nothing, requests 8
    and was selected 59,999 ms ago: (8/64) / 60,000 = 1/480,000. ann goes first. With a request of 32 her ratio would be
    1/400,000, and bob would go first.
    """
    share = quota.share_of(contender.balance.requested + contender.request)
    since = contender.last_selected_at if contender.last_selected else contender.oldest_at
    return Share(share.numerator, share.denominator * (basis.at - since + 1))


class UserPolicy(NamedTuple):
    """The order of a company's users: the smallest `key` first, ties by U1."""

    name: str
    rule: str
    """The number of the rule in docs/semantics.md."""
    key: Callable[[Contender, Quota, Basis], Share]
    reason: str
    """Why a user was next, after "of acme's users ann"."""
    measure: str = ""
    """What `key` measures, before its value; "" if it is the same for all."""

    def rank(self, contender: Contender, quota: Quota, basis: Basis) -> UserKey:
        """The user's place among the company's."""
        key, last_selected = self.key(contender, quota, basis), contender.last_selected
        return key.rounded, key, last_selected, 0 if last_selected else contender.oldest, contender.user


USER_POLICIES = {
    policy.name: policy
    for policy in (
        UserPolicy(
            "longest-wait", "U1", longest_wait, "was selected longest ago, or never and has the oldest pending app"
        ),
        UserPolicy("least-occupied", "U3", least_occupied, "occupied the smallest share", "a share of"),
        UserPolicy("balanced", "U4", balanced, "would occupy least for the time waited", "a share by ms waited of"),
    )
}
"""By their names, which are the values of the setting."""
