"""Connect to the store, and check that its settings guarantee durability."""

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
"""Answer timeout, on top of a command's own blocking time; after that the store counts as unavailable."""
AT_ONCE_BYTES = 1024 * 1024
"""Send buffer of a local socket, within the system's limit. The commit of a turn of 300 apps takes 400 KiB."""
_ASK_S = 2
"""Timeout of a request for the primary's address or a server's role."""


def connect(url: str) -> Redis:
    """A client of the store at `url`.

    - `redis://`, `rediss://` and `unix://PATH` name one server.
    - `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE` names sentinels, which report the primary.
    - `redis://HOST:PORT,HOST:PORT` names several servers. The one that reports itself primary is used; if two do, none
      is used until only one does.

    The client never retries a command. The log shows whether a commit with a lost answer took place; callers repeat
    everything else. A server that does not answer within `ANSWER_S` counts as unavailable.

    Raises: UnsuitableStore if the URL has none of these forms.
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
    """A Unix socket with a send buffer for a large commit, so that sending it does not block."""

    def _connect(self) -> socket.socket:
        connected: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, AT_ONCE_BYTES)
        return connected


def clock_ms(answer: Sequence[Any]) -> int:
    """The store's clock in ms, from the answer to TIME: seconds, microseconds."""
    seconds, micros = answer
    return int(seconds) * 1000 + int(micros) // 1000


def _primary_by_sentinels(url: str, options: dict[str, Any]) -> Redis:
    account, _, rest = url.removeprefix(SENTINEL).rpartition("@")
    places, _, service = rest.partition("/")
    sentinels = [(host, port) for host, _, port in (place.rpartition(":") for place in places.split(","))]
    if not service or not all(host and port.isdecimal() for host, port in sentinels):
        raise UnsuitableStore(
            f"the URL of a store behind sentinels has the form {SENTINEL}[USER:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE "
            f"(user and password of the store), not {url!r}"
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
    """Connections to the store's primary."""

    def close(self) -> None:
        """Close them, and the connections to the sentinels."""
        super().close()
        for asked in self.sentinel_manager.sentinels:
            asked.close()


class _Servers(Sentinel):
    """Finds the primary among several servers by asking each for its role; takes the place of sentinels."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the primary. Raises: MasterNotFoundError unless exactly one server reports that role."""
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
            raise MasterNotFoundError(f"{both} each report the role of primary; make all but one of them replicas")
        why = f" ({'; '.join(silent)})" if silent else ""
        raise MasterNotFoundError(f"none of {service_name} reports the role of primary{why}")


def check_store(store: Redis, *, unsafe: bool = False) -> None:
    """Refuse a store that may lose data: too old, writes not fsynced, or keys evicted.

    `unsafe` (for tests) checks the version only.

    Raises: UnsuitableStore naming the setting, its value and the required value; redis-py's errors if the store is
    unavailable.
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
