"""The HTTP side: routes, problems, ETags, pages, limits and streams."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, cast, get_args

import httpx
import pytest
from msgspec import to_builtins
from redis.exceptions import ConnectionError as StoreGone
from starlette.requests import Request

from fairlog.api.app import MAX_SUBMISSION, READS_AT_ONCE, Door, make_app
from fairlog.api.feed import Feed
from fairlog.api.limits import Buckets, Rates
from fairlog.api.openapi import description
from fairlog.api.problems import TooMany, status_of
from fairlog.api.routes import OPEN, ROUTES
from fairlog.api.sight import machine_ms
from scheduler.model import errors
from scheduler.model.commands import (
    NEVER_SENT,
    AddAccount,
    Command,
    IssueToken,
    RegisterCompany,
    Report,
    RevokeToken,
)
from scheduler.model.sender import By
from scheduler.model.versions import HEADER
from scheduler.rules.view.views import VIEWS
from scheduler.service.outage import ApiAway
from scheduler.service.tokens import NewToken, new_token
from scheduler.store.eventlog import Position
from scheduler.store.transient import LaneFull
from tests.unit.fairlog.api.served import ACME, ROOT, WORKER, served, submission
from tests.waiting import HOPELESS_S
from workers.servers import error_of

if TYPE_CHECKING:
    import fakeredis
    from starlette.responses import Response, StreamingResponse

    from fairlog.api.handlers import Handlers
    from fairlog.api.routes import Route

Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def api(fake: fakeredis.FakeRedis) -> Iterator[Handlers]:
    with served(fake) as made:
        yield made


@asynccontextmanager
async def opened(api: Handlers, *, local: bool = True) -> AsyncIterator[tuple[httpx.AsyncClient, Door]]:
    feed = Feed()
    door = Door(api, feed)
    api.replica.heard = feed.heard
    app = make_app(door, at_home=local)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://api") as client,
    ):
        yield client, door


def body(command: Command, *without: str) -> dict[str, Any]:
    said: dict[str, Any] = to_builtins(command)
    return {name: value for name, value in said.items() if name not in {"type", *without}}


def run(api: Handlers, story: Callable[[httpx.AsyncClient], Awaitable[None]], *, local: bool = True) -> None:
    async def told() -> None:
        async with opened(api, local=local) as (client, _):
            await story(client)

    asyncio.run(told())


def token_of_ann(api: Handlers) -> tuple[NewToken, int]:
    """A token of an account of acme, which the replica knows, and the position at which it was issued."""
    token = new_token()
    for command in (
        ACME,
        AddAccount(account="acme/ann"),
        IssueToken(token=token.id, account="acme/ann", hash=token.hash),
    ):
        seq = api.sender.send(ROOT, command).seq
    api.replica.wait_for(seq, HOPELESS_S)
    return token, seq


def check_problem(answer: httpx.Response, status: int, title: str) -> None:
    said = answer.json()
    assert (answer.status_code, said["status"], said["title"]) == (status, status, title)
    assert answer.headers["content-type"] == "application/problem+json"
    assert said["type"] == f"urn:fairlog:error:{title}"
    assert ("retry-after" in answer.headers) == (status in {429, 503})


def test_an_app_is_submitted_seen_and_killed(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/companies", json=body(ACME))).status_code == 200
        sent = await client.post("/v1/apps", json=body(submission("a")), headers={"idempotency-key": "k"})
        assert sent.json()["id"] == "k"
        seq = sent.json()["seq"]
        assert sent.headers["fairlog-position"] == str(seq)
        again = await client.post("/v1/apps", json=body(submission("a")), headers={"idempotency-key": "k"})
        assert again.json() == sent.json()
        other = await client.post("/v1/apps", json=body(submission("b")), headers={"idempotency-key": "k"})
        check_problem(other, 409, "IdReused")
        assert (await client.get("/v1/apps/b")).status_code == 404
        assert (await client.get("/v1/log", params={"after": seq, "fresh": "true"})).status_code == 200
        check_problem(await client.get("/v1/log", params={"after": 1_000_000}), 404, "NotThatLong")
        seen = await client.get("/v1/apps/a", params={"after": seq})
        assert seen.json()["value"]["state"] == "pending"
        assert seen.json()["seq"] >= seq
        killed = await client.post("/v1/apps/a/kill")
        gone = await client.get("/v1/apps", params={"after": killed.json()["seq"]})
        assert (gone.json()["items"], gone.json()["next"]) == ([], None)
        past = await client.get("/v1/apps", params={"at": seq})
        assert [app["app"] for app in past.json()["items"]] == ["a"]

    run(api, story)


def test_who_asks_for_all_that_is_committed_gets_no_answer_kept_from_before(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlog.api.board.SLOW_S", HOPELESS_S)

    async def story(client: httpx.AsyncClient) -> None:
        first = (await client.post("/v1/companies", json=body(ACME))).json()["seq"]
        old = (await client.get("/v1/fairness", params={"after": first})).json()
        later = (await client.post("/v1/companies", json=body(RegisterCompany(company="globex")))).json()["seq"]
        assert (await client.get("/v1/fairness")).json() == old
        for wanted in ({"fresh": "true"}, {"after": later}, {"after": first, "fresh": "true"}):
            assert (await client.get("/v1/fairness", params=wanted)).json()["seq"] >= later
        past = (await client.get("/v1/fairness", params={"at": old["seq"], "fresh": "true"})).json()
        assert past["seq"] == old["seq"] < later

    run(api, story)


def test_every_route_and_command_takes_the_number_of_an_app_for_its_id(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/companies", json=body(ACME))).status_code == 200
        for app in ("a", "b"):
            assert (await client.post("/v1/apps", json=body(submission(app)))).status_code == 200
        listed = (await client.get("/v1/apps", params={"fresh": "true"})).json()["items"]
        first, second = (each["submittedSeq"] for each in listed)
        assert (await client.get(f"/v1/apps/{first}")).json()["value"]["app"] == "a"
        for part in ("tasks", "explain", "card", "timeline", "output", "links"):
            by_number = await client.get(f"/v1/apps/{second}/{part}")
            assert by_number.status_code == 200, part
            assert b'"app":"b"' in by_number.content or part in ("tasks", "output", "links"), part
        assert (await client.get(f"/v1/apps/{first}1")).status_code == 404
        held = await client.post(f"/v1/apps/{first}/hold")
        assert held.status_code == 200
        last = await client.post("/v1/apps", json=body(submission("c", after={"any": (str(first), str(second))})))
        shown = await client.get("/v1/apps/c", params={"after": last.json()["seq"]})
        assert shown.json()["value"]["after"] == {"a": "any", "b": "any"}
        batch = {"commands": [{"type": "KillApp", "app": str(second)}, {"type": "KillApp", "app": f"{second}1"}]}
        killed, unknown = (await client.post("/v1/commands", json=batch)).json()["answers"]
        assert (killed["seq"] > 0, unknown["title"]) == (True, "UnknownApp")
        ended = await client.get("/v1/apps/b", params={"after": killed["seq"]})
        assert ended.json()["value"]["state"] == "killed"

    run(api, story)


def test_apps_are_listed_by_ids_numbers_users_and_companies_with_what_they_ask_for(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for company in (ACME, RegisterCompany(company="initech")):
            assert (await client.post("/v1/companies", json=body(company))).status_code == 200
        for app, about in {"a": {}, "b": {"user": "bob"}, "c": {"company": "initech"}}.items():
            asked = submission(app, cwd="/w", max_runtime_s=60, **about)
            assert (await client.post("/v1/apps", json=body(asked))).status_code == 200
        killed = (await client.post("/v1/apps/a/kill")).json()["seq"]

        async def listed(**query: str) -> list[dict[str, Any]]:
            answer = await client.get("/v1/apps", params={"after": str(killed), **query})
            assert answer.status_code == 200, answer.text
            found: list[dict[str, Any]] = answer.json()["items"]
            return found

        every = await listed(everything="true")
        numbers = [str(each["submittedSeq"]) for each in every]
        for query, due in {
            ("ids", f"{numbers[1]},c,nobody"): ["b", "c"],
            ("ids", numbers[0]): [],
            ("users", "bob"): ["b"],
            ("companies", "initech,umbrella"): ["c"],
            ("endedAfter", "1"): ["a", "b", "c"],
            ("endedAfter", str(every[0]["endedAt"])): ["b", "c"],
        }.items():
            assert [each["app"] for each in await listed(**dict([query]))] == due, query
        assert await listed(companies="umbrella,initech", ids="a") == []
        unknown = await client.get("/v1/apps", params={"companies": "umbrella,acne"})
        assert (unknown.status_code, unknown.json()["title"]) == (404, "UnknownCompany")
        assert "no company 'acne' is registered; did you mean 'acme'? " in unknown.json()["detail"]
        nobody = await client.get("/v1/apps", params={"users": "bbo,zed"})
        check_problem(nobody, 404, "UnknownUser")
        assert "no user 'bbo' is known; did you mean 'bob'? `fairlog shares` lists" in nobody.json()["detail"]
        assert await listed(users="bob,zed", ids="a") == []
        for kind in ("AppRegistred", "AppRegistered,nope"):
            check_problem(await client.get("/v1/entries", params={"kind": kind}), 422, "InvalidCommand")
        near = (await client.get("/v1/entries", params={"kind": "AppRegistred"})).json()["detail"]
        assert near.startswith("no event is of the type 'AppRegistred'; did you mean 'AppRegistered'? ")
        check_problem(await client.get("/v1/entries", params={"company": "acne"}), 404, "UnknownCompany")
        check_problem(await client.get("/v1/entries", params={"app": "nope"}), 404, "UnknownApp")
        never = await client.get("/v1/entries", params={"kind": "LogRestored", "company": "initech"})
        assert never.json()["value"]["entries"] == []
        told = (await listed(ids="b", details="true", tasks="true"))[0]
        due_of_it: dict[str, Any] = {
            "cwd": "/w",
            "maxRuntime": 60,
            "coresPerTask": 1,
            "workers": [],
            "startedAt": None,
            "taskStates": [],
        }
        assert told == {**told, **due_of_it}
        check_problem(await client.get("/v1/apps", params={"ids": ""}), 400, "BadRequest")

    run(api, story)


def test_every_error_is_a_problem_with_its_status(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        await client.post("/v1/companies", json=body(ACME))
        check_problem(await client.post("/v1/companies", json=body(ACME)), 409, "DuplicateCompany")
        check_problem(await client.post("/v1/apps/x/kill"), 404, "UnknownApp")
        check_problem(await client.get("/v1/apps/x"), 404, "UnknownApp")
        check_problem(await client.post("/v1/apps", json={"app": "a"}), 422, "InvalidCommand")
        check_problem(await client.post("/v1/apps", json={"type": "KillApp"}), 400, "BadRequest")
        check_problem(
            await client.post("/v1/apps", content=b"{", headers={"content-type": "application/json"}), 400, "BadRequest"
        )
        check_problem(
            await client.post("/v1/apps", content=b"{}", headers={"content-type": "text/plain"}), 415, "WrongMedia"
        )
        check_problem(await client.post("/v1/apps", json={"name": "x" * MAX_SUBMISSION}), 413, "TooLarge")
        check_problem(await client.get("/v1/apps", params={"at": "-1"}), 400, "BadRequest")
        check_problem(await client.get("/v1/apps", params={"colour": "red"}), 400, "BadRequest")
        check_problem(await client.get("/v1/apps", params={"at": 10**6}), 404, "NotThatLong")
        check_problem(await client.get("/v1/nothing"), 404, "NotFound")
        check_problem(await client.delete("/v1/apps"), 405, "NoSuchMethod")
        check_problem(await client.get("/v1/apps", headers={"authorization": "Bearer fl_x"}), 401, "NotAuthenticated")
        check_problem(await client.get("/v1/apps", headers={"authorization": "Basic eA=="}), 401, "NotAuthenticated")
        twice = [("authorization", "Bearer fl_x"), ("authorization", "Bearer fl_y")]
        check_problem(await client.get("/v1/apps", headers=twice), 400, "BadRequest")

    run(api, story)


def test_what_takes_no_body_ignores_none(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        await client.post("/v1/companies", json=body(ACME))
        await client.post("/v1/apps", json=body(submission("a")))
        for path in ("/v1/apps/a/beat", "/v1/links"):
            assert (await client.post(path)).status_code == 200
            assert (await client.post(path, json={})).status_code == 200
            refused = await client.post(path, json={"lease_s": 60})
            check_problem(refused, 400, "BadRequest")
            assert refused.json()["detail"] == f"POST {path} takes no body; leave it out"

    run(api, story)


def test_a_change_of_an_unknown_company_is_told_so_before_what_is_wrong_with_it(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        changes: list[dict[str, object]] = [{"cores": 1}, {"part": "x"}, {}, {"borrow": True}]
        for change in changes:
            refused = await client.patch("/v1/companies/nope", json=change)
            check_problem(refused, 404, "UnknownCompany")
            assert refused.json()["detail"].startswith("no company 'nope' is registered")
        adds, changes_it = to_builtins(ACME), {"type": "ChangeCompany", "company": "acme", "borrow": True}
        both = (await client.post("/v1/commands", json={"commands": [adds, changes_it]})).json()["answers"]
        assert all("seq" in each for each in both), both

    run(api, story)


def test_a_change_that_states_nothing_changes_no_quota(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        await client.post("/v1/companies", json={"company": "acme", "part": "1/4", "borrow": True})
        await client.post("/v1/departments", json={"department": "d", "part": "1/2"})
        listed = "/v1/companies", "/v1/departments"
        before = [(await client.get(view, params={"fresh": "true"})).json()["items"] for view in listed]
        check_problem(await client.patch("/v1/companies/acme"), 422, "InvalidCommand")
        wrong: list[dict[str, object]] = [{}, {"colour": 1}, {"cores": "4"}]
        for each in wrong:
            check_problem(await client.patch("/v1/companies/acme", json=each), 422, "InvalidCommand")
        assert (await client.patch("/v1/departments/d", json={})).status_code == 200
        assert [(await client.get(view, params={"fresh": "true"})).json()["items"] for view in listed] == before
        assert (await client.patch("/v1/companies/acme", json={"part": "none"})).status_code == 200
        assert (await client.get(listed[0], params={"fresh": "true"})).json()["items"][0]["quota"] == "default"

    run(api, story)


def test_a_file_to_audit_has_its_place_before_a_byte_of_it_is_taken(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of many at once would fill the memory of the server."""
    media = {"content-type": "application/x-ndjson"}

    async def story(client: httpx.AsyncClient) -> None:
        taken: list[str] = []
        begun, rest = asyncio.Event(), asyncio.Event()

        async def file(name: str) -> AsyncIterator[bytes]:
            taken.append(name)
            yield b"no "
            begun.set()
            await rest.wait()
            yield b"log"

        first = asyncio.create_task(client.post("/v1/audit", content=file("first"), headers=media))
        await begun.wait()
        second = await client.post("/v1/audit", content=file("second"), headers=media)
        check_problem(second, 503, "NotReady")
        assert taken == ["first"]
        rest.set()
        answer = await first
        assert answer.status_code not in {503, 500}, answer.text
        rest.clear()
        monkeypatch.setattr("fairlog.api.app.HANDED_IN_S", 0.01)
        check_problem(await client.post("/v1/audit", content=file("slow"), headers=media), 400, "BadRequest")
        again = await client.post("/v1/audit", content=b"no log", headers=media)
        assert again.json() == answer.json(), "the place is free again"

    run(api, story)


