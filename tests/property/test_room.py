"""Where room is made for needs: the search misses no cheaper worker, on random clusters (semantics H6)."""

from __future__ import annotations

import pytest

from scheduler.rules.share.entitlement import Entitlement, entitlement
from scheduler.rules.stage.room import MEANS, Room, Seeking, Why
from scheduler.rules.state.cluster import ClusterState
from tests.property.test_sharing import Obedient, random_cluster

KINDS: list[dict[str, bool]] = [{}, {"caps": True}, {"gpus": True}, {"drivers": True}, {"users": True}]


def every_worker(seeking: Seeking) -> tuple[Room, Why] | None:
    """The cheapest room, by looking at each worker by each means in turn."""
    forced = seeking._below_cap()
    if forced is None:
        return None
    for means in MEANS:
        found = [
            room
            for worker in seeking.state.workers.values()
            if seeking._may_have_target(worker) and (room := seeking._made(worker, forced, means)) is not None
        ]
        if found:
            best = min(found)
            return best, "cap" if forced else "move" if best.moves else "surplus"
    planned = seeking._planned(forced)
    return None if planned is None else (planned, "plan")


def compare(state: ClusterState, entitled: Entitlement) -> int:
    """Look for room for each app that lacks anything; how many found some."""
    found = 0
    for app in state.wanting():
        if not app.over:
            room = Seeking(state, entitled, app, state.at).cheapest()
            assert room == every_worker(Seeking(state, entitled, app, state.at)), app.id
            found += room is not None
    return found


@pytest.mark.parametrize("few", [1, 3])
@pytest.mark.parametrize("kind", KINDS, ids=["plain", "caps", "gpus", "drivers", "users"])
def test_the_search_for_room_misses_no_cheaper_worker(
    kind: dict[str, bool], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.rules.stage.room.FEW", few)
    found = 0
    for seed in range(12):
        obedient = Obedient(random_cluster(seed, **kind))
        for _ in range(4):
            state = obedient.cluster.state
            found += compare(state, entitlement(state))
            obedient.settle(hours=1)
    assert found > 0
