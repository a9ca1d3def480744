"""A connection to one cluster, for every verb that uses the store."""

from __future__ import annotations

import json
import time
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from msgspec import convert, to_builtins
from redis.exceptions import RedisError

from fairlog import credentials
from fairlog.cli.render import say
from fairlog.local.running import find_running, keyring_for
from fairlog.visiting import check_may_visit, place_of
from recovery.archive.archive import open_log
from recovery.failover.follower import Reader
from recovery.failover.lease import Member, members
from recovery.replay.bounds import OPEN, Bound, E, up_to
from recovery.replay.rebuild import fold, rebuild
from scheduler.model.commands import SubmitApp, command_of
from scheduler.model.errors import FairlogError, NoMaster, NotAllowed, NotAuthenticated, UnknownCompany, UnsuitableStore
from scheduler.model.sender import By
from scheduler.rules.permission import Subject, may_read
from scheduler.rules.state import ClusterState
from scheduler.rules.views import look
from scheduler.service.client import Client
from scheduler.service.program_log import masked
from scheduler.store.codec import lines_of, read_export
from scheduler.store.connection import SENTINEL, SENTINEL_TLS, clock_ms, connect
from scheduler.store.durability import check_store
from scheduler.store.keys import QUEUES, Keys, clusters
from scheduler.store.reads import record_read
from scheduler.store.transient import LaneFull, in_words, is_there, passes
from scheduler.store.visits import Reply, Visits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from redis import Redis

    from fairlog.api.client import ApiClient
    from fairlog.cli.target import Target
    from fairlog.credentials import Credentials
    from fairlog.local.running import Running
    from scheduler.model.commands import Command
    from scheduler.service.client import Receipt
    from scheduler.service.keyring import Keyring
    from scheduler.store.codec import Fact
    from scheduler.store.eventlog import EventLog
    from scheduler.store.visits import Call, Wanted

ANSWER_S = 2.0
"""Seconds in which a master that serves answers."""


class NoStore(FairlogError):
    """No store is named and no `up` runs, or no `up` runs on the given data folder."""


class UnknownCluster(FairlogError):
    """The store, or the API, serves other clusters and none of that name."""

    def __init__(self, where: str, cluster: str, known: Sequence[str]) -> None:
        near = get_close_matches(cluster, known, 1) or known[:1]
        serves = f"{where} has no cluster {cluster!r}; it has {', '.join(map(repr, known[:5]))}"
        super().__init__(f"{serves}; did you mean `--cluster {near[0]}`?")


class Unconfirmed(FairlogError):
    """A command was sent and not answered; `what_now` is what the sender can do."""

    def __init__(self, why: str, what_now: str) -> None:
        super().__init__(f"{why}; the command is not confirmed and may still be carried out later; {what_now}")


class NotThatLong(FairlogError):
    """The log does not contain the requested position or time."""


