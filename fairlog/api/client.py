"""The client of the API. What clients say and how they take the answers is written once, as generators of steps.

A client only carries steps out: `ApiClient` here, and `AsyncApiClient`, its asyncio twin, in a module of its own, whose
library takes longer to load than a verb may take.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast
from urllib.parse import quote

import msgspec

from fairlog.api import questions
from fairlog.api.addresses import TOKEN_VARIABLE, UNIX, URL_VARIABLE, VIEWS, check_app, of_app
from fairlog.api.connections import Connections, HttpRequest, Lost, Response
from fairlog.errors import Refused, Unreachable
from scheduler.model import errors
from scheduler.model.errors import CommandRejected, FairlogError, NotAuthenticated, stated_error
from scheduler.model.sender import By
from scheduler.service.addresses import unreached

if TYPE_CHECKING:
    from scheduler.model.commands import Command, SubmitApp
    from scheduler.service.receipts import Receipt
    from scheduler.store.tails import Stream, Tail

MAIL_WAIT_S = 10.0
"""How long a server is asked to wait for a message."""
RETRY_S = 0.2
NOTE_S = 2.0
"""After so long without a server that can answer, whoever asked is told why."""
LATER_S = 2.0
"""How much longer than a server waits for a master the client waits for the server."""
T = TypeVar("T")


class Send(NamedTuple):
    """A step: send the request to the server of that number and give back the answer, or the error."""

    server: int
    request: HttpRequest


class Pause(NamedTuple):
    """A step: wait."""

    seconds: float


class Note(NamedTuple):
    """A step: tell whoever asked why there is no answer yet."""

    why: str


Steps = Generator[Send | Pause | Note, Response | Lost | None, T]


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
    return f"{of_app(app)}/mail/{quote(name, safe='')}"


class _Talk:
    """What clients say: generators of steps that return what the caller gets."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self._urls = urls
        self.timeout_s = timeout_s
        self._server = 0
        """The server that answered last."""

    def ask(self, request: HttpRequest) -> Steps[Response]:
        """Ask one server after the other until one answers. Raises: the problem of the answer; Unreachable."""
        began_s = time.monotonic()
        deadline = began_s + self.timeout_s
        refusal: Exception = Unreachable(f"no API server answered within {self.timeout_s:g} s")
        said: Exception | None = None  # what a server has said in this round: more than that another one is silent
        tried, noted = 0, False
        while True:
            server = self._server
            answer = yield Send(server, request)
            pause_s = RETRY_S
            if isinstance(answer, Response):
                if answer.status_code < 400:
                    return answer
                refusal = said = error_of(answer)
                if answer.status_code not in {429, 503}:
                    raise refusal
                pause_s = float(answer.retry_after or RETRY_S) if isinstance(refusal, Refused) else RETRY_S
            else:
                refusal = said or Unreachable(f"no API server answers at {self._urls[server]}: {unreached(answer)}")
            if self._server == server:  # else another thread has gone on from it
                self._server = (server + 1) % len(self._urls)
            tried += 1
            if tried % len(self._urls) == 0 or pause_s > RETRY_S:
                if time.monotonic() + pause_s >= deadline:
                    raise refusal
                if not noted and time.monotonic() >= began_s + NOTE_S:
                    noted = True
                    yield Note(str(refusal))
                said = None
                yield Pause(pause_s)

    def send(self, command: Command, *, command_id: str | None = None) -> Steps[Receipt]:
        return (yield from self.submit(command, {}, command_id=command_id))

    def submit(self, command: Command, secrets: Mapping[str, str], *, command_id: str | None = None) -> Steps[Receipt]:
        outcome = (yield from self.batch([command], [secrets], command_id))[0]
        if isinstance(outcome, CommandRejected):
            raise outcome
        return outcome

    def batch(
        self, commands: Sequence[Command], secrets: Sequence[Mapping[str, str]], command_id: str | None
    ) -> Steps[list[Receipt | CommandRejected]]:
        from fairlog.api.batches import outcome, written  # noqa: PLC0415 (who only reads needs no commands)

        bodies = [written(*each) for each in zip(commands, secrets, strict=True)]
        said = yield from self._carried(b",".join(bodies), command_id)
        return [outcome(each, said.get("receipt")) for each in said["answers"]]

    def heard(self) -> Steps[None]:
        """An empty batch, which a master answers."""
        yield from self._carried(b"", None)

    def _carried(self, commands: bytes, command_id: str | None) -> Steps[Any]:
        headers = {"content-type": "application/json", "idempotency-key": command_id or os.urandom(16).hex()}
        answer = yield from self.ask(HttpRequest("POST", "/v1/commands", {}, b'{"commands":[%b]}' % commands, headers))
        return msgspec.json.decode(answer.content)

    def send_many(self, commands: Sequence[Command]) -> Steps[list[Receipt | CommandRejected]]:
        from fairlog.api.batches import parts  # noqa: PLC0415 (likewise)

        outcomes: list[Receipt | CommandRejected] = []
        for part in parts(commands):
            outcomes += yield from self.batch(part, [{}] * len(part), None)
        return outcomes

    def view(self, name: str, *, at: int | None = None, **arguments: object) -> Steps[Any]:
        path, query = self.place_of(name, arguments, at)
        return (yield from self.read(path, **query))

    def place_of(self, name: str, arguments: Mapping[str, Any], at: int | None) -> tuple[str, dict[str, str]]:
        """The path and the query of a view. Raises: InvalidCommand."""
        if name not in VIEWS:
            raise errors.InvalidCommand(f"no view is named {name[:40]!r}; the views are {', '.join(VIEWS)}")
        path = VIEWS[name]
        if name == "app":
            check_app(str(arguments["app"]))
        inside = {key: quote(str(arguments[key]), safe="") for key in arguments if f"{{{key}}}" in path}
        query = {key: _text(value) for key, value in arguments.items() if key not in inside}
        query |= {"fresh": "true"} if at is None else {"at": str(at)}
        query |= {"limit": str(questions.MANY)} if name == "apps" else {}
        return path.format(**inside), query

    def read(self, path: str, **query: str) -> Steps[Any]:
        """A value, or all pages of a list."""
        found: list[Any] = []
        cursor: str | None = None
        while True:
            said = yield from self.page(path, query, cursor)
            if "value" in said:
                return said["value"]
            found += said["items"]
            cursor = said["next"]
            if cursor is None:
                return found

    def page(self, path: str, query: Mapping[str, str], cursor: str | None) -> Steps[Any]:
        """What is answered: a value, or a page of a list and the cursor of the next one."""
        page = {"cursor": cursor} if cursor else {}
        answer = yield from self.ask(HttpRequest("GET", path, {**query, **page}))
        return msgspec.json.decode(answer.content)

    def question(self, path: str, asked: object, **query: str) -> Steps[Any]:
        headers = {"content-type": "application/json"}
        answer = yield from self.ask(HttpRequest("POST", path, query, msgspec.json.encode(asked), headers))
        return msgspec.json.decode(answer.content)["value"]

    def account(self) -> Steps[By]:
        said = yield from self.read("/v1/whoami")
        return By(said["account"], said["token"], said["role"])

    def states(self, app: str) -> Steps[list[dict[str, Any]]]:
        found: list[dict[str, Any]] = yield from self.read(f"{of_app(app)}/tasks", fresh="true")
        return found

    def explain(self, app: str, *, audited: bool = False) -> Steps[dict[str, Any]]:
        more = {"audited": "true"} if audited else {}
        said: dict[str, Any] = yield from self.read(f"{of_app(app)}/explain", fresh="true", **more)
        return said

    def check(self) -> Steps[object]:
        return (yield from self.ask(HttpRequest("GET", "/v1/health")))

    def entries(self, after: int, reason: str) -> Steps[list[dict[str, Any]]]:
        why = {"reason": reason} if reason else {}
        answer = yield from self.ask(HttpRequest("GET", "/v1/log", {"after": after, "fresh": "true", **why}))
        items: list[dict[str, Any]] = msgspec.json.decode(answer.content)["items"]
        return items

    def publish(self, app: str, name: str, text: str) -> Steps[None]:
        body, headers = msgspec.json.encode({"text": text}), {"content-type": "application/json"}
        yield from self.ask(HttpRequest("PUT", _mail(app, name), {}, body, headers))

    def message(self, app: str, name: str, *, wait_s: float = 0) -> Steps[str | None]:
        """The message of that name in the app's mailbox; None if it is not there after so many seconds, 10 at most."""
        answer = yield from self.ask(HttpRequest("GET", _mail(app, name), {"wait": round(1000 * wait_s)}))
        text: str | None = msgspec.json.decode(answer.content)["value"]["text"]
        return text

    def beat(self, app: str) -> Steps[str]:
        answer = yield from self.ask(HttpRequest("POST", f"{of_app(app)}/beat"))
        return str(msgspec.json.decode(answer.content)["value"]["state"])

    def follow(self, path: str, after: int) -> Send:
        """The request for a stream, to the server that answered last."""
        return Send(self._server, HttpRequest("GET", path, {"after": after}))

    def tails(self, app: str, task: str = "", *, reason: str = "") -> Steps[dict[int | None, Tail]]:
        query = {"reason": reason} if reason else {}
        query |= {"task": task} if task else {}
        found: list[dict[str, Any]] = yield from self.read(f"{of_app(app)}/output", **query)
        return {each["task"]: _tail(each) for each in found}

    def output(self, app: str, task: int | None, *, stream: Stream | None = None, reason: str = "") -> Steps[bytes]:
        part = "driver" if task is None else f"tasks/{task}"
        query = {"reason": reason} if reason else {}
        query |= {"stream": stream} if stream else {}
        answer = yield from self.ask(HttpRequest("GET", f"{of_app(app)}/{part}/output", query))
        return answer.content


