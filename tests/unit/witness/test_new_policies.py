"""A new policy is one record in its table: it is chosen, decides, is explained, audited and replayed by that alone."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.model.commands import EndApp
from scheduler.model.quota import Quota, Share
from scheduler.model.resources import Resources
from scheduler.rules.admission.app import APP_POLICIES, AppPolicy
from scheduler.rules.admission.company import COMPANY_POLICIES, CompanyPolicy, Tenant
from scheduler.rules.admission.policy import Basis
from scheduler.rules.admission.user import USER_POLICIES, Contender, UserPolicy
from scheduler.rules.entities.fleet import WORKER_SELECTIONS, Candidates, WorkerSelection
from scheduler.rules.placement.executors import PLACEMENTS, Counts, Placement, pack_cores
from tests.property.given import Cluster, admitted


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
