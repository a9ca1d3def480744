"""Who may do and see what: section I of docs/security.md read a second time, without the rules' own reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model import commands

if TYPE_CHECKING:
    from scheduler.model.commands import Command
    from scheduler.model.sender import By
    from scheduler.rules.state.cluster import ClusterState

OF_AN_APP = (
    commands.ScaleApp,
    commands.ExtendApp,
    commands.HoldApp,
    commands.ReleaseApp,
    commands.ReprioritizeApp,
    commands.KillExecutors,
    commands.FinishApp,
    commands.KillApp,
    commands.SignalApp,
    commands.CancelTask,
    commands.RequeueApp,
)
OF_AN_ACCOUNT = (
    commands.AddAccount,
    commands.ChangeAccount,
    commands.RemoveAccount,
    commands.GrantRole,
    commands.RevokeRole,
)
OF_A_WORKER = (
    commands.RegisterWorker,
    commands.StartedExecutor,
    commands.EndedExecutor,
    commands.EndedDriver,
    commands.EndApp,
    commands.ReportBacklog,
)
SOMEBODY = ("", "")


def owner_of(  # noqa: PLR0911 - a case a kind of command
    command: Command, state: ClusterState
) -> tuple[str, str] | None:
    """The company and the user whom a command concerns; None if it concerns the cluster."""
    match command:
        case commands.SubmitApp(company=company, user=user):
            return company, user
        case commands.SetLimit(scope="user", company=str() as company):
            return company, ""
        case commands.ShowApps(company=company):
            return company, ""
        case commands.IssueToken(account=account):
            return _split(account)
        case commands.RevokeToken(token=token):
            return _split(state.accounts.tokens[token].account) if token in state.accounts.tokens else SOMEBODY
        case _ if isinstance(command, OF_AN_ACCOUNT):
            return _split(command.account)
        case _ if isinstance(command, OF_AN_APP):
            found = state.apps.get(command.app)
            return SOMEBODY if found is None else (found.spec.company, found.spec.user)
        case _:
            return None


def why_not(  # noqa: C901, PLR0911, PLR0912 - one reason after the other
    state: ClusterState, command: Command, by: By, at: int
) -> str:
    """Why `by` may not send the command at `at` (ms) to a cluster with accounts; "" if it may."""
    kind, name = _split(by.account)
    if not by.role:
        return "it names no sender"
    if by.role == "master":
        return "" if isinstance(command, commands.LoseWorker) and kind == "master" else "masters do not ask for it"
    if not by.door:
        return "no door has signed it"
    if by.token:
        token, account = state.accounts.tokens.get(by.token), state.accounts.known.get(by.account)
        if token is None or account is None or token.account != by.account:
            return "the token is not valid"
        if at >= token.expires or token.role != by.role or by.role not in account.roles:
            return "the token has expired, or its account has lost the role"
        if (scope := _scope(command)) and scope not in token.scopes:
            return "the token has no scope for it"
        if token.once and not (isinstance(command, commands.IssueToken) and command.account == by.account):
            return "it is sent by an invitation"
    elif kind == "worker" or by.role == "worker":
        mine = isinstance(
            command, (*OF_A_WORKER, commands.DrainWorker, commands.RemoveWorker, commands.RequeueApp)
        ) or (isinstance(command, commands.UndrainWorker) and command.unwell)
        return "" if mine and getattr(command, "worker", name) == name else "it is not that worker's"
    elif (kind, by.role) != ("local", "operator"):
        return "it has no token"
    owner = owner_of(command, state)
    if by.role == "worker" and isinstance(command, commands.RegisterWorker):
        return _why_not_offered(state, command, by)
    if isinstance(command, OF_A_WORKER):
        return "only workers report"
    if owner == _split(by.account) and isinstance(command, commands.IssueToken | commands.RevokeToken):
        return ""
    match by.role:
        case "operator":
            if isinstance(command, commands.KillApp | commands.SignalApp | commands.CancelTask | commands.RequeueApp):
                return "" if command.reason else "it has no reason"
            beyond = isinstance(command, commands.ExtendApp) and command.beyond_maximum
            tenants = isinstance(command, (commands.SubmitApp, *OF_AN_APP)) and not beyond
            return "operators do not act for tenants" if tenants else ""
        case "admin" if owner is not None and owner[0] == kind:
            return ""
        case "user" if owner == (kind, name) and isinstance(command, (commands.SubmitApp, *OF_AN_APP)):
            return ""
    return f"{by.role} {by.account} may not do it to {owner or 'the cluster'}"


def _why_not_offered(state: ClusterState, command: commands.RegisterWorker, by: By) -> str:
    """Why the worker may not register with that offer; "" if it may."""
    account = state.accounts.known[by.account]
    if by.account != f"worker/{command.worker}" or account.host not in (None, command.host):
        return "it is another worker, or on another host"
    most = account.offer
    fits = most is None or (command.cores <= most.cores and command.memory_mb <= most.memory_mb)
    return "" if fits else "it offers more than it was invited for"


def sees(by: By, owner: tuple[str, str], *, private: bool = False, reason: str = "", shown: bool = False) -> bool:
    """Whether `by` may see an app of the owner, or what is private of it; `shown`: the company shows its apps."""
    kind, name = _split(by.account)
    match by.role:
        case "operator":
            return not private or bool(reason)
        case "auditor":
            return not private
        case "admin":
            return owner[0] == kind
        case "user":
            return owner == (kind, name) or (shown and not private and owner[0] == kind)
    return False


def _scope(command: Command) -> str:
    """The scope that a token needs for what concerns an app."""
    if isinstance(command, commands.KillApp):
        return "kill"
    return "submit" if isinstance(command, (commands.SubmitApp, *OF_AN_APP)) else ""


def _split(account: str) -> tuple[str, str]:
    kind, _, name = account.partition("/")
    return kind, name
