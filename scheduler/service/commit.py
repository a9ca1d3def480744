"""The commit in flight: sent to the store and not yet confirmed, while the master decides the next turn."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import structlog
from redis.exceptions import RedisError

from scheduler.model.errors import NotReplicated, StaleLog
from scheduler.model.events import AppRegistered, AppRemoved, AppRequeued, DriverRemoved, ExecutorRemoved, LogSealed
from scheduler.rules.view.assignments import changed_grants
from scheduler.service.inbox import Message, answer_commands, dead_letters
from scheduler.service.keyring import Keyring
from scheduler.service.receipts import Answer, signed_answers
from scheduler.service.reconcile import company_of, has_variables, is_over
from scheduler.store.codec import encode_turn
from scheduler.store.doorbell import RING_LUA
from scheduler.store.eventlog import GENESIS, CommitInFlight, EventLog, Position
from scheduler.store.inflight import InFlight, StoreCommand, carry_out
from scheduler.store.keys import bell_id, queue_key
from scheduler.store.task_queue import broken
from scheduler.store.transient import BACK_OFF_S, NO_ANSWER, passes

if TYPE_CHECKING:
    from scheduler.model.grants import GrantChanges
    from scheduler.rules.stage.turn import Turn
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.heartbeats import Heartbeats
    from scheduler.service.measures import Measures
    from scheduler.store.codec import Record
    from scheduler.store.task_queue import Worklist

ASLEEP_S = 1.0
"""After a commit confirmed this late, the log's end is checked: another master may have been elected meanwhile."""
_FOLLOWED = {AppRegistered, AppRequeued, ExecutorRemoved, AppRemoved, DriverRemoved, LogSealed}
"""The events that more follows from than a change of grants."""
_log = structlog.get_logger()


class Decided(NamedTuple):
    """A decided turn: what to commit, and what follows from it.

    - `record`: None if the turn has no events.
    - `position`: the log's end after the commit.
    - `taken`: the last entry that the turn took of each lane of the inbox.
    - `at`: the time of the turn (ms).
    - `answers`: reply list -> answers.
    - `put_back`: app -> its removed executors, whose running tasks return to the queue.
    - `over`: apps of which nothing runs any more, with their companies.
    - `claimed`: where the secrets of apps that it registered belong, and where the client has put them.
    - `aside`: messages that are put aside.
    - `seal`: the seal that the turn logs.
    - `commands`: how many commands its messages had.
    """

    record: Record | None
    position: Position
    taken: Mapping[str, str]
    changes: GrantChanges
    at: int
    answers: Mapping[str, list[Answer]]
    put_back: Mapping[str, list[str]]
    over: Mapping[str, str]
    claimed: list[tuple[str, str]]
    aside: Sequence[Message] = ()
    seal: LogSealed | None = None
    commands: int = 0


