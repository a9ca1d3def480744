"""The listener of the protocol, an ASGI application beside the API's: it asks the same handlers, by the same rules.

Every answer is JSON of the protocol, also an error, whose sentence is its message.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from fairlog.api.addresses import TOKEN_VARIABLE, URL_VARIABLE
from fairlog.api.app import STOPS
from fairlog.api.exchange import body_of, token_of
from fairlog.api.problems import BadRequest, NoSuchMethod, Unavailable, headers_of, problem_of, status_of
from fairlog.api.sight import company_of, machine_ms
from fairlog.compat.spark_rest.answers import (
    UNKNOWN_VERSION,
    VERSION,
    answer,
    app_of,
    could_not_start,
    driver_state,
    new_app,
    refused,
    submission_of,
    written,
)
from fairlog.compat.spark_rest.page import page_of, part_of
from fairlog.compat.spark_rest.requests import COMPANY, TOKEN, read_create
from fairlog.engines.spark.driver import PROPERTIES, kept_variables, submission, version_of
from scheduler.model.commands import BATCH, KillApp, write_command
from scheduler.model.errors import AppEnded, FairlogError, InvalidCommand, NotAllowed, NotAuthenticated
from scheduler.model.sender import local
from scheduler.model.text import counted
from scheduler.rules.command.permission import Subject, may_read
from scheduler.service.tokens import token_id

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ExceptionHandler

    from fairlog.api.app import Door
    from fairlog.compat.spark_rest.requests import Create
    from scheduler.model.sender import By
    from scheduler.rules.entities.apps import App
    from scheduler.rules.state.cluster import ClusterState

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ACTIONS = {"create": "POST", "kill": "POST", "killall": "POST", "clear": "POST", "status": "GET", "readyz": "GET"}
"""What can be asked -> the method."""
_PAGE = "json"
_TOKENS = "fl_"
_NOBODY = "spark"
"""The user of apps for which no user is named, while there are no accounts."""
_REASON = "asked for through Spark's REST protocol"
"""Why an operator kills an app and reads a driver's last line, who must give a reason."""


class _Driver(NamedTuple):
    """What a status tells of a driver."""

    state: str
    detail: str
    worker: str
    host: str
    could_not_start: bool


class _PathAndToken(NamedTuple):
    """A request: the words of its path behind the token, and the token in it."""

    words: list[str]
    token: str


