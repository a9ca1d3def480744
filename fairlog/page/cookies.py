"""The cookie of a session: its name and its attributes, and whether a page of this server sent a request."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scheduler.model.errors import NotAllowed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MARK = "fairlog-page"
"""The header by which the page marks what it sends; no page of another server can send it here."""


def cookie_names(request: Request) -> tuple[str, str]:
    """The names of the cookie with and without TLS. Browsers keep one for all ports of a host, so the port is in it."""
    port = request.headers.get("host", "").rpartition(":")[2]
    name = f"fairlog-{port if port.isascii() and port.isdecimal() else 'page'}"
    return f"__Host-{name}", name


def cookie_of(request: Request) -> str:
    """The session's cookie that the browser sends, "" without one."""
    return next((value for name in cookie_names(request) if (value := request.cookies.get(name))), "")


def set_cookie(answer: Response, request: Request, value: str, seconds: int) -> None:
    """Give the browser the cookie, readable by no script and sent to no page of another server."""
    secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
    strict, plain = cookie_names(request)
    answer.set_cookie(
        strict if secure else plain, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict"
    )


def check_origin(request: Request) -> None:
    """Raises: NotAllowed unless a page of this server sent the request."""
    headers = request.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    foreign = site not in (None, "same-origin") or (
        site is None and origin is not None and urlsplit(origin).netloc != headers.get("host")
    )
    if foreign or headers.get(MARK) is None:
        raise NotAllowed("only the page itself sends this; programs send a token, `Authorization: Bearer fl_…`")
