"""What agents, executors and drivers are answered: a permission, then the operation over the store.

A worker acts by its own token, and only for itself; an executor or driver by the token of its grant, and only for that.
The agents of an `up` show a pass. As long as there are no accounts, the owner of the server's Unix socket may act as
any worker.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from anyio import CapacityLimiter, to_thread
from msgspec import Raw, structs
from redis.exceptions import RedisError

from fairlog.api.sight import machine_ms
from scheduler.model import events
from scheduler.model.commands import RegisterWorker
from scheduler.model.errors import NotAllowed, NotAuthenticated
from scheduler.model.grants import Grant
from scheduler.model.sender import By, worker_sender
from scheduler.model.text import in_bytes
from scheduler.rules.command.decide import decide
from scheduler.rules.command.permission import Subject, may_read, permit
from scheduler.service.grant_tokens import PASS, PREFIX, GrantClaims, GrantTokens, claims_of, grant_token
from scheduler.service.heartbeats import beat_after_ms
from scheduler.store.codec import told
from scheduler.store.secrets import UnreadableSecrets
from scheduler.store.visits import Orders, Report
from workers import door
from workers.store_door import MOST_LOOKS, Stored, WorkerStore

if TYPE_CHECKING:
    from redis import Redis

    from fairlog.api.replica import Replica
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.keyring import Keyring
    from scheduler.store.codec import Record

KEPT = 20_000
"""The most workers of which a server remembers what it told last."""
_to_json = msgspec.json.Encoder().encode


class Caller(NamedTuple):
    """Who calls for a worker: in whose name commands are sent, and what its grant is for if it is an executor."""

    by: By
    worker: str
    claims: GrantClaims | None = None

    @property
    def grant(self) -> GrantClaims:
        """What the grant is for. Raises: NotAllowed if an agent calls."""
        if self.claims is None:
            raise NotAllowed("this is for executors")
        return self.claims


class _LastTold(NamedTuple):
    """What a worker was told last: its grants as stored, whether all may be started, and what was said of them."""

    grants: Mapping[bytes, bytes]
    settled: bool
    tag: str
    granted: list[door.Granted]
    revoked: list[str]
    waits_for: int
    """The log position up to which its grants must be settled."""


class Work:
    """The operations of workers, over the store and the replica. Every method may be called from several threads."""

    def __init__(
        self, store: Redis, cluster: str, replica: Replica, authenticate: Callable[[str], By], keyring: Keyring | None
    ) -> None:
        self._authenticate = authenticate
        self._cluster, self._replica, self._ring = cluster, replica, keyring
        self._store = WorkerStore(store, cluster, keyring)
        self._tokens = GrantTokens(cluster, keyring)
        self._kept: OrderedDict[tuple[str, str], _LastTold] = OrderedDict()

    # Who calls

    def caller(self, token: str, worker: str, executor: str = "", *, at_home: bool, invited: bool = False) -> Caller:
        """The agent of the worker, or one of its executors or drivers, as the token shows; asks no store.

        An `invited` worker has not exchanged its invitation yet, with which it may do nothing else.

        Raises: NotAuthenticated; NotAllowed for anybody else.
        """
        if token.startswith(PREFIX):
            return self._of_grant(token, worker, executor)
        if token.startswith(PASS):
            self._tokens.check_pass(token, worker)
            return Caller(self._here(worker), worker)
        if not token and at_home:
            if self._replica.peek(lambda state: state.closed):
                how = f"`fairlog worker invite {worker[:80]}` makes one"
                raise NotAuthenticated(f"the cluster has accounts, so a worker needs a token; {how}")
            return Caller(self._here(worker), worker)
        by = self._authenticate(token)
        if not invited:
            self._replica.peek(lambda state: may_read(state, by, "work", Subject(worker=worker), machine_ms()))
        if by.account != f"worker/{worker}":
            raise NotAllowed(f"{by.account} may not act as worker {worker[:80]!r}")
        return Caller(by, worker)

    def with_grant(self, caller: Caller, executor: str) -> Caller:
        """The caller with the grant of the executor. Raises: NotAllowed if the worker has none."""
        if caller.claims is not None:
            return caller
        return caller._replace(claims=self._store.claims(caller.worker, executor))

    def _of_grant(self, token: str, worker: str, executor: str) -> Caller:
        claims = self._tokens.read(token)
        if (claims.worker, claims.executor) != (worker, executor):
            raise NotAllowed(f"the token of {claims.executor} on worker {claims.worker} is good for that only")

        def check(state: ClusterState) -> None:
            held = state.executors.get(executor) or state.drivers.get(executor)
            if held is not None and (held.worker, held.granted_at) != (worker, claims.granted_at):
                raise NotAllowed(f"{executor} is not the one that worker {worker} was granted with this token")
            valid = state.accounts.tokens_of(f"worker/{worker}", machine_ms()) if claims.fetched_by else ()
            if claims.fetched_by and all(own.id != claims.fetched_by for own in valid):
                raise NotAuthenticated(f"the token by which worker {worker} got this grant is not valid any more")

        self._replica.peek(check)
        return Caller(self._here(worker), worker, claims)

    def _here(self, worker: str) -> By:
        """In whose name this server speaks for the worker: it vouches for it by its key."""
        return structs.replace(worker_sender(worker), door="" if self._ring is None else self._ring.door)

    # Agents

    def grants(self, questions: Sequence[tuple[Caller, str]]) -> list[tuple[door.Holding, bool]]:
        """What each worker holds, after a heartbeat, of which it has what the tag in its question says.

        Also whether some of its grants wait for the store's replicas.
        """
        beat_ms = beat_after_ms(1000 * self._replica.peek(lambda state: state.settings.worker_timeout_s))
        found = self._store.look([caller.worker for caller, _ in questions])
        return [
            self._holding(caller, after, stored, beat_ms)
            for (caller, after), stored in zip(questions, found, strict=True)
        ]

    def _holding(self, caller: Caller, after: str, stored: Stored, beat_ms: int) -> tuple[door.Holding, bool]:
        kept = self._keep(caller.worker, stored, caller.by.token)
        tag = f"{kept.tag}{'' if stored.alive else '-'}{'v' if stored.visited else ''}"
        news = after != tag
        holding = door.Holding(
            alive=stored.alive,
            tag=tag,
            settled=stored.settled,
            registrant=stored.registrant,
            grants=kept.granted if news else None,
            revoked=kept.revoked if news else [],
            visited=list(stored.visited),
            beat_ms=beat_ms,
        )
        return holding, not kept.settled

    def visited(self) -> set[str]:
        """The workers on which somebody wants to run a command (`Visits.awaited`)."""
        return self._store.visits.awaited()

    def _keep(self, worker: str, stored: Stored, by: str) -> _LastTold:
        kept = self._kept.pop((worker, by), None)
        if kept is None or kept.grants != stored.grants:
            kept = self._told(worker, stored, by)
        elif not kept.settled and kept.waits_for <= stored.settled:
            kept = kept._replace(settled=True, tag=f"{kept.tag}s")
        self._kept[worker, by] = kept
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return kept

    def _told(self, worker: str, stored: Stored, by: str) -> _LastTold:
        granted, waits_for = [], 0
        for _, text in sorted(stored.grants.items()):
            if text:
                grant = Grant.model_validate_json(text)
                waits_for = max(waits_for, grant.settled_at)
                granted.append(door.Granted(Raw(text), self._token_of(grant, worker, by)))
        revoked = [name.decode() for name, text in sorted(stored.grants.items()) if not text]
        digest = blake2b(repr((by, sorted(stored.grants.items()))).encode(), digest_size=12).hexdigest()
        settled = waits_for <= stored.settled
        return _LastTold(stored.grants, settled, f"{digest}{'s' * settled}", granted, revoked, waits_for)

    def _token_of(self, grant: Grant, worker: str, by: str) -> str:
        claims = structs.replace(claims_of(grant, self._cluster, worker), fetched_by=by)
        return "" if self._ring is None else grant_token(self._ring, claims)

    def register(self, caller: Caller, asked: door.Registering) -> None:
        """Register the worker. Raises: NotAllowed for an offer above its invitation, CommandRejected, NoMaster."""
        command = RegisterWorker(worker=caller.worker, **asked.offer)

        def refuse(state: ClusterState) -> None:
            if state.closed:
                permit(state, command, caller.by, machine_ms())

        self._replica.read(refuse)
        self._store.register(caller.by, command, structs.replace(asked.registrant, api=True))

    def check_invited(self, caller: Caller, asked: door.Registering) -> None:
        """Raises: CommandRejected unless the worker could register so; nothing is registered."""
        command = RegisterWorker(worker=caller.worker, **asked.offer)
        self._replica.read(lambda state: decide(state, command, machine_ms(), self._here(caller.worker)))

    def leave(self, caller: Caller) -> None:
        """Remove the worker. Raises: CommandRejected, NoMaster."""
        self._store.leave(caller.by, caller.worker)

    def removal(self, caller: Caller) -> door.Removal:
        """Why the log removed the worker last."""
        return door.Removal(self._store.was_removed(caller.worker))

    def reports(self, caller: Caller, asked: door.Reports) -> None:
        """Take reports. Those of executors that are nowhere granted are left out.

        Raises: NotAllowed, taking none, if one is granted on another worker.
        """
        named = [*asked.started, *(each.executor for each in asked.ended)]
        held = self._held(caller.worker, named)
        if started := [each for each in asked.started if each in held]:
            self._store.started(caller.by, caller.worker, started)
        for end in asked.ended:
            if end.executor in held:
                self._store.ended(caller.by, caller.worker, end)

    def _held(self, worker: str, executors: Sequence[str]) -> set[str]:
        """The executors and drivers that the worker holds."""
        if not executors:
            return set()
        stored: Any = self._store.store.hmget(self._store.keys.grants(worker), list(executors))
        held = {name for name, grant in zip(executors, stored, strict=True) if grant is not None}

        def check(state: ClusterState) -> None:
            for name in executors:
                other = state.executors.get(name) or state.drivers.get(name)
                if name not in held and other is not None and other.worker != worker:
                    raise NotAllowed(f"{name} is granted on another worker than {worker}")

        self._replica.read(check)
        return held

    # Executors and drivers

    def begin(self, caller: Caller) -> door.Begun:
        """Create the tasks of the app, and show the executor to RQ's tools; its secrets."""
        claims = caller.grant
        if not self._store.fill(claims):
            return door.Begun(granted=False)
        try:
            secrets = self._store.secrets(claims)
        except UnreadableSecrets as error:
            return door.Begun(granted=True, unreadable=str(error))
        pairs = [(in_bytes(name), in_bytes(value)) for name, value in secrets.items()]
        return door.Begun(granted=True, secrets=pairs)

    def step(self, caller: Caller, asked: door.StepRequest) -> object:
        """Report ended tasks and take new ones."""
        claims = caller.grant
        want = max(0, min(asked.want, claims.slots))
        return self._store.step(claims, asked.completions, want=want, turn=asked.turn)

    def output(self, caller: Caller, asked: door.OutputTails) -> door.Kept:
        """Keep the output tails of running tasks; whether the executor is granted."""
        return door.Kept(self._store.keep_output(caller.grant, asked))

    def backlog(self, caller: Caller, asked: door.Backlog) -> None:
        """Report the app's backlog."""
        self._store.backlog(caller.by, caller.grant, asked)

    def end_app(self, caller: Caller, asked: door.AppEnd) -> None:
        """Report that the app's tasks have ended."""
        self._store.end_app(caller.by, caller.grant, asked.reason)

    def alive(self, caller: Caller) -> None:
        """Show the executor to RQ's tools."""
        self._store.show_life(caller.grant)

    def visits(self, caller: Caller) -> door.Visited:
        """What somebody wants to run in the executor's cell."""
        return door.Visited(self._store.visits.take(caller.worker, caller.grant.executor))

    def attend(self, caller: Caller, asked: Report) -> Orders:
        """Exchange input and output of a visit."""
        return self._store.visits.attend(caller.grant.executor, asked)

    def finish(self, caller: Caller, asked: door.Finish) -> None:
        """Return the executor's tasks, and show it no longer."""
        self._store.finish(caller.grant, put_back=asked.put_back)


