"""How workers ask API servers, whose URLs may have a path of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from workers.api_door import ApiExecutorDoor
from workers.door import Begun
from workers.rundir import RunDir
from workers.servers import Servers


@contextmanager
def listening(answer: bytes = b"{}") -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything so, its URL, and what it was asked for."""
    asked: list[str] = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name is http.server's
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("path", "due"), [("", ""), ("/", ""), ("/fairlog", "/fairlog"), ("/a/b/", "/a/b")])
def test_a_worker_asks_below_the_path_of_the_url(path: str, due: str) -> None:
    with listening() as (url, asked):
        assert Servers(url + path, lambda: "").call("POST", "/v1/workers/w1/leave", dict[str, str], {}) == {}
    assert asked == [f"{due}/v1/workers/w1/leave"]


def test_a_program_finds_the_mailbox_where_its_worker_finds_the_server(tmp_path: Path) -> None:
    told = [(name, name) for name in (b"FAIRLOG_MAILBOX", b"ADDED")]
    with listening(msgspec.json.encode(Begun(granted=True, secrets=told))) as (url, asked):
        door = ApiExecutorDoor(f"{url}/fairlog", "w1", "a.0", "t", RunDir(tmp_path, "w1"))
        assert door.secrets() == {"FAIRLOG_MAILBOX": f"{url}/fairlog", "ADDED": "ADDED"}
        door.ring()
    assert asked == ["/fairlog/v1/workers/w1/executors/a.0/begin"]
