"""Nothing is acknowledged while the store may lose it, on every server that this machine has."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from redis import Redis

from fairlog.watch.conditions import Found, found
from fairlog.watch.surroundings import look_around
from recovery.failover.lease import Member
from recovery.failover.master import Master
from recovery.replay.rebuild import rebuild
from scheduler.model.commands import RegisterCompany
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.client import CommandClient
from scheduler.store.connection import connect
from scheduler.store.doorbell import RING_LUA
from scheduler.store.durability import check_store
from scheduler.store.eventlog import EventLog
from scheduler.store.keys import Keys, bell_id, queue_key
from tests.integration.servers import Servers, until
from tests.waiting import HOPELESS_S, wait_until


@contextmanager
def serving(url: str, keys: Keys) -> Iterator[Master]:
    """A master that serves in a thread of its own."""
    with connect(url) as store:
        log = EventLog(store, keys, durable=True)
        master = Master(log, Member("serving", 1, "here"), check=lambda: check_store(store))
        thread = threading.Thread(target=master.run)
        thread.start()
        try:
            yield master
        finally:
            master.worker.stop()
            with Redis.from_url(url) as other:
                other.eval(RING_LUA, 1, queue_key(keys.master_queue), bell_id(keys.master_queue))
            thread.join(HOPELESS_S)
            assert not thread.is_alive()


def _conditions(admin: Redis, keys: Keys) -> list[Found]:
    return found(ClusterState(), look_around(admin, keys))


class Asking:
    """A command that waits for its answer in a thread of its own."""

    def __init__(self, url: str, keys: Keys, company: str) -> None:
        self.answered = threading.Event()
        self._url, self._keys, self._company = url, keys, company
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        with connect(self._url) as store:
            CommandClient(store, self._keys.cluster, timeout_s=HOPELESS_S).send(RegisterCompany(company=self._company))
        self.answered.set()


@pytest.mark.parametrize(
    ("setting", "bad"), [("appendonly", "no"), ("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru")]
)
def test_a_serving_master_acknowledges_nothing_while_the_store_may_lose_it(
    servers: Servers, setting: str, bad: str
) -> None:
    port = servers.start()
    url, keys = f"redis://127.0.0.1:{port}/0", Keys(f"test-{uuid4().hex[:8]}")
    with Redis(port=port) as admin, serving(url, keys) as master:
        first = Asking(url, keys, "before")
        wait_until(first.answered.is_set, "the acknowledgement")
        due = str(admin.config_get(setting)[setting])
        admin.config_set(setting, bad)
        second = Asking(url, keys, "meanwhile")
        wait_until(lambda: bool(master._outage), "the master to notice")
        assert not second.answered.is_set()
        (holds,) = [each for each in _conditions(admin, keys) if each.condition == "durability"]
        advised = re.match(r"run `(CONFIG SET [^`]+)` on it", holds.do)
        assert advised is not None
        admin.execute_command(*advised[1].split())
        assert admin.config_get(setting)[setting] == due
        assert not any(each.condition == "durability" for each in _conditions(admin, keys))
        wait_until(second.answered.is_set, "the acknowledgement once the store is mended")
    servers.kill(port)
    servers.launch(port)
    with connect(url) as store:
        until(store.ping)
        state, _ = rebuild(EventLog(store, keys))
    assert sorted(state.companies) == ["before", "meanwhile"]
