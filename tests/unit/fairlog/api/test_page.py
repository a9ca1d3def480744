"""Sessions of the page over HTTP: who gets a cookie, what it is good for, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import fakeredis
import httpx
import pytest

from fairlog.api.app import Door, make_app
from fairlog.api.feed import Feed
from fairlog.api.handlers import Handlers
from fairlog.page import sessions
from fairlog.page.assets import FOLDER, VIEWS, assets
from scheduler.model.commands import AddAccount, IssueToken, RegisterCompany, RevokeToken, SubmitApp
from scheduler.model.errors import NotAuthenticated
from scheduler.model.sender import By, local
from scheduler.service.tokens import NewToken, new_token
from tests.unit.fairlog.api.served import ACME, WORKER, served
from tests.waiting import HOPELESS_S

MARK = {"fairlog-page": "1", "sec-fetch-site": "same-origin"}
Story = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def api() -> Iterator[Handlers]:
    with served(fakeredis.FakeRedis(server=fakeredis.FakeServer())) as made:
        for command in (ACME, WORKER, RegisterCompany(company="globex")):
            made.replica.wait_for(made.sender.send(local(0), command).seq, HOPELESS_S)
        yield made


def told(api: Handlers, story: Story) -> None:
    """Tell the story of a client over TCP."""

    async def tell() -> None:
        door = Door(api, Feed())
        app = make_app(door, at_home=False)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client,
        ):
            await story(client)

    asyncio.run(tell())


def account(api: Handlers, name: str, **about: Any) -> NewToken:
    """A token of a new account."""
    made = new_token()
    for command in (
        AddAccount(account=name, **about),
        IssueToken(token=made.id, account=name, hash=made.hash),
    ):
        api.replica.wait_for(api.sender.send(local(0), command).seq, HOPELESS_S)
    return made


async def entered(client: httpx.AsyncClient, token: NewToken) -> httpx.Response:
    return await client.post("/v1/session", json={"token": token.text}, headers=MARK)


def test_without_a_token_a_link_of_the_sockets_owner_opens_one_session(api: Handlers) -> None:
    """Of the server that made it, and only over the network address: the socket needs none."""

    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/session")).status_code == 401
        assert (await client.get("/v1/overview")).status_code == 401
        assert (await client.post("/v1/links")).status_code == 401

    told(api, story)

    async def tell() -> None:
        door = Door(api, Feed())
        home, tcp = make_app(door, at_home=True), make_app(door, at_home=False)
        inside = httpx.AsyncClient(transport=httpx.ASGITransport(home), base_url="http://x")
        outside = httpx.AsyncClient(transport=httpx.ASGITransport(tcp), base_url="http://127.0.0.1:8080")
        async with inside, outside:
            assert (await inside.post("/v1/links")).json()["url"] == ""
            door.url = "https://fairlog.example.org:8443"
            made = (await inside.post("/v1/links")).json()
            assert made["url"] == door.url
            key = made["key"]
            first = await outside.post("/v1/session", json={"key": key}, headers=MARK)
            assert (first.status_code, first.json()["role"]) == (200, "operator")
            assert (await outside.get("/v1/overview")).status_code == 200
            outside.cookies.clear()
            second = await outside.post("/v1/session", json={"key": key}, headers=MARK)
            assert second.status_code == 401
            assert "was opened before" in second.json()["detail"]

    asyncio.run(tell())


def test_a_link_that_nobody_opens_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sessions.Sessions("c")
    key = made.link(local(0), 0)
    with pytest.raises(NotAuthenticated):
        made.redeem(key, sessions.LINK_MS)
    monkeypatch.setattr(sessions, "KEPT", 2)
    oldest, *others = [made.link(local(0), 0) for _ in range(3)]
    with pytest.raises(NotAuthenticated):
        made.redeem(oldest, 1)
    assert [made.redeem(key, 1) for key in others] == [local(0)] * 2


def test_a_token_is_exchanged_for_a_cookie_that_ends_with_it(api: Handlers) -> None:
    token = account(api, "acme/ann")

    async def story(client: httpx.AsyncClient) -> None:
        answer = await entered(client, token)
        cookie = answer.headers["set-cookie"].lower()
        assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/", "max-age=3600"))
        assert "secure" not in cookie
        assert token.text not in cookie
        said = answer.json()
        assert (said["account"], said["company"], said["can"]["submit"]) == ("acme/ann", "acme", "own")
        assert (await client.get("/v1/whoami")).json()["value"]["account"] == "acme/ann"
        assert (await client.get("/v1/session")).json()["until"] == said["until"]
        api.replica.wait_for(api.sender.send(local(0), RevokeToken(token=token.id)).seq, HOPELESS_S)
        gone = await client.get("/v1/whoami")
        assert gone.status_code == 401
        assert "the token of this session was revoked" in gone.json()["detail"]

    told(api, story)


def test_over_tls_the_cookie_is_secure(api: Handlers) -> None:
    token = account(api, "acme/tls")

    async def story(client: httpx.AsyncClient) -> None:
        headers = {**MARK, "origin": "https://127.0.0.1:8080"}
        answer = await client.post("/v1/session", json={"token": token.text}, headers=headers)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-fairlog-8080=")
        assert "secure" in cookie.lower()

    told(api, story)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin"},
        {"fairlog-page": "1", "sec-fetch-site": "cross-site"},
        {"fairlog-page": "1", "sec-fetch-site": "same-site"},
        {"fairlog-page": "1", "origin": "http://127.0.0.1:9999"},
        {"fairlog-page": "1", "origin": "null"},
    ],
)
def test_no_page_of_another_server_changes_anything(api: Handlers, headers: dict[str, str]) -> None:
    token = account(api, f"acme/c{abs(hash(str(headers))) % 10**8}")

    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/session", json={"token": token.text}, headers=headers)).status_code == 403
        assert (await entered(client, token)).status_code == 200
        head = api.replica.log.head()
        for method, path in (("POST", "/v1/apps/a/kill"), ("DELETE", "/v1/session"), ("POST", "/v1/commands")):
            answer = await client.request(method, path, json={"commands": []}, headers=headers)
            assert (answer.status_code, answer.json()["title"]) == (403, "NotAllowed"), path
        assert api.replica.log.head() == head
        assert (await client.get("/v1/session")).status_code == 200

    told(api, story)


def test_a_session_does_what_its_account_may_and_its_command_names_it(api: Handlers) -> None:
    ann, bob = account(api, "acme/sam"), account(api, "globex/bob")
    submit = SubmitApp(app="sams", company="acme", user="sam", tasks=1, command=("true",))
    api.replica.wait_for(api.sender.send(By("acme/sam", ann.id, "user"), submit).seq, HOPELESS_S)

    async def story(client: httpx.AsyncClient) -> None:
        await entered(client, bob)
        assert (await client.get("/v1/apps/sams/card")).status_code == 403
        assert (await client.post("/v1/apps/sams/kill", json={}, headers=MARK)).status_code == 403
        client.cookies.clear()
        await entered(client, ann)
        seq = (await client.post("/v1/apps/sams/kill", json={}, headers=MARK)).json()["seq"]
        entry = (await client.get(f"/v1/entries/{seq}", params={"after": seq})).json()["value"]
        assert entry["by"] == "acme/sam"

    told(api, story)


def test_what_is_no_good_cookie_is_refused_in_a_sentence(api: Handlers) -> None:
    token = account(api, "acme/eve")

    async def story(client: httpx.AsyncClient) -> None:
        await entered(client, token)
        ((name, good),) = client.cookies.items()
        for bad in ("", "x", "é", good[:-1], good[:-4] + "AAAA", "A" + good[1:], good * 2, "YTpiOmM6ZDplOmY", "%00"):
            client.cookies.clear()
            answer = await client.get("/v1/whoami", headers=[(b"cookie", f"{name}={bad}".encode())])
            assert answer.status_code == 401, bad
            assert answer.headers["content-type"] == "application/problem+json"

    told(api, story)


def test_a_cookie_has_one_spelling(api: Handlers) -> None:
    token = account(api, "acme/una")
    made, state = sessions.Sessions("api", api.keyring), api.replica.peek(lambda state: state)
    cookie = made.cookie(By("acme/una", token.id, "user"), 0)
    assert made.of(cookie, state, 1).who.account == "acme/una"
    others = [
        f"{cookie}=",
        f"{cookie}!",
        f" {cookie}",
        f"{cookie[:9]}\n{cookie[9:]}",
        f"{cookie}===",
        f"{cookie[:8]}~{cookie[8:]}",
    ]
    for spelled in others:
        with pytest.raises(NotAuthenticated, match="this is not a session of the page"):
            made.of(spelled, state, 1)


def test_a_session_ends_at_its_time_at_logout_and_on_other_clusters(api: Handlers) -> None:
    token = account(api, "acme/tim")

    async def story(client: httpx.AsyncClient) -> None:
        before = (await entered(client, token)).json()["until"]
        renewed = await client.post("/v1/session", headers=MARK)
        assert renewed.json()["until"] >= before
        kept = dict(client.cookies)
        assert (await client.delete("/v1/session", headers=MARK)).status_code == 200
        again = await client.get("/v1/session", headers={"cookie": "; ".join("=".join(each) for each in kept.items())})
        assert "the session was ended" in again.json()["detail"]

    told(api, story)
    made, state = sessions.Sessions("api", api.keyring), api.replica.peek(lambda state: state)
    who = By("acme/tim", token.id, "user")
    cookie = made.cookie(who, 0)
    assert made.of(cookie, state, 1).who == who
    for other, at in ((made, sessions.SESSION_MS), (sessions.Sessions("other", api.keyring), 1)):
        with pytest.raises(NotAuthenticated):
            other.of(cookie, state, at)
    with pytest.raises(NotAuthenticated):
        sessions.Sessions("api").of(cookie, state, 1)
    at_home = made.cookie(local(0), 0)
    with pytest.raises(NotAuthenticated, match="nobody without a token"):
        made.of(at_home, state, 1)


def test_an_invitation_and_a_worker_get_no_session(api: Handlers) -> None:
    made = new_token()
    account(api, "acme/new")
    issue = IssueToken(token=made.id, account="acme/new", hash=made.hash, once=True)
    api.replica.wait_for(api.sender.send(local(0), issue).seq, HOPELESS_S)
    worker = account(api, "worker/w7")

    async def story(client: httpx.AsyncClient) -> None:
        for token, why in ((made, "this is an invitation"), (worker, "the page is for people")):
            answer = await entered(client, token)
            assert (answer.status_code, answer.json()["title"]) == (403, "NotAllowed")
            assert why in answer.json()["detail"]
            assert "set-cookie" not in answer.headers
        bodies: list[object] = [[], {"token": 1}, {"token": "a", "key": "b"}, {"password": "x"}]
        for body in bodies:
            assert (await client.post("/v1/session", json=body, headers=MARK)).status_code == 400

    told(api, story)


def test_the_page_is_one_document_with_files_that_may_run_nothing_else(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for path in VIEWS:
            answer = await client.get(path)
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert "unsafe" not in answer.headers["content-security-policy"]
        for name, asset in assets().items():
            if name == "index.html":
                continue
            answer = await client.get(f"/page/{name}")
            assert answer.content == asset.plain
            assert answer.headers["x-content-type-options"] == "nosniff"
            same = await client.get(f"/page/{name}", headers={"if-none-match": answer.headers["etag"]})
            assert (same.status_code, same.content) == (304, b"")
            plain = await client.get(f"/page/{name}", headers={"accept-encoding": "identity"})
            assert plain.content == asset.plain
        assert (await client.get("/page/../app.py")).status_code == 404
        assert (await client.get("/page/index.html")).status_code == 404
        assert (
            (await client.get("/nowhere", headers={"accept": "text/html"})).headers["content-type"].startswith("text")
        )
        assert (await client.get("/nowhere")).json()["title"] == "NotFound"

    told(api, story)
    for file in FOLDER.iterdir():
        text = file.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick=", "http://"):
            assert word not in text.replace("http://www.w3.org", ""), (file.name, word)


@pytest.mark.parametrize(
    ("guessed", "address"),
    [
        ("/app/report-7", "/app?id=report-7"),
        ("/apps/a%26b?at=12", "/app?id=a%26b&at=12"),
        ("/company/acme", "/company?name=acme"),
        ("/workers/w1", "/workers?worker=w1"),
        ("/apps/", "/apps"),
    ],
)
def test_a_name_behind_a_views_address_leads_there(api: Handlers, guessed: str, address: str) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        answer = await client.get(guessed)
        assert (answer.status_code, answer.headers["location"]) == (307, address)

    told(api, story)
