"""Why an app waits, was admitted and was placed, told from the log alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import convert
from msgspec.structs import asdict, replace

from fairlog.cli.main import cli
from recovery.replay.bounds import moment
from recovery.replay.rebuild import fold
from scheduler.model.commands import (
    ChangeCompany,
    ConfigureCluster,
    DrainWorker,
    EndApp,
    KillApp,
    RegisterCompany,
    ReleaseApp,
    RemoveWorker,
    ScaleApp,
    SubmitApp,
    UndrainWorker,
)
from scheduler.model.errors import UnknownApp
from scheduler.model.events import AppRegistered, AppRemoved
from scheduler.rules.state import ClusterState
from scheduler.store.codec import read_export
from tests.property.given import Cluster, shared, submission
from tests.unit.recorded import exported, facts
from witness.explain import explain


def told(cluster: Cluster, app: str) -> dict[str, Any]:
    return explain(facts(cluster), app)


def waits(cluster: Cluster, app: str) -> tuple[str, str, str]:
    wait = told(cluster, app)["waitsFor"]
    return wait["cause"], wait["rule"], wait["text"]


def full() -> Cluster:
    """Two companies with amounts as quotas; an app of acme's ann holds all 16 cores that there are."""
    cluster = Cluster()
    cluster.company("acme", 32, 65536)
    cluster.company("bolt", 64, 65536)
    cluster.worker("w1", 16)
    cluster.submit("a1", 16)
    return cluster


def shared_out() -> Cluster:
    """The same, and an app of bolt's bo was admitted for the part that bolt is assured: 8 of the 16 cores."""
    cluster = full()
    cluster.submit("b0", 8, company="bolt", user="bo")
    return cluster


def test_an_app_waits_for_a_live_worker() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.submit("a1")
    assert waits(cluster, "a1") == ("no-live-worker", "A3", "no worker is live")


def test_an_app_is_explained_by_its_number_as_by_its_id() -> None:
    cluster = shared_out()
    for name in ("a1", "b0"):
        assert told(cluster, str(cluster.state.apps[name].submitted)) == told(cluster, name)
    with pytest.raises(UnknownApp):
        told(cluster, str(cluster.state.apps["b0"].submitted + 1))


@pytest.mark.second_edition
def test_an_app_that_is_next_waits_for_the_cluster_and_who_fills_it_is_named() -> None:
    cluster = shared_out()
    cluster.submit("b1", 8, company="bolt")
    text = (
        "the apps in waitingApps claim 24 of 16 cores and 12288 of 65536 MiB: "
        "acme 16 cores, 12 beyond its part, bolt 8 cores, 0 beyond its part"
    )
    assert waits(cluster, "b1") == ("cluster-full", "A3", text)
    facts_of_it = told(cluster, "b1")["waitsFor"]["facts"]
    assert {name: facts_of_it[name] for name in ("claimCores", "claimMemory", "cores", "memory")} == {
        "claimCores": 24,
        "claimMemory": 12288,
        "cores": 16,
        "memory": 65536,
    }
    assert facts_of_it["companies"] == [
        {"company": "acme", "claimCores": 16, "claimMemory": 8192, "beyondCores": 12, "beyondMemory": 0},
        {"company": "bolt", "claimCores": 8, "claimMemory": 4096, "beyondCores": 0, "beyondMemory": 0},
    ]


@pytest.mark.second_edition
def test_where_memory_fills_the_cluster_companies_are_named_by_their_memory() -> None:
    """Semantics Z2: the claims on what is full; each task needs a quarter of the 65536 MiB that the worker has."""
    cluster = Cluster()
    cluster.company("acme", 32, 98304)
    cluster.company("bolt", 32, 98304)
    cluster.worker("w1", 16)
    cluster.submit("a1", 4, per_task_mb=12288)
    cluster.submit("b1", 4, per_task_mb=8192, company="bolt")
    cluster.submit("b2", 4, per_task_mb=8192, company="bolt")
    assert waits(cluster, "b2")[2] == (
        "the apps in waitingApps claim 8 of 16 cores and 81920 of 65536 MiB: "
        "acme 49152 MiB, 16384 beyond its part, bolt 32768 MiB, 0 beyond its part"
    )


