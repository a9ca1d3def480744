"""A connection to one cluster, for every verb that asks or changes one.

API servers have folded the log, so a verb that asks one starts fast: what the store needs is loaded when it is used.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from fairlog import credentials
from fairlog.api.addresses import UNIX
from fairlog.cli.failures import NoStore, PositionMissing, Unconfirmed, UnknownCluster
from fairlog.cli.reached import check_reached
from fairlog.cli.render import say
from fairlog.errors import Refused, Unreachable
from fairlog.local.running import find_running, others_than
from recovery.replay.bounds import OPEN, Bound, E, up_to
from scheduler.model.errors import (
    FairlogError,
    InvalidCommand,
    NoMaster,
    NotAllowed,
    NotAuthenticated,
    UnknownCompany,
    UnsuitableStore,
)
from scheduler.model.sender import By, local
from scheduler.service.program_log import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from redis import Redis

    from fairlog.api.client import ApiClient
    from fairlog.cli.road import Road
    from fairlog.cli.target import Target
    from fairlog.local.running import RunningUp
    from recovery.failover.lease import Member
    from scheduler.model.commands import Command, SubmitApp
    from scheduler.model.errors import CommandRejected
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.client import CommandClient
    from scheduler.service.keyring import Keyring
    from scheduler.service.receipts import Receipt
    from scheduler.store.codec import Fact
    from scheduler.store.eventlog import EventLog
    from scheduler.store.keys import Keys
    from scheduler.store.visits import Call, Reply, VisitCommand

T = TypeVar("T")
HEARD_S = 2.0
"""Within so many seconds an API server and a master on this machine answer, or the log is read instead."""
NOTE_S = 2.0
"""After so long without an answer, who waits for a master is told so."""
_OF_WORKER = ("worker", "pid", "host", "status", "suspicion")
"""What `status` tells of each worker."""
_PRIVATE = frozenset({"apps", "app"})
"""Views with private parts, which an API server withholds from operators where there are accounts."""


class Session:
    """A connection to the cluster selected by `target`.

    It goes through `api` if no store is named and `fairlog.credentials` names an API, else through `store`, where `log`
    reads. Through the API, what needs the store raises NoStore. Where an `up` of this user provides the store, its API
    server is asked for what it can answer.

    Raises: NoStore if no store is named or running, UnsuitableStore if it does not answer, UnknownCluster unless the
    cluster may be a `new` one.
    """

    def __init__(self, target: Target, *, timeout_s: float = 30, new: bool = False) -> None:
        self.target = target
        self.at = target.at
        self._timeout_s = timeout_s
        found = credentials.named(target.data) if target.store is None else None
        self.api_url = "" if found is None else found.api
        self.api: ApiClient | None = None if found is None else _api_of(found.api, found.token, timeout_s)
        try:
            self._check_place(new=new)
        except FairlogError:
            self.close()
            raise

    def _check_place(self, *, new: bool) -> None:
        asked = self.target.cluster
        if self.api is None:
            if self._near is None:
                self.road.check_place(new=new)
        elif asked is not None:
            try:
                served = self.api.read("/v1/status")["cluster"]
            except (NotAllowed, NotAuthenticated):
                return  # not every account may know
            except FairlogError as error:
                raise UnsuitableStore(str(error)) from error
            if served != asked:
                raise UnknownCluster(f"the API at {self.api_url}", asked, [served])

    @cached_property
    def _place(self) -> tuple[str, str, RunningUp | None]:
        if self.api is not None:
            raise NoStore(
                f"this needs the store itself, and you use the API at {self.api_url}; run it on the store's host with "
                "--store URL, or with --data DIR of its `up` and without FAIRLOG_TOKEN"
            )
        return locate(self.target)

    @cached_property
    def _near(self) -> ApiClient | None:
        """The API server of the `up` that provides the store, if it answers."""
        if self.up is None or not self.up.socket or self.cluster != self.up.cluster:
            return None
        with suppress(FairlogError), _api_of(f"{UNIX}{self.up.socket}", "", 0) as quick:
            self._has_accounts = bool(quick.read("/v1/whoami")["accounts"])
            return _api_of(f"{UNIX}{self.up.socket}", "", self._timeout_s)
        return None

    def _server_for(self, view: str) -> ApiClient | None:
        """The API server that answers the view as this session is to see it."""
        if self.api is not None:
            return self.api
        return None if self._near is None or (self._has_accounts and view in _PRIVATE) else self._near

    @property
    def server(self) -> ApiClient | None:
        """The API server that answers what is private to apps as this session is to see it; None: the store does."""
        return self._server_for("app")

    @cached_property
    def road(self) -> Road:
        """The road over the store."""
        from fairlog.cli.road import Road  # noqa: PLC0415 (loads what folds the log)

        return Road(
            self.url,
            self.cluster,
            archive=self.target.archive,
            unsafe=self.target.unsafe_store,
            timeout_s=self._timeout_s,
            own_keys="data" in self.target.typed,
        )

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self._place[0]

    @property
    def cluster(self) -> str:
        """The name of the cluster in the store."""
        return self._place[1]

    @property
    def up(self) -> RunningUp | None:
        """The `up` that provides the store, if one does."""
        return self._place[2]

    @property
    def keys(self) -> Keys:
        """The cluster's keys in the store."""
        return self.road.keys

    @property
    def store(self) -> Redis:
        """The store."""
        return self.road.store

    @property
    def log(self) -> EventLog:
        """The log in the store and its archive."""
        return self.road.log

    @property
    def keyring(self) -> Keyring | None:
        """The keys of FAIRLOG_KEYS, else those of the `up` that provides the store."""
        return self.road.keyring

    @property
    def client(self) -> CommandClient:
        """What sends commands through the store."""
        return self.road.client

    def close(self) -> None:
        """Close the connections."""
        opened = (self.api, self.__dict__.get("_near"), self.__dict__.get("road"))
        for each in opened:
            if each is not None:
                each.close()

    def check(self) -> bool:
        """As `Road.check`."""
        return self.road.check()

    def send(self, command: Command) -> Receipt:
        """Send `command` and wait for its commit.

        Raises: CommandRejected if it is refused, Unconfirmed if no answer arrives.
        """
        return self._confirmed(lambda sender: sender.send(command), "repeating it is safe")

    def send_many(self, commands: Sequence[Command]) -> list[Receipt | CommandRejected]:
        """Send commands in order, in batches, and wait for their commits; the result of a refused one is its refusal.

        Raises: Unconfirmed if no answer arrives.
        """
        return self._confirmed(lambda sender: sender.send_many(commands), "repeating it is safe")

    def submit(self, command: SubmitApp, secrets: Mapping[str, str]) -> Receipt:
        """Submit an app with the values of its environment variables. Raises: as `send`."""
        app = command.app
        what_now = f"`fairlog app {app}` shows whether it was submitted; submitting again creates another app"
        foreign = [name for name, value in secrets.items() if _has_foreign_bytes(name + value)]
        if foreign and self.api is not None:
            names = ", ".join(foreign)
            raise InvalidCommand(
                f"variables must be in UTF-8, and {names} is not; leave it out: --export ALL,-{foreign[0]}"
            )
        if foreign:  # JSON cannot carry them, the store can
            return self.road.carried(lambda sender: sender.submit(command, secrets), what_now)
        return self._confirmed(lambda sender: sender.submit(command, secrets), what_now)

    def _confirmed(self, send: Callable[[CommandClient | ApiClient], T], what_now: str) -> T:
        """What is answered to a command; reports meanwhile if it has to wait for a master. Raises: Unconfirmed."""
        try:
            if (api := self.api or self._near) is None:
                return self.road.carried(send, what_now)
            with _note_after(NOTE_S, f"note: no master has answered yet; waiting up to {api.timeout_s:g} s for one"):
                return send(api)
        except NoMaster as error:
            raise Unconfirmed(str(error), what_now) from error
        except KeyboardInterrupt:
            say(str(Unconfirmed("interrupted", what_now)))
            raise

    def ask(self, view: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        """A view (`scheduler.rules.view.views`) of the state asked for, from the API or the log.

        Raises: CommandRejected if the thing asked for is unknown, UnreadableRecord if the log cannot be read.
        """
        if self.at is None and (server := self._server_for(view)) is not None:
            return server.view(view, at=None, **arguments)
        if self.api is not None and self.at is not None and self.at.seq is not None:
            return self.api.view(view, at=self.at.seq, **arguments)
        from fairlog.cli.road import seen  # noqa: PLC0415 (as in `road`)

        return seen(self.folded(), view, arguments)

    def parts(self, view: str, **arguments: object) -> Iterator[list[Any]]:
        """As `ask` of a view that is a list, in parts as they come."""
        if self.at is None and (server := self._server_for(view)) is not None:
            yield from server.parts(view, at=None, **arguments)
        else:
            yield self.ask(view, **arguments)

    def check_company(self, company: str) -> None:
        """Raises: UnknownCompany unless it is registered."""
        if all(each["company"] != company for each in self.ask("companies")):
            raise UnknownCompany(company)

    def card(self, app: str) -> dict[str, Any]:
        """The app now, and for what it waits, as `witness.board.one` tells it. Raises: UnknownApp."""
        if (server := self._server_for("app")) is not None:
            found: dict[str, Any] = server.read(f"/v1/apps/{quote(app, safe='')}/card")
            return found
        from msgspec import to_builtins  # noqa: PLC0415 (the API's answers need none)

        from witness.board import one  # noqa: PLC0415 (slow to import)

        told: dict[str, Any] = to_builtins(one(self.folded(), app))
        return told

    def worked_out(self, path: str, *, view: str, **query: str) -> Any | None:  # noqa: ANN401 (JSON)
        """What an API server works out from the whole log, which this session is to see as it sees `view`.

        None where it is to be worked out here, from what this session may read of the log: no server answers, it is of
        an earlier version or busy, takes no log so long, or does not work it out for this account. Raises:
        UnknownCompany.
        """
        if (server := self._server_for(view)) is None:
            return None
        try:
            return server.read(path, fresh="true", **query)
        except (Refused, Unreachable, NotAllowed):
            return None

    def account(self) -> By:
        """Who sends the commands."""
        if self.api is None:
            return local(os.getuid())
        said = self.api.read("/v1/whoami")
        return By(said["account"], said["token"], said["role"])

    def own_company(self) -> str:
        """The company of the account that sends the commands, "" if it has none."""
        by = self.account()
        return by.account.partition("/")[0] if by.role in {"user", "admin"} else ""

    def record_output(self, app: str, company: str, user: str, reason: str) -> None:
        """As `Road.record_output` for an app of that user; API servers record what they show themselves."""
        if self.api is None and (self._near is None or self._has_accounts):
            from scheduler.rules.command.permission import Subject  # noqa: PLC0415 (as in `road`)

            self.road.record_output(self.folded(), app, Subject(company, user), reason)

    def visit(self, app: str, wanted: VisitCommand) -> Callable[[Call], Reply]:
        """Run a command in the cell of the app's executor; what carries its input and output.

        Raises: UnknownApp, InvalidCommand without such an executor; NotAllowed.
        """
        if (api := self.api) is None:
            return self.road.visit(self.folded(), app, wanted)
        from msgspec import convert, to_builtins  # noqa: PLC0415 (few verbs need it)

        from scheduler.store.visits import Reply  # noqa: PLC0415 (likewise)

        path = f"/v1/apps/{quote(app, safe='')}/exec"
        begun = api.ask(path, to_builtins(wanted))["visit"]
        return lambda call: convert(api.ask(f"{path}/{begun}", to_builtins(call)), Reply)

    def is_served(self) -> bool:
        """Whether a master answers."""
        return self.road.is_served()

    def told(self) -> dict[str, Any] | None:
        """What an API server says of the cluster; that of an `up` only while the master answers it.

        None where this has to be found out from the store.
        """
        said: dict[str, Any]
        if self.api is not None:
            said = self.api.read("/v1/status", fresh="true")
            return said
        if self._near is None or self.up is None or others_than(self.up, self.target.data):
            return None
        with suppress(FairlogError), _api_of(f"{UNIX}{self.up.socket}", "", HEARD_S) as quick:
            said = quick.read("/v1/status", fresh="true")
            if said["master"] is not None:
                quick.hear()
            said["workers"] = [{name: each[name] for name in _OF_WORKER} for each in said["workers"]]
            return said
        return None

    def masters(self) -> tuple[Member | None, list[Member]]:
        """The active master and the standbys."""
        return self.road.masters()

    def agents(self) -> dict[str, dict[str, Any]]:
        """What the agents recorded of themselves (pid, host), by worker id."""
        return self.road.agents()

    def folded(self) -> ClusterState:
        """The state at the requested position or time.

        Raises: UnsuitableStore if no master would accept the store, UnreadableRecord if the log cannot be read.
        """
        from recovery.replay.rebuild import fold  # noqa: PLC0415 (as in `road`)
        from scheduler.rules.state.cluster import ClusterState  # noqa: PLC0415 (likewise)

        if self.api is None:
            self.check()
            if self.at is None:
                return self.road.reader.state()
        state = ClusterState()
        for fact in self.facts():
            fold(state, fact)
        return state

    def facts(self) -> Iterator[Fact]:
        """The facts up to the requested position or time.

        Raises: UnreadableRecord if the log cannot be read, NotThatLong if it ends before.
        """
        if self.api is not None:
            from scheduler.store.codec import read_export  # noqa: PLC0415 (as in `road`)

            return until(read_export(self.lines()), self.at, self.now_ms)
        return until(self.log.facts(), self.at, self.now_ms)

    def lines(self, *, growing: bool = False) -> Iterator[bytes]:
        """The log as the API tells it, a line an event, to be verified by who reads it; `growing`: without end."""
        if self.api is None:
            raise NoStore("this session reads the log itself")
        seq = 0
        for event in self.api.log():
            seq = event["seq"]
            yield json.dumps(event).encode()
        if growing:
            yield from (json.dumps(event).encode() for event in self.api.follow(after=seq))

    def plan(self, command: SubmitApp) -> dict[str, Any]:
        """What would become of the submission now (`witness.plan`). Raises: CommandRejected if it would be refused."""
        return self.road.plan(command) if self.api is None else self.api.plan(command)

    def submission(self, seq: int, reason: str) -> SubmitApp | None:
        """The submission that the log has at that position; without its private part if that is withheld."""
        from scheduler.model.commands import SubmitApp, command_of  # noqa: PLC0415 (few verbs need it)

        if self.api is not None:
            line = next((each for each in self.api.log(seq - 1, reason=reason) if each["seq"] == seq), None)
        else:
            line = self.road.event(seq)
        if line is None or "command" not in line:
            return None
        private = {name: value for name, value in (line.get("private") or {}).items() if name != "salt"}
        found = command_of({**line["command"], **private})
        return found if isinstance(found, SubmitApp) else None

    def now_ms(self) -> int:
        """The time (ms) by the store's clock; through an API server, by this machine's."""
        return self.road.now_ms() if self.api is None and self._near is None else round(time.time() * 1000)


def _api_of(url: str, token: str, timeout_s: float) -> ApiClient:
    """The client of the API. Raises: Refused if its URL cannot be used."""
    from fairlog.api.client import ApiClient  # noqa: PLC0415 (verbs about the store do without)

    return ApiClient(url, token=token, timeout_s=timeout_s, notice=partial(_say_why, timeout_s))


def _say_why(timeout_s: float, why: str) -> None:
    """Say why no API server can answer, while that is waited for."""
    say(f"note: {why}; waiting up to {timeout_s:g} s for an API server that can answer")


@contextmanager
def _note_after(seconds: float, sentence: str) -> Iterator[None]:
    """Say the sentence if the block takes longer."""
    timer = Timer(seconds, say, (sentence,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def until(entries: Iterable[E], at: Bound | None, now_ms: Callable[[], int]) -> Iterator[E]:
    """The entries up to that position or time; all entries for None.

    Raises: NotThatLong, after the last entry, if the log ends before the position or the time is in the future.
    """
    seq = ended_at = 0
    for entry in up_to(entries, at or OPEN):
        seq, ended_at = entry.seq, entry.at
        yield entry
    if at is not None and at.at is not None and not seq:
        raise PositionMissing(f"the log begins after {at}; give a later time")
    check_reached(at or OPEN, seq, ended_at, now_ms)


def locate(target: Target) -> tuple[str, str, RunningUp | None]:
    """The store's URL, the cluster's name, and the `up` that provides them, if one does.

    Raises: NoStore, UnsuitableStore if the URL cannot be read.
    """
    up = None if target.store else find_running(target.data)
    url = target.store or (up.url if up else None)
    if url is None:
        raise NoStore(
            f"no `fairlog up` runs on the data in {target.data}: start it with `fairlog up --data {target.data}`"
            if target.data
            else "no cluster found: start one with `fairlog up`, log in with `fairlog login --api URL`, or name a "
            "store with --store or FAIRLOG_STORE"
        )
    try:
        _ = "," in url or "+sentinel://" in url or urlsplit(url).port
    except ValueError as error:
        raise UnsuitableStore(
            f"the store's URL {masked(url)!r} cannot be read: {error}; write it like redis://HOST:6379/0"
        ) from None
    return url, target.cluster or (up.cluster if up else "default"), up


def _has_foreign_bytes(text: str) -> bool:
    """Whether the text has bytes that are no UTF-8, as the environment may."""
    return any("\udc80" <= character <= "\udcff" for character in text)
