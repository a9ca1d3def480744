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
from scheduler.eventlog import GENESIS, CommitUnderWay, EventLog, Position
from scheduler.events import (
    AppRegistered,
    AppRemoved,
    ClusterConfigured,
    DriverRemoved,
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
AHEAD_FROM = 50
"""From how many messages a turn is large enough for the next one to be decided while the store commits it."""
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


class _Decided(NamedTuple):
    """A turn that was decided: what is committed, and what follows once it is."""

    records: list[Record]
    position: Position
    """Where the log ends once it is committed."""
    taken: str
    """The last inbox entry that it took, empty if it took none."""
    changes: GrantChanges
    answers: dict[str, list[str]]
    put_back: list[tuple[str, str]]
    """(app, executor) whose begun tasks come back."""
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

    def __init__(self, store: Redis, keys: Keys, master: str, rebuild: Rebuild) -> None:
        self.store = store
        self.keys = keys
        self.master = master
        self.log = EventLog(store, keys)
        self.worklist = Worklist(store, keys.cluster)
        self.state = ClusterState()
        self.position = GENESIS
        self._under_way: tuple[_Decided, CommitUnderWay] | None = None
        self._taken = ""
        """The last inbox entry that a turn has taken, though perhaps not yet committed."""
        self._read_ahead: tuple[list[Message], int] | None = None
        """What the next turn takes, read before the store was given a long commit to work on."""
        self._sound = True
        """Whether the state is what the log, with the commit under way, tells."""
        self._refused_in_a_row = 0
        self._rebuild = rebuild
        self._reply = store.register_script(REPLY_LUA)
        self._ring = store.register_script(RING_LUA)
        self._watching_since_ms = 0
        self._looked_at_ms = 0
        self._decided_at_ms = 0

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
            records, position = _records(turn, self.position)
            open_apps = self.worklist.open_apps()
            try:
                self._commit_election(records, position)
                break
            except StaleLog:
                _log.info("another master wrote while this one folded the log", head=self.state.head)
        else:
            raise StaleLog("the log kept moving while this master tried to be elected")
        self._watching_since_ms = self._looked_at_ms = self._store_time_ms()
        self._reconcile_tasks(open_apps)
        self._ring_workers(self.state.workers)
        _log.info("serving", master=self.master, head=self.state.head, workers=len(self.state.workers))

    def _commit_election(self, records: Sequence[Record], position: Position) -> None:
        try:
            self.log.commit(self.position, records, changes=self._every_grant())
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
            if taken == 0 or (taken and not between() and self._unless_refused(self._finish) is not None):
                return

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
        self._finish()
        return taken

    def _step(self) -> int:
        """Decide a turn, finish the one before it, send its commit; how many inputs it took."""
        if not self._sound:
            raise StaleLog("a turn was broken off")
        messages, now = self._read_ahead or self._look()
        self._read_ahead = None
        lost = self._silent_workers(now)
        if messages or lost:
            self._run(messages, lost, now)
        else:
            if self._moment_has_come(now):
                self._run((), (), now)
            self._finish()
            self._refused_in_a_row = 0
        return len(messages) + len(lost)

    def _moment_has_come(self, now: int) -> bool:
        """Whether a time that a rule waits for has come since the last turn (semantics T1)."""
        moment = self.state.next_moment(self._decided_at_ms)
        return moment is not None and moment <= now

    def quiet_s(self) -> float:
        """For how long no time comes that a rule waits for (semantics T1), as of the last look at the store's clock."""
        moment = self.state.next_moment(self._decided_at_ms)
        return float("inf") if moment is None else (moment - self._looked_at_ms) / 1000

    def _look(self) -> tuple[list[Message], int]:
        """The oldest messages that no turn has taken yet, and the store's time in ms."""
        pipeline = self.store.pipeline(transaction=False)
        pipeline.xrange(self.keys.inbox, min=f"({self._taken}" if self._taken else "-", count=BATCH)
        pipeline.time()
        entries, (seconds, micros) = pipeline.execute()
        return [_message(entry, fields) for entry, fields in entries], seconds * 1000 + micros // 1000

    def _run(self, messages: Sequence[Message], lost: Sequence[LoseWorker], now: int) -> None:
        """One turn; if a command makes it raise, again with one command a turn, and that one put aside."""
        try:
            decided = self._decide(messages, lost, now)
        except (FairlogError, StoreConnectionError, StoreTimeoutError):
            raise
        except Exception:
            if not messages:
                raise
            trace = traceback.format_exc()
            self._finish()
            self._fold_again_as_master()
            if len(messages) == 1:
                self._put_aside(messages[0], trace)
            else:
                for message in messages:
                    self._run([message], (), now)
                    self._finish()
            return
        self._finish()
        self._taken = decided.taken or self._taken
        if len(messages) >= AHEAD_FROM:
            self._read_ahead = self._look()
        self._begin(decided)

    def _decide(self, messages: Sequence[Message], lost: Sequence[LoseWorker], now: int) -> _Decided:
        """The turn, folded into the state; from here on the state is sound only once the commit was sent."""
        self._sound = False
        self._decided_at_ms = now
        turn = Turn(self.state, now)
        refusals: dict[str, CommandRejected] = {}
        for command in lost:
            if command.worker in self.state.workers:
                turn.take(command)
        for message in messages:
            if message.kind == "view" or message.id in self.state.commands or message.id in refusals:
                continue
            try:
                turn.take(_command(message), message.id)
            except CommandRejected as refusal:
                refusals[message.id] = refusal
        turn.settle()
        answers: dict[str, list[str]] = {}
        for message in messages:
            if message.reply_to:
                answers.setdefault(message.reply_to, []).append(self._answer(message, refusals.get(message.id)))
        return self._decided(turn, answers, messages[-1].entry if messages else "")

    def _decided(self, turn: Turn, answers: dict[str, list[str]], taken: str) -> _Decided:
        events = [event for event, _ in turn.entries]
        ends = ExecutorRemoved | DriverRemoved | AppRemoved
        touched = dict.fromkeys(event.app for event in events if isinstance(event, ends))
        records, position = _records(turn, self.position)
        return _Decided(
            records,
            position,
            taken,
            changed_grants(events, self.state),
            answers,
            [(event.app, event.executor) for event in events if isinstance(event, ExecutorRemoved) and not event.done],
            [name for name in touched if self._is_over(name)],
            [event.app for event in events if isinstance(event, AppRegistered) and event.env],
        )

    def _begin(self, decided: _Decided) -> None:
        """Send the commit: append the events and take their messages out of the inbox, all at once."""
        self._keep_secrets(decided.with_secrets)
        keep_from = _next_entry(decided.taken) if decided.taken else ""
        commit = self.log.begin_commit(
            self.position, decided.records, keep_inbox_from=keep_from, changes=decided.changes
        )
        self._under_way = decided, commit
        self.position = decided.position
        self._sound = True

    def _finish(self) -> int:
        """Wait for the commit under way, if there is one, and tell everybody concerned; how many there were."""
        if self._under_way is None:
            return 0
        decided, commit = self._under_way
        self._under_way = None
        sound, self._sound = self._sound, False
        try:
            commit.finish()
        except (StoreConnectionError, StoreTimeoutError) as error:
            _log.warning("a commit got no answer", head=decided.position.seq, error=str(error))
            if not decided.records or not self._was_committed(decided.position):
                raise StaleLog("a commit that got no answer did not take place") from error
        self._refused_in_a_row = 0
        self._sound = sound
        self._tell(decided)
        return 1

    def _was_committed(self, position: Position) -> bool:
        """Settle a commit without an answer by the log's tail, as soon as the store can be asked."""
        self._watching_since_ms = 0
        for pause_s in RECONNECT_S:
            try:
                return self.log.ends_with(position)
            except (StoreConnectionError, StoreTimeoutError):
                time.sleep(pause_s)
        return self.log.ends_with(position)

    def _keep_secrets(self, apps: Iterable[str]) -> None:
        """Before the commit, so that no app is in the log whose values could still expire."""
        for app in apps:
            self.store.persist(self.keys.secrets(app))

    def _tell(self, decided: _Decided) -> None:
        """After the commit: answers, rings, and what follows for tasks.

        Whatever a crash leaves undone here is made up for: clients ask again, the tick replaces rings,
        and the next master reconciles the tasks.
        """
        self._send_answers(decided.answers)
        self._ring_workers(dict.fromkeys((*decided.changes.by_worker, *decided.changes.left)))
        for app, executor in decided.put_back:
            self.worklist.put_back(app, executor)
        self.worklist.forget(*decided.over)

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

    def _fold_again_as_master(self) -> None:
        self._fold_again()
        if self.state.master != self.master:
            raise Deposed(str(self.state.master))

    def _fold_again(self) -> None:
        if self._under_way is not None:
            self._under_way[1].abandon()
            self._under_way = None
        self.state, self.position = self._rebuild()
        self._taken = ""
        self._read_ahead = None
        self._sound = True

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

    def _reconcile_tasks(self, open_apps: Iterable[str]) -> None:
        """What an earlier master left undone: tasks of gone executors come back, ended apps are cleared away.

        Another master may serve by now without this one knowing. So it acts only on what its own fold
        proves: `open_apps` were read before its election, and an executor is gone only if this log
        granted it and took it back.
        """
        for name in open_apps:
            app = self.state.apps.get(name)
            if app is not None and app.ended is None:
                begun: Any = self.store.hvals(self.keys.begun(name))
                for executor in sorted({as_text(value) for value in begun} - app.executors.keys()):
                    if int(executor.rpartition(".")[2]) < app.next_executor:
                        self.worklist.put_back(name, executor)
            elif self._is_over(name):
                self.worklist.forget(name)

    def _is_over(self, name: str) -> bool:
        """Whether nothing of the app will run any more; one that the state has forgotten is over."""
        app = self.state.apps.get(name)
        return app is None or (app.ended is not None and not app.slices())

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
