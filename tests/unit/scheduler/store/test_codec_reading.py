"""Entries read as the store holds them tell what the same entries tell record by record, and stop where those stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlog.cli.render import log_json
from recovery.replay.chain import Garbled, read_export, read_lines, verified
from scheduler.model.errors import UnreadableRecord
from scheduler.model.events import AppRemoved
from scheduler.store import codec, eventlog
from scheduler.store.codec import FIELDS, GENESIS_DIGEST, Fact, Raw, Record, encode, facts, raws, record, told
from scheduler.store.eventlog import GENESIS, EventLog, Position
from scheduler.store.keys import Keys
from tests.property.given import recorded
from tests.property.histories import HISTORIES, History, played, seeded

LOG = recorded(played(seeded(11, 60)))


def entry(written: Record) -> tuple[bytes, list[bytes]]:
    """The record as the store gives it."""
    values = [str(value).encode() for value in written[1:]]
    return b"%d-0" % written.seq, [part for pair in zip(FIELDS, values, strict=True) for part in _pair(*pair)]


def _pair(name: str, value: bytes) -> tuple[bytes, bytes]:
    return name.encode(), value


def page(log: Sequence[Record]) -> list[Raw]:
    return raws([entry(written) for written in log])


def one_by_one(entries: Sequence[Raw]) -> Iterator[Fact]:
    digest = GENESIS_DIGEST
    for seq, raw in enumerate(entries, start=1):
        written = record(raw, seq, digest)
        digest = written.digest
        yield told(written)


@given(HISTORIES)
@settings(max_examples=30)
def test_a_page_tells_what_its_records_tell(history: History) -> None:
    log = recorded(played(history))
    assert list(facts(page(log), 0, GENESIS_DIGEST)) == [told(written) for written in log]


@given(st.integers(0, len(LOG) - 1), st.integers(0, 7), st.binary(max_size=3))
@settings(max_examples=150)
def test_whatever_is_put_into_an_entry_is_refused_with_the_words_of_the_long_way(
    at: int, part: int, put: bytes
) -> None:
    entries = page(LOG)
    changed = (*entries[at][:part], entries[at][part] + put, *entries[at][part + 1 :])
    entries[at] = changed
    found = facts(entries, 0, GENESIS_DIGEST)
    due = one_by_one(entries)
    for _ in range(at):
        assert next(found) == next(due)
    if not put:
        assert next(found) == next(due)
        return
    with pytest.raises(UnreadableRecord) as expected:
        next(due)
    with pytest.raises(UnreadableRecord) as refused:
        next(found)
    assert str(refused.value) == str(expected.value)
    assert f"{at + 1}" in str(refused.value)


def test_an_entry_with_other_fields_and_one_that_is_missing_are_refused() -> None:
    number, flat = entry(LOG[2])
    with pytest.raises(UnreadableRecord, match="instead of type"):
        list(facts(raws([*map(entry, LOG[:2]), (number, flat[2:])]), 0, GENESIS_DIGEST))
    with pytest.raises(UnreadableRecord, match="the entry is missing; the next one in the log is 4"):
        list(facts(page([*LOG[:2], *LOG[3:]]), 0, GENESIS_DIGEST))


def test_an_entry_of_an_older_version_is_brought_up_to_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    written = encode(AppRemoved(app="a", reason="killed"), seq=1, at=1, turn=1, cause="", previous=GENESIS_DIGEST)
    monkeypatch.setattr(codec, "_READERS", codec._Readers())
    monkeypatch.setattr(AppRemoved, "v", 2)
    monkeypatch.setitem(codec.UPCASTS, ("AppRemoved", 1), lambda data: {**data, "detail": "was version 1"})
    assert next(facts(page([written]), 0, GENESIS_DIGEST)).event == AppRemoved(
        app="a", reason="killed", detail="was version 1"
    )


@pytest.mark.parametrize("size", [1, 7, len(LOG), len(LOG) + 1])
def test_a_log_of_any_number_of_pages_is_read_up_to_any_position(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "PAGE", size)
    log = EventLog(fakeredis.FakeRedis(), Keys("pages"))
    after = GENESIS
    for written in LOG:
        log.commit(after, [written])
        after = Position(written.seq, written.digest)
    every = [told(written) for written in LOG]
    assert list(log.facts()) == every
    assert list(log.read()) == LOG
    assert list(log.facts(Position(9, LOG[8].digest))) == every[9:]
    for to in (0, 1, 6, 7, 8, len(LOG)):
        assert list(log.facts(to=to)) == every[:to]
    begun = log.facts()
    assert [next(begun), next(begun)] == every[:2]
    begun.close()  # type: ignore[attr-defined]
    assert log.head() == after, "a page that nobody waited for leaves no answer behind"


@pytest.mark.parametrize("at", [1, 30, len(LOG)])
def test_an_export_is_read_as_far_as_it_can_be_trusted_and_then_as_it_is_written(at: int) -> None:
    lines = [f"{log_json(written)}\n".encode() for written in LOG]
    assert list(read_export([b"\n", *lines, b"\n"])) == [told(written) for written in LOG]
    lines[at - 1] = lines[at - 1].replace(b'"digest":"', b'"digest":"0')
    found = list(read_export(lines))
    assert found[: at - 1] == [told(written) for written in LOG[: at - 1]]
    assert found[at - 1 :] == list(read_lines(lines[at - 1 :]))
    assert list(verified(found))[at - 1 :] == list(verified(read_lines(lines)))[at - 1 :]


def test_a_line_that_is_no_entry_is_named_like_that() -> None:
    lines = [log_json(LOG[0]).encode(), b"no entry", b'{"seq":3,"type":"\\ud800"}', b'"\xff"']
    assert list(read_export(lines))[1:] == list(read_lines(lines))[1:]
    assert all(isinstance(each, Garbled) for each in list(read_export(lines))[1:])
