"""What the protocol answers: its JSON, the names of submissions, and the states of drivers."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from fairlog.engines.spark.driver import CANNOT_START

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App

Json = str | bool | list[str] | None
VERSION = "v1"
"""The protocol's only version."""
UNKNOWN_VERSION = 468
"""The HTTP status by which the protocol refuses another one."""
_APP, _DRIVER = "app-", "driver-"
_DIGITS = 10
_NOT_STARTED = tuple(f"its driver ended with exit code {code}" for code in (CANNOT_START, 126, 127))
"""How an app ends whose driver's program could not be started; its last line says why."""
_ENDS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "expired": "KILLED", "unmet": "ERROR"}
_LOST = "its driver was lost with worker "


def new_app() -> str:
    """The id of an app to submit: the time (UTC) and ten random digits, so that its submission is named as Spark's are.

    Clients know the name of a submission by its digits and dashes.
    """
    return f"{_APP}{time.strftime('%Y%m%d%H%M%S', time.gmtime())}-{secrets.randbelow(10**_DIGITS):0{_DIGITS}d}"


def submission_of(app: str) -> str:
    """The name of an app's submission: it follows from the app's id alone, wherever it is asked for."""
    return f"{_DRIVER}{app.removeprefix(_APP)}" if app.startswith(_APP) else app


def app_of(submission: str) -> str:
    """The app whose submission has that name."""
    return f"{_APP}{submission.removeprefix(_DRIVER)}" if submission.startswith(_DRIVER) else submission


def driver_state(app: App) -> str:
    """The state of an app's driver in the protocol's words. One that waits again, being supervised, is relaunched."""
    if app.ended is not None:
        return "ERROR" if could_not_start(app) or app.detail.startswith(_LOST) else _ENDS[app.ended]
    if app.driver is not None:
        return "RUNNING"
    return "RELAUNCHING" if app.tries.next_driver else "SUBMITTED"


def could_not_start(app: App) -> bool:
    """Whether the app failed because its driver's program could not be started."""
    return app.ended == "failed" and app.detail in _NOT_STARTED


def written(value: Mapping[str, Any]) -> bytes:
    """The answer as Spark writes it, a field a line and ` : ` between, as clients read it that know no JSON."""
    return json.dumps(value, indent=2, separators=(",", " : ")).encode()


def answer(
    action: str, spark: str, status: int = 200, headers: Mapping[str, str] | None = None, **fields: Json
) -> Response:
    """An answer of that kind by a server of that version of Spark; fields that are None are left out."""
    said = {"action": action, "serverSparkVersion": spark, **fields}
    body = written({name: said[name] for name in sorted(said) if said[name] is not None})
    return Response(body, status, headers, "application/json")


def refused(why: str, spark: str, status: int, headers: Mapping[str, str] | None = None, **fields: Json) -> Response:
    """An answer that says in a sentence why the request was refused."""
    return answer("ErrorResponse", spark, status, headers, message=why, **fields)
