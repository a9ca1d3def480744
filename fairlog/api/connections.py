"""Plain HTTP connections to API servers, for programs that ask a few times: the standard library's, which load fast."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from fairlog.api.addresses import UNIX
from fairlog.errors import Refused
from scheduler.model.versions import HEADER, MESSAGES
from scheduler.store.lost import LOST_MS, signs_of_life

LOOK_S = 2.0
"""After so long without an answer, and then as often, a client looks whether another server is better off."""
HEALTH_S = 2.0
"""How long a server may take to say how it is."""
CONNECT_S = LOST_MS / 1000
HEALTH = "/v1/health"


class Lost(Exception):
    """The server could not be reached, or its answer did not come whole; the request may have been carried out."""


class HttpRequest(NamedTuple):
    """A request to any server."""

    method: str
    path: str
    query: Mapping[str, object] = {}
    content: bytes | None = None
    headers: Mapping[str, str] = {}

    def target(self, base: str) -> str:
        """The path, below that of the server, and the query."""
        return f"{base}{self.path}?{urlencode(self.query)}" if self.query else base + self.path


class Response(NamedTuple):
    """The whole answer to a request."""

    status_code: int
    content: bytes
    retry_after: str | None = None


class _Local(HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("fairlog", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect. Raises: OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Remote(HTTPConnection):
    """A connection over the network, which is lost once the server's machine gives no sign of life."""

    def connect(self) -> None:
        """Connect. Raises: OSError."""
        timeout, self.timeout = self.timeout, min(self.timeout or CONNECT_S, CONNECT_S)
        try:
            super().connect()
        finally:
            self.timeout = timeout
        self.sock.settimeout(timeout)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in signs_of_life().items():
            self.sock.setsockopt(socket.IPPROTO_TCP, option, value)


class _RemoteByTls(HTTPSConnection, _Remote):
    """As `_Remote`, with TLS."""


class Connections:
    """The connections to the server at `url`, one for each request that is open; threads may share them.

    A call on the network takes at most `timeout_s`; to connect takes at most `CONNECT_S`. Raises: Refused if the URL
    cannot be read.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._idle: list[HTTPConnection] = []
        self._trusted: ssl.SSLContext | None = None
        self.base = ""
        """The path of the server, without a slash at its end."""
        if url.startswith(UNIX):
            return
        try:
            parts = urlsplit(url)
            self._host, self._port, self.base = parts.hostname or "", parts.port, parts.path.rstrip("/")
        except ValueError as error:
            raise Refused("NoServer", f"the URL of the API {url!r} cannot be read: {error}") from None
        if not self._host:
            raise Refused("NoServer", f"the URL of the API {url!r} names no host; write it like https://HOST")

    def close(self) -> None:
        """Close those that no request uses."""
        while self._idle:
            self._idle.pop().close()

    def ask(
        self, request: HttpRequest, headers: Mapping[str, str], is_left: Callable[[], bool] | None = None
    ) -> Response:
        """The answer. Raises: Lost, also once `is_left`, which is asked while no answer begins, says so."""
        with self.open(request, headers, is_left) as answer:
            return Response(answer.status, answer.read(), answer.headers.get("retry-after"))

    def is_well(self) -> bool:
        """Whether the server says so, within `HEALTH_S`."""
        probe = Connections(self._url, HEALTH_S)
        try:
            return probe.ask(HttpRequest("GET", HEALTH), {}).status_code < 400
        except Lost:
            return False
        finally:
            probe.close()

    @contextmanager
    def open(
        self, request: HttpRequest, headers: Mapping[str, str], is_left: Callable[[], bool] | None = None
    ) -> Iterator[HTTPResponse]:
        """The answer, to be read as it comes; what is left unread costs the connection. Raises: Lost, as `ask`."""
        connection = self._taken()
        greets = connection.sock is None and isinstance(connection, _RemoteByTls)
        whole = False
        try:
            connection.request(
                request.method,
                request.target(self.base),
                request.content,
                {HEADER: str(MESSAGES), **headers, **request.headers},
            )
            with _watched(connection, is_left, greets=greets):
                answer = connection.getresponse()
            with answer:
                yield answer
                whole = answer.isclosed()
        except (OSError, HTTPException) as error:
            raise Lost(str(error) or type(error).__name__) from error
        finally:
            if whole and connection.sock is not None:
                self._idle.append(connection)
            else:
                connection.close()

    def _taken(self) -> HTTPConnection:
        """An idle connection that the server has not closed, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not _is_readable(connection.sock):
                return connection
            connection.close()
        if self._url.startswith(UNIX):
            return _Local(self._url.removeprefix(UNIX), self._timeout_s)
        if self._url.startswith("https:"):
            return _RemoteByTls(self._host, self._port, timeout=self._timeout_s, context=self._authorities())
        return _Remote(self._host, self._port, timeout=self._timeout_s)

    def _authorities(self) -> ssl.SSLContext:
        """The certificate authorities, which take 40 ms to load."""
        if self._trusted is None:
            import certifi  # noqa: PLC0415 (other connections trust none)

            self._trusted = ssl.create_default_context()
            self._trusted.load_verify_locations(cafile=certifi.where())
        return self._trusted


@contextmanager
def _watched(connection: HTTPConnection, is_left: Callable[[], bool] | None, *, greets: bool) -> Iterator[None]:
    """While an answer is waited for: end the connection once `is_left` says so, which is asked every `LOOK_S`.

    Whoever reads an answer is in a call of the system, and TLS has no other way to be woken; so a thread looks, if no
    answer begins by the time of the first look. A server that `greets`, one of TLS on a new connection, sends something
    before it answers.
    """
    if is_left is None or (not greets and _is_readable(connection.sock, LOOK_S)):
        yield
        return
    over, ending = threading.Event(), threading.Lock()

    def look(after_s: float) -> None:
        while not over.wait(after_s):
            if is_left():
                with ending:
                    if not over.is_set() and connection.sock is not None:
                        with suppress(OSError):
                            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
                return
            after_s = LOOK_S

    threading.Thread(target=look, args=(LOOK_S if greets else 0.0,), daemon=True).start()
    try:
        yield
    finally:
        with ending:
            over.set()


def _is_readable(line: socket.socket, within_s: float = 0.0) -> bool:
    """Whether something comes within so long; on an idle connection, that the server has closed it."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
