"""Companies and their users, and the departments that they are in (semantics N, H12)."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.model.events import (
    CompanyChanged,
    CompanyRegistered,
    DepartmentAdded,
)
from scheduler.model.quota import UNBOUGHT, Quota
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities.apps import App
from scheduler.rules.entities.ledger import Balance, Occupation, Usage


@dataclass(slots=True, eq=False)
class User:
    """Somebody who submits apps on behalf of one company."""

    balance: Balance = field(default_factory=Balance)
    last_selected: int = 0
    last_selected_at: int = 0


@dataclass(slots=True, eq=False)
class Department:
    """A named part of the tree between the cluster and its companies, and what these hold together (semantics H12).

    Its `spec` is the fact; the rest follows from the companies in it.
    """

    spec: DepartmentAdded
    above: tuple[Department, ...] = ()
    """The departments that it is in, the nearest one first."""
    quota: Quota = UNBOUGHT
    cap: Quota | None = None
    """The most that it may hold; None if it may borrow without a limit."""
    kept: Resources = NOTHING
    """What of its quota is lent to nobody."""
    companies: int = 0
    balance: Balance = field(default_factory=Balance)
    standing: Occupation = field(default_factory=Occupation)
    """What its companies claim."""
    last_selected: int = 0
    leaving: Resources = NOTHING

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.department

    @property
    def chain(self) -> tuple[Department, ...]:
        """Itself and those that it is in, the nearest one first."""
        return (self, *self.above)

    @property
    def staying(self) -> Resources:
        """What its companies are granted but for what leaves."""
        return self.balance.granted - self.leaving


@dataclass(slots=True, eq=False)
class Company:
    """A tenant, the quota it bought, and its users."""

    spec: CompanyRegistered | CompanyChanged
    usage: Usage
    balance: Balance = field(default_factory=Balance)
    last_selected: int = 0
    apps: int = 0
    """How many apps it has that have not ended."""
    sizes: dict[Resources, int] = field(default_factory=dict)
    """What a smallest executor of its apps has that have not ended -> of how many (semantics H2)."""
    demands: dict[str, int] = field(default_factory=dict)
    """What its apps that have not ended demand of labels -> of how many (semantics P9)."""
    users: dict[str, User] = field(default_factory=dict)
    waiting: dict[str, App] = field(default_factory=dict)
    """Its apps in waitingApps, in the order of admission."""
    leaving: Resources = NOTHING
    """What its executors and drivers hold that were told to leave."""
    department: str = ""
    """The department that it is in, "" = none (semantics H12)."""
    above: tuple[Department, ...] = ()
    """The departments that it is in, the nearest one first."""

    @property
    def capped_above(self) -> bool:
        """Whether a department that it is in has a cap."""
        return bool(self.above) and {each.cap for each in self.above} != {None}

    @property
    def staying(self) -> Resources:
        """What it is granted but for that."""
        return self.balance.granted - self.leaving
