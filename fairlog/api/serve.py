"""The API process: a replica of the log, and HTTP on a Unix socket, on TCP or on both."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import structlog
import uvicorn

from fairlog.api.app import Door, make_app
from fairlog.api.feed import Feed
from fairlog.api.handlers import Handlers
from fairlog.api.replica import Replica
from recovery.archive.archive import open_log
from recovery.failover.master import GC_THRESHOLD
from scheduler.model.errors import FairlogError
from scheduler.service.keyring import Keyring
from scheduler.service.notify import ALIVE, READY, STOPPING, notify
from scheduler.store.connection import connect
from scheduler.store.keys import Keys

BACKLOG = 2_048
KEEP_S = 75
"""How long an idle connection is kept."""
STOP_S = 3
"""How long open requests may take after SIGTERM."""
ALIVE_EVERY_S = 5.0
SWITCH_S = 0.001
"""How long a thread computes while others wait, so that folding does not hold up answers."""
_log = structlog.get_logger()


class CannotListen(FairlogError):
    """The address cannot be used, or not safely."""


class Where(NamedTuple):
    """Where to listen: a Unix socket, a TCP address, or both; `certificate` and `key` are files for TLS on TCP.

    `plain` allows HTTP without TLS on other addresses than this machine's own.
    """

    path: Path | None = None
    address: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    plain: bool = False


def run_api(
    store_url: str,
    cluster: str,
    where: Where,
    *,
    archive_url: str = "",
    keyring: Keyring | None = None,
    timeout_s: float = 30,
) -> None:
    """Serve the API until SIGTERM or SIGINT; by the `keyring` it signs what it sends to the master.

    Raises: CannotListen, UnsuitableStore.
    """
    gc.set_threshold(*GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_S)
    sockets = _sockets(where)
    feed = Feed()
    with (
        connect(store_url) as store,
        Replica(open_log(store, Keys(cluster), elsewhere=archive_url), feed.heard) as replica,
    ):
        door = Door(Handlers(store, cluster, replica, keyring=keyring, timeout_s=timeout_s), feed)
        asyncio.run(_serve(door, where, sockets))


class _Server(uvicorn.Server):
    """A server whose process handles signals itself, since it may run two."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def _serve(door: Door, where: Where, sockets: Sequence[socket.socket]) -> None:
    servers = []
    for each in sockets:
        at_home = each.family == socket.AF_UNIX
        config = uvicorn.Config(
            make_app(door, at_home=at_home),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http="h11",
            ws="none",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_S,
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=None if at_home else where.certificate,
            ssl_keyfile=None if at_home else where.key,
        )
        servers.append(_Server(config))

    def stop() -> None:
        notify(STOPPING)
        door.feed.close()
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    living = asyncio.create_task(_say_alive(servers, [_named(each, where) for each in sockets]))
    try:
        await asyncio.gather(*(server.serve([each]) for server, each in zip(servers, sockets, strict=True)))
    finally:
        living.cancel()
        if where.path is not None:
            where.path.unlink(missing_ok=True)
    _log.info("stopped")


async def _say_alive(servers: Sequence[uvicorn.Server], names: Sequence[str]) -> None:
    while not all(server.started for server in servers):
        await asyncio.sleep(0.01)
    _log.info("serving the API", at=", ".join(names))
    notify(READY)
    while True:
        await asyncio.sleep(ALIVE_EVERY_S)
        notify(ALIVE)


def _named(listening: socket.socket, where: Where) -> str:
    if listening.family == socket.AF_UNIX:
        return f"http+unix:{where.path}"
    host, port = listening.getsockname()[:2]
    return f"{'https' if where.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


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


def _tcp(where: Where, host: str, port: int) -> socket.socket:
    """A TCP socket; several servers of one user may share the port. Raises: CannotListen, OSError."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if where.certificate is None and not where.plain and not ip_address(str(place[0])).is_loopback:
        raise CannotListen(
            f"{host} can be reached from other machines, and tokens would cross the network unencrypted: give "
            "--tls-cert and --tls-key, or --plain-http behind a proxy that ends TLS"
        )
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(place)
    return made
