"""The state as lines of JSON, and back: what a snapshot holds.

A line is a kind of record and some records of it. A record names its fields and leaves out those that have their
default, so a version with a new field that has a default still reads older snapshots. A kind or a field that this
version does not know is refused: to leave it out would be another state. Records hold facts; every index is worked out
anew from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import islice
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from scheduler.model.events import AppRegistered, ClusterConfigured
from scheduler.rules.admission.quota import Pending
from scheduler.rules.claims import Standing
from scheduler.rules.entities import Allocation, App, Company, Hold, LostWorker, User, Worker
from scheduler.rules.ledger import Balance, Usage
from scheduler.rules.state import ClusterState

RECORDS_PER_LINE = 500
"""A reader of the state has other things to do now and then: no line takes longer than some ten milliseconds."""


class _Record(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A record; what an older version did not write has its default."""


class _Cluster(_Record):
    head: int
    at: int
    master: str | None
    configured: bool
    settings: ClusterConfigured
    balance: Balance
    refused: int = 0
    refused_minute: int = 0


class _Ended(_Record):
    app: str


class _HeldBack(_Record):
    app: str
    since: int
    reserved: bool = False


class _Command(_Record):
    id: str
    seq: int


class _Refusal(_Record):
    id: str
    error: str
    message: str


def _record_of(entity: type, *links: str, **more: Any) -> type[Any]:  # noqa: ANN401 - types
    """A record with the fields of that entity, types and defaults included, but for its links to others.

    `more` are fields that the entity has only as part of a link, each required.
    """
    types, described = get_type_hints(entity), []
    for field in fields(entity):
        if field.name not in links:
            default = (
                field.default
                if field.default_factory is MISSING
                else msgspec.field(default_factory=field.default_factory)
            )
            described.append((field.name, types[field.name], *(() if default is MISSING else (default,))))
    return msgspec.defstruct(entity.__name__, [*more.items(), *described], bases=(_Record,))


_APP = _record_of(
    App,
    *("queued", "accounts", "usage", "owed", "executors", "driver", "holds"),
    *("standings", "need", "more", "usable", "unserved", "claim", "lent"),
)
_WORKER = _record_of(Worker, "executors", "drivers", "holds", "leaving")
_ALLOCATION = _record_of(Allocation)
_LOST = _record_of(LostWorker)
_HOLD = _record_of(Hold, "leaving")
_COMPANY = _record_of(Company, "users", name=str)
_USER = _record_of(User, company=str, name=str)


def _written(record: type[Any]) -> Callable[[Any], Any]:
    values = attrgetter(*record.__struct_fields__)
    return lambda entity: record(*values(entity))


_app, _worker, _allocation, _lost, _hold = map(_written, (_APP, _WORKER, _ALLOCATION, _LOST, _HOLD))


def lines(state: ClusterState) -> Iterator[str]:
    """Every fact of the state, one line after the other; it must not change meanwhile."""
    facts = state.head, state.at, state.master, state.configured, state.settings, state.balance
    yield from _table("cluster", [_Cluster(*facts, state.refused, state.refused_minute)])
    companies = state.companies.items()
    yield from _table("companies", (_COMPANY(name, *_company_values(company)) for name, company in companies))
    users = ((name, user) for name, company in companies for user in company.users.items())
    yield from _table("users", (_USER(company, name, *_user_values(user)) for company, (name, user) in users))
    yield from _table("workers", map(_worker, state.workers.values()))
    yield from _table("lost", map(_lost, state.lost.values()))
    yield from _table("apps", map(_app, state.apps.values()))
    yield from _table("executors", map(_allocation, state.executors.values()))
    yield from _table("drivers", map(_allocation, state.drivers.values()))
    yield from _table("holds", map(_hold, state.holds.values()))
    yield from _table("ended", map(_Ended, state.ended))
    yield from _table("held_back", (_HeldBack(*one) for one in sorted(state.queue.held_back())))
    yield from _table("commands", (_Command(*one) for one in state.commands.items()))
    yield from _table("refusals", (_Refusal(name, *said) for name, said in state.refusals.items()))


_company_values = attrgetter(*_COMPANY.__struct_fields__[1:])
_user_values = attrgetter(*_USER.__struct_fields__[2:])


def restored(texts: Iterable[str | bytes]) -> ClusterState:
    """The state that these lines tell, every index worked out anew.

    Raises: ValueError, which says what cannot be read: a kind or a field that this version does not know, a field
    without a default that is missing, or records that contradict each other.
    """
    state = ClusterState()
    held_back: list[tuple[str, int, bool]] = []
    told: set[str] = set()
    for text in texts:
        kind, rows = _line(text)
        told.add(kind)
        if kind not in _RESTORE:
            raise ValueError(f"it holds records of kind {kind!r}, which this version does not know")
        decoder, restore = _RESTORE[kind]
        try:
            records = decoder.decode(rows)
            if kind == "held_back":
                held_back += [(one.app, one.since, one.reserved) for one in records]
                continue
            for record in records:
                restore(state, record)
        except (msgspec.ValidationError, KeyError) as error:
            raise ValueError(f"a record of kind {kind!r} cannot be read: {error}") from error
    if "cluster" not in told:
        raise ValueError("it does not say what the cluster is")
    state.index(held_back)
    return state


