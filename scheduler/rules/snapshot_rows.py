"""The state as lines of JSON, and back: what a snapshot holds.

The lines hold facts; every index is worked out anew from them. What the columns are follows from the
entities themselves and stands in the first line, so that a program whose entities have others refuses
the lines instead of misreading them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from scheduler.model.commands import Private
from scheduler.model.events import AppRegistered, ClusterConfigured, CompanyChanged, CompanyRegistered
from scheduler.model.resources import Resources
from scheduler.rules.admission.quota import Pending
from scheduler.rules.entities import App, Company, Executor, User, Worker
from scheduler.rules.ledger import Balance, Usage
from scheduler.rules.placement.yarn import Request, Wanted
from scheduler.rules.state import ClusterState

ROWS_PER_LINE = 500
"""A reader of the state has other things to do now and then: no line takes longer than some ten milliseconds."""


def _columns(entity: type, *links: str) -> tuple[str, ...]:
    return tuple(name for name in entity.__slots__ if name not in links)  # type: ignore[attr-defined]


_APP = _columns(App, "spec", "queued", "accounts", "usage", "owed", "moments", "executors", "driver")
_WORKER = _columns(Worker, "executors", "drivers")
_EXECUTOR = _columns(Executor)
_COMPANY = _columns(Company, "spec", "usage", "balance", "users")
_USER = _columns(User, "balance")
_BALANCE = _columns(Balance)
_app_values, _executor_values, _worker_values = attrgetter(*_APP), attrgetter(*_EXECUTOR), attrgetter(*_WORKER)
_specs_of = msgspec.json.Decoder(list[AppRegistered]).decode
"""What the apps of the line before were submitted as."""
_COLUMNS = {
    "apps": _APP,
    "workers": _WORKER,
    "executors": _EXECUTOR,
    "companies": [*_COMPANY, "changed", "spec", "usage", "balance", "users"],
    "users": [*_USER, "balance"],
    "balance": _BALANCE,
}


def lines(state: ClusterState) -> Iterator[str]:
    """Every fact of the state, one line after the other; it must not change meanwhile."""
    yield _line("columns", [_COLUMNS])
    cluster = state.head, state.at, state.master, state.configured, state.settings, _row(state.balance)
    yield _line("cluster", [cluster])
    yield from _table("companies", ((name, *_company(company)) for name, company in state.companies.items()))
    yield from _table("workers", map(_worker_values, state.workers.values()))
    apps = iter(state.apps.values())
    while chunk := list(islice(apps, ROWS_PER_LINE)):
        yield _line("apps", [_app_values(app) for app in chunk])
        yield msgspec.json.encode([app.spec for app in chunk]).decode()
    yield from _table("executors", map(_executor_values, state.executors.values()))
    yield from _table("drivers", map(_executor_values, state.drivers.values()))
    yield from _table("ended", state.ended)
    yield from _table("held_back", sorted(state.queue.held_back()))
    yield from _table("commands", state.commands.items())


def restored(texts: Iterable[str | bytes]) -> ClusterState:
    """The state that these lines tell, every index worked out anew.

    Raises: ValueError, KeyError or TypeError if they are not what a program with the same entities has written.
    """
    state = ClusterState()
    held_back: list[tuple[str, int, bool]] = []
    remaining = iter(texts)
    if msgspec.json.decode(next(remaining, "[]")) != msgspec.json.decode(_line("columns", [_COLUMNS])):
        raise ValueError("it was written by a program that knows other facts")
    for text in remaining:
        kind, rows = msgspec.json.decode(text)
        if kind == "apps":
            for spec, row in zip(_specs_of(next(remaining, "")), rows, strict=True):
                _restore_app(state, spec, row)
        elif kind == "held_back":
            held_back += map(tuple, rows)
        else:
            restore = _RESTORE[kind]
            for row in rows:
                restore(state, row)
    state.index(held_back)
    return state


def _table(kind: str, rows: Iterable[Any]) -> Iterator[str]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, ROWS_PER_LINE)):
        yield _line(kind, chunk)


def _line(kind: str, rows: Sequence[Any]) -> str:
    return msgspec.json.encode([kind, rows]).decode()


def _values(entity: object, columns: Iterable[str]) -> list[Any]:
    return [getattr(entity, name) for name in columns]


def _row(balance: Balance) -> list[int]:
    return _values(balance, _BALANCE)


def _company(company: Company) -> list[Any]:
    usage = company.usage
    users = {name: [*_values(user, _USER), _row(user.balance)] for name, user in company.users.items()}
    changed = isinstance(company.spec, CompanyChanged)
    return [
        *_values(company, _COMPANY),
        changed,
        company.spec,
        [usage.core_ms, usage.memory_mb_ms, usage.at],
        _row(company.balance),
        users,
    ]


def _restore_cluster(state: ClusterState, row: Sequence[Any]) -> None:
    state.head, state.at, state.master, state.configured, settings, balance = row
    state.settings = msgspec.convert(settings, ClusterConfigured)
    state.balance = Balance(*balance)


def _restore_company(state: ClusterState, row: Sequence[Any]) -> None:
    name, *values, changed, spec, usage, balance, users = row
    made = CompanyChanged if changed else CompanyRegistered
    company = state.companies[name] = Company(
        msgspec.convert(spec, made),
        Usage(*usage),
        Balance(*balance),
        **dict(zip(_COMPANY, values, strict=True)),
    )
    for user, (*facts, user_balance) in users.items():
        company.users[user] = User(Balance(*user_balance), **dict(zip(_USER, facts, strict=True)))


def _restore_worker(state: ClusterState, row: Sequence[Any]) -> None:
    worker = Worker(*row)
    state.workers[worker.id] = worker


def _restore_app(state: ClusterState, spec: AppRegistered, row: Sequence[Any]) -> None:
    """An ended app may have outlived its company, or its user."""
    company = state.companies.get(spec.company)
    user = None if company is None else company.users.get(spec.user)
    usage, balance = (Usage(), Balance()) if company is None else (company.usage, company.balance)
    accounts = state.balance, balance, Balance() if user is None else user.balance
    app = App(spec, _NOT_QUEUED, accounts, usage, *row)
    request = Resources(app.requested_cores, app.requested_memory_mb)
    app.queued = Pending(spec.app, spec.company, spec.user, spec.kind, request, app.submitted, app.submitted_at)
    if app.private is not None:
        app.private = msgspec.convert(app.private, Private)
    if app.unit is not None:
        app.unit = Resources(*app.unit)
    if app.wanted:
        app.wanted = [Wanted(Request(_hosts(hosts), _hosts(racks)), *rest) for (hosts, racks), *rest in row[_WANTED]]
    state.apps[spec.app] = app


_NOT_QUEUED = Pending("", "", "", "", Resources(0, 0), 0)
_WANTED = _APP.index("wanted")


def _hosts(hosts: list[str] | None) -> tuple[str, ...] | None:
    return None if hosts is None else tuple(hosts)


def _restore_executor(state: ClusterState, row: Sequence[Any]) -> None:
    held = Executor(*row)
    state.executors[held.id] = state.apps[held.app].executors[held.id] = held
    state.workers[held.worker].executors[held.id] = held


def _restore_driver(state: ClusterState, row: Sequence[Any]) -> None:
    held = Executor(*row)
    state.drivers[held.id] = state.workers[held.worker].drivers[held.id] = held
    state.apps[held.app].driver = held


def _restore_ended(state: ClusterState, app: str) -> None:
    state.ended[app] = None


def _restore_command(state: ClusterState, row: Sequence[Any]) -> None:
    state.commands[row[0]] = row[1]


_RESTORE: dict[str, Callable[[ClusterState, Any], None]] = {
    "cluster": _restore_cluster,
    "companies": _restore_company,
    "workers": _restore_worker,
    "executors": _restore_executor,
    "drivers": _restore_driver,
    "ended": _restore_ended,
    "commands": _restore_command,
}
