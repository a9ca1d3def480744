"""The files of the page, read once and sent compressed, with headers that let it run nothing but its own scripts."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable
from functools import lru_cache
from hashlib import blake2b
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

FOLDER = Path(__file__).parent / "static"
VIEWS = ("/", "/apps", "/app", "/company", "/department", "/workers", "/fairness", "/log", "/what-if", "/settings")
"""The addresses of the views; each is the same document, which shows the view of its address."""
_GUESSED = {"/app": "/app?id=", "/apps": "/app?id=", "/company": "/company?name=", "/workers": "/workers?worker="}
"""Where a name behind a view's address leads: people write `/app/report-7`, as the API's addresses are."""
_MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


class Asset(NamedTuple):
    """A file: its media type, its bytes plain and compressed, and its tag."""

    media: str
    plain: bytes
    packed: bytes
    tag: str


@lru_cache(maxsize=1)
def assets() -> dict[str, Asset]:
    """The files by name."""
    found = {}
    for file in sorted(FOLDER.iterdir()):
        plain = file.read_bytes()
        tag = f'"{blake2b(plain, digest_size=12).hexdigest()}"'
        found[file.name] = Asset(f"{_MEDIA[file.suffix]}; charset=utf-8", plain, gzip.compress(plain, 9, mtime=0), tag)
    return found


def routes() -> list[Route]:
    """The routes of the page: its document at the address of each view, and its files."""

    async def document(request: Request) -> Response:
        return _sent(request, assets()["index.html"])

    def endpoint(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
        async def send(request: Request) -> Response:
            return _sent(request, asset)

        return send

    def leading_to(view: str, address: str) -> Callable[[Request], Awaitable[Response]]:
        async def lead(request: Request) -> Response:
            name, more = request.path_params["name"], request.url.query
            to = f"{address}{quote(name, safe='')}" if name else view
            return RedirectResponse(f"{to}{'&' if name else '?'}{more}" if more else to, headers=HEADERS)

        return lead

    named = [Route(f"/page/{name}", endpoint(asset)) for name, asset in assets().items() if name != "index.html"]
    guessed = [Route(f"{view}/{{name:path}}", leading_to(view, address)) for view, address in _GUESSED.items()]
    return [*(Route(view, document) for view in VIEWS), *named, *guessed]


def lost(request: Request) -> Response | None:
    """The document, which says that it has no such view, for a browser at an unknown address; None for programs."""
    if request.url.path.startswith("/v1/") or "text/html" not in request.headers.get("accept", ""):
        return None
    answer = _sent(request, assets()["index.html"])
    answer.status_code = HTTPStatus.NOT_FOUND
    return answer


def _sent(request: Request, asset: Asset) -> Response:
    headers = {**HEADERS, "etag": asset.tag}
    if asset.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, headers={**headers, "content-encoding": "gzip"}, media_type=asset.media)
    return Response(asset.plain, headers=headers, media_type=asset.media)
