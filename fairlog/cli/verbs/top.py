"""The verb top: shares, queue and workers, live in a terminal."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import render
from fairlog.cli.choice import shown_state, waited_ms
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import Seconds, flag
from scheduler.model.resources import size_text
from scheduler.model.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairlog.cli.session import Session

EVERY_S = 2.0
_BAR = 20
_SCREEN = 24
"""The lines of a terminal of unknown height."""


@click.command()
@click.option(
    "--every",
    "every_s",
    type=Seconds(0.5, 3600),
    default=EVERY_S,
    show_default=True,
    metavar="TIME",
    help="How often the view is made anew, in seconds or as 1m30s.",
)
@flag("--once", help="Print the view once, as also happens if stdout is not a terminal.")
@on_cluster
def top(session: Session, *, every_s: float, once: bool) -> None:
    """Show shares, queue and workers live in a terminal.

    Companies with the largest share come first, then the apps that wait longest, each with its cause, then the busiest
    workers. Ctrl-C ends it.
    """
    if once or not sys.stdout.isatty():
        for number, (columns, rows) in enumerate(_tables(session)):
            click.echo(_headline(session) if not number else "")
            render.print_table(columns, rows, empty=f"no {columns[0].lower()} yet")
        return
    render.watch(lambda: _picture(session), every_s=every_s)


def _headline(session: Session) -> str:
    seen = session.ask("cluster")
    counts: Mapping[str, int] = seen["apps"]
    granted = sum(each["grantedCores"] for each in session.ask("workers"))
    return (
        f"{render.second(seen['at'])}  position {seen['head']}  {counts['pending']} pending, "
        f"{counts['waiting']} waiting, {counts['running']} running  {granted} of "
        f"{counted(seen['cores'], 'core')} granted"
    )


def _tables(session: Session) -> Sequence[tuple[Sequence[str], Sequence[Sequence[object]]]]:
    """Companies by share, apps by their wait, workers by what is granted on them."""
    apps: list[dict[str, Any]] = session.ask("apps", everything=False)
    pending = Counter(app["company"] for app in apps if app["state"] == "pending")
    found = session.ask("shares")
    companies = sorted(found["companies"], key=lambda each: -_held(each))
    now = session.ask("cluster")["at"]
    waiting = sorted((app for app in apps if app["state"] != "running"), key=lambda app: app["submittedAt"])
    running = sorted((app for app in apps if app["state"] == "running"), key=lambda app: -app["grantedCores"])
    workers = sorted(
        session.ask("workers", lost=True), key=lambda each: (each["status"] == "alive", -each["grantedCores"])
    )
    return (
        (
            (
                "COMPANY",
                "SHARE OF QUOTA",
                "DEMAND",
                "GRANTED",
                "QUOTA",
                "PENDING",
            ),
            [
                (
                    each["company"],
                    f"{_bar(_held(each))} {100 * _held(each):>5.1f}%",
                    each["demandCores"],
                    each["grantedCores"],
                    str(each["quotaCores"]),
                    pending[each["company"]],
                )
                for each in companies
            ],
        ),
        (
            ("APP", "COMPANY", "USER", "NAME", "STATE", "REASON", "WAIT", "CORES"),
            [
                (
                    app["app"],
                    app["company"],
                    app["user"],
                    app["name"],
                    shown_state(app).replace("-", " "),
                    app.get("reason"),
                    render.duration(waited_ms(app, now)),
                    f"{app['grantedCores']} of {app['requestedCores']}",
                )
                for app in [*waiting, *running]
            ],
        ),
        (
            ("WORKER", "STATUS", "CORES GRANTED", "MEMORY GRANTED", "EXECUTORS"),
            [
                (
                    each["worker"],
                    "suspected" if each["suspicion"] else each["status"],
                    _of(each["grantedCores"], each["cores"]),
                    f"{size_text(each['grantedMemory'])} of {size_text(each['memory'])}",
                    each["executors"],
                )
                for each in workers
            ],
        ),
    )


def _picture(session: Session) -> RenderableType:
    """The view for the height of the terminal."""
    from rich.console import Group  # noqa: PLC0415 (only terminals need it)
    from rich.text import Text  # noqa: PLC0415 (likewise)

    height = shutil.get_terminal_size((80, _SCREEN)).lines
    tables = _tables(session)
    room = max(2, (height - 2 - 3 * len(tables)) // len(tables))
    parts: list[RenderableType] = [Text(_headline(session), style="bold")]
    for columns, rows in tables:
        table = render.table_of(columns, rows[:room])
        if len(rows) > room:
            table.caption, table.caption_justify = f"and {len(rows) - room} more", "left"
        parts += [Text(), table]
    return Group(*parts)


def _held(company: dict[str, Any]) -> float:
    """What is granted to the company, as a part of its quota: of cores or of memory, whichever is larger."""
    parts = [company[f"granted{what}"] / (Fraction(company[f"quota{what}"]) or 1) for what in ("Cores", "Memory")]
    return float(max(parts))


def _of(granted: int, cores: int) -> str:
    return f"{_bar(granted / max(1, cores))} {granted:>3} of {cores}"


def _bar(part: float) -> str:
    return f"{'█' * round(_BAR * min(1.0, part)):<{_BAR}}"
