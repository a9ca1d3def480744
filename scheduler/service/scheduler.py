"""The turns of the master: from the inbox into the log, one after the other.

`Scheduler` holds the folded state in memory between turns. If anything fails before a commit is confirmed, it discards
that state and folds the log again; half a turn is never visible.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import structlog
from redis.exceptions import RedisError

from scheduler.model.commands import (
    BATCH,
    NEVER_SENT,
    ChangeCompany,
    Command,
    LoseOwner,
    LoseWorker,
    SubmitApp,
)
from scheduler.model.errors import (
    CommandRejected,
    Deposed,
    FairlogError,
    IdReused,
    InternalError,
    MessageTooOld,
    NotAllowed,
    NotSigned,
    StaleLog,
    UnknownCompany,
    refusal_of,
)
from scheduler.model.events import EditionChanged, MasterElected, RefusalsOmitted
from scheduler.model.sender import NOBODY, By
from scheduler.rules.checks.validate import NEW_CLUSTER
from scheduler.rules.command.permission import permit
from scheduler.rules.command.readiness import with_namesakes
from scheduler.rules.command.request import as_asked
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.facts import MINUTE_MS
from scheduler.rules.state.preconditions import EDITIONS
from scheduler.service import inbox, seals
from scheduler.service.commit import Commits, Decided
from scheduler.service.heartbeats import Heartbeats, look_after_ms
from scheduler.service.inbox import Lanes, Message
from scheduler.service.keyring import Keyring
from scheduler.service.owners import LOOK_MS, Owners
from scheduler.service.recall import Recall
from scheduler.service.receipts import Answer
from scheduler.service.reconcile import concerned, differing_grants, reconcile_tasks, stored_grants
from scheduler.service.sameness import Sameness
from scheduler.service.signing import AHEAD_MS, Gate
from scheduler.service.veil import veiled, veiled_refusal
from scheduler.store.connection import clock_ms
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.inflight import InFlight, carry_out
from scheduler.store.reads import last_read
from scheduler.store.task_queue import Worklist

AHEAD_FROM = 50
"""From this many messages on, the next turn's messages are read before the store works on this turn's commit."""
MAX_STALE = 5
"""How often in a row a commit may be refused."""

LOGGED_REFUSAL_BYTES = 8 * 1024
"""A refused command that is longer is not logged, and counts as omitted (semantics T3)."""

Rebuild = Callable[[], tuple[ClusterState, Position]]
_log = structlog.get_logger()


class _Look(NamedTuple):
    """The oldest messages that no turn has taken, the store's time (ms), and the number of silent workers."""

    messages: Sequence[Message]
    now: int
    silent: int


