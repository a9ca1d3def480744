"""The verbs by which people show who they are: login, logout, whoami."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fairlog import credentials
from fairlog.api.addresses import UNIX, URL_VARIABLE
from fairlog.cli import render
from fairlog.cli.decorators import on_cluster
from fairlog.cli.failures import Unconfirmed
from fairlog.cli.params import as_json, flag, text_option
from fairlog.cli.target import Target
from fairlog.credentials import Credentials, keeping
from fairlog.local.running import find_running
from scheduler.model.errors import CommandRejected, NoMaster
from scheduler.service.tokens import new_token

if TYPE_CHECKING:
    from fairlog.cli.session import Session


@click.command()
@text_option(
    "--api",
    envvar=URL_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help="URL of the API, https://HOST or http+unix:PATH; several are separated by commas.  [default: that of the "
    "last login, else that of the running `up`]",
)
@flag("--oidc", help="Sign in with the browser, at the OpenID provider of the API server.")
def login(*, api: str | None, oidc: bool) -> None:
    """Log in with a token or an invitation, which is read from stdin or asked for.

    An invitation is exchanged for a token that this command makes, so that nobody else has seen it. The URL and the
    token are kept in a file that only you can read; all verbs use them until `fairlog logout`. To use a token without
    keeping it, set FAIRLOG_API and FAIRLOG_TOKEN.
    """
    from fairlog.cli.session import api_at  # noqa: PLC0415 (httpx takes long to load)
    from scheduler.model.commands import IssueToken  # noqa: PLC0415 (what only reads needs no commands)

    url = api or _usual_api()
    if oidc:
        from fairlog.cli.browser import sign_in  # noqa: PLC0415 (nothing else needs an HTTP server)

        made = new_token()
        try:
            with api_at(url, "") as client, keeping(Credentials(url, made.text)):
                account = sign_in(client, made)
        except NoMaster as error:
            raise Unconfirmed(str(error), "`fairlog whoami` shows whether you are logged in") from error
        render.tell(f"logged in as {account}; `fairlog logout` ends it")
        return
    text = _read_token()
    with api_at(url, text) as client:
        who = client.read("/v1/whoami")
        if who["role"] == "worker":
            raise click.ClickException(
                f"this token is for worker {who['account'].partition('/')[2]}, not for people: put it into a file and "
                "run `fairlog worker` with FAIRLOG_TOKEN_FILE=FILE; it was not used up"
            )
        if not who["once"]:
            with keeping(Credentials(url, text)):
                pass
        else:
            made = new_token()
            command = IssueToken(token=made.id, account=who["account"], hash=made.hash, replaces=who["token"])
            try:
                with keeping(Credentials(url, made.text)):
                    client.send(command)
            except NoMaster as error:
                raise Unconfirmed(str(error), "`fairlog whoami` shows whether you are logged in") from error
    render.tell(f"logged in as {who['account']}, {who['role']}; `fairlog logout` ends it")


@click.command()
def logout() -> None:
    """Revoke the token that `fairlog login` has kept, and remove it."""
    from fairlog.api.client import ApiClient  # noqa: PLC0415 (as above)
    from fairlog.errors import Refused  # noqa: PLC0415 (likewise)
    from scheduler.model.commands import RevokeToken  # noqa: PLC0415 (likewise)

    known = credentials.kept()
    if known is None:
        raise click.ClickException("you are not logged in; `fairlog login` logs you in")
    try:
        with ApiClient(known.api, token=known.token, timeout_s=5) as client:
            client.send(RevokeToken(token=client.read("/v1/whoami")["token"]))
            said = "logged out; the token is revoked"
    except NoMaster as error:
        said = f"logged out here, but the token is valid until it expires: {error}"
    except (CommandRejected, Refused) as error:
        said = f"logged out; the token was not revoked: {error}"
    credentials.forget()
    click.echo(said)


@click.command()
@as_json
@on_cluster
def whoami(session: Session, *, as_json: bool) -> None:
    """Show in which account and role your commands are sent, and where to."""
    said = session.whoami()
    where = said.pop("through")
    if as_json:
        render.print_json(said)
        return
    click.echo(f"account   {said['account']}, {said['role']}")
    if said["token"]:
        click.echo(f"token     {said['token']}, valid until {render.moment(said['expires'])}")
        click.echo(f"scopes    {', '.join(said['scopes'])}")
    click.echo(f"through   {where}")


@click.command()
@flag("--open", "opens", help="Open it in this machine's browser as well.")
@on_cluster
def page(session: Session, *, opens: bool) -> None:
    """Print a link that opens the live page in a browser, logged in.

    The link is good once, for 12 hours, and acts as the account that asked for it. Keep it as you keep a token.
    """
    nobody = "name the API that serves the page: log in with `fairlog login --api https://HOST:PORT`"
    client, urls = session.front(nobody)
    base = "" if urls.startswith(UNIX) else urls.split(",")[0].rstrip("/")
    url = client.page(base or ("" if session.up is None else session.up.api))
    if not url:
        raise click.ClickException(
            f"the API at {urls} serves no page that a browser can open: an operator starts one with `fairlog api "
            "--listen HOST:PORT`, and `fairlog login --api https://HOST:PORT` logs in there"
        )
    click.echo(url)
    if opens:
        click.launch(url)


def _usual_api() -> str:
    data = click.get_current_context().ensure_object(Target).data
    known = credentials.kept() if data is None else None
    if known is not None:
        return known.api
    up = find_running(data)
    if up is None:
        where = "here" if data is None else f"on the data in {data}"
        raise click.UsageError(f"name the API with --api URL or {URL_VARIABLE}: no `fairlog up` runs {where}")
    return f"{UNIX}{up.socket}"


def _read_token() -> str:
    """The token from stdin, or typed at a terminal, which does not show it."""
    if sys.stdin.isatty():
        return str(click.prompt("token", hide_input=True, err=True)).strip()
    text = sys.stdin.read(1000).strip()
    if not text:
        raise click.UsageError("give the token on stdin, or run the command in a terminal, which asks for it")
    return text
