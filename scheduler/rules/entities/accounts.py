"""Accounts, their roles and their tokens, as the log tells them (semantics I)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.model import events
from scheduler.model.resources import Resources
from scheduler.model.sender import Role

KINDS: dict[str, tuple[Role, ...]] = {"op": ("operator",), "auditor": ("auditor",), "worker": ("worker",)}
"""What comes before the `/` of an account that belongs to no company -> the role that it has (semantics I2)."""
OF_A_COMPANY: tuple[Role, ...] = ("user", "admin")
"""The roles of other accounts, the least first."""
RESERVED = (*KINDS, "local", "master")
"""Names that no company with accounts can have."""
WORD = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""What each of the two parts of an account's name is (semantics I2)."""


@dataclass(slots=True)
class Account:
    """An account; `host` and `offer` bound what a worker registers (semantics I3), None = not."""

    id: str
    company: str | None
    display: str
    robot: bool
    roles: list[Role]
    host: str | None = None
    offer: Resources | None = None
    departments: list[str] = field(default_factory=list)
    """The departments of which it is an admin, too."""

    @property
    def name(self) -> str:
        """What follows the `/`."""
        return self.id.partition("/")[2]


class Token(NamedTuple):
    """A token (semantics I5): `expires` in ms, `hash` the hex SHA-256 of its text, `once` for an invitation."""

    id: str
    account: str
    role: Role
    scopes: tuple[str, ...]
    expires: int
    hash: str
    once: bool = False


class Accounts:
    """The accounts by name, and the tokens by id that are not revoked; some may have expired."""

    def __init__(self) -> None:
        self.known: dict[str, Account] = {}
        self.tokens: dict[str, Token] = {}
        self.shown: dict[str, None] = {}
        """The companies whose users see each other's apps (semantics I3)."""
        self.inhabited: dict[str, None] = {}
        """The companies that ever had an account: when one is removed, nobody else gets its name (semantics I2)."""
        self._of_account: dict[str, dict[str, None]] = {}
        """Account -> the ids of its tokens."""
        self._of_company: dict[str | None, dict[str, None]] = {}
        """Company -> the names of its accounts."""

    def of_company(self, company: str | None) -> Collection[str]:
        """The names of the company's accounts; None for those of no company."""
        return self._of_company.get(company, {})

    def tokens_of(self, account: str, at: int) -> list[Token]:
        """The tokens of the account that are valid at `at` (ms)."""
        return [token for token in self._tokens_of(account) if at < token.expires]

    def hold(self, account: Account) -> None:
        """Add the account."""
        self.known[account.id] = account
        self._of_company.setdefault(account.company, {})[account.id] = None

    def keep(self, token: Token) -> None:
        """Add the token."""
        self.tokens[token.id] = token
        self._of_account.setdefault(token.account, {})[token.id] = None

    def end(self, token: str) -> None:
        """Remove the token."""
        del self._of_account[self.tokens.pop(token).account][token]

    def add(self, event: events.AccountAdded) -> None:
        """Add the account, without a role."""
        stated = event.company, event.display, event.robot
        self.hold(Account(event.account, *stated, [], event.host, event.offer))
        if event.company is not None:
            self.inhabited[event.company] = None

    def remove(self, account: str) -> None:
        """Remove the account and its tokens."""
        del self._of_company[self.known.pop(account).company][account]
        for token in self._tokens_of(account):
            del self.tokens[token.id]
        self._of_account.pop(account, None)

    def grant(self, event: events.RoleGranted) -> None:
        """Add the role; or the department, to which no token reaches that others may have issued before."""
        account = self.known[event.account]
        if event.department:
            account.departments.append(event.department)
            self._end_role(event.account, "admin")
        else:
            account.roles.append(event.role)

    def forget_department(self, department: str) -> None:
        """Nobody is an admin of a department that is no more."""
        for account in self.known.values():
            if department in account.departments:
                account.departments.remove(department)

    def revoke(self, account: str, role: Role, department: str) -> None:
        """Take the department, or the role with the tokens that act in it and with all departments of an admin."""
        if department:
            self.known[account].departments.remove(department)
            return
        self.known[account].roles.remove(role)
        if role == "admin":
            self.known[account].departments.clear()
        self._end_role(account, role)

    def _end_role(self, account: str, role: Role) -> None:
        """End the tokens that act in the role."""
        for token in self._tokens_of(account):
            if token.role == role:
                self.end(token.id)

    def issue(self, event: events.TokenIssued, at: int) -> None:
        """Add the token in place of the one that it replaces, and forget those of the account that have expired."""
        for token in self._tokens_of(event.account):
            if token.expires <= at or token.id == event.replaces:
                self.end(token.id)
        stated = event.role, event.scopes, event.expires, event.hash, event.once
        self.keep(Token(event.token, event.account, *stated))

    def forget_company(self, company: str) -> None:
        """Remove everything of a company that is removed."""
        for account in [*self.of_company(company)]:
            self.remove(account)
        self.shown.pop(company, None)

    def _tokens_of(self, account: str) -> list[Token]:
        return [self.tokens[token] for token in self._of_account.get(account, ())]
