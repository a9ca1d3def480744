"""The running API answers as its description says, whatever it is sent: schemathesis makes the requests."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import fakeredis
import httpx
import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from fairlog.api.app import Door, make_app
from fairlog.api.feed import Feed
from fairlog.api.openapi import description
from fairlog.api.routes import ROUTES
from tests.unit.fairlog.api.served import ACME, ROOT, WORKER, served, submission

if TYPE_CHECKING:
    from fairlog.api.routes import Route

EXAMPLES = 3
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
MODES = ("valid", "invalid")
ASKED = [route for route in ROUTES if route.answer != "events"]


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """None: it runs in a thread."""


@pytest.fixture(scope="module", params=[True, False], ids=["operator", "nobody"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server with an app, for its operator and for somebody without a token."""
    with pytest.MonkeyPatch.context() as patch, served(fakeredis.FakeRedis(), timeout_s=5) as api:
        patch.setattr("fairlog.api.app.WAIT_S", 0.01)
        for command in (ACME, WORKER, submission("a")):
            api.send(ROOT, command)
        app = make_app(Door(api, Feed()), at_home=request.param)
        server = _Server(uvicorn.Config(app, log_config=None, access_log=False, http="httptools", ws="none"))
        listening = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="module")
def requests() -> Callable[[str, str, str], Any]:
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


def check(case: Any, url: str) -> None:
    from schemathesis.specs.openapi import checks

    answer = case.call(base_url=url)
    assert answer.status_code < 500 or (answer.status_code == 503 and "retry-after" in answer.headers)
    conforms = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
    case.validate_response(answer, checks=conforms)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("route", ASKED, ids=lambda route: route.name)
def test_every_answer_is_one_that_the_description_promises(
    url: str, route: Route, mode: str, requests: Callable[[str, str, str], Any]
) -> None:
    @settings(max_examples=EXAMPLES, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=requests(route.path, route.method, mode))
    def story(case: Any) -> None:
        check(case, url)

    with suppress(Unsatisfiable):  # nothing that takes no parameter can be sent a wrong one
        story()
    with httpx.HTTPTransport(verify=NO_TLS) as plain:
        assert plain.handle_request(httpx.Request("GET", f"{url}/v1/health")).status_code == 200
