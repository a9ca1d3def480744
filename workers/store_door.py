"""What workers do, over the store: by API servers for whoever has shown a token, and directly where the store is."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec
import structlog
from msgspec import structs
from redis.exceptions import RedisError
from rq.serializers import JSONSerializer
from rq.worker import SimpleWorker
from rq.worker.base import WorkerStatus

from scheduler.model import commands
from scheduler.model.commands import Measured
from scheduler.model.errors import NotAllowed
from scheduler.model.events import WorkerRemoved
from scheduler.model.grants import Grant
from scheduler.model.ids import app_of, is_driver, number_of
from scheduler.model.sender import By, worker_sender
from scheduler.rules.checks.validate import MAX_MEMORY_MB, MAX_MOMENT
from scheduler.service.client import CommandClient
from scheduler.service.grant_tokens import GrantClaims, claims_of
from scheduler.service.heartbeats import BEAT_LUA
from scheduler.store.codec import told
from scheduler.store.connection import ANSWER_S, connect
from scheduler.store.doorbell import RING_LUA, DoorbellWorker, forget_queue
from scheduler.store.eventlog import EventLog
from scheduler.store.full_disks import note_cut
from scheduler.store.keys import Keys, bell_id, queue_key
from scheduler.store.task_queue import Completion, Step, Verdict, Worklist, broken
from scheduler.store.unused import forget_unused, note_unused
from scheduler.store.visits import Orders, Report, Visit, Visits, read_awaited
from workers.door import Backlog, Ended, Held, OutputTails, Registrant

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.service.keyring import Keyring

REGISTER_S = 5
MOST_LOOKS = 256
"""The most workers that are looked at at once: the store does nothing else meanwhile, for a millisecond or so."""
_PAGES = 50
"""How many pages of the log are searched for the worker's removal."""
_read_registrant = msgspec.json.Decoder(Registrant).decode


class Stored(NamedTuple):
    """What the store has of a worker, as in `Held`; `grants` as it is stored, with "" for a revoked executor."""

    alive: bool
    grants: Mapping[bytes, bytes]
    settled: int
    registrant: Registrant | None
    visited: Sequence[str] = ()


