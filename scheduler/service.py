"""The service: turns, one after the other, from the inbox into the log.

`Scheduler` holds the folded state in memory between turns. Whatever goes wrong on the way to a
commit, it throws that state away and folds the log again; nothing half-done is ever visible.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from pydantic import ValidationError
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import TimeoutError as StoreTimeoutError
from rq.utils import as_text

from scheduler.commands import COMMAND, Command, LoseWorker
from scheduler.doorbell import RING_LUA, bell_id, queue_key
from scheduler.errors import CommandRejected, Deposed, FairlogError, InternalError, InvalidCommand, StaleLog
from scheduler.eventlog import GENESIS, EventLog, Position
from scheduler.events import (
    AppRegistered,
    AppRemoved,
    ClusterConfigured,
    ExecutorRemoved,
    MasterElected,
    Record,
    encode,
)
from scheduler.grants import GrantChanges, all_grants, changed_grants
from scheduler.state import ClusterState
from scheduler.turn import Turn
from scheduler.views import look
from scheduler.worklist import Worklist

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.keys import Keys

BATCH = 1_000
"""How many messages of the inbox one turn takes at most."""
REPLY_KEPT_MS = 60_000
MAX_STALE = 5
RECONNECT_S = (0.05, 0.1, 0.2, 0.5, 1.0)
PAUSE_MS = 3_000
"""A gap between two looks at the heartbeats above this means that the master or the store was away."""

REPLY_LUA = """
local at = 2
for i = 1, #KEYS do
  local count = tonumber(ARGV[at])
  for n = at + 1, at + count do redis.call('RPUSH', KEYS[i], ARGV[n]) end
  redis.call('PEXPIRE', KEYS[i], ARGV[1])
  at = at + count + 1
