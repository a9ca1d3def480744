"""What workers and executors may do through the API: their own, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator, Sequence
from threading import Timer
from typing import Any, NamedTuple, cast

import fakeredis
import httpx
import msgspec
import pytest
from redis.exceptions import ConnectionError as StoreError

from fairlog.api.app import Door, make_app
from fairlog.api.feed import Feed
from fairlog.api.handlers import Handlers
from fairlog.api.routes import ROUTES
from fairlog.api.work import Caller, Questions
from scheduler.model.commands import (
    AddAccount,
    Command,
    IssueToken,
    KillApp,
    RegisterCompany,
    RemoveAccount,
    RevokeToken,
    SubmitApp,
)
from scheduler.model.grants import Grant
from scheduler.model.sender import By
from scheduler.service.grant_tokens import PREFIX, claims_of, grant_token, parts_of, signed_text, worker_pass
from scheduler.service.keyring import Keyring
from scheduler.service.tokens import NewToken, new_token
from scheduler.store.visits import VisitCommand
from tests.unit.fairlog.api.served import KEYS, RING, ROOT, served
from tests.waiting import HOPELESS_S
from workers.store_door import Stored, WorkerStore

BEGIN = {"turn": "a:1", "want": 1}
DONE = {"turn": "a:2", "want": 0, "completions": [[0, "succeeded", 0, "", "", 1]]}


class World(NamedTuple):
    """Ann's app runs on w1, Bob's on w2."""

    api: Handlers
    store: fakeredis.FakeRedis
    tokens: dict[str, NewToken]

    def ask(self, method: str, path: str, token: str, body: Any = None, **query: Any) -> httpx.Response:
        return asyncio.run(self._ask(method, path, token, body, query))

    async def _ask(self, method: str, path: str, token: str, body: Any, query: dict[str, Any]) -> httpx.Response:
        """Without a token by the Unix socket."""
        app = make_app(Door(self.api, Feed()), at_home=not token)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
            headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
            return await client.request(method, f"http://api{path}", headers=headers, json=body, params=query)

    def of(self, worker: str) -> str:
        """The worker's own token."""
        return self.tokens[f"worker/{worker}"].text

    def grant(self, worker: str, executor: str) -> str:
        """The token of the grant, as the worker's agent gets it."""
        said = self.ask("GET", f"/v1/workers/{worker}/grants", self.of(worker)).json()
        return next(str(each["token"]) for each in said["grants"] if each["grant"]["executor"] == executor)

    def facts(self) -> dict[str, Any]:
        """All that workers could change in the store."""
        names = sorted(
            name
            for name in cast("list[bytes]", self.store.keys("*"))
            if not any(part in name for part in (b"sent", b"heartbeats", b"watched"))
        )
        return {name.decode(): self.store.dump(name) for name in names}


def register(worker: str, **about: Any) -> dict[str, Any]:
    offer = {"node": "n", "host": f"host-{worker}", "cores": 8, "memory_mb": 65536} | about
    return {"registrant": {"pid": 1, "host": "h"}, **offer}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    fake = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    with served(fake) as api:

        def send(*commands: Command, by: By = ROOT) -> None:
            for command in commands:
                api.replica.wait_for(api.sender.send(by, command).seq, HOPELESS_S)

        accounts = ("op/root", "acme/ann", "globex/bob", "worker/w1", "worker/w2")
        tokens = {who: new_token() for who in accounts}
        send(RegisterCompany(company="acme"), RegisterCompany(company="globex"))
        for who in accounts:
            most = {"host": "host-w2", "cores": 8, "memory_mb": 65536} if who == "worker/w2" else {}
            send(AddAccount(account=who, **most))  # type: ignore[arg-type]
            send(IssueToken(token=tokens[who].id, account=who, hash=tokens[who].hash))
        world = World(api, fake, tokens)
        for who, worker in (("acme/ann", "w1"), ("globex/bob", "w2")):
            asked = world.ask("POST", f"/v1/workers/{worker}/register", world.of(worker), register(worker))
            assert asked.status_code == 200, asked.text
            company, user = who.split("/")
            app = SubmitApp(app=f"{user}-1", company=company, user=user, cores=8, tasks=3, command=("true",))
            send(app, by=By(who, tokens[who].id, "user"))
        yield world


def refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["detail"])