class WorkerStore:
    """The operations of all workers of a cluster, over its store; may be used by several threads.

    Commands are sent by `by`, signed by the keyring. What concerns an executor goes by its grant's `claims`.
    """

    def __init__(self, store: Redis, cluster: str, keyring: Keyring | None, *, timeout_s: float = REGISTER_S) -> None:
        self.store, self.keys = store, Keys(cluster)
        self.client = CommandClient(store, cluster, keyring=keyring, timeout_s=timeout_s)
        self.work = Worklist(store, cluster, secret_key=None if keyring is None else keyring.apps or None)
        self.visits = Visits(store, self.keys)

    # Agents

    def look(self, workers: Sequence[str]) -> list[Stored]:
        """Send a heartbeat of each of the workers; what the store has of them. At most `MOST_LOOKS`."""
        keys = self.keys
        pipeline = self.store.pipeline(transaction=False)
        grants = map(keys.grants, workers)
        pipeline.eval(BEAT_LUA, 1 + len(workers), keys.heartbeats, *grants, *workers)
        pipeline.get(keys.settled)
        pipeline.hmget(keys.agents, list(workers))
        pipeline.zrange(keys.visited, 0, -1)
        beats, settled, registrants, visits = pipeline.execute()
        visited: dict[str, list[str]] = {}
        for awaited in read_awaited(visits):
            visited.setdefault(awaited.worker, []).append(awaited.executor)
        return [
            Stored(
                bool(alive),
                dict(zip(flat[::2], flat[1::2], strict=True)),
                int(settled or 0),
                _read_registrant(registrant) if registrant else None,
                visited.get(worker, ()),
            )
            for worker, (alive, flat), registrant in zip(workers, beats, registrants, strict=True)
        ]

    def register(self, by: By, offer: commands.RegisterWorker, registrant: Registrant) -> None:
        """Register the worker. Raises: CommandRejected, NoMaster."""
        self.client.send(offer, by=by)
        self.store.hset(self.keys.agents, offer.worker, msgspec.json.encode(registrant))

    def leave(self, by: By, worker: str) -> None:
        """Remove the worker from the cluster, and its queue from RQ. Raises: CommandRejected, NoMaster."""
        self.client.send(commands.RemoveWorker(worker=worker, force=True), by=by)
        forget_queue(self.store, self.keys.worker_queue(worker))

    def was_removed(self, worker: str) -> str:
        """Why the log removed the worker last; "" if its end in the store does not tell."""
        for record in EventLog(self.store, self.keys).backwards(_PAGES):
            for fact in reversed(told(record)) if b"WorkerRemoved" in record.events else ():
                if isinstance(fact.event, WorkerRemoved) and fact.event.worker == worker:
                    return fact.event.reason
        return ""

    def started(self, by: By, worker: str, executors: Sequence[str]) -> None:
        """Report executors of the worker that were started."""
        self.client.notify(*(commands.StartedExecutor(executor=each, worker=worker) for each in executors), by=by)

    def ended(self, by: By, worker: str, end: Ended) -> None:
        """Report how an executor or driver of the worker ended.

        A failover of the store may have lost its last reports and task states. So the app's end is reported again if
        the states of its tasks say that it is over, and `done` only if none of them is left (semantics S6). For a task
        that waits for its next attempt, the executors that run tasks stay (semantics W10): where none runs, whoever
        stayed for it may have ended after what the store has forgotten.
        Where all tasks are over, it reports the app's end: the executor that saw the last one may have lost its grant,
        and with it the right to say so.
        """
        executor, app = end.executor, app_of(end.executor)
        forget_unused(self.store, self.keys, executor)
        if is_driver(executor):
            about = {"reason": end.reason, "exit_code": end.exit_code, "detail": end.detail, "used": _within(end.used)}
            self.client.notify(commands.EndedDriver(driver=executor, worker=worker, **cast("Any", about)), by=by)
            return
        reports: list[commands.Command] = []
        finished = False
        if end.verdict is not None and (over := self.work.verdict(app)) is not None:
            reports.append(_end_of(app, over, executor))
            done = end.done
        else:
            finished = self.work.has_finished(app, executor)
            gone = broken(executor) if end.reason == "failed" and not end.unstartable else executor
            came_back, tasks = self.work.put_back(app, gone), self.work.progress(app)
            done = end.done and tasks.tasks > 0 and not (came_back or tasks.left)
            if done and (over := self.work.verdict(app)) is not None:
                reports.append(_end_of(app, over, executor))
        report = commands.EndedExecutor(
            executor=executor,
            worker=worker,
            reason=end.reason,
            exit_code=end.exit_code,
            done=done,
            finished=finished,
            unstartable=end.unstartable if end.reason == "failed" else "",
            detail=end.detail if end.verdict is None else "",
            used=_within(end.used),
        )
        if done and not reports:
            if self.client.notify_done(report, app, by=by):
                return
            report = structs.replace(report, done=False)
        self.client.notify(*reports, report, by=by)

    # Executors and drivers

    def claims(self, worker: str, executor: str) -> GrantClaims:
        """What the executor's grant on the worker is for. Raises: NotAllowed if there is none."""
        stored = cast("bytes | None", self.store.hget(self.keys.grants(worker), executor))
        if not stored:
            raise NotAllowed(f"executor {executor[:80]!r} is not granted on worker {worker!r}")
        return claims_of(Grant.model_validate_json(stored), self.keys.cluster, worker)

    def fill(self, claims: GrantClaims) -> bool:
        """As `ExecutorDoor.fill`; RQ's tools show the executor from now on."""
        self.show_life(claims)
        if claims.runs != "tasks":
            return self.work.is_granted(claims.worker, claims.executor)
        about: dict[str, Any] = {"worker": claims.worker, "executor": claims.executor}
        stored = cast("bytes | None", self.store.hget(self.keys.grants(claims.worker), claims.executor))
        if stored and (b'"near"' in stored or b'"restarts"' in stored):
            grant = Grant.model_validate_json(stored)
            about |= {"near": grant.near, "array": grant.array, "again": grant.restarts > 0}
        return self.work.fill(claims.app, claims.tasks, **about)

    def secrets(self, claims: GrantClaims) -> dict[str, str]:
        """The secrets of the app, while the executor is granted. Raises: NotAllowed, UnreadableSecrets."""
        if not self.work.is_granted(claims.worker, claims.executor):
            raise NotAllowed(f"executor {claims.executor!r} is not granted on worker {claims.worker!r} any more")
        return self.work.secrets(claims.app)

    def step(self, claims: GrantClaims, completions: Sequence[Completion], *, want: int, turn: str) -> Step:
        """As `ExecutorDoor.step`, under the step's number (`Worklist.step`)."""
        return self.work.step(
            claims.app,
            completions,
            worker=claims.worker,
            executor=claims.executor,
            want=want,
            retries=claims.retries,
            backoff_s=claims.backoff_s,
            rq_worker=claims.rq_name,
            turn=turn,
            slots=claims.slots,
            company=claims.company,
        )

    def finish(self, claims: GrantClaims, *, put_back: bool) -> None:
        """As `ExecutorDoor.finish`."""
        if put_back:
            self.work.put_back(claims.app, claims.executor)
        if claims.runs == "tasks":
            self._record(claims).withdraw()

    def keep_output(self, claims: GrantClaims, said: OutputTails) -> bool:
        """As `ExecutorDoor.keep_output`."""
        tails = dict(said.tails)
        if said.unused is not None:
            note_unused(self.store, self.keys, claims.executor, *said.unused)
        if said.unwritten > 0:
            note_cut(self.store, self.keys, claims.worker, said.unwritten, said.why)
        grant = cast("bytes | None", self.store.hget(self.keys.grants(claims.worker), claims.executor))
        if grant is None:  # it has ended, and what ended has no output to add to that of another one
            return False
        if claims.runs == "tasks":
            if tails:
                self.work.keep_output(claims.app, claims.executor, tails, company=claims.company)
        elif claims.runs == "driver" and 0 in tails:
            self.work.keep_driver_output(claims.app, tails[0], company=claims.company)
        elif 0 in tails:
            number = number_of(claims.executor)
            self.work.keep_program_output(claims.app, number, tails[0], company=claims.company)
        if said.used is not None and claims.runs == "program":
            self.work.keep_used(claims.app, number_of(claims.executor), *said.used)
        return bool(grant)

    def backlog(self, by: By, claims: GrantClaims, said: Backlog) -> None:
        """As `ExecutorDoor.backlog`."""
        self.client.notify(commands.ReportBacklog(executor=claims.executor, **structs.asdict(said)), by=by)

    def end_app(self, by: By, claims: GrantClaims, reason: Literal["finished", "failed"]) -> None:
        """As `ExecutorDoor.end_app`; the detail is that of the task that failed.

        An executor knows of its own tasks only, so the states of all tasks say whether the app is over, and how. What
        they do not say is not reported: after a failover of the store that lost states, their tasks run again.
        """
        over = self.work.verdict(claims.app)
        if over is None:
            _log.warning(
                "an executor's end of its app is not what its tasks say", executor=claims.executor, said=reason
            )
            return
        self.client.notify(_end_of(claims.app, over, claims.executor), by=by)

    def show_life(self, claims: GrantClaims) -> None:
        """As `ExecutorDoor.show_life`."""
        if claims.runs == "tasks":
            self._record(claims).show_life()

    def _record(self, claims: GrantClaims) -> _RqRecord:
        return _RqRecord(self.store, self.keys.app_queue(claims.app), claims.rq_name)


