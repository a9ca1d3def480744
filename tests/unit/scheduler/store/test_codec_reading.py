"""A log read page by page from a store, or line by line from a file, tells what its turns tell."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.errors import UnreadableRecord
from scheduler.store import eventlog
from scheduler.store.codec import FIELDS, GENESIS_DIGEST, Fact, Record, facts, read_export, record_of, stored
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.inflight import InFlight
from scheduler.store.keys import Keys
from tests.property.histories import HISTORIES, History, played, seeded
from tests.unit.recorded import exported, put
from tests.unit.recorded import facts as facts_of

LOG = played(seeded(11, 25)).records
EVERY = facts_of(LOG)


def entry(record: Record) -> tuple[bytes, list[bytes]]:
    """The record as the store gives it."""
    values = [value if isinstance(value, bytes) else str(value).encode() for value in stored(record).values()]
    return b"%d-0" % record.last, [part for pair in zip(FIELDS, values, strict=True) for part in _pair(*pair)]


def _pair(name: str, value: bytes) -> tuple[bytes, bytes]:
    return name.encode(), value


@given(HISTORIES)
@settings(max_examples=30)
def test_what_a_store_gives_and_what_a_file_holds_tell_the_same(history: History) -> None:
    log = played(history).records
    every = facts_of(log)
    assert list(facts(map(record_of, map(entry, log)), 0, GENESIS_DIGEST)) == every
    assert list(read_export(exported(log).encode().splitlines(keepends=True))) == every


@given(st.integers(0, len(LOG) - 1), st.integers(0, 5), st.integers(0, 1 << 30), st.integers(1, 255))
@settings(max_examples=400)
def test_any_single_altered_byte_of_an_entry_is_found_at_its_turn(at: int, part: int, byte: int, flip: int) -> None:
    pages = [entry(record) for record in LOG]
    entry_id, flat = pages[at]
    value = bytearray(flat[2 * part + 1])
    if not value:
        return
    value[byte % len(value)] ^= flip
    pages[at] = entry_id, [*flat[: 2 * part + 1], bytes(value), *flat[2 * part + 2 :]]
    found = facts(map(record_of, pages), 0, GENESIS_DIGEST)
    before = LOG[at].first - 1
    assert [next(found) for _ in range(before)] == EVERY[:before]
    with pytest.raises(UnreadableRecord) as refused:
        next(found)
    assert LOG[at].first <= refused.value.seq <= LOG[at].last


@given(st.integers(0, len(EVERY) - 1), st.integers(0, 1 << 30), st.integers(1, 255))
@settings(max_examples=400)
def test_any_single_altered_byte_of_a_line_is_found_or_says_the_same(at: int, byte: int, flip: int) -> None:
    """White space and the way in which JSON writes a character are no part of what a line says."""
    lines = exported(LOG).encode().splitlines(keepends=True)
    line = bytearray(lines[at].rstrip(b"\n"))
    line[byte % len(line)] ^= flip
    lines[at] = bytes(line) + b"\n"
    told: list[Fact] = []
    fault = None
    try:
        told.extend(read_export(lines))
    except UnreadableRecord as error:
        fault = error.seq
    assert told == (EVERY if fault is None else EVERY[: len(told)])
    assert fault is None or EVERY[at].turn <= fault <= at + 2


@pytest.mark.parametrize("size", [1, 7, len(LOG), len(LOG) + 1])
def test_a_log_of_any_number_of_pages_is_read_up_to_any_position(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "PAGE", size)
    monkeypatch.setattr(eventlog, "FIRST_PAGE", min(size, 3))
    log = EventLog(fakeredis.FakeRedis(), Keys("pages"))
    end = put(log, LOG)
    assert list(log.facts()) == EVERY
    assert list(log.read()) == LOG
    third = LOG[2]
    assert list(log.facts(Position(third.last, third.digest))) == EVERY[third.last :]
    for to in range(len(EVERY) + 1):
        assert list(log.facts(to=to)) == EVERY[:to]
    begun = log.facts()
    assert [next(begun), next(begun)] == EVERY[:2]
    begun.close()  # type: ignore[attr-defined]
    assert log.head() == end, "a page that nobody waited for leaves no answer behind"


@pytest.mark.parametrize(("most_bytes", "counts"), [(1, {3, 1}), (1 << 30, {3, 200})])
def test_a_page_has_fewer_entries_the_larger_they_are(
    most_bytes: int, counts: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "PAGE_BYTES", most_bytes)
    monkeypatch.setattr(eventlog, "FIRST_PAGE", 3)
    asked: list[Any] = []

    def in_flight(store: Any, commands: Any) -> InFlight:
        asked.extend(commands)
        return InFlight(store, commands)

    log = EventLog(fakeredis.FakeRedis(), Keys("pages"))
    put(log, LOG)
    monkeypatch.setattr(eventlog, "InFlight", in_flight)
    assert list(log.read()) == LOG
    assert {command[-1] for command in asked} == counts
    asked.clear()
    assert list(log.backwards(1)) == LOG[::-1]
    assert {min(command[-1], 4) for command in asked} == {min(count, 4) for count in counts}
    asked.clear()
    after = GENESIS
    while told := log.follow(after, wait_ms=1):
        after = Position(told[-1].last, told[-1].digest)
    assert after == log.head()
    assert {command[2] for command in asked} == {200, max(counts - {3})}


def test_positions_are_where_turns_end() -> None:
    log = EventLog(fakeredis.FakeRedis(), Keys("pages"))
    put(log, LOG)
    ends = {record.last: record.digest for record in LOG}
    before = GENESIS
    for seq in range(len(EVERY) + 2):
        found = log.at(seq)
        assert (found and found.digest) == ends.get(seq)
        before = found or before
        assert log.before(seq) == before
    assert log.before(10 * len(EVERY)) == log.head()
