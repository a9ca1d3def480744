"""Whether the store keeps what it acknowledges: its version, its settings, and what it may do when it starts again.

A server replays its append-only file as its default user. Redis and Valkey check the permissions of that user again
for each transaction in the file, and a commit is one. Redis 7.0.15 and Valkey up to 9.1.1 skip what the user may not
do, without an error: the log is empty then. So the default user has to be turned off, and still be permitted all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from redis.exceptions import RedisError, ResponseError

from scheduler.model.errors import UnsuitableStore
from scheduler.store.acl import DEFAULT_OFF, ROLES, SEES_USERS
from scheduler.store.connection import user_of
from scheduler.store.inflight import InFlight, StoreCommand
from scheduler.store.known_holes import server_of
from scheduler.store.transient import NotDurable, passes

if TYPE_CHECKING:
    from redis import Redis

_DUE_SETTINGS: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}
_DEFAULT_USER: Mapping[str, str] = {"commands": "+@all", "keys": "~*", "databases": "alldbs"}
"""What `ACL GETUSER default` has to say, as far as the server says it."""
QUESTIONS: Sequence[StoreCommand] = (
    ("CONFIG", "GET", *_DUE_SETTINGS),
    ("INFO", "persistence"),
    ("ACL", "GETUSER", "default"),
)
"""What a store is asked about its durability."""


class Durability:
    """Judges the answers of one store to `QUESTIONS`, as often as it is asked.

    A store whose file was turned off and on again has everything in it only once it has written a new one.
    """

    def __init__(self) -> None:
        self._was_off = False

    def judge(self, answers: Sequence[Any]) -> None:
        """Raises: NotDurable if the store may lose what it acknowledges; the store's own error if it is away."""
        for answer in answers:
            if isinstance(answer, RedisError) and passes(answer):
                raise answer
        configured, persistence, user = answers
        self._was_off = self._was_off or _pairs(configured).get("appendonly") == "no"
        weak = weakness(configured, user)
        if not weak and self._was_off:
            said = _lines(persistence)
            due = {"aof_rewrite_in_progress": "0", "aof_rewrite_scheduled": "0", "aof_last_bgrewrite_status": "ok"}
            if any(said.get(name, value) != value for name, value in due.items()):
                weak = "the store has not yet written to its file what it held before `appendonly yes`; it will soon"
            else:
                self._was_off = False
        if weak:
            raise NotDurable(weak)


def check_store(store: Redis, *, unsafe: bool = False, serving: bool = True) -> None:
    """Refuse a store that may lose data: too old, writes not fsynced, keys evicted, or nothing left after a restart.

    `unsafe` (for tests) checks the version only. Who does not serve asks for the settings only: the users
    of a store are nothing that everybody may read.

    Raises: UnsuitableStore naming the setting, its value and the required value; redis-py's errors if the store is
    unavailable.
    """
    if old := _too_old(store):
        raise UnsuitableStore(old)
    if unsafe:
        return
    answers = InFlight(store, QUESTIONS if serving else QUESTIONS[:1]).all()
    if weak := weakness(answers[0], answers[-1] if serving else ()):
        for answer in answers:
            if isinstance(answer, RedisError) and passes(answer):
                raise answer
        raise UnsuitableStore(weak)


def watched(store: Redis) -> str:
    """Why no master serves from the store, "" if nothing is wrong or nobody may ask. Raises: redis-py's errors."""
    with suppress(ResponseError):
        if old := _too_old(store):
            return old
    answers = InFlight(store, QUESTIONS[:: len(QUESTIONS) - 1] if _sees_users(store) else QUESTIONS[:1]).all()
    configured, user, *_ = (() if isinstance(answer, ResponseError) else answer for answer in (*answers, ()))
    return weakness(configured, user) if configured else ""


def _sees_users(store: Redis) -> bool:
    """Whether this user of the store may ask for another one: to ask in vain would stand in the store's record."""
    role = next((each for each in ROLES if each.user == user_of(store)), None)
    return role is None or SEES_USERS in role.commands.split()


def _too_old(store: Redis) -> str:
    """Which version the server has and which it needs, "" if it has one that will do. Raises: redis-py's errors."""
    name, version = server_of(cast("Any", store.info("server")))
    lowest = (7, 2) if name == "valkey" else (7, 0)
    if tuple(int(part) for part in version.split(".")[:2]) >= lowest:
        return ""
    return f"the store is {name} {version}; use version {lowest[0]}.{lowest[1]} or later"


def weakness(configured: Any, user: Any) -> str:  # noqa: ANN401 - the store's answers
    """Why the store may lose what it acknowledges, and what to do; "" if it does not.

    `configured` and `user` are its answers to the first and the last of `QUESTIONS`, or its errors.
    """
    if isinstance(configured, RedisError):
        return f"the store refuses CONFIG GET ({configured}); allow it for this user"
    settings = _pairs(configured)
    for setting, due in _DUE_SETTINGS.items():
        actual = settings.get(setting, "")
        if actual != due:
            return (
                f"the store is configured with {setting} {actual}, which can lose data; run `CONFIG SET "
                f"{setting} {due}` on it"
            )
    if isinstance(user, RedisError):
        return f"the store refuses ACL GETUSER ({user}); print its ACL file again with `fairlog store acl`"
    said = _pairs(user)
    for name, due in _DEFAULT_USER.items():
        actual = said.get(name, due)
        if actual != due:
            return (
                "the store would come back from a restart without the log: it reads its file as the default user, "
                f"which has {name} {actual or 'none'}; write the line `{DEFAULT_OFF}` into its ACL file, as `fairlog "
                f"store acl` prints it, and run `ACL SETUSER {DEFAULT_OFF.removeprefix('user ')}` on it"
            )
    return ""


def _pairs(answer: Any) -> dict[str, str]:  # noqa: ANN401 - names and values, by RESP2 or RESP3
    if isinstance(answer, dict):
        return {_text(name): _text(value) for name, value in answer.items()}
    words = [_text(part) for part in answer or ()]
    return dict(zip(words[::2], words[1::2], strict=False))


def _text(part: Any) -> str:  # noqa: ANN401 - text, or a list that is not looked at
    return part.decode(errors="replace") if isinstance(part, bytes) else str(part)


def _lines(answer: Any) -> dict[str, str]:  # noqa: ANN401 - text, or an error
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else ""
    return {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}
