"""Every route for every role, on what is the caller's and on what is not: what the matrix lists, and no more.

A route without a case fails here, and so does a verb of the matrix that no case needs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import fakeredis
import httpx
import pytest

from fairlog.api.app import Door, make_app
from fairlog.api.feed import Feed
from fairlog.api.handlers import Handlers
from fairlog.api.limits import Rates
from fairlog.api.routes import ROUTES, Route
from fairlog.api.sender import TOLD_BURST, request_of
from scheduler.model.commands import (
    AddAccount,
    Command,
    IssueToken,
    RegisterCompany,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected, NotAllowed, UnknownApp, UnknownToken
from scheduler.model.events import CommandRefused
from scheduler.model.sender import NOBODY, By, Role, local
from scheduler.rules.command.decide import decide
from scheduler.rules.command.permission import MATRIX, WITH_REASON, Verb
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.client import CommandClient
from scheduler.service.receipts import Receipt
from scheduler.service.tokens import NewToken, new_token
from tests.unit.fairlog.api.described import unnamed
from tests.unit.fairlog.api.served import KEYS, RING, served
from tests.waiting import HOPELESS_S

HASH = "ab" * 32
OF_A_PROVIDER = {"provider", "signIn"}
"""Routes that nobody needs a token for, and that are not there without an OpenID provider."""
WORKERS = {"worker/w1": "w1", "worker/w2": "w2"}
ROLES: dict[str, Role] = {
    "acme/ann": "user",
    "acme/cid": "user",
    "acme/adm": "admin",
    "globex/bob": "user",
    "globex/adm": "admin",
    "op/root": "operator",
    "auditor/x": "auditor",
    "worker/w1": "worker",
    "worker/w2": "worker",
    "nobody": "user",
    "local": "operator",
}
"""Who asks; `nobody` has no token, `local` is the owner of the Unix socket."""


OF_THE_PAGE = {"session", "logIn", "logOut"}
"""Routes that take no token but the cookie of a session; `tests/unit/fairlog/page` has their cases."""


class Case(NamedTuple):
    """A request, what the matrix must allow for it, and whose it is: an account, a company, a worker, or nobody's."""

    route: str
    verb: Verb | None
    whose: str
    path: Mapping[str, str] = MappingProxyType({})
    body: dict[str, Any] | None = None
    query: Mapping[str, Any] = MappingProxyType({})


def of_app(name: str, body: dict[str, Any] | None = None, verb: Verb = "submit", **query: Any) -> list[Case]:
    """The case for the app of each company."""
    return [
        Case(name, verb, account, {"app": app, "task": "0"}, body, query)
        for account, app in (("acme/ann", "ann-1"), ("globex/bob", "bob-1"))
    ]


def of_company(name: str, verb: Verb, body: dict[str, Any] | None = None) -> list[Case]:
    return [Case(name, verb, company, {"company": company}, body) for company in ("acme", "globex")]


def of_account(name: str, body: dict[str, Any] | None = None) -> list[Case]:
    users = [Case(name, "users", account, {"account": account}, body) for account in ("acme/ann", "globex/bob")]
    others = [Case(name, "archive", "", {"account": account}, body) for account in ("op/root", "worker/w2")]
    return users + others


def of_worker(name: str, *, own: bool = False) -> list[Case]:
    return [
        Case(name, "cluster", f"worker/{worker}" if own else "", {"worker": worker}, {}) for worker in WORKERS.values()
    ]


REGISTERING = {"registrant": {"pid": 1, "host": "h"}, "node": "n", "cores": 8, "memory_mb": 65536}


def of_agent(name: str, body: dict[str, Any] | None = None) -> list[Case]:
    """The case for the agent of each worker."""
    return [Case(name, "work", f"worker/{worker}", {"worker": worker}, body) for worker in WORKERS.values()]


def of_executor(name: str, body: dict[str, Any]) -> list[Case]:
    """The case for the executor on each worker."""
    held = {"w1": "ann-1.0", "w2": "bob-1.0"}
    return [each._replace(path={**each.path, "executor": held[each.path["worker"]]}) for each in of_agent(name, body)]


def verb_for(account: str) -> Verb:
    """What manages the account."""
    return "archive" if account.partition("/")[0] in {"op", "auditor", "worker"} else "users"


def submission(company: str, user: str) -> dict[str, Any]:
    return {"app": "new", "company": company, "user": user, "cores": 2, "command": ["true"]}


