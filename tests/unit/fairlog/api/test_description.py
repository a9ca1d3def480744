"""The API answers as its description says, whatever it is sent and whoever sends it: schemathesis makes the requests.

The application is called without a server, so what it fails to foresee is raised here.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote_to_bytes, urlsplit

import fakeredis
import httpx
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from fairlog.api.app import Door, make_app
from fairlog.api.audit_file import audited
from fairlog.api.feed import Feed
from fairlog.api.limits import Rates
from fairlog.api.openapi import description
from fairlog.api.routes import OPEN, ROUTES
from scheduler.model.commands import AddAccount, IssueToken, RegisterCompany
from scheduler.model.events import CommandRefused, RefusalsOmitted
from scheduler.model.sender import By
from scheduler.rules.command.permission import MATRIX
from scheduler.service.tokens import new_token
from tests.unit.fairlog.api.described import unnamed
from tests.unit.fairlog.api.served import ACME, ROOT, WORKER, served, submission
from tests.waiting import HOPELESS_S, wait_until

if TYPE_CHECKING:
    from fairlog.api.handlers import Handlers
    from fairlog.api.routes import Route

EXAMPLES = 2
MODES = ("valid", "invalid")
ASKED = [route for route in ROUTES if route.answer != "events"]
ACCOUNTS = {
    "operator": "op/root",
    "admin": "acme/adm",
    "user": "acme/ann",
    "worker": "worker/w1",
    "foreign": "zeta/zoe",
}
REFUSED = {"nobody", "expired"}


class Rig(NamedTuple):
    """The application, and the `Authorization` of each caller: one for each role, and such as nobody may be let in."""

    api: Handlers
    ask: Callable[[Any, str | None], httpx.Response]
    callers: dict[str, str]

    def changed(self, before: int) -> set[str]:
        """The events after position `before` that commands caused, other than their refusals."""
        log = self.api.replica.log
        head = log.head().seq
        facts = () if head == before else log.facts(log.before(before))
        due = [fact for fact in facts if fact.seq > before and fact.by.account]
        return {str(fact) for fact in due if not isinstance(fact.event, CommandRefused | RefusalsOmitted)}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with (
        pytest.MonkeyPatch.context() as patch,
        served(fakeredis.FakeRedis(server=fakeredis.FakeServer()), timeout_s=HOPELESS_S) as api,
        asyncio.Runner() as runner,
    ):
        patch.setattr("fairlog.api.app.WAIT_S", 0.01)
        patch.setattr("fairlog.api.board.audit_file", lambda text: audited(io.BytesIO(text)))
        tokens = {name: new_token() for name in (*ACCOUNTS, "expired")}
        accounts = {**ACCOUNTS, "expired": ACCOUNTS["operator"]}
        for command in (ACME, RegisterCompany(company="zeta")):
            api.sender.send(ROOT, command)
        for name, account in ACCOUNTS.items():
            api.sender.send(ROOT, AddAccount(account=account, role="admin" if name == "admin" else None))
        for name, token in tokens.items():
            lifetime_s = 1 if name == "expired" else None
            issued = IssueToken(token=token.id, account=accounts[name], hash=token.hash, lifetime_s=lifetime_s)
            api.sender.send(ROOT, issued)
        api.sender.send(By("worker/w1", tokens["worker"].id, "worker"), WORKER)
        last = api.sender.send(By("acme/ann", tokens["user"].id, "user"), submission("a"))
        assert api.replica.wait_for(last.seq, HOPELESS_S)
        ends = api.replica.peek(lambda state: state.accounts.tokens[tokens["expired"].id].expires)
        wait_until(lambda: time.time() * 1000 > ends, "the token's end")
        ticks = iter(range(0, 10**9, 1000))
        door = Door(api, Feed(), Rates(lambda: next(ticks)))
        app, api.replica.heard = make_app(door, at_home=False), door.heard
        callers = {name: f"Bearer {token.text}" for name, token in tokens.items()}
        runner.get_loop().call_soon(door.feed.start)
        yield Rig(api, lambda case, who: runner.run(_answer(app, case, who)), {"nobody": "", **callers})


async def _answer(app: Any, case: Any, who: str | None) -> httpx.Response:
    """The answer to the case, sent as a server would pass it on; `who` replaces its `Authorization`, None leaves it."""
    about = case.as_transport_kwargs(base_url="http://api")
    if who is not None:
        about["headers"] = {name: text for name, text in about["headers"].items() if name.lower() != "authorization"}
        about["headers"] |= {"Authorization": who} if who else {}
    known = {"method", "url", "headers", "cookies", "params", "json", "data"}
    sent = requests.Request(**{name: value for name, value in about.items() if name in known}).prepare()
    url, body = urlsplit(str(sent.url)), cast("str | bytes", sent.body or b"")
    headers = [(_bytes(name).lower(), _bytes(text)) for name, text in sent.headers.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": unquote_to_bytes(url.path).decode(errors="replace"),
        "raw_path": url.path.encode(),
        "query_string": url.query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("api", 80),
        "state": {},
    }
    parts = [{"type": "http.request", "body": body if isinstance(body, bytes) else body.encode(), "more_body": False}]
    begun: list[Any] = []
    content: list[bytes] = []

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Future[Any]()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            begun.append(message)
        else:
            content.append(message.get("body", b""))

    await app(scope, receive, send)
    asked = httpx.Request(str(sent.method), str(sent.url))
    answer = httpx.Response(begun[0]["status"], headers=begun[0]["headers"], content=b"".join(content), request=asked)
    answer.elapsed = timedelta()
    return answer


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1", "replace")


@pytest.fixture(scope="module")
def requests_of() -> Callable[[str, str, str], Any]:
    """Makes a strategy for the requests of a route. Only the process that runs these tests loads schemathesis."""
    import schemathesis

    @schemathesis.serializer("application/x-ndjson")
    def _(_: object, value: object) -> bytes:
        return str(value).encode(errors="replace")

    schema = schemathesis.openapi.from_dict(description())
    modes = dict(zip(MODES, (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE), strict=True))

    @cache
    def made(path: str, method: str, mode: str) -> Any:
        return schema[path][method].as_strategy(generation_mode=modes[mode])

    return made


def check(rig: Rig, route: Route, case: Any, who: str | None) -> None:
    from schemathesis.specs.openapi import checks

    before = rig.api.replica.log.head().seq
    answer = rig.ask(case, None if who is None else rig.callers[who])
    assert answer.status_code < 500 or (answer.status_code == 503 and "retry-after" in answer.headers), answer.text
    conforms = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
    case.validate_response(answer, checks=conforms)
    if answer.status_code == 200 and answer.headers["content-type"] == "application/json":
        assert unnamed(route, answer.json()) == []
    if who in REFUSED:
        assert answer.status_code >= 400 or route.answer in OPEN, f"{who} is let in: {answer.text}"
    if answer.status_code >= 400:
        assert rig.changed(before) == set(), "what was refused has changed something"


def served_to(route: Route) -> str:
    """Who may ask for it: one of a role that the matrix names."""
    roles = MATRIX[route.verb] if route.verb else ACCOUNTS
    return next(name for name in ACCOUNTS if name in roles)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("route", ASKED, ids=lambda route: route.name)
def test_every_answer_is_one_that_the_description_promises(
    rig: Rig, route: Route, mode: str, requests_of: Callable[[str, str, str], Any]
) -> None:
    """Each request is sent as it was made, with no token, an expired, a foreign and a good one."""

    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=requests_of(route.path, route.method, mode))
    def story(case: Any) -> None:
        if isinstance(waits := (case.query or {}).get("wait"), int):
            case.query["wait"] = min(waits, 10)
        for who in (None, *sorted(REFUSED), "foreign", served_to(route)):
            check(rig, route, case, who)

    with suppress(Unsatisfiable):  # nothing that takes no parameter can be sent a wrong one
        story()
    rig.api.replica.check()


def test_every_json_answer_is_described_and_every_reference_is_to_something() -> None:
    described = description()
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert set(re.findall(r'"(#/components/schemas/[^"]+)"', json.dumps(described))) <= known
    shown = {route.name for route in ROUTES if route.answer in {"value", "list", *OPEN, "session", "pass"}}
    assert not [route.name for route in ROUTES if route.name in shown and route.shows is None]
