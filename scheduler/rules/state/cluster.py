"""The cluster as the log tells it: `ClusterState.apply` is the one place where anything changes.

Two states that folded the same events are equal and have the same digest, on any machine. `apply` checks the event's
preconditions before it changes anything, and decides nothing. What a rule *decides* stands in an event: pending
requests, the request that a grant raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from hashlib import blake2b
from typing import Any

from msgspec import json as msgspec_json
from msgspec import structs, to_builtins

from scheduler.model import events
from scheduler.model.commands import Private
from scheduler.model.errors import InvariantViolated
from scheduler.model.events import AppRegistered, CommandRefused, Event, ExecutorRemoved
from scheduler.model.sender import NOBODY, By
from scheduler.rules.admission.user import Contender
from scheduler.rules.entities.accounts import Account
from scheduler.rules.entities.apps import App, spent_by
from scheduler.rules.entities.companies import Company
from scheduler.rules.entities.workers import LostWorker, Worker
from scheduler.rules.placement.sizing import executor_sizes
from scheduler.rules.state.facts import MINUTE_MS, Facts
from scheduler.rules.state.fold import accounts, apps, cluster, grants, workers
from scheduler.rules.state.fold.effects import (
    count_all_demands,
    count_apps,
    count_size,
    plan_windows,
    reconsider,
    set_departments,
    set_live,
    set_quotas,
)
from scheduler.rules.state.preconditions import PRECONDITIONS, of_whole_gang

CHANGED_APPS = 1_000
"""So many apps may have changed before the indexes follow: a replay asks for none, and would note every app."""
KNOWN_COMMANDS = 10_000
"""How many ids of commands that changed something are remembered, so that asking twice is safe."""


_to_json = msgspec_json.Encoder().encode


class ClusterState(Facts):
    """The fold of the log up to position `head`, at time `at` (ms)."""

    def apply(  # noqa: C901 - what few events need, others skip here
        self, event: Event, at: int, cause: str = "", private: Private | None = None, by: By = NOBODY
    ) -> None:
        """Fold the next event of the log; `cause` is the id of the command behind it, if any.

        With the first event of a command come `private`, its private part, None if it has none or it is withheld, and
        its sender `by`.

        Raises: InvariantViolated naming the position and the rule if the event contradicts the state (see
        `preconditions`); nothing is changed then.
        """
        holds, fold, done, of_app, of_worker, ends = _FOLDS[type(event)]
        broken = holds(self, event) if at >= self.at else ("T2", f"time {at} is before {self.at}")
        if self.forming and broken is None:
            broken = of_whole_gang(self, event, at)
        if broken is not None:
            rule, why = broken
            raise InvariantViolated(self.head + 1, f"{type(event).__name__}: {why}", rule)
        self.head += 1
        if at != self.at:
            if len(self.changed.apps) > CHANGED_APPS:
                self.refresh()
            self.before_at = self.at
            self.at = self.queue.basis.at = at
        if cause:
            self._remember(cause)
            if type(event) is CommandRefused:
                self.refusals[cause] = event.error, event.message
                self._count_refusal(by.account)
        if ends:
            self._note_spent(event, private)
        fold(self, event)
        if of_app:
            self.changed.apps[event.app] = None  # type: ignore[union-attr]  # it names one
        if of_worker:
            self.changed.workers[event.worker] = None  # type: ignore[union-attr]
        if self.filling.kept is not None:
            self.filling.mark(event)
        if private is not None:
            self._keep_private(event, private)
        if done and by is not NOBODY:
            self._note_asker(event, done, by)

    def _note_spent(self, event: Any, private: Private | None) -> None:  # noqa: ANN401 - an end
        """Note what an executor or a driver that ends now was granted, and what it used as its worker says (O5)."""
        held = self.executors[event.executor] if type(event) is ExecutorRemoved else self.drivers[event.driver]
        app, used = self.apps[held.app], None if private is None else private.used
        self.last_end = spent_by(held.resources, self.at - held.granted_at, used)
        app.spent = app.spent.plus(self.last_end)

    def _note_asker(self, event: Any, done: str, by: By) -> None:  # noqa: ANN401 - an event of an app
        """Note who did that with the app (semantics I1)."""
        app = self.apps.get(event.app) if by.role in ("user", "admin", "operator") else None
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

    def _remember(self, command: str) -> None:
        commands, known = self.commands, self.carried_out
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

    def _count_refusal(self, account: str) -> None:
        minute = self.at // MINUTE_MS
        if minute != self.refused_minute:
            self.refused, self.refused_minute = {}, minute
        self.refused[account] = self.refused.get(account, 0) + 1

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
            "lost": {name: _lost_facts(worker) for name, worker in self.lost.items()},
            "apps": {name: _app_facts(app) for name, app in self.apps.items()},
            "waiting": list(self.waiting),
            "ended": list(self.ended),
            "executors": to_builtins(self.executors),
            "drivers": to_builtins(self.drivers),
            "holds": [_facts(hold, "leaving") for hold in self.holds.values()],
            "commands": list(map(list, self.known_commands())),
            "forgotten_at": self.forgotten_at,
            "public_keys": list(self.public_keys.items()),
            "decisions": list(self.decisions.items()),
            "sealed": [self.sealed, self.sealed_at],
            "refusals": [[name, *said] for name, said in self.refusals.items()],
            "refused": [self.refused_minute, self.refused],
            "closed": self.closed,
            "accounts": {name: _account_facts(account) for name, account in self.accounts.known.items()},
            "tokens": [list(token) for token in self.accounts.tokens.values()],
            "shown": list(self.accounts.shown),
            "inhabited": list(self.accounts.inhabited),
            **(
                {"departments": [to_builtins(structs.asdict(each.spec)) for each in self.departments.values()]}
                if self.departments
                else {}
            ),
            **({"ranks": to_builtins(self.ranks)} if self.ranks else {}),
            **({"windows": [_facts(each, "names") for each in self.windows.values()]} if self.windows else {}),
            **({"slots": [[name, *slot] for name, slot in self.slots.items()]} if self.slots else {}),
        }

    def index(self) -> None:
        """Work out every index from the facts alone: for a state whose facts were read back, before any event."""
        self.fleet.configure(executor_sizes(self.settings), self.minimum_executor())
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
            selected = company.last_selected
            self.queue.add_company(name, company.balance, company.usage, last_selected=selected, standing=standing)
            for user_name, user in company.users.items():
                standing = self.claims.standings(name, user_name)[2]
                known = Contender(user_name, user.balance, user.last_selected, user.last_selected_at, standing=standing)
                self.queue.add_user(name, known)
            self.queue.set_limits(name, self.limits)
        count_all_demands(self)
        for worker in self.workers.values():
            set_live(self, worker, was=False, now=worker.status == "alive")
        plan_windows(self, *self.windows.values())
        for offering in self.known_workers():
            self.offers.add(offering)
        set_quotas(self)
        set_departments(self)
        for app in self.apps.values():
            app.need = self.claims.need_of(app)
        self._index_apps()
        if self.limits.values or self.closed:
            count_apps(self)
        self.changed.everything(self.apps, self.workers)

    def _index_apps(self) -> None:
        """Work out what follows of the apps that have not ended."""
        for app in self.apps.values():
            if app.ended is None:
                count_size(self, app, 1)
        pending = [app for app in self.apps.values() if not app.admitted and app.ended is None]
        ready = sorted((app for app in pending if app.ready), key=lambda app: app.ready_position)
        self.queue.push_all(ready)
        for app in sorted((app for app in pending if app.awaits or not app.ready), key=lambda app: app.submitted):
            self.dependents.add(app, self.apps)
        admitted = [app for app in self.apps.values() if app.admitted and app.ended is None]
        for app in sorted(admitted, key=lambda app: app.admitted):
            self._index_admitted(app)

    def _index_admitted(self, app: App) -> None:
        self.waiting[app.id] = self.companies[app.spec.company].waiting[app.id] = app
        if not app.next_executor and not app.tries.next_driver:
            self.claims.await_grant(app)
        owed_since = app.owed_since
        reconsider(self, app)
        app.owed_since = owed_since

    def _company_facts(self, company: Company) -> dict[str, Any]:
        return {
            "spec": to_builtins(structs.asdict(company.spec)),
            "balance": to_builtins(company.balance),
            "usage": to_builtins(self.usage(company)),
            "last_selected": company.last_selected,
            "apps": company.apps,
            **({"department": company.department} if company.department else {}),
            "users": {name: _facts(user) for name, user in company.users.items()},
        }


FOLDS: dict[type[Event], Callable[[Facts, Any], None]] = {
    **cluster.FOLDS,
    **accounts.FOLDS,
    **workers.FOLDS,
    **apps.FOLDS,
    **grants.FOLDS,
}
"""Type of event -> what folds it."""
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
    events.AppRequeued: "requeued",
    events.TaskRequeued: "task requeued",
    events.AppRemoved: "killed",
}
"""What an account did with an app, by the first event of its command (semantics I1)."""
_FOLDS = {
    kind: (
        PRECONDITIONS[kind],
        fold,
        _ASKED.get(kind, ""),
        "app" in kind.__struct_fields__,
        "worker" in kind.__struct_fields__,
        kind in (ExecutorRemoved, events.DriverRemoved),
    )
    for kind, fold in FOLDS.items()
}
"""Type of event -> its precondition, what folds it, what an account did with an app by it, whether it names an app and
a worker, and whether it is the end of an executor or a driver."""


def _facts(entity: Any, *links: str) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    """What the entity states of itself, without its links to others."""
    stated = {each.name: getattr(entity, each.name) for each in fields(entity) if each.name not in links}
    return {name: to_builtins(value) for name, value in stated.items()}


def _account_facts(account: Account) -> dict[str, Any]:
    return _facts(account, *(() if account.departments else ("departments",)))


def _worker_facts(worker: Worker) -> dict[str, Any]:
    unusual = [name for name in ("taints", "window") if not getattr(worker, name)]
    facts = _facts(worker, "executors", "drivers", "holds", "leaving", *unusual)
    return {**facts, "executors": list(worker.executors), "drivers": list(worker.drivers)}


def _lost_facts(worker: LostWorker) -> dict[str, Any]:
    unmarked = [name for name in ("labels", "taints") if not getattr(worker, name)]
    return _facts(worker, "executors", "drivers", "apps", *unmarked)


_APP_LINKS = (
    *("id", "spec", "private_json", "spent", "accounts", "usage", "executors", "driver", "holds"),
    *("standings", "need", "more", "usable", "unserved"),
    *("demand", "tries", "moved", "moving", "leaving", "not_before", "cancelled", "restarts", "planned"),
)


def _app_facts(app: App) -> dict[str, Any]:
    facts, driver = _facts(app, *_APP_LINKS), app.driver and app.driver.id
    facts |= to_builtins({**app.demand._asdict(), **app.tries._asdict()})
    for name in ("not_before", "cancelled", "restarts", "planned"):
        if value := getattr(app, name):  # few have one
            facts[name] = to_builtins(value)
    return {**facts, "spec": to_builtins(app.registered), "executors": list(app.executors), "driver": driver}
