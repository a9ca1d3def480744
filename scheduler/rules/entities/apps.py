"""Apps: what they asked for, need, hold and have used, until they are removed (semantics A, J, L, X)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from scheduler.model.commands import WITHHELD, Measured, Private, read_private
from scheduler.model.events import (
    AppRegistered,
    AppState,
    Condition,
    Fixed,
    Sizing,
    Wanted,
)
from scheduler.model.resources import NOTHING, UNLIMITED_CORES, Resources, amounts_of
from scheduler.rules.entities.fleet import Fleet
from scheduler.rules.entities.grants import EMPTY, Allocation, Hold
from scheduler.rules.entities.ledger import Accounts, Standings, Usage

T = TypeVar("T")


def is_met(condition: Condition, ended: str) -> bool:
    """Whether an app that ended in that way meets the condition (semantics J1)."""
    return condition in ("any", "began") or (condition == "ok") == (ended == "finished")


class Trouble(NamedTuple):
    """An app's abnormal ends in a row on one worker, the last one at `at` (ms) (semantics W7).

    `unstartable`: one of them said that the app's command cannot be started there (W9).
    """

    ends: int
    at: int
    unstartable: bool = False


@dataclass(slots=True, eq=False)
class Need:
    """What an app needs of a worker; apps with equal needs share one of these."""

    executor: Resources
    """Its smallest executor; nothing if it asks for none."""
    driver: Resources
    """Its driver until that is placed, nothing afterwards or without one."""
    least: Resources
    """The least room into which an executor of it can be placed."""
    growing: bool = False
    """Whether its executors grow a core at a time, so that only the first core of each needs the memory (S5)."""
    demand: str = ""
    """What it demands of its workers' labels (semantics P9); the amounts above do not name it."""
    gang: int = 0
    """How many executors come at once or not at all; 0 = they come one by one (semantics G8)."""
    hostable: bool = False
    """Whether a live worker could host an executor, and one the driver, if they were empty."""
    most: int = 0
    """How many of the smallest executors the live cluster offers room for."""
    unit: Resources = field(init=False)
    """What is granted at once: an executor, or all of a gang."""
    simple: bool = field(init=False)
    """Whether all that counts are executors of one size, of cores and memory alone."""
    owed: dict[int, App] = field(default_factory=dict)
    """The apps that can still use any executor, or whose driver waits, by position of admission."""
    multiples: dict[Resources, int] = field(default_factory=dict)
    """The sizes of so many of the executors, if it is simple: what most apps request and are granted."""

    def __post_init__(self) -> None:
        self.unit = self.executor * self.gang if self.gang else self.executor
        self.simple = not (self.growing or self.driver.cores or self.executor.others)
        if self.simple and self.executor.cores:
            self.multiples = {self.executor * number: number for number in range(1, 33)}

    def more(self, app: App, fleet: Fleet) -> Resources:
        """What the app can still use, at most the live cluster (semantics A8)."""
        if not self.hostable or not app.admitted or app.ended is not None or app.expired_at:
            return NOTHING
        usable = app.usable
        if self.growing:
            left = Resources(usable, app.left_executor_memory_mb) if usable else NOTHING
            if self.executor.others and usable:
                left += Resources(others=amounts_of({kind: app.left_of(kind) for kind, _ in self.executor.others}))
            more = left.combined(fleet.total, min)
        else:
            number = min(usable, self.most)
            more = self.executor * number if number else NOTHING
        return more + self.driver if self.driver.cores else more


NO_NEED = Need(NOTHING, NOTHING, NOTHING)
"""The need of an app whose need was not worked out yet."""


class Demand(NamedTuple):
    """Which executors an app wants, where that was stated (semantics L)."""

    preferring_tasks: int = 0
    preferred_hosts: dict[str, int] = EMPTY
    wanted: tuple[Wanted, ...] = ()
    """The pending requests of an admitted app that prefers hosts, oldest first (semantics L1, L2)."""
    backlog_executors: int | None = None
    """How many executors the tasks of an elastic app call for, within its bounds (semantics L6)."""
    next_step: int = 1
    """How many more it asks for next, and from when (ms) on the time to its next step counts."""
    asked_at: int = 0
    target: int | None = None
    """How many executors were asked for, None once they are requested (semantics L1)."""
    stated: int = 0
    """Log position at which that was stated."""


