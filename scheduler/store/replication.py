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
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

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
_ACCOUNT = frozenset({"username", "password", "credential_provider"})
_REST = 10
"""Back-off after a failed probe, as a multiple of its duration. A primary that hung ends the back-off."""
_HUNG_S = 1.0
"""A primary silent for this long may have been replaced, possibly by a server in back-off."""


class _Server(NamedTuple):
    host: str
    port: int


class Replication:
    """The known replicas of `store`. One that no longer follows the primary is probed."""

    def __init__(self, store: Redis) -> None:
        self._store = store
        self._followers: dict[_Server, float] = {}
        """Current and former replicas, and the time before which each is not probed again; 0 = no back-off."""
        self._awaited: dict[_Server, None] = {}
        """Servers not yet in sync since the current primary started or was promoted."""
        self._reign = ""
        self._primary: dict[_Server, None] = {}
        """The primary at the last check; empty before the first."""
        self._looked_s = 0.0

    def confirm(self, sent: InFlight) -> bool:
        """Whether the live replicas are in sync with the primary, the server behind `sent`.

        Raises: redis-py's ConnectionError if any server reports that the primary was replaced. All connections are
        then closed, so that the next one finds the new primary.
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
            known = (*self._followers, *self._primary, *_announced(self._store))
            self._reign, self._awaited = ours["master_replid"], dict.fromkeys(known)
            self._followers |= dict.fromkeys(known, 0.0)
        host, port = sent.server
        self._primary = {_Server(host, int(port)): None} if port else {}
        if time.monotonic() - self._looked_s > _HUNG_S:
            self._followers = dict.fromkeys(self._followers, 0.0)
        for server in [server for server in self._followers if server not in states]:
            self._look_after(server, sent, ours)
        self._followers |= dict.fromkeys(states, 0.0)
        for server, state in states.items():
            if state == "online":
                self._awaited.pop(server, None)
        self._looked_s = time.monotonic()
        return not self._awaited

    def _look_after(self, server: _Server, sent: InFlight, ours: dict[str, str]) -> None:
        """Probe a replica that does not follow the primary; one that hangs is given a back-off."""
        began_s = time.monotonic()
        if began_s < self._followers[server]:
            return
        theirs = self._asked(server)
        if _has_replaced(theirs, ours):
            self._give_up(sent, f"{server.host}:{server.port} is primary now")
        if _is_with_us(theirs, ours):
            del self._followers[server]
            self._awaited.pop(server, None)
            return
        took_s = time.monotonic() - began_s
        self._followers[server] = 0.0 if theirs else began_s + _REST * took_s
        if (theirs.get("master_host"), theirs.get("master_port")) != sent.server:
            self._awaited.pop(server, None)

    def _asked(self, server: _Server) -> dict[str, str]:
        """INFO replication of `server`; empty if it does not answer within `_ASK_S`."""
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


def _attached(ours: dict[str, str]) -> Iterator[tuple[_Server, str]]:
    """Attached replicas and their states, from lines like `slave0:ip=127.0.0.1,port=6380,state=online,…`."""
    for name, said in ours.items():
        if name.startswith("slave") and said.startswith("ip="):
            parts = dict(part.split("=", 1) for part in said.split(","))
            yield _Server(parts["ip"], int(parts["port"])), parts["state"]


def _announced(store: Redis) -> Iterator[_Server]:
    """The replicas known to the sentinels; without sentinels, the servers in the URL."""
    pool: Any = store.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    for asked in manager.sentinels if manager is not None else ():
        try:
            for replica in asked.sentinel_slaves(pool.service_name):
                yield _Server(str(replica["ip"]), int(replica["port"]))
        except RedisError:
            said = asked.connection_pool.connection_kwargs
            yield _Server(str(said["host"]), int(said["port"]))