@pytest.mark.second_edition
def test_the_next_of_a_users_apps_is_the_head_of_the_queue() -> None:
    """Semantics C4, F1: an app that is beyond the quota by itself stands before it, and is no head."""
    cluster = full()
    cluster.submit("a2", 32)
    cluster.submit("a3", 8)
    cluster.submit("a4", 8)
    cluster.turn(ChangeCompany(company="acme", cores=28, memory_mb=65536))
    assert waits(cluster, "a4")[2] == "2 of ann's apps are before it; the next is a3"


@pytest.mark.second_edition
def test_an_app_that_its_company_is_assured_room_for_waits_for_the_workers() -> None:
    """Semantics A3: whatever others hold."""
    cluster = full()
    cluster.turn(ConfigureCluster(settings={"reclaim": "none"}))
    cluster.submit("b1", 8, company="bolt")
    text = "no worker has 4 cores and 2048 MiB free; the nearest is w1 with 0 cores and 57344 MiB free"
    assert waits(cluster, "b1") == ("workers-full", "P1", text)


@pytest.mark.second_edition
def test_an_app_waits_for_its_companys_quota_and_both_numbers_are_told() -> None:
    cluster = full()
    cluster.submit("a2", 24)
    cause, rule, text = waits(cluster, "a2")
    assert (cause, rule) == ("quota", "C4")
    assert text == (
        "company acme claims 16 cores and 8192 MiB; 24 cores and 12288 MiB more exceed "
        "its quota of 32 cores and 65536 MiB"
    )


@pytest.mark.second_edition
def test_a_quota_that_is_not_whole_is_told_in_lowest_terms() -> None:
    """Semantics C2: a quarter of 6 cores is 3/2 of them."""
    cluster = Cluster()
    cluster.turn(RegisterCompany(company="acme", part="25%"))
    cluster.worker("w1", 6)
    cluster.submit("a1", 4)
    assert waits(cluster, "a1")[2].endswith("company acme cannot exceed its quota of 3/2 cores and 16384 MiB")


@pytest.mark.second_edition
def test_an_app_waits_for_a_company_with_a_smaller_share() -> None:
    cluster = shared_out()
    cluster.submit("a2", 8)
    cluster.submit("b1", 8, company="bolt")
    text = "company bolt is next, with a share of 1/8; acme has 1/2"
    assert waits(cluster, "a2") == ("company-turn", "C3", text)


def test_an_app_waits_behind_one_of_higher_priority() -> None:
    """Semantics Q1."""
    cluster = full()
    cluster.turn(submission("a2", 8), replace(submission("a3", 8), priority=2))
    text = "1 of ann's apps is before it; the next is a3, with priority 2; its own is 0"
    assert waits(cluster, "a2") == ("queue", "F1", text)


def test_an_app_that_is_not_ready_waits_for_its_dependencies_or_a_release() -> None:
    """Semantics J1, J3; once it is ready, it waits as others do."""
    cluster = full()
    after = [(f"b{number}", "any") for number in range(7)]
    cluster.turn(*(submission(name, 4, company="bolt") for name, _ in after))
    cluster.turn(
        replace(submission("c1", 4, company="bolt"), after={"any": tuple(name for name, _ in after)}, hold=True)
    )
    text = "it starts after b0:any, b1:any, b2:any, b3:any, b4:any and 2 more"
    assert waits(cluster, "c1") == ("dependency", "J1", text)
    assert told(cluster, "c1")["queue"] is None
    cluster.turn(*(KillApp(app=name) for name, _ in after), after_s=4)
    assert waits(cluster, "c1") == ("hold", "J3", "it is on hold; `fairlog release c1` ends that")
    cluster.turn(ReleaseApp(app="c1"), after_s=3)
    assert told(cluster, "c1")["waited"] == {
        "ms": 7000,
        "byCause": [{"cause": "dependency", "rule": "J1", "ms": 4000}, {"cause": "hold", "rule": "J3", "ms": 3000}],
    }


def test_an_app_that_is_not_to_begin_yet_says_from_when_on() -> None:
    """Semantics J4."""
    cluster = full()
    begin = cluster.state.at + 60_000
    cluster.turn(replace(submission("a2", 4), begin=begin))
    assert waits(cluster, "a2") == ("begin", "J4", f"it is not to begin before {moment(begin)}")