class Session:
    """A connection to the cluster selected by `target`.

    It goes through `api` if no store is named and `fairlog.credentials` names an API, else through `store`, where `log`
    reads. Through the API, what needs the store raises NoStore.

    Raises: NoStore if no store is named or running, UnsuitableStore if it does not answer, UnknownCluster unless the
    cluster may be a `new` one.
    """

    def __init__(self, target: Target, *, timeout_s: float = 30, new: bool = False) -> None:
        self.target = target
        self.at = target.at
        found = credentials.named(target.data) if target.store is None else None
        self.api_url = "" if found is None else found.api
        self.api: ApiClient | None = None if found is None else _api_of(found, timeout_s)
        self._unsafe = target.unsafe_store
        try:
            self._check_place(new=new)
        except FairlogError:
            self.close()
            raise

    def _check_place(self, *, new: bool) -> None:
        asked = self.target.cluster
        if self.api is None:
            try:
                there = self.store.exists(self.keys.log, self.keys.masters)
            except RedisError as error:
                raise UnsuitableStore(f"{in_words(error)}; the store's URL is {masked(self.url)}") from error
            known = [] if new or there else clusters(self._queues())
            if known and self.cluster not in known:
                raise UnknownCluster(f"the store {masked(self.url)}", self.cluster, known)
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
    def _place(self) -> tuple[str, str, Running | None]:
        if self.api is not None:
            raise NoStore(
                f"this needs the store itself, and you use the API at {self.api_url}; run it on the store's host with "
                "--store URL, or with --data DIR of its `up` and without FAIRLOG_TOKEN"
            )
        return locate(self.target)

    def _queues(self) -> Iterable[bytes]:
        try:
            return cast("set[bytes]", self.store.smembers(QUEUES))
        except RedisError:  # not every user of the store may read it
            return ()

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self._place[0]

    @property
    def cluster(self) -> str:
        """The name of the cluster in the store."""
        return self._place[1]

    @property
    def up(self) -> Running | None:
        """The `up` that provides the store, if one does."""
        return self._place[2]

    @cached_property
    def keys(self) -> Keys:
        """The cluster's keys in the store."""
        return Keys(self.cluster)

    @cached_property
    def store(self) -> Redis:
        """The store."""
        return connect(self.url)

    @cached_property
    def log(self) -> EventLog:
        """The log in the store and its archive."""
        return open_log(self.store, self.keys, elsewhere=self.target.archive)

    @cached_property
    def keyring(self) -> Keyring | None:
        """The keys of FAIRLOG_KEYS, else those of the `up` that provides the store."""
        return keyring_for(self.url)

    @cached_property
    def client(self) -> Client:
        """What sends commands through the store."""
        return Client(self.store, self.cluster, keyring=self.keyring)

    @property
    def _sender(self) -> Client | ApiClient:
        return self.api or self.client

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self.log)

    def close(self) -> None:
        """Close the connections."""
        if self.api is not None:
            self.api.close()
        elif "store" in self.__dict__:
            self.store.close()

    def check(self) -> bool:
        """Whether a master is active; if none is, verify that a master would accept the store.

        Raises: UnsuitableStore saying why.
        """
        if members(self.store, self.keys)[0] is not None:
            return True
        check_store(self.store, unsafe=self._unsafe, serving=False)
        return False

    def send(self, command: Command) -> Receipt:
        """Send `command` and wait for its commit.

        Raises: CommandRejected if it is refused, Unconfirmed if no answer arrives.
        """
        return self._confirmed(lambda: self._sender.send(command), "repeating it is safe")

    def submit(self, command: SubmitApp, secrets: Mapping[str, str]) -> Receipt:
        """Submit an app with the values of its environment variables. Raises: as `send`."""
        app = command.app
        what_now = f"`fairlog app {app}` shows whether it was submitted; submitting again creates another app"
        return self._confirmed(lambda: self._sender.submit(command, secrets), what_now)

    def _confirmed(self, send: Callable[[], Receipt], what_now: str) -> Receipt:
        """The receipt of a command; reports first if it has to wait for a master. Raises: Unconfirmed."""
        if self.api is None and not self.check():
            for_s = f"{self._sender.timeout_s:g} s"
            say(f"note: no master of the cluster {self.cluster} is active; waiting up to {for_s} for one")
        try:
            return send()
        except NoMaster as error:
            raise Unconfirmed(str(error), what_now) from error
        except RedisError as error:
            if isinstance(error, LaneFull) or not passes(error):
                raise
            raise Unconfirmed(in_words(error), what_now) from error
        except KeyboardInterrupt:
            say(str(Unconfirmed("interrupted", what_now)))
            raise

    def ask(self, view: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        """A view (`scheduler.rules.views`) of the state asked for, from the API or the log.

        Raises: CommandRejected if the thing asked for is unknown, UnreadableRecord if the log cannot be read.
        """
        if self.api is not None and (self.at is None or self.at.seq is not None):
            return self.api.view(view, at=None if self.at is None else self.at.seq, **arguments)
        return seen(self.folded(), view, arguments)

    def check_company(self, company: str) -> None:
        """Raises: UnknownCompany unless it is registered."""
        if all(each["company"] != company for each in self.ask("companies")):
            raise UnknownCompany(company)

    def card(self, app: str) -> dict[str, Any]:
        """The app now, and for what it waits, as `witness.board.one` tells it. Raises: UnknownApp."""
        if self.api is not None:
            found: dict[str, Any] = self.api.read(f"/v1/apps/{quote(app, safe='')}/card")
            return found
        from witness.board import one  # noqa: PLC0415 (slow to import)

        return one(self.folded(), app)

    def account(self) -> By:
        """Who sends the commands."""
        if self.api is None:
            return self.client.by
        said = self.api.read("/v1/whoami")
        return By(said["account"], said["token"], said["role"])

    def record_output(self, app: str, owner: Subject, reason: str) -> None:
        """Record that output of the app is read from the store, as API servers do; without accounts, do nothing.

        Raises: NotAllowed without a reason.
        """
        if self.api is None and (state := self.folded()).closed:
            may_read(state, self.client.by, "private", owner, self.now_ms(), reason=reason)
            self._record("output", app, reason)

    def _record(self, what: str, app: str, reason: str) -> None:
        ring = self.keyring
        sign = {} if ring is None or not ring.door else {"sign": ring.sign_read}
        record_read(self.store, self.keys, self.client.by, what, app, reason, **sign)

    def visit(self, app: str, wanted: Wanted) -> Callable[[Call], Reply]:
        """Run a command in the cell of the app's executor; what carries its input and output.

        Raises: UnknownApp, InvalidCommand without such an executor; NotAllowed.
        """
        if (api := self.api) is not None:
            path = f"/v1/apps/{quote(app, safe='')}/exec"
            begun = api.ask(path, to_builtins(wanted))["visit"]
            return lambda call: convert(api.ask(f"{path}/{begun}", to_builtins(call)), Reply)
        state, by = self.folded(), self.client.by
        place = place_of(state, app, wanted.executor)
        spec = state.apps[app].spec
        check_may_visit(state, by, app, Subject(spec.company, spec.user), self.now_ms(), reason=wanted.reason)
        if state.closed:
            self._record("exec", app, wanted.reason)
        visits = Visits(self.store, self.keys)
        visit = visits.begin(wanted, place.worker, place.id, by.account)
        return lambda call: visits.call(visit, by.account, call)

    def is_served(self) -> bool:
        """Whether a master answers."""
        if members(self.store, self.keys)[0] is None:
            return False
        try:
            Client(self.store, self.cluster, keyring=self.keyring, timeout_s=ANSWER_S).hear()
        except NoMaster:
            return False
        except RedisError as error:
            if not is_there(error):
                raise
            return False
        return True

    def masters(self) -> tuple[Member | None, list[Member]]:
        """The active master and the standbys."""
        return members(self.store, self.keys)

    def agents(self) -> dict[str, dict[str, Any]]:
        """What the agents recorded of themselves (pid, host), by worker id."""
        stored = cast("dict[bytes, bytes]", self.store.hgetall(self.keys.agents))
        return {name.decode(): json.loads(text) for name, text in stored.items()}

    def folded(self) -> ClusterState:
        """The state at the requested position or time.

        Raises: UnsuitableStore if no master would accept the store, UnreadableRecord if the log cannot be read.
        """
        if self.api is None:
            self.check()
            if self.at is None:
                return self._reader.state()
        state = ClusterState()
        for fact in self.facts():
            fold(state, fact)
        return state

    def facts(self) -> Iterator[Fact]:
        """The facts up to the requested position or time.

        Raises: UnreadableRecord if the log cannot be read, NotThatLong if it ends before.
        """
        if self.api is not None:
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
        if self.api is not None:
            return self.api.plan(command)
        from witness.plan import plan  # noqa: PLC0415 (slow to import)

        self.check()
        return plan(rebuild(self.log)[0], command, self.client.by, self.now_ms())

    def submission(self, seq: int, reason: str) -> SubmitApp | None:
        """The submission that the log has at that position; without its private part if that is withheld."""
        lines: Iterable[dict[str, Any]]
        if self.api is not None:
            lines = self.api.log(seq - 1, reason=reason)
        else:
            records = self.log.read(self.log.before(seq - 1), to=seq)
            lines = (line.as_json() for record in records for line in lines_of(record))
        for line in lines:
            if line["seq"] == seq and "command" in line:
                found = command_of(
                    {**line["command"], **{k: v for k, v in (line.get("private") or {}).items() if k != "salt"}}
                )
                return found if isinstance(found, SubmitApp) else None
        return None

    def now_ms(self) -> int:
        """The time (ms) by the store's clock; through the API, by this machine's."""
        if self.api is not None:
            return round(time.time() * 1000)
        return clock_ms(cast("Any", self.store.time()))


def _api_of(found: Credentials, timeout_s: float) -> ApiClient:
    """The client of the API. Raises: Refused if its URL cannot be used."""
    from fairlog.api.client import ApiClient  # noqa: PLC0415 (httpx takes long to load)

    return ApiClient(found.api, token=found.token, timeout_s=timeout_s)


def seen(state: ClusterState, view: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 (JSON)
    """A view of the state as the API shows it: of apps, with the causes for which they wait. Raises: as `look`."""
    found = look(state, view, arguments)
    if view != "apps":
        return found
    from witness.listing import listed  # noqa: PLC0415 (other views do without what explains)

    return [listed(state, state.apps[each["app"]]) for each in found]


def until(entries: Iterable[E], at: Bound | None, now_ms: Callable[[], int]) -> Iterator[E]:
    """The entries up to that position or time; all entries for None.

    Raises: NotThatLong, after the last entry, if the log ends before the position or the time is in the future.
    """
    seq = ended_at = 0
    for entry in up_to(entries, at or OPEN):
        seq, ended_at = entry.seq, entry.at
        yield entry
    if at is not None and at.seq is not None and seq < at.seq:
        raise NotThatLong(f"the log ends at position {seq}, before {at.seq}")
    if at is not None and at.at is not None and not seq:
        raise NotThatLong(f"the log begins after {at}; give a later time")
    if at is not None and at.at is not None and at.at > now_ms():
        raise NotThatLong(f"the log ends at position {seq}, {Bound(at=ended_at)}; {at} is in the future")


def locate(target: Target) -> tuple[str, str, Running | None]:
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
        _ = "," in url or url.startswith((SENTINEL, SENTINEL_TLS)) or urlsplit(url).port
    except ValueError as error:
        raise UnsuitableStore(
            f"the store's URL {masked(url)!r} cannot be read: {error}; write it like redis://HOST:6379/0"
        ) from None
    return url, target.cluster or (up.cluster if up else "default"), up
