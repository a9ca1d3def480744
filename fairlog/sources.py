"""Where verbs that re-read the log find it: in a file, or in the cluster that the command line means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from fairlog.options import Place
from fairlog.session import Session, until
from recovery.chain import chained, read_lines
from scheduler.errors import FairlogError, UnreadableRecord

if TYPE_CHECKING:
    import click

    from scheduler.events import Record


class BadExport(FairlogError):
    """A file does not hold a log that can be trusted."""


def records(ctx: click.Context, file: IO[str] | None) -> Iterator[Record]:
    """The records of the log in `file`, or of the cluster, up to `--at`.

    Raises: UnreadableRecord or BadExport if it cannot be read, NotThatLong if it ends before `--at`.
    """
    place = ctx.ensure_object(Place)
    if file is not None:
        yield from until(exported(file), place.at)
        return
    session = Session(place)
    ctx.call_on_close(session.close)
    yield from session.records()


def exported(file: IO[str]) -> Iterator[Record]:
    """The records of a file as `fairlog log --json` writes it, from position 1 on, along the chain of digests.

    Raises: BadExport naming the file and the position that cannot be trusted, or saying that it holds nothing.
    """
    name, empty = getattr(file, "name", "the file"), True
    try:
        for record in chained(read_lines(file)):
            empty = False
            yield record
    except UnreadableRecord as error:
        raise BadExport(f"{name}: {error}") from error
    if empty:
        raise BadExport(f"{name} holds no entry of a log, as `fairlog log --json` writes them")
