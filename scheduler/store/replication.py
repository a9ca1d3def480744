"""Check after each replicated commit that the server is still primary and its replicas are in sync.

Two failures make this necessary:

- A primary that hung is replaced, then resumes. For a moment a replica still follows it and confirms its writes,
  although another replica has been promoted without them.
- A restarted primary counts its replication offset from 0. Until its replicas are in sync, the sentinels may promote
  the replica with the least data.

Any former primary or replica may become primary again, even after this master has been a standby for a long time.
So all of them stay known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.store.inflight import InFlight

_ASK_S = 1.0
"""How long a server may take to answer. All are asked at once, so those that are cut off cost that once."""
_ASKED_AT_ONCE = 16
_MEANWHILE_S = 0.25
_ACCOUNT = frozenset({"username", "password", "credential_provider"})
_REST = 10
"""Back-off after a failed probe, as a multiple of its duration. A primary that hung ends the back-off."""
_HUNG_S = 1.0
"""A primary silent for this long may have been replaced, possibly by a server in back-off."""
T = TypeVar("T")
A = TypeVar("A")


class _StoreServer(NamedTuple):
    host: str
    port: int


class Replication:
    """The known replicas of `store`. One that no longer follows the primary is probed."""

    def __init__(self, store: Redis) -> None:
        self._store = store
        self._followers: dict[_StoreServer, float] = {}
        """Current and former replicas, and the time before which each is not probed again; 0 = no back-off."""
        self._awaited: dict[_StoreServer, None] = {}
        """Servers not yet in sync since the current primary started or was promoted."""
        self._reign = ""
        self._primary: dict[_StoreServer, None] = {}
        """The primary at the last check; empty before the first."""
        self._looked_s = 0.0
        self.meanwhile: Callable[[], object] = lambda: None
        """Called again and again while servers are asked that do not answer at once; what it raises ends that."""

    def confirm(self, sent: InFlight) -> bool:
        """Whether the live replicas are in sync with the primary, the server behind `sent`.

        Raises: redis-py's ConnectionError if any server reports that the primary was replaced, and all connections are
        then closed, so that the next one finds the new primary; what `meanwhile` raises.
        """
        answer = sent.ask("INFO", "replication")
        if isinstance(answer, RedisError):
            sent.abandon()
            raise answer
        ours = dict(line.split(":", 1) for line in answer.decode().splitlines() if ":" in line)
        if ours["role"] != "master":
            self._give_up(sent, "it has become a replica")
        states = dict(_attached(ours))
        if ours["master_replid"] != self._reign:
            known = (*self._followers, *self._primary, *self._announced())
            self._reign, self._awaited = ours["master_replid"], dict.fromkeys(known)
            self._followers |= dict.fromkeys(known, 0.0)
        host, port = sent.server
        self._primary = {_StoreServer(host, int(port)): None} if port else {}
        if time.monotonic() - self._looked_s > _HUNG_S:
            self._followers = dict.fromkeys(self._followers, 0.0)
        away = [server for server in self._followers if server not in states]
        due = [server for server in away if time.monotonic() >= self._followers[server]]
        for server, said in self._all(due, self._asked).items():
            self._look_after(server, *(said or ({}, _ASK_S)), sent, ours)
        self._followers |= dict.fromkeys(states, 0.0)
        for server, state in states.items():
            if state == "online":
                self._awaited.pop(server, None)
        self._looked_s = time.monotonic()
        return not self._awaited

    def _look_after(
        self, server: _StoreServer, theirs: dict[str, str], took_s: float, sent: InFlight, ours: dict[str, str]
    ) -> None:
        """Judge what a server says that does not follow the primary; one that hangs is given a back-off."""
        if _has_replaced(theirs, ours):
            self._give_up(sent, f"{server.host}:{server.port} is primary now")
        if _is_with_us(theirs, ours):
            del self._followers[server]
            self._awaited.pop(server, None)
            return
        self._followers[server] = 0.0 if theirs else time.monotonic() + (_REST - 1) * took_s
        if (theirs.get("master_host"), theirs.get("master_port")) != sent.server:
            self._awaited.pop(server, None)

    def _all(self, places: Iterable[A], ask: Callable[[A], T | None], enough: int = 0) -> dict[A, T | None]:
        """What asking each place gives, all at once; None for the rest once `enough` have given something, if not 0.

        Raises: what `meanwhile` raises.
        """
        asked = list(places)
        if not asked:
            return {}
        asking = ThreadPoolExecutor(min(len(asked), _ASKED_AT_ONCE))
        try:
            answers = {place: asking.submit(ask, place) for place in asked}
            left = set(answers.values())
            while left:
                done, left = wait(left, _MEANWHILE_S, return_when=FIRST_COMPLETED)
                given = [answer for answer in answers.values() if answer.done() and answer.result() is not None]
                if len(given) >= enough > 0:
                    break
                if not done:
                    self.meanwhile()
            return {place: answer.result() if answer.done() else None for place, answer in answers.items()}
        finally:
            asking.shutdown(wait=False, cancel_futures=True)

    def _announced(self) -> list[_StoreServer]:
        """The replicas known to the sentinels; without sentinels, the servers in the URL."""
        pool: Any = self._store.connection_pool
        manager = getattr(pool, "sentinel_manager", None)
        sentinels = {} if manager is None else {_place_of(each): each for each in manager.sentinels}
        enough = len(sentinels) // 2 + 1
        said = self._all(sentinels, lambda place: _replicas_of(sentinels[place], pool.service_name), enough)
        return [server for place, known in said.items() for server in ([place] if known is None else known)]

    def _asked(self, server: _StoreServer) -> tuple[dict[str, str], float]:
        """INFO replication of `server`, empty if it does not answer within `_ASK_S`; and how long that took (s)."""
        began_s = time.monotonic()
        return self._said(server), time.monotonic() - began_s

    def _said(self, server: _StoreServer) -> dict[str, str]:
        pool = self._store.connection_pool
        ours = pool.connection_kwargs.items()
        options = {name: value for name, value in ours if name in _ACCOUNT or name[:4] == "ssl_"}
        options |= server._asdict() | {"ssl": issubclass(pool.connection_class, SSLConnection)}
        options |= {"socket_timeout": _ASK_S, "socket_connect_timeout": _ASK_S, "retry": Retry(NoBackoff(), 0)}
        with Redis(**options) as asked:
            try:
                return {name: str(value) for name, value in asked.info("replication").items()}
            except RedisError:
                return {}

    def _give_up(self, sent: InFlight, why: str) -> NoReturn:
        sent.abandon()
        self._store.connection_pool.disconnect()
        raise StoreConnectionError(f"the server is no longer the store's primary: {why}")


def _has_replaced(theirs: dict[str, str], ours: dict[str, str]) -> bool:
    """Whether another server has replaced our primary.

    Two servers that report themselves primary do not count: our primary itself, and its restarted predecessor. A
    predecessor has lost its replication history; a successor has its predecessor's id as `master_replid2`.
    """
    if theirs.get("role") != "master":
        return False
    if theirs["master_replid"] in {ours["master_replid"], ours["master_replid2"]}:
        return False
    promoted, ours_promoted = (bool(said["master_replid2"].strip("0")) for said in (theirs, ours))
    return promoted or not ours_promoted


def _is_with_us(theirs: dict[str, str], ours: dict[str, str]) -> bool:
    """Whether it is our primary itself, or an in-sync replica known under another address."""
    same = theirs.get("master_replid") == ours["master_replid"]
    return same and (theirs["role"] == "master" or theirs.get("master_link_status") == "up")


def _attached(ours: dict[str, str]) -> Iterator[tuple[_StoreServer, str]]:
    """Attached replicas and their states, from lines like `slave0:ip=127.0.0.1,port=6380,state=online,…`."""
    for name, said in ours.items():
        if name.startswith("slave") and said.startswith("ip="):
            parts = dict(part.split("=", 1) for part in said.split(","))
            yield _StoreServer(parts["ip"], int(parts["port"])), parts["state"]


def _place_of(asked: Redis) -> _StoreServer:
    said = asked.connection_pool.connection_kwargs
    return _StoreServer(str(said["host"]), int(said["port"]))


def _replicas_of(sentinel: Redis, service: str) -> list[_StoreServer] | None:
    """The replicas that it knows; None if it does not answer, or is no sentinel but a server."""
    try:
        return [_StoreServer(str(replica["ip"]), int(replica["port"])) for replica in sentinel.sentinel_slaves(service)]
    except RedisError:
        return None