class SparkRestServer:
    """Answers requests; `home` is Spark's folder here and on workers. Raises: NoSpark if there is none here."""

    def __init__(self, door: Door, home: str) -> None:
        self._door, self._home = door, home
        self._spark = version_of(home)[0]

    async def answer(self, request: Request) -> Response:
        """Answer a request."""
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            if not self._door.feed.closed:
                raise
            return self.problem(Unavailable(STOPS))
        except (FairlogError, RedisError, ClientDisconnect) as error:
            return self.problem(error)

    def problem(self, error: Exception) -> Response:
        """The error in the protocol's form; what cannot be read is a bad request, as Spark says of it."""
        status = HTTPStatus.BAD_REQUEST if isinstance(error, InvalidCommand) else status_of(error)
        return refused(problem_of(error)["detail"], self._spark, status, headers_of(error))

    async def _answer(self, request: Request) -> Response:
        if "origin" in request.headers:
            raise NotAllowed("this port is for programs such as spark-submit, not for the scripts of a web page")
        await self._door.handlers.replica.be_fresh()
        words = [word for word in request.url.path.split("/") if word]
        asked = (
            _PathAndToken(words[1:], words[0]) if words and words[0].startswith(_TOKENS) else _PathAndToken(words, "")
        )
        for token in (token_of(request), asked.token):
            await self._door.newest.learn(token_id(token))
        if asked.words[:1] == [_PAGE]:
            self._check_method(request, "GET")
            return await self._page(request, asked)
        if asked.words[:2] != [VERSION, "submissions"] or (asked.words[2:] or [""])[0] not in _ACTIONS:
            return self._astray(asked.words)
        action = asked.words[2]
        self._check_method(request, _ACTIONS[action])
        answered = {"create": self._create, "readyz": self._ready, "killall": self._kill_all, "clear": self._clear}
        if action in answered:
            return await answered[action](request, asked)
        who = self._who(request, asked)
        if not asked.words[3:]:
            raise BadRequest(f"the path names no submission; ask for /{VERSION}/submissions/{action}/driver-…")
        return await (self._kill if action == "kill" else self._status)(who, asked.words[3])

    def _check_method(self, request: Request, method: str) -> None:
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            raise NoSuchMethod(f"{request.url.path[:200]} takes {method}, not {request.method}")

    def _astray(self, words: list[str]) -> Response:
        """What is no path of the protocol; of another version, with the one that there is."""
        right = f"requests go to http://HOST:PORT/{VERSION}/submissions/ACTION"
        actions = ", ".join(_ACTIONS)
        if words and words[0] != VERSION:
            why = f"there is no version {words[0][:40]!r} of the protocol; {right}"
            return refused(why, self._spark, UNKNOWN_VERSION, highestProtocolVersion=VERSION)
        missing = "the version" if not words else "/submissions" if words[1:2] != ["submissions"] else "an action"
        return refused(f"the path has not {missing}: {right}, one of {actions}", self._spark, HTTPStatus.BAD_REQUEST)

    # Who asks

    def _who(self, request: Request, asked: _PathAndToken, given: str = "") -> By:
        """Who asks, by a token in the header, in the path or in a property; anybody while there are no accounts.

        Raises: NotAuthenticated, BadRequest if there are several tokens, TooMany.
        """
        door = self._door
        found = {token for token in (token_of(request), asked.token, given) if token}
        if len(found) > 1:
            raise BadRequest(f"the header, the path and {TOKEN} name different tokens; give one")
        if found:
            who = door.handlers.principal(found.pop(), at_home=False)
            door.rates.charge(who.token, company_of(who))
            return who
        door.handlers.replica.check_fresh()
        if door.handlers.replica.peek(lambda state: state.closed):
            raise NotAuthenticated(
                f"there are accounts: give a token, in the property {TOKEN} of a submission, in the path of the "
                "master, spark://HOST:PORT/fl_…, or as `Authorization: Bearer fl_…`"
            )
        self._charge_address(request)
        return local(os.getuid())

    def _charge_address(self, request: Request) -> None:
        """Raises: TooMany."""
        self._door.rates.charge_address("" if request.client is None else request.client.host)

    # Submissions

    async def _create(self, request: Request, asked: _PathAndToken) -> Response:
        create = read_create(await body_of(request))
        who, app, door = self._who(request, asked, create.token), new_app(), self._door
        company, user = await self._submitter(who, create)
        now = machine_ms()
        door.handlers.replica.peek(lambda state: may_read(state, who, "submit", Subject(company, user), now))
        variables = {
            **kept_variables(),
            **create.variables,
            PROPERTIES: create.properties,
            URL_VARIABLE: os.environ.get(URL_VARIABLE) or door.url,
            TOKEN_VARIABLE: door.passes.make(who, company, user, app, now, after=door.handlers.replica.head),
        }
        command = submission(
            create.arguments,
            create.conf,
            variables,
            app=app,
            company=company,
            user=user,
            home=self._home,
            folder=create.folder,
        )
        await door.run(who, partial(door.handlers.sender.send, who, command, variables), "commands")
        name = submission_of(app)
        return answer(
            "CreateSubmissionResponse",
            self._spark,
            success=True,
            submissionId=name,
            message="; ".join((f"{name} was submitted as app {app} of {company}/{user}", *create.said)),
            unknownFields=list(create.unknown) or None,
        )

    async def _submitter(self, who: By, create: Create) -> tuple[str, str]:
        """The company and the user of the app: those of the account unless others are named.

        Without accounts they are the only company that there is, and the user that SPARK_USER names, else `spark`.

        Raises: BadRequest.
        """
        own = company_of(who)
        user = create.user or (who.account.partition("/")[2] if own else create.variables.get("SPARK_USER") or _NOBODY)
        if company := create.company or own:
            return company, user
        await self._door.reach(await self._door.head())
        known = self._door.handlers.replica.read(lambda state: sorted(state.companies))[1]
        if len(known) != 1:
            raise BadRequest(
                f"name the company: add {COMPANY} to sparkProperties; without it, one is assumed only if there is "
                "exactly one"
            )
        return known[0], user

    async def _status(self, who: By, name: str) -> Response:
        told = await self._driver(who, name)
        if told is None:
            return answer("SubmissionStatusResponse", self._spark, success=False, submissionId=name)
        why = told.detail
        if told.could_not_start and (line := await self._last_line(who, app_of(name))):
            why = f"{why}: {line}"
        return answer(
            "SubmissionStatusResponse",
            self._spark,
            success=True,
            submissionId=name,
            driverState=told.state,
            message=why or None,
            workerId=told.worker or None,
            workerHostPort=f"{told.host}:0" if told.worker else None,
        )

    async def _driver(self, who: By, name: str) -> _Driver | None:
        """What is told of the driver; None if there is none of that name, or none that `who` may see.

        It has all that any server has answered: who kills a driver and asks again hears that it is killed.
        """
        door, app = self._door, app_of(name)
        await door.reach(await door.head())

        def look(state: ClusterState) -> _Driver | None:
            known = state.apps.get(app)
            if known is None or known.spec.driver is None or not door.handlers.sight.may_see(state, who, app):
                return None
            return _told(state, known)

        return (await door.run(who, partial(door.handlers.replica.read, look), "views"))[1]

    async def _last_line(self, who: By, app: str) -> str:
        """The last line that the driver wrote; "" if it wrote none, or `who` may not read it."""
        try:
            output = await self._door.run(
                who, partial(self._door.handlers.apps.output, who, app, None, reason=_reason(who)), "reads"
            )
        except NotAllowed:
            return ""
        lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip().removeprefix("fairlog: ")[:1000] if lines else ""

    async def _kill(self, who: By, name: str) -> Response:
        told = await self._driver(who, name)
        success, message = False, f"there is no driver {name[:80]}"
        if told is not None:
            success, message = True, f"{name} was told to end"
            try:
                command = KillApp(app=app_of(name), reason=_reason(who))
                await self._door.run(who, partial(self._door.handlers.sender.send, who, command), "commands")
            except AppEnded:
                success, message = False, f"{name} has ended already: it is {told.state}"
        return answer("KillSubmissionResponse", self._spark, success=success, submissionId=name, message=message)

    async def _kill_all(self, request: Request, asked: _PathAndToken) -> Response:
        door, who, now = self._door, self._who(request, asked), machine_ms()
        await door.reach(await door.head())

        def look(state: ClusterState) -> list[str]:
            return [app.id for app in state.apps.values() if app.ended is None and _may_kill(state, app, who, now)]

        apps = (await door.run(who, partial(door.handlers.replica.read, look), "views"))[1]
        bodies = [write_command(KillApp(app=app, reason=_reason(who))).encode() for app in apps]
        refusals: list[Exception] = []
        for start in range(0, len(bodies), BATCH):
            part = bodies[start : start + BATCH]
            outcomes = await door.run(who, partial(door.handlers.sender.send_many, who, part), "commands")
            refusals += [each for each in outcomes if isinstance(each, Exception) and not isinstance(each, AppEnded)]
        message = f"{counted(len(apps) - len(refusals), 'driver')} were told to end"
        if refusals:
            message += f", {len(refusals)} were not: {refusals[0]}"
        return answer("KillAllSubmissionResponse", self._spark, success=not refusals, message=message)

    async def _clear(self, request: Request, asked: _PathAndToken) -> Response:
        """Nothing is forgotten on request: what has ended is shown to everybody as the cluster's setting says."""
        self._who(request, asked)
        why = "nothing was cleared: the setting retained_apps says how many ended apps are shown, and the log keeps all"
        return answer("ClearResponse", self._spark, success=False, message=why)

    async def _ready(self, request: Request, _asked: _PathAndToken) -> Response:
        """Whether a driver can be submitted now: this server follows the log, and a master is active."""
        self._charge_address(request)  # nobody shows a token here, and the store is asked
        self._door.handlers.replica.check_fresh()
        if not await self._led():
            raise Unavailable("no master is active; `fairlog status` tells more")
        return answer("ReadyzResponse", self._spark, success=True, message="")

    async def _led(self) -> bool:
        handlers = self._door.handlers
        return bool(await asyncio.to_thread(handlers.store.exists, handlers.keys.lease))

    # The Master's page

    async def _page(self, request: Request, asked: _PathAndToken) -> Response:
        door, who, now = self._door, self._who(request, asked), machine_ms()
        handlers, led = door.handlers, await self._led()
        await door.reach(await door.head())
        beats = await asyncio.to_thread(handlers.store.zrange, handlers.keys.heartbeats, 0, -1, withscores=True)
        heard = {name.decode(): round(at) for name, at in cast("list[tuple[bytes, float]]", beats)}
        shown, public = handlers.sight.shown_to(who)
        url = f"spark://{request.url.netloc}"

        def look(state: ClusterState) -> dict[str, Any]:
            may_read(state, who, "cluster-read", Subject(), now)
            return page_of(state, url=url, led=led, heard=heard, shown=shown(state), public=public)

        said: Mapping[str, Any] = (await door.run(who, partial(handlers.replica.read, look), "views"))[1]
        if asked.words[1:]:
            said = part_of(said, asked.words[1])
        return Response(written(said), media_type="text/json", headers={"cache-control": "no-store"})


def _told(state: ClusterState, app: App) -> _Driver:
    worker = "" if app.driver is None else app.driver.worker
    host = state.workers[worker].host if worker in state.workers else ""
    detail = "its time was over" if app.ended == "expired" and not app.detail else app.detail
    return _Driver(driver_state(app), detail, worker, host, could_not_start(app))


def _reason(who: By) -> str:
    return _REASON if who.role == "operator" else ""


def _may_kill(state: ClusterState, app: App, who: By, now: int) -> bool:
    if app.spec.driver is None:
        return False
    try:
        may_read(state, who, "kill", Subject(app.spec.company, app.spec.user), now, reason=_reason(who))
    except NotAllowed:
        return False
    return True


def make_app(door: Door, home: str) -> Starlette:
    """The application; the API's own, in the same process, runs what both need. Raises: NoSpark."""
    server = SparkRestServer(door, home)

    async def failed(_: Request, error: Exception) -> Response:
        return server.problem(error)

    handlers: Mapping[Any, ExceptionHandler] = {Exception: failed}
    routes = [Route("/{path:path}", server.answer, methods=[*_METHODS])]
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app
