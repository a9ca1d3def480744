"""The conditions that need attention: one table for `status`, the API, alerts and metrics.

A condition is found in a state and its surroundings (`Around`), and says in one sentence what is wrong and what to do.
Finding them reads no clock and no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fairlog.watch.elections import Elected
from recovery.archive.editions import UPGRADE, is_earlier
from recovery.replay.bounds import moment
from scheduler.model.resources import size_text
from scheduler.model.text import counted, few
from scheduler.rules.command.windows import in_the_way
from scheduler.rules.index.closings import ends_within
from scheduler.service.known import WAYS, missed
from scheduler.service.lossy import NO_SPACE
from scheduler.store.connection import NO_MAJORITY
from scheduler.store.full_disks import KEPT_MS

if TYPE_CHECKING:
    from recovery.failover.lease import Member
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.grants import Allocation
    from scheduler.rules.entities.workers import LostWorker
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.known import End
    from scheduler.store.full_disks import Cut
    from scheduler.store.unused import Idle

Severity = Literal["warning", "critical"]
"""`critical`: the cluster does not work, or cannot be trusted; `warning`: it works and needs somebody."""
WELL = "all is well"
CLOCK_MS = 1_000
"""How far the store's clock may be behind the log."""
AUDITOR_SILENT_MS = 60_000
"""An auditor that has said nothing for so long has stopped."""
FAILOVER_SHOWN_MS = 600_000
"""How long a failover is told of."""
UNSERVED_MS = 10_000
"""For how long no API server may have answered."""
UNSERVED_SHOWN_MS = 86_400_000
"""How long it is told that no API server answers, if no worker works through one."""
REWOUND_SHOWN_MS = 86_400_000
"""How long it is told that the log lost entries which had been audited."""


WINDOW_MS = 3_600_000
"""How long before its beginning it is told what is in the way of a window."""
_NAMED = 3
"""The most apps that a sentence names."""


class Thresholds(NamedTuple):
    """From where on something needs attention: parts of the store's memory and disk, and seconds of being short."""

    memory: float = 0.8
    disk: float = 0.9
    short_s: int = 900


BOUNDS = Thresholds()


class Failover(NamedTuple):
    """A master that took over from another one, and when that was seen (ms)."""

    master: str
    before: str
    at: int


class StoreFacts(NamedTuple):
    """Memory and disk of the store in bytes, 0 where unknown; `write_error` is its own word on its last write, or "".

    `weakness` says why it may lose what it acknowledges, and what to do; "" if it does not, or nobody may ask.
    The disk is known if the store runs on this machine.
    """

    memory_used: int = 0
    memory_limit: int = 0
    log_bytes: int = 0
    file_bytes: int = 0
    disk_used: int = 0
    disk_size: int = 0
    write_error: str = ""
    weakness: str = ""

    @property
    def disk_is_full(self) -> bool:
        """Whether the disk is known to take nothing more."""
        return self.disk_size > 0 and self.disk_size - self.disk_used < NO_SPACE

    @property
    def memory_is_full(self) -> bool:
        """Whether the store refuses writes because of its memory."""
        return 0 < self.memory_limit <= self.memory_used


class AuditedTo(NamedTuple):
    """What the auditor wrote last, at the time `at` (ms): the position, and its findings; `trouble`: why it waits.

    `rewound_from` is the last position that it had audited and the log then had no more, `rewound_digest` the digest
    there, seen at `rewound_at` (ms), and `rewound_lost` the commands that were lost with it, as far as it remembers.
    """

    seq: int
    digest: str
    at: int
    events: int = 0
    decisions: int = 0
    deviations: int = 0
    first: int = 0
    """The position of the first deviation, 0 = none."""
    verdict: str = ""
    trouble: str = ""
    rewound_from: int = 0
    rewound_at: int = 0
    rewound_lost: str = ""
    rewound_digest: str = ""
    host: str = ""
    pid: int = 0


class Unserved(NamedTuple):
    """No API server answers: when one did last (ms), and how many workers work through the API."""

    since: int
    workers: int


