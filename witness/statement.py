"""The resource use of a company, a department or the cluster in one month, with the span of the log that proves it.

"Requested" counts from an app's admission to its removal, "granted" until its executors and drivers are gone (semantics
O1). Amounts are whole core-ms, MiB-ms and, of further kinds, amount-ms (R4); hours are rounded. The statement names the
position and digest of its last entry, so that it can be verified against the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, Literal

from msgspec import to_builtins

from recovery.replay.bounds import Bound
from recovery.replay.window import Span, measure
from scheduler.model.errors import InvalidCommand, UnknownCompany
from scheduler.model.resources import NOTHING
from scheduler.rules.entities.apps import NO_SPENT, Spent
from scheduler.rules.state.departments import unknown_department
from scheduler.rules.view.views import spent
from scheduler.store.codec import Fact
from witness.audit.audit import Audited
from witness.hours import AMOUNTS, hours
from witness.usage import AppUsage, PlacedMeter, UsageMeter

Level = Literal["department", "company", "user"]
"""What the lowest lines of a department's statement are about."""


def of_month(facts: Iterable[Fact], company: str, month: str, span: tuple[Bound, Bound]) -> dict[str, Any]:
    """The statement of the month, which is `span`, from the log, and the first verdict on the log.

    Raises: UnknownCompany; InvalidCommand if the log has no entry in the month; as `fold`.
    """
    (first, last), accounts, audited = span, UsageMeter(), Audited(facts)
    try:
        _, held = measure(audited, accounts, first=first, last=last)
    except InvalidCommand:
        raise InvalidCommand(f"the log has no entry in {month}") from None
    if company not in accounts.companies:
        raise UnknownCompany(company)
    return {"verdict": audited.verdict, **statement(accounts, held, company=company, month=month)}


def statement(accounts: UsageMeter, span: Span, *, company: str, month: str) -> dict[str, Any]:
    """The statement as JSON values: each app that held anything, the sums by user, and the total."""
    apps = [
        account
        for account in accounts.accrued(span.last_at)
        if account.company == company and (account.requested_ms.cores or account.granted_ms.cores)
    ]
    users: dict[str, list[AppUsage]] = {}
    for account in apps:
        users.setdefault(account.user, []).append(account)
    return {
        "company": company,
        "month": month,
        "log": span.as_json(),
        "total": _amounts(apps),
        "users": [
            {
                "user": user,
                **_amounts(held),
                "apps": [{"app": account.app, **_amounts([account])} for account in held],
            }
            for user, held in sorted(users.items())
        ],
    }


def of_departments(
    facts: Iterable[Fact], department: str, month: str, span: tuple[Bound, Bound], by: Level
) -> dict[str, Any]:
    """The statement of a department in the month, which is `span`, or of the cluster, which is "" (semantics H12).

    Raises: InvalidCommand if there never was such a department, or the log has no entry in the month; as `fold`.
    """
    (first, last), accounts, audited = span, PlacedMeter(), Audited(facts)
    try:
        _, held = measure(audited, accounts, first=first, last=last)
    except InvalidCommand:
        raise InvalidCommand(f"the log has no entry in {month}") from None
    if department and department not in accounts.departments:
        raise InvalidCommand(unknown_department(department))
    return {"verdict": audited.verdict, **department_statement(accounts, held, department, month=month, by=by)}


def department_statement(
    accounts: PlacedMeter, span: Span, department: str, *, month: str, by: Level
) -> dict[str, Any]:
    """The statement as JSON values: its total, and in `rows` the sums of all below it down to the level `by`.

    A company counts in the departments that it was in at the time. So the rows directly below one add up to it; it
    follows them. What held nothing is left out.
    """
    within: dict[tuple[tuple[str, ...], str, str], list[AppUsage]] = {}
    found: list[AppUsage] = []
    for account in accounts.accrued(span.last_at):
        place = account.departments
        if (department and department not in place) or not account.counts:
            continue
        found.append(account)
        below = place[place.index(department) + 1 :] if department else place
        keys = [(below[: depth + 1], "", "") for depth in range(len(below))]
        keys += [(below, account.company, "")] if by != "department" else []
        keys += [(below, account.company, account.user)] if by == "user" else []
        for key in keys:
            within.setdefault(key, []).append(account)
    return {
        "department": department,
        "month": month,
        "by": by,
        "log": span.as_json(),
        "total": _amounts(found),
        "rows": [
            {
                "level": "user" if user else "company" if company else "department",
                "departments": list(place),
                "company": company,
                "user": user,
                **_amounts(held),
            }
            for (place, company, user), held in sorted(within.items(), key=lambda each: _order(*each[0]))
        ],
    }


def _order(place: tuple[str, ...], company: str, user: str) -> list[tuple[int, str]]:
    """The order of lines: departments within one, then its companies with their users before them, then itself."""
    names = [*[(0, each) for each in place], *([(1, company)] if company else []), *([(0, user)] if user else [])]
    return [*names, (2, "")]


def _amounts(accounts: Iterable[AppUsage]) -> dict[str, Any]:
    """What these apps held, what they lost to claims of others (semantics H7), and what they used of it (O5)."""
    held_by = list(accounts)
    requested = sum((account.requested_ms for account in held_by), NOTHING)
    granted = sum((account.granted_ms for account in held_by), NOTHING)
    amounts = requested.cores, requested.memory_mb, granted.cores, granted.memory_mb
    sums = dict(zip(AMOUNTS, amounts, strict=True))
    lost = {
        "executorsLost": sum(each.lost for each in held_by),
        "lostCoreMs": sum(each.lost_core_ms for each in held_by),
    }
    kinds = {"requestedResourceMs": dict(requested.others), "grantedResourceMs": dict(granted.others)}
    used = spent(reduce(Spent.plus, (each.spent for each in held_by), NO_SPENT))
    told = {} if used is None or not used.told_core_ms else {"spent": to_builtins(used)}
    return {**hours(sums), **sums, **(kinds if requested.others or granted.others else {}), **lost, **told}
