"""Workers and owners behind the API: they are lost only after a time in which API servers answered."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fairlog.watch.conditions import UNSERVED_MS, UNSERVED_SHOWN_MS, Unserved
from fairlog.watch.surroundings import look_around
from scheduler.model.commands import RegisterCompany, SubmitApp
from scheduler.rules.stage.turn import Turn
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.heartbeats import Heartbeats
from scheduler.service.owners import Owners
from scheduler.service.served import Served, served, sign
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    import fakeredis

KEYS = Keys("served")
TIMEOUT_MS, STEP_MS = 20_000, 1_000


class Cluster:
    """A master's looks at two silent workers, "far" through the API and "near" on the store, in virtual time."""

    def __init__(self, fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = fake
        self.now = 1_000_000
        clock = SimpleNamespace(time=lambda: self.now / 1000)
        for module in ("_socket._base", "commands_mixins.server_mixin", "_helpers", "_core._server"):
            monkeypatch.setattr(f"fakeredis.{module}.time", clock)
        for worker, api in (("far", True), ("near", False)):
            fake.hset(KEYS.agents, worker, json.dumps({"pid": 1, "host": worker, "api": api}))
            fake.zadd(KEYS.heartbeats, {worker: self.now})
        self.heartbeats = Heartbeats(fake, KEYS)
        self.lost: set[str] = set()

    def passes(self, span_ms: int, *, serving: bool) -> set[str]:
        """Whom the master has declared lost after that time."""
        for _ in range(span_ms // STEP_MS):
            self.now += STEP_MS
            if serving:
                sign(self.store, KEYS, TIMEOUT_MS)
            silent = cast("Any", self.store).execute_command(*self.heartbeats.count_silent(TIMEOUT_MS))
            self.lost |= {each.worker for each in self.heartbeats.lost(self.now, silent, TIMEOUT_MS)}
        return self.lost


@pytest.fixture
def cluster(fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(fake, monkeypatch)


def test_no_worker_is_lost_because_no_api_server_answers(cluster: Cluster) -> None:
    """It has a full timeout once one does; a worker on the store could have sent its heartbeats all along."""
    cluster.passes(STEP_MS, serving=True)
    assert cluster.passes(5 * TIMEOUT_MS, serving=False) == {"near"}
    assert cluster.passes(TIMEOUT_MS - STEP_MS, serving=True) == {"near"}
    assert cluster.passes(3 * STEP_MS, serving=True) == {"near", "far"}


def test_a_worker_that_api_servers_could_hear_is_lost_as_ever(cluster: Cluster) -> None:
    assert cluster.passes(TIMEOUT_MS + 3 * STEP_MS, serving=True) == {"near", "far"}


def test_where_no_api_server_ever_answered_nobody_is_given_time_for_it(cluster: Cluster) -> None:
    assert cluster.passes(TIMEOUT_MS + 3 * STEP_MS, serving=False) == {"near", "far"}


def test_short_gaps_between_signs_cost_no_time(cluster: Cluster) -> None:
    for _ in range(8):
        cluster.passes(STEP_MS, serving=True)
        cluster.passes(TIMEOUT_MS // 4 - STEP_MS, serving=False)
    assert cluster.lost == {"near", "far"}


def test_an_owner_has_its_full_time_once_an_api_server_answers_again(cluster: Cluster) -> None:
    turn = Turn(ClusterState(), cluster.now)
    turn.take(RegisterCompany(company="acme"))
    asked = {"cores": 1, "executor_program": True, "executor_limit": 1, "owner_timeout_s": 30}
    turn.take(SubmitApp(app="a", company="acme", user="ann", tasks=0, command=("x",), **cast("Any", asked)))
    turn.settle()
    owners, owned = Owners(cluster.store, KEYS), turn.state.indexes.owned.members

    def lost(seconds: int, *, serving: bool) -> list[str]:
        found = []
        for _ in range(seconds):
            cluster.passes(STEP_MS, serving=serving)
            found += [each.app for each in owners.lost(cluster.now, owned, TIMEOUT_MS)]
        return found

    assert lost(1, serving=True) + lost(90, serving=False) + lost(30, serving=True) == []
    assert set(lost(3, serving=True)) == {"a"}


def test_a_store_that_was_restarted_knows_that_servers_answered_but_not_how_long(cluster: Cluster) -> None:
    """Most signs are in its memory alone; one a minute reaches its disk."""
    cluster.passes(3 * STEP_MS, serving=True)
    assert served(cluster.store, KEYS) == Served(cluster.now - 2 * STEP_MS, cluster.now)
    cluster.passes(TIMEOUT_MS, serving=False)
    cluster.passes(STEP_MS, serving=True)
    assert served(cluster.store, KEYS) == Served(cluster.now, cluster.now)


def test_status_says_that_no_api_server_answers_while_one_is_missed(cluster: Cluster) -> None:
    def said() -> Unserved | None:
        return look_around(cluster.store, KEYS).unserved

    assert said() is None
    sign(cluster.store, KEYS, TIMEOUT_MS)
    since = cluster.now
    cluster.now += UNSERVED_MS
    assert said() is None
    cluster.now += 1
    assert said() == Unserved(since, 1)
    cluster.store.hdel(KEYS.agents, "far")
    assert said() == Unserved(since, 0)
    cluster.now = since + UNSERVED_SHOWN_MS + 1
    assert said() is None


def test_a_server_that_was_told_to_stop_is_missed_by_its_workers_only(cluster: Cluster) -> None:
    sign(cluster.store, KEYS, TIMEOUT_MS, stopping=True)
    since = cluster.now
    cluster.now += UNSERVED_MS + 1
    assert look_around(cluster.store, KEYS).unserved == Unserved(since, 1)
    cluster.store.hdel(KEYS.agents, "far")
    assert look_around(cluster.store, KEYS).unserved is None
