"""Passes of drivers: what one is good for, how long, and what it never is."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator
from threading import Event
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from msgspec import to_builtins

from fairlog.api.app import Door, make_app
from fairlog.api.board import Board
from fairlog.api.feed import Feed
from fairlog.api.limits import Rates
from fairlog.api.passes import UNUSED_MS, Passes
from fairlog.api.routes import OPEN, ROUTES
from scheduler.model.commands import (
    AddAccount,
    Command,
    ConfigureCluster,
    EndedDriver,
    FinishApp,
    IssueToken,
    KillApp,
    RegisterCompany,
    RevokeToken,
    ScaleApp,
)
from scheduler.model.errors import NotAuthenticated
from scheduler.model.sender import By
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.keyring import Keyring
from scheduler.service.tokens import new_token
from tests.unit.fairlog.api.served import ACME, ROOT, WORKER, served, submission
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    import fakeredis
    from msgspec import Raw
    from starlette.requests import Request

    from fairlog.api.handlers import Handlers

DRIVER = {"driver": True, "cores": 0}
OWNED = {"executor_program": True, "executor_cores": 1, "executor_memory_mb": 512, "owner_timeout_s": 30}
Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def api(fake: fakeredis.FakeRedis) -> Iterator[Handlers]:
    with served(fake) as made:
        for command in (ACME, WORKER, RegisterCompany(company="globex", cores=8, memory_mb=8192)):
            made.sender.send(ROOT, command)
        yield made


def run(api: Handlers, story: Callable[[Ask, str], Awaitable[None]], *, token: str = "") -> None:
    """Have the story ask at an address that wants a token, with a pass for the driver of app d, which runs."""

    async def told() -> None:
        feed = Feed()
        api.replica.heard = feed.heard
        at_home = make_app(Door(api, feed), at_home=True)
        away = make_app(Door(api, feed), at_home=False)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with (
            away.router.lifespan_context(away),
            httpx.AsyncClient(transport=httpx.ASGITransport(at_home), base_url="http://home", headers=headers) as home,
            httpx.AsyncClient(transport=httpx.ASGITransport(away), base_url="http://away") as client,
        ):
            asked = {"app": "d", "company": "acme", "user": "ann"}
            given = (await home.post("/v1/passes", json=asked)).json()["value"]

            async def ask(method: str, path: str, given: str = given, **about: Any) -> httpx.Response:
                return await client.request(method, path, headers={"authorization": f"Bearer {given}"}, **about)

            early = await ask("GET", "/v1/apps/d")
            assert (early.status_code, "does not go on" in early.text) == (401, True)
            command = {**body(submission("d", **DRIVER)), "command": ["true"]}
            sent = await home.post("/v1/apps", json={key: value for key, value in command.items() if key != "tasks"})
            assert sent.status_code == 200, sent.text
            api.replica.wait_for(sent.json()["seq"], HOPELESS_S)
            await story(ask, given)

    asyncio.run(told())


def body(command: Command) -> dict[str, Any]:
    said: dict[str, Any] = to_builtins(command)
    return {name: value for name, value in said.items() if name != "type"}


def now() -> int:
    return round(time.time() * 1000)


def owned(app: str, **about: Any) -> dict[str, Any]:
    whole = body(submission(app, **{**OWNED, **about}))
    del whole["tasks"]
    return whole


def test_a_driver_submits_scales_follows_and_ends_apps_of_its_user(api: Handlers) -> None:
    async def story(ask: Ask, _: str) -> None:
        assert (await ask("POST", "/v1/apps", json=owned("e"))).status_code == 200
        assert (await ask("POST", "/v1/apps/e/scale", json={"executors": 0})).status_code == 200
        assert (await ask("POST", "/v1/apps/e/beat")).status_code == 200
        assert (await ask("GET", "/v1/apps/e/explain", params={"fresh": True})).status_code == 200
        batch = {"commands": [to_builtins(ScaleApp(app="e", executors=1))]}
        assert "seq" in (await ask("POST", "/v1/commands", json=batch)).json()["answers"][0]
        assert (await ask("POST", "/v1/apps/e/finish", json={})).status_code == 200

    run(api, story)


@pytest.mark.parametrize("driver_of", ["late", "d"])
def test_a_driver_is_heard_by_a_server_that_has_not_folded_what_it_knows(api: Handlers, driver_of: str) -> None:
    """Its own app, or another one of its user that it has submitted."""

    async def story(ask: Ask, given: str) -> None:
        pausing = Event()

        def pause() -> float:
            pausing.set()
            return 0.005

        with pytest.MonkeyPatch.context() as paused:
            paused.setattr(api.replica, "step", pause)
            assert await asyncio.to_thread(pausing.wait, HOPELESS_S), "the step that had begun ends"
            await asyncio.to_thread(api.sender.send, ROOT, submission("late", **OWNED, tasks=None))
            if driver_of == "late":
                given = Passes(api.keys.cluster, api.keyring).make(ROOT, "acme", "ann", "late", now())
            answer = asyncio.ensure_future(ask("POST", "/v1/apps/late/beat", given))
            await asyncio.wait([answer], timeout=0.2)
            assert not answer.done()
        assert (await answer).status_code == 200

    run(api, story)


def test_a_driver_may_nothing_else(api: Handlers) -> None:
    """Neither for another user, nor by a batch, nor what the one who submitted it may do besides."""
    api.replica.wait_for(api.sender.send(ROOT, submission("other", user="bob")).seq, HOPELESS_S)
    allowed = {"commands", "submitApp", "scaleApp", "finishApp", "beat", "explain", "app", "appEvents", "links"}
    allowed |= {"publish", "message"}

    async def story(ask: Ask, _: str) -> None:
        for route in ROUTES:
            if route.answer in OPEN or route.name in allowed | {"session", "logIn", "logOut"}:
                continue
            path = route.path.replace("{app}", "d").replace("{", "").replace("}", "")
            answer = await ask(route.method, path, json={})
            assert answer.status_code in (401, 403), (route.name, answer.text)
        for user in ("bob", "ann"):
            about = {"user": user, "company": "acme" if user == "bob" else "globex"}
            assert (await ask("POST", "/v1/apps", json=owned("f", **about))).status_code == 403
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/beat"), ("POST", "/finish")):
            answer = await ask(method, f"/v1/apps/other{path}", **({"json": {}} if path == "/finish" else {}))
            assert answer.status_code == 403, path
            assert "acts for acme/ann alone" in answer.text
        for command in (KillApp(app="d"), ConfigureCluster(settings={"placement": "pack"}), ScaleApp("other", 1)):
            batch = {"commands": [to_builtins(ScaleApp(app="d", executors=1)), to_builtins(command)]}
            assert (await ask("POST", "/v1/commands", json=batch)).status_code == 403

    run(api, story)


def test_a_driver_uses_the_mailboxes_of_its_user_and_is_shown_with_its_links(api: Handlers) -> None:
    api.replica.wait_for(api.sender.send(ROOT, submission("other", user="bob")).seq, HOPELESS_S)

    async def story(ask: Ask, _: str) -> None:
        assert (await ask("GET", "/v1/apps/d/mail/at")).json()["value"] == {"name": "at", "text": None}
        waiting = asyncio.ensure_future(ask("GET", "/v1/apps/d/mail/at", params={"wait": 10_000}))
        await asyncio.sleep(0)
        assert (await ask("PUT", "/v1/apps/d/mail/at", json={"text": "h:1 é"})).status_code == 200
        assert (await waiting).json()["value"]["text"] == "h:1 é"
        assert (await ask("PUT", "/v1/apps/d/mail/link.ui", json={"text": "http://h:4040"})).status_code == 200
        assert (await ask("GET", "/v1/apps/d/links")).json()["value"] == {"ui": "http://h:4040"}
        assert api_links(api, "d") == {"ui": "http://h:4040"}
        for name, text, why in (
            ("link.ui", "javascript:alert(1)", "is a link, such as http://host:4040, not 'javascript:alert(1)'"),
            ("big", "x" * 4097, "at most 4096 bytes, not 4097"),
            ("a b", "x", "the name of a message has 1 to 64 letters"),
        ):
            refused = await ask("PUT", f"/v1/apps/d/mail/{name}", json={"text": text})
            assert refused.status_code == 422, refused.text
            assert why in refused.json()["detail"], refused.text
        for number in range(62):
            assert (await ask("PUT", f"/v1/apps/d/mail/{number}", json={"text": ""})).status_code == 200
        full = await ask("PUT", "/v1/apps/d/mail/more", json={"text": ""})
        assert "the mailbox of d has 64 messages" in full.text
        assert (await ask("PUT", "/v1/apps/d/mail/at", json={"text": "again"})).status_code == 200
        for method, path in (("GET", "mail/at"), ("PUT", "mail/at"), ("GET", "links")):
            assert (await ask(method, f"/v1/apps/other/{path}", json={"text": ""})).status_code == 403

    run(api, story)


def api_links(api: Handlers, app: str) -> dict[str, str]:
    """The links of the app's card on the page."""
    card: dict[str, Any] = json.loads(bytes(cast("Raw", Board(api).app(ROOT, app).body)))
    links: dict[str, str] = card["links"]
    return links


