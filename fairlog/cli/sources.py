"""Where verbs that re-read the log find it: in a file, or in the cluster that the command line means."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, TypeVar

from fairlog.cli.follow import position_of
from fairlog.cli.session import Session, until
from fairlog.cli.target import Place
from recovery.replay.bounds import Bound, E
from recovery.replay.rebuild import fold
from scheduler.model.errors import FairlogError, InvalidCommand, UnreadableRecord
from scheduler.rules.state import ClusterState
from scheduler.rules.views import look
from scheduler.store.codec import Fact, Record, check, read_export, read_lines
from scheduler.store.eventlog import GENESIS, Position

if TYPE_CHECKING:
    import click


T = TypeVar("T")


class BadExport(FairlogError):
    """A file does not contain a log that can be trusted."""


class Source:
    """The facts of `file` or of the cluster, up to `--at`; opened when iterated or asked.

    Both raise UnreadableRecord or BadExport if it cannot be read, NotThatLong if it ends before `--at`.
    """

    def __init__(self, ctx: click.Context, file: IO[bytes] | None) -> None:
        self._ctx, self._file = ctx, file
        self._at = ctx.ensure_object(Place).at
        self.past = file is not None or self._at is not None
        """Whether another state is meant than the cluster's of now."""

    @cached_property
    def session(self) -> Session:
        """The cluster, where there is no file. Raises: NoStore, UnsuitableStore."""
        session = Session(self._ctx.ensure_object(Place))
        self._ctx.call_on_close(session.close)
        return session

    def __iter__(self) -> Iterator[Fact]:
        if self._file is not None:
            return self.until(facts_of(self._file))
        return self.session.facts()

    def ask(self, view: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        """The view (`scheduler.rules.views`) of the state that is meant.

        Raises: CommandRejected if it asks for what is not there; InvariantViolated if an entry contradicts another.
        """
        if self._file is None:
            return self.session.ask(view, **arguments)
        state = ClusterState()
        for fact in self:
            fold(state, fact)
        return look(state, view, arguments)

    def records(self, first: Bound, last: Bound) -> Iterator[Record]:
        """The turns of the log that hold the span, and maybe more. Raises: as iterating."""
        if self._file is not None:
            return exported(self._file)
        after = position_of(self.session.log, (first.seq or 1) - 1)
        return self.session.log.read(after, to=last.seq)

    def until(self, entries: Iterable[E]) -> Iterator[E]:
        """Those of these entries that are not behind `--at`. Raises: NotThatLong if they end before."""
        return until(entries, self._at, lambda: round(time.time() * 1000))

    def end(self) -> Position:
        """Where the log ends, its last turn's position and digest. Raises: InvalidCommand if it holds nothing."""
        if self._file is None:
            position = self.session.log.head()
            if not position.seq:
                raise InvalidCommand("the log holds no entry yet")
            return position
        latest: Fact | None = None
        for latest in self:  # noqa: B007 - the last one counts
            pass
        return Position(latest.seq, latest.digest) if latest is not None else GENESIS

    def now_ms(self) -> int | None:
        """The time (ms) up to which the log that was read tells: the store's, or `--at`; None = its last entry's."""
        if self._file is not None or (self._at is not None and self._at.at is None):
            return None if self._at is None else self._at.at
        now = self.session.now_ms()
        return now if self._at is None or self._at.at is None else min(now, self._at.at)


def facts_of(file: IO[bytes]) -> Iterator[Fact]:
    """What a file tells as `fairlog log --json` writes it, from position 1 on, along the chain of digests.

    Raises: BadExport naming the file and the position that cannot be trusted, or saying that it holds nothing.
    """
    return _trusted(file, read_export(file))


def exported(file: IO[bytes]) -> Iterator[Record]:
    """The turns that such a file tells of, verified likewise. Raises: BadExport as `facts_of`."""
    return _trusted(file, _chained(read_lines(file)))


def _chained(records: Iterator[Record]) -> Iterator[Record]:
    after = GENESIS
    for record in records:
        check(record, *after)
        yield record
        after = Position(record.last, record.digest)


def _trusted(file: IO[bytes], entries: Iterator[T]) -> Iterator[T]:
    name, empty = getattr(file, "name", "the file"), True
    try:
        for entry in entries:
            empty = False
            yield entry
    except UnreadableRecord as error:
        raise BadExport(f"{name}: {error}") from error
    if empty:
        raise BadExport(f"{name} contains no log; write one with `fairlog log --json`")
