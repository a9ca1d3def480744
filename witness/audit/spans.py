"""An audit in several processes, each of which checks spans of the log between snapshots.

Snapshots are not believed. A process checks adjacent spans in one go, a run, from the state that the snapshot at its
beginning holds; at its end the state must be, line by line, what the next snapshot holds. So a log whose runs all
follow the rules follows them as a whole. A process that finds a deviation goes on to the end of the log; if the runs
before it follow the rules and its snapshot is right, its verdicts are those that one process would have found. Where a
snapshot differs or cannot be read, one process checks the rest of the log, from a state that is proven.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import groupby
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery.replay.rebuild import PROGRESS_EVERY, unhindered
from recovery.replay.snapshot import BadSnapshot, content, positions, state_in
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITION_2
from scheduler.rules.state.records import lines
from scheduler.service.child import die_with_parent
from scheduler.store.codec import told
from scheduler.store.eventlog import GENESIS, EventLog, Position
from witness.audit.audit import Audit

if TYPE_CHECKING:
    from scheduler.store.codec import Fact, Record
    from witness.audit.audit import Restored
    from witness.audit.deviation import CommonCause

LOOK_S = 0.5
_FREE, _TAKEN, _CONTINUED = range(3)
"""Of a span: nobody checks it yet; a process does; nobody yet, but its snapshot cannot be used to begin with it."""


class _Seam(NamedTuple):
    """A position of the log and a digest of the state there, as a snapshot holds it."""

    position: Position
    state: str


class _Checked(NamedTuple):
    """A run of spans, without a deviation unless it goes to the end of the log."""

    begin: _Seam
    end: _Seam
    whole: bool
    """Whether it goes to the end of the log, or to where the chain is broken."""
    events: int
    decisions: int
    companies: tuple[str, ...]
    restored: list[Restored]
    verdicts: list[CommonCause]
    blind_from: int | None


_START = _Seam(GENESIS, "")


class _Spans:
    """The spans that begin at these positions, shared by processes; the last one ends with the log, at about `head`."""

    def __init__(self, begins: Sequence[int], head: int) -> None:
        forked = multiprocessing.get_context("fork")
        self._bounds = [*begins, max(head, begins[-1])]
        self._lock = forked.Lock()
        self._status: Any = forked.RawArray("b", len(begins))
        self._read: Any = forked.RawArray("q", len(begins))

    def begin(self) -> int | None:
        """Take a span to begin with: the middle of what is left most; None if nothing is."""
        with self._lock:
            runs = [list(run) for _, run in groupby(range(len(self._status)), self._is_taken)]
            free = [run for run in runs if not self._is_taken(run[0]) and self._length(run[0], run[-1])]
            for run in sorted(free, key=lambda run: self._length(run[0], run[-1]), reverse=True):
                first, last = max(0, run[0] - 1), run[-1]  # whoever checks the span before it comes to it, too
                middle = self._bounds[first] + self._length(first, last) // 2
                usable = [at for at in run if self._status[at] == _FREE and self._length(at, last)]
                if usable:
                    at = min(usable, key=lambda at: (abs(self._bounds[at] - middle), -at)) if run[0] else 0
                    self._status[at] = _TAKEN
                    return at
        return None

    def _is_taken(self, at: int) -> bool:
        return bool(self._status[at] == _TAKEN)

    def _length(self, first: int, last: int) -> int:
        return self._bounds[last + 1] - self._bounds[first]

    def go_on(self, at: int) -> bool:
        """Take the span that follows one's last one; False if another process has."""
        with self._lock:
            free = not self._is_taken(at)
            self._status[at] = _TAKEN
        return free

    def pass_over(self, at: int) -> None:
        """Give back a span because its snapshot cannot be used: it can only be checked together with the one before."""
        with self._lock:
            self._status[at] = _CONTINUED

    def close(self, first: int) -> None:
        """Let no other process take spans from that one on."""
        with self._lock:
            self._status[first:] = [_TAKEN] * (len(self._status) - first)

    def seq(self, at: int) -> int:
        """The position behind which the span begins."""
        return self._bounds[at]

    def is_past(self, at: int, seq: int) -> bool:
        """Whether the turn that ends there ends the span, and another one follows."""
        return at + 1 < len(self._status) and seq >= self._bounds[at + 1]

    def count(self, at: int, seq: int) -> None:
        """The span is read up to that position."""
        with self._lock:  # one that has found a deviation reads what others read
            self._read[at] = max(self._read[at], seq - self._bounds[at])

    def read(self) -> int:
        """How many events were read."""
        return sum(self._read)


def processes() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def audited(log: EventLog, number: int, *, progress: Callable[[int], object] = lambda _: None) -> Audit:
    """The audit of the whole log in that many processes. `progress` is called with how many events were read."""
    begins = [0, *sorted(positions(log))]
    proven: list[_Checked] = []
    if number > 1 and len(begins) > 1:
        spans = _Spans(begins, log.head().seq)
        proven = _proven(_results(log, spans, min(number, len(begins)), progress))
    if proven and proven[-1].whole:
        audit = _joined(proven, Audit())
        audit.ends_at, audit.digest = proven[-1].end.position
        audit.verdicts, audit.blind_from = proven[-1].verdicts, proven[-1].blind_from
        return audit
    audit = _behind(log, proven)
    after = Position(audit.ends_at, audit.digest) if audit.ends_at else GENESIS
    with unhindered():
        for _ in audit.hear_all(_counted(log.read(after), progress)):
            pass
    return audit


