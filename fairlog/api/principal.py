"""Who asks, and whether they may. A thin stand-in for the rules about accounts, which take its place."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from scheduler.model.commands import Command
from scheduler.model.errors import CommandRejected, FairlogError
from scheduler.rules.state import ClusterState


class NotAllowed(CommandRejected):
    """The account may not do that."""


class NotAuthenticated(FairlogError):
    """The caller is not known: no token, or one that is unknown, revoked or expired."""


class By(Struct, frozen=True, array_like=True):
    """Who sent a command."""

    account: str = ""
    token: str = ""
    role: str = ""
    door: str = ""


class Principal(NamedTuple):
    """Who asks: the account, with the token's scopes; None = all that the account may."""

    by: By
    scopes: frozenset[str] | None = None

    @property
    def company(self) -> str:
        """The company of the account; "" if it has none."""
        kind, _, _ = self.by.account.partition("/")
        return "" if kind in {"local", "op", "worker", "auditor", "master"} else kind


def authenticate(state: ClusterState, text: str, at: int) -> Principal:  # noqa: ARG001 (nobody has a token yet)
    """The owner of the token. Raises: NotAuthenticated."""
    raise NotAuthenticated("the token is not known")


def may_read(state: ClusterState, who: Principal, verb: str, *, company: str = "", user: str = "", at: int) -> None:
    """Raises: NotAllowed unless `who` may read that."""


def permit(state: ClusterState, command: Command, who: Principal, at: int) -> None:
    """Raises: NotAllowed if `who` may certainly not send that command."""
