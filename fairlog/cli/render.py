"""How answers look: tables, sizes, times, JSON, log lines, progress."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import click
import msgspec
from msgspec import structs

from fairlog.cli import times
from fairlog.cli.advised import advised
from fairlog.cli.printed import spoken, terminal
from scheduler.model.resources import size_text
from scheduler.model.text import in_json, one_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from scheduler.store.codec import EventLine

T = TypeVar("T")
_COUNT_EVERY = 1_000
NARROWEST = 6
"""The width that a cell keeps on the narrowest terminal."""
STYLES = {
    **dict.fromkeys(("failed", "lost", "expired", "unmet", "none active"), "red"),
    **dict.fromkeys(
        ("pending", "waiting", "not ready", "suspected", "draining", "leaving", "decommissioned"), "yellow"
    ),
    **dict.fromkeys(("killed", "cancelled", "stopped"), "magenta"),
}
"""How a cell is coloured that is one of these states."""
_WIDE = 100_000
"""Columns where output is not a terminal: programs need whole lines."""


def print_json(value: object) -> None:
    """Print `value` as indented JSON; characters that a terminal obeys are escaped."""
    click.echo(in_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    err: bool = False,
    spare: Sequence[str] = (),
    bare: bool = False,
) -> None:
    """Print rows under column headings, numbers right-aligned, or the sentence `empty` if there are no rows.

    `bare`: without the headings.

    On a terminal that is too narrow, columns that are `spare` are left out, the first ones first.

    Nothing is cut. On a narrow terminal, cells wrap, at spaces if that suffices; the first column never does, so that
    ids can be copied. On a terminal, states that need attention have a colour, unless NO_COLOR is set.
    """
    lines = [tuple("-" if cell is None else _shown(cell) for cell in row) for row in rows]
    if not lines:
        tell(empty)
        return
    file = sys.stderr if err else sys.stdout
    if not (file.isatty() or os.environ.get("FORCE_COLOR")):
        _print_plain(columns, lines, file, bare=bare)
        return
    from rich.console import Console  # noqa: PLC0415 (only terminals need it)

    console = Console(file=terminal(file), markup=False, highlight=False, emoji=False)
    cells = [["" if bare else name, *(str(line[number]) for line in lines)] for number, name in enumerate(columns)]
    room = console.width if console.is_terminal else _WIDE
    for name in spare:
        if name in columns and sum(column_widths(cells, room=_WIDE)) + 2 * (len(columns) - 1) > room:
            number = list(columns).index(name)
            columns, cells = [each for each in columns if each != name], cells[:number] + cells[number + 1 :]
            lines = [line[:number] + line[number + 1 :] for line in lines]
    widths = column_widths(cells, room=room)
    console.width = _WIDE
    with console.capture() as captured:
        table = table_of(columns, lines, widths)
        table.show_header = not bare
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), file=console.file)


def print_parts(
    columns: Sequence[str], parts: Iterable[Sequence[Sequence[object]]], *, spare: Sequence[str], bare: bool
) -> bool:
    """Print a table whose rows come in parts, each as it comes. Whether there was any row.

    On a terminal, which may be too narrow for some columns, all rows are waited for.
    """
    if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
        rows = [row for part in parts for row in part]
        if rows:
            print_table(columns, rows, empty="", spare=spare, bare=bare)
        return bool(rows)
    widths = [0] * len(columns)
    some = False
    for part in parts:
        lines = [tuple("-" if cell is None else _shown(cell) for cell in row) for row in part]
        _print_plain(columns, lines, sys.stdout, bare=bare or some, widths=widths)
        sys.stdout.flush()
        some = True
    return some


def _print_plain(
    columns: Sequence[str],
    lines: Sequence[Sequence[object]],
    file: TextIO,
    *,
    bare: bool,
    widths: list[int] | None = None,
) -> None:
    """Print the table for a program, which needs whole lines: nothing wraps, nothing is coloured.

    No column is narrower than the `widths`, which become what they are.
    """
    cells = [
        ["" if bare else name, *(one_line(str(line[number])) for line in lines)] for number, name in enumerate(columns)
    ]
    width_of = len if all(cell.isascii() for column in cells for cell in column) else _cell_len()
    padded = []
    for number, column in enumerate(cells):
        width = max(map(width_of, column))
        if widths is not None:
            widths[number] = width = max(width, widths[number])
        right = all(isinstance(line[number], int) for line in lines)
        spaces = (" " * (width - width_of(cell)) for cell in column)
        padded.append([space + cell if right else cell + space for cell, space in zip(column, spaces, strict=True)])
    shown = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    click.echo("\n".join(shown[bare:]), file=file)


def _cell_len() -> Callable[[str], int]:
    """How many columns of a terminal a text takes, which may have wide characters or none."""
    from rich.cells import cell_len  # noqa: PLC0415 (few tables need it)

    return cell_len


def table_of(columns: Sequence[str], rows: Sequence[Sequence[object]], widths: Sequence[int] = ()) -> Table:
    """A table without borders, numbers right-aligned; without `widths`, cells do not wrap."""
    from rich.table import Table  # noqa: PLC0415 (JSON answers need none of it)
    from rich.text import Text  # noqa: PLC0415 (likewise)

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        right = bool(rows) and all(isinstance(row[number], int) for row in rows)
        width = widths[number] if widths else None
        side: Literal["left", "right"] = "right" if right else "left"
        table.add_column(name, justify=side, width=width, no_wrap=not widths, overflow="fold")
    for row in rows:
        said = (one_line(str(cell)) for cell in row)
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in said))
    return table


def _shown(cell: object) -> object:
    return one_line(cell) if isinstance(cell, str) else cell


def print_records(
    records: Sequence[Mapping[str, Any]],
    columns: str,
    *,
    empty: str,
    as_json: bool,
    headings: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print records as JSON, or as a table of the fields `columns`; sizes, times and truth values in words.

    A column that no record has is left out. `headings` are the names of the fields in upper case unless given; those
    in `spare` are left out where they do not fit.
    """
    if as_json:
        print_json(records)
        return
    names = columns.split()
    shown = [
        (name, heading)
        for name, heading in zip(names, headings or [name.upper() for name in names], strict=True)
        if any(name in record for record in records)
    ]
    rows = [[in_words(name, record.get(name, "")) for name, _ in shown] for record in records]
    print_table([heading for _, heading in shown], rows, empty=empty, spare=spare)


