"""What a request says: its token, its body and its parameters; and an answer as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.json import Decoder, Encoder
from starlette.responses import Response

from fairlog.api.problems import BadRequest, TooLarge, WrongMedia
from scheduler.model.text import counted

if TYPE_CHECKING:
    from starlette.requests import Request

    from fairlog.api.routes import Param

T = TypeVar("T")
MAX_BODY = 256 * 1024
_to_json = Encoder().encode
_plain = Decoder().decode


async def typed_body(request: Request, *, most: int = MAX_BODY, media: str = "application/json") -> bytes:
    """The body. Raises: TooLarge, WrongMedia."""
    body = await body_of(request, most=most)
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and said != media:
        raise WrongMedia(f"send the body as {media}")
    return body


async def body_of(request: Request, *, most: int = MAX_BODY) -> bytes:
    """The body, whatever it is said to be. Raises: TooLarge."""
    too_large = TooLarge(f"a request has at most {counted(most, 'byte')}; send a batch in parts")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def check_no_body(request: Request) -> None:
    """Raises: BadRequest if the request says something, of which nothing would be heard; TooLarge."""
    if (await body_of(request)).strip() not in (b"", b"{}"):
        raise BadRequest(f"{request.method} {request.url.path} takes no body; leave it out")


def token_of(request: Request) -> str:
    """The token in the header, or "". Raises: BadRequest if there are two: a proxy may have checked the other one."""
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise BadRequest("send one Authorization header")
    kind, _, token = "".join(given).partition(" ")
    return token.strip() if kind.lower() == "bearer" else kind


def decoded(body: bytes) -> Any:  # noqa: ANN401 (JSON)
    """The JSON that the body is. Raises: BadRequest."""
    try:
        return _plain(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def question(body: bytes, kind: type[T]) -> T:
    """The question that the body is. Raises: BadRequest."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body cannot be read: {error}") from None


def values_of(params: tuple[Param, ...], request: Request) -> dict[str, Any]:
    """The parameters that the request has. Raises: BadRequest naming the one that is wrong."""
    known = {param.name: param for param in params if param.place == "query"}
    for name in request.query_params:
        if name not in known:
            raise BadRequest(f"there is no parameter {name[:40]!r} here; there are {', '.join(known) or 'none'}")
        if len(request.query_params.getlist(name)) > 1:
            raise BadRequest(f"give {name} once")
    found = {name: _value(known[name], text) for name, text in request.query_params.items()}
    if missing := [
        f"{param.name}={param.name.upper()}" for param in params if param.required and param.name not in found
    ]:
        raise BadRequest(f"add ?{'&'.join(missing)}")
    for param in params:
        if param.place == "header" and (texts := request.headers.getlist(param.name)):
            if len(texts) > 1 and param.name != "If-None-Match":
                raise BadRequest(f"send one {param.name} header")
            found[param.name] = _value(param, ", ".join(texts))
    return found


def _value(param: Param, text: str) -> Any:  # noqa: ANN401 (as its schema says)
    schema = param.schema
    if schema["type"] == "boolean":
        if text not in ("true", "false"):
            raise BadRequest(f"{param.name} is true or false, not {text[:40]!r}")
        return text == "true"
    if schema["type"] == "integer" or param.name == "Last-Event-ID":
        least, most = schema.get("minimum", 0), schema.get("maximum", 2**53)
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            raise BadRequest(f"{param.name} is a number from {least} to {most}, not {text[:40]!r}")
        return int(text)
    if "enum" in schema and text not in schema["enum"]:
        raise BadRequest(f"{param.name} is {' or '.join(schema['enum'])}, not {text[:40]!r}")
    if param.name == "task" and text != "driver":
        return str(whole(text))
    if not schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", MAX_BODY):
        raise BadRequest(f"{param.name} has at most {schema.get('maxLength')} characters, and is not empty")
    return text


def whole(text: str, what: str = "task") -> int:
    """The number that the text is. Raises: BadRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise BadRequest(f"a {what} is a number, not {text[:40]!r}")
    return int(text)


def json_answer(value: object, headers: Mapping[str, str] | None = None) -> Response:
    """The value as JSON."""
    return Response(_to_json(value), headers=headers, media_type="application/json")
