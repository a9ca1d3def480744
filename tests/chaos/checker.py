"""Check the promises against three sources only: the answers to clients, the log and the traces of tasks.

Each promise is a function that yields its violations. Nothing here decides or folds: grants are summed again in the
simplest way, which shows a mistake in the fold. `tests.chaos.decisions` recomputes every decision besides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import asdict

from scheduler.model.events import CommandRefused
from scheduler.store.codec import Fact, Record, told
from tests.chaos.history import DRIVER, REFUSED, Line, Trace

Data = dict[str, Any]


ALLOCATED = "ExecutorAllocated", "DriverAllocated"
REMOVED = "ExecutorRemoved", "DriverRemoved"


class Violation(NamedTuple):
    """A promise that was broken, and by what."""

    promise: str
    what: str


class Evidence:
    """The records of a run: the clients' histories, the log, the traces of tasks, and tasks that still run.

    `clock_ms`: how far the times of the log may be from those of traces, as the store's clock was wrong.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        records: Sequence[Record],
        traces: Sequence[Trace],
        running: Sequence[str] = (),
        clock_ms: int = 0,
    ) -> None:
        self.clock_ms = clock_ms
        self.lines = lines
        self.records = records
        self.traces = traces
        self.running = running

    @cached_property
    def facts(self) -> list[Fact]:
        """Everything that the log tells."""
        return [fact for record in self.records for fact in told(record)]

    @cached_property
    def log(self) -> list[tuple[Fact, Data]]:
        """Every event of the log with its data."""
        return [(fact, asdict(fact.event)) for fact in self.facts]

    def of_type(self, *types: str) -> Iterator[tuple[Fact, Data]]:
        """The entries of these types with their data."""
        return ((record, data) for record, data in self.log if record.type in types)

    @cached_property
    def by_cause(self) -> dict[str, list[Fact]]:
        """Command -> the entries that it caused."""
        found: dict[str, list[Fact]] = defaultdict(list)
        for record in self.facts:
            if record.cause:
                found[record.cause].append(record)
        return found

    @cached_property
    def sent(self) -> dict[str, Mapping[str, Any]]:
        """Command id -> the command as a client sent it."""
        return {line.id: line.command for line in self.lines if line.phase == "invoke"}

    @cached_property
    def ends(self) -> dict[str, tuple[Fact, Data]]:
        """App -> its end."""
        return {data["app"]: (record, data) for record, data in self.of_type("AppRemoved")}


def _grantee(data: Data) -> str:
    """The executor or driver of an entry about a grant."""
    return str(data.get("executor") or data["driver"])


Find = Callable[[Evidence], Iterator[str]]
"""Finds what breaks a promise."""


def check(evidence: Evidence, promises: Mapping[str, Find]) -> list[Violation]:
    """All violations, promise by promise."""
    return [Violation(promise, what) for promise, find in promises.items() for what in find(evidence)]


def _lost_acknowledgements(evidence: Evidence) -> Iterator[str]:
    for line in evidence.lines:
        if line.phase == "ok":
            held = evidence.facts[line.seq - 1] if 0 < line.seq <= len(evidence.facts) else None
            if evidence.sent[line.id]["type"] == "SubmitApp" and not line.seq:
                yield f"command {line.id} was acknowledged without a place in the log"
            elif line.seq and (held is None or held.cause != line.id):
                yield f"command {line.id} was acknowledged at log position {line.seq}, which does not hold it"
            elif held is not None and isinstance(held.event, CommandRefused):
                yield f"command {line.id} was acknowledged at log position {line.seq}, which refuses it"