class Around(NamedTuple):
    """What surrounds a state: its masters, store and auditor at the time `now` (ms, the store's clock).

    - `serving`: the active master, None if none answers; `standbys` is how many there should be at least.
    - `store`: None if it does not answer, and `error` is why.
    - `unreadable`: why the log cannot be read, "" if it can.
    - `short_since`: company -> since when (ms) it has been short without a break, as seen by who looks repeatedly.
    - `log_at`: the time of the log's last entry (ms), read before `now`; the state may be of a later moment.
    - `unreplicated`: how many replicas of the store have what the masters wait for, and how many must; None = nobody
      waits.
    - `others`: the data folders of further `up`s on this machine, and since when (ms) each runs.
    - `known_at`: when the log was last known to grow (ms), as far as a file tells; of use while the store is away.
    - `last_sign`: when the master before the present one gave its last sign (ms), 0 if that is not known.
    - `unserved`: that no API server answers; None if one does, or none is missed.
    - `shorter`: the position at which the log ends, and an end that was known and that it does not hold.
    - `damaged`: the position at which masters that ran found the log altered or without an entry, 0 if none has.
    - `cuts`: worker -> what of the output of tasks its disk has not taken.
    - `unused`: executor -> since when it uses nothing of what it holds.
    """

    now: int
    serving: Member | None
    standing_by: Sequence[Member] = ()
    standbys: int = 1
    store: StoreFacts | None = None
    error: str = ""
    unreadable: str = ""
    audited: AuditedTo | None = None
    short_since: Mapping[str, int] = {}
    failover: Failover | None = None
    others: Mapping[str, int] = {}
    bounds: Thresholds = BOUNDS
    cuts: Mapping[str, Cut] = {}
    unused: Mapping[str, Idle] = {}
    log_at: int | None = None
    unreplicated: tuple[int, int] | None = None
    unserved: Unserved | None = None
    shorter: tuple[int, End] | None = None
    damaged: int = 0
    last_sign: int = 0
    known_at: int = 0


def elected(state: ClusterState, around: Around | None = None) -> Elected | None:
    """The last election, as the log has it; without one None."""
    known = state.election
    if known is None:
        return None
    signs = known.silent_since, 0 if around is None else around.last_sign
    unserved_ms = max(0, known.at - max(signs)) if known.before else 0
    return Elected(known.master, known.before, known.at, unserved_ms)


class Found(NamedTuple):
    """A condition that holds, about a worker, a company, … or "" for the cluster, in one sentence, and what to do.

    `since`: since when it holds (ms), 0 = nobody knows; `cost`: what it has cost, and costs while it holds.
    """

    condition: str
    severity: Severity
    about: str
    sentence: str
    do: str
    since: int = 0
    cost: str = ""

    @property
    def key(self) -> str:
        """What tells it from the others that hold."""
        return f"{self.condition}/{self.about}" if self.about else self.condition


class Condition(NamedTuple):
    """A row of the table: how it is found, as about, sentence and since when, and what to do; `{}` in it is the about.

    `cost` says what it has cost, and costs while it holds. `many` counts them in the sentence of health, "" if there is
    one at most.
    """

    name: str
    severity: Severity
    find: Callable[[ClusterState, Around], Iterator[tuple[str, str, int]]]
    do: str | Callable[[Around], str]
    cost: str | Callable[[ClusterState, Around, str], str]
    many: str = ""

    def advice(self, around: Around) -> str:
        """What to do, which may depend on what was found."""
        return self.do if isinstance(self.do, str) else self.do(around)

    def price(self, state: ClusterState, around: Around, about: str) -> str:
        """What it costs, which may depend on what was found."""
        return self.cost if isinstance(self.cost, str) else self.cost(state, around, about)


def found(state: ClusterState, around: Around) -> list[Found]:
    """The conditions that hold, the critical ones first. An empty state is that of a log that cannot be read."""
    holding = [
        Found(
            *(condition.name, condition.severity, about, sentence, condition.advice(around).replace("{}", about)),
            *(since, condition.price(state, around, about)),
        )
        for condition in CONDITIONS
        for about, sentence, since in condition.find(state, around)
    ]
    return sorted(holding, key=lambda each: each.severity != "critical")


def health(holding: Sequence[Found]) -> str:
    """One sentence that says what is wrong: "2 workers are lost · no master stands by"."""
    parts = []
    for name in dict.fromkeys(each.condition for each in holding):
        same = [each for each in holding if each.condition == name]
        many = next((each.many for each in CONDITIONS if each.name == name), "")
        parts.append(f"{len(same)} {many}" if len(same) > 1 and many else same[0].sentence)
    return " · ".join(parts) or WELL


