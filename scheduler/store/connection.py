"""How the store is reached, and whether it is one that keeps the promises."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection, parse_url
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from scheduler.model.errors import UnsuitableStore
from scheduler.store.transient import passes

SENTINEL = "redis+sentinel://"


ANSWER_S = 10
"""How long the store may take for one answer, beyond what it was asked to wait, before it counts as away."""


AT_ONCE_BYTES = 1024 * 1024
"""What a local socket takes without being waited for, as far as the system allows; a turn of 300 apps has 400 KiB."""


_ASK_S = 2
"""How long a server may take to say which one is the store's primary."""


def connect(url: str) -> Redis:
    """A connection to the store at `url`.

    `redis://`, `rediss://` and `unix://PATH` name a server; `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE`
    names the one that its sentinels say is primary, `redis://HOST:PORT,HOST:PORT` the one of these that says
    so itself. The connection never repeats a command by itself: whether a commit whose answer was lost took
    place is settled by reading the log, and everything else is taken up again by the caller's own loop. A
    server that hangs counts as away after a while.

    Raises: UnsuitableStore if the URL is of no known form.
    """
    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": 5,
        "socket_timeout": ANSWER_S,
        "health_check_interval": 0,
    }
    if url.startswith(SENTINEL):
        return _primary_by_sentinels(url, options)
    try:
        if "," in url.partition("://")[2].partition("/")[0].rpartition("@")[2]:
            return _primary_of(url, options)
        if url.startswith("unix://"):
            options["connection_class"] = _LocalConnection
        return Redis.from_url(url, **options)
    except ValueError as error:
        raise UnsuitableStore(
            f"the store's URL must begin with redis://, rediss://, unix:// or {SENTINEL}, not {url!r}"
        ) from error


class _LocalConnection(UnixDomainSocketConnection):
    """A connection within a machine that takes a large turn's commit at once, so that its sender can go on."""

    def _connect(self) -> socket.socket:
        connected: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, AT_ONCE_BYTES)
        return connected


def clock_ms(answer: Sequence[Any]) -> int:
    """The store's time in ms, from what it answers to TIME: seconds, and microseconds."""
    seconds, micros = answer
    return int(seconds) * 1000 + int(micros) // 1000


def _primary_by_sentinels(url: str, options: dict[str, Any]) -> Redis:
    account, _, rest = url.removeprefix(SENTINEL).rpartition("@")
    places, _, service = rest.partition("/")
    sentinels = [(host, port) for host, _, port in (place.rpartition(":") for place in places.split(","))]
    if not service or not all(host and port.isdecimal() for host, port in sentinels):
        raise UnsuitableStore(
            f"the URL of a store behind sentinels is {SENTINEL}HOST:PORT,HOST:PORT/SERVICE, "
            f"with [USER:PASSWORD@] of the store before the first host, not {url!r}"
        )
    user, _, password = account.partition(":")
    asking = {**options, "socket_connect_timeout": _ASK_S, "socket_timeout": _ASK_S}
    sentinel = Sentinel([(host, int(port)) for host, port in sentinels], sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    account_of = {"username": user or None, "password": password or None}
    return _master_for(sentinel, service, {**account_of, **options})


def _primary_of(url: str, options: dict[str, Any]) -> Redis:
    scheme, _, rest = url.partition("://")
    account, at, behind = rest.rpartition("@")
    places, slash, more = behind.partition("/")
    said: dict[str, Any] = {**options}
    servers = []
    for place in places.split(","):
        said |= parse_url(f"{scheme}://{account}{at}{place}{slash}{more}")  # type: ignore[no-untyped-call]
        servers.append((said.pop("host"), said.pop("port", 6379)))
    said["ssl"] = said.pop("connection_class", None) is not None
    asking = {**said, "socket_connect_timeout": _ASK_S, "socket_timeout": _ASK_S}
    asked = _Servers(servers, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    return _master_for(asked, places, said)


def _master_for(sentinel: Sentinel, service: str, options: dict[str, Any]) -> Redis:
    found: Redis = sentinel.master_for(service, connection_pool_class=_Pool, **options)  # type: ignore[no-untyped-call]
    return found


class _Pool(SentinelConnectionPool):
    """Connections to the store's primary; closed, so are those to whoever was asked which one that is."""

    def close(self) -> None:
        """Close all of them."""
        super().close()
        for asked in self.sentinel_manager.sentinels:
            asked.close()


class _Servers(Sentinel):
    """Servers of which one is the store's primary, as they say themselves, where no sentinels are asked."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """The host and port of the primary. Raises: MasterNotFoundError if it is not plain which one that is."""
        found, silent = [], []
        for server in self.sentinels:
            place = server.connection_pool.connection_kwargs
            try:
                role: Any = server.role()
            except RedisError as error:
                silent.append(str(error))
                continue
            if role[0] == b"master":
                found.append((str(place["host"]), int(place["port"])))
        if len(found) == 1:
            return found[0]
        if found:
            both = " and ".join(f"{host}:{port}" for host, port in found)
            raise MasterNotFoundError(
                f"{both} both report that they are the primary; make all but one of them replicas"
            )
        why = f" ({'; '.join(silent)})" if silent else ""
        raise MasterNotFoundError(f"none of {service_name} reports that it is the primary{why}")


def check_store(store: Redis, *, unsafe: bool = False) -> None:
    """Refuse a store that would break the promises: a version too old, writes not fsynced, keys evicted.

    `unsafe` (for tests) accepts any store that answers and is new enough to run the commit.

    Raises: UnsuitableStore naming the setting, what it is and what it must be; redis-py's errors if it is away.
    """
    info: Any = store.info("server")
    name, lowest = ("valkey", (7, 2)) if "valkey_version" in info else ("redis", (7, 0))
    version = str(info[f"{name}_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < lowest:
        raise UnsuitableStore(f"the store is {name} {version}; use version {lowest[0]}.{lowest[1]} or later")
    if unsafe:
        return
    for setting, due in _DUE_SETTINGS.items():
        try:
            actual = store.config_get(setting).get(setting)
        except ResponseError as error:
            if passes(error):
                raise
            raise UnsuitableStore(f"the store refuses CONFIG GET ({error}); allow it for this user") from error
        if actual != due:
            raise UnsuitableStore(
                f"the store is configured with {setting} {actual}, which can lose data; run `CONFIG SET "
                f"{setting} {due}` on it"
            )


_DUE_SETTINGS: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}
