"""What workers ask of an API server: what they hold, once that changes, and the operations of what runs on them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import msgspec
from anyio import to_thread

from fairlog.api.exchange import check_no_body, json_answer, question, token_of, typed_body, values_of
from fairlog.api.routes import Answering
from fairlog.api.work import Bells, Questions
from scheduler.service.addresses import MAILBOX_VARIABLE
from workers import door as structs
from workers.door import Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from anyio import CapacityLimiter
    from starlette.requests import Request
    from starlette.responses import Response

    from fairlog.api.feed import Feed
    from fairlog.api.limits import Rates
    from fairlog.api.passes import Passes
    from fairlog.api.routes import Pool, Route
    from fairlog.api.work import Caller

SETTLES_S = 0.01
"""How often the store is asked whether its replicas have what a worker is to start."""


class ServesWorkers(Answering, Protocol):
    """What these routes need of the server."""

    feed: Feed
    rates: Rates
    passes: Passes
    url: str


class WorkRoutes:
    """The routes of workers, who show tokens of their own, and the bells that wake their questions."""

    def __init__(self, door: ServesWorkers, limiters: Mapping[Pool, CapacityLimiter]) -> None:
        self._door, self._limiters = door, limiters
        self.bells, self._questions = Bells(), Questions(door.handlers.workers.grants)

    async def answer(self, route: Route, request: Request) -> Response:
        """Answer a worker's request. Raises: as `Door.answer`."""
        work, path = self._door.handlers.workers, request.path_params
        worker, executor = path["worker"], path.get("executor", "")
        asks = {"at_home": request.app.state.at_home, "invited": route.name == "workerInvited"}
        who = partial(work.caller, token_of(request), worker, executor, **asks)
        caller = who()
        self._door.rates.charge_worker(worker)
        values = values_of(route.params, request)
        if not route.reads:
            await check_no_body(request)
        if route.tells == Holding.__name__:
            return await self._grants(who, caller, **values)
        asked = (question(await typed_body(request), getattr(structs, route.reads)),) if route.reads else ()
        operation = cast("Callable[[Answering], Callable[..., object]]", route.handler)(self._door)

        def call() -> object:
            granted = work.with_grant(caller, executor) if executor else caller
            told = operation(granted, *asked)
            return self._with_mailbox(request, told, granted) if isinstance(told, structs.Begun) else told

        told = await to_thread.run_sync(call, limiter=self._limiters[route.pool], abandon_on_cancel=True)
        return json_answer({} if told is None else told)

    def _with_mailbox(self, request: Request, begun: structs.Begun, caller: Caller) -> structs.Begun:
        """What runs is told, with the way to its app's mailbox where it can reach this server."""
        app, url = caller.grant.app, self._door.url if request.app.state.at_home else str(request.base_url).rstrip("/")
        if not (begun.granted and url):
            return begun
        known = self._door.handlers.replica.peek(lambda state: state.apps.get(app))
        if known is None:
            return begun
        spec, worker = known.spec, caller.worker
        given = self._door.passes.make_for_mail(spec.company, spec.user, app, known.submitted_at, worker)
        told = {MAILBOX_VARIABLE: url, "FAIRLOG_MAILBOX_TOKEN": given}
        pairs = [(name.encode(), text.encode()) for name, text in told.items()]
        return msgspec.structs.replace(begun, secrets=[*begun.secrets, *pairs])

    async def _grants(self, who: Callable[[], Caller], caller: Caller, after: str = "", wait: int = 0) -> Response:
        """What the worker holds, once it is not as the tag `after` says, or after `wait` ms.

        If no turn concerns the worker meanwhile, it is not looked at again: the next question follows at once.
        """
        worker, deadline = caller.worker, self._door.feed.now() + wait / 1000
        while True:
            rung = self.bells.expect(worker)
            try:
                holding, settles = await self._questions.ask(caller, after)
                left_s = deadline - self._door.feed.now()
                if holding.tag != after or left_s <= 0 or self._door.feed.closed:
                    return json_answer(holding)
                await asyncio.wait([rung], timeout=min(left_s, SETTLES_S) if settles else left_s)
                caller = who()
                if not (settles or rung.done()):
                    return json_answer(holding)
            finally:
                self.bells.forget(worker, rung)

    async def ring_for_visits(self) -> None:
        """Wake the agents of workers on which somebody wants to run a command, whichever server was asked for it."""
        self.bells.ring(await to_thread.run_sync(self._door.handlers.workers.visited, limiter=self._limiters["work"]))