CASES: list[Case] = [
    Case("health", None, ""),
    Case("openapi", None, ""),
    *(Case(name, None, "") for name in OF_A_PROVIDER),
    *(Case(name, None, "me") for name in ("whoami", "accounts", "tokens")),
    Case("commands", None, "me", body={"commands": []}),
    *(Case("submitApp", "submit", whose, body=submission(*whose.split("/"))) for whose in ("acme/ann", "globex/bob")),
    *of_app("killApp", {"reason": "it hangs"}, "kill"),
    *of_app("killApp", {}, "kill"),
    *of_app("signalApp", {"signal": "USR1", "reason": "it hangs"}, "kill"),
    *of_app("signalApp", {"signal": "USR1"}, "kill"),
    *of_app("cancelTask", {"task": 0, "reason": "it hangs"}, "kill"),
    *of_app("cancelTask", {"task": 0}, "kill"),
    *of_app("requeueApp", {"reason": "it hangs"}, "kill"),
    *of_app("scaleApp", {"executors": 1}),
    *of_app("holdApp", {}),
    *of_app("releaseApp", {}),
    *of_app("reprioritizeApp", {"priority": 3}),
    *of_app("extendApp", {"by_s": 1}),
    *(each._replace(verb="cluster", whose="") for each in of_app("extendApp", {"by_s": 1, "beyond_maximum": True})),
    *of_app("killExecutors", {"executors": ["ann-1.0", "bob-1.0"]}),
    *of_app("finishApp", {}),
    *of_app("beat"),
    *(each._replace(path={**each.path, "name": "here"}) for each in of_app("publish", {"text": "x"})),
    *(each._replace(path={**each.path, "name": "here"}) for each in of_app("message")),
    *of_app("links", verb="read"),
    *of_app("exec", {"command": ["true"]}, "kill"),
    *of_app("exec", {"command": ["true"], "reason": "it hangs"}, "kill"),
    *(each._replace(path={**each.path, "visit": "none"}) for each in of_app("execCall", {}, "read")),
    Case("registerCompany", "cluster", "", body={"company": "third"}),
    *(each._replace(whose="") for each in of_company("changeCompany", "cluster", {"part": "1/2"})),
    *(each._replace(whose="") for each in of_company("removeCompany", "cluster")),
    Case("setLimit", "cluster", "", body={"scope": "cluster", "name": "max_cores", "value": 4}),
    Case("setLimit", "cluster", "", body={"scope": "company", "name": "max_cores", "company": "acme", "value": 4}),
    Case("setLimit", "cluster", "", body={"scope": "user", "name": "max_cores", "user": "ann", "value": 4}),
    *(
        Case(
            "setLimit", "users", company, body={"scope": "user", "name": "max_cores", "company": company, "user": user}
        )
        for company in ("acme", "globex", "*")
        for user in ("ann", "*")
    ),
    Case("registerKind", "cluster", "", body={"kind": "gpu"}),
    Case("configureCluster", "cluster", "", body={"settings": {"placement": "pack"}}),
    *of_company("showApps", "users", {"shown": True}),
    *(Case("addAccount", "users", name, body={"account": name}) for name in ("acme/new", "globex/new", "third/new")),
    *(Case("addAccount", "users", name, body={"account": name, "role": "admin"}) for name in ("acme/n", "globex/n")),
    *(Case("addAccount", "archive", "", body={"account": name}) for name in ("op/new", "auditor/y", "worker/w3")),
    *of_account("changeAccount", {"display": "A"}),
    *of_account("removeAccount"),
    *of_account("grantRole", {"role": "admin"}),
    *of_account("revokeRole", {"role": "user"}),
    *(
        Case("issueToken", verb, account, body={"token": "new00000", "account": account, "hash": HASH})
        for account in ROLES
        if "/" in account
        for verb in [verb_for(account)]
    ),
    *(
        Case("revokeToken", verb, account, {"token": account})
        for account in ROLES
        if "/" in account
        for verb in [verb_for(account)]
    ),
    *(
        Case("registerWorker", "work", f"worker/{name}", body={"worker": name, "node": "n", "host": host} | offer)
        for name, host in (("w1", "h1"), ("w2", "h2"))
        for offer in [{"cores": 8, "memory_mb": 65536}]
    ),
    *of_worker("drainWorker", own=True),
    *of_worker("removeWorker", own=True),
    *of_worker("undrainWorker"),
    Case("addDepartment", "cluster", "", body={"department": "d1"}),
    Case("changeDepartment", "cluster", "", {"department": "d1"}, {"part": "1/2"}),
    Case("moveCompany", "cluster", "", {"company": "globex"}, {"department": "d1"}),
    Case("removeDepartment", "cluster", "", {"department": "d2"}),
    Case("departments", "cluster-read", ""),
    Case("addWindow", "cluster", "", body={"window": "x1", "workers": ["w1"], "begin": 1 << 50, "end": (1 << 50) + 1}),
    Case("removeWindow", "cluster", "", {"window": "x1"}),
    Case("windows", "cluster-read", ""),
    *of_agent("workerGrants"),
    *of_agent("workerRemoval"),
    *of_agent("workerLeave", {}),
    *of_agent("workerReports", {"started": []}),
    *(
        each._replace(body=each.body | {"host": host})
        for name in ("workerInvited", "workerRegister")
        for each, host in zip(of_agent(name, REGISTERING), ("h1", "h2"), strict=True)
        if each.body is not None
    ),
    *of_executor("executorBegin", {}),
    *of_executor("executorStep", {"turn": "a:1", "want": 1}),
    *of_executor("executorOutput", {"tails": [[0, "AAAA"]]}),
    *of_executor("executorBacklog", {"waiting": 1, "running": 1, "idle": False}),
    *of_executor("executorEndApp", {"reason": "finished"}),
    *of_executor("executorAlive", {}),
    *of_executor("executorVisits", {}),
    *of_executor("executorAttend", {"visit": "none"}),
    *of_executor("executorFinish", {"put_back": True}),
    *of_worker("decommissionWorker"),
    Case("apps", None, "me"),
    Case("estimates", None, "me"),
    *of_app("app", verb="read"),
    *of_app("app", verb="read", reason="the disk is full"),
    *of_app("tasks", verb="read"),
    *of_app("explain", verb="read"),
    *(Case(name, "cluster-read", "") for name in ("audit", "fairness")),
    *(
        Case("plan", "submit", whose, body={**submission(*whose.split("/")), "type": "SubmitApp"})
        for whose in ("acme/ann", "globex/bob")
    ),
    *(
        Case("runs", "submit", f"{company}/{user}", query={"company": company, "user": user, "name": "train"})
        for company, user in (("acme", "ann"), ("globex", "bob"))
    ),
    Case("whatif", "cluster-read", "", body={"settings": {"placement": "pack"}}),
    *(each._replace(query={"month": f"{datetime.now(UTC):%Y-%m}"}) for each in of_company("statement", "statement")),
    Case("departmentsStatement", "statement", "", query={"month": f"{datetime.now(UTC):%Y-%m}", "by": "user"}),
    *of_app("appEvents", verb="read"),
    *of_app("card", verb="read"),
    *of_app("timeline", verb="read"),
    *(Case(name, None, "me") for name in ("board",)),
    *of_company("companyCard", "cluster-read"),
    *(Case(name, "cluster-read", "") for name in ("overview", "course", "fleet", "history", "entries", "pulse")),
    Case("decision", "cluster-read", "", {"position": "1"}),
    Case("moment", "cluster-read", "", query={"time": 0}),
    Case("link", None, "me", body={}),
    *(
        Case("pass", "submit", whose, body={"app": "new", "company": whose.split("/")[0], "user": whose.split("/")[1]})
        for whose in ("acme/ann", "globex/bob")
    ),
    Case("auditFile", "cluster-read", ""),
    *of_app("output", verb="private"),
    *of_app("output", verb="private", reason="the disk is full"),
    *of_app("outputs", verb="private"),
    *of_app("outputs", verb="private", reason="the disk is full"),
    *of_app("driverOutput", verb="private"),
    *of_app("driverOutput", verb="private", reason="the disk is full"),
    *of_company("companyEvents", "cluster-read"),
    *(
        Case(name, "cluster-read", "")
        for name in (
            "status",
            "metrics",
            "workers",
            "resources",
            "companies",
            "shares",
            "limits",
            "settings",
            "edition",
            "cluster",
            "demand",
            "log",
            "logEvents",
        )
    ),
]


