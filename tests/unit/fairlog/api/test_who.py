"""What the API shows to whom, and what it refuses before the master is asked: every route for every role."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

from fairlog.api.handlers import Handlers
from fairlog.api.past import NotReady
from fairlog.api.replica import Replica
from fairlog.api.routes import ROUTES
from fairlog.api.sight import company_of
from scheduler.model.commands import AddAccount, Command, IssueToken, KillApp, RegisterCompany, RevokeToken, ShowApps
from scheduler.model.errors import NotAllowed, NotAuthenticated
from scheduler.model.sender import By, Role, local
from scheduler.rules.command.permission import MATRIX, Verb
from scheduler.service.tokens import new_token
from scheduler.store.eventlog import EventLog, Position
from scheduler.store.keys import Keys
from tests.unit.fairlog.api.served import served, submission
from tests.unit.scheduler.rules.command.test_permission import HASH, OPERATOR, by, inhabited, token_of
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    import fakeredis

    from tests.property.given import Cluster

ACCOUNTS = ["acme/ann", "acme/cid", "acme/adm", "globex/bob", "globex/adm", "op/root", "auditor/x", "worker/w1"]


@pytest.fixture
def cluster() -> Cluster:
    return inhabited()


@pytest.fixture
def api(fake: fakeredis.FakeRedis, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Handlers:
    """Handlers whose replica has folded the log of `cluster`, at its time."""
    monkeypatch.setattr("fairlog.api.sight.time", SimpleNamespace(time=lambda: cluster.state.at / 1000))
    replica = Replica(EventLog(fake, Keys("api")))
    replica._follower.resume(cluster.state, Position(cluster.state.head, ""))
    replica._trouble, replica._fresh_s = "", math.inf
    return Handlers(fake, "api", replica)


def apps(api: Handlers, account: str) -> set[str]:
    viewed = api.views.view(by(account), "apps", {})
    found: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(viewed.body))
    return {app["app"] for app in found}


ANNS, BOBS = {"ann-1", "ann-1-held"}, {"bob-1", "bob-1-held"}


@pytest.mark.parametrize(
    ("account", "due"),
    [
        ("acme/ann", ANNS),
        ("acme/cid", set()),
        ("acme/adm", ANNS),
        ("globex/bob", BOBS),
        ("globex/adm", BOBS),
        ("op/root", ANNS | BOBS),
        ("auditor/x", ANNS | BOBS),
    ],
)
def test_everybody_sees_the_apps_that_the_matrix_lets_them_see(api: Handlers, account: str, due: set[str]) -> None:
    assert apps(api, account) == due
    for app in ANNS | BOBS:
        if app in due:
            api.views.view(by(account), "app", {"app": app})
            api.sight.check_app(by(account), app)
        else:
            for ask in (api.sight.check_app, lambda who, name: api.views.view(who, "app", {"app": name})):
                with pytest.raises(NotAllowed):
                    ask(by(account), app)


def test_a_company_may_show_its_apps_to_all_its_users(api: Handlers, cluster: Cluster) -> None:
    cluster.turn(ShowApps(company="acme", shown=True), by=by("acme/adm"))
    assert apps(api, "acme/cid") == ANNS
    assert apps(api, "globex/bob") == BOBS


def test_a_worker_sees_the_apps_that_run_on_it(api: Handlers, cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        here = {app.id for app in cluster.state.apps.values() if any(e.worker == name for e in app.executors.values())}
        assert apps(api, f"worker/{name}") == here


def test_private_parts_are_shown_to_owners_and_with_a_reason_to_operators(api: Handlers) -> None:
    def reads(account: str, reason: str = "") -> bool:
        allowed = api.replica.peek(lambda state: api.sight.reader(state, by(account), reason))
        return allowed("acme", "ann")

    assert [account for account in ACCOUNTS if not account.startswith("worker") and reads(account)] == [
        "acme/ann",
        "acme/adm",
    ]
    assert reads("op/root", "the disk is full")
    api.sight.check_app(by("op/root"), "ann-1", "private", reason="the disk is full")
    for account in ("op/root", "auditor/x"):
        with pytest.raises(NotAllowed):
            api.sight.check_app(by(account), "ann-1", "private")
    with pytest.raises(NotAllowed):
        api.log.entries(by("worker/w1"))


@pytest.mark.parametrize("account", ACCOUNTS)
@pytest.mark.parametrize("name", ["shares", "cluster", "settings", "workers", "companies", "limits", "resources"])
def test_what_is_everybodys_is_shown_to_every_role_of_the_matrix(api: Handlers, account: str, name: str) -> None:
    who = by(account)
    if who.role in MATRIX["cluster-read"]:
        api.views.view(who, name, {})
    else:
        with pytest.raises(NotAllowed):
            api.views.view(who, name, {})


def test_every_route_is_of_a_verb_of_the_matrix() -> None:
    assert {route.verb for route in ROUTES} - {""} <= MATRIX.keys() == set(get_args(Verb))
    assert {route.name for route in ROUTES if not route.verb} == {
        *("health", "openapi", "whoami", "commands"),
        *("session", "logIn", "logOut", "link", "provider", "signIn"),
    }


def test_what_the_matrix_forbids_is_refused_without_asking_the_master(
    api: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no master, so that what is let through would end in silence."""
    monkeypatch.setattr(api.sender._told, "take", lambda *_: 1.0)  # no attempt is told to the master
    for account, command in (
        ("acme/cid", KillApp(app="ann-1")),
        ("globex/adm", KillApp(app="ann-1")),
        ("op/root", KillApp(app="ann-1")),
        ("auditor/x", KillApp(app="ann-1")),
        ("acme/adm", RegisterCompany(company="third")),
        ("acme/ann", AddAccount(account="acme/new")),
        ("acme/adm", AddAccount(account="globex/new")),
    ):
        with pytest.raises(NotAllowed):
            api.sender.send(by(account), command)


