"""Random clusters whose companies are in departments of up to three levels (semantics H12)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from scheduler.model.errors import CommandRejected
from scheduler.model.events import AppAdmitted, Event
from scheduler.model.resources import Resources
from scheduler.rules.admission.limits import Broken, CompanyLimits
from scheduler.rules.invariants import check
from scheduler.rules.share.demands import wanted_units
from scheduler.rules.share.entitlement import entitlement, filling
from scheduler.rules.share.fill import Filling, GroupTree
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.state.records import lines, restored
from tests.property.given import Cluster
from tests.property.lawful import within_cap
from tests.property.reference import within_above
from tests.property.test_sharing import Obedient
from tests.property.trees import naive_filling, random_tree


def within_all(state: ClusterState, event: Event) -> None:
    """Nothing passes a cap, and nobody enters who exceeds a limit of a department (semantics N2, H12)."""
    within_cap(state, event)
    if isinstance(event, AppAdmitted):
        assert within_above(state, state.apps[event.app]), event


@pytest.mark.parametrize("limits", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_a_filling_is_the_one_that_the_text_says(part: int, *, limits: bool) -> None:
    for seed in range(part, 100, 4):
        cluster = Cluster(before=within_all, each_event=False, each_refusal=False)
        for command in random_tree(seed, limits=limits):
            with suppress(CommandRejected):
                cluster.turn(command)
            state = cluster.state
            made = filling(state)[0]
            handed = {app: leaf.units for app, leaf in made.leaves.items() if leaf.units}
            assert handed == dict(naive_filling(state)), (seed, command)
            due = entitlement(state)
            for app in state.apps.values():  # a filling may find no room where all that is missing has it now
                is_whole = due.whole and app.need.hostable and due.units(app) == wanted_units(app)
                assert is_whole or due.units(app) == handed.get(app.id, 0), (seed, command)


@pytest.mark.parametrize("limits", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_whoever_is_below_in_a_tree_reaches_its_entitlement(part: int, *, limits: bool) -> None:
    for seed in range(part, 40, 4):
        obedient = Obedient(random_tree(seed, limits=limits))
        obedient.settle(hours=48)
        state = obedient.cluster.state
        assert not obedient.below(), (seed, obedient.below())
        assert not any(one.status == "stopping" for one in state.executors.values()), seed
        assert obedient.losses <= 4 * sum(worker.offer.cores for worker in state.workers.values()), seed
        again = restored(list(lines(state)))
        check(again)
        assert again.digest() == state.digest()
        obedient.cluster.check_replay()


def lets_everybody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of departments keep nobody out (semantics N2)."""
    of_all = CompanyLimits.broken_by

    def broken(
        limit: CompanyLimits, user: str, *asked: tuple[Resources, int], alone: bool = False
    ) -> tuple[str, Broken] | None:
        found = of_all(limit, user, *asked, alone=alone)
        return None if found is not None and found[1].department else found

    monkeypatch.setattr(CompanyLimits, "broken_by", broken)


def lends_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupTree, "_leaves", lambda *_: True)


def passes_every_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupTree, "passes", lambda *_: True)


def fills_from_any_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filling, "_group_key", lambda _, group: group.turns[0][0])


@pytest.mark.parametrize("plant", [lets_everybody_in, lends_what_is_kept, passes_every_cap, fills_from_any_child])
def test_a_planted_bug_of_departments_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        play_and_compare(range(100))


def play_and_compare(seeds: range) -> None:
    for seed in seeds:
        cluster = Cluster(before=within_all, each_event=False, each_refusal=False)
        for command in random_tree(seed, limits=True):
            with suppress(CommandRejected):
                cluster.turn(command)
        handed = {app: leaf.units for app, leaf in filling(cluster.state)[0].leaves.items() if leaf.units}
        assert handed == dict(naive_filling(cluster.state)), seed