def worst(holding: Sequence[Found]) -> Severity | Literal["ok"]:
    """The severity of the whole."""
    return "critical" if any(each.severity == "critical" for each in holding) else "warning" if holding else "ok"


def as_json(holding: Sequence[Found]) -> dict[str, Any]:
    """The health as JSON values: its severity, its sentence and each condition."""
    return {
        "severity": worst(holding),
        "sentence": health(holding),
        "conditions": [each._asdict() for each in holding],
    }


def ago(ms: int) -> str:
    """How long ago, in the largest unit: "4 min ago"."""
    return f"{duration(ms)} ago"


def duration(ms: int) -> str:
    """A time span in its largest unit: "4 min"."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= size:
            return f"{ms // size} {unit}"
    return f"{max(0, ms) // 1000} s"


Holds = Iterator[tuple[str, str, int]]
"""About what, in a sentence, and since when (ms) as far as the look itself tells; 0 = it does not."""


def _own_log(service: str) -> str:
    """What prints the log that the program of that service writes itself."""
    own = f"`journalctl -u fairlog-{service}` on its host"
    return f"{own}, the files in logs/ of the data folder of an up, or what docs/operations.md#logs names"


def _store(_: ClusterState, around: Around) -> Holds:
    if around.error:
        yield "", around.error, around.known_at


def _mend_store(around: Around) -> str:
    if NO_MAJORITY in around.error:
        return (
            "start sentinels until more than half of them answer, or mend the network to them; they name the primary "
            "by themselves, and whether anything is lost can be known then, by `fairlog audit`"
        )
    return (
        f"see the store's own log, by {_own_log('store')}; whether anything is lost can be known once it answers, by "
        "`fairlog audit`; if it cannot read its files, docs/operations.md#a-store-that-cannot-read-its-files says more"
    )


def _log(_: ClusterState, around: Around) -> Holds:
    if around.unreadable:
        yield "", f"the log cannot be read: {around.unreadable}", 0
    elif around.damaged and around.serving is None and not around.error:
        yield "", f"the log cannot be read: its entry at position {around.damaged} was altered or is missing", 0


def _shorter(_: ClusterState, around: Around) -> Holds:
    if around.shorter is not None and not around.error:
        yield "", f"{missed(*around.shorter)}: masters and API servers refuse to serve", around.log_at or 0


def _decide(around: Around) -> str:
    return WAYS.format(head=0 if around.shorter is None else around.shorter[0])


def _edition(state: ClusterState, around: Around) -> Holds:
    if is_earlier(state) and around.serving is None and not around.error and around.shorter is None:
        yield "", f"the log is by edition {state.edition} of the rules: masters refuse to serve", around.log_at or 0


def _no_master(state: ClusterState, around: Around) -> Holds:
    if around.serving is not None or is_earlier(state) or _kept_out(around):
        return
    waiting = len(around.standing_by)
    behind = f", though {waiting} {'stands' if waiting == 1 else 'stand'} by" if waiting else ""
    since = f"; nothing is decided since {moment(around.log_at)}, and what runs goes on" if around.log_at else ""
    yield "", f"no master is active{behind}{since}", around.log_at or 0


def _find_master(around: Around) -> str:
    if around.standing_by:
        return f"one serves as soon as it can: see why one that stands by does not, by {_own_log('master')}"
    return "start one with `fairlog master`"


def _kept_out(around: Around) -> bool:
    """Whether another condition says why no master can serve: to start a further one would not help."""
    store = around.store
    full = store is not None and bool(store.write_error or store.weakness or store.memory_is_full)
    return full or bool(around.error or around.unreadable or around.damaged or around.unreplicated or around.shorter)


def _replicas(_: ClusterState, around: Around) -> Holds:
    if around.unreplicated is not None and not around.error:
        reached, due = around.unreplicated
        if reached < due:
            yield (
                "",
                f"the last entries of the log are on {reached} of the {counted(due, 'replica')} that masters wait for",
                0,
            )
        else:
            yield "", "a replica of the store that could become primary is behind it", 0


def _no_api(_: ClusterState, around: Around) -> Holds:
    unserved = around.unserved
    if unserved is None or around.shorter:  # they refuse to serve, and another one would too
        return
    since = f"no API server answers since {moment(unserved.since)}, {ago(around.now - unserved.since)}"
    number = unserved.workers
    if number:
        behind = "1 worker reaches" if number == 1 else f"{number} workers reach"
        yield "", f"{since}: {behind} nobody, so tasks that run go on there, and nothing new begins", unserved.since
    else:
        yield "", f"{since}: who has an account cannot reach the cluster", unserved.since


def _find_worker(around: Around) -> str:
    api = "start an API server first, since workers may run and reach none: `fairlog api`; else " * bool(
        around.unserved
    )
    return (
        f"{api}start its agent again, `fairlog worker --id {{}}` on its host, or forget it with `fairlog remove {{}}`"
    )


def _start_worker(around: Around) -> str:
    api = "start an API server first, since workers may run and reach none: `fairlog api`; else " * bool(
        around.unserved
    )
    return (
        f"{api}start one with `fairlog worker`; one that was removed comes back once its agent is started again, by "
        "`systemctl restart fairlog-worker` on its host, or that of an up by `fairlog down` and `fairlog up --detach`"
    )


def _deviation(_: ClusterState, around: Around) -> Holds:
    audited = around.audited
    if audited is not None and audited.deviations:
        yield "", f"the audit has found that the log breaks its rules: {audited.verdict.rstrip('.')}", 0


def _clock(state: ClusterState, around: Around) -> Holds:
    at = state.at if around.log_at is None else min(state.at, around.log_at)
    behind_ms = at - around.now
    if behind_ms > CLOCK_MS and not around.error:
        yield "", f"the store's clock is {duration(behind_ms)} behind the log", 0


def _disk(_: ClusterState, around: Around) -> Holds:
    store = around.store
    if store is None:
        return
    if store.write_error:
        yield "write", f"the store cannot write to its disk: {store.write_error}", 0
    if store.disk_size and store.disk_used >= around.bounds.disk * store.disk_size:
        left = size_text((store.disk_size - store.disk_used) >> 20)
        part = round(100 * store.disk_used / store.disk_size)
        yield "space", f"the store's disk is {part} % full, {left} left", 0


def _durability(_: ClusterState, around: Around) -> Holds:
    if around.store is not None and around.store.weakness:
        yield "", around.store.weakness.partition("; ")[0], 0


def _mend_durability(around: Around) -> str:
    remedy = "" if around.store is None else around.store.weakness.partition("; ")[2]
    return f"{remedy}; masters acknowledge nothing until then"


def _memory(_: ClusterState, around: Around) -> Holds:
    store = around.store
    if store is not None and store.memory_limit and store.memory_used >= around.bounds.memory * store.memory_limit:
        part, limit = round(100 * store.memory_used / store.memory_limit), size_text(store.memory_limit >> 20)
        full = " and refuses writes" if store.memory_is_full else ""
        yield "", f"the store uses {part} % of its {limit} of memory{full}", 0


def _worker_lost(state: ClusterState, around: Around) -> Holds:
    for worker in sorted(state.lost.values(), key=lambda worker: (-worker.at, worker.id)):
        yield worker.id, f"worker {worker.id} was lost {ago(around.now - worker.at)}{_interrupted(worker)}", worker.at


def _interrupted(worker: LostWorker) -> str:
    """What the loss of the worker cost."""
    parts = [
        f"{number} {what}{'s' * (number != 1)}"
        for number, what in ((worker.executors, "executor"), (worker.drivers, "driver"))
        if number
    ]
    if not parts:
        return ""
    were = "was" if worker.executors + worker.drivers == 1 else "were"
    apps = f"{worker.apps} app{'s' * (worker.apps != 1)}"
    return f", and {' and '.join(parts)} of {apps} {were} interrupted; their tasks run again elsewhere"


def _worker_suspect(state: ClusterState, around: Around) -> Holds:
    for worker in state.indexes.suspects:
        if worker.suspicion is not None:
            since = worker.suspicion.since
            spent = ago(around.now - since)
            yield worker.id, f"worker {worker.id} has been suspect since {moment(since)}, {spent}", since


def _worker_unwell(state: ClusterState, around: Around) -> Holds:
    for worker in state.workers.values():
        if worker.unwell:
            why = f": {worker.said}" if worker.said else ""
            spent = ago(around.now - worker.since)
            yield (
                worker.id,
                f"worker {worker.id} has been unwell since {moment(worker.since)}, {spent}{why}",
                worker.since,
            )


def _in_the_way(state: ClusterState, around: Around) -> Holds:
    """Windows that begin soon, or have begun, while something that will not have ended by itself runs there (W14)."""
    for window in state.windows.values():
        if around.now < window.begin - WINDOW_MS:
            continue
        begun = around.now >= window.begin
        held = [
            each
            for each in in_the_way(state, window)
            if begun
            or ends_within(state.settings, state.apps[each.app], around.now) + around.now >= window.begin
            or state.apps[each.app].max_runtime_s is None
        ]
        if not held:
            continue
        apps = list(dict.fromkeys([each.app for each in held]))
        when = "has begun" if begun else f"begins in {duration(window.begin - around.now)}"
        what = f"{counted(len(held), 'executor')} of {few(apps, _NAMED)}"
        end = "" if begun else f", which {'has' if len(apps) == 1 else 'have'} no end before it,"
        verb = "runs" if len(held) == 1 else "run"
        sentence = f"window {window.id} {when}, and {what}{end} still {verb} there"
        since = min([each.granted_at for each in held])
        yield window.id, sentence, max(1, window.begin - WINDOW_MS, window.added, since)


def _worker_disk(_: ClusterState, around: Around) -> Holds:
    for worker, cut in sorted(around.cuts.items()):
        if cut.unwritten and around.now - cut.at < KEPT_MS:
            output = f"{counted(cut.unwritten, 'byte')} of the output of tasks"
            said = f"the disk of worker {worker} has not taken {output}, since {moment(cut.since)}: {cut.why}"
            yield worker, said, cut.since


def _unused(state: ClusterState, around: Around) -> Holds:
    of_app: dict[str, list[tuple[Allocation, Idle]]] = {}
    for name, idle in sorted(around.unused.items()):
        executor = state.executors.get(name)
        if executor is not None and executor.status != "stopping":
            of_app.setdefault(executor.app, []).append((executor, idle))
    for name, held_by in of_app.items():
        spec, since = state.apps[name].spec, min([idle.since for _, idle in held_by])
        cores = sum([held.resources.cores for held, _ in held_by])
        what = "cores" if any(idle.what == "cores" for _, idle in held_by) else "GPUs"
        holds = f"{cores} core{'s' * (cores != 1)} in {len(held_by)} executor{'s' * (len(held_by) != 1)}"
        who = f"app {name} of {spec.user} at {spec.company}"
        yield name, f"{who} holds {holds} and has used nothing of its {what} since {moment(since)}", since


def _unused_cores(state: ClusterState, _: Around, about: str) -> str:
    cores = state.apps[about].granted.cores
    return f"up to {cores} core{'s' * (cores != 1)} that others could use"


def _no_worker(state: ClusterState, _: Around) -> Holds:
    waiting = [] if state.fleet.live else _without_any(state)
    if waiting:
        last = max([worker.at for worker in state.lost.values()], default=None)
        since = "" if last is None else f"; the last one was lost at {moment(last)}"
        drain = f" ({len(state.workers)} drain{'s' * (len(state.workers) == 1)})" if state.workers else ""
        need = f"{counted(len(waiting), 'app')} need{'s' * (len(waiting) == 1)} one"
        first = min([app.submitted_at for app in waiting])
        yield "", f"no worker is live{drain}, and {need}{since}", last or first


def _without_any(state: ClusterState) -> list[App]:
    """The apps that have not ended and hold nothing; others run, on workers that drain."""
    return [app for app in state.apps.values() if app.ended is None and not app.allocations()]


def _too_large(state: ClusterState, _: Around) -> Holds:
    number = too_large(state)
    if number:
        yield "", f"{number} {'app' if number == 1 else 'apps'} can never start", 0


def too_large(state: ClusterState) -> int:
    """The number of apps that no live worker is large enough for; 0 while none is live (semantics N3)."""
    return sum(not app.need.hostable for app in state.apps.values() if app.ended is None and state.fleet.live)


def _unlent(state: ClusterState, _: Around) -> Holds:
    """Departments without an app that lend less than all, while apps of others wait which would fit there (H12)."""
    used = {each.name for company in state.companies.values() if company.apps for each in company.above}
    idle = {name: each.kept for name, each in sorted(state.departments.items()) if each.kept.cores and name not in used}
    living = [app for app in state.apps.values() if app.ended is None] if idle else []
    units = Counter([app.need.unit for app in living if app.ready and not app.allocations()])
    for name, kept in idle.items():
        fits = sum(number for unit, number in units.items() if kept.covers(unit))
        if fits:
            waits = "1 app of others waits that" if fits == 1 else f"{fits} apps of others wait that"
            yield name, f"department {name} keeps {kept} idle by its lend limit; {waits} would fit there", 0


def _idle_there(state: ClusterState, _: Around, about: str) -> str:
    return f"{counted(state.departments[about].kept.cores, 'core')} that others could use"


def _no_date(state: ClusterState, _: Around) -> Holds:
    if state.by_entitlement and state.settings.reclaim_patience_s is None:
        needs = len(state.indexes.needy)
        waiting = f"; {needs} {'app waits' if needs == 1 else 'apps wait'} for it" if needs else ""
        yield "", f"what is lent has to come back by no date: reclaim_patience_s is none{waiting}", 0


def _no_standby(_: ClusterState, around: Around) -> Holds:
    missing = around.standbys - len(around.standing_by)
    if missing > 0 and around.serving is not None:
        number = len(around.standing_by)
        yield "", f"only {number} of {around.standbys} standbys" if number else "no standby", 0


def _failover(state: ClusterState, around: Around) -> Holds:
    seen = around.failover
    if seen is not None and around.now - seen.at < FAILOVER_SHOWN_MS:
        spent = _unserved_then(state, around)
        cost = spent and f"; nobody served{spent}, and what ran went on"
        yield (
            seen.master,
            f"master {seen.master} took over from {seen.before} {ago(around.now - seen.at)}{cost}",
            seen.at,
        )


def _short(_: ClusterState, around: Around) -> Holds:
    for company, since in sorted(around.short_since.items()):
        if around.now - since >= around.bounds.short_s * 1000:
            spent = duration(around.now - since)
            yield company, f"company {company} has been short of its entitlement for {spent}", since


def _audit_stopped(state: ClusterState, around: Around) -> Holds:
    audited = around.audited
    if audited is None:
        return
    if around.now - audited.at > AUDITOR_SILENT_MS and state.head > audited.seq:
        yield (
            "",
            f"the audit has stood at position {audited.seq} since {moment(audited.at)}; the log is at {state.head}",
            audited.at,
        )
    elif audited.trouble:
        yield "", f"the audit stands at position {audited.seq}: {audited.trouble}", 0


def _rewound(_: ClusterState, around: Around) -> Holds:
    audited = around.audited
    if audited is not None and audited.rewound_at and around.now - audited.rewound_at < REWOUND_SHOWN_MS:
        lost = f"position {audited.rewound_from}, which had been audited, is not in the log any more"
        what = f"; with it {audited.rewound_lost}" if audited.rewound_lost else ""
        seen = f"{lost}: it was seen {ago(around.now - audited.rewound_at)}{what}"
        yield str(audited.rewound_from), seen, audited.rewound_at


def _other_up(_: ClusterState, around: Around) -> Holds:
    for data, since in around.others.items():
        yield data, f"another `fairlog up` runs on this machine, on the data in {data}", since


_UNDECIDED = "nothing is decided meanwhile, and what runs goes on"
_UNACKNOWLEDGED = "nothing is acknowledged meanwhile, and what runs goes on"
_MOVE = "`fairlog archive`"
_UNTIL_FULL = "nothing so far; once it is full, nothing is acknowledged"


def _left_behind(_: ClusterState, around: Around, __: str) -> str:
    known = "" if around.shorter is None else f" up to {around.shorter[1].seq}"
    return f"nothing is decided meanwhile; what was acknowledged{known} and is not in the log may be lost"


def _unreached(_: ClusterState, around: Around, __: str) -> str:
    workers = 0 if around.unserved is None else around.unserved.workers
    return f"{counted(workers, 'worker')} and everybody with an account wait; what runs goes on"


def _unwritten(_: ClusterState, around: Around, about: str) -> str:
    return _UNACKNOWLEDGED if about == "write" or _cannot_write(around) else _UNTIL_FULL


def _cannot_write(around: Around) -> bool:
    """Whether the store cannot write to its disk, or does not run any more."""
    store = around.store
    return store is not None and bool(around.error or store.write_error or store.disk_is_full)


def _mend_disk(around: Around) -> str:
    """What moves entries needs a store that writes."""
    free = "free space on the store's disk"
    return (
        f"{free}; all goes on by itself then" if _cannot_write(around) else f"{free}, or move old entries with {_MOVE}"
    )


def _refused(_: ClusterState, around: Around, __: str) -> str:
    store = around.store
    if store is not None and store.memory_is_full:
        return _UNACKNOWLEDGED
    return _UNTIL_FULL


def _cut_off(state: ClusterState, _: Around, about: str) -> str:
    cut_off = _interrupted(state.lost[about]).removeprefix(", and ")
    return cut_off or "nothing ran there; its resources are gone"


def _failed_there(state: ClusterState, _: Around, about: str) -> str:
    return f"{counted(len(state.workers[about].quick_ends), 'executor')} failed there, and nothing is granted there now"


def _left_out(state: ClusterState, _: Around, about: str) -> str:
    offer = state.workers[about].offer
    return f"{counted(offer.cores, 'core')} get no new work; what runs there continues"


def _not_kept(_: ClusterState, around: Around, about: str) -> str:
    return f"{counted(around.cuts[about].unwritten, 'byte')} of output are lost"


def _without_worker(state: ClusterState, _: Around, __: str) -> str:
    return f"{counted(len(_without_any(state)), 'app')} cannot run meanwhile"


def _never(state: ClusterState, _: Around, __: str) -> str:
    return f"{counted(too_large(state), 'app')} cannot run meanwhile"


def _unserved_for(state: ClusterState, around: Around, _: str) -> str:
    return f"nothing was decided{_unserved_then(state, around)}, and what ran went on"


def _unserved_then(state: ClusterState, around: Around) -> str:
    """For how long nobody served before the failover that was seen, in words; "" if the log has a later election."""
    seen, known = around.failover, elected(state, around)
    if seen is None or known is None or (known.master, known.before) != (seen.master, seen.before):
        return ""
    return f" for at most {known.unserved_ms / 1000:.1f} s"


def _unchecked(state: ClusterState, around: Around, _: str) -> str:
    seq = 0 if around.audited is None else around.audited.seq
    return f"{counted(max(0, state.head - seq), 'event')} of the log have not been checked"


def _rewound_lost(_: ClusterState, around: Around, __: str) -> str:
    lost = "" if around.audited is None else around.audited.rewound_lost
    return f"lost with it: {lost}" if lost else "the events that the log no longer holds"


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        "store",
        "critical",
        _store,
        _mend_store,
        cost="nothing is decided or acknowledged meanwhile, and what runs goes on",
    ),
    Condition(
        "log",
        "critical",
        _log,
        "keep a copy of the store's files and restore a backup; masters stop here",
        cost=_UNDECIDED,
    ),
    Condition("shorter", "critical", _shorter, _decide, cost=_left_behind),
    Condition("edition", "critical", _edition, UPGRADE, cost=_UNDECIDED),
    Condition(
        "no_master",
        "critical",
        _no_master,
        _find_master,
        cost=_UNDECIDED,
    ),
    Condition(
        "replicas",
        "critical",
        _replicas,
        "start the replicas of the store that are missing, `INFO replication` on its primary lists those that follow; "
        "masters acknowledge nothing until then",
        cost=_UNACKNOWLEDGED,
    ),
    Condition(
        "no_api",
        "critical",
        _no_api,
        f"start one with `fairlog api`; why one that runs does not answer is told by {_own_log('api')}; workers that "
        "reach no API server are not lost meanwhile, and their agents need no restart",
        cost=_unreached,
    ),
    Condition(
        "deviation",
        "critical",
        _deviation,
        "run `fairlog audit` and keep a copy of the log",
        cost="decisions from there on need not be those of the rules",
    ),
    Condition(
        "clock",
        "critical",
        _clock,
        "set the clock of the store's machine; until it has caught up, nothing that waits for a time happens",
        cost="nothing that waits for a time happens meanwhile",
    ),
    Condition(
        "disk",
        "critical",
        _disk,
        _mend_disk,
        cost=_unwritten,
    ),
    Condition(
        "durability",
        "critical",
        _durability,
        _mend_durability,
        cost=_UNACKNOWLEDGED,
    ),
    Condition(
        "memory",
        "warning",
        _memory,
        f"move old entries with {_MOVE}, or raise the store's maxmemory",
        cost=_refused,
    ),
    Condition("worker_lost", "warning", _worker_lost, _find_worker, cost=_cut_off, many="workers are lost"),
    Condition(
        "worker_suspect",
        "warning",
        _worker_suspect,
        "`fairlog workers` names the executors that failed on it; `fairlog drain {}` keeps it out until it is mended",
        cost=_failed_there,
        many="workers are suspect",
    ),
    Condition(
        "worker_unwell",
        "warning",
        _worker_unwell,
        "mend what worker {} or its health check names; it takes work again by itself once it can",
        cost=_left_out,
        many="workers are unwell",
    ),
    Condition(
        "window",
        "warning",
        _in_the_way,
        "ask their users, or let the apps begin anew elsewhere: drain the workers, then `fairlog requeue APP`; what is "
        "still there is told to leave in time, and `fairlog window remove {}` lets it stay",
        cost="what their tasks have not saved by its beginning is done again elsewhere",
        many="windows have something in their way",
    ),
    Condition(
        "unused",
        "warning",
        _unused,
        "ask its user, or end it with `fairlog kill {}`; `fairlog company set COMPANY --end-idle` ends what a company "
        "leaves unused",
        cost=_unused_cores,
        many="apps use nothing of what they hold",
    ),
    Condition(
        "worker_disk",
        "warning",
        _worker_disk,
        "free space in the run folder of worker {}; what ran went on, and of each output `fairlog logs` has the end, "
        "which says what is missing",
        cost=_not_kept,
        many="workers have full disks",
    ),
    Condition("no_worker", "warning", _no_worker, _start_worker, cost=_without_worker),
    Condition(
        "never_starts",
        "warning",
        _too_large,
        "they need a larger worker than is live: `fairlog apps --reason no-worker-large-enough` lists them, `fairlog "
        "explain APP` names the nearest worker, `fairlog kill APP` ends one",
        cost=_never,
    ),
    Condition(
        "unlent",
        "warning",
        _unlent,
        "`fairlog department set {} --lend-limit none` lends all that it does not use",
        cost=_idle_there,
        many="departments keep idle what others wait for",
    ),
    Condition(
        "no_date",
        "warning",
        _no_date,
        "`fairlog settings set reclaim_patience_s=3600` gives each need a date",
        cost="who is below its entitlement waits until tasks of others end by themselves",
    ),
    Condition(
        "no_standby",
        "warning",
        _no_standby,
        "start a second master: `fairlog master` on another machine",
        cost="nothing so far; if the active master ends, nothing is decided until another one is started",
    ),
    Condition(
        "failover",
        "warning",
        _failover,
        f"why the master that was active before ended is told by {_own_log('master')}",
        cost=_unserved_for,
    ),
    Condition(
        "short",
        "warning",
        _short,
        "`fairlog explain APP` says why an app of it waits; `fairlog shares` who holds what",
        cost="its apps wait for what is due to it",
        many="companies are short of their entitlements",
    ),
    Condition(
        "audit_stopped",
        "warning",
        _audit_stopped,
        f"start `fairlog audit --follow` again; why it ended or waits is told by {_own_log('auditor')}",
        cost=_unchecked,
    ),
    Condition(
        "rewound",
        "warning",
        _rewound,
        "a failover of the store lost the end of the log, or somebody has written it anew; compare it with receipts "
        "and seals, `fairlog audit --receipts FILE --seals URL`",
        cost=_rewound_lost,
    ),
    Condition(
        "other_up",
        "warning",
        _other_up,
        "name the one that you mean with --data DIR",
        cost="nothing; a verb without --data may mean the other one",
    ),
)
"""Every condition, in the order in which it is told."""
