"""Why an app waits, was admitted and was placed, told from the log alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from fairlog.cli.main import cli
from recovery.replay.bounds import moment
from recovery.replay.rebuild import fold
from scheduler.model.commands import (
    ConfigureCluster,
    KillApp,
    ReleaseApp,
    RemoveWorker,
    ScaleApp,
)
from scheduler.model.errors import UnknownApp
from scheduler.model.events import AppRegistered, AppRemoved
from scheduler.rules.state.cluster import ClusterState
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


def test_an_app_waits_for_a_host_that_its_tasks_prefer() -> None:
    cluster = Cluster({"locality_wait_host_ms": 60_000})
    cluster.company("acme")
    cluster.worker("w1", 8)
    cluster.worker("w2", 4)
    asked = {"executor_memory_mb": 1024, "memory_per_task_mb": None}
    cluster.turn(replace(submission("full", 8), **asked, executor_cores=8))
    cluster.turn(replace(submission("a1", 4), **asked, executor_cores=4, executor_limit=0))
    assert waits(cluster, "a1") == ("limit", "P4", "its demand is 0 executors")
    cluster.turn(ScaleApp(app="a1", executors=1, prefer={"w1.example": 1}, preferring_tasks=1))
    assert waits(cluster, "a1") == (
        "locality",
        "L5",
        (
            "it has waited since 1970-01-01 00:00:07.000Z for room on a host that its tasks prefer (w1.example): "
            "up to 60000 ms on these hosts, then up to 3000 ms in their racks"
        ),
    )


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


def test_executors_are_told_with_their_size_and_their_worker() -> None:
    (executor,) = told(full(), "a1")["executors"]
    assert (executor["executor"], executor["worker"], executor["cores"]) == ("a1.0", "w1", 16)
    assert executor["why"]["sizeRule"] == "S2"
    assert executor["why"]["size"] == "16 cores: 16 cores left to grant on 1 usable workers"
    assert executor["why"]["memory"] == (
        "8192 MiB for 16 cores: 512 MiB per task; at least 2048 MiB, in steps of 256 MiB"
    )
    assert executor["why"]["workers"] == (
        "spread: one to each worker in turn, workers ordered by cores-free-desc (P1); "
        "w1 was number 1 of 1 worker with room and had 16 cores and 65536 MiB free"
    )


def test_executors_of_different_sizes_are_told_each_with_its_own_reason() -> None:
    cluster = Cluster()
    cluster.company("acme", 64, 65536)
    cluster.worker("w1", 16)
    cluster.worker("w2", 8)
    cluster.submit("a1", 20)
    executors = told(cluster, "a1")["executors"]
    assert [(each["cores"], each["why"]["size"].partition(" left")[0]) for each in executors] == [
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
