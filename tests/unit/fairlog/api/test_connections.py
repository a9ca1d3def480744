"""Connections of API servers to the store, and of clients to API servers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fairlog.api import app, connections
from fairlog.api.connections import Connections, HttpRequest, Lost
from fairlog.engines.keys import draw_keys
from scheduler.store.connection import connect
from tests.waiting import HOPELESS_S

THREADS = app.COMMANDS_AT_ONCE + app.WORK_AT_ONCE + app.VIEWS_AT_ONCE + 2 * app.READS_AT_ONCE + app.SIGN_INS_AT_ONCE


@pytest.mark.parametrize(
    "url",
    ["unix:///nowhere", "redis://localhost:1", "redis://one:1,two:1", "redis+sentinel://one:1/fairlog"],
)
def test_no_thread_lacks_a_connection_to_the_store(url: str) -> None:
    with connect(url) as store:
        assert store.connection_pool.max_connections > 2 * THREADS


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ASKED = HttpRequest("GET", "/v1/whoami")


@contextmanager
def server(answers: int, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server that answers so many requests on a connection, and then no more: its port."""

    def serve(line: socket.socket) -> None:
        with ExitStack() as closing:
            closing.enter_context(line)
            spoken = line if tls is None else closing.enter_context(tls.wrap_socket(line, server_side=True))
            for _ in range(answers):
                spoken.recv(4096)
                spoken.sendall(ANSWER)
            while spoken.recv(4096):
                pass

    def accept(listening: socket.socket) -> None:
        while True:
            try:
                line, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(line,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        taking = threading.Thread(target=accept, args=(listening,))
        taking.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            taking.join()


def test_no_thread_watches_a_server_that_answers_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(answers=3) as port:
        asking = Connections(f"http://127.0.0.1:{port}", HOPELESS_S)
        with monkeypatch.context() as patch:
            patch.setattr(connections, "threading", None)
            for _ in range(3):
                assert asking.ask(ASKED, {}, lambda: True).content == b"ok"
        asking.close()


@pytest.mark.parametrize("answers", [0, 1], ids=["at once", "after an answer"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_stops_answering_is_left(
    answers: int, scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one of TLS, which sends something before it answers."""
    monkeypatch.setattr(connections, "LOOK_S", 0.05)
    keys = draw_keys("app")
    file = tmp_path / "pair.pem"
    file.write_text(f"{keys.certificate}{keys.key}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with server(answers, tls if scheme == "https" else None) as port:
        asking = Connections(f"{scheme}://127.0.0.1:{port}", HOPELESS_S)
        asking._trusted = trusting
        for _ in range(answers):
            assert asking.ask(ASKED, {}, lambda: False).content == b"ok"
        with pytest.raises(Lost):
            asking.ask(ASKED, {}, lambda: True)
        asking.close()
