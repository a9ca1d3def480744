"""What people see where sharing is by entitlement: explanations, shares, the audit and what-if (semantics H)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from recovery.replay.bounds import moment
from scheduler.model.causes import CAUSES
from scheduler.model.commands import (
    AddWindow,
    ChangeCompany,
    ChangeEdition,
    Command,
    ConfigureCluster,
    EndedExecutor,
    RegisterCompany,
    RegisterWorker,
    ScaleApp,
    SubmitApp,
)
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import (
    AppAdmitted,
    Event,
    ExecutorRevoked,
    NeedBegan,
    NeedEnded,
    SlotAwaited,
    SlotBegan,
    SlotEnded,
    TargetEnded,
    TargetSet,
)
from scheduler.rules.view import views
from scheduler.rules.view.views import edition, shares
from tests.property.given import Cluster
from tests.unit.recorded import edited, facts, rechained, without
from witness.audit.audit import audit
from witness.board import company, overview
from witness.explain import explain
from witness.pending_reasons import waits_for
from witness.whatif import Rules, replayed


def submit(app: str, company: str, cores: int, size: int = 4, user: str = "u") -> SubmitApp:
    submitted = SubmitApp(app=app, company=company, user=user, tasks=cores, command=("true",), cores=cores)
    return replace(submitted, executor_cores=size, executor_memory_mb=size * 256)


def ended(executor: str) -> EndedExecutor:
    return EndedExecutor(executor=executor, reason="killed")


def played(*commands: Command, borrow: bool = True) -> Cluster:
    """Two companies on a worker of 16 cores."""
    cluster = Cluster({"reclaim_patience_s": 60, "min_runtime_s": 0})
    begin: list[Command] = [
        RegisterCompany(company="a", borrow=borrow),
        RegisterCompany(company="b", borrow=borrow),
        RegisterWorker(worker="w1", node="n1", host="h1", cores=16, memory_mb=65536),
    ]
    for command in (*begin, *commands):
        cluster.turn(command)
    return cluster


def lent(*more: Command) -> Cluster:
    """Company a holds all of w1, then b asks for three executors: two are its own."""
    return played(submit("x", "a", 16), submit("y", "b", 12), *more)


def of_type(cluster: Cluster, kind: type[Event]) -> list[Event]:
    return [logged.event for logged in cluster.log if isinstance(logged.event, kind)]


def test_who_may_have_no_further_executor_is_not_below_and_is_told_so() -> None:
    asked: dict[str, Any] = {"executor_memory_mb": 1024, "executor_limit": 1}
    other = RegisterWorker(worker="w2", node="n2", host="h2", cores=16, memory_mb=65536)
    cluster = played(other, SubmitApp(app="x", company="a", user="u", cores=32, tasks=32, command=("true",), **asked))
    standing = explain(facts(cluster), "x")["standing"]
    assert standing["text"] == "The app holds 16 of the 32 cores that are its own; it requests no further executor."
    a = to_builtins(shares(cluster.state))["companies"][0]
    assert [a[f"{name}Cores"] for name in ("entitled", "held", "below")] == [32, 16, 0]
    assert [a[f"{name}Memory"] for name in ("demand", "entitled", "held", "below")] == [2048, 2048, 1024, 0]


def test_a_claimant_is_told_in_one_sentence_what_is_its_own_and_by_when() -> None:
    standing = explain(facts(lent()), "y")["standing"]
    assert standing["text"].startswith("The app holds 0 of the 8 cores that are its own; w1 is being emptied for it")
    assert standing["text"].endswith(" at the latest.")
    assert (standing["entitledCores"], standing["heldCores"], standing["belowCores"]) == (8, 0, 8)
    (target,) = standing["targets"]
    assert target["worker"] == "w1"
    assert [one["app"] for one in target["leaving"]] == ["x"]
    assert target["leaving"][0]["deadline"] == standing["date"]


def test_who_waits_longer_since_an_executor_runs_for_its_minimum_is_told_so() -> None:
    cluster = played(replace(submit("x", "a", 16), min_runtime_s=900), submit("y", "b", 4))
    told = explain(facts(cluster), "y")
    assert " at the latest, as x.0 may run for 900 s from its grant on." in told["standing"]["text"]
    assert told["standing"]["targets"][0]["leaving"][0]["deadline"] > told["standing"]["date"]
    assert explain(facts(cluster), "x")["losses"]


def test_who_waits_for_its_companys_cap_is_not_told_that_an_empty_worker_is_emptied() -> None:
    other = RegisterWorker(worker="w2", node="n2", host="h2", cores=16, memory_mb=65536)
    cluster = played(borrow=False)
    cluster.turn(ChangeCompany(company="a", cores=16, memory_mb=65536), submit("x", "a", 16))
    cluster.turn(other, submit("y", "a", 8, user="v"))
    text = explain(facts(cluster), "y")["waitsFor"]["text"]
    assert "; room on w2 is kept for it until executors below the same cap have left, by " in text
    assert "emptied" not in text


def test_who_finds_no_room_below_a_cap_for_memory_of_executors_that_grow_is_told_so() -> None:
    more = [
        RegisterWorker(worker=f"w{each}", node=f"n{each}", host=f"h{each}", cores=4, memory_mb=65536) for each in (2, 3)
    ]
    cluster = played(*more, ChangeCompany(company="a", cores=64, memory_mb=16384), borrow=False)
    grows = SubmitApp(app="x", company="a", user="u", cores=12, tasks=12, command=("true",), executor_memory_mb=1024)
    cluster.turn(grows)
    cluster.turn(replace(submit("y", "a", 4, user="v"), executor_memory_mb=16384))
    text = explain(facts(cluster), "y")["waitsFor"]["text"]
    assert text.endswith("executors that grow, of x, hold 3072 MiB, of which entitlements count no memory (H2)"), text
    assert "what a and its departments may hold leaves it no room" in text


def test_a_loser_is_told_what_leaves_and_its_receipt() -> None:
    told = explain(facts(lent()), "x")
    text = "The app holds 12 cores, of which 4 cores are lent to it; 8 cores are its own"
    assert told["standing"]["text"].startswith(text)
    assert "; 4 cores leave, by " in told["standing"]["text"]
    (loss,) = told["losses"]
    assert (loss["claimant"], loss["rule"], loss["why"]) == ("y", "H6 surplus", "surplus")
    before, after = loss["shares"]["loser_before"], loss["shares"]["loser_after"]
    assert (before, after) == ("4/2", "3/2")


def test_who_waits_for_its_room_has_a_need() -> None:
    wait = explain(facts(lent()), "y")["waitsFor"]
    assert (wait["cause"], wait["rule"]) == ("need", "H6")
    assert wait["text"].startswith("it is 2 units below its entitlement since ")


def test_who_is_told_by_the_log_is_served_and_its_need_ends() -> None:
    cluster = lent(ended("x.3"), ended("x.2"))
    assert len(cluster.state.apps["y"].executors) == 2
    assert explain(facts(cluster), "y")["standing"]["text"] == "The app holds 8 of the 8 cores that are its own."
    for kind in (NeedBegan, NeedEnded, TargetSet, TargetEnded, ExecutorRevoked):
        assert of_type(cluster, kind), kind


def test_an_app_that_is_not_entitled_is_told_why() -> None:
    cluster = lent(submit("z", "a", 4, user="v"), ended("x.3"), ended("x.2"), submit("late", "b", 4))
    for app in cluster.state.apps.values():
        wait = waits_for(cluster.state, app)
        assert wait is None or wait.cause in CAUSES
    wait = waits_for(cluster.state, cluster.state.apps["late"])
    assert wait is not None
    assert (wait.cause, wait.rule) in {("not-entitled", "H2"), ("queue", "F1")}


def test_an_app_larger_than_what_others_leave_of_the_cluster_is_told_so() -> None:
    cluster = played(submit("x", "a", 16), submit("y", "b", 16, 16))
    wait = waits_for(cluster.state, cluster.state.apps["y"])
    assert wait is not None
    assert (wait.cause, wait.rule) == ("larger-than-share", "H10")
    text, said = wait.tell()
    assert text == (
        "its unit, 16 cores and 4096 MiB, is 2.0 times the fair part of b, 8 cores and 32768 MiB; once the cluster is "
        "shared, no room is left for it, and 0 cores and 0 MiB are due to b; there are no slots: `slot_s` is 0"
    )
    assert (said["fairCores"], said["times"], said["slotS"], said["slotDate"]) == (8, "2", 0, None)


def in_slots() -> Cluster:
    """An app of one executor as large as the cluster has had its slot; everybody obeyed."""
    cluster = played(ConfigureCluster(settings={"slot_s": 60}), submit("x", "a", 16), submit("y", "b", 16, 16))
    cluster.turn(after_s=60)
    told = [name for name, one in cluster.state.executors.items() if one.status == "stopping"]
    cluster.turn(*map(ended, told), after_s=60)
    return cluster


def test_who_has_a_slot_is_told_until_when_and_the_audit_derives_it() -> None:
    cluster = in_slots()
    slot = cluster.state.slots["y"]
    assert explain(facts(cluster), "y")["standing"]["text"].endswith(f"; its slot lasts until {moment(slot.until)}.")
    (executor,) = to_builtins(views.app(cluster.state, app="y"))["executors"]
    assert executor["slotUntil"] == slot.until
    cluster.turn(after_s=60)
    for kind in (SlotAwaited, SlotBegan, SlotEnded):
        assert of_type(cluster, kind), kind
    assert audit(facts(cluster)) == []
    cluster.check_replay()


def test_who_awaits_a_slot_is_told_from_when_on() -> None:
    cluster = played(ConfigureCluster(settings={"slot_s": 60}), submit("x", "a", 16), submit("y", "b", 16, 16))
    wait = waits_for(cluster.state, cluster.state.apps["y"])
    assert wait is not None
    text, said = wait.tell()
    date = cluster.state.slots["y"].date
    assert text.endswith(f"; it may have a slot of 60 s from {moment(date)} on")
    assert said["slotDate"] == date


@pytest.mark.parametrize(("kind", "change"), [(SlotAwaited, {"date": 7}), (SlotBegan, {"units": 2})])
def test_the_audit_finds_a_slot_that_was_not_due(kind: type[Event], change: dict[str, object]) -> None:
    log = facts(in_slots())
    seq = next(fact.seq for fact in log if isinstance(fact.event, kind))
    first = audit(rechained(edited(log, seq, **change)))[0]
    assert (first.seq, first.rule) == (seq, "H10")


def test_a_company_that_may_not_borrow_is_told_its_cap() -> None:
    cluster = played(
        ChangeCompany(company="b", cores=4, memory_mb=4096), submit("y", "b", 4), submit("z", "b", 4), borrow=False
    )
    wait = waits_for(cluster.state, cluster.state.apps["z"])
    assert wait is not None
    assert (wait.cause, wait.rule) == ("cap", "H1")
    assert "b may not pass its quota, 4 cores and 4096 MiB" in wait.tell()[0]


def test_who_waits_below_its_companys_cap_beside_free_room_has_a_need() -> None:
    cluster = played(submit("x", "a", 8), submit("y", "a", 4, user="v"), borrow=False)
    assert cluster.state.workers["w1"].free.cores == 8
    wait = waits_for(cluster.state, cluster.state.apps["y"])
    assert wait is not None
    assert (wait.cause, wait.rule) == ("need", "H6")


def test_shares_tell_weight_cap_demand_and_entitlement_at_both_levels() -> None:
    found = to_builtins(shares(lent().state))
    assert found["byEntitlement"]
    a, b = found["companies"]
    assert {name: a[f"{name}Cores"] for name in ("quota", "cap", "demand", "entitled")} == {
        "quota": 8,
        "cap": None,
        "demand": 16,
        "entitled": 8,
    }
    assert [a[f"{name}Cores"] for name in ("held", "lent", "leaving", "below")] == [12, 4, 4, 0]
    assert [b[f"{name}Cores"] for name in ("demand", "entitled", "held", "lent", "leaving", "below")] == [
        *(12, 8, 0, 0, 0, 8)
    ]
    assert [(user["user"], user["entitledCores"]) for user in found["users"]] == [("u", 8), ("u", 8)]
    assert "partCores" not in a


def test_the_page_shows_what_is_entitled_in_the_place_of_parts() -> None:
    state = lent().state
    assert [each["partCores"] for each in to_builtins(overview(state))["companies"]] == [8, 8]
    assert to_builtins(company(state, "b"))["shortCores"] == 8


def test_which_edition_is_in_force_and_since_when() -> None:
    state = lent().state
    shown = to_builtins(edition(state))
    assert (shown["edition"], shown["byEntitlement"], shown["patienceS"]) == (3, True, 60)
    assert shown["since"] is None, "from the beginning"


def test_the_audit_derives_a_log() -> None:
    cluster = lent(ended("x.3"), submit("z", "a", 8), ended("x.2"), ScaleApp(app="x", executors=1))
    assert audit(facts(cluster)) == []
    cluster.check_replay()


@pytest.mark.parametrize(
    ("kind", "change", "rule"),
    [
        (NeedBegan, {"units": 1}, "H6"),
        (NeedBegan, {"date": 1}, "H6"),
        (TargetSet, {"why": "move"}, "H6"),
        (ExecutorRevoked, {"executor": "x.1"}, "H7"),
        (ExecutorRevoked, {"deadline": 1}, "H7"),
    ],
)
def test_the_audit_finds_what_was_not_due(kind: type[Event], change: dict[str, object], rule: str) -> None:
    log = facts(lent())
    seq = next(fact.seq for fact in log if isinstance(fact.event, kind))
    first = audit(rechained(edited(log, seq, **change)))[0]
    assert (first.seq, first.rule) == (seq, rule)


def test_the_audit_finds_an_admission_without_an_entitlement() -> None:
    log = facts(lent())
    seq = next(fact.seq for fact in log if isinstance(fact.event, AppAdmitted) and fact.event.app == "y")
    first = audit(rechained(without(log, seq)))[0]
    assert (first.seq, first.rule) == (seq, "H4")


def test_under_unchanged_rules_every_decision_is_that_of_the_log() -> None:
    log = facts(lent(ended("x.3"), ended("x.2")))
    assert replayed(log, Rules())["firstDifference"] is None
    assert replayed(log, Rules(edition=3))["firstDifference"] is None


def test_what_if_the_third_edition_had_been_in_force_shows_who_is_above_and_below() -> None:
    found = replayed(facts(lent()), Rules(edition=3))
    for side in ("log", "other"):
        rows = {row["company"]: row for row in found[side]["standing"]["companies"]}
        assert rows["b"]["entitledCores"] == 8
        assert rows["b"]["belowCores"] == 8
        assert rows["a"]["lentCores"] + rows["a"]["leavingCores"] == 8
    assert "standing" not in replayed(facts(lent()), Rules())["log"]


def test_an_edition_that_is_not_known_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidCommand, match=r"^it is decided by edition 3 of the rules alone, not by 4$"):
        replayed(facts(lent()), Rules(edition=4))
    with pytest.raises(InvalidCommand, match=r"^it is decided by edition 3 of the rules alone, not by 4$"):
        lent(ChangeEdition(edition=4))


def windowed() -> Cluster:
    """Windows close both workers to company a, whose app is below its entitlement."""
    cluster = Cluster({"reclaim_patience_s": 20, "min_runtime_s": 10, "kill_grace_s": 5})
    cluster.turn(RegisterCompany(company="a"), RegisterCompany(company="b"))
    cluster.worker("w1", 8)
    cluster.worker("w2", 8)
    begin = cluster.state.at + 60_000
    ends = begin + 600_000
    for worker, name, whose in (("w1", "m", ""), ("w2", "r", "b")):
        cluster.turn(AddWindow(window=name, workers=(worker,), begin=begin, end=ends, notice_s=15, company=whose))
    cluster.turn(submit("hog", "b", 16))
    cluster.turn(after_s=50)
    for name in [name for name, one in cluster.state.executors.items() if one.worker == "w1"]:
        cluster.turn(ended(name))
    cluster.turn(submit("late", "a", 4))
    return cluster


def test_whom_windows_alone_keep_waits_for_them_and_is_promised_no_past_date() -> None:
    cluster = windowed()
    assert cluster.state.apps["late"].lack.units
    for later_s in (1, 30, 60):
        now = cluster.state.at + 1000 * later_s
        told = explain(facts(cluster), "late", now=partial(int, now))
        assert (told["waitsFor"]["cause"], told["waitsFor"]["rule"]) == ("window", "W14")
        assert "window m on w1" in told["waitsFor"]["text"]
        assert "window r for company b on w2" in told["waitsFor"]["text"]
        date, text = told["standing"]["date"], told["standing"]["text"]
        if date > now:
            assert f"; room is made for it by {moment(date)}" in text
        else:
            why = "windows close to it all workers that could host it"
            assert f"; room for it is overdue since {moment(date)}: {why}" in text
            assert "room is made for it" not in text


def test_a_worker_that_no_window_closes_is_the_cause_although_others_are_closed() -> None:
    cluster = windowed()
    cluster.worker("w3", 8)
    cluster.turn(submit("more", "b", 16))
    wait = waits_for(cluster.state, cluster.state.apps["late"])
    assert wait is None or wait.cause != "window"


def test_who_leaves_is_gone_a_grace_after_its_date_at_the_latest() -> None:
    told = explain(facts(lent()), "y")
    latest = told["targets"][0]["leaving"][0]["deadline"] + 30_000
    assert f", by {moment(latest)} at the latest" in told["standing"]["text"]
    assert f", by {moment(latest)} at the latest" in told["waitsFor"]["text"]
    overdue = explain(facts(lent()), "y", now=lambda: latest + 1)
    assert f", which is overdue since {moment(latest)}" in overdue["standing"]["text"]


def test_who_is_not_entitled_is_told_who_waits_for_it_and_what_is_left() -> None:
    cluster = Cluster({"reclaim_patience_s": 60, "min_runtime_s": 0})
    cluster.turn(RegisterCompany(company="a"), RegisterCompany(company="b"))
    cluster.worker("w1", 8)
    cluster.worker("w2", 8)
    cluster.turn(submit("hog", "a", 16, 1))
    for number in range(6):
        cluster.turn(submit(f"s{number}", "b", 1, 1))
    cluster.turn(submit("four", "b", 4))
    wait = waits_for(cluster.state, cluster.state.apps["four"])
    assert wait is not None
    assert wait.cause == "not-entitled"
    text, _ = wait.tell()
    assert "b is entitled to 6 cores and 1536 MiB, of which it holds 0 cores and 0 MiB" in text
    assert " and other apps of it wait for 6 cores and 1536 MiB; nothing is left over" in text
    assert "; of its fair part 2 cores and " in text