OF_WHAT_RUNS = {"killApp", "signalApp", "cancelTask", "requeueApp"}
"""What a worker may do to the apps that run on it."""


def may(who: str, case: Case) -> bool:
    """An own reading of the matrix: whether `who` may do what the case asks."""
    role = ROLES[who]
    if who == "nobody" or case.verb is None:
        return case.route in {"health", "openapi", *OF_A_PROVIDER} or who != "nobody"
    verb: Verb = case.verb
    if case.route in {"issueToken", "revokeToken"} and case.whose == who:
        verb = "tokens"
    if case.route in {"drainWorker", "removeWorker"} and role == "worker":
        verb = "work"
    if case.route in OF_WHAT_RUNS and role == "worker":  # what runs there asks for it (semantics X4, X6)
        return who.partition("/")[2] == {"acme/ann": "w1", "globex/bob": "w2"}[case.whose]
    reach = MATRIX[verb].get(role)
    if (verb, role) in WITH_REASON and not {**(case.body or {}), **case.query}.get("reason"):
        return False
    if case.route == "appEvents" and role not in MATRIX["cluster-read"]:
        return False  # its events are those of the public log
    company, _, name = who.partition("/")
    whose: dict[str | None, bool] = {
        None: False,
        "all": True,
        "company": case.whose.partition("/")[0] == company,
        "granted": name == {"acme/ann": "w1", "globex/bob": "w2"}.get(case.whose),
    }
    return whose.get(reach, case.whose == who)


