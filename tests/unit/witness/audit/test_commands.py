"""What is not as the command behind it would have caused it is named where it stands, though the chain is whole."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from recovery.replay.chain import read_export
from scheduler.model.commands import (
    ChangeCompany,
    Command,
    DecommissionWorker,
    EndedDriver,
    EndedExecutor,
    KillApp,
    LoseWorker,
    RegisterCompany,
    RemoveCompany,
    RemoveWorker,
    ScaleApp,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import CommandRejected
from scheduler.model.events import EVENT_TYPES, CommandRefused, CompanyRegistered
from scheduler.rules.state import ClusterState
from scheduler.rules.turn import Turn
from scheduler.store.codec import GENESIS_DIGEST, Fact, Record, encode_turn
from tests.property.given import Cluster
from tests.unit.recorded import edited, facts, rechained, without
from tests.unit.recorded import said as stated
from witness.audit.audit import audit

GOLDEN = Path(__file__).parents[3] / "golden"


def golden() -> dict[str, list[Fact]]:
    """Recorded histories by the types that they hold."""
    logs: dict[str, list[Fact]] = {}
    for file in sorted(GOLDEN.glob("*.jsonl")):
        with file.open("rb") as lines:
            log = list(read_export(lines))
        logs |= {record.type: log for record in log}
    return logs


def lively() -> list[Fact]:
    """A cluster in which executors, drivers and workers end, one way or another, and take something along."""
    cluster = Cluster({"max_executor_failures": 1})
    cluster.company("acme", 128, 262144)
    for name in ("w1", "w2", "w3", "w4"):
        cluster.worker(name, 16)
    cluster.turn(SubmitApp(app="d1", company="acme", user="ann", driver=True, command=("true",)))
    cluster.submit("a1", 24)
    cluster.submit("a2", 6, per_task_mb=None)
    cluster.submit("a3", 8)
    cluster.turn(ChangeCompany(company="acme", cores=96, memory_mb=131072))
    cluster.turn(ScaleApp(app="a3", executors=1))
    cluster.turn(StartedExecutor(executor="a1.0"))
    cluster.ended("a1.0", done=True)
    cluster.turn(EndedExecutor(executor="a1.1", reason="exited"))
    cluster.turn(DecommissionWorker(worker="w2"))
    cluster.turn(LoseWorker(worker="w3", last_seen=5))
    cluster.turn(EndedDriver(driver="d1.driver-0", reason="failed", exit_code=3, detail="it was stopped by signal 9"))
    cluster.ended("a2.1", failed=True)
    cluster.turn(RemoveWorker(worker="w4"))
    for executor in list(cluster.state.workers["w4"].executors):
        cluster.ended(executor, done=True)
    cluster.company("bolt")
    cluster.turn(RemoveCompany(company="bolt"))
    return facts(cluster)


LOG = lively()


def position(kind: str, said: dict[str, object]) -> int:
    """Where the log has an entry of that type that says so."""
    places = [r.seq for r in LOG if r.type == kind and said.items() <= stated(r).items()]
    return places[0]


LOGS = {record.type: LOG for record in LOG} | golden()


def test_a_lively_log_has_no_deviation() -> None:
    assert audit(LOG) == []


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES.keys() - {"CommandRefused", "RefusalsOmitted"}))
def test_an_entry_that_was_doubled_is_named_at_its_own_position_whatever_it_is(kind: str) -> None:
    log = LOGS[kind]
    places = [number for number, record in enumerate(log, start=1) if record.type == kind]
    for seq in {places[0], places[len(places) // 2], places[-1]}:
        found = audit(rechained([*log[:seq], log[seq - 1], *log[seq:]]))
        assert found, seq
        assert found[0].seq == seq + 1, found[0]


@pytest.mark.parametrize(
    ("kind", "said", "rule"),
    [
        ("ExecutorRemoved", {"reason": "lost"}, "W2"),
        ("AppRemoved", {"app": "d1"}, "D3"),
        ("AppRemoved", {"app": "a2"}, "W5"),
        ("AppChanged", {"app": "a1"}, "S6"),
        ("WorkerRemoved", {"reason": "removed"}, "W3"),
        ("ExecutorRemoved", {"reason": "killed"}, "W6"),
    ],
)
def test_what_a_command_took_along_and_is_left_out_is_missed_where_it_was(
    kind: str, said: dict[str, object], rule: str
) -> None:
    seq = position(kind, said)
    found = audit(rechained(without(LOG, seq)))
    assert (found[0].seq, found[0].rule) == (seq, rule)
    assert found[0].due.startswith(kind)


@pytest.mark.parametrize(
    ("kind", "said", "changes", "rule"),
    [
        ("AppRegistered", {"app": "a2"}, {"requested_cores": 16}, "A1"),
        ("AppRegistered", {"app": "a2"}, {"requested_memory_mb": 512}, "A1"),
        ("AppRegistered", {"app": "a2"}, {"cores": 200, "requested_cores": 200, "requested_memory_mb": 102400}, "A1"),
        ("AppRegistered", {"app": "a2"}, {"company": "nobody"}, "A1"),
        ("ExecutorRemoved", {"reason": "lost"}, {"reason": "killed"}, "W2"),
        ("AppRemoved", {"app": "d1"}, {"reason": "finished"}, "D3"),
        ("WorkerRemoved", {"reason": "removed"}, {"last_seen": 7}, "W3"),
        ("WorkerChanged", {"status": "leaving"}, {"cores": 2}, "W3"),
        ("CompanyChanged", {}, {"cores": 1}, "C2"),
    ],
)
def test_what_came_of_a_command_and_was_edited_is_named(
    kind: str, said: dict[str, object], changes: dict[str, object], rule: str
) -> None:
    seq = position(kind, said)
    found = audit(rechained(edited(LOG, seq, **changes)))
    assert (found[0].seq, found[0].rule) == (seq, rule)


@pytest.mark.parametrize(
    "kind",
    [
        ("ExecutorRemoved", "AppChanged"),
        ("ExecutorRemoved", "AppRemoved"),
        ("DriverRemoved", "AppRemoved"),
        ("ExecutorRemoved", "WorkerRemoved"),
        ("AppChanged", "WorkerRemoved"),
    ],
)
def test_what_came_of_one_command_and_was_exchanged_is_named_where_it_begins(kind: tuple[str, str]) -> None:
    one = next(n for n, (r, s) in enumerate(pairwise(LOG)) if (r.type, s.type) == kind and r.cause)
    log = [*LOG[:one], LOG[one + 1], LOG[one], *LOG[one + 2 :]]
    found = audit(rechained(log))
    assert found[0].seq == one + 1


def refusing() -> list[Fact]:
    """A log with refusals, alone in a turn and beside what was accepted."""
    state, records, digest = ClusterState(), list[Record](), GENESIS_DIGEST
    given: tuple[tuple[int, tuple[Command, ...]], ...] = (
        (1_000, (RegisterCompany(company="a"), KillApp(app="x"))),
        (2_000, (KillApp(app="y"),)),
        (3_000, (RegisterCompany(company="a"), RegisterCompany(company="b"))),
    )
    for at, commands in given:
        turn = Turn(state, at)
        for number, command in enumerate(commands):
            try:
                turn.take(command, f"{at}-{number}")
            except CommandRejected as refusal:
                turn.refuse(command, refusal, f"{at}-{number}")
        turn.settle()
        records.append(encode_turn(turn.entries, turn.commands, first=turn.first, at=at, previous=digest))
        digest = records[-1].digest
    return facts(records)


def test_refusals_that_were_due_are_as_due() -> None:
    log = refusing()
    assert [fact.type for fact in log].count("CommandRefused") == 3
    assert audit(log) == []


def test_a_refusal_where_none_was_due_is_named_where_it_stands() -> None:
    log = refusing()
    fact = log[4]
    assert fact.command == RegisterCompany(company="b")
    log[4] = fact._replace(event=CommandRefused(error="DuplicateCompany", message="no"))
    assert audit(log)[0].seq == 5


def test_an_acceptance_where_a_refusal_was_due_is_named_where_it_stands() -> None:
    log = refusing()
    log[3] = log[3]._replace(event=CompanyRegistered(company="c"))
    assert audit(log)[0].seq == 4
