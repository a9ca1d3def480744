"""What a request to create a submission says: its fields, and what each property and variable in them means here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from fairlog.api.problems import BadRequest
from fairlog.engines.spark.driver import INTERNAL, asked_of, overruled, path_of
from scheduler.model.errors import InvalidCommand

ACTION = "CreateSubmissionRequest"
TOKEN = "spark.master.rest.token"  # noqa: S105 (its name)
"""The property with the caller's token."""
COMPANY, USER, FOLDER = "spark.fairlog.company", "spark.fairlog.user", "spark.fairlog.folder"
SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
"""The main class whose arguments are those of spark-submit, by which Spark's documentation submits Python's apps."""
_FIELDS = (
    "action",
    "appArgs",
    "appResource",
    "clientSparkVersion",
    "environmentVariables",
    "mainClass",
    "message",
    "sparkProperties",
)
_ADDRESSED = ("spark.master", "spark.submit.deployMode")
"""What the request was sent by, and the driver must not have: it runs in client mode, with fairlog as its master."""
_OF_THE_MACHINE = {
    "SPARK_HOME": "the driver gets that of the API server",
    "SPARK_CONF_DIR": "the driver gets a configuration of its own",
    "SPARK_ENV_LOADED": "the driver gets a configuration of its own",
    "SPARK_LOCAL_IP": "it is that of the machine where it was submitted",
    "SPARK_LOCAL_HOSTNAME": "it is that of the machine where it was submitted",
}
"""Variables that do not count -> why."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{\{.*\}\}", re.DOTALL)
_DRIVERS_RESOURCE = "spark.driver.resource."
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._/$@+-]+")
_SCRIPTS = (".py", ".R", ".r")
_BOOLEANS = ("true", "false")


class Create(NamedTuple):
    """A driver to run: spark-submit's arguments, its whole configuration, its file of properties, and its variables.

    `folder` is the one that it sees. `company`, `user` and `token` are "" unless they are given. `said` has a sentence
    for each thing that does not count, `unknown` the fields that the protocol does not have.
    """

    arguments: tuple[str, ...]
    conf: dict[str, str]
    properties: str
    variables: dict[str, str]
    folder: str | None
    company: str
    user: str
    token: str
    said: tuple[str, ...]
    unknown: tuple[str, ...]


def read_create(body: bytes) -> Create:
    """The request. Raises: BadRequest, which says what is wrong in one sentence."""
    fields = _object(body)
    properties = _texts(fields, "sparkProperties")
    variables = _texts(fields, "environmentVariables", needed=False)
    token, company, user, folder = (properties.pop(name, "") for name in (TOKEN, COMPANY, USER, FOLDER))
    _check(properties, variables)
    idle = overruled(properties.keys() - {*_ADDRESSED})
    kept = {name: text for name, text in properties.items() if name not in {*_ADDRESSED, *idle}}
    idle |= {name: why for name, why in _OF_THE_MACHINE.items() if name in variables}
    try:
        arguments, program = _arguments(fields, kept)
        conf = {**kept, **asked_of(arguments).conf}
    except InvalidCommand as error:
        raise BadRequest(str(error)) from None
    return Create(
        arguments,
        conf,
        written(kept),
        {name: text for name, text in variables.items() if name not in _OF_THE_MACHINE},
        _folder(folder, program),
        company,
        user,
        token,
        tuple(f"{name} does not count: {why}" for name, why in idle.items()),
        tuple(sorted(name[:80] for name in fields if name not in _FIELDS)),
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {str(error)[:200]}; send a {ACTION}") from None
    if not isinstance(found, dict) or not isinstance(action := found.get("action"), str):
        raise BadRequest(f'the body must be a JSON object with "action": "{ACTION}"')
    if action != ACTION:
        raise BadRequest(f'"action" is {ACTION} here, not {action[:80]!r}')
    for name in ("clientSparkVersion", "appResource"):
        if not isinstance(found.get(name), str):
            raise BadRequest(f'the {ACTION} has no text "{name}"; it is needed')
    if not isinstance(found.get("mainClass"), str) or not found["mainClass"]:
        raise BadRequest(
            f'the {ACTION} has no text "mainClass"; it names the class to run, which of an app in Python is '
            f"{SPARK_SUBMIT}"
        )
    return found


def _texts(fields: Mapping[str, Any], field: str, *, needed: bool = True) -> dict[str, str]:
    """The field, an object whose values are texts; numbers and truth values are written as Spark's reader does."""
    found = fields.get(field)
    if found is None and not needed:
        return {}
    if not isinstance(found, dict):
        raise BadRequest(f'"{field}" must be an object of texts by name')
    return {name: _text(value, f"{name[:80]} in {field}") for name, value in found.items()}


def _text(value: Any, what: str) -> str:  # noqa: ANN401 (JSON)
    if isinstance(value, bool):
        return _BOOLEANS[0] if value else _BOOLEANS[1]
    if not isinstance(value, str | int | float):
        raise BadRequest(f"{what} must be a text")
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{what} has half of a character") from None
    if "\0" in str(value):
        raise BadRequest(f"{what} has a NUL character")
    return str(value)