def _refused_but_done(evidence: Evidence) -> Iterator[str]:
    refused = {line.id: line.error for line in evidence.lines if line.phase == "fail"}
    for command, why in refused.items():
        for record in evidence.by_cause.get(command, ()):
            event = record.event
            if not isinstance(event, CommandRefused):
                yield f"command {command} was refused ({why}), but caused {record.type} at log position {record.seq}"
            elif f"{event.error}: {event.message}" != why:
                yield f"command {command} was refused ({why}), but log position {record.seq} says {event.message}"
        if why.startswith("InternalError"):
            yield f"command {command} made the master fail: {why}"
        elif why.startswith("InvalidCommand") and evidence.sent[command]["type"] == "SubmitApp":
            yield f"command {command} was refused, though it is as it should be: {why}"
    for line in evidence.lines:
        if line.phase == "ok" and evidence.sent[line.id].get("name") == REFUSED:
            yield f"command {line.id} was acknowledged, but had to be refused"


def _done_twice(evidence: Evidence) -> Iterator[str]:
    for command, records in evidence.by_cause.items():
        turns = sorted({record.turn for record in records})
        if len(turns) > 1:
            yield f"command {command} was carried out in the turns {', '.join(map(str, turns))}"


def _never_sent(evidence: Evidence) -> Iterator[str]:
    for record, data in evidence.of_type("AppRegistered"):
        sent = evidence.sent.get(record.cause)
        if sent is None or sent.get("app") != data["app"]:
            yield f"log position {record.seq}: nobody submitted {data['app']} by command {record.cause or 'none'}"


def _cores_promised_twice(evidence: Evidence) -> Iterator[str]:
    offers: dict[str, tuple[int, int]] = {}
    held: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for record, data in evidence.log:
        worker = data.get("worker", "")
        match record.type:
            case "WorkerRegistered" | "WorkerChanged":
                offers[worker] = data["offer"].cores, data["offer"].memory_mb
            case "WorkerRemoved":
                if held.pop(worker, None):
                    yield f"log position {record.seq}: {worker} is removed, but holds grants"
                offers.pop(worker, None)
            case kind if kind in ALLOCATED:
                granted = data["resources"]
                held[worker][_grantee(data)] = granted.cores, granted.memory_mb
            case kind if kind in REMOVED:
                held[worker].pop(_grantee(data), None)
            case _:
                continue
        cores, memory_mb = (sum(grant[part] for grant in held[worker].values()) for part in (0, 1))
        offered = offers.get(worker, (0, 0))
        if cores > offered[0] or memory_mb > offered[1]:
            yield (
                f"log position {record.seq}: {worker} is granted {cores} cores and {memory_mb} MiB "
                f"of {offered[0]} and {offered[1]}"
            )


def _addresses_promised_twice(evidence: Evidence) -> Iterator[str]:
    held: dict[tuple[str, str, str], str] = {}
    for record, data in evidence.of_type(*ALLOCATED, *REMOVED):
        for place in [place for place, holder in held.items() if holder == _grantee(data)]:
            del held[place]
        if record.type in ALLOCATED:
            for kind, addresses in data["addresses"].items():
                for place in [(data["worker"], kind, address) for address in addresses]:
                    if place in held:
                        yield f"log position {record.seq}: {_grantee(data)} is granted {place}, as is {held[place]}"
                    held[place] = _grantee(data)


def _skipped_tasks(evidence: Evidence) -> Iterator[str]:
    ended: dict[str, set[int]] = defaultdict(set)
    for trace in evidence.traces:
        if trace.what == "end":
            ended[trace.app].add(trace.task)
    for _, data in evidence.of_type("AppRegistered"):
        app = data["app"]
        if app in evidence.ends and evidence.ends[app][1]["reason"] == "finished":
            due = {DRIVER} if data.get("driver") else set(range(data["tasks"]))
            missing = sorted(due - ended[app])
            if missing:
                yield f"{app} finished, but of its tasks {missing} never ran to their end"


def _twins(evidence: Evidence) -> Iterator[str]:
    processes: dict[str, set[str]] = defaultdict(set)
    for trace in evidence.traces:
        processes[trace.executor].add(trace.process)
        if trace.what == "twice":
            yield f"task {trace.task} of {trace.app} ran twice at once under {trace.executor}"
    for executor, found in processes.items():
        if len(found) > 1:
            yield f"{executor} was the processes {', '.join(sorted(found))}"


