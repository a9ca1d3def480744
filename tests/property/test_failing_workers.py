"""Over random histories: who is kept from failing workers, and how many are suspected (semantics W7, W8)."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.commands import DecommissionWorker
from scheduler.model.errors import CommandRejected
from scheduler.model.events import Event, ExecutorAllocated
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.state.cluster import ClusterState
from tests.property import reference
from tests.property.given import Cluster, examples
from tests.property.histories import BUILD_UP, HISTORIES, SEVEN, History, command_for

CHOICES: dict[str, st.SearchStrategy[object]] = {
    "placement": st.sampled_from(sorted(PLACEMENTS)),
    "suspect_failures": st.sampled_from([2, 3]),
    "suspect_s": st.sampled_from([2, 60]),
    "exclude_after": st.sampled_from([0, 1, 2]),
}


@given(history=HISTORIES, chosen=st.fixed_dictionaries(CHOICES))
@examples(60)
def test_no_app_gets_anything_where_it_is_excluded_and_few_workers_are_suspected(
    history: History, chosen: dict[str, object]
) -> None:
    def before(state: ClusterState, event: Event) -> None:
        if isinstance(event, ExecutorAllocated):
            assert event.worker not in reference.tries(state, state.apps[event.app])[-1]
            assert not state.workers[event.worker].shut

    cluster = Cluster(chosen, before=before, each_refusal=False)
    for turn in (*BUILD_UP, *SEVEN, *history):
        commands = [command_for(cluster.state, step) for step in turn]
        with suppress(CommandRejected):
            cluster.turn(*commands)
        if not any(isinstance(command, DecommissionWorker) for command in commands):  # it decides nothing (W3)
            assert 4 * len(cluster.state.indexes.suspects) <= cluster.state.fleet.live
    cluster.check_replay()
    state = cluster.state
    for worker in state.indexes.suspects:
        granted = [executor.granted_at for executor in worker.executors.values()]
        assert worker.suspicion is not None
        assert sum(at > worker.suspicion.since for at in granted) <= 1
