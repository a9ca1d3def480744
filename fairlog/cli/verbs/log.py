"""The verbs log, checkpoint and simulate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fairlog.cli import render
from fairlog.cli.choice import full_id
from fairlog.cli.completion import complete
from fairlog.cli.decorators import on_log
from fairlog.cli.params import InputFile, as_json, check_extra, file_option, flag, named_option, span_options
from fairlog.cli.target import in_the_past
from recovery.replay.bounds import OPEN, Bound, up_to
from scheduler.model.errors import InvalidCommand, UnknownApp
from scheduler.model.ids import app_of
from scheduler.model.resources import size_text
from scheduler.model.text import counted

if TYPE_CHECKING:
    from fairlog.cli.sources import Source
    from scheduler.store.codec import EventLine


@click.command()
@span_options
@named_option("--app", metavar="A", shell_complete=complete("app"), help="Print only events of this app.")
@flag("--follow", "following", help="Keep printing new events.")
@flag("--public", help="Leave out private parts: names shown, commands, variables, folders, reasons and salts.")
@file_option("--parquet", help="Write a Parquet file instead, one row per event.")
@in_the_past
@as_json
@on_log
def log(
    source: Source,
    *,
    first: Bound,
    last: Bound,
    app: str | None,
    following: bool,
    public: bool,
    parquet: Path | None,
    as_json: bool,
) -> None:
    """Print the log, one line per event, and verify its chain of digests.

    With --json, each line is an object; `fairlog import` and every verb with a FILE argument read the whole log in
    this form. With --parquet, FILE has one typed column for each field of an event; it appears, or is replaced, only
    when it is complete.

    --public exports a log that can be audited without showing private parts.
    """
    if parquet is not None and (as_json or following):
        raise click.UsageError(
            f"--parquet and {'--json' if as_json else '--follow'} cannot be combined; give one of them"
        )
    if following and source.past:
        raise click.UsageError("--follow reads the log of a running cluster; leave out FILE and --at")
    if app is not None and app.isdecimal() and not source.past:
        app = full_id(source.session, app)
    lines = _lines(source, first, last, following=following, public=public)
    chosen = _about(lines, app, known=app is None or first != OPEN or last != OPEN)
    if parquet is None:
        show = render.log_json if as_json else render.log_line
        for line in chosen:
            click.echo(show(line))
        return
    check_extra("--parquet", "pyarrow", "parquet")
    from fairlog.cli.parquet import write  # noqa: PLC0415 (its library is an extra)

    click.echo(f"{write(parquet, render.counted(chosen))} log entries written to {parquet}")


def _lines(source: Source, first: Bound, last: Bound, *, following: bool, public: bool) -> Iterator[EventLine]:
    records = source.session.growing(first) if following else source.records(first, last)
    from scheduler.store.codec import lines_of  # noqa: PLC0415 (help needs no log)

    lines = (line for record in records for line in lines_of(record, public=public))
    if not following:
        return source.span(lines, first, last)
    return (line for line in up_to(lines, last) if first.reached(line))


def _about(lines: Iterator[EventLine], app: str | None, *, known: bool) -> Iterator[EventLine]:
    """The lines about the app. Raises: UnknownApp if there is none, unless the app is `known` to exist."""
    for line in lines:
        if app == str(line.seq) and line.type == "AppRegistered":  # its number
            app = str(line.data["app"])
        about = line.data.get("app"), app_of(str(line.data.get("executor", "")))
        if app is None or app in about:
            known = True
            yield line
    if not known and app is not None:
        raise UnknownApp(app)


@click.command()
@on_log
def checkpoint(source: Source) -> None:
    """Print the end of the log as SEQ:DIGEST.

    Keep the line elsewhere. `fairlog audit --expect SEQ:DIGEST` then proves that a log still contains this point.
    """
    seq, digest = source.end()
    click.echo(f"{seq}:{digest}")


@click.command()
@click.argument("file", type=InputFile("rb"))
@as_json
def simulate(*, file: IO[bytes], as_json: bool) -> None:
    """Run a scenario file through the rules, without a store.

    FILE (- is stdin) is JSON: {"settings": {…}, "commands": [{"op": …}, …]}. Prints the decisions in order, what
    ended, and the final state; --json also has the times. Whoever is told to leave by a date ends then, everything else
    that is told to stop once its grace is over. "edition" is that of the rules of sharing, 2 or 3; the default is 3.
    Settings that it does not state are those of a new cluster. docs/cli.md lists the operations.
    """
    from scheduler.rules.simulate import run_scenario  # noqa: PLC0415 (other verbs need no rules)

    try:
        scenario: dict[str, Any] = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise InvalidCommand(f"{getattr(file, 'name', 'the scenario')} is not valid JSON: {error}") from None
    result = run_scenario(scenario, timed=True)
    if as_json:
        render.print_json(result)
    else:
        _print_result(result)


def _print_result(result: dict[str, Any]) -> None:
    rows = []
    for number, decision in enumerate(result["decisions"], start=1):
        decision.pop("at")
        what, whom = next(iter(decision.items()))
        size = size_text(decision["memory_mb"]) if "memory_mb" in decision else ""
        more = " ".join(
            _more(value) for name, value in decision.items() if name not in (what, "worker", "cores", "memory_mb")
        )
        rows.append(
            (number, what.replace("_", " "), whom, decision.get("worker", ""), decision.get("cores", ""), size, more)
        )
    headings = ("", "DECISION", "WHAT", "WORKER", "CORES", "MEMORY", "MORE")
    render.print_table(headings, rows, empty="No decisions.")
    final = result["final"]
    pending = [app for users in final["pending"].values() for apps in users.values() for app in apps]
    click.echo()
    click.echo(f"waiting  {' '.join(final['waitingApps']) or 'none'}")
    click.echo(f"pending  {' '.join(pending) or 'none'}")
    for name, ledgers in final["companies"].items():
        said = (f"{what} {_amount(ledgers[what])}" for what in ("requested", "granted"))
        click.echo(f"company  {name}: {'; '.join(said)}")
    for name, cores in final["free"].items():
        click.echo(f"worker   {name}: {counted(cores, 'core')} free")


def _more(value: object) -> str:
    """A value of a decision in words; addresses as `gpu=0,1`."""
    if isinstance(value, dict):
        return " ".join(f"{kind}={','.join(found)}" for kind, found in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _amount(amount: list[int]) -> str:
    return f"{counted(amount[0], 'core')}, {size_text(amount[1])}"