def _check(properties: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Raises: BadRequest for what would be misread or could not act."""
    for name, text in (*properties.items(), *variables.items()):
        if _PLACEHOLDER.fullmatch(text):
            raise BadRequest(f"{name[:80]}: {text[:80]} would be a variable of Spark's Master; write its value")
    _check_properties(properties)
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            raise BadRequest(f"{name[:40]!r} in environmentVariables is not a name of a variable")
        if name.startswith(("FAIRLOG_", "_FAIRLOG_")):
            raise BadRequest(f"{name[:80]} in environmentVariables is a variable of fairlog; leave it out")


def _check_properties(properties: Mapping[str, str]) -> None:
    if "" in properties:
        raise BadRequest("a property in sparkProperties has no name")
    mode, supervise = (properties.get(name) for name in ("spark.submit.deployMode", "spark.driver.supervise"))
    if mode not in (None, "", "cluster"):
        raise BadRequest(f"spark.submit.deployMode is cluster here, not {str(mode)[:40]!r}")
    if supervise not in (None, *_BOOLEANS):
        raise BadRequest(f"spark.driver.supervise is true or false, not {str(supervise)[:40]!r}")
    for name in properties:
        if name.startswith(_DRIVERS_RESOURCE):
            raise BadRequest(
                f"{name[:80]}: a driver of Spark is granted cores and memory, no further kinds; leave it out"
            )


def _arguments(fields: Mapping[str, Any], properties: dict[str, str]) -> tuple[tuple[str, ...], str]:
    """spark-submit's arguments, and the app's file; its jar is no further one of `properties`.

    Raises: InvalidCommand, BadRequest.
    """
    given = fields.get("appArgs")
    if given is not None and not isinstance(given, list):
        raise BadRequest('"appArgs" must be a list of texts')
    args = tuple(_text(value, f"number {number} of appArgs") for number, value in enumerate(given or (), 1))
    resource, main = str(fields["appResource"]), str(fields["mainClass"])
    for what, text in (("appResource", resource), ("mainClass", main)):
        _text(text, what)
        if text.startswith("-"):
            raise BadRequest(f"{what} must not begin with a dash, as {text[:40]!r} does")
    jars = [jar for jar in properties.get("spark.jars", "").split(",") if jar.strip() and jar != resource]
    if main == SPARK_SUBMIT:
        jars += [resource] if resource else []
        if (asked := asked_of(args)).file is not None or asked.with_defaults:
            raise BadRequest(
                "the API server reads no file of properties: leave --properties-file and --load-spark-defaults out of "
                "appArgs, and write the lines into sparkProperties"
            )
    elif resource.endswith(_SCRIPTS):
        raise BadRequest(
            f"{PurePosixPath(resource).name[:80]} is a script, and mainClass is for a jar; as with Spark's Master, run "
            f'{SPARK_SUBMIT}, with "" as appResource and the script first of appArgs'
        )
    else:
        path = path_of(resource or INTERNAL)
        if path is not None and not path.startswith("/"):
            raise BadRequest(f"appResource must be a URL or an absolute path on the workers, not {resource[:80]!r}")
        args = ("--class", main, resource or INTERNAL, *args)
    properties.pop("spark.jars", None)
    properties |= {"spark.jars": ",".join(jars)} if jars else {}
    if not properties.get("spark.submit.pyFiles", "-"):
        del properties["spark.submit.pyFiles"]
    return args, asked_of(args).program


def _folder(named: str, program: str) -> str | None:
    """The folder that the driver sees: the one that is named, else that of the app's file."""
    if named and not named.startswith("/"):
        raise BadRequest(f"{FOLDER} must be an absolute path on the workers, not {named[:80]!r}")
    path = path_of(program)
    if named or path is None or not path.startswith("/"):
        return named or None
    return str(PurePosixPath(path).parent)


def written(properties: Mapping[str, str]) -> str:
    """The properties as a file that Java reads as they are; one line each."""
    return "".join(f"{_escaped(name, _PLAIN_NAME)}={_escaped_value(text)}\n" for name, text in properties.items())


def _escaped(text: str, plain: re.Pattern[str]) -> str:
    return "".join(each if plain.fullmatch(each) else "".join(_units(each)) for each in text)


def _escaped_value(text: str) -> str:
    """With escapes for blanks in front, which Java leaves out, for backslashes, and for all but printable ASCII."""
    blanks = len(text) - len(text.lstrip(" "))
    return r"\u0020" * blanks + _escaped(text[blanks:], _PLAIN_VALUE)


_PLAIN_VALUE = re.compile(r"[ -\[\]-~]")


def _units(character: str) -> Iterator[str]:
    """The escapes of a character, one for each unit of UTF-16."""
    units = character.encode("utf-16-be")
    for place in range(0, len(units), 2):
        yield f"\\u{units[place : place + 2].hex()}"
