"""An audit with a child ahead of it comes to the same as one without, whatever the log holds, and where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from select import select
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlog.cli.render import log_json
from recovery.ahead import Ahead
from recovery.audit import Audit, Deviation
from recovery.books import Books
from recovery.replay.chain import Entry, read_export
from scheduler.model.events import Record
from scheduler.rules.state import ClusterState
from tests.property.given import recorded
from tests.property.histories import HISTORIES, History, played, seeded
from tests.property.test_audit import FAULTS
from tests.unit.recorded import rechained

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Told(NamedTuple):
    """All that an audit tells."""

    deviations: list[Deviation]
    events: int
    decisions: int
    companies: list[str]
    blind_from: int | None
    ends: tuple[int, str]


def told(audit: Audit, entries: Iterator[Entry]) -> Told:
    deviations = list(audit.deviations(entries))
    ends = audit.ends_at, audit.digest
    return Told(deviations, audit.events, audit.decisions, list(audit.companies), audit.blind_from, ends)


def with_a_child(lines: list[bytes], begins_at: int) -> tuple[Told, int]:
    """What an audit tells that comes to a child which has begun there and is ready; how far it went by itself."""
    audit = Audit()
    audit.ahead = ahead = Ahead(lambda: read_export(lines), 2 * begins_at)
    try:
        select([ahead._answer], [], [])
        return told(audit, read_export(lines)), audit.state.head
    finally:
        ahead.end()


def test_a_child_that_read_another_log_is_not_believed() -> None:
    log = recorded(played(seeded(7, 60)))
    lines = exported(log)
    others = exported(rechained([each._replace(data=each.data.replace('"w0"', '"w9"')) for each in log]))
    audit = Audit()
    audit.ahead = ahead = Ahead(lambda: read_export(others), len(log))
    try:
        select([ahead._answer], [], [])
        assert told(audit, read_export(lines)) == told(Audit(), read_export(lines))
    finally:
        ahead.end()


def exported(log: list[Record]) -> list[bytes]:
    return [f"{log_json(record)}\n".encode() for record in log]


Spoil = Callable[[list[bytes], int], list[bytes]]


def _planted(name: str) -> Spoil:
    """A fault in an honestly recomputed chain, at the first decision from there on that it can be planted in."""

    def spoil(lines: list[bytes], at: int) -> list[bytes]:
        log = [
            Record(**{**said, "data": json.dumps(said["data"], separators=(",", ":"))}) for said in map(_said, lines)
        ]
        for number in (*range(at, len(log)), *range(at)):
            if log[number].type in ("AppAdmitted", "DriverAllocated", "ExecutorAllocated"):
                changed = FAULTS[name](log, number, json.loads(log[number].data))
                if changed is not None:
                    return exported(rechained(changed))
        return lines

    return spoil


def _said(line: bytes) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(line)
    return said


def _edited(line: bytes, **changes: object) -> bytes:
    return json.dumps({**_said(line), **changes}, separators=(",", ":")).encode() + b"\n"


SPOILED: dict[str, Spoil] = {
    "nothing": lambda lines, _: lines,
    **{name: _planted(name) for name in FAULTS},
    "a removed entry": lambda lines, at: [*lines[:at], *lines[at + 1 :]],
    "a doubled entry": lambda lines, at: [*lines[:at], lines[at], *lines[at:]],
    "an entry far behind its place": lambda lines, at: [*lines[:at], *lines[at + 1 :], lines[at]],
    "two entries exchanged": lambda lines, at: [*lines[:at], *reversed(lines[at : at + 2]), *lines[at + 2 :]],
    "an altered entry": lambda lines, at: [*lines[:at], _edited(lines[at], cause="somebody"), *lines[at + 1 :]],
    "an unknown entry": lambda lines, at: [*lines[:at], _edited(lines[at], type="Unheard"), *lines[at + 1 :]],
    "no entry": lambda lines, at: [*lines[:at], b"no JSON\n", *lines[at + 1 :]],
    "a wrong turn": lambda lines, at: [*lines[:at], _edited(lines[at], turn=at), *lines[at + 1 :]],
    "a huge number": lambda lines, at: [*lines[:at], _edited(lines[at], seq=1 << 70), *lines[at + 1 :]],
}


@given(HISTORIES, st.data())
@settings(max_examples=20)
def test_an_audit_tells_the_same_whatever_a_child_ahead_has_come_to(history: History, data: st.DataObject) -> None:
    """Faults of every kind before, at and behind the place where the child begins, which lies anywhere."""
    lines = exported(recorded(played(history)))
    begins_at = data.draw(st.integers(0, len(lines) + 2))
    for name, spoil in SPOILED.items():
        at = data.draw(st.integers(0, len(lines) - 1) | st.just(min(begins_at, len(lines) - 1)))
        spoiled = spoil(lines, at)
        assert with_a_child(spoiled, begins_at)[0] == told(Audit(), read_export(spoiled)), (name, at)


def test_a_child_takes_the_rest_off_an_audit_wherever_it_begins() -> None:
    log = recorded(played(seeded(7, 60)))
    turns = sorted({record.turn for record in log})
    for begins_at in (0, 1, len(log) // 3, len(log) // 2, turns[-1] - 1):
        whole, went = with_a_child(exported(log), begins_at)
        assert (whole.deviations, whole.events) == ([], len(log))
        assert went == min(turn - 1 for turn in turns if turn - 1 >= max(begins_at, 1))


@pytest.mark.parametrize("name", ["a removed entry", "an altered entry", "no entry", *FAULTS])
def test_a_fault_behind_the_place_where_the_child_begins_is_found_by_the_child(name: str) -> None:
    log = recorded(played(seeded(7, 60)))
    lines = SPOILED[name](exported(log), 2 * len(log) // 3)
    (found, *_), went = with_a_child(lines, len(log) // 3)
    assert len(log) // 3 <= went < len(log) // 2
    assert found
    assert found[0].seq > 2 * len(log) // 3


@given(HISTORIES, st.data())
@settings(max_examples=40)
def test_books_that_begin_with_a_state_go_on_as_those_kept_from_the_first_event(
    history: History, data: st.DataObject
) -> None:
    log = played(history).log
    begin = data.draw(st.integers(0, len(log)))
    books, state = Books(), ClusterState()
    begun = Books()
    for number, (event, at, cause) in enumerate(log):
        if number == begin:
            begun = Books.of(state)
        state.apply(event, at=at, cause=cause)
        assert books.post(event, state) is None
        if number >= begin:
            assert begun.post(event, state) is None
    if begin < len(log):
        assert vars(begun) == vars(books)