def test_an_app_that_ends_as_unmet_says_what_it_waited_for() -> None:
    """Semantics J2."""
    cluster = full()
    cluster.turn(replace(submission("a2", 4), after={"ok": ("a1",)}))
    cluster.turn(KillApp(app="a1"))
    found = told(cluster, "a2")
    assert (found["state"], found["detail"]) == ("unmet", "it waited for a1:ok, which can no longer come")


@pytest.mark.second_edition
def test_an_admission_by_priority_names_it() -> None:
    """Semantics F1, Q2."""
    cluster = full()
    cluster.turn(submission("a2", 4), replace(submission("a3", 4), priority=2))
    cluster.turn(EndApp(app="a1", reason="finished"))
    for executor in list(cluster.state.executors):
        cluster.ended(executor)
    why = told(cluster, "a3")["admission"]["why"]
    text = "of 2 apps in ann's queue it was the first, with priority 2 and ready since 1970-01-01 00:00:05.000Z (Q2)"
    assert {"rule": "F1", "text": text} in why


@pytest.mark.second_edition
def test_an_app_waits_for_a_user_who_was_selected_longer_ago() -> None:
    cluster = full()
    cluster.submit("a2", 8)
    cluster.submit("a3", 8, user="bob")
    cause, rule, text = waits(cluster, "a2")
    assert (cause, rule) == ("user-turn", "U1")
    assert text == (
        "user bob is next, never selected, with an app pending since 1970-01-01 00:00:06.000Z; "
        "ann was last selected at position 5, 1970-01-01 00:00:04.000Z"
    )


def test_an_app_waits_for_its_users_earlier_ones() -> None:
    cluster = full()
    for number in (2, 3, 4):
        cluster.submit(f"a{number}", 8)
    assert waits(cluster, "a4") == ("queue", "F1", "2 of ann's apps are before it; the next is a2")
    assert [told(cluster, app)["queue"] for app in ("a1", "a2", "a4")] == [
        None,
        {"place": 1, "of": 3},
        {"place": 3, "of": 3},
    ]


def test_an_app_waits_for_a_large_enough_worker_and_the_nearest_is_named() -> None:
    """Semantics N3, P1: pending it is no head; admitted before the worker left it keeps its place."""
    cluster = Cluster({"never_fits": "wait"})
    cluster.company("acme")
    cluster.worker("w1", 16, 4096)
    cluster.worker("w2", 2)
    asked = {"executor_cores": 4, "executor_memory_mb": 5000, "memory_per_task_mb": None}
    cluster.turn(replace(submission("a1", 4), **asked))
    text = "no worker offers 4 cores and 5000 MiB; the nearest is w1 with 16 cores and 4096 MiB"
    assert waits(cluster, "a1") == ("no-worker-large-enough", "N3", text)
    cluster.worker("w3", 4)
    assert told(cluster, "a1")["waitsFor"] is None
    cluster.turn(RemoveWorker(worker="w3", force=True))
    assert waits(cluster, "a1") == ("no-worker-large-enough", "P1", text)


def test_an_admitted_app_waits_for_room_on_some_worker() -> None:
    cluster = full()
    cluster.turn(ConfigureCluster(settings={"admission": "open"}))
    cluster.submit("b1", 8, company="bolt")
    cause, rule, text = waits(cluster, "b1")
    assert (cause, rule) == ("workers-full", "P1")
    assert "the nearest is w1 with 0 cores" in text


def test_an_app_whose_executors_are_larger_than_its_request_waits_for_a_new_demand() -> None:
    cluster = Cluster({"admission": "open"})
    cluster.company("acme")
    cluster.worker("w1", 16)
    asked = {"executor_cores": 12, "executor_memory_mb": 1024, "memory_per_task_mb": None}
    cluster.turn(replace(submission("a1", 8), **asked))
    text = "its request leaves 8 cores and 0 MiB, and an executor takes 12 and 1024"
    assert waits(cluster, "a1") == ("limit", "P6", text)


def test_an_app_that_asked_for_less_than_todays_smallest_executor_is_told_so() -> None:
    cluster = Cluster({"admission": "open"})
    cluster.company("acme")
    cluster.worker("w1", 4)
    cluster.submit("a1", 4)
    cluster.submit("a2", 4)
    cluster.turn(ConfigureCluster(settings={"min_executor_cores": 8}))
    cluster.worker("w2", 16)
    text = "its request leaves 4 cores and 2048 MiB, and an executor takes 8 and 4096"
    assert waits(cluster, "a2") == ("limit", "A2", text)


