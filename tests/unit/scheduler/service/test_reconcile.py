"""What a new master writes and whom it rings, for whatever grants the store has."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.events import ExecutorChanged
from scheduler.model.grants import GrantChanges
from scheduler.rules.view.assignments import all_grants
from scheduler.service.reconcile import concerned, differing_grants
from tests.property.given import ACME, entered, fold, granted, joined, queued

STATE = fold([ACME, joined(), joined("w2"), joined("w3"), queued(), entered(), granted("a1.0"), granted("a1.1", "w2")])
GRANTS = all_grants(STATE)


def carried_out(stored: dict[str, dict[str, str]], changes: GrantChanges) -> dict[str, dict[str, str]]:
    """The grants of the live workers after the changes."""
    found = {worker: dict(grants) for worker, grants in stored.items() if worker not in changes.left}
    found |= {worker: {} for worker in changes.joined}
    for worker, grants in changes.by_worker.items():
        for name, grant in grants.items():
            if grant is None:
                del found[worker][name]
            else:
                found[worker][name] = grant
    return found


def test_grants_that_are_as_they_should_be_are_not_written() -> None:
    assert differing_grants(STATE, GRANTS, settled_at=0) == GrantChanges({}, [], [])


def test_a_changed_a_missing_and_a_foreign_grant_are_put_right() -> None:
    stored = {"w1": {"a1.0": "{}", "a9.9": "{}"}, "w2": {}, "w4": {"a8.8": "{}"}}
    changes = differing_grants(STATE, stored, settled_at=0)
    assert changes == GrantChanges(
        {"w1": {"a9.9": None, "a1.0": GRANTS["w1"]["a1.0"]}, "w2": {"a1.1": GRANTS["w2"]["a1.1"]}}, ["w3"], ["w4"]
    )


_TEXTS = st.sampled_from(["{}", "", *(grant for grants in GRANTS.values() for grant in grants.values())])
_STORED = st.dictionaries(
    st.sampled_from(["w1", "w2", "w3", "w4"]), st.dictionaries(st.sampled_from(["a1.0", "a1.1", "a9.0"]), _TEXTS)
)


@given(_STORED)
@settings(max_examples=60)
def test_whatever_is_stored_the_grants_are_those_of_the_log(stored: dict[str, dict[str, str]]) -> None:
    assert carried_out(stored, differing_grants(STATE, stored, settled_at=0)) == GRANTS


def test_only_workers_with_something_to_do_are_rung() -> None:
    running = [ExecutorChanged(executor=name) for name, _ in _HELD]
    busy = fold(running, fold([ACME, joined(), joined("w2"), joined("w3"), queued(), entered(), *_GRANTED]))
    nothing = GrantChanges({}, [], [])
    assert concerned(STATE, nothing) == ["w1", "w2"]
    assert concerned(busy, nothing) == []
    assert concerned(busy, GrantChanges({"w2": {}}, ["w3"], ["w4"])) == ["w2", "w3"]


_HELD = (("a1.0", "w1"), ("a1.1", "w2"))
_GRANTED = [granted(name, worker) for name, worker in _HELD]
