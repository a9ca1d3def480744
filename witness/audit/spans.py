"""An audit in several processes, each of which checks spans of the log between snapshots.

Snapshots are not believed. A span is checked from the state that the snapshot at its beginning holds; at its end the
state must be, line by line, what the next snapshot holds. So a log whose spans all follow the rules follows them as a
whole. From the first span on that does not, or whose snapshot differs or cannot be read, one process checks the rest
of the log, from a state that is proven; its verdicts are those that it would have found alone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery.replay.rebuild import unhindered
from recovery.replay.snapshot import BadSnapshot, content, positions, state_in
from scheduler.rules.snapshot_records import lines
from scheduler.rules.state import ClusterState
from scheduler.service.child import die_with_parent
from scheduler.store.eventlog import GENESIS, EventLog, Position
from witness.audit.audit import Audit

if TYPE_CHECKING:
    from scheduler.store.codec import Fact

Span = tuple[int, int | None]
"""The position behind which it begins, and its last one; None = the end of the log."""
LOOK_S = 0.5
_COUNTED = 1_000


class _Seam(NamedTuple):
    """A position of the log and a digest of the state there, as a snapshot holds it."""

    position: Position
    state: str


class _Checked(NamedTuple):
    """A span without a deviation."""

    begin: _Seam
    end: _Seam
    events: int
    decisions: int
    companies: tuple[str, ...]


_START = _Seam(GENESIS, "")


def processes() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def audited(log: EventLog, number: int, *, progress: Callable[[int], object] = lambda _: None) -> Audit:
    """The audit of the whole log in that many processes. `progress` is called with how many events were read."""
    seams = sorted(positions(log))
    spans: list[Span] = [*zip([0, *seams], [*seams, None], strict=True)]
    proven: list[_Checked] = []
    if number > 1 and len(spans) > 1:
        proven = _proven(_results(log, spans, min(number, len(spans)), progress))
    if len(proven) == len(spans):
        audit = _joined(proven, Audit())
        audit.ends_at, audit.digest = proven[-1].end.position
        return audit
    audit, read = _behind(log, proven), sum(span.events for span in proven)
    after = Position(audit.ends_at, audit.digest) if audit.ends_at else GENESIS
    with unhindered():
        for _ in audit.deviations(_told(log.facts(after), lambda count: progress(read + count))):
            pass
    return audit


def _behind(log: EventLog, proven: list[_Checked]) -> Audit:
    """An audit that goes on behind the last of these spans whose end a snapshot holds."""
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
    for span in proven:
        audit.events += span.events
        audit.decisions += span.decisions
        audit.companies |= dict.fromkeys(span.companies)
    return audit


def _proven(results: Iterable[_Checked | None]) -> list[_Checked]:
    """The spans from the beginning of the log on that follow the rules, each beginning as the one before ends."""
    found: list[_Checked] = []
    for checked in results:
        if checked is None or checked.begin != (found[-1].end if found else _START):
            break
        found.append(checked)
    return found


def _results(
    log: EventLog, spans: Sequence[Span], number: int, progress: Callable[[int], object]
) -> list[_Checked | None]:
    """The result of each span: None if it was not shown to follow the rules, or for those behind such a one."""
    forked = multiprocessing.get_context("fork")
    following, counts = forked.Value("q", 0), forked.RawArray("q", len(spans))
    results: dict[int, _Checked | None] = {}
    children: list[BaseProcess] = []
    pipes: list[Connection] = []
    needed = len(spans)
    try:
        for _ in range(number):
            ours, theirs = forked.Pipe(duplex=False)
            children.append(forked.Process(target=_work, args=(log, spans, following, counts, theirs), daemon=True))
            children[-1].start()
            theirs.close()
            pipes.append(ours)
        while pipes and not all(at in results for at in range(needed)):
            for pipe in [pipe for pipe in pipes if pipe in wait(pipes, LOOK_S)]:
                try:
                    at, checked = pipe.recv()
                except EOFError:
                    pipes.remove(pipe)
                    pipe.close()
                    continue
                results[at] = checked
                if checked is None:
                    needed = min(needed, at)
            progress(sum(counts))
    finally:
        for each in children:
            each.terminate()
            each.join()
        for pipe in pipes:
            pipe.close()
    return [results.get(at) for at in range(needed)]


def _work(log: EventLog, spans: Sequence[Span], following: Any, counts: Any, answers: Connection) -> None:  # noqa: ANN401 - shared
    """Check one span after the other.

    Whatever a false snapshot leads to ends this process and leaves its span to the one that waits, which reports what
    is wrong.
    """
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        with following.get_lock():
            at = following.value
            following.value += 1
        if at >= len(spans):
            return

        def count(events: int, at: int = at) -> None:
            counts[at] = events

        answers.send((at, _check(log, spans[at], count)))


def _check(log: EventLog, span: Span, count: Callable[[int], object]) -> _Checked | None:
    """What there is to know of a span that follows the rules; None if anything deviates."""
    begin, last = span
    seam, state = _held(log, begin) if begin else (_START, ClusterState())
    audit = Audit()
    if begin:
        audit.resume(state, *seam.position)
    with unhindered():
        for _ in audit.deviations(_told(log.facts(seam.position, to=last), count)):
            return None
    end = _Seam(Position(audit.ends_at, audit.digest), "" if last is None else _digest(lines(audit.state)))
    return _Checked(seam, end, audit.events, audit.decisions, tuple(audit.companies))


def _held(log: EventLog, seq: int) -> tuple[_Seam, ClusterState]:
    """The snapshot at that position, and its state. Raises: BadSnapshot."""
    position, text = content(log, seq)
    return _Seam(position, _digest(text.decode().split("\n")[:-1])), state_in(text, seq)


def _digest(texts: Iterable[str]) -> str:
    digest = blake2b(digest_size=32)
    for text in texts:
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def _told(facts: Iterable[Fact], count: Callable[[int], object]) -> Iterator[Fact]:
    """The facts; `count` is called with their number so far, now and then."""
    number = 0
    for number, fact in enumerate(facts, start=1):
        if number % _COUNTED == 0:
            count(number)
        yield fact
    count(number)
