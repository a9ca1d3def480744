"""A history with one edit folds to a state that holds together, or the edited entry or a later one is refused."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler.model.errors import InvariantViolated
from scheduler.model.events import Event
from scheduler.rules.invariants import check
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import examples
from tests.property.histories import HISTORIES, History, played


@given(HISTORIES, st.data())
@examples(100)
def test_a_random_edit_of_a_history_folds_to_a_valid_state_or_is_refused(history: History, data: st.DataObject) -> None:
    log = [(entry.event, entry.at) for entry in played(history).log]
    if not log:
        return
    where = data.draw(st.integers(0, len(log) - 1), "where")
    match data.draw(st.sampled_from(["edit", "remove", "double", "swap", "time"]), "how"):
        case "remove":
            del log[where]
        case "double":
            log.insert(where, log[where])
        case "swap":
            other = data.draw(st.integers(0, len(log) - 1), "other")
            log[where], log[other] = (log[other][0], log[where][1]), (log[where][0], log[other][1])
        case "time":
            log[where] = log[where][0], log[where][1] + data.draw(st.integers(-5000, 5000), "by")
        case _:
            edited = _edited(log[where][0], data)
            if edited is None:
                return
            log[where] = edited, log[where][1]
    state = ClusterState()
    before, refused_at = (0, 0), None
    for event, at in log:
        try:
            state.apply(event, at=at)
            before = state.head, at
        except InvariantViolated as error:
            refused_at = error.seq
            break
    assert (state.head, state.at) == before
    assert refused_at in {None, state.head + 1}
    check(state)


def _edited(event: Event, data: st.DataObject) -> Event | None:
    """The event with another value of one field, None if a log could not hold it."""
    values: dict[str, Any] = structs.asdict(event)
    field = data.draw(st.sampled_from(sorted(values)), "field")
    other = st.one_of(
        st.integers(-3, 100), st.sampled_from(["a1", "c1", "u1", "w1", "a1.0", "1/2", "", None, True, False])
    )
    try:
        edited = type(event)(**{**values, field: data.draw(other, "value")})
        return msgspec.json.decode(msgspec.json.encode(edited), type=type(event))
    except msgspec.ValidationError:
        return None
