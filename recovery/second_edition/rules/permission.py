"""Who may do what: one table, by which commands are decided, reads are answered and the audit checks (semantics I3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from recovery.second_edition.rules.accounts import KINDS
from scheduler.model import commands
from scheduler.model.errors import NotAllowed
from scheduler.model.resources import Resources, amounts_of
from scheduler.model.sender import ASSUMED

if TYPE_CHECKING:
    from recovery.second_edition.rules.entities import App
    from recovery.second_edition.rules.state import ClusterState
    from scheduler.model.commands import Command
    from scheduler.model.sender import By, Role

Verb = Literal[
    "submit",
    "kill",
    "read",
    "private",
    "cluster-read",
    "statement",
    "tokens",
    "users",
    "cluster",
    "archive",
    "work",
    "lead",
]
"""What can be allowed, and so the scopes of tokens (semantics I3)."""
Reach = Literal["own", "shown", "company", "all", "granted"]
"""What it reaches: what the account itself has; that, or the company's if the company shows its apps to its users; what
the account's company has; everything; what runs on the worker."""

MATRIX: Mapping[Verb, Mapping[Role, Reach]] = {
    "submit": {"user": "own", "admin": "company"},
    "kill": {"user": "own", "admin": "company", "operator": "all"},
    "read": {"user": "shown", "admin": "company", "operator": "all", "auditor": "all", "worker": "granted"},
    "private": {"user": "own", "admin": "company", "operator": "all", "worker": "granted"},
    "cluster-read": {"user": "all", "admin": "all", "operator": "all", "auditor": "all"},
    "statement": {"admin": "company", "operator": "all", "auditor": "all"},
    "tokens": {"user": "own", "admin": "own", "operator": "own", "auditor": "own", "worker": "own"},
    "users": {"admin": "company", "operator": "all"},
    "cluster": {"operator": "all"},
    "archive": {"operator": "all"},
    "work": {"worker": "own"},
    "lead": {"master": "all"},
}
"""Verb -> role -> what it reaches; a role that is not there may not."""
WITH_REASON: frozenset[tuple[Verb, Role]] = frozenset({("kill", "operator"), ("private", "operator")})
"""What must be given a reason."""
MEANING: Mapping[Verb, str] = {
    "submit": "submit, scale, extend, hold, release, reprioritize and finish apps, and kill executors",
    "kill": "kill and signal apps",
    "read": "see apps",
    "private": "see logs and private parts of apps",
    "cluster-read": "see shares and the public log, audit, replay and compare",
    "statement": "see statements",
    "tokens": "issue and revoke their tokens",
    "users": "manage users, their tokens and limits",
    "cluster": "manage companies, quotas, settings, kinds and workers",
    "archive": "manage operators, auditors and the accounts of workers, archive, back up and restore",
    "work": "register and report",
    "lead": "declare workers and owners lost",
}

VERB_OF: Mapping[type[Any], Verb] = {
    commands.SubmitApp: "submit",
    commands.ScaleApp: "submit",
    commands.ExtendApp: "submit",
    commands.HoldApp: "submit",
    commands.ReleaseApp: "submit",
    commands.ReprioritizeApp: "submit",
    commands.KillExecutors: "submit",
    commands.FinishApp: "submit",
    commands.KillApp: "kill",
    commands.SignalApp: "kill",
    commands.CancelTask: "kill",
    commands.AddAccount: "users",
    commands.ChangeAccount: "users",
    commands.RemoveAccount: "users",
    commands.GrantRole: "users",
    commands.RevokeRole: "users",
    commands.IssueToken: "users",
    commands.RevokeToken: "users",
    commands.ShowApps: "users",
    commands.SetLimit: "cluster",
    commands.ConfigureCluster: "cluster",
    commands.ChangeEdition: "cluster",
    commands.RegisterKind: "cluster",
    commands.RegisterCompany: "cluster",
    commands.ChangeCompany: "cluster",
    commands.RemoveCompany: "cluster",
    commands.DrainWorker: "cluster",
    commands.DecommissionWorker: "cluster",
    commands.UndrainWorker: "cluster",
    commands.RemoveWorker: "cluster",
    commands.RestoreLog: "archive",
    commands.AcceptLog: "archive",
    commands.LoseWorker: "lead",
    commands.LoseOwner: "lead",
    commands.RegisterWorker: "work",
    commands.EndApp: "work",
    commands.StartedExecutor: "work",
    commands.EndedExecutor: "work",
    commands.ReportBacklog: "work",
    commands.EndedDriver: "work",
}


