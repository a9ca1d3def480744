"""The state as lines of JSON, and back: what a snapshot holds.

The lines hold facts; every index is worked out anew from them. What the columns are follows from the
entities themselves and stands in the first line, so that a program whose entities have others refuses
the lines instead of misreading them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from scheduler.cap import Pending
from scheduler.entities import App, Company, Executor, User, Worker
from scheduler.events import AppRegistered, ClusterConfigured, CompanyChanged, CompanyRegistered
from scheduler.ledger import Balance, Usage
from scheduler.placement.locality import Request
from scheduler.placement.requests import Wanted
from scheduler.resources import Resources
from scheduler.state import ClusterState

ROWS_PER_LINE = 500
"""A reader of the state has other things to do now and then: no line takes longer than some ten milliseconds."""


def _columns(entity: type, *links: str) -> tuple[str, ...]:
    return tuple(name for name in entity.__slots__ if name not in links)  # type: ignore[attr-defined]


_APP = _columns(App, "spec", "queued", "accounts", "usage", "executors", "driver", "moments", "owed", "unit", "wanted")
_WORKER = _columns(Worker, "executors", "drivers")
_EXECUTOR = _columns(Executor)
_COMPANY = _columns(Company, "spec", "usage", "balance", "users")
_USER = _columns(User, "balance")
_BALANCE = _columns(Balance)
_COLUMNS = {
    "apps": [*_APP, "unit", "wanted", "spec"],
    "workers": _WORKER,
    "executors": _EXECUTOR,
    "companies": [*_COMPANY, "changed", "spec", "usage", "balance", "users"],
    "users": [*_USER, "balance"],
    "balance": _BALANCE,
}


def lines(state: ClusterState) -> Iterator[str]:
    """Every fact of the state, one line after the other; it must not change meanwhile."""
    yield _line("columns", [_COLUMNS])
    cluster = state.head, state.at, state.master, state.configured, state.settings.model_dump(), _row(state.balance)
    yield _line("cluster", [cluster])
    tables: tuple[tuple[str, Iterable[Any]], ...] = (
        ("companies", ((name, *_company(company)) for name, company in state.companies.items())),
        ("workers", (_values(worker, _WORKER) for worker in state.workers.values())),
        ("apps", (_app(app) for app in state.apps.values())),
        ("executors", (_values(executor, _EXECUTOR) for executor in state.executors.values())),
        ("drivers", (_values(driver, _EXECUTOR) for driver in state.drivers.values())),
        ("ended", state.ended),
        ("held_back", sorted(state.queue.held_back())),
        ("commands", state.commands.items()),
    )
    for kind, rows in tables:
        remaining = iter(rows)
        while chunk := list(islice(remaining, ROWS_PER_LINE)):
            yield _line(kind, chunk)


def restored(texts: Iterable[str | bytes]) -> ClusterState:
    """The state that these lines tell, every index worked out anew.

    Raises: ValueError, KeyError or TypeError if they are not what a program with the same entities has written.
    """
    state = ClusterState()
    held_back: list[tuple[str, int, bool]] = []
    remaining = iter(texts)
    if json.loads(next(remaining, "[]")) != json.loads(_line("columns", [_COLUMNS])):
        raise ValueError("it was written by a program that knows other facts")
    for text in remaining:
        kind, rows = json.loads(text)
        if kind == "held_back":
            held_back += map(tuple, rows)
            continue
        restore = _RESTORE[kind]
        for row in rows:
            restore(state, row)
    state.index(held_back)
    return state


def _line(kind: str, rows: Sequence[Any]) -> str:
    return json.dumps([kind, rows], separators=(",", ":"), ensure_ascii=False)


def _values(entity: object, columns: Iterable[str]) -> list[Any]:
    return [getattr(entity, name) for name in columns]


def _row(balance: Balance) -> list[int]:
    return _values(balance, _BALANCE)


def _company(company: Company) -> list[Any]:
    usage = company.usage
    users = {name: [*_values(user, _USER), _row(user.balance)] for name, user in company.users.items()}
    spec = company.spec.model_dump()
    changed = isinstance(company.spec, CompanyChanged)
    return [
        *_values(company, _COMPANY),
        changed,
        spec,
        [usage.core_ms, usage.memory_mb_ms, usage.at],
        _row(company.balance),
        users,
    ]


def _app(app: App) -> list[Any]:
    spec = app.spec.model_dump(mode="json", exclude_defaults=True)
    return [*_values(app, _APP), app.unit, app.wanted, spec]


def _restore_cluster(state: ClusterState, row: Sequence[Any]) -> None:
    state.head, state.at, state.master, state.configured, settings, balance = row
    state.settings = ClusterConfigured.model_validate(settings, strict=False)
    state.balance = Balance(*balance)


def _restore_company(state: ClusterState, row: Sequence[Any]) -> None:
    name, *values, changed, spec, usage, balance, users = row
    made = CompanyChanged if changed else CompanyRegistered
    company = state.companies[name] = Company(
        made.model_validate(spec, strict=False),
        Usage(*usage),
        Balance(*balance),
        **dict(zip(_COMPANY, values, strict=True)),
    )
    for user, (*facts, user_balance) in users.items():
        company.users[user] = User(Balance(*user_balance), **dict(zip(_USER, facts, strict=True)))


def _restore_worker(state: ClusterState, row: Sequence[Any]) -> None:
    worker = Worker(**dict(zip(_WORKER, row, strict=True)))
    state.workers[worker.id] = worker


def _restore_app(state: ClusterState, row: Sequence[Any]) -> None:
    """An ended app may have outlived its company, or its user."""
    *values, unit, wanted, facts = row
    spec = AppRegistered.model_validate(facts, strict=False)
    named = dict(zip(_APP, values, strict=True))
    company = state.companies.get(spec.company)
    user = None if company is None else company.users.get(spec.user)
    usage, balance = (Usage(), Balance()) if company is None else (company.usage, company.balance)
    request = Resources(named["requested_cores"], named["requested_memory_mb"])
    submitted, submitted_at = named["submitted"], named["submitted_at"]
    state.apps[spec.app] = App(
        spec,
        Pending(spec.app, spec.company, spec.user, spec.kind, request, submitted, submitted_at),
        (state.balance, balance, Balance() if user is None else user.balance),
        usage,
        unit=None if unit is None else Resources(*unit),
        wanted=[Wanted(Request(_hosts(hosts), _hosts(racks)), number, at) for (hosts, racks), number, at in wanted],
        **named,
    )


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
    "apps": _restore_app,
    "executors": _restore_executor,
    "drivers": _restore_driver,
    "ended": _restore_ended,
    "commands": _restore_command,
}
