"""What people and programs see of the state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from scheduler.model.commands import DrainWorker, EndApp, KillApp, LoseWorker, StartedExecutor
from scheduler.model.errors import InvalidCommand, UnknownApp
from scheduler.rules.views import VIEWS, look, named
from tests.property.given import Cluster, shared, submission


def busy() -> Cluster:
    """Two companies on a worker of 16 cores: `run` runs, `wait` is admitted without room, `late` is pending."""
    cluster = Cluster()
    cluster.company("acme", 64, 65536)
    cluster.company("initech", part="25%")
    cluster.worker("w1", 16, 7 * 1024)
    cluster.submit("run", 12)
    cluster.turn(StartedExecutor(executor="run.0"))
    cluster.submit("wait", 8, user="bob", per_task_mb=256)
    cluster.submit("late", 8, company="initech", user="cyd")
    return cluster


def seen(cluster: Cluster, name: str, **arguments: object) -> Any:
    """The view, after a trip through JSON."""
    return json.loads(json.dumps(look(cluster.state, name, arguments)))


@pytest.mark.second_edition
def test_apps_are_listed_in_order_of_submission_with_what_they_ask_for_and_hold() -> None:
    apps = seen(busy(), "apps")
    assert [(app["app"], app["state"]) for app in apps] == [
        ("run", "running"),
        ("wait", "waiting"),
        ("late", "pending"),
    ]
    due = {
        "app": "run",
        "company": "acme",
        "user": "ann",
        "name": "run",
        "requestedCores": 12,
        "requestedMemory": 6144,
        "grantedCores": 12,
        "grantedMemory": 6144,
        "submittedAt": 4000,
    }
    assert due.items() <= apps[0].items()


def test_an_app_is_named_by_the_position_of_its_submission_unless_that_is_an_id() -> None:
    cluster = busy()
    numbers = {app["app"]: app["submittedSeq"] for app in seen(cluster, "apps")}
    assert [seen(cluster, "app", app=str(number))["app"] for number in numbers.values()] == ["run", "wait", "late"]
    assert len(set(numbers.values())) == 3
    for text in (
        "0",
        str(numbers["run"] + 1),
        str(cluster.state.head + 1),
        "9" * 40,
        "\u0661",
        f"0x{numbers['run']:x}",
    ):
        assert named(cluster.state, text) == text
        with pytest.raises(UnknownApp):
            look(cluster.state, "app", {"app": text})
    cluster.submit(str(numbers["run"]), 1)
    assert seen(cluster, "app", app=str(numbers["run"]))["app"] == str(numbers["run"])


def test_ended_apps_are_listed_only_when_asked_for() -> None:
    cluster = busy()
    cluster.turn(EndApp(app="run", reason="failed", detail="task 3"), KillApp(app="late"))
    assert [app["app"] for app in seen(cluster, "apps")] == ["wait"]
    everything = seen(cluster, "apps", everything=True)
    assert [(app["app"], app["state"]) for app in everything] == [
        ("run", "failed"),
        ("wait", "waiting"),
        ("late", "killed"),
    ]
    assert everything[0]["detail"] == "task 3"


@pytest.mark.second_edition
def test_one_app_is_shown_with_its_executors() -> None:
    app = seen(busy(), "app", app="run")
    assert [executor["executor"] for executor in app["executors"]] == ["run.0", "run.1"]
    assert app["executors"][0] == {
        "executor": "run.0",
        "worker": "w1",
        "cores": 8,
        "memory": 4096,
        "status": "running",
        "locality": None,
    }
    assert app["executors"][1]["status"] == "starting"


def test_an_unknown_app_cannot_be_shown() -> None:
    with pytest.raises(UnknownApp, match=r"^no app 'nope' is known"):
        look(busy().state, "app", {"app": "nope"})


def counted(part: int, part_mb: int, claim: int = 0, claim_mb: int = 0) -> dict[str, int]:
    """What a company is assured and claims, with nothing granted beyond its part."""
    names = ("partCores", "partMemory", "claimCores", "claimMemory", "beyondCores", "beyondMemory")
    return dict(zip(names, (part, part_mb, claim, claim_mb, 0, 0), strict=True))


@pytest.mark.second_edition
def test_shares_show_the_ledgers_at_all_three_levels_with_exact_fractions() -> None:
    """Semantics O1, C2, C3."""
    shares = seen(busy(), "shares")
    held = {"occupiedCores": 20, "occupiedMemory": 10240, "grantedCores": 12, "grantedMemory": 6144}
    nothing = dict.fromkeys(held, 0)
    assert shares["waitingApps"] == held
    assert shares["companies"] == [
        {
            "company": "acme",
            **held,
            "quotaCores": 64,
            "quotaMemory": 65536,
            **counted(16, 6144, 20, 10240),
            "share": "5/16",
        },
        {"company": "initech", **nothing, "quotaCores": 4, "quotaMemory": 1792, **counted(4, 0), "share": "0/1"},
    ]
    assert [(user["company"], user["user"], user["occupiedCores"]) for user in shares["users"]] == [
        ("acme", "ann", 12),
        ("acme", "bob", 8),
        ("initech", "cyd", 0),
    ]


def test_a_quota_that_is_no_whole_number_is_shown_as_a_fraction_in_lowest_terms() -> None:
    """Semantics C2."""
    cluster = Cluster()
    for name in ("a", "b", "c"):
        cluster.company(name)
    cluster.worker("w1", 16, 9000)
    company = seen(cluster, "shares")["companies"][0]
    assert (company["quotaCores"], company["quotaMemory"]) == ("16/3", 3000)


def test_workers_are_shown_by_id_with_what_is_granted_of_them() -> None:
    cluster = busy()
    cluster.worker("w0", 4, 4096)
    cluster.turn(DrainWorker(worker="w1"))
    workers = seen(cluster, "workers")
    assert [(worker["worker"], worker["status"]) for worker in workers] == [("w0", "alive"), ("w1", "draining")]
    assert {"cores": 16, "memory": 7168, "grantedCores": 12, "grantedMemory": 6144, "executors": 2}.items() <= workers[
        1
    ].items()


def test_a_lost_worker_is_shown_while_it_is_remembered() -> None:
    """Semantics N3."""
    cluster = shared(w1=16, w2=8)
    cluster.turn(LoseWorker(worker="w2"))
    assert [worker["worker"] for worker in seen(cluster, "workers")] == ["w1"]
    at = cluster.state.at
    (_, lost) = seen(cluster, "workers", lost=True)
    told = {"worker": "w2", "status": "lost", "cores": 8, "since": at, "rememberedUntil": at + 86_400_000}
    assert told.items() <= lost.items()
    cluster.worker("w2", 8)
    assert [worker["status"] for worker in seen(cluster, "workers", lost=True)] == ["alive", "alive"]


@pytest.mark.second_edition
def test_a_claim_is_shown_at_its_worker_and_at_the_executor_that_is_to_leave() -> None:
    """Semantics E5."""
    cluster = shared(w1=16)
    cluster.company("bolt")
    cluster.turn(*(submission(f"a{number}", 4) for number in range(4)))
    cluster.submit("b1", 4, company="bolt")
    (held,) = seen(cluster, "workers")[0]["holds"]
    assert held == {
        "app": "b1",
        "cores": 4,
        "memory": 2048,
        "reason": "reclaim",
        "since": cluster.state.at,
        "leaving": ["a3.0"],
    }
    (executor,) = seen(cluster, "app", app="a3")["executors"]
    assert (executor["leavesFor"], executor["deadline"]) == ("b1", cluster.state.at + 300_000)


def test_companies_are_shown_by_name_with_how_their_quota_is_set() -> None:
    cluster = busy()
    cluster.company("globex")
    companies = seen(cluster, "companies")
    assert [(company["company"], company["quota"], company["apps"]) for company in companies] == [
        ("acme", "amounts", 2),
        ("globex", "default", 0),
        ("initech", "1/4", 1),
    ]


def test_every_setting_is_shown() -> None:
    cluster = busy()
    assert seen(cluster, "settings") == asdict(cluster.state.settings)


@pytest.mark.second_edition
def test_the_cluster_is_shown_in_a_few_numbers() -> None:
    cluster = seen(busy(), "cluster")
    assert (cluster["cores"], cluster["memory"]) == (16, 7168)
    none = dict.fromkeys(("finished", "failed", "killed", "expired", "unmet"), 0)
    assert cluster["apps"] == {"pending": 1, "waiting": 1, "running": 1, **none}
    assert cluster["workers"] == [{"worker": "w1", "status": "alive", "suspicion": None}]


def test_apps_that_no_live_worker_is_large_enough_for_are_counted() -> None:
    """Semantics N3."""
    cluster = shared({"never_fits": "wait"}, w1=4)
    for app, cores in (("small", 4), ("large", 8)):
        asked = {"executor_cores": cores, "executor_memory_mb": 1024, "memory_per_task_mb": None}
        cluster.turn(replace(submission(app, cores), **asked))
    assert seen(cluster, "cluster")["tooLarge"] == 1
    cluster.worker("w2", 8)
    assert seen(cluster, "cluster")["tooLarge"] == 0
    for worker in ("w1", "w2"):
        cluster.turn(DrainWorker(worker=worker))
    assert seen(cluster, "cluster")["tooLarge"] == 0


def test_a_view_that_does_not_exist_or_is_asked_wrongly_is_refused() -> None:
    with pytest.raises(InvalidCommand, match=r"^no view is named 'secrets'; the views are apps, app, "):
        look(busy().state, "secrets", {})
    with pytest.raises(InvalidCommand, match=r"^the view 'apps' does not take these arguments"):
        look(busy().state, "apps", {"colour": "red"})


def test_looking_changes_nothing() -> None:
    cluster = busy()
    before = cluster.state.digest()
    for name in VIEWS:
        look(cluster.state, name, {"app": "run"} if name == "app" else {})
    assert cluster.state.digest() == before