class Lack(NamedTuple):
    """An app is below its entitlement by so many units that fit nowhere, since then (ms) (semantics H6)."""

    units: int = 0
    date: int = 0
    """When (ms) those who are told to leave for it leave at the latest; it outlives a short time without need (H7)."""
    since: int = 0
    ended: int = 0
    """When (ms) it ended, 0 while it lasts."""

    def brought_forward(self, deadline: int, at: int) -> Lack:
        """What its app gets back for an executor that leaves by the plan at `deadline` (ms): no later than that."""
        if self.units:
            return self._replace(date=min(self.date, deadline))
        return Lack(0, deadline, at, deadline)


def _unveiled(detail: str, private: Private) -> str:
    """What is public of an end with the command or folder that it does not name, where that can only be one."""
    command = private.command[0] if private.command and not private.executor_command else ""
    for what, name in (("command", command), ("directory", private.cwd or "")):
        quoted = f"{what} '{WITHHELD}'"
        if name and detail.startswith(quoted):
            return f"{what} {name!r}{detail.removeprefix(quoted)}"
    return detail


NO_LACK = Lack()


class Slot(NamedTuple):
    """An app whose unit is larger than its company's share awaits a slot, or has one (semantics H10)."""

    date: int
    """From when on (ms) it may begin."""
    began: int = 0
    """When (ms) it began, 0 = it did not yet."""
    units: int = 0
    """To how many executors its app is entitled before everybody else."""
    until: int = 0
    """When (ms) it ends, of one that has begun."""
    granted: int = 0
    """When (ms) the first executor was granted in it, 0 = none was."""

    def granted_at(self, at: int, lasts_ms: int) -> Slot:
        """The slot after a grant at `at` (ms): the first one says when the slot is over."""
        return self if self.granted else self._replace(granted=at, until=at + lasts_ms)


class DriverTries(NamedTuple):
    """How the drivers of an app went (semantics D)."""

    next_driver: int = 0
    driver_ends: int = 0
    """How many in a row ended abnormally soon after they were granted, and not before when (ms) the next one is
    granted, 0 = at once (semantics D3)."""
    driver_after: int = 0


class Spent(NamedTuple):
    """What ended executors and drivers of an app were granted, and what they used as their workers say (semantics O5).

    Times are in ms, memory is in MiB. What begins with `told` is granted to those of which their worker has said what
    they used.
    """

    core_ms: int = 0
    told_core_ms: int = 0
    cpu_ms: int = 0
    told_memory_ms: int = 0
    used_memory_ms: int = 0
    """The peak of each for as long as it was granted."""
    peak_mb: int = 0
    """The largest peak, and what the one with it was granted."""
    peak_of_mb: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        peak_mb, of_mb = max((self.peak_mb, self.peak_of_mb), (other.peak_mb, other.peak_of_mb))
        return Spent(
            self.core_ms + other.core_ms,
            self.told_core_ms + other.told_core_ms,
            self.cpu_ms + other.cpu_ms,
            self.told_memory_ms + other.told_memory_ms,
            self.used_memory_ms + other.used_memory_ms,
            peak_mb,
            of_mb,
        )


def spent_by(granted: Resources, held_ms: int, used: Measured | None) -> Spent:
    """What one that was granted so much for `held_ms` has used; None = its worker does not say."""
    core_ms = granted.cores * held_ms
    if used is None:
        return Spent(core_ms)
    memory_ms, used_memory_ms = granted.memory_mb * held_ms, used.peak_mb * held_ms
    return Spent(core_ms, core_ms, used.cpu_ms, memory_ms, used_memory_ms, used.peak_mb, granted.memory_mb)


NO_DEMAND, NO_TRIES, NO_SPENT = Demand(), DriverTries(), Spent()