def test_the_token_of_a_grant_opens_what_the_grant_is_for(world: World) -> None:
    token, path = world.grant("w1", "ann-1.0"), "/v1/workers/w1/executors/ann-1.0"
    begun = world.ask("POST", f"{path}/begin", token, {}).json()
    assert (begun["granted"], begun["unreadable"]) == (True, "")
    told = [base64.b64decode(name) for name, _ in begun["secrets"]]
    assert told == [b"FAIRLOG_MAILBOX", b"FAIRLOG_MAILBOX_TOKEN"]
    taken = world.ask("POST", f"{path}/step", token, BEGIN).json()[5]
    assert taken == [[0, 1]]
    assert world.ask("POST", f"{path}/output", token, {"tails": [[0, "aGk="]]}).json() == {"granted": True}
    assert world.api.work.output("ann-1", 0) == b"hi"
    assert world.ask("POST", f"{path}/step", token, DONE).json()[:4] == [True, 3, 1, 0]
    assert world.ask("POST", f"{path}/finish", token, {"put_back": True}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/workers/w2/executors/bob-1.0",
        "/v1/workers/w1/executors/bob-1.0",
        "/v1/workers/w2/executors/ann-1.0",
        "/v1/workers/w1/executors/ann-1.7",
    ],
)
@pytest.mark.parametrize("kind", ["worker", "grant"])
def test_tokens_of_one_worker_do_nothing_with_what_is_not_its_own(world: World, path: str, kind: str) -> None:
    token = world.of("w1") if kind == "worker" else world.grant("w1", "ann-1.0")
    before = world.facts()
    for what, body in (
        ("begin", {}),
        ("step", BEGIN),
        ("step", DONE),
        ("output", {"tails": [[0, "aGk="]]}),
        ("backlog", {"waiting": 1, "running": 1, "idle": False}),
        ("end-app", {"reason": "failed"}),
        ("alive", {}),
        ("visits", {}),
        ("attend", {"visit": "v"}),
        ("finish", {"put_back": True}),
    ):
        refused(world.ask("POST", f"{path}/{what}", token, body), 403)
    assert world.facts() == before


def test_what_a_worker_says_beyond_what_is_asked_is_refused_by_name(world: World) -> None:
    """Of every route of workers: an unknown field, also within what is listed, and a body where none is taken."""
    own, before = "/v1/workers/w1", world.facts()
    of_grant = f"{own}/executors/ann-1.0"
    ended = {"executor": "ann-1.0", "reason": "failed", "exit_code": 1}
    bodies: dict[str, dict[str, Any]] = {
        "workerInvited": register("w1"),
        "workerRegister": register("w1"),
        "workerReports": {},
        "executorStep": BEGIN,
        "executorOutput": {},
        "executorBacklog": {"waiting": 1, "running": 1, "idle": False},
        "executorEndApp": {"reason": "failed"},
        "executorAttend": {"visit": "v"},
        "executorFinish": {"put_back": True},
    }
    for route in ROUTES:
        if route.answer != "work":
            continue
        path = route.path.format(worker="w1", executor="ann-1.0")
        token = world.grant("w1", "ann-1.0") if path.startswith(of_grant) else world.of("w1")
        told = refused(world.ask(route.method, path, token, {**bodies.get(route.name, {}), "colour": "red"}), 400)
        takes_none = f"{route.method} {path} takes no body; leave it out"
        assert ("unknown field `colour`" in told) if route.reads else (told == takes_none)
        assert bool(route.reads) == (route.name in bodies)
    told = refused(world.ask("POST", f"{own}/reports", world.of("w1"), {"ended": [{**ended, "colour": "red"}]}), 400)
    assert "unknown field `colour`" in told
    assert world.facts() == before


@pytest.mark.parametrize("runs", ["tasks", "program", "driver"])
def test_the_token_of_a_past_grant_changes_nothing(world: World, runs: str) -> None:
    """A driver may run elsewhere by now, and its output is one."""
    grant = Grant.model_validate_json(world.store.hget(KEYS.grants("w1"), "ann-1.0") or "")
    past = msgspec.structs.replace(claims_of(grant, KEYS.cluster, "w1"), executor="ann-1.6", runs=runs)
    token, before = grant_token(RING, past), world.facts()
    for what, body, said in (
        ("begin", {}, {"granted": False, "secrets": [], "unreadable": ""}),
        ("output", {"tails": [[0, "aGk="]]}, {"granted": False}),
        ("alive", {}, None),
        ("visits", {}, {"visits": []}),
        ("attend", {"visit": "v"}, None),
        ("finish", {"put_back": True}, None),
    ):
        answer = world.ask("POST", f"/v1/workers/w1/executors/ann-1.6/{what}", token, body)
        assert answer.status_code == 200, answer.text
        assert said is None or answer.json() == said
    assert world.facts() == before


