"""Whether a store's server is still its primary, and its replicas are in step: asked after each replicated commit.

A primary that hangs is replaced, and may wake up. For a moment one of its replicas still follows it and has all
that it writes, while another one has been made primary and knows nothing of that. And one that was started again
counts what it sends from 0: until they are in step with it, the sentinels may take the replica that has the least
for the one that is furthest. So every server that has been the store or has followed it is known here for good: each
of them may be primary again, also where the master that asks served under it long ago and was a standby since.
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
_REST = 10
"""How many times as long as it took to ask in vain nobody asks again, if the primary has not hung meanwhile."""
_HUNG_S = 1.0
"""After so long without a word from the primary it may have been replaced, and by one that was left alone."""


class _Server(NamedTuple):
    host: str
    port: int


class Replication:
    """What is known of the replicas of `store`: one that does not follow the primary any more is asked why."""

    def __init__(self, store: Redis) -> None:
        self._store = store
        self._followers: dict[_Server, float] = {}
        """The replicas there are or were, and when to ask each again that has not answered."""
        self._awaited: dict[_Server, None] = {}
        """Those that were not in step yet since the primary was started, or became one."""
        self._reign = ""
        self._primary: dict[_Server, None] = {}
        """The server that was the primary at the last look."""
        self._looked_s = 0.0

    def confirm(self, sent: InFlight) -> bool:
        """Whether the replicas that are alive are in step with the primary, which is the server behind `sent`.

        Raises: redis-py's ConnectionError if it was replaced as far as anybody says, every connection given up:
        the next one finds the primary.
        """
        answer = sent.ask("INFO", "replication")
        if isinstance(answer, RedisError):
            sent.abandon()
            raise answer
        ours = _fields(answer.decode())
        if ours["role"] != "master":
            self._give_up(sent, "it has become a replica")
        states = dict(_attached(ours))
        if ours["master_replid"] != self._reign:
            known = (*self._followers, *self._primary, *_announced(self._store))
            self._reign, self._awaited = ours["master_replid"], dict.fromkeys(known)
            self._followers |= dict.fromkeys(known, 0.0)
        self._primary = dict.fromkeys(_address(sent))
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
        """Ask a replica that does not follow what it does instead; one that hangs is left alone for a while."""
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
        """What `server` says of itself; nothing if it does not answer at once."""
        pool = self._store.connection_pool
        known = {
            name: value
            for name, value in pool.connection_kwargs.items()
            if name in {"username", "password"} or name.startswith("ssl_")
        }
        with Redis(
            **known,
            host=server.host,
            port=server.port,
            ssl=issubclass(pool.connection_class, SSLConnection),
            socket_timeout=_ASK_S,
            socket_connect_timeout=_ASK_S,
            retry=Retry(NoBackoff(), 0),
        ) as asked:
            try:
                return {name: str(value) for name, value in asked.info("replication").items()}
            except RedisError:
                return {}

    def _give_up(self, sent: InFlight, why: str) -> NoReturn:
        sent.abandon()
        self._store.connection_pool.disconnect()
        raise StoreConnectionError(f"the server is not the store's primary any more: {why}")


def _has_replaced(theirs: dict[str, str], ours: dict[str, str]) -> bool:
    """Whether another server is primary in our place: not we ourselves, nor the one that we have replaced.

    The latter may have been started again, and then knows nothing of the one that it was; but whoever replaces
    a primary remembers it.
    """
    if theirs.get("role") != "master":
        return False
    if theirs["master_replid"] in {ours["master_replid"], ours["master_replid2"]}:
        return False
    return _remembers(theirs) or not _remembers(ours)


def _remembers(said: dict[str, str]) -> bool:
    """Whether a primary followed another one before; the id of none is all zeros."""
    return bool(said["master_replid2"].strip("0"))


def _address(sent: InFlight) -> Iterator[_Server]:
    """Where the server behind `sent` is; nothing for a Unix socket."""
    host, port = sent.server
    if port:
        yield _Server(host, int(port))


def _is_with_us(theirs: dict[str, str], ours: dict[str, str]) -> bool:
    """Whether it is we ourselves, or a replica that is in step with us under another address."""
    same = theirs.get("master_replid") == ours["master_replid"]
    return same and (theirs["role"] == "master" or theirs.get("master_link_status") == "up")


def _fields(text: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _attached(ours: dict[str, str]) -> Iterator[tuple[_Server, str]]:
    """The replicas that follow and their state, from lines like `slave0:ip=127.0.0.1,port=6380,state=online,…`."""
    for name, said in ours.items():
        if name.startswith("slave") and said.startswith("ip="):
            parts = dict(part.split("=", 1) for part in said.split(","))
            yield _Server(parts["ip"], int(parts["port"])), parts["state"]


def _announced(store: Redis) -> Iterator[_Server]:
    """The replicas that the sentinels know of; without sentinels, the servers that the URL names."""
    pool: Any = store.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    for asked in manager.sentinels if manager is not None else ():
        try:
            for replica in asked.sentinel_slaves(pool.service_name):
                yield _Server(str(replica["ip"]), int(replica["port"]))
        except RedisError:
            said = asked.connection_pool.connection_kwargs
            yield _Server(str(said["host"]), int(said["port"]))
