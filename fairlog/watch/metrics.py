"""The metrics of a cluster for Prometheus: what its state, its surroundings and the log's turns say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from fairlog.watch.conditions import CONDITIONS, found, too_large
from fairlog.watch.surroundings import backed_up
from recovery.failover.exporter import histogram
from scheduler.model.quota import Quota
from scheduler.model.resources import Resources
from scheduler.model.states import AppState, WorkerStatus
from scheduler.rules.view.standings import NOWHERE, Standing, granted_live, standings
from scheduler.store.estimates import ErrorsOfEstimates, errors
from witness.fairness import Fairness, shortfall
from witness.pending_reasons import waits_for

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from redis import Redis

    from fairlog.watch.conditions import Around
    from fairlog.watch.surroundings import BackedUp
    from fairlog.watch.tally import Tally
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.keys import Keys

FRESH_S = 1.0
"""A scrape within this time of another one gets the same figures."""
AT_ONCE = 500
"""So many waiting apps are asked at a time why they wait, so that the log is folded in between."""
MOST_ASKED = 5_000
"""The most apps that are asked why they wait at one scrape; further ones have the reason `not-asked`."""
MIB = 1 << 20
T = TypeVar("T")
Read = Callable[[Callable[["ClusterState"], T]], T]
"""What a function makes of the present state."""


class StateFigures(NamedTuple):
    """The figures of the state, without what would change with it."""

    head: int
    at: int
    conditions: Counter[str]
    apps: Counter[tuple[str, str]]
    oldest: Mapping[str, int]
    """Company -> since when (ms) its oldest pending app that is ready waits."""
    amounts: Mapping[str, Mapping[str, Resources]]
    """`granted`, `claimed`, `assured` -> company -> amounts."""
    departments: Mapping[str, Standing]
    quotas: Mapping[str, Quota]
    offered: Resources
    held: Resources
    entitled: Mapping[str, float]
    short: Mapping[str, float]
    never: int
    workers: Counter[str]
    executors: Counter[str]
    waiting: Sequence[str]
    """The apps that wait for admission or executors."""
    busy: Sequence[str]
    """The apps that may have tasks at work."""


@dataclass
class Tasks:
    """Counts tasks as they finish, at every look, from what the store knows of the apps that run or have ended."""

    store: Redis
    keys: Keys
    done: Counter[str] = field(default_factory=Counter)
    """Outcome -> tasks."""
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """App -> the tasks of it that were counted."""
    _looked: bool = False

    def look(self, busy: Sequence[str], waiting: Sequence[str], ended: Sequence[str]) -> None:
        """Count what has finished since the last look; `ended` are the apps that ended since.

        The first look only takes note of what the running apps have finished before. Raises: redis-py's errors.
        """
        apps = list(dict.fromkeys((*self._seen, *busy, *ended)))
        with self.store.pipeline(transaction=False) as asked:
            for app in apps:
                asked.hmget(self.keys.tasks(app), "succeeded", "failed")
            answers: list[Any] = asked.execute() if apps else []
        now = {app: (int(done or 0), int(failed or 0)) for app, (done, failed) in zip(apps, answers, strict=True)}
        for app, (done, failed) in now.items():
            before = self._seen.get(app, (0, 0) if self._looked or app in ended else now[app])
            self.done["succeeded"] += max(0, done - before[0])
            self.done["failed"] += max(0, failed - before[1])
        goes_on = {*busy, *waiting}
        self._seen = {app: counted for app, counted in now.items() if app in goes_on}
        self._looked = True


class Metrics:
    """The metrics of one cluster, as an API server serves them: of what `read` and `around` make of its state.

    May be called from several threads; figures are worked out once for scrapes within `FRESH_S`.
    """

    def __init__(
        self, store: Redis, keys: Keys, tally: Tally, *, read: Read[Any], around: Callable[[], Around]
    ) -> None:
        self._store, self._keys, self._tally, self._read, self._around = store, keys, tally, read, around
        self._tasks = Tasks(store, keys)
        self._lock = Lock()
        self._figures: list[Metric] = []
        self._made_s = 0.0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics and their media type, in a format that `accept` (a header) names. Raises: redis-py's errors."""
        encoder, media = choose_encoder(accept)
        with self._lock:
            if time.monotonic() - self._made_s > FRESH_S:
                self._figures = list(self._work_out())
                self._made_s = time.monotonic()
            return encoder(self._registry), media

    def collect(self) -> Iterable[Metric]:
        """The figures, for prometheus_client."""
        return self._figures

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names depend on the figures."""
        return ()

    def _work_out(self) -> Iterator[Metric]:
        around = self._around()
        asked_ms = round(time.time() * 1000)
        offset_s = (around.now - asked_ms) / 1000
        standing: StateFigures = self._read(lambda state: standing_of(state, around))
        reasons = self._reasons(standing.waiting)
        ended = [self._tally.over.popleft() for _ in range(len(self._tally.over))]
        self._tasks.look(standing.busy, standing.waiting, ended)
        yield from of_state(standing, reasons, around.now)
        yield from of_surroundings(around, offset_s, backed_up(self._store, self._keys), standing.head)
        yield from of_tally(self._tally, self._tasks.done)
        yield from of_estimates(errors(self._store, self._keys))

    def _reasons(self, waiting: Sequence[str]) -> Counter[tuple[str, str]]:
        """Company and reason -> how many apps wait for it."""
        reasons: Counter[tuple[str, str]] = Counter()
        asked = waiting[:MOST_ASKED]
        for start in range(0, len(asked), AT_ONCE):
            part = asked[start : start + AT_ONCE]
            reasons += self._read(partial(_asked, apps=part))
        rest = waiting[MOST_ASKED:]
        if rest:
            reasons += self._read(lambda state: _not_asked(state, rest))
        return reasons


def standing_of(state: ClusterState, around: Around) -> StateFigures:
    """The figures of the state."""
    apps: Counter[tuple[str, str]] = Counter()
    oldest: dict[str, int] = {}
    waiting: list[str] = []
    busy: list[str] = []
    for name, app in state.apps.items():
        if app.ended is None:
            company = app.spec.company
            apps[company, app.state] += 1
            if _waits(app):
                waiting.append(name)
                if not app.admitted and app.ready:
                    since = app.readied_at or app.submitted_at
                    oldest[company] = min(since, oldest.get(company, since))
            else:
                busy.append(name)
    measured = Fairness().of_now(state)
    workers: Counter[str] = Counter(worker.status for worker in state.workers.values())
    workers["suspect"] = len(state.indexes.suspects)
    workers["lost"] = len(state.lost)
    return StateFigures(
        head=state.head,
        at=state.at,
        conditions=Counter(each.condition for each in found(state, around)),
        apps=apps,
        oldest=oldest,
        amounts=_amounts(state),
        departments=_departments(state),
        quotas={name: state.quota(name) for name in state.companies},
        offered=state.fleet.total,
        held=state.balance.granted,
        entitled={name: min(standing.entitled[0], standing.quota[0]) for name, standing in measured.items()},
        short=shortfall(measured),
        never=too_large(state),
        workers=workers,
        executors=Counter(held.status for held in state.executors.values()),
        waiting=waiting,
        busy=busy,
    )


def _amounts(state: ClusterState) -> dict[str, dict[str, Resources]]:
    """`granted`, `claimed`, `assured` -> company -> amounts: what it holds, wants and is entitled to (semantics H2)."""
    stand = standings(state)
    each = {name: stand.get((name, ""), NOWHERE) for name in state.companies}
    return {
        "granted": granted_live(state),
        "claimed": {name: standing.demand for name, standing in each.items()},
        "assured": {name: standing.entitled for name, standing in each.items()},
    }


def _departments(state: ClusterState) -> dict[str, Standing]:
    """What the companies in each department want, are entitled to and hold (semantics H12)."""
    stand = standings(state) if state.departments else {}
    return {name: stand.get(("", name), NOWHERE) for name in state.departments}


def _waits(app: App) -> bool:
    return not app.executors and app.driver is None


def _asked(state: ClusterState, apps: Sequence[str]) -> Counter[tuple[str, str]]:
    known = [state.apps[app] for app in apps if app in state.apps]
    waits = ((app.spec.company, waits_for(state, app)) for app in known)
    return Counter((company, wait.cause) for company, wait in waits if wait is not None)


def _not_asked(state: ClusterState, apps: Sequence[str]) -> Counter[tuple[str, str]]:
    return Counter((state.apps[app].spec.company, "not-asked") for app in apps if app in state.apps)


def of_state(now: StateFigures, reasons: Mapping[tuple[str, str], int], now_ms: int) -> Iterator[Metric]:
    """The metrics of the state at the store's time `now_ms`."""
    yield _gauge("log_position", "Position of the last event in the log.", now.head)
    age_s = max(0, now_ms - now.at) / 1000
    yield _gauge("log_last_commit_age_seconds", "Seconds since the last event was committed.", age_s)
    live = [(company, state) for company in now.quotas for state in get_args(AppState)[:3]]
    apps = {**dict.fromkeys(live, 0), **now.apps}
    yield _gauges("apps", "Apps that have not ended, by company and state.", ("company", "state"), apps)
    text = "Apps that wait for admission or for their first executor, by company and cause (docs/semantics.md)."
    yield _gauges("apps_waiting", text, ("company", "reason"), reasons)
    waits = {(name,): 0.0 for name in now.quotas}
    waits |= {(name,): max(0, now_ms - since) / 1000 for name, since in now.oldest.items()}
    yield _gauges("oldest_wait_seconds", "How long the oldest pending app of a company waits.", ("company",), waits)
    for name, text in _AMOUNTS.items():
        amounts = {
            (company, *unit): amount for company, held in now.amounts[name].items() for unit, amount in _kinds(held)
        }
        yield _gauges(f"company_{name}", text, ("company", "kind", "unit"), amounts)
    for name, text in _OF_DEPARTMENTS.items():
        amounts = {
            (department, *unit): amount
            for department, standing in now.departments.items()
            for unit, amount in _kinds(getattr(standing, name))
        }
        yield _gauges(f"department_{name}", text, ("department", "kind", "unit"), amounts)
    quotas = {
        (company, kind, unit): amount / quota.denominator
        for company, quota in now.quotas.items()
        for (kind, unit), amount in _kinds(quota.amount)
        if unit != "number" or quota.named is None or kind in quota.named
    }
    yield _gauges("company_quota", "What a company may claim.", ("company", "kind", "unit"), quotas)
    for name, text, values in (
        ("company_entitled_cores", "Cores that a company is entitled to within its quota.", now.entitled),
        ("company_shortfall_cores", "Cores that it is entitled to, demands and is not granted.", now.short),
    ):
        all_of_them = {(company,): values.get(company, 0.0) for company in now.quotas}
        yield _gauges(name, text, ("company",), all_of_them)
    for name, text, held in (
        ("cluster_offered", "What live workers offer.", now.offered),
        ("cluster_granted", "What is granted of it.", now.held),
    ):
        yield _gauges(name, text, ("kind", "unit"), dict(_kinds(held)))
    yield _gauge("apps_never_starting", "Apps that no live worker is large enough for.", now.never)
    workers = {(status,): now.workers.get(status, 0) for status in (*get_args(WorkerStatus), "suspect", "lost")}
    yield _gauges("workers", "Workers by status; suspect ones also count by theirs.", ("status",), workers)
    executors = {(status,): now.executors.get(status, 0) for status in ("starting", "running", "stopping")}
    yield _gauges("executors", "Executors by status.", ("status",), executors)
    conditions = {(each.name, each.severity): now.conditions[each.name] for each in CONDITIONS}
    text = "How many times a condition holds that needs attention; 0 = it does not."
    yield _gauges("condition", text, ("condition", "severity"), conditions)


