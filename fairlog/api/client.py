"""The clients of the API: `ApiClient`, and `AsyncApiClient`, its asyncio twin.

What they say and how they take the answers is written once, as generators of steps; a client only carries steps out.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from itertools import chain, pairwise
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from fairlog.api.addresses import TOKEN_VARIABLE, UNIX, URL_VARIABLE
from fairlog.api.routes import ROUTES
from fairlog.errors import Refused, Unreachable
from scheduler.model import errors
from scheduler.model.commands import BATCH, Command, SubmitApp, write_command
from scheduler.model.errors import CommandRejected, FairlogError, NoMaster, NotAuthenticated, refusal_of
from scheduler.model.sender import By
from scheduler.service.client import Receipt
from scheduler.service.receipts import SignedReceipt
from scheduler.store.tails import Stream, Tail

BATCH_BYTES = 240_000
"""The most bytes of a batch, within the server's limit for a request."""
MAIL_WAIT_S = 10.0
"""How long a server is asked to wait for a message."""
RETRY_S = 0.2
LATER_S = 2.0
"""How much longer than a server waits for a master the client waits for the server."""
_VIEWS = {route.view: route for route in ROUTES if route.view}
T = TypeVar("T")


class _Request(NamedTuple):
    """A request to any server."""

    method: str
    path: str
    query: Mapping[str, Any] = {}
    content: bytes | None = None
    headers: Mapping[str, str] = {}


class _Send(NamedTuple):
    """A step: send the request to the server of that number and give back the answer, or the error."""

    server: int
    request: _Request


class _Pause(NamedTuple):
    """A step: wait."""

    seconds: float


_Steps = Generator[_Send | _Pause, httpx.Response | httpx.TransportError | None, T]


def api_urls(named: str | Sequence[str]) -> list[str]:
    """URLs of API servers, from a list or separated by commas. Raises: Refused if there is none, or one is wrong."""
    urls = [url for url in (named.split(",") if isinstance(named, str) else named) if url]
    if not urls:
        raise Refused("NoServer", f"no API server is named; set {URL_VARIABLE} to its URL")
    for url in urls:
        if not url.startswith((UNIX, "http://", "https://")):
            raise Refused("NoServer", f"the URL of an API begins with http://, https:// or http+unix:, not {url!r}")
    return urls


def _mail(app: str, name: str) -> str:
    return f"/v1/apps/{quote(app, safe='')}/mail/{quote(name, safe='')}"


