"""What claimants and losers are told about executors that leave for claims (semantics E8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    Command,
    EndedExecutor,
    RegisterCompany,
    RegisterWorker,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import ExecutorRevoked
from tests.property.given import Cluster
from tests.unit.recorded import facts
from witness.audit.audit import audit
from witness.explain import explain


def submit(app: str, company: str, cores: int, signal: str | None = None) -> SubmitApp:
    submitted = SubmitApp(app=app, company=company, user="u", tasks=cores, command=("true",), cores=cores)
    return replace(submitted, executor_cores=4, executor_memory_mb=1024, reclaim_signal=signal)


def ended(executor: str) -> EndedExecutor:
    return EndedExecutor(executor=executor, reason="killed")


def reclaimed(*more: Command, signal: str | None = None) -> Cluster:
    """Company a fills w1; then b, which is assured half of it, asks for one executor."""
    cluster = Cluster({"reclaim_patience_s": None})
    for command in (
        RegisterCompany(company="a"),
        RegisterCompany(company="b"),
        RegisterWorker(worker="w1", node="n1", host="h1", cores=16, memory_mb=65536),
        submit("x", "a", 16, signal),
        submit("y", "b", 4),
        *more,
    ):
        cluster.turn(command)
    return cluster


def test_the_audit_works_out_every_receipt_again() -> None:
    cluster = reclaimed(ended("x.3"), submit("z", "b", 4), ended("x.2"))
    assert sum(isinstance(logged.event, ExecutorRevoked) for logged in cluster.log) == 2
    assert audit(facts(cluster)) == []


def seized(*more: Command) -> tuple[Cluster, int]:
    """A cluster where a holds 12 cores, c 4, b claims 4 of a's, and the position of the loss."""
    cluster = Cluster()
    for name in "abc":
        cluster.turn(RegisterCompany(company=name))
    cluster.turn(RegisterWorker(worker="w1", node="n1", host="h1", cores=16, memory_mb=65536))
    for command in (submit("x", "a", 12), submit("z", "c", 4), submit("y", "b", 4), *more):
        cluster.turn(command)
    (seq,) = (fact.seq for fact in facts(cluster) if isinstance(fact.event, ExecutorRevoked))
    return cluster, seq


def test_a_signal_that_no_app_may_ask_for_is_refused() -> None:
    why = "the signal of --reclaim-signal must be one of HUP, INT, QUIT, TERM, USR1, USR2, not 'KILL'"
    with pytest.raises(InvalidCommand, match=why):
        reclaimed(signal="KILL")


def waits(cluster: Cluster, app: str) -> tuple[str, str, str]:
    wait = explain(facts(cluster), app)["waitsFor"]
    return wait["cause"], wait["rule"], wait["text"]
