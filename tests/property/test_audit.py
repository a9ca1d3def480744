"""What turns decide is what an audit of their log works out again, and what is changed in it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.model.commands import RestoreLog
from scheduler.model.events import Fixed
from scheduler.model.sender import local
from scheduler.rules.state.cluster import ClusterState
from scheduler.store.codec import Fact, read_export
from tests.property.given import examples
from tests.property.histories import DENSE, HISTORIES, RULES, History, played, seeded
from tests.unit.recorded import exported, facts, rechained, said
from witness.audit.audit import audit
from witness.explain import explain


@given(HISTORIES)
@examples(80)
def test_audit_agrees_with_every_decision_of_any_history(history: History) -> None:
    assert audit(facts(played(history))) == []


@given(HISTORIES)
@examples(80)
def test_any_history_can_be_restored_and_goes_on_with_other_workers(history: History) -> None:
    cluster = played(history)
    cluster.each_event = True
    cluster.turn(RestoreLog(), by=local(1000))
    assert not cluster.state.workers
    assert not cluster.state.executors
    cluster.worker("anew", 64)
    cluster.check_replay()
    assert audit(facts(cluster)) == []


@given(HISTORIES, st.data())
@examples(100)
def test_an_entry_removed_from_any_history_is_missed_at_its_position(history: History, data: st.DataObject) -> None:
    lines = exported(played(history).records).encode().splitlines(keepends=True)
    gone = data.draw(st.integers(1, len(lines) - 1))
    found = audit(read_export([line for seq, line in enumerate(lines, start=1) if seq != gone]))
    assert [(each.seq, each.rule) for each in found][-1] == (gone, "chain")


@given(HISTORIES, st.data())
@examples(100)
def test_two_swapped_entries_of_any_history_are_missed_at_the_first(history: History, data: st.DataObject) -> None:
    lines = exported(played(history).records).encode().splitlines(keepends=True)
    one, other = sorted(data.draw(st.lists(st.integers(1, len(lines)), min_size=2, max_size=2, unique=True)))
    lines[one - 1], lines[other - 1] = lines[other - 1], lines[one - 1]
    assert [(each.seq, each.rule) for each in audit(read_export(lines))][-1] == (one, "chain")


Plant = Callable[[list[Fact], int, dict[str, Any]], list[Fact] | None]


def _edited(**changes: Callable[[dict[str, Any]], object]) -> Plant:
    """A fault that states something else of a decision."""

    def plant(log: list[Fact], at: int, said: dict[str, Any]) -> list[Fact] | None:
        if not changes.keys() <= said.keys():
            return None
        changed = replace(log[at].event, **{name: change(said) for name, change in changes.items()})
        return [*log[:at], replace(log[at], event=changed), *log[at + 1 :]]

    return plant


def _left_out(log: list[Fact], at: int, _: dict[str, Any]) -> list[Fact]:
    return [*log[:at], *log[at + 1 :]]


def _made_up(log: list[Fact], at: int, said: dict[str, Any]) -> list[Fact] | None:
    """One executor more, before this decision."""
    if not said.keys() >= {"app", "executor"}:
        return None
    more = replace(log[at].event, executor=f"{said['app']}.999")
    return [*log[:at], replace(log[at], event=more), *log[at:]]


def _exchanged(log: list[Fact], at: int, _: dict[str, Any]) -> list[Fact] | None:
    one, other = log[at : at + 2] if at + 1 < len(log) else (log[at], log[at])
    alike = one.turn != other.turn or other.type not in DECIDED or one.event == other.event
    return None if alike else [*log[:at], other, one, *log[at + 2 :]]


FAULTS: dict[str, Plant] = {
    "cores": _edited(cores=lambda said: said["cores"] + 1),
    "memory": _edited(memory_mb=lambda said: said["memory_mb"] + 256),
    "worker": _edited(worker=lambda said: "w0" if said["worker"] != "w0" else "w1"),
    "share": _edited(share=lambda _: "3/17"),
    "left out": _left_out,
    "made up": _made_up,
    "exchanged": _exchanged,
}
DECIDED = {"AppAdmitted", "DriverAllocated", "ExecutorAllocated"}


@given(DENSE, RULES, st.integers(0, 1 << 16))
@examples(15)
def test_a_changed_decision_is_found_at_its_position_under_a_valid_chain(
    history: History, rules: dict[str, object], number: int
) -> None:
    """Under whatever policy and placement, with every digest after the change worked out anew."""
    log = facts(played(history, rules))
    decided = [at for at, record in enumerate(log) if record.type in DECIDED]
    assume(decided)
    at = decided[number % len(decided)]
    for name, plant in FAULTS.items():
        changed = plant(log, at, said(log[at]))
        if changed is not None:
            found = audit(rechained(changed))
            assert found, name
            assert found[0].seq == at + 1, (name, found[0])


@given(HISTORIES)
@example(seeded(37, 32, later=False))  # an app that was put back waits while its last executor ends
@examples(40)
def test_the_causes_of_an_apps_wait_add_up_to_its_whole_wait(history: History) -> None:
    cluster = played(history)
    log = facts(cluster)
    for name, app in list(cluster.state.apps.items())[-3:]:
        waited = explain(log, name)["waited"]
        assert sum(each["ms"] for each in waited["byCause"]) == waited["ms"] == _waited(log, name)
        if app.admitted and app.admitted_at > app.submitted_at:
            turn = log[app.admitted - 1].turn
            pending = explain(log[: turn - 1], name, now=lambda app=app: app.admitted_at)["waited"]  # type: ignore[misc]
            assert pending["ms"] == app.admitted_at - app.submitted_at


def _waited(log: list[Fact], name: str) -> int:
    """How long (ms) the app was pending, or admitted without a driver or an executor that it is to have."""
    state, waited = ClusterState(), 0
    for record in log:
        app = state.apps.get(name)
        if app is not None and app.ended is None and not (app.admitted and app.executors):
            lacks = app.admitted and (
                not state.fleet.live
                or (app.spec.driver and app.driver is None)
                or app.executor_limit == 0
                or (isinstance(app.sizing, Fixed) and 0 < app.left_cores < app.sizing.each.cores)
                or state.wants_executors(app)
            )
            if lacks or not app.admitted:
                waited += record.at - state.at
        state.apply(record.event, at=record.at, cause=record.cause)
    return waited