class _Talk:
    """What clients say: generators of steps that return what the caller gets."""

    def __init__(self, servers: int, timeout_s: float) -> None:
        self._servers = servers
        self.timeout_s = timeout_s
        self._server = 0
        """The server that answered last."""

    def ask(self, request: _Request) -> _Steps[httpx.Response]:
        """Ask one server after the other until one answers. Raises: the problem of the answer; Unreachable."""
        deadline = time.monotonic() + self.timeout_s
        refusal: Exception = Unreachable(f"no API server answered within {self.timeout_s:g} s")
        tried = 0
        while True:
            answer = yield _Send(self._server, request)
            pause_s = RETRY_S
            if isinstance(answer, httpx.Response):
                if answer.status_code < 400:
                    return answer
                refusal = _error_of(answer)
                if answer.status_code not in {429, 503}:
                    raise refusal
                pause_s = float(answer.headers["retry-after"]) if isinstance(refusal, Refused) else RETRY_S
            else:
                refusal = Unreachable(f"no API server answers: {answer}")
            self._server = (self._server + 1) % self._servers
            tried += 1
            if tried % self._servers == 0 or pause_s > RETRY_S:
                if time.monotonic() + pause_s >= deadline:
                    raise refusal
                yield _Pause(pause_s)

    def send(self, command: Command, secrets: Mapping[str, str], command_id: str | None) -> _Steps[Receipt]:
        outcome = (yield from self.batch([command], [secrets], command_id))[0]
        if isinstance(outcome, CommandRejected):
            raise outcome
        return outcome

    def batch(
        self, commands: Sequence[Command], secrets: Sequence[Mapping[str, str]], command_id: str | None
    ) -> _Steps[list[Receipt | CommandRejected]]:
        bodies = [_written(*each) for each in zip(commands, secrets, strict=True)]
        headers = {"content-type": "application/json", "idempotency-key": command_id or os.urandom(16).hex()}
        content = b'{"commands":[%b]}' % b",".join(bodies)
        answer = yield from self.ask(_Request("POST", "/v1/commands", {}, content, headers))
        said = msgspec.json.decode(answer.content)
        signed = msgspec.convert(said.get("receipt"), SignedReceipt | None)
        return [_outcome(each, signed) for each in said["answers"]]

    def send_many(self, commands: Sequence[Command]) -> _Steps[list[Receipt | CommandRejected]]:
        outcomes: list[Receipt | CommandRejected] = []
        for part in _parts(commands):
            outcomes += yield from self.batch(part, [{}] * len(part), None)
        return outcomes

    def view(self, name: str, arguments: Mapping[str, Any], at: int | None) -> _Steps[Any]:
        if name not in _VIEWS:
            raise errors.InvalidCommand(f"no view is named {name[:40]!r}; the views are {', '.join(_VIEWS)}")
        route = _VIEWS[name]
        inside = {key: quote(str(arguments[key]), safe="") for key in route.names if key in arguments}
        query = {key: _text(value) for key, value in arguments.items() if key not in inside}
        query |= {"fresh": "true"} if at is None else {"at": str(at)}
        return (yield from self.read(route.path.format(**inside), query))

    def read(self, path: str, query: Mapping[str, str]) -> _Steps[Any]:
        """A value, or all pages of a list."""
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = {"cursor": cursor} if cursor else {}
            answer = yield from self.ask(_Request("GET", path, {**query, **page}))
            said = msgspec.json.decode(answer.content)
            if "value" in said:
                return said["value"]
            found += said["items"]
            cursor = said["next"]
            if cursor is None:
                return found

    def question(self, path: str, asked: object, query: Mapping[str, str] | None = None) -> _Steps[Any]:
        headers = {"content-type": "application/json"}
        answer = yield from self.ask(_Request("POST", path, query or {}, msgspec.json.encode(asked), headers))
        return msgspec.json.decode(answer.content)["value"]

    def entries(self, after: int, reason: str) -> _Steps[list[dict[str, Any]]]:
        why = {"reason": reason} if reason else {}
        answer = yield from self.ask(_Request("GET", "/v1/log", {"after": after, "fresh": "true", **why}))
        items: list[dict[str, Any]] = msgspec.json.decode(answer.content)["items"]
        return items

    def publish(self, app: str, name: str, text: str) -> _Steps[None]:
        body, headers = msgspec.json.encode({"text": text}), {"content-type": "application/json"}
        yield from self.ask(_Request("PUT", _mail(app, name), {}, body, headers))

    def message(self, app: str, name: str, wait_s: float) -> _Steps[str | None]:
        answer = yield from self.ask(_Request("GET", _mail(app, name), {"wait": round(1000 * wait_s)}))
        text: str | None = msgspec.json.decode(answer.content)["value"]["text"]
        return text

    def beat(self, app: str) -> _Steps[str]:
        answer = yield from self.ask(_Request("POST", f"/v1/apps/{quote(app, safe='')}/beat"))
        return str(msgspec.json.decode(answer.content)["value"]["state"])

    def follow(self, path: str, after: int) -> _Send:
        """The request for a stream, to the server that answered last."""
        return _Send(self._server, _Request("GET", path, {"after": after}))

    def tails(self, app: str, task: str, reason: str) -> _Steps[dict[int | None, Tail]]:
        query = {"reason": reason} if reason else {}
        query |= {"task": task} if task else {}
        found: list[dict[str, Any]] = yield from self.read(f"/v1/apps/{quote(app, safe='')}/output", query)
        return {each["task"]: _tail(each) for each in found}

    def output(self, app: str, task: int | None, stream: Stream | None, reason: str) -> _Steps[bytes]:
        part = "driver" if task is None else f"tasks/{task}"
        query = {"reason": reason} if reason else {}
        query |= {"stream": stream} if stream else {}
        answer = yield from self.ask(_Request("GET", f"/v1/apps/{quote(app, safe='')}/{part}/output", query))
        return answer.content


