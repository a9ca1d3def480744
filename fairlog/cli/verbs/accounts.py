"""The verbs about who may do what: account, token, and the invitation of a worker."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from fairlog.cli import params, render
from fairlog.cli.completion import complete
from fairlog.cli.decorators import on_cluster
from fairlog.cli.groups import VerbGroup
from fairlog.cli.sending import check_listed, send_each
from fairlog.cli.target import target_options
from fairlog.cli.whose import company_option
from scheduler.model.errors import DuplicateAccount, FairlogError, UnknownAccount
from scheduler.model.text import counted
from scheduler.service.tokens import new_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

    from fairlog.cli.session import Session

_ROLE = click.Choice(["user", "admin"])
CompanyRole = Literal["user", "admin"]


def _of_department(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option that names a department."""

    def check(_: click.Context, __: click.Parameter, value: str | None) -> str:
        if value == "":
            raise click.BadParameter('"" names no department')
        return value or ""

    return params.text_option("--department", metavar="NAME", callback=check, help=text)


def _of(department: str) -> str:
    return f" of department {department}" if department else ""


def _scopes() -> click.Choice[str]:
    """The verbs of the matrix of permissions."""
    from scheduler.rules.command.permission import MATRIX  # noqa: PLC0415 (few verbs need the rules)

    return click.Choice([*MATRIX])


def _read_scope(text: str) -> str:
    """The verb of that name. Raises: click.BadParameter naming them all."""
    return str(_scopes().convert(text, None, None))


