"""What claimants and losers are told about executors that leave for claims (semantics E8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from recovery.replay.rebuild import fold
from scheduler.model.commands import (
    Command,
    EndedExecutor,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    StartedExecutor,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import ExecutorRevoked, RevocationWithdrawn, Shares
from scheduler.model.grants import Grant
from scheduler.model.resources import Resources
from scheduler.rules.assignments import all_grants, changed_grants
from scheduler.rules.state import ClusterState
from tests.property.given import Cluster
from tests.unit.recorded import edited, facts, rechained
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


@pytest.mark.second_edition
def test_a_claimant_is_told_what_was_asked_to_leave_for_it_and_until_when() -> None:
    cluster = reclaimed()
    (claim,) = explain(facts(cluster), "y")["claims"]
    leaving = [{"executor": "x.3", "app": "x", "deadline": claim["since"] + 300_000}]
    assert claim == {"worker": "w1", "cores": 4, "memory": 1024, "reason": "reclaim", "since": claim["since"]} | {
        "leaving": leaving
    }


@pytest.mark.second_edition
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


@pytest.mark.second_edition
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


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"app": "z", "executor": "z.0"}, "E2"),  # c has no more than its part
        ({"app": "z", "executor": "z.0", "rule": "E3"}, "E3"),
        ({"executor": "x.0"}, "E4"),  # it was granted before
        ({"since": 1}, "E5"),
        ({"shares": Shares("0/1", "1/1", "3/1", "1/1")}, "E5"),
        ({"claimant_company": "c"}, "E5"),
    ],
    ids=str,
)
@pytest.mark.second_edition
def test_a_loss_that_the_rules_do_not_allow_is_named_where_it_is(changes: dict[str, object], rule: str) -> None:
    """Semantics E8."""
    cluster, seq = seized(ended("x.2"))
    assert audit(facts(cluster)) == []
    first = audit(rechained(edited(facts(cluster), seq, **changes)))[0]
    assert (first.seq, first.rule) == (seq, rule)
    assert all(str(value) in first.done for value in changes.values())


@pytest.mark.second_edition
def test_a_loss_for_a_claim_that_is_not_due_is_named_where_its_room_is_held() -> None:
    """Semantics E1: b has its part already."""
    cluster, seq = seized(ended("x.2"), StartedExecutor(executor="x.0"))
    log = facts(cluster)
    *_, last = log
    claim = [replace(log[seq - 2].event, amounts=Resources(4, 1024)), replace(log[seq - 1].event, executor="x.1")]
    planted = [replace(last, seq=last.seq + n, event=event, command=None, cause="") for n, event in enumerate(claim, 1)]
    first = audit(rechained([*log, *planted]))[0]
    assert (first.seq, first.rule) == (last.seq + 1, "E1")


@pytest.mark.second_edition
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


@pytest.mark.second_edition
def test_firm_reclaiming_takes_nothing_that_was_granted_just_now() -> None:
    """Semantics E2."""
    assert not any(isinstance(logged.event, ExecutorRevoked) for logged in reclaimed(mode="firm").log)


@pytest.mark.second_edition
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


@pytest.mark.second_edition
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


def waits(cluster: Cluster, app: str) -> tuple[str, str, str]:
    wait = explain(facts(cluster), app)["waitsFor"]
    return wait["cause"], wait["rule"], wait["text"]


@pytest.mark.second_edition
def test_a_claimant_waits_for_the_executors_that_are_to_leave() -> None:
    since = "is held for it on w1 since 1970-01-01 00:00:05.000Z"
    assert waits(reclaimed(), "y") == ("claim", "E5", f"room for 4 cores and 1024 MiB {since}; x.3 is to leave for it")


@pytest.mark.second_edition
def test_room_that_is_held_for_another_app_is_why_one_waits() -> None:
    """Semantics P8: y claims 12 cores, and one of the two executors that leave for it is gone."""
    cluster = Cluster()
    for name in "ab":
        cluster.turn(RegisterCompany(company=name))
    for name in ("w1", "w2"):
        cluster.worker(name, 16)
    for command in (
        replace(submit("v", "a", 16), executor_cores=16),
        submit("x", "a", 12),
        replace(submit("u", "a", 8), executor_cores=8),
        replace(submit("y", "b", 12), executor_cores=12),
        ended("x.2"),
    ):
        cluster.turn(command)
    assert waits(cluster, "u") == ("held-for-others", "P8", "what is free is held on w1 for y of b")


@pytest.mark.second_edition
def test_a_claim_whose_losses_would_be_unlawful_in_the_end_is_told_so() -> None:
    """Semantics E4: on each worker the claim needs the cores of one app and the GPUs of another, too much to lose."""
    cluster = Cluster()
    gpus: dict[str, tuple[str, ...]] = {"gpu": ("0", "1")}
    cluster.turn(RegisterKind(kind="gpu"))
    for name, cores in (("a", 20), ("b", 12)):
        cluster.turn(RegisterCompany(company=name, cores=cores, memory_mb=cores * 1024, borrow=True))
    for name in ("w1", "w2"):
        offer = RegisterWorker(worker=name, node=name, host=name, cores=16, memory_mb=16384, resources=gpus)
        cluster.turn(offer)

    def sized(app: str, company: str, cores: int, **resources: int) -> SubmitApp:
        size = {"executor_cores": cores, "executor_memory_mb": cores * 1024, "executor_resources": resources}
        return replace(submit(app, company, cores), **size)

    for number in (1, 2):
        cluster.turn(sized(f"large{number}", "a", 14))
    for number in (1, 2):
        cluster.turn(sized(f"gpus{number}", "a", 2, gpu=2))
    cluster.turn(sized("y", "b", 10, gpu=2))
    assert {worker.free.cores for worker in cluster.state.workers.values()} == {0}
    text = (
        "b holds 0 cores and 0 MiB of its part, 12 cores and 12288 MiB, but no executors can leave for 10 cores and "
        "10240 MiB and 2 gpu without taking from a company what it is assured"
    )
    assert waits(cluster, "y") == ("reclaim-unlawful", "E4", text)


@pytest.mark.second_edition
def test_a_claimant_whose_memory_is_worked_out_waits_for_its_claim() -> None:
    """Semantics S3, E5: with the room that is held for it in view, it needs 512 MiB a core, which is not there yet."""
    cluster = Cluster()
    for command in (
        RegisterCompany(company="a"),
        RegisterCompany(company="b"),
        RegisterWorker(worker="w1", node="n1", host="h1", cores=20, memory_mb=10240),
        replace(submit("x", "a", 12), executor_memory_mb=2304),
        SubmitApp(app="y", company="b", user="u", command=("true",), cores=8, tasks=1),
    ):
        cluster.turn(command)
    found = explain(facts(cluster), "y")
    assert found["claims"] != []
    assert found["waitsFor"]["cause"] == "claim"