class Scheduler:
    """The master `master` of one cluster: takes turns until another master is elected.

    `rebuild` folds the log. It is called whenever the state in memory can no longer be trusted. `accepts` raises
    CommandRejected for a command that this host refuses; that is no decision of the rules, and not logged. `holds`
    tells whether this master still holds the lease.
    """

    def __init__(
        self,
        log: EventLog,
        master: str,
        rebuild: Rebuild,
        accepts: Callable[[Command], object] = lambda _: None,
        *,
        keyring: Keyring | None = None,
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        self.log = log
        self.store, self.keys = store, keys = log.store, log.keys
        self.master = master
        self._me = By(f"master/{master}", role="master")
        self.worklist = Worklist(store, keys.cluster)
        self.state = ClusterState()
        self.heartbeats = Heartbeats(store, keys)
        self._owners = Owners(store, keys)
        self.commits = Commits(log, self.worklist, self.heartbeats, keyring)
        self._rebuild = rebuild
        self._accepts = accepts
        self._holds = holds
        self._lanes = Lanes(keys, Gate(keys.cluster, keyring))
        self._recall = Recall()
        self._ring = keyring
        self._keyring = keyring if keyring is not None and keyring.master else None
        """The keys that sign receipts and seals."""
        self.put_aside = 0
        """How many messages were put aside since this master started."""
        self._read_ahead: _Look | None = None
        """What the next turn takes, read before the store began a long commit."""
        self._sound = True
        """Whether the state is the fold of the log and the commit in flight."""
        self._decided_at_ms = 0
        self._unsettled = False
        """Whether a turn is due at once, because the last one took nothing but decommissions (semantics W3)."""
        self._omitted: tuple[int, int] | None = None
        """How many refusals were not logged, and since when (ms); lost with the master (semantics T3)."""

    @property
    def position(self) -> Position:
        """The end of the log that the state has folded, including the commit in flight."""
        return self.commits.position

    def take_over(self) -> None:
        """Fold the log, commit `MasterElected`, and bring the store in line with the log.

        A log without settings gets the newest edition of the rules of sharing and the default settings, so that it
        states from the start which rules are in force (semantics H8).

        Raises: UnreadableRecord if the log cannot be read; StaleLog if another master keeps writing it, or holds the
        lease by now; BadKeys, and writes nothing, without the masters' key that is in force.
        """
        for _ in range(MAX_STALE):
            open_apps = self.worklist.open_apps()
            self._fold_again()
            stored = stored_grants(self.store, self.keys)
            if self.log.head() != self.position:
                continue
            seals.check_keys(self._ring, self.state)
            if not self._holds():  # its holder, whom this election would depose, would be elected again at once
                raise StaleLog("another master has taken the lease while this one folded the log")
            turn = Turn(self.state, self._store_time_ms())
            turn.record(MasterElected(master=self.master))
            change = None if self._keyring is None else seals.key_change(self._keyring, self.state)
            if change is not None:
                turn.record(change)
            if not self.state.configured:
                turn.record(EditionChanged(edition=EDITIONS[-1]))
                turn.record(NEW_CLUSTER)
            turn.settle()
            settled_at = self.commits.settles_at(self.state.head)
            changes = differing_grants(self.state, stored, settled_at=settled_at)
            try:
                self.commits.elect(self.commits.encode(turn), changes)
                break
            except StaleLog:
                _log.info("another master wrote while this one folded the log", head=self.state.head)
        else:
            raise StaleLog("other masters kept writing the log while this one tried to be elected")
        self.heartbeats.watch_anew(self._store_time_ms())
        self._reconcile(open_apps)
        self.commits.announce(concerned(self.state, changes))
        _log.info("serving", master=self.master, head=self.state.head, workers=len(self.state.workers))

    def turn(self) -> int:
        """Take one turn with what is in the inbox and what is due; returns the number of its inputs.

        Raises: Deposed if another master was elected, UnreadableRecord if the log cannot be read, redis-py's errors
        if the store is away. The turn is dropped then, and its inputs remain in the inbox.
        """
        while (taken := self._unless_refused(self._whole_turn)) is None:
            pass
        return taken

    def work_off_inbox(self, between: Callable[[], bool]) -> None:
        """Take turns until the inbox is empty, or until `between`, called after each turn, returns False.

        While the store makes a turn durable, the next one is decided on top of it; if the commit is refused, both are
        discarded. Nobody is told anything before the commit is confirmed.

        Raises: as `turn`.
        """
        while True:
            taken = self._unless_refused(self._step)
            if taken == 0 or (taken and not between() and self._unless_refused(self._settle_up) is not None):
                return

    def make_sure_of_office(self) -> None:
        """Fold the log again if another master has written it. Raises: Deposed if another master was elected."""
        if not self.commits.in_flight and self.log.head() != self.position:
            self._fold_again_as_master()

    def put_down(self) -> tuple[ClusterState, Position]:
        """Give away the state and the position that it should be at; the scheduler is left with neither."""
        found = self.state, self.position
        self.state, self.commits.position = ClusterState(), GENESIS
        return found

    def quiet_s(self) -> float:
        """Seconds from the last look until something is due, infinite if nothing is.

        That is the next moment that a rule waits for (semantics T1), or the next look at heartbeats (semantics W2).
        """
        if self._unsettled:
            return 0
        due_ms = [look_after_ms(self._worker_timeout_ms())] if self.state.workers else []
        if self.state.indexes.owned:
            due_ms.append(LOOK_MS)
        moment = self.state.timers.next(self._decided_at_ms)
        if moment is not None:
            due_ms.append(moment - self.heartbeats.looked_at_ms)
        if self._keyring is not None and (sealed_ms := seals.due_at(self.state)) is not None:
            due_ms.append(sealed_ms - self.heartbeats.looked_at_ms)
        return min(due_ms, default=math.inf) / 1000

    def _unless_refused(self, action: Callable[[], int]) -> int | None:
        """What `action` returns; None if a commit was refused: the log was folded again, the inbox is unchanged."""
        try:
            return action()
        except StaleLog:
            self.commits.refused_in_a_row += 1
            if self.commits.refused_in_a_row > MAX_STALE:
                raise
        self._fold_again_as_master()
        return None

    def _whole_turn(self) -> int:
        taken = self._step()
        self._settle_up()
        return taken

    def _settle_up(self) -> int:
        self.commits.settle_up()
        return 0

    def _step(self) -> int:
        """Decide a turn, confirm the commit before it, send its commit; returns the number of inputs."""
        if not self._sound or self.commits.failed:
            raise StaleLog("a turn was broken off")
        messages, now, silent = self._read_ahead or self._look()
        self._read_ahead = None
        lost: list[LoseWorker | LoseOwner] = [*self.heartbeats.lost(now, silent, self._worker_timeout_ms())]
        if self.state.indexes.owned:
            lost += self._owners.lost(now, self.state.indexes.owned.members, self._worker_timeout_ms())
        if messages or lost or self._unsettled or self._moment_has_come(now) or self._seal_is_due(now):
            self._run(messages, lost, now)
        if not messages and not lost:
            self._settle_up()
            self.commits.settle_late()
            self.commits.refused_in_a_row = 0
        return _size(messages) + len(lost)

    def _moment_has_come(self, now: int) -> bool:
        """Whether a time that a rule waits for has come since the last turn (semantics T1)."""
        moment = self.state.timers.next(self._decided_at_ms)
        return moment is not None and moment <= now

    def _seal_is_due(self, now: int) -> bool:
        return self._keyring is not None and seals.is_due(self.state, now)

    def _look(self) -> _Look:
        unread = self._lanes.ask(self.state.companies, BATCH)
        silent = self.heartbeats.count_silent(self._worker_timeout_ms())
        answer, clock, count = InFlight(self.store, [unread, ("TIME",), silent]).answers()
        self._lanes.hear(answer)
        if self.commits.measures is not None:
            self.commits.measures.looked(clock_ms(clock))
        return _Look(self._lanes.take(BATCH), clock_ms(clock), count)

    def _run(
        self, messages: Sequence[Message], lost: Sequence[LoseWorker | LoseOwner], now: int, *, ahead: bool = True
    ) -> Mapping[str, CommandRejected]:
        """Take one turn. If it raises, take one turn per command; a command that raises goes to the dead letters.

        Returns the refusals of such commands that are parts of a batch: the caller answers the batch.
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
                    failed |= self._run([part], (), now, ahead=False)
                    self._settle_up()
            if len(messages) == 1 and messages[0].entry:
                self._leave_inbox(messages[0], failed)
            return failed
        if ahead and _size(messages) >= AHEAD_FROM:
            self._read_ahead = self._look()
        self.commits.confirm()
        self.commits.begin(decided)
        self._sound = True
        return {}

    def _decide(self, messages: Sequence[Message], lost: Sequence[LoseWorker | LoseOwner], now: int) -> Decided:
        """Decide the turn and fold it into the state, which is not sound until the commit is sent."""
        self._sound = False
        due = self._moment_has_come(now)
        turn = Turn(self.state, now)
        self._log_omitted(turn)
        if self._keyring is not None and seals.is_due(self.state, turn.at):
            turn.record(seals.seal(self._keyring, self.commits.position, last_read(self.store, self.keys)))
        for command in lost:
            known = command.worker in self.state.workers if isinstance(command, LoseWorker) else True
            if known:
                turn.take(command, by=self._me)
        refusals: dict[str, CommandRejected] = {}
        checked = [self._checked(message, now) for message in messages]
        sameness = Sameness(self._recall, self.commits.record_at)
        for number, message in enumerate(checked):
            try:
                sameness.check(message, self.state)
            except IdReused as refusal:
                checked[number] = message._replace(by=NOBODY, refusal=refusal)
                continue
            for identity, body in message.commands:
                if identity not in self.state.commands and identity not in refusals:
                    self._take(turn, identity, body, message.by, refusals)
                else:  # another one may have sent it, so the answer is nobody's
                    checked[number] = message._replace(by=NOBODY)
            self._recall.add(message, self.state)
        settled = turn.settle(due=due or (self._unsettled and not messages))
        self._unsettled = not settled and (self._unsettled or turn.decommissioned)
        self._decided_at_ms = now
        self._report_aside([message for message in checked if message.aside])
        return self.commits.decided(turn, self.state, self._answers(checked, refusals), checked)

    def _checked(self, message: Message, now: int) -> Message:
        """The message, put aside if nobody vouches for it, it may have been carried out before, or is of the future."""
        if message.aside or not (message.sent or self.state.closed):
            return message
        if not message.sent:
            return message.put_aside(NotSigned("the message is not signed, and the cluster has accounts"))
        if message.sent > now + AHEAD_MS:
            return message.put_aside(NotSigned("the message was signed by a clock that is ahead of the store's"))
        doubtful = self._recall.is_doubtful(message, self.state)
        return message.put_aside(MessageTooOld()) if doubtful else message

    def _report_aside(self, aside: Sequence[Message]) -> None:
        if aside:
            self.put_aside += len(aside)
            first = aside[0]
            named = {"id": first.id[:128], "lane": first.lane, "reason": str(first.refusal)}
            _log.warning("messages were put aside", count=len(aside), in_all=self.put_aside, first=named)

    def _take(self, turn: Turn, identity: str, body: bytes, by: By, refusals: dict[str, CommandRejected]) -> None:
        """Take one command; add its refusal if it is refused (semantics T3)."""
        command = None
        try:
            received = self._received(body, by, turn.at)
            try:
                self._accepts(received)
                _check_is_there(self.state, received)
            except CommandRejected:
                if self.state.closed:  # whoever may not send it learns nothing of this host
                    command = received
                    permit(self.state, command, by, turn.at)
                    command = None
                raise
            command = received
            if (why := NEVER_SENT.get(type(command))) is not None:
                raise NotAllowed(why)
            turn.take(command, identity, by)
        except CommandRejected as refusal:
            refusals[identity] = refusal
            if command is None:
                return
            if len(body) > LOGGED_REFUSAL_BYTES or not turn.refuse(
                command, veiled_refusal(command, refusal), identity, by
            ):
                count, since = self._omitted or (0, turn.at)
                self._omitted = count + 1, since

    def _received(self, body: bytes, by: By, at: int) -> Command:
        """The command of a message, as it is decided.

        Raises: CommandRejected if it is invalid, of which nothing is logged; NotAllowed first, as everywhere.
        """
        said = inbox.decoded(body)
        try:
            command = veiled(self.state, inbox.checked(said))
            if isinstance(command, SubmitApp):
                command = with_namesakes(self.state, as_asked(self.state.settings, command))
        except CommandRejected:
            if self.state.closed:
                permit(self.state, said, by, at)
            _check_is_there(self.state, said)
            raise
        return command

    def _log_omitted(self, turn: Turn) -> None:
        """Log the number of refusals omitted in an earlier minute (semantics T3)."""
        if self._omitted and turn.at // MINUTE_MS > self._omitted[1] // MINUTE_MS:
            count, since = self._omitted
            self._omitted = None
            turn.record(RefusalsOmitted(count=count, since=since))

    def _answers(self, messages: Iterable[Message], refusals: Mapping[str, CommandRejected]) -> dict[str, list[Answer]]:
        """Reply list -> answers to these messages. The state has folded their commands."""

        def outcome(identity: str) -> int | CommandRejected:
            if identity in refusals:
                return refusals[identity]
            if identity in self.state.refusals:
                return refusal_of(*self.state.refusals[identity])
            return self.state.commands.get(identity, 0)

        answers: dict[str, list[Answer]] = {}
        for message in messages:
            if message.reply_to:
                answers.setdefault(message.reply_to, []).append(Answer(inbox.answer(message, outcome), message.by))
        return answers

    def _put_aside(self, message: Message, trace: str) -> None:
        """Move a command that makes a turn raise to the dead letters."""
        _log.error("a command made the turn fail and was put aside", command=message.id, trace=trace)
        body = message.commands[0][1] if message.commands else message.body
        letter: Any = {"id": message.id, "command": body, "traceback": trace}
        self.store.xadd(self.keys.dead, letter, maxlen=inbox.DEAD_KEPT)

    def _leave_inbox(self, message: Message, failed: Mapping[str, CommandRejected]) -> None:
        """Remove a message with `failed` commands from the inbox, and answer it."""
        self.log.begin_commit(self.position, None, taken={message.lane: message.entry}).finish()
        answers = self._answers([message], failed)
        texts = {name: [said.text for said in found] for name, found in answers.items()}
        carry_out(self.store, inbox.answer_commands(self.keys, texts))

    def _worker_timeout_ms(self) -> int:
        return self.state.settings.worker_timeout_s * 1000

    def _fold_again_as_master(self) -> None:
        """Fold the log again and reconcile. Raises: Deposed if another master was elected meanwhile."""
        open_apps = self.worklist.open_apps()
        self._fold_again()
        if self.state.master != self.master:
            raise Deposed(str(self.state.master))
        self._sound = False
        self._reconcile(open_apps)
        self._sound = True

    def _fold_again(self) -> None:
        self.commits.abandon()
        self.state, position = self._rebuild()
        self.commits.resume(position)
        self._lanes.forget()
        self._recall.forget(self.state.at)
        self._read_ahead = None
        self._sound = True

    def _reconcile(self, open_apps: Sequence[str]) -> None:
        reconcile_tasks(self.store, self.keys, self.worklist, self.state, open_apps)

    def _store_time_ms(self) -> int:
        return clock_ms(self.store.time())


def _check_is_there(state: ClusterState, command: Command) -> None:
    """Raises: UnknownCompany for a change of a company that there is not, whatever else is wrong with the change.

    Checked when a command arrives, never by `decide`, which in logs of earlier versions looked at the quota first.
    """
    if isinstance(command, ChangeCompany) and command.company not in state.companies:
        raise UnknownCompany(command.company[:80])


def _size(messages: Iterable[Message]) -> int:
    """The number of inputs."""
    return sum(message.size for message in messages)


def _failure() -> InternalError:
    return InternalError("the command made the master fail; its operator finds it in the dead letters")
