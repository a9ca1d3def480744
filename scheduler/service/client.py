"""The client: puts commands into the inbox and waits for the answers, which come after the commit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from redis.exceptions import RedisError

from scheduler.model.commands import BATCH, check_length, check_script, check_variables, write_command
from scheduler.model.errors import CommandRejected, DuplicateApp, NoMaster, refusal_of
from scheduler.model.sender import By, local
from scheduler.service.keyring import Keyring
from scheduler.service.receipts import Receipt, SignedReceipt, receipt_of
from scheduler.service.signing import lane_of, reply_name, signed_fields, unsigned_fields
from scheduler.store.connection import clock_ms, connect
from scheduler.store.keys import OPERATORS, Keys, bell_id, queue_key
from scheduler.store.scripts import script
from scheduler.store.secrets import seal
from scheduler.store.transient import LaneFull, passes

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script

    from scheduler.model.commands import Command, EndedExecutor, SubmitApp

LANE_LIMIT = 5_000
"""The most messages of a lane of the inbox."""

SEND_LUA = script(__file__, "send")
DONE_LUA = script(__file__, "send_done")
ASK_LUA = script(__file__, "ask")
PUT_ASIDE_LUA = script(__file__, "put_aside")

RESEND_S = 3.0
UNCLAIMED_SECRETS_S = 24 * 3600
"""How long the secrets of an app are kept that is never submitted."""
RECONNECT_S = 0.2
CLOCK_KEPT_S = 60


class CommandClient:
    """Sends commands to the master of `cluster` through `store` (a connection or a URL).

    With a `keyring` it signs them; they are sent by `by`, by default this process's user. With a `secret_key` of 32
    bytes, by default that of the keyring, the store holds the secrets of apps sealed (`scheduler.store.secrets`).

    A command keeps its id until it is answered, so asking again after a lost answer does not carry it out twice.

    Every method that sends raises LaneFull if the sender's lane of the inbox is full; nothing was sent then.
    """

    def __init__(
        self,
        store: Redis | str,
        cluster: str = "default",
        *,
        keyring: Keyring | None = None,
        by: By | None = None,
        timeout_s: float = 30,
        secret_key: bytes | None = None,
    ) -> None:
        self.store: Redis = connect(store) if isinstance(store, str) else store
        self.keys = Keys(cluster)
        self.keyring = keyring
        self.by = by or local(os.getuid())
        self.timeout_s = timeout_s
        self._clock: tuple[float, int] | None = None
        """When the store's clock was read last (monotonic, s), and what it said (ms)."""
        self._secret_key = secret_key or (keyring.apps if keyring is not None else None) or None
        self._bell = bell_id(self.keys.master_queue)
        self._queue = queue_key(self.keys.master_queue)
        self._send: Script = self.store.register_script(SEND_LUA)
        self._send_done: Script = self.store.register_script(DONE_LUA)
        self._ask_for: Script = self.store.register_script(ASK_LUA)
        self._put_secrets: Script = self.store.register_script(PUT_ASIDE_LUA)

    def send(self, command: Command, *, command_id: str | None = None, by: By | None = None) -> Receipt:
        """Carry out `command`; returns after the commit. Raises: CommandRejected; NoMaster after `timeout_s`."""
        identity = command_id or _new_id()
        text = write_command(command)
        check_length(text)
        answer = self._ask(identity, text, by)
        return _receipt(identity, answer, receipt_of(answer))

    def send_many(self, commands: Sequence[Command], *, by: By | None = None) -> list[Receipt | CommandRejected]:
        """Carry out `commands` in order, in batches; the result of a refused one is its refusal. Raises: NoMaster."""
        return [outcome for part in _batches(commands) for outcome in self.send_batch(part, by=by)]

    def send_batch(
        self, commands: Sequence[Command], *, command_id: str | None = None, by: By | None = None
    ) -> list[Receipt | CommandRejected]:
        """As `send_many`, at most `BATCH` commands under one id; that of command i, from 0, is `ID.i`.

        A single command has the id itself, as with `send`, so that it is the same command however it is sent again.
        """
        identity = command_id or _new_id()
        if len(commands) == 1:
            try:
                return [self.send(commands[0], command_id=identity, by=by)]
            except CommandRejected as refusal:
                return [refusal]
        answer = self._ask(identity, _written(commands), by)
        signed = receipt_of(answer)
        answers = _checked(answer)["answers"]
        return [_outcome(f"{identity}.{number}", each, signed) for number, each in enumerate(answers)]

    def notify(self, *commands: Command, by: By | None = None) -> None:
        """Put `commands` into the inbox in order, in one step, without waiting for an answer."""
        self._put([text for part in _batches(commands) for text in (_new_id(), "command", _written(part), "")], by)

    def notify_done(self, command: EndedExecutor, app: str, *, by: By) -> bool:
        """As `notify`, unless a task of the app is left (`Progress.left`) or is the executor's; whether it was sent.

        The store looks when it takes the message: what was read before may be of a store that has failed over since.
        """
        places = [keys(app) for keys in (self.keys.tasks, self.keys.begun, self.keys.later)]
        message = [_new_id(), "command", _written([command]), ""]
        return self._put(message, by, self._send_done, places, [command.executor]) is None

    def hear(self) -> None:
        """Return once the active master has answered an empty batch. Raises: NoMaster."""
        self._ask(_new_id(), "[]", None)

    def submit(
        self, command: SubmitApp, secrets: Mapping[str, str], *, command_id: str | None = None, by: By | None = None
    ) -> Receipt:
        """Submit an app; store its secrets first, never in the log; delete them if it is refused. Raises: as `send`."""
        ours = self.put_aside(command, secrets)
        try:
            return self.send(command, command_id=command_id, by=by)
        except (CommandRejected, LaneFull):
            if ours:
                self.forget(command)
            raise

    def forget(self, command: SubmitApp) -> None:
        """Delete the secrets put aside for a submission that is refused or not sent."""
        self.store.delete(self._unclaimed(command))

    def _unclaimed(self, command: SubmitApp) -> str:
        return self.keys.unclaimed(command.app, command.company, command.user)

    def put_aside(self, command: SubmitApp, values: Mapping[str, str]) -> bool:
        """Store the secrets of a submission until the master has decided it; whether this call stored them.

        Nobody but who may submit for that user can put them in the way. Raises: DuplicateApp if others are there;
        InvalidCommand if there are too many, or the script is another one than the command says.
        """
        check_script(command, values)
        if not values:
            return False
        check_length(write_command(command))
        check_variables(values)
        sealed = seal(self._secret_key, self.keys.cluster, command.app, values)
        secrets = [part for item in sealed.items() for part in item]
        deadline = time.monotonic() + self.timeout_s
        unheard = False
        while True:
            try:
                put = self._put_secrets(keys=[self._unclaimed(command)], args=[UNCLAIMED_SECRETS_S, *secrets])
            except RedisError as error:
                unheard = True
                self._wait_for_store(error, deadline)
                continue
            if not put:
                raise DuplicateApp(command.app)
            return unheard or put == 2

    def _ask(self, identity: str, body: str, by: By | None) -> dict[str, Any]:
        """Send one message and wait; send it again under the same id if it has left the inbox without an answer."""
        lane = self._lane(by)
        reply = reply_name(identity, body)
        places = [self.keys.lane(lane), self._queue, self.keys.sent(reply)]
        kept_ms = int(2000 * (self.timeout_s + RESEND_S))
        deadline = time.monotonic() + self.timeout_s
        fields: list[str] = []
        while True:
            try:
                fields = fields or self._fields(by, identity, body, reply)
                _in_lane(lane, self._ask_for(keys=places, args=[self._bell, kept_ms, LANE_LIMIT, *fields]))
                wait_s = max(0.01, min(deadline - time.monotonic(), RESEND_S))  # BLPOP reads 0 as forever
                popped = self.store.blpop([self.keys.reply(reply)], wait_s)
                if popped is not None:
                    return dict(json.loads(popped[1]))
            except LaneFull:
                raise
            except RedisError as error:
                self._wait_for_store(error, deadline)
            if time.monotonic() >= deadline:
                why = f"no master answered within {self.timeout_s:g} s; `fairlog status` shows whether one is active"
                raise NoMaster(why)

    def _wait_for_store(self, error: RedisError, deadline: float) -> None:
        """Wait before the next attempt. Raises: the error, if it is not transient, or at the deadline."""
        if not passes(error) or time.monotonic() + RECONNECT_S > deadline:
            raise error
        time.sleep(RECONNECT_S)

    def _put(
        self,
        messages: Sequence[str],
        by: By | None = None,
        script: Script | None = None,
        keys: Sequence[str] = (),
        last: Sequence[str] = (),
    ) -> object:
        """Send messages, each an id, `command`, a body and a reply list; they follow each other.

        Returns None, or why the `script`, which has more `keys` and `last` arguments, has sent nothing.
        """
        if not messages:
            return None
        lane = self._lane(by)
        flat: list[str] = []
        for start in range(0, len(messages), 4):
            identity, _, body, reply = messages[start : start + 4]
            flat += self._fields(by, identity, body, reply)
        number = len(flat) // (len(messages) // 4)
        places = [self.keys.lane(lane), self._queue]
        arguments: list[str | int] = [self._bell, LANE_LIMIT, number, *flat, *last]
        said = (script or self._send)(keys=[*places, *keys], args=arguments)
        if said == 2:
            return said
        _in_lane(lane, said)
        return None

    def _lane(self, by: By | None) -> str:
        return OPERATORS if self.keyring is None else lane_of(by or self.by)

    def _fields(self, by: By | None, *message: str) -> list[str]:
        """The fields and values of a message: its id, its body and the reply list. Raises: RedisError."""
        if self.keyring is None:
            return unsigned_fields(*message)
        return signed_fields(self.keyring, self.keys.cluster, by or self.by, self._store_ms(), *message)

    def _store_ms(self) -> int:
        """The store's clock, never ahead of it by more than this machine's clock gains in `CLOCK_KEPT_S`."""
        if self._clock is None or time.monotonic() > self._clock[0] + CLOCK_KEPT_S:
            said = clock_ms(cast("Any", self.store.time()))
            self._clock = time.monotonic(), said
        read_s, said = self._clock
        return said + int(1000 * (time.monotonic() - read_s))


def _in_lane(lane: str, full: object) -> None:
    if full:
        raise LaneFull(lane, LANE_LIMIT)


def _new_id() -> str:
    """128 random bits."""
    return os.urandom(16).hex()


def _outcome(identity: str, answer: dict[str, Any], signed: SignedReceipt | None) -> Receipt | CommandRejected:
    try:
        return _receipt(identity, answer, signed)
    except CommandRejected as refusal:
        return refusal


def _receipt(identity: str, answer: dict[str, Any], signed: SignedReceipt | None) -> Receipt:
    return Receipt(identity, int(_checked(answer)["seq"]), signed)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer. Raises: the refusal that it carries."""
    if "error" not in answer:
        return answer
    raise refusal_of(str(answer["error"]), str(answer["message"]))


def _batches(commands: Sequence[Command]) -> list[Sequence[Command]]:
    return [commands[start : start + BATCH] for start in range(0, len(commands), BATCH)]


def _written(commands: Sequence[Command]) -> str:
    """A batch as JSON."""
    return f"[{','.join(map(write_command, commands))}]"