class World(NamedTuple):
    api: Handlers
    tokens: dict[str, NewToken]
    rates: Rates

    def state(self) -> ClusterState:
        return self.api.replica.peek(lambda state: state)

    def by(self, who: str) -> By:
        if who == "local":
            return local(0)
        return NOBODY if who == "nobody" else By(who, self.tokens[who].id, ROLES[who])

    def facts(self) -> str:
        """All of the state but what a logged refusal changes."""
        left_out = {"commands", "refusals", "refused", "head", "at", "forgotten_at", "sealed", "balance", "usage"}

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: plain(each) for name, each in value.items() if name not in left_out}
            return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

        return json.dumps(plain(self.state().dump()), default=str, sort_keys=True)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two companies; ann's app runs on w1 and bob's on w2, each with a command that nobody else is to see."""
    with served(fakeredis.FakeRedis(server=fakeredis.FakeServer()), timeout_s=HOPELESS_S) as api:
        root = local(0)

        def send(*commands: Command, by: By = root) -> None:
            for command in commands:
                api.replica.wait_for(api.sender.send(by, command).seq, HOPELESS_S)

        accounts = [who for who in ROLES if "/" in who]
        tokens = {who: new_token() for who in accounts}
        send(RegisterCompany(company="acme"), RegisterCompany(company="globex"))
        send(*(AddAccount(account=who, role="admin" if who.endswith("/adm") else None) for who in accounts))
        send(*(IssueToken(token=tokens[who].id, account=who, hash=tokens[who].hash) for who in accounts))
        for who, app, worker, host in (("acme/ann", "ann-1", "w1", "h1"), ("globex/bob", "bob-1", "w2", "h2")):
            company, user = who.split("/")
            offer = RegisterWorker(worker=worker, node="n", host=host, cores=8, memory_mb=65536)
            told = ("echo", f"secret-of-{user}")
            submit = SubmitApp(app=app, company=company, user=user, name=f"secret-of-{user}", cores=8, command=told)
            send(offer, by=By(f"worker/{worker}", tokens[f"worker/{worker}"].id, "worker"))
            send(submit, by=By(who, tokens[who].id, "user"))
            assert {each.worker for each in api.replica.peek(lambda state: state).apps[app].executors.values()} == {
                worker
            }
        ticks = count(step=1000)
        yield World(api, tokens, Rates(lambda: next(ticks)))


async def ask(world: World, who: str, cases: list[Case]) -> list[httpx.Response]:
    """The answers to the requests of one caller."""
    app = make_app(Door(world.api, Feed(), world.rates), at_home=who == "local")
    token = {} if who in {"local", "nobody"} else {"authorization": f"Bearer {world.tokens[who].text}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://api") as client,
    ):
        return [await _one(world, client, token, case) for case in cases]


async def _one(world: World, client: httpx.AsyncClient, token: dict[str, str], case: Case) -> httpx.Response:
    route = route_of(case)
    path = {**case.path, "token": world.tokens[case.path["token"]].id} if "token" in case.path else case.path
    url = route.path.format(**path)
    request = client.build_request(route.method, url, params=case.query, json=case.body, headers=token)
    if case.route == "auditFile":
        said = {**token, "content-type": "application/x-ndjson"}
        request = client.build_request(route.method, url, content=b"no log", headers=said)
    answer = await client.send(request)
    if answer.status_code == 200 and "json" in answer.headers["content-type"]:
        assert unnamed(route, answer.json()) == []
    return answer


def route_of(case: Case) -> Route:
    return next(route for route in ROUTES if route.name == case.route)


def command_of(world: World, case: Case) -> Command | None:
    route = route_of(case)
    if route.takes is None:
        return None
    path = {name: value for name, value in case.path.items() if name in route.names}
    if "token" in path:
        path["token"] = world.tokens[path["token"]].id
    return request_of({**(case.body or {}), **path, "type": route.takes.__name__})[0]


def refusal_of(world: World, command: Command, who: str) -> CommandRejected | None:
    """Why a master would refuse the command."""
    state = world.state()
    try:
        decide(state, command, state.at, world.by(who))
    except CommandRejected as refusal:
        return refusal
    return None


@contextmanager
def without_streams() -> Iterator[None]:
    """Streams end after what they begin with."""

    async def begun(*_: object, **__: object) -> Any:
        yield b": fairlog\n\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feed, "stream", begun)
        patch.setattr(Feed, "pulse", begun)
        yield


def test_every_route_and_every_verb_has_a_case() -> None:
    assert {case.route for case in CASES} == {route.name for route in ROUTES} - OF_THE_PAGE
    assert {case.verb for case in CASES} - {None} >= MATRIX.keys() - {"lead", "statement", "tokens"}
    assert set(ROLES.values()) == {role for row in MATRIX.values() for role in row} - {"master"}


@pytest.mark.parametrize("who", ROLES)
def test_what_the_matrix_does_not_list_is_refused_and_changes_nothing(world: World, who: str) -> None:
    cases = [case for case in CASES if not may(who, case)]
    before, head = world.facts(), world.state().head
    with without_streams():
        answers = asyncio.run(ask(world, who, cases))
    for case, answer in zip(cases, answers, strict=True):
        unknown = who == "nobody" or (who == "local" and case.verb == "work" and case.route != "registerWorker")
        assert answer.status_code in ({401} if unknown else {403, 404}), (case, answer.text)
    for case, answer in zip(cases, answers, strict=True):
        assert "secret-of" not in answer.text, case
        assert answer.status_code != 404 or case.route in {
            "app",
            "tasks",
            "beat",
            "exec",
            "execCall",
            "explain",
            "appEvents",
            "output",
            "outputs",
            "driverOutput",
            "publish",
            "message",
            "links",
            "card",
            "timeline",
        }
    world.api.replica.wait_for(world.api.replica.log.head().seq, HOPELESS_S)
    logged = [fact for fact in world.api.replica.log.facts() if fact.seq > head]
    assert len(logged) <= (0 if who == "nobody" else TOLD_BURST + 1), "more than a few attempts are logged"
    assert {type(fact.event) for fact in logged} <= {CommandRefused}
    assert {fact.by.account for fact in logged} <= {who}
    direct = CommandClient(world.api.store, KEYS.cluster, keyring=RING, timeout_s=HOPELESS_S)
    if who != "nobody":
        for case in cases:
            if (command := command_of(world, case)) is not None:
                with pytest.raises((NotAllowed, UnknownToken)):
                    direct.send(command, by=world.by(who))
    world.api.replica.wait_for(world.api.replica.log.head().seq, HOPELESS_S)
    assert world.facts() == before, "what was refused has changed something"


@pytest.mark.parametrize("who", ROLES)
def test_what_the_matrix_lists_is_let_through(world: World, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the API to the master, who would not refuse it for want of permission; here nothing is sent."""
    cases = [case for case in CASES if may(who, case)]
    client = world.api.sender._client
    monkeypatch.setattr(client, "send", lambda *_, **__: Receipt("id", 0))
    monkeypatch.setattr(client, "send_batch", lambda some, **_: [Receipt("id", 0) for _ in some])
    for name in ("send", "notify"):
        monkeypatch.setattr(world.api.workers._store.client, name, lambda *_, **__: None)
    with without_streams():
        answers = asyncio.run(ask(world, who, cases))
    due = [404 if case.route in OF_A_PROVIDER else 422 if case.route == "execCall" else 200 for case in cases]
    assert [
        (case, answer.text)
        for case, answer, status in zip(cases, answers, due, strict=True)
        if answer.status_code != status
    ] == []
    for case, answer in zip(cases, answers, strict=True):
        for account, user in (("acme/ann", "ann"), ("globex/bob", "bob")):
            seen = f"secret-of-{user}" in answer.text and case.route != "workerGrants"
            assert not seen or may(who, Case("output", "private", account, query=case.query)), (case, answer.text)
        if (command := command_of(world, case)) is not None:
            assert not isinstance(refusal_of(world, command, who), NotAllowed | UnknownApp), case
