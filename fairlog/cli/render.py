"""How answers look: tables, sizes, times, JSON, and a line that says how far an app is."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import click
from msgspec import structs

if TYPE_CHECKING:
    from scheduler.store.codec import Line

T = TypeVar("T")
_COUNT_EVERY = 1_000
_WIDE = 100_000
"""Columns of what is no terminal: lines that programs read are never broken."""


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under column headings, numbers right-aligned, or the sentence `empty` if there are no rows.

    Nothing is ever cut, since ids are there to be copied: where the terminal is too narrow, cells go on below
    themselves at a space, and if that does not do, lines go on where the terminal lets them.
    """
    from rich.console import Console  # noqa: PLC0415 (JSON answers need none of it)
    from rich.table import Table  # noqa: PLC0415 (likewise)

    lines = [tuple("-" if cell is None else cell for cell in row) for row in rows]
    if not lines:
        click.echo(empty)
        return
    console = Console(markup=False, highlight=False, emoji=False)
    cells = [[name, *(str(line[number]) for line in lines)] for number, name in enumerate(columns)]
    widths = column_widths(cells, room=console.width if console.is_terminal else _WIDE)
    console.width = _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, (name, width) in enumerate(zip(columns, widths, strict=True)):
        right = all(isinstance(line[number], int) for line in lines)
        table.add_column(name, justify="right" if right else "left", width=width)
    for line in lines:
        table.add_row(*(str(cell) for cell in line))
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def column_widths(columns: Sequence[Sequence[str]], *, room: int) -> list[int]:
    """The width of each column for these cells, so that the line fits into `room` with two spaces between columns.

    As wide as its cells where that fits. Otherwise the columns that can give most give first, none less than its
    longest word; if even that takes more room, all stay as wide as their cells.
    """
    from rich.cells import cell_len  # noqa: PLC0415 (as in `print_table`)

    widths = [max(map(cell_len, cells)) for cells in columns]
    slack = [
        width - max(cell_len(word) for cell in cells for word in cell.split() or ("",))
        for width, cells in zip(widths, columns, strict=True)
    ]
    excess = sum(widths) + 2 * (len(widths) - 1) - room
    if excess > sum(slack):
        return widths
    for number in sorted(range(len(widths)), key=lambda number: -slack[number]):
        given = min(max(excess, 0), slack[number])
        widths[number] -= given
        excess -= given
    return widths


def counted(items: Iterable[T], *, of: str = "entries") -> Iterator[T]:
    """Yield the same items; on a terminal, show their count on stderr."""
    try:
        for number, item in enumerate(items):
            if number % _COUNT_EVERY == 0:
                tell(f"{number} {of}")
            yield item
    finally:
        tell("")


def tell(how_far: str) -> None:
    """On a terminal, show progress on stderr, replacing the line before."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{how_far}", nl=False, err=True)


def moment(at_ms: int | None) -> str:
    """A time by the store's clock, in UTC."""
    if not at_ms:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def second(at_ms: int | None) -> str:
    """A time to the second, in UTC."""
    return moment(at_ms).partition(".")[0]


def percent(share: str) -> str:
    """A share "n/d" as a percentage; the exact one is in the JSON."""
    numerator, denominator = (int(part) for part in share.split("/"))
    return f"{100 * numerator / denominator:.1f}%" if denominator else "none bought"


def duration(milliseconds: int | None) -> str:
    """A span of time as `0.3s`, `4m12s` or `2h05m`."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes = int(seconds) // 60
    return f"{minutes}m{int(seconds) % 60:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def log_line(line: Line) -> str:
    """One event on one line: position, time, type, and its non-empty data.

    A 0 or a False is shown where it is not what the event says by default.
    """
    from scheduler.model.events import EVENT_TYPES, named  # noqa: PLC0415 - other answers need not wait for the models

    model = EVENT_TYPES[line.type]
    usual = {field.name: field.default for field in structs.fields(model)}
    parts = [
        f"{name}={words(value)}"
        for name, value in named(line.data).items()
        if value or (isinstance(value, int) and usual.get(name) != value)
    ]
    return f"{line.seq:>7}  {moment(line.at)}  {line.type:<18} {' '.join(parts)}".rstrip()


def log_json(line: Line) -> str:
    """One event as an object on one line, its data's keys in stored order.

    In ASCII: some characters of Unicode end a line for those who read lines.
    """
    return json.dumps(line.as_json(), separators=(",", ":"))


def words(value: object) -> str:
    """A value on one line: a command as the shell would take it, `key:value,…`, or as it is; anything odd quoted."""
    if isinstance(value, dict):
        text = ",".join(f"{key}:{each}" for key, each in value.items())
    else:
        text = shlex.join(str(part) for part in value) if isinstance(value, list) else str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


def print_verdict(verdict: str | None) -> None:
    """Say first what is wrong with the log that figures or explanations are taken from, if anything is."""
    if verdict is not None:
        click.echo(f"{verdict}\n")
