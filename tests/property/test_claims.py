"""What an app would claim once an executor has ended is what it claims then (semantics A8, S6)."""

from __future__ import annotations

import pytest
from hypothesis import given

from scheduler.model.events import Event, ExecutorRemoved
from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.state import ClusterState
from tests.property.given import examples
from tests.property.histories import HISTORIES, History, played


class Foretold:
    """What the company of an app is to claim more, and what it claimed before the end of an executor was folded."""

    def __init__(self) -> None:
        self._next: tuple[str, Resources, Resources] | None = None

    def see(self, state: ClusterState, event: Event) -> None:
        """Compare what was foretold, and foretell what the event brings about."""
        if self._next is not None:
            company, rise, before = self._next
            assert state.claims.of(company).claimed - before == rise
        self._next = None
        if state.settings.admission == "open":
            return
        for app in state.waiting.values():
            if not app.over:
                assert state.claims.rise(app, NOTHING) == NOTHING, app.id
        if isinstance(event, ExecutorRemoved) and not event.done and not state.apps[event.app].over:
            app, ended = state.apps[event.app], state.executors[event.executor]
            live = ended.resources if state.workers[ended.worker].status == "alive" else NOTHING
            rise = state.claims.rise(app, ended.resources, executors=1) - live
            self._next = app.spec.company, rise, state.claims.of(app.spec.company).claimed


@pytest.mark.second_edition
@given(HISTORIES)
@examples(100)
def test_the_end_of_an_executor_raises_the_claim_by_what_was_foretold(history: History) -> None:
    played(history, before=Foretold().see)
