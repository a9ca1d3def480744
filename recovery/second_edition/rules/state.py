"""The cluster as the log tells it: `ClusterState.apply` is the one place where anything changes.

Two states that folded the same events are equal and have the same digest, on any machine. `apply` decides nothing:

- A *fact* is what an event states, the position and time it has, and the sums and counts of such: entities, their
  status, ledgers, usage, failures in a row, who was selected last, since when an app is held back.
- An *index* follows from the facts and exists so that a decision does not grow with the cluster: `fleet`, `rooms`,
  `queue`, `claims`, `places`, `timers`, `owed`, `needy`, `holders`, `followers`, `waiting_drivers`, `dependents`,
  `suspects`, `probes`, `owned`.
  `invariants` recomputes all.
- What a rule *decides* stands in an event: a reservation, pending requests, the request that a grant raises.

Before it changes anything, `apply` checks the event's preconditions. The module is longer than most because a newcomer
finds in it every change there can be.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from hashlib import blake2b
from itertools import takewhile
from sys import intern
from typing import Any

from msgspec import json as msgspec_json
from msgspec import structs, to_builtins

from recovery.second_edition.rules.accounts import Accounts
from recovery.second_edition.rules.admission.limits import Limits
from recovery.second_edition.rules.admission.queue import AppQueue, Ask, ask_of
from recovery.second_edition.rules.admission.user import Contender
from recovery.second_edition.rules.changes import Changes
from recovery.second_edition.rules.claims import Claims
from recovery.second_edition.rules.dependents import Dependents
from recovery.second_edition.rules.entities import (
    Allocation,
    App,
    Company,
    Demand,
    Election,
    Hold,
    HoldReason,
    Lack,
    LostWorker,
    QuickEnd,
    Slot,
    Suspicion,
    Trouble,
    User,
    Worker,
    shared_spec,
)
from recovery.second_edition.rules.fleet import Fleet, tally
from recovery.second_edition.rules.followers import Followers
from recovery.second_edition.rules.holders import Holders
from recovery.second_edition.rules.ledger import Accounts as LedgersOfUser
from recovery.second_edition.rules.ledger import Balance, Usage, add_grant, add_request, granted
from recovery.second_edition.rules.placement.delay import takeable_at, timers_of
from recovery.second_edition.rules.placement.executors import PLACEMENTS
from recovery.second_edition.rules.placement.owed import Owed
from recovery.second_edition.rules.placement.sizing import executor_sizes
from recovery.second_edition.rules.preconditions import PRECONDITIONS
from recovery.second_edition.rules.ranks import Ranks
from recovery.second_edition.rules.rooms import Rooms
from recovery.second_edition.rules.timers import Timers
from recovery.second_edition.rules.topology import Topology
from recovery.second_edition.rules.trouble import (
    failures_in_a_row,
    is_quick,
    restart_after,
    suspect_failures,
    suspicion_timers,
)
from scheduler.model import events
from scheduler.model.commands import Private
from scheduler.model.errors import InvariantViolated
from scheduler.model.events import (
    AppRegistered,
    ClusterConfigured,
    CommandRefused,
    CompanyRegistered,
    Computed,
    Event,
    Fixed,
    OnePerWorker,
)
from scheduler.model.quota import Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.model.sender import NOBODY, By

REFUSALS_A_MINUTE = 60
MINUTE_MS = 60_000
SIGNALS_KEPT = 8
"""So many signals of an executor or driver are passed on if they come before its worker looks."""
CHANGED_APPS = 1_000
"""How many apps may be kept whose timers are to be looked at: a replay asks for no timers, and would keep every app."""
KNOWN_COMMANDS = 10_000
"""How many ids of commands that changed something are remembered, so that asking twice is safe."""


_to_json = msgspec_json.Encoder().encode


class ClusterState:
    """The fold of the log up to position `head`, at time `at` (ms)."""

    def __init__(self) -> None:  # noqa: PLR0915 - one a fact or index
        self.head = self.at = 0
        self.master: str | None = None
        self.election: Election | None = None
        """None if an older version wrote the snapshot that the state is from."""
        self._before_at = 0
        """The time (ms) of the turn before the present one."""
        self._lost_with: dict[str, list[str]] = {}
        """Worker -> the apps of the executors and drivers that are lost in this turn; a driver's with "/"."""
        self.settings = ClusterConfigured()
        self.configured = False
        self.edition = 2
        """By which edition of the rules of sharing it is decided (semantics H)."""
        self.edition_at = 0
        self.ranks: dict[str, Ranks] = {}
        """App whose executors run programs -> the indexes of these, until it is over (semantics G6)."""
        """Since when (ms) it is in force; 0 = from the beginning."""
        self.kinds: list[str] = []
        """The registered kinds of resources beside cores and memory (semantics R1)."""
        self.companies: dict[str, Company] = {}
        self.workers: dict[str, Worker] = {}
        self.apps: dict[str, App] = {}
        self.lost: dict[str, LostWorker] = {}
        """The workers that were lost and are still remembered, in the order of their loss (semantics N3)."""
        self.offers: dict[Resources, int] = {}
        """What a worker offers that is registered, or lost and remembered -> how many offer that."""
        self.waiting: dict[str, App] = {}
        self.owned: dict[str, App] = {}
        """The apps that have not ended and whose owner shows signs of life (semantics G4)."""
        self.ended: OrderedDict[str, None] = OrderedDict()
        self.executors: dict[str, Allocation] = {}
        self.balance = Balance()
        self._ledgers: dict[tuple[str, str], LedgersOfUser] = {}
        self.commands: dict[str, int] = {}
        """Command id -> log position of the last event it caused."""
        self._commands: deque[tuple[str, int]] = deque()
        """The same ids in the same order, each with the time (ms) when it was carried out last."""
        self.forgotten_at = 0
        """When the newest command was carried out whose id is forgotten (ms); 0 if none is."""
        self.refusals: dict[str, tuple[str, str]] = {}
        """Those of these commands that were refused: the name of the error and its sentence (semantics T3)."""
        self.refused: dict[str, int] = {}
        self.refused_minute = 0
        """Account -> how many of its refusals are logged in the minute since 1970 in which the last one was."""
        self.public_keys: dict[str, str] = {}
        """The keys by which masters sign, id -> public half in hex; the last one signs (semantics I6)."""
        self.decisions: dict[str, int] = {}
        """What operators decided on a log that was restored or is shorter than one known, as `POSITION@TIME` -> the
        last position known that the log need not hold, 0 = any (semantics I7, I8)."""
        self.sealed = self.sealed_at = 0
        """The last position that is sealed, and when that was logged (ms)."""
        self.queue = AppQueue()
        self.fleet = Fleet(executor_sizes(self.settings), self._minimum_executor())
        self.rooms = Rooms(self.workers)
        self.claims = Claims(self.fleet, self.apps)
        self.limits = Limits()
        self.accounts = Accounts()
        self.closed = False
        """Whether there was an account ever, so that every sender needs a permission (semantics I2)."""
        self.claims.configure(self.settings)
        self.places = Topology()
        self._timers = Timers()
        self._timed = -1
        """The position of the last event that the timers regard."""
        self.drivers: dict[str, Allocation] = {}
        self.holds: dict[int, Hold] = {}
        """What is held for apps, by the position of its event (semantics P8, E5)."""
        self.holders = Holders()
        """The admitted apps that have executors."""
        self.elastics: dict[str, dict[str, App]] = {}
        """Company -> its elastic apps in waitingApps."""
        self.driver_cores = 0
        """The cores of live workers that drivers hold (semantics D4, A4)."""
        self.owed = Owed()
        """The apps that placement still owes executors (semantics P6)."""
        self.needy: dict[str, App] = {}
        """The admitted apps that have a need (semantics H6)."""
        self.slots: dict[str, Slot] = {}
        """App that awaits a slot or has one -> that, in the order in which they began to wait (semantics H10)."""
        self.steppers: dict[str, App] = {}
        """The elastic apps whose tasks call for more executors than they request (semantics L6)."""
        self._stepped_at = 0
        """The time (ms) of the last event that the timers of their steps regard."""
        self.stepping: tuple[int, tuple[str, ...]] = 0, ()
        """The time (ms) of a turn and which of them may take a step in it, as its beginning tells; it is no fact."""
        self.wishes: dict[str, App] = {}
        """The apps whose stated demand is not met yet (semantics L1)."""
        self.followers = Followers()
        """The apps whose request follows the live workers (semantics S5)."""
        self.suspects: dict[str, Worker] = {}
        """The suspected workers, all of them live (semantics W8)."""
        self.probes: dict[str, Worker] = {}
        """Those of them that may get an executor as a probe."""
        self.waiting_drivers: list[int] = []
        """Positions of submission of the admitted apps whose driver waits for a worker, in order (semantics D1)."""
        self._by_submission: dict[int, App] = {}
        self.dependents = Dependents()
        self.changes = Changes()

    def apply(self, event: Event, at: int, cause: str = "", private: Private | None = None, by: By = NOBODY) -> None:
        """Fold the next event of the log; `cause` is the id of the command behind it, if any.

        With the first event of a command come `private`, its private part, None if it has none or it is withheld, and
        its sender `by`.

        Raises: InvariantViolated naming the position and the rule if the event contradicts the state (see
        `preconditions`); nothing is changed then.
        """
        holds, fold, done = _FOLDS.get(type(event), _OF_LATER_EDITIONS)
        broken = holds(self, event) if at >= self.at else ("T2", f"time {at} is before {self.at}")
        if broken is not None:
            rule, why = broken
            raise InvariantViolated(self.head + 1, f"{type(event).__name__}: {why}", rule)
        self.head += 1
        if at != self.at:
            if self.owed.lists:
                self._note_shortage()
            if len(self._timers.changed) > CHANGED_APPS:
                self._timers_but_shortage()
            self._before_at = self.at
            self.at = self.queue.basis.at = at
        if cause:
            self._remember(cause)
            if type(event) is CommandRefused:
                self.refusals[cause] = event.error, event.message
                self._count_refusal(by.account)
        fold(self, event)
        if self.changes.kept is not None:
            self.changes.mark(event)
        if self.queue.to_review:
            self.queue.review()
        if private is not None:
            self._keep_private(event, private)
        if done and by is not NOBODY and by.role in ("user", "admin", "operator"):
            app = self.apps.get(event.app)  # type: ignore[union-attr]  # events of apps
            if app is not None:
                app.asked = app.asked or {}
                app.asked[done] = by.account

    def _keep_private(self, event: Event, private: Private) -> None:
        """Keep the private part of the command whose first event was folded (semantics I3)."""
        match event:
            case events.AppRegistered(app=name):
                self.apps[name].private_json = _to_json(private)
            case events.AppRemoved(app=name) if (app := self.apps.get(name)) is not None:
                app.private_json = _to_json(structs.replace(app.private or Private(), said=private.said))
            case events.WorkerChanged(worker=worker):
                self.workers[worker].said = private.said
            case events.AccountAdded(account=account) | events.AccountChanged(account=account):
                self.accounts.known[account].display = private.display
            case _:  # of a refused command
                pass

    def next_waiting_driver(self, after: int) -> App | None:
        """The app whose driver waits for a worker and that was submitted next after position `after` (semantics D1)."""
        index = bisect_right(self.waiting_drivers, after)
        return self._by_submission[self.waiting_drivers[index]] if index < len(self.waiting_drivers) else None

    def drivers_waiting(self) -> list[App]:
        """The apps whose drivers wait for a worker, in the order of submission (semantics D1)."""
        return [self._by_submission[position] for position in self.waiting_drivers]

    def wanting(self) -> list[App]:
        """The admitted apps that are owed executors, by admission, then those whose driver waits, by submission."""
        return [*self.owed.apps(), *self.drivers_waiting()]

    def wants_executors(self, app: App) -> bool:
        """Whether placement owes the app an executor (P4, A7), within its limit (P5), once its driver runs (D1)."""
        if app.ended is not None or not app.admitted or app.expired_at:
            return False
        limit = app.executor_limit
        if limit is not None and limit <= len(app.executors):
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
    def sparing(self) -> bool:
        """Whether workers that offer kinds which an app does not request come last for it (semantics R6)."""
        return self.settings.spare_resources and self.settings.admission == "fair"

    @property
    def timers(self) -> Timers:
        """Everything that waits for a time (semantics T1), brought up to date with the last event."""
        timers = self._timers_but_shortage()
        if self._timed != self.head:
            self._timed = self.head
            if self.owed.lists or timers.short:
                self._set_short()
        return timers

    def _timers_but_shortage(self) -> Timers:
        """Those of companies with held-back apps and of apps: all that a stage before placement asks for."""
        if self.queue.changed:
            for company in self.queue.changed:
                self._timers.set(company, 0, self.queue.moments(company))
            self.queue.changed.clear()
        if changed := self._timers.changed:
            for app in changed.values():
                self._set_timers(app)
            changed.clear()
        if self._stepped_at != self.at:
            self._stepped_at = self.at
            for name in self._timers.due(self.at, "growth"):
                self._set_timers(self.apps[name])
        return self._timers

    def any_due(self, at: int) -> bool:
        """Whether anything that waits for a time is due by `at` (ms)."""
        return self._timers_but_shortage().any_due(at)

    def _set_short(self) -> None:
        """When the companies that have not reached their parts will have been short for too long (semantics P8)."""
        short = {name: self.short_since(name) for name in self.owed.companies()}
        patience_ms = self.settings.hold_patience_s * 1000
        for name in {**self._timers.short, **short}:
            since = short.get(name)
            self._timers.set(name, -1, () if since is None else ((since + patience_ms, "short"),))
        self._timers.short = dict.fromkeys(short)

    def short_since(self, company: str) -> int | None:
        """Since when (ms) the company has not reached its part at the end of each turn; None if it has (semantics P8).

        It is kept for companies that are owed executors.
        """
        if self.settings.admission == "open" or self.queue.reached(company):
            return None
        since = self.companies[company].short_since
        return self.at if since is None else since

    def _note_shortage(self) -> None:
        """Time moves on, so the turn has ended: which companies have not reached their parts (semantics P8)."""
        for name in self.owed.companies():
            self.companies[name].short_since = self.short_since(name)

    def to_reserve(self, at: int) -> list[str]:
        """The apps that a company's room is to be reserved for by `at` (ms), company by company (semantics C7)."""
        due = self._timers_but_shortage().due(at, "reservation") if self.queue.arrivals else ()
        return [app for company in due for app in self.queue.to_reserve(company, at)]

    def to_lapse(self, at: int) -> list[str]:
        """The apps whose reservation has lasted too long by `at` (ms), company by company (semantics C7)."""
        return [
            app for company in self._timers_but_shortage().due(at, "lapse") for app in self.queue.to_lapse(company, at)
        ]

    def idle_due(self, at: int) -> list[App]:
        """The elastic apps with an executor that is idle for too long by `at` (ms), in the order of admission (L6)."""
        if not self.elastics:  # most clusters: nobody asks for timers that placement changes
            return []
        return [self.apps[name] for name in self._timers_but_shortage().due(at, "idle")]

    def steps_due(self, at: int) -> list[App]:
        """The elastic apps with a step after the last event and by `at` (ms), in the order of admission (L6)."""
        if not self.steppers:
            return []
        return [self.apps[name] for name in self._timers_but_shortage().due(at, "growth")]

    def growing(self, at: int) -> list[App]:
        """Those that may take a step in the turn at `at` (ms), as its beginning tells (L6)."""
        noted, names = self.stepping
        if noted != at:
            return []
        return [app for name in names if (app := self.steppers.get(name)) is not None]

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

    def digest(self) -> str:
        """Hex of BLAKE2b-128 over every fact of the state: equal states have equal digests, whatever led there.

        What is private is no part of it: a log that withholds it leads to the same state.
        """
        text = json.dumps(self.dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def dump(self) -> dict[str, Any]:
        """Every fact of the state as JSON values; where order matters it stands in lists."""
        return {
            "head": self.head,
            "at": self.at,
            "master": self.master,
            "configured": self.configured,
            "edition": self.edition,
            "editionAt": self.edition_at,
            "settings": structs.asdict(self.settings),
            "kinds": self.kinds,
            "balance": to_builtins(self.balance),
            "companies": {name: self._company_facts(company) for name, company in self.companies.items()},
            "workers": {name: _worker_facts(worker) for name, worker in self.workers.items()},
            "limits": [[*holder, each] for holder, each in sorted(self.limits.values.items())],
            "buckets": [[*holder, *bucket] for holder, bucket in sorted(self.limits.buckets.items())],
            "lost": {name: _facts(worker, "executors", "drivers", "apps") for name, worker in self.lost.items()},
            "apps": {name: _app_facts(app) for name, app in self.apps.items()},
            "waiting": list(self.waiting),
            "ended": list(self.ended),
            "executors": to_builtins(self.executors),
            "drivers": to_builtins(self.drivers),
            "holds": [_facts(hold, "leaving") for hold in self.holds.values()],
            "held_back": sorted(map(list, self.queue.held_back())),
            "commands": list(map(list, self.known_commands())),
            "forgotten_at": self.forgotten_at,
            "public_keys": list(self.public_keys.items()),
            "decisions": list(self.decisions.items()),
            "sealed": [self.sealed, self.sealed_at],
            "refusals": [[name, *said] for name, said in self.refusals.items()],
            "refused": [self.refused_minute, self.refused],
            "closed": self.closed,
            "accounts": {name: _facts(account) for name, account in self.accounts.known.items()},
            "tokens": [list(token) for token in self.accounts.tokens.values()],
            "shown": list(self.accounts.shown),
            "inhabited": list(self.accounts.inhabited),
            **({"ranks": to_builtins(self.ranks)} if self.ranks else {}),
            **({"slots": [[name, *slot] for name, slot in self.slots.items()]} if self.slots else {}),
        }

    def index(self, held_back: Iterable[tuple[str, int, bool]]) -> None:
        """Work out every index from the facts alone: for a state whose facts were read back, before any event.

        `held_back` is the result of `AppQueue.held_back`.
        """
        self.fleet.configure(executor_sizes(self.settings), self._minimum_executor())
        self.claims.configure(self.settings)
        self.queue.configure(self.settings)
        self.queue.basis.at = self.at
        for allocation in (*self.executors.values(), *self.drivers.values()):
            if allocation.status == "stopping":
                self.workers[allocation.worker].leaving += allocation.resources
                self.apps[allocation.app].leaving += allocation.resources
            if allocation.claim in self.holds:
                self.holds[allocation.claim].leaving[allocation.id] = allocation
        for name, company in self.companies.items():
            standing = self.claims.of(name)
            standing.balance, standing.stranded = company.balance, company.balance.granted
            selected = company.last_selected
            self.queue.add_company(name, company.balance, company.usage, last_selected=selected, standing=standing)
            for user_name, user in company.users.items():
                standing = self.claims.standings(name, user_name)[2]
                known = Contender(user_name, user.balance, user.last_selected, user.last_selected_at, standing=standing)
                self.queue.add_user(name, known)
            self.queue.set_limits(name, self.limits)
        for worker in self.workers.values():
            self._set_live(worker, was=False, now=worker.status == "alive")
            self._set_suspicion(worker)
        for offering in self.known_workers():
            tally(self.offers, offering.offer, 1)
        self._wait_to_forget()
        self._set_quotas()
        for app in self.apps.values():
            app.need = self.claims.need_of(app)
            if app.spec.owner_timeout_s is not None and app.ended is None:
                self.owned[app.id] = app
            if app.demand.target is not None and not app.over:
                self.wishes[app.id] = app
        pending = [app for app in self.apps.values() if not app.admitted and app.ended is None]
        ready = sorted((app for app in pending if app.ready), key=lambda app: app.ready_position)
        for app in ready:
            if app.reserved_at or app.lapsed:
                self.queue.recall(app, app.reserved_at, app.lapsed)
        self.queue.push_all(ready)
        for app in sorted((app for app in pending if app.awaits or not app.ready), key=lambda app: app.submitted):
            self.dependents.add(app, self.apps)
        for executor in self.executors.values():
            self._set_takeable(executor)
        for name in self.slots:
            self._set_slot_timer(name)
        for app in pending:
            if app.not_before:
                self._set_beginning(app)
        admitted = [app for app in self.apps.values() if app.admitted and app.ended is None]
        for app in sorted(admitted, key=lambda app: app.admitted):
            self._index_admitted(app)
        if self.limits.values or self.closed:
            self._count_apps()
        self.queue.hold_back(held_back)

    def _index_admitted(self, app: App) -> None:
        self.waiting[app.id] = app
        if app.lack.units:
            self.needy[app.id] = app
        self.queue.companies[app.spec.company].admitted += 1
        if not app.next_executor and not app.tries.next_driver:
            self.claims.await_grant(app)
        if app.spec.driver is not None and app.driver is None and not app.expired_at:
            self._let_driver_wait(app, waits=True)
        if app.spec.elastic is not None and not app.expired_at:
            self.elastics.setdefault(app.spec.company, {})[app.id] = app
            self.claims.lend(app)
        owed_since = app.owed_since
        self._reconsider(app)
        app.owed_since = owed_since
        if app.executors and not app.expired_at:
            self.holders.add(app)
        self._set_timers(app)
        self.queue.touch(app.spec.company, app.spec.user)

    def _company_facts(self, company: Company) -> dict[str, Any]:
        return {
            "spec": to_builtins(structs.asdict(company.spec)),
            "balance": to_builtins(company.balance),
            "usage": to_builtins(self.usage(company)),
            "last_selected": company.last_selected,
            "short_since": company.short_since,
            "apps": company.apps,
            "users": {name: _facts(user) for name, user in company.users.items()},
        }

    def _remember(self, command: str) -> None:
        commands, known = self.commands, self._commands
        if command not in commands:
            known.append((command, self.at))
            if len(known) > KNOWN_COMMANDS:
                forgotten, at = known.popleft()
                del commands[forgotten]
                self.forgotten_at = max(self.forgotten_at, at)
                if self.refusals:
                    self.refusals.pop(forgotten, None)
        elif known[-1] != (command, self.at):
            known.remove(next(one for one in known if one[0] == command))
            known.append((command, self.at))
            del commands[command]
        commands[command] = self.head

    def known_commands(self) -> list[tuple[str, int, int]]:
        """The ids of `commands`, the position of the last event of each, and when it was carried out last (ms)."""
        return [(command, self.commands[command], at) for command, at in self._commands]

    def recall_command(self, command: str, seq: int, at: int) -> None:
        """The next one of `known_commands`, as a snapshot has it."""
        self.commands[command] = seq
        self._commands.append((command, at))

    def may_log_refusal(self, at: int, account: str) -> bool:
        """Whether one more refusal of a command of the account at time `at` (ms) is logged (semantics T3)."""
        return at // MINUTE_MS != self.refused_minute or self.refused.get(account, 0) < REFUSALS_A_MINUTE

    def _count_refusal(self, account: str) -> None:
        minute = self.at // MINUTE_MS
        if minute != self.refused_minute:
            self.refused, self.refused_minute = {}, minute
        self.refused[account] = self.refused.get(account, 0) + 1

    def _minimum_executor(self) -> Resources:
        return Resources(self.settings.min_executor_cores, self.settings.min_executor_memory_mb)

    def _master_elected(self, event: events.MasterElected) -> None:
        since = self._before_at if self.head > 1 else 0
        self.election = Election(event.master, self.master or "", self.at, since)
        self.master = event.master

    def _cluster_configured(self, event: ClusterConfigured) -> None:
        for company in self.companies.values():
            company.usage.update(self.at, company.balance, self.queue.basis.half_life_ms)
        self.settings = event
        self.configured = True
        self.fleet.configure(executor_sizes(event), self._minimum_executor())
        self.claims.configure(event)
        self.claims.recount_unserved(self.waiting.values())
        for app in self.apps.values():
            if app.ended is None:
                self._set_need(app)
        self.queue.configure(event)
        self._set_quotas()
        for app in self.waiting.values():
            self._timers.changed[app.submitted] = app
            self._reconsider(app)
        for executor in self.executors.values():
            self._set_takeable(executor)
        self.holders.misplace()
        self._wait_to_forget()
        self._forget_ended()

    def _kind_registered(self, event: events.KindRegistered) -> None:
        self.kinds.append(event.kind)

    def _company_registered(self, event: CompanyRegistered) -> None:
        company = self.companies[event.company] = Company(event, Usage(at=self.at))
        standing = self.claims.of(event.company)
        standing.balance = company.balance
        self.queue.add_company(event.company, company.balance, company.usage, standing=standing)
        if self.limits.values:
            self.queue.set_limits(event.company, self.limits)
        moved = [name for name, each in self.companies.items() if each.spec.by_default]
        self._set_quotas(event.company, *moved)

    def _company_changed(self, event: events.CompanyChanged) -> None:
        self.companies[event.company].spec = CompanyRegistered(**structs.asdict(event))
        self._set_quotas(event.company)

    def _limit_set(self, event: events.LimitSet) -> None:
        """Whom a limit keeps out is found anew: of one company, or of all if it is the cluster's (semantics N1)."""
        self.limits.set(event)
        self._count_apps()
        for name in (event.company,) if event.company else self.companies:
            self.queue.set_limits(name, self.limits)

    def _count_apps(self) -> None:
        """Count the apps of companies and users from now on: there are limits (semantics N1)."""
        if not self.claims.counts_apps:
            self.claims.count_apps([app for app in self.apps.values() if app.ended is None])

    def _company_removed(self, event: events.CompanyRemoved) -> None:
        del self.companies[event.company]
        self.limits.forget(event.company)
        self.accounts.forget_company(event.company)
        self.queue.remove_company(event.company)
        self.claims.forget(event.company)
        self._set_quotas()

    def _worker_registered(self, event: events.WorkerRegistered) -> None:
        offer = event.offer
        if event.worker in self.lost:
            self._forget_lost(event.worker)
        tally(self.offers, offer, 1)
        worker = self.workers[event.worker] = Worker(event.worker, event.node, event.host, event.rack, offer, offer)
        worker.addresses = event.addresses
        if self.holds:  # of a worker that was lost earlier in the turn
            worker.holds = {number: hold for number, hold in self.holds.items() if hold.worker == event.worker}
        self._set_live(worker, was=False, now=True)
        self._set_cluster()

    def _worker_labelled(self, event: events.WorkerLabelled) -> None:
        self.workers[event.worker].labels = event.labels

    def _worker_removed(self, event: events.WorkerRemoved) -> None:
        worker = self.workers.pop(event.worker)
        if event.reason == "lost":
            cut = self._lost_with.pop(event.worker, [])
            drivers = [name for name in cut if name.endswith("/")]
            apps = {name.rstrip("/") for name in cut}
            numbers = len(cut) - len(drivers), len(drivers), len(apps)
            self.lost[event.worker] = LostWorker(event.worker, worker.offer, self.at, *numbers)
            self._wait_to_forget()
        else:
            self._lost_with.pop(event.worker, None)
            tally(self.offers, worker.offer, -1)
        self._set_live(worker, was=worker.status == "alive", now=False)
        self._trust(worker)
        self._set_cluster()

    def _worker_changed(self, event: events.WorkerChanged) -> None:
        worker = self.workers[event.worker]
        self._set_live(worker, was=worker.status == "alive", now=False)
        tally(self.offers, worker.offer, -1)
        tally(self.offers, event.offer, 1)
        worker.free += event.offer - worker.offer
        if event.status != worker.status:
            worker.since = self.at
            if event.status in ("alive", "draining"):
                worker.said = ""
        worker.offer, worker.status, worker.addresses = event.offer, event.status, event.addresses
        worker.reason = event.reason
        worker.decommissioned = worker.status == "decommissioned" or (
            worker.decommissioned and worker.status == "leaving"
        )
        if worker.status != "alive":
            self._trust(worker)
        self._set_live(worker, was=False, now=worker.status == "alive")
        self._set_cluster()
        for allocation in (*worker.executors.values(), *worker.drivers.values()):
            spec = self.apps[allocation.app].spec
            if spec.company in self.queue.companies:
                self.queue.touch(spec.company, spec.user)

    def known_workers(self) -> list[Worker | LostWorker]:
        """The workers that are registered, or lost and still remembered (semantics N3)."""
        return [*self.workers.values(), *self.lost.values()]

    def to_forget(self, at: int) -> list[str]:
        """The workers lost so long before `at` (ms) that they are remembered no longer (semantics N3)."""
        if not self.lost:
            return []
        lost_by = at - self.settings.remember_lost_s * 1000
        return [worker.id for worker in takewhile(lambda worker: worker.at <= lost_by, self.lost.values())]

    def _lost_workers_forgotten(self, event: events.LostWorkersForgotten) -> None:
        self._forget_lost(*event.workers)

    def _forget_lost(self, *workers: str) -> None:
        for worker in workers:
            tally(self.offers, self.lost.pop(worker).offer, -1)
        self._wait_to_forget()

    def _wait_to_forget(self) -> None:
        first = next(iter(self.lost.values()), None)
        remembered_ms = self.settings.remember_lost_s * 1000
        self._timers.set("", 0, () if first is None else ((first.at + remembered_ms, "lost"),))

    def _trust(self, worker: Worker) -> None:
        """Nothing is known against a worker that is not live (semantics W8)."""
        worker.quick_ends, worker.suspicion = (), None
        self._set_suspicion(worker)

    def _worker_suspected(self, event: events.WorkerSuspected) -> None:
        worker = self.workers[event.worker]
        before, worker.quick_ends = worker.open_to(None), ()
        worker.suspicion = Suspicion(event.executors, self.at, event.until, event.times)
        self._show(worker, before)

    def _worker_probed(self, event: events.WorkerProbed) -> None:
        worker = self.workers[event.worker]
        before = worker.open_to(None)
        if worker.suspicion is not None:
            worker.suspicion.on_probe = True
        self._show(worker, before)

    def _worker_cleared(self, event: events.WorkerCleared) -> None:
        worker = self.workers[event.worker]
        before, worker.quick_ends, worker.suspicion = worker.open_to(None), (), None
        self._show(worker, before)

    def _probe(self, worker: Worker, suspicion: Suspicion, executor: str) -> None:
        """The suspected worker has that executor as its probe from now on, "" = none (semantics W8)."""
        before, suspicion.probe = worker.open_to(None), executor
        self._show(worker, before)

    def _show(self, worker: Worker, before: Resources) -> None:
        """Bring what follows from a suspicion up to date; `before` was open to new executors."""
        self._reopen(worker, before)
        self._set_suspicion(worker)

    def _reopen(self, worker: Worker, before: Resources) -> None:
        """Another amount than `before` may be open to new executors on the worker."""
        if worker.status == "alive":
            self.fleet.move(worker.id, before, worker.open_to(None))
        self.rooms.touch(worker)

    def _set_suspicion(self, worker: Worker) -> None:
        self.suspects.pop(worker.id, None)
        self.probes.pop(worker.id, None)
        if worker.suspicion is not None:
            self.suspects[worker.id] = worker
            if not worker.suspicion.shut:
                self.probes[worker.id] = worker
        self._timers.set(worker.id, -3, suspicion_timers(worker))

    def _set_live(self, worker: Worker, *, was: bool, now: bool) -> None:
        if was == now:
            return
        change = self.fleet.join if now else self.fleet.leave
        change(worker.id, worker.offer, worker.open_to(None))
        self.rooms.touch(worker)
        held = sum(driver.resources.cores for driver in worker.drivers.values())
        self.driver_cores += held if now else -held
        move = self.places.join if now else self.places.leave
        move(worker.id, worker.host, worker.rack)
        for allocation in (*worker.executors.values(), *worker.drivers.values()):
            self.claims.stay(allocation, self.apps[allocation.app], live=now)

    def _set_quotas(self, *names: str) -> None:
        """The quotas of these companies, or of all, by the cluster and companies there are (semantics A8, C2, C4)."""
        self.queue.set_cluster(self.fleet.total, self._minimum_executor())
        for name in names or self.companies:
            spec = self.companies[name].spec
            self.queue.set_quota(name, self.quota(name), stops_idle=not spec.by_default, borrow=spec.may_borrow)

    def _set_cluster(self) -> None:
        """Which apps live workers could host, what they claim, and quotas, by the workers there are (A8, N3, C2)."""
        hosted, recounted = self.claims.review()
        for need in hosted:
            self.queue.rejudge(need)
        for company, user in recounted:
            self.queue.touch(company, user)
        self._set_quotas()

    def _set_need(self, app: App) -> None:
        """What the app needs of a worker, by its demand, its driver and the settings (semantics A8)."""
        need = self.claims.need_of(app)
        if need is app.need:
            return
        if app.admitted:
            if app.owed:
                self.owed.remove(app)
            if self.claims.move(app, need) is not NOTHING:
                self.queue.touch(app.spec.company, app.spec.user)
            if app.owed:
                self.owed.add(app)
        else:
            before, app.need = ask_of(app), need
            self._restate(app, before)

    def ledgers(self, company: str, user: str) -> LedgersOfUser:
        """The balances that an app of the user counts in; one tuple for all of them."""
        known = self.companies[company]
        balance = known.users[user].balance
        found = self._ledgers.get((company, user))
        if found is None or found[2] is not balance:
            found = self._ledgers[company, user] = self.balance, known.balance, balance
        return found

    def _restate(self, app: App, before: Ask) -> None:
        """A pending app, be it in its user's queue or not ready yet, asked that before."""
        if app.ready and ask_of(app) != before:
            if app.requested != before.request:
                app.reserved_at = 0
            self.queue.restate(app, before)

    def _app_registered(self, event: AppRegistered) -> None:
        company = self.companies[event.company]
        user = company.users.get(event.user)
        if user is None:
            user = company.users[event.user] = User()
        spec = shared_spec(event, company.spec.company, intern(event.user))
        requested, head, at = spec.requested, self.head, self.at
        need = self.claims.need(spec, spec.sizing, requested, spec.executor_limit, spec.driver or NOTHING)
        app = App(
            event.app,
            spec,
            self.claims.standings(event.company, event.user),
            self.ledgers(event.company, event.user),
            company.usage,
            submitted=head,
            submitted_at=at,
            requested=requested,
            executor_limit=event.executor_limit,
            sizing=spec.sizing,
            max_runtime_s=event.max_runtime_s,
            need=need,
            priority=event.priority,
        )
        if event.elastic is not None:
            app.demand = Demand(backlog_executors=event.elastic.backlog, next_step=event.elastic.step)
        company.apps += 1
        self.apps[event.app] = app
        if event.owner_timeout_s is not None:
            self.owned[event.app] = app
        if self.claims.counts_apps:
            self.claims.count(app, pending=1)
        if self.limits.rated:
            self.limits.take(event.company, event.user, self.at)
        if event.after or event.on_hold:
            app.ready, app.on_hold = False, event.on_hold
            self.dependents.begin(app, self.apps)
        else:
            self.queue.push(app)

    def _app_ready(self, event: events.AppReady) -> None:
        """The app joins its user's queue; its time counts from here (semantics J2, Q2)."""
        app = self.apps[event.app]
        app.ready, app.readied, app.readied_at = True, self.head, self.at
        self.dependents.judge(app)
        self.queue.push(app)
        if app.lapsed:
            self.queue.recall(app, 0, app.lapsed)

    def _app_held(self, event: events.AppHeld) -> None:
        app = self.apps[event.app]
        if app.ready:
            self.queue.remove(app)
            app.reserved_at = 0
        app.ready, app.on_hold = False, True
        self.dependents.judge(app)

    def _app_released(self, event: events.AppReleased) -> None:
        app = self.apps[event.app]
        app.on_hold = False
        self.dependents.judge(app)

    def _app_delayed(self, event: events.AppDelayed) -> None:
        app = self.apps[event.app]
        if app.ready:
            self.queue.remove(app)
        app.ready, app.not_before = False, event.until
        self.dependents.judge(app)
        self._set_beginning(app)

    def _app_due(self, event: events.AppDue) -> None:
        app = self.apps[event.app]
        app.not_before = 0
        self.dependents.judge(app)
        self._set_beginning(app)

    def _set_beginning(self, app: App) -> None:
        """When the app may be ready, if it waits for a time (semantics J4)."""
        waits = app.not_before and app.ended is None
        self._timers.set(app.id, -5, ((app.not_before, "begin"),) if waits else ())

    def _app_reprioritized(self, event: events.AppReprioritized) -> None:
        app = self.apps[event.app]
        if not app.admitted and app.ready:
            self.queue.reprioritize(app, event.priority)
        else:
            app.priority = event.priority
            self.holders.move(app)

    def _room_reserved(self, event: events.RoomReserved) -> None:
        app = self.apps[event.app]
        app.reserved_at = self.at
        self.queue.reserve(app, self.at)

    def _reservation_lapsed(self, event: events.ReservationLapsed) -> None:
        app = self.apps[event.app]
        app.reserved_at, app.lapsed = 0, self.head
        self.queue.lapse(app, self.head)

    def _app_admitted(self, event: events.AppAdmitted) -> None:
        """The app is last in waitingApps, and its request is in all three ledgers (semantics A3)."""
        app = self.apps[event.app]
        app.admitted, app.admitted_at = self.head, self.at
        self.waiting[event.app] = app
        add_request(app.accounts, app.requested)
        if self.claims.counts_apps:
            self.claims.count(app, pending=-1, admitted=1)
        self.claims.admit(app)
        company = self.companies[event.company]
        user = company.users[event.user]
        company.last_selected = user.last_selected = self.head
        user.last_selected_at = self.at
        app.on_lent = event.lent
        if app.spec.elastic is not None:
            app.demand = app.demand._replace(asked_at=self.at)
            self.elastics.setdefault(event.company, {})[event.app] = app
            self.claims.lend(app)
        self.queue.admit(app, self.head)
        if app.spec.driver is not None:
            self._let_driver_wait(app, waits=True)
        self._set_owed(app)

    def _app_changed(self, event: events.AppChanged) -> None:
        app, request = self.apps[event.app], event.requested
        asked = ask_of(app)
        if app.admitted:
            add_request(app.accounts, request - app.requested)
        app.requested = request
        self.claims.restate(app, asked.request)
        limit, wanted = app.executor_limit, app.wants_more
        app.done_cores, app.executor_limit = event.done_cores, event.executor_limit
        app.sizing = event.sizing
        if app.admitted:
            self._set_need(app)
        else:
            app.need = self.claims.need_of(app)
            self._restate(app, asked)
        app.demand = app.demand._replace(
            preferring_tasks=event.preferring_tasks,
            preferred_hosts=event.preferred_hosts,
            backlog_executors=event.backlog_executors,
            next_step=event.next_step,
        )
        if app.wants_more and (app.executor_limit != limit or not wanted):
            app.demand = app.demand._replace(asked_at=self.at)
        if event.target != app.demand.target:
            self._wish(app, event.target)
        if app.ready:
            self.queue.touch(app.spec.company, app.spec.user)
        self._reconsider(app)

    def _wish(self, app: App, target: int | None) -> None:
        """What was asked for and is not requested yet; one that is stated anew loses its place (semantics L1)."""
        app.demand = app.demand._replace(target=target, stated=app.demand.stated if target is None else self.head)
        if target is not None and app.ended is None:
            self.wishes[app.id] = app
        else:
            self.wishes.pop(app.id, None)

    def wishing(self) -> list[App]:
        """The admitted apps whose stated demand is not met yet, in the order of the statements (semantics L1)."""
        if not self.wishes:
            return []
        return sorted((app for app in self.wishes.values() if app.admitted), key=lambda app: app.demand.stated)

    def following(self) -> list[App]:
        """The apps whose memory request is behind the live workers, in the order of admission (semantics S5)."""
        if not self.followers.by_workers or self.settings.admission == "open":
            return []
        return self.followers.behind(self.fleet.live)

    def _executors_requested(self, event: events.ExecutorsRequested) -> None:
        app = self.apps[event.app]
        app.demand = app.demand._replace(wanted=event.pending)
        self._set_timers(app)

    def _app_removed(self, event: events.AppRemoved) -> None:
        """The app leaves waitingApps and the ledgers, or its queue; what still runs is to stop (semantics A5)."""
        app = self.apps[event.app]
        app.ended, app.ended_at, app.detail = event.reason, self.at, event.detail
        self.owned.pop(event.app, None)
        self._stop(app)
        if app.troubles or app.holds or app.tries.driver_after:
            self._timers.changed[app.submitted] = app
        if app.max_runtime_s is not None:
            self._count_runtime(app)
            self._set_timers(app)
        if event.app in self.slots:
            self._end_slot(event.app)
        if app.not_before:
            self._set_beginning(app)
        if app.admitted:
            del self.waiting[event.app]
            self.needy.pop(event.app, None)
            if self.claims.counts_apps:
                self.claims.count(app, admitted=-1)
            add_request(app.accounts, -app.requested)
            if app.unserved:
                self.claims.serve(app)
            self._reconsider(app)
            if app.spec.elastic is not None:
                self.claims.lend(app)
                self.elastics.get(app.spec.company, {}).pop(event.app, None)
            self.queue.leave(app, lower=app.spec.elastic is None)
        else:
            if self.claims.counts_apps:
                self.claims.count(app, pending=-1)
            if app.ready:
                self.queue.remove(app)
            else:
                self.dependents.drop(app)
        if event.app in self.dependents.of:
            self.dependents.tell(event.app, event.reason)
        self._forget_if_over(app)

    def _stop(self, app: App) -> None:
        """The app is owed nothing more, and what it holds must stop (semantics A5, X2)."""
        if app.executors:
            self.holders.drop(app)
        for held in app.allocations():
            self._let_leave(held)
        app.running = 0
        if app.demand.wanted:
            app.demand = app.demand._replace(wanted=())
        self.wishes.pop(app.id, None)
        if app.spec.driver is not None and app.driver is None and app.admitted and not app.expired_at:
            self._let_driver_wait(app, waits=False)

    def _app_warned(self, event: events.AppWarned) -> None:
        """Whatever of it runs now is to pass the signal to its tasks (semantics X2)."""
        app = self.apps[event.app]
        app.warned = True
        for held in app.allocations():
            if held.status != "stopping":
                held.warned_at = self.at
        self._set_timers(app)

    def _app_signalled(self, event: events.AppSignalled) -> None:
        """Whatever of it runs now is to pass the signal on (semantics X4)."""
        sent = self.head, event.signal, event.task, event.whole
        for held in self.apps[event.app].allocations():
            if held.status != "stopping":
                held.signals = (*held.signals, sent)[-SIGNALS_KEPT:]

    def _task_cancelled(self, event: events.TaskCancelled) -> None:
        """Who runs its tasks stops that one, or begins it no more (semantics X5)."""
        app = self.apps[event.app]
        app.cancelled = tuple(sorted((*app.cancelled, event.task)))

    def _app_expired(self, event: events.AppExpired) -> None:
        """The app is owed nothing more; what it holds must stop, and it stays until that is gone (semantics X2)."""
        app = self.apps[event.app]
        self._stop(app)
        app.expired_at = self.at
        self.elastics.get(app.spec.company, {}).pop(event.app, None)
        self._set_timers(app)
        self._reconsider(app)
        if app.spec.elastic is not None:
            self.claims.lend(app)
            self.queue.touch(app.spec.company, app.spec.user)

    def _app_extended(self, event: events.AppExtended) -> None:
        """It may run longer, and is warned before the new end (semantics X3)."""
        app = self.apps[event.app]
        app.max_runtime_s, app.warned = event.max_runtime_s, False
        self._set_timers(app)

    def _count_runtime(self, app: App) -> None:
        """Start or stop the clock of an app that may run for so long only (semantics X1)."""
        if app.max_runtime_s is None or app.runs == (app.running_since is not None):
            return
        if app.running_since is None:
            app.running_since = self.at
        else:
            app.ran_ms += self.at - app.running_since
            app.running_since = None
        self._set_timers(app)

    def _executor_allocated(self, event: events.ExecutorAllocated) -> None:
        app, worker = self.apps[event.app], self.workers[event.worker]
        executor = Allocation(
            event.executor,
            event.app,
            event.worker,
            event.resources,
            locality=event.locality,
            granted_at=self.at,
            addresses=event.addresses,
        )
        app.owed_since, app.returned_at = self.at, 0
        if not app.executors:
            self.holders.add(app)
            app.executors = {}
        if self.slots and (slot := self.slots.get(event.app)) is not None and slot.began:
            self._grant_in_slot(app, executor, slot)
        self.executors[event.executor] = app.executors[event.executor] = worker.executors[event.executor] = executor
        if self.settings.reclaim == "firm":
            self._set_takeable(executor)
        app.next_executor += 1
        if event.app in self.dependents.of:
            self.dependents.tell_beginning(event.app)
        if app.spec.programs:
            self.ranks.setdefault(app.id, Ranks()).take(event.executor, app.executor_limit or 0)
        if event.requested is not None:
            before = app.requested
            add_request(app.accounts, event.requested - before)
            app.requested = event.requested
            self.claims.restate(app, before)
            self.queue.touch(app.spec.company, app.spec.user)
        if worker.suspicion is not None:
            self._probe(worker, worker.suspicion, event.executor)
        self._grant(app, worker, event.resources)
        if app.owed:
            self._timers.changed[app.submitted] = app

    def _executor_changed(self, event: events.ExecutorChanged) -> None:
        """It is running, which ends its app's row of failures (semantics W5), or has become idle or busy (L6)."""
        executor = self.executors[event.executor]
        app = self.apps[executor.app]
        if executor.status != "running" and not executor.started:
            executor.started, executor.running_since = True, self.at
            app.started += 1
            if executor.status == "stopping":  # it leaves for a claim
                executor.was_running = True
            else:
                executor.status = event.status
                app.running += 1
            app.failures = app.failures if app.spec.programs else 0
            if (worker := self.workers[executor.worker]).suspicion is not None:
                self._set_suspicion(worker)
            self._count_runtime(app)
        if event.idle != (executor.idle_since is not None):
            executor.idle_since = self.at if event.idle else None
            self._reconsider(app)

    def _room_held(self, event: events.RoomHeld) -> None:
        """Less is free on the worker for everybody else (semantics P8)."""
        self._hold(event.worker, event.app, event.amounts, event.reason, within=event.within)

    def _hold(self, where: str, holder: str, amounts: Resources, reason: HoldReason, *, within: bool) -> None:
        app, worker = self.apps[holder], self.workers[where]
        before = worker.open_to(None)
        hold = Hold(self.head, where, holder, amounts, reason, self.at, within)
        if app.owed:
            self.owed.remove(app)
        app.holds = app.holds or {}
        self.holds[hold.id] = worker.holds[hold.id] = app.holds[hold.id] = hold
        if app.owed:
            self.owed.add(app)
        self._reopen(worker, before)
        self._timers.changed[app.submitted] = app

    def _hold_ended(self, event: events.HoldEnded) -> None:
        """What was held is free again; at its limit, its app gets none for as long (semantics P8)."""
        self._end_hold(event.hold, event.app, event.worker)
        if event.reason == "limit" and (app := self.apps.get(event.app)) is not None:
            app.no_hold_before = self.at + self.settings.hold_limit_s * 1000

    def _end_hold(self, number: int, holder: str, where: str) -> None:
        app, worker = self.apps.get(holder), self.workers.get(where)
        del self.holds[number]
        if worker is not None and number in worker.holds:
            before = worker.open_to(None)
            del worker.holds[number]
            self._reopen(worker, before)
        if app is not None:
            if app.owed:
                self.owed.remove(app)
            del app.holds[number]
            if app.owed:
                self.owed.add(app)
            self._timers.changed[app.submitted] = app

    def _edition_changed(self, event: events.EditionChanged) -> None:
        self.edition, self.edition_at = event.edition, self.at

    def _need_began(self, event: events.NeedBegan) -> None:
        app = self.needy[event.app] = self.apps[event.app]
        app.lack = Lack(event.units, event.date, self.at)

    def _need_ended(self, event: events.NeedEnded) -> None:
        app = self.needy.pop(event.app)
        app.lack = Lack(0, app.lack.date, app.lack.since, self.at)

    def _slot_awaited(self, event: events.SlotAwaited) -> None:
        self.slots[event.app] = Slot(event.date)
        self._set_slot_timer(event.app)

    def _slot_began(self, event: events.SlotBegan) -> None:
        """If nothing is granted in it, it is over after its length and the time that room takes (semantics H10)."""
        lasts_s = (self.settings.reclaim_patience_s or 0) + self.settings.slot_s
        date = self.slots[event.app].date
        self.slots[event.app] = Slot(date, self.at, event.units, self.at + lasts_s * 1000)
        self._set_slot_timer(event.app)

    def _slot_ended(self, event: events.SlotEnded) -> None:
        self._end_slot(event.app)

    def _end_slot(self, app: str) -> None:
        del self.slots[app]
        self._timers.set(app, -4, ())

    def _set_slot_timer(self, app: str) -> None:
        slot = self.slots[app]
        self._timers.set(app, -4, ((slot.until if slot.began else slot.date, "slot"),))

    def _grant_in_slot(self, app: App, executor: Allocation, slot: Slot) -> None:
        """The executor is one of those to which the slot entitles its app, if they are not all there (H10)."""
        there = [one for one in app.executors.values() if one.status != "stopping"]
        if len(there) < slot.units:
            slot = self.slots[app.id] = slot.granted_at(self.at, self.settings.slot_s * 1000)
            executor.until = slot.until
            self._set_slot_timer(app.id)

    def _target_set(self, event: events.TargetSet) -> None:
        """Less is free on the worker for everybody else (semantics H6)."""
        self._hold(event.worker, event.app, event.amounts, event.why, within=False)

    def _target_ended(self, event: events.TargetEnded) -> None:
        self._end_hold(event.target, event.app, event.worker)

    def _executor_revoked(self, event: events.ExecutorRevoked) -> None:
        executor = self.executors[event.executor]
        app = self.apps[executor.app]
        executor.was_running = executor.status == "running"
        app.running -= executor.was_running
        self._let_leave(executor)
        executor.revoked, executor.claim, executor.deadline = event.reason, event.hold, event.deadline or 0
        executor.firm = event.hold > 0 and self.settings.reclaim == "firm"
        if event.why == "plan":
            app.lack = app.lack.brought_forward(executor.deadline, self.at)
        if event.why == "move":
            executor.moved = True
            if app.id in self.ranks:
                self.ranks[app.id].leave(executor.id, done=False)
            app.moved += 1
            app.moving += executor.resources
        if event.hold:
            self.holds[event.hold].leaving[executor.id] = executor
            if app.losses[-1:] != (self.at,):
                app.losses = (*app.losses, self.at)[-self.settings.max_reclaims :]
                self.holders.move(app)
        self._reconsider(app)

    def _revocation_withdrawn(self, event: events.RevocationWithdrawn) -> None:
        """It goes on as before it was told to leave (semantics E5); it could take no task, so it is idle anew (L6)."""
        executor = self.executors[event.executor]
        app = self.apps[executor.app]
        executor.status = "running" if executor.was_running else "starting"
        app.running += executor.was_running
        executor.revoked, executor.claim, executor.deadline, executor.was_running = None, 0, 0, False
        executor.firm = False
        if app.id in self.ranks and executor.id not in self.ranks[app.id].held:
            self.ranks[app.id].take(executor.id, app.executor_limit or 0)
        if executor.idle_since is not None:
            executor.idle_since = self.at
        self._count_leaving(executor, -executor.resources)
        self._reconsider(app)

    def _let_leave(self, allocation: Allocation) -> None:
        """It was told to stop; what it has comes free on its worker (semantics A5)."""
        if allocation.status != "stopping":
            allocation.status = "stopping"
            self._count_leaving(allocation, allocation.resources)

    def _count_leaving(self, allocation: Allocation, change: Resources) -> None:
        worker = self.workers[allocation.worker]
        worker.leaving += change
        app = self.apps[allocation.app]
        app.leaving += change
        self.companies[app.spec.company].leaving += change
        self.rooms.touch(worker)

    def _executor_removed(self, event: events.ExecutorRemoved) -> None:
        """The grant returns; what it was done with is not owed again (semantics S6), a failure counts (W5)."""
        executor = self.executors.pop(event.executor)
        if self.settings.reclaim == "firm":
            self._timers.set(executor.id, -2, ())
        app, worker = self.apps[executor.app], self.workers[executor.worker]
        del app.executors[event.executor], worker.executors[event.executor]
        if not app.executors:
            self.holders.drop(app)
        if executor.status == "running":
            app.running -= 1
        elif executor.status == "stopping":
            self._count_leaving(executor, -executor.resources)
            if executor.claim in self.holds:
                self.holds[executor.claim].leaving.pop(event.executor, None)
        app.started -= executor.started
        if app.id in self.ranks:
            ended_well = event.reason == "exited" and executor.status != "stopping"
            self.ranks[app.id].end(executor.id, done=ended_well)
        if executor.moved:
            app.moved -= 1
            app.moving -= executor.resources
        if app.max_runtime_s is not None:
            self._count_runtime(app)
        if event.reason == "failed":
            app.failures = failures_in_a_row(app, executor, self.at)
        elif event.reason == "exited" and app.spec.programs:
            app.failures = 0
        if event.done:
            held = app.granted.cores - executor.resources.cores + app.unplaced_driver.cores - app.moving.cores
            done = app.requested.cores - held
            if app.returned_at == self.at:  # it may have found no task before these returned
                done = min(done, app.done_cores + executor.resources.cores)
            app.done_cores = max(0, done)
        elif event.reason in ("failed", "lost", "killed"):
            app.returned_at = self.at
        if event.reason == "lost":
            self._lost_with.setdefault(worker.id, []).append(app.id)
        self._note_end(event, executor, app, worker)
        self._grant(app, worker, -executor.resources)
        suspicion = worker.suspicion
        if suspicion is not None and suspicion.probe == executor.id:
            self._probe(worker, suspicion, executor.id if event.reason in ("failed", "exited") else "")
        self._forget_if_over(app)

    def _note_end(self, event: events.ExecutorRemoved, executor: Allocation, app: App, worker: Worker) -> None:
        """What the end says of the worker, for the app (semantics W7, W9) and for everybody (W8)."""
        if event.finished and app.troubles.pop(worker.id, None) is not None:
            self._timers.changed[app.submitted] = app
        if event.reason == "exited":
            worker.quick_ends = ()
        elif event.reason == "failed":
            if app.ended is None:
                ends, _, unstartable = app.troubles.get(worker.id, Trouble(0, 0))
                app.troubles = app.troubles or {}
                app.troubles[worker.id] = Trouble(ends + 1, self.at, unstartable or event.unstartable)
                self._timers.changed[app.submitted] = app
            if (number := suspect_failures(self.settings)) and is_quick(executor.running_since, self.at):
                worker.quick_ends = (*worker.quick_ends, QuickEnd(executor.id, app.id, self.at))[-number:]

    def _driver_allocated(self, event: events.DriverAllocated) -> None:
        app, worker = self.apps[event.app], self.workers[event.worker]
        driver = Allocation(
            event.driver, event.app, event.worker, event.resources, granted_at=self.at, addresses=event.addresses
        )
        if app.tries.driver_after:
            app.tries = app.tries._replace(driver_after=0)
            self._timers.changed[app.submitted] = app
        self.drivers[event.driver] = worker.drivers[event.driver] = app.driver = driver
        app.tries = app.tries._replace(next_driver=app.tries.next_driver + 1)
        if event.app in self.dependents.of:
            self.dependents.tell_beginning(event.app)
        if worker.status == "alive":
            self.driver_cores += event.resources.cores
        self._let_driver_wait(app, waits=False)
        self._count_runtime(app)
        self._set_need(app)
        self._grant(app, worker, event.resources)

    def _driver_removed(self, event: events.DriverRemoved) -> None:
        """The driver waits for a worker again; where its app ends with it, that is the next event (semantics D3)."""
        driver = self.drivers.pop(event.driver)
        app, worker = self.apps[driver.app], self.workers[driver.worker]
        del worker.drivers[event.driver]
        if event.reason == "lost":
            self._lost_with.setdefault(worker.id, []).append(f"{app.id}/")
        if driver.status == "stopping":
            self._count_leaving(driver, -driver.resources)
        app.driver = None
        if worker.status == "alive":
            self.driver_cores -= driver.resources.cores
        if app.ended is None:
            if app.spec.supervise and self.settings.admission == "fair" and event.reason in ("exited", "failed"):
                ends = app.tries.driver_ends + 1 if is_quick(driver.granted_at, self.at) else 0
                app.tries = app.tries._replace(driver_ends=ends, driver_after=restart_after(ends, self.at))
                self._timers.changed[app.submitted] = app
            if not app.expired_at:
                self._let_driver_wait(app, waits=True)
            self._set_need(app)
        self._count_runtime(app)
        self._grant(app, worker, -driver.resources)
        self._forget_if_over(app)

    def _let_driver_wait(self, app: App, *, waits: bool) -> None:
        if waits:
            insort(self.waiting_drivers, app.submitted)
            self._by_submission[app.submitted] = app
        else:
            del self.waiting_drivers[bisect_left(self.waiting_drivers, app.submitted)]
            del self._by_submission[app.submitted]

    def _grant(self, app: App, worker: Worker, grant: Resources) -> None:
        plain = worker.suspicion is None and not worker.holds
        before = worker.free if plain else worker.open_to(None)
        if app.usage.at != self.at:
            app.usage.update(self.at, app.accounts[1], self.queue.basis.half_life_ms)
        worker.free, app.granted = granted(worker.free, app.granted, grant)
        add_grant(app.accounts, grant)
        if worker.status == "alive":
            self.fleet.move(worker.id, before, worker.free if plain else worker.open_to(None))
            change = self.claims.update(app, grant)
            if self.rooms.watching:  # mostly not: save the call
                self.rooms.touch(worker)
        else:
            app.standings[1].stranded += grant
            change = self.claims.update(app)
        if app.unserved:
            self.claims.serve(app)
            self.queue.touch(app.spec.company, app.spec.user)
        elif self.settings.occupancy == "granted":
            self.queue.touch(app.spec.company, app.spec.user)
        if change is not NOTHING:
            lower = app.spec.elastic is None and NOTHING.covers(change)
            self.queue.touch(app.spec.company, app.spec.user, lower=lower)
        self._set_owed(app)

    def _reconsider(self, app: App) -> None:
        """Bring what follows from the app's demand and its executors up to date."""
        if self.claims.update(app) is not NOTHING:
            self.queue.touch(app.spec.company, app.spec.user)
        self._set_owed(app)

    def _set_owed(self, app: App) -> None:
        """Whether placement owes the app an executor, and the times that it waits for."""
        sizing = type(app.sizing)
        if sizing is Computed and app.executor_limit is None and app.spec.driver is None:  # most apps: save the calls
            held = app.granted.cores - app.moving.cores if app.moved else app.granted.cores
            left = app.ended is None and app.requested.cores > held + app.done_cores
            owed = left and app.admitted > 0 and not app.expired_at
        else:
            if sizing is Fixed:
                self._set_timers(app)
            elif sizing is OnePerWorker:
                self.followers.update(app)
            owed = self.wants_executors(app)
        if owed == app.owed:
            return
        app.owed = owed
        self._timers.changed[app.submitted] = app
        if owed:
            app.owed_since = self.at
            self.owed.add(app)
        else:
            self.owed.remove(app)

    def _set_takeable(self, executor: Allocation) -> None:
        """From when on the executor may be taken, where that is not at once (semantics E2)."""
        self._timers.set(executor.id, -2, takeable_at(executor, self.settings))

    def _set_timers(self, app: App) -> None:
        waits = (
            app.owed or app.demand.wanted or app.holds or app.troubles or app.elastic or app.max_runtime_s is not None
        )
        waits = waits or app.tries.driver_after > 0
        living = waits and app.admitted and app.ended is None
        if living and app.wants_more and not app.expired_at:
            self.steppers[app.id] = app
        elif self.steppers:
            self.steppers.pop(app.id, None)
        self._timers.set(app.id, app.admitted, timers_of(app, self.settings, self.at) if living else ())

    def fits_where_held(self, app: App) -> bool:
        """Whether an executor of the app fits on a live worker where room is held for it (semantics P8)."""
        workers = [self.workers.get(hold.worker) for hold in app.holds.values()]
        return any(
            worker is not None and worker.status == "alive" and worker.open_to(app.id).covers(app.need.least)
            for worker in workers
        )

    @contextmanager
    def seen_by(self, app: App, without: Collection[str] = ()) -> Iterator[None]:
        """Have the fleet show what is open to the app: also room that is held for it, nothing `without` (P8, W7)."""
        names = dict.fromkeys((*[hold.worker for hold in app.holds.values()], *without))
        seen = [
            (worker, worker.open_to(None), NOTHING if worker.id in without else worker.open_to(app.id))
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

    def _forget_if_over(self, app: App) -> None:
        """An ended app is over once its last executor is gone; old ones are forgotten, the log keeps them."""
        if app.ended is None or app.executors or app.driver is not None:
            return
        self.companies[app.spec.company].apps -= 1
        self.ranks.pop(app.id, None)
        self.ended[app.id] = None
        self._forget_ended()

    def _forget_ended(self) -> None:
        while len(self.ended) > self.settings.retained_apps:
            oldest, _ = self.ended.popitem(last=False)
            del self.apps[oldest]

    def _command_refused(self, _: CommandRefused) -> None:
        """It is counted with its sender (`_count_refusal`)."""

    def _refusals_omitted(self, _: events.RefusalsOmitted) -> None:
        """It is told for those who read the log."""

    def _log_accepted(self, event: events.LogAccepted) -> None:
        self.decisions[f"{self.head}@{self.at}"] = event.known

    def _log_restored(self, event: events.LogRestored) -> None:
        self.decisions[f"{self.head}@{self.at}"] = 0
        if event.key:
            self._key_changed(events.KeyChanged(key=event.key, public=event.public))

    def _key_changed(self, event: events.KeyChanged) -> None:
        self.public_keys.pop(event.key, None)
        self.public_keys[event.key] = event.public

    def _log_sealed(self, event: events.LogSealed) -> None:
        self.sealed, self.sealed_at = event.seq, self.at

    def _account_added(self, event: events.AccountAdded) -> None:
        self.closed = True
        self._count_apps()
        self.accounts.add(event)

    def _account_changed(self, event: events.AccountChanged) -> None:
        self.accounts.known[event.account].display = event.display

    def _account_removed(self, event: events.AccountRemoved) -> None:
        self.accounts.remove(event.account)

    def _role_granted(self, event: events.RoleGranted) -> None:
        self.accounts.known[event.account].roles.append(event.role)

    def _role_revoked(self, event: events.RoleRevoked) -> None:
        self.accounts.revoke(event.account, event.role)

    def _token_issued(self, event: events.TokenIssued) -> None:
        self.accounts.issue(event, self.at)

    def _token_revoked(self, event: events.TokenRevoked) -> None:
        self.accounts.end(event.token)

    def _apps_shown(self, event: events.AppsShown) -> None:
        if event.shown:
            self.accounts.shown[event.company] = None
        else:
            del self.accounts.shown[event.company]

    @classmethod
    def folds(cls) -> dict[type[Event], Callable[[ClusterState, Any], None]]:
        """Type of event -> what folds it."""
        return {
            events.MasterElected: cls._master_elected,
            ClusterConfigured: cls._cluster_configured,
            events.KindRegistered: cls._kind_registered,
            CompanyRegistered: cls._company_registered,
            events.CompanyChanged: cls._company_changed,
            events.LimitSet: cls._limit_set,
            events.CompanyRemoved: cls._company_removed,
            events.WorkerRegistered: cls._worker_registered,
            events.WorkerLabelled: cls._worker_labelled,
            events.WorkerChanged: cls._worker_changed,
            events.WorkerRemoved: cls._worker_removed,
            events.LostWorkersForgotten: cls._lost_workers_forgotten,
            events.WorkerSuspected: cls._worker_suspected,
            events.WorkerProbed: cls._worker_probed,
            events.WorkerCleared: cls._worker_cleared,
            AppRegistered: cls._app_registered,
            events.RoomReserved: cls._room_reserved,
            events.ReservationLapsed: cls._reservation_lapsed,
            events.AppAdmitted: cls._app_admitted,
            events.DriverAllocated: cls._driver_allocated,
            events.DriverRemoved: cls._driver_removed,
            events.ExecutorAllocated: cls._executor_allocated,
            events.ExecutorChanged: cls._executor_changed,
            events.RoomHeld: cls._room_held,
            events.HoldEnded: cls._hold_ended,
            events.EditionChanged: cls._edition_changed,
            events.NeedBegan: cls._need_began,
            events.NeedEnded: cls._need_ended,
            events.SlotAwaited: cls._slot_awaited,
            events.SlotBegan: cls._slot_began,
            events.SlotEnded: cls._slot_ended,
            events.TargetSet: cls._target_set,
            events.TargetEnded: cls._target_ended,
            events.ExecutorRevoked: cls._executor_revoked,
            events.RevocationWithdrawn: cls._revocation_withdrawn,
            events.ExecutorRemoved: cls._executor_removed,
            events.AppChanged: cls._app_changed,
            events.ExecutorsRequested: cls._executors_requested,
            events.AppReady: cls._app_ready,
            events.AppReprioritized: cls._app_reprioritized,
            events.AppHeld: cls._app_held,
            events.AppReleased: cls._app_released,
            events.AppDelayed: cls._app_delayed,
            events.AppDue: cls._app_due,
            events.AppWarned: cls._app_warned,
            events.AppSignalled: cls._app_signalled,
            events.TaskCancelled: cls._task_cancelled,
            events.AppExpired: cls._app_expired,
            events.AppExtended: cls._app_extended,
            events.AppRemoved: cls._app_removed,
            CommandRefused: cls._command_refused,
            events.RefusalsOmitted: cls._refusals_omitted,
            events.KeyChanged: cls._key_changed,
            events.LogSealed: cls._log_sealed,
            events.LogRestored: cls._log_restored,
            events.LogAccepted: cls._log_accepted,
            events.AccountAdded: cls._account_added,
            events.AccountChanged: cls._account_changed,
            events.AccountRemoved: cls._account_removed,
            events.RoleGranted: cls._role_granted,
            events.RoleRevoked: cls._role_revoked,
            events.TokenIssued: cls._token_issued,
            events.TokenRevoked: cls._token_revoked,
            events.AppsShown: cls._apps_shown,
        }


_ASKED: dict[type[Event], str] = {
    AppRegistered: "submitted",
    events.AppChanged: "scaled",
    events.AppExtended: "extended",
    events.AppReprioritized: "reprioritized",
    events.AppHeld: "held",
    events.AppReleased: "released",
    events.ExecutorRevoked: "executors killed",
    events.AppSignalled: "signalled",
    events.TaskCancelled: "task cancelled",
    events.AppRemoved: "killed",
}
"""What an account did with an app, by the first event of its command (semantics I1)."""
_FOLDS = {kind: (PRECONDITIONS[kind], fold, _ASKED.get(kind, "")) for kind, fold in ClusterState.folds().items()}
"""Type of event -> its precondition, what folds it, and what an account did with an app by it."""
_OF_LATER_EDITIONS: tuple[Callable[..., Any], Callable[..., Any], str] = (
    lambda *_: ("H8", "it is no event of this edition"),
    lambda *_: None,
    "",
)
"""For the others, which an altered log may have."""


def _facts(entity: Any, *links: str) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    """What the entity states of itself, without its links to others."""
    stated = {each.name: getattr(entity, each.name) for each in fields(entity) if each.name not in links}
    return {name: to_builtins(value) for name, value in stated.items()}


def _worker_facts(worker: Worker) -> dict[str, Any]:
    facts = _facts(worker, "executors", "drivers", "holds", "leaving")
    return {**facts, "executors": list(worker.executors), "drivers": list(worker.drivers)}


_APP_LINKS = (
    *("id", "spec", "private_json", "accounts", "usage", "executors", "driver", "holds"),
    *("standings", "need", "more", "usable", "unserved", "claim", "lent"),
    *("demand", "tries", "moved", "moving", "leaving", "not_before", "cancelled"),
)


def _app_facts(app: App) -> dict[str, Any]:
    facts, driver = _facts(app, *_APP_LINKS), app.driver and app.driver.id
    facts |= to_builtins({**app.demand._asdict(), **app.tries._asdict()})
    for name in ("not_before", "cancelled"):
        if value := getattr(app, name):  # few have one
            facts[name] = to_builtins(value)
    return {**facts, "spec": to_builtins(app.registered), "executors": list(app.executors), "driver": driver}
