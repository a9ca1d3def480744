"""Where verbs that re-read the log find it: in a file, or in the cluster that the command line means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, cast

from fairlog.options import Place
from fairlog.session import Session, until
from recovery.chain import chained, read_lines
from scheduler.errors import FairlogError, UnreadableRecord
from scheduler.eventlog import clock_ms

if TYPE_CHECKING:
    import click

    from scheduler.events import Record


class BadExport(FairlogError):
    """A file does not hold a log that can be trusted."""


class Source:
    """The records of the log in `file`, or of the cluster, up to `--at`; found and read once it is iterated over.

    Iterating raises UnreadableRecord or BadExport if it cannot be read, NotThatLong if it ends before `--at`.
    """

    def __init__(self, ctx: click.Context, file: IO[str] | None) -> None:
        self._ctx, self._file = ctx, file
        self._session: Session | None = None
        self._at = ctx.ensure_object(Place).at

    def __iter__(self) -> Iterator[Record]:
        if self._file is not None:
            return until(exported(self._file), self._at)
        self._session = Session(self._ctx.ensure_object(Place))
        self._ctx.call_on_close(self._session.close)
        return self._session.records()

    def now_ms(self) -> int | None:
        """The time (ms) up to which the log that was read tells: the store's, or `--at`; None = its last entry's."""
        if self._session is None or (self._at is not None and self._at.at is None):
            return None if self._at is None else self._at.at
        now = clock_ms(cast("Any", self._session.store.time()))
        return now if self._at is None or self._at.at is None else min(now, self._at.at)


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
