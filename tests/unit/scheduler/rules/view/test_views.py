"""What people and programs see of the state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from scheduler.model.commands import (
    AddWindow,
    DrainWorker,
    EndApp,
    KillApp,
    LoseWorker,
    StartedExecutor,
)
from scheduler.model.errors import InvalidCommand, UnknownApp
from scheduler.model.events import AccountAdded, RoleGranted, TokenIssued
from scheduler.rules.checks.validate import RETIRED
from scheduler.rules.view.views import VIEWS, look, named
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


def test_dates_are_compared_with_the_time_now_though_no_turn_has_come() -> None:
    cluster = Cluster()
    cluster.company("acme", 64, 65536)
    cluster.worker("w1", 16, 7 * 1024)
    cluster.turn(replace(submission("run", 4), max_runtime_s=60))
    cluster.turn(StartedExecutor(executor="run.0"))
    at = cluster.state.at
    cluster.turn(AddWindow(window="gone", workers=("w1",), begin=at + 600_000, end=at + 900_000))
    closes = cluster.state.windows["gone"].closes

    def then(name: str, now: int | None, field: str, **arguments: object) -> list[object]:
        found = look(cluster.state, name, arguments, now)
        return [each[field] for each in (found if isinstance(found, list) else [found])]

    for now, ran in ((None, cluster.state.at - at), (0, cluster.state.at - at), (at + 7_000, 7_000)):
        assert then("app", now, "ranMs", app="run") == [ran]
    assert [then("windows", now, "closing") for now in (None, closes - 1, closes)] == [[False], [False], [True]]
    issued = TokenIssued("t1", "acme/ann", "user", ("read",), at + 9_000, "ab" * 32)
    for event in (AccountAdded("acme/ann", "acme"), RoleGranted("acme/ann", "user"), issued):
        cluster.state.apply(event, cluster.state.at)
    for now, valid in ((None, ["t1"]), (at + 8_999, ["t1"]), (at + 9_000, [])):
        assert then("tokens", now, "token") == valid
        assert then("accounts", now, "tokens") == [len(valid)]


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


def test_an_unknown_app_cannot_be_shown() -> None:
    with pytest.raises(UnknownApp, match=r"^no app 'nope' is known"):
        look(busy().state, "app", {"app": "nope"})


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
    assert seen(cluster, "settings") == {n: v for n, v in asdict(cluster.state.settings).items() if n not in RETIRED}


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