end
"""
"""KEYS: reply lists. ARGV: how long they are kept (ms), then for each list the number of answers and the answers."""

Rebuild = Callable[[], tuple[ClusterState, Position]]
_log = structlog.get_logger()


class Message(NamedTuple):
    """One entry of the inbox: a command or a question, and the list that its answer goes to, empty for none."""

    entry: str
    id: str
    kind: str
    body: bytes
    reply_to: str


class _Batch(NamedTuple):
    """The messages of a turn and what became of each command: nothing yet means that it was carried out."""

    messages: Sequence[Message]
    refusals: dict[str, CommandRejected]


class Scheduler:
    """The master `master` of one cluster: takes turns as long as nobody else was elected.

    `rebuild` folds the log; it is asked for whenever the state in memory can no longer be trusted.
    Nobody is declared lost until a full timeout has passed since this master took over or was last
    unable to look (semantics W2).
    """

    def __init__(self, store: Redis, keys: Keys, master: str, rebuild: Rebuild) -> None:
        self.store = store
        self.keys = keys
        self.master = master
        self.log = EventLog(store, keys)
        self.worklist = Worklist(store, keys.cluster)
        self.state = ClusterState()
        self.position = GENESIS
        self._ahead_of_log = False
        """Whether the state has folded events of a turn that is not committed: it must not be built upon."""
        self._rebuild = rebuild
        self._reply = store.register_script(REPLY_LUA)
        self._ring = store.register_script(RING_LUA)
        self._watching_since_ms = 0
        self._looked_at_ms = 0

    def take_over(self) -> None:
        """Fold the log, append `MasterElected`, and bring everything outside of the log in line with it.

        A log without settings gets the defaults, so that it says which rules were in force from the start.

        Raises: UnreadableRecord if the log cannot be read, StaleLog if somebody else keeps writing it.
        """
        for _ in range(MAX_STALE):
            self._fold_again()
            turn = Turn(self.state, self._store_time_ms())
            turn.record(MasterElected(master=self.master))
            if not self.state.configured:
                turn.record(ClusterConfigured())
            turn.settle()
            try:
                self._commit(turn, [], self._every_grant())
                break
            except StaleLog:
                _log.info("another master wrote while this one folded the log", head=self.state.head)
        else:
            raise StaleLog("the log kept moving while this master tried to be elected")
        self._watching_since_ms = self._looked_at_ms = self._store_time_ms()
        self._reconcile_tasks()
        self._ring_workers(self.state.workers)
        _log.info("serving", master=self.master, head=self.state.head, workers=len(self.state.workers))

    def turn(self) -> int:
        """Take one turn with what is in the inbox and what time has brought; how many messages it took.

        Raises: Deposed if another master was elected, UnreadableRecord if the log cannot be read,
        redis-py's errors if the store is away; the turn is dropped then and the inbox is as it was.
        """
        if self._ahead_of_log:
            self._fold_again()
            self._step_down_if_deposed()
        entries, now = self._look()
        messages = [_message(entry, fields) for entry, fields in entries]
        lost = self._silent_workers(now)
        if not messages and not lost:
            return 0
        for _ in range(MAX_STALE):
            try:
                self._run(messages, lost, now)
                return len(messages)
            except StaleLog:
                self._fold_again()
                self._step_down_if_deposed()
        raise StaleLog("the log kept moving although no other master was elected")

    def _look(self) -> tuple[list[tuple[bytes, dict[bytes, bytes]]], int]:
        pipeline = self.store.pipeline(transaction=False)
        pipeline.xrange(self.keys.inbox, count=BATCH)
        pipeline.time()
        entries, (seconds, micros) = pipeline.execute()
        return entries, seconds * 1000 + micros // 1000

    def _run(self, messages: Sequence[Message], lost: Sequence[LoseWorker], now: int) -> None:
        """One turn; if a command makes it raise, again with one command a turn, and that one put aside."""
        try:
            turn, batch = self._decide(messages, lost, now)
        except (FairlogError, StoreConnectionError, StoreTimeoutError):
            raise
        except Exception:
            self._fold_again()
            self._step_down_if_deposed()
            if not messages:
                raise
            if len(messages) == 1:
                self._put_aside(messages[0], traceback.format_exc())
            else:
                for message in messages:
                    self._run([message], (), now)
            return
        changes = changed_grants((entry.event for entry in turn.entries), self.state)
        self._keep_secrets(turn)
        self._commit(turn, messages, changes)
        self._tell(turn, batch, changes)

    def _decide(self, messages: Sequence[Message], lost: Sequence[LoseWorker], now: int) -> tuple[Turn, _Batch]:
        self._ahead_of_log = True
        turn = Turn(self.state, now)
        batch = _Batch(messages, {})
        for command in lost:
            if command.worker in self.state.workers:
                turn.take(command)
        for message in messages:
            if message.kind == "view" or message.id in self.state.commands:
                continue
            try:
                turn.take(_command(message), message.id)
            except CommandRejected as refusal:
                batch.refusals[message.id] = refusal
        turn.settle()
        return turn, batch

    def _commit(self, turn: Turn, messages: Sequence[Message], changes: GrantChanges) -> None:
        """Append the turn's events and take its messages out of the inbox, all at once (or know that it failed)."""
        records, position = _records(turn, self.position)
        keep_from = _next_entry(messages[-1].entry) if messages else ""
        try:
            self.log.commit(self.position, records, keep_inbox_from=keep_from, changes=changes)
        except (StoreConnectionError, StoreTimeoutError) as error:
            _log.warning("a commit got no answer", head=position.seq, error=str(error))
            if not records or not self._was_committed(position):
                raise StaleLog("a commit that got no answer did not take place") from error
        self.position = position
        self._ahead_of_log = False

    def _was_committed(self, position: Position) -> bool:
        """Settle a commit without an answer by the log's tail, as soon as the store can be asked."""
        self._watching_since_ms = 0
        for pause_s in RECONNECT_S:
            try:
                return self.log.ends_with(position)
            except (StoreConnectionError, StoreTimeoutError):
                time.sleep(pause_s)
        return self.log.ends_with(position)

    def _keep_secrets(self, turn: Turn) -> None:
        """Before the commit, so that no app is in the log whose values could still expire."""
        for event, _ in turn.entries:
            if isinstance(event, AppRegistered) and event.env:
                self.store.persist(self.keys.secrets(event.app))

    def _tell(self, turn: Turn, batch: _Batch, changes: GrantChanges) -> None:
        """After the commit: answers, rings, and what follows for tasks.

        Whatever a crash leaves undone here is made up for: clients ask again, the tick replaces rings,
        and the next master reconciles the tasks.
        """
        answers: dict[str, list[str]] = {}
        for message in batch.messages:
            if message.reply_to:
                text = self._answer(message, batch.refusals.get(message.id))
                answers.setdefault(message.reply_to, []).append(text)
        self._send_answers(answers)
        self._ring_workers(dict.fromkeys((*changes.by_worker, *changes.left)))
        touched: dict[str, None] = {}
        for event, _ in turn.entries:
            if isinstance(event, ExecutorRemoved):
                touched[event.app] = None
                if not event.done:
                    self.worklist.put_back(event.app, event.executor)
            elif isinstance(event, AppRemoved):
                touched[event.app] = None
        self.worklist.forget(*(name for name in touched if self._is_over(name)))

    def _answer(self, message: Message, refusal: CommandRejected | None) -> str:
        if refusal is None and message.kind == "view":
            try:
                return json.dumps({"id": message.id, "view": self._look_at(message)})
            except CommandRejected as problem:
                refusal = problem
        if refusal is not None:
            return json.dumps({"id": message.id, "error": type(refusal).__name__, "message": str(refusal)})
        return f'{{"id":{json.dumps(message.id)},"seq":{self.state.commands.get(message.id, 0)}}}'

    def _send_answers(self, answers: Mapping[str, Sequence[str]]) -> None:
        if answers:
            arguments: list[str | int] = [REPLY_KEPT_MS]
            for texts in answers.values():
                arguments += [len(texts), *texts]
            self._reply(keys=[self.keys.reply(name) for name in answers], args=arguments)

    def _look_at(self, message: Message) -> Any:  # noqa: ANN401 - JSON values
        try:
            question = json.loads(message.body)
            name, arguments = str(question["name"]), dict(question["arguments"])
        except (ValueError, KeyError, TypeError):
            raise InvalidCommand("a question is an object with a name and arguments") from None
        return look(self.state, name, arguments)

    def _put_aside(self, message: Message, trace: str) -> None:
        """A command that makes a turn raise goes to the dead letters and leaves the inbox (a view likewise)."""
        _log.error("a command made the turn fail and was put aside", command=message.id, trace=trace)
        self.store.xadd(self.keys.dead, {"id": message.id, "command": message.body, "traceback": trace})
        self.log.commit(self.position, [], keep_inbox_from=_next_entry(message.entry))
        if message.reply_to:
            failure = InternalError("the command made the master fail; it lies in the dead letters for its operator")
            self._send_answers({message.reply_to: [self._answer(message, failure)]})

    def _silent_workers(self, now: int) -> list[LoseWorker]:
        """The workers whose heartbeat is older than the timeout, by raw store time at both ends (semantics W2)."""
        if now < self._looked_at_ms or now - self._looked_at_ms > PAUSE_MS or not self._watching_since_ms:
            self._watching_since_ms = now
        self._looked_at_ms = now
        timeout_ms = self.state.settings.worker_timeout_s * 1000
        if not self.state.workers or now - self._watching_since_ms < timeout_ms:
            return []
        silent: Any = self.store.zrangebyscore(self.keys.heartbeats, "-inf", f"({now - timeout_ms}", withscores=True)
        return [LoseWorker(worker=worker.decode(), last_seen=int(seen)) for worker, seen in silent]

    def _fold_again(self) -> None:
        self.state, self.position = self._rebuild()
        self._ahead_of_log = False

    def _step_down_if_deposed(self) -> None:
        if self.state.master != self.master:
            raise Deposed(str(self.state.master))

    def _every_grant(self) -> GrantChanges:
        """What makes the store's grants those of the state, whatever they are now: a lost tail may have left others."""
        granted = all_grants(self.state)
        prefix = self.keys.grants("")
        stored = {as_text(key).removeprefix(prefix) for key in self.store.scan_iter(match=_literal(prefix) + "*")}
        by_worker: dict[str, dict[str, Any]] = {}
        for worker, grants in granted.items():
            there = {as_text(field) for field in self.store.hkeys(self.keys.grants(worker))}
            by_worker[worker] = {**dict.fromkeys(sorted(there - grants.keys())), **grants}
        members: Any = self.store.zrange(self.keys.heartbeats, 0, -1)
        seen = {as_text(member) for member in members}
        return GrantChanges(by_worker, sorted(granted.keys() - seen), sorted((stored | seen) - granted.keys()))

    def _reconcile_tasks(self) -> None:
        """What an earlier master left undone: tasks of gone executors come back, ended apps are cleared away."""
        for name in self.worklist.open_apps():
            app = self.state.apps.get(name)
            if app is not None and app.ended is None:
                self.worklist.reconcile(name, list(app.executors))
            elif self._is_over(name):
                self.worklist.forget(name)

    def _is_over(self, name: str) -> bool:
        """Whether nothing of the app will run any more; one that the state has forgotten is over."""
        app = self.state.apps.get(name)
        return app is None or (app.ended is not None and not app.executors)

    def _ring_workers(self, workers: Iterable[str]) -> None:
        queues = [self.keys.worker_queue(worker) for worker in workers]
        if queues:
            self._ring(keys=[queue_key(queue) for queue in queues], args=[bell_id(queue) for queue in queues])

    def _store_time_ms(self) -> int:
        seconds, micros = self.store.time()
        return int(seconds) * 1000 + int(micros) // 1000


