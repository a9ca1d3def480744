"""Plain HTTP connections to API servers, for programs that ask a few times: the standard library's, which load fast."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from fairlog.api.addresses import UNIX
from fairlog.errors import Refused
from scheduler.model.versions import HEADER, MESSAGES


class Lost(Exception):
    """The server could not be reached, or its answer did not come whole; the request may have been carried out."""


class Request(NamedTuple):
    """A request to any server."""

    method: str
    path: str
    query: Mapping[str, object] = {}
    content: bytes | None = None
    headers: Mapping[str, str] = {}

    def target(self, base: str) -> str:
        """The path, below that of the server, and the query."""
        return f"{base}{self.path}?{urlencode(self.query)}" if self.query else base + self.path


class Answer(NamedTuple):
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


class Connections:
    """The connections to the server at `url`, one for each request that is open; threads may share them.

    A call on the network takes at most `timeout_s`. Raises: Refused if the URL cannot be read.
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

    def ask(self, request: Request, headers: Mapping[str, str]) -> Answer:
        """The answer. Raises: Lost."""
        with self.open(request, headers) as answer:
            return Answer(answer.status, answer.read(), answer.headers.get("retry-after"))

    @contextmanager
    def open(self, request: Request, headers: Mapping[str, str]) -> Iterator[HTTPResponse]:
        """The answer, to be read as it comes; what is left unread costs the connection. Raises: Lost."""
        connection = self._taken()
        whole = False
        try:
            connection.request(
                request.method,
                request.target(self.base),
                request.content,
                {HEADER: str(MESSAGES), **headers, **request.headers},
            )
            with connection.getresponse() as answer:
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
            return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._authorities())
        return HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _authorities(self) -> ssl.SSLContext:
        """The certificate authorities, which take 40 ms to load."""
        if self._trusted is None:
            import certifi  # noqa: PLC0415 (other connections trust none)

            self._trusted = ssl.create_default_context()
            self._trusted.load_verify_locations(cafile=certifi.where())
        return self._trusted


def _is_readable(idle: socket.socket) -> bool:
    """Whether something came although nothing was asked: the server has closed the connection."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))
