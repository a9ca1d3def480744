"""How fair a span of the log was: shares, shortfall, Jain's index, waits, slowdowns, per company or user.

Each figure is one of the literature's, taken at every instant and weighted by how long it lasted:

- entitlement: weighted max-min over cores and memory (`entitlement`: Ghodsi et al., DRF, NSDI 2011);
- shortfall: what is missing to the entitlement, in core-seconds; as a part of the cluster, summed over companies,
  it is Armada's fairness error;
- Jain's index of occupied / entitlement (Jain, Chiu, Hawe 1984);
- bounded slowdown: time here / run time, runs below 10 s counted as 10 s (Feitelson, Rudolph 1998);
- finish-time fairness: time here / time in one's own 1/N of the cluster (Mahajan et al., Themis, NSDI 2020).

"Occupied" is the ledger that the setting `occupancy` names (semantics O3). The quota is a cap here (C4),
which in the literature it is not: `beyondQuotaCoreS` is the part of a shortfall that the quota explains. The
module is longer than most because the figures share one walk over the log and are read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import add
from typing import Any, Literal, NamedTuple

from scheduler.model.events import Event
from scheduler.model.resources import Resources
from scheduler.rules.state import ClusterState
from witness.entitlement import Amount, among_equals, entitlements, jain
from witness.usage import Account, Accounts

By = Literal["company", "user"]
Party = tuple[str, str]
"""A company and one of its users, or "" for all of them."""

SHORTEST_RUN_MS = 10_000
POINTS = 240
"""How many points over time a report has at most."""


class _Count(NamedTuple):
    """What an app, or all of a user's apps, demand, requested and hold, and how many of them are pending."""

    demand_cores: int
    demand_mb: int
    cores: int
    memory_mb: int
    granted_cores: int
    granted_mb: int
    pending: int


_NOTHING = _Count(0, 0, 0, 0, 0, 0, 0)


@dataclass(slots=True)
class Standing:
    """Where a party stands at one instant, in cores and MiB."""

    demand: Amount = (0, 0)
    entitled: Amount = (0.0, 0.0)
    occupied: Amount = (0, 0)
    granted: Amount = (0, 0)
    quota: Amount = (0.0, 0.0)
    pending: int = 0

    @property
    def share(self) -> float:
        """The dominant share of the quota that is occupied; 0 where nothing was bought."""
        return max((has / bought for has, bought in zip(self.occupied, self.quota, strict=True) if bought), default=0.0)

    @property
    def short_cores(self) -> float:
        """Cores below the entitlement."""
        return max(0.0, self.entitled[0] - self.occupied[0])


@dataclass(slots=True)
class Sums:
    """A party's figures added up over time, in core-ms; `short_since` (ms) is since when it waits below its due."""

    demand: float = 0
    entitled: float = 0
    occupied: float = 0
    granted: float = 0
    share: float = 0
    short: float = 0
    short_of_grant: float = 0
    beyond_quota: float = 0
    short_since: int | None = None
    longest_short_ms: int = 0


@dataclass(slots=True)
class Instant:
    """What held from `at` (ms) until the next one: the standings in the order of the parties, and the queue."""

    at: int
    standings: dict[Party, Standing]
    pending: int


@dataclass
class Cluster:
    """Figures of the whole cluster, added up over time in ms, core-ms or index-ms."""

    live: float = 0
    granted: float = 0
    jain: float = 0
    jain_ms: int = 0
    error: float = 0
    queue: float = 0


