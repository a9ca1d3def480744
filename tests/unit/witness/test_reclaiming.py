"""What claimants and losers are told about executors that leave for claims (semantics E8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from recovery.replay.rebuild import fold
from scheduler.model.commands import Command, EndedExecutor, RegisterCompany, RegisterWorker, SubmitApp
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import ExecutorRevoked, RevocationWithdrawn
from scheduler.model.grants import Grant
from scheduler.rules.assignments import all_grants, changed_grants
from scheduler.rules.state import ClusterState
from tests.property.given import Cluster
from tests.unit.recorded import facts
from witness.audit.audit import audit
from witness.explain import explain
from witness.usage import Accounts


def submit(app: str, company: str, cores: int, signal: str | None = None) -> SubmitApp:
    submitted = SubmitApp(app=app, company=company, user="u", tasks=cores, command=("true",), cores=cores)
    return replace(submitted, executor_cores=4, executor_memory_mb=1024, reclaim_signal=signal)


def ended(executor: str) -> EndedExecutor:
    return EndedExecutor(executor=executor, reason="killed")


def reclaimed(*more: Command, mode: str = "gentle", signal: str | None = None) -> Cluster:
    """Company a fills w1; then b, which is assured half of it, asks for one executor."""
    cluster = Cluster({"reclaim": mode})
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


def test_a_claimant_is_told_what_was_asked_to_leave_for_it_and_until_when() -> None:
    cluster = reclaimed()
    (claim,) = explain(facts(cluster), "y")["claims"]
    leaving = [{"executor": "x.3", "app": "x", "deadline": claim["since"] + 300_000}]
    assert claim == {"worker": "w1", "cores": 4, "memory": 1024, "reason": "reclaim", "since": claim["since"]} | {
        "leaving": leaving
    }


def test_a_loser_is_told_for_whom_since_when_and_both_shares() -> None:
    (loss,) = explain(facts(reclaimed()), "x")["losses"]
    assert (loss["executor"], loss["claimant"], loss["claimantCompany"], loss["rule"]) == ("x.3", "y", "b", "E2")
    assert loss["since"] == loss["at"]
    assert loss["shares"] == {
        "claimant_before": "0/1",
        "claimant_after": "1/2",
        "loser_before": "2/1",
        "loser_after": "3/2",
    }


def test_a_loss_that_was_withdrawn_is_told_no_more() -> None:
    """Another executor ends first, so y is served elsewhere on w1 and x.3 goes on."""
    cluster = reclaimed(ended("x.0"))
    assert explain(facts(cluster), "x")["losses"] == []
    assert explain(facts(cluster), "y")["claims"] == []
    assert cluster.state.executors["x.3"].status == "starting"


def test_the_audit_works_out_every_receipt_again() -> None:
    cluster = reclaimed(ended("x.3"), submit("z", "b", 4), ended("x.2"))
    assert sum(isinstance(logged.event, ExecutorRevoked) for logged in cluster.log) == 2
    assert audit(facts(cluster)) == []


def test_a_statement_counts_what_was_lost_and_what_it_had_run() -> None:
    cluster = reclaimed(ended("x.3"))
    usages = Accounts()
    usages.first_at = 0
    told = list(facts(cluster))
    state = ClusterState()
    for fact in told:
        fold(state, fact)
        usages.observe(state, fact.event)
    granted = next(fact.at for fact in told if getattr(fact.event, "executor", "") == "x.3")
    account = usages.latest("x", told[-1].at)
    assert account.lost == 1
    assert account.lost_core_ms == 4 * (told[-1].at - granted)


def test_firm_reclaiming_takes_nothing_that_was_granted_just_now() -> None:
    """Semantics E2."""
    assert not any(isinstance(logged.event, ExecutorRevoked) for logged in reclaimed(mode="firm").log)


def test_a_worker_is_told_that_an_executor_leaves_and_when_it_need_not() -> None:
    cluster = reclaimed()
    leaving = Grant.model_validate_json(all_grants(cluster.state)["w1"]["x.3"]).leaving
    assert leaving is not None
    assert (leaving.firm, leaving.grace_s, leaving.signal) == (False, 30, "")
    before = len(cluster.log)
    cluster.turn(ended("x.0"))
    events = [logged.event for logged in cluster.log[before:]]
    assert any(isinstance(event, RevocationWithdrawn) for event in events)
    changed = changed_grants(events, cluster.state).by_worker["w1"]["x.3"]
    assert Grant.model_validate_json(changed or "").leaving is None


def test_a_worker_is_told_which_signal_the_tasks_of_an_executor_that_leaves_get() -> None:
    """Semantics E5."""
    grants = all_grants(reclaimed(signal="USR1").state)["w1"]
    leaving = Grant.model_validate_json(grants["x.3"]).leaving
    assert leaving is not None
    assert leaving.signal == "USR1"


def test_a_signal_that_no_app_may_ask_for_is_refused() -> None:
    why = "the signal of --reclaim-signal must be one of HUP, INT, QUIT, TERM, USR1, USR2, not 'KILL'"
    with pytest.raises(InvalidCommand, match=why):
        reclaimed(signal="KILL")
