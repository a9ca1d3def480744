"""Signing in at an OpenID provider: a small one that the tests play, which also lies."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from click.testing import CliRunner
from joserfc.jwk import ECKey, OctKey, RSAKey

from fairlog.api.app import Door, make_app
from fairlog.api.feed import Feed
from fairlog.api.handlers import Handlers
from fairlog.api.oidc import BadProvider, OpenIdProvider, Settings
from fairlog.cli.verbs.login import login
from fairlog.credentials import kept
from scheduler.model.commands import AddAccount, IssueToken
from scheduler.rules.command.permission import MATRIX
from scheduler.service.tokens import authenticate, new_token
from tests.unit.fairlog.api.idp import ISSUER, KEY, Idp, unsigned
from tests.unit.fairlog.api.served import ACME, ROOT, served
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    import fakeredis

OTHER = ECKey.generate_key("P-256", {"kid": "k1"})
REDIRECT = "http://127.0.0.1:4321/"
VERIFIER, NONCE = "v" * 43, "n" * 32


@pytest.fixture
def idp() -> Idp:
    return Idp()


@pytest.fixture
def api(fake: fakeredis.FakeRedis) -> Iterator[Handlers]:
    """Handlers of a cluster with the users ann and bob, an operator's account for the server, and others."""
    with served(fake) as made:
        made.sender.send(ROOT, ACME)
        for name in ("acme/ann", "acme/bob", "op/root", "op/oidc"):
            receipt = made.sender.send(ROOT, AddAccount(account=name))
        made.replica.wait_for(receipt.seq, HOPELESS_S)
        yield made


def door(api: Handlers, idp: Idp, **about: Any) -> Door:
    """A door whose provider is `idp`, with a token of op/oidc."""
    token = new_token()
    receipt = api.sender.send(ROOT, IssueToken(token=token.id, account="op/oidc", hash=token.hash))
    api.replica.wait_for(receipt.seq, HOPELESS_S)
    settings = Settings(**{"issuer": ISSUER, "client_id": "fairlog", "token": token.text, **about})
    return Door(api, Feed(), provider=OpenIdProvider(settings, httpx.MockTransport(idp)))


def ask(door: Door, *asked: dict[str, Any]) -> list[httpx.Response]:
    async def story() -> list[httpx.Response]:
        app = make_app(door, at_home=False)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://api") as client,
        ):
            return [await client.post("/v1/sign-in", json=each) for each in asked]

    return asyncio.run(story())