def test_a_token_is_known_by_its_text_until_it_is_revoked(api: Handlers, cluster: Cluster) -> None:
    token = new_token()
    cluster.turn(IssueToken(token=token.id, account="acme/ann", hash=token.hash), by=OPERATOR)
    who = api.principal(token.text, at_home=False)
    assert (who.account, who.token, who.role) == ("acme/ann", token.id, "user")
    said: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(api.views.whoami(who).body))
    assert (said["company"], "submit" in said["scopes"]) == ("acme", True)
    cluster.turn(RevokeToken(token=token.id), by=OPERATOR)
    with pytest.raises(NotAuthenticated):
        api.principal(token.text, at_home=False)


def test_no_token_is_taken_by_a_state_older_than_a_second(api: Handlers, cluster: Cluster) -> None:
    token = new_token()
    cluster.turn(IssueToken(token=token.id, account="acme/ann", hash=token.hash), by=OPERATOR)
    api.replica._fresh_s = time.monotonic() - 1.1
    with pytest.raises(NotReady, match="the store has not answered for 1"):
        api.principal(token.text, at_home=False)
    api.replica._fresh_s = math.inf
    assert api.principal(token.text, at_home=False).token == token.id


@pytest.mark.parametrize("role", get_args(Role))
def test_only_accounts_of_companies_have_a_company(role: Role) -> None:
    assert company_of(By("acme/ann", role=role)) == "acme"
    assert company_of(By("op/root", role=role)) == company_of(local(0)) == ""


def test_a_past_state_is_shown_to_those_who_may_see_it_now(fake: fakeredis.FakeRedis) -> None:
    """Before the first account everybody might see everything; nobody may go back there, and nobody is locked out."""
    with served(fake) as served_api:
        root, accounts = local(0), ["acme/ann", "globex/bob", "worker/w2"]
        sends: list[Command] = [RegisterCompany(company="acme"), RegisterCompany(company="globex"), submission("a")]
        sends += [AddAccount(account=account) for account in accounts]
        sends += [IssueToken(token=token_of(account), account=account, hash=HASH) for account in accounts]
        seqs = [served_api.sender.send(root, command).seq for command in sends]
        served_api.replica.wait_for(seqs[-1], HOPELESS_S)
        for account in accounts:
            viewed: list[Any] = served_api.views.view(by(account), "apps", {}, at=seqs[2]).body  # type: ignore[assignment]
            assert len(viewed) == (account == "acme/ann"), account
            if account != "acme/ann":
                with pytest.raises(NotAllowed):
                    served_api.views.view(by(account), "app", {"app": "a"}, at=seqs[2])