def _end_of(app: str, verdict: Verdict, executor: str) -> commands.EndApp:
    return commands.EndApp(app=app, reason=verdict.reason, detail=verdict.detail, executor=executor)


class _RqRecord(SimpleWorker):
    """The record of an executor as a worker on its app's queue, for RQ's tools. It takes no jobs itself."""

    def __init__(self, connection: Redis, queue: str, name: str) -> None:
        super().__init__([queue], name=name, connection=connection, serializer=JSONSerializer, worker_ttl=30)
        self._state = WorkerStatus.BUSY

    @property
    def connection_timeout(self) -> int:
        """RQ's minimum timeout for answers of the store."""
        return ANSWER_S

    def _set_ip_address(self, connection: Redis) -> None:  # noqa: ARG002 - RQ's signature
        """Replaces RQ's method, which lists all clients of the store to find the address."""
        self.ip_address = socket.gethostname()

    def show_life(self) -> None:
        """Make the record, or renew it."""
        if self.connection.exists(self.key):
            self.heartbeat()
            return
        self.register_birth()  # type: ignore[no-untyped-call]

    def withdraw(self) -> None:
        """Remove the record."""
        self.register_death()  # type: ignore[no-untyped-call]
        self.connection.delete(self.key)


class StoreAgentDoor:
    """The door of one worker's agent over the store at a URL (`AgentDoor`)."""

    def __init__(self, url: str, cluster: str, worker: str, keyring: Keyring | None) -> None:
        self._url, self._cluster, self._worker, self._keyring = url, cluster, worker, keyring
        self._by = worker_sender(worker)
        self._store: Redis = connect(url)
        self._door = WorkerStore(self._store, cluster, keyring)
        self._bell: DoorbellWorker | None = None
        self._stopped = False

    def look(self) -> Held:
        """As `AgentDoor.look`."""
        [(alive, grants, settled, registrant, visited)] = self._door.look([self._worker])
        granted = {name.decode(): Grant.model_validate_json(value) for name, value in grants.items() if value}
        revoked = [name.decode() for name, value in sorted(grants.items()) if not value]
        return Held(alive, granted, revoked, settled, registrant, {}, visited)

    def listen(self, answer: Callable[[], None]) -> None:
        """As `AgentDoor.listen`, by RQ's worker loop on the worker's queue. Raises: also redis-py's errors."""
        queue = self._door.keys.worker_queue(self._worker)
        self._bell = self._bell or DoorbellWorker(queue, self._store, answer)
        if not self._stopped:
            self._bell.work_until_stopped()

    def wake(self) -> None:
        """As `AgentDoor.wake`: nothing to do, since it answers every second."""

    def stop(self) -> None:
        """As `AgentDoor.stop`."""
        self._stopped = True
        if self._bell is not None:
            self._bell.stop()

    def register(self, offer: commands.RegisterWorker, registrant: Registrant) -> None:
        """As `AgentDoor.register`."""
        self._door.register(self._by, offer, registrant)

    def drain(self) -> None:
        """As `AgentDoor.drain`."""
        self._door.client.send(commands.DrainWorker(worker=self._worker), by=self._by)

    def health(self, unwell: str) -> None:
        """As `AgentDoor.health`."""
        said: commands.Command = commands.UndrainWorker(worker=self._worker, unwell=True)
        if unwell:
            said = commands.DrainWorker(worker=self._worker, reason=unwell, unwell=True)
        self._door.client.send(said, by=self._by)

    def leave(self) -> None:
        """As `AgentDoor.leave`."""
        self._door.leave(self._by, self._worker)

    def was_removed(self) -> str:
        """As `AgentDoor.was_removed`."""
        return self._door.was_removed(self._worker)

    def started(self, executors: Sequence[str]) -> None:
        """As `AgentDoor.started`."""
        self._door.started(self._by, self._worker, executors)

    def ended(self, end: Ended) -> None:
        """As `AgentDoor.ended`."""
        self._door.ended(self._by, self._worker, end)

    def spec_of(self, executor: str) -> Mapping[str, Any]:  # noqa: ARG002 - as in `AgentDoor`
        """As `AgentDoor.spec_of`."""
        keys = None if self._keyring is None else self._keyring.without_masters().as_json()
        return {"store": self._url, "cluster": self._cluster, "keys": keys}

    def close(self) -> None:
        """As `AgentDoor.close`."""
        self._store.close()


