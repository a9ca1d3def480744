"""An OpenID provider for tests, which can be made to lie."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx
from joserfc import jwt
from joserfc.jwk import ECKey

ISSUER = "https://id.example"
KEY = ECKey.generate_key("P-256", {"kid": "k1"})
ASKED = {"response_type": "code", "client_id": "fairlog", "code_challenge_method": "S256"}


class Idp:
    """The provider: it gives a code for each authorization, and an ID token for each code with its verifier, once."""

    def __init__(self, issuer: str = ISSUER) -> None:
        self.issuer = issuer
        self.codes: dict[str, dict[str, str]] = {}
        self.claims: dict[str, Any] = {"fairlog_account": "acme/ann", "sub": "1"}
        self.lies: dict[str, Any] = {}
        """Claims that replace those that are due; None leaves one out."""
        self.header: dict[str, Any] = {"alg": "ES256", "kid": "k1"}
        self.key: Any = KEY
        self.shown = KEY
        """The key that signs, and the one that it says is its own."""
        self.about = {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "jwks_uri": f"{issuer}/keys",
        }
        self.asked: list[httpx.Request] = []

    def authorize(self, **query: str) -> str:
        code = f"code{len(self.codes)}"
        self.codes[code] = query
        return code

    def rotate(self) -> None:
        """Sign by a new key from now on."""
        self.key = self.shown = ECKey.generate_key("P-256", {"kid": "k2"})
        self.header = {"alg": "ES256", "kid": "k2"}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        match request.url.path:
            case "/.well-known/openid-configuration":
                return httpx.Response(200, json=self.about)
            case "/keys":
                return httpx.Response(200, json={"keys": [self.shown.as_dict(private=False, use="sig")]})
            case "/authorize":
                query = {name: each[0] for name, each in parse_qs(request.url.query.decode()).items()}
                asked = {name: query[name] for name in ("response_type", "client_id", "code_challenge_method")}
                if "openid" not in query["scope"].split() or asked != ASKED:
                    return httpx.Response(400)
                back = {"code": self.authorize(**query), "state": query["state"]}
                return httpx.Response(302, headers={"location": f"{query['redirect_uri']}?{urlencode(back)}"})
            case "/token":
                return self._token({name: each[0] for name, each in parse_qs(request.content.decode()).items()})
        return httpx.Response(404)

    def _token(self, form: dict[str, str]) -> httpx.Response:
        about = self.codes.pop(form["code"], None)
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if about is None or about["code_challenge"] != challenge or about["redirect_uri"] != form["redirect_uri"]:
            return httpx.Response(400, json={"error": "invalid_grant"})
        now = int(time.time())
        due = {
            "iss": self.issuer,
            "aud": "fairlog",
            "iat": now,
            "exp": now + 300,
            "nonce": about["nonce"],
            **self.claims,
        }
        claims = {name: value for name, value in {**due, **self.lies}.items() if value is not None}
        return httpx.Response(200, json={"access_token": "a", "id_token": jwt.encode(self.header, claims, self.key)})


def unsigned(header: dict[str, Any], claims: dict[str, Any], _: object) -> str:
    """A token that nobody has signed, in place of `jwt.encode`."""
    parts = [json.dumps(part).encode() for part in ({**header, "alg": "none"}, claims)]
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."
