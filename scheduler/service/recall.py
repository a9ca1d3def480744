"""What a master remembers of the messages that it has carried out, beyond what the state does.

A command is carried out after it was sent. The state remembers the last 10,000 commands that caused events, and when
the newest forgotten one was carried out: what was sent later is new unless it is remembered. For older messages, as
they come out of long lanes, the master remembers the last `REMEMBERED` messages that it carried out itself, since it
folded the log. A message of before that is refused; it may be sent anew.

It remembers a digest of what each of them said as well, so that another body under the same id is told apart.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.inbox import Message

REMEMBERED = 100_000


class _CarriedOut(NamedTuple):
    """When a message was carried out (ms), the digest of its body, and the id of its last command with events."""

    at: int
    body: bytes
    command: str


class Recall:
    """The messages that this master has carried out, all of them if they were sent after `since` (ms)."""

    def __init__(self) -> None:
        self._since = 0
        self._known: OrderedDict[str, _CarriedOut] = OrderedDict()
        """By the id of the message, the oldest first."""

    def forget(self, since: int) -> None:
        """Forget everything: the log was folded again, up to the time `since` (ms)."""
        self._since = since
        self._known.clear()

    def add(self, message: Message, state: ClusterState) -> None:
        """Remember a message that `state` has folded, if it has caused anything."""
        caused = next((each for each, _ in reversed(message.commands) if each in state.commands), None)
        if caused is None:
            return
        self._known[message.id] = _CarriedOut(state.at, _digest(message.body), caused)
        while len(self._known) > REMEMBERED:
            _, oldest = self._known.popitem(last=False)
            self._since = max(self._since, oldest.at)

    def is_doubtful(self, message: Message, state: ClusterState) -> bool:
        """Whether the signed message may have been carried out, and the state does not remember all of it."""
        if message.sent > state.forgotten_at or (message.sent > self._since and message.id not in self._known):
            return False
        return any(identity not in state.commands for identity, _ in message.commands)

    def repeats(self, message: Message) -> bool:
        """Whether a message with this id and this body was carried out."""
        known = self._known.get(message.id)
        return known is not None and known.body == _digest(message.body)

    def other(self, message: Message, state: ClusterState) -> int | None:
        """The position of what was carried out under the id of the message if it had another body, else None."""
        known = self._known.get(message.id)
        if known is None or known.body == _digest(message.body):
            return None
        return state.commands.get(known.command)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()
