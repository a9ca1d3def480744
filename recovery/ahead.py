"""A process that folds a log ahead of an audit, and audits the rest of it: so an audit uses two cores.

To fold is half the work of an audit. While one process audits the log from its first entry on, a forked child folds it,
until no more is left behind it than lies between the two, and audits what is left. The first one ends where
the child began, and takes over what that found. It does so only if it has found nothing itself and came to the very
entry that the child began behind, as the digest of the chain says: then every entry up to there was folded as it
stands, and both have the same state. In any other case it goes on by itself, so that an audit names the same
whether there is a child or not, and one that dies or comes upon something that it cannot fold is no loss but of time.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from mmap import mmap
from typing import TYPE_CHECKING, NamedTuple

from msgspec import json

from recovery.audit import Audit, Deviation
from recovery.child import Child
from scheduler.eventlog import Position
from scheduler.reading import Fact
from scheduler.state import ClusterState

if TYPE_CHECKING:
    from recovery.chain import Entry
    from scheduler.events import Record

LEAST = 20_000
"""How many entries it takes for a second process to be worth its fork."""
_AUDITED, _BEGAN, _READ = range(3)
"""What is marked in shared memory: how far the audit has come, behind what the child began, how far that has read."""
_MARK_EVERY = 500
_LOOK_S = 0.5


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
    """A child that folds the log that `read` opens, of `about` so many entries, and audits the rest of it.

    While the audit has nothing left to do but wait for it, `waiting` is told now and then how far both have come.
    """

    def __init__(
        self, read: Callable[[], Iterable[Entry]], about: int, waiting: Callable[[int], object] = lambda _: None
    ) -> None:
        self._about, self._waiting = about, waiting
        self._marks = memoryview(mmap(-1, 3 * 8)).cast("q")
        self._marks[_BEGAN] = -1
        self._answer, answer = os.pipe()
        self._child: Child | None = Child(partial(self._work, read, answer, os.getpid()))
        os.close(answer)

    @property
    def audited(self) -> int:
        """How many entries the child has audited so far."""
        began = self._marks[_BEGAN]
        return 0 if began < 0 or self._child is None else max(0, self._marks[_READ] - began)

    def rest(self, latest: Fact | Record | Position | None) -> Rest | None:
        """What the child came to, if it began behind entry `latest`, to which the audit has come; waits for it.

        None where it began elsewhere, or has not begun yet, or was no help.
        """
        seq = 0 if latest is None else latest.seq
        self._marks[_AUDITED] = seq
        if self._marks[_BEGAN] != seq or latest is None or self._child is None:
            return None
        said = bytearray()
        while True:
            if not select.select([self._answer], [], [], _LOOK_S)[0]:
                self._waiting(seq + self.audited)
            elif part := os.read(self._answer, 1 << 16):
                said += part
            else:
                break
        child, self._child = self._child, None
        os.close(self._answer)
        if child.wait():
            return None
        found = json.decode(said, type=Rest)
        return found if found.behind == Position(seq, latest.digest) else None

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
                with os.fdopen(answer, "wb") as pipe:
                    pipe.write(json.encode(_rest(state, last, chain((entry,), entries))))
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
def ahead_of(
    read: Callable[[], Iterable[Entry]], about: int, waiting: Callable[[int], object] = lambda _: None
) -> Iterator[Ahead | None]:
    """A child as `Ahead` says, ended at the end.

    None where it would be of no use, in a short log or on one core, or where no process can be forked, or not safely.
    """
    ahead = None
    if about >= LEAST and _cores() > 1 and hasattr(os, "fork") and threading.active_count() == 1:
        with suppress(OSError):
            ahead = Ahead(read, about, waiting)
    try:
        yield ahead
    finally:
        if ahead is not None:
            ahead.end()


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
