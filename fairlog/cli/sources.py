"""The log that a verb reads: from a file or from the selected cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from fairlog.cli.reached import check_span, now_ms
from fairlog.cli.session import Session, end_of, opened, until
from fairlog.cli.target import Target
from recovery.replay.bounds import Bound, E
from scheduler.model.errors import InvalidCommand

if TYPE_CHECKING:
    import click

    from scheduler.rules.state.cluster import ClusterState
    from scheduler.store.codec import Fact, Record


class Source:
    """The facts in `file` or of the cluster, up to `--at`; opened on first use.

    Reading raises UnreadableRecord or BadExport if the log cannot be read, NotThatLong if it ends before `--at`.
    """

    def __init__(self, ctx: click.Context, file: IO[bytes] | None) -> None:
        self._ctx, self._file = ctx, file
        self._at = ctx.ensure_object(Target).at
        self.is_file = file is not None
        """Whether it is a file that is read, and no cluster."""
        self.past = self.is_file or self._at is not None
        """Whether the state asked for is not the present state of the cluster."""

    @cached_property
    def session(self) -> Session:
        """The selected cluster. Raises: NoStore, UnsuitableStore."""
        session = opened(self._ctx.ensure_object(Target))
        self._ctx.call_on_close(session.close)
        return session

    def __iter__(self) -> Iterator[Fact]:
        if self._file is None:
            return self.session.facts()
        from fairlog.cli.exports import facts_of  # noqa: PLC0415 (loads what reads the log)

        return self.until(facts_of(self._file))

    def ask(self, view: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        """A view (`scheduler.rules.view.views`) of the state asked for.

        Raises: CommandRejected if the thing asked for is unknown, InvariantViolated if entries contradict each other.
        """
        if self._file is None:
            return self.session.ask(view, **arguments)
        from fairlog.cli.road import seen  # noqa: PLC0415 (likewise)

        return seen(self._state, view, arguments)

    def parts(self, view: str, **arguments: object) -> Iterator[list[Any]]:
        """As `ask` of a view that is a list, in parts as they come."""
        if self._file is None:
            yield from self.session.parts(view, **arguments)
        else:
            yield self.ask(view, **arguments)

    @cached_property
    def _state(self) -> ClusterState:
        """The state of the file, which can be read once."""
        from recovery.replay.rebuild import fold  # noqa: PLC0415 (likewise)
        from scheduler.rules.state.cluster import ClusterState  # noqa: PLC0415 (likewise)

        state = ClusterState()
        for fact in self:
            fold(state, fact)
        return state

    def sees(self) -> Callable[[str, str], bool]:
        """Whether who asks may see the apps of a company's user; whoever holds a file reads all of it."""
        said: dict[str, Any] = {"sees": None} if self._file is not None else self.session.whoami()
        companies = said.get("sees", [])  # an older API server does not tell it
        return lambda company, user: companies is None or company in companies or said["account"] == f"{company}/{user}"

    def records(self, first: Bound, last: Bound) -> Iterator[Record]:
        """The turns of the log that contain the span, and possibly others."""
        if self._file is None:
            return self.session.records(first, last)
        from fairlog.cli.exports import exported  # noqa: PLC0415 (likewise)

        return exported(self._file)

    def until(self, entries: Iterable[E]) -> Iterator[E]:
        """The entries up to `--at`. Raises: NotThatLong if they end before."""
        return until(entries, self._at, now_ms)

    def span(self, entries: Iterable[E], first: Bound, last: Bound) -> Iterator[E]:
        """The entries from `first` to `last`, of those up to `--at`.

        Raises: NotThatLong, after the last entry, if they end before one of the three.
        """
        seq = ended_at = 0
        for entry in self.until(entries):
            seq, ended_at = entry.seq, entry.at
            if last.passed(entry):
                return
            if first.reached(entry):
                yield entry
        if not seq and first.seq is not None:  # what is stored before `first` was not read
            seq, _ = self.end()
        check_span(first, last, seq, ended_at)

    def end(self) -> tuple[int, str]:
        """The position and digest of the end of the log. Raises: InvalidCommand if the log is empty."""
        found = self.session.end() if self._file is None else end_of(self)
        if found is None:
            raise InvalidCommand("the log has no entry yet")
        return found

    def now_ms(self) -> int | None:
        """The time (ms) of the state: now by the store's clock, or `--at`; None = that of the last entry read."""
        if self._file is not None or (self._at is not None and self._at.at is None):
            return None if self._at is None else self._at.at
        now = self.session.now_ms()
        return now if self._at is None or self._at.at is None else min(now, self._at.at)
