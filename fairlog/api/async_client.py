"""The client of the API for asyncio: `AsyncApiClient`, the twin of `fairlog.api.client.ApiClient`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar

import httpx

from fairlog.api.addresses import UNIX
from fairlog.api.client import LATER_S, RETRY_S, Base, Note, Pause, Send, Steps, error_of, event_of
from fairlog.api.connections import CONNECT_S, HEALTH, HEALTH_S, LOOK_S, HttpRequest, Lost, Response
from scheduler.model.versions import HEADER, MESSAGES
from scheduler.store.lost import signs_of_life

T = TypeVar("T")
_SIGNS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, option, value) for option, value in signs_of_life().items()),
]


class AsyncApiClient(Base):
    """As `ApiClient`, for asyncio."""

    def __init__(
        self, urls: str | Sequence[str] | None = None, *, token: str | None = None, timeout_s: float = 30
    ) -> None:
        super().__init__(urls, token, timeout_s)
        self._transports = [httpx.AsyncHTTPTransport(**each) for each in self._ways()]
        self._bases = ["http://fairlog" if url.startswith(UNIX) else url.rstrip("/") for url in self._urls]
        self._extensions = {"timeout": httpx.Timeout(timeout_s + LATER_S, connect=CONNECT_S).as_dict()}

    def _ways(self) -> Iterator[dict[str, Any]]:
        """The arguments of each server's transport.

        Only https:// gets the certificate authorities, which take 40 ms to load; other connections trust none.
        """
        for url in self._urls:
            path = url.removeprefix(UNIX) if url.startswith(UNIX) else None
            trusted = True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            yield {"uds": path, "verify": trusted, "trust_env": False, "socket_options": None if path else _SIGNS}

    def _built(self, step: Send) -> httpx.Request:
        """The request for a transport. An httpx client would add what needs more time than the server's answer."""
        method, _, _, content, headers = step.request
        return httpx.Request(
            method,
            step.request.target(self._bases[step.server]),
            headers={HEADER: str(MESSAGES), **self._headers, **headers},
            content=content,
            extensions=self._extensions,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        for transport in self._transports:
            await transport.aclose()

    async def call(self, method: str, /, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 (as the method)
        """What that method of an `ApiClient` returns: send, submit, send_many, view, read, output, states …."""
        return await self._do(getattr(self._talk, method)(*arguments, **named))

    async def log(self, after: int = 0, *, reason: str = "") -> AsyncIterator[dict[str, Any]]:
        """The events of the log after position `after`, up to its present end, as `fairlog log --json` prints them."""
        while found := await self._do(self._talk.entries(after, reason)):
            for event in found:
                yield event
            after = found[-1]["seq"]

    async def follow(self, path: str = "/v1/log/events", after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """The events of the stream at `path` after position `after` as they are committed, without end."""
        while True:
            await self._do(self._talk.check())
            send = self._talk.follow(path, after)
            try:
                answer = await self._transports[send.server].handle_async_request(self._built(send))
                async with aclosing(answer):
                    if answer.status_code >= 400:
                        raise error_of(Response(answer.status_code, await answer.aread()))
                    async for line in answer.aiter_lines():
                        event = event_of(line.encode())
                        if event is not None:
                            after = event["seq"]
                            yield event
            except httpx.TransportError:
                await asyncio.sleep(RETRY_S)

    async def _do(self, steps: Steps[T]) -> T:
        got: Response | Lost | None = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            got = None
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                continue
            if isinstance(step, Note):
                continue
            try:
                got = await self._answered(step)
            except (httpx.TransportError, Lost) as error:
                got = Lost(str(error))

    async def _answered(self, step: Send) -> Response:
        """The server's answer. Raises: Lost once another one is better off, as `ApiClient`; httpx's errors."""
        answering = asyncio.ensure_future(self._told(step))
        try:
            while len(self._transports) > 1 and not (await asyncio.wait({answering}, timeout=LOOK_S))[0]:
                others = [number for number in range(len(self._transports)) if number != step.server]
                if not await self._is_well(step.server) and any([await self._is_well(each) for each in others]):
                    raise Lost("it gives no sign of life, and another one does")
            return await answering
        finally:
            answering.cancel()

    async def _told(self, step: Send) -> Response:
        said = await self._transports[step.server].handle_async_request(self._built(step))
        async with aclosing(said):
            return Response(said.status_code, await said.aread(), said.headers.get("retry-after"))

    async def _is_well(self, server: int) -> bool:
        """Whether the server says so, within `HEALTH_S`."""
        try:
            async with asyncio.timeout(HEALTH_S):
                return (await self._told(Send(server, HttpRequest("GET", HEALTH)))).status_code < 400
        except (httpx.TransportError, TimeoutError):
            return False
