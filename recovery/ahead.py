"""A process that folds a log ahead of an audit, and audits the rest of it: so an audit uses two cores.

To fold is half the work of an audit. While one process audits the log from its first entry on, a forked child folds it
until no more is left behind it than lies between the two, and audits what is left. Once it has, and the audit has come
to where it began, without a deviation and by the same digest, what the child found is what the audit would find there
as well: every entry up to there was folded as it stands, so both had the same state. Until then, and in any other
case, the audit goes on by itself. So it names the same whether there is a child or not, and never waits for one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from mmap import mmap
from typing import TYPE_CHECKING, NamedTuple

from msgspec import json

from recovery.audit import Audit, Deviation
from recovery.failover.fork import Child
from scheduler.eventlog import Position
from scheduler.reading import Fact
from scheduler.rules.state import ClusterState

if TYPE_CHECKING:
    from recovery.replay.chain import Entry
    from scheduler.model.events import Record

LEAST = 20_000
"""How many entries it takes for a second process to be worth its fork."""
_AUDITED, _BEGAN, _READ, _DONE = range(4)
"""What is marked in shared memory: how far the audit is, where the child began, how far that is, whether it is done."""
_MARK_EVERY = 500


class Rest(NamedTuple):
    """What an audit came to that began behind an entry, by the names of an `Audit`."""

    behind: Position
    deviations: list[Deviation]
    events: int
    decisions: int
    companies: list[str]
    blind_from: int | None
    ends: Position


class Ahead:
    """A child that folds the log that `read` opens, of `about` so many entries, and audits the rest of it."""

    def __init__(self, read: Callable[[], Iterable[Entry]], about: int) -> None:
        self._about = about
        self._met: tuple[Position, int] | None = None
        """Where the child began, once the audit has come there, and how many decisions that has verified by then."""
        self._marks = memoryview(mmap(-1, 4 * 8)).cast("q")
        self._marks[_BEGAN] = -1
        self._answer, answer = os.pipe()
        self._child: Child | None = Child(partial(self._work, read, answer, os.getpid()))
        os.close(answer)

    def so_far(self, number: int) -> int:
        """How many entries are audited, if the audit has come to that number by itself."""
        began = self._marks[_BEGAN]
        return number if began < 0 else max(number, min(number, began) + self._marks[_READ] - began)

    def rest(self, latest: Fact | Record | Position, decisions: int) -> Rest | None:
        """What the child came to, once it has; None as long as that is not known to be what the audit would come to.

        The audit tells behind which entry it is, with how many decisions. Those before the rest are added to it.
        """
        self._marks[_AUDITED] = latest.seq
        if self._marks[_BEGAN] == latest.seq:
            self._met = Position(latest.seq, latest.digest), decisions
        if self._met is None or not self._marks[_DONE] or self._child is None:
            return None
        said = bytearray()
        while part := os.read(self._answer, 1 << 16):
            said += part
        child, self._child = self._child, None
        os.close(self._answer)
        if child.wait():
            return None
        found = json.decode(said, type=Rest)
        (behind, before), decided = self._met, found.decisions
        return found._replace(decisions=before + decided) if found.behind == behind else None

    def end(self) -> None:
        """End the child, unless it has ended."""
        if self._child is not None:
            child, self._child = self._child, None
            os.close(self._answer)
            child.kill()

    def _work(self, read: Callable[[], Iterable[Entry]], answer: int, parent: int) -> int:
        """Fold as far as it takes, and audit what is left; 0 if the child could do that."""
        os.close(self._answer)
        state = ClusterState()
        last: Fact | None = None
        entries = self._marked(read(), parent)
        for entry in entries:
            if not isinstance(entry, Fact):
                break
            if last is not None and entry.turn != last.turn and self._is_halfway(last.seq):
                self._marks[_BEGAN] = last.seq
                said = json.encode(_rest(state, last, chain((entry,), entries)))
                self._marks[_DONE] = 1
                with os.fdopen(answer, "wb") as pipe:
                    pipe.write(said)
                return 0
            state.apply(entry.event, at=entry.at, cause=entry.cause)
            last = entry
        return 1

    def _is_halfway(self, seq: int) -> bool:
        """Whether no more is left behind position `seq` than lies between there and the audit."""
        return 2 * seq >= self._about + self._marks[_AUDITED]

    def _marked(self, entries: Iterable[Entry], parent: int) -> Iterator[Entry]:
        """The entries, while it is marked how many were read; a child whose parent is gone ends."""
        for number, entry in enumerate(entries, start=1):
            if number % _MARK_EVERY == 0:
                self._marks[_READ] = number
                if os.getppid() != parent:
                    return
            yield entry


def _rest(state: ClusterState, behind: Fact, entries: Iterable[Entry]) -> Rest:
    """What an audit comes to of the entries that follow one up to which `state` was folded."""
    audit = Audit.going_on(state, behind)
    return Rest(
        Position(behind.seq, behind.digest),
        list(audit.deviations(entries)),
        audit.events,
        audit.decisions,
        list(audit.companies),
        audit.blind_from,
        Position(audit.ends_at, audit.digest),
    )


@contextmanager
def ahead_of(read: Callable[[], Iterable[Entry]], about: int) -> Iterator[Ahead | None]:
    """A child as `Ahead` says, ended at the end.

    None where it would be of no use, in a short log or on one core, or where no process can be forked, or not safely.
    """
    ahead = None
    if about >= LEAST and _cores() > 1 and hasattr(os, "fork") and threading.active_count() == 1:
        with suppress(OSError):
            ahead = Ahead(read, about)
    try:
        yield ahead
    finally:
        if ahead is not None:
            ahead.end()


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