def _records(turn: Turn, after: Position) -> tuple[list[Record], Position]:
    records: list[Record] = []
    digest = after.digest
    for seq, (event, cause) in enumerate(turn.entries, start=turn.first):
        record = encode(event, seq=seq, at=turn.at, turn=turn.first, cause=cause, previous=digest)
        digest = record.digest
        records.append(record)
    return records, Position(after.seq + len(records), digest)


def _message(entry: bytes, fields: dict[bytes, bytes]) -> Message:
    kind = "view" if b"view" in fields else "command"
    identity, reply_to = fields.get(b"id", b""), fields.get(b"reply", b"")
    return Message(
        entry.decode(),
        identity.decode(errors="replace"),
        kind,
        fields.get(kind.encode(), b""),
        reply_to.decode(errors="replace"),
    )


def _command(message: Message) -> Command:
    try:
        return COMMAND.validate_json(message.body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidCommand(f"the command cannot be read: {where or 'it'}: {first['msg'].lower()}") from None


def _next_entry(entry: str) -> str:
    """The smallest inbox id behind `entry`."""
    milliseconds, _, number = entry.partition("-")
    return f"{milliseconds}-{int(number) + 1}"


def _literal(prefix: str) -> str:
    """The prefix as a pattern that matches it alone."""
    return "".join(f"\\{character}" if character in "[]*?\\" else character for character in prefix)