@pytest.mark.second_edition
def test_every_company_ahead_is_named() -> None:
    cluster = shared_out()
    cluster.company("cola", 64, 65536)
    cluster.submit("a2", 8)
    cluster.submit("c0", 8, company="cola")
    cluster.submit("b1", 8, company="bolt")
    cluster.submit("c1", 8, company="cola")
    wait = told(cluster, "a2")["waitsFor"]
    assert wait["text"] == "company bolt is next, with a share of 1/8; acme has 1/2; also before it: cola (1/8)"
    assert [each["company"] for each in wait["facts"]["ahead"]] == ["bolt", "cola"]


@pytest.mark.second_edition
def test_companies_with_the_same_share_are_told_apart_by_their_last_turns() -> None:
    cluster = Cluster()
    cluster.company("acme", 32, 65536)
    cluster.company("bolt", 32, 65536)
    cluster.worker("w1", 16)
    cluster.submit("a1", 8)
    cluster.submit("b1", 8, company="bolt")
    cluster.submit("b2", 8, company="bolt", user="bea")
    cluster.submit("a2", 8)
    assert waits(cluster, "b2")[2] == (
        "company acme is next, with a share of 1/4; bolt has 1/4; "
        "acme was last selected at position 5, bolt last selected at position 8"
    )


@pytest.mark.second_edition
def test_under_pay_as_you_go_it_is_the_use_that_is_told() -> None:
    cluster = shared_out()
    cluster.turn(ConfigureCluster(settings={"company_policy": "pay-as-you-go"}))
    cluster.submit("a2", 8)
    cluster.submit("b1", 8, company="bolt")
    cause, rule, text = waits(cluster, "b1")
    assert (cause, rule) == ("company-turn", "C5")
    assert "company acme is next, with a use of what it bought (core-ms a core) of 2000/1; bolt has 7500/1" in text


@pytest.mark.second_edition
def test_a_borrower_beyond_its_quota_waits_while_another_company_takes_part() -> None:
    cluster = Cluster()
    cluster.company("acme", 8, 65536, borrow=True)
    cluster.company("bolt", 64, 65536)
    cluster.worker("w1", 16)
    cluster.submit("a1", 8)
    cluster.submit("b1", 8, company="bolt")
    cluster.submit("a2", 8)
    cluster.submit("b2", 8, company="bolt")
    cause, rule, text = waits(cluster, "a2")
    assert (cause, rule) == ("quota", "C6")
    assert text.endswith(
        "exceed its quota of 8 cores and 65536 MiB; it cannot borrow while another company has an app within its quota"
    )


@pytest.mark.second_edition
def test_a_user_with_the_smaller_share_goes_first_and_both_are_told() -> None:
    cluster = full()
    cluster.turn(ConfigureCluster(settings={"user_policy": "least-occupied"}))
    cluster.submit("a2", 8)
    cluster.submit("a3", 8, user="bob")
    cause, rule, text = waits(cluster, "a2")
    assert (cause, rule) == ("user-turn", "U3")
    assert text.endswith("; bob has a share of 0/1, ann has 1/2")


@pytest.mark.second_edition
def test_an_app_whose_companys_room_is_reserved_names_who_it_is_for() -> None:
    cluster = full()
    cluster.turn(ConfigureCluster(settings={"quota_patience_s": 5}))
    cluster.submit("a2", 24)
    cluster.turn(submission("a3", 4, user="bob"), after_s=9)
    since = "1970-01-01 00:00:06.000Z"
    text = f"the company's room is reserved for app a2, which its quota has held back since {since}"
    assert waits(cluster, "a3") == ("reserved", "C7", text)


