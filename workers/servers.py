"""API servers as workers ask them: a connection that is kept, and the next server when one does not answer.

Every call may be repeated.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from scheduler.model.errors import FairlogError, OtherVersion, stated_error
from scheduler.model.versions import HEADER, MESSAGES
from scheduler.service.addresses import UNIX, unreached
from scheduler.service.outage import ApiAway
from scheduler.store.secrets import UnreadableSecrets

ANSWER_S = 3.0
"""How long a server may take to answer before the next one is asked."""
MASTER_S = 10.0
"""How long it may take if it waits for the master."""
_to_json = msgspec.json.Encoder().encode
T = TypeVar("T")


class ServerError(FairlogError):
    """A server refused a call for another reason than a rule."""


class Servers:
    """API servers at the URLs in `urls`, separated by commas, which are asked with the token that `token` returns."""

    def __init__(self, urls: str, token: Callable[[], str]) -> None:
        self._urls = [url for url in urls.split(",") if url]
        self._token = token
        self._present = 0
        self._line: HTTPConnection | None = None

    @property
    def url(self) -> str:
        """The server that answered last."""
        return self._urls[self._present]

    def call(self, method: str, path: str, gives: type[T], asked: object = None, *, within_s: float = ANSWER_S) -> T:
        """What a server answers. Raises: the refusal; ApiAway if none answers, or none can."""
        body = None if asked is None else _to_json(asked)
        error: ApiAway | None = None
        for _ in self._urls:
            try:
                status, content = self._ask(method, path, body, within_s)
            except (OSError, HTTPException) as failure:
                error = ApiAway(f"{self.url} does not answer: {unreached(failure) or type(failure).__name__}")
            else:
                if status < 400:
                    return msgspec.json.decode(content, type=gives)
                found = error_of(status, content)
                if not isinstance(found, ApiAway):
                    raise found
                error = found
            self.next()
        raise error or ApiAway("no API server is named")

    def next(self) -> None:
        """Go on to the next server."""
        self.close()
        self._present = (self._present + 1) % len(self._urls)

    def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def begin(self, method: str, path: str, body: bytes | None = None, within_s: float = ANSWER_S) -> HTTPConnection:
        """Send a request to the present server; its answer is to be read from the connection. Raises: OSError."""
        line = self._line or connection(self.url)
        self._line, line.timeout = None, within_s
        if line.sock is not None:
            line.sock.settimeout(within_s)
        headers = {HEADER: str(MESSAGES)}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        line.request(method, base_of(self.url) + path, body, headers)
        return line

    def finish(self, line: HTTPConnection) -> tuple[int, bytes]:
        """The answer to what `begin` has sent: status and content. Raises: OSError, HTTPException."""
        answer = line.getresponse()
        content = answer.read()
        if not answer.will_close:
            self._line = line
        return answer.status, content

    def _ask(self, method: str, path: str, body: bytes | None, within_s: float) -> tuple[int, bytes]:
        used = self._line is not None
        try:
            return self.finish(self.begin(method, path, body, within_s))
        except (OSError, HTTPException) as error:
            self.close()
            if not used or isinstance(error, TimeoutError):
                raise
        return self.finish(self.begin(method, path, body, within_s))  # a server closes connections that were idle


def base_of(url: str) -> str:
    """The path of the server at that URL, without a slash at its end."""
    return "" if url.startswith(UNIX) else urlsplit(url).path.rstrip("/")


class _TlsConnection(HTTPSConnection):
    """A connection by TLS, whose own messages, such as tickets of sessions, make its socket readable as well."""

    _begun: HTTPResponse | None = None

    def has_answer(self) -> bool:
        """Whether the answer has begun, or the connection has ended; waits for nothing."""
        if self._begun is None:
            self._begun = HTTPResponse(self.sock)
        self.sock.settimeout(0)
        try:
            self._begun.fp.peek(1)
        except ssl.SSLWantReadError:
            return False
        finally:
            self.sock.settimeout(self.timeout)
        return True

    def close(self) -> None:
        """Close the connection."""
        if self._begun is not None:
            self._begun.close()
            self._begun = None
        super().close()

    def response_class(self, sock: socket.socket, **about: Any) -> HTTPResponse:  # type: ignore[override] # noqa: ANN401
        """The answer, of which a part may have been read."""
        begun, self._begun = self._begun, None
        return begun or HTTPResponse(sock, **about)


def has_answer(line: HTTPConnection) -> bool:
    """Whether the answer can be read from a connection whose socket is readable."""
    return not isinstance(line, _TlsConnection) or line.has_answer()


class _SocketConnection(HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("fairlog", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connection(url: str) -> HTTPConnection:
    """A connection to the server at http://, https:// or http+unix:PATH. Raises: ServerError for other URLs."""
    if url.startswith(UNIX):
        return _SocketConnection(url.removeprefix(UNIX))
    parts = urlsplit(url)
    if parts.scheme == "https":
        return _TlsConnection(parts.hostname or "", parts.port, timeout=ANSWER_S, context=trusted())
    if parts.scheme == "http":
        return HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
    raise ServerError(f"the URL of an API begins with http://, https:// or {UNIX}, not {url!r}")


@lru_cache(maxsize=1)
def trusted() -> ssl.SSLContext:
    """The authorities of the system, by which certificates of servers are checked."""
    return ssl.create_default_context()


def error_of(status: int, content: bytes) -> FairlogError:
    """The error that a server's problem (RFC 9457) states; ApiAway if another server, or a later call, may do."""
    try:
        said = msgspec.json.decode(content, type=dict[str, Any])
        title, detail = str(said["title"]), str(said["detail"])
    except (msgspec.DecodeError, KeyError):
        title, detail = "", f"the server answered {status} without saying why"
    if title == UnreadableSecrets.__name__:
        return UnreadableSecrets(detail)
    if title == OtherVersion.__name__:
        return ApiAway(detail)  # another server may have been upgraded, or this one is soon
    other = ApiAway(detail) if status in {429, 500, 502, 503, 504} else ServerError(detail)
    return stated_error(title, detail) or other
