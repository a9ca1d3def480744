"""Executor requests with locality preferences, by the rules of Spark on YARN (semantics L2, source [2]).

The rules come from `YarnAllocator` and `LocalityPreferredContainerPlacementStrategy`, rounding included. Per-host
numbers use the same double-precision operations in the same order, because exact fractions sometimes round
differently. IEEE doubles are the same on every machine, and the results are whole numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import NamedTuple

from scheduler.model.events import Locations, Wanted

DEFAULT_RACK = "/default-rack"
"""The rack of a host without a named rack."""


class Split(NamedTuple):
    """Indexes of pending requests by class, in ascending order."""

    matching: list[int]
    stale: list[int]
    free: list[int]


class Preferences(NamedTuple):
    """An app's current demand: the number of tasks with preferences, and host -> number of tasks that prefer it.

    A task may prefer several hosts, so the sum of `by_host` may exceed `tasks`.
    """

    tasks: int
    by_host: Mapping[str, int]
    tasks_per_executor: int

    @property
    def executors(self) -> int:
        """The number of executors for those tasks, rounded up."""
        return -(-self.tasks // self.tasks_per_executor)


ANYWHERE = Locations()


def split_pending_requests(pending: Sequence[tuple[str, ...] | None], by_host: Mapping[str, int]) -> Split:
    """Split pending requests, given as their preferred hosts, by the current preferences (semantics L2).

    - matching: prefers at least one host of `by_host`; kept.
    - stale: prefers only other hosts; cancelled.
    - free: has no preference; may be replaced by a request with one.
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
    """The number of further executors for each preferred host (semantics L2).

    A host's share of the executors equals its share of all preferences. From it, subtract the host's executors
    (`executors_by_host`) and its pending requests (`matching`), then round up.

    Example: 20 tasks prefer h1 h2 h3, 10 prefer h1 h2 h4, two tasks per executor. The preferences 30 30 20 10 and 15
    executors give 5 5 3⅓ 1⅔, rounded up 5 5 4 2. With one executor on each host already: 4 4 3 1.
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
    """`count` executor requests, those without a preference first (semantics L2).

    The number of requests with a preference is the sum of `expected`, at most `count`. Scale the hosts' numbers so that
    the largest equals it. Each request then prefers every host with a number left, and takes one from each. `racks`
    maps host -> rack.

    Example: `expected` 4 4 3 1, 18 requests: 6 anywhere, 12 with a preference. Scaled: 12 12 9 3. So 3 requests prefer
    h1 h2 h3 h4, the next 6 h1 h2 h3, the last 3 h1 h2.
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
    """Host -> expected number of these requests, in proportion to how often the host is named.

    Example: three requests that name h1 20 times, h2 20 times and h3 10 times give 1.2, 1.2 and 0.6.
    """
    named = Counter(host for hosts in matching for host in hosts)
    return {host: times * float(len(matching)) / named.total() for host, times in named.items()}


def rethought(
    pending: Sequence[Wanted],
    lacking: int,
    preferences: Preferences,
    executors_by_host: Mapping[str, int],
    *,
    racks: Mapping[str, str],
    at: int,
) -> list[Wanted]:
    """The app's pending requests after its demand or executors changed (semantics L1, L2).

    `lacking` is target - starting - running executors. If fewer are lacking than pending, cancel the surplus: stale
    requests first, then free, then matching ones; the oldest first within each class. Otherwise:

    - Cancel stale requests; issue new ones in their place and for the missing executors.
    - Replace free requests by requests with a preference where the tasks' preferences require it.
    - Keep all others.

    `executors_by_host` counts the app's executors, `racks` maps host -> rack, `at` is the time (ms).
    """
    missing = lacking - sum(wanted.number for wanted in pending)
    split = split_pending_requests([wanted.locations.hosts for wanted in pending], preferences.by_host)
    if missing < 0:
        return without(pending, -missing, [*split.stale, *split.free, *split.matching])
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
            kept += without([wanted], cancelled, [0])
        elif index not in split.stale:
            kept.append(wanted)
    new = preferring + [ANYWHERE] * (available - len(preferring))
    return _merged([*kept, *(Wanted(request, 1, at) for request in new)])


def without(pending: Sequence[Wanted], number: int, order: Iterable[int]) -> list[Wanted]:
    """The requests after `number` of them were cancelled or served, in the order of the indexes `order` (L2)."""
    left = [wanted.number for wanted in pending]
    for index in order:
        cancelled = min(number, left[index])
        number -= cancelled
        left[index] -= cancelled
    return [wanted._replace(number=count) for wanted, count in zip(pending, left, strict=True) if count]


def _merged(pending: Iterable[Wanted]) -> list[Wanted]:
    """The requests with neighbours of the same locations and time combined."""
    alike = groupby(pending, key=lambda wanted: (wanted.locations, wanted.since))
    return [Wanted(locations, sum(one.number for one in same), since) for (locations, since), same in alike]
