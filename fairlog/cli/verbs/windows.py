"""The verb about windows: times in which nothing runs on some workers, or of nobody but one company (semantics W14)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from fairlog.cli import params, render
from fairlog.cli.completion import complete
from fairlog.cli.decorators import on_cluster, on_log
from fairlog.cli.groups import VerbGroup
from fairlog.cli.sending import check_listed, send_each
from fairlog.cli.target import in_the_past, target_options
from fairlog.cli.times import moment
from fairlog.cli.worker_choice import labelled, workers_of
from scheduler.model.text import few

if TYPE_CHECKING:
    from fairlog.cli.session import Session
    from fairlog.cli.sources import Source

ALL = "all"
_NAMED = 3


@click.group(cls=VerbGroup)
@target_options()
def window() -> None:
    """Add, list or remove times in which nothing runs on some workers."""


@window.command("add")
@click.argument("name", required=False, type=params.read_text, metavar="[NAME]")
@click.option(
    "--workers",
    required=True,
    type=params.read_text,
    metavar="NAMES",
    help="The workers, separated by commas, each by its id, a unique beginning of it, or its host; or all that are "
    "registered now: all.",
)
@params.label_option(help="Of --workers, only those with this label. Repeatable.")
@click.option(
    "--from", "begin", required=True, type=params.read_begin, metavar="TIME", help="When the window begins: 22:00."
)
@click.option("--to", "end", required=True, type=params.read_begin, metavar="TIME", help="When it is over.")
@params.text_option(
    "--for",
    "company",
    default="",
    metavar="C",
    shell_complete=complete("company"),
    help="Company whose apps alone run there within the window.  [default: nobody's, for maintenance]",
)
@click.option(
    "--notice",
    "notice_s",
    type=params.read_duration,
    default="5m",
    metavar="TIME",
    help="How long before the beginning who runs there is told to leave, and nothing more is placed there.",
)
@params.text_option("--reason", default="", metavar="TEXT", help="What it is for; everybody can read it.")
@on_cluster
def window_add(
    session: Session,
    /,
    *,
    name: str | None,
    workers: str,
    labels: dict[str, str],
    **stated: Any,  # noqa: ANN401 (fields of the command)
) -> None:
    """Add a window, by NAME or the next free number.

    Nothing runs on its workers past its beginning. Before, apps start there that end in time by their maximum runtime,
    or that have none, and these are told in time. Afterwards the workers are back by themselves.
    """
    from scheduler.model import commands  # noqa: PLC0415 (what only reads needs no commands)

    known = session.ask("workers", lost=True)
    named = [each for each in workers.split(",") if each]
    chosen = tuple(each["worker"] for each in known) if named == [ALL] else workers_of(session, named, known)
    if labels:
        having = {each["worker"] for each in known if labelled(each, labels)}
        chosen = tuple(each for each in chosen if each in having)
        if not chosen:
            raise click.UsageError("none of these workers has the label; `fairlog workers` shows their labels")
    if not chosen:
        raise click.UsageError("no worker is named; give --workers NAMES, or all")
    taken = {each["window"] for each in session.ask("windows")}
    name = name or next(free for number in range(1, len(taken) + 2) if (free := f"window-{number}") not in taken)
    session.send(commands.AddWindow(window=name, workers=chosen, **stated))
    span = f"from {moment(stated['begin'], to='seconds')} to {moment(stated['end'], to='seconds')}"
    click.echo(f"window {name} of {len(chosen)} worker{'s' * (len(chosen) != 1)} added, {span}")


@window.command("remove")
@params.names_argument("name")
@on_cluster
def window_remove(session: Session, *, name: tuple[str, ...]) -> int:
    """Remove windows, or end those that have begun: their workers are back at once."""
    from scheduler.model import commands  # noqa: PLC0415 (likewise)

    check_listed(name, "window", lambda: session.ask("windows"))
    return send_each(session, name, lambda each: commands.RemoveWindow(window=each), "removed")


@window.command("list")
@in_the_past
@params.as_json
@on_log
def window_list(source: Source, *, as_json: bool) -> None:
    """List the windows that are not over, and how much stands in the way of each."""
    found = source.ask("windows")
    if as_json:
        render.print_json(found)
        return
    rows = [
        (
            each["window"],
            "begun" if each["begin"] <= time.time() * 1000 else "closing" if each["closing"] else "planned",
            moment(each["begin"], to="seconds"),
            moment(each["end"], to="seconds"),
            each["company"] or "",
            few(each["workers"], _NAMED),
            len(each["inTheWay"]),
            each["reason"],
        )
        for each in found
    ]
    render.print_table(
        ("WINDOW", "STATE", "FROM", "TO", "FOR", "WORKERS", "RUNNING", "REASON"),
        rows,
        empty="There is no window; `fairlog window add --workers NAMES --from TIME --to TIME` adds one.",
        spare=("REASON", "FOR"),
    )
