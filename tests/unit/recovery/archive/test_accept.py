"""An emptied log that an operator goes on with is a new one: by the newest edition of the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from recovery.archive.accept import accept
from recovery.archive.editions import is_earlier
from recovery.replay.rebuild import rebuild
from scheduler.model.sender import local
from scheduler.rules.state.preconditions import EDITIONS
from scheduler.service.known import End
from scheduler.service.scheduler import Scheduler
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from witness.audit.audit import audit

if TYPE_CHECKING:
    import fakeredis

KEYS = Keys("prod")


def test_a_log_that_begins_with_the_decision_is_by_the_newest_edition(fake: fakeredis.FakeRedis) -> None:
    log = EventLog(fake, KEYS)
    fake.set(KEYS.shorter, msgspec.json.encode(End(25, "d" * 64, "master one")))
    assert accept(log, 0, local(1000)).at == 1
    assert not is_earlier(rebuild(log)[0])
    Scheduler(log, "two", lambda: rebuild(log)).take_over()
    state, _ = rebuild(log)
    assert (state.edition, is_earlier(state)) == (EDITIONS[-1], False)
    assert audit(log.facts()) == []
