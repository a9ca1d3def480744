"""Setting limits, and what a submission must not exceed (semantics N1, N2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.errors import InvalidCommand, LimitExceeded, UnknownCompany
from scheduler.model.events import Event, LimitSet
from scheduler.model.text import counted
from scheduler.rules.admission.limits import (
    EVERYBODY,
    HIGHEST,
    NAMES,
    RATE,
    Holder,
    Limits,
    holder_text,
    kind_of,
)
from scheduler.rules.checks.validate import check_name, check_range, shorten
from scheduler.rules.state.departments import unknown_department

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Sequence

    from scheduler.model.commands import SetLimit
    from scheduler.model.events import AppRegistered
    from scheduler.rules.entities.ledger import Occupation
    from scheduler.rules.index.claims import Claims


PENDING_OF_USER, PENDING_OF_COMPANY = 1_000, 10_000
"""`max_pending_apps` where it is not set and the log has had accounts (semantics N1)."""


def check_limit(name: str, value: int | None, kinds: Collection[str]) -> None:
    """Raises: InvalidCommand unless a limit of that name may have the value (semantics N1)."""
    if name not in NAMES and kind_of(name) not in kinds:
        known = ", ".join((*NAMES, *[f"max_{kind}" for kind in kinds]))
        raise InvalidCommand(f"no limit is named {shorten(name)}; the limits are {known}")
    check_range(f"limit {name}", value, int(name == RATE), HIGHEST)


def limit_set(
    limits: Limits,
    companies: Container[str],
    departments: Container[str],
    kinds: Collection[str],
    command: SetLimit,
) -> list[Event]:
    """The limit as the command sets it; nothing if it is so already (semantics N1, H12).

    Raises: InvalidCommand, UnknownCompany.
    """
    name, value, company, user = command.name, command.value, command.company or "", command.user or ""
    check_limit(name, value, kinds)
    department = command.department or ""
    if (department != "") != (command.scope == "department") or (department and (company or user)):
        raise InvalidCommand("a limit of a department names the department and nobody else")
    if department:
        if department not in departments:
            raise InvalidCommand(unknown_department(department))
        if limits.values.get(("", department), {}).get(name) == value:
            return []
        return [LimitSet(name=name, value=value, department=department)]
    if (company != "", user != "") != {"cluster": (False, False), "company": (True, False)}.get(
        command.scope, (True, True)
    ):
        raise InvalidCommand(
            "a limit of the cluster names nobody, one of a company the company, one of a user the company and the user"
        )
    if company and company not in companies:
        raise UnknownCompany(company[:80])
    if user not in ("", EVERYBODY):
        check_name("the user", user)
    if limits.values.get((company, user), {}).get(name) == value:
        return []
    return [LimitSet(name=name, value=value, company=company, user=user)]


def check_submission(
    limits: Limits,
    claims: Claims,
    above: Sequence[tuple[str, Occupation]],
    app: AppRegistered,
    at: int,
    *,
    closed: bool,
) -> None:
    """Raises: LimitExceeded if a limit of the app's user, company or departments refuses it at `at` (ms) (N1, N2, H12).

    `above`: the departments that have limits, and what the companies in them claim.
    `closed`: the log has had accounts, so that pending apps are limited where no limit is set.
    """
    for user, pending in ((app.user, PENDING_OF_USER), ("", PENDING_OF_COMPANY)):
        standing = claims.standing(app.company, user)
        _check(limits, (app.company, user), standing, app, at, pending if closed else None)
    for department, standing in above:
        _check(limits, ("", department), standing, app, at, None)


def _check(  # noqa: PLR0917 - what a limit is about
    limits: Limits, holder: Holder, standing: Occupation, app: AppRegistered, at: int, most_pending: int | None
) -> None:
    request = app.requested
    for name, asked, unit, text in (
        ("max_tasks", app.tasks, "task", "the app has {}; split it"),
        ("max_app_cores", request.cores, "core", "the app requests {}; request less"),
        ("max_cores", request.cores, "core", "the app alone requests {}; request less"),
        ("max_memory_mb", request.memory_mb, "", "the app alone requests {} MiB; request less"),
        *[
            (f"max_{kind}", amount, "", f"the app alone requests {{}} {kind}; request less")
            for kind, amount in request.others
        ],
    ):
        limit = limits.of(holder, name)
        if limit is not None and asked > limit:
            raise LimitExceeded(name, holder_text(*holder), limit, text.format(counted(asked, unit) if unit else asked))
    limit = limits.of(holder, "max_pending_apps")
    limit = most_pending if limit is None else limit
    if limit is not None and standing.pending >= limit:
        pending = "1 app is" if standing.pending == 1 else f"{standing.pending} apps are"
        text = f"{pending} pending; submit this one when another one has been admitted"
        raise LimitExceeded("max_pending_apps", holder_text(*holder), limit, text)
    rate = limits.of(holder, RATE)
    if rate is not None and not limits.tokens(holder, rate, at):
        now = at // 1000
        next_s = -((now * rate // 60 + 1) * -60 // rate) - now
        text = f"no submission is left in this minute; the next is possible in {next_s} s"
        raise LimitExceeded(RATE, holder_text(*holder), rate, text)
