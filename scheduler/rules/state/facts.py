"""What the log tells of the cluster, and what follows from it: what a decision, a view or the audit asks.

A *fact* is what an event states, the position and time it has, and the sums and counts of such: entities, their status,
ledgers, usage, failures in a row, who was selected last, since when an app is held back. An *index* follows from the
facts and exists so that a decision does not grow with the cluster: `indexes`, `fleet`, `queue`, `claims`. `invariants`
looks at all.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from scheduler.model.events import ClusterConfigured, Computed, Fixed
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.admission.limits import Limits
from scheduler.rules.admission.queue import AppQueue
from scheduler.rules.entities.accounts import Accounts
from scheduler.rules.entities.apps import NO_SPENT, App, Slot
from scheduler.rules.entities.companies import Company, Department
from scheduler.rules.entities.fleet import Fleet
from scheduler.rules.entities.grants import Allocation, Hold
from scheduler.rules.entities.labels import Demands
from scheduler.rules.entities.ledger import Accounts as LedgersOfUser
from scheduler.rules.entities.ledger import Balance
from scheduler.rules.entities.master import Election
from scheduler.rules.entities.ranks import Ranks
from scheduler.rules.entities.workers import LostWorker, Window, Worker
from scheduler.rules.index.changes import LastFilling
from scheduler.rules.index.claims import Claims
from scheduler.rules.index.dependents import Dependents
from scheduler.rules.index.offers import Offers
from scheduler.rules.index.table import Indexes
from scheduler.rules.index.timers import Timers
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.placement.sizing import executor_sizes

REFUSALS_A_MINUTE = 60
MINUTE_MS = 60_000


class Facts:
    """The cluster at the log position `head`, at time `at` (ms); `fold` alone changes anything."""

    def __init__(self) -> None:  # noqa: PLR0915 - one a fact or index
        self.head = self.at = 0
        self.master: str | None = None
        self.election: Election | None = None
        """None if an older version wrote the snapshot that the state is from."""
        self.before_at = 0
        self.unserved_since = 0
        """The time of the last turn of a master, while an operator's decision about the log stands after it."""
        """The time (ms) of the turn before the present one."""
        self.lost_with: dict[str, list[str]] = {}
        """Worker -> the apps of the executors and drivers that are lost in this turn; a driver's with "/"."""
        self.last_end = NO_SPENT
        """What the executor or driver had and used that ended last (semantics O5); it is no fact."""
        self.settings = ClusterConfigured()
        self.configured = False
        self.edition = 2
        """Of which edition of the rules of sharing the log is; 2 before any `EditionChanged` (semantics H8)."""
        self.edition_at = 0
        """Since when (ms) it is in force; 0 = from the beginning."""
        self.ranks: dict[str, Ranks] = {}
        """App whose executors run programs -> the indexes of these, until it is over (semantics G1)."""
        self.kinds: list[str] = []
        """The registered kinds of resources beside cores and memory (semantics R1)."""
        self.companies: dict[str, Company] = {}
        self.departments: dict[str, Department] = {}
        """By their names, in the order in which they were added (semantics H12)."""
        self.keeping = False
        """Whether any of them lends less than its quota."""
        self.workers: dict[str, Worker] = {}
        self.apps: dict[str, App] = {}
        self.windows: dict[str, Window] = {}
        """By their names, in the order in which they were added, until they are over (semantics W14)."""
        self.planned: dict[str, tuple[Window, ...]] = {}
        """Worker -> its windows, the first one first."""
        self.lost: dict[str, LostWorker] = {}
        """The workers that were lost and are still remembered, in the order of their loss (semantics N3)."""
        self.offers = Offers()
        """The workers that are registered, or lost and remembered, by what they offer (semantics N3)."""
        self.waiting: dict[str, App] = {}
        self.ended: OrderedDict[str, None] = OrderedDict()
        self.executors: dict[str, Allocation] = {}
        self.balance = Balance()
        self.known_ledgers: dict[tuple[str, str], LedgersOfUser] = {}
        self.commands: dict[str, int] = {}
        """Command id -> log position of the last event it caused."""
        self.carried_out: deque[tuple[str, int]] = deque()
        """Command ids in the same order, each with the time (ms) when it was carried out last."""
        self.forgotten_at = 0
        """When the newest command was carried out whose id is forgotten (ms); 0 if none is."""
        self.refusals: dict[str, tuple[str, str]] = {}
        """Commands of these that were refused: the name of the error and its sentence (semantics T3)."""
        self.refused: dict[str, int] = {}
        self.refused_minute = 0
        """Account -> how many of its refusals are logged in the minute since 1970 in which the last one was."""
        self.public_keys: dict[str, str] = {}
        """The keys by which masters sign, id -> public half in hex; the last one signs (semantics I6)."""
        self.decisions: dict[str, int] = {}
        """What operators decided on a log that was restored or is shorter than one known, as `POSITION@TIME` -> the
        last position known that the log need not hold, 0 = any (semantics I7)."""
        self.sealed = self.sealed_at = 0
        """The last position that is sealed, and when that was logged (ms)."""
        self.queue = AppQueue()
        self.forming = ""
        """The gang that was granted some of its executors: the others come before anything else (semantics G8)."""
        self.fleet = Fleet(executor_sizes(self.settings), self.minimum_executor())
        self.demands = Demands()
        """What apps that have not ended demand of their workers' labels (semantics P9)."""
        self.claims = Claims(self.fleet, self.apps)
        self.limits = Limits()
        self.accounts = Accounts()
        self.closed = False
        """Whether there was an account ever, so that every sender needs a permission (semantics I2)."""
        self.claims.configure(self.settings)
        self.drivers: dict[str, Allocation] = {}
        self.holds: dict[int, Hold] = {}
        """The targets, by the position of their events (semantics H6)."""
        self.slots: dict[str, Slot] = {}
        """App that awaits a slot or has one -> that, in the order in which they began to wait (semantics H10)."""
        self._stepped_at = 0
        """The time (ms) of the last event that the timers of their steps regard."""
        self.stepping: tuple[int, tuple[str, ...]] = 0, ()
        """The time (ms) of a turn and which of them may take a step in it, as its beginning tells; it is no fact."""
        self.dependents = Dependents()
        self.filling = LastFilling()
        self._indexes = Indexes(self.apps, self.workers, self.slots, self.planned)
        self.changed = self._indexes.changed

    def wanting(self) -> list[App]:
        """The admitted apps that are owed executors, by admission, then those whose driver waits, by submission."""
        return [*self.indexes.owed, *self.indexes.drivers]

    def wants_executors(self, app: App) -> bool:
        """Whether placement owes the app an executor (P4, A7), within its limit (P4), once its driver runs (D1)."""
        if app.ended is not None or not app.admitted or app.expired_at:
            return False
        if app.left_executors <= 0:
            return False
        if app.spec.driver is not None and not app.driver_runs:
            return False
        sizing, least = app.sizing, 1
        if type(sizing) is not Computed:
            least = app.spec.cores_per_task
        if type(sizing) is Fixed and not PLACEMENTS[self.settings.placement].one_a_worker:
            least = sizing.each.cores
        return app.left_cores >= least

    @property
    def by_entitlement(self) -> bool:
        """Whether sharing is by entitlement; with open admission nobody is entitled to anything (semantics H, A6)."""
        return self.settings.admission == "fair"

    @property
    def sparing(self) -> bool:
        """Whether workers that offer kinds which an app does not request come last for it (semantics P1)."""
        return self.settings.spare_resources and self.settings.admission == "fair"

    @property
    def indexes(self) -> Indexes:
        """What follows from the facts, brought up to date with the last event."""
        if self.changed.apps or self.changed.workers:
            self.refresh()
        return self._indexes

    def refresh(self) -> list[str]:
        """Bring the indexes up to date; the names of the apps and workers that stood elsewhere."""
        return self._indexes.refresh(self.settings, self.at)

    @property
    def timers(self) -> Timers:
        """Everything that waits for a time (semantics T1), brought up to date with the last event."""
        timers = self.indexes.timers
        if self._stepped_at != self.at:
            self._stepped_at = self.at
            self.changed.apps.update(dict.fromkeys(timers.due(self.at, "growth")))
            self.refresh()
        first = next(iter(self.lost.values()), None)
        remembered_ms = self.settings.remember_lost_s * 1000
        timers.set("", 0, () if first is None else ((first.at + remembered_ms, "lost"),))
        timers.set("", 1, ((min([each.end for each in self.windows.values()]), "over"),) if self.windows else ())
        return timers

    def any_due(self, at: int) -> bool:
        """Whether anything that waits for a time is due by `at` (ms)."""
        return self.timers.any_due(at)

    def idle_due(self, at: int) -> list[App]:
        """The elastic apps with an executor that is idle for too long by `at` (ms), in the order of admission (L6)."""
        return [self.apps[name] for name in self.timers.due(at, "idle")]

    def steps_due(self, at: int) -> list[App]:
        """The elastic apps with a step after the last event and by `at` (ms), in the order of admission (L6)."""
        return [self.apps[name] for name in self.timers.due(at, "growth")]

    def growing(self, at: int) -> list[App]:
        """The apps that may take a step in the turn at `at` (ms), as its beginning tells (L6)."""
        noted, names = self.stepping
        if noted != at:
            return []
        return [
            app for name in names if (app := self.waiting.get(name)) is not None and app.wants_more and not app.over
        ]

    def quota(self, company: str) -> Quota:
        """What the company may hold: its amounts, its part of the live cluster, or 1/N of it (semantics C2).

        Example, live workers with 60 cores in all: 25 % are 15 cores; one of 8 companies that bought nothing
        in particular has 15/2. With 20 cores more it is 20 and 10.
        """
        spec = self.companies[company].spec
        if spec.amounts is not None:
            return Quota(spec.amounts, named=spec.kinds)
        numerator, denominator = map(int, spec.part.split("/")) if spec.part else (1, len(self.companies))
        return Quota(self.fleet.total * numerator, denominator)

    def usage(self, company: Company) -> Resources:
        """The core-ms, MiB-ms and so on that the company has used up to now, faded by the half-life (semantics C5)."""
        return company.usage.until(self.at, company.balance, self.queue.basis.half_life_ms)

    def known_commands(self) -> list[tuple[str, int, int]]:
        """The ids of `commands`, the position of the last event of each, and when it was carried out last (ms)."""
        return [(command, self.commands[command], at) for command, at in self.carried_out]

    def recall_command(self, command: str, seq: int, at: int) -> None:
        """The next one of `known_commands`, as a snapshot has it."""
        self.commands[command] = seq
        self.carried_out.append((command, at))

    def may_log_refusal(self, at: int, account: str) -> bool:
        """Whether one more refusal of a command of the account at time `at` (ms) is logged (semantics T3)."""
        return at // MINUTE_MS != self.refused_minute or self.refused.get(account, 0) < REFUSALS_A_MINUTE

    def minimum_executor(self) -> Resources:
        """The least cores and memory of an executor that the scheduler sizes."""
        return Resources(self.settings.min_executor_cores, self.settings.min_executor_memory_mb)

    def known_workers(self) -> list[Worker | LostWorker]:
        """The workers that are registered, or lost and still remembered (semantics N3)."""
        return [*self.workers.values(), *self.lost.values()]

    def to_forget(self, at: int) -> list[str]:
        """The workers lost so long before `at` (ms) that they are remembered no longer (semantics N3)."""
        if not self.lost:
            return []
        lost_by = at - self.settings.remember_lost_s * 1000
        return [worker.id for worker in takewhile(lambda worker: worker.at <= lost_by, self.lost.values())]

    def ledgers(self, company: str, user: str) -> LedgersOfUser:
        """The balances that an app of the user counts in; one tuple for all of them."""
        known = self.companies[company]
        balance = known.users[user].balance
        found = self.known_ledgers.get((company, user))
        if found is None or found[2] is not balance:
            found = self.known_ledgers[company, user] = self.balance, known.balance, balance
        return found

    def following(self) -> list[App]:
        """The apps whose memory request is behind the live workers, in the order of admission (semantics S5)."""
        followers = self.indexes.followers
        if not followers or self.settings.admission == "open":
            return []
        ranks = [rank for number, group in followers.groups.items() if number < self.fleet.live for rank in group]
        return [followers.members[rank] for rank in sorted(ranks)]

    @contextmanager
    def seen_by(self, app: App, without: Collection[str] = (), lending: Sequence[Hold] = ()) -> Iterator[None]:
        """Have the fleet show what is open to the app: also room that is held for it, nothing `without` (H6, W7).

        And the room of the targets that are `lending` theirs to it (semantics H11).
        """
        names = dict.fromkeys((*[hold.worker for hold in (*app.holds.values(), *lending)], *without))
        lent = [hold.id for hold in lending]
        seen = [
            (worker, worker.open_to(None), NOTHING if worker.id in without else worker.open_to(app.id, lent))
            for worker in map(self.workers.get, names)
            if worker is not None and worker.status == "alive"
        ]
        for worker, everybody, own in seen:
            self.fleet.move(worker.id, everybody, own)
        try:
            yield
        finally:
            for worker, everybody, own in seen:
                self.fleet.move(worker.id, own, everybody)