@dataclass(slots=True, eq=False, init=False)
class App:
    """An app from submission until it is forgotten; `submitted` and `admitted` are log positions, `_at` is in ms.

    Those up to `usage` and from `owed` on are links and indexes; what is between are facts, and stands in snapshots.
    """

    id: str
    spec: AppRegistered
    """Its registration without its id: apps that were submitted alike share one."""
    standings: Standings
    accounts: Accounts
    usage: Usage
    """Its company's."""
    submitted: int
    submitted_at: int
    requested: Resources
    executor_limit: int | None
    """The most executors it may have at once (semantics P4), None = no limit."""
    sizing: Sizing
    """As submitted, or fixed since the number of its executors was stated (semantics L1)."""
    demand: Demand
    admitted: int
    admitted_at: int
    ended: Literal["finished", "failed", "killed", "unmet", "expired"] | None
    ended_at: int
    detail: str
    granted: Resources
    done_cores: int
    returned_at: int
    """When (ms) tasks of an ended executor last returned, 0 if an executor was granted since (semantics S6)."""
    running: int
    failures: int
    next_executor: int
    tries: DriverTries
    troubles: dict[str, Trouble]
    """Worker -> the app's abnormal ends there, none of its tasks finished since (semantics W7)."""
    asked: dict[str, str]
    """What was done with it by command -> the account that did it last (semantics I1)."""
    priority: int
    """Orders its user's apps (semantics Q1)."""
    awaits: dict[str, Condition]
    """The apps that it still waits for, and for what of each (semantics J1)."""
    unmet: str
    """The one of them that ended otherwise, "" if none did (semantics J2)."""
    on_hold: bool
    """Whether it waits for a release (semantics J3)."""
    not_before: int
    """Before when (ms) it is not ready; 0 = it waits for no time (semantics J4)."""
    ready: bool
    """Whether it is in its user's queue, while it is pending (semantics J2)."""
    readied: int
    """`ready_position` and `ready_at`, 0 if that was its submission."""
    readied_at: int
    owed_since: int
    """Since when (ms) it is owed executors and was granted none."""
    lack: Lack
    """Its need, the last one if it has none now (semantics H6)."""
    max_runtime_s: int | None
    """How long it may run, extensions included (semantics X1); None = any time."""
    started: int
    """How many of its executors run, those that were told to stop included."""
    ran_ms: int
    """How long it ran, with a limit only, up to `running_since` (ms), which is None while nothing of it runs."""
    running_since: int | None
    warned: bool
    """Whether the warning of its present limit has come (semantics X2)."""
    cancelled: tuple[int, ...]
    """Its tasks that were cancelled, by index from 0, in order (semantics X4)."""
    expired_at: int
    """When (ms) its time was over; 0 = it is not (semantics X2)."""
    restarts: int
    """How often it was put back into its queue (semantics X6)."""
    planned: bool
    """Whether it is a gang that left by the plan, and comes back where the plan has it (semantics G8)."""
    spent: Spent
    private_json: bytes
    """Its private part, b"" where that is withheld."""
    owed: bool
    """Whether it is admitted and placement owes it cores."""
    need: Need
    """What it needs of a worker."""
    usable: int
    """How many of its smallest executors it can still use; of growing ones, how many cores."""
    more: Resources
    """What of its claim is not granted yet (semantics A8)."""
    unserved: bool
    """Whether it was admitted and never granted anything (semantics C5)."""
    moved: int
    """How many of its executors leave because it was granted the same elsewhere, and what they have (semantics H6)."""
    moving: Resources
    leaving: Resources
    """What its executors and its driver have that were told to stop."""
    executors: dict[str, Allocation]
    driver: Allocation | None
    """What its driver is granted; an app that asked for none, or whose driver waits, has None."""
    holds: dict[int, Hold]

    def __init__(  # noqa: PLR0913, PLR0917 - its facts
        self,
        id: str,  # noqa: A002 - as others have theirs
        spec: AppRegistered,
        standings: Standings,
        accounts: Accounts,
        usage: Usage,
        submitted: int,
        submitted_at: int,
        requested: Resources,
        executor_limit: int | None,
        sizing: Sizing,
        need: Need = NO_NEED,
        priority: int = 0,
        max_runtime_s: int | None = None,
    ) -> None:
        self.id = id
        self.spec = spec
        self.standings = standings
        self.accounts = accounts
        self.usage = usage
        self.submitted = submitted
        self.submitted_at = submitted_at
        self.requested = requested
        self.executor_limit = executor_limit
        self.sizing = sizing
        self.need = need
        self.priority = priority
        self.max_runtime_s = max_runtime_s
        self.admitted = self.admitted_at = self.ended_at = self.readied = self.readied_at = self.expired_at = 0
        self.owed_since = self.next_executor = 0
        self.done_cores = self.returned_at = self.running = self.started = self.failures = self.usable = 0
        self.ran_ms = self.not_before = self.restarts = 0
        self.demand = NO_DEMAND
        self.tries = NO_TRIES
        self.troubles = self.asked = self.awaits = self.executors = self.holds = EMPTY
        self.cancelled = ()
        self.lack = NO_LACK
        self.moved = 0
        self.moving = self.leaving = NOTHING
        self.ended = self.running_since = self.driver = None
        self.detail = self.unmet = ""
        self.granted = self.more = NOTHING
        self.on_hold = self.warned = self.owed = self.unserved = self.planned = False
        self.ready = True
        self.spent = NO_SPENT
        self.private_json = b""

    @property
    def registered(self) -> AppRegistered:
        """Its registration."""
        return replace(self.spec, app=self.id)

    @property
    def private(self) -> Private | None:
        """Its name, command, variables and folder; None where they are withheld."""
        return read_private(self.private_json) if self.private_json else None

    @property
    def why(self) -> str:
        """Why it ended: in the words of whoever ended it, or what is public of that and the command."""
        private = self.private
        if private is None:
            return self.detail
        return private.said or _unveiled(self.detail, private)

    @property
    def name(self) -> str:
        """What it is called: its id, if it has no name or that is withheld."""
        private = self.private
        return (private and private.name) or self.id

    @property
    def state(self) -> AppState:
        """Pending, waiting (admitted, nothing runs), running (an executor is up, or its driver placed), or its end."""
        if self.ended is not None:
            return self.ended
        if not self.admitted:
            return "pending"
        return "running" if self.running or self.driver is not None else "waiting"

    @property
    def ready_position(self) -> int:
        """The log position at which it became ready (semantics J2)."""
        return self.readied or self.submitted

    @property
    def ready_at(self) -> int:
        """The time (ms) at which it became ready (semantics J2, Q1)."""
        return self.readied_at or self.submitted_at

    @property
    def began(self) -> bool:
        """Whether it was ever granted an executor or its driver (semantics J1)."""
        return self.next_executor > 0 or self.tries.next_driver > 0

    @property
    def judged(self) -> bool:
        """Whether it is not ready and a turn lets it be ready, or removes it as unmet (semantics J2)."""
        return (
            self.ended is None
            and not self.ready
            and (bool(self.unmet) or not (self.awaits or self.on_hold or self.not_before or self.ending))
        )

    @property
    def left_cores(self) -> int:
        """Cores that placement still owes the app's executors (semantics S2, S6, D1)."""
        left, spec = self.requested.cores - self.granted.cores - self.done_cores, self.spec
        if self.moved:
            left += self.moving.cores
        if spec.cores is None:
            return UNLIMITED_CORES - self.granted.cores
        return left if spec.driver is None or self.driver is not None else left - spec.driver.cores

    @property
    def wants_more(self) -> bool:
        """Whether the tasks of an elastic app call for more executors than it requests (semantics L6)."""
        return (self.executor_limit or 0) < (self.demand.backlog_executors or 0)

    @property
    def elastic(self) -> bool:
        """Whether its demand follows its backlog (semantics L6)."""
        return self.spec.elastic is not None

    @property
    def driver_runs(self) -> bool:
        """Whether it needs no driver, or has one that was not told to stop (semantics D1)."""
        return self.spec.driver is None or (self.driver is not None and self.driver.status != "stopping")

    @property
    def unplaced_driver(self) -> Resources:
        """Its driver while that waits for a worker; nothing otherwise."""
        return NOTHING if self.spec.driver is None or self.driver is not None else self.spec.driver

    @property
    def lacking(self) -> int:
        """How many executors of its fixed size placement owes it (semantics L1: target - starting - running)."""
        if not isinstance(self.sizing, Fixed) or not self.admitted or self.over:
            return 0
        return max(0, min(self.left_executors, self.left_cores // self.sizing.each.cores))

    @property
    def over(self) -> bool:
        """Whether it has ended, or its time is over (semantics X2): it gets nothing more."""
        return self.ended is not None or self.expired_at > 0

    @property
    def goes_on(self) -> bool:
        """Whether it is in waitingApps, and its time is not over: what ends of it may end or change it."""
        return self.admitted > 0 and not self.over

    @property
    def ending(self) -> bool:
        """Whether it was put back and something of it is not gone yet (semantics X6)."""
        return not self.admitted and (bool(self.executors) or self.driver is not None)

    @property
    def runs(self) -> bool:
        """Whether the time that it may run passes now (semantics X1)."""
        return (self.started > 0 or self.driver is not None) and self.admitted > 0 and self.ended is None

    @property
    def left_executors(self) -> int:
        """How many more executors the app may have (semantics P4)."""
        if self.executor_limit is None:
            return UNLIMITED_CORES
        return self.executor_limit - len(self.executors) + self.moved

    @property
    def members(self) -> list[Allocation]:
        """Its executors that were not told to stop."""
        return [one for one in self.executors.values() if one.status != "stopping"]

    @property
    def is_whole(self) -> bool:
        """Whether no executor of a gang is gone or has to stop alone, so that it can go on (semantics G8)."""
        there = [one for one in self.executors.values() if one.status != "stopping" or one.leaves]
        return len(there) == len(self.executors) == self.executor_limit

    def ran_by(self, at: int) -> int:
        """How long (ms) it has run at `at` (ms), of a maximum runtime (semantics X1)."""
        return self.ran_ms + (0 if self.running_since is None else at - self.running_since)

    def allocations(self) -> list[Allocation]:
        """The allocations of its executors and its driver."""
        return [*self.executors.values()] if self.driver is None else [*self.executors.values(), self.driver]

    @property
    def left_executor_memory_mb(self) -> int:
        """Memory that may still be granted to its executors, without its driver's (semantics A2, D1)."""
        left, spec = self.requested.memory_mb - self.granted.memory_mb + self.moving.memory_mb, self.spec
        return left if spec.driver is None or self.driver is not None else left - spec.driver.memory_mb

    @property
    def left_memory_mb(self) -> int:
        """Memory that may still be granted to the app: grants never exceed the request (semantics A2)."""
        return self.requested.memory_mb - self.granted.memory_mb + self.moving.memory_mb

    def affords(self, size: Resources) -> int:
        """How many executors of that memory, and of those further kinds, the rest of its request allows (A2, R3)."""
        number = self.left_memory_mb // size.memory_mb
        return min(number, *[self.left_of(kind) // each for kind, each in size.others]) if size.others else number

    def left_of(self, kind: str) -> int:
        """What may still be granted of a further kind to its executors."""
        kept = self.granted.amount(kind) - self.moving.amount(kind)
        return self.requested.amount(kind) - kept - self.unplaced_driver.amount(kind)


@lru_cache(maxsize=10_000)
def _same(value: T) -> T:
    """One object for all that are equal to it."""
    return value


def shared_spec(registered: AppRegistered, company: str, user: str) -> AppRegistered:
    """`App.spec` of the app, with names equal to these: a million apps have few different ones.

    One with dependencies hardly repeats, so it shares its request and sizing alone.
    """
    requested, sizing = _same(registered.requested), _same(registered.sizing)
    spec = replace(registered, app="", company=company, user=user, requested=requested, sizing=sizing)
    return spec if registered.after else _same(spec)
