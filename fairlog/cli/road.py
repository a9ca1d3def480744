"""The road to a cluster over its store, for operators on its host: the log is folded here.

It loads what reads and decides, so verbs that an API server answers leave it alone.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import to_builtins
from redis.exceptions import RedisError

from fairlog.cli.failures import Unconfirmed, UnknownCluster
from fairlog.cli.render import say
from fairlog.local.running import keyring_for
from fairlog.visiting import check_may_visit, place_of
from recovery.archive.archive import open_log
from recovery.failover.follower import Reader
from recovery.failover.lease import Member, members
from recovery.replay.rebuild import rebuild
from scheduler.model.errors import NoMaster, UnsuitableStore
from scheduler.model.ids import app_of
from scheduler.rules.command.permission import Subject, may_read
from scheduler.rules.view.views import look, moment_of
from scheduler.service.client import CommandClient
from scheduler.service.program_log import masked
from scheduler.store.codec import lines_of
from scheduler.store.connection import clock_ms, connect
from scheduler.store.durability import check_store
from scheduler.store.keys import QUEUES, Keys, clusters
from scheduler.store.reads import record_read
from scheduler.store.transient import LaneFull, in_words, is_there, passes
from scheduler.store.visits import Visits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from redis import Redis

    from scheduler.model.commands import SubmitApp
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.keyring import Keyring
    from scheduler.store.eventlog import EventLog
    from scheduler.store.visits import Call, Reply, VisitCommand

T = TypeVar("T")
ANSWER_S = 2.0
"""Seconds in which a master that serves answers."""


class Road:
    """The store at `url` with its `cluster`; `archive` is where the archive is if it has moved.

    `own_keys`: the keys are those of the `up` that provides the store, whatever FAIRLOG_KEYS names.
    """

    def __init__(
        self, url: str, cluster: str, *, archive: str, unsafe: bool, timeout_s: float, own_keys: bool = False
    ) -> None:
        self.url, self.cluster, self.timeout_s = url, cluster, timeout_s
        self._archive, self._unsafe, self._own_keys = archive, unsafe, own_keys
        self.keys = Keys(cluster)
        self.store: Redis = connect(url)

    def check_place(self, *, new: bool) -> None:
        """Raises: UnsuitableStore if the store does not answer, UnknownCluster if it has others and none is `new`."""
        try:
            there = self.store.exists(self.keys.log, self.keys.masters)
        except RedisError as error:
            raise UnsuitableStore(f"{in_words(error)}; the store's URL is {masked(self.url)}") from error
        known = [] if new or there else clusters(self._queues())
        if known and self.cluster not in known:
            raise UnknownCluster(f"the store {masked(self.url)}", self.cluster, known)

    def _queues(self) -> Iterable[bytes]:
        try:
            return cast("set[bytes]", self.store.smembers(QUEUES))
        except RedisError:  # not every user of the store may read it
            return ()

    @cached_property
    def log(self) -> EventLog:
        """The log in the store and its archive. Raises: OtherVersion if it has a schema that is not read."""
        log = open_log(self.store, self.keys, elsewhere=self._archive)
        log.check_schema()
        return log

    @cached_property
    def keyring(self) -> Keyring | None:
        """The keys of FAIRLOG_KEYS unless its own are asked for, else those of the `up` that provides the store."""
        return keyring_for(self.url, own=self._own_keys)

    @cached_property
    def client(self) -> CommandClient:
        """What sends commands through the store."""
        return CommandClient(self.store, self.cluster, keyring=self.keyring, timeout_s=self.timeout_s)

    @cached_property
    def reader(self) -> Reader:
        """The state at the end of the log; the first look folds all of it."""
        return Reader(self.log)

    def close(self) -> None:
        """Close the connections."""
        self.store.close()

    def check(self) -> bool:
        """Whether a master is active; if none is, verify that a master would accept the store.

        Raises: UnsuitableStore saying why.
        """
        if members(self.store, self.keys)[0] is not None:
            return True
        check_store(self.store, unsafe=self._unsafe, serving=False)
        return False

    def carried(self, send: Callable[[CommandClient], T], what_now: str) -> T:
        """What is answered to commands; reports first if they have to wait for a master. Raises: Unconfirmed."""
        if not self.check():
            for_s = f"{self.client.timeout_s:g} s"
            say(f"note: no master of the cluster {self.cluster} is active; waiting up to {for_s} for one")
        try:
            return send(self.client)
        except RedisError as error:
            if isinstance(error, LaneFull) or not passes(error):
                raise
            raise Unconfirmed(in_words(error), what_now) from error

    def plan(self, command: SubmitApp) -> dict[str, Any]:
        """What would become of the submission now (`witness.plan`). Raises: CommandRejected if it would be refused."""
        from witness.plan import plan  # noqa: PLC0415 (slow to import)

        self.check()
        return plan(rebuild(self.log)[0], command, self.client.by, self.now_ms())

    def event(self, seq: int) -> dict[str, Any] | None:
        """The event at that position of the log, as `fairlog log --json` prints it; None behind its end."""
        records = self.log.read(self.log.before(seq - 1), to=seq)
        return next((line.as_json() for record in records for line in lines_of(record) if line.seq == seq), None)

    def events_of(self, app: str, seq: int) -> Iterator[dict[str, Any]]:
        """The events from that position on that are about the app, as `event`."""
        for record in self.log.read(self.log.before(seq - 1)):
            for line in lines_of(record) if app.encode() in record.events else ():
                if app in (line.data.get("app"), app_of(str(line.data.get("executor", "")))):
                    yield line.as_json()

    def record_output(self, state: ClusterState, app: str, owner: Subject, reason: str) -> None:
        """Record that output of the app is read from the store, as API servers do; without accounts, do nothing.

        Raises: NotAllowed without a reason.
        """
        if state.closed:
            may_read(state, self.client.by, "private", owner, self.now_ms(), reason=reason)
            self._record("output", app, reason)

    def _record(self, what: str, app: str, reason: str) -> None:
        ring = self.keyring
        sign = {} if ring is None or not ring.door else {"sign": ring.sign_read}
        record_read(self.store, self.keys, self.client.by, what, app, reason, **sign)

    def visit(self, state: ClusterState, app: str, wanted: VisitCommand) -> Callable[[Call], Reply]:
        """Run a command in the cell of the app's executor; what carries its input and output.

        Raises: UnknownApp, InvalidCommand without such an executor; NotAllowed.
        """
        by = self.client.by
        place = place_of(state, app, wanted.executor)
        spec = state.apps[app].spec
        check_may_visit(state, by, Subject(spec.company, spec.user), self.now_ms(), reason=wanted.reason)
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
            CommandClient(self.store, self.cluster, keyring=self.keyring, timeout_s=ANSWER_S).hear()
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

    def now_ms(self) -> int:
        """The time (ms) by the store's clock."""
        return clock_ms(cast("Any", self.store.time()))


def seen(state: ClusterState, view: str, arguments: dict[str, Any], now: int | None = None) -> Any:  # noqa: ANN401 (JSON)
    """A view of the state as the API shows it: of apps, with the causes for which they wait. Raises: as `look`."""
    if view == "estimates":
        from witness.forecast import forecast  # noqa: PLC0415 (other views do without it)

        found = forecast(state, moment_of(state, now))
        return {"estimates": [{"app": app, **each._asdict()} for app, each in found.items()], "errors": None}
    if view != "apps":
        return look(state, view, arguments, now)
    from witness.listing import Among, listed  # noqa: PLC0415 (other views do without what explains)

    ids = frozenset(str(arguments.pop("ids", "")).split(",")) - {""}
    found, meant = look(state, view, arguments), Among(ids).of(state)
    return to_builtins([listed(state, app) for each in found if meant(app := state.apps[each["app"]])])