class Commits:
    """Commits the turns of one master to `log`, one at a time, and carries out what follows from each.

    `position` is the log's end, including the commit in flight.
    """

    def __init__(
        self, log: EventLog, worklist: Worklist, heartbeats: Heartbeats, keyring: Keyring | None = None
    ) -> None:
        self._log = log
        self._store, self._keys = log.store, log.keys
        self._worklist = worklist
        self._heartbeats = heartbeats
        self._keyring = keyring if keyring is not None and keyring.master else None
        self.position = GENESIS
        self.confirmed = GENESIS
        """The last position that was acknowledged by this master."""
        self.failed = False
        """Whether the last commit was not confirmed, so that the state is ahead of the log."""
        self.refused_in_a_row = 0
        self.measures: Measures | None = None
        """What takes note of each commit, if anything does."""
        self.sealed: LogSealed | None = None
        """The last seal that this master has committed."""
        self._in_flight: tuple[Decided, CommitInFlight, float] | None = None
        """With the time when it was sent (monotonic)."""
        self._follow_up: tuple[InFlight, Mapping[str, str]] | None = None
        """What follows from the last confirmed commit, sent and not yet answered, and the apps that are over."""
        self._settled = 0
        """The log position up to which workers know that the replicas have the log."""

    @property
    def in_flight(self) -> bool:
        """Whether a commit waits for its confirmation."""
        return self._in_flight is not None

    def record_at(self, seq: int) -> Record | None:
        """The turn that holds position `seq`, in flight or in the store; None if it is in the archive only.

        Raises: UnreadableRecord; redis-py's errors.
        """
        if self._in_flight is not None and (sent := self._in_flight[0].record) is not None and seq >= sent.first:
            return sent
        return self._log.stored_turn_of(seq)

    def settles_at(self, seq: int) -> int:
        """The log position that replicas must have before grants of the turn ending at `seq` start; 0 without them."""
        return seq if self._log.replicas else 0

    def encode(self, turn: Turn) -> Record:
        """The record of the turn, chained to `position`."""
        return encode_turn(turn.entries, turn.commands, first=turn.first, at=turn.at, previous=self.position.digest)

    def decided(
        self, turn: Turn, state: ClusterState, answers: Mapping[str, list[Answer]], messages: Sequence[Message]
    ) -> Decided:
        """What to commit for `turn`, which took `messages` and `state` has folded, and what follows from it."""
        touched: dict[str, None] = {}
        put_back: dict[str, list[str]] = {}
        claimed = []
        seal: LogSealed | None = None
        for event, _ in turn.entries:
            if type(event) not in _FOLLOWED:
                continue
            match event:
                case AppRegistered():
                    if has_variables(state, event.app):
                        spec = state.apps[event.app].spec
                        source = self._keys.unclaimed(event.app, spec.company, spec.user)
                        claimed.append((self._keys.secrets(event.app), source))
                case ExecutorRemoved():
                    touched[event.app] = None
                    if not event.done:
                        failed = event.reason == "failed" and not event.unstartable
                        gone = broken(event.executor) if failed else event.executor
                        put_back.setdefault(event.app, []).append(gone)
                case AppRequeued():
                    held = state.apps[event.app].executors if event.app in state.apps else ()
                    put_back.setdefault(event.app, []).extend(held)
                case AppRemoved() | DriverRemoved():
                    touched[event.app] = None
                case LogSealed():
                    seal = event
                case _:
                    pass
        record = self.encode(turn) if turn.entries else None
        position = self.position if record is None else Position(record.last, record.digest)
        settled_at = self.settles_at(position.seq)
        changes = changed_grants((event for event, _ in turn.entries), state, settled_at=settled_at)
        over = {name: company_of(state, name) for name in touched if is_over(state, name)}
        taken = {message.lane: message.entry for message in messages if message.entry}
        aside = [message for message in messages if message.aside]
        commands = sum(len(message.commands) for message in messages)
        after = over, claimed, aside, seal, commands
        return Decided(record, position, taken, changes, turn.at, answers, put_back, *after)

    def elect(self, record: Record, changes: GrantChanges) -> None:
        """Commit the turn that elects this master, and wait until the store's replicas have it, however long it takes.

        Raises: StaleLog if another master has written; what `EventLog.meanwhile` raises.
        """
        position = Position(record.last, record.digest)
        try:
            self._log.begin_commit(self.position, record, changes=changes).finish()
        except NotReplicated as lag:
            _log.warning("elected, and waiting for the replicas of the store", head=position.seq, reason=str(lag))
            self._await_replicas(position)
        except NO_ANSWER:
            if not self._was_committed(position):
                raise
        self.position = self.confirmed = position

    def _await_replicas(self, position: Position) -> None:
        """Return once the replicas have the turn that ends there. Raises: as `elect`."""
        while True:
            try:
                if self._log.ends_with(position):
                    return
            except NotReplicated:
                continue
            raise StaleLog("another master has written the log while this one waited for replicas")

    def begin(self, decided: Decided) -> None:
        """Send the commit of events, grants, secrets and inbox."""
        commit = self._log.begin_commit(
            self.position,
            decided.record,
            taken=decided.taken,
            changes=decided.changes,
            returned=[self._worklist.returned(app, gone) for app, gone in decided.put_back.items()],
            claimed=decided.claimed,
        )
        self._in_flight = decided, commit, time.monotonic()
        self.position = decided.position

    def confirm(self) -> None:
        """Wait for the commit in flight, if any, then send what follows from it.

        Raises: StaleLog if it did not take place; NotReplicated, redis-py's errors. `failed` is set then.
        """
        if self._in_flight is None:
            return
        decided, commit, sent_s = self._in_flight
        self._in_flight = None
        self.failed = True
        try:
            commit.finish()
        except NO_ANSWER as error:
            _log.warning("a commit got no answer", head=decided.position.seq, error=str(error))
            if decided.record is None or not self._was_committed(decided.position):
                raise StaleLog("a commit without an answer did not take place") from error
        if time.monotonic() - sent_s > ASLEEP_S and self._log.head() != decided.position:
            raise StaleLog("another master has written the log since the commit was sent")
        self.refused_in_a_row = 0
        self.failed = False
        self.confirmed = decided.position
        if self.measures is not None:
            record, took_s = decided.record, time.monotonic() - sent_s
            events = 0 if record is None else record.last - record.first + 1
            self.measures.committed(took_s, events, decided.commands, decided.position.seq)
        self._tell(decided)

    def settle_up(self) -> None:
        """Wait for the commit in flight and for what follows from it."""
        self.confirm()
        self._hear_back()

    def abandon(self) -> None:
        """Forget what is in flight: the log is folded again."""
        if self._in_flight is not None:
            self._in_flight[1].abandon()
        if self._follow_up is not None:
            self._follow_up[0].abandon()
        self._in_flight = self._follow_up = None

    def resume(self, position: Position) -> None:
        """Go on behind `position`, where the log that was folded again ends."""
        self.position = position
        self.failed = False

    def announce(self, workers: Iterable[str]) -> None:
        """Ring `workers`, and settle the log up to `position`; wait for the store.

        What masters that waited for replicas have settled says nothing once one serves that does not.
        """
        settled = self._settle_commands(self.position) or [("DEL", self._keys.settled, self._keys.unreplicated)]
        carry_out(self._store, (*settled, *self._ring_commands(workers)))

    def settle_late(self) -> None:
        """Settle a commit whose replicas were missing, once they have it, so that workers start its grants."""
        if self._log.replicas and self.position.seq > self._settled:
            with suppress(NotReplicated):
                if self._log.ends_with(self.position):
                    self.announce(())

    def _was_committed(self, position: Position) -> bool:
        """Whether a commit without an answer took place, read from the log's end once the store answers again."""
        self._heartbeats.store_was_away()
        for pause_s in BACK_OFF_S:
            try:
                return self._log.ends_with(position)
            except RedisError as error:
                if not passes(error):
                    raise
                time.sleep(pause_s)
        return self._log.ends_with(position)

    def _tell(self, decided: Decided) -> None:
        """Send the answers, the rings and the closing of apps that are over, without waiting for the store.

        After a crash before or during this, clients ask again, ticks replace the rings, and the next master
        reconciles the tasks.
        """
        self.sealed = decided.seal or self.sealed
        commands = [*self._settle_commands(decided.position), *answer_commands(self._keys, self._signed(decided))]
        commands += dead_letters(self._keys, decided.aside)
        commands += self._ring_commands(dict.fromkeys((*decided.changes.by_worker, *decided.changes.left)))
        if decided.over:
            commands.append(self._worklist.close_command(decided.over))
        self._hear_back()
        if commands:
            self._follow_up = InFlight(self._store, commands), decided.over

    def _signed(self, decided: Decided) -> Mapping[str, list[str]]:
        """The answers of a turn that is in the log, with receipts if this master has a key."""
        answers = [(name, answer) for name, answers in decided.answers.items() for answer in answers]
        if not answers:
            return {}
        texts = [answer.text for _, answer in answers]
        if self._keyring is not None:
            (seq, digest), found = decided.position, [answer for _, answer in answers]
            texts = signed_answers(self._keyring, self._keys.cluster, seq, digest, decided.at, found)
        signed: dict[str, list[str]] = {}
        for (name, _), text in zip(answers, texts, strict=True):
            signed.setdefault(name, []).append(text)
        return signed

    def _hear_back(self) -> None:
        """Wait for what the last commit caused, and delete the jobs of apps that are over."""
        if self._follow_up is None:
            return
        (sent, over), self._follow_up = self._follow_up, None
        answers = sent.answers()
        if over:
            self._worklist.sweep(over, answers[-1])

    def _settle_commands(self, position: Position) -> list[StoreCommand]:
        """The command that tells workers that the replicas have the log up to `position`."""
        self._settled = position.seq
        return [("SET", self._keys.settled, position.seq)] if self._log.replicas else []

    def _ring_commands(self, workers: Iterable[str]) -> list[StoreCommand]:
        queues = [self._keys.worker_queue(worker) for worker in workers]
        return [("EVAL", RING_LUA, len(queues), *map(queue_key, queues), *map(bell_id, queues))] if queues else []