def test_a_caller_of_another_version_is_refused_and_told_who_is_too_old(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/status", headers={HEADER: "1"})).status_code == 200
        later = await client.get("/v1/workers/w1/grants", headers={HEADER: "2"})
        check_problem(later, 426, "OtherVersion")
        said = "worker w1 sends messages of version '2', and the API server reads version 1"
        assert later.json()["detail"] == f"{said}; upgrade fairlog of the API server"
        assert isinstance(error_of(later.status_code, later.content), ApiAway), "a worker asks another server"
        earlier = await client.get("/v1/apps", headers={HEADER: "0"})
        assert earlier.json()["detail"].endswith("upgrade fairlog of the client")

    run(api, story)


def test_a_body_without_a_length_is_cut_off_at_the_limit(api: Handlers) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65536

    async def story(client: httpx.AsyncClient) -> None:
        check_problem(await client.post("/v1/apps", content=endless()), 413, "TooLarge")

    run(api, story)


def test_over_tcp_without_accounts_only_health_is_open(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for route in ROUTES:
            answer = await client.request(route.method, route.path.replace("{", "").replace("}", ""))
            if route.answer in OPEN:
                assert answer.status_code == (404 if "/sign-in" in route.path else 200)
            elif route.name == "logIn":
                check_problem(answer, 403, "NotAllowed")
            else:
                check_problem(answer, 401, "NotAuthenticated")
                assert answer.headers["www-authenticate"] == "Bearer"

    run(api, story, local=False)


def test_without_a_master_or_a_store_the_answer_is_to_try_again(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise StoreGone("refused")

    def silent(*_: object, **__: object) -> None:
        raise errors.NoMaster("no master answered")

    async def story(client: httpx.AsyncClient) -> None:
        monkeypatch.setattr(api.sender._client, "send", silent)
        check_problem(await client.post("/v1/companies", json=body(ACME)), 503, "NoMaster")
        monkeypatch.setattr(api.sender._client, "send", gone)
        check_problem(await client.post("/v1/companies", json=body(ACME)), 503, "Unavailable")

    run(api, story)


def test_a_full_lane_and_a_server_that_is_not_trusted_are_unavailable(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for error in (LaneFull("company/acme", 5000), errors.NotSigned("the key is unknown")):

            def fail(*_: object, raised: Exception = error, **__: object) -> None:
                raise raised

            monkeypatch.setattr(api.sender._client, "send", fail)
            answer = await client.post("/v1/companies", json=body(ACME))
            check_problem(answer, 503, type(error).__name__)
            assert answer.headers["retry-after"] == ("5" if isinstance(error, LaneFull) else "1")
        assert status_of(errors.MessageTooOld()) == 409

    run(api, story)


def test_a_batch_is_answered_command_by_command(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        commands = [to_builtins(each) for each in (ACME, submission("a"), submission("a"))]
        answer = await client.post("/v1/commands", json={"commands": [*commands, {"type": "Fly"}]})
        first, second, third, last = answer.json()["answers"]
        assert answer.headers["fairlog-position"] == str(second["seq"])
        assert first["seq"] <= second["seq"]
        assert (third["status"], third["title"]) == (409, "DuplicateApp")
        assert (last["status"], last["title"]) == (422, "InvalidCommand")
        wrong: object
        for wrong in ([], {}, {"commands": 1}, {"commands": [], "more": []}):
            check_problem(await client.post("/v1/commands", json=wrong), 400, "BadRequest")

    run(api, story)


def test_an_answer_that_the_caller_has_is_not_sent_again(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        company = await client.post("/v1/companies", json=body(ACME))
        first = await client.get("/v1/companies", params={"after": company.json()["seq"]})
        known = {"if-none-match": first.headers["etag"]}
        worker = await client.post("/v1/workers", json=body(WORKER))
        same = await client.get("/v1/companies", params={"after": worker.json()["seq"]}, headers=known)
        assert (same.status_code, same.content) == (304, b"")
        assert int(same.headers["fairlog-position"]) >= worker.json()["seq"]
        await client.post("/v1/companies", json={"company": "next"})
        other = await client.get("/v1/companies", params={"after": worker.json()["seq"] + 1}, headers=known)
        assert other.status_code == 200

    run(api, story)


def test_a_wait_for_a_position_that_never_comes_ends(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlog.api.app.WAIT_S", 0.05)

    async def story(client: httpx.AsyncClient) -> None:
        check_problem(await client.get("/v1/apps", params={"after": 10**6}), 503, "NotReady")

    run(api, story)


@pytest.mark.parametrize(("late", "status"), [(3, 200), (10**6, 503)])
def test_a_request_waits_a_little_for_a_state_by_which_its_token_may_be_judged(
    api: Handlers, monkeypatch: pytest.MonkeyPatch, late: int, status: int
) -> None:
    """A machine so busy that the replica's thread came late refuses nobody; one whose store is silent says so."""
    ages = chain(repeat(2 * HOPELESS_S, late), repeat(0.0))
    monkeypatch.setattr("fairlog.api.replica.Replica._age_s", lambda _: next(ages))
    monkeypatch.setattr("fairlog.api.replica.FRESH_WITHIN_S", HOPELESS_S if status == 200 else 0.05)
    monkeypatch.setattr("fairlog.api.replica.FRESH_EVERY_S", 0.001)

    async def told() -> None:
        async with opened(api, local=False) as (client, _):
            token, _ = await asyncio.to_thread(token_of_ann, api)
            said = await client.get("/v1/apps", headers={"authorization": f"Bearer {token.text}"})
            assert said.status_code == status, said.text

    asyncio.run(told())


def test_a_replica_that_cannot_read_the_log_says_so_and_recovers(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        api.replica._trouble = "log position 3: entry 3 was altered"
        check_problem(await client.get("/v1/apps"), 503, "NotReady")
        check_problem(await client.get("/v1/health"), 503, "NotReady")
        assert await asyncio.to_thread(api.replica.wait_for, 1, 10)
        assert (await client.get("/v1/health")).status_code == 200

    monkeypatch.setattr("fairlog.api.replica.WAIT_MS", 5)
    run(api, story)


def test_a_company_has_no_more_than_its_part_of_the_streams(api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlog.api.app.OF_COMPANY", 2)

    async def told() -> None:
        async with opened(api) as (client, door):
            monkeypatch.setattr(door.feed, "stream", lambda *_, **__: waiting())
            gone = asyncio.Event()

            async def waiting() -> AsyncIterator[bytes]:
                yield b": fairlog\n\n"
                await gone.wait()

            held = [asyncio.create_task(client.get("/v1/log/events")) for _ in range(2)]
            async with asyncio.timeout(HOPELESS_S):
                while door._streams.total() < 2:
                    await asyncio.sleep(0.01)
            check_problem(await client.get("/v1/log/events"), 429, "TooMany")
            gone.set()
            assert [answer.status_code for answer in await asyncio.gather(*held)] == [200, 200]
            assert (await client.get("/v1/log/events")).status_code == 200
            assert not door._streams

    asyncio.run(told())


def test_a_path_with_a_slash_too_many_is_none(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        check_problem(await client.get("/v1/apps/"), 404, "NotFound")

    run(api, story)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/", "GET, HEAD"), ("/v1/apps", "POST, GET, HEAD"), ("/v1/accounts/acme/ann", "PATCH, DELETE")],
)
def test_a_method_that_a_path_does_not_have_is_answered_with_those_it_has(
    api: Handlers, path: str, allowed: str
) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        answer = await client.options(path)
        check_problem(answer, 405, "NoSuchMethod")
        assert answer.headers["allow"] == allowed
        assert answer.json()["detail"] == f"{path} takes {allowed}, not OPTIONS"

    run(api, story)


@pytest.mark.parametrize("path", ["/v1/log/events", "/v1/pulse"])
def test_the_head_of_a_stream_has_an_end_and_takes_no_streams_place(api: Handlers, path: str) -> None:
    async def told() -> None:
        async with opened(api) as (client, door):
            answer = await asyncio.wait_for(client.head(path), HOPELESS_S)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert (door.feed.streams, door._streams.total()) == (0, 0)

    asyncio.run(told())


def test_a_stream_ends_when_the_token_that_opened_it_is_revoked(api: Handlers) -> None:
    async def told() -> None:
        async with opened(api) as (_, door):
            token, seq = await asyncio.to_thread(token_of_ann, api)
            request = Request({"type": "http", "method": "GET", "path_params": {}, "headers": []})
            route = next(each for each in ROUTES if each.name == "logEvents")
            again = lambda: api.principal(token.text, at_home=False)  # noqa: E731
            answer = cast("StreamingResponse", await door._events(route, request, again, {"after": 0}))
            parts = aiter(answer.body_iterator)
            async with asyncio.timeout(HOPELESS_S):
                heard = b""
                while b"id: %d\n" % seq not in heard:
                    heard += cast("bytes", await anext(parts))
                await asyncio.to_thread(api.sender.send, ROOT, RevokeToken(token=token.id))
                last = b"".join([cast("bytes", part) async for part in parts])
            assert last.startswith(b"event: end\ndata: ")
            assert b'"status":401' in last
            assert b"TokenRevoked" not in last
            assert (door.feed.streams, door._streams.total()) == (0, 0)

    asyncio.run(told())


def test_what_is_said_twice_is_refused_as_a_proxy_may_have_heard_the_other(api: Handlers) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for path in ("/v1/apps?limit=1&limit=2", "/v1/apps?limit=1&limit=1"):
            answer = await client.get(path)
            check_problem(answer, 400, "BadRequest")
            assert answer.json()["detail"] == "give limit once"
        keys = [("idempotency-key", "a"), ("idempotency-key", "b")]
        answer = await client.post("/v1/companies", json=body(ACME), headers=keys)
        check_problem(answer, 400, "BadRequest")
        assert answer.json()["detail"] == "send one Idempotency-Key header"
        tag = (await client.get("/v1/apps")).headers["etag"]
        known = await client.get("/v1/apps", headers=[("if-none-match", '"x"'), ("if-none-match", tag)])
        assert known.status_code == 304

    run(api, story)


def test_an_app_can_be_followed_on_a_server_that_has_not_folded_it(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begun(*_: object, **__: object) -> AsyncIterator[bytes]:
        yield b": fairlog\n\n"

    async def story(client: httpx.AsyncClient) -> None:
        with pytest.MonkeyPatch.context() as paused:
            paused.setattr(api.replica, "step", lambda: 0.005)
            folded = await asyncio.to_thread(api.sender.send, ROOT, ACME)  # by the step that has begun
            await asyncio.to_thread(api.replica.wait_for, folded.seq, HOPELESS_S)
            receipt = await asyncio.to_thread(api.sender.send, ROOT, submission("a"))
            answer = asyncio.create_task(client.get(f"/v1/apps/a/events?after={receipt.seq - 1}"))
            await asyncio.wait([answer], timeout=0.2)
            assert not answer.done()
        assert (await answer).status_code == 200

    monkeypatch.setattr(Feed, "stream", begun)
    run(api, story)


def test_the_log_comes_as_events_and_resumes_where_it_was_left(api: Handlers) -> None:
    """The transport of the test cannot stream, so the feed is asked directly."""

    async def told() -> None:
        async with opened(api) as (client, door):
            await client.post("/v1/companies", json=body(ACME))

            async def follow(after: int, number: int) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = []
                stream = door.feed.stream(
                    api.replica,
                    after,
                    wanted=lambda _: True,
                    allowed=lambda: api.replica.peek(lambda state: api.sight.reader(state, ROOT)),
                    limiter=door._catching_up,
                )
                async for part in stream:
                    found += [json.loads(line[6:]) for line in part.decode().splitlines() if line.startswith("data: ")]
                    if len(found) >= number:
                        await stream.aclose()  # type: ignore[attr-defined]
                        return found
                return found

            async with asyncio.timeout(HOPELESS_S):
                before = await follow(0, 4)
                assert [each["seq"] for each in before[:4]] == [1, 2, 3, 4]
                followers = [asyncio.create_task(follow(4, 2)) for _ in range(50)]
                await client.post("/v1/companies", json={"company": "b"})
                await client.post("/v1/apps", json=body(submission("a")))
                for each in await asyncio.gather(*followers):
                    assert [event["seq"] for event in each[:2]] == [5, 6]
                    assert each[1]["private"]["command"] == ["true"]
            assert door.feed.streams == 0

    asyncio.run(told())


def test_a_token_has_its_rate_and_a_company_its_own() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    for _ in range(100):
        rates.charge("t1", "acme")
    with pytest.raises(TooMany) as refused:
        rates.charge("t1", "acme")
    assert 0 < refused.value.after_s <= 0.05
    for _ in range(100):
        rates.charge("t2", "acme")
    with pytest.raises(TooMany, match="the company acme"):
        rates.charge("t3", "acme")
    rates.charge("t3", "globex")
    rates.charge("", "")
    now = 1.0
    for _ in range(20):
        rates.charge("t1", "acme")


@pytest.mark.parametrize(
    ("one", "another", "together"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::7", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("", "192.0.2.1", False),
    ],
)
def test_strangers_share_the_rate_of_one_line(one: str, another: str, together: bool) -> None:  # noqa: FBT001
    """Who has an IPv6 network chooses among its addresses; IPv4 addresses that are mapped into IPv6 are many."""
    rates = Rates(lambda: 0.0)
    for _ in range(10):
        rates.charge_stranger(one)
    with pytest.raises(TooMany, match="too many requests to sign in"):
        rates.charge_stranger(one)
    with pytest.raises(TooMany) if together else nullcontext():
        rates.charge_stranger(another)


def test_a_company_has_its_part_of_the_time_for_answers_from_the_whole_log() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    rates.check_work("acme")
    rates.charge_work("acme", 60)
    with pytest.raises(TooMany, match="acme has asked for much that takes long") as refused:
        rates.check_work("acme")
    assert refused.value.after_s == pytest.approx(120, abs=1)
    rates.check_work("globex")
    now = 121.0
    rates.check_work("acme")


def test_a_token_can_send_two_thousand_apps_a_second_in_batches() -> None:
    now, sent = 0.0, 0
    rates = Rates(lambda: now)
    for _ in range(600):
        try:
            rates.charge("t", "acme", 5)
            sent += 1000
        except TooMany as refused:
            now += refused.after_s
    assert sent / max(now, 1) >= 2000


def test_a_bucket_lends_what_it_can_never_hold() -> None:
    now = 0.0
    buckets = Buckets(1, 2, lambda: now)
    assert buckets.take("a", 5) == 0
    assert buckets.take("a", 1) == pytest.approx(4)


def test_every_command_has_a_route_but_the_reports_of_workers() -> None:
    routed = {route.takes for route in ROUTES if route.takes is not None}
    assert routed == set(get_args(Command)) - set(get_args(Report)) - {*NEVER_SENT}


def test_every_view_has_a_route() -> None:
    assert {route.view for route in ROUTES if route.view} == VIEWS.keys()


def test_every_refusal_has_a_status_below_500() -> None:
    for each in {*errors.CommandRejected.__subclasses__()} - {errors.NotSigned}:
        assert 400 <= status_of(each.__new__(each)) < 500


def test_the_description_names_every_route_and_is_json() -> None:
    said = json.loads(json.dumps(description()))
    assert said["openapi"].startswith("3.1")
    there = {(method.upper(), path) for path, methods in said["paths"].items() for method in methods}
    assert there == {(route.method, route.path) for route in ROUTES}
    hold = said["paths"]["/v1/apps/{app}/hold"]["post"]["requestBody"]
    assert (hold["required"], hold["content"]["application/json"]["schema"]["properties"]) == (False, {})
    submit = said["paths"]["/v1/apps"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"app", "company", "user", "secrets"} <= submit["properties"].keys()
    assert "type" not in submit["properties"]


def test_a_company_that_reads_much_keeps_nobody_else_waiting(api: Handlers) -> None:
    async def told() -> None:
        async with opened(api) as (_, door):
            go_on = threading.Event()
            eve, ann = By("evil/eve", "t", "user"), By("acme/ann", "u", "user")
            asking = [
                asyncio.create_task(door.run(eve, lambda: go_on.wait(HOPELESS_S), "reads"))
                for _ in range(2 * READS_AT_ONCE)
            ]
            async with asyncio.timeout(HOPELESS_S):
                assert await door.run(ann, lambda: "read", "reads") == "read"
            go_on.set()
            assert all(await asyncio.gather(*asking))

    asyncio.run(told())


class _Behind:
    """The replica of a server that folds nothing until it is let on."""

    def __init__(self, api: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_behind, self._go_on, step = threading.Event(), threading.Event(), api.replica.step

        def held() -> float:
            self._is_behind.set()
            self._go_on.wait(HOPELESS_S)
            return step()

        monkeypatch.setattr(api.replica, "step", held)
        self.asked = 0
        head = api.replica.log.head

        def counted() -> Position:
            self.asked += 1
            return head()

        monkeypatch.setattr(api.replica.log, "head", counted)

    async def begins(self) -> None:
        """Return once the step that was under way has ended."""
        assert await asyncio.to_thread(self._is_behind.wait, HOPELESS_S)

    def go_on(self) -> None:
        self._go_on.set()


def _behind_with_account(api: Handlers, monkeypatch: pytest.MonkeyPatch, account: str) -> _Behind:
    """A server that knows the account and is behind from then on."""
    api.sender.send(ROOT, ACME)
    seq = api.sender.send(ROOT, AddAccount(account=account)).seq
    assert api.replica.wait_for(seq, HOPELESS_S)
    return _Behind(api, monkeypatch)


def test_a_token_that_another_server_has_just_issued_is_good_here(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, made = _behind_with_account(api, monkeypatch, "acme/ann"), new_token()

    async def story(client: httpx.AsyncClient) -> None:
        await behind.begins()
        api.sender.send(ROOT, IssueToken(token=made.id, account="acme/ann", hash=made.hash))
        asyncio.get_running_loop().call_later(0.2, behind.go_on)
        shown = await client.get("/v1/whoami", headers={"authorization": f"Bearer {made.text}"})
        assert (shown.status_code, shown.json()["value"]["account"]) == (200, "acme/ann")

    run(api, story, local=False)


def test_a_session_for_a_token_that_another_server_has_just_issued_is_good_here(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, made, doors = _behind_with_account(api, monkeypatch, "acme/cid"), new_token(), list[Door]()
    told_of = Door.answer

    def noted(door: Door, route: Route, request: Request) -> Awaitable[Response]:
        doors.append(door)
        return told_of(door, route, request)

    monkeypatch.setattr(Door, "answer", noted)

    async def story(client: httpx.AsyncClient) -> None:
        await behind.begins()
        assert (await client.get("/v1/whoami")).status_code == 401
        api.sender.send(ROOT, IssueToken(token=made.id, account="acme/cid", hash=made.hash))
        cookie = doors[0].sessions.cookie(By("acme/cid", made.id, "user"), machine_ms())
        asyncio.get_running_loop().call_later(0.2, behind.go_on)
        shown = await client.get("/v1/whoami", headers={"cookie": f"fairlog-page={cookie}"})
        assert (shown.status_code, shown.json()["value"]["account"]) == (200, "acme/cid")

    run(api, story, local=False)


def test_tokens_that_nobody_has_cost_the_store_one_question_at_a_time(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = _Behind(api, monkeypatch)
    behind.go_on()

    async def story(client: httpx.AsyncClient) -> None:
        async def ask() -> int:
            return (await client.get("/v1/whoami", headers={"authorization": f"Bearer {new_token().text}"})).status_code

        assert {*await asyncio.gather(*(ask() for _ in range(60)))} == {401}
        assert 1 <= behind.asked <= 5
        said = await client.get("/v1/whoami", headers={"authorization": "Bearer nonsense"})
        asked = behind.asked
        assert (said.status_code, asked) == (401, behind.asked)

    run(api, story, local=False)
