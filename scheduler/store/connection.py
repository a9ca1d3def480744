"""Connect to the store, and say what makes it less safe than it could be."""

from __future__ import annotations

import math
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool, SentinelManagedConnection
from redis.utils import SENTINEL as ITS_OWN

from scheduler.model.errors import UnsuitableStore
from scheduler.store.known_holes import known_holes, server_of
from scheduler.store.lost import signs_of_life

SENTINEL, SENTINEL_TLS = "redis+sentinel://", "rediss+sentinel://"
PASSWORD_FILE = "FAIRLOG_STORE_PASSWORD_FILE"  # noqa: S105 - the name of a variable
"""Environment variable: the file with the password of the user in the URL, if the URL has none."""
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
ANSWER_S = 10
"""Answer timeout, on top of a command's own blocking time; after that the store counts as unavailable."""
LOOK_S = 1.0
"""After so long without an answer, and then as often, sentinels are asked whether the server is still the primary."""
AT_ONCE_BYTES = 1024 * 1024
"""Send buffer of a local socket, within the system's limit. The commit of a turn of 300 apps takes 400 KiB."""
MOST_CONNECTIONS = 1_000
"""The most connections of a process: more than any has threads. redis-py's own limit is 100, and an API server has more
threads, whose calls beyond that would fail at once, heartbeats among them."""
_ASK_S = 2
"""Timeout of a request for the primary's address or a server's role."""
_AGAIN_S = 0.25
"""After so long without an answer from any more sentinels, those that have answered are asked again."""
NO_MAJORITY = "have to name the primary"
"""Part of what is said where no majority of sentinels does."""
_ASKED_AT_ONCE = 16
"""How many sentinels are asked at the same time."""
SPARE_CONNECTIONS = 0.25
"""The part of the store's connections that should be free."""