def test_the_token_of_a_grant_is_none_of_an_agent(world: World) -> None:
    token, before = world.grant("w1", "ann-1.0"), world.facts()
    for method, path, body in (
        ("GET", "/v1/workers/w1/grants", None),
        ("GET", "/v1/workers/w1/removal", None),
        ("POST", "/v1/workers/w1/reports", {"started": ["ann-1.0"]}),
        ("POST", "/v1/workers/w1/register", register("w1")),
        ("POST", "/v1/workers/w1/leave", {}),
    ):
        refused(world.ask(method, path, token, body), 403)
    for path in ("/v1/whoami", "/v1/apps", "/v1/log"):
        refused(world.ask("GET", path, token), 401)
    assert world.facts() == before


def test_a_worker_reports_nothing_of_another_workers_executors(world: World) -> None:
    before = world.facts()
    ended = {"executor": "bob-1.0", "reason": "failed", "exit_code": 1}
    for reports in ({"started": ["bob-1.0"]}, {"ended": [ended]}, {"started": ["ann-1.0", "bob-1.0"]}):
        refused(world.ask("POST", "/v1/workers/w1/reports", world.of("w1"), reports), 403)
    nobodys = {"ended": [{**ended, "executor": "nobody.0"}]}
    assert world.ask("POST", "/v1/workers/w1/reports", world.of("w1"), nobodys).status_code == 200
    assert world.facts() == before


@pytest.mark.parametrize(
    "about", [{"cores": 9}, {"memory_mb": 65537}, {"host": "elsewhere"}, {"resources": {"gpu": ["0"]}}]
)
def test_an_offer_above_the_invitation_is_refused(world: World, about: dict[str, Any]) -> None:
    before = world.facts()
    asked = world.ask("POST", "/v1/workers/w2/register", world.of("w2"), register("w2", **about))
    assert "invited" in refused(asked, 403)
    assert world.facts() == before


def test_the_owner_of_the_socket_acts_as_a_worker_only_until_there_are_accounts(world: World) -> None:
    before = world.facts()
    for method, what, body in (("GET", "grants", None), ("POST", "leave", {}), ("POST", "executors/ann-1.0/begin", {})):
        assert "worker invite w1" in refused(world.ask(method, f"/v1/workers/w1/{what}", "", body), 401)
    assert world.facts() == before


def test_a_pass_is_good_for_its_worker_only(world: World) -> None:
    good = worker_pass(RING, KEYS.cluster, "w1")
    assert world.ask("GET", "/v1/workers/w1/grants", good).status_code == 200
    refused(world.ask("GET", "/v1/workers/w2/grants", good), 401)
    refused(world.ask("GET", "/v1/whoami", good), 401)
    begin, _, mac = good.rpartition(".")
    for forged in (
        worker_pass(Keyring.new(), KEYS.cluster, "w1"),
        worker_pass(RING.for_workers(), KEYS.cluster, "w1"),
        worker_pass(RING, "other", "w1"),
        f"{begin}.{'0' * len(mac)}",
        f"{begin}.ä",
        "fw_",
        "fw_..",
    ):
        refused(world.ask("GET", "/v1/workers/w1/grants", forged), 401)


def test_a_token_that_no_door_has_signed_opens_nothing(world: World) -> None:
    grant = Grant.model_validate_json(world.store.hget(KEYS.grants("w1"), "ann-1.0") or "")
    path = "/v1/workers/w1/executors/ann-1.0/step"
    claims = claims_of(grant, KEYS.cluster, "w1")
    good = grant_token(RING, claims)
    for token in (
        grant_token(Keyring.new(), claims),
        grant_token(RING.for_workers(), claims),
        grant_token(RING, msgspec.structs.replace(claims, cluster="other")),
        f"{good[:-1]}{'0' if good[-1] != '0' else '1'}",
        good.replace(".", "", 1),
        "fg_",
        "fg_..",
    ):
        refused(world.ask("POST", path, token, BEGIN), 401)
    before = grant_token(RING, msgspec.structs.replace(claims, granted_at=claims.granted_at - 1))
    refused(world.ask("POST", path, before, BEGIN), 403)
    assert world.ask("POST", path, good, {**BEGIN, "want": 0}).status_code == 200