@dataclass
class Fairness:
    """Figures of one span, fed with every event of the log from its beginning (`span.Meter`).

    With `keep` the course over time is kept, too; with `users` what each user holds and lacks as well.
    """

    by: By = "company"
    keep: bool = True
    users: bool = False
    sums: dict[Party, Sums] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    instants: list[Instant] = field(default_factory=list)
    accounts: Accounts = field(default_factory=Accounts)

    def __post_init__(self) -> None:
        self._standings: dict[Party, Standing] | None = None
        self._kept: dict[Party, Standing] | None = None
        self._counted: dict[str, _Count] = {}
        self._totals: dict[str, dict[Party, _Count]] = {}
        """Of each company its own under the user "", then its users'; of those alone that demand or hold anything."""
        self._of_users: list[tuple[Party, float, float]] = []
        self._known: dict[str, tuple[tuple[object, ...], list[tuple[Party, float, float]]]] = {}
        self._user_sums: dict[Party, list[float]] = {}

    def begin(self, at: int) -> None:
        """The span begins at `at` (ms); what came before is only taken note of."""
        self.accounts.first_at = at

    def end(self, at: int) -> None:
        """The span ends at `at` (ms)."""
        self.accounts.last_at = at

    def advance(self, state: ClusterState, to: int) -> None:
        """Let time pass up to `to` (ms) with the state as it is."""
        start, end = self.accounts.clip(state.at), self.accounts.clip(to)
        if end <= start:
            return
        if self._standings is None:
            self._standings = self._standings_of(state)
        standings = self._standings
        if self.keep and standings is not self._kept:
            self._kept = standings
            self.instants.append(Instant(start, standings, sum(each.pending for each in standings.values())))
        self._add(state, standings, start, end - start)

    def observe(self, state: ClusterState, event: Event) -> None:
        """Take note of an event that was folded just now."""
        account = self.accounts.observe(state, event)
        if account is not None:
            self._count(account)
        self._standings = None

    def _count(self, account: Account) -> None:
        """Bring the totals of its user up to date with the app."""
        demand, requested, granted = account.demand, account.requested, account.granted
        pending = account.admitted_at is None and account.ended_at is None
        now = _Count(*_amount(demand), *_amount(requested), *_amount(granted), int(pending))
        before = self._counted.pop(account.app, _NOTHING)
        if now != _NOTHING:
            self._counted[account.app] = now
        if now == before:
            return
        change = [n - b for n, b in zip(now, before, strict=True)]
        totals = self._totals.setdefault(account.company, {})
        for party in ((account.company, ""), (account.company, account.user)):
            total = _Count._make(map(add, totals.pop(party, _NOTHING), change))
            if total != _NOTHING:
                totals[party] = total

    def _standings_of(self, state: ClusterState) -> dict[Party, Standing]:
        companies = [name for name in state.companies if self._totals.get(name)]
        capacity = float(state.fleet.total.cores), float(state.fleet.total.memory_mb)
        quotas = [_quota(state, name) for name in companies]
        granted_counts = state.settings.occupancy == "granted"
        whole = [_standing(self._totals[name][name, ""], granted_counts=granted_counts) for name in companies]
        due = entitlements(capacity, quotas, [standing.demand for standing in whole])
        standings: dict[Party, Standing] = {}
        self._of_users.clear()
        for name, quota, entitled, standing in zip(companies, quotas, due, whole, strict=True):
            if self.by == "user":
                standings |= self._within(name, entitled, quota, granted_counts=granted_counts)
                continue
            standing.entitled, standing.quota = entitled, quota
            standings[name, ""] = standing
            if self.users:
                facts = entitled, quota, granted_counts, *self._totals[name].items()
                known = self._known.get(name)
                if known is None or known[0] != facts:
                    within = self._within(name, entitled, quota, granted_counts=granted_counts).items()
                    known = facts, [(party, user.share, user.short_cores) for party, user in within]
                    self._known[name] = known
                self._of_users += known[1]
        return standings

    def _within(self, company: str, entitled: Amount, quota: Amount, *, granted_counts: bool) -> dict[Party, Standing]:
        """The users of a company, each with the part of what it is entitled to that is due to it."""
        users = {
            party: _standing(total, granted_counts=granted_counts)
            for party, total in self._totals[company].items()
            if party[1]
        }
        due = among_equals(entitled, quota, [user.demand for user in users.values()])
        for standing, part in zip(users.values(), due, strict=True):
            standing.entitled, standing.quota = part, quota
        return users

    def _add(self, state: ClusterState, standings: dict[Party, Standing], start: int, passed: int) -> None:
        whole = self.cluster
        cores = state.fleet.total.cores
        whole.live += cores * passed
        whole.queue += sum(standing.pending for standing in standings.values()) * passed
        ratios = []
        for party, now in standings.items():
            sums = self.sums.setdefault(party, Sums())
            sums.demand += now.demand[0] * passed
            sums.entitled += now.entitled[0] * passed
            sums.occupied += now.occupied[0] * passed
            sums.granted += now.granted[0] * passed
            whole.granted += now.granted[0] * passed
            sums.share += now.share * passed
            sums.short += now.short_cores * passed
            sums.short_of_grant += max(0.0, now.entitled[0] - now.granted[0]) * passed
            sums.beyond_quota += max(0.0, now.entitled[0] - max(now.quota[0], now.occupied[0])) * passed
            if cores:
                whole.error += max(0.0, now.entitled[0] / cores - now.occupied[0] / cores) * passed
            if now.entitled[0] > 0:
                ratios.append(now.occupied[0] / now.entitled[0])
        for party, sums in self.sums.items():
            standing = standings.get(party)
            if standing is not None and standing.pending and standing.short_cores > 1e-9:
                sums.short_since = start if sums.short_since is None else sums.short_since
                sums.longest_short_ms = max(sums.longest_short_ms, start + passed - sums.short_since)
            else:
                sums.short_since = None
        for party, share, short in self._of_users:
            user = self._user_sums.setdefault(party, [0.0, 0.0])
            user[0] += share * passed
            user[1] += short * passed
        if len(ratios) > 1:
            whole.jain += (jain(ratios) or 0.0) * passed
            whole.jain_ms += passed

    def report(self, state: ClusterState) -> dict[str, Any]:
        """The figures as JSON values, per party in `rows` and over time in `series`; means are over the span."""
        start, end = self.accounts.first_at, self.accounts.clip(state.at)
        if self.accounts.last_at is not None:
            end = self.accounts.last_at
        span = end - start
        accounts = [a for a in self.accounts.settle(end) if a.submitted_at <= end and _lives_in(a, start)]
        own = _own_cluster(accounts, self.cluster, span, len(state.companies))
        parties: dict[Party, list[Account]] = {party: [] for party in self.sums}
        for account in accounts:
            parties.setdefault((account.company, "" if self.by == "company" else account.user), []).append(account)
        return {
            "by": self.by,
            "fromAt": start,
            "toAt": end,
            "cluster": {**self._whole(span), **_of_apps(accounts, own, start, end)},
            "rows": [
                {
                    "company": party[0],
                    **({"user": party[1]} if self.by == "user" else {}),
                    **_of_party(self.sums.get(party, Sums()), span),
                    **_of_apps(apps, own, start, end),
                }
                for party, apps in sorted(parties.items())
            ],
            "series": self._series(start, end),
        }

    def of_users(self, state: ClusterState) -> list[dict[str, Any]]:
        """Shares, shortfall, waits, slowdowns and core-hours of each user, as JSON values."""
        start, end = self.accounts.first_at, self.accounts.clip(state.at)
        accounts = list(self.accounts.settle(end))
        own = _own_cluster(accounts, self.cluster, end - start, len(state.companies))
        users: dict[Party, list[Account]] = {}
        for account in accounts:
            users.setdefault((account.company, account.user), []).append(account)
        return [
            {
                "company": company,
                "user": user,
                "share": _mean(self._user_sums.get((company, user), _NONE)[0], end - start, 6),
                "shortfallCoreS": round(self._user_sums.get((company, user), _NONE)[1] / 1000, 3),
                "grantedCoreH": round(sum(account.granted_ms.cores for account in apps) / 3_600_000, 3),
                **_of_apps(apps, own, start, end),
            }
            for (company, user), apps in sorted(users.items())
        ]

    def waits(self, until: int) -> list[dict[str, Any]]:
        """Every wait that ended in the span, up to `until` (ms), by the time of admission."""
        return [
            {
                "at": admitted_at,
                "waitMs": admitted_at - account.submitted_at,
                "app": account.app,
                "company": account.company,
                "user": account.user,
            }
            for account in self.accounts.all
            if (admitted_at := account.admitted_at) is not None and self.accounts.first_at <= admitted_at <= until
        ]

    def _whole(self, span: int) -> dict[str, Any]:
        whole = self.cluster
        return {
            "cores": _mean(whole.live, span),
            "utilisation": round(whole.granted / whole.live, 6) if whole.live else None,
            "jain": round(whole.jain / whole.jain_ms, 6) if whole.jain_ms else None,
            "fairnessError": _mean(whole.error, span, 6),
            "queueLength": _mean(whole.queue, span),
            "shortfallCoreS": round(sum(sums.short for sums in self.sums.values()) / 1000, 3),
        }

    def _series(self, start: int, end: int) -> list[dict[str, Any]]:
        """The course over time in at most `POINTS` equal steps, each the mean over its time."""
        if not self.instants or end <= start:
            return []
        step = max(1, -(-(end - start) // POINTS))
        points: list[dict[str, Any]] = [{"at": at, "queueLength": 0.0, "shares": {}} for at in range(start, end, step)]
        ends = [instant.at for instant in self.instants[1:]] + [end]
        for instant, until in zip(self.instants, ends, strict=True):
            for number in range((instant.at - start) // step, -(-(until - start) // step)):
                point = points[number]
                begins, over = point["at"], min(point["at"] + step, end)
                part = (min(over, until) - max(begins, instant.at)) / (over - begins)
                point["queueLength"] += instant.pending * part
                for party, now in instant.standings.items():
                    share = point["shares"].setdefault(" ".join(filter(None, party)), dict.fromkeys(_COURSES, 0.0))
                    for name in _COURSES:
                        share[name] += getattr(now, name)[0] * part
        for point in points:
            point["queueLength"] = round(point["queueLength"], 3)
            point["shares"] = {
                party: {name: round(value, 3) for name, value in share.items()}
                for party, share in sorted(point["shares"].items())
            }
        return points


_NONE = (0.0, 0.0)
_COURSES = ("demand", "entitled", "occupied", "granted")


def _standing(total: _Count, *, granted_counts: bool) -> Standing:
    """What a party demands, occupies (semantics O3) and holds."""
    return Standing(
        (total.demand_cores, total.demand_mb),
        (0.0, 0.0),
        (total.granted_cores, total.granted_mb) if granted_counts else (total.cores, total.memory_mb),
        (total.granted_cores, total.granted_mb),
        pending=total.pending,
    )


def _quota(state: ClusterState, company: str) -> Amount:
    quota = state.quota(company)
    return quota.amount.cores / quota.denominator, quota.amount.memory_mb / quota.denominator


def _amount(held: Resources) -> tuple[int, int]:
    return held.cores, held.memory_mb


def _mean(total: float, span: int, digits: int = 3) -> float | None:
    return round(total / span, digits) if span else None


def _lives_in(account: Account, start: int) -> bool:
    return account.ended_at is None or account.ended_at >= start


def _of_party(sums: Sums, span: int) -> dict[str, Any]:
    return {
        "demandCores": _mean(sums.demand, span),
        "entitledCores": _mean(sums.entitled, span),
        "occupiedCores": _mean(sums.occupied, span),
        "grantedCores": _mean(sums.granted, span),
        "share": _mean(sums.share, span, 6),
        "shortfallCoreS": round(sums.short / 1000, 3),
        "beyondQuotaCoreS": round(sums.beyond_quota / 1000, 3),
        "grantShortfallCoreS": round(sums.short_of_grant / 1000, 3),
        "longestOutOfTurnMs": sums.longest_short_ms,
    }


def _of_apps(accounts: Sequence[Account], own: dict[str, int], start: int, end: int) -> dict[str, Any]:
    """Waits of the apps admitted in the span, losses (semantics E8), slowdown and finish-time fairness of the ended."""
    waits = sorted(
        account.admitted_at - account.submitted_at
        for account in accounts
        if account.admitted_at is not None and start <= account.admitted_at <= end
    )
    ended = [
        (account, account.started_at, account.ended_at)
        for account in accounts
        if account.started_at is not None and account.ended_at is not None and account.ended_at <= end
    ]
    slowdowns = sorted(
        max(1.0, (ended_at - account.submitted_at) / max(ended_at - started_at, SHORTEST_RUN_MS))
        for account, started_at, ended_at in ended
    )
    themis = sorted(
        (ended_at - account.submitted_at) / own[account.app] for account, _, ended_at in ended if own.get(account.app)
    )
    waiting = [end - a.submitted_at for a in accounts if a.admitted_at is None and a.ended_at is None]
    return {
        "apps": len(accounts),
        "admitted": len(waits),
        "ended": len(ended),
        "stillWaiting": len(waiting),
        "executorsLost": sum(account.lost for account in accounts),
        "lostCoreMs": sum(account.lost_core_ms for account in accounts),
        "waitP50Ms": percentile(waits, 50),
        "waitP90Ms": percentile(waits, 90),
        "waitP99Ms": percentile(waits, 99),
        "waitLongestMs": max([*waits, *waiting], default=None),
        "boundedSlowdown": _spread(slowdowns),
        "finishTimeFairness": _spread(themis),
    }


def percentile(ordered: Sequence[int], part: int) -> int | None:
    """The smallest of the ordered values that at least `part` percent of them do not exceed (nearest rank)."""
    return ordered[-(-len(ordered) * part // 100) - 1] if ordered else None


def _spread(ordered: Sequence[float]) -> dict[str, float] | None:
    if not ordered:
        return None
    mean = sum(ordered) / len(ordered)
    return {"mean": round(mean, 3), "p50": round(ordered[-(-len(ordered) // 2) - 1], 3), "most": round(ordered[-1], 3)}


def _own_cluster(accounts: Sequence[Account], whole: Cluster, span: int, companies: int) -> dict[str, int]:
    """App -> ms from its submission to its end had its company a 1/N cluster of its own (Themis' T_ID).

    The company's apps would run there in the order of submission, each on what it asked for, at most all of it, for
    as long as the work takes that it was granted here.
    """
    cores = max(1, round(whole.live / span / companies)) if span and companies else 1
    times: dict[str, int] = {}
    running: dict[str, list[tuple[int, int]]] = {}
    free: dict[str, int] = {}
    now: dict[str, int] = {}
    for account in accounts:
        if account.ended_at is None or not account.granted_ms.cores:
            continue
        name = account.company
        queue = running.setdefault(name, [])
        wide = max(1, min(cores, account.asked_cores))
        now[name] = max(now.get(name, 0), account.submitted_at)
        room = free.get(name, cores)
        while queue and (queue[0][0] <= now[name] or room < wide):
            ends, freed = heappop(queue)
            now[name] = max(now[name], ends)
            room += freed
        ends = now[name] + -(-account.granted_ms.cores // wide)
        heappush(queue, (ends, wide))
        free[name] = room - wide
        times[account.app] = max(1, ends - account.submitted_at)
    return times
