"""The state as lines of JSON, and back: the content of a snapshot.

A line is a kind of record and some records of that kind. A record names its fields and leaves out defaults, so a
version with a new field that has a default still reads older snapshots. An unknown kind or field is refused: without
it the state would be another one. Records hold facts; the indexes are computed from them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from sys import intern
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType, defstruct
from msgspec.structs import asdict, astuple

from scheduler.model.commands import Private
from scheduler.model.events import AppRegistered, ClusterConfigured, Computed, DepartmentAdded
from scheduler.model.resources import NOTHING
from scheduler.rules.entities.accounts import Account, Token
from scheduler.rules.entities.apps import NO_DEMAND, NO_TRIES, App, Slot, shared_spec
from scheduler.rules.entities.companies import Company, Department, User
from scheduler.rules.entities.grants import Allocation, Hold
from scheduler.rules.entities.ledger import Accounts, Balance, Occupation, Standings, Usage
from scheduler.rules.entities.master import Election
from scheduler.rules.entities.ranks import Ranks
from scheduler.rules.entities.workers import LostWorker, Window, Worker
from scheduler.rules.state.cluster import ClusterState

RECORDS_PER_LINE = 500
"""At most 10 ms of work a line, so that a reader of the state can do other things in between."""


class _SnapshotRecord(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A record; fields that an older version did not write get their defaults."""


class _ClusterRecord(_SnapshotRecord):
    """Attributes of `ClusterState`."""

    head: int
    at: int
    master: str | None
    configured: bool
    settings: ClusterConfigured
    balance: Balance
    refused: dict[str, int] | int = {}
    """By account; older versions wrote how many there were of all."""
    refused_minute: int = 0
    kinds: list[str] = []
    forgotten_at: int = 0
    public_keys: dict[str, str] = {}
    decisions: dict[str, int] = {}
    sealed: int = 0
    sealed_at: int = 0
    closed: bool = False
    edition: int = 2
    edition_at: int = 0
    election: Election | None = None


def _types(entity: type[Any]) -> dict[str, Any]:
    """The types of its fields, by its source: a compiled class does not know them."""
    module = sys.modules[entity.__module__]
    source = Path(str(module.__file__)).with_name(f"{entity.__module__.rpartition('.')[2]}.py")
    body = _classes(source)[entity.__name__].body
    written = {
        ast.unparse(each.target): ast.unparse(each.annotation) for each in body if isinstance(each, ast.AnnAssign)
    }
    return get_type_hints(SimpleNamespace(__annotations__=written), globalns=vars(module))


