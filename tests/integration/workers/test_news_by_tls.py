"""What an agent waits for at an API server with TLS: the answer, and no message of TLS itself."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.scheduler.test_tls import authority
from tests.waiting import HOPELESS_S
from workers import servers
from workers.api_door import ApiAgentDoor
from workers.rundir import RunDir
from workers.servers import Servers, has_answer

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Slow(NamedTuple):
    """A server that answers each request once it is told to, or ends the connection without an answer."""

    url: str
    tell: threading.Semaphore
    ends: threading.Event


def _answering(listening: socket.socket, context: ssl.SSLContext, slow: Slow) -> None:
    """Answer on one connection. The tickets of its session are sent with the handshake, as servers do."""
    line = context.wrap_socket(listening.accept()[0], server_side=True)
    with line:
        while line.recv(4096):
            slow.tell.acquire(timeout=HOPELESS_S)
            if slow.ends.is_set():
                return
            line.sendall(ANSWER)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    ours = authority(tmp_path / "tls")
    monkeypatch.setattr(servers, "trusted", lambda: ssl.create_default_context(cafile=str(ours.file)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.issue("127.0.0.1"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made = Slow(f"https://127.0.0.1:{listening.getsockname()[1]}", threading.Semaphore(0), threading.Event())
        thread = threading.Thread(target=_answering, args=(listening, context, made), daemon=True)
        thread.start()
        yield made
        made.ends.set()
        made.tell.release()
        thread.join(HOPELESS_S)


def becomes_readable(line: socket.socket) -> bool:
    return bool(select.select([line], [], [], HOPELESS_S)[0])


def test_tickets_of_a_session_are_no_answer_and_the_answer_is_whole(slow: Slow) -> None:
    asked = Servers(slow.url, lambda: "")
    line = asked.begin("GET", "/v1/news")
    assert becomes_readable(line.sock), "of the tickets"
    assert not has_answer(line)
    for _ in range(2):
        slow.tell.release()
        while not has_answer(line):
            assert becomes_readable(line.sock)
        assert asked.finish(line) == (200, b"{}")
        line = asked.begin("GET", "/v1/news")
    assert not has_answer(line)
    line.close()
    asked.close()


def test_an_agent_takes_no_server_for_dead_whose_session_has_tickets(slow: Slow, tmp_path: Path) -> None:
    files = RunDir(tmp_path, "w1")
    files.path.mkdir()
    with closing(ApiAgentDoor(slow.url, "w1", "t", files)) as agent:
        agent._wait()


def test_a_connection_that_ends_is_told_from_one_that_waits(slow: Slow) -> None:
    asked = Servers(slow.url, lambda: "")
    line = asked.begin("GET", "/v1/news")
    assert not has_answer(line)
    slow.ends.set()
    slow.tell.release()
    while not has_answer(line):
        assert becomes_readable(line.sock)
    with pytest.raises(ConnectionError):
        asked.finish(line)
    line.close()