def _tail(answer: Mapping[str, Any]) -> Tail:
    text = b64decode(answer["output"])
    ends = [0, *chain.from_iterable(answer["stderr"]), len(text)]
    parts = [(number % 2, text[start:end]) for number, (start, end) in enumerate(pairwise(ends)) if start < end]
    return Tail(tuple(parts), tuple(answer["written"]))


class _Base:
    """The servers and the token of a client."""

    def __init__(self, urls: str | Sequence[str] | None, token: str | None, timeout_s: float) -> None:
        self._urls = api_urls(os.environ.get(URL_VARIABLE, "") if urls is None else urls)
        token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        if token and not (token.isascii() and token.isprintable()):
            raise NotAuthenticated("this is not a token, or it was not copied in full")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._talk = _Talk(len(self._urls), timeout_s)
        self._bases = ["http://fairlog" if url.startswith(UNIX) else url.rstrip("/") for url in self._urls]
        self._extensions = {"timeout": httpx.Timeout(timeout_s + LATER_S).as_dict()}

    @property
    def timeout_s(self) -> float:
        """How long a request is repeated until a server answers it."""
        return self._talk.timeout_s

    def _ways(self) -> Iterator[dict[str, Any]]:
        """The arguments of each server's transport.

        Only https:// gets the certificate authorities, which take 40 ms to load; other connections trust none.
        """
        for url in self._urls:
            socket = url.removeprefix(UNIX) if url.startswith(UNIX) else None
            trusted = True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            yield {"uds": socket, "verify": trusted, "trust_env": False}

    def _built(self, step: _Send) -> httpx.Request:
        """The request for a transport. An httpx client would add what needs more time than the server's answer."""
        method, path, query, content, headers = step.request
        return httpx.Request(
            method,
            self._bases[step.server] + path,
            params=query or None,
            headers={**self._headers, **headers},
            content=content,
            extensions=self._extensions,
        )