def in_words(name: str, value: Any) -> Any:  # noqa: ANN401 (JSON)
    """The value of a field of a view for a table: times, sizes and truth values in words."""
    if name.endswith("At"):
        return second(value)
    if "memory" in name.lower():
        return size_text(value)
    if name == "taints":
        return " ".join(value)
    if name == "labels" or name.lower().endswith("resources"):
        return kinds_text(value)
    return ("no", "yes")[value] if isinstance(value, bool) else value


def kinds_text(resources: Mapping[str, Any]) -> str:
    """Amounts or addresses by kind: "gpu=2", "gpu=0,1 fpga=0"."""
    return " ".join(
        f"{kind}={','.join(found) if isinstance(found, list) else found}" for kind, found in (resources or {}).items()
    )


def column_widths(columns: Sequence[Sequence[str]], *, room: int) -> list[int]:
    """The width of each column, so that a line with two spaces between columns fits into `room` if possible.

    Columns are as wide as their widest cell if that fits. Otherwise those with the most slack shrink first, at most to
    their longest word; then the widest shrink, all but the first, at most to `NARROWEST`, and break their words.
    """
    from rich.cells import cell_len  # noqa: PLC0415 (as in `print_table`)

    widths = [max(map(cell_len, cells)) for cells in columns]
    slack = [
        width - max(cell_len(word) for cell in cells for word in cell.split() or ("",))
        for width, cells in zip(widths, columns, strict=True)
    ]
    excess = sum(widths) + 2 * (len(widths) - 1) - room
    for number in sorted(range(len(widths)), key=lambda number: -slack[number]):
        given = min(max(excess, 0), slack[number])
        widths[number] -= given
        excess -= given
    while excess > 0 and (number := max(range(len(widths)), key=lambda each: (each > 0) * widths[each])):
        if widths[number] <= NARROWEST:
            break
        widths[number] -= 1
        excess -= 1
    return widths


