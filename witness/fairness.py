"""The fairness of a span of the log: shares, shortfall, Jain's index, waits, slowdowns, by company, user, department.

Every figure is a published one, weighted by time:

- entitlement: weighted max-min over all resources (`entitlement`: Ghodsi et al., DRF, NSDI 2011); with
  departments among siblings, from the cluster down (semantics H12);
- shortfall: entitled minus occupied cores, in core-seconds; its sum over companies as a part of the cluster is
  Armada's fairness error;
- Jain's index of occupied / entitled (Jain, Chiu, Hawe 1984);
- bounded slowdown: turnaround time / run time, runs below 10 s counted as 10 s (Feitelson, Rudolph 1998);
- finish-time fairness: turnaround time / that on a dedicated 1/N of the cluster (Mahajan et al., Themis, NSDI 2020).

"Occupied" is what is granted. Unlike in the literature, a quota limits what a company occupies (semantics H1):
`beyondQuotaCoreS` is the part of the shortfall that is due to this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from operator import add, sub
from typing import Any, Literal, NamedTuple

from scheduler.model.events import AppRegistered, CompanyMoved, DepartmentAdded, Event
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources, amounts_of
from scheduler.rules.entities.companies import Department
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.standings import granted_live
from witness.entitlement import Amount, Sibling, among_equals, entitlements, entitlements_within, jain
from witness.usage import AppUsage, UsageMeter, place_of

By = Literal["company", "user", "department"]
Party = tuple[str, str]
"""A company and one of its users, or "" for the whole company; or "" and a department."""

SHORTEST_RUN_MS = 10_000
POINTS = 240
"""The largest number of points over time in a report."""


class _Count(NamedTuple):
    """The demand and grants of some apps, and the number of pending ones."""

    demand: Resources = NOTHING
    granted: Resources = NOTHING
    pending: int = 0


_NOTHING = _Count()


@dataclass(slots=True)
class PartyStanding:
    """A party at one instant, in cores, MiB and the further kinds that the cluster has.

    The quota of a kind that it does not limit is infinite.
    """

    demand: Amount = (0, 0)
    entitled: Amount = (0.0, 0.0)
    granted: Amount = (0, 0)
    quota: Amount = (0.0, 0.0)
    pending: int = 0
    nested: bool = False
    """Whether it is a department in another one, which counts it too."""

    @property
    def occupied(self) -> Amount:
        """What reports say beside what is granted: the same, whatever apps request."""
        return self.granted

    @property
    def share(self) -> float:
        """The granted share of the quota, the largest of all kinds (semantics R4); 0 without a quota."""
        return max((has / bought for has, bought in zip(self.granted, self.quota, strict=True) if bought), default=0.0)

    def plus(self, other: PartyStanding) -> PartyStanding:
        """Both together, without a quota."""
        return PartyStanding(
            demand=tuple(map(add, self.demand, other.demand)),
            entitled=tuple(map(add, self.entitled, other.entitled)),
            granted=tuple(map(add, self.granted, other.granted)),
            pending=self.pending + other.pending,
        )

    @property
    def short_cores(self) -> float:
        """Cores below the entitlement."""
        return max(0.0, self.entitled[0] - self.granted[0])


@dataclass(slots=True)
class Sums:
    """A party's figures over time, in core-ms.

    `short_since` (ms) is the time since which it has had a pending app and been below its entitlement.
    """

    demand: float = 0
    entitled: float = 0
    granted: float = 0
    share: float = 0
    short: float = 0
    beyond_quota: float = 0
    others: dict[str, list[float]] = field(default_factory=dict)
    """Further kind -> what `_COURSES` names, and the shortfall, each in amount-ms."""
    short_since: int | None = None
    longest_short_ms: int = 0
    jain: float = 0
    jain_ms: int = 0
    """Of a department: Jain's index among what is directly in it, in index-ms, and for how long there was one."""


@dataclass
class ClusterSeries:
    """The cluster's figures over time, in ms, core-ms or index-ms."""

    live: float = 0
    granted: float = 0
    jain: float = 0
    jain_ms: int = 0
    error: float = 0
    short: float = 0
    queue: float = 0
    others: dict[str, list[float]] = field(default_factory=dict)
    """Further kind -> live and granted, in amount-ms."""


