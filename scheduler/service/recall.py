"""Whether a signed message may have been carried out before, although the state has forgotten its commands.

A command is carried out after it was sent. The state remembers the last 10,000 commands that caused events, and when
the newest forgotten one was carried out: what was sent later is new unless it is remembered. For older messages, as
they come out of long lanes, the master remembers the last `REMEMBERED` messages that it carried out itself, since it
folded the log. A message of before that is refused; it may be sent anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.rules.state import ClusterState
    from scheduler.service.inbox import Message

REMEMBERED = 100_000


class Recall:
    """The messages that this master has carried out, all of them if they were sent after `since` (ms)."""

    def __init__(self) -> None:
        self._since = 0
        self._known: OrderedDict[str, int] = OrderedDict()
        """Message id -> when it was carried out (ms), the oldest first."""

    def forget(self, since: int) -> None:
        """Forget everything: the log was folded again, up to the time `since` (ms)."""
        self._since = since
        self._known.clear()

    def add(self, messages: Iterable[Message], state: ClusterState) -> None:
        """Remember the signed messages of a turn that `state` has folded, if they have caused anything."""
        for message in messages:
            if message.sent and any(identity in state.commands for identity, _ in message.commands):
                self._known[message.id] = state.at
        while len(self._known) > REMEMBERED:
            _, at = self._known.popitem(last=False)
            self._since = max(self._since, at)

    def is_doubtful(self, message: Message, state: ClusterState) -> bool:
        """Whether the signed message may have been carried out, and the state does not remember all of it."""
        if message.sent > state.forgotten_at or (message.sent > self._since and message.id not in self._known):
            return False
        return any(identity not in state.commands for identity, _ in message.commands)