def _never_granted(evidence: Evidence) -> Iterator[str]:
    granted = {_grantee(data): record.at for record, data in evidence.of_type(*ALLOCATED)}
    for trace in evidence.traces:
        if trace.executor not in granted:
            yield f"task {trace.task} of {trace.app} ran under {trace.executor}, which the log never granted"
        elif trace.at_ms + evidence.clock_ms < granted[trace.executor]:
            yield f"task {trace.task} of {trace.app} ran under {trace.executor} before it was granted"


def _ran_on(evidence: Evidence) -> Iterator[str]:
    gone = {
        _grantee(data): record
        for record, data in evidence.of_type(*REMOVED)
        if data["reason"] != "lost"  # its worker is cut off and cannot say what it still runs (semantics W2)
    }
    for trace in evidence.traces:
        removed = gone.get(trace.executor)
        if removed is not None and trace.at_ms > removed.at + evidence.clock_ms:
            late_ms = trace.at_ms - removed.at
            yield (
                f"task {trace.task} of {trace.app} still ran under {trace.executor} {late_ms} ms after log position "
                f"{removed.seq} said that it was gone"
            )
    for task in evidence.running:
        yield f"{task} still runs, though every app has ended"


def _wrong_ends(evidence: Evidence) -> Iterator[str]:
    asked = {command["app"] for command in evidence.sent.values() if command["type"] == "KillApp"}
    for record, data in evidence.of_type("AppRegistered"):
        app, how = data["app"], record.private.name if record.private else ""
        if app not in evidence.ends:
            yield f"{app} never ended"
            continue
        end = evidence.ends[app][1]
        reason, detail = end["reason"], end["detail"]
        if reason == "killed" and app not in asked:
            yield f"{app} was killed, which nobody asked for"
        elif reason == "failed" and how != "fails":
            yield f"{app} failed, but its command does not: {detail}"
        elif reason == "expired" and data["max_runtime_s"] is None:
            yield f"{app} expired, though it may run for ever"
        elif reason == "finished" and how == "fails":
            yield f"{app} finished, but its command fails"
    left: dict[str, str] = {}
    for record, data in evidence.of_type(*ALLOCATED, *REMOVED):
        if record.type in ALLOCATED:
            left[_grantee(data)] = data["worker"]
        else:
            left.pop(_grantee(data), None)
    for executor, worker in left.items():
        yield f"{executor} still holds its grant on {worker} at the end"


def _lost_too_early(evidence: Evidence) -> Iterator[str]:
    timeout_ms = elected_at = 0
    for record, data in evidence.log:
        match record.type:
            case "ClusterConfigured":
                timeout_ms = 1000 * int(data["worker_timeout_s"])
            case "MasterElected":
                elected_at = record.at
            case "WorkerRemoved" if data["reason"] == "lost":
                watched_ms = record.at - elected_at
                if watched_ms < timeout_ms or record.at - data["last_seen"] < timeout_ms:
                    yield (
                        f"log position {record.seq}: {data['worker']} is declared lost {watched_ms} ms after an "
                        f"election, last seen {record.at - data['last_seen']} ms ago, timeout {timeout_ms} ms"
                    )
            case _:
                pass


PROMISES: dict[str, Find] = {
    "what was acknowledged is in the log": _lost_acknowledgements,
    "what was refused left nothing but its refusal": _refused_but_done,
    "no command was carried out twice": _done_twice,
    "nothing is in the log that nobody asked for": _never_sent,
    "no core was promised twice": _cores_promised_twice,
    "no address was promised twice": _addresses_promised_twice,
    "no task was skipped": _skipped_tasks,
    "no executor ran twice": _twins,
    "nothing ran that was not granted": _never_granted,
    "nothing ran on that was said to be gone": _ran_on,
    "every app ended as it should": _wrong_ends,
    "no worker was declared lost too early": _lost_too_early,
}
