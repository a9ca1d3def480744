"""The verb about departments: the tree between the cluster and its companies (semantics H12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import params, render
from fairlog.cli.decorators import on_cluster, on_log
from fairlog.cli.groups import VerbGroup
from fairlog.cli.sending import check_listed, send_each
from fairlog.cli.target import in_the_past, target_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlog.cli.session import Session
    from fairlog.cli.sources import Source

NONE = "none"


def named(text: str) -> str:
    """The department that is typed, "" for none. Raises: click.UsageError without any."""
    if not text:
        raise click.UsageError(f'name a department, or {NONE} for no department; "" names nothing')
    return "" if text == NONE else text


@click.group(cls=VerbGroup)
@target_options()
def department() -> None:
    """Add, change, remove or list departments of companies."""


def _place(*, new: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of where a department is and what it has; of a `new` one, they have defaults."""

    def told(default: str) -> str:
        return f"  [default: {default}]" if new else ""

    parent = params.text_option(
        "--in", "parent", metavar="DEPARTMENT", help=f'Department that it is in; "none" is none.{told("none")}'
    )
    amounts = params.quota_options(
        'Quota as a part of the live cluster, such as 25% or 1/4. With `set`, "none" is the sum of what is in it.'
    )
    borrow = click.option(
        "--borrow-limit",
        type=params.read_own_limit("borrow-limit"),
        metavar="PART",
        help='What it may hold beyond its quota, as a part of that: 0%, 50%, 200%, or "none" for no limit.'
        + told("0% with a quota of its own, else none"),
    )
    lend = click.option(
        "--lend-limit",
        type=params.read_own_limit("lend-limit"),
        metavar="PART",
        help='What others may use of its quota, as a part of that: 0%, 50%, or "none" for all of it.' + told("none"),
    )
    return lambda function: parent(amounts(borrow(lend(function))))


@department.command("add")
@click.argument("name", type=params.read_text)
@_place(new=True)
@on_cluster
def department_add(session: Session, /, *, name: str, parent: str | None, **stated: Any) -> None:  # noqa: ANN401
    """Add a department.

    Its quota is its weight beside what is in the same department, and with a --borrow-limit its cap. Without a quota it
    is the sum of the quotas of what is in it. `fairlog company move` puts companies into it.
    """
    from scheduler.model import commands  # noqa: PLC0415 (what only reads needs no commands)

    within = "" if parent is None else named(parent)
    session.send(commands.AddDepartment(department=name, parent=within, **stated))
    click.echo(f"department {name} added")


@department.command("set")
@click.argument("name", type=params.read_text)
@_place(new=False)
@on_cluster
def department_set(session: Session, /, *, name: str, parent: str | None, **stated: Any) -> None:  # noqa: ANN401
    """Change what is given of a department: its place, its quota, its limits."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    if parent is None and not any(map(params.is_given, stated.values())):
        raise click.UsageError(
            "nothing to change is given; give --in, --cores and --memory, --part, --borrow-limit or --lend-limit"
        )
    within = None if parent is None else named(parent)
    session.send(commands.ChangeDepartment(department=name, parent=within, **stated))
    click.echo(f"department {name} changed")


@department.command("remove")
@params.names_argument("name")
@on_cluster
def department_remove(session: Session, *, name: tuple[str, ...]) -> int:
    """Remove departments in which nothing is."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    check_listed(name, "department", lambda: session.ask("departments"))
    return send_each(session, name, lambda each: commands.RemoveDepartment(department=each), "removed")


@department.command("list")
@in_the_past
@params.as_json
@on_log
def department_list(source: Source, *, as_json: bool) -> None:
    """List the departments with their quotas and limits, from the top down."""
    render.print_records(
        source.ask("departments"),
        "department parent quota quotaCores quotaMemory quotaResources borrowLimit lendLimit companies heldCores "
        "entitledCores",
        headings=(
            *("DEPARTMENT", "IN", "QUOTA", "CORES", "MEMORY", "RESOURCES", "BORROWS", "LENDS", "COMPANIES", "HELD"),
            "ENTITLED",
        ),
        spare=("RESOURCES",),
        empty="There is no department; `fairlog department add NAME` adds one.",
        as_json=as_json,
    )