class Subject(NamedTuple):
    """Whom a command or a read concerns: a company, a user of it, a worker; "" = nobody in particular."""

    company: str = ""
    user: str = ""
    worker: str = ""


def permit(state: ClusterState, command: Command, by: By, at: int) -> None:
    """Raises: NotAllowed unless `by` may send the command at `at` (ms), once there are accounts (semantics I3)."""
    if by is ASSUMED:
        return
    verb, subject = asked(state, command, by)
    _allow(state, by, verb, subject, at, joining=_joins(command, by))
    if isinstance(command, commands.KillApp | commands.SignalApp | commands.CancelTask):
        check_reason(by, verb, command.reason)
    elif isinstance(command, commands.SubmitApp):
        if f"{command.company}/{command.user}" not in state.accounts.known:
            raise NotAllowed(
                f"there is no account {command.company}/{command.user}; an admin of {command.company} adds it with "
                f"`fairlog account add {command.company}/{command.user}`"
            )
    elif by.role == "worker":
        _check_worker(state, command, subject.worker)


def asked(  # noqa: C901 - one case a kind of command
    state: ClusterState, command: Command, by: By
) -> tuple[Verb, Subject]:
    """The verb of the command for the sender, and whom it concerns."""
    verb, subject = VERB_OF[type(command)], Subject()
    match command:
        case commands.SubmitApp(company=company, user=user):
            subject = Subject(company, user)
        case commands.ExtendApp(beyond_maximum=True):
            verb = "cluster"
        case commands.SetLimit(scope="user", company=str() as company, user=user):
            verb, subject = "users", Subject(company, user or "")
        case commands.IssueToken(account=account):
            verb, subject = of_account(account, by)
        case commands.RevokeToken(token=token):
            verb, subject = of_account(
                state.accounts.tokens[token].account if token in state.accounts.tokens else by.account, by
            )
        case commands.ShowApps(company=company):
            subject = Subject(company)
        case _ if verb == "users":
            verb, subject = of_account(command.account, by, own=False)  # type: ignore[union-attr]
        case _ if isinstance(name := getattr(command, "app", None), str):
            app = state.apps.get(name)
            company, _, user = by.account.partition("/")  # an unknown app is refused as such
            subject = Subject(company, user) if app is None else Subject(app.spec.company, app.spec.user)
    if by.role == "worker":
        verb = "work" if isinstance(command, commands.DrainWorker | commands.RemoveWorker) else verb
        if verb == "work":
            subject = Subject(worker=_worker_of(state, command, by))
    return verb, subject


def may_read(state: ClusterState, by: By, verb: Verb, subject: Subject, at: int, *, reason: str = "") -> None:
    """Raises: NotAllowed unless `by` may read that at `at` (ms), once there are accounts (semantics I3)."""
    if state.closed:
        _allow(state, by, verb, subject, at)
        check_reason(by, verb, reason)


def check_reason(by: By, verb: Verb, reason: str) -> None:
    """Raises: NotAllowed if the role states a reason for the verb and none is given."""
    if by.role and (verb, by.role) in WITH_REASON and not reason.strip():
        raise NotAllowed(f"an operator gives a reason to {MEANING[verb]}; add --reason TEXT")


