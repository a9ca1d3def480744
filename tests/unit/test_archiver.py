"""The archiving that the settings ask for: when it is due, and that one at a time is enough."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError

from recovery import archiver
from recovery.archiver import CLAIMED_S, Archiver, claim, is_due, run
from recovery.files import Unreachable
from scheduler.eventlog import EventLog, connect
from scheduler.events import ClusterConfigured
from tests.property.given import Cluster, recorded
from tests.unit.archived import KEYS, assert_whole, forget_files, in_stream, put_records

if TYPE_CHECKING:
    from redis import Redis

SETTINGS = {"archive_url": "memory://archive", "archive_after_events": 20, "archive_retain_events": 10}


def history() -> Cluster:
    """A cluster with these settings, and forty companies."""
    cluster = Cluster(SETTINGS)
    for number in range(40):
        cluster.company(f"c{number}")
    return cluster


RECORDS = recorded(history())


@pytest.fixture
def log(fake: Redis) -> Iterator[EventLog]:
    forget_files()
    yield put_records(fake, KEYS, RECORDS)
    forget_files()


def test_it_is_due_once_as_many_events_as_the_settings_say_lie_there_beyond_those_that_stay(log: EventLog) -> None:
    settings = ClusterConfigured(archive_url="memory://archive", archive_after_events=20, archive_retain_events=10)
    assert [head for head in range(28, 32) if is_due(log, settings, head)] == [30, 31]
    assert not is_due(log, settings.model_copy(update={"archive_after_events": 0}), 1_000)
    nowhere = settings.model_copy(update={"archive_url": ""})
    assert not is_due(log, nowhere, 1_000)
    assert is_due(log, nowhere, 1_000, "memory://elsewhere")


def test_it_moves_what_the_settings_in_the_log_say_and_then_nothing_is_due(log: EventLog) -> None:
    assert run(log, os.getppid()) == len(RECORDS) - 10
    assert in_stream(log) == [record.seq for record in RECORDS[-10:]]
    assert_whole(log, RECORDS)
    assert run(log, os.getppid()) == 0
    assert not log.store.exists(KEYS.archiving)


def test_while_one_is_at_it_others_leave_it_alone_but_not_for_ever(log: EventLog) -> None:
    assert claim(log)
    assert not claim(log)
    assert 0 < log.store.ttl(KEYS.archiving) <= CLAIMED_S
    run(log, os.getppid())
    assert claim(log)


def test_one_that_fails_is_not_followed_by_the_next_at_once(log: EventLog) -> None:
    assert claim(log)
    with pytest.raises(Unreachable, match="nowhere://x/prod cannot be reached"):
        run(log, os.getppid(), "nowhere://x")
    assert not claim(log)


def test_it_ends_with_the_master_that_started_it(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver, "CLAIM_EVERY", 5)
    gone = -1
    with pytest.raises(SystemExit):
        run(log, gone)
    assert list(log.read()) == RECORDS


def test_a_master_that_is_not_told_to_archive_asks_the_store_nothing() -> None:
    tended = Archiver(EventLog(connect("unix:///nowhere"), KEYS), "unix:///nowhere")
    tended.tend(ClusterConfigured(), 1_000_000)
    tended.stop()
    with pytest.raises(StoreConnectionError):
        tended.tend(ClusterConfigured(archive_url="memory://archive", archive_after_events=1), 1_000_000)
