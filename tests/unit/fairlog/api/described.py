"""Whether the description of the API names every key of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from fairlog.api.openapi import description
from fairlog.api.routes import Route


@cache
def _described() -> dict[str, Any]:
    return description()


def unnamed(route: Route, answer: Any) -> list[str]:
    """The places of an answer, `value.executors.0.cores`, that the description of the route does not name."""
    operation = _described()["paths"][route.path][route.method.lower()]
    (content,) = operation["responses"]["200"]["content"].values()
    return [*_unnamed(answer, content["schema"], "")]


def _unnamed(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    forms = [*_forms(schema)]
    if isinstance(value, dict):
        for key, each in value.items():
            named = [found for form in forms if (found := _of_key(form, key)) is not None]
            tried = [[*_unnamed(each, found, f"{where}.{key}")] for found in named] or [[f"{where}.{key}"]]
            yield from min(tried, key=len)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            named = [form["items"] for form in forms if isinstance(form.get("items"), dict)]
            named += [form["prefixItems"][number] for form in forms if number < len(form.get("prefixItems", ()))]
            tried = [[*_unnamed(each, found, f"{where}.{number}")] for found in named] or [[f"{where}.{number}"]]
            yield from min(tried, key=len)


def _forms(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema without references and alternatives."""
    if "$ref" in schema:
        yield from _forms(_described()["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _forms(each)
    else:
        yield schema


def _of_key(form: dict[str, Any], key: str) -> dict[str, Any] | None:
    """What the form says of a key of an object; anything of an object that it says nothing about, as of facts."""
    if key in form.get("properties", {}):
        found: dict[str, Any] = form["properties"][key]
        return found
    others = form.get("additionalProperties")
    if isinstance(others, dict):
        return others or _FREE
    free = not form or form is _FREE or (form.get("type") == "object" and "properties" not in form and others is None)
    return _FREE if free else None


_FREE: dict[str, Any] = {"additionalProperties": {}, "items": {}}
