"""The server: slow clients, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from fairlog.api import serve
from fairlog.api.app import Door
from fairlog.api.feed import Feed
from fairlog.api.serve import Where
from tests.unit.fairlog.api.served import served
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    import fakeredis

    from fairlog.api.handlers import Handlers

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""httpx would load all certificate authorities for each client otherwise, even for a Unix socket."""


@asynccontextmanager
async def serving(
    api: Handlers, folder: Path, address: tuple[str, int] | None = None, *, plain: bool = False
) -> AsyncIterator[Path]:
    """The Unix socket of a server, which SIGTERM stops at the end."""
    folder.chmod(0o700)
    where = Where(folder / "api.sock", address, plain=plain)
    server = asyncio.create_task(serve._serve(Door(api, Feed()), where, serve._sockets(where)))
    async with asyncio.timeout(HOPELESS_S):
        while (await asyncio.to_thread(_ask, folder / "api.sock")) != 200:
            assert not server.done()
        yield folder / "api.sock"
        os.kill(os.getpid(), signal.SIGTERM)
        await server


def _ask(path: Path) -> int:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path), verify=NO_TLS)) as client:
            return client.get("http://a/v1/health").status_code
    return 0


HEAD = b"POST /v1/commands HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /v1/hea", HEAD, HEAD + b'{"commands":'])
def test_a_client_that_never_ends_its_request_is_cut_off(
    fake: fakeredis.FakeRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(serve, "REQUEST_S", 0.2)

    async def story() -> None:
        async with serving(api, tmp_path) as path:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(sent)
            with suppress(ConnectionResetError):
                assert not await reader.read()
            writer.close()

    with served(fake) as api:
        asyncio.run(story())


def test_a_client_whose_headers_have_no_end_is_cut_off(fake: fakeredis.FakeRedis, tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(api, tmp_path) as path:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"GET /v1/health HTTP/1.1\r\nhost: a\r\n")
            with suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b"x: " + b"y" * 8000 + b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(0)
            with suppress(ConnectionError):
                assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request")
            writer.close()

    with served(fake) as api:
        asyncio.run(story())


def test_an_address_holds_no_more_than_its_part_of_the_connections(
    fake: fakeredis.FakeRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "OF_ADDRESS", 2)
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        address = reserved.getsockname()

        async def story() -> None:
            async with serving(api, tmp_path, address):
                held = [await asyncio.open_connection(*address) for _ in range(2)]
                for reader, writer in held:
                    writer.write(b"GET /v1/health HTTP/1.1\r\nhost: a\r\n\r\n")
                    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
                for _ in range(3):
                    reader, writer = await asyncio.open_connection(*address)
                    with suppress(ConnectionError):
                        assert not await reader.read()
                    writer.close()
                held.pop()[1].close()
                async with asyncio.timeout(HOPELESS_S):
                    while serve.Impatient._of.total() > 1:
                        await asyncio.sleep(0.01)
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"GET /v1/health HTTP/1.1\r\nhost: a\r\n\r\n")
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
                for made in (writer, held.pop()[1]):
                    made.close()

        with served(fake) as api:
            asyncio.run(story())


def test_ipv4_clients_of_an_ipv6_socket_are_counted_one_by_one(
    fake: fakeredis.FakeRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "OF_ADDRESS", 1)
    with socket.socket(socket.AF_INET6) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("::ffff:127.0.0.1", 0))
        host, port = reserved.getsockname()[:2]

        async def story() -> None:
            async with serving(api, tmp_path, (host, port), plain=True):
                made = []
                for place in ("127.0.0.1", "127.0.0.2"):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(place, 0))
                    writer.write(b"GET /v1/health HTTP/1.1\r\nhost: a\r\n\r\n")
                    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
                    made.append(writer)
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
                with suppress(ConnectionError):
                    assert not await reader.read()
                for each in (*made, writer):
                    each.close()

        with served(fake) as api:
            asyncio.run(story())


def test_a_connection_is_kept_while_its_requests_are_answered(
    fake: fakeredis.FakeRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "REQUEST_S", 1.0)

    async def story() -> None:
        async with serving(api, tmp_path) as path:
            reader, writer = await asyncio.open_unix_connection(path)
            start = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < start + 1.5:
                for part in (b"GET /v1/health HT", b"TP/1.1\r\nhost: a\r\n\r\n"):
                    writer.write(part)
                    await writer.drain()
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            writer.close()

    with served(fake) as api:
        asyncio.run(story())


def test_a_stop_answers_what_is_open_without_a_trace(
    fake: fakeredis.FakeRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve, "STOP_S", 0.2)
    asked, over = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> None:
        asked.set()
        over.wait(30)

    async def ask(path: Path, url: str) -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path), verify=NO_TLS), timeout=30
        ) as client:
            return await client.request(
                "POST" if "companies" in url else "GET", f"http://a{url}", json={"company": "a"}
            )

    async def story() -> None:
        async with serving(api, tmp_path) as path:
            urls = ("/v1/companies", "/v1/settings?after=1000000", "/v1/log/events")
            asking = [asyncio.create_task(ask(path, url)) for url in urls]
            assert await asyncio.to_thread(asked.wait, 30)
        command, read, stream = await asyncio.gather(*asking)
        over.set()
        assert (command.status_code, command.json()["title"]) == (503, "Unavailable")
        assert (read.status_code, read.json()["title"]) == (503, "Unavailable")
        assert stream.status_code == 200

    with served(fake) as api:
        monkeypatch.setattr(api.sender._client, "send", wait)
        asyncio.run(story())
    assert not [record for record in caplog.records if record.exc_info]


def test_a_server_leaves_files_for_its_store_and_its_log() -> None:
    assert [serve.most_connections(files) for files in (100, 1_024, 65_536)] == [1, 768, serve.MAX_CONNECTIONS]