@cache
def _classes(source: Path) -> dict[str, ast.ClassDef]:
    """The classes of a module by their names."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


def _record_of(
    entity: type[Any],
    *links: str,
    usual: Any = None,  # noqa: ANN401
    required: int = 0,
    grouped: Iterable[Any] = (),
    **more: Any,  # noqa: ANN401
) -> type[Any]:
    """A record with the required fields `more`, then the entity's without `links`.

    The defaults are those of the entity's class, or what the entity `usual` has; its first `required` fields have none.
    The fields of the tuples `grouped`, which are the defaults, stand among the entity's.
    """
    described, types = [], _types(entity)
    stated = [field for field in fields(entity) if field.name not in links]
    for field in stated:
        default = field.default if field in stated[:required] or usual is None else getattr(usual, field.name)
        if field.default_factory is not MISSING:
            default = msgspec.field(default_factory=field.default_factory)
        described.append((field.name, types[field.name], *(() if default is MISSING else (default,))))
    for group in grouped:
        described += [(name, kind, getattr(group, name)) for name, kind in _types(type(group)).items()]
    return defstruct(entity.__name__, [*more.items(), *described], bases=(_SnapshotRecord,))


_BLANK = Allocation("", "", "", NOTHING)
_STANDINGS, _ACCOUNTS = (Occupation(), Occupation(), Occupation()), (Balance(), Balance(), Balance())
_SPEC = AppRegistered("", "", "", "batch", None, NOTHING, 0, Computed())
_NEW = App("", _SPEC, _STANDINGS, _ACCOUNTS, Usage(), 0, 0, NOTHING, None, _SPEC.sizing)
_COMPANY = _record_of(Company, "users", "sizes", "demands", "above", "waiting", name=str)
_USER = _record_of(User, company=str, name=str)
_ALLOCATION = _record_of(Allocation, usual=_BLANK, required=4)
_APP = _record_of(
    App,
    *("id", "accounts", "usage", "owed", "executors", "driver", "holds", "private_json"),
    *(
        "standings",
        "need",
        "more",
        "usable",
        "unserved",
        "demand",
        "tries",
        "moved",
        "moving",
        "leaving",
    ),
    usual=_NEW,
    required=6,
    grouped=(NO_DEMAND, NO_TRIES),
)
_GROUP = {**dict.fromkeys(NO_DEMAND._fields, "demand"), **dict.fromkeys(NO_TRIES._fields, "tries")}
"""Of which attribute of an app a fact is a part, where it is no attribute of its own."""
_NEEDED, _UNUSUAL = _APP.__struct_fields__[:6], _APP.__struct_fields__[6:]
"""The facts without which there is no app, and those that few apps have otherwise than a new one."""
_TYPES = get_type_hints(_APP)
_APP_READ = defstruct(
    "App",
    [
        *((name, _TYPES[name]) for name in _NEEDED),
        *((name, _TYPES[name] | UnsetType, UNSET) for name in _UNUSUAL),
        ("private", Private | None, None),
    ],
    bases=(_SnapshotRecord,),
)
_RECORDS: dict[str, type[Any]] = {
    "cluster": _ClusterRecord,
    "companies": _COMPANY,
    "users": _USER,
    "workers": _record_of(Worker, "executors", "drivers", "holds", "leaving"),
    "limits": defstruct(
        "Limit", [("company", str), ("user", str), ("values", dict[str, int])], bases=(_SnapshotRecord,)
    ),
    "buckets": defstruct(
        "Bucket", [("company", str), ("user", str), ("tokens", int), ("second", int)], bases=(_SnapshotRecord,)
    ),
    "lost": _record_of(LostWorker),
    "apps": defstruct("App", [("private", Private | None, None)], bases=(_APP,)),
    "executors": _ALLOCATION,
    "drivers": _ALLOCATION,
    "holds": _record_of(Hold, "leaving"),
    "ended": defstruct("Ended", [("app", str)], bases=(_SnapshotRecord,)),
    "commands": defstruct("Command", [("id", str), ("seq", int), ("at", int, 0)], bases=(_SnapshotRecord,)),
    "refusals": defstruct("Refusal", [("id", str), ("error", str), ("message", str)], bases=(_SnapshotRecord,)),
    "accounts": _record_of(Account),
    "tokens": defstruct("Token", [(name, kind) for name, kind in _types(Token).items()], bases=(_SnapshotRecord,)),
    "shown": defstruct("Shown", [("company", str)], bases=(_SnapshotRecord,)),
    "inhabited": defstruct("Inhabited", [("company", str)], bases=(_SnapshotRecord,)),
    "ranks": _record_of(Ranks, app=str),
    "windows": _record_of(Window, "names"),
    "departments": defstruct("Department", [("spec", DepartmentAdded)], bases=(_SnapshotRecord,)),
    "slots": defstruct("Slot", [("app", str), *_types(Slot).items()], bases=(_SnapshotRecord,)),
}


def _values(kind: str, skipped: int = 0) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*_RECORDS[kind].__struct_fields__[skipped:])


_cluster, _company, _user = _values("cluster"), _values("companies", 1), _values("users", 2)
_worker, _allocation = _values("workers"), _values("executors")
_app = attrgetter(
    "registered",
    *(f"{_GROUP[name]}.{name}" if name in _GROUP else name for name in _RECORDS["apps"].__struct_fields__[1:]),
)
_lost, _hold, _account, _ranks = _values("lost"), _values("holds"), _values("accounts"), _values("ranks", 1)
_window = _values("windows")
_to_json = msgspec.json.Encoder().encode
_line = msgspec.json.Decoder(tuple[str, msgspec.Raw]).decode


def lines(state: ClusterState) -> Iterator[str]:
    """Every fact of the state, one line after the other. The state must not change meanwhile."""
    companies = state.companies.items()
    tables: dict[str, Iterable[tuple[Any, ...]]] = {
        "cluster": [_cluster(state)],
        "companies": ((name, *_company(company)) for name, company in companies),
        "users": ((name, user, *_user(known)) for name, company in companies for user, known in company.users.items()),
        "workers": map(_worker, state.workers.values()),
        "limits": ((*holder, values) for holder, values in sorted(state.limits.values.items())),
        "buckets": ((*holder, *bucket) for holder, bucket in sorted(state.limits.buckets.items())),
        "lost": map(_lost, state.lost.values()),
        "apps": map(_app, state.apps.values()),
        "executors": map(_allocation, state.executors.values()),
        "drivers": map(_allocation, state.drivers.values()),
        "holds": map(_hold, state.holds.values()),
        "ended": ((app,) for app in state.ended),
        "commands": state.known_commands(),
        "refusals": ((name, *said) for name, said in state.refusals.items()),
        "accounts": map(_account, state.accounts.known.values()),
        "tokens": state.accounts.tokens.values(),
        "shown": ((company,) for company in state.accounts.shown),
        "inhabited": ((company,) for company in state.accounts.inhabited),
        "ranks": ((app, *_ranks(ranks)) for app, ranks in state.ranks.items()),
        "windows": map(_window, state.windows.values()),
        "departments": ((each.spec,) for each in state.departments.values()),
        "slots": ((app, *slot) for app, slot in state.slots.items()),
    }
    for kind, values in tables.items():
        record, remaining = _RECORDS[kind], iter(values)
        while chunk := [record(*one) for one in islice(remaining, RECORDS_PER_LINE)]:
            yield msgspec.json.encode([kind, chunk]).decode()


def restored(texts: Iterable[str | bytes]) -> ClusterState:
    """The state of these lines, with every index recomputed.

    Raises: ValueError naming what cannot be read: an unknown kind or field, a missing field without a default, or
    records that contradict each other.
    """
    state = ClusterState()
    kinds: set[str] = set()
    users = _Users(state)
    for text in texts:
        kind, rows = _line(text)
        kinds.add(kind)
        if kind not in _RECORDS:
            raise ValueError(f"it holds records of kind {kind!r}, which this version does not know")
        try:
            record_type = _APP_READ if kind == "apps" else _RECORDS[kind]
            records = msgspec.json.decode(rows, type=list[record_type])  # type: ignore[valid-type]
            if kind == "apps":
                _restore_apps(state, users, records)
                continue
            for record in records:
                _restore(state, kind, record)
        except (msgspec.ValidationError, KeyError) as error:
            raise ValueError(f"a record of kind {kind!r} cannot be read: {error}") from error
    if "cluster" not in kinds:
        raise ValueError("its record of kind 'cluster' is missing")
    state.index()
    return state


def _restore_hold(state: ClusterState, hold: Hold) -> None:
    """Within a turn its app or its worker may be gone, and the hold not ended yet."""
    state.holds[hold.id] = hold
    if (app := state.apps.get(hold.app)) is not None:
        app.holds = app.holds or {}
        app.holds[hold.id] = hold
    if (worker := state.workers.get(hold.worker)) is not None:
        worker.holds[hold.id] = hold


def _restore(state: ClusterState, kind: str, record: Any) -> None:  # noqa: ANN401, C901, PLR0912, PLR0915 - one case a kind
    """Add the record's facts to the state."""
    values = asdict(record)
    match kind:
        case "cluster":
            if isinstance(record.refused, int):
                values["refused"] = {"": record.refused}
            for name, value in values.items():
                setattr(state, name, value)
        case "companies":
            name = values.pop("name")
            state.companies[name] = Company(**values)
        case "users":
            company, name = values.pop("company"), values.pop("name")
            state.companies[company].users[name] = User(**values)
        case "workers":
            state.workers[record.id] = Worker(**values)
        case "lost":
            state.lost[record.id] = LostWorker(**values)
        case "executors":
            held = state.executors[record.id] = _allocation_of(values)
            app = state.apps[held.app]
            app.executors = app.executors or {}
            app.executors[held.id] = state.workers[held.worker].executors[held.id] = held
            if held.moved:
                app.moved += 1
                app.moving += held.resources
        case "drivers":
            held = state.drivers[record.id] = _allocation_of(values)
            state.apps[held.app].driver = state.workers[held.worker].drivers[held.id] = held
        case "holds":
            _restore_hold(state, Hold(**values))
        case "limits":
            state.limits.restore((record.company, record.user), record.values)
        case "buckets":
            state.limits.buckets[record.company, record.user] = record.tokens, record.second
        case "ended":
            state.ended[record.app] = None
        case "commands":
            state.recall_command(record.id, record.seq, record.at)
        case "refusals":
            state.refusals[record.id] = record.error, record.message
        case "accounts":
            state.accounts.hold(Account(**values))
        case "tokens":
            state.accounts.keep(Token(**values))
        case "shown":
            state.accounts.shown[record.company] = None
        case "inhabited":
            state.accounts.inhabited[record.company] = None
        case "ranks":
            state.ranks[record.app] = Ranks(record.held, record.vacant, record.used, record.done, record.counts)
        case "windows":
            state.windows[record.id] = Window(**values)
        case "departments":
            state.departments[record.spec.department] = Department(record.spec)
        case "slots":
            name = values.pop("app")
            state.slots[name] = Slot(**values)