@pytest.mark.parametrize(
    ("settings", "rule", "why"),
    [
        ({"max_drivers": 0}, "D4", "its driver waits: 0 drivers run, and max_drivers is 0"),
        ({"max_driver_share": "1/8"}, "D4", "4 more exceed max_driver_share, 1/8"),
        (
            {"max_driver_share": "1/1", "admission": "open"},
            "D1",
            "its driver waits: no worker offers 4 cores and 99999 MiB; the nearest is w1",
        ),
    ],
)
@pytest.mark.second_edition
def test_an_app_waits_for_its_driver(settings: dict[str, object], rule: str, why: str) -> None:
    cluster = Cluster({"max_driver_share": "1/1", **settings})
    cluster.company("acme", 64, 1 << 20)
    cluster.worker("w1", 16)
    cluster.worker("w2", 8)
    asked = {"driver": True, "driver_cores": 4, "driver_memory_mb": 99999 if rule == "D1" else 1024}
    if "max_driver_share" in why:  # one driver may run whatever the share
        cluster.turn(convert({**asdict(submission("first", 1)), "driver": True}, SubmitApp))
    cluster.turn(convert({**asdict(submission("a1", 4)), **asked}, SubmitApp))
    cause, found, text = waits(cluster, "a1")
    assert (cause, found) == ("driver", rule)
    assert why in text


def test_an_app_waits_for_a_host_that_its_tasks_prefer() -> None:
    cluster = Cluster({"locality_wait_host_ms": 60_000})
    cluster.company("acme")
    cluster.worker("w1", 8)
    cluster.worker("w2", 4)
    asked = {"executor_memory_mb": 1024, "memory_per_task_mb": None}
    cluster.turn(replace(submission("full", 8), **asked, executor_cores=8))
    cluster.turn(replace(submission("a1", 4), **asked, executor_cores=4, executor_limit=0))
    assert waits(cluster, "a1") == ("limit", "P5", "its demand is 0 executors")
    cluster.turn(ScaleApp(app="a1", executors=1, prefer={"w1.example": 1}, preferring_tasks=1))
    assert waits(cluster, "a1") == (
        "locality",
        "L5",
        (
            "it has waited since 1970-01-01 00:00:07.000Z for room on a host that its tasks prefer (w1.example): "
            "up to 60000 ms on these hosts, then up to 3000 ms in their racks"
        ),
    )


@pytest.mark.parametrize(
    ("quota", "cause", "why"),
    [
        (
            64,
            ("cluster-full", "L1"),
            (
                "there is no room for an executor of 4 cores and 1024 MiB, of which it asks for 1: "
                "the apps in waitingApps claim 6 of 8 cores and 1024 of 65536 MiB"
            ),
        ),
        (
            6,
            ("quota", "C4"),
            "company acme claims 6 cores and 1024 MiB; 4 cores and 1024 MiB more exceed its quota of 6",
        ),
    ],
)
@pytest.mark.second_edition
def test_a_demand_that_was_stated_anew_waits_for_what_keeps_it_from_rising(
    quota: int, cause: tuple[str, str], why: str
) -> None:
    """Semantics L1. The demand in the log is nothing until there is room for it."""
    cluster = Cluster()
    cluster.company("acme", quota, 65536)
    cluster.worker("w1", 8)
    asked = {"executor_memory_mb": 1024, "memory_per_task_mb": None}
    cluster.turn(replace(submission("a1", 4), **asked, executor_cores=4, executor_limit=0))
    cluster.turn(replace(submission("full", 6), **asked, executor_cores=6))
    cluster.turn(ScaleApp(app="a1", executors=1))
    *found, text = waits(cluster, "a1")
    assert tuple(found) == cause
    assert text.startswith(why)


def test_an_app_that_has_ended_says_where_in_the_log_it_did() -> None:
    """Not where the log ends."""
    cluster = full()
    assert told(cluster, "a1")["ended"] is None
    cluster.turn(KillApp(app="a1"))
    at, end = cluster.state.at, cluster.records[-1]
    cluster.company("later")
    [removed] = [seq for seq in range(end.first, end.last + 1) if isinstance(cluster.log[seq - 1].event, AppRemoved)]
    assert told(cluster, "a1")["ended"] == {"seq": removed, "at": at}


def test_a_running_app_waits_for_nothing() -> None:
    assert told(full(), "a1")["waitsFor"] is None


@pytest.mark.second_edition
def test_an_admission_is_told_with_every_candidate() -> None:
    cluster = shared_out()
    cluster.submit("a2", 16)
    cluster.submit("a3", 8, user="bob")
    cluster.submit("b1", 16, company="bolt", user="cat")
    cluster.turn(EndApp(app="a1", reason="finished"))
    cluster.ended("a1.0")
    admission = told(cluster, "a3")["admission"]
    assert admission["share"] == "0/1"
    assert [(each["company"], each["share"]) for each in admission["companies"]] == [("acme", "0/1"), ("bolt", "1/8")]
    assert [(each["user"], each["lastSelected"], each["app"]) for each in admission["users"]] == [
        ("ann", 5, "a2"),
        ("bob", None, "a3"),
        ("cat", None, "b1"),
    ]