_line = msgspec.json.Decoder(tuple[str, msgspec.Raw]).decode


def _table(kind: str, records: Iterable[Any]) -> Iterator[str]:
    remaining = iter(records)
    while chunk := list(islice(remaining, RECORDS_PER_LINE)):
        yield msgspec.json.encode([kind, chunk]).decode()


def _restore_cluster(state: ClusterState, record: _Cluster) -> None:
    state.head, state.at, state.master, state.configured = record.head, record.at, record.master, record.configured
    state.settings, state.balance = record.settings, record.balance
    state.refused, state.refused_minute = record.refused, record.refused_minute


def _restore_company(state: ClusterState, record: Any) -> None:  # noqa: ANN401 - a record
    state.companies[record.name] = Company(**_without(asdict(record), "name"))


def _restore_user(state: ClusterState, record: Any) -> None:  # noqa: ANN401 - a record
    state.companies[record.company].users[record.name] = User(**_without(asdict(record), "company", "name"))


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _restore_worker(state: ClusterState, record: Any) -> None:  # noqa: ANN401 - a record
    state.workers[record.id] = Worker(**asdict(record))


def _restore_lost(state: ClusterState, record: Any) -> None:  # noqa: ANN401 - a record
    state.lost[record.id] = LostWorker(**asdict(record))


def _restore_app(state: ClusterState, record: Any) -> None:  # noqa: ANN401 - a record
    """An ended app may have outlived its company, or its user."""
    spec: AppRegistered = record.spec
    company = state.companies.get(spec.company)
    user = None if company is None else company.users.get(spec.user)
    usage, balance = (Usage(), Balance()) if company is None else (company.usage, company.balance)
    accounts = state.balance, balance, Balance() if user is None else user.balance
    queued = Pending(
        spec.app, spec.company, spec.user, spec.kind, record.requested, record.submitted, record.submitted_at
    )
    none = Standing(), Standing(), Standing()
    standings = none if company is None else state.claims.standings(spec.company, spec.user)
    state.apps[spec.app] = App(queued=queued, standings=standings, accounts=accounts, usage=usage, **asdict(record))


def _restore_executor(state: ClusterState, record: Any) -> None:  # noqa: ANN401 - a record
    held = Allocation(**asdict(record))
    state.executors[held.id] = state.apps[held.app].executors[held.id] = held
    state.workers[held.worker].executors[held.id] = held


def _restore_driver(state: ClusterState, record: Any) -> None:  # noqa: ANN401 - a record
    held = Allocation(**asdict(record))
    state.drivers[held.id] = state.workers[held.worker].drivers[held.id] = held
    state.apps[held.app].driver = held


def _restore_hold(state: ClusterState, record: Any) -> None:  # noqa: ANN401 - a record
    hold = Hold(**asdict(record))
    state.holds[hold.id] = state.workers[hold.worker].holds[hold.id] = state.apps[hold.app].holds[hold.id] = hold


def _restore_ended(state: ClusterState, record: _Ended) -> None:
    state.ended[record.app] = None


def _restore_held_back(_: ClusterState, __: _HeldBack) -> None:
    """What the quotas held back is restored with the indexes."""


def _restore_command(state: ClusterState, record: _Command) -> None:
    state.commands[record.id] = record.seq


def _restore_refusal(state: ClusterState, record: _Refusal) -> None:
    state.refusals[record.id] = record.error, record.message


def _decoder(record: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[record])  # type: ignore[valid-type]


_RESTORE: dict[str, tuple[msgspec.json.Decoder[Any], Callable[[ClusterState, Any], None]]] = {
    "cluster": (_decoder(_Cluster), _restore_cluster),
    "companies": (_decoder(_COMPANY), _restore_company),
    "users": (_decoder(_USER), _restore_user),
    "workers": (_decoder(_WORKER), _restore_worker),
    "lost": (_decoder(_LOST), _restore_lost),
    "apps": (_decoder(_APP), _restore_app),
    "executors": (_decoder(_ALLOCATION), _restore_executor),
    "drivers": (_decoder(_ALLOCATION), _restore_driver),
    "holds": (_decoder(_HOLD), _restore_hold),
    "ended": (_decoder(_Ended), _restore_ended),
    "held_back": (_decoder(_HeldBack), _restore_held_back),
    "commands": (_decoder(_Command), _restore_command),
    "refusals": (_decoder(_Refusal), _restore_refusal),
}