def _allocation_of(values: Mapping[str, Any]) -> Allocation:
    made = Allocation(values["id"], values["app"], values["worker"], values["resources"])
    for name, value in values.items():
        setattr(made, name, value)
    return made


class _Users:
    """What the apps of a user share, by company and user."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._known: dict[tuple[str, str], tuple[str, str, Any, Any, Any]] = {}

    def shared(self, company: str, user: str) -> tuple[str, str, Standings, Accounts, Usage]:
        """Their names, standings, ledgers and usage. An ended app may have outlived its company or its user."""
        found = self._known.get((company, user))
        if found is None:
            state, known = self._state, self._state.companies.get(company)
            if known is None:
                strangers = (Occupation(), Occupation(), Occupation()), (state.balance, Balance(), Balance()), Usage()
                return company, user, *strangers
            standings = state.claims.standings(company, user)
            submitted = user in known.users
            ledgers = state.ledgers(company, user) if submitted else (state.balance, known.balance, Balance())
            found = self._known[company, user] = known.spec.company, intern(user), standings, ledgers, known.usage
        return found


def _restore_apps(state: ClusterState, users: _Users, records: Iterable[Any]) -> None:
    """Add apps, whose place in the queues `ClusterState.index` works out."""
    apps, usual = state.apps, [UNSET] * len(_UNUSUAL)
    for record in records:
        registered, submitted, submitted_at, requested, executor_limit, sizing, *others, private = astuple(record)
        company, user, standings, ledgers, usage = users.shared(registered.company, registered.user)
        spec = shared_spec(registered, company, user)
        requested = spec.requested if requested == spec.requested else requested
        sizing = spec.sizing if sizing == spec.sizing else sizing
        links = registered.app, spec, standings, ledgers, usage
        app = App(*links, submitted, submitted_at, requested, executor_limit, sizing)
        if others != usual:
            for name, value in zip(_UNUSUAL, others, strict=True):
                if value is not UNSET:
                    _set(app, name, value)
        if private is not None:
            app.private_json = _to_json(private)
        apps[app.id] = app


def _set(app: App, name: str, value: object) -> None:
    group = _GROUP.get(name)
    if group is None:
        setattr(app, name, value)
    elif name != "asked_at" or app.elastic:  # older versions noted it of every app that was admitted
        setattr(app, group, getattr(app, group)._replace(**{name: value}))
