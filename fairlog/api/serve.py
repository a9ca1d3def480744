"""The API process: a replica of the log, and HTTP on a Unix socket, on TCP or on both."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import structlog
import uvicorn
import uvloop
from redis.exceptions import RedisError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairlog.api.app import Door, make_app
from fairlog.api.feed import Feed
from fairlog.api.figures import Apart
from fairlog.api.handlers import Handlers
from fairlog.api.limits import neighbourhood
from fairlog.api.past import NotReady
from fairlog.api.replica import Replica
from recovery.archive.archive import open_log
from recovery.failover.master import GC_THRESHOLD
from scheduler.model.errors import FairlogError
from scheduler.service.keyring import Keyring
from scheduler.service.known import Known
from scheduler.service.notify import ALIVE, READY, STOPPING, notify
from scheduler.service.served import SIGN_EVERY_S
from scheduler.store.connection import connect
from scheduler.store.keys import Keys
from scheduler.store.transient import in_words

BACKLOG = 2_048
KEEP_S = 30
"""How long an idle connection is kept."""
REQUEST_S = 30.0
"""How long a request may take to arrive whole, from its first byte or from the connection on."""
MAX_HEAD = 64 * 1024
UNREAD_S = 60.0
"""How long a client may leave an answer unread that does not fit into the buffers."""
MAX_CONNECTIONS = 16_384
"""From this many connections or requests on, further requests are answered 503; earlier if files are scarce. An agent
holds one."""
OTHER_FILES = 256
"""How many files are left for the store, the log and the threads."""
OF_ADDRESS = 2_048
"""The most connections that one address may hold, so that no machine can take all of them; of IPv6, one network."""
STOP_S = 3
"""How long open requests may take after SIGTERM."""
ALIVE_EVERY_S = 5.0
VISITS_EVERY_S = 1.0
"""How often agents are woken for commands that other servers were asked to run in a cell."""
SWITCH_S = 0.001
"""How long a thread computes while others wait, so that folding does not hold up answers."""
_log = structlog.get_logger()

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from fairlog.api.oidc import OpenIdProvider


class CannotListen(FairlogError):
    """The address cannot be used, or not safely."""


class Where(NamedTuple):
    """Where to listen: a Unix socket, a TCP address, or both; `certificate` and `key` are files for TLS on TCP.

    `plain` allows HTTP without TLS on other addresses than this machine's own. At `beside` listens what else is served,
    always without TLS.
    """

    path: Path | None = None
    address: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    plain: bool = False
    beside: tuple[str, int] | None = None


def run_api(  # noqa: PLR0913 (what a server is made of)
    store_url: str,
    cluster: str,
    where: Where,
    *,
    archive_url: str = "",
    keyring: Keyring | None = None,
    timeout_s: float = 30,
    oidc: Path | None = None,
    known: Path | None = None,
    beside: Callable[[Door], Starlette] | None = None,
) -> None:
    """Serve the API until SIGTERM or SIGINT; by the `keyring` it signs what it sends to the master.

    `oidc` is the file about the OpenID provider at which people sign in (`fairlog.api.oidc`). How far the log was known
    is kept in the folder `known`. What `beside` makes is served at `where.beside`.

    Raises: Unwritable, CannotListen, UnsuitableStore, BadProvider.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = most if most != resource.RLIM_INFINITY else 2 * MAX_CONNECTIONS
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    gc.set_threshold(*GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_S)
    provider = None if oidc is None else _provider(oidc)
    sockets = _sockets(where)
    other = _beside(where)
    feed = Feed()
    with connect(store_url) as store, Apart(store_url, cluster, archive_url) as figures:
        log = open_log(store, Keys(cluster), elsewhere=archive_url)
        me = f"API server {socket.gethostname()}-{os.getpid()}"
        replica = Replica(log, known=Known(log, me, "api", known))
        handlers = Handlers(store, cluster, replica, keyring=keyring, timeout_s=timeout_s, figures=figures)
        door = Door(handlers, feed, provider=provider)
        replica.heard, replica.beside = door.heard, door.ended.read
        with replica, asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            more = {} if other is None or beside is None else {other: beside(door)}
            loop.run(_serve(door, where, sockets, more))


def most_connections(files: int) -> int:
    """How many connections a process takes that may open so many files."""
    return max(1, min(MAX_CONNECTIONS, files - OTHER_FILES))


def _provider(path: Path) -> OpenIdProvider:
    try:
        from fairlog.api.oidc import OpenIdProvider, Settings  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise CannotListen(f"to sign in at an OpenID provider, run `pip install 'fairlog[oidc]'`: {error}") from None
    return OpenIdProvider(Settings.load(path))