def connect(url: str) -> Redis:
    """A client of the store at `url`.

    - `redis://`, `rediss://` and `unix://PATH` name one server.
    - `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE` names sentinels. The primary is the one that a majority names, of
      these sentinels and all that they know.
    - `redis://HOST:PORT,HOST:PORT` names several servers. The one that reports itself primary is used; if two do, none
      is used until only one does.

    `rediss://` and `rediss+sentinel://` use TLS: the server's certificate must name its host and be signed by an
    authority of the system, or one in the file that `?ssl_ca_certs=FILE` names. `ssl_certfile` and `ssl_keyfile` name a
    certificate of the client. `USER@` without a password takes it from the file that `FAIRLOG_STORE_PASSWORD_FILE`
    names, anew for each connection.

    The client never retries a command. The log shows whether a commit with a lost answer took place; callers repeat
    everything else. A server that does not answer within `ANSWER_S` counts as unavailable, one whose machine gives no
    sign of life within `lost.LOST_MS`, and one that hangs once another is the primary.

    Raises: UnsuitableStore if the URL has none of these forms, or the file cannot be read.
    """
    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": 5,
        "socket_timeout": ANSWER_S,
        "health_check_interval": 0,
        "max_connections": MOST_CONNECTIONS,
    }
    if not url.startswith("unix://"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": signs_of_life()}
    if url.startswith("rediss"):
        _refuse_unchecked(url)
        options |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    if (account := _account_beside(url)) is not None:
        options["credential_provider"] = account
        url = url.replace(f"://{_account_in(url)}@", "://", 1)
    if url.startswith((SENTINEL, SENTINEL_TLS)):
        return _primary_by_sentinels(url, options)
    try:
        if "," in url.partition("://")[2].partition("/")[0].rpartition("@")[2]:
            return _primary_of(url, options)
        if url.startswith("unix://"):
            options["connection_class"] = _LocalConnection
        return Redis.from_url(url, **options)
    except ValueError as error:
        raise UnsuitableStore(
            f"the store's URL must begin with redis://, rediss://, {SENTINEL}, {SENTINEL_TLS} or unix://, not {url!r}"
        ) from error


def _refuse_unchecked(url: str) -> None:
    """Raises: UnsuitableStore if the URL turns off a check of the server's certificate."""
    asked = {name: value.lower() for name, value in parse_qsl(urlsplit(url).query)}
    checked = {"ssl_cert_reqs": ("required", "cert_required"), "ssl_check_hostname": ("true", "yes", "1")}
    for name, right in checked.items():
        if asked.get(name, right[0]) not in right:
            raise UnsuitableStore(
                f"the store's URL must not say {name}={asked[name]}: certificates and host names are always checked; "
                "name the authority that signed the store's certificate with ?ssl_ca_certs=FILE"
            )


class AccountBeside(CredentialProvider):
    """A user of the store, whose password a file holds: it is read for each connection, so a new one needs no restart.

    Raises: AuthenticationError from `get_credentials` if the file cannot be read.
    """

    def __init__(self, user: str, path: Path) -> None:
        self.user, self._path = user, path

    def get_credentials(self) -> tuple[str, str]:
        """The user and its present password."""
        try:
            return self.user, self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AuthenticationError(f"{PASSWORD_FILE} names {self._path}, which cannot be read: {error}") from error


def user_of(store: Redis) -> str:
    """The user of the store as which this connects; "" without one."""
    options = store.connection_pool.connection_kwargs
    account = options.get("credential_provider")
    return account.user if isinstance(account, AccountBeside) else options.get("username") or ""


def _account_in(url: str) -> str:
    """The URL's `USER` or `USER:PASSWORD`, as it is written there."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[0]


def _account_beside(url: str) -> AccountBeside | None:
    """The URL's user, if a file holds its password; None if the URL has no user, or a password."""
    account = _account_in(url)
    path = os.environ.get(PASSWORD_FILE)
    if not path or not account or ":" in account:
        return None
    found = AccountBeside(unquote(account), Path(path))
    try:
        found.get_credentials()
    except AuthenticationError as error:
        raise UnsuitableStore(str(error)) from error
    return found


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
    scheme, _, behind = url.partition("://")
    behind, _, query = behind.partition("?")
    account, _, rest = behind.rpartition("@")
    places, _, service = rest.partition("/")
    if scheme.startswith("rediss"):
        options |= {"ssl": True, **{name: value for name, value in parse_qsl(query) if name in _TLS_FILES}}
    sentinels = [(host, port) for host, _, port in (place.rpartition(":") for place in places.split(","))]
    if not service or not all(host and port.isdecimal() for host, port in sentinels):
        raise UnsuitableStore(
            f"the URL of a store behind sentinels has the form {SENTINEL}[USER:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE "
            f"(user and password of the store), not {url!r}"
        )
    user, _, password = account.partition(":")
    asking = {**options, "socket_connect_timeout": _ASK_S, "socket_timeout": _ASK_S, "credential_provider": None}
    sentinel = _Sentinels([(host, int(port)) for host, port in sentinels], sentinel_kwargs=asking)
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
    asked = _StoreServers(servers, sentinel_kwargs=asking)
    return _master_for(asked, places, said)


def _master_for(sentinel: Sentinel, service: str, options: dict[str, Any]) -> Redis:
    options["connection_class"] = _WatchedByTls if options.pop("ssl", False) else _Watched
    found: Redis = sentinel.master_for(service, connection_pool_class=_PrimaryConnections, **options)  # type: ignore[no-untyped-call]
    return found


class _PrimaryConnections(SentinelConnectionPool):
    """Connections to the store's primary."""

    def close(self) -> None:
        """Close them, and the connections to the sentinels."""
        super().close()
        for asked in self.sentinel_manager.sentinels:
            asked.close()


class _Watched(SentinelManagedConnection):
    """A connection to the primary that is lost once another server is named the primary, however long that hangs.

    A machine that answers for a server that hangs keeps its connections; nobody else would say that it is replaced.
    """

    def read_response(self, *arguments: Any, timeout: Any = ITS_OWN, **options: Any) -> Any:  # noqa: ANN401 (redis-py's)
        """The next answer. Raises: ConnectionError once the server is the primary no longer; as redis-py's."""
        given: float | None = self.socket_timeout if timeout is ITS_OWN else timeout
        begun, waited = time.monotonic(), 0.0
        try:
            while self.is_connected and (given is None or waited + LOOK_S < given) and not self.can_read(LOOK_S):
                self._check_primary()
                waited = time.monotonic() - begun
        except StoreConnectionError:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise
        if waited and given is not None:
            timeout = max(LOOK_S, given - waited)
        return super().read_response(*arguments, timeout=timeout, **options)

    def _check_primary(self) -> None:
        """Raises: ConnectionError if another server is named the primary."""
        asked = self.connection_pool
        named = asked.sentinel_manager.named_lately(asked.service_name)
        if named is not None and named != (self.host, self.port):
            place = f"{self.host}:{self.port}"
            raise StoreConnectionError(f"{place} does not answer, and {named[0]}:{named[1]} is the primary now")


class _WatchedByTls(_Watched, SSLConnection):
    """As `_Watched`, with TLS."""


class _Finder(Sentinel):
    """Finds the primary, and remembers for `LOOK_S` which it was, for the many that ask at once."""

    def __init__(self, *places: Any, **options: Any) -> None:  # noqa: ANN401 (redis-py's)
        super().__init__(*places, **options)  # type: ignore[no-untyped-call]
        self._looking = Lock()
        self._named: tuple[float, tuple[str, int] | None] = -math.inf, None

    def named_lately(self, service_name: str) -> tuple[str, int] | None:
        """Host and port of the primary, as of at most `LOOK_S` ago; None if nobody could name one."""
        with self._looking:
            if time.monotonic() > self._named[0] + LOOK_S:
                named: tuple[str, int] | None = None
                with suppress(RedisError):
                    named = self.discover_master(service_name)  # type: ignore[no-untyped-call]
                self._named = time.monotonic(), named
            return self._named[1]


class _Voice(NamedTuple):
    """What a sentinel says: its id, the primary unless it takes that for dead, and the others that it knows, by id."""

    id: str
    primary: tuple[str, int] | None
    others: Mapping[str, tuple[str, int]]


class _Sentinels(_Finder):
    """Finds the primary that a majority of sentinels names.

    One that is cut off from the others goes on naming the primary that they have replaced. The majority is that of all
    that are known, as it is for a failover: those in the URL and those that these know, which are asked as well.
    """

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the primary. Raises: MasterNotFoundError unless a majority names it."""
        voices: dict[str, _Voice] = {}
        silent: list[str] = []
        answered: set[Redis] = set()
        asking = ThreadPoolExecutor(_ASKED_AT_ONCE)
        try:
            asked = {asking.submit(_voice, each, service_name): each for each in self.sentinels}
            others = self._others(voices, service_name, asking)
            while asked or (asked := next(others, {})):
                done = wait(asked, _AGAIN_S, return_when=FIRST_COMPLETED).done
                for answer in done:
                    sentinel = asked.pop(answer)
                    try:
                        voice = answer.result()
                        voices[voice.id] = voice
                        answered.add(sentinel)
                    except RedisError as error:
                        silent.append(str(error))
                if not done:  # while some say nothing, those that do may come to name another one
                    again = [each for each in self.sentinels if each in answered and each not in asked.values()]
                    asked |= {asking.submit(_voice, each, service_name): each for each in again}
                known = {*voices, *(each for voice in voices.values() for each in voice.others)}
                many = max(len(known), len(self.sentinels)) if asked or silent else len(known)
                due = many // 2 + 1
                named = Counter(voice.primary for voice in voices.values() if voice.primary is not None)
                for primary, count in named.items():
                    if count >= due:
                        return primary
        finally:
            asking.shutdown(wait=False, cancel_futures=True)
        said = [f"{count} named {host}:{port}" for (host, port), count in named.items()] or ["none named a primary"]
        why = f" ({'; '.join(silent)})" if silent else ""
        raise MasterNotFoundError(f"{due} sentinels of {service_name} {NO_MAJORITY}: {', '.join(said)}{why}")

    def _others(
        self, voices: Mapping[str, _Voice], service_name: str, asking: ThreadPoolExecutor
    ) -> Iterator[dict[Future[_Voice], Redis]]:
        """Ask, once, those that the voices know and that have not answered."""
        known = {name: place for voice in voices.values() for name, place in voice.others.items()}
        found = {}
        for host, port in (place for name, place in known.items() if name not in voices):
            other = Redis(host=host, port=port, **self.sentinel_kwargs)
            found[asking.submit(_voice_once, other, service_name)] = other
        yield found


def _voice(sentinel: Redis, service: str) -> _Voice:
    """What the sentinel says. Raises: redis-py's errors."""
    identity: Any = sentinel.execute_command("SENTINEL", "MYID")  # type: ignore[no-untyped-call]
    said: Any = sentinel.sentinel_master(service)
    others: Any = sentinel.sentinel_sentinels(service)
    dead = said["is_sdown"] or said["is_odown"] or not said["is_master"]
    known = {str(each["runid"]): (str(each["ip"]), int(each["port"])) for each in others}
    return _Voice(identity.decode(), None if dead else (str(said["ip"]), int(said["port"])), known)


def _voice_once(sentinel: Redis, service: str) -> _Voice:
    """As `_voice`, over a connection of its own."""
    with sentinel:
        return _voice(sentinel, service)


class _StoreServers(_Finder):
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


def dangers(store: Redis, url: str) -> list[str]:
    """What makes the store at `url` less safe than it could be, or will soon stop work. Raises: redis-py's errors."""
    found = [known_holes(*server_of(cast("Any", store.info("server"))))]
    if not url.startswith(("unix://", "rediss")) and not _is_here(url):
        found.append(
            "the connection to the store is neither encrypted nor checked; use rediss:// unless nobody else can reach "
            "the network between"
        )
    if "@" not in url and not url.startswith("unix://"):
        found.append("the store asks for no password; give it users with `fairlog store acl`")
    found.append(_short_of_connections(cast("Any", store.info("clients"))))
    return [each for each in found if each]


def _short_of_connections(clients: Mapping[str, int]) -> str:
    """A sentence if the store will soon refuse connections, "" if it will not."""
    used, most = clients.get("connected_clients", 0), clients.get("maxclients", 0)
    if not most or most - used > most * SPARE_CONNECTIONS:
        return ""
    return (
        f"the store has {used} of at most {most} connections; run `CONFIG SET maxclients {4 * most}` on it, with a "
        "limit of open files that allows them, or it will refuse workers"
    )


def _is_here(url: str) -> bool:
    """Whether all servers in the URL are on this machine."""
    places = url.partition("://")[2].partition("/")[0].rpartition("@")[2].split(",")
    hosts = [place.rpartition(":")[0] or place for place in places]
    return all(host in {"localhost", "127.0.0.1", "[::1]"} for host in hosts)