async def given_to_programs(api: Handlers, ask: Ask) -> str:
    """The pass of what runs in executors of the app `e`, which is submitted."""
    if api.keyring is None:
        pytest.skip("without keys each server signs by a key of its own")
    sent = await ask("POST", "/v1/apps", json=owned("e"))
    api.replica.wait_for(sent.json()["seq"], HOPELESS_S)
    at = api.replica.state.apps["e"].submitted_at
    return Passes(api.keys.cluster, api.keyring).make_for_mail("acme", "ann", "e", at)


def test_a_program_of_an_executor_may_see_its_app_and_its_mailbox_and_nothing_else(api: Handlers) -> None:
    async def story(ask: Ask, _: str) -> None:
        given = await given_to_programs(api, ask)
        assert (await ask("PUT", "/v1/apps/e/mail/at", given=given, json={"text": "x"})).status_code == 200
        assert (await ask("GET", "/v1/apps/e/mail/at", given=given)).json()["value"]["text"] == "x"
        for route in ROUTES:
            if route.answer in OPEN or route.name in {"session", "logIn", "logOut", "publish", "message", "app"}:
                continue
            path = route.path.replace("{app}", "e").replace("{", "").replace("}", "")
            answer = await ask(route.method, path, given=given, json={})
            assert answer.status_code in (401, 403), (route.name, answer.text)
        assert (await ask("POST", "/v1/apps/e/finish", json={})).status_code == 200
        api.replica.wait_for(api.replica.log.head().seq, HOPELESS_S)
        assert (await ask("PUT", "/v1/apps/e/mail/at", given=given, json={"text": "x"})).status_code == 401

    run(api, story)


