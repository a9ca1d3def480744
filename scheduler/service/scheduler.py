"""The service: turns, one after the other, from the inbox into the log.

`Scheduler` holds the folded state in memory between turns. Whatever goes wrong on the way to a commit, it
throws that state away and folds the log again; nothing half-done is ever visible. The module is longer than
most because a turn is one story, from the inbox to the answers, whichever way it ends.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import structlog
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as StoreTimeoutError
from rq.utils import as_text

from scheduler.model.commands import BATCH, LoseWorker
from scheduler.model.errors import (
    CommandRejected,
    Deposed,
    FairlogError,
    InternalError,
    NotReplicated,
    StaleLog,
    refusal_of,
)
from scheduler.model.events import (
    AppAdmitted,
    AppRegistered,
    AppRemoved,
    ClusterConfigured,
    DriverRemoved,
    ExecutorAllocated,
    ExecutorRemoved,
    MasterElected,
    RefusalsOmitted,
)
from scheduler.model.grants import GrantChanges
from scheduler.model.ids import number_of
from scheduler.rules.assignments import all_grants, changed_grants
from scheduler.rules.state import MINUTE_MS, ClusterState
from scheduler.rules.turn import Turn
from scheduler.rules.views import look
from scheduler.service.inbox import (
    Message,
    answer,
    answer_commands,
    at_once,
    message_of,
    next_entry,
    question,
    received,
)
from scheduler.store.codec import Record, encode_turn
from scheduler.store.connection import clock_ms
from scheduler.store.doorbell import RING_LUA, bell_id, queue_key
from scheduler.store.eventlog import GENESIS, CommitInFlight, EventLog, Position
from scheduler.store.inflight import InFlight, StoreCommand
from scheduler.store.task_queue import Worklist
from scheduler.store.transient import BACK_OFF_S, passes

AHEAD_FROM = 50
"""From how many messages a turn is large enough for the next one to be decided while the store commits it."""
MAX_STALE = 5
PAUSE_MS = 3_000
SHORT_PAUSE_MS = 1_500
"""A gap between two looks at the heartbeats above this means that the master or the store was away; the shorter one
where workers may be silent for no longer than that."""
LOOK_EARLY = 2 / 3
"""After which part of that gap heartbeats are looked at, though nothing else is due."""
ASLEEP_S = 1.0
"""A master that heard of its commit only so late may have been stopped meanwhile, and another one elected."""

Rebuild = Callable[[], tuple[ClusterState, Position]]
_log = structlog.get_logger()


class _Look(NamedTuple):
    """The oldest messages that no turn has taken yet, the store's time (ms), and how many workers seem silent.

    Those were silent for the timeout when the master looked the time before.
    """

    messages: Sequence[Message]
    now: int
    silent: int


class _Decided(NamedTuple):
    """A turn that was decided: what is committed, and what follows once it is."""

    record: Record | None
    position: Position
    """Where the log ends once it is committed."""
    taken: str
    """The last inbox entry that it took, empty if it took none."""
    changes: GrantChanges
    answers: dict[str, list[str]]
    put_back: dict[str, list[str]]
    """App -> its executors whose begun tasks come back."""
    over: list[str]
    """Apps of which nothing runs any more."""
    with_secrets: list[str]
    """Apps registered by it whose variables the client has put aside."""


class Scheduler:
    """The master `master` of one cluster: takes turns as long as nobody else was elected.

    `rebuild` folds the log; it is asked for whenever the state in memory can no longer be trusted.
    Nobody is declared lost until a full timeout has passed since this master took over or was last
    unable to look (semantics W2).
    """

    def __init__(self, log: EventLog, master: str, rebuild: Rebuild) -> None:
        self.log = log
        self.store, self.keys = store, keys = log.store, log.keys
        self.master = master
        self.worklist = Worklist(store, keys.cluster)
        self.state = ClusterState()
        self.position = GENESIS
        self._in_flight: tuple[_Decided, CommitInFlight] | None = None
        self._sent_s = 0.0
        """When it was sent (monotonic)."""
        self._taken = ""
        """The last inbox entry that a turn has taken, though perhaps not yet committed."""
        self._read_ahead: _Look | None = None
        """What the next turn takes, read before the store was given a long commit to work on."""
        self._telling: tuple[InFlight, list[str]] | None = None
        """What the last turn caused outside of the log, sent and not answered yet, and the apps it closes."""
        self._sound = True
        """Whether the state is what the log, with the commit under way, tells."""
        self._refused_in_a_row = 0
        self._rebuild = rebuild
        self._watching_since_ms = 0
        self._looked_at_ms = 0
        self._decided_at_ms = 0
        self._omitted: tuple[int, int] | None = None
        """How many refusals were not logged, and since when (ms); a failover loses it (semantics T3)."""
        self._settled = 0
        """The log position up to which workers were told that the replicas have all there is."""

    def take_over(self) -> None:
        """Fold the log, append `MasterElected`, and bring everything outside of the log in line with it.

        A log without settings gets the defaults, so that it says which rules were in force from the start.

        Raises: UnreadableRecord if the log cannot be read, StaleLog if somebody else keeps writing it.
        """
        for _ in range(MAX_STALE):
            open_apps = self.worklist.open_apps()
            self._fold_again()
            stored = self._stored_grants()
            if self.log.head() != self.position:
                continue
            turn = Turn(self.state, self._store_time_ms())
            turn.record(MasterElected(master=self.master))
            if not self.state.configured:
                turn.record(ClusterConfigured())
            turn.settle()
            record = self._record(turn)
            position = Position(record.last, record.digest)
            try:
                self._commit_election(record, position, stored)
                break
            except StaleLog:
                _log.info("another master wrote while this one folded the log", head=self.state.head)
        else:
            raise StaleLog("the log kept moving while this master tried to be elected")
        self._watch_anew(self._store_time_ms())
        self._reconcile_tasks(open_apps)
        InFlight(self.store, [*self._settle_commands(position), *self._ring_commands(self.state.workers)]).answers()
        _log.info("serving", master=self.master, head=self.state.head, workers=len(self.state.workers))

    def _commit_election(self, record: Record, position: Position, stored: Mapping[str, Iterable[str]]) -> None:
        try:
            self.log.commit(self.position, record, changes=self._every_grant(stored))
        except (StoreConnectionError, StoreTimeoutError):
            if not self._was_committed(position):
                raise
        self.position = position

    def turn(self) -> int:
        """Take one turn with what is in the inbox and what time has brought; how many inputs these were.

        Raises: Deposed if another master was elected, UnreadableRecord if the log cannot be read,
        redis-py's errors if the store is away; the turn is dropped then and the inbox is as it was.
        """
        while (taken := self._unless_refused(self._whole_turn)) is None:
            pass
        return taken

    def work_off_inbox(self, between: Callable[[], bool]) -> None:
        """Take turns until the inbox is empty or `between` turns says to stop, deciding ahead of the store.

        While the store makes a turn durable, the next one is decided on top of it; if the commit is
        refused, both are thrown away. Nobody is told anything before the commit is answered.

        Raises: as `turn`.
        """
        while True:
            taken = self._unless_refused(self._step)
            if taken == 0 or (taken and not between() and self._unless_refused(self._settle_up) is not None):
                return

    def make_sure_of_office(self) -> None:
        """Fold the log again if somebody else has written it since the last turn.

        Raises: Deposed if another master was elected.
        """
        if self._in_flight is None and self.log.head() != self.position:
            self._fold_again_as_master()

    def put_down(self) -> tuple[ClusterState, Position]:
        """What it has folded, and the position that this should be at; the scheduler is left with nothing."""
        found = self.state, self.position
        self.state, self.position = ClusterState(), GENESIS
        return found

    def _unless_refused(self, action: Callable[[], int]) -> int | None:
        """What `action` returns; None if a commit was refused and the log was folded again.

        The inbox still holds what the refused turns had taken.
        """
        try:
            return action()
        except StaleLog:
            self._refused_in_a_row += 1
            if self._refused_in_a_row > MAX_STALE:
                raise
        self._fold_again_as_master()
        return None

    def _whole_turn(self) -> int:
        taken = self._step()
        self._settle_up()
        return taken

    def _step(self) -> int:
        """Decide a turn, finish the one before it, send its commit; how many inputs it took."""
        if not self._sound:
            raise StaleLog("a turn was broken off")
        messages, now, silent = self._read_ahead or self._look()
        self._read_ahead = None
        lost = self._lost_workers(now, silent)
        if messages or lost:
            self._run(messages, lost, now)
        else:
            if self._moment_has_come(now):
                self._run((), (), now)
            self._settle_up()
            self._settle_what_was_found()
            self._refused_in_a_row = 0
        return _size(messages) + len(lost)

    def _settle_what_was_found(self) -> None:
        """Have workers start what a commit granted whose replicas were missing, once they have it."""
        if self.log.replicas and self.position.seq > self._settled:
            with suppress(NotReplicated):
                if self.log.ends_with(self.position):
                    InFlight(self.store, self._settle_commands(self.position)).answers()

    def _settles_at(self) -> int:
        """The log position that replicas must have before what was just granted is started; 0 without replicas."""
        return self.state.head if self.log.replicas else 0

    def _settle_commands(self, position: Position) -> list[StoreCommand]:
        """What tells workers that the replicas have the log up to `position`, now that they have."""
        self._settled = position.seq
        return [("SET", self.keys.settled, position.seq)] if self.log.replicas else []

    def _moment_has_come(self, now: int) -> bool:
        """Whether a time that a rule waits for has come since the last turn (semantics T1)."""
        moment = self.state.timers.next(self._decided_at_ms)
        return moment is not None and moment <= now

    def quiet_s(self) -> float:
        """Seconds from the last look until something is due by time, infinite if nothing is.

        That is the next moment that a rule waits for (semantics T1), or the next look at heartbeats (semantics W2).
        """
        due_ms = [LOOK_EARLY * self._pause_ms()] if self.state.workers else []
        moment = self.state.timers.next(self._decided_at_ms)
        if moment is not None:
            due_ms.append(moment - self._looked_at_ms)
        return min(due_ms, default=math.inf) / 1000

    def _look(self) -> _Look:
        behind = f"({self._taken}" if self._taken else "-"
        due_ms = self._looked_at_ms - self._worker_timeout_ms()
        asked = InFlight(
            self.store,
            [
                ("XRANGE", self.keys.inbox, behind, "+", "COUNT", BATCH),
                ("TIME",),
                ("ZCOUNT", self.keys.heartbeats, "-inf", f"({due_ms}"),
            ],
        )
        entries, clock, silent = asked.answers()
        messages = at_once([message_of(entry, fields) for entry, fields in entries], BATCH)
        return _Look(messages, clock_ms(clock), silent)

    def _run(self, messages: Sequence[Message], lost: Sequence[LoseWorker], now: int) -> Mapping[str, CommandRejected]:
        """One turn; if a command makes it raise, again with one command a turn, and that one put aside: it is returned.

        What is no message but a part of one, and so has no entry, is left to the caller to answer.
        """
        try:
            decided = self._decide(messages, lost, now)
        except (FairlogError, RedisError):
            raise
        except Exception:
            if not messages:
                raise
            trace = traceback.format_exc()
            self.put_down()
            self._settle_up()
            self._fold_again_as_master()
            failed: dict[str, CommandRejected] = {}
            if len(messages) == 1 and len(messages[0].commands) <= 1:
                self._put_aside(messages[0], trace)
                failed[messages[0].id] = _failure()
            else:
                for part in messages if len(messages) > 1 else messages[0].parts():
                    failed |= self._run([part], (), now)
                    self._settle_up()
            if len(messages) == 1 and messages[0].entry:
                self._leave_inbox(messages[0], failed)
            return failed
        self._taken = decided.taken or self._taken
        if _size(messages) >= AHEAD_FROM:
            self._read_ahead = self._look()
        self._finish()
        self._begin(decided)
        return {}

    def _decide(self, messages: Sequence[Message], lost: Sequence[LoseWorker], now: int) -> _Decided:
        """The turn, folded into the state; from here on the state is sound only once the commit was sent."""
        self._sound = False
        due = self._moment_has_come(now)
        turn = Turn(self.state, now)
        self._tell_of_omitted(turn)
        for command in lost:
            if command.worker in self.state.workers:
                turn.take(command)
        refusals: dict[str, CommandRejected] = {}
        for message in messages:
            for identity, body in message.commands:
                if identity not in self.state.commands and identity not in refusals:
                    self._take(turn, identity, body, refusals)
        turn.settle(due=due)
        self._decided_at_ms = now
        answers = self._answers(messages, refusals)
        return self._decided(turn, answers, messages[-1].entry if messages else "")

    def _take(self, turn: Turn, identity: str, body: bytes, refusals: dict[str, CommandRejected]) -> None:
        """Take one command; where it is refused, its refusal is added (semantics T3)."""
        try:
            command = received(body)
        except CommandRejected as refusal:
            refusals[identity] = refusal
            return
        try:
            turn.take(command, identity)
        except CommandRejected as refusal:
            refusals[identity] = refusal
            if not turn.refuse(command, refusal, identity):
                count, since = self._omitted or (0, turn.at)
                self._omitted = count + 1, since

    def _tell_of_omitted(self, turn: Turn) -> None:
        """Log how many refusals were left out in an earlier minute (semantics T3)."""
        if self._omitted and turn.at // MINUTE_MS > self._omitted[1] // MINUTE_MS:
            count, since = self._omitted
            self._omitted = None
            turn.record(RefusalsOmitted(count=count, since=since))

    def _answers(self, messages: Iterable[Message], refusals: Mapping[str, CommandRejected]) -> dict[str, list[str]]:
        """The answers to these messages by the list that they go to; the state has folded what was done."""

        def outcome(identity: str) -> int | CommandRejected:
            if identity in refusals:
                return refusals[identity]
            if identity in self.state.refusals:
                return refusal_of(*self.state.refusals[identity])
            return self.state.commands.get(identity, 0)

        answers: dict[str, list[str]] = {}
        for message in messages:
            if message.reply_to:
                answers.setdefault(message.reply_to, []).append(answer(message, outcome, self._look_at))
        return answers

    def _decided(self, turn: Turn, answers: dict[str, list[str]], taken: str) -> _Decided:
        touched: dict[str, None] = {}
        put_back: dict[str, list[str]] = {}
        with_secrets = []
        for event, _ in turn.entries:
            match event:
                case ExecutorAllocated() | AppAdmitted():
                    pass
                case ExecutorRemoved():
                    touched[event.app] = None
                    if not event.done:
                        put_back.setdefault(event.app, []).append(event.executor)
                case AppRemoved() | DriverRemoved():
                    touched[event.app] = None
                case AppRegistered() if self._has_variables(event.app):
                    with_secrets.append(event.app)
                case _:
                    pass
        record = self._record(turn) if turn.entries else None
        position = self.position if record is None else Position(record.last, record.digest)
        changes = changed_grants((event for event, _ in turn.entries), self.state, settled_at=self._settles_at())
        over = [name for name in touched if self._is_over(name)]
        return _Decided(record, position, taken, changes, answers, put_back, over, with_secrets)

    def _record(self, turn: Turn) -> Record:
        return encode_turn(turn.entries, turn.commands, first=turn.first, at=turn.at, previous=self.position.digest)

    def _begin(self, decided: _Decided) -> None:
        """Send the commit: append the events and take their messages out of the inbox, all at once."""
        self._keep_secrets(decided.with_secrets)
        keep_from = next_entry(decided.taken) if decided.taken else ""
        commit = self.log.begin_commit(
            self.position,
            decided.record,
            keep_inbox_from=keep_from,
            changes=decided.changes,
            returned=[self.worklist.returned(app, gone) for app, gone in decided.put_back.items()],
        )
        self._in_flight = decided, commit
        self._sent_s = time.monotonic()
        self.position = decided.position
        self._sound = True

    def _settle_up(self) -> int:
        """Finish the commit under way and wait until everybody concerned was told; always 0."""
        self._finish()
        self._hear_back()
        return 0

    def _finish(self) -> None:
        """Wait for the commit under way, if there is one, and tell everybody concerned."""
        if self._in_flight is None:
            return
        decided, commit = self._in_flight
        self._in_flight = None
        sound, self._sound = self._sound, False
        try:
            commit.finish()
        except (StoreConnectionError, StoreTimeoutError) as error:
            _log.warning("a commit got no answer", head=decided.position.seq, error=str(error))
            if decided.record is None or not self._was_committed(decided.position):
                raise StaleLog("a commit that got no answer did not take place") from error
        if time.monotonic() - self._sent_s > ASLEEP_S and self.log.head() != decided.position:
            raise StaleLog("another master wrote while this one heard nothing")
        self._refused_in_a_row = 0
        self._sound = sound
        self._tell(decided)

    def _was_committed(self, position: Position) -> bool:
        """Settle a commit without an answer by the log's tail, as soon as the store can be asked."""
        self._watching_since_ms = 0
        for pause_s in BACK_OFF_S:
            try:
                return self.log.ends_with(position)
            except RedisError as error:
                if not passes(error):
                    raise
                time.sleep(pause_s)
        return self.log.ends_with(position)

    def _keep_secrets(self, apps: Iterable[str]) -> None:
        """Before the commit, so that no app is in the log whose values could still expire."""
        for app in apps:
            self.store.persist(self.keys.secrets(app))

    def _tell(self, decided: _Decided) -> None:
        """After the commit: answers, rings, and what follows for tasks, sent in one go and not waited for.

        Whatever a crash leaves undone here is made up for: clients ask again, the tick replaces rings,
        and the next master reconciles the tasks.
        """
        commands = [*self._settle_commands(decided.position), *answer_commands(self.keys, decided.answers)]
        commands += self._ring_commands(dict.fromkeys((*decided.changes.by_worker, *decided.changes.left)))
        if decided.over:
            commands.append(self.worklist.close_command(decided.over))
        self._hear_back()
        if commands:
            self._telling = InFlight(self.store, commands), decided.over

    def _hear_back(self) -> None:
        """Wait until the store has carried out what the last turn caused, and clear away what is over."""
        if self._telling is None:
            return
        sent, over = self._telling
        self._telling = None
        answers = sent.answers()
        if over:
            self.worklist.sweep(over, answers[-1])

    def _look_at(self, body: bytes) -> Any:  # noqa: ANN401 - JSON values
        return look(self.state, *question(body))

    def _put_aside(self, message: Message, trace: str) -> None:
        """A command that makes a turn raise goes to the dead letters (a view likewise)."""
        _log.error("a command made the turn fail and was put aside", command=message.id, trace=trace)
        body = message.commands[0][1] if message.commands else message.body
        self.store.xadd(self.keys.dead, {"id": message.id, "command": body, "traceback": trace})

    def _leave_inbox(self, message: Message, failed: Mapping[str, CommandRejected]) -> None:
        """Take a message out of the inbox of which all that can be done is done, and answer it."""
        self.log.commit(self.position, None, keep_inbox_from=next_entry(message.entry))
        if message.kind == "view":
            message = message._replace(refusal=_failure())
        answers = self._answers([message], failed)
        if answers:
            InFlight(self.store, answer_commands(self.keys, answers)).answers()

    def _lost_workers(self, now: int, silent: int) -> list[LoseWorker]:
        """The workers whose heartbeat is older than the timeout, by raw store time at both ends (semantics W2).

        They are asked for only if a look found some `silent`, so that turns do not wait for another answer.
        """
        timeout_ms = self._worker_timeout_ms()
        if not self._looked_at_ms <= now <= self._looked_at_ms + self._pause_ms() or not self._watching_since_ms:
            self._watch_anew(now)
        self._looked_at_ms = now
        if not silent or now - self._watching_since_ms < timeout_ms:
            return []
        lost: Any = self.store.zrangebyscore(self.keys.heartbeats, "-inf", f"({now - timeout_ms}", withscores=True)
        return [LoseWorker(worker=worker.decode(), last_seen=int(seen)) for worker, seen in lost]

    def _watch_anew(self, now: int) -> None:
        """Nobody is lost before a full timeout has passed; the store may be another one now, with another clock.

        Heartbeats that a clock ahead of this one has left count from now on.
        """
        self._watching_since_ms = self._looked_at_ms = now
        ahead = cast("list[bytes]", self.store.zrangebyscore(self.keys.heartbeats, f"({now}", "+inf"))
        if ahead:
            self.store.zadd(self.keys.heartbeats, dict.fromkeys(ahead, now), xx=True, lt=True)

    def _pause_ms(self) -> int:
        """The longest gap between two looks at heartbeats in which neither master nor store counts as away."""
        return min(PAUSE_MS, max(SHORT_PAUSE_MS, self._worker_timeout_ms() // 2))

    def _worker_timeout_ms(self) -> int:
        return self.state.settings.worker_timeout_s * 1000

    def _fold_again_as_master(self) -> None:
        """Fold the log again, and make up for what the turns it replaces may have left undone.

        Raises: Deposed if another master was elected meanwhile.
        """
        open_apps = self.worklist.open_apps()
        self._fold_again()
        if self.state.master != self.master:
            raise Deposed(str(self.state.master))
        self._sound = False
        self._reconcile_tasks(open_apps)
        self._sound = True

    def _fold_again(self) -> None:
        if self._in_flight is not None:
            self._in_flight[1].abandon()
            self._in_flight = None
        if self._telling is not None:
            self._telling[0].abandon()
            self._telling = None
        self.state, self.position = self._rebuild()
        self._taken = ""
        self._read_ahead = None
        self._sound = True

    def _stored_grants(self) -> dict[str, list[str]]:
        """Every worker that is expected to send heartbeats, and what it is granted in the store.

        Only commits change grants, and a worker that has any is expected to send heartbeats.
        """
        members: Any = self.store.zrange(self.keys.heartbeats, 0, -1)
        workers = [as_text(member) for member in members]
        fields = InFlight(self.store, [("HKEYS", self.keys.grants(worker)) for worker in workers]).answers()
        return {worker: [as_text(name) for name in names] for worker, names in zip(workers, fields, strict=True)}

    def _every_grant(self, stored: Mapping[str, Iterable[str]]) -> GrantChanges:
        """What makes the store's grants those of the state, whatever they are now: a lost tail may have left others."""
        granted = all_grants(self.state, settled_at=self._settles_at())
        by_worker: dict[str, dict[str, Any]] = {}
        for worker, grants in granted.items():
            others = sorted(set(stored.get(worker, ())) - grants.keys())
            by_worker[worker] = {**dict.fromkeys(others), **grants}
        return GrantChanges(by_worker, sorted(granted.keys() - stored.keys()), sorted(stored.keys() - granted.keys()))

    def _reconcile_tasks(self, open_apps: Sequence[str]) -> None:
        """What an earlier turn left undone: tasks of gone executors come back, ended apps are cleared away.

        Another master may serve by now without this one knowing. So it acts only on what its own fold
        proves: `open_apps`, which have a queue of tasks, was read before the log, and an executor is gone only
        if this log granted it and took it back.
        """
        living = [app for name in open_apps if (app := self.state.apps.get(name)) is not None and app.ended is None]
        begun = InFlight(self.store, [("HVALS", self.keys.begun(app.spec.app)) for app in living]).answers()
        for app, holders in zip(living, begun, strict=True):
            gone = sorted({as_text(value) for value in holders} - app.executors.keys())
            granted_once = [executor for executor in gone if number_of(executor) < app.next_executor]
            if granted_once:
                self.worklist.put_back(app.spec.app, *granted_once)
        over = [name for name in open_apps if self._is_over(name)]
        over += [name for name in self._with_secrets() if self._is_over(name)]
        self.worklist.forget(*dict.fromkeys(over))

    def _with_secrets(self) -> list[str]:
        """The ended apps for which values are still put aside."""
        ended = [name for name, app in self.state.apps.items() if app.ended is not None and self._has_variables(name)]
        kept = InFlight(self.store, [("EXISTS", self.keys.secrets(name)) for name in ended]).answers()
        return [name for name, there in zip(ended, kept, strict=True) if there]

    def _has_variables(self, app: str) -> bool:
        found = self.state.apps.get(app)
        return found is not None and found.private is not None and bool(found.private.env)

    def _is_over(self, name: str) -> bool:
        """Whether nothing of the app will run any more; one that the state has forgotten is over."""
        app = self.state.apps.get(name)
        return app is None or (app.ended is not None and not app.allocations())

    def _ring_commands(self, workers: Iterable[str]) -> list[StoreCommand]:
        queues = [self.keys.worker_queue(worker) for worker in workers]
        if not queues:
            return []
        return [("EVAL", RING_LUA, len(queues), *map(queue_key, queues), *map(bell_id, queues))]

    def _store_time_ms(self) -> int:
        return clock_ms(self.store.time())


def _size(messages: Iterable[Message]) -> int:
    """How many inputs these are."""
    return sum(max(1, len(message.commands)) for message in messages)


def _failure() -> InternalError:
    return InternalError("the command made the master fail; it lies in the dead letters for its operator")
