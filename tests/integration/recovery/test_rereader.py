"""A master that runs stops when the store holds another log than it has folded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from fairlog.local.store import EmbeddedStore
from recovery.failover.lease import Member
from recovery.failover.master import Master
from recovery.failover.rereader import Rereader
from scheduler.model.commands import RegisterCompany
from scheduler.model.errors import NoMaster, UnreadableRecord
from scheduler.service.client import CommandClient
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.property.given import submission
from tests.unit.recorded import chain_of, put
from tests.waiting import HOPELESS_S, wait_until


class Running:
    """A master in a thread of its own; `ended` is what ended it."""

    def __init__(self, store: EmbeddedStore, keys: Keys, name: str) -> None:
        self.master = Master(EventLog(Redis.from_url(store.url), keys), Member(name, 1, "here"))
        self.ended: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.master.run()
        except Exception as error:  # noqa: BLE001 - told by `why`
            self.ended = error

    def why(self) -> str:
        """Why it has stopped."""
        wait_until(lambda: not self._thread.is_alive(), "the master to stop")
        assert isinstance(self.ended, UnreadableRecord), self.ended
        return str(self.ended)

    def stop(self) -> None:
        """Have it end."""
        self.master.worker.stop()
        self._thread.join(HOPELESS_S)


@pytest.fixture
def keys() -> Keys:
    return Keys(f"test-{uuid4().hex[:8]}")


def _alter(log: EventLog, seq: int, field: str, value: str) -> None:
    """Change a field of one entry; the entries stay in one stream, whose last one is as it was."""
    with log.store.pipeline() as together:
        entries: Any = log.store.xrange(log.keys.log)
        together.delete(log.keys.log)
        for entry, fields in entries:
            if entry == f"{seq}-0".encode():
                fields[field.encode()] = value.encode()
            together.xadd(log.keys.log, fields, id=entry)
        together.execute()


DAMAGES: dict[str, Callable[[EventLog], object]] = {
    "altered": lambda log: _alter(log, 5, "events", '[["CompanyRegistered","evil",null,null,null,false]]'),
    "missing": lambda log: log.store.xdel(log.keys.log, "5-0"),
    "trimmed": lambda log: log.store.xtrim(log.keys.log, minid="6-0", approximate=False),
    "private": lambda log: _alter(log, 5, "private", '[[0,"salt",["evil",["rm"],{},"/"]]]'),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_every_master_that_runs_stops_on_a_damaged_log(store: EmbeddedStore, keys: Keys, how: str) -> None:
    with Redis.from_url(store.url) as connection:
        log, client = EventLog(connection, keys), CommandClient(connection, keys.cluster, timeout_s=HOPELESS_S)
        running = [Running(store, keys, "one")]
        client.send(RegisterCompany(company="acme"))
        running.append(Running(store, keys, "two"))
        for number in range(5):
            client.send(submission(f"a{number}"))
        DAMAGES[how](log)
        for each in running:
            assert "position" in each.why()
        assert int(connection.get(keys.damaged) or 0) in ({1, 5} if how == "trimmed" else {5})
        late = Running(store, keys, "late")
        late.why()
        with pytest.raises(NoMaster):
            CommandClient(connection, keys.cluster, timeout_s=0.5).send(RegisterCompany(company="late"))


@pytest.fixture
def log(connection: Redis, keys: Keys) -> EventLog:
    made = EventLog(connection, keys)
    put(made, chain_of(40))
    return made


@pytest.fixture
def rereader(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> Rereader:
    monkeypatch.setattr("recovery.failover.rereader.EVERY_S", 0.0)
    monkeypatch.setattr("scheduler.service.pace.REST", 0)
    monkeypatch.setattr("recovery.failover.rereader.PIECE_BYTES", 400)
    return Rereader(log)


def _tend(rereader: Rereader, times: int) -> None:
    for _ in range(times):
        rereader.tend()


def test_it_passes_over_the_whole_log_again_and_again(log: EventLog, rereader: Rereader) -> None:
    _tend(rereader, 100)
    _alter(log, 40, "at", "7")
    with pytest.raises(UnreadableRecord, match="log position 40: entry 40 was altered"):
        _tend(rereader, 100)


@pytest.mark.parametrize("times", range(1, 5))
def test_a_log_of_less_than_a_piece_is_compared_as_a_whole_each_time(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr("recovery.failover.rereader.EVERY_S", 0.0)
    monkeypatch.setattr("scheduler.service.pace.REST", 0)
    rereader = Rereader(log)
    _tend(rereader, times)
    _alter(log, 2, "at", "7")
    with pytest.raises(UnreadableRecord, match="log position 2"):
        rereader.tend()


@pytest.mark.parametrize("read", range(1, 8))
def test_a_log_whose_end_a_failover_has_replaced_is_not_damaged(log: EventLog, rereader: Rereader, read: int) -> None:
    _tend(rereader, read)
    log.store.delete(log.keys.log)
    put(log, chain_of(20, other_from=10))
    _tend(rereader, 50)
    assert log.store.get(log.keys.damaged) is None


def test_what_is_whole_again_is_no_longer_reported(log: EventLog, rereader: Rereader) -> None:
    at = str(chain_of(7)[6].at)
    _alter(log, 7, "at", "9")
    with pytest.raises(UnreadableRecord):
        _tend(rereader, 40)
    for other in (Rereader(log), Rereader(log)):
        with pytest.raises(UnreadableRecord, match="log position 7"):
            other.heed()
    _alter(log, 7, "at", at)
    rereader.heed()
    assert log.store.get(log.keys.damaged) is None
