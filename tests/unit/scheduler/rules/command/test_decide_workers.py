"""Given events, when a worker comes, changes, drains or goes, then events."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.commands import Command, DrainWorker, LoseWorker, RegisterWorker, RemoveWorker, UndrainWorker
from scheduler.model.errors import DuplicateWorker, InvalidCommand, OfferTooSmall, UnknownWorker
from scheduler.model.events import (
    AppRemoved,
    Event,
    ExecutorRemoved,
    WorkerChanged,
    WorkerLabelled,
    WorkerRegistered,
    WorkerRemoved,
    WorkerStatus,
)
from scheduler.model.resources import Resources
from scheduler.rules.command.decide import decide
from scheduler.rules.state.records import lines, restored
from tests.property.given import ACME, entered, fold, granted, joined, queued, worker

HELD: list[Event] = [ACME, joined(), joined("w2"), queued(), entered(), granted("a1.0"), granted("a1.1", "w2")]
"""An app with an executor on each of two workers."""


def changed(status: WorkerStatus, cores: int = 16, memory_mb: int = 65536) -> WorkerChanged:
    return WorkerChanged(worker="w1", status=status, offer=Resources(cores, memory_mb))


def lost(executor: str) -> ExecutorRemoved:
    return ExecutorRemoved(app=executor.rpartition(".")[0], executor=executor, worker="w1", reason="lost")


def test_a_new_worker_is_registered_with_its_offer() -> None:
    """Semantics W1."""
    assert decide(fold([]), worker("w1", 7, 5000)) == [
        WorkerRegistered(worker="w1", node="w1", host="w1.example", rack="", offer=Resources(7, 5000))
    ]


@pytest.mark.parametrize("status", ["alive", "draining", "leaving"])
def test_the_same_offer_again_changes_nothing(status: WorkerStatus) -> None:
    """Semantics W1."""
    assert decide(fold([*HELD, changed(status)]), worker("w1", 16)) == []


def test_labels_follow_the_registration_and_change_with_the_next() -> None:
    """Semantics W1."""
    labelled = [WorkerLabelled(worker="w3", labels={"disk": "ssd", "zone": "north hall"})]
    new = replace(worker("w3", 16), labels={"zone": "north hall", "disk": "ssd"})
    events = decide(fold(HELD), new)
    assert events[1:] == labelled
    state = fold(events, fold(HELD))
    assert list(state.workers["w3"].labels) == ["disk", "zone"]
    assert restored(lines(state)).workers["w3"].labels == state.workers["w3"].labels
    assert decide(state, new) == []
    larger = decide(state, replace(new, cores=32, labels={"disk": "ssd"}))
    assert [type(event) for event in larger] == [WorkerChanged, WorkerLabelled]
    assert fold(larger, state).workers["w3"].labels == {"disk": "ssd"}
    assert decide(state, replace(new, cores=32, labels={})) == [WorkerLabelled(worker="w3", labels={})]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({f"k{number}": "v" for number in range(17)}, "a worker can have at most 16 labels, not 17"),
        ({"a b": "v"}, "the key of a label must be 1 to 64 letters, digits"),
        ({"zone": ""}, "the label zone must not be empty"),
        ({"zone": "x" * 129}, "the label zone must have at most 128 characters, not 129"),
        ({"zone": "a\x1bb"}, "the label zone must not contain control characters"),
    ],
)
def test_labels_that_no_worker_can_have_are_refused(labels: dict[str, str], sentence: str) -> None:
    """Semantics W1."""
    with pytest.raises(InvalidCommand, match=sentence):
        decide(fold(HELD), replace(worker("w3", 16), labels=labels))


@pytest.mark.parametrize("status", ["alive", "draining", "leaving"])
def test_another_offer_changes_the_worker_and_leaves_its_status(status: WorkerStatus) -> None:
    """Semantics W1."""
    state = fold([*HELD, changed(status)])
    assert decide(state, worker("w1", 32, 4096)) == [changed(status, 32, 4096)]
    assert decide(state, worker("w1", 16, 4096)) == [changed(status, 16, 4096)]


def test_an_offer_of_exactly_what_is_held_is_taken_and_leaves_nothing_free() -> None:
    """Semantics W1."""
    state = fold(HELD)
    events = decide(state, worker("w1", 4, 2048))
    assert events == [changed("alive", 4, 2048)]
    assert fold(events, state).workers["w1"].free == Resources(0, 0)


@pytest.mark.parametrize(
    ("cores", "memory_mb", "sentence"),
    [
        (3, 65536, "worker 'w1' offers 3 cores, but 4 cores are granted on it; run `fairlog drain w1` first"),
        (16, 2047, "worker 'w1' offers 2047 MiB, but 2048 MiB are granted on it; run `fairlog drain w1` first"),
    ],
)
def test_an_offer_of_less_than_what_is_held_is_refused(cores: int, memory_mb: int, sentence: str) -> None:
    """Semantics W1."""
    with pytest.raises(OfferTooSmall) as raised:
        decide(fold(HELD), worker("w1", cores, memory_mb))
    assert str(raised.value) == sentence


@pytest.mark.parametrize("where", [{"node": "n9"}, {"host": "elsewhere"}, {"rack": "r9"}])
def test_a_worker_id_that_comes_from_another_place_is_refused(where: dict[str, str]) -> None:
    with pytest.raises(DuplicateWorker, match=r"^a worker 'w1' is already registered from host 'w1.example'"):
        decide(fold(HELD), replace(worker("w1", 16), **where))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"worker": "a b"}, "the worker id must be 1 to 64 letters"),
        ({"node": ""}, "the node must not be empty"),
        ({"host": ""}, "the host must not be empty"),
        ({"host": "a\0"}, "the host must not contain control characters"),
        ({"rack": "r\n"}, "the rack must not contain control characters"),
        ({"cores": 0}, "a worker's cores must be between 1 and 1000000, not 0"),
        ({"cores": 10**9}, "a worker's cores must be between 1 and 1000000"),
        ({"memory_mb": 0}, "a worker's memory, in MiB, must be between 1 and"),
        ({"memory_mb": -512}, "a worker's memory, in MiB, must be between 1 and"),
    ],
)
def test_an_offer_with_a_value_out_of_bounds_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidCommand) as raised:
        decide(fold([]), replace(worker("w1", 16), **changes))
    assert str(raised.value).startswith(sentence)


def test_draining_and_undraining_change_the_status_once() -> None:
    """Semantics W3."""
    state = fold(HELD)
    assert decide(state, UndrainWorker(worker="w1")) == []
    assert decide(state, DrainWorker(worker="w1")) == [changed("draining")]
    fold([changed("draining")], state)
    assert decide(state, DrainWorker(worker="w1")) == []
    assert decide(state, UndrainWorker(worker="w1")) == [changed("alive")]


def test_a_worker_that_is_unwell_drains_until_it_is_well_again() -> None:
    """Semantics W11."""
    state = fold(HELD)
    assert decide(state, UndrainWorker(worker="w1", unwell=True)) == []
    unwell = replace(changed("draining"), reason="no disk", unwell=True)
    assert decide(state, DrainWorker(worker="w1", reason="no disk", unwell=True)) == [unwell]
    fold([unwell], state)
    assert decide(state, DrainWorker(worker="w1", reason="still no disk", unwell=True)) == []
    assert decide(state, UndrainWorker(worker="w1", unwell=True)) == [changed("alive")]
    assert decide(state, UndrainWorker(worker="w1")) == [changed("alive")]


@pytest.mark.parametrize("status", ["draining", "leaving", "decommissioned"])
def test_what_an_operator_has_decided_of_a_worker_stays_however_well_it_is(status: WorkerStatus) -> None:
    """Semantics W11."""
    state = fold([*HELD, changed(status)])
    assert decide(state, DrainWorker(worker="w1", unwell=True)) == []
    assert decide(state, UndrainWorker(worker="w1", unwell=True)) == []


def test_an_operator_who_drains_an_unwell_worker_decides_for_it() -> None:
    """Semantics W11."""
    state = fold([*HELD, replace(changed("draining"), unwell=True)])
    assert decide(state, DrainWorker(worker="w1", reason="a new disk")) == [
        replace(changed("draining"), reason="a new disk")
    ]
    assert decide(state, RemoveWorker(worker="w1")) == [changed("leaving")]


def test_an_unwell_worker_that_offers_something_else_stays_unwell() -> None:
    """Semantics W1, W11."""
    state = fold([*HELD, replace(changed("draining"), unwell=True)])
    [event] = decide(state, worker("w1", 64))
    assert isinstance(event, WorkerChanged)
    assert (event.status, event.unwell, event.offer.cores) == ("draining", True, 64)


def test_a_worker_that_holds_executors_leaves_and_may_be_called_back() -> None:
    """Semantics W3: out once empty, unless it is told to drain only."""
    state = fold(HELD)
    assert decide(state, RemoveWorker(worker="w1")) == [changed("leaving")]
    fold([changed("leaving")], state)
    assert decide(state, RemoveWorker(worker="w1")) == []
    assert decide(state, DrainWorker(worker="w1")) == [changed("draining")]
    assert decide(state, UndrainWorker(worker="w1")) == [changed("alive")]


@pytest.mark.parametrize("status", ["alive", "draining"])
def test_an_empty_worker_is_removed_at_once(status: WorkerStatus) -> None:
    """Semantics W3."""
    state = fold([joined(), changed(status)])
    assert decide(state, RemoveWorker(worker="w1")) == [WorkerRemoved(worker="w1", reason="removed")]


def test_a_worker_removed_by_force_loses_its_executors_first() -> None:
    """Semantics W3, W2."""
    assert decide(fold(HELD), RemoveWorker(worker="w1", force=True)) == [
        lost("a1.0"),
        WorkerRemoved(worker="w1", reason="removed"),
    ]


def test_a_lost_workers_executors_are_lost_before_it_and_its_last_heartbeat_is_kept() -> None:
    """Semantics W2: only its own executors, in the order they were granted."""
    state = fold([*HELD, queued("a2"), entered("a2"), granted("a2.0"), granted("a2.1")])
    assert decide(state, LoseWorker(worker="w1", last_seen=77)) == [
        lost("a1.0"),
        lost("a2.0"),
        lost("a2.1"),
        WorkerRemoved(worker="w1", reason="lost", last_seen=77),
    ]


def test_nothing_comes_back_of_an_app_that_has_ended() -> None:
    """Semantics A5, W2."""
    done = ExecutorRemoved(app="a1", executor="a1.1", worker="w2", reason="exited", done=True)
    state = fold([*HELD, done, AppRemoved(app="a1", reason="killed")])
    assert decide(state, LoseWorker(worker="w1")) == [lost("a1.0"), WorkerRemoved(worker="w1", reason="lost")]


@pytest.mark.parametrize(
    "command",
    [
        DrainWorker(worker="w9"),
        UndrainWorker(worker="w9"),
        RemoveWorker(worker="w9"),
        RemoveWorker(worker="w9", force=True),
        LoseWorker(worker="w9"),
    ],
)
def test_an_unknown_worker_is_refused(command: Command) -> None:
    with pytest.raises(UnknownWorker, match=r"^no worker 'w9' is registered"):
        decide(fold(HELD), command)


def test_a_node_may_offer_several_workers() -> None:
    """Semantics W1."""
    second = RegisterWorker(worker="w2", node="w1", host="w1.example", cores=16, memory_mb=65536)
    assert len(decide(fold([joined()]), second)) == 1
