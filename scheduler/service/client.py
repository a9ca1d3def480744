"""The client: puts commands into the inbox and waits for the answers, which come after the commit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from scheduler.model.commands import BATCH, check_variables, write_command
from scheduler.model.errors import CommandRejected, DuplicateApp, NoMaster, refusal_of
from scheduler.store.connection import connect
from scheduler.store.keys import Keys, bell_id, queue_key
from scheduler.store.secrets import seal
from scheduler.store.transient import passes

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script

    from scheduler.model.commands import Command, SubmitApp

SEND_LUA = """
for i = 2, #ARGV, 4 do
  redis.call('XADD', KEYS[1], '*', 'id', ARGV[i], ARGV[i+1], ARGV[i+2], 'reply', ARGV[i+3])
end
if redis.call('LLEN', KEYS[2]) == 0 then redis.call('RPUSH', KEYS[2], ARGV[1]) end
"""
"""KEYS: inbox, the master's RQ queue. ARGV: the bell's job id, then (id, kind, body, reply) of each message;
`reply` names the list for its answer, empty for none. Sending and ringing are one atomic step."""

ASK_LUA = """
local entry = redis.call('GET', KEYS[3])
if not entry or #redis.call('XRANGE', KEYS[1], entry, entry) == 0 then
  entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[2], ARGV[3], ARGV[4], 'reply', ARGV[2])
  redis.call('SET', KEYS[3], entry, 'PX', ARGV[5])
end
if redis.call('LLEN', KEYS[2]) == 0 then redis.call('RPUSH', KEYS[2], ARGV[1]) end
"""
"""Sends one message, unless it is in the inbox already, and rings. KEYS: inbox, the master's RQ queue, the key that
remembers the entry. ARGV: the bell's job id, the message's id, kind and body, how long to remember (ms).

A message whose answer was lost has left the inbox, and is sent again."""

PUT_ASIDE_LUA = """
local there = redis.call('HLEN', KEYS[1])
for i = 2, #ARGV, 2 do
  if there > 0 and redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i+1] then return 0 end
end
if there > 0 then return 2 * there == #ARGV - 1 and 1 or 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 2
"""
"""Stores an app's secrets. KEYS: its secrets; ARGV: expiry (s), then names and values in turn.
-> 2 if they were stored, 1 if the same ones were there already, 0 if others were."""

RESEND_S = 3.0
UNCLAIMED_SECRETS_S = 24 * 3600
"""How long the secrets of an app are kept that is never submitted."""
RECONNECT_S = 0.2


class Receipt(NamedTuple):
    """A command was carried out: `seq` is the position of its last event, 0 if it had none."""

    command_id: str
    seq: int


class Client:
    """Sends commands to the master of `cluster` through `store` (a connection or a URL).

    With a `secret_key` of 32 bytes, the store holds the secrets of apps sealed (`scheduler.store.secrets`).
    A command keeps its id until it is answered, so asking again after a lost answer does not carry it out twice.
    """

    def __init__(
        self, store: Redis | str, cluster: str = "default", *, timeout_s: float = 30, secret_key: bytes | None = None
    ) -> None:
        self.store: Redis = connect(store) if isinstance(store, str) else store
        self.keys = Keys(cluster)
        self.timeout_s = timeout_s
        self._secret_key = secret_key
        self._bell = bell_id(self.keys.master_queue)
        self._queue = queue_key(self.keys.master_queue)
        self._send: Script = self.store.register_script(SEND_LUA)
        self._ask_for: Script = self.store.register_script(ASK_LUA)
        self._put_secrets: Script = self.store.register_script(PUT_ASIDE_LUA)

    def send(self, command: Command, *, command_id: str | None = None) -> Receipt:
        """Carry out `command`; returns after the commit. Raises: CommandRejected; NoMaster after `timeout_s`."""
        identity = command_id or _new_id()
        return _receipt(identity, self._ask(identity, "command", write_command(command)))

    def send_many(self, commands: Sequence[Command]) -> list[Receipt | CommandRejected]:
        """Carry out `commands` in order, in batches; the result of a refused one is its refusal. Raises: NoMaster."""
        return [outcome for part in _batches(commands) for outcome in self.send_batch(part)]

    def send_batch(
        self, commands: Sequence[Command], *, command_id: str | None = None
    ) -> list[Receipt | CommandRejected]:
        """As `send_many`, at most `BATCH` commands under one id; that of command i, from 0, is `ID.i`."""
        identity = command_id or _new_id()
        answers = _checked(self._ask(identity, "command", _written(commands)))["answers"]
        return [_outcome(f"{identity}.{number}", answer) for number, answer in enumerate(answers)]

    def notify(self, *commands: Command) -> None:
        """Put `commands` into the inbox in order, in one step, without waiting for an answer."""
        self._put([text for part in _batches(commands) for text in (_new_id(), "command", _written(part), "")])

    def hear(self) -> None:
        """Return once the active master has answered an empty batch. Raises: NoMaster."""
        self._ask(_new_id(), "command", "[]")

    def submit(self, command: SubmitApp, secrets: Mapping[str, str], *, command_id: str | None = None) -> Receipt:
        """Submit an app; store its secrets first, never in the log; delete them if it is refused. Raises: as `send`."""
        ours = self.put_aside(command.app, secrets)
        try:
            return self.send(command, command_id=command_id)
        except CommandRejected:
            if ours:
                self.forget(command.app)
            raise

    def forget(self, app: str) -> None:
        """Delete the secrets of an app that is not submitted."""
        self.store.delete(self.keys.secrets(app))

    def put_aside(self, app: str, values: Mapping[str, str]) -> bool:
        """Store an app's secrets; whether this call stored them. Raises: DuplicateApp if others are stored."""
        if not values:
            return False
        check_variables((part for item in values.items() for part in item), len(values))
        sealed = seal(self._secret_key, self.keys.cluster, app, values)
        secrets = [part for item in sealed.items() for part in item]
        deadline = time.monotonic() + self.timeout_s
        unheard = False
        while True:
            try:
                put = self._put_secrets(keys=[self.keys.secrets(app)], args=[UNCLAIMED_SECRETS_S, *secrets])
            except RedisError as error:
                unheard = True
                self._wait_for_store(error, deadline)
                continue
            if not put:
                raise DuplicateApp(app)
            return unheard or put == 2

    def _ask(self, identity: str, kind: str, body: str) -> dict[str, Any]:
        """Send one message and wait; send it again under the same id if it has left the inbox without an answer."""
        places = [self.keys.inbox, self._queue, self.keys.sent(identity)]
        kept_ms = int(2000 * (self.timeout_s + RESEND_S))
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                self._ask_for(keys=places, args=[self._bell, identity, kind, body, kept_ms])
                wait_s = max(0.01, min(deadline - time.monotonic(), RESEND_S))  # BLPOP reads 0 as forever
                popped = self.store.blpop([self.keys.reply(identity)], wait_s)
                if popped is not None:
                    return dict(json.loads(popped[1]))
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

    def _put(self, messages: Sequence[str]) -> None:
        self._send(keys=[self.keys.inbox, self._queue], args=[self._bell, *messages])


def _new_id() -> str:
    """128 random bits."""
    return os.urandom(16).hex()


def _outcome(identity: str, answer: dict[str, Any]) -> Receipt | CommandRejected:
    try:
        return _receipt(identity, answer)
    except CommandRejected as refusal:
        return refusal


def _receipt(identity: str, answer: dict[str, Any]) -> Receipt:
    return Receipt(identity, int(_checked(answer)["seq"]))


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