def test_executors_are_told_with_their_size_and_their_worker() -> None:
    (executor,) = told(full(), "a1")["executors"]
    assert (executor["executor"], executor["worker"], executor["cores"]) == ("a1.0", "w1", 16)
    assert executor["why"]["sizeRule"] == "S2"
    assert executor["why"]["size"] == "16 cores: 16 cores were left to grant on 1 usable workers"
    assert executor["why"]["memory"] == (
        "8192 MiB for 16 cores: 512 MiB per task; at least 2048 MiB, in steps of 256 MiB"
    )
    assert executor["why"]["workers"] == (
        "spread: one to each worker in turn, workers ordered by cores-free-desc (P1); "
        "w1 was number 1 of 1 workers with room and had 16 cores and 65536 MiB free"
    )


@pytest.mark.second_edition
def test_the_waiting_time_of_an_app_splits_by_cause_to_the_millisecond() -> None:
    cluster = shared_out()
    cluster.turn(submission("b1", 8, company="bolt", user="bo"), after_s=1)
    cluster.turn(DrainWorker(worker="w1"), after_s=7)
    cluster.turn(UndrainWorker(worker="w1"), after_s=11)
    cluster.turn(KillApp(app="b0"), after_s=13)
    cluster.turn(EndApp(app="a1", reason="finished"), after_s=3)
    cluster.ended("a1.0")
    cluster.turn(EndApp(app="b1", reason="finished"), after_s=20)
    said = told(cluster, "b1")["waited"]
    assert said == {
        "ms": 35_000,
        "byCause": [
            {"cause": "no-live-worker", "rule": "A3", "ms": 11_000},
            {"cause": "cluster-full", "rule": "A3", "ms": 20_000},
            {"cause": "claim", "rule": "E5", "ms": 4_000},
        ],
    }


@pytest.mark.second_edition
def test_an_app_that_waits_still_has_waited_until_now() -> None:
    cluster = shared_out()
    cluster.submit("b1", 8, company="bolt")
    log = facts(cluster)
    said = explain(log, "b1", now=lambda: log[-1].at + 12_345)
    assert (said["at"], said["waited"]["ms"]) == (log[-1].at + 12_345, 12_345)
    assert said["waited"]["byCause"] == [{"cause": "cluster-full", "rule": "A3", "ms": 12_345}]


@pytest.mark.second_edition
def test_an_admission_says_by_which_rules_it_was_the_next() -> None:
    cluster = full()
    cluster.turn(DrainWorker(worker="w1"))
    cluster.submit("a2", 8)
    cluster.submit("b1", 8, company="bolt", user="bea")
    cluster.submit("b2", 8, company="bolt", user="ben")
    cluster.submit("b3", 8, company="bolt", user="bea")
    cluster.turn(EndApp(app="a1", reason="finished"))
    cluster.ended("a1.0")
    cluster.turn(UndrainWorker(worker="w1"))
    cluster.worker("w2", 4)

    def why(app: str) -> list[tuple[str, str]]:
        return [(each["rule"], each["text"]) for each in told(cluster, app)["admission"]["why"]]

    assert why("b1") == [
        ("A3", "bolt claimed 0 cores and 0 MiB of its part, 8 cores and 32768 MiB, so the app was within it"),
        (
            "C3",
            (
                "bolt had a share of 0/1, the smallest of 2; the next was acme with 0/1, "
                "last selected at position 5 (bolt: never)"
            ),
        ),
        ("U1", "of bolt's users bea was selected longest ago, or never and has the oldest pending app, before ben"),
        ("F1", "of 2 apps in bea's queue it was submitted first"),
    ]
    assert why("a2")[0] == ("A3", "acme claimed nothing, and the app was within its quota")
    assert why("b2")[0] == ("A3", "apps claimed 16 of 20 cores and 8192 of 131072 MiB, so there was room")


