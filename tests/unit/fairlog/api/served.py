"""A cluster on the double of the store: a master in a thread, and the API's handlers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fairlog.api.handlers import Handlers
from fairlog.api.replica import Replica
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import RegisterCompany, RegisterWorker, SubmitApp
from scheduler.model.sender import local
from scheduler.service.keyring import Keyring
from scheduler.service.scheduler import Scheduler
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    import fakeredis

RING = Keyring.new()._replace(masters={}, apps=b"")
KEYS = Keys("api")
ROOT = local(0)
ACME = RegisterCompany(company="acme", cores=64, memory_mb=65536)
WORKER = RegisterWorker(worker="w1", node="n1", host="h1", cores=16, memory_mb=16384)


def submission(app: str, **about: object) -> SubmitApp:
    return SubmitApp(**{"app": app, "company": "acme", "user": "ann", "tasks": 1, "command": ("true",), **about})  # type: ignore[arg-type]


@contextmanager
def served(fake: fakeredis.FakeRedis, *, timeout_s: float = HOPELESS_S) -> Iterator[Handlers]:
    """Handlers whose commands a master takes at once, and whose replica follows; all workers beat.

    The replica counts as fresh however long a busy machine keeps its thread waiting.
    """
    scheduler = Scheduler(EventLog(fake, KEYS), "m", lambda: rebuild(EventLog(fake, KEYS)), keyring=RING)
    scheduler.take_over()
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            if scheduler.state.workers:
                fake.zadd(KEYS.heartbeats, dict.fromkeys(scheduler.state.workers, fake.time()[0] * 1000))
            if not scheduler.turn():
                stopped.wait(0.002)

    master = threading.Thread(target=serve)
    master.start()
    try:
        with pytest.MonkeyPatch.context() as patch, Replica(EventLog(fake, KEYS)) as replica:
            patch.setattr("fairlog.api.replica.STALE_S", HOPELESS_S)
            replica.wait_for(scheduler.position.seq, HOPELESS_S)
            yield Handlers(fake, KEYS.cluster, replica, keyring=RING, timeout_s=timeout_s)
    finally:
        stopped.set()
        master.join()
