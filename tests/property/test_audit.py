"""What turns decide is what an audit of their log works out again, and what is changed in it is found."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.audit import audit
from recovery.explain import explain
from tests.property.given import recorded
from tests.property.histories import HISTORIES, History, played

AFTER_ADMISSION = ("A4", "D1", "P1", "P5")


@given(HISTORIES)
@settings(max_examples=150)
def test_no_decision_of_any_history_deviates_from_what_an_audit_works_out(history: History) -> None:
    assert audit(recorded(played(history))) == []


@given(HISTORIES, st.data())
@settings(max_examples=100)
def test_an_entry_that_was_taken_out_of_any_history_is_missed_where_it_was(
    history: History, data: st.DataObject
) -> None:
    log = recorded(played(history))
    gone = data.draw(st.integers(1, len(log) - 1))
    found = audit([record for record in log if record.seq != gone])
    assert [(each.seq, each.rule) for each in found] == [(gone, "chain")]


@given(HISTORIES, st.data())
@settings(max_examples=100)
def test_two_entries_of_any_history_that_change_places_are_both_named(history: History, data: st.DataObject) -> None:
    log = recorded(played(history))
    one, other = sorted(data.draw(st.lists(st.integers(1, len(log)), min_size=2, max_size=2, unique=True)))
    log[one - 1], log[other - 1] = log[other - 1], log[one - 1]
    assert [(each.seq, each.rule) for each in audit(log)] == [(one, "chain"), (other, "chain")]


@given(HISTORIES)
@settings(max_examples=60)
def test_what_an_app_waited_before_its_admission_adds_up_to_the_time_that_it_took(history: History) -> None:
    cluster = played(history)
    log = recorded(cluster)
    for name, app in list(cluster.state.apps.items())[-3:]:
        if app.admitted:
            pending = [each for each in explain(log, name)["waited"]["byCause"] if each["rule"] not in AFTER_ADMISSION]
            assert sum(each["ms"] for each in pending) == app.admitted_at - app.submitted_at