def request(idp: Idp, **about: Any) -> dict[str, Any]:
    """What a client sends that has signed in."""
    challenge = urlsafe_b64encode(sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
    code = idp.authorize(code_challenge=challenge, redirect_uri=REDIRECT, nonce=NONCE)
    token = new_token()
    asked = {"code": code, "verifier": VERIFIER, "redirect": REDIRECT, "nonce": NONCE}
    return {**asked, "token": token.id, "hash": token.hash, **about}


def tokens_of(api: Handlers, account: str) -> list[Any]:
    api.replica.wait_for(api.replica.log.head().seq, HOPELESS_S)
    return api.replica.peek(lambda state: state.accounts.tokens_of(account, state.at))


def test_who_signs_in_gets_a_token_that_nobody_else_knows(api: Handlers, idp: Idp) -> None:
    token = new_token()
    (answer,) = ask(door(api, idp), request(idp, token=token.id, hash=token.hash))
    assert (answer.status_code, answer.json()["value"]["account"]) == (200, "acme/ann")
    assert token.text not in answer.text
    api.replica.wait_for(answer.json()["value"]["seq"], HOPELESS_S)
    who = api.replica.peek(lambda state: authenticate(state, token.text, state.at))
    assert (who.account, who.role) == ("acme/ann", "user")
    (issued,) = tokens_of(api, "acme/ann")
    assert issued.scopes == tuple(verb for verb in MATRIX if "user" in MATRIX[verb])
    fact = next(fact for fact in api.replica.log.facts() if fact.seq == answer.json()["value"]["seq"])
    assert fact.by.account == "op/oidc"


def lying(**lies: Any) -> Callable[[Idp], None]:
    return lambda idp: idp.lies.update(lies)


def by_a_secret(idp: Idp) -> None:
    """Signed by what everybody knows, the public key, as if it were a secret."""
    idp.header, idp.key = {"alg": "HS256", "kid": "k1"}, OctKey.import_key(str(KEY.as_dict(private=False)["x"]))


def by_another(idp: Idp) -> None:
    idp.key = OTHER


def by_an_unknown(idp: Idp) -> None:
    idp.header = {"alg": "ES256", "kid": "k2"}


def by_another_kind(idp: Idp) -> None:
    idp.header, idp.key = {"alg": "RS256", "kid": "k1"}, RSAKey.generate_key(2048)


LIES: dict[str, Callable[[Idp], None]] = {
    "another key": by_another,
    "an unknown key": by_an_unknown,
    "another algorithm": by_another_kind,
    "the public key as a secret": by_a_secret,
    "another issuer": lying(iss="https://evil.example"),
    "no issuer": lying(iss=None),
    "another audience": lying(aud="wiki"),
    "several audiences for another": lying(aud=["fairlog", "wiki"], azp="wiki"),
    "no audience": lying(aud=None),
    "another nonce": lying(nonce="m" * 32),
    "no nonce": lying(nonce=None),
    "expired": lying(exp=int(time.time()) - 3600),
    "no expiry": lying(exp=None),
    "of the future": lying(nbf=int(time.time()) + 36000),
    "no account": lying(fairlog_account=None),
    "an account that is not there": lying(fairlog_account="acme/eve"),
    "another company": lying(fairlog_account="globex/ann"),
    "an operator": lying(fairlog_account="op/root"),
    "the owner": lying(fairlog_account="local/0"),
    "a list": lying(fairlog_account=["acme/ann"]),
    "a path": lying(fairlog_account="acme/ann/../bob"),
}


def test_an_id_token_that_is_wrong_in_anything_issues_nothing(api: Handlers, idp: Idp) -> None:
    asking = door(api, idp)
    for name, lie in LIES.items():
        idp.__init__()  # type: ignore[misc]
        lie(idp)
        asking.rates.__init__()  # type: ignore[misc]
        (answer,) = ask(asking, request(idp))
        assert answer.status_code == 401, (name, answer.text)
    assert not [token for account in ("acme/ann", "acme/bob", "op/root") for token in tokens_of(api, account)]


def test_an_unsigned_id_token_is_refused(api: Handlers, idp: Idp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joserfc.jwt.encode", unsigned)
    (answer,) = ask(door(api, idp), request(idp))
    assert answer.status_code == 401
    assert not tokens_of(api, "acme/ann")


def test_a_code_is_good_once_and_with_what_belongs_to_it_only(api: Handlers, idp: Idp) -> None:
    asking, good = door(api, idp), request(idp)
    stolen = [{**request(idp), "verifier": "w" * 43}, {**request(idp), "redirect": "http://127.0.0.1:1/"}]
    assert [answer.status_code for answer in ask(asking, *stolen, good, good)] == [401, 401, 200, 401]
    other = {**request(idp), "nonce": "m" * 32}
    for wrong in (
        {"redirect": "https://evil.example/"},
        {"nonce": "short"},
        {"verifier": "v"},
        {"account": "acme/bob"},
    ):
        (answer,) = ask(asking, {**request(idp), **wrong})
        assert answer.status_code == 400, answer.text
    assert [answer.status_code for answer in ask(asking, other)] == [401]
    assert len(tokens_of(api, "acme/ann")) == 1
    assert not tokens_of(api, "acme/bob")


def test_a_claim_may_name_the_user_of_one_company(api: Handlers, idp: Idp) -> None:
    asking = door(api, idp, claim="preferred_username", company="acme", client_secret="s3cret")
    idp.claims = {"preferred_username": "bob", "sub": "2"}
    (answer,) = ask(asking, request(idp))
    assert answer.json()["value"]["account"] == "acme/bob"
    assert idp.asked[-2].headers["authorization"].startswith("Basic ")
    idp.claims["preferred_username"] = "x/bob"
    (answer,) = ask(asking, request(idp))
    assert answer.status_code == 401


def test_an_address_names_a_user_of_the_company_if_it_is_verified_and_of_its_domain(api: Handlers, idp: Idp) -> None:
    idp.claims = {"email": "Bob@Acme.example", "sub": "2"}
    asking = door(api, idp, claim="email", company="acme", email_domain="acme.example")
    assert [answer.status_code for answer in ask(asking, request(idp))] == [401]
    idp.claims["email_verified"] = True
    (answer,) = ask(asking, request(idp))
    assert answer.json()["value"]["account"] == "acme/bob"
    for address in ("bob@evil.example", "bob", "bob@acme.example@evil.example", "x/bob@acme.example"):
        idp.claims["email"] = address
        assert [answer.status_code for answer in ask(asking, request(idp))] == [401], address


def test_without_a_provider_nobody_signs_in_and_with_one_only_so_often(api: Handlers, idp: Idp) -> None:
    answers = ask(Door(api, Feed()), request(idp))
    assert [answer.status_code for answer in answers] == [404]
    assert idp.asked == []
    statuses = [answer.status_code for answer in ask(door(api, idp), *[{**request(idp), "code": "x"}] * 12)]
    assert statuses[:10] == [401] * 10
    assert statuses[10:] == [429] * 2


def test_a_provider_that_is_away_or_another_is_no_reason_to_believe_anybody(api: Handlers, idp: Idp) -> None:
    idp.about["issuer"] = "https://evil.example"
    assert [answer.status_code for answer in ask(door(api, idp), request(idp))] == [503]
    idp.about = {**idp.about, "issuer": ISSUER, "token_endpoint": "http://evil.example/token"}
    assert [answer.status_code for answer in ask(door(api, idp), request(idp))] == [503]
    assert not tokens_of(api, "acme/ann")


def test_a_provider_may_change_its_key_and_the_old_one_then_proves_nothing(api: Handlers, idp: Idp) -> None:
    asking = door(api, idp)
    assert [answer.status_code for answer in ask(asking, request(idp))] == [200]
    idp.rotate()
    assert [answer.status_code for answer in ask(asking, request(idp))] == [200]
    by_an_unknown(idp)
    idp.header, idp.key = {"alg": "ES256", "kid": "k1"}, KEY
    assert [answer.status_code for answer in ask(asking, request(idp))] == [401]


def test_a_server_whose_own_token_has_ended_says_so(api: Handlers, idp: Idp) -> None:
    asking = door(api, idp, token=new_token().text)
    (answer,) = ask(asking, request(idp))
    assert answer.status_code == 503
    assert "this server's own token cannot issue others" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({}, "does not describe an OpenID provider"),
        ({"issuer": "http://id.example", "client_id": "c", "token": "t"}, "must begin with https://"),
        ({"issuer": ISSUER, "client_id": "", "token": "t"}, "must not be empty"),
        ({"issuer": ISSUER, "client_id": "c", "token": "t", "claim": "email", "company": "acme"}, "the email_domain"),
        ({"issuer": ISSUER, "client_id": "c", "token": "t", "password": "p"}, "does not describe"),
    ],
)
def test_a_file_that_describes_no_provider_is_refused(tmp_path: Path, about: dict[str, str], says: str) -> None:
    path = tmp_path / "oidc.json"
    path.write_text(json.dumps(about))
    path.chmod(0o644)
    with pytest.raises(BadProvider, match="has mode 0644; run `chmod 600"):
        Settings.load(path)
    path.chmod(0o600)
    with pytest.raises(BadProvider, match=says):
        Settings.load(path)


