"""Refusals are events, whatever was refused (semantics T3)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scheduler.model.commands import (
    Command,
    ExtendApp,
    HoldApp,
    RegisterKind,
    RegisterWorker,
    ReleaseApp,
    ReprioritizeApp,
    SetLimit,
)
from scheduler.model.errors import CommandRejected, refusal_of
from scheduler.model.events import CommandRefused
from scheduler.model.sender import By
from scheduler.rules.stage.turn import Turn
from tests.property.given import Cluster, shared, submission
from tests.unit.recorded import facts
from witness.audit.audit import audit


def busy() -> Cluster:
    """`run` runs for 60 s at most, `done` has ended."""
    cluster = shared({"max_max_runtime_s": 60}, w1=16)
    cluster.turn(RegisterKind(kind="gpu"))
    cluster.submit("done", 4)
    cluster.ended("done.0", done=True)
    cluster.submit("run", 4)
    return cluster


ASKED = submission("new", 4)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (ReprioritizeApp(app="run", priority=1001), "InvalidCommand"),
        (ReprioritizeApp(app="nobody", priority=1), "UnknownApp"),
        (HoldApp(app="run"), "NotPending"),
        (ReleaseApp(app="nobody"), "UnknownApp"),
        (ExtendApp(app="run", by_s=60), "RuntimeTooLong"),
        (SetLimit(scope="company", name="max_cores", value=-1, company="acme"), "InvalidCommand"),
        (SetLimit(scope="cluster", name="max_fpga", value=1), "InvalidCommand"),
        (RegisterKind(kind="cores"), "InvalidCommand"),
        (
            RegisterWorker(worker="w2", node="n", host="h", cores=4, memory_mb=4096, resources={"tpu": ("0",)}),
            "UnknownKind",
        ),
        (replace(ASKED, after={"ok": ("new",)}), "UnknownDependency"),
        (replace(ASKED, max_runtime_s=61), "RuntimeTooLong"),
        (replace(ASKED, priority=-1001), "InvalidCommand"),
        (replace(ASKED, max_runtime_s=9, warn=("USR1", 9)), "InvalidCommand"),
        (replace(ASKED, reclaim_signal="KILL"), "InvalidCommand"),
        (replace(ASKED, task_resources={"tpu": "1"}), "UnknownKind"),
        (replace(ASKED, task_resources={"gpu": "1"}), "NeverFits"),
        (replace(ASKED, cores_per_task=17), "InvalidCommand"),
        (replace(ASKED, executor_cores=8, executor_memory_mb=1024, memory_per_task_mb=None), "InvalidCommand"),
    ],
    ids=str,
)
def test_a_refusal_is_an_event_that_the_audit_works_out_again(command: Command, error: str) -> None:
    cluster = busy()
    turn = Turn(cluster.state, cluster.state.at + 1000)
    with pytest.raises(CommandRejected) as refused:
        turn.take(command, "a")
    assert turn.refuse(command, refused.value, "a", By("acme/ann"))
    turn.settle()
    cluster._note(turn)
    last = facts(cluster)[-1]
    assert last.event == CommandRefused(error=error, message=str(refused.value))
    assert last.by == By("acme/ann")
    again = refusal_of(error, str(refused.value))
    assert (type(again), str(again)) == (type(refused.value), str(refused.value))
    assert audit(facts(cluster)) == []


def test_an_accounts_refusals_of_a_minute_keep_nobody_elses_out_of_the_log() -> None:
    """Semantics T3: at most 60 a minute of each account."""
    cluster = busy()

    def logged(account: str, at: int, number: int) -> list[bool]:
        turn, by = Turn(cluster.state, at), By(account)
        found = []
        for each in range(number):
            command, cause = ReleaseApp(app="nobody"), f"{account} {at} {each}"
            with pytest.raises(CommandRejected) as refused:
                turn.take(command, cause, by)
            found.append(turn.refuse(command, refused.value, cause, by))
        turn.settle()
        cluster._note(turn)
        return found

    assert logged("acme/ann", 120_000, 61) == [True] * 60 + [False]
    assert logged("bolt/bo", 120_001, 1) == [True]
    assert logged("acme/ann", 179_999, 1) == [False]
    assert logged("acme/ann", 180_000, 1) == [True]
    assert audit(facts(cluster)) == []