_AMOUNTS = {
    "granted": "What the apps of a company are granted on live workers.",
    "claimed": "What they are granted and can still use; by entitlement, their demand.",
    "assured": "What a company is assured while the cluster is short; by entitlement, what it is entitled to.",
}


_OF_DEPARTMENTS = {
    "held": "What the companies in a department hold, however deep, without what leaves.",
    "entitled": "What they are entitled to.",
    "below": "What their apps hold less than their entitlements.",
}


def _kinds(held: Resources) -> Iterator[tuple[tuple[str, str], int]]:
    """Kind and unit -> the amount, memory in bytes."""
    yield ("cores", "cores"), held.cores
    yield ("memory", "bytes"), held.memory_mb * MIB
    yield from (((kind, "number"), amount) for kind, amount in held.others)


def of_surroundings(around: Around, offset_s: float, backup: BackedUp | None, head: int) -> Iterator[Metric]:
    """The metrics of the masters, the store, the audit and the backups."""
    masters = {("active",): int(around.serving is not None), ("standby",): len(around.standing_by)}
    yield _gauges("masters", "Masters by role.", ("role",), masters)
    info = GaugeMetricFamily("fairlog_master_info", "A master.", labels=("master", "host", "role"))
    for member in (around.serving, *around.standing_by):
        if member is not None:
            info.add_metric((member.id, member.host, "active" if member == around.serving else "standby"), 1)
    yield info
    text = "How far the store's clock is ahead of that of this API server."
    yield _gauge("store_clock_offset_seconds", text, offset_s)
    store = around.store
    if store is not None:
        for name, text, value in (
            ("store_memory_bytes", "Memory that the store uses.", store.memory_used),
            (
                "store_memory_limit_bytes",
                "Memory that it may use: its maxmemory, else the machine's.",
                store.memory_limit,
            ),
            ("store_log_bytes", "Memory that the log takes.", store.log_bytes),
            ("store_file_bytes", "Size of the store's file.", store.file_bytes),
            ("store_write_failing", "Whether its last write to disk failed.", int(bool(store.write_error))),
        ):
            yield _gauge(name, text, value)
        if store.disk_size:
            yield _gauge("store_disk_used_bytes", "Used space of the store's disk.", store.disk_used)
            yield _gauge("store_disk_size_bytes", "Size of the store's disk.", store.disk_size)
    audited = around.audited
    if audited is not None:
        text = "Last position that the continuous audit has checked."
        yield _gauge("audit_position", text, audited.seq)
        text = "Events in the log that it has not checked."
        yield _gauge("audit_behind_events", text, max(0, head - audited.seq))
        text = "Deviations from the rules that it has found; 0 = the log follows its rules."
        yield _gauge("audit_deviations", text, audited.deviations)
        text = "When it said so, in seconds since the epoch."
        yield _gauge("audit_timestamp_seconds", text, audited.at / 1000)
    if backup is not None:
        yield _gauge("backup_position", "Last position that the last backup holds.", backup.seq)
        text = "When the last backup was made, in seconds since the epoch."
        yield _gauge("backup_timestamp_seconds", text, backup.at / 1000)
    text = "This version of fairlog."
    yield _gauges("build_info", text, ("version",), {(version("fairlog"),): 1})


