"""How everybody asks the scheduler for something: a command goes into the inbox, its answer comes after the commit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from scheduler.model.commands import BATCH, write_command
from scheduler.model.errors import CommandRejected, DuplicateApp, NoMaster, refusal_of
from scheduler.store.connection import connect
from scheduler.store.keys import Keys, bell_id, queue_key
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
`reply` is the id that names the list its answer goes to, empty where none is awaited.

Putting a message in and ringing are one step: no client can die between the two."""


ASK_LUA = """
local entry = redis.call('GET', KEYS[3])
if not entry or #redis.call('XRANGE', KEYS[1], entry, entry) == 0 then
  entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[2], ARGV[3], ARGV[4], 'reply', ARGV[2])
  redis.call('SET', KEYS[3], entry, 'PX', ARGV[5])
end
if redis.call('LLEN', KEYS[2]) == 0 then redis.call('RPUSH', KEYS[2], ARGV[1]) end
"""
"""Puts one message in, unless it waits there already, and rings. KEYS: inbox, the master's RQ queue, what remembers
the entry. ARGV: the bell's job id, the message's id, kind and body, how long to remember (ms).

A message that was answered without the client's hearing of it has left the inbox, and is put in again."""

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
"""Puts an app's variables aside. KEYS: its secrets; ARGV: for how long (s), then names and values by turns.
-> 2 if they were, 1 if the same ones lie there already, 0 if others do."""

RESEND_S = 3.0
UNCLAIMED_SECRETS_S = 24 * 3600
"""How long values are kept for an app that is never submitted; the master keeps those of a submitted one."""
RECONNECT_S = 0.2


class Receipt(NamedTuple):
    """A command was carried out: `seq` is the log position of the last event it caused, 0 if it changed nothing."""

    command_id: str
    seq: int


class Client:
    """Sends commands to the master of `cluster` through `store` (a connection or a URL).

    A command keeps its id until it is answered, so a client that lost the answer may ask again
    without the command being carried out twice.
    """

    def __init__(self, store: Redis | str, cluster: str = "default", *, timeout_s: float = 30) -> None:
        self.store: Redis = connect(store) if isinstance(store, str) else store
        self.keys = Keys(cluster)
        self.timeout_s = timeout_s
        self._bell = bell_id(self.keys.master_queue)
        self._queue = queue_key(self.keys.master_queue)
        self._send: Script = self.store.register_script(SEND_LUA)
        self._ask_for: Script = self.store.register_script(ASK_LUA)
        self._put_secrets: Script = self.store.register_script(PUT_ASIDE_LUA)

    def send(self, command: Command, *, command_id: str | None = None) -> Receipt:
        """Have `command` carried out; returns once it is committed.

        Raises: CommandRejected (its subclass says why), NoMaster if no answer came within `timeout_s`.
        """
        identity = command_id or _new_id()
        answer = self._ask(identity, "command", write_command(command))
        return _receipt(identity, answer)

    def send_many(self, commands: Sequence[Command]) -> list[Receipt | CommandRejected]:
        """Carry out `commands` in their order, in batches; a refused one leaves its refusal in its place.

        Raises: NoMaster if an answer did not come within `timeout_s`.
        """
        outcomes: list[Receipt | CommandRejected] = []
        for part in _batches(commands):
            identity = _new_id()
            answers = _checked(self._ask(identity, "command", _written(part)))["answers"]
            outcomes += [_outcome(f"{identity}.{number}", answer) for number, answer in enumerate(answers)]
        return outcomes

    def notify(self, *commands: Command) -> None:
        """Put `commands` into the inbox, in their order and all at once, without waiting for an answer."""
        self._put([text for part in _batches(commands) for text in (_new_id(), "command", _written(part), "")])

    def view(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON values
        """What the serving master answers to the question `name` (`scheduler.rules.views`), as JSON values.

        Raises: CommandRejected if it asks for something unknown, NoMaster if no answer came in time.
        """
        body = json.dumps({"name": name, "arguments": arguments})
        return _checked(self._ask(_new_id(), "view", body))["view"]

    def submit(self, command: SubmitApp, secrets: Mapping[str, str]) -> Receipt:
        """Have an app queued; the values of its environment variables are put aside first, never into the log.

        Raises: as `send`; the values are forgotten again if the command is refused.
        """
        if not secrets:
            return self.send(command)
        ours = self._put_aside(command.app, [os.fsencode(part) for item in secrets.items() for part in item])
        try:
            return self.send(command)
        except CommandRejected:
            if ours:
                self.store.delete(self.keys.secrets(command.app))
            raise

    def _put_aside(self, app: str, secrets: Sequence[bytes]) -> bool:
        """Whether it was us who put the variables aside, through any outage of the store within `timeout_s`.

        Raises: DuplicateApp if others lie there.
        """
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
        """Put one message in and wait; while no answer comes, see to it that it is still there, under the same id.

        An answer can be lost with the master or the store that was about to give it.
        """
        places = [self.keys.inbox, self._queue, self.keys.sent(identity)]
        kept_ms = int(2000 * (self.timeout_s + RESEND_S))
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                self._ask_for(keys=places, args=[self._bell, identity, kind, body, kept_ms])
                popped = self.store.blpop([self.keys.reply(identity)], _left(deadline, RESEND_S))
                if popped is not None:
                    return _answer(popped[1])
            except RedisError as error:
                self._wait_for_store(error, deadline)
            if time.monotonic() >= deadline:
                raise self._no_master()

    def _wait_for_store(self, error: RedisError, deadline: float) -> None:
        """Return when it is worth asking again. Raises: the error, if it does not pass, or at the deadline."""
        if not passes(error) or time.monotonic() + RECONNECT_S > deadline:
            raise error
        time.sleep(RECONNECT_S)

    def _put(self, messages: Sequence[str]) -> None:
        self._send(keys=[self.keys.inbox, self._queue], args=[self._bell, *messages])

    def _no_master(self) -> NoMaster:
        return NoMaster(f"no master answered within {self.timeout_s:g} s; `fairlog status` shows whether one is active")


def _new_id() -> str:
    """An id that nobody else has made: 128 random bits."""
    return os.urandom(16).hex()


def _left(deadline: float, at_most: float) -> float:
    """Seconds to block for: BLPOP takes 0 for ever, so never that."""
    return max(0.01, min(deadline - time.monotonic(), at_most))


def _answer(text: bytes | str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text)
    return answer


def _outcome(identity: str, answer: dict[str, Any]) -> Receipt | CommandRejected:
    try:
        return _receipt(identity, answer)
    except CommandRejected as refusal:
        return refusal


def _receipt(identity: str, answer: dict[str, Any]) -> Receipt:
    return Receipt(identity, int(_checked(answer)["seq"]))


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, or the refusal that it carries, raised as the class that the master raised."""
    if "error" not in answer:
        return answer
    raise refusal_of(str(answer["error"]), str(answer["message"]))


def _batches(commands: Sequence[Command]) -> list[Sequence[Command]]:
    return [commands[start : start + BATCH] for start in range(0, len(commands), BATCH)]


def _written(commands: Sequence[Command]) -> str:
    """What the inbox holds of a batch."""
    return f"[{','.join(map(write_command, commands))}]"
