"""Failing workers are named with their numbers, and the audit decides them again (semantics W7, W8, W9)."""

from __future__ import annotations

from msgspec import to_builtins

from recovery.replay.bounds import moment
from scheduler.rules.view.views import suspicion
from scheduler.store.codec import Fact, told
from tests.property.given import Cluster
from tests.unit.scheduler.rules.command.test_failures import eight, fail, failed, more, one_executor, suspected
from witness.audit.audit import audit
from witness.failing import exclusion_in_words, suspicion_in_words
from witness.pending_reasons import waits_for


def facts_of(cluster: Cluster) -> list[Fact]:
    return [fact for record in cluster.records for fact in told(record)]


def test_an_app_that_only_suspect_workers_have_room_for_is_told_so() -> None:
    cluster, name, event = suspected()
    cluster.turn(*(one_executor(f"full{number}") for number in range(6)), one_executor("last"))
    wait = waits_for(cluster.state, cluster.state.apps["last"])
    assert wait is not None
    assert (wait.cause, wait.rule) == ("suspect-worker", "W8")
    assert wait.tell()[0] == (
        f"worker {name} is suspected until {moment(event.until)}: "
        "a.0, b.0, a.1 ended abnormally within 10 s of their start"
    )


def test_a_suspect_worker_on_probe_is_named_with_its_probe() -> None:
    cluster, name, _ = suspected()
    known = to_builtins(suspicion(cluster.state.workers[name]))
    assert known is not None
    cluster.turn(after_s=60)
    on_probe = to_builtins(suspicion(cluster.state.workers[name]))
    assert on_probe is not None
    assert suspicion_in_words(name, on_probe).startswith(f"worker {name} is suspected and gets one executor as a probe")
    assert "x.0 runs on it as a probe" in suspicion_in_words(name, {**on_probe, "probe": "x.0"})
    one = {"worker": "w1", "until": 0, "ends": 1, "unstartable": True}
    assert exclusion_in_words(one) == f"it is excluded from w1 until {moment(0)}: its command cannot be started there"


def test_the_audit_decides_exclusions_suspicions_and_probes_again() -> None:
    cluster, name, _ = suspected()
    cluster.turn(*more())
    for after_s in (1, 60, 1, 121, 1):
        there = [held.id for held in cluster.state.workers[name].executors.values() if held.app.startswith("more")]
        cluster.turn(*map(failed, there), after_s=after_s)
    kinds = {type(fact.event).__name__ for record in cluster.records for fact in told(record)}
    assert {"WorkerSuspected", "WorkerProbed"} <= kinds
    assert audit(facts_of(cluster)) == []
    other = eight()
    other.turn(one_executor("a"), one_executor("b"))
    fail(other, "a")
    assert audit(facts_of(other)) == []
