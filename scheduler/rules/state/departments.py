"""Departments: the tree between the cluster and its companies, as commands and events change it (semantics H12).

What follows for entitlements is in `stage.caps` and `share.fill`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from msgspec.structs import replace

from scheduler.model import commands
from scheduler.model.errors import InvalidCommand, UnknownCompany
from scheduler.model.events import CompanyMoved, DepartmentAdded, DepartmentChanged, DepartmentRemoved, Event
from scheduler.model.text import counted
from scheduler.rules.checks.kinds import check_beside_cores, quota_stated
from scheduler.rules.checks.validate import check_identifier, read_part, shorten

if TYPE_CHECKING:
    from scheduler.rules.entities.ledger import Occupation
    from scheduler.rules.state.facts import Facts

MAX_DEPTH = 8
"""The most departments one within the other."""
MAX_DEPARTMENTS = 1000
BORROW, LEND = "borrow-limit", "lend-limit"
_MOST = {BORROW: 1000, LEND: 1}
"""The largest limit of what is borrowed and of what is lent, in quotas."""
NONE = "none"
_LIMIT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?%|[0-9]{1,9}(/0*[1-9][0-9]{0,8})?")


def decided(state: Facts, command: commands.DepartmentCommand) -> list[Event]:
    """The events of the command. Raises: InvalidCommand, UnknownCompany, UnknownKind."""
    if isinstance(command, commands.MoveCompany):
        return _moved(state, command)
    if isinstance(command, commands.AddDepartment):
        check_identifier("the name of the department", command.department)
        if command.department == NONE:
            raise InvalidCommand(f"{NONE!r} means no department; choose another name")
        if command.department in state.departments:
            raise InvalidCommand(f"there is a department {command.department!r} already; choose another name")
        added = _stated(state, command, DepartmentAdded(department=command.department))
        check_place(state, added)
        return [added]
    known = state.departments.get(command.department)
    if known is None:
        raise InvalidCommand(unknown_department(command.department))
    if isinstance(command, commands.ChangeDepartment):
        changed = _stated(state, command, known.spec)
        check_place(state, changed)
        return [] if changed == known.spec else [DepartmentChanged(**{n: getattr(changed, n) for n in _FIELDS})]
    check_empty(state, command.department)
    return [DepartmentRemoved(department=command.department)]


_FIELDS = DepartmentAdded.__struct_fields__


def unknown_department(name: str) -> str:
    """What is said of a name that no department has."""
    return f"there is no department {shorten(name)}; `fairlog department list` lists the departments"


def _moved(state: Facts, command: commands.MoveCompany) -> list[Event]:
    company = state.companies.get(command.company)
    if company is None:
        raise UnknownCompany(command.company[:80])
    if command.department and command.department not in state.departments:
        raise InvalidCommand(unknown_department(command.department))
    if company.department == command.department:
        return []
    return [CompanyMoved(company=command.company, department=command.department)]


def _stated(
    state: Facts, command: commands.AddDepartment | commands.ChangeDepartment, known: DepartmentAdded
) -> DepartmentAdded:
    """The department as it is `known`, with what the command says of it."""
    if command.parent is not None:
        known = replace(known, parent=command.parent)
    check_beside_cores(command)
    before, amounts = known, quota_stated(state.kinds, command)
    if amounts is not None:
        known = replace(known, amounts=amounts, part=None, kinds=tuple(sorted(command.resources)))
    elif command.part is not None:
        part = None if command.part == NONE else read_part(command.part)
        known = replace(known, amounts=None, part=part, kinds=())
    if command.borrow_limit is not None:
        known = replace(known, borrow_limit=read_own_limit(BORROW, command.borrow_limit))
    elif _is_summed(before) != _is_summed(known):
        known = replace(known, borrow_limit=None if _is_summed(known) else "0/1")
    if command.lend_limit is not None:
        known = replace(known, lend_limit=read_own_limit(LEND, command.lend_limit))
    return known


def _is_summed(spec: DepartmentAdded) -> bool:
    """Whether its quota is the sum of what is in it."""
    return spec.amounts is None and spec.part is None


def read_own_limit(limit: str, text: str) -> str | None:
    """What is borrowed or lent at most, given as "25%" or "1/4", as "n/d" in lowest terms; None if it is "none".

    Raises: InvalidCommand.
    """
    most = _MOST[limit]
    if text == NONE:
        return None
    if not _LIMIT.fullmatch(text):
        raise InvalidCommand(f"--{limit} is a part of the quota, such as 25% or 1/4, or none, not {shorten(text)}")
    part = Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)
    if part > most or part.denominator > 1_000_000:
        raise InvalidCommand(
            f"--{limit} is a part of the quota from 0% to {most * 100}%, in whole millionths, not {shorten(text)}"
        )
    return f"{part.numerator}/{part.denominator}"


def _is_written(limit: str, text: str | None) -> bool:
    """Whether an event's limit is written as commands make it."""
    if text is None:
        return True
    try:
        return "/" in text and read_own_limit(limit, text) == text
    except InvalidCommand:
        return False


def check_limits(spec: DepartmentAdded) -> bool:
    """Whether both limits of an event are written as commands make them."""
    return _is_written(BORROW, spec.borrow_limit) and _is_written(LEND, spec.lend_limit)


def check_place(state: Facts, spec: DepartmentAdded) -> None:
    """Raises: InvalidCommand unless it can be in its parent: no circle, not too deep, not too many departments."""
    if spec.department not in state.departments and len(state.departments) >= MAX_DEPARTMENTS:
        raise InvalidCommand(f"there are {MAX_DEPARTMENTS} departments, the most; remove one first")
    if not spec.parent:
        return
    parent = state.departments.get(spec.parent)
    if parent is None:
        raise InvalidCommand(unknown_department(spec.parent))
    chain = [each.name for each in parent.chain]
    if spec.department in chain:
        raise InvalidCommand(
            f"department {spec.department!r} cannot be in {spec.parent!r}, which is {spec.department!r} or within it; "
            "choose another --in"
        )
    below = [
        len(each.above) for each in state.departments.values() if spec.department in [one.name for one in each.chain]
    ]
    own = state.departments.get(spec.department)
    height = max(below, default=0) - (len(own.above) if own is not None else 0)
    if len(chain) + 1 + height > MAX_DEPTH:
        raise InvalidCommand(
            f"department {spec.department!r} in {spec.parent!r} would make "
            f"{counted(len(chain) + 1 + height, 'department')} one "
            f"within the other; {MAX_DEPTH} are the most"
        )


def check_empty(state: Facts, name: str) -> None:
    """Raises: InvalidCommand if a department or a company is in that one."""
    for other in state.departments.values():
        if other.spec.parent == name:
            raise InvalidCommand(
                f"department {other.name!r} is in {name!r}; `fairlog department remove {other.name}` first, or put it "
                f"elsewhere with `fairlog department set {other.name} --in PARENT`"
            )
    for company, each in state.companies.items():
        if each.department == name:
            raise InvalidCommand(
                f"company {company!r} is in department {name!r}; put it elsewhere first, with "
                f"`fairlog company move {company} NAME`, where `none` takes it out of all"
            )


def names_above(state: Facts, company: str) -> list[str]:
    """The departments that the company is in."""
    return [each.name for each in state.companies[company].above]


def limited_above(state: Facts, company: str) -> list[tuple[str, Occupation]]:
    """The departments above the company that have limits, and what the companies in them claim (semantics H12)."""
    return [
        (each.name, each.standing) for each in state.companies[company].above if ("", each.name) in state.limits.values
    ]
