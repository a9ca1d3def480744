"""People sign in at an OpenID provider: a provider, an API server and the command line, each over its own sockets."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import httpx
import pytest

from fairlog.local.running import RECORD
from tests.integration.cli_rig import Answer, Service, Shell
from tests.unit.fairlog.api.idp import Idp, unsigned
from tests.waiting import wait_until

BROWSER = """
import sys, urllib.request
urllib.request.urlopen(sys.argv[1]).read()
"""
"""A browser without a window: it asks the provider and goes where it is sent."""


class Provider:
    """The provider behind a port; while it is down, nobody listens there."""

    def __init__(self) -> None:
        self._server = self._listening(0)
        self.idp = Idp(f"http://127.0.0.1:{self._server.server_port}")

    def _listening(self, port: int) -> ThreadingHTTPServer:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length", 0)))
                url = f"{provider.idp.issuer}{self.path}"
                answer = provider.idp(httpx.Request(self.command, url, content=content))
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.content)

            do_POST = do_GET  # noqa: N815 (as its base class names it)

            def log_message(self, *_: object) -> None:
                pass

        made = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        return made

    @contextmanager
    def down(self) -> Iterator[None]:
        self.close()
        yield
        self._server = self._listening(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Door(NamedTuple):
    """An API server that knows the provider, and somebody who knows its URL only."""

    provider: Provider
    url: str
    owner: Shell
    ann: Shell

    def login(self) -> Answer:
        return self.ann.run("login", "--oidc", "--api", self.url)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("oidc")
    owner, ann, provider = Shell(folder / "owner"), Shell(folder / "ann"), Provider()
    browser = folder / "browser.py"
    browser.write_text(BROWSER)
    ann.env["BROWSER"] = f"{sys.executable} {browser} %s"
    owner.ok("up", "--detach", "--workers", "0", "--masters", "1")
    owner.ok("company", "add", "acme")
    for account in ("op/oidc", "acme/ann"):
        owner.ok("account", "add", account)
    about = {
        "issuer": provider.idp.issuer,
        "client_id": "fairlog",
        "token": owner.ok("token", "new", "op/oidc").strip(),
    }
    file = owner.home / "oidc.json"
    file.touch(0o600)
    file.write_text(json.dumps(about))
    with Service(owner, "api", "--listen", "127.0.0.1:0", "--oidc", str(file)) as api:
        api.hear("READY=1")
        url = next(str(entry["at"]) for entry in api.entries() if "at" in entry)
        yield Door(provider, url, owner, ann)
    provider.close()
    owner.ok("down")


def test_somebody_signs_in_and_out_and_in_after_the_provider_has_another_key(door: Door) -> None:
    for rotated in (False, True):
        if rotated:
            door.provider.idp.rotate()
        answer = door.login()
        assert answer.out == "logged in as acme/ann; `fairlog logout` ends it\n", answer
        assert "acme/ann" in door.ann.ok("whoami")
        assert door.ann.ok("logout") == "logged out; the token is revoked\n"


@pytest.mark.parametrize(
    ("lies", "says"),
    [
        ({"aud": "wiki"}, "the provider's ID token is not valid"),
        ({"nonce": "n" * 32}, "the provider's ID token is not valid"),
        ({"exp": 1_000}, "the provider's ID token is not valid"),
        ({"fairlog_account": "acme/eve"}, "there is no account acme/eve"),
        (None, "the provider's ID token is not valid"),
    ],
)
def test_who_does_not_prove_an_account_is_told_so_and_not_logged_in(
    door: Door, lies: dict[str, object] | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lies is None:
        monkeypatch.setattr("joserfc.jwt.encode", unsigned)
    monkeypatch.setattr(door.provider.idp, "lies", lies or {})
    answer = door.login()
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith(f"Error: {says}"), answer
    assert door.ann.run("logout").err == "Error: you are not logged in; `fairlog login` logs you in\n"


def test_while_the_provider_is_down_nobody_signs_in_and_afterwards_everybody(door: Door) -> None:
    with door.provider.down():
        asked = {"code": "c", "verifier": "v" * 43, "redirect": "http://127.0.0.1:1/", "nonce": "n" * 32}
        token = {"token": "a" * 16, "hash": "0" * 64}
        answers: list[httpx.Response] = []

        def is_answered() -> bool:
            answers.append(httpx.post(f"{door.url}/v1/sign-in", json={**asked, **token}))
            return answers[-1].status_code != 429  # the tests before have asked often

        wait_until(is_answered, "an answer")
        answer = answers[-1]
        assert (answer.status_code, answer.json()["title"]) == (503, "NoProvider")
        assert answer.json()["detail"].startswith(f"{door.provider.idp.issuer} does not answer: ")
    assert door.login().code == 0
    door.ann.ok("logout")


def test_a_server_without_a_provider_says_what_to_do_instead(door: Door) -> None:
    record = json.loads(next(door.owner.home.rglob(RECORD)).read_text())
    answer = door.ann.run("login", "--oidc", "--api", record["api"])
    assert (answer.code, answer.err) == (
        1,
        "Error: this server knows no OpenID provider; `fairlog login` takes a token or an invitation\n",
    )
