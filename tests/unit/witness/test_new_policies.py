"""A new policy is one record in its table: it is chosen, decides, is explained, audited and replayed by that alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairlog.cli.main import cli
from scheduler.model.commands import EndApp
from scheduler.model.events import AppAdmitted
from scheduler.model.quota import Quota, Share
from scheduler.model.resources import Resources
from scheduler.rules.admission.app import APP_POLICIES, AppPolicy
from scheduler.rules.admission.company import COMPANY_POLICIES, CompanyPolicy, Tenant
from scheduler.rules.admission.policy import Basis
from scheduler.rules.admission.user import USER_POLICIES, Contender, UserPolicy
from scheduler.rules.fleet import WORKER_SELECTIONS, Candidates, WorkerSelection
from scheduler.rules.placement.executors import PLACEMENTS, Counts, Placement, pack_cores
from tests.property.given import Cluster, admitted
from tests.unit.recorded import edited, facts, rechained
from tests.unit.witness.audit.test_audit import exported
from witness.audit.audit import audit
from witness.explain import explain


def smallest_request(contender: Contender, _quota: Quota, _basis: Basis) -> Share:
    return Share(contender.request.cores, 1)


def first_letter(tenant: Tenant, _basis: Basis) -> Share:
    return Share(ord(tenant.company[0]), 1)


def last_one(candidates: Candidates, size: Resources, limit: int) -> Counts:
    """Everything on the last candidate."""
    worker, (cores, memory_mb) = [*candidates][-1]
    return [(worker, min(limit, cores // size.cores, memory_mb // size.memory_mb))]


NEW: dict[str, tuple[dict[str, Any], Any]] = {
    "user_policy": (
        USER_POLICIES,
        UserPolicy("small-first", "U9", smallest_request, reason="asked for least", measure="a request of"),
    ),
    "company_policy": (COMPANY_POLICIES, CompanyPolicy("a-first", "C9", first_letter, measure="a letter of")),
    "app_policy": (APP_POLICIES, AppPolicy("batch-first", "F9", lambda kind: kind == "sql", reason="no sql")),
    "placement": (PLACEMENTS, Placement("last", "P9", last_one, pack_cores, "all on the last worker")),
    "worker_selection": (WORKER_SELECTIONS, WorkerSelection("worker-id-desc", "id", largest_first=True)),
}


@pytest.fixture(params=NEW)
def new(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any]:
    """The setting, and its policy once that stands in the table, and nowhere else."""
    table, policy = NEW[request.param]
    monkeypatch.setitem(table, policy.name, policy)
    return request.param, policy


def lively(settings: dict[str, object]) -> Cluster:
    """Two companies; `first` holds all there is, and when it ends one app after the other can enter.

    Both have reached their parts by then, so that it is the policies that decide.
    """
    cluster = Cluster(settings)
    for company in ("acme", "zinc"):
        cluster.company(company, 64, 1 << 20)
    cluster.worker("w1", 24)
    cluster.worker("w2", 16)
    cluster.submit("first", 40)
    cluster.submit("zed", 8, company="zinc", user="zed")
    cluster.submit("ann-sql", 8, kind="sql")
    cluster.submit("ann", 8)
    cluster.submit("bob", 32, user="bob")
    cluster.submit("zoe", 16, company="zinc", user="zoe")
    while cluster.state.waiting:
        app = cluster.state.waiting[next(iter(cluster.state.waiting))]
        for executor in list(app.executors):
            cluster.ended(executor, done=True)
        cluster.turn(EndApp(app=app.id, reason="finished"))
    return cluster


def entered(cluster: Cluster) -> list[str]:
    return admitted(logged.event for logged in cluster.log)


@pytest.mark.second_edition
def test_it_decides_is_explained_and_audited_and_replayed(new: tuple[str, Any], tmp_path: Path) -> None:
    setting, policy = new
    usual, cluster = lively({}), lively({setting: policy.name})
    assert [logged.event for logged in cluster.log[1:]] != [logged.event for logged in usual.log]
    log = facts(cluster)
    assert audit(log) == []
    cluster.check_replay()

    lives = [explain(log, app) for app in entered(cluster)]
    told = json.dumps(lives)
    words = {
        "user_policy": ["U9", "ann asked for least, before bob"],
        "company_policy": [
            "C9",
            "acme had a letter of 97/1, the smallest of 2",
            "acme had a letter of 97/1 (zinc: 122/1), but no app that kept it within its part",
        ],
        "app_policy": ["F9", "of 2 apps in ann's queue it was no sql"],
        "placement": ["P9", "last: all on the last worker, workers ordered by cores-free-desc (P1)"],
        "worker_selection": ["P2", "one to each worker in turn, workers ordered by worker-id-desc (P1)"],
    }[setting]
    assert [text for text in words if text not in told] == []

    answer = CliRunner().invoke(cli, ["replay", str(exported(tmp_path, log)), "--json"])
    frames = [json.loads(line) for line in answer.output.splitlines()]
    played = [each["app"] for frame in frames for each in frame["decisions"] if each["type"] == "AppAdmitted"]
    assert (answer.exit_code, played) == (0, entered(cluster))


@pytest.mark.parametrize(
    ("setting", "due", "done"),
    [
        ("user_policy", "ann-sql", {"app": "bob", "company": "acme", "user": "bob"}),
        ("company_policy", "bob", {"app": "zoe", "company": "zinc", "user": "zoe"}),
        ("app_policy", "ann", {"app": "ann-sql", "company": "acme", "user": "ann"}),
    ],
)
@pytest.mark.second_edition
def test_what_breaks_it_is_named_by_its_rule(
    setting: str, due: str, done: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, policy = NEW[setting]
    monkeypatch.setitem(table, policy.name, policy)
    log = facts(lively({setting: policy.name}))
    seq = next(each.seq for each in log if isinstance(each.event, AppAdmitted) and each.event.app == due)
    found = audit(rechained(edited(log, seq, **done)))[0]
    assert (found.seq, found.rule, found.entitled) == (seq, policy.rule, due)
