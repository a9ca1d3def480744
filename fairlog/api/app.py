"""The HTTP server, an ASGI application: routes from the table, problems for every error, events as they come.

Starlette carries it: its routes, requests and streams are used, and nothing between them and our structs. FastAPI would
describe the API from pydantic models, which our commands are not, and costs three times as long to load.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec
from anyio import CapacityLimiter, Semaphore, to_thread
from msgspec import Raw
from msgspec.json import Decoder, Encoder
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as Mounted

from fairlog.api.audit_file import HANDED_IN_S, MAX_FILE, turn
from fairlog.api.board import Board
from fairlog.api.exchange import (
    MAX_BODY,
    check_no_body,
    decoded,
    json_answer,
    question,
    token_of,
    typed_body,
    values_of,
    whole,
)
from fairlog.api.limits import Rates, cost_of
from fairlog.api.newest import Newest
from fairlog.api.openapi import description
from fairlog.api.pages import Viewed
from fairlog.api.passes import MAIL_ROUTES, Passes
from fairlog.api.passes import PREFIX as PASS
from fairlog.api.past import NotReady
from fairlog.api.problems import (
    MEDIA,
    BadRequest,
    NoSuchMethod,
    NotFound,
    TooMany,
    Unavailable,
    headers_of,
    problem_of,
    status_of,
)
from fairlog.api.questions import PAGE, MailboxText, OfDriver, SignIn
from fairlog.api.routes import AFTER, LONG_COST, NUMBERS, ROUTES
from fairlog.api.sender import read_request, request_of
from fairlog.api.sight import company_of, machine_ms
from fairlog.api.work_routes import WorkRoutes
from fairlog.page.assets import lost
from fairlog.page.assets import routes as page_routes
from fairlog.page.cookies import check_origin, cookie_of, set_cookie
from fairlog.page.sessions import LINK_MS, SESSION_MS, Sessions
from scheduler.model.errors import FairlogError, InvalidCommand, NotAllowed, NotAuthenticated
from scheduler.model.versions import HEADER, check_messages
from scheduler.rules.command.permission import Subject, may_read
from scheduler.service.grant_tokens import PASS as WORKER_PASS
from scheduler.service.receipts import Receipt
from scheduler.service.tokens import token_id
from scheduler.store.ended_sessions import EndedSessions

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ExceptionHandler

    from fairlog.api.feed import Feed, Told
    from fairlog.api.handlers import Handlers
    from fairlog.api.oidc import OpenIdProvider
    from fairlog.api.passes import Pass
    from fairlog.api.routes import Answer, Pool, Route
    from fairlog.page.sessions import PageVisit
    from scheduler.model.commands import Command
    from scheduler.model.sender import By
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.codec import Record

MAX_SUBMISSION = 8 * 1024 * 1024
"""The most bytes of a request with commands, among them copies of scripts. One of more than `MAX_BODY` costs more."""
LARGE_AT_ONCE = 4
"""How many requests of more than `MAX_BODY` a company, or an account without one, may have under way."""
MAX_STREAMS, OF_COMPANY = 3_000, 1_500
"""The most streams of a server, and of a company or of an account without one."""
STREAMS_S = 10.0
WAIT_S = 10.0
"""The longest wait for a position that the log has not reached."""
COMMANDS_AT_ONCE = 128
VIEWS_AT_ONCE = 2
"""How many reads are computed at once: they share the interpreter with commands, which wait for each of them."""
SIGN_INS_AT_ONCE = 4
READS_AT_ONCE = 8
"""How many reads wait at once for the store, a past state or another process."""
WORK_AT_ONCE = 32
PASSES_KNOWN = 10_000
"""Of so many passes a server knows which submission they were made for."""
STOPS = "this server stops; ask another one. A command may still be carried out"
MAIL_EVERY_S = 0.25
"""How often a message that is waited for is looked for."""
POSITION = "fairlog-position"
"""The header with the log position of the state that an answer shows."""
T = TypeVar("T")
_to_json = Encoder().encode
_plain = Decoder().decode
_batch_of = Decoder(dict[str, list[Raw]]).decode


class Door:
    """What the routes share: the handlers, the feed, the rates, and the threads in which handlers run."""

    handlers: Handlers
    board: Board

    def __init__(
        self, handlers: Handlers, feed: Feed, rates: Rates | None = None, provider: OpenIdProvider | None = None
    ) -> None:
        self.handlers, self.feed, self.rates, self.provider = handlers, feed, rates or Rates(), provider
        self.board, self.ended = Board(handlers), EndedSessions(handlers.store, handlers.keys)
        self.sessions = Sessions(handlers.keys.cluster, handlers.keyring, self.ended)
        self.passes = Passes(handlers.keys.cluster, handlers.keyring)
        self._first: OrderedDict[tuple[str, int], int] = OrderedDict()
        """App and position of a pass -> when (ms) the app that it was made for was submitted."""
        self.url = ""
        """A TCP address of this server, for programs of workers that use its Unix socket."""
        at_once: dict[Pool, int] = {
            "work": WORK_AT_ONCE,
            "commands": COMMANDS_AT_ONCE,
            "views": VIEWS_AT_ONCE,
            "reads": READS_AT_ONCE,
        }
        self._limiters = {pool: CapacityLimiter(most) for pool, most in at_once.items()}
        self.work = WorkRoutes(self, self._limiters)
        self._heads = CapacityLimiter(READS_AT_ONCE)
        self.newest = Newest(handlers.replica, self.head, self.reach)
        self._catching_up = CapacityLimiter(1)
        self._signing_in = CapacityLimiter(SIGN_INS_AT_ONCE)
        self._large: defaultdict[str, Semaphore] = defaultdict(partial(Semaphore, LARGE_AT_ONCE))
        """By company or account: room for its large requests."""
        self._streams: Counter[str] = Counter()
        """By company."""
        self._of_their_own: dict[Answer, Callable[[Route, Request], Awaitable[Response]]] = {
            "open": self._open,
            "sign-in": self._sign_in,
            "session": self._session,
            "work": self.work.answer,
            "pass": self._pass,
        }
        """What answers routes whose callers are not known as others are."""
        self._of_company: WeakValueDictionary[tuple[Pool, str], CapacityLimiter] = WeakValueDictionary()

    def heard(self, record: Record | None) -> None:
        """Pass a turn on to streams and to the workers that it concerns; called by the replica's thread."""
        self.feed.heard(record)
        self.work.bells.heard(record, self.handlers.replica.state)

    def close(self) -> None:
        """End all streams and waits."""
        self.feed.close()
        self.work.bells.ring()

    def who(self, request: Request) -> By:
        """The caller. Raises: NotAuthenticated."""
        at_home = request.app.state.at_home
        if "authorization" not in request.headers and not at_home and (session := self.session(request)) is not None:
            return session.who
        token, worker = token_of(request), request.path_params.get("worker")
        if worker is not None and token.startswith(WORKER_PASS):
            return self.handlers.workers.caller(token, worker, at_home=at_home).by
        return self.handlers.principal(token, at_home=at_home)

    def driver(self, request: Request) -> Pass | None:
        """The pass that the request shows, if it shows one. Raises: NotAuthenticated if it is not good."""
        text = token_of(request)
        if not text.startswith(PASS):
            return None
        self.handlers.replica.check_fresh()
        now = machine_ms()
        found = self.handlers.replica.peek(lambda state: self.passes.read(text, state, now))
        if found.after:
            submitted = self.handlers.replica.peek(lambda state: state.apps[found.app].submitted_at)
            found.check_first(submitted, self._first.get((found.app, found.after)))
        return found

    def session(self, request: Request) -> PageVisit | None:
        """The session of the page that the request shows by a cookie, None without one.

        Raises: NotAuthenticated if it is good no longer; NotAllowed if another server's page asks for a change.
        """
        value = cookie_of(request)
        if not value:
            return None
        self.handlers.replica.check_fresh()
        now = machine_ms()
        session = self.handlers.replica.peek(lambda state: self.sessions.of(value, state, now))
        if request.method not in ("GET", "HEAD"):
            check_origin(request)
        return session

    async def run(self, who: By, call: Callable[[], T], pool: Pool) -> T:
        """Run a handler in a thread; a company has half of a pool's threads, so that it keeps nobody else waiting."""
        limiter = self._limiters[pool]
        own = pool, company_of(who) or who.account
        async with self._of_company.setdefault(own, CapacityLimiter(int(limiter.total_tokens) // 2)):
            return await to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)

    async def head(self) -> int:
        """The position of the log's last event, asked of the store."""
        return (await to_thread.run_sync(self.handlers.replica.log.head, limiter=self._heads)).seq

    async def reach(self, seq: int) -> None:
        """Wait until the replica has folded the log up to `seq`. Raises: NotReady."""
        replica = self.handlers.replica
        if replica.head >= seq:
            return
        loop_time = self.feed.now()
        while replica.head < seq:
            if self.feed.closed:
                raise Unavailable(STOPS)
            left_s = loop_time + WAIT_S - self.feed.now()
            if left_s <= 0:
                raise NotReady(f"the log has not reached position {seq}; it ends at {replica.head}")
            await self.feed.wait(left_s, urgent=True)

    async def answer(self, route: Route, request: Request) -> Response:
        """Answer a request. Raises: the errors that `problems` puts in words."""
        try:
            return await self._answer(route, request)
        except asyncio.CancelledError:
            if not self.feed.closed:
                raise
            raise Unavailable(STOPS) from None

    async def _answer(self, route: Route, request: Request) -> Response:
        if route.answer != "open":
            await self.handlers.replica.be_fresh()
            await self.newest.learn(token_id(token_of(request)) or self.sessions.token(cookie_of(request)))
        if (answer := self._of_their_own.get(route.answer)) is not None:
            return await answer(route, request)
        who, driver = await self._admit(route, request)
        values = values_of(route.params, request)
        if route.takes is not None or route.answer == "answers":
            send = self._batch if route.takes is None else partial(self._command, route)
            async with self._room_for(request, who):
                return await send(request, who, values, driver)
        if route.answer == "metrics":
            accept = request.headers.get("accept", "")
            text, media = await self.run(who, partial(self.handlers.health.metrics, who, accept), "reads")
            return Response(text, media_type=media)
        if route.answer == "events":
            again = (
                partial(self.who, request)
                if driver is None
                else lambda: self.passes.who(cast("Pass", self.driver(request)), route.name)
            )
            return await self._events(route, request, again, values)
        await _reach_for(self, route, values)
        if route.name not in MAIL_ROUTES:
            seen = await self._read(route, request, who, values)
            if route.rings:
                await self.work.ring_for_visits()
            return seen
        return await self._mail(route, request, who, passed=driver is not None and driver.mail, **values)

    async def _learn_of(self, claimed: Pass) -> None:
        """Find out when the app was submitted that the pass was made for."""
        key = claimed.app, claimed.after
        if not claimed.after or key in self._first:
            return
        found = await to_thread.run_sync(self.handlers.log.first_after, *key, limiter=self._heads)
        if found is not None:
            self._first[key] = found
            if len(self._first) > PASSES_KNOWN:
                self._first.popitem(last=False)

    async def _hear_of(self, app: str) -> None:
        """Fold the log to its end unless the app is known: a driver may know of it before this server does."""
        if not self.handlers.replica.peek(lambda state: app in state.apps):
            await self.reach(await self.head())

    async def _admit(self, route: Route, request: Request) -> tuple[By, Pass | None]:
        """Who asks, or in whose name a driver does, and its pass; the app in the path is an id afterwards.

        Nothing is asked of the store before the request is charged. Raises: NotAuthenticated, TooMany; NotAllowed if
        the pass is not for it.
        """
        if (shown := token_of(request)).startswith(PASS):
            claimed = self.passes.claims(shown)
            self.rates.charge(claimed.app, claimed.company)  # whether it is good or not
            await self._hear_of(claimed.app)
            await self.newest.learn(claimed.token)
            await self._learn_of(claimed)
        driver = self.driver(request)
        who = self._charged(request) if driver is None else self.passes.who(driver, route.name)
        named = request.query_params.getlist(route.app_in) if route.app_in and driver is not None else []
        of = named[0] if len(named) == 1 else request.path_params.get("app")
        if of is not None and of.isdecimal():
            of = await to_thread.run_sync(self.handlers.sender.app_named, of, limiter=self._heads)
            if "app" in request.path_params:
                request.path_params["app"] = of
        if driver is not None:
            if of is not None:
                await self._hear_of(of)
            self.handlers.replica.peek(lambda state: driver.check(state, route.name, of))
        return who, driver

    def _charged(self, request: Request) -> By:
        """Who asks, and is charged for it. Raises: NotAuthenticated, TooMany."""
        who = self.who(request)
        self.rates.charge(who.token, company_of(who))
        return who

    async def _open(self, route: Route, _: Request) -> Response:
        if route.name == "openapi":
            return json_answer(description())
        self.handlers.replica.check_fresh()
        return json_answer({"seq": self.handlers.replica.head})

    async def _sign_in(self, route: Route, request: Request) -> Response:
        provider = self.provider
        if provider is None:
            raise NotFound("this server knows no OpenID provider; `fairlog login` takes a token or an invitation")
        self.rates.charge_stranger("" if request.client is None else request.client.host)
        call: Callable[[], object] = provider.description
        if route.asks is not None:
            asked = question(await typed_body(request), SignIn)
            call = partial(self.handlers.sign_in, provider.settings.token, partial(provider.account_of, asked), asked)
        said = await to_thread.run_sync(call, limiter=self._signing_in, abandon_on_cancel=True)
        return json_answer({"value": said}, {"cache-control": "no-store"})

    async def _pass(self, _: Route, request: Request) -> Response:
        """A pass for the driver of an app that the caller may submit."""
        who = self._charged(request)
        asked = question(await typed_body(request), OfDriver)
        subject, now = Subject(asked.company, asked.user), machine_ms()
        self.handlers.replica.peek(lambda state: may_read(state, who, "submit", subject, now))
        after = self.handlers.replica.head
        return json_answer({"value": self.passes.make(who, asked.company, asked.user, asked.app, now, after=after)})

    async def _session(self, route: Route, request: Request) -> Response:
        """Log in, renew, show or end a session of the page, or make a link to one."""
        now = machine_ms()
        if route.name == "link":
            who = self._charged(request)
            await check_no_body(request)
            key = self.sessions.link(who, now)
            return json_answer({"key": key, "account": who.account, "until": now + LINK_MS, "url": self.url})
        if route.name == "logIn":
            check_origin(request)
            body = await typed_body(request)
            fields = decoded(body) if body else {}
            if not isinstance(fields, dict) or not all(isinstance(each, str) for each in fields.values()):
                raise BadRequest('the body must be {"token": "fl_…"}, {"key": "…"} or nothing')
            if fields.keys() not in ({"token"}, {"key"}, set()):
                raise BadRequest('the body must be {"token": "fl_…"}, {"key": "…"} or nothing')
            known = None if fields else self.session(request)
            if "token" in fields:
                await self.newest.learn(token_id(text := fields["token"].strip()))
                who = self.handlers.principal(text or "-", at_home=False)
            elif "key" in fields:
                who = self.sessions.redeem(fields["key"], now)
            elif known is not None:
                who = known.who
            else:
                raise NotAuthenticated("nobody is logged in; log in with a token")
            self.rates.charge(who.token, company_of(who))
            self.handlers.replica.peek(partial(_check_visitor, who=who))
            made = self.sessions.cookie(who, now, identity=known.id if known else "")
            answer = json_answer(await self.run(who, partial(self.board.session, who, now + SESSION_MS), "reads"))
            set_cookie(answer, request, made, SESSION_MS // 1000)
            return answer
        session = self.session(request)
        if session is None:
            raise NotAuthenticated("nobody is logged in; log in with a token")
        await check_no_body(request)
        if route.name == "logOut":
            await self.run(session.who, partial(self.ended.add, session.id), "reads")
            answer = json_answer({})
            set_cookie(answer, request, "", 0)
            return answer
        self.rates.charge(session.who.token, company_of(session.who))
        return json_answer(
            await self.run(session.who, partial(self.board.session, session.who, session.until), "reads")
        )

    @asynccontextmanager
    async def _room_for(self, request: Request, who: By) -> AsyncIterator[None]:
        """Wait until there is room for a request with commands, if it is a large one."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) <= MAX_BODY:
            yield
            return
        async with self._large[company_of(who) or who.account]:
            yield

    async def _command(
        self, route: Route, request: Request, who: By, values: Mapping[str, Any], driver: Pass | None
    ) -> Response:
        body = await typed_body(request, most=MAX_SUBMISSION)
        if more := len(body) // MAX_BODY:
            self.rates.charge(who.token, company_of(who), more)
        fields = decoded(body) if body else {}
        if not isinstance(fields, dict):
            raise BadRequest("the body must be a JSON object with the fields of the command")
        if told := [name for name in ("type", *route.names) if name in fields]:
            raise BadRequest(f"leave {told[0]!r} out of the body: the path says it")
        whole = {**fields, **request.path_params, "type": cast("Any", route.takes).__name__}
        command, secrets = request_of(whole)
        if driver is not None:
            self.handlers.replica.peek(lambda state: driver.check_command(state, command))
        identity = values.get("Idempotency-Key", "")
        receipt = await self.run(
            who, partial(self.handlers.sender.send, who, command, secrets, command_id=identity), "commands"
        )
        return json_answer({**_receipt(receipt), "receipt": receipt.signed}, {POSITION: str(receipt.seq)})

    async def _batch(self, request: Request, who: By, values: Mapping[str, Any], driver: Pass | None) -> Response:
        body = await typed_body(request, most=MAX_SUBMISSION)
        try:
            whole = _batch_of(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f'the body must be {{"commands": […]}}: {error}') from None
        if whole.keys() != {"commands"}:
            raise BadRequest('the body must be {"commands": […]}')
        bodies = [bytes(each) for each in whole["commands"]]
        if driver is not None:
            self._check_batch(driver, bodies)
        if more := cost_of(len(bodies)) + len(body) // MAX_BODY:
            self.rates.charge(who.token, company_of(who), more)
        identity = values.get("Idempotency-Key", "")
        outcomes = await self.run(
            who, partial(self.handlers.sender.send_many, who, bodies, command_id=identity), "commands"
        )
        answers = [_receipt(each) if isinstance(each, Receipt) else problem_of(each) for each in outcomes]
        last = max((each.seq for each in outcomes if isinstance(each, Receipt)), default=0)
        signed = next((each.signed for each in outcomes if isinstance(each, Receipt)), None)
        return json_answer({"answers": answers, "receipt": signed}, {POSITION: str(last)})

    def _check_batch(self, driver: Pass, bodies: Sequence[bytes]) -> None:
        """Raises: NotAllowed for all if the driver may not send one; those that cannot be read are refused later."""
        commands: list[Command] = []
        for body in bodies:
            with suppress(InvalidCommand):
                commands.append(read_request(body)[0])
        for command in commands:
            self.handlers.replica.peek(partial(driver.check_command, command=command))

    async def _read(self, route: Route, request: Request, who: By, values: dict[str, Any]) -> Response:
        if route.long:
            self.rates.charge(who.token, company_of(who), LONG_COST)
        if route.name != "auditFile":
            return await self._read_of(route, request, who, values)
        with turn():  # before the file is collected, so that the memory has one at most
            try:
                async with asyncio.timeout(HANDED_IN_S):
                    values["text"] = await typed_body(request, most=MAX_FILE, media="application/x-ndjson")
            except TimeoutError:
                raise BadRequest(f"the file must arrive within {HANDED_IN_S} s; run `fairlog audit FILE`") from None
            return await self._read_of(route, request, who, values)

    async def _read_of(self, route: Route, request: Request, who: By, values: dict[str, Any]) -> Response:
        path: dict[str, Any] = {
            name: whole(text, name) if name in NUMBERS else text for name, text in request.path_params.items()
        }
        if route.view:
            return await self._view_of(route.view, who, {**path, **values})
        if route.answer == "output":
            output = await self.run(who, partial(self.handlers.apps.output, who, **path, **values), "reads")
            headers = {"x-content-type-options": "nosniff"}
            return Response(output, media_type="application/octet-stream", headers=headers)
        if route.asks is not None:
            values["rules"] = question(await typed_body(request), route.asks)
        elif route.method == "POST" and "text" not in values:
            await check_no_body(request)
        known = values.pop("If-None-Match", "")
        asked = partial(cast("Callable[[Door], Callable[..., Viewed]]", route.handler)(self), who, **path, **values)
        run = partial(self.run, who, asked, route.pool)
        if not (route.long and who.token):
            return _viewed(await run(), known)
        owner, began_s = company_of(who) or who.account, self.feed.now()
        self.rates.check_work(owner)
        viewed = await run()
        self.rates.charge_work(owner, self.feed.now() - began_s)
        return _viewed(viewed, known)

    async def _view_of(self, view: str, who: By, values: dict[str, Any]) -> Response:
        shared = {name: values.pop(name) for name in ("at", "after", "cursor", "limit", "reason") if name in values}
        known = values.pop("If-None-Match", "")
        call = partial(self.handlers.views.view, who, view, values, **shared)
        of_store = "at" in shared or "tasks" in values
        viewed = await (self.run(who, call, "reads") if of_store else self.run(who, call, "views"))
        if isinstance(viewed.body, list):
            self.rates.owe(who.token, company_of(who), max(0, len(viewed.body) - 1) // PAGE)
        return _viewed(viewed, known)

    async def _mail(self, route: Route, request: Request, who: By, *, passed: bool, wait: int = 0) -> Response:
        """Leave a message, or read one once it is there or after `wait` ms."""
        path, deadline = request.path_params, self.feed.now() + wait / 1000
        if route.asks is not None:
            asked = question(await typed_body(request), MailboxText)
            leave = partial(self.handlers.apps.publish, who, path["app"], path["name"], asked, passed=passed)
            return _viewed(await self.run(who, leave, "reads"))
        look = partial(self.handlers.apps.message, who, path["app"], path["name"], passed=passed)
        while True:
            viewed = await self.run(who, look, "reads")
            left_s = deadline - self.feed.now()
            if _plain(cast("Raw", viewed.body))["text"] is not None or left_s <= 0 or self.feed.closed:
                return _viewed(viewed)
            await asyncio.sleep(min(MAIL_EVERY_S, left_s))

    async def _events(
        self, route: Route, request: Request, again: Callable[[], By], values: Mapping[str, Any]
    ) -> Response:
        """The events that `again` may see: who asks, looked up whenever it counts."""
        if self.feed.streams >= MAX_STREAMS:
            raise Unavailable(f"this server already has {MAX_STREAMS} streams; use another one")
        who = again()
        owner = company_of(who) or who.account
        if self._streams[owner] >= OF_COMPANY:
            raise TooMany(f"{owner} already has {OF_COMPANY} streams at this server; end some of them", STREAMS_S)
        handlers, path = self.handlers, request.path_params
        if route.name == "pulse":
            await self.run(who, partial(self.board.check, who), "reads")
            beats = self.feed.pulse(handlers.replica, again)
            return _stream(request, self._counted(owner, beats), {})
        reason = values.get("reason", "")
        # Who has an answer of another server may follow what this one has not folded yet.
        await self.reach(await self.head())
        await self.run(who, partial(handlers.log.open_stream, who, path, reason), "reads")

        of = next(iter(path), "")

        def wanted(told: Told) -> bool:
            return not of or getattr(told, of) == path[of]

        def allowed() -> Callable[[str, str], bool]:
            who = again()
            return handlers.replica.peek(lambda state: handlers.sight.reader(state, who, reason))

        allowed()
        start = values.get("Last-Event-ID") or values.get("after")
        after = handlers.replica.head if start is None else int(start)
        events = self.feed.stream(handlers.replica, after, wanted=wanted, allowed=allowed, limiter=self._catching_up)
        return _stream(request, self._counted(owner, events), {POSITION: str(after)})

    async def _counted(self, owner: str, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The events, as a stream of the owner's."""
        self._streams[owner] += 1
        try:
            async for part in events:
                yield part
        finally:
            self._streams[owner] -= 1
            if not self._streams[owner]:
                del self._streams[owner]


async def _reach_for(door: Door, route: Route, values: dict[str, Any]) -> None:
    """Wait until the replica has folded the log as far as these parameters of the route ask for. Raises: NotReady.

    Where the route takes `after`, that is then the whole of it, so that no answer is given that was kept before.
    """
    fresh, has_after = values.pop("fresh", False), AFTER in route.params
    due = max(await door.head() if fresh else 0, values.get("after", 0) if has_after else 0)
    await door.reach(due)
    if fresh and has_after:
        values["after"] = due


def _check_visitor(state: ClusterState, who: By) -> None:
    """Raises: NotAllowed if the page is not for the holder of such a token."""
    token = state.accounts.tokens.get(who.token)
    if token is not None and token.once:
        raise NotAllowed("this is an invitation: run `fairlog login` with it, then `fairlog page` prints a link here")
    if who.role == "worker":
        raise NotAllowed(f"{who.account} is the account of a worker; the page is for people")


def _stream(request: Request, events: AsyncIterator[bytes], headers: Mapping[str, str]) -> Response:
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
    if request.method == "HEAD":  # whose answer has an end
        return Response(media_type="text/event-stream", headers=headers)
    return StreamingResponse(_until_refused(events), media_type="text/event-stream", headers=headers)


async def _until_refused(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events, until an error ends the stream; who follows asks again and hears why."""
    try:
        async for part in events:
            yield part
    except (FairlogError, RedisError) as error:
        yield b"event: end\ndata: %b\n\n" % _to_json(problem_of(error))


def make_app(door: Door, *, at_home: bool) -> Starlette:
    """The application; whoever runs it runs the replica.

    `at_home`: only the account that runs it can reach it, so that a caller without a token is that account.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        door.feed.start()
        yield
        door.feed.close()

    def endpoint(route: Route) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            if (version := request.headers.get(HEADER)) is not None:
                worker = request.path_params.get("worker")
                check_messages(version, f"worker {worker}" if worker else "the client", "the API server")
            return await door.answer(route, request)

        return answer

    if at_home:
        door.sessions.at_home = True
    routes = [Mounted(_pattern(route), endpoint(route), methods=[route.method], name=route.name) for route in ROUTES]
    routes += page_routes()
    handlers: Mapping[Any, ExceptionHandler] = {
        HTTPException: _not_routed,
        ClientDisconnect: _problem,
        FairlogError: _problem,
        RedisError: _problem,
        Exception: _problem,
    }
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.at_home = at_home
    return app


def _pattern(route: Route) -> str:
    """The path as Starlette writes it; the name of an account has a slash."""
    return route.path.replace("{account}", "{account:path}")


async def _problem(_: Request, error: Exception) -> Response:
    return Response(_to_json(problem_of(error)), status_of(error), headers_of(error), MEDIA)


async def _not_routed(request: Request, error: Exception) -> Response:
    """What no route takes: an unknown path, or a method that the path does not have."""
    raised = cast("HTTPException", error)
    if raised.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        path = request.url.path
        found = [each for each in request.app.routes if each.path_regex.match(path)]
        allowed = ", ".join(dict.fromkeys(method for each in found for method in sorted(each.methods)))
        made = await _problem(request, NoSuchMethod(f"{path} takes {allowed}, not {request.method}"))
        made.headers["allow"] = allowed
        return made
    if raised.status_code == HTTPStatus.NOT_FOUND and (document := lost(request)) is not None:
        return document
    if raised.status_code == HTTPStatus.NOT_FOUND:
        return await _problem(request, NotFound(f"there is nothing at {request.url.path}; see /openapi.json"))
    return await _problem(request, BadRequest(str(raised.detail)))


def _receipt(receipt: Receipt) -> dict[str, Any]:
    return {"id": receipt.command_id, "seq": receipt.seq}


def _viewed(viewed: Viewed, known: str = "") -> Response:
    """The answer to a read; 304 if the caller has it, whatever the log has done since."""
    content = {"items": viewed.body, "next": viewed.next} if isinstance(viewed.body, list) else {"value": viewed.body}
    tag = f'W/"{blake2b(_to_json(content), digest_size=16).hexdigest()}"'
    headers = {"etag": tag, POSITION: str(viewed.seen.seq), "cache-control": "private, no-cache"}
    if tag in known or known.strip() == "*":
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return json_answer({**viewed.seen._asdict(), **content}, headers)