class StoreExecutorDoor:
    """The door of one executor or driver over the store at a URL (`ExecutorDoor`)."""

    def __init__(self, url: str, claims: GrantClaims, keyring: Keyring | None) -> None:
        self._claims, self._by, self._keyring = claims, worker_sender(claims.worker), keyring
        self._store: Redis = connect(url)
        self.turns = StepNumbers()

    @cached_property
    def _door(self) -> WorkerStore:
        return WorkerStore(self._store, self._claims.cluster, self._keyring)

    def fill(self) -> bool:
        """As `ExecutorDoor.fill`."""
        return self._door.fill(self._claims)

    def secrets(self) -> Mapping[str, str]:
        """As `ExecutorDoor.secrets`."""
        return self._door.work.secrets(self._claims.app)

    def step(self, completions: Sequence[Completion], *, want: int) -> Step:
        """As `ExecutorDoor.step`."""
        step = self._door.step(self._claims, completions, want=want, turn=self.turns.present)
        self.turns.answered()
        return step

    def finish(self, *, put_back: bool) -> None:
        """As `ExecutorDoor.finish`."""
        self._door.finish(self._claims, put_back=put_back)

    def keep_output(self, said: OutputTails) -> bool:
        """As `ExecutorDoor.keep_output`."""
        return self._door.keep_output(self._claims, said)

    def backlog(self, said: Backlog) -> None:
        """As `ExecutorDoor.backlog`."""
        self._door.backlog(self._by, self._claims, said)

    def end_app(self, reason: Literal["finished", "failed"], detail: str) -> None:  # noqa: ARG002 - the tasks say it
        """As `ExecutorDoor.end_app`."""
        self._door.end_app(self._by, self._claims, reason)

    def show_life(self) -> None:
        """As `ExecutorDoor.show_life`."""
        self._door.show_life(self._claims)

    def visits(self) -> list[Visit]:
        """As `ExecutorDoor.visits`."""
        return self._door.visits.take(self._claims.worker, self._claims.executor)

    def attend(self, report: Report) -> Orders:
        """As `ExecutorDoor.attend`."""
        return self._door.visits.attend(self._claims.executor, report)

    def ring(self) -> None:
        """As `ExecutorDoor.ring`."""
        queue = self._door.keys.worker_queue(self._claims.worker)
        try:
            self._store.eval(RING_LUA, 1, queue_key(queue), bell_id(queue))
        except RedisError:
            _log.info("could not ring for the agent, which finds the end at its next tick", queue=queue)


def _within(used: Measured | None) -> Measured | None:
    """What an executor has used, within what a report can say: one that is refused would never end its grant."""
    if used is None:
        return None
    return Measured(min(max(0, used.cpu_ms), MAX_MOMENT), min(max(0, used.peak_mb), MAX_MEMORY_MB))


class StepNumbers:
    """The numbers of an executor's steps: a step keeps its number until it is answered."""

    def __init__(self) -> None:
        self._life = os.urandom(8).hex()
        self._number = 1

    @property
    def present(self) -> str:
        """`LIFE:NUMBER` of the next step."""
        return f"{self._life}:{self._number}"

    def answered(self) -> None:
        """Go on to the next number."""
        self._number += 1


_log = structlog.get_logger()
