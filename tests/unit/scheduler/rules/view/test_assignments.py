"""What a worker should run, and what brings it there."""

from __future__ import annotations

import json
from collections.abc import Iterable

from msgspec import structs

from scheduler.model.commands import ChangeCompany, EndApp, KillApp, LoseWorker, RemoveWorker
from scheduler.model.events import AppRemoved, Event, ExecutorRemoved, WorkerRemoved
from scheduler.model.grants import STOP, Difference, Grant, GrantChanges, diff
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.assignments import all_grants, changed_grants
from tests.property.given import ACME, Cluster, entered, fold, granted, joined, queued, shared, submission, worker

RUNNING: list[Event] = [ACME, joined(), joined("w2"), queued(), entered(), granted("a1.0"), granted("a1.1", "w2")]


GRANTED_AT = {"a1.0": 6, "a1.1": 7}


def grant(executor: str = "a1.0", *, settled_at: int = 0) -> str:
    """The grant of an executor of the app that `queued` makes, as it is stored."""
    return Grant(
        executor=executor,
        app="a1",
        company="acme",
        user="ann",
        name="a1",
        cores=4,
        memory_mb=2048,
        tasks=8,
        command=(),
        settled_at=settled_at,
        granted_at=GRANTED_AT.get(executor, 0),
    ).model_dump_json(exclude_defaults=True)


def changes(state: ClusterState, events: Iterable[Event]) -> GrantChanges:
    """What these further events change of the grants."""
    further = list(events)
    return changed_grants(further, fold(further, state))


def test_a_grant_says_all_that_a_worker_needs_to_know_of_the_app() -> None:
    state = fold(RUNNING)
    assert all_grants(state) == {"w1": {"a1.0": grant()}, "w2": {"a1.1": grant("a1.1")}}


def test_a_grant_is_stored_under_exactly_these_names() -> None:
    assert list(Grant.model_fields) == [
        "executor",
        "app",
        "company",
        "user",
        "name",
        "cores",
        "memory_mb",
        "tasks",
        "command",
        "env",
        "cwd",
        "retries",
        "time_limit_s",
        "role",
        "stays",
        "has_driver",
        "elastic",
        "retry_backoff_s",
        "settled_at",
        "cores_per_task",
        "leaving",
        "granted_at",
        "addresses",
        "per_task",
        "warning",
        "program",
        "begins_in_scratch",
        "rank",
        "ranks",
        "grace_s",
        "idle_end_s",
        "end_idle",
        "array",
        "near",
        "keep_going",
        "number",
        "outputs",
        "signals",
        "cancelled",
        "script",
        "script_at",
        "image",
        "network",
        "restarts",
        "hosts",
        "port",
    ]


def test_an_executor_that_uses_nothing_is_ended_where_its_company_wants_that() -> None:
    """Semantics W13: a driver waits for others, so nobody looks at it."""
    cluster = shared({"idle_end_s": 60}, w1=8)
    cluster.turn(structs.replace(submission("a1", 4), driver=True, driver_cores=1, driver_memory_mb=512))
    said = [json.loads(text) for text in all_grants(cluster.state)["w1"].values()]
    assert {each["executor"]: (each.get("idle_end_s"), each.get("end_idle")) for each in said} == {
        "a1.driver-0": (None, None),
        "a1.0": (60, None),
    }
    cluster.turn(ChangeCompany(company="acme", end_idle=True))
    assert json.loads(all_grants(cluster.state)["w1"]["a1.0"])["end_idle"] is True


def test_with_replicas_a_grant_names_the_position_from_which_it_counts() -> None:
    state = fold(RUNNING)
    later = {"w1": {"a1.0": grant(settled_at=9)}, "w2": {"a1.1": grant("a1.1", settled_at=9)}}
    assert all_grants(state, settled_at=9) == later
    assert changed_grants(RUNNING[-2:], state, settled_at=9).by_worker == later


def test_an_allocated_executor_is_granted_to_its_worker() -> None:
    state = fold(RUNNING[:-2])
    assert changes(state, RUNNING[-2:]) == ({"w1": {"a1.0": grant()}, "w2": {"a1.1": grant("a1.1")}}, [], [])


