"""A part of what `make explore` looks at, and that it finds what must not happen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.rules.simulate import run_scenario
from tests.exploration.explore import explore
from tests.exploration.worlds import AppKind, Tenant, World, worlds

STATES = 60
SMALL, HALF = AppKind(1, 2), AppKind(2, 2)
DRIVEN, GPU = AppKind(1, 1, driver=True), AppKind(1, 2, gpu=True)
TWO = World((2, 4), (Tenant((SMALL,)), Tenant((HALF,))))
CHOSEN = {
    "two companies": TWO,
    "three companies on a worker": World((4,), (Tenant((SMALL,)), Tenant((SMALL,)), Tenant((HALF,)))),
    "a cap": World((2, 2), (Tenant((HALF,)), Tenant((SMALL, SMALL), capped=True))),
    "drivers": World((4,), (Tenant((SMALL,)), Tenant((DRIVEN, DRIVEN)))),
    "a GPU": World((2, 2), (Tenant((GPU,)), Tenant((GPU, SMALL)))),
}


@pytest.mark.parametrize("world", CHOSEN.values(), ids=CHOSEN)
def test_nothing_goes_wrong_in_a_small_world(world: World) -> None:
    found = explore(world, STATES)
    assert found.wrong == []
    assert found.steps >= found.states > STATES / 3


def test_an_app_that_never_gets_room_is_found_and_its_scenario_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.rules.stage.needs._targets", _nothing)
    [wrong, *_] = explore(World((4,), (Tenant((HALF,)), Tenant((HALF,)))), 4 * STATES).wrong
    assert wrong.what.endswith("has no room long after its date (H9)")
    run_scenario(json.loads(json.dumps(wrong.scenario)))


def test_a_second_turn_that_decides_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.rules.stage.sharing._up_to_entitlements", _nothing)
    monkeypatch.setattr("scheduler.rules.stage.sharing._lent", _nothing)
    [wrong, *_] = explore(TWO, STATES).wrong
    assert "waits for a turn that nothing causes" in wrong.what


def test_each_world_is_there_once() -> None:
    some = [world for world, _ in zip(worlds(), range(3_000), strict=False)]
    assert len(set(some)) == len(some)
    assert all(world.tenants == tuple(sorted(world.tenants)) for world in some)


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())