class Fairness(UsageMeter):
    """The figures of one span. A `Meter`, fed with every event from the beginning of the log.

    `keep` records the course over time, `users` the share and shortfall of each user. By department, the parties are
    all departments and the companies in none; one in another counts in that, and not again in the cluster's figures.
    """

    def __init__(self, by: By = "company", *, keep: bool = True, users: bool = False) -> None:
        super().__init__()
        self.by, self.keep, self.users = by, keep, users
        self._sums: dict[Party, Sums] = {}
        self._cluster = ClusterSeries()
        self.course: list[tuple[int, dict[Party, PartyStanding]]] = []
        """Time (ms) -> the standings from then on."""
        self._standings: dict[Party, PartyStanding] | None = None
        self._counted_to = 0
        """The time (ms) up to which the sums count; a turn that decided nothing does not move the state's time."""
        self._kinds: tuple[str, ...] = ()
        """The further kinds that the cluster has, in the order of the standings."""
        self._counted: dict[str, _Count] = {}
        self._totals: dict[str, dict[Party, _Count]] = {}
        """Company -> its total, under the user "", and that of each user; parties without apps are left out."""
        self._of_users: list[tuple[Party, float, float]] = []
        self._ratios: dict[str, list[float]] = {}
        """Department, "" = the cluster -> what is granted / entitled of all that is directly in it."""
        self._known: dict[str, tuple[tuple[object, ...], list[tuple[Party, float, float]]]] = {}
        """Company -> the values that `_of_users` was computed from, and its part of it."""
        self._user_sums: dict[Party, list[float]] = {}

    def advance(self, state: ClusterState, to: int) -> None:
        """Add the time up to `to` (ms) that was not added yet, with the state as it is."""
        start, end = max(self.clip(state.at), self._counted_to), self.clip(to)
        if end <= start:
            return
        self._counted_to = end
        if self._standings is None:
            self._standings = self._standings_of(state)
        standings = self._standings
        if self.keep and not (self.course and self.course[-1][1] is standings):
            self.course.append((start, standings))
        self._add(state, standings, start, end - start)

    def observe(self, state: ClusterState, event: Event) -> AppUsage | None:
        """The account of the app of the event, folded just now; None if it has none."""
        account = super().observe(state, event)
        if account is not None:
            self._count(account)
        if self.by == "department" and isinstance(event, AppRegistered | DepartmentAdded | CompanyMoved):
            self._place(state)
        self._standings = None
        return account

    def _place(self, state: ClusterState) -> None:
        """Note where the companies of apps that have not ended are now."""
        places = {company: place_of(state, company) for company in state.companies}
        for app in state.apps.values():
            if app.ended is None:
                self.latest(app.id, state.at).departments = places[app.spec.company]

    def _count(self, account: AppUsage) -> None:
        """Update the totals of the app's user and company."""
        pending = int(account.ready and account.admitted_at is None and account.ended_at is None)
        now = _Count(account.demand, account.granted, pending)
        before = self._counted.pop(account.app, _NOTHING)
        if now != _NOTHING:
            self._counted[account.app] = now
        if now == before:
            return
        change = [*map(sub, now, before)]
        totals = self._totals.setdefault(account.company, {})
        for party in ((account.company, ""), (account.company, account.user)):
            total = _Count._make(map(add, totals.pop(party, _NOTHING), change))
            if total != _NOTHING:
                totals[party] = total

    def _standings_of(self, state: ClusterState) -> dict[Party, PartyStanding]:
        companies = [name for name in state.companies if self._totals.get(name)]
        total = state.fleet.total
        self._kinds = tuple(kind for kind, _ in total.others)
        capacity = tuple(float(amount) for amount in total)
        quotas = [self._bought(state.quota(name)) for name in companies]
        whole = [self._standing(self._totals[name][name, ""]) for name in companies]
        if state.departments:
            due = self._due_in_departments(state, capacity, companies, quotas, whole)
        else:
            due = entitlements(capacity, quotas, [standing.demand for standing in whole])
        standings: dict[Party, PartyStanding] = {}
        self._of_users.clear()
        if self.by == "department":
            for quota, entitled, standing in zip(quotas, due, whole, strict=True):
                standing.entitled, standing.quota = entitled, quota
            return self._of_departments(state, companies, whole)
        for name, quota, entitled, standing in zip(companies, quotas, due, whole, strict=True):
            if self.by == "user":
                standings |= self._within(name, entitled, quota)
                continue
            standing.entitled, standing.quota = entitled, quota
            standings[name, ""] = standing
            if self.users:
                facts = entitled, quota, *self._totals[name].items()
                known = self._known.get(name)
                if known is None or known[0] != facts:
                    within = self._within(name, entitled, quota).items()
                    known = facts, [(party, user.share, user.short_cores) for party, user in within]
                    self._known[name] = known
                self._of_users += known[1]
        return standings

    def _due_in_departments(
        self,
        state: ClusterState,
        capacity: Amount,
        companies: Sequence[str],
        quotas: Sequence[Amount],
        whole: Sequence[PartyStanding],
    ) -> list[Amount]:
        """What each company is entitled to, from the cluster down (semantics H12)."""
        none, within = (0.0,) * len(capacity), defaultdict[str, dict[Party, Sibling]](dict)
        for name, quota, standing in zip(companies, quotas, whole, strict=True):
            within[state.companies[name].department][name, ""] = Sibling(quota, standing.demand)
        for each in sorted(state.departments.values(), key=lambda each: -len(each.above)):
            cap = (inf,) * len(capacity) if each.cap is None else self._bought(each.cap)
            node = Sibling(self._weight(state, each), none, cap, self._amount(each.kept), within[each.name])
            within[each.spec.parent]["", each.name] = node
        found = entitlements_within(capacity, within[""])
        return [found[name, ""] for name in companies]

    def _weight(self, state: ClusterState, department: Department) -> Amount:
        """Its quota, of kinds that this does not name what its companies have by default (semantics H12)."""
        by_default = Quota(state.fleet.total, max(1, len(state.companies))).times(department.companies, 1)
        return self._bought(department.quota.with_all(by_default))

    def _of_departments(
        self, state: ClusterState, companies: Sequence[str], whole: Sequence[PartyStanding]
    ) -> dict[Party, PartyStanding]:
        """The standings of all departments with apps, the sums over their companies, and of companies in none."""
        standings: dict[Party, PartyStanding] = {}
        self._ratios = {}
        for name, standing in zip(companies, whole, strict=True):
            chain = state.companies[name].above
            if not chain:
                standings[name, ""] = standing
            self._note_ratio(chain[0].name if chain else "", standing)
            for each in chain:
                before = standings.get(("", each.name))
                standings["", each.name] = standing if before is None else before.plus(standing)
        for party in [each for each in standings if each[1]]:
            department = state.departments[party[1]]
            nested, quota = bool(department.above), self._weight(state, department)
            standings[party] = replace(standings[party], quota=quota, nested=nested)
            self._note_ratio(department.spec.parent, standings[party])
        return standings

    def _note_ratio(self, department: str, standing: PartyStanding) -> None:
        if standing.entitled[0] > 0:
            self._ratios.setdefault(department, []).append(standing.granted[0] / standing.entitled[0])

    def _within(self, company: str, entitled: Amount, quota: Amount) -> dict[Party, PartyStanding]:
        """The company's users, with its entitlement divided among them as equals."""
        totals = self._totals[company].items()
        users = {party: self._standing(total) for party, total in totals if party[1]}
        due = among_equals(entitled, quota, [user.demand for user in users.values()])
        for standing, part in zip(users.values(), due, strict=True):
            standing.entitled, standing.quota = part, quota
        return users

    def _bought(self, quota: Quota) -> Amount:
        """The quota of each kind that the cluster has; infinite where it does not limit one."""
        of, parts, named = quota.amount, quota.denominator, quota.named
        others = (of.amount(kind) / parts if named is None or kind in named else inf for kind in self._kinds)
        return of.cores / parts, of.memory_mb / parts, *others

    def _standing(self, total: _Count) -> PartyStanding:
        granted = self._amount(total.granted)
        return PartyStanding(self._amount(total.demand), (0.0,) * len(granted), granted, pending=total.pending)

    def _amount(self, held: Resources) -> Amount:
        return held.cores, held.memory_mb, *map(held.amount, self._kinds)

    def _add(self, state: ClusterState, standings: dict[Party, PartyStanding], start: int, passed: int) -> None:
        whole = self._cluster
        cores = state.fleet.total.cores
        whole.live += cores * passed
        for kind, amount in state.fleet.total.others:
            _accrue(whole.others.setdefault(kind, [0.0] * 2), (amount, 0.0), passed)
        whole.queue += sum(standing.pending for standing in standings.values() if not standing.nested) * passed
        ratios = []
        for party, now in standings.items():
            sums = self._sums.setdefault(party, Sums())
            self._add_party(sums, now, passed)
            if now.nested:
                continue
            self._add_to_whole(now, cores, passed)
            if now.entitled[0] > 0:
                ratios.append(now.granted[0] / now.entitled[0])
        for department in [each for each in self._ratios if each]:
            _accrue_jain(self._sums["", department], self._ratios[department], passed)
        _accrue_jain(whole, ratios, passed)
        for party, sums in self._sums.items():
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

    def _add_party(self, sums: Sums, now: PartyStanding, passed: int) -> None:
        sums.demand += now.demand[0] * passed
        sums.entitled += now.entitled[0] * passed
        sums.granted += now.granted[0] * passed
        sums.share += now.share * passed
        sums.short += now.short_cores * passed
        sums.beyond_quota += max(0.0, now.entitled[0] - max(now.quota[0], now.granted[0])) * passed
        for number, kind in enumerate(self._kinds, start=2):
            _accrue(sums.others.setdefault(kind, [0.0] * 5), _of_kind(now, number), passed)

    def _add_to_whole(self, now: PartyStanding, cores: int, passed: int) -> None:
        whole = self._cluster
        whole.granted += now.granted[0] * passed
        whole.short += now.short_cores * passed
        for number, kind in enumerate(self._kinds, start=2):
            _accrue(whole.others.setdefault(kind, [0.0] * 2), (0.0, now.granted[number]), passed)
        if cores:
            whole.error += max(0.0, now.entitled[0] / cores - now.granted[0] / cores) * passed

    def of_now(self, state: ClusterState) -> dict[str, PartyStanding]:
        """Company -> its standing in the state, which this meter need not have followed; for a meter by company.

        Its demand is what its apps hold and can still use (semantics A8) and what its pending apps request, without
        those that can never start; it occupies what it is granted. Only companies with a demand have a standing.
        """
        self._totals.clear()
        pending: dict[str, list[Resources]] = {}
        for app in state.apps.values():
            if app.ended is None and not app.admitted and app.ready and app.need.hostable:
                pending.setdefault(app.spec.company, []).append(app.requested)
        for name, held in granted_live(state).items():
            requests = pending.get(name, [])
            total = _Count(_sum(requests) + state.claims.of(name).claimed, held, len(requests))
            if total != _NOTHING:
                self._totals[name] = {(name, ""): total}
        return {company: standing for (company, _), standing in self._standings_of(state).items()}

    def report(self, state: ClusterState) -> dict[str, Any]:
        """The figures as JSON values: of the cluster, by party in `rows`, over time in `series`. Means are by time."""
        start = self.first_at
        end = self._end(state)
        span = end - start
        accounts = [
            account
            for account in self.accrued(end)
            if account.submitted_at <= end and (account.ended_at is None or account.ended_at >= start)
        ]
        own = _own_cluster(accounts, self._cluster, span, len(state.companies))
        parties: dict[Party, list[AppUsage]] = {party: [] for party in self._sums}
        for account in accounts:
            for party in self._parties_of(account):
                parties.setdefault(party, []).append(account)
        return {
            "by": self.by,
            "fromAt": start,
            "toAt": end,
            "cluster": {**self._whole(span), **_of_apps(accounts, own, start, end)},
            "rows": [
                {
                    "company": party[0],
                    **({} if self.by == "company" else {self.by: party[1]}),
                    **_of_party(self._sums.get(party, Sums()), span, nested=self.by == "department"),
                    **_of_apps(apps, own, start, end),
                }
                for party, apps in sorted(parties.items())
            ],
            "series": self._series(start, end),
        }

    def _end(self, state: ClusterState) -> int:
        """The end (ms) of what is measured: the end of the span, else of the log."""
        return self.clip(state.at) if self.last_at is None else self.last_at

    def _parties_of(self, account: AppUsage) -> list[Party]:
        """The parties that the app counts in; of departments, those in which its company was last while it went on."""
        if self.by == "department" and account.departments:
            return [("", each) for each in account.departments]
        return [(account.company, account.user if self.by == "user" else "")]

    def of_users(self, state: ClusterState) -> list[dict[str, Any]]:
        """Shares, shortfall, waits, slowdowns and core-hours of each user, as JSON values."""
        start, end = self.first_at, self._end(state)
        accounts = list(self.accrued(end))
        own = _own_cluster(accounts, self._cluster, end - start, len(state.companies))
        users: dict[Party, list[AppUsage]] = {}
        for account in accounts:
            users.setdefault((account.company, account.user), []).append(account)
        none = [0.0, 0.0]
        return [
            {
                "company": company,
                "user": user,
                "share": _mean(self._user_sums.get((company, user), none)[0], end - start, 6),
                "shortfallCoreS": round(self._user_sums.get((company, user), none)[1] / 1000, 3),
                "grantedCoreH": round(sum(account.granted_ms.cores for account in apps) / 3_600_000, 3),
                **_of_apps(apps, own, start, end),
            }
            for (company, user), apps in sorted(users.items())
        ]

    def waits(self, until: int) -> list[dict[str, Any]]:
        """The waits of the apps that got their first executor in the span up to `until` (ms)."""
        return [
            {
                "at": begun_at,
                "waitMs": begun_at - account.ready_at,
                "app": account.app,
                "company": account.company,
                "user": account.user,
            }
            for account in self.all
            if (begun_at := account.begun_at) is not None and self.first_at <= begun_at <= until
        ]

    def _whole(self, span: int) -> dict[str, Any]:
        whole = self._cluster
        return {
            "cores": _mean(whole.live, span),
            "utilisation": round(whole.granted / whole.live, 6) if whole.live else None,
            "jain": round(whole.jain / whole.jain_ms, 6) if whole.jain_ms else None,
            "fairnessError": _mean(whole.error, span, 6),
            "queueLength": _mean(whole.queue, span),
            "shortfallCoreS": round(whole.short / 1000, 3),
            **_resources(
                {
                    kind: {"offered": _mean(live, span), "utilisation": round(granted / live, 6) if live else None}
                    for kind, (live, granted) in sorted(whole.others.items())
                }
            ),
        }

    def _series(self, start: int, end: int) -> list[dict[str, Any]]:
        """The means of at most `POINTS` equal steps."""
        if not self.course or end <= start:
            return []
        step = max(1, -(-(end - start) // POINTS))
        points: list[dict[str, Any]] = [{"at": at, "queueLength": 0.0, "shares": {}} for at in range(start, end, step)]
        ends = [at for at, _ in self.course[1:]] + [end]
        for (at, standings), until in zip(self.course, ends, strict=True):
            pending = sum(standing.pending for standing in standings.values() if not standing.nested)
            for number in range((at - start) // step, -(-(until - start) // step)):
                point = points[number]
                begins, over = point["at"], min(point["at"] + step, end)
                part = (min(over, until) - max(begins, at)) / (over - begins)
                point["queueLength"] += pending * part
                for party, now in standings.items():
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


def shortfall(standings: Mapping[str, PartyStanding]) -> dict[str, float]:
    """Company -> the cores that it is entitled to within its quota, demands, and is not granted."""
    return {
        company: max(0.0, min(now.entitled[0], now.quota[0]) - now.granted[0]) for company, now in standings.items()
    }


def _sum(amounts: Sequence[Resources]) -> Resources:
    """Their sum; of cores and memory in whole numbers first, since most have nothing else."""
    plain = Resources(sum(each.cores for each in amounts), sum(each.memory_mb for each in amounts))
    others: dict[str, int] = {}
    for each in amounts:
        for kind, amount in each.others:
            others[kind] = others.get(kind, 0) + amount
    return plain + Resources(others=amounts_of(others)) if others else plain


_COURSES = ("demand", "entitled", "occupied", "granted")


def _of_kind(now: PartyStanding, number: int) -> list[float]:
    """What the party has of the kind of that number: `_COURSES`, and the shortfall."""
    demand, entitled, occupied, granted = (getattr(now, name)[number] for name in _COURSES)
    return [demand, entitled, occupied, granted, max(0.0, entitled - occupied)]


def _accrue_jain(sums: Sums | ClusterSeries, ratios: Sequence[float], passed: int) -> None:
    if len(ratios) > 1:
        sums.jain += (jain(ratios) or 0.0) * passed
        sums.jain_ms += passed


def _accrue(sums: list[float], amounts: Iterable[float], passed: int) -> None:
    for number, amount in enumerate(amounts):
        sums[number] += amount * passed


def _resources(by_kind: Mapping[str, Any]) -> dict[str, Any]:
    """The figures by further kind; nothing if there are none."""
    return {"resources": dict(by_kind)} if by_kind else {}


def _mean(total: float, span: int, digits: int = 3) -> float | None:
    return round(total / span, digits) if span else None


def _of_party(sums: Sums, span: int, *, nested: bool = False) -> dict[str, Any]:
    return {
        **({"jain": round(sums.jain / sums.jain_ms, 6) if sums.jain_ms else None} if nested else {}),
        "demandCores": _mean(sums.demand, span),
        "entitledCores": _mean(sums.entitled, span),
        "occupiedCores": _mean(sums.granted, span),
        "grantedCores": _mean(sums.granted, span),
        "share": _mean(sums.share, span, 6),
        "shortfallCoreS": round(sums.short / 1000, 3),
        "beyondQuotaCoreS": round(sums.beyond_quota / 1000, 3),
        "grantShortfallCoreS": round(sums.short / 1000, 3),
        "longestOutOfTurnMs": sums.longest_short_ms,
        **_resources(
            {
                kind: {
                    **{name: _mean(amount, span) for name, amount in zip(_COURSES, amounts, strict=False)},
                    "shortfallS": round(amounts[-1] / 1000, 3),
                }
                for kind, amounts in sorted(sums.others.items())
            }
        ),
    }


def _of_apps(accounts: Sequence[AppUsage], own: dict[str, int], start: int, end: int) -> dict[str, Any]:
    """The waits of the apps that began in the span, slowdown and finish-time fairness of those that ended in it.

    A wait lasts until the first grant: who is admitted and has nothing yet waits still.
    """
    waits = sorted(
        begun_at - account.ready_at
        for account in accounts
        if (begun_at := account.begun_at) is not None and start <= begun_at <= end
    )
    ended = [
        (account, account.started_at, account.ended_at)
        for account in accounts
        if account.started_at is not None and account.ended_at is not None and account.ended_at <= end
    ]
    slowdowns = sorted(
        max(1.0, (ended_at - account.ready_at) / max(ended_at - started_at, SHORTEST_RUN_MS))
        for account, started_at, ended_at in ended
    )
    finish_time = sorted(
        (ended_at - account.ready_at) / own[account.app] for account, _, ended_at in ended if own.get(account.app)
    )
    waiting = [end - a.ready_at for a in accounts if a.ready and a.begun_at is None and a.ended_at is None]
    admitted = [a for a in accounts if a.admitted_at is not None and start <= a.admitted_at <= end]
    return {
        "apps": len(accounts),
        "admitted": len(admitted),
        "ended": len(ended),
        "stillWaiting": len(waiting),
        "executorsLost": sum(account.lost for account in accounts),
        "lostCoreMs": sum(account.lost_core_ms for account in accounts),
        "waitP50Ms": _percentile(waits, 50),
        "waitP90Ms": _percentile(waits, 90),
        "waitP99Ms": _percentile(waits, 99),
        "waitLongestMs": max([*waits, *waiting], default=None),
        "boundedSlowdown": _spread(slowdowns),
        "finishTimeFairness": _spread(finish_time),
    }


def _percentile(ordered: Sequence[int], part: int) -> int | None:
    """The nearest rank."""
    return ordered[-(-len(ordered) * part // 100) - 1] if ordered else None


def _spread(ordered: Sequence[float]) -> dict[str, float] | None:
    if not ordered:
        return None
    mean = sum(ordered) / len(ordered)
    return {"mean": round(mean, 3), "p50": round(ordered[-(-len(ordered) // 2) - 1], 3), "most": round(ordered[-1], 3)}


def _own_cluster(accounts: Sequence[AppUsage], whole: ClusterSeries, span: int, companies: int) -> dict[str, int]:
    """App -> its turnaround time (ms) on a dedicated 1/N of the cluster (T_ID in Themis).

    The company's apps start there in the order in which they became ready. Each takes the cores that it asked for, at
    most all of them, until it has had the core-ms that it was granted here.
    """
    cores = max(1, round(whole.live / span / companies)) if span and companies else 1
    times: dict[str, int] = {}
    running: dict[str, list[tuple[int, int]]] = {}
    free: dict[str, int] = {}
    now: dict[str, int] = {}
    for account in sorted(accounts, key=lambda account: account.ready_at):
        if account.ended_at is None or not account.granted_ms.cores:
            continue
        name = account.company
        queue = running.setdefault(name, [])
        wide = max(1, min(cores, account.asked_cores))
        now[name] = max(now.get(name, 0), account.ready_at)
        room = free.get(name, cores)
        while queue and (queue[0][0] <= now[name] or room < wide):
            ends, freed = heappop(queue)
            now[name] = max(now[name], ends)
            room += freed
        ends = now[name] + -(-account.granted_ms.cores // wide)
        heappush(queue, (ends, wide))
        free[name] = room - wide
        times[account.app] = max(1, ends - account.ready_at)
    return times