def _tail(answer: Mapping[str, Any]) -> Tail:
    from scheduler.store.tails import Tail  # noqa: PLC0415 (only output needs it)

    text = b64decode(answer["output"])
    ends = [0, *chain.from_iterable(answer["stderr"]), len(text)]
    parts = [(number % 2, text[start:end]) for number, (start, end) in enumerate(pairwise(ends)) if start < end]
    return Tail(tuple(parts), tuple(answer["written"]))


class Base:
    """The servers and the token of a client."""

    def __init__(self, urls: str | Sequence[str] | None, token: str | None, timeout_s: float) -> None:
        self._urls = api_urls(os.environ.get(URL_VARIABLE, "") if urls is None else urls)
        token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        if token and not (token.isascii() and token.isprintable()):
            raise NotAuthenticated("this is not a token, or it was not copied in full")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._talk = _Talk(self._urls, timeout_s)

    @property
    def timeout_s(self) -> float:
        """How long a request is repeated until a server answers it."""
        return self._talk.timeout_s


class ApiClient(Base):
    """Speaks to API servers at `urls`: http://, https:// or http+unix:PATH, several separated by commas.

    Without `urls` and `token` it uses those of FAIRLOG_API and FAIRLOG_TOKEN. A server that does not answer is followed
    by the next one, also one that hangs or is cut off, while another one is well. A command is repeated under its id,
    which is safe.

    Raises: CommandRejected for what the rules refuse, Refused for other refusals, NoMaster or Unreachable without an
    answer within `timeout_s`. Before that, `notice` is told once of each request why no server can answer it.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 30,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        super().__init__(urls, token, timeout_s)
        self._notice = notice
        self._servers = [Connections(url, timeout_s + LATER_S) for url in self._urls]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            server.close()

    def send(self, command: Command, *, command_id: str | None = None) -> Receipt:
        """Carry out `command`; returns after the commit."""
        return self._do(self._talk.send(command, command_id=command_id))

    def submit(self, command: SubmitApp, secrets: Mapping[str, str], *, command_id: str | None = None) -> Receipt:
        """Submit an app with the values of its variables, which never enter the log."""
        return self._do(self._talk.submit(command, secrets, command_id=command_id))

    def send_many(self, commands: Sequence[Command]) -> list[Receipt | CommandRejected]:
        """Carry out `commands` in order, in batches; the result of a refused one is its refusal."""
        return self._do(self._talk.send_many(commands))

    def hear(self) -> None:
        """Return once the active master has answered an empty batch. Raises: NoMaster."""
        self._do(self._talk.heard())

    def view(self, name: str, *, at: int | None = None, **arguments: Any) -> Any:  # noqa: ANN401 (JSON)
        """A view (`scheduler.rules.view.views`) of the state with all that was acknowledged, or at position `at`."""
        return self._do(self._talk.view(name, at=at, **arguments))

    def parts(self, name: str, *, at: int | None = None, **arguments: Any) -> Iterator[list[Any]]:  # noqa: ANN401 (likewise)
        """As `view` of a list, page by page as they come."""
        path, query = self._talk.place_of(name, arguments, at)
        cursor: str | None = None
        while True:
            said = self._do(self._talk.page(path, query, cursor))
            yield said["items"]
            cursor = said["next"]
            if cursor is None:
                return

    def read(self, path: str, **query: str) -> Any:  # noqa: ANN401 (JSON)
        """The value, or all items, that GET `path` answers."""
        return self._do(self._talk.read(path, **query))

    def ask(self, path: str, asked: Mapping[str, Any]) -> Any:  # noqa: ANN401 (JSON)
        """The value that POST `path` answers to a question, such as `/v1/whatif`."""
        return self._do(self._talk.question(path, asked))

    def output(self, app: str, task: int | None, *, stream: Stream | None = None, reason: str = "") -> bytes:
        """The last 64 KiB of the output of a task, or of the driver (None), or of one stream."""
        return self._do(self._talk.output(app, task, stream=stream, reason=reason))

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
            text = self._do(self._talk.message(app, name, wait_s=min(left_s, MAIL_WAIT_S)))
            if text is not None or left_s <= MAIL_WAIT_S:
                return text

    def links(self, app: str) -> dict[str, str]:
        """The addresses of the app's user interfaces, by name."""
        found: dict[str, str] = self.read(f"{of_app(app)}/links")
        return found

    def beat(self, app: str) -> str:
        """Give a sign of life of the app's owner, who has a lease. Returns the app's state."""
        state: str = self._do(self._talk.beat(app))
        return state

    def tails(self, app: str, task: str = "", *, reason: str = "") -> dict[int | None, Tail]:
        """As `output`, by streams, of this task or the "driver", or of all tasks that have written anything."""
        return self._do(self._talk.tails(app, task, reason=reason))

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
                with self._servers[send.server].open(send.request, self._headers) as answer:
                    if answer.status >= 400:
                        raise error_of(Response(answer.status, answer.read()))
                    for line in answer:
                        event = event_of(line)
                        if event is not None:
                            after = event["seq"]
                            yield event
            except Lost:
                time.sleep(RETRY_S)

    def account(self) -> By:
        """The account of the token, or of this process over a Unix socket."""
        return self._do(self._talk.account())

    def states(self, app: str) -> list[dict[str, Any]]:
        """The states of the app's tasks, by index; empty before its first executor."""
        return self._do(self._talk.states(app))

    def explain(self, app: str, *, audited: bool = False) -> dict[str, Any]:
        """Why the app waits, or was admitted and placed as it was, from the log; `audited`: and what an audit says."""
        return self._do(self._talk.explain(app, audited=audited))

    def link(self) -> str:
        """The key of a link that opens one session of the page, for whoever asks."""
        return str(self._link()["key"])

    def page(self, base: str = "") -> str:
        """A link that opens one session of the page for whoever asks, at `base`, else at the URL the server names.

        "" if it names none.
        """
        made = self._link()
        at = base or made.get("url", "")
        return f"{at}/#key={made['key']}" if at else ""

    def _link(self) -> dict[str, Any]:
        answer = self._do(self._talk.ask(HttpRequest("POST", "/v1/links")))
        return cast("dict[str, Any]", msgspec.json.decode(answer.content))

    def driver_pass(self, app: str, company: str, user: str) -> str:
        """A pass with which the driver of the app, which is about to be submitted, acts for the user."""
        said: str = self._do(self._talk.question("/v1/passes", {"app": app, "company": company, "user": user}))
        return said

    def plan(self, command: SubmitApp) -> dict[str, Any]:
        """What would become of the submission now, and why; nothing is changed."""
        said: dict[str, Any] = self._do(self._talk.question("/v1/plan", command, fresh="true"))
        return said

    def check(self) -> None:
        """Return once a server can answer."""
        self._do(self._talk.check())

    def _do(self, steps: Steps[T]) -> T:
        got: Response | Lost | None = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            got = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                continue
            if isinstance(step, Note):
                self._notice(step.why)
                continue
            try:
                got = self._servers[step.server].ask(step.request, self._headers, self._may_leave(step.server))
            except Lost as error:
                got = error

    def _may_leave(self, server: int) -> Callable[[], bool] | None:
        """Whether the server gives no sign that it can answer while another one does; None if there is no other."""
        others = [other for number, other in enumerate(self._servers) if number != server]
        if not others:
            return None
        return lambda: not self._servers[server].is_well() and any(other.is_well() for other in others)


def error_of(answer: Response) -> FairlogError:
    """The error that a problem states."""
    try:
        said = msgspec.json.decode(answer.content)
        return _error(str(said["title"]), str(said["detail"]))
    except (msgspec.DecodeError, KeyError, TypeError):
        return Refused("Unknown", f"the server answered {answer.status_code} without saying why")


def _error(title: str, detail: str) -> FairlogError:
    other = Unreachable(detail) if title in {"NotReady", "Unavailable"} else Refused(title, detail)
    return stated_error(title, detail) or other


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event of a line of a stream; None for any other line."""
    if not line.startswith(b"data: "):
        return None
    said: dict[str, Any] = msgspec.json.decode(line[6:])
    return said if "type" in said and "turn" in said else None
