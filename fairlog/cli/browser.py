"""Signing in at an OpenID provider with the browser: the client's part of the code flow with PKCE (RFC 7636, 8252)."""

from __future__ import annotations

import threading
import time
import webbrowser
from base64 import urlsafe_b64encode
from hashlib import sha256
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, HTTPServer
from secrets import token_urlsafe
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

import click

from scheduler.service.tokens import NewToken

if TYPE_CHECKING:
    from fairlog.api.client import ApiClient

WAIT_S = 300.0
_DONE = b"<!doctype html><title>fairlog</title><p>You can close this window and return to the terminal."


class _Returned(HTTPServer):
    """Waits on this machine for the browser to come back with `state`."""

    def __init__(self, state: str) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.state = state
        self.code = self.error = ""


class _Page(BaseHTTPRequestHandler):
    timeout = 5
    server: _Returned

    def do_GET(self) -> None:
        """Take the code, or the error, if it belongs to this sign-in."""
        said = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        ours = compare_digest(said.get("state", "").encode(), self.server.state.encode())
        if ours:
            self.server.code = said.get("code", "")
            self.server.error = "" if self.server.code else said.get("error", "no code")
        self.send_response(200 if ours else 404)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(_DONE if ours else b"")

    def log_message(self, *_: object) -> None:
        """Say nothing: the terminal is the user's."""


def sign_in(client: ApiClient, token: NewToken) -> str:
    """Have the API issue the token of whoever signs in with the browser; the account.

    Raises: click.ClickException if nobody does; the client's errors.
    """
    about = client.read("/v1/sign-in")
    verifier, state, nonce = token_urlsafe(48), token_urlsafe(24), token_urlsafe(24)
    with _Returned(state) as server:
        redirect = f"http://127.0.0.1:{server.server_port}/"
        query = {
            "response_type": "code",
            "client_id": about["client"],
            "redirect_uri": redirect,
            "scope": about["scope"],
            "state": state,
            "nonce": nonce,
            "code_challenge": urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        url = f"{about['authorize']}{'&' if urlsplit(about['authorize']).query else '?'}{urlencode(query)}"
        click.echo(f"sign in with the browser of this machine: {url}", err=True)
        # One that runs in a terminal ends only after it has shown the page of this server.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        deadline = time.monotonic() + WAIT_S
        while not (server.code or server.error):
            server.timeout = deadline - time.monotonic()
            if server.timeout <= 0:
                raise click.ClickException(f"nobody signed in within {WAIT_S:.0f} s; run `fairlog login --oidc` again")
            server.handle_request()
    if server.error:
        raise click.ClickException(f"the provider refuses: {server.error[:200]}; run `fairlog login --oidc` again")
    asked = {"code": server.code, "verifier": verifier, "redirect": redirect, "nonce": nonce}
    return str(client.ask("/v1/sign-in", {**asked, "token": token.id, "hash": token.hash})["account"])
