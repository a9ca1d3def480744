"""Automatic archiving: when it is due, and that one process does it at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from redis.exceptions import ConnectionError as StoreConnectionError

from recovery.archive import archiver
from recovery.archive.archiver import CLAIMED_S, Archiver, claim, is_due, run
from scheduler.model.events import ClusterConfigured
from scheduler.store.codec import Record
from scheduler.store.connection import connect
from scheduler.store.eventlog import EventLog
from tests.property.given import Cluster, recorded
from tests.unit.recovery.archive.archived import KEYS, forget_files, in_stream, put_records, staying

if TYPE_CHECKING:
    from redis import Redis

SETTINGS: dict[str, Any] = {"archive_url": "memory://archive", "archive_after_events": 20, "archive_retain_events": 10}


@cache
def history() -> list[Record]:
    """What a cluster of forty companies wrote."""
    cluster = Cluster()
    for number in range(40):
        cluster.company(f"c{number}")
    return recorded(cluster)


@pytest.fixture
def log(fake: Redis) -> Iterator[EventLog]:
    forget_files()
    yield put_records(fake, KEYS, history())
    forget_files()


def test_archiving_is_due_once_enough_events_lie_beyond_the_retained_ones(log: EventLog) -> None:
    settings = ClusterConfigured(**SETTINGS)
    assert [head for head in range(28, 32) if is_due(log, settings, head)] == [30, 31]
    assert not is_due(log, replace(settings, archive_after_events=0), 1_000)
    nowhere = replace(settings, archive_url="")
    assert not is_due(log, nowhere, 1_000)
    assert is_due(log, nowhere, 1_000, "memory://elsewhere")


def test_archiving_is_no_longer_due_after_the_move(log: EventLog) -> None:
    settings = ClusterConfigured(**SETTINGS)
    assert is_due(log, settings, len(history()))
    run(log, settings.archive_url, settings.archive_retain_events)
    assert in_stream(log) == staying(10, history())
    assert not is_due(log, settings, len(history()))


def test_one_process_archives_at_a_time_and_its_claim_expires(log: EventLog) -> None:
    assert claim(log)
    assert not claim(log)
    assert 0 < log.store.ttl(KEYS.archiving) <= CLAIMED_S


def test_the_archiver_ends_with_the_master_that_started_it() -> None:
    gone, root = "1", Path(__file__).parents[4]
    command = [sys.executable, "-m", "recovery.archive.archiver", gone, "memory://archive", "10", "10"]
    assert subprocess.run(command, check=False, cwd=root).returncode == -signal.SIGTERM


def test_archiving_yields_until_it_falls_behind_and_then_is_started_anew(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ClusterConfigured(**{**SETTINGS, "archive_url": "file:///archive"})
    started: list[str] = []
    children: list[_Child] = []

    def child(_: str, command: list[str], **__: object) -> _Child:
        started.append(command[-1])
        children.append(_Child())
        return children[-1]

    monkeypatch.setattr(archiver, "Child", child)
    monkeypatch.setattr(archiver, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("scheduler.service.pace.REST", 0)
    tended = Archiver(log, "unix:///nowhere", allowed=["file:///archive"])
    late = 10 + 20 * archiver.HURRIES_AFTER
    for head in (late - 1, late - 1):
        tended.tend(settings, head)
    assert (started, children[0].pid) == ([str(archiver.NICENESS)], 1)
    tended.tend(settings, late)
    assert children[0].pid is None
    log.store.delete(KEYS.archiving)  # its claim has expired
    for head in (late, late + 1_000):
        tended.tend(settings, head)
    assert (started, children[1].pid) == ([str(archiver.NICENESS), "0"], 1)


class _Child:
    """A process that runs until it is asked to stop."""

    def __init__(self) -> None:
        self.pid: int | None = 1

    def start(self) -> None:
        pass

    def ask_to_stop(self) -> None:
        self.pid = None


def test_without_the_setting_a_master_asks_the_store_nothing() -> None:
    tended = Archiver(EventLog(connect("unix:///nowhere"), KEYS), "unix:///nowhere")
    tended.tend(ClusterConfigured(), 1_000_000)
    tended.stop()
    with pytest.raises(StoreConnectionError):
        tended.tend(ClusterConfigured(archive_url="memory://archive", archive_after_events=1), 1_000_000)
