"""A client goes on to the next API server when one hangs or cannot answer, and waits for one that works."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairlog.api import async_client, connections
from fairlog.api.async_client import AsyncApiClient
from fairlog.api.client import ApiClient
from fairlog.cli.main import cli
from fairlog.cli.session import api_at
from fairlog.errors import Unreachable
from scheduler.service.tokens import new_token
from tests.waiting import HOPELESS_S, wait_until

NEVER_S = 100_000.0
"""So long does the client wait for an answer."""


class Server:
    """An API server that says of itself that it is `health` (a status, 0 = nothing), and answers once it may.

    Before, it says nothing, or why it cannot answer if it `refuses`.
    """

    def __init__(self, health: int, *, answers: bool, refuses: str = "") -> None:
        self.refuses = refuses
        self.health, self.may_answer, self.over = health, threading.Event(), threading.Event()
        self.asked: list[str] = []
        if answers:
            self.may_answer.set()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def serving(self) -> Iterator[Server]:
        """While it serves."""
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ours.asked.append(self.path)
                status = ours.health if self.path == connections.HEALTH else 200
                body = json.dumps({"value": {"server": ours.port}}).encode()
                if ours.refuses and not ours.may_answer.is_set():
                    status = 503
                    body = json.dumps({"title": "NotReady", "detail": ours.refuses}).encode()
                elif not status or (self.path != connections.HEALTH and not ours.may_answer.wait(HOPELESS_S)):
                    ours.over.wait(HOPELESS_S)
                    return
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ExitStack() as stack:
            server.daemon_threads = True
            self.port = server.server_address[1]
            threading.Thread(target=server.serve_forever).start()
            stack.callback(server.shutdown)
            stack.callback(self.over.set)
            stack.callback(self.may_answer.set)
            yield self


Ask = Callable[[list[str]], Any]


def by_thread(urls: list[str]) -> Any:
    with ApiClient(urls, token="t", timeout_s=NEVER_S) as client:
        return client.read("/v1/whoami")["server"]


def by_asyncio(urls: list[str]) -> Any:
    async def ask() -> Any:
        async with AsyncApiClient(urls, token="t", timeout_s=NEVER_S) as client:
            return (await client.call("read", "/v1/whoami"))["server"]

    return asyncio.run(ask())


@pytest.fixture(params=[by_thread, by_asyncio])
def ask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ask:
    for module in (connections, async_client):
        monkeypatch.setattr(module, "LOOK_S", 0.05)
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("health", [0, 503], ids=["hangs", "cannot answer"])
def test_a_server_that_does_not_answer_is_left_for_one_that_is_well(
    ask: Ask, health: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connections, async_client):
        monkeypatch.setattr(module, "HEALTH_S", 0.5)
    with (
        Server(health, answers=False).serving() as hangs,
        Server(200, answers=True).serving() as well,
        ThreadPoolExecutor() as pool,
    ):
        assert pool.submit(ask, [hangs.url, well.url]).result(timeout=HOPELESS_S) == well.port


def test_threads_that_share_a_client_do_not_go_back_to_a_server_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_S", 0.05)
    path = "/v1/whoami"
    with (
        Server(503, answers=False).serving() as hangs,
        Server(200, answers=True).serving() as well,
        ThreadPoolExecutor() as pool,
        ApiClient([hangs.url, well.url], token="t", timeout_s=NEVER_S) as client,
    ):
        well.health = 503
        asked = [pool.submit(client.read, path) for _ in range(2)]
        wait_until(lambda: hangs.asked.count(path) == 2, "both to ask")
        well.health = 200
        assert [each.result(timeout=HOPELESS_S)["server"] for each in asked] == [well.port] * 2
        assert hangs.asked.count(path) == 2


def test_a_server_that_works_for_long_is_waited_for(ask: Ask) -> None:
    with Server(200, answers=False).serving() as slow, Server(200, answers=True).serving() as other:
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask, [slow.url, other.url])
            wait_until(lambda: slow.asked.count(connections.HEALTH) > 2, "the client to look twice")
            slow.may_answer.set()
            assert asked.result(timeout=HOPELESS_S) == slow.port
        assert other.asked == []


def test_a_server_is_not_left_while_no_other_one_is_well(ask: Ask) -> None:
    with Server(503, answers=False).serving() as first, Server(503, answers=True).serving() as other:
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask, [first.url, other.url])
            wait_until(lambda: other.asked.count(connections.HEALTH) > 2, "the client to look twice")
            first.may_answer.set()
            assert asked.result(timeout=HOPELESS_S) == first.port
        assert set(other.asked) == {connections.HEALTH}


NO_MAJORITY = "the store does not answer (2 sentinels of fairlog have to name the primary: 1 named 10.0.0.1:6379)"


def test_whoever_waits_is_told_once_why_no_server_can_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a server says of the store tells more than that another one is silent."""
    monkeypatch.setattr("fairlog.api.client.NOTE_S", 0.0)
    with socket.socket() as closed, Server(503, answers=False, refuses=NO_MAJORITY).serving() as cut_off:
        closed.bind(("127.0.0.1", 0))
        urls = f"{cut_off.url},http://127.0.0.1:{closed.getsockname()[1]}"
        with ThreadPoolExecutor() as pool, api_at(urls, "t", NEVER_S) as client:
            asked = pool.submit(client.read, "/v1/whoami")
            wait_until(lambda: len(cut_off.asked) > 2, "the client to ask again and again")
            cut_off.may_answer.set()
            assert asked.result(timeout=HOPELESS_S) == {"server": cut_off.port}
    said = capsys.readouterr().err
    assert said == f"note: {NO_MAJORITY}; waiting up to {NEVER_S:g} s for an API server that can answer\n"


@pytest.mark.parametrize("verb", [("login",), ("worker",)])
def test_whoever_joins_is_told_which_server_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.setattr("fairlog.api.client.NOTE_S", 0.0)
    monkeypatch.setattr(api_at, "__defaults__", (0.5,))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FAIRLOG_TOKEN", new_token().text)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        said = CliRunner().invoke(cli, [*verb, "--api", url], input=new_token().text)
    assert said.exit_code == 1
    why = f"no API server answers at {url}: [Errno 111] Connection refused"
    assert said.stderr.startswith(f"note: {why}; waiting up to 0.5 s for an API server that can answer\n")


def test_a_client_that_gives_up_says_what_a_server_said_of_the_store() -> None:
    with socket.socket() as closed, Server(503, answers=False, refuses=NO_MAJORITY).serving() as cut_off:
        closed.bind(("127.0.0.1", 0))
        urls = [cut_off.url, f"http://127.0.0.1:{closed.getsockname()[1]}"]
        with ApiClient(urls, token="t", timeout_s=0) as client, pytest.raises(Unreachable) as found:
            client.read("/v1/whoami")
    assert str(found.value) == NO_MAJORITY