@pytest.mark.parametrize("spelt", ["{0}=.{1}", "{0}====.{1}", "{0}!.{1}", "*{0}.{1}", "{0}\t.{1}"])
def test_a_grants_token_has_one_spelling(world: World, spelt: str) -> None:
    grant = Grant.model_validate_json(world.store.hget(KEYS.grants("w1"), "ann-1.0") or "")
    good = grant_token(RING, claims_of(grant, KEYS.cluster, "w1"))
    path = "/v1/workers/w1/executors/ann-1.0/step"
    said, _, signed = good.removeprefix(PREFIX).partition(".")
    refused(world.ask("POST", path, PREFIX + spelt.format(said, signed), BEGIN), 401)
    assert world.ask("POST", path, good, {**BEGIN, "want": 0}).status_code == 200


def test_a_signed_text_has_one_spelling() -> None:
    assert parts_of(PREFIX, signed_text(PREFIX, b"a", "key", "mac")) == (b"a", "key", "mac")
    for other in ("fg_YR.key.mac", "fg_YQ==.key.mac", "fg_YQ==!.key.mac", "fg_!YQ==.key.mac", "YQ.key.mac"):
        with pytest.raises(ValueError, match=re.escape(other)):
            parts_of(PREFIX, other)


def test_a_grants_token_takes_nothing_once_the_grant_is_revoked(world: World) -> None:
    """What has ended before is still counted."""
    token, path = world.grant("w2", "bob-1.0"), "/v1/workers/w2/executors/bob-1.0"
    world.ask("POST", f"{path}/begin", token, {})
    assert world.ask("POST", f"{path}/step", token, BEGIN).json()[5] == [[0, 1]]
    bob = By("globex/bob", world.tokens["globex/bob"].id, "user")
    world.api.replica.wait_for(world.api.sender.send(bob, KillApp(app="bob-1")).seq, HOPELESS_S)
    assert world.ask("POST", f"{path}/begin", token, {}).json()["granted"] is False
    step = world.ask("POST", f"{path}/step", token, {**DONE, "turn": "a:3", "want": 4}).json()
    assert (step[0], step[2], step[5]) == (False, 1, [])
    said = world.ask("GET", "/v1/workers/w2/grants", world.of("w2")).json()
    assert (said["grants"], said["revoked"]) == ([], ["bob-1.0"])


@pytest.mark.parametrize("end", ["token", "account"])
def test_a_grants_token_ends_with_the_token_of_its_worker_that_fetched_it(world: World, end: str) -> None:
    """Whoever stole it may not use it although the worker has another; with that, it gets another for the grant."""
    worker = f"w-{end}"
    account, own, renewed, unused = f"worker/{worker}", new_token(), new_token(), new_token()
    world.tokens[account] = own

    def send(*commands: Command, by: By = ROOT) -> None:
        for command in commands:
            world.api.replica.wait_for(world.api.sender.send(by, command).seq, HOPELESS_S)

    send(AddAccount(account=account), IssueToken(token=own.id, account=account, hash=own.hash))
    world.ask("POST", f"/v1/workers/{worker}/register", own.text, register(worker))
    ann = By("acme/ann", world.tokens["acme/ann"].id, "user")
    send(SubmitApp(app=f"own-{end}", company="acme", user="ann", cores=8, tasks=3, command=("true",)), by=ann)
    stolen, path = world.grant(worker, f"own-{end}.0"), f"/v1/workers/{worker}/executors/own-{end}.0"
    assert world.ask("POST", f"{path}/begin", stolen, {}).json()["granted"] is True
    tag = world.ask("GET", f"/v1/workers/{worker}/grants", own.text).json()["tag"]
    send(IssueToken(token=renewed.id, account=account, hash=renewed.hash))
    world.tokens[account] = renewed
    again = world.ask("GET", f"/v1/workers/{worker}/grants", renewed.text, after=tag).json()
    [token] = [each["token"] for each in again["grants"]]
    assert world.ask("POST", f"{path}/begin", stolen, {}).json()["granted"] is True
    send(RevokeToken(token=own.id))
    refused(world.ask("POST", f"{path}/begin", stolen, {}), 401)
    assert world.ask("POST", f"{path}/begin", token, {}).json()["granted"] is True
    send(IssueToken(token=unused.id, account=account, hash=unused.hash, once=True))
    send(RevokeToken(token=renewed.id) if end == "token" else RemoveAccount(account=account))
    before = world.facts()
    for what, body in (
        ("begin", {}),
        ("step", BEGIN),
        ("end-app", {"reason": "failed"}),
        ("finish", {"put_back": True}),
    ):
        assert "not valid any more" in refused(world.ask("POST", f"{path}/{what}", token, body), 401)
    assert world.facts() == before