def _allow(state: ClusterState, by: By, verb: Verb, subject: Subject, at: int, *, joining: bool = False) -> None:
    _check_sender(state, by, verb, at, joining=joining)
    reach = MATRIX[verb].get(by.role) if by.role else None
    if reach is None:
        instead = "; `fairlog login` as a user of the company" if (verb, by.role) == ("submit", "operator") else ""
        raise NotAllowed(f"{by.account} acts as {by.role} and may not {MEANING[verb]}{instead}")
    account = state.accounts.known.get(by.account)
    company = account.company if account is not None else None
    match reach:
        case "all":
            fits = True
        case "company":
            fits = subject.company == company
        case "own" | "shown" if verb == "tokens":
            fits = True
        case "own" | "shown" | "granted" if by.role == "worker":
            fits = by.account == f"worker/{subject.worker}"
        case _:
            mine = account is not None and subject.user == account.name
            shown = reach == "shown" and company is not None and company in state.accounts.shown
            fits = subject.company == company and (mine or shown)
    if not fits:
        whose = f"worker {subject.worker}" if subject.worker else f"{subject.company}/{subject.user}".rstrip("/")
        raise NotAllowed(f"{by.account} acts as {by.role} and may not {MEANING[verb]} of {whose or 'anybody else'}")


def _check_sender(state: ClusterState, by: By, verb: Verb, at: int, *, joining: bool) -> None:
    """Raises: NotAllowed unless the sender has a valid token for the verb, or needs none (semantics I2, I5)."""
    if not by.token:
        without = by.account.partition("/")[0], by.role
        if without in (("local", "operator"), ("master", "master")) or (without == ("worker", "worker") and by.door):
            return
        raise NotAllowed("nobody is named who sends this; run `fairlog login`")
    token, account = state.accounts.tokens.get(by.token), state.accounts.known.get(by.account)
    if token is None or account is None or (token.account, token.role) != (by.account, by.role):
        raise NotAllowed(f"the token {by.token} of {by.account} is not valid; run `fairlog login`")
    if at >= token.expires:
        raise NotAllowed(f"the token {by.token} of {by.account} has expired; run `fairlog login`")
    if token.once and not joining:
        raise NotAllowed(f"the token {by.token} of {by.account} is an invitation; run `fairlog login` with it first")
    if verb not in token.scopes and by.role in MATRIX[verb]:
        raise NotAllowed(f"the token {by.token} of {by.account} has no scope {verb}; it has {', '.join(token.scopes)}")


def _joins(command: Command, by: By) -> bool:
    """Whether an invitation may send the command: it asks for a token of its own account (semantics I5)."""
    return isinstance(command, commands.IssueToken) and command.account == by.account


def of_account(account: str, by: By, *, own: bool = True) -> tuple[Verb, Subject]:
    """The verb for an account, and whose it is."""
    if own and account == by.account:
        return "tokens", Subject()
    company, _, user = account.partition("/")
    return ("archive", Subject()) if company in KINDS else ("users", Subject(company, user))


def _worker_of(state: ClusterState, command: Command, by: By) -> str:
    """The worker that a report concerns."""
    named: str | None = getattr(command, "worker", None)
    if isinstance(command, commands.ReportBacklog):
        held = state.executors.get(command.executor)
        return "" if held is None else held.worker
    if isinstance(command, commands.EndApp):
        app = state.apps.get(command.app)
        own = by.account.partition("/")[2]
        return own if app is None or app.ended is not None or _runs_on(app, own) else ""
    return named or ""


def _runs_on(app: App, worker: str) -> bool:
    return (app.driver is not None and app.driver.worker == worker) or any(
        executor.worker == worker for executor in app.executors.values()
    )


def _check_worker(state: ClusterState, command: Command, worker: str) -> None:
    """Raises: NotAllowed if a worker registers from another host, or offers more, than its account has (I4)."""
    account = state.accounts.known.get(f"worker/{worker}")
    if account is None or not isinstance(command, commands.RegisterWorker):
        return
    if account.host is not None and command.host != account.host:
        raise NotAllowed(
            f"worker {worker!r} was invited from host {account.host!r}, and registers from {command.host!r}; start it "
            f"there, with --host if that machine has another name"
        )
    others = amounts_of({kind: len(addresses) for kind, addresses in command.resources.items()})
    offer = Resources(command.cores, command.memory_mb, others)
    if account.offer is not None and not account.offer.covers(offer):
        raise NotAllowed(
            f"worker {worker!r} offers {offer}, but was invited to offer at most {account.offer}; offer less, with "
            "--cores, --memory and --resource"
        )