class _Question(NamedTuple):
    asked: tuple[Caller, str]
    answer: asyncio.Future[tuple[door.Holding, bool]]


class Questions:
    """The open questions of agents: those that come while the store is busy with others are asked of it together.

    `grants` is as `Work.grants`. One thread at a time is used for all.
    """

    def __init__(self, grants: Callable[[Sequence[tuple[Caller, str]]], list[tuple[door.Holding, bool]]]) -> None:
        self._grants = grants
        self._asked: list[_Question] = []
        self._asking: asyncio.Task[None] | None = None
        self._thread = CapacityLimiter(1)

    async def ask(self, caller: Caller, after: str) -> tuple[door.Holding, bool]:
        """What `Work.grants` says of the caller."""
        question = _Question((caller, after), asyncio.get_running_loop().create_future())
        self._asked.append(question)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await question.answer

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked[:MOST_LOOKS], self._asked[MOST_LOOKS:]
            await self._answer(asked)

    async def _answer(self, asked: Sequence[_Question]) -> None:
        """Answer them together; each by itself if one of them cannot be answered, for another reason than the store."""
        asking = to_thread.run_sync(self._grants, [each.asked for each in asked], limiter=self._thread)
        [found] = await asyncio.gather(asking, return_exceptions=True)
        if isinstance(found, BaseException):
            if len(asked) > 1 and not isinstance(found, RedisError):
                for each in asked:
                    await self._answer([each])
                return
            for each in asked:
                if not each.answer.done():
                    each.answer.set_exception(found)
            return
        for each, holding in zip(asked, found, strict=True):
            if not each.answer.done():
                each.answer.set_result(holding)