def test_a_program_of_an_executor_may_see_its_app_and_no_other(api: Handlers) -> None:
    async def story(ask: Ask, _: str) -> None:
        given = await given_to_programs(api, ask)
        assert (await ask("GET", "/v1/apps/e", given=given)).json()["value"]["app"] == "e"
        number = api.replica.state.apps["e"].submitted
        for ids in ("e", str(number)):
            seen = (await ask("GET", f"/v1/apps?details=true&tasks=true&ids={ids}", given=given)).json()["items"]
            assert [each["app"] for each in seen] == ["e"]
        for of_others in ("/d", "/d/mail/at", "?ids=d", "?ids=e,d", "?ids=e&ids=d", "?ids=", "?users=ann", ""):
            assert (await ask("GET", f"/v1/apps{of_others}", given=given)).status_code == 403, of_others

    run(api, story)


def test_what_runs_of_an_app_may_put_it_back_and_no_other_one(api: Handlers) -> None:
    """Semantics X6: in the name of the worker on which it runs."""

    async def story(ask: Ask, _: str) -> None:
        if api.keyring is None:
            pytest.skip("without keys each server signs by a key of its own")
        for name in ("e", "f"):
            sent = await ask("POST", "/v1/apps", json=owned(name))
        api.replica.wait_for(sent.json()["seq"], HOPELESS_S)
        held = api.replica.state.apps["e"]
        passes = Passes(api.keys.cluster, api.keyring)
        given = passes.make_for_mail("acme", "ann", "e", held.submitted_at, "w1")
        assert (await ask("POST", "/v1/apps/f/requeue", given=given, json={})).status_code == 403
        earlier = passes.make_for_mail("acme", "ann", "e", held.submitted_at)  # of a server that named no worker
        assert (await ask("POST", "/v1/apps/e/requeue", given=earlier, json={})).status_code == 403
        answer = await ask("POST", "/v1/apps/e/requeue", given=given, json={"reason": "a checkpoint"})
        assert answer.status_code == 200, answer.text
        api.replica.wait_for(answer.json()["seq"], HOPELESS_S)
        assert api.replica.state.apps["e"].restarts == 1
        api.sender.send(ROOT, AddAccount(account="op/olga"))
        api.replica.wait_for(api.replica.log.head().seq, HOPELESS_S)
        for number in range(8):  # more often than a master hears of what this server would refuse
            again = await ask("POST", "/v1/apps/e/requeue", given=given, json={})
            assert (again.status_code, again.json()["title"]) == (409, "NotAdmitted"), number

    run(api, story)


