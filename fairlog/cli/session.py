"""A connection to one cluster, for every verb that asks or changes one.

API servers have folded the log, so a verb that asks one starts fast: what the store needs is loaded when it is used.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from fairlog import credentials
from fairlog.api.addresses import UNIX, of_app
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

    from fairlog.api.client import ApiClient
    from fairlog.cli.remote_tasks import RemoteTasks
    from fairlog.cli.road import Road
    from fairlog.cli.target import Target
    from fairlog.local.running import RunningUp
    from scheduler.model.commands import Command, SubmitApp
    from scheduler.model.errors import CommandRejected
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.client import CommandClient
    from scheduler.service.receipts import Receipt
    from scheduler.store.codec import Fact, Record
    from scheduler.store.eventlog import EventLog
    from scheduler.store.task_queue import Worklist
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
    """A connection to the cluster selected by `target`, over its store; `SessionByApi` is one through an API.

    Where an `up` of this user provides the store, its API server is asked for what it can answer. Raises: NoStore if no
    store is named or running, UnsuitableStore if its URL cannot be read.
    """

    look_s = 0.2
    """How long whoever waits for something pauses between two looks."""

    def __init__(self, target: Target, *, timeout_s: float = 30) -> None:
        self.target = target
        self.at = target.at
        self._timeout_s = timeout_s
        self._front: ApiClient | None = None

    def check_place(self, *, new: bool) -> None:
        """Raises: UnsuitableStore if nobody answers there, UnknownCluster unless the cluster may be a `new` one."""
        if self._near is None:
            self.road.check_place(new=new)

    @cached_property
    def _place(self) -> tuple[str, str, RunningUp | None]:
        return locate(self.target)

    @cached_property
    def _near(self) -> ApiClient | None:
        """The API server of the `up` that provides the store, if it answers."""
        if self.up is None or not self.up.socket or self.cluster != self.up.cluster:
            return None
        with suppress(FairlogError), api_at(f"{UNIX}{self.up.socket}", "", 0) as quick:
            self._has_accounts = bool(quick.read("/v1/whoami")["accounts"])
            return api_at(f"{UNIX}{self.up.socket}", "", self._timeout_s)
        return None

    def server_for(self, view: str) -> ApiClient | None:
        """The API server that answers the view as this session is to see it; None: the log does."""
        return None if self._near is None or (self._has_accounts and view in _PRIVATE) else self._near

    @property
    def server(self) -> ApiClient | None:
        """The API server that answers what is private to apps as this session is to see it; None: the store does."""
        return self.server_for("app")

    def front(self, without: str) -> tuple[ApiClient, str]:
        """The API by which others reach the cluster, and its URLs. Raises: NoStore with that sentence if none runs."""
        if self.up is None or not self.up.socket:
            raise NoStore(without)
        url = f"{UNIX}{self.up.socket}"
        self._front = self._front or api_at(url, "", self._timeout_s)
        return self._front, url

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
        """The `up` that provides the cluster, if one of this user does."""
        return self._place[2]

    def close(self) -> None:
        """Close the connections."""
        for each in (self._front, self.__dict__.get("_near"), self.__dict__.get("road")):
            if each is not None:
                each.close()

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
        return self._confirmed(lambda sender: sender.submit(command, secrets), what_now, foreign)

    def _confirmed(
        self, send: Callable[[CommandClient | ApiClient], T], what_now: str, foreign: Sequence[str] = ()
    ) -> T:
        """What is answered to a command; reports meanwhile if it has to wait for a master. Raises: Unconfirmed.

        `foreign` are variables whose bytes are no UTF-8, which JSON cannot carry.
        """
        try:
            if (api := self._carrier(foreign)) is None:
                return self.road.carried(send, what_now)
            with _note_after(NOTE_S, f"note: no master has answered yet; waiting up to {api.timeout_s:g} s for one"):
                return send(api)
        except NoMaster as error:
            raise Unconfirmed(str(error), what_now) from error
        except KeyboardInterrupt:
            say(str(Unconfirmed("interrupted", what_now)))
            raise

    def _carrier(self, foreign: Sequence[str]) -> ApiClient | None:
        """The API server that takes commands with such variables; None: the store does."""
        return None if foreign else self._near

    def ask(self, view: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        """A view (`scheduler.rules.view.views`) of the state asked for, from the API or the log.

        Raises: CommandRejected if the thing asked for is unknown, UnreadableRecord if the log cannot be read.
        """
        if self.at is None and (server := self.server_for(view)) is not None:
            return server.view(view, at=None, **arguments)
        from fairlog.cli.road import seen  # noqa: PLC0415 (as in `road`)

        return seen(self.folded(), view, arguments, self.road.now_ms() if self.at is None else None)

    def parts(self, view: str, **arguments: object) -> Iterator[list[Any]]:
        """As `ask` of a view that is a list, in parts as they come."""
        if self.at is None and (server := self.server_for(view)) is not None:
            yield from server.parts(view, at=None, **arguments)
        else:
            yield self.ask(view, **arguments)

    def check_company(self, company: str) -> None:
        """Raises: UnknownCompany unless it is registered."""
        known = [each["company"] for each in self.ask("companies")]
        if company not in known:
            raise UnknownCompany(company, known)

    def card(self, app: str) -> dict[str, Any]:
        """The app now, and for what it waits, as `witness.board.one` tells it. Raises: UnknownApp."""
        if (server := self.server) is not None:
            found: dict[str, Any] = server.read(f"{of_app(app)}/card")
            return found
        from msgspec import to_builtins  # noqa: PLC0415 (the API's answers need none)

        from witness.board import one  # noqa: PLC0415 (slow to import)

        told: dict[str, Any] = to_builtins(one(self.folded(), app, None if self.at else self.road.now_ms()))
        return told

    def worked_out(self, path: str, *, view: str, **query: str) -> Any | None:  # noqa: ANN401 (JSON)
        """What an API server works out from the whole log, which this session is to see as it sees `view`.

        None where it is to be worked out here, from what this session may read of the log: no server answers, it is of
        an earlier version or busy, takes no log so long, or does not work it out for this account. Raises:
        UnknownCompany.
        """
        if (server := self.server_for(view)) is None:
            return None
        try:
            return server.read(path, fresh="true", **query)
        except (Refused, Unreachable, NotAllowed):
            return None

    def whoami(self) -> dict[str, Any]:
        """Who sends the commands, as /v1/whoami tells it, and `through` what."""
        by = local(os.getuid())
        more: dict[str, Any] = {"company": "", "scopes": None, "expires": None, "through": "the store"}
        more["sees"] = None
        return {"account": by.account, "role": by.role, "token": by.token, **more}

    def account(self) -> By:
        """Who sends the commands."""
        said = self.whoami()
        return By(said["account"], said["token"], said["role"])

    def own_company(self) -> str:
        """The company of the account that sends the commands, "" if it has none."""
        by = self.account()
        return by.account.partition("/")[0] if by.role in {"user", "admin"} else ""

    def record_output(self, app: str, company: str, user: str, reason: str) -> None:
        """As `Road.record_output` for an app of that user; API servers record what they show themselves."""
        if self.server is None:
            from scheduler.rules.command.permission import Subject  # noqa: PLC0415 (as in `road`)

            self.road.record_output(self.folded(), app, Subject(company, user), reason)

    def visit(self, app: str, wanted: VisitCommand) -> Callable[[Call], Reply]:
        """Run a command in the cell of the app's executor; what carries its input and output.

        Raises: UnknownApp, InvalidCommand without such an executor; NotAllowed.
        """
        if (server := self.server) is None:
            return self.road.visit(self.folded(), app, wanted)
        from msgspec import convert, to_builtins  # noqa: PLC0415 (few verbs need it)

        from scheduler.store.visits import Reply  # noqa: PLC0415 (likewise)

        path = f"{of_app(app)}/exec"
        begun = server.ask(path, to_builtins(wanted))["visit"]
        return lambda call: convert(server.ask(f"{path}/{begun}", to_builtins(call)), Reply)

    def tasks(self, reason: str = "") -> Worklist | RemoteTasks:  # noqa: ARG002 (an API server asks for it)
        """The tasks of the cluster's apps; `reason` is why an operator reads their output."""
        from scheduler.store.task_queue import Worklist  # noqa: PLC0415 (loads RQ, which an API server does without)

        return Worklist(self.road.store, self.cluster)

    def told(self) -> dict[str, Any] | None:
        """What the API server of the `up` says of the cluster, while the master answers it.

        None where this has to be found out from the store.
        """
        if self._near is None or self.up is None or others_than(self.up, self.target.data):
            return None
        with suppress(FairlogError), api_at(f"{UNIX}{self.up.socket}", "", HEARD_S) as quick:
            said: dict[str, Any] = quick.read("/v1/status", fresh="true")
            if said["master"] is not None:
                quick.hear()
            said["workers"] = [{name: each[name] for name in _OF_WORKER} for each in said["workers"]]
            return said
        return None

    def place(self) -> dict[str, Any]:
        """Where the store is, as `status` tells it."""
        return {"url": masked(self.url), "pid": self.up.store_pid if self.up else None}

    def folded(self) -> ClusterState:
        """The state at the requested position or time.

        Raises: UnsuitableStore if no master would accept the store, UnreadableRecord if the log cannot be read.
        """
        self.road.check()
        return self.road.reader.state() if self.at is None else _folded(self.facts())

    def facts(self) -> Iterator[Fact]:
        """The facts up to the requested position or time.

        Raises: UnreadableRecord if the log cannot be read, NotThatLong if it ends before.
        """
        return until(self.road.log.facts(), self.at, self.now_ms)

    def whole_log(self) -> EventLog | Iterator[Fact]:
        """The log with its snapshots, or all facts. Raises: as `facts`."""
        return self.road.log

    def records(self, first: Bound, last: Bound) -> Iterator[Record]:
        """The turns of the log that contain the span, and possibly others."""
        log = self.road.log
        return log.read(log.before((first.seq or 1) - 1), to=last.seq)

    def growing(self, first: Bound) -> Iterator[Record]:
        """The turns from there on as they are committed, and possibly others before; without end."""
        from fairlog.cli.follow import follow  # noqa: PLC0415 (loads the store's library)

        log = self.road.log
        return (record for record in follow(log, log.before((first.seq or 1) - 1)) if record is not None)

    def end(self) -> tuple[int, str] | None:
        """The position and digest of the end of the log; None if it is empty."""
        position = self.road.log.head()
        return position if position.seq else None

    def events_of(self, app: str, seq: int) -> Iterator[dict[str, Any]]:
        """The events of the app that was registered at `seq`, as `fairlog log --json` prints them."""
        if (server := self.server) is None:
            return self.road.events_of(app, seq)
        return server.follow(f"{of_app(app)}/events", seq - 1)

    def plan(self, command: SubmitApp) -> dict[str, Any]:
        """What would become of the submission now (`witness.plan`). Raises: CommandRejected if it would be refused."""
        return self.road.plan(command)

    def submission(self, seq: int, reason: str) -> SubmitApp | None:
        """The submission that the log has at that position; without its private part if that is withheld."""
        from scheduler.model.commands import SubmitApp, command_of  # noqa: PLC0415 (few verbs need it)

        if (server := self.server) is not None:
            line = next((each for each in server.log(seq - 1, reason=reason) if each["seq"] == seq), None)
        else:
            line = self.road.event(seq)
        if line is None or "command" not in line:
            return None
        private = {name: value for name, value in (line.get("private") or {}).items() if name != "salt"}
        found = command_of({**line["command"], **private})
        return found if isinstance(found, SubmitApp) else None

    def now_ms(self) -> int:
        """The time (ms) by the store's clock; through an API server, by this machine's."""
        return self.road.now_ms() if self.server_for("cluster") is None else round(time.time() * 1000)