class Bells:
    """Wakes whoever waits for the grants of a worker; `heard` may be called from another thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def expect(self, worker: str) -> asyncio.Future[None]:
        """What is done once a turn concerns the worker, from now on; `forget` it afterwards."""
        self._loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(worker, []).append(rung)
        return rung

    def forget(self, worker: str, rung: asyncio.Future[None]) -> None:
        """Nobody waits for that any more."""
        waiting = self._waiting.get(worker, [])
        if rung in waiting:
            waiting.remove(rung)
        if not waiting:
            self._waiting.pop(worker, None)

    def heard(self, record: Record | None, state: ClusterState) -> None:
        """Wake those whom the turn, which `state` has folded, concerns; None: all."""
        if self._loop is not None and self._waiting and not self._loop.is_closed():
            workers = None if record is None else _concerned([fact.event for fact in told(record)], state)
            if workers is None or workers:
                self._loop.call_soon_threadsafe(self._ring, workers)

    def ring(self, workers: Iterable[str] | None = None) -> None:
        """Wake those who wait for the workers' grants; None: everybody."""
        self._ring(workers)

    def _ring(self, workers: Iterable[str] | None) -> None:
        for worker in [*self._waiting] if workers is None else workers:
            for rung in self._waiting.pop(worker, ()):
                if not rung.done():
                    rung.set_result(None)


_OF_ALL_IT_HOLDS = (
    events.AppRemoved
    | events.AppExpired
    | events.AppWarned
    | events.AppSignalled
    | events.TaskCancelled
    | events.AppRequeued
)
"""Events that change the grants of all that an app holds."""


def _concerned(turn: Sequence[events.Event], state: ClusterState) -> list[str]:
    """The workers whose grants, or whose place in the cluster, the events may have changed."""
    found: dict[str, None] = {}
    for event in turn:
        if isinstance(event, _OF_ALL_IT_HOLDS):
            app = state.apps.get(event.app)
            found |= dict.fromkeys(held.worker for held in (app.allocations() if app is not None else ()))
        elif isinstance(event, events.TaskRequeued):
            held = state.executors.get(event.executor)
            found |= {} if held is None else {held.worker: None}
        elif (worker := getattr(event, "worker", None)) is not None:
            found[worker] = None
    return list(found)
