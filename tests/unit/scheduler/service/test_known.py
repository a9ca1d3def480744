"""What a process knows of the log's end, and when a log that does not hold it is served all the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.service import known as module
from scheduler.service.known import Known, ShorterLog, Unwritable, known_folder, noted
from scheduler.store.eventlog import EventLog, Position
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    import fakeredis

KEYS = Keys("k")


@pytest.fixture
def log(fake: fakeredis.FakeRedis) -> EventLog:
    return EventLog(fake, KEYS)


@pytest.fixture(autouse=True)
def _always_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr("scheduler.service.pace.REST", 0)


def written(log: EventLog, *ends: int, branch: str = "a") -> Position:
    """Turns that end at these positions, with the digest `branch`; the last one's end."""
    for end in ends:
        fields: Any = {"first": end, "at": 1, "events": "[]", "commands": "[]", "private": "", "digest": branch}
        log.store.xadd(KEYS.log, fields, id=f"{end}-0")
    return Position(ends[-1], branch)


def emptied(log: EventLog) -> None:
    log.store.delete(KEYS.log)


def test_an_empty_log_is_refused_by_who_has_known_more_and_says_both_ways_out(log: EventLog) -> None:
    knows = Known(log, "master m1")
    assert knows.tend(written(log, 1, 5), settled=True)
    emptied(log)
    assert not knows.tend(Position(5, "a"), settled=True)
    with pytest.raises(ShorterLog, match="ends at position 0, and master m1 has known it up to 5") as refused:
        knows.check({})
    assert "fairlog restore FILE" in str(refused.value)
    assert "fairlog recover --accept 0" in str(refused.value)


def test_what_was_acknowledged_since_the_last_look_is_missed_at_once(log: EventLog) -> None:
    knows, end = Known(log, "master m1"), written(log, 1, 5)
    emptied(log)
    assert not knows.tend(end, settled=True)


def test_a_log_with_another_entry_there_is_refused(log: EventLog) -> None:
    knows = Known(log, "master m1")
    knows.learn(written(log, 1, 5))
    emptied(log)
    written(log, 1, 5, 9, branch="b")
    with pytest.raises(ShorterLog, match="does not hold what master m1 has known at position 5"):
        knows.check({})


def test_who_knows_less_heeds_the_note_until_the_log_is_whole_again(log: EventLog) -> None:
    knows, fresh = Known(log, "master m1"), Known(log, "master m2")
    knows.learn(written(log, 1, 5))
    emptied(log)
    fresh.check({})
    with pytest.raises(ShorterLog):
        knows.check({})
    with pytest.raises(ShorterLog, match="master m1 has known it up to 5"):
        fresh.check({})
    written(log, 1, 5)
    fresh.check({})
    assert noted(log.store, KEYS) is None
    assert fresh.tend(Position(5, "a"))


def test_the_note_tells_of_the_furthest_end(log: EventLog) -> None:
    first, second = Known(log, "master m1"), Known(log, "API server s")
    first.learn(written(log, 1, 5))
    second.learn(written(log, 9))
    emptied(log)
    for each in (second, first):
        with pytest.raises(ShorterLog):
            each.check({})
    note = noted(log.store, KEYS)
    assert note is not None
    assert (note.seq, note.by) == (9, "API server s")


@pytest.mark.parametrize(
    ("decisions", "goes_on"),
    [({"1@7": 5}, True), ({"1@7": 0}, True), ({"1@7": 4}, False), ({"old": 9}, False), ({"old": 9, "1@7": 9}, True)],
    ids=["up to it", "a restore", "not so far", "one that was seen", "another one"],
)
def test_an_operators_decision_counts_for_who_had_not_seen_it(
    log: EventLog, decisions: dict[str, int], *, goes_on: bool
) -> None:
    knows = Known(log, "master m1")
    knows.check({"old": 3})
    knows.learn(written(log, 1, 5))
    emptied(log)
    if goes_on:
        knows.check(decisions)
        assert knows.tend(written(log, 1, branch="b"), settled=True), "it goes on with what is there"
    else:
        with pytest.raises(ShorterLog):
            knows.check(decisions)


def test_what_no_replica_has_is_not_known_and_may_be_dropped(log: EventLog) -> None:
    knows = Known(log, "standby m2")
    log.store.set(KEYS.settled, 1)
    written(log, 1)
    assert knows.tend(written(log, 5))
    log.store.xdel(KEYS.log, "5-0")
    assert knows.tend(Position(5, "a"))
    knows.check({})
    log.store.delete(KEYS.log)
    written(log, 1, branch="a")
    written(log, 5, branch="b")
    log.store.set(KEYS.settled, 5)
    assert knows.tend(Position(5, "b")), "the dropped branch is not taken for settled"
    knows.check({})
    emptied(log)
    assert not knows.tend(Position(5, "b"))


def test_a_standby_that_waits_for_replicas_believes_nothing_before_one_has_said_so(fake: fakeredis.FakeRedis) -> None:
    log = EventLog(fake, KEYS, replicas=1)
    knows = Known(log, "standby m2")
    assert knows.tend(written(log, 5))
    emptied(log)
    assert knows.tend(Position(5, "a"))


def test_the_file_outlives_the_process(log: EventLog, tmp_path: Path) -> None:
    assert Known(log, "master m1", "master", tmp_path / "known").tend(written(log, 5), settled=True)
    emptied(log)
    with pytest.raises(ShorterLog, match="master m1 has known it up to 5"):
        Known(log, "master m2", "master", tmp_path / "known").check({})
    [file] = (tmp_path / "known").iterdir()
    assert file.name == "k.master.known"
    file.write_text("{")
    with pytest.raises(Unwritable, match="cannot be read: it is damaged; mend it, or remove it"):
        Known(log, "master m2", "master", tmp_path / "known")


def test_a_folder_that_takes_no_file_stops_nobody(log: EventLog, tmp_path: Path) -> None:
    knows = Known(log, "master m1", "master", tmp_path / "known")
    (tmp_path / "known").rmdir()
    assert knows.tend(written(log, 5), settled=True)


def test_the_folder_is_what_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLOG_KNOWN", raising=False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert known_folder() is None
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/fairlog-master:/var/lib/other")
    assert known_folder() == Path("/var/lib/fairlog-master")
    monkeypatch.setenv("FAIRLOG_KNOWN", "/srv/known")
    assert known_folder() == Path("/srv/known")


def test_something_else_in_place_of_the_note_is_no_note(log: EventLog) -> None:
    log.store.set(KEYS.shorter, "{}")
    assert noted(log.store, KEYS) is None
