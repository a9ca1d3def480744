"""What an app asks for, what becomes of it and where it may be served: its pending requests (semantics L1, L2, L4, L5).

Only apps that prefer some hosts have requests; what any other app is owed is a number. Equal requests
of the same age are kept as one entry with a number, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduler.placement.locality import (
    ANYWHERE,
    Preferences,
    Request,
    expected_host_counts,
    locality_of_requested_executors,
    split_pending_requests,
)


class Wanted(NamedTuple):
    """`number` equal requests, pending since the time `since` (ms)."""

    request: Request
    number: int
    since: int


def rethought(
    pending: Sequence[Wanted],
    lacking: int,
    preferences: Preferences,
    executors_by_host: Mapping[str, int],
    *,
    racks: Mapping[str, str],
    at: int,
) -> list[Wanted]:
    """The requests of an app that lacks so many executors: target - starting - running (semantics L1, L2, L4).

    Fewer than are pending: so many are cancelled, stale ones before free ones before matching ones, of each
    the oldest. Otherwise the stale ones, which prefer only hosts that nobody prefers now, are cancelled, and
    asked for anew together with what is missing; requests without a preference are exchanged for such with
    one as far as tasks call for it. All others stay as they are.

    `executors_by_host` is where the app has executors, `racks` where hosts are, `at` the time (ms).
    """
    missing = lacking - sum(wanted.number for wanted in pending)
    split = split_pending_requests([wanted.request.hosts for wanted in pending], preferences.by_host)
    if missing < 0:
        return _cancelled(pending, -missing, [*split.stale, *split.free, *split.matching])
    available = missing + sum(pending[index].number for index in split.stale)
    exchangeable = sum(pending[index].number for index in split.free)
    matching = [pending[index].request.hosts or () for index in split.matching for _ in range(pending[index].number)]
    expected = expected_host_counts(preferences, executors_by_host, matching)
    asked = locality_of_requested_executors(available + exchangeable, expected, racks)
    preferring = [request for request in asked if request is not ANYWHERE]
    exchanged = max(0, len(preferring) - available)
    kept: list[Wanted] = []
    for index, wanted in enumerate(pending):
        if index in split.free:
            cancelled = min(exchanged, wanted.number)
            exchanged -= cancelled
            kept += _cancelled([wanted], cancelled, [0])
        elif index not in split.stale:
            kept.append(wanted)
    new = preferring + [ANYWHERE] * (available - len(preferring))
    return _merged([*kept, *(Wanted(request, 1, at) for request in new)])


def without_one(pending: Sequence[Wanted], index: int) -> list[Wanted]:
    """The requests once one of those at `index` is served."""
    left = pending[index]._replace(number=pending[index].number - 1)
    return [*pending[:index], *([left] if left.number else []), *pending[index + 1 :]]


def _cancelled(pending: Sequence[Wanted], number: int, order: Iterable[int]) -> list[Wanted]:
    """The requests without `number` of them, taken from those at the indexes `order` first (semantics L4)."""
    left = [wanted.number for wanted in pending]
    for index in order:
        cancelled = min(number, left[index])
        number -= cancelled
        left[index] -= cancelled
    return [wanted._replace(number=count) for wanted, count in zip(pending, left, strict=True) if count]


def _merged(pending: Iterable[Wanted]) -> list[Wanted]:
    merged: list[Wanted] = []
    for wanted in pending:
        if merged and merged[-1]._replace(number=wanted.number) == wanted:
            merged[-1] = wanted._replace(number=merged[-1].number + wanted.number)
        else:
            merged.append(wanted)
    return merged
