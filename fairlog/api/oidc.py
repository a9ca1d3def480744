"""People sign in at an OpenID provider: the authorization code flow with PKCE, on behalf of an account that exists.

The client sends its browser to the provider and gets a code. This server exchanges the code, which is worth nothing
without the client's verifier, for an ID token, checks it, and has a token issued for the account that it names; only
the client knows the text of that token. The server sends the command by a token of its own, so the master decides
whether it may (semantics I3, I5).
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from msgspec import Struct

from fairlog.api.questions import SignIn
from scheduler.model.errors import FairlogError, NotAuthenticated
from scheduler.rules.entities.accounts import RESERVED
from scheduler.service.private import NotPrivate, read_private

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Algorithms by which a provider may sign: none that the client could sign by."""
TIMEOUT_S = 10.0
KEPT_S = 3600.0
"""How long what the provider says of itself is believed."""
LEEWAY_S = 60
SCOPE = "openid profile email"
_LOCAL = {"127.0.0.1", "localhost", "::1"}


class BadProvider(FairlogError):
    """The file about the provider cannot be used."""


class NoProvider(FairlogError):
    """The provider does not answer as it should."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The provider, and this server as its client.

    `claim` names the claim whose value is the account, `COMPANY/NAME`; with `company` the value is NAME. That of the
    claim `email` is an address at `email_domain`, whose first part is NAME. `token` is that of an account that may
    issue tokens for those who sign in.
    """

    issuer: str
    client_id: str
    token: str
    client_secret: str = ""
    claim: str = "fairlog_account"
    company: str = ""
    email_domain: str = ""

    @classmethod
    def load(cls, path: Path) -> Settings:
        """The settings in the file `path`, JSON. Raises: BadProvider."""
        try:
            found = msgspec.json.decode(read_private(path), type=cls)
        except NotPrivate as error:
            raise BadProvider(str(error)) from None
        except OSError as error:
            raise BadProvider(f"{path} cannot be read: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadProvider(f"{path} does not describe an OpenID provider: {error}") from None
        if not is_safe(found.issuer):
            raise BadProvider(f"the issuer in {path} must begin with https://, not be {found.issuer[:80]!r}")
        if not (found.client_id and found.token and found.claim):
            raise BadProvider(f"client_id, token and claim in {path} must not be empty")
        if found.claim == "email" and not (found.company and found.email_domain):
            raise BadProvider(
                f"{path} takes the account from the claim email: name the company and the email_domain of its "
                'addresses as well, such as {"company": "acme", "email_domain": "acme.example"}'
            )
        return found


class OpenIdProvider:
    """The provider as this server knows it; may be used by several threads. `transport` is that of tests."""

    def __init__(self, settings: Settings, transport: httpx.BaseTransport | None = None) -> None:
        self.settings = settings
        self._http = httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, transport=transport)
        self._lock = Lock()
        self._about: tuple[float, dict[str, Any]] | None = None
        self._keys: KeySet | None = None

    def description(self) -> dict[str, str]:
        """What a client needs to send its browser to the provider. Raises: NoProvider."""
        return {
            "issuer": self.settings.issuer,
            "client": self.settings.client_id,
            "authorize": self._endpoint("authorization_endpoint"),
            "scope": SCOPE,
        }

    def account_of(self, asked: SignIn) -> str:
        """The name of the account that the code proves. Raises: NotAuthenticated, NoProvider."""
        claims = self._checked(self._exchanged(asked), asked.nonce)
        said = claims.get(self.settings.claim)
        if self.settings.claim == "email" and claims.get("email_verified") is not True:
            raise NotAuthenticated("the provider has not verified the address")
        if not isinstance(said, str) or not said:
            raise NotAuthenticated(f"the provider names no account in the claim {self.settings.claim!r}")
        if self.settings.claim == "email":
            said, _, domain = said.lower().rpartition("@")
            if domain != self.settings.email_domain.lower():
                raise NotAuthenticated(f"the address is not one at {self.settings.email_domain}")
        account = f"{self.settings.company}/{said}" if self.settings.company else said
        if account.partition("/")[0] in RESERVED or not re.fullmatch(r"[a-z0-9._-]+/[a-z0-9._-]+", account):
            raise NotAuthenticated(f"the provider names {account[:80]!r}, which is no account of a company's user")
        return account

    def _exchanged(self, asked: SignIn) -> dict[str, Any]:
        """The provider's answer to the code. Raises: NotAuthenticated, NoProvider."""
        settings = self.settings
        form = {
            "grant_type": "authorization_code",
            "code": asked.code,
            "redirect_uri": asked.redirect,
            "client_id": settings.client_id,
            "code_verifier": asked.verifier,
        }
        secret = (settings.client_id, settings.client_secret) if settings.client_secret else None
        answer = self._ask("POST", self._endpoint("token_endpoint"), data=form, auth=secret)
        if answer.status_code != httpx.codes.OK:
            raise NotAuthenticated("the provider refuses the code")
        return _json_of(answer)

    def _checked(self, answer: dict[str, Any], nonce: str) -> CodeIDToken:
        """The claims of the ID token in the answer. Raises: NotAuthenticated, NoProvider."""
        text = answer.get("id_token")
        if not isinstance(text, str):
            raise NotAuthenticated("the provider gives no ID token")
        try:
            try:
                token = jwt.decode(text, self._key_set(), algorithms=ALGORITHMS)
            except InvalidKeyIdError:
                token = jwt.decode(text, self._key_set(anew=True), algorithms=ALGORITHMS)
            options = {
                "iss": {"essential": True, "value": self.settings.issuer},
                "aud": {"essential": True, "value": self.settings.client_id},
                "nonce": {"essential": True, "value": nonce},
            }
            params = {"client_id": self.settings.client_id, "nonce": nonce}
            claims = CodeIDToken(token.claims, token.header, options, params)
            claims.validate(now=int(time.time()), leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            raise NotAuthenticated(f"the provider's ID token is not valid: {error}") from None
        return claims

    def _key_set(self, *, anew: bool = False) -> KeySet:
        with self._lock:
            found = self._keys
        if found is None or anew:
            answer = self._ask("GET", self._endpoint("jwks_uri"))
            found = KeySet.import_key_set(_json_of(answer))  # type: ignore[arg-type]
            with self._lock:
                self._keys = found
        return found

    def _endpoint(self, name: str) -> str:
        """What the provider's metadata says. Raises: NoProvider."""
        with self._lock:
            known = self._about
        if known is None or time.monotonic() > known[0] + KEPT_S:
            answer = self._ask("GET", f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
            about = _json_of(answer)
            if about.get("issuer") != self.settings.issuer:
                raise NoProvider(f"{self.settings.issuer} says that it is another issuer")
            known = time.monotonic(), about
            with self._lock:
                self._about, self._keys = known, None
        url = known[1].get(name)
        if not isinstance(url, str) or not is_safe(url):
            raise NoProvider(f"{self.settings.issuer} names no safe {name}")
        return url

    def _ask(self, method: str, url: str, **about: Any) -> httpx.Response:  # noqa: ANN401 (httpx's arguments)
        try:
            answer = self._http.request(method, url, **about)
        except httpx.HTTPError as error:
            raise NoProvider(f"{self.settings.issuer} does not answer: {error}") from None
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise NoProvider(f"{self.settings.issuer} answers {answer.status_code}")
        return answer


def is_safe(url: str) -> bool:
    """Whether what is sent to the URL is encrypted, or stays on this machine."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL))


def _json_of(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(answer.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise NoProvider(f"{answer.url.host} answers with something else than JSON")
    return found