def test_what_runs_of_an_app_may_end_it_and_no_other_one(api: Handlers) -> None:
    """Semantics X4: by its pass nothing more runs, and nothing of others ends."""

    async def story(ask: Ask, _: str) -> None:
        if api.keyring is None:
            pytest.skip("without keys each server signs by a key of its own")
        for name in ("e", "f"):
            sent = await ask("POST", "/v1/apps", json=owned(name))
        api.replica.wait_for(sent.json()["seq"], HOPELESS_S)
        passes = Passes(api.keys.cluster, api.keyring)
        given, earlier = (
            passes.make_for_mail("acme", "ann", "e", api.replica.state.apps["e"].submitted_at, worker)
            for worker in ("w1", "")  # "": of a server that named no worker
        )
        for name, asked in {"signal": {"signal": "USR1"}, "cancel": {"task": 0}, "kill": {"reason": "done"}}.items():
            assert (await ask("POST", f"/v1/apps/f/{name}", given=given, json=asked)).status_code == 403, name
            assert (await ask("POST", f"/v1/apps/e/{name}", given=earlier, json=asked)).status_code == 403, name
        for name in ("finish", "scale", "hold", "extend", "kill-executors"):
            assert (await ask("POST", f"/v1/apps/e/{name}", given=given, json={})).status_code == 403, name
        assert (await ask("POST", "/v1/apps", given=given, json=owned("g"))).status_code == 403
        answer = await ask("POST", "/v1/apps/e/kill", given=given, json={"reason": "done"})
        assert answer.status_code == 200, answer.text
        api.replica.wait_for(answer.json()["seq"], HOPELESS_S)
        ended = api.replica.state.apps["e"].ended
        assert ended is not None
        assert api.replica.state.apps["f"].ended is None

    run(api, story)


def test_a_pass_is_good_while_its_app_goes_on_then_to_end_apps_and_cannot_be_altered(api: Handlers) -> None:
    async def story(ask: Ask, given: str) -> None:
        claims, _, rest = given.removeprefix("fp_").partition(".")
        said = urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        forged = urlsafe_b64encode(said.replace(b'"ann"', b'"bob"')).decode().rstrip("=")
        for text in (f"fp_{forged}.{rest}", given[:-1], "fp_", "fp_a.b.c", f"fp_{claims}.nobody.{'0' * 64}"):
            assert (await ask("GET", "/v1/apps/d", given=text)).status_code == 401
        assert (await ask("GET", "/v1/apps/d")).status_code == 200
        for app in ("e", "f"):
            assert (await ask("POST", "/v1/apps", json=owned(app))).status_code == 200
        api.replica.wait_for(api.sender.send(ROOT, KillApp(app="d")).seq, HOPELESS_S)
        refused = await ask("POST", "/v1/apps/e/scale", json={"executors": 2})
        assert (refused.status_code, "may end apps of its user, no more" in refused.text) == (403, True)
        assert (await ask("GET", "/v1/apps/d")).status_code == 403
        assert (await ask("POST", "/v1/apps", json=owned("g"))).status_code == 403
        scale, end = to_builtins(ScaleApp(app="e", executors=1)), to_builtins(FinishApp(app="e"))
        assert (await ask("POST", "/v1/commands", json={"commands": [scale, end]})).status_code == 403
        assert "seq" in (await ask("POST", "/v1/commands", json={"commands": [end]})).json()["answers"][0]
        gone = EndedDriver(driver="d.driver-0", worker="w1", reason="killed")
        api.replica.wait_for(api.sender.send(ROOT, gone).seq, HOPELESS_S)
        assert (await ask("POST", "/v1/apps/f/finish", json={})).status_code == 401

    run(api, story)


def test_with_accounts_a_pass_is_worth_what_its_token_is(api: Handlers) -> None:
    made = new_token()
    api.sender.send(ROOT, AddAccount(account="acme/ann"))
    api.sender.send(ROOT, AddAccount(account="acme/bob"))
    api.replica.wait_for(
        api.sender.send(ROOT, IssueToken(token=made.id, account="acme/ann", hash=made.hash)).seq, HOPELESS_S
    )

    async def story(ask: Ask, _: str) -> None:
        sent = await ask("POST", "/v1/apps", json=owned("e"))
        assert sent.status_code == 200, sent.text
        api.replica.wait_for(api.sender.send(ROOT, RevokeToken(token=made.id)).seq, HOPELESS_S)
        assert (await ask("POST", "/v1/apps/e/finish", json={})).status_code == 401

    run(api, story, token=made.text)


