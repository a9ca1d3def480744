"""The description of the API, OpenAPI 3.1, made from the table of routes and the structs of the commands."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any, get_args

from msgspec.json import schema_components

from fairlog.api.problems import MEDIA, STATUS
from fairlog.api.routes import BARE, NUMBERS, OPEN, ROUTES, WRAPPED, Param, Route
from scheduler.model.commands import BATCH, NEVER_SENT, Command, SubmitApp
from workers import door

_REFS = "#/components/schemas/{name}"
_TEXT = {"type": "string"}
_SEQ = {"type": "integer", "minimum": 0}
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457.",
    "required": ["type", "title", "status", "detail"],
    "properties": {"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT},
}
_SIGNED = {
    "type": ["object", "null"],
    "description": "The master's signed answer, to be kept for `fairlog audit --receipts`; null if it has no key.",
}
_RECEIPT = {
    "type": "object",
    "description": "The command's id and the position of its last event, 0 if it changed nothing.",
    "required": ["id", "seq"],
    "properties": {"id": _TEXT, "seq": _SEQ, "receipt": _SIGNED},
}
_SECRETS = {
    "type": "object",
    "description": "Values of environment variables; they never enter the log.",
    "additionalProperties": _TEXT,
}
_SEEN = {"seq": _SEQ, "at": {"type": "integer", "description": "The time of the state in ms."}}
_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "receipt": ("application/json", {"$ref": _REFS.format(name="Receipt")}),
    "answers": (
        "application/json",
        {
            "type": "object",
            "required": ["answers"],
            "properties": {
                "answers": {
                    "type": "array",
                    "items": {"anyOf": [{"$ref": _REFS.format(name=name)} for name in ("Receipt", "Problem")]},
                },
                "receipt": _SIGNED,
            },
        },
    ),
    "value": (
        "application/json",
        {"type": "object", "required": ["seq", "at", "value"], "properties": {**_SEEN, "value": {"type": "object"}}},
    ),
    "list": (
        "application/json",
        {
            "type": "object",
            "required": ["seq", "at", "items", "next"],
            "properties": {
                **_SEEN,
                "items": {"type": "array", "items": {"type": "object"}},
                "next": {"type": ["string", "null"]},
            },
        },
    ),
    "events": ("text/event-stream", _TEXT),
    "output": ("application/octet-stream", {}),
    "metrics": ("text/plain", _TEXT),
}
_LOG_IN = {
    "type": "object",
    "description": "A token, or the key of a link; neither renews the session of the request.",
    "properties": {"token": _TEXT, "key": _TEXT},
    "additionalProperties": False,
}


@lru_cache(maxsize=1)
def description() -> dict[str, Any]:
    """The description as JSON values."""
    types = [each for each in _kinds() if each not in NEVER_SENT]
    asked = [route.asks for route in ROUTES if route.asks is not None]
    asked += [getattr(door, name) for route in ROUTES for name in (route.reads, route.tells) if name]
    _, structs = schema_components([*types, *asked, *_shown()], ref_template=_REFS)
    schemas: dict[str, Any] = {name: _cleaned(schema) for name, schema in structs.items()}
    schemas[SubmitApp.__name__]["properties"]["secrets"] = _SECRETS
    named = [{"$ref": _REFS.format(name=kind.__name__)} for kind in types]
    schemas |= {"Problem": _PROBLEM, "Receipt": _RECEIPT, "Command": {"anyOf": named}}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fairlog",
            "version": "1",
            "description": "Every answer to a read states the log position of the state that it shows. A command is "
            "carried out once for each Idempotency-Key. Errors are problems (RFC 9457); one with the status 503 or 429 "
            "says in Retry-After when to ask again.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "fl_ID_SECRET_CHECK"}},
        },
        "security": [{"token": []}],
    }


def _shown() -> list[Any]:
    """The types of what is answered."""
    return [route.shows for route in ROUTES if route.shows is not None]


def _kinds() -> tuple[Any, ...]:
    return get_args(Command)


def _cleaned(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its description on one line each paragraph."""
    text = "\n\n".join(" ".join(part.split()) for part in schema.get("description", "").split("\n\n"))
    return {**schema, "description": text}


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    media, body = _answer(route)
    answers: dict[str, Any] = {
        "200": {"description": "The answer.", "content": {media: {"schema": body}}},
        **{
            str(status): {
                "description": " or ".join(sorted({kind.__name__ for kind, its in STATUS.items() if its == status})),
                "content": {MEDIA: {"schema": {"$ref": _REFS.format(name="Problem")}}},
            }
            for status in sorted({*STATUS.values()})
        },
    }
    if any(param.name == "If-None-Match" for param in route.params):
        answers["304"] = {"description": "As the caller has it."}
    said: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.text,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _path(name)} for name in route.names),
            *map(_param, route.params),
        ],
        "responses": answers,
    }
    if route.answer in OPEN:
        said["security"] = []
    if route.takes is not None:
        said["requestBody"] = _content(_fields(route, schemas[route.takes.__name__]))
    elif route.name == "auditFile":
        said["requestBody"] = {"required": True, "content": {"application/x-ndjson": {"schema": _TEXT}}}
    elif route.name == "logIn":
        said["requestBody"] = _content(_LOG_IN)
    elif route.asks is not None:
        said["requestBody"] = _content({"$ref": _REFS.format(name=route.asks.__name__)})
    elif route.reads:
        said["requestBody"] = _content({"$ref": _REFS.format(name=route.reads)}, required=True)
    elif route.answer == "answers":
        commands = {"type": "array", "maxItems": BATCH, "items": {"$ref": _REFS.format(name="Command")}}
        whole = {"type": "object", "required": ["commands"], "properties": {"commands": commands}}
        said["requestBody"] = _content({**whole, "additionalProperties": False})
    return said


def _answer(route: Route) -> tuple[str, dict[str, Any]]:
    """The media type and the schema of what the route answers."""
    if route.answer == "work":
        return "application/json", _told(route)
    if route.shows is None:
        return _BODIES[route.answer]
    shown = schema_components([route.shows], ref_template=_REFS)[0][0]
    if route.answer in BARE:
        return "application/json", shown
    if route.answer in WRAPPED:
        return "application/json", {"type": "object", "required": ["value"], "properties": {"value": shown}}
    media, body = _BODIES[route.answer]
    whole = {"items": {"type": "array", "items": shown}} if route.answer == "list" else {"value": shown}
    body = {**body, "properties": {**body["properties"], **whole}}
    return media, body


def _told(route: Route) -> dict[str, Any]:
    """What a worker is answered; tuples that are no structs stand in place."""
    if not route.tells:
        return {"type": "object"}
    return schema_components([getattr(door, route.tells)], ref_template=_REFS)[0][0]


def _path(name: str) -> dict[str, Any]:
    if name in NUMBERS:
        return {"type": "integer", "minimum": 0, "maximum": 10**6}
    return {"type": "string", "minLength": 1, "maxLength": 128}


def _param(param: Param) -> dict[str, Any]:
    needed = {"required": True} if param.required else {}
    return {"name": param.name, "in": param.place, "description": param.text, "schema": param.schema, **needed}


def _content(schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    required = required or bool(schema.get("required"))
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _fields(route: Route, struct: dict[str, Any]) -> dict[str, Any]:
    """The command's own fields, without those in the path."""
    schema = deepcopy(struct)
    for name in ("type", *route.names):
        schema["properties"].pop(name)
        schema["required"].remove(name)
    return schema
