"""Answers from the whole log, made by a process of their own on a real store."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from fairlog.api.figures import Apart, Failed, TooLong, here
from recovery.archive.archive import open_log
from recovery.replay.rebuild import rebuild
from scheduler.model.errors import InvalidCommand, UnknownApp
from scheduler.service.scheduler import Scheduler
from scheduler.store.keys import Keys
from tests.waiting import HOPELESS_S, wait_until

if TYPE_CHECKING:
    from redis import Redis

    from fairlog.local.store import EmbeddedStore
    from scheduler.store.eventlog import EventLog

KEYS = Keys("figures")


@pytest.fixture
def log(connection: Redis) -> EventLog:
    log = open_log(connection, KEYS)
    Scheduler(log, "m", lambda: rebuild(log)).take_over()
    return log


@pytest.fixture
def apart(store: EmbeddedStore) -> Iterator[Apart]:
    with Apart(store.url, KEYS.cluster) as made:
        yield made


def test_another_process_gives_the_same_answers_and_refusals(log: EventLog, apart: Apart) -> None:
    assert msgspec.json.decode(apart("audit", 2, {})) == msgspec.json.decode(here(log, lambda: 0)("audit", 2, {}))
    with pytest.raises(UnknownApp, match="'a'"):
        apart("explain", 2, {"app": "a"})
    with pytest.raises(InvalidCommand, match="the log has no entry in 2001-01"):
        apart("statement", 2, {"company": "acme", "month": "2001-01"})
    processes = dict(apart._processes)
    assert len(processes) == 2
    assert b"verdicts" in apart("audit", 2, {})
    assert apart._processes == processes


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("end", "error", "says"), [(signal.SIGALRM, TooLong, "more than 60 s"), (signal.SIGKILL, Failed, "ended with -9")]
)
def test_a_process_that_ends_without_an_answer_is_replaced(
    apart: Apart, end: signal.Signals, error: type[Exception], says: str
) -> None:
    apart("audit", 2, {})
    process = psutil.Process(apart._processes["all"].pid)
    process.suspend()
    raised: list[BaseException] = []

    def ask() -> None:
        with pytest.raises(error, match=says) as found:
            apart("audit", 2, {})
        raised.append(found.value)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: asking.is_alive() and process.status() == psutil.STATUS_STOPPED, "the process's stop")
    process.send_signal(end)
    process.resume()
    asking.join(HOPELESS_S)
    assert len(raised) == 1
    assert b"verdicts" in apart("audit", 2, {})


@pytest.mark.usefixtures("log")
def test_the_process_ends_with_the_server(store: EmbeddedStore) -> None:
    with Apart(store.url, KEYS.cluster) as made:
        made("audit", 2, {})
        pid = made._processes["all"].pid
    assert not psutil.pid_exists(pid)