def _complete_scope(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The verbs that begin so."""
    return _scopes().shell_complete(ctx, param, incomplete)


@click.group(cls=VerbGroup)
@target_options()
def account() -> None:
    """Add, change, remove or list the accounts of people, robots and workers."""


@account.command("add")
@click.argument("name", type=params.read_text)
@click.option("--role", type=_ROLE, help="Role of an account of a company.  [default: user]")
@params.text_option("--display", default="", metavar="TEXT", help="Name to show to people.")
@params.flag("--robot", help="A program: its tokens live for up to 90 days.")
@on_cluster
def account_add(session: Session, /, *, name: str, role: CompanyRole | None, display: str, robot: bool) -> None:
    """Add the account COMPANY/NAME, op/NAME, auditor/NAME or worker/ID.

    The first account ends that everybody who reaches the store may do everything. The owner of an `up` may still act as
    an operator.
    """
    from scheduler.model import commands  # noqa: PLC0415 (what only reads needs no commands)

    session.send(commands.AddAccount(account=name, role=role, display=display, robot=robot))
    render.tell(f"account {name} added; `fairlog token new {name} --invitation` invites it")
    _tell_if_first(session, name, click.echo)


@account.command("grant")
@click.argument("name", type=params.read_text, shell_complete=complete("account"))
@click.argument("role", type=_ROLE)
@_of_department("Make an admin of a company one of this department, too: of all companies in it, however deep.")
@on_cluster
def account_grant(session: Session, *, name: str, role: CompanyRole, department: str) -> None:
    """Give an account of a company a role."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    receipt = session.send(commands.GrantRole(account=name, role=role, department=department))
    again = f"; its tokens as an admin have ended, `fairlog token new {name} --invitation` invites it"
    click.echo(
        f"{name} {'is now' if receipt.seq else 'was already'} {role}{_of(department)}"
        f"{again if department and receipt.seq else ''}"
    )


@account.command("revoke")
@click.argument("name", type=params.read_text, shell_complete=complete("account"))
@click.argument("role", type=_ROLE)
@_of_department("Take only this department from an admin, whose tokens go on for its company.")
@on_cluster
def account_revoke(session: Session, *, name: str, role: CompanyRole, department: str) -> None:
    """Take a role from an account; its tokens in that role end.

    Of an admin, its departments go with it.
    """
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    receipt = session.send(commands.RevokeRole(account=name, role=role, department=department))
    is_none = "is no longer" if receipt.seq else "was not"
    click.echo(f"{name} {is_none} {role}{_of(department)}")


@account.command("rename")
@click.argument("name", type=params.read_text, shell_complete=complete("account"))
@click.argument("display", type=params.read_text)
@on_cluster
def account_rename(session: Session, *, name: str, display: str) -> None:
    """Change the name that is shown to people."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    session.send(commands.ChangeAccount(account=name, display=display))
    click.echo(f"{name} is shown as {display}")


@account.command("remove")
@params.names_argument("name", shell_complete=complete("account"))
@on_cluster
def account_remove(session: Session, *, name: tuple[str, ...]) -> int:
    """Remove accounts with their tokens; their apps stay."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    @cache
    def apps() -> Counter[str]:
        return Counter(f"{app['company']}/{app['user']}" for app in session.ask("apps"))

    def done(account: str) -> str:
        left = apps()[account]
        if not left:
            return "removed"
        company, _, user = account.partition("/")
        ends = f"`fairlog kill --company {company} --user {user}` ends {'it' if left == 1 else 'them'}"
        return f"removed; {counted(left, 'app')} stay{'s' * (left == 1)}, {ends}"

    check_listed(name, "account", lambda: _accounts(session, None))
    return send_each(session, name, lambda each: commands.RemoveAccount(account=each), done)


@account.command("share")
@click.argument("company", type=params.read_text, shell_complete=complete("company"))
@click.option("--on/--off", "shown", default=True, help="Whether users may see them.  [default: on]")
@on_cluster
def account_share(session: Session, *, company: str, shown: bool) -> None:
    """Let all users of a company see each other's apps, or no longer."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    session.send(commands.ShowApps(company=company, shown=shown))
    click.echo(f"the users of {company} see {'all apps of the company' if shown else 'only their own apps'}")


@account.command("list")
@company_option("Only the accounts of this company.")
@params.as_json
@on_cluster
def account_list(session: Session, *, company: str | None, as_json: bool) -> None:
    """List the accounts with their roles."""
    found = _accounts(session, company)
    if not found and company is not None:
        session.check_company(company)
    first = "op/NAME` adds the first one, an operator's" if company is None else f"{company}/NAME` adds one"
    render.print_records(
        [{**each, "roles": _roles(each)} if not as_json else each for each in found],
        "account roles display tokens",
        headings=("ACCOUNT", "ROLES", "NAME", "TOKENS"),
        empty=f"There is no account{'' if company is None else f' of {company}'}; `fairlog account add {first}.",
        as_json=as_json,
    )


def _roles(account: dict[str, Any]) -> str:
    """The account's roles, and the departments of which it is an admin."""
    return ", ".join([*account["roles"], *(f"admin of {each}" for each in account.get("departments", ()))])


def _tell_if_first(session: Session, added: str, say: Callable[[str], object]) -> None:
    """Say what the account that was added ends, if it is the first one."""
    if len(_accounts(session, None)) == 1:
        say(f"{added} is the first account: to submit, you too now need an account, COMPANY/NAME, and `fairlog login`")


def _accounts(session: Session, company: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = session.ask("accounts", **({} if company is None else {"company": company}))
    return found


@click.group(cls=VerbGroup)
@target_options()
def token() -> None:
    """Issue, revoke or list the tokens with which accounts prove who they are."""


@token.command("new")
@click.argument("account", type=params.read_text, shell_complete=complete("account"))
@click.option("--role", type=_ROLE, help="Role in which the token acts.  [default: the strongest of the account]")
@click.option(
    "--scope",
    "scopes",
    type=_read_scope,
    shell_complete=_complete_scope,
    multiple=True,
    metavar="VERB",
    help="What the token is good for. Repeatable.  [default: all that its role may do]",
)
@click.option(
    "--lifetime",
    type=params.read_duration,
    metavar="TIME",
    help="How long it is valid: 10m or 2h.  [default: the longest, 12 h for people]",
)
@params.flag("--invitation", help="A token that is good for one `fairlog login`, which replaces it.")
@on_cluster
def token_new(
    session: Session,
    *,
    account: str,
    role: CompanyRole | None,
    scopes: tuple[str, ...],
    lifetime: int | None,
    invitation: bool,
) -> None:
    """Issue a token for an account and print it; it cannot be shown again."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    made = new_token()
    session.send(
        commands.IssueToken(
            token=made.id,
            account=account,
            hash=made.hash,
            role=role,
            scopes=scopes or None,
            lifetime_s=lifetime,
            once=invitation,
        )
    )
    click.echo(made.text)


@token.command("list")
@click.argument("account", type=params.read_text, required=False, shell_complete=complete("account"))
@params.as_json
@on_cluster
def token_list(session: Session, *, account: str | None, as_json: bool) -> None:
    """List the valid tokens."""
    rows = session.ask("tokens", **({} if account is None else {"account": account}))
    if not rows and account is not None and all(each["account"] != account for each in _accounts(session, None)):
        raise UnknownAccount(account)
    shown = [{**each, "expires": render.moment(each["expires"]), "scopes": ", ".join(each["scopes"])} for each in rows]
    render.print_records(
        rows if as_json else shown,
        "token account role expires scopes",
        headings=("TOKEN", "ACCOUNT", "ROLE", "VALID UNTIL", "SCOPES"),
        empty="There is no valid token; `fairlog token new ACCOUNT` issues one.",
        as_json=as_json,
    )


@token.command("revoke")
@params.names_argument("token")
@on_cluster
def token_revoke(session: Session, *, token: tuple[str, ...]) -> int:
    """Revoke tokens by id; they end at once."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    check_listed(token, "token", lambda: session.ask("tokens"))
    return send_each(session, token, lambda each: commands.RevokeToken(token=each), "revoked")


class WorkerInvited(FairlogError):
    """The worker has an account, whose terms an invitation does not change."""

    def __init__(self, worker: str) -> None:
        super().__init__(
            f"worker {worker!r} was invited before, and its terms stay: `fairlog worker invite {worker}` invites it "
            f"again on those, `fairlog account remove worker/{worker}` makes room for others"
        )


@click.command("invite")
@click.argument("worker", type=params.read_text)
@params.text_option("--host", metavar="HOST", help="Host from which it registers.  [default: any]")
@params.number_option("--cores", help="The most cores that it may offer. Requires --memory.  [default: any]")
@params.size_option("--memory", "memory_mb", help="The most memory that it may offer. Requires --cores.")
@params.kinds_option(
    "--resource", "resources", metavar="KIND=N", help="The most of a kind that it may offer, such as gpu=4. Repeatable."
)
@on_cluster
def worker_invite(
    session: Session,
    *,
    worker: str,
    host: str | None,
    cores: int | None,
    memory_mb: int | None,
    resources: dict[str, int],
) -> None:
    """Add an account for a worker and print the invitation with which it joins.

    A worker that has an account is invited again, on the same terms. The account of a worker can be the first one, as
    by `fairlog account add`.
    """
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    account, made = f"worker/{worker}", new_token()
    terms = {"host": host, "cores": cores, "memory_mb": memory_mb, "resources": resources}
    added = True
    try:
        session.send(commands.AddAccount(account=account, **cast("Any", terms)))
    except DuplicateAccount:
        added = False
        if any(each for each in terms.values()):
            raise WorkerInvited(worker) from None
    session.send(commands.IssueToken(token=made.id, account=account, hash=made.hash, once=True))
    click.echo(made.text)
    if added:
        _tell_if_first(session, account, render.say)