def test_the_command_line_signs_in_with_the_browser(api: Handlers, idp: Idp, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = door(api, idp)

    class Client:
        """The client of the API, without a network in between."""

        def __init__(self, *_: object, token: str, **_how: object) -> None:
            assert token == ""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, path: str) -> Any:
            assert path == "/v1/sign-in"
            assert asking.provider is not None
            return asking.provider.description()

        def ask(self, path: str, asked: dict[str, Any]) -> Any:
            assert path == "/v1/sign-in"
            (answer,) = ask(asking, asked)
            return answer.json()["value"]

    def browse(url: str) -> None:
        query = {name: each[0] for name, each in parse_qs(urlsplit(url).query).items()}
        back = query["redirect_uri"]

        def come_back() -> None:
            assert httpx.get(back, params={"code": "forged", "state": "guessed"}).status_code == 404
            assert httpx.get(back, params={"code": idp.authorize(**query), "state": query["state"]}).status_code == 200

        threading.Thread(target=come_back).start()

    monkeypatch.setattr("fairlog.api.client.ApiClient", Client)
    monkeypatch.setattr("webbrowser.open", browse)
    result = CliRunner().invoke(login, ["--oidc", "--api", "https://api.example"])
    assert result.exit_code == 0, result.output
    assert "logged in as acme/ann; `fairlog logout` ends it" in result.output
    known = kept()
    assert known is not None
    tokens_of(api, "acme/ann")
    assert api.replica.peek(lambda state: authenticate(state, known.token, state.at)).account == "acme/ann"