def test_executors_of_different_sizes_are_told_each_with_its_own_reason() -> None:
    cluster = Cluster()
    cluster.company("acme", 64, 65536)
    cluster.worker("w1", 16)
    cluster.worker("w2", 8)
    cluster.submit("a1", 20)
    executors = told(cluster, "a1")["executors"]
    assert [(each["cores"], each["why"]["size"].partition(" were left")[0]) for each in executors] == [
        (8, "8 cores: 20 cores"),
        (8, "8 cores: 20 cores"),
        (4, "4 cores: 4 cores"),
    ]
    assert "; 16 cores require 32 left" in executors[0]["why"]["size"]
    assert [each["why"]["workers"].partition("; ")[2][:20] for each in executors][:2] == [
        "w1 was number 1 of 2",
        "w2 was number 2 of 2",
    ]


def test_an_app_that_the_log_never_heard_of_is_refused() -> None:
    with pytest.raises(UnknownApp):
        told(full(), "a9")


def test_a_time_that_is_still_to_come_is_refused_for_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(exported(full().records))
    answer = CliRunner().invoke(cli, ["explain", "a1", str(file), "--at", "2999-01-01"])
    assert answer.exit_code == 1
    assert "; 2999-01-01 00:00:00.000Z is in the future" in answer.output


def test_an_id_that_came_again_once_it_was_forgotten_is_told_of_its_last_life() -> None:
    cluster = shared({"retained_apps": 0}, w1=8)
    cluster.submit("a1", 8)
    cluster.turn(KillApp(app="a1"))
    for executor in list(cluster.state.executors):
        cluster.ended(executor)
    cluster.submit("a2", 8)
    cluster.submit("a1", 8)
    again = next(seq for seq, each in enumerate(cluster.log, start=1) if each.at == cluster.log[-1].at)
    cluster.submit("a3", 8)
    said = told(cluster, "a1")
    assert said["submitted"]["seq"] == again
    assert (said["state"], said["admission"], said["executors"]) == ("pending", None, [])
    assert said["waited"]["ms"] == 1000


@pytest.mark.second_edition
def test_parts_that_cannot_all_be_had_are_told_with_how_many_executors_fit() -> None:
    """Semantics C8, Z2: a worker of little memory hosts none, though its cores count for the parts."""
    cluster = Cluster()
    cluster.company("acme")
    cluster.company("bolt")
    for name, cores, memory_mb in (("w1", 4, 65536), ("w2", 4, 65536), ("w3", 16, 1024)):
        cluster.worker(name, cores, memory_mb)
    cluster.submit("a1", 8)
    cluster.submit("b1", 4, company="bolt")
    assert waits(cluster, "b1") == (
        "parts-exceed-cluster",
        "C8",
        (
            "the companies are assured 24 cores and 131072 MiB together, and the cluster has 24 cores and 132096 MiB; "
            "that is 6 minimum executors, and 2 fit on the live workers; bolt is assured 12 cores and 65536 MiB"
        ),
    )


@pytest.mark.second_edition
def test_drivers_that_leave_too_little_on_every_worker_are_named() -> None:
    """Semantics P1, E2, Z2."""
    cluster = Cluster({"max_driver_share": "1/1"})
    cluster.company("acme")
    cluster.company("bolt")
    for number in (1, 2):
        cluster.worker(f"w{number}", 4)
        cluster.turn(replace(submission(f"d{number}", 0), driver=True, tasks=0))
    cluster.submit("b1", 4, company="bolt")
    assert waits(cluster, "b1")[2] == (
        "no worker has 4 cores and 2048 MiB free; the nearest is w2 with 3 cores and 64512 MiB free; "
        "drivers leave too little on every worker that is large enough: d1.driver-0, d2.driver-0"
    )


GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.jsonl"))


@pytest.mark.parametrize("log", GOLDEN, ids=lambda path: path.stem)
def test_a_story_is_the_same_if_the_log_before_the_submission_is_only_folded(log: Path) -> None:
    with log.open("rb") as lines:
        entries = list(read_export(lines))
    submitted = [(each.event.app, each) for each in entries if isinstance(each.event, AppRegistered)]
    assert len(submitted) > 3
    for app, first in [*submitted[:3], submitted[-1]]:
        before = ClusterState()
        for fact in entries:
            if fact.turn == first.turn:
                break
            fold(before, fact)
        later = [fact for fact in entries if fact.turn >= first.turn]
        assert explain(later, app, before=before) == explain(entries, app)
