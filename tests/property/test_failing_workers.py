"""Over random histories: who is kept from failing workers, and how many are suspected (semantics W7, W8)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.events import Event, ExecutorAllocated, MasterElected
from scheduler.rules.placement.executors import PLACEMENTS
from scheduler.rules.state import ClusterState
from tests.property import reference
from tests.property.histories import HISTORIES, WHAT, History, Step, played

CHOICES: dict[str, st.SearchStrategy[object]] = {
    "placement": st.sampled_from(sorted(PLACEMENTS)),
    "suspect_failures": st.sampled_from([2, 3]),
    "suspect_s": st.sampled_from([2, 60]),
    "exclude_after": st.sampled_from([0, 1, 2]),
}
SEVEN: History = [[Step(WHAT.index("worker"), number, number)] for number in range(4, 7)]
"""Three more workers, so that one may be suspected."""


@given(history=HISTORIES, chosen=st.fixed_dictionaries(CHOICES))
@settings(max_examples=60)
def test_no_app_gets_anything_where_it_is_excluded_and_few_workers_are_suspected(
    history: History, chosen: dict[str, object]
) -> None:
    ended = 0

    def before(state: ClusterState, event: Event) -> None:
        nonlocal ended
        if isinstance(event, ExecutorAllocated):
            assert event.worker not in reference.tries(state, state.apps[event.app])[-1]
            assert not state.workers[event.worker].shut
        if state.at != ended and not isinstance(event, MasterElected):
            ended = state.at
            assert 4 * len(state.suspects) <= max(state.fleet.live, 4 * len(state.suspects) * (state.head == 0))

    state = played([*SEVEN, *history], chosen, before=before).state
    for worker in state.suspects.values():
        granted = [executor.granted_at for executor in worker.executors.values()]
        assert worker.suspicion is not None
        assert sum(at > worker.suspicion.since for at in granted) <= 1