def test_a_worker_is_told_when_its_grants_have_reached_the_replicas(world: World) -> None:
    """A long question that waits for nothing else is answered then."""
    grants, later = KEYS.grants("w1"), 1 << 40
    stored = world.store.hget(grants, "ann-1.0") or ""
    waits = Grant.model_validate_json(stored).model_copy(update={"settled_at": later})
    world.store.hset(grants, "ann-1.0", waits.model_dump_json(exclude_defaults=True))
    first = world.ask("GET", "/v1/workers/w1/grants", world.of("w1")).json()
    assert first["settled"] < later
    told = [each["grant"]["settled_at"] for each in first["grants"] if each["grant"]["executor"] == "ann-1.0"]
    assert told == [later]
    Timer(0.1, world.store.set, (KEYS.settled, later)).start()
    then = world.ask("GET", "/v1/workers/w1/grants", world.of("w1"), after=first["tag"], wait=30_000).json()
    assert (then["settled"], then["tag"] != first["tag"]) == (later, True)
    world.store.hset(grants, "ann-1.0", stored)


def test_a_worker_is_told_again_only_what_has_changed(world: World) -> None:
    first = world.ask("GET", "/v1/workers/w1/grants", world.of("w1")).json()
    assert first["alive"] is True
    again = world.ask("GET", "/v1/workers/w1/grants", world.of("w1"), after=first["tag"], wait=1).json()
    assert (again["grants"], again["tag"]) == (None, first["tag"])
    assert again["beat_ms"] == 5_000


def test_a_worker_that_no_turn_concerns_is_looked_at_once_a_question(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Sequence[str]] = []
    look = WorkerStore.look

    def spied(store: WorkerStore, workers: Sequence[str]) -> list[Stored]:
        looked.append(workers)
        return look(store, workers)

    monkeypatch.setattr(WorkerStore, "look", spied)
    tag = world.ask("GET", "/v1/workers/w1/grants", world.of("w1")).json()["tag"]
    world.ask("GET", "/v1/workers/w1/grants", world.of("w1"), after=tag, wait=20)
    assert looked == [["w1"], ["w1"]]


def test_a_worker_is_told_at_once_that_somebody_wants_to_run_a_command_on_it(world: World) -> None:
    """Whichever server was asked for it."""
    tag = world.ask("GET", "/v1/workers/w1/grants", world.of("w1")).json()["tag"]

    async def asked() -> dict[str, Any]:
        door = Door(world.api, Feed())
        app = make_app(door, at_home=False)
        transport, bearer = httpx.ASGITransport(app), {"authorization": f"Bearer {world.of('w1')}"}
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, headers=bearer) as client:
            url = f"http://api/v1/workers/w1/grants?after={tag}&wait=30000"
            question = asyncio.create_task(client.get(url))
            while not door.work.bells._waiting:
                await asyncio.sleep(0)
            world.api.workers._store.visits.begin(VisitCommand(("true",)), "w1", "ann-1.0", "acme/ann")
            await door.work.ring_for_visits()
            return cast("dict[str, Any]", (await question).json())

    told = asyncio.run(asked())
    assert (told["visited"], told["alive"]) == (["ann-1.0"], True)
    assert [each.command for each in world.api.workers._store.visits.take("w1", "ann-1.0")] == [("true",)]
    assert world.api.workers.visited() == set()


@pytest.mark.parametrize(
    ("error", "told", "tries"),
    [
        (StoreError("away"), ["away"] * 3, [["b", "bad", "c"]]),
        (ValueError("no grant"), ["B", "no grant", "C"], [["b", "bad", "c"], ["b"], ["bad"], ["c"]]),
    ],
)
def test_questions_that_come_while_the_store_is_busy_are_asked_together(
    error: Exception, told: list[str], tries: list[list[str]]
) -> None:
    """What cannot be answered fails alone, unless the store is away; the next ones are asked anew."""
    batches: list[list[str]] = []

    def grants(questions: Sequence[tuple[Any, str]]) -> list[Any]:
        batches.append([after for _, after in questions])
        if "bad" in batches[-1]:
            raise error
        return [after.upper() for _, after in questions]

    async def asked() -> list[Any]:
        questions, caller = Questions(grants), cast("Caller", None)
        first = asyncio.create_task(questions.ask(caller, "a"))
        while not batches:
            await asyncio.sleep(0)
        together = [questions.ask(caller, each) for each in ("b", "bad", "c")]
        return [
            await first,
            *await asyncio.gather(*together, return_exceptions=True),
            await questions.ask(caller, "d"),
        ]

    assert [str(each) for each in asyncio.run(asked())] == ["A", *told, "D"]
    assert batches == [["a"], *tries, ["d"]]