def of_tally(tally: Tally, done: Mapping[str, int]) -> Iterator[Metric]:
    """The counters since this process began."""
    counters: Sequence[tuple[str, str, Sequence[str], Mapping[Any, int]]] = (
        ("events", "Events of the log by type.", ("type",), {(name,): n for name, n in tally.events.copy().items()}),
        (
            "executors_granted",
            "Executors that were granted.",
            ("company",),
            {(name,): n for name, n in tally.granted.copy().items()},
        ),
        ("executors_ended", "Executors that ended, by reason.", ("company", "reason"), tally.ended.copy()),
        (
            "tasks_finished",
            "Tasks that succeeded or failed for good.",
            ("outcome",),
            {(name,): done.get(name, 0) for name in ("succeeded", "failed")},
        ),
    )
    for name, text, labels, values in counters:
        family = CounterMetricFamily(f"fairlog_{name}", text, labels=labels)
        for key, value in sorted(values.items()):
            family.add_metric(key, value)
        yield family
    elections = CounterMetricFamily("fairlog_elections", "Masters that were elected.")
    elections.add_metric((), tally.events.get("MasterElected", 0))
    yield elections
    yield histogram("fairlog_turn_events", "Events of a turn.", tally.turns())


def of_estimates(known: ErrorsOfEstimates | None) -> Iterator[Metric]:
    """How far estimates of starts were from what came."""
    counted = ErrorsOfEstimates(0, 0, 0, 0) if known is None else known
    yield _gauge("estimates_compared", "Estimates of starts that were compared with what came.", counted.number)
    yield _gauge("estimates_within", "Of these, how many starts were in the span that was told.", counted.within)
    values = {} if known is None else {("0.5",): known.median_ms / 1000, ("0.9",): known.p90_ms / 1000}
    yield _gauges("estimate_error_seconds", "How far they were from what came.", ("quantile",), values)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairlog_{name}", text, value=value)


def _gauges(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"fairlog_{name}", text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
