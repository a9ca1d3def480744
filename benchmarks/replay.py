"""Replay and audit speed on a real store, printed as JSON.

`replay.py [EVENTS]` measures:

- Replay of logs of 10⁴, 10⁵ … EVENTS events (default 10⁶) of a busy cluster of 200 workers, on the embedded server.
  Each entry is read, verified in the chain, decoded and folded; then the resulting state is checked.
- Audit of the longest log, as in `fairlog audit`: every decision is made again, and the ledgers are compared at every
  position.
- Audit of a log of four times as many events, up to 10⁶, by eight spans between snapshots, in one process and in one
  for each core; wall-clock time.
- Writing a snapshot of 10,000 workers and 100,000 apps, and rebuilding the state from it.
- Replay of as many events by the `eventsourcing` library.

`growth` is the time per event in the longest log as a multiple of the shortest. `busy` figures are CPU time of the
process, which other load on the machine hardly affects.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks._common import arguments, companies, oldest_endings, show, submission, worker
from fairlog.local.store import EmbeddedStore
from recovery.replay import snapshot
from recovery.replay.rebuild import rebuild, unhindered
from scheduler.model.commands import ChangeEdition, Command, ConfigureCluster, StartedExecutor, SubmitApp
from scheduler.model.events import ExecutorAllocated
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.preconditions import EDITIONS
from scheduler.store.codec import Record, encode_turn
from scheduler.store.connection import connect
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.keys import Keys
from witness.audit import spans
from witness.audit.audit import Audit

if TYPE_CHECKING:
    from uuid import UUID

WORKERS, QUEUED = 200, 200
SPANS = 8
LARGE_WORKERS, LARGE_APPS = 10_000, 100_000
ROUNDS = 3
APPS_PER_TURN = 50
WORKER_CORES, APP_CORES = 16, 8
MS_PER_TURN = 100
EVENTS_PER_APP = SAVED_TOGETHER = 100


class History:
    """A cluster of `workers` 16-core workers and `queued` pending apps. The oldest admitted apps end first."""

    def __init__(self, *, workers: int, queued: int, retained: int = 10_000) -> None:
        self.state = ClusterState()
        self.position = GENESIS
        self._workers, self._queued, self._retained = workers, queued, retained
        self._number = 0
        self._started: deque[str] = deque()

    def records(self, until: int) -> Iterator[Record]:
        """The turns of the log, until it has at least `until` events."""
        if not self.state.head:
            yield from self._turn(ChangeEdition(edition=EDITIONS[-1]))
            yield from self._turn(ConfigureCluster(settings={"retained_apps": self._retained}))
            yield from self._turn(*companies())
            for first in range(0, self._workers, 1000):
                yield from self._turn(*map(worker, range(first, min(first + 1000, self._workers))))
            for _ in range((self._workers * WORKER_CORES // APP_CORES + self._queued) // APPS_PER_TURN):
                yield from self._turn(*(self._submission() for _ in range(APPS_PER_TURN)))
        while self.state.head < until:
            ends = oldest_endings(self.state, APPS_PER_TURN)
            yield from self._turn(*ends, *(self._submission() for _ in range(APPS_PER_TURN)))
            started, self._started = list(self._started), deque()
            yield from self._turn(*(StartedExecutor(executor=name) for name in started if name in self.state.executors))

    def _submission(self) -> SubmitApp:
        self._number += 1
        return submission(self._number, cores=APP_CORES)

    def _turn(self, *commands: Command) -> Iterator[Record]:
        turn = Turn(self.state, self.state.at + MS_PER_TURN)
        for number, command in enumerate(commands):
            turn.take(command, f"{turn.first:x}-{number}")
        turn.settle()
        self._started += [event.executor for event, _ in turn.entries if isinstance(event, ExecutorAllocated)]
        if turn.entries:
            record = encode_turn(
                turn.entries, turn.commands, first=turn.first, at=turn.at, previous=self.position.digest
            )
            self.position = Position(record.last, record.digest)
            yield record


def write(log: EventLog, history: History, until: int) -> None:
    """Extend the log by whole turns of the history to at least `until` events."""
    after = history.position
    for record in history.records(until):
        log.begin_commit(after, record).finish()
        after = history.position


class Took(NamedTuple):
    """Wall-clock and CPU seconds, last log position, and digest of the resulting state."""

    clock_s: float
    busy_s: float
    seq: int
    digest: str

    def per_event(self) -> dict[str, float]:
        """The printed figures."""
        return {
            "events": self.seq,
            "events_per_s": round(self.seq / self.clock_s),
            "busy_events_per_s": round(self.seq / self.busy_s),
            "busy_us_per_event": round(self.busy_s / self.seq * 1e6, 2),
        }


def _best(once: Callable[[], Took]) -> Took:
    """The round with the least CPU time; on a shared machine the others measure other load."""
    rounds = []
    for _ in range(ROUNDS):
        gc.collect()
        rounds.append(once())
    return min(rounds, key=lambda took: took.busy_s)


def _folded(log: EventLog, *, whole: bool) -> Took:
    def once() -> Took:
        began, busy = perf_counter(), process_time()
        state, position = rebuild(log, whole=whole)
        return Took(perf_counter() - began, process_time() - busy, position.seq, state.digest())

    return _best(once)


def _audited(log: EventLog) -> dict[str, Any]:
    print("auditing the longest log", file=sys.stderr)
    decisions = 0

    def once() -> Took:
        nonlocal decisions
        audited = Audit()
        began, busy = perf_counter(), process_time()
        with unhindered():
            if found := list(audited.deviations(log.facts())):
                raise AssertionError(f"the audit found a deviation: {found[0]}")
        decisions = audited.decisions
        return Took(perf_counter() - began, process_time() - busy, audited.events, audited.digest)

    return {**_best(once).per_event(), "decisions": decisions}


def _audited_by_spans(url: str, events: int) -> dict[str, Any]:
    print(f"auditing {events} events by spans", file=sys.stderr)
    history, log = History(workers=WORKERS, queued=QUEUED), EventLog(connect(url), Keys("spans"))
    for number in range(1, SPANS + 1):
        write(log, history, events * number // SPANS)
        snapshot.write(log, history.state, history.position)

    def rate(processes: int) -> int:
        began = perf_counter()
        found = spans.audited(log, processes)
        if found.verdicts:
            raise AssertionError(f"the audit found deviations: {found.verdicts[0]}")
        return round(found.events / (perf_counter() - began))

    one, all_cores = rate(1), rate(spans.processes())
    return {
        "events": history.state.head,
        "spans": len(snapshot.positions(log)),
        "processes": spans.processes(),
        "events_per_s": all_cores,
        "events_per_s_in_one": one,
        "ratio": round(all_cores / one, 2),
    }


def _whole_logs(url: str, events: int) -> dict[str, Any]:
    figures: list[dict[str, float]] = []
    history, log, size = History(workers=WORKERS, queued=QUEUED), EventLog(connect(url), Keys("whole")), 10_000
    while size <= events:
        print(f"replaying a log of {size} events", file=sys.stderr)
        write(log, history, size)
        took = _folded(log, whole=True)
        if took.digest != history.state.digest():
            raise AssertionError("the replayed state differs")
        figures.append(took.per_event())
        size *= 10
    growth = round(figures[-1]["busy_us_per_event"] / figures[0]["busy_us_per_event"], 3)
    return {"logs": figures, "growth": growth, "audit": _audited(log)}


def _from_snapshot(url: str) -> dict[str, float]:
    print(f"rebuilding from a snapshot of {LARGE_WORKERS} workers and {LARGE_APPS} apps", file=sys.stderr)
    running = LARGE_WORKERS * WORKER_CORES // APP_CORES
    history = History(workers=LARGE_WORKERS, queued=LARGE_APPS - running)
    log = EventLog(connect(url), Keys("large"))
    write(log, history, 0)
    started = perf_counter()
    taken = snapshot.write(log, history.state, history.position)
    written_s = perf_counter() - started
    took = _folded(log, whole=False)
    if took.digest != history.state.digest():
        raise AssertionError("the state rebuilt from the snapshot differs")
    return {
        "workers": len(history.state.workers),
        "apps": len(history.state.apps),
        "bytes": taken.size,
        "parts": taken.parts,
        "written_s": round(written_s, 3),
        "rebuilt_s": round(took.clock_s, 3),
        "rebuilt_busy_s": round(took.busy_s, 3),
    }


def _replayed_by_eventsourcing(events: int) -> dict[str, Any]:
    """Replay speed of the Python `eventsourcing` library, for as many events of similar size in its SQLite recorder.

    The library rebuilds aggregates one by one; here an aggregate is an app with its grants. It verifies no digests,
    checks no invariants and keeps no ledgers across apps.
    """
    try:
        from eventsourcing.application import Application  # noqa: PLC0415 - the comparison is optional
        from eventsourcing.domain import Aggregate, event  # noqa: PLC0415
    except ImportError:
        return {"missing": "pip install 'fairlog[bench]' for the comparison"}
    print("replaying with the eventsourcing library", file=sys.stderr)

    class App(Aggregate):
        @event("Registered")
        def __init__(self, app: str, company: str, user: str, cores: int, command: list[str]) -> None:
            self.app, self.company, self.user, self.cores, self.command = app, company, user, cores, command
            self.granted_cores = 0

        @event("Granted")
        def grant(self, app: str, executor: str, worker: str, cores: int, memory_mb: int) -> None:  # noqa: ARG002
            self.granted_cores += cores

    def written(number: int) -> App:
        app = App(f"app-{number}", "company1", "user1", 8, ["python", "-m", "report", "--day", str(number)])
        for grant in range(EVENTS_PER_APP - 1):
            app.grant(f"app-{number}", f"app-{number}.{grant}", f"w{grant:05}", 4, 4096)
        return app

    ids: list[UUID] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(Path(folder) / "events.db")}
        application: Application[UUID] = Application(env=environment)
        for first in range(0, events // EVENTS_PER_APP, SAVED_TOGETHER):
            apps = [written(first + number) for number in range(SAVED_TOGETHER)]
            application.save(*apps)
            ids += [app.id for app in apps]

        def once() -> Took:
            began, busy, held = perf_counter(), process_time(), 0
            for identity in ids:
                app: App = application.repository.get(identity)
                held += app.granted_cores
            if held != len(ids) * (EVENTS_PER_APP - 1) * 4:
                raise AssertionError("the replayed sum of cores differs")
            return Took(perf_counter() - began, process_time() - busy, len(ids) * EVENTS_PER_APP, "")

        took = _best(once)
        application.close()
    return took.per_event()


def main() -> None:
    """Run the benchmark and print the figures."""
    (events,) = arguments(__doc__, events=1_000_000)
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder)) as store:
        whole = _whole_logs(store.url, events)
        by_spans = _audited_by_spans(store.url, min(4 * events, 1_000_000))
        large = _from_snapshot(store.url)
    show(**whole, audit_by_spans=by_spans, snapshot=large, eventsourcing=_replayed_by_eventsourcing(events))


if __name__ == "__main__":
    main()