def watch(make: Callable[[], RenderableType], *, every_s: float) -> None:
    """Show what `make` returns on the terminal, each time over the time before, until an interrupt.

    Raises: click.UsageError if stdout is not a terminal.
    """
    if not sys.stdout.isatty():
        raise click.UsageError("stdout is not a terminal, so nothing can be shown over and over there")
    from rich.console import Console  # noqa: PLC0415 (only terminals need it)
    from rich.live import Live  # noqa: PLC0415 (likewise)

    console = Console(file=terminal(sys.stdout), markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(make(), refresh=True)
            time.sleep(every_s)


def counted(items: Iterable[T], *, of: str = "entries") -> Iterator[T]:
    """Yield the same items; on a terminal, show their count on stderr."""
    try:
        for number, item in enumerate(items):
            if number % _COUNT_EVERY == 0:
                progress(f"{number} {of}")
            yield item
    finally:
        progress("")


def progress(text: str) -> None:
    """On a terminal, show progress on stderr, replacing the line before."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{one_line(text)}", nl=False, file=terminal(sys.stderr))


def say(sentence: str, *, error: bool = False) -> None:
    """Print a sentence to stderr, above a bar that is drawn there."""
    words = spoken(advised(sentence), error=error)
    sys.stderr.write(f"{printable(words)}\n")  # click.echo writes past what rich puts in its place
    sys.stderr.flush()


def tell(sentence: str) -> None:
    """Print a sentence to stdout, whose commands name the data folder that was typed, as `say` does on stderr."""
    click.echo(advised(sentence))


def moment(at_ms: int | None) -> str:
    """A time (ms since the epoch) with its zone, to the ms; "-" if there is none."""
    return times.moment(at_ms) if at_ms else "-"


def second(at_ms: int | None) -> str:
    """As `moment`, to the second."""
    return times.moment(at_ms, to="seconds") if at_ms else "-"


def percent(share: str) -> str:
    """A share "n/d" as a percentage."""
    numerator, denominator = (int(part) for part in share.split("/"))
    return f"{100 * numerator / denominator:.1f}%" if denominator else "no quota"


def duration(milliseconds: int | None) -> str:
    """A span of time as `0.3s`, `4m12s` or `2h05m`."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes = int(seconds) // 60
    return f"{minutes}m{int(seconds) % 60:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def log_line(line: EventLine) -> str:
    """One event on one line: position, time, type, data."""
    from scheduler.model.events import named  # noqa: PLC0415 - other answers need not wait for the models

    return f"{line.seq:>7}  {moment(line.at)}  {line.type:<18} {event_words(line.type, named(line.data))}".rstrip()


def event_words(kind: str, fields: Mapping[str, Any]) -> str:
    """The fields of an event of that type. Empty values are left out, as are 0 and false by default."""
    from scheduler.model.events import EVENT_TYPES  # noqa: PLC0415 - as in `log_line`

    usual = {field.name: field.default for field in structs.fields(EVENT_TYPES[kind])}
    return " ".join(
        f"{name}={words(value)}"
        for name, value in fields.items()
        if value or (isinstance(value, int) and usual.get(name) != value)
    )


def log_json(line: EventLine) -> str:
    """One event as a JSON object on one line, in ASCII, because some readers break lines at Unicode separators."""
    return json.dumps(line.as_json(), separators=(",", ":"))


def words(value: object) -> str:
    """A value on one line: a command as shell words, unprintable text and text with spaces in quotes."""
    if isinstance(value, dict):
        text = ",".join(f"{key}:{each}" for key, each in value.items())
    else:
        text = shlex.join(str(part) for part in value) if isinstance(value, list) else str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


def print_verdict(verdict: str | None) -> None:
    """Print what is wrong with the log, if anything is, before the figures taken from it."""
    if verdict is not None:
        click.echo(f"{verdict}\n")