def test_a_key_that_signs_for_workers_makes_no_pass() -> None:
    ring = Keyring.new().rotated()
    state = ClusterState()
    forged = Passes("default", ring.for_workers()).make(By("op/root", "", "operator"), "acme", "ann", "d", now())
    with pytest.raises(NotAuthenticated, match="not signed by a door"):
        Passes("default", ring).read(forged, state, 0)
    honest = Passes("default", ring).make(By("op/root", "", "operator"), "acme", "ann", "d", now())
    with pytest.raises(NotAuthenticated, match="does not go on"):
        Passes("default", ring).read(honest, state, 0)


def test_a_pass_is_good_for_no_app_of_its_name_that_comes_after_an_hour(api: Handlers) -> None:
    api.replica.wait_for(api.sender.send(ROOT, submission("d", **DRIVER, tasks=None)).seq, HOPELESS_S)
    passes, state = Passes(api.keys.cluster, api.keyring), api.replica.state
    submitted = state.apps["d"].submitted_at
    for made in (submitted - UNUSED_MS, submitted, submitted + UNUSED_MS):
        assert passes.read(passes.make(ROOT, "acme", "ann", "d", made), state, submitted).app == "d"
    assert passes.read(passes.make_for_mail("acme", "ann", "d", submitted), state, submitted).mail
    earlier = passes.make(ROOT, "acme", "ann", "d", submitted - UNUSED_MS - 1)
    for text in (earlier, passes.make_for_mail("acme", "ann", "d", submitted - 1)):
        with pytest.raises(NotAuthenticated, match="the pass is not of this app d, which was submitted later"):
            passes.read(text, state, submitted)


def test_a_pass_is_good_for_the_first_app_of_its_name_alone(api: Handlers) -> None:
    """The second may be submitted once the first is forgotten; a server that was not asked about that knows it, too."""

    async def story(ask: Ask, _: str) -> None:
        assert (await ask("GET", "/v1/apps/d")).status_code == 200
        gone = EndedDriver(driver="d.driver-0", worker="w1", reason="killed")
        for command in (KillApp(app="d"), gone, ConfigureCluster(settings={"retained_apps": 0})):
            api.sender.send(ROOT, command)
        again = api.sender.send(ROOT, submission("d", **DRIVER, tasks=None))
        api.replica.wait_for(again.seq, HOPELESS_S)
        assert api.replica.state.apps["d"].ended is None
        refused = await ask("GET", "/v1/apps/d")
        assert (refused.status_code, "which was submitted later" in refused.text) == (401, True)
        elsewhere = make_app(Door(api, Feed()), at_home=False)
        given = {"authorization": refused.request.headers["authorization"]}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(elsewhere), base_url="http://away") as other:
            assert (await other.get("/v1/apps/d", headers=given)).status_code == 401

    run(api, story)


def test_a_pass_is_charged_before_the_store_is_asked_for_its_app(api: Handlers) -> None:
    """An app that is never submitted is asked for no more often than a driver may ask."""
    asked = 0

    async def told() -> None:
        nonlocal asked
        door = Door(api, Feed(), Rates(lambda: 0.0))
        given, head = door.passes.make(ROOT, "acme", "ann", "never", now()), door.head

        async def counted() -> int:
            nonlocal asked
            asked += 1
            return await head()

        door.head = counted  # type: ignore[method-assign]
        app = make_app(door, at_home=False)
        headers = {"authorization": f"Bearer {given}"}
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://away", headers=headers) as client,
        ):
            answers = [(await client.post("/v1/apps/never/beat")).status_code for _ in range(110)]
        assert answers == [401] * 100 + [429] * 10

    asyncio.run(told())
    assert asked == 100


def test_nobody_has_the_store_asked_for_an_apps_number_without_a_token_and_a_rate(api: Handlers) -> None:
    asked: list[str] = []
    path = "/v1/apps/999999"

    async def told() -> None:
        door = Door(api, Feed(), Rates(lambda: 0.0))
        app_named = api.sender.app_named

        def counted(text: str) -> str:
            asked.append(text)
            return app_named(text)

        api.sender.app_named = counted  # type: ignore[method-assign]
        known_as = {"": By("acme/ann", "t", "user")}

        def who(request: Request) -> By:
            return known_as.get(request.headers.get("x-stranger", "")) or api.principal("", at_home=False)

        door.who = who  # type: ignore[method-assign]
        app = make_app(door, at_home=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://away") as client,
        ):
            strangers = [(await client.get(path, headers={"x-stranger": "1"})).status_code for _ in range(3)]
            assert (strangers, asked) == ([401] * 3, [])
            known = [(await client.get(path)).status_code for _ in range(110)]
        assert known[100:] == [429] * 10

    asyncio.run(told())
    assert len(asked) == 100
