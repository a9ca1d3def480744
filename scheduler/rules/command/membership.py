"""What the commands on accounts, roles and tokens cause (semantics I2, I3, I5)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, assert_never

from scheduler.model import commands, events
from scheduler.model.errors import (
    DuplicateAccount,
    InvalidCommand,
    NotAllowed,
    UnknownAccount,
    UnknownCompany,
    UnknownToken,
)
from scheduler.model.resources import MAX_AMOUNT, Resources
from scheduler.rules.checks.kinds import amounts_named
from scheduler.rules.checks.validate import MAX_CORES, MAX_MEMORY_MB, check_name, check_number, check_range, shorten
from scheduler.rules.command.permission import MATRIX
from scheduler.rules.entities.accounts import KINDS, OF_A_COMPANY, RESERVED, WORD, Account
from scheduler.rules.state.departments import unknown_department

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from scheduler.model.events import Event
    from scheduler.model.sender import By, Role
    from scheduler.rules.state.cluster import ClusterState

HOUR_S = 3600
PERSON_S, ROBOT_S, WORKER_S, INVITATION_S = 12 * HOUR_S, 90 * 24 * HOUR_S, 7 * 24 * HOUR_S, 24 * HOUR_S
"""The longest that a token lives (semantics I5)."""
MOST_TOKENS = 20
"""The most valid tokens of an account."""
MOST_ACCOUNTS = 10_000
"""The most accounts of a company."""

_TOKEN = re.compile(r"[a-z0-9]{8,32}")
_HASH = re.compile(r"[0-9a-f]{64}")


def decided(  # noqa: C901, PLR0911 - one case a command
    state: ClusterState, command: commands.AccountCommand, by: By, at: int
) -> list[Event]:
    """The events of the command of the sender `by` at `at` (ms). Raises: CommandRejected."""
    match command:
        case commands.AddAccount():
            return _add(state, command, by)
        case commands.ChangeAccount(account=name, display=display):
            _account(state, name)
            _check_display(display)
            return [events.AccountChanged(account=name, display=display)]  # how it was shown may be withheld
        case commands.RemoveAccount(account=name):
            _account(state, name)
            return [events.AccountRemoved(account=name)]
        case commands.GrantRole():
            return _grant(state, command, by)
        case commands.RevokeRole(account=name, role=role, department=department):
            held = _holds(state, command)
            return [events.RoleRevoked(account=name, role=role, department=department)] if held else []
        case commands.IssueToken():
            return [_issue(state, command, by, at)]
        case commands.RevokeToken(token=token):
            if token not in state.accounts.tokens:
                raise UnknownToken(token[:80])
            return [events.TokenRevoked(token=token)]
        case commands.ShowApps(company=company, shown=shown):
            if company not in state.companies:
                raise UnknownCompany(company[:80])
            already = (company in state.accounts.shown) == shown
            return [] if already else [events.AppsShown(company=company, shown=shown)]
        case _:
            assert_never(command)


def _grant(state: ClusterState, command: commands.GrantRole, by: By) -> list[Event]:
    name, role, department = command.account, command.role, command.department
    account, held = _account(state, name), _holds(state, command)
    _check_gives(state, by, role)
    if account.company is None:
        raise InvalidCommand(f"account {name!r} belongs to no company, so its role cannot change")
    if department and role not in account.roles:
        raise InvalidCommand(
            f"account {name!r} is no admin of its company, as an admin of a department is; "
            f"`fairlog account grant {name} admin` first"
        )
    return [] if held else [events.RoleGranted(account=name, role=role, department=department)]


def _holds(state: ClusterState, command: commands.GrantRole | commands.RevokeRole) -> bool:
    """Whether the account has the role, or is an admin of the department.

    Raises: UnknownAccount; InvalidCommand if it is no department, or not the role that a department has.
    """
    account, department = _account(state, command.account), command.department
    if not department:
        return command.role in account.roles
    if command.role != "admin":
        raise InvalidCommand(f"a department has admins, no {command.role}s; leave the department out")
    if department not in state.departments:
        raise InvalidCommand(unknown_department(department))
    return department in account.departments


def _add(state: ClusterState, command: commands.AddAccount, by: By) -> list[Event]:
    name, (kind, _, rest) = command.account, command.account.partition("/")
    if not WORD.fullmatch(kind) or not WORD.fullmatch(rest):
        raise InvalidCommand(
            "an account is named COMPANY/NAME, op/NAME, auditor/NAME or worker/ID, each part of 1 to 63 lower-case "
            f"letters, digits, '.', '_' or '-', not {shorten(name)}"
        )
    if name in state.accounts.known:
        raise DuplicateAccount(name)
    _check_display(command.display)
    company = None if kind in KINDS else kind
    if company is not None and (company not in state.companies or company in RESERVED):
        raise UnknownCompany(company)
    if company is not None and len(state.accounts.of_company(company)) >= MOST_ACCOUNTS:
        raise InvalidCommand(f"company {company!r} has {MOST_ACCOUNTS} accounts, the most; remove one first")
    if company is None and command.role is not None:
        raise InvalidCommand(f"an account {kind}/… has the role {KINDS[kind][0]}; leave the role out")
    stated = command.cores, command.memory_mb
    if kind != "worker" and (command.host is not None or stated != (None, None) or command.resources):
        raise InvalidCommand(f"only the account of a worker has a host and an offer, not {name!r}")
    offer = None
    if command.cores is not None and command.memory_mb is not None:
        check_range("an offer's cores", command.cores, 1, MAX_CORES)
        check_range("an offer's memory, in MiB,", command.memory_mb, 1, MAX_MEMORY_MB)
        others = amounts_named(state.kinds, "an offer's", command.resources, 0, MAX_AMOUNT)
        offer = Resources(command.cores, command.memory_mb, others)
    elif stated != (None, None) or command.resources:
        raise InvalidCommand("the most that a worker may offer needs both --cores and --memory")
    if command.host is not None:
        check_name("the host", command.host)
    role: Role = command.role or (OF_A_COMPANY if company is not None else KINDS[kind])[0]
    _check_gives(state, by, role)
    return [
        events.AccountAdded(
            account=name,
            company=company,
            display=command.display,
            robot=command.robot,
            host=command.host,
            offer=offer,
        ),
        events.RoleGranted(account=name, role=role),
    ]


def _issue(state: ClusterState, command: commands.IssueToken, by: By, at: int) -> events.TokenIssued:
    accounts, account = state.accounts, _account(state, command.account)
    check_number("scopes", command.scopes or (), len(MATRIX))
    if not _TOKEN.fullmatch(command.token) or not _HASH.fullmatch(command.hash):
        raise InvalidCommand("a token needs an id of 8 to 32 lower-case letters and digits, and a hex SHA-256")
    if command.token in accounts.tokens:
        raise InvalidCommand(f"a token {command.token!r} exists already; draw another id")
    mine = accounts.tokens.get(by.token) if by.account == account.id else None
    if not account.roles:
        raise InvalidCommand(f"account {account.id!r} has no role; give it one with `fairlog account grant`")
    strongest: Role = max(account.roles, key=_strength)
    role: Role = command.role or (mine.role if mine else strongest)
    if role not in account.roles:
        raise InvalidCommand(f"account {account.id!r} has the roles {', '.join(account.roles)}, not {role}")
    most = tuple(verb for verb, reaches in MATRIX.items() if role in reaches)
    scopes = command.scopes if command.scopes is not None else (mine.scopes if mine else most)
    if unknown := [scope for scope in scopes if scope not in most]:
        raise InvalidCommand(f"a token of role {role} has scopes of {', '.join(most)}, not {shorten(unknown[0])}")
    if mine is not None and (role != mine.role or not set(scopes) <= set(mine.scopes)):
        raise NotAllowed(f"a token that the token {mine.id} issues has role {mine.role} and no further scopes")
    _check_gives_scopes(state, by, scopes)
    if mine is not None and mine.once and (command.once or command.replaces != mine.id):
        raise NotAllowed(f"the token {mine.id} is an invitation: it is good for one token that replaces it")
    replaced = None if command.replaces is None else accounts.tokens.get(command.replaces)
    if command.replaces is not None and (replaced is None or replaced.account != account.id):
        raise UnknownToken(command.replaces[:80])
    longest_s = WORKER_S if role == "worker" else ROBOT_S if account.robot else PERSON_S
    longest_s = INVITATION_S if command.once else longest_s
    check_range("the lifetime of the token, in seconds,", command.lifetime_s, 1, longest_s)
    if len(accounts.tokens_of(account.id, at)) - (replaced is not None) >= MOST_TOKENS:
        raise InvalidCommand(f"account {account.id!r} has {MOST_TOKENS} valid tokens, the most; revoke one first")
    return events.TokenIssued(
        token=command.token,
        account=account.id,
        role=role,
        scopes=tuple(verb for verb in most if verb in scopes),
        expires=at + 1000 * (longest_s if command.lifetime_s is None else command.lifetime_s),
        hash=command.hash,
        once=command.once,
        replaces=command.replaces,
    )


def _scopes_to_give(state: ClusterState, by: By) -> Collection[str]:
    """The scopes that the sender can give to others (semantics I5)."""
    token = state.accounts.tokens.get(by.token)
    if token is None or all(verb in token.scopes for verb, reaches in MATRIX.items() if token.role in reaches):
        return MATRIX
    return token.scopes


def _check_gives(state: ClusterState, by: By, role: Role) -> None:
    """Raises: NotAllowed if the sender's token cannot give the role (semantics I5)."""
    if role in {"admin", "operator"} and _scopes_to_give(state, by) is not MATRIX:
        raise NotAllowed(f"the token {by.token} has not all scopes of its role, and cannot give the role {role}")


def _check_gives_scopes(state: ClusterState, by: By, scopes: Sequence[str]) -> None:
    """Raises: NotAllowed if the sender's token cannot give the scopes (semantics I5)."""
    ours = _scopes_to_give(state, by)
    if lacking := [scope for scope in scopes if scope not in ours]:
        raise NotAllowed(f"a token that the token {by.token} issues has no scope that it lacks, such as {lacking[0]}")


def _strength(role: Role) -> int:
    return OF_A_COMPANY.index(role) if role in OF_A_COMPANY else 0


def _account(state: ClusterState, name: str) -> Account:
    try:
        return state.accounts.known[name]
    except KeyError:
        raise UnknownAccount(name[:80]) from None


def _check_display(text: str) -> None:
    if text:
        check_name("the name that is shown", text)
