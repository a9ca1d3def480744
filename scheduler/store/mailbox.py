"""The mailbox of an app: a few short texts by name, beside the log, from its owner, driver and executors to each other.

A message whose name begins with `link.` is the address of something that a person may open, such as a UI.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from scheduler.model.errors import InvalidCommand
from scheduler.store.scripts import script

if TYPE_CHECKING:
    from redis import Redis

    from scheduler.store.keys import Keys

MOST_MESSAGES = 64
MOST_BYTES = 4096
"""Of a message."""
KEPT_S = 30 * 24 * 3600
"""For how long after the last message a mailbox is kept whose app has not ended."""
LINK = "link."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_ADDRESS = re.compile(r"https?://[!-~]{1,2000}")
_PUBLISH_LUA = script(__file__, "publish")


class Mailboxes:
    """The mailboxes of all apps. Errors are those of redis-py besides those named."""

    def __init__(self, store: Redis, keys: Keys) -> None:
        self._store, self._keys = store, keys

    def publish(self, app: str, name: str, text: str) -> None:
        """Leave a message, in place of an earlier one of that name. Raises: InvalidCommand for one out of bounds."""
        check_name(name)
        size = len(text.encode(errors="replace"))
        if size > MOST_BYTES:
            raise InvalidCommand(f"a message has at most {MOST_BYTES} bytes, not {size}; use a file for more")
        if name.startswith(LINK) and not _ADDRESS.fullmatch(text):
            raise InvalidCommand(f"the message {name} is a link, such as http://host:4040, not {text[:80]!r}")
        said = text.encode(errors="replace")
        if not self._store.eval(_PUBLISH_LUA, 1, self._keys.mail(app), name, said, MOST_MESSAGES, KEPT_S):
            raise InvalidCommand(f"the mailbox of {app} has {MOST_MESSAGES} messages; replace one by its name")

    def read(self, app: str, name: str) -> str | None:
        """The message of that name, None if there is none yet. Raises: InvalidCommand for what is no name."""
        check_name(name)
        found = cast("bytes | None", self._store.hget(self._keys.mail(app), name))
        return None if found is None else found.decode(errors="replace")

    def links(self, app: str) -> dict[str, str]:
        """Its links by what they lead to, sorted."""
        stored = cast("dict[bytes, bytes]", self._store.hgetall(self._keys.mail(app)))
        found = {name.decode(errors="replace"): text.decode(errors="replace") for name, text in stored.items()}
        return {name.removeprefix(LINK): found[name] for name in sorted(found) if name.startswith(LINK)}


def check_name(name: str) -> None:
    """Raises: InvalidCommand unless a message may be called so."""
    if not _NAME.fullmatch(name):
        raise InvalidCommand(
            f"the name of a message has 1 to 64 letters, digits, '.', '_', ':' or '-', not {name[:80]!r}"
        )
