"""The log that a verb reads: from a file or from the selected cluster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, TypeVar

from fairlog.cli.session import Session, seen, until
from fairlog.cli.target import Target
from recovery.replay.bounds import Bound, E
from recovery.replay.rebuild import fold
from scheduler.model.errors import FairlogError, InvalidCommand, UnreadableRecord
from scheduler.rules.state import ClusterState
from scheduler.store.codec import Fact, Record, check, read_export, read_lines
from scheduler.store.eventlog import GENESIS, Position

if TYPE_CHECKING:
    import click


T = TypeVar("T")


class BadExport(FairlogError):
    """A file does not contain a log that can be trusted."""


class Source:
    """The facts in `file` or of the cluster, up to `--at`; opened on first use.

    Reading raises UnreadableRecord or BadExport if the log cannot be read, NotThatLong if it ends before `--at`.
    """

    def __init__(self, ctx: click.Context, file: IO[bytes] | None) -> None:
        self._ctx, self._file = ctx, file
        self._at = ctx.ensure_object(Target).at
        self.past = file is not None or self._at is not None
        """Whether the state asked for is not the present state of the cluster."""

    @cached_property
    def session(self) -> Session:
        """The selected cluster. Raises: NoStore, UnsuitableStore."""
        session = Session(self._ctx.ensure_object(Target))
        self._ctx.call_on_close(session.close)
        return session

    def __iter__(self) -> Iterator[Fact]:
        if self._file is not None:
            return self.until(facts_of(self._file))
        return self.session.facts()

    def ask(self, view: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        """A view (`scheduler.rules.views`) of the state asked for.

        Raises: CommandRejected if the thing asked for is unknown, InvariantViolated if entries contradict each other.
        """
        if self._file is None:
            return self.session.ask(view, **arguments)
        return seen(self._state, view, arguments)

    @cached_property
    def _state(self) -> ClusterState:
        """The state of the file, which can be read once."""
        state = ClusterState()
        for fact in self:
            fold(state, fact)
        return state

    def records(self, first: Bound, last: Bound) -> Iterator[Record]:
        """The turns of the log that contain the span, and possibly others."""
        if self._file is not None:
            return exported(self._file)
        if self.session.api is not None:
            return _chained(read_lines(self.session.lines()))
        after = self.session.log.before((first.seq or 1) - 1)
        return self.session.log.read(after, to=last.seq)

    def growing(self) -> Iterator[Record]:
        """The turns that the API tells, from position 1 on and without end."""
        return _chained(read_lines(self.session.lines(growing=True)))

    def until(self, entries: Iterable[E]) -> Iterator[E]:
        """The entries up to `--at`. Raises: NotThatLong if they end before."""
        return until(entries, self._at, lambda: round(time.time() * 1000))

    def end(self) -> Position:
        """The position and digest of the end of the log. Raises: InvalidCommand if the log is empty."""
        if self._file is None and self.session.api is None:
            position = self.session.log.head()
            if not position.seq:
                raise InvalidCommand("the log has no entry yet")
            return position
        latest = deque(self, maxlen=1)[0]
        return Position(latest.seq, latest.digest)

    def now_ms(self) -> int | None:
        """The time (ms) of the state: now by the store's clock, or `--at`; None = that of the last entry read."""
        if self._file is not None or (self._at is not None and self._at.at is None):
            return None if self._at is None else self._at.at
        now = self.session.now_ms()
        return now if self._at is None or self._at.at is None else min(now, self._at.at)


def facts_of(file: IO[bytes]) -> Iterator[Fact]:
    """The facts of a file written by `fairlog log --json`, from position 1 on, verified along the chain of digests.

    Raises: BadExport naming the file and the first position that cannot be trusted, or if the file has no log.
    """
    return _trusted(file, read_export(file))


def exported(file: IO[bytes]) -> Iterator[Record]:
    """As `facts_of`, but the turns."""
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