class Impatient(HttpToolsProtocol):
    """Closes connections whose client is too slow or whose headers have no end; uvicorn would keep them."""

    _of: ClassVar[Counter[str]] = Counter()
    """How many connections each address holds."""
    _address: str | None = None
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _head_bytes: int | None = 0
    """How much of the headers has come, None behind them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request; hang up on an address that holds too many connections."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._address = neighbourhood(str(peer[0]))
            self._of[self._address] += 1
            if self._of[self._address] > OF_ADDRESS:
                transport.abort()
                return
        self._late = self.loop.call_later(REQUEST_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Take what has come of requests."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD:
            self.send_400_response(f"the headers of a request have at most {MAX_HEAD} bytes")

    def on_message_begin(self) -> None:
        """Expect the rest of the request."""
        super().on_message_begin()
        self._head_bytes = 0
        if self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self.transport.abort)

    def on_headers_complete(self) -> None:
        """Expect the body."""
        super().on_headers_complete()
        self._head_bytes = None

    def on_message_complete(self) -> None:
        """Expect nothing more: the request is whole."""
        super().on_message_complete()
        self._late = _cancelled(self._late)

    def pause_writing(self) -> None:
        """Expect the client to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Expect nothing more."""
        super().resume_writing()
        self._unread = _cancelled(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        super().connection_lost(exc)
        if self._address is not None:
            self._of[self._address] -= 1
            if not self._of[self._address]:
                del self._of[self._address]
        self._late, self._unread = _cancelled(self._late), _cancelled(self._unread)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """None, with the timer cancelled."""
    if timer is not None:
        timer.cancel()
    return None


class _ApiServer(uvicorn.Server):
    """A server whose process handles signals itself, since it may run two."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def _serve(
    door: Door,
    where: Where,
    sockets: Sequence[socket.socket],
    more: Mapping[socket.socket, Starlette] = MappingProxyType({}),
) -> None:
    """Serve the API at the sockets, and `more` at theirs."""
    servers = []
    apps = {**{each: make_app(door, at_home=each.family == socket.AF_UNIX) for each in sockets}, **more}
    for each, app in apps.items():
        plain = each.family == socket.AF_UNIX or each in more
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=Impatient,
            ws="none",
            backlog=BACKLOG,
            limit_concurrency=most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            timeout_keep_alive=KEEP_S,
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=None if plain else where.certificate,
            ssl_keyfile=None if plain else where.key,
        )
        servers.append(_ApiServer(config))

    door.url = next((_named(each, where) for each in sockets if each.family != socket.AF_UNIX), "")

    def stop() -> None:
        notify(STOPPING)
        door.close()
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    errors = logging.getLogger("uvicorn.error")
    errors.setLevel(logging.ERROR)  # it warns of requests that anybody can make
    errors.addFilter(_is_no_cancellation)
    living = asyncio.create_task(_say_alive(servers, [_named(each, where, plain=each in more) for each in apps], door))
    visits = asyncio.create_task(_ring_for_visits(door))
    signing = asyncio.create_task(_sign(door))
    try:
        await asyncio.gather(*(server.serve([each]) for server, each in zip(servers, apps, strict=True)))
    finally:
        living.cancel()
        visits.cancel()
        signing.cancel()
        with suppress(FairlogError, RedisError):  # then masters hear only that it answers no more
            await asyncio.to_thread(door.handlers.health.sign, stopping=True)
        if where.path is not None:
            where.path.unlink(missing_ok=True)
    _log.info("stopped")


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """A stream that is cut off at the end is no error."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


async def _say_alive(servers: Sequence[uvicorn.Server], names: Sequence[str], door: Door) -> None:
    while not all(server.started for server in servers):
        await asyncio.sleep(0.01)
    _log.info("serving the API", at=", ".join(names))
    notify(READY)
    while True:
        await asyncio.sleep(ALIVE_EVERY_S)
        notify(ALIVE)
        with suppress(FairlogError, RedisError):  # a replica that is behind is told of by its thread
            await asyncio.to_thread(door.handlers.health.note_conditions)
            await asyncio.to_thread(door.handlers.health.compare_estimates)


async def _ring_for_visits(door: Door) -> None:
    while True:
        await asyncio.sleep(VISITS_EVERY_S)
        with suppress(RedisError):
            await door.work.ring_for_visits()


async def _sign(door: Door) -> None:
    """Tell masters that this server answers; once, in its log, why it cannot."""
    said = ""
    while True:
        try:
            await asyncio.to_thread(door.handlers.health.sign)
            said = ""
        except NotReady:
            pass  # so it answers nobody; its thread tells of that
        except RedisError as error:
            if not said:
                said = in_words(error)
                _log.warning("masters cannot be told that this server answers", error=said)
        await asyncio.sleep(SIGN_EVERY_S)


def _named(listening: socket.socket, where: Where, *, plain: bool = False) -> str:
    if listening.family == socket.AF_UNIX:
        return f"http+unix:{where.path}"
    host, port = listening.getsockname()[:2]
    return f"{'https' if where.certificate and not plain else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _sockets(where: Where) -> list[socket.socket]:
    """The sockets to listen on. Raises: CannotListen."""
    if where.path is None and where.address is None:
        raise CannotListen("nothing to listen on; give --socket PATH or --listen HOST:PORT")
    sockets = []
    try:
        if where.path is not None:
            sockets.append(_unix(where.path))
        if where.address is not None:
            sockets.append(_tcp(where, *where.address))
    except OSError as error:
        raise CannotListen(f"cannot listen on {where.path or where.address}: {error.strerror or error}") from error
    return sockets


def _beside(where: Where) -> socket.socket | None:
    """The socket of what is served beside the API. Raises: CannotListen."""
    if where.beside is None:
        return None
    try:
        return _tcp(where._replace(certificate=None), *where.beside, instead="listen on 127.0.0.1")
    except OSError as error:
        raise CannotListen(f"cannot listen on {where.beside}: {error.strerror or error}") from error


def _unix(path: Path) -> socket.socket:
    """A socket that only this user can reach. Raises: CannotListen, OSError."""
    found = path.parent.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise CannotListen(
            f"whoever reaches {path} is the operator: {path.parent} must be a folder that you own and that nobody else "
            f"can enter; run `chmod 700 {path.parent}`"
        )
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    path.chmod(0o600)
    return made


def _tcp(where: Where, host: str, port: int, *, instead: str = "give --tls-cert and --tls-key") -> socket.socket:
    """A TCP socket; several servers of one user may share the port.

    `instead` is what else to do for a network. Raises: CannotListen, OSError.
    """
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if where.certificate is None and not where.plain and not ip_address(str(place[0])).is_loopback:
        raise CannotListen(
            f"{host} can be reached from other machines, and tokens would cross the network unencrypted: "
            f"{instead}, or --plain-http behind a proxy that ends TLS"
        )
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(place)
    return made