class ApiClient(_Base):
    """Speaks to API servers at `urls`: http://, https:// or http+unix:PATH, several separated by commas.

    Without `urls` and `token` it uses those of FAIRLOG_API and FAIRLOG_TOKEN. A server that does not answer is followed
    by the next one. A command is repeated under its id, which is safe.

    Raises: CommandRejected for what the rules refuse, Refused for other refusals, NoMaster or Unreachable without an
    answer within `timeout_s`.
    """

    def __init__(
        self, urls: str | Sequence[str] | None = None, *, token: str | None = None, timeout_s: float = 30
    ) -> None:
        super().__init__(urls, token, timeout_s)
        self._transports = [httpx.HTTPTransport(**each) for each in self._ways()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for transport in self._transports:
            transport.close()

    def send(self, command: Command, *, command_id: str | None = None) -> Receipt:
        """Carry out `command`; returns after the commit."""
        return self._do(self._talk.send(command, {}, command_id))

    def submit(self, command: SubmitApp, secrets: Mapping[str, str], *, command_id: str | None = None) -> Receipt:
        """Submit an app with the values of its variables, which never enter the log."""
        return self._do(self._talk.send(command, secrets, command_id))

    def send_many(self, commands: Sequence[Command]) -> list[Receipt | CommandRejected]:
        """Carry out `commands` in order, in batches; the result of a refused one is its refusal."""
        return self._do(self._talk.send_many(commands))

    def view(self, name: str, *, at: int | None = None, **arguments: Any) -> Any:  # noqa: ANN401 (JSON)
        """A view (`scheduler.rules.views`) of the state with all that was acknowledged, or of that at position `at`."""
        return self._do(self._talk.view(name, arguments, at))

    def read(self, path: str, **query: str) -> Any:  # noqa: ANN401 (JSON)
        """The value, or all items, that GET `path` answers."""
        return self._do(self._talk.read(path, query))

    def ask(self, path: str, asked: Mapping[str, Any]) -> Any:  # noqa: ANN401 (JSON)
        """The value that POST `path` answers to a question, such as `/v1/whatif`."""
        return self._do(self._talk.question(path, asked))

    def output(self, app: str, task: int | None, *, stream: Stream | None = None, reason: str = "") -> bytes:
        """The last 64 KiB of the output of a task, or of the driver (None), or of one stream."""
        return self._do(self._talk.output(app, task, stream, reason))

    def publish(self, app: str, name: str, text: str) -> None:
        """Leave a message of at most 4096 bytes in the app's mailbox, in place of an earlier one of that name.

        It is for the app's owner, driver and executors. One named `link.NAME` is an address, shown with the app.
        """
        self._do(self._talk.publish(app, name, text))

    def message(self, app: str, name: str, *, timeout_s: float = 0) -> str | None:
        """The message of that name in the app's mailbox, once it is there; None if it does not come in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            text = self._do(self._talk.message(app, name, min(left_s, MAIL_WAIT_S)))
            if text is not None or left_s <= MAIL_WAIT_S:
                return text

    def links(self, app: str) -> dict[str, str]:
        """The addresses of the app's user interfaces, by name."""
        found: dict[str, str] = self.read(f"/v1/apps/{quote(app, safe='')}/links")
        return found

    def beat(self, app: str) -> str:
        """Give a sign of life of the app's owner, who has a lease. Returns the app's state."""
        state: str = self._do(self._talk.beat(app))
        return state

    def tails(self, app: str, task: str = "", *, reason: str = "") -> dict[int | None, Tail]:
        """As `output`, by streams, of this task or the "driver", or of all tasks that have written anything."""
        return self._do(self._talk.tails(app, task, reason))

    def log(self, after: int = 0, *, reason: str = "") -> Iterator[dict[str, Any]]:
        """The events of the log after position `after`, up to its present end, as `fairlog log --json` prints them."""
        while found := self._do(self._talk.entries(after, reason)):
            yield from found
            after = found[-1]["seq"]

    def follow(self, path: str = "/v1/log/events", after: int = 0) -> Iterator[dict[str, Any]]:
        """The events of the stream at `path` after position `after` as they are committed, without end."""
        while True:
            self.check()
            send = self._talk.follow(path, after)
            try:
                with closing(self._transports[send.server].handle_request(self._built(send))) as answer:
                    if answer.status_code >= 400:
                        answer.read()
                        raise _error_of(answer)
                    for event in map(_event, answer.iter_lines()):
                        if event is not None:
                            after = event["seq"]
                            yield event
            except httpx.TransportError:
                time.sleep(RETRY_S)

    def account(self) -> By:
        """The account of the token, or of this process over a Unix socket."""
        said = self.read("/v1/whoami")
        return By(said["account"], said["token"], said["role"])

    def states(self, app: str) -> list[dict[str, Any]]:
        """The states of the app's tasks, by index; empty before its first executor."""
        found: list[dict[str, Any]] = self.read(f"/v1/apps/{quote(app, safe='')}/tasks", fresh="true")
        return found

    def explain(self, app: str) -> dict[str, Any]:
        """Why the app waits, or was admitted and placed as it was, from the log."""
        said: dict[str, Any] = self.read(f"/v1/apps/{quote(app, safe='')}/explain", fresh="true")
        return said

    def link(self) -> str:
        """The key of a link that opens one session of the page, for whoever asks."""
        answer = self._do(self._talk.ask(_Request("POST", "/v1/links")))
        return str(msgspec.json.decode(answer.content)["key"])

    def driver_pass(self, app: str, company: str, user: str) -> str:
        """A pass with which the driver of the app, which is about to be submitted, acts for the user."""
        said: str = self._do(self._talk.question("/v1/passes", {"app": app, "company": company, "user": user}))
        return said

    def plan(self, command: SubmitApp) -> dict[str, Any]:
        """What would become of the submission now, and why; nothing is changed."""
        said: dict[str, Any] = self._do(self._talk.question("/v1/plan", command, {"fresh": "true"}))
        return said

    def check(self) -> None:
        """Return once a server can answer."""
        self._do(self._talk.ask(_Request("GET", "/v1/health")))

    def _do(self, steps: _Steps[T]) -> T:
        got: httpx.Response | httpx.TransportError | None = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            got = None
            if isinstance(step, _Pause):
                time.sleep(step.seconds)
                continue
            try:
                got = self._transports[step.server].handle_request(self._built(step))
                with closing(got):
                    got.read()
            except httpx.TransportError as error:
                got = error


class AsyncApiClient(_Base):
    """As `ApiClient`, for asyncio."""

    def __init__(
        self, urls: str | Sequence[str] | None = None, *, token: str | None = None, timeout_s: float = 30
    ) -> None:
        super().__init__(urls, token, timeout_s)
        self._transports = [httpx.AsyncHTTPTransport(**each) for each in self._ways()]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        for transport in self._transports:
            await transport.aclose()

    async def send(self, command: Command, *, command_id: str | None = None) -> Receipt:
        """Carry out `command`; returns after the commit."""
        return await self._do(self._talk.send(command, {}, command_id))

    async def submit(self, command: SubmitApp, secrets: Mapping[str, str], *, command_id: str | None = None) -> Receipt:
        """Submit an app with the values of its variables, which never enter the log."""
        return await self._do(self._talk.send(command, secrets, command_id))

    async def send_many(self, commands: Sequence[Command]) -> list[Receipt | CommandRejected]:
        """Carry out `commands` in order, in batches; the result of a refused one is its refusal."""
        return await self._do(self._talk.send_many(commands))

    async def view(self, name: str, *, at: int | None = None, **arguments: Any) -> Any:  # noqa: ANN401 (JSON)
        """A view (`scheduler.rules.views`) of the state with all that was acknowledged, or of that at position `at`."""
        return await self._do(self._talk.view(name, arguments, at))

    async def read(self, path: str, **query: str) -> Any:  # noqa: ANN401 (JSON)
        """The value, or all items, that GET `path` answers."""
        return await self._do(self._talk.read(path, query))

    async def beat(self, app: str) -> str:
        """Give a sign of life of the app's owner, who has a lease. Returns the app's state."""
        state: str = await self._do(self._talk.beat(app))
        return state

    async def ask(self, path: str, asked: Mapping[str, Any]) -> Any:  # noqa: ANN401 (JSON)
        """As `ApiClient.ask`."""
        return await self._do(self._talk.question(path, asked))

    async def output(self, app: str, task: int | None, *, stream: Stream | None = None, reason: str = "") -> bytes:
        """As `ApiClient.output`."""
        return await self._do(self._talk.output(app, task, stream, reason))

    async def tails(self, app: str, task: str = "", *, reason: str = "") -> dict[int | None, Tail]:
        """As `ApiClient.tails`."""
        return await self._do(self._talk.tails(app, task, reason))

    async def log(self, after: int = 0, *, reason: str = "") -> AsyncIterator[dict[str, Any]]:
        """The events of the log after position `after`, up to its present end, as `fairlog log --json` prints them."""
        while found := await self._do(self._talk.entries(after, reason)):
            for event in found:
                yield event
            after = found[-1]["seq"]

    async def follow(self, path: str = "/v1/log/events", after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """The events of the stream at `path` after position `after` as they are committed, without end."""
        while True:
            await self.check()
            send = self._talk.follow(path, after)
            try:
                answer = await self._transports[send.server].handle_async_request(self._built(send))
                async with aclosing(answer):
                    if answer.status_code >= 400:
                        await answer.aread()
                        raise _error_of(answer)
                    async for line in answer.aiter_lines():
                        event = _event(line)
                        if event is not None:
                            after = event["seq"]
                            yield event
            except httpx.TransportError:
                await asyncio.sleep(RETRY_S)

    async def account(self) -> By:
        """The account of the token, or of this process over a Unix socket."""
        said = await self.read("/v1/whoami")
        return By(said["account"], said["token"], said["role"])

    async def states(self, app: str) -> list[dict[str, Any]]:
        """The states of the app's tasks, by index; empty before its first executor."""
        found: list[dict[str, Any]] = await self.read(f"/v1/apps/{quote(app, safe='')}/tasks", fresh="true")
        return found

    async def explain(self, app: str) -> dict[str, Any]:
        """Why the app waits, or was admitted and placed as it was, from the log."""
        said: dict[str, Any] = await self.read(f"/v1/apps/{quote(app, safe='')}/explain", fresh="true")
        return said

    async def plan(self, command: SubmitApp) -> dict[str, Any]:
        """What would become of the submission now, and why; nothing is changed."""
        said: dict[str, Any] = await self._do(self._talk.question("/v1/plan", command, {"fresh": "true"}))
        return said

    async def check(self) -> None:
        """Return once a server can answer."""
        await self._do(self._talk.ask(_Request("GET", "/v1/health")))

    async def _do(self, steps: _Steps[T]) -> T:
        got: httpx.Response | httpx.TransportError | None = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            got = None
            if isinstance(step, _Pause):
                await asyncio.sleep(step.seconds)
                continue
            try:
                got = await self._transports[step.server].handle_async_request(self._built(step))
                async with aclosing(got):
                    await got.aread()
            except httpx.TransportError as error:
                got = error


def _error_of(answer: httpx.Response) -> FairlogError:
    """The error that a problem states."""
    try:
        said = msgspec.json.decode(answer.content)
        return _error(str(said["title"]), str(said["detail"]))
    except (msgspec.DecodeError, KeyError, TypeError):
        return Refused("Unknown", f"the server answered {answer.status_code} without saying why")


def _error(title: str, detail: str) -> FairlogError:
    known = getattr(errors, title, None)
    if known is NoMaster:
        return NoMaster(detail)
    if isinstance(known, type) and issubclass(known, CommandRejected):
        return refusal_of(title, detail)
    return Unreachable(detail) if title in {"NotReady", "Unavailable"} else Refused(title, detail)


def _outcome(answer: Mapping[str, Any], signed: SignedReceipt | None) -> Receipt | CommandRejected:
    if "seq" in answer:
        return Receipt(str(answer["id"]), int(answer["seq"]), signed)
    return refusal_of(str(answer["title"]), str(answer["detail"]))


def _written(command: Command, secrets: Mapping[str, str]) -> bytes:
    body = write_command(command).encode()
    return body if not secrets else b'%b,"secrets":%b}' % (body[:-1], msgspec.json.encode(dict(secrets)))


def _parts(commands: Sequence[Command]) -> Iterator[list[Command]]:
    """The commands in batches that a server takes."""
    part: list[Command] = []
    size = 0
    for command in commands:
        length = len(write_command(command).encode()) + 1
        if part and (len(part) == BATCH or size + length > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(command)
        size += length
    if part:
        yield part


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _event(line: str) -> dict[str, Any] | None:
    """The event of a line of a stream; None for any other line."""
    if not line.startswith("data: "):
        return None
    said: dict[str, Any] = msgspec.json.decode(line[6:])
    return said if "type" in said and "turn" in said else None