class SessionByApi(Session):
    """A session through the API at `urls`, for whoever does not hold the store: what needs that raises NoStore."""

    look_s = 0.5

    def __init__(self, target: Target, urls: str, token: str, *, timeout_s: float = 30) -> None:
        super().__init__(target, timeout_s=timeout_s)
        self.urls = urls
        self.api = api_at(urls, token, timeout_s)

    def check_place(self, *, new: bool) -> None:  # noqa: ARG002 (an API makes no cluster)
        """As of a `Session`."""
        asked = self.target.cluster
        if asked is None:
            return
        try:
            served = self.api.read("/v1/status")["cluster"]
        except (NotAllowed, NotAuthenticated):
            return  # not every account may know
        except FairlogError as error:
            raise UnsuitableStore(str(error)) from error
        if served != asked:
            raise UnknownCluster(f"the API at {self.urls}", asked, [served])

    @cached_property
    def _place(self) -> tuple[str, str, RunningUp | None]:
        raise NoStore(
            f"this needs the store itself, and you use the API at {self.urls}; run it on the store's host with "
            "--store URL, or with --data DIR of its `up` and without FAIRLOG_TOKEN"
        )

    @property
    def up(self) -> RunningUp | None:
        """As of a `Session`."""
        found = find_running(self.target.data)
        return found if found is not None and self.urls == f"{UNIX}{found.socket}" else None

    def close(self) -> None:
        """As of a `Session`."""
        self.api.close()

    def server_for(self, view: str) -> ApiClient:  # noqa: ARG002 (it answers all)
        """As of a `Session`."""
        return self.api

    def front(self, without: str) -> tuple[ApiClient, str]:  # noqa: ARG002 (there is one)
        """As of a `Session`."""
        return self.api, self.urls

    def _carrier(self, foreign: Sequence[str]) -> ApiClient:
        if foreign:
            names = ", ".join(foreign)
            raise InvalidCommand(
                f"variables must be in UTF-8, and {names} is not; leave it out: --export ALL,-{foreign[0]}"
            )
        return self.api

    def ask(self, view: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        """As of a `Session`."""
        return self.api.view(view, at=self._position, **arguments)

    @cached_property
    def _position(self) -> int | None:
        """The position asked for; of a time, that of the last event until then, so that the server tells what is seen.

        Raises: as `facts`.
        """
        if self.at is None or self.at.seq is not None:
            return None if self.at is None else self.at.seq
        found = end_of(self.facts())
        return None if found is None else found[0]

    def plan(self, command: SubmitApp) -> dict[str, Any]:
        """As of a `Session`."""
        return self.api.plan(command)

    def whoami(self) -> dict[str, Any]:
        """As of a `Session`."""
        return {**self.api.read("/v1/whoami"), "through": f"the API at {self.urls}"}

    def tasks(self, reason: str = "") -> RemoteTasks:
        """As of a `Session`."""
        from fairlog.cli.remote_tasks import RemoteTasks  # noqa: PLC0415 (few verbs need it)

        return RemoteTasks(self.api, reason)

    def told(self) -> dict[str, Any]:
        """What the API server says of the cluster."""
        said: dict[str, Any] = self.api.read("/v1/status", fresh="true")
        return said

    def place(self) -> dict[str, Any]:
        """As of a `Session`."""
        return {"url": "behind the API", "pid": None}

    def folded(self) -> ClusterState:
        """As of a `Session`."""
        return _folded(self.facts())

    def facts(self) -> Iterator[Fact]:
        """As of a `Session`, from the whole log as the API tells it."""
        from scheduler.store.codec import read_export  # noqa: PLC0415 (as in `road`)

        return until(read_export(self._lines(growing=False)), self.at, self.now_ms)

    whole_log = facts

    def records(self, first: Bound, last: Bound) -> Iterator[Record]:  # noqa: ARG002 (a chain is verified from 1 on)
        """As of a `Session`."""
        from fairlog.cli.exports import chained  # noqa: PLC0415 (as in `road`)

        return chained(self._lines(growing=False))

    def growing(self, first: Bound) -> Iterator[Record]:  # noqa: ARG002 (likewise)
        """As of a `Session`."""
        from fairlog.cli.exports import chained  # noqa: PLC0415 (as in `road`)

        return chained(self._lines(growing=True))

    def _lines(self, *, growing: bool) -> Iterator[bytes]:
        """The log as the API tells it, a line an event, to be verified by who reads it; `growing`: without end."""
        seq = 0
        for event in self.api.log():
            seq = event["seq"]
            yield json.dumps(event).encode()
        if growing:
            yield from (json.dumps(event).encode() for event in self.api.follow(after=seq))

    def end(self) -> tuple[int, str] | None:
        """As of a `Session`."""
        return end_of(self.facts())


def opened(target: Target, *, timeout_s: float = 30, new: bool = False) -> Session:
    """A session of the target: here alone a road is chosen.

    It goes over the store if one is named, else through the API that `fairlog.credentials` names, else over the store
    of the `up` that runs. Raises: as `Session`; UnsuitableStore if nobody answers there, UnknownCluster unless the
    cluster may be a `new` one.
    """
    found = credentials.named(target.data) if target.store is None else None
    if found is None:
        session = Session(target, timeout_s=timeout_s)
    else:
        session = SessionByApi(target, found.api, found.token, timeout_s=timeout_s)
    try:
        session.check_place(new=new)
    except FairlogError:
        session.close()
        raise
    return session


def _folded(facts: Iterable[Fact]) -> ClusterState:
    """The state after these facts."""
    from recovery.replay.rebuild import fold  # noqa: PLC0415 (as in `road`)
    from scheduler.rules.state.cluster import ClusterState  # noqa: PLC0415 (likewise)

    state = ClusterState()
    for fact in facts:
        fold(state, fact)
    return state


def end_of(facts: Iterable[Fact]) -> tuple[int, str] | None:
    """The position and digest of the last of them."""
    last = next(iter(deque(facts, maxlen=1)), None)
    return None if last is None else (last.seq, last.digest)


def api_at(url: str, token: str, timeout_s: float = 30) -> ApiClient:
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
