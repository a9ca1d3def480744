"""Why an app waits, was admitted and was placed, told from the log alone."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.explain import explain
from scheduler.commands import ConfigureCluster, DrainWorker, EndApp, UndrainWorker
from scheduler.errors import UnknownApp
from tests.property.given import Cluster, recorded, submission


def told(cluster: Cluster, app: str) -> dict[str, Any]:
    return explain(recorded(cluster), app)


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


def test_an_app_waits_for_a_live_worker() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.submit("a1")
    assert waits(cluster, "a1") == ("no-live-worker", "A3", "no worker is live")


def test_an_app_that_is_next_waits_for_the_cluster() -> None:
    cluster = full()
    cluster.submit("b1", 8, company="bolt")
    text = "the apps in waitingApps ask for 16 of 16 cores and 8192 of 65536 MiB"
    assert waits(cluster, "b1") == ("cluster-full", "A3", text)


def test_an_app_waits_for_its_companys_cap_and_both_numbers_are_told() -> None:
    cluster = full()
    cluster.submit("a2", 24)
    cause, rule, text = waits(cluster, "a2")
    assert (cause, rule) == ("cap", "C4")
    assert "has asked for 16 cores" in text
    assert "24 cores" in text
    assert "quota of 32 cores" in text


def test_an_app_waits_for_a_company_with_a_smaller_share() -> None:
    cluster = full()
    cluster.submit("a2", 8)
    cluster.submit("b1", 8, company="bolt")
    text = "company bolt goes first, with a share of 0/1 against 1/2 of acme"
    assert waits(cluster, "a2") == ("company-turn", "C3", text)


def test_an_app_waits_for_a_user_who_was_selected_longer_ago() -> None:
    cluster = full()
    cluster.submit("a2", 8)
    cluster.submit("a3", 8, user="bob")
    cause, rule, text = waits(cluster, "a2")
    assert (cause, rule) == ("user-turn", "U1")
    assert text == "user bob goes first, no turn yet; ann had the last turn at position 5"


def test_an_app_waits_for_its_users_earlier_ones() -> None:
    cluster = full()
    for number in (2, 3, 4):
        cluster.submit(f"a{number}", 8)
    assert waits(cluster, "a4") == ("queue", "F1", "2 of ann's apps go first, a2 next")


def test_an_admitted_app_waits_for_a_worker_that_is_large_enough_and_the_nearest_is_named() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 16, 4096)
    cluster.worker("w2", 2)
    asked = {"executor_cores": 4, "executor_memory_mb": 5000, "memory_per_task_mb": None}
    cluster.turn(submission("a1", 4).model_copy(update=asked))
    text = "no worker offers 4 cores and 5000 MiB; the nearest is w1 with 16 cores and 4096 MiB"
    assert waits(cluster, "a1") == ("no-worker-large-enough", "P1", text)


def test_an_admitted_app_waits_for_room_on_some_worker() -> None:
    cluster = full()
    cluster.turn(ConfigureCluster(settings={"admission": "open"}))
    cluster.submit("b1", 8, company="bolt")
    cause, rule, text = waits(cluster, "b1")
    assert (cause, rule) == ("workers-full", "P1")
    assert "the nearest is w1 with 0 cores" in text


def test_a_running_app_waits_for_nothing() -> None:
    assert told(full(), "a1")["waitsFor"] is None


def test_an_admission_is_told_with_every_candidate() -> None:
    cluster = full()
    cluster.submit("a2", 16)
    cluster.submit("a3", 8, user="bob")
    cluster.submit("b1", 16, company="bolt", user="cat")
    cluster.turn(EndApp(app="a1", reason="finished"))
    admission = told(cluster, "b1")["admission"]
    assert admission["share"] == "0/1"
    assert [(each["company"], each["share"]) for each in admission["companies"]] == [("acme", "0/1"), ("bolt", "0/1")]
    assert [(each["user"], each["lastSelected"], each["app"]) for each in admission["users"]] == [
        ("ann", 5, "a2"),
        ("bob", None, "a3"),
        ("cat", None, "b1"),
    ]


def test_executors_are_told_with_their_size_and_their_worker() -> None:
    (executor,) = told(full(), "a1")["executors"]
    assert (executor["executor"], executor["worker"], executor["cores"]) == ("a1.0", "w1", 16)
    assert executor["why"]["sizeRule"] == "S2"
    assert executor["why"]["size"] == "16 cores left to grant on 1 usable workers make executors of 16 cores"
    assert "w1 had 16 cores and 65536 MiB free" in executor["why"]["workers"]


def test_the_waiting_time_of_an_app_splits_by_cause_to_the_millisecond() -> None:
    cluster = full()
    cluster.turn(submission("b1", 8, company="bolt"), after_s=1)
    cluster.turn(DrainWorker(worker="w1"), after_s=7)
    cluster.turn(UndrainWorker(worker="w1"), after_s=11)
    cluster.turn(EndApp(app="a1", reason="finished"), after_s=13)
    cluster.ended("a1.0")
    cluster.turn(EndApp(app="b1", reason="finished"), after_s=20)
    said = told(cluster, "b1")["waited"]
    assert said == {
        "ms": 32_000,
        "byCause": [
            {"cause": "cluster-full", "rule": "A3", "ms": 20_000},
            {"cause": "no-live-worker", "rule": "A3", "ms": 11_000},
            {"cause": "workers-full", "rule": "P1", "ms": 1_000},
        ],
    }


def test_an_app_that_the_log_never_heard_of_is_refused() -> None:
    with pytest.raises(UnknownApp):
        told(full(), "a9")
