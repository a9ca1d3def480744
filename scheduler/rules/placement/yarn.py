"""What executors to ask for, and where, so that tasks run near what they read (semantics L2, L3, source [2]).

These are the rules of Spark on YARN (`YarnAllocator`, `LocalityPreferredContainerPlacementStrategy`),
its rounding included: per-host numbers go through the same double-precision steps in the same order,
because exact fractions would round otherwise now and then. Doubles are the same on every machine, and
what comes out are whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from scheduler.model.events import Locations, Wanted

DEFAULT_RACK = "/default-rack"
"""Where a host is whose rack nobody named."""

Hosts = tuple[str, ...] | None
"""The hosts that a request prefers; None = it has no preference."""


class Split(NamedTuple):
    """Pending requests as indexes into what was split, each in its order."""

    matching: list[int]
    stale: list[int]
    free: list[int]


class Preferences(NamedTuple):
    """Today's demand of an app: how many of its tasks prefer some host, and for each host how many prefer it.

    A task may prefer several hosts, so `by_host` may add up to more than `tasks`.
    """

    tasks: int
    by_host: Mapping[str, int]
    tasks_per_executor: int

    @property
    def executors(self) -> int:
        """How many executors those tasks fill."""
        return -(-self.tasks // self.tasks_per_executor)


ANYWHERE = Locations()


def split_pending_requests(pending: Sequence[Hosts], by_host: Mapping[str, int]) -> Split:
    """Which pending requests still match what tasks prefer, which are stale, which never had a preference.

    A request matches if it prefers some host of `by_host`, and is stale if it prefers only others (semantics
    L2). Matching ones stay, stale ones are cancelled, free ones may be exchanged for better ones.
    """
    split = Split([], [], [])
    for index, hosts in enumerate(pending):
        if hosts is None:
            split.free.append(index)
        elif any(host in by_host for host in hosts):
            split.matching.append(index)
        else:
            split.stale.append(index)
    return split


def expected_host_counts(
    preferences: Preferences, executors_by_host: Mapping[str, int], matching: Sequence[Sequence[str]]
) -> dict[str, int]:
    """How many more executors each preferred host should have (semantics L3).

    A host's part of the executors that the tasks fill is its part of all preferences; what is on it
    (`executors_by_host`) and what is pending for it are subtracted, and the rest is rounded up.

    20 tasks prefer h1 h2 h3 and 10 prefer h1 h2 h4, two tasks an executor: 30 30 20 10 preferences
    and 15 executors make 5 5 3⅓ 1⅔, so 5 5 4 2; with one executor on each host already, 4 4 3 1.
    """
    total = sum(preferences.by_host.values())
    pending = _pending_by_host(matching)
    expected: dict[str, int] = {}
    for host, tasks in preferences.by_host.items():
        wanted = float(tasks) * preferences.executors / total if total else 0.0
        expected[host] = max(0, ceil(wanted - (executors_by_host.get(host, 0) + pending.get(host, 0.0))))
    return expected


def locality_of_requested_executors(
    count: int, expected: Mapping[str, int], racks: Mapping[str, str]
) -> list[Locations]:
    """`count` executors to ask for, those without a preference first (semantics L3).

    As many have one as `expected` adds up to, at most `count`. The hosts' numbers are scaled so that the
    largest is just that many; then each request in turn prefers every host that still has some left,
    and takes one from each. `racks` says where hosts are.

    `expected` 4 4 3 1 and 18 to ask for: 6 anywhere and 12 with a preference; scaled 12 12 9 3, hence
    3 for h1 h2 h3 h4, then 6 for h1 h2 h3, then 3 for h1 h2.
    """
    preferring = min(count, sum(expected.values()))
    requests = [ANYWHERE] * (count - preferring)
    if preferring <= 0:
        return requests
    largest = max(expected.values())
    scaled = {host: ceil(float(wanted) * preferring / largest) for host, wanted in sorted(expected.items())}
    for until in sorted(dict.fromkeys(scaled.values())):
        hosts = tuple(host for host, left in scaled.items() if left >= until)
        rack_names = dict.fromkeys(racks.get(host, DEFAULT_RACK) for host in hosts)
        requests += [Locations(hosts, tuple(sorted(rack_names)))] * (count - preferring + until - len(requests))
    return requests


def _pending_by_host(matching: Sequence[Sequence[str]]) -> dict[str, float]:
    """How many of these requests each host may get: a request's hosts are as likely as often they are named.

    Three requests that name h1 20 times, h2 20 times and h3 10 times count 1.2, 1.2 and 0.6.
    """
    named: dict[str, int] = {}
    for hosts in matching:
        for host in hosts:
            named[host] = named.get(host, 0) + 1
    total = sum(named.values())
    return {host: times * float(len(matching)) / total for host, times in named.items()}


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
    split = split_pending_requests([wanted.locations.hosts for wanted in pending], preferences.by_host)
    if missing < 0:
        return _cancelled(pending, -missing, [*split.stale, *split.free, *split.matching])
    available = missing + sum(pending[index].number for index in split.stale)
    exchangeable = sum(pending[index].number for index in split.free)
    matching = [pending[index].locations.hosts or () for index in split.matching for _ in range(pending[index].number)]
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