def _behind(log: EventLog, proven: list[_Checked]) -> Audit:
    """An audit that goes on behind the last of these runs whose end a snapshot holds."""
    while proven:
        with suppress(BadSnapshot):
            seam, state = _held(log, proven[-1].end.position.seq)
            if seam == proven[-1].end:
                audit = Audit()
                audit.resume(state, *seam.position)
                return _joined(proven, audit)
        del proven[-1]
    return Audit()


def _joined(proven: Iterable[_Checked], audit: Audit) -> Audit:
    for run in proven:
        audit.events += run.events
        audit.decisions += run.decisions
        audit.companies |= dict.fromkeys(run.companies)
        audit.restored += run.restored
    return audit


def _proven(results: dict[int, _Checked]) -> list[_Checked]:
    """The runs from the beginning of the log on, each beginning as the one before ends, by where they begin."""
    found: list[_Checked] = []
    results, end = dict(results), _START
    while (checked := results.pop(end.position.seq, None)) is not None and checked.begin == end:
        if checked.verdicts and not checked.whole:  # its end is where something is wrong
            break
        found.append(checked)
        end = checked.end
        if checked.whole:
            break
    return found


def _results(log: EventLog, spans: _Spans, number: int, progress: Callable[[int], object]) -> dict[int, _Checked]:
    """What the processes have found, by where it begins, once it is about the whole log or they can find no more."""
    forked = multiprocessing.get_context("fork")
    results: dict[int, _Checked] = {}
    children: list[BaseProcess] = []
    pipes: list[Connection] = []
    done = False
    try:
        for _ in range(number):
            ours, theirs = forked.Pipe(duplex=False)
            children.append(forked.Process(target=_work, args=(log, spans, theirs), daemon=True))
            children[-1].start()
            theirs.close()
            pipes.append(ours)
        while pipes and not done:
            for pipe in [pipe for pipe in pipes if pipe in wait(pipes, LOOK_S)]:
                try:
                    checked = pipe.recv()
                except EOFError:
                    pipes.remove(pipe)
                    pipe.close()
                    continue
                results[checked.begin.position.seq] = checked
            progress(spans.read())
            done = any(run.whole for run in _proven(results))
    finally:
        for each in children:
            each.terminate()
            each.join()
        for pipe in pipes:
            pipe.close()
    return results


def _work(log: EventLog, spans: _Spans, answers: Connection) -> None:
    """Check one run after the other.

    Whatever else a false snapshot leads to ends this process and leaves its run to the one that waits, which reports
    what is wrong.
    """
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with unhindered():
        while (at := spans.begin()) is not None:
            try:
                answers.send(_check(log, spans, at))
            except BadSnapshot:
                spans.pass_over(at)
            gc.collect()


def _check(log: EventLog, spans: _Spans, at: int) -> _Checked:
    """What there is to know of the run that begins with that span. Raises: BadSnapshot if it cannot begin there."""
    begin, state = _held(log, spans.seq(at)) if at else (_START, ClusterState())
    audit = Audit()
    if at:
        audit.resume(state, *begin.position)
    run = _SpanRun(log, spans, at)
    for _ in audit.hear_all(run.turns(begin.position, audit)):
        pass
    end = _Seam(Position(audit.ends_at, audit.digest), "" if run.whole else _digest(lines(audit.state)))
    found = audit.events, audit.decisions, tuple(audit.companies), audit.restored, audit.verdicts, audit.blind_from
    return _Checked(begin, end, run.whole, *found)


class _SpanRun:
    """Adjacent spans, from the one of number `at` on, that one process reads in one go."""

    def __init__(self, log: EventLog, spans: _Spans, at: int) -> None:
        self._log, self._spans, self._at = log, spans, at
        self.whole = True

    def turns(self, after: Position, audit: Audit) -> Iterator[list[Fact]]:
        """The turns up to a span that another process has taken; all if the audit finds a deviation."""
        spans, deviates = self._spans, False
        for record in self._log.read(after):
            yield told(record)
            spans.count(self._at, record.last)
            if audit.verdicts and not deviates:
                deviates = True
                spans.close(self._at + 1)
            while spans.is_past(self._at, record.last):
                self._at += 1
                if not deviates and not spans.go_on(self._at):
                    self.whole = False
                    return


def _held(log: EventLog, seq: int) -> tuple[_Seam, ClusterState]:
    """The snapshot at that position, and its state. Raises: BadSnapshot."""
    position, text = content(log, seq)
    state = state_in(text, seq)
    if state.edition == EDITION_2:
        raise BadSnapshot(seq, "the audit of the second edition begins with the log")
    return _Seam(position, _digest(text.decode().split("\n")[:-1])), state


def _digest(texts: Iterable[str]) -> str:
    digest = blake2b(digest_size=32)
    for text in texts:
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def _counted(records: Iterable[Record], progress: Callable[[int], object]) -> Iterator[list[Fact]]:
    """The turns; `progress` is called with the position, now and then."""
    due = seq = 0
    for record in records:
        yield told(record)
        seq = record.last
        if seq >= due:
            due = seq + PROGRESS_EVERY
            progress(seq)
    progress(seq)