def test_a_removed_executor_is_revoked() -> None:
    gone = ExecutorRemoved(app="a1", executor="a1.0", worker="w1", reason="exited")
    assert changes(fold(RUNNING), [gone]) == ({"w1": {"a1.0": None}}, [], [])


def test_a_killed_apps_executors_are_to_stop_at_once_although_their_cores_are_held() -> None:
    """Semantics A5: what is to stop stays written until the worker has said that it is gone."""
    state = fold(RUNNING)
    killed = AppRemoved(app="a1", reason="killed")
    assert changes(state, [killed]) == ({"w1": {"a1.0": STOP}, "w2": {"a1.1": STOP}}, [], [])
    assert all_grants(state) == {"w1": {"a1.0": STOP}, "w2": {"a1.1": STOP}}
    assert state.workers["w1"].free.cores == 12
    gone = ExecutorRemoved(app="a1", executor="a1.0", worker="w1", reason="killed")
    assert changes(state, [gone]) == ({"w1": {"a1.0": None}}, [], [])
    assert all_grants(state) == {"w1": {}, "w2": {"a1.1": STOP}}


def test_an_app_that_ends_with_nothing_running_revokes_nothing() -> None:
    state = fold([ACME, joined(), queued()])
    assert changes(state, [AppRemoved(app="a1", reason="finished")]) == ({}, [], [])


def test_changed_grants_name_the_workers_that_join_and_leave() -> None:
    state = fold(RUNNING[:3])
    further: list[Event] = [joined("w3"), WorkerRemoved(worker="w2", reason="removed")]
    assert changes(state, further) == ({}, ["w3"], ["w2"])


def test_a_worker_that_joined_and_left_in_one_turn_is_not_expected() -> None:
    further: list[Event] = [joined("w3"), WorkerRemoved(worker="w3", reason="lost")]
    assert changes(fold([]), further) == ({}, [], ["w3"])


def test_a_worker_lost_and_back_in_one_turn_has_only_its_new_grants() -> None:
    """Semantics W2: `left` and then `joined`."""
    cluster = shared(w1=8)
    cluster.submit("a1", 8)
    events = cluster.turn(LoseWorker(worker="w1"), worker("w1", 8))
    result = changed_grants(events, cluster.state)
    assert (result.joined, result.left) == (["w1"], ["w1"])
    assert {name: list(executors) for name, executors in result.by_worker.items()} == {"w1": ["a1.1"]}


def test_a_removed_workers_grants_are_not_written_any_more() -> None:
    cluster = shared(w1=8, w2=8)
    cluster.submit("a1", 16)
    events = cluster.turn(RemoveWorker(worker="w1", force=True))
    result = changed_grants(events, cluster.state)
    assert result == ({}, [], ["w1"])


def test_the_executors_of_an_app_that_is_forgotten_with_its_last_one_are_revoked() -> None:
    cluster = Cluster({"retained_apps": 0})
    cluster.company("acme")
    cluster.worker("w1", 8)
    cluster.submit("a1", 8)
    events = cluster.turn(EndApp(app="a1", reason="finished"))
    assert changed_grants(events, cluster.state).by_worker == {"w1": {"a1.0": STOP}}
    gone = [*cluster.ended("a1.0"), AppRemoved(app="a1", reason="finished")]
    assert "a1" not in cluster.state.apps
    assert changed_grants(gone, cluster.state).by_worker == {"w1": {"a1.0": None}}


def test_another_apps_grants_stay_as_they_are() -> None:
    cluster = shared(w1=16)
    cluster.turn(submission("a1", 4), submission("a2", 4))
    events = cluster.turn(KillApp(app="a1"))
    assert changed_grants(events, cluster.state).by_worker == {"w1": {"a1.0": STOP}}
    assert all_grants(cluster.state)["w1"].keys() == {"a1.0", "a2.0"}
    assert all_grants(cluster.state)["w1"]["a2.0"] != STOP


def test_the_difference_is_what_to_start_and_what_to_stop_in_order_of_ids() -> None:
    wanted = {name: Grant.model_validate_json(grant(name)) for name in ("b.0", "a.1", "a.0")}
    assert diff(wanted, ["z.0", "a.1", "c.0"]) == Difference([wanted["a.0"], wanted["b.0"]], ["c.0", "z.0"])
    assert diff(wanted, wanted) == Difference([], [])
    assert diff({}, []) == Difference([], [])
