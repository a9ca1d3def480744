"""What an API server reads of a log that is shorter than one that it has known: nothing, until an operator decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlog.api.past import NotReady
from fairlog.api.replica import Replica
from recovery.archive.accept import accept
from recovery.replay.rebuild import rebuild
from scheduler.model.sender import local
from scheduler.service import known as module
from scheduler.service.known import Known
from scheduler.service.scheduler import Scheduler
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    import fakeredis

KEYS = Keys("replica")


def test_nothing_is_read_from_a_shorter_log_until_it_is_accepted(
    fake: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    log = EventLog(fake, KEYS)
    master = Scheduler(log, "m1", lambda: rebuild(log))
    master.take_over()
    replica = Replica(log, known=Known(log, "API server s"))
    assert replica.step() == 0
    assert replica.step() == 0
    assert replica.seen().seq == log.head().seq
    fake.flushall()
    assert replica.step() > 0
    with pytest.raises(
        NotReady, match=r"ends at position 0, and API server s has known it up to \d+.*recover --accept 0"
    ):
        replica.seen()
    assert replica.step() > 0
    with pytest.raises(NotReady):
        replica.check()
    accept(log, 0, local(1000))
    assert replica.step() == 0
    assert replica.seen().seq == 1
